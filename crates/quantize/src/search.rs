//! Search for the quantization settings with the smallest error on held-out tiles.

use crate::histogram::{Histogram, Method};
use crate::measure::{Comparison, OutputError, error_value};
use crate::observe::{Observed, Runner, floats, observe};
use crate::qat::{QatReport, QatTask, QuantizationAwareTraining};
use crate::variant::{BestVariant, Methods, TensorMethod, Variant};
use crate::{QuantizeMode, bias};
use cytoscope_graph::{Graph, Tensor, ValueId};
use cytoscope_graph_passes::quantize::{self, Domain, Layer};
use cytoscope_graph_passes::{analysis, infer_shapes};
use cytoscope_pipeline::{CalibrationTile, JobError, Meter, ModelTask, ProgressStage, ProgressUnit};
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_storage::setting::CALIBRATE;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Settings that were tried, and their error on the held-out tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Calibration method; `None` for dynamic ranges.
    pub method: Option<Method>,
    /// Strength of channel equalization, from 0 (by the weights alone) to 1 (by the activations alone); `None` without
    /// equalization.
    pub equalized: Option<f64>,
    /// Relative L2 error of the worst output.
    #[serde(deserialize_with = "error_value")]
    pub relative_l2: f64,
}

/// A layer that is kept in float.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloatLayer {
    /// Name of the convolution's node.
    pub name: String,
    /// Why it is kept in float.
    pub why: String,
    /// Share of the network's multiply-accumulates.
    pub share_of_work: f64,
}

/// A quantized graph, the layers whose bias was corrected, and the relative L2 error of its worst output.
struct Corrected {
    graph: Graph,
    names: Vec<String>,
    error: f64,
}

/// The quantized network that the search chose, how it was quantized, and its errors.
pub(crate) struct SearchResult {
    /// The network with QuantizeLinear and DequantizeLinear nodes.
    pub graph: Graph,
    /// Calibration method; `None` for dynamic ranges.
    pub method: Option<Method>,
    /// Tensors whose ranges are computed by another method.
    pub other_methods: Vec<TensorMethod>,
    /// Strength of channel equalization, as in [`Candidate::equalized`].
    pub equalized: Option<f64>,
    /// Nodes of the convolutions whose bias was corrected.
    pub bias_corrected: Vec<String>,
    /// All settings that were tried, in the order of the trials.
    pub candidates: Vec<Candidate>,
    /// Convolutions that are kept in float, with the reason.
    pub left_float: Vec<FloatLayer>,
    /// Errors of each output of the network on the held-out tiles.
    pub errors: Vec<OutputError>,
    /// Result of quantization-aware training; `None` if there was none.
    pub qat: Option<QatReport>,
}

/// Strengths of channel equalization that are tried.
const STRENGTHS: [Option<f64>; 4] = [None, Some(0.5), Some(0.75), Some(1.0)];
/// Calibration methods with which every strength of equalization is tried; the best strength is then tried with all.
const SEARCH_METHODS: [Method; 2] = [Method::Percentile(99.99), Method::Mse];
/// Maximum number of calibration tiles on which methods for single tensors are compared.
const COMPARED_TILES: usize = 6;
/// Maximum equalization factor; the minimum is its inverse.
const MAX_FACTOR: f32 = 256.0;

/// A search over quantization settings of one network.
pub(crate) struct Search<'a> {
    /// Runs graphs on tiles, on the engine that errors are measured with.
    pub runner: Runner<'a>,
    /// The float network after the rewrites that precede quantization.
    pub graph: Graph,
    /// Tiles from which ranges are computed.
    pub calibration: Vec<CalibrationTile>,
    /// Tiles on which errors are measured.
    pub held_out: Vec<CalibrationTile>,
    /// Outputs of the float network for the held-out tiles.
    pub expected: Vec<Vec<Tensor>>,
    /// Whether outputs are objects or stains; it decides how agreement is measured.
    pub task: ModelTask,
    /// Output values above this are foreground.
    pub threshold: f32,
    /// Maximum relative L2 error of the worst output.
    pub budget: f64,
    /// Nodes of convolutions that the user wants to keep in float.
    pub keep_float: BTreeSet<String>,
}

impl Search<'_> {
    fn layers(&self) -> Vec<Layer> {
        quantize::quantizable_layers(&self.graph).layers
    }

    /// Returns the tensors whose values determine the quantization ranges.
    fn sources(&self) -> BTreeSet<ValueId> {
        quantize::groups(&self.graph, &self.layers()).iter().flat_map(|g| g.sources.clone()).collect()
    }

    /// Returns the error of each output of a quantized graph on the first `tiles` held-out tiles.
    pub(crate) fn errors(&self, graph: &Graph, tiles: usize) -> Result<Vec<OutputError>, JobError> {
        let tiles = self.held_out.get(..tiles.min(self.held_out.len())).unwrap_or_default();
        self.errors_on(graph, tiles, &self.expected)
    }

    /// Returns the error of each output of a quantized graph on tiles with these outputs of the float network.
    fn errors_on(
        &self,
        graph: &Graph,
        tiles: &[CalibrationTile],
        expected: &[Vec<Tensor>],
    ) -> Result<Vec<OutputError>, JobError> {
        let mut sums: Vec<Comparison> = vec![Comparison::default(); graph.outputs.len()];
        self.runner.each(graph, tiles, |index, outputs| {
            let expected = expected.get(index).filter(|expected| expected.len() == outputs.len());
            let expected = expected.ok_or_else(|| {
                JobError::Internal(format!("quantize: tile {index} has no float outputs to compare with"))
            })?;
            for ((sum, id), (e, g)) in sums.iter_mut().zip(&graph.outputs).zip(expected.iter().zip(&outputs)) {
                sum.add(floats(graph, *id, e)?, floats(graph, *id, g)?, self.threshold)?;
            }
            Ok(())
        })?;
        Ok(sums.iter().map(|s| s.finish(self.task)).collect())
    }

    fn worst(&self, graph: &Graph, tiles: usize) -> Result<f64, JobError> {
        Ok(worst(&self.errors(graph, tiles)?))
    }

    /// Returns the network with channels equalized by `strength`, and its histograms; `None` if nothing can be
    /// equalized.
    fn variant(&self, strength: Option<f64>, plain: &Observed) -> Result<Option<Variant>, JobError> {
        let mut graph = self.graph.clone();
        let observed = match strength {
            None => plain.clone(),
            Some(strength) => {
                let mut changed = false;
                for domain in quantize::domains(&self.graph) {
                    if let Some(factors) = factors(&domain, &graph, plain, strength) {
                        domain.multiply(&mut graph, &factors)?;
                        changed = true;
                    }
                }
                if !changed {
                    return Ok(None);
                }
                observe(&self.runner, &graph, &self.sources(), &self.calibration)?
            }
        };
        let mut joined = Vec::new();
        for group in quantize::groups(&graph, &self.layers()) {
            let mut all = Histogram::default();
            for id in &group.sources {
                let histogram = observed.histograms.get(id).ok_or_else(|| {
                    let name = &graph.value(*id).name;
                    JobError::Internal(format!("quantize: no values of the tensor \"{name}\" were observed"))
                })?;
                all.join(histogram);
            }
            joined.push((group, all));
        }
        Ok(Some(Variant { graph, strength, groups: joined, ranges: RefCell::default() }))
    }

    /// Returns each layer's share of the multiply-accumulates.
    fn work(&self) -> Result<BTreeMap<String, f64>, JobError> {
        let mut shaped = self.graph.clone();
        let first = self.held_out.first();
        let first = first.ok_or_else(|| JobError::Internal("quantize: there are no held-out tiles".to_owned()))?;
        let shapes = self.runner.channels.shapes(&shaped, first.values.shape());
        infer_shapes(&mut shaped, &shapes)?;
        let mut work = BTreeMap::new();
        for layer in self.layers() {
            if let Some(node) = shaped.nodes.get(layer.node) {
                work.insert(layer.name, analysis::node_macs(&shaped, node)? as f64);
            }
        }
        let total: f64 = work.values().sum();
        work.values_mut().for_each(|w| *w /= total.max(1.0));
        Ok(work)
    }

    /// Returns the number of network runs of a search that keeps no layer in float, for its progress meter.
    pub(crate) fn steps(&self, mode: QuantizeMode) -> u64 {
        match mode {
            QuantizeMode::Static | QuantizeMode::Qat => {
                let (strengths, methods) = (STRENGTHS.len() as u64, SEARCH_METHODS.len() as u64);
                1 + strengths * (1 + methods) + Method::ALL.len() as u64 - methods + 1
            }
            QuantizeMode::Dynamic => STRENGTHS.len() as u64 + 1,
        }
    }

    /// Quantizes with static ranges: tries strengths of equalization and calibration methods, and keeps layers in
    /// float until the budget is met.
    pub(crate) fn static_ranges(&self, meter: &mut Meter<'_>) -> Result<SearchResult, JobError> {
        let chosen = self.choose(meter)?;
        let corrected = self.corrected(&chosen.variant, chosen.methods.as_ref(), &self.keep_float, meter)?;
        self.finish(chosen, corrected, meter)
    }

    /// Like [`Search::static_ranges`], but tries quantization-aware training before it keeps layers in float: those of
    /// the trained network.
    pub(crate) fn quantization_aware(
        &self,
        meter: &mut Meter<'_>,
        trainer: Option<&dyn QuantizationAwareTraining>,
        tiles: &[Tensor],
    ) -> Result<SearchResult, JobError> {
        let recorder = &self.runner.context.recorder;
        let searching = recorder.span(Stage::Quantize, "search");
        let chosen = self.choose(meter)?;
        let corrected = self.corrected(&chosen.variant, chosen.methods.as_ref(), &self.keep_float, meter)?;
        let Some(trainer) = trainer.filter(|_| corrected.error > self.budget) else {
            return self.finish(chosen, corrected, meter);
        };
        searching.finish();
        let start = Instant::now();
        let before = corrected.error;
        let error = |graph: &Graph| self.worst(graph, usize::MAX);
        let task = QatTask {
            float: &chosen.variant.graph,
            quantized: &corrected.graph,
            tiles,
            error: &error,
            before,
            budget: self.budget,
        };
        let training = recorder.span(Stage::Quantize, "quantization-aware training");
        let trained = trainer.train(self.runner.context, &task)?;
        training.finish();
        let _span = recorder.span(Stage::Quantize, "search");
        let report = QatReport {
            steps: trained.steps,
            before,
            after: trained.error,
            seconds: start.elapsed().as_secs_f64(),
            kept: trained.error < before,
        };
        if !report.kept {
            return Ok(SearchResult { qat: Some(report), ..self.finish(chosen, corrected, meter)? });
        }
        let other_methods = chosen.other_methods();
        let BestVariant { variant, methods, candidates, .. } = chosen;
        let mut left_float = self.fixed_float_layers()?;
        let mut graph = trained.graph;
        if trained.error > self.budget {
            // The other layers keep their trained weights, and their biases.
            let with_float = |keep: &BTreeSet<String>| -> Result<Graph, JobError> {
                let mut made = variant.quantized(methods.as_ref(), keep)?;
                quantize::copy_int8_layers(&graph, &mut made)?;
                Ok(made)
            };
            let since = Instant::now();
            let kept = self.leave_float(&with_float, trained.error, &self.work()?)?;
            meter.exclude(since.elapsed());
            let made = with_float(&self.with_requested(&kept))?;
            left_float.extend(kept);
            graph = made;
        }
        let bias_corrected =
            corrected.names.into_iter().filter(|name| left_float.iter().all(|left| left.name != *name));
        Ok(SearchResult {
            errors: self.errors(&graph, usize::MAX)?,
            graph,
            other_methods,
            method: methods.map(|methods| methods.common),
            equalized: variant.strength,
            bias_corrected: bias_corrected.collect(),
            candidates,
            left_float,
            qat: Some(report),
        })
    }

    /// Returns the names of the layers that were requested in float, and of these.
    fn with_requested(&self, layers: &[FloatLayer]) -> BTreeSet<String> {
        self.keep_float.iter().cloned().chain(layers.iter().map(|layer| layer.name.clone())).collect()
    }

    /// Returns the layers that are kept in float in any case: those requested, and those that cannot be quantized.
    fn fixed_float_layers(&self) -> Result<Vec<FloatLayer>, JobError> {
        let work = self.work()?;
        let share = |name: &str| work.get(name).copied().unwrap_or(0.0);
        let requested = self.keep_float.iter();
        let requested = requested.map(|name| FloatLayer {
            name: name.clone(),
            why: "requested".to_owned(),
            share_of_work: share(name),
        });
        let excluded = quantize::quantizable_layers(&self.graph).excluded.into_iter();
        Ok(requested.chain(excluded.map(|(name, why)| FloatLayer { name, why, share_of_work: 0.0 })).collect())
    }

    /// Returns the strength of equalization and the calibration method with the smallest error.
    fn choose(&self, meter: &mut Meter<'_>) -> Result<BestVariant, JobError> {
        let plain = observe(&self.runner, &self.graph, &self.sources(), &self.calibration)?;
        meter.add(1)?;
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut best: Option<(f64, Variant, Method)> = None;
        for strength in STRENGTHS {
            let variant = self.variant(strength, &plain)?;
            meter.add(1)?;
            let Some(variant) = variant else {
                meter.add(SEARCH_METHODS.len() as u64)?;
                continue;
            };
            let mut best_method: Option<(f64, Method)> = None;
            for method in SEARCH_METHODS {
                let error =
                    self.worst(&variant.quantized(Some(&Methods::all(method)), &self.keep_float)?, usize::MAX)?;
                candidates.push(Candidate { method: Some(method), equalized: strength, relative_l2: error });
                if best_method.is_none_or(|(e, _)| error < e) {
                    best_method = Some((error, method));
                }
                meter.add(1)?;
            }
            if let Some((error, method)) = best_method
                && best.as_ref().is_none_or(|(e, ..)| error < *e)
            {
                best = Some((error, variant, method));
            }
        }
        let Some((mut error, variant, mut method)) = best else {
            return Err(no_data());
        };
        for other in Method::ALL.into_iter().filter(|m| !SEARCH_METHODS.contains(m)) {
            let tried = self.worst(&variant.quantized(Some(&Methods::all(other)), &self.keep_float)?, usize::MAX)?;
            candidates.push(Candidate { method: Some(other), equalized: variant.strength, relative_l2: tried });
            if tried < error {
                (error, method) = (tried, other);
            }
            meter.add(1)?;
        }
        let mut best = BestVariant { variant, methods: Some(Methods::all(method)), error, candidates };
        if best.error > self.budget {
            let since = Instant::now();
            self.choose_for_each(&mut best)?;
            meter.exclude(since.elapsed());
        }
        Ok(best)
    }

    /// Chooses the calibration method of each group of tensors separately: the one with the smallest error on calibration
    /// tiles. The choice is dropped unless the error on the held-out tiles, which had no part in it, falls, too.
    fn choose_for_each(&self, best: &mut BestVariant) -> Result<(), JobError> {
        let (variant, Some(mut methods)) = (&best.variant, best.methods.clone()) else { return Ok(()) };
        let tiles = self.calibration.get(..COMPARED_TILES.min(self.calibration.len())).unwrap_or_default();
        let expected = self.runner.outputs(&self.graph, tiles)?;
        let error = |methods: &Methods| -> Result<f64, JobError> {
            Ok(worst(&self.errors_on(&variant.quantized(Some(methods), &self.keep_float)?, tiles, &expected)?))
        };
        let (groups, others) = (variant.groups.len(), Method::ALL.len() - 1);
        let mut meter = self.runner.context.meter(ProgressStage::Layers, (groups * others) as u64, ProgressUnit::Runs);
        let mut now = error(&methods)?;
        for group in 0..groups {
            let common = methods.common;
            for method in Method::ALL.into_iter().filter(|method| *method != common) {
                if variant.range(group, method) != variant.range(group, methods.of(group)) {
                    let mut tried = methods.clone();
                    tried.own.insert(group, method);
                    let after = error(&tried)?;
                    if after < now {
                        (methods, now) = (tried, after);
                    }
                }
                meter.add(1)?;
            }
        }
        meter.finish();
        let held_out = self.worst(&variant.quantized(Some(&methods), &self.keep_float)?, usize::MAX)?;
        if held_out < best.error {
            (best.methods, best.error) = (Some(methods), held_out);
        }
        Ok(())
    }

    /// Quantizes with dynamic ranges: tries strengths of equalization, and keeps layers in float until the budget is
    /// met.
    pub(crate) fn dynamic_ranges(&self, meter: &mut Meter<'_>) -> Result<SearchResult, JobError> {
        let plain = observe(&self.runner, &self.graph, &self.sources(), &self.calibration)?;
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut best: Option<(f64, Variant)> = None;
        for strength in STRENGTHS {
            if let Some(variant) = self.variant(strength, &plain)? {
                let error = self.worst(&variant.quantized(None, &self.keep_float)?, usize::MAX)?;
                candidates.push(Candidate { method: None, equalized: strength, relative_l2: error });
                if best.as_ref().is_none_or(|(e, _)| error < *e) {
                    best = Some((error, variant));
                }
            }
            meter.add(1)?;
        }
        let Some((error, variant)) = best else { return Err(no_data()) };
        let corrected = self.corrected(&variant, None, &self.keep_float, meter)?;
        self.finish(BestVariant { variant, methods: None, error, candidates }, corrected, meter)
    }

    /// Keeps layers in float until the budget is met; `corrected` is the network with every layer in int8 that can be.
    fn finish(
        &self,
        chosen: BestVariant,
        mut corrected: Corrected,
        meter: &mut Meter<'_>,
    ) -> Result<SearchResult, JobError> {
        let other_methods = chosen.other_methods();
        let BestVariant { variant, methods, error, candidates } = chosen;
        let methods = methods.as_ref();
        let mut left_float = self.fixed_float_layers()?;
        if corrected.error > self.budget {
            let since = Instant::now();
            let kept = self.leave_float(&|keep| variant.quantized(methods, keep), error, &self.work()?)?;
            meter.exclude(since.elapsed());
            corrected = self.corrected(&variant, methods, &self.with_requested(&kept), meter)?;
            left_float.extend(kept);
        }
        Ok(SearchResult {
            errors: self.errors(&corrected.graph, usize::MAX)?,
            graph: corrected.graph,
            method: methods.map(|methods| methods.common),
            other_methods,
            equalized: variant.strength,
            bias_corrected: corrected.names,
            candidates,
            left_float,
            qat: None,
        })
    }

    /// Returns the quantized graph, with biases corrected if that reduces the error on the held-out tiles.
    fn corrected(
        &self,
        variant: &Variant,
        methods: Option<&Methods>,
        keep: &BTreeSet<String>,
        meter: &mut Meter<'_>,
    ) -> Result<Corrected, JobError> {
        let graph = variant.quantized(methods, keep)?;
        let error = self.worst(&graph, usize::MAX)?;
        let layers: Vec<Layer> = self.layers().into_iter().filter(|l| !keep.contains(&l.name)).collect();
        let tried = bias::corrected(&self.runner, &variant.graph, &graph, &layers, &self.calibration)?;
        meter.add(1)?;
        if let Some((graph, names)) = tried {
            let after = self.worst(&graph, usize::MAX)?;
            if after < error {
                return Ok(Corrected { graph, names, error: after });
            }
        }
        Ok(Corrected { graph, names: Vec::new(), error })
    }

    /// Keeps layers in float until the budget is met, starting with those that cost the most accuracy relative to
    /// their share of the work; then quantizes again the layers without which the budget is met, too. `quantized` returns
    /// the network with these layers in float, and `error` is that of the network with the fewest.
    fn leave_float(
        &self,
        quantized: &dyn Fn(&BTreeSet<String>) -> Result<Graph, JobError>,
        error: f64,
        work: &BTreeMap<String, f64>,
    ) -> Result<Vec<FloatLayer>, JobError> {
        let names: Vec<String> =
            self.layers().into_iter().map(|l| l.name).filter(|n| !self.keep_float.contains(n)).collect();
        // Each layer is tried on one tile, and then, unless the budget is met before, on all.
        let tiles = self.held_out.len() as u64;
        let runs = (1 + tiles) * names.len() as u64;
        let mut meter = self.runner.context.meter(ProgressStage::Layers, runs, ProgressUnit::Runs);
        let mut alone: Vec<(String, f64)> = Vec::new();
        for name in &names {
            let others: BTreeSet<String> =
                self.keep_float.iter().chain(names.iter().filter(|n| *n != name)).cloned().collect();
            alone.push((name.clone(), self.worst(&quantized(&others)?, 1)?));
            meter.add(1)?;
        }
        let share = |name: &str| work.get(name).copied().unwrap_or(0.0);
        let worth = |(name, error): &(String, f64)| error * error / (share(name) + 0.01);
        alone.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        let mut kept: Vec<(String, f64)> = Vec::new();
        let mut now = error;
        let with = |kept: &[(String, f64)]| -> BTreeSet<String> {
            self.keep_float.iter().cloned().chain(kept.iter().map(|(n, _)| n.clone())).collect()
        };
        for layer in alone.iter().take(names.len().saturating_sub(1)) {
            kept.push(layer.clone());
            now = self.worst(&quantized(&with(&kept))?, usize::MAX)?;
            meter.add(tiles)?;
            if now <= self.budget {
                break;
            }
        }
        if now <= self.budget {
            let mut by_work = kept.clone();
            by_work.sort_by(|a, b| share(&b.0).total_cmp(&share(&a.0)));
            for (name, _) in by_work {
                let fewer: Vec<_> = kept.iter().filter(|(n, _)| *n != name).cloned().collect();
                let tried = self.worst(&quantized(&with(&fewer))?, usize::MAX)?;
                meter.add(tiles)?;
                if tried <= self.budget {
                    kept = fewer;
                }
            }
        }
        Ok(kept
            .into_iter()
            .map(|(name, error)| FloatLayer {
                why: format!("quantizing this layer alone causes a relative L2 error of {error:.4}"),
                share_of_work: share(&name),
                name,
            })
            .collect())
    }
}

/// Returns the relative L2 error of the worst output.
fn worst(errors: &[OutputError]) -> f64 {
    errors.iter().map(|e| e.relative_l2).fold(0.0, f64::max)
}

/// Returns the error for a job without calibration data.
pub(crate) fn no_data() -> JobError {
    JobError::wrong_use_with("there is no calibration data", message!("give stacks with {CALIBRATE}"))
}

/// Returns the factor of each channel: w^(1 − s) / r^s, where r is the channel's maximum and w the maximum share of the
/// weights that read it. With s = 1, all channels get the same maximum. `None` if nothing of the domain is quantized.
fn factors(domain: &Domain, graph: &Graph, observed: &Observed, strength: f64) -> Option<Vec<f32>> {
    let mut largest = vec![0.0f32; domain.channels];
    let mut seen = false;
    for held in domain.values.iter().filter_map(|id| observed.largest.get(id)) {
        seen = true;
        for (l, h) in largest.iter_mut().zip(held) {
            *l = l.max(*h);
        }
    }
    if !seen {
        return None;
    }
    let shares = domain.weight_shares(graph);
    let factors = largest.iter().zip(&shares).map(|(&r, &w)| {
        if !(r.is_normal() && w.is_normal()) {
            return 1.0;
        }
        let factor = f64::from(w).powf(1.0 - strength) / f64::from(r).powf(strength);
        (factor as f32).clamp(MAX_FACTOR.recip(), MAX_FACTOR)
    });
    Some(factors.collect())
}

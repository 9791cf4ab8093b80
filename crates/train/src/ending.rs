//! The end of a training: settings for objects, the package, its quantized network, and the scores of both.

use crate::checkpoint::Standing;
use crate::curves;
use crate::decode::{self, Care};
use crate::error::io;
use crate::history::StepPoint;
use crate::job::{Quantized, TrainReport, Verdict};
use crate::package::{self, Description, Example};
use crate::pictures::{self, Section};
use crate::qat::QuantizedTeacher;
use crate::train::{Outcome, Training};
use crate::validate::{Scores, calibration_file};
use cytoscope_engine::Precision;
use cytoscope_graph::package::Package;
use cytoscope_pipeline::quantize::{ACCURACY_BUDGET, QuantizeJob, QuantizeMode};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::TargetKind;
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::Replaced;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// How quantizing is tried, one after the other: first by calibration alone, then by teaching the bytes, then with ever more layers
/// in floats.
const ATTEMPTS: [(QuantizeMode, f64); 4] = [
    (QuantizeMode::Static, ACCURACY_BUDGET),
    (QuantizeMode::Qat, ACCURACY_BUDGET * 0.6),
    (QuantizeMode::Static, ACCURACY_BUDGET / 2.0),
    (QuantizeMode::Static, ACCURACY_BUDGET / 4.0),
];
/// Greatest loss of the score that quantizing may cost.
const INT8_LOSS: f64 = 0.005;
/// Share of the minutes that are left after training in which settings for objects are looked for.
const SETTINGS_SHARE: f64 = 0.3;

/// The moment at which a share of the time until `end` is over.
fn share_of_time_left(end: Instant, share: f64) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now).mul_f64(share)
}

/// The package that is handed over.
struct Packed {
    path: PathBuf,
    /// Scores of its quantized network, where there is one and something to score on.
    int8: Option<Scores>,
    quantized: Option<Quantized>,
}

impl Packed {
    fn in_floats(path: &Path) -> Self {
        Self { path: path.to_owned(), int8: None, quantized: None }
    }
}

impl Training<'_> {
    /// Settings for objects, the package, its quantized network, and the scores of both.
    pub(crate) fn finish(&mut self, outcome: Outcome) -> Result<TrainReport, JobError> {
        let Outcome { standing, before, parameters } = outcome;
        let (before, seen_before) = before.map_or((None, Vec::new()), |b| (Some(b.plain), b.seen));
        let context = self.context;
        let end = self.end_of_minutes(&standing);
        // Without anything to validate on the last state is kept.
        let best = if self.validator.is_empty() { standing.step } else { standing.best.map_or(0, |(_, step)| step) };
        let verdict = if best > 0 { Verdict::Taught } else { Verdict::Start };
        let chosen = if best > 0 { self.folder.best(best) } else { self.folder.start() };
        if verdict == Verdict::Start {
            context.note("Nothing that was learnt scored better than what training started from: that is kept.");
        }
        let graph = Package::open(&chosen).map_err(|e| JobError::model(chosen.display().to_string(), e))?.graph;
        if self.tunes() {
            context.note("Choosing how objects are made of the maps.");
            let channel = package::seed_channel(self.start.target);
            let maps = decode::maps(&context.cancel, self.devices, &self.validator, &chosen, channel, None)?;
            let until = end.map(|end| share_of_time_left(end, SETTINGS_SHARE));
            let found = decode::tune(&context.cancel, &self.validator, &maps, &self.segment, Care::Thorough, until)?;
            if found.share < 1.0 {
                context.note("Not every setting for objects was tried, to keep to the minutes.");
            }
            self.segment = found.options;
        }
        let name = package::package_name(&self.job.out);
        let metric = match self.start.target {
            TargetKind::Regression => "Pearson",
            TargetKind::Semantic => "Dice",
            _ => "mean of F1 at IoU 0.5 and 0.7",
        };
        let float = self.folder.path.join("float");
        self.plain(&graph, &float)?;
        let (mut after, mut seen) = (None, Vec::new());
        if !self.validator.is_empty() {
            let mut see = |case: usize, made: &[f32]| seen.push(self.views.section(case, made));
            let precision = Some(Precision::F32);
            after =
                Some(self.validator.score_seen(&context.cancel, self.devices, &float, precision, None, &mut see)?);
        }
        let record = self.record(&standing, before.as_ref(), parameters);
        let examples = self.examples(before.as_ref(), &seen_before, after.as_ref(), &seen);
        let card = self.card(&name, &standing, before.as_ref(), parameters, metric, &examples);
        let curves = curves::svg(&standing.history, metric).map(|svg| (package::CURVES.to_owned(), svg.into_bytes()));
        let covers = examples.into_iter().map(|e| (e.file, e.png)).chain(curves).collect();
        package::write(&Description { covers, ..self.describe(record, card, name) }, &graph, &float)?;
        let floor = before.as_ref().map(|b| b.score).filter(|_| verdict == Verdict::Taught);
        let packed = self.quantize(&float, after.as_ref(), floor, &standing)?;
        self.hand_over(&packed.path)?;
        let last: Vec<&StepPoint> = standing.history.steps.iter().rev().take(100).collect();
        let mean = |f: fn(&StepPoint) -> f64| last.iter().map(|p| f(p)).sum::<f64>() / last.len().max(1) as f64;
        Ok(TrainReport {
            out: self.job.out.clone(),
            verdict,
            metric: metric.to_owned(),
            before: before.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            after: after.as_ref().map(|s| s.scores.clone()).unwrap_or_default(),
            after_int8: packed.int8.map(|s| s.scores).unwrap_or_default(),
            quantized: packed.quantized,
            pairs_before: before.map(|s| s.pairs).unwrap_or_default(),
            pairs_after: after.map(|s| s.pairs).unwrap_or_default(),
            steps: standing.step,
            epoch_steps: self.epoch_steps,
            batch: self.batch * self.config.accumulate,
            patch_zyx: self.patch,
            parameters,
            train_pairs: self.train_pairs.len(),
            validation_pairs: self.validation.len(),
            seconds: self.seconds(&standing),
            step_secs: mean(|p| p.step_secs),
            stalled_secs: mean(|p| p.stalled_secs),
            peak_rss_bytes: cytoscope_profile::peak_resident_bytes(),
            device: self.engine.device().name.clone(),
            history: standing.history,
        })
    }

    fn record(&self, standing: &Standing, before: Option<&Scores>, parameters: usize) -> serde_json::Value {
        json!({
            "program": format!("cytoscope {}", env!("CARGO_PKG_VERSION")),
            "from": self.start.name,
            "seed": self.job.seed,
            "steps": standing.step,
            "epoch_steps": self.epoch_steps,
            "batch": self.batch * self.config.accumulate,
            "patch_zyx": self.patch,
            "parameters": parameters,
            "train": self.train_pairs.iter().map(|p| &p.name).collect::<Vec<_>>(),
            "validation": self.validator.cases.iter().map(|c| &c.name).collect::<Vec<_>>(),
            "before": before.map(|s| &s.scores),
            "best": standing.best.map(|(score, step)| json!({"score": score, "step": step})),
            "rescues": standing.rescues,
            "seconds": self.seconds(standing),
            "settings": self.config,
            "history": standing.history,
        })
    }

    fn card(
        &self,
        name: &str,
        standing: &Standing,
        before: Option<&Scores>,
        parameters: usize,
        metric: &str,
        examples: &[Example],
    ) -> String {
        let mut summary = vec![
            ("started from".to_owned(), self.start.name.clone()),
            ("values taught".to_owned(), parameters.to_string()),
            ("pairs learnt from".to_owned(), self.train_pairs.len().to_string()),
            ("pairs validated on".to_owned(), self.validation.len().to_string()),
            ("steps".to_owned(), standing.step.to_string()),
            ("patch".to_owned(), format!("{} x {:?} voxels", self.batch, self.patch)),
        ];
        if let Some(v) = self.voxel_um {
            summary.push(("voxel size".to_owned(), format!("{} x {} x {} µm", v[0], v[1], v[2])));
        }
        if let Some(before) = before {
            summary.push(("score before".to_owned(), format!("{:.4}", before.score)));
        }
        if let Some((score, step)) = standing.best {
            summary.push(("best score".to_owned(), format!("{score:.4} at step {step}")));
        }
        let legend = self.views.legend(before.is_some());
        package::card(name, &summary, &standing.history, metric, &legend, examples)
    }

    /// Pictures of pairs that stand for all of them.
    fn examples(
        &self,
        before: Option<&Scores>,
        seen_before: &[Option<Section>],
        after: Option<&Scores>,
        seen: &[Option<Section>],
    ) -> Vec<Example> {
        let Some(after) = after else { return Vec::new() };
        let mut made = Vec::new();
        for (case, which) in pictures::examples(&after.pairs) {
            let section = |all: &[Option<Section>]| all.get(case).cloned().flatten();
            let was = section(seen_before);
            let now = section(seen);
            let png = now.and_then(|now| self.views.example(case, was.as_ref(), &now));
            let (Some(png), Some(place), Some(pair)) = (png, self.views.caption(case), after.pairs.get(case)) else {
                continue;
            };
            let score = match before.and_then(|b| b.pairs.get(case)) {
                Some(was) => format!("{:.3} before, {:.3} after", was.score, pair.score),
                None => format!("{:.3}", pair.score),
            };
            let caption = format!("{which}: {place}; score {score}");
            made.push(Example { file: format!("example_{}.png", made.len()), png, caption });
        }
        made
    }

    /// The package with its quantized network, where that costs no accuracy. Scores stay above `floor`, that of what training
    /// started from. What takes longer than the minutes allow is given up.
    fn quantize(
        &self,
        float: &Path,
        after: Option<&Scores>,
        floor: Option<f64>,
        standing: &Standing,
    ) -> Result<Packed, JobError> {
        if self.job.without_int8 {
            return Ok(Packed::in_floats(float));
        }
        let end = self.end_of_minutes(standing);
        let left = || end.map(|end| end.saturating_duration_since(Instant::now()).as_secs_f64() / 60.0);
        let cancel = self.until_overtime(standing);
        self.context.note("Quantizing.");
        let out = self.folder.path.join("int8");
        let quiet = Context { cancel: cancel.clone(), ..Context::default() };
        let mut calibrate: Vec<PathBuf> = Vec::new();
        let step = self.train_pairs.len().div_ceil(8).max(1);
        for (i, pair) in self.train_pairs.iter().step_by(step).enumerate() {
            calibrate.push(calibration_file(pair, self.folder.path.join(format!("calibration{i}.tif")))?);
        }
        // What an attempt takes beside teaching, as the first one shows.
        let mut each = 0.0;
        for (attempt, (mode, budget)) in ATTEMPTS.into_iter().enumerate() {
            if left().is_some_and(|m| m <= 0.0) {
                self.context.note("There is no time left to quantize.");
                break;
            }
            let began = Instant::now();
            let teacher = QuantizedTeacher {
                minutes: left().map(|m| m - each),
                threads: self.job.threads,
                ..QuantizedTeacher::default()
            };
            let job = QuantizeJob {
                model: float.display().to_string(),
                out: out.clone(),
                mode,
                calibrate: calibrate.clone(),
                accuracy_budget: budget,
                keep_float: Default::default(),
                without_float: false,
                overwrite: Overwrite::Refuse,
            };
            let scored = job.run_with(&quiet, Some(&teacher)).and_then(|report| {
                let quantized = Quantized {
                    float_bytes: report.float_bytes,
                    int8_bytes: report.int8_bytes,
                    tile_shape: report.tile_shape,
                    tile_times: report.tile_times,
                };
                let Some(after) = after else { return Ok((true, None, quantized)) };
                let int8 = self.validator.score(&cancel, self.devices, &out, Some(Precision::Int8))?;
                let good = int8.score + INT8_LOSS >= after.score && floor.is_none_or(|floor| int8.score >= floor);
                if !good {
                    self.context.note(format!(
                        "In int8 {}within a relative error of {budget} the score falls from {:.4} to {:.4}.",
                        if mode == QuantizeMode::Qat { "taught " } else { "" },
                        after.score,
                        int8.score
                    ));
                }
                Ok((good, Some(int8), quantized))
            });
            if attempt == 0 {
                each = began.elapsed().as_secs_f64() / 60.0;
            }
            match scored {
                Ok((true, int8, quantized)) => return Ok(Packed { path: out, int8, quantized: Some(quantized) }),
                Ok((false, ..)) => {}
                Err(JobError::Cancelled) if self.context.cancel.is_cancelled() => return Err(JobError::Cancelled),
                Err(JobError::Cancelled) => {
                    self.context.note("Quantizing was given up, to keep to the minutes.");
                    break;
                }
                Err(error) => {
                    self.context.note(format!("The network stays in floats: {error}"));
                    return Ok(Packed::in_floats(float));
                }
            }
        }
        self.context.note("The network stays in floats.");
        Ok(Packed::in_floats(float))
    }

    /// Puts the package where it was asked for.
    fn hand_over(&self, package: &Path) -> Result<(), JobError> {
        let out = &self.job.out;
        if let Some(parent) = out.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(io(parent))?;
        }
        let shown = package.display().to_string();
        let package = Package::open(package).map_err(|e| JobError::model(shown, e))?;
        match cytoscope_pipeline::packages::save(&package, out, self.job.overwrite)? {
            Replaced::MovedTo(aside) => {
                self.context.note(format!("What was at {} was moved to {}.", out.display(), aside.display()));
            }
            Replaced::Nothing | Replaced::Ours => {}
        }
        Ok(())
    }
}

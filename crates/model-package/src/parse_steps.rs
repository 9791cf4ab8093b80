//! Parsing of pre- and postprocessing steps.

use super::parse::{DIVISORS, MAX_ITEMS, Reader, canonical_axis_id, shown, unknown_type};
use super::{AxisKind, AxisSize, AxisSpec, PackageError, Processing, StatisticsAxes, TensorSpec, TensorType};
use serde_json::Value;
use std::ops::RangeInclusive;

/// Accepted values of images and thresholds: engines compute in 32-bit floats.
const VALUES: RangeInclusive<f64> = -(f32::MAX as f64)..=f32::MAX as f64;
/// Accepted values of `eps`, which is added to divisors to avoid division by zero. The specification recommends 1e-6; models
/// for images with large values state larger ones.
const EPSILONS: RangeInclusive<f64> = f32::MIN_POSITIVE as f64..=1e6;
/// Accepted percentiles.
const PERCENTILES: RangeInclusive<f64> = 0.0..=100.0;

/// The tensor that a list of steps belongs to.
pub(super) struct StepsOf<'a> {
    /// Id of the tensor that the steps belong to.
    pub tensor: &'a str,
    /// Axes of that tensor, outermost first.
    pub axes: &'a [AxisSpec],
    /// Ids of its axes, in order.
    pub ids: &'a [String],
    /// Key of a step's name: `id`, or `name` in 0.4.
    pub key: &'a str,
}

impl StepsOf<'_> {
    fn kind(&self, id: &str) -> Option<AxisKind> {
        let at = self.ids.iter().position(|own| own == id)?;
        self.axes.get(at).map(|axis| axis.kind)
    }

    /// Returns the number of channels, if the description states it.
    fn channels(&self) -> Option<usize> {
        match self.axes.iter().find(|a| a.kind == AxisKind::Channel)?.size {
            AxisSize::Fixed(n) => Some(n),
            _ => None,
        }
    }
}

/// Parameters of one step.
struct Parameters<'a> {
    reader: &'a Reader<'a>,
    of: &'a StepsOf<'a>,
    kwargs: &'a Value,
    /// Name of the step in messages.
    part: String,
}

impl Parameters<'_> {
    fn bad(&self, problem: impl Into<String>) -> PackageError {
        self.reader.bad(&self.part, problem)
    }

    fn optional(&self, name: &str, range: &RangeInclusive<f64>) -> Result<Option<f64>, PackageError> {
        self.reader.number(&self.part, self.kwargs, name, range)
    }

    fn number(&self, name: &str, default: Option<f64>, range: &RangeInclusive<f64>) -> Result<f64, PackageError> {
        self.optional(name, range)?.or(default).ok_or_else(|| self.bad(format!("needs {name}")))
    }

    fn text(&self, name: &str) -> Result<Option<String>, PackageError> {
        self.reader.optional_text(&self.part, self.kwargs, name)
    }

    /// Returns the id of the axis that a step names, as in specification 0.5.
    fn axis(&self) -> Result<Option<String>, PackageError> {
        Ok(self.text("axis")?.map(|axis| canonical_axis_id(&axis).to_owned()))
    }

    /// Returns a parameter that is a single number or one number per channel.
    fn per_channel(
        &self,
        name: &str,
        default: Option<f64>,
        range: &RangeInclusive<f64>,
    ) -> Result<Vec<f64>, PackageError> {
        let Some(Value::Array(list)) = self.kwargs.get(name) else {
            return self.number(name, default, range).map(|v| vec![v]);
        };
        if list.is_empty() {
            return Err(self.bad(format!("has no numbers in {name}")));
        }
        if let Some(axis) = self.axis()?.filter(|axis| self.of.kind(axis) != Some(AxisKind::Channel)) {
            return Err(self.bad(format!("has values along axis {axis}: only one value per channel is supported")));
        }
        let values: Vec<f64> =
            list.iter().map(|v| self.reader.in_range(&self.part, name, v, range)).collect::<Result<_, _>>()?;
        if let Some(channels) = self.of.channels().filter(|n| values.len() != 1 && values.len() != *n) {
            return Err(
                self.bad(format!("has {} values in {name}, but the tensor has {channels} channels", values.len()))
            );
        }
        Ok(values)
    }

    /// Returns the axes of a step's statistics; all axes if none are listed.
    fn statistics_axes(&self) -> Result<StatisticsAxes, PackageError> {
        let listed: Vec<String> = match self.kwargs.get("axes") {
            None | Some(Value::Null) => return Ok(StatisticsAxes { batch: true, channel: true, by_slice: false }),
            // 0.4 writes a string of letters.
            Some(Value::String(letters)) => letters.chars().map(|c| c.to_string()).collect(),
            Some(Value::Array(ids)) => {
                ids.iter().map(|id| self.reader.word(&self.part, "axes", id)).collect::<Result<_, _>>()?
            }
            Some(other) => return Err(self.bad(format!("has axes {}: expected a list of axis ids", shown(other)))),
        };
        let mut kinds = Vec::new();
        for id in &listed {
            let kind = self.of.kind(canonical_axis_id(id));
            kinds.push(kind.ok_or_else(|| {
                let own = self.of.ids.join(", ");
                self.bad(format!("uses statistics over axis {}, but the tensor has {own}", shown(&id.as_str().into())))
            })?);
        }
        let own = |a: &&AxisSpec| !matches!(a.kind, AxisKind::Batch | AxisKind::Channel);
        let left_out: Vec<AxisKind> =
            self.of.axes.iter().filter(own).map(|a| a.kind).filter(|kind| !kinds.contains(kind)).collect();
        if let Some(kind) = left_out.iter().find(|kind| **kind != AxisKind::Z) {
            return Err(self.bad(format!(
                "uses separate statistics for each position along axis {}: \
                 only statistics of whole stacks or whole slices are supported",
                kind.id()
            )));
        }
        Ok(StatisticsAxes {
            batch: kinds.contains(&AxisKind::Batch),
            channel: kinds.contains(&AxisKind::Channel),
            by_slice: !left_out.is_empty(),
        })
    }

    fn percentiles(&self) -> Result<(f64, f64), PackageError> {
        let low = self.number("min_percentile", Some(0.0), &PERCENTILES)?;
        let high = self.number("max_percentile", Some(100.0), &PERCENTILES)?;
        if low >= high {
            return Err(self.bad(format!("has percentiles {low} and {high}: expected the first to be smaller")));
        }
        Ok((low, high))
    }

    /// Clipping at fixed limits, at percentiles, or with one of each.
    fn clip(&self) -> Result<Vec<Processing>, PackageError> {
        let (min, max) = (self.optional("min", &VALUES)?, self.optional("max", &VALUES)?);
        if let (Some(low), Some(high)) = (min, max)
            && low > high
        {
            return Err(self.bad(format!("has min {low} above max {high}")));
        }
        let min_percentile = self.optional("min_percentile", &PERCENTILES)?;
        let max_percentile = self.optional("max_percentile", &PERCENTILES)?;
        if min_percentile.is_none() && max_percentile.is_none() {
            return Ok(vec![Processing::Clip { min, max }]);
        }
        if (min.is_some() && min_percentile.is_some()) || (max.is_some() && max_percentile.is_some()) {
            return Err(self.bad("gives the same limit as a value and as a percentile: expected one of them"));
        }
        self.percentiles()?;
        let mut steps = Vec::new();
        if min.is_some() || max.is_some() {
            steps.push(Processing::Clip { min, max });
        }
        steps.push(Processing::ClipPercentiles { min_percentile, max_percentile, axes: self.statistics_axes()? });
        Ok(steps)
    }

    fn fixed(&self) -> Result<Processing, PackageError> {
        Ok(Processing::FixedZeroMeanUnitVariance {
            mean: self.per_channel("mean", None, &VALUES)?,
            std: self.per_channel("std", None, &DIVISORS)?,
        })
    }

    fn ensure_dtype(&self) -> Result<Processing, PackageError> {
        let name = self.reader.text(self.kwargs, "dtype")?;
        let dtype = TensorType::from_name(&name).ok_or_else(|| self.bad(unknown_type("dtype", name)))?;
        Ok(Processing::EnsureDtype { dtype })
    }
}

impl Reader<'_> {
    /// Refuses steps after the network with statistics of slices beside one with statistics of stacks, which depends on the
    /// results of the others, and with those of an input, whose slices need not be those of the output.
    pub(super) fn check_statistics_of_slices(&self, output: &TensorSpec) -> Result<(), PackageError> {
        let with_statistics = || output.processing.iter().filter(|step| step.needs_statistics());
        if !with_statistics().any(Processing::has_statistics_of_slices) {
            return Ok(());
        }
        if !with_statistics().all(Processing::has_statistics_of_slices) {
            let problem = "has a step with statistics of slices and one with statistics of stacks: only one kind is supported \
                           after the network";
            return Err(self.bad(&output.id, problem));
        }
        match with_statistics().find_map(Processing::reference_tensor) {
            None => Ok(()),
            Some(input) => {
                let problem = format!(
                    "refers to statistics of the slices of {}: only those of whole stacks are supported after the network",
                    shown(&input.into())
                );
                Err(self.bad(&output.id, problem))
            }
        }
    }

    /// Returns the processing steps of a tensor.
    pub(super) fn processing(&self, of: &StepsOf<'_>, steps: Option<&Value>) -> Result<Vec<Processing>, PackageError> {
        let list = match steps {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(list)) => list,
            Some(other) => {
                return Err(self.bad(of.tensor, format!("has processing {}: expected a list of steps", shown(other))));
            }
        };
        if list.len() > MAX_ITEMS {
            return Err(self.bad(of.tensor, "has too many processing steps"));
        }
        let steps = list.iter().map(|step| self.step(of, step)).collect::<Result<Vec<_>, _>>()?;
        Ok(steps.into_iter().flatten().collect())
    }

    fn step(&self, of: &StepsOf<'_>, step: &Value) -> Result<Vec<Processing>, PackageError> {
        let id = self.text(step, of.key)?;
        let kwargs = step.get("kwargs").unwrap_or(&Value::Null);
        let p = Parameters { reader: self, of, kwargs, part: format!("{}.{id}", of.tensor) };
        if !kwargs.is_null() && !kwargs.is_object() {
            return Err(p.bad(format!("has kwargs {}: expected a mapping", shown(kwargs))));
        }
        let mode = p.text("mode")?;
        let is_fixed = match mode.as_deref() {
            None | Some("per_sample") => false,
            Some("fixed") => true,
            Some("per_dataset") => {
                return Err(p.bad("uses statistics over a dataset: only statistics of one stack are supported"));
            }
            Some(other) => {
                let shown = shown(&other.into());
                return Err(p.bad(format!("has mode {shown}: expected per_sample, fixed or per_dataset")));
            }
        };
        let eps = || p.number("eps", Some(1e-6), &EPSILONS);
        Ok(vec![match id.as_str() {
            "binarize" => Processing::Binarize { threshold: p.per_channel("threshold", None, &VALUES)? },
            "clip" => return p.clip(),
            "ensure_dtype" => p.ensure_dtype()?,
            "scale_linear" => Processing::ScaleLinear {
                gain: p.per_channel("gain", Some(1.0), &VALUES)?,
                offset: p.per_channel("offset", Some(0.0), &VALUES)?,
            },
            "scale_range" => {
                let (min_percentile, max_percentile) = p.percentiles()?;
                let reference_tensor = p.text("reference_tensor")?;
                let axes = p.statistics_axes()?;
                Processing::ScaleRange { min_percentile, max_percentile, eps: eps()?, axes, reference_tensor }
            }
            "fixed_zero_mean_unit_variance" => p.fixed()?,
            "zero_mean_unit_variance" if is_fixed => p.fixed()?,
            "zero_mean_unit_variance" => Processing::ZeroMeanUnitVariance { eps: eps()?, axes: p.statistics_axes()? },
            "scale_mean_variance" => Processing::ScaleMeanVariance {
                eps: eps()?,
                axes: p.statistics_axes()?,
                // An empty name is replaced by that of the first input.
                reference_tensor: p.text("reference_tensor")?.unwrap_or_default(),
            },
            "sigmoid" => Processing::Sigmoid,
            "softmax" => match p.axis()?.filter(|axis| of.kind(axis) != Some(AxisKind::Channel)) {
                None => Processing::Softmax,
                Some(axis) => {
                    return Err(p.bad(format!("runs along axis {axis}: only the channel axis is supported")));
                }
            },
            "custom" | "stardist_postprocessing" | "cellpose_flow_dynamics" => {
                return Err(p.bad(
                    "is not supported, because it is code of another program: remove the step from rdf.yaml to get the \
                     outputs of the network without it",
                ));
            }
            _ => {
                return Err(p.bad(
                    "is an unknown processing step: expected one of binarize, clip, ensure_dtype, scale_linear, \
                     scale_range, zero_mean_unit_variance, fixed_zero_mean_unit_variance, scale_mean_variance, sigmoid, softmax",
                ));
            }
        }])
    }
}

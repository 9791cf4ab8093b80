//! Intensity normalization with the statistics of the whole stack, or of each slice.

use crate::error::TrainingDataError;
use crate::reader::{Convert, Reader};
use cytoscope_volume::statistics::{Moments, Quantiles};
use cytoscope_volume::{Element, Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Intensity normalization of a network's input, with the names and formulas of the preprocessing in model packages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Normalize {
    /// Intensities are used as they are.
    None,
    /// `(v − mean) / (std + eps)` of the whole stack.
    ZeroMeanUnitVariance {
        /// Avoids division by zero for constant stacks.
        #[serde(default = "eps")]
        eps: f64,
    },
    /// `(v − low) / (high − low + eps)`, where low and high are percentiles (0 to 100) of the whole stack.
    ScaleRange {
        /// Percentile that is mapped to 0.
        min_percentile: f64,
        /// Percentile that is mapped to 1, up to `eps`.
        max_percentile: f64,
        /// Avoids division by zero for constant stacks.
        #[serde(default = "eps")]
        eps: f64,
    },
    /// `(v − mean) / std` with fixed values.
    FixedZeroMeanUnitVariance {
        /// Mean that is subtracted, in the units of the stack.
        mean: f64,
        /// Standard deviation that is divided by, in the units of the stack.
        std: f64,
    },
}

fn eps() -> f64 {
    1e-6
}

impl Default for Normalize {
    fn default() -> Self {
        Self::ZeroMeanUnitVariance { eps: eps() }
    }
}

/// Normalization of one stack as a linear function, and statistics of the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    /// Factor of the stored value.
    pub gain: f64,
    /// Offset, added after the multiplication.
    pub offset: f64,
    /// Standard deviation after normalization.
    pub std: f32,
    /// Minimum after normalization.
    pub dark: f32,
    /// Value after normalization of voxels that are not finite. In images, it is 0, as in prediction.
    pub missing: f32,
}

impl Scaling {
    /// Normalizes a stored value as prediction does.
    #[inline]
    pub fn apply(&self, value: f64) -> f32 {
        (value * self.gain + self.offset) as f32
    }
}

impl Convert<f32> for Scaling {
    #[inline]
    fn convert<E: Element>(&self, value: E) -> f32 {
        // Converted to f32 first, as in prediction.
        let v = value.to_f32();
        if v.is_finite() { (f64::from(v) * self.gain + self.offset) as f32 } else { self.missing }
    }

    fn fill_value(&self) -> f32 {
        self.dark
    }
}

/// Computes the normalization and the moments of a stack in one pass, or in two for percentiles.
pub(crate) fn scaling(reader: &Reader, stack: usize, how: Normalize) -> Result<(Scaling, Moments), TrainingDataError> {
    let file = reader.stack(stack).map(|s| s.image.path.clone()).unwrap_or_default();
    compute_scaling(&file, how, &mut |f| {
        reader.each_slab(stack, &mut |_, _, samples| {
            f(samples);
            Ok(())
        })
    })
}

/// Computes the normalization of each slice of a stack separately, reading the stack once. The voxels of slices without
/// finite intensities become 0.
pub(crate) fn slice_scalings(reader: &Reader, stack: usize, how: Normalize) -> Result<Vec<Scaling>, TrainingDataError> {
    let (known, image) = (reader.known(stack)?, reader.file(stack)?);
    let file = known.image.path.as_path();
    let [depth, ny, nx] = known.zyx;
    let (mut all, mut finite) = (Vec::with_capacity(depth), 0);
    // A slab is several slices, or a part of one, which is then read as a whole.
    for (start, [count, ..]) in known.slabs().filter(|(start, _)| start[1] == 0) {
        let slab = known.read(&image, start, [count, ny, nx])?;
        for at in 0..count {
            let range = at * ny * nx..(at + 1) * ny * nx;
            let slice = with_samples!(&slab, v => Samples::from(v.get(range).unwrap_or_default().to_vec()));
            let mut moments = Moments::default();
            moments.add(&slice);
            finite += moments.count;
            if moments.count == 0 {
                all.push(Scaling { gain: 1.0, offset: 0.0, std: 0.0, dark: 0.0, missing: 0.0 });
                continue;
            }
            let found = compute_scaling(file, how, &mut |f| {
                f(&slice);
                Ok(())
            })?;
            all.push(found.0);
        }
    }
    if finite == 0 { Err(nothing_finite(file)) } else { Ok(all) }
}

fn nothing_finite(file: &Path) -> TrainingDataError {
    let next_step = "remove this pair, or export the image again";
    TrainingDataError::data(file, "none of its voxels has a finite intensity", next_step)
}

/// Passes all samples to a callback, in several parts.
type EachPart<'a> = dyn FnMut(&mut dyn FnMut(&Samples)) -> Result<(), TrainingDataError> + 'a;

/// Computes the normalization and the moments of samples, which `each` passes on once, or twice for percentiles. `file` is
/// named in errors.
fn compute_scaling(
    file: &Path,
    how: Normalize,
    each: &mut EachPart<'_>,
) -> Result<(Scaling, Moments), TrainingDataError> {
    let mut moments = Moments::default();
    let mut quantiles = matches!(how, Normalize::ScaleRange { .. }).then(Quantiles::new);
    each(&mut |samples| {
        moments.add(samples);
        if let Some(q) = quantiles.as_mut() {
            q.add(samples);
        }
    })?;
    let (gain, offset) = match how {
        Normalize::None => (1.0, 0.0),
        Normalize::ZeroMeanUnitVariance { eps } => {
            let gain = 1.0 / (moments.variance().sqrt() + eps);
            (gain, -moments.mean * gain)
        }
        Normalize::FixedZeroMeanUnitVariance { mean, std } => (1.0 / std, -mean / std),
        Normalize::ScaleRange { min_percentile, max_percentile, eps } => {
            let mut q = quantiles.unwrap_or_default();
            q.refine(&[min_percentile, max_percentile]);
            each(&mut |samples| q.add(samples))?;
            let (Some(low), Some(high)) = (q.percentile(min_percentile), q.percentile(max_percentile)) else {
                return Err(nothing_finite(file));
            };
            let gain = 1.0 / (high - low + eps);
            (gain, -low * gain)
        }
    };
    let std = (moments.variance().sqrt() * gain.abs()) as f32;
    let dark = (moments.min * gain + offset) as f32;
    let scaling = Scaling { gain, offset, std, dark, missing: 0.0 };
    if ![scaling.gain, scaling.offset].iter().all(|v| v.is_finite()) {
        let problem = format!("its intensities cannot be normalized: factor {gain}, offset {offset}");
        return Err(TrainingDataError::data(file, problem, "set std or eps above 0 in normalize"));
    }
    Ok((scaling, moments))
}

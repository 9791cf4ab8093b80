//! Bringing intensities to the range a network was made for, with the statistics of the whole stack.

use crate::error::SamplesError;
use crate::reader::{Convert, Reader};
use cytoscope_volume::Element;
use cytoscope_volume::statistics::{Moments, Quantiles};
use serde::{Deserialize, Serialize};

/// How intensities are scaled before a network sees them; the same words and sums as a model package's preprocessing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Normalise {
    /// Not at all.
    None,
    /// `(v − mean) / (std + eps)` of the whole stack.
    ZeroMeanUnitVariance {
        /// Keeps constant stacks finite.
        #[serde(default = "eps")]
        eps: f64,
    },
    /// `(v − low) / (high − low + eps)`, low and high being percentiles (0 to 100) of the whole stack.
    ScaleRange {
        /// The lower percentile.
        min_percentile: f64,
        /// The upper percentile.
        max_percentile: f64,
        /// Keeps constant stacks finite.
        #[serde(default = "eps")]
        eps: f64,
    },
    /// `(v − mean) / std` of given numbers.
    FixedZeroMeanUnitVariance {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
}

fn eps() -> f64 {
    1e-6
}

impl Default for Normalise {
    fn default() -> Self {
        Self::ZeroMeanUnitVariance { eps: eps() }
    }
}

/// What normalising comes to for one stack, and how its values lie afterwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    /// Factor of a stored value.
    pub gain: f64,
    /// Added after that.
    pub offset: f64,
    /// Standard deviation of the stack after scaling.
    pub std: f32,
    /// The darkest value of the stack after scaling.
    pub dark: f32,
}

impl Scaling {
    /// A stored value, scaled as a prediction would scale it.
    #[inline]
    pub fn apply(&self, value: f64) -> f32 {
        (value * self.gain + self.offset) as f32
    }
}

impl Convert<f32> for Scaling {
    #[inline]
    fn one<E: Element>(&self, value: E) -> f32 {
        // As f32 first, which is what a prediction starts from. Values that are none are dark.
        let v = value.to_f32();
        if v.is_finite() { (f64::from(v) * self.gain + self.offset) as f32 } else { self.dark }
    }

    fn blank(&self) -> f32 {
        self.dark
    }
}

/// Works out the scaling of a stack in one pass over it, or two for percentiles.
pub(crate) fn scaling(reader: &Reader, stack: usize, how: Normalise) -> Result<(Scaling, Moments), SamplesError> {
    let mut moments = Moments::default();
    let mut quantiles = matches!(how, Normalise::ScaleRange { .. }).then(Quantiles::new);
    reader.each_slab(stack, &mut |_, _, samples| {
        moments.add(samples);
        if let Some(q) = quantiles.as_mut() {
            q.add(samples);
        }
        Ok(())
    })?;
    let (gain, offset) = match how {
        Normalise::None => (1.0, 0.0),
        Normalise::ZeroMeanUnitVariance { eps } => {
            let gain = 1.0 / (moments.variance().sqrt() + eps);
            (gain, -moments.mean * gain)
        }
        Normalise::FixedZeroMeanUnitVariance { mean, std } => (1.0 / std, -mean / std),
        Normalise::ScaleRange { min_percentile, max_percentile, eps } => {
            let mut q = quantiles.unwrap_or_default();
            q.refine(&[min_percentile, max_percentile]);
            reader.each_slab(stack, &mut |_, _, samples| {
                q.add(samples);
                Ok(())
            })?;
            let low = q.percentile(min_percentile).unwrap_or(0.0);
            let high = q.percentile(max_percentile).unwrap_or(1.0);
            let gain = 1.0 / (high - low + eps);
            (gain, -low * gain)
        }
    };
    let std = (moments.variance().sqrt() * gain.abs()) as f32;
    let dark = (moments.min * gain + offset) as f32;
    let scaling = Scaling { gain, offset, std, dark };
    if ![scaling.gain, scaling.offset].iter().all(|v| v.is_finite()) {
        let file = reader.stack(stack).map(|s| s.image.path.clone()).unwrap_or_default();
        let met = format!("its intensities cannot be scaled: factor {gain}, offset {offset}");
        return Err(SamplesError::data(&file, met, "give a standard deviation or a small eps above 0"));
    }
    Ok((scaling, moments))
}

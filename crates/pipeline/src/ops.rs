//! Pre- and postprocessing steps of bioimage.io, run on streams of slices.

use cytoscope_model_package::{Processing, StatisticsAxes, TensorType};
use cytoscope_volume::Samples;
use cytoscope_volume::statistics::{Moments, Quantiles};
use std::ops::Range;

/// A function of one value, with all parameters fixed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Elementwise {
    Affine {
        gain: f64,
        offset: f64,
    },
    Clip {
        min: f64,
        max: f64,
    },
    Binarize {
        threshold: f64,
    },
    /// Truncated toward zero and clamped to a range; 0 for NaN.
    Integer {
        min: f64,
        max: f64,
    },
    /// 0 for 0, otherwise 1.
    IsNotZero,
    Sigmoid,
}

impl Elementwise {
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Self::Affine { gain, offset } => {
                values.iter_mut().for_each(|v| *v = (f64::from(*v) * gain + offset) as f32)
            }
            Self::Clip { min, max } => {
                values.iter_mut().for_each(|v| *v = v.clamp(min as f32, (max as f32).max(min as f32)))
            }
            Self::Binarize { threshold } => {
                values.iter_mut().for_each(|v| *v = f32::from(u8::from(f64::from(*v) > threshold)))
            }
            Self::Integer { min, max } => values.iter_mut().for_each(|v| {
                *v = if v.is_nan() { 0.0 } else { f64::from(*v).trunc().clamp(min, max) as f32 };
            }),
            Self::IsNotZero => values.iter_mut().for_each(|v| *v = f32::from(u8::from(*v != 0.0))),
            Self::Sigmoid => values.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
        }
    }
}

/// Applies a chain of functions to values in place.
pub(crate) fn apply(chain: &[Elementwise], values: &mut [f32]) {
    chain.iter().for_each(|f| f.apply(values));
}

/// A volume with channels that can be read any number of times.
pub(crate) trait Volume {
    type Error;

    /// Returns the number of channels.
    fn channels(&self) -> usize;

    /// Passes all samples of a channel to a callback, in several parts.
    ///
    /// # Errors
    /// If the volume cannot be read.
    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), Self::Error>;
}

/// The tensor from which a step's statistics are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statistics {
    /// The tensor before the first step, as bioimageio.core does for preprocessing.
    Unprocessed,
    /// The tensor after the preceding steps.
    Current,
}

/// An input tensor before preprocessing, which steps can refer to by its id.
pub(crate) struct Reference<'a, E> {
    /// Id of the tensor in the model's description.
    pub id: &'a str,
    /// Reads the tensor's values; statistics need all of them.
    pub volume: &'a mut dyn Volume<Error = E>,
}

/// One step, as a function for each channel; `None` for the identity.
type Step = Vec<Option<Elementwise>>;

/// Resolves steps to a chain of functions for each channel. A step that needs statistics reads the whole volume: once
/// for moments, twice for exact percentiles.
///
/// # Errors
/// The outer error is the volume's; the inner one names an unsupported step.
pub(crate) fn resolve<E>(
    steps: &[Processing],
    volume: &mut dyn Volume<Error = E>,
    statistics: Statistics,
    references: &mut [Reference<'_, E>],
) -> Result<Result<Vec<Vec<Elementwise>>, String>, E> {
    let channels = volume.channels();
    let mut chains: Vec<Vec<Elementwise>> = vec![Vec::new(); channels];
    for step in steps {
        let seen = if statistics == Statistics::Current { chains.clone() } else { vec![Vec::new(); channels] };
        let added = match step {
            Processing::Softmax => Err("softmax".to_owned()),
            Processing::ClipPercentiles { min_percentile, max_percentile, axes } => {
                Ok(clip(volume, &seen, [*min_percentile, *max_percentile], *axes)?)
            }
            Processing::ZeroMeanUnitVariance { eps, axes } => {
                let scale = |m: Moments| affine(1.0 / (m.variance().sqrt() + eps), m.mean, 0.0);
                Ok(moments(volume, &seen, axes.channel)?.into_iter().map(scale).collect())
            }
            Processing::ScaleRange { min_percentile, max_percentile, eps, axes, reference_tensor } => {
                let wanted = [*min_percentile, *max_percentile];
                let of = reference_tensor.as_deref();
                scale_range(volume, &seen, wanted, *eps, *axes, of, references)?
            }
            Processing::ScaleMeanVariance { eps, axes, reference_tensor } => {
                scale_mean_variance(volume, &seen, *eps, *axes, reference_tensor, references)?
            }
            fixed => match uneven_values(fixed, channels) {
                Some(count) => Err(format!("with {count} values for {channels} channels")),
                None => Ok((0..channels).map(|channel| without_statistics(fixed, channel)).collect()),
            },
        };
        match added {
            Ok(added) => chains.iter_mut().zip(added).for_each(|(chain, step)| chain.extend(step)),
            Err(problem) => return Ok(Err(problem)),
        }
    }
    Ok(Ok(chains))
}

fn clip<E>(
    volume: &mut dyn Volume<Error = E>,
    seen: &[Vec<Elementwise>],
    wanted: [Option<f64>; 2],
    axes: StatisticsAxes,
) -> Result<Step, E> {
    let [low, high] = wanted;
    let at = [low.unwrap_or(0.0), high.unwrap_or(100.0)];
    // bioimageio.core interpolates where statistics include the batch.
    let found = percentiles(volume, seen, at, axes.channel, axes.batch)?;
    let limits = found.into_iter().map(|[min, max]| {
        let min = low.map_or(f64::NEG_INFINITY, |_| min);
        Some(Elementwise::Clip { min, max: high.map_or(f64::INFINITY, |_| max) })
    });
    Ok(limits.collect())
}

fn scale_range<E>(
    volume: &mut dyn Volume<Error = E>,
    seen: &[Vec<Elementwise>],
    wanted: [f64; 2],
    eps: f64,
    axes: StatisticsAxes,
    reference: Option<&str>,
    references: &mut [Reference<'_, E>],
) -> Result<Result<Step, String>, E> {
    let found = match reference {
        None => percentiles(volume, seen, wanted, axes.channel, true)?,
        Some(id) => {
            let Some(of) = find(references, id) else { return Ok(Err(unknown("scale_range", id))) };
            let raw = vec![Vec::new(); of.channels()];
            percentiles(of, &raw, wanted, axes.channel, true)?
        }
    };
    let scale = |[low, high]: [f64; 2]| affine(1.0 / (high - low + eps), low, 0.0);
    let found = for_channels(&found, volume.channels());
    Ok(found.map(|all| all.into_iter().map(scale).collect()).ok_or_else(|| channel_count_problem("scale_range")))
}

fn scale_mean_variance<E>(
    volume: &mut dyn Volume<Error = E>,
    seen: &[Vec<Elementwise>],
    eps: f64,
    axes: StatisticsAxes,
    reference: &str,
    references: &mut [Reference<'_, E>],
) -> Result<Result<Step, String>, E> {
    let Some(of) = find(references, reference) else { return Ok(Err(unknown("scale_mean_variance", reference))) };
    let raw = vec![Vec::new(); of.channels()];
    let wanted = moments(of, &raw, axes.channel)?;
    let Some(wanted) = for_channels(&wanted, volume.channels()) else {
        return Ok(Err(channel_count_problem("scale_mean_variance")));
    };
    let own = moments(volume, seen, axes.channel)?;
    let scale = |(own, wanted): (Moments, Moments)| {
        let gain = (wanted.variance().sqrt() + eps) / (own.variance().sqrt() + eps);
        affine(gain, own.mean, wanted.mean)
    };
    Ok(Ok(own.into_iter().zip(wanted).map(scale).collect()))
}

/// Returns the number of values of a step's parameter if it is neither 1 nor the number of channels. (This cannot be
/// checked when a description is read, because it may not state the number of channels.)
fn uneven_values(step: &Processing, channels: usize) -> Option<usize> {
    let counts = match step {
        Processing::Binarize { threshold } => vec![threshold.len()],
        Processing::ScaleLinear { gain, offset } => vec![gain.len(), offset.len()],
        Processing::FixedZeroMeanUnitVariance { mean, std } => vec![mean.len(), std.len()],
        _ => Vec::new(),
    };
    counts.into_iter().find(|count| *count != 1 && *count != channels)
}

/// Returns a step that needs no statistics as a function of one value; `None` for the identity.
fn without_statistics(step: &Processing, channel: usize) -> Option<Elementwise> {
    Some(match step {
        Processing::EnsureDtype { dtype } => {
            if *dtype == TensorType::Bool {
                return Some(Elementwise::IsNotZero);
            }
            let (min, max) = integers(*dtype)?;
            Elementwise::Integer { min, max }
        }
        Processing::Binarize { threshold } => Elementwise::Binarize { threshold: pick(threshold, channel) },
        Processing::Clip { min, max } => {
            Elementwise::Clip { min: min.unwrap_or(f64::NEG_INFINITY), max: max.unwrap_or(f64::INFINITY) }
        }
        Processing::ScaleLinear { gain, offset } => {
            Elementwise::Affine { gain: pick(gain, channel), offset: pick(offset, channel) }
        }
        Processing::FixedZeroMeanUnitVariance { mean, std } => {
            let (mean, std) = (pick(mean, channel), pick(std, channel));
            Elementwise::Affine { gain: 1.0 / std, offset: -mean / std }
        }
        Processing::Sigmoid => Elementwise::Sigmoid,
        Processing::ClipPercentiles { .. }
        | Processing::ScaleRange { .. }
        | Processing::ZeroMeanUnitVariance { .. }
        | Processing::ScaleMeanVariance { .. }
        | Processing::Softmax => return None,
    })
}

/// Returns the range of an integer type; `None` for any other type.
fn integers(dtype: TensorType) -> Option<(f64, f64)> {
    Some(match dtype {
        TensorType::Uint8 => (0.0, f64::from(u8::MAX)),
        TensorType::Int8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        TensorType::Uint16 => (0.0, f64::from(u16::MAX)),
        TensorType::Int16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        TensorType::Uint32 => (0.0, f64::from(u32::MAX)),
        TensorType::Int32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        TensorType::Uint64 => (0.0, u64::MAX as f64),
        TensorType::Int64 => (i64::MIN as f64, i64::MAX as f64),
        TensorType::Float32 | TensorType::Float64 | TensorType::Bool => return None,
    })
}

/// Returns the function `(x − from) · gain + to`.
fn affine(gain: f64, from: f64, to: f64) -> Option<Elementwise> {
    Some(Elementwise::Affine { gain, offset: to - from * gain })
}

fn find<'r, E>(references: &'r mut [Reference<'_, E>], id: &str) -> Option<&'r mut dyn Volume<Error = E>> {
    let found = references.iter_mut().find(|r| r.id == id)?;
    Some(&mut *found.volume)
}

/// Returns what is wrong with a step that refers to a tensor that is not there.
fn unknown(step: &str, id: &str) -> String {
    format!("{step}, which refers to the tensor \"{id}\"")
}

/// Returns what is wrong with a step whose statistics are by channel of a tensor with another number of channels.
fn channel_count_problem(step: &str) -> String {
    format!("{step} with statistics by channel of a tensor with a different number of channels")
}

/// Expands a reference tensor's statistics to `channels` entries; `None` unless there is one entry or one per channel.
fn for_channels<T: Clone>(found: &[T], channels: usize) -> Option<Vec<T>> {
    match found {
        [one] => Some(vec![one.clone(); channels]),
        all => (all.len() == channels).then(|| all.to_vec()),
    }
}

/// Returns the groups of channels that share statistics.
fn groups(channels: usize, joint: bool) -> Vec<Range<usize>> {
    if joint { vec![0..channels; usize::from(channels > 0)] } else { (0..channels).map(|c| c..c + 1).collect() }
}

/// Computes a result for each group and repeats it for each channel of the group.
fn by_channel<E, T: Clone>(
    channels: usize,
    joint: bool,
    mut compute: impl FnMut(Range<usize>) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let mut all = Vec::with_capacity(channels);
    for group in groups(channels, joint) {
        let found = compute(group.clone())?;
        all.extend(group.map(|_| found.clone()));
    }
    Ok(all)
}

/// Returns the moments of each channel after its chain; if `joint`, every channel gets the moments of all channels
/// together.
fn moments<E>(volume: &mut dyn Volume<Error = E>, chains: &[Vec<Elementwise>], joint: bool) -> Result<Vec<Moments>, E> {
    by_channel(volume.channels(), joint, |group| {
        let mut moments = Moments::default();
        for (channel, chain) in group.clone().zip(chains.iter().skip(group.start)) {
            volume.each(channel, &mut |samples| moments.add(&with_applied(chain, samples)))?;
        }
        Ok(moments)
    })
}

/// Returns two percentiles of each channel after its chain; if `joint`, every channel gets the percentiles of all
/// channels together.
fn percentiles<E>(
    volume: &mut dyn Volume<Error = E>,
    chains: &[Vec<Elementwise>],
    wanted: [f64; 2],
    joint: bool,
    interpolate: bool,
) -> Result<Vec<[f64; 2]>, E> {
    by_channel(volume.channels(), joint, |group| {
        let mut quantiles = Quantiles::new();
        for pass in 0..2 {
            if pass == 1 {
                quantiles.refine(&wanted);
            }
            for (channel, chain) in group.clone().zip(chains.iter().skip(group.start)) {
                volume.each(channel, &mut |samples| quantiles.add(&with_applied(chain, samples)))?;
            }
        }
        let at = |p| if interpolate { quantiles.percentile(p) } else { quantiles.percentile_sample(p) };
        // Without a finite sample there are no percentiles, and no sample that they could change.
        Ok([at(wanted[0]).unwrap_or(0.0), at(wanted[1]).unwrap_or(1.0)])
    })
}

/// Returns the samples after a chain of steps; the samples themselves if it is empty.
fn with_applied(chain: &[Elementwise], samples: Samples) -> Samples {
    if chain.is_empty() {
        return samples;
    }
    let mut values = samples.to_f32();
    apply(chain, &mut values);
    Samples::F32(values)
}

/// Returns the entry of a channel, or the single one for all channels.
fn pick(values: &[f64], channel: usize) -> f64 {
    values.get(channel).or_else(|| values.first()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    /// Channels, each in parts.
    struct Parts(Vec<Vec<Vec<u16>>>);

    impl Volume for Parts {
        type Error = ();

        fn channels(&self) -> usize {
            self.0.len()
        }

        fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), ()> {
            self.0[channel].iter().for_each(|p| f(Samples::U16(p.clone())));
            Ok(())
        }
    }

    fn by_channel() -> StatisticsAxes {
        StatisticsAxes { batch: false, channel: false, by_slice: false }
    }

    fn fixed(steps: &[Processing], volume: &mut Parts) -> Vec<Vec<Elementwise>> {
        resolve(steps, volume, Statistics::Current, &mut []).unwrap().unwrap()
    }

    #[test]
    fn percentiles_are_those_of_the_whole_stack() {
        let all: Vec<u16> = (0..1000).map(|i| (i * 7919 % 1000) as u16).collect();
        let mut volume = Parts(vec![all.chunks(170).map(<[u16]>::to_vec).collect()]);
        let steps = [Processing::ScaleRange {
            min_percentile: 1.0,
            max_percentile: 99.8,
            eps: 1e-6,
            axes: StatisticsAxes::default(),
            reference_tensor: None,
        }];
        let chains = fixed(&steps, &mut volume);
        let mut values = vec![9.99, 997.002];
        apply(&chains[0], &mut values);
        assert!(values[0].abs() < 1e-5 && (values[1] - 1.0).abs() < 1e-5, "{values:?}");
    }

    #[test]
    fn zero_mean_unit_variance_uses_the_whole_stack() {
        let mut volume = Parts(vec![vec![vec![2, 4], vec![4, 4, 5, 5, 7, 9]]]);
        let steps = [Processing::ZeroMeanUnitVariance { eps: 0.0, axes: StatisticsAxes::default() }];
        let chains = fixed(&steps, &mut volume);
        let mut values = vec![5.0, 7.0];
        apply(&chains[0], &mut values);
        assert!(values[0].abs() < 1e-6 && (values[1] - 1.0).abs() < 1e-6);
        let softmax = resolve(&[Processing::Softmax], &mut volume, Statistics::Current, &mut []).unwrap();
        assert_eq!(softmax, Err("softmax".to_owned()));
    }

    #[test]
    fn values_for_another_number_of_channels_are_refused() {
        let mut volume = Parts(vec![vec![vec![1]], vec![vec![2]], vec![vec![3]]]);
        let steps = [Processing::ScaleLinear { gain: vec![1.0], offset: vec![0.0, 5.0] }];
        let refused = resolve(&steps, &mut volume, Statistics::Current, &mut []).unwrap();
        assert_eq!(refused, Err("with 2 values for 3 channels".to_owned()));
    }

    #[test]
    fn channels_share_statistics_if_the_axes_include_channels() {
        // Channel 0 has mean 2 and deviation 1, channel 1 mean 6 and deviation 1; together 4 and the root of 5.
        let mut volume = Parts(vec![vec![vec![1, 3]], vec![vec![5, 7]]]);
        let z = |axes| Processing::ZeroMeanUnitVariance { eps: 0.0, axes };
        let at = |chains: &[Vec<Elementwise>], channel: usize, value: f32| {
            let mut values = vec![value];
            apply(&chains[channel], &mut values);
            values[0]
        };
        let each = fixed(&[z(by_channel())], &mut volume);
        assert_eq!((at(&each, 0, 3.0), at(&each, 1, 5.0)), (1.0, -1.0));
        let joint = fixed(&[z(StatisticsAxes::default())], &mut volume);
        let expected = 1.0 / 5.0f32.sqrt();
        assert!((at(&joint, 1, 5.0) - expected).abs() < 1e-6 && (at(&joint, 0, 3.0) + expected).abs() < 1e-6);
    }

    #[test]
    fn statistics_come_from_the_unprocessed_or_the_current_tensor() {
        let mut volume = Parts(vec![vec![vec![1, 3]]]);
        let steps = [
            Processing::ScaleLinear { gain: vec![10.0], offset: vec![0.0] },
            Processing::ZeroMeanUnitVariance { eps: 0.0, axes: by_channel() },
        ];
        let mut after = |statistics| {
            let chains = resolve(&steps, &mut volume, statistics, &mut []).unwrap().unwrap();
            let mut values = vec![3.0];
            apply(&chains[0], &mut values);
            values[0]
        };
        assert_eq!((after(Statistics::Current), after(Statistics::Unprocessed)), (1.0, 28.0));
    }

    #[test]
    fn a_cast_to_integers_truncates_and_clamps() {
        let cast = |dtype| {
            let steps = [Processing::EnsureDtype { dtype }];
            let chains = fixed(&steps, &mut Parts(vec![vec![]]));
            let mut values = vec![-1.7, 0.0, 3.9, 300.0, f32::NAN];
            apply(&chains[0], &mut values);
            values
        };
        assert_eq!(cast(TensorType::Uint8), [0.0, 0.0, 3.0, 255.0, 0.0]);
        assert_eq!(cast(TensorType::Int16), [-1.0, 0.0, 3.0, 300.0, 0.0]);
        assert_eq!(cast(TensorType::Bool)[..4], [1.0, 0.0, 1.0, 1.0]);
        assert_eq!(cast(TensorType::Float32)[..4], [-1.7, 0.0, 3.9, 300.0]);
    }
}

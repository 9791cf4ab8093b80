//! Pre- and postprocessing as bioimage.io names it, run on streams of slices.

use cytoscope_graph::package::Processing;
use cytoscope_volume::Samples;
use cytoscope_volume::statistics::{Moments, Quantiles};

/// A function of one value, fixed once the statistics it rests on are known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Elementwise {
    Affine { gain: f64, offset: f64 },
    Clip { min: f64, max: f64 },
    Binarize { threshold: f64 },
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
            Self::Sigmoid => values.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
        }
    }
}

/// Applies a chain to values.
pub(crate) fn apply(chain: &[Elementwise], values: &mut [f32]) {
    chain.iter().for_each(|f| f.apply(values));
}

/// Streams a volume (one channel) to a callback, slab by slab.
pub(crate) trait Stream {
    type Error;
    fn each(&mut self, f: &mut dyn FnMut(Samples)) -> Result<(), Self::Error>;
}

/// Works out the chain of one channel: passes over the stream where an operation rests on its statistics (one for moments, two
/// for percentiles, exact). `reference` are the moments that [`Processing::ScaleMeanVariance`] brings the volume to.
///
/// # Errors
/// The stream's; or the name of an operation that does not work value by value.
pub(crate) fn fix<S: Stream>(
    steps: &[Processing],
    channel: usize,
    reference: Option<Moments>,
    stream: &mut S,
) -> Result<Result<Vec<Elementwise>, &'static str>, S::Error> {
    let mut chain: Vec<Elementwise> = Vec::new();
    for step in steps {
        match step {
            Processing::EnsureDtype { .. } => {}
            Processing::Binarize { threshold } => {
                chain.push(Elementwise::Binarize { threshold: pick(threshold, channel) })
            }
            Processing::Clip { min, max } => chain
                .push(Elementwise::Clip { min: min.unwrap_or(f64::NEG_INFINITY), max: max.unwrap_or(f64::INFINITY) }),
            Processing::ScaleLinear { gain, offset } => {
                chain.push(Elementwise::Affine { gain: pick(gain, channel), offset: pick(offset, channel) });
            }
            Processing::FixedZeroMeanUnitVariance { mean, std } => {
                let (mean, std) = (pick(mean, channel), pick(std, channel));
                chain.push(Elementwise::Affine { gain: 1.0 / std, offset: -mean / std });
            }
            Processing::ZeroMeanUnitVariance { eps } => {
                let moments = moments(&chain, stream)?;
                let gain = 1.0 / (moments.variance().sqrt() + eps);
                chain.push(Elementwise::Affine { gain, offset: -moments.mean * gain });
            }
            Processing::ScaleRange { min_percentile, max_percentile, eps } => {
                let mut quantiles = Quantiles::new();
                stream.each(&mut |samples| quantiles.add(&through(&chain, samples)))?;
                quantiles.refine(&[*min_percentile, *max_percentile]);
                stream.each(&mut |samples| quantiles.add(&through(&chain, samples)))?;
                let low = quantiles.percentile(*min_percentile).unwrap_or(0.0);
                let high = quantiles.percentile(*max_percentile).unwrap_or(1.0);
                let gain = 1.0 / (high - low + eps);
                chain.push(Elementwise::Affine { gain, offset: -low * gain });
            }
            Processing::ScaleMeanVariance { eps } => {
                let Some(wanted) = reference else { return Ok(Err("scale_mean_variance without its reference")) };
                let moments = moments(&chain, stream)?;
                let gain = (wanted.variance().sqrt() + eps) / (moments.variance().sqrt() + eps);
                chain.push(Elementwise::Affine { gain, offset: wanted.mean - moments.mean * gain });
            }
            Processing::Sigmoid => chain.push(Elementwise::Sigmoid),
            Processing::Softmax => return Ok(Err("softmax")),
        }
    }
    Ok(Ok(chain))
}

fn moments<S: Stream>(chain: &[Elementwise], stream: &mut S) -> Result<Moments, S::Error> {
    let mut moments = Moments::default();
    stream.each(&mut |samples| moments.add(&through(chain, samples)))?;
    Ok(moments)
}

fn through(chain: &[Elementwise], samples: Samples) -> Samples {
    if chain.is_empty() {
        return samples;
    }
    let mut values = samples.to_f32();
    apply(chain, &mut values);
    Samples::F32(values)
}

/// The entry of a channel, or the only one.
fn pick(values: &[f64], channel: usize) -> f64 {
    values.get(channel).or_else(|| values.first()).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Parts(Vec<Vec<u16>>);

    impl Stream for Parts {
        type Error = ();
        fn each(&mut self, f: &mut dyn FnMut(Samples)) -> Result<(), ()> {
            self.0.iter().for_each(|p| f(Samples::U16(p.clone())));
            Ok(())
        }
    }

    #[test]
    fn percentile_scaling_is_that_of_the_whole_stack() {
        let all: Vec<u16> = (0..1000).map(|i| (i * 7919 % 1000) as u16).collect();
        let mut stream = Parts(all.chunks(170).map(<[u16]>::to_vec).collect());
        let steps = [Processing::ScaleRange { min_percentile: 1.0, max_percentile: 99.8, eps: 1e-6 }];
        let chain = fix(&steps, 0, None, &mut stream).unwrap().unwrap();
        let mut values = vec![9.99, 997.002];
        apply(&chain, &mut values);
        assert!(values[0].abs() < 1e-5 && (values[1] - 1.0).abs() < 1e-5, "{values:?}");
    }

    #[test]
    fn z_score_gives_mean_zero_and_variance_one() {
        let mut stream = Parts(vec![vec![2, 4], vec![4, 4, 5, 5, 7, 9]]);
        let chain = fix(&[Processing::ZeroMeanUnitVariance { eps: 0.0 }], 0, None, &mut stream).unwrap().unwrap();
        let mut values = vec![5.0, 7.0];
        apply(&chain, &mut values);
        assert!(values[0].abs() < 1e-6 && (values[1] - 1.0).abs() < 1e-6);
        assert!(fix(&[Processing::Softmax], 0, None, &mut stream).unwrap().is_err());
    }
}

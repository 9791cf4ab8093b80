//! A classical filter as a graph: it runs on every engine and needs no training.

use super::weights::{finish_graph, graph_with_input};
use cytoscope_graph::{
    Activation, BinaryOp, ConvAttrs, Graph, GraphError, Op, PadMode, Padding, Result, Tensor, ValueId,
};

/// Maximum distance in voxels from the center of a kernel to its ends.
const MAX_RADIUS: f64 = 1000.0;

/// Description of a blob detector: `sigmoid(gain · (G_small ∗ x − large_share · G_large ∗ x) + offset)` with the Gaussians
/// `G_small` and `G_large`, and optionally a second channel with the brightness on a scale from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct DifferenceOfGaussians {
    /// Standard deviation of the narrow Gaussian in voxels, z, y, x; 0 means no smoothing along an axis.
    pub sigma_small: [f64; 3],
    /// Standard deviation of the wide Gaussian in voxels, z, y, x.
    pub sigma_large: [f64; 3],
    /// Factor of the smoothing by the wide Gaussian before it is subtracted.
    pub large_share: f32,
    /// Parameters of the second channel, r / (r + half) with r = relu(G ∗ x): standard deviation of the Gaussian G in
    /// voxels, z, y, x, and `half`; `None` without a second channel.
    pub brightness: Option<([f64; 3], f32)>,
    /// Factor that the filter response is multiplied by before the sigmoid.
    pub gain: f32,
    /// Offset that is added to the scaled filter response before the sigmoid.
    pub offset: f32,
    /// Kernels are truncated at this many standard deviations.
    pub truncate: f64,
}

impl Default for DifferenceOfGaussians {
    fn default() -> Self {
        Self {
            sigma_small: [1.0; 3],
            sigma_large: [4.0; 3],
            large_share: 1.0,
            brightness: None,
            gain: 8.0,
            offset: -2.0,
            truncate: 3.0,
        }
    }
}

/// Builds a [`DifferenceOfGaussians`]: input `x` `[n, 1, d, h, w]`, output `y` of the same lengths with one or two
/// channels, in 0..1.
///
/// Each Gaussian is three convolutions, one per axis, whose kernels sum to one: a constant stack gives σ(offset)
/// everywhere. Borders are padded by repeating the outermost voxels.
///
/// # Errors
/// If a parameter is not finite, a standard deviation or `truncate` is negative, `large_share` or `half` is not above 0, or
/// a kernel would be longer than 2001 voxels.
pub fn difference_of_gaussians(config: &DifferenceOfGaussians) -> Result<Graph> {
    check(config)?;
    let (mut graph, x) = graph_with_input("difference_of_gaussians", 1, 3);
    let small = smooth(&mut graph, "small", x, &config.sigma_small, config.truncate)?;
    let large = smooth(&mut graph, "large", x, &config.sigma_large, config.truncate)?;
    let share = graph.add_initializer("large_share", Tensor::scalar(config.large_share));
    let large = graph.push("background", Op::Binary(BinaryOp::Mul), &[Some(large), Some(share)]);
    let difference = graph.push("difference", Op::Binary(BinaryOp::Sub), &[Some(small), Some(large)]);
    let gain = graph.add_initializer("gain", Tensor::scalar(config.gain));
    let offset = graph.add_initializer("offset", Tensor::scalar(config.offset));
    let scaled = graph.push("scaled", Op::Binary(BinaryOp::Mul), &[Some(difference), Some(gain)]);
    let shifted = graph.push("shifted", Op::Binary(BinaryOp::Add), &[Some(scaled), Some(offset)]);
    let y = graph.push("probability", Op::Activation(Activation::Sigmoid), &[Some(shifted)]);
    let Some((sigma, half)) = config.brightness else { return finish_graph(graph, y) };
    let bright = smooth(&mut graph, "bright", x, &sigma, config.truncate)?;
    let bright = graph.push("bright.positive", Op::Activation(Activation::Relu), &[Some(bright)]);
    let half = graph.add_initializer("half", Tensor::scalar(half));
    let sum = graph.push("bright.sum", Op::Binary(BinaryOp::Add), &[Some(bright), Some(half)]);
    let ratio = graph.push("brightness", Op::Binary(BinaryOp::Div), &[Some(bright), Some(sum)]);
    let both = graph.push("both", Op::concat(1), &[Some(y), Some(ratio)]);
    finish_graph(graph, both)
}

/// Checks every parameter; the error names the first invalid one and its value.
fn check(config: &DifferenceOfGaussians) -> Result<()> {
    let refused = |parameter: &str, got: String, expected: &str| -> Result<()> {
        Err(GraphError::misused(format!("{parameter} of a difference of Gaussians"), got, expected))
    };
    let is_length = |v: &f64| v.is_finite() && *v >= 0.0;
    if !is_length(&config.truncate) {
        return refused("truncate", config.truncate.to_string(), "a finite number of at least 0");
    }
    let bright = config.brightness.map(|(sigma, _)| ("sigma of the brightness", sigma));
    let sigmas = [("sigma_small", config.sigma_small), ("sigma_large", config.sigma_large)];
    for (parameter, sigma) in sigmas.into_iter().chain(bright) {
        if !sigma.iter().all(is_length) {
            return refused(parameter, format!("{sigma:?}"), "finite numbers of at least 0");
        }
        if sigma.iter().any(|s| s * config.truncate > MAX_RADIUS) {
            let max_sigma = MAX_RADIUS / config.truncate;
            let expected = format!("at most {max_sigma:.1} voxels, so that no kernel is longer than 2001 voxels");
            return refused(parameter, format!("{sigma:?}"), &expected);
        }
    }
    let half = config.brightness.map(|(_, half)| ("half of the brightness", half));
    for (parameter, share) in [("large_share", config.large_share)].into_iter().chain(half) {
        if !(share.is_finite() && share > 0.0) {
            return refused(parameter, share.to_string(), "a finite number above 0");
        }
    }
    for (parameter, value) in [("gain", config.gain), ("offset", config.offset)] {
        if !value.is_finite() {
            return refused(parameter, value.to_string(), "a finite number");
        }
    }
    Ok(())
}

fn smooth(graph: &mut Graph, name: &str, x: ValueId, sigma: &[f64; 3], truncate: f64) -> Result<ValueId> {
    let mut features = x;
    for (axis, &s) in sigma.iter().enumerate() {
        let radius = (s * truncate).ceil() as usize;
        if radius == 0 {
            continue;
        }
        let letter = ["z", "y", "x"].get(axis).copied().unwrap_or("a");
        let centered = (0..=2 * radius).map(|i| i as f64 - radius as f64);
        let weights: Vec<f64> = centered.map(|d| libm::exp(-0.5 * (d / s).powi(2))).collect();
        let sum: f64 = weights.iter().sum();
        let kernel: Vec<f32> = weights.iter().map(|w| (w / sum) as f32).collect();
        let mut lengths = [1usize; 3];
        let mut pads = [0i64; 10];
        if let Some(l) = lengths.get_mut(axis) {
            *l = kernel.len();
        }
        for end in [axis + 2, axis + 7] {
            if let Some(p) = pads.get_mut(end) {
                *p = radius as i64;
            }
        }
        let pads = graph.add_initializer(format!("{name}.{letter}.pads"), Tensor::vector(pads.to_vec()));
        let wide = graph.push(
            format!("{name}.{letter}.padded"),
            Op::Pad { mode: PadMode::Edge },
            &[Some(features), Some(pads)],
        );
        let shape = [&[1, 1][..], &lengths].concat();
        let w = graph.add_initializer(format!("{name}.{letter}.kernel"), Tensor::new(shape, kernel)?);
        let attrs = ConvAttrs::same(&lengths).with_padding(Padding::none(3));
        features = graph.push(format!("{name}.{letter}.out"), Op::Conv(attrs), &[Some(wide), Some(w)]);
    }
    Ok(features)
}

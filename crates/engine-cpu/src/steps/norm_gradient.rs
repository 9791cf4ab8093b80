//! Statistics and gradients of norms whose parameters are trained.

use super::affine::Norm;
use crate::context::{Context, StepError, StepResult, for_each_image};
use crate::step::{Slot, StepOp};
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::norm::Moments;
use cytoscope_kernels::train::{self, Activated, NormFactors};

/// Combines the moments of all images, which have equal size, into those of the batch, and writes them to the dense
/// values of the mean and the variance, where there are such values.
#[derive(Debug)]
pub(crate) struct MergeMoments {
    /// Index of the moments.
    pub moments: usize,
    /// Dense value of the batch's mean `[C]`.
    pub mean: Option<ValueId>,
    /// Dense value of the batch's variance `[C]`, the mean square deviation.
    pub variance: Option<ValueId>,
}

impl StepOp for MergeMoments {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let place = context.moments.get(self.moments).ok_or(StepError::MissingMoments(self.moments))?;
        let images = place.len().max(1) as f64;
        let channels = place.first().map_or(0, Vec::len);
        let of = |c: usize| place.iter().filter_map(move |m| m.get(c).copied());
        let joined: Moments = (0..channels)
            .map(|c| {
                let mean = of(c).map(|(m, _)| m).sum::<f64>() / images;
                let variance = of(c).map(|(m, v)| v + (m - mean) * (m - mean)).sum::<f64>() / images;
                (mean, variance)
            })
            .collect();
        if let Some(id) = self.mean {
            context.store(id, joined.iter().map(|(mean, _)| *mean as f32).collect())?;
        }
        if let Some(id) = self.variance {
            context.store(id, joined.iter().map(|(_, variance)| *variance as f32).collect())?;
        }
        context.store_moments(self.moments, vec![joined])
    }

    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        self.mean.into_iter().chain(self.variance).collect()
    }
}

/// The requested gradients of a norm's input, scale and bias.
#[derive(Debug)]
pub(crate) struct NormGradient {
    /// Slot of the norm's input.
    pub x: usize,
    /// Slot of the gradient of the activation's output.
    pub dy: usize,
    /// The norm of the forward pass, whose moments must still be stored.
    pub norm: Norm,
    /// Activation after the norm whose gradient is applied first.
    pub activation: Activation,
    /// Slot of the gradient of the norm's input.
    pub dx: Option<usize>,
    /// Dense value of the gradient of the scale `[C]`.
    pub d_scale: Option<ValueId>,
    /// Dense value of the gradient of the bias `[C]`.
    pub d_bias: Option<ValueId>,
}

/// Sums over one image, by channel: of the gradient, and of the gradient times the normalized input.
type Sums = Vec<(f64, f64)>;

/// Inputs of the gradient of one image.
struct OfImage {
    scale: Vec<f32>,
    shift: Vec<f32>,
    mean: Vec<f32>,
    inverse: Vec<f32>,
    sums: Sums,
}

impl NormGradient {
    fn image(&self, context: &Context<'_>, from: &Slot, g: &Slot, image: usize) -> StepResult<OfImage> {
        let (scale, shift) = self.norm.factors(context, image)?;
        let statistics = self.norm.statistics(context, image)?;
        let (mean, inverse): (Vec<f32>, Vec<f32>) = statistics.into_iter().map(|(m, i)| (m as f32, i as f32)).unzip();
        let (x, dy) = (context.image(from, image)?, context.image(g, image)?);
        let after = Activated { scale: &scale, shift: &shift, activation: self.activation };
        let (isa, layout) = (context.isa, &from.layout);
        let sums = train::norm_gradient_sums(isa, x, layout, dy, &g.layout, &after, &mean, &inverse)?;
        Ok(OfImage { scale, shift, mean, inverse, sums })
    }
}

impl StepOp for NormGradient {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, g) = (context.isa, context.slot(self.x)?, context.slot(self.dy)?);
        let mut total = vec![(0.0f64, 0.0f64); from.layout.channels];
        let mut images = Vec::with_capacity(from.images);
        for image in 0..from.images {
            let of = self.image(context, &from, &g, image)?;
            total.iter_mut().zip(&of.sums).for_each(|(t, s)| *t = (t.0 + s.0, t.1 + s.1));
            images.push(of);
        }
        if let Some(id) = self.d_scale {
            context.store(id, total.iter().map(|t| t.1 as f32).collect())?;
        }
        if let Some(id) = self.d_bias {
            context.store(id, total.iter().map(|t| t.0 as f32).collect())?;
        }
        let Some(dx) = self.dx else { return Ok(()) };
        let to = context.slot(dx)?;
        let weight = context.floats(self.norm.scale)?.to_vec();
        let voxels = from.layout.voxels();
        for_each_image(context.arena, &to, |image, target, split| {
            let Some(of) = images.get(image) else { return Ok(()) };
            let (sums, count) = if self.norm.batch { (&total, voxels * from.images) } else { (&of.sums, voxels) };
            let factors = NormFactors::new(&weight, &of.mean, &of.inverse, sums, count)?;
            let after = Activated { scale: &of.scale, shift: &of.shift, activation: self.activation };
            let (x, dy) = (split.image(&from, image)?, split.image(&g, image)?);
            train::norm_gradient(isa, x, &from.layout, dy, &g.layout, &after, &factors, false, target, &to.layout)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        vec![self.norm.scale, self.norm.bias]
    }

    fn dense_outputs(&self, _graph: &Graph) -> Vec<ValueId> {
        self.d_scale.into_iter().chain(self.d_bias).collect()
    }
}

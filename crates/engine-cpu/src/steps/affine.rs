//! Passes over the voxels of slots: moments, and affine passes, which add scaled and shifted slots.

use crate::context::{Context, StepError, StepResult, bytes, for_each_image, halves, target};
use crate::split::Split;
use crate::step::{Elem, Slot, StepOp};
use cytoscope_graph::{Graph, ValueId};
use cytoscope_kernels::apply::{self, Source};
use cytoscope_kernels::conv::{Activation, Quantizer};
use cytoscope_kernels::norm::{self, Moments};

/// Scale and shift of each channel.
type Factors = (Vec<f32>, Vec<f32>);

/// Scale and shift of each channel of a term.
#[derive(Debug, Clone)]
pub(crate) enum Affine {
    /// Constants known at compile time.
    Fixed {
        /// Scale of each channel.
        scale: Vec<f32>,
        /// Shift of each channel.
        shift: Vec<f32>,
    },
    /// A normalization, computed from the moments of the stored values.
    Norm {
        /// Index of the moments.
        moments: usize,
        /// Scale of the normalization, by channel.
        gamma: Vec<f32>,
        /// Bias of the normalization, by channel.
        beta: Vec<f32>,
        /// Added to the variance.
        epsilon: f32,
        /// Stored values are `factor[c] · true value` plus a constant that all channels share.
        factor: Vec<f32>,
        /// Number of groups; equals the number of channels in an instance norm.
        groups: usize,
    },
    /// A normalized 1×1×1 convolution of one plane; its moments follow from those of the plane.
    PlaneNorm {
        /// Index of the plane's moments.
        moments: usize,
        /// Weight of each output channel.
        weights: Vec<f32>,
        /// Scale of the normalization, by channel.
        gamma: Vec<f32>,
        /// Bias of the normalization, by channel.
        beta: Vec<f32>,
        /// Added to the variance.
        epsilon: f32,
    },
    /// A normalization whose scale and bias are tensors of the run.
    OfTensors(Norm),
}

/// A normalization whose scale and bias are dense tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Norm {
    /// Index of the moments.
    pub moments: usize,
    /// Dense value of the scale `[C]`.
    pub scale: ValueId,
    /// Dense value of the bias `[C]`.
    pub bias: ValueId,
    /// Added to the variance.
    pub epsilon: f32,
    /// Whether the statistics are of the whole batch; otherwise of each image.
    pub batch: bool,
}

impl Norm {
    /// Returns mean and 1 / √(variance + ε) of each channel of an image.
    pub(super) fn statistics(&self, context: &Context<'_>, image: usize) -> StepResult<Vec<(f64, f64)>> {
        let missing = || StepError::MissingMoments(self.moments);
        let all = context.moments.get(self.moments).ok_or_else(missing)?;
        let of = all.get(if self.batch { 0 } else { image }).ok_or_else(missing)?;
        Ok(of.iter().map(|(mean, variance)| (*mean, 1.0 / (variance + f64::from(self.epsilon)).sqrt())).collect())
    }

    /// Returns scale and shift of each channel of an image.
    pub(super) fn factors(&self, context: &Context<'_>, image: usize) -> StepResult<Factors> {
        let (scale, bias) = (context.floats(self.scale)?, context.floats(self.bias)?);
        let all = self.statistics(context, image)?.into_iter().zip(scale.iter().zip(bias));
        Ok(all
            .map(|((mean, inverse), (scale, bias))| {
                let gain = f64::from(*scale) * inverse;
                (gain as f32, (f64::from(*bias) - mean * gain) as f32)
            })
            .unzip())
    }
}

impl Affine {
    /// Returns the scale and shift of each channel for one image.
    fn factors(&self, context: &Context<'_>, image: usize) -> StepResult<Factors> {
        let stored = |at: usize| {
            context
                .moments
                .get(at)
                .and_then(|image_moments| image_moments.get(image))
                .ok_or(StepError::MissingMoments(at))
        };
        match self {
            Affine::Fixed { scale, shift } => Ok((scale.clone(), shift.clone())),
            Affine::Norm { moments, gamma, beta, epsilon, factor, groups } => {
                Ok(group_norm(stored(*moments)?, gamma, beta, *epsilon, factor, *groups))
            }
            Affine::PlaneNorm { moments: at, weights, gamma, beta, epsilon } => {
                let (mean, variance) = *stored(*at)?.first().ok_or(StepError::MissingMoments(*at))?;
                let all = weights.iter().zip(gamma.iter().zip(beta));
                Ok(all
                    .map(|(weight, (gamma, beta))| {
                        let weight = f64::from(*weight);
                        let gain =
                            f64::from(*gamma) * weight / (weight * weight * variance + f64::from(*epsilon)).sqrt();
                        (gain as f32, (f64::from(*beta) - mean * gain) as f32)
                    })
                    .unzip())
            }
            Affine::OfTensors(norm) => norm.factors(context, image),
        }
    }
}

/// Returns scale and shift of a group norm, given the moments of the stored values, which are `factor[c]` · true value.
fn group_norm(stored: &Moments, gamma: &[f32], beta: &[f32], epsilon: f32, factor: &[f32], groups: usize) -> Factors {
    // Moments of the true values, without the storage factor.
    let own: Vec<(f64, f64)> = stored
        .iter()
        .zip(factor)
        .map(|((mean, variance), f)| (mean / f64::from(*f), variance / f64::from(*f).powi(2)))
        .collect();
    let together = (own.len() / groups.max(1)).max(1);
    let group_moments = |group: &[(f64, f64)]| {
        let count = group.len() as f64;
        let mean = group.iter().map(|(m, _)| m).sum::<f64>() / count;
        let square = group.iter().map(|(m, v)| v + (m - mean) * (m - mean)).sum::<f64>() / count;
        (mean, square)
    };
    let grouped = own.chunks(together).flat_map(|g| std::iter::repeat_n(group_moments(g), g.len()));
    let all = grouped.zip(gamma.iter().zip(beta)).zip(factor);
    all.map(|(((mean, variance), (gamma, beta)), factor)| {
        let gain = f64::from(*gamma) / (variance + f64::from(epsilon)).sqrt();
        ((gain / f64::from(*factor)) as f32, (f64::from(*beta) - mean * gain) as f32)
    })
    .unzip()
}

/// One operand of a pass that sums scaled and shifted slots.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// Index of the slot that is read.
    pub slot: usize,
    /// Whether the slot is a single plane that is broadcast to all channels.
    pub plane: bool,
    /// Scale and shift of each channel.
    pub affine: Affine,
}

impl Term {
    /// Returns what the term reads of one image.
    fn source<'a>(&self, slot: &'a Slot, split: &Split<'a>, image: usize) -> StepResult<Source<'a>> {
        let (words, layout) = (split.image(slot, image)?, &slot.layout);
        Ok(match slot.elem {
            _ if self.plane => Source::Plane(words, layout),
            Elem::F32 => Source::F32(words, layout),
            Elem::F16 => Source::F16(halves(words, layout.len()), layout),
            Elem::U8 { .. } => Source::U8(bytes(words, layout.len()), layout),
        })
    }
}

/// Returns the slots of terms, and for each image scale and shift of each term.
fn operands(context: &Context<'_>, terms: &[Term], images: usize) -> StepResult<(Vec<Slot>, Vec<Vec<Factors>>)> {
    let slots = terms.iter().map(|t| context.slot(t.slot)).collect::<StepResult<_>>()?;
    let image_factors = |image: usize| terms.iter().map(|t| t.affine.factors(context, image)).collect();
    Ok((slots, (0..images).map(image_factors).collect::<StepResult<_>>()?))
}

/// Returns the terms of one image as the kernels take them; `factors` are scale and shift of each term, and `source` returns
/// what a term reads of its slot.
fn kernel_terms<'a, 'f: 'a>(
    terms: &[Term],
    slots: &'a [Slot],
    factors: impl IntoIterator<Item = &'f Factors>,
    source: impl Fn(&Term, &'a Slot) -> StepResult<Source<'a>>,
) -> StepResult<Vec<apply::Term<'a>>> {
    let all = terms.iter().zip(slots).zip(factors);
    all.map(|((term, slot), (scale, shift))| Ok(apply::Term { source: source(term, slot)?, scale, shift })).collect()
}

fn dense_inputs(terms: &[Term]) -> Vec<ValueId> {
    let norm = |t: &Term| if let Affine::OfTensors(norm) = t.affine { Some(norm) } else { None };
    terms.iter().filter_map(norm).flat_map(|n| [n.scale, n.bias]).collect()
}

/// Mean and variance of a slot's channels.
#[derive(Debug)]
pub(crate) struct MomentsOf {
    /// Slot whose channels are measured.
    pub input: usize,
    /// Index under which they are stored.
    pub moments: usize,
}

impl StepOp for MomentsOf {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from) = (context.isa, context.slot(self.input)?);
        let len = from.layout.len();
        let mut image_moments = Vec::new();
        for image in 0..from.images {
            let source = context.image(&from, image)?;
            image_moments.push(match from.elem {
                Elem::F32 if from.layout.block == 1 => norm::channel_moments(isa, source, &from.layout)?,
                Elem::F32 => norm::moments(isa, &Source::F32(source, &from.layout))?,
                Elem::F16 => norm::moments(isa, &Source::F16(halves(source, len), &from.layout))?,
                Elem::U8 { .. } => norm::moments(isa, &Source::U8(bytes(source, len), &from.layout))?,
            });
        }
        context.store_moments(self.moments, image_moments)
    }
}

/// Sums terms, applies an activation, and optionally quantizes; in place or not.
#[derive(Debug)]
pub(crate) struct Apply {
    /// Operands, summed after each is scaled and shifted.
    pub terms: Vec<Term>,
    /// Applied to the sum.
    pub activation: Activation,
    /// How the result is quantized; only if the output holds bytes.
    pub quantizer: Option<Quantizer>,
    /// Slot that is written; it may be that of a term.
    pub output: usize,
}

impl StepOp for Apply {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, to) = (context.isa, context.slot(self.output)?);
        let (from, tables) = operands(context, &self.terms, to.images)?;
        let mut tables = tables.iter();
        for_each_image(context.arena, &to, |image, words, split| {
            let factors = tables.next().into_iter().flatten();
            let sums = kernel_terms(&self.terms, &from, factors, |term, slot| {
                let in_place = slot.range(image) == to.range(image) && slot.elem == to.elem;
                if in_place { Ok(Source::InPlace) } else { term.source(slot, split, image) }
            })?;
            apply::apply(isa, &sums, self.activation, target(words, &to, self.quantizer)?, &to.layout)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        dense_inputs(&self.terms)
    }
}

/// Like [`Apply`], followed by a 1×1×1 convolution to few channels.
#[derive(Debug)]
pub(crate) struct Head {
    /// Operands, summed after each is scaled and shifted.
    pub terms: Vec<Term>,
    /// Channels of the terms.
    pub channels: usize,
    /// Applied to the sum.
    pub activation: Activation,
    /// Weights `[O][C]` of the convolution.
    pub weights: Vec<f32>,
    /// Bias `[O]` of the convolution.
    pub bias: Vec<f32>,
    /// If set, the sum is quantized first, and the weights apply to the integers.
    pub quantizer: Option<Quantizer>,
    /// Slot that is written, one plane per channel.
    pub output: usize,
}

impl StepOp for Head {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, to) = (context.isa, context.slot(self.output)?);
        let (from, tables) = operands(context, &self.terms, to.images)?;
        let mut tables = tables.iter();
        for_each_image(context.arena, &to, |image, words, split| {
            let factors = tables.next().into_iter().flatten();
            let sums = kernel_terms(&self.terms, &from, factors, |term, slot| term.source(slot, split, image))?;
            let head = apply::Head { weights: &self.weights, bias: &self.bias, quantizer: self.quantizer };
            apply::apply_head(isa, &sums, self.channels, self.activation, &head, words, &to.layout)?;
            Ok(())
        })
    }

    fn dense_inputs(&self, _graph: &Graph) -> Vec<ValueId> {
        dense_inputs(&self.terms)
    }
}

/// Scales and shifts each channel, in place or not.
#[derive(Debug)]
pub(crate) struct AffinePass {
    /// Slot that is read.
    pub input: usize,
    /// Factor of each channel.
    pub scale: Vec<f32>,
    /// Added to each channel after scaling.
    pub shift: Vec<f32>,
    /// A slot that is added.
    pub residual: Option<usize>,
    /// Applied last.
    pub activation: Activation,
    /// Slot that is written; it may be the one that is read.
    pub output: usize,
}

impl StepOp for AffinePass {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let extra = self.residual.map(|r| context.slot(r)).transpose()?;
        let (scale, shift, activation) = (&self.scale, &self.shift, self.activation);
        for_each_image(context.arena, &to, |image, target, split| {
            let residual = extra.as_ref().map(|r| split.image(r, image).map(|words| (words, &r.layout))).transpose()?;
            if from.range(image) == to.range(image) {
                norm::affine_in_place(isa, target, &to.layout, scale, shift, residual, activation)?;
            } else {
                let x = split.image(&from, image)?;
                norm::affine(isa, x, &from.layout, scale, shift, residual, activation, target, &to.layout)?;
            }
            Ok(())
        })
    }
}

/// Instance normalization of planes, in place or not.
#[derive(Debug)]
pub(crate) struct PlanarNorm {
    /// Slot that is read.
    pub input: usize,
    /// Scale of the norm, by channel.
    pub scale: Vec<f32>,
    /// Bias of the norm, by channel.
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub epsilon: f32,
    /// Applied after the norm.
    pub activation: Activation,
    /// Slot that is written; it may be the one that is read.
    pub output: usize,
}

impl StepOp for PlanarNorm {
    fn run(&self, context: &mut Context<'_>) -> Result<(), StepError> {
        let (isa, from, to) = (context.isa, context.slot(self.input)?, context.slot(self.output)?);
        let (channels, activation) = (self.scale.len(), self.activation);
        for_each_image(context.arena, &to, |image, target, split| {
            let in_place = from.range(image) == to.range(image);
            let source = if in_place { None } else { Some(split.image(&from, image)?) };
            let moments = norm::channel_moments(isa, source.unwrap_or(target), &from.layout)?;
            let factor = vec![1.0; channels];
            let (gain, shift) = group_norm(&moments, &self.scale, &self.bias, self.epsilon, &factor, channels);
            match source {
                None => norm::affine_in_place(isa, target, &to.layout, &gain, &shift, None, activation)?,
                Some(x) => norm::affine(isa, x, &from.layout, &gain, &shift, None, activation, target, &to.layout)?,
            }
            Ok(())
        })
    }
}

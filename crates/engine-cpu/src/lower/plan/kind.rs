//! Parameters of a kernel step before slots are known: where a step names a slot, these name a position among
//! [`Planned::inputs`].

use crate::step::{End, Kind, Term};
use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv, PackedConvInt8, Quantizer, Transposed};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;

/// What becomes of a node.
pub(crate) enum Plan {
    /// Part of another node's step, or nothing to do.
    Absorbed,
    /// Run by the reference executor.
    Reference,
    /// Run by a kernel.
    Kernel(Box<Planned>),
}

/// A node (with those it absorbed) as a kernel runs it.
pub(crate) struct Planned {
    pub kind: PlanKind,
    /// Values read; the first is the one in-place work happens on.
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
    /// The border an input needs.
    pub border: Option<(ValueId, [usize; 3])>,
    pub label: String,
    pub macs: u64,
}

/// The final convolution of a pass.
pub(crate) struct PlanHead {
    pub channels: usize,
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
}

/// Parameters of a kernel step.
pub(crate) enum PlanKind {
    Conv {
        weights: PackedConv,
        shape: ConvShape,
        end: End,
        planar: bool,
        post: Option<Unary>,
    },
    ConvInt8 {
        weights: PackedConvInt8,
        shape: ConvShape,
        end: End,
        post: Option<Unary>,
    },
    ConvTranspose {
        weights: Transposed<PackedConv>,
        end: End,
    },
    ConvTransposeInt8 {
        weights: Transposed<PackedConvInt8>,
        end: End,
    },
    /// Moments of inputs (position, where they are kept), then one pass.
    Chain {
        moments: Vec<(usize, usize)>,
        terms: Vec<Term>,
        activation: Activation,
        quantizer: Option<Quantizer>,
        head: Option<PlanHead>,
    },
    PlanarNorm {
        scale: Vec<f32>,
        bias: Vec<f32>,
        epsilon: f32,
        activation: Activation,
    },
    Affine {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Unary(Unary),
    Binary(Binary),
    Pool(Pool, ConvShape),
    Resize(Box<[Vec<Tap>; 3]>),
    QuantizePlanes(Quantizer),
    DynamicQuantize(usize),
    Translate(Box<[u8; 256]>),
    /// First block of each part; bytes that must be translated on the way have a table.
    Concat {
        blocks: Vec<usize>,
        tables: Vec<Option<Box<[u8; 256]>>>,
    },
}

impl PlanKind {
    pub(crate) fn works_in_place(&self) -> bool {
        match self {
            Self::PlanarNorm { .. } | Self::Affine { .. } | Self::Unary(_) | Self::Translate(_) => true,
            Self::Chain { head, terms, .. } => head.is_none() && terms.first().is_some_and(|t| !t.plane),
            _ => false,
        }
    }

    /// The end of a convolution's sums, where there is one.
    pub(crate) fn end(&mut self) -> Option<&mut End> {
        match self {
            Self::Conv { end, .. }
            | Self::ConvInt8 { end, .. }
            | Self::ConvTranspose { end, .. }
            | Self::ConvTransposeInt8 { end, .. } => Some(end),
            _ => None,
        }
    }

    /// Whether the end is the last thing done.
    pub(crate) fn ends(&self) -> bool {
        match self {
            Self::Conv { post, planar, end, .. } => post.is_none() && !(*planar && end.residual.is_some()),
            Self::ConvInt8 { post, .. } => post.is_none(),
            Self::ConvTranspose { .. } | Self::ConvTransposeInt8 { .. } => true,
            _ => false,
        }
    }

    /// The steps, given the slots of the inputs and the output.
    pub(crate) fn into_steps(self, inputs: &[usize], output: usize) -> Vec<Kind> {
        let Some(&input) = inputs.first() else { return Vec::new() };
        let second = inputs.get(1).copied();
        let placed =
            |end: End| End { residual: end.residual.and_then(|position| inputs.get(position)).copied(), ..end };
        match self {
            Self::Conv { weights, shape, end, planar, post } => {
                let mut steps = if planar && end.residual.is_some() {
                    // Few channels: the kernel adds no residual there, so that is a step of its own.
                    let channels = weights.out_channels();
                    let end = placed(end);
                    let plain = End { residual: None, activation: Activation::None, ..end.clone() };
                    vec![
                        Kind::Conv { input, weights, shape, end: plain, output },
                        Kind::Affine {
                            input: output,
                            scale: vec![1.0; channels],
                            shift: vec![0.0; channels],
                            residual: end.residual,
                            activation: end.activation,
                            output,
                        },
                    ]
                } else {
                    vec![Kind::Conv { input, weights, shape, end: placed(end), output }]
                };
                steps.extend(post.map(|f| Kind::Unary { f, input: output, output }));
                steps
            }
            Self::ConvInt8 { weights, shape, end, post } => {
                let mut steps = vec![Kind::ConvInt8 { input, weights, shape, end: placed(end), output }];
                steps.extend(post.map(|f| Kind::Unary { f, input: output, output }));
                steps
            }
            Self::ConvTranspose { weights, end } => {
                vec![Kind::ConvTranspose { input, weights, end: placed(end), output }]
            }
            Self::ConvTransposeInt8 { weights, end } => {
                vec![Kind::ConvTransposeInt8 { input, weights, end: placed(end), output }]
            }
            Self::Chain { moments, terms, activation, quantizer, head } => {
                let slot = |position: usize| inputs.get(position).copied().unwrap_or(input);
                let terms = terms.into_iter().map(|t| Term { slot: slot(t.slot), ..t }).collect();
                let mut steps: Vec<Kind> = moments
                    .into_iter()
                    .map(|(position, moments)| Kind::Moments { input: slot(position), moments })
                    .collect();
                steps.push(match head {
                    None => Kind::Apply { terms, activation, quantizer, output },
                    Some(PlanHead { channels, weights, bias }) => {
                        Kind::Head { terms, channels, activation, weights, bias, quantizer, output }
                    }
                });
                steps
            }
            Self::PlanarNorm { scale, bias, epsilon, activation } => {
                vec![Kind::PlanarNorm { input, scale, bias, epsilon, activation, output }]
            }
            Self::Affine { scale, shift } => {
                vec![Kind::Affine { input, scale, shift, residual: None, activation: Activation::None, output }]
            }
            Self::Unary(f) => vec![Kind::Unary { f, input, output }],
            Self::Binary(f) => second.map(|b| Kind::Binary { f, a: input, b, output }).into_iter().collect(),
            Self::Pool(kind, shape) => vec![Kind::Pool { kind, shape, input, output }],
            Self::Resize(tables) => vec![Kind::Resize { tables, input, output }],
            Self::QuantizePlanes(quantizer) => vec![Kind::QuantizePlanes { input, quantizer, output }],
            Self::DynamicQuantize(ranges) => vec![Kind::DynamicQuantize { input, ranges, output }],
            Self::Translate(table) => vec![Kind::Translate { input, table, output }],
            Self::Concat { .. } => Vec::new(),
        }
    }
}

impl Planned {
    pub(crate) fn weight_bytes(&self) -> u64 {
        let bytes = match &self.kind {
            PlanKind::Conv { weights, .. } => weights.size_bytes(),
            PlanKind::ConvInt8 { weights, .. } => weights.size_bytes(),
            PlanKind::ConvTranspose { weights, .. } => weights.size_bytes(),
            PlanKind::ConvTransposeInt8 { weights, .. } => weights.size_bytes(),
            _ => 0,
        };
        bytes as u64
    }
}

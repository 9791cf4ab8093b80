//! Parameters of a kernel step before slots are assigned: where a step has a slot, a plan has an index into
//! [`KernelPlan::inputs`].

use crate::step::StepOp;
use crate::steps::{
    AffinePass, Apply, BinaryStep, Conv, ConvInt8, ConvTranspose, ConvTransposeInt8, DynamicQuantize, Epilogue, Head,
    Join, MomentsOf, PadStep, PlanarNorm, PoolStep, QuantizePlanes, ResizeStep, Term, Translate, UnaryStep,
};
use cytoscope_graph::ValueId;
use cytoscope_kernels::conv::{
    Activation, ConvShape, PackedConv, PackedConvInt8, Quantizer, Transposed, TransposedShape,
};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;

/// How a node is executed.
pub(crate) enum Plan {
    /// Fused into another node's step, or a no-op.
    Absorbed,
    /// Run by the reference executor.
    Reference,
    /// Run by a kernel.
    Kernel(Box<KernelPlan>),
}

/// A node, with the nodes fused into it, as a kernel runs it.
pub(crate) struct KernelPlan {
    pub kind: PlanKind,
    /// Values that are read; the first is the one that is overwritten in place.
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
    /// An input that needs a border, and the border's width (Z, Y, X).
    pub border: Option<(ValueId, [usize; 3])>,
    pub label: String,
    pub macs: u64,
}

/// The 1×1×1 convolution at the end of a pass.
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
        epilogue: Epilogue,
        planar: bool,
        post: Option<Unary>,
    },
    ConvInt8 {
        weights: PackedConvInt8,
        shape: ConvShape,
        epilogue: Epilogue,
        post: Option<Unary>,
    },
    ConvTranspose {
        weights: Transposed<PackedConv>,
        shape: TransposedShape,
        epilogue: Epilogue,
    },
    ConvTransposeInt8 {
        weights: Transposed<PackedConvInt8>,
        shape: TransposedShape,
        epilogue: Epilogue,
    },
    /// Computes moments of inputs (input position, moments index), then one pass.
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
    /// Weighted sums of neighboring voxels, by a table for each axis (Z, Y, X).
    Resample(Box<[Vec<Tap>; 3]>),
    /// Padding with a constant: voxels added before the first one along Z, Y, X, negative if voxels are removed.
    Pad {
        before: [isize; 3],
        value: f32,
    },
    QuantizePlanes(Quantizer),
    DynamicQuantize(usize),
    Translate(Box<[u8; 256]>),
    /// Parts side by side along the channels: the first channel block of each part; parts with other quantization
    /// parameters have a conversion table.
    Joined {
        blocks: Vec<usize>,
        tables: Vec<Option<Box<[u8; 256]>>>,
    },
    /// As [`PlanKind::Joined`], for parts that do not start at block boundaries: their channels are copied.
    Join {
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

    /// Returns the epilogue of a convolution.
    pub(crate) fn epilogue_mut(&mut self) -> Option<&mut Epilogue> {
        match self {
            Self::Conv { epilogue, .. }
            | Self::ConvInt8 { epilogue, .. }
            | Self::ConvTranspose { epilogue, .. }
            | Self::ConvTransposeInt8 { epilogue, .. } => Some(epilogue),
            _ => None,
        }
    }

    /// Returns whether the epilogue is the step's last operation, so that more can be fused into it.
    pub(crate) fn epilogue_is_last(&self) -> bool {
        match self {
            Self::Conv { post, planar, epilogue, .. } => post.is_none() && !(*planar && epilogue.residual.is_some()),
            Self::ConvInt8 { post, .. } => post.is_none(),
            Self::ConvTranspose { .. } | Self::ConvTransposeInt8 { .. } => true,
            _ => false,
        }
    }

    /// Returns the steps, given the slots of the inputs and the output.
    pub(crate) fn into_steps(self, inputs: &[usize], output: usize) -> Vec<Box<dyn StepOp>> {
        let Some(&input) = inputs.first() else { return Vec::new() };
        let second = inputs.get(1).copied();
        let with_slots = |epilogue: Epilogue| Epilogue {
            residual: epilogue.residual.and_then(|position| inputs.get(position)).copied(),
            ..epilogue
        };
        match self {
            Self::Conv { weights, shape, epilogue, planar, post } => {
                let mut steps = if planar && epilogue.residual.is_some() {
                    // The planar kernel cannot add a residual, so a separate step does.
                    let channels = weights.out_channels();
                    let epilogue = with_slots(epilogue);
                    let plain = Epilogue { residual: None, activation: Activation::None, ..epilogue.clone() };
                    vec![
                        step(Conv { input, weights, shape, epilogue: plain, output }),
                        step(AffinePass {
                            input: output,
                            scale: vec![1.0; channels],
                            shift: vec![0.0; channels],
                            residual: epilogue.residual,
                            activation: epilogue.activation,
                            output,
                        }),
                    ]
                } else {
                    vec![step(Conv { input, weights, shape, epilogue: with_slots(epilogue), output })]
                };
                steps.extend(post.map(|f| step(UnaryStep { f, input: output, output })));
                steps
            }
            Self::ConvInt8 { weights, shape, epilogue, post } => {
                let mut steps = vec![step(ConvInt8 { input, weights, shape, epilogue: with_slots(epilogue), output })];
                steps.extend(post.map(|f| step(UnaryStep { f, input: output, output })));
                steps
            }
            Self::ConvTranspose { weights, shape, epilogue } => {
                let pad_before = shape.pad_before;
                vec![step(ConvTranspose { input, weights, pad_before, epilogue: with_slots(epilogue), output })]
            }
            Self::ConvTransposeInt8 { weights, shape, epilogue } => {
                let pad_before = shape.pad_before;
                vec![step(ConvTransposeInt8 { input, weights, pad_before, epilogue: with_slots(epilogue), output })]
            }
            Self::Chain { moments, terms, activation, quantizer, head } => {
                let slot = |position: usize| inputs.get(position).copied().unwrap_or(input);
                let terms = terms.into_iter().map(|t| Term { slot: slot(t.slot), ..t }).collect();
                let mut steps: Vec<Box<dyn StepOp>> = moments
                    .into_iter()
                    .map(|(position, moments)| step(MomentsOf { input: slot(position), moments }))
                    .collect();
                steps.push(match head {
                    None => step(Apply { terms, activation, quantizer, output }),
                    Some(PlanHead { channels, weights, bias }) => {
                        step(Head { terms, channels, activation, weights, bias, quantizer, output })
                    }
                });
                steps
            }
            Self::PlanarNorm { scale, bias, epsilon, activation } => {
                vec![step(PlanarNorm { input, scale, bias, epsilon, activation, output })]
            }
            Self::Affine { scale, shift } => {
                vec![step(AffinePass { input, scale, shift, residual: None, activation: Activation::None, output })]
            }
            Self::Unary(f) => vec![step(UnaryStep { f, input, output })],
            Self::Binary(f) => second.map(|b| step(BinaryStep { f, a: input, b, output })).into_iter().collect(),
            Self::Pool(kind, shape) => vec![step(PoolStep { kind, shape, input, output })],
            Self::Resample(tables) => vec![step(ResizeStep { tables, input, output })],
            Self::Pad { before, value } => vec![step(PadStep { before, value, input, output })],
            Self::QuantizePlanes(quantizer) => vec![step(QuantizePlanes { input, quantizer, output })],
            Self::DynamicQuantize(ranges) => vec![step(DynamicQuantize { input, ranges, output })],
            Self::Translate(table) => vec![step(Translate { input, table, output })],
            Self::Joined { .. } => Vec::new(),
            Self::Join { tables } => vec![step(Join { inputs: inputs.to_vec(), tables, output })],
        }
    }
}

/// Boxes a step of any kind.
fn step(op: impl StepOp + 'static) -> Box<dyn StepOp> {
    Box::new(op)
}

impl KernelPlan {
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

//! Parameters of a kernel step before slots are assigned: where a step has a slot, a plan has an index into
//! [`KernelPlan::inputs`].

use super::gradient_kind::GradientKind;
use crate::lower::LowerError;
use crate::lower::sharing::Sharing;
use crate::step::StepOp;
use crate::steps::{
    AffinePass, Apply, BinaryStep, Conv, ConvInt8, ConvOfTensors, ConvTranspose, ConvTransposeInt8, DynamicQuantize,
    Epilogue, FloatWeights, Head, Join, MergeMoments, MomentsOf, PadStep, PlanarNorm, PoolStep, QuantizePlanes,
    ResizeStep, Term, Translate, TransposedOfTensors, UnaryStep,
};
use cytoscope_graph::{Node, ValueId, op_name};
use cytoscope_kernels::conv::{
    Activation, ConvShape, PackedConv, PackedConvInt8, Quantizer, Transposed, TransposedShape,
};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_profile::OperatorPrecision;

/// The steps of one plan, in order.
pub(super) type Steps = Vec<Box<dyn StepOp>>;

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
    /// The kernel, with its parameters.
    pub kind: PlanKind,
    /// Blocked values that are read; the first is the one that is overwritten in place.
    pub inputs: Vec<ValueId>,
    /// The blocked value that is computed; `None` if all results are dense tensors.
    pub output: Option<ValueId>,
    /// Inputs that need a border, with the border's width (Z, Y, X).
    pub borders: Vec<(ValueId, [usize; 3])>,
    /// Operators of the covered nodes, shown in profiles.
    pub label: String,
    /// ONNX name of the operator of the first of the covered nodes.
    pub op: &'static str,
    /// Name of the first of the covered nodes.
    pub node: String,
    /// Multiply-accumulate operations of one run.
    pub macs: u64,
}

/// The 1×1×1 convolution at the end of a pass.
pub(crate) struct PlanHead {
    /// Channels that the convolution reads.
    pub channels: usize,
    /// Weights `[O][C]`.
    pub weights: Vec<f32>,
    /// Bias `[O]`.
    pub bias: Vec<f32>,
}

/// Parameters of a kernel step.
pub(crate) enum PlanKind {
    Conv {
        weights: FloatWeights,
        shape: ConvShape,
        epilogue: Epilogue,
        planar: bool,
        post: Option<Unary>,
    },
    /// A convolution whose weight and bias are tensors of the run, packed at every run.
    ConvOfTensors {
        weight: ValueId,
        bias: Option<ValueId>,
        shape: ConvShape,
        epilogue: Epilogue,
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
    /// Like [`PlanKind::ConvOfTensors`], for a transposed convolution whose kernel size equals its stride.
    ConvTransposeOfTensors {
        weight: ValueId,
        bias: Option<ValueId>,
        kernel: [usize; 3],
    },
    /// Computes moments of inputs (input position, moments index) and statistics of the batch, then one pass.
    Chain {
        moments: Vec<(usize, usize)>,
        statistics: Vec<MergeMoments>,
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
    /// Like [`PlanKind::Joined`], for parts that do not start at block boundaries: their channels are copied.
    Join {
        tables: Vec<Option<Box<[u8; 256]>>>,
    },
    /// Consecutive channel blocks of the input, starting at `block`.
    Slice {
        block: usize,
    },
    Gradient(GradientKind),
}

impl PlanKind {
    /// Returns whether the result may overwrite the first input if nothing else reads it.
    pub(crate) fn works_in_place(&self, sharing: Sharing) -> bool {
        match self {
            Self::PlanarNorm { .. } | Self::Affine { .. } | Self::Unary(_) | Self::Translate(_) => true,
            // The input of a normalization is kept for its gradient. A pass that quantizes never works in place, even if it
            // reads bytes with the same zero point.
            Self::Chain { head, quantizer, terms, .. } => {
                sharing != Sharing::KeepForBackward
                    && head.is_none()
                    && quantizer.is_none()
                    && terms.first().is_some_and(|t| !t.plane)
            }
            // Sums of gradients are accumulated.
            Self::Binary(f) => sharing == Sharing::KeepForBackward && *f == Binary::Add,
            Self::Gradient(kind) => kind.accumulates(),
            _ => false,
        }
    }

    /// Returns the epilogue of a convolution.
    pub(crate) fn epilogue_mut(&mut self) -> Option<&mut Epilogue> {
        match self {
            Self::Conv { epilogue, .. }
            | Self::ConvOfTensors { epilogue, .. }
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
            Self::ConvOfTensors { .. } | Self::ConvTranspose { .. } | Self::ConvTransposeInt8 { .. } => true,
            _ => false,
        }
    }

    /// Returns the steps, given the slots of the inputs and the output. Concatenations and slices have steps only where
    /// their buffers are not shared, which depend on the placement.
    pub(crate) fn into_steps(self, inputs: &[usize], output: Option<usize>) -> Result<Steps, LowerError> {
        let kind = match self {
            Self::Gradient(gradient) => return gradient.into_steps(inputs, output),
            kind => kind,
        };
        let output = output.ok_or(LowerError::MissingOutput)?;
        let input = slot_at(inputs, 0)?;
        Ok(match kind {
            Self::Gradient(_) | Self::Joined { .. } | Self::Slice { .. } => Vec::new(),
            Self::Chain { moments, statistics, terms, activation, quantizer, head } => {
                let terms = terms.into_iter().map(|t| Ok(Term { slot: slot_at(inputs, t.slot)?, ..t }));
                let terms = terms.collect::<Result<Vec<Term>, LowerError>>()?;
                let mut steps: Steps = Vec::new();
                for (position, moments) in moments {
                    steps.push(step(MomentsOf { input: slot_at(inputs, position)?, moments }));
                }
                steps.extend(statistics.into_iter().map(step));
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
            Self::Binary(f) => vec![step(BinaryStep { f, a: input, b: slot_at(inputs, 1)?, output })],
            Self::Pool(kind, shape) => vec![step(PoolStep { kind, shape, input, output })],
            Self::Resample(tables) => vec![step(ResizeStep { tables, input, output })],
            Self::Pad { before, value } => vec![step(PadStep { before, value, input, output })],
            Self::QuantizePlanes(quantizer) => vec![step(QuantizePlanes { input, quantizer, output })],
            Self::DynamicQuantize(ranges) => vec![step(DynamicQuantize { input, ranges, output })],
            Self::Translate(table) => vec![step(Translate { input, table, output })],
            Self::Join { tables } => vec![step(Join { inputs: inputs.to_vec(), tables, output })],
            Self::Conv { .. }
            | Self::ConvOfTensors { .. }
            | Self::ConvInt8 { .. }
            | Self::ConvTranspose { .. }
            | Self::ConvTransposeInt8 { .. }
            | Self::ConvTransposeOfTensors { .. } => return kind.into_conv_steps(inputs, output),
        })
    }

    /// Returns the steps of a convolution; none for other kinds.
    fn into_conv_steps(self, inputs: &[usize], output: usize) -> Result<Steps, LowerError> {
        let input = slot_at(inputs, 0)?;
        let with_slots = |epilogue: Epilogue| -> Result<Epilogue, LowerError> {
            let residual = epilogue.residual.map(|position| slot_at(inputs, position)).transpose()?;
            Ok(Epilogue { residual, ..epilogue })
        };
        let after = |post: Option<Unary>| post.map(|f| step(UnaryStep { f, input: output, output }));
        let mut steps: Steps = Vec::new();
        match self {
            Self::Conv { weights, shape, epilogue, planar, post } => {
                let epilogue = with_slots(epilogue)?;
                if planar && epilogue.residual.is_some() {
                    // The planar kernel cannot add a residual, so a separate step does.
                    let channels = weights.out_channels();
                    let plain = Epilogue { residual: None, activation: Activation::None, ..epilogue.clone() };
                    steps.push(step(Conv { input, weights, shape, epilogue: plain, output }));
                    steps.push(step(AffinePass {
                        input: output,
                        scale: vec![1.0; channels],
                        shift: vec![0.0; channels],
                        residual: epilogue.residual,
                        activation: epilogue.activation,
                        output,
                    }));
                } else {
                    steps.push(step(Conv { input, weights, shape, epilogue, output }));
                }
                steps.extend(after(post));
            }
            Self::ConvOfTensors { weight, bias, shape, epilogue } => {
                let epilogue = with_slots(epilogue)?;
                steps.push(step(ConvOfTensors { input, weight, bias, shape, epilogue, output }));
            }
            Self::ConvInt8 { weights, shape, epilogue, post } => {
                steps.push(step(ConvInt8 { input, weights, shape, epilogue: with_slots(epilogue)?, output }));
                steps.extend(after(post));
            }
            Self::ConvTranspose { weights, shape, epilogue } => {
                let (pad_before, epilogue) = (shape.pad_before, with_slots(epilogue)?);
                steps.push(step(ConvTranspose { input, weights, pad_before, epilogue, output }));
            }
            Self::ConvTransposeInt8 { weights, shape, epilogue } => {
                let (pad_before, epilogue) = (shape.pad_before, with_slots(epilogue)?);
                steps.push(step(ConvTransposeInt8 { input, weights, pad_before, epilogue, output }));
            }
            Self::ConvTransposeOfTensors { weight, bias, kernel } => {
                steps.push(step(TransposedOfTensors { input, weight, bias, kernel, output }));
            }
            _ => {}
        }
        Ok(steps)
    }
}

/// Returns the slot of the input at this position.
pub(super) fn slot_at(inputs: &[usize], position: usize) -> Result<usize, LowerError> {
    inputs.get(position).copied().ok_or(LowerError::MissingInput(position))
}

/// Boxes a step of any kind.
pub(super) fn step(op: impl StepOp + 'static) -> Box<dyn StepOp> {
    Box::new(op)
}

impl KernelPlan {
    /// Returns the plan of a node without borders.
    pub(super) fn new(node: &Node, kind: PlanKind, inputs: Vec<ValueId>, output: Option<ValueId>) -> Self {
        let (op, node) = (op_name(&node.op), node.name.clone());
        Self { kind, inputs, output, borders: Vec::new(), label: op.to_owned(), op, node, macs: 0 }
    }

    /// Returns operators and node, as profiles show them.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.label, self.node)
    }

    /// Returns the number format that the kernel multiplies in.
    pub(crate) fn precision(&self) -> OperatorPrecision {
        match &self.kind {
            PlanKind::ConvInt8 { .. } | PlanKind::ConvTransposeInt8 { .. } => OperatorPrecision::Int8,
            PlanKind::Conv { weights: FloatWeights::Bf16(_), .. } => OperatorPrecision::Bf16,
            _ => OperatorPrecision::Float,
        }
    }

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

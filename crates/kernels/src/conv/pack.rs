//! Packs weights in the order in which the kernels read them.

use super::dot::EXACT_TERMS;
use crate::int8::pairs::{self, Excess};
use crate::parallel::{Shared, for_each};
use crate::{CHANNEL_BLOCK, Isa, KernelError, check_len, check_that};
use std::ops::Range;

/// Largest number of output channels for which planar outputs have a special kernel.
pub(super) const FEW_CHANNELS: usize = 4;

/// Output blocks that are computed together, and the input blocks that they read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// Index of the first output block.
    pub first_block: usize,
    /// Number of output blocks.
    pub blocks: usize,
    /// Index of the first input block.
    pub in_first: usize,
    /// Number of input blocks.
    pub in_blocks: usize,
    /// Index of its first weight.
    pub at: usize,
}

/// Shape of a convolution's weights `[O][I / groups][kd·kh·kw]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightShape {
    /// Output channels.
    pub out_channels: usize,
    /// Input channels of all groups.
    pub in_channels: usize,
    /// Product of the kernel sizes along all axes.
    pub taps: usize,
    /// Number of groups of channels (as in ONNX `Conv`).
    pub groups: usize,
}

impl WeightShape {
    /// Returns a shape with a single group.
    pub fn dense(out_channels: usize, in_channels: usize, taps: usize) -> Self {
        Self { out_channels, in_channels, taps, groups: 1 }
    }

    /// Returns the number of weights.
    pub fn count(&self) -> usize {
        self.out_channels.saturating_mul(self.in_channels / self.groups.max(1)).saturating_mul(self.taps)
    }

    pub(super) fn check(&self, weights: usize, bias: Option<usize>) -> Result<(), KernelError> {
        let whole = self.groups > 0
            && self.out_channels.is_multiple_of(self.groups)
            && self.in_channels.is_multiple_of(self.groups);
        check_that(whole, "groups", "a divisor of the input and output channels", self.groups)?;
        check_len("weights", weights, self.count())?;
        if let Some(b) = bias {
            check_len("bias", b, self.out_channels)?;
        }
        check_that(self.count() > 0, "convolution", "channels and taps", "none")
    }

    /// Returns whether every channel is its own group.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels && self.groups == self.out_channels
    }

    /// Returns the index of the weight between two channels, if they are in the same group.
    fn index(&self, o: usize, i: usize, tap: usize) -> Option<usize> {
        let (per_in, per_out) = (self.in_channels / self.groups, self.out_channels / self.groups);
        (o < self.out_channels && i < self.in_channels && o / per_out == i / per_in)
            .then(|| (o * per_in + i % per_in) * self.taps + tap)
    }

    /// Returns the weight between two channels at a tap; 0 if one of them does not exist, or they are in different groups.
    pub(super) fn weight<T: Copy + Default>(&self, weights: &[T], o: usize, i: usize, tap: usize) -> T {
        self.index(o, i, tap).and_then(|at| weights.get(at)).copied().unwrap_or_default()
    }

    /// Returns the input blocks of `block` channels that output channels `first..last` read: first and count.
    fn input_blocks(&self, first: usize, last: usize, block: usize) -> (usize, usize) {
        let (per_in, per_out) = (self.in_channels / self.groups, self.out_channels / self.groups);
        let last = last.min(self.out_channels).max(first + 1) - 1;
        let (from, to) = (first / per_out * per_in / block, ((last / per_out + 1) * per_in).div_ceil(block));
        (from, to - from)
    }
}

/// Checks that inputs are stored in blocks that the kernels read: of `narrow` or [`CHANNEL_BLOCK`] channels.
pub(super) fn check_in_block(in_block: usize, narrow: usize) -> Result<(), KernelError> {
    let is_known = in_block == narrow || in_block == CHANNEL_BLOCK;
    check_that(is_known, "channels of an input block", format!("{narrow} or {CHANNEL_BLOCK}"), in_block)
}

/// Splits the output blocks into groups of `together`.
pub(super) fn group_blocks(shape: &WeightShape, together: usize, block: usize) -> impl Iterator<Item = Group> {
    let blocks = shape.out_channels.div_ceil(CHANNEL_BLOCK);
    let shape = *shape;
    let mut first_block = 0;
    std::iter::from_fn(move || {
        if first_block >= blocks {
            return None;
        }
        let n = together.min(blocks - first_block);
        let (in_first, in_blocks) =
            shape.input_blocks(first_block * CHANNEL_BLOCK, (first_block + n) * CHANNEL_BLOCK, block);
        let group = Group { first_block, blocks: n, in_first, in_blocks, at: 0 };
        first_block += n;
        Some(group)
    })
}

/// How weights are packed, whatever their type.
#[derive(Debug, Clone)]
pub(crate) struct Packing {
    /// Instruction set that the weights were packed for.
    pub isa: Isa,
    /// Output blocks that are computed together, in order.
    pub groups: Vec<Group>,
    /// Shape of the weights.
    pub shape: WeightShape,
    /// Channels that an input block stores.
    pub in_block: usize,
    /// Whether the convolution is depthwise, with 16 weights per tap.
    pub depthwise: bool,
}

/// Packed float weights of a convolution, in the order of one instruction set; others refuse to run them.
#[derive(Debug, Clone)]
pub struct PackedConv {
    pub(super) packing: Packing,
    pub(super) values: Vec<f32>,
    /// For the kernels for few output channels: the original `[O][I][taps]` for planar inputs, `[O][input block][taps][16]`
    /// for inputs in blocks; empty if there are too many output channels.
    pub(super) plain: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

impl PackedConv {
    /// Packs `weights` and an optional bias `[O]` for inputs with block size `in_block` (1 or 16).
    ///
    /// # Errors
    /// [`KernelError`] if the weights or the bias do not fit, or for another block size.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        bias: Option<&[f32]>,
        shape: WeightShape,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        shape.check(weights.len(), bias.map(<[f32]>::len))?;
        check_in_block(in_block, 1)?;
        if shape.groups == 1 {
            let lanes: Vec<usize> = (0..shape.out_channels).map(|o| o * shape.in_channels * shape.taps).collect();
            let taps: Vec<usize> = (0..shape.taps).collect();
            let few = shape.out_channels <= FEW_CHANNELS;
            let plain = match in_block {
                1 if few => weights.to_vec(),
                _ if few => pack_by_tap(weights, &shape),
                _ => Vec::new(),
            };
            return Ok(Self {
                plain,
                ..Self::strided(isa, weights, bias, &lanes, [shape.in_channels, shape.taps], &taps, in_block)?
            });
        }
        let depthwise = shape.is_depthwise() && in_block == CHANNEL_BLOCK;
        let together = if depthwise { 1 } else { blocks_at_once(isa) };
        let blocks = group_blocks(&shape, together, in_block);
        let (groups, values) = pack_groups(weights, &shape, blocks, depthwise, |values, outputs, ib, tap| {
            for i in (ib * in_block)..((ib + 1) * in_block).min(shape.in_channels) {
                values.extend(outputs.clone().map(|o| shape.weight(weights, o, i, tap)));
            }
        });
        let bias = pad_to_blocks(bias.unwrap_or(&[]), shape.out_channels);
        let packing = Packing { isa, groups, shape, in_block, depthwise };
        Ok(Self { packing, values, plain: Vec::new(), bias })
    }

    /// Packs strided weights: the weight from input channel `i` to output channel `o` at `tap` is
    /// `weights[lanes[o] + i · in_step + taps[tap]]`, or 0 if `lanes[o]` is [`NO_LANE`].
    pub(crate) fn strided(
        isa: Isa,
        weights: &[f32],
        bias: Option<&[f32]>,
        lanes: &[usize],
        [in_channels, in_step]: [usize; 2],
        taps: &[usize],
        in_block: usize,
    ) -> Result<Self, KernelError> {
        let shape = WeightShape::dense(lanes.len(), in_channels, taps.len());
        check_that(shape.count() > 0, "convolution", "channels and taps", "none")?;
        let last = |of: &[usize]| of.iter().filter(|at| **at != NO_LANE).max().copied().unwrap_or(0);
        let reach = last(lanes).saturating_add((in_channels - 1).saturating_mul(in_step)).saturating_add(last(taps));
        check_that(reach < weights.len(), "weights", reach.saturating_add(1), weights.len())?;
        let mut groups: Vec<Group> = group_blocks(&shape, blocks_at_once(isa), in_block).collect();
        let mut len = 0;
        for group in &mut groups {
            group.at = len;
            len += group.blocks * CHANNEL_BLOCK * in_channels * taps.len();
        }
        let mut values = vec![0.0; len];
        let shared = Shared::new(&mut values);
        for_each(groups.len(), |at| {
            let group = &groups[at];
            let step = group.blocks * CHANNEL_BLOCK;
            // SAFETY: groups have disjoint ranges of weights, and each task has its own group; `Shared::slice` checks
            // the bounds.
            let values = unsafe { shared.slice(group.at, step * in_channels * taps.len()) };
            for b in 0..group.blocks {
                let first = (group.first_block + b) * CHANNEL_BLOCK;
                let own = &lanes[first..(first + CHANNEL_BLOCK).min(lanes.len())];
                for i in 0..in_channels {
                    let (ib, channels) = (i / in_block, in_block.min(in_channels - i / in_block * in_block));
                    let place = (ib * in_block * taps.len() + i % in_block) * step + b * CHANNEL_BLOCK;
                    for (t, tap) in taps.iter().enumerate() {
                        let to = &mut values[place + t * channels * step..][..CHANNEL_BLOCK];
                        gather(weights, own, i * in_step + tap, to);
                    }
                }
            }
        });
        let bias = pad_to_blocks(bias.unwrap_or(&[]), shape.out_channels);
        let packing = Packing { isa, groups, shape, in_block, depthwise: false };
        Ok(Self { packing, values, plain: Vec::new(), bias })
    }

    /// Returns the number of output channels.
    pub fn out_channels(&self) -> usize {
        self.packing.shape.out_channels
    }

    /// Returns the size of the packed weights in bytes.
    pub fn size_bytes(&self) -> usize {
        (self.values.len() + self.plain.len() + self.bias.len()) * size_of::<f32>()
    }
}

/// Marks an output channel without weights.
pub(crate) const NO_LANE: usize = usize::MAX;

/// Copies the weights at one position of each output channel of a block.
#[inline(always)]
fn gather(weights: &[f32], lanes: &[usize], at: usize, to: &mut [f32]) {
    if let (Ok(lanes), Ok(to)) =
        (<&[usize; CHANNEL_BLOCK]>::try_from(lanes), <&mut [f32; CHANNEL_BLOCK]>::try_from(&mut *to))
        && !lanes.contains(&NO_LANE)
    {
        *to = lanes.map(|lane| weights[lane + at]);
        return;
    }
    for (to, lane) in to.iter_mut().zip(lanes).filter(|(_, lane)| **lane != NO_LANE) {
        *to = weights[lane + at];
    }
}

/// Returns the number of output blocks that the float kernels compute at once.
fn blocks_at_once(isa: Isa) -> usize {
    if isa.has_wide_registers() { 2 } else { 1 }
}

/// Packs weights by groups, input blocks and taps. `extend` appends the weights between some output channels and one input
/// block at one tap; for depthwise convolutions, [`pack_by_lane`] packs those of each group instead. Returns the groups with the
/// index of their first weight, and the packed weights.
pub(super) fn pack_groups<T: Copy + Default>(
    weights: &[T],
    shape: &WeightShape,
    groups: impl Iterator<Item = Group>,
    depthwise: bool,
    extend: impl Fn(&mut Vec<T>, Range<usize>, usize, usize),
) -> (Vec<Group>, Vec<T>) {
    let mut values = Vec::with_capacity(shape.count());
    let mut groups: Vec<Group> = groups.collect();
    for group in &mut groups {
        group.at = values.len();
        if depthwise {
            values.extend(pack_by_lane(weights, shape, group.first_block));
            continue;
        }
        let outputs = group.first_block * CHANNEL_BLOCK..(group.first_block + group.blocks) * CHANNEL_BLOCK;
        for in_block in group.in_first..group.in_first + group.in_blocks {
            for tap in 0..shape.taps {
                extend(&mut values, outputs.clone(), in_block, tap);
            }
        }
    }
    (groups, values)
}

/// Packs the weights of a depthwise convolution for one block as `[taps][16]`.
fn pack_by_lane<T: Copy + Default>(weights: &[T], shape: &WeightShape, block: usize) -> Vec<T> {
    let lane = |tap: usize, c: usize| weights.get(c * shape.taps + tap).copied().unwrap_or_default();
    (0..shape.taps * CHANNEL_BLOCK)
        .map(|i| (i / CHANNEL_BLOCK, block * CHANNEL_BLOCK + i % CHANNEL_BLOCK))
        .map(|(tap, c)| if c < shape.out_channels { lane(tap, c) } else { T::default() })
        .collect()
}

/// Orders the weights of a dense convolution as `[O][input block][taps][16]`, padded with zeros.
fn pack_by_tap(weights: &[f32], shape: &WeightShape) -> Vec<f32> {
    let blocks = shape.in_channels.div_ceil(CHANNEL_BLOCK);
    let mut packed = Vec::with_capacity(shape.out_channels * blocks * shape.taps * CHANNEL_BLOCK);
    for o in 0..shape.out_channels {
        for block in 0..blocks {
            for tap in 0..shape.taps {
                let inputs = block * CHANNEL_BLOCK..(block + 1) * CHANNEL_BLOCK;
                packed.extend(inputs.map(|i| shape.weight(weights, o, i, tap)));
            }
        }
    }
    packed
}

/// Pads `values` with zeros to whole channel blocks.
pub(super) fn pad_to_blocks<T: Copy + Default>(values: &[T], channels: usize) -> Vec<T> {
    let mut padded = values.to_vec();
    padded.resize(channels.next_multiple_of(CHANNEL_BLOCK), T::default());
    padded
}

/// Packed signed 8-bit weights of a convolution of unsigned 8-bit inputs, in the order of one instruction set; others
/// refuse to run them.
///
/// Order, outermost first: groups of output blocks, input blocks, taps, quads of input channels, output channels, the
/// four bytes of a quad.
#[derive(Debug, Clone)]
pub struct PackedConvInt8 {
    pub(super) packing: Packing,
    pub(super) values: Vec<i8>,
    /// For a single tap and few output channels: the weights `[O][I]` as floats, padded to whole blocks; else empty.
    pub(super) plain: Vec<f32>,
    /// Weights that are multiplied in addition, by output block; empty if the kernels need none.
    pub(super) excess: Vec<Vec<Excess>>,
    /// Initial sum of each output channel: −(zero point of the input) · Σ weights.
    pub(super) start: Vec<i32>,
    /// Largest possible magnitude of the sums, by output channel.
    max_abs_sums: Vec<i32>,
}

impl PackedConvInt8 {
    /// Packs `weights` for inputs with block size `in_block` (4 or 16) and zero point `zero_point`.
    ///
    /// # Errors
    /// [`KernelError::SumOverflow`] if their sums could overflow 32 bits; other errors if the weights do not fit, or for another
    /// block size.
    pub fn new(
        isa: Isa,
        weights: &[i8],
        zero_point: u8,
        shape: WeightShape,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        shape.check(weights.len(), None)?;
        check_in_block(in_block, 4)?;
        let sums: Vec<(i64, i64)> = weights
            .chunks_exact((weights.len() / shape.out_channels).max(1))
            .map(|w| w.iter().fold((0, 0), |(s, a), v| (s + i64::from(*v), a + i64::from(*v).abs())))
            .collect();
        let max_sum = sums.iter().map(|(_, a)| a * 2 * 255).max().unwrap_or(0);
        if max_sum > i64::from(i32::MAX) {
            return Err(KernelError::SumOverflow { greatest: max_sum });
        }
        let depthwise = shape.is_depthwise() && in_block == CHANNEL_BLOCK;
        let together = if crate::int8::two_blocks(isa) && !depthwise { 2 } else { 1 };
        let blocks = group_blocks(&shape, together, in_block);
        let (groups, mut values) = pack_groups(weights, &shape, blocks, depthwise, |values, outputs, ib, tap| {
            for quad in 0..in_block / 4 {
                let first = ib * in_block + quad * 4;
                for o in outputs.clone() {
                    values.extend((first..first + 4).map(|i| shape.weight(weights, o, i, tap)));
                }
            }
        });
        let excess = if crate::int8::adds_pairs(isa) && !depthwise {
            let own = |group: &Group| group.at..group.at + group.in_blocks * in_block * shape.taps * CHANNEL_BLOCK;
            groups.iter().map(|group| pairs::split(&mut values[own(group)], shape.taps, in_block / 4)).collect()
        } else {
            Vec::new()
        };
        let start: Vec<i32> = sums.iter().map(|(s, _)| (-i64::from(zero_point) * s) as i32).collect();
        // Inputs minus the zero point lie between −zero_point and 255 − zero_point.
        let farthest = i64::from(zero_point.max(255 - zero_point));
        let max_abs_sums = sums.iter().map(|(_, a)| (a * farthest) as i32).collect();
        let few = shape.taps == 1
            && shape.groups == 1
            && shape.out_channels <= FEW_CHANNELS
            && in_block == CHANNEL_BLOCK
            && shape.in_channels <= EXACT_TERMS;
        let floats = || weights.iter().map(|w| f32::from(*w)).collect::<Vec<f32>>();
        let plain = if few { pack_by_tap(&floats(), &shape) } else { Vec::new() };
        let start = pad_to_blocks(&start, shape.out_channels);
        let packing = Packing { isa, groups, shape, in_block, depthwise };
        Ok(Self { packing, values, plain, excess, start, max_abs_sums })
    }

    /// Returns the largest possible magnitude of the sums of each output channel.
    pub fn max_abs_sums(&self) -> &[i32] {
        &self.max_abs_sums
    }

    /// Returns the number of output channels.
    pub fn out_channels(&self) -> usize {
        self.packing.shape.out_channels
    }

    /// Returns the size of the packed weights in bytes.
    pub fn size_bytes(&self) -> usize {
        self.values.len()
            + self.plain.len() * size_of::<f32>()
            + self.excess.iter().map(Vec::len).sum::<usize>() * size_of::<Excess>()
            + self.start.len() * size_of::<i32>()
    }
}

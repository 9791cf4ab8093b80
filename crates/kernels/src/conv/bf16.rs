//! Convolutions of floats that round both factors of every product to bf16 and accumulate in 32 bits.

use super::micro::{Core, Micro};
use super::pack::{Packing, group_blocks, pack_groups, pad_to_blocks};
use super::{ConvShape, FEW_CHANNELS, Finish, Target, WeightShape, adjacent_taps, check_window, windows};
use crate::norm::Moments;
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_isa, check_that};

/// Packed weights of a convolution, rounded to bf16, in the order of the CPU's instructions for bf16 products.
///
/// Order, outermost first: groups of output blocks, input blocks, taps, pairs of input channels, output channels, the two
/// values of a pair. The taps along W are completed to an even number with weights of 0.
#[derive(Debug, Clone)]
pub struct PackedConvBf16 {
    packing: Packing,
    values: Vec<u16>,
    bias: Vec<f32>,
    /// Successive taps that are one voxel apart along W.
    adjacent: usize,
}

impl PackedConvBf16 {
    /// Returns whether there are kernels for a convolution on this CPU: one without groups, of inputs in blocks of 16
    /// channels, with several taps, at most 8 of them along W, a stride along W of at most 2, and more than 4 output
    /// channels.
    pub fn supports(isa: Isa, of: &WeightShape, shape: &ConvShape, in_block: usize) -> bool {
        isa.multiplies_bf16()
            && of.groups == 1
            && of.taps > 1
            && of.out_channels > FEW_CHANNELS
            && in_block == CHANNEL_BLOCK
            && (1..=MAX_STRIDE).contains(&shape.stride[2])
            && adjacent_taps(shape) <= MAX_ADJACENT
    }

    /// Rounds and packs `weights` `[O][I][kd·kh·kw]` and an optional bias `[O]`, which stays in 32 bits.
    ///
    /// # Errors
    /// [`KernelError`] if the weights or the bias do not fit, or the convolution is not [supported](Self::supports).
    pub fn new(
        isa: Isa,
        weights: &[f32],
        bias: Option<&[f32]>,
        of: WeightShape,
        shape: &ConvShape,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        of.check(weights.len(), bias.map(<[f32]>::len))?;
        let is_supported = Self::supports(isa, &of, shape, in_block);
        check_that(is_supported, "convolution in bf16", "a supported shape and CPU", format!("{of:?}, {shape:?}"))?;
        let adjacent = adjacent_taps(shape);
        check_that(of.taps.is_multiple_of(adjacent), "kernel taps", of.taps, format!("{:?}", shape.kernel))?;
        let rounded: Vec<u16> = weights.iter().map(|w| half::bf16::from_f32(*w).to_bits()).collect();
        let blocks = group_blocks(&of, 2, in_block);
        let (groups, values) = pack_groups(&rounded, &of, blocks, false, |values, outputs, block, tap| {
            let lanes = outputs.len();
            for pair in (block * CHANNEL_BLOCK..(block + 1) * CHANNEL_BLOCK).step_by(2) {
                for o in outputs.clone() {
                    values.extend([pair, pair + 1].map(|i| of.weight(&rounded, o, i, tap)));
                }
            }
            if adjacent % 2 == 1 && (tap + 1) % adjacent == 0 {
                values.resize(values.len() + lanes * CHANNEL_BLOCK, 0);
            }
        });
        let bias = pad_to_blocks(bias.unwrap_or(&[]), of.out_channels);
        let packing = Packing { isa, groups, shape: of, in_block, depthwise: false };
        Ok(Self { packing, values, bias, adjacent })
    }

    /// Returns the number of output channels.
    pub fn out_channels(&self) -> usize {
        self.packing.shape.out_channels
    }

    /// Returns the size of the packed weights in bytes.
    pub fn size_bytes(&self) -> usize {
        size_of_val(self.values.as_slice()) + size_of_val(self.bias.as_slice())
    }

    /// Checks that the weights were packed for this kernel and stride.
    pub(super) fn check_shape(&self, shape: &ConvShape) -> Result<(), KernelError> {
        let fits = adjacent_taps(shape) == self.adjacent && (1..=MAX_STRIDE).contains(&shape.stride[2]);
        check_that(fits, "kernel and stride along W", format!("{} taps", self.adjacent), format!("{shape:?}"))
    }
}

/// Float convolution of one image like [`super::conv`], with products of bf16 values.
///
/// # Errors
/// Same as [`super::conv`], and [`KernelError`] if the weights were packed for another kernel along W.
#[allow(clippy::too_many_arguments)]
pub fn conv_bf16(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConvBf16,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    check_isa(weights.isa(), isa)?;
    check_window(in_layout, out_layout, shape, weights.shape().taps)?;
    weights.check_shape(shape)?;
    windows(isa, input, in_layout, weights, shape, finish, target, out_layout)
}

impl Core for PackedConvBf16 {
    type In = f32;
    type Weight = u16;
    type Sum = f32;
    const INTEGER: bool = false;
    const WHOLE_BLOCKS: bool = true;

    fn packing(&self) -> &Packing {
        &self.packing
    }
    fn stored_taps(&self) -> usize {
        self.shape().taps / self.adjacent * self.adjacent.next_multiple_of(2)
    }
    fn weights(&self) -> &[u16] {
        &self.values
    }
    fn start(&self) -> &[f32] {
        &self.bias
    }
    #[cfg(target_arch = "x86_64")]
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize {
        isa.bf16_unit().map_or(1, |unit| crate::bf16::widest(unit, blocks, three))
    }
    #[cfg(not(target_arch = "x86_64"))]
    fn widest(&self, _: Isa, _: usize, _: bool) -> usize {
        1
    }
    #[cfg(target_arch = "x86_64")]
    fn prepare(&self, isa: Isa, _: usize) {
        crate::bf16::prepare(isa);
    }
    #[cfg(target_arch = "x86_64")]
    fn release(&self, isa: Isa, _: usize) {
        crate::bf16::release(isa);
    }
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, f32, u16, f32>) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller guarantees that the pointers of `micro` reach `len` voxels and that `prepare` was called on
        // this thread.
        unsafe {
            crate::bf16::sums(isa, blocks, len, micro);
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (blocks, len, micro);
            unreachable!("{isa} has no products of bf16");
        }
    }
}

/// Largest number of taps along W.
#[cfg(target_arch = "x86_64")]
const MAX_ADJACENT: usize = crate::bf16::MAX_ADJACENT;
#[cfg(not(target_arch = "x86_64"))]
const MAX_ADJACENT: usize = 0;

/// Largest stride along W.
#[cfg(target_arch = "x86_64")]
const MAX_STRIDE: usize = crate::bf16::MAX_STRIDE;
#[cfg(not(target_arch = "x86_64"))]
const MAX_STRIDE: usize = 0;

#[cfg(test)]
mod tests {
    use super::super::{bounds::assert_in_bounds, window_plan};
    use super::*;
    use crate::IsaName;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn weights_without_those_that_complete_a_kernel_are_refused() {
        let shape = ConvShape { kernel: [1, 1, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 0, 1] };
        let of = WeightShape::dense(18, 18, 3);
        let layouts = [Blocked::new(18, [2, 3, 4], [0, 0, 1], 16), Blocked::new(18, [2, 3, 4], [0; 3], 16)];
        let plan = window_plan(&layouts[0], &layouts[1], &shape);
        let isas = IsaName::ALL.into_iter().filter_map(Isa::available).filter(|isa| isa.multiplies_bf16());
        let isas: Vec<Isa> = isas.collect();
        if isas.is_empty() {
            return cytoscope_testkit::skip("this machine has no instructions for bf16");
        }
        for isa in isas {
            let holds = |core: &PackedConvBf16| {
                let mut output = vec![0.0; layouts[1].len()];
                let target = Target::F32(&mut output);
                let check = || assert_in_bounds(isa, core, &plan, layouts[0].len(), &layouts[0], &target, &layouts[1]);
                catch_unwind(AssertUnwindSafe(check)).is_ok()
            };
            let whole = PackedConvBf16::new(isa, &vec![0.5; of.count()], None, of, &shape, 16).unwrap();
            let shorter = PackedConvBf16 { values: whole.values[1..].to_vec(), ..whole.clone() };
            // Two blocks of 16 channels each, and three taps with the one that completes them.
            assert_eq!(whole.values.len(), 32 * 32 * 4);
            assert!(holds(&whole) && !holds(&shorter), "{isa}");
        }
    }
}

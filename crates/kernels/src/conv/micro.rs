//! The arguments of micro-kernels, and which micro-kernels packed weights are multiplied with.

use super::pack::{Group, Packing};
use super::{PackedConv, PackedConvInt8, WeightShape, groups, portable};
use crate::Isa;
use crate::int8::pairs::Excess;
use crate::isa::Simd;

/// Arguments of a micro-kernel, which computes a run of output voxels along W for the blocks of one group. `X`, `W` and
/// `S` are the types of inputs, weights and sums.
pub(crate) struct Micro<'a, X, W, S> {
    /// The first input voxel of the run, at the first tap.
    pub input: *const X,
    /// Number of inputs that may be read from there.
    pub input_left: usize,
    /// Distance of the inputs of neighboring output voxels.
    pub in_step: usize,
    /// Values from one input block to the next.
    pub in_block_stride: usize,
    /// Number of input blocks that the group reads.
    pub in_blocks: usize,
    /// Channels that an input block stores: 16, 4 or 1.
    pub in_per_block: usize,
    /// Channels of the last of these input blocks that the image has; the others hold zeros.
    pub last_in_per_block: usize,
    /// Position of each tap, in values from `input`.
    pub taps: &'a [usize],
    /// Number of successive taps that are one voxel apart.
    pub adjacent: usize,
    /// First weight of the group, in the order in which [`PackedConv`], [`super::PackedConvBf16`] or [`PackedConvInt8`] stores
    /// them.
    pub weights: *const W,
    /// Weights that are multiplied in addition; see [`crate::int8::pairs`].
    pub excess: &'a [Excess],
    /// Whether the convolution is depthwise, with 16 weights per tap.
    pub depthwise: bool,
    /// Initial sum of each output channel.
    pub start: *const S,
    /// Output of the sums: 16 per voxel, `sum_block_stride` from block to block.
    pub sums: *mut S,
    /// Distance of the sums of neighboring output blocks.
    pub sum_block_stride: usize,
}

impl<X, W, S> Micro<'_, X, W, S> {
    /// Returns whether taps come in threes one voxel apart, and output voxels read inputs one voxel apart.
    #[inline(always)]
    pub(crate) fn three_in_a_row(&self) -> bool {
        self.adjacent == 3 && self.in_step == self.in_per_block
    }

    /// Returns the number of channels of an input block.
    #[inline(always)]
    pub(crate) fn channels(&self, block: usize) -> usize {
        if block + 1 == self.in_blocks { self.last_in_per_block } else { self.in_per_block }
    }
}

/// Voxels whose sums the AVX2 micro-kernels hold in registers.
pub(crate) const AVX2_VOXELS: usize = 6;

impl<X, W, S> Micro<'_, X, W, S> {
    /// Computes a run with `kernel`, in as few parts of at most `widest` voxels as possible, of nearly equal length.
    ///
    /// # Safety
    /// Input and sums must reach `len` voxels; `kernel` must only rely on those of its part.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn in_parts(&self, len: usize, widest: usize, kernel: impl Fn(usize, &Self)) {
        if len <= widest {
            return kernel(len, self);
        }
        let parts = len.div_ceil(widest);
        for part in 0..parts {
            let (first, end) = (part * len / parts, (part + 1) * len / parts);
            // SAFETY: `first < len`, and the caller guarantees that input and sums reach `len` voxels.
            let (input, sums) =
                unsafe { (self.input.add(first * self.in_step), self.sums.add(first * crate::CHANNEL_BLOCK)) };
            let input_left = self.input_left - first * self.in_step;
            kernel(end - first, &Self { input, input_left, sums, ..*self });
        }
    }
}

/// Packed weights with their micro-kernels.
pub(crate) trait Core: Sync {
    type In: Copy + Sync;
    type Weight;
    /// Type of the sums, 32 bits wide.
    type Sum;
    const INTEGER: bool;
    /// Whether weights are stored for all channels of an input block, also those that the last block lacks.
    const WHOLE_BLOCKS: bool;
    /// Returns how the weights are packed.
    fn packing(&self) -> &Packing;
    /// Returns the instruction set that the weights were packed for.
    fn isa(&self) -> Isa {
        self.packing().isa
    }
    fn groups(&self) -> &[Group] {
        &self.packing().groups
    }
    fn shape(&self) -> WeightShape {
        self.packing().shape
    }
    fn in_block(&self) -> usize {
        self.packing().in_block
    }
    /// Returns the number of taps whose weights are stored, with those that complete the kernel along W.
    fn stored_taps(&self) -> usize {
        self.shape().taps
    }
    fn depthwise(&self) -> bool {
        self.packing().depthwise
    }
    fn weights(&self) -> &[Self::Weight];
    /// Returns the weights of a group that are multiplied in addition.
    fn excess(&self, _group: &Group) -> &[Excess] {
        &[]
    }
    /// Returns the initial sum of each output channel, padded to whole blocks.
    fn start(&self) -> &[Self::Sum];
    /// Returns the longest run of voxels for a number of output blocks; `three` is [`Micro::three_in_a_row`].
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize;
    /// Returns how many times as long a run may be. Longer runs call the epilogue less often.
    fn most_parts(&self, _isa: Isa) -> usize {
        1
    }
    /// Called before the runs of a task, as `release` is called after them.
    fn prepare(&self, _isa: Isa, _adjacent: usize) {}
    fn release(&self, _isa: Isa, _adjacent: usize) {}
    /// Computes the sums of a run.
    ///
    /// # Safety
    /// Every pointer of `micro` must reach what its fields say for `len` voxels; `prepare` must have been called on
    /// this thread.
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, Self::In, Self::Weight, Self::Sum>);
    /// Called for the sums of a run, given as bits. Corrects those that infinite inputs of other groups have made NaN.
    fn separate(&self, _group: &Group, _run: &groups::Run<'_, Self::In>, _sums: &mut [i32]) {}
}

impl Core for PackedConv {
    type In = f32;
    type Weight = f32;
    type Sum = f32;
    const INTEGER: bool = false;
    const WHOLE_BLOCKS: bool = false;

    fn packing(&self) -> &Packing {
        &self.packing
    }
    fn weights(&self) -> &[f32] {
        &self.values
    }
    fn start(&self) -> &[f32] {
        &self.bias
    }
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize {
        match (isa.simd(), blocks) {
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, 2) if three => 12,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, 2) => 14,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, _) => 28,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx2, _) => AVX2_VOXELS,
            (Simd::Portable, _) => 8,
        }
    }
    fn most_parts(&self, isa: Isa) -> usize {
        match isa.simd() {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => 8,
            _ => 1,
        }
    }
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, f32, f32, f32>) {
        // SAFETY: holding `isa` proves that the CPU has the instruction set. The caller guarantees that the pointers of
        // `micro` reach `len` voxels.
        unsafe {
            if micro.depthwise {
                return super::depthwise::floats(isa, len, micro);
            }
            match isa.simd() {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => super::avx512::micro(blocks, len, micro),
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => micro.in_parts(len, AVX2_VOXELS, |len, part| super::avx2::micro(len, part)),
                Simd::Portable => portable::micro(blocks, len, micro),
            }
        }
    }
    fn separate(&self, group: &Group, run: &groups::Run<'_, f32>, sums: &mut [i32]) {
        if self.packing.shape.groups > 1 && !self.packing.depthwise {
            groups::separate(self, group, run, sums);
        }
    }
}

impl Core for PackedConvInt8 {
    type In = u8;
    type Weight = i8;
    type Sum = i32;
    const INTEGER: bool = true;
    const WHOLE_BLOCKS: bool = true;

    fn packing(&self) -> &Packing {
        &self.packing
    }
    fn weights(&self) -> &[i8] {
        &self.values
    }
    fn excess(&self, group: &Group) -> &[Excess] {
        self.excess.get(group.first_block).map_or(&[], Vec::as_slice)
    }
    fn start(&self) -> &[i32] {
        &self.start
    }
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize {
        crate::int8::widest(isa, blocks, three)
    }
    fn most_parts(&self, isa: Isa) -> usize {
        crate::int8::most_parts(isa)
    }
    fn prepare(&self, isa: Isa, adjacent: usize) {
        crate::int8::prepare(isa, adjacent * self.in_block());
    }
    fn release(&self, isa: Isa, adjacent: usize) {
        crate::int8::release(isa, adjacent * self.in_block());
    }
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, u8, i8, i32>) {
        // SAFETY: the caller guarantees that the pointers of `micro` reach `len` voxels and that `prepare` was called
        // on this thread.
        unsafe {
            if micro.depthwise {
                super::depthwise::bytes(isa, len, micro);
            } else {
                crate::int8::sums(isa, blocks, len, micro);
            }
        }
    }
}

//! Bounds that the micro-kernels rely on, asserted once per pass: they check no index themselves.

use super::drive::Plan;
use super::micro::Core;
use super::{Target, WeightShape};
use crate::int8::pairs::Excess;
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Panics unless every read of a pass lies in the input, the weights and the initial sums, and every write in the
/// output, at places that no other task writes. Public functions have returned errors for wrong arguments before, so a
/// panic is a defect of this crate. The counts of `plan` must be above 0.
pub(super) fn assert_in_bounds<C: Core>(
    isa: Isa,
    core: &C,
    plan: &Plan,
    input_len: usize,
    in_layout: &Blocked,
    target: &Target<'_>,
    out_layout: &Blocked,
) {
    assert!(core.isa() == isa, "weights packed for {} cannot be run by {isa}", core.isa());
    let shape = core.shape();
    assert!(
        input_len == in_layout.len()
            && in_layout.channels == shape.in_channels
            && in_layout.block == core.in_block()
            && (!core.depthwise() || in_layout.block == CHANNEL_BLOCK),
        "input does not fit the weights"
    );
    assert_taps(plan, shape, in_layout.block);
    assert_weights(core, in_layout.blocks());
    let read_end = last_read(core, plan, in_layout);
    assert!(read_end < input_len, "convolution reads value {read_end} of an input of {input_len}");
    assert_output(core, plan, target, out_layout);
}

/// Panics unless there is a tap for each weight, and adjacent taps are one voxel apart.
fn assert_taps(plan: &Plan, shape: WeightShape, voxel: usize) {
    let adjacent = plan.adjacent;
    let per_slice = plan.ring_taps.len();
    assert!(per_slice == 0 || per_slice == plan.geometry.counts[0], "taps of {per_slice} slices");
    for taps in plan.all_taps() {
        assert!(!taps.is_empty() && taps.len() == shape.taps, "taps do not fit the weights");
        assert!(
            adjacent > 0
                && taps.len().is_multiple_of(adjacent)
                && taps.chunks(adjacent).all(|own| own.windows(2).all(|pair| pair[1] == pair[0] + voxel)),
            "taps are not in rows of {adjacent}"
        );
    }
}

/// Panics unless each group has its weights and initial sums, and reads some of the `in_blocks` input blocks.
fn assert_weights<C: Core>(core: &C, in_blocks: usize) {
    for group in core.groups() {
        assert!(
            (1..=2).contains(&group.blocks)
                && (!core.depthwise() || group.blocks == 1)
                && group.in_blocks > 0
                && group.in_first + group.in_blocks <= in_blocks
                && group.at + weights_read(core, group.in_first, group.in_blocks, group.blocks) <= core.weights().len()
                && (group.first_block + group.blocks) * CHANNEL_BLOCK <= core.start().len(),
            "packed weights are incomplete"
        );
        let is_inside = |e: &Excess| {
            e.in_block < group.in_blocks
                && e.tap < core.shape().taps
                && e.quad < core.in_block() / 4
                && group.blocks == 1
        };
        assert!(core.excess(group).iter().all(is_inside), "excess weights belong to no input");
    }
}

/// Returns the number of weights that the kernels read for a group.
fn weights_read<C: Core>(core: &C, in_first: usize, in_blocks: usize, blocks: usize) -> usize {
    let (shape, in_block) = (core.shape(), core.in_block());
    if core.depthwise() {
        return shape.taps * CHANNEL_BLOCK;
    }
    let whole = in_blocks * in_block;
    let channels =
        if C::WHOLE_BLOCKS { whole } else { whole.min(shape.in_channels.saturating_sub(in_first * in_block)) };
    channels * core.stored_taps() * blocks * CHANNEL_BLOCK
}

/// Returns the index of the last input that a pass reads. Sums saturate, so that an overflow cannot hide a long reach.
fn last_read<C: Core>(core: &C, plan: &Plan, in_layout: &Blocked) -> usize {
    let geometry = &plan.geometry;
    let in_blocks = core.groups().iter().map(|group| group.in_first + group.in_blocks).max().unwrap_or(1);
    (0..3)
        .map(|axis| (geometry.counts[axis] - 1).saturating_mul(geometry.in_step[axis]))
        .fold(geometry.in_start, usize::saturating_add)
        .saturating_add((in_blocks - 1).saturating_mul(in_layout.block_stride()))
        .saturating_add(plan.all_taps().flatten().max().copied().unwrap_or(0))
        .saturating_add(in_layout.block - 1)
}

/// Panics unless all outputs lie in the image, inside its border, and no two steps of the pass write the same one.
fn assert_output<C: Core>(core: &C, plan: &Plan, target: &Target<'_>, out_layout: &Blocked) {
    let whole_blocks = matches!(target, Target::F16(_));
    assert!(
        target.len() == out_layout.len() && (!whole_blocks || out_layout.block == CHANNEL_BLOCK),
        "output does not fit its layout"
    );
    let blocks = core.groups().iter().map(|group| group.first_block + group.blocks).max().unwrap_or(0);
    let blocks_per_voxel = plan.fold.unwrap_or(blocks).max(1);
    assert!(blocks_per_voxel <= out_layout.channels.div_ceil(CHANNEL_BLOCK), "output has too few channels");
    // Number of adjacent output voxels that one step writes along D, H, W.
    let written = [1, 1, blocks.div_ceil(blocks_per_voxel)];
    let geometry = &plan.geometry;
    assert!(
        (0..3).all(|axis| {
            let last = (geometry.counts[axis] - 1).saturating_mul(geometry.out_stride[axis]);
            written[axis] <= geometry.out_stride[axis]
                && last.saturating_add(geometry.out_offset[axis]).saturating_add(written[axis]) <= out_layout.dims[axis]
        }),
        "convolution writes outside its output"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IsaName;
    use crate::conv::{ConvShape, PackedConv, PackedConvInt8, window_plan};
    use crate::int8::pairs::QUAD_WEIGHTS;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A convolution of 18 channels whose last read is the last value of its input, with the change that `break_it`
    /// makes to its plan and layouts. Returns whether the assertions hold.
    fn holds(break_it: impl Fn(&mut Plan, &mut [Blocked; 2])) -> bool {
        let shape = ConvShape { kernel: [1, 1, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0, 0, 1] };
        let of = WeightShape::dense(18, 18, 3);
        let mut layouts = [Blocked::new(18, [2, 3, 4], [0, 0, 1], 16), Blocked::new(18, [2, 3, 4], [0; 3], 16)];
        let lens = layouts.map(|layout| layout.len());
        let mut plan = window_plan(&layouts[0], &layouts[1], &shape);
        break_it(&mut plan, &mut layouts);
        let isa = Isa::detect();
        let core = PackedConv::new(isa, &vec![0.5; of.count()], None, of, 16).unwrap();
        let mut output = vec![0.0; lens[1]];
        let target = Target::F32(&mut output);
        let check = || assert_in_bounds(isa, &core, &plan, lens[0], &layouts[0], &target, &layouts[1]);
        catch_unwind(AssertUnwindSafe(check)).is_ok()
    }

    #[test]
    fn a_pass_that_leaves_its_buffers_is_refused() {
        assert!(holds(|_, _| ()));
        assert!(!holds(|plan, _| plan.geometry.in_start += 1));
        assert!(!holds(|plan, _| plan.geometry.counts[0] += 1));
        assert!(!holds(|plan, _| plan.geometry.in_step[1] += 1));
        assert!(!holds(|plan, _| plan.geometry.in_step[2] = usize::MAX));
        assert!(!holds(|plan, _| plan.geometry.out_offset[2] = 1));
        assert!(!holds(|plan, _| plan.geometry.out_stride[1] = 0));
        assert!(!holds(|plan, _| plan.fold = Some(1)));
        assert!(!holds(|plan, _| plan.taps[1] += 1));
        assert!(!holds(|plan, _| plan.taps.swap(0, 2)));
        assert!(!holds(|plan, _| plan.taps.truncate(2)));
        assert!(!holds(|plan, _| plan.adjacent = 2));
        // In a ring, each of the two output slices has its own taps.
        assert!(holds(|plan, _| plan.ring_taps = vec![plan.taps.clone(); 2]));
        assert!(!holds(|plan, _| plan.ring_taps = vec![plan.taps.clone(); 1]));
        assert!(!holds(|plan, _| {
            let beyond = plan.taps.iter().map(|tap| tap + 1).collect();
            plan.ring_taps = vec![plan.taps.clone(), beyond];
        }));
        assert!(!holds(|_, layouts| layouts[0].channels = 33));
        assert!(!holds(|_, layouts| layouts[0].dims[0] = 1));
        assert!(!holds(|_, layouts| layouts[1].dims[0] = 1));
    }

    #[test]
    fn excess_weights_that_read_outside_the_input_are_refused() {
        // Two input blocks of 16 channels and three taps; one block of output channels.
        let isa = Isa::detect();
        let of = WeightShape::dense(16, 32, 3);
        let shape = ConvShape { kernel: [1, 1, 3], stride: [1; 3], dilation: [1; 3], pad_before: [0; 3] };
        let layouts = [Blocked::new(32, [1, 1, 6], [0; 3], 16), Blocked::new(16, [1, 1, 4], [0; 3], 16)];
        let plan = window_plan(&layouts[0], &layouts[1], &shape);
        let holds = |[in_block, tap, quad]: [usize; 3]| {
            let mut core = PackedConvInt8::new(isa, &vec![1; of.count()], 0, of, 16).unwrap();
            core.excess = vec![vec![Excess { in_block, tap, quad, weights: [0; QUAD_WEIGHTS] }]];
            let mut output = vec![0; layouts[1].len()];
            let target = Target::U8(&mut output, crate::conv::Quantizer::new(1.0, 0));
            let check = || assert_in_bounds(isa, &core, &plan, layouts[0].len(), &layouts[0], &target, &layouts[1]);
            catch_unwind(AssertUnwindSafe(check)).is_ok()
        };
        assert!(holds([0, 0, 0]) && holds([1, 2, 3]));
        assert!(!holds([2, 0, 0]) && !holds([0, 3, 0]) && !holds([0, 0, 4]));
    }

    #[test]
    fn weights_for_another_instruction_set_are_refused() {
        let isas: Vec<Isa> = IsaName::ALL.into_iter().filter_map(Isa::available).collect();
        if isas.len() < 2 {
            return cytoscope_testkit::skip("this machine supports one instruction set only");
        }
        let of = WeightShape::dense(1, 1, 1);
        let layout = Blocked::new(1, [1; 3], [0; 3], 1);
        let shape = ConvShape { kernel: [1; 3], stride: [1; 3], dilation: [1; 3], pad_before: [0; 3] };
        let plan = window_plan(&layout, &layout, &shape);
        for packed in &isas {
            let core = PackedConv::new(*packed, &[1.0], None, of, 1).unwrap();
            for running in &isas {
                let mut output = [0.0];
                let target = Target::F32(&mut output);
                let check = || assert_in_bounds(*running, &core, &plan, 1, &layout, &target, &layout);
                assert_eq!(catch_unwind(AssertUnwindSafe(check)).is_ok(), packed == running);
            }
        }
    }
}

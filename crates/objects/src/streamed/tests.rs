//! Streamed segmentation: the same labels as of whole maps, and memory that does not grow with the number of slices.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::{IsolatedOptions, OversizedOptions, TissueOptions, segment_in_place};
use proptest::prelude::*;

/// Segments a map slice by slice.
fn streamed(map: &[f32], seeds: Option<&[f32]>, shape: [usize; 3], options: &SegmentOptions) -> (Vec<u32>, u32) {
    let (plane, voxel_um) = (shape[1] * shape[2], [1.0, 0.5, 0.5]);
    let mut segmentation = StreamedSegmentation::new(shape, seeds.is_some(), voxel_um, options).unwrap();
    let (mut labels, mut slice) = (Vec::new(), vec![9; plane]);
    let maps: Vec<_> = map.chunks_exact(plane).zip(seeds.unwrap_or(map).chunks_exact(plane)).collect();
    let needs = segmentation.needs();
    for (foreground, _) in &maps {
        segmentation.add_foreground(foreground).unwrap();
        while let Some((map, seeds)) =
            maps.get(segmentation.added()).filter(|_| segmentation.added() < segmentation.ready())
        {
            let (map, seeds) = (if needs.map { map } else { &[][..] }, if needs.seeds { seeds } else { &[][..] });
            segmentation.add_slice(map, seeds).unwrap();
            while segmentation.take_slice(&mut slice) {
                labels.extend_from_slice(&slice);
            }
        }
    }
    let (largest, order) = segmentation.finish();
    let mut numbers = vec![0; largest as usize + 1];
    (1..).zip(&order).for_each(|(number, label)| numbers[*label as usize] = number);
    labels.iter_mut().for_each(|label| *label = numbers[*label as usize]);
    (labels, order.len() as u32)
}

proptest! {
    #[test]
    fn slice_by_slice_is_segmented_as_the_whole_map(
        values in prop::collection::vec(0.0f32..1.0, 2 * 9 * 8 * 10),
        height in 0usize..6,
        has_seeds in any::<bool>(),
        min_peak in prop::sample::select(vec![0.0f64, 0.9]),
        min_fill in prop::option::of(0.2f64..0.6),
        min_mean in prop::option::of(0.6f64..0.9),
        seed_share in prop::option::of(0.0f64..0.9),
        max_neck in prop::option::of(0.1f64..1.2),
    ) {
        let shape = [9, 8, 10];
        let (map, seeds) = values.split_at(9 * 8 * 10);
        let tissue = min_fill.map(|min_fill| TissueOptions {
            min_fill,
            window_um: 3.0,
            height_smooth_um: 0.3,
            seed_height: 0.05,
            outline: Some(0.7),
        });
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.55),
            height: [
                None,
                Some(Height::Distance),
                Some(Height::Map),
                Some(Height::Seeds),
                Some(Height::DistanceTimesMap),
                Some(Height::DistancePlusSeeds { weight_um: 1.0 }),
            ][height],
            seed_height: 0.1,
            min_volume_um3: if min_mean.is_some() { 2.0 } else { 0.5 },
            min_peak,
            tissue,
            isolated: min_mean.map(|min_mean| IsolatedOptions { volume_share: 0.2, min_mean }),
            oversized: seed_share.map(|seed_share| OversizedOptions {
                min_volume_um3: 4.0,
                part_share: 0.2,
                seed_share,
                max_neck,
            }),
            ..SegmentOptions::default()
        };
        let seeds = has_seeds.then_some(seeds);
        let whole = segment_in_place(&mut map.to_vec(), seeds, shape, [1.0, 0.5, 0.5], &options).unwrap();
        prop_assert_eq!(streamed(map, seeds, shape, &options), whole);
    }
}

/// Balls of 5 voxels across, in every eighth slice at another place of a plane of 64² voxels.
fn ball(z: usize, i: usize) -> f32 {
    let (center, around) = (z / 8, [z % 8, i / 64, i % 64]);
    let at = [3, center * 13 % 56 + 4, center * 29 % 56 + 4];
    let square: usize = (0..3).map(|a| around[a].abs_diff(at[a]).pow(2)).sum();
    if square <= 6 { 1.0 } else { 0.0 }
}

#[test]
fn memory_does_not_grow_with_the_number_of_slices() {
    for height in [None, Some(Height::Map)] {
        let tissue = Some(TissueOptions {
            min_fill: 0.4,
            window_um: 15.0,
            height_smooth_um: 0.0,
            seed_height: 0.1,
            outline: None,
        });
        let (threshold, min_volume_um3) = (Threshold::Fixed(0.5), 1.0);
        let options = SegmentOptions { threshold, height, min_volume_um3, tissue, ..SegmentOptions::default() };
        let most_of = |depth: usize| {
            let shape = [depth, 64, 64];
            let mut segmentation = StreamedSegmentation::new(shape, false, [1.0; 3], &options).unwrap();
            let (mut labels, mut most_bytes, mut taken) = (vec![0; 64 * 64], 0, 0);
            let slice = |z: usize| (0..64 * 64).map(|i| ball(z, i)).collect::<Vec<f32>>();
            for z in 0..depth {
                segmentation.add_foreground(&slice(z)).unwrap();
                while segmentation.added() < segmentation.ready() {
                    segmentation.add_slice(&slice(segmentation.added()), &[]).unwrap();
                    taken += (0..).take_while(|_| segmentation.take_slice(&mut labels)).count();
                }
                most_bytes = most_bytes.max(segmentation.needed_bytes());
            }
            assert_eq!((taken, segmentation.finish().1.len()), (depth, depth / 8));
            most_bytes
        };
        let [short, long] = [128, 1024].map(most_of);
        assert!(long <= short + short / 4, "{long} bytes for 1,024 slices, {short} for 128");
    }
}

#[test]
fn a_component_of_the_whole_stack_needs_memory_for_all_of_it() {
    let (threshold, min_volume_um3) = (Threshold::Fixed(0.5), 0.0);
    let height = Some(Height::Map);
    let options = SegmentOptions { threshold, height, min_volume_um3, ..SegmentOptions::default() };
    let needed = |inside: &dyn Fn(usize) -> bool| {
        let mut segmentation = StreamedSegmentation::new([64, 8, 8], false, [1.0; 3], &options).unwrap();
        (0..64).for_each(|z| segmentation.add_foreground(&[if inside(z) { 1.0 } else { 0.0 }; 64]).unwrap());
        segmentation.needed_bytes()
    };
    let (whole, parts) = (needed(&|_| true), needed(&|z| z % 4 < 2));
    // The largest box has 64 slices instead of 4.
    assert!(whole - parts >= 60 * 64 * (SPLIT_BYTES + 4), "{whole} and {parts} bytes");
}

#[test]
fn slices_that_are_not_ready_are_refused() {
    let threshold = Threshold::Fixed(0.5);
    let options = SegmentOptions { threshold, height: Some(Height::Map), ..SegmentOptions::default() };
    let mut segmentation = StreamedSegmentation::new([3, 2, 2], false, [1.0; 3], &options).unwrap();
    assert!(segmentation.add_slice(&[1.0; 4], &[]).is_err());
    segmentation.add_foreground(&[1.0; 4]).unwrap();
    assert!(segmentation.add_slice(&[1.0; 4], &[]).is_err(), "the component is not complete");
    assert!(segmentation.add_foreground(&[1.0; 5]).is_err());
    let otsu = SegmentOptions { threshold: Threshold::Otsu, ..options };
    assert!(StreamedSegmentation::new([3, 2, 2], false, [1.0; 3], &otsu).is_err());
}

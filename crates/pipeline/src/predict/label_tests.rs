//! Tests of the segmentation of maps in parts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
use super::*;
use crate::measure;
use cytoscope_objects::IsolatedOptions;
use cytoscope_volume::{Array, DType, VoxelSize};
use std::collections::BTreeSet;
use std::path::Path;

/// A map in memory.
struct Map {
    shape: [usize; 3],
    values: Vec<f32>,
}

impl MapSource for Map {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&mut self, _context: &Context, _channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let plane = self.shape[1] * self.shape[2];
        Ok(self.values[z.start * plane..z.end * plane].to_vec())
    }
}

#[test]
fn an_object_is_whole_although_its_parts_in_slabs_are_small() {
    // A box of 4 × 3 × 3 voxels, which slabs of 4 slices divide.
    let (context, shape) = (Context::default(), [8, 5, 5]);
    let inside = |i: usize| (2..6).contains(&(i / 25)) && (1..4).contains(&(i / 5 % 5)) && (1..4).contains(&(i % 5));
    let mut map = Map { shape, values: (0..200).map(|i| if inside(i) { 1.0 } else { 0.0 }).collect() };
    let options = SegmentOptions {
        threshold: Threshold::Fixed(0.5),
        fill_holes: false,
        height: None,
        min_volume_um3: 30.0,
        ..SegmentOptions::default()
    };
    let settings = settings(&options);
    for slab in [4, 8] {
        let mut labels = label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, slab).unwrap();
        labels.filter_objects(&context, 30, false).unwrap();
        assert_eq!(labels.note.is_some(), slab == 4);
        let expected: Vec<u32> = (0..200).map(|i| u32::from(inside(i))).collect();
        assert_eq!(labels.all_slices(&context).unwrap(), expected, "slabs of {slab} slices");
    }
}

#[test]
fn small_isolated_objects_are_kept_where_the_whole_stack_is_known() {
    // Boxes of 2 × 3 × 2 voxels, one of them at the border, and one of 4 × 3 × 3 voxels.
    let (context, shape) = (Context::default(), [8, 5, 15]);
    let inside = |i: usize| match (i / 75, i / 15 % 5, i % 15) {
        (3..5, 1..4, 0..2) => 1,
        (3..5, 1..4, 4..6) => 2,
        (2..6, 1..4, 9..12) => 3,
        _ => 0,
    };
    let mut map = Map { shape, values: (0..600).map(|i| if inside(i) > 0 { 0.9 } else { 0.0 }).collect() };
    for height in [None, Some(Height::Distance)] {
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height,
            height_smooth_um: 0.0,
            min_volume_um3: 30.0,
            isolated: Some(IsolatedOptions { volume_share: 0.3, min_mean: 0.8 }),
            ..SegmentOptions::default()
        };
        let settings = settings(&options);
        let objects = |mut labels: Labels| {
            labels.filter_objects(&context, 30, false).unwrap();
            let found = labels.all_slices(&context).unwrap().into_iter().enumerate().filter(|(_, label)| *label > 0);
            (found.map(|(i, _)| inside(i)).collect::<BTreeSet<_>>(), labels.note)
        };
        let whole = label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, 8).unwrap();
        assert_eq!(objects(whole), ([1, 2, 3].into(), None), "height {height:?}");
        let parts = label_slice_by_slice(&context, &mut map, &settings, Scratch::Memory, 2).unwrap().unwrap();
        assert_eq!(objects(parts), ([1, 2, 3].into(), None), "height {height:?}");
        let slabs = label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, 4).unwrap();
        let (found, note) = objects(slabs);
        assert_eq!(found, [3].into(), "height {height:?}");
        assert!(note.is_some_and(|note| note.contains("and small objects")), "height {height:?}");
    }
}

#[test]
fn labels_of_slabs_that_have_no_voxels_are_not_counted() {
    let context = Context::default();
    let mut spool = Spool::new(Scratch::Memory, 4).unwrap();
    // The next slab has replaced all voxels of label 2.
    spool.write(0, &[1u32, 0, 3, 3]).unwrap();
    let mut labels = Labels { has_small: true, ..Labels::new(spool, [1, 2, 2], 3, &[1, 2, 3]) };
    labels.filter_objects(&context, 0, false).unwrap();
    assert_eq!((labels.count, labels.all_slices(&context).unwrap()), (2, vec![1, 0, 2, 2]));
}

#[test]
fn slabs_overlap_however_large_a_slice_is() {
    for edge in [16, 2048, 2897, 4096, 20_000] {
        let shape = [100, edge, edge];
        let slab = slab_slices(shape);
        assert!(slab >= MIN_SLAB_SLICES);
        for wanted in [0.1, 2.5, 1e9] {
            let overlap = overlap_slices(slab, wanted);
            assert!((1..slab).contains(&overlap), "{overlap} of {slab} slices of {edge}² voxels");
        }
        // Map, seeds and labels of a slab.
        let held = (slab.min(shape[0]) * edge * edge * 3 * 4) as u64;
        assert!(peak_bytes(shape, 0, 0) >= held, "{edge}² voxels");
        // Many channels are not held at once, but some are.
        let measured_bytes = |channels| measure::slab_bytes(shape, channels, DType::U16);
        let peaks = [0, 4, 60].map(|channels| peak_bytes(shape, 0, measured_bytes(channels)));
        assert!(peaks[1] - (4 * edge * edge * 4) as u64 >= 64 << 20, "{edge}² voxels");
        assert!(peaks[0] <= peaks[1] && peaks[1] == peaks[2]);
    }
}

/// Settings for a map of voxels of 1 µm.
fn settings(options: &SegmentOptions) -> LabelSettings<'_> {
    let (channel, seed_channel, streamed_bytes) = (0, 0, MAX_STREAMED_BYTES);
    LabelSettings { channel, seed_channel, voxel_um: [1.0; 3], options, overlap_um: 2.0, streamed_bytes }
}

#[test]
fn an_object_keeps_its_dim_parts_in_other_slabs() {
    // A column through all slabs, which is bright only in the first slice, and a dim one beside it.
    let (context, shape) = (Context::default(), [12, 3, 7]);
    let value = |i: usize| match (i / 21, i / 7 % 3, i % 7) {
        (0, 1, 1) => 0.95,
        (_, 1, 1 | 5) => 0.6,
        _ => 0.0,
    };
    let mut map = Map { shape, values: (0..252).map(value).collect() };
    for height in [None, Some(Height::Distance)] {
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height,
            min_volume_um3: 0.0,
            min_peak: 0.9,
            ..SegmentOptions::default()
        };
        let expected: Vec<u32> = (0..252).map(|i| u32::from(i / 7 % 3 == 1 && i % 7 == 1)).collect();
        for slab in [4, 12] {
            let mut labels =
                label_in_slabs(&context, &mut map, &settings(&options), Scratch::Memory, None, slab).unwrap();
            labels.filter_objects(&context, 0, false).unwrap();
            assert_eq!(labels.all_slices(&context).unwrap(), expected, "slabs of {slab} slices");
        }
    }
}

#[test]
fn a_stack_read_in_parts_is_segmented_as_at_once() {
    // Balls of different sizes and peaks, some of which touch.
    let (context, shape) = (Context::default(), [30, 40, 50]);
    let balls: Vec<[f64; 5]> = (0..24_i32)
        .map(f64::from)
        .map(|i| [i * 7.3 % 30.0, i * 11.7 % 40.0, i * 17.9 % 50.0, 3.0 + i % 5.0, 0.6 + 0.4 * (i * 0.37 % 1.0)])
        .collect();
    let value = |i: usize| {
        let at = [i / 2000, i / 50 % 40, i % 50].map(|v| v as f64);
        let ball_value = |[z, y, x, radius, peak]: &[f64; 5]| {
            let square: f64 = [z, y, x].into_iter().zip(at).map(|(center, at)| (center - at).powi(2)).sum();
            peak * (1.5 - square.sqrt() / radius).clamp(0.0, 1.0)
        };
        balls.iter().map(ball_value).fold(0.0, f64::max) as f32
    };
    let mut map = Map { shape, values: (0..60_000).map(value).collect() };
    for height in [None, Some(Height::Distance), Some(Height::Map)] {
        let options = SegmentOptions { smooth_um: 0.8, height, min_peak: 0.7, ..SegmentOptions::default() };
        let settings = settings(&options);
        let all = |mut labels: Labels| {
            labels.filter_objects(&context, 20, false).unwrap();
            (labels.count, labels.all_slices(&context).unwrap())
        };
        let whole = label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, 30).unwrap();
        let whole = all(whole);
        assert!(whole.0 >= 3, "{} objects", whole.0);
        for step in [1, 4, 30] {
            let parts = label_slice_by_slice(&context, &mut map, &settings, Scratch::Memory, step).unwrap();
            assert_eq!(all(parts.unwrap()), whole, "parts of {step} slices, height {height:?}");
        }
    }
}

#[test]
fn too_much_memory_is_refused() {
    let (context, shape) = (Context::default(), [4, 5, 5]);
    let mut map = Map { shape, values: vec![1.0; 100] };
    let options = SegmentOptions { threshold: Threshold::Fixed(0.5), ..SegmentOptions::default() };
    for (streamed_bytes, fits) in [(MAX_STREAMED_BYTES, true), (1 << 10, false)] {
        let settings = LabelSettings { streamed_bytes, ..settings(&options) };
        let found = label_slice_by_slice(&context, &mut map, &settings, Scratch::Memory, 2).unwrap();
        assert_eq!(found.is_ok(), fits, "{streamed_bytes} bytes");
    }
    // Smoothing reads no more slices than the stack has, however far it reaches.
    let options = SegmentOptions { smooth_um: 5.0, height: None, ..options };
    let settings = LabelSettings { streamed_bytes: 6000, ..settings(&options) };
    let found = label_slice_by_slice(&context, &mut map, &settings, Scratch::Memory, 2).unwrap();
    assert!(found.is_ok());
}

#[test]
fn the_threshold_is_known_if_slice_by_slice_takes_too_much_memory() {
    let (context, shape) = (Context::default(), [4, 5, 5]);
    let value = |i: usize| if i.is_multiple_of(5) { 0.1 } else { 0.9 };
    let mut map = Map { shape, values: (0..100).map(value).collect() };
    let options = SegmentOptions::default();
    assert_eq!(options.threshold, Threshold::Otsu);
    let settings = LabelSettings { streamed_bytes: 1 << 10, ..settings(&options) };
    let given_up = label_slice_by_slice(&context, &mut map, &settings, Scratch::Memory, 2).unwrap();
    let Err(Threshold::Fixed(level)) = given_up else { panic!("no threshold is known") };
    assert!((0.1..0.9).contains(&level), "{level}");
    // Slabs with this threshold have the labels of slabs that find it themselves.
    let known = SegmentOptions { threshold: Threshold::Fixed(level), ..options.clone() };
    let [own, known] = [&options, &known].map(|options| {
        let settings = LabelSettings { options, ..settings };
        label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, 3).unwrap().all_slices(&context).unwrap()
    });
    assert!(own == known && own.contains(&1));
}

/// A map with two columns that meet in the last slice only.
struct Columns;

const COLUMNS_SHAPE: [usize; 3] = [20, 1024, 1024];

impl MapSource for Columns {
    fn shape(&self) -> [usize; 3] {
        COLUMNS_SHAPE
    }

    fn read(&mut self, _context: &Context, _channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let [depth, ny, nx] = COLUMNS_SHAPE;
        let mut values = vec![0.0; z.len() * ny * nx];
        for (slice, z) in values.chunks_exact_mut(ny * nx).zip(z) {
            let row = &mut slice[5 * nx..6 * nx];
            if z + 1 == depth {
                row[3..12].fill(1.0);
            }
            row[3..5].fill(1.0);
            row[10..12].fill(1.0);
        }
        Ok(values)
    }
}

#[test]
fn columns_that_meet_beyond_a_slab_are_one_object() {
    let (context, [depth, _, nx]) = (Context::default(), COLUMNS_SHAPE);
    assert!(slab_slices(COLUMNS_SHAPE) < depth);
    let options = SegmentOptions {
        threshold: Threshold::Fixed(0.5),
        fill_holes: false,
        height: None,
        ..SegmentOptions::default()
    };
    let mut labels = label(&context, &mut Columns, &settings(&options), Scratch::Memory, None).unwrap();
    labels.filter_objects(&context, 20, false).unwrap();
    let mut slice = Vec::new();
    labels.slice(0, &mut slice).unwrap();
    assert_eq!((labels.count, slice[5 * nx + 3], slice[5 * nx + 10], labels.note), (1, 1, 1, None));
}

#[test]
fn all_channels_are_measured_however_many_there_are() {
    let (context, shape, count): (Context, [usize; 3], usize) = (Context::default(), [3, 4, 5], 9);
    let plane = shape[1] * shape[2];
    let values: Vec<f32> = (0..count * shape[0] * plane).map(|i| (i * 37 % 101) as f32).collect();
    let array = Array::new("CZYX".parse().unwrap(), [&[count][..], &shape].concat(), values.clone()).unwrap();
    let image = cytoscope_formats::image_in_memory(Path::new("a stack"), array, VoxelSize::default()).unwrap();
    let stack = Stack::new(&image, 0);
    let stored: Vec<u32> = (0..shape[0] * plane).map(|i| (i as u32 / 7) % 3).collect();
    let names: Vec<String> = (0..count).map(|channel| format!("stain {channel}")).collect();
    let mut spool = Spool::new(Scratch::Memory, plane).unwrap();
    spool.write(0, &stored).unwrap();
    let channels: Vec<usize> = (0..count).collect();
    let measured = MeasuredStack {
        stack: &stack,
        channels: &channels,
        channel_names: names.clone(),
        voxel_um: [1.0; 3],
        measure: true,
    };
    let mut taken = Vec::new();
    let rows = Labels::new(spool, shape, 2, &[1, 2])
        .finish(&context, measured, |slice| {
            taken.extend_from_slice(slice);
            Ok(())
        })
        .unwrap();
    assert_eq!(taken, stored);
    let mut expected = Measurer::new([1.0; 3], [shape[1], shape[2]], names);
    for (z, labels) in stored.chunks(plane).enumerate() {
        let channel_slice = |channel: &usize| &values[(channel * shape[0] + z) * plane..][..plane];
        expected.add_slice(labels, &channels.iter().map(channel_slice).collect::<Vec<&[f32]>>());
    }
    assert_eq!(rows, expected.finish());
}

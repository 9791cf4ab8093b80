//! A pass gives the values of the untiled network, with and without bands and threads, and when it is continued.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use super::super::label::{LabelSettings, label};
use super::super::live::{LiveSink, LiveVolume};
use super::super::output_check::OutputCheck;
use super::super::pass_plan::pass_bands;
use super::super::prediction::Prediction;
use super::super::test_common::{noise, package};
use super::*;
use crate::slice_statistics::Chains;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use crate::{ProgressStage, ProgressUnit};
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_engine::{Band, CompileOptions, DeviceId, Engine, Precision, RollingPlan};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Graph;
use cytoscope_objects::{Foreground, Height, SegmentOptions, Threshold};
use cytoscope_profile::Recorder;
use cytoscope_volume::tile::{Span, crop_spans};
use cytoscope_volume::{Array, Axes, VoxelSize};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Z, Y, X of the volume, and the size that the network accepts.
const SHAPE: [usize; 3] = [16, 59, 7];
const SIZE: [usize; 3] = [16, 60, 8];

fn network() -> Graph {
    let config = UNet3d { filters: vec![16, 16], strides: vec![[1, 2, 2]], convs_per_block: 1, ..UNet3d::default() };
    unet3d(&config, &Weights::Random { seed: 1 }).unwrap()
}

/// Plans a pass over the slices from `first_z` on.
fn plan_from(graph: &Graph, budget_bytes: Option<u64>, first_z: usize) -> Option<Box<dyn RollingPlan>> {
    let options = CompileOptions { memory_budget_bytes: budget_bytes, threads: 2, ..CompileOptions::default() };
    CpuEngine::new().plan_rolling(graph, &[1, 1, SIZE[0] - first_z, SIZE[1], SIZE[2]], &options).ok()
}

fn plan(graph: &Graph, budget_bytes: Option<u64>) -> Option<Box<dyn RollingPlan>> {
    plan_from(graph, budget_bytes, 0)
}

fn model() -> Model {
    Model::from_package(package(&network()).in_memory(Path::new("a test")).unwrap()).unwrap()
}

/// The columns of a volume that passes in whole rows.
fn whole_rows(shape: [usize; 3], size: [usize; 3]) -> Vec<Span> {
    vec![Span { start: 0, len: size[2], keep_start: 0, keep_len: shape[2] }]
}

/// How a volume is passed.
#[derive(Clone, Copy)]
struct Setup<'a> {
    /// Z, Y, X of the volume, and the size that the network accepts.
    shape: [usize; 3],
    size: [usize; 3],
    /// Bands of columns; none if whole rows pass.
    columns: &'a [Span],
    /// Whether the stages run in threads.
    overlaps: bool,
    /// The first slice that passes.
    first_z: usize,
    /// The values of the slices that are already predicted.
    finished: &'a [f32],
    /// Receives finished slices, if present.
    sink: Option<&'a dyn LiveSink>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        let (shape, size) = (SHAPE, SIZE);
        Self { shape, size, columns: &[], overlaps: false, first_z: 0, finished: &[], sink: None }
    }
}

/// Passes a volume and returns the prediction.
fn run(context: &Context, plan: Box<dyn RollingPlan>, values: &[f32], overlaps: bool) -> Result<Vec<f32>, JobError> {
    run_with(context, plan, values, Setup { overlaps, ..Setup::default() })
}

/// Passes a volume in this way.
fn run_with(
    context: &Context,
    plan: Box<dyn RollingPlan>,
    values: &[f32],
    setup: Setup<'_>,
) -> Result<Vec<f32>, JobError> {
    let mut prediction = predict_with(context, plan, values, setup, |_| ())?;
    prediction.read(context, 0, 0..setup.shape[0])
}

/// Like [`run_with`], but returns the prediction, which `prepare` changes before the pass.
fn predict_with(
    context: &Context,
    plan: Box<dyn RollingPlan>,
    values: &[f32],
    Setup { shape, size, columns, overlaps, first_z, finished, sink }: Setup<'_>,
    prepare: impl FnOnce(&mut Prediction),
) -> Result<Prediction, JobError> {
    let model = model();
    let array = Array::new(Axes::zyx(), shape.to_vec(), values.to_vec()).unwrap();
    let image = cytoscope_formats::image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let stack = Stack::new(&image, 0);
    let mut view = ModelView::new(&stack, &[0], Chains::Stack(vec![Vec::new()]), shape);
    let mut spool = Spool::new(Scratch::Memory, shape[1] * shape[2]).unwrap();
    spool.write(0, finished).unwrap();
    let finished = finished.len() / (shape[1] * shape[2]);
    let mut prediction = Prediction::new(spool, 1, shape, shape);
    prediction.continue_after(finished);
    prepare(&mut prediction);
    let whole = whole_rows(shape, size);
    let columns = if columns.is_empty() { whole.as_slice() } else { columns };
    let (slab_slices, bands, macs) = (plan.slab_planes(), pass_bands(plan.bands(), columns), plan.macs());
    let mut session = plan.start().unwrap();
    let check = OutputCheck::new(DeviceId::Cpu, Precision::F32);
    let store =
        Store { context, prediction: &mut prediction, softmax: false, maps: None, kept: None, ends_soon: true, check };
    let meter = context.meter(ProgressStage::Predict, shape.iter().product::<usize>() as u64, ProgressUnit::Voxels);
    let (model, bands) = (&model, bands.as_slice());
    let volume = LiveVolume { input: Path::new("a volume"), time: 0, channels: 1, shape_zyx: shape };
    let live = sink.map(|sink| Live::begin(sink, &volume, false, &[]));
    let mut emitter = Emitter { model, first_z, finished, bands, shape, store, meter, live };
    let session = &mut *session;
    let mut pass = Pass { context, model, size, first_z, session, bands, slab_slices, macs, overlaps };
    pass.run(&mut view, &mut emitter)?;
    Ok(prediction)
}

/// The untiled network on the volume, which is extended by its last voxels.
fn untiled(values: &[f32]) -> Vec<f32> {
    untiled_of(values, SHAPE, SIZE)
}

/// Like [`untiled`], on a volume of this shape, and the size that the network accepts.
fn untiled_of(values: &[f32], shape: [usize; 3], size: [usize; 3]) -> Vec<f32> {
    let mut extended = Vec::new();
    for z in 0..size[0] {
        for y in 0..size[1] {
            for x in 0..size[2] {
                let at = (z * shape[1] + y.min(shape[1] - 1)) * shape[2] + x.min(shape[2] - 1);
                extended.push(values[at]);
            }
        }
    }
    let extended_shape = [&[1, 1][..], &size].concat();
    let mut session = CpuEngine::new()
        .compile(&network(), std::slice::from_ref(&extended_shape), &CompileOptions::default())
        .unwrap();
    let made = session.run(&[Tensor::new(extended_shape, extended).unwrap()]).unwrap().remove(0).into_f32().unwrap();
    let slices = made.chunks_exact(size[1] * size[2]);
    let rows = slices.flat_map(|slice| slice.chunks_exact(size[2]).take(shape[1]));
    rows.flat_map(|row| row[..shape[2]].to_vec()).collect()
}

#[test]
fn a_pass_gives_the_values_of_the_untiled_network_with_bands_and_threads() {
    let values = noise(5, SHAPE.iter().product());
    let (graph, expected) = (network(), untiled(&values));
    let whole = plan(&graph, None).unwrap();
    assert_eq!(whole.bands().len(), 1);
    let bytes = whole.memory_bytes();
    let least = (1..20).filter_map(|n| plan(&graph, Some(bytes * n / 20))).find(|plan| plan.bands().len() > 1);
    let budget_bytes = least.map(|plan| plan.memory_bytes());
    assert!(budget_bytes.is_some(), "no budget leads to bands");
    for budget_bytes in [None, budget_bytes] {
        for overlaps in [false, true] {
            let plan = plan(&graph, budget_bytes).unwrap();
            assert_eq!(plan.bands().len() > 1, budget_bytes.is_some());
            let got = run(&Context::default(), plan, &values, overlaps).unwrap();
            assert!(got == expected, "budget {budget_bytes:?}, threads: {overlaps}");
        }
    }
}

#[test]
fn a_pass_in_bands_of_rows_and_columns_gives_the_values_of_the_untiled_network() {
    let (shape, size, model): ([usize; 3], [usize; 3], Model) = ([9, 79, 79], [9, 80, 80], model());
    let values = noise(11, shape.iter().product());
    let (graph, expected) = (network(), untiled_of(&values, shape, size));
    let width = 2 * model.reach.unwrap()[2] + 16;
    assert!(width < size[2], "bands of {width} columns are not narrower than the volume");
    let columns = crop_spans(shape[2], width, model.reach.unwrap()[2], model.step[2]).unwrap();
    assert!(columns.len() > 1);
    let plan = |budget_bytes| {
        let options = CompileOptions { memory_budget_bytes: budget_bytes, threads: 2, ..CompileOptions::default() };
        CpuEngine::new().plan_rolling(&graph, &[1, 1, size[0], size[1], columns[0].len], &options).ok()
    };
    let bytes = plan(None).unwrap().memory_bytes();
    let banded = || (1..20).filter_map(|n| plan(Some(bytes * n / 20))).find(|plan| plan.bands().len() > 1);
    for overlaps in [false, true] {
        for plan in [plan(None), banded()] {
            let bands = plan.as_ref().unwrap().bands().len();
            let setup = Setup { shape, size, columns: &columns, overlaps, ..Setup::default() };
            let got = run_with(&Context::default(), plan.unwrap(), &values, setup).unwrap();
            // Kernels may add up in another order at the ends of rows.
            let worst = cytoscope_testkit::largest_difference(&got, &expected);
            assert!(worst <= 1e-5, "{bands}×{} bands, threads: {overlaps}: {worst}", columns.len());
        }
    }
}

/// A part of a resampled stack has the values of the whole one, whatever rows and columns are left out.
#[test]
fn a_part_of_a_resampled_stack_has_the_values_of_the_whole() {
    let context = Context::default();
    // The columns, or rows and columns, may stay as they are.
    for own in [[5, 23, 31], [5, 23, 20], [5, 30, 20]] {
        let shape: [usize; 3] = [7, 30, 20];
        let array = Array::new(Axes::zyx(), own.to_vec(), noise(3, own.iter().product())).unwrap();
        let image = cytoscope_formats::image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
        let stack = Stack::new(&image, 0);
        let mut view = ModelView::new(&stack, &[0], Chains::Stack(vec![Vec::new()]), shape);
        let whole = view.read(&context, 0..shape[0]).unwrap();
        for (rows, columns) in [(0..30, 6..20), (4..11, 0..9), (29..30, 19..20)] {
            let part = view.stack_part([rows.clone(), columns.clone()]);
            assert!(part.slice_len() < stack.slice_len());
            let got = view.part_view(&part, [rows.clone(), columns.clone()]).read(&context, 0..shape[0]).unwrap();
            let inside = whole.chunks(shape[2]).enumerate().filter(|(row, _)| rows.contains(&(row % shape[1])));
            let expected: Vec<f32> = inside.flat_map(|(_, row)| row[columns.clone()].to_vec()).collect();
            assert!(got == expected, "{own:?}: rows {rows:?}, columns {columns:?}");
        }
    }
}

/// A band is read and resampled from the rows that it depends on, and gets the values of the whole stack.
#[test]
fn bands_of_a_resampled_stack_read_only_their_rows() {
    let own = [12, 80, 9];
    let array = Array::new(Axes::zyx(), own.to_vec(), noise(7, own.iter().product())).unwrap();
    let image = cytoscope_formats::image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let (model, stack) = (model(), Stack::new(&image, 0));
    let read = |rows: &[Band]| {
        let bands = &pass_bands(rows, &whole_rows(SHAPE, SIZE));
        let context = Context::default();
        let mut view = ModelView::new(&stack, &[0], Chains::Stack(vec![Vec::new()]), SHAPE);
        let slabs = Slabs { context: &context, model: &model, size: SIZE, first_z: 0, bands, slab_slices: 3 };
        let mut taken: Vec<Tensor> = Vec::new();
        let mut take = |input: Tensor| {
            taken.push(input);
            Ok(true)
        };
        slabs.read(&mut view, &mut take).unwrap();
        let totals = context.recorder.totals();
        (taken, totals.iter().find(|total| total.stage == Stage::Read).map_or(0, |total| total.voxels))
    };
    let (whole, read_once) = read(&[Band { fed: 0..SIZE[1], kept: 0..SIZE[1] }]);
    assert_eq!(read_once, own.iter().product::<usize>() as u64);
    let bands = [(0..24, 0..20), (16..44, 20..40), (36..60, 40..60)].map(|(fed, kept)| Band { fed, kept });
    let (banded, read_in_bands) = read(&bands);
    assert_eq!(banded.len(), bands.len() * whole.len());
    for (band, slabs) in bands.iter().zip(banded.chunks(whole.len())) {
        for (slab, all) in slabs.iter().zip(&whole) {
            let (rows, slices) = (band.fed.len() * SIZE[2], all.shape()[2]);
            assert_eq!(slab.shape(), [1, 1, slices, band.fed.len(), SIZE[2]]);
            for z in 0..slices {
                let at = (z * SIZE[1] + band.fed.start) * SIZE[2];
                let expected = &all.as_f32().unwrap()[at..at + rows];
                assert!(slab.as_f32().unwrap()[z * rows..(z + 1) * rows] == *expected, "rows {:?}", band.fed);
            }
        }
    }
    // 80 rows become 59; a resampled row depends on its neighbors.
    let rows: usize = bands.iter().map(|band| (band.fed.len() * own[1]).div_ceil(SHAPE[1]) + 3).sum();
    assert!(read_in_bands <= (own[0] * rows * own[2]) as u64, "{read_in_bands} voxels of {read_once} were read");
}

#[test]
fn objects_that_are_found_during_a_pass_are_those_of_the_whole_map() {
    let values = noise(5, SHAPE.iter().product());
    let (graph, context) = (network(), Context::default());
    let mut sorted = untiled(&values);
    sorted.sort_by(f32::total_cmp);
    let level = f64::from(sorted[sorted.len() * 7 / 10]);
    let options = SegmentOptions {
        threshold: Threshold::Fixed(level),
        height: Some(Height::Map),
        seed_height: 0.0,
        min_volume_um3: 2.0,
        ..SegmentOptions::default()
    };
    // Returns the labels, and whether they were found during the pass, or only their foreground.
    let labels = |during_pass: Option<DuringPass>, overlaps: bool| {
        let (voxel_um, overlap_um) = ([1.0; 3], 1.0);
        let settings = |streamed_bytes: u64| {
            let (channel, seed_channel) = (0, 0);
            LabelSettings { channel, seed_channel, voxel_um, options: &options, overlap_um, streamed_bytes }
        };
        let prepare = |prediction: &mut Prediction| match during_pass {
            Some(DuringPass::Foreground) => prediction.find_objects(&settings(0), Scratch::Memory).unwrap(),
            Some(DuringPass::Labels { bytes }) => prediction.find_labels(&settings(bytes), Scratch::Memory).unwrap(),
            None => {}
        };
        let plan = plan(&graph, None).unwrap();
        let mut prediction =
            predict_with(&context, plan, &values, Setup { overlaps, ..Setup::default() }, prepare).unwrap();
        let (foreground, labels) = (prediction.take_foreground(), prediction.take_labels(&context));
        let found = [foreground.as_ref().map(Foreground::slices) == Some(SHAPE[0]), labels.is_some()];
        let mut labels = match labels {
            Some(labels) => labels,
            None => label(&context, &mut prediction, &settings(0), Scratch::Memory, foreground).unwrap(),
        };
        labels.filter_objects(&context, 2, false).unwrap();
        ((labels.count, labels.all_slices(&context).unwrap()), found)
    };
    let (whole, found) = labels(None, true);
    assert!(whole.0 > 1 && found == [false; 2], "{} objects", whole.0);
    assert!(labels(Some(DuringPass::Foreground), true) == (whole.clone(), [true, false]));
    for overlaps in [false, true] {
        assert!(labels(Some(DuringPass::Labels { bytes: 1 << 30 }), overlaps) == (whole.clone(), [false, true]));
    }
    // The memory suffices to begin, but not for all of it.
    let bytes = ((SHAPE[0] * 2 + 1) * SHAPE[1] * SHAPE[2] * 4) as u64 + 1000;
    assert!(labels(Some(DuringPass::Labels { bytes }), true) == (whole, [false; 2]));
}

/// What is found of objects during a pass.
#[derive(Clone, Copy)]
enum DuringPass {
    Foreground,
    Labels { bytes: u64 },
}

/// How many times a network has computed.
fn computations(recorder: &Recorder) -> usize {
    recorder.spans_since(0, usize::MAX).iter().filter(|span| span.stage == Stage::Compute).count()
}

/// A sink that notes how many times the network has computed before each tile.
struct Counting {
    recorder: Recorder,
    before_tiles: Mutex<Vec<usize>>,
}

impl LiveSink for Counting {
    fn begin(&self, _volume: &LiveVolume<'_>) {}

    fn tile(&self, _start_zyx: [usize; 3], _size_zyx: [usize; 3], _values: &[f32]) {
        self.before_tiles.lock().unwrap().push(computations(&self.recorder));
    }
}

/// A sink that keeps each tile until the network has computed this number of times, and thus has to wait: one result waits in
/// the queue, and the network cannot pass on the next one.
struct Slow {
    recorder: Recorder,
    computations: Mutex<std::vec::IntoIter<usize>>,
}

impl LiveSink for Slow {
    fn begin(&self, _volume: &LiveVolume<'_>) {}

    fn tile(&self, _start_zyx: [usize; 3], _size_zyx: [usize; 3], _values: &[f32]) {
        let needed = self.computations.lock().unwrap().next().unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(60);
        while computations(&self.recorder) < needed && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The wait of the network begins after it has computed.
        std::thread::sleep(Duration::from_millis(40));
    }
}

#[test]
fn the_network_waits_for_a_slow_sink_and_the_wait_is_recorded() {
    let values = noise(5, SHAPE.iter().product());
    let graph = network();
    let bytes = plan(&graph, None).unwrap().memory_bytes();
    // Several bands, each of which returns slabs.
    let banded =
        || (1..20).filter_map(|n| plan(&graph, Some(bytes * n / 20))).find(|plan| plan.bands().len() > 1).unwrap();
    // In a pass whose stages take turns, the network computes nothing while the sink takes a tile.
    let context = Context { recorder: Recorder::new(), ..Context::default() };
    let counting = Counting { recorder: context.recorder.clone(), before_tiles: Mutex::new(Vec::new()) };
    run_with(&context, banded(), &values, Setup { sink: Some(&counting), ..Setup::default() }).unwrap();
    let all = computations(&context.recorder);
    let ahead = QUEUED_SLABS + 1;
    let before_tiles = counting.before_tiles.into_inner().unwrap();
    assert!(before_tiles.iter().any(|before| before + ahead < all), "the network is never ahead: {before_tiles:?}");
    let needed: Vec<usize> = before_tiles.iter().map(|before| (before + ahead).min(all)).collect();
    let context = Context { recorder: Recorder::new(), ..Context::default() };
    let slow = Slow { recorder: context.recorder.clone(), computations: Mutex::new(needed.into_iter()) };
    let setup = Setup { overlaps: true, sink: Some(&slow), ..Setup::default() };
    let got = run_with(&context, banded(), &values, setup).unwrap();
    assert!(got == untiled(&values), "the sink changes the result");
    let spans = context.recorder.spans_since(0, usize::MAX);
    assert!(spans.iter().any(|span| span.stage == Stage::Stall && span.name == "for writing"), "no wait is recorded");
}

#[test]
fn a_canceled_pass_ends_all_its_stages() {
    let values = noise(5, SHAPE.iter().product());
    for overlaps in [false, true] {
        let context = Context::default();
        context.cancel.cancel();
        let ended = run(&context, plan(&network(), None).unwrap(), &values, overlaps);
        assert!(matches!(ended, Err(JobError::Canceled)), "{ended:?}");
    }
}

#[test]
fn a_continued_pass_gives_the_remaining_slices_bit_by_bit() {
    let values = noise(5, SHAPE.iter().product());
    let (graph, expected) = (network(), untiled(&values));
    let finished = 12;
    let first_z = finished - model().reach.unwrap()[0];
    assert!(first_z > 0, "no slice is saved");
    let earlier = &expected[..finished * SHAPE[1] * SHAPE[2]];
    let plan = plan_from(&graph, None, first_z).unwrap();
    let setup = Setup { overlaps: true, first_z, finished: earlier, ..Setup::default() };
    let got = run_with(&Context::default(), plan, &values, setup).unwrap();
    assert!(got == expected);
    // The finished slices are kept as they are, not computed again.
    let marked = vec![9.0; earlier.len()];
    let plan = plan_from(&graph, None, first_z).unwrap();
    let setup = Setup { first_z, finished: &marked, ..Setup::default() };
    let got = run_with(&Context::default(), plan, &values, setup).unwrap();
    assert!(got[..marked.len()] == marked && got[marked.len()..] == expected[marked.len()..]);
}

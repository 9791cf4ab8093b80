//! A pass gives the values of the untiled network, with and without bands and threads, and when it is continued.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use super::super::label::label;
use super::super::output_check::OutputCheck;
use super::super::prediction::Prediction;
use super::super::test_common::{noise, package};
use super::*;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use cytoscope_builders::{UNet3d, Weights, unet3d};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, Precision, RollingPlan};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_graph::Graph;
use cytoscope_objects::{Foreground, Height, SegmentOptions, Threshold};
use cytoscope_volume::{Array, Axes, VoxelSize};
use std::path::Path;

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

/// Passes a volume and returns the prediction.
fn run(context: &Context, plan: Box<dyn RollingPlan>, values: &[f32], overlaps: bool) -> Result<Vec<f32>, JobError> {
    run_from(context, plan, values, overlaps, 0, &[])
}

/// Passes a volume from slice `first_z` on; `finished` are the values of the slices that are already predicted.
fn run_from(
    context: &Context,
    plan: Box<dyn RollingPlan>,
    values: &[f32],
    overlaps: bool,
    first_z: usize,
    finished: &[f32],
) -> Result<Vec<f32>, JobError> {
    let mut prediction = predict_from(context, plan, values, overlaps, first_z, finished, |_| ())?;
    prediction.read(context, 0, 0..SHAPE[0])
}

/// As [`run_from`], but returns the prediction, which `prepare` changes before the pass.
fn predict_from(
    context: &Context,
    plan: Box<dyn RollingPlan>,
    values: &[f32],
    overlaps: bool,
    first_z: usize,
    finished: &[f32],
    prepare: impl FnOnce(&mut Prediction),
) -> Result<Prediction, JobError> {
    let model = model();
    let array = Array::new(Axes::zyx(), SHAPE.to_vec(), values.to_vec()).unwrap();
    let image = cytoscope_formats::image_in_memory(Path::new("a volume"), array, VoxelSize::default()).unwrap();
    let stack = Stack::new(&image, 0);
    let mut view = ModelView::new(&stack, &[0], vec![Vec::new()], SHAPE);
    let mut spool = Spool::new(Scratch::Memory, SHAPE[1] * SHAPE[2]).unwrap();
    spool.write(0, finished).unwrap();
    let finished = finished.len() / (SHAPE[1] * SHAPE[2]);
    let mut prediction = Prediction::new(spool, 1, SHAPE, SHAPE);
    prediction.continue_after(finished);
    prepare(&mut prediction);
    let (slab_slices, bands, macs) = (plan.slab_planes(), plan.bands().to_vec(), plan.macs());
    let mut session = plan.start().unwrap();
    let check = OutputCheck::new(DeviceId::Cpu, Precision::F32);
    let store = Store { context, prediction: &mut prediction, softmax: false, maps: None, kept: None, check };
    let meter = context.meter("predict", SHAPE.iter().product::<usize>() as u64, "voxels");
    let (model, bands) = (&model, bands.as_slice());
    let mut emitter = Emitter { model, size: SIZE, first_z, finished, bands, shape: SHAPE, store, meter, live: None };
    let session = &mut *session;
    let mut pass = Pass { context, model, size: SIZE, first_z, session, bands, slab_slices, macs, overlaps };
    pass.run(&mut view, &mut emitter)?;
    Ok(prediction)
}

/// The untiled network on the volume, which is extended by its last voxels.
fn untiled(values: &[f32]) -> Vec<f32> {
    let mut extended = Vec::new();
    for z in 0..SIZE[0] {
        for y in 0..SIZE[1] {
            for x in 0..SIZE[2] {
                let at = (z * SHAPE[1] + y.min(SHAPE[1] - 1)) * SHAPE[2] + x.min(SHAPE[2] - 1);
                extended.push(values[at]);
            }
        }
    }
    let shape = [&[1, 1][..], &SIZE].concat();
    let mut session =
        CpuEngine::new().compile(&network(), std::slice::from_ref(&shape), &CompileOptions::default()).unwrap();
    let made = session.run(&[Tensor::new(shape, extended).unwrap()]).unwrap().remove(0).into_f32().unwrap();
    let slices = made.chunks_exact(SIZE[1] * SIZE[2]);
    let rows = slices.flat_map(|slice| slice.chunks_exact(SIZE[2]).take(SHAPE[1]));
    rows.flat_map(|row| row[..SHAPE[2]].to_vec()).collect()
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
fn the_foreground_that_is_found_during_a_pass_gives_the_same_labels() {
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
    let labels = |with_foreground: bool| {
        let prepare = |prediction: &mut Prediction| {
            if with_foreground {
                prediction.find_foreground(0, &options);
            }
        };
        let plan = plan(&graph, None).unwrap();
        let mut prediction = predict_from(&context, plan, &values, true, 0, &[], prepare).unwrap();
        let foreground = prediction.take_foreground();
        assert_eq!(foreground.as_ref().map(Foreground::slices), with_foreground.then_some(SHAPE[0]));
        let memory = Scratch::Memory;
        let found = label(&context, &mut prediction, [0, 0], [1.0; 3], &options, 1.0, memory, foreground);
        let mut found = found.unwrap();
        (found.count, found.all_slices(&context).unwrap())
    };
    let found = labels(true);
    assert!(found.0 > 1, "{} objects", found.0);
    assert!(found == labels(false));
}

#[test]
fn a_cancelled_pass_ends_all_its_stages() {
    let values = noise(5, SHAPE.iter().product());
    for overlaps in [false, true] {
        let context = Context::default();
        context.cancel.cancel();
        let ended = run(&context, plan(&network(), None).unwrap(), &values, overlaps);
        assert!(matches!(ended, Err(JobError::Cancelled)), "{ended:?}");
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
    let got = run_from(&Context::default(), plan, &values, true, first_z, earlier).unwrap();
    assert!(got == expected);
    // The finished slices are kept as they are, not computed again.
    let marked = vec![9.0; earlier.len()];
    let plan = plan_from(&graph, None, first_z).unwrap();
    let got = run_from(&Context::default(), plan, &values, false, first_z, &marked).unwrap();
    assert!(got[..marked.len()] == marked && got[marked.len()..] == expected[marked.len()..]);
}

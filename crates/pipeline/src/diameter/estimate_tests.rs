//! Objects that are not in the middle of a large stack are found, and those of a stack without objects are not looked for often.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use cytoscope_engine::Precision;
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_formats::{DerivedPixels, DerivedSpec, FormatError, Image, image_in_memory};
use cytoscope_objects::Threshold;
use cytoscope_profile::Stage;
use cytoscope_volume::{Array, Axes, DType, Region, Samples, VoxelSize};
use std::path::Path;

/// Z, Y, X of the stack: the middle 1024 columns are empty.
const SHAPE: [usize; 3] = [32, 200, 1600];
/// Voxel size in µm: that of the model.
const VOXEL_UM: [f64; 3] = [1.75, 0.8, 0.8];
/// Diameter of the balls in µm; that of the model is 19.
const DIAMETER_UM: f64 = 26.0;

/// Balls in one corner of a stack, on a noisy background. They are computed where they are read.
#[derive(Debug)]
struct Corner;

impl DerivedPixels for Corner {
    fn read(&self, _source: &Image, region: &Region) -> Result<Samples, FormatError> {
        let axis = |a: usize| region.start[a]..region.start[a] + region.size[a];
        let (zs, ys, xs) = (axis(1), axis(3), axis(4));
        let mut values = Vec::with_capacity(zs.len() * ys.len() * xs.len());
        for z in zs.clone() {
            for y in ys.clone() {
                values.extend(xs.clone().map(|x| 100 + ((x * 7919 + y * 104_729 + z * 611_953) % 13) as u16));
            }
        }
        let radii = VOXEL_UM.map(|um| DIAMETER_UM / 2.0 / um);
        for (cy, cx) in [35, 95, 155].into_iter().flat_map(|y| [30, 85, 140, 195, 250].map(|x| (y, x))) {
            let inside = |at: usize, center: usize, a: usize| ((at as f64 - center as f64) / radii[a]).powi(2);
            for (i, z) in zs.clone().enumerate() {
                for (j, y) in ys.clone().enumerate().filter(|(_, y)| y.abs_diff(cy) < 20) {
                    for (k, x) in xs.clone().enumerate().filter(|(_, x)| x.abs_diff(cx) < 20) {
                        if inside(z, SHAPE[0] / 2, 0) + inside(y, cy, 1) + inside(x, cx, 2) <= 1.0 {
                            values[(i * ys.len() + j) * xs.len() + k] += 900;
                        }
                    }
                }
            }
        }
        Ok(Samples::U16(values))
    }
}

/// Returns the model of these tests.
fn nuclei_dog() -> Model {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
    Model::load(model.to_str().unwrap()).unwrap()
}

/// Calls `check` with the estimator of an image's first channel, and the nominal diameter of the model.
fn with_estimator(
    context: &Context,
    model: &Model,
    image: &Image,
    voxel_um: [f64; 3],
    check: impl FnOnce(&Estimator<'_>, f64),
) {
    let (engine, stack) = (CpuEngine::new(), Stack::new(image, 0));
    let options = context.compile_options(Precision::F32, 2);
    let chains = stack.preprocessing(context, model, &[0]).unwrap();
    let estimator = Estimator {
        context,
        model,
        engine: &engine,
        options: &options,
        stack: &stack,
        channels: &[0],
        chains: &chains,
        voxel_um: Some(voxel_um),
        budget_bytes: 1 << 30,
        peak_bytes: Cell::default(),
    };
    check(&estimator, model.object_diameter_um.unwrap());
}

#[test]
fn objects_in_a_corner_of_a_large_stack_are_measured() {
    let model = nuclei_dog();
    let nothing = Array::new(Axes::zyx(), vec![1, 1, 1], vec![0u16]).unwrap();
    let source = image_in_memory(Path::new("a corner"), nothing, VoxelSize::default()).unwrap();
    let [z, y, x] = VOXEL_UM;
    let spec = DerivedSpec {
        shape_full: [1, SHAPE[0], 1, SHAPE[1], SHAPE[2], 1],
        dtype: DType::U16,
        voxel_size_um: VoxelSize::new_um(z, y, x),
        origin_um: [0.0; 3],
        channels: Vec::new(),
        keeps_values: false,
    };
    let image = source.derived(&spec, Box::new(Corner)).unwrap();
    let context = Context::default();
    with_estimator(&context, &model, &image, VOXEL_UM, |estimator, nominal_um| {
        // In the middle, the nominal or a guessed diameter is assumed.
        let middle = [0..SHAPE[0], 0..SHAPE[1], 288..1312];
        assert_eq!(estimator.estimate_in(&middle, nominal_um, None).unwrap().estimate.objects, 0);
        let found = estimator.estimate(nominal_um, None).unwrap().estimate;
        assert!(found.objects >= FEW_OBJECTS, "{found:?}");
        assert!((0.65..1.5).contains(&(found.diameter / DIAMETER_UM)), "{found:?}");
    });
}

#[test]
fn a_stack_without_objects_is_predicted_a_few_times() {
    let mut model = nuclei_dog();
    // Bright walls with noise, whose blobs have the smallest size, and a threshold that no voxel reaches.
    model.segment.threshold = Threshold::Fixed(2.0);
    let (depth, edge) = (16, 80);
    let mut state = 1u32;
    let mut value = |i: usize| {
        let is_wall = (i / edge % edge).is_multiple_of(20) || (i % edge).is_multiple_of(20);
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        100 * u16::from(is_wall) + (state >> 24) as u16 / 3
    };
    let values: Vec<u16> = (0..depth * edge * edge).map(&mut value).collect();
    let array = Array::new(Axes::zyx(), vec![depth, edge, edge], values).unwrap();
    let voxel_um = [1.0, 0.5, 0.5];
    let image = image_in_memory(Path::new("walls"), array, VoxelSize::new_um(1.0, 0.5, 0.5)).unwrap();
    let context = Context::default();
    with_estimator(&context, &model, &image, voxel_um, |estimator, nominal_um| {
        let guess = estimator.guess(estimator.stack, voxel_um).unwrap().unwrap();
        assert!(guess.is_smallest, "{guess:?}");
        let found = estimator.estimate(nominal_um, None).unwrap().estimate;
        assert_eq!((found.objects, found.certainty), (0, Certainty::None));
    });
    // One on the coarse grid and four on a finer one, at every second of eight scales, and at the guess on a coarser image.
    let totals = context.recorder.totals();
    let predictions = totals.iter().find(|total| total.stage == Stage::Estimate).map_or(0, |total| total.count);
    assert_eq!(predictions, 1 + MAX_PREDICTIONS as u64 + 4 + 1);
}

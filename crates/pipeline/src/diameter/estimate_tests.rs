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

/// Returns an estimate of a diameter, with the range and number of the diameters, and the mean peak of the heights.
fn clear(diameter: f64, range: [f64; 2], objects: usize, certainty: Certainty, peak: f64) -> SizeEstimate {
    let estimate =
        DiameterEstimate { diameter, range, objects, certainty, intensity_factor: 1.0, intensity_background: 0.0 };
    SizeEstimate { estimate, voxel: [1.0; 3], peak: Some(peak), brightness: None, intensity: None, background: None }
}

#[test]
fn clusters_of_touching_objects_do_not_make_them_texture() {
    // Nuclei of an organoid, and what is found at three times their diameter.
    let nuclei = clear(8.3, [6.9, 9.7], 98, Certainty::High, 0.721);
    let clusters = |peak| clear(25.9, [18.7, 38.0], 11, Certainty::High, peak);
    assert!(!is_texture(&nuclei, &clusters(0.631)));
    // Objects that the network sees more clearly are larger than texture, even if they vary.
    assert!(is_texture(&nuclei, &clusters(0.8)));
    let near = clear(12.0, [10.0, 14.0], 11, Certainty::High, 0.8);
    assert!(!is_texture(&nuclei, &near), "less than 1.5 times as large");
    // Without objects, there is nothing to keep; without heights, only the certainty counts.
    let nothing = SizeEstimate { peak: None, ..clear(8.3, [8.3, 8.3], 0, Certainty::None, 0.0) };
    assert!(is_texture(&nothing, &clusters(0.631)));
    let without_heights = |of: SizeEstimate| SizeEstimate { peak: None, ..of };
    assert!(is_texture(&without_heights(nuclei), &without_heights(clusters(0.631))));
}

#[test]
fn fragments_of_low_certainty_are_texture_beside_a_few_clearer_objects() {
    // Chromocenters and whole nuclei, and three nuclei from a larger start.
    let fragments = clear(2.8, [1.9, 6.5], 10, Certainty::Medium, 0.659);
    let nuclei = |certainty, peak| clear(7.3, [5.9, 8.0], 3, certainty, peak);
    assert!(is_texture(&fragments, &nuclei(Certainty::Medium, 0.816)));
    assert!(!is_texture(&fragments, &nuclei(Certainty::Medium, 0.6)), "less clear");
    assert!(!is_texture(&fragments, &nuclei(Certainty::Low, 0.816)), "of low certainty, too");
    let without_heights = |of: SizeEstimate| SizeEstimate { peak: None, ..of };
    let few = without_heights(nuclei(Certainty::Medium, 0.816));
    assert!(!is_texture(&without_heights(clear(2.8, [1.9, 6.5], 10, Certainty::Medium, 0.659)), &few));
    // A group of objects is clear, too, but larger than any of the fragments.
    assert!(!is_texture(&fragments, &clear(30.0, [25.0, 35.0], 3, Certainty::Medium, 0.9)));
    // Small objects of one size stay, although a few larger ones are clearer.
    let small = clear(4.3, [3.3, 6.0], 16, Certainty::Medium, 0.768);
    assert!(!is_texture(&small, &clear(10.5, [8.0, 12.0], 4, Certainty::Medium, 0.785)));
}

#[test]
fn a_few_objects_of_low_certainty_are_outliers_beside_many_of_almost_their_size() {
    let hidden = clear(5.8, [4.9, 6.9], 18, Certainty::High, 0.68).estimate;
    let are = |diameter: f64, objects: usize, certainty: Certainty| {
        are_outliers(&clear(diameter, [diameter; 2], objects, certainty, 0.67).estimate, &hidden)
    };
    assert!(are(8.1, 5, Certainty::Low), "two measurements of these disagree");
    assert!(!are(8.1, 5, Certainty::Medium), "they are almost as large, and two measurements agree");
    assert!(are(9.0, 5, Certainty::Medium), "they are much larger");
    assert!(!are(9.0, 7, Certainty::Medium), "the others are not many more");
}

#[test]
fn unclear_objects_that_are_small_or_as_dark_as_the_background_are_noise() {
    let at = ShortPrediction {
        voxel: [1.0; 3],
        diameter: 6.0,
        nominal_um: 12.0,
        center: None,
        tile: TILE,
        budget_bytes: None,
        coarsening: FINE,
        is_flat: false,
        stops_if_dark: false,
    };
    let with_peak = |peak| Measured { appearance: Appearance { peak, ..Appearance::default() }, ..Measured::default() };
    assert!(is_noise(&with_peak(0.55), &at));
    assert!(!is_noise(&with_peak(0.7), &at));
    assert!(!is_noise(&with_peak(0.55), &ShortPrediction { diameter: 20.0, ..at }));
    // Columns of a camera's fixed pattern are larger, but no brighter than the noise around them.
    let large = ShortPrediction { diameter: 20.0, ..at };
    let beside = |intensity, background, brightness, peak| {
        let (brightness, intensity, background) = (Some(brightness), Some(intensity), Some(background));
        let appearance = Appearance { peak, brightness, intensity, background };
        is_noise(&Measured { appearance, ..Measured::default() }, &large)
    };
    assert!(beside(0.43, 0.44, 0.2, 0.6));
    assert!(beside(0.48, 0.44, 0.2, 0.6));
    assert!(!beside(0.53, 0.41, 0.4, 0.6), "nuclei of a noisy widefield stack are brighter");
    assert!(!beside(0.43, 0.44, 0.2, 0.67), "the network sees them clearly");
    assert!(!beside(0.43, 0.44, -0.2, 0.6), "cells between bright membranes");
    assert!(!beside(0.05, 0.05, 0.2, 0.6), "hardly any noise");
}

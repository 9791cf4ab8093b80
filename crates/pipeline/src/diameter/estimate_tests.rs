//! Objects that are not in the middle of a large stack are found.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use cytoscope_engine::Precision;
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_formats::{DerivedPixels, DerivedSpec, FormatError, Image, image_in_memory};
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

#[test]
fn objects_in_a_corner_of_a_large_stack_are_measured() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
    let model = Model::load(model.to_str().unwrap()).unwrap();
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
    let (context, engine, stack) = (Context::default(), CpuEngine::new(), Stack::new(&image, 0));
    let options = context.compile_options(Precision::F32, 2);
    let chains = stack.preprocessing(&context, &model, &[0]).unwrap();
    let estimator = Estimator {
        context: &context,
        model: &model,
        engine: &engine,
        options: &options,
        stack: &stack,
        channels: &[0],
        chains: &chains,
        voxel_um: Some(VOXEL_UM),
        budget_bytes: 1 << 30,
        peak_bytes: Cell::default(),
    };
    let nominal_um = model.object_diameter_um.unwrap();
    // In the middle, the nominal or a guessed diameter is assumed.
    let middle = [0..SHAPE[0], 0..SHAPE[1], 288..1312];
    assert_eq!(estimator.estimate_in(&middle, nominal_um, None).unwrap().estimate.objects, 0);
    let found = estimator.estimate(nominal_um, None).unwrap().estimate;
    assert!(found.objects >= FEW_OBJECTS, "{found:?}");
    assert!((0.65..1.5).contains(&(found.diameter / DIAMETER_UM)), "{found:?}");
}

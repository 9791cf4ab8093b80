//! Steps against SciPy 1.17 and scikit-image 0.26, whose results `data/make.py` has written; and against themselves, in
//! slabs of any height.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use cytoscope_preprocess::{Chain, PreprocessStep, Reach, Source, StackStatistics, Tails, parse_steps};
use cytoscope_testkit::largest_difference;
use cytoscope_volume::{BoxZyx, VoxelSize};
use proptest::prelude::*;
use std::convert::Infallible;

/// Shape Z, Y, X of the stack of `data/make.py`.
const SHAPE: [usize; 3] = [3, 17, 19];

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

macro_rules! reference {
    ($name:literal) => {
        floats(include_bytes!(concat!("data/", $name, ".f32")))
    };
}

/// A stack in memory, which refuses boxes outside it.
struct InMemory {
    values: Vec<f32>,
    shape: [usize; 3],
}

impl Source for InMemory {
    type Error = Infallible;

    fn read(&mut self, bounds: &BoxZyx) -> Result<Vec<f32>, Infallible> {
        let [_, ny, nx] = self.shape;
        assert!((0..3).all(|a| bounds[a].start < bounds[a].end && bounds[a].end <= self.shape[a]), "{bounds:?}");
        let mut out = Vec::new();
        for z in bounds[0].clone() {
            for y in bounds[1].clone() {
                let row = (z * ny + y) * nx;
                out.extend_from_slice(&self.values[row + bounds[2].start..row + bounds[2].end]);
            }
        }
        Ok(out)
    }
}

fn unwrap<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

fn voxel_um() -> VoxelSize {
    VoxelSize::new_um(1.0, 0.4, 0.4)
}

/// The whole output of steps; returns its shape too.
fn whole(values: Vec<f32>, shape: [usize; 3], steps: &[PreprocessStep]) -> (Vec<f32>, [usize; 3]) {
    let chain = Chain::new(steps, shape, voxel_um()).unwrap();
    let mut source = InMemory { values, shape };
    let statistics = unwrap(chain.statistics(&mut source));
    let out = chain.shape_zyx();
    let bounds = out.map(|n| 0..n);
    (unwrap(chain.read(&bounds, &mut source, &statistics, &mut Tails::default())), out)
}

/// Asserts that steps give the reference up to a tolerance.
#[track_caller]
fn assert_gives(steps: &str, expected: &[f32], tolerance: f32) {
    let (found, _) = whole(reference!("input"), SHAPE, &parse_steps(steps).unwrap());
    let worst = largest_difference(&found, expected);
    assert!(worst <= f64::from(tolerance), "{steps} differs by {worst}");
}

#[test]
fn smoothing_matches_scipy() {
    assert_gives("gaussian:sigma=0.6/1.5/1.5", &reference!("gaussian"), 1e-3);
    assert_gives("gaussian:sigma=0.6/0.6/0.6um", &reference!("gaussian"), 1e-3);
    assert_gives("median:radius=1/2/2", &reference!("median"), 0.0);
}

#[test]
fn background_subtraction_matches_scikit_image() {
    assert_gives("tophat:radius=5", &reference!("tophat"), 0.0);
    assert_gives("tophat:radius=2um", &reference!("tophat"), 0.0);
    assert_gives("rolling-ball:radius=6", &reference!("rolling_ball"), 1e-3);
    assert_gives("rolling-ball:radius=6:height=80", &reference!("rolling_ball_height"), 1e-3);
}

#[test]
fn contrast_matches_scikit_image() {
    assert_gives("stretch:low=2:high=99", &reference!("stretch"), 1e-6);
    assert_gives("normalize-slices:low=2:high=99", &reference!("normalize_slices"), 1e-6);
}

#[test]
fn inverting_turns_the_darkest_voxel_into_the_brightest_of_the_whole_stack() {
    let values = vec![3.0, 7.0, 1.0, f32::NAN, 2.0, -5.0];
    let (found, _) = whole(values, [2, 1, 3], &parse_steps("invert").unwrap());
    assert_eq!(found[..3], [4.0, 0.0, 6.0]);
    assert!(found[3].is_nan(), "{found:?}");
    assert_eq!(found[4..], [5.0, 12.0]);
    // Twice, values are as before, except that the smallest one is 0.
    let (twice, _) = whole(vec![3.0, 7.0, 1.0], [1, 1, 3], &parse_steps("invert,invert").unwrap());
    assert_eq!(twice, [2.0, 6.0, 0.0]);
}

#[test]
fn nan_stays_where_it_is_in_every_step_that_computes_voxel_by_voxel() {
    let (shape, at) = ([3, 9, 11], 11 * 9 + 4 * 11 + 5);
    let mut values: Vec<f32> = (0..3 * 9 * 11).map(|i: i32| ((i * 7919) % 101) as f32).collect();
    values[at] = f32::NAN;
    // The last step moves the stack by two voxels along X, the one before by half a voxel along Y.
    for (steps, expected) in [
        ("clahe", vec![at]),
        ("stretch", vec![at]),
        ("normalize-slices", vec![at]),
        ("invert", vec![at]),
        ("rolling-ball:radius=3", vec![at]),
        ("affine:matrix=1/0/0/0/0/1/0/0.5/0/0/1/0", vec![at - 11, at]),
        ("affine:matrix=1/0/0/0/0/1/0/0/0/0/1/2", vec![at - 2]),
    ] {
        let (found, _) = whole(values.clone(), shape, &parse_steps(steps).unwrap());
        let nan: Vec<usize> = (0..found.len()).filter(|i| found[*i].is_nan()).collect();
        assert_eq!(nan, expected, "{steps}");
    }
    // Without a finite value, nothing becomes 0.
    for steps in ["clahe", "stretch", "normalize-slices", "invert"] {
        let (found, _) = whole(vec![f32::NAN; 99], [1, 9, 11], &parse_steps(steps).unwrap());
        assert!(found.iter().all(|v| v.is_nan()), "{steps}: {found:?}");
    }
}

/// scikit-image spreads what it clips off a histogram in whole counts, here it is spread equally: the tolerance is for
/// that.
#[test]
fn equalization_matches_scikit_image_up_to_the_rounding_of_counts() {
    let voxel = |i: i32| {
        let (y, x) = (i / 61, i % 61);
        let waves = (x * x * 7 + y * y * 13 + x * y * 5) % 61;
        (3 * x + 2 * y + waves + if (x / 9 + y / 7) % 3 == 0 { 80 } else { 0 }) as f32
    };
    let plane: Vec<f32> = (0..50 * 61).map(voxel).collect();
    let (found, _) = whole(plane, [1, 50, 61], &parse_steps("clahe:tiles=3:clip=0.03").unwrap());
    let expected = reference!("clahe");
    let worst = largest_difference(&found, &expected);
    assert!(worst < 0.005, "{worst}");
}

#[test]
fn warps_match_scipy() {
    let (deskewed, shape) = whole(reference!("input"), SHAPE, &parse_steps("deskew:angle=35:step=0.7um").unwrap());
    assert_eq!(shape[0], SHAPE[0]);
    assert_eq!(deskewed.len(), shape.iter().product::<usize>());
    assert_gives("deskew:angle=35:step=0.7um", &reference!("deskew"), 1e-3);
    let matrix = "0.9/0.02/0/0.2/0.01/0.95/0.1/-0.6/0/-0.1/0.97/1.7";
    assert_gives(&format!("affine:matrix={matrix}"), &reference!("affine"), 1e-3);
}

#[test]
fn deskewing_against_the_direction_of_the_stage_mirrors_the_stack() {
    let mirrored = |values: &[f32], [_, ny, nx]: [usize; 3]| -> Vec<f32> {
        values.chunks(ny * nx).flat_map(|slice| slice.chunks(nx).rev().flatten().copied()).collect()
    };
    // A shift of whole rows, so that the rows added at the end are the same.
    let step = 0.4 / 60f64.to_radians().cos();
    let steps = |angle: i32| parse_steps(&format!("deskew:angle={angle}:step={step}um")).unwrap();
    let (forwards, shape) = whole(reference!("input"), SHAPE, &steps(60));
    let (backwards, same) = whole(mirrored(&reference!("input"), SHAPE), SHAPE, &steps(-60));
    assert_eq!(shape, same);
    let expected = mirrored(&forwards, shape);
    assert!(backwards.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn a_deskewed_stack_has_the_distance_of_its_slices_and_a_crop_its_values() {
    let steps = parse_steps("deskew:angle=30:step=0.5um").unwrap();
    let chain = Chain::new(&steps, SHAPE, voxel_um()).unwrap();
    assert!((chain.voxel_size().z.unwrap() - 0.25).abs() < 1e-12);
    let (cropped, shape) = whole(reference!("input"), SHAPE, &parse_steps("crop:z=1-3:x=4-9,crop:y=2-5").unwrap());
    assert_eq!(shape, [2, 3, 5]);
    let at = |z: usize, y: usize, x: usize| reference!("input")[(z * SHAPE[1] + y) * SHAPE[2] + x];
    assert_eq!(cropped[0], at(1, 2, 4));
    assert_eq!(cropped[(3 + 2) * 5 + 4], at(2, 4, 8));
}

#[test]
fn steps_that_do_not_fit_a_stack_say_why() {
    for (step, voxel, named) in [
        ("gaussian:sigma=1um", VoxelSize::default(), "the voxel size along Z is unknown"),
        ("median:radius=11", voxel_um(), "at most 10 voxels"),
        ("rolling-ball:radius=100um", voxel_um(), "250.0 voxels; give at most 200 voxels"),
        ("crop:z=1-9", voxel_um(), "give a range inside 0-3"),
        ("deskew:angle=30", VoxelSize { z: None, ..voxel_um() }, "add it, such as step=0.5um"),
        ("deskew:angle=30:step=1um", VoxelSize::default(), "set the voxel size"),
        // Steps that would change nothing, or subtract the image from itself.
        ("gaussian:sigma=0.1", voxel_um(), "it would change nothing; give at least 0.125 voxels"),
        ("median:radius=0.4/0.4/0", voxel_um(), "it would change nothing; give at least 0.5 voxels"),
        ("tophat:radius=0.9", voxel_um(), "the whole image is background; give at least 1 voxel"),
        ("rolling-ball:radius=0.1um", voxel_um(), "the whole image is background; give at least 1 voxel"),
    ] {
        let message = Chain::new(&[step.parse().unwrap()], SHAPE, voxel).unwrap_err().to_string();
        assert!(message.contains(named), "{step}: {message}");
    }
}

/// A large stack whose voxels at Z = Y have the value Z, all others 0; the largest box read is recorded.
struct Diagonal {
    largest: usize,
}

impl Source for Diagonal {
    type Error = Infallible;

    fn read(&mut self, bounds: &BoxZyx) -> Result<Vec<f32>, Infallible> {
        let [nz, ny, nx] = [0, 1, 2].map(|axis: usize| bounds[axis].len());
        self.largest = self.largest.max(nz * ny * nx);
        let mut values = vec![0.0; nz * ny * nx];
        for z in bounds[0].clone().filter(|z| bounds[1].contains(z)) {
            let at = ((z - bounds[0].start) * ny + (z - bounds[1].start)) * nx;
            values[at..at + nx].fill(z as f32);
        }
        Ok(values)
    }
}

#[test]
fn a_warp_that_turns_slices_holds_a_part_of_the_stack() {
    // The first slice of the output is the diagonal of Z and Y.
    let steps = parse_steps("affine:matrix=0/1/0/0/0/1/0/0/0/0/1/0").unwrap();
    let chain = Chain::new(&steps, [30_000, 30_000, 2], voxel_um()).unwrap();
    let mut source = Diagonal { largest: 0 };
    let bounds = [0..1, 0..30_000, 0..2];
    let found = unwrap(chain.read(&bounds, &mut source, &StackStatistics::default(), &mut Tails::default()));
    let expected: Vec<f32> = (0..30_000).flat_map(|y| [y as f32; 2]).collect();
    assert!(found == expected);
    assert!(source.largest <= 64 << 20, "{} voxels were held at once", source.largest);
}

#[test]
fn steps_declare_their_reach() {
    let steps = parse_steps("gaussian:sigma=0.5/1/1,tophat:radius=3,clahe,crop:z=0-2").unwrap();
    let chain = Chain::new(&steps, SHAPE, voxel_um()).unwrap();
    let expected = [Reach::Voxels([2, 4, 4]), Reach::Voxels([0, 6, 6]), Reach::Slice, Reach::Moved];
    assert_eq!(chain.reaches(), expected);
}

fn step() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "gaussian:sigma=0.7",
        "gaussian:sigma=0.4/0/1",
        "median:radius=1",
        "median:radius=2/1/0",
        "tophat:radius=2",
        "rolling-ball:radius=3:height=40",
        "clahe:tiles=3:clip=0.2",
        "stretch:low=5:high=90",
        "normalize-slices",
        "invert",
        "deskew:angle=50:step=0.5um",
        "affine:matrix=0.9/0/0/0.3/0/1/0.1/0/0/-0.1/1/0.5",
        "crop:z=1-7:y=1-9",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn results_do_not_depend_on_the_boxes_in_which_they_are_computed(
        texts in prop::collection::vec(step(), 1..4),
        values in prop::collection::vec(0u16..500, 8 * 11 * 9),
        height in 1usize..5,
        keeps_tails in any::<bool>(),
        rows in 1usize..11,
    ) {
        let steps: Vec<PreprocessStep> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let shape = [8, 11, 9];
        let values: Vec<f32> = values.into_iter().map(f32::from).collect();
        // A second crop may not fit what the first has left.
        let Ok(chain) = Chain::new(&steps, shape, voxel_um()) else { return Ok(()) };
        let (expected, out) = whole(values.clone(), shape, &steps);
        let mut source = InMemory { values, shape };
        let statistics = unwrap(chain.statistics(&mut source));
        let mut tails = Tails::default();
        for y in (0..out[1]).step_by(rows) {
            let rows = y..(y + rows).min(out[1]);
            for z in (0..out[0]).step_by(height) {
                let bounds = [z..(z + height).min(out[0]), rows.clone(), 0..out[2]];
                if !keeps_tails {
                    tails = Tails::default();
                }
                let part = unwrap(chain.read(&bounds, &mut source, &statistics, &mut tails));
                let mut found = part.chunks(out[2]);
                for z in bounds[0].clone() {
                    for y in rows.clone() {
                        let at = (z * out[1] + y) * out[2];
                        prop_assert_eq!(found.next().unwrap(), &expected[at..at + out[2]], "{:?} at {}, {}", texts, z, y);
                    }
                }
            }
        }
    }
}

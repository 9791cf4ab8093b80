//! Properties of all simulated stacks: the same bytes for the same seed, valid labels, light where the objects are, and
//! noise according to the camera model.
#![expect(clippy::unwrap_used, clippy::panic, reason = "functions shared by tests")]

use cytoscope_simulate::{Kind, MIN_OBJECT_VOXELS, Pressed, Settings, SimulateError, Simulation, simulate};
use cytoscope_volume::{DType, Samples, VoxelSize};
use std::cell::Cell;

const SHAPE: [usize; 3] = [20, 112, 112];

fn make(settings: &Settings) -> Simulation {
    simulate(settings, |_| true).unwrap()
}

fn raw(stack: &Simulation) -> Vec<f64> {
    match stack.raw.samples() {
        Samples::U16(v) => v.iter().map(|s| f64::from(*s)).collect(),
        other => panic!("raw is {}", other.dtype()),
    }
}

fn labels(stack: &Simulation) -> Vec<usize> {
    match stack.labels.as_ref().unwrap().samples() {
        Samples::U16(v) => v.iter().map(|s| usize::from(*s)).collect(),
        other => panic!("labels are {}", other.dtype()),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(s, n), v| (s + v, n + 1));
    sum / count as f64
}

/// Pearson's correlation.
fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let (ma, mb) = (mean(a.iter().copied()), mean(b.iter().copied()));
    let product = mean(a.iter().zip(b).map(|(x, y)| (x - ma) * (y - mb)));
    let variance = |v: &[f64], m: f64| mean(v.iter().map(|x| (x - m).powi(2)));
    product / (variance(a, ma) * variance(b, mb)).sqrt()
}

/// For every voxel, whether a face neighbor satisfies `test(own label, neighbor's label)`.
fn borders(labels: &[usize], test: impl Fn(usize, usize) -> bool) -> Vec<bool> {
    let [nz, ny, nx] = SHAPE;
    let mut found = vec![false; labels.len()];
    for (i, own) in labels.iter().enumerate() {
        let [z, y, x] = [i / (ny * nx), i / nx % ny, i % nx];
        for (there, step) in [(z + 1 < nz, ny * nx), (y + 1 < ny, nx), (x + 1 < nx, 1)] {
            if there && test(*own, labels[i + step]) {
                found[i] = true;
                found[i + step] = true;
            }
        }
    }
    found
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    for kind in Kind::ALL {
        let settings = Settings::new(kind, [13, 50, 47], 21);
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| simulate(&settings, |_| true).unwrap())
        };
        let one = on(1);
        assert_eq!(one, on(2), "{kind} on 2 threads");
        assert_eq!(one, on(7), "{kind} on 7 threads");
    }
}

#[test]
fn another_seed_gives_another_stack() {
    for kind in Kind::ALL {
        let [a, b] = [1, 2].map(|seed| make(&Settings::new(kind, [8, 40, 40], seed)));
        assert_ne!(a.raw, b.raw, "{kind}");
        assert_ne!(a.labels, b.labels, "{kind}");
    }
}

#[test]
fn arrays_have_the_documented_shapes_and_types() {
    for kind in Kind::ALL {
        let stack = make(&Settings::new(kind, [7, 41, 43], 2));
        assert_eq!((stack.raw.shape(), stack.raw.dtype()), (&[7, 41, 43][..], DType::U16));
        assert_eq!(stack.raw.axes().to_string(), "ZYX");
        let labels = stack.labels.as_ref().unwrap();
        assert_eq!((labels.shape(), labels.dtype()), (&[7, 41, 43][..], DType::U16));
        assert_eq!(stack.target.is_some(), kind == Kind::LabelFree);
        if let Some(target) = &stack.target {
            assert_eq!((target.shape(), target.dtype()), (&[7, 41, 43][..], DType::F32));
        }
        assert_eq!(stack.voxel_size_um, stack.settings.voxel_size_um);
    }
}

#[test]
fn labels_are_consecutive_connected_and_large_enough() {
    for kind in Kind::ALL {
        let stack = make(&Settings::new(kind, SHAPE, 5));
        let labels = labels(&stack);
        let mut sizes = vec![0usize; stack.object_count + 1];
        labels.iter().for_each(|l| sizes[*l] += 1);
        assert!(stack.object_count >= 8, "{kind}: {} objects", stack.object_count);
        assert!(sizes[1..].iter().all(|s| *s >= MIN_OBJECT_VOXELS), "{kind}: {sizes:?}");
        assert!(sizes[0] > 0);
        assert_eq!(pieces(&labels), stack.object_count, "{kind}: connected components");
    }
}

/// Number of connected components (by faces) of equal label, counted with union-find, independently of the crate.
fn pieces(labels: &[usize]) -> usize {
    fn root(parents: &mut [usize], mut i: usize) -> usize {
        while parents[i] != i {
            parents[i] = parents[parents[i]];
            i = parents[i];
        }
        i
    }
    let [nz, ny, nx] = SHAPE;
    let mut parents: Vec<usize> = (0..labels.len()).collect();
    for i in 0..labels.len() {
        let [z, y, x] = [i / (ny * nx), i / nx % ny, i % nx];
        for (there, step) in [(z + 1 < nz, ny * nx), (y + 1 < ny, nx), (x + 1 < nx, 1)] {
            if there && labels[i] == labels[i + step] {
                let (a, b) = (root(&mut parents, i), root(&mut parents, i + step));
                parents[a] = b;
            }
        }
    }
    (0..labels.len()).filter(|i| parents[*i] == *i && labels[*i] > 0).count()
}

#[test]
fn nuclei_are_brighter_than_their_surroundings() {
    let stack = make(&Settings::new(Kind::Nuclei, SHAPE, 3));
    let (raw, labels) = (raw(&stack), labels(&stack));
    let side = |inside: bool| {
        let values = || raw.iter().zip(&labels).filter(move |(_, l)| (**l > 0) == inside).map(|(r, _)| *r);
        let m = mean(values());
        (m, mean(values().map(|v| (v - m).powi(2))).sqrt())
    };
    let ((inside, _), (outside, deviation)) = (side(true), side(false));
    assert!(inside - outside > 2.0 * deviation, "{inside} inside, {outside} ± {deviation} outside");
    let share = labels.iter().filter(|l| **l > 0).count() as f64 / labels.len() as f64;
    assert!((0.1..0.3).contains(&share), "{share} of the voxels are nuclei");
}

#[test]
fn nuclei_differ_in_size_and_brightness_and_have_texture() {
    let stack = make(&Settings::new(Kind::Nuclei, SHAPE, 3));
    let (raw, labels) = (raw(&stack), labels(&stack));
    let mut sums = vec![(0.0, 0.0, 0.0); stack.object_count + 1];
    for (value, label) in raw.iter().zip(&labels) {
        let (n, s, q) = &mut sums[*label];
        *n += 1.0;
        *s += value;
        *q += value * value;
    }
    let means: Vec<f64> = sums[1..].iter().map(|(n, s, _)| s / n - 100.0).collect();
    let spread = |v: &[f64]| {
        let m = mean(v.iter().copied());
        mean(v.iter().map(|x| (x - m).powi(2))).sqrt() / m
    };
    assert!((0.15..0.7).contains(&spread(&means)), "brightness spreads by {}", spread(&means));
    let sizes: Vec<f64> = sums[1..].iter().map(|(n, _, _)| *n).collect();
    assert!(spread(&sizes) > 0.2, "size spreads by {}", spread(&sizes));
    // Inside a nucleus, values vary more than the photon noise of their mean.
    let textured = sums[1..].iter().filter(|(n, s, q)| {
        let m = s / n;
        q / n - m * m > 2.0 * 2.0 * (m - 100.0)
    });
    assert!(textured.count() * 10 > stack.object_count * 9);
}

#[test]
fn nuclei_touch_at_the_default_density() {
    let stack = make(&Settings::new(Kind::Nuclei, SHAPE, 3));
    let labels = labels(&stack);
    let touching = borders(&labels, |a, b| a > 0 && b > 0 && a != b);
    let mut touches = vec![false; stack.object_count + 1];
    labels.iter().zip(&touching).filter(|(_, t)| **t).for_each(|(l, _)| touches[*l] = true);
    let count = touches[1..].iter().filter(|t| **t).count();
    assert!(count * 4 > stack.object_count, "{count} of {} touch", stack.object_count);
    let mut settings = Settings::new(Kind::Nuclei, SHAPE, 3);
    (settings.objects.touching, settings.objects.fill) = (0.0, 0.08);
    let alone = make(&settings);
    let apart = borders(&self::labels(&alone), |a, b| a > 0 && b > 0 && a != b);
    assert!(apart.iter().filter(|t| **t).count() < touching.iter().filter(|t| **t).count() / 5);
}

#[test]
fn pressed_nuclei_grow_until_they_touch_and_a_gap_divides_them() {
    let shown = |pressed: Pressed| {
        let mut settings = Settings::new(Kind::Nuclei, SHAPE, 3);
        settings.objects.pressed = pressed;
        let labels = labels(&make(&settings));
        let touching = borders(&labels, |a, b| a > 0 && b > 0 && a != b).into_iter().filter(|t| *t).count();
        (touching, labels.iter().filter(|l| **l > 0).count())
    };
    let placed = shown(Pressed::NONE);
    let swollen = shown(Pressed { swell: 1.4, gap: 0.0 });
    let divided = shown(Pressed { swell: 1.4, gap: 0.2 });
    assert!(swollen.0 > 2 * placed.0, "{swollen:?} and {placed:?} as placed");
    assert!(2 * swollen.1 > 3 * placed.1, "{swollen:?} and {placed:?} as placed");
    assert!(4 * divided.0 < swollen.0 && divided.1 < swollen.1, "{divided:?} with a gap, {swollen:?} without");
    // The gap takes only the faces of the nuclei away.
    assert!(2 * divided.1 > swollen.1, "{divided:?} with a gap, {swollen:?} without");
}

#[test]
fn membranes_are_bright_where_cells_meet() {
    let stack = make(&Settings::new(Kind::Cells, SHAPE, 4));
    let (raw, labels) = (raw(&stack), labels(&stack));
    let wall = borders(&labels, |a, b| a != b);
    let at = |on: bool| mean((0..raw.len()).filter(|i| labels[*i] > 0 && wall[*i] == on).map(|i| raw[i]));
    assert!(at(true) - 100.0 > 1.8 * (at(false) - 100.0), "{} at walls, {} inside", at(true), at(false));
    let tissue = labels.iter().filter(|l| **l > 0).count() as f64 / labels.len() as f64;
    assert!((0.6..0.95).contains(&tissue), "{tissue} of the voxels are tissue");
    let outside = mean((0..raw.len()).filter(|i| labels[*i] == 0 && !wall[*i]).map(|i| raw[i]));
    assert!(outside < at(false), "{outside} outside the tissue");
}

#[test]
fn noise_in_an_empty_field_is_photon_noise_and_read_noise() {
    for (background, read_noise, gain) in [(6.0, 0.0, 1.0), (20.0, 3.0, 2.0), (400.0, 1.8, 2.0)] {
        let mut settings = Settings::new(Kind::Nuclei, [16, 128, 128], 8);
        settings.objects.count = Some(0);
        settings.optics.unevenness = 0.0;
        settings.camera.background_photons = background;
        settings.camera.read_noise_photons = read_noise;
        settings.camera.gain_counts_per_photon = gain;
        let stack = make(&settings);
        assert_eq!(stack.object_count, 0);
        let raw = raw(&stack);
        let m = mean(raw.iter().copied());
        let variance = mean(raw.iter().map(|v| (v - m).powi(2)));
        // Rounding to whole counts adds 1/12 if read noise makes the values continuous. The standard errors over 262144
        // voxels are 0.2 % of the standard deviation (mean) and 0.3 % (variance).
        let rounding = if read_noise > 0.0 { 1.0 / 12.0 } else { 0.0 };
        let expected = gain * gain * (background + read_noise * read_noise) + rounding;
        assert!((m - 100.0 - gain * background).abs() < 0.01 * expected.sqrt(), "mean {m}");
        assert!((variance / expected - 1.0).abs() < 0.015, "variance {variance} for {expected}");
    }
}

#[test]
fn illumination_is_as_uneven_as_requested() {
    let mut settings = Settings::new(Kind::Nuclei, [16, 96, 96], 8);
    settings.objects.count = Some(0);
    settings.camera.background_photons = 200.0;
    settings.optics.unevenness = 0.6;
    let raw = raw(&make(&settings));
    let corner = |y0: usize, x0: usize| {
        let inside = |i: &usize| (y0..y0 + 16).contains(&(i / 96 % 96)) && (x0..x0 + 16).contains(&(i % 96));
        mean((0..raw.len()).filter(inside).map(|i| raw[i] - 100.0))
    };
    let darkest =
        [corner(0, 0), corner(0, 80), corner(80, 0), corner(80, 80)].into_iter().fold(f64::INFINITY, f64::min);
    let middle = corner(40, 40);
    assert!((0.35..0.75).contains(&(darkest / middle)), "{darkest} in a corner, {middle} in the middle");
}

#[test]
fn contrast_of_a_cell_inverts_through_focus() {
    // A cell is a weak lens: over its nucleus the image is brighter than the background two slices above it and darker
    // two slices below it.
    let mut settings = Settings::new(Kind::LabelFree, [24, 160, 160], 12);
    settings.objects.texture = 0.0;
    settings.objects.count = Some(8);
    settings.optics.unevenness = 0.0;
    let stack = make(&settings);
    let (raw, labels) = (raw(&stack), labels(&stack));
    let plane = 160 * 160;
    // Most of the field is empty, so its median is the background.
    let mut sorted = raw.clone();
    sorted.sort_by(f64::total_cmp);
    let background = sorted[sorted.len() / 2];
    let (mut above, mut below) = (0, 0);
    let mut evaluated = 0;
    for label in 1..=stack.object_count {
        let slices: Vec<usize> = (0..24).filter(|z| labels[z * plane..(z + 1) * plane].contains(&label)).collect();
        let (low, high) = (slices[0], slices[slices.len() - 1]);
        if low < 2 || high > 21 {
            continue; // cut by an edge of the stack
        }
        let footprint: Vec<bool> = (0..plane).map(|i| (low..=high).any(|z| labels[z * plane + i] == label)).collect();
        let at = |z: usize| mean((0..plane).filter(|i| footprint[*i]).map(|i| raw[z * plane + i]));
        above += usize::from(at(high + 2) > background);
        below += usize::from(at(low - 2) < background);
        evaluated += 1;
    }
    assert!(evaluated >= 2, "{evaluated} nuclei are whole");
    assert!(above == evaluated && below == evaluated, "{above} brighter above, {below} darker below, of {evaluated}");
}

#[test]
fn label_free_pairs_show_the_same_cells() {
    let stack = make(&Settings::new(Kind::LabelFree, SHAPE, 6));
    let target: Vec<f64> = stack.target.as_ref().unwrap().samples().to_f32().into_iter().map(f64::from).collect();
    let (raw, labels) = (raw(&stack), labels(&stack));
    assert!(target.iter().all(|v| v.is_finite() && *v >= 0.0));
    let nuclei: Vec<f64> = labels.iter().map(|l| f64::from(u8::from(*l > 0))).collect();
    assert!(correlation(&target, &nuclei) > 0.75, "target follows the nuclei");
    // Bright-field contrast is a few percent to tens of percent of the background, and nothing is clipped.
    let m = mean(raw.iter().copied());
    let deviation = mean(raw.iter().map(|v| (v - m).powi(2))).sqrt() / (m - 100.0);
    assert!((0.03..0.4).contains(&deviation), "contrast {deviation}");
    assert!(raw.iter().all(|v| *v < 65_535.0));
}

#[test]
fn limits_and_bad_settings_are_refused_with_their_names() {
    let refused = |change: &dyn Fn(&mut Settings)| {
        let mut settings = Settings::new(Kind::Nuclei, [8, 32, 32], 1);
        change(&mut settings);
        simulate(&settings, |_| true).unwrap_err()
    };
    assert!(matches!(refused(&|s| s.shape_zyx = [0, 4, 4]), SimulateError::EmptyShape { .. }));
    assert!(matches!(refused(&|s| s.shape_zyx = [4096, 4096, 4096]), SimulateError::TooManyVoxels { .. }));
    assert!(matches!(refused(&|s| s.shape_zyx = [usize::MAX, 2, 2]), SimulateError::TooManyVoxels { .. }));
    assert!(matches!(refused(&|s| s.objects.count = Some(usize::MAX)), SimulateError::TooManyObjects { .. }));
    for (change, name) in [
        (&(|s: &mut Settings| s.voxel_size_um = VoxelSize::default()) as &dyn Fn(&mut Settings), "voxel_size_um"),
        (&|s| s.objects.fill = f64::NAN, "objects.fill"),
        (&|s| s.objects.diameter_um = 0.0, "objects.diameter_um"),
        (&|s| s.camera.photons = -1.0, "camera.photons"),
        (&|s| s.optics.psf_sigma_um = [f64::INFINITY, 0.0, 0.0], "optics.psf_sigma_um"),
    ] {
        let error = refused(change);
        assert!(matches!(&error, SimulateError::BadSetting { what, .. } if what.starts_with(name)), "{error}");
        assert!(error.to_string().contains(name));
    }
}

#[test]
fn the_smallest_and_thinnest_fields_can_be_simulated() {
    for kind in Kind::ALL {
        for shape in [[1, 1, 1], [1, 64, 64], [9, 1, 1], [2, 3, 5]] {
            let stack = make(&Settings::new(kind, shape, 4));
            assert_eq!(stack.raw.shape(), shape, "{kind}");
        }
    }
}

#[test]
fn no_settings_in_range_panic() {
    for kind in Kind::ALL {
        for extreme in 0..6 {
            let mut s = Settings::new(kind, [6, 24, 24], 9);
            match extreme {
                0 => (s.objects.fill, s.objects.touching) = (1.0, 1.0),
                1 => (s.objects.fill, s.objects.count) = (0.0, None),
                2 => (s.objects.diameter_um, s.objects.diameter_spread) = (2.4, 0.5),
                3 => (s.objects.diameter_um, s.optics.psf_sigma_um) = (1000.0, [20.0; 3]),
                4 => (s.camera.photons, s.camera.gain_counts_per_photon) = (1e6, 1e3),
                _ => (s.optics.psf_sigma_um, s.optics.haze, s.objects.count) = ([0.0; 3], 0.0, Some(3)),
            }
            assert_eq!(make(&s).raw.shape(), [6, 24, 24], "{kind} {extreme}");
        }
    }
}

#[test]
fn progress_increases_to_one_and_can_cancel() {
    for kind in Kind::ALL {
        let settings = Settings::new(kind, [10, 40, 40], 4);
        let (last, calls) = (Cell::new(0.0), Cell::new(0));
        simulate(&settings, |fraction| {
            assert!(fraction >= last.get() - 1e-9 && fraction <= 1.0 + 1e-9, "{} then {fraction}", last.get());
            last.set(fraction);
            calls.set(calls.get() + 1);
            true
        })
        .unwrap();
        assert!((last.get() - 1.0).abs() < 1e-9 && calls.get() > 5, "{kind}: {} in {} calls", last.get(), calls.get());
        assert_eq!(simulate(&settings, |fraction| fraction < 0.4), Err(SimulateError::Canceled), "{kind}");
        assert_eq!(simulate(&settings, |_| false), Err(SimulateError::Canceled), "{kind}");
    }
}

#[test]
fn kinds_and_settings_round_trip_through_text() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
        let settings = Settings::new(kind, [8, 32, 32], u64::MAX);
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(&format!("\"kind\":\"{kind}\"")));
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }
    assert!("Nucleus".parse::<Kind>().is_err());
}

//! The optional features, and that results do not change without them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "functions shared by tests")]

use cytoscope_simulate::{
    Debris, Kind, Placement, Settings, SimulateError, Simulation, Stretch, Truth, TruthOutline, simulate,
};
use cytoscope_volume::{Samples, VoxelSize};

const SHAPE: [usize; 3] = [48, 96, 96];

/// Well separated nuclei on an isotropic grid, with little noise.
fn plain() -> Settings {
    let mut settings = Settings::new(Kind::Nuclei, SHAPE, 7);
    settings.voxel_size_um = VoxelSize::new_um(0.8, 0.8, 0.8);
    (settings.objects.fill, settings.objects.touching) = (0.1, 0.1);
    settings
}

fn make(settings: &Settings) -> Simulation {
    simulate(settings, |_| true).unwrap()
}

fn values(samples: &Samples) -> Vec<usize> {
    match samples {
        Samples::U16(v) => v.iter().map(|s| usize::from(*s)).collect(),
        other => panic!("{}", other.dtype()),
    }
}

fn labels(stack: &Simulation) -> Vec<usize> {
    values(stack.labels.as_ref().unwrap().samples())
}

/// For each object that is not cut by a border: number of voxels, and standard deviations along Z, Y, X in voxels.
fn extents(labels: &[usize], count: usize) -> Vec<(f64, [f64; 3])> {
    let mut sums = vec![(0.0, [0.0; 3], [0.0; 3], true); count + 1];
    for (i, label) in labels.iter().enumerate() {
        let at = [i / (SHAPE[1] * SHAPE[2]), i / SHAPE[2] % SHAPE[1], i % SHAPE[2]];
        let (n, first, second, whole) = &mut sums[*label];
        *n += 1.0;
        for a in 0..3 {
            first[a] += at[a] as f64;
            second[a] += (at[a] * at[a]) as f64;
            *whole &= at[a] > 0 && at[a] + 1 < SHAPE[a];
        }
    }
    let whole = sums[1..].iter().filter(|s| s.3);
    whole.map(|(n, f, s, _)| (*n, [0, 1, 2].map(|a| (s[a] / n - (f[a] / n).powi(2)).sqrt()))).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn settings_files_without_the_options_give_the_same_stack() {
    let settings = plain();
    let mut json = serde_json::to_value(&settings).unwrap();
    for (part, names) in [
        ("objects", &["stretch", "placement", "mitotic", "glow", "debris"][..]),
        ("optics", &["tail_share", "tail_sigma_um", "haze_per_um", "haze_sigma_um"][..]),
    ] {
        for name in names {
            json[part].as_object_mut().unwrap().remove(*name).unwrap();
        }
    }
    json.as_object_mut().unwrap().remove("truth").unwrap();
    assert_eq!(serde_json::from_value::<Settings>(json).unwrap(), settings);
}

#[test]
fn stretched_nuclei_are_longer_along_z_and_flat_ones_thinner() {
    let mut settings = plain();
    let ratio = |settings: &Settings| {
        let stack = make(settings);
        let extents = extents(&labels(&stack), stack.object_count);
        assert!(extents.len() > 10, "{} whole nuclei", extents.len());
        median(extents.iter().map(|(_, e)| e[0] / (e[1] * e[2]).sqrt()))
    };
    let round = ratio(&settings);
    settings.objects.stretch = Stretch { zyx: [1.7, 1.0, 1.0], spread: 0.1, flat: 0.0 };
    let long = ratio(&settings) / round;
    assert!((1.45..2.0).contains(&long), "{long}");
    let thin = |flat: f64| {
        let mut settings = plain();
        settings.objects.stretch.flat = flat;
        let stack = make(&settings);
        let extents = extents(&labels(&stack), stack.object_count);
        let least = |e: &[f64; 3]| e[0].min(e[1]).min(e[2]) / (e[0] * e[1] * e[2]).cbrt();
        median(extents.iter().map(|(_, e)| least(e)))
    };
    assert!(thin(1.0) < thin(0.0) - 0.05, "{} {}", thin(1.0), thin(0.0));
}

#[test]
fn visible_outlines_lie_outside_the_bodies_and_further_out_along_z() {
    let mut settings = plain();
    settings.optics.psf_sigma_um = [2.5, 0.5, 0.5];
    let body = make(&settings);
    settings.truth.outline = TruthOutline::Visible { share: 0.22, common: 0.0 };
    let seen = make(&settings);
    assert_eq!(body.raw, seen.raw, "the outline setting does not change the image");
    assert_eq!(body.object_count, seen.object_count);
    let (before, after) = (labels(&body), labels(&seen));
    let lost = before.iter().zip(&after).filter(|(b, a)| **b > 0 && **a == 0).count();
    assert!(lost * 100 < before.iter().filter(|b| **b > 0).count(), "{lost} voxels of bodies lost");
    let size = |labels: &[usize]| {
        let extents = extents(labels, body.object_count);
        [0, 1, 2].map(|a| median(extents.iter().map(|(_, e)| e[a])))
    };
    let (before, after) = (size(&before), size(&after));
    let growth = [0, 1, 2].map(|a| after[a] / before[a]);
    assert!(growth[0] > 1.15 && growth[1] > 1.0 && growth[0] > growth[1] + 0.1, "{growth:?}");
    // A higher level moves the outline inward.
    settings.truth.outline = TruthOutline::Visible { share: 0.7, common: 0.0 };
    let inner = labels(&make(&settings)).iter().filter(|l| **l > 0).count();
    assert!(inner < labels(&body).iter().filter(|l| **l > 0).count());
}

#[test]
fn a_common_level_shrinks_outlines_of_dim_nuclei_and_enlarges_bright_ones() {
    let mut settings = plain();
    settings.objects.brightness_spread = 0.6;
    settings.optics.psf_sigma_um = [2.0, 0.6, 0.6];
    let with = |common: f64| {
        let mut settings = settings.clone();
        settings.truth.outline = TruthOutline::Visible { share: 0.15, common };
        make(&settings)
    };
    let (own, one) = (with(0.0), with(1.0));
    assert_eq!(own.raw, one.raw);
    assert_eq!(own.object_count, one.object_count);
    let raw = values(own.raw.samples());
    let (before, after) = (labels(&own), labels(&one));
    let volumes = |labels: &[usize]| {
        let mut voxels = vec![0.0; own.object_count];
        labels.iter().filter(|l| **l > 0).for_each(|l| voxels[*l - 1] += 1.0);
        voxels
    };
    let mut light = vec![(0.0, 0.0); own.object_count];
    for (label, value) in before.iter().zip(&raw).filter(|(l, _)| **l > 0) {
        light[*label - 1].0 += *value as f64 - 100.0;
        light[*label - 1].1 += 1.0;
    }
    let mut by_light: Vec<(f64, f64)> = light
        .iter()
        .zip(volumes(&before).into_iter().zip(volumes(&after)))
        .map(|((sum, n), (before, after))| (sum / n, after / before))
        .collect();
    by_light.sort_by(|a, b| a.0.total_cmp(&b.0));
    let third = by_light.len() / 3;
    let growth = |part: &[(f64, f64)]| part.iter().map(|(_, g)| g).sum::<f64>() / part.len() as f64;
    let (dim, bright) = (growth(&by_light[..third]), growth(&by_light[by_light.len() - third..]));
    assert!(dim < 0.6 && bright > 0.9, "dim {dim}, bright {bright}");
}

#[test]
fn clusters_leave_the_rest_of_the_field_empty() {
    let mut settings = plain();
    (settings.objects.fill, settings.objects.touching) = (0.4, 0.9);
    settings.objects.placement = Placement::Clusters { count: 1, radius_um: 12.0, hollow: 0.0 };
    let stack = make(&settings);
    let labels = labels(&stack);
    assert!(stack.object_count > 8, "{}", stack.object_count);
    let at = |i: usize| [i / (SHAPE[1] * SHAPE[2]), i / SHAPE[2] % SHAPE[1], i % SHAPE[2]].map(|v| v as f64 * 0.8);
    let inside: Vec<[f64; 3]> = (0..labels.len()).filter(|i| labels[*i] > 0).map(at).collect();
    let middle = [0, 1, 2].map(|a| inside.iter().map(|p| p[a]).sum::<f64>() / inside.len() as f64);
    let furthest = inside.iter().map(|p| (0..3).map(|a| (p[a] - middle[a]).powi(2)).sum::<f64>().sqrt());
    let furthest = furthest.fold(0.0, f64::max);
    assert!(furthest < 12.0 + 12.0, "{furthest} µm from the middle");
}

#[test]
fn mitotic_nuclei_are_smaller_and_brighter() {
    let mut settings = plain();
    settings.objects.brightness_spread = 0.0;
    let measure = |mitotic: f64| {
        let mut settings = settings.clone();
        settings.objects.mitotic = mitotic;
        let stack = make(&settings);
        let (labels, raw) = (labels(&stack), values(stack.raw.samples()));
        let extents = extents(&labels, stack.object_count);
        let inside: Vec<f64> = (0..raw.len()).filter(|i| labels[*i] > 0).map(|i| raw[i] as f64 - 100.0).collect();
        (median(extents.iter().map(|(n, _)| *n)), inside.iter().sum::<f64>() / inside.len() as f64)
    };
    let (others, dividing) = (measure(0.0), measure(1.0));
    assert!(dividing.0 < 0.6 * others.0 && dividing.1 > 1.8 * others.1, "{dividing:?} against {others:?}");
}

#[test]
fn tails_extend_along_z_and_haze_increases_with_depth() {
    let mut settings = plain();
    settings.truth.outline = TruthOutline::Visible { share: 0.2, common: 0.0 };
    let length = |settings: &Settings| {
        let stack = make(settings);
        median(extents(&labels(&stack), stack.object_count).iter().map(|(_, e)| e[0] / (e[1] * e[2]).sqrt()))
    };
    let without = length(&settings);
    (settings.optics.tail_share, settings.optics.tail_sigma_um) = (0.5, [4.0, 0.4, 0.4]);
    assert!(length(&settings) > 1.1 * without);

    // The light between nuclei relative to that inside, at depth and at the top.
    let mut settings = plain();
    (settings.optics.haze, settings.optics.attenuation_per_um) = (0.1, 0.0);
    let deep_haze = |per_um: f64| {
        let mut settings = settings.clone();
        settings.optics.haze_per_um = per_um;
        let stack = make(&settings);
        let (labels, raw) = (labels(&stack), values(stack.raw.samples()));
        let half = raw.len() / 2;
        let dark = |from: usize| {
            let all = (from..from + half).filter(|i| labels[*i] == 0).map(|i| raw[i] as f64 - 100.0);
            all.sum::<f64>() / labels[from..from + half].iter().filter(|l| **l == 0).count() as f64
        };
        dark(half) / dark(0)
    };
    assert!(deep_haze(0.015) > 1.1 * deep_haze(0.0), "{} {}", deep_haze(0.015), deep_haze(0.0));
}

#[test]
fn faint_nuclei_and_debris_are_in_the_image_but_not_in_the_truth() {
    let mut settings = plain();
    settings.objects.brightness_spread = 0.8;
    let all = make(&settings);
    settings.truth.least_brightness = 0.4;
    let some = make(&settings);
    assert_eq!(all.raw, some.raw);
    assert!(some.object_count < all.object_count && some.object_count * 4 > all.object_count);
    // Each remaining object is identical to one of the full ground truth.
    let (before, after) = (labels(&all), labels(&some));
    assert!(before.iter().zip(&after).all(|(b, a)| *a == 0 || *b > 0));
    let brightness = |labels: &[usize], with: &dyn Fn(usize) -> bool| {
        let raw = values(all.raw.samples());
        let inside: Vec<usize> = (0..raw.len()).filter(|i| labels[*i] > 0 && with(*i)).map(|i| raw[i]).collect();
        inside.iter().sum::<usize>() as f64 / inside.len() as f64
    };
    let kept = brightness(&before, &|i| after[i] > 0);
    let dropped = brightness(&before, &|i| after[i] == 0);
    assert!(kept > 2.0 * dropped, "{kept} kept, {dropped} dropped");

    let mut settings = plain();
    let clean = make(&settings);
    settings.objects.debris = Debris { count: 40, brightness: 0.5 };
    let littered = make(&settings);
    assert_eq!(clean.labels, littered.labels);
    let mut shining = plain();
    shining.objects.glow = 0.1;
    let shining = make(&shining);
    assert_eq!(clean.labels, shining.labels);
    let sum = |stack: &Simulation| {
        let truth = labels(&clean);
        let raw = values(stack.raw.samples());
        raw.iter().zip(&truth).filter(|(_, l)| **l == 0).map(|(r, _)| r).sum::<usize>()
    };
    // The noise of the sum is about 7000 counts.
    assert!(sum(&shining) > sum(&clean) + 1_000_000, "{} {}", sum(&shining), sum(&clean));
    assert!(sum(&littered) > sum(&clean) + 50_000, "{} {}", sum(&littered), sum(&clean));
}

#[test]
fn options_out_of_range_are_refused_with_their_names() {
    type Change<'a> = (&'a dyn Fn(&mut Settings), &'a str);
    let changes: [Change<'_>; 11] = [
        (&|s| s.objects.glow = 2.0, "objects.glow"),
        (&|s| s.optics.tail_share = 1.0, "optics.tail_share"),
        (&|s| s.optics.haze_sigma_um = [-1.0; 3], "optics.haze_sigma_um"),
        (&|s| s.objects.mitotic = -0.1, "objects.mitotic"),
        (&|s| s.objects.placement = Placement::Clusters { count: 0, radius_um: 9.0, hollow: 0.0 }, "objects.placement"),
        (&|s| s.objects.stretch.zyx = [0.0, 1.0, 1.0], "objects.stretch.zyx"),
        (&|s| s.objects.stretch.flat = 1.1, "objects.stretch.flat"),
        (&|s| s.objects.debris.count = usize::MAX, "objects.debris.count"),
        (
            &|s| s.truth = Truth { outline: TruthOutline::Visible { share: 0.0, common: 0.0 }, ..s.truth },
            "truth.outline",
        ),
        (
            &|s| s.truth = Truth { outline: TruthOutline::Visible { share: 0.2, common: 1.5 }, ..s.truth },
            "truth.outline.visible.common",
        ),
        (&|s| s.truth.least_brightness = f64::NAN, "truth.least_brightness"),
    ];
    for (change, name) in changes {
        let mut settings = plain();
        change(&mut settings);
        let error = simulate(&settings, |_| true).unwrap_err();
        assert!(matches!(&error, SimulateError::BadSetting { what, .. } if what.starts_with(name)), "{error}");
    }
}

/// All options at once.
fn everything() -> Settings {
    let mut settings = plain();
    settings.objects.stretch = Stretch { zyx: [1.5, 1.0, 1.0], spread: 0.2, flat: 0.3 };
    settings.objects.debris = Debris { count: 12, brightness: 0.3 };
    settings.objects.placement = Placement::Clusters { count: 2, radius_um: 22.0, hollow: 0.4 };
    settings.objects.fill = 0.3;
    (settings.objects.mitotic, settings.objects.glow) = (0.1, 0.05);
    (settings.optics.tail_share, settings.optics.haze_per_um) = (0.3, 0.01);
    settings.truth = Truth { outline: TruthOutline::Visible { share: 0.22, common: 0.0 }, least_brightness: 0.35 };
    settings
}

#[test]
fn options_give_the_same_bytes_on_any_number_of_threads_and_valid_labels() {
    let settings = everything();
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| make(&settings))
    };
    let one = on(1);
    assert_eq!(one, on(5));
    let mut sizes = vec![0; one.object_count + 1];
    labels(&one).iter().for_each(|l| sizes[*l] += 1);
    assert!(one.object_count > 5 && sizes[1..].iter().all(|s| *s >= cytoscope_simulate::MIN_OBJECT_VOXELS));
    let text = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    for shape in [[1, 1, 1], [1, 64, 64], [9, 1, 1], [2, 3, 5]] {
        assert_eq!(make(&Settings { shape_zyx: shape, ..settings.clone() }).raw.shape(), shape);
    }
    assert_eq!(simulate(&settings, |fraction| fraction < 0.5), Err(SimulateError::Canceled));
}

#[test]
fn varied_settings_are_reproducible_and_in_range() {
    for kind in Kind::ALL {
        let drawn: Vec<Settings> = (0..200).map(|seed| Settings::varied(kind, [12, 40, 40], seed)).collect();
        assert_eq!(drawn[7], Settings::varied(kind, [12, 40, 40], 7));
        assert_ne!(drawn[7].objects, drawn[8].objects);
        for settings in drawn {
            // Checks the ranges and cancels before the computation.
            let result = simulate(&settings, |fraction| fraction > 0.0);
            assert_eq!(result, Err(SimulateError::Canceled), "{settings:?}");
        }
    }
    for kind in Kind::ALL {
        for shape in [[1, 1, 1], [2, 3, 5]] {
            assert_eq!(make(&Settings::varied(kind, shape, 3)).raw.shape(), shape);
        }
    }
}

#[test]
fn varied_nuclei_have_objects_and_differ() {
    let mut clustered = 0;
    let mut photons = Vec::new();
    let mut sizes = Vec::new();
    for seed in 0..24 {
        let settings = Settings::varied(Kind::Nuclei, [32, 96, 96], seed);
        let stack = make(&settings);
        assert!(stack.object_count >= 1, "seed {seed}: {settings:?}");
        clustered += usize::from(settings.objects.placement != Placement::Field);
        photons.push(settings.camera.photons);
        sizes.push(settings.objects.diameter_um);
    }
    let spread = |v: &[f64]| v.iter().copied().fold(0.0, f64::max) / v.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((6..22).contains(&clustered) && spread(&photons) > 8.0 && spread(&sizes) > 1.7, "{clustered}");
}

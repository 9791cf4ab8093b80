//! What the options beyond the defaults promise, and that leaving them out changes nothing.
#![expect(clippy::unwrap_used, clippy::panic, reason = "functions shared by tests")]

use cytoscope_simulate::{Kind, Settings, Simulation, Stretch, simulate};
use cytoscope_volume::{Samples, VoxelSize};

const SHAPE: [usize; 3] = [48, 96, 96];

/// Well parted nuclei on an isotropic grid, with little noise.
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

/// Per object that no edge cuts: voxels, and standard deviations along Z, Y, X in voxels.
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
fn cards_without_the_options_still_open_and_make_the_same_stack() {
    let settings = plain();
    let mut card = serde_json::to_value(&settings).unwrap();
    for (part, names) in [("objects", &["stretch"][..])] {
        for name in names {
            card[part].as_object_mut().unwrap().remove(*name).unwrap();
        }
    }
    assert_eq!(serde_json::from_value::<Settings>(card).unwrap(), settings);
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

//! Patches have the contents of the files, are aligned and reproducible, and do not depend on how files are read.

use crate::common::{balls, place, places, plain, right_angles, sampler, scene, write, write_with};
use cytoscope_formats::Compression;
use cytoscope_training_data::augment::Scale;
use cytoscope_training_data::{
    AugmentOptions, GapWeight, IgnoreLabel, Normalize, ObjectScale, Outside, Pair, Patch, Sampler, SamplerOptions,
    SourceOptions, Sources, SplitOptions, StackWindow, TargetKind, split,
};
use cytoscope_volume::VoxelSize;
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Computes the height of every voxel of a label volume by brute force.
fn heights(labels: &[u16], [nz, ny, nx]: [usize; 3], um: [f64; 3]) -> Vec<f32> {
    let mut out = vec![0.0f32; labels.len()];
    let at = |i: usize| [i / (ny * nx), i / nx % ny, i % nx];
    let reach: [i64; 3] = um.map(|u| (8.0 / u).ceil() as i64);
    let mut most = std::collections::BTreeMap::<u16, f32>::new();
    for i in 0..labels.len() {
        if labels[i] == 0 {
            continue;
        }
        let [z, y, x] = at(i);
        let mut best = f64::INFINITY;
        for dz in -reach[0]..=reach[0] {
            for dy in -reach[1]..=reach[1] {
                for dx in -reach[2]..=reach[2] {
                    let to = [z as i64 + dz, y as i64 + dy, x as i64 + dx];
                    if to[0] < 0 || to[1] < 0 || to[2] < 0 {
                        continue;
                    }
                    let [a, b, c] = to.map(|v| v as usize);
                    if a >= nz || b >= ny || c >= nx || labels[(a * ny + b) * nx + c] == labels[i] {
                        continue;
                    }
                    let d = (dz as f64 * um[0]).powi(2) + (dy as f64 * um[1]).powi(2) + (dx as f64 * um[2]).powi(2);
                    best = best.min(d);
                }
            }
        }
        out[i] = best.sqrt() as f32;
        let m = most.entry(labels[i]).or_default();
        *m = m.max(out[i]);
    }
    out.iter_mut().zip(labels).filter(|(_, l)| **l > 0).for_each(|(o, l)| *o /= most[l]);
    out
}

#[test]
fn a_patch_without_augmentation_equals_the_file() {
    let shape = [12, 40, 50];
    let (_folder, pair, labels) = scene(shape, [1.0; 3]);
    let sampler = sampler(&[pair], plain([5, 16, 17], TargetKind::Semantic));
    for index in 0..20 {
        let patch = sampler.sample(index).unwrap();
        let first = place(patch.image[0]);
        for (i, v) in patch.image.iter().enumerate() {
            let at = [first[0] + i / (16 * 17), first[1] + i / 17 % 16, first[2] + i % 17];
            assert_eq!(place(*v), at);
            assert_eq!(patch.target[i], f32::from(u8::from(labels[(at[0] * 40 + at[1]) * 50 + at[2]] > 0)));
        }
        assert!(patch.weight.iter().all(|w| *w == 1.0));
    }
}

#[test]
fn all_slices_of_a_patch_of_a_single_plane_repeat_it_and_count() {
    let shape = [1, 40, 50];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    for outside in [Outside::Mirror, Outside::Background] {
        let options = SamplerOptions { outside, ..plain([4, 16, 18], TargetKind::Instances) };
        let patch = sampler(std::slice::from_ref(&pair), options).sample(3).unwrap();
        let len = 16 * 18;
        let counted = patch.weight.chunks(len).filter(|slice| slice.iter().all(|w| *w > 0.0)).count();
        assert_eq!(counted, if outside == Outside::Mirror { 4 } else { 1 });
        if outside == Outside::Mirror {
            let repeats = |values: &[f32]| values.chunks(len).all(|slice| slice == &values[..len]);
            assert!(repeats(patch.image.as_slice()));
            // Foreground and height.
            assert!(patch.target.chunks(4 * len).all(repeats));
        }
    }
}

/// Mirroring and quarter turns move image and target alike: every patch voxel has the foreground and the height of its
/// voxel in the file, computed by brute force.
#[test]
fn mirroring_and_quarter_turns_move_image_and_target_alike() {
    let shape = [24, 48, 48];
    for um in [[1.0; 3], [2.0, 1.0, 1.0]] {
        let (_folder, pair, labels) = scene(shape, um);
        let height = heights(&labels, shape, um);
        let options = SamplerOptions {
            augment: right_angles(),
            margin_um: Some(13.0),
            ..plain([12, 25, 24], TargetKind::Instances)
        };
        let sampler = sampler(&[pair], options);
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..60 {
            let patch = sampler.sample(index).unwrap();
            let n = patch.weight.len();
            let steps = [1, 24, 24 * 25].map(|s| (patch.image[s] - patch.image[0]) as i64);
            seen.insert(steps);
            for i in (0..n).filter(|i| patch.weight[*i] > 0.0) {
                assert_eq!(patch.image[i].fract(), 0.0, "a voxel was interpolated");
                let [z, y, x] = place(patch.image[i]);
                let from = (z * 48 + y) * 48 + x;
                assert_eq!(patch.target[i], f32::from(u8::from(labels[from] > 0)));
                // Objects are cut by the border of patch and margin, but not by that of the stack.
                let inside = z > 6 && z < 17 && y > 12 && y < 35 && x > 12 && x < 35;
                if inside {
                    assert!((patch.target[n + i] - height[from]).abs() < 1e-4, "{um:?} {index} {i}");
                }
            }
        }
        assert!(seen.len() >= 12, "only {} of 16 orientations were drawn", seen.len());
    }
}

/// With an image and labels of one ball, the ball stays bright where its label is under every augmentation.
#[test]
fn image_and_labels_stay_aligned_under_all_augmentations() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, um) = ([30, 60, 60], [2.0, 1.0, 1.0]);
    let mut labels = vec![0u8; 30 * 60 * 60];
    for (i, l) in labels.iter_mut().enumerate() {
        let at = [(i / 3600) as f64 * 2.0 - 30.0, (i / 60 % 60) as f64 - 30.0, (i % 60) as f64 - 30.0];
        *l = u8::from(at.iter().map(|v| v * v).sum::<f64>() < 14.0 * 14.0) * 9;
    }
    let image: Vec<u16> = labels.iter().map(|l| if *l > 0 { 1000 } else { 200 }).collect();
    let at = |n: &str| folder.path().join(n);
    write_with(&at("a.tif"), shape, image, VoxelSize::new_um(um[0], um[1], um[2]), Compression::None);
    write_with(&at("a_masks.tif"), shape, labels, VoxelSize::new_um(um[0], um[1], um[2]), Compression::None);
    let pair = Pair::new("a", at("a.tif"), at("a_masks.tif"));
    let mut everything = AugmentOptions::always();
    everything.illumination.strength = 0.2;
    let voxel_sizes = [None, Some([1.5, 0.8, 0.9])];
    for (voxel_um, augment) in
        voxel_sizes.into_iter().flat_map(|v| [everything, everything.without_intensity()].map(|a| (v, a)))
    {
        let options = SamplerOptions {
            patch_zyx: [24, 48, 48],
            voxel_um,
            augment,
            object_bias: 1.0,
            target: TargetKind::Semantic,
            ..SamplerOptions::default()
        };
        let sampler = sampler(std::slice::from_ref(&pair), options);
        for index in 0..25 {
            let patch = sampler.sample(index).unwrap();
            let counted = || (0..patch.weight.len()).filter(|i| patch.weight[*i] > 0.0);
            let mean = |inside: bool| {
                let of = counted().filter(|i| (patch.target[*i] > 0.5) == inside).map(|i| f64::from(patch.image[i]));
                let values: Vec<f64> = of.collect();
                (values.iter().sum::<f64>() / values.len() as f64, values.len())
            };
            let ((bright, n), (dark, _)) = (mean(true), mean(false));
            assert!(n > 500, "a patch centered on an object shows {n} voxels of it");
            assert!(bright > dark + 0.3, "{index}: {bright} inside, {dark} outside");
            if augment == everything.without_intensity() {
                // The edges of ball and label agree: few voxels are on the wrong side of half the intensity.
                let half = ((bright + dark) / 2.0) as f32;
                let wrong = counted().filter(|i| (patch.image[*i] > half) != (patch.target[*i] > 0.5)).count();
                assert!(wrong * 50 < patch.weight.len(), "{index}: {wrong} voxels on the wrong side");
            }
        }
    }
}

#[test]
fn patches_are_normalized_with_the_statistics_of_the_stack() {
    let shape = [10, 30, 30];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let all: Vec<f64> = places(shape).into_iter().map(f64::from).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let std = (all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
    let mut sorted = all.clone();
    sorted.sort_by(f64::total_cmp);
    let percentile = |p: f64| {
        let at = p / 100.0 * (sorted.len() - 1) as f64;
        sorted[at.floor() as usize] + (sorted[at.ceil() as usize] - sorted[at.floor() as usize]) * at.fract()
    };
    let (low, high) = (percentile(1.0), percentile(99.0));
    let cases = [
        (Normalize::ZeroMeanUnitVariance { eps: 1e-6 }, mean, std + 1e-6),
        (Normalize::ScaleRange { min_percentile: 1.0, max_percentile: 99.0, eps: 1e-6 }, low, high - low + 1e-6),
        (Normalize::FixedZeroMeanUnitVariance { mean: 50.0, std: 4.0 }, 50.0, 4.0),
    ];
    for (normalize, from, by) in cases {
        let options = SamplerOptions { normalize, ..plain(shape, TargetKind::Semantic) };
        let patch = sampler(std::slice::from_ref(&pair), options).sample(0).unwrap();
        for (got, raw) in patch.image.iter().zip(&all) {
            assert!((f64::from(*got) - (raw - from) / by).abs() < 1e-4, "{normalize:?}");
        }
    }
}

#[test]
fn slices_are_normalized_by_themselves_for_networks_on_slices() {
    let shape = [12, 40, 50];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let moments = |normalize_slices| {
        let normalize = Normalize::ZeroMeanUnitVariance { eps: 1e-9 };
        let options = SamplerOptions { normalize, normalize_slices, ..plain([1, 40, 50], TargetKind::Semantic) };
        let sampler = sampler(std::slice::from_ref(&pair), options);
        let patch_moments = |index| {
            let patch = sampler.sample(index).unwrap();
            let n = patch.image.len() as f64;
            let mean = patch.image.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let square = patch.image.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
            (patch.from.center_zyx[0], mean, square - mean * mean)
        };
        (0..12).map(patch_moments).collect::<Vec<(f64, f64, f64)>>()
    };
    let slice_moments = moments(true);
    assert!(slice_moments.iter().any(|(z, ..)| *z != slice_moments[0].0), "patches of several slices are sampled");
    for (z, mean, variance) in slice_moments {
        assert!(mean.abs() < 1e-3 && (variance - 1.0).abs() < 1e-3, "slice {z}: {mean} {variance}");
    }
    assert!(moments(false).iter().all(|(.., variance)| *variance < 0.5), "the stack varies most along Z");
}

#[test]
fn voxels_that_are_not_finite_are_zero_as_in_predictions() {
    let shape = [4, 20, 20];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let values: Vec<f32> = (0..1600).map(|i| if i % 4 == 0 { f32::NAN } else { i as f32 }).collect();
    write_with(&pair.image.path, shape, values, VoxelSize::new_um(1.0, 1.0, 1.0), Compression::None);
    let normalize = Normalize::ZeroMeanUnitVariance { eps: 1e-6 };
    let options = SamplerOptions { normalize, ..plain([2, 16, 16], TargetKind::Semantic) };
    let patch = sampler(&[pair], options).sample(0).unwrap();
    // One column in four; the smallest finite value, 1, becomes about -1.7.
    let count = patch.image.iter().filter(|v| **v == 0.0).count();
    assert_eq!(count, patch.image.len() / 4);
}

#[test]
fn slices_without_finite_intensities_are_zero_for_networks_on_slices() {
    let shape = [3, 20, 20];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let values: Vec<f32> = (0..1200).map(|i| if i < 400 { f32::NAN } else { i as f32 }).collect();
    write_with(&pair.image.path, shape, values, VoxelSize::new_um(1.0, 1.0, 1.0), Compression::None);
    let normalize = Normalize::ScaleRange { min_percentile: 1.0, max_percentile: 99.0, eps: 1e-6 };
    let options = SamplerOptions { normalize, normalize_slices: true, ..plain([1, 20, 20], TargetKind::Semantic) };
    let sampler = sampler(std::slice::from_ref(&pair), options);
    for index in 0..20 {
        let patch = sampler.sample(index).unwrap();
        let is_first = patch.from.center_zyx[0] < 0.5;
        assert!(patch.image.iter().all(|v| v.is_finite() && (*v == 0.0 || !is_first)), "{index}");
        assert!(is_first || patch.image.iter().any(|v| *v > 0.9), "{index}");
    }
}

#[test]
fn stacks_with_known_slices_are_scaled_like_completely_labeled_ones() {
    // Balls with a diameter of 12 µm, of which one slice in four is known.
    let folder = tempfile::tempdir().unwrap();
    let (shape, um) = ([40, 80, 80], [1.0, 0.75, 0.75]);
    let labels = balls(shape, um, 20.0, 6.0);
    let slices: Vec<u16> =
        labels.iter().enumerate().map(|(i, l)| if i / 6400 % 4 == 1 { *l } else { u16::MAX }).collect();
    let voxel_size = VoxelSize::new_um(um[0], um[1], um[2]);
    let voxel_um = |name: &str, labels: Vec<u16>| {
        let at = |part: &str| folder.path().join(format!("{name}_{part}.tif"));
        write_with(&at("raw"), shape, places(shape), voxel_size, Compression::None);
        write_with(&at("labels"), shape, labels, voxel_size, Compression::None);
        let options = SamplerOptions {
            voxel_um: Some([1.0; 3]),
            objects: Some(ObjectScale { nominal_um: 6.0, given: None }),
            ignore_label: Some(IgnoreLabel::Greatest),
            ..plain([8, 16, 16], TargetKind::Instances)
        };
        sampler(&[Pair::new(name, at("raw"), at("labels"))], options).patch_voxel_um(0).unwrap()
    };
    // Objects of twice the nominal diameter: voxels of twice the size.
    for um in [voxel_um("whole", labels), voxel_um("slices", slices)] {
        assert!(um.iter().all(|v| (v - 2.0).abs() < 0.1), "{um:?}");
    }
}

#[test]
fn stacks_without_a_slice_spacing_are_scaled_as_predictions_scale_them() {
    // Balls with a diameter of 12 voxels along X, in slices 3 voxels apart, which the files do not state.
    let folder = tempfile::tempdir().unwrap();
    let shape = [16, 80, 80];
    let labels = balls(shape, [3.0, 1.0, 1.0], 20.0, 6.0);
    let in_plane = VoxelSize { z: None, y: Some(0.2), x: Some(0.2) };
    for (name, voxel_size) in [("none", VoxelSize::default()), ("plane", in_plane)] {
        let at = |part: &str| folder.path().join(format!("{name}_{part}.tif"));
        write_with(&at("raw"), shape, places(shape), voxel_size, Compression::None);
        write_with(&at("labels"), shape, labels.clone(), voxel_size, Compression::None);
        let options = SamplerOptions {
            voxel_um: Some([1.0; 3]),
            objects: Some(ObjectScale { nominal_um: 6.0, given: None }),
            ..plain([8, 16, 16], TargetKind::Instances)
        };
        let um = sampler(&[Pair::new(name, at("raw"), at("labels"))], options).patch_voxel_um(0).unwrap();
        // With slices as far apart as voxels, the balls would be flat, with a diameter of 8.3.
        assert!(um.iter().all(|v| (v - 12.4 / 6.0).abs() < 0.1), "{name}: {um:?}");
    }
}

#[test]
fn patches_centered_on_objects_contain_objects() {
    let shape = [20, 90, 90];
    let folder = tempfile::tempdir().unwrap();
    let mut labels = vec![0u16; 20 * 90 * 90];
    for (n, (z, y, x)) in
        [(3, 5, 5), (10, 80, 40), (18, 20, 85), (9, 9, 60), (2, 60, 70), (15, 75, 9)].into_iter().enumerate()
    {
        labels[(z * 90 + y) * 90 + x] = n as u16 + 1;
        labels[(z * 90 + y) * 90 + x + 1] = n as u16 + 1;
    }
    let at = |n: &str| folder.path().join(n);
    write(&at("a.tif"), shape, places(shape));
    write(&at("a_masks.tif"), shape, labels);
    let pair = Pair::new("a", at("a.tif"), at("a_masks.tif"));
    let with = |object_bias| {
        let options = SamplerOptions { object_bias, ..plain([8, 24, 24], TargetKind::Semantic) };
        let sampler = sampler(std::slice::from_ref(&pair), options);
        let mut seen = std::collections::BTreeSet::new();
        let shown = (0..120)
            .filter(|i| {
                let patch = sampler.sample(*i).unwrap();
                let objects = patch.image.iter().zip(&patch.target).filter(|(_, t)| **t > 0.0);
                seen.extend(objects.map(|(v, _)| *v as usize / 2));
                patch.target.iter().any(|t| *t > 0.0)
            })
            .count();
        (shown, seen.len())
    };
    assert_eq!(with(1.0).0, 120);
    assert!(with(1.0).1 >= 6, "every object is sampled");
    assert!(with(0.0).0 < 60);
}

#[test]
fn targets_of_objects_cut_by_the_patch_are_those_of_whole_objects() {
    let shape = [21, 61, 61];
    let folder = tempfile::tempdir().unwrap();
    let labels: Vec<u8> = (0..21 * 61 * 61)
        .map(|i| {
            let at = [i / 3721, i / 61 % 61, i % 61].map(|v| v as f64);
            u8::from((at[0] - 10.0).powi(2) + (at[1] - 30.0).powi(2) + (at[2] - 30.0).powi(2) < 81.0)
        })
        .collect();
    let at = |n: &str| folder.path().join(n);
    write(&at("a.tif"), shape, places(shape));
    write(&at("a_masks.tif"), shape, labels.clone());
    let pair = Pair::new("a", at("a.tif"), at("a_masks.tif"));
    for target in [TargetKind::Instances, TargetKind::Distance { scale_um: 5.0 }, TargetKind::Flow] {
        let whole = sampler(std::slice::from_ref(&pair), plain(shape, target)).sample(0).unwrap();
        let options = SamplerOptions { margin_um: Some(12.0), ..plain([21, 25, 25], target) };
        let small = sampler(std::slice::from_ref(&pair), options);
        for index in 0..20 {
            let patch = small.sample(index).unwrap();
            let n = patch.weight.len();
            for (i, v) in patch.image.iter().enumerate() {
                let [z, y, x] = place(*v);
                let from = (z * 61 + y) * 61 + x;
                for c in 0..target.channels() {
                    let (got, want) = (patch.target[c * n + i], whole.target[c * labels.len() + from]);
                    assert!((got - want).abs() < 1e-4, "{target:?} channel {c}");
                }
            }
        }
    }
}

#[test]
fn patches_are_resampled_to_the_voxel_size_of_the_network() {
    let shape = [8, 40, 40];
    let (_folder, pair, _) = scene(shape, [2.0, 0.5, 0.5]);
    let options = SamplerOptions { voxel_um: Some([2.0, 1.0, 1.0]), ..plain([4, 12, 12], TargetKind::Instances) };
    let sampler = sampler(&[pair], options);
    assert_eq!(sampler.patch_voxel_um(0), Some([2.0, 1.0, 1.0]));
    let patch = sampler.sample(2).unwrap();
    // Voxels at the border of the stack are averaged with mirrored ones.
    let is_step = |from: usize, to: usize, step: f32| (patch.image[to] - patch.image[from] - step).abs() < 0.1;
    for row in (0..patch.image.len()).step_by(12) {
        assert!((row + 1..row + 10).all(|at| is_step(at, at + 1, 2.0)), "{:?}", &patch.image[row..row + 12]);
    }
    let inside = 144 + 12 + 1;
    assert!(is_step(inside, inside + 12, 200.0) && is_step(inside, inside + 144, 10_000.0));
}

#[test]
fn tiles_cover_every_voxel_once() {
    let shape = [7, 33, 50];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let second = Pair { window: Some(StackWindow { start_zyx: [1, 3, 10], size_zyx: [5, 20, 16] }), ..pair.clone() };
    let sampler = sampler(&[pair, second], plain([4, 16, 16], TargetKind::Semantic));
    assert_eq!(sampler.tile_count(), 2 * 3 * 4 + 2 * 2);
    let mut seen = [std::collections::BTreeMap::new(), std::collections::BTreeMap::new()];
    for i in 0..sampler.tile_count() {
        let tile = sampler.tile(i).unwrap();
        for (v, _) in tile.image.iter().zip(&tile.weight).filter(|(_, w)| **w > 0.0) {
            *seen[tile.from.pair].entry(*v as u64).or_insert(0) += 1;
        }
    }
    assert_eq!((seen[0].len(), seen[1].len()), (7 * 33 * 50, 5 * 20 * 16));
    assert!(seen.iter().all(|s| s.values().all(|n| *n == 1)));
    assert!(sampler.tile(sampler.tile_count()).is_err());
}

/// With one file, training and validation set have no voxel in common.
#[test]
fn the_only_file_is_split_without_leakage() {
    let shape = [8, 40, 60];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    let got = split(&[pair], &SplitOptions::default()).unwrap();
    assert!(got.how.contains("X axis"), "{}", got.how);
    let train = SamplerOptions {
        augment: AugmentOptions::always().without_intensity(),
        ..plain([8, 24, 24], TargetKind::Instances)
    };
    assert_eq!(got.validation[0].window.unwrap().start_zyx, [0, 0, 45]);
    // The image contains column indices: interpolation does not use columns of the validation set.
    write(&got.train[0].image.path, shape, (0..8 * 40 * 60).map(|i| (i % 60) as u8).collect::<Vec<_>>());
    let augmented = sampler(&got.train, train);
    assert!((0..30).all(|i| augmented.sample(i).unwrap().image.iter().all(|v| (0.0..=44.0).contains(v))));
    write(&got.train[0].image.path, shape, places(shape));
    let unchanged = sampler(&got.train, plain([8, 24, 24], TargetKind::Instances));
    let max = (0..50).flat_map(|i| unchanged.sample(i).unwrap().image).map(|v| place(v)[2]).max();
    assert_eq!(max, Some(44));
    let validation = sampler(&got.validation, plain([8, 24, 24], TargetKind::Instances));
    let all: Vec<f32> = (0..validation.tile_count()).flat_map(|i| validation.tile(i).unwrap().image).collect();
    assert!(all.iter().all(|v| place(*v)[2] >= 45));
}

fn patch_bits(patch: &Patch) -> Vec<u32> {
    [&patch.image, &patch.target, &patch.weight].into_iter().flatten().map(|v| v.to_bits()).collect()
}

/// Patches depend neither on the size of the cache nor on the compression of the file, and the cache stays within its
/// budget.
#[test]
fn a_small_cache_gives_the_same_patches_and_stays_within_its_budget() {
    let shape = [40, 150, 160];
    let um = [1.0; 3];
    let labels = balls(shape, um, 12.0, 6.2);
    for compression in [Compression::None, Compression::Deflate] {
        let folder = tempfile::tempdir().unwrap();
        let at = |n: &str| folder.path().join(n);
        write_with(&at("a.ome.tif"), shape, places(shape), VoxelSize::default(), compression);
        write_with(&at("a_masks.ome.tif"), shape, labels.clone(), VoxelSize::default(), compression);
        let pair = Pair::new("a", at("a.ome.tif"), at("a_masks.ome.tif"));
        let with = |cache_bytes: u64| {
            let sources = Sources::open(std::slice::from_ref(&pair), &SourceOptions { cache_bytes }).unwrap();
            let options = SamplerOptions {
                patch_zyx: [16, 40, 40],
                augment: AugmentOptions::always(),
                ..SamplerOptions::default()
            };
            Sampler::new(Arc::new(sources), options).unwrap()
        };
        // The stacks take 3.8 and 1.9 MB.
        let (large, small) = (with(64 << 20), with(1 << 20));
        assert!(large.sources().keeps_all() && !small.sources().keeps_all());
        for index in 0..12 {
            assert_eq!(patch_bits(&large.sample(index).unwrap()), patch_bits(&small.sample(index).unwrap()));
        }
        let about = small.sources().cache_use();
        assert!(about.peak_bytes <= 1 << 20 && about.misses > 0, "{about:?}");
        assert_eq!(large.sources().cache_use().misses, 2);
    }
}

#[test]
fn patches_depend_only_on_seed_and_index() {
    let (_folder, pair, _) = scene([16, 48, 48], [1.0; 3]);
    let with = |seed| SamplerOptions {
        seed,
        patch_zyx: [8, 24, 24],
        augment: AugmentOptions::always(),
        ..SamplerOptions::default()
    };
    let (a, b) = (sampler(std::slice::from_ref(&pair), with(1)), sampler(std::slice::from_ref(&pair), with(1)));
    let forward: Vec<_> = (0..6).map(|i| a.sample(i).unwrap()).collect();
    let backward: Vec<_> = (0..6).rev().map(|i| b.sample(i).unwrap()).collect();
    assert!(forward.iter().zip(backward.iter().rev()).all(|(f, b)| f == b));
    assert_ne!(forward[0].image, forward[1].image);
    let other = sampler(&[pair], with(2));
    assert_ne!(forward[0].image, other.sample(0).unwrap().image);
    assert_eq!(a.fingerprint(), b.fingerprint());
    assert_ne!(a.fingerprint(), other.fingerprint());
}

#[test]
fn invalid_options_and_pairs_are_refused() {
    let shape = [8, 20, 20];
    let (folder, pair, _) = scene(shape, [1.0; 3]);
    let sources = || Arc::new(Sources::open(std::slice::from_ref(&pair), &SourceOptions::default()).unwrap());
    let refused = |options: SamplerOptions| Sampler::new(sources(), options).unwrap_err().to_string();
    let usual = SamplerOptions::default;
    assert!(refused(SamplerOptions { patch_zyx: [0, 8, 8], ..usual() }).contains("the patch"));
    assert!(refused(SamplerOptions { patch_zyx: [4096, 4096, 4096], ..usual() }).contains("MAX_PATCH_VOXELS"));
    assert!(refused(SamplerOptions { object_bias: 1.5, ..usual() }).contains("object_bias"));
    assert!(refused(SamplerOptions { voxel_um: Some([1.0, 0.0, 1.0]), ..usual() }).contains("voxel size"));
    let augment =
        AugmentOptions { scale: Scale { min: 2.0, max: 1.0, ..Scale::default() }, ..AugmentOptions::default() };
    assert!(refused(SamplerOptions { augment, ..usual() }).contains("augment.scale"));
    // A file with small voxels and a network with large ones.
    let options = SamplerOptions { voxel_um: Some([100.0; 3]), ..usual() };
    let error = Sampler::new(sources(), options).unwrap().sample(0).unwrap_err().to_string();
    assert!(error.contains("MAX_BOX_VOXELS"), "{error}");
    let other = folder.path().join("other.tif");
    write(&other, [8, 20, 21], vec![1u8; 8 * 20 * 21]);
    let open = |pair: Pair| Sources::open(&[pair], &SourceOptions::default()).unwrap_err().to_string();
    assert!(open(Pair::new("x", &pair.image.path, &other)).contains("[8, 20, 21]"));
    assert!(open(Pair::new("x", Path::new("none.tif"), &other)).contains("none.tif"));
    let outside = StackWindow { start_zyx: [0, 0, 15], size_zyx: [8, 20, usize::MAX] };
    assert!(open(Pair { window: Some(outside), ..pair.clone() }).contains("exceeds its shape"));
    assert!(Sources::open(&[], &SourceOptions::default()).is_err());
}

#[test]
fn options_have_defaults_and_reject_unknown_fields() {
    let options: SamplerOptions = serde_json::from_str(
        r#"{"patch_zyx": [16, 64, 64], "target": {"kind": "distance", "scale_um": 3},
            "normalise": {"kind": "scale_range", "min_percentile": 1, "max_percentile": 99.8},
            "augment": {"contrast": {"probability": 0.9}}, "ignore_label": {"value": -1}, "gap_weight": {}}"#,
    )
    .unwrap();
    assert_eq!(options.augment.contrast.probability, 0.9);
    assert_eq!(options.augment.contrast.max, AugmentOptions::default().contrast.max);
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<SamplerOptions>(&text).unwrap(), options);
    for wrong in [r#"{"patch": [1, 1, 1]}"#, r#"{"augment": {"flop": {}}}"#, r#"{"augment": {"flip": {"w": 1}}}"#] {
        assert!(serde_json::from_str::<SamplerOptions>(wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// For any options, patches are finite, and targets and weights are within their ranges.
    #[test]
    fn values_of_patches_are_in_range(
        patch in (1usize..14, 1usize..30, 1usize..30),
        um in (0.3f64..3.0, 0.3f64..3.0),
        kind in 0usize..5,
        seed in 0u64..1000,
        model in any::<bool>(),
    ) {
        let (_folder, pair, _) = scene([9, 26, 31], [um.0, um.1, um.1 * 1.1]);
        let target = [
            TargetKind::Semantic, TargetKind::Instances, TargetKind::Flow,
            TargetKind::Boundary { width_um: 1.0 }, TargetKind::Distance { scale_um: 2.0 },
        ][kind];
        let options = SamplerOptions {
            patch_zyx: [patch.0, patch.1, patch.2],
            voxel_um: model.then_some([1.0, 0.7, 0.7]),
            augment: AugmentOptions::always(),
            seed,
            target,
            gap_weight: Some(GapWeight::default()),
            ..SamplerOptions::default()
        };
        let sampler = sampler(&[pair], options);
        let patch = sampler.sample(seed).unwrap();
        prop_assert!(patch.image.iter().all(|v| v.is_finite() && v.abs() < 100.0));
        prop_assert!(patch.target.iter().all(|v| (-1.0..=1.0).contains(v)));
        prop_assert!(patch.weight.iter().all(|v| (0.0..=5.0).contains(v)));
        prop_assert_eq!(patch.target.len(), target.channels() * patch.image.len());
        let tile = sampler.tile(sampler.tile_count() - 1).unwrap();
        prop_assert!(tile.weight.iter().any(|w| *w > 0.0));
    }
}

/// More files than may be open at a time, a cache too small for any of them, and a pair with weight 0.
#[test]
fn more_files_than_open_file_limit_can_be_sampled() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [4, 64, 64];
    let mut pairs = Vec::new();
    for i in 0..60u16 {
        let at = |n: &str| folder.path().join(format!("{i}{n}.tif"));
        write(&at(""), shape, (0..4 * 64 * 64).map(|v| i * 1000 + v % 100).collect::<Vec<u16>>());
        write(&at("_masks"), shape, (0..4 * 64 * 64).map(|v| 1 + v / 2000).collect::<Vec<u16>>());
        let weight = f64::from(u8::from(i != 7));
        pairs.push(Pair { weight, ..Pair::new(i.to_string(), at(""), at("_masks")) });
    }
    assert!(2 * pairs.len() > cytoscope_training_data::limits::MAX_OPEN_FILES);
    let sources = Arc::new(Sources::open(&pairs, &SourceOptions { cache_bytes: 100_000 }).unwrap());
    let sampler = Sampler::new(sources, plain([4, 16, 16], TargetKind::Semantic)).unwrap();
    let mut drawn = std::collections::BTreeSet::new();
    for index in 0..600 {
        let patch = sampler.sample(index).unwrap();
        assert_eq!(patch.image[0] as usize / 1000, patch.from.pair);
        drawn.insert(patch.from.pair);
    }
    assert_eq!(drawn.len(), 59);
    assert!(!drawn.contains(&7));
    let about = sampler.sources().cache_use();
    assert!(about.peak_bytes <= 100_000, "{about:?}");
}

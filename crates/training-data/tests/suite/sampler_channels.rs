//! Several channels and stains of a patch stay aligned, and are normalized and changed one by one.

use crate::common::{balls, place, places, plain, right_angles, sampler, scene, write};
use cytoscope_training_data::augment::{Elastic, Flip, Rotate, Scale};
use cytoscope_training_data::{
    AugmentOptions, ImageRef, Normalize, Pair, SamplerOptions, SourceOptions, Sources, TargetKind,
};
use std::path::Path;

#[test]
fn a_stain_stays_aligned_and_keeps_its_intensities() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [16, 40, 40];
    let image = places(shape);
    let stain: Vec<f32> = image.iter().map(|v| 3.0 * v + 7.0).collect();
    let at = |n: &str| folder.path().join(n);
    write(&at("a_bf.tif"), shape, image);
    write(&at("a_fluo.tif"), shape, stain);
    let options = SamplerOptions {
        augment: AugmentOptions {
            elastic: Elastic { probability: 1.0, ..Elastic::default() },
            scale: Scale { probability: 1.0, ..Scale::default() },
            rotate: Rotate { quarter_turns: 1.0, any_angle: 1.0 },
            ..right_angles()
        },
        ..plain([8, 24, 24], TargetKind::Regression)
    };
    let sampler = sampler(&[Pair::new("a", at("a_bf.tif"), at("a_fluo.tif"))], options);
    for index in 0..10 {
        let patch = sampler.sample(index).unwrap();
        for (i, t) in patch.image.iter().zip(&patch.target) {
            assert!((t - (3.0 * i + 7.0)).abs() < 0.1, "{t} {i}");
        }
    }
    assert!((sampler.target_moments()[0].min - 7.0).abs() < 1e-6);
}

#[test]
fn stains_are_mirrored_along_z_on_request_only() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [16, 40, 40];
    let at = |n: &str| folder.path().join(n);
    write(&at("a_bf.tif"), shape, places(shape));
    write(&at("a_fluo.tif"), shape, places(shape));
    let stain = Pair::new("a", at("a_bf.tif"), at("a_fluo.tif"));
    let (_folder, labels, _) = scene(shape, [1.0; 3]);
    let mirrored = |pair: &Pair, target: TargetKind, z: Option<f64>| {
        let augment = AugmentOptions { flip: Flip { z, ..Flip::default() }, ..AugmentOptions::none() };
        let sampler = sampler(std::slice::from_ref(pair), SamplerOptions { augment, ..plain([8, 24, 24], target) });
        // The first voxels of the first and the last slice: a patch may begin or end outside the stack, where slices are repeated.
        let is_mirrored = |image: &Vec<f32>| image[0] > image[7 * 24 * 24];
        (0..40).map(|index| sampler.sample(index).unwrap().image).filter(is_mirrored).count()
    };
    let of_stain = [None, Some(0.0), Some(1.0)].map(|z| mirrored(&stain, TargetKind::Regression, z));
    assert_eq!(of_stain, [0, 0, 40]);
    let of_labels = mirrored(&labels, TargetKind::Semantic, None);
    assert!((8..32).contains(&of_labels), "{of_labels}");
}

/// Writes the channels of the image and those of the target of a pair, each as a file.
fn write_channel_pair(folder: &Path, shape: [usize; 3], images: &[Vec<f32>], targets: &[Vec<f32>]) -> Pair {
    let files = |kind: &str, channels: &[Vec<f32>]| -> Vec<ImageRef> {
        let mut all = Vec::new();
        for (i, values) in channels.iter().enumerate() {
            let path = folder.join(format!("{kind}{i}.tif"));
            write(&path, shape, values.clone());
            all.push(ImageRef::of(path));
        }
        all
    };
    let (mut images, mut targets) = (files("image", images), files("target", targets));
    let (more_images, more_targets) = (images.split_off(1), targets.split_off(1));
    Pair { more_images, more_targets, ..Pair::new("a", &images[0].path, &targets[0].path) }
}

/// All channels and stains are moved alike, and each channel is normalized by its own statistics.
#[test]
fn channels_of_a_patch_are_aligned_and_normalized_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [16, 40, 40];
    let image = places(shape);
    let scaled = |factor: f32, offset: f32| image.iter().map(|v| factor * v + offset).collect::<Vec<f32>>();
    let images = [image.clone(), scaled(-0.5, 9.0)];
    let pair = write_channel_pair(folder.path(), shape, &images, &[scaled(3.0, 7.0), scaled(0.25, 0.0)]);
    let geometric = AugmentOptions {
        elastic: Elastic { probability: 1.0, ..Elastic::default() },
        rotate: Rotate { quarter_turns: 1.0, any_angle: 1.0 },
        ..right_angles()
    };
    let raw = SamplerOptions { augment: geometric, ..plain([8, 24, 24], TargetKind::Regression) };
    let one = SamplerOptions { normalize: Normalize::ZeroMeanUnitVariance { eps: 1e-9 }, ..raw.clone() };
    let (raw, normalized) = (sampler(std::slice::from_ref(&pair), raw), sampler(std::slice::from_ref(&pair), one));
    let n = 8 * 24 * 24;
    for index in 0..5 {
        let patch = raw.sample(index).unwrap();
        assert_eq!((patch.image_channels, patch.channels, patch.weight.len()), (2, 2, n));
        assert_eq!((patch.image.len(), patch.target.len()), (2 * n, 2 * n));
        for i in 0..n {
            let v = patch.image[i];
            let expected = [-0.5 * v + 9.0, 3.0 * v + 7.0, 0.25 * v];
            let found = [patch.image[n + i], patch.target[i], patch.target[n + i]];
            assert!(expected.iter().zip(found).all(|(e, f)| (e - f).abs() < 0.1), "{expected:?} {found:?}");
        }
        // The second channel decreases where the first one increases, in the same units.
        let patch = normalized.sample(index).unwrap();
        let (first, second) = patch.image.split_at(n);
        assert!(first.iter().zip(second).all(|(a, b)| (a + b).abs() < 1e-3));
    }
    let moments = raw.target_moments();
    assert!(moments.len() == 2 && (moments[0].min - 7.0).abs() < 1e-6 && moments[1].min.abs() < 1e-6);
    assert!(raw.tile(0).unwrap().image_channels == 2);
}

#[test]
fn voxels_where_a_stain_is_not_finite_have_weight_zero() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [16, 40, 40];
    let image = places(shape);
    let stain: Vec<f32> = image.iter().map(|v| if place(*v)[2] < 20 { v + 7.0 } else { f32::NAN }).collect();
    let pair = write_channel_pair(folder.path(), shape, std::slice::from_ref(&image), &[stain, image.clone()]);
    let sampler = sampler(&[pair], plain([8, 24, 24], TargetKind::Regression));
    let n = 8 * 24 * 24;
    let mut counts = [0; 2];
    for index in 0..8 {
        let patch = sampler.sample(index).unwrap();
        for i in 0..n {
            let (v, found) = (patch.image[i], (patch.target[i], patch.target[n + i], patch.weight[i]));
            match place(v)[2] {
                20.. => assert_eq!(found, (7.0, v, 0.0), "missing"),
                // The next voxel is missing, from which this one may be interpolated.
                x if x == 19 || patch.weight[i] == 0.0 => continue,
                _ => assert_eq!(found, (v + 7.0, v, 1.0), "known"),
            }
            counts[usize::from(found.2 > 0.0)] += 1;
        }
    }
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Intensities of each channel change by themselves, and the first channel is that of a pair without further channels
/// as long as no noise is drawn.
#[test]
fn intensities_of_channels_change_independently() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [12, 40, 40];
    let image = places(shape);
    let labels: Vec<f32> = balls(shape, [1.0; 3], 12.0, 6.2).into_iter().map(f32::from).collect();
    let two = write_channel_pair(folder.path(), shape, &[image.clone(), image], &[labels]);
    let single = Pair { more_images: Vec::new(), ..two.clone() };
    let mut augment = right_angles();
    augment.contrast.probability = 1.0;
    augment.brightness.probability = 1.0;
    let options = SamplerOptions { augment, ..plain([8, 16, 16], TargetKind::Semantic) };
    let (two, single) = (sampler(&[two], options.clone()), sampler(&[single], options));
    for index in 0..5 {
        let (both, alone) = (two.sample(index).unwrap(), single.sample(index).unwrap());
        let (first, second) = both.image.split_at(8 * 16 * 16);
        assert_eq!((first, &both.target, &both.weight), (&alone.image[..], &alone.target, &alone.weight));
        assert_ne!(first, second);
    }
}

#[test]
fn channels_that_do_not_fit_their_pair_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [4, 16, 16];
    let (image, labels) = (places(shape), vec![1.0f32; 1024]);
    let pair = write_channel_pair(folder.path(), shape, &[image.clone(), image], &[labels]);
    let other = folder.path().join("other.tif");
    write(&other, [4, 16, 15], vec![1.0f32; 960]);
    let refused = |pairs: &[Pair]| Sources::open(pairs, &SourceOptions::default()).unwrap_err().to_string();
    let odd = Pair { more_images: vec![ImageRef::of(&other)], ..pair.clone() };
    assert!(refused(&[odd]).contains("other.tif"));
    let single = Pair { more_images: Vec::new(), name: "b".to_owned(), ..pair.clone() };
    let error = refused(&[pair, single]);
    assert!(error.contains("1 image channels") && error.contains("2 and 1"), "{error}");
}

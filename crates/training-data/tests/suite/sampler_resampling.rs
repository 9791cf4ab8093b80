//! Patches of stacks with small voxels are resampled as predictions resample these stacks.

use crate::common::{plain, sampler, write_with};
use cytoscope_formats::Compression;
use cytoscope_training_data::augment::Rotate;
use cytoscope_training_data::{AugmentOptions, Pair, SamplerOptions, TargetKind};
use cytoscope_volume::VoxelSize;
use cytoscope_volume::resample::{AxisMap, linear};
use std::path::Path;

const SHAPE: [usize; 3] = [6, 60, 84];

/// Returns noise, which is different in neighboring voxels.
fn noise() -> Vec<f32> {
    (0..SHAPE.iter().product()).map(|i: usize| ((i * 7919 + i / 84 * 31) % 101) as f32).collect()
}

/// Writes a pair of noise, with labels that are all background but for one object.
fn noise_pair(folder: &Path) -> Pair {
    let voxel = VoxelSize::new_um(1.0, 0.25, 0.2);
    let labels: Vec<u8> = (0..SHAPE.iter().product()).map(|i: usize| u8::from(i % 84 > 40)).collect();
    let [image, target] = ["a_raw.tif", "a_labels.tif"].map(|name| folder.join(name));
    write_with(&image, SHAPE, noise(), voxel, Compression::None);
    write_with(&target, SHAPE, labels, voxel, Compression::None);
    Pair::new("a", image, target)
}

#[test]
fn tiles_have_the_values_of_predictions() {
    let folder = tempfile::tempdir().unwrap();
    // Three and five voxels of the stack per voxel of the network along Y and X.
    let to = [6, 20, 17];
    let um = [1.0, 0.75, 84.0 / 17.0 * 0.2];
    let options = SamplerOptions { voxel_um: Some(um), ..plain(to, TargetKind::Semantic) };
    let sampler = sampler(&[noise_pair(folder.path())], options);
    assert_eq!(sampler.tile_count(), 1);
    let tile = sampler.tile(0).unwrap();
    let maps: [AxisMap; 3] = std::array::from_fn(|a| AxisMap::new(SHAPE[a], to[a]));
    let expected = linear(&noise(), 0, [SHAPE[1], SHAPE[2]], &maps, 0..to[0]);
    for (i, (found, expected)) in tile.image.iter().zip(&expected).enumerate() {
        let [y, x] = [i / to[2] % to[1], i % to[2]];
        // Predictions repeat the border, and patches are mirrored there.
        if (2..to[1] - 2).contains(&y) && (2..to[2] - 2).contains(&x) {
            assert!((found - expected).abs() < 0.01, "{y}, {x}: {found}, expected {expected}");
        }
    }
}

#[test]
fn noise_of_small_voxels_is_averaged_in_rotated_patches_too() {
    let folder = tempfile::tempdir().unwrap();
    let pair = noise_pair(folder.path());
    let spread = |voxel_um: Option<[f64; 3]>, any_angle: f64| {
        let rotate = Rotate { quarter_turns: 0.0, any_angle };
        let augment = AugmentOptions { rotate, ..AugmentOptions::none() };
        let options = SamplerOptions { voxel_um, augment, ..plain([4, 10, 10], TargetKind::Semantic) };
        let sampler = sampler(std::slice::from_ref(&pair), options);
        let values: Vec<f64> = (0..4).flat_map(|index| sampler.sample(index).unwrap().image).map(f64::from).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    let full = spread(None, 0.0);
    assert!(full > 20.0, "{full}");
    for any_angle in [0.0, 1.0] {
        let averaged = spread(Some([1.0, 1.0, 1.0]), any_angle);
        assert!(averaged < 0.4 * full, "{averaged} of {full}");
    }
}

//! Test helpers: small stacks on disk, and samplers of patches.

use cytoscope_formats::{Compression, WriteSpec, container_for_path, write_array};
use cytoscope_training_data::augment::{Flip, Rotate};
use cytoscope_training_data::{
    AugmentOptions, Dataset, Normalize, Pair, Sampler, SamplerOptions, SourceOptions, Sources, TargetKind,
};
use cytoscope_volume::{Array, Samples, VoxelSize};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Writes a stack Z, Y, X; its folder is created.
pub fn write(path: &Path, shape: [usize; 3], samples: impl Into<Samples>) {
    write_with(path, shape, samples, VoxelSize::default(), Compression::None);
}

/// Writes a stack with a voxel size and compression.
pub fn write_with(
    path: &Path,
    shape: [usize; 3],
    samples: impl Into<Samples>,
    voxel: VoxelSize,
    compression: Compression,
) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let array = Array::new("ZYX".parse().unwrap(), shape.to_vec(), samples).unwrap();
    let mut spec = WriteSpec::of(&array, container_for_path(path).unwrap());
    spec.voxel_size_um = voxel;
    spec.compression = compression;
    write_array(path, &array, &spec).unwrap();
}

/// Returns shape, image and labels of a tiny pair that passes every check; different for each number.
pub fn tiny(number: usize) -> ([usize; 3], Vec<u16>, Vec<u16>) {
    let shape = [4, 8, 10];
    let labels: Vec<u16> = (0..320)
        .map(|i| match i % 10 {
            1..=3 => 1 + (i / 80 / 2) as u16,
            5..=8 => 3,
            _ => 0,
        })
        .collect();
    let image = labels.iter().enumerate().map(|(i, l)| 100 + 50 * l + ((i * 31 + number * 7) % 17) as u16).collect();
    (shape, image, labels)
}

/// Writes a tiny pair.
pub fn tiny_pair(image: &Path, target: &Path, number: usize) {
    let (shape, raw, labels) = tiny(number);
    write(image, shape, raw);
    write(target, shape, labels);
}

/// Returns labels of balls on a lattice, some of which touch: `[Z][Y][X]`.
pub fn balls([nz, ny, nx]: [usize; 3], voxel_um: [f64; 3], step_um: f64, radius_um: f64) -> Vec<u16> {
    let mut labels = vec![0u16; nz * ny * nx];
    for (i, label) in labels.iter_mut().enumerate() {
        let index = [i / (ny * nx), i / nx % ny, i % nx];
        let at: [f64; 3] = std::array::from_fn(|a| index[a] as f64 * voxel_um[a]);
        let cell = at.map(|v| (v / step_um).floor());
        let away: f64 = (0..3).map(|a| (at[a] - (cell[a] + 0.5) * step_um).powi(2)).sum();
        if away < radius_um * radius_um && (cell[0] + cell[1] + 2.0 * cell[2]) % 4.0 != 0.0 {
            *label = (cell[0] * 100.0 + cell[1] * 10.0 + cell[2]) as u16 + 1;
        }
    }
    labels
}

/// Returns voxel values that encode their position: `z · 10 000 + y · 100 + x`.
pub fn places([nz, ny, nx]: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::new();
    (0..nz).for_each(|z| (0..ny).for_each(|y| (0..nx).for_each(|x| out.push((z * 10_000 + y * 100 + x) as f32))));
    out
}

/// Returns the position of a voxel whose value encodes it, as in [`places`].
pub fn place(value: f32) -> [usize; 3] {
    let v = value as usize;
    [v / 10_000, v / 100 % 100, v % 100]
}

/// Writes a pair whose image encodes positions and whose labels are balls.
pub fn scene(shape: [usize; 3], voxel_um: [f64; 3]) -> (TempDir, Pair, Vec<u16>) {
    let folder = tempfile::tempdir().unwrap();
    let labels = balls(shape, voxel_um, 12.0, 6.2);
    let [z, y, x] = voxel_um;
    let (image, target) = (folder.path().join("a_raw.tif"), folder.path().join("a_labels.tif"));
    write_with(&image, shape, places(shape), VoxelSize::new_um(z, y, x), Compression::None);
    write_with(&target, shape, labels.clone(), VoxelSize::new_um(z, y, x), Compression::None);
    (folder, Pair::new("a", image, target), labels)
}

/// Opens pairs for patches.
pub fn sampler(pairs: &[Pair], options: SamplerOptions) -> Sampler {
    Sampler::new(Arc::new(Sources::open(pairs, &SourceOptions::default()).unwrap()), options).unwrap()
}

/// Options without augmentation and normalization.
pub fn plain(patch_zyx: [usize; 3], target: TargetKind) -> SamplerOptions {
    SamplerOptions {
        patch_zyx,
        target,
        augment: AugmentOptions::none(),
        normalize: Normalize::None,
        ..SamplerOptions::default()
    }
}

/// Augmentation by mirroring and quarter turns.
pub fn right_angles() -> AugmentOptions {
    AugmentOptions {
        flip: Flip { z: Some(0.5), y: 0.5, x: 0.5 },
        rotate: Rotate { quarter_turns: 1.0, any_angle: 0.0 },
        ..AugmentOptions::none()
    }
}

/// Returns the names of the pairs, and those of their files.
pub fn names(dataset: &Dataset) -> Vec<(String, String, String)> {
    let file = |p: &Path| p.file_name().unwrap().to_string_lossy().into_owned();
    dataset.pairs.iter().map(|p| (p.name.clone(), file(&p.image.path), file(&p.target.path))).collect()
}

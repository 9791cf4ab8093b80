//! Visible ground truth: outlines where the blurred light of a nucleus fades, without nuclei that are too dim.

use crate::{
    Optics, Settings, SimulateError, TruthOutline,
    exposure::{self, Illumination},
    grid::Grid,
    nuclei::Nucleus,
    progress::ProgressRange,
    truth::{self, InclusiveBounds},
};
use rayon::prelude::*;

/// Mean light of every nucleus: the light of its voxels (`light`, before any blur) after attenuation and uneven
/// illumination.
pub(crate) fn mean_light(labels: &[u32], light: &[f32], count: usize, settings: &Settings, grid: &Grid) -> Vec<f64> {
    let lit = Illumination::new(settings, grid);
    let mut sums = vec![(0.0f64, 0.0f64); count];
    let row = grid.shape[2];
    for (line, (labels, light)) in labels.chunks_exact(row).zip(light.chunks_exact(row)).enumerate() {
        let (z, y) = (line / grid.shape[1], line % grid.shape[1]);
        let z_um = grid.position_um(0, z);
        let depth = (-settings.optics.attenuation_per_um * z_um).exp();
        for (x, (label, value)) in labels.iter().zip(light).enumerate().filter(|(_, (l, _))| **l > 0) {
            let (sum, voxels) = &mut sums[*label as usize - 1];
            *sum += depth * lit.at([z_um, grid.position_um(1, y), grid.position_um(2, x)]) * f64::from(*value);
            *voxels += 1.0;
        }
    }
    sums.iter().map(|(sum, voxels)| sum / voxels.max(1.0)).collect()
}

/// Which nuclei are bright enough for the ground truth: those with at least `min_fraction` of the 75th percentile of
/// `brightness`.
pub(crate) fn bright_enough(brightness: &[f64], min_fraction: f64) -> Vec<bool> {
    let bright = bright_level(brightness);
    brightness.iter().map(|b| *b >= min_fraction * bright).collect()
}

/// Brightness of bright nuclei: the 75th percentile.
fn bright_level(brightness: &[f64]) -> f64 {
    let mut sorted = brightness.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(3 * sorted.len().saturating_sub(1) / 4).copied().unwrap_or(0.0)
}

/// Largest level of an outline relative to the nucleus' own peak; without this limit the dimmest nuclei would vanish.
const MAX_LEVEL: f64 = 0.75;

/// Level of the outline of a nucleus relative to its own peak. `relative` is its peak relative to the brightness of
/// bright nuclei.
fn level(share: f64, common: f64, relative: f64) -> f64 {
    let level = share * relative.max(1e-6).powf(-common);
    level.min(MAX_LEVEL.max(share))
}

/// Changes `labels` (1 + index in `nuclei`, whose light is `mean_light`) to the outlines defined by the settings.
/// Returns for each nucleus the fraction of its light that remains at its brightest position after blur (1 if outlines
/// follow the bodies).
pub(crate) fn outline(
    labels: &mut [u32],
    nuclei: &[Nucleus],
    mean_light: &[f64],
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<Vec<f32>, SimulateError> {
    let mut peaks = vec![1.0f32; nuclei.len()];
    let TruthOutline::Visible { share, common } = settings.truth.outline else { return Ok(peaks) };
    let bright = bright_level(mean_light).max(f64::MIN_POSITIVE);
    let boxes: Vec<(usize, StackBox)> = truth::bounds(labels, grid, nuclei.len())
        .into_iter()
        .enumerate()
        .filter_map(|(i, b)| Some((i, StackBox::around(b?, &settings.optics, grid))))
        .collect();
    let mut largest = vec![0.0f32; grid.len()];
    let mut owner = vec![0u32; grid.len()];
    let mut rest = &boxes[..];
    while !rest.is_empty() {
        progress.at(1.0 - rest.len() as f64 / boxes.len() as f64)?;
        // The windows processed at once have at most as many voxels as the stack, which limits the memory.
        let mut voxels = 0;
        let fit = rest.iter().take(64).take_while(|(_, window)| {
            voxels += window.grid.len();
            voxels <= grid.len()
        });
        let (now, later) = rest.split_at(fit.count().max(1));
        rest = later;
        let seen: Vec<Vec<f32>> = now
            .par_iter()
            .map(|(i, window)| window.own_light(labels, *i, &settings.optics, grid))
            .collect::<Result<_, _>>()?;
        for ((i, window), light) in now.iter().zip(seen) {
            let peak = light.iter().copied().fold(0.0, f32::max);
            peaks[*i] = peak;
            let brightness = nuclei[*i].brightness();
            let level = level(share, common, mean_light[*i] * f64::from(peak) / bright) as f32;
            for (at, value) in light.into_iter().enumerate() {
                let here = window.index(at, grid);
                if value > 0.0 && value >= level * peak && brightness * value > largest[here] {
                    largest[here] = brightness * value;
                    owner[here] = *i as u32 + 1;
                }
            }
        }
    }
    labels.copy_from_slice(&owner);
    Ok(peaks)
}

/// A box inside the stack.
struct StackBox {
    first: [usize; 3],
    grid: Grid,
}

impl StackBox {
    /// The box in which a nucleus can be visible.
    fn around(bounds: InclusiveBounds, optics: &Optics, grid: &Grid) -> Self {
        let reach_um = exposure::reach_um(optics);
        let margin = [0, 1, 2].map(|a| (reach_um[a] / grid.voxel_um[a]).ceil() as usize + 1);
        let first = [0, 1, 2].map(|a| bounds.low[a].saturating_sub(margin[a]));
        let shape = [0, 1, 2].map(|a| (bounds.high[a] + margin[a] + 1).min(grid.shape[a]) - first[a]);
        Self { first, grid: Grid { shape, voxel_um: grid.voxel_um } }
    }

    /// Index in the stack of a voxel of this box.
    fn index(&self, at: usize, grid: &Grid) -> usize {
        let [_, rows, row] = self.grid.shape;
        let [z, y, x] = [at / (rows * row), at / row % rows, at % row];
        ((self.first[0] + z) * grid.shape[1] + self.first[1] + y) * grid.shape[2] + self.first[2] + x
    }

    /// Blurred light of a nucleus with the uniform brightness 1; uniform, so that dark nucleoli do not cause holes.
    fn own_light(&self, labels: &[u32], index: usize, optics: &Optics, grid: &Grid) -> Result<Vec<f32>, SimulateError> {
        let own = index as u32 + 1;
        let mut light: Vec<f32> =
            (0..self.grid.len()).map(|at| f32::from(u8::from(labels[self.index(at, grid)] == own))).collect();
        exposure::focus(&mut light, &mut Vec::new(), &self.grid, optics, &ProgressRange::new(&|_| true))?;
        Ok(light)
    }
}

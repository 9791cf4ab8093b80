//! Pairs that are prepared for sampling: normalization, objects, voxel sizes and tiles.

use super::SamplerOptions;
use crate::augment::geometry::Grids;
use crate::error::TrainingDataError;
use crate::normalize::{Normalize, Scaling, scaling, slice_scalings};
use crate::objects::{BrighterThan, LabelCode, ObjectIndex};
use crate::sources::{Source, Sources};
use cytoscope_volume::statistics::Moments;

/// Range that the ratio of a pair's object diameter to the nominal diameter is limited to.
const SCALE_RANGE: [f64; 2] = [0.02, 50.0];

/// A pair that is prepared for sampling.
#[derive(Debug)]
pub(super) struct PreparedPair {
    /// Normalization of each image channel: one for the stack, or one for each slice of the file.
    pub(super) scalings: Vec<Vec<Scaling>>,
    pub(super) code: LabelCode,
    pub(super) index: ObjectIndex,
    /// Moments of each stain; empty for labels.
    pub(super) target_moments: Vec<Moments>,
    /// Voxel size of the file along Z, Y, X in µm.
    pub(super) file_um: [f64; 3],
    /// Voxel size of its patches along Z, Y, X in µm.
    pub(super) patch_um: [f64; 3],
    /// Voxel size of the network in µm, in which targets are measured. It differs from `patch_um` if objects are
    /// scaled.
    pub(super) network_um: [f64; 3],
    pub(super) margin: [usize; 3],
    /// Number of tiles of all pairs before this one.
    pub(super) tiles_before: usize,
    /// Start of the tiles along each axis, in voxels of the patches.
    pub(super) tiles: [Vec<usize>; 3],
    /// Size of the window in voxels of the patches.
    pub(super) extent: [usize; 3],
}

impl PreparedPair {
    pub(super) fn of(sources: &Sources, entry: &Source, options: &SamplerOptions) -> Result<Self, TrainingDataError> {
        let normalize = |stack: &usize| match options.normalize_slices {
            true => slice_scalings(&sources.reader, *stack, options.normalize),
            false => scaling(&sources.reader, *stack, options.normalize).map(|(scaling, _)| vec![scaling]),
        };
        let scalings = entry.images.iter().map(normalize).collect::<Result<Vec<_>, _>>()?;
        let dtype = sources.reader.known(entry.target())?.dtype;
        let code = LabelCode::new(options.ignore_label, dtype);
        let mut target_moments = Vec::new();
        let index = if options.target.is_from_labels() {
            ObjectIndex::of(&sources.reader, entry.target(), &entry.window, &code)?
        } else {
            for stack in &entry.targets {
                target_moments.push(scaling(&sources.reader, *stack, Normalize::None)?.1);
            }
            // Patches are centered on voxels of the first stain: brighter than the mean by one standard deviation.
            let first = target_moments.first().copied().unwrap_or_default();
            let bright = BrighterThan(first.mean + first.variance().sqrt());
            ObjectIndex::of(&sources.reader, entry.target(), &entry.window, &bright)?
        };
        // With scaling of objects, the diameters of files without a complete voxel size are in voxels, as in predictions.
        let file_um = match (entry.known_voxel_um(), options.objects.is_some()) {
            (None, true) => index.assumed_voxel(options.voxel_um),
            _ => entry.voxel_or(options.voxel_um),
        };
        let scale = match options.objects.filter(|_| options.target.is_from_labels()) {
            None => 1.0,
            Some(objects) => {
                let diameter = objects.given.or_else(|| index.median_diameter_um(file_um));
                diameter.map_or(1.0, |d| (d / objects.nominal_um).clamp(SCALE_RANGE[0], SCALE_RANGE[1]))
            }
        };
        Ok(Self {
            scalings,
            code,
            index,
            target_moments,
            file_um,
            patch_um: options.voxel_um.map_or(file_um, |v| v.map(|um| um * scale)),
            network_um: options.voxel_um.unwrap_or(file_um),
            margin: [0; 3],
            tiles_before: 0,
            tiles: Default::default(),
            extent: entry.extent(),
        })
    }

    /// Returns the normalization of each image channel for a patch whose center is at this coordinate along Z in the file.
    pub(super) fn scalings_at(&self, z: f64) -> Vec<Scaling> {
        // A cast saturates: coordinates below 0 are 0.
        let slice = z.round() as usize;
        self.scalings.iter().filter_map(|all| all.get(slice.min(all.len().saturating_sub(1))).copied()).collect()
    }

    pub(super) fn grids(&self, patch_zyx: [usize; 3]) -> Grids {
        Grids { patch_zyx, margin: self.margin, patch_um: self.patch_um, stack_um: self.file_um }
    }
}

/// Returns the median over the files of the median object radius in µm.
pub(super) fn median_radius_um(ready: &[PreparedPair]) -> f64 {
    let mut all: Vec<f64> = ready.iter().filter_map(|r| r.index.median_diameter_um(r.file_um)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).map_or(0.0, |d| d / 2.0)
}

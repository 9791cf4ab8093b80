//! The chain from a probability map to numbered objects.

use crate::components::{Connectivity, boxes, label};
use crate::error::check_len;
use crate::filter::{fill_holes, filter_and_relabel};
use crate::{ObjectsError, distance, smooth, threshold, watershed};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What counts as foreground.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// Above Otsu's threshold of the map.
    Otsu,
    /// Above this value.
    Fixed(f64),
}

/// The height map whose peaks are the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Height {
    /// Distance to the background in µm.
    Distance,
    /// The (smoothed) map itself; `seed_height` is in its units.
    Map,
    /// The (smoothed) second map itself; `seed_height` is in its units.
    Seeds,
    /// Their product, in µm times the map's units.
    DistanceTimesMap,
    /// Distance to the background plus a second map (such as brightness) times `weight_um`, in µm.
    DistancePlusSeeds {
        /// µm that a value of 1 adds.
        weight_um: f64,
    },
}

/// How a probability map becomes objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentOptions {
    /// Gaussian smoothing of the map before the threshold: sigma in µm.
    pub smooth_um: f64,
    /// What counts as foreground.
    pub threshold: Threshold,
    /// Fill holes of the foreground, slice by slice.
    pub fill_holes: bool,
    /// What the watershed floods; `None` leaves connected components whole.
    pub height: Option<Height>,
    /// Gaussian smoothing of the height map (of the distance alone, where seeds are added): sigma in µm.
    pub height_smooth_um: f64,
    /// A seed rises at least so far above its surroundings (h-maxima), in the height map's units.
    pub seed_height: f64,
    /// Neighbours in the flood.
    pub connectivity: Connectivity,
    /// Smaller objects are dropped.
    pub min_volume_um3: f64,
    /// Objects whose map nowhere reaches this are dropped; 0 keeps all.
    pub min_peak: f64,
    /// Objects that touch the border of the volume are dropped.
    pub drop_border: bool,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            smooth_um: 0.0,
            threshold: Threshold::Otsu,
            fill_holes: true,
            height: Some(Height::Distance),
            height_smooth_um: 0.5,
            seed_height: 0.5,
            connectivity: Connectivity::Corners,
            min_volume_um3: 20.0,
            min_peak: 0.0,
            drop_border: false,
        }
    }
}

/// Largest sigma of a smoothing, in µm: beyond any object that is segmented, and in reach of a Gaussian's sum.
const MAX_SMOOTH_UM: f64 = 1e3;
/// Largest magnitude of a level of a map: maps are 32-bit floats, and products of two levels must stay finite.
const MAX_LEVEL: f64 = 1e18;
/// Largest distance a map's value of 1 may stand for, in µm: maps hold 0 to 1 or intensities above that.
const MAX_WEIGHT_UM: f64 = 1e6;
/// Largest least volume of an object in µm³: a cubic centimetre.
const MAX_VOLUME_UM3: f64 = 1e12;

impl SegmentOptions {
    /// The options for objects `factor` times as large: lengths are multiplied, and volumes by its cube.
    pub fn scaled(&self, factor: f64) -> Self {
        let height = match self.height {
            Some(Height::DistancePlusSeeds { weight_um }) => {
                Some(Height::DistancePlusSeeds { weight_um: weight_um * factor })
            }
            other => other,
        };
        // Seed heights are lengths where the height map is a distance.
        let is_length =
            matches!(self.height, Some(Height::Distance | Height::DistanceTimesMap | Height::DistancePlusSeeds { .. }));
        Self {
            smooth_um: self.smooth_um * factor,
            height,
            height_smooth_um: self.height_smooth_um * factor,
            seed_height: if is_length { self.seed_height * factor } else { self.seed_height },
            min_volume_um3: self.min_volume_um3 * factor.powi(3),
            ..self.clone()
        }
    }

    /// Checks every number; called by [`segment`] and [`segment_in_place`], and to be called where options are read.
    ///
    /// # Errors
    /// [`ObjectsError::Option`] with the option's name, its value and its range; a value that is no number is outside
    /// every range.
    pub fn validate(&self) -> Result<(), ObjectsError> {
        let within = |name: &'static str, got: f64, (low, high): (f64, f64), unit: &'static str| {
            if (low..=high).contains(&got) { Ok(()) } else { Err(ObjectsError::Option { name, got, low, high, unit }) }
        };
        within("smooth_um", self.smooth_um, (0.0, MAX_SMOOTH_UM), " µm")?;
        within("height_smooth_um", self.height_smooth_um, (0.0, MAX_SMOOTH_UM), " µm")?;
        within("seed_height", self.seed_height, (0.0, MAX_LEVEL), "")?;
        within("min_volume_um3", self.min_volume_um3, (0.0, MAX_VOLUME_UM3), " µm³")?;
        within("min_peak", self.min_peak, (-MAX_LEVEL, MAX_LEVEL), "")?;
        if let Threshold::Fixed(level) = self.threshold {
            within("threshold", level, (-MAX_LEVEL, MAX_LEVEL), "")?;
        }
        if let Some(Height::DistancePlusSeeds { weight_um }) = self.height {
            within("weight_um", weight_um, (-MAX_WEIGHT_UM, MAX_WEIGHT_UM), " µm")?;
        }
        Ok(())
    }
}

/// Voxels of component boxes worked on at a time: bounds the memory of results not yet written.
const BATCH_VOXELS: usize = 4 << 20;

/// Labels a copy of `map`, without a second map; see [`segment_in_place`].
///
/// # Errors
/// As [`segment_in_place`].
pub fn segment(
    map: &[f32],
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    options.validate()?;
    if options.smooth_um > 0.0 {
        let mut map = map.to_vec();
        return segment_in_place(&mut map, None, shape_zyx, voxel_um, options);
    }
    label_map(map, None, shape_zyx, voxel_um, options)
}

/// Numbers the objects of a probability map `1..=n`; the map is smoothed in place where options ask for it. `seeds` is the second
/// map of [`Height::DistancePlusSeeds`] (the first one where there is none). Gives the labels and `n`.
///
/// # Errors
/// [`ObjectsError`] if the map does not fill the shape, a voxel size is not positive, or an option leaves its range.
pub fn segment_in_place(
    map: &mut [f32],
    seeds: Option<&[f32]>,
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    options.validate()?;
    check_voxel(voxel_um)?;
    if options.smooth_um > 0.0 {
        smooth::gaussian(map, shape_zyx, voxel_um.map(|v| options.smooth_um / v))?;
    }
    label_map(map, seeds, shape_zyx, voxel_um, options)
}

fn check_voxel(voxel_um: [f64; 3]) -> Result<(), ObjectsError> {
    if voxel_um.iter().all(|v| v.is_finite() && *v > 0.0) {
        return Ok(());
    }
    Err(ObjectsError::Parameter { what: "voxel size", expected: "positive µm", got: format!("{voxel_um:?}") })
}

fn label_map(
    map: &[f32],
    seeds: Option<&[f32]>,
    shape: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    check_len("map", map.len(), shape)?;
    let seeds = seeds.unwrap_or(map);
    check_len("seed map", seeds.len(), shape)?;
    check_voxel(voxel_um)?;
    let level = match options.threshold {
        Threshold::Otsu => threshold::otsu(map),
        Threshold::Fixed(level) => level,
    } as f32;
    let mut labels = vec![0u32; map.len()];
    let count = if options.fill_holes {
        let mut mask: Vec<bool> = map.iter().map(|v| *v > level).collect();
        fill_holes(&mut mask, shape);
        label(&mask, shape, Connectivity::Faces, |m| m, &mut labels)?
    } else {
        label(map, shape, Connectivity::Faces, |v| v > level, &mut labels)?
    };
    let min_voxels = (options.min_volume_um3 / voxel_um.iter().product::<f64>()).ceil().max(0.0) as u64;
    // Specks go first: they would cost a flood each.
    let count = filter_and_relabel(&mut labels, shape, count, min_voxels, false);
    let Some(height) = options.height else {
        return Ok(finish(labels, map, shape, count, 0, options));
    };
    let found = boxes(&labels, shape, count);
    let mut next = 0u32;
    let mut at = 0;
    while at < found.len() {
        let mut end = at;
        let mut voxels = 0;
        while end < found.len() && (end == at || voxels < BATCH_VOXELS) {
            voxels += found[end].map_or(0, |(low, high)| (0..3).map(|a| high[a] - low[a] + 3).product::<usize>());
            end += 1;
        }
        let split: Vec<_> = (at..end)
            .into_par_iter()
            .map(|i| match found[i] {
                Some(bounds) => {
                    split_component([map, seeds], &labels, shape, voxel_um, i as u32 + 1, bounds, height, options)
                        .map(Some)
                }
                None => Ok(None),
            })
            .collect::<Result<_, _>>()?;
        for (i, part) in (at..end).zip(split) {
            let Some(part) = part else { continue };
            // New numbers lie above all component numbers until the end, so that no component is met twice.
            part.write(&mut labels, shape, i as u32 + 1, count + next);
            next = next
                .checked_add(part.count)
                .filter(|n| count.checked_add(*n).is_some())
                .ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
        }
        at = end;
    }
    for l in labels.iter_mut().filter(|l| **l > 0) {
        *l -= count;
    }
    Ok(finish(labels, map, shape, next, min_voxels, options))
}

fn finish(
    mut labels: Vec<u32>,
    map: &[f32],
    shape: [usize; 3],
    count: u32,
    min_voxels: u64,
    options: &SegmentOptions,
) -> (Vec<u32>, u32) {
    drop_dim(&mut labels, map, count, options.min_peak as f32);
    let count = filter_and_relabel(&mut labels, shape, count, min_voxels, options.drop_border);
    (labels, count)
}

/// Takes out objects whose map nowhere reaches a value; numbers are left with gaps.
fn drop_dim(labels: &mut [u32], map: &[f32], count: u32, min_peak: f32) {
    if min_peak <= 0.0 {
        return;
    }
    let mut bright = vec![false; count as usize + 1];
    for (label, value) in labels.iter().zip(map) {
        if *value >= min_peak
            && let Some(slot) = bright.get_mut(*label as usize)
        {
            *slot = true;
        }
    }
    labels.iter_mut().filter(|l| !bright.get(**l as usize).copied().unwrap_or(false)).for_each(|l| *l = 0);
}

/// The basins of one component, in its box with a margin of one voxel where the volume has one.
struct Part {
    origin: [usize; 3],
    shape: [usize; 3],
    basins: Vec<u32>,
    count: u32,
}

impl Part {
    fn write(&self, labels: &mut [u32], shape: [usize; 3], component: u32, base: u32) {
        for (row, basins) in self.basins.chunks_exact(self.shape[2]).enumerate() {
            let (z, y) = (self.origin[0] + row / self.shape[1], self.origin[1] + row % self.shape[1]);
            let start = (z * shape[1] + y) * shape[2] + self.origin[2];
            for (target, basin) in labels[start..start + self.shape[2]].iter_mut().zip(basins) {
                if *target == component {
                    *target = base + basin;
                }
            }
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn split_component(
    [map, seeds]: [&[f32]; 2],
    labels: &[u32],
    shape: [usize; 3],
    voxel_um: [f64; 3],
    component: u32,
    (low, high): ([usize; 3], [usize; 3]),
    height: Height,
    options: &SegmentOptions,
) -> Result<Part, ObjectsError> {
    let origin = low.map(|v| v.saturating_sub(1));
    let size: [usize; 3] = std::array::from_fn(|a| (high[a] + 2).min(shape[a]) - origin[a]);
    let rows = || {
        (0..size[0] * size[1])
            .map(move |r| ((origin[0] + r / size[1]) * shape[1] + origin[1] + r % size[1]) * shape[2] + origin[2])
    };
    let mut mask = Vec::with_capacity(size.iter().product());
    rows().for_each(|at| mask.extend(labels[at..at + size[2]].iter().map(|l| *l == component)));
    let own = matches!(height, Height::Map | Height::Seeds);
    let mut heights = if own { Vec::new() } else { distance::distance_um(&mask, size, voxel_um)? };
    let take = |from: &[f32]| -> Vec<f32> { rows().flat_map(|at| from[at..at + size[2]].iter().copied()).collect() };
    match height {
        Height::Map => heights = take(map),
        Height::Seeds => heights = take(seeds),
        Height::DistanceTimesMap => heights.iter_mut().zip(take(map)).for_each(|(d, v)| *d *= v),
        Height::Distance | Height::DistancePlusSeeds { .. } => {}
    }
    if options.height_smooth_um > 0.0 {
        // A component without background has no finite distance.
        heights.iter_mut().for_each(|v| *v = v.min(1e30));
        smooth::gaussian(&mut heights, size, voxel_um.map(|v| options.height_smooth_um / v))?;
    }
    if let Height::DistancePlusSeeds { weight_um } = height {
        heights.iter_mut().zip(take(seeds)).for_each(|(d, v)| *d += v * weight_um as f32);
    }
    let (basins, count) = watershed::flood(&heights, &mask, size, options.seed_height as f32, options.connectivity)?;
    Ok(Part { origin, shape: size, basins, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: usize = 6;

    fn run(options: &SegmentOptions, voxel_um: [f64; 3]) -> Result<u32, ObjectsError> {
        let mut map: Vec<f32> = (0..EDGE.pow(3)).map(|i| (i % 7) as f32 / 7.0).collect();
        let whole = segment(&map, [EDGE; 3], voxel_um, options)?.1;
        let in_place = segment_in_place(&mut map, None, [EDGE; 3], voxel_um, options)?.1;
        assert_eq!(whole, in_place);
        Ok(whole)
    }

    #[test]
    fn numbers_outside_their_range_are_refused_by_name() {
        let usual = SegmentOptions::default();
        let wrong = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e300, 1e300];
        for value in wrong {
            let seeds = Some(Height::DistancePlusSeeds { weight_um: value });
            for (name, options) in [
                ("smooth_um", SegmentOptions { smooth_um: value, ..usual.clone() }),
                ("height_smooth_um", SegmentOptions { height_smooth_um: value, ..usual.clone() }),
                ("seed_height", SegmentOptions { seed_height: value, ..usual.clone() }),
                ("min_volume_um3", SegmentOptions { min_volume_um3: value, ..usual.clone() }),
                ("min_peak", SegmentOptions { min_peak: value, ..usual.clone() }),
                ("threshold", SegmentOptions { threshold: Threshold::Fixed(value), ..usual.clone() }),
                ("weight_um", SegmentOptions { height: seeds, ..usual.clone() }),
            ] {
                let error = run(&options, [1.0; 3]).unwrap_err();
                assert!(matches!(error, ObjectsError::Option { name: n, .. } if n == name), "{value}: {error}");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        let far = SegmentOptions { smooth_um: 1e6, ..usual.clone() };
        assert_eq!(run(&far, [1.0; 3]).unwrap_err().to_string(), "smooth_um is 1000000, expected 0 to 1000 µm");
    }

    #[test]
    fn the_ends_of_the_ranges_are_worked_on() {
        let wide = SegmentOptions { smooth_um: MAX_SMOOTH_UM, height_smooth_um: MAX_SMOOTH_UM, ..Default::default() };
        for voxel_um in [[1e-3; 3], [1.0; 3], [1e3; 3], [1e-300; 3]] {
            run(&wide, voxel_um).unwrap();
        }
        let none = SegmentOptions { min_volume_um3: MAX_VOLUME_UM3, ..Default::default() };
        assert_eq!(run(&none, [1.0; 3]), Ok(0));
        for voxel_um in [[0.0, 1.0, 1.0], [1.0, f64::NAN, 1.0], [1.0, 1.0, f64::INFINITY], [-1.0; 3]] {
            assert!(matches!(run(&wide, voxel_um), Err(ObjectsError::Parameter { what: "voxel size", .. })));
        }
    }
}

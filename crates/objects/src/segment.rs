//! Segmentation of a probability map into numbered objects.

use crate::components::{Bounds, boxes};
use crate::error::check_len;
use crate::filter::filter_and_relabel;
use crate::foreground::Foreground;
use crate::options::{Height, SegmentOptions, Threshold};
use crate::oversized::split_oversized;
use crate::selection::{ObjectFacts, Selection};
use crate::surroundings::fill_around;
use crate::trim::trim;
use crate::{ObjectsError, distance, smooth, threshold, watershed};
use rayon::prelude::*;

/// Voxels of component boxes processed at a time, which bounds the memory of results not yet written.
const BATCH_VOXELS: usize = 4 << 20;

/// Segments a copy of `map`, without a second map; see [`segment_in_place`].
///
/// # Errors
/// Same as [`segment_in_place`].
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
    label_map(map, None, None, shape_zyx, voxel_um, options)
}

/// Segments a probability map into objects numbered `1..=n`. The map is smoothed in place if the options say so.
/// `seeds` is the second map of [`Height::Seeds`] and [`Height::DistancePlusSeeds`] (if absent, the first one is used).
/// Returns the labels and `n`.
///
/// # Errors
/// [`ObjectsError`] if the map does not match the shape, a voxel size is not positive, or an option is out of range.
pub fn segment_in_place(
    map: &mut [f32],
    seeds: Option<&[f32]>,
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    segment_with_foreground(map, seeds, None, shape_zyx, voxel_um, options)
}

/// Like [`segment_in_place`], with the foreground of the same map and options, if it was found while the map was made. One
/// that lacks slices is not used.
///
/// # Errors
/// Same as [`segment_in_place`].
pub fn segment_with_foreground(
    map: &mut [f32],
    seeds: Option<&[f32]>,
    foreground: Option<Foreground>,
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    options.validate()?;
    check_voxel(voxel_um)?;
    if options.smooth_um > 0.0 {
        smooth::gaussian(map, shape_zyx, voxel_um.map(|v| options.smooth_um / v))?;
    }
    label_map(map, seeds, foreground, shape_zyx, voxel_um, options)
}

pub(crate) fn check_voxel(voxel_um: [f64; 3]) -> Result<(), ObjectsError> {
    if voxel_um.iter().all(|v| v.is_finite() && *v > 0.0) {
        return Ok(());
    }
    Err(ObjectsError::Parameter { what: "voxel size", expected: "positive µm", got: format!("{voxel_um:?}") })
}

fn label_map(
    map: &[f32],
    seeds: Option<&[f32]>,
    foreground: Option<Foreground>,
    shape: [usize; 3],
    voxel_um: [f64; 3],
    options: &SegmentOptions,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    check_len("map", map.len(), shape)?;
    let seeds = seeds.unwrap_or(map);
    check_len("seed map", seeds.len(), shape)?;
    check_voxel(voxel_um)?;
    let foreground = match foreground.filter(|found| found.is_complete(shape)) {
        Some(found) => found,
        None => find_foreground(map, shape, options)?,
    };
    let mut labels = vec![0u32; map.len()];
    let count = foreground.label(&mut labels)?;
    let selection = Selection::new(options, shape[0], voxel_um);
    // Small objects are removed first: each would cost a watershed.
    let count = filter_and_relabel(&mut labels, shape, count, selection.min_component_voxels(), false);
    let Some(height) = options.height else {
        drop_components(&mut labels, map, count, &selection);
        let count = filter_and_relabel(&mut labels, shape, count, 0, options.drop_border);
        return Ok((labels, count));
    };
    let found = boxes(&labels, shape, count);
    let tissue = options.tissue.map(|tissue| {
        let fill = fill_around(&labels, shape, voxel_um, count, tissue.window_um);
        (fill, tissue, options.in_tissue(&tissue))
    });
    let options_of = |component: usize| match &tissue {
        Some((fill, tissue, dense)) if fill.get(component).is_some_and(|f| *f > tissue.min_fill) => {
            (dense, tissue.outline)
        }
        _ => (options, None),
    };
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
                    let (options, outline) = options_of(i + 1);
                    let maps = [map, seeds];
                    let options = (options, outline, &selection);
                    split_component(maps, &labels, shape, voxel_um, i as u32 + 1, bounds, height, options).map(Some)
                }
                None => Ok(None),
            })
            .collect::<Result<_, _>>()?;
        for (i, part) in (at..end).zip(split) {
            let Some(part) = part else { continue };
            // New numbers stay above all component numbers until the end, so that no component is processed twice.
            let base = count + next;
            let last = base.checked_add(part.count).ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
            part.write(&mut labels, shape, i as u32 + 1, base);
            next = last - count;
        }
        at = end;
    }
    for l in labels.iter_mut().filter(|l| **l > 0) {
        *l -= count;
    }
    let count = if options.drop_border { filter_and_relabel(&mut labels, shape, next, 0, true) } else { next };
    Ok((labels, count))
}

fn find_foreground(map: &[f32], shape: [usize; 3], options: &SegmentOptions) -> Result<Foreground, ObjectsError> {
    let level = match options.threshold {
        Threshold::Otsu => threshold::otsu(map),
        Threshold::Fixed(level) => level,
    };
    let mut found = Foreground::above(shape, level, options);
    map.chunks_exact((shape[1] * shape[2]).max(1)).try_for_each(|slice| found.add_slice(slice))?;
    Ok(found)
}

/// Removes components that are not kept; the numbers then have gaps. Without a watershed, each component is an isolated object.
fn drop_components(labels: &mut [u32], map: &[f32], count: u32, selection: &Selection) {
    if !selection.needs_map() {
        return;
    }
    let mut facts = vec![ObjectFacts::default(); count as usize + 1];
    for (label, value) in labels.iter().zip(map).filter(|(label, _)| **label > 0) {
        if let Some(slot) = facts.get_mut(*label as usize) {
            slot.voxels += 1;
            slot.add_values(std::slice::from_ref(value));
        }
    }
    let kept: Vec<bool> =
        std::iter::once(false).chain(facts.iter().skip(1).map(|facts| selection.keeps(facts, true))).collect();
    labels.iter_mut().filter(|l| !kept.get(**l as usize).copied().unwrap_or(false)).for_each(|l| *l = 0);
}

/// The basins of one component, in its bounding box with a margin of one voxel (less at the border of the volume).
struct ComponentBasins {
    origin: [usize; 3],
    shape: [usize; 3],
    basins: Vec<u32>,
    count: u32,
}

impl ComponentBasins {
    fn write(&self, labels: &mut [u32], shape: [usize; 3], component: u32, base: u32) {
        for (row, basins) in self.basins.chunks_exact(self.shape[2]).enumerate() {
            let (z, y) = (self.origin[0] + row / self.shape[1], self.origin[1] + row % self.shape[1]);
            let start = (z * shape[1] + y) * shape[2] + self.origin[2];
            for (target, basin) in labels[start..start + self.shape[2]].iter_mut().zip(basins) {
                if *target == component {
                    *target = if *basin > 0 { base + basin } else { 0 };
                }
            }
        }
    }
}

/// One of the maps that a component is split by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MapOf {
    /// The map that is segmented.
    Objects,
    /// The second map.
    Seeds,
}

/// Returns the first voxel and the shape of the box that a component is split in.
pub(crate) fn with_margin((low, high): Bounds, shape: [usize; 3]) -> ([usize; 3], [usize; 3]) {
    let origin = low.map(|v| v.saturating_sub(1));
    (origin, std::array::from_fn(|a| (high[a] + 2).min(shape[a]) - origin[a]))
}

#[allow(clippy::too_many_arguments)]
fn split_component(
    [map, seeds]: [&[f32]; 2],
    labels: &[u32],
    shape: [usize; 3],
    voxel_um: [f64; 3],
    component: u32,
    bounds: Bounds,
    height: Height,
    (options, outline, selection): (&SegmentOptions, Option<f64>, &Selection),
) -> Result<ComponentBasins, ObjectsError> {
    let (origin, size) = with_margin(bounds, shape);
    let rows = || {
        (0..size[0] * size[1])
            .map(move |r| ((origin[0] + r / size[1]) * shape[1] + origin[1] + r % size[1]) * shape[2] + origin[2])
    };
    let mut mask = Vec::with_capacity(size.iter().product());
    rows().for_each(|at| mask.extend(labels[at..at + size[2]].iter().map(|l| *l == component)));
    let take = |which: MapOf| -> Vec<f32> {
        let from = match which {
            MapOf::Objects => map,
            MapOf::Seeds => seeds,
        };
        rows().flat_map(|at| from[at..at + size[2]].iter().copied()).collect()
    };
    let (mut basins, count) = split_box(&mask, size, voxel_um, height, (options, outline), &take)?;
    let needed = if selection.needs_map() { usize::MAX } else { 0 };
    let map_rows = rows().take(needed).map(|at| &map[at..at + size[2]]);
    let count = selection.select(&mut basins, size[2], map_rows, count);
    Ok(ComponentBasins { origin, shape: size, basins, count })
}

/// Splits the component of a mask into basins, numbered from 1 on; returns them and their number. `take` returns the values
/// of a map in the box of the mask; the second map is taken once at most. The options come with the outline in tissue.
pub(crate) fn split_box(
    mask: &[bool],
    size: [usize; 3],
    voxel_um: [f64; 3],
    height: Height,
    (options, outline): (&SegmentOptions, Option<f64>),
    take: &dyn Fn(MapOf) -> Vec<f32>,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    let without_distance = matches!(height, Height::Map | Height::Seeds);
    let mut heights = if without_distance { Vec::new() } else { distance::distance_um(mask, size, voxel_um)? };
    match height {
        Height::Map => heights = take(MapOf::Objects),
        Height::Seeds => heights = take(MapOf::Seeds),
        Height::DistanceTimesMap => heights.iter_mut().zip(take(MapOf::Objects)).for_each(|(d, v)| *d *= v),
        // Without background in the box, all distances are infinite, and only the second map separates objects.
        Height::DistancePlusSeeds { .. } if heights.first().is_some_and(|d| d.is_infinite()) => heights.fill(0.0),
        Height::Distance | Height::DistancePlusSeeds { .. } => {}
    }
    if options.height_smooth_um > 0.0 {
        // A component without background has no finite distance.
        heights.iter_mut().for_each(|v| *v = v.min(1e30));
        smooth::gaussian(&mut heights, size, voxel_um.map(|v| options.height_smooth_um / v))?;
    }
    if let Height::DistancePlusSeeds { weight_um } = height {
        heights.iter_mut().zip(take(MapOf::Seeds)).for_each(|(d, v)| *d += v * weight_um as f32);
    }
    let (mut basins, count) = watershed::flood(&heights, mask, size, options.seed_height as f32, options.connectivity)?;
    let count = split_oversized(&mut basins, &heights, size, voxel_um, count, options)?;
    if let Some(level) = outline {
        trim(&mut basins, &take(MapOf::Objects), size, level as f32, options.fill_holes);
    }
    Ok((basins, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TissueOptions;
    use crate::options::{MAX_SMOOTH_UM, MAX_VOLUME_UM3};

    const EDGE: usize = 6;

    fn run(options: &SegmentOptions, voxel_um: [f64; 3]) -> Result<u32, ObjectsError> {
        let mut map: Vec<f32> = (0..EDGE.pow(3)).map(|i| (i % 7) as f32 / 7.0).collect();
        let whole = segment(&map, [EDGE; 3], voxel_um, options)?.1;
        let in_place = segment_in_place(&mut map, None, [EDGE; 3], voxel_um, options)?.1;
        assert_eq!(whole, in_place);
        Ok(whole)
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let defaults = SegmentOptions::default();
        let wrong = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e300, 1e300];
        for value in wrong {
            let seeds = Some(Height::DistancePlusSeeds { weight_um: value });
            for (name, options) in [
                ("smooth_um", SegmentOptions { smooth_um: value, ..defaults.clone() }),
                ("height_smooth_um", SegmentOptions { height_smooth_um: value, ..defaults.clone() }),
                ("seed_height", SegmentOptions { seed_height: value, ..defaults.clone() }),
                ("min_volume_um3", SegmentOptions { min_volume_um3: value, ..defaults.clone() }),
                ("min_peak", SegmentOptions { min_peak: value, ..defaults.clone() }),
                ("threshold", SegmentOptions { threshold: Threshold::Fixed(value), ..defaults.clone() }),
                ("weight_um", SegmentOptions { height: seeds, ..defaults.clone() }),
            ] {
                let error = run(&options, [1.0; 3]).unwrap_err();
                assert!(matches!(error, ObjectsError::Option { name: n, .. } if n == name), "{value}: {error}");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        let far = SegmentOptions { smooth_um: 5e6, ..defaults.clone() };
        assert_eq!(run(&far, [1.0; 3]).unwrap_err().to_string(), "smooth_um is 5000000, expected 0 to 1000000 µm");
        let large = SegmentOptions { min_volume_um3: 2e15, ..defaults };
        let text = run(&large, [1.0; 3]).unwrap_err().to_string();
        assert_eq!(text, "min_volume_um3 is 2e15, expected 0 to 1e15 µm³");
    }

    #[test]
    fn options_for_the_largest_objects_are_valid() {
        let (min_fill, seed_height, outline) = (0.4, 0.1, Some(0.7));
        let tissue = TissueOptions { min_fill, window_um: 36.0, height_smooth_um: 0.6, seed_height, outline };
        let options = SegmentOptions { min_volume_um3: 90.0, tissue: Some(tissue), ..SegmentOptions::default() };
        // Objects of 10 cm, of a model for objects of 12 µm.
        options.scaled(1e5 / 12.0).validate().unwrap();
    }

    #[test]
    fn options_at_the_ends_of_their_ranges_work() {
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

    #[test]
    fn a_map_without_background_is_split_by_the_second_map() {
        let shape = [1, 5, 21];
        // Peaks in columns 5 and 15.
        let seeds: Vec<f32> =
            (0usize..105).map(|i| i % 21).map(|x| 1.0 - 0.1 * x.abs_diff(5).min(x.abs_diff(15)) as f32).collect();
        for height_smooth_um in [0.0, 0.5] {
            let options = SegmentOptions {
                threshold: Threshold::Fixed(0.5),
                height: Some(Height::DistancePlusSeeds { weight_um: 4.0 }),
                height_smooth_um,
                seed_height: 1.0,
                min_volume_um3: 0.0,
                ..SegmentOptions::default()
            };
            let (labels, count) = segment_in_place(&mut [1.0; 105], Some(&seeds), shape, [1.0; 3], &options).unwrap();
            assert_eq!((count, labels[5], labels[15]), (2, 1, 2), "{height_smooth_um}");
        }
    }

    #[test]
    fn only_components_in_tissue_use_its_settings() {
        let shape = [20, 60, 100];
        // Ridges every 10 voxels along X, 0.2 above the valleys between them: a filled block with four, a bar with two.
        let value = |i: usize| {
            let [z, y, x] = [i / 6000, i / 100 % 60, i % 100];
            let is_bar = (8..12).contains(&z) && (28..32).contains(&y) && (58..73).contains(&x);
            let ridges = 0.8 + 0.1 * (std::f32::consts::TAU * x as f32 / 10.0).cos();
            if x < 35 || is_bar { ridges } else { 0.0 }
        };
        let map: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        let alike = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height: Some(Height::Map),
            height_smooth_um: 0.0,
            seed_height: 0.25,
            min_volume_um3: 0.0,
            ..SegmentOptions::default()
        };
        let seeds =
            TissueOptions { min_fill: 0.5, window_um: 21.0, height_smooth_um: 0.0, seed_height: 0.1, outline: None };
        let tissue = SegmentOptions { tissue: Some(seeds), ..alike.clone() };
        let count = |options: &SegmentOptions| segment(&map, shape, [1.0; 3], options).unwrap().1;
        assert_eq!(count(&alike), 2);
        assert_eq!(count(&tissue), 5);
        assert_eq!(count(&SegmentOptions { seed_height: 0.1, ..alike.clone() }), 6);
        // Objects twice as large, in voxels of twice the size.
        assert_eq!(segment(&map, shape, [2.0; 3], &tissue.scaled(2.0)).unwrap().1, 5);
        // Half of a ridge's voxels along X are above 0.8; those of the bar, which is not tissue, stay.
        let trimmed = SegmentOptions { tissue: Some(TissueOptions { outline: Some(0.8), ..seeds }), ..alike };
        let voxels = |options: &SegmentOptions, bar: bool| {
            let (labels, _) = segment(&map, shape, [1.0; 3], options).unwrap();
            labels.iter().enumerate().filter(|(i, label)| **label > 0 && (i % 100 > 50) == bar).count()
        };
        assert_eq!([false, true].map(|bar| voxels(&tissue, bar)), [20 * 60 * 35, 4 * 4 * 15]);
        let kept = voxels(&trimmed, false) as f64 / (20.0 * 60.0 * 35.0);
        assert!((0.45..0.65).contains(&kept), "{kept} of the voxels in tissue are left");
        assert_eq!(voxels(&trimmed, true), 4 * 4 * 15);
        let wrong = SegmentOptions { tissue: Some(TissueOptions { min_fill: f64::NAN, ..seeds }), ..tissue };
        assert!(matches!(wrong.validate(), Err(ObjectsError::Option { name: "tissue.min_fill", .. })));
    }
}

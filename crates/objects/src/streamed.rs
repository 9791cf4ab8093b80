//! Segmentation of a map whose slices arrive one after the other, with the same result as that of the whole map. Only the
//! boxes of the components that the current slice divides are held.

use crate::components::{Bounds, Numbered};
use crate::error::check_len;
use crate::segment::{MapOf, check_voxel, split_box, with_margin};
use crate::surroundings::Surroundings;
use crate::{Foreground, Height, ObjectsError, SegmentOptions};
use rayon::prelude::*;
use std::cell::Cell;

/// Voxels of complete boxes that are split together, unless a single one has more.
const BATCH_VOXELS: usize = 1 << 20;
/// Memory in bytes per voxel of a box that is split, beside its maps: the mask (1), the heights (4), the order (8) and the
/// labels (4) of the watershed, and up to 3 for its basins.
const SPLIT_BYTES: u64 = 20;

/// A component whose box has begun.
struct Begun {
    /// Index of the component: its number − 1.
    component: usize,
    origin: [usize; 3],
    size: [usize; 3],
    /// Values of the maps in the box that have arrived and are still needed.
    map: Vec<f32>,
    seeds: Vec<f32>,
}

/// Voxels of an object in a row.
struct ObjectRun {
    /// Index of the first voxel in its slice.
    start: usize,
    voxels: u32,
    object: u32,
}

/// A component that was split.
struct Split {
    component: usize,
    /// Number of objects, numbered from 1 on.
    count: u32,
    /// Those that are bright enough.
    bright: Vec<u32>,
    /// Runs with their slices.
    runs: Vec<(usize, ObjectRun)>,
}

/// Which maps a segmentation needs after their foreground.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapNeeds {
    /// Whether it needs the map that is segmented.
    pub map: bool,
    /// Whether it needs the second map.
    pub seeds: bool,
}

/// A segmentation that slices are added to, and from which slices of labels are taken.
pub struct StreamedSegmentation {
    shape: [usize; 3],
    voxel_um: [f64; 3],
    options: SegmentOptions,
    /// Options and outline in tissue.
    dense: Option<(SegmentOptions, Option<f64>)>,
    needs: MapNeeds,
    components: Numbered,
    /// Box of each component, with a margin.
    boxes: Vec<([usize; 3], [usize; 3])>,
    /// Whether each component is tissue; empty if all are treated alike.
    in_tissue: Vec<bool>,
    /// Number of components whose boxes have begun.
    begun: usize,
    open: Vec<Begun>,
    /// Components whose boxes are complete, and the voxels of these boxes.
    complete: Vec<Begun>,
    complete_voxels: usize,
    /// Runs of objects in each slice, until it is taken.
    runs: Vec<Vec<ObjectRun>>,
    /// Objects of each component that are bright enough, in their order.
    bright: Vec<Vec<u32>>,
    /// Number of slices that were added and taken.
    added: usize,
    taken: usize,
    /// Number of objects so far.
    count: u32,
}

impl StreamedSegmentation {
    /// Bytes in memory for each run of foreground voxels (see [`Foreground::runs`]), at most.
    pub const RUN_BYTES: u64 = 40;

    /// Starts with the foreground of all slices, which was found with the same options. `has_seeds` states whether there is a
    /// second map. Smoothing of the map ([`SegmentOptions::smooth_um`]) is left to the caller, and objects at the border of
    /// the volume are kept.
    ///
    /// # Errors
    /// [`ObjectsError`] if slices of the foreground are missing, a voxel size is not positive, or an option is out of range.
    pub fn new(
        foreground: Foreground,
        has_seeds: bool,
        voxel_um: [f64; 3],
        options: &SegmentOptions,
    ) -> Result<Self, ObjectsError> {
        options.validate()?;
        check_voxel(voxel_um)?;
        let shape = foreground.shape_zyx();
        if !foreground.is_complete(shape) {
            let got = format!("{} of {} slices", foreground.slices(), shape[0]);
            return Err(ObjectsError::Parameter { what: "foreground", expected: "all slices", got });
        }
        let mut components = foreground.numbered();
        components.remove_small(options.min_voxels(shape[0], voxel_um));
        let in_tissue = tissue(&components, shape, voxel_um, options);
        let dense = options.tissue.map(|tissue| (options.in_tissue(&tissue), tissue.outline));
        let boxes: Vec<_> = components.boxes().into_iter().map(|bounds: Bounds| with_margin(bounds, shape)).collect();
        let of_seeds = matches!(options.height, Some(Height::Seeds | Height::DistancePlusSeeds { .. }));
        let of_map = matches!(options.height, Some(Height::Map | Height::DistanceTimesMap));
        let has_outline = options.height.is_some() && options.tissue.is_some_and(|tissue| tissue.outline.is_some());
        let needs = MapNeeds {
            map: of_map || (of_seeds && !has_seeds) || has_outline || options.min_peak > 0.0,
            seeds: of_seeds && has_seeds,
        };
        Ok(Self {
            shape,
            voxel_um,
            options: options.clone(),
            dense,
            needs,
            bright: vec![Vec::new(); boxes.len()],
            count: if options.height.is_none() { components.count() } else { 0 },
            components,
            boxes,
            in_tissue,
            begun: 0,
            open: Vec::new(),
            complete: Vec::new(),
            complete_voxels: 0,
            runs: (0..shape[0]).map(|_| Vec::new()).collect(),
            added: 0,
            taken: 0,
        })
    }

    /// Returns which maps are needed; of the others, empty slices may be added.
    pub fn needs(&self) -> MapNeeds {
        self.needs
    }

    /// Returns the peak memory in bytes.
    pub fn needed_bytes(&self) -> u64 {
        let runs_bytes = (self.components.runs() as u64).saturating_mul(Self::RUN_BYTES);
        if self.options.height.is_none() {
            return runs_bytes;
        }
        // Voxels of a slice of the boxes that begin and end at each slice, and voxels of the boxes that end there.
        let mut changes = vec![[0u64; 3]; self.shape[0] + 1];
        let mut largest = 0;
        for (origin, size) in &self.boxes {
            let area = (size[1] * size[2]) as u64;
            let volume = area * size[0] as u64;
            largest = volume.max(largest);
            changes[origin[0]][0] += area;
            changes[origin[0] + size[0]][1] += area;
            changes[origin[0] + size[0]][2] += volume;
        }
        let (mut area, mut held, mut most) = (0u64, 0u64, 0u64);
        for [begin, end, released] in changes {
            area = area + begin - end;
            held = held + area - released;
            most = most.max(held);
        }
        let value_bytes = 4 * (u64::from(self.needs.map) + u64::from(self.needs.seeds));
        // Before a slice is added, the complete boxes that wait are smaller than a batch.
        let held_bytes = most.saturating_add(BATCH_VOXELS as u64).saturating_mul(value_bytes);
        let together = largest + BATCH_VOXELS as u64;
        runs_bytes.saturating_add(held_bytes).saturating_add(together.saturating_mul(SPLIT_BYTES))
    }

    /// Adds the next slice of the maps.
    ///
    /// # Errors
    /// [`ObjectsError`] if a slice that is needed does not match the shape, or there are too many objects.
    pub fn add_slice(&mut self, map: &[f32], seeds: &[f32]) -> Result<(), ObjectsError> {
        let ([depth, ny, nx], z) = (self.shape, self.added);
        for (what, is_needed, slice) in [("slice", self.needs.map, map), ("seed slice", self.needs.seeds, seeds)] {
            if is_needed {
                check_len(what, slice.len(), [usize::from(z < depth), ny, nx])?;
            }
        }
        self.added += 1;
        if self.options.height.is_none() {
            self.add_bright(z, map);
            return Ok(());
        }
        while let Some((origin, size)) = self.boxes.get(self.begun).filter(|(origin, _)| origin[0] <= z) {
            let (component, origin, size) = (self.begun, *origin, *size);
            self.open.push(Begun { component, origin, size, map: Vec::new(), seeds: Vec::new() });
            self.begun += 1;
        }
        for Begun { origin, size, map: own_map, seeds: own_seeds, .. } in &mut self.open {
            for y in origin[1]..origin[1] + size[1] {
                let row = y * nx + origin[2]..y * nx + origin[2] + size[2];
                if self.needs.map {
                    own_map.extend_from_slice(&map[row.clone()]);
                }
                if self.needs.seeds {
                    own_seeds.extend_from_slice(&seeds[row]);
                }
            }
        }
        let (mut complete, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|begun| begun.origin[0] + begun.size[0] == z + 1);
        self.open = open;
        self.complete_voxels += complete.iter().map(|begun| begun.size.iter().product::<usize>()).sum::<usize>();
        self.complete.append(&mut complete);
        if self.complete_voxels >= BATCH_VOXELS || self.added == depth { self.split() } else { Ok(()) }
    }

    /// Without a watershed, components are the objects: marks those that are bright enough in a slice.
    fn add_bright(&mut self, z: usize, map: &[f32]) {
        if self.options.min_peak <= 0.0 {
            return;
        }
        let least = self.options.min_peak as f32;
        for (y, values) in map.chunks_exact(self.shape[2].max(1)).enumerate() {
            for (start, end, number) in self.components.row(z, y) {
                let objects = &mut self.bright[number as usize - 1];
                if objects.is_empty() && values[start..end].iter().any(|value| *value >= least) {
                    objects.push(number);
                }
            }
        }
    }

    /// Splits the components whose boxes are complete.
    fn split(&mut self) -> Result<(), ObjectsError> {
        self.complete_voxels = 0;
        let mut waiting = std::mem::take(&mut self.complete).into_iter().peekable();
        while waiting.peek().is_some() {
            let (mut batch, mut voxels) = (Vec::new(), 0);
            while voxels < BATCH_VOXELS
                && let Some(next) = waiting.next()
            {
                voxels += next.size.iter().product::<usize>();
                batch.push(next);
            }
            let split: Vec<Split> =
                batch.into_par_iter().map(|begun| self.split_one(begun)).collect::<Result<_, ObjectsError>>()?;
            for Split { component, count, bright, runs } in split {
                let first = self.count;
                self.count = first.checked_add(count).ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
                self.bright[component] = bright.into_iter().map(|object| first + object).collect();
                for (z, run) in runs {
                    self.runs[z].push(ObjectRun { object: first + run.object, ..run });
                }
            }
        }
        Ok(())
    }

    fn split_one(&self, begun: Begun) -> Result<Split, ObjectsError> {
        let Begun { component, origin, size, map, seeds } = begun;
        let row_of = |row: usize| (origin[0] + row / size[1], origin[1] + row % size[1]);
        let mut mask = vec![false; size.iter().product()];
        for (row, line) in mask.chunks_exact_mut(size[2]).enumerate() {
            let (z, y) = row_of(row);
            for (start, end, _) in self.components.row(z, y).filter(|(.., number)| *number as usize == component + 1) {
                line[start - origin[2]..end - origin[2]].fill(true);
            }
        }
        // The second map is needed once.
        let seeds = Cell::new(seeds);
        let take = |which: MapOf| match which {
            MapOf::Seeds if self.needs.seeds => seeds.take(),
            MapOf::Seeds | MapOf::Objects => map.clone(),
        };
        let options = match &self.dense {
            Some((dense, outline)) if self.in_tissue.get(component).is_some_and(|is| *is) => (dense, *outline),
            _ => (&self.options, None),
        };
        let height = self.options.height.unwrap_or(Height::Distance);
        let (basins, count) = split_box(&mask, size, self.voxel_um, height, options, &take)?;
        let mut runs = Vec::new();
        for (row, line) in basins.chunks_exact(size[2]).enumerate() {
            let ((z, y), mut x) = (row_of(row), 0);
            for run in line.chunk_by(|a, b| a == b) {
                if run[0] > 0 {
                    let start = y * self.shape[2] + origin[2] + x;
                    runs.push((z, ObjectRun { start, voxels: run.len() as u32, object: run[0] }));
                }
                x += run.len();
            }
        }
        Ok(Split { component, count, bright: bright(&basins, &map, count, self.options.min_peak), runs })
    }

    /// Overwrites `labels` with the next slice, and returns whether there is one: false as long as components that the slice
    /// divides lack slices.
    pub fn take_slice(&mut self, labels: &mut [u32]) -> bool {
        let z = self.taken;
        let waiting = self.open.iter().chain(&self.complete).map(|begun| begun.origin[0]).min();
        if z >= waiting.map_or(self.added, |first| first.min(self.added)) {
            return false;
        }
        self.taken += 1;
        if self.options.height.is_none() {
            self.components.fill_slice(z, labels);
            return true;
        }
        labels.fill(0);
        for ObjectRun { start, voxels, object } in self.runs.get_mut(z).map(std::mem::take).unwrap_or_default() {
            labels[start..start + voxels as usize].fill(object);
        }
        true
    }

    /// Returns the largest number of an object in the slices that were taken, and the numbers of the objects to keep in the
    /// order in which the whole map would have been numbered. The others are too dim. Objects that are too small after the
    /// watershed are not removed.
    pub fn finish(self) -> (u32, Vec<u32>) {
        if self.options.height.is_none() && self.options.min_peak <= 0.0 {
            return (self.count, (1..=self.count).collect());
        }
        (self.count, self.bright.concat())
    }
}

/// Returns whether each component is tissue; empty if the options do not treat tissue in another way.
fn tissue(components: &Numbered, shape: [usize; 3], voxel_um: [f64; 3], options: &SegmentOptions) -> Vec<bool> {
    let Some(tissue) = options.tissue.filter(|_| options.height.is_some()) else { return Vec::new() };
    let mut slice = vec![0; shape[1] * shape[2]];
    let mut surroundings = Surroundings::new(shape, voxel_um, tissue.window_um);
    for z in 0..shape[0] {
        components.fill_slice(z, &mut slice);
        surroundings.add_slice(z, &slice);
    }
    let mut shares = surroundings.averaged(components.count());
    for z in 0..shape[0] {
        components.fill_slice(z, &mut slice);
        shares.add_slice(z, &slice);
    }
    shares.of_labels().into_iter().skip(1).map(|share| share > tissue.min_fill).collect()
}

/// Returns the basins whose map reaches `min_peak`, or all of them if it is 0.
fn bright(basins: &[u32], map: &[f32], count: u32, min_peak: f64) -> Vec<u32> {
    if min_peak <= 0.0 {
        return (1..=count).collect();
    }
    let mut reached = vec![false; count as usize + 1];
    for (basin, value) in basins.iter().zip(map) {
        reached[*basin as usize] |= *value >= min_peak as f32;
    }
    (1..=count).filter(|basin| reached[*basin as usize]).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::filter::filter_and_relabel;
    use crate::{Threshold, TissueOptions, segment_in_place};
    use proptest::prelude::*;

    /// Segments a map slice by slice.
    fn streamed(map: &[f32], seeds: Option<&[f32]>, shape: [usize; 3], options: &SegmentOptions) -> (Vec<u32>, u32) {
        let (plane, voxel_um) = (shape[1] * shape[2], [1.0, 0.5, 0.5]);
        let mut foreground = Foreground::new(shape, options).unwrap();
        map.chunks_exact(plane).for_each(|slice| foreground.add_slice(slice).unwrap());
        let mut segmentation = StreamedSegmentation::new(foreground, seeds.is_some(), voxel_um, options).unwrap();
        let (mut labels, mut slice) = (Vec::new(), vec![9; plane]);
        for (map, seeds) in map.chunks_exact(plane).zip(seeds.unwrap_or(map).chunks_exact(plane)) {
            let needs = segmentation.needs();
            segmentation.add_slice(if needs.map { map } else { &[] }, if needs.seeds { seeds } else { &[] }).unwrap();
            while segmentation.take_slice(&mut slice) {
                labels.extend_from_slice(&slice);
            }
        }
        let (largest, order) = segmentation.finish();
        let mut numbers = vec![0; largest as usize + 1];
        (1..).zip(&order).for_each(|(number, label)| numbers[*label as usize] = number);
        labels.iter_mut().for_each(|label| *label = numbers[*label as usize]);
        let min_voxels = options.min_voxels(shape[0], voxel_um);
        let count = filter_and_relabel(&mut labels, shape, order.len() as u32, min_voxels, false);
        (labels, count)
    }

    proptest! {
        #[test]
        fn slice_by_slice_is_segmented_as_the_whole_map(
            values in prop::collection::vec(0.0f32..1.0, 2 * 9 * 8 * 10),
            height in 0usize..6,
            has_seeds in any::<bool>(),
            min_peak in prop::sample::select(vec![0.0f64, 0.9]),
            min_fill in prop::option::of(0.2f64..0.6),
        ) {
            let shape = [9, 8, 10];
            let (map, seeds) = values.split_at(9 * 8 * 10);
            let tissue = min_fill.map(|min_fill| TissueOptions {
                min_fill,
                window_um: 3.0,
                height_smooth_um: 0.3,
                seed_height: 0.05,
                outline: Some(0.7),
            });
            let options = SegmentOptions {
                threshold: Threshold::Fixed(0.55),
                height: [
                    None,
                    Some(Height::Distance),
                    Some(Height::Map),
                    Some(Height::Seeds),
                    Some(Height::DistanceTimesMap),
                    Some(Height::DistancePlusSeeds { weight_um: 1.0 }),
                ][height],
                seed_height: 0.1,
                min_volume_um3: 0.5,
                min_peak,
                tissue,
                ..SegmentOptions::default()
            };
            let seeds = has_seeds.then_some(seeds);
            let whole = segment_in_place(&mut map.to_vec(), seeds, shape, [1.0, 0.5, 0.5], &options).unwrap();
            prop_assert_eq!(streamed(map, seeds, shape, &options), whole);
        }
    }

    #[test]
    fn memory_grows_with_the_boxes_that_are_held_at_once() {
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height: Some(Height::Map),
            min_volume_um3: 0.0,
            ..SegmentOptions::default()
        };
        let needed = |inside: &dyn Fn(usize) -> bool| {
            let shape = [64, 8, 8];
            let mut foreground = Foreground::new(shape, &options).unwrap();
            for z in 0..shape[0] {
                foreground.add_slice(&[if inside(z) { 1.0 } else { 0.0 }; 64]).unwrap();
            }
            StreamedSegmentation::new(foreground, false, [1.0; 3], &options).unwrap().needed_bytes()
        };
        let (whole, parts) = (needed(&|_| true), needed(&|z| z % 4 < 2));
        // A box of 64 slices is held and split instead of one of 4 slices, and there are twice as many runs of voxels.
        let box_bytes = |slices: u64| slices * 64 * (4 + SPLIT_BYTES);
        assert_eq!(whole - parts, box_bytes(64) - box_bytes(4) + 32 * 8 * StreamedSegmentation::RUN_BYTES);
        let foreground = Foreground::new([2, 1, 1], &options).unwrap();
        assert!(StreamedSegmentation::new(foreground, false, [1.0; 3], &options).is_err());
    }
}

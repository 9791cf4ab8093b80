//! Segmentation of a map whose slices arrive one after the other, with the same result as that of the whole map. Its memory
//! does not grow with the number of slices.
//!
//! Each slice is added twice: first its foreground, and later, once the components that begin in it are complete, the maps
//! themselves. In between, only runs of foreground voxels are held, and the maps only in the boxes of the components that
//! cross the current slice.

use crate::components::Bounds;
use crate::error::check_len;
use crate::filter::fill_holes;
use crate::rolling_components::RollingComponents;
use crate::segment::{MapOf, check_voxel, split_box, with_margin};
use crate::selection::{ObjectFacts, Selection};
use crate::surroundings::{Surroundings, mean_share};
use crate::{Height, ObjectsError, SegmentOptions, Threshold};
use rayon::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

/// Voxels of complete boxes that are split together, unless a single one has more.
const BATCH_VOXELS: usize = 1 << 20;
/// Slices after which complete boxes are split, even if they have fewer voxels.
const BATCH_SLICES: usize = 32;
/// Memory in bytes per voxel of a box that is split, besides its maps: the mask (1), the heights (4), the order (8) and the
/// labels (4) of the watershed, and up to 3 for its basins.
const SPLIT_BYTES: u64 = 20;
/// What splitting a large object again takes in addition: the basins (4) and heights (4) of its box stay while those of the object
/// are split.
const OVERSIZED_BYTES: u64 = 8;

/// A component with its box, which the maps are collected in slice by slice.
struct ComponentBox {
    /// Number of the component.
    component: u32,
    /// See [`Component::order`](crate::rolling_components::Component::order).
    order: u64,
    is_tissue: bool,
    origin: [usize; 3],
    size: [usize; 3],
    /// Values of the maps in the box that have arrived and are still needed.
    map: Vec<f32>,
    seeds: Vec<f32>,
}

impl ComponentBox {
    fn voxels(&self) -> usize {
        self.size.iter().product()
    }
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
    order: u64,
    /// Number of objects, numbered from 1 on.
    count: u32,
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

/// Properties of a closed component besides its extent.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    /// Whether it is large enough for an object that is kept.
    is_large: bool,
    /// Sum of the shares of foreground around its voxels, and number of voxels.
    share: (f64, u64),
    /// Without a watershed: what decides whether it is kept, and its number in the labels; 0 before its first slice is taken.
    object: ObjectFacts,
    label: u32,
}

/// A segmentation that slices are added to, and from which slices of labels are taken.
pub struct StreamedSegmentation {
    shape: [usize; 3],
    voxel_um: [f64; 3],
    options: SegmentOptions,
    /// Value above which voxels are foreground.
    level: f32,
    selection: Selection,
    /// Options and outline in tissue.
    dense: Option<(SegmentOptions, Option<f64>)>,
    needs: MapNeeds,
    components: RollingComponents,
    /// By the numbers of the components.
    facts: Vec<Facts>,
    /// Finds tissue, with the share of foreground above which components are tissue; `None` if the same options apply to all.
    surroundings: Option<(Surroundings, f64)>,
    /// Number of slices of which all components are closed, and of those whose surroundings are known.
    settled: usize,
    classified: usize,
    /// Closed components whose boxes have not begun, by their order.
    waiting: BTreeMap<u64, u32>,
    /// Voxels of the largest box so far.
    largest_box: usize,
    open: Vec<ComponentBox>,
    /// Components whose boxes are complete, and the voxels of these boxes.
    complete: Vec<ComponentBox>,
    complete_voxels: usize,
    /// Voxels of all boxes that have begun and are not split yet.
    unsplit_voxels: usize,
    /// Runs of objects in each slice from `taken` on, and the number of runs.
    runs: VecDeque<Vec<ObjectRun>>,
    run_count: usize,
    /// Objects that are kept, with the order of their components.
    kept: Vec<(u64, u32)>,
    /// Number of slices whose maps were added, and of slices that were taken.
    added: usize,
    taken: usize,
    /// Number of objects so far.
    count: u32,
}

impl StreamedSegmentation {
    /// Starts without slices. `has_seeds` states whether there is a second map. Smoothing of the map
    /// ([`SegmentOptions::smooth_um`]) is left to the caller, and objects at the border of the volume are kept.
    ///
    /// # Errors
    /// [`ObjectsError`] if the threshold is not a number, a voxel size is not positive, or an option is out of range.
    pub fn new(
        shape: [usize; 3],
        has_seeds: bool,
        voxel_um: [f64; 3],
        options: &SegmentOptions,
    ) -> Result<Self, ObjectsError> {
        options.validate()?;
        check_voxel(voxel_um)?;
        let Threshold::Fixed(level) = options.threshold else {
            let got = format!("{:?}", options.threshold);
            return Err(ObjectsError::Parameter { what: "threshold", expected: "a number", got });
        };
        let uses_seed_height = matches!(options.height, Some(Height::Seeds | Height::DistancePlusSeeds { .. }));
        let uses_map_height = matches!(options.height, Some(Height::Map | Height::DistanceTimesMap));
        let tissue = options.tissue.filter(|_| options.height.is_some());
        let has_outline = tissue.is_some_and(|tissue| tissue.outline.is_some());
        let selection = Selection::new(options, shape[0], voxel_um);
        let needs = MapNeeds {
            map: uses_map_height || (uses_seed_height && !has_seeds) || has_outline || selection.needs_map(),
            seeds: uses_seed_height && has_seeds,
        };
        Ok(Self {
            shape,
            voxel_um,
            options: options.clone(),
            level: level as f32,
            selection,
            dense: tissue.map(|tissue| (options.in_tissue(&tissue), tissue.outline)),
            needs,
            components: RollingComponents::new(shape),
            facts: Vec::new(),
            surroundings: tissue.map(|tissue| (Surroundings::new(shape, voxel_um, tissue.window_um), tissue.min_fill)),
            settled: 0,
            classified: 0,
            waiting: BTreeMap::new(),
            largest_box: 0,
            open: Vec::new(),
            complete: Vec::new(),
            complete_voxels: 0,
            unsplit_voxels: 0,
            runs: VecDeque::new(),
            run_count: 0,
            kept: Vec::new(),
            added: 0,
            taken: 0,
            count: 0,
        })
    }

    /// Returns which maps are needed after the foreground; slices of the others may be empty.
    pub fn needs(&self) -> MapNeeds {
        self.needs
    }

    /// Returns the number of slices whose foreground was added.
    pub fn foreground_slices(&self) -> usize {
        self.components.added()
    }

    /// Returns the number of slices whose maps were added.
    pub fn added(&self) -> usize {
        self.added
    }

    /// Returns how many of the first slices have maps that can be added now, because the components that begin in them are
    /// complete.
    pub fn ready(&self) -> usize {
        if self.options.height.is_none() {
            return self.settled;
        }
        // No component that waits lacks its surroundings.
        if self.classified == self.shape[0] {
            return self.settled;
        }
        // A box begins in the slice before its component.
        let is_whole = self.settled == self.shape[0];
        let ready = if is_whole { self.settled } else { self.settled.saturating_sub(1) };
        let unclassified = self.waiting.values().map(|id| self.components.component(*id).bounds);
        let first = unclassified.filter(|(_, high)| high[0] >= self.classified).map(|(low, _)| low[0]).next();
        first.map_or(ready, |first| ready.min(first.saturating_sub(1))).max(self.added)
    }

    /// Returns the memory in bytes that is held, and that is needed to split the components that are known.
    pub fn needed_bytes(&self) -> u64 {
        let value_bytes = 4 * (u64::from(self.needs.map) + u64::from(self.needs.seeds));
        let runs_bytes = (self.run_count * size_of::<ObjectRun>()) as u64;
        let facts_bytes = (self.facts.len() * size_of::<Facts>()) as u64;
        let held_bytes = self.components.bytes() + facts_bytes + self.unsplit_voxels as u64 * value_bytes + runs_bytes;
        let surroundings_bytes = self.surroundings.as_ref().map_or(0, |(surroundings, _)| surroundings.bytes());
        let again_bytes = self.options.oversized.map_or(0, |_| OVERSIZED_BYTES);
        let box_bytes = SPLIT_BYTES + again_bytes + value_bytes;
        let split_bytes = match self.options.height {
            Some(_) => (self.largest_box + self.unsplit_voxels.min(BATCH_VOXELS)) as u64 * box_bytes,
            None => 0,
        };
        held_bytes + surroundings_bytes + split_bytes
    }

    /// Finds the foreground of the next slice of the map.
    ///
    /// # Errors
    /// [`ObjectsError`] if the slice does not match the shape, or there are too many components.
    pub fn add_foreground(&mut self, map: &[f32]) -> Result<(), ObjectsError> {
        let [depth, ny, nx] = self.shape;
        check_len("slice", map.len(), [usize::from(self.components.added() < depth), ny, nx])?;
        let level = self.level;
        let closed = if self.options.fill_holes {
            let mut mask: Vec<bool> = map.iter().map(|v| *v > level).collect();
            fill_holes(&mut mask, [1, ny, nx]);
            self.components.add_slice(&mask, |inside| inside)?
        } else {
            self.components.add_slice(map, |v| v > level)?
        };
        for id in closed {
            let component = self.components.component(id);
            if self.facts.len() <= id as usize {
                self.facts.resize(id as usize + 1, Facts::default());
            }
            let is_large = component.voxels >= self.selection.min_component_voxels();
            let object = ObjectFacts { voxels: component.voxels, ..ObjectFacts::default() };
            self.facts[id as usize] = Facts { is_large, object, ..Facts::default() };
            if is_large && self.options.height.is_some() {
                self.waiting.insert(component.order, id);
                let (_, size) = with_margin(component.bounds, self.shape);
                self.largest_box = self.largest_box.max(size.iter().product());
            }
        }
        self.settle();
        Ok(())
    }

    /// Counts the slices of which all components are closed as settled, and adds up the shares of foreground around the
    /// components in those whose surroundings are known.
    fn settle(&mut self) {
        let settled = self.components.settled();
        let Some((surroundings, _)) = &mut self.surroundings else {
            (self.settled, self.classified) = (settled, settled);
            return;
        };
        let (components, facts, ny) = (&self.components, &mut self.facts, self.shape[1]);
        for z in self.settled..settled {
            let rows = (0..ny).flat_map(|y| components.row(z, y).map(move |run| (y, run)));
            let large = rows.filter(|(_, (.., id))| facts[*id as usize].is_large);
            surroundings.add_slice(large.map(|(y, (start, end, _))| (y, start..end)));
        }
        self.settled = settled;
        while self.classified < settled && surroundings.compute_slice_shares(self.classified) {
            for y in 0..ny {
                for (start, end, id) in components.row(self.classified, y) {
                    let Facts { is_large, share, .. } = &mut facts[id as usize];
                    if *is_large {
                        surroundings.add_shares(y, start..end, share);
                    }
                }
            }
            self.classified += 1;
        }
    }

    /// Adds the next slice of the maps, which must be [ready](StreamedSegmentation::ready).
    ///
    /// # Errors
    /// [`ObjectsError`] if it is not ready, a slice that is needed does not match the shape, or there are too many objects.
    pub fn add_slice(&mut self, map: &[f32], seeds: &[f32]) -> Result<(), ObjectsError> {
        let ([depth, ny, nx], z) = (self.shape, self.added);
        if z >= self.ready() {
            let got = format!("slice {z} before the foreground around it");
            return Err(ObjectsError::Parameter { what: "slice", expected: "one that is ready", got });
        }
        for (what, is_needed, slice) in [("slice", self.needs.map, map), ("seed slice", self.needs.seeds, seeds)] {
            if is_needed {
                check_len(what, slice.len(), [1, ny, nx])?;
            }
        }
        self.added += 1;
        self.runs.push_back(Vec::new());
        if self.options.height.is_none() {
            self.add_values(z, map);
            return Ok(());
        }
        self.begin_boxes(z);
        for ComponentBox { origin, size, map: map_part, seeds: seeds_part, .. } in &mut self.open {
            for y in origin[1]..origin[1] + size[1] {
                let row = y * nx + origin[2]..y * nx + origin[2] + size[2];
                if self.needs.map {
                    map_part.extend_from_slice(&map[row.clone()]);
                }
                if self.needs.seeds {
                    seeds_part.extend_from_slice(&seeds[row]);
                }
            }
        }
        let (mut complete, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|region| region.origin[0] + region.size[0] == z + 1);
        self.open = open;
        self.complete_voxels += complete.iter().map(ComponentBox::voxels).sum::<usize>();
        self.complete.append(&mut complete);
        let has_waited =
            self.complete.first().is_some_and(|region| region.origin[0] + region.size[0] + BATCH_SLICES <= z);
        if self.complete_voxels >= BATCH_VOXELS || has_waited || self.added == depth { self.split() } else { Ok(()) }
    }

    /// Begins the boxes whose first slice is slice `z`.
    fn begin_boxes(&mut self, z: usize) {
        while let Some(entry) = self.waiting.first_entry() {
            let (order, component) = (*entry.key(), *entry.get());
            let bounds: Bounds = self.components.component(component).bounds;
            let (origin, size) = with_margin(bounds, self.shape);
            if origin[0] > z {
                return;
            }
            entry.remove();
            let share = self.facts.get(component as usize).map_or(0.0, |facts| mean_share(facts.share));
            let is_tissue = self.surroundings.as_ref().is_some_and(|(_, min_fill)| share > *min_fill);
            let region = ComponentBox { component, order, is_tissue, origin, size, map: Vec::new(), seeds: Vec::new() };
            self.unsplit_voxels += region.voxels();
            self.open.push(region);
        }
    }

    /// Without a watershed, components are the objects: adds the values of a slice of the map to them.
    fn add_values(&mut self, z: usize, map: &[f32]) {
        if !self.selection.needs_map() {
            return;
        }
        for (y, values) in map.chunks_exact(self.shape[2].max(1)).enumerate() {
            for (start, end, id) in self.components.row(z, y) {
                self.facts[id as usize].object.add_values(&values[start..end]);
            }
        }
    }

    /// Splits the components whose boxes are complete.
    fn split(&mut self) -> Result<(), ObjectsError> {
        self.unsplit_voxels -= self.complete_voxels;
        self.complete_voxels = 0;
        let mut waiting = std::mem::take(&mut self.complete).into_iter().peekable();
        while waiting.peek().is_some() {
            let (mut batch, mut voxels) = (Vec::new(), 0);
            while voxels < BATCH_VOXELS
                && let Some(next) = waiting.next()
            {
                voxels += next.voxels();
                batch.push(next);
            }
            let split: Vec<Split> =
                batch.into_par_iter().map(|region| self.split_one(region)).collect::<Result<_, ObjectsError>>()?;
            for Split { order, count, runs } in split {
                let first = self.count;
                self.count = first.checked_add(count).ok_or(ObjectsError::TooManyObjects { limit: u32::MAX })?;
                self.kept.extend((1..=count).map(|object| (order, first + object)));
                self.run_count += runs.len();
                for (z, run) in runs {
                    self.runs[z - self.taken].push(ObjectRun { object: first + run.object, ..run });
                }
            }
        }
        Ok(())
    }

    /// Splits a component whose box is complete into objects, and returns their runs in the volume.
    fn split_one(&self, region: ComponentBox) -> Result<Split, ObjectsError> {
        let ComponentBox { component, order, is_tissue, origin, size, map, seeds } = region;
        let row_of = |row: usize| (origin[0] + row / size[1], origin[1] + row % size[1]);
        let mut mask = vec![false; size.iter().product()];
        for (row, line) in mask.chunks_exact_mut(size[2]).enumerate() {
            let (z, y) = row_of(row);
            let columns = origin[2]..origin[2] + size[2];
            for (start, end, _) in self.components.row_part(z, y, columns).filter(|(.., id)| *id == component) {
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
            Some((dense, outline)) if is_tissue => (dense, *outline),
            _ => (&self.options, None),
        };
        let height = self.options.height.unwrap_or(Height::Distance);
        let (mut basins, count) = split_box(&mask, size, self.voxel_um, height, options, &take)?;
        let row_voxels = size[2].max(1);
        let count = self.selection.select(&mut basins, row_voxels, map.chunks(row_voxels), count);
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
        Ok(Split { order, count, runs })
    }

    /// Overwrites `labels` with the next slice, and returns whether there is one: false until all slices of the
    /// components that cross it have been added.
    pub fn take_slice(&mut self, labels: &mut [u32]) -> bool {
        let z = self.taken;
        let waiting = self.open.iter().chain(&self.complete).map(|region| region.origin[0]).min();
        if z >= waiting.map_or(self.added, |first| first.min(self.added)) {
            return false;
        }
        self.taken += 1;
        labels.fill(0);
        for ObjectRun { start, voxels, object } in self.runs.pop_front().unwrap_or_default() {
            self.run_count -= 1;
            labels[start..start + voxels as usize].fill(object);
        }
        if self.options.height.is_none() {
            self.fill_components(z, labels);
        }
        self.forget_slices();
        true
    }

    /// Without a watershed: writes the components of a slice to `labels`, numbered in the order of their first voxels.
    fn fill_components(&mut self, z: usize, labels: &mut [u32]) {
        for (y, target) in labels.chunks_exact_mut(self.shape[2].max(1)).enumerate() {
            for (start, end, id) in self.components.row(z, y) {
                let Facts { is_large, label, .. } = &mut self.facts[id as usize];
                if !*is_large {
                    continue;
                }
                if *label == 0 {
                    self.count += 1;
                    *label = self.count;
                }
                target[start..end].fill(*label);
            }
        }
    }

    /// Forgets the runs of foreground voxels of slices that are not needed any more.
    fn forget_slices(&mut self) {
        let has_watershed = self.options.height.is_some();
        while self.components.forgotten() < self.taken.min(self.classified) {
            let (facts, kept, selection) = (&self.facts, &mut self.kept, &self.selection);
            self.components.forget_slice(|id, component| {
                let Facts { is_large, object, label, .. } = facts[id as usize];
                if !has_watershed && is_large && selection.keeps(&object, true) {
                    kept.push((component.order, label));
                }
            });
        }
    }

    /// Returns the largest number of an object in the slices that were taken, and the numbers of the objects to keep in the
    /// order in which the whole map would have been numbered. The others are too small or too dim.
    pub fn finish(mut self) -> (u32, Vec<u32>) {
        // The objects of a component are in their order.
        self.kept.sort_by_key(|(order, _)| *order);
        (self.count, self.kept.into_iter().map(|(_, object)| object).collect())
    }
}

#[cfg(test)]
mod tests;

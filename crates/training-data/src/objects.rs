//! Index of the objects of a label image, from one streaming pass: sizes, bounding boxes, and a few voxels of each
//! object to center patches on.

use crate::error::{TrainingDataError, check_limit};
use crate::limits::MAX_OBJECTS;
use crate::reader::{Convert, Reader};
use cytoscope_objects::diameter::{self, KnownObject};
use cytoscope_volume::{BoxZyx, DType, Element, Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// The label of voxels that count neither in the loss nor in scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IgnoreLabel {
    /// The label with this value.
    Value(i64),
    /// The largest value of the file's data type (255 for `uint8`, 65 535 for `uint16`); none in files of floats.
    Greatest,
}

/// Internal code of the ignore label.
pub(crate) const IGNORED: u32 = u32::MAX;
/// Largest label that is distinguished from others.
pub(crate) const MAX_LABEL: u32 = u32::MAX - 1;

/// Conversion of labels of any data type: 0 for background and negative values, [`IGNORED`] for the ignore label and
/// NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LabelCode {
    ignore: f64,
}

impl LabelCode {
    /// The conversion for labels that a file stores as `dtype`, which determines [`IgnoreLabel::Greatest`].
    pub fn new(ignore: Option<IgnoreLabel>, dtype: DType) -> Self {
        let ignore = match ignore {
            None => f64::NAN,
            Some(IgnoreLabel::Value(v)) => v as f64,
            Some(IgnoreLabel::Greatest) => match dtype {
                DType::U8 => f64::from(u8::MAX),
                DType::I8 => f64::from(i8::MAX),
                DType::U16 => f64::from(u16::MAX),
                DType::I16 => f64::from(i16::MAX),
                DType::U32 => f64::from(u32::MAX),
                DType::I32 => f64::from(i32::MAX),
                DType::U64 => u64::MAX as f64,
                DType::I64 => i64::MAX as f64,
                _ => f64::NAN,
            },
        };
        Self { ignore }
    }

    /// Returns the stored value of the ignore label; NaN if there is none.
    pub fn ignored(&self) -> f64 {
        self.ignore
    }
}

impl Convert<u32> for LabelCode {
    #[inline]
    fn convert<E: Element>(&self, value: E) -> u32 {
        let v = value.to_f64();
        if v == self.ignore || v.is_nan() {
            IGNORED
        } else {
            // The conversion saturates, so that negative values are background.
            ((v + 0.5) as u32).min(MAX_LABEL)
        }
    }

    fn fill_value(&self) -> u32 {
        0
    }

    fn has_ignored(&self) -> bool {
        !self.ignore.is_nan()
    }
}

/// One object of a label image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// Value of the object's voxels in the label image.
    pub label: u32,
    /// Number of voxels of the object.
    pub voxels: u64,
    /// Number of its voxels in the slice that has the most of them.
    pub section: u64,
    /// Whether one of its voxels shares a face with a voxel that has the ignore label.
    pub is_partial: bool,
    /// The last slice with a voxel of the object, and the number of its voxels there.
    last_section: (u32, u64),
    /// First voxel of the bounding box along Z, Y, X.
    pub low: [u32; 3],
    /// Last voxel of the bounding box along Z, Y, X.
    pub high: [u32; 3],
    /// Voxels of the object with their random numbers; unused entries have the largest number.
    seeds: [(u64, [u32; 3]); SEEDS],
}

/// Number of stored voxels per object.
const SEEDS: usize = 4;
/// Number of stored voxels of all objects together, and of stored known voxels.
const SPREAD: usize = 4096;

impl Object {
    fn new(label: u32) -> Self {
        Self {
            label,
            voxels: 0,
            section: 0,
            is_partial: false,
            last_section: (0, 0),
            low: [u32::MAX; 3],
            high: [0; 3],
            seeds: [(u64::MAX, [0; 3]); SEEDS],
        }
    }

    /// Stores a voxel if its random number is among the smallest.
    fn offer_seed(&mut self, draw: u64, at: [u32; 3]) {
        if let Some(worst) = self.seeds.iter_mut().max_by_key(|s| s.0)
            && draw < worst.0
        {
            *worst = (draw, at);
            self.seeds.sort_unstable();
        }
    }

    /// Returns stored voxels of the object.
    pub fn seeds(&self) -> impl Iterator<Item = [u32; 3]> + '_ {
        self.seeds.iter().filter(|s| s.0 != u64::MAX).map(|s| s.1)
    }
}

/// The objects of a label image.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectIndex {
    /// All objects of the label image, sorted by label.
    pub objects: Vec<Object>,
    /// Random voxels of all objects together.
    pub spread: Vec<[u32; 3]>,
    /// Random voxels without the ignore label; none if there is no ignore label.
    pub known_voxels: Vec<[u32; 3]>,
    /// Number of voxels of objects.
    pub foreground: u64,
    /// Number of voxels with the ignore label.
    pub ignored: u64,
    /// Number of all voxels.
    pub voxels: u64,
    /// First and last voxel along Z, Y, X that was indexed.
    seen: Option<[[usize; 3]; 2]>,
}

/// Returns a hash of `value` (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let v = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let v = (v ^ (v >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    v ^ (v >> 31)
}

/// Returns the random number of a voxel, which is even.
fn voxel_random([z, y, x]: [u32; 3]) -> u64 {
    mix(u64::from(z) << 42 ^ u64::from(y) << 21 ^ u64::from(x)) & !1
}

/// Keeps the [`SPREAD`] voxels with the smallest random numbers.
fn offer(kept: &mut BinaryHeap<(u64, [u32; 3])>, draw: u64, at: [u32; 3]) {
    if kept.len() < SPREAD {
        kept.push((draw, at));
    } else if kept.peek().is_some_and(|worst| draw < worst.0) {
        kept.pop();
        kept.push((draw, at));
    }
}

/// Consecutive voxels of a row with one label other than background.
#[derive(Debug, Clone, Copy)]
struct LabelRun {
    /// First voxel along X, and the voxel after the last.
    start: usize,
    end: usize,
    label: u32,
}

/// Returns the label of the object, if one of two adjacent runs is an object and the other one has the ignore label.
fn beside_ignored(a: LabelRun, b: LabelRun) -> Option<u32> {
    match (a.label == IGNORED, b.label == IGNORED) {
        (true, false) => Some(b.label),
        (false, true) => Some(a.label),
        _ => None,
    }
}

/// Adds to `found` the labels of the objects in one of two adjacent rows that share a face with a voxel of the other that has
/// the ignore label. The runs of both are in order along X.
fn add_beside_ignored(row: &[LabelRun], next: &[LabelRun], found: &mut Vec<u32>) {
    let (mut i, mut j) = (0, 0);
    while let (Some(a), Some(b)) = (row.get(i), next.get(j)) {
        if a.start < b.end && b.start < a.end {
            found.extend(beside_ignored(*a, *b));
        }
        if a.end <= b.end {
            i += 1;
        } else {
            j += 1;
        }
    }
}

/// Builds an [`ObjectIndex`] slab by slab; the result does not depend on the division into slabs.
#[derive(Debug, Default)]
pub(crate) struct Indexer {
    place: HashMap<u32, usize>,
    objects: Vec<Object>,
    spread: BinaryHeap<(u64, [u32; 3])>,
    known_voxels: BinaryHeap<(u64, [u32; 3])>,
    foreground: u64,
    ignored: u64,
    voxels: u64,
    seen: Option<[[usize; 3]; 2]>,
    /// The last slice and the runs of each row Y that was added, if there is an ignore label.
    rows: BTreeMap<usize, (usize, Vec<LabelRun>)>,
}

impl Indexer {
    /// Adds a slab of whole rows, which must follow the last one; voxels outside the window are ignored.
    pub fn add(
        &mut self,
        file: &std::path::Path,
        start: [usize; 3],
        size: [usize; 3],
        samples: &Samples,
        window: &BoxZyx,
        code: &impl Convert<u32>,
    ) -> Result<(), TrainingDataError> {
        with_samples!(samples, v => self.typed(file, start, size, v, window, code))
    }

    fn typed<E: Element>(
        &mut self,
        file: &std::path::Path,
        start: [usize; 3],
        size: [usize; 3],
        values: &[E],
        window: &BoxZyx,
        code: &impl Convert<u32>,
    ) -> Result<(), TrainingDataError> {
        let [_, ny, nx] = size;
        let first_x = window[2].start.saturating_sub(start[2]).min(nx);
        let end_x = window[2].end.saturating_sub(start[2]).min(nx);
        let mut last = (0u32, usize::MAX);
        for (row, values) in values.chunks_exact(nx.max(1)).enumerate() {
            let (z, y) = (start[0] + row / ny, start[1] + row % ny);
            if !window[0].contains(&z) || !window[1].contains(&y) {
                continue;
            }
            let Some(values) = values.get(first_x..end_x) else { continue };
            self.voxels += values.len() as u64;
            if let Some(last) = values.len().checked_sub(1) {
                self.add_seen([z, y, start[2] + first_x], [z, y, start[2] + first_x + last]);
            }
            let mut rest =
                values.iter().enumerate().map(|(i, v)| (start[2] + first_x + i, code.convert(*v))).peekable();
            let mut runs = Vec::new();
            while let Some((x, label)) = rest.next() {
                let mut len = 1u64;
                while rest.next_if(|(_, l)| *l == label).is_some() {
                    len += 1;
                }
                if code.has_ignored() && label != IGNORED {
                    for x in x..x + len as usize {
                        let at = [z as u32, y as u32, x as u32];
                        offer(&mut self.known_voxels, voxel_random(at), at);
                    }
                }
                if label == 0 {
                    continue;
                }
                if code.has_ignored() {
                    runs.push(LabelRun { start: x, end: x + len as usize, label });
                }
                if label == IGNORED {
                    self.ignored += len;
                    continue;
                }
                self.foreground += len;
                let place = if last.0 == label { last.1 } else { self.object_index(file, label)? };
                last = (label, place);
                self.add_run(place, [z as u32, y as u32, x as u32], len);
            }
            if code.has_ignored() {
                self.mark_partial(z, y, runs);
            }
        }
        Ok(())
    }

    /// Marks the objects that share a face with an ignored voxel within a row, or between it and the rows before it along Y and
    /// Z; keeps the row for those after it.
    fn mark_partial(&mut self, z: usize, y: usize, row: Vec<LabelRun>) {
        let touching = row.iter().zip(row.iter().skip(1)).filter(|(a, b)| a.end == b.start);
        let mut found: Vec<u32> = touching.filter_map(|(a, b)| beside_ignored(*a, *b)).collect();
        let above = self.rows.get(&y).filter(|(slice, _)| slice + 1 == z);
        let before = y.checked_sub(1).and_then(|y| self.rows.get(&y)).filter(|(slice, _)| *slice == z);
        for (_, next) in above.into_iter().chain(before) {
            add_beside_ignored(&row, next, &mut found);
        }
        for label in found {
            if let Some(object) = self.place.get(&label).and_then(|place| self.objects.get_mut(*place)) {
                object.is_partial = true;
            }
        }
        self.rows.insert(y, (z, row));
    }

    /// Extends the box of visited voxels to a run from `low` to `high`.
    fn add_seen(&mut self, low: [usize; 3], high: [usize; 3]) {
        let seen = self.seen.get_or_insert([low, high]);
        for a in 0..3 {
            seen[0][a] = seen[0][a].min(low[a]);
            seen[1][a] = seen[1][a].max(high[a]);
        }
    }

    /// Returns the position of a label's object, which is added if it is new.
    fn object_index(&mut self, file: &std::path::Path, label: u32) -> Result<usize, TrainingDataError> {
        if let Some(place) = self.place.get(&label) {
            return Ok(*place);
        }
        let next_step = "check that these are labels, not intensities";
        let count = self.objects.len() as u64 + 1;
        check_limit(file, "the number of its labels", count, ("MAX_OBJECTS", MAX_OBJECTS), next_step)?;
        self.place.insert(label, self.objects.len());
        self.objects.push(Object::new(label));
        Ok(self.objects.len() - 1)
    }

    /// Adds `len` voxels of an object along X, from Z, Y, X on.
    fn add_run(&mut self, place: usize, [z, y, x]: [u32; 3], len: u64) {
        let Some(object) = self.objects.get_mut(place) else { return };
        object.voxels += len;
        let before = if object.last_section.0 == z { object.last_section.1 } else { 0 };
        object.last_section = (z, before + len);
        object.section = object.section.max(before + len);
        let end = x + (len - 1) as u32;
        object.low = [object.low[0].min(z), object.low[1].min(y), object.low[2].min(x)];
        object.high = [object.high[0].max(z), object.high[1].max(y), object.high[2].max(end)];
        let draw = voxel_random([z, y, x]);
        let at = [z, y, x + (draw % len) as u32];
        object.offer_seed(draw, at);
        offer(&mut self.spread, draw, at);
    }

    /// Ends the index: objects in ascending order of their labels, random voxels in the order of their hashes.
    pub fn finish(mut self) -> ObjectIndex {
        self.objects.sort_unstable_by_key(|o| o.label);
        let voxels = |heap: BinaryHeap<(u64, [u32; 3])>| heap.into_sorted_vec().into_iter().map(|(_, at)| at).collect();
        ObjectIndex {
            objects: self.objects,
            spread: voxels(self.spread),
            known_voxels: voxels(self.known_voxels),
            foreground: self.foreground,
            ignored: self.ignored,
            voxels: self.voxels,
            seen: self.seen,
        }
    }
}

impl ObjectIndex {
    /// Indexes the objects of a stack.
    pub fn of(
        reader: &Reader,
        stack: usize,
        window: &BoxZyx,
        code: &impl Convert<u32>,
    ) -> Result<Self, TrainingDataError> {
        let mut indexer = Indexer::default();
        let file = reader.stack(stack).map(|s| s.image.path.clone()).unwrap_or_default();
        reader.each_slab(stack, &mut |start, size, samples| indexer.add(&file, start, size, samples, window, code))?;
        Ok(indexer.finish())
    }

    /// Returns the objects with the shape Z, Y, X of the stack; `None` if no voxel was indexed.
    fn known(&self) -> Option<(Vec<KnownObject>, [usize; 3])> {
        let [first, last] = self.seen?;
        let shape = std::array::from_fn(|a| last[a] - first[a] + 1);
        let inside = |at: [u32; 3]| std::array::from_fn(|a| (at[a] as usize).saturating_sub(first[a]));
        let known = |o: &Object| KnownObject {
            voxels: o.voxels,
            section: o.section,
            low: inside(o.low),
            high: inside(o.high),
            is_partial: o.is_partial,
        };
        Some((self.objects.iter().map(known).collect(), shape))
    }

    /// Returns the median diameter in µm of the objects that do not touch the border of the stack, or of all objects if
    /// those are fewer than three. Objects that are not completely annotated are treated as in
    /// [`diameter::median_known_diameter`]. `None` without objects.
    pub fn median_diameter_um(&self, voxel_um: [f64; 3]) -> Option<f64> {
        let (objects, shape) = self.known()?;
        diameter::median_known_diameter(&objects, shape, voxel_um)
    }

    /// Returns the voxel size along Z, Y, X, in voxels along X, that a prediction assumes for a stack without one
    /// ([`diameter::likely_spacing`]); `grid` is the voxel size of the model's grid.
    pub fn assumed_voxel(&self, grid: Option<[f64; 3]>) -> [f64; 3] {
        let ratio = grid.map_or(1.0, |[z, _, x]| z / x);
        match self.known() {
            Some((_, [0 | 1, ..])) => [1.0; 3],
            Some((objects, shape)) => [diameter::likely_spacing(&objects, shape, ratio), 1.0, 1.0],
            None => [ratio, 1.0, 1.0],
        }
    }
}

/// Returns the median diameter in µm of the objects of labels given as floats, axes Z, Y, X; voxels equal to `ignored` are not
/// known. `None` without objects. `file` is named in errors.
///
/// # Errors
/// [`TrainingDataError`] if there are too many labels.
pub fn median_diameter_um(
    file: &std::path::Path,
    labels: &[f32],
    shape_zyx: [usize; 3],
    ignored: Option<f32>,
    voxel_um: [f64; 3],
) -> Result<Option<f64>, TrainingDataError> {
    Ok(index_objects(file, labels, shape_zyx, ignored)?.median_diameter_um(voxel_um))
}

/// Returns the voxel size along Z, Y, X, in voxels along X, that a prediction assumes for a stack that states none, if it
/// finds the objects of these labels; `grid` is the voxel size of the model's grid. Arguments and errors are otherwise as
/// for [`median_diameter_um`].
///
/// # Errors
/// [`TrainingDataError`] if there are too many labels.
pub fn assumed_voxel(
    file: &std::path::Path,
    labels: &[f32],
    shape_zyx: [usize; 3],
    ignored: Option<f32>,
    grid: Option<[f64; 3]>,
) -> Result<[f64; 3], TrainingDataError> {
    Ok(index_objects(file, labels, shape_zyx, ignored)?.assumed_voxel(grid))
}

/// Indexes the objects of labels given as floats.
fn index_objects(
    file: &std::path::Path,
    labels: &[f32],
    shape_zyx: [usize; 3],
    ignored: Option<f32>,
) -> Result<ObjectIndex, TrainingDataError> {
    let code = LabelCode { ignore: ignored.map_or(f64::NAN, f64::from) };
    let mut indexer = Indexer::default();
    indexer.typed(file, [0; 3], shape_zyx, labels, &shape_zyx.map(|n| 0..n), &code)?;
    Ok(indexer.finish())
}

/// Conversion of an intensity image: voxels brighter than a threshold are one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BrighterThan(pub f64);

impl Convert<u32> for BrighterThan {
    fn convert<E: Element>(&self, value: E) -> u32 {
        u32::from(value.to_f64() > self.0)
    }

    fn fill_value(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_all_types_are_converted_alike() {
        let code = LabelCode::new(Some(IgnoreLabel::Value(-1)), DType::I16);
        assert_eq!([-1i16, -7, 0, 5].map(|v| code.convert(v)), [IGNORED, 0, 0, 5]);
        assert_eq!([3.0f32, f32::NAN, 2.9999].map(|v| code.convert(v)), [3, IGNORED, 3]);
        let code = LabelCode::new(Some(IgnoreLabel::Greatest), DType::U8);
        assert_eq!([255u8, 254].map(|v| code.convert(v)), [IGNORED, 254]);
        let code = LabelCode::new(Some(IgnoreLabel::Greatest), DType::I64);
        assert_eq!([i64::MAX, 7].map(|v| code.convert(v)), [IGNORED, 7]);
        let code = LabelCode::new(Some(IgnoreLabel::Greatest), DType::U64);
        assert_eq!([u64::MAX, 7].map(|v| code.convert(v)), [IGNORED, 7]);
        assert_eq!(LabelCode::new(None, DType::U64).convert(u64::MAX), MAX_LABEL);
    }

    #[test]
    fn the_index_does_not_depend_on_the_slabs() {
        let (nz, ny, nx) = (4usize, 5usize, 6usize);
        let labels: Vec<u16> = (0..nz * ny * nx).map(|i| (mix(i as u64 / 3) % 4) as u16).collect();
        let window = [0..nz, 1..ny, 0..5];
        let code = LabelCode::new(None, DType::U16);
        let run = |slab: usize| {
            let mut indexer = Indexer::default();
            for z in (0..nz).step_by(slab) {
                let n = slab.min(nz - z);
                let part = Samples::U16(labels[z * ny * nx..(z + n) * ny * nx].to_vec());
                indexer.add(std::path::Path::new("x"), [z, 0, 0], [n, ny, nx], &part, &window, &code).unwrap();
            }
            indexer.finish()
        };
        let (one, other) = (run(1), run(3));
        assert_eq!((&one.objects, &one.spread), (&other.objects, &other.spread));
        for object in &one.objects {
            let inside = |z: usize, y: usize, x: usize| labels[(z * ny + y) * nx + x] as u32 == object.label;
            let all: Vec<[usize; 3]> = (0..nz)
                .flat_map(|z| (1..ny).flat_map(move |y| (0..5).map(move |x| [z, y, x])))
                .filter(|p| inside(p[0], p[1], p[2]))
                .collect();
            assert_eq!(object.voxels, all.len() as u64);
            for a in 0..3 {
                assert_eq!(object.low[a] as usize, all.iter().map(|p| p[a]).min().unwrap());
                assert_eq!(object.high[a] as usize, all.iter().map(|p| p[a]).max().unwrap());
            }
            assert!(object.seeds().count() > 0);
            assert!(object.seeds().all(|s| inside(s[0] as usize, s[1] as usize, s[2] as usize)));
        }
        assert!(one.spread.iter().all(|s| labels[(s[0] as usize * ny + s[1] as usize) * nx + s[2] as usize] != 0));
    }

    #[test]
    fn objects_beside_ignored_voxels_are_partial_for_any_division_into_slabs() {
        // A box in four slices of 6 × 8 voxels, and at most one ignored voxel.
        let (nz, ny, nx) = (4usize, 6usize, 8usize);
        let ignored = u16::MAX;
        let boxed = |ignored_at: Option<[usize; 3]>| {
            let mut labels = vec![0u16; nz * ny * nx];
            for (z, y, x) in (1..3).flat_map(|z| (2..4).flat_map(move |y| (3..5).map(move |x| (z, y, x)))) {
                labels[(z * ny + y) * nx + x] = 7;
            }
            if let Some([z, y, x]) = ignored_at {
                labels[(z * ny + y) * nx + x] = ignored;
            }
            labels
        };
        let code = LabelCode::new(Some(IgnoreLabel::Value(i64::from(ignored))), DType::U16);
        let is_partial = |labels: &[u16], rows: usize| {
            let mut indexer = Indexer::default();
            for z in 0..nz {
                for y in (0..ny).step_by(rows) {
                    let from = (z * ny + y) * nx;
                    let part = Samples::U16(labels[from..from + rows * nx].to_vec());
                    let window = [0..nz, 0..ny, 0..nx];
                    indexer.add(std::path::Path::new("x"), [z, y, 0], [1, rows, nx], &part, &window, &code).unwrap();
                }
            }
            let index = indexer.finish();
            assert_eq!((index.objects[0].voxels, index.objects[0].section), (8, 4));
            let label = |[z, y, x]: [u32; 3]| labels[(z as usize * ny + y as usize) * nx + x as usize];
            assert_eq!(index.known_voxels.len() as u64 + index.ignored, index.voxels);
            assert!(index.known_voxels.iter().all(|at| label(*at) != ignored));
            index.objects[0].is_partial
        };
        let faces = [[0, 2, 3], [3, 3, 4], [1, 1, 4], [2, 4, 3], [1, 2, 2], [2, 3, 5]];
        let edges = [[0, 1, 3], [1, 1, 2], [3, 4, 5], [0, 0, 0]];
        for rows in [1, 2, 3, 6] {
            assert!(!is_partial(&boxed(None), rows));
            assert!(faces.iter().all(|at| is_partial(&boxed(Some(*at)), rows)));
            assert!(edges.iter().all(|at| !is_partial(&boxed(Some(*at)), rows)));
        }
    }

    #[test]
    fn the_diameter_of_known_slices_is_that_of_whole_objects() {
        // A ball with a diameter of 16 voxels in slices of half the distance, of which one in four is known.
        let (nz, ny, nx) = (40usize, 32usize, 32usize);
        let um = [0.5, 1.0, 1.0];
        let ball: Vec<u16> = (0..nz * ny * nx)
            .map(|i| {
                let at = [i / (ny * nx), i / nx % ny, i % nx].map(|v| v as f64);
                let away = [(at[0] - 20.0) * um[0], at[1] - 15.5, at[2] - 15.5];
                u16::from(away.iter().map(|d| d * d).sum::<f64>() < 64.0)
            })
            .collect();
        let slices: Vec<u16> =
            ball.iter().enumerate().map(|(i, l)| if i / (ny * nx) % 4 == 0 { *l } else { u16::MAX }).collect();
        let code = LabelCode::new(Some(IgnoreLabel::Greatest), DType::U16);
        let diameter = |labels: Vec<u16>| {
            let mut indexer = Indexer::default();
            let window = [0..nz, 0..ny, 0..nx];
            let file = std::path::Path::new("x");
            indexer.add(file, [0; 3], [nz, ny, nx], &Samples::U16(labels), &window, &code).unwrap();
            indexer.finish().median_diameter_um(um).unwrap()
        };
        assert!((diameter(ball) - 16.0).abs() < 0.3);
        assert!((diameter(slices) - 16.0).abs() < 0.3);
    }
}

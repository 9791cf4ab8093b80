//! Index of the objects of a label image, from one streaming pass: sizes, bounding boxes, and a few voxels of each
//! object to center patches on.

use crate::error::{TrainingDataError, check_limit};
use crate::limits::MAX_OBJECTS;
use crate::reader::{Bounds, Convert, Reader};
use cytoscope_objects::diameter;
use cytoscope_volume::{DType, Element, Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::collections::{BinaryHeap, HashMap};

/// The label of voxels that count neither in the loss nor in scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IgnoreLabel {
    /// The label with this value.
    Value(i64),
    /// The largest value of the file's data type (255 for `uint8`, 65 535 for `uint16`).
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
}

/// One object of a label image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// Value of the object's voxels in the label image.
    pub label: u32,
    /// Number of voxels of the object.
    pub voxels: u64,
    /// First voxel of the bounding box along Z, Y, X.
    pub low: [u32; 3],
    /// Last voxel of the bounding box along Z, Y, X.
    pub high: [u32; 3],
    /// Voxels of the object with their random numbers; unused entries have the largest number.
    seeds: [(u64, [u32; 3]); SEEDS],
}

/// Number of stored voxels per object.
const SEEDS: usize = 4;
/// Number of stored voxels of all objects together.
const SPREAD: usize = 4096;

impl Object {
    fn new(label: u32) -> Self {
        Self { label, voxels: 0, low: [u32::MAX; 3], high: [0; 3], seeds: [(u64::MAX, [0; 3]); SEEDS] }
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

/// Builds an [`ObjectIndex`] slab by slab; the result does not depend on the division into slabs.
#[derive(Debug, Default)]
pub(crate) struct Indexer {
    place: HashMap<u32, usize>,
    objects: Vec<Object>,
    spread: BinaryHeap<(u64, [u32; 3])>,
    foreground: u64,
    ignored: u64,
    voxels: u64,
    seen: Option<[[usize; 3]; 2]>,
}

impl Indexer {
    /// Adds a slab of whole rows; voxels outside the window are ignored.
    pub fn add(
        &mut self,
        file: &std::path::Path,
        start: [usize; 3],
        size: [usize; 3],
        samples: &Samples,
        window: &Bounds,
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
        window: &Bounds,
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
            while let Some((x, label)) = rest.next() {
                let mut len = 1u64;
                while rest.next_if(|(_, l)| *l == label).is_some() {
                    len += 1;
                }
                if label == 0 {
                    continue;
                }
                if label == IGNORED {
                    self.ignored += len;
                    continue;
                }
                self.foreground += len;
                let place = if last.0 == label { last.1 } else { self.place_of(file, label)? };
                last = (label, place);
                self.add_run(place, [z as u32, y as u32, x as u32], len);
            }
        }
        Ok(())
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
    fn place_of(&mut self, file: &std::path::Path, label: u32) -> Result<usize, TrainingDataError> {
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
        let end = x + (len - 1) as u32;
        object.low = [object.low[0].min(z), object.low[1].min(y), object.low[2].min(x)];
        object.high = [object.high[0].max(z), object.high[1].max(y), object.high[2].max(end)];
        let draw = mix(u64::from(z) << 42 ^ u64::from(y) << 21 ^ u64::from(x)) & !1;
        let at = [z, y, x + (draw % len) as u32];
        object.offer_seed(draw, at);
        if self.spread.len() < SPREAD {
            self.spread.push((draw, at));
        } else if self.spread.peek().is_some_and(|worst| draw < worst.0) {
            self.spread.pop();
            self.spread.push((draw, at));
        }
    }

    pub fn finish(mut self) -> ObjectIndex {
        self.objects.sort_unstable_by_key(|o| o.label);
        let spread = self.spread.into_sorted_vec().into_iter().map(|(_, at)| at).collect();
        ObjectIndex {
            objects: self.objects,
            spread,
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
        window: &Bounds,
        code: &impl Convert<u32>,
    ) -> Result<Self, TrainingDataError> {
        let mut indexer = Indexer::default();
        let file = reader.stack(stack).map(|s| s.image.path.clone()).unwrap_or_default();
        reader.each_slab(stack, &mut |start, size, samples| indexer.add(&file, start, size, samples, window, code))?;
        Ok(indexer.finish())
    }

    /// Returns the median diameter in µm of the objects that do not touch the border of the stack, or of all objects if
    /// those are fewer than three; `None` without objects.
    pub fn median_diameter_um(&self, voxel_um: [f64; 3]) -> Option<f64> {
        let [first, last] = self.seen?;
        let shape = std::array::from_fn(|a| last[a] - first[a] + 1);
        let inside = |at: [u32; 3]| std::array::from_fn(|a| (at[a] as usize).saturating_sub(first[a]));
        let sizes = self.objects.iter().map(|o| (o.voxels, diameter::is_cut(inside(o.low), inside(o.high), shape)));
        diameter::median(sizes.collect(), voxel_um)
    }
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
}

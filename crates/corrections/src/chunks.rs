//! Labels stored in chunks. A chunk with a single label is stored as one value. Other chunks are shared between snapshots, and
//! copied before they are changed.

use crate::geometry::{BoundsZyx, Plane};
use crate::limits::{self, MAX_CHUNKS};
use crate::{CorrectionError, SliceAxis};
use cytoscope_volume::{VoxelSize, element_count};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// Size of a chunk along Z, Y, X in voxels; chunks at the end of an axis are cut at the volume's border.
pub const CHUNK_ZYX: [usize; 3] = [32, 64, 64];

/// The division of a volume into chunks, and the position of each voxel in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkGrid {
    /// Number of voxels of the volume along Z, Y, X; at least 1 each.
    pub shape: [usize; 3],
    /// Number of chunks along each axis.
    counts: [usize; 3],
}

impl ChunkGrid {
    /// Divides a volume of this shape Z, Y, X; refuses shapes with a length of 0 or more than [`MAX_CHUNKS`] chunks.
    pub fn new(shape: [usize; 3]) -> Result<Self, CorrectionError> {
        if shape.contains(&0) {
            return Err(CorrectionError::BadParameter {
                what: "the shape Z, Y, X of the labels",
                got: format!("{shape:?}"),
                expected: "at least one voxel along each axis",
            });
        }
        let counts = [0, 1, 2].map(|a| shape[a].div_ceil(CHUNK_ZYX[a]));
        let chunks = element_count(&counts).map_or(u64::MAX, |n| n as u64);
        let voxels = element_count(&shape).map_or(u64::MAX, |n| n as u64);
        let next_step = "crop the stack, or check that its axes are Z, Y, X";
        limits::check("the number of chunks", chunks, "MAX_CHUNKS", MAX_CHUNKS, next_step)?;
        limits::check("the number of voxels", voxels, "the address space", u64::MAX - 1, next_step)?;
        Ok(Self { shape, counts })
    }

    /// Number of chunks in the volume; they are indexed in C order of their position.
    pub fn chunk_count(&self) -> usize {
        self.counts.iter().product()
    }

    /// Returns the index of the chunk that holds a voxel, and the index of the voxel in the chunk.
    #[inline]
    pub fn locate(&self, [z, y, x]: [usize; 3]) -> (usize, usize) {
        let (cz, cy, cx) = (z / CHUNK_ZYX[0], y / CHUNK_ZYX[1], x / CHUNK_ZYX[2]);
        let chunk = (cz * self.counts[1] + cy) * self.counts[2] + cx;
        let ny = (self.shape[1] - cy * CHUNK_ZYX[1]).min(CHUNK_ZYX[1]);
        let nx = (self.shape[2] - cx * CHUNK_ZYX[2]).min(CHUNK_ZYX[2]);
        let local = ((z % CHUNK_ZYX[0]) * ny + y % CHUNK_ZYX[1]) * nx + x % CHUNK_ZYX[2];
        (chunk, local)
    }

    /// The bounds of a chunk.
    pub fn bounds(&self, chunk: usize) -> BoundsZyx {
        let [_, cy, cx] = self.counts;
        let at = [chunk / (cy * cx), chunk / cx % cy, chunk % cx];
        let start = [0, 1, 2].map(|a| at[a] * CHUNK_ZYX[a]);
        BoundsZyx { start, end: [0, 1, 2].map(|a| (start[a] + CHUNK_ZYX[a]).min(self.shape[a])) }
    }

    /// Number of voxels of a chunk; fewer than those of [`CHUNK_ZYX`] at the end of an axis.
    pub fn chunk_voxels(&self, chunk: usize) -> usize {
        self.bounds(chunk).size().iter().product()
    }

    /// Indices of the chunks that overlap a box.
    pub fn overlapping(&self, bounds: &BoundsZyx) -> impl Iterator<Item = usize> + use<> {
        let range = |a: usize| bounds.start[a] / CHUNK_ZYX[a]..bounds.end[a].div_ceil(CHUNK_ZYX[a]);
        let (zs, ys, xs) = (range(0), range(1), range(2));
        let [_, cy, cx] = self.counts;
        zs.flat_map(move |z| {
            let xs = xs.clone();
            ys.clone().flat_map(move |y| xs.clone().map(move |x| (z * cy + y) * cx + x))
        })
    }

    /// The smallest box around the voxels `start..start + len` of a chunk.
    pub fn run_bounds(&self, chunk: usize, start: usize, len: usize) -> BoundsZyx {
        let bounds = self.bounds(chunk);
        let [_, ny, nx] = bounds.size();
        let at = |i: usize| [i / (ny * nx), i / nx % ny, i % nx];
        let (first, last) = (at(start), at(start + len.max(1) - 1));
        let mut low = first;
        let mut high = last;
        if first[0] != last[0] {
            (low[1], high[1]) = (0, ny - 1);
        }
        if first[..2] != last[..2] {
            (low[2], high[2]) = (0, nx - 1);
        }
        BoundsZyx {
            start: [0, 1, 2].map(|a| bounds.start[a] + low[a]),
            end: [0, 1, 2].map(|a| bounds.start[a] + high[a] + 1),
        }
    }
}

/// The values of one chunk in C order.
#[derive(Debug, Clone)]
pub(crate) enum Chunk {
    /// All voxels have this value.
    Uniform(u32),
    /// Labels that are all below 65 536, in 16 bits each.
    Narrow(Arc<[u16]>),
    /// Labels of any size, in 32 bits each.
    Wide(Arc<[u32]>),
}

impl Chunk {
    /// Returns the chunk with these values, stored with as few bits as they allow.
    pub fn from_values(values: &[u32]) -> Self {
        let first = values.first().copied().unwrap_or(0);
        if values.iter().all(|v| *v == first) {
            Chunk::Uniform(first)
        } else if values.iter().all(|v| *v <= u32::from(u16::MAX)) {
            Chunk::Narrow(values.iter().map(|v| *v as u16).collect())
        } else {
            Chunk::Wide(values.into())
        }
    }

    /// The label of the voxel with index `i` in C order.
    #[inline]
    pub fn get(&self, i: usize) -> u32 {
        match self {
            Chunk::Uniform(v) => *v,
            Chunk::Narrow(v) => u32::from(v[i]),
            Chunk::Wide(v) => v[i],
        }
    }

    /// Copies values from `start` on.
    pub fn read(&self, start: usize, out: &mut [u32]) {
        match self {
            Chunk::Uniform(v) => out.fill(*v),
            Chunk::Narrow(v) => out.iter_mut().zip(&v[start..]).for_each(|(o, v)| *o = u32::from(*v)),
            Chunk::Wide(v) => out.copy_from_slice(&v[start..start + out.len()]),
        }
    }

    /// Copies every `step`-th value from `start` on.
    fn read_strided(&self, start: usize, step: usize, out: &mut [u32]) {
        match self {
            Chunk::Uniform(v) => out.fill(*v),
            Chunk::Narrow(v) => {
                out.iter_mut().zip(v[start..].iter().step_by(step)).for_each(|(o, v)| *o = u32::from(*v));
            }
            Chunk::Wide(v) => out.iter_mut().zip(v[start..].iter().step_by(step)).for_each(|(o, v)| *o = *v),
        }
    }

    /// Heap memory of the chunk in bytes.
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Chunk::Uniform(_) => 0,
            Chunk::Narrow(v) => 2 * v.len() as u64,
            Chunk::Wide(v) => 4 * v.len() as u64,
        }
    }

    /// Calls `f(start, len, value)` for each maximal run of equal values in `range`.
    pub fn each_run(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, u32)) {
        fn walk<T: Copy + PartialEq + Into<u32>>(values: &[T], base: usize, f: &mut impl FnMut(usize, usize, u32)) {
            let mut i = 0;
            while let Some(value) = values.get(i).copied() {
                let end = values[i..].iter().position(|v| *v != value).map_or(values.len(), |n| i + n);
                f(base + i, end - i, value.into());
                i = end;
            }
        }
        if range.is_empty() {
            return;
        }
        match self {
            Chunk::Uniform(v) => f(range.start, range.len(), *v),
            Chunk::Narrow(v) => walk(&v[range.clone()], range.start, &mut f),
            Chunk::Wide(v) => walk(&v[range.clone()], range.start, &mut f),
        }
    }

    /// Writes `new` to the voxels of `range` whose value `allow` accepts, and calls `changed(start, len, old)` for each
    /// changed run. `len` is the number of voxels of the chunk.
    pub fn write(
        &mut self,
        len: usize,
        range: Range<usize>,
        new: u32,
        allow: impl Fn(u32) -> bool,
        mut changed: impl FnMut(usize, usize, u32),
    ) {
        let mut any = false;
        self.each_run(range.clone(), |_, _, old| any |= old != new && allow(old));
        if !any {
            return;
        }
        if let Chunk::Uniform(old) = *self {
            changed(range.start, range.len(), old);
            if range.len() == len {
                *self = Chunk::Uniform(new);
                return;
            }
            *self = match (u16::try_from(old), u16::try_from(new)) {
                (Ok(old), Ok(_)) => Chunk::Narrow(vec![old; len].into()),
                _ => Chunk::Wide(vec![old; len].into()),
            };
            match self {
                Chunk::Narrow(v) => Arc::make_mut(v)[range].fill(new as u16),
                Chunk::Wide(v) => Arc::make_mut(v)[range].fill(new),
                Chunk::Uniform(_) => {}
            }
            return;
        }
        if let Chunk::Narrow(v) = self
            && new > u32::from(u16::MAX)
        {
            *self = Chunk::Wide(v.iter().map(|v| u32::from(*v)).collect());
        }
        fn set<T: Copy + PartialEq + Into<u32>>(
            values: &mut [T],
            base: usize,
            new: T,
            allow: impl Fn(u32) -> bool,
            changed: &mut impl FnMut(usize, usize, u32),
        ) {
            let mut i = 0;
            while let Some(old) = values.get(i).copied() {
                let end = values[i..].iter().position(|v| *v != old).map_or(values.len(), |n| i + n);
                if old != new && allow(old.into()) {
                    values[i..end].fill(new);
                    changed(base + i, end - i, old.into());
                }
                i = end;
            }
        }
        let base = range.start;
        match self {
            Chunk::Uniform(_) => {}
            Chunk::Narrow(v) => set(&mut Arc::make_mut(v)[range], base, new as u16, allow, &mut changed),
            Chunk::Wide(v) => set(&mut Arc::make_mut(v)[range], base, new, allow, &mut changed),
        }
    }
}

/// Identifies the content of a label volume: a digest of its shape and all labels, independent of how they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 32]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a fingerprint: expected 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = text.get(2 * i..2 * i + 2).and_then(|t| u8::from_str_radix(t, 16).ok()).ok_or_else(bad)?;
        }
        Ok(Self(bytes))
    }
}

/// Read-only labels with axes Z, Y, X; 0 is background. Clones share the chunks, so they are cheap, and another thread
/// may read or save one while editing continues.
#[derive(Debug, Clone)]
pub struct LabelSnapshot {
    pub(crate) grid: ChunkGrid,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) voxel_size_um: VoxelSize,
}

impl LabelSnapshot {
    pub(crate) fn empty(grid: ChunkGrid, voxel_size_um: VoxelSize) -> Self {
        Self { grid, chunks: vec![Chunk::Uniform(0); grid.chunk_count()], voxel_size_um }
    }

    /// Number of voxels along Z, Y, X.
    pub fn shape_zyx(&self) -> [usize; 3] {
        self.grid.shape
    }

    /// Distance between voxel centers along Z, Y, X in µm.
    pub fn voxel_size_um(&self) -> VoxelSize {
        self.voxel_size_um
    }

    /// The label of a voxel; `None` outside the volume.
    pub fn get(&self, zyx: [usize; 3]) -> Option<u32> {
        (0..3).all(|a| zyx[a] < self.grid.shape[a]).then(|| self.at(zyx))
    }

    /// The label of a voxel inside the volume.
    #[inline]
    pub(crate) fn at(&self, zyx: [usize; 3]) -> u32 {
        let (chunk, local) = self.grid.locate(zyx);
        self.chunks[chunk].get(local)
    }

    /// Calls `f(xs, label)` for runs of one label along a row; runs end at chunk boundaries.
    pub(crate) fn each_run(&self, z: usize, y: usize, xs: Range<usize>, mut f: impl FnMut(Range<usize>, u32)) {
        let mut x = xs.start;
        while x < xs.end {
            let (chunk, local) = self.grid.locate([z, y, x]);
            let end = xs.end.min((x / CHUNK_ZYX[2] + 1) * CHUNK_ZYX[2]);
            self.chunks[chunk].each_run(local..local + end - x, |start, len, value| {
                let from = x + start - local;
                f(from..from + len, value);
            });
            x = end;
        }
    }

    /// The voxels along X, within `xs`, that have the same label as `x` and are connected to it.
    pub(crate) fn run_around(&self, z: usize, y: usize, x: usize, xs: &Range<usize>) -> Range<usize> {
        let label = self.at([z, y, x]);
        let piece = |x: usize| {
            let from = x / CHUNK_ZYX[2] * CHUNK_ZYX[2];
            from.max(xs.start)..(from + CHUNK_ZYX[2]).min(xs.end)
        };
        let mut extended = x..x + 1;
        self.each_run(z, y, piece(x), |run, _| {
            if run.contains(&x) {
                extended = run;
            }
        });
        while extended.start > xs.start && extended.start == piece(extended.start).start {
            let before = extended.start;
            self.each_run(z, y, piece(before - 1), |run, value| {
                if run.end == before && value == label {
                    extended.start = run.start;
                }
            });
            if extended.start == before {
                break;
            }
        }
        while extended.end < xs.end && extended.end % CHUNK_ZYX[2] == 0 {
            let before = extended.end;
            self.each_run(z, y, piece(before), |run, value| {
                if run.start == before && value == label {
                    extended.end = run.end;
                }
            });
            if extended.end == before {
                break;
            }
        }
        extended
    }

    /// The labels of one slice, row by row; see [`SliceAxis`] for its rows and columns.
    ///
    /// # Errors
    /// [`CorrectionError::OutOfBounds`] if the slice does not exist.
    pub fn slice(&self, axis: SliceAxis, index: usize) -> Result<Vec<u32>, CorrectionError> {
        self.read(&Plane::new(axis, index).bounds(self.grid.shape)?)
    }

    /// The labels of a box in C order.
    ///
    /// # Errors
    /// [`CorrectionError::OutOfBounds`] if the box is not inside the volume.
    pub fn read(&self, bounds: &BoundsZyx) -> Result<Vec<u32>, CorrectionError> {
        let shape_zyx = self.grid.shape;
        if (0..3).any(|a| bounds.start[a] > bounds.end[a] || bounds.end[a] > shape_zyx[a]) {
            let at = bounds.end.to_vec();
            return Err(CorrectionError::OutOfBounds { what: "the end of the box", at, shape_zyx });
        }
        let [nz, ny, nx] = bounds.size();
        let mut out = vec![0; nz * ny * nx];
        for chunk in self.grid.overlapping(bounds) {
            let own = self.grid.bounds(chunk);
            let Some(part) = own.intersection(bounds) else { continue };
            let data = &self.chunks[chunk];
            let [_, oy, ox] = own.size();
            let [pz, py, px] = part.size();
            let from = [0, 1, 2].map(|a| part.start[a] - own.start[a]);
            let to = [0, 1, 2].map(|a| part.start[a] - bounds.start[a]);
            for z in 0..pz {
                let source = ((from[0] + z) * oy + from[1]) * ox + from[2];
                let target = ((to[0] + z) * ny + to[1]) * nx + to[2];
                if nx == 1 {
                    data.read_strided(source, ox, &mut out[target..target + py]);
                    continue;
                }
                for y in 0..py {
                    data.read(source + y * ox, &mut out[target + y * nx..target + y * nx + px]);
                }
            }
        }
        Ok(out)
    }

    /// All labels in C order. For small volumes.
    pub fn to_dense(&self) -> Vec<u32> {
        // The box of the whole volume is never out of bounds.
        self.read(&BoundsZyx::whole(self.grid.shape)).unwrap_or_default()
    }

    /// Returns the largest label in use; 0 if there are no objects.
    pub fn max_label(&self) -> u32 {
        let of = |chunk: &Chunk| match chunk {
            Chunk::Uniform(v) => *v,
            Chunk::Narrow(v) => u32::from(v.iter().copied().max().unwrap_or(0)),
            Chunk::Wide(v) => v.iter().copied().max().unwrap_or(0),
        };
        self.chunks.par_iter().map(of).max().unwrap_or(0)
    }

    /// Memory of the labels in bytes, including shared chunks.
    pub fn stored_bytes(&self) -> u64 {
        let table = (self.chunks.len() * size_of::<Chunk>()) as u64;
        table + self.chunks.iter().map(Chunk::stored_bytes).sum::<u64>()
    }

    /// Computes a digest of the shape and all labels. Takes time proportional to the volume: call it from a background
    /// thread.
    pub fn fingerprint(&self) -> Fingerprint {
        let one = |(i, chunk): (usize, &Chunk)| -> [u8; 32] {
            let mut hash = Sha256::new();
            let mut bytes = Vec::new();
            chunk.each_run(0..self.grid.chunk_voxels(i), |_, len, value| {
                bytes.extend((len as u32).to_le_bytes());
                bytes.extend(value.to_le_bytes());
                if bytes.len() >= 1 << 16 {
                    hash.update(&bytes);
                    bytes.clear();
                }
            });
            hash.update(&bytes);
            hash.finalize().into()
        };
        let parts: Vec<[u8; 32]> = self.chunks.par_iter().enumerate().map(one).collect();
        let mut hash = Sha256::new();
        hash.update(b"labels ZYX in chunks of 32, 64, 64");
        self.grid.shape.iter().for_each(|n| hash.update((*n as u64).to_le_bytes()));
        parts.iter().for_each(|p| hash.update(p));
        Fingerprint(hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_voxel_has_its_own_index() {
        let grid = ChunkGrid::new([33, 65, 130]).unwrap();
        let mut seen: Vec<Vec<bool>> = (0..grid.chunk_count()).map(|c| vec![false; grid.chunk_voxels(c)]).collect();
        for z in 0..33 {
            for y in 0..65 {
                for x in 0..130 {
                    let (chunk, local) = grid.locate([z, y, x]);
                    assert!(!std::mem::replace(&mut seen[chunk][local], true));
                    assert!(grid.bounds(chunk).contains([z, y, x]));
                    assert_eq!(grid.run_bounds(chunk, local, 1).start, [z, y, x]);
                }
            }
        }
        assert!(seen.iter().flatten().all(|s| *s));
    }

    #[test]
    fn shapes_above_the_limits_are_refused() {
        assert!(matches!(
            ChunkGrid::new([usize::MAX, 9, 9]),
            Err(CorrectionError::TooLarge { limit_name: "MAX_CHUNKS", .. })
        ));
        assert!(matches!(ChunkGrid::new([1 << 40, 1, 1]), Err(CorrectionError::TooLarge { .. })));
        assert!(matches!(ChunkGrid::new([1, 0, 5]), Err(CorrectionError::BadParameter { .. })));
    }

    proptest! {
        #[test]
        fn writes_match_writes_to_a_plain_array(
            start in 0usize..40, len in 0usize..40, first in prop::sample::select(vec![0u32, 3, 70_000]),
            writes in prop::collection::vec((0usize..40, 0usize..40, prop::sample::select(vec![0u32, 1, 2, 3, 70_000]), any::<bool>()), 0..8),
        ) {
            let mut plain = vec![first; 40];
            let mut chunk = Chunk::Uniform(first);
            for (start, len, new, zero_only) in writes {
                let range = start..(start + len).min(40);
                let allow = |old: u32| !zero_only || old == 0;
                let before = chunk.clone();
                let mut changed = 0;
                chunk.write(40, range.clone(), new, allow, |s, n, old| {
                    changed += n;
                    assert!((s..s + n).all(|i| before.get(i) == old && old != new));
                });
                let mut expected = 0;
                for v in &mut plain[range] {
                    if allow(*v) && *v != new { *v = new; expected += 1; }
                }
                prop_assert_eq!(changed, expected);
                prop_assert_eq!((0..40).map(|i| chunk.get(i)).collect::<Vec<_>>(), plain.clone());
            }
            let range = start..(start + len).min(40);
            let mut seen = Vec::new();
            chunk.each_run(range.clone(), |_, n, v| seen.extend(std::iter::repeat_n(v, n)));
            prop_assert_eq!(&seen[..], &plain[range]);
        }
    }
}

//! Reading of boxes of many stacks, through a cache of bounded size.

use crate::error::TrainingDataError;
use crate::limits::MAX_OPEN_FILES;
use crate::stack::{Stack, open_image};
use cytoscope_formats::{FileFormat, Image};
use cytoscope_volume::{BoxZyx, Element, Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values of voxels outside a stack; they have weight 0 in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outside {
    /// The stack is mirrored at its border, with the border voxels repeated.
    #[default]
    Mirror,
    /// The minimum of the stack, and background for labels.
    Background,
}

/// How the cache of voxel blocks is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CacheUse {
    /// Size of the cached blocks in bytes.
    pub held_bytes: u64,
    /// Maximum number of bytes in the cache so far.
    pub peak_bytes: u64,
    /// Blocks found in the cache.
    pub hits: u64,
    /// Number of blocks that were read from files because the cache did not hold them.
    pub misses: u64,
}

/// Minimum number of blocks that fit into the cache.
const BLOCKS_IN_BUDGET: u64 = 16;
/// Minimum and maximum size of a block in bytes.
const BLOCK_BYTES: Range<u64> = (64 << 10)..(16 << 20);
/// Shape of a block along Z, Y, X in files where parts of a plane can be read separately.
const BLOCK_ZYX: [usize; 3] = [16, 128, 512];

/// Bytes of the blocks in all caches of this process.
static LIVE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of voxels that the caches of all training sets in this process hold for patches.
pub fn patch_cache_bytes() -> u64 {
    LIVE_BYTES.load(Ordering::Relaxed)
}

type Key = (usize, [usize; 3]);

/// Callback for a slab: its first voxel, its size and its voxels.
type SlabVisitor<'a> = dyn FnMut([usize; 3], [usize; 3], &Samples) -> Result<(), TrainingDataError> + 'a;

/// A cached block; the first thread that needs it reads it, while others wait.
#[derive(Debug, Default)]
struct CacheSlot {
    samples: Mutex<Option<Arc<Samples>>>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Blocks with their size in bytes and the time of their last use.
    slots: HashMap<Key, (Arc<CacheSlot>, u64, u64)>,
    clock: u64,
    about: CacheUse,
}

impl Cache {
    fn add(&mut self, bytes: u64) {
        self.about.held_bytes += bytes;
        self.about.peak_bytes = self.about.peak_bytes.max(self.about.held_bytes);
        LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&mut self, bytes: u64) {
        let bytes = bytes.min(self.about.held_bytes);
        self.about.held_bytes -= bytes;
        LIVE_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.remove(self.about.held_bytes);
    }
}

#[derive(Debug, Default)]
struct OpenFiles {
    files: HashMap<usize, (Image, u64)>,
    clock: u64,
}

/// Reads boxes of stacks, which are identified by their index.
#[derive(Debug)]
pub(crate) struct Reader {
    stacks: Vec<Stack>,
    /// Shape of each stack's blocks.
    blocks: Vec<[usize; 3]>,
    budget_bytes: u64,
    cache: Mutex<Cache>,
    files: Mutex<OpenFiles>,
}

/// Locks a mutex even if a thread panicked while holding it: the guarded data are consistent between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the shape of a stack's blocks.
fn block_shape(stack: &Stack, max_bytes: u64) -> [usize; 3] {
    let voxels = usize::try_from(max_bytes / stack.dtype.size_bytes() as u64).unwrap_or(usize::MAX).max(1);
    let [nz, ny, nx] = stack.zyx;
    let x = nx.min(voxels).min(if stack.packed { nx } else { BLOCK_ZYX[2] });
    // Compressed planes are decoded as a whole, so they are cached as a whole if possible.
    let y_wish = if stack.packed { ny } else { BLOCK_ZYX[1] };
    let y = (voxels / x).clamp(1, ny).min(y_wish);
    let z_wish = if stack.packed { nz } else { BLOCK_ZYX[0] };
    let z = (voxels / (x * y)).clamp(1, nz).min(z_wish);
    [z, y, x]
}

impl Reader {
    /// Creates a reader with a cache of `budget_bytes`. If all stacks fit, each of them is a single block.
    pub fn new(stacks: Vec<Stack>, budget_bytes: u64) -> Self {
        let all = stacks.iter().map(Stack::bytes).fold(0u64, u64::saturating_add);
        let max_bytes = (budget_bytes / BLOCKS_IN_BUDGET).clamp(BLOCK_BYTES.start, BLOCK_BYTES.end);
        let blocks =
            stacks.iter().map(|s| if all <= budget_bytes { s.zyx } else { block_shape(s, max_bytes) }).collect();
        Self { stacks, blocks, budget_bytes, cache: Mutex::default(), files: Mutex::default() }
    }

    /// The stack with this index; `None` if there is none.
    pub fn stack(&self, number: usize) -> Option<&Stack> {
        self.stacks.get(number)
    }

    /// Bytes in the cache, and hits and misses since the reader was created.
    pub fn cache_use(&self) -> CacheUse {
        lock(&self.cache).about
    }

    /// Returns whether every stack is a single block.
    pub fn keeps_all(&self) -> bool {
        self.stacks.iter().zip(&self.blocks).all(|(s, b)| s.zyx == *b)
    }

    /// Returns the opened file of a stack.
    pub fn file(&self, number: usize) -> Result<Image, TrainingDataError> {
        let stack = self.known(number)?;
        {
            let mut open = lock(&self.files);
            open.clock += 1;
            let now = open.clock;
            if let Some((image, used)) = open.files.get_mut(&number) {
                *used = now;
                return Ok(image.clone());
            }
        }
        let image = open_image(&stack.image)?;
        let now = Stack::of(&stack.image, stack.role, &image)?;
        if now.zyx != stack.zyx || now.dtype != stack.dtype {
            return Err(TrainingDataError::data(
                &stack.image.path,
                format!(
                    "its shape and type changed from {:?} {} to {:?} {}",
                    stack.zyx, stack.dtype, now.zyx, now.dtype
                ),
                "do not change training data during training, and start again",
            ));
        }
        // Chunks of OME-Zarr that are not kept would be decoded again for each block.
        if image.meta().format != FileFormat::OmeZarr {
            image.limit_cache(self.read_ahead_bytes());
        }
        let mut open = lock(&self.files);
        while open.files.len() >= MAX_OPEN_FILES {
            let Some(oldest) = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(n, _)| *n) else { break };
            open.files.remove(&oldest);
        }
        let now = open.clock;
        open.files.insert(number, (image.clone(), now));
        Ok(image)
    }

    /// Returns the maximum number of bytes that the reader of an open file may keep for the next read: those of all open files
    /// together are at most as many as the cache of blocks.
    fn read_ahead_bytes(&self) -> u64 {
        self.budget_bytes / self.stacks.len().clamp(1, MAX_OPEN_FILES) as u64
    }

    /// Returns stack `number`, or the error for one that was not opened.
    pub fn known(&self, number: usize) -> Result<&Stack, TrainingDataError> {
        let got = || TrainingDataError::Parameter {
            what: "the index of a stack",
            got: number.to_string(),
            expected: "that of an opened stack",
        };
        self.stacks.get(number).ok_or_else(got)
    }

    /// Returns a block, from the cache or from its file.
    fn block(&self, number: usize, at: [usize; 3]) -> Result<Arc<Samples>, TrainingDataError> {
        let stack = self.known(number)?;
        let block = self.blocks.get(number).copied().unwrap_or(stack.zyx);
        let start: [usize; 3] = std::array::from_fn(|a| at[a] * block[a]);
        let size: [usize; 3] = std::array::from_fn(|a| block[a].min(stack.zyx[a].saturating_sub(start[a])));
        let bytes = size.iter().map(|n| *n as u64).product::<u64>() * stack.dtype.size_bytes() as u64;
        let key = (number, at);
        let slot = {
            let mut cache = lock(&self.cache);
            cache.clock += 1;
            let now = cache.clock;
            if let Some((slot, _, used)) = cache.slots.get_mut(&key) {
                *used = now;
                let slot = Arc::clone(slot);
                cache.about.hits += 1;
                slot
            } else {
                // Memory is freed before it is allocated.
                while cache.about.held_bytes + bytes > self.budget_bytes {
                    let oldest = cache.slots.iter().min_by_key(|(_, (.., used))| *used).map(|(k, _)| *k);
                    let Some((_, freed, _)) = oldest.and_then(|k| cache.slots.remove(&k)) else { break };
                    cache.remove(freed);
                }
                let slot = Arc::<CacheSlot>::default();
                cache.slots.insert(key, (Arc::clone(&slot), bytes, now));
                cache.about.misses += 1;
                cache.add(bytes);
                slot
            }
        };
        let mut held = lock(&slot.samples);
        if let Some(samples) = held.as_ref() {
            return Ok(Arc::clone(samples));
        }
        let read = self.file(number).and_then(|image| stack.read(&image, start, size));
        match read {
            Ok(samples) => {
                let samples = Arc::new(samples);
                *held = Some(Arc::clone(&samples));
                Ok(samples)
            }
            Err(e) => {
                drop(held);
                let mut cache = lock(&self.cache);
                if let Some((_, freed, _)) = cache.slots.remove(&key) {
                    cache.remove(freed);
                }
                Err(e)
            }
        }
    }

    /// Calls `f` for a stack's voxels in slabs of whole rows; from the cache if the stack is a single block.
    pub fn each_slab(&self, number: usize, f: &mut SlabVisitor<'_>) -> Result<(), TrainingDataError> {
        let stack = self.known(number)?;
        if self.blocks.get(number) == Some(&stack.zyx) {
            // The same slabs as from the file, so that sums are bit-identical.
            let samples = self.block(number, [0; 3])?;
            let mut at = 0usize;
            for (start, size) in stack.slabs() {
                let end = at + size.iter().product::<usize>();
                let slab = with_samples!(samples.as_ref(), v => v.get(at..end).map(|v| Samples::from(v.to_vec())));
                f(start, size, &slab.unwrap_or_else(|| Samples::zeros(stack.dtype, 0)))?;
                at = end;
            }
            return Ok(());
        }
        let image = self.file(number)?;
        stack.slabs().try_for_each(|(start, size)| f(start, size, &stack.read(&image, start, size)?))
    }

    /// Reads a box of a stack, which may exceed `window`, and converts the voxels with `convert`. Voxels outside the
    /// window are `fill`, or mirrored if `fill` is `None`.
    pub fn read_box<O: Copy>(
        &self,
        number: usize,
        window: BoxZyx,
        wanted: UnclippedBox,
        fill: Option<O>,
        convert: &(impl Convert<O> + ?Sized),
        out: &mut Vec<O>,
    ) -> Result<(), TrainingDataError> {
        let stack = self.known(number)?;
        let block = self.blocks.get(number).copied().unwrap_or(stack.zyx);
        let maps: [Vec<usize>; 3] =
            std::array::from_fn(|a| axis_map(wanted.start[a], wanted.size[a], window[a].clone(), fill.is_none()));
        let len = wanted.size.iter().product();
        out.clear();
        out.resize(len, fill.unwrap_or_else(|| convert.fill_value()));
        // Indices of the required blocks along each axis.
        let touched: [Vec<usize>; 3] = std::array::from_fn(|a| {
            let mut blocks: Vec<usize> = maps[a].iter().filter(|i| **i != NONE).map(|i| i / block[a]).collect();
            blocks.sort_unstable();
            blocks.dedup();
            blocks
        });
        let inside = |axis: usize, b: usize| -> Vec<(usize, usize)> {
            let first = b * block[axis];
            let block_range = first..first + block[axis];
            let hits = maps[axis].iter().enumerate().filter(|(_, i)| block_range.contains(*i));
            hits.map(|(at, i)| (at, i - first)).collect()
        };
        for bz in &touched[0] {
            let zs = inside(0, *bz);
            for by in &touched[1] {
                let ys = inside(1, *by);
                for bx in &touched[2] {
                    let runs = runs(&inside(2, *bx));
                    let samples = self.block(number, [*bz, *by, *bx])?;
                    let rows = block[1].min(stack.zyx[1] - by * block[1]);
                    let width = block[2].min(stack.zyx[2] - bx * block[2]);
                    for (z, from_z) in &zs {
                        for (y, from_y) in &ys {
                            let row = (from_z * rows + from_y) * width;
                            let to = (z * wanted.size[1] + y) * wanted.size[2];
                            copy_row(&samples, row..row + width, &runs, out, to, convert);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// A box that may exceed its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnclippedBox {
    /// First voxel along Z, Y, X, counted in the stack; negative before it begins.
    pub start: [i64; 3],
    /// Number of voxels along Z, Y, X.
    pub size: [usize; 3],
}

/// Index for positions outside the window.
const NONE: usize = usize::MAX;

/// Returns the source index of each position along one axis of a box; [`NONE`] outside the window, unless mirrored.
fn axis_map(start: i64, size: usize, window: Range<usize>, mirror: bool) -> Vec<usize> {
    let (first, len) = (window.start as i64, window.len() as i64);
    (0..size as i64)
        .map(|i| {
            let at = start + i - first;
            if (0..len).contains(&at) {
                return (first + at) as usize;
            }
            if !mirror || len == 0 {
                return NONE;
            }
            let turn = at.rem_euclid(2 * len);
            (first + turn.min(2 * len - 1 - turn)) as usize
        })
        .collect()
}

/// Consecutive voxels of a row that are copied from `from` to `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VoxelRun {
    to: usize,
    from: usize,
    len: usize,
    /// Whether the source runs backwards; `from` is then its smallest index.
    back: bool,
}

/// Groups pairs of target and source index into runs.
fn runs(places: &[(usize, usize)]) -> Vec<VoxelRun> {
    let mut runs: Vec<VoxelRun> = Vec::new();
    for (to, from) in places.iter().copied() {
        if let Some(run) = runs.last_mut().filter(|r| r.to + r.len == to) {
            if (!run.back || run.len == 1) && run.from + run.len == from {
                (run.back, run.len) = (false, run.len + 1);
                continue;
            }
            // A backward run is stored by its smallest source index.
            if (run.back || run.len == 1) && from + 1 == run.from {
                (run.back, run.from, run.len) = (true, from, run.len + 1);
                continue;
            }
        }
        runs.push(VoxelRun { to, from, len: 1, back: false });
    }
    runs
}

/// Conversion of voxels while they are read.
pub(crate) trait Convert<O> {
    /// Converts a value.
    fn convert<E: Element>(&self, value: E) -> O;
    /// Returns the initial value of the output buffer.
    fn fill_value(&self) -> O;
    /// Returns whether some values may have the ignore label.
    fn has_ignored(&self) -> bool {
        false
    }
}

fn copy_row<O: Copy>(
    samples: &Samples,
    row: Range<usize>,
    runs: &[VoxelRun],
    out: &mut [O],
    to: usize,
    convert: &(impl Convert<O> + ?Sized),
) {
    fn typed<E: Element, O: Copy>(
        values: &[E],
        row: Range<usize>,
        runs: &[VoxelRun],
        out: &mut [O],
        to: usize,
        convert: &(impl Convert<O> + ?Sized),
    ) {
        let Some(row) = values.get(row) else { return };
        for run in runs {
            let (Some(from), Some(into)) =
                (row.get(run.from..run.from + run.len), out.get_mut(to + run.to..to + run.to + run.len))
            else {
                continue;
            };
            if run.back {
                into.iter_mut().zip(from.iter().rev()).for_each(|(o, v)| *o = convert.convert(*v));
            } else {
                into.iter_mut().zip(from).for_each(|(o, v)| *o = convert.convert(*v));
            }
        }
    }
    with_samples!(samples, v => typed(v, row, runs, out, to, convert));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::dataset::ImageRef;
    use crate::stack::Role;

    #[test]
    fn what_all_open_files_keep_for_the_next_read_is_at_most_the_size_of_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (count, budget_bytes, [nz, ny, nx]) = (4, 4000, [20, 10, 8]);
        // Arrays in Fortran order, of which slices are read ahead.
        let text = format!("{{'descr': '<u2', 'fortran_order': True, 'shape': ({nz}, {ny}, {nx}), }}");
        let header = format!("{text:<117}\n");
        let voxel_bytes = vec![0u8; 2 * nz * ny * nx];
        let file = [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes(), &voxel_bytes].concat();
        let stack = |number: usize| {
            let image = ImageRef::of(folder.path().join(format!("{number}.npy")));
            std::fs::write(&image.path, &file).unwrap();
            Stack::of(&image, Role::Image, &open_image(&image).unwrap()).unwrap()
        };
        let reader = Reader::new((0..count).map(stack).collect(), budget_bytes);
        for number in 0..count {
            let limited = reader.file(number).unwrap();
            let other = open_image(&reader.known(number).unwrap().image).unwrap();
            // Otherwise, all voxels of a file are kept.
            let fewer = voxel_bytes.len() as u64 - budget_bytes / count as u64;
            assert_eq!(other.cache_bytes() - limited.cache_bytes(), fewer);
        }
    }

    #[test]
    fn mirroring_repeats_the_border_and_is_periodic() {
        assert_eq!(axis_map(-3, 10, 2..5, true), [3, 4, 4, 3, 2, 2, 3, 4, 4, 3].map(|v| v as usize));
        assert_eq!(axis_map(1, 3, 2..3, false), [NONE, 2, NONE]);
        assert_eq!(axis_map(-7, 3, 0..1, true), [0, 0, 0]);
    }

    #[test]
    fn runs_are_forward_or_backward() {
        let places: Vec<(usize, usize)> = [2, 1, 0, 0, 1, 2, 2, 1].into_iter().enumerate().collect();
        let got = runs(&places);
        let want = [(0, 0, 3, true), (3, 0, 3, false), (6, 1, 2, true)];
        assert_eq!(got, want.map(|(to, from, len, back)| VoxelRun { to, from, len, back }));
    }
}

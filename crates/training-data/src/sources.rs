//! Opened pairs of a training set: shapes, voxel sizes, and cached reading of voxels.

use crate::dataset::{ImageRef, Pair};
use crate::error::{TrainingDataError, check_range};
use crate::reader::{CacheUse, Reader};
use crate::setting::{IN_SETTINGS, VOXEL_UM};
use crate::stack::{Role, Stack, open_image, pair_voxel_um};
use cytoscope_storage::message;
use cytoscope_volume::{BoxZyx, VoxelSize};
use serde::{Deserialize, Serialize};

/// Options for opening pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceOptions {
    /// Size of the voxel cache in bytes. If all stacks fit, they are cached as a whole. Each reading thread holds an
    /// additional block (at most 16 MiB, or one row). What is read ahead in files in Fortran order takes at most as much again.
    pub cache_bytes: u64,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self { cache_bytes: 2 << 30 }
    }
}

/// An opened pair.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The pair as it was found: paths, channels, part of the data and weight.
    pub pair: Pair,
    /// Indices of the image's channels in the reader; at least one.
    pub images: Vec<usize>,
    /// Indices of the targets in the reader; at least one.
    pub targets: Vec<usize>,
    /// The voxels that may be used.
    pub window: BoxZyx,
    /// Voxel size along Z, Y, X in µm, if known.
    pub voxel_um: [Option<f64>; 3],
}

impl Source {
    /// Returns the index of the first target in the reader.
    pub fn target(&self) -> usize {
        self.targets.first().copied().unwrap_or_default()
    }

    /// Returns the size of the window along Z, Y, X.
    pub fn extent(&self) -> [usize; 3] {
        std::array::from_fn(|a| self.window[a].len())
    }

    /// Returns the voxel size along Z, Y, X in µm; `None` if it is unknown along an axis.
    pub fn known_voxel_um(&self) -> Option<[f64; 3]> {
        let [z, y, x] = self.voxel_um;
        Some([z?, y?, x?])
    }

    /// Returns the voxel size of the file in µm, or else that of the model, or else 1.
    pub fn voxel_or(&self, model_um: Option<[f64; 3]>) -> [f64; 3] {
        std::array::from_fn(|a| self.voxel_um[a].or(model_um.map(|m| m[a])).unwrap_or(1.0))
    }
}

/// Opened pairs, which samplers and threads can share.
#[derive(Debug)]
pub struct Sources {
    pub(crate) reader: Reader,
    pub(crate) entries: Vec<Source>,
}

/// Checks that a stack has the shape of the first image channel of its pair.
fn check_same_shape(stack: &Stack, image: &Stack) -> Result<(), TrainingDataError> {
    if stack.zyx == image.zyx {
        return Ok(());
    }
    let shown = image.image.path.display();
    let problem = format!("its shape Z, Y, X is {:?}, but that of {shown} is {:?}", stack.zyx, image.zyx);
    let next_step = match stack.role {
        Role::Target | Role::Labels => "choose the target of this image, or resample one of them",
        Role::Image => "choose the channels of one image, or resample one of them",
    };
    Err(TrainingDataError::data(&stack.image.path, problem, next_step))
}

/// Checks that a pair has as many channels and targets as the first one.
fn check_channel_counts(pair: &Pair, pairs: &[Pair]) -> Result<(), TrainingDataError> {
    let counts = |pair: &Pair| (1 + pair.more_images.len(), 1 + pair.more_targets.len());
    let (found, expected) = (counts(pair), pairs.first().map_or((1, 1), counts));
    if found == expected {
        return Ok(());
    }
    let problem = format!(
        "it has {} image channels and {} targets, but the first pair has {} and {}",
        found.0, found.1, expected.0, expected.1
    );
    Err(TrainingDataError::data(&pair.image.path, problem, "give all pairs the same channels and targets"))
}

impl Sources {
    /// Opens the pairs; only headers are read.
    ///
    /// # Errors
    /// [`TrainingDataError`] if there are no pairs, a file cannot be read, a channel or time point does not exist,
    /// image and target have different shapes, pairs have different numbers of channels, a window exceeds its stack, or
    /// a weight is invalid.
    pub fn open(pairs: &[Pair], options: &SourceOptions) -> Result<Self, TrainingDataError> {
        if pairs.is_empty() {
            return Err(TrainingDataError::Parameter {
                what: "the number of pairs",
                got: "0".to_owned(),
                expected: "at least one: see the problems of the data",
            });
        }
        let mut stacks: Vec<Stack> = Vec::with_capacity(pairs.len() * 2);
        let mut entries = Vec::with_capacity(pairs.len());
        for pair in pairs {
            check_range("the weight of a pair", pair.weight, 0.0..=1e6, "0 to 1 000 000")?;
            let image = Stack::of(&pair.image, Role::Image, &open_image(&pair.image)?)?;
            let target = Stack::of(&pair.target, Role::Target, &open_image(&pair.target)?)?;
            check_same_shape(&target, &image)?;
            check_channel_counts(pair, pairs)?;
            let window: BoxZyx = match pair.window {
                None => image.zyx.map(|n| 0..n),
                Some(w) => {
                    let inside = (0..3).all(|a| {
                        w.size_zyx[a] > 0
                            && w.start_zyx[a].checked_add(w.size_zyx[a]).is_some_and(|end| end <= image.zyx[a])
                    });
                    if !inside {
                        return Err(TrainingDataError::data(
                            &pair.image.path,
                            format!("the window {w:?} exceeds its shape {:?}", image.zyx),
                            "split the data again",
                        ));
                    }
                    std::array::from_fn(|a| w.start_zyx[a]..w.start_zyx[a] + w.size_zyx[a])
                }
            };
            let [z, y, x] = pair_voxel_um(pair, &image, &target);
            let size = VoxelSize { z, y, x }.in_slices(image.zyx[0]);
            // The grid of the patches depends on it.
            size.check().map_err(|e| {
                TrainingDataError::data(&pair.image.path, e.to_string(), message!("set {VOXEL_UM} {IN_SETTINGS}"))
            })?;
            let voxel_um = [size.z, size.y, size.x];
            let first = stacks.len();
            stacks.extend([image, target]);
            let mut add = |references: &[ImageRef], role: Role| -> Result<Vec<usize>, TrainingDataError> {
                let mut numbers = Vec::with_capacity(references.len());
                for reference in references {
                    let stack = Stack::of(reference, role, &open_image(reference)?)?;
                    check_same_shape(&stack, &stacks[first])?;
                    numbers.push(stacks.len());
                    stacks.push(stack);
                }
                Ok(numbers)
            };
            let (mut images, mut targets) = (vec![first], vec![first + 1]);
            images.extend(add(&pair.more_images, Role::Image)?);
            targets.extend(add(&pair.more_targets, Role::Target)?);
            entries.push(Source { pair: pair.clone(), images, targets, window, voxel_um });
        }
        Ok(Self { reader: Reader::new(stacks, options.cache_bytes), entries })
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no pairs, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the pairs in their original order.
    pub fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.entries.iter().map(|e| &e.pair)
    }

    /// Returns the size of a pair's window along Z, Y, X and its voxel size in µm (`None` if no file states it).
    pub fn grid(&self, pair: usize) -> Option<([usize; 3], [Option<f64>; 3])> {
        self.entries.get(pair).map(|e| (e.extent(), e.voxel_um))
    }

    /// Returns statistics of the cache.
    pub fn cache_use(&self) -> CacheUse {
        self.reader.cache_use()
    }

    /// Returns whether all stacks fit into the cache as a whole.
    pub fn keeps_all(&self) -> bool {
        self.reader.keeps_all()
    }
}

//! Simulated microscope stacks with ground truth, for training, testing and demonstrations without annotated data.
//!
//! There are three [`Kind`]s of stack; the formulas are documented in their modules:
//! - **nuclei**: textured, deformed ellipsoids of varying size and brightness, many of them touching, with labels;
//! - **cells**: space-filling cells with stained membranes, with labels;
//! - **label-free**: a bright-field focus stack of cells, with the fluorescence of their nuclei as the target.
//!
//! [`Settings::new`] returns default settings for each kind, [`Settings::varied`] draws settings from wide ranges for
//! training networks, and [`simulate`] computes the stack. The crate does no I/O. Functions return [`SimulateError`]
//! for shapes or settings out of range ([`MAX_VOXELS`], [`MAX_OBJECTS`]) and when the progress callback cancels; no
//! settings cause a panic.
//!
//! The same settings always give the same bytes, independent of the number of threads: each object and slice has its
//! own ChaCha8 random stream, and no floating-point sum depends on the order of threads.
//!
//! ```
//! use cytoscope_simulate::{Kind, Settings, simulate};
//! let stack = simulate(&Settings::new(Kind::Nuclei, [12, 64, 64], 7), |_fraction| true)?;
//! assert_eq!(stack.raw.shape(), [12, 64, 64]);
//! assert!(stack.object_count > 0 && stack.labels.is_some());
//! # Ok::<(), cytoscope_simulate::SimulateError>(())
//! ```
#![forbid(unsafe_code)]

mod cells;
mod debris;
mod deformation;
mod error;
mod exposure;
mod grid;
mod labelfree;
mod noise;
mod nuclei;
mod optics;
mod options;
mod placement;
mod placement_space;
mod progress;
mod random;
mod settings;
mod shape;
mod texture;
mod truth;
mod varied;
mod visible_truth;

pub use error::SimulateError;
pub use options::{Background, Debris, Membranes, Placement, Pressed, Spots, Stretch, Truth, TruthOutline};
pub use settings::{Camera, Kind, MAX_OBJECTS, MAX_VOXELS, Objects, Optics, Settings};
pub use truth::MIN_OBJECT_VOXELS;

use cytoscope_volume::{Array, VoxelSize};
use progress::ProgressRange;

/// A simulated stack with its ground truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// The microscope image: uint16, axes Z, Y, X, in camera counts (fluorescence, or bright-field for
    /// [`Kind::LabelFree`]).
    pub raw: Array,
    /// Labels of the objects: axes Z, Y, X, 0 = background, 1..=`object_count` = objects; uint16, or uint32 above 65535
    /// objects. For [`Kind::LabelFree`] the objects are the nuclei.
    pub labels: Option<Array>,
    /// For [`Kind::LabelFree`], the target for prediction: the fluorescence of the nuclei, blurred by the objective,
    /// without background and noise; float32, axes Z, Y, X, in photons.
    pub target: Option<Array>,
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Number of objects in the true labels.
    pub object_count: usize,
    /// The settings of this stack, from which it can be reproduced.
    pub settings: Settings,
}

/// Simulates a stack.
///
/// `progress` is called on the calling thread between batches of slices with the completed fraction (0 to 1,
/// increasing). Returning `false` cancels the simulation. The computation runs in the current rayon thread pool.
///
/// # Errors
/// [`SimulateError::EmptyShape`], [`SimulateError::TooManyVoxels`], [`SimulateError::TooManyObjects`] or
/// [`SimulateError::BadSetting`] for settings out of range, [`SimulateError::Canceled`] if `progress` returns `false`.
pub fn simulate(settings: &Settings, progress: impl Fn(f64) -> bool) -> Result<Simulation, SimulateError> {
    let grid = settings.check()?;
    let progress = ProgressRange::new(&progress);
    progress.at(0.0)?;
    let volumes = match settings.kind {
        Kind::Nuclei => nuclei::simulate(settings, &grid, &progress),
        Kind::Cells => cells::simulate(settings, &grid, &progress),
        Kind::LabelFree => labelfree::simulate(settings, &grid, &progress),
    }?;
    progress.at(1.0)?;
    Ok(Simulation {
        raw: grid.array(volumes.raw)?,
        labels: Some(truth::label_array(&grid, volumes.labels, volumes.object_count)?),
        target: volumes.target.map(|t| grid.array(t)).transpose()?,
        voxel_size_um: settings.voxel_size_um,
        object_count: volumes.object_count,
        settings: settings.clone(),
    })
}

/// Result of the module of a kind; all volumes are in C order over the grid.
struct SimulatedVolumes {
    /// Camera counts.
    raw: Vec<u16>,
    /// Labels: 0 is background, objects are 1..=`object_count`.
    labels: Vec<u32>,
    /// Number of labels.
    object_count: usize,
    /// The fluorescence target in photons, for label-free pairs.
    target: Option<Vec<f32>>,
}

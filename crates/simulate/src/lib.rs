//! Seeded microscope stacks with truth: what a model is shown, tested and demonstrated on where no annotated data is.
//!
//! Three [`Kind`]s of stack are made, each by the formulas its module states:
//! - **nuclei**: textured, deformed ellipsoids of spread size and brightness, many of them touching, with their labels;
//! - **cells**: space-filling cells whose membranes are stained, with their labels;
//! - **label-free**: the bright-field image of cells through focus, with the fluorescence of their nuclei as the target.
//!
//! [`Settings::new`] holds sensible values for each kind, [`Settings::varied`] draws them over wide ranges to teach networks
//! with, and [`simulate`] makes the stack. The room is pure: it reads and
//! writes no files. It fails with [`SimulateError`] on shapes or settings out of range ([`MAX_VOXELS`], [`MAX_OBJECTS`])
//! and when its progress callback says stop; it does not panic on any settings.
//!
//! The same settings give the same bytes, whatever the number of threads: every random number comes from a ChaCha8 stream
//! of its own object or slice, and no floating-point sum runs in an order that threads decide.
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
mod error;
mod exposure;
mod form;
mod grid;
mod labelfree;
mod noise;
mod nuclei;
mod optics;
mod options;
mod placement;
mod progress;
mod random;
mod region;
mod settings;
mod shape;
mod texture;
mod truth;
mod varied;
mod visible;

pub use error::SimulateError;
pub use options::{Background, Debris, Membranes, Placement, Spots, Stretch, Truth, TruthOutline};
pub use settings::{Camera, Kind, MAX_OBJECTS, MAX_VOXELS, Objects, Optics, Settings};
pub use truth::MIN_OBJECT_VOXELS;

use cytoscope_volume::{Array, VoxelSize};
use progress::Watch;

/// A simulated stack and the truth it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// What the microscope shows: uint16, axes ZYX, in camera counts (fluorescence, or bright-field for
    /// [`Kind::LabelFree`]).
    pub raw: Array,
    /// The objects: axes ZYX, 0 = background, 1..=`object_count` = object; uint16, or uint32 above 65535 objects.
    /// For [`Kind::LabelFree`] these are the nuclei.
    pub labels: Option<Array>,
    /// For [`Kind::LabelFree`], what is to be predicted: the fluorescence of the nuclei as the objective sees it, float32,
    /// axes ZYX, in photons, without background and noise.
    pub target: Option<Array>,
    /// Size of a voxel in µm.
    pub voxel_size_um: VoxelSize,
    /// Number of labelled objects.
    pub object_count: usize,
    /// The settings that made this stack, and would make it again.
    pub settings: Settings,
}

/// Makes a stack.
///
/// `progress` is told the fraction done (0 to 1, rising) between batches of slices, on the calling thread; it answers
/// whether to go on. The work itself runs on the current rayon pool.
///
/// # Errors
/// [`SimulateError::EmptyShape`], [`SimulateError::TooManyVoxels`], [`SimulateError::TooManyObjects`] or
/// [`SimulateError::BadSetting`] for settings out of range, [`SimulateError::Cancelled`] once `progress` answers `false`.
pub fn simulate(settings: &Settings, progress: impl Fn(f64) -> bool) -> Result<Simulation, SimulateError> {
    let grid = settings.check()?;
    let watch = Watch::new(&progress);
    watch.at(0.0)?;
    let made = match settings.kind {
        Kind::Nuclei => nuclei::simulate(settings, &grid, &watch),
        Kind::Cells => cells::simulate(settings, &grid, &watch),
        Kind::LabelFree => labelfree::simulate(settings, &grid, &watch),
    }?;
    watch.at(1.0)?;
    Ok(Simulation {
        raw: grid.array(made.raw)?,
        labels: Some(truth::label_array(&grid, made.labels, made.object_count)?),
        target: made.target.map(|t| grid.array(t)).transpose()?,
        voxel_size_um: settings.voxel_size_um,
        object_count: made.object_count,
        settings: settings.clone(),
    })
}

/// What the module of a kind hands back; all volumes in C order over the grid.
struct Made {
    /// Camera counts.
    raw: Vec<u16>,
    /// 0 or 1..=`object_count`.
    labels: Vec<u32>,
    /// Number of labels.
    object_count: usize,
    /// The fluorescence truth in photons, for label-free pairs.
    target: Option<Vec<f32>>,
}

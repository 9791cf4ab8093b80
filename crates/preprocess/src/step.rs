//! Preprocessing steps and their parameters.

use crate::PreprocessError;
use cytoscope_volume::number_text;
use serde::{Deserialize, Serialize};

/// Maximum number of steps of a chain.
pub const MAX_STEPS: usize = 32;

/// A length along Y and X, in the plane of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// In µm; voxels along Y and X may have different sizes.
    Um(f64),
    /// In voxels, the same number along Y and X.
    Voxels(f64),
}

/// Lengths along Z, Y, X.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// In µm along Z, Y, X; the stack must have a voxel size.
    Um([f64; 3]),
    /// In voxels along Z, Y, X.
    Voxels([f64; 3]),
}

/// A step that is applied to each channel of each time point before the network's own preprocessing.
///
/// As text, a step is its name followed by parameters, such as `gaussian:sigma=1um` or `crop:z=10-50:x=0-512`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case", deny_unknown_fields)]
pub enum PreprocessStep {
    /// Gaussian smoothing in 3-D (`gaussian:sigma=S`), edge values extended, cut off at 4 sigma.
    Gaussian {
        /// Standard deviation along Z, Y, X.
        sigma: Lengths,
    },
    /// Median of a box in 3-D (`median:radius=R`), edge values extended. The box has `2 R + 1` voxels along an axis.
    Median {
        /// Radius along Z, Y, X, rounded to voxels.
        radius: Lengths,
    },
    /// White top-hat of each slice (`tophat:radius=R`): the slice minus its morphological opening with a disk. It removes
    /// background and objects that are wider than the disk.
    Tophat {
        /// Radius of the disk: more than that of the largest object to keep.
        radius: Length,
    },
    /// Background subtraction of each slice with a rolling ball (`rolling-ball:radius=R`): the background is what a ball
    /// reaches that rolls under the surface of intensities.
    RollingBall {
        /// Radius of the ball in the plane.
        radius: Length,
        /// Radius of the ball along the intensities, in units of the image; without it, the radius along X in voxels.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        height: Option<f64>,
    },
    /// Contrast-limited adaptive histogram equalization of each slice (`clahe:tiles=8:clip=0.01`), to the range 0 to 1.
    Clahe {
        /// Number of tiles along Y and X.
        tiles: u32,
        /// Largest share of a tile's voxels in one of 256 bins of its histogram, before the excess is spread over all bins.
        clip: f64,
    },
    /// Contrast stretch of the stack (`stretch:low=1:high=99.8`): two percentiles of a channel and time point become 0 and
    /// 1, values outside are clipped.
    Stretch {
        /// Percentile that becomes 0, from 0 to below `high`.
        low: f64,
        /// Percentile that becomes 1, from above `low` to 100.
        high: f64,
    },
    /// Normalization of each slice (`normalize-slices:low=1:high=99.8`): two percentiles of the slice become 0 and 1, values
    /// outside are not clipped. A slice without contrast becomes 0.
    NormalizeSlices {
        /// Percentile that becomes 0, from 0 to below `high`.
        low: f64,
        /// Percentile that becomes 1, from above `low` to 100.
        high: f64,
    },
    /// Inverted contrast (`invert`): each value becomes the largest value of its channel and time point minus it, so that
    /// dark objects on a bright background become bright.
    Invert,
    /// Deskewing of a light-sheet stack whose stage moved along Y (`deskew:angle=30:step=0.5um`): slices are shifted along
    /// Y with linear interpolation, and the stack grows along Y. New voxels are 0.
    Deskew {
        /// Angle between the sheet and the direction of the stage in degrees; negative if the stage moved toward -Y.
        angle_degrees: f64,
        /// Distance that the stage moved between slices in µm; without it, the voxel size along Z.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step_um: Option<f64>,
    },
    /// Affine warp with linear interpolation (`affine:matrix=…`); the shape stays, voxels from outside are 0.
    Affine {
        /// Three rows of four numbers: the position Z, Y, X in the input, in voxels, is the matrix times the position
        /// (Z, Y, X, 1) in the output.
        matrix: [f64; 12],
    },
    /// Crop (`crop:z=A-B:y=A-B:x=A-B`), from `A` up to but not including `B`; axes that are not given are kept.
    Crop {
        /// First slice, and the one after the last; `None` keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        z: Option<[usize; 2]>,
        /// First row, and the one after the last; `None` keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        y: Option<[usize; 2]>,
        /// First column, and the one after the last; `None` keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        x: Option<[usize; 2]>,
    },
}

impl PreprocessStep {
    /// The steps with usual parameters, one of each kind except [`PreprocessStep::Affine`] and
    /// [`PreprocessStep::Crop`], which depend on the stack.
    pub fn usual() -> Vec<Self> {
        vec![
            Self::Gaussian { sigma: Lengths::Voxels([1.0; 3]) },
            Self::Median { radius: Lengths::Voxels([1.0; 3]) },
            Self::Tophat { radius: Length::Voxels(15.0) },
            Self::RollingBall { radius: Length::Voxels(25.0), height: None },
            Self::Clahe { tiles: 8, clip: 0.01 },
            Self::Stretch { low: 1.0, high: 99.8 },
            Self::NormalizeSlices { low: 1.0, high: 99.8 },
            Self::Invert,
            Self::Deskew { angle_degrees: 30.0, step_um: None },
        ]
    }

    /// The step's name, as in its text.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gaussian { .. } => "gaussian",
            Self::Median { .. } => "median",
            Self::Tophat { .. } => "tophat",
            Self::RollingBall { .. } => "rolling-ball",
            Self::Clahe { .. } => "clahe",
            Self::Stretch { .. } => "stretch",
            Self::NormalizeSlices { .. } => "normalize-slices",
            Self::Invert => "invert",
            Self::Deskew { .. } => "deskew",
            Self::Affine { .. } => "affine",
            Self::Crop { .. } => "crop",
        }
    }

    /// Whether the shape or position of the output differs from that of the input, so that results do not lie on the input's
    /// grid.
    pub fn moves_voxels(&self) -> bool {
        matches!(self, Self::Deskew { .. } | Self::Affine { .. } | Self::Crop { .. })
    }

    /// Checks the values of the parameters that do not depend on a stack.
    ///
    /// # Errors
    /// [`PreprocessError::Parameter`] with the value and the valid ones.
    pub fn check(&self) -> Result<(), PreprocessError> {
        let name = self.name();
        let refuse = |problem: String, expected: &str| Err(PreprocessError::parameter(name, problem, expected));
        let is_length = |v: f64| v.is_finite() && v >= 0.0;
        match self {
            Self::Gaussian { sigma: Lengths::Um(v) | Lengths::Voxels(v) }
            | Self::Median { radius: Lengths::Um(v) | Lengths::Voxels(v) } => {
                if !v.iter().all(|v| is_length(*v)) || v.iter().all(|v| *v == 0.0) {
                    return refuse(
                        format!("the lengths are {v:?}"),
                        "finite lengths of at least 0, one of them above 0",
                    );
                }
            }
            Self::Tophat { radius } | Self::RollingBall { radius, .. } => {
                let (Length::Um(v) | Length::Voxels(v)) = *radius;
                if !is_length(v) || v == 0.0 {
                    return refuse(format!("the radius is {}", number_text(v)), "a finite radius above 0");
                }
                if let Self::RollingBall { height: Some(height), .. } = self
                    && (!is_length(*height) || *height == 0.0)
                {
                    return refuse(format!("the height is {}", number_text(*height)), "a finite height above 0");
                }
            }
            Self::Clahe { tiles, clip } => {
                if !(1..=64).contains(tiles) {
                    return refuse(format!("the number of tiles is {tiles}"), "1 to 64 tiles");
                }
                if !(*clip > 0.0 && *clip <= 1.0) {
                    return refuse(format!("clip is {}", number_text(*clip)), "a share above 0, up to 1");
                }
            }
            Self::Stretch { low, high } | Self::NormalizeSlices { low, high } => {
                let is_percentile = |v: &f64| (0.0..=100.0).contains(v);
                if !is_percentile(low) || !is_percentile(high) || low >= high {
                    let expected = "percentiles from 0 to 100, low below high";
                    let [low, high] = [*low, *high].map(number_text);
                    return refuse(format!("the percentiles are low={low} and high={high}"), expected);
                }
            }
            Self::Invert => {}
            Self::Deskew { angle_degrees, step_um } => {
                if !(1.0..=89.0).contains(&angle_degrees.abs()) {
                    let angle = number_text(*angle_degrees);
                    return refuse(format!("the angle is {angle}°"), "1° to 89°, or -89° to -1°");
                }
                if let Some(step) = step_um.filter(|v| !is_length(*v) || *v == 0.0) {
                    return refuse(format!("the step is {} µm", number_text(step)), "a finite step above 0 µm");
                }
            }
            Self::Affine { matrix } => {
                if let Some(v) = matrix.iter().find(|v| !v.is_finite() || v.abs() > 1e9) {
                    return refuse(format!("the matrix contains {}", number_text(*v)), "numbers between -1e9 and 1e9");
                }
            }
            Self::Crop { z, y, x } => {
                if [z, y, x].into_iter().all(Option::is_none) {
                    return refuse("no range was given".to_owned(), "z, y or x");
                }
                if let Some([from, to]) = [z, y, x].into_iter().flatten().find(|[from, to]| from >= to) {
                    return refuse(format!("the range {from}-{to} is empty"), "ranges such as 10-50");
                }
            }
        }
        Ok(())
    }
}

//! Settings of the segmentation of a probability map.

use crate::ObjectsError;
use crate::components::Connectivity;
use crate::diameter::min_sphere_voxels;
use serde::{Deserialize, Serialize};

/// How the threshold between background and foreground is chosen. In settings, `0.5` may stand for `{ fixed = 0.5 }`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "WrittenThreshold")]
pub enum Threshold {
    /// Otsu's threshold of the map.
    Otsu,
    /// A fixed value; voxels above it are foreground.
    Fixed(f64),
}

/// The forms in which a [`Threshold`] is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a threshold must be \"otsu\", a number such as 0.5, or { fixed = 0.5 }")]
enum WrittenThreshold {
    Number(f64),
    Named(NamedThreshold),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum NamedThreshold {
    Otsu,
    Fixed(f64),
}

impl From<WrittenThreshold> for Threshold {
    fn from(written: WrittenThreshold) -> Self {
        match written {
            WrittenThreshold::Named(NamedThreshold::Otsu) => Self::Otsu,
            WrittenThreshold::Number(level) | WrittenThreshold::Named(NamedThreshold::Fixed(level)) => {
                Self::Fixed(level)
            }
        }
    }
}

/// Height map of the watershed; its peaks are the seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Height {
    /// Distance to the background in µm.
    Distance,
    /// The (smoothed) map itself; `seed_height` is in its units.
    Map,
    /// The (smoothed) second map itself; `seed_height` is in its units.
    Seeds,
    /// Distance times map, in µm times the map's units.
    DistanceTimesMap,
    /// Distance to the background plus a second map (such as brightness) times `weight_um`, in µm; only the latter in a volume
    /// without background.
    DistancePlusSeeds {
        /// Height in µm of a second map's value of 1.
        weight_um: f64,
    },
}

/// Settings for components in tissue, where objects touch on most sides and the height map falls little between them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TissueOptions {
    /// Share of foreground around a component (0 to 1) above which it is tissue.
    pub min_fill: f64,
    /// Edge length in µm of the window around each voxel in which the foreground is counted; about three objects.
    pub window_um: f64,
    /// Takes the place of [`SegmentOptions::height_smooth_um`].
    pub height_smooth_um: f64,
    /// Takes the place of [`SegmentOptions::seed_height`].
    pub seed_height: f64,
    /// Value of the smoothed map below which the outer voxels of an object become background after splitting (all of its
    /// voxels, if holes are not filled); `None` keeps them. Neighbors in tissue are so close that voxels in the narrow gaps
    /// between them exceed the threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outline: Option<f64>,
}

/// Settings that keep objects below [`SegmentOptions::min_volume_um3`] if they are isolated and certain: objects of a small
/// kind beside larger ones, and parts of objects that the border of the volume cuts. An isolated object shares no face of a
/// voxel with another object.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IsolatedOptions {
    /// Minimum volume as a share (0 to 1) of [`SegmentOptions::min_volume_um3`].
    pub volume_share: f64,
    /// Minimum mean of the smoothed map in the object.
    pub min_mean: f64,
}

/// Settings that split objects outside tissue again if they are larger than usual.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OversizedOptions {
    /// Volume in µm³ above which an object is split again.
    pub min_volume_um3: f64,
    /// Minimum volume of a part as a share (0 to 1) of that volume; smaller parts go to their neighbors. An object that has only one
    /// larger part stays whole.
    pub part_share: f64,
    /// Minimum rise of a seed as a share (0 to 1) of [`SegmentOptions::seed_height`].
    pub seed_share: f64,
    /// Maximum area of the contact of two parts as a share of the smaller one of their middle sections across the way to the
    /// contact; parts with a larger contact stay together. It is about 0.35 for two equal spheres whose centers are 1.6 radii apart,
    /// and about 0.9 in a rod and 1.1 in an ellipsoid that are cut in the middle. `None` does not limit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_neck: Option<f64>,
}

/// Settings for turning a probability map into labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentOptions {
    /// Sigma in µm of the Gaussian smoothing of the map before the threshold.
    pub smooth_um: f64,
    /// Value of the smoothed map above which a voxel is foreground.
    pub threshold: Threshold,
    /// Whether to fill holes of the foreground in each slice.
    pub fill_holes: bool,
    /// Height map of the watershed; `None` skips the watershed and keeps connected components.
    pub height: Option<Height>,
    /// Sigma in µm of the Gaussian smoothing of the height map (only of the distance, if seeds are added).
    pub height_smooth_um: f64,
    /// Minimum rise of a seed above its surroundings (h-maxima), in the height map's units.
    pub seed_height: f64,
    /// Voxels that the watershed treats as neighbors.
    pub connectivity: Connectivity,
    /// Minimum volume; smaller objects are removed. In a stack that is thinner than a sphere of this volume, it is the part of
    /// the sphere that its slices would show, and in a single slice its middle section.
    pub min_volume_um3: f64,
    /// Minimum peak of the map in an object; objects below it are removed. 0 keeps all.
    pub min_peak: f64,
    /// Whether to remove objects that touch the border of the volume.
    pub drop_border: bool,
    /// Other settings for components in tissue; `None` treats all components alike.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tissue: Option<TissueOptions>,
    /// Small objects that are kept; `None` keeps none below the minimum volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<IsolatedOptions>,
    /// Large objects that are split again; `None` splits none again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversized: Option<OversizedOptions>,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            smooth_um: 0.0,
            threshold: Threshold::Otsu,
            fill_holes: true,
            height: Some(Height::Distance),
            height_smooth_um: 0.5,
            seed_height: 0.5,
            connectivity: Connectivity::Corners,
            min_volume_um3: 20.0,
            min_peak: 0.0,
            drop_border: false,
            tissue: None,
            isolated: None,
            oversized: None,
        }
    }
}

/// Maximum of the contact of two parts as a share of their sections: far more than in any single body.
const MAX_NECK: f64 = 100.0;
/// Maximum of lengths in µm: a meter, which is larger than any object.
pub(crate) const MAX_SMOOTH_UM: f64 = 1e6;
/// Maximum magnitude of a map value: maps are 32-bit floats, and products of two values must stay finite.
const MAX_LEVEL: f64 = 1e18;
/// Maximum height in µm of a map value of 1.
const MAX_WEIGHT_UM: f64 = 1e6;
/// Maximum of `min_volume_um3` in µm³: a liter.
pub(crate) const MAX_VOLUME_UM3: f64 = 1e15;

impl SegmentOptions {
    /// Returns the options for objects `factor` times as large: lengths are multiplied by it, volumes by its cube.
    pub fn scaled(&self, factor: f64) -> Self {
        let height = match self.height {
            Some(Height::DistancePlusSeeds { weight_um }) => {
                Some(Height::DistancePlusSeeds { weight_um: weight_um * factor })
            }
            other => other,
        };
        // Seed heights are lengths if the height map is a distance.
        let is_length =
            matches!(self.height, Some(Height::Distance | Height::DistanceTimesMap | Height::DistancePlusSeeds { .. }));
        let seed_factor = if is_length { factor } else { 1.0 };
        Self {
            smooth_um: self.smooth_um * factor,
            height,
            height_smooth_um: self.height_smooth_um * factor,
            seed_height: self.seed_height * seed_factor,
            tissue: self.tissue.map(|tissue| TissueOptions {
                window_um: tissue.window_um * factor,
                height_smooth_um: tissue.height_smooth_um * factor,
                seed_height: tissue.seed_height * seed_factor,
                ..tissue
            }),
            min_volume_um3: self.min_volume_um3 * factor.powi(3),
            oversized: self.oversized.map(|oversized| OversizedOptions {
                min_volume_um3: oversized.min_volume_um3 * factor.powi(3),
                ..oversized
            }),
            ..self.clone()
        }
    }

    /// Returns the number of voxels below which objects of a stack of `slices` slices are removed, apart from isolated ones.
    pub fn min_voxels(&self, slices: usize, voxel_um: [f64; 3]) -> u64 {
        min_sphere_voxels(self.min_volume_um3, slices, voxel_um).ceil().max(0.0) as u64
    }

    /// Returns the options of a component in tissue, whose seeds are low already.
    pub(crate) fn in_tissue(&self, tissue: &TissueOptions) -> Self {
        let TissueOptions { height_smooth_um, seed_height, .. } = *tissue;
        Self { height_smooth_um, seed_height, oversized: None, ..self.clone() }
    }

    /// Checks every number. [`segment`] and [`segment_in_place`] call it; call it also after reading options.
    ///
    /// # Errors
    /// [`ObjectsError::Option`] with the option's name, value and range; NaN is outside every range.
    pub fn validate(&self) -> Result<(), ObjectsError> {
        let within = |name: &'static str, got: f64, (low, high): (f64, f64), unit: &'static str| {
            if (low..=high).contains(&got) { Ok(()) } else { Err(ObjectsError::Option { name, got, low, high, unit }) }
        };
        within("smooth_um", self.smooth_um, (0.0, MAX_SMOOTH_UM), " µm")?;
        within("height_smooth_um", self.height_smooth_um, (0.0, MAX_SMOOTH_UM), " µm")?;
        within("seed_height", self.seed_height, (0.0, MAX_LEVEL), "")?;
        within("min_volume_um3", self.min_volume_um3, (0.0, MAX_VOLUME_UM3), " µm³")?;
        within("min_peak", self.min_peak, (-MAX_LEVEL, MAX_LEVEL), "")?;
        if let Some(tissue) = self.tissue {
            within("tissue.min_fill", tissue.min_fill, (0.0, 1.0), "")?;
            within("tissue.window_um", tissue.window_um, (0.0, MAX_SMOOTH_UM), " µm")?;
            within("tissue.height_smooth_um", tissue.height_smooth_um, (0.0, MAX_SMOOTH_UM), " µm")?;
            within("tissue.seed_height", tissue.seed_height, (0.0, MAX_LEVEL), "")?;
            within("tissue.outline", tissue.outline.unwrap_or_default(), (-MAX_LEVEL, MAX_LEVEL), "")?;
        }
        if let Some(isolated) = self.isolated {
            within("isolated.volume_share", isolated.volume_share, (0.0, 1.0), "")?;
            within("isolated.min_mean", isolated.min_mean, (-MAX_LEVEL, MAX_LEVEL), "")?;
        }
        if let Some(oversized) = self.oversized {
            within("oversized.min_volume_um3", oversized.min_volume_um3, (0.0, MAX_VOLUME_UM3), " µm³")?;
            within("oversized.part_share", oversized.part_share, (0.0, 1.0), "")?;
            within("oversized.seed_share", oversized.seed_share, (0.0, 1.0), "")?;
            within("oversized.max_neck", oversized.max_neck.unwrap_or_default(), (0.0, MAX_NECK), "")?;
        }
        if let Threshold::Fixed(level) = self.threshold {
            within("threshold", level, (-MAX_LEVEL, MAX_LEVEL), "")?;
        }
        if let Some(Height::DistancePlusSeeds { weight_um }) = self.height {
            within("weight_um", weight_um, (-MAX_WEIGHT_UM, MAX_WEIGHT_UM), " µm")?;
        }
        Ok(())
    }
}

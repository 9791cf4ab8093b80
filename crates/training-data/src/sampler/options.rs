//! Options of a sampler, and their check.

use crate::augment::{AugmentOptions, FLIP_Z};
use crate::error::{TrainingDataError, check_range};
use crate::normalize::Normalize;
use crate::objects::IgnoreLabel;
use crate::reader::Outside;
use crate::targets::{GapWeight, TargetKind};
use serde::{Deserialize, Serialize};

/// Size, augmentation, target and weights of the patches of a [`super::Sampler`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplerOptions {
    /// Shape of a patch along Z, Y, X in voxels.
    pub patch_zyx: [usize; 3],
    /// Voxel size of the network along Z, Y, X in µm; by default that of each file.
    pub voxel_um: Option<[f64; 3]>,
    /// Scales every pair so that its objects have the nominal diameter, which requires `voxel_um`; `None` for no
    /// scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectScale>,
    /// Fraction of patches that are centered on an object, 0 to 1. All objects are equally likely, whatever their size. If
    /// voxels have the ignore label, the other patches are centered on voxels without it.
    pub object_bias: f64,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Probabilities and strengths of random changes of the patches.
    pub augment: AugmentOptions,
    /// Target that the network is trained to output.
    pub target: TargetKind,
    /// How the intensities of a file are normalized. `normalise` is accepted in records of earlier versions.
    #[serde(alias = "normalise")]
    pub normalize: Normalize,
    /// Whether the statistics of `normalize` are those of each slice instead of the whole stack, for networks that process
    /// single slices. Patches have the normalization of the slice at their center.
    pub normalize_slices: bool,
    /// Margin around a patch in µm in which objects are read, so that targets at its border are correct; by default the
    /// radius of the median object.
    pub margin_um: Option<f64>,
    /// Label of voxels that get weight 0; `None` if every label counts.
    pub ignore_label: Option<IgnoreLabel>,
    /// Higher weights in thin gaps between objects.
    pub gap_weight: Option<GapWeight>,
    /// Values outside the stack, which have weight 0.
    pub outside: Outside,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            patch_zyx: [32, 96, 96],
            voxel_um: None,
            objects: None,
            object_bias: 0.7,
            seed: 0,
            augment: AugmentOptions::default(),
            target: TargetKind::Instances,
            normalize: Normalize::default(),
            normalize_slices: false,
            margin_um: None,
            ignore_label: None,
            gap_weight: None,
            outside: Outside::default(),
        }
    }
}

/// Scaling of objects to a nominal diameter: the network's voxel size is multiplied, for each pair, by the ratio of the
/// pair's median object diameter (of the sphere with the object's volume) to the nominal one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectScale {
    /// Nominal diameter in µm at the network's voxel size.
    pub nominal_um: f64,
    /// Median object diameter of every pair in µm (in voxels for files without a voxel size); by default measured on
    /// the labels of each pair.
    pub given: Option<f64>,
}

impl SamplerOptions {
    /// Returns whether the channels of a target after the first have their own weights: near voxels with the ignore
    /// label, they may be unknown where the first channel is known.
    pub(super) fn has_further_weights(&self) -> bool {
        self.ignore_label.is_some() && self.target.channels() > 1
    }

    /// Returns the options with the probability of mirroring along Z that suits the target, unless one is given.
    pub(super) fn with_flip(mut self) -> Self {
        let by_default = if self.target.is_from_labels() { FLIP_Z } else { 0.0 };
        self.augment.flip.z.get_or_insert(by_default);
        self
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`TrainingDataError::Parameter`] with the first value that is out of its range.
    pub(super) fn check(&self) -> Result<(), TrainingDataError> {
        if self.patch_zyx.iter().any(|n| !(1..=1 << 16).contains(n)) {
            return Err(TrainingDataError::Parameter {
                what: "the patch",
                got: format!("{:?} voxels", self.patch_zyx),
                expected: "1 to 65 536 voxels along each axis",
            });
        }
        for um in self.voxel_um.into_iter().flatten() {
            check_range("the voxel size", um, 1e-6..=1e6, "a length above 0 and up to 1 000 000 µm")?;
        }
        if let Some(objects) = self.objects {
            check_range(
                "the nominal object diameter",
                objects.nominal_um,
                1e-6..=1e6,
                "a length above 0 and up to 1 000 000 µm",
            )?;
            if let Some(given) = objects.given {
                check_range("the object diameter", given, 1e-6..=1e6, "a length above 0 and up to 1 000 000")?;
            }
        }
        check_range("object_bias", self.object_bias, 0.0..=1.0, "0 to 1")?;
        if let Some(margin) = self.margin_um {
            check_range("margin_um", margin, 0.0..=1e6, "0 to 1 000 000 µm")?;
        }
        self.augment.check()?;
        self.target.check()?;
        self.gap_weight.map_or(Ok(()), |g| g.check())
    }
}

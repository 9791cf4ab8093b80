//! Augmentation: options with probabilities and strengths.

pub(crate) mod geometry;
pub(crate) mod intensity;

use crate::error::{TrainingDataError, check_range};
use serde::{Deserialize, Serialize};

macro_rules! augmentation {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty = $value:expr,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)*
        }
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $value,)* }
            }
        }
    };
}

/// Default probability of mirroring along Z for labels.
pub(crate) const FLIP_Z: f64 = 0.5;

augmentation!(
    /// Mirroring of a patch along each axis.
    Flip {
        /// Probability along Z, 0 to 1; by default 0.5 for labels and 0 for stains: in transmitted light, structures look
        /// different above and below the focus, and a network that sees both alike cannot tell these sides apart.
        z: Option<f64> = None,
        /// Probability along Y.
        y: f64 = 0.5,
        /// Probability along X.
        x: f64 = 0.5,
    }
);
augmentation!(
    /// Rotation about Z.
    Rotate {
        /// Probability of a rotation by 0, 90, 180 or 270 degrees, which needs no interpolation.
        quarter_turns: f64 = 1.0,
        /// Probability of a rotation by a random angle instead.
        any_angle: f64 = 0.5,
    }
);
augmentation!(
    /// Magnification by a random factor.
    Scale {
        /// Probability, 0 to 1.
        probability: f64 = 0.5,
        /// Minimum magnification.
        min: f64 = 0.8,
        /// Maximum magnification.
        max: f64 = 1.25,
        /// Maximum relative difference of the magnification along Z from that along Y and X: 0.1 is ±10 %.
        z_jitter: f64 = 0.1,
    }
);
augmentation!(
    /// Elastic deformation by a smooth random displacement field.
    Elastic {
        /// Probability, 0 to 1.
        probability: f64 = 0.3,
        /// Distance of the field's control points in µm; by default a quarter of the longest side of the patch.
        spacing_um: Option<f64> = None,
        /// Standard deviation of the displacement in µm; by default 6 % of `spacing_um`. Above 20 %, the field may
        /// fold.
        amplitude_um: Option<f64> = None,
    }
);
augmentation!(
    /// Contrast: scaling of intensities about their mean.
    Contrast {
        /// Probability, 0 to 1.
        probability: f64 = 0.3,
        /// Minimum factor.
        min: f64 = 0.7,
        /// Maximum factor.
        max: f64 = 1.4,
    }
);
augmentation!(
    /// Brightness: addition of a constant.
    Brightness {
        /// Probability, 0 to 1.
        probability: f64 = 0.3,
        /// Maximum shift, in standard deviations of the stack.
        strength: f64 = 0.3,
    }
);
augmentation!(
    /// Gamma correction between the minimum and the maximum of the patch.
    Gamma {
        /// Probability, 0 to 1.
        probability: f64 = 0.3,
        /// Minimum exponent.
        min: f64 = 0.7,
        /// Maximum exponent.
        max: f64 = 1.5,
    }
);
augmentation!(
    /// Gaussian noise of the camera, independent of the signal.
    GaussianNoise {
        /// Probability, 0 to 1.
        probability: f64 = 0.3,
        /// Maximum standard deviation, in standard deviations of the stack.
        strength: f64 = 0.2,
    }
);
augmentation!(
    /// Photon noise: its variance is proportional to the signal above the minimum of the stack.
    PhotonNoise {
        /// Probability, 0 to 1.
        probability: f64 = 0.2,
        /// Maximum standard deviation of the noise at a signal of one standard deviation of the stack, in that unit.
        strength: f64 = 0.2,
    }
);
augmentation!(
    /// Gaussian blur.
    Blur {
        /// Probability, 0 to 1.
        probability: f64 = 0.2,
        /// Maximum sigma along Y and X in voxels.
        sigma_yx: f64 = 1.2,
        /// Maximum sigma along Z in voxels.
        sigma_z: f64 = 0.8,
    }
);
augmentation!(
    /// Lower resolution along Z: slices are averaged and interpolated back.
    Anisotropy {
        /// Probability, 0 to 1.
        probability: f64 = 0.15,
        /// Maximum number of slices that are averaged (at least 2).
        max_slices: usize = 3,
    }
);
augmentation!(
    /// Uneven illumination: a slowly varying factor along Y and X.
    Illumination {
        /// Probability, 0 to 1.
        probability: f64 = 0.2,
        /// Maximum relative change from the center of the patch to its edge: 0.3 is 30 %.
        strength: f64 = 0.3,
    }
);
augmentation!(
    /// Attenuation with depth: intensities decrease toward one end of Z.
    Attenuation {
        /// Probability, 0 to 1.
        probability: f64 = 0.15,
        /// Maximum fraction that is lost from one end of the patch to the other.
        strength: f64 = 0.5,
    }
);

/// Augmentation of patches, in this order: one geometric transform of image and target, then illumination, optics and
/// camera of the image only. All options have defaults when read from TOML.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentOptions {
    /// Mirroring along each axis.
    pub flip: Flip,
    /// Rotation about the Z axis.
    pub rotate: Rotate,
    /// Random change of the size of objects.
    pub scale: Scale,
    /// Smooth random deformation of image and labels.
    pub elastic: Elastic,
    /// Smooth random change of brightness across the field.
    pub illumination: Illumination,
    /// Loss of brightness with depth along Z.
    pub attenuation: Attenuation,
    /// Random Gaussian blur of the image.
    pub blur: Blur,
    /// Random loss of resolution along Z.
    pub anisotropy: Anisotropy,
    /// Poisson noise, as if fewer photons had been detected.
    pub photon_noise: PhotonNoise,
    /// Additive Gaussian noise, such as that of a camera.
    pub gaussian_noise: GaussianNoise,
    /// Random change of contrast around the mean.
    pub contrast: Contrast,
    /// Random offset of all intensities.
    pub brightness: Brightness,
    /// Random gamma correction of the intensities.
    pub gamma: Gamma,
}

impl AugmentOptions {
    /// Returns options without any augmentation.
    pub fn none() -> Self {
        let mut all = Self {
            flip: Flip { z: Some(0.0), y: 0.0, x: 0.0 },
            rotate: Rotate { quarter_turns: 0.0, any_angle: 0.0 },
            ..Self::default()
        };
        all.scale.probability = 0.0;
        all.elastic.probability = 0.0;
        all.without_intensity()
    }

    /// Returns the same options without intensity augmentation.
    pub fn without_intensity(mut self) -> Self {
        for probability in self.intensity_probabilities() {
            *probability = 0.0;
        }
        self
    }

    /// Returns options that apply every augmentation to every patch, for tests and benchmarks.
    pub fn always() -> Self {
        let mut all = Self::default();
        all.rotate.any_angle = 1.0;
        all.scale.probability = 1.0;
        all.elastic.probability = 1.0;
        for probability in all.intensity_probabilities() {
            *probability = 1.0;
        }
        all
    }

    fn intensity_probabilities(&mut self) -> [&mut f64; 9] {
        [
            &mut self.illumination.probability,
            &mut self.attenuation.probability,
            &mut self.blur.probability,
            &mut self.anisotropy.probability,
            &mut self.photon_noise.probability,
            &mut self.gaussian_noise.probability,
            &mut self.contrast.probability,
            &mut self.brightness.probability,
            &mut self.gamma.probability,
        ]
    }

    /// Checks every option against its range.
    ///
    /// # Errors
    /// [`TrainingDataError::Parameter`] for the first option that is out of range.
    pub fn check(&self) -> Result<(), TrainingDataError> {
        let mut copy = *self;
        let geometric = [
            self.flip.z.unwrap_or(FLIP_Z),
            self.flip.y,
            self.flip.x,
            self.rotate.quarter_turns,
            self.rotate.any_angle,
            self.scale.probability,
            self.elastic.probability,
        ];
        for p in geometric.into_iter().chain(copy.intensity_probabilities().map(|p| *p)) {
            check_range("the probability of an augmentation", p, 0.0..=1.0, "0 to 1")?;
        }
        let factor = "0.1 to 10, with min not above max";
        let ranges = [
            ("augment.scale", self.scale.min, self.scale.max),
            ("augment.contrast", self.contrast.min, self.contrast.max),
            ("augment.gamma", self.gamma.min, self.gamma.max),
        ];
        for (what, min, max) in ranges {
            check_range(what, min, 0.1..=10.0, factor)?;
            check_range(what, max, min..=10.0, factor)?;
        }
        check_range("augment.scale.z_jitter", self.scale.z_jitter, 0.0..=1.0, "0 to 1")?;
        check_range("augment.brightness.strength", self.brightness.strength, 0.0..=10.0, "0 to 10")?;
        check_range("augment.gaussian_noise.strength", self.gaussian_noise.strength, 0.0..=10.0, "0 to 10")?;
        check_range("augment.photon_noise.strength", self.photon_noise.strength, 0.0..=10.0, "0 to 10")?;
        check_range("augment.illumination.strength", self.illumination.strength, 0.0..=1.0, "0 to 1")?;
        check_range("augment.attenuation.strength", self.attenuation.strength, 0.0..=1.0, "0 to 1")?;
        check_range("augment.blur.sigma_yx", self.blur.sigma_yx, 0.0..=20.0, "0 to 20 voxels")?;
        check_range("augment.blur.sigma_z", self.blur.sigma_z, 0.0..=20.0, "0 to 20 voxels")?;
        check_range("augment.anisotropy.max_slices", self.anisotropy.max_slices as f64, 2.0..=64.0, "2 to 64")?;
        let um = "a length above 0 and up to 1 000 000 µm";
        if let Some(spacing) = self.elastic.spacing_um {
            check_range("augment.elastic.spacing_um", spacing, 1e-6..=1e6, um)?;
        }
        if let Some(amplitude) = self.elastic.amplitude_um {
            check_range("augment.elastic.amplitude_um", amplitude, 0.0..=1e6, "0 to 1 000 000 µm")?;
        }
        Ok(())
    }
}

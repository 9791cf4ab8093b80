//! Making patches differ: what is changed, how often and how far.

pub(crate) mod geometry;
pub(crate) mod intensity;

use crate::error::{SamplesError, check_range};
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

augmentation!(
    /// Mirroring, each axis by itself.
    Flip {
        /// How often along Z, 0 to 1.
        z: f64 = 0.5,
        /// How often along Y.
        y: f64 = 0.5,
        /// How often along X.
        x: f64 = 0.5,
    }
);
augmentation!(
    /// Turning about Z.
    Rotate {
        /// How often by 0, 90, 180 or 270 degrees, which moves voxels without interpolating.
        quarter_turns: f64 = 1.0,
        /// How often by any angle instead.
        any_angle: f64 = 0.5,
    }
);
augmentation!(
    /// Magnifying.
    Scale {
        /// How often.
        probability: f64 = 0.5,
        /// Least magnification.
        min: f64 = 0.8,
        /// Greatest magnification.
        max: f64 = 1.25,
        /// How far Z may differ from Y and X: 0.1 is a tenth either way.
        z_jitter: f64 = 0.1,
    }
);
augmentation!(
    /// Bending by a smooth random field.
    Elastic {
        /// How often.
        probability: f64 = 0.3,
        /// Distance of the field's nodes in µm; `None`: a quarter of the longest side of the patch.
        spacing_um: Option<f64> = None,
        /// Standard deviation of the displacement in µm; `None`: 6 % of the distance of nodes. Above 20 % of it, space may fold.
        amplitude_um: Option<f64> = None,
    }
);
augmentation!(
    /// Stretching intensities about their mean.
    Contrast {
        /// How often.
        probability: f64 = 0.3,
        /// Least factor.
        min: f64 = 0.7,
        /// Greatest factor.
        max: f64 = 1.4,
    }
);
augmentation!(
    /// Adding a constant.
    Brightness {
        /// How often.
        probability: f64 = 0.3,
        /// Greatest shift, in standard deviations of the stack.
        strength: f64 = 0.3,
    }
);
augmentation!(
    /// Raising intensities between the darkest and the brightest of the patch to a power.
    Gamma {
        /// How often.
        probability: f64 = 0.3,
        /// Least power.
        min: f64 = 0.7,
        /// Greatest power.
        max: f64 = 1.5,
    }
);
augmentation!(
    /// Noise of the camera: the same everywhere.
    GaussianNoise {
        /// How often.
        probability: f64 = 0.3,
        /// Greatest standard deviation, in standard deviations of the stack.
        strength: f64 = 0.2,
    }
);
augmentation!(
    /// Noise of photons: grows with the root of what is above the darkest value of the stack.
    PhotonNoise {
        /// How often.
        probability: f64 = 0.2,
        /// Greatest standard deviation where the signal is one standard deviation of the stack, in that unit.
        strength: f64 = 0.2,
    }
);
augmentation!(
    /// Smoothing with a Gaussian.
    Blur {
        /// How often.
        probability: f64 = 0.2,
        /// Greatest sigma along Y and X in voxels.
        sigma_yx: f64 = 1.2,
        /// Greatest sigma along Z in voxels.
        sigma_z: f64 = 0.8,
    }
);
augmentation!(
    /// Coarser slices: some are averaged, and interpolated back.
    Anisotropy {
        /// How often.
        probability: f64 = 0.15,
        /// Most slices averaged (2 at least).
        max_slices: usize = 3,
    }
);
augmentation!(
    /// Uneven lighting across the field: a slow factor along Y and X.
    Illumination {
        /// How often.
        probability: f64 = 0.2,
        /// Greatest change from the middle of the patch to its edge: 0.3 is 30 %.
        strength: f64 = 0.3,
    }
);
augmentation!(
    /// Light lost with depth: intensities fall towards one end of Z.
    Attenuation {
        /// How often.
        probability: f64 = 0.15,
        /// Greatest share lost from one end of the patch to the other.
        strength: f64 = 0.5,
    }
);

/// All that may be done to a patch, in the order it is done: one geometric transform of image and target, then light, optics
/// and camera of the image alone. Written as TOML, every part has defaults.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentOptions {
    /// Mirroring.
    pub flip: Flip,
    /// Turning about Z.
    pub rotate: Rotate,
    /// Magnifying.
    pub scale: Scale,
    /// Bending.
    pub elastic: Elastic,
    /// Uneven lighting.
    pub illumination: Illumination,
    /// Light lost with depth.
    pub attenuation: Attenuation,
    /// Smoothing.
    pub blur: Blur,
    /// Coarser slices.
    pub anisotropy: Anisotropy,
    /// Noise of photons.
    pub photon_noise: PhotonNoise,
    /// Noise of the camera.
    pub gaussian_noise: GaussianNoise,
    /// Stretching about the mean.
    pub contrast: Contrast,
    /// Adding a constant.
    pub brightness: Brightness,
    /// A power.
    pub gamma: Gamma,
}

impl AugmentOptions {
    /// Nothing is changed.
    pub fn none() -> Self {
        let mut all = Self {
            flip: Flip { z: 0.0, y: 0.0, x: 0.0 },
            rotate: Rotate { quarter_turns: 0.0, any_angle: 0.0 },
            ..Self::default()
        };
        all.scale.probability = 0.0;
        all.elastic.probability = 0.0;
        all.without_intensity()
    }

    /// The same geometry, intensities untouched.
    pub fn without_intensity(mut self) -> Self {
        for probability in self.intensity_probabilities() {
            *probability = 0.0;
        }
        self
    }

    /// Everything, always, as far as it goes: for tests and measurements.
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
    /// [`SamplesError::Parameter`] for the first one outside.
    pub fn check(&self) -> Result<(), SamplesError> {
        let mut copy = *self;
        let geometric = [
            self.flip.z,
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
        let factor = "0.1 to 10, the least not above the greatest";
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

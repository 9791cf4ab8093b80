//! Settings of a simulation: all parameters, their defaults for each kind, and their limits.

use crate::{
    Background, Debris, Membranes, Placement, Pressed, SimulateError, Spots, Stretch, Truth, TruthOutline, grid::Grid,
};
use cytoscope_volume::{VoxelSize, element_count, number_text};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::RangeInclusive, str::FromStr};

/// Largest number of voxels of a stack (2²⁸; see [`Settings::peak_bytes`] for the memory).
pub const MAX_VOXELS: usize = 1 << 28;

/// Largest number of objects that can be requested.
pub const MAX_OBJECTS: usize = 1_000_000;

/// Largest fraction of the light that becomes haze.
pub(crate) const MAX_HAZE: f64 = 0.9;

/// Content of a simulated stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Kind {
    /// Fluorescent nuclei, many of them touching.
    Nuclei,
    /// Space-filling cells with stained membranes.
    Cells,
    /// A bright-field stack and the fluorescence of its nuclei.
    LabelFree,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 3] = [Kind::Nuclei, Kind::Cells, Kind::LabelFree];

    /// The name used on the command line and in files: `nuclei`, `cells`, `labelfree`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nuclei => "nuclei",
            Kind::Cells => "cells",
            Kind::LabelFree => "labelfree",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = SimulateError;

    fn from_str(text: &str) -> Result<Self, SimulateError> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| SimulateError::UnknownKind { text: text.to_owned() })
    }
}

impl TryFrom<String> for Kind {
    type Error = SimulateError;

    fn try_from(text: String) -> Result<Self, SimulateError> {
        text.parse()
    }
}

impl From<Kind> for String {
    fn from(kind: Kind) -> String {
        kind.name().to_owned()
    }
}

/// Number, size and appearance of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objects {
    /// Number of objects to place in and just around the field; `None` derives it from `fill`. There are fewer labels
    /// if not all objects fit, or if a border of the field cuts an object to less than
    /// [`MIN_OBJECT_VOXELS`](crate::MIN_OBJECT_VOXELS). Zero leaves the field empty.
    pub count: Option<usize>,
    /// Fraction of the volume that objects occupy, 0 to 1 (cells: fraction of the seeds that belong to the tissue).
    /// Above 0.5, nuclei are placed until no more fit.
    pub fill: f64,
    /// Fraction of the nuclei that are placed in contact with a neighbor, 0 to 1.
    pub touching: f64,
    /// Mean diameter in µm (cells: mean distance between neighbors).
    pub diameter_um: f64,
    /// Spread of the diameter: standard deviation of its logarithm.
    pub diameter_spread: f64,
    /// Spread of the brightness between objects: standard deviation of its logarithm.
    pub brightness_spread: f64,
    /// Strength of the texture inside objects (chromatin; patches of a membrane), 0 = uniform.
    pub texture: f64,
    /// Thickness of membranes in µm (full width at half maximum), at most a quarter of the distance between neighbors;
    /// cells only.
    pub membrane_um: f64,
    /// Stretching of bodies along the axes, and fraction of flat bodies; not for cells.
    #[serde(default)]
    pub stretch: Stretch,
    /// Where nuclei are placed; not for cells.
    #[serde(default)]
    pub placement: Placement,
    /// Fraction of mitotic nuclei, 0 to 1: smaller, compact, without texture and several times as bright.
    #[serde(default)]
    pub mitotic: f64,
    /// Light between nuclei (cytoplasm) relative to the average nucleus, 0 to 1: in the clusters, if nuclei are placed
    /// in clusters, otherwise in the whole field. Nuclei only.
    #[serde(default)]
    pub glow: f64,
    /// Debris: bright pieces that are not nuclei.
    #[serde(default)]
    pub debris: Debris,
    /// Irregularity of bodies: 0 for ellipsoids, 1 for bumps of about 5 % of the radius, up to 4. Not for cells.
    #[serde(default = "default_bumps")]
    pub bumps: f64,
    /// How much darker the inside of a nucleus is than its rim, 0 (equally bright) to 0.9. Nuclei only.
    #[serde(default)]
    pub hollow: f64,
    /// Bright spots inside nuclei. Nuclei only.
    #[serde(default)]
    pub spots: Spots,
    /// Appearance of membranes and tissue; cells only.
    #[serde(default)]
    pub membranes: Membranes,
    /// Structured background outside nuclei. Nuclei only.
    #[serde(default)]
    pub background: Background,
    /// How neighboring nuclei press against each other. Nuclei only.
    #[serde(default)]
    pub pressed: Pressed,
}

/// The optics of the microscope.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optics {
    /// Standard deviation of the point-spread function along Z, Y, X in µm. Bright-field images use Y and X.
    pub psf_sigma_um: [f64; 3],
    /// How much darker the illumination is in the darkest corner than at the brightest position, 0 (uniform) to 0.95.
    pub unevenness: f64,
    /// Fraction of the light in the tails of the point-spread function, which are wider than `psf_sigma_um`, 0 to 0.9.
    /// Fluorescence only.
    #[serde(default)]
    pub tail_share: f64,
    /// Additional blur of the tails along Z, Y, X: standard deviation in µm, 0 to 50.
    #[serde(default = "default_tail")]
    pub tail_sigma_um: [f64; 3],
    /// Fraction of the light that becomes out-of-focus haze, 0 to 0.9.
    pub haze: f64,
    /// Increase of that fraction with depth in 1/µm, 0 to 0.1; the fraction is at most 0.9.
    #[serde(default)]
    pub haze_per_um: f64,
    /// Blur of the haze along Z, Y, X: standard deviation in µm, 0 to 50.
    #[serde(default = "default_haze")]
    pub haze_sigma_um: [f64; 3],
    /// Strength of a 3-D bias field that multiplies the light, 0 to 2; the standard deviation of its logarithm is about
    /// a third of this number. Its grain size is half the longest side of the field. Fluorescence only.
    #[serde(default)]
    pub bias: f64,
    /// Attenuation with depth in 1/µm: the signal decreases by `exp(-attenuation_per_um · z)`.
    pub attenuation_per_um: f64,
    /// Numerical aperture of the condenser in water, 0 to 1.2: a larger aperture blurs out-of-focus structures more.
    /// Bright-field only.
    pub condenser_na: f64,
    /// Distance from focus in µm up to which an object slice contributes to the image. Bright-field only.
    pub defocus_range_um: f64,
}

fn default_bumps() -> f64 {
    1.0
}

fn default_tail() -> [f64; 3] {
    [4.0, 0.5, 0.5]
}

fn default_haze() -> [f64; 3] {
    [5.0, 4.0, 4.0]
}

/// Gain, offset and noise of the detector.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Camera {
    /// Photons detected from a voxel of average brightness deep inside an object; for bright-field, from a voxel
    /// outside objects.
    pub photons: f64,
    /// Photons of background in every voxel.
    pub background_photons: f64,
    /// Read noise: standard deviation in photons.
    pub read_noise_photons: f64,
    /// Number of camera counts for each detected photon.
    pub gain_counts_per_photon: f64,
    /// Camera counts of a voxel that receives no light.
    pub offset_counts: f64,
    /// Smoothing of the recorded image (denoising, deconvolution, interpolation), which correlates the noise of
    /// neighboring voxels: standard deviation in voxels along Y and X, half of it along Z, 0 to 3. Fluorescence only.
    #[serde(default)]
    pub smoothing_voxels: f64,
}

/// All parameters of a stack. They are stored with the stack, so that it can be reproduced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Content of the stack.
    pub kind: Kind,
    /// Number of slices, rows and columns.
    pub shape_zyx: [usize; 3],
    /// Voxel size in µm; all three sizes must be known.
    pub voxel_size_um: VoxelSize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number, size, shape and brightness of nuclei or cells.
    pub objects: Objects,
    /// Blur of the objective, haze and illumination of the field.
    pub optics: Optics,
    /// Photon count, noise, gain and offset.
    pub camera: Camera,
    /// Which nuclei are in the ground truth, and their outlines.
    #[serde(default)]
    pub truth: Truth,
}

impl Settings {
    /// The default settings of a kind: nuclei of 8 µm with voxels of 1.0 × 0.4 × 0.4 µm; cells of 12 µm with voxels of
    /// 0.8 × 0.4 × 0.4 µm; label-free pairs with voxels of 0.75 × 0.3 × 0.3 µm.
    pub fn new(kind: Kind, shape_zyx: [usize; 3], seed: u64) -> Self {
        let objects = Objects {
            count: None,
            fill: 0.2,
            touching: 0.5,
            diameter_um: 8.0,
            diameter_spread: 0.15,
            brightness_spread: 0.35,
            texture: 0.5,
            membrane_um: 0.6,
            stretch: Stretch::NONE,
            placement: Placement::Field,
            mitotic: 0.0,
            glow: 0.0,
            debris: Debris::NONE,
            bumps: default_bumps(),
            hollow: 0.0,
            spots: Spots::NONE,
            membranes: Membranes::PLAIN,
            background: Background::NONE,
            pressed: Pressed::NONE,
        };
        let optics = Optics {
            psf_sigma_um: [0.9, 0.25, 0.25],
            unevenness: 0.3,
            tail_share: 0.0,
            tail_sigma_um: default_tail(),
            haze: 0.15,
            haze_per_um: 0.0,
            haze_sigma_um: default_haze(),
            bias: 0.0,
            attenuation_per_um: 0.003,
            condenser_na: 0.5,
            defocus_range_um: 6.0,
        };
        let camera = Camera {
            photons: 120.0,
            background_photons: 10.0,
            read_noise_photons: 1.8,
            gain_counts_per_photon: 2.0,
            offset_counts: 100.0,
            smoothing_voxels: 0.0,
        };
        let (voxel_size_um, objects, optics, camera) = match kind {
            Kind::Nuclei => (VoxelSize::new_um(1.0, 0.4, 0.4), objects, optics, camera),
            Kind::Cells => (
                VoxelSize::new_um(0.8, 0.4, 0.4),
                Objects { fill: 0.8, diameter_um: 12.0, brightness_spread: 0.25, texture: 0.4, ..objects },
                Optics { psf_sigma_um: [0.7, 0.2, 0.2], haze: 0.1, ..optics },
                Camera { photons: 140.0, ..camera },
            ),
            Kind::LabelFree => (
                VoxelSize::new_um(0.75, 0.3, 0.3),
                Objects { fill: 0.1, touching: 0.1, brightness_spread: 0.1, texture: 0.4, ..objects },
                Optics { psf_sigma_um: [0.8, 0.22, 0.22], unevenness: 0.15, haze: 0.0, ..optics },
                Camera { photons: 4000.0, background_photons: 0.0, gain_counts_per_photon: 4.0, ..camera },
            ),
        };
        Self { kind, shape_zyx, voxel_size_um, seed, objects, optics, camera, truth: Truth::default() }
    }

    /// Upper estimate of the peak memory of [`simulate`](crate::simulate) in bytes, including the result.
    pub fn peak_bytes(&self) -> u64 {
        let voxels = self.shape_zyx.iter().fold(1u64, |n, s| n.saturating_mul(*s as u64));
        let bytes_per_voxel = match self.kind {
            Kind::Nuclei if self.truth.outline != TruthOutline::Body => 36,
            Kind::Nuclei | Kind::Cells => 20,
            Kind::LabelFree => 24,
        };
        voxels.saturating_mul(bytes_per_voxel).saturating_add(32 << 20)
    }

    /// Checks all settings and returns the grid.
    pub(crate) fn check(&self) -> Result<Grid, SimulateError> {
        let shape_zyx = self.shape_zyx;
        if shape_zyx.contains(&0) {
            return Err(SimulateError::EmptyShape { shape_zyx });
        }
        if !element_count(&shape_zyx).is_ok_and(|n| n <= MAX_VOXELS) {
            return Err(SimulateError::TooManyVoxels { shape_zyx, limit: MAX_VOXELS });
        }
        let voxel_um = self.voxel_size_um.zyx_um().ok_or_else(|| {
            let VoxelSize { z, y, x } = self.voxel_size_um;
            let sizes = [z, y, x].map(|um| um.map_or_else(|| "unknown".to_owned(), number_text));
            let expected = "three positive sizes in µm".to_owned();
            SimulateError::BadSetting { what: "voxel_size_um", expected, got: sizes.join(", ") }
        })?;
        for size in voxel_um {
            within("voxel_size_um", size, 0.02..=50.0)?;
        }
        let (objects, optics, camera) = (&self.objects, &self.optics, &self.camera);
        within("objects.fill", objects.fill, 0.0..=1.0)?;
        within("objects.touching", objects.touching, 0.0..=1.0)?;
        let coarsest = voxel_um.into_iter().fold(0.0, f64::max);
        within("objects.diameter_um (two voxels to 1000 µm)", objects.diameter_um, 2.0 * coarsest..=1000.0)?;
        within("objects.diameter_spread", objects.diameter_spread, 0.0..=0.5)?;
        within("objects.brightness_spread", objects.brightness_spread, 0.0..=1.5)?;
        within("objects.texture", objects.texture, 0.0..=1.0)?;
        objects.stretch.check()?;
        objects.placement.check()?;
        within("objects.mitotic", objects.mitotic, 0.0..=1.0)?;
        within("objects.glow", objects.glow, 0.0..=1.0)?;
        objects.debris.check()?;
        within("objects.bumps", objects.bumps, 0.0..=4.0)?;
        within("objects.hollow", objects.hollow, 0.0..=0.9)?;
        objects.spots.check()?;
        objects.membranes.check()?;
        objects.background.check()?;
        objects.pressed.check()?;
        self.truth.check()?;
        if self.kind == Kind::Cells {
            within(
                "objects.membrane_um (to a quarter of the diameter)",
                objects.membrane_um,
                0.01..=0.25 * objects.diameter_um,
            )?;
        }
        for sigma in optics.psf_sigma_um {
            within("optics.psf_sigma_um", sigma, 0.0..=20.0)?;
        }
        within("optics.unevenness", optics.unevenness, 0.0..=0.95)?;
        within("optics.tail_share", optics.tail_share, 0.0..=0.9)?;
        for sigma in optics.tail_sigma_um {
            within("optics.tail_sigma_um", sigma, 0.0..=50.0)?;
        }
        within("optics.haze", optics.haze, 0.0..=MAX_HAZE)?;
        within("optics.haze_per_um", optics.haze_per_um, 0.0..=0.1)?;
        for sigma in optics.haze_sigma_um {
            within("optics.haze_sigma_um", sigma, 0.0..=50.0)?;
        }
        within("optics.bias", optics.bias, 0.0..=2.0)?;
        within("optics.attenuation_per_um", optics.attenuation_per_um, 0.0..=1.0)?;
        within("optics.condenser_na", optics.condenser_na, 0.0..=1.2)?;
        within("optics.defocus_range_um", optics.defocus_range_um, 0.0..=50.0)?;
        within("camera.photons", camera.photons, 0.0..=1e6)?;
        within("camera.background_photons", camera.background_photons, 0.0..=1e6)?;
        within("camera.read_noise_photons", camera.read_noise_photons, 0.0..=1e4)?;
        within("camera.gain_counts_per_photon", camera.gain_counts_per_photon, 1e-3..=1e3)?;
        within("camera.offset_counts", camera.offset_counts, 0.0..=65535.0)?;
        within("camera.smoothing_voxels", camera.smoothing_voxels, 0.0..=3.0)?;
        Ok(Grid { shape: shape_zyx, voxel_um })
    }
}

/// Returns an error for a value outside its range; NaN is outside every range.
pub(crate) fn within(what: &'static str, value: f64, range: RangeInclusive<f64>) -> Result<(), SimulateError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(SimulateError::BadSetting {
        what,
        expected: format!("{} to {}", range.start(), range.end()),
        got: number_text(value),
    })
}

/// Returns an error for more objects than [`MAX_OBJECTS`].
pub(crate) fn check_count(wanted: f64) -> Result<usize, SimulateError> {
    if wanted <= MAX_OBJECTS as f64 {
        return Ok(wanted.round() as usize);
    }
    Err(SimulateError::TooManyObjects { wanted: wanted as u64, limit: MAX_OBJECTS })
}

//! Settings drawn over wide ranges: what a network must have met to work on stacks that nobody simulated.
//!
//! The middle of the distribution of nuclei are embryos under a light-sheet or spinning-disk microscope with an
//! electron-multiplying camera: balls of touching nuclei, 9 to 20 µm, drawn out along Z, at few photons. The rest are tissue
//! and cultures: clean, isotropic, sparse, dense.

use crate::{
    Debris, Kind, Placement, Settings, Stretch, Truth, TruthOutline,
    random::{self, Purpose},
};
use cytoscope_volume::VoxelSize;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// The voxel size in µm, Z, Y, X, that networks for nuclei work at.
const NETWORK_VOXEL_UM: [f64; 3] = [1.75, 0.8, 0.8];

/// Nuclei a stack has at least, where they fit.
const LEAST_NUCLEI: f64 = 6.0;

/// The share of the looks of nuclei that are embryos.
const EMBRYOS: f64 = 0.7;

/// Draws from ranges.
struct Draw(ChaCha8Rng);

impl Draw {
    fn even(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// Evenly on a logarithmic scale.
    fn log(&mut self, low: f64, high: f64) -> f64 {
        self.even(low.ln(), high.ln()).exp()
    }

    fn chance(&mut self, share: f64) -> bool {
        self.0.random::<f64>() < share
    }

    /// Zero, but for a share of the draws.
    fn sometimes(&mut self, share: f64, low: f64, high: f64) -> f64 {
        let value = self.even(low, high);
        if self.chance(share) { value } else { 0.0 }
    }
}

/// How stacks of nuclei look.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Look {
    Embryo,
    /// Clean confocal tissue.
    Clean,
    /// Voxels as long as they are wide.
    Isotropic,
    Sparse,
    Dense,
}

impl Settings {
    /// Settings drawn over wide ranges by the seed: voxel size, size and form of objects, how they lie, brightness, blur,
    /// haze and noise. A network taught on a few dozen of such stacks meets most that microscopes do.
    ///
    /// Of nuclei, seven in ten stacks are like embryos: voxels of 1.75 × 0.8 × 0.8 µm (four in ten) or 0.5 to 2.8 × 0.35 to
    /// 1.1 µm; bodies of 8.5 to 18 µm, 1.1 to 1.8 times as long along Z, in thin walls mostly flat; in balls or shells of 24
    /// to 52 µm (three in four) or anywhere, 2 to 22 % of that space; 4.5 to 70 photons at a gain of 14 to 56 counts. The
    /// others are clean tissue (30 to 150 photons), isotropic, sparse (1 to 5 % of the volume) or dense (40 to 60 %), with
    /// bodies of 7 to 16 µm. The truth has outlines where nuclei are seen to end (8 to 28 % of an even nucleus' peak) and
    /// leaves out those with less than 35 to 50 % of the light of bright ones.
    ///
    /// Of cells and label-free pairs, sizes, densities, blur and photons are drawn about the defaults.
    pub fn varied(kind: Kind, shape_zyx: [usize; 3], seed: u64) -> Self {
        let mut settings = Self::new(kind, shape_zyx, seed);
        let mut draw = Draw(random::stream(seed, Purpose::Varied, 0));
        match kind {
            Kind::Nuclei => nuclei(&mut settings, &mut draw),
            Kind::Cells => cells(&mut settings, &mut draw),
            Kind::LabelFree => label_free(&mut settings, &mut draw),
        }
        settings
    }
}

fn set_voxel(settings: &mut Settings, [z, y, x]: [f64; 3]) {
    settings.voxel_size_um = VoxelSize::new_um(z, y, x);
}

/// The volume in µm³ of the field.
fn field_um3(settings: &Settings) -> f64 {
    let voxel = settings.voxel_size_um.zyx().map_or(1.0, |v| v.iter().product());
    settings.shape_zyx.iter().map(|n| *n as f64).product::<f64>() * voxel
}

fn nuclei(settings: &mut Settings, draw: &mut Draw) {
    let other = draw.even(0.0, 1.0);
    let look = if draw.chance(EMBRYOS) {
        Look::Embryo
    } else if other < 0.33 {
        Look::Clean
    } else if other < 0.56 {
        Look::Isotropic
    } else if other < 0.76 {
        Look::Sparse
    } else {
        Look::Dense
    };
    let voxel = nuclear_voxel(look, draw);
    set_voxel(settings, voxel);
    nuclear_objects(settings, look, draw);
    nuclear_optics(settings, look, draw);
    nuclear_camera(settings, look, draw);
    settings.truth = Truth {
        outline: TruthOutline::Visible {
            share: if look == Look::Embryo { draw.even(0.08, 0.2) } else { draw.even(0.15, 0.28) },
            common: 0.0,
        },
        least_brightness: draw.even(0.35, 0.5),
    };
}

fn nuclear_voxel(look: Look, draw: &mut Draw) -> [f64; 3] {
    let plain = draw.chance(0.4);
    let (xy, ratio) = match look {
        Look::Embryo | Look::Sparse => (draw.log(0.35, 1.1), draw.log(1.3, 4.0)),
        Look::Clean | Look::Dense => (draw.log(0.3, 0.8), draw.log(1.0, 4.0)),
        Look::Isotropic => (draw.log(0.5, 1.1), 1.0),
    };
    if plain && look == Look::Embryo { NETWORK_VOXEL_UM } else { [(xy * ratio).clamp(0.5, 2.8), xy, xy] }
}

fn nuclear_objects(settings: &mut Settings, look: Look, draw: &mut Draw) {
    let field = field_um3(settings);
    let embryo = look == Look::Embryo;
    let objects = &mut settings.objects;
    objects.diameter_um = match look {
        Look::Embryo => draw.log(8.5, 18.0),
        Look::Dense => draw.log(7.0, 12.0),
        _ => draw.log(7.0, 16.0),
    };
    objects.diameter_spread = draw.even(0.08, 0.25);
    objects.brightness_spread = draw.even(0.1, 0.45);
    objects.texture = draw.even(0.0, 0.7);
    let long = if embryo { draw.log(1.1, 1.8) } else { draw.log(0.8, 1.3) };
    let wide = draw.log(0.87, 1.15);
    let spread = draw.even(0.03, 0.18);
    let (radius_um, hollow) = (draw.even(24.0, 52.0), draw.sometimes(0.5, 0.4, 0.92));
    let clusters = draw.chance(if embryo { 0.75 } else { 0.15 });
    // Nuclei in a thin wall lie flat in it.
    let flat = if clusters && hollow > 0.0 { draw.even(0.2, 0.9) } else { draw.sometimes(0.6, 0.05, 0.3) };
    objects.stretch = Stretch { zyx: [long, wide, 1.0 / wide], spread, flat };
    objects.mitotic = draw.sometimes(0.4, 0.01, 0.06);
    objects.glow = draw.sometimes(0.6, 0.0, 0.12);
    // Up to 15 pieces in a field of 100 µm every way.
    let debris = draw.sometimes(0.7, 0.0, 15.0) * field / 1e6;
    objects.debris = Debris { count: debris.ceil().min(500.0) as usize, brightness: draw.log(0.04, 0.35) };
    (objects.fill, objects.touching) = match look {
        Look::Embryo => (draw.log(0.02, 0.22), draw.even(0.0, 0.85)),
        Look::Clean | Look::Isotropic => (draw.even(0.08, 0.4), draw.even(0.3, 0.95)),
        Look::Sparse => (draw.log(0.01, 0.05), draw.even(0.0, 0.5)),
        Look::Dense => (draw.even(0.4, 0.6), draw.even(0.7, 0.97)),
    };
    let crowd = draw.even(0.3, 1.0);
    let mut room = field;
    if clusters {
        // As many balls as lie side by side, in fields that hold more than one.
        let count = (crowd * field / (2.5 * radius_um).powi(3)).round().clamp(1.0, 60.0);
        objects.placement = Placement::Clusters { count: count as usize, radius_um, hollow };
        let ball = 4.0 / 3.0 * std::f64::consts::PI * radius_um.powi(3) * (1.0 - hollow.powi(3));
        room = field.min(count * ball);
        // A thin wall has room for few; it is full.
        objects.fill *= 1.0 / (1.0 - hollow.powi(3)).max(0.35);
        if look == Look::Sparse {
            objects.fill = (objects.fill * field / room).min(0.3);
        }
    }
    let nucleus = std::f64::consts::PI / 6.0 * objects.diameter_um.powi(3);
    objects.fill = objects.fill.max((LEAST_NUCLEI * nucleus / room).min(0.35));
}

fn nuclear_optics(settings: &mut Settings, look: Look, draw: &mut Draw) {
    let optics = &mut settings.optics;
    let (z, xy) = match look {
        Look::Embryo => (draw.even(1.4, 4.2), draw.even(0.45, 1.4)),
        Look::Clean => (draw.even(0.5, 1.5), draw.even(0.15, 0.45)),
        Look::Isotropic => (draw.even(0.6, 2.0), draw.even(0.3, 0.8)),
        Look::Sparse | Look::Dense => (draw.even(0.5, 2.2), draw.even(0.2, 0.8)),
    };
    optics.psf_sigma_um = [z, xy, xy];
    let often = if look == Look::Embryo { 0.75 } else { 0.3 };
    optics.tail_share = draw.sometimes(often, 0.15, 0.55);
    let wide = draw.even(0.3, 3.0);
    optics.tail_sigma_um = [draw.even(3.0, 8.0), wide, wide];
    optics.haze = if look == Look::Clean { draw.even(0.0, 0.2) } else { draw.even(0.03, 0.35) };
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.004);
    let spread = draw.even(3.0, 9.0);
    optics.haze_sigma_um = [spread * draw.even(1.0, 1.6), spread, spread];
    optics.attenuation_per_um = draw.even(0.0, 0.015);
    optics.unevenness = draw.even(0.0, 0.35);
}

fn nuclear_camera(settings: &mut Settings, look: Look, draw: &mut Draw) {
    let camera = &mut settings.camera;
    let counting = match look {
        Look::Embryo => draw.chance(0.9),
        Look::Clean => false,
        _ => draw.chance(0.4),
    };
    if counting {
        camera.photons = draw.log(4.5, 70.0);
        camera.background_photons = draw.even(0.02, 0.3);
        camera.read_noise_photons = draw.even(0.05, 0.3);
        camera.gain_counts_per_photon = 28.0 * draw.log(0.5, 2.0);
    } else {
        camera.photons = draw.log(30.0, 150.0);
        camera.background_photons = camera.photons * draw.even(0.01, 0.12);
        camera.read_noise_photons = draw.even(0.5, 2.5);
        camera.gain_counts_per_photon = draw.log(0.5, 8.0);
    }
    camera.offset_counts = draw.even(80.0, 200.0);
}

fn cells(settings: &mut Settings, draw: &mut Draw) {
    let xy = draw.log(0.25, 0.7);
    set_voxel(settings, [xy * draw.log(1.0, 3.5), xy, xy]);
    let (objects, optics, camera) = (&mut settings.objects, &mut settings.optics, &mut settings.camera);
    objects.diameter_um = draw.log(8.0, 20.0);
    objects.diameter_spread = draw.even(0.05, 0.3);
    objects.fill = draw.even(0.4, 1.0);
    objects.brightness_spread = draw.even(0.1, 0.4);
    objects.texture = draw.even(0.1, 0.6);
    objects.membrane_um = draw.log(0.35, 1.4);
    let sharp = draw.even(0.12, 0.4);
    optics.psf_sigma_um = [draw.even(0.4, 1.5), sharp, sharp];
    optics.haze = draw.even(0.0, 0.3);
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.004);
    optics.attenuation_per_um = draw.even(0.0, 0.01);
    optics.unevenness = draw.even(0.0, 0.4);
    camera.photons = draw.log(8.0, 300.0);
    camera.background_photons = camera.photons * draw.even(0.01, 0.12);
    camera.read_noise_photons = draw.even(0.1, 2.0);
    camera.gain_counts_per_photon = draw.log(0.5, 20.0);
    camera.offset_counts = draw.even(80.0, 200.0);
}

fn label_free(settings: &mut Settings, draw: &mut Draw) {
    let xy = draw.log(0.2, 0.45);
    set_voxel(settings, [xy * draw.log(1.5, 3.5), xy, xy]);
    let (objects, optics, camera) = (&mut settings.objects, &mut settings.optics, &mut settings.camera);
    objects.diameter_um = draw.log(6.5, 12.0);
    objects.diameter_spread = draw.even(0.05, 0.25);
    objects.fill = draw.even(0.04, 0.18);
    objects.touching = draw.even(0.0, 0.3);
    objects.texture = draw.even(0.1, 0.6);
    objects.stretch.spread = draw.even(0.0, 0.15);
    optics.condenser_na = draw.even(0.3, 0.7);
    optics.unevenness = draw.even(0.0, 0.3);
    camera.photons = draw.log(800.0, 10_000.0);
    camera.gain_counts_per_photon = 16_000.0 / camera.photons * draw.log(0.5, 2.0);
}

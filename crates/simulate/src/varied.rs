//! Settings drawn over wide ranges: what a network must have met to work on stacks that nobody simulated.
//!
//! Nearly half of the stacks of nuclei are embryos under a light-sheet or spinning-disk microscope with an
//! electron-multiplying camera: balls of touching nuclei, drawn out along Z, at few photons. The rest are tissue and
//! cultures: clean, isotropic, sparse, dense. Nuclei of all sizes look alike but for the blur.

use crate::{
    Background, Debris, Kind, Membranes, Placement, Settings, Spots, Stretch, Truth, TruthOutline,
    random::{self, Purpose},
};
use cytoscope_volume::VoxelSize;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Nuclei a stack has at least, where they fit.
const LEAST_NUCLEI: f64 = 6.0;

/// The share of the looks of nuclei that are embryos.
const EMBRYOS: f64 = 0.45;

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
    /// Of nuclei, everything is drawn relative to their diameter, which is 4 to 30 µm: 9 to 30 voxels in the plane, slices 1
    /// to 6 times as thick as voxels are wide but at least three to a nucleus. Within a stack diameters spread by 0.1 to
    /// 0.35 (standard deviation of the logarithm). Nearly half of the stacks are like embryos: bodies 1.1 to 1.8 times as
    /// long along Z, in balls, shells or anywhere, blurred mostly along Z, at few photons. The others are clean tissue,
    /// isotropic, sparse (1 to 5 % of the volume) or dense (40 to 60 %). Some nuclei have bright spots or a bright rim, some
    /// stacks a structured background, a bias field or smoothed noise. The truth has outlines where nuclei are seen to end,
    /// at a level between each nucleus' own and one for the whole stack, and leaves out those with less than 10 to 35 % of
    /// the light of bright ones; what else shines is dimmer than those, or much smaller.
    ///
    /// Of cells, likewise: 5 to 40 µm, walls bent and with gaps, tissue in domes and bent tubes, debris beside it.
    ///
    /// Of label-free pairs, sizes, densities, blur and photons are drawn about the defaults.
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
    } else if other < 0.3 {
        Look::Clean
    } else if other < 0.5 {
        Look::Isotropic
    } else if other < 0.7 {
        Look::Sparse
    } else {
        Look::Dense
    };
    let diameter_um = draw.log(4.0, 30.0);
    set_voxel(settings, nuclear_voxel(look, diameter_um, draw));
    // Nuclei dimmer than this share of bright ones are not in the truth.
    let least_brightness = draw.log(0.1, 0.35);
    nuclear_objects(settings, look, diameter_um, least_brightness, draw);
    nuclear_optics(settings, look, diameter_um, draw);
    nuclear_camera(settings, look, draw);
    // Nobody labels what is lost in the background.
    let least_brightness = least_brightness.max(1.2 * settings.objects.background.strength).min(1.0);
    let share = if look == Look::Embryo { draw.log(0.08, 0.25) } else { draw.log(0.12, 0.5) };
    let common = draw.even(0.3, 1.0);
    settings.truth = Truth { outline: TruthOutline::Visible { share, common }, least_brightness };
}

/// Voxel size Z, Y, X in µm: 9 to 30 voxels to a diameter in the plane, and at least three slices.
fn nuclear_voxel(look: Look, diameter_um: f64, draw: &mut Draw) -> [f64; 3] {
    let xy = diameter_um / draw.log(9.0, 30.0);
    let ratio = match look {
        Look::Embryo | Look::Sparse => draw.log(1.3, 6.0),
        Look::Clean | Look::Dense => draw.log(1.0, 5.0),
        Look::Isotropic => 1.0,
    };
    [(xy * ratio).min(diameter_um / 3.0).max(xy), xy, xy]
}

fn nuclear_objects(settings: &mut Settings, look: Look, diameter_um: f64, least_brightness: f64, draw: &mut Draw) {
    let field = field_um3(settings);
    let embryo = look == Look::Embryo;
    let objects = &mut settings.objects;
    objects.diameter_um = diameter_um;
    objects.diameter_spread = draw.even(0.1, 0.35);
    objects.brightness_spread = draw.even(0.1, 0.6);
    objects.texture = draw.even(0.0, 0.8);
    objects.bumps = draw.even(0.5, 2.5);
    objects.hollow = draw.sometimes(0.2, 0.1, 0.7);
    let (count, brightness, size) = (draw.log(2.0, 25.0), draw.log(0.5, 3.0), draw.log(0.06, 0.25));
    if draw.chance(0.2) {
        objects.spots = Spots { count, brightness, size };
    }
    let (strength, grain, ridges) = (draw.log(0.03, 0.35), draw.log(0.5, 8.0), draw.even(0.0, 1.0));
    if draw.chance(0.35) {
        objects.background = Background { strength, grain_um: grain * diameter_um, ridges };
    }
    let long = if embryo { draw.log(1.1, 1.8) } else { draw.log(0.8, 1.3) };
    let wide = draw.log(0.87, 1.15);
    let spread = draw.even(0.03, 0.18);
    // Balls that hold a few to a few dozen nuclei.
    let (radius_um, hollow) = (diameter_um * draw.even(1.8, 3.8), draw.sometimes(0.5, 0.4, 0.92));
    let clusters = draw.chance(if embryo { 0.75 } else { 0.15 });
    // Nuclei in a thin wall lie flat in it.
    let flat = if clusters && hollow > 0.0 { draw.even(0.2, 0.9) } else { draw.sometimes(0.6, 0.05, 0.3) };
    objects.stretch = Stretch { zyx: [long, wide, 1.0 / wide], spread, flat };
    objects.mitotic = draw.sometimes(0.4, 0.01, 0.06);
    objects.glow = draw.sometimes(0.6, 0.0, 0.12);
    // Up to 15 pieces in a field of seven diameters every way, all dimmer than what the truth tells of.
    let debris = draw.sometimes(0.7, 0.0, 15.0) * field / (7.0 * diameter_um).powi(3);
    let brightness = least_brightness * draw.log(0.1, 0.5);
    objects.debris = Debris { count: debris.ceil().min(500.0) as usize, brightness };
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
        objects.fill = (objects.fill / (1.0 - hollow.powi(3)).max(0.35)).min(0.6);
        if look == Look::Sparse {
            objects.fill = (objects.fill * field / room).min(0.3);
        }
    }
    let nucleus = std::f64::consts::PI / 6.0 * objects.diameter_um.powi(3);
    objects.fill = objects.fill.max((LEAST_NUCLEI * nucleus / room).min(0.35));
}

/// Blur and haze, as shares of the diameter: the same objective blurs small nuclei more.
fn nuclear_optics(settings: &mut Settings, look: Look, diameter_um: f64, draw: &mut Draw) {
    let optics = &mut settings.optics;
    let (z, xy) = match look {
        Look::Embryo => (draw.log(0.08, 0.3), draw.log(0.03, 0.1)),
        Look::Clean => (draw.log(0.03, 0.15), draw.log(0.01, 0.05)),
        Look::Isotropic => (draw.log(0.03, 0.2), draw.log(0.02, 0.08)),
        Look::Sparse | Look::Dense => (draw.log(0.03, 0.25), draw.log(0.015, 0.09)),
    };
    optics.psf_sigma_um = [z * diameter_um, xy * diameter_um, xy * diameter_um];
    let often = if look == Look::Embryo { 0.75 } else { 0.3 };
    optics.tail_share = draw.sometimes(often, 0.15, 0.55);
    let wide = draw.even(0.02, 0.25) * diameter_um;
    optics.tail_sigma_um = [draw.even(0.25, 0.65) * diameter_um, wide, wide];
    optics.haze = if look == Look::Clean { draw.even(0.0, 0.2) } else { draw.even(0.03, 0.35) };
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.05) / diameter_um;
    let spread = draw.even(0.25, 0.7) * diameter_um;
    optics.haze_sigma_um = [spread * draw.even(1.0, 1.6), spread, spread];
    optics.bias = draw.sometimes(0.4, 0.2, 1.2);
    optics.attenuation_per_um = draw.even(0.0, 0.18) / diameter_um;
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
    camera.smoothing_voxels = draw.sometimes(0.25, 0.4, 1.2);
}

/// Cells of 5 to 40 µm: 9 to 36 voxels between neighbours in the plane, slices 1 to 5 times as thick as voxels are wide.
fn cells(settings: &mut Settings, draw: &mut Draw) {
    let diameter_um = draw.log(5.0, 40.0);
    let xy = diameter_um / draw.log(9.0, 36.0);
    set_voxel(settings, [(xy * draw.log(1.0, 5.0)).min(diameter_um / 3.5).max(xy), xy, xy]);
    let field = field_um3(settings);
    let (objects, optics, camera) = (&mut settings.objects, &mut settings.optics, &mut settings.camera);
    objects.diameter_um = diameter_um;
    objects.diameter_spread = draw.even(0.05, 0.5);
    let (tube, share) = (draw.chance(0.35), draw.even(0.08, 0.4));
    objects.fill = if tube { share } else { draw.even(0.3, 1.0) };
    objects.brightness_spread = draw.even(0.1, 0.6);
    objects.texture = draw.even(0.1, 0.8);
    objects.membrane_um = diameter_um * draw.log(0.03, 0.14);
    let gaps = draw.sometimes(0.6, 0.03, 0.35);
    objects.membranes = Membranes { bend: draw.even(0.04, 0.25), gaps, cytoplasm: draw.log(0.02, 0.45), tube };
    let pieces = draw.sometimes(0.5, 0.0, 6.0) * field / (8.0 * diameter_um).powi(3);
    objects.debris = Debris { count: pieces.ceil().min(200.0) as usize, brightness: draw.log(0.2, 3.0) };
    let sharp = diameter_um * draw.log(0.01, 0.05);
    optics.psf_sigma_um = [sharp * draw.even(1.5, 5.0), sharp, sharp];
    optics.haze = draw.even(0.0, 0.4);
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.05) / diameter_um;
    let spread = draw.even(0.2, 0.6) * diameter_um;
    optics.haze_sigma_um = [spread * draw.even(1.0, 1.6), spread, spread];
    optics.bias = draw.sometimes(0.5, 0.2, 1.5);
    optics.attenuation_per_um = draw.even(0.0, 0.15) / diameter_um;
    optics.unevenness = draw.even(0.0, 0.4);
    camera.photons = draw.log(8.0, 300.0);
    camera.background_photons = camera.photons * draw.even(0.01, 0.12);
    camera.read_noise_photons = draw.even(0.1, 2.0);
    camera.gain_counts_per_photon = draw.log(0.5, 20.0);
    camera.offset_counts = draw.even(80.0, 200.0);
    camera.smoothing_voxels = draw.sometimes(0.3, 0.4, 1.3);
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

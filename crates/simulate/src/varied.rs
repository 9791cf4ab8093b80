//! Settings drawn from wide ranges, so that networks trained on simulated stacks generalize to real ones.
//!
//! Nearly half of the stacks of nuclei resemble embryos under a light-sheet or spinning-disk microscope with an
//! electron-multiplying camera: balls of touching nuclei, elongated along Z, with few photons. The rest resemble tissue
//! and cultures: clean, isotropic, sparse, dense. Apart from blur, nuclei of all sizes look alike.

use crate::{
    Background, Debris, Kind, Membranes, Placement, Pressed, Settings, Spots, Stretch, Truth, TruthOutline,
    random::{self, Purpose},
};
use cytoscope_volume::VoxelSize;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Minimum number of nuclei of a stack, if they fit.
const MIN_NUCLEI: f64 = 6.0;

/// Fraction of the stacks of nuclei that resemble embryos.
const EMBRYOS: f64 = 0.45;

/// Draws random numbers from ranges.
struct Draw(ChaCha8Rng);

impl Draw {
    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// Uniform on a logarithmic scale.
    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        self.uniform(low.ln(), high.ln()).exp()
    }

    fn chance(&mut self, share: f64) -> bool {
        self.0.random::<f64>() < share
    }

    /// Uniform with probability `share`, otherwise 0.
    fn sometimes(&mut self, share: f64, low: f64, high: f64) -> f64 {
        let value = self.uniform(low, high);
        if self.chance(share) { value } else { 0.0 }
    }
}

/// Kind of specimen in a stack of nuclei.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Specimen {
    Embryo,
    /// Clean confocal tissue.
    Clean,
    /// Isotropic voxels.
    Isotropic,
    Sparse,
    Dense,
}

impl Settings {
    /// Settings drawn from wide ranges with the seed: voxel size, size, shape and placement of objects, brightness,
    /// blur, haze and noise. A few dozen such stacks cover most conditions of real microscopes, for training networks.
    ///
    /// For nuclei, all lengths are drawn relative to the diameter, which is 4 to 30 µm: 9 to 30 voxels in the plane, with
    /// slices 1 to 6 times as thick as voxels are wide but at least three per nucleus. Within a stack, diameters have a spread
    /// of 0.1 to 0.35 (standard deviation of the logarithm). Nearly half of the stacks resemble embryos: bodies 0.95 to 1.5
    /// times as long along Z as wide, in balls, shells or anywhere, blurred mostly along Z, with few photons. Blur and outlines
    /// of these are calibrated on real mouse embryos (docs/accuracy.md): outlines drawn by people are 1.8 times as long along Z
    /// as wide, and lie at about 0.2 of a bright nucleus' intensity. The others are clean tissue, isotropic, sparse (1 to 5 %
    /// of the volume) or dense (40 to 60 %, and up to 1.4 times as large once placed, so that nuclei are pressed against each
    /// other). Some nuclei have bright spots or a bright rim; some stacks have a structured background, a bias field or
    /// smoothed noise. The ground truth has visible outlines; their level lies between one for each nucleus and one for the
    /// whole stack. It omits nuclei that are dimmer than 10 to 35 % of the bright ones; debris and background are dimmer still,
    /// or much smaller.
    ///
    /// For cells, similarly: 5 to 40 µm, curved walls with gaps, tissue as domes and bent tubes, and debris next to it.
    ///
    /// For label-free pairs, sizes, densities, blur and photons are drawn around the defaults.
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

/// Volume of the field in µm³.
fn field_um3(settings: &Settings) -> f64 {
    let voxel = settings.voxel_size_um.zyx_um().map_or(1.0, |v| v.iter().product());
    settings.shape_zyx.iter().map(|n| *n as f64).product::<f64>() * voxel
}

fn nuclei(settings: &mut Settings, draw: &mut Draw) {
    let other = draw.uniform(0.0, 1.0);
    let specimen = if draw.chance(EMBRYOS) {
        Specimen::Embryo
    } else if other < 0.3 {
        Specimen::Clean
    } else if other < 0.5 {
        Specimen::Isotropic
    } else if other < 0.7 {
        Specimen::Sparse
    } else {
        Specimen::Dense
    };
    let diameter_um = draw.log_uniform(4.0, 30.0);
    set_voxel(settings, nuclear_voxel(specimen, diameter_um, draw));
    // Nuclei dimmer than this fraction of bright ones are not in the ground truth.
    let least_brightness = draw.log_uniform(0.1, 0.35);
    nuclear_objects(settings, specimen, diameter_um, least_brightness, draw);
    nuclear_optics(settings, specimen, diameter_um, draw);
    nuclear_camera(settings, specimen, draw);
    // Nuclei that are not visible against the background are not labeled.
    let least_brightness = least_brightness.max(1.2 * settings.objects.background.strength).min(1.0);
    let share = if specimen == Specimen::Embryo { draw.log_uniform(0.04, 0.13) } else { draw.log_uniform(0.12, 0.5) };
    let common = if specimen == Specimen::Embryo { draw.uniform(0.6, 1.0) } else { draw.uniform(0.3, 1.0) };
    settings.truth = Truth { outline: TruthOutline::Visible { share, common }, least_brightness };
    if specimen == Specimen::Dense {
        settings.objects.pressed = Pressed { swell: draw.uniform(1.0, 1.4), gap: draw.uniform(0.0, 0.2) };
    }
}

/// Voxel size along Z, Y, X in µm: 9 to 30 voxels per diameter in the plane, and at least three slices.
fn nuclear_voxel(specimen: Specimen, diameter_um: f64, draw: &mut Draw) -> [f64; 3] {
    let xy = diameter_um / draw.log_uniform(9.0, 30.0);
    let ratio = match specimen {
        Specimen::Embryo | Specimen::Sparse => draw.log_uniform(1.3, 6.0),
        Specimen::Clean | Specimen::Dense => draw.log_uniform(1.0, 5.0),
        Specimen::Isotropic => 1.0,
    };
    [(xy * ratio).min(diameter_um / 3.0).max(xy), xy, xy]
}

fn nuclear_objects(
    settings: &mut Settings,
    specimen: Specimen,
    diameter_um: f64,
    least_brightness: f64,
    draw: &mut Draw,
) {
    let field = field_um3(settings);
    let embryo = specimen == Specimen::Embryo;
    let objects = &mut settings.objects;
    objects.diameter_um = diameter_um;
    objects.diameter_spread = draw.uniform(0.1, 0.35);
    objects.brightness_spread = draw.uniform(0.1, 0.6);
    objects.texture = draw.uniform(0.0, 0.8);
    objects.bumps = draw.uniform(0.5, 2.5);
    objects.hollow = draw.sometimes(0.2, 0.1, 0.7);
    let (count, brightness, size) =
        (draw.log_uniform(2.0, 25.0), draw.log_uniform(0.5, 3.0), draw.log_uniform(0.06, 0.25));
    if draw.chance(0.2) {
        objects.spots = Spots { count, brightness, size };
    }
    let (strength, grain, ridges) = (draw.log_uniform(0.03, 0.35), draw.log_uniform(0.5, 8.0), draw.uniform(0.0, 1.0));
    if draw.chance(0.35) {
        objects.background = Background { strength, grain_um: grain * diameter_um, ridges };
    }
    let long = if embryo { draw.log_uniform(0.95, 1.5) } else { draw.log_uniform(0.8, 1.3) };
    let wide = draw.log_uniform(0.87, 1.15);
    let spread = draw.uniform(0.03, 0.18);
    // Balls with a few to a few dozen nuclei.
    let (radius_um, hollow) = (diameter_um * draw.uniform(1.8, 3.8), draw.sometimes(0.5, 0.4, 0.92));
    let clusters = draw.chance(if embryo { 0.75 } else { 0.15 });
    // Nuclei in a thin wall are flat and parallel to it.
    let flat = if clusters && hollow > 0.0 { draw.uniform(0.2, 0.9) } else { draw.sometimes(0.6, 0.05, 0.3) };
    objects.stretch = Stretch { zyx: [long, wide, 1.0 / wide], spread, flat };
    objects.mitotic = draw.sometimes(0.4, 0.01, 0.06);
    objects.glow = draw.sometimes(0.6, 0.0, 0.12);
    // Up to 15 pieces in a field of seven diameters along each axis, all dimmer than nuclei in the ground truth.
    let debris = draw.sometimes(0.7, 0.0, 15.0) * field / (7.0 * diameter_um).powi(3);
    let brightness = least_brightness * draw.log_uniform(0.1, 0.5);
    objects.debris = Debris { count: debris.ceil().min(500.0) as usize, brightness };
    (objects.fill, objects.touching) = match specimen {
        Specimen::Embryo => (draw.log_uniform(0.02, 0.22), draw.uniform(0.0, 0.85)),
        Specimen::Clean | Specimen::Isotropic => (draw.uniform(0.08, 0.4), draw.uniform(0.3, 0.95)),
        Specimen::Sparse => (draw.log_uniform(0.01, 0.05), draw.uniform(0.0, 0.5)),
        Specimen::Dense => (draw.uniform(0.4, 0.6), draw.uniform(0.7, 0.97)),
    };
    let crowd = draw.uniform(0.3, 1.0);
    let mut space = field;
    if clusters {
        // At most as many balls as fit side by side.
        let count = (crowd * field / (2.5 * radius_um).powi(3)).round().clamp(1.0, 60.0);
        objects.placement = Placement::Clusters { count: count as usize, radius_um, hollow };
        let ball = 4.0 / 3.0 * std::f64::consts::PI * radius_um.powi(3) * (1.0 - hollow.powi(3));
        space = field.min(count * ball);
        // A thin wall has little space, so it is filled more densely.
        objects.fill = (objects.fill / (1.0 - hollow.powi(3)).max(0.35)).min(0.6);
        if specimen == Specimen::Sparse {
            objects.fill = (objects.fill * field / space).min(0.3);
        }
    }
    let nucleus = std::f64::consts::PI / 6.0 * objects.diameter_um.powi(3);
    objects.fill = objects.fill.max((MIN_NUCLEI * nucleus / space).min(0.35));
}

/// Blur and haze relative to the diameter.
fn nuclear_optics(settings: &mut Settings, specimen: Specimen, diameter_um: f64, draw: &mut Draw) {
    let optics = &mut settings.optics;
    let (z, xy) = match specimen {
        Specimen::Embryo => (draw.log_uniform(0.1, 0.35), draw.log_uniform(0.03, 0.1)),
        Specimen::Clean => (draw.log_uniform(0.03, 0.15), draw.log_uniform(0.01, 0.05)),
        Specimen::Isotropic => (draw.log_uniform(0.03, 0.2), draw.log_uniform(0.02, 0.08)),
        Specimen::Sparse | Specimen::Dense => (draw.log_uniform(0.03, 0.25), draw.log_uniform(0.015, 0.09)),
    };
    optics.psf_sigma_um = [z * diameter_um, xy * diameter_um, xy * diameter_um];
    let often = if specimen == Specimen::Embryo { 0.75 } else { 0.3 };
    optics.tail_share = draw.sometimes(often, 0.15, 0.55);
    let wide = draw.uniform(0.02, 0.25) * diameter_um;
    let tall = if specimen == Specimen::Embryo { draw.uniform(0.35, 0.9) } else { draw.uniform(0.25, 0.65) };
    optics.tail_sigma_um = [tall * diameter_um, wide, wide];
    optics.haze = if specimen == Specimen::Clean { draw.uniform(0.0, 0.2) } else { draw.uniform(0.03, 0.35) };
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.05) / diameter_um;
    let spread = draw.uniform(0.25, 0.7) * diameter_um;
    optics.haze_sigma_um = [spread * draw.uniform(1.0, 1.6), spread, spread];
    optics.bias = draw.sometimes(0.4, 0.2, 1.2);
    optics.attenuation_per_um = draw.uniform(0.0, 0.18) / diameter_um;
    optics.unevenness = draw.uniform(0.0, 0.35);
}

fn nuclear_camera(settings: &mut Settings, specimen: Specimen, draw: &mut Draw) {
    let camera = &mut settings.camera;
    let counting = match specimen {
        Specimen::Embryo => draw.chance(0.9),
        Specimen::Clean => false,
        _ => draw.chance(0.4),
    };
    if counting {
        camera.photons = draw.log_uniform(4.5, 70.0);
        camera.background_photons = draw.uniform(0.02, 0.3);
        camera.read_noise_photons = draw.uniform(0.05, 0.3);
        camera.gain_counts_per_photon = 28.0 * draw.log_uniform(0.5, 2.0);
    } else {
        camera.photons = draw.log_uniform(30.0, 150.0);
        camera.background_photons = camera.photons * draw.uniform(0.01, 0.12);
        camera.read_noise_photons = draw.uniform(0.5, 2.5);
        camera.gain_counts_per_photon = draw.log_uniform(0.5, 8.0);
    }
    camera.offset_counts = draw.uniform(80.0, 200.0);
    camera.smoothing_voxels = draw.sometimes(0.25, 0.4, 1.2);
}

/// Cells of 5 to 40 µm: 9 to 36 voxels between neighbors in the plane, with slices 1 to 5 times as thick as voxels are
/// wide.
fn cells(settings: &mut Settings, draw: &mut Draw) {
    let diameter_um = draw.log_uniform(5.0, 40.0);
    let xy = diameter_um / draw.log_uniform(9.0, 36.0);
    set_voxel(settings, [(xy * draw.log_uniform(1.0, 5.0)).min(diameter_um / 3.5).max(xy), xy, xy]);
    let field = field_um3(settings);
    let (objects, optics, camera) = (&mut settings.objects, &mut settings.optics, &mut settings.camera);
    objects.diameter_um = diameter_um;
    objects.diameter_spread = draw.uniform(0.05, 0.5);
    let (tube, share) = (draw.chance(0.35), draw.uniform(0.08, 0.4));
    objects.fill = if tube { share } else { draw.uniform(0.3, 1.0) };
    objects.brightness_spread = draw.uniform(0.1, 0.6);
    objects.texture = draw.uniform(0.1, 0.8);
    objects.membrane_um = diameter_um * draw.log_uniform(0.03, 0.14);
    let gaps = draw.sometimes(0.6, 0.03, 0.35);
    objects.membranes =
        Membranes { bend: draw.uniform(0.04, 0.25), gaps, cytoplasm: draw.log_uniform(0.02, 0.45), tube };
    let pieces = draw.sometimes(0.5, 0.0, 6.0) * field / (8.0 * diameter_um).powi(3);
    objects.debris = Debris { count: pieces.ceil().min(200.0) as usize, brightness: draw.log_uniform(0.2, 3.0) };
    let sharp = diameter_um * draw.log_uniform(0.01, 0.05);
    optics.psf_sigma_um = [sharp * draw.uniform(1.5, 5.0), sharp, sharp];
    optics.haze = draw.uniform(0.0, 0.4);
    optics.haze_per_um = draw.sometimes(0.5, 0.0, 0.05) / diameter_um;
    let spread = draw.uniform(0.2, 0.6) * diameter_um;
    optics.haze_sigma_um = [spread * draw.uniform(1.0, 1.6), spread, spread];
    optics.bias = draw.sometimes(0.5, 0.2, 1.5);
    optics.attenuation_per_um = draw.uniform(0.0, 0.15) / diameter_um;
    optics.unevenness = draw.uniform(0.0, 0.4);
    camera.photons = draw.log_uniform(8.0, 300.0);
    camera.background_photons = camera.photons * draw.uniform(0.01, 0.12);
    camera.read_noise_photons = draw.uniform(0.1, 2.0);
    camera.gain_counts_per_photon = draw.log_uniform(0.5, 20.0);
    camera.offset_counts = draw.uniform(80.0, 200.0);
    camera.smoothing_voxels = draw.sometimes(0.3, 0.4, 1.3);
}

fn label_free(settings: &mut Settings, draw: &mut Draw) {
    let xy = draw.log_uniform(0.2, 0.45);
    set_voxel(settings, [xy * draw.log_uniform(1.5, 3.5), xy, xy]);
    let (objects, optics, camera) = (&mut settings.objects, &mut settings.optics, &mut settings.camera);
    objects.diameter_um = draw.log_uniform(6.5, 12.0);
    objects.diameter_spread = draw.uniform(0.05, 0.25);
    objects.fill = draw.uniform(0.04, 0.18);
    objects.touching = draw.uniform(0.0, 0.3);
    objects.texture = draw.uniform(0.1, 0.6);
    objects.stretch.spread = draw.uniform(0.0, 0.15);
    optics.condenser_na = draw.uniform(0.3, 0.7);
    optics.unevenness = draw.uniform(0.0, 0.3);
    camera.photons = draw.log_uniform(800.0, 10_000.0);
    camera.gain_counts_per_photon = 16_000.0 / camera.photons * draw.log_uniform(0.5, 2.0);
}

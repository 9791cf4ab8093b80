//! Axes, channels, label images and stains of training files, chosen in the wizard: what is checked, and what is trained.

use crate::accessibility;
use crate::files::write_plate;
use crate::fixture::{Fixture, sees, window_with};
use crate::training::tiny_config;
use cytoscope_formats::{Channel, ChannelRef, Container, SeriesChoice, WriteSpec, write_array};
use cytoscope_train::DataConfig;
use cytoscope_training_data::Pair;
use cytoscope_ui::Workbench;
use cytoscope_ui::training::Check;
use cytoscope_ui::training::run::RunState;
use cytoscope_volume::Array;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;
use std::path::{Path, PathBuf};

/// Header of the settings.
const SETTINGS: &str = "Channels and metadata of the files";
/// Shape Z, Y, X of the stacks.
const SHAPE: [usize; 3] = [8, 48, 48];

/// A window whose training runs have small networks, and an empty folder for pairs.
fn fixture() -> (Fixture, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let window = window_with(folder.path(), Vec::new(), tiny_config(40_000));
    let fixture = Fixture { folder, window };
    let data = fixture.path("pairs");
    std::fs::create_dir(&data).unwrap();
    (fixture, data)
}

/// Channels of the image and of the target of a pair.
type PairChannels = [Vec<Option<usize>>; 2];

/// Channels that the checked pairs are read from; empty before the check.
fn checked_channels(window: &Harness<'static, Workbench>) -> Vec<PairChannels> {
    let Check::Done(report) = &window.state().wizard().check else { return Vec::new() };
    let pair_channels = |pair: &Pair| -> PairChannels {
        [pair.images().map(|image| image.channel).collect(), pair.targets().map(|target| target.channel).collect()]
    };
    report.dataset.pairs.iter().map(pair_channels).collect()
}

/// Starts a training run with the checked data, discards it, and returns the settings of the data that it was given.
fn run_settings(fixture: &mut Fixture) -> DataConfig {
    fixture.click("Next");
    fixture.click("New network");
    fixture.click_enabled("Start training");
    fixture.until("a training run", |w| w.state().is_training());
    let job = fixture.window.state().wizard().plan.job.clone().unwrap();
    fixture.click("Stop…");
    fixture.click("Discard training run");
    fixture.until("the end", |w| w.state().wizard().run.state == RunState::Idle);
    job.config.data
}

/// Writes an image and its labels as arrays with the axes Z, C, Y, X, which NPY files do not state. Their first channels are
/// a background and a mask, the second ones `3 + pair` stripes and the labels of these.
fn write_stripes(folder: &Path, pair: usize) {
    let [nz, ny, nx] = SHAPE;
    let (mut image, mut labels) = (Vec::<u16>::new(), Vec::<u16>::new());
    for i in 0..nz * 2 * ny * nx {
        let (z, channel, y, x) = (i / (2 * ny * nx), i / (ny * nx) % 2, i / nx % ny, i % nx);
        let is_object = (2..6).contains(&z) && (8..40).contains(&x) && y % 8 != 0 && y / 8 < 3 + pair;
        let label = if is_object { (y / 8 + 1) as u16 } else { 0 };
        let noise = ((z * 31 + y * 17 + x * 7 + channel * 3 + pair * 5) % 23) as u16;
        image.push(if channel == 1 && is_object { 400 + noise } else { noise });
        labels.push(if channel == 1 { label } else { label.min(1) });
    }
    for (name, values) in [("raw", image), ("labels", labels)] {
        let array = Array::new("ZCYX".parse().unwrap(), vec![nz, 2, ny, nx], values).unwrap();
        let path = folder.join(format!("stripes{pair}_{name}.npy"));
        write_array(&path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    }
}

#[test]
fn axes_input_channels_and_label_image_are_checked_and_trained() {
    let (mut fixture, data) = fixture();
    (0..3).for_each(|pair| write_stripes(&data, pair));
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.window.state_mut().train_on(data);
    // The slices are taken for channels.
    fixture.until("what is wrong", |w| sees(w, "0 of 3 pairs can be used") && sees(w, "has 8 channels"));
    fixture.click(SETTINGS);
    accessibility::check(&fixture, "settings of the files");
    fixture.click("ZCYX");
    fixture.click("Input channels");
    fixture.type_into("Input channels list", "1, 0");
    // They are known once the files have been checked with these axes.
    fixture.until("the label images", |w| sees(w, "choose one of channel0, channel1"));
    fixture.click("Label image");
    fixture.click("channel1");
    let expected: Vec<PairChannels> = vec![[vec![Some(1), Some(0)], vec![Some(1)]]; 3];
    fixture.until("the chosen channels", |w| checked_channels(w) == expected);
    assert!(fixture.sees("3 usable pairs"), "{}", fixture.on_screen());
    for objects in 3..6 {
        let facts = format!("8 × 48 × 48 voxels · voxel size unknown · {objects} objects");
        assert!(fixture.sees(&facts), "{facts}: {}", fixture.on_screen());
    }
    let chosen = DataConfig {
        channels: vec![ChannelRef::Index(1), ChannelRef::Index(0)],
        labels_channel: Some(ChannelRef::Name("channel1".to_owned())),
        axes: Some("ZCYX".parse().unwrap()),
        ..DataConfig::default()
    };
    assert_eq!(run_settings(&mut fixture), chosen);
}

#[test]
fn one_series_of_the_images_is_chosen_by_name_and_trained() {
    let (mut fixture, data) = fixture();
    let [nz, ny, nx] = SHAPE;
    for pair in 0..3 {
        let is_object = |z: usize, at: usize| {
            let (y, x) = (at / nx, at % nx);
            (2..6).contains(&z) && (8..40).contains(&x) && y % 8 != 0 && y / 8 < 3 + pair
        };
        // The first series has fewer slices than the labels.
        let image = |z: usize, at: usize| if is_object(z, at) { 400 } else { (at * 7 % 23) as u16 };
        write_plate(&data.join(format!("stripes{pair}_raw.zarr")), [4, nz], [ny, nx], image);
        let label = |z: usize, at: usize| if is_object(z, at) { (at / nx / 8 + 1) as u16 } else { 0 };
        let labels = (0..nz).flat_map(|z| (0..ny * nx).map(move |at| label(z, at))).collect::<Vec<u16>>();
        let labels = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), labels).unwrap();
        let path = data.join(format!("stripes{pair}_labels.tif"));
        write_array(&path, &labels, &WriteSpec::of(&labels, Container::ImageJ)).unwrap();
    }
    fixture.click("Train a model…");
    fixture.click("Next");
    fixture.window.state_mut().train_on(data);
    fixture.until("the shapes of the first series", |w| sees(w, "0 of 3 pairs can be used"));
    fixture.click(SETTINGS);
    fixture.click("One series");
    fixture.type_into("Number or name of the series", "A/1/1.zarr");
    fixture.until("the pairs of the second series", |w| sees(w, "3 usable pairs"));
    accessibility::check(&fixture, "one series");
    let Check::Done(report) = &fixture.window.state().wizard().check else { panic!("no check") };
    let series: Vec<[usize; 2]> =
        report.dataset.pairs.iter().map(|pair| [pair.image.series, pair.target.series]).collect();
    assert_eq!(series, [[1, 0]; 3]);
    let named = SeriesChoice::Name("A/1/1.zarr".to_owned());
    assert_eq!(run_settings(&mut fixture), DataConfig { series: named, ..DataConfig::default() });
}

/// Writes a bright-field stack and three stains.
fn write_stains(folder: &Path, pair: usize) {
    let [nz, ny, nx] = SHAPE;
    let values = |step: usize| (0..nz * ny * nx).map(|i| (i * step % 101 + pair) as u16).collect::<Vec<u16>>();
    let raw = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), values(29)).unwrap();
    write_array(&folder.join(format!("dish{pair}_raw.tif")), &raw, &WriteSpec::of(&raw, Container::ImageJ)).unwrap();
    let stains = [values(37), values(53), values(71)].concat();
    let stains = Array::new("CZYX".parse().unwrap(), vec![3, nz, ny, nx], stains).unwrap();
    let mut spec = WriteSpec::of(&stains, Container::OmeTiff);
    spec.channels = ["dna", "actin", "tubulin"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    write_array(&folder.join(format!("dish{pair}_target.ome.tif")), &stains, &spec).unwrap();
}

#[test]
fn stains_are_typed_by_name_and_trained_in_that_order() {
    let (mut fixture, data) = fixture();
    (0..3).for_each(|pair| write_stains(&data, pair));
    fixture.click("Train a model…");
    fixture.click("Predict a stain");
    fixture.click("Next");
    fixture.window.state_mut().train_on(data);
    fixture.until("the stains", |w| sees(w, "0 of 3 pairs can be used") && sees(w, "0 (dna), 1 (actin), 2 (tubulin)"));
    fixture.click(SETTINGS);
    fixture.click("Stains");
    // The comma stays, so that another stain can follow.
    fixture.type_into("Stains list", "tubulin,");
    fixture.window.get_by_label("Stains list").type_text(" dna");
    fixture.window.run_steps(3);
    let expected: Vec<PairChannels> = vec![[vec![None], vec![Some(2), Some(0)]]; 3];
    fixture.until("the chosen stains", |w| checked_channels(w) == expected);
    assert!(fixture.sees("3 usable pairs"), "{}", fixture.on_screen());
    let names = ["tubulin", "dna"].map(|name| ChannelRef::Name(name.to_owned()));
    let chosen = DataConfig { targets: names.to_vec(), ..DataConfig::default() };
    assert_eq!(run_settings(&mut fixture), chosen);
}

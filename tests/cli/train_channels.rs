//! `train` with several input channels and several stains.

use crate::common::Fixture;
use crate::train::{SMALL, simulate_pairs, write_settings};
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, open, write_array};
use cytoscope_model_package::{AxisKind, Package, TensorSpec};
use cytoscope_volume::{Array, VoxelSize};

/// Writes named channels of one shape Z, Y, X as OME-TIFF.
pub(crate) fn write_channels(fixture: &Fixture, name: &str, shape_zyx: &[usize], channels: &[(&str, Vec<f32>)]) {
    let path = fixture.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let values: Vec<f32> = channels.iter().flat_map(|(_, values)| values.iter().copied()).collect();
    let array = Array::new("CZYX".parse().unwrap(), [&[channels.len()], shape_zyx].concat(), values).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.voxel_size_um = VoxelSize::new_um(1.0, 1.0, 1.0);
    spec.channels = channels.iter().map(|(name, _)| Channel { name: (*name).to_owned(), color_rgb: None }).collect();
    write_array(&path, &array, &spec).unwrap();
}

/// The names of the channels of a tensor.
fn channel_names(tensor: &TensorSpec) -> Vec<String> {
    tensor.axis(AxisKind::Channel).unwrap().channel_names.clone()
}

/// The name of the file in a folder that ends with `end`.
fn file_with_end(fixture: &Fixture, folder: &str, end: &str) -> String {
    let found = fixture.names(folder).into_iter().find(|name| name.ends_with(end));
    format!("{folder}/{}", found.unwrap_or_else(|| panic!("no {end} in {folder}: {:?}", fixture.names(folder))))
}

#[test]
fn several_input_channels_are_chosen_by_name() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    for seed in 1..=3 {
        let values = |what: &str| fixture.image(&format!("sim/nuclei_{seed}_{what}.tif")).samples().to_f32();
        let (nuclei, labels) = (values("raw"), values("labels"));
        let membrane: Vec<f32> = nuclei.iter().map(|v| 4000.0 - 0.1 * v).collect();
        let channels = [("Membrane", membrane.clone()), ("Nuclei", nuclei.clone()), ("Labels", labels)];
        write_channels(&fixture, &format!("cells/s{seed}.ome.tif"), &[16, 64, 64], &channels);
        // The same channels in another order, among others.
        let swapped = [("Nuclei", nuclei), ("Other", vec![7.0; 16 * 64 * 64]), ("Membrane", membrane)];
        write_channels(&fixture, &format!("swapped/s{seed}.ome.tif"), &[16, 64, 64], &swapped);
    }
    let common = ["train", "--task", "segmentation", "--data", "cells", "--config", "t.toml", "--json"];
    let labels = ["--set", "data.same_file=true", "--set", "data.targets=[\"labels\"]"];
    let cells = [&common[..], &labels].concat();
    let inputs = ["--set", "data.channels=[\"nuclei\", \"membrane\"]"];
    let report = fixture.run(&[&cells[..], &inputs, &["--steps", "8", "--without-int8", "--out", "m"]].concat()).json();
    assert_eq!((report["steps"].as_u64(), report["validation_pairs"].as_u64()), (Some(8), Some(1)));
    let package = Package::open(&fixture.path("m")).unwrap();
    assert_eq!(channel_names(&package.inputs[0]), ["nuclei", "membrane"]);
    let pooled: Vec<bool> = package.inputs[0]
        .processing
        .iter()
        .filter_map(|step| step.statistics_axes())
        .map(|axes| axes.channel)
        .collect();
    assert_eq!(pooled, [false], "each channel is normalized by its own statistics");
    let imported = fixture.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("the test outputs are reproduced"), "{imported:#}");
    // The channels are found by name wherever they are in the file.
    let maps = ["cells", "swapped"].map(|folder| {
        let (image, out) = (format!("{folder}/s1.ome.tif"), format!("of-{folder}"));
        fixture.run(&["predict", &image, "--model", "m", "--device", "cpu", "--precision", "f32", "--out", &out]).ok();
        fixture.image(&file_with_end(&fixture, &out, "_probability.tif")).samples().to_f32()
    });
    assert!(maps[0].len() == 2 * 16 * 64 * 64 && maps[0] == maps[1]);
    // A start model needs the channels that it was trained with.
    let from = ["--from", "m", "--steps", "2", "--without-int8"];
    fixture.fails(
        2,
        &[&SMALL[..], &from, &["--out", "n"]].concat(),
        &["2 input channels", "the data have one", "data.channels"],
    );
    fixture.run(&[&cells[..], &inputs, &from, &["--out", "n"]].concat()).ok();
    let missing = ["--set", "data.channels=[\"nuclei\", \"actin\"]", "--steps", "2", "--out", "o"];
    fixture.fails(3, &[&cells[..], &missing].concat(), &["no channel \"actin\"", "1 (Nuclei)", "data.channels"]);
}

#[test]
fn several_stains_are_predicted_and_scored_one_by_one() {
    let fixture = Fixture::new();
    let mut stains = Vec::new();
    for seed in 1..=3u64 {
        let shape = ["--shape", "8,48,48", "--seed", &seed.to_string(), "--out", "sim"];
        fixture.run(&[&["simulate", "--kind", "labelfree"][..], &shape].concat()).ok();
        let values = |what: &str| fixture.image(&format!("sim/labelfree_{seed}_{what}.tif")).samples().to_f32();
        let (image, dna) = (values("raw"), values("target"));
        let actin: Vec<f32> = dna.iter().map(|v| 9000.0 - 0.5 * v).collect();
        stains = vec![dna.clone(), actin.clone()];
        let channels = [("dna", dna), ("bright field", image), ("actin", actin)];
        write_channels(&fixture, &format!("stained/s{seed}.ome.tif"), &[8, 48, 48], &channels);
    }
    let text = "patch_zyx = [8, 32, 32]\nbatch = 2\nema = 0.5\n[network]\nfilters = [8, 16]\n[data]\nsame_file = true\n\
                channels = [\"bright field\"]\ntargets = [\"dna\", \"actin\"]\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let arguments = ["train", "--data", "stained", "--config", "t.toml", "--json", "--steps", "30", "--without-int8"];
    let labelfree = [&arguments[..], &["--task", "labelfree", "--out", "m"]].concat();
    let report = fixture.run(&labelfree).json();
    let score = |name: &str| report["after"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {report:#}"));
    assert!((score("pearson") - (score("pearson dna") + score("pearson actin")) / 2.0).abs() < 1e-6, "{report:#}");
    let package = Package::open(&fixture.path("m")).unwrap();
    assert_eq!(channel_names(&package.outputs[0]), ["dna", "actin"]);
    let image = ["predict", "stained/s3.ome.tif", "--channels", "bright field", "--model", "m", "--device", "cpu"];
    fixture.run(&[&image[..], &["--out", "p"]].concat()).ok();
    let prediction = file_with_end(&fixture, "p", "_prediction.tif");
    let predicted = fixture.image(&prediction);
    assert_eq!(predicted.shape(), [8, 2, 48, 48]);
    let zarr = ["--format", "ome-zarr", "--out", "z", "--outputs", "maps"];
    fixture.run(&[&image[..], &zarr].concat()).ok();
    for file in [prediction, file_with_end(&fixture, "z", "_prediction.zarr")] {
        let meta = open(&fixture.path(&file), &OpenOptions::default()).unwrap().meta().clone();
        assert_eq!((meta.channel_name(0).as_str(), meta.channel_name(1).as_str()), ("dna", "actin"), "{file}");
    }
    // Each stain is in its own counts.
    let mean = |values: &[f32]| values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
    let values = predicted.samples().to_f32();
    for (channel, truth) in stains.iter().enumerate() {
        let planes = values.chunks(48 * 48).skip(channel).step_by(2);
        let found = mean(&planes.flatten().copied().collect::<Vec<_>>());
        let expected = mean(truth);
        let std = mean(&truth.iter().map(|v| (v - expected as f32).powi(2)).collect::<Vec<_>>()).sqrt();
        assert!((found - expected).abs() < 2.0 * std, "channel {channel}: {found} against {expected} ± {std}");
    }
    let segmentation = [&arguments[..], &["--task", "segmentation", "--out", "n"]].concat();
    fixture.fails(2, &segmentation, &["data.targets", "one label image"]);
}

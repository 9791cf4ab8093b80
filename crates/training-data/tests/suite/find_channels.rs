//! Channels of images and targets are found and chosen: in one file, in several files of an image, and by name or number.

use crate::common::{names, tiny, tiny_pair, write};
use cytoscope_formats::{Channel, ChannelRef};
use cytoscope_training_data::{Convention, FindOptions, Severity, TrainingTask, check, find_pairs, find_pairs_with};
use std::fs;

#[test]
fn channels_of_one_file_are_paired() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both.ome.tif");
    let (shape, raw, labels) = tiny(1);
    let array = cytoscope_volume::Array::new(
        "CZYX".parse().unwrap(),
        [&[2], &shape[..]].concat(),
        [raw.clone(), labels].concat(),
    )
    .unwrap();
    let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
    cytoscope_formats::write_array(&path, &array, &spec).unwrap();
    assert!(find_pairs(&path, TrainingTask::LabelFree).unwrap_err().to_string().contains("two channels"));
    let options =
        FindOptions { same_file: true, image_channel: Some(0), target_channel: Some(1), ..FindOptions::default() };
    for from in [folder.path(), path.as_path()] {
        let dataset = find_pairs_with(from, TrainingTask::LabelFree, &options).unwrap();
        assert_eq!(dataset.conventions, [Convention::Channels]);
        assert_eq!((dataset.pairs[0].image.channel, dataset.pairs[0].target.channel), (Some(0), Some(1)));
        let report = check(&dataset, &Default::default());
        assert_eq!(report.of(Severity::Error).count(), 0, "{:?}", report.problems);
        let mean = raw.iter().map(|v| f64::from(*v)).sum::<f64>() / raw.len() as f64;
        assert!((report.pairs[0].intensities.unwrap().mean - mean).abs() < 1e-9);
    }
}

/// Parses channels by number or name.
fn channels(listed: &[&str]) -> Vec<ChannelRef> {
    listed.iter().map(|channel| channel.parse::<ChannelRef>().unwrap()).collect()
}

#[test]
fn channels_of_a_file_are_listed_by_name_or_number() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, raw, labels) = tiny(1);
    let write_named = |file: &str, names: [&str; 3]| {
        let other: Vec<u16> = raw.iter().map(|v| v + 1).collect();
        let values = [raw.clone(), other, labels.clone()].concat();
        let shape = [&[3], &shape[..]].concat();
        let array = cytoscope_volume::Array::new("CZYX".parse().unwrap(), shape, values).unwrap();
        let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
        spec.channels = names.map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
        cytoscope_formats::write_array(&folder.path().join(file), &array, &spec).unwrap();
    };
    write_named("a.ome.tif", ["Nuclei", "Membrane", "Cells"]);
    write_named("b.ome.tif", ["Nuclei", "Actin", "Cells"]);
    let options = FindOptions {
        same_file: true,
        image_channels: channels(&["membrane", "0"]),
        target_channels: channels(&["cells"]),
        ..FindOptions::default()
    };
    let dataset = find_pairs_with(folder.path(), TrainingTask::Segmentation, &options).unwrap();
    let [pair] = dataset.pairs.as_slice() else { panic!("{:?}", dataset.pairs) };
    assert_eq!(pair.images().map(|image| image.channel).collect::<Vec<_>>(), [Some(1), Some(0)]);
    assert_eq!(pair.targets().map(|target| target.channel).collect::<Vec<_>>(), [Some(2)]);
    let [problem] = dataset.problems.as_slice() else { panic!("{:?}", dataset.problems) };
    assert!(problem.file.ends_with("b.ome.tif") && problem.message.contains("\"membrane\""), "{problem:?}");
    assert!(problem.next_step.contains("1 (Actin)") && problem.next_step.contains("data.channels"), "{problem:?}");
    assert_eq!(check(&dataset, &Default::default()).usable(&dataset).len(), 1);
}

/// Chooses a label image by name or number.
fn labels(channel: &str) -> FindOptions {
    FindOptions { labels_channel: Some(channel.parse().unwrap()), ..FindOptions::default() }
}

/// Labels that differ from those of [`tiny`]: one object.
fn other_labels(labels: &[u16]) -> Vec<u16> {
    labels.iter().map(|label| u16::from(*label == 1)).collect()
}

#[test]
fn one_of_several_channels_of_labels_is_chosen_by_name_or_number() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, raw, nuclei) = tiny(1);
    write(&folder.path().join("a_raw.tif"), shape, raw);
    let values = [nuclei.clone(), other_labels(&nuclei)].concat();
    let array = cytoscope_volume::Array::new("CZYX".parse().unwrap(), [&[2], &shape[..]].concat(), values).unwrap();
    let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
    spec.channels = ["Nuclei", "Cells"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    cytoscope_formats::write_array(&folder.path().join("a_labels.ome.tif"), &array, &spec).unwrap();
    let find = |options: &FindOptions| find_pairs_with(folder.path(), TrainingTask::Segmentation, options);
    // Without a choice, the channels are listed.
    let dataset = find(&FindOptions::default()).unwrap();
    let report = check(&dataset, &Default::default());
    assert!(!report.pairs[0].usable);
    assert_eq!(report.label_channels(), ["Nuclei", "Cells"]);
    let problem = report.of(Severity::Error).next().unwrap();
    assert!(problem.message.contains("0 (Nuclei), 1 (Cells)"), "{problem:?}");
    assert!(problem.next_step.contains("data.labels_channel"), "{problem:?}");
    for (channel, number, objects) in [("nuclei", 0, 3), ("0", 0, 3), ("CELLS", 1, 1), ("1", 1, 1)] {
        let dataset = find(&labels(channel)).unwrap();
        assert_eq!(dataset.pairs[0].target.channel, Some(number), "{channel}");
        let options = cytoscope_training_data::CheckOptions { semantic: true, ..Default::default() };
        let report = check(&dataset, &options);
        assert_eq!((report.pairs[0].usable, report.pairs[0].objects), (true, Some(objects)), "{channel}");
    }
    let error = find(&labels("membrane")).unwrap_err().to_string();
    assert!(error.contains("\"membrane\"") && error.contains("1 (Cells)"), "{error}");
    assert!(error.contains("data.labels_channel"), "{error}");
}

#[test]
fn one_of_several_label_files_of_an_image_is_chosen_by_name() {
    let (shape, raw, nuclei) = tiny(1);
    let layouts: [[&str; 3]; 6] = [
        ["a_raw.tif", "a_nuclei_labels.tif", "a_cells_labels.tif"],
        ["a.tif", "a_masks_nuclei.tif", "a_masks_cells.tif"],
        ["images/a.tif", "masks/nuclei/a.tif", "masks/cells/a.tif"],
        ["images/a.tif", "masks_nuclei/a.tif", "masks_cells/a.tif"],
        ["raw/a.tif", "nuclei/a.tif", "cells/a.tif"],
        ["x/a.tif", "x/n.tif", "x/c.tif"],
    ];
    for [image, nuclei_file, cells_file] in layouts {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(image), shape, raw.clone());
        write(&folder.path().join(nuclei_file), shape, nuclei.clone());
        write(&folder.path().join(cells_file), shape, other_labels(&nuclei));
        if image == "x/a.tif" {
            fs::write(folder.path().join("pairs.csv"), "raw,nuclei,cells\nx/a.tif,x/n.tif,x/c.tif\n").unwrap();
        }
        for (name, file) in [("nuclei", nuclei_file), ("Cells", cells_file)] {
            let dataset = find_pairs_with(folder.path(), TrainingTask::Segmentation, &labels(name)).unwrap();
            let [pair] = dataset.pairs.as_slice() else { panic!("{image} {name}: {:?}", dataset.pairs) };
            assert_eq!(pair.target.path, folder.path().join(file), "{name}");
            assert_eq!(dataset.problems, [], "{image} {name}");
            let options = cytoscope_training_data::CheckOptions { semantic: true, ..Default::default() };
            assert!(check(&dataset, &options).pairs[0].usable);
        }
    }
}

#[test]
fn label_files_of_an_image_are_listed_if_none_is_chosen() {
    let (shape, raw, nuclei) = tiny(1);
    for [image, one, other] in [
        ["a_raw.tif", "a_nuclei_labels.tif", "a_cells_labels.tif"],
        ["a.tif", "a_masks_nuclei.tif", "a_masks_cells.tif"],
        ["images/a.tif", "masks/nuclei/a.tif", "masks/cells/a.tif"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join(image), shape, raw.clone());
        write(&folder.path().join(one), shape, nuclei.clone());
        write(&folder.path().join(other), shape, other_labels(&nuclei));
        for options in [FindOptions::default(), labels("membrane")] {
            let error = find_pairs_with(folder.path(), TrainingTask::Segmentation, &options).unwrap_err().to_string();
            assert!(error.contains("cells, nuclei") && error.contains("data.labels_channel"), "{image}: {error}");
        }
        // Labels without a name are used, and the others mentioned.
        if image == "a_raw.tif" {
            write(&folder.path().join("a_labels.tif"), shape, nuclei.clone());
            let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
            assert_eq!(names(&dataset), vec![("a".to_owned(), "a_raw.tif".to_owned(), "a_labels.tif".to_owned())]);
            let [problem] = dataset.problems.as_slice() else { panic!("{:?}", dataset.problems) };
            assert!(problem.severity == Severity::Warning && problem.next_step.contains("data.labels_channel"));
        }
    }
}

#[test]
fn channels_of_nnunet_are_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (number, image) in ["imagesTr/a_0000.tif", "imagesTr/a_0001.tif", "imagesTr/b_0000.tif"].iter().enumerate() {
        tiny_pair(
            &at(image),
            &at(&image.replace("images", "labels").replace("_0000", "").replace("_0001", "")),
            number,
        );
    }
    std::fs::write(at("dataset.json"), r#"{"file_ending": ".tif"}"#).unwrap();
    let find = |listed: &[&str]| {
        let options = FindOptions { image_channels: channels(listed), ..FindOptions::default() };
        find_pairs_with(folder.path(), TrainingTask::Segmentation, &options)
    };
    let dataset = find(&["1", "0"]).unwrap();
    let [pair] = dataset.pairs.as_slice() else { panic!("{:?}", dataset.pairs) };
    let files: Vec<_> = pair.images().map(|image| (image.path.clone(), image.channel)).collect();
    assert_eq!(files, [(at("imagesTr/a_0001.tif"), Some(0)), (at("imagesTr/a_0000.tif"), Some(0))]);
    assert!(dataset.problems.iter().any(|p| p.message.contains("case b has no channel 1")), "{:?}", dataset.problems);
    assert!(find(&["nuclei"]).unwrap_err().to_string().contains("0 for _0000"));
}

#[test]
fn an_image_whose_name_looks_like_a_label_image_keeps_its_labels() {
    let folder = tempfile::tempdir().unwrap();
    for (image, target) in [("exp.tif", "exp_masks.tif"), ("exp_seg_1.tif", "exp_seg_1_masks.tif")] {
        tiny_pair(&folder.path().join(image), &folder.path().join(target), 1);
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(dataset.pairs.len(), 2, "{:?}", dataset.problems);
    // The chosen name is a channel of the labels, and the end of the image's own name.
    let folder = tempfile::tempdir().unwrap();
    let (shape, raw, nuclei) = tiny(1);
    write(&folder.path().join("x_nuclei.tif"), shape, raw);
    let values = [other_labels(&nuclei), nuclei].concat();
    let array = cytoscope_volume::Array::new("CZYX".parse().unwrap(), [&[2], &shape[..]].concat(), values).unwrap();
    let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
    spec.channels = ["Cells", "Nuclei"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    cytoscope_formats::write_array(&folder.path().join("x_nuclei_labels.ome.tif"), &array, &spec).unwrap();
    let dataset = find_pairs_with(folder.path(), TrainingTask::Segmentation, &labels("nuclei")).unwrap();
    assert_eq!(dataset.pairs[0].target.channel, Some(1), "{:?}", dataset.problems);
}

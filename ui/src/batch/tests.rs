//! Names of converted files, the list of files, and the folders of dialogs.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::document::Overlay;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_volume::Array;

#[test]
fn converted_files_have_the_name_of_their_stack() {
    let mut batch = Batch { format: ConvertFormat::OmeZarr, ..Batch::default() };
    assert_eq!(batch.converted_path(Path::new("/a/b.ome.tif")), Path::new("/a/b.zarr"));
    batch.format = ConvertFormat::ZippedOmeZarr;
    assert_eq!(batch.converted_path(Path::new("/a/b.zarr")), Path::new("/a/b.ozx"));
    batch.folder = Some(PathBuf::from("/out"));
    batch.format = ConvertFormat::OmeTiff;
    assert_eq!(batch.converted_path(Path::new("/a/embryo 1.czi")), Path::new("/out/embryo 1.ome.tif"));
    assert_eq!(batch.converted_path(Path::new("/a/b.nii.gz")), Path::new("/out/b.ome.tif"));
    (batch.channel, batch.time) = (Some(1), Some(0));
    assert_eq!(batch.converted_path(Path::new("/a/b.nii.gz")), Path::new("/out/b_c1_t0.ome.tif"));
}

#[test]
fn every_format_converts_to_a_name_that_selects_its_file_format() {
    for format in ConvertFormat::ALL {
        let output = Batch { format, ..Batch::default() }.converted_path(Path::new("/a/b.lsm"));
        let container = cytoscope_formats::container_for_path(&output).ok();
        let expected = match format {
            ConvertFormat::OmeTiff => Some(Container::OmeTiff),
            ConvertFormat::ImageJ => Some(Container::ImageJ),
            ConvertFormat::OmeZarr | ConvertFormat::ZippedOmeZarr => None,
            ConvertFormat::Npy => Some(Container::Npy),
            ConvertFormat::Cellpose => Some(Container::Cellpose),
            ConvertFormat::Rois | ConvertFormat::Roi => Some(Container::RoiSet),
        };
        assert_eq!(container, expected, "{}", output.display());
        let is_zarr = cytoscope_formats::is_zarr_name(&output) || cytoscope_formats::is_zarr_zip_name(&output);
        assert_eq!(is_zarr, format.holds_labels(), "{}", output.display());
    }
    let mut batch = Batch { format: ConvertFormat::Rois, ..Batch::default() };
    assert_eq!(batch.converted_path(Path::new("/a/b.tif")), Path::new("/a/b.zip"));
    batch.format = ConvertFormat::Roi;
    assert_eq!(batch.converted_path(Path::new("/a/b.tif")), Path::new("/a/b.roi"));
}

#[test]
fn labels_of_one_time_point_are_stored_with_that_time_point_only() {
    let folder = tempfile::tempdir().unwrap();
    let [stack, labels] = ["stack.tif", "stack_labels.tif"].map(|name| folder.path().join(name));
    for (path, axes, shape) in [(&stack, "TZYX", vec![3, 2, 3, 4]), (&labels, "ZYX", vec![2, 3, 4])] {
        let values = vec![1u16; shape.iter().product()];
        let array = Array::new(axes.parse().unwrap(), shape, values).unwrap();
        write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    }
    let mut document = Document::open(&stack, None, 0).unwrap();
    let overlay = |only_time| {
        let opened = Document::overlay(&labels, Role::Labels, ([2, 3, 4], 3), None).unwrap();
        Overlay { only_time, ..opened }
    };
    let mut batch = Batch { files: vec![stack], format: ConvertFormat::OmeZarr, with_labels: true, ..Batch::default() };
    // One file for all time points.
    document.put(overlay(None));
    assert_eq!(batch.labels_problem(&document), None);
    document.put(overlay(Some(1)));
    for (time, is_refused) in [(None, true), (Some(0), true), (Some(1), false)] {
        batch.time = time;
        let problem = batch.labels_problem(&document);
        assert_eq!(problem.is_some_and(|details| details.contains("time point 2")), is_refused, "{time:?}");
    }
    // Corrected labels of the shown time point.
    document.put(overlay(None));
    (document.time, document.saved_labels) = (2, Some(labels.clone()));
    assert!(batch.labels_problem(&document).is_some_and(|details| details.contains("time point 3")));
    batch.format = ConvertFormat::OmeTiff;
    assert_eq!(batch.labels_problem(&document), None, "no labels are stored");
}

#[test]
fn files_of_the_same_name_do_not_replace_each_other_in_a_folder() {
    let files = vec![PathBuf::from("/a/s.tif"), PathBuf::from("/b/s.czi")];
    let mut batch = Batch { files, ..Batch::default() };
    assert_eq!(batch.clash(), None);
    batch.folder = Some(PathBuf::from("/out"));
    let clash = batch.clash().unwrap();
    assert_eq!(clash.inputs, [Path::new("/a/s.tif"), Path::new("/b/s.czi")]);
    let details = clash.details();
    assert!(details.contains("would both be converted to s.ome.tif") && details.contains("beside each"), "{details}");
}

#[test]
fn a_series_and_a_file_with_its_name_do_not_replace_each_other() {
    let clash = |names: &[&str], all_series: bool| {
        let files = names.iter().map(PathBuf::from).collect();
        let batch = Batch { files, all_series, ..Batch::default() };
        batch.clash().map(|clash| (clash.inputs.map(Path::to_owned), clash.details()))
    };
    let files = [PathBuf::from("/a/s.czi"), PathBuf::from("/a/s_s1.czi")];
    for names in [["/a/s.czi", "/a/s_s1.czi"], ["/a/s_s1.czi", "/a/s.czi"]] {
        let (inputs, details) = clash(&names, true).unwrap();
        assert_eq!(inputs, files);
        assert!(details.contains("both be converted to s_s1.ome.tif"), "{details}");
        assert!(details.contains("without \"All series\""), "{details}");
        assert_eq!(clash(&names, false), None);
    }
    for other in ["/b/s_s1.czi", "/a/s_s.czi", "/a/s_s01.czi", "/a/s_s0.czi", "/a/s_1.czi", "/a/s_s1_s2.czi"] {
        assert_eq!(clash(&["/a/s.czi", other], true), None, "{other}");
    }
}

#[test]
fn all_series_are_converted_beside_the_first_one() {
    let mut batch = Batch { all_series: true, ..Batch::default() };
    let input = PathBuf::from("/a/plate.czi");
    batch.series.insert(input.clone(), 2);
    let output = batch.converted_path(&input);
    assert_eq!(output, Path::new("/a/plate.ome.tif"));
    for (file, is_series) in [
        ("/a/plate_s1.ome.tif", true),
        ("/a/plate_s12.ome.tif", true),
        ("/a/plate_s.ome.tif", false),
        ("/a/plate_s1.tif", false),
        ("/a/plates1.ome.tif", false),
        ("/b/plate_s1.ome.tif", false),
    ] {
        assert_eq!(is_series_of(Path::new(file), &output), is_series, "{file}");
    }
}

#[test]
fn the_stack_of_regions_matters_for_roi_sets_only() {
    let has_regions = |file: &str, format| Batch { files: vec![file.into()], format, ..Batch::default() }.has_regions();
    assert!(has_regions("/a/rois.zip", ConvertFormat::OmeTiff) && has_regions("/a/one.ROI", ConvertFormat::Npy));
    assert!(has_regions("/a/labels.tif", ConvertFormat::Rois) && has_regions("/a/labels.tif", ConvertFormat::Roi));
    assert!(!has_regions("/a/labels.tif", ConvertFormat::OmeTiff) && !has_regions("/a/b.zarr.zip", ConvertFormat::Npy));
}

#[test]
fn the_first_files_and_notes_of_conversions_are_listed_and_the_others_counted() {
    let notes = ["a note".to_owned(), "another note".to_owned()];
    assert_eq!(converted_details(&[PathBuf::from("/a.ome.tif")], &notes), "/a.ome.tif\na note\nanother note");
    let many: Vec<PathBuf> = (0..MAX_CONVERTED).map(|i| PathBuf::from(format!("/{i}.ome.tif"))).collect();
    let notes: Vec<String> = (0..=LISTED_NOTES).map(|i| format!("note {i}")).collect();
    let details = converted_details(&many, &notes);
    assert_eq!(details.lines().count(), LISTED_FILES + 1 + LISTED_NOTES + 1);
    assert!(details.contains("\n1,980 further files\nnote 0\n") && details.ends_with("\n1 further note"), "{details}");
}

#[test]
fn a_file_is_listed_once() {
    let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let mut batch = Batch { files: paths(&["/b", "/a"]), ..Batch::default() };
    let _ = batch.listed(Expanded { files: paths(&["/a", "/c", "/c"]), ..Expanded::default() });
    assert_eq!(batch.files, paths(&["/b", "/a", "/c"]));
}

#[test]
fn a_folder_that_cannot_be_read_is_reported_and_not_called_empty() {
    let unreadable = vec!["/a: the folder cannot be read: permission denied".to_owned()];
    let effects = Batch::default().listed(Expanded { unreadable, ..Expanded::default() });
    let level = |effect| match effect {
        crate::effect::Effect::Notify { level, .. } => Some(level),
        _ => None,
    };
    let levels: Vec<_> = effects.into_iter().filter_map(level).collect();
    assert_eq!(levels, [crate::notifications::Level::Error]);
}

#[test]
fn dialogs_start_beside_a_chosen_file_and_in_a_chosen_folder() {
    for (chosen, folder) in [("/a/p.ome.tif", "/a"), ("/a/p.zarr", "/a"), ("/a/results", "/a/results")] {
        assert_eq!(start_folder(Path::new(chosen)), Some(Path::new(folder)));
    }
}

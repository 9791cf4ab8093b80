//! Training data in tables of files: OME-Zarr folders, folders of slices, results of predictions and regions of interest as
//! images and targets.

use crate::common::{names, tiny, tiny_pair, write};
use cytoscope_formats::{PREDICTION_KIND, SeriesChoice, ZarrImageSpec, ZarrWriter, pack_zarr};
use cytoscope_storage::Overwrite;
use cytoscope_training_data::{
    Convention, FindOptions, Part, Severity, TrainingTask, check, find_pairs, find_pairs_with,
};
use cytoscope_volume::{DType, Samples};
use std::fs;
use std::path::Path;

#[test]
fn tables_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    for (i, n) in ["a", "b", "c"].into_iter().enumerate() {
        tiny_pair(&at(&format!("d/{n}.tif")), &at(&format!("e/{n}.tif")), i);
    }
    fs::write(at("train.csv"), "raw,seg\nd/a.tif,e/a.tif\nd/b.tif,e/b.tif\nd/x.tif,e/x.tif\n").unwrap();
    fs::write(at("valid.csv"), "\u{feff}seg,other,raw\ne/c.tif,7,d/c.tif\n").unwrap();
    fs::write(at("cells.csv"), "label,volume\n1,2\n").unwrap();
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let parts: Vec<_> = dataset.pairs.iter().map(|p| (p.name.as_str(), p.part)).collect();
    assert_eq!(parts, [("a", Some(Part::Train)), ("b", Some(Part::Train)), ("c", Some(Part::Validation))]);
    assert_eq!(dataset.problems.len(), 1);
    assert!(dataset.problems[0].message.contains("line 4"), "{:?}", dataset.problems);
    // Empty lines and lines in quoted cells count, whatever ends a line.
    for end in ["\n", "\r\n", "\r"] {
        let rows = ["raw,seg,note", "d/a.tif,e/a.tif,\"two\nlines\"", "", "", "d/x.tif,e/x.tif,", "d/y.tif,e/y.tif,"];
        fs::write(at("gaps.csv"), rows.join("\n").replace('\n', end)).unwrap();
        let gaps = find_pairs(&at("gaps.csv"), TrainingTask::Segmentation).unwrap();
        let named = |line: &str| gaps.problems.iter().any(|problem| problem.message.contains(line));
        assert_eq!((gaps.problems.len(), named("line 6 "), named("line 7 ")), (2, true, true), "{:?}", gaps.problems);
    }
    fs::remove_file(at("gaps.csv")).unwrap();
    // A table with a column for the part.
    fs::write(at("all.csv"), "raw,seg,fold\nd/a.tif,e/a.tif,test\nd/b.tif,e/b.tif,val\nd/c.tif,e/c.tif,odd\n").unwrap();
    let options = FindOptions { split_column: Some("fold".into()), ..FindOptions::default() };
    let all = find_pairs_with(&at("all.csv"), TrainingTask::Segmentation, &options).unwrap();
    let parts: Vec<_> = all.pairs.iter().map(|p| p.part).collect();
    assert_eq!(parts, [Some(Part::Test), Some(Part::Validation), None]);
    assert!(all.problems[0].message.contains("\"odd\""));
    // Weights: a number, an empty cell, and an invalid word.
    fs::write(at("w.csv"), "raw,seg,weight\nd/a.tif,e/a.tif,8\nd/b.tif,e/b.tif,\nd/c.tif,e/c.tif,often\n").unwrap();
    let weighted = find_pairs(&at("w.csv"), TrainingTask::Segmentation).unwrap();
    assert_eq!(weighted.pairs.iter().map(|p| p.weight).collect::<Vec<_>>(), [8.0, 1.0, 1.0]);
    assert!(weighted.problems[0].message.contains("often"), "{:?}", weighted.problems);
    // The ignore label is the same for all rows.
    fs::write(at("i.csv"), "raw,seg,ignore\nd/a.tif,e/a.tif,65535\nd/b.tif,e/b.tif,\n").unwrap();
    assert_eq!(find_pairs(&at("i.csv"), TrainingTask::Segmentation).unwrap().ignore_label, Some(65535));
    fs::write(at("i.csv"), "raw,seg,ignore\nd/a.tif,e/a.tif,65535\nd/b.tif,e/b.tif,255\n").unwrap();
    let error = find_pairs(&at("i.csv"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("255") && error.contains("65535"), "{error}");
    // Wrong columns.
    let error = find_pairs(&at("cells.csv"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("raw and seg"), "{error}");
    for (text, problem, next_step) in [
        ("", "names no columns", "raw and seg"),
        ("raw;seg\nd/a.tif;e/a.tif\n", "raw;seg", "with commas"),
        ("raw,seg\n", "no rows", "add a line"),
    ] {
        fs::write(at("none.csv"), text).unwrap();
        let error = find_pairs(&at("none.csv"), TrainingTask::Segmentation).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains(next_step), "{error}");
    }
    // Label-free.
    fs::write(at("lf.csv"), "brightfield,signal\nd/a.tif,d/b.tif\n").unwrap();
    assert_eq!(find_pairs(&at("lf.csv"), TrainingTask::LabelFree).unwrap().pairs.len(), 1);
}

#[test]
fn files_are_found_by_names_in_another_unicode_form() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    tiny_pair(&at("e\u{301}/a\u{308}.tif"), &at("e\u{301}/a\u{308}_labels.tif"), 0);
    let row = "\u{e9}/\u{e4}.tif,\u{e9}/\u{e4}_labels.tif";
    fs::write(at("pairs.csv"), format!("raw,seg\n{row}\n\u{e9}/\u{f6}.tif,\u{e9}/\u{f6}_labels.tif\n")).unwrap();
    let dataset = find_pairs(&at("pairs.csv"), TrainingTask::Segmentation).unwrap();
    let [pair] = dataset.pairs.as_slice() else { panic!("{dataset:?}") };
    assert!(pair.image.path.is_file() && pair.target.path.is_file(), "{pair:?}");
    assert_eq!(dataset.problems.len(), 1);
    assert!(dataset.problems[0].message.contains("line 3"), "{:?}", dataset.problems);
}

/// Writes a stack as an OME-Zarr folder.
fn write_zarr(path: &Path, [depth, height, width]: [usize; 3], samples: Vec<u16>) {
    let spec = ZarrImageSpec::new("stack", [1, 1, depth, height, width], DType::U16);
    let mut writer = ZarrWriter::create(path, spec).unwrap();
    let slices = writer.slab_depth(0);
    for (i, slab) in samples.chunks(slices * height * width).enumerate() {
        writer.write(0, [0, 0, i * slices], &Samples::U16(slab.to_vec())).unwrap();
    }
    writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
}

#[test]
fn ome_zarr_folders_are_found_like_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let (shape, raw, labels) = tiny(1);
    write_zarr(&at("cell.ome.zarr"), shape, raw);
    write_zarr(&at("cell_masks.zarr"), shape, labels);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), [("cell".to_owned(), "cell.ome.zarr".to_owned(), "cell_masks.zarr".to_owned())]);
    assert_eq!(dataset.problems, []);
    assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    // In a table; a folder with something else is named.
    fs::create_dir(at("other")).unwrap();
    fs::write(at("t.csv"), "raw,seg\ncell.ome.zarr,cell_masks.zarr\nother,cell_masks.zarr\n").unwrap();
    let table = find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap();
    assert_eq!(table.pairs.len(), 1);
    let [problem] = table.problems.as_slice() else { panic!("{:?}", table.problems) };
    assert!(problem.file.ends_with("other") && problem.message.contains("not an OME-Zarr"), "{problem:?}");
}

#[test]
fn folders_of_numbered_slices_are_stacks_in_tables() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let ([depth, height, width], raw, labels) = tiny(1);
    let write_slices = |name: &str, samples: &[u16]| {
        for (z, slice) in samples.chunks(height * width).enumerate() {
            write(&at(&format!("{name}_{z:03}.tif")), [1, height, width], slice.to_vec());
        }
    };
    write_slices("raw/s", &raw);
    write_slices("seg/s", &labels);
    let shapes_in = |table: &str| {
        fs::write(at("t.csv"), format!("raw,seg\n{table}\n")).unwrap();
        let dataset = find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap();
        assert_eq!(dataset.problems, []);
        let report = check(&dataset, &Default::default());
        report.pairs.iter().map(|pair| pair.shape_zyx).collect::<Vec<_>>()
    };
    assert_eq!(shapes_in("raw,seg"), [[depth, height, width]]);
    // A file is an image of its own.
    assert_eq!(shapes_in("raw/s_000.tif,seg/s_000.tif\nraw/s_001.tif,seg/s_001.tif"), [[1, height, width]; 2]);
    // The labels of a stack do not fit one of its slices, and the advice is to name the folder of all.
    write(&at("whole.tif"), [depth, height, width], labels);
    fs::write(at("t.csv"), "raw,seg\nraw/s_000.tif,whole.tif\n").unwrap();
    let report = check(&find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap(), &Default::default());
    let errors: Vec<_> = report.of(Severity::Error).collect();
    assert!(errors.iter().any(|e| e.next_step.contains("name their folder in a table")), "{errors:?}");
    // It is not clear which of two series is meant.
    write_slices("raw/other", &raw);
    fs::write(at("t.csv"), "raw,seg\nraw,seg\n").unwrap();
    let error = find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("2 series of images"), "{error}");
}

#[test]
fn the_target_of_a_prediction_is_its_labels_not_its_maps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let ([depth, height, width], raw, labels) = tiny(1);
    write_zarr(&at("cell.zarr"), [depth, height, width], raw);
    let spec = |name, dtype| ZarrImageSpec::new(name, [1, 1, depth, height, width], dtype);
    let maps = at("cell_probability.zarr");
    let written = |path: &Path| {
        let mut writer = ZarrWriter::create_listed(path, spec("maps", DType::F32)).unwrap();
        let objects = writer.add_labels(spec("objects", DType::U16)).unwrap();
        writer.write(0, [0; 3], &Samples::F32(vec![0.5; labels.len()])).unwrap();
        writer.write(objects, [0; 3], &Samples::U16(labels.clone())).unwrap();
        writer
    };
    let _ = written(&maps).finish().unwrap().finish(PREDICTION_KIND).unwrap().publish().unwrap();
    fs::write(at("t.csv"), "raw,seg\ncell.zarr,cell_probability.zarr\n").unwrap();
    let dataset = find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap();
    assert_eq!(dataset.pairs[0].target.path, maps.join("labels/objects"));
    assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    // So can those in one zip file.
    let zip = at("cell_probability.ozx");
    pack_zarr(written(&zip).finish().unwrap(), &|| true).unwrap().unwrap().publish().unwrap();
    fs::write(at("z.csv"), "raw,seg\ncell.zarr,cell_probability.ozx\n").unwrap();
    let dataset = find_pairs(&at("z.csv"), TrainingTask::Segmentation).unwrap();
    assert_eq!((&dataset.pairs[0].target.path, dataset.pairs[0].target.series), (&zip, 1));
    assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    // Maps can be the target of label-free training.
    fs::write(at("t.csv"), "brightfield,signal\ncell.zarr,cell_probability.zarr\n").unwrap();
    let dataset = find_pairs(&at("t.csv"), TrainingTask::LabelFree).unwrap();
    assert_eq!(dataset.pairs[0].target.path, maps);
}

#[test]
fn the_labels_of_a_table_are_the_label_image_of_an_ome_zarr_folder_if_it_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let ([depth, height, width], raw, labels) = tiny(1);
    let spec = |name| ZarrImageSpec::new(name, [1, 1, depth, height, width], DType::U16);
    let mut writer = ZarrWriter::create(&at("cell.zarr"), spec("cell")).unwrap();
    let cells = writer.add_labels(spec("cells")).unwrap();
    writer.write(0, [0; 3], &Samples::U16(raw)).unwrap();
    writer.write(cells, [0; 3], &Samples::U16(labels)).unwrap();
    writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
    fs::write(at("t.csv"), "raw,seg\ncell.zarr,cell.zarr\n").unwrap();
    for series in [SeriesChoice::default(), SeriesChoice::All] {
        let options = FindOptions { series, ..FindOptions::default() };
        let dataset = find_pairs_with(&at("t.csv"), TrainingTask::Segmentation, &options).unwrap();
        assert_eq!((dataset.pairs[0].image.series, dataset.pairs[0].target.series), (0, 1));
        assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    }
}

#[test]
fn regions_of_interest_in_a_table_have_the_extents_of_their_image() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let (shape, raw, labels) = tiny(1);
    write(&at("cell.tif"), shape, raw);
    write(&at("rois.zip"), shape, labels);
    fs::write(at("t.csv"), "raw,seg\ncell.tif,rois.zip\n").unwrap();
    let dataset = find_pairs(&at("t.csv"), TrainingTask::Segmentation).unwrap();
    assert_eq!(dataset.pairs[0].target.drawn_on_tzyx, Some([1, 4, 8, 10]));
    assert_eq!(dataset.pairs[0].image.drawn_on_tzyx, None);
    assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
}

#[test]
fn a_folder_of_corrections_is_found_by_its_table() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    tiny_pair(&at("cell_raw.tif"), &at("cell_labels.tif"), 1);
    tiny_pair(&at("cell-2_raw.tif"), &at("cell-2_labels.tif"), 2);
    fs::write(at("dataset.csv"), "raw,seg\ncell_raw.tif,cell_labels.tif\ncell-2_raw.tif,cell-2_labels.tif\n").unwrap();
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(dataset.conventions, [Convention::Table]);
    assert_eq!(dataset.pairs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["cell", "cell-2"]);
    assert_eq!(dataset.problems, []);
}

#[test]
fn a_table_that_is_too_long_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.csv");
    let file = fs::File::create(&path).unwrap();
    file.set_len(cytoscope_training_data::limits::MAX_TABLE_BYTES + 1).unwrap();
    let error = find_pairs(&path, TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("MAX_TABLE_BYTES"), "{error}");
}

#[test]
fn too_many_rows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    // Rows that are not text count, too.
    for row in [&b"a,b\n"[..], b"\xff\n"] {
        let rows = row.repeat(cytoscope_training_data::limits::MAX_PAIRS as usize + 1);
        fs::write(&path, [&b"raw,seg\n"[..], &rows].concat()).unwrap();
        let error = find_pairs(&path, TrainingTask::Segmentation).unwrap_err().to_string();
        assert!(error.contains("MAX_PAIRS"), "{error}");
    }
}

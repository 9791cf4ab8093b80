//! OME-Zarr folders with several series: plates, of which little is read when they are opened again, and the layout of
//! bioformats2raw.

use crate::common::zarr::{made, write_zarr};
use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, SeriesChoice, open};
use cytoscope_volume::{Array, Samples};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Writes the metadata of a group, as if they had been written minutes before the test.
fn write_group(group: &Path, ome: Value, minutes_ago: u64) -> u64 {
    std::fs::create_dir_all(group).unwrap();
    let json = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}}).to_string();
    let path = group.join("zarr.json");
    std::fs::write(&path, &json).unwrap();
    let changed = SystemTime::now() - Duration::from_secs(60 * minutes_ago);
    File::options().write(true).open(path).unwrap().set_modified(changed).unwrap();
    json.len() as u64
}

/// Metadata of a well with images of these names.
fn well(images: &[&str]) -> Value {
    let images: Vec<Value> = images.iter().map(|path| json!({"path": path})).collect();
    json!({"well": {"images": images}})
}

/// Writes an image of this depth.
fn write_image(path: &Path, depth: usize) {
    let axes = "TZCYX".parse().unwrap();
    let array = Array::new(axes, vec![1, depth, 1, 5, 6], Samples::U16(vec![depth as u16; depth * 30])).unwrap();
    write_zarr(path, &array, |_| {});
}

fn open_series(plate: &Path, series: usize) -> Image {
    open(plate, &OpenOptions { series, ..OpenOptions::default() }).unwrap()
}

#[test]
fn a_plate_of_1536_wells_with_25_fields_each_opens() {
    let folder = tempfile::tempdir().unwrap();
    let plate = folder.path().join("plate.zarr");
    let fields: Vec<String> = (0..25).map(|field| field.to_string()).collect();
    let fields = well(&fields.iter().map(String::as_str).collect::<Vec<_>>());
    let wells: Vec<String> = (0..32).flat_map(|row| (1..=48).map(move |column| format!("{row}/{column}"))).collect();
    let listed: Vec<Value> = wells.iter().map(|path| json!({"path": path})).collect();
    let root_bytes = write_group(&plate, json!({"plate": {"wells": listed}}), 5);
    let wells_bytes: u64 = wells.iter().map(|path| write_group(&plate.join(path), fields.clone(), 5)).sum();
    write_image(&plate.join("31/48/24"), 3);
    write_image(&plate.join("0/1/0"), 2);

    let last = open_series(&plate, 38_399);
    assert_eq!((last.meta().series_count, last.meta().shape[0]), (38_400, 3));
    assert_eq!(last.meta().series_names[38_399], "31/48/24");
    assert!(last.bytes_read() > root_bytes + wells_bytes);
    // The metadata of the wells are not read again for the next image.
    let first = open_series(&plate, 0);
    assert_eq!((first.meta().shape[0], &first.meta().series_names), (2, &last.meta().series_names));
    assert!(first.bytes_read() < last.bytes_read() - wells_bytes + root_bytes, "{} bytes", first.bytes_read());
    let named = SeriesChoice::Name("31/48/24".to_owned()).open(&plate, &OpenOptions::default()).unwrap();
    assert_eq!((named.meta().series, named.meta().shape[0]), (38_399, 3));
}

#[test]
fn too_many_wells_are_refused_with_a_way_to_open_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let wells = vec![json!({"path": "A/1"}); (1 << 16) + 1];
    let plate = made(folder.path(), |root, _| root["attributes"]["ome"] = json!({"plate": {"wells": wells}}));
    let error = open(&plate, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit);
    let text = error.to_string();
    assert!(text.contains("MAX_IMAGES = 65536") && text.contains("open the folder of one of its images"), "{text}");
}

/// A plate of the wells A/1, with one image of two slices, and A/2, which is not stored.
fn small_plate(folder: &Path) -> PathBuf {
    let plate = folder.join("plate.zarr");
    write_group(&plate, json!({"plate": {"wells": [{"path": "A/1"}, {"path": "A/2"}]}}), 5);
    write_group(&plate.join("A/1"), well(&["0"]), 5);
    write_image(&plate.join("A/1/0"), 2);
    plate
}

fn names(plate: &Path) -> Vec<String> {
    open_series(plate, 0).meta().series_names.clone()
}

#[test]
fn wells_and_images_that_appear_or_vanish_between_two_reads_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let plate = small_plate(folder.path());
    assert_eq!(names(&plate), ["A/1/0"]);
    // The plate is still being acquired.
    write_group(&plate.join("A/2"), well(&["0"]), 4);
    write_image(&plate.join("A/2/0"), 4);
    assert_eq!(names(&plate), ["A/1/0", "A/2/0"]);
    assert_eq!(open_series(&plate, 1).meta().shape[0], 4);
    write_group(&plate.join("A/1"), well(&["0", "1"]), 4);
    assert_eq!(names(&plate), ["A/1/0", "A/1/1", "A/2/0"]);
    // Metadata of the same size that name another image.
    write_image(&plate.join("A/1/2"), 5);
    write_group(&plate.join("A/1"), well(&["0", "2"]), 3);
    assert_eq!(open_series(&plate, 1).meta().shape[0], 5);
    std::fs::remove_dir_all(plate.join("A/2")).unwrap();
    assert_eq!(names(&plate), ["A/1/0", "A/1/2"]);
    // Another plate at the same path.
    std::fs::remove_dir_all(&plate).unwrap();
    write_group(&plate, json!({"plate": {"wells": [{"path": "A/1"}]}}), 2);
    write_group(&plate.join("A/1"), well(&["7"]), 2);
    write_image(&plate.join("A/1/7"), 3);
    assert_eq!(names(&plate), ["A/1/7"]);
}

#[test]
fn a_well_that_changes_twice_at_the_same_time_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let plate = small_plate(folder.path());
    write_image(&plate.join("A/1/1"), 3);
    // Some file systems store times in steps of seconds, and clocks of file servers may be fast.
    let moment = SystemTime::now() + Duration::from_secs(60);
    let rewrite = |image: &str| {
        write_group(&plate.join("A/1"), well(&[image]), 0);
        let file = File::options().write(true).open(plate.join("A/1/zarr.json")).unwrap();
        file.set_modified(moment).unwrap();
    };
    rewrite("0");
    assert_eq!(names(&plate), ["A/1/0"]);
    rewrite("1");
    assert_eq!(names(&plate), ["A/1/1"]);
}

#[test]
fn a_well_that_becomes_invalid_is_reported_when_the_plate_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let plate = small_plate(folder.path());
    assert_eq!(names(&plate), ["A/1/0"]);
    std::fs::write(plate.join("A/1/zarr.json"), "{").unwrap();
    let error = open(&plate, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed);
    assert!(error.to_string().contains("A/1/zarr.json is not valid JSON"), "{error}");
}

#[test]
fn the_images_of_a_plate_are_series_that_are_chosen_by_number_or_name() {
    let folder = tempfile::tempdir().unwrap();
    let plate = folder.path().join("plate.zarr");
    let group = |path: &str, ome: Value| {
        std::fs::create_dir_all(plate.join(path)).unwrap();
        let json = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
        std::fs::write(plate.join(path).join("zarr.json"), json.to_string()).unwrap();
    };
    // As bioformats2raw writes plates: the images are listed twice.
    let wells = json!([{"path": "A/1"}, {"path": "A/2"}, {"path": "B/1"}]);
    group("", json!({"plate": {"wells": wells}, "bioformats2raw.layout": 3}));
    group("OME", json!({"series": ["A/1/0.zarr", "A/1/1.zarr", "B/1/0.zarr"]}));
    group("A/1", json!({"well": {"images": [{"path": "0.zarr"}, {"path": "1.zarr"}]}}));
    // A well that was not acquired is not stored.
    group("B/1", json!({"well": {"images": [{"path": "0.zarr"}]}}));
    for (path, depth) in [("A/1/0.zarr", 2), ("A/1/1.zarr", 3), ("B/1/0.zarr", 4)] {
        let array =
            Array::new("TZCYX".parse().unwrap(), vec![1, depth, 1, 5, 6], vec![depth as u16; depth * 30]).unwrap();
        write_zarr(&plate.join(path), &array, |_| {});
    }
    let names = ["A/1/0.zarr", "A/1/1.zarr", "B/1/0.zarr"];
    let opened = |series: &str| {
        let choice: SeriesChoice = series.parse().unwrap();
        choice.open(&plate, &OpenOptions::default())
    };
    for (number, name) in names.iter().enumerate() {
        for chosen in [number.to_string(), name.to_lowercase()] {
            let image = opened(&chosen).unwrap();
            assert_eq!((image.meta().series, image.meta().shape[0]), (number, number + 2), "{chosen}");
            assert_eq!(image.meta().series_names, names);
        }
    }
    let all = SeriesChoice::All.indices_in(&plate, &OpenOptions::default()).unwrap();
    assert_eq!(all, [0, 1, 2]);
    let errors = [("C/1", "no series \"C/1\""), ("3", "no series 3"), ("all", "all 3")];
    for (chosen, words) in errors {
        let error = opened(chosen).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Misused);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(opened("C/1").unwrap_err().to_string().contains("1 (A/1/1.zarr)"));
    // A file of one series has it under every choice.
    let single = plate.join("A/1/1.zarr");
    let choice = SeriesChoice::Index(2);
    assert_eq!(choice.open_or_only(&single, &OpenOptions::default()).unwrap().meta().shape[0], 3);
    assert_eq!(choice.open_or_only(&plate, &OpenOptions::default()).unwrap().meta().shape[0], 4);
}

#[test]
fn label_images_of_the_series_of_bioformats2raw_come_after_the_series() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("several.zarr");
    let group = |path: &str, ome: Value| {
        std::fs::create_dir_all(root.join(path)).unwrap();
        let json = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
        std::fs::write(root.join(path).join("zarr.json"), json.to_string()).unwrap();
    };
    group("", json!({"bioformats2raw.layout": 3}));
    for (path, value) in [("several.zarr/0", 1u16), ("several.zarr/1", 2), ("cells.zarr", 3)] {
        let array = Array::new("TZCYX".parse().unwrap(), vec![1, 2, 1, 4, 4], vec![value; 32]).unwrap();
        write_zarr(&folder.path().join(path), &array, |_| {});
    }
    group("1/labels", json!({"labels": ["cells"]}));
    std::fs::rename(folder.path().join("cells.zarr"), root.join("1/labels/cells")).unwrap();
    let opened = |series: usize| open(&root, &OpenOptions { series, ..OpenOptions::default() }).unwrap();
    assert_eq!(opened(0).meta().series_names, ["0", "1", "1/labels/cells"]);
    let values = [0, 1, 2].map(|series| opened(series).read_all().unwrap().samples().to_f32()[0]);
    assert_eq!(values, [1.0, 2.0, 3.0]);
    assert_eq!([0, 1, 2].map(|series| opened(series).is_label_image()), [false, false, true]);
    // All series are those of stacks.
    assert_eq!(SeriesChoice::All.indices_in(&root, &OpenOptions::default()).unwrap(), [0, 1]);
}

//! Zarr arrays without the metadata of OME-Zarr, laid out as zarr-python and Dask write them.

use crate::common::zarr::made;
use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, containing_zarr_folder, open};
use cytoscope_volume::Samples;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Writes an array of 2 × 3 × 4 bytes that count up, in one chunk, with additional metadata.
fn version_3(path: PathBuf, more: Value) -> PathBuf {
    std::fs::create_dir_all(path.join("c/0/0")).unwrap();
    let mut node = json!({"zarr_format": 3, "node_type": "array", "shape": [2, 3, 4], "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3, 4]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [{"name": "bytes"}], "attributes": {}});
    node.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    std::fs::write(path.join("zarr.json"), node.to_string()).unwrap();
    std::fs::write(path.join("c/0/0/0"), (0..24).collect::<Vec<u8>>()).unwrap();
    path
}

fn opened(path: &Path, axes: Option<&str>) -> Result<Image, FormatErrorKind> {
    let axes = axes.map(|axes| axes.parse().unwrap());
    open(path, &OpenOptions { axes, ..OpenOptions::default() }).map_err(|error| error.kind())
}

/// The axes of an array whose samples count up, and how many notes it has.
fn axes_of(path: &Path, axes: Option<&str>) -> (String, usize) {
    let image = opened(path, axes).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..24).collect()));
    assert_eq!(image.meta().shape, [2, 3, 4]);
    (image.meta().axes.to_string(), image.meta().not_applied.len())
}

#[test]
fn an_array_is_an_image_whose_axes_are_named_given_or_chosen_by_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let unnamed = version_3(folder.path().join("unnamed.zarr"), json!({}));
    assert_eq!(axes_of(&unnamed, None), ("ZYX".to_owned(), 1));
    let note = opened(&unnamed, None).unwrap().meta().not_applied[0].clone();
    assert_eq!(note, "the Zarr array does not name its axes: they are read as ZYX");
    assert_eq!(axes_of(&unnamed, Some("TYX")), ("TYX".to_owned(), 0));
    assert_eq!(containing_zarr_folder(&unnamed.join("zarr.json")), Some(unnamed.clone()));
    let named = version_3(folder.path().join("named.zarr"), json!({"dimension_names": ["c", "y", "x"]}));
    assert_eq!(axes_of(&named, None), ("CYX".to_owned(), 0));
    for (i, names) in
        [json!(["z", "row", "column"]), json!(["y", "y", "x"]), json!(["y", "x"]), json!(null)].iter().enumerate()
    {
        let other = version_3(folder.path().join(format!("{i}.zarr")), json!({"dimension_names": names}));
        assert_eq!(axes_of(&other, None), ("ZYX".to_owned(), 1), "{names}");
        let note = opened(&other, None).unwrap().meta().not_applied[0].clone();
        let expected = if names.is_null() { "does not name its axes".to_owned() } else { format!("its axes {names},") };
        assert!(note.contains(&expected) && note.ends_with("read as ZYX"), "{note}");
    }
    assert_eq!(opened(&unnamed, Some("YX")).unwrap_err(), FormatErrorKind::Misused);
    assert_eq!(opened(&unnamed, Some("TZX")).unwrap_err(), FormatErrorKind::Unsupported);
}

#[test]
fn an_array_of_version_2_needs_no_attributes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.zarr");
    std::fs::create_dir(&path).unwrap();
    let node = json!({"zarr_format": 2, "shape": [2, 3, 4], "chunks": [2, 3, 4], "dtype": "|u1", "order": "C",
        "fill_value": 0, "compressor": null, "filters": null});
    std::fs::write(path.join(".zarray"), node.to_string()).unwrap();
    std::fs::write(path.join("0.0.0"), (0..24).collect::<Vec<u8>>()).unwrap();
    assert_eq!(axes_of(&path, None), ("ZYX".to_owned(), 1));
    // The names of xarray.
    std::fs::write(path.join(".zattrs"), json!({"_ARRAY_DIMENSIONS": ["t", "y", "x"]}).to_string()).unwrap();
    assert_eq!(axes_of(&path, None), ("TYX".to_owned(), 0));
}

#[test]
fn entries_of_an_array_that_are_not_what_they_should_be_are_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("array.zarr");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("0.0.0"), (0..24).collect::<Vec<u8>>()).unwrap();
    let with = |key: &str, value: Value| {
        let mut node = json!({"zarr_format": 2, "shape": [2, 3, 4], "chunks": [2, 3, 4], "dtype": "|u1", "order": "C",
            "fill_value": 0, "compressor": null, "filters": null});
        node[key] = value;
        std::fs::write(path.join(".zarray"), node.to_string()).unwrap();
        opened(&path, None).map(|_| ())
    };
    assert_eq!(with("filters", json!([])), Ok(()));
    assert_eq!(with("filters", json!({"id": "delta", "dtype": "|u1"})), Err(Malformed), "a filter without a list");
    assert_eq!(with("order", json!("F")), Ok(()));
    for order in [json!("A"), json!(["F"]), json!(null)] {
        assert_eq!(with("order", order.clone()), Err(Malformed), "{order}");
    }
    for (i, (list, is_read)) in
        [(json!([]), true), (json!(null), true), (json!({"name": "x"}), false)].iter().enumerate()
    {
        let array = version_3(folder.path().join(format!("{i}.zarr")), json!({"storage_transformers": list}));
        let expected = if *is_read { Ok(()) } else { Err(Unsupported) };
        assert_eq!(opened(&array, None).map(|_| ()), expected, "{list}");
    }
}

#[test]
fn a_level_of_an_image_is_refused_but_an_array_of_another_group_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let image = made(folder.path(), |_, _| {});
    assert_eq!(opened(&image.join("0"), None).unwrap_err(), FormatErrorKind::Unsupported);
    assert!(opened(&image, None).is_ok());
    let group = folder.path().join("group.zarr");
    let array = version_3(group.join("raw"), json!({}));
    std::fs::write(group.join("zarr.json"), json!({"zarr_format": 3, "node_type": "group"}).to_string()).unwrap();
    assert_eq!(axes_of(&array, None), ("ZYX".to_owned(), 1));
    assert_eq!(opened(&group, None).unwrap_err(), FormatErrorKind::Unsupported);
}

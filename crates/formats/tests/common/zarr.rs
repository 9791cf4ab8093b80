//! OME-Zarr folders: fixtures, arrays written by us, and small images with chosen metadata.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cytoscope_formats::{ZarrImageSpec, ZarrWriter};
use cytoscope_storage::Overwrite;
use cytoscope_volume::{Array, Region};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A folder written by zarr-python; `make.py` beside it says how.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ome_zarr").join(name)
}

/// Writes an array with the axes TZCYX.
pub fn write_zarr(path: &Path, array: &Array, change: impl FnOnce(&mut ZarrImageSpec)) {
    let [t, z, c, y, x] = <[usize; 5]>::try_from(array.shape()).unwrap();
    let mut spec = ZarrImageSpec::new("stack", [t, c, z, y, x], array.dtype());
    change(&mut spec);
    let mut writer = ZarrWriter::create(path, spec).unwrap();
    let depth = writer.slab_depth(0);
    for (ti, ci) in (0..t).flat_map(|ti| (0..c).map(move |ci| (ti, ci))) {
        for zi in (0..z).step_by(depth) {
            let slab = Region::whole(array.shape()).with_range(0, ti, 1).with_range(2, ci, 1);
            let slab = array.crop(&slab.with_range(1, zi, depth.min(z - zi))).unwrap();
            writer.write(0, [ti, ci, zi], slab.samples()).unwrap();
        }
    }
    let _ = writer.finish().unwrap().publish(Overwrite::Refuse).unwrap();
}

/// A folder with the metadata of a small image, version 3, changed by `change` (root, array).
pub fn made(folder: &Path, change: impl FnOnce(&mut Value, &mut Value)) -> PathBuf {
    let axes: Vec<Value> = ["z", "y", "x"].iter().map(|a| json!({"name": a, "type": "space"})).collect();
    let mut root = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5",
        "multiscales": [{"axes": axes, "datasets": [{"path": "0", "coordinateTransformations": [
            {"type": "scale", "scale": [1.0, 1.0, 1.0]}]}]}]}}});
    let mut array = json!({"zarr_format": 3, "node_type": "array", "shape": [4, 4, 4], "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4, 4]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 3,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
    change(&mut root, &mut array);
    let path = tempfile::Builder::new().tempdir_in(folder).unwrap().keep();
    std::fs::create_dir(path.join("0")).unwrap();
    std::fs::write(path.join("zarr.json"), root.to_string()).unwrap();
    std::fs::write(path.join("0/zarr.json"), array.to_string()).unwrap();
    path
}

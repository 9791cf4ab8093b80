//! OME-Zarr folders: fixtures, and arrays written by us.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cytoscope_formats::{ZarrImageSpec, ZarrWriter};
use cytoscope_storage::Overwrite;
use cytoscope_volume::{Array, Region};
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

//! HDF5: files of Imaris, BigDataViewer and ilastik, filters and indices of chunks; and the XML of BigDataViewer.
#![no_main]

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all_and_a_part(data);
});

//! TIFF dialects of microscopes (Zeiss LSM, MetaMorph STK, Olympus FluoView, ScanImage, Hamamatsu NDPI): their descriptions,
//! planes and levels.
#![no_main]

mod common;

use cytoscope_formats::{OpenOptions, open_bytes};
use cytoscope_volume::Region;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all_and_a_part(data);
    let options = OpenOptions { limits: common::small_limits(), ..OpenOptions::default() };
    let Ok(image) = open_bytes(data.to_vec(), &options) else { return };
    for (level, shape) in image.meta().levels.iter().map(|level| &level.shape_full).enumerate() {
        let corner = Region { start: vec![0; 6], size: shape.iter().map(|n| (*n).min(16)).collect() };
        if let Ok(read) = image.read(level, &corner) {
            assert_eq!(read.shape(), corner.size);
        }
    }
});

//! ImageJ regions of interest and sets of them, alone and drawn on a stack of known extents.
#![no_main]

mod common;

use cytoscope_formats::OpenOptions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    common::read_all_and_a_part(data);
    let (shape_zyx, times) = (Some([3, 40, 50]), Some(2));
    common::read_with(
        data,
        &OpenOptions { shape_zyx, times, limits: common::small_limits(), ..OpenOptions::default() },
    );
});

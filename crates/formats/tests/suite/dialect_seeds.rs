//! TIFF dialects of microscopes. The files were written by `../data/dialects/make_dialects.py`; tifffile reads the pixels and
//! metadata from them that these tests expect. They are also the seeds of the fuzz target `read_microscope_tiff`.

use crate::common::page_samples;
use cytoscope_formats::{Image, OpenOptions, open_bytes};
use cytoscope_volume::{Region, Samples};

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_microscope_tiff/", $name)).to_vec()
    };
}

fn opened(bytes: Vec<u8>) -> Image {
    open_bytes(bytes, &OpenOptions::default()).unwrap()
}

#[test]
fn lsm_files_are_read_uncompressed_and_compressed() {
    for (bytes, compression) in [(seed!("lsm"), "none"), (seed!("lsm_lzw"), "lzw")] {
        let image = opened(bytes);
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.compression.as_str()), ("lsm", compression));
        assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("TZCYX", [2, 2, 2, 20, 30].as_slice()));
        let v = meta.voxel_size_um;
        for (got, expected) in [(v.z, 0.5), (v.y, 0.2), (v.x, 0.1), (meta.time_interval_secs, 1.5)] {
            assert!((got.unwrap() - expected).abs() < 1e-9, "{got:?}");
        }
        let names: Vec<&str> = meta.channels.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["nuclei", "membrane"]);
        assert_eq!(meta.channels[0].color_rgb, Some([0, 0, 255]));
        // Every pixel of a plane is 10 × page + channel.
        let values = (0..8u8).flat_map(|plane| [10 * (plane / 2) + plane % 2; 600]).collect();
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(values));
        let corner = Region { start: vec![1, 1, 1, 19, 29, 0], size: vec![1; 6] };
        assert_eq!(image.read(0, &corner).unwrap().into_samples(), Samples::U8(vec![31]));
    }
}

#[test]
fn stk_files_have_the_pixel_size_of_the_tag_that_metamorph_writes() {
    let image = opened(seed!("stk"));
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.shape_full.as_slice()), ("metamorph", [1, 3, 1, 2, 2, 1].as_slice()));
    let v = meta.voxel_size_um;
    for (got, expected) in [(v.z, 0.5), (v.y, 0.13), (v.x, 0.13)] {
        assert!((got.unwrap() - expected).abs() < 1e-9, "{got:?}");
    }
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((0..12).collect()));
}

#[test]
fn fluoview_files_have_axes_and_voxel_size() {
    let image = opened(seed!("fluoview"));
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.axes.to_string().as_str()), ("fluoview", "ZCYX"));
    let v = meta.voxel_size_um;
    assert_eq!((v.z, v.y, v.x), (Some(1.5), Some(0.5), Some(0.25)));
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 2, 1, 3]));
}

#[test]
fn scanimage_files_of_three_generations_are_read() {
    let image = opened(seed!("scanimage_flyback"));
    let meta = image.meta();
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("TZCYX", [2, 3, 2, 2, 3].as_slice()));
    assert_eq!((meta.unread_pages, meta.time_interval_secs), (4, Some(0.4)));
    let v = meta.voxel_size_um;
    assert_eq!((v.z, v.y, v.x), (Some(5.0), Some(45.0), Some(30.0)));
    let names: Vec<&str> = meta.channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["Channel 1", "Channel 2"]);
    let expected = page_samples([0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
    assert_eq!(image.read_all().unwrap().into_samples(), expected);
    let image = opened(seed!("scanimage_5"));
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().unread_pages), ("TZYX", 2));
    assert_eq!(image.meta().voxel_size_um.z, Some(2.0));
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 1, 2, 4, 5, 6]));
    let image = opened(seed!("scanimage_3"));
    assert_eq!(image.meta().shape, [3, 2, 2, 3]);
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 3, 1, 4, 2, 5]));
}

#[test]
fn ndpi_levels_are_those_that_tifffile_finds() {
    let image = opened(seed!("ndpi"));
    let shapes: Vec<&[usize]> = image.meta().levels.iter().map(|level| level.shape_full.as_slice()).collect();
    assert_eq!(shapes, [[1, 1, 1, 4, 8, 1], [1, 1, 1, 2, 4, 1]]);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..32).collect()));
}

#[test]
fn damaged_files_are_refused_or_read_but_never_panic() {
    let files = [
        seed!("lsm"),
        seed!("lsm_lzw"),
        seed!("stk"),
        seed!("fluoview"),
        seed!("scanimage_flyback"),
        seed!("scanimage_5"),
        seed!("ndpi"),
    ];
    for file in files {
        for at in (0..file.len()).step_by(23) {
            let mut damaged = file.clone();
            damaged[at] ^= 0xFF;
            for bytes in [damaged, file[..at].to_vec()] {
                let Ok(image) = open_bytes(bytes, &OpenOptions::default()) else { continue };
                if let Ok(array) = image.read_all() {
                    assert_eq!(array.shape(), image.meta().shape, "byte {at}");
                }
            }
        }
    }
}

//! Checks the tables of `docs/formats.md`: every row has files that are read or refused as the row says.
//!
//! `CYTOSCOPE_BLESS=1 cargo test -p cytoscope-formats --test suite docs` updates the tables.

use crate::common;
use cytoscope_formats::{
    Compression, Container, FormatErrorKind, OpenOptions, StackWriter, WriteSpec, open, open_bytes, write_array,
};
use cytoscope_volume::{Array, DType, Samples};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Seeds of the fuzz target `read_image`.
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/read_image");

/// A row of the reading table: the feature, how it is read, and files that use it: of the shared collection, of the seeds
/// (`seed:`), or made with the given tags (`made:`).
struct Reads(&'static str, &'static str, &'static [&'static str]);

const READS: &[Reads] = &[
    Reads("Classic TIFF, little-endian", "read", &["imagetiff/tests_images_seq_seq-1c-8b-multistrip-20f3db0c.tiff"]),
    Reads("Classic TIFF, big-endian", "read", &["imagetiff/tests_images_seq_seq-1c-16b-bigendian-68f373a0.tiff"]),
    Reads(
        "BigTIFF, both byte orders",
        "read",
        &["imagetiff/tests_images_bigtiff_BigTIFF.tif", "imagetiff/tests_images_bigtiff_BigTIFFMotorola.tif"],
    ),
    Reads("Strips", "read", &["imagetiff/tests_images_seq_seq-3c-8b-multistrip-8743c999.tiff"]),
    Reads("Tiles", "read", &["imagetiff/tests_libtiffpic_quad-tile.tif"]),
    Reads("Samples side by side (chunky)", "read", &["imagetiff/tests_images_rgb-3c-16b.tiff"]),
    Reads("Samples in planes (planar)", "read", &["pillow/Tests_images_tiff_tiled_planar_16bit_RGB.tiff"]),
    Reads(
        "8-, 16-, 32- and 64-bit integers, signed and unsigned",
        "read as they are",
        &[
            "imagetiff/tests_images_int8.tif",
            "imagetiff/tests_images_int16.tif",
            "imagetiff/tests_images_seq_seq-1c-i32-99fddec2.tiff",
            "imagetiff/tests_images_gradient-1c-64b.tiff",
        ],
    ),
    Reads(
        "16-, 32- and 64-bit floats",
        "read as they are",
        &[
            "imagetiff/tests_images_random-fp16.tiff",
            "imagetiff/tests_images_seq_seq-1c-32f-390fe673.tiff",
            "imagetiff/tests_images_seq_seq-1c-64f-afa8560e.tiff",
        ],
    ),
    Reads(
        "1- to 7-bit integers",
        "read into uint8, not scaled",
        &["pillow/Tests_images_issue_2278.tif", "imagetiff/tests_images_seq_seq-1c-4b-fb92dcae.tiff"],
    ),
    Reads(
        "9- to 15-bit integers (such as 12-bit)",
        "read into uint16, not scaled",
        &["imagetiff/tests_images_12bit.cropped.tiff"],
    ),
    Reads(
        "17- to 31-bit integers (such as 24-bit)",
        "read into uint32, not scaled",
        &["imagetiff/tests_libtiffpic_depth_flower-rgb-contig-24.tif"],
    ),
    Reads("24-bit floats, complex numbers", "refused", &["made: 258=24 339=3", "made: 258=64 339=5"]),
    Reads("Samples of different types in a pixel", "refused", &["made: 277=2 258=8,16"]),
    Reads("White-is-zero images", "read, not inverted", &["imagetiff/tests_libtiffpic_cramps.tif"]),
    Reads("Palette images", "read as indices", &["exampletiffs/bali.tif"]),
    Reads("LZW, in both bit orders", "read", &["exampletiffs/bali.tif", "imagetiff/tests_images_quad-lzw-compat.tiff"]),
    Reads("Deflate", "read", &["pillow/Tests_images_16bit.deflate.tif"]),
    Reads("Zstandard", "read", &["imagetiff/tests_images_int16_zstd.tif"]),
    Reads("LZMA (xz)", "read", &["seed: lzma_strips", "seed: lzma_tiles_big_endian"]),
    Reads("PackBits", "read", &["imagetiff/tests_libtiffpic_jello.tif"]),
    Reads(
        "JPEG, 8-bit, with shared tables",
        "read; YCbCr as RGB",
        &["imagetiff/tests_images_tiled-jpeg-rgb-u8.tif", "imagetiff/tests_libtiffpic_quad-jpeg.tif"],
    ),
    Reads("Predictor 2 (horizontal)", "read", &["imagetiff/tests_images_seq_seq-1c-8b-lzw-hpredict-20f3db0c.tiff"]),
    Reads("Predictor 3 (floating point)", "read", &["imagetiff/tests_images_predictor-3-rgb-f32.tif"]),
    Reads("Reversed bits (FillOrder 2)", "read", &["pillow/Tests_images_16bit.r.tif"]),
    Reads("Fax (CCITT group 4)", "read; white is 0", &["imagetiff/tests_images_fax4.tiff"]),
    Reads("Fax (CCITT group 3)", "refused", &["imagetiff/tests_libtiffpic_fax2d.tif"]),
    Reads("Old-style JPEG", "refused", &["imagetiff/tests_libtiffpic_zackthecat.tif"]),
    Reads(
        "JPEG 2000, JPEG XL, LERC, PNG",
        "refused",
        &["made: 259=34712", "made: 259=50002", "made: 259=34887", "made: 259=34933"],
    ),
    Reads("WebP", "read", &["pillow/Tests_images_hopper_webp.tif"]),
    Reads("JPEG XR, without transparency", "read", &["seed: jpeg_xr_rgb", "seed: jpeg_xr_tiles_big_endian"]),
    Reads(
        "SGI LogLuv, ThunderScan",
        "refused",
        &["imagetiff/tests_libtiffpic_off_l16.tif", "imagetiff/tests_libtiffpic_text.tif"],
    ),
    Reads("Subsampled YCbCr without JPEG", "refused", &["imagetiff/tests_libtiffpic_ycbcr-cat.tif"]),
    Reads(
        "Several pages of one shape",
        "read as a Z stack",
        &["imagetiff/tests_images_seq_seq-1c-8b-multipage-adeefdcc.tiff"],
    ),
    Reads("Pages of different shapes", "read as series", &["pillow/Tests_images_multipage-mmap.tiff"]),
    Reads(
        "ImageJ hyperstacks",
        "read with axes, voxel size, channel labels",
        &["ilastik/tests_test_lazyflow_data_inputdata_pix_res_5d.tif"],
    ),
    Reads(
        "OME-TIFF",
        "read with axes, voxel size, channels",
        &["libvips/test_test-suite_images_multi-channel-z-series.ome.tif"],
    ),
    Reads(
        "OME-TIFF sets of several files, opened by any of them",
        "read",
        &["exampletiffs/ometiff_testdata/multiples/master/multifile-Z3.ome.tiff"],
    ),
    Reads(
        "OME-TIFF sets with a companion file",
        "read",
        &[
            "exampletiffs/ometiff_testdata/multiples/companion/multifile-Z2.ome.tiff",
            "exampletiffs/ometiff_testdata/multiples/companion/multifile.companion.ome",
        ],
    ),
];

fn reading_table() -> String {
    let rows: String = READS.iter().map(|r| format!("| {} | {} |\n", r.0, r.1)).collect();
    format!("| in a file | here |\n|---|---|\n{rows}")
}

fn writing_table() -> String {
    let mut table = String::from("| type | `.tif` (ImageJ) | `.ome.tif` | `.npy` |\n|---|---|---|---|\n");
    for dtype in DType::ALL {
        let cell = |container| if can_write(container, Compression::None, dtype) { "yes" } else { "refused" };
        let cells = [Container::ImageJ, Container::OmeTiff, Container::Npy].map(cell);
        table += &format!("| {dtype} | {} |\n", cells.join(" | "));
    }
    for compression in [Compression::Deflate, Compression::Zstd] {
        let cell = |container| if can_write(container, compression, DType::U16) { "yes" } else { "refused" };
        let cells = [Container::ImageJ, Container::OmeTiff, Container::Npy].map(cell);
        table += &format!("| compressed with {compression:?} | {} |\n", cells.join(" | "));
    }
    table
}

/// Whether a stack can be written and reads back the same.
fn can_write(container: Container, compression: Compression, dtype: DType) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut samples = Samples::zeros(dtype, 60);
    samples.as_bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i % 60) as u8);
    let array = Array::new("ZYX".parse().unwrap(), vec![3, 4, 5], samples).unwrap();
    let mut spec = WriteSpec::of(&array, container);
    spec.compression = compression;
    if let Err(e) = StackWriter::create(&path, &spec) {
        assert!(matches!(e.kind(), FormatErrorKind::Unsupported | FormatErrorKind::Misused), "{e}");
        return false;
    }
    write_array(&path, &array, &spec).unwrap();
    assert_eq!(open(&path, &OpenOptions::default()).unwrap().read_all().unwrap(), array);
    true
}

/// A TIFF of one small page, with some of its tags (up to two 16-bit values each) changed.
fn tiff_with_tags(changes: &str) -> Vec<u8> {
    let mut tags: BTreeMap<u16, Vec<u16>> =
        [(256, 4), (257, 3), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 3), (279, 96)]
            .map(|(tag, value)| (tag, vec![value]))
            .into();
    for change in changes.split(' ') {
        let (tag, values) = change.split_once('=').expect("tag=values");
        tags.insert(tag.parse().unwrap(), values.split(',').map(|v| v.parse().unwrap()).collect());
    }
    let mut bytes = b"II*\0\x68\0\0\0".to_vec();
    bytes.resize(0x68, 0);
    bytes.extend((tags.len() as u16).to_le_bytes());
    for (tag, values) in tags {
        bytes.extend([tag.to_le_bytes(), 3u16.to_le_bytes()].concat());
        bytes.extend((values.len() as u32).to_le_bytes());
        bytes.extend(values.iter().chain(&[0, 0]).take(2).flat_map(|v| v.to_le_bytes()));
    }
    bytes.extend([0; 4]);
    bytes
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md")
}

/// The page with the tables between its markers replaced.
fn with_tables(text: &str) -> String {
    let mut text = text.to_owned();
    for (name, table) in [("reading", reading_table()), ("writing", writing_table())] {
        let (begin, end) = (format!("<!-- table: {name} -->\n"), "<!-- end -->".to_owned());
        let from = text.find(&begin).unwrap_or_else(|| panic!("docs/formats.md lacks {begin}")) + begin.len();
        let to = from + text[from..].find(&end).expect("the table ends");
        text.replace_range(from..to, &table);
    }
    text
}

#[test]
fn the_tables_match_the_code() {
    let text = std::fs::read_to_string(page()).expect("docs/formats.md is there");
    let right = with_tables(&text);
    if std::env::var_os("CYTOSCOPE_BLESS").is_some() {
        std::fs::write(page(), right).expect("docs/formats.md is writable");
        return;
    }
    assert!(text == right, "docs/formats.md is out of date: run this test with CYTOSCOPE_BLESS=1");
}

#[test]
fn the_generated_file_is_valid() {
    assert!(open_bytes(tiff_with_tags("262=1"), &OpenOptions::default()).and_then(|i| i.read_all()).is_ok());
}

#[test]
fn every_row_of_the_table_of_readers_is_true() {
    let Some(folder) = common::tiff_folder() else { return };
    for Reads(what, how, files) in READS {
        for file in *files {
            let options = OpenOptions::default();
            let image = if let Some(tags) = file.strip_prefix("made: ") {
                open_bytes(tiff_with_tags(tags), &options)
            } else if let Some(name) = file.strip_prefix("seed: ") {
                open(&Path::new(SEEDS).join(name), &options)
            } else {
                open(&folder.join(file), &options)
            };
            let result = image.and_then(|i| i.read_all());
            match result {
                Ok(_) => assert!(how.starts_with("read"), "{what}: {file} is read"),
                Err(e) => assert!(*how == "refused" && e.kind() == FormatErrorKind::Unsupported, "{what}: {e}"),
            }
        }
    }
}

#[test]
fn every_limit_is_on_the_page() {
    let text = std::fs::read_to_string(page()).expect("docs/formats.md is there");
    let limits = format!("{:?}", cytoscope_formats::Limits::default());
    for name in limits.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| w.starts_with("max_")) {
        assert!(text.contains(name), "docs/formats.md does not name the limit {name}");
    }
}

//! OME-Zarr in one zip file: read like a folder, damaged, and too large.

use crate::common::zarr::{fixture, made, write_zarr};
use cytoscope_formats::{FormatErrorKind, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Array, Samples};
use serde_json::json;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

/// Zips a folder; `prefix` is put before the paths in it.
fn zipped(folder: &Path, prefix: &str, method: zip::CompressionMethod) -> Vec<u8> {
    fn add(zip: &mut zip::ZipWriter<Cursor<Vec<u8>>>, folder: &Path, at: &str, method: zip::CompressionMethod) {
        let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = format!("{at}{}", path.file_name().unwrap().to_str().unwrap());
            if path.is_dir() {
                add(zip, &path, &format!("{name}/"), method);
                continue;
            }
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file(name.as_str(), options).unwrap();
            zip.write_all(&std::fs::read(&path).unwrap()).unwrap();
        }
    }
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    add(&mut zip, folder, prefix, method);
    zip.finish().unwrap().into_inner()
}

#[test]
fn zipped_folders_read_like_the_folders() {
    use zip::CompressionMethod::{Deflated, Stored};
    let temp = tempfile::tempdir().unwrap();
    for (i, name) in ["v04_blosc", "v05_sharded", "v04_fortran"].into_iter().enumerate() {
        let folder = open(&fixture(name), &OpenOptions::default()).unwrap();
        for (prefix, method) in [("", Stored), ("inside.zarr/", Stored), ("", Deflated)] {
            let path = temp.path().join(format!("{i}.zarr.zip"));
            std::fs::write(&path, zipped(&fixture(name), prefix, method)).unwrap();
            let image = open(&path, &OpenOptions::default()).unwrap();
            let (ours, wanted) = (image.meta(), folder.meta());
            assert_eq!((ours.format.as_str(), &ours.path), ("ome-zarr", &path));
            assert_eq!((&ours.levels, &ours.channels), (&wanted.levels, &wanted.channels));
            assert_eq!((ours.voxel_size_um, ours.series_count), (wanted.voxel_size_um, wanted.series_count));
            assert_eq!(image.read_all().unwrap(), folder.read_all().unwrap(), "{name} in {prefix:?}, {method:?}");
            assert_eq!(image.files(), [path]);
        }
    }
    let labels = OpenOptions { series: 1, ..OpenOptions::default() };
    let zipped_labels = open(&temp.path().join("0.zarr.zip"), &labels).unwrap();
    assert_eq!(zipped_labels.read_all().unwrap(), open(&fixture("v04_blosc"), &labels).unwrap().read_all().unwrap());
}

#[test]
fn a_compressed_shard_is_expanded_once_for_all_its_chunks() {
    let temp = tempfile::tempdir().unwrap();
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    // Chunks of one sample, in two shards beside each other.
    let folder = made(temp.path(), |_, array| {
        array["shape"] = json!([1, 16, 32]);
        array["data_type"] = json!("uint8");
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 16, 16]);
        let shards = json!({"chunk_shape": [1, 1, 1], "codecs": [little], "index_codecs": [little]});
        array["codecs"] = json!([{"name": "sharding_indexed", "configuration": shards}]);
    });
    std::fs::create_dir_all(folder.join("0/c/0/0")).unwrap();
    for shard in [0u8, 1] {
        let samples = (0..=255).map(|i: u8| if shard == 0 { i } else { 255 - i });
        let mut bytes: Vec<u8> = samples.collect();
        bytes.resize(1 << 20, 0);
        for offset in 0..256u64 {
            bytes.extend(offset.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        std::fs::write(folder.join(format!("0/c/0/0/{shard}")), bytes).unwrap();
    }
    let path = temp.path().join("stack.ozx");
    std::fs::write(&path, zipped(&folder, "", zip::CompressionMethod::Deflated)).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    let sample = |y: usize, x: usize| if x < 16 { 16 * y + x } else { 255 - (16 * y + x - 16) };
    let expected: Vec<u8> = (0..16).flat_map(|y| (0..32).map(move |x| sample(y, x) as u8)).collect();
    assert_eq!(image.read_all().unwrap().samples(), &Samples::U8(expected));
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(image.bytes_read() < 3 * size, "{} bytes of {size} were read", image.bytes_read());
}

#[test]
fn zips_whose_files_share_bytes_are_refused() {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("zarr.json", b"{}".to_vec()), ("0/c/0", vec![0; 1 << 16])] {
        zip.start_file(name, stored).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    let find = |signature: [u8; 4]| bytes.windows(4).position(|w| w == signature).unwrap();
    let (directory, end) = (find([0x50, 0x4b, 1, 2]), find([0x50, 0x4b, 5, 6]));
    // The directory names both files several times.
    let refused = |times: usize| {
        let entries = bytes[directory..end].repeat(times);
        let mut last = bytes[end..].to_vec();
        for at in [8, 10] {
            last[at..at + 2].copy_from_slice(&(2 * times as u16).to_le_bytes());
        }
        last[12..16].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ozx");
        std::fs::write(&path, [&bytes[..directory], &entries, &last].concat()).unwrap();
        open(&path, &OpenOptions::default()).unwrap_err()
    };
    // The image has no multiscales.
    assert_eq!(refused(1).kind(), FormatErrorKind::Unsupported);
    let overlapping = refused(8);
    assert_eq!(overlapping.kind(), FormatErrorKind::Malformed);
    assert!(overlapping.to_string().contains("its files overlap"), "{overlapping}");
}

#[test]
fn damaged_and_oversized_zips_are_refused_and_only_what_is_shown_is_read() {
    let bytes = zipped(&fixture("v05_sharded"), "", zip::CompressionMethod::Stored);
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("stack.ozx");
    let kind = |bytes: &[u8], limits: Limits| {
        std::fs::write(&path, bytes).unwrap();
        let image = open(&path, &OpenOptions { limits, ..OpenOptions::default() });
        image.and_then(|image| image.read_all()).err().map(|error| error.kind())
    };
    assert_eq!(kind(&bytes, Limits::default()), None);
    assert_eq!(kind(&bytes[..bytes.len() - 30], Limits::default()), Some(FormatErrorKind::Malformed));
    for limits in [
        Limits { max_metadata_bytes: 64, ..Limits::default() },
        Limits { max_pages: 2, ..Limits::default() },
        Limits { max_chunk_bytes: 1 << 4, ..Limits::default() },
    ] {
        assert_eq!(kind(&bytes, limits), Some(FormatErrorKind::OverLimit));
    }
    // Whichever byte of the directory is changed, reading does not panic or go beyond the file.
    let directory = bytes.windows(4).position(|w| w == [0x50, 0x4b, 1, 2]).unwrap();
    for at in directory..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0xFF;
        let _ = open_bytes(changed, &OpenOptions::default()).map(|image| image.read_all());
    }
    let other = {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        zip.start_file("readme.txt", zip::write::SimpleFileOptions::default()).unwrap();
        zip.finish().unwrap().into_inner()
    };
    assert_eq!(kind(&other, Limits::default()), Some(FormatErrorKind::Unsupported));
    // Opening reads the directory and metadata, not the chunks.
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 48) as u16
    });
    let noise: Vec<u16> = noise.take(16 * 256 * 256).collect();
    let array = Array::new("TZCYX".parse().unwrap(), vec![1, 16, 1, 256, 256], noise).unwrap();
    let folder = temp.path().join("large.zarr");
    write_zarr(&folder, &array, |_| {});
    let large = zipped(&folder, "", zip::CompressionMethod::Stored);
    std::fs::write(&path, &large).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert!(large.len() > 1 << 20 && image.bytes_read() < 80_000, "{} of {}", image.bytes_read(), large.len());
}

#[test]
fn files_of_chunks_that_are_not_stored_are_counted_without_reading_them() {
    let temp = tempfile::tempdir().unwrap();
    // 2 × 4 × 2 files, of which the last ones were not copied.
    let folder = made(temp.path(), |_, array| {
        array["shape"] = json!([2, 13, 8]);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 4, 4]);
    });
    let count = |image: &cytoscope_formats::Image| image.look_for_chunk_files().unwrap();
    let opened = |path: &Path| open(path, &OpenOptions::default()).unwrap();
    let image = opened(&folder);
    for (written, name) in ["0/0/0", "0/0/1", "0/1/0", "0/1/1", "0/2/0", "1/3/1"].into_iter().enumerate() {
        let files = count(&image);
        assert_eq!((files.all, files.looked_for, files.absent), (16, 16, 16 - written as u64));
        let path = folder.join("0/c").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "not read").unwrap();
    }
    let path = temp.path().join("part.ozx");
    std::fs::write(&path, zipped(&folder, "", zip::CompressionMethod::Stored)).unwrap();
    assert_eq!((count(&opened(&path)), count(&image).absent), (count(&image), 10));
    // Of a large image, only some are looked for.
    let large = made(temp.path(), |_, array| {
        array["shape"] = json!([64, 64, 64]);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 1, 64]);
    });
    let files = count(&opened(&large));
    assert_eq!((files.all, files.looked_for, files.absent), (4096, 256, 256));
}

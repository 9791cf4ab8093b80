//! Hostile OME-Zarr folders: impossible or huge metadata, damaged chunks, and links out of the folder.

use crate::common::zarr::made;
use cytoscope_formats::{FormatErrorKind, OpenOptions, open};
use cytoscope_volume::Samples;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn refused(path: &Path) -> FormatErrorKind {
    open(path, &OpenOptions::default()).map(|image| image.meta().clone()).unwrap_err().kind()
}

#[test]
fn hostile_metadata_are_refused_when_the_folder_is_opened() {
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    let folder = tempfile::tempdir().unwrap();
    let make = |change: &dyn Fn(&mut Value, &mut Value)| made(folder.path(), change);
    // Nothing is stored: every sample is the fill value.
    let plain = open(&make(&|_, _| {}), &OpenOptions::default()).unwrap();
    assert_eq!(plain.read_all().unwrap().samples(), &Samples::U16(vec![3; 64]));
    let chunk = |shape: Value| {
        make(&move |_, array: &mut Value| array["chunk_grid"]["configuration"]["chunk_shape"] = shape.clone())
    };
    assert_eq!(refused(&chunk(json!([1 << 12, 1 << 12, 1 << 12]))), OverLimit);
    assert_eq!(refused(&chunk(json!([u64::MAX, u64::MAX, 2]))), Malformed);
    for wrong in [json!([0, 4, 4]), json!([-4, 4, 4]), json!([4, 4]), json!([4.5, 4, 4]), json!("4"), Value::Null] {
        assert_eq!(refused(&chunk(wrong.clone())), Malformed, "{wrong}");
    }
    let array = |key: &'static str, value: Value| make(&move |_, array: &mut Value| array[key] = value.clone());
    for (key, value, kind) in [
        ("shape", json!([u64::MAX, 4, 4]), Malformed),
        ("shape", json!([1u64 << 40, 4, 4]), OverLimit),
        ("shape", json!([-1, 4, 4]), Malformed),
        ("shape", json!([0, 4, 4]), Malformed),
        ("shape", json!([4, 4]), Malformed),
        ("shape", json!([4, 4, 4, 4, 4, 4]), Unsupported),
        ("data_type", json!("complex64"), Unsupported),
        ("data_type", json!({"name": "numpy.datetime64"}), Unsupported),
        ("fill_value", json!(-1), Malformed),
        ("fill_value", json!("NaN"), Malformed),
        ("codecs", json!([]), Malformed),
        ("codecs", json!([{"name": "bytes"}]), Malformed),
        ("codecs", json!([{"name": "bytes", "configuration": {"endian": null}}]), Malformed),
        ("codecs", json!([{"name": "bytes"}, {"name": "pcodec"}]), Unsupported),
        ("codecs", json!([{"name": "zstd"}]), Malformed),
        ("codecs", json!([{"name": "zstd"}, {"name": "bytes"}]), Malformed),
        ("codecs", Value::Null, Malformed),
        ("chunk_key_encoding", json!({"name": "default", "configuration": {"separator": "/../"}}), Malformed),
        ("node_type", json!("group"), Malformed),
        ("storage_transformers", json!([{"name": "x"}]), Unsupported),
    ] {
        assert_eq!(refused(&array(key, value.clone())), kind, "{key} {value}");
    }
    let untyped =
        open(&array("data_type", json!({"name": "struct"})), &OpenOptions::default()).unwrap_err().to_string();
    assert!(untyped.contains("the type \"structured or unstated\""), "{untyped}");
    let multiscale = |key: &'static str, value: Value| {
        make(&move |root: &mut Value, _| root["attributes"]["ome"]["multiscales"][0][key] = value.clone())
    };
    for (key, value, kind) in [
        ("datasets", json!([]), Malformed),
        ("datasets", json!([{"path": "1"}]), Malformed),
        ("datasets", json!([{"path": "../other"}]), Unsupported),
        ("datasets", json!([{"path": "/etc"}]), Unsupported),
        ("datasets", json!((0..65).map(|_| json!({"path": "0"})).collect::<Vec<_>>()), OverLimit),
        ("axes", json!([{"name": "z"}, {"name": "y"}, {"name": "y"}]), Unsupported),
        ("axes", json!([{"name": "z"}, {"name": "c"}, {"name": "x"}]), Unsupported),
        ("axes", json!([{"name": "y"}, {"name": "x"}]), Malformed),
        ("coordinateTransformations", json!([{"type": "scale", "scale": [1]}]), Malformed),
        ("coordinateTransformations", json!([{"type": "scale", "scale": [null, 1, 2, 3]}]), Malformed),
    ] {
        assert_eq!(refused(&multiscale(key, value.clone())), kind, "{key} {value}");
    }
}

#[test]
fn hostile_shards_are_refused_when_the_folder_is_opened() {
    use FormatErrorKind::Malformed;
    let folder = tempfile::tempdir().unwrap();
    let array = |codecs: Value| made(folder.path(), move |_, array: &mut Value| array["codecs"] = codecs);
    let sharding = |inner: Value| {
        json!({"name": "sharding_indexed", "configuration": {"chunk_shape": inner,
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}})
    };
    let sharded = |inner: Value| array(json!([sharding(inner)]));
    assert_eq!(refused(&sharded(json!([3, 4, 4]))), Malformed, "not a divisor");
    assert_eq!(refused(&sharded(json!([4, 4]))), Malformed);
    assert!(open(&sharded(json!([4, 4, 4])), &OpenOptions::default()).is_ok());
    let compressed_before = json!([{"name": "zstd"}, sharding(json!([4, 4, 4]))]);
    assert_eq!(refused(&array(compressed_before)), Malformed);
    for index_codecs in [Value::Null, json!([])] {
        let mut without = sharding(json!([4, 4, 4]));
        without["configuration"]["index_codecs"] = index_codecs;
        assert_eq!(refused(&array(json!([without]))), Malformed, "the place of the index is unknown");
    }
}

#[test]
fn the_axes_of_an_image_that_lists_none_are_not_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let without_axes = |root: &mut Value| {
        root["attributes"]["ome"]["multiscales"][0].as_object_mut().unwrap().remove("axes");
    };
    let path = made(folder.path(), |root, _| without_axes(root));
    let error = open(&path, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("version \"0.5\", have no list of axes") && text.contains("such as ZYX"), "{text}");
    let options = OpenOptions { axes: Some("ZYX".parse().unwrap()), ..OpenOptions::default() };
    let image = open(&path, &options).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape.as_slice()), ("ZYX", &[4, 4, 4][..]));
    // The first versions have the axes t, c, z, y, x.
    let first_version = made(folder.path(), |root, array| {
        without_axes(root);
        root["attributes"]["ome"]["multiscales"][0]["version"] = json!("0.1");
        root["attributes"]["ome"]["multiscales"][0]["datasets"] = json!([{"path": "0"}]);
        array["shape"] = json!([1, 2, 4, 4, 4]);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 1, 4, 4, 4]);
    });
    let image = open(&first_version, &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape.as_slice()), ("ZCYX", &[4, 2, 4, 4][..]));
}

#[test]
fn hostile_plates_are_refused_when_the_folder_is_opened() {
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    let folder = tempfile::tempdir().unwrap();
    let make = |change: &dyn Fn(&mut Value, &mut Value)| made(folder.path(), change);
    let plate = make(&|root, _| root["attributes"]["ome"] = json!({"plate": {"wells": [{"path": "B/2"}]}}));
    let text = open(&plate, &OpenOptions::default()).unwrap_err().to_string();
    assert!(text.contains("plate") && text.contains("none of its wells"), "{text}");
    let unnamed = make(&|root, _| root["attributes"]["ome"] = json!({"plate": {"wells": [{"path": "B/2"}, {}]}}));
    let text = open(&unnamed, &OpenOptions::default()).unwrap_err().to_string();
    assert!(text.contains("an entry of its wells states no path"), "{text}");
    let outside = make(&|root, _| root["attributes"]["ome"] = json!({"plate": {"wells": [{"path": "../A"}]}}));
    assert_eq!(refused(&outside), Unsupported);
    let text = open(&outside, &OpenOptions::default()).unwrap_err().to_string();
    assert!(text.contains("../A") && text.contains("export the folder again"), "{text}");
    std::fs::write(plate.join("zarr.json"), "[".repeat(100_000)).unwrap();
    assert_eq!(refused(&plate), Malformed);
    // Metadata of a plate that were consolidated into one file. The file is sparse.
    std::fs::OpenOptions::new().write(true).open(plate.join("zarr.json")).unwrap().set_len(65 << 20).unwrap();
    let error = open(&plate, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), OverLimit);
    let text = error.to_string();
    assert!(text.contains("MAX_JSON_BYTES = 16777216") && text.contains("consolidated"), "{text}");
}

#[test]
fn a_large_metadata_file_that_is_named_very_often_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let wells = vec![json!({"path": "A/1"}); 4096];
    let plate = made(folder.path(), |root, _| root["attributes"]["ome"] = json!({"plate": {"wells": wells}}));
    let well = json!({"zarr_format": 3, "node_type": "group",
        "attributes": {"ome": {"version": "0.5", "well": {"images": []}}}});
    std::fs::create_dir_all(plate.join("A/1")).unwrap();
    std::fs::write(plate.join("A/1/zarr.json"), well.to_string() + &" ".repeat(15 << 20)).unwrap();
    let error = open(&plate, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit);
    assert!(error.to_string().contains("MAX_TOTAL_JSON_BYTES = 268435456"), "{error}");
}

#[test]
fn very_many_codecs_are_refused_without_work_for_each_pair_of_them() {
    use FormatErrorKind::{Malformed, OverLimit};
    let folder = tempfile::tempdir().unwrap();
    let bytes = || json!({"name": "bytes", "configuration": {"endian": "little"}});
    let filters = std::iter::repeat_n(json!("bitround"), 100_000);
    let codecs: Vec<Value> = filters.chain([bytes()]).chain(std::iter::repeat_n(json!("gzip"), 200_000)).collect();
    assert_eq!(refused(&made(folder.path(), |_, array| array["codecs"] = json!(codecs))), OverLimit);
    let transpose = json!({"name": "transpose", "configuration": {"order": "F"}});
    let codecs: Vec<Value> = std::iter::repeat_n(transpose, 50_000).chain([bytes()]).collect();
    let many_axes = made(folder.path(), |_, array| {
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!(vec![1; 1_000_000]);
        array["codecs"] = json!(codecs);
    });
    assert_eq!(refused(&many_axes), Malformed);
}

#[test]
fn a_huge_image_without_chunks_is_refused_before_memory_is_allocated() {
    let folder = tempfile::tempdir().unwrap();
    // 800 GB, of which nothing is stored.
    let path = made(folder.path(), |_, array| {
        array["shape"] = json!([1, 2_000_000, 200_000]);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 8192, 8192]);
    });
    let error = open(&path, &OpenOptions::default()).unwrap().read_all().unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::OverLimit);
    assert!(error.to_string().contains("not stored"), "{error}");
}

#[test]
fn damaged_chunks_are_refused_when_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let read = |change: &dyn Fn(&mut Value, &mut Value), chunk: &[u8]| {
        let path = made(folder.path(), change);
        std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
        std::fs::write(path.join("0/c/0/0/0"), chunk).unwrap();
        open(&path, &OpenOptions::default()).unwrap().read_all()
    };
    let bytes: Vec<u8> = (0..128).collect();
    assert_eq!(read(&|_, _| {}, &bytes).unwrap().samples().as_bytes().len(), 128);
    assert_eq!(read(&|_, _| {}, &bytes[..100]).unwrap_err().kind(), FormatErrorKind::Malformed);
    let codec = |name: &'static str| {
        let to_bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        move |_: &mut Value, array: &mut Value| array["codecs"] = json!([to_bytes, {"name": name}])
    };
    for name in ["zstd", "gzip", "blosc", "crc32c", "zlib", "lz4", "numcodecs.bz2", "numcodecs.lzma"] {
        assert_eq!(read(&codec(name), &bytes).unwrap_err().kind(), FormatErrorKind::Malformed, "{name}");
        assert_eq!(read(&codec(name), &[]).unwrap_err().kind(), FormatErrorKind::Malformed, "{name}");
    }
    let sharded = |_: &mut Value, array: &mut Value| {
        array["codecs"] = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [4, 4, 4],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]);
    };
    let with_index = |offset: u64, length: u64| {
        let mut shard = bytes.clone();
        shard.extend(offset.to_le_bytes());
        shard.extend(length.to_le_bytes());
        read(&sharded, &shard)
    };
    assert_eq!(with_index(0, 128).unwrap().samples().as_bytes(), bytes);
    assert_eq!(with_index(u64::MAX, u64::MAX).unwrap().samples(), &Samples::U16(vec![3; 64]));
    for (offset, length) in [(0, 127), (64, 128), (u64::MAX - 10, 128), (0, u64::MAX - 1), (u64::MAX, 128)] {
        let refused = with_index(offset, length).unwrap_err();
        assert_eq!(refused.kind(), FormatErrorKind::Malformed, "{offset} {length}");
    }
    assert_eq!(read(&sharded, &bytes[..8]).unwrap_err().kind(), FormatErrorKind::Malformed);
}

/// Metadata of an array of one uncompressed shard with cubes of the edge `inner` as chunks.
fn one_shard(extents: [usize; 3], inner: usize) -> impl Fn(&mut Value, &mut Value) {
    move |_, array| {
        array["shape"] = json!(extents);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!(extents);
        array["codecs"] = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [inner, inner, inner],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]);
    }
}

/// Writes 4096 chunks of 128 bytes in one shard to the folder. They share the places of `stored` chunks.
fn shard_of_4096_chunks(folder: &Path, stored: u64) -> PathBuf {
    let path = made(folder, one_shard([64; 3], 4));
    let mut shard = vec![7; 128 * (stored as usize)];
    for chunk in 0..4096u64 {
        shard.extend((128 * (chunk % stored)).to_le_bytes());
        shard.extend(128u64.to_le_bytes());
    }
    std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
    std::fs::write(path.join("0/c/0/0/0"), shard).unwrap();
    path
}

#[test]
fn the_index_of_a_shard_is_read_for_all_its_chunks_at_once_with_any_limit_of_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let image = open(&shard_of_4096_chunks(folder.path(), 4096), &OpenOptions::default()).unwrap();
    image.limit_cache(0);
    assert_eq!(image.read_all().unwrap().samples(), &Samples::U16(vec![0x0707; 64 * 64 * 64]));
    // Once for each thread at most; once for each chunk would be 256 MiB.
    assert!(image.bytes_read() < 64 << 20, "{}", image.bytes_read());
}

#[test]
fn shards_whose_chunks_share_bytes_and_huge_indices_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let read = |stored: u64| {
        let path = shard_of_4096_chunks(folder.path(), stored);
        open(&path, &OpenOptions::default()).unwrap().read_all()
    };
    assert!(read(4096).is_ok());
    let refused = read(1).unwrap_err();
    assert_eq!(refused.kind(), FormatErrorKind::Malformed);
    assert!(refused.to_string().contains("overlap"), "{refused}");
    let huge = made(folder.path(), one_shard([1 << 10, 1 << 7, 1 << 6], 1));
    let refused = open(&huge, &OpenOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), FormatErrorKind::OverLimit);
    assert!(refused.to_string().contains("MAX_INDEX_BYTES"), "{refused}");
}

#[cfg(unix)]
#[test]
fn chunks_outside_the_folder_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, vec![1; 128]).unwrap();
    let path = made(folder.path(), |_, _| {});
    std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
    std::os::unix::fs::symlink(&secret, path.join("0/c/0/0/0")).unwrap();
    let refused = open(&path, &OpenOptions::default()).unwrap().read_all().unwrap_err();
    assert_eq!(refused.kind(), FormatErrorKind::Unsupported, "{refused}");
}

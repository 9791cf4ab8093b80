//! Codecs and filters of numcodecs in OME-Zarr: what numcodecs wrote is read, checksums are verified, and what cannot be decoded
//! exactly is refused.

use crate::common;
use crate::common::zarr::made;
use cytoscope_formats::{FormatError, FormatErrorKind, Limits, OpenOptions, is_zarr_folder, open};
use cytoscope_volume::{Array, Samples};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Chunks of 8 samples that numcodecs encoded; `make_numcodecs.py` beside the file says how.
const CHUNKS: &str = include_str!("../data/ome_zarr/numcodecs.json");

/// A list of whole numbers below 256.
fn bytes(list: &Value) -> Vec<u8> {
    list.as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
}

/// The steps of a list in Zarr 2, as codecs of Zarr 3.
fn in_version_3(list: &Value) -> Vec<Value> {
    let named = |step: &Value| {
        let mut settings: Map<String, Value> = step.as_object().unwrap().clone();
        let id = settings.remove("id").unwrap();
        json!({"name": format!("numcodecs.{}", id.as_str().unwrap()), "configuration": settings})
    };
    list.as_array().unwrap().iter().map(named).collect()
}

/// Writes an image of 8 samples of Zarr 3: the filters and codecs are those of Zarr 2.
fn version_3(folder: &Path, dtype: &str, filters: &Value, codecs: &Value, chunk: &[u8]) -> PathBuf {
    let path = made(folder, |_, array| {
        array["shape"] = json!([2, 2, 2]);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!([2, 2, 2]);
        array["data_type"] = json!(dtype);
        array["fill_value"] = json!(0);
        let to_bytes = vec![json!({"name": "bytes", "configuration": {"endian": "little"}})];
        array["codecs"] = json!([in_version_3(filters), to_bytes, in_version_3(codecs)].concat());
    });
    std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
    std::fs::write(path.join("0/c/0/0/0"), chunk).unwrap();
    path
}

/// Writes an image of 8 samples of Zarr 2.
fn version_2(folder: &Path, dtype: &str, filters: &Value, codecs: &Value, chunk: &[u8]) -> PathBuf {
    let path = made(folder, |_, _| {});
    let filters = [filters.as_array().unwrap().clone(), codecs.as_array().unwrap().clone()].concat();
    let array = json!({"zarr_format": 2, "shape": [2, 2, 2], "chunks": [2, 2, 2], "dtype": dtype, "fill_value": 0,
        "order": "C", "filters": filters, "compressor": null});
    std::fs::remove_file(path.join("0/zarr.json")).unwrap();
    std::fs::write(path.join("0/.zarray"), array.to_string()).unwrap();
    std::fs::write(path.join("0/0.0.0"), chunk).unwrap();
    path
}

fn read(path: &Path) -> Result<Array, FormatError> {
    open(path, &OpenOptions::default())?.read_all()
}

#[test]
fn chunks_that_numcodecs_encoded_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let chunks: Value = serde_json::from_str(CHUNKS).unwrap();
    for chunk in chunks.as_array().unwrap() {
        let (filters, codecs, stored) = (&chunk["filters"], &chunk["codecs"], bytes(&chunk["stored"]));
        let in_2 = version_2(folder.path(), chunk["v2"].as_str().unwrap(), filters, codecs, &stored);
        let in_3 = version_3(folder.path(), chunk["v3"].as_str().unwrap(), filters, codecs, &stored);
        for path in [in_2, in_3] {
            let array = read(&path).unwrap_or_else(|e| panic!("{filters} {codecs}: {e}"));
            assert_eq!(array.samples().as_bytes(), bytes(&chunk["samples"]), "{filters} {codecs}");
        }
        // A chunk that is cut is refused, as is one that differs from its checksum.
        let mut damaged = vec![stored[..stored.len() - 1].to_vec()];
        if !codecs.as_array().unwrap().is_empty() {
            for at in [0, stored.len() / 2, stored.len() - 1] {
                let mut changed = stored.clone();
                changed[at] ^= 2;
                damaged.push(changed);
            }
        }
        for stored in damaged {
            let path = version_3(folder.path(), chunk["v3"].as_str().unwrap(), filters, codecs, &stored);
            let error = read(&path).unwrap_err();
            assert_eq!(error.kind(), FormatErrorKind::Malformed, "{filters} {codecs}: {error}");
        }
    }
}

#[test]
fn filters_of_big_endian_chunks_of_version_3_store_samples_in_that_order() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in ["uint16", "<u2"] {
        let path = made(folder.path(), |_, array| {
            array["shape"] = json!([2, 2, 2]);
            array["chunk_grid"]["configuration"]["chunk_shape"] = json!([2, 2, 2]);
            let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": dtype}});
            array["codecs"] = json!([delta, {"name": "bytes", "configuration": {"endian": "big"}}]);
        });
        std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
        let differences = [300u16, 1, 1, 1, 1, 1, 1, 1].map(u16::to_be_bytes).concat();
        std::fs::write(path.join("0/c/0/0/0"), differences).unwrap();
        assert_eq!(read(&path).unwrap().into_samples(), Samples::U16((300..308).collect()), "{dtype}");
    }
}

#[test]
fn filters_that_are_not_supported_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let none = json!([]);
    let refused = |path: PathBuf, words: &str| {
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    };
    for (dtype, name, filter, words) in [
        ("<u2", "uint16", json!({"id": "packbits"}), "packbits"),
        ("<f4", "float32", json!({"id": "delta", "dtype": "<f4", "astype": "<i4"}), "float32 as int32"),
        ("<f4", "float32", json!({"id": "delta", "dtype": "<f4", "astype": "<f8"}), "float32 as float64"),
        ("<u2", "uint16", json!({"id": "delta", "dtype": "<i2"}), "<i2"),
        ("<u2", "uint16", json!({"id": "delta", "dtype": ">u2"}), ">u2"),
        ("<f4", "float32", json!({"id": "quantize", "digits": 1, "dtype": "<f4", "astype": "<f16"}), "<f16"),
        ("<u2", "uint16", json!({"id": "jenkins_lookup3", "prefix": [1]}), "jenkins_lookup3"),
        ("<u2", "uint16", json!({"id": "categorize"}), "categorize"),
    ] {
        let filters = json!([filter]);
        refused(version_2(folder.path(), dtype, &filters, &none, &[0; 64]), words);
        refused(version_3(folder.path(), name, &filters, &none, &[0; 64]), words);
    }
    let codecs = |codecs: Value| made(folder.path(), |_, array| array["codecs"] = codecs);
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "uint16"}});
    let to_bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    refused(codecs(json!([to_bytes, delta])), "numcodecs.delta");
    let error = read(&codecs(json!([{"name": "numcodecs.zlib"}, to_bytes]))).unwrap_err().to_string();
    assert!(error.contains("\"numcodecs.zlib\" comes before the codec"), "{error}");
    refused(
        codecs(json!([{"name": "transpose", "configuration": {"order": [2, 1, 0]}}, delta, to_bytes])),
        "transpose",
    );
    refused(codecs(json!([{"name": "packbits"}])), "packbits");
    refused(codecs(json!([{"name": "numcodecs.zfpy"}])), "numcodecs.zfpy");
}

#[test]
fn damaged_settings_and_samples_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let none = json!([]);
    let scaled = |settings: Value, sample: f32| {
        let chunk = sample.to_le_bytes().repeat(8);
        read(&version_2(folder.path(), "<u2", &json!([settings]), &none, &chunk))
    };
    let settings =
        |scale: Value| json!({"id": "fixedscaleoffset", "scale": scale, "offset": 1, "dtype": "<u2", "astype": "<f4"});
    assert_eq!(scaled(settings(json!(2)), 7.0).unwrap().samples().as_bytes(), [4, 0].repeat(8));
    for (scale, sample) in [
        (json!(0), 7.0),
        (json!(null), 7.0),
        (json!("2"), 7.0),
        (json!(2), f32::NAN),
        (json!(2), f32::INFINITY),
        (json!(2), -4.0),
        (json!(2), 131_070.0),
    ] {
        let error = scaled(settings(scale.clone()), sample).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{scale} {sample}: {error}");
    }
    for checksum in [
        json!({"id": "crc32", "location": "middle"}),
        json!({"id": "jenkins_lookup3", "initval": 4_294_967_296u64}),
        json!({"id": "jenkins_lookup3", "initval": "0"}),
    ] {
        let path = version_2(folder.path(), "<u2", &none, &json!([checksum]), &[0; 20]);
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{checksum}: {error}");
        assert!(error.to_string().contains(checksum["id"].as_str().unwrap()), "{checksum}: {error}");
    }
    let bits = json!([{"id": "packbits"}]);
    for chunk in [[0u8; 2].as_slice(), &[8, 0, 0]] {
        let is_read = read(&version_2(folder.path(), "|b1", &bits, &none, chunk)).is_ok();
        assert_eq!(is_read, chunk[0] == 0, "{chunk:?}");
    }
}

#[test]
fn samples_that_filters_store_in_a_larger_type_count_for_the_limit_of_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let filters = json!([{"id": "astype", "encode_dtype": "<f8", "decode_dtype": "|u1"}]);
    let path = version_2(folder.path(), "|u1", &filters, &json!([]), &1f64.to_le_bytes().repeat(8));
    let kind = |max_chunk_bytes: u64| {
        let limits = Limits { max_chunk_bytes, ..Limits::default() };
        let image = open(&path, &OpenOptions { limits, ..OpenOptions::default() });
        image.and_then(|image| image.read_all()).err().map(|error| error.kind())
    };
    assert_eq!((kind(64), kind(63)), (None, Some(FormatErrorKind::OverLimit)));
}

#[test]
fn filters_of_zarr_python_are_read_in_folders_and_shards() {
    let Some(python) = common::python_with("zarr, numcodecs, numpy") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import sys, warnings, numpy, numcodecs, zarr
from numcodecs.checksum32 import CRC32, CRC32C, Adler32, JenkinsLookup3
from numcodecs.fletcher32 import Fletcher32
try:
    import zarr.codecs.numcodecs as three
except ImportError:
    import numcodecs.zarr3 as three
warnings.simplefilter("ignore")
out = sys.argv[1]
shape = (5, 33, 47)
u2 = (numpy.indices(shape) * numpy.array([2000, 30, 1])[:, None, None, None]).sum(0).astype("<u2")
u1, i2 = u2.astype("u1"), (u2.astype(int) - 3000).astype("<i2")
f8 = numpy.sin(u2.astype("<f8")) * 100
f4, f2 = f8.astype("<f4"), f8.astype("<f2")
mask = f4 > 0
axes = [{"name": a, "type": "space"} for a in "zyx"]
sets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [3, 2, 1]}]}]
def put(name, version, data, chunks=(2, 16, 31), **options):
    group = zarr.open_group(f"{out}/{name}.zarr", mode="w", zarr_format=version)
    group.create_array("0", data=data, chunks=chunks, **options)
    meta = {"version": "0.4", "axes": axes, "datasets": sets}
    group.attrs.update({"multiscales": [meta]} if version == 2 else {"ome": {"version": "0.5", "multiscales": [meta]}})
    wanted = zarr.open_group(f"{out}/{name}.zarr", mode="r")["0"][...]
    wanted = wanted.astype("u1") if wanted.dtype == bool else wanted.astype(wanted.dtype.newbyteorder("<"))
    numpy.save(f"{out}/{name}.npy", numpy.ascontiguousarray(wanted))
N = numcodecs
for i, (data, filters) in enumerate([
    (u2, [CRC32()]), (u2, [CRC32(location="end")]), (u2, [CRC32C(location="start")]), (u2, [Adler32()]),
    (u2, [Fletcher32()]), (u1, [Fletcher32()]), (u2, [JenkinsLookup3()]), (u1, [JenkinsLookup3(initval=4000000000)]),
    (f8, [N.AsType("<f4", "<f8")]), (f4.astype(">f4"), [N.AsType("<f8", ">f4")]), (i2, [N.AsType("<f4", "<i2")]),
    (f4, [N.Quantize(2, "<f4")]), (f8, [N.Quantize(1, "<f8", "<f2")]), (f8, [N.BitRound(10)]), (f2, [N.BitRound(5)]),
    (f4, [N.FixedScaleOffset(-500, 60, "<f4", "<u2")]), (f2, [N.FixedScaleOffset(3.3, 7.7, "<f2")]),
    (f8, [N.FixedScaleOffset(1.5, 1000.1, "<f8", "<i4")]), (i2, [N.FixedScaleOffset(-3.5, 2.5, "<i2", "<i4")]),
    (u2, [N.Delta("<u2", "<i4")]), (u2.astype(">u2"), [N.Delta(">u2", ">i4")]), (f4, [N.Delta("<f4")]),
    (f2, [N.Delta("<f2")]), (f8, [N.Delta("<f8", "<f4")]), (mask, [N.PackBits()]),
    (f4, [N.FixedScaleOffset(-500, 60, "<f4", "<u2"), N.Delta("<u2"), N.Shuffle(2), CRC32()]),
]):
    put(f"v2_{i}", 2, data, filters=filters, compressors=N.Zstd(checksum=True))
    put(f"v2_{i}_f", 2, data, filters=filters, compressors=None, order="F")
for i, (data, filters) in enumerate([
    (f8, [three.AsType(encode_dtype="float32", decode_dtype="float64")]), (u2, [three.AsType(encode_dtype="<i4")]),
    (f4, [three.Quantize(digits=2)]), (f4, [three.BitRound(keepbits=8)]),
    (f4, [three.FixedScaleOffset(offset=-500, scale=60, astype="uint16")]), (u2, [three.Delta(dtype="<u2")]),
    (u2, [three.Delta(dtype="uint16", astype="int32")]), (f4, [three.Delta(dtype="float32")]),
    (mask, [three.PackBits()]),
    (f4, [three.FixedScaleOffset(offset=-500, scale=60, astype="uint16"), three.Delta(dtype="uint16")]),
]):
    put(f"v3_{i}", 3, data, filters=filters, compressors=[zarr.codecs.ZstdCodec(checksum=True), three.CRC32()])
    put(f"v3_{i}_shards", 3, data, chunks=(2, 11, 16), shards=(4, 33, 48), filters=filters)
for codec in ["CRC32", "CRC32C", "Adler32", "Fletcher32", "JenkinsLookup3"]:
    put(f"v3_{codec}", 3, u1, compressors=[getattr(three, codec)()])
"#;
    common::run_python(&python, script, &[folder.path().to_str().unwrap()]);
    let mut count = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).filter(|p| is_zarr_folder(p)) {
        let array = read(&entry).unwrap_or_else(|e| panic!("{e}"));
        let wanted = read(&entry.with_extension("npy")).unwrap();
        assert!(array.samples().as_bytes() == wanted.samples().as_bytes(), "{} differs", entry.display());
        assert_eq!((array.shape(), array.dtype()), (wanted.shape(), wanted.dtype()), "{}", entry.display());
        count += 1;
    }
    assert!(count >= 60, "{count} folders");
}

/// What numcodecs 0.16 writes for 0 to 63 (uint16) with `BZ2(level=1)`.
const BZ2_CHUNK: &[u8] = &[
    66, 90, 104, 49, 49, 65, 89, 38, 83, 89, 93, 210, 13, 23, 0, 0, 0, 248, 0, 127, 255, 255, 255, 255, 255, 255, 255,
    160, 0, 84, 103, 168, 19, 1, 24, 0, 4, 211, 70, 0, 1, 25, 48, 14, 96, 0, 152, 0, 9, 128, 0, 0, 0, 30, 1, 240, 16,
    131, 16, 81, 135, 32, 146, 139, 51, 241, 167, 30, 130, 41, 38, 162, 171, 46, 195, 45, 55, 253, 199, 94, 126, 8, 98,
    142, 73, 102, 158, 138, 106, 174, 203, 110, 191, 12, 114, 251, 251, 61, 63, 235, 182, 252, 115, 192, 0, 0, 116, 46,
    228, 138, 112, 161, 32, 187, 164, 26, 46,
];
/// What numcodecs 0.16 writes for 0 to 63 (uint16) with `LZMA()`.
const LZMA_CHUNK: &[u8] = &[
    253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 22, 0, 0, 0, 116, 47, 229, 163, 224, 0, 127, 0, 101,
    93, 0, 0, 96, 2, 127, 243, 226, 115, 50, 63, 254, 237, 29, 229, 141, 222, 198, 199, 159, 55, 165, 218, 200, 222, 8,
    72, 196, 102, 79, 88, 70, 60, 163, 133, 198, 12, 57, 240, 108, 46, 135, 50, 179, 96, 116, 218, 141, 172, 25, 220,
    162, 98, 244, 12, 44, 82, 136, 135, 64, 252, 73, 156, 2, 51, 70, 123, 97, 114, 62, 53, 194, 77, 103, 115, 152, 89,
    8, 225, 67, 147, 71, 150, 253, 58, 128, 132, 3, 131, 136, 20, 137, 68, 14, 159, 7, 167, 68, 140, 202, 124, 106, 0,
    0, 0, 0, 0, 55, 106, 238, 35, 57, 253, 193, 96, 0, 1, 129, 1, 128, 1, 0, 0, 28, 230, 66, 199, 177, 196, 103, 251,
    2, 0, 0, 0, 0, 4, 89, 90,
];

#[test]
fn chunks_in_bz2_and_lzma_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = Samples::U16((0..64).collect());
    for (name, chunk) in [("bz2", BZ2_CHUNK), ("lzma", LZMA_CHUNK)] {
        let codec = format!("numcodecs.{name}");
        let to_bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
        let path = made(folder.path(), |_, array| array["codecs"] = json!([to_bytes, {"name": codec}]));
        std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
        std::fs::write(path.join("0/c/0/0/0"), chunk).unwrap();
        let image = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(image.meta().compression.as_str(), name);
        assert_eq!(image.read_all().unwrap().samples(), &wanted, "{name}");
        // Zarr 2 names the same codecs as compressors.
        let metadata = json!({"zarr_format": 2, "shape": [4, 4, 4], "chunks": [4, 4, 4], "dtype": "<u2", "fill_value": 0,
            "order": "C", "filters": null, "compressor": {"id": name, "level": 1, "format": 1}});
        std::fs::remove_file(path.join("0/zarr.json")).unwrap();
        std::fs::write(path.join("0/.zarray"), metadata.to_string()).unwrap();
        std::fs::write(path.join("0/0.0.0"), chunk).unwrap();
        let image = open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(image.read_all().unwrap().samples(), &wanted, "{name}");
        // A smaller chunk is expected: the rest is not decoded.
        std::fs::write(path.join("0/.zarray"), metadata.to_string().replace("[4,4,4]", "[4,4,3]")).unwrap();
        let refused = open(&path, &OpenOptions::default()).unwrap().read_all().unwrap_err();
        assert_eq!(refused.kind(), FormatErrorKind::Malformed, "{refused}");
        assert!(refused.to_string().contains("more than 96 bytes"), "{refused}");
    }
}

//! PCodec in OME-Zarr: what numcodecs wrote is read, with filters, further compression and shards too; damaged chunks and lists
//! of codecs that numcodecs does not write are refused.

use crate::common;
use crate::common::zarr::made;
use cytoscope_formats::{FormatError, FormatErrorKind, OpenOptions, is_zarr_folder, open};
use cytoscope_volume::Array;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Chunks of 600 samples that numcodecs encoded; `make_pcodec.py` beside the file says how.
const CHUNKS: &str = include_str!("../data/ome_zarr/pcodec.json");
const SHAPE: [usize; 3] = [4, 10, 15];

fn chunks() -> Vec<Value> {
    serde_json::from_str(CHUNKS).unwrap()
}

/// The first chunk of the samples of a type.
fn chunk_of(dtype: &str) -> Vec<u8> {
    stored(chunks().iter().find(|chunk| chunk["v3"] == dtype).unwrap())
}

fn stored(chunk: &Value) -> Vec<u8> {
    chunk["stored"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8).collect()
}

/// The samples of a chunk of a type.
fn expected(dtype: &str) -> Vec<f64> {
    let numbers = (0..600u32).map(|i| f64::from(i * i % 50));
    if dtype.starts_with("float") { numbers.map(|n| (n - 25.0) / 8.0).collect() } else { numbers.collect() }
}

/// Writes an image of Zarr 3 with one chunk.
fn version_3(folder: &Path, dtype: &str, codecs: Value, chunk: &[u8]) -> PathBuf {
    let path = made(folder, |_, array| {
        array["shape"] = json!(SHAPE);
        array["chunk_grid"]["configuration"]["chunk_shape"] = json!(SHAPE);
        array["data_type"] = json!(dtype);
        array["codecs"] = codecs;
    });
    std::fs::create_dir_all(path.join("0/c/0/0")).unwrap();
    std::fs::write(path.join("0/c/0/0/0"), chunk).unwrap();
    path
}

/// Writes an image of Zarr 2 with one chunk; `settings` replace those of its metadata.
fn version_2(folder: &Path, dtype: &str, settings: &Value, chunk: &[u8]) -> PathBuf {
    let path = made(folder, |_, _| {});
    let mut array = json!({"zarr_format": 2, "shape": SHAPE, "chunks": SHAPE, "dtype": dtype, "fill_value": 0,
        "order": "C", "filters": null, "compressor": {"id": "pcodec", "level": 8}});
    for (key, value) in settings.as_object().unwrap() {
        array[key] = value.clone();
    }
    std::fs::remove_file(path.join("0/zarr.json")).unwrap();
    std::fs::write(path.join("0/.zarray"), array.to_string()).unwrap();
    std::fs::write(path.join("0/0.0.0"), chunk).unwrap();
    path
}

fn read(path: &Path) -> Result<Array, FormatError> {
    open(path, &OpenOptions::default())?.read_all()
}

#[test]
fn chunks_that_numcodecs_encoded_with_pcodec_are_read() {
    let folder = tempfile::tempdir().unwrap();
    for chunk in chunks() {
        let (settings, dtype) = (&chunk["codec"], chunk["v3"].as_str().unwrap());
        let codec = json!({"name": "numcodecs.pcodec", "configuration": settings});
        let in_3 = version_3(folder.path(), dtype, json!([codec]), &stored(&chunk));
        let compressor = json!({"compressor": settings});
        let in_2 = version_2(folder.path(), chunk["v2"].as_str().unwrap(), &compressor, &stored(&chunk));
        for path in [in_3, in_2] {
            let image = open(&path, &OpenOptions::default()).unwrap();
            assert_eq!(image.meta().compression.as_str(), "pcodec");
            let array = image.read_all().unwrap_or_else(|e| panic!("{dtype} {settings}: {e}"));
            assert_eq!(array.dtype().to_string(), dtype);
            assert_eq!(array.samples().to_f64(), expected(dtype), "{dtype} {settings}");
        }
    }
}

#[test]
fn transposed_chunks_in_pcodec_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let chunk = chunk_of("uint16");
    let transpose = json!({"name": "transpose", "configuration": {"order": [2, 1, 0]}});
    let in_3 = version_3(folder.path(), "uint16", json!([transpose, {"name": "numcodecs.pcodec"}]), &chunk);
    let in_2 = version_2(folder.path(), "<u2", &json!({"order": "F"}), &chunk);
    let [depth, height, width] = SHAPE;
    let samples = expected("uint16");
    let place = |i: usize| {
        let (z, y, x) = (i / (height * width), i / width % height, i % width);
        (x * height + y) * depth + z
    };
    let wanted: Vec<f64> = (0..samples.len()).map(|i| samples[place(i)]).collect();
    for path in [in_3, in_2] {
        assert_eq!(read(&path).unwrap().samples().to_f64(), wanted);
    }
}

#[test]
fn pcodec_is_read_after_filters_before_compression_and_in_shards() {
    let folder = tempfile::tempdir().unwrap();
    let (chunk, pcodec) = (chunk_of("int32"), json!({"name": "numcodecs.pcodec"}));
    let zstd = zstd::bulk::compress(&chunk, 3).unwrap();
    let wanted = expected("int32");
    let compressed = version_3(folder.path(), "int32", json!([pcodec, {"name": "zstd"}]), &zstd);
    assert_eq!(read(&compressed).unwrap().samples().to_f64(), wanted);
    let filters = json!({"filters": [{"id": "pcodec"}], "compressor": {"id": "zstd"}});
    assert_eq!(read(&version_2(folder.path(), "<i4", &filters, &zstd)).unwrap().samples().to_f64(), wanted);
    // The stored numbers are differences.
    let mut sums = wanted.clone();
    for i in 1..sums.len() {
        sums[i] += sums[i - 1];
    }
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "int32"}});
    let differences = version_3(folder.path(), "int32", json!([delta, pcodec]), &chunk);
    assert_eq!(read(&differences).unwrap().samples().to_f64(), sums);
    let filters = json!({"filters": [{"id": "delta", "dtype": "<i4", "astype": "<i4"}]});
    assert_eq!(read(&version_2(folder.path(), "<i4", &filters, &chunk)).unwrap().samples().to_f64(), sums);
    let to_bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let sharding = json!({"name": "sharding_indexed", "configuration": {
        "chunk_shape": SHAPE, "codecs": [pcodec], "index_codecs": [to_bytes]}});
    let index = [0u64.to_le_bytes(), (chunk.len() as u64).to_le_bytes()].concat();
    let shard = version_3(folder.path(), "int32", json!([sharding]), &[chunk, index].concat());
    assert_eq!(read(&shard).unwrap().samples().to_f64(), wanted);
}

#[test]
fn damaged_chunks_in_pcodec_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let chunk = chunk_of("uint16");
    let codecs = json!([{"name": "numcodecs.pcodec"}]);
    let malformed = |dtype: &str, chunk: &[u8]| {
        let error = read(&version_3(folder.path(), dtype, codecs.clone(), chunk)).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
    };
    for end in [0, 1, 4, 5, 10, 20, 100, chunk.len() - 1] {
        malformed("uint16", &chunk[..end]);
    }
    // Numbers of another type, also of the same size, and more or fewer numbers than the chunk has.
    for dtype in ["int16", "float16", "uint8", "uint32"] {
        malformed(dtype, &chunk);
    }
    let resized = |chunk_shape: Value| {
        let settings = json!({"shape": chunk_shape, "chunks": chunk_shape});
        let error = read(&version_2(folder.path(), "<u2", &settings, &chunk)).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Malformed, "{error}");
        error.to_string()
    };
    let (longer, shorter) = (resized(json!([4, 10, 14])), resized(json!([4, 10, 16])));
    assert!(longer.contains("more than 1120 bytes"), "{longer}");
    assert!(shorter.contains("1200 bytes; 1280 were expected"), "{shorter}");
    // A changed byte gives other samples or an error, but does not end the program.
    let path = version_3(folder.path(), "uint16", codecs.clone(), &chunk);
    let mut refused = 0;
    for at in 0..chunk.len() {
        let mut changed = chunk.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(path.join("0/c/0/0/0"), changed).unwrap();
        refused += usize::from(read(&path).is_err());
    }
    assert!(refused > 0, "no change was noticed");
}

#[test]
fn lists_of_codecs_that_numcodecs_does_not_write_with_pcodec_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let chunk = chunk_of("uint16");
    let refused = |path: PathBuf| {
        let error = read(&path).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{error}");
        error.to_string()
    };
    let big_endian = refused(version_2(folder.path(), ">u2", &json!({}), &chunk));
    assert!(big_endian.contains("\"pcodec\" in big-endian order"), "{big_endian}");
    let shuffled = json!({"filters": [{"id": "shuffle", "elementsize": 2}]});
    let after_bytes = refused(version_2(folder.path(), "<u2", &shuffled, &chunk));
    assert!(after_bytes.contains("\"pcodec\" comes after the codec \"shuffle\""), "{after_bytes}");
    let (to_bytes, pcodec) = (json!({"name": "bytes"}), json!({"name": "numcodecs.pcodec"}));
    for codecs in [json!([to_bytes, pcodec]), json!([pcodec, to_bytes]), json!([pcodec, pcodec])] {
        refused(version_3(folder.path(), "uint8", codecs, &chunk));
    }
}

#[test]
fn pcodec_of_zarr_python_is_read() {
    let Some(python) = common::python_with("zarr, numcodecs, numpy, pcodec") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import sys, warnings, numpy, numcodecs, zarr
from numcodecs.pcodec import PCodec
try:
    import zarr.codecs.numcodecs as three
except ImportError:
    import numcodecs.zarr3 as three
warnings.simplefilter("ignore")
out = sys.argv[1]
shape = (5, 33, 47)
u2 = (numpy.indices(shape) * numpy.array([2000, 30, 1])[:, None, None, None]).sum(0).astype("<u2")
f8 = numpy.sin(u2.astype("<f8")) * 100
axes = [{"name": a, "type": "space"} for a in "zyx"]
sets = [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [3, 2, 1]}]}]
def put(name, version, data, chunks=(2, 16, 31), **options):
    group = zarr.open_group(f"{out}/{name}.zarr", mode="w", zarr_format=version)
    group.create_array("0", data=data, chunks=chunks, **options)
    meta = {"version": "0.4", "axes": axes, "datasets": sets}
    group.attrs.update({"multiscales": [meta]} if version == 2 else {"ome": {"version": "0.5", "multiscales": [meta]}})
    wanted = zarr.open_group(f"{out}/{name}.zarr", mode="r")["0"][...]
    numpy.save(f"{out}/{name}.npy", numpy.ascontiguousarray(wanted))
types = [u2, f8, *(u2.astype(t) for t in ["u4", "u8", "i2", "i4", "i8"]), f8.astype("f4"), f8.astype("f2")]
for i, data in enumerate(types):
    put(f"v2_{i}", 2, data, compressors=PCodec())
    put(f"v2_{i}_pages", 2, data, filters=[PCodec(equal_pages_up_to=300)], compressors=numcodecs.Zstd(), order="F")
    # Only chunks as wide as the array: zarr 3.1.6 passes others to numcodecs in a form that it refuses.
    put(f"v3_{i}", 3, data, (1, 16, 47), serializer=three.PCodec(), compressors=None)
    put(f"v3_{i}_shards", 3, data, (1, 11, 47), shards=(4, 33, 47), serializer=three.PCodec(), compressors=None)
put("v2_delta", 2, u2, filters=[numcodecs.Delta("<u2", "<i4")], compressors=PCodec())
put("v3_delta", 3, u2, filters=[three.Delta(dtype="uint16", astype="int32")], serializer=three.PCodec(), compressors=None)
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
    assert!(count >= 38, "{count} folders");
}

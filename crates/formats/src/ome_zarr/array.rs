//! Metadata of a Zarr array, version 2 or 3, checked before any chunk is read.

use super::checksums::CHECKSUM_BYTES;
use super::codec_chain::Chain;
use super::codecs::{BytesCodec, filtered_bytes};
use super::fill_value::fill_value;
use super::filters::{Filter, SampleType, TypeNames, numpy_dtype};
use super::folder::{Folder, join};
use crate::{
    chunk_cache::CACHE_BYTES,
    error::{Fault, Remedy},
    limits::Limits,
    meta::ByteOrder,
};
use cytoscope_volume::{DType, element_count};
use serde_json::{Map, Value};

/// Largest number of axes: T, Z, C, Y, X.
pub(crate) const MAX_AXES: usize = 5;
/// Largest index of a shard in bytes, so that it fits the cache: the index is needed for each chunk of the shard.
const MAX_INDEX_BYTES: u64 = CACHE_BYTES[0] as u64 / 2;
/// Largest number of codecs and filters of an array. A chunk is decoded once for each.
const MAX_CODECS: usize = 16;

/// An array whose metadata have been checked. Extents and strides are along the array's own axes, outermost first.
#[derive(Debug, Clone)]
pub(crate) struct ZarrArray {
    /// Path inside the folder.
    path: String,
    /// Number of samples along each axis.
    pub shape: Vec<usize>,
    /// Sample type.
    pub dtype: DType,
    /// Byte order of the samples in decoded chunks.
    pub order: ByteOrder,
    /// Extents of a file: a chunk or a shard.
    pub file_shape: Vec<usize>,
    /// Extents of what is decoded at once: a chunk, or an inner chunk of a shard.
    pub chunk_shape: Vec<usize>,
    /// Strides of a decoded chunk in samples.
    pub chunk_strides: Vec<usize>,
    /// The sample that fills chunks that are not stored, in native byte order.
    pub fill: Vec<u8>,
    /// Codecs in the order in which they encode; decoding is the other way around.
    pub codecs: Vec<BytesCodec>,
    /// How shards are read; `None` if each file is one chunk.
    pub shards: Option<Shards>,
    keys: KeyEncoding,
}

/// How the inner chunks of a shard are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shards {
    /// Whether the index is at the end of the file; otherwise it is at the start.
    pub index_at_end: bool,
    /// Whether a checksum (CRC-32C) follows the index.
    pub index_has_checksum: bool,
}

/// How the name of a chunk's file is made from its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyEncoding {
    /// Text before the position.
    prefix: &'static str,
    separator: char,
}

impl ZarrArray {
    /// Reads and checks the metadata of the array at a path inside the folder.
    pub fn open(folder: &Folder, path: &str, limits: &Limits) -> Result<Self, Fault> {
        let array = if let Some(node) = folder.json(&join(path, "zarr.json"))? {
            parse_v3(&node, path)?
        } else if let Some(node) = folder.json(&join(path, ".zarray"))? {
            parse_v2(&node, path)?
        } else {
            return Err(Fault::malformed(format!("its array {path:?} is missing (no zarr.json and no .zarray)")));
        };
        array.check(limits)?;
        Ok(array)
    }

    /// Path of the array inside the folder.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Path inside the folder of the file at a position of the grid of files.
    pub fn file_key(&self, at: &[usize]) -> String {
        let numbers: Vec<String> = at.iter().map(usize::to_string).collect();
        let separator = self.keys.separator;
        let name = match self.keys.prefix {
            "" => numbers.join(&separator.to_string()),
            prefix => format!("{prefix}{separator}{}", numbers.join(&separator.to_string())),
        };
        join(&self.path, &name)
    }

    /// Bytes of a decoded chunk. It has been checked that they fit.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_shape.iter().product::<usize>() * self.dtype.size_bytes()
    }

    /// Number of chunks along each axis of a shard; 1 if the array is not sharded.
    pub fn chunks_per_file(&self) -> Vec<usize> {
        self.file_shape.iter().zip(&self.chunk_shape).map(|(file, chunk)| file / chunk).collect()
    }

    /// Bytes of the index of a shard as stored, with its checksum.
    pub fn index_bytes(&self, shards: Shards) -> usize {
        let entries: usize = self.chunks_per_file().iter().product();
        entries.saturating_mul(ENTRY_BYTES) + if shards.index_has_checksum { CHECKSUM_BYTES } else { 0 }
    }

    fn check(&self, limits: &Limits) -> Result<(), Fault> {
        let rank = self.shape.len();
        if self.file_shape.len() != rank || self.chunk_shape.len() != rank {
            return Err(Fault::malformed(format!(
                "the array {:?} has {rank} axes, but its chunks have {} and {}",
                self.path,
                self.file_shape.len(),
                self.chunk_shape.len()
            )));
        }
        let size = self.dtype.size_bytes();
        let bytes = |shape: &[usize]| element_count(shape).ok().and_then(|n| n.checked_mul(size)).unwrap_or(usize::MAX);
        if bytes(&self.shape) == usize::MAX || bytes(&self.file_shape) == usize::MAX {
            let what = format!("an array of shape {:?} in chunks of {:?} is too large", self.shape, self.file_shape);
            return Err(Fault::malformed(what));
        }
        if self.codecs.len() > MAX_CODECS {
            let (what, count) = ("the number of codecs of an array", self.codecs.len() as u64);
            return Err(Fault::over(what, count, "MAX_CODECS", MAX_CODECS as u64, Remedy::CopyAgain));
        }
        // Filters may store samples of a larger type.
        let after = |count: usize| {
            let codecs = self.codecs.get(..count).unwrap_or_default();
            filtered_bytes(codecs, bytes(&self.chunk_shape)) as u64
        };
        let chunk = (0..=self.codecs.len()).map(after).max().unwrap_or(0);
        if chunk > limits.max_chunk_bytes {
            return Err(Fault::over(
                "the size of a chunk in bytes",
                chunk,
                "max_chunk_bytes",
                limits.max_chunk_bytes,
                Remedy::SmallerChunks,
            ));
        }
        if self.file_shape.iter().zip(&self.chunk_shape).any(|(file, chunk)| file % chunk != 0) {
            return Err(Fault::malformed(format!(
                "shards of {:?} cannot be divided into chunks of {:?}",
                self.file_shape, self.chunk_shape
            )));
        }
        if let Some(shards) = self.shards {
            let index = self.index_bytes(shards) as u64;
            if index > limits.max_metadata_bytes {
                let what = "the size of a shard's index in bytes";
                return Err(Fault::over(
                    what,
                    index,
                    "max_metadata_bytes",
                    limits.max_metadata_bytes,
                    Remedy::LargerChunks,
                ));
            }
            if index > MAX_INDEX_BYTES {
                let what = "the size of a shard's index in bytes";
                return Err(Fault::over(what, index, "MAX_INDEX_BYTES", MAX_INDEX_BYTES, Remedy::LargerChunks));
            }
        }
        Ok(())
    }
}

/// Bytes of an entry of a shard's index: offset and length.
pub(crate) const ENTRY_BYTES: usize = 16;

/// Strides in samples of a chunk stored in C order after `order` was applied: stored axis `i` is axis `order[i]`.
fn sample_strides(shape: &[usize], order: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1usize;
    for axis in order.iter().rev() {
        if let (Some(stride), Some(n)) = (strides.get_mut(*axis), shape.get(*axis)) {
            *stride = step;
            step = step.saturating_mul(*n);
        }
    }
    strides
}

/// The number of samples along each axis of an array.
fn array_shape(node: &Map<String, Value>, path: &str) -> Result<Vec<usize>, Fault> {
    let shape = extents(node, "shape")?;
    if !(2..=MAX_AXES).contains(&shape.len()) {
        let next_step = "choose an array with the axes y, x and any of t, c, z";
        return Err(Fault::unsupported(format!("the array {path:?} has {} axes", shape.len()), next_step));
    }
    Ok(shape)
}

/// The error for an entry that is not what was expected.
fn wrong_entry(key: &str, found: &Value, expected: &str) -> Fault {
    let shown: String = found.to_string().chars().take(80).collect();
    Fault::malformed(format!("{key} is {shown}; {expected} was expected"))
}

/// A list of positive extents.
pub(super) fn extents(node: &Map<String, Value>, key: &str) -> Result<Vec<usize>, Fault> {
    let wrong = |found: &Value| wrong_entry(key, found, "a list of whole numbers above 0");
    let value = node.get(key).unwrap_or(&Value::Null);
    let Some(list) = value.as_array() else { return Err(wrong(value)) };
    let one = |n: &Value| n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    list.iter().map(|n| one(n).ok_or_else(|| wrong(value))).collect()
}

pub(super) fn text<'a>(node: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    node.get(key).and_then(Value::as_str)
}

fn parse_v2(node: &Map<String, Value>, path: &str) -> Result<ZarrArray, Fault> {
    let (shape, chunk_shape) = (array_shape(node, path)?, extents(node, "chunks")?);
    let (dtype, order) = dtype_v2(text(node, "dtype").unwrap_or("structured or unstated"))?;
    // Filters are applied before the compressor.
    let filters: &[Value] = match node.get("filters") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(filters)) => filters.as_slice(),
        Some(other) => return Err(wrong_entry("filters", other, "a list")),
    };
    let compressor = node.get("compressor").filter(|compressor| !compressor.is_null());
    let mut samples = SampleType { dtype, order };
    let mut codecs = Vec::new();
    for entry in filters.iter().chain(compressor) {
        let codec = codec_v2(entry, samples, &codecs)?;
        if let BytesCodec::Filter(filter) = codec {
            samples = filter.stored();
        }
        codecs.push(codec);
    }
    let mut stored: Vec<usize> = (0..shape.len()).collect();
    match node.get("order").map(|order| (order, order.as_str())) {
        None | Some((_, Some("C"))) => {}
        Some((_, Some("F"))) => stored.reverse(),
        Some((other, _)) => return Err(wrong_entry("order", other, "\"C\" or \"F\"")),
    }
    let separator = separator(text(node, "dimension_separator").unwrap_or("."))?;
    Ok(ZarrArray {
        path: path.to_owned(),
        chunk_strides: sample_strides(&chunk_shape, &stored),
        file_shape: chunk_shape.clone(),
        shape,
        dtype,
        order,
        chunk_shape,
        fill: fill_value(dtype, node.get("fill_value").unwrap_or(&Value::Null))?,
        codecs,
        shards: None,
        keys: KeyEncoding { prefix: "", separator },
    })
}

/// The compressor or filter of an entry in Zarr 2, for samples of the type that the codecs `before` it store.
fn codec_v2(entry: &Value, samples: SampleType, before: &[BytesCodec]) -> Result<BytesCodec, Fault> {
    let settings = entry.as_object().ok_or_else(|| Fault::malformed("its compressor or a filter has no settings"))?;
    let id = text(settings, "id").ok_or_else(|| Fault::malformed("its compressor or a filter has no id"))?;
    if BytesCodec::is_pcodec(id) {
        return BytesCodec::pcodec(samples, before);
    }
    match Filter::parse(id, settings, samples, TypeNames::WithOrder)? {
        Some(filter) => Ok(BytesCodec::Filter(filter)),
        None => BytesCodec::parse(id, settings),
    }
}

fn separator(text: &str) -> Result<char, Fault> {
    match text {
        "." => Ok('.'),
        "/" => Ok('/'),
        other => Err(Fault::malformed(format!("the separator of its chunk names is {other:?}, expected . or /"))),
    }
}

fn dtype_v2(name: &str) -> Result<(DType, ByteOrder), Fault> {
    let order = if name.starts_with('>') { ByteOrder::Big } else { ByteOrder::Little };
    let dtype = numpy_dtype(name.trim_start_matches(['<', '>', '|']));
    Ok((dtype.ok_or_else(|| unsupported_type(name))?, order))
}

fn unsupported_type(name: &str) -> Fault {
    Fault::unsupported(
        format!("its samples have the type {name:?}"),
        "save it as integers of 8 to 64 bits or floats of 16 to 64 bits",
    )
}

/// A node of the codec list of Zarr 3: its name and configuration.
pub(super) fn named(value: &Value) -> Result<(&str, Map<String, Value>), Fault> {
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str));
    let name = name.ok_or_else(|| Fault::malformed("an entry of zarr.json has no name"))?;
    let configuration = value.get("configuration").and_then(Value::as_object).cloned().unwrap_or_default();
    Ok((name, configuration))
}

fn parse_v3(node: &Map<String, Value>, path: &str) -> Result<ZarrArray, Fault> {
    if text(node, "node_type") != Some("array") {
        return Err(Fault::malformed(format!("{path:?} is not an array (node_type in its zarr.json)")));
    }
    let is_empty = |list: &Value| list.is_null() || list.as_array().is_some_and(Vec::is_empty);
    if node.get("storage_transformers").is_some_and(|list| !is_empty(list)) {
        let next_step = "write it again without storage transformers";
        return Err(Fault::unsupported("it uses storage transformers, which are not supported", next_step));
    }
    let shape = array_shape(node, path)?;
    let (grid, configuration) = named(node.get("chunk_grid").unwrap_or(&Value::Null))?;
    if grid != "regular" {
        let next_step = "write it again with chunks of one size";
        return Err(Fault::unsupported(format!("its chunk grid {grid:?} is not supported"), next_step));
    }
    let file_shape = extents(&configuration, "chunk_shape")?;
    let keys = match node.get("chunk_key_encoding") {
        None => KeyEncoding { prefix: "c", separator: '/' },
        Some(value) => match named(value)? {
            ("default", c) => KeyEncoding { prefix: "c", separator: separator(text(&c, "separator").unwrap_or("/"))? },
            ("v2", c) => KeyEncoding { prefix: "", separator: separator(text(&c, "separator").unwrap_or("."))? },
            (other, _) => {
                let next_step = "write it again with the chunk key encoding \"default\"";
                return Err(Fault::unsupported(
                    format!("its chunk key encoding {other:?} is not supported"),
                    next_step,
                ));
            }
        },
    };
    let name = text(node, "data_type").unwrap_or("structured or unstated");
    let dtype = match name {
        "bool" => DType::U8,
        other => other.parse::<DType>().map_err(|_| unsupported_type(name))?,
    };
    let chain = Chain::parse(node.get("codecs"), &file_shape, dtype, true)?;
    Ok(ZarrArray {
        path: path.to_owned(),
        shape,
        dtype,
        order: chain.order,
        file_shape,
        chunk_strides: sample_strides(&chain.chunk_shape, &chain.stored),
        chunk_shape: chain.chunk_shape,
        fill: fill_value(dtype, node.get("fill_value").unwrap_or(&Value::Null))?,
        codecs: chain.codecs,
        shards: chain.shards,
        keys,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use serde_json::json;

    #[test]
    fn arrays_with_very_many_filters_are_refused() {
        let check = |count: usize| {
            let filters = vec![json!({"id": "shuffle", "elementsize": 2}); count];
            let node = json!({"shape": [4, 4], "chunks": [4, 4], "dtype": "<u2", "fill_value": 0, "order": "C",
                "filters": filters, "compressor": null});
            parse_v2(node.as_object().unwrap(), "0").unwrap().check(&Limits::default()).is_ok()
        };
        assert_eq!((check(MAX_CODECS), check(MAX_CODECS + 1)), (true, false));
    }

    #[test]
    fn transposed_chunks_have_permuted_strides() {
        let codecs = json!([{"name": "transpose", "configuration": {"order": [2, 0, 1]}}, {"name": "bytes"}]);
        let chain = Chain::parse(Some(&codecs), &[2, 3, 4], DType::U8, true).unwrap();
        // Stored with the extents 4, 2, 3.
        assert_eq!(sample_strides(&chain.chunk_shape, &chain.stored), [3, 1, 6]);
        for order in [json!([0, 0, 1]), json!([2, 0, 1, -1]), json!(["a", 2, 0, 1])] {
            let wrong = json!([{"name": "transpose", "configuration": {"order": order}}, {"name": "bytes"}]);
            assert!(matches!(Chain::parse(Some(&wrong), &[2, 3, 4], DType::U8, true), Err(Fault::Malformed(..))));
        }
    }
}

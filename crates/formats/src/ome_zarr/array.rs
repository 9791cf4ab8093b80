//! Metadata of a Zarr array, version 2 or 3, checked before any chunk is read.

use super::cache::CACHE_BYTES;
use super::checksums::CHECKSUM_BYTES;
use super::codecs::{BytesCodec, filtered_bytes};
use super::filters::{Filter, SampleType, TypeNames, numpy_dtype};
use super::folder::{Folder, join};
use crate::{error::Fault, limits::Limits, meta::ByteOrder};
use cytoscope_volume::{DType, element_count};
use half::f16;
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
            return Err(Fault::over(what, count, "MAX_CODECS", MAX_CODECS as u64));
        }
        // Filters may store samples of a larger type.
        let after = |count: usize| {
            let codecs = self.codecs.get(..count).unwrap_or_default();
            filtered_bytes(codecs, bytes(&self.chunk_shape)) as u64
        };
        let chunk = (0..=self.codecs.len()).map(after).max().unwrap_or(0);
        if chunk > limits.max_chunk_bytes {
            return Err(Fault::over("the size of a chunk in bytes", chunk, "max_chunk_bytes", limits.max_chunk_bytes));
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
                return Err(Fault::over(what, index, "max_metadata_bytes", limits.max_metadata_bytes));
            }
            if index > MAX_INDEX_BYTES {
                let what = "the size of a shard's index in bytes";
                return Err(Fault::over(what, index, "MAX_INDEX_BYTES", MAX_INDEX_BYTES));
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

/// A list of positive extents.
fn extents(node: &Map<String, Value>, key: &str) -> Result<Vec<usize>, Fault> {
    let wrong = |found: &Value| {
        let shown: String = found.to_string().chars().take(80).collect();
        Fault::malformed(format!("{key} is {shown}; a list of whole numbers above 0 was expected"))
    };
    let value = node.get(key).unwrap_or(&Value::Null);
    let Some(list) = value.as_array() else { return Err(wrong(value)) };
    let one = |n: &Value| n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    list.iter().map(|n| one(n).ok_or_else(|| wrong(value))).collect()
}

fn text<'a>(node: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    node.get(key).and_then(Value::as_str)
}

fn parse_v2(node: &Map<String, Value>, path: &str) -> Result<ZarrArray, Fault> {
    let (shape, chunk_shape) = (array_shape(node, path)?, extents(node, "chunks")?);
    let (dtype, order) = dtype_v2(text(node, "dtype").unwrap_or("structured or unstated"))?;
    // Filters are applied before the compressor.
    let filters = node.get("filters").and_then(Value::as_array).into_iter().flatten();
    let compressor = node.get("compressor").filter(|compressor| !compressor.is_null());
    let mut samples = SampleType { dtype, order };
    let mut codecs = Vec::new();
    for entry in filters.chain(compressor) {
        let codec = codec_v2(entry, samples)?;
        if let BytesCodec::Filter(filter) = codec {
            samples = filter.stored();
        }
        codecs.push(codec);
    }
    let mut stored: Vec<usize> = (0..shape.len()).collect();
    match text(node, "order").unwrap_or("C") {
        "C" => {}
        "F" => stored.reverse(),
        other => return Err(Fault::malformed(format!("order is {other:?}, \"C\" or \"F\" was expected"))),
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

/// The compressor or filter of an entry in Zarr 2, for samples of the type that the filters before it store.
fn codec_v2(entry: &Value, samples: SampleType) -> Result<BytesCodec, Fault> {
    let settings = entry.as_object().ok_or_else(|| Fault::malformed("its compressor or a filter has no settings"))?;
    let id = text(settings, "id").ok_or_else(|| Fault::malformed("its compressor or a filter has no id"))?;
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
fn named(value: &Value) -> Result<(&str, Map<String, Value>), Fault> {
    let name = value.as_str().or_else(|| value.get("name").and_then(Value::as_str));
    let name = name.ok_or_else(|| Fault::malformed("an entry of zarr.json has no name"))?;
    let configuration = value.get("configuration").and_then(Value::as_object).cloned().unwrap_or_default();
    Ok((name, configuration))
}

fn parse_v3(node: &Map<String, Value>, path: &str) -> Result<ZarrArray, Fault> {
    if text(node, "node_type") != Some("array") {
        return Err(Fault::malformed(format!("{path:?} is not an array (node_type in its zarr.json)")));
    }
    if node.get("storage_transformers").and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
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

/// The codecs of an array in Zarr 3.
struct Chain {
    /// Axes in the order in which they are stored.
    stored: Vec<usize>,
    order: ByteOrder,
    codecs: Vec<BytesCodec>,
    chunk_shape: Vec<usize>,
    shards: Option<Shards>,
}

fn unsupported_order() -> Fault {
    Fault::unsupported("the order of its codecs is not supported", "write it again with the codecs bytes and zstd")
}

impl Chain {
    /// Reads a list of codecs for chunks of a shape and a type.
    fn parse(list: Option<&Value>, chunk_shape: &[usize], dtype: DType, may_be_sharded: bool) -> Result<Self, Fault> {
        let Some(list) = list.and_then(Value::as_array) else {
            return Err(Fault::malformed("its zarr.json has no list of codecs"));
        };
        // Each codec that transposes takes as long as the number of axes.
        if chunk_shape.len() > MAX_AXES {
            return Err(Fault::malformed(format!("its chunks have {} axes", chunk_shape.len())));
        }
        let mut chain = Self {
            stored: (0..chunk_shape.len()).collect(),
            order: ByteOrder::Little,
            codecs: Vec::new(),
            chunk_shape: chunk_shape.to_vec(),
            shards: None,
        };
        let mut to_bytes = false;
        let mut is_order_stated = false;
        let mut filters = Vec::new();
        for entry in list {
            match named(entry)? {
                ("transpose", configuration) if !to_bytes => chain.transpose(&configuration)?,
                ("bytes" | "endian", configuration) if !to_bytes => {
                    to_bytes = true;
                    let endian = text(&configuration, "endian");
                    is_order_stated = endian.is_some();
                    chain.order = match endian {
                        None | Some("little") => ByteOrder::Little,
                        Some("big") => ByteOrder::Big,
                        Some(other) => return Err(Fault::malformed(format!("unknown byte order {other:?}"))),
                    };
                }
                ("sharding_indexed", configuration) if !to_bytes && may_be_sharded => {
                    to_bytes = true;
                    // The codecs inside the shards are checked by themselves.
                    is_order_stated = true;
                    if !chain.stored.is_sorted() {
                        let next_step = "write it again without a transpose before the sharding";
                        return Err(Fault::unsupported("its shards are transposed, which is not supported", next_step));
                    }
                    chain = Self::sharded(&configuration, dtype)?;
                }
                ("transpose" | "bytes" | "endian" | "sharding_indexed", _) => return Err(unsupported_order()),
                (name, configuration) if !to_bytes => filters.push((name, configuration)),
                (_, _) if chain.shards.is_some() && may_be_sharded => {
                    let next_step = "write it again with compressed chunks inside the shards";
                    return Err(Fault::unsupported("its shards are compressed as a whole", next_step));
                }
                (name, configuration) => chain.codecs.push(BytesCodec::parse(name, &configuration)?),
            }
        }
        let stored = chain.add_filters(filters, dtype)?;
        if !to_bytes {
            return Err(Fault::malformed("its codecs do not include \"bytes\""));
        }
        if !is_order_stated && stored.size_bytes() > 1 {
            return Err(Fault::malformed("its codec \"bytes\" does not state the byte order (\"endian\")"));
        }
        Ok(chain)
    }

    /// Adds filters of samples of a type before the other codecs; returns the type of the samples after them.
    fn add_filters(&mut self, filters: Vec<(&str, Map<String, Value>)>, dtype: DType) -> Result<DType, Fault> {
        let mut samples = SampleType { dtype, order: self.order };
        let mut codecs = Vec::with_capacity(filters.len() + self.codecs.len());
        for (name, configuration) in filters {
            let Some(filter) = Filter::parse(name, &configuration, samples, TypeNames::OfChunk)? else {
                // A codec that is not known is refused by its name.
                BytesCodec::parse(name, &configuration)?;
                return Err(Fault::malformed(format!("its codec {name:?} comes before the codec \"bytes\"")));
            };
            if self.shards.is_some() || !self.stored.is_sorted() {
                let problem = format!("its filter {name:?} before shards or with a transpose is not supported");
                return Err(Fault::unsupported(problem, "write it again without filters"));
            }
            samples = filter.stored();
            codecs.push(BytesCodec::Filter(filter));
        }
        codecs.append(&mut self.codecs);
        self.codecs = codecs;
        Ok(samples.dtype)
    }

    fn transpose(&mut self, configuration: &Map<String, Value>) -> Result<(), Fault> {
        let rank = self.stored.len();
        let order: Vec<usize> = match configuration.get("order") {
            // An order with anything but numbers is empty, and refused below.
            Some(Value::Array(list)) => {
                let numbers = list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok()));
                numbers.collect::<Option<_>>().unwrap_or_default()
            }
            Some(Value::String(letter)) if letter == "F" => (0..rank).rev().collect(),
            Some(Value::String(letter)) if letter == "C" => (0..rank).collect(),
            _ => Vec::new(),
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..rank) {
            return Err(Fault::malformed("the order of its transpose codec is not a permutation of the axes"));
        }
        self.stored = order.iter().filter_map(|axis| self.stored.get(*axis).copied()).collect();
        Ok(())
    }

    fn sharded(configuration: &Map<String, Value>, dtype: DType) -> Result<Self, Fault> {
        let chunk_shape = extents(configuration, "chunk_shape")?;
        let mut chain = Self::parse(configuration.get("codecs"), &chunk_shape, dtype, false)?;
        // Without them, it is unknown whether a checksum follows the index, and thus where the index starts.
        let index_codecs = configuration.get("index_codecs").and_then(Value::as_array).filter(|list| !list.is_empty());
        let missing = || Fault::malformed("its shards state no codecs of their index (index_codecs)");
        let mut index_has_checksum = false;
        for (i, entry) in index_codecs.ok_or_else(missing)?.iter().enumerate() {
            match named(entry)? {
                ("bytes" | "endian", c) if i == 0 && text(&c, "endian") == Some("little") => {}
                ("crc32c", _) if i == 1 => index_has_checksum = true,
                (name, _) => {
                    let next_step = "write it again with the index codecs bytes (little) and crc32c";
                    return Err(Fault::unsupported(format!("the index of its shards uses {name:?}"), next_step));
                }
            }
        }
        let index_at_end = match text(configuration, "index_location") {
            None | Some("end") => true,
            Some("start") => false,
            Some(other) => return Err(Fault::malformed(format!("unknown place {other:?} of the index of its shards"))),
        };
        chain.shards = Some(Shards { index_at_end, index_has_checksum });
        Ok(chain)
    }
}

/// Whole numbers up to this one, 2⁵³, are exact in 64-bit floats.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// The fill value in native byte order.
fn fill_value(dtype: DType, value: &Value) -> Result<Vec<u8>, Fault> {
    let size = dtype.size_bytes();
    let wrong = || {
        let shown: String = value.to_string().chars().take(80).collect();
        Fault::malformed(format!("the fill value {shown} is not a value of the type {dtype}"))
    };
    let number = match value {
        Value::Null | Value::Bool(false) => return Ok(vec![0; size]),
        Value::Bool(true) => 1.0,
        Value::Number(number) => number.as_f64().ok_or_else(wrong)?,
        Value::String(name) => match name.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            hex => return hexadecimal(hex, size).ok_or_else(wrong),
        },
        _ => return Err(wrong()),
    };
    let is_exact = number.fract() == 0.0 && number.abs() < MAX_EXACT_INTEGER;
    let bytes = match dtype {
        DType::F64 => number.to_ne_bytes().to_vec(),
        DType::F32 => (number as f32).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(number).to_ne_bytes().to_vec(),
        DType::U64 => {
            let exact = (is_exact && number >= 0.0).then_some(number as u64);
            value.as_u64().or(exact).ok_or_else(wrong)?.to_ne_bytes().to_vec()
        }
        _ => {
            let integer = value.as_i64().or(is_exact.then_some(number as i64)).ok_or_else(wrong)?;
            let bits = size as u32 * 8;
            let (low, high) = match dtype {
                DType::I8 | DType::I16 | DType::I32 | DType::I64 => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
                _ => (0, i64::MAX >> (63 - bits)),
            };
            if integer < low || integer > high {
                return Err(wrong());
            }
            let bytes = integer.to_le_bytes();
            let mut native = bytes.get(..size).unwrap_or_default().to_vec();
            if cfg!(target_endian = "big") {
                native.reverse();
            }
            native
        }
    };
    Ok(bytes)
}

/// The bits of a float, most significant digit first, such as `0x7fc00000`.
fn hexadecimal(text: &str, size: usize) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == size * 2 && digits.is_ascii())?;
    let bits = u64::from_str_radix(digits, 16).ok()?;
    let mut native = bits.to_le_bytes().get(..size)?.to_vec();
    if cfg!(target_endian = "big") {
        native.reverse();
    }
    Some(native)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use serde_json::json;

    #[test]
    fn fill_values_have_the_bytes_of_their_type() {
        let of = |dtype: DType, value: Value| fill_value(dtype, &value).ok();
        assert_eq!(of(DType::U16, json!(258)), Some(258u16.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::I16, json!(-2)), Some((-2i16).to_ne_bytes().to_vec()));
        assert_eq!(of(DType::U64, json!(u64::MAX)), Some(vec![255; 8]));
        assert_eq!(of(DType::U64, json!(0.0)), Some(vec![0; 8]));
        assert_eq!(of(DType::U64, json!(7.0)), Some(7u64.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::I64, json!(i64::MIN)), Some(i64::MIN.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::F32, json!("-Infinity")), Some(f32::NEG_INFINITY.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::F32, json!("0x3f800000")), Some(1f32.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::U8, Value::Null), Some(vec![0]));
        assert_eq!(of(DType::U8, json!(true)), Some(vec![1]));
        for (dtype, value) in [
            (DType::U8, json!(256)),
            (DType::U8, json!(-1)),
            (DType::U16, json!(1.5)),
            (DType::U16, json!("NaN")),
            (DType::U64, json!(-1)),
            (DType::U64, json!(-1.0)),
            (DType::U64, json!(1.5)),
            (DType::I64, json!(1e19)),
            (DType::F32, json!("0x3f80")),
            (DType::U8, json!([0])),
        ] {
            assert_eq!(of(dtype, value.clone()), None, "{dtype} {value}");
        }
    }

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

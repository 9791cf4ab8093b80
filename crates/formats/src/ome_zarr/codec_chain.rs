//! The list of codecs of an array in Zarr 3: order of the axes and bytes, filters, compressors, and sharding.

use super::array::{MAX_AXES, Shards, extents, named, text};
use super::codecs::BytesCodec;
use super::filters::{Filter, SampleType, TypeNames};
use crate::{error::Fault, meta::ByteOrder};
use cytoscope_volume::DType;
use serde_json::{Map, Value};

/// The codecs of an array in Zarr 3.
pub(super) struct Chain {
    /// Axes in the order in which they are stored.
    pub stored: Vec<usize>,
    /// Byte order of the samples in decoded chunks.
    pub order: ByteOrder,
    /// Codecs in the order in which they encode.
    pub codecs: Vec<BytesCodec>,
    /// Extents of what is decoded at once: a chunk, or an inner chunk of a shard.
    pub chunk_shape: Vec<usize>,
    /// How shards are read; `None` if each file is one chunk.
    pub shards: Option<Shards>,
}

fn unsupported_order() -> Fault {
    Fault::unsupported("the order of its codecs is not supported", "write it again with the codecs bytes and zstd")
}

impl Chain {
    /// Reads a list of codecs for chunks of a shape and a type.
    pub fn parse(
        list: Option<&Value>,
        chunk_shape: &[usize],
        dtype: DType,
        may_be_sharded: bool,
    ) -> Result<Self, Fault> {
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
        let mut is_pcodec = false;
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
                (name, _) if BytesCodec::is_pcodec(name) => {
                    if to_bytes {
                        return Err(unsupported_order());
                    }
                    // It takes the place of the codec "bytes"; what it stores does not depend on a byte order.
                    (to_bytes, is_order_stated, is_pcodec) = (true, true, true);
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
        let filter_count = filters.len();
        let stored = chain.add_filters(filters, dtype)?;
        if is_pcodec {
            let samples = SampleType { dtype: stored, order: chain.order };
            let codec = BytesCodec::pcodec(samples, chain.codecs.get(..filter_count).unwrap_or_default())?;
            chain.codecs.insert(filter_count, codec);
        }
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

//! Names of the links in a group. The library lists the members of a group only if it can read each of them.

use super::file::MAX_HEADER_BYTES;
use hdf5_reader::{
    Storage,
    btree_v1::collect_btree_v1_leaves_storage,
    btree_v2::{BTreeV2Header, BTreeV2Record, collect_btree_v2_records_storage},
    error::{Error, Result},
    fractal_heap::{FractalHeap, FractalHeapDirectBlockCache},
    group::Group,
    io::Cursor,
    local_heap::LocalHeap,
    messages::{HdfMessage, link, link_info::LinkInfoMessage, symbol_table_msg::SymbolTableMessage},
    object_header::ObjectHeader,
    symbol_table::SymbolTableNode,
};

/// Position of the number of entries in a node of the oldest form, and bytes of its header.
const COUNT_AT: usize = 6;
const NODE_HEADER_BYTES: usize = 8;
/// Bytes of an entry beside two addresses.
const ENTRY_BYTES: usize = 24;

/// The file of a group, and the bytes of its addresses and lengths.
#[derive(Clone, Copy)]
struct Place<'a> {
    storage: &'a dyn Storage,
    address_bytes: u8,
    length_bytes: u8,
}

/// The names of the links in a group, in alphabetical order.
pub(super) fn names(group: &Group) -> Result<Vec<String>> {
    let place =
        Place { storage: group.storage(), address_bytes: group.offset_size(), length_bytes: group.length_size() };
    let header = ObjectHeader::parse_at_storage_with_limit(
        place.storage,
        group.address(),
        place.address_bytes,
        place.length_bytes,
        MAX_HEADER_BYTES,
    )?;
    let mut names = Vec::new();
    for message in &header.messages {
        match message {
            HdfMessage::Link(link) => names.push(link.name.clone()),
            HdfMessage::LinkInfo(info) => names.extend(place.in_heap(info)?),
            HdfMessage::SymbolTable(table) => names.extend(place.in_table(table)?),
            _ => {}
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

impl Place<'_> {
    /// The names of links in a heap, where groups have more than a few.
    fn in_heap(&self, info: &LinkInfoMessage) -> Result<Vec<String>> {
        let Self { storage, address_bytes, length_bytes } = *self;
        if Cursor::is_undefined_offset(info.fractal_heap_address, address_bytes) {
            return Ok(Vec::new());
        }
        let heap = FractalHeap::parse_at_storage(storage, info.fractal_heap_address, address_bytes, length_bytes)?;
        let index =
            BTreeV2Header::parse_at_storage(storage, info.btree_name_index_address, address_bytes, length_bytes)?;
        let records = collect_btree_v2_records_storage(storage, &index, address_bytes, length_bytes, None, &[], None)?;
        let mut blocks = FractalHeapDirectBlockCache::default();
        let mut names = Vec::new();
        for record in &records {
            let BTreeV2Record::LinkNameHash { heap_id, .. } = record else { continue };
            let bytes = heap.get_object_storage_cached(heap_id, storage, address_bytes, length_bytes, &mut blocks)?;
            names.push(link::parse(&mut Cursor::new(&bytes), address_bytes, length_bytes, bytes.len())?.name);
        }
        Ok(names)
    }

    /// The names of links in the oldest form: nodes that refer to texts.
    fn in_table(&self, table: &SymbolTableMessage) -> Result<Vec<String>> {
        let Self { storage, address_bytes, length_bytes } = *self;
        let nodes = collect_btree_v1_leaves_storage(
            storage,
            table.btree_address,
            address_bytes,
            length_bytes,
            None,
            &[],
            None,
        )?;
        if nodes.is_empty() {
            return Ok(Vec::new());
        }
        let heap = LocalHeap::parse_at_storage(storage, table.heap_address, address_bytes, length_bytes)?;
        let len = usize::try_from(heap.data_segment_size).unwrap_or(usize::MAX);
        let texts = storage.read_range(heap.data_segment_address, len)?;
        let mut names = Vec::new();
        for (_, at) in nodes {
            let header = storage.read_range(at, NODE_HEADER_BYTES)?;
            let mut header = Cursor::new(header.as_ref());
            header.skip(COUNT_AT)?;
            let entries = usize::from(header.read_u16_le()?) * (2 * usize::from(address_bytes) + ENTRY_BYTES);
            let node = storage.read_range(at, NODE_HEADER_BYTES + entries)?;
            let node = SymbolTableNode::parse(&mut Cursor::new(node.as_ref()), address_bytes, length_bytes)?;
            for entry in &node.entries {
                names.push(text(texts.as_ref(), entry.link_name_offset)?);
            }
        }
        Ok(names)
    }
}

/// The text at a position, which ends with a zero.
fn text(texts: &[u8], at: u64) -> Result<String> {
    let rest = usize::try_from(at).ok().and_then(|at| texts.get(at..)).ok_or(Error::OffsetOutOfBounds(at))?;
    let bytes = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::InvalidData("a name is not UTF-8".to_owned()))
}

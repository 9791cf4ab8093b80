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

/// Names that have been read. Together they are not longer than the file, in which each name is stored by itself: a small file
/// could otherwise refer to one long name very often.
struct Names {
    all: Vec<String>,
    /// Bytes that further names may have.
    left: u64,
}

impl Names {
    fn add(&mut self, name: String) -> Result<()> {
        let left = self.left.checked_sub(name.len() as u64);
        self.left = left.ok_or_else(|| Error::InvalidData("the names in a group share their bytes".to_owned()))?;
        self.all.push(name);
        Ok(())
    }
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
    let mut names = Names { all: Vec::new(), left: place.storage.len() };
    for message in &header.messages {
        match message {
            HdfMessage::Link(link) => names.add(link.name.clone())?,
            HdfMessage::LinkInfo(info) => place.in_heap(info, &mut names)?,
            HdfMessage::SymbolTable(table) => place.in_table(table, &mut names)?,
            _ => {}
        }
    }
    let mut names = names.all;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

impl Place<'_> {
    /// Adds the names of links in a heap, where groups have more than a few.
    fn in_heap(&self, info: &LinkInfoMessage, names: &mut Names) -> Result<()> {
        let Self { storage, address_bytes, length_bytes } = *self;
        if Cursor::is_undefined_offset(info.fractal_heap_address, address_bytes) {
            return Ok(());
        }
        let heap = FractalHeap::parse_at_storage(storage, info.fractal_heap_address, address_bytes, length_bytes)?;
        let index =
            BTreeV2Header::parse_at_storage(storage, info.btree_name_index_address, address_bytes, length_bytes)?;
        let records = collect_btree_v2_records_storage(storage, &index, address_bytes, length_bytes, None, &[], None)?;
        let mut blocks = FractalHeapDirectBlockCache::default();
        for record in &records {
            let BTreeV2Record::LinkNameHash { heap_id, .. } = record else { continue };
            let bytes = heap.get_object_storage_cached(heap_id, storage, address_bytes, length_bytes, &mut blocks)?;
            names.add(link::parse(&mut Cursor::new(&bytes), address_bytes, length_bytes, bytes.len())?.name)?;
        }
        Ok(())
    }

    /// Adds the names of links in the oldest form: nodes that refer to texts.
    fn in_table(&self, table: &SymbolTableMessage, names: &mut Names) -> Result<()> {
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
            return Ok(());
        }
        let heap = LocalHeap::parse_at_storage(storage, table.heap_address, address_bytes, length_bytes)?;
        let len = usize::try_from(heap.data_segment_size).unwrap_or(usize::MAX);
        let texts = storage.read_range(heap.data_segment_address, len)?;
        for (_, at) in nodes {
            let header = storage.read_range(at, NODE_HEADER_BYTES)?;
            let mut header = Cursor::new(header.as_ref());
            header.skip(COUNT_AT)?;
            let entries = usize::from(header.read_u16_le()?) * (2 * usize::from(address_bytes) + ENTRY_BYTES);
            let node = storage.read_range(at, NODE_HEADER_BYTES + entries)?;
            let node = SymbolTableNode::parse(&mut Cursor::new(node.as_ref()), address_bytes, length_bytes)?;
            for entry in &node.entries {
                names.add(text(texts.as_ref(), entry.link_name_offset)?)?;
            }
        }
        Ok(())
    }
}

/// The text at a position, which ends with a zero.
fn text(texts: &[u8], at: u64) -> Result<String> {
    let rest = usize::try_from(at).ok().and_then(|at| texts.get(at..)).ok_or(Error::OffsetOutOfBounds(at))?;
    let bytes = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::InvalidData("a name is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_together_are_longer_than_the_file_are_refused() {
        let mut names = Names { all: Vec::new(), left: 5 };
        let is_added = |name: &str| names.add(name.to_owned()).is_ok();
        assert_eq!(["abc", "", "de", "f"].map(is_added), [true, true, true, false]);
        assert_eq!(names.all, ["abc", "", "de"]);
    }
}

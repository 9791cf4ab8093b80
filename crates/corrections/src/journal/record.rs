//! Header and records of a journal, and their encoding.

use super::{MAGIC, VERSION};
use crate::Fingerprint;
use crate::chunks::{Chunk, ChunkGrid, LabelSnapshot};
use crate::diff::{EditDiff, put, take, take_u32};
use cytoscope_volume::VoxelSize;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest name of a step in bytes.
const MAX_NAME_BYTES: usize = 1000;
/// Approximate number of bytes of a snapshot per record.
const SNAPSHOT_PART_BYTES: usize = 4 << 20;

/// Header of a journal: which labels it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Lengths of the label volume along Z, Y, X in voxels.
    pub shape_zyx: [usize; 3],
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Path of the label image, for messages only; `None` if editing began with empty labels.
    pub base_path: Option<PathBuf>,
    /// Fingerprints of the label images that this journal can be opened with: first the labels at the start of editing,
    /// then saved states.
    pub bases: Vec<Fingerprint>,
    /// Whether the records begin with a snapshot of all labels.
    pub snapshot: bool,
    /// Number of the state before the first record.
    pub floor: u64,
    /// Number of the next state.
    pub next_id: u64,
}

impl Header {
    /// Encodes the beginning of a file: magic, version, length, checksum and header.
    pub fn bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let text = serde_json::to_vec(self)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(crc32fast::hash(&text).to_le_bytes());
        bytes.extend(text);
        Ok(bytes)
    }
}

/// A part of a snapshot: consecutive chunks as runs of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotPart(Vec<u8>);

impl SnapshotPart {
    /// Writes the chunks to `labels`; the first one must be `next`. Returns the index after the last chunk. The memory of the
    /// chunks is added to `stored_bytes`; nothing more is written once it exceeds `max_stored_bytes`.
    pub fn restore(
        &self,
        labels: &mut LabelSnapshot,
        next: usize,
        stored_bytes: &mut u64,
        max_stored_bytes: u64,
    ) -> Result<usize, &'static str> {
        let mut rest = &self.0[..];
        let rest = &mut rest;
        let first = take(rest)?;
        if first != next as u64 {
            return Err("the parts of the snapshot are not in order");
        }
        let mut chunk = next;
        let mut values = Vec::new();
        while !rest.is_empty() && *stored_bytes <= max_stored_bytes {
            if chunk >= labels.grid.chunk_count() {
                return Err("the snapshot has more chunks than the volume");
            }
            let len = labels.grid.chunk_voxels(chunk);
            let run = usize::try_from(take(rest)?).map_err(|_| "a run of the snapshot extends beyond its chunk")?;
            let value = take_u32(rest)?;
            if run == len {
                labels.chunks[chunk] = Chunk::Uniform(value);
                chunk += 1;
                continue;
            }
            values.clear();
            // A chunk has at most 131 072 voxels, which limits the memory.
            let mut add = |run: usize, value: u32| {
                if run == 0 || run > len - values.len() {
                    return Err("a run of the snapshot extends beyond its chunk");
                }
                values.resize(values.len() + run, value);
                Ok(values.len() < len)
            };
            let mut more = add(run, value)?;
            while more {
                let run = usize::try_from(take(rest)?).map_err(|_| "a run of the snapshot extends beyond its chunk")?;
                more = add(run, take_u32(rest)?)?;
            }
            labels.chunks[chunk] = Chunk::from_values(&values);
            *stored_bytes = stored_bytes.saturating_add(labels.chunks[chunk].stored_bytes());
            chunk += 1;
        }
        Ok(chunk)
    }
}

/// Encodes all labels as snapshot records and calls `each` for each of them.
pub(crate) fn snapshot_parts(
    labels: &LabelSnapshot,
    mut each: impl FnMut(Record) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = vec![0];
    let last = labels.chunks.len().saturating_sub(1);
    for (i, chunk) in labels.chunks.iter().enumerate() {
        chunk.each_run(0..labels.grid.chunk_voxels(i), |_, len, value| {
            put(&mut bytes, len as u64);
            put(&mut bytes, u64::from(value));
        });
        if bytes.len() >= SNAPSHOT_PART_BYTES || i == last {
            each(Record::Snapshot(SnapshotPart(std::mem::take(&mut bytes))))?;
            put(&mut bytes, i as u64 + 1);
        }
    }
    Ok(())
}

/// One record of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// An edit: the number of the state after it, its name, and its differences.
    Edit { id: u64, name: String, diff: EditDiff },
    /// The newest edit was undone.
    Undo,
    /// The newest undone edit was redone.
    Redo,
    /// A part of the snapshot at the beginning of the journal.
    Snapshot(SnapshotPart),
    /// A state is about to be saved: labels with this fingerprint are that state.
    Saving { state: u64, fingerprint: Fingerprint },
    /// A state of the labels was written to a label image.
    Saved { state: u64, path: PathBuf },
}

#[derive(Serialize, Deserialize)]
struct SavingText {
    state: u64,
    fingerprint: Fingerprint,
}

#[derive(Serialize, Deserialize)]
struct SavedText {
    state: u64,
    path: PathBuf,
}

impl Record {
    /// Encodes the body of the record.
    pub fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Record::Edit { id, name, diff } => put_edit(&mut bytes, *id, name, diff),
            Record::Undo => bytes.push(2),
            Record::Redo => bytes.push(3),
            Record::Snapshot(part) => {
                bytes.push(4);
                bytes.extend(&part.0);
            }
            Record::Saving { state, fingerprint } => {
                bytes.push(5);
                // Serializing numbers and texts does not fail.
                let text = SavingText { state: *state, fingerprint: *fingerprint };
                bytes.extend(serde_json::to_vec(&text).unwrap_or_default());
            }
            Record::Saved { state, path } => {
                bytes.push(6);
                // JSON requires Unicode; the path is used in messages only.
                let path = PathBuf::from(path.to_string_lossy().into_owned());
                bytes.extend(serde_json::to_vec(&SavedText { state: *state, path }).unwrap_or_default());
            }
        }
        bytes
    }

    /// Parses the body of a record, without its length and checksum.
    pub fn parse(body: &[u8], grid: &ChunkGrid) -> Result<Self, &'static str> {
        let (kind, mut rest) = body.split_first().ok_or("it is empty")?;
        let nothing_more = |rest: &[u8]| if rest.is_empty() { Ok(()) } else { Err("it is too long for its kind") };
        Ok(match kind {
            1 => {
                let id = take(&mut rest)?;
                let len = usize::try_from(take(&mut rest)?).unwrap_or(usize::MAX);
                if len > MAX_NAME_BYTES {
                    return Err("the name of its step is too long");
                }
                let (name, diff) = rest.split_at_checked(len).ok_or("it ends inside the name of its step")?;
                let name = std::str::from_utf8(name).map_err(|_| "the name of its step is not UTF-8 text")?;
                Record::Edit { id, name: name.to_owned(), diff: EditDiff::parse(diff, grid)? }
            }
            2 => nothing_more(rest).map(|()| Record::Undo)?,
            3 => nothing_more(rest).map(|()| Record::Redo)?,
            4 => Record::Snapshot(SnapshotPart(rest.to_vec())),
            5 => {
                let text: SavingText =
                    serde_json::from_slice(rest).map_err(|_| "its description of what was saved is invalid")?;
                Record::Saving { state: text.state, fingerprint: text.fingerprint }
            }
            6 => {
                let text: SavedText =
                    serde_json::from_slice(rest).map_err(|_| "its description of what was saved is invalid")?;
                Record::Saved { state: text.state, path: text.path }
            }
            _ => return Err("its kind is unknown"),
        })
    }
}

/// Encodes the body of an edit record.
pub(crate) fn put_edit(bytes: &mut Vec<u8>, id: u64, name: &str, diff: &EditDiff) {
    bytes.push(1);
    put(bytes, id);
    let end = name.floor_char_boundary(MAX_NAME_BYTES);
    let name = name.get(..end).unwrap_or_default();
    put(bytes, name.len() as u64);
    bytes.extend(name.as_bytes());
    bytes.extend(diff.bytes());
}

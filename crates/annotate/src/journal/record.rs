//! What is in a journal, and its bytes.

use super::{MAGIC, VERSION};
use crate::Fingerprint;
use crate::chunks::{Chunk, Grid, LabelSnapshot};
use crate::patch::{Patch, put, take, take_u32};
use cytoscope_volume::VoxelSize;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest name of a step, in bytes.
const MAX_NAME_BYTES: usize = 1000;
/// About so many bytes of a snapshot go into one record.
const SNAPSHOT_PART_BYTES: usize = 4 << 20;

/// What a journal is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Shape of the labels.
    pub shape_zyx: [usize; 3],
    /// Size of a voxel in µm.
    pub voxel_size_um: VoxelSize,
    /// Where the labels came from, for people; `None` for labels begun empty.
    pub base_path: Option<PathBuf>,
    /// Fingerprints of the label images this journal may be opened on: the first is that of the labels it began with, the others
    /// are of saved states.
    pub bases: Vec<Fingerprint>,
    /// Whether the records begin with a snapshot of all labels.
    pub snapshot: bool,
    /// Number of the state that the records begin with.
    pub floor: u64,
    /// Number of the next state.
    pub next_id: u64,
}

impl Header {
    /// The header as it begins a file.
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

/// A part of a snapshot: some chunks in order, as runs of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotPart(Vec<u8>);

impl SnapshotPart {
    /// Puts the chunks in their places; they must go on at `next`. Gives the chunk after the last.
    pub fn restore(&self, labels: &mut LabelSnapshot, next: usize) -> Result<usize, &'static str> {
        let mut rest = &self.0[..];
        let rest = &mut rest;
        let first = take(rest)?;
        if first != next as u64 {
            return Err("the parts of the snapshot are not in order");
        }
        let mut chunk = next;
        let mut values = Vec::new();
        while !rest.is_empty() {
            if chunk >= labels.grid.chunk_count() {
                return Err("the snapshot has more chunks than the volume");
            }
            let len = labels.grid.chunk_voxels(chunk);
            let run = usize::try_from(take(rest)?).map_err(|_| "a run of the snapshot leaves its chunk")?;
            let value = take_u32(rest)?;
            if run == len {
                labels.chunks[chunk] = Chunk::Uniform(value);
                chunk += 1;
                continue;
            }
            values.clear();
            // A chunk has at most 131 072 voxels: this takes no more memory than the volume's grid allows.
            let mut add = |run: usize, value: u32| {
                if run == 0 || run > len - values.len() {
                    return Err("a run of the snapshot leaves its chunk");
                }
                values.resize(values.len() + run, value);
                Ok(values.len() < len)
            };
            let mut more = add(run, value)?;
            while more {
                let run = usize::try_from(take(rest)?).map_err(|_| "a run of the snapshot leaves its chunk")?;
                more = add(run, take_u32(rest)?)?;
            }
            labels.chunks[chunk] = Chunk::from_values(&values);
            chunk += 1;
        }
        Ok(chunk)
    }
}

/// All labels, in parts that fit records.
pub(crate) fn snapshot_parts(
    labels: &LabelSnapshot,
    mut each: impl FnMut(Record) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = vec![0];
    let last = labels.chunks.len().saturating_sub(1);
    for (i, chunk) in labels.chunks.iter().enumerate() {
        chunk.runs(0..labels.grid.chunk_voxels(i), |_, len, value| {
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

/// One entry of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// An edit: the number of the state after it, its name, its differences.
    Edit { id: u64, name: String, patch: Patch },
    /// The newest edit was undone.
    Undo,
    /// The newest undone edit was redone.
    Redo,
    /// A part of the labels that the journal begins with.
    Snapshot(SnapshotPart),
    /// A state is about to be saved: a base with this fingerprint is that state.
    Saving { state: u64, fingerprint: Fingerprint },
    /// A state was saved.
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
    /// The record's body.
    pub fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Record::Edit { id, name, patch } => put_edit(&mut bytes, *id, name, patch),
            Record::Undo => bytes.push(2),
            Record::Redo => bytes.push(3),
            Record::Snapshot(part) => {
                bytes.push(4);
                bytes.extend(&part.0);
            }
            Record::Saving { state, fingerprint } => {
                bytes.push(5);
                let text = SavingText { state: *state, fingerprint: *fingerprint };
                bytes.extend(serde_json::to_vec(&text).unwrap_or_default());
            }
            Record::Saved { state, path } => {
                bytes.push(6);
                // A path that is not Unicode cannot be JSON; it is noted for people only.
                let path = PathBuf::from(path.to_string_lossy().into_owned());
                bytes.extend(serde_json::to_vec(&SavedText { state: *state, path }).unwrap_or_default());
            }
        }
        bytes
    }

    /// Reads a body back.
    pub fn parse(body: &[u8], grid: &Grid) -> Result<Self, &'static str> {
        let (kind, mut rest) = body.split_first().ok_or("it is empty")?;
        let nothing_more = |rest: &[u8]| if rest.is_empty() { Ok(()) } else { Err("it is longer than its kind") };
        Ok(match kind {
            1 => {
                let id = take(&mut rest)?;
                let len = usize::try_from(take(&mut rest)?).unwrap_or(usize::MAX);
                if len > MAX_NAME_BYTES {
                    return Err("the name of its step is too long");
                }
                let (name, patch) = rest.split_at_checked(len).ok_or("it ends inside the name of its step")?;
                let name = std::str::from_utf8(name).map_err(|_| "the name of its step is no text")?;
                Record::Edit { id, name: name.to_owned(), patch: Patch::parse(patch, grid)? }
            }
            2 => nothing_more(rest).map(|()| Record::Undo)?,
            3 => nothing_more(rest).map(|()| Record::Redo)?,
            4 => Record::Snapshot(SnapshotPart(rest.to_vec())),
            5 => {
                let text: SavingText = serde_json::from_slice(rest).map_err(|_| "it does not say what was saved")?;
                Record::Saving { state: text.state, fingerprint: text.fingerprint }
            }
            6 => {
                let text: SavedText = serde_json::from_slice(rest).map_err(|_| "it does not say what was saved")?;
                Record::Saved { state: text.state, path: text.path }
            }
            _ => return Err("it is of an unknown kind"),
        })
    }
}

/// The body of an edit.
pub(crate) fn put_edit(bytes: &mut Vec<u8>, id: u64, name: &str, patch: &Patch) {
    bytes.push(1);
    put(bytes, id);
    let end = name.floor_char_boundary(MAX_NAME_BYTES);
    let name = name.get(..end).unwrap_or_default();
    put(bytes, name.len() as u64);
    bytes.extend(name.as_bytes());
    bytes.extend(patch.bytes());
}

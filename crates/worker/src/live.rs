//! The file that a prediction in progress is written to.

use super::LiveRegion;
use cytoscope_pipeline::predict::LiveVolume;
use cytoscope_profile::bytes_text;
use cytoscope_volume::element_count;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size in bytes of a live array, because temporary folders may be in memory.
pub(super) const MAX_LIVE_BYTES: usize = 4 << 30;

/// A live array: 32-bit little-endian floats, axes C, Z, Y, X. The file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct LiveFile {
    file: File,
    pub(super) path: PathBuf,
    pub(super) input: PathBuf,
    pub(super) time: usize,
    pub(super) channels: usize,
    pub(super) shape: [usize; 3],
}

impl LiveFile {
    /// Creates the file for a volume; it is sparse and takes disk space only as it is filled.
    pub(super) fn create(path: &Path, volume: &LiveVolume<'_>) -> io::Result<Self> {
        let [z, y, x] = volume.shape_zyx;
        let bytes = element_count(&[volume.channels, z, y, x, size_of::<f32>()]).unwrap_or(usize::MAX);
        if bytes > MAX_LIVE_BYTES {
            let (needed, limit) = (bytes_text(bytes as u64), bytes_text(MAX_LIVE_BYTES as u64));
            return Err(io::Error::other(format!("it needs {needed}, but the limit is {limit}")));
        }
        let file = File::create_new(path)?;
        let live = Self {
            file,
            path: path.to_owned(),
            input: volume.input.to_owned(),
            time: volume.time,
            channels: volume.channels,
            shape: volume.shape_zyx,
        };
        live.file.set_len(bytes as u64)?;
        Ok(live)
    }

    /// Writes a region's values `[C][Z][Y][X]`.
    pub(super) fn write(&self, region: LiveRegion, values: &[f32]) -> io::Result<()> {
        let LiveRegion { start_zyx: [z, y, x], size_zyx: [nz, ny, nx] } = region;
        let [depth, height, width] = self.shape;
        // Rows that are as wide as the volume are contiguous.
        let rows_at_once = if nx == width { ny } else { 1 };
        let run = (rows_at_once * nx).max(1);
        for (i, part) in values.chunks_exact(run).enumerate() {
            let row = i * rows_at_once;
            let (c, tz, ty) = (row / ny / nz, row / ny % nz, row % ny);
            let at = (((c * depth + z + tz) * height + y + ty) * width + x) * size_of::<f32>();
            if cfg!(target_endian = "little") {
                write_at(&self.file, at as u64, bytemuck::cast_slice(part))?;
            } else {
                let swapped: Vec<u8> = part.iter().flat_map(|v| v.to_le_bytes()).collect();
                write_at(&self.file, at as u64, &swapped)?;
            }
        }
        Ok(())
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        // It is in the worker's private folder, which is removed as a whole.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn write_at(file: &File, at: u64, bytes: &[u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut at: u64, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, at)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            n => {
                bytes = &bytes[n..];
                at += n as u64;
            }
        }
    }
    Ok(())
}

//! Files that appear whole or not at all: written beside, synced, renamed.

use crate::error::FormatError;
use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A file being written under another name beside its target; removed when dropped unfinished.
#[derive(Debug)]
pub(crate) struct PartialFile {
    out: Option<BufWriter<File>>,
    partial: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    /// Starts a file.
    pub fn create(target: &Path) -> Result<Self, FormatError> {
        let Some(name) = target.file_name() else {
            return Err(FormatError::misused(target, "this is no name of a file", "name a file to write"));
        };
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        partial.push(format!(".partial-{}-{number}", std::process::id()));
        let partial = target.with_file_name(partial);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&partial)
            .map_err(|e| FormatError::io(target, "creating the file", e))?;
        Ok(Self { out: Some(BufWriter::with_capacity(1 << 18, file)), partial, target: target.to_owned() })
    }

    fn out(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.out.as_mut().ok_or_else(|| io::Error::other("the file is already finished"))
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.out().and_then(|o| o.write_all(bytes)).map_err(|e| FormatError::io(&self.target, "writing", e))
    }

    /// Overwrites bytes written before; later appends go on at the end.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> Result<(), FormatError> {
        let result = self.out().and_then(|o| {
            o.seek(SeekFrom::Start(at))?;
            o.write_all(bytes)?;
            o.seek(SeekFrom::End(0)).map(|_| ())
        });
        result.map_err(|e| FormatError::io(&self.target, "writing", e))
    }

    /// Syncs the file and gives it its name.
    pub fn commit(mut self) -> Result<(), FormatError> {
        let result = (|| {
            let out = self.out.take().ok_or_else(|| io::Error::other("the file is already finished"))?;
            let file = out.into_inner().map_err(|e| e.into_error())?;
            file.sync_all()?;
            drop(file);
            std::fs::rename(&self.partial, &self.target)?;
            sync_folder(&self.target);
            Ok(())
        })();
        result.map_err(|e: io::Error| {
            let _ = std::fs::remove_file(&self.partial);
            FormatError::io(&self.target, "finishing the file", e)
        })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            drop(out.into_parts());
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Makes a rename durable where folders can be synced; where they cannot, the rename is still atomic.
fn sync_folder(target: &Path) {
    if cfg!(unix) {
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
    }
}

/// Writes a small file whole or not at all: beside its target, synced, then renamed over it.
///
/// # Errors
/// [`FormatError::Io`] if the folder cannot be written or the disk is full; the target is then as it was.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), FormatError> {
    atomic_write_with(path, |out| out.write_all(bytes))
}

/// As [`atomic_write`], with the content written by a closure.
///
/// # Errors
/// As [`atomic_write`]; an error of the closure is returned as [`FormatError::Io`].
pub fn atomic_write_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), FormatError> {
    let mut file = PartialFile::create(path)?;
    file.out().and_then(|out| fill(out)).map_err(|e| FormatError::io(path, "writing", e))?;
    file.commit()
}

//! Volumes written and read slice by slice: in temporary files, so that memory use does not grow with their size, or in
//! memory.

use crate::JobError;
use bytemuck::Pod;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where a spool stores its slices.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scratch<'a> {
    /// In a temporary file in this folder. For a job, it is the output folder: if it has no space for the spool, the
    /// outputs would not fit either.
    Folder(&'a Path),
    /// In the host's memory.
    Memory,
}

/// Slices of `slice_len` values.
pub(crate) struct Spool<T> {
    store: Store<T>,
    slice_len: usize,
    /// Slices in the store before the first one of the spool.
    first: usize,
}

enum Store<T> {
    /// An unnamed temporary file, which the system removes even if the process is killed; or the file of a pass that can
    /// be continued.
    File {
        file: File,
        folder: PathBuf,
    },
    Memory(Vec<T>),
}

impl<T: Pod> Spool<T> {
    /// Creates an empty spool.
    ///
    /// # Errors
    /// [`JobError::Io`] if the temporary file cannot be created.
    pub(crate) fn new(scratch: Scratch<'_>, slice_len: usize) -> Result<Self, JobError> {
        let store = match scratch {
            Scratch::Memory => Store::Memory(Vec::new()),
            Scratch::Folder(folder) => {
                let folder = named_folder(folder);
                let io = |error| JobError::Io { path: folder.clone(), error };
                Store::File { file: tempfile::tempfile_in(&folder).map_err(io)?, folder }
            }
        };
        Ok(Self { store, slice_len, first: 0 })
    }

    /// Returns a spool in a file in `folder`, which may already hold slices; the spool begins after the `first` ones.
    pub(crate) fn from_file(file: File, folder: &Path, slice_len: usize, first: usize) -> Self {
        Self { store: Store::File { file, folder: named_folder(folder) }, slice_len, first }
    }

    /// Returns the position in the store of the first value of a slice.
    fn slice_start(&self, slice: usize) -> usize {
        self.first.saturating_add(slice).saturating_mul(self.slice_len)
    }

    /// Writes whole slices, starting with number `slice`.
    pub(crate) fn write(&mut self, slice: usize, values: &[T]) -> Result<(), JobError> {
        self.write_from(slice, 0, values)
    }

    /// Writes values, starting with value `offset` of a slice and continuing into the next slices.
    pub(crate) fn write_from(&mut self, slice: usize, offset: usize, values: &[T]) -> Result<(), JobError> {
        let first = self.slice_start(slice).saturating_add(offset);
        match &mut self.store {
            Store::File { file, folder } => seek::<T>(file, first)
                .and_then(|()| file.write_all(bytemuck::cast_slice(values)))
                .map_err(|error| JobError::Io { path: folder.clone(), error }),
            Store::Memory(held) => {
                let end = first.saturating_add(values.len());
                if held.len() < end {
                    held.resize(end, T::zeroed());
                }
                held.get_mut(first..end).ok_or_else(|| incomplete(slice))?.copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// Reads slices into `values`, which is resized to fit.
    pub(crate) fn read(&mut self, slices: Range<usize>, values: &mut Vec<T>) -> Result<(), JobError> {
        let first = self.slice_start(slices.start);
        values.resize(slices.len() * self.slice_len, T::zeroed());
        match &mut self.store {
            Store::File { file, folder } => seek::<T>(file, first)
                .and_then(|()| file.read_exact(bytemuck::cast_slice_mut(values)))
                .map_err(|error| JobError::Io { path: folder.clone(), error }),
            Store::Memory(held) => {
                let end = first.saturating_add(values.len());
                values.copy_from_slice(held.get(first..end).ok_or_else(|| incomplete(slices.start))?);
                Ok(())
            }
        }
    }
}

/// Returns a folder as messages name it: one without its own name, such as the current folder `.`, by its whole path.
fn named_folder(folder: &Path) -> PathBuf {
    let whole = if folder.file_name().is_none() { std::path::absolute(folder).ok() } else { None };
    whole.unwrap_or_else(|| folder.to_owned())
}

/// Moves to the value with this number.
fn seek<T>(file: &mut File, value: usize) -> std::io::Result<()> {
    let at = (value as u64).saturating_mul(size_of::<T>() as u64);
    file.seek(SeekFrom::Start(at)).map(|_| ())
}

/// The error of a slice that was never written.
fn incomplete(slice: usize) -> JobError {
    JobError::Internal(format!("spool: slice {slice} was not written"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn messages_name_the_current_folder_by_its_whole_path() {
        let current = std::env::current_dir().unwrap();
        assert_eq!(named_folder(Path::new(".")), current);
        assert_eq!(named_folder(Path::new("out")), Path::new("out"));
        // A file that is open only for reading stands for a full disk.
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut spool = Spool::<f32>::from_file(File::open(file.path()).unwrap(), Path::new("."), 2, 0);
        let error = spool.write(0, &[1.0, 2.0]).unwrap_err();
        assert!(error.to_string().starts_with(&current.display().to_string()), "{error}");
    }

    #[test]
    fn slices_are_read_as_written_from_a_file_and_from_memory() {
        let folder = tempfile::tempdir().unwrap();
        for scratch in [Scratch::Folder(folder.path()), Scratch::Memory] {
            let mut spool = Spool::<f32>::new(scratch, 2).unwrap();
            spool.write(1, &[3.0, 4.0, 5.0, 6.0]).unwrap();
            spool.write(0, &[1.0, 2.0]).unwrap();
            let mut values = Vec::new();
            spool.read(0..3, &mut values).unwrap();
            assert_eq!(values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            spool.write_from(0, 1, &[9.0]).unwrap();
            spool.read(0..1, &mut values).unwrap();
            assert_eq!(values, [1.0, 9.0]);
            spool.write(0, &[1.0, 2.0]).unwrap();
            spool.read(2..3, &mut values).unwrap();
            assert_eq!(values, [5.0, 6.0]);
            assert!(spool.read(3..4, &mut values).is_err());
        }
    }
}

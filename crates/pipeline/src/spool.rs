//! Volumes in temporary files, written and read slice by slice, so that memory use does not grow with their size.

use crate::JobError;
use bytemuck::Pod;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Slices of `slice_len` values in an unnamed temporary file, which the system removes even if the process is killed.
pub(crate) struct Spool<T> {
    file: File,
    folder: PathBuf,
    slice_len: usize,
    of: PhantomData<T>,
}

impl<T: Pod> Spool<T> {
    /// Creates a spool in `folder`. This is the output folder: if it has no space for the spool, the outputs would not
    /// fit either.
    pub(crate) fn new(folder: &Path, slice_len: usize) -> Result<Self, JobError> {
        let file = tempfile::tempfile_in(folder).map_err(|error| JobError::Io { path: folder.to_owned(), error })?;
        Ok(Self { file, folder: folder.to_owned(), slice_len, of: PhantomData })
    }

    fn io(&self, error: std::io::Error) -> JobError {
        JobError::Io { path: self.folder.clone(), error }
    }

    fn seek(&mut self, slice: usize) -> Result<(), JobError> {
        let at = (slice as u64).saturating_mul((self.slice_len * size_of::<T>()) as u64);
        self.file.seek(SeekFrom::Start(at)).map(|_| ()).map_err(|e| self.io(e))
    }

    /// Writes whole slices, starting with number `slice`.
    pub(crate) fn write(&mut self, slice: usize, values: &[T]) -> Result<(), JobError> {
        self.seek(slice)?;
        self.file.write_all(bytemuck::cast_slice(values)).map_err(|e| self.io(e))
    }

    /// Reads slices into `values`, which is resized to fit.
    pub(crate) fn read(&mut self, slices: Range<usize>, values: &mut Vec<T>) -> Result<(), JobError> {
        self.seek(slices.start)?;
        values.resize(slices.len() * self.slice_len, T::zeroed());
        self.file.read_exact(bytemuck::cast_slice_mut(values)).map_err(|e| self.io(e))
    }
}

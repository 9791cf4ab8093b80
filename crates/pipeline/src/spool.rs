//! Volumes kept in a temporary file, written and read slice by slice, so that memory does not grow with them.

use crate::JobError;
use bytemuck::Pod;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// `count` slices of `slice_len` values in an unnamed temporary file, which vanishes with it whatever happens.
pub(crate) struct Spool<T> {
    file: File,
    folder: PathBuf,
    slice_len: usize,
    of: PhantomData<T>,
}

impl<T: Pod> Spool<T> {
    /// A spool in `folder` (the one outputs go to: if it has no room, they would not fit either).
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

    /// Writes whole slices from `slice` on.
    pub(crate) fn write(&mut self, slice: usize, values: &[T]) -> Result<(), JobError> {
        self.seek(slice)?;
        self.file.write_all(bytemuck::cast_slice(values)).map_err(|e| self.io(e))
    }

    /// Reads slices into `values`, which is made as long as they are.
    pub(crate) fn read(&mut self, slices: Range<usize>, values: &mut Vec<T>) -> Result<(), JobError> {
        self.seek(slices.start)?;
        values.resize(slices.len() * self.slice_len, T::zeroed());
        self.file.read_exact(bytemuck::cast_slice_mut(values)).map_err(|e| self.io(e))
    }
}

//! Opening files that a model names: regular ones alone, and never waiting for another program.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a regular file for reading, and gives its length. What is something else (a pipe, a device, a folder) is refused by what
/// the opened handle says, so that nothing can be put in its place between looking and opening; opening a pipe does not wait for
/// a writer.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file, as a model's files must be"));
    }
    Ok((file, found.len()))
}

/// [`open_regular`] of a file that must lie in `folder`, whatever links its name goes through.
pub(crate) fn open_inside(folder: &Path, path: &Path) -> io::Result<(File, u64)> {
    let outside = || io::Error::new(io::ErrorKind::PermissionDenied, OUTSIDE);
    let folder = folder.canonicalize()?;
    let real = path.canonicalize()?;
    if !real.starts_with(&folder) {
        return Err(outside());
    }
    let (file, length) = open_regular(&real)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // Links may have been changed since: the file that was opened is the one that lies there without following any.
        let (opened, there) = (file.metadata()?, std::fs::symlink_metadata(&real)?);
        let same = (opened.dev(), opened.ino()) == (there.dev(), there.ino());
        if !same || real.canonicalize()? != real {
            return Err(outside());
        }
    }
    Ok((file, length))
}

/// What [`open_inside`] says of a file that lies elsewhere.
pub(crate) const OUTSIDE: &str = "this lies outside the model's folder";

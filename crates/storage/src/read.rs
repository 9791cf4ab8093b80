//! Opening regular files for reading.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::path::{Component, Path, PathBuf};

/// What is at a path that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialFile {
    /// A folder.
    Folder,
    /// A named pipe.
    NamedPipe,
    /// A socket.
    Socket,
    /// A device.
    Device,
    /// Something else, or a kind that was not determined.
    Other,
}

crate::named! {
    /// Returns the kind with its article.
    pub fn name(SpecialFile) {
        Folder => "a folder",
        NamedPipe => "a named pipe",
        Socket => "a socket",
        Device => "a device",
        Other => "a special file",
    }
}

/// Why a path was not opened: the inner error of the [`io::Error`] returned by [`open_regular`] and [`open_inside`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The path is not a regular file.
    NotRegular(SpecialFile),
    /// The path is absolute, is empty or contains `..`.
    NotRelative(PathBuf),
    /// The path is a link to this target outside the folder.
    Outside(PathBuf),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRegular(kind) => write!(f, "this is {kind}; a regular file was expected"),
            Self::NotRelative(path) => {
                write!(f, "{path:?} is not a plain path inside the folder (no \"..\" and no absolute path)")
            }
            Self::Outside(target) => write!(
                f,
                "a link points out of the folder, to {target:?}; copy the file into the folder instead of linking to it"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::NotRegular(SpecialFile::Folder) => io::ErrorKind::IsADirectory,
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, refusal)
    }
}

/// The [`Refusal`] inside an error of this module; `None` for an error of the system.
pub fn refusal(error: &io::Error) -> Option<&Refusal> {
    error.get_ref()?.downcast_ref()
}

/// Opens a regular file for reading; links are followed.
///
/// Never blocks: a named pipe without a writer is refused at once. The kind of the file is checked before opening,
/// because opening a device can have side effects, and again on the open handle, in case the file was exchanged in
/// between.
///
/// # Errors
/// The system's error, or [`Refusal::NotRegular`] inside an [`io::Error`] for a folder, pipe, socket or device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check_kind(std::fs::metadata(path)?.file_type())?;
    open_checked(path, Links::Follow)
}

/// Opens a regular file inside a folder, by its path relative to the folder.
///
/// Links are followed if their targets are inside the folder; the folder itself may be a link.
///
/// # Errors
/// Same as [`open_regular`]; [`Refusal::NotRelative`] or [`Refusal::Outside`] if the path leaves the folder. A name that no
/// file can have, such as one that contains a zero, is [`io::ErrorKind::NotFound`].
pub fn open_inside(folder: &Path, relative: &Path) -> io::Result<File> {
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !plain || relative.file_name().is_none() {
        return Err(Refusal::NotRelative(relative.to_path_buf()).into());
    }
    // The folder of a path without one is the current folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = std::fs::canonicalize(folder)?;
    let target = std::fs::canonicalize(folder.join(relative)).map_err(|error| match error.kind() {
        // No file can have such a name: it contains a zero, or it is too long.
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    if !target.starts_with(&folder) {
        return Err(Refusal::Outside(target).into());
    }
    check_kind(std::fs::metadata(&target)?.file_type())?;
    // The path has been resolved, so a link that appears now was planted.
    open_checked(&target, Links::Refuse)
}

#[derive(Clone, Copy)]
enum Links {
    Follow,
    Refuse,
}

/// Opens a file without blocking and checks the kind of the open file.
fn open_checked(path: &Path, links: Links) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    set_nonblocking(&mut options, links);
    let file = options.open(path)?;
    check_kind(file.metadata()?.file_type())?;
    Ok(file)
}

#[cfg(unix)]
fn set_nonblocking(options: &mut OpenOptions, links: Links) {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if matches!(links, Links::Refuse) {
        flags |= OFlags::NOFOLLOW;
    }
    // The bits of open flags are small and positive on every system.
    options.custom_flags(flags.bits().cast_signed());
}

#[cfg(not(unix))]
fn set_nonblocking(_options: &mut OpenOptions, _links: Links) {}

fn check_kind(kind: FileType) -> Result<(), Refusal> {
    if kind.is_file() { Ok(()) } else { Err(Refusal::NotRegular(special_file(kind))) }
}

fn special_file(kind: FileType) -> SpecialFile {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return SpecialFile::NamedPipe;
        }
        if kind.is_socket() {
            return SpecialFile::Socket;
        }
        if kind.is_char_device() || kind.is_block_device() {
            return SpecialFile::Device;
        }
    }
    if kind.is_dir() { SpecialFile::Folder } else { SpecialFile::Other }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::io::Read;

    fn expect_refusal(result: io::Result<File>) -> Refusal {
        let error = result.unwrap_err();
        refusal(&error).unwrap_or_else(|| unreachable!("{error}")).clone()
    }

    #[test]
    fn a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "text").unwrap();
        let mut text = String::new();
        open_regular(&folder.path().join("a.txt")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        text.clear();
        open_inside(folder.path(), Path::new("./a.txt")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        // Tests run in the folder of their crate.
        open_inside(Path::new("a.txt").parent().unwrap(), Path::new("Cargo.toml")).unwrap();
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(open_regular(&folder.path().join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(open_inside(folder.path(), Path::new("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_name_that_no_file_can_have_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(300);
        for name in ["a\0b", long.as_str()] {
            assert_eq!(
                open_inside(folder.path(), Path::new(name)).unwrap_err().kind(),
                io::ErrorKind::NotFound,
                "{name:?}"
            );
        }
    }

    #[test]
    fn folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        assert_eq!(expect_refusal(open_regular(folder.path())), Refusal::NotRegular(SpecialFile::Folder));
        assert_eq!(
            expect_refusal(open_inside(folder.path(), Path::new("sub"))),
            Refusal::NotRegular(SpecialFile::Folder)
        );
    }

    #[test]
    fn paths_out_of_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["../a", "sub/../../a", "/etc/passwd", "", ".", ".."] {
            let path = Path::new(path);
            assert_eq!(expect_refusal(open_inside(folder.path(), path)), Refusal::NotRelative(path.to_path_buf()));
        }
    }

    #[cfg(unix)]
    #[test]
    fn pipes_sockets_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let status = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(status.success());
        assert_eq!(expect_refusal(open_regular(&pipe)), Refusal::NotRegular(SpecialFile::NamedPipe));
        assert_eq!(
            expect_refusal(open_inside(folder.path(), Path::new("pipe"))),
            Refusal::NotRegular(SpecialFile::NamedPipe)
        );
        // Even if it replaces the file after the first check.
        assert_eq!(expect_refusal(open_checked(&pipe, Links::Follow)), Refusal::NotRegular(SpecialFile::NamedPipe));
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(expect_refusal(open_regular(&socket)), Refusal::NotRegular(SpecialFile::Socket));
        assert_eq!(expect_refusal(open_regular(Path::new("/dev/zero"))), Refusal::NotRegular(SpecialFile::Device));
        assert_eq!(
            expect_refusal(open_checked(Path::new("/dev/zero"), Links::Follow)),
            Refusal::NotRegular(SpecialFile::Device)
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_inside_the_folder() {
        use std::os::unix::fs::symlink;
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("package");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(outer.path().join("secret"), "secret").unwrap();
        std::fs::write(folder.join("a"), "a").unwrap();
        symlink("../secret", folder.join("out")).unwrap();
        symlink("..", folder.join("up")).unwrap();
        symlink("a", folder.join("in")).unwrap();
        symlink(&folder, outer.path().join("by_link")).unwrap();
        let secret = std::fs::canonicalize(outer.path().join("secret")).unwrap();
        for path in ["out", "up/secret"] {
            assert_eq!(expect_refusal(open_inside(&folder, Path::new(path))), Refusal::Outside(secret.clone()));
        }
        open_inside(&folder, Path::new("in")).unwrap();
        open_inside(&outer.path().join("by_link"), Path::new("in")).unwrap();
        // A link that replaces the file after the first check is refused.
        assert!(open_checked(&folder.join("in"), Links::Refuse).is_err());
        // `open_regular` follows links to anywhere.
        open_regular(&folder.join("out")).unwrap();
    }
}

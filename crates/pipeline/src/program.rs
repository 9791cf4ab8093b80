//! The file of this program, which an update may replace or remove while the program runs.

use std::io;
use std::path::{Path, PathBuf};

/// Name and version of this program, as records state them.
pub const PROGRAM: &str = concat!("cytoscope ", env!("CARGO_PKG_VERSION"));

/// The running program on Linux, even if its file was replaced or removed.
const RUNNING: &str = "/proc/self/exe";

/// Number of folders above the program in which its models and samples are looked for.
const FOLDERS_ABOVE: usize = 5;

/// Returns a path from which this program can be started again. On Linux, it starts this version of the program even if its
/// file was replaced or removed since it was started.
///
/// # Errors
/// The system's error if it cannot find the path of the program.
pub fn own_program() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    // The path of a file that was removed ends in " (deleted)".
    let is_gone = cfg!(target_os = "linux") && !path.exists();
    Ok(if is_gone { PathBuf::from(RUNNING) } else { path })
}

/// Returns the folder of this program and the folders above it, in which its models and samples are looked for.
pub fn program_folders() -> Vec<PathBuf> {
    let Ok(path) = std::env::current_exe() else { return Vec::new() };
    // A file that was removed has no canonical path, but its folder is still the one of the program.
    let path = path.canonicalize().unwrap_or(path);
    path.ancestors().skip(1).take(FOLDERS_ABOVE).map(Path::to_owned).collect()
}

/// A program that is started as child processes, possibly this one.
#[derive(Debug, Clone)]
pub struct ChildProgram {
    path: PathBuf,
    is_own: bool,
}

impl ChildProgram {
    /// A program in this file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), is_own: std::env::current_exe().is_ok_and(|own| own == path) }
    }

    /// Returns the path from which it can be started now, see [`own_program`].
    pub fn path(&self) -> PathBuf {
        let own = own_program().ok().filter(|_| self.is_own);
        own.unwrap_or_else(|| self.path.clone())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn programs_are_started_from_their_files() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(own_program().unwrap(), own);
        assert_eq!(program_folders().first().unwrap(), own.canonicalize().unwrap().parent().unwrap());
        for path in [own.as_path(), Path::new("/no/such/program")] {
            assert_eq!(ChildProgram::new(path).path(), path);
        }
    }
}

//! Errors of the operating system in words: what happened, and what to do. They depend on the kind of an error, because the
//! system's own texts differ between systems and languages.

use std::borrow::Cow;
use std::io::{Error, ErrorKind};
use std::path::Path;

/// Numbers of the system's errors for too many open files, of a process (EMFILE) or of all (ENFILE).
const TOO_MANY_FILES: &[i32] = if cfg!(unix) {
    &[23, 24]
} else if cfg!(windows) {
    &[4]
} else {
    &[]
};

/// Whether the disk, a quota, the memory or the number of open files is exhausted.
pub fn is_exhausted(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory | ErrorKind::FileTooLarge
    ) || has_too_many_files(error)
}

/// Whether too many files are open.
fn has_too_many_files(error: &Error) -> bool {
    error.raw_os_error().is_some_and(|number| TOO_MANY_FILES.contains(&number))
}

/// Returns what happened, as a clause. An error that a program has worded keeps its words, and one of a kind that users rarely
/// meet those of the system.
pub fn io_problem(error: &Error) -> Cow<'static, str> {
    if error.get_ref().is_some() {
        return error.to_string().into();
    }
    let problem = match error.kind() {
        ErrorKind::NotFound => "no such file or folder",
        ErrorKind::PermissionDenied => "access is denied",
        ErrorKind::NotADirectory => "part of the path is a file, not a folder",
        ErrorKind::IsADirectory => "it is a folder, not a file",
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only",
        ErrorKind::StorageFull => "the disk is full",
        ErrorKind::QuotaExceeded => "the disk quota is used up",
        ErrorKind::FileTooLarge => "the file is larger than the file system or a limit of the system allows",
        ErrorKind::OutOfMemory => "there is not enough memory",
        ErrorKind::InvalidFilename => "the name is too long, or has characters that the file system does not allow",
        ErrorKind::AlreadyExists => "a file, a folder or a broken link has this name",
        ErrorKind::DirectoryNotEmpty => "the folder is not empty",
        ErrorKind::UnexpectedEof => "the file is shorter than it should be",
        _ if has_too_many_files(error) => "too many files are open",
        _ => return error.to_string().into(),
    };
    problem.into()
}

/// Returns what to do, as the end of a sentence.
pub fn io_advice(error: &Error) -> &'static str {
    match error.kind() {
        _ if crate::read::refusal(error).is_some() => "choose a regular file instead",
        // More space does not help.
        ErrorKind::FileTooLarge => "choose a folder on another disk, or raise the limit (ulimit -f), and try again",
        _ if has_too_many_files(error) => "close other programs, or raise the limit (ulimit -n), and try again",
        _ if is_exhausted(error) => "free some space, or choose another folder, and try again",
        ErrorKind::NotFound => "check that the path exists",
        ErrorKind::PermissionDenied => "check its permissions, or choose another folder",
        ErrorKind::NotADirectory => "check the path, or choose another folder",
        ErrorKind::IsADirectory => "choose a file instead",
        ErrorKind::ReadOnlyFilesystem => "choose another folder",
        ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => "choose another name",
        ErrorKind::InvalidFilename => "give it a shorter name",
        ErrorKind::UnexpectedEof => "export or copy it again",
        _ => "check the disk or the network folder, and try again",
    }
}

/// Returns the message of an error on a file or folder: its path, what happened, and what to do.
pub fn io_message(path: &Path, error: &Error) -> String {
    format!("{}: {}; {}", path.display(), io_problem(error), io_advice(error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn errors_that_users_meet_have_words_of_their_own_and_advice() {
        let kinds = [
            ErrorKind::NotFound,
            ErrorKind::PermissionDenied,
            ErrorKind::NotADirectory,
            ErrorKind::IsADirectory,
            ErrorKind::ReadOnlyFilesystem,
            ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded,
            ErrorKind::FileTooLarge,
            ErrorKind::InvalidFilename,
            ErrorKind::AlreadyExists,
        ];
        for kind in kinds {
            let error = Error::from(kind);
            let (problem, advice) = (io_problem(&error), io_advice(&error));
            assert_ne!(problem, error.to_string(), "{kind:?}");
            assert!(!advice.starts_with("check the disk"), "{kind:?}: {advice}");
            let needs_space = matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
            assert_eq!(advice.contains("free some space"), needs_space, "{kind:?}: {advice}");
            assert_eq!(io_message(Path::new("o/a.tif"), &error), format!("o/a.tif: {problem}; {advice}"));
        }
    }

    #[cfg(unix)]
    #[test]
    fn errors_of_the_system_are_told_apart_by_their_kind() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "text").unwrap();
        let problem = |path: &Path| std::fs::read(path).map_err(|error| io_problem(&error).into_owned());
        for (path, expected) in [
            (folder.path().join("nothere"), "no such file or folder"),
            (file.join("b"), "part of the path is a file, not a folder"),
            (folder.path().to_owned(), "it is a folder, not a file"),
            (
                folder.path().join("a".repeat(300)),
                "the name is too long, or has characters that the file system does not allow",
            ),
        ] {
            assert_eq!(problem(&path), Err(expected.to_owned()), "{}", path.display());
        }
    }

    #[cfg(unix)]
    #[test]
    fn too_many_open_files_are_named_with_the_limit() {
        let error = Error::from_raw_os_error(24);
        assert!(is_exhausted(&error) && !is_exhausted(&Error::from(ErrorKind::NotFound)));
        assert_eq!(io_problem(&error), "too many files are open");
        assert!(io_advice(&error).contains("ulimit -n"));
    }

    #[test]
    fn words_of_a_program_and_rare_errors_of_the_system_are_kept() {
        let worded = Error::new(ErrorKind::NotFound, "slice 3 is missing");
        assert_eq!(io_problem(&worded), "slice 3 is missing");
        let rare = Error::from(ErrorKind::AddrInUse);
        assert_eq!(io_problem(&rare), rare.to_string());
    }
}

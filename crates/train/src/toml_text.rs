//! Text of settings files in TOML.

use cytoscope_pipeline::JobError;
use std::io::Read;
use std::path::Path;

/// Maximum size of a settings file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a TOML file that was opened.
///
/// # Errors
/// [`JobError::Mismatch`] if it is a folder, too large or not text; [`JobError::Io`] if it cannot be read.
pub(crate) fn toml_text(path: &Path, file: impl Read) -> Result<String, JobError> {
    let wrong = |problem: &str| JobError::Mismatch {
        path: path.to_owned(),
        problem: problem.into(),
        next_step: "give a text file with settings in TOML".into(),
    };
    if path.is_dir() {
        return Err(wrong("this is a folder"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| JobError::unreadable(path, error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(wrong("the file is too large for settings"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("the file is not text in UTF-8"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn images_folders_and_large_files_are_no_settings() {
        let read = |path: &Path, bytes: &[u8]| toml_text(path, bytes).map_err(|error| error.to_string());
        let folder = tempfile::tempdir().unwrap();
        let path = Path::new("t.toml");
        assert_eq!(read(path, b"ema = 0.5").unwrap(), "ema = 0.5");
        let large = vec![b' '; (1 << 20) + 1];
        for (path, bytes, problem) in [
            (path, &b"II\xff\x00"[..], "not text in UTF-8"),
            (path, &large[..], "too large"),
            (folder.path(), &b""[..], "this is a folder"),
        ] {
            let error = read(path, bytes).unwrap_err();
            assert!(error.contains(problem) && error.ends_with("settings in TOML"), "{error}");
            assert!(error.starts_with(&path.display().to_string()), "{error}");
        }
    }
}

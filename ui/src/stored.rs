//! Small JSON files that the window keeps between sessions.

use cytoscope_storage::folder::move_aside;
use cytoscope_storage::json::JsonError;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Reads a file of at most `max_bytes`; `None` if there is none. A file that cannot be read counts as none, which is
/// logged: the window opens nevertheless, and the next change replaces the file. A damaged file, or one of another
/// version, is renamed first, so that nothing in it is lost.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Option<T> {
    cytoscope_storage::json::read_json(path, max_bytes).unwrap_or_else(|error| {
        let is_damaged = matches!(error, JsonError::Content(_) | JsonError::TooLarge(_) | JsonError::Format { .. });
        match is_damaged.then(|| move_aside(path)) {
            Some(Ok(kept)) => {
                tracing::warn!("{} is not used: {error}; it is kept as {}", path.display(), kept.display())
            }
            Some(Err(_)) | None => tracing::warn!("{} is not used and will be replaced: {error}", path.display()),
        }
        None
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        assert_eq!(read_json::<Vec<u32>>(&path, 10), None);
        std::fs::write(&path, "[1, 2]").unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path, 10), Some(vec![1, 2]));
        assert_eq!(read_json::<Vec<u32>>(&path, 5), None);
        std::fs::write(&path, "[1, ").unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path, 10), None);
        // Nothing that the files held is lost.
        let kept = ["[1, 2]", "[1, "].map(Some);
        let aside =
            [1, 2].map(|n| std::fs::read_to_string(folder.path().join(format!("numbers.json.before-{n}"))).ok());
        assert_eq!(aside.each_ref().map(Option::as_deref), kept);
        assert!(!path.exists());
    }
}

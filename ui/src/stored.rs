//! Small JSON files that the window keeps between sessions.

use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads a file of at most `max_bytes`; `None` if there is none. A file that cannot be read counts as none, which is
/// logged: the window opens nevertheless, and the next change replaces the file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Option<T> {
    read(path, max_bytes).unwrap_or_else(|error| {
        tracing::warn!("{} is not used and will be replaced: {error}", path.display());
        None
    })
}

fn read<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("it has more than {max_bytes} bytes")));
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_no_error_and_a_damaged_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        assert_eq!(read::<Vec<u32>>(&path, 10).unwrap(), None);
        std::fs::write(&path, "[1, 2]").unwrap();
        assert_eq!(read::<Vec<u32>>(&path, 10).unwrap(), Some(vec![1, 2]));
        assert!(read::<Vec<u32>>(&path, 5).unwrap_err().to_string().contains("more than 5 bytes"));
        std::fs::write(&path, "[1, ").unwrap();
        assert!(read::<Vec<u32>>(&path, 10).is_err() && read_json::<Vec<u32>>(&path, 10).is_none());
    }
}

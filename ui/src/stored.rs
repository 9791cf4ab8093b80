//! Small JSON files that the window keeps between sessions.

use cytoscope_storage::folder::move_aside;
use cytoscope_storage::json::JsonError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

/// Reads a file of at most `max_bytes`; `None` if there is none. A file that cannot be read is treated as missing, which
/// is logged: the window still opens, and the next change replaces the file. A damaged file, or one of another
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

/// Returns a value from its stored fields, all of which may be missing. A field that cannot be read, such as one of another
/// JSON type, is left out, which is logged; of a map or a list, only the entries that cannot be read are.
pub(crate) fn from_readable<T: DeserializeOwned + Default>(fields: &Map<String, Value>) -> T {
    let parse = |fields: Map<String, Value>| serde_json::from_value::<T>(Value::Object(fields));
    if let Ok(whole) = parse(fields.clone()) {
        return whole;
    }
    let alone = |name: &str, value: Value| parse(std::iter::once((name.to_owned(), value)).collect());
    let mut readable = Map::new();
    for (name, value) in fields {
        let Err(error) = alone(name, value.clone()) else {
            readable.insert(name.clone(), value.clone());
            continue;
        };
        tracing::warn!("the stored value of {name} is not used, or only in part: {error}");
        let rest = match value {
            Value::Object(entries) => {
                let is_readable = |key: &str, entry: &Value| {
                    alone(name, Value::Object(std::iter::once((key.to_owned(), entry.clone())).collect())).is_ok()
                };
                let entries = entries.iter().filter(|(key, entry)| is_readable(key, entry));
                Value::Object(entries.map(|(key, entry)| (key.clone(), entry.clone())).collect())
            }
            Value::Array(entries) => {
                let is_readable = |entry: &&Value| alone(name, Value::Array(vec![(*entry).clone()])).is_ok();
                Value::Array(entries.iter().filter(is_readable).cloned().collect())
            }
            _ => continue,
        };
        if alone(name, rest.clone()).is_ok() {
            readable.insert(name.clone(), rest);
        }
    }
    parse(readable).unwrap_or_default()
}

/// Copies to `stored` the entries of an object that differ between `earlier` and `later`; of entries that are objects
/// themselves, down to `depth`, only what differs in them, unless they are listed in `whole`. All else that is stored stays,
/// such as what only another version knows.
pub(crate) fn copy_changes(stored: &mut Value, earlier: &Value, later: &Value, depth: usize, whole: &[&str]) {
    let (Value::Object(stored), Value::Object(earlier), Value::Object(later)) = (stored, earlier, later) else {
        return;
    };
    for key in earlier.keys().chain(later.keys()) {
        let (before, now) = (earlier.get(key), later.get(key));
        if before == now {
            continue;
        }
        let is_object = |value: &&Value| value.is_object();
        if depth > 0
            && !whole.contains(&key.as_str())
            && let (Some(before), Some(now)) = (before.filter(is_object), now.filter(is_object))
            && let Some(inner) = stored.get_mut(key).filter(|inner| inner.is_object())
        {
            copy_changes(inner, before, now, depth - 1, whole);
            continue;
        }
        match now {
            Some(now) => _ = stored.insert(key.clone(), now.clone()),
            None => _ = stored.remove(key),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(default)]
    struct Stored {
        count: usize,
        name: String,
        sizes: BTreeMap<String, f64>,
        files: Vec<String>,
    }

    #[test]
    fn only_what_cannot_be_read_is_left_out() {
        let read = |text: &str| from_readable::<Stored>(&serde_json::from_str(text).unwrap());
        let sizes = |entries: &[(&str, f64)]| entries.iter().map(|(key, size)| ((*key).to_owned(), *size)).collect();
        let whole = Stored { count: 2, name: "a".to_owned(), sizes: sizes(&[("b", 0.5)]), files: vec!["c".to_owned()] };
        assert_eq!(read(r#"{"count": 2, "name": "a", "sizes": {"b": 0.5}, "files": ["c"], "later": 1}"#), whole);
        assert_eq!(read(r#"{"count": 2, "name": "a", "sizes": {"b": 0.5, "d": "e"}, "files": [1, "c", null]}"#), whole);
        let others = read(r#"{"count": "2", "name": "a", "sizes": 7, "files": {"c": 1}}"#);
        assert_eq!(others, Stored { name: "a".to_owned(), ..Stored::default() });
        assert_eq!(read(r#"{"count": -1, "name": ["a"], "files": "c"}"#), Stored::default());
    }

    #[test]
    fn only_changes_are_copied() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let earlier = value(r#"{"a": 1, "b": {"x": 1, "y": 2}, "c": {}, "job": {"n": 1}, "gone": 1}"#);
        let later = value(r#"{"a": 1, "b": {"x": 3, "y": 2}, "c": {"z": 1}, "job": {"n": 2}}"#);
        let mut stored =
            value(r#"{"a": "one", "b": {"x": 1, "w": 0}, "c": "text", "job": {"n": 1, "of": 1}, "gone": 1}"#);
        copy_changes(&mut stored, &earlier, &later, 1, &["job"]);
        assert_eq!(stored, value(r#"{"a": "one", "b": {"x": 3, "w": 0}, "c": {"z": 1}, "job": {"n": 2}}"#));
    }
}

//! The weights in a checkpoint of a training program, which may hold an optimizer, settings and histories as well.

use crate::archive::Archive;
use crate::error::ImportError;
use crate::tensors::StoredTensor;
use cytoscope_pickle::{Pickle, Value, ValueId};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Entries under which training programs store weights, the most specific ones first.
const STATES: [&str; 9] = [
    "network_weights",
    "model_state_dict",
    "state_dict",
    "model_state",
    "nn_state",
    "model",
    "network",
    "net",
    "weights",
];
/// Entries of a training program's state that hold no weights.
const NO_WEIGHTS: [&str; 6] = ["optimizer", "lr_scheduler", "grad_scaler", "scheduler", "loops", "callbacks"];
/// Maximum number of tensors.
pub(crate) const MAX_TENSORS: usize = 1 << 16;
/// Maximum size of a tensor's name in bytes, with the names of the dictionaries around it.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum size in bytes of all texts of settings: a text of the pickle may be used many times.
const MAX_SETTINGS_BYTES: usize = 16 << 20;
/// Maximum depth of dictionaries.
const MAX_DEPTH: usize = 16;

/// Reads the weights of a checkpoint by name. Names of nested dictionaries are joined by dots.
///
/// # Errors
/// [`ImportError`] if there are no weights or too many, or a tensor is damaged.
pub(crate) fn weights(archive: &mut Archive<'_>) -> Result<BTreeMap<String, StoredTensor>, ImportError> {
    let root = archive.pickle().root();
    if !matches!(archive.pickle().value(root), Value::Dict(_)) {
        return Err(ImportError::malformed("the checkpoint holds no dictionary of weights"));
    }
    let mut candidates: Vec<ValueId> = STATES.iter().filter_map(|name| archive.pickle().entry(root, name)).collect();
    candidates.push(root);
    for candidate in candidates {
        let mut found = BTreeMap::new();
        let mut seen = 0;
        collect(archive, candidate, "", 0, (&mut found, &mut seen))?;
        if !found.is_empty() {
            return found.into_iter().map(|(name, id)| Ok((name.clone(), archive.tensor(&name, id)?))).collect();
        }
    }
    Err(ImportError::malformed("the checkpoint holds no weights"))
}

fn collect(
    archive: &Archive<'_>,
    id: ValueId,
    prefix: &str,
    depth: usize,
    (found, seen): (&mut BTreeMap<String, ValueId>, &mut usize),
) -> Result<(), ImportError> {
    let pickle = archive.pickle();
    let Value::Dict(entries) = pickle.value(id) else { return Ok(()) };
    for (key, value) in entries {
        // Shared dictionaries may be reached along many ways.
        *seen += 1;
        if *seen > MAX_TENSORS || depth > MAX_DEPTH {
            return Err(ImportError::OverLimit {
                what: "too many or too deeply nested entries".to_owned(),
                limit: MAX_TENSORS as u64,
            });
        }
        let key: Cow<'_, str> = match pickle.value(*key) {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Int(n) => Cow::Owned(n.to_string()),
            _ => continue,
        };
        if depth == 0 && NO_WEIGHTS.iter().any(|other| key.starts_with(other)) {
            continue;
        }
        let is_tensor = archive.is_tensor(*value);
        if !is_tensor && !matches!(pickle.value(*value), Value::Dict(_)) {
            continue;
        }
        check_name_bytes(prefix.len().saturating_add(key.len()).saturating_add(1))?;
        let name = if prefix.is_empty() { key.into_owned() } else { format!("{prefix}.{key}") };
        if is_tensor {
            found.insert(name, *value);
        } else {
            collect(archive, *value, &name, depth + 1, (&mut *found, &mut *seen))?;
        }
    }
    Ok(())
}

/// Refuses names of tensors that are too long.
pub(crate) fn check_name_bytes(bytes: usize) -> Result<(), ImportError> {
    if bytes <= MAX_NAME_BYTES {
        return Ok(());
    }
    Err(ImportError::OverLimit { what: format!("a name of {bytes} bytes"), limit: MAX_NAME_BYTES as u64 })
}

/// What may still be read of a training program's settings.
struct SettingsBudget {
    values: usize,
    text_bytes: usize,
}

impl SettingsBudget {
    /// Counts a value; `None` if there are too many.
    fn take_value(&mut self) -> Option<()> {
        self.values = self.values.checked_sub(1)?;
        Some(())
    }

    /// Counts a text before it is copied; `None` if there are too many.
    fn take_text(&mut self, text: &str) -> Option<()> {
        self.text_bytes = self.text_bytes.checked_sub(text.len())?;
        Some(())
    }
}

/// Returns settings that a training program stores beside the weights: `init_args` of nnU-Net has the plans and the name
/// of the configuration, `hyper_parameters` of Lightning the arguments of the module.
pub(crate) fn entry(pickle: &Pickle, key: &str) -> Option<Json> {
    let settings = pickle.entry(pickle.root(), key)?;
    let mut left = SettingsBudget { values: MAX_TENSORS, text_bytes: MAX_SETTINGS_BYTES };
    json(pickle, settings, 0, &mut left)
}

/// Returns a value as JSON; objects of other classes become null. `None` if it is too large.
fn json(pickle: &Pickle, id: ValueId, depth: usize, left: &mut SettingsBudget) -> Option<Json> {
    left.take_value()?;
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match pickle.value(id) {
        Value::Bool(value) => Json::from(*value),
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => Json::from(*value),
        Value::Text(value) => {
            left.take_text(value)?;
            Json::from(value.as_str())
        }
        Value::Tuple(items) | Value::List(items) => {
            let items = items.iter().map(|item| json(pickle, *item, depth + 1, left));
            Json::Array(items.collect::<Option<_>>()?)
        }
        Value::Dict(entries) => {
            let mut map = serde_json::Map::new();
            for (key, value) in entries {
                if let Some(key) = pickle.text(*key) {
                    left.take_text(key)?;
                    map.insert(key.to_owned(), json(pickle, *value, depth + 1, left)?);
                }
            }
            Json::Object(map)
        }
        _ => Json::Null,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn one_text_that_settings_use_many_times_is_not_copied_without_end() {
        // A list whose items are one text of 64 KiB, in an entry of a dictionary.
        let list = |uses: usize| {
            let mut pickled = b"}X\x01\x00\x00\x00s](X\x00\x00\x01\x00".to_vec();
            pickled.extend([b'a'; 1 << 16]);
            pickled.extend(b"q\x00");
            pickled.extend(b"h\x00".repeat(uses - 1));
            pickled.extend(b"es.");
            entry(&Pickle::read(&pickled, &|_, _| false).unwrap(), "s")
        };
        assert_eq!(list(2).and_then(|json| json.as_array().map(Vec::len)), Some(2));
        assert_eq!(list((MAX_SETTINGS_BYTES >> 16) + 1), None);
    }
}

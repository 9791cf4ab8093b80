//! The weights in a checkpoint of a training program, which may hold an optimizer, settings and histories as well.

use crate::archive::Archive;
use crate::error::ImportError;
use crate::tensors::StoredTensor;
use cytoscope_pickle::{Pickle, Value, ValueId};
use serde_json::Value as Json;
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
const MAX_TENSORS: usize = 1 << 16;
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
        let key = match pickle.value(*key) {
            Value::Text(text) => text.clone(),
            Value::Int(n) => n.to_string(),
            _ => continue,
        };
        if depth == 0 && NO_WEIGHTS.iter().any(|other| key.starts_with(other)) {
            continue;
        }
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        if archive.is_tensor(*value) {
            found.insert(name, *value);
        } else {
            collect(archive, *value, &name, depth + 1, (&mut *found, &mut *seen))?;
        }
    }
    Ok(())
}

/// Returns settings that a training program stores beside the weights: `init_args` of nnU-Net has the plans and the name
/// of the configuration, `hyper_parameters` of Lightning the arguments of the module.
pub(crate) fn entry(pickle: &Pickle, key: &str) -> Option<Json> {
    let settings = pickle.entry(pickle.root(), key)?;
    let mut left = MAX_TENSORS;
    json(pickle, settings, 0, &mut left)
}

/// Returns a value as JSON; objects of other classes become null. `None` if it is too large.
fn json(pickle: &Pickle, id: ValueId, depth: usize, left: &mut usize) -> Option<Json> {
    *left = left.checked_sub(1)?;
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match pickle.value(id) {
        Value::Bool(value) => Json::from(*value),
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => Json::from(*value),
        Value::Text(value) => Json::from(value.as_str()),
        Value::Tuple(items) | Value::List(items) => {
            let items = items.iter().map(|item| json(pickle, *item, depth + 1, left));
            Json::Array(items.collect::<Option<_>>()?)
        }
        Value::Dict(entries) => {
            let mut map = serde_json::Map::new();
            for (key, value) in entries {
                if let Some(key) = pickle.text(*key) {
                    map.insert(key.to_owned(), json(pickle, *value, depth + 1, left)?);
                }
            }
            Json::Object(map)
        }
        _ => Json::Null,
    })
}

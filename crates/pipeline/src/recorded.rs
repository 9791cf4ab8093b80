//! Parts of a record that other versions of the program may describe in another way.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A part of a record. If another version of the program wrote it, it may not be readable as `T`; it is still stored
/// again as it was read.
#[derive(Debug)]
pub struct Recorded<T> {
    json: Value,
    part: Result<T, serde_json::Error>,
}

impl<T: Serialize> Recorded<T> {
    /// Creates the part of a new record.
    ///
    /// # Errors
    /// The error if `part` has no JSON form.
    pub(crate) fn new(part: T) -> Result<Self, serde_json::Error> {
        Ok(Self { json: serde_json::to_value(&part)?, part: Ok(part) })
    }
}

impl<T> Recorded<T> {
    /// Returns the part.
    ///
    /// # Errors
    /// Why this version of the program cannot read it.
    pub fn get(&self) -> Result<&T, &serde_json::Error> {
        self.part.as_ref()
    }

    /// Returns the part, as [`Recorded::get`].
    pub(crate) fn into_inner(self) -> Result<T, serde_json::Error> {
        self.part
    }
}

impl<T> Serialize for Recorded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Recorded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let part = T::deserialize(&json);
        Ok(Self { json, part })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_of_other_versions_are_stored_again_as_they_were_read() {
        for (json, known) in [(json!([1, 2]), Some([1, 2])), (json!({"edges": [1, 2], "later": true}), None)] {
            let part: Recorded<[u8; 2]> = serde_json::from_value(json.clone()).unwrap();
            assert_eq!(part.get().ok(), known.as_ref());
            assert_eq!(serde_json::to_value(&part).unwrap(), json);
        }
        assert_eq!(serde_json::to_value(Recorded::new([3u8, 4]).unwrap()).unwrap(), json!([3, 4]));
    }
}

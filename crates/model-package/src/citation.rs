//! Works that users of a package are asked to cite.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A work that users of a package are asked to cite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    /// Text of the citation, as the package states it.
    pub text: String,
    /// Digital object identifier; `None` if the package states none.
    pub doi: Option<String>,
    /// Address of the work; `None` if the package states none.
    pub url: Option<String>,
}

impl Citation {
    /// Reads an entry of `cite`; `None` if it has no text.
    pub fn of(entry: &Value) -> Option<Self> {
        let text_of = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Self { text: text_of("text")?, doi: text_of("doi"), url: text_of("url") })
    }

    /// Returns whether two entries cite the same work.
    pub fn is_same_work(&self, other: &Self) -> bool {
        let has_same_link = match (&self.doi, &other.doi) {
            (None, None) => self.url.is_some() && self.url == other.url,
            (doi, other) => doi == other,
        };
        has_same_link || self.text == other.text
    }

    /// Returns the entry of `cite`; `None` for a work without DOI and address, since the specification requires one of them.
    pub(crate) fn entry(&self) -> Option<Value> {
        let links = [("doi", &self.doi), ("url", &self.url)];
        let links: Map<String, Value> =
            links.into_iter().filter_map(|(key, link)| Some((key.to_owned(), json!(link.as_ref()?)))).collect();
        if links.is_empty() {
            return None;
        }
        let text = [("text".to_owned(), json!(self.text))];
        Some(Value::Object(text.into_iter().chain(links).collect()))
    }
}

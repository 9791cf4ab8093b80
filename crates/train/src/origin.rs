//! What a start model states about its origin. Models that are trained from it pass it on, as licenses of the data that it
//! was trained on may require.

use cytoscope_model_package::{Citation, Package, is_license};
use serde_json::Value;

/// Maximum number of authors, of cited works, and of tags, that are passed on.
const MAX_ENTRIES: usize = 64;

/// Origin of a start model, as its package states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// One-sentence description, which may name the data that it was trained on.
    description: String,
    /// Names of its authors.
    authors: Vec<String>,
    /// Its license, an identifier or the name of a file in its package; `None` if the package states none.
    license: Option<String>,
    /// Cited works.
    pub cite: Vec<Citation>,
    /// Tags, such as those of what the model finds.
    pub tags: Vec<String>,
}

/// Tags of a package that say which axes and which task it has, so that a trained package states its own.
const OWN_TAGS: [&str; 4] = ["2d", "3d", "instance-segmentation", "image-reconstruction"];

impl Origin {
    /// Returns the origin of the model in a package.
    pub(crate) fn of(package: &Package) -> Self {
        let list = |key: &str| package.rdf.get(key).and_then(Value::as_array).into_iter().flatten().take(MAX_ENTRIES);
        let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Self {
            description: package.description.clone(),
            authors: list("authors").filter_map(|author| text(author, "name")).collect(),
            license: text(&package.rdf, "license"),
            cite: list("cite").filter_map(Citation::of).collect(),
            tags: list("tags").filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }

    /// Adds the tags to those of a trained package, except those that it has and those of other axes or tasks.
    pub(crate) fn add_tags(&self, tags: &mut Vec<String>) {
        for tag in &self.tags {
            let is_same = |known: &str| known.eq_ignore_ascii_case(tag);
            if !tags.iter().any(|known| is_same(known)) && !OWN_TAGS.iter().any(|known| is_same(known)) {
                tags.push(tag.clone());
            }
        }
    }

    /// Returns the section of a model card about the start model of this `name`; `escape` escapes Markdown.
    pub(crate) fn section(&self, name: &str, escape: impl Fn(&str) -> String) -> String {
        let mut text = format!("\n## Start model\n\nTraining started from {}", escape(name));
        if !self.authors.is_empty() {
            text.push_str(&format!(" by {}", escape(&self.authors.join(", "))));
        }
        if let Some(license) = &self.license {
            text.push_str(&format!(" (license: {})", escape(license)));
        }
        text.push_str(".\n");
        if !self.description.is_empty() {
            text.push_str(&format!("\n> {}\n", escape(&self.description)));
        }
        if !self.cite.is_empty() {
            text.push_str("\nIts authors ask to cite:\n\n");
        }
        for work in &self.cite {
            let link = match (&work.doi, &work.url) {
                (Some(doi), _) => format!(" (doi:{})", escape(doi)),
                (None, Some(url)) => format!(" ({})", escape(url)),
                (None, None) => String::new(),
            };
            text.push_str(&format!("- {}{link}\n", escape(&work.text)));
        }
        text
    }
}

/// Returns the license that a trained package states: the one that the user gives, or else that of the start model. `None`
/// if nobody gives one, or the start model's is not an identifier but a file, which is not passed on.
pub(crate) fn license(given: Option<&str>, start: Option<&Origin>) -> Option<String> {
    let start_license = || start?.license.clone().filter(|name| is_license(name));
    given.map(str::to_owned).or_else(start_license)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_license_is_passed_on_but_never_assumed() {
        let stated = |license: Option<&str>| Origin {
            description: String::new(),
            authors: Vec::new(),
            license: license.map(str::to_owned),
            cite: Vec::new(),
            tags: Vec::new(),
        };
        let (none, file, attribution) = (stated(None), stated(Some("LICENSE.md")), stated(Some("CC-BY-4.0")));
        for start in [None, Some(&none), Some(&file)] {
            assert_eq!(license(None, start), None, "{start:?}");
        }
        assert_eq!(license(None, Some(&attribution)).as_deref(), Some("CC-BY-4.0"));
        assert_eq!(license(None, Some(&stated(Some("GPL-3.0")))).as_deref(), Some("GPL-3.0"), "deprecated, but known");
        for start in [None, Some(&none), Some(&attribution)] {
            assert_eq!(license(Some("MIT"), start).as_deref(), Some("MIT"), "the user's choice");
        }
    }
}

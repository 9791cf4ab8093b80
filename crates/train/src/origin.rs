//! What a start model states about its origin. Models that are trained from it pass it on, as licenses of the data that it
//! was trained on may require.

use cytoscope_model_package::Package;
use serde_json::Value;

/// Maximum number of authors, and of cited works, that are passed on.
const MAX_ENTRIES: usize = 64;

/// Origin of a start model, as its package states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// One-sentence description, which may name the data that it was trained on.
    description: String,
    /// Names of its authors.
    authors: Vec<String>,
    /// Identifier of its license; `None` if the package states none, or has it in a file.
    pub license: Option<String>,
    /// Cited works: text and DOI, if there is one.
    pub cite: Vec<(String, Option<String>)>,
}

impl Origin {
    /// Returns the origin of the model in a package.
    pub(crate) fn of(package: &Package) -> Self {
        let list = |key: &str| package.rdf.get(key).and_then(Value::as_array).into_iter().flatten().take(MAX_ENTRIES);
        let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Self {
            description: package.description.clone(),
            authors: list("authors").filter_map(|author| text(author, "name")).collect(),
            license: text(&package.rdf, "license"),
            cite: list("cite").filter_map(|work| Some((text(work, "text")?, text(work, "doi")))).collect(),
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
        for (work, doi) in &self.cite {
            let doi = doi.as_ref().map(|doi| format!(" (doi:{})", escape(doi))).unwrap_or_default();
            text.push_str(&format!("- {}{doi}\n", escape(work)));
        }
        text
    }
}

//! Fields of a package that is uploaded: unknown ones, and those that few packages have.

use super::people::is_email;
use super::{Checker, RESOURCE_ID_RULE, given, is_resource_id};
use serde_json::Value;

/// Fields of a description of a model (`ModelDescr` of bioimageio.spec 0.5), and `version_number`, which it reads as the
/// version.
const MODEL_FIELDS: [&str; 30] = [
    "attachments",
    "authors",
    "cite",
    "config",
    "covers",
    "description",
    "documentation",
    "format_version",
    "git_repo",
    "icon",
    "id",
    "id_emoji",
    "inputs",
    "license",
    "links",
    "maintainers",
    "name",
    "outputs",
    "packaged_by",
    "parent",
    "run_mode",
    "tags",
    "timestamp",
    "training_data",
    "type",
    "uploader",
    "version",
    "version_comment",
    "version_number",
    "weights",
];
/// Fields of authors, maintainers and packagers.
const PERSON_FIELDS: [&str; 5] = ["affiliation", "email", "github_user", "name", "orcid"];
/// Fields of an entry of the cited work.
const CITE_FIELDS: [&str; 3] = ["doi", "text", "url"];
/// Maximum number of characters of a comment on the version.
const VERSION_COMMENT_LENGTH: usize = 512;
/// Maximum number of characters of an icon that is a text.
const ICON_LENGTH: usize = 2;
/// The first patch of format 0.5 in which the file of an icon is the source of an entry. Before, it could be the name alone.
const ICON_ENTRY_PATCH: u32 = 11;

impl<'a> Checker<'a> {
    /// Checks the names of fields, and the fields that no other check covers.
    pub(super) fn fields(&mut self) {
        // Earlier formats have other fields.
        if self.is_05() {
            self.known_fields("", self.rdf, &MODEL_FIELDS);
            let (person, cite) = (PERSON_FIELDS.as_slice(), CITE_FIELDS.as_slice());
            for (key, known) in [("authors", person), ("maintainers", person), ("packaged_by", person), ("cite", cite)]
            {
                let entries = self.rdf.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                for (i, entry) in entries.iter().enumerate() {
                    self.known_fields(&format!("{key}[{i}]."), entry, known);
                }
            }
        }
        self.links();
        self.version_comment();
        self.icon();
        self.uploader();
        if let Some(data) = given(self.rdf, "training_data") {
            let id = given(data, "id");
            if !data.is_object() {
                self.refuse("training_data", "is no dataset: give its id on bioimage.io, or remove it");
            } else if id.is_some_and(|id| !id.as_str().is_some_and(is_resource_id)) {
                self.refuse("training_data.id", format!("is not an identifier of bioimage.io: {RESOURCE_ID_RULE}"));
            }
        }
    }

    /// Whether the description has format 0.5.
    pub(super) fn is_05(&self) -> bool {
        self.rdf.get("format_version").and_then(Value::as_str).is_some_and(|version| version.starts_with("0.5"))
    }

    /// Whether the icon may be the name of a file.
    fn takes_icon_name(&self) -> bool {
        let version = self.rdf.get("format_version").and_then(Value::as_str).unwrap_or_default();
        let patch = version.strip_prefix("0.5.").and_then(|patch| patch.parse::<u32>().ok());
        patch.is_none_or(|patch| patch < ICON_ENTRY_PATCH)
    }

    /// Refuses fields of an object that are not known; `path` begins their names.
    fn known_fields(&mut self, path: &str, object: &'a Value, known: &[&str]) {
        for key in object.as_object().into_iter().flat_map(|object| object.keys()) {
            if !known.contains(&key.as_str()) {
                self.refuse(
                    format!("{path}{key}"),
                    "is not a field of the specification: remove it, or correct its name",
                );
            }
        }
    }

    fn links(&mut self) {
        for (i, link) in self.list("links").iter().enumerate() {
            self.text(&format!("links[{i}]"), link);
        }
    }

    fn version_comment(&mut self) {
        const PART: &str = "version_comment";
        let Some(comment) = given(self.rdf, PART).and_then(|value| self.text(PART, value)) else { return };
        let count = comment.chars().count();
        if count > VERSION_COMMENT_LENGTH {
            let message = format!("has {count} characters, at most {VERSION_COMMENT_LENGTH} are allowed: shorten it");
            self.refuse(PART, message);
        }
    }

    fn icon(&mut self) {
        const PART: &str = "icon";
        let Some(icon) = given(self.rdf, PART) else { return };
        match icon.as_str().map(|text| text.chars().count()) {
            Some(1..=ICON_LENGTH) => {}
            Some(1..) if self.takes_icon_name() => _ = self.file(PART, icon),
            Some(_) => {
                let message = format!("is {icon}: give one emoji, or the file of a picture as the source of an entry");
                self.refuse(PART, message);
            }
            None => _ = self.file(PART, icon),
        }
    }

    fn uploader(&mut self) {
        let Some(uploader) = given(self.rdf, "uploader") else { return };
        let email = given(uploader, "email");
        if !email.and_then(Value::as_str).is_some_and(is_email) {
            let found = email.map_or_else(|| "is missing".to_owned(), |email| format!("is {email}"));
            self.refuse("uploader.email", format!("{found}: give an address such as ada@example.org"));
        }
    }
}

//! Fields of a package that is uploaded: unknown ones, and those that few packages have.

use super::people::is_email;
use super::versions::is_version;
use super::{Checker, RESOURCE_ID_RULE, given, is_resource_id};
use crate::FormatVersion;
use crate::test_run::MAX_OUTSIDE_PPM;
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
pub(super) const PERSON_FIELDS: [&str; 5] = ["affiliation", "email", "github_user", "name", "orcid"];
/// Fields of an entry of the cited work.
const CITE_FIELDS: [&str; 3] = ["doi", "text", "url"];
/// Fields of the model that a model was derived from.
const LINK_FIELDS: [&str; 3] = ["id", "version", "version_number"];
/// Fields of the dataset that a model was trained on, if it has an id of bioimage.io.
const DATASET_FIELDS: [&str; 2] = ["id", "version"];
/// Fields of the entry of a file.
const FILE_FIELDS: [&str; 2] = ["sha256", "source"];
/// Fields that may be left out, but not be empty.
const NOT_EMPTY: [&str; 11] = [
    "attachments",
    "authors",
    "cite",
    "config",
    "covers",
    "description",
    "links",
    "maintainers",
    "packaged_by",
    "tags",
    "timestamp",
];
/// Maximum number of characters of a comment on the version.
const VERSION_COMMENT_LENGTH: usize = 512;
/// Maximum number of characters of an icon that is a text.
const ICON_LENGTH: usize = 2;
/// The first patch of format 0.5 in which the files of icon, documentation and covers are sources of entries. Before, they could
/// be the names alone.
const ENTRY_PATCH: u32 = 11;
/// Largest relative tolerance of the model's test.
const MAX_RELATIVE_TOLERANCE: f64 = 0.01;

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
            self.check_05_fields();
        }
        self.links();
        self.version_comment();
        self.icon();
        self.uploader();
        if let Some(data) = given(self.rdf, "training_data") {
            let id = given(data, "id");
            if !data.is_object() || (id.is_none() && data.get("type").is_none()) {
                self.refuse("training_data", "is not a dataset: give its id on bioimage.io, or remove it");
            } else if id.is_some_and(|id| !id.as_str().is_some_and(is_resource_id)) {
                self.refuse("training_data.id", format!("is not an identifier of bioimage.io: {RESOURCE_ID_RULE}"));
            }
        }
    }

    /// Whether the description has format 0.5.
    pub(super) fn is_05(&self) -> bool {
        let stated = self.rdf.get("format_version").and_then(Value::as_str);
        stated.and_then(FormatVersion::of) == Some(FormatVersion::V05)
    }

    /// Whether icon, documentation and covers may be the names of files.
    fn takes_names(&self) -> bool {
        let version = self.rdf.get("format_version").and_then(Value::as_str).unwrap_or_default();
        let patch = version.strip_prefix("0.5.").and_then(|patch| patch.parse::<u32>().ok());
        patch.is_none_or(|patch| patch < ENTRY_PATCH)
    }

    /// Checks fields that format 0.4 does not have, or whose values it does not check.
    fn check_05_fields(&mut self) {
        let rdf: &'a Value = self.rdf;
        for key in NOT_EMPTY {
            if rdf.get(key).is_some_and(Value::is_null) {
                self.refuse(key, "is empty: fill it in, or remove it");
            }
        }
        let documentation = given(rdf, "documentation").map(|file| ("documentation".to_owned(), file));
        let listed = |key: &'static str| {
            let files = rdf.get(key).and_then(Value::as_array).into_iter().flatten();
            files.enumerate().map(move |(i, file)| (format!("{key}[{i}]"), file))
        };
        let files: Vec<(String, &'a Value)> =
            documentation.into_iter().chain(listed("covers")).chain(listed("attachments")).collect();
        for (part, file) in files {
            if file.is_object() {
                self.file_entry(&part, file);
            } else if file.is_string() && !part.starts_with("attachments") && !self.takes_names() {
                self.refuse(part, format!("is {file}: write an entry with this name as its source"));
            }
        }
        self.run_mode();
        self.config();
        let is_short = |text: &str| (1..=ICON_LENGTH).contains(&text.chars().count());
        if let Some(emoji) = given(rdf, "id_emoji").filter(|emoji| !emoji.as_str().is_some_and(is_short)) {
            self.refuse("id_emoji", format!("is {emoji}: give one emoji, or remove it"));
        }
        for (key, known) in [("parent", LINK_FIELDS.as_slice()), ("training_data", DATASET_FIELDS.as_slice())] {
            // A dataset that is described here has its own fields.
            let Some(link) = given(rdf, key).filter(|link| link.get("type").is_none()) else { continue };
            self.known_fields(&format!("{key}."), link, known);
            if let Some(version) = given(link, "version")
                && !is_version(version)
            {
                let part = format!("{key}.version");
                self.refuse(part, format!("is {version}, which is not a version: write one such as 0.1.0"));
            }
        }
        if let Some(uploader) = given(rdf, "uploader") {
            self.known_fields("uploader.", uploader, &["email", "name"]);
        }
    }

    fn run_mode(&mut self) {
        const PART: &str = "run_mode";
        let rdf: &'a Value = self.rdf;
        let Some(mode) = given(rdf, PART) else { return };
        if !mode.is_object() {
            return self.refuse(PART, format!("is {mode}: give its name in a mapping, or remove it"));
        }
        self.known_fields("run_mode.", mode, &["kwargs", "name"]);
        if mode.get("name").and_then(Value::as_str).is_none() {
            self.refuse("run_mode.name", "is missing or not text: give the name of the mode");
        }
        if given(mode, "kwargs").is_some_and(|kwargs| !kwargs.is_object()) {
            self.refuse("run_mode.kwargs", "is not a mapping: write the parameters by name, or remove it");
        }
    }

    /// Checks the settings of bioimage.io itself; programs may add others.
    fn config(&mut self) {
        let rdf: &'a Value = self.rdf;
        let Some(config) = given(rdf, "config") else { return };
        if !config.is_object() {
            return self.refuse("config", "is not a mapping: write settings by the name of their program");
        }
        let Some(own) = config.get("bioimageio") else { return };
        if !own.is_object() {
            return self.refuse("config.bioimageio", "is not a mapping: correct it, or remove it");
        }
        let part = "config.bioimageio.reproducibility_tolerance";
        let Some(tolerances) = own.get("reproducibility_tolerance") else { return };
        let Some(list) = tolerances.as_array() else {
            return self.refuse(part, "is not a list: write a list of tolerances, or remove it");
        };
        for (i, tolerance) in list.iter().enumerate() {
            let relative = tolerance.get("relative_tolerance");
            let is_relative = |value: f64| (0.0..=MAX_RELATIVE_TOLERANCE).contains(&value);
            if let Some(value) = relative.filter(|value| !value.as_f64().is_some_and(is_relative)) {
                let message = format!("is {value}: give a number from 0 to {MAX_RELATIVE_TOLERANCE}");
                self.refuse(format!("{part}[{i}].relative_tolerance"), message);
            }
            let absolute = tolerance.get("absolute_tolerance");
            if let Some(value) = absolute.filter(|value| !value.as_f64().is_some_and(|value| value >= 0.0)) {
                let message = format!("is {value}: give a number that is not negative");
                self.refuse(format!("{part}[{i}].absolute_tolerance"), message);
            }
            let outliers = tolerance.get("mismatched_elements_per_million");
            let is_share = |value: f64| value.fract() == 0.0 && (0.0..=MAX_OUTSIDE_PPM).contains(&value);
            if let Some(value) = outliers.filter(|value| !value.as_f64().is_some_and(is_share)) {
                let message = format!("is {value}: give a whole number from 0 to {MAX_OUTSIDE_PPM}");
                self.refuse(format!("{part}[{i}].mismatched_elements_per_million"), message);
            }
        }
    }

    /// Refuses a file that is not given as an entry with a source, and unknown fields of the entry.
    pub(super) fn file_entry(&mut self, part: &str, value: &'a Value) {
        if value.is_object() {
            self.known_fields(&format!("{part}."), value, &FILE_FIELDS);
        } else {
            self.refuse(part, format!("is {value}: write an entry with the name of the file as its source"));
        }
    }

    /// Refuses fields of an object that are not known; `path` begins their names.
    pub(super) fn known_fields(&mut self, path: &str, object: &'a Value, known: &[&str]) {
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
            Some(1..) if self.takes_names() => _ = self.file(PART, icon),
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

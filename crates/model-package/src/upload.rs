//! Parts of a package description that bioimage.io would refuse, or ask to complete, when the package is uploaded.
//!
//! The rules are those for metadata in the reference implementation of specification 0.5
//! (<https://github.com/bioimage-io/spec-bioimage-io>, bioimageio.spec 0.5.12). Nothing is downloaded: whether an address or a
//! GitHub user exists is not checked. What is needed to run a package is checked when it is opened. Its own test checks the
//! results, including the shapes of the test tensors.

mod fields;
mod files;
mod image_size;
mod people;
mod step_fields;
mod tensor_fields;
mod versions;
mod weight_fields;

use super::{Files, Package};
use files::FileFacts;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use versions::{is_timestamp, is_version};

/// Identifiers of licenses, one a line; deprecated ones begin with `-`.
const LICENSES: &str = include_str!("upload/spdx_licenses.txt");
/// Allowed characters of a name besides letters and digits of ASCII.
const NAME_CHARACTERS: &str = "_+- ()";
/// Allowed number of characters of a name.
const NAME_LENGTH: std::ops::RangeInclusive<usize> = 5..=128;
/// Number of characters up to which a name is shown in full.
const SHORT_NAME: usize = 64;
/// Maximum number of characters of a description.
const DESCRIPTION_LENGTH: usize = 1024;
/// Number of characters up to which a description counts as brief.
const BRIEF_DESCRIPTION: usize = 512;
/// Maximum number of characters of the id of a tensor.
const TENSOR_ID_LENGTH: usize = 32;

/// What is wrong with a text as an identifier of a license.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LicenseProblem {
    /// What is wrong, as a predicate.
    pub problem: String,
    /// What to do next.
    pub next_step: String,
}

/// Returns what is wrong with a license identifier; `None` if it is in the SPDX list and not deprecated.
pub fn license_problem(name: &str) -> Option<LicenseProblem> {
    if LICENSES.lines().any(|line| line == name) && !name.starts_with('-') {
        return None;
    }
    if LICENSES.lines().any(|line| line.strip_prefix('-') == Some(name)) {
        let next_step = "use the newer identifier of the same license".to_owned();
        return Some(LicenseProblem { problem: format!("is {name}, which is deprecated"), next_step });
    }
    let close = LICENSES.lines().find(|line| line.eq_ignore_ascii_case(name));
    let next_step = close.map_or_else(
        || "give one of https://spdx.org/licenses such as CC-BY-4.0".to_owned(),
        |close| format!("write {close}"),
    );
    Some(LicenseProblem { problem: format!("is {name:?}, which is not an SPDX identifier"), next_step })
}

/// Whether a text is the identifier of a license in the SPDX list, deprecated or not.
pub fn is_license(name: &str) -> bool {
    LICENSES.lines().any(|line| line.strip_prefix('-').unwrap_or(line) == name)
}

/// How bioimage.io reacts to a part of a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UploadSeverity {
    /// The package is refused.
    Refused,
    /// The package is accepted, but its page asks for this part.
    Warning,
}

/// A part of a description that bioimage.io refuses or asks to complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadFinding {
    /// The field, such as `authors[0].orcid`.
    pub part: String,
    /// What was found, what is expected, and what to do.
    #[serde(rename = "sentence")]
    pub message: String,
    /// How bioimage.io reacts.
    pub severity: UploadSeverity,
}

impl Package {
    /// Returns what bioimage.io would refuse or ask to complete if this package were uploaded; empty if nothing.
    pub fn upload_findings(&self) -> Vec<UploadFinding> {
        let mut checker =
            Checker { rdf: &self.rdf, files: &self.files, known_files: BTreeMap::new(), findings: Vec::new() };
        if !self.is_described() {
            let message = "is missing: import the model as a package, and complete its rdf.yaml";
            checker.refuse("description", message);
            return checker.findings;
        }
        checker.identity();
        checker.fields();
        checker.names();
        checker.people();
        checker.citations();
        checker.license();
        checker.addresses_and_tags();
        checker.documentation();
        checker.covers();
        checker.attachments();
        checker.tensors();
        checker.tensor_fields();
        checker.weights();
        checker.weight_fields();
        checker.findings
    }
}

/// Collects findings about a description.
struct Checker<'a> {
    rdf: &'a Value,
    files: &'a Files,
    /// Facts about the files that were read, or why one cannot be read, by path.
    known_files: BTreeMap<PathBuf, Result<FileFacts, String>>,
    findings: Vec<UploadFinding>,
}

/// Returns a value if it is given and not null.
fn given<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|value| !value.is_null())
}

impl<'a> Checker<'a> {
    fn refuse(&mut self, part: impl Into<String>, message: impl Into<String>) {
        self.add(part.into(), message.into(), UploadSeverity::Refused);
    }

    fn warn(&mut self, part: impl Into<String>, message: impl Into<String>) {
        self.add(part.into(), message.into(), UploadSeverity::Warning);
    }

    fn add(&mut self, part: String, message: String, severity: UploadSeverity) {
        self.findings.push(UploadFinding { part, message, severity });
    }

    /// Returns a text; refuses another value.
    fn text(&mut self, part: &str, value: &'a Value) -> Option<&'a str> {
        let text = value.as_str();
        if text.is_none() {
            self.refuse(part, "is not text: put it in quotation marks");
        }
        text
    }

    /// Returns the entries of a list, none if it is missing; refuses another value.
    fn list(&mut self, key: &str) -> &'a [Value] {
        let Some(value) = given(self.rdf, key) else { return &[] };
        let list = value.as_array();
        if list.is_none() {
            self.refuse(key, "is not a list");
        }
        list.map(Vec::as_slice).unwrap_or_default()
    }

    /// Checks the type, versions, identifiers and the time stamp.
    fn identity(&mut self) {
        if self.rdf.get("type").and_then(Value::as_str) != Some("model") {
            self.refuse("type", "is not \"model\": write type: model");
        }
        let version = self.rdf.get("format_version").and_then(Value::as_str).unwrap_or_default();
        let is_number = self.rdf.get("format_version").is_some_and(Value::is_number);
        if is_number || (self.is_05() && !is_05_with_patch(version)) {
            self.refuse("format_version", "is not given in full: write it as text with three numbers, such as 0.5.3");
        } else if !self.is_05() {
            let message = format!(
                "is {version:?}, but new models need 0.5: import the model, which writes a package of version 0.5"
            );
            self.warn("format_version", message);
        }
        if let Some(version) = given(self.rdf, "version")
            && !is_version(version)
        {
            self.refuse("version", format!("is {version}, which is not a version: write one such as 0.1.0"));
        }
        let id = given(self.rdf, "id");
        match id.map(|id| id.as_str().is_some_and(is_resource_id)) {
            Some(true) => self.warn(
                "id",
                "is given, but bioimage.io assigns the identifiers of new models: remove it, unless this is a new version \
                 of that model",
            ),
            Some(false) => self.refuse("id", format!("is not an identifier of bioimage.io: {RESOURCE_ID_RULE}")),
            None => {}
        }
        if let Some(parent) = given(self.rdf, "parent") {
            match given(parent, "id").and_then(Value::as_str) {
                None => {
                    self.refuse("parent", "has no id: give the identifier of the model on bioimage.io, or remove it")
                }
                Some(parent) if !is_resource_id(parent) => {
                    let message = format!("is {parent:?}, not an identifier of bioimage.io: {RESOURCE_ID_RULE}");
                    self.refuse("parent.id", message);
                }
                Some(parent) if id.and_then(Value::as_str) == Some(parent) => {
                    self.refuse("parent.id", "is the model's own id: give the model that it was derived from");
                }
                Some(_) => {}
            }
        }
        if let Some(time) = given(self.rdf, "timestamp")
            && !time.as_str().is_some_and(is_timestamp)
        {
            let message = format!("is {time}: expected a time of ISO 8601 such as 2024-02-03T04:05:06+00:00");
            self.refuse("timestamp", message);
        }
    }

    fn names(&mut self) {
        match given(self.rdf, "name") {
            None => self.refuse("name", "is missing: give 5 to 128 letters, digits, spaces or _ + - ( )"),
            Some(name) => {
                if let Some(name) = self.text("name", name) {
                    self.name(name);
                }
            }
        }
        let description = given(self.rdf, "description").and_then(|value| self.text("description", value));
        match description.map_or(0, |text| text.chars().count()) {
            0 => self.warn("description", "is missing: say in a sentence what the model does"),
            n if n > DESCRIPTION_LENGTH => {
                let message = format!(
                    "has {n} characters, at most {DESCRIPTION_LENGTH} are allowed: move details into README.md"
                );
                self.refuse("description", message);
            }
            n if n > BRIEF_DESCRIPTION => {
                let message = format!("has {n} characters: a brief one has at most {BRIEF_DESCRIPTION}");
                self.warn("description", message);
            }
            _ => {}
        }
    }

    fn name(&mut self, name: &str) {
        let length = name.chars().count();
        if !NAME_LENGTH.contains(&length) {
            let (low, high) = (NAME_LENGTH.start(), NAME_LENGTH.end());
            self.refuse("name", format!("has {length} characters: give one of {low} to {high}"));
        } else if length > SHORT_NAME {
            self.warn("name", format!("has {length} characters: lists show only {SHORT_NAME}"));
        }
        let is_allowed = |c: &char| c.is_ascii_alphanumeric() || NAME_CHARACTERS.contains(*c);
        let others: BTreeSet<char> = name.chars().filter(|c| !is_allowed(c)).collect();
        if !others.is_empty() {
            let found: Vec<String> = others.iter().map(|c| format!("{c:?}")).collect();
            let message = format!("contains {}: use letters, digits, spaces and _ + - ( ) only", found.join(", "));
            self.refuse("name", message);
        }
    }

    fn citations(&mut self) {
        let list = self.list("cite");
        if list.is_empty() {
            self.warn("cite", "is missing: name at least the work that describes the network or the data");
        }
        for (i, entry) in list.iter().enumerate() {
            let part = |key: &str| format!("cite[{i}]{key}");
            match given(entry, "text") {
                Some(text) => _ = self.text(&part(".text"), text),
                None => {
                    self.refuse(part(".text"), "is missing: describe the work, such as \"Ronneberger et al.: U-Net\"")
                }
            }
            let [doi, url] = ["doi", "url"].map(|key| given(entry, key));
            if doi.is_none() && url.is_none() {
                self.refuse(part(""), "has neither doi nor url: give one of them");
            }
            if let Some(doi) = doi
                && !doi.as_str().is_some_and(is_doi)
            {
                let message =
                    format!("is {doi}: expected one such as 10.1007/978-3-319-24574-4_28, without an address");
                self.refuse(part(".doi"), message);
            }
            if let Some(url) = url {
                self.address(&part(".url"), url);
            }
        }
    }

    fn license(&mut self) {
        const PART: &str = "license";
        let Some(value) = given(self.rdf, PART) else {
            return self.warn(PART, "is missing: give an identifier of https://spdx.org/licenses such as CC-BY-4.0");
        };
        let Some(name) = value.as_str() else {
            self.file(PART, value);
            return;
        };
        let Some(LicenseProblem { problem, next_step }) = license_problem(name) else { return };
        let message = format!("{problem}: {next_step}");
        let is_deprecated = LICENSES.lines().any(|line| line.strip_prefix('-') == Some(name));
        if is_deprecated {
            self.warn(PART, message);
        } else if self.files.read(name).is_ok() {
            let message =
                format!("is the file {name}: if https://spdx.org/licenses lists this license, give its identifier");
            self.warn(PART, message);
        } else {
            self.refuse(PART, message);
        }
    }

    fn addresses_and_tags(&mut self) {
        match given(self.rdf, "git_repo") {
            Some(url) => self.address("git_repo", url),
            None => self.warn("git_repo", "is missing: give the address of the code, if it is public"),
        }
        let tags = self.list("tags");
        if tags.is_empty() {
            self.warn("tags", "is missing: models are found by tags such as nuclei, 3d, instance-segmentation");
        }
        for (i, tag) in tags.iter().enumerate() {
            self.text(&format!("tags[{i}]"), tag);
        }
    }

    fn address(&mut self, part: &str, value: &Value) {
        let is_address = |text: &str| {
            let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
            rest.is_some_and(|rest| rest.starts_with(char::is_alphanumeric) && !text.contains(char::is_whitespace))
        };
        if !value.as_str().is_some_and(is_address) {
            self.refuse(part, format!("is {value}: expected an address that begins with https://"));
        }
    }
}

/// Whether a text is a version of format 0.5 with its third number.
fn is_05_with_patch(version: &str) -> bool {
    version.strip_prefix("0.5.").is_some_and(|patch| patch.parse::<u32>().is_ok())
}

/// Characters of bioimage.io's identifiers.
const RESOURCE_ID_RULE: &str = "use lower-case letters, digits and _ - / . only, with / neither first nor last";

fn is_resource_id(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-/.".contains(c);
    !text.is_empty() && text.chars().all(is_allowed) && !text.starts_with('/') && !text.ends_with('/')
}

/// Whether a text has the form of a DOI: `10.`, four digits and more.
fn is_doi(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("10.") else { return false };
    rest.len() > 4 && rest.bytes().take(4).all(|b| b.is_ascii_digit())
}

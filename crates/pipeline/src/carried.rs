//! What a package takes over from the one it is made of: people, citations, licence, attached files, pictures.

use cytoscope_graph::package::{Carried, Package, is_reserved};
use serde_json::{Map, Value, json};

/// Most pictures of a package that are kept when it is written anew.
const MAX_COVERS: usize = 16;
/// Most bytes of one of them.
const MAX_COVER_BYTES: usize = 16 << 20;
/// How names of pictures end.
const COVER_ENDINGS: [&str; 8] = ["png", "jpg", "jpeg", "gif", "svg", "webp", "tif", "tiff"];
/// Most attached files that are kept.
const MAX_ATTACHMENTS: usize = 64;
/// Most bytes of an attached file.
const MAX_ATTACHMENT_BYTES: u64 = 256 << 20;
/// Most bytes of all attached files.
const MAX_ATTACHED_BYTES: u64 = 1 << 30;
/// Most characters of an icon that is no file: one or two.
const MAX_ICON_CHARS: usize = 2;

/// Fields that 0.4 and 0.5 write alike.
const FIELDS: [&str; 11] = [
    "maintainers",
    "packaged_by",
    "git_repo",
    "links",
    "id",
    "id_emoji",
    "uploader",
    "version",
    "version_comment",
    "timestamp",
    "run_mode",
];
/// Fields that 0.4 writes otherwise.
const FIELDS_05: [&str; 2] = ["training_data", "parent"];

/// What is carried over, and what of it is left behind.
pub(crate) struct Kept {
    pub carried: Carried,
    /// A sentence part for each file that is left out.
    pub left_out: Vec<String>,
}

/// The file that an entry names: as text, or as `source` of a mapping.
pub(crate) fn file_name(entry: Option<&Value>) -> Option<&str> {
    let entry = entry?;
    entry.as_str().or_else(|| entry.get("source").and_then(Value::as_str))
}

/// The last part of a path or an address.
fn plain_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

/// The name that a file has in a package written anew.
fn free_name(file: &str) -> String {
    let name = plain_name(file);
    if is_reserved(name) { format!("attached_{name}") } else { name.to_owned() }
}

/// What a package hands on beside its network, tensors, documentation, tags and pictures.
pub(crate) fn carried(package: &Package) -> Kept {
    let rdf = &package.rdf;
    let is_05 = package.format_version.starts_with("0.5");
    let some = |key: &str| rdf.get(key).filter(|v| !v.is_null()).cloned();
    let mut fields = Map::new();
    let also = if is_05 { &FIELDS_05[..] } else { &[] };
    for key in FIELDS.iter().chain(also) {
        if let Some(value) = some(key) {
            fields.insert((*key).to_owned(), value);
        }
    }
    let list = |key: &str| rdf.get(key).and_then(Value::as_array).into_iter().flatten();
    let authors: Vec<&Value> = list("authors").filter(|a| a.get("name").is_some_and(Value::is_string)).collect();
    fields.insert("authors".to_owned(), json!(authors));
    // The specification refuses citations without a DOI or an address.
    let linked = |c: &&Value| ["doi", "url"].iter().any(|key| c.get(key).is_some_and(Value::is_string));
    fields.insert("cite".to_owned(), json!(list("cite").filter(linked).collect::<Vec<_>>()));
    let mut files = Attached::new(package);
    let license = match some("license") {
        Some(Value::Object(file)) => file.get("source").and_then(Value::as_str).and_then(|name| files.take(name)),
        other => other,
    };
    fields.insert("license".to_owned(), license.unwrap_or(Value::Null));
    if let Some(icon) = some("icon") {
        let is_text = icon.as_str().is_some_and(|text| text.chars().count() <= MAX_ICON_CHARS);
        let kept = if is_text { Some(icon) } else { file_name(Some(&icon)).and_then(|name| files.take(name)) };
        kept.into_iter().for_each(|icon| _ = fields.insert("icon".to_owned(), icon));
    }
    let own = |key: &str| file_name(package.config().get(key)).map(plain_name);
    let networks = [own("quantized_weights"), own("float_weights")];
    // A list in 0.5, a mapping with `files` in 0.4.
    let attached = rdf.get("attachments").and_then(|a| a.as_array().or_else(|| a.get("files")?.as_array()));
    for name in attached.into_iter().flatten().filter_map(|entry| file_name(Some(entry))) {
        if !networks.contains(&Some(plain_name(name))) {
            files.take(name);
        }
    }
    for key in ["sample_inputs", "sample_outputs"] {
        list(key).filter_map(|v| file_name(Some(v))).for_each(|name| _ = files.take(name));
    }
    let samples = ["inputs", "outputs"].map(|key| list(key).map(|t| files.sample(t.get("sample_tensor"))).collect());
    let mut config = rdf.get("config").and_then(Value::as_object).cloned().unwrap_or_default();
    config.remove("cytoscope");
    if package.declares_quantized() {
        // It was declared for the quantized network, which the float one takes the place of.
        if let Some(section) = config.get_mut("bioimageio").and_then(Value::as_object_mut) {
            section.remove("reproducibility_tolerance");
            if section.is_empty() {
                config.remove("bioimageio");
            }
        }
    }
    let carried = Carried { fields, config, attachments: files.files, samples };
    Kept { carried, left_out: files.left_out }
}

/// Files of a package that are attached to another one.
struct Attached<'a> {
    package: &'a Package,
    /// Files that were asked for.
    read: usize,
    files: Vec<(String, Vec<u8>)>,
    bytes: u64,
    left_out: Vec<String>,
}

impl<'a> Attached<'a> {
    fn new(package: &'a Package) -> Self {
        Self { package, read: 0, files: Vec::new(), bytes: 0, left_out: Vec::new() }
    }

    /// A file under a name that no file of a package has.
    fn read(&mut self, file: &str) -> Option<(String, Vec<u8>)> {
        let name = free_name(file);
        let mut leave = |why: String| self.left_out.push(format!("{name}: {why}"));
        self.read += 1;
        if self.read > MAX_ATTACHMENTS {
            leave(format!("more than {MAX_ATTACHMENTS} files are attached"));
            return None;
        }
        match self.package.files().read_up_to(file, MAX_ATTACHMENT_BYTES) {
            Ok(bytes) if self.bytes.saturating_add(bytes.len() as u64) > MAX_ATTACHED_BYTES => {
                leave(format!("the attached files have more than {MAX_ATTACHED_BYTES} bytes"));
                None
            }
            Ok(bytes) => {
                self.bytes += bytes.len() as u64;
                Some((name, bytes))
            }
            Err(error) => {
                leave(error.to_string());
                None
            }
        }
    }

    /// Attaches a file; gives the description's entry for it.
    fn take(&mut self, file: &str) -> Option<Value> {
        let name = free_name(file);
        if !self.files.iter().any(|(taken, _)| *taken == name) {
            let read = self.read(file)?;
            self.files.push(read);
        }
        Some(json!({"source": name}))
    }

    /// The file of a sample tensor.
    fn sample(&mut self, entry: Option<&Value>) -> Option<(String, Vec<u8>)> {
        let name = file_name(entry.filter(|v| !v.is_null()))?.to_owned();
        self.read(&name)
    }
}

/// The pictures of a package, with plain names; what is missing, is no picture or has a name that another one has is left out.
pub(crate) fn covers(package: &Package, listed: &[Value]) -> Vec<(String, Vec<u8>)> {
    let mut covers: Vec<(String, Vec<u8>)> = Vec::new();
    for file in listed.iter().filter_map(|entry| file_name(Some(entry))) {
        let name = plain_name(file);
        let ending = name.rsplit('.').next().map(str::to_ascii_lowercase).unwrap_or_default();
        if covers.len() >= MAX_COVERS
            || !COVER_ENDINGS.contains(&ending.as_str())
            || covers.iter().any(|(taken, _)| taken == name)
        {
            continue;
        }
        if let Ok(bytes) = package.files().read(file)
            && bytes.len() <= MAX_COVER_BYTES
        {
            covers.push((name.to_owned(), bytes));
        }
    }
    covers
}

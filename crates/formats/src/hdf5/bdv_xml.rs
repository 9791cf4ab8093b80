//! The XML of BigDataViewer: the view setups of a file, with their sizes, and what they show.

use super::EXPORT;
use crate::{
    error::{Fault, Remedy},
    limits::Limits,
    meta::{micrometers_per, positive},
    names::composed,
    source::{Counters, Source},
    tiff::ome_xml,
};
use cytoscope_volume::VoxelSize;
use quick_xml::{Reader, events::Event};
use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Name of the outermost element.
const ROOT: &str = "SpimData";
/// Paths of the elements that are read.
const PIXELS: [&str; 4] = [ROOT, "SequenceDescription", "ImageLoader", "hdf5"];
const SETUP: [&str; 4] = [ROOT, "SequenceDescription", "ViewSetups", "ViewSetup"];
const ATTRIBUTES: [&str; 4] = [ROOT, "SequenceDescription", "ViewSetups", "Attributes"];
/// Deepest nesting of elements.
const MAX_DEPTH: usize = 64;
/// Largest number of view setups, and of the names of what they show.
const MAX_SETUPS: usize = 1 << 16;
/// Largest number of characters of a text; the rest is left out.
const MAX_TEXT_CHARS: usize = 4096;
/// Largest number of characters of a name; the rest is left out.
const MAX_NAME_CHARS: usize = 255;

/// The kinds of what distinguishes setups, apart from channels, in the order of names of series.
pub(super) const KINDS: [&str; 3] = ["illumination", "tile", "angle"];
pub(super) const CHANNEL: &str = "channel";

/// The description of a file.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Path of the HDF5 file, relative to the folder of the XML.
    pub hdf5: Option<String>,
    pub setups: Vec<Setup>,
    /// Names of channels, tiles and so on by their kind and id.
    pub names: HashMap<(String, u32), String>,
}

/// A view setup.
#[derive(Debug, Default, Clone)]
pub(super) struct Setup {
    pub id: u32,
    pub name: String,
    /// Extents, as text.
    pub size: String,
    pub voxel_size_um: VoxelSize,
    /// Ids of its channel, tile and so on by their kind.
    pub of: HashMap<String, u32>,
}

/// Whether the first bytes of a file are those of the XML of BigDataViewer.
pub(super) fn is_one(head: &[u8]) -> bool {
    head.trim_ascii_start().starts_with(b"<") && head.windows(ROOT.len() + 1).any(|part| part == b"<SpimData")
}

fn damaged(what: impl std::fmt::Display) -> Fault {
    Fault::malformed(format!("the XML of BigDataViewer is damaged: {what}"))
}

/// The description beside an HDF5 file, with its path: the file of the same name with the extension `xml`, if that names the HDF5
/// file.
pub(super) fn beside(
    path: &Path,
    limits: &Limits,
    counters: &Arc<Counters>,
) -> Result<Option<(PathBuf, Description)>, Fault> {
    let xml = path.with_extension("xml");
    if path.extension().is_none() || !xml.is_file() {
        return Ok(None);
    }
    let source = Source::open(&xml, Arc::clone(counters))?;
    let head = source.read_vec(0, source.len().min(512) as usize)?;
    if !is_one(&head) {
        return Ok(None);
    }
    let description = read(&source, limits)?;
    let text = |name: Option<&OsStr>| name.map(|name| composed(&name.to_string_lossy()));
    let named = description.hdf5.as_deref().map(Path::new).and_then(Path::file_name);
    let names_it = text(named) == text(path.file_name());
    Ok(names_it.then_some((xml, description)))
}

/// Reads a description.
pub(super) fn read(source: &Source, limits: &Limits) -> Result<Description, Fault> {
    let (bytes, limit) = (source.len(), limits.max_metadata_bytes);
    if bytes > limit {
        return Err(Fault::over("the size of the XML", bytes, "max_metadata_bytes", limit, Remedy::Split));
    }
    let bytes = source.read_vec(0, bytes as usize)?;
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(xml: &str) -> Result<Description, Fault> {
    let mut parser = Parser::default();
    let mut reader = Reader::from_str(xml);
    loop {
        match reader.read_event().map_err(damaged)? {
            Event::Eof => break,
            Event::Start(_) if parser.path.len() >= MAX_DEPTH => return Err(damaged("it is nested too deeply")),
            Event::Start(element) => {
                let attributes = ome_xml::attributes(&element).map_err(|_| damaged("attributes are not valid"))?;
                parser.path.push(element.local_name().as_ref().to_owned());
                parser.text.clear();
                parser.begin(&attributes)?;
            }
            // A reference such as &amp; divides a text.
            Event::Text(text) => parser.add(&text),
            Event::GeneralRef(name) => parser.add(&ome_xml::referenced(&name)),
            Event::End(_) => {
                parser.end()?;
                parser.path.pop();
                parser.text.clear();
            }
            _ => {}
        }
    }
    if parser.description.setups.is_empty() {
        return Err(Fault::unsupported("the XML of BigDataViewer has no view setups", EXPORT));
    }
    // A small file could otherwise declare an image of any size, all of whose channels are one stack.
    let mut ids = HashSet::new();
    if let Some(again) = parser.description.setups.iter().find(|setup| !ids.insert(setup.id)) {
        return Err(damaged(format!("two view setups have the number {}", again.id)));
    }
    Ok(parser.description)
}

#[derive(Debug, Default)]
struct Parser {
    description: Description,
    /// Names of the elements around the next text, outermost first.
    path: Vec<String>,
    text: String,
    /// The kind of the attributes that are being read, and the id of one of them.
    kind: String,
    id: Option<u32>,
    /// The unit and the distances of the voxels of the last setup.
    unit: String,
}

impl Parser {
    /// Adds a part of a text.
    fn add(&mut self, part: &str) {
        let left = MAX_TEXT_CHARS.saturating_sub(self.text.len());
        self.text.extend(part.chars().take(left));
    }

    /// Uses an element that begins.
    fn begin(&mut self, attributes: &ome_xml::Attributes) -> Result<(), Fault> {
        let path = self.path.as_slice();
        if path == SETUP {
            self.description.setups.push(Setup::default());
            self.unit.clear();
            if self.description.setups.len() > MAX_SETUPS {
                let (what, count) = ("the number of view setups", self.description.setups.len() as u64);
                return Err(Fault::over(what, count, "MAX_SETUPS", MAX_SETUPS as u64, Remedy::Split));
            }
        } else if path == ATTRIBUTES {
            self.kind = attributes.get("name").map(|name| shortened(name)).unwrap_or_default();
        } else if path.starts_with(&ATTRIBUTES.map(str::to_owned)) && path.len() == ATTRIBUTES.len() + 1 {
            self.id = None;
        }
        Ok(())
    }

    /// Uses the text of an element that ends.
    fn end(&mut self) -> Result<(), Fault> {
        let text = self.text.trim();
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        if path == PIXELS {
            self.description.hdf5 = Some(text.to_owned());
        } else if let Some(inner) = path.strip_prefix(&SETUP) {
            let Some(setup) = self.description.setups.last_mut() else { return Ok(()) };
            match inner {
                ["id"] => setup.id = text.parse().map_err(|_| damaged("a view setup has no number"))?,
                ["name"] => setup.name = shortened(text),
                ["size"] => setup.size = shortened(text),
                ["voxelSize", "unit"] => text.clone_into(&mut self.unit),
                ["voxelSize", "size"] => setup.voxel_size_um = voxel_size(text, &self.unit),
                ["attributes", kind] => {
                    if let Ok(id) = text.parse() {
                        setup.of.insert(shortened(kind), id);
                    }
                }
                _ => {}
            }
        } else if let Some([_, key]) = path.strip_prefix(&ATTRIBUTES) {
            match (*key, self.id) {
                ("id", _) => self.id = text.parse().ok(),
                ("name", Some(id)) if self.description.names.len() < MAX_SETUPS => {
                    self.description.names.insert((self.kind.clone(), id), shortened(text));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(MAX_NAME_CHARS).collect()
}

/// The voxel size of a text with the distances along X, Y and Z.
fn voxel_size(text: &str, unit: &str) -> VoxelSize {
    let numbers: Vec<Option<f64>> = text.split_whitespace().map(|part| part.parse().ok()).collect();
    let um = |i: usize| positive(numbers.get(i).copied()?? * micrometers_per(unit)?);
    VoxelSize { z: um(2), y: um(1), x: um(0) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    const XML: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<SpimData version=\"0.2\"><SequenceDescription>\
        <ImageLoader format=\"bdv.hdf5\"><hdf5 type=\"relative\">a.h5</hdf5></ImageLoader><ViewSetups>\
        <ViewSetup><id>3</id><name>left</name><size>4 3 2</size><voxelSize><unit>nm</unit><size>500 250 2000</size>\
        </voxelSize><attributes><channel>1</channel><tile>7</tile></attributes></ViewSetup>\
        <Attributes name=\"channel\"><Channel><id>1</id><name>GFP</name></Channel></Attributes></ViewSetups>\
        </SequenceDescription></SpimData>";

    #[test]
    fn setups_and_names_are_read() {
        assert!(is_one(XML.as_bytes()) && !is_one(b"<OME></OME>") && !is_one(b"x <SpimData"));
        let description = parse(XML).unwrap();
        assert_eq!(description.hdf5.as_deref(), Some("a.h5"));
        let [setup] = description.setups.as_slice() else { panic!("{description:?}") };
        assert_eq!((setup.id, setup.name.as_str(), setup.size.as_str()), (3, "left", "4 3 2"));
        assert_eq!(setup.voxel_size_um, VoxelSize::new_um(2.0, 0.25, 0.5));
        assert_eq!((setup.of.get("channel"), setup.of.get("tile"), setup.of.get("angle")), (Some(&1), Some(&7), None));
        assert_eq!(description.names.get(&("channel".to_owned(), 1)).map(String::as_str), Some("GFP"));
        // References divide a text.
        let description = parse(&XML.replace("a.h5", "a &amp; b&#228;.h5")).unwrap();
        assert_eq!(description.hdf5.as_deref(), Some("a & b\u{e4}.h5"));
    }

    #[test]
    fn damaged_descriptions_are_refused() {
        for (text, other) in [("<id>3</id>", "<id>x</id>"), ("ViewSetup>", "Other>"), ("</SpimData>", "</Spim>")] {
            assert!(parse(&XML.replace(text, other)).is_err(), "{other}");
        }
        assert!(parse(&"<a>".repeat(MAX_DEPTH + 1)).is_err());
        let other = |id: u32| format!("</ViewSetup><ViewSetup><id>{id}</id></ViewSetup>");
        assert_eq!(parse(&XML.replace("</ViewSetup>", &other(4))).unwrap().setups.len(), 2);
        assert!(parse(&XML.replace("</ViewSetup>", &other(3))).is_err(), "two setups of one number");
        let in_pixels = parse(&XML.replace("nm", "pixel")).unwrap();
        assert_eq!(in_pixels.setups.first().unwrap().voxel_size_um, VoxelSize::default());
    }
}

//! The XML of a LIF file: its images, with their axes, channels, and the names of their blocks.

use super::EXPORT;
use crate::{
    error::{Fault, Remedy},
    limits::Limits,
    meta::Channel,
    tiff::ome_xml,
};
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use std::str::FromStr;

/// Name of the outermost element.
const ROOT: &str = "LMSDataContainerHeader";
/// Path of the description of an image.
const IMAGE: [&str; 2] = ["Element", "Data"];
/// Paths of the elements that describe axes and channels.
const DIMENSIONS: [&str; 5] = ["Element", "Data", "Image", "ImageDescription", "Dimensions"];
const CHANNELS: [&str; 5] = ["Element", "Data", "Image", "ImageDescription", "Channels"];
/// Path of the properties of a channel.
const PROPERTY: [&str; 3] = ["Channels", "ChannelDescription", "ChannelProperty"];
/// Deepest nesting of elements.
const MAX_DEPTH: usize = 256;
/// Largest number of axes of an image.
const MAX_DIMENSIONS: usize = 16;
/// Largest number of channels of an image.
const MAX_CHANNELS: usize = 4096;
/// Largest number of characters of the name of an image or a channel; the rest is left out.
const MAX_NAME_CHARS: usize = 255;

/// The images of a file.
#[derive(Debug, Default)]
pub(super) struct Project {
    /// Version of the format.
    pub version: u32,
    /// Images in the order of the XML.
    pub images: Vec<LifImage>,
}

/// The description of an image.
#[derive(Debug, Default)]
pub(super) struct LifImage {
    /// Names of its folders and its own, joined by `/`.
    pub name: String,
    /// Name of the block with its pixels.
    pub block: Option<String>,
    pub dimensions: Vec<Dimension>,
    pub channels: Vec<LifChannel>,
}

/// An axis of an image.
#[derive(Debug)]
pub(super) struct Dimension {
    /// What the axis is: 1 to 4 are X, Y, Z and time, 10 is the tile of a mosaic.
    pub number: u32,
    /// Number of samples.
    pub count: usize,
    /// Distance from the first to the last sample, in `unit`; negative if the axis is scanned backwards.
    pub length: f64,
    pub unit: String,
    /// Distance between neighbors in the block in bytes.
    pub step: usize,
}

/// A channel of an image.
#[derive(Debug)]
pub(super) struct LifChannel {
    /// Name and color.
    pub channel: Channel,
    /// Bits of a sample that are used.
    pub bits: u32,
    pub is_float: bool,
    /// Position of its first sample in the block in bytes.
    pub start: usize,
}

fn damaged(what: impl std::fmt::Display) -> Fault {
    Fault::malformed(format!("the metadata of the LIF file are damaged: {what}"))
}

/// Parses the XML.
pub(super) fn parse(xml: &str, limits: &Limits) -> Result<Project, Fault> {
    let mut parser = Parser::default();
    let mut reader = Reader::from_str(xml);
    loop {
        match reader.read_event().map_err(damaged)? {
            Event::Eof => break,
            Event::Start(_) if parser.path.len() >= MAX_DEPTH => return Err(damaged("they are nested too deeply")),
            Event::Start(element) => {
                let name = element.local_name().as_ref().to_owned();
                parser.begin(&name, &element, limits)?;
                parser.path.push(name);
                parser.text.clear();
            }
            Event::Empty(element) => {
                let name = element.local_name();
                parser.begin(name.as_ref(), &element, limits)?;
                if name.as_ref() == "Element" {
                    parser.elements.pop();
                }
            }
            Event::End(_) => {
                let text = std::mem::take(&mut parser.text);
                parser.value(text.trim());
                let ended = parser.path.pop();
                if ended.is_some_and(|name| name == "Element") {
                    parser.elements.pop();
                }
            }
            // A reference such as &amp; divides a text.
            Event::Text(text) => parser.text.push_str(&text),
            Event::GeneralRef(name) => parser.text.push_str(&ome_xml::referenced(&name)),
            _ => {}
        }
    }
    if parser.project.images.is_empty() {
        return Err(Fault::unsupported("the LIF file has no images", EXPORT));
    }
    Ok(parser.project)
}

/// A folder or an image around the next element.
#[derive(Debug, Default)]
struct Node {
    /// Names of the folders around it and its own, joined by `/`.
    name: String,
    /// Index of its image.
    image: Option<usize>,
    /// Name of its block, if that is stated before the image.
    block: Option<String>,
}

#[derive(Debug, Default)]
struct Parser {
    project: Project,
    /// Names of the elements around the next one, outermost first.
    path: Vec<String>,
    /// The folders and the image around the next element.
    elements: Vec<Node>,
    /// Key of the last property of a channel.
    key: String,
    /// Text of the innermost element since it began, or since the last element in it ended.
    text: String,
}

impl Parser {
    /// Uses the name and the attributes of an element.
    fn begin(&mut self, name: &str, element: &BytesStart<'_>, limits: &Limits) -> Result<(), Fault> {
        let attributes = || ome_xml::attributes(element).map_err(|_| damaged("attributes are not valid"));
        match name {
            _ if self.path.is_empty() => {
                if name != ROOT {
                    let name: String = name.chars().take(MAX_NAME_CHARS).collect();
                    let problem = format!("the metadata of the LIF file are of an unknown kind ({name:?})");
                    return Err(Fault::unsupported(problem, EXPORT));
                }
                self.project.version = number(&attributes()?, "Version")?;
                if !(1..=2).contains(&self.project.version) {
                    let problem = format!("the LIF file has version {}", self.project.version);
                    return Err(Fault::unsupported(problem, EXPORT));
                }
            }
            "Element" => {
                let name = attributes()?.remove("Name").unwrap_or_default();
                // The outermost element is the project, whose name is that of the file.
                let name = match self.elements.as_slice() {
                    [] | [_] => name,
                    [.., folder] => format!("{}/{name}", folder.name),
                };
                self.elements.push(Node { name: shortened(&name), ..Node::default() });
            }
            "Image" if ends(&self.path, &IMAGE) => self.add_image(limits)?,
            "Memory" if ends(&self.path, &["Element"]) => self.set_block(attributes()?.remove("MemoryBlockID")),
            "DimensionDescription" if ends(&self.path, &DIMENSIONS) => {
                let dimension = dimension(&attributes()?)?;
                let Some(image) = self.image() else { return Ok(()) };
                image.dimensions.push(dimension);
                if image.dimensions.len() > MAX_DIMENSIONS {
                    return Err(damaged("an image has too many axes"));
                }
            }
            "ChannelDescription" if ends(&self.path, &CHANNELS) => {
                let channel = channel(&attributes()?)?;
                let Some(image) = self.image() else { return Ok(()) };
                image.channels.push(channel);
                if image.channels.len() > MAX_CHANNELS {
                    return Err(damaged("an image has too many channels"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds the image of the innermost element.
    fn add_image(&mut self, limits: &Limits) -> Result<(), Fault> {
        let index = self.project.images.len();
        let Some(element) = self.elements.last_mut() else { return Ok(()) };
        element.image = Some(index);
        let (name, block) = (element.name.clone(), element.block.take());
        self.project.images.push(LifImage { name, block, ..LifImage::default() });
        let count = self.project.images.len() as u64;
        if count > limits.max_pages {
            return Err(Fault::over("the number of images", count, "max_pages", limits.max_pages, Remedy::Split));
        }
        Ok(())
    }

    /// Sets the name of the block of the innermost element.
    fn set_block(&mut self, block: Option<String>) {
        if let Some(image) = self.image() {
            image.block = block;
        } else if let Some(element) = self.elements.last_mut() {
            element.block = block;
        }
    }

    /// The image of the innermost element.
    fn image(&mut self) -> Option<&mut LifImage> {
        let index = self.elements.last()?.image?;
        self.project.images.get_mut(index)
    }

    /// Uses the text of the innermost element.
    fn value(&mut self, text: &str) {
        let Some((last, outer)) = self.path.split_last() else { return };
        if text.is_empty() || !ends(outer, &PROPERTY) {
            return;
        }
        if last == "Key" {
            text.clone_into(&mut self.key);
        } else if last == "Value" && self.key == "DyeName" {
            // Dyes of the program's own list begin with the name of the company.
            let dye = shortened(text.strip_prefix("Leica/").unwrap_or(text));
            if let Some(channel) = self.image().and_then(|image| image.channels.last_mut()) {
                channel.channel.name = dye;
            }
        }
    }
}

/// Whether a path of elements ends in these names.
fn ends(path: &[String], names: &[&str]) -> bool {
    path.len() >= names.len() && path.iter().rev().zip(names.iter().rev()).all(|(a, b)| a == b)
}

fn shortened(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect()
}

/// The number that an attribute states.
fn number<T: FromStr>(attributes: &ome_xml::Attributes, key: &str) -> Result<T, Fault> {
    let stated = attributes.get(key).and_then(|text| text.trim().parse().ok());
    stated.ok_or_else(|| damaged(format!("they state no {key}")))
}

fn dimension(attributes: &ome_xml::Attributes) -> Result<Dimension, Fault> {
    let count: usize = number(attributes, "NumberOfElements")?;
    if count == 0 {
        return Err(damaged("an axis has no samples"));
    }
    Ok(Dimension {
        number: number(attributes, "DimID")?,
        count,
        length: number(attributes, "Length").unwrap_or(0.0),
        unit: attributes.get("Unit").cloned().unwrap_or_default(),
        step: number(attributes, "BytesInc")?,
    })
}

fn channel(attributes: &ome_xml::Attributes) -> Result<LifChannel, Fault> {
    // The parts of a color have numbers; their tables of colors are the same.
    let part = match number::<u32>(attributes, "ChannelTag").unwrap_or(0) {
        1 => Some(("red", [255, 0, 0])),
        2 => Some(("green", [0, 255, 0])),
        3 => Some(("blue", [0, 0, 255])),
        _ => None,
    };
    let table = attributes.get("LUTName").map(|name| name.trim().to_lowercase()).unwrap_or_default();
    let color = match table.as_str() {
        "red" => Some([255, 0, 0]),
        "green" => Some([0, 255, 0]),
        "blue" => Some([0, 0, 255]),
        "cyan" => Some([0, 255, 255]),
        "magenta" => Some([255, 0, 255]),
        "yellow" => Some([255, 255, 0]),
        _ => None,
    };
    let name = part.map(|(name, _)| name.to_owned()).unwrap_or_default();
    Ok(LifChannel {
        channel: Channel { name, color_rgb: part.map(|(_, color)| color).or(color) },
        bits: number(attributes, "Resolution")?,
        is_float: number::<u32>(attributes, "DataType")? == 1,
        start: number(attributes, "BytesInc")?,
    })
}

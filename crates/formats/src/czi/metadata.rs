//! The metadata of a CZI: scaling, channels and time interval.

use crate::{
    meta::{Channel, positive},
    tiff::ome_xml,
};
use cytoscope_volume::VoxelSize;
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use std::collections::BTreeMap;

/// Metadata from the XML. Parts that are missing or damaged are unknown, because the pixels do not depend on them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Metadata {
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Names and colors in the order of the C axis.
    pub channels: Vec<Channel>,
    /// Names of the scenes by their numbers.
    pub scenes: BTreeMap<i32, String>,
}

impl Metadata {
    /// The name of a scene; empty if there is none.
    pub fn scene_name(&self, scene: i32) -> String {
        self.scenes.get(&scene).cloned().unwrap_or_default()
    }

    /// Adds a scene; without a number or a name, or with the number of an earlier one, it is left out.
    fn add_scene(&mut self, attributes: &ome_xml::Attributes) {
        let number = attributes.get("Index").and_then(|index| index.trim().parse::<i32>().ok());
        if let Some((number, name)) = number.zip(attributes.get("Name")) {
            self.scenes.entry(number).or_insert_with(|| name.clone());
        }
    }
}

/// Path of a scene's element.
const SCENES: [&str; 3] = ["Dimensions", "S", "Scenes"];

/// Deepest nesting of elements.
const MAX_DEPTH: usize = 256;

/// Returns the attributes of an element; none if they are damaged, which is logged.
fn attributes(element: &BytesStart<'_>) -> ome_xml::Attributes {
    ome_xml::attributes(element).unwrap_or_else(|_| {
        tracing::warn!("an element in the metadata of the CZI has damaged attributes, which are ignored");
        ome_xml::Attributes::default()
    })
}

/// Parses the XML.
pub(super) fn parse(xml: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<String> = Vec::new();
    let mut axis = String::new();
    let mut displayed = 0;
    loop {
        let event = match reader.read_event() {
            Ok(Event::Eof) => return metadata,
            Ok(event) => event,
            Err(error) => {
                tracing::warn!("the metadata of the CZI are damaged ({error}): the rest of them is ignored");
                return metadata;
            }
        };
        match event {
            Event::Start(e) if path.len() < MAX_DEPTH => {
                let name = e.local_name().as_ref().to_owned();
                let attributes = attributes(&e);
                match name.as_str() {
                    "Distance" => axis = attributes.get("Id").cloned().unwrap_or_default(),
                    "Channel" if ends(&path, &["Dimensions", "Channels"]) => {
                        let name = attributes.get("Name").cloned().unwrap_or_default();
                        metadata.channels.push(Channel { name, color_rgb: None });
                    }
                    "Channel" if ends(&path, &["DisplaySetting", "Channels"]) => displayed += 1,
                    "Scene" if ends(&path, &SCENES) => metadata.add_scene(&attributes),
                    _ => {}
                }
                path.push(name);
            }
            Event::Start(_) => return metadata,
            Event::Empty(e) => {
                if e.local_name().as_ref() == "Scene" && ends(&path, &SCENES) {
                    metadata.add_scene(&ome_xml::attributes(&e).unwrap_or_default());
                }
                if e.local_name().as_ref() != "Channel" {
                    continue;
                }
                if ends(&path, &["DisplaySetting", "Channels"]) {
                    displayed += 1;
                } else if ends(&path, &["Dimensions", "Channels"]) {
                    let name = attributes(&e).get("Name").cloned().unwrap_or_default();
                    metadata.channels.push(Channel { name, color_rgb: None });
                }
            }
            Event::End(_) => {
                path.pop();
            }
            Event::Text(text) => {
                let text: &str = &text;
                value(&mut metadata, &path, &axis, displayed, text.trim());
            }
            _ => {}
        }
    }
}

/// Whether a path of elements ends in these names.
fn ends(path: &[String], names: &[&str]) -> bool {
    path.len() >= names.len() && path.iter().rev().zip(names.iter().rev()).all(|(a, b)| a == b)
}

/// Uses the text of an element.
fn value(metadata: &mut Metadata, path: &[String], axis: &str, displayed: usize, text: &str) {
    if ends(path, &["Scaling", "Items", "Distance", "Value"]) {
        // In meters, whatever the unit for display.
        let um = text.parse::<f64>().ok().and_then(|v| positive(v * 1e6));
        match axis {
            "X" => metadata.voxel_size_um.x = um,
            "Y" => metadata.voxel_size_um.y = um,
            "Z" => metadata.voxel_size_um.z = um,
            _ => {}
        }
    } else if ends(path, &["T", "Positions", "Interval", "Increment"]) {
        // A value that is not a positive number counts as unknown.
        metadata.time_interval_secs = text.parse::<f64>().ok().and_then(positive);
    } else if ends(path, &["DisplaySetting", "Channels", "Channel", "Color"])
        && let Some(channel) = displayed.checked_sub(1).and_then(|i| metadata.channels.get_mut(i))
    {
        channel.color_rgb = color(text);
    }
}

/// A color such as `#FF00FF00`: alpha, red, green, blue.
fn color(text: &str) -> Option<[u8; 3]> {
    let digits = text.strip_prefix('#')?;
    let digits = if digits.len() == 8 { digits.get(2..)? } else { digits };
    if digits.len() != 6 {
        return None;
    }
    let [_, r, g, b] = u32::from_str_radix(digits, 16).ok()?.to_be_bytes();
    Some([r, g, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_channels_and_colors_are_read() {
        let xml = "<ImageDocument><Metadata><Information><Image><Dimensions><Channels><Channel Id=\"0\" Name=\"DAPI\"/>\
            <Channel Id=\"1\" Name=\"A &amp; B\"><X/></Channel></Channels><T><Positions><Interval><Increment>2.5\
            </Increment></Interval></Positions></T><S><Scenes><Scene Index=\"1\" Name=\"P2\"/>\
            <Scene Index=\"0\" Name=\"P1\"><X/></Scene></Scenes></S></Dimensions></Image></Information><Scaling><Items>\
            <Distance Id=\"X\"><Value>1.5E-07</Value></Distance><Distance Id=\"Z\"><Value>1e-6</Value>\
            <DefaultUnitFormat>nm</DefaultUnitFormat></Distance></Items></Scaling><DisplaySetting><Channels>\
            <Channel Id=\"0\"><Color>#FF0000FF</Color></Channel></Channels></DisplaySetting></Metadata></ImageDocument>";
        let found = parse(xml);
        let names: Vec<&str> = found.channels.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["DAPI", "A & B"]);
        assert_eq!(found.channels.first().and_then(|c| c.color_rgb), Some([0, 0, 255]));
        assert_eq!(found.time_interval_secs, Some(2.5));
        assert_eq!([0, 1, 2].map(|scene| found.scene_name(scene)), ["P1", "P2", ""]);
        let VoxelSize { z, y, x } = found.voxel_size_um;
        assert!((z.unwrap_or(0.0) - 1.0).abs() < 1e-9 && y.is_none() && (x.unwrap_or(0.0) - 0.15).abs() < 1e-9);
        assert_eq!(parse("<Metadata><Scaling"), Metadata::default());
    }

    /// The size is such that work growing with its square would take minutes.
    #[test]
    fn the_names_of_many_scenes_are_found_in_linear_time() {
        const COUNT: i32 = 300_000;
        let scenes: String = (0..COUNT).map(|i| format!("<Scene Index=\"{i}\" Name=\"P{i}\"/>")).collect();
        let repeated = "<Scene Index=\"7\" Name=\"another\"/>";
        let xml = format!("<Dimensions><S><Scenes>{scenes}{repeated}</Scenes></S></Dimensions>");
        let found = parse(&xml);
        assert!((0..COUNT).all(|i| found.scene_name(i) == format!("P{i}")));
    }
}

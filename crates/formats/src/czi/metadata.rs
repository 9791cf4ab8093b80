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
use std::collections::{BTreeMap, HashMap, HashSet};

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
    let mut parser = MetadataParser::default();
    parser.read(xml);
    parser.finish()
}

/// A channel of the display settings.
struct DisplayChannel {
    id: Option<String>,
    color_rgb: Option<[u8; 3]>,
}

#[derive(Default)]
struct MetadataParser {
    metadata: Metadata,
    /// Names of the elements around the next one, outermost first.
    path: Vec<String>,
    /// Axis of the last distance.
    axis: String,
    /// Indices of the channels by their ids.
    channel_by_id: HashMap<String, usize>,
    displayed: Vec<DisplayChannel>,
}

impl MetadataParser {
    fn read(&mut self, xml: &str) {
        let mut reader = Reader::from_str(xml);
        loop {
            let event = match reader.read_event() {
                Ok(Event::Eof) => return,
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!("the metadata of the CZI are damaged ({error}): the rest of them is ignored");
                    return;
                }
            };
            match event {
                Event::Start(e) if self.path.len() < MAX_DEPTH => {
                    let name = e.local_name().as_ref().to_owned();
                    self.begin(&name, &e);
                    self.path.push(name);
                }
                Event::Start(_) => {
                    tracing::warn!("the metadata of the CZI are nested too deeply: the rest of them is ignored");
                    return;
                }
                Event::Empty(e) => self.begin(e.local_name().as_ref(), &e),
                Event::End(_) => {
                    self.path.pop();
                }
                Event::Text(text) => {
                    let text: &str = &text;
                    self.value(text.trim());
                }
                _ => {}
            }
        }
    }

    /// Uses the name and the attributes of an element.
    fn begin(&mut self, name: &str, element: &BytesStart<'_>) {
        match name {
            "Distance" => self.axis = attributes(element).remove("Id").unwrap_or_default(),
            "Channel" if ends(&self.path, &["Dimensions", "Channels"]) => {
                let mut stated = attributes(element);
                if let Some(id) = stated.remove("Id") {
                    self.channel_by_id.entry(id).or_insert(self.metadata.channels.len());
                }
                let name = stated.remove("Name").unwrap_or_default();
                self.metadata.channels.push(Channel { name, color_rgb: None });
            }
            "Channel" if ends(&self.path, &["DisplaySetting", "Channels"]) => {
                let id = attributes(element).remove("Id");
                self.displayed.push(DisplayChannel { id, color_rgb: None });
            }
            "Scene" if ends(&self.path, &SCENES) => self.metadata.add_scene(&attributes(element)),
            _ => {}
        }
    }

    /// Uses the text of an element.
    fn value(&mut self, text: &str) {
        if ends(&self.path, &["Scaling", "Items", "Distance", "Value"]) {
            // In meters, whatever the unit for display.
            let um = text.parse::<f64>().ok().and_then(|v| positive(v * 1e6));
            let size = &mut self.metadata.voxel_size_um;
            match self.axis.as_str() {
                "X" => size.x = um,
                "Y" => size.y = um,
                "Z" => size.z = um,
                _ => {}
            }
        } else if ends(&self.path, &["T", "Positions", "Interval", "Increment"]) {
            // A value that is not a positive number counts as unknown.
            self.metadata.time_interval_secs = text.parse::<f64>().ok().and_then(positive);
        } else if ends(&self.path, &["DisplaySetting", "Channels", "Channel", "Color"])
            && let Some(channel) = self.displayed.last_mut()
        {
            channel.color_rgb = color(text);
        }
    }

    /// Returns the metadata, in which channels have the colors of the display settings with the same id. Display
    /// settings without an id, and settings for channels without an id, apply to the channel at the same position; so
    /// do all settings if none has the id of a channel.
    fn finish(self) -> Metadata {
        let Self { mut metadata, channel_by_id, displayed, .. } = self;
        let by_id: Vec<Option<usize>> =
            displayed.iter().map(|shown| channel_by_id.get(shown.id.as_ref()?).copied()).collect();
        let found: HashSet<usize> = by_id.iter().flatten().copied().collect();
        let with_ids: HashSet<usize> = channel_by_id.into_values().collect();
        for (position, (shown, known)) in displayed.iter().zip(by_id).enumerate() {
            let is_at_position =
                !found.contains(&position) && (found.is_empty() || shown.id.is_none() || !with_ids.contains(&position));
            let index = known.or(is_at_position.then_some(position));
            if let Some(channel) = index.and_then(|index| metadata.channels.get_mut(index)) {
                channel.color_rgb = shown.color_rgb.or(channel.color_rgb);
            }
        }
        metadata
    }
}

/// Whether a path of elements ends in these names.
fn ends(path: &[String], names: &[&str]) -> bool {
    path.len() >= names.len() && path.iter().rev().zip(names.iter().rev()).all(|(a, b)| a == b)
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

    #[test]
    fn channels_have_the_colors_of_display_settings_with_their_ids() {
        let colors_of = |channels: [&str; 2], shown: [&str; 2]| -> Vec<Option<[u8; 3]>> {
            let [[a, b], [first, second]] = [channels, shown];
            // The display settings may come first, and may list the channels in another order.
            let xml = format!(
                "<ImageDocument><Metadata><DisplaySetting><Channels><Channel {first}><Color>#FF0000FF</Color></Channel>\
                <Channel {second}><Color>#FF00FF00</Color></Channel></Channels></DisplaySetting><Information><Image>\
                <Dimensions><Channels><Channel {a}/><Channel {b}/></Channels></Dimensions></Image>\
                </Information></Metadata></ImageDocument>"
            );
            parse(&xml).channels.into_iter().map(|channel| channel.color_rgb).collect()
        };
        let colors = |shown: [&str; 2]| colors_of(["Id=\"Channel:0\"", "Id=\"Channel:1\""], shown);
        let (blue, green) = (Some([0, 0, 255]), Some([0, 255, 0]));
        assert_eq!(colors(["Id=\"Channel:1\"", "Id=\"Channel:0\""]), [green, blue]);
        assert_eq!(colors(["Id=\"Channel:1\"", "Id=\"Channel:7\""]), [None, blue], "another channel is not shown");
        assert_eq!(colors(["Name=\"DAPI\"", "Name=\"GFP\""]), [blue, green], "without ids, the order counts");
        assert_eq!(colors(["Id=\"Channel:0\"", "Name=\"GFP\""]), [blue, green], "one without an id is at its position");
        assert_eq!(colors(["Name=\"GFP\"", "Id=\"Channel:0\""]), [green, None], "an id goes before a position");
        let second_without = ["Id=\"Channel:0\"", "Name=\"GFP\""];
        assert_eq!(colors_of(second_without, ["Id=\"Channel:0\"", "Id=\"Channel:1\""]), [blue, green]);
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

//! OME-XML: the elements that describe the position of planes, the voxel size and the channels.

use crate::{
    error::{Fault, Remedy},
    meta::{Channel, ignore_entry, micrometers_per, positive, seconds_per, visible_color},
};
use cytoscope_storage::message;
use cytoscope_storage::setting::AXES;
use cytoscope_volume::{Axis, VoxelSize};
use quick_xml::{
    Reader,
    events::{BytesStart, Event},
};
use std::collections::HashMap;

/// An OME-XML document.
#[derive(Debug, Default)]
pub(crate) struct Document {
    /// Identifier of the file, to which `TiffData` elements refer.
    pub uuid: Option<String>,
    /// The file with the metadata, if this one contains only pixels (`BinaryOnly`).
    pub metadata_file: Option<String>,
    /// Images in the order of the document, which is also the order of the series.
    pub images: Vec<OmeImage>,
    /// Number of elements that are kept.
    elements: u64,
}

/// Largest number of images, channels and `TiffData` elements of a document: a file of 256 MiB could state many times as many,
/// each of which takes far more memory than its text.
const MAX_ELEMENTS: u64 = 1 << 22;

impl Document {
    /// Counts an element before it is kept.
    fn count_element(&mut self) -> Result<(), Fault> {
        self.elements = self.elements.saturating_add(1);
        if self.elements > MAX_ELEMENTS {
            let what = "the number of images, channels and TiffData elements of the OME-XML";
            return Err(Fault::over(what, self.elements, "MAX_ELEMENTS", MAX_ELEMENTS, Remedy::Split));
        }
        Ok(())
    }
}

/// One `Image` with its `Pixels`.
#[derive(Debug, Default)]
pub(crate) struct OmeImage {
    /// Name, empty if it has none.
    pub name: String,
    /// The axes T, Z, C from the slowest to the fastest.
    pub order: Vec<Axis>,
    /// Pixels along X.
    pub size_x: usize,
    /// Pixels along Y.
    pub size_y: usize,
    /// Number of slices.
    pub size_z: usize,
    /// Number of channels times samples per pixel.
    pub size_c: usize,
    /// Number of time points.
    pub size_t: usize,
    /// Bits of a sample that are used, if stated.
    pub significant_bits: Option<u32>,
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Position of the first voxel along Z, Y, X in µm; 0 along axes where the first plane states none.
    pub origin_um: [f64; 3],
    /// Time between time points in seconds, if stated.
    time_increment_secs: Option<f64>,
    /// Time of the first plane in seconds.
    first_time_secs: Option<f64>,
    /// The last time point whose first plane states a time, and this time in seconds.
    last_time: Option<(usize, f64)>,
    /// Names and colors; one with several samples per pixel counts once.
    pub channels: Vec<Channel>,
    /// Where the planes are; without any element, they are the pages of the files in their order.
    pub tiff_data: Vec<TiffData>,
}

impl OmeImage {
    /// Time between time points in seconds: as stated, or else the mean from the first to the last time point.
    pub fn time_interval_secs(&self) -> Option<f64> {
        let mean = || {
            let (last, secs) = self.last_time?;
            positive((secs - self.first_time_secs?) / last as f64)
        };
        self.time_increment_secs.or_else(mean)
    }
}

/// One `TiffData` element: consecutive planes, from a directory of a file on.
#[derive(Debug, Default, Clone)]
pub(crate) struct TiffData {
    /// Index of the first directory; without it, the first one of the file.
    pub ifd: Option<usize>,
    /// Slice of the first plane, counted from 0.
    pub first_z: usize,
    /// Channel of the first plane, counted from 0 as in `size_c`.
    pub first_c: usize,
    /// Time point of the first plane, counted from 0.
    pub first_t: usize,
    /// Number of planes; without it, one plane if `ifd` is stated, otherwise all of the file.
    pub plane_count: Option<usize>,
    /// Name of the file with the planes; without it, they are in the file with the document.
    pub file_name: Option<String>,
    /// UUID of the file with the planes; if it is the UUID of the document, `file_name` is ignored.
    pub uuid: Option<String>,
}

/// Whether a description is OME-XML.
pub(crate) fn is_ome(description: &str) -> bool {
    let head: String = description.chars().take(4096).collect();
    head.trim_start().starts_with('<') && (head.contains("<OME") || head.contains(":OME"))
}

/// The element with documents of other programs, such as a microscope's own metadata, whose elements may have names of OME's.
const ANNOTATIONS: &str = "StructuredAnnotations";

pub(crate) type Attributes = HashMap<String, String>;

/// The attributes of an element by their names without prefix.
pub(crate) fn attributes(element: &BytesStart<'_>) -> Result<Attributes, Fault> {
    let mut all = Attributes::new();
    // The parser's check for duplicates compares each attribute with all others, which takes quadratic time.
    for attribute in element.attributes().with_checks(false) {
        let attribute = attribute.map_err(|e| invalid_xml(&e))?;
        let key = attribute.key.local_name().as_ref().to_owned();
        let raw = attribute.value.into_owned();
        // Some programs do not escape an "&" in a name.
        let value = quick_xml::escape::unescape(&raw).map(|v| v.into_owned()).unwrap_or(raw);
        if let Some(before) = all.insert(key, value) {
            return Err(invalid_xml(&format!("an element has an attribute twice, once as \"{before}\"")));
        }
    }
    Ok(all)
}

/// The text that a reference such as `amp` or `#177` stands for; an unknown one stays as it is.
pub(crate) fn referenced(name: &str) -> String {
    let whole = format!("&{name};");
    quick_xml::escape::unescape(&whole).map(|text| text.into_owned()).unwrap_or(whole)
}

fn invalid_xml(error: &dyn std::fmt::Display) -> Fault {
    Fault::Malformed(
        format!("its OME-XML is invalid ({error})").into(),
        message!("give the axes ({AXES}) to read its pages without the metadata, or export the file again"),
    )
}

/// Parses a document.
pub(crate) fn parse(xml: &str) -> Result<Document, Fault> {
    let mut reader = Reader::from_str(xml);
    let mut document = Document::default();
    let (mut in_uuid, mut in_annotations) = (false, false);
    loop {
        match reader.read_event().map_err(|e| invalid_xml(&e))? {
            Event::Eof => break,
            Event::Start(e) if e.local_name().as_ref() == ANNOTATIONS => in_annotations = true,
            Event::End(e) if e.local_name().as_ref() == ANNOTATIONS => in_annotations = false,
            _ if in_annotations => {}
            Event::Start(e) => {
                in_uuid = e.local_name().as_ref() == "UUID";
                element(&mut document, &e)?;
            }
            Event::Empty(e) => element(&mut document, &e)?,
            Event::End(_) => in_uuid = false,
            Event::Text(text) if in_uuid => {
                let data = document.images.last_mut().and_then(|i| i.tiff_data.last_mut());
                if let Some(data) = data {
                    data.uuid = Some(text.trim().to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(document)
}

fn element(document: &mut Document, e: &BytesStart<'_>) -> Result<(), Fault> {
    let name = e.local_name();
    let wanted: [&str; 7] = ["OME", "BinaryOnly", "Image", "Pixels", "Channel", "TiffData", "UUID"];
    if name.as_ref() == "Plane" {
        // Only positions and times are read from it: a file whose planes are described wrongly is read without them.
        if let (Some(image), Ok(a)) = (document.images.last_mut(), attributes(e)) {
            plane(image, &a);
            plane_time(image, &a);
        }
        return Ok(());
    }
    if !wanted.contains(&name.as_ref()) {
        return Ok(());
    }
    let a = attributes(e)?;
    if matches!(name.as_ref(), "Image" | "Channel" | "TiffData") {
        document.count_element()?;
    }
    match name.as_ref() {
        "OME" => document.uuid = a.get("UUID").cloned(),
        "BinaryOnly" => document.metadata_file = a.get("MetadataFile").cloned(),
        "Image" => {
            let name = a.get("Name").cloned().unwrap_or_default();
            document.images.push(OmeImage { name, ..OmeImage::default() });
        }
        "Pixels" => {
            if let Some(image) = document.images.last_mut() {
                pixels(image, &a)?;
            }
        }
        "Channel" => {
            if let Some(image) = document.images.last_mut() {
                image.channels.push(channel(&a));
            }
        }
        "TiffData" => {
            if let Some(image) = document.images.last_mut() {
                image.tiff_data.push(TiffData {
                    ifd: optional(&a, "IFD")?,
                    first_z: optional(&a, "FirstZ")?.unwrap_or(0),
                    first_c: optional(&a, "FirstC")?.unwrap_or(0),
                    first_t: optional(&a, "FirstT")?.unwrap_or(0),
                    plane_count: optional(&a, "PlaneCount")?,
                    ..TiffData::default()
                });
            }
        }
        "UUID" => {
            let data = document.images.last_mut().and_then(|i| i.tiff_data.last_mut());
            if let Some(data) = data {
                data.file_name = a.get("FileName").cloned();
            }
        }
        _ => {}
    }
    Ok(())
}

fn optional(a: &Attributes, key: &str) -> Result<Option<usize>, Fault> {
    let Some(text) = a.get(key) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| invalid_xml(&format!("{key}=\"{text}\" is not a whole number")))
}

fn pixels(image: &mut OmeImage, a: &Attributes) -> Result<(), Fault> {
    let size = |key: &str| match optional(a, key)? {
        Some(n) if n > 0 => Ok(n),
        _ => Err(invalid_xml(&format!("Pixels needs a {key} above 0"))),
    };
    image.size_x = size("SizeX")?;
    image.size_y = size("SizeY")?;
    image.size_z = size("SizeZ")?;
    image.size_c = size("SizeC")?;
    image.size_t = size("SizeT")?;
    let order = a.get("DimensionOrder").map_or("XYZCT", String::as_str);
    let leading: Vec<Axis> = order.chars().rev().filter(|c| "ZCT".contains(*c)).filter_map(Axis::from_letter).collect();
    if leading.len() != 3 || !order.starts_with("XY") || order.len() != 5 || leading.first() == leading.get(2) {
        return Err(invalid_xml(&format!("DimensionOrder \"{order}\" is not XY and an order of Z, C, T")));
    }
    image.order = leading;
    let bits = a.get("SignificantBits").and_then(|bits| bits.trim().parse::<u32>().ok());
    image.significant_bits = bits.filter(|bits| *bits > 0);
    let length = |axis: &str| {
        let key = format!("PhysicalSize{axis}");
        quantity(a, &key, "µm", micrometers_per).or_else(|| unused(a, &key, "a length above 0 in a known unit"))
    };
    image.voxel_size_um = VoxelSize { z: length("Z"), y: length("Y"), x: length("X") };
    let key = "TimeIncrement";
    image.time_increment_secs =
        quantity(a, key, "s", seconds_per).or_else(|| unused(a, key, "a time above 0 in a known unit"));
    Ok(())
}

/// Reads the position of the first plane. Without a unit, it is one in the reference frame of a microscope, not a length.
fn plane(image: &mut OmeImage, a: &Attributes) {
    if !["TheZ", "TheC", "TheT"].iter().all(|key| a.get(*key).is_some_and(|at| at.trim() == "0")) {
        return;
    }
    let position = |axis: &str| {
        let key = format!("Position{axis}");
        let unit_um = a.get(&format!("{key}Unit")).map(|unit| micrometers_per(unit))?;
        let value = a.get(&key)?.trim().parse::<f64>().ok();
        let um = value.zip(unit_um).map(|(value, unit_um)| value * unit_um).filter(|um| um.is_finite());
        um.or_else(|| unused(a, &key, "a number in a known unit"))
    };
    image.origin_um = ["Z", "Y", "X"].map(|axis| position(axis).unwrap_or(0.0));
}

/// Reads the time of a plane of the first slice and channel, which many microscopes state instead of an interval.
fn plane_time(image: &mut OmeImage, a: &Attributes) {
    let index = |key: &str| a.get(key).and_then(|at| at.trim().parse::<usize>().ok());
    let Some(time) = index("TheT").filter(|time| *time < image.size_t) else { return };
    if (index("TheZ"), index("TheC")) != (Some(0), Some(0)) {
        return;
    }
    let unit_secs = seconds_per(a.get("DeltaTUnit").map_or("s", String::as_str));
    let value = a.get("DeltaT").and_then(|value| value.trim().parse::<f64>().ok());
    let secs = value.zip(unit_secs).map(|(value, unit_secs)| value * unit_secs).filter(|secs| secs.is_finite());
    let Some(secs) = secs else { return };
    if time == 0 {
        image.first_time_secs = Some(secs);
    } else if image.last_time.is_none_or(|(last, _)| time > last) {
        image.last_time = Some((time, secs));
    }
}

/// Returns the value of an attribute times its unit, which the attribute `KEYUnit` states.
fn quantity(a: &Attributes, key: &str, default_unit: &str, factor: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let unit = a.get(&format!("{key}Unit")).map_or(default_unit, String::as_str);
    let value: f64 = a.get(key)?.trim().parse().ok()?;
    positive(value * factor(unit)?)
}

/// Logs an attribute that is present but cannot be used. A size in pixels is not a voxel size, which is not an error.
fn unused<T>(a: &Attributes, key: &str, expected: &str) -> Option<T> {
    let value = a.get(key)?;
    let unit = a.get(&format!("{key}Unit")).map_or("", String::as_str);
    if matches!(unit, "pixel" | "reference frame") {
        return None;
    }
    ignore_entry(key, format!("{value} {unit}").trim(), expected)
}

fn channel(a: &Attributes) -> Channel {
    // Color is a signed 32-bit RGBA, which some programs write without its sign; the default -1, opaque white, counts as no
    // color.
    let color = a.get("Color").and_then(|c| c.trim().parse::<i64>().ok());
    let color = color.and_then(|c| i32::try_from(c).ok().or_else(|| u32::try_from(c).ok().map(u32::cast_signed)));
    let color_rgb = color.filter(|c| *c != -1).and_then(|c| {
        let [r, g, b, _] = c.to_be_bytes();
        visible_color([r, g, b])
    });
    Channel { name: a.get("Name").cloned().unwrap_or_default(), color_rgb }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    const RED: Option<[u8; 3]> = Some([255, 0, 0]);

    #[test]
    fn the_number_of_elements_that_are_kept_is_limited() {
        for name in ["Image", "Channel", "TiffData"] {
            let text = format!("<{name}/>");
            let mut reader = Reader::from_str(&text);
            let Event::Empty(e) = reader.read_event().unwrap() else { panic!("{name} is not an element") };
            let mut document = Document { elements: MAX_ELEMENTS - 1, ..Document::default() };
            assert!(element(&mut document, &e).is_ok(), "{name}");
            assert!(matches!(element(&mut document, &e), Err(Fault::OverLimit(..))), "{name}");
        }
    }

    #[test]
    fn colors_are_read_with_and_without_their_sign() {
        let color = |number: &str| {
            let size = "SizeX=\"4\" SizeY=\"4\" SizeZ=\"1\" SizeC=\"1\" SizeT=\"1\"";
            let xml =
                format!("<OME><Image><Pixels {size}><Channel Color=\"{number}\"/><TiffData/></Pixels></Image></OME>");
            parse(&xml).unwrap().images[0].channels[0].color_rgb
        };
        assert_eq!([color("-16776961"), color("4278190335"), color("16711935")], [RED, RED, Some([0, 255, 0])]);
        // White is the default, and a channel in black would not be seen.
        for none in ["-1", "4294967295", "255", "99999999999", "red"] {
            assert_eq!(color(none), None, "{none}");
        }
    }

    #[test]
    fn the_used_bits_are_a_number_above_0() {
        for (text, bits) in [("12", Some(12)), (" 8 ", Some(8)), ("0", None), ("-4", None), ("many", None)] {
            let xml = format!(
                "<OME><Image><Pixels SizeX=\"4\" SizeY=\"4\" SizeZ=\"1\" SizeC=\"1\" SizeT=\"1\" \
                 SignificantBits=\"{text}\"/></Image></OME>"
            );
            assert_eq!(parse(&xml).unwrap().images[0].significant_bits, bits, "{text}");
        }
    }

    #[test]
    fn the_time_interval_is_the_stated_one_or_the_mean_of_the_planes() {
        let interval = |increment: &str, planes: &str| {
            let size = "SizeX=\"4\" SizeY=\"4\" SizeZ=\"2\" SizeC=\"2\" SizeT=\"4\"";
            let xml = format!("<OME><Image><Pixels {size} {increment}><TiffData/>{planes}</Pixels></Image></OME>");
            parse(&xml).unwrap().images[0].time_interval_secs()
        };
        let plane = |z: usize, c: usize, t: &str, delta: &str, unit: &str| {
            format!("<Plane TheZ=\"{z}\" TheC=\"{c}\" TheT=\"{t}\" DeltaT=\"{delta}\" {unit}/>")
        };
        let series = |unit: &str| -> String {
            let times = [("0", "1"), ("1", "3"), ("3", "10"), ("2", "6")];
            let first = times.map(|(t, delta)| plane(0, 0, t, delta, unit));
            // Other slices and channels are acquired later, and there are four time points only.
            [&first[..], &[plane(1, 0, "3", "90", unit), plane(0, 1, "3", "95", unit), plane(0, 0, "4", "99", unit)]]
                .concat()
                .concat()
        };
        assert_eq!(interval("", &series("")), Some(3.0));
        assert_eq!(interval("", &series("DeltaTUnit=\"min\"")), Some(180.0));
        assert_eq!(interval("TimeIncrement=\"2\"", &series("")), Some(2.0));
        // No unit of time, a single time, and times that do not increase.
        assert_eq!(interval("", &series("DeltaTUnit=\"frame\"")), None);
        assert_eq!(interval("", &plane(0, 0, "0", "5", "")), None);
        let same = [plane(0, 0, "0", "5", ""), plane(0, 0, "3", "5", "")].concat();
        assert_eq!(interval("", &same), None);
    }

    #[test]
    fn the_position_of_the_first_plane_is_that_of_the_image_if_it_is_a_length() {
        let origin = |planes: &str| {
            let size = "SizeX=\"4\" SizeY=\"4\" SizeZ=\"2\" SizeC=\"1\" SizeT=\"1\"";
            let xml = format!("<OME><Image><Pixels {size}><TiffData/>{planes}</Pixels></Image></OME>");
            parse(&xml).unwrap().images[0].origin_um
        };
        let first = "TheZ=\"0\" TheT=\"0\" TheC=\"0\"";
        let position =
            |unit: &str| format!("PositionX=\"-1.5\" PositionXUnit=\"{unit}\" PositionZ=\"2\" PositionZUnit=\"mm\"");
        assert_eq!(origin(&format!("<Plane {first} {}/>", position("µm"))), [2000.0, 0.0, -1.5]);
        let other = "<Plane TheZ=\"1\" TheT=\"0\" TheC=\"0\" PositionX=\"9\" PositionXUnit=\"µm\"/>";
        assert_eq!(
            origin(&format!("{other}<Plane {first} {}>{other}</Plane>", position("nm"))),
            [2000.0, 0.0, -0.0015]
        );
        // Not lengths, not numbers, and planes that are described wrongly.
        assert_eq!(origin(&format!("<Plane {first} {}/>", position("reference frame"))), [2000.0, 0.0, 0.0]);
        for plane in ["PositionX=\"5\"", "PositionX=\"far\" PositionXUnit=\"µm\"", "PositionX=\"1\" PositionX=\"1\""] {
            assert_eq!(origin(&format!("<Plane {first} {plane}/>")), [0.0; 3], "{plane}");
        }
        let unknown = "<Plane TheZ=\"first\" TheT=\"0\" TheC=\"0\" PositionX=\"5\" PositionXUnit=\"µm\"/>";
        assert_eq!(origin(unknown), [0.0; 3]);
    }
}

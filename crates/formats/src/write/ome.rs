//! OME-TIFF: the XML, and the tags common to planes of all TIFF files.

use super::{
    ifd::{Value, fraction},
    range::Ranges,
    spec::WriteSpec,
};
use crate::{error::FormatError, meta::positive, tiff::ifd::tag};
use cytoscope_volume::{Axis, DType};
use std::{fmt::Write, path::Path};

/// The OME name of a sample type, if it has one.
fn type_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::U64 | DType::I64 | DType::F16 => return None,
        other => other.name(),
    })
}

/// Refuses stacks that OME-XML cannot describe.
pub(crate) fn check(spec: &WriteSpec, path: &Path) -> Result<(), FormatError> {
    if type_name(spec.dtype).is_none() {
        return Err(FormatError::unsupported(
            path,
            format!("OME-TIFF does not support {} images", spec.dtype),
            "write it as .npy, or convert it to one of uint8 to uint32, int8 to int32, float32 or float64",
        ));
    }
    if spec.size(Axis::S) > usize::from(u16::MAX) {
        return Err(FormatError::unsupported(path, "a pixel has more than 65535 samples", "write it as .npy"));
    }
    Ok(())
}

/// Whether compressed strips use the horizontal predictor.
pub(crate) fn uses_predictor(spec: &WriteSpec) -> bool {
    !spec.dtype.is_float() && spec.dtype.size_bytes() <= 4
}

/// Tags that are the same for all planes, without compression and the position of the pixels.
pub(crate) fn plane_tags(spec: &WriteSpec) -> Vec<(u16, Value)> {
    let samples = spec.size(Axis::S);
    let bits = spec.dtype.size_bytes() as u16 * 8;
    let format = match spec.dtype {
        DType::F16 | DType::F32 | DType::F64 => 3,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 2,
        _ => 1,
    };
    let rgb = matches!(samples, 3 | 4);
    let mut tags = vec![
        (tag::NEW_SUBFILE_TYPE, Value::Long(vec![0])),
        (tag::WIDTH, Value::Long(vec![spec.size(Axis::X) as u32])),
        (tag::HEIGHT, Value::Long(vec![spec.size(Axis::Y) as u32])),
        (tag::BITS, Value::Short(vec![bits; samples])),
        (tag::PHOTOMETRIC, Value::Short(vec![if rgb { 2 } else { 1 }])),
        (tag::SAMPLES, Value::Short(vec![samples as u16])),
        (tag::PLANAR, Value::Short(vec![1])),
        (tag::SAMPLE_FORMAT, Value::Short(vec![format; samples])),
    ];
    let extra = samples - if rgb { 3 } else { 1 };
    if extra > 0 {
        tags.push((tag::EXTRA_SAMPLES, Value::Short(vec![if rgb { 2 } else { 0 }; extra])));
    }
    tags
}

/// Additional tags of the first page: the XML, the display range, and the pixel size for readers without OME support.
pub(crate) fn first_tags(spec: &WriteSpec, ranges: &Ranges) -> Vec<(u16, Value)> {
    let mut tags = vec![(tag::DESCRIPTION, Value::Ascii(xml(spec)))];
    if spec.size(Axis::S) == 1 {
        let (low, high) = ranges.for_all_channels();
        tags.push((tag::S_MIN, Value::Double(low)));
        tags.push((tag::S_MAX, Value::Double(high)));
    }
    let v = spec.voxel_size_um;
    if let (Some(x), Some(y)) = (v.x.and_then(positive), v.y.and_then(positive)) {
        tags.push((tag::RESOLUTION_UNIT, Value::Short(vec![3])));
        for (tag, size) in [(tag::X_RESOLUTION, x), (tag::Y_RESOLUTION, y)] {
            let (n, d) = fraction(10_000.0 / size);
            tags.push((tag, Value::Rational(n, d)));
        }
    }
    tags
}

fn escape_xml(text: &str) -> String {
    // XML does not allow these characters, not even escaped.
    let is_illegal = |c: char| matches!(c, '\u{FFFE}' | '\u{FFFF}') || (c.is_control() && c != '\n' && c != '\t');
    let clean: String = text.chars().map(|c| if is_illegal(c) { ' ' } else { c }).collect();
    quick_xml::escape::escape(clean.as_str()).into_owned()
}

/// The bits of a sample that are used.
fn significant_bits(spec: &WriteSpec) -> u32 {
    let stored = spec.dtype.size_bytes() as u32 * 8;
    spec.significant_bits.filter(|bits| (1..stored).contains(bits)).unwrap_or(stored)
}

/// The OME-XML document.
fn xml(spec: &WriteSpec) -> String {
    let samples = spec.size(Axis::S);
    let channels = spec.size(Axis::C);
    // The fastest axis comes first; axes that the stack does not have come last.
    let mut order: Vec<Axis> = spec.leading().iter().rev().map(|d| d.0).collect();
    for axis in [Axis::Z, Axis::C, Axis::T] {
        if !order.contains(&axis) {
            order.push(axis);
        }
    }
    let order: String = order.iter().map(|a| a.letter()).collect();
    let mut x = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <OME xmlns=\"http://www.openmicroscopy.org/Schemas/OME/2016-06\" \
         xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xsi:schemaLocation=\"http://www.openmicroscopy.org/Schemas/OME/2016-06 \
         http://www.openmicroscopy.org/Schemas/OME/2016-06/ome.xsd\" Creator=\"Cytoscope\">",
    );
    let name = if spec.name.is_empty() { "Image0" } else { spec.name.as_str() };
    let _ = write!(x, "<Image ID=\"Image:0\" Name=\"{}\">", escape_xml(name));
    if let Some(text) = spec.description.as_deref().filter(|d| !d.is_empty()) {
        let _ = write!(x, "<Description>{}</Description>", escape_xml(text));
    }
    let _ = write!(
        x,
        "<Pixels ID=\"Pixels:0\" DimensionOrder=\"XY{order}\" Type=\"{}\" SizeX=\"{}\" SizeY=\"{}\" SizeZ=\"{}\" \
         SizeC=\"{}\" SizeT=\"{}\" BigEndian=\"false\" Interleaved=\"{}\" SignificantBits=\"{}\"",
        type_name(spec.dtype).unwrap_or_default(),
        spec.size(Axis::X),
        spec.size(Axis::Y),
        spec.size(Axis::Z),
        channels * samples,
        spec.size(Axis::T),
        samples > 1,
        significant_bits(spec),
    );
    let v = spec.voxel_size_um;
    for (axis, size) in [("X", v.x), ("Y", v.y), ("Z", v.z)] {
        if let Some(size) = size.and_then(positive) {
            let _ = write!(x, " PhysicalSize{axis}=\"{size:?}\" PhysicalSize{axis}Unit=\"µm\"");
        }
    }
    if let Some(secs) = spec.time_interval_secs.and_then(positive) {
        let _ = write!(x, " TimeIncrement=\"{secs:?}\" TimeIncrementUnit=\"s\"");
    }
    x.push('>');
    for c in 0..channels {
        let _ = write!(x, "<Channel ID=\"Channel:0:{c}\" SamplesPerPixel=\"{samples}\"");
        if !spec.channel_name(c).is_empty() {
            let _ = write!(x, " Name=\"{}\"", escape_xml(spec.channel_name(c)));
        }
        if let Some([r, g, b]) = spec.channels.get(c).and_then(|c| c.color_rgb) {
            let _ = write!(x, " Color=\"{}\"", i32::from_be_bytes([r, g, b, 255]));
        }
        x.push_str("/>");
    }
    let _ = write!(x, "<TiffData IFD=\"0\" PlaneCount=\"{}\"/>", spec.planes());
    if spec.origin_um.iter().all(|um| um.is_finite()) && spec.origin_um != [0.0; 3] {
        let _ = write!(x, "<Plane TheZ=\"0\" TheT=\"0\" TheC=\"0\"");
        for (axis, position) in ["Z", "Y", "X"].iter().zip(spec.origin_um) {
            let _ = write!(x, " Position{axis}=\"{position:?}\" Position{axis}Unit=\"µm\"");
        }
        x.push_str("/>");
    }
    x.push_str("</Pixels></Image></OME>");
    x
}

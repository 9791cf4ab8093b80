//! Axes in the JSON description of files that Python's tifffile writes (`{"axes": "TZYX", "shape": [...]}`).

use super::{file::TiffFile, ifd::tag, page::Layout, series::Series};
use crate::meta::{micrometers_per, positive, seconds_per};
use cytoscope_volume::{Axes, Axis};

/// Maximum length in bytes of a description that is parsed as JSON: longer ones are not written by such scripts, and would
/// take memory.
const MAX_SHAPED_BYTES: usize = 65_536;

/// The axes that a description states.
pub(super) struct Stated {
    axes: Axes,
    shape: Vec<usize>,
}

/// Returns the description as JSON; `None` if it is longer than [`MAX_SHAPED_BYTES`].
fn parsed(description: &str) -> Option<serde_json::Value> {
    serde_json::from_str(Some(description).filter(|text| text.len() <= MAX_SHAPED_BYTES)?).ok()
}

/// Returns the shape that a JSON description states.
fn parse_shape(json: &serde_json::Value) -> Option<Vec<usize>> {
    json.get("shape")?.as_array()?.iter().map(|n| Some(n.as_u64()? as usize)).collect()
}

/// Returns the axes of a JSON description; `None` if an axis is unknown, if Y and X are not the last axes apart from S, or if
/// the description is longer than [`MAX_SHAPED_BYTES`].
pub(super) fn stated(description: &str) -> Option<Stated> {
    let json = parsed(description)?;
    let axes: Axes = json.get("axes")?.as_str()?.parse().ok()?;
    let shape = parse_shape(&json)?;
    let stated = Stated { axes, shape };
    let is_leading = |axis: &Axis| !matches!(axis, Axis::Y | Axis::X | Axis::S);
    let page_axes: String = stated.axes.iter().skip_while(is_leading).map(Axis::letter).collect();
    // The samples of a pixel may be stated as channels.
    matches!(page_axes.as_str(), "YX" | "YXS" | "YXC" | "SYX").then_some(stated)
}

/// Returns the number of planes that follow each other from the only page of a file on, if a description says so: with
/// `truncate=True`, tifffile writes no other pages.
pub(super) fn truncated_planes(description: &str, layout: &Layout) -> Option<usize> {
    let json = parsed(description)?;
    let is_truncated = json.get("truncated")?.as_bool()?;
    let shape = parse_shape(&json)?;
    let Layout { height, width, samples, .. } = *layout;
    let page = match (samples, layout.planar) {
        (1, _) => vec![height, width],
        (_, true) => vec![samples, height, width],
        (_, false) => vec![height, width, samples],
    };
    let leading = shape.strip_suffix(page.as_slice())?;
    let count = leading.iter().try_fold(1usize, |n, length| n.checked_mul(*length))?;
    (is_truncated && count > 1).then_some(count)
}

/// Axes of a file whose pages hold planes, by the number of axes before these.
const AXES_WITH_PLANES: [&str; 3] = ["ZYX", "ZCYX", "TZCYX"];

/// Describes a series whose description states no axes that can be used: its pages are slices, for lack of anything better,
/// although they may be channels or time points. The separate planes of a page are the parts of a color, too.
pub(super) fn describe_without_axes(series: &mut Series, layout: &Layout, description: &str) {
    let planes = series.planes.len();
    let Some((json, shape)) = parsed(description).and_then(|json| parse_shape(&json).map(|shape| (json, shape))) else {
        return;
    };
    let Layout { height, width, samples, .. } = *layout;
    let before_planes = shape.strip_suffix(&[samples, height, width]).filter(|_| layout.planar && samples > 1);
    let before_rows = shape.strip_suffix(&[height, width]).or_else(|| shape.strip_suffix(&[height, width, samples]));
    let leading = before_planes.or(before_rows).unwrap_or_default();
    let lengths: Vec<usize> = leading.iter().copied().filter(|length| *length > 1).collect();
    let are_planes = lengths.iter().try_fold(1usize, |n, length| n.checked_mul(*length)) == Some(planes);
    let has_several = are_planes && lengths.len() > 1;
    let axes = json.get("axes").and_then(serde_json::Value::as_str);
    let stated = match axes {
        Some(axes) => {
            let axes: String = axes.chars().take(20).collect();
            format!("the axes {axes}, which are not T, Z and C before YX,")
        }
        None => format!("the shape {shape:?} without axes"),
    };
    if before_planes.is_some() {
        let example = AXES_WITH_PLANES.get(lengths.len()).map(|axes| format!(", such as {axes}")).unwrap_or_default();
        series.read_as_color = Some(format!(
            "the description declares {stated} for pages of {samples} planes, which are read as colors; if they are slices, \
             channels or time points, give the axes{example}"
        ));
    }
    if axes.is_some() || has_several {
        series.read_as_slices =
            Some(format!("the description declares {stated} for its {planes} pages: they are read as slices"));
    }
    if has_several {
        series.unnamed_lengths = lengths;
    }
}

/// Values of the tag ResolutionUnit: none, and inches, which is tifffile's default.
const WITHOUT_UNIT: [u64; 2] = [1, 2];

/// Adds the sizes that a description states in the words of ImageJ (`spacing`, `unit`, `finterval`) or OME (`PhysicalSizeZ`),
/// which scripts give to tifffile, where the tags of the file state none. A resolution in inches, tifffile's default, may be meant
/// in the unit of the description.
pub(super) fn add_sizes(series: &mut Series, file: &TiffFile, description: &str) {
    let Some(json) = parsed(description).filter(|json| parse_shape(json).is_some()) else { return };
    let text = |key: &str| json.get(key).and_then(serde_json::Value::as_str);
    let number = |key: &str| json.get(key).and_then(serde_json::Value::as_f64).and_then(positive);
    let unit_um = text("unit").and_then(micrometers_per);
    let physical = |axis: &str| {
        let unit = text(&format!("PhysicalSize{axis}Unit")).unwrap_or("µm");
        positive(number(&format!("PhysicalSize{axis}"))? * micrometers_per(unit)?)
    };
    let resolution_unit = file.container.integer_or(&file.first, tag::RESOLUTION_UNIT, 2).unwrap_or(0);
    let has_no_unit = WITHOUT_UNIT.contains(&resolution_unit);
    let pixel = |resolution: u16| {
        // A resolution of 1 is the default.
        let per_unit = file.container.number(&file.first, resolution).and_then(positive).filter(|n| *n != 1.0)?;
        positive(unit_um? / per_unit).filter(|_| has_no_unit)
    };
    let size = &mut series.voxel_size_um;
    size.z = size.z.or_else(|| physical("Z")).or_else(|| positive(number("spacing")? * unit_um?));
    let by_tags = |size: Option<f64>| size.filter(|_| !has_no_unit);
    let in_inches = |size: Option<f64>| size.filter(|_| has_no_unit);
    let (y, x) = (size.y, size.x);
    size.y = by_tags(y).or_else(|| physical("Y")).or_else(|| pixel(tag::Y_RESOLUTION)).or(in_inches(y));
    size.x = by_tags(x).or_else(|| physical("X")).or_else(|| pixel(tag::X_RESOLUTION)).or(in_inches(x));
    let interval = || positive(number("finterval")? * seconds_per(text("tunit").unwrap_or("s"))?);
    let increment = || {
        let unit = text("TimeIncrementUnit").unwrap_or("s");
        positive(number("TimeIncrement")? * seconds_per(unit)?)
    };
    if series.tzc()[0] > 1 {
        series.time_interval_secs = interval().or_else(increment);
    }
}

impl Stated {
    /// The axes before Y, X and S with their extents, slowest first.
    fn leading(&self) -> Vec<(Axis, usize)> {
        let all = self.axes.iter().zip(self.shape.iter().copied());
        all.take_while(|(axis, _)| !matches!(axis, Axis::Y | Axis::X | Axis::S)).collect()
    }

    /// Whether the lengths along Y and X are those of a page.
    fn describes_page(&self, layout: &Layout) -> bool {
        let y = self.axes.position(Axis::Y).unwrap_or(0);
        self.shape.get(y..y.saturating_add(2)) == Some(&[layout.height, layout.width][..])
    }

    /// Whether the samples of a pixel are stated as channels.
    fn has_channels_last(&self, layout: &Layout) -> bool {
        let is_last = self.axes.position(Axis::C).is_some_and(|at| at + 1 == self.axes.len());
        is_last && self.shape.last() == Some(&layout.samples)
    }

    /// Gives the stated axes to a series whose planes are all pages of the file. If they do not fit, the pages remain slices.
    /// The samples of a color remain samples if they are stated as channels.
    pub fn apply_to(&self, series: &mut Series, layout: &Layout, is_color: bool) {
        let (dims, planes) = (self.leading(), series.planes.len());
        let fits = |dims: &[(Axis, usize)]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(d.1)) == Some(planes);
        if fits(&dims) {
            series.dims = dims;
            series.samples_axis = (self.has_channels_last(layout) && !is_color).then_some(Axis::C);
            return;
        }
        match dims.split_last() {
            // tifffile stores 3 or 4 planes as the separate samples of one page, as if they were a color.
            Some(((axis, extent), outer)) if layout.planar && *extent == layout.samples && fits(outer) => {
                series.samples_axis = Some(*axis);
                series.dims = outer.to_vec();
            }
            // The description of a page by itself: each page has its own.
            None if self.describes_page(layout) => {}
            _ => {
                series.read_as_slices = Some(format!(
                    "the description declares the axes {} with the lengths {:?}, but the file has {planes} pages of \
                     {} x {} pixels: they are read as slices",
                    self.axes, self.shape, layout.width, layout.height
                ));
            }
        }
    }
}

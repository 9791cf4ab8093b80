//! Axes in the JSON description of files that Python's tifffile writes (`{"axes": "TZYX", "shape": [...]}`).

use super::{page::Layout, series::Series};
use cytoscope_volume::{Axes, Axis};

/// Maximum length in bytes of a description that is parsed as JSON: longer ones are not written by such scripts, and would
/// take memory.
const MAX_SHAPED_BYTES: usize = 65_536;

/// The axes that a description states.
pub(super) struct Stated {
    axes: Axes,
    shape: Vec<usize>,
}

/// Returns the axes of a JSON description; `None` if an axis is unknown, if Y and X are not the last axes apart from S, or if
/// the description is longer than [`MAX_SHAPED_BYTES`].
pub(super) fn stated(description: &str) -> Option<Stated> {
    let description = Some(description).filter(|text| text.len() <= MAX_SHAPED_BYTES)?;
    let json: serde_json::Value = serde_json::from_str(description).ok()?;
    let axes: Axes = json.get("axes")?.as_str()?.parse().ok()?;
    let shape: Vec<usize> =
        json.get("shape")?.as_array()?.iter().map(|n| Some(n.as_u64()? as usize)).collect::<Option<_>>()?;
    let stated = Stated { axes, shape };
    (stated.axes.len() > stated.leading().len()).then_some(stated)
}

impl Stated {
    /// The axes before Y, X and S with their extents, slowest first.
    fn leading(&self) -> Vec<(Axis, usize)> {
        let all = self.axes.iter().zip(self.shape.iter().copied());
        all.take_while(|(axis, _)| !matches!(axis, Axis::Y | Axis::X | Axis::S)).collect()
    }

    /// Gives the stated axes to a series whose planes are all pages of the file. If they do not fit, the pages remain slices.
    pub fn apply_to(&self, series: &mut Series, layout: &Layout) {
        let (dims, planes) = (self.leading(), series.planes.len());
        let fits = |dims: &[(Axis, usize)]| dims.iter().try_fold(1usize, |n, d| n.checked_mul(d.1)) == Some(planes);
        if fits(&dims) {
            series.dims = dims;
            return;
        }
        match dims.split_last() {
            // tifffile stores 3 or 4 planes as the separate samples of one page, as if they were a color.
            Some(((axis, extent), outer)) if layout.planar && *extent == layout.samples && fits(outer) => {
                series.samples_axis = Some(*axis);
                series.dims = outer.to_vec();
            }
            // The description of a page by itself: each page has its own.
            None => {}
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

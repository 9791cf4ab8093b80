//! Metadata of an ND2 file: the layout of its frames, the loops of the experiment, channels and scaling.

use super::{EXPORT, variant::Level};
use crate::{
    error::Fault,
    meta::{Channel, positive},
};
use cytoscope_volume::DType;

/// The layout of a frame, which is one plane of all channels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Pixels along X.
    pub width: usize,
    /// Pixels along Y.
    pub height: usize,
    /// Distance between rows in bytes.
    pub row_bytes: usize,
    /// Channels, which are stored side by side for each pixel.
    pub channels: usize,
    /// Sample type: 8 or 16 bits, or 32-bit floats.
    pub dtype: DType,
    /// Bits of a sample that carry the signal, such as 12 of 16.
    pub significant_bits: u32,
    /// Whether each frame is compressed with zlib.
    pub is_compressed: bool,
    /// Number of frames that the file declares; `None` if it declares none.
    pub declared: Option<usize>,
}

impl Frame {
    /// Reads the attributes.
    pub fn of(attributes: &Level<'_>) -> Result<Self, Fault> {
        let required = |name: &str| {
            let value = attributes.count(name).filter(|n| *n > 0);
            value.ok_or_else(|| Fault::malformed(format!("the attributes of the ND2 file lack a positive {name}")))
        };
        let (width, height) = (required("uiWidth")?, required("uiHeight")?);
        let (channels, bits) = (required("uiComp")?, required("uiBpcInMemory")?);
        let dtype = match bits {
            8 => DType::U8,
            16 => DType::U16,
            32 => DType::F32,
            other => return Err(Fault::unsupported(format!("its {other} bits per sample are not supported"), EXPORT)),
        };
        let is_compressed = match attributes.count("eCompression") {
            Some(0) => true,
            Some(1) => return Err(Fault::unsupported("its lossy compression is not supported", EXPORT)),
            _ => false,
        };
        let tile = |name: &str, whole: usize| attributes.count(name).is_none_or(|n| n == 0 || n == whole);
        if !tile("uiTileWidth", width) || !tile("uiTileHeight", height) {
            return Err(Fault::unsupported("its frames are stored in tiles", EXPORT));
        }
        let packed = width.checked_mul(channels).and_then(|n| n.checked_mul(dtype.size_bytes()));
        let row_bytes = required("uiWidthBytes")?;
        if packed.is_none_or(|n| n > row_bytes) || row_bytes.checked_mul(height).is_none() {
            return Err(Fault::malformed(format!(
                "the rows of the ND2 file have {row_bytes} bytes, which does not fit {width} pixels of {channels} channels"
            )));
        }
        let significant = attributes.count("uiBpcSignificant").filter(|n| (1..=bits).contains(n)).unwrap_or(bits);
        let declared = attributes.count("uiSequenceCount");
        let significant_bits = significant as u32;
        Ok(Self { width, height, row_bytes, channels, dtype, significant_bits, is_compressed, declared })
    }

    /// Bytes of a pixel of all channels.
    pub fn pixel_bytes(&self) -> usize {
        self.channels * self.dtype.size_bytes()
    }
}

/// The axis that a loop of the experiment runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Time,
    Position,
    Slice,
}

/// A loop of the experiment.
#[derive(Debug, Clone)]
pub(super) struct Loop {
    /// The axis.
    pub over: Over,
    /// Number of time points, positions or slices; those that were not used do not count.
    pub count: usize,
    /// Seconds between time points, or micrometers between slices.
    pub step: Option<f64>,
    /// Names of the positions; empty texts where the file states none, no list for other loops.
    pub names: Vec<String>,
}

/// Returns the loops of an experiment, outermost first.
pub(super) fn loops(experiment: &Level<'_>) -> Result<Vec<Loop>, Fault> {
    let mut found = Vec::new();
    add_loops(experiment, 0, &mut found)?;
    Ok(found)
}

/// Adds the loop at `depth` and those inside it.
fn add_loops(experiment: &Level<'_>, depth: usize, found: &mut Vec<Loop>) -> Result<(), Fault> {
    let (Some(kind), Some(parameters)) = (experiment.count("eType"), experiment.level("uLoopPars")) else {
        return Ok(());
    };
    let new = match kind {
        1 => {
            let count = stated_count(parameters)?;
            Some(Loop { over: Over::Time, count, step: period(parameters), names: Vec::new() })
        }
        2 => Some(positions(experiment, parameters)?),
        4 => Some(slices(parameters)?),
        // Channels, which every frame holds.
        6 => None,
        8 => Some(phases(parameters)?),
        other => {
            return Err(Fault::unsupported(format!("its experiment has a loop of the unknown kind {other}"), EXPORT));
        }
    };
    let mut inner = depth;
    if let Some(new) = new {
        if new.count == 0 {
            return Ok(());
        }
        match found.get(depth) {
            Some(known) if known.over != new.over || known.count != new.count => {
                let problem = "its positions have different numbers of time points or slices, or its time points different \
                               numbers of slices";
                return Err(Fault::unsupported(problem, EXPORT));
            }
            Some(_) => {}
            None if found.iter().any(|known| known.over == new.over) => {
                return Err(Fault::unsupported("its experiment has two loops of one kind inside each other", EXPORT));
            }
            None => found.push(new),
        }
        inner += 1;
    }
    let next = experiment.level("ppNextLevelEx");
    for item in next.into_iter().flat_map(Level::levels) {
        add_loops(item.level("SLxExperiment").unwrap_or(item), inner, found)?;
    }
    Ok(())
}

/// Seconds between the time points of a loop or phase.
fn period(parameters: &Level<'_>) -> Option<f64> {
    let millis = |name: &str| parameters.number(name).and_then(positive);
    millis("dPeriod").or_else(|| millis("dAvgPeriodDiff")).map(|ms| ms / 1000.0)
}

fn positions(experiment: &Level<'_>, parameters: &Level<'_>) -> Result<Loop, Fault> {
    let Some(points) = parameters.level("Points") else {
        return Err(Fault::unsupported("its positions are stored in an old form", EXPORT));
    };
    let valid = experiment.flags("pItemValid");
    let is_valid = |index: usize| valid.is_empty() || valid.get(index).copied().unwrap_or(false);
    let name = |point: &Level<'_>| {
        let name = ["dPosName", "pPosName"].iter().find_map(|key| point.text(key).filter(|name| !name.is_empty()));
        name.unwrap_or_default().to_owned()
    };
    let used = points.levels().enumerate().filter(|(index, _)| is_valid(*index));
    let names: Vec<String> = used.map(|(_, point)| name(point)).collect();
    Ok(Loop { over: Over::Position, count: names.len(), step: None, names })
}

/// The number of time points or slices that the parameters of a loop or phase state.
fn stated_count(parameters: &Level<'_>) -> Result<usize, Fault> {
    let count = parameters.count("uiCount");
    count.ok_or_else(|| Fault::malformed("a loop of its experiment states no number of time points or slices"))
}

fn slices(parameters: &Level<'_>) -> Result<Loop, Fault> {
    let count = stated_count(parameters)?;
    let range = || {
        let (low, high) = (parameters.number("dZLow")?, parameters.number("dZHigh")?);
        (count > 1).then(|| (high - low).abs() / (count - 1) as f64)
    };
    let step = parameters.number("dZStep").map(f64::abs).filter(|s| *s > 0.0).or_else(range);
    Ok(Loop { over: Over::Slice, count, step: step.and_then(positive), names: Vec::new() })
}

/// A time loop of several phases.
fn phases(parameters: &Level<'_>) -> Result<Loop, Fault> {
    let inner = parameters.level("pSubLoops").into_iter().flat_map(Level::levels);
    if inner.filter_map(|item| item.level("ppNextLevelEx")).any(|next| next.levels().next().is_some()) {
        return Err(Fault::unsupported("the phases of its time series have their own loops", EXPORT));
    }
    let valid = parameters.flags("pPeriodValid");
    let all = parameters.level("pPeriod").into_iter().flat_map(Level::levels);
    let used: Vec<&Level<'_>> = all.zip(&valid).filter(|(_, valid)| **valid).map(|(phase, _)| phase).collect();
    let count = used.iter().try_fold(0usize, |n, phase| {
        let sum = n.checked_add(stated_count(phase)?);
        sum.ok_or_else(|| Fault::malformed("the number of time points is too large"))
    })?;
    let step = match used.as_slice() {
        [only] => period(only),
        _ => None,
    };
    Ok(Loop { over: Over::Time, count, step, names: Vec::new() })
}

/// Channels and pixel size of the first frame.
#[derive(Debug, Default)]
pub(super) struct Picture {
    /// Names and colors in the order in which a frame stores the channels.
    pub channels: Vec<Channel>,
    /// Edge of a pixel in µm, along Y and X; `None` if the file is not calibrated.
    pub pixel_um: Option<f64>,
}

impl Picture {
    /// Reads the metadata of the first frame, of as many channels as the frame has.
    pub fn of(picture: &Level<'_>, frame: &Frame) -> Result<Self, Fault> {
        let is_time = |name: &str| picture.count(name) == Some(2);
        if is_time("ePictureXAxis") || is_time("ePictureYAxis") {
            return Err(Fault::unsupported("it is a line or point scan over time", EXPORT));
        }
        let empty = Level::default();
        let group = picture.level("sPicturePlanes").unwrap_or(&empty);
        let filled = |name: &str| group.level(name).filter(|list| list.levels().next().is_some());
        let planes = filled("sPlaneNew").or_else(|| filled("sPlane")).unwrap_or(&empty);
        if planes.levels().any(|plane| plane.count("uiCompCount").is_some_and(|n| n > 1)) {
            return Err(Fault::unsupported("it has a color camera's red, green and blue in one channel", EXPORT));
        }
        let channels: Vec<Channel> = planes.levels().map(channel).collect();
        if channels.len() != frame.channels && (frame.channels > 1 || !channels.is_empty()) {
            let problem = format!("its {} channels do not match the {} of its frames", channels.len(), frame.channels);
            return Err(Fault::unsupported(problem, EXPORT));
        }
        let is_calibrated = picture.number("bCalibrated").is_none_or(|n| n != 0.0);
        let pixel_um = picture.number("dCalibration").and_then(positive).filter(|_| is_calibrated);
        Ok(Self { channels, pixel_um })
    }
}

fn channel(plane: &Level<'_>) -> Channel {
    let color = plane.count("uiColor").and_then(|n| u32::try_from(n).ok()).map(u32::to_le_bytes);
    Channel {
        name: plane.text("sDescription").unwrap_or_default().to_owned(),
        color_rgb: color.map(|[red, green, blue, _]| [red, green, blue]),
    }
}

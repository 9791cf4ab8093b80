//! NumPy's `.npy` format: reading of regions, and the header for writing.

use crate::{
    dense::Dense,
    error::{Fault, Remedy},
    limits::Limits,
    meta::ByteOrder,
    read_ahead::ReadAhead,
    reader::check_shape,
    source::Source,
};
use cytoscope_storage::npy::{self, HeaderError, SampleType};
use cytoscope_volume::{Axes, Axis, DType, Region, Samples};

/// First bytes of every `.npy` file.
pub(crate) const MAGIC: &[u8] = npy::MAGIC;

/// An open `.npy` file.
#[derive(Debug)]
pub(crate) struct Npy {
    source: Source,
    /// Type of the samples, and their positions along T, Z, C, Y, X, S.
    pub layout: Dense,
    /// Number of axes of the array.
    pub rank: usize,
    ahead: ReadAhead,
}

impl Npy {
    /// Reads the header; `axes` are the array's axes. Without them, the axes are chosen by the array's rank.
    pub fn open(source: Source, limits: &Limits, axes: Option<&Axes>) -> Result<Self, Fault> {
        let npy::ArrayLayout { header, sample, data_at, .. } =
            npy::read_layout(source.len(), |at, into: &mut [u8]| {
                let (len, max) = (into.len() as u64, limits.max_metadata_bytes);
                if len > max {
                    return Err(Fault::over("the .npy header", len, "max_metadata_bytes", max, Remedy::CopyAgain));
                }
                source.read_at(at, into)
            })?;
        let dtype = dtype_for(sample);
        let order = if header.big_endian { ByteOrder::Big } else { ByteOrder::Little };
        let shape = header.shape;
        let axes = array_axes(&shape, axes)?;
        let mut strides = [0; 6];
        let mut shape_full = [1; 6];
        let mut step = 1usize;
        let mut fastest_first: Vec<(&Axis, &usize)> = axes.iter().zip(&shape).collect();
        if !header.fortran_order {
            fastest_first.reverse();
        }
        for (axis, n) in fastest_first {
            if let Some(i) = Axis::CANONICAL.iter().position(|a| a == axis) {
                shape_full[i] = *n;
                strides[i] = step;
            }
            // The product of all extents fits, but that of some of them need not if another one is 0.
            step = step.saturating_mul(*n);
        }
        check_shape(&shape_full, dtype, limits)?;
        let layout = Dense { order, dtype, data_at, shape_full, strides };
        Ok(Self { source, layout, rank: shape.len(), ahead: ReadAhead::default() })
    }

    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape.
    pub fn read(&self, region: &Region) -> Result<Samples, Fault> {
        self.ahead.read(&self.layout, &self.source, region)
    }

    /// Same as [`crate::Image::cache_bytes`].
    pub fn cache_bytes(&self) -> u64 {
        self.ahead.held_bytes(&self.layout)
    }

    /// Same as [`crate::Image::limit_cache`].
    pub fn limit_cache(&self, bytes: u64) {
        self.ahead.limit(bytes);
    }
}

/// Returns the axes of an array: the given ones, or else those that its number of axes suggests.
pub(crate) fn array_axes(shape: &[usize], axes: Option<&Axes>) -> Result<Vec<Axis>, Fault> {
    let default = match shape.len() {
        0 => "",
        1 => "X",
        2 => "YX",
        3 => "ZYX",
        4 => "CZYX",
        5 => "TCZYX",
        n => return Err(Fault::unsupported(format!("the array has {n} axes"), "save it with at most 5")),
    };
    match axes {
        None => Ok(default.chars().filter_map(Axis::from_letter).collect()),
        Some(axes) if axes.len() == shape.len() => Ok(axes.iter().collect()),
        Some(axes) => Err(Fault::Misused(
            format!("there are {} axes in {axes}, but the array of shape {shape:?} has {}", axes.len(), shape.len())
                .into(),
            "give one letter of T, Z, C, Y, X, S for each axis".into(),
        )),
    }
}

/// Minimum number of rows and slices of an array whose two to four columns are probably the samples of a color.
const MIN_ROWS: usize = 16;

/// Returns the note that the last axis of an array whose axes were chosen by its rank may be a color axis, as in arrays of
/// pictures; `None` if its shape T, Z, C, Y, X, S looks like that of a stack.
pub(crate) fn color_axis_note(&[_, z, _, y, x, _]: &[usize; 6]) -> Option<String> {
    let is_color = matches!(x, 2..=4) && y.min(z) >= MIN_ROWS;
    is_color.then(|| {
        format!(
            "the array states no axes, so its last axis of length {x} is read as X: if it holds colors or channels, give \
             axes that end in YXC"
        )
    })
}

/// Returns the note that axes before Z, Y and X were chosen by the rank of an array of the shape T, Z, C, Y, X, S; `None` for a
/// stack of one channel and one time point.
pub(crate) fn guessed_axes_note(rank: usize, &[t, _, c, ..]: &[usize; 6]) -> Option<String> {
    if t <= 1 && c <= 1 {
        return None;
    }
    let order = if rank > 4 { "TCZYX" } else { "CZYX" };
    Some(format!(
        "the array states no axes, so they are read in the order {order}: if theirs is another one, give the axes"
    ))
}

impl From<HeaderError> for Fault {
    fn from(error: HeaderError) -> Self {
        let next_step = match error {
            HeaderError::Version(..) => "save it in version 1, 2 or 3 of the format",
            HeaderError::Records => "save a plain array of numbers",
            HeaderError::SampleType(..) => "save it as integers of 8 to 64 bits or floats of 16 to 64 bits",
            _ => return Fault::malformed(error.to_string()),
        };
        Fault::unsupported(error.to_string(), next_step)
    }
}

/// Returns the sample type for NumPy's type; booleans are read as uint8.
pub(crate) fn dtype_for(sample: SampleType) -> DType {
    match sample {
        SampleType::Bool | SampleType::U8 => DType::U8,
        SampleType::U16 => DType::U16,
        SampleType::U32 => DType::U32,
        SampleType::U64 => DType::U64,
        SampleType::I8 => DType::I8,
        SampleType::I16 => DType::I16,
        SampleType::I32 => DType::I32,
        SampleType::I64 => DType::I64,
        SampleType::F16 => DType::F16,
        SampleType::F32 => DType::F32,
        SampleType::F64 => DType::F64,
    }
}

/// Returns the header of a little-endian, C-order array, padded as NumPy pads it.
pub(crate) fn header(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let sample = match dtype {
        DType::U8 => SampleType::U8,
        DType::I8 => SampleType::I8,
        DType::U16 => SampleType::U16,
        DType::U32 => SampleType::U32,
        DType::U64 => SampleType::U64,
        DType::I16 => SampleType::I16,
        DType::I32 => SampleType::I32,
        DType::I64 => SampleType::I64,
        DType::F16 => SampleType::F16,
        DType::F32 => SampleType::F32,
        DType::F64 => SampleType::F64,
    };
    npy::header_bytes(sample, shape)
}

//! NumPy's `.npy` format: reading of regions, and the header for writing.

use crate::{codec, error::Fault, huge, limits::Limits, meta::ByteOrder, source::Source};
use cytoscope_storage::npy::{self, HeaderError};
use cytoscope_volume::{Axes, Axis, DType, Region, Samples, element_count};

/// First bytes of every `.npy` file.
pub(crate) const MAGIC: &[u8] = npy::MAGIC;

/// An open `.npy` file.
#[derive(Debug)]
pub(crate) struct Npy {
    source: Source,
    pub order: ByteOrder,
    pub dtype: DType,
    data_at: u64,
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// Strides in samples along T, Z, C, Y, X, S.
    strides: [usize; 6],
}

impl Npy {
    /// Reads the header; `axes` are the array's axes. Without them, the axes are chosen by the array's rank.
    pub fn open(source: Source, limits: &Limits, axes: Option<&Axes>) -> Result<Self, Fault> {
        let mut head = [0u8; npy::PREFIX_BYTES];
        let have = source.len().min(head.len() as u64) as usize;
        let head = head.get_mut(..have).unwrap_or_default();
        source.read_at(0, head)?;
        let prefix = npy::prefix(head).map_err(header_fault)?;
        let (at, len) = (prefix.header_at as u64, prefix.header_bytes as u64);
        if len > limits.max_metadata_bytes {
            return Err(Fault::over("the .npy header", len, "max_metadata_bytes", limits.max_metadata_bytes));
        }
        let text = source.read_vec(at, prefix.header_bytes)?;
        let header = npy::parse(prefix.version, &text).map_err(header_fault)?;
        let dtype = sample_type(&header.code)?;
        let order = if header.big_endian { ByteOrder::Big } else { ByteOrder::Little };
        let shape = header.shape;
        // With at most one axis longer than 1, C and Fortran order are the same.
        if header.fortran_order && shape.iter().filter(|n| **n > 1).count() > 1 {
            return Err(Fault::unsupported("the array is in Fortran order", "save it with numpy.ascontiguousarray"));
        }
        let data_at = at + len;
        let bytes = element_count(&shape).ok().and_then(|n| n.checked_mul(dtype.size_bytes()));
        if !bytes.is_some_and(|n| source.holds(data_at, n as u64)) {
            return Err(Fault::malformed(format!(
                "an array of shape {shape:?} does not fit into the file's {} bytes of data",
                source.len().saturating_sub(data_at)
            )));
        }
        let axes = axes_of_array(&shape, axes)?;
        let mut strides = [0; 6];
        let mut shape_full = [1; 6];
        let mut step = 1;
        for (axis, n) in axes.iter().zip(&shape).rev() {
            if let Some(i) = Axis::CANONICAL.iter().position(|a| a == axis) {
                shape_full[i] = *n;
                strides[i] = step;
            }
            step *= n;
        }
        Ok(Self { source, order, dtype, data_at, shape_full, strides })
    }

    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape.
    pub fn read(&self, region: &Region) -> Result<Samples, Fault> {
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let mut samples = huge::zeros(self.dtype, len);
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return Ok(samples);
        };
        let bytes = self.dtype.size_bytes();
        // The axes from `run` on are contiguous in the file and are read at once.
        let mut run = 6;
        let mut piece = 1;
        while run > 0 {
            let axis = run - 1;
            if size[axis] > 1 && self.strides[axis] != piece {
                break;
            }
            run = axis;
            piece *= size[axis];
            if size[axis] != self.shape_full[axis] {
                break;
            }
        }
        let mut index = [0usize; 6];
        for out in samples.as_bytes_mut().chunks_exact_mut(piece.max(1) * bytes) {
            let at: usize = (0..6).map(|i| (start[i] + index[i]) * self.strides[i]).sum();
            self.source.read_at(self.data_at + (at * bytes) as u64, out)?;
            for i in (0..run).rev() {
                index[i] += 1;
                if index[i] < size[i] {
                    break;
                }
                index[i] = 0;
            }
        }
        codec::to_native(self.order, bytes, samples.as_bytes_mut());
        Ok(samples)
    }
}

fn axes_of_array(shape: &[usize], axes: Option<&Axes>) -> Result<Vec<Axis>, Fault> {
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

fn header_fault(error: HeaderError) -> Fault {
    match error {
        HeaderError::Version(..) => Fault::unsupported(error.to_string(), "save it in version 1, 2 or 3 of the format"),
        HeaderError::Records => Fault::unsupported(error.to_string(), "save a plain array of numbers"),
        _ => Fault::malformed(error.to_string()),
    }
}

fn sample_type(code: &str) -> Result<DType, Fault> {
    Ok(match code {
        "b1" | "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        _ => {
            return Err(Fault::unsupported(
                format!("its sample type {code:?} is not supported"),
                "save it as integers of 8 to 64 bits or floats of 16 to 64 bits",
            ));
        }
    })
}

/// The header of a little-endian, C-order array, padded in the same way as by NumPy.
pub(crate) fn header(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let code = match dtype {
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
    };
    let mut extents: String = shape.iter().map(|n| format!("{n}, ")).collect();
    if shape.len() > 1 {
        extents.truncate(extents.len() - 2);
    } else {
        extents.truncate(extents.trim_end().len());
    }
    let mut text = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({extents}), }}");
    let padding = 64 - (MAGIC.len() + 4 + text.len() + 1) % 64;
    text.extend(std::iter::repeat_n(' ', padding % 64));
    text.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

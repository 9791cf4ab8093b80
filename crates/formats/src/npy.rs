//! NumPy's `.npy`: reading by region, and the header written.

use crate::{codec, error::Fault, huge, limits::Limits, meta::ByteOrder, source::Source};
use cytoscope_volume::{Axes, Axis, DType, Region, Samples, element_count};

/// First bytes of every `.npy` file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// An opened `.npy` file.
#[derive(Debug)]
pub(crate) struct Npy {
    source: Source,
    pub order: ByteOrder,
    pub dtype: DType,
    data_at: u64,
    /// Extents along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// Step in samples along T, Z, C, Y, X, S.
    strides: [usize; 6],
}

impl Npy {
    /// Reads the header; `axes` names the array's axes, else they are guessed from its rank.
    pub fn open(source: Source, limits: &Limits, axes: Option<&Axes>) -> Result<Self, Fault> {
        let mut head = [0u8; 12];
        let have = source.len().min(12) as usize;
        source.read_at(0, head.get_mut(..have).unwrap_or_default())?;
        if !head.starts_with(MAGIC) {
            return Err(Fault::malformed("the file does not begin as an .npy file does"));
        }
        let (at, len) = match head[6] {
            1 => (10u64, u64::from(u16::from_le_bytes([head[8], head[9]]))),
            2 | 3 => (12, u64::from(u32::from_le_bytes([head[8], head[9], head[10], head[11]]))),
            v => return Err(Fault::unsupported(format!("its .npy version is {v}"), "save it with a version 1 to 3")),
        };
        if len > limits.max_metadata_bytes {
            return Err(Fault::over("the .npy header", len, "max_metadata_bytes", limits.max_metadata_bytes));
        }
        let text = String::from_utf8_lossy(&source.read_vec(at, len as usize)?).into_owned();
        let descr = quoted(&text, "descr").ok_or_else(|| {
            Fault::unsupported("its samples are records or objects, not numbers", "save a plain array of numbers")
        })?;
        let (order, dtype) = parse_descr(&descr)?;
        if text.contains("'fortran_order': True") {
            return Err(Fault::unsupported("the array is in Fortran order", "save it with numpy.ascontiguousarray"));
        }
        let shape = parse_shape(&text).ok_or_else(|| Fault::malformed("the .npy header has no shape"))?;
        let data_at = at + len;
        let bytes = element_count(&shape).ok().and_then(|n| n.checked_mul(dtype.size_bytes()));
        if !bytes.is_some_and(|n| source.holds(data_at, n as u64)) {
            return Err(Fault::malformed(format!(
                "an array of shape {shape:?} does not fit into its {} bytes",
                source.len().saturating_sub(data_at)
            )));
        }
        let axes = name_axes(&shape, axes)?;
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

    /// The samples of a region along T, Z, C, Y, X, S, already checked against the shape.
    pub fn read(&self, region: &Region) -> Result<Samples, Fault> {
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let mut samples = huge::zeros(self.dtype, len);
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return Ok(samples);
        };
        let bytes = self.dtype.size_bytes();
        // Axes from `run` on are read in one piece: whole inner axes, in the array's own order.
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

fn name_axes(shape: &[usize], axes: Option<&Axes>) -> Result<Vec<Axis>, Fault> {
    let guess = match shape.len() {
        0 => "",
        1 => "X",
        2 => "YX",
        3 => "ZYX",
        4 => "CZYX",
        5 => "TCZYX",
        n => return Err(Fault::unsupported(format!("the array has {n} axes"), "save it with at most 5")),
    };
    match axes {
        None => Ok(guess.chars().filter_map(Axis::from_letter).collect()),
        Some(axes) if axes.len() == shape.len() => Ok(axes.iter().collect()),
        Some(axes) => Err(Fault::Misused(
            format!("the axes {axes} are {} and the array of shape {shape:?} has {}", axes.len(), shape.len()).into(),
            "give one letter of T, Z, C, Y, X, S for each axis".into(),
        )),
    }
}

fn quoted(text: &str, key: &str) -> Option<String> {
    let rest = text.split_once(&format!("'{key}'"))?.1.trim_start().strip_prefix(':')?.trim_start();
    Some(rest.strip_prefix('\'')?.split_once('\'')?.0.to_owned())
}

fn parse_shape(text: &str) -> Option<Vec<usize>> {
    let rest = text.split_once("'shape'")?.1.split_once('(')?.1.split_once(')')?.0;
    rest.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().ok()).collect()
}

fn parse_descr(descr: &str) -> Result<(ByteOrder, DType), Fault> {
    let (order, code) = match descr.split_at_checked(1) {
        Some(("<", code)) => (ByteOrder::Little, code),
        Some((">", code)) => (ByteOrder::Big, code),
        Some(("|", code)) => (ByteOrder::NATIVE, code),
        _ => (ByteOrder::NATIVE, descr),
    };
    let dtype = match code {
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
                format!("its samples are of type '{descr}'"),
                "save integers of 8 to 64 bits or floats of 16 to 64",
            ));
        }
    };
    Ok((order, dtype))
}

/// The header of a little-endian, C-order array, padded as NumPy pads it.
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

//! Stored tensors: reading from the model file or an external file, and writing.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};
use std::sync::Arc;

use half::{bf16, f16};
use sha1::{Digest, Sha1};

use super::decode::TensorProto;
use super::wire::Writer;
use cytoscope_graph::{
    ElementType, GraphError, GraphLimits, Result, Scalar, Tensor, TensorData, check_limit, checked_elements,
};
use cytoscope_storage::read::{Refusal, open_inside, refusal};

/// Returns a whole file of external data by its location, which is relative to the model; fails with the problem, such as
/// "is missing".
pub type ReadExternal<'a> = &'a dyn Fn(&str) -> std::result::Result<Arc<Vec<u8>>, String>;

/// Location of tensor data outside the model file.
#[derive(Clone, Copy)]
pub(crate) enum ExternalData<'a> {
    /// Nowhere: external data are refused.
    Refused,
    /// Files in the folder of the model file, to which locations are relative.
    Folder(&'a Path),
    /// Files that are not on the disk, such as those in a zip.
    Files(ReadExternal<'a>),
}

impl ExternalData<'_> {
    /// Returns the SHA-1 of an external file, as hexadecimal digits; that of no bytes if external data are refused.
    pub(crate) fn sha1(&self, location: &str) -> Result<String> {
        let mut digest = Sha1::new();
        match *self {
            Self::Refused => {}
            Self::Files(read) => {
                let problem = |problem| GraphError::malformed(format!("external file \"{location}\" {problem}"));
                digest.update(read(location).map_err(problem)?.as_slice());
            }
            Self::Folder(base) => {
                let io = |source| GraphError::Io { path: base.join(location), source };
                let mut file = open_inside(base, Path::new(location)).map_err(io)?;
                std::io::copy(&mut file, &mut digest).map_err(io)?;
            }
        }
        Ok(format!("{:x}", digest.finalize()))
    }

    fn read(&self, proto: &TensorProto<'_>, bytes: usize, limits: &GraphLimits) -> Result<Vec<u8>> {
        let name = proto.name;
        let find = |key: &str| proto.external.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let number = |key: &str| {
            find(key).map(str::parse::<u64>).transpose().map_err(|_| {
                GraphError::malformed(format!("external data of tensor \"{name}\": {key} is not a number"))
            })
        };
        let location = find("location")
            .ok_or_else(|| GraphError::malformed(format!("external data of tensor \"{name}\" has no location")))?;
        let outside = || {
            GraphError::malformed(format!(
                "external data of tensor \"{name}\" is outside the model's folder: \"{location}\"; export the \
                 model again, with its data in the folder of the .onnx file"
            ))
        };
        let relative = Path::new(location);
        let inside = |c| matches!(c, Component::Normal(_) | Component::CurDir);
        if location.is_empty() || !relative.components().all(inside) {
            return Err(outside());
        }
        let offset = number("offset")?.unwrap_or(0);
        if number("length")?.is_some_and(|n| n != bytes as u64) {
            return Err(GraphError::malformed(format!("external data of tensor \"{name}\" is not {bytes} bytes long")));
        }
        let too_short =
            || GraphError::malformed(format!("external data of tensor \"{name}\" is shorter than {bytes} bytes"));
        let check_size = |size: u64| {
            check_limit("model_bytes", format!("external file \"{location}\""), size.into(), limits.model_bytes.into())
        };
        let base = match *self {
            Self::Refused => {
                let found = "external data without a folder";
                return Err(GraphError::misused(format!("tensor \"{name}\""), found, "the model's folder"));
            }
            Self::Files(read) => {
                let file = read(location).map_err(|problem| {
                    GraphError::malformed(format!("external data of tensor \"{name}\": \"{location}\" {problem}"))
                })?;
                check_size(file.len() as u64)?;
                let part = usize::try_from(offset).ok().and_then(|offset| file.get(offset..)?.get(..bytes));
                return part.map(<[u8]>::to_vec).ok_or_else(too_short);
            }
            Self::Folder(base) => base,
        };
        let path = base.join(relative);
        let io = |source| GraphError::Io { path: path.clone(), source };
        // Links may still lead out of the folder.
        let mut file = open_inside(base, relative).map_err(|e| match refusal(&e) {
            Some(Refusal::Outside(_) | Refusal::NotRelative(_)) => outside(),
            _ => io(e),
        })?;
        let size = file.metadata().map_err(io)?.len();
        check_size(size)?;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > size) {
            return Err(too_short());
        }
        file.seek(SeekFrom::Start(offset)).map_err(io)?;
        let mut data = vec![0; bytes];
        file.read_exact(&mut data).map_err(io)?;
        Ok(data)
    }
}

fn from_bytes<T: Scalar, const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> TensorData {
    T::wrap(bytes.chunks_exact(N).map(|b| f(b.try_into().unwrap_or([0; N]))).collect())
}

fn raw_data(dtype: ElementType, bytes: &[u8]) -> TensorData {
    match dtype {
        ElementType::F32 => from_bytes(bytes, f32::from_le_bytes),
        ElementType::F64 => from_bytes(bytes, f64::from_le_bytes),
        ElementType::F16 => from_bytes(bytes, f16::from_le_bytes),
        ElementType::BF16 => from_bytes(bytes, bf16::from_le_bytes),
        ElementType::I8 => from_bytes(bytes, i8::from_le_bytes),
        ElementType::U8 => TensorData::U8(bytes.to_vec()),
        ElementType::I16 => from_bytes(bytes, i16::from_le_bytes),
        ElementType::U16 => from_bytes(bytes, u16::from_le_bytes),
        ElementType::I32 => from_bytes(bytes, i32::from_le_bytes),
        ElementType::U32 => from_bytes(bytes, u32::from_le_bytes),
        ElementType::I64 => from_bytes(bytes, i64::from_le_bytes),
        ElementType::U64 => from_bytes(bytes, u64::from_le_bytes),
        ElementType::Bool => from_bytes(bytes, |[b]: [u8; 1]| b != 0),
    }
}

/// Returns the values of a typed field; `ints` holds both 32- and 64-bit fields. `None` if a value is out of the range
/// of the type.
fn typed_data(dtype: ElementType, proto: TensorProto<'_>) -> Option<TensorData> {
    let TensorProto { floats, ints, doubles, uints, .. } = proto;
    fn map<T: Scalar>(v: &[i64], f: impl Fn(i64) -> T) -> TensorData {
        T::wrap(v.iter().map(|&x| f(x)).collect())
    }
    /// Protobuf reads a 32-bit field from the low 32 bits.
    fn narrow<T: Scalar + TryFrom<i32>>(v: &[i64]) -> Option<TensorData> {
        Some(T::wrap(v.iter().map(|&x| T::try_from(x as i32).ok()).collect::<Option<Vec<T>>>()?))
    }
    fn bits(v: &[i64]) -> Option<Vec<u16>> {
        v.iter().map(|&x| u16::try_from(x as i32).ok()).collect()
    }
    Some(match dtype {
        ElementType::F32 => TensorData::F32(floats),
        ElementType::F64 => TensorData::F64(doubles),
        ElementType::F16 => TensorData::F16(bits(&ints)?.into_iter().map(f16::from_bits).collect()),
        ElementType::BF16 => TensorData::BF16(bits(&ints)?.into_iter().map(bf16::from_bits).collect()),
        ElementType::I8 => narrow::<i8>(&ints)?,
        ElementType::U8 => narrow::<u8>(&ints)?,
        ElementType::I16 => narrow::<i16>(&ints)?,
        ElementType::U16 => narrow::<u16>(&ints)?,
        ElementType::I32 => map(&ints, |x| x as i32),
        ElementType::U32 => {
            TensorData::U32(uints.into_iter().map(|x| u32::try_from(x).ok()).collect::<Option<Vec<u32>>>()?)
        }
        ElementType::I64 => TensorData::I64(ints),
        ElementType::U64 => map(&uints, |x| x as u64),
        ElementType::Bool => map(&ints, |x| x != 0),
    })
}

/// Reads a stored tensor; nothing is allocated before its declared size has been compared with the available data.
pub(crate) fn tensor_from_proto(
    proto: TensorProto<'_>,
    external: &ExternalData<'_>,
    limits: &GraphLimits,
) -> Result<Tensor> {
    let name = proto.name.to_owned();
    let dtype = ElementType::from_onnx_code(proto.data_type).filter(|_| !proto.has_strings).ok_or_else(|| {
        GraphError::unsupported(format!("tensor \"{name}\" has the unsupported ONNX element type {}", proto.data_type))
    })?;
    check_limit("rank", format!("tensor \"{name}\""), proto.dims.len() as u128, limits.rank as u128)?;
    let shape: Vec<usize> = proto
        .dims
        .iter()
        .map(|&n| usize::try_from(n))
        .collect::<Result<_, _>>()
        .map_err(|_| GraphError::malformed(format!("tensor \"{name}\" has a negative length: {:?}", proto.dims)))?;
    let what = format!("tensor \"{name}\"");
    let elements = checked_elements(&shape, "tensor_elements", &what, limits.tensor_elements)?;
    let bytes = elements.saturating_mul(dtype.size_bytes());
    let wrong = |got: usize, unit: &str| {
        GraphError::malformed(format!(
            "tensor \"{name}\" of shape {shape:?} has {got} {unit}, which does not match the shape"
        ))
    };
    let data = if proto.is_external {
        raw_data(dtype, &external.read(&proto, bytes, limits)?)
    } else if let Some(raw) = proto.raw {
        if raw.len() != bytes {
            return Err(wrong(raw.len(), "bytes"));
        }
        raw_data(dtype, raw)
    } else {
        typed_data(dtype, proto).ok_or_else(|| {
            GraphError::malformed(format!(
                "tensor \"{name}\" has a value out of the range of its type {}",
                dtype.name()
            ))
        })?
    };
    if data.len() != elements {
        return Err(wrong(data.len(), "elements"));
    }
    Tensor::from_data(shape, data)
}

/// Reads a tensor and its name from the bytes of a `TensorProto`, the format of ONNX's test data.
///
/// # Errors
/// Malformed, unsupported (strings, 4-bit and 8-bit floats), or over a limit; external data is refused.
pub fn parse_tensor(bytes: &[u8], limits: &GraphLimits) -> Result<(String, Tensor)> {
    let proto = TensorProto::decode(bytes)?;
    let name = proto.name.to_owned();
    Ok((name, tensor_from_proto(proto, &ExternalData::Refused, limits)?))
}

/// Writes `tensor` as a `TensorProto` with raw data.
pub(crate) fn write_tensor(writer: &mut Writer, name: &str, tensor: &Tensor) {
    for &n in tensor.shape() {
        writer.int(1, n as i64);
    }
    writer.int(2, tensor.dtype().onnx_code().into());
    if !name.is_empty() {
        writer.text(8, name);
    }
    writer.bytes(9, &little_endian(tensor.data()));
}

/// Returns the elements as little-endian bytes, bools as 0 and 1.
pub(crate) fn little_endian(data: &TensorData) -> Vec<u8> {
    macro_rules! flat {
        ($v:expr) => {
            $v.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
    }
    match data {
        TensorData::F32(v) => flat!(v),
        TensorData::F64(v) => flat!(v),
        TensorData::F16(v) => flat!(v),
        TensorData::BF16(v) => flat!(v),
        TensorData::I8(v) => flat!(v),
        TensorData::U8(v) => v.clone(),
        TensorData::I16(v) => flat!(v),
        TensorData::U16(v) => flat!(v),
        TensorData::I32(v) => flat!(v),
        TensorData::U32(v) => flat!(v),
        TensorData::I64(v) => flat!(v),
        TensorData::U64(v) => flat!(v),
        TensorData::Bool(v) => v.iter().map(|&x| u8::from(x)).collect(),
    }
}

//! NumPy's `.npy` format for tensors of any rank: versions 1 to 3, little- and big-endian, C and Fortran order.
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use crate::error::{GraphError, Result};
use crate::{ElementType, Tensor, TensorData};
use cytoscope_storage::npy::{self, SampleType};

/// Maximum number of axes of an array.
const MAX_RANK: usize = 32;

fn bad(what: impl Into<String>) -> GraphError {
    GraphError::malformed(format!("npy: {}", what.into()))
}

/// Reads an array from the bytes of a `.npy` file.
///
/// # Errors
/// [`GraphError`] if the bytes are not a valid array, its element type is unsupported, or the data is shorter than its
/// shape requires.
pub fn read(bytes: &[u8]) -> Result<Tensor> {
    let (layout, body) = npy::parse_array(bytes).map_err(|e| bad(e.to_string()))?;
    let npy::Header { big_endian: big, fortran_order: fortran, shape, .. } = layout.header;
    if shape.len() > MAX_RANK {
        return Err(bad(format!("{} axes, more than the limit of {MAX_RANK}", shape.len())));
    }
    let dtype = element(layout.sample);
    if !fortran || shape.len() < 2 {
        return Tensor::from_data(shape, decode(dtype, big, body));
    }
    let width = dtype.size_bytes();
    let mut ordered = vec![0u8; body.len()];
    let mut index = vec![0usize; shape.len()];
    for target in ordered.chunks_exact_mut(width) {
        let mut from = 0;
        for (i, n) in index.iter().zip(&shape).rev() {
            from = from * n + i;
        }
        target.copy_from_slice(&body[from * width..(from + 1) * width]);
        for (i, n) in index.iter_mut().zip(&shape).rev() {
            *i += 1;
            if *i < *n {
                break;
            }
            *i = 0;
        }
    }
    Tensor::from_data(shape, decode(dtype, big, &ordered))
}

fn element(sample: SampleType) -> ElementType {
    match sample {
        SampleType::F16 => ElementType::F16,
        SampleType::F32 => ElementType::F32,
        SampleType::F64 => ElementType::F64,
        SampleType::I8 => ElementType::I8,
        SampleType::I16 => ElementType::I16,
        SampleType::I32 => ElementType::I32,
        SampleType::I64 => ElementType::I64,
        SampleType::U8 => ElementType::U8,
        SampleType::U16 => ElementType::U16,
        SampleType::U32 => ElementType::U32,
        SampleType::U64 => ElementType::U64,
        SampleType::Bool => ElementType::Bool,
    }
}

fn decode(dtype: ElementType, big: bool, bytes: &[u8]) -> TensorData {
    macro_rules! numbers {
        ($t:ty) => {
            bytes
                .chunks_exact(size_of::<$t>())
                .map(|c| {
                    let mut raw = [0u8; size_of::<$t>()];
                    raw.copy_from_slice(c);
                    if big { <$t>::from_be_bytes(raw) } else { <$t>::from_le_bytes(raw) }
                })
                .collect()
        };
    }
    match dtype {
        ElementType::F16 | ElementType::BF16 => TensorData::F16(numbers!(half::f16)),
        ElementType::F32 => TensorData::F32(numbers!(f32)),
        ElementType::F64 => TensorData::F64(numbers!(f64)),
        ElementType::I8 => TensorData::I8(numbers!(i8)),
        ElementType::I16 => TensorData::I16(numbers!(i16)),
        ElementType::I32 => TensorData::I32(numbers!(i32)),
        ElementType::I64 => TensorData::I64(numbers!(i64)),
        ElementType::U8 => TensorData::U8(bytes.to_vec()),
        ElementType::U16 => TensorData::U16(numbers!(u16)),
        ElementType::U32 => TensorData::U32(numbers!(u32)),
        ElementType::U64 => TensorData::U64(numbers!(u64)),
        ElementType::Bool => TensorData::Bool(bytes.iter().map(|b| *b != 0).collect()),
    }
}

/// Writes an array as `.npy`: version 1, little-endian, C order. `bfloat16`, which NumPy lacks, becomes 32-bit float.
pub fn write(tensor: &Tensor) -> Vec<u8> {
    macro_rules! bytes {
        ($v:expr) => {
            $v.iter().flat_map(|x| x.to_le_bytes()).collect()
        };
    }
    let (sample, body): (SampleType, Vec<u8>) = match tensor.data() {
        TensorData::F16(v) => (SampleType::F16, bytes!(v)),
        TensorData::BF16(v) => (SampleType::F32, v.iter().flat_map(|x| x.to_f32().to_le_bytes()).collect()),
        TensorData::F32(v) => (SampleType::F32, bytes!(v)),
        TensorData::F64(v) => (SampleType::F64, bytes!(v)),
        TensorData::I8(v) => (SampleType::I8, bytes!(v)),
        TensorData::I16(v) => (SampleType::I16, bytes!(v)),
        TensorData::I32(v) => (SampleType::I32, bytes!(v)),
        TensorData::I64(v) => (SampleType::I64, bytes!(v)),
        TensorData::U8(v) => (SampleType::U8, v.clone()),
        TensorData::U16(v) => (SampleType::U16, bytes!(v)),
        TensorData::U32(v) => (SampleType::U32, bytes!(v)),
        TensorData::U64(v) => (SampleType::U64, bytes!(v)),
        TensorData::Bool(v) => (SampleType::Bool, v.iter().map(|b| u8::from(*b)).collect()),
    };
    let mut out = npy::header_bytes(sample, tensor.shape());
    out.extend(body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_round_trip_and_fortran_order_is_converted() {
        let tensor = Tensor::new(vec![2, 3], vec![1i16, 2, 3, 4, 5, -6]).unwrap();
        let bytes = write(&tensor);
        assert_eq!(bytes.len() % 64, 12);
        assert_eq!(read(&bytes).unwrap(), tensor);
        // numpy.save of the same array in Fortran order.
        for text in [
            "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }",
            "{'descr':'>i2','fortran_order':True,'shape':(2,3)}",
            "{\"shape\" : (2,\t3), \"fortran_order\" :\n True, \"descr\" : \">i2\"}",
        ] {
            let mut fortran = b"\x93NUMPY\x01\x00".to_vec();
            fortran.extend((text.len() as u16).to_le_bytes());
            fortran.extend(text.as_bytes());
            fortran.extend([1i16, 4, 2, 5, 3, -6].iter().flat_map(|v| v.to_be_bytes()));
            assert_eq!(read(&fortran).unwrap(), tensor, "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let mut bytes = write(&Tensor::vector(vec![1.0f32, 2.0]));
        bytes.truncate(bytes.len() - 1);
        assert!(read(&bytes).is_err());
        assert!(read(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").is_err());
        let text =
            b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9999999999), }";
        assert!(read(text).is_err());
    }
}

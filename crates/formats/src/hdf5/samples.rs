//! Samples of datasets: their types, and their bytes in native order.

use crate::{error::Fault, meta::ByteOrder};
use cytoscope_volume::DType;
use hdf5_reader::{
    Dataset, Datatype, H5Type, SliceInfo,
    error::{ByteOrder as Hdf5Order, Error, Result as Hdf5Result},
};

/// Position of the number of exponent bits in the description of a float.
const EXPONENT_BITS_AT: usize = 13;

/// The bytes of one sample, in native order.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
struct Raw<const N: usize>([u8; N]);

impl<const N: usize> H5Type for Raw<N> {
    fn hdf5_type() -> Datatype {
        let byte_order = match ByteOrder::NATIVE {
            ByteOrder::Little => Hdf5Order::LittleEndian,
            ByteOrder::Big => Hdf5Order::BigEndian,
        };
        Datatype::FixedPoint { size: N as u8, signed: false, byte_order }
    }

    fn from_bytes(bytes: &[u8], stored: &Datatype) -> Hdf5Result<Self> {
        let Some(bytes) = bytes.first_chunk::<N>() else {
            return Err(Error::InvalidData("a sample is cut off".to_owned()));
        };
        Ok(native(*bytes, is_swapped(stored)))
    }

    fn element_size(_: &Datatype) -> usize {
        N
    }

    fn decode_vec(raw: &[u8], stored: &Datatype, count: usize) -> Option<Hdf5Result<Vec<Self>>> {
        let is_swapped = is_swapped(stored);
        let samples = raw.as_chunks::<N>().0.get(..count)?;
        Some(Ok(samples.iter().map(|sample| native(*sample, is_swapped)).collect()))
    }

    fn native_copy_compatible(stored: &Datatype) -> bool {
        !is_swapped(stored)
    }
}

fn native<const N: usize>(mut bytes: [u8; N], is_swapped: bool) -> Raw<N> {
    if is_swapped {
        bytes.reverse();
    }
    Raw(bytes)
}

fn is_swapped(stored: &Datatype) -> bool {
    order(stored) != ByteOrder::NATIVE
}

/// The byte order of samples.
fn order(stored: &Datatype) -> ByteOrder {
    match stored {
        Datatype::FixedPoint { byte_order: Hdf5Order::BigEndian, .. }
        | Datatype::FloatingPoint { byte_order: Hdf5Order::BigEndian, .. } => ByteOrder::Big,
        Datatype::Enum { base, .. } => order(base),
        _ => ByteOrder::Little,
    }
}

/// The type of the samples of a dataset and their byte order; `None` if they are not numbers that are supported. Booleans, which
/// h5py stores as an enumeration, are read as `uint8`.
pub(super) fn type_of(stored: &Datatype) -> Option<(DType, ByteOrder)> {
    let dtype = match stored {
        Datatype::FixedPoint { size: 1, signed: false, .. } => DType::U8,
        Datatype::FixedPoint { size: 2, signed: false, .. } => DType::U16,
        Datatype::FixedPoint { size: 4, signed: false, .. } => DType::U32,
        Datatype::FixedPoint { size: 8, signed: false, .. } => DType::U64,
        Datatype::FixedPoint { size: 1, signed: true, .. } => DType::I8,
        Datatype::FixedPoint { size: 2, signed: true, .. } => DType::I16,
        Datatype::FixedPoint { size: 4, signed: true, .. } => DType::I32,
        Datatype::FixedPoint { size: 8, signed: true, .. } => DType::I64,
        Datatype::FloatingPoint { size: 2, .. } => DType::F16,
        Datatype::FloatingPoint { size: 4, .. } => DType::F32,
        Datatype::FloatingPoint { size: 8, .. } => DType::F64,
        Datatype::Enum { base, .. } if matches!(**base, Datatype::FixedPoint { size: 1, .. }) => DType::U8,
        _ => return None,
    };
    Some((dtype, order(stored)))
}

/// Whether the samples of a dataset are floats of another kind than those of IEEE 754, such as `bfloat16`.
pub(super) fn is_odd_float(dataset: &Dataset) -> bool {
    let expected = match dataset.dtype() {
        Datatype::FloatingPoint { size: 2, .. } => 5,
        Datatype::FloatingPoint { size: 4, .. } => 8,
        Datatype::FloatingPoint { size: 8, .. } => 11,
        _ => return false,
    };
    dataset.raw_datatype().is_ok_and(|described| described.get(EXPONENT_BITS_AT).is_some_and(|bits| *bits != expected))
}

/// Reads a box of a dataset whose samples have `sample_bytes` bytes, as bytes in native order.
pub(super) fn read(dataset: &Dataset, selection: &SliceInfo, sample_bytes: usize) -> Result<Vec<u8>, Fault> {
    match sample_bytes {
        1 => read_as::<1>(dataset, selection),
        2 => read_as::<2>(dataset, selection),
        4 => read_as::<4>(dataset, selection),
        _ => read_as::<8>(dataset, selection),
    }
    .map_err(super::file::fault)
}

fn read_as<const N: usize>(dataset: &Dataset, selection: &SliceInfo) -> Hdf5Result<Vec<u8>> {
    let (samples, _) = dataset.read_slice::<Raw<N>>(selection)?.into_raw_vec_and_offset();
    let bytes: Vec<[u8; N]> = samples.into_iter().map(|sample| sample.0).collect();
    Ok(bytes.into_flattened())
}

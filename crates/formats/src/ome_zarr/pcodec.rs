//! PCodec: the samples of a chunk compressed as numbers of their type, as numcodecs and zarrs write them.

use cytoscope_volume::DType;
use half::f16;
use pco::FULL_BATCH_N;
use pco::data_types::Number;
use pco::standalone::{DecompressorItem, FileDecompressor};

/// Decodes samples of a type to at most `max_bytes` in little-endian byte order, or states why they cannot be decoded.
///
/// What the decoder allocates for itself does not depend on `max_bytes`, but is bounded by the format: dictionaries of at most
/// 2²⁵ numbers and windows of at most 2²⁵, which it fills only as far as the data reach.
pub(crate) fn decode(encoded: &[u8], dtype: DType, max_bytes: usize) -> Result<Vec<u8>, String> {
    match dtype {
        DType::U8 => numbers(encoded, max_bytes, u8::to_le_bytes),
        DType::U16 => numbers(encoded, max_bytes, u16::to_le_bytes),
        DType::U32 => numbers(encoded, max_bytes, u32::to_le_bytes),
        DType::U64 => numbers(encoded, max_bytes, u64::to_le_bytes),
        DType::I8 => numbers(encoded, max_bytes, i8::to_le_bytes),
        DType::I16 => numbers(encoded, max_bytes, i16::to_le_bytes),
        DType::I32 => numbers(encoded, max_bytes, i32::to_le_bytes),
        DType::I64 => numbers(encoded, max_bytes, i64::to_le_bytes),
        DType::F16 => numbers(encoded, max_bytes, f16::to_le_bytes),
        DType::F32 => numbers(encoded, max_bytes, f32::to_le_bytes),
        DType::F64 => numbers(encoded, max_bytes, f64::to_le_bytes),
    }
}

/// Decodes the numbers of all parts of the data. A part that states another type is refused by the decoder.
fn numbers<T: Number, const SIZE: usize>(
    encoded: &[u8],
    max_bytes: usize,
    to_bytes: impl Fn(T) -> [u8; SIZE],
) -> Result<Vec<u8>, String> {
    let (file, mut rest) = FileDecompressor::new(encoded).map_err(|e| e.to_string())?;
    let mut batch = [T::default(); FULL_BATCH_N];
    let mut out = Vec::new();
    loop {
        let mut part = match file.chunk_decompressor::<T, &[u8]>(rest).map_err(|e| e.to_string())? {
            DecompressorItem::Chunk(part) => part,
            DecompressorItem::EndOfData(_) => return Ok(out),
        };
        let part_bytes = part.n().saturating_mul(SIZE);
        if part_bytes > max_bytes.saturating_sub(out.len()) {
            return Err(format!("it decodes to more than {max_bytes} bytes"));
        }
        out.reserve(part_bytes);
        let mut is_finished = false;
        while !is_finished {
            let progress = part.read(&mut batch).map_err(|e| e.to_string())?;
            for number in batch.iter().take(progress.n_processed) {
                out.extend_from_slice(&to_bytes(*number));
            }
            is_finished = progress.finished;
        }
        rest = part.into_src();
    }
}

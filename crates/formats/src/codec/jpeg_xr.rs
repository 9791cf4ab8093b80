//! JPEG XR images (ITU-T T.832): strips and tiles of TIFF, subblocks of CZI.

use super::{to_native, too_short};
use crate::{error::Fault, meta::ByteOrder, tiff::page::Layout};
use cytoscope_volume::DType;
use openreadout_jpegxr::{Info, SampleType};

/// Decodes a chunk of `rows` rows into `out`: interleaved samples in native byte order.
pub(super) fn decode(layout: &Layout, encoded: &[u8], rows: usize, out: &mut [u8]) -> Result<(), Fault> {
    let (width, samples) = (layout.chunk_width, layout.chunk_samples());
    let info = probe(encoded)?;
    // As for JPEG, the last strip may be stored with as many rows as the others, but no more.
    let heights = rows..=layout.chunk_height.max(rows);
    if !heights.contains(&(info.height as usize)) {
        return Err(Fault::malformed(format!(
            "a JPEG XR strip or tile has {} rows; {rows} were expected",
            info.height
        )));
    }
    let size = layout.dtype.size_bytes();
    let mut pixels = image(encoded, &info, [width, info.height as usize, samples], layout.dtype)?;
    if info.bgr {
        swap_red_and_blue(&mut pixels, samples, size);
    }
    let from = pixels.get(..out.len()).ok_or_else(|| too_short(layout.codec, pixels.len(), out.len()))?;
    out.copy_from_slice(from);
    to_native(ByteOrder::Little, size, out);
    Ok(())
}

/// Decodes an image of `[width, height, samples]` with blue before red, in little-endian byte order, as CZI stores colors.
pub(crate) fn decode_blue_first(encoded: &[u8], shape: [usize; 3], dtype: DType) -> Result<Vec<u8>, Fault> {
    let info = probe(encoded)?;
    let mut pixels = image(encoded, &info, shape, dtype)?;
    let [_, _, samples] = shape;
    if samples >= 3 && !info.bgr {
        swap_red_and_blue(&mut pixels, samples, dtype.size_bytes());
    }
    Ok(pixels)
}

/// Swaps the first with the third of the `samples` of each pixel.
fn swap_red_and_blue(pixels: &mut [u8], samples: usize, sample_bytes: usize) {
    for pixel in pixels.chunks_exact_mut(samples * sample_bytes) {
        if let Some((red, rest)) = pixel.split_at_mut_checked(2 * sample_bytes)
            && let (Some(red), Some(blue)) = (red.get_mut(..sample_bytes), rest.get_mut(..sample_bytes))
        {
            red.swap_with_slice(blue);
        }
    }
}

fn probe(encoded: &[u8]) -> Result<Info, Fault> {
    openreadout_jpegxr::probe(encoded).map_err(fault)
}

/// Decodes an image if its headers state the expected size and sample type, so that nothing larger is allocated.
fn image(encoded: &[u8], info: &Info, shape: [usize; 3], dtype: DType) -> Result<Vec<u8>, Fault> {
    let found = [info.width as usize, info.height as usize, info.channels as usize];
    let stored = dtype_for(info.sample);
    if found != shape || stored != Some(dtype) {
        let stored = stored.map_or_else(|| format!("{:?}", info.sample), |d| d.to_string());
        return Err(Fault::malformed(format!(
            "a JPEG XR image is {}x{} with {} samples of {stored}; {}x{} with {} of {dtype} were expected",
            found[0], found[1], found[2], shape[0], shape[1], shape[2]
        )));
    }
    let expected = shape.iter().try_fold(dtype.size_bytes(), |n, extent| n.checked_mul(*extent));
    // Some pixel formats have a sample that is left out after decoding.
    let limit =
        expected.and_then(|n| n.checked_mul(2)).ok_or_else(|| Fault::malformed("a JPEG XR image is too large"))?;
    openreadout_jpegxr::decode(encoded, limit).map(|image| image.data).map_err(fault)
}

fn dtype_for(sample: SampleType) -> Option<DType> {
    Some(match sample {
        SampleType::U8 => DType::U8,
        SampleType::U16 => DType::U16,
        SampleType::I16 => DType::I16,
        SampleType::F16 => DType::F16,
        SampleType::I32 => DType::I32,
        SampleType::F32 => DType::F32,
        _ => return None,
    })
}

fn fault(error: openreadout_jpegxr::Error) -> Fault {
    match error {
        openreadout_jpegxr::Error::Unsupported(feature) => {
            Fault::unsupported(format!("JPEG XR with {feature} is not supported"), crate::error::RESAVE)
        }
        other => Fault::malformed(other.to_string()),
    }
}

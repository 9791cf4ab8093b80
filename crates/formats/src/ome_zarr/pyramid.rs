//! Lower resolution levels: slices are halved along Y and X.

use cytoscope_volume::{Element, Samples};
use half::f16;
use rayon::prelude::*;

/// How a sample of the next level is made from up to 2 × 2 samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Downsampling {
    /// The mean; whole numbers are rounded.
    Mean,
    /// The first sample, so that no label occurs in the next level only.
    First,
}

impl Downsampling {
    /// Name of the method in the metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::First => "nearest",
        }
    }
}

/// Halves the height and the width of slices of `height` × `width` samples; odd extents are rounded up.
pub(crate) fn halve(samples: &Samples, height: usize, width: usize, method: Downsampling) -> Samples {
    let size = [height, width];
    match samples {
        Samples::U8(v) => Samples::U8(halve_slices(v, size, method, |m| m.round() as u8)),
        Samples::U16(v) => Samples::U16(halve_slices(v, size, method, |m| m.round() as u16)),
        Samples::U32(v) => Samples::U32(halve_slices(v, size, method, |m| m.round() as u32)),
        Samples::U64(v) => Samples::U64(halve_slices(v, size, method, |m| m.round() as u64)),
        Samples::I8(v) => Samples::I8(halve_slices(v, size, method, |m| m.round() as i8)),
        Samples::I16(v) => Samples::I16(halve_slices(v, size, method, |m| m.round() as i16)),
        Samples::I32(v) => Samples::I32(halve_slices(v, size, method, |m| m.round() as i32)),
        Samples::I64(v) => Samples::I64(halve_slices(v, size, method, |m| m.round() as i64)),
        Samples::F16(v) => Samples::F16(halve_slices(v, size, method, f16::from_f64)),
        Samples::F32(v) => Samples::F32(halve_slices(v, size, method, |m| m as f32)),
        Samples::F64(v) => Samples::F64(halve_slices(v, size, method, |m| m)),
    }
}

fn halve_slices<E: Element>(
    samples: &[E],
    [height, width]: [usize; 2],
    method: Downsampling,
    from_mean: impl Fn(f64) -> E + Sync,
) -> Vec<E> {
    let slices = samples.par_chunks_exact((height * width).max(1));
    let halved: Vec<Vec<E>> = slices.map(|slice| halve_slice(slice, width.max(1), method, &from_mean)).collect();
    halved.concat()
}

fn halve_slice<E: Element>(
    slice: &[E],
    width: usize,
    method: Downsampling,
    from_mean: &(impl Fn(f64) -> E + Sync),
) -> Vec<E> {
    let mut out = Vec::with_capacity(slice.len() / 4 + width);
    for rows in slice.chunks(2 * width) {
        let (top, bottom) = rows.split_at(width.min(rows.len()));
        if method == Downsampling::First {
            out.extend(top.iter().step_by(2));
            continue;
        }
        let mut below = bottom.chunks(2);
        for pair in top.chunks(2) {
            let next = below.next().unwrap_or_default();
            let sum: f64 = pair.iter().chain(next).map(|v| v.to_f64()).sum();
            out.push(from_mean(sum / (pair.len() + next.len()) as f64));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "a test")]
    use super::*;

    #[test]
    fn odd_slices_are_halved_by_the_mean_of_what_exists() {
        // Two slices of 3 × 3.
        let samples = Samples::U8(vec![0, 1, 10, 2, 4, 20, 6, 9, 255, 8, 8, 8, 8, 8, 8, 8, 8, 8]);
        let mean = halve(&samples, 3, 3, Downsampling::Mean);
        // (0 + 1 + 2 + 4) / 4 = 1.75, (10 + 20) / 2, (6 + 9) / 2 = 7.5.
        assert_eq!(mean, Samples::U8(vec![2, 15, 8, 255, 8, 8, 8, 8]));
        let first = halve(&samples, 3, 3, Downsampling::First);
        assert_eq!(first, Samples::U8(vec![0, 10, 6, 255, 8, 8, 8, 8]));
    }

    #[test]
    fn every_label_of_the_next_level_is_a_label_of_this_one() {
        let labels = Samples::U32((0..35).map(|i| if i % 3 == 0 { 70_000 + i } else { 0 }).collect());
        let Samples::U32(halved) = halve(&labels, 5, 7, Downsampling::First) else { panic!("the type changed") };
        assert_eq!(halved.len(), 12);
        assert!(halved.iter().all(|l| *l == 0 || (*l >= 70_000 && (*l - 70_000) % 3 == 0)), "{halved:?}");
        assert!(halved.iter().any(|l| *l != 0));
    }
}

//! NPY files: the readers of images and of tensors agree on every file that both take.
#![no_main]
use cytoscope_formats::{OpenOptions, open_bytes};
use libfuzzer_sys::fuzz_target;

/// Images are read whole only below this size.
const MOST_SAMPLES: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let tensor = cytoscope_graph::npy::read(data);
    // Axes in the order in which images are read, so that both give the samples in the file's order.
    let axes = tensor.as_ref().ok().and_then(|t| match t.shape().len() {
        4 => "ZCYX".parse().ok(),
        5 => "TZCYX".parse().ok(),
        _ => None,
    });
    let image = open_bytes(data.to_vec(), &OpenOptions { axes, ..OpenOptions::default() });
    let Ok(image) = image else { return };
    let samples = image.meta().shape_full.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    if image.meta().format != "npy" || samples.is_none_or(|n| n > MOST_SAMPLES) {
        return;
    }
    // What opens as an image is a tensor too; not the other way round (rank, Fortran order).
    let tensor = tensor.expect("an image that is no tensor");
    let Ok(array) = image.read_all() else { return };
    let (a, b) = (array.samples().to_f32(), tensor.to_f64_vec());
    assert_eq!(a.len(), b.len());
    if tensor.dtype() == cytoscope_graph::ElementType::Bool {
        return;
    }
    for (a, b) in a.iter().zip(&b) {
        // 64-bit integers are rounded once on one way and twice on the other.
        let b = *b as f32;
        let same = *a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= b.abs() * f32::EPSILON;
        assert!(same, "{a} {b}");
    }
});

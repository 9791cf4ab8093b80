//! NPY files: the image reader and the tensor reader agree on every file that both accept.
#![no_main]
use cytoscope_formats::{FileFormat, OpenOptions, open_bytes};
use libfuzzer_sys::fuzz_target;

/// Maximum size of images that are read completely.
const MAX_SAMPLES: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let tensor = cytoscope_graph::npy::read(data);
    // Axes in file order, so that both readers return the samples in the same order.
    let axes = tensor.as_ref().ok().and_then(|t| match t.shape().len() {
        4 => "ZCYX".parse().ok(),
        5 => "TZCYX".parse().ok(),
        _ => None,
    });
    let image = open_bytes(data.to_vec(), &OpenOptions { axes, ..OpenOptions::default() });
    let Ok(image) = image else { return };
    let samples = image.meta().shape_full.iter().try_fold(1usize, |n, s| n.checked_mul(*s));
    if image.meta().format != FileFormat::Npy || samples.is_none_or(|n| n > MAX_SAMPLES) {
        return;
    }
    // A file that opens as an image is also a tensor. The reverse is not true: an image has at most five axes.
    let tensor = tensor.expect("an image that is not a tensor");
    let Ok(array) = image.read_all() else { return };
    let (a, b) = (array.samples().to_f32(), tensor.to_f64_vec());
    assert_eq!(a.len(), b.len());
    if tensor.dtype() == cytoscope_graph::ElementType::Bool {
        return;
    }
    for (a, b) in a.iter().zip(&b) {
        // 64-bit integers are rounded once by one reader and twice by the other.
        let b = *b as f32;
        let same = *a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= b.abs() * f32::EPSILON;
        assert!(same, "{a} {b}");
    }
});

//! Shared test helpers: location of external data, and comparison of tensors.
#![allow(dead_code, unused_imports, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use cytoscope_graph::{Scalar, Tensor};
pub use cytoscope_testkit::{bench_models, noise, shared_folder as shared_data};

/// Returns the workspace folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the largest |a − b|; NaN equals NaN, and infinities equal themselves.
pub fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape(), "shapes");
    let pairs = a.to_f64_vec().into_iter().zip(b.to_f64_vec());
    pairs
        .map(|(x, y)| if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() })
        .fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

pub fn noise_tensor(seed: u64, shape: &[usize]) -> Tensor {
    Tensor::new(shape, noise(seed, shape.iter().product())).unwrap()
}

pub fn first<T: Scalar>(t: &Tensor) -> T {
    t.as_slice::<T>().unwrap()[0]
}

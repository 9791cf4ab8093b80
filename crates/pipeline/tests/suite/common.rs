//! Helpers of the pipeline's tests: external data, reproducible noise, small packages, Python.
#![allow(dead_code, unused_imports, reason = "unit tests of the crate use a part of it, too")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::{AxisKind, AxisSize, AxisSpec, PackageBuilder, Processing, TensorSpec, TensorType};
pub use cytoscope_testkit::{bench_models, noise, python_with, shared_folder as shared_data};
use serde_json::json;
use std::path::Path;

pub fn noise_tensor(seed: u64, shape: &[usize]) -> Tensor {
    Tensor::new(shape, noise(seed, shape.iter().product())).unwrap()
}

/// Returns the maximum of |a − b|, divided by the range of b; 0 for equal tensors.
pub fn relative_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths");
    let (low, high) = b.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let range = f64::from(high - low).max(f64::from(high.abs().max(low.abs())) * 1e-3).max(1e-12);
    cytoscope_testkit::largest_difference(a, b) / range
}

fn spec(id: &str, channels: usize, of: Option<&str>) -> TensorSpec {
    let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
    let space = |kind, name: &str| match of {
        None => axis(kind, AxisSize::Step { min: 1, step: 1 }),
        Some(tensor) => axis(
            kind,
            AxisSize::Reference { tensor: tensor.to_owned(), axis: name.to_owned(), scale: 1.0, offset: 0.0 },
        ),
    };
    TensorSpec {
        id: id.to_owned(),
        description: String::new(),
        dtype: TensorType::Float32,
        axes: vec![
            axis(AxisKind::Batch, AxisSize::Fixed(1)),
            axis(AxisKind::Channel, AxisSize::Fixed(channels)),
            space(AxisKind::Z, "z"),
            space(AxisKind::Y, "y"),
            space(AxisKind::X, "x"),
        ],
        processing: Vec::<Processing>::new(),
        test_tensor: None,
    }
}

/// Writes the package that [`package`] returns.
pub fn save_package(graph: &Graph, path: &Path) {
    let _ = package(graph).save(path, cytoscope_storage::Overwrite::Refuse).unwrap();
}

/// Returns a package of a 3-D network of one channel in and out, without pre- or postprocessing.
pub fn package(graph: &Graph) -> PackageBuilder {
    PackageBuilder {
        name: "test package".to_owned(),
        description: "made by a test".to_owned(),
        documentation: "# Made by a test\n".to_owned(),
        authors: vec!["A test".to_owned()],
        cite: Vec::new(),
        license: Some("MIT".to_owned()),
        tags: Vec::new(),
        inputs: vec![spec("x", 1, None)],
        outputs: vec![spec("y", 1, Some("x"))],
        graph: graph.clone(),
        test_inputs: Vec::new(),
        test_outputs: Vec::new(),
        config: json!({"task": "labelfree"}),
        covers: Vec::new(),
        float_graph: None,
        tolerance: None,
    }
}

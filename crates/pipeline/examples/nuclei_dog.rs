//! Builds the bundled model `nuclei-dog`:
//! `cargo run --release -p cytoscope-pipeline --example nuclei_dog models/nuclei-dog`.
//!
//! The model is a difference of Gaussians without training; its sizes suit nuclei of mouse embryos at a voxel size of
//! 1.75 × 0.8 × 0.8 µm.

use cytoscope_builders::{DifferenceOfGaussians, difference_of_gaussians};
use cytoscope_graph::Tensor;
use cytoscope_model_package::{
    AxisKind, AxisSize, AxisSpec, Citation, PackageBuilder, Processing, StatisticsAxes, TensorSpec, TensorType,
};
use cytoscope_objects::components::Connectivity;
use cytoscope_objects::{Height, SegmentOptions, Threshold};
use cytoscope_pipeline::packages;
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;

/// Nominal object diameter in µm: of 13 to 23 µm, the one with the best F1 on BBBC050 and on simulated stacks.
const OBJECT_DIAMETER_UM: f64 = 19.0;

/// Voxel size Z, Y, X in µm.
const VOXEL_UM: [f64; 3] = [1.75, 0.8, 0.8];

fn axes(input: bool, channels: &[&str]) -> Vec<AxisSpec> {
    let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
    let mut all = vec![
        axis(AxisKind::Batch, AxisSize::Step { min: 1, step: 1 }),
        AxisSpec {
            channel_names: channels.iter().map(|c| (*c).to_owned()).collect(),
            ..axis(AxisKind::Channel, AxisSize::Fixed(channels.len()))
        },
    ];
    for (kind, id, um) in
        [(AxisKind::Z, "z", VOXEL_UM[0]), (AxisKind::Y, "y", VOXEL_UM[1]), (AxisKind::X, "x", VOXEL_UM[2])]
    {
        let size = if input {
            AxisSize::Step { min: 1, step: 1 }
        } else {
            AxisSize::Reference { tensor: "stack".to_owned(), axis: id.to_owned(), scale: 1.0, offset: 0.0 }
        };
        all.push(AxisSpec { voxel_um: Some(um), ..axis(kind, size) });
    }
    all
}

/// Returns the test input: two touching balls on a dim background.
fn test_input() -> Result<Tensor, Box<dyn Error>> {
    let shape = [1, 1, 12, 32, 32];
    let balls = [([5.0, 14.0, 11.0], 5.0), ([6.0, 16.0, 20.0], 4.5)];
    let values: Vec<f32> = (0..12 * 32 * 32)
        .map(|i| {
            let at = [i / 1024, i / 32 % 32, i % 32];
            let inside = balls.iter().any(|(center, radius_um)| {
                (0..3).map(|a| ((at[a] as f64 - center[a]) * VOXEL_UM[a]).powi(2)).sum::<f64>() < radius_um * radius_um
            });
            (if inside { 0.8 } else { 0.05 }) + 0.02 * ((i * 7919) % 13) as f32 / 13.0
        })
        .collect();
    Ok(Tensor::new(shape.to_vec(), values)?)
}

/// Returns the descriptions of the model's inputs and outputs.
fn tensors() -> (Vec<TensorSpec>, Vec<TensorSpec>) {
    let inputs = vec![TensorSpec {
        id: "stack".to_owned(),
        description: "One channel of stained nuclei".to_owned(),
        dtype: TensorType::Float32,
        axes: axes(true, &["nuclei"]),
        processing: vec![Processing::ScaleRange {
            min_percentile: 1.0,
            max_percentile: 99.8,
            eps: 1e-6,
            axes: StatisticsAxes::default(),
            reference_tensor: None,
        }],
        test_tensor: None,
    }];
    let outputs = vec![TensorSpec {
        id: "maps".to_owned(),
        description: "Foreground probability, and brightness that separates touching nuclei".to_owned(),
        dtype: TensorType::Float32,
        axes: axes(false, &["probability", "brightness"]),
        processing: Vec::new(),
        test_tensor: None,
    }];
    (inputs, outputs)
}

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::args().nth(1).ok_or("give the output folder")?);
    let sigma = |z_um: f64, xy_um: f64| [z_um / VOXEL_UM[0], xy_um / VOXEL_UM[1], xy_um / VOXEL_UM[2]];
    let gain = 50.0;
    let graph = difference_of_gaussians(&DifferenceOfGaussians {
        sigma_small: sigma(3.6, 1.8),
        sigma_large: sigma(6.0, 6.0),
        large_share: 0.75,
        brightness: Some((sigma(1.2, 2.0), 0.3)),
        gain,
        offset: -0.07 * gain,
        truncate: 3.0,
    })?;
    let segment = SegmentOptions {
        smooth_um: 0.0,
        threshold: Threshold::Fixed(0.5),
        fill_holes: true,
        height: Some(Height::DistancePlusSeeds { weight_um: 28.0 }),
        height_smooth_um: 2.0,
        seed_height: 0.6,
        connectivity: Connectivity::Faces,
        min_volume_um3: 200.0,
        min_peak: 0.0,
        drop_border: false,
        tissue: None,
        isolated: None,
        oversized: None,
    };
    let (inputs, outputs) = tensors();
    let test_inputs = vec![test_input()?];
    let test_outputs = packages::test_outputs("nuclei-dog", &inputs, &outputs, &graph, &test_inputs)?;
    let builder = PackageBuilder {
        name: "nuclei-dog".to_owned(),
        description:
            "Nuclei in 3-D fluorescence stacks by a difference of Gaussians: the baseline that needs no training."
                .to_owned(),
        documentation: include_str!("nuclei_dog.md").to_owned(),
        authors: vec!["The Cytoscope authors".to_owned()],
        cite: vec![Citation {
            text: "Marr and Hildreth: Theory of edge detection (difference of Gaussians)".to_owned(),
            doi: Some("10.1098/rspb.1980.0020".to_owned()),
            url: None,
        }],
        license: Some("MIT".to_owned()),
        tags: ["nuclei", "3d", "fluorescence-light-microscopy", "instance-segmentation"].map(str::to_owned).to_vec(),
        inputs,
        outputs,
        graph,
        test_inputs,
        test_outputs,
        config: json!({"task": "segmentation", "object_diameter_um": OBJECT_DIAMETER_UM, "segment_channel": 0, "seed_channel": 1, "segment": segment}),
        covers: Vec::new(),
        float_graph: None,
        tolerance: None,
    };
    let _ = builder.save(&out, cytoscope_storage::Overwrite::Replace)?;
    println!("wrote {}", out.display());
    Ok(())
}

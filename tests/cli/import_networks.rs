//! Checkpoints of nnU-Net and pytorch_fnet give the outputs that PyTorch computes.

use crate::common::{Fixture, python};

/// Writes the checkpoints as these programs do, an input, and the output of each network.
const SCRIPT: &str = include_str!("reference_networks.py");
/// Largest difference of an output from that of PyTorch.
const TOLERANCE: f32 = 1e-4;

#[test]
fn imported_networks_of_nnunet_and_pytorch_fnet_give_the_outputs_of_pytorch() {
    let fixture = Fixture::new();
    let folder = fixture.path("t");
    std::fs::create_dir(&folder).unwrap();
    if python("numpy, torch", SCRIPT, &[folder.as_path()]).is_none() {
        return;
    }
    for (name, file, architecture) in [
        ("plain", "t/plain/fold_0/checkpoint_final.pth", "nnunet"),
        ("residual", "t/residual/fold_0/checkpoint_final.pth", "nnunet"),
        ("fnet", "t/model.p", "fnet"),
    ] {
        let package = format!("p_{name}");
        let report = fixture.run(&["import", file, "--out", &package, "--json"]).json();
        assert_eq!(report["architecture"], architecture, "{report:#}");
        assert!(!report["assumptions"].to_string().contains("no plans.json"), "{report:#}");
        let rdf = String::from_utf8(fixture.bytes(&format!("{package}/rdf.yaml"))).unwrap();
        let labels = "channel_names:\n    - background\n    - nucleus\n    - membrane\n";
        assert_eq!(rdf.contains(labels), architecture == "nnunet", "{rdf}");
        let output = format!("{name}.npy");
        fixture.run(&["run", &package, "--input", "t/x.npy", "--output", &output]).ok();
        let (got, expected) = (fixture.image(&output), fixture.image(&format!("t/{name}.npy")));
        assert_eq!(got.shape(), expected.shape(), "{name}");
        let [got, expected] = [got, expected].map(|array| array.samples().to_f32());
        let worst = cytoscope_testkit::largest_difference(&got, &expected);
        assert!(worst < f64::from(TOLERANCE), "{name}: {worst}");
        let largest = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 100.0 * TOLERANCE, "{name}: outputs of at most {largest} show no difference");
    }
}

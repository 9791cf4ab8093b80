//! The channel that a model of nuclei reads by default: the one that shows nuclei by its name.

use crate::common::{Fixture, uniform};
use cytoscope_formats::{Channel, Container, WriteSpec, write_array};
use cytoscope_volume::{Array, VoxelSize};
use serde_json::Value;

const SHAPE: [usize; 3] = [12, 64, 64];
const STACK: &str = "data/nuclei_3_raw.ome.tif";

/// Writes noise and a simulated stack of nuclei as channels of these names, with the true labels beside them.
fn write_pair(fixture: &Fixture, names: [&str; 2]) {
    let image = fixture.image("sim/nuclei_3_raw.tif").samples().to_f32();
    let both = [uniform(1, image.len()), image.to_vec()].concat();
    let [nz, ny, nx] = SHAPE;
    let both = Array::new("CZYX".parse().unwrap(), vec![2, nz, ny, nx], both).unwrap();
    let mut spec = WriteSpec::of(&both, Container::OmeTiff);
    spec.voxel_size_um = VoxelSize::new_um(1.0, 0.5, 0.5);
    spec.channels = names.map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    write_array(&fixture.path(STACK), &both, &spec).unwrap();
}

#[test]
fn a_model_of_nuclei_reads_the_channel_that_shows_nuclei_by_its_name() {
    let fixture = Fixture::new();
    fixture.run(&["simulate", "--kind", "nuclei", "--out", "sim", "--shape", "12,64,64", "--seed", "3"]).ok();
    std::fs::create_dir(fixture.path("data")).unwrap();
    std::fs::copy(fixture.path("sim/nuclei_3_labels.tif"), fixture.path("data/nuclei_3_labels.tif")).unwrap();
    let predict = |out: &str, more: &[&str]| {
        let command =
            ["predict", STACK, "--model", "nuclei-dog", "--device", "cpu", "--outputs", "labels", "--out", out];
        fixture.run(&[&command[..], more].concat()).ok().stdout
    };
    let labels = |folder: &str| fixture.image(&format!("{folder}/nuclei_3_raw_labels.tif"));
    let recorded = |folder: &str| -> Value {
        let record = fixture.bytes(&format!("{folder}/nuclei_3_raw_provenance.json"));
        serde_json::from_slice::<Value>(&record).unwrap()["job"]["channel"].clone()
    };
    write_pair(&fixture, ["membrane", "DAPI"]);
    let note =
        "the file has 2 channels (membrane, DAPI); DAPI is used because of its name (choose another with --channel)";
    let printed = predict("found", &[]);
    assert!(printed.contains(note), "{printed}");
    assert!(!predict("given", &["--channel", "1"]).contains("is used"));
    assert!(labels("found") == labels("given"));
    assert_eq!(recorded("found"), 1, "the record names the channel");
    assert!(!predict("noise", &["--channel", "0"]).contains("is used"));
    assert!(labels("found") != labels("noise"));
    // Earlier versions read the first channel, and their records name none.
    let old = "noise/nuclei_3_raw_provenance.json";
    let mut record: Value = serde_json::from_slice(&fixture.bytes(old)).unwrap();
    record["job"]["channel"] = Value::Null;
    std::fs::write(fixture.path(old), record.to_string()).unwrap();
    fixture.run(&["predict", "--rerun", old, "--out", "again"]).ok();
    assert!(labels("again") == labels("noise"), "a rerun reads the channel that was read");
    assert_eq!(recorded("again"), 0);
    let diameter = ["diameter", STACK, "--model", "nuclei-dog", "--device", "cpu"];
    let printed = fixture.run(&diameter).ok().stderr;
    assert!(printed.contains(note), "{printed}");
    let score = |more: &[&str]| {
        let command = ["evaluate", "--model", "nuclei-dog", "--device", "cpu", "--json", "--data", "data"];
        fixture.run(&[&command[..], more].concat()).json()
    };
    let found = score(&[]);
    assert_eq!(found["instances"], score(&["--channel", "1"])["instances"]);
    assert!(found["notes"].to_string().contains("DAPI is used because of its name"), "{found}");
    // If several channels show nuclei, the user has to choose.
    write_pair(&fixture, ["H2B-GFP", "DAPI"]);
    let printed = predict("first", &[]);
    assert!(
        printed.contains("the file has 2 channels (H2B-GFP, DAPI); H2B-GFP is used (choose another with --channel)"),
        "{printed}"
    );
    assert!(labels("first") == labels("noise"));
    assert_eq!(recorded("first"), Value::Null);
}

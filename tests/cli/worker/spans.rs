//! Every job records where its time goes.

use super::Engine;
use crate::common::Fixture;
use cytoscope_profile::Stage;
use cytoscope_worker::{JobId, Reply, Request, WorkerEvent};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Runs a job, and returns the stages that it recorded.
fn stages(engine: &mut Engine, id: u64, job: Value) -> BTreeSet<Stage> {
    engine.worker.send(Request::run(JobId(id), serde_json::from_value(job).unwrap()));
    engine.done(id);
    let totals = engine.seen.iter().filter_map(|event| match event {
        WorkerEvent::Reply(Reply::Stages { id: of, totals }) if *of == JobId(id) => Some(totals),
        _ => None,
    });
    totals.flatten().map(|total| total.stage).collect()
}

#[test]
fn evaluations_speed_tests_and_estimates_record_their_stages() {
    let fixture = Fixture::new();
    fixture.nuclei("8,48,48", 1);
    let labels = fixture.path("sim/nuclei_1_labels.tif");
    let mut engine = Engine::start(&fixture);
    let found = stages(&mut engine, 1, json!({"evaluate": {"prediction": labels, "truth": labels}}));
    assert!(found.is_superset(&[Stage::Read, Stage::Validate].into()), "{found:?}");
    let samples = engine.seen.iter().filter_map(|event| match event {
        WorkerEvent::Reply(Reply::Spans { samples, .. }) => Some(samples),
        _ => None,
    });
    assert!(samples.flatten().any(|sample| sample.resident_bytes > 0), "the memory of the job was sampled");
    fixture.unet(4);
    let net = fixture.path("net.onnx");
    let found = stages(&mut engine, 2, json!({"model_speed": {"model": net}}));
    assert!(found.is_superset(&[Stage::Load, Stage::Compile, Stage::Compute].into()), "{found:?}");
    let estimate = json!({"task": "segmentation", "from": "scratch", "device": "cpu", "voxel_um": [1.75, 0.8, 0.8],
                          "config": {"patch_zyx": [4, 16, 16], "batch": 1, "network":
                                     {"filters": [4, 8], "strides": [[1, 2, 2]], "convs_per_block": 1}}});
    let found = stages(&mut engine, 3, json!({"train_estimate": estimate}));
    let expected = [Stage::Load, Stage::Verify, Stage::Compile, Stage::Forward, Stage::Backward, Stage::Optimizer];
    assert!(found.is_superset(&expected.into()), "{found:?}");
}

//! Training in the worker: the events that a window shows, and resuming after cancelling.

use super::Engine;
use crate::common::Fixture;
use cytoscope_pipeline::worker::{JobId, JobResult, Reply, Request};
use cytoscope_pipeline::{Event, JobErrorKind};
use cytoscope_train::{CheckReport, TrainReport};
use serde_json::{Value, json};

/// Simulates three pairs in `sim/`.
fn simulate_pairs(fixture: &Fixture) {
    (0..3).for_each(|seed| _ = fixture.nuclei("8,48,48", seed));
}

fn run(id: u64, kind: &str, job: Value, fixture: &Fixture) -> Request {
    Request::Run { id: JobId(id), kind: kind.to_owned(), job, writes: vec![fixture.path(".")] }
}

fn training(fixture: &Fixture, steps: usize, resume: bool) -> Value {
    json!({
        "task": "segmentation", "data": fixture.path("sim"), "from": "scratch", "out": fixture.path("model"), "resume": resume,
        "without_int8": true,
        "config": {
            "patch_zyx": [4, 16, 16], "batch": 1, "budget": {"steps": steps}, "validation": {"times": 2},
            "network": {"filters": [4, 8], "strides": [[1, 2, 2]], "convs_per_block": 1},
        },
    })
}

fn report<T: serde::de::DeserializeOwned>(result: JobResult, of: &str) -> T {
    let JobResult::Run { kind, report } = result else { panic!("{result:?}") };
    assert_eq!(kind, of);
    serde_json::from_value(report).unwrap()
}

#[test]
fn train_check_reports_the_pairs_of_a_folder() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(run(1, "train-check", json!({"task": "segmentation", "data": fixture.path("sim")}), &fixture));
    let found: CheckReport = report(engine.done(1), "train-check");
    assert_eq!(found.report.pairs.len(), 3);
    assert!(found.report.pairs.iter().all(|p| p.usable && p.shape_zyx == [8, 48, 48]));
    let split = found.split.unwrap();
    assert_eq!((split.train.len(), split.validation.len()), (2, 1));
    // An invalid job, an unknown kind, and a missing folder.
    engine.worker.send(run(2, "train-check", json!({"task": "nothing"}), &fixture));
    engine.worker.send(run(3, "paint", json!({}), &fixture));
    engine.worker.send(run(
        4,
        "train-check",
        json!({"task": "segmentation", "data": fixture.path("nothere")}),
        &fixture,
    ));
    for (id, kind) in [(2, Some(JobErrorKind::WrongUse)), (3, Some(JobErrorKind::WrongUse)), (4, None)] {
        match engine.end(id) {
            Reply::Failed { kind: got, .. } => assert!(kind.is_none_or(|k| k == got), "{got:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn training_reports_its_curves_and_resumes_after_cancelling() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(run(1, "train", training(&fixture, 300, false), &fixture));
    let learned = |reply: &Reply| match reply {
        Reply::Progress { event: Event::TrainingSteps { step, steps, .. }, .. } => Some((*step, *steps)),
        Reply::Failed { sentence, .. } => panic!("{sentence}"),
        _ => None,
    };
    let planned = |reply: &Reply| match reply {
        Reply::Progress { event: Event::Planned(plan), .. } => Some(plan.steps),
        Reply::Failed { sentence, .. } => panic!("{sentence}"),
        _ => None,
    };
    assert_eq!(engine.reply("the plan", planned), 300);
    assert_eq!(engine.reply("a step", learned), (1, 300));
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Cancelled { id: JobId(1) });
    assert!(fixture.path("model.training/training.json").is_file() && !fixture.path("model").exists());
    engine.worker.send(run(2, "train", training(&fixture, 300, true), &fixture));
    let (next, _) = engine.reply("a further step", learned);
    assert!(next > 1, "it resumed and did not restart");
    let done: TrainReport = report(engine.done(2), "train");
    assert_eq!((done.steps, done.history.steps.len()), (300, 300));
    assert!(fixture.path("model/rdf.yaml").is_file() && !fixture.path("model.training").exists());
    // A finished run ends like one that has done all its steps; unknown jobs are ignored.
    engine.worker.send(Request::Finish { id: JobId(77) });
    engine.worker.send(run(3, "train", training(&fixture, 40_000, false), &fixture));
    engine.reply("many steps", |reply| learned(reply).filter(|(_, of)| *of == 40_000));
    engine.worker.send(Request::Finish { id: JobId(3) });
    let finished: TrainReport = report(engine.done(3), "train");
    assert!((100..30_000).contains(&finished.steps), "{}", finished.steps);
    assert_eq!(finished.history.validations.last().unwrap().step, finished.steps);
    assert!(!fixture.path("model.training").exists());
    let package = cytoscope_model_package::Package::open(&fixture.path("model")).unwrap();
    assert_eq!(package.config()["training"]["steps"], json!(finished.steps));
    let validated = |e: &cytoscope_pipeline::worker::WorkerEvent| {
        matches!(
            e,
            cytoscope_pipeline::worker::WorkerEvent::Reply(Reply::Progress { event: Event::Validated { .. }, .. })
        )
    };
    let pictured = |e: &cytoscope_pipeline::worker::WorkerEvent| match e {
        cytoscope_pipeline::worker::WorkerEvent::Reply(Reply::Progress {
            event: Event::ValidationPreview { step, path, caption },
            ..
        }) => {
            assert!(
                *path == fixture.path("model.training/shown.png") && caption.contains("of 8"),
                "{path:?} {caption}"
            );
            Some(*step)
        }
        _ => None,
    };
    let of_last: Vec<u64> = finished.history.validations.iter().map(|v| v.step).collect();
    let pictures: Vec<u64> = engine.seen.iter().filter_map(pictured).collect();
    assert!(pictures.ends_with(&of_last), "one picture after each validation: {pictures:?}");
    let validated_events = engine.seen.iter().filter(|e| validated(e)).count();
    assert_eq!(validated_events, done.history.validations.len() + finished.history.validations.len());
}

//! Training in the worker: the events that a window shows, and resuming after canceling.

use super::Engine;
use crate::common::Fixture;
use cytoscope_train::{TrainEvent, TrainReport};
use cytoscope_worker::{Job, JobId, JobResult, Reply, Request, WorkerEvent};
use serde_json::{Value, json};

/// Simulates three pairs in `sim/`.
fn simulate_pairs(fixture: &Fixture) {
    (0..3).for_each(|seed| _ = fixture.nuclei("8,48,48", seed));
}

fn check(id: u64, data: &str, fixture: &Fixture) -> Request {
    let job = json!({"task": "segmentation", "data": fixture.path(data)});
    Request::run(JobId(id), Job::TrainCheck(serde_json::from_value(job).unwrap()))
}

fn train(id: u64, job: Value) -> Request {
    Request::run(JobId(id), Job::Train(serde_json::from_value(job).unwrap()))
}

/// A training run whose patches are so large that hundreds of steps take seconds: it is canceled in the middle.
fn training(fixture: &Fixture, steps: usize, resume: bool) -> Value {
    json!({
        "task": "segmentation", "data": fixture.path("sim"), "from": "scratch", "out": fixture.path("model"), "resume": resume,
        "without_int8": true,
        "config": {
            "patch_zyx": [8, 32, 32], "batch": 1, "budget": {"steps": steps}, "validation": {"times": 2},
            "network": {"filters": [4, 8], "strides": [[1, 2, 2]], "convs_per_block": 1},
        },
    })
}

fn train_report(engine: &mut Engine, id: u64) -> TrainReport {
    match engine.done(id) {
        JobResult::Train(report) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn train_check_reports_the_pairs_of_a_folder() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(check(1, "sim", &fixture));
    let JobResult::TrainCheck(found) = engine.done(1) else { panic!() };
    assert_eq!(found.report.pairs.len(), 3);
    assert!(found.report.pairs.iter().all(|p| p.usable && p.shape_zyx == [8, 48, 48]));
    let split = found.split.unwrap();
    assert_eq!((split.train.len(), split.validation.len()), (2, 1));
    // A missing folder.
    engine.worker.send(check(2, "nothere", &fixture));
    let reply = engine.end(2);
    assert!(matches!(reply, Reply::Failed { .. }), "{reply:?}");
}

#[test]
fn training_reports_its_curves_and_resumes_after_canceling() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(train(1, training(&fixture, 300, false)));
    let learned = |reply: &Reply| match reply {
        Reply::Training { event: TrainEvent::TrainingSteps { step, steps, .. }, .. } => Some((*step, *steps)),
        Reply::Failed { message, .. } => panic!("{message}"),
        _ => None,
    };
    let planned = |reply: &Reply| match reply {
        Reply::Training { event: TrainEvent::Planned(plan), .. } => Some(plan.steps),
        Reply::Failed { message, .. } => panic!("{message}"),
        _ => None,
    };
    assert_eq!(engine.reply("the plan", planned), 300);
    assert_eq!(engine.reply("a step", learned), (1, 300));
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Canceled { id: JobId(1) });
    assert!(fixture.path("model.training/training.json").is_file() && !fixture.path("model").exists());
    engine.worker.send(train(2, training(&fixture, 300, true)));
    let (next, _) = engine.reply("a further step", learned);
    assert!(next > 1, "it resumed and did not restart");
    let done = train_report(&mut engine, 2);
    assert_eq!((done.steps, done.history.steps.len()), (300, 300));
    assert!(fixture.path("model/rdf.yaml").is_file() && !fixture.path("model.training").exists());
    // A finished run ends like one that has done all its steps; unknown jobs are ignored.
    engine.worker.send(Request::Finish { id: JobId(77) });
    engine.worker.send(train(3, training(&fixture, 40_000, false)));
    engine.reply("many steps", |reply| learned(reply).filter(|(_, of)| *of == 40_000));
    engine.worker.send(Request::Finish { id: JobId(3) });
    let finished = train_report(&mut engine, 3);
    assert!((100..30_000).contains(&finished.steps), "{}", finished.steps);
    assert_eq!(finished.history.validations.last().unwrap().step, finished.steps);
    assert!(!fixture.path("model.training").exists());
    let package = cytoscope_model_package::Package::open(&fixture.path("model")).unwrap();
    assert_eq!(package.config()["training"]["steps"], json!(finished.steps));
    let validated =
        |e: &WorkerEvent| matches!(e, WorkerEvent::Reply(Reply::Training { event: TrainEvent::Validated(_), .. }));
    let pictured = |e: &WorkerEvent| match e {
        WorkerEvent::Reply(Reply::Training {
            event: TrainEvent::ValidationPreview { step, path, caption }, ..
        }) => {
            assert!(
                *path == fixture.path("model.training/shown.png") && caption.contains("of 8"),
                "{path:?} {caption}"
            );
            Some(*step)
        }
        _ => None,
    };
    let validation_steps: Vec<u64> = finished.history.validations.iter().map(|v| v.step).collect();
    let pictures: Vec<u64> = engine.seen.iter().filter_map(pictured).collect();
    assert!(pictures.ends_with(&validation_steps), "one picture after each validation: {pictures:?}");
    let status = engine.seen.iter().find_map(|event| match event {
        WorkerEvent::Reply(Reply::Training { event: TrainEvent::Status(status), .. }) => Some(status),
        _ => None,
    });
    let status = status.expect("a status after the first step");
    assert!(status.batch == 1 && status.samples_per_sec > 0.0, "{status:?}");
    let usage = engine.seen.iter().rev().find_map(|event| match event {
        WorkerEvent::Reply(Reply::Usage { id: JobId(3), wall_secs, cpu_secs, threads }) => {
            Some((*wall_secs, *cpu_secs, *threads))
        }
        _ => None,
    });
    let (wall_secs, cpu_secs, threads) = usage.expect("the times of the last job");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(wall_secs > 0.0 && cpu_secs.is_some_and(|secs| secs > 0.0), "{wall_secs} {cpu_secs:?}");
    assert_eq!(threads, cores);
    let validated_events = engine.seen.iter().filter(|e| validated(e)).count();
    assert_eq!(validated_events, done.history.validations.len() + finished.history.validations.len());
}

//! Results of jobs in the worker, and their order.

use super::{Engine, command, convert, is_alive, job, long_job, predict_request};
use crate::common::Fixture;
use cytoscope_formats::{Container, SeriesChoice, WriteSpec, write_array};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{
    ArtifactKind, ConvertJob, Event, JobErrorKind, LabelFormat, MeasureJob, PerformanceRequest, ProgressStage,
    SegmentJob,
};
use cytoscope_profile::Stage;
use cytoscope_testkit::skip;
use cytoscope_volume::{Array, Axes, Axis};
use cytoscope_worker::{Job, JobId, JobResult, LabelArray, LiveArray, LiveRegion, Reply, Request, WorkerEvent};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

/// A voxel size at which the simulated nuclei have the size that the model was trained on.
const VOXEL_UM: [f64; 3] = [1.75, 0.8, 0.8];

/// Asserts that two folders, written under the same path by two runs of a job, have the same files, except for the time
/// in the record.
fn assert_same_files(fixture: &Fixture, first: &str, second: &str) {
    let names = fixture.names(second);
    assert!(!names.is_empty());
    assert_eq!(names, fixture.names(first));
    for name in names {
        let [a, b] = [first, second].map(|folder| fixture.bytes(&format!("{folder}/{name}")));
        if name.ends_with("_provenance.json") {
            let [a, b] = [a, b].map(|bytes| {
                let mut value: Value = serde_json::from_slice(&bytes).unwrap();
                assert!(value["finished_unix_secs"].take().as_u64().unwrap() > 0);
                value
            });
            assert_eq!(a, b);
        } else {
            assert!(a == b, "{name} differs");
        }
    }
}

#[test]
fn worker_and_command_line_predict_the_same_bytes() {
    let fixture = Fixture::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let out = fixture.path("o");
    let outputs = "maps,labels,table,preview";
    let arguments = ["predict", sample.to_str().unwrap(), "--out", out.to_str().unwrap(), "--outputs", outputs];
    fixture.run(&[&arguments[..], &["--device", "cpu", "--model", "nuclei-dog", "--tile", "27,64,64"]].concat()).ok();
    std::fs::rename(&out, fixture.path("by_command")).unwrap();
    let mut engine = Engine::start(&fixture);
    let job = job(json!({
        "inputs": [sample], "model": "nuclei-dog", "out": out, "device": "cpu", "tiles": {"tile": [27, 64, 64]},
        "outputs": outputs.split(',').collect::<Vec<_>>(),
    }));
    engine.worker.send(predict_request(1, job, true));
    let JobResult::Predict(outcome) = engine.done(1) else { panic!() };
    assert!(outcome.failed.is_empty());
    assert_eq!(fixture.names("o").len(), 5, "{:?}", fixture.names("o"));
    let kinds: Vec<ArtifactKind> = outcome.done[0].outputs.iter().map(|artifact| artifact.kind).collect();
    let written = [
        ArtifactKind::Probability,
        ArtifactKind::Labels,
        ArtifactKind::Table,
        ArtifactKind::Preview,
        ArtifactKind::Provenance,
    ];
    assert_eq!(kinds, written);
    assert_same_files(&fixture, "by_command", "o");
    assert!(engine.wake_count.load(Ordering::Relaxed) > 0);
    // The data for the window's panels arrived meanwhile.
    let replies = || engine.seen.iter().filter_map(|e| if let WorkerEvent::Reply(r) = e { Some(r) } else { None });
    let stages: BTreeSet<Stage> = replies()
        .filter_map(|r| if let Reply::Stages { totals, .. } = r { Some(totals) } else { None })
        .flatten()
        .map(|t| t.stage)
        .collect();
    assert!(stages.is_superset(&[Stage::Read, Stage::Compute, Stage::Objects, Stage::Write].into()), "{stages:?}");
    let spans =
        || replies().filter_map(|r| if let Reply::Spans { spans, .. } = r { Some(spans) } else { None }).flatten();
    assert!(spans().any(|s| s.stage == Stage::Op) && spans().filter(|s| s.stage == Stage::Compute).count() > 1);
    let device =
        replies().find_map(|r| if let Reply::Memory { device, .. } = r { device.clone() } else { None }).unwrap();
    assert_eq!((device.id.to_string().as_str(), device.why.as_str()), ("cpu", "requested"));
    let by_stage: BTreeSet<ProgressStage> = replies()
        .filter_map(|r| match r {
            Reply::Progress { event: Event::Progress(progress), .. } if progress.done == progress.total => {
                Some(progress.stage)
            }
            _ => None,
        })
        .collect();
    assert!(
        by_stage.is_superset(&[ProgressStage::Predict, ProgressStage::Objects, ProgressStage::Write].into()),
        "the end of each stage is reported: {by_stage:?}"
    );
}

#[test]
fn worker_and_command_line_predict_the_same_bytes_on_a_gpu() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("20,90,100", 3);
    let software = |mut command: Command| {
        command.env("CYTOSCOPE_SOFTWARE_GPU", "1");
        command
    };
    let devices = software(fixture.command(&["devices", "--json"])).output().unwrap();
    let devices: Value = serde_json::from_slice(&devices.stdout).unwrap();
    let usable = devices.as_array().unwrap().iter().filter(|d| d["usable"] == true).filter_map(|d| d["id"].as_str());
    let Some(gpu) = usable.filter(|id| *id != "cpu").map(str::to_owned).next() else {
        return skip("no GPU, not even in software (install mesa-vulkan-drivers)");
    };
    let (raw, out) = (fixture.path(&raw), fixture.path("o"));
    let (raw_text, out_text) = (raw.to_str().unwrap(), out.to_str().unwrap());
    let arguments = [
        "predict",
        raw_text,
        "--model",
        "nuclei-dog",
        "--out",
        out_text,
        "--tile",
        "20,48,64",
        "--device",
        &gpu,
        "--diameter",
        "19",
    ];
    let ran = software(fixture.command(&arguments)).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    std::fs::rename(&out, fixture.path("by_command")).unwrap();
    let mut engine = Engine::start_command(&software(command(&fixture)));
    for (id, operators) in [(1, false), (2, true)] {
        let job = job(json!({
            "inputs": [raw], "model": "nuclei-dog", "out": out, "device": gpu, "tiles": {"tile": [20, 48, 64]},
            "diameter": 19.0,
        }));
        engine.worker.send(Request::run(
            JobId(id),
            Job::Predict {
                prediction: job,
                live: true,
                operators,
                performance: PerformanceRequest::Off,
                remeasure: false,
            },
        ));
        let from = engine.seen.len();
        engine.done(id);
        assert_same_files(&fixture, "by_command", "o");
        let spans = engine.seen[from..].iter().filter_map(|e| match e {
            WorkerEvent::Reply(Reply::Spans { spans, .. }) => Some(spans),
            _ => None,
        });
        let stages: BTreeSet<Stage> = spans.flatten().map(|s| s.stage).collect();
        assert!(stages.contains(&Stage::Compute) && stages.contains(&Stage::Upload), "{stages:?}");
        assert_eq!(stages.contains(&Stage::Op), operators, "operator times are measured only on request");
    }
}

#[test]
fn live_regions_equal_the_final_result() {
    let fixture = Fixture::new();
    let mut engine = Engine::start(&fixture);
    let tiles = |blend: &str| json!({"tile": [20, 48, 64], "blend": blend});
    // Without a request, a stack that is wider than any tile passes through the network once.
    for (id, out, shape, tiles) in [
        (1, "crop", [20, 90, 100], tiles("crop")),
        (2, "gaussian", [20, 90, 100], tiles("gaussian")),
        (3, "pass", [8, 40, 540], json!({})),
    ] {
        let [nz, ny, nx] = shape;
        let raw = fixture.nuclei(&format!("{nz},{ny},{nx}"), id);
        let job = job(json!({
            "inputs": [fixture.path(&raw)], "model": "nuclei-dog", "out": fixture.path(out), "device": "cpu", "outputs": ["maps"],
            "voxel_um": VOXEL_UM, "diameter": 19.0, "tiles": tiles,
        }));
        engine.worker.send(predict_request(id, job, true));
        let from = engine.seen.len();
        let JobResult::Predict(outcome) = engine.done(id) else { panic!() };
        let plan = outcome.done[0].plan.as_ref().unwrap();
        assert_eq!(plan.pass.is_some(), out == "pass", "{plan:?}");
        let mut seen = vec![false; nz * ny * nx];
        let mut array = None;
        for event in &engine.seen[from..] {
            let WorkerEvent::Reply(Reply::Live { path, channels, shape_zyx, regions, input, .. }) = event else {
                continue;
            };
            assert_eq!((*channels, *shape_zyx, input), (2, shape, &fixture.path(&raw)));
            array = Some(LiveArray::open(path, *channels, *shape_zyx).unwrap());
            for LiveRegion { start_zyx: s, size_zyx: n } in regions {
                for z in s[0]..s[0] + n[0] {
                    (s[1]..s[1] + n[1]).for_each(|y| seen[(z * ny + y) * nx + s[2]..][..n[2]].fill(true));
                }
            }
        }
        assert!(seen.iter().all(|s| *s), "{out}: not every voxel was reported as finished");
        // The file stores Z, then C.
        let stem = Path::new(&raw).file_stem().unwrap().to_str().unwrap();
        let result = fixture.image(&format!("{out}/{stem}_probability.tif")).samples().to_f32();
        let array = array.unwrap();
        for (z, planes) in result.chunks_exact(2 * ny * nx).enumerate() {
            for (c, plane) in planes.chunks_exact(ny * nx).enumerate() {
                assert!(array.slice(Axis::Z, z, c).unwrap() == plane, "{out}: slice {z}, channel {c}");
            }
        }
    }
    let (_, folder) = engine.ready();
    let live = || {
        std::fs::read_dir(&folder)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "f32"))
            .count()
    };
    assert_eq!(live(), 1, "the arrays of the first jobs are removed");
    engine.worker.send(Request::Release { id: JobId(3) });
    engine.worker.send(Request::Devices { id: JobId(4), again: false });
    engine.reply("devices", |r| matches!(r, Reply::Devices { .. }).then_some(()));
    assert_eq!(live(), 0, "released");
}

#[test]
fn jobs_run_in_order_and_can_be_canceled_queued_or_running() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(predict_request(1, long_job(&fixture, "o"), false));
    for (id, output) in [(2, "a.npy"), (3, "b.npy"), (4, "c.npy")] {
        engine.worker.send(Request::run(JobId(id), Job::Convert(convert(&fixture, &raw, output))));
    }
    engine.reply("the last job in the queue", |r| matches!(r, Reply::Queued { id: JobId(4), .. }).then_some(()));
    engine.wait_for_tiles(1);
    let waiting: Vec<(u64, usize)> = engine
        .seen
        .iter()
        .filter_map(
            |e| if let WorkerEvent::Reply(Reply::Queued { id, ahead }) = e { Some((id.0, *ahead)) } else { None },
        )
        .collect();
    assert_eq!(waiting, [(2, 1), (3, 2), (4, 3)]);
    engine.worker.send(Request::Cancel { id: JobId(3) });
    assert_eq!(engine.end(3), Reply::Canceled { id: JobId(3) }, "removed while the first one runs");
    // Reusing a job number is a fault without other effects.
    engine.worker.send(Request::run(JobId(4), Job::Convert(convert(&fixture, &raw, "d.npy"))));
    engine.reply("a fault", |r| matches!(r, Reply::Fault { message } if message.contains("job 4")).then_some(()));
    assert!(!fixture.leftovers().is_empty(), "partial files exist while it runs");
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Canceled { id: JobId(1) });
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
    engine.done(2);
    engine.done(4);
    let ends: Vec<JobId> =
        engine.seen.iter().filter_map(|e| if let WorkerEvent::Reply(r) = e { r.ends() } else { None }).collect();
    assert_eq!(ends, [3, 1, 2, 4].map(JobId));
    assert_eq!([2, 3, 4].map(|i| fixture.path(["a.npy", "b.npy", "c.npy"][i - 2]).exists()), [true, false, true]);
    assert!(fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
    // A failure gives its reason, and the worker continues.
    engine.worker.send(Request::run(JobId(9), Job::Convert(convert(&fixture, "nothere.tif", "e.npy"))));
    let Reply::Failed { kind, message, .. } = engine.end(9) else { panic!() };
    assert_eq!(kind, JobErrorKind::BadInput);
    assert!(message.contains("nothere.tif"), "{message}");
    // Dropping the client during a job ends the process and removes its folder.
    engine.worker.send(predict_request(10, long_job(&fixture, "o"), true));
    engine.wait_for_tiles(10);
    let (pid, folder) = engine.ready();
    assert!(folder.is_dir());
    drop(engine);
    assert!(!is_alive(pid) && !folder.exists());
    assert!(fixture.names("o").is_empty() && fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}

#[test]
fn all_series_of_a_file_are_converted() {
    let fixture = Fixture::new();
    let stacks = [1, 2].map(|seed| fixture.nuclei("6,20,20", seed));
    let images = [0, 1].map(|i| json!({"path": format!("{i}.zarr")}));
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"well": {"images": images}}}});
    std::fs::create_dir(fixture.path("well.zarr")).unwrap();
    std::fs::write(fixture.path("well.zarr/zarr.json"), group.to_string()).unwrap();
    for (i, stack) in stacks.iter().enumerate() {
        fixture.run(&["convert", stack, &format!("well.zarr/{i}.zarr")]).ok();
    }
    let mut engine = Engine::start(&fixture);
    let job = ConvertJob { series: SeriesChoice::All, ..convert(&fixture, "well.zarr", "two.tif") };
    engine.worker.send(Request::run(JobId(1), Job::Convert(job)));
    let JobResult::Convert { output, outputs, failed } = engine.done(1) else { panic!() };
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(
        (output, outputs),
        (fixture.path("two.tif"), ["two.tif", "two_s1.tif"].map(|n| fixture.path(n)).to_vec())
    );
    for (name, stack) in ["two.tif", "two_s1.tif"].iter().zip(&stacks) {
        assert_eq!(fixture.image(name), fixture.image(stack), "{name}");
    }
}

/// Measures the labels `l.tif` of this number of objects, which gives the table `t.csv`. Other images and shapes are refused,
/// and no table is written.
fn assert_measuring_gives_the_same_table(fixture: &Fixture, engine: &mut Engine, raw: &str, objects: u32) {
    let measure = |labels: &str, table: &str| MeasureJob {
        overwrite: Default::default(),
        labels: fixture.path(labels),
        intensities: Some(fixture.path(raw)),
        table: fixture.path(table),
        table_format: Default::default(),
        series: Default::default(),
        axes: None,
        time: 0,
        all_times: false,
        voxel_um: Some(VOXEL_UM),
    };
    engine.worker.send(Request::run(JobId(4), Job::Measure(measure("l.tif", "again.csv"))));
    let JobResult::Measure(measured) = engine.done(4) else { panic!() };
    assert_eq!(measured.objects, u64::from(objects));
    assert_eq!(fixture.table("again.csv"), fixture.table("t.csv"));
    for (id, labels, reason) in
        [(5, "o/nuclei_1_raw_probability.tif", "are not labels"), (6, "small.tif", "its shape is")]
    {
        let small = Array::new(Axes::zyx(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&fixture.path("small.tif"), &small, &WriteSpec::of(&small, Container::ImageJ)).unwrap();
        engine.worker.send(Request::run(JobId(id), Job::Measure(measure(labels, "none.csv"))));
        let Reply::Failed { message, .. } = engine.end(id) else { panic!() };
        assert!(message.contains(reason), "{message}");
        assert!(!fixture.path("none.csv").exists());
    }
}

/// Number of files of labels in the folder of a worker.
fn files_of_labels(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "u32")).count()
}

#[test]
fn superseded_segmentations_are_dropped_and_leave_no_files() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("14,80,96", 1);
    let mut engine = Engine::start(&fixture);
    engine.worker.send(Request::Models { id: JobId(1) });
    let card: ModelCard = engine.reply("models", |r| match r {
        Reply::Models { models, .. } => models.iter().find(|m| m.name == "nuclei").cloned(),
        _ => None,
    });
    let predict = job(json!({
        "inputs": [fixture.path(&raw)], "model": "nuclei", "out": fixture.path("o"), "device": "cpu", "voxel_um": VOXEL_UM,
        "diameter": 15.0,
    }));
    engine.worker.send(predict_request(2, predict, false));
    let segment = |labels: Option<PathBuf>, table: Option<PathBuf>| SegmentJob {
        map: fixture.path("o/nuclei_1_raw_probability.tif"),
        labels,
        replace_labels_of_map: false,
        table,
        table_format: Default::default(),
        series: Default::default(),
        channel: card.segment_channel,
        seed_channel: Some(card.seed_channel),
        time: 0,
        voxel_um: None,
        assumed_voxel_um: None,
        intensities: Some(fixture.path(&raw)),
        intensities_time: None,
        options: card.segment.clone().unwrap().scaled(15.0 / 12.0),
        overwrite: Default::default(),
    };
    // With the model's settings for this diameter (its own is 12), segmenting the map gives the prediction's own objects and table.
    let same = segment(Some(fixture.path("l.tif")), Some(fixture.path("t.csv")));
    engine.worker.send(Request::run(JobId(3), Job::Segment { segmentation: same, replaces: None }));
    let report = engine.segment_report(3);
    assert_eq!((report.format, report.shape_zyx), (LabelFormat::Tiff, [14, 80, 96]));
    assert!(report.objects > 3);
    assert_eq!(fixture.image("l.tif"), fixture.image("o/nuclei_1_raw_labels.tif"));
    assert_eq!(fixture.table("t.csv"), fixture.table("o/nuclei_1_raw_objects.csv"));
    assert_measuring_gives_the_same_table(&fixture, &mut engine, &raw, report.objects);
    // A slider: many segmentations in a row, each superseding the one before.
    let (_, folder) = engine.ready();
    let files = || files_of_labels(&folder);
    let last = 40;
    for id in 10..=last {
        let replaces = (id > 10).then(|| JobId(id - 1));
        engine.worker.send(Request::run(JobId(id), Job::Segment { segmentation: segment(None, None), replaces }));
    }
    let report = engine.segment_report(last);
    assert_eq!(report.format, LabelFormat::RawU32);
    let ends: Vec<u64> = engine
        .seen
        .iter()
        .filter_map(|e| if let WorkerEvent::Reply(r) = e { r.ends() } else { None })
        .map(|id| id.0)
        .filter(|id| *id >= 10)
        .collect();
    let each: BTreeSet<u64> = ends.iter().copied().collect();
    assert_eq!((ends.len(), each), (31, (10..=last).collect()), "each ends exactly once");
    assert_eq!(files(), 1, "superseded labels are removed");
    let array = LabelArray::open(&report.labels, report.shape_zyx).unwrap();
    let expected: Vec<u32> = fixture.image("l.tif").samples().to_f32().iter().map(|v| *v as u32).collect();
    let whole = LiveRegion { start_zyx: [0; 3], size_zyx: report.shape_zyx };
    assert_eq!(array.region(whole).unwrap(), expected);
    let across_x: Vec<u32> = expected.chunks_exact(96).map(|row| row[37]).collect();
    assert_eq!(array.slice(Axis::X, 37).unwrap(), across_x);
    engine.worker.send(Request::Release { id: JobId(last) });
    engine.worker.send(Request::run(JobId(99), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    engine.done(99);
    assert_eq!(files(), 0);
    // A missing channel is refused with the number of channels.
    let beyond = SegmentJob { seed_channel: Some(2), ..segment(None, None) };
    engine.worker.send(Request::run(JobId(100), Job::Segment { segmentation: beyond, replaces: None }));
    let Reply::Failed { message, .. } = engine.end(100) else { panic!() };
    assert!(message.contains("channel 2") && message.contains("has 2"), "{message}");
}

#[test]
fn models_and_devices_are_listed_with_their_problems() {
    let fixture = Fixture::new();
    let models = fixture.path("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::write(models.join("broken.onnx"), "no network").unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
    std::fs::create_dir(models.join("mine")).unwrap();
    for entry in std::fs::read_dir(&bundled).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, models.join("mine").join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(models.join("best.alias"), "mine\n").unwrap();
    let mut command = command(&fixture);
    command.env("CYTOSCOPE_MODELS", &models);
    let mut engine = Engine::start_command(&command);
    engine.worker.send(Request::Models { id: JobId(1) });
    engine.worker.send(Request::Devices { id: JobId(2), again: false });
    let cards: Vec<ModelCard> =
        engine.reply("models", |r| if let Reply::Models { models, .. } = r { Some(models.clone()) } else { None });
    let find = |name: &str| cards.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}: {cards:?}"));
    let mine = find("mine");
    assert_eq!((mine.aliases.as_slice(), mine.problem.as_ref()), (&["best".to_owned()][..], None));
    assert_eq!((mine.voxel_um, mine.input_channels, mine.output_channels), (Some(VOXEL_UM), 1, 2));
    assert_eq!(mine.output_channel_names, ["probability", "brightness"]);
    assert!(mine.documentation.contains("# nuclei-dog") && mine.testable && mine.tests.iter().all(|t| t.is_file()));
    assert_eq!((mine.tests.len(), mine.license.as_deref()), (2, Some("MIT")));
    assert_eq!(mine.citations[0].doi.as_deref(), Some("10.1098/rspb.1980.0020"));
    assert_eq!((mine.segment_channel, mine.seed_channel), (0, 1));
    assert_eq!(mine.segment.as_ref().map(|s| s.min_volume_um3), Some(200.0));
    let broken = find("broken");
    assert!(broken.problem.as_ref().is_some_and(|p| p.contains("broken.onnx")), "{:?}", broken.problem);
    let devices =
        engine.reply("devices", |r| if let Reply::Devices { devices, .. } = r { Some(devices.clone()) } else { None });
    let listed: Value = fixture.run(&["devices", "--json"]).json();
    let ids: Vec<String> = devices.iter().map(|d| d.id.to_string()).collect();
    let expected: Vec<&str> = listed.as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, expected, "as listed by the command line");
    assert!(devices.iter().any(|d| d.id.to_string() == "cpu" && d.usable));
}

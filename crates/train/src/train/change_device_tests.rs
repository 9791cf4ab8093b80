//! Training on a GPU that fails; the GPU is an engine of this test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::config::{TrainConfig, TrainPrecision};
use crate::device_choice::fastest;
use crate::network::load_start_model;
use crate::start::TrainStart;
use crate::{TrainEvent, TrainJob, TrainReport};
use cytoscope_engine::select::Cache;
use cytoscope_engine::{
    CompileOptions, CompileReport, Device, DeviceId, DeviceRequest, Engine, EngineError, Precision, Session,
};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Event, JobErrorKind};
use cytoscope_training_data::TrainingTask;
use cytoscope_volume::{Array, Axes};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Number of runs of a session after which the GPU fails: three steps that are timed, and three of the run.
const RUNS_BEFORE_FAILURE: usize = 6;
/// A GPU that fails after [`RUNS_BEFORE_FAILURE`] runs.
const SHORT_LIVED: DeviceId = DeviceId::Cuda(0);
/// A GPU whose memory is too small for any network.
const SMALL: DeviceId = DeviceId::Cuda(1);
/// A GPU that fails at its first run.
const BROKEN: DeviceId = DeviceId::Cuda(2);
/// A GPU that runs out of memory at its first run and at no other one.
const TIGHT: DeviceId = DeviceId::Cuda(3);
/// Number of runs on [`TIGHT`].
static RUNS_ON_TIGHT: AtomicUsize = AtomicUsize::new(0);
/// Another such GPU, for the comparison of devices.
const CROWDED: DeviceId = DeviceId::Cuda(4);
/// Number of runs on [`CROWDED`].
static RUNS_ON_CROWDED: AtomicUsize = AtomicUsize::new(0);
/// Another such GPU, for the measurement that is stored.
const CRAMPED: DeviceId = DeviceId::Cuda(6);
/// Number of runs on [`CRAMPED`].
static RUNS_ON_CRAMPED: AtomicUsize = AtomicUsize::new(0);

/// A GPU that runs out of memory when [`IS_FULL`] is set, which it clears.
const FULL: DeviceId = DeviceId::Cuda(5);
/// Whether the next run on [`FULL`] runs out of memory.
static IS_FULL: AtomicBool = AtomicBool::new(true);

/// A simulated GPU, which computes with the reference executor until it fails.
struct Gpu(Device);

impl Engine for Gpu {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.0
    }

    fn compile(&self, graph: &Graph, _: &[Vec<usize>], _: &CompileOptions) -> Result<Box<dyn Session>, EngineError> {
        if self.0.id == SMALL {
            return Err(EngineError::OutOfMemory { device: SMALL, needed_bytes: 3 << 30, available_bytes: 1 << 30 });
        }
        let report = CompileReport { arena_bytes: 2 << 20, ..CompileReport::default() };
        Ok(Box::new(GpuSession { graph: graph.clone(), report, id: self.0.id, runs: 0 }))
    }
}

struct GpuSession {
    graph: Graph,
    report: CompileReport,
    id: DeviceId,
    runs: usize,
}

impl Session for GpuSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        if [TIGHT, CROWDED, CRAMPED, FULL].contains(&self.id) {
            let is_full = match self.id {
                TIGHT => RUNS_ON_TIGHT.fetch_add(1, Ordering::Relaxed) == 0,
                CROWDED => RUNS_ON_CROWDED.fetch_add(1, Ordering::Relaxed) == 0,
                CRAMPED => RUNS_ON_CRAMPED.fetch_add(1, Ordering::Relaxed) == 0,
                _ => IS_FULL.swap(false, Ordering::Relaxed),
            };
            if is_full {
                return Err(EngineError::OutOfMemory { device: self.id, needed_bytes: 4 << 20, available_bytes: 0 });
            }
        } else if self.runs >= RUNS_BEFORE_FAILURE || self.id == BROKEN {
            return Err(EngineError::Device { device: self.id, reason: "it has no power".into() });
        }
        self.runs += 1;
        let names = self.graph.inputs.iter().map(|id| self.graph.value(*id).name.clone());
        let given: Vec<(String, Tensor)> = names.zip(inputs.iter().cloned()).collect();
        Ok(cytoscope_reference::run(&self.graph, &given)?)
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }
}

fn open(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    match device.id {
        DeviceId::Cpu => Devices::cpu_only().engine(DeviceId::Cpu),
        _ => Ok(Box::new(Gpu(device.clone()))),
    }
}

/// A GPU and the CPU.
fn devices(id: DeviceId) -> Devices {
    let cpu = Devices::cpu_only().list()[0].clone();
    let (name, precisions) = ("a GPU".to_owned(), vec![Precision::F32, Precision::Bf16]);
    Devices::with_engines(vec![Device { id, name, precisions, ..cpu.clone() }, cpu], open)
}

/// Writes stacks of nine bright boxes, with their labels.
fn write_pairs(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let shape = [8usize, 48, 48];
    let label = |i: usize| {
        let [z, y, x] = [i / (48 * 48), i / 48 % 48, i % 48];
        let is_inside = (2..6).contains(&z) && (4..12).contains(&(y % 16)) && (4..12).contains(&(x % 16));
        if is_inside { (y / 16 * 3 + x / 16 + 1) as u16 } else { 0 }
    };
    let count = shape.iter().product::<usize>();
    for pair in 0..3usize {
        let bright = |i: usize| {
            let base: u16 = if label(i) > 0 { 200 } else { 20 };
            base + ((i * 7 + pair) % 11) as u16
        };
        let raw: Vec<u16> = (0..count).map(bright).collect();
        for (suffix, values) in [("raw", raw), ("labels", (0..count).map(label).collect())] {
            let array = Array::new(Axes::zyx(), shape.to_vec(), values).unwrap();
            let path = folder.join(format!("stack{pair}_{suffix}.tif"));
            write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
    }
}

/// A run of six steps on a GPU, with validations after every second one.
fn job(folder: &Path, out: &str, id: DeviceId, may_change_device: bool) -> TrainJob {
    let config = json!({
        "patch_zyx": [4, 16, 16], "batch": 1, "norm_share": 1.0, "workers": 1, "performance": "off",
        "network": {"filters": [4], "convs_per_block": 1}, "budget": {"steps": 6}, "validation": {"times": 3},
    });
    let job = json!({
        "task": "segmentation", "data": folder.join("pairs"), "from": "scratch", "out": folder.join(out),
        "config": config, "without_int8": true, "threads": 2,
    });
    let job: TrainJob = serde_json::from_value(job).unwrap();
    TrainJob { device: DeviceRequest::Device(id), may_change_device, ..job }
}

/// Returns a context with the list of its events.
fn recorded_events() -> (Context, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&events);
    let sink = move |event: &Event| kept.lock().unwrap().push(event.clone());
    (Context { sink: Arc::new(sink), ..Context::default() }, events)
}

/// Returns whether a note contains `text`.
fn has_note(events: &[Event], text: &str) -> bool {
    events.iter().any(|e| matches!(e, Event::Note(note) if note.message.contains(text)))
}

/// Checks that all six steps were made by the CPU, after a GPU has failed with the error of this text.
fn assert_trained_on_the_cpu(report: &TrainReport, failed: &str) {
    let steps: Vec<u64> = report.history.steps.iter().map(|point| point.step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6], "each step is in the curve once");
    assert!(report.history.notes.iter().any(|note| note.message.starts_with(failed)), "{:?}", report.history.notes);
    assert!(report.device.ends_with(&Devices::cpu_only().list()[0].name), "{}", report.device);
}

#[test]
fn another_device_continues_from_the_last_good_state_unless_the_user_chose_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let (context, events) = recorded_events();
    let report = job(folder, "changed", SHORT_LIVED, true).run(&context, &devices(SHORT_LIVED), &|_| ()).unwrap();
    let cpu = Devices::cpu_only().list()[0].name.clone();
    assert_eq!((report.steps, report.device), (6, format!("a GPU, then {cpu}")));
    // The last validation was after the second step.
    let failed = cytoscope_pipeline::Note::info("cuda:0 failed at step 3: training goes back to step 2");
    let notes = &report.history.notes;
    let reason =
        cytoscope_pipeline::Note::info("cuda:0 failed: it has no power; continuing on cpu from the last good state");
    assert!(notes.contains(&failed) && notes.contains(&reason), "{notes:?}");
    let steps: Vec<u64> = report.history.steps.iter().map(|point| point.step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6], "each step is in the curve once");
    let events = events.lock().unwrap();
    assert!(has_note(&events, "it has no power; continuing on cpu from the last good state"), "{events:?}");
    assert!(has_note(&events, "resuming after step 2 of 6"), "{events:?}");
    let (id, reason) = (SHORT_LIVED, "it has no power".to_owned());
    assert!(events.contains(&Event::DeviceLost { id, reason }), "{events:?}");
    let last = events.iter().rev().find_map(|e| if let Event::Device(device) = e { Some(device.id) } else { None });
    assert_eq!(last, Some(DeviceId::Cpu));
    // The user chose the GPU.
    let chosen = job(folder, "chosen", SHORT_LIVED, false);
    let refused = chosen.run(&Context::default(), &devices(SHORT_LIVED), &|_| ()).unwrap_err().to_string();
    assert!(refused.contains("it has no power") && refused.contains("--resume --device cpu"), "{refused}");
    assert_eq!(chosen.checkpoint_summary().map(|summary| (summary.step, summary.steps)), Some((2, 6)));
}

#[test]
fn a_run_that_is_canceled_before_its_package_is_complete_says_how_to_continue() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let (context, events) = recorded_events();
    let (cancel, sink) = (context.cancel.clone(), Arc::clone(&context.sink));
    let canceling = move |event: &Event| {
        sink(event);
        if matches!(event, Event::Note(note) if note.message.contains("quantizing the network")) {
            cancel.cancel();
        }
    };
    let context = Context { sink: Arc::new(canceling), ..context };
    let canceled = TrainJob { without_int8: false, ..job(folder, "unfinished", DeviceId::Cpu, false) };
    let error = canceled.run(&context, &Devices::cpu_only(), &|_| ()).unwrap_err();
    assert_eq!(error.kind(), JobErrorKind::Canceled);
    let events = events.lock().unwrap();
    let expected = "canceled after step 6 of 6, before the package was complete; continue with --resume";
    assert!(has_note(&events, expected), "{events:?}");
    let resumed = TrainJob { resume: true, without_int8: true, ..canceled };
    assert_eq!(resumed.run(&Context::default(), &Devices::cpu_only(), &|_| ()).unwrap().steps, 6);
}

#[test]
fn another_device_starts_if_the_first_step_fails_unless_the_user_chose_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let cases = [
        (SMALL, "small", "not enough memory on cuda:1: 3.00 GiB needed, 1.00 GiB available"),
        (BROKEN, "broken", "cuda:2 failed: it has no power"),
    ];
    for (id, out, failed) in cases {
        let (context, events) = recorded_events();
        let report = job(folder, out, id, true).run(&context, &devices(id), &|_| ()).unwrap();
        assert_trained_on_the_cpu(&report, failed);
        assert!(report.device.starts_with("a GPU, then "), "{}", report.device);
        let events = events.lock().unwrap();
        assert!(has_note(&events, failed) && has_note(&events, "; starting again on cpu"), "{events:?}");
    }
    // The user chose the GPU.
    let chosen = job(folder, "chosen", BROKEN, false);
    let refused = chosen.run(&Context::default(), &devices(BROKEN), &|_| ()).unwrap_err().to_string();
    assert!(refused.contains("it has no power; no step was completed: choose another device"), "{refused}");
}

#[test]
fn a_gpu_that_runs_out_of_memory_recomputes_more_before_another_device_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let (context, events) = recorded_events();
    let report = job(folder, "tight", TIGHT, false).run(&context, &devices(TIGHT), &|_| ()).unwrap();
    assert_eq!((report.steps, report.device.as_str()), (6, "a GPU"));
    let said = "not enough memory on cuda:3: 4 MiB needed; trying again with at most 1 MiB of activations";
    assert!(report.history.notes.iter().any(|note| note.message.as_str() == said), "{:?}", report.history.notes);
    assert!(has_note(&events.lock().unwrap(), said));
}

#[test]
fn a_gpu_that_runs_out_of_memory_when_it_is_measured_recomputes_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let mut job = job(folder, "crowded", CROWDED, false);
    job.device = DeviceRequest::Auto;
    let (context, events) = recorded_events();
    job.run(&context, &devices(CROWDED).measured_again(), &|_| ()).unwrap();
    let events = events.lock().unwrap();
    let said = "not enough memory on cuda:4: 4 MiB needed; trying again with at most 1 MiB of activations";
    assert!(has_note(&events, said), "{events:?}");
    let why = events.iter().find_map(|e| if let Event::Device(device) = e { Some(device.why.as_str()) } else { None });
    let why = why.unwrap();
    assert!(why.contains("cuda:4 ") && !why.contains("not enough memory"), "its time counts: {why}");
}

#[test]
fn a_memory_limit_that_was_lowered_for_the_measurement_applies_to_training() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    // The CPU has no tf32, so that the GPU is chosen.
    let cpu = Devices::cpu_only().list()[0].clone();
    let (name, precisions) = ("a GPU".to_owned(), vec![Precision::F32, Precision::Tf32]);
    let gpu = Device { id: FULL, name, precisions, ..cpu.clone() };
    let mut job = job(folder, "full", FULL, false);
    (job.device, job.config.precision) = (DeviceRequest::Auto, TrainPrecision::Tf32);
    let notes = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&notes);
    let sink = move |event: &Event| {
        let Event::Note(cytoscope_pipeline::Note { message, .. }) = event else { return };
        // It runs out of memory when it is measured, and at the first step of the run.
        if message.starts_with("training on cuda:5") {
            IS_FULL.store(true, Ordering::Relaxed);
        }
        kept.lock().unwrap().push(message.to_string());
    };
    let context = Context { sink: Arc::new(sink), ..Context::default() };
    let devices = Devices::with_engines(vec![gpu, cpu], open).measured_again();
    let report = job.run(&context, &devices, &|_| ()).unwrap();
    assert_eq!((report.steps, report.device.as_str()), (6, "a GPU"));
    let notes = notes.lock().unwrap();
    let lowered: Vec<&String> = notes.iter().filter(|note| note.contains("trying again with at most")).collect();
    let limits = ["at most 1 MiB of activations", "at most 512 KiB of activations"];
    assert_eq!(lowered.len(), limits.len(), "{notes:?}");
    assert!(lowered.iter().zip(limits).all(|(note, limit)| note.ends_with(limit)), "{lowered:?}");
}

#[test]
fn a_memory_limit_that_was_lowered_for_the_measurement_is_stored() {
    let config = json!({
        "patch_zyx": [4, 16, 16], "batch": 1, "network": {"filters": [4], "convs_per_block": 1}, "precision": "tf32",
    });
    let config: TrainConfig = serde_json::from_value(config).unwrap();
    let start = load_start_model(&TrainStart::Scratch, TrainingTask::Segmentation, &config, None, 0).unwrap();
    let mut cache = Cache::in_memory();
    // The CPU has no tf32, so that the GPU is chosen.
    let mut measured = |free_bytes: u64| {
        let cpu = Devices::cpu_only().list()[0].clone();
        let (precisions, free_bytes) = (vec![Precision::F32, Precision::Tf32], Some(free_bytes));
        let gpu = Device { id: CRAMPED, memory_bytes: Some(4 << 30), free_bytes, precisions, ..cpu.clone() };
        let engines = [open(&gpu).unwrap(), open(&cpu).unwrap()];
        let context = Context::default();
        let (_, chosen, lowered_bytes) =
            fastest(&context, (&engines, &[]), &start, &config, 2, &mut cache, &|_| ()).unwrap();
        assert_eq!(chosen, CRAMPED);
        (lowered_bytes, RUNS_ON_CRAMPED.swap(1, Ordering::Relaxed))
    };
    let (limit_bytes, runs) = measured(1 << 30);
    assert!(limit_bytes == Some(1 << 20) && runs > 1, "{limit_bytes:?}");
    assert_eq!(measured(1 << 30), (Some(1 << 20), 1), "the stored limit applies");
    assert_eq!(measured(1 << 20), (Some(1 << 19), 1), "less is free now");
    let (limit_bytes, runs) = measured(2 << 30);
    assert!(limit_bytes.is_none() && runs > 1, "more is free now, so that a step is measured again: {limit_bytes:?}");
}

#[test]
fn the_cpu_trains_in_32_bits_if_the_only_gpu_with_16_bits_fails_when_it_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let mut job = job(folder, "out", BROKEN, false);
    (job.device, job.config.precision) = (DeviceRequest::Auto, TrainPrecision::Bf16);
    let (context, events) = recorded_events();
    let report = job.run(&context, &devices(BROKEN), &|_| ()).unwrap();
    let failed = "cuda:2 failed: it has no power";
    assert_trained_on_the_cpu(&report, failed);
    let events = events.lock().unwrap();
    assert!(has_note(&events, &format!("{failed}; training on cpu in f32")), "{events:?}");
}

#[test]
fn data_that_change_during_a_run_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let said = "the training data changed during the run";
    let trained = |out: &str, on_event: &crate::event::TrainSink<'_>| {
        let (context, events) = recorded_events();
        let report = job(folder, out, DeviceId::Cpu, false).run(&context, &Devices::cpu_only(), on_event).unwrap();
        let events = events.lock().unwrap();
        let shown = events.iter().find_map(|event| match event {
            Event::Note(note) if note.message.contains(said) => Some(note),
            _ => None,
        });
        let in_report = report.history.notes.iter().find(|note| note.message.contains(said));
        assert_eq!(shown, in_report);
        in_report.is_some()
    };
    assert!(!trained("unchanged", &|_| ()));
    let path = folder.join("pairs/stack0_raw.tif");
    let grow = |_: &TrainEvent| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"x").unwrap();
    };
    assert!(trained("changed", &grow));
}

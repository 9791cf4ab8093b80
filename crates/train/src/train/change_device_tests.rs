//! Training on a GPU that fails, as an engine of the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use crate::TrainJob;
use cytoscope_engine::{
    CompileOptions, CompileReport, Device, DeviceId, DeviceRequest, Engine, EngineError, Precision, Session,
};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Event};
use cytoscope_volume::{Array, Axes};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Number of runs of a session after which the GPU fails: three steps that are timed, and three of the run.
const RUNS: usize = 6;

/// A GPU that computes with the reference executor.
struct Gpu(Device);

impl Engine for Gpu {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.0
    }

    fn compile(&self, graph: &Graph, _: &[Vec<usize>], _: &CompileOptions) -> Result<Box<dyn Session>, EngineError> {
        Ok(Box::new(GpuSession { graph: graph.clone(), report: CompileReport::default(), id: self.0.id, runs: 0 }))
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
        if self.runs >= RUNS {
            return Err(EngineError::Device { device: self.id, reason: "it has no power".to_owned() });
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

/// The GPU and the CPU.
fn devices() -> Devices {
    let cpu = Devices::cpu_only().list()[0].clone();
    let (id, name, precisions) = (DeviceId::Cuda(0), "a GPU".to_owned(), vec![Precision::F32]);
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
        for (ending, values) in [("raw", raw), ("labels", (0..count).map(label).collect())] {
            let array = Array::new(Axes::zyx(), shape.to_vec(), values).unwrap();
            let path = folder.join(format!("stack{pair}_{ending}.tif"));
            write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
    }
}

/// A run of six steps on the GPU, with validations after every second one.
fn job(folder: &Path, out: &str, may_change_device: bool) -> TrainJob {
    let config = json!({
        "patch_zyx": [4, 16, 16], "batch": 1, "norm_share": 1.0, "workers": 1, "performance": "off",
        "network": {"filters": [4], "convs_per_block": 1}, "budget": {"steps": 6}, "validation": {"times": 3},
    });
    let job = json!({
        "task": "segmentation", "data": folder.join("pairs"), "from": "scratch", "out": folder.join(out),
        "config": config, "without_int8": true, "threads": 2,
    });
    let job: TrainJob = serde_json::from_value(job).unwrap();
    TrainJob { device: DeviceRequest::Device(DeviceId::Cuda(0)), may_change_device, ..job }
}

#[test]
fn another_device_continues_from_the_last_good_state_unless_the_user_chose_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_pairs(&folder.join("pairs"));
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&events);
    let sink = move |event: &Event| kept.lock().unwrap().push(event.clone());
    let context = Context { sink: Arc::new(sink), ..Context::default() };
    let report = job(folder, "changed", true).run(&context, &devices(), &|_| ()).unwrap();
    let cpu = Devices::cpu_only().list()[0].name.clone();
    assert_eq!((report.steps, report.device), (6, format!("a GPU, then {cpu}")));
    // The last validation was after the second step.
    let failed = "cuda:0 failed at step 3: training goes back to step 2".to_owned();
    assert!(report.history.notes.contains(&failed), "{:?}", report.history.notes);
    let steps: Vec<u64> = report.history.steps.iter().map(|point| point.step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6], "each step is in the curve once");
    let events = events.lock().unwrap();
    let says = |text: &str| events.iter().any(|e| matches!(e, Event::Note { message } if message.contains(text)));
    assert!(says("it has no power; continuing on cpu") && says("resuming after step 2 of 6"), "{events:?}");
    let (id, reason) = (DeviceId::Cuda(0), "it has no power".to_owned());
    assert!(events.contains(&Event::DeviceLost { id, reason }), "{events:?}");
    let last = events.iter().rev().find_map(|e| if let Event::Device(device) = e { Some(device.id) } else { None });
    assert_eq!(last, Some(DeviceId::Cpu));
    // The user chose the GPU.
    let chosen = job(folder, "chosen", false);
    let refused = chosen.run(&Context::default(), &devices(), &|_| ()).unwrap_err().to_string();
    assert!(refused.contains("it has no power") && refused.contains("--resume --device cpu"), "{refused}");
    assert_eq!(chosen.checkpoint_summary().map(|summary| (summary.step, summary.steps)), Some((2, 6)));
}

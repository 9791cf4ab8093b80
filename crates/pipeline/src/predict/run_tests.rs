//! Behavior of a prediction if its device fails or runs out of memory, or if values overflow its precision.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use super::super::test_common::{noise, relative_distance, save_package};
use super::*;
use crate::job::lost_devices;
use crate::predict::{PredictOptions, TileRequest, VolumeOutputs, predict_volume_on_devices};
use cytoscope_builders::{DifferenceOfGaussians, difference_of_gaussians};
use cytoscope_engine::select::Choice;
use cytoscope_engine::{
    CompileOptions, CompileReport, Device, DeviceId, DeviceRequest, Engine, EngineError, Precision, Session,
};
use cytoscope_engine_cpu::CpuEngine;
use cytoscope_formats::{Container, OpenOptions, WriteSpec, image_in_memory, open, write_array};
use cytoscope_graph::{Activation, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, Op, Padding, Tensor};
use cytoscope_volume::{Array, Axes, VoxelSize};

/// Bytes that a session takes for each voxel of its tiles.
const VOXEL_BYTES: u64 = 100;
/// Memory of the GPU, which leaves 8 MB for sessions. One tile may take a quarter of that.
const GPU_BYTES: u64 = 8 * 1_142_858;
/// A stack of four tiles of 8 × 32 × 64 voxels, the largest ones that fit a quarter of the memory: the network's receptive
/// field extends 5 voxels along X. All four fit the memory together.
const LARGE: [usize; 3] = [8, 32, 216];

/// A GPU that computes what the CPU does, as long as a session takes at most `room_bytes`. Its 16-bit floats overflow.
struct Gpu {
    device: Device,
    room_bytes: u64,
    /// Number of runs of a session after which the GPU fails.
    lasts: usize,
    cpu: CpuEngine,
}

impl Engine for Gpu {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError> {
        let wide = CompileOptions { precision: Precision::F32, ..options.clone() };
        let cpu = self.cpu.compile(graph, input_shapes, &wide)?;
        let shape = &input_shapes[0];
        let arena_bytes = shape.iter().product::<usize>() as u64 * VOXEL_BYTES;
        let report = CompileReport { arena_bytes, weight_bytes: 0, ..cpu.report().clone() };
        let (batch, room_bytes, lasts, id) = (shape[0], self.room_bytes, self.lasts, self.device.id);
        let overflows = options.precision.is_half();
        Ok(Box::new(GpuSession { cpu, report, id, batch, room_bytes, lasts, overflows, runs: 0 }))
    }
}

struct GpuSession {
    cpu: Box<dyn Session>,
    report: CompileReport,
    id: DeviceId,
    batch: usize,
    room_bytes: u64,
    lasts: usize,
    overflows: bool,
    runs: usize,
}

impl Session for GpuSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        if self.runs >= self.lasts {
            return Err(EngineError::Device { device: self.id, reason: "it has no power".into() });
        }
        self.runs += 1;
        let needed_bytes = self.report.arena_bytes;
        // The first tile is computed, so that a part of the results exists when the memory runs out.
        if needed_bytes > self.room_bytes && (self.batch > 1 || self.runs > 1) {
            let available_bytes = self.room_bytes;
            return Err(EngineError::OutOfMemory { device: self.id, needed_bytes, available_bytes });
        }
        let mut outputs = self.cpu.run(inputs)?;
        if self.overflows {
            let mut values = outputs[0].as_f32().unwrap().to_vec();
            values[7] = f32::INFINITY;
            outputs[0] = Tensor::new(outputs[0].shape().to_vec(), values)?;
        }
        Ok(outputs)
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }
}

/// The GPU, as it was selected for a job.
fn gpu(room_bytes: u64) -> SelectedEngine {
    selected(room_bytes, usize::MAX)
}

fn device(id: DeviceId) -> Device {
    Device {
        id,
        name: "a GPU".to_owned(),
        memory_bytes: Some(GPU_BYTES),
        free_bytes: Some(GPU_BYTES),
        reason: String::new(),
        precisions: vec![Precision::F32, Precision::F16],
        ..CpuEngine::new().device().clone()
    }
}

fn selected(room_bytes: u64, lasts: usize) -> SelectedEngine {
    let device = device(DeviceId::Cuda(0));
    let (why, measurements) = ("requested".into(), Vec::new());
    let choice = Choice { device: device.id, precision: Precision::F32, why, measurements };
    SelectedEngine::new(Box::new(Gpu { device, room_bytes, lasts, cpu: CpuEngine::new() }), choice)
}

/// Opens GPUs that fail after one run.
fn open_failing(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    let cpu = CpuEngine::new();
    match device.id {
        DeviceId::Cpu => Ok(Box::new(cpu)),
        _ => Ok(Box::new(Gpu { device: device.clone(), room_bytes: u64::MAX, lasts: 1, cpu })),
    }
}

/// Opens no device.
fn open_none(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    Err(EngineError::Unavailable { device: device.id, reason: "it is gone".into() })
}

/// Opens devices that fail in their first run.
fn open_spent(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    Ok(Box::new(Gpu { device: device.clone(), room_bytes: u64::MAX, lasts: 0, cpu: CpuEngine::new() }))
}

/// Opens GPUs that fail in their first run, and the CPU.
fn open_broken(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    match device.id {
        DeviceId::Cpu => Ok(Box::new(CpuEngine::new())),
        _ => open_spent(device),
    }
}

/// A folder with a model and stacks.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        let config = DifferenceOfGaussians {
            sigma_small: [0.5, 0.8, 0.8],
            sigma_large: [1.0, 1.6, 2.0],
            truncate: 2.5,
            ..DifferenceOfGaussians::default()
        };
        save_package(&difference_of_gaussians(&config).unwrap(), &fixture.path("model"));
        fixture.add_stack("large", LARGE);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn add_stack(&self, name: &str, shape: [usize; 3]) {
        let array = Array::new(Axes::zyx(), shape.to_vec(), noise(1, shape.iter().product())).unwrap();
        let path = self.path(&format!("{name}.npy"));
        write_array(&path, &array, &WriteSpec::of(&array, Container::Npy)).unwrap();
    }

    /// The job that predicts stacks.
    fn job(&self, stacks: &[&str], out: &str) -> PredictJob {
        let inputs = stacks.iter().map(|name| self.path(&format!("{name}.npy"))).collect();
        PredictJob {
            device: DeviceRequest::Device(DeviceId::Cpu),
            outputs: [Output::Maps].into(),
            axes: Some(Axes::zyx()),
            threads: 2,
            ..PredictJob::new(inputs, self.path("model").to_string_lossy().into_owned(), self.path(out))
        }
    }

    /// Predicts on an engine, and on the CPU if that fails; returns the reports and the events.
    fn predict(&self, job: &PredictJob, engine: SelectedEngine) -> (Vec<InputReport>, Vec<Event>) {
        let (outcome, events) = self.predict_on(job, engine, &Devices::cpu_only());
        assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
        (outcome.done, events)
    }

    /// Predicts on an engine, and on one of these devices if that fails.
    fn predict_on(
        &self,
        job: &PredictJob,
        mut engine: SelectedEngine,
        devices: &Devices,
    ) -> (PredictOutcome, Vec<Event>) {
        std::fs::create_dir_all(&job.out).unwrap();
        let model = Model::load(&job.model).unwrap();
        let (context, events) = Context::recording_events();
        let inputs = job.series_inputs(&job.inputs);
        let outcome = job.predict_each(&context, devices, &model, &mut engine, inputs, None).unwrap();
        let events = events.lock().unwrap().clone();
        (outcome, events)
    }

    /// Number of files in the folder of the results.
    fn files(&self, out: &str) -> usize {
        std::fs::read_dir(self.path(out)).unwrap().count()
    }

    /// The maps that a prediction of a stack wrote.
    fn maps(&self, out: &str, stack: &str) -> Vec<f32> {
        let image = open(&self.path(out).join(format!("{stack}_prediction.tif")), &OpenOptions::default()).unwrap();
        image.read_all().unwrap().samples().to_f32()
    }

    /// The maps of the CPU.
    fn cpu_maps(&self, stack: &str) -> Vec<f32> {
        let outcome = self.job(&[stack], "cpu").run(&Context::default(), &Devices::cpu_only()).unwrap();
        assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
        self.maps("cpu", stack)
    }
}

#[test]
fn a_network_that_overflows_in_16_bits_is_computed_in_32() {
    let fixture = Fixture::new();
    let job = PredictJob { precision: Some(Precision::F16), ..fixture.job(&["large"], "out") };
    let (reports, events) = fixture.predict(&job, gpu(u64::MAX));
    let report = &reports[0];
    assert_eq!((report.device.id, report.precision), (DeviceId::Cuda(0), Precision::F32));
    let note = report.notes.iter().find(|note| note.message.contains("NaN or infinite in f16 on cuda:0"));
    assert!(note.is_some_and(|note| note.message.ends_with("computing in f32")), "{:?}", report.notes);
    assert!(events.iter().any(|event| matches!(event, Event::Note(shown) if Some(shown) == note)), "{events:?}");
    let distance = relative_distance(&fixture.maps("out", "large"), &fixture.cpu_maps("large"));
    assert!(distance < 1e-5, "{distance:.1e}");
}

#[test]
fn inputs_after_one_that_overflows_in_16_bits_are_computed_in_32_at_once() {
    let fixture = Fixture::new();
    fixture.add_stack("small", [4, 16, 16]);
    fixture.add_stack("other", [4, 16, 16]);
    let stacks = ["large", "small", "other"];
    let job = PredictJob { precision: Some(Precision::F16), ..fixture.job(&stacks, "out") };
    let (reports, events) = fixture.predict(&job, gpu(u64::MAX));
    assert_eq!(reports.iter().map(|report| report.precision).collect::<Vec<_>>(), [Precision::F32; 3]);
    let overflows = |event: &&Event| matches!(event, Event::Note(note) if note.message.contains("NaN or infinite"));
    assert_eq!(events.iter().filter(overflows).count(), 1, "{events:?}");
    for report in &reports[1..] {
        let has = |text: &str| report.notes.iter().any(|note| note.message.contains(text));
        assert!(has("an earlier input exceeded the range"), "{:?}", report.notes);
    }
    let distance = relative_distance(&fixture.maps("out", "small"), &fixture.cpu_maps("small"));
    assert!(distance < 1e-5, "{distance:.1e}");
}

/// Returns the attempts after the GPU ran out of memory, according to the notes.
fn attempts(report: &InputReport) -> Vec<&'static str> {
    let known = ["trying fewer tiles at once", "trying smaller tiles", "continuing on the CPU"];
    report.notes.iter().filter_map(|note| known.into_iter().find(|end| note.message.ends_with(end))).collect()
}

#[test]
fn fewer_tiles_then_smaller_ones_then_the_cpu_are_tried_after_running_out_of_memory() {
    let fixture = Fixture::new();
    let expected = fixture.cpu_maps("large");
    let tile = |columns: usize, tiles: u64| tiles * (LARGE[0] * LARGE[1] * columns) as u64 * VOXEL_BYTES;
    let (fewer, smaller, cpu) = ("trying fewer tiles at once", "trying smaller tiles", "continuing on the CPU");
    // The memory that the GPU really has, the attempts, and the tiles that are computed together in the end.
    let cases = [
        (tile(64, 4), vec![], Some(([8, 32, 64], 4))),
        (tile(64, 2), vec![fewer], Some(([8, 32, 64], 2))),
        (tile(64, 1), vec![fewer, fewer], Some(([8, 32, 64], 1))),
        (tile(32, 1), vec![fewer, fewer, smaller], Some(([8, 32, 32], 1))),
        (0, vec![fewer, fewer, smaller, smaller, cpu], None),
    ];
    for (index, (room_bytes, tried, tiles)) in cases.into_iter().enumerate() {
        let out = format!("out-{index}");
        let (reports, events) = fixture.predict(&fixture.job(&["large"], &out), gpu(room_bytes));
        let report = &reports[0];
        assert_eq!(attempts(report), tried, "{room_bytes} bytes: {:?}", report.notes);
        let shown = events.iter().filter(|event| matches!(event, Event::Note(note) if note.message.contains("memory")));
        assert_eq!(shown.count(), tried.len(), "notes are shown at once, too");
        let got = fixture.maps(&out, "large");
        match tiles {
            Some(tiles) => {
                let plan = report.plan.as_ref().unwrap();
                assert_eq!((report.device.id, (plan.tile, plan.batch)), (DeviceId::Cuda(0), tiles));
                let distance = relative_distance(&got, &expected);
                assert!(distance < 1e-5, "{room_bytes} bytes: {distance:.1e}");
            }
            None => {
                assert_eq!(report.device.id, DeviceId::Cpu);
                assert!(got == expected, "the CPU's own result");
            }
        }
    }
}

#[test]
fn requested_tiles_are_not_made_smaller_but_fewer_are_computed_at_once() {
    let fixture = Fixture::new();
    let tiles = TileRequest { tile: Some([8, 32, 64]), ..TileRequest::default() };
    for (room_bytes, tried) in [
        (1_638_400, vec!["trying fewer tiles at once"; 2]),
        (0, vec!["trying fewer tiles at once", "trying fewer tiles at once", "continuing on the CPU"]),
    ] {
        let job = PredictJob { tiles: tiles.clone(), ..fixture.job(&["large"], &format!("out-{room_bytes}")) };
        let (reports, _) = fixture.predict(&job, gpu(room_bytes));
        assert_eq!(attempts(&reports[0]), tried, "{:?}", reports[0].notes);
        assert_eq!(reports[0].plan.as_ref().unwrap().tile, [8, 32, 64]);
    }
}

/// The devices that a job has reported, and those of the reports.
fn reported_devices(reports: &[InputReport], events: &[Event]) -> [Vec<DeviceId>; 2] {
    let reported = events.iter().filter_map(|event| match event {
        Event::Device(device) => Some(device.id),
        _ => None,
    });
    [reported.collect(), reports.iter().map(|report| report.device.id).collect()]
}

#[test]
fn a_volume_in_memory_is_predicted_with_fewer_tiles_in_32_bits_or_on_the_cpu_too() {
    let fixture = Fixture::new();
    let model = Model::load(&fixture.path("model").to_string_lossy()).unwrap();
    let array = Array::new(Axes::zyx(), LARGE.to_vec(), noise(1, LARGE.iter().product())).unwrap();
    let image = image_in_memory(Path::new("large"), array, VoxelSize::default()).unwrap();
    let expected = fixture.cpu_maps("large");
    let one_tile = (LARGE[0] * LARGE[1] * 64) as u64 * VOXEL_BYTES;
    let cases = [
        (gpu(u64::MAX), Some(Precision::F16), DeviceId::Cuda(0), "computing in f32"),
        (gpu(one_tile), None, DeviceId::Cuda(0), "trying fewer tiles at once"),
        (gpu(0), None, DeviceId::Cpu, "continuing on the CPU"),
        (selected(u64::MAX, 0), None, DeviceId::Cpu, "continuing on the CPU"),
    ];
    let (context, devices) = (Context::default(), Devices::cpu_only());
    for (mut engine, precision, device, end) in cases {
        let options = PredictOptions { precision, threads: 2, ..PredictOptions::default() };
        let maps = VolumeOutputs::Maps;
        let volume =
            predict_volume_on_devices(&context, &devices, &mut engine, &model, &image, &options, maps).unwrap();
        assert!(volume.notes.iter().any(|note| note.message.ends_with(end)), "{end}: {:?}", volume.notes);
        assert_eq!((engine.choice.id, volume.precision), (device, Precision::F32), "{end}");
        let distance = relative_distance(&volume.maps.unwrap(), &expected);
        assert!(distance < 1e-5, "{end}: {distance:.1e}");
        // What has failed is not tried again for the next volume.
        let next = predict_volume_on_devices(&context, &devices, &mut engine, &model, &image, &options, maps).unwrap();
        assert!(!next.notes.iter().any(|note| note.message.ends_with(end)), "{end}: {:?}", next.notes);
    }
}

#[test]
fn a_stack_that_does_not_fit_the_gpu_does_not_send_the_next_one_to_the_cpu() {
    let fixture = Fixture::new();
    fixture.add_stack("small", [4, 16, 16]);
    let (reports, events) = fixture.predict(&fixture.job(&["large", "small"], "out"), gpu(500_000));
    let both = vec![DeviceId::Cpu, DeviceId::Cuda(0)];
    assert_eq!(reported_devices(&reports, &events), [both.clone(), both]);
    assert!(!attempts(&reports[0]).is_empty() && attempts(&reports[1]).is_empty(), "{:?}", reports[1].notes);
    let distance = relative_distance(&fixture.maps("out", "small"), &fixture.cpu_maps("small"));
    assert!(distance < 1e-5, "{distance:.1e}");
}

#[test]
fn a_gpu_that_has_failed_is_not_used_again() {
    let fixture = Fixture::new();
    fixture.add_stack("small", [4, 16, 16]);
    let (reports, events) = fixture.predict(&fixture.job(&["large", "small"], "out"), selected(u64::MAX, 0));
    assert_eq!(reported_devices(&reports, &events), [vec![DeviceId::Cpu], vec![DeviceId::Cpu; 2]]);
    assert_eq!([attempts(&reports[0]), attempts(&reports[1])], [vec!["continuing on the CPU"], vec![]]);
}

#[test]
fn a_gpu_that_fails_while_devices_are_compared_is_reported() {
    let fixture = Fixture::new();
    let job = fixture.job(&["large"], "out");
    let model = Model::load(&job.model).unwrap();
    let all = vec![device(DeviceId::Cuda(0)), CpuEngine::new().device().clone()];
    let (context, events) = Context::recording_events();
    let devices = Devices::with_engines(all, open_spent);
    // The CPU fails, too, so that no time is stored.
    assert!(devices.for_model(&context, &model, DeviceRequest::Auto, &job.options()).is_err());
    let lost = lost_devices(&events);
    assert!(!lost.is_empty() && lost.iter().all(|id| *id == DeviceId::Cuda(0)), "{lost:?}");
}

#[test]
fn an_object_diameter_is_estimated_on_the_cpu_if_the_gpu_fails() {
    let fixture = Fixture::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
    let (context, events) = Context::recording_events();
    let all = vec![device(DeviceId::Cuda(0)), CpuEngine::new().device().clone()];
    let devices = Devices::with_engines(all, open_broken);
    let estimate = |id: DeviceId| {
        let prediction = PredictJob {
            device: DeviceRequest::Device(id),
            precision: Some(Precision::F32),
            model: model.to_string_lossy().into_owned(),
            voxel_um: Some([1.75, 0.8, 0.8]),
            ..fixture.job(&["large"], "out")
        };
        crate::DiameterJob { prediction }.run(&context, &devices).unwrap()
    };
    assert_eq!(estimate(DeviceId::Cuda(0)), estimate(DeviceId::Cpu));
    let lost = lost_devices(&events);
    assert!(!lost.is_empty() && lost.iter().all(|id| *id == DeviceId::Cuda(0)), "{lost:?}");
}

/// A stack of several slabs of the GPU's tiles of 32 × 16 × 32 voxels.
const DEEP: [usize; 3] = [96, 16, 32];

#[test]
fn the_next_gpu_and_then_the_cpu_continue_after_the_finished_slices() {
    let fixture = Fixture::new();
    fixture.add_stack("deep", DEEP);
    let ids = [DeviceId::Cuda(0), DeviceId::Cuda(1), DeviceId::Cpu];
    let devices = [device(ids[0]), device(ids[1]), CpuEngine::new().device().clone()];
    let devices = Devices::with_engines(devices.to_vec(), open_failing);
    let job = fixture.job(&["deep"], "out");
    let (outcome, events) = fixture.predict_on(&job, selected(u64::MAX, 1), &devices);
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    let report = &outcome.done[0];
    assert_eq!(reported_devices(&outcome.done, &events), [ids[1..].to_vec(), vec![DeviceId::Cpu]]);
    let lost = events.iter().filter_map(|event| match event {
        Event::DeviceLost { id, reason } if reason == "it has no power" => Some(*id),
        _ => None,
    });
    assert_eq!(lost.collect::<Vec<DeviceId>>(), ids[..2].to_vec());
    // Each GPU has computed one slab.
    assert_eq!(report.parts.iter().map(|part| part.device).collect::<Vec<_>>(), ids, "{:?}", report.parts);
    assert!(report.parts.iter().all(|part| part.slices > 0 && part.precision == Precision::F32));
    assert_eq!(report.parts.iter().map(|part| part.slices).sum::<usize>(), DEEP[0]);
    let finished = DEEP[0] - report.parts[2].slices;
    let has = |text: &str| report.notes.iter().any(|note| note.message.contains(text));
    assert!(has("continuing on cuda:1") && has("continuing on the CPU"), "{:?}", report.notes);
    assert!(has(&format!("continued after {finished} slices that were finished before")), "{:?}", report.notes);
    let distance = relative_distance(&fixture.maps("out", "deep"), &fixture.cpu_maps("deep"));
    assert!(distance < 1e-5, "{distance:.1e}");
    assert_eq!(fixture.files("out"), report.outputs.len(), "no slices are left");
    let record = crate::provenance::read(&fixture.path("out").join("deep_provenance.json")).unwrap();
    assert_eq!(record.parts, report.parts);
}

#[test]
fn smaller_tiles_continue_after_the_slices_of_larger_ones() {
    let fixture = Fixture::new();
    // The first tile has 64 slices, of which 61 are kept. The remaining memory suffices for tiles of 32 slices.
    fixture.add_stack("thin", [120, 8, 32]);
    let room_voxels = 32 * 8 * 32;
    let (reports, _) = fixture.predict(&fixture.job(&["thin"], "out"), gpu(room_voxels as u64 * VOXEL_BYTES));
    let report = &reports[0];
    assert_eq!(attempts(report), ["trying smaller tiles"], "{:?} {:?}", report.notes, report.plan);
    let tile = report.plan.as_ref().unwrap().tile;
    assert_eq!((report.device.id, tile.iter().product()), (DeviceId::Cuda(0), room_voxels));
    let continued = Note::info("continued after 61 slices that were finished before");
    assert!(report.notes.contains(&continued) && report.parts.is_empty(), "{:?}", report.notes);
    let distance = relative_distance(&fixture.maps("out", "thin"), &fixture.cpu_maps("thin"));
    assert!(distance < 1e-5, "{distance:.1e}");
}

#[test]
fn blended_tiles_keep_their_size_on_the_next_device() {
    let fixture = Fixture::new();
    fixture.add_stack("deep", DEEP);
    let tiles = TileRequest { blend: Some(crate::predict::Blend::Gaussian), ..TileRequest::default() };
    let job = PredictJob { tiles, ..fixture.job(&["deep"], "out") };
    let (reports, _) = fixture.predict(&job, selected(u64::MAX, 1));
    let report = &reports[0];
    let tile = report.plan.as_ref().unwrap().tile;
    assert_eq!((report.device.id, tile), (DeviceId::Cpu, [32, 16, 32]), "{:?}", report.notes);
    assert_eq!(report.parts.len(), 2, "{:?}", report.parts);
    let tiles = TileRequest { tile: Some([32, 16, 32]), ..job.tiles.clone() };
    let same = PredictJob { tiles, ..fixture.job(&["deep"], "same") };
    assert!(same.run(&Context::default(), &Devices::cpu_only()).unwrap().failed.is_empty());
    let distance = relative_distance(&fixture.maps("out", "deep"), &fixture.maps("same", "deep"));
    assert!(distance < 1e-5, "{distance:.1e}");
}

#[test]
fn slices_of_a_small_prediction_are_removed_if_no_device_can_continue() {
    let fixture = Fixture::new();
    fixture.add_stack("deep", DEEP);
    let devices = Devices::with_engines(vec![CpuEngine::new().device().clone()], open_none);
    let (outcome, _) = fixture.predict_on(&fixture.job(&["deep"], "out"), selected(u64::MAX, 1), &devices);
    assert!(outcome.failed.len() == 1 && outcome.failed[0].message.contains("it is gone"), "{:?}", outcome.failed);
    assert_eq!(fixture.files("out"), 0);
}

#[test]
fn the_cpu_computes_instead_of_a_device_that_has_failed_in_an_earlier_run() {
    let fixture = Fixture::new();
    fixture.add_stack("small", [4, 16, 16]);
    let because = "cuda:0 was in use when the process ended";
    let job = PredictJob {
        device: DeviceRequest::Device(DeviceId::Cuda(0)),
        precision: Some(Precision::F16),
        cpu_because: Some(because.to_owned()),
        ..fixture.job(&["small"], "out")
    };
    let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
    let report = &outcome.done[0];
    assert_eq!((report.device.id, report.precision), (DeviceId::Cpu, Precision::F32));
    assert_eq!(report.device.why, because);
    let record = crate::provenance::read(&fixture.path("out").join("small_provenance.json")).unwrap();
    assert_eq!((record.job.device, record.job.cpu_because), (job.device, None));
}

/// A network that keeps its first 64 columns only.
fn first_columns() -> Graph {
    let mut graph = Graph::new("first columns");
    let shape = [1, 1].map(Dim::Fixed).into_iter().chain(["z", "y", "x"].map(|name| Dim::Free(name.into()))).collect();
    let x = graph.add_input("x", ElementType::F32, shape);
    let arguments = [("start", 0i64), ("end", 64), ("axis", 4)];
    let [start, end, axis] =
        arguments.map(|(name, value)| Some(graph.add_initializer(name, Tensor::vector(vec![value]))));
    let cropped = graph.push("cropped", Op::Slice, &[Some(x), start, end, axis]);
    let y = graph.push("y", Op::Activation(Activation::Relu), &[Some(cropped)]);
    graph.outputs.push(y);
    graph
}

/// Tiles whose size the network does not keep would fail while the stack is predicted.
#[test]
fn tiles_have_a_size_that_the_network_keeps() {
    let fixture = Fixture::new();
    save_package(&first_columns(), &fixture.path("columns"));
    let (name, blend) = (fixture.path("columns").to_string_lossy().into_owned(), Some(crate::predict::Blend::Gaussian));
    let run = |tile: Option<[usize; 3]>, out: &str| {
        let tiles = TileRequest { tile, blend, ..TileRequest::default() };
        let job = PredictJob { model: name.clone(), tiles, ..fixture.job(&["large"], out) };
        job.run(&Context::default(), &Devices::cpu_only()).unwrap()
    };
    let chosen = run(None, "chosen");
    assert!(chosen.failed.is_empty(), "{:?}", chosen.failed);
    let tile = chosen.done[0].plan.as_ref().unwrap().tile;
    assert!(tile[2] <= 64, "{tile:?}");
    let expected: Vec<f32> = noise(1, LARGE.iter().product()).into_iter().map(|v| v.max(0.0)).collect();
    let distance = relative_distance(&fixture.maps("chosen", "large"), &expected);
    assert!(distance < 1e-5, "{distance:.1e}");
    let refused = run(Some([8, 32, 96]), "refused");
    let message = refused.failed.first().map(|failed| failed.message.as_str()).unwrap_or_default();
    assert!(message.contains("--tile") && message.contains("[1, 1, 8, 32, 64]"), "{message}");
    assert!(!fixture.path("refused/large_prediction.tif").exists());
}

/// Two convolutions without padding, with strides of 2, which keep odd lengths only.
fn keeps_odd_lengths() -> Graph {
    let mut graph = Graph::new("odd lengths");
    let shape = [1, 1].map(Dim::Fixed).into_iter().chain(["z", "y", "x"].map(|name| Dim::Free(name.into()))).collect();
    let x = graph.add_input("x", ElementType::F32, shape);
    let weights = graph.add_initializer("w", Tensor::new([1, 1, 3, 3, 3], vec![0.1f32; 27]).unwrap());
    let padding = Padding::none(3);
    let half = ConvAttrs { padding: padding.clone(), ..ConvAttrs::same(&[3; 3]).with_strides(&[2; 3]) };
    let half = graph.push("half", Op::Conv(half), &[Some(x), Some(weights)]);
    let twice = ConvTransposeAttrs { kernel: vec![3; 3], padding, ..ConvTransposeAttrs::upsample(&[2; 3]) };
    let y = graph.push("y", Op::ConvTranspose(twice), &[Some(half), Some(weights)]);
    graph.outputs.push(y);
    graph
}

/// Tiles have lengths that are multiples of the stride.
#[test]
fn a_network_that_keeps_no_size_of_its_tiles_is_refused_before_the_prediction() {
    let fixture = Fixture::new();
    save_package(&keeps_odd_lengths(), &fixture.path("odd"));
    let job =
        PredictJob { model: fixture.path("odd").to_string_lossy().into_owned(), ..fixture.job(&["large"], "out") };
    let outcome = job.run(&Context::default(), &Devices::cpu_only()).unwrap();
    let message = outcome.failed.first().map(|failed| failed.message.as_str()).unwrap_or_default();
    assert!(message.contains("the same shape as their input can be tiled"), "{message}");
    assert!(!fixture.path("out/large_prediction.tif").exists());
}

//! The choice of a device and precision, its explanation, and the cache of times.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use crate::{CompileOptions, CompileReport};
use cytoscope_graph::Graph;
use std::time::Duration;

/// Computes nothing: its sessions are made by the probe.
struct Fake(Device);

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn device(&self) -> &Device {
        &self.0
    }

    fn compile(&self, _: &Graph, _: &[Vec<usize>], _: &CompileOptions) -> Result<Box<dyn Session>, EngineError> {
        Err(EngineError::BadDevice { text: "fake".to_owned() })
    }
}

/// Takes some time and returns its output.
struct Fixed {
    time: Duration,
    output: Vec<f32>,
    report: CompileReport,
}

impl Session for Fixed {
    fn run(&mut self, _: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        std::thread::sleep(self.time);
        Ok(vec![Tensor::vector(self.output.clone())])
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }
}

fn fake(id: DeviceId, precisions: &[Precision]) -> Box<dyn Engine> {
    Box::new(Fake(Device { driver: "1.0".to_owned(), ..Device::named(id, "a device", precisions) }))
}

/// Sleeps 40 ms in f32, 2 ms in f16 and 0 ms in bf16, whose outputs differ by 3e-4 and 3e-2.
fn session(_: &dyn Engine, precision: Precision) -> Result<Box<dyn Session>, EngineError> {
    let (millis, error) = match precision {
        Precision::F16 => (2, 3e-4),
        Precision::Bf16 => (0, 3e-2),
        _ => (40, 0.0),
    };
    let output = vec![3.0 * (1.0 + error), 4.0 * (1.0 + error)];
    Ok(Box::new(Fixed { time: Duration::from_millis(millis), output, report: CompileReport::default() }))
}

/// [`Fixed`], compiled with a lowered memory limit of 500 bytes.
struct Lowered(Fixed);

impl Session for Lowered {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        self.0.run(inputs)
    }

    fn report(&self) -> &CompileReport {
        self.0.report()
    }

    fn lowered_limit_bytes(&self) -> Option<u64> {
        Some(500)
    }
}

fn lowered(_: &dyn Engine, _: Precision) -> Result<Box<dyn Session>, EngineError> {
    let (time, output, report) = (Duration::ZERO, vec![1.0], CompileReport::default());
    Ok(Box::new(Lowered(Fixed { time, output, report })))
}

fn never(_: &dyn Engine, _: Precision) -> Result<Box<dyn Session>, EngineError> {
    Err(EngineError::BadDevice { text: "measured again".to_owned() })
}

fn device_precisions(device: &Device) -> Vec<Precision> {
    device.precisions.clone()
}

const ALL: [Precision; 3] = [Precision::F16, Precision::Bf16, Precision::F32];

fn chosen(engines: &[Box<dyn Engine>], compile: &CompileFor<'_>, cache: &mut Cache) -> Result<Choice, EngineError> {
    let (precisions, on_error) = (&device_precisions, &|_: &EngineError| {});
    let probe = Probe { fingerprint: "m", inputs: &[], unit: "tile", threads: 1, precisions, compile, on_error };
    fastest(engines, &[], &probe, cache)
}

#[test]
fn the_fastest_precision_within_the_error_budget_is_chosen_and_remembered() {
    let engines = [fake(DeviceId::Cuda(0), &ALL)];
    let mut cache = Cache::in_memory();
    let choice = chosen(&engines, &session, &mut cache).unwrap();
    assert_eq!((choice.device, choice.precision), (DeviceId::Cuda(0), Precision::F16), "{}", choice.why);
    assert!(
        choice.why.starts_with("cuda:0 f16: ") && choice.why.contains(" times the speed of cuda:0 f32"),
        "{}",
        choice.why
    );
    let rejected = "cuda:0 bf16 is faster, but its results differ by 3.0e-2 from f32, which is more than 5e-3";
    assert!(choice.why.ends_with(rejected), "{}", choice.why);
    let error = choice.measurements.iter().find(|m| m.precision == Some(Precision::F16)).unwrap().error.unwrap();
    assert!((error - 3e-4).abs() < 1e-6, "{error}");
    let again = chosen(&engines, &never, &mut cache).unwrap();
    assert_eq!((again.precision, again.why), (choice.precision, choice.why));
    assert!(again.measurements.iter().all(|m| m.cached));
    let stored = cache.stored("m", &[], 1);
    let by_precision = |all: &[Measurement]| -> BTreeMap<&'static str, Option<f64>> {
        all.iter().filter_map(|m| Some((m.precision?.name(), m.usable_ms()))).collect()
    };
    assert_eq!(by_precision(&stored), by_precision(&again.measurements), "bf16 has too large an error");
    assert!(cache.stored("m", &[], 2).is_empty() && cache.stored("another", &[], 1).is_empty());
    cache.forget("another");
    assert!(chosen(&engines, &never, &mut cache).is_ok());
    cache.forget("m");
    assert!(chosen(&engines, &never, &mut cache).is_err());
}

#[test]
fn a_gpu_with_less_memory_than_one_of_the_same_name_is_measured_on_its_own() {
    let engines = |id: DeviceId, gib: u64| -> [Box<dyn Engine>; 1] {
        let device = Device { memory_bytes: Some(gib << 30), ..fake(id, &ALL).device().clone() };
        [Box::new(Fake(device))]
    };
    let mut cache = Cache::in_memory();
    chosen(&engines(DeviceId::Cuda(0), 80), &session, &mut cache).unwrap();
    assert!(chosen(&engines(DeviceId::Cuda(0), 80), &never, &mut cache).is_ok());
    assert!(chosen(&engines(DeviceId::Cuda(0), 10), &never, &mut cache).is_err(), "everything is measured again");
    // The CPU is measured once, however much memory is available.
    chosen(&engines(DeviceId::Cpu, 80), &session, &mut cache).unwrap();
    assert!(chosen(&engines(DeviceId::Cpu, 79), &never, &mut cache).is_ok());
}

#[test]
fn measurements_of_other_kernels_are_not_used() {
    let folder = std::env::temp_dir().join(format!("cytoscope-measurements-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("times.json");
    let gpu = || [fake(DeviceId::Cuda(0), &ALL)];
    let cpu = || [fake(DeviceId::Cpu, &[Precision::F32, Precision::Int8])];
    let open = |cpu, gpu| Cache::open(&file, KernelVersions { cpu, gpu });
    let mut first = open("cpu 1", "gpu 1");
    chosen(&gpu(), &session, &mut first).unwrap();
    chosen(&cpu(), &session, &mut first).unwrap();
    let mut same = open("cpu 1", "gpu 1");
    assert_eq!(same.stored("m", &[], 1).len(), 5);
    assert!(chosen(&gpu(), &never, &mut same).is_ok() && chosen(&cpu(), &never, &mut same).is_ok());
    // The times of the CPU do not depend on the kernels of GPUs, nor the other way round.
    let changed_gpu = (("cpu 1", "gpu 2"), cpu(), 2, gpu());
    let changed_cpu = (("cpu 2", "gpu 1"), gpu(), 3, cpu());
    for ((cpu, gpu), known, count, other) in [changed_gpu, changed_cpu] {
        let mut cache = open(cpu, gpu);
        assert_eq!(cache.stored("m", &[], 1).len(), count, "{cpu}, {gpu}");
        assert!(chosen(&known, &never, &mut cache).is_ok(), "{cpu}, {gpu}");
        assert!(chosen(&other, &never, &mut cache).is_err(), "measured again: {cpu}, {gpu}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_processes_that_measure_keep_each_others_times() {
    let folder = std::env::temp_dir().join(format!("cytoscope-two-writers-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("times.json");
    let open = || Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
    let (mut one, mut other) = (open(), open());
    chosen(&[fake(DeviceId::Cuda(0), &ALL)], &session, &mut one).unwrap();
    chosen(&[fake(DeviceId::Cpu, &[Precision::F32, Precision::Int8])], &session, &mut other).unwrap();
    assert_eq!(open().stored("m", &[], 1).len(), 5);
    // Times that one process has forgotten stay forgotten when the other one stores its next time.
    one.forget("m");
    let (precisions, on_error) = (&device_precisions, &|_: &EngineError| {});
    let fingerprint = "another";
    let probe = Probe { fingerprint, inputs: &[], unit: "tile", threads: 1, precisions, compile: &session, on_error };
    let key = other.key(&probe, fake(DeviceId::Cpu, &[Precision::F32]).device(), Precision::F32);
    other.put(key, Entry::Time(Timing { best_ms: 1.0, error: None, lowered: None }));
    assert!(open().stored("m", &[], 1).is_empty());
    assert_eq!(open().stored("another", &[], 1).len(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn entries_of_earlier_versions_are_measured_again() {
    let folder = std::env::temp_dir().join(format!("cytoscope-earlier-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("times.json");
    let open = || Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
    std::fs::write(&file, r#"{"m|cpu|a CPU|None|avx2|f32|[]|1|cpu 1": {"best_ms": 1.0, "error": null}}"#).unwrap();
    assert!(open().stored("m", &[], 1).is_empty());
    let cpu = || [fake(DeviceId::Cpu, &[Precision::F32, Precision::Int8])];
    chosen(&cpu(), &session, &mut open()).unwrap();
    assert_eq!(open().stored("m", &[], 1).len(), 2);
    assert!(chosen(&cpu(), &never, &mut open()).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_time_without_a_comparison_does_not_make_a_precision_eligible() {
    let mut cache = Cache::in_memory();
    // Measured because it was requested: there was nothing to compare it with.
    let asked = [fake(DeviceId::Cuda(0), &[Precision::Bf16]), fake(DeviceId::Cpu, &[Precision::F32])];
    assert_eq!(chosen(&asked, &session, &mut cache).unwrap().precision, Precision::Bf16);
    let choice = chosen(&[fake(DeviceId::Cuda(0), &ALL)], &session, &mut cache).unwrap();
    assert_eq!(choice.precision, Precision::F16, "{}", choice.why);
}

#[test]
fn speeds_are_stated_relative_to_the_cpu() {
    let measured = |device, precision, best_ms: f64| Measurement {
        device,
        precision: Some(precision),
        best_ms: Some(best_ms),
        error: None,
        lowered_limit_bytes: None,
        reason: String::new(),
        cached: false,
    };
    let all = [
        measured(DeviceId::Cuda(0), Precision::F32, 6.0),
        measured(DeviceId::Cuda(0), Precision::Bf16, 2.0),
        measured(DeviceId::Wgpu(0), Precision::F32, 8.0),
        measured(DeviceId::Cpu, Precision::F32, 82.0),
    ];
    let text = |measurements: &[Measurement], chosen: usize, unit: &str| {
        choice_text(measurements, &measurements[chosen], unit, &[]).to_string()
    };
    let both = "cuda:0 bf16: 41 times the speed of the CPU; wgpu:0 f32: 10 times the speed of the CPU";
    assert_eq!(text(&all, 1, "tile"), both);
    for (best_ms, speed) in [(164.0, "0.50"), (8200.0, "0.01"), (82e3, "less than 0.01")] {
        let two = [measured(DeviceId::Wgpu(0), Precision::F32, best_ms), all[3].clone()];
        let expected = format!("cpu f32: 82.0 ms per tile; wgpu:0 f32: {speed} times the speed of the CPU");
        assert_eq!(text(&two, 1, "tile"), expected);
    }
    let gpus = [measured(DeviceId::Cuda(0), Precision::F32, 2.0), measured(DeviceId::Wgpu(0), Precision::F32, 4.0)];
    let expected = "cuda:0 f32: 2.0 ms per tile; wgpu:0 f32: 0.50 times the speed of cuda:0 f32";
    assert_eq!(text(&gpus, 0, "tile"), expected);
    let missing = Measurement::unmeasured(DeviceId::Wgpu(0), None, "no driver".to_owned());
    let alone = [missing, all[3].clone()];
    let expected = "cpu f32: 82.0 ms per step; no other device can run this model";
    assert_eq!(text(&alone, 1, "step"), expected);
    assert_eq!(text(&alone[1..], 0, "tile"), "cpu f32: 82.0 ms per tile");
}

#[test]
fn a_device_that_fails_when_it_is_measured_is_named_with_the_reason() {
    let gpu = [Precision::F32, Precision::F16];
    let engines = [fake(DeviceId::Cuda(0), &gpu), fake(DeviceId::Wgpu(0), &gpu), fake(DeviceId::Cpu, &gpu[..1])];
    let compile = |engine: &dyn Engine, precision: Precision| match engine.device().id {
        device @ DeviceId::Cuda(_) => Err(EngineError::Device { device, reason: "it has no power".into() }),
        // In another precision, it computes.
        device @ DeviceId::Wgpu(_) if precision == Precision::F16 => {
            Err(EngineError::OutOfMemory { device, needed_bytes: 0, available_bytes: 0 })
        }
        _ => session(engine, precision),
    };
    let choice = chosen(&engines, &compile, &mut Cache::in_memory()).unwrap();
    assert!(choice.why.ends_with("; cuda:0 failed: it has no power"), "{}", choice.why);
    assert!(!choice.why.contains("not enough memory"), "{}", choice.why);
}

#[test]
fn a_gpu_that_is_too_small_is_tried_again_when_more_memory_is_free_or_on_request() {
    let folder = std::env::temp_dir().join(format!("cytoscope-too-small-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("times.json");
    let tries = std::cell::Cell::new(0);
    let small = |engine: &dyn Engine, precision: Precision| match engine.device().id {
        device @ DeviceId::Cuda(_) => {
            tries.set(tries.get() + 1);
            Err(EngineError::OutOfMemory { device, needed_bytes: 3 << 30, available_bytes: 1 << 30 })
        }
        _ => session(engine, precision),
    };
    let open = || Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
    let run = |free_bytes: Option<u64>, cache: &mut Cache| {
        let gpu = fake(DeviceId::Cuda(0), &ALL[2..]).device().clone();
        let gpu: Box<dyn Engine> = Box::new(Fake(Device { free_bytes, ..gpu }));
        chosen(&[gpu, fake(DeviceId::Cpu, &ALL[2..])], &small, cache).unwrap()
    };
    let first = run(Some(1000), &mut open());
    assert!(tries.take() == 1 && !first.measurements[0].cached, "{first:?}");
    // About as much is free, or less. The choice is explained as before.
    for free_bytes in [1000, 1050, 10] {
        let again = run(Some(free_bytes), &mut open());
        assert!(tries.get() == 0 && again.measurements[0].cached, "{again:?}");
        assert_eq!((&again.why, &again.measurements[0].reason), (&first.why, &first.measurements[0].reason));
    }
    assert!(open().stored("m", &[], 1).iter().all(|m| m.device == DeviceId::Cpu), "there is no time");
    run(Some(1200), &mut open());
    assert_eq!(tries.take(), 1, "more memory is free");
    let mut cache = open();
    cache.forget("m");
    run(Some(1200), &mut cache);
    assert_eq!(tries.take(), 1, "measuring again was requested");
    // If the free memory is unknown, it is also unknown whether there is enough of it now.
    for _ in 0..2 {
        run(None, &mut Cache::in_memory());
        run(None, &mut open());
    }
    assert_eq!(tries.take(), 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_lowered_memory_limit_is_stored_with_the_time_until_more_memory_is_free() {
    let folder = std::env::temp_dir().join(format!("cytoscope-lowered-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("times.json");
    type Compile = fn(&dyn Engine, Precision) -> Result<Box<dyn Session>, EngineError>;
    let limit = |free_bytes: Option<u64>, compile: Compile| {
        let gpu = fake(DeviceId::Cuda(0), &ALL[2..]).device().clone();
        let gpu: Box<dyn Engine> = Box::new(Fake(Device { free_bytes, ..gpu }));
        let mut cache = Cache::open(&file, KernelVersions { cpu: "cpu 1", gpu: "gpu 1" });
        let choice = chosen(&[gpu, fake(DeviceId::Cpu, &ALL[2..])], &compile, &mut cache).unwrap();
        choice.measurements[0].lowered_limit_bytes
    };
    assert_eq!(limit(Some(1000), lowered), Some(500));
    for free_bytes in [Some(1000), Some(1050), Some(10), None] {
        assert_eq!(limit(free_bytes, never), Some(500), "{free_bytes:?}");
    }
    assert_eq!(limit(Some(1200), never), None, "more memory is free, so that it is measured again");
    std::fs::remove_dir_all(&folder).unwrap();
    // Files of earlier versions have no limits.
    let old: Entry = serde_json::from_str(r#"{"best_ms": 2.0, "error": null}"#).unwrap();
    assert_eq!(old, Entry::Time(Timing { best_ms: 2.0, error: None, lowered: None }));
}

#[test]
fn outputs_that_are_not_finite_are_outside_every_budget() {
    let tensor = |values: &[f32]| vec![Tensor::vector(values.to_vec())];
    assert_eq!(relative_error(&tensor(&[1.0, 2.0]), &tensor(&[1.0, f32::NAN])), f64::MAX);
    assert_eq!(relative_error(&tensor(&[0.0]), &tensor(&[1.0])), f64::MAX);
    assert_eq!(relative_error(&tensor(&[0.0]), &tensor(&[0.0])), 0.0);
}

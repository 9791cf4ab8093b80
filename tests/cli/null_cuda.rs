//! CUDA without a GPU: a stand-in for the driver, which computes nothing, runs the whole software above it. So these tests
//! check how the program starts, fails and falls back, but never the values of results.
//!
//! The stand-in is a script that is called as `run TAG COMMAND…`; `CYTOSCOPE_NULL_CUDA` names it, and by default it is
//! looked for in `../shared/gpu/null-cuda`. The script `setup` beside it installs what it needs. It keeps its logs and
//! caches in `out/TAG` of the folder that `NULLCUDA_HOME` names (`~/.cache/null-cuda` by default).
#![cfg(target_os = "linux")]

use super::common::{Fixture, npy_f32};
use super::train::simulate_pairs;
use cytoscope_testkit::skip;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Whether the stand-in is ready, or why its setup failed.
static SETUP: OnceLock<Result<(), String>> = OnceLock::new();

/// Installs the stand-in with the script `setup` beside `run`, unless it is installed. The script needs a C compiler, and
/// downloads NVIDIA's compiler for kernels.
fn set_up(run: &Path, home: &Path) -> Result<(), String> {
    if home.join("lib/libcuda.so.1").exists() && home.join("cuda/include").exists() {
        return Ok(());
    }
    let done = Command::new(run.with_file_name("setup")).output().map_err(|e| e.to_string())?;
    if done.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&done.stderr);
    Err(error.lines().last().unwrap_or("its script failed").to_owned())
}

/// The stand-in, with its own folder for logs and caches, which is removed at the end.
struct NullCuda {
    run: PathBuf,
    home: PathBuf,
    tag: String,
}

/// A fixture that the stand-in can see: it replaces `/dev`, so temporary files in `/dev/shm` are hidden from it.
fn fixture() -> Fixture {
    Fixture::in_target_folder()
}

impl NullCuda {
    /// Returns the stand-in, or `None` with a report of the skip if there is none or its setup fails.
    fn find(tag: &str) -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/gpu/null-cuda/run");
        let Some(run) = variable("CYTOSCOPE_NULL_CUDA").or_else(|| Some(beside).filter(|run| run.exists())) else {
            skip("no stand-in for CUDA (CYTOSCOPE_NULL_CUDA names none)");
            return None;
        };
        let home = variable("NULLCUDA_HOME").or_else(|| Some(variable("HOME")?.join(".cache/null-cuda")))?;
        if let Err(reason) = SETUP.get_or_init(|| set_up(&run, &home)) {
            skip(format!("the stand-in for CUDA is not set up: {reason}"));
            return None;
        }
        Some(Self { run, home, tag: format!("test-{}-{tag}", std::process::id()) })
    }

    fn folder(&self) -> PathBuf {
        self.home.join("out").join(&self.tag)
    }

    /// Runs the program with these variables.
    fn output(&self, fixture: &Fixture, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let inner = fixture.command(arguments);
        let mut command = Command::new(&self.run);
        command.arg(&self.tag).arg(inner.get_program()).args(inner.get_args()).current_dir(fixture.path("."));
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // Results of a device that computes nothing would be refused.
        command.env("NULLCUDA_HOME", &self.home).env("CYTOSCOPE_TRUST_DEVICES", "1");
        command.env("TMPDIR", env!("CARGO_TARGET_TMPDIR"));
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// The CUDA device as `devices` lists it.
    fn device(&self, fixture: &Fixture, variables: &[(&str, &str)]) -> Value {
        let out = self.output(fixture, &["devices", "--json"], variables);
        let devices: Value = serde_json::from_slice(&out.stdout).unwrap();
        devices.as_array().unwrap().iter().find(|d| d["id"] == "cuda:0").unwrap().clone()
    }

    /// Returns the counts of the driver in the process that launched the most kernels: launches, copies to the device,
    /// copies from it, and waits.
    fn counts(&self) -> [u64; 4] {
        let number = |line: &str, name: &str| -> u64 {
            let mut words = line.split_whitespace().skip_while(|word| *word != name).skip(1);
            let word = words.next().unwrap_or_default();
            word.split('/').next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let logs = std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let texts = logs.filter(|path| path.is_file()).filter_map(|path| std::fs::read_to_string(path).ok());
        let last = texts.filter_map(|text| text.lines().rfind(|line| line.starts_with("END ")).map(str::to_owned));
        let counted = last.map(|line| ["launches", "h2d", "d2h", "syncs"].map(|name| number(&line, name)));
        counted.max().unwrap_or_default()
    }

    /// How many launches, uploads and downloads the driver counted in each training step after the first one: between two
    /// uploads of the hyper-parameters (six numbers, with the weights of the moving average).
    fn training_steps(&self) -> Vec<[usize; 3]> {
        let logs = std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let texts = logs.filter(|path| path.is_file()).filter_map(|path| std::fs::read_to_string(path).ok());
        let text = texts.max_by_key(String::len).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let hyper: Vec<usize> = (0..lines.len()).filter(|at| lines[*at] == "h2d 24").collect();
        let step_counts = |bounds: &[usize]| {
            let lines = &lines[bounds[0]..bounds[1]];
            [&["launch "][..], &["h2d ", "2d h2d "], &["d2h ", "2d d2h "]]
                .map(|kinds| lines.iter().filter(|line| kinds.iter().any(|kind| line.starts_with(kind))).count())
        };
        hyper.windows(2).map(step_counts).collect()
    }

    /// Removes the logs of earlier runs.
    fn clear_logs(&self) {
        let entries = std::fs::read_dir(self.folder()).into_iter().flatten().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_file()).for_each(|path| std::fs::remove_file(path).unwrap());
    }

    /// Returns the number of allocations that the driver counted in the process that launched the most kernels, and the largest
    /// number in any other process, such as the probe of the device.
    fn allocations(&self) -> [usize; 2] {
        let logs = std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let texts = logs.filter(|path| path.is_file()).filter_map(|path| std::fs::read_to_string(path).ok());
        let count = |text: &str, start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        let mut counted: Vec<[usize; 2]> =
            texts.map(|text| [count(&text, "launch "), count(&text, "alloc ")]).collect();
        counted.sort_unstable();
        let [_, own] = counted.pop().unwrap();
        [own, counted.iter().map(|[_, allocations]| *allocations).max().unwrap_or(0)]
    }

    /// Assembles the compiled kernels with NVIDIA's assembler. Returns their number, and the assembler's messages on those that
    /// spill registers to memory. Kernels for tensor cores, such as that of the probe, are left out of the messages.
    fn assembled(&self) -> (usize, Vec<String>) {
        let entries = std::fs::read_dir(self.folder().join("ptx")).unwrap();
        let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        let mut spills = Vec::new();
        for file in &files {
            let text = std::fs::read_to_string(file).unwrap();
            let target = text.lines().find_map(|line| line.strip_prefix(".target ")).unwrap();
            let architecture = format!("-arch={}", target.split(',').next().unwrap().trim());
            let mut assembler = Command::new(self.home.join("bin/ptxas"));
            let ran = assembler.args([architecture.as_str(), "-v", "-o", "/dev/null"]).arg(file).output().unwrap();
            let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
            assert!(ran.status.success(), "{}: {said}", file.display());
            if text.contains(".entry convolve_tiled") {
                continue;
            }
            let counted = said.lines().filter(|line| line.contains("bytes spill stores"));
            let spilled = counted.filter(|line| !line.contains(", 0 bytes spill stores, 0 bytes spill loads"));
            spills.extend(spilled.map(|line| format!("{}: {line}", file.display())));
        }
        (files.len(), spills)
    }

    /// Whether a call failed as the test demanded.
    fn has_failed(&self) -> bool {
        let logs = std::fs::read_dir(self.folder()).unwrap().map(|entry| entry.unwrap().path());
        let mut logs = logs.filter(|path| path.is_file());
        logs.any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("FAIL ")))
    }
}

impl Drop for NullCuda {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.folder());
    }
}

#[test]
fn a_failed_allocation_never_ends_in_a_result_of_the_gpu() {
    let fixture = fixture();
    let raw = fixture.nuclei("9,60,70", 3);
    let predict = |device: &str, out: &str| {
        [
            "predict",
            raw.as_str(),
            "--model",
            "nuclei-dog",
            "--device",
            device,
            "--precision",
            "f32",
            "--out",
            out,
            "--json",
        ]
        .map(str::to_owned)
    };
    let labels = |folder: &str| fixture.bytes(&format!("{folder}/nuclei_3_raw_labels.tif"));
    let arguments = predict("cpu", "cpu");
    fixture.run(&arguments.each_ref().map(String::as_str)).ok();
    let Some(null) = NullCuda::find("memory") else { return };
    let on_gpu = |out: &str, variables: &[(&str, &str)]| {
        null.clear_logs();
        null.output(&fixture, &predict("cuda:0", out).each_ref().map(String::as_str), variables)
    };
    // The first run times kernels; the second one allocates as the following ones do.
    for out in ["first", "counted"] {
        let ran = on_gpu(out, &[]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    let [own, probe] = null.allocations();
    assert!(own > probe, "{own} allocations, {probe} of the probe: none can fail in the prediction alone");
    let mut fallbacks = 0;
    for at in BTreeSet::from([probe + 1, (probe + own).div_ceil(2), own]) {
        let (failing, out) = (format!("cuMemAllocAsync:{at}:2,cuMemAlloc_v2:1:2"), format!("failing-{at}"));
        let ran = on_gpu(&out, &[("NULLCUDA_FAIL", failing.as_str())]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        if !ran.status.success() {
            // The probe of the device has failed already.
            assert!(fixture.names(&out).is_empty(), "{at}: {said}");
            continue;
        }
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        if null.has_failed() {
            assert_eq!(report["inputs"][0]["device"]["id"], "cpu", "{at}: {said}");
            assert!(said.contains("not enough memory on cuda:0"), "{at}: {said}");
            let notes = report["inputs"][0]["notes"].to_string();
            assert!(notes.contains("continuing on the CPU"), "{at}: {notes}");
            assert!(labels(&out) == labels("cpu"), "{at}: the labels differ");
            fallbacks += 1;
        }
    }
    assert!(fallbacks > 0, "no allocation of a prediction has failed");
}

#[test]
fn a_gpu_with_little_memory_never_ends_in_a_result_of_the_gpu() {
    let Some(null) = NullCuda::find("small") else { return };
    let fixture = fixture();
    let raw = concat!(env!("CARGO_MANIFEST_DIR"), "/sample_data/nuclei_raw.tif");
    let predict = |device: &'static str, out: &'static str| {
        let chosen = ["predict", raw, "--model", "nuclei", "--device", device, "--precision", "f32"];
        [&chosen[..], &["--diameter", "12", "--outputs", "maps", "--out", out, "--json"]].concat()
    };
    let map = |folder: &str| fixture.bytes(&format!("{folder}/nuclei_raw_probability.tif"));
    fixture.run(&predict("cpu", "cpu")).ok();
    // The first is enough for the weights and a part of the smallest tile, the second one for neither.
    for (memory_bytes, out) in [("200000000", "part"), ("60000000", "none")] {
        let ran = null.output(&fixture, &predict("cuda:0", out), &[("NULLCUDA_MEM", memory_bytes)]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{memory_bytes}: {said}");
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(report["inputs"][0]["device"]["id"], "cpu", "{memory_bytes}: {said}");
        assert!(said.contains("not enough memory on cuda:0"), "{memory_bytes}: {said}");
        assert!(map(out) == map("cpu"), "{memory_bytes}: the maps differ");
    }
}

#[test]
fn a_failed_allocation_in_a_training_step_moves_the_run_to_the_cpu() {
    let Some(null) = NullCuda::find("train-memory") else { return };
    let fixture = fixture();
    simulate_pairs(&fixture, 3);
    let train = |device: &str, out: &str, variables: &[(&str, &str)]| {
        null.clear_logs();
        let task = ["train", "--task", "segmentation", "--data", "sim", "--from", "nuclei", "--out", out];
        let size = ["--patch", "32,64,64", "--batch", "2", "--steps", "2", "--diameter", "12", "--without-int8"];
        null.output(&fixture, &[&task[..], &size, &["--device", device, "--json"]].concat(), variables)
    };
    let ran = train("cuda:0", "m", &[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let [own, probe] = null.allocations();
    assert!(own > probe, "{own} allocations, {probe} of the probe: none can fail in the training run alone");
    // The devices are compared by a step, which fails.
    let failing = format!("cuMemAllocAsync:{own}:2,cuMemAlloc_v2:1:2");
    let ran = train("auto", "failing", &[("NULLCUDA_FAIL", failing.as_str())]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && null.has_failed(), "{said}");
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let last = report["device"].as_str().unwrap().rsplit(", then ").next().unwrap();
    assert!(!last.contains("Null CUDA"), "{report:#}");
    assert!(said.contains("not enough memory on cuda:0"), "{said}");
    assert!(report["history"]["notes"].to_string().contains("not enough memory on cuda:0"), "{report:#}");
}

#[test]
fn a_driver_that_is_too_old_is_explained() {
    let Some(null) = NullCuda::find("old") else { return };
    let device = null.device(&fixture(), &[("NULLCUDA_PTXMAX", "50")]);
    let reason = device["reason"].as_str().unwrap();
    assert!(device["usable"] == false && reason.contains("update the driver"), "{device}");
}

#[test]
fn a_gpu_whose_memory_is_taken_asks_to_close_other_programs() {
    let Some(null) = NullCuda::find("taken") else { return };
    let device = null.device(&fixture(), &[("NULLCUDA_FAIL", "cuMemAllocAsync:1:2,cuMemAlloc_v2:1:2")]);
    let reason = device["reason"].as_str().unwrap();
    assert!(device["usable"] == false && reason.contains("not enough memory on cuda:0"), "{device}");
    assert!(reason.contains("close other programs that use this GPU"), "{device}");
}

#[test]
fn tuning_does_not_measure_the_cpu_in_place_of_a_gpu_that_fails() {
    let Some(null) = NullCuda::find("tune") else { return };
    let fixture = fixture();
    let raw = fixture.nuclei("9,60,70", 3);
    let tune = ["tune", "--model", "nuclei-dog", "--data", &raw, "--device", "cuda:0", "--json"];
    let saving = ["--save", "--profiles", "profiles.json"];
    // The probe of the device launches fewer kernels than this.
    let ran = null.output(&fixture, &[&tune[..], &saving].concat(), &[("NULLCUDA_FAIL", "cuLaunchKernel:20:719")]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(null.has_failed() && !ran.status.success(), "{said}");
    assert!(said.contains("ended on cpu in f32: cuda:0 failed"), "{said}");
    assert!(!fixture.path("profiles.json").exists(), "times of the CPU were saved as those of the GPU");
}

/// Links all entries of a folder into another, except those of the given names.
fn link_all(from: &Path, to: &Path, except: &[&str]) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if !except.iter().any(|name| entry.file_name() == **name) {
            std::os::unix::fs::symlink(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn a_gpu_offers_the_precisions_of_its_compute_capability() {
    let Some(null) = NullCuda::find("turing") else { return };
    let fixture = fixture();
    let turing = [("NULLCUDA_CC", "75")];
    let device = null.device(&fixture, &turing);
    assert_eq!(device["precisions"], serde_json::json!(["f32", "f16"]), "{device}");
    let raw = fixture.nuclei("6,40,40", 3);
    let predict = |precision: &str| {
        let chosen = ["predict", &raw, "--model", "nuclei", "--device", "cuda:0", "--precision", precision];
        let rest = ["--diameter", "12", "--outputs", "maps", "--out", precision, "--json"];
        null.output(&fixture, &[&chosen[..], &rest].concat(), &turing)
    };
    let refused = predict("bf16");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("does not support bf16; supported: f32, f16"), "{said}");
    let half = predict("f16");
    assert!(half.status.success(), "{}", String::from_utf8_lossy(&half.stderr));
    let report: Value = serde_json::from_slice(&half.stdout).unwrap();
    let input = &report["inputs"][0];
    assert!(input["device"]["id"] == "cuda:0" && input["precision"] == "f16", "{report:#}");
}

#[test]
fn missing_tensor_core_headers_are_named_and_change_the_key_of_the_caches() {
    let Some(null) = NullCuda::find("headers") else { return };
    let fixture = fixture();
    let whole = null.device(&fixture, &[]);
    let precisions = whole["precisions"].as_array().unwrap();
    assert!(whole["usable"] == true && precisions.starts_with(&["f32".into(), "tf32".into()]), "{whole}");
    let (include, copy) = (null.home.join("cuda/include"), fixture.path("cuda/include"));
    link_all(&include, &copy, &["crt"]);
    link_all(&include.join("crt"), &copy.join("crt"), &["mma.h"]);
    let root = fixture.path("cuda");
    let partial = null.device(&fixture, &[("CUDA_PATH", root.to_str().unwrap())]);
    let reason = partial["reason"].as_str().unwrap();
    assert!(partial["usable"] == true && reason.contains("crt/mma.h") && reason.contains("install"), "{partial}");
    assert!(partial["driver"].as_str().unwrap().contains("no tensor-core headers"), "{partial}");
    assert_ne!(partial["driver"], whole["driver"]);
    assert_eq!(partial["precisions"], serde_json::json!(["f32"]), "{partial}");
    // Predictions then run in f32, and say what is missing.
    let raw = fixture.nuclei("6,40,40", 3);
    let chosen = ["predict", &raw, "--model", "nuclei", "--device", "cuda:0", "--diameter", "12"];
    let arguments = [&chosen[..], &["--outputs", "maps", "--out", "out", "--json"]].concat();
    let ran = null.output(&fixture, &arguments, &[("CUDA_PATH", root.to_str().unwrap())]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let input = &report["inputs"][0];
    assert!(input["device"]["id"] == "cuda:0" && input["precision"] == "f32", "{report:#}");
    let why = input["device"]["why"].as_str().unwrap();
    assert!(why.contains("tf32, f16 and bf16 need crt/mma.h"), "{why}");
}

/// Checks that a prediction of a stack of one tile uploads it once and waits no more often than it has to.
fn assert_moves_little(report: &Value) {
    let voxels: u64 = report["plan"]["tile"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
    let count = |name: &str| report["traffic"][name].as_u64().unwrap();
    let (runs, uploaded_bytes) = (count("runs"), count("uploaded_bytes"));
    // The weights of this network are a few thousand numbers.
    assert!((4 * voxels..4 * voxels + (1 << 16)).contains(&uploaded_bytes), "{report:#}");
    assert!(runs > 0 && count("steps") >= runs && (1..=runs).contains(&count("downloads")), "{report:#}");
    assert!(count("synchronizations") <= runs + 1, "{report:#}");
}

#[test]
fn tuning_is_a_stage_of_the_first_run_only_and_kernels_are_cached() {
    let Some(null) = NullCuda::find("tuning") else { return };
    let fixture = fixture();
    let raw = fixture.nuclei("6,40,40", 3);
    let tunes = |out: &str| {
        let arguments = [
            "predict",
            &raw,
            "--model",
            "nuclei-dog",
            "--device",
            "cuda:0",
            "--precision",
            "f32",
            "--outputs",
            "maps",
            "--out",
            out,
            "--json",
            "--json-progress",
        ];
        let ran = null.output(&fixture, &arguments, &[]);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{said}");
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_moves_little(&report["inputs"][0]);
        said.contains("\"stage\":\"tuning\"")
    };
    assert!(tunes("first"));
    assert!(!tunes("again"));
    let mut folders = vec![null.folder().join("cache/gpu-tuning")];
    let mut kernels = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            kernels += usize::from(path.ends_with("ptx/chunk0.cbor") && path.metadata().unwrap().len() > 0);
            folders.extend(path.is_dir().then_some(path));
        }
    }
    assert!(kernels > 0);
}

#[test]
fn a_batch_of_eight_tiles_needs_few_launches_and_moves_only_its_tensors_and_the_weights() {
    let Some(null) = NullCuda::find("batch") else { return };
    let fixture = fixture();
    let shape = [8, 1, 64, 64, 64];
    let voxels: usize = shape.iter().product();
    std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &vec![0.5; voxels])).unwrap();
    let arguments = ["run", "nuclei", "--input", "x.npy", "--engine", "cuda", "--repeat", "1", "--json"];
    let ran = null.output(&fixture, &arguments, &[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let count = |name: &str| report["traffic"][name].as_u64().unwrap();
    // One run to warm up, and the one that is timed.
    let runs = count("runs");
    let [launches, ..] = null.counts();
    eprintln!("{runs} runs, {launches} launches, {}", report["traffic"]);
    assert!(runs == 2 && launches >= runs && launches <= 64 * runs, "{launches} launches");
    assert!(count("uploads") <= 4 && count("downloads") == runs && count("synchronizations") <= 2 * runs, "{report:#}");
    let output = report["outputs"][0]["shape"].as_array().unwrap();
    let output: u64 = output.iter().map(|length| length.as_u64().unwrap()).product();
    let needed = runs * 4 * (voxels as u64 + output) + report["weight_bytes"].as_u64().unwrap();
    let moved = count("uploaded_bytes") + count("downloaded_bytes");
    assert!(moved <= needed + needed / 10, "{moved} bytes were moved, {needed} are needed");
}

#[test]
fn a_prediction_in_many_tiles_moves_little_more_than_the_stack_the_map_and_the_weights() {
    let Some(null) = NullCuda::find("moved") else { return };
    let fixture = fixture();
    let raw = fixture.nuclei("16,330,330", 3);
    std::fs::write(fixture.path("x.npy"), npy_f32(&[1, 1, 16, 32, 32], &[0.5; 16 * 32 * 32])).unwrap();
    let run = null.output(&fixture, &["run", "nuclei", "--input", "x.npy", "--engine", "cuda:0", "--json"], &[]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let run: Value = serde_json::from_slice(&run.stdout).unwrap();
    let weight_bytes = run["weight_bytes"].as_u64().unwrap();
    let channels = run["outputs"][0]["shape"][1].as_u64().unwrap();
    for (blend, tile) in [("crop", "16,104,104"), ("gaussian", "16,64,64")] {
        let chosen = ["predict", &raw, "--model", "nuclei", "--device", "cuda:0", "--precision", "f32"];
        let rest =
            ["--diameter", "12", "--outputs", "maps", "--out", blend, "--blend", blend, "--tile", tile, "--json"];
        let ran = null.output(&fixture, &[&chosen[..], &rest].concat(), &[]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let input = &report["inputs"][0];
        let count = |name: &str| input["traffic"][name].as_u64().unwrap();
        let voxels: u64 = input["grid_zyx"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
        let needed = 4 * voxels * (1 + channels) + weight_bytes;
        let moved = count("uploaded_bytes") + count("downloaded_bytes");
        eprintln!("{blend}: {} runs, {moved} bytes were moved, {needed} are needed", count("runs"));
        assert!(count("runs") > 1 && moved <= needed + needed / 10, "{moved} bytes, {needed} are needed: {input:#}");
        // The weights hide little of that.
        let stack_bytes = count("uploaded_bytes") - weight_bytes;
        assert!(stack_bytes < 2 * 4 * voxels, "{stack_bytes} bytes of {voxels} voxels were uploaded");
        assert_eq!(count("downloaded_bytes"), 4 * voxels * channels);
    }
}

#[test]
fn the_kernels_of_a_network_assemble_for_every_generation_of_gpus_without_spills() {
    for capability in ["75", "80", "89", "90", "120"] {
        let Some(null) = NullCuda::find(&format!("sm{capability}")) else { return };
        if !null.home.join("bin/ptxas").exists() {
            return skip("the stand-in for CUDA has no assembler (ptxas)");
        }
        let fixture = fixture();
        let shape = [1, 1, 16, 32, 32];
        std::fs::write(fixture.path("x.npy"), npy_f32(&shape, &vec![0.5; shape.iter().product()])).unwrap();
        let arguments = ["run", "nuclei", "--input", "x.npy", "--engine", "cuda", "--repeat", "1", "--json"];
        let ran = null.output(&fixture, &arguments, &[("NULLCUDA_CC", capability)]);
        assert!(ran.status.success(), "sm_{capability}: {}", String::from_utf8_lossy(&ran.stderr));
        let (kernels, spills) = null.assembled();
        assert!(kernels >= 10 && spills.is_empty(), "sm_{capability}, {kernels} kernels: {}", spills.join("\n"));
    }
}

#[test]
fn a_network_on_our_kernels_needs_few_launches_copies_and_waits_in_every_precision() {
    for precision in ["f32", "tf32", "f16", "bf16"] {
        let Some(null) = NullCuda::find(&format!("direct-{precision}")) else { return };
        let fixture = fixture();
        let raw = fixture.nuclei("9,60,70", 3);
        let chosen = ["predict", &raw, "--model", "nuclei", "--device", "cuda:0", "--precision", precision];
        let rest = ["--diameter", "12", "--outputs", "maps", "--out", "out", "--json"];
        let ran = null.output(&fixture, &[&chosen[..], &rest].concat(), &[]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
        let runs = report["inputs"][0]["traffic"]["runs"].as_u64().unwrap();
        let [launches, uploads, downloads, waits] = null.counts();
        let counts = format!(
            "{precision}: {runs} runs, {launches} launches, {uploads} uploads, {downloads} downloads, {waits} waits"
        );
        eprintln!("{counts}");
        // Fifteen convolutions, three transposed ones and three concatenations, besides cutting and joining tiles.
        assert!(runs > 0 && launches >= 21 * runs && launches <= 64 * runs, "{counts}");
        assert!(uploads <= 4 * runs && downloads <= runs && waits <= 2 * runs + 4, "{counts}");
    }
}

#[test]
fn a_training_step_needs_few_launches_and_uploads() {
    for (precision, most_launches) in [("f32", 200), ("bf16", 300)] {
        let Some(null) = NullCuda::find(&format!("train-{precision}")) else { return };
        let fixture = fixture();
        simulate_pairs(&fixture, 3);
        let task = ["train", "--task", "segmentation", "--data", "sim", "--from", "nuclei", "--out", "m"];
        let size = ["--patch", "16,32,32", "--batch", "2", "--steps", "3", "--diameter", "12", "--set", "ema=0.9"];
        let device = ["--device", "cuda:0", "--precision", precision, "--without-int8", "--json"];
        let ran = null.output(&fixture, &[&task[..], &size, &device].concat(), &[]);
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let [launches, uploads, _] = *null.training_steps().last().unwrap();
        eprintln!("{precision}: {launches} launches and {uploads} uploads in a training step");
        assert!((100..=most_launches).contains(&launches), "{precision}: {launches} launches");
        // Images, targets, voxel weights and hyper-parameters.
        assert_eq!(uploads, 4, "{precision}");
    }
}

#[test]
fn training_steps_download_nothing_between_two_points_of_the_loss_curve() {
    let Some(null) = NullCuda::find("train-reports") else { return };
    let fixture = fixture();
    for seed in 1..=3 {
        fixture.nuclei("64,64,64", seed);
    }
    let task = ["train", "--task", "segmentation", "--data", "sim", "--from", "nuclei", "--out", "m", "--without-int8"];
    let size = ["--patch", "64,64,64", "--batch", "2", "--steps", "7", "--diameter", "12"];
    let settings = ["--set", "ema=0.9", "--set", "validation.times=1", "--device", "cuda:0", "--precision", "f32"];
    let points = [("CYTOSCOPE_STEPS_PER_POINT", "3")];
    let ran = null.output(&fixture, &[&task[..], &size, &settings, &["--json"]].concat(), &points);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let steps = report["history"]["steps"].as_array().unwrap().iter().map(|point| point["step"].as_u64().unwrap());
    assert_eq!(steps.collect::<Vec<u64>>(), [3, 6], "{report:#}");
    // The report counts the traffic of all steps: loss and norm are read three times.
    let traffic = |name: &str| report["traffic"][name].as_u64().unwrap();
    assert!(traffic("runs") >= 2 * 7 && traffic("steps") > traffic("runs"), "{:#}", report["traffic"]);
    assert!(traffic("downloads") >= 6 && traffic("downloaded_bytes") >= 6 * 4, "{:#}", report["traffic"]);
    assert_eq!(report["run"]["facts"]["training"]["traffic"], report["traffic"]);
    let counted = null.training_steps();
    // The steps after the first one. Loss and norm of the gradients are read in steps 3 and 6, and in the last one.
    let steps = &counted[counted.len() - 6..];
    assert_eq!(steps.iter().map(|[.., downloads]| *downloads).collect::<Vec<_>>(), [0, 2, 0, 0, 2, 2], "{steps:?}");
    assert!(steps.iter().all(|[launches, ..]| (100..=350).contains(launches)), "{steps:?}");
    // The state of the optimizer is uploaded after the first hyper-parameters. After the losses were read, their sums may be
    // set to 0 in the next step.
    assert!([1, 3, 4].iter().all(|at: &usize| steps[*at][1] <= 4), "{steps:?}");
    assert!(steps[1..].iter().all(|[_, uploads, _]| *uploads <= 6), "{steps:?}");
}

//! Advice of runs on a GPU. Copies and launches that take long are written into the record of a run: a GPU that is emulated in
//! software computes for much longer than it copies or launches.

use crate::advice::{VOXEL, advised_tile, find, given, gone, is_printed, maps, percent, profile_of, train};
use crate::common::{Fixture, missing};
use crate::train::{SMALL, simulate_pairs, write_settings};
use cytoscope_testkit::skip;
use serde_json::{Value, json};

/// Runs a command with GPUs, also those that are emulated in software, and returns its JSON.
fn with_gpu(fixture: &Fixture, arguments: &[&str]) -> Value {
    let out = fixture.command(arguments).env("CYTOSCOPE_SOFTWARE_GPU", "1").output().unwrap();
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The name of a GPU; reports a skip and returns `None` if there is none.
fn gpu(fixture: &Fixture) -> Option<String> {
    let devices = with_gpu(fixture, &["devices", "--json"]);
    let found = devices.as_array()?.iter().find(|d| d["usable"] == true && d["id"] != "cpu");
    if found.is_none() {
        skip(format!("no GPU, not even in software (install mesa-vulkan-drivers): {devices}"));
    }
    found?["id"].as_str().map(str::to_owned)
}

#[test]
fn copies_that_take_long_are_named_with_ways_to_copy_less() {
    let fixture = Fixture::new();
    let Some(gpu) = gpu(&fixture) else { return };
    fixture.unet(2);
    let raw = fixture.nuclei("8,48,48", 1);
    let base = ["predict", &raw, "--model", "net.onnx", "--out", "o", "--outputs", "maps", "--device", &gpu, "--json"];
    let report = with_gpu(&fixture, &base);
    let input = &report["run"]["facts"]["inputs"][0];
    assert_eq!(missing(input, &["traffic", "transfer_secs", "compute_secs"]), Vec::<&str>::new());
    let seconds = input["seconds"].as_f64().unwrap();
    let with_copies = |share: f64| {
        profile_of(&fixture, &report, |facts| facts["inputs"][0]["transfer_secs"] = json!(share * seconds))
    };
    gone(&with_copies(0.1), "transfers");
    let advice = given(&fixture, "predict", &with_copies(0.5), "transfers");
    assert_eq!(percent(&advice), 50.0, "{advice}");
    assert!(advice["expected_gain"].as_str().unwrap().contains("2.00×"), "{advice}");
    assert!(advice["change"].as_str().unwrap().contains("--device cpu"), "{advice}");
    is_printed(&fixture, &advice);
}

#[test]
fn copies_of_a_training_run_that_take_long_are_named_with_ways_to_copy_less() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let report = train(&fixture, "sim", "m", &["--steps", "2"]);
    gone(&report, "transfers");
    let on_gpu = |share: f64, larger_batch: Option<u64>| {
        profile_of(&fixture, &report, |facts| {
            let transfer_secs = share * facts["wall_secs"].as_f64().unwrap();
            let training = &mut facts["training"];
            training["device"] = json!("cuda:0");
            training["transfer_secs"] = json!(transfer_secs);
            training["traffic"] = json!({"uploads": 7, "uploaded_bytes": 7 << 20});
            training["larger_batch"] = json!(larger_batch);
        })
    };
    gone(&on_gpu(0.1, Some(4)), "transfers");
    let advice = given(&fixture, "train", &on_gpu(0.5, None), "transfers");
    assert_eq!(percent(&advice), 50.0, "{advice}");
    let evidence = advice["evidence"].as_str().unwrap();
    assert!(evidence.contains("7 uploads (7 MiB)"), "{advice}");
    assert!(advice["change"].as_str().unwrap().contains("--set validation.times=N"), "{advice}");
    assert!(advice["setting"].is_null(), "{advice}");
    is_printed(&fixture, &advice);
    let larger = given(&fixture, "train", &on_gpu(0.5, Some(4)), "transfers");
    assert_eq!(larger["setting"], json!({"batch": 4}), "{larger}");
}

#[test]
fn tiles_whose_kernels_launch_as_long_as_they_run_are_enlarged() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("16,96,96", 1);
    let report = maps(&fixture, "net.onnx", &raw, &["--blend", "crop", "--tile", "16,48,48"]);
    gone(&report, "launch_overhead");
    // The network takes half of a second.
    let on_gpu = |steps: u64| {
        profile_of(&fixture, &report, |facts| {
            let input = &mut facts["inputs"][0];
            input["device"] = json!("cuda:0");
            input["seconds"] = json!(1.0);
            input["compute_secs"] = json!(0.5);
            input["traffic"] = json!({"runs": 9, "steps": steps});
        })
    };
    gone(&on_gpu(5_000), "launch_overhead");
    let advice = given(&fixture, "predict", &on_gpu(50_000), "launch_overhead");
    let evidence = advice["evidence"].as_str().unwrap();
    assert!(evidence.contains("takes 10 µs on cuda:0") && evidence.contains("9 runs of tiles of 16,48,48"), "{advice}");
    assert_eq!(advised_tile(&advice["setting"]).as_deref(), Some("16,96,96"), "{advice}");
    assert!(advice["change"].as_str().unwrap().starts_with("--tile 16,96,96"), "{advice}");
    is_printed(&fixture, &advice);
}

#[test]
fn a_slower_device_is_named_if_both_were_measured() {
    let fixture = Fixture::new();
    let Some(gpu) = gpu(&fixture) else { return };
    let raw = fixture.nuclei("8,48,48", 1);
    let predict = |device: &str| {
        let base = ["predict", &raw, "--model", "nuclei-dog", "--voxel-size", VOXEL, "--diameter", "15", "--out", "o"];
        with_gpu(&fixture, &[&base[..], &["--outputs", "maps", "--json", "--device", device]].concat())
    };
    let auto = predict("auto");
    gone(&auto, "slower_device");
    let fastest = auto["inputs"][0]["device"]["id"].as_str().unwrap().to_owned();
    let slower = if fastest == "cpu" { gpu.as_str() } else { "cpu" };
    let report = predict(slower);
    let measured = report["run"]["facts"]["inputs"][0]["measured"].as_array().unwrap();
    let ms = |id: &str| measured.iter().find(|m| m["device"] == id).and_then(|m| m["best_ms"].as_f64());
    let (own, best) =
        (ms(slower).expect("the time of the device"), ms(&fastest).expect("the time of the fastest device"));
    if own < 1.25 * best {
        gone(&report, "slower_device");
        return skip(format!("{slower} takes {own:.1} ms and {fastest} {best:.1} ms: no device is much faster"));
    }
    let advice = given(&fixture, "predict", &report, "slower_device");
    assert_eq!(advice["change"], format!("--device {fastest}"));
    assert_eq!(advice["setting"], json!({"device": fastest}));
    gone(&predict(&fastest), "slower_device");
}

#[test]
fn a_batch_that_leaves_the_memory_of_a_gpu_unused_is_enlarged() {
    let fixture = Fixture::new();
    let Some(gpu) = gpu(&fixture) else { return };
    // Small, because a GPU that is emulated in software takes long for the scores.
    for seed in 1..=2 {
        fixture.nuclei("8,48,48", seed);
    }
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\n[network]\nfilters = [8, 16]\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let train = |out: &str, more: &[&str]| {
        let base = ["--steps", "1", "--without-int8", "--device", &gpu, "--out", out];
        with_gpu(&fixture, &[&SMALL[..], &base, more].concat())
    };
    // The activations of one patch.
    let arguments = ["--steps", "1", "--without-int8", "--device", &gpu, "--out", "first", "--json-progress"];
    let mut command = fixture.command(&[&SMALL[..], &arguments].concat());
    let out = command.env("CYTOSCOPE_SOFTWARE_GPU", "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    let mut events = stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let status = events.find(|event| event["event"] == "status").unwrap_or_else(|| panic!("no status: {stderr}"));
    let bytes = status["activation_bytes"].as_u64().filter(|bytes| *bytes > 0).unwrap_or_else(|| panic!("{status}"));
    // Twice a batch of one fits into half of this memory, and twice a batch of two does not.
    let memory = format!("memory_mib={}", (4 * bytes).div_ceil(1 << 20));
    let one = train("one", &["--set", &memory]);
    let waits = |report: &Value| find(report, "data_wait").is_some();
    if waits(&one) {
        return skip("the steps wait for data, so that a larger batch would not help");
    }
    let advice = given(&fixture, "train", &one, "small_batch");
    assert_eq!(advice["setting"], json!({"batch": 2}));
    assert!(advice["change"].as_str().unwrap().starts_with("--batch 2;"), "{advice}");
    gone(&train("two", &["--set", &memory, "--batch", "2"]), "small_batch");
}

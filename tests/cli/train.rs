//! `train`: results, and refused inputs.

use crate::common::{CommandResult, Fixture, missing, python};
use crate::train_pictures::panels;
use cytoscope_model_package::Package;
use cytoscope_storage::folder::create_working;
use cytoscope_testkit::skip;
use cytoscope_train::TrainConfig;
use image::RgbImage;
use serde_json::{Value, json};
use std::path::Path;

/// Simulates the pairs `sim/nuclei_N_raw.tif` and `_labels.tif`, N from 1 to `count`.
pub(crate) fn simulate_pairs(fixture: &Fixture, count: u64) {
    for seed in 1..=count {
        fixture.nuclei("16,64,64", seed);
    }
}

/// Writes the settings of a small training run as `t.toml`; `more` goes before them.
pub(crate) fn write_settings(fixture: &Fixture, more: &str) {
    let text = format!(
        "{more}\npatch_zyx = [8, 32, 32]\nbatch = 2\nema = 0.9\n[network]\nfilters = [8, 16]\n[validation]\ntimes = 4\n"
    );
    std::fs::write(fixture.path("t.toml"), text).unwrap();
}

pub(crate) const SMALL: [&str; 8] =
    ["train", "--task", "segmentation", "--data", "sim", "--config", "t.toml", "--json"];

fn f1(report: &Value, when: &str) -> f64 {
    report[when]["f1@0.5"].as_f64().unwrap_or_else(|| panic!("no F1 {when}: {report:#}"))
}

/// Checks that ONNX Runtime computes the test output of the package `m` from its declared network.
fn assert_onnx_runtime_agrees(fixture: &Fixture) {
    // The test stack is scaled as the package describes.
    let script = "import sys, numpy, onnxruntime\n\
                  s = onnxruntime.InferenceSession(sys.argv[1])\n\
                  x, y = numpy.load(sys.argv[2]), numpy.load(sys.argv[3])\n\
                  low, high = numpy.percentile(x, [1.0, 99.8])\n\
                  x = ((x - low) / (high - low + 1e-6)).astype(numpy.float32)\n\
                  z = s.run(None, {s.get_inputs()[0].name: x})[0]\n\
                  assert z.shape == y.shape and numpy.abs(z - y).max() < 1e-3, numpy.abs(z - y).max()";
    let files = ["m/model.onnx", "m/test_input_0.npy", "m/test_output_0.npy"].map(|f| fixture.path(f));
    python("numpy, onnxruntime", script, &files.each_ref().map(|p| p.as_path()));
}

#[test]
fn trained_network_finds_nuclei_and_its_package_is_self_contained() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 5);
    write_settings(&fixture, "");
    let ran = fixture.run(&[&SMALL[..], &["--steps", "90", "--out", "m"]].concat()).ok();
    assert!(ran.stderr.contains("states no license") && ran.stderr.contains("--license"), "{}", ran.stderr);
    let report = ran.json();
    let promised = [
        "out",
        "verdict",
        "metric",
        "before",
        "after",
        "after_int8",
        "pairs_after",
        "steps",
        "parameters",
        "seconds",
        "step_secs",
        "stalled_secs",
        "history",
    ];
    assert_eq!(missing(&report, &promised), Vec::<&str>::new());
    assert_eq!((report["verdict"].as_str(), report["steps"].as_u64()), (Some("trained"), Some(90)));
    assert!(f1(&report, "after") > 0.6, "{report:#}");
    let losses: Vec<f64> =
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    assert!(mean(&losses[losses.len() - 10..]) < 0.6 * mean(&losses[..5]), "{losses:?}");
    assert!(!fixture.path("m.training").exists(), "the checkpoint folder is removed after the run");
    // The report gives size and time of both networks.
    let (quantized, has_int8) = (&report["quantized"], !report["after_int8"].as_object().unwrap().is_empty());
    assert_eq!(quantized.is_object(), has_int8, "{report:#}");
    assert_eq!(report["float_only"].is_string(), !has_int8, "{report:#}");
    if has_int8 {
        let bytes = |of: &str| quantized[of].as_u64().unwrap();
        let file = |name: &str| fixture.bytes(&format!("m/{name}")).len() as u64;
        assert_eq!((bytes("float_bytes"), bytes("int8_bytes")), (file("model.onnx"), file("model_int8.onnx")));
        assert!(quantized["tile_times"][0]["int8_wall_ms"].as_f64().unwrap() > 0.0);
    }
    // The package contains its training record, and its own test passes on import.
    let rdf = String::from_utf8(fixture.bytes("m/rdf.yaml")).unwrap();
    for part in ["training:", "seed_channel", "min_peak", "scale_range", "license: null"] {
        assert!(rdf.contains(part), "no {part} in {rdf}");
    }
    let card = String::from_utf8(fixture.bytes("m/README.md")).unwrap();
    assert!(card.contains("## Validation") && card.contains("## Loss"), "{card}");
    // Its pictures survive quantization, and the card shows all of them.
    let pictures: Vec<String> =
        fixture.names("m").into_iter().filter(|n| n.ends_with(".png") || n.ends_with(".svg")).collect();
    assert_eq!(pictures, ["curves.svg", "example_0.png"], "one of five pairs is in the validation set");
    assert!(pictures.iter().all(|n| card.contains(&format!("]({n})")) && rdf.contains(&format!("- {n}"))), "{rdf}");
    let imported = fixture.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("the test outputs are reproduced"), "{imported:#}");
    // Predict and evaluate an unseen stack.
    fixture.nuclei("16,64,64", 77);
    fixture.run(&["predict", "sim/nuclei_77_raw.tif", "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let arguments =
        ["evaluate", "--pred", "p/nuclei_77_raw_labels.tif", "--truth", "sim/nuclei_77_labels.tif", "--json"];
    let scores = fixture.run(&arguments).json();
    let found = scores["instances"][0]["f1"].as_f64().unwrap();
    assert!(found > 0.5, "{scores:#}");
    assert_onnx_runtime_agrees(&fixture);

    // Fine-tuning at a far too high learning rate keeps the start model.
    write_settings(&fixture, "ema = 0.0");
    let text = String::from_utf8(fixture.bytes("t.toml")).unwrap().replacen("ema = 0.9\n", "", 1);
    std::fs::write(fixture.path("t.toml"), format!("{text}[schedule]\nrate = 5.0\n")).unwrap();
    let calibration = ["quantize", "m", "--mode", "static", "--calibrate", "sim", "--out", "q"];
    fixture.run(&calibration).ok();
    let licensed = ["--from", "q", "--steps", "4", "--out", "worse", "--license", "CC-BY-4.0"];
    let report = fixture.run(&[&SMALL[..], &licensed].concat()).json();
    assert_eq!(report["verdict"].as_str(), Some("start"), "{report:#}");
    let rdf = String::from_utf8(fixture.bytes("worse/rdf.yaml")).unwrap();
    assert!(rdf.contains("license: CC-BY-4.0"), "{rdf}");
    assert!(f1(&report, "after").max(f1(&report, "after_int8")) >= f1(&report, "before"), "{report:#}");
    let int8 = |package: &str| fixture.bytes(&format!("{package}/model_int8.onnx"));
    assert_eq!(int8("worse"), int8("q"), "the int8 network of the start model");
}

#[test]
fn predicted_stain_keeps_its_intensity_scale() {
    let fixture = Fixture::new();
    for seed in ["1", "2", "3", "4"] {
        fixture.run(&["simulate", "--kind", "labelfree", "--shape", "16,64,64", "--seed", seed, "--out", "sim"]).ok();
    }
    write_settings(&fixture, "");
    let arguments = ["train", "--task", "labelfree", "--data", "sim", "--config", "t.toml", "--json", "--steps", "150"];
    let report = fixture.run(&[&arguments[..], &["--out", "m", "--without-int8"]].concat()).json();
    assert!(report["after"]["pearson"].as_f64().unwrap() > 0.2, "{report:#}");
    let shown = panels(&fixture, "m/example_0.png");
    assert_eq!(shown.len(), 3, "the image, the true stain, the predicted one");
    let green = |p: &RgbImage| p.pixels().filter(|p| p.0[1] > p.0[0]).count();
    assert!(green(&shown[0]) == 0 && green(&shown[1]) > 1000 && green(&shown[2]) > 1000);
    let image = fixture.names("sim").into_iter().find(|n| n == "labelfree_1_raw.tif");
    let image = format!("sim/{}", image.unwrap());
    fixture.run(&["predict", &image, "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let predicted = fixture.names("p").into_iter().find(|n| n.ends_with("_prediction.tif")).unwrap();
    let truth = fixture.names("sim").into_iter().find(|n| n == "labelfree_1_target.tif").unwrap();
    let mean = |v: Vec<f32>| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
    let [predicted, truth] =
        [format!("p/{predicted}"), format!("sim/{truth}")].map(|n| mean(fixture.image(&n).samples().to_f32()));
    // Intensities are in the stain's own counts.
    assert!((predicted / truth - 1.0).abs() < 0.5, "{predicted} against {truth}");
}

#[test]
fn invalid_training_jobs_are_refused_with_a_reason() {
    let fixture = Fixture::new();
    write_settings(&fixture, "");
    std::fs::create_dir(fixture.path("sim")).unwrap();
    fixture.fails(3, &[&SMALL[..], &["--out", "m"]].concat(), &["sim", "no pair"]);
    simulate_pairs(&fixture, 2);
    std::fs::write(fixture.path("bad.toml"), "learning_rat = 1\n").unwrap();
    let arguments = ["train", "--task", "segmentation", "--data", "sim", "--out", "m"];
    fixture.fails(2, &[&arguments[..], &["--config", "bad.toml"]].concat(), &["bad.toml", "learning_rat"]);
    fixture.fails(2, &[&arguments[..], &["--device", "cuda:63"]].concat(), &["cuda:63", "cpu (usable)"]);
    fixture.fails(2, &[&arguments[..], &["--from", "nobody"]].concat(), &["nobody"]);
    // Files and folders that do not exist are invalid input, as for other commands.
    fixture.fails(3, &[&arguments[..], &["--config", "nothere.toml"]].concat(), &["nothere.toml", "no such file"]);
    let search = ["--search", "nothere.toml", "--trials", "2", "--steps", "2"];
    fixture.fails(3, &[&arguments[..], &search].concat(), &["nothere.toml", "no such file"]);
    let without_data = ["train", "--task", "segmentation", "--data", "nothere", "--out", "m"];
    fixture.fails(3, &without_data, &["nothere", "no such file or folder"]);
    fixture.fails(3, &["evaluate", "--model", "nuclei-dog", "--data", "nothere"], &["nothere", "no such file"]);
    fixture.fails(2, &[&arguments[..], &["--minutes", "0"]].concat(), &["minutes"]);
    fixture.fails(2, &[&arguments[..], &["--minutes", "1e99"]].concat(), &["--minutes is 1e99", "30 days"]);
    let unknown = fixture.fails(2, &[&arguments[..], &["--set", "rate=1e99"]].concat(), &["rate"]);
    assert!(!unknown.stderr.contains(&"0".repeat(20)), "{}", unknown.stderr);
    fixture.fails(2, &[&arguments[..], &["--license", "mit"]].concat(), &["license", "\"mit\"", "write MIT"]);
    let only = "only=[\"encoder\", \"decodr\"]";
    let words = ["only", "\"decodr\"", "decoder.0.conv1"];
    fixture.fails(2, &[&SMALL[..], &["--steps", "1", "--out", "m", "--set", only]].concat(), &words);
    // An untrained network would replace a package that was trained before.
    for budget in ["steps", "epochs"] {
        let option = format!("--{budget}=0");
        fixture.fails(2, &[&arguments[..], &[option.as_str()]].concat(), &[budget, "at least 1"]);
    }
    // Too few minutes for any step: the error gives the minimum, and nothing is started.
    fixture.fails(
        2,
        &[&SMALL[..], &["--minutes", "0.001", "--out", "m"]].concat(),
        &["0.001", "give at least", " min"],
    );
    let far = [&SMALL[..], &["--minutes", "0.001", "--diameter", "900", "--out", "m"]].concat();
    fixture.fails(2, &far, &["the given object diameter of 900", "median one of the labels", "check --diameter"]);
    std::fs::create_dir(fixture.path("full")).unwrap();
    std::fs::write(fixture.path("full/mine.txt"), "mine").unwrap();
    let into = ["train", "--task", "segmentation", "--data", "sim", "--out", "full"];
    fixture.fails(2, &into, &["full", "did not make"]);
    // At a learning rate at which every step fails, training gives up with a reason and writes nothing.
    std::fs::write(
        fixture.path("wild.toml"),
        "patch_zyx = [8, 32, 32]\nbatch = 1\nema = 0.0\n[network]\nfilters = [8]\n[schedule]\nrate = 1e38\nwarm_up = 0.0\n",
    )
    .unwrap();
    let wild = [&arguments[..], &["--config", "wild.toml", "--steps", "40"]].concat();
    fixture.fails(3, &wild, &["not finite 6 times", "schedule.rate"]);
    assert!(!fixture.path("m").exists());
    // A label image of another shape is reported and left out.
    fixture.write("sim/odd_raw.tif", "ZYX", &[4, 8, 8], vec![7u16; 256]);
    fixture.write("sim/odd_labels.tif", "ZYX", &[4, 8, 9], vec![1u16; 288]);
    let ran = fixture.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat()).ok();
    assert!(ran.stderr.contains("odd") && ran.stderr.contains("left out"), "{}", ran.stderr);
}

#[test]
fn the_model_of_an_earlier_run_is_kept_beside_that_of_the_next_one() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let train = |seed: &str, more: &[&str]| {
        let arguments = ["--steps", "1", "--without-int8", "--seed", seed, "--out"];
        fixture.run(&[&SMALL[..], &arguments, more].concat()).ok()
    };
    train("1", &["m"]);
    let first = fixture.bytes("m/model.onnx");
    // The user's own file in the folder of a run stays, and so does the folder.
    create_working(&fixture.path("m.training"), "training").unwrap();
    std::fs::write(fixture.path("m.training/notes.txt"), "mine").unwrap();
    let ran = train("2", &["m"]);
    assert!(ran.stderr.contains("m.before-1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("m.training is kept") && ran.stderr.contains("notes.txt"), "{}", ran.stderr);
    let names = fixture.names("m.training");
    assert_eq!(names.iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>(), ["notes.txt"]);
    assert_eq!(fixture.bytes("m.training/notes.txt"), b"mine");
    let second = fixture.bytes("m/model.onnx");
    assert!(fixture.bytes("m.before-1/model.onnx") == first && second != first);
    // Other commands keep it, too.
    fixture.run(&["export", "m", "--format", "onnx", "--out", "n.onnx"]).ok();
    let text = fixture.run(&["import", "n.onnx", "--out", "m"]).ok().stdout;
    assert!(text.contains("m.before-2") && fixture.bytes("m.before-2/model.onnx") == second, "{text}");
    // A zip is moved aside, too, even with --force.
    fixture.run(&["import", "n.onnx", "--out", "z.zip"]).ok();
    let zip = fixture.bytes("z.zip");
    let ran = train("3", &["z.zip", "--force"]);
    assert!(ran.stderr.contains("z.zip.before-1") && fixture.bytes("z.zip.before-1") == zip, "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn the_report_is_printed_even_if_the_trace_cannot_be_written() {
    use crate::common::UNWRITABLE_TRACE;
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = ["--steps", "1", "--without-int8", "--trace", UNWRITABLE_TRACE, "--out"];
    let ran = fixture.fails(1, &[&SMALL[..], &arguments, &["m"]].concat(), &[UNWRITABLE_TRACE]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["steps"].as_u64(), Some(1));
    // Without --json.
    let ran = fixture.fails(1, &[&SMALL[..7], &arguments, &["n"]].concat(), &[UNWRITABLE_TRACE]);
    assert!(ran.stdout.starts_with("wrote n"), "{}", ran.stdout);
    // The failure of a run comes first.
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let without_pairs =
        ["train", "--task", "segmentation", "--data", "empty", "--trace", UNWRITABLE_TRACE, "--out", "o"];
    let ran = fixture.fails(3, &without_pairs, &["empty", "no pair"]);
    assert!(!ran.stderr.contains(UNWRITABLE_TRACE), "{}", ran.stderr);
}

/// Seconds of CPU time that a run may take beyond its minutes, for starting the program and writing the package.
const OVERHEAD_SECS: f64 = 10.0;

#[test]
fn time_budget_holds_when_validation_is_slow() {
    let fixture = Fixture::new();
    for seed in 1..=24 {
        fixture.nuclei("24,128,128", seed);
    }
    // Twelve validation stacks: validating all of them twenty times would take several times the budget.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 2\nworkers = 1\n[network]\nfilters = [8, 16]\n\
                [validation]\nfraction = 0.5\nmax_files = 12\ntimes = 20\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let report = fixture.run(&[&SMALL[..], &["--minutes", "0.2", "--threads", "1", "--out", "m"]].concat()).json();
    // CPU time: other tests may leave little CPU time to the run, also when it writes the package.
    let secs = report["run"]["facts"]["cpu_secs"].as_f64().unwrap();
    assert!(secs < 1.3 * 12.0 + OVERHEAD_SECS, "{secs} s: {:#}", report["history"]["notes"]);
    let count = |key: &str| report["history"][key].as_array().unwrap().len();
    assert!((1..=20).contains(&count("validations")), "{:#}", report["history"]["validations"]);
    assert!(count("notes") < 25, "{:#}", report["history"]["notes"]);
    assert!(report["steps"].as_u64().unwrap() >= 20, "{report:#}");
    assert_eq!(report["validation_pairs"].as_u64(), Some(12));
}

#[test]
fn many_data_problems_are_summarized_and_listed_in_a_file() {
    let fixture = Fixture::new();
    let listed =
        |ran: &CommandResult| ran.stderr.lines().filter(|l| l.contains("odd") || l.contains("more of")).count();
    let details = |ran: &CommandResult| -> String {
        let line =
            ran.stderr.lines().find(|l| l.contains("are listed in ")).unwrap_or_else(|| panic!("{}", ran.stderr));
        let path = line.split("are listed in ").nth(1).unwrap().trim_end_matches('.');
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    std::fs::create_dir(fixture.path("sim")).unwrap();
    write_settings(&fixture, "");
    for i in 0..200 {
        std::fs::write(fixture.path(&format!("sim/odd{i}_raw.tif")), "x").unwrap();
    }
    for i in 200..300 {
        std::fs::write(fixture.path(&format!("sim/odd{i}.oir")), "x").unwrap();
    }
    let names = || (0..200).map(|i| format!("odd{i}_raw.tif")).chain((200..300).map(|i| format!("odd{i}.oir")));
    // None of the files is part of a pair.
    let arguments = [&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat();
    let ran = fixture.fails(3, &arguments, &["no pair", "200 files, such as", "no target", "100 files, such as"]);
    assert!(listed(&ran) <= 10 && ran.stderr.lines().count() <= 12, "{}", ran.stderr);
    let list = details(&ran);
    assert!(names().all(|name| list.contains(&name)) && list.starts_with("300 problems"), "{list}");
    let evaluate = ["evaluate", "--model", "nuclei-dog", "--data", "sim"];
    let ran = fixture.fails(3, &evaluate, &["no pair", "200 files, such as", "no target", "100 files, such as"]);
    let list = details(&ran);
    assert!(names().all(|name| list.contains(&name)) && list.starts_with("300 problems"), "{list}");
    // Beside two valid pairs, such files do not prevent training.
    simulate_pairs(&fixture, 2);
    let ran = fixture.run(&arguments).ok();
    assert!(listed(&ran) <= 10, "{}", ran.stderr);
    let list = details(&ran);
    assert!(names().all(|name| list.contains(&name)), "{list}");
}

/// Any available GPU, also one emulated in software, gives the same losses as the CPU.
#[test]
fn gpu_takes_the_same_steps_as_the_cpu() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    let text = "patch_zyx = [8, 16, 16]\nbatch = 1\n[network]\nfilters = [4, 8]\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let with_gpu = |arguments: &[&str]| {
        let out = fixture.command(arguments).env("CYTOSCOPE_SOFTWARE_GPU", "1").output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let devices = with_gpu(&["devices", "--json"]);
    let list = devices.as_array().unwrap();
    let gpu = list.iter().find(|d| d["usable"] == true && d["id"] != "cpu").map(|d| (&d["id"], &d["name"]));
    let Some((gpu, name)) = gpu.and_then(|(id, name)| Some((id.as_str()?, name))) else {
        return skip(format!("no GPU, not even in software (install mesa-vulkan-drivers): {devices}"));
    };
    let losses = |device: &str, out: &str, config: &str, precision: &str| -> Vec<f64> {
        let arguments =
            ["--json", "--steps", "6", "--without-int8", "--config", config, "--device", device, "--out", out];
        let report = with_gpu(&[&SMALL[..5], &arguments, &["--precision", precision]].concat());
        assert!(device == "cpu" || &report["device"] == name, "{report:#}");
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect()
    };
    let want = losses("cpu", "on-cpu", "t.toml", "auto");
    // In mixed precision the losses are the same up to 16-bit rounding.
    std::fs::write(fixture.path("half.toml"), format!("precision = \"f16\"\n{text}")).unwrap();
    let runs =
        [("on-gpu", "t.toml", "auto", 5e-3), ("half", "half.toml", "auto", 2e-2), ("option", "t.toml", "f16", 2e-2)];
    for (out, config, precision, tolerance) in runs {
        let got = losses(gpu, out, config, precision);
        assert!(!got.is_empty() && got.len() == want.len(), "{got:?}, {want:?}");
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < tolerance * want.abs(), "{config}: {got} instead of {want}");
        }
    }
}

#[test]
fn only_mixed_precision_is_compared_with_full_precision() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "2", "--out", "m", "--compare-precision"]].concat();
    fixture.fails(2, &arguments, &["--compare-precision", "--precision f16"]);
    fixture.fails(2, &[&arguments[..], &["--resume"]].concat(), &["--resume"]);
    // The CPU has no mixed precision.
    let mixed = ["--precision", "f16", "--device", "cpu"];
    fixture.fails(2, &[&arguments[..], &mixed].concat(), &["the CPU trains in f32 only", "--device"]);
    assert!(!fixture.path("m").exists() && !fixture.path("m.f32").exists());
}

#[test]
fn precision_option_takes_precedence_over_the_settings() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    for (name, precision) in [("half.toml", "f16"), ("t.toml", "f32")] {
        write_settings(&fixture, &format!("precision = \"{precision}\""));
        std::fs::rename(fixture.path("t.toml"), fixture.path(name)).unwrap();
    }
    let run = |config, precision: &'static [&'static str]| {
        let arguments = ["--config", config, "--steps", "1", "--without-int8", "--json", "--out", "m"];
        [&SMALL[..5], &arguments[..], precision].concat()
    };
    // The CPU trains in 32 bits only, whether the option or the settings request 16.
    let refused = ["precision", "the CPU trains in f32 only"];
    fixture.fails(2, &run("half.toml", &[]), &refused);
    fixture.fails(2, &run("t.toml", &["--precision", "f16"]), &refused);
    fixture.fails(2, &run("t.toml", &["--precision", "bf16"]), &refused);
    fixture.fails(2, &run("t.toml", &["--precision", "int8"]), &["int8", "bf16"]);
    assert!(!fixture.path("m").exists());
    // Without another device, there is nothing to measure again.
    let exact = fixture.run(&run("half.toml", &["--precision", "f32", "--remeasure"])).json();
    assert_eq!(exact["steps"].as_u64(), Some(1));
}

#[test]
fn recipes_of_the_bundled_networks_are_valid_settings() {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/recipes");
    let files = std::fs::read_dir(recipes).unwrap().map(|e| e.unwrap().path());
    let found: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    assert!(found.len() >= 2, "{found:?}");
    for path in found {
        let config = TrainConfig::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        config.check().unwrap();
    }
}

#[test]
fn recipe_of_the_bundled_nuclei_network_has_the_settings_of_its_package() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let recipe = TrainConfig::read(&models.join("recipes/nuclei-wide.toml")).unwrap();
    let package = Package::open(&models.join("nuclei")).unwrap();
    let config = package.config();
    let (training, settings) = (&config["training"], &config["training"]["settings"]);
    assert_eq!(serde_json::to_value(&recipe.segment).unwrap(), config["segment"]);
    assert_eq!(json!([recipe.budget.steps, recipe.patch_zyx]), json!([training["steps"], training["patch_zyx"]]));
    assert_eq!(json!([recipe.norm_share, recipe.ema]), json!([settings["norm_share"], settings["ema"]]));
    let validation = &settings["validation"];
    assert_eq!(json!(recipe.validation.times), validation["times"]);
    let make = std::fs::read_to_string(models.join("make")).unwrap();
    assert!(make.contains(&format!("nuclei-wide.toml --seed {} ", training["seed"])));
    assert!(make.contains(&format!("--accuracy-budget {} ", config["quantization"]["accuracy_budget"])));
}

#[test]
fn deep_supervision_trains_coarse_levels_and_exports_one_output() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\n[network]\nfilters = [4, 8, 8]\ndeep_supervision = true\n\
                [segment]\nthreshold = { fixed = 0.45 }\nheight = \"seeds\"\nmin_volume_um3 = 7.0\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let arguments = ["--steps", "30", "--without-int8", "--out", "m"];
    let report = fixture.run(&[&SMALL[..], &arguments].concat()).json();
    let steps: Vec<f64> =
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect();
    assert!(steps.last().unwrap() < &(0.9 * steps[0]), "{steps:?}");
    fixture.run(&["predict", "sim/nuclei_1_raw.tif", "--model", "m", "--out", "o"]).ok();
    // Foreground and height only, without the outputs of coarser levels.
    assert_eq!(fixture.image("o/nuclei_1_raw_probability.tif").shape()[1], 2);
    // The segmentation settings are the given ones, not those that would score best.
    let segment = Package::open(&fixture.path("m")).unwrap().config()["segment"].clone();
    assert_eq!((&segment["threshold"]["fixed"], &segment["min_volume_um3"]), (&0.45.into(), &7.0.into()));
}

#[test]
fn gradient_accumulation_matches_whole_batches() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    // Without batch norms and with a loss that is a mean over voxels, the parts of a batch are independent.
    fixture.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat()).ok();
    let losses = |batch: usize, accumulate: usize| -> Vec<f64> {
        let text = format!(
            "clip_norm = 1000.0\npatch_zyx = [8, 32, 32]\nbatch = {batch}\naccumulate = {accumulate}\n[loss]\nkind = \"bce\"\n[optimizer]\nkind = \"sgd\"\n[schedule]\nrate = 0.05\n[validation]\ntimes = 1\n"
        );
        std::fs::write(fixture.path("t.toml"), text).unwrap();
        let out = format!("m{accumulate}");
        let arguments = ["--from", "m", "--steps", "8", "--without-int8", "--out", &out];
        let report = fixture.run(&[&SMALL[..], &arguments].concat()).json();
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect()
    };
    let (whole, parts) = (losses(4, 1), losses(1, 4));
    assert_eq!((whole.len(), parts.len()), (8, 8));
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a - b).abs() < 3e-2 * a.abs(), "{whole:?} and {parts:?}");
    }
    // Summed instead of averaged gradients would have moved four times as far.
    let fell = |v: &[f64]| v[0] - v[v.len() - 1];
    assert!(fell(&whole) > 0.1 && (fell(&parts) / fell(&whole) - 1.0).abs() < 0.3, "{whole:?} and {parts:?}");
}

#[test]
fn nan_in_a_stain_affects_neither_scores_nor_package() {
    let fixture = Fixture::new();
    for seed in ["1", "2", "3"] {
        fixture.run(&["simulate", "--kind", "labelfree", "--shape", "8,48,48", "--seed", seed, "--out", "sim"]).ok();
        let name = format!("sim/labelfree_{seed}_target.tif");
        let mut stain = fixture.image(&name).samples().to_f32();
        stain.iter_mut().step_by(97).for_each(|v| *v = f32::NAN);
        fixture.write(&name, "ZYX", &[8, 48, 48], stain);
    }
    write_settings(&fixture, "");
    let arguments = ["train", "--task", "labelfree", "--data", "sim", "--config", "t.toml", "--json", "--steps", "12"];
    let report = fixture.run(&[&arguments[..], &["--out", "m", "--without-int8"]].concat()).json();
    for score in ["pearson", "psnr_db", "ssim"] {
        assert!(report["after"][score].as_f64().is_some_and(f64::is_finite), "{score}: {report:#}");
    }
    let validations = report["history"]["validations"].as_array().unwrap();
    assert!(!validations.is_empty(), "{report:#}");
    for v in validations {
        assert!(v["scores"].as_object().unwrap().values().all(Value::is_number), "{v}");
    }
}

#[test]
fn start_model_is_not_compared_on_images_that_it_was_trained_on() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    std::fs::create_dir(fixture.path("tables")).unwrap();
    let table = |part: &str, numbers: &[u8]| {
        let row = |n: &u8| format!("../sim/nuclei_{n}_raw.tif,../sim/nuclei_{n}_labels.tif\n");
        let rows: String = numbers.iter().map(row).collect();
        std::fs::write(fixture.path(&format!("tables/{part}.csv")), format!("raw,seg\n{rows}")).unwrap();
    };
    let train = |from: &str, out: &str| {
        let arguments = ["--data", "tables", "--from", from, "--steps", "2", "--without-int8", "--out", out];
        let result = fixture.run(&[&SMALL[..3], &["--config", "t.toml", "--json"], &arguments].concat());
        let notes = result.stderr.clone();
        (result.json(), notes)
    };
    table("train", &[1, 2]);
    table("valid", &[3]);
    train("scratch", "first");
    // A training image of the start model has moved to the validation set.
    table("train", &[1, 3]);
    table("valid", &[2]);
    let (report, notes) = train("first", "second");
    assert!(notes.contains("trained on every validation image"), "{notes}");
    assert_eq!((report["verdict"].as_str(), report["before"].as_object().map(|b| b.len())), (Some("trained"), Some(0)));
    // The second network has seen all three images, the first one only two of them.
    table("train", &[1]);
    table("valid", &[2, 3]);
    let (report, notes) = train("first", "third");
    assert!(notes.contains("1 of 2 validation images are left out"), "{notes}");
    assert_eq!(report["validation_pairs"].as_u64(), Some(1));
    assert!(report["before"]["f1@0.5"].is_number(), "{report:#}");
    let (report, notes) = train("second", "fourth");
    assert!(notes.contains("trained on every validation image"), "{notes}");
    assert_eq!(report["validation_pairs"].as_u64(), Some(2));
}

//! Advice of real runs: a run that provokes a rule gets its advice, and the same run with the option that the advice names
//! no longer gets it.
//!
//! What a test cannot arrange, as heat or a full memory, is written into the record of a real run, which `profile` reads; the
//! reason is stated at `cytoscope_profile::AdviceRule`. Advice on GPUs is in `advice_gpu`.

use crate::common::Fixture;
use crate::train::simulate_pairs;
use cytoscope_builders::{DynUNet, Weights, dynunet};
use serde_json::{Value, json};

/// A voxel size at which the simulated nuclei have the size that the model `nuclei-dog` was made for.
pub(crate) const VOXEL: &str = "1.75,0.8,0.8";
/// Number of times that a piece of advice is followed before it must no longer be given.
const MAX_FOLLOWED: usize = 6;

/// The advice of a rule in a report.
pub(crate) fn find(report: &Value, rule: &str) -> Option<Value> {
    let all = report["advice"].as_array().unwrap_or_else(|| panic!("no advice: {report:#}"));
    all.iter().find(|advice| advice["rule"] == rule).cloned()
}

/// The advice of a rule, which states its evidence, its gain and an option of `command`.
pub(crate) fn given(fixture: &Fixture, command: &str, report: &Value, rule: &str) -> Value {
    let advice = find(report, rule).unwrap_or_else(|| panic!("no {rule}: {:#} {:#}", report["advice"], report["run"]));
    for part in ["evidence", "expected_gain", "change"] {
        let text = advice[part].as_str().unwrap_or_default();
        assert!(!text.is_empty() && !text.contains("NaN") && !text.contains("inf "), "{part}: {advice}");
    }
    let help = fixture.run(&[command, "--help"]).ok().stdout;
    let change = advice["change"].as_str().unwrap();
    let words = change.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    // Options of `quantize` are named together with the command.
    for option in words.filter(|word| word.starts_with("--") && !change.contains("cytoscope quantize")) {
        assert!(help.contains(&format!("{option} ")), "{command} has no option {option}: {change}");
    }
    advice
}

pub(crate) fn gone(report: &Value, rule: &str) {
    assert_eq!(find(report, rule), None, "{:#}", report["run"]);
}

/// The share in percent that the evidence of a piece of advice states.
pub(crate) fn percent(advice: &Value) -> f64 {
    let evidence = advice["evidence"].as_str().unwrap();
    let number = evidence.split(" %").next().unwrap().rsplit(' ').next().unwrap();
    let share: f64 = number.parse().unwrap_or_else(|_| panic!("no share: {evidence}"));
    assert!((0.0..=100.0).contains(&share), "{evidence}");
    share
}

/// The value of an option that sets a tile.
pub(crate) fn advised_tile(setting: &Value) -> Option<String> {
    let edges = setting["tile"].as_array()?.iter().map(|n| n.as_u64().map(|n| n.to_string()));
    Some(edges.collect::<Option<Vec<_>>>()?.join(","))
}

/// Predicts the maps of a stack on the CPU, and returns the report.
pub(crate) fn maps(fixture: &Fixture, model: &str, stack: &str, more: &[&str]) -> Value {
    let base = ["predict", stack, "--model", model, "--out", "o", "--outputs", "maps", "--device", "cpu", "--json"];
    fixture.run(&[&base[..], more].concat()).json()
}

#[test]
fn small_tiles_are_enlarged_until_little_is_discarded() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("16,96,96", 1);
    let whole = maps(&fixture, "net.onnx", &raw, &[]);
    gone(&whole, "small_tiles");
    let halo = whole["inputs"][0]["plan"]["halo"][1].as_u64().unwrap();
    assert!(halo > 0, "{whole:#}");
    // Two thirds of an inner tile are halo along each axis.
    let edge = (3 * halo).next_multiple_of(2);
    let mut tile = format!("16,{edge},{edge}");
    for followed in 0..MAX_FOLLOWED {
        // With a budget that leaves memory for larger tiles, the requested size is still the reason.
        let report = maps(&fixture, "net.onnx", &raw, &["--blend", "crop", "--tile", &tile, "--memory-budget", "1G"]);
        gone(&report, "memory_budget");
        if find(&report, "small_tiles").is_none() {
            assert!(followed > 0, "tiles of {edge} voxels with a halo of {halo} were not small: {report:#}");
            return;
        }
        let advice = given(&fixture, "predict", &report, "small_tiles");
        let facts = &report["run"]["facts"]["inputs"][0]["tiles"];
        let [computed, kept] = ["computed_voxels", "kept_voxels"].map(|key| facts[key].as_f64().unwrap());
        assert_eq!(kept, 16.0 * 96.0 * 96.0, "{facts}");
        assert!((percent(&advice) - 100.0 * (1.0 - kept / computed)).abs() < 0.51, "{advice} {facts}");
        tile = advised_tile(&advice["setting"]).unwrap();
        assert!(advice["change"].as_str().unwrap().contains(&format!("--tile {tile}")), "{advice}");
    }
    panic!("the advice was followed {MAX_FOLLOWED} times, and is still given");
}

#[test]
fn a_small_memory_budget_is_named_as_the_reason_for_small_tiles() {
    let fixture = Fixture::new();
    fixture.unet(16);
    let raw = fixture.nuclei("16,96,96", 1);
    let with_budget = |mib: u64| {
        let budget = format!("{mib}M");
        let base = ["predict", &raw, "--model", "net.onnx", "--out", "o", "--outputs", "maps", "--device", "cpu"];
        fixture.run(&[&base[..], &["--blend", "crop", "--memory-budget", &budget, "--json"]].concat())
    };
    // The smallest budget that is enough, to 2 MiB.
    let ran = (49..200).step_by(2).map(with_budget).find(|ran| {
        assert!(matches!(ran.code, Some(0 | 4)), "{}: {}", ran.command_line, ran.stderr);
        ran.code == Some(0)
    });
    let report = ran.expect("no budget below 200 MiB is enough").json();
    let advice = given(&fixture, "predict", &report, "memory_budget");
    gone(&report, "small_tiles");
    let bytes = advice["setting"]["memory_budget"].as_u64().unwrap();
    let mib = bytes >> 20;
    assert!(advice["change"].as_str().unwrap().contains(&format!("--memory-budget {mib}M")), "{advice}");
    let mut larger = mib;
    for _ in 0..MAX_FOLLOWED {
        let report = with_budget(larger).json();
        match find(&report, "memory_budget") {
            None => return,
            Some(advice) => larger = advice["setting"]["memory_budget"].as_u64().unwrap() >> 20,
        }
    }
    panic!("the advice was followed {MAX_FOLLOWED} times, and is still given");
}

#[test]
fn a_network_that_normalizes_over_its_tiles_is_named_as_the_reason_for_them() {
    let fixture = Fixture::new();
    let config = DynUNet { filters: vec![2, 4], strides: vec![1, 2], ..DynUNet::default() };
    cytoscope_onnx::save(&dynunet(&config, &Weights::Random { seed: 3 }).unwrap(), &fixture.path("own.onnx")).unwrap();
    fixture.unet(2);
    let raw = fixture.nuclei("8,64,64", 1);
    let tile = ["--tile", "8,32,32"];
    let report = maps(&fixture, "own.onnx", &raw, &tile);
    let advice = given(&fixture, "predict", &report, "tile_normalization");
    assert!(advice["change"].as_str().unwrap().contains("batch norms"), "{advice}");
    let one = &report["inputs"][0];
    assert_eq!(one["plan"]["no_pass"], json!({"reason": "normalizes_over_tile"}));
    assert!(one["notes"].to_string().contains("because the network normalizes over the tile"), "{one:#}");
    // One tile has no overlap; a network with batch norms does not normalize over tiles.
    let whole = maps(&fixture, "own.onnx", &raw, &[]);
    gone(&whole, "tile_normalization");
    assert!(!whole["inputs"][0]["notes"].to_string().contains("normalizes over the tile"), "{whole:#}");
    let other = maps(&fixture, "net.onnx", &raw, &tile);
    gone(&other, "tile_normalization");
    assert_eq!(other["inputs"][0]["plan"]["no_pass"], json!({"reason": "tile_given"}));
}

#[test]
fn averaged_tiles_are_cropped_instead() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("16,96,96", 1);
    let halo = maps(&fixture, "net.onnx", &raw, &[])["inputs"][0]["plan"]["halo"][1].as_u64().unwrap();
    // Large enough for cropping.
    let edge = (4 * halo).next_multiple_of(2).clamp(16, 80);
    let tile = format!("16,{edge},{edge}");
    let blended = maps(&fixture, "net.onnx", &raw, &["--tile", &tile, "--blend", "gaussian"]);
    let advice = given(&fixture, "predict", &blended, "seams");
    assert_eq!((&advice["change"], &advice["setting"]), (&json!("leave out --blend"), &json!("default_blend")));
    let tiles = blended["run"]["facts"]["inputs"][0]["tiles"]["count"].as_u64().unwrap();
    assert!(advice["evidence"].as_str().unwrap().starts_with(&format!("{tiles} overlapping tiles")), "{advice}");
    gone(&maps(&fixture, "net.onnx", &raw, &["--tile", &tile]), "seams");
}

#[test]
fn float_layers_of_an_int8_network_are_named_and_quantized() {
    let fixture = Fixture::new();
    fixture.unet(8);
    simulate_pairs(&fixture, 2);
    let raw = "sim/nuclei_1_raw.tif";
    let quantize = |out: &str, more: &[&str]| {
        let base = ["quantize", "net.onnx", "--mode", "static", "--calibrate", "sim", "--accuracy-budget", "1"];
        fixture.run(&[&base[..], &["--out", out], more].concat())
    };
    // The layers at full resolution have most multiplications: their share of the time is large on a busy machine, too.
    let refused = quantize("none", &["--keep-float", "nosuch"]).stderr;
    let layers = refused.split("its layers are ").nth(1).unwrap_or_else(|| panic!("{refused}"));
    let is_heavy = |name: &&str| name.contains("coder.0.") && !name.contains(".up");
    let heavy: Vec<&str> = layers.split([',', ' ', '\n']).filter(is_heavy).collect();
    assert!(heavy.iter().any(|name| name.starts_with("decoder.0.")), "{layers}");
    quantize("mixed", &["--keep-float", &heavy.join(",")]).ok();
    quantize("whole", &[]).ok();
    let predict = |model: &str| {
        // One tile, so that operators are timed as in any other run.
        let trace = format!("{model}.json");
        maps(&fixture, model, raw, &["--precision", "int8", "--tile", "16,64,64", "--trace", &trace])
    };
    let mixed = predict("mixed");
    let advice = given(&fixture, "predict", &mixed, "float_operators");
    assert!(percent_of_time(&advice) > 10.0 && advice["evidence"].as_str().unwrap().contains("decoder.0"), "{advice}");
    let change = advice["change"].as_str().unwrap();
    let help = fixture.run(&["quantize", "--help"]).ok().stdout;
    for option in ["--mode", "--calibrate", "--accuracy-budget"] {
        assert!(change.contains(option) && help.contains(option), "no {option}: {change}");
    }
    gone(&predict("whole"), "float_operators");
    // The float network of the same package has no int8 operators, and gets no advice.
    let float = ["--precision", "f32", "--tile", "16,64,64", "--trace", "float.json"];
    gone(&maps(&fixture, "mixed", raw, &float), "float_operators");
}

/// The share of the operators' time in percent, which follows the number of operators.
fn percent_of_time(advice: &Value) -> f64 {
    let evidence = advice["evidence"].as_str().unwrap();
    let share = evidence.split(" take ").nth(1).and_then(|rest| rest.split(" %").next());
    let share: f64 = share.and_then(|share| share.parse().ok()).unwrap_or_else(|| panic!("no share: {evidence}"));
    assert!((0.0..=100.0).contains(&share), "{evidence}");
    share
}

#[test]
fn more_threads_than_cores_are_reduced() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("8,32,32", 1);
    let cores = std::thread::available_parallelism().unwrap().get();
    let threads = (cores + 1).to_string();
    let report = maps(&fixture, "net.onnx", &raw, &["--threads", &threads]);
    let advice = given(&fixture, "predict", &report, "threads_above_cores");
    assert_eq!(advice["evidence"], format!("{threads} threads share {cores} cores"));
    assert_eq!(
        (&advice["change"], &advice["setting"]),
        (&json!(format!("--threads {cores}")), &json!({"threads": cores}))
    );
    gone(&maps(&fixture, "net.onnx", &raw, &["--threads", &cores.to_string()]), "threads_above_cores");
}

/// Stopping the process takes its CPU time away, as other programs do.
#[cfg(unix)]
#[test]
fn threads_without_cpu_time_are_noticed() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::{Command, Stdio};

    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("16,96,96", 1);
    let arguments = ["predict", &raw, "--model", "net.onnx", "--out", "o", "--outputs", "maps", "--device", "cpu"];
    let more = ["--threads", "1", "--json", "--json-progress", "--force"];
    let stopped = || {
        let mut command = fixture.command(&[&arguments[..], &more].concat());
        command.stdout(std::fs::File::create(fixture.path("report.json")).unwrap()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut events = BufReader::new(child.stderr.take().unwrap());
        let mut text = String::new();
        events.read_line(&mut text).unwrap();
        let signal = |name: &str| {
            let script = format!("kill {name} {}", child.id());
            assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
        };
        signal("-STOP");
        std::thread::sleep(std::time::Duration::from_secs(4));
        signal("-CONT");
        events.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        let report: Value = serde_json::from_slice(&fixture.bytes("report.json")).unwrap();
        // It may have predicted everything before it was stopped.
        (report["run"]["facts"]["wall_secs"].as_f64().unwrap() >= 3.9).then_some(report)
    };
    let report = (0..20).find_map(|_| stopped()).expect("it is stopped while it predicts");
    let advice = given(&fixture, "predict", &report, "idle_threads");
    let facts = &report["run"]["facts"];
    let share = facts["cpu_secs"].as_f64().unwrap() / facts["wall_secs"].as_f64().unwrap();
    assert!(share < 0.7 && advice["evidence"].as_str().unwrap().contains("on 1 thread:"), "{advice} {facts}");
    // There is no smaller number of threads.
    assert!(!advice["change"].as_str().unwrap().contains("--threads"), "{advice}");
    // The same run without the stop gives the advice only if the machine is so busy that the run takes long and gets little CPU
    // time.
    let report = maps(&fixture, "net.onnx", &raw, &["--threads", "1"]);
    let facts = &report["run"]["facts"];
    let [wall, cpu] = ["wall_secs", "cpu_secs"].map(|key| facts[key].as_f64().unwrap());
    assert_eq!(find(&report, "idle_threads").is_some(), wall >= 2.0 && cpu / wall < 0.7, "{facts}");
}

/// Predicts labels on the CPU, and returns the report.
fn labels(fixture: &Fixture, model: &str, stack: &str, more: &[&str]) -> Value {
    let base = ["predict", stack, "--model", model, "--out", "l", "--outputs", "labels", "--device", "cpu", "--json"];
    fixture.run(&[&base[..], more].concat()).json()
}

#[test]
fn doubts_about_the_object_diameter_end_with_the_option_they_name() {
    let fixture = Fixture::new();
    // Without objects, a diameter that was given is doubted, and one that is estimated is uncertain.
    let empty = fixture.write("empty.tif", "ZYX", &[8, 48, 48], vec![7u16; 8 * 48 * 48]);
    let known = ["--voxel-size", VOXEL];
    let wrong = labels(&fixture, "nuclei", &empty, &[&known[..], &["--diameter", "15"]].concat());
    let advice = given(&fixture, "predict", &wrong, "wrong_diameter");
    assert!(advice["change"].as_str().unwrap().starts_with("--diameter auto"), "{advice}");
    assert!(advice["evidence"].as_str().unwrap().contains("15.0 µm"), "{advice}");
    assert_eq!(advice["setting"], "estimated_diameter");
    gone(&wrong, "uncertain_diameter");
    let is_noted = |report: &Value| report["inputs"][0]["notes"].to_string().contains("leave out --diameter");
    assert!(is_noted(&wrong), "{wrong:#}");
    let auto = labels(&fixture, "nuclei", &empty, &[&known[..], &["--diameter", "auto"]].concat());
    gone(&auto, "wrong_diameter");
    let advice = given(&fixture, "predict", &auto, "uncertain_diameter");
    let assumed = auto["inputs"][0]["diameter"]["diameter"].as_f64().unwrap();
    assert_eq!(advice["setting"]["diameter"], assumed);
    assert!(advice["evidence"].as_str().unwrap().contains(&format!("{assumed:.1} µm is assumed")), "{advice}");
    // With objects, neither is.
    let raw = fixture.nuclei("8,48,48", 1);
    let found = labels(&fixture, "nuclei", &raw, &[&known[..], &["--diameter", "15"]].concat());
    assert!(found["inputs"][0]["objects"][0].as_u64() > Some(0), "{found:#}");
    gone(&found, "wrong_diameter");
    assert!(!is_noted(&auto) && !is_noted(&found), "{found:#}");
    // It is not estimated.
    gone(&found, "uncertain_diameter");
    // Maps alone say nothing about objects.
    let none = maps(&fixture, "nuclei", &empty, &[&known[..], &["--diameter", "15"]].concat());
    gone(&none, "wrong_diameter");
}

#[test]
fn missing_and_wrong_voxel_sizes_end_with_the_right_one() {
    let fixture = Fixture::new();
    let values = fixture.integers(&fixture.nuclei("8,32,32", 1));
    let unknown = fixture.write("unknown.tif", "ZYX", &[8, 32, 32], values);
    let diameter = ["--diameter", "15"];
    let missing = labels(&fixture, "nuclei-dog", &unknown, &diameter);
    let advice = given(&fixture, "predict", &missing, "missing_voxel_size");
    assert!(advice["change"].as_str().unwrap().starts_with("--voxel-size"), "{advice}");
    gone(&missing, "wrong_voxel_size");
    // In nm instead of µm.
    let wrong = labels(&fixture, "nuclei-dog", &unknown, &[&diameter[..], &["--voxel-size", "875,400,400"]].concat());
    let advice = given(&fixture, "predict", &wrong, "wrong_voxel_size");
    let evidence = advice["evidence"].as_str().unwrap();
    assert!(
        evidence.contains("875 × 400 × 400 µm") && evidence.contains("15 µm would be 0.0375 voxels wide"),
        "{advice}"
    );
    assert!(advice["change"].as_str().unwrap().starts_with("--voxel-size"), "{advice}");
    gone(&wrong, "missing_voxel_size");
    let right = labels(&fixture, "nuclei-dog", &unknown, &[&diameter[..], &["--voxel-size", "0.875,0.4,0.4"]].concat());
    gone(&right, "missing_voxel_size");
    gone(&right, "wrong_voxel_size");
    // A plane has no distance between slices.
    let values: Vec<u16> = fixture.integers(&unknown).into_iter().take(32 * 32).collect();
    let plane = fixture.write("plane.tif", "YX", &[32, 32], values);
    gone(&labels(&fixture, "nuclei-dog", &plane, &diameter), "missing_voxel_size");
}

/// Trains for a few steps on the CPU with the settings in `t.toml`, and returns the report.
pub(crate) fn train(fixture: &Fixture, data: &str, out: &str, more: &[&str]) -> Value {
    let base = ["train", "--task", "segmentation", "--data", data, "--config", "t.toml", "--out", out, "--json"];
    fixture.run(&[&base[..], &["--device", "cpu", "--without-int8"], more].concat()).json()
}

#[test]
fn training_that_waits_for_data_gets_advice() {
    let fixture = Fixture::new();
    // The validation image is small: the scores of a large one would take most of the time.
    for (seed, shape, folder) in [(1, "8,448,448", "train"), (2, "8,448,448", "train"), (3, "8,64,64", "valid")] {
        std::fs::create_dir_all(fixture.path("packed").join(folder)).unwrap();
        fixture.nuclei(shape, seed);
        for part in ["raw", "labels"] {
            let plain = format!("sim/nuclei_{seed}_{part}.tif");
            let packed = format!("packed/{folder}/nuclei_{seed}_{part}.ome.tif");
            fixture.run(&["convert", &plain, &packed, "--compression", "deflate"]).ok();
        }
    }
    // A small network, whose only data worker decompresses whole slices for every small patch.
    let slow = "workers = 1\nprefetch = 2\ncache_bytes = 0\npatch_zyx = [8, 16, 16]\nbatch = 4\n\
                [network]\nfilters = [2, 4]\nconvs_per_block = 1\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), slow).unwrap();
    let waits = train(&fixture, "packed", "waits", &["--steps", "8"]);
    let advice = given(&fixture, "train", &waits, "data_wait");
    let facts = &waits["run"]["facts"]["training"];
    let [stalled, step] = ["stalled_secs", "step_secs"].map(|key| facts[key].as_f64().unwrap());
    let share = 100.0 * (stalled / step);
    let evidence = advice["evidence"].as_str().unwrap();
    assert!(
        share > 20.0 && share <= 100.0 && evidence.contains(&format!("{share:.0} % of a training step")),
        "{advice}"
    );
    let cores = std::thread::available_parallelism().unwrap().get();
    let workers = cores.min(2);
    if cores > 1 {
        assert_eq!(advice["setting"], json!({"workers": workers}), "{advice}");
        assert!(advice["change"].as_str().unwrap().starts_with(&format!("--set workers={workers} ")), "{advice}");
    }
    // A second worker would have no patch to prepare.
    if cores > 1 {
        let scarce = train(&fixture, "packed", "scarce", &["--steps", "8", "--set", "prefetch=1"]);
        let advice = given(&fixture, "train", &scarce, "data_wait");
        let asked = "--set workers=2 and a larger prefetch (--set prefetch=8);";
        assert_eq!(advice["setting"], json!({"prefetch": {"patches": 8, "workers": 2}}), "{advice}");
        assert!(advice["change"].as_str().unwrap().starts_with(asked), "{advice}");
    }
    // With a data worker for every core, more are not the advice.
    let all = format!("workers={}", cores.min(8));
    let all = train(&fixture, "packed", "all", &["--steps", "8", "--set", &all, "--set", "prefetch=8"]);
    if cores <= 8
        && let Some(advice) = find(&all, "data_wait")
    {
        assert!(advice["setting"].is_null() && advice["change"].as_str().unwrap().contains("[augment]"), "{advice}");
    }
    // With uncompressed stacks in memory, no deformation and a larger network, nothing waits.
    let fast = "workers = 1\npatch_zyx = [8, 32, 32]\nbatch = 2\n[network]\nfilters = [16, 32]\n[validation]\ntimes = 1\n\
                [augment.rotate]\nany_angle = 0.0\n[augment.elastic]\nprobability = 0.0\n\
                [augment.scale]\nprobability = 0.0\n[augment.blur]\nprobability = 0.0\n";
    std::fs::write(fixture.path("t.toml"), fast).unwrap();
    // Smaller ones, whose scores take less time.
    for seed in 1..=3 {
        fixture.nuclei("8,96,96", seed);
    }
    // Other tests may take CPU time from the data worker for a while.
    let waits = |run: usize| find(&train(&fixture, "sim", &format!("fast{run}"), &["--steps", "6"]), "data_wait");
    assert!((0..MAX_FOLLOWED).any(|run| waits(run).is_none()), "the advice is still given");
}

#[test]
fn recomputation_ends_with_a_larger_memory_limit() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    let text = "memory_mib = 1\naccumulate = 2\npatch_zyx = [16, 32, 32]\nbatch = 2\n\
                [network]\nfilters = [4, 8, 16]\nconvs_per_block = 3\n[validation]\ntimes = 1\n";
    std::fs::write(fixture.path("t.toml"), text).unwrap();
    let limited = train(&fixture, "sim", "limited", &["--steps", "3"]);
    let advice = given(&fixture, "train", &limited, "recomputation");
    let facts = &limited["run"]["facts"]["training"];
    let share = facts["recomputed_share"].as_f64().unwrap();
    assert!(advice["evidence"].as_str().unwrap().contains(&format!("{:.0} % more", 100.0 * share)), "{advice} {facts}");
    // A batch has two patches, and a step four.
    assert_eq!((&facts["batch"], &limited["batch"]), (&json!(2), &json!(4)));
    let change = advice["change"].as_str().unwrap();
    assert!(change.starts_with("--batch 1 --set accumulate=4,"), "a step keeps its four patches: {advice}");
    assert_eq!(advice["setting"], json!({"accumulated_batch": {"batch": 1, "accumulate": 4}}));
    let smaller = train(&fixture, "sim", "smaller", &["--steps", "3", "--batch", "1", "--set", "accumulate=4"]);
    assert_eq!(smaller["batch"], limited["batch"]);
    let free = train(&fixture, "sim", "free", &["--steps", "3", "--set", "memory_mib=512"]);
    gone(&free, "recomputation");
    assert!(free["run"]["facts"]["training"]["recomputed_share"].is_null());
    // On the CPU, a larger batch makes no patch faster.
    gone(&free, "small_batch");
}

/// The profile of a stored run with other measurements, as another machine would have made them.
pub(crate) fn profile_of(fixture: &Fixture, report: &Value, measure: impl FnOnce(&mut Value)) -> Value {
    let mut stored = report.clone();
    measure(&mut stored["run"]["facts"]);
    std::fs::write(fixture.path("run.json"), stored.to_string()).unwrap();
    fixture.run(&["profile", "run.json", "--json"]).json()
}

/// Asserts that `profile` prints this advice for the run of the last [`profile_of`].
pub(crate) fn is_printed(fixture: &Fixture, advice: &Value) {
    let text = fixture.run(&["profile", "run.json"]).ok().stdout;
    for part in ["evidence", "expected_gain", "change"] {
        assert!(text.contains(advice[part].as_str().unwrap()), "no {part} of {advice}: {text}");
    }
    let name = advice["rule"].as_str().unwrap();
    fixture.run(&["profile", "run.json", "--csv", "advice.csv", "--table", "advice", "--force"]).ok();
    let rows = fixture.table("advice.csv");
    assert!(rows.iter().any(|row| row[0] == name), "no row of {name}: {rows:?}");
}

#[test]
fn a_run_that_takes_nearly_all_memory_is_told_to_take_less() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("8,48,48", 1);
    let report = maps(&fixture, "net.onnx", &raw, &[]);
    let peak_bytes = report["run"]["facts"]["peak_bytes"].as_u64().expect("the peak of the memory");
    let on_machine_of = |bytes: u64| profile_of(&fixture, &report, |facts| facts["memory_bytes"] = json!(bytes));
    gone(&on_machine_of(2 * peak_bytes), "memory_pressure");
    let bytes = peak_bytes / 9 * 10;
    let full = on_machine_of(bytes);
    let advice = given(&fixture, "predict", &full, "memory_pressure");
    assert_eq!(advice["setting"], json!({"memory_budget": (bytes >> 21) << 20}), "{advice}");
    assert!(advice["evidence"].as_str().unwrap().contains("90 % of the memory"), "{advice}");
    is_printed(&fixture, &advice);
}

#[test]
fn work_that_becomes_slower_is_named_with_fewer_threads() {
    let fixture = Fixture::new();
    fixture.unet(2);
    let raw = fixture.nuclei("8,48,48", 1);
    let report = maps(&fixture, "net.onnx", &raw, &["--threads", "2"]);
    gone(&report, "slowdown");
    let with_late = |late_secs: f64| {
        let slowdown = json!({"work": "tile", "count": 40, "early_secs": 0.2, "late_secs": late_secs});
        profile_of(&fixture, &report, |facts| facts["slowdown"] = slowdown)
    };
    gone(&with_late(0.22), "slowdown");
    let advice = given(&fixture, "predict", &with_late(0.5), "slowdown");
    assert_eq!(advice["setting"], json!({"threads": 1}), "{advice}");
    let gain = advice["expected_gain"].as_str().unwrap();
    assert!(gain.contains("2.50×") && advice["change"].as_str().unwrap().contains("--threads 1"), "{advice}");
    is_printed(&fixture, &advice);
}

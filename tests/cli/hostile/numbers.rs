//! Invalid numbers, on the command line and in files.

use crate::common::Fixture;
use crate::train::{SMALL, simulate_pairs, write_settings};

#[test]
fn invalid_numbers_are_refused_by_name() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    for (option, value) in [
        ("--smooth-um", "inf"),
        ("--smooth-um", "nan"),
        ("--smooth-um", "1e7"),
        ("--smooth-um", "-1"),
        ("--threshold", "nan"),
        ("--threshold", "inf"),
        ("--seed-height", "inf"),
        ("--min-volume-um3", "nan"),
        ("--min-volume-um3", "-1"),
    ] {
        let ran = fixture.run(&["segment", &raw, "--out", "l.tif", &format!("{option}={value}")]);
        assert_eq!(ran.code, Some(2), "{option} {value}: {}", ran.stderr);
        assert!(ran.stderr.contains(option), "{option} {value}: {}", ran.stderr);
        assert!(!fixture.path("l.tif").exists(), "{option} {value}");
    }
    fixture.fails(2, &["segment", &raw, "--out", "l.tif", "--smooth-um", "-1"], &["--smooth-um is -1"]);
    fixture.fails(2, &["predict", &raw, "--out", "o", "--diameter", "-3"], &["-3", "object diameter"]);
    fixture.fails(2, &["predict", &raw, "--out", "o", "--overlap", "-0.5"], &["invalid --overlap -0.5"]);
    fixture.fails(2, &["predict", &raw, "--out", "o", "--threads", "-1"], &["--threads", "number of threads \"-1\""]);
    let quantize = ["quantize", "nuclei-dog", "--mode", "dynamic", "--out", "q", "--accuracy-budget", "-1"];
    fixture.fails(2, &quantize, &["accuracy budget -1"]);
    let max_u64 = u64::MAX.to_string();
    fixture.fails(3, &["predict", &raw, "--channel", &max_u64, "--out", "o"], &[&raw, "channel"]);
    fixture.fails(3, &["predict", &raw, "--time", &max_u64, "--out", "o"], &[&raw, "time point"]);
    fixture.fails(3, &["segment", &raw, "--channel", &max_u64, "--out", "l.tif"], &[&raw, "channel"]);
    fixture.fails(3, &["convert", &raw, "c.npy", "--channel", &max_u64], &[&raw, "channel"]);
    for size in ["inf,1,1", "nan,1,1", "0,1,1", "1e300,1,1"] {
        let ran = fixture.run(&["predict", &raw, "--voxel-size", size, "--out", "o"]);
        assert!(matches!(ran.code, Some(2 | 3)), "{size}: {:?} {}", ran.code, ran.stderr);
    }
    // Numbers of any size are stated in a few digits.
    for (options, shown) in [
        (["--voxel-size", "1e99,1,1"], "along Z is 1e99 µm"),
        (["--voxel-size", "1,1e-99,1"], "along Y is 1e-99 µm"),
        (["--diameter", "1e99"], "object diameter 1e99 is out of range"),
        (["--overlap", "1e99"], "invalid --overlap 1e99"),
        (["--preprocess", "clahe:clip=1e99"], "clip is 1e99"),
    ] {
        let ran = fixture.fails(2, &[&["predict", raw.as_str(), "--out", "o"][..], &options].concat(), &[shown]);
        assert!(!ran.stderr.contains(&"0".repeat(20)), "{}", ran.stderr);
    }
    let smoothed = ["predict", &raw, "--preprocess", "gaussian:sigma=1e99", "--out", "o"];
    fixture.fails(3, &smoothed, &["a length is 1e99 voxels"]);
    // A size that was given is an error of the option, not of the file.
    let given = ["segment", &raw, "--voxel-size", "1e6,1,1", "--out", "l.tif"];
    let refused = fixture.fails(2, &given, &["--voxel-size [1000000.0, 1.0, 1.0]", "µm"]);
    assert!(!refused.stderr.contains("correct the file"), "{}", refused.stderr);
    fixture.fails(2, &["predict", &raw, "--tile", &format!("{max_u64},1,1"), "--out", "o"], &["tile"]);
    fixture.fails(2, &["predict", &raw, "--memory-budget", "0", "--out", "o"], &["memory-budget"]);
    assert!(!fixture.path("o").exists(), "refused predictions leave no folder");
    for bad in ["--shape=99999,99999,99999", "--trace=t.tif"] {
        fixture.fails(2, &["simulate", "--kind", "nuclei", bad, "--out", "new/inner"], &["choose"]);
    }
    let train = ["train", "--task", "segmentation", "--data", "sim", "--out", "new/m", "--steps", "1"];
    fixture.fails(2, &[&train[..], &["--device", "cuda:99"]].concat(), &["cuda:99"]);
    assert!(!fixture.path("new").exists(), "refused simulations and training runs leave no folder");
    // Folders that exist are kept.
    std::fs::create_dir(fixture.path("new")).unwrap();
    fixture.fails(2, &["predict", &raw, "--voxel-size", "1e9,1,1", "--out", "new"], &["µm"]);
    fixture.fails(2, &["predict", &raw, "--voxel-size", "1e9,1,1", "--out", "new/inner"], &["µm"]);
    assert!(fixture.path("new").is_dir() && fixture.names("new").is_empty());
}

#[test]
fn provenance_records_are_checked_like_command_lines() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.run(&["predict", &raw, "--model", "nuclei-dog", "--out", "o"]).ok();
    let text = String::from_utf8(fixture.bytes("o/nuclei_1_raw_provenance.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, value, words) in [
        ("threads", serde_json::json!(1_000_000), "threads"),
        ("tiles", serde_json::json!({"tile": [0, 1, 1]}), "tile"),
        ("tiles", serde_json::json!({"overlap": 7.0}), "overlap"),
        ("voxel_um", serde_json::json!([0.0, 1.0, 1.0]), "voxel-size"),
        ("memory_budget_bytes", serde_json::json!(0), "memory-budget"),
    ] {
        let mut changed = record.clone();
        changed["job"][field] = value;
        std::fs::write(fixture.path("r.json"), changed.to_string()).unwrap();
        fixture.fails(2, &["predict", "--rerun", "r.json", "--out", "again"], &[words]);
    }
    assert!(!fixture.path("again").exists() || fixture.names("again").is_empty());
}

#[test]
fn checkpoints_with_invalid_counters_are_refused() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 2);
    write_settings(&fixture, "");
    let train = [&SMALL[..], &["--steps", "1200", "--without-int8", "--out", "m"]].concat();
    let mut child = fixture
        .command(&train)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    // The first checkpoint is written after the first validation.
    let _ = lines.map(Result::unwrap).find(|line| line.contains("score")).expect("it validates");
    while !fixture.path("m.training/training.json").is_file() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before its checkpoint was found");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let text = String::from_utf8(fixture.bytes("m.training/training.json")).unwrap();
    let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (path, value, words) in [
        ("/config/accumulate", serde_json::json!(0), "accumulate"),
        ("/config/batch", serde_json::json!(u64::MAX), "batch"),
        ("/config/workers", serde_json::json!(1_000_000), "workers"),
        ("/next_patch", serde_json::json!(u64::MAX), "next_patch"),
        ("/step", serde_json::json!(u64::MAX), "step"),
        ("/rate_factor", serde_json::json!(-1.0), "rate_factor"),
        ("/seconds", serde_json::json!(-5.0), "seconds"),
        ("/tensors", serde_json::json!("tensors-../../etc/passwd"), "tensors"),
    ] {
        let mut changed = whole.clone();
        *changed.pointer_mut(path).unwrap_or_else(|| panic!("{path} is in a checkpoint")) = value;
        std::fs::write(fixture.path("m.training/training.json"), changed.to_string()).unwrap();
        fixture.fails(3, &[&train[..], &["--resume"]].concat(), &["training.json", words]);
    }
    // Nothing was lost: the original checkpoint can be resumed.
    std::fs::write(fixture.path("m.training/training.json"), text).unwrap();
    let mut child = fixture
        .command(&[&train[..], &["--resume"]].concat())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let on = lines.map(Result::unwrap).find(|line| line.contains("resuming after step"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(on.is_some());
}

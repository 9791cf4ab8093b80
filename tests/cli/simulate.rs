//! `simulate`.

use crate::common::Fixture;

#[test]
fn a_stack_is_simulated_from_a_settings_file_alone() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("4,16,16", 3);
    fixture.run(&["simulate", "--settings", "sim/nuclei_3.json", "--out", "again"]).ok();
    assert_eq!(fixture.bytes("again/nuclei_3_raw.tif"), fixture.bytes(&raw));
    // The file overrides the kind.
    fixture.run(&["simulate", "--kind", "cells", "--settings", "sim/nuclei_3.json", "--out", "other"]).ok();
    assert_eq!(fixture.bytes("other/nuclei_3_raw.tif"), fixture.bytes(&raw));
    fixture.fails(2, &["simulate", "--out", "none"], &["--kind"]);
}

#[test]
fn files_of_an_earlier_stack_do_not_stay_beside_a_simulated_one() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("4,16,16", 3);
    for name in ["sim/nuclei_3_labels.ome.tif", "sim/nuclei_3_target.tif"] {
        std::fs::write(fixture.path(name), "earlier").unwrap();
    }
    let again = ["simulate", "--kind", "nuclei", "--shape", "5,16,16", "--seed", "3", "--out", "sim"];
    fixture.fails(2, &again, &["already exists"]);
    let ran = fixture.run(&[&again[..], &["--force"]].concat()).ok();
    assert!(fixture.path(&raw).is_file() && fixture.path("sim/nuclei_3_labels.tif").is_file());
    for name in ["sim/nuclei_3_labels.ome.tif", "sim/nuclei_3_target.tif"] {
        assert!(!fixture.path(name).exists(), "{name}");
        assert_eq!(fixture.bytes(&format!("{name}.before-1")), b"earlier");
        assert!(ran.stderr.contains(name), "{}", ran.stderr);
    }
}

#[test]
fn varied_simulations_each_have_a_voxel_size_and_a_settings_file() {
    let fixture = Fixture::new();
    let many = ["simulate", "--kind", "nuclei", "--varied", "--count", "3", "--shape", "10,40,44", "--seed", "5"];
    let made = fixture.run(&[&many[..], &["--out", "v", "--json"]].concat()).json();
    assert_eq!(made["outputs"].as_array().unwrap().len(), 9);
    let mut sizes = Vec::new();
    for seed in 5..8 {
        let written =
            fixture.run(&["info", &format!("v/nuclei_{seed}_raw.tif"), "--json"]).json()["voxel_size_um"].clone();
        let settings: serde_json::Value =
            serde_json::from_slice(&fixture.bytes(&format!("v/nuclei_{seed}.json"))).unwrap();
        assert_eq!(settings["seed"], seed);
        for axis in ["z", "y", "x"] {
            let (written, expected) =
                (written[axis].as_f64().unwrap(), settings["voxel_size_um"][axis].as_f64().unwrap());
            assert!(
                (written / expected - 1.0).abs() < 1e-4,
                "{axis}: {written} in the file, {expected} in the settings"
            );
        }
        sizes.push(written.to_string());
        fixture
            .run(&["simulate", "--kind", "nuclei", "--settings", &format!("v/nuclei_{seed}.json"), "--out", "w"])
            .ok();
        for part in ["raw", "labels"] {
            let name = |folder: &str| format!("{folder}/nuclei_{seed}_{part}.tif");
            assert_eq!(fixture.bytes(&name("v")), fixture.bytes(&name("w")), "{seed} {part}");
        }
    }
    sizes.dedup();
    assert!(sizes.len() > 1, "{sizes:?}");
}

#[test]
fn simulations_are_reproducible_and_differ_by_seed() {
    let fixture = Fixture::new();
    for kind in ["nuclei", "cells", "labelfree"] {
        for (seed, out) in [("1", "a"), ("1", "b"), ("2", "c")] {
            let made = fixture
                .run(&["simulate", "--kind", kind, "--shape", "10,40,44", "--seed", seed, "--out", out, "--json"])
                .json();
            for output in made["outputs"].as_array().unwrap() {
                assert!(fixture.path(output.as_str().unwrap()).is_file(), "{output}");
            }
        }
        let truth = if kind == "labelfree" { "target" } else { "labels" };
        for part in ["raw", truth] {
            let name = |folder: &str, seed: u32| format!("{folder}/{kind}_{seed}_{part}.tif");
            assert_eq!(fixture.bytes(&name("a", 1)), fixture.bytes(&name("b", 1)), "{kind} {part}");
            assert_ne!(
                fixture.image(&name("a", 1)),
                fixture.image(&name("c", 2)),
                "{kind} {part}: the seed has no effect"
            );
        }
        // The settings file reproduces the stack.
        fixture.run(&["simulate", "--kind", kind, "--settings", &format!("a/{kind}_1.json"), "--out", "again"]).ok();
        assert_eq!(fixture.bytes(&format!("a/{kind}_1_raw.tif")), fixture.bytes(&format!("again/{kind}_1_raw.tif")));
    }
    let made = fixture.run(&["simulate", "--kind", "nuclei", "--shape", "12,64,64", "--out", "n", "--json"]).json();
    let mut labels: Vec<u32> =
        fixture.image("n/nuclei_0_labels.tif").samples().to_f32().iter().map(|v| *v as u32).collect();
    labels.sort_unstable();
    labels.dedup();
    let objects = labels.iter().filter(|l| **l > 0).count() as u64;
    assert_eq!(made["objects"].as_u64(), Some(objects), "the reported count matches the image");
    assert!(objects > 0);
}

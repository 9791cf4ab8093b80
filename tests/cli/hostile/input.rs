//! Files meant to crash or hang the program: refused quickly with an error message.

use crate::common::Fixture;

/// Imports a package and rewrites its description.
fn package_with(fixture: &Fixture, name: &str, rdf: impl FnOnce(String) -> String) {
    if !fixture.path("m.onnx").exists() {
        fixture.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    }
    fixture.run(&["import", "m.onnx", "--out", name]).ok();
    let path = fixture.path(name).join("rdf.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, rdf(text)).unwrap();
}

/// Asserts that predicting with and importing a package fail, and that it does not affect other installed models.
fn assert_refused(fixture: &Fixture, name: &str) {
    let raw = fixture.nuclei("8,48,48", 1);
    fixture.fails(3, &["predict", &raw, "--model", name, "--out", "o"], &[name]);
    fixture.fails(3, &["import", name, "--out", "imported"], &[name]);
    assert!(!fixture.path("imported").exists() && fixture.names("o").is_empty());
    // As an installed model, it does not prevent listing the models.
    let models = fixture.path("models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::rename(fixture.path(name), models.join(name)).unwrap();
    let mut worker = fixture
        .command(&["worker"])
        .env("CYTOSCOPE_MODELS", &models)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::{BufRead, BufReader, Write};
    let version = cytoscope_worker::PROTOCOL_VERSION;
    let requests = format!("{{\"request\":\"hello\",\"version\":{version}}}\n{{\"request\":\"models\",\"id\":1}}\n");
    worker.stdin.as_mut().unwrap().write_all(requests.as_bytes()).unwrap();
    let lines = BufReader::new(worker.stdout.take().unwrap()).lines().map(Result::unwrap);
    let listed = lines.take(50).find(|line| line.contains("\"reply\":\"models\"")).expect("the worker lists models");
    assert!(listed.contains(name), "{listed}");
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    std::fs::rename(models.join(name), fixture.path(name)).unwrap();
}

#[test]
fn exploding_package_descriptions_are_refused() {
    let fixture = Fixture::new();
    let large = "x".repeat(1 << 20);
    package_with(&fixture, "aliases", |text| {
        let aliases: String = (0..90_000).map(|_| "*a, ").collect();
        format!("{text}\nzz: &a \"{large}\"\nyy: [{aliases}]\n")
    });
    assert_refused(&fixture, "aliases");
    package_with(&fixture, "deep", |text| format!("{text}\nzz: {}\n", "[".repeat(100_000)));
    assert_refused(&fixture, "deep");
    package_with(&fixture, "wild", |text| {
        text.replace("inputs:", &format!("zz: {}{}\ninputs:", "{a: ".repeat(20_000), "}".repeat(20_000)))
    });
    assert_refused(&fixture, "wild");
}

#[test]
fn numbers_in_a_package_description_are_range_checked() {
    let fixture = Fixture::new();
    for (name, section) in [
        ("smooth", "segment: {smooth_um: 1.0e+7}"),
        ("inf", "segment: {smooth_um: .inf}"),
        ("volume", "segment: {min_volume_um3: -1}"),
        ("threshold", "segment: {threshold: {fixed: .nan}}"),
        ("channel", "segment_channel: 18446744073709551615"),
    ] {
        package_with(&fixture, name, |text| {
            let body: String = text.lines().filter(|l| !l.starts_with("config")).map(|l| format!("{l}\n")).collect();
            let body = body.split("\n  cytoscope:").next().unwrap().to_owned();
            format!("{body}\nconfig:\n  cytoscope:\n    {section}\n")
        });
        let raw = fixture.nuclei("8,48,48", 1);
        let ran = fixture.run(&["predict", &raw, "--model", name, "--out", "o"]);
        assert_eq!(ran.code, Some(3), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(name) && fixture.names("o").is_empty(), "{name}: {}", ran.stderr);
    }
}

#[test]
fn implausible_voxel_sizes_are_refused_with_the_likely_unit() {
    let fixture = Fixture::new();
    let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![4, 32, 32], vec![7u16; 4096]).unwrap();
    for (name, um, words) in [
        ("metres.ome.tif", [2e-6, 6.5e-7, 6.5e-7], "meters"),
        ("huge.ome.tif", [1e6, 1e6, 1e6], "1000000"),
        ("endless.ome.tif", [1e300, 1e300, 1e300], "µm"),
    ] {
        let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
        spec.voxel_size_um = cytoscope_volume::VoxelSize::new_um(um[0], um[1], um[2]);
        if cytoscope_formats::write_array(&fixture.path(name), &array, &spec).is_err() {
            continue;
        }
        // The file can be opened; whatever depends on the voxel size is refused unless another one is given.
        fixture.run(&["info", name]).ok();
        fixture.fails(3, &["predict", name, "--model", "nuclei-dog", "--out", "o"], &[name, words, "--voxel-size"]);
        fixture.fails(3, &["segment", name, "--out", "l.tif"], &[name, words]);
        let given = ["predict", name, "--model", "nuclei-dog", "--voxel-size", "2,0.65,0.65", "--out", "o"];
        fixture.run(&given).ok();
    }
    assert!(fixture.names("o").len() >= 4, "at least one of the files could be written: {:?}", fixture.names("o"));
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_outward_links_neither_hang_nor_leak() {
    use std::os::unix::fs::symlink;
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let pipe =
        |name: &str| assert!(std::process::Command::new("mkfifo").arg(fixture.path(name)).status().unwrap().success());
    pipe("pipe.tif");
    symlink("/dev/zero", fixture.path("zero.tif")).unwrap();
    for input in ["pipe.tif", "zero.tif"] {
        fixture.fails(3, &["info", input], &[input]);
        fixture.fails(3, &["predict", input, "--out", "o"], &[input]);
        fixture.fails(3, &["convert", input, "c.npy"], &[input]);
        fixture.fails(3, &["evaluate", "--pred", input, "--truth", &raw], &[input]);
        fixture.fails(3, &["import", input, "--out", "p"], &[input]);
        fixture.fails(
            3,
            &["simulate", "--kind", "nuclei", "--settings", input, "--out", "s"],
            &[input, "regular file"],
        );
        fixture.fails(3, &["run", "nuclei-dog", "--input", input], &[input, "regular file"]);
    }
    // In a package: the network, the description or the card is not a regular file in it.
    package_with(&fixture, "secret", |text| text);
    std::fs::write(fixture.path("diary.md"), "nobody's business").unwrap();
    std::fs::remove_file(fixture.path("secret/README.md")).unwrap();
    symlink("../diary.md", fixture.path("secret/README.md")).unwrap();
    let ran = fixture.run(&["import", "secret", "--out", "copied"]);
    match ran.code {
        Some(0) => {
            assert!(!String::from_utf8(fixture.bytes("copied/README.md")).unwrap().contains("nobody's business"))
        }
        code => assert!(code == Some(3) && !fixture.path("copied").exists(), "{code:?} {}", ran.stderr),
    }
    for (name, file) in [("piped", "model.onnx"), ("mute", "rdf.yaml")] {
        package_with(&fixture, name, |text| text);
        std::fs::remove_file(fixture.path(name).join(file)).unwrap();
        pipe(&format!("{name}/{file}"));
        fixture.fails(3, &["predict", &raw, "--model", name, "--out", "o"], &[name]);
    }
    // Among training data and in a batch of inputs.
    pipe("sim/nuclei_2_raw.tif");
    std::fs::copy(fixture.path("sim/nuclei_1_labels.tif"), fixture.path("sim/nuclei_2_labels.tif")).unwrap();
    let small = ["--set", "network.filters=[4,8]", "--steps", "1", "--without-int8", "--out", "m"];
    let train = [&["train", "--task", "segmentation", "--data", "sim"][..], &small].concat();
    let ran = fixture.run(&train);
    assert!(matches!(ran.code, Some(0 | 3)), "{:?} {}", ran.code, ran.stderr);
    assert!(ran.stderr.contains("nuclei_2_raw.tif") || ran.stderr.contains("nuclei_2"), "{}", ran.stderr);
    fixture.run(&["predict", "sim", "--model", "nuclei-dog", "--out", "batch"]);
    assert!(fixture.path("batch/nuclei_1_raw_labels.tif").is_file());
}

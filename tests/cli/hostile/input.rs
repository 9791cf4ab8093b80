//! Files made to kill or hang the program: refused with a sentence, soon.

use crate::common::Desk;

/// A package as `import` makes it, with another description.
fn package_with(desk: &Desk, name: &str, rdf: impl FnOnce(String) -> String) {
    if !desk.path("m.onnx").exists() {
        desk.run(&["export", "nuclei-dog", "--format", "onnx", "--out", "m.onnx"]).ok();
    }
    desk.run(&["import", "m.onnx", "--out", name]).ok();
    let path = desk.path(name).join("rdf.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, rdf(text)).unwrap();
}

/// Predicting with it, importing it, and listing the models among which it lies.
fn assert_refused(desk: &Desk, name: &str) {
    let raw = desk.nuclei("8,48,48", 1);
    desk.fails(3, &["predict", &raw, "--model", name, "--out", "o"], &[name]);
    desk.fails(3, &["import", name, "--out", "imported"], &[name]);
    assert!(!desk.path("imported").exists() && desk.names("o").is_empty());
    // Among the installed models it stops nothing: the others are listed, and the one asked for is found.
    let models = desk.path("models");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::rename(desk.path(name), models.join(name)).unwrap();
    let mut worker = desk
        .command(&["worker"])
        .env("CYTOSCOPE_MODELS", &models)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::{BufRead, BufReader, Write};
    let version = cytoscope_pipeline::worker::PROTOCOL_VERSION;
    let requests = format!("{{\"request\":\"hello\",\"version\":{version}}}\n{{\"request\":\"models\",\"id\":1}}\n");
    worker.stdin.as_mut().unwrap().write_all(requests.as_bytes()).unwrap();
    let lines = BufReader::new(worker.stdout.take().unwrap()).lines().map(Result::unwrap);
    let listed = lines.take(50).find(|line| line.contains("\"reply\":\"models\"")).expect("the worker lists models");
    assert!(listed.contains(name), "{listed}");
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    std::fs::rename(models.join(name), desk.path(name)).unwrap();
}

#[test]
fn descriptions_that_blow_up_are_refused() {
    let desk = Desk::new();
    let large = "x".repeat(1 << 20);
    package_with(&desk, "aliases", |text| {
        let aliases: String = (0..90_000).map(|_| "*a, ").collect();
        format!("{text}\nzz: &a \"{large}\"\nyy: [{aliases}]\n")
    });
    assert_refused(&desk, "aliases");
    package_with(&desk, "deep", |text| format!("{text}\nzz: {}\n", "[".repeat(100_000)));
    assert_refused(&desk, "deep");
    package_with(&desk, "wild", |text| {
        text.replace("inputs:", &format!("zz: {}{}\ninputs:", "{a: ".repeat(20_000), "}".repeat(20_000)))
    });
    assert_refused(&desk, "wild");
}

#[test]
fn numbers_in_a_description_have_ranges() {
    let desk = Desk::new();
    for (name, section) in [
        ("smooth", "segment: {smooth_um: 1.0e+6}"),
        ("inf", "segment: {smooth_um: .inf}"),
        ("volume", "segment: {min_volume_um3: -1}"),
        ("threshold", "segment: {threshold: {fixed: .nan}}"),
        ("channel", "segment_channel: 18446744073709551615"),
    ] {
        package_with(&desk, name, |text| {
            let body: String = text.lines().filter(|l| !l.starts_with("config")).map(|l| format!("{l}\n")).collect();
            let body = body.split("\n  cytoscope:").next().unwrap().to_owned();
            format!("{body}\nconfig:\n  cytoscope:\n    {section}\n")
        });
        let raw = desk.nuclei("8,48,48", 1);
        let ran = desk.run(&["predict", &raw, "--model", name, "--out", "o"]);
        assert_eq!(ran.code, Some(3), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(name) && desk.names("o").is_empty(), "{name}: {}", ran.stderr);
    }
}

#[test]
fn voxel_sizes_that_no_microscope_gives_are_refused_with_the_likely_unit() {
    let desk = Desk::new();
    let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![4, 32, 32], vec![7u16; 4096]).unwrap();
    for (name, um, words) in [
        ("metres.ome.tif", [2e-6, 6.5e-7, 6.5e-7], "metres"),
        ("huge.ome.tif", [1e6, 1e6, 1e6], "1000000"),
        ("endless.ome.tif", [1e300, 1e300, 1e300], "µm"),
    ] {
        let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
        spec.voxel_size_um = cytoscope_volume::VoxelSize::new_um(um[0], um[1], um[2]);
        if cytoscope_formats::write_array(&desk.path(name), &array, &spec).is_err() {
            continue;
        }
        // It can be looked at and converted; what depends on the size is refused, unless another one is given.
        desk.run(&["info", name]).ok();
        desk.fails(3, &["predict", name, "--model", "nuclei-dog", "--out", "o"], &[name, words, "--voxel-size"]);
        desk.fails(3, &["segment", name, "--out", "l.tif"], &[name, words]);
        let given = ["predict", name, "--model", "nuclei-dog", "--voxel-size", "2,0.65,0.65", "--out", "o"];
        desk.run(&given).ok();
    }
    assert!(desk.names("o").len() >= 4, "at least one of the files could be written: {:?}", desk.names("o"));
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_links_out_of_a_folder_neither_hang_nor_leak() {
    use std::os::unix::fs::symlink;
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    let pipe =
        |name: &str| assert!(std::process::Command::new("mkfifo").arg(desk.path(name)).status().unwrap().success());
    pipe("pipe.tif");
    symlink("/dev/zero", desk.path("zero.tif")).unwrap();
    for input in ["pipe.tif", "zero.tif"] {
        desk.fails(3, &["info", input], &[input]);
        desk.fails(3, &["predict", input, "--out", "o"], &[input]);
        desk.fails(3, &["convert", input, "c.npy"], &[input]);
        desk.fails(3, &["evaluate", "--pred", input, "--truth", &raw], &[input]);
        desk.fails(3, &["import", input, "--out", "p"], &[input]);
    }
    // In a package: the network, the description, or the card is something else than a file in it.
    package_with(&desk, "secret", |text| text);
    std::fs::write(desk.path("diary.md"), "nobody's business").unwrap();
    std::fs::remove_file(desk.path("secret/README.md")).unwrap();
    symlink("../diary.md", desk.path("secret/README.md")).unwrap();
    let ran = desk.run(&["import", "secret", "--out", "copied"]);
    match ran.code {
        Some(0) => assert!(!String::from_utf8(desk.bytes("copied/README.md")).unwrap().contains("nobody's business")),
        code => assert!(code == Some(3) && !desk.path("copied").exists(), "{code:?} {}", ran.stderr),
    }
    for (name, file) in [("piped", "model.onnx"), ("mute", "rdf.yaml")] {
        package_with(&desk, name, |text| text);
        std::fs::remove_file(desk.path(name).join(file)).unwrap();
        pipe(&format!("{name}/{file}"));
        desk.fails(3, &["predict", &raw, "--model", name, "--out", "o"], &[name]);
    }
    // Among training data and inputs of a batch.
    pipe("sim/nuclei_2_raw.tif");
    std::fs::copy(desk.path("sim/nuclei_1_labels.tif"), desk.path("sim/nuclei_2_labels.tif")).unwrap();
    let train = ["train", "--task", "segmentation", "--data", "sim", "--steps", "1", "--out", "m"];
    let ran = desk.run(&train);
    assert!(matches!(ran.code, Some(0 | 3)), "{:?} {}", ran.code, ran.stderr);
    assert!(ran.stderr.contains("nuclei_2_raw.tif") || ran.stderr.contains("nuclei_2"), "{}", ran.stderr);
    desk.run(&["predict", "sim", "--model", "nuclei-dog", "--out", "batch"]);
    assert!(desk.path("batch/nuclei_1_raw_labels.tif").is_file());
}

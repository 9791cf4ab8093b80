//! Every exit code, the sentence that goes with it, and nothing half-done behind it.

use crate::common::{Desk, npy_f32};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn bad_input_is_code_3_and_names_the_file() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let whole = desk.bytes(&raw);
    std::fs::write(desk.path("cut.tif"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(desk.path("text.tif"), "z,y,x\n1,2,3\n".repeat(40)).unwrap();
    std::fs::write(desk.path("nothing.tif"), "").unwrap();
    // An array that says it is far larger than its file.
    let mut huge = npy_f32(&[100_000, 100_000, 1000], &[1.0]);
    std::fs::write(desk.path("huge.npy"), &huge).unwrap();
    huge.truncate(9);
    std::fs::write(desk.path("stub.npy"), &huge).unwrap();
    std::fs::create_dir(desk.path("empty")).unwrap();
    let predict = |input: &str| desk.fails(3, &["predict", input, "--out", "o"], &[input]);
    for input in ["cut.tif", "text.tif", "nothing.tif", "huge.npy", "stub.npy", "nothere.tif", "empty"] {
        let ran = predict(input);
        let said = ran.stderr.lines().find(|l| l.starts_with("error: ")).unwrap();
        let advice = ["save", "export", "copy", "check", "give"];
        assert!(advice.iter().any(|a| said.contains(a)), "{input}: no next step in \"{said}\"");
        assert_eq!(said.matches(input).count(), 1, "the file is named once: {said}");
    }
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
    for input in ["cut.tif", "text.tif", "nothere.tif", "empty"] {
        desk.fails(3, &["info", input], &[input]);
        desk.fails(3, &["convert", input, "x.npy"], &[input]);
        desk.fails(3, &["evaluate", "--pred", input, "--truth", "sim/nuclei_1_labels.tif"], &[input]);
    }
    desk.fails(3, &["predict", &raw, "--channel", "1", "--out", "o"], &[&raw, "channel", "--channel 0 to 0"]);
    desk.fails(3, &["predict", &raw, "--time", "4", "--out", "o"], &[&raw, "time point 4", "--time 0 to 0"]);
    for model in ["text.tif", "empty", &raw] {
        desk.fails(3, &["predict", &raw, "--model", model, "--out", "o"], &[model, "rdf.yaml", ".onnx"]);
    }
    std::fs::write(desk.path("bad.onnx"), "no protobuf at all, just words").unwrap();
    desk.fails(3, &["predict", &raw, "--model", "bad.onnx", "--out", "o"], &["bad.onnx"]);
    desk.fails(3, &["run", "bad.onnx", "--input", "x.npy"], &["bad.onnx"]);
    desk.fails(3, &["run", "nothere.onnx", "--input", "x.npy"], &["nothere.onnx"]);
    desk.fails(3, &["import", "bad.onnx", "--out", "pkg"], &["bad.onnx"]);
    desk.fails(3, &["import", "nothere.zip", "--out", "pkg"], &["nothere.zip"]);
    desk.fails(3, &["simulate", "--kind", "nuclei", "--settings", "text.tif", "--out", "s"], &["text.tif"]);
    assert!(desk.names("o").is_empty() && !desk.path("x.npy").exists() && !desk.path("pkg").exists());
}

/// A classic TIFF of one plane whose strip lies outside of the file.
fn claims(width: u32, height: u32) -> Vec<u8> {
    let entries: [(u16, u16, u32); 9] = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 200),
        (277, 3, 1),
        (278, 4, height),
        (279, 4, 88),
    ];
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((entries.len() as u16).to_le_bytes());
    for (tag, kind, value) in entries {
        bytes.extend(tag.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
        bytes.extend(1u32.to_le_bytes().into_iter().chain(value.to_le_bytes()));
    }
    bytes.resize(288, 0);
    bytes
}

#[test]
fn a_small_file_that_claims_a_huge_image_is_bad_not_too_large() {
    let desk = Desk::new();
    std::fs::write(desk.path("claims.tif"), claims(2_000_000, 2_000_000)).unwrap();
    desk.fails(3, &["predict", "claims.tif", "--out", "o"], &["claims.tif"]);
    assert!(desk.names("o").is_empty());
}

#[test]
fn a_device_that_is_not_there_is_code_2_and_says_what_is() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    desk.fails(
        2,
        &["predict", &raw, "--out", "o", "--device", "wgpu:77"],
        &["wgpu:77", "no such device", "cpu (usable)"],
    );
    desk.fails(2, &["predict", &raw, "--out", "o", "--device", "abacus"], &["abacus", "cuda", "wgpu", "cpu"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_code_1() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    // Below a file, where not even an administrator can make a folder.
    for out in [format!("{raw}/below"), "sim/nuclei_1.json/x".to_owned()] {
        desk.fails(1, &["predict", &raw, "--out", &out], &[&out, "another folder"]);
        desk.fails(
            1,
            &["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", &out],
            &[&out, "another folder"],
        );
    }
    let inside = format!("{raw}/a.npy");
    desk.fails(1, &["convert", &raw, &inside], &[&inside, "another folder"]);
    let inside = format!("{raw}/a.onnx");
    desk.fails(1, &["export", "nuclei", "--format", "onnx", "--out", &inside], &[&inside, "another folder"]);
    let inside = format!("{raw}/a.zip");
    desk.fails(1, &["export", "nuclei", "--format", "bioimageio", "--out", &inside], &[&inside, "another folder"]);
    desk.fails(1, &["export", "nuclei", "--format", "safetensors", "--out", &inside], &[&inside, "another folder"]);
    desk.fails(1, &["segment", &raw, "--out", &format!("{raw}/l.tif")], &[&raw]);
}

#[test]
fn a_device_that_is_not_there_is_told_with_those_that_are() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    for device in ["cuda:63", "wgpu:63"] {
        let ran = desk.run(&["predict", &raw, "--device", device, "--out", "o"]);
        assert!(matches!(ran.code, Some(1..=4)), "{device}: {:?}", ran.code);
        assert!(ran.stderr.contains(device) && ran.stderr.contains("cpu"), "{}", ran.stderr);
    }
    assert!(!desk.path("o/nuclei_1_raw_labels.tif").exists() && desk.leftovers().is_empty());
}

#[test]
fn too_little_memory_is_code_4_and_says_how_much_it_takes() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let arguments = ["predict", &raw, "--memory-budget", "1M", "--out", "o"];
    desk.fails(4, &arguments, &[&raw, "MiB of memory", "1 MiB", "--memory-budget"]);
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
    // What it says it takes is enough.
    let report = desk.run(&["predict", &raw, "--out", "o", "--json"]).json();
    let stated = report["inputs"][0]["plan"]["stated_peak_bytes"].as_u64().unwrap();
    let ran = desk.run(&["predict", &raw, "--memory-budget", &stated.to_string(), "--out", "o", "--json"]).json();
    assert!(ran["inputs"][0]["actual_peak_bytes"].as_u64().unwrap() <= stated);
}

/// A small file system that goes when dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let out = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at).output();
        match out {
            Ok(out) if out.status.success() => Some(Self(at.to_owned())),
            _ => {
                {
                    use std::io::Write;
                    let _ = writeln!(std::io::stderr(), "SKIPPED: a small disk cannot be mounted here");
                }
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_is_code_4_and_leaves_nothing() {
    let desk = Desk::new();
    let raw = desk.nuclei("16,96,96", 1);
    desk.write("map.tif", "ZYX", &[16, 96, 96], vec![0.5f32; 16 * 96 * 96]);
    let Some(_disk) = SmallDisk::mount(&desk.path("full"), "200k") else { return };
    desk.fails(4, &["predict", &raw, &raw, "--out", "full"], &["free some space", "the disk is full"]);
    assert!(desk.names("full").is_empty(), "{:?}", desk.names("full"));
    desk.fails(4, &["convert", &raw, "full/a.npy"], &["full/a.npy", "space"]);
    desk.fails(4, &["convert", &raw, "full/a.ome.tif"], &["full/a.ome.tif", "space"]);
    desk.fails(4, &["simulate", "--kind", "nuclei", "--shape", "16,96,96", "--out", "full"], &["space"]);
    desk.fails(4, &["segment", "map.tif", "--out", "full/l.tif"], &["space"]);
    std::fs::write(desk.path("full/rest"), vec![0u8; 1]).unwrap();
    // Not even small files fit.
    let mut fill = 200 << 10;
    while fill > 0 && std::fs::write(desk.path("full/rest"), vec![0u8; fill]).is_err() {
        fill -= 4096;
    }
    for (format, name) in [("onnx", "m.onnx"), ("bioimageio", "m.zip"), ("bioimageio", "m"), ("safetensors", "m.st")] {
        let ran = desk.fails(4, &["export", "nuclei", "--format", format, "--out", &format!("full/{name}")], &[name]);
        assert_eq!(ran.stderr.lines().count(), 1, "one sentence: {}", ran.stderr);
    }
    assert_eq!(desk.names("full"), ["rest"]);
}

#[test]
fn a_read_only_disk_is_code_1_and_says_where_to_go() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let Some(_disk) = SmallDisk::mount(&desk.path("still"), "200k,ro") else { return };
    desk.fails(1, &["predict", &raw, "--out", "still/x"], &["still/x", "choose another folder"]);
    desk.fails(1, &["convert", &raw, "still/a.npy"], &["still/a.npy", "choose another folder"]);
    desk.fails(1, &["export", "nuclei", "--format", "onnx", "--out", "still/m.onnx"], &["m.onnx", "another folder"]);
    desk.fails(
        1,
        &["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", "still"],
        &["choose another folder"],
    );
}

/// Starts a prediction of a larger stack and returns once tiles are being computed.
#[cfg(unix)]
pub(crate) fn predicting(desk: &Desk) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    let arguments =
        ["predict", &desk.large(), "--model", "nuclei-dog", "--out", "o", "--tile", "48,64,64", "--json-progress"];
    let mut child = desk.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    let computes = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        event["stage"] == "predict" && event["done"].as_u64() > Some(0)
    };
    while !said.lines().last().is_some_and(computes) {
        if lines.read_line(&mut said).unwrap() == 0 {
            let _ = child.wait();
            panic!("it ended before it computed: {said}");
        }
    }
    (child, lines)
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn interrupted_it_ends_with_code_5_and_leaves_nothing() {
    let desk = Desk::new();
    let (mut child, mut lines) = predicting(&desk);
    assert!(!desk.leftovers().is_empty(), "it was writing something that could be left behind");
    interrupt(&child);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{rest}");
    assert!(rest.contains("cancelled"), "{rest}");
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
    assert!(desk.leftovers().is_empty(), "{:?}", desk.leftovers());
    // And it can be done after all.
    desk.run(&["predict", "large.tif", "--out", "o", "--outputs", "labels", "--resume"]).ok();
    assert_eq!(desk.names("o"), ["large_labels.tif", "large_provenance.json"]);
}

#[cfg(unix)]
#[test]
fn interrupted_twice_it_leaves_nothing_either() {
    let desk = Desk::new();
    let (mut child, mut lines) = predicting(&desk);
    interrupt(&child);
    let mut line = String::new();
    while !line.contains("cancelling") && lines.read_line(&mut line).unwrap() > 0 {}
    // It may have ended on its own by now; both ways must be clean.
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).output();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{line}{rest}");
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
}

#[cfg(unix)]
#[test]
fn an_interrupted_conversion_leaves_nothing() {
    let desk = Desk::new();
    // Four gigabytes of zeros that take no disk, and some seconds to compress.
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend(b"{'descr': '<u2', 'fortran_order': False, 'shape': (2048, 1024, 1024), }");
    header.resize(127, b' ');
    header.push(b'\n');
    std::fs::write(desk.path("large.npy"), &header).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(desk.path("large.npy")).unwrap();
    file.set_len(128 + (2048 << 20) * 2).unwrap();
    let arguments =
        ["convert", "large.npy", "large.ome.tif", "--axes", "ZYX", "--compression", "deflate", "--json-progress"];
    let mut child = desk.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    let under_way = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        event["stage"] == "convert" && event["done"].as_u64() > Some(0)
    };
    while !said.lines().last().is_some_and(under_way) {
        assert!(lines.read_line(&mut said).unwrap() > 0, "it ended before it wrote: {said}");
    }
    assert!(!desk.leftovers().is_empty(), "it was writing something that could be left behind");
    interrupt(&child);
    std::io::Read::read_to_string(&mut lines, &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{said}");
    assert!(desk.leftovers().is_empty() && !desk.path("large.ome.tif").exists(), "{:?}", desk.leftovers());
}

//! Every exit code with its error message, and no partial files afterwards.

use crate::common::{Fixture, npy_f32};
use cytoscope_testkit::skip;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn bad_input_is_code_3_and_names_the_file() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let whole = fixture.bytes(&raw);
    std::fs::write(fixture.path("cut.tif"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(fixture.path("text.tif"), "z,y,x\n1,2,3\n".repeat(40)).unwrap();
    std::fs::write(fixture.path("nothing.tif"), "").unwrap();
    // An array that declares to be far larger than its file.
    let mut huge = npy_f32(&[100_000, 100_000, 1000], &[1.0]);
    std::fs::write(fixture.path("huge.npy"), &huge).unwrap();
    huge.truncate(9);
    std::fs::write(fixture.path("stub.npy"), &huge).unwrap();
    std::fs::create_dir(fixture.path("empty")).unwrap();
    let predict = |input: &str| fixture.fails(3, &["predict", input, "--out", "o"], &[input]);
    for input in ["cut.tif", "text.tif", "nothing.tif", "huge.npy", "stub.npy", "nothere.tif", "empty"] {
        let ran = predict(input);
        let printed = ran.stderr.lines().find(|l| l.starts_with("error: ")).unwrap();
        let advice = ["save", "export", "copy", "check", "give"];
        assert!(advice.iter().any(|a| printed.contains(a)), "{input}: no next step in \"{printed}\"");
        assert_eq!(printed.matches(input).count(), 1, "the file is named once: {printed}");
    }
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
    for input in ["cut.tif", "text.tif", "nothere.tif", "empty"] {
        fixture.fails(3, &["info", input], &[input]);
        fixture.fails(3, &["convert", input, "x.npy"], &[input]);
        fixture.fails(3, &["evaluate", "--pred", input, "--truth", "sim/nuclei_1_labels.tif"], &[input]);
    }
    fixture.fails(3, &["info", "nothing.tif"], &["nothing.tif", "the file is empty"]);
    fixture.fails(3, &["predict", &raw, "--channel", "1", "--out", "o"], &[&raw, "channel 1", "leave out --channel"]);
    fixture.fails(3, &["predict", &raw, "--time", "4", "--out", "o"], &[&raw, "time point 4", "leave out --time"]);
    for model in ["text.tif", "empty", &raw] {
        fixture.fails(3, &["predict", &raw, "--model", model, "--out", "o"], &[model, "rdf.yaml", ".onnx"]);
    }
    std::fs::write(fixture.path("bad.onnx"), "no protobuf at all, just words").unwrap();
    fixture.fails(3, &["predict", &raw, "--model", "bad.onnx", "--out", "o"], &["bad.onnx"]);
    fixture.fails(3, &["run", "bad.onnx", "--input", "x.npy"], &["bad.onnx"]);
    for command in [
        &["run", "nothere.onnx", "--input", "x.npy"][..],
        &["info", "nothere.onnx"],
        &["profile", "nothere.onnx"],
        &["profile", "nothere.onnx", "--leaks", "4"],
        &["bench", "--config", "nothere.onnx", "--output", "r.json"],
        &["simulate", "--kind", "nuclei", "--out", "s", "--settings", "nothere.onnx"],
    ] {
        let ran = fixture.fails(3, command, &["nothere.onnx: no such file or folder; check "]);
        assert!(!ran.stderr.contains("os error"), "{}", ran.stderr);
    }
    fixture.fails(3, &["import", "bad.onnx", "--out", "pkg"], &["bad.onnx"]);
    fixture.fails(3, &["import", "nothere.zip", "--out", "pkg"], &["nothere.zip"]);
    fixture.fails(3, &["simulate", "--kind", "nuclei", "--settings", "text.tif", "--out", "s"], &["text.tif"]);
    assert!(fixture.names("o").is_empty() && !fixture.path("x.npy").exists() && !fixture.path("pkg").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_that_cannot_be_written_hides_neither_results_nor_failures() {
    use crate::common::UNWRITABLE_TRACE;
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let options = ["--model", "nuclei-dog", "--device", "cpu", "--out", "o", "--trace", UNWRITABLE_TRACE];
    let predicted = fixture.fails(1, &[&["predict", &raw, "--json"][..], &options].concat(), &[UNWRITABLE_TRACE]);
    let report: serde_json::Value = serde_json::from_str(&predicted.stdout).unwrap();
    assert_eq!(report["inputs"].as_array().map(Vec::len), Some(1), "{report:#}");
    let pair = ["--pred", "o/nuclei_1_raw_labels.tif", "--truth", "sim/nuclei_1_labels.tif"];
    let scored = [&["evaluate", "--trace", UNWRITABLE_TRACE][..], &pair].concat();
    let scored = fixture.fails(1, &scored, &[UNWRITABLE_TRACE]);
    assert!(scored.stdout.starts_with("1 pair\n"), "{}", scored.stdout);
    // The failure of an input comes first.
    std::fs::write(fixture.path("text.tif"), "z,y,x\n1,2,3\n".repeat(40)).unwrap();
    let failed = fixture.fails(3, &[&["predict", "text.tif"][..], &options].concat(), &["text.tif"]);
    assert!(!failed.stderr.contains(UNWRITABLE_TRACE), "{}", failed.stderr);
}

/// A classic TIFF of one plane whose strip lies outside the file.
fn tiff_declaring(width: u32, height: u32) -> Vec<u8> {
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
fn small_file_that_declares_a_huge_image_is_bad_input() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("claims.tif"), tiff_declaring(2_000_000, 2_000_000)).unwrap();
    fixture.fails(3, &["predict", "claims.tif", "--out", "o"], &["claims.tif"]);
    assert!(fixture.names("o").is_empty());
}

#[test]
fn missing_device_is_code_2_and_lists_the_usable_ones() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    fixture.fails(
        2,
        &["predict", &raw, "--out", "o", "--device", "wgpu:77"],
        &["wgpu:77", "no such device", "cpu (usable)"],
    );
    fixture.fails(2, &["predict", &raw, "--out", "o", "--device", "cuda:63"], &["cuda:63", "cpu (usable)"]);
    fixture.fails(2, &["predict", &raw, "--out", "o", "--device", "abacus"], &["abacus", "cuda", "wgpu", "cpu"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_code_1() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    // Below a file, where not even root can create a folder.
    for out in [format!("{raw}/below"), "sim/nuclei_1.json/x".to_owned()] {
        fixture.fails(1, &["predict", &raw, "--out", &out], &[&out, "another folder"]);
        fixture.fails(
            1,
            &["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", &out],
            &[&out, "another folder"],
        );
    }
    // A file below a file is a mistake in the command.
    for (name, command) in [
        ("a.npy", vec!["convert", &raw]),
        ("a.onnx", vec!["export", "nuclei", "--format", "onnx", "--out"]),
        ("a.zip", vec!["export", "nuclei", "--format", "bioimageio", "--out"]),
        ("a.safetensors", vec!["export", "nuclei", "--format", "safetensors", "--out"]),
        ("l.tif", vec!["segment", &raw, "--out"]),
    ] {
        let inside = format!("{raw}/{name}");
        fixture.fails(2, &[&command[..], &[inside.as_str()]].concat(), &[&inside, "part of its path is a file"]);
    }
    // A file in place of the folder is a mistake in the command.
    std::fs::write(fixture.path("plain"), "mine").unwrap();
    for command in [&["predict", &raw][..], &["simulate", "--kind", "nuclei", "--shape", "4,16,16"]] {
        fixture.fails(2, &[command, &["--out", "plain"]].concat(), &["plain is not a folder", "choose another path"]);
    }
    assert_eq!(fixture.bytes("plain"), b"mine");
}

#[test]
fn a_missing_folder_of_a_result_is_code_2_and_named() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let labels = "sim/nuclei_1_labels.tif";
    for arguments in [
        ["convert", &raw, "no/a.npy"].as_slice(),
        &["convert", &raw, "no/a.zarr"],
        &["segment", &raw, "--out", "no/l.tif"],
        &["measure", labels, "--out", "no/t.csv"],
        &["mesh", labels, "--out", "no/m.stl"],
        &["export", "nuclei-dog", "--out", "no/m.onnx"],
    ] {
        fixture.fails(2, arguments, &["no/", "the folder no does not exist; create it"]);
    }
    assert!(!fixture.path("no").exists());
    let below = format!("{raw}/t.csv");
    fixture.fails(2, &["measure", labels, "--out", &below], &[&below, "part of its path is a file, not a folder"]);
    fixture.fails(
        2,
        &["measure", labels, "--out", "t.csv/"],
        &["t.csv/", "the path of a folder, but the output is a file"],
    );
    assert!(!fixture.path("t.csv").exists());
}

#[test]
fn too_little_memory_is_code_4_and_states_the_required_amount() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let arguments = ["predict", &raw, "--memory-budget", "1M", "--out", "o"];
    let refused = fixture.fails(4, &arguments, &[&raw, "MiB of memory", "1 MiB", "--memory-budget"]);
    assert_eq!(refused.stderr.matches("MiB of memory").count(), 1, "{}", refused.stderr);
    let tiny = ["predict", &raw, "--memory-budget", "2K", "--out", "o"];
    fixture.fails(4, &tiny, &["the budget is 2 KiB"]);
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
    // The stated peak is enough.
    let report = fixture.run(&["predict", &raw, "--out", "o", "--json"]).json();
    let stated = report["inputs"][0]["plan"]["stated_peak_bytes"].as_u64().unwrap();
    let ran = fixture.run(&["predict", &raw, "--memory-budget", &stated.to_string(), "--out", "o", "--json"]).json();
    assert!(ran["inputs"][0]["actual_peak_bytes"].as_u64().unwrap() <= stated);
}

#[cfg(unix)]
#[test]
fn a_limit_of_the_file_size_is_code_4_and_leaves_nothing() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,64,64", 1);
    let limited = |arguments: &[&str]| {
        let program = fixture.command(arguments);
        let mut shell = Command::new("sh");
        // Blocks of 512 or 1024 bytes; the results are larger.
        shell.args(["-c", "ulimit -f 32 && exec \"$@\"", "sh"]).arg(program.get_program()).args(arguments);
        shell.current_dir(fixture.path(""));
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        let out = shell.output().unwrap();
        let printed = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(4), "{arguments:?}: {printed}");
        assert!(printed.contains("a limit of the system allows") && printed.contains("ulimit -f"), "{printed}");
    };
    limited(&["convert", &raw, "a.npy"]);
    limited(&["convert", &raw, "a.tif"]);
    assert!(!fixture.path("a.npy").exists() && !fixture.path("a.tif").exists());
    assert!(fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}

/// A small file system that is unmounted when dropped.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it; reports a skip and returns `None` if that is not permitted.
    pub(crate) fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let out = Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(at).output();
        match out {
            Ok(out) if out.status.success() => Some(Self(at.to_owned())),
            _ => {
                skip("a small disk cannot be mounted here");
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
    let fixture = Fixture::new();
    let raw = fixture.nuclei("16,96,96", 1);
    let other = fixture.nuclei("16,96,96", 2);
    fixture.write("map.tif", "ZYX", &[16, 96, 96], vec![0.5f32; 16 * 96 * 96]);
    let Some(_disk) = SmallDisk::mount(&fixture.path("full"), "200k") else { return };
    fixture.fails(4, &["predict", &raw, &other, "--out", "full"], &["free some space", "the disk is full"]);
    // It is found before anything is computed.
    let predict = ["predict", &raw, "--out", "full", "--json-progress"];
    let ran = fixture.fails(4, &predict, &["of disk space", "free some space"]);
    assert!(!ran.stderr.contains(r#""stage":"predict""#), "{}", ran.stderr);
    assert!(fixture.names("full").is_empty(), "{:?}", fixture.names("full"));
    fixture.fails(4, &["convert", &raw, "full/a.npy"], &["full/a.npy", "space"]);
    fixture.fails(4, &["convert", &raw, "full/a.ome.tif"], &["full/a.ome.tif", "space"]);
    fixture.fails(4, &["simulate", "--kind", "nuclei", "--shape", "16,96,96", "--out", "full"], &["space"]);
    fixture.fails(4, &["segment", "map.tif", "--out", "full/l.tif"], &["space"]);
    std::fs::write(fixture.path("full/rest"), vec![0u8; 1]).unwrap();
    // Fill the disk, so that not even small files fit.
    let mut fill = 200 << 10;
    while fill > 0 && std::fs::write(fixture.path("full/rest"), vec![0u8; fill]).is_err() {
        fill -= 4096;
    }
    for (format, name) in [("onnx", "m.onnx"), ("bioimageio", "m.zip"), ("bioimageio", "m"), ("safetensors", "m.st")] {
        let ran =
            fixture.fails(4, &["export", "nuclei", "--format", format, "--out", &format!("full/{name}")], &[name]);
        assert_eq!(ran.stderr.lines().count(), 1, "one sentence: {}", ran.stderr);
    }
    assert_eq!(fixture.names("full"), ["rest"]);
}

#[test]
fn a_simulated_stack_is_not_replaced_in_part_on_a_full_disk() {
    let fixture = Fixture::new();
    let Some(_disk) = SmallDisk::mount(&fixture.path("full"), "240k") else { return };
    let simulate = ["simulate", "--kind", "nuclei", "--shape", "8,64,64", "--out", "full/s"];
    fixture.run(&simulate).ok();
    let images = || ["raw", "labels"].map(|part| fixture.bytes(&format!("full/s/nuclei_0_{part}.tif")));
    let before = images();
    // The new image would fit beside the old files, but not its labels, too.
    fixture.fails(4, &[&simulate[..], &["--varied", "--force"]].concat(), &["labels", "space"]);
    assert!(images() == before, "an image was replaced");
}

#[test]
fn read_only_disk_is_code_1_and_suggests_another_folder() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let Some(_disk) = SmallDisk::mount(&fixture.path("still"), "200k,ro") else { return };
    fixture.fails(1, &["predict", &raw, "--out", "still/x"], &["still/x", "choose another folder"]);
    fixture.fails(1, &["convert", &raw, "still/a.npy"], &["still/a.npy", "choose another folder"]);
    fixture.fails(1, &["export", "nuclei", "--format", "onnx", "--out", "still/m.onnx"], &["m.onnx", "another folder"]);
    let simulate = ["simulate", "--kind", "nuclei", "--shape", "4,16,16", "--out", "still", "--json-progress"];
    let ran = fixture.fails(1, &simulate, &["choose another folder"]);
    assert!(!ran.stderr.contains(r#""stage":"simulate""#), "{}", ran.stderr);
    // What takes long is refused before it begins.
    let commands: [&[&str]; 3] = [
        &["quantize", "nuclei-dog", "--mode", "static", "--calibrate", &raw, "--out", "still/q", "--json-progress"],
        &["evaluate", "--model", "nuclei-dog", "--data", "sim", "--out", "still/e.json"],
        &["bench", "--compare-opts", "nuclei-dog", "--data", &raw, "--output", "still/b.json"],
    ];
    for command in commands {
        let ran = fixture.fails(1, command, &["choose another folder"]);
        let has_begun = ["[1/", "[round", r#""stage":"#].iter().any(|shown| ran.stderr.contains(shown));
        assert!(!has_begun, "{}", ran.stderr);
    }
}

/// Starts the prediction of a large stack and returns once tiles are being computed.
#[cfg(unix)]
pub(crate) fn start_prediction(fixture: &Fixture) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    start_prediction_as(fixture, &[])
}

/// Like [`start_prediction`], with more options.
#[cfg(unix)]
fn start_prediction_as(
    fixture: &Fixture,
    more: &[&str],
) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    let stack = fixture.large_stack();
    let common = ["predict", &stack, "--model", "nuclei-dog", "--out", "o", "--tile", "48,64,64", "--json-progress"];
    let arguments = [&common[..], more].concat();
    let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut printed = String::new();
    let computes = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        event["stage"] == "predict" && event["done"].as_u64() > Some(0)
    };
    while !printed.lines().last().is_some_and(computes) {
        if lines.read_line(&mut printed).unwrap() == 0 {
            let _ = child.wait();
            panic!("it ended before computing: {printed}");
        }
    }
    (child, lines)
}

/// Whether Ctrl-C is ignored, as in programs that a script starts in the background. Programs that the tests start inherit
/// that; reports a skip.
#[cfg(unix)]
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    // Signal 2 is SIGINT.
    let is_ignored = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & 0b10 != 0);
    if is_ignored {
        skip("Ctrl-C (SIGINT) is ignored: run the tests in the foreground");
    }
    is_ignored
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn interrupted_prediction_exits_with_code_5_and_leaves_nothing() {
    if ignores_interrupts() {
        return;
    }
    let fixture = Fixture::new();
    let (mut child, mut lines) = start_prediction(&fixture);
    assert!(!fixture.leftovers().is_empty(), "partial files exist while it runs");
    interrupt(&child);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{rest}");
    assert!(rest.contains("canceled"), "{rest}");
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
    assert!(fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
    // The prediction can still be completed.
    let arguments = ["predict", "large.tif", "--model", "nuclei-dog", "--out", "o", "--outputs", "labels", "--resume"];
    fixture.run(&arguments).ok();
    assert_eq!(fixture.names("o"), ["large_labels.tif", "large_provenance.json"]);
}

#[cfg(unix)]
#[test]
fn prediction_interrupted_twice_leaves_nothing() {
    if ignores_interrupts() {
        return;
    }
    for format in ["tiff", "ome-zarr"] {
        let fixture = Fixture::new();
        let (mut child, mut lines) = start_prediction_as(&fixture, &["--format", format]);
        interrupt(&child);
        let mut line = String::new();
        while !line.contains("canceling") {
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before it was interrupted again: {line}");
        }
        // It may have ended by now; both ways must be clean.
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).output();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5), "{line}{rest}");
        assert!(fixture.names("o").is_empty(), "{format}: {:?}", fixture.names("o"));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_conversion_leaves_nothing() {
    if ignores_interrupts() {
        return;
    }
    let fixture = Fixture::new();
    // Four gigabytes of zeros in a sparse file, which take some seconds to compress.
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend(b"{'descr': '<u2', 'fortran_order': False, 'shape': (2048, 1024, 1024), }");
    header.resize(127, b' ');
    header.push(b'\n');
    std::fs::write(fixture.path("large.npy"), &header).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(fixture.path("large.npy")).unwrap();
    file.set_len(128 + (2048 << 20) * 2).unwrap();
    let arguments =
        ["convert", "large.npy", "large.ome.tif", "--axes", "ZYX", "--compression", "deflate", "--json-progress"];
    let mut child = fixture.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut printed = String::new();
    let writes = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        event["stage"] == "convert" && event["done"].as_u64() > Some(0)
    };
    while !printed.lines().last().is_some_and(writes) {
        assert!(lines.read_line(&mut printed).unwrap() > 0, "it ended before writing: {printed}");
    }
    assert!(!fixture.leftovers().is_empty(), "partial files exist while it runs");
    interrupt(&child);
    std::io::Read::read_to_string(&mut lines, &mut printed).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{printed}");
    assert!(fixture.leftovers().is_empty() && !fixture.path("large.ome.tif").exists(), "{:?}", fixture.leftovers());
}

#[test]
fn inputs_of_a_model_that_do_not_exist_are_refused() {
    let fixture = Fixture::new();
    let stack = fixture.write("s.tif", "ZYX", &[2, 8, 8], vec![0u16; 128]);
    let stack = stack.as_str();
    let fails = |arguments: &[&str], words: &[&str]| {
        let common = ["predict", "--model", "nuclei-dog", "--device", "cpu", "--out", "o"];
        fixture.fails(2, &[&common[..], arguments].concat(), words);
    };
    fails(&[stack, "--input", "nuclei"], &["NAME=FILE"]);
    fails(&[stack, "--input", "x=none.tif"], &["none.tif", "does not exist"]);
    fails(&[stack, "--input", "actin=0"], &["no input \"actin\""]);
    fails(&[stack, "--input", "actin=0", "--channel", "0"], &["--channel"]);
    fails(&["--input", "actin=0"], &["no stack was given"]);
}

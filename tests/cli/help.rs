//! Help texts, and wrong usage.

use crate::common::Fixture;
use std::collections::BTreeSet;

const COMMANDS: [&str; 21] = [
    "info",
    "convert",
    "devices",
    "predict",
    "diameter",
    "run",
    "segment",
    "measure",
    "mesh",
    "evaluate",
    "import",
    "export",
    "check",
    "quantize",
    "train",
    "provenance",
    "profile",
    "bench",
    "tune",
    "simulate",
    "worker",
];

/// Options and arguments of a help text that have no description.
fn without_description(help: &str) -> Vec<String> {
    let lines: Vec<&str> = help.lines().collect();
    // Names are at the left; lines indented further are continued descriptions.
    let is_option = |line: &str| {
        let name = line.trim_start();
        line.len() - name.len() <= 8 && name.starts_with(['-', '<', '['])
    };
    let mut found = Vec::new();
    let from = lines.iter().position(|l| l.starts_with("Arguments:") || l.starts_with("Options:")).unwrap();
    for (i, line) in lines.iter().enumerate().skip(from).filter(|(_, l)| l.starts_with(' ') && is_option(l)) {
        let beside = line.trim_start().split_once("  ").is_some_and(|(_, text)| text.trim().len() > 3);
        let below = lines.get(i + 1).is_some_and(|l| l.trim().len() > 3 && !is_option(l) && l.starts_with("   "));
        if !beside && !below {
            found.push((*line).to_owned());
        }
    }
    found
}

#[test]
fn every_command_explains_itself() {
    let fixture = Fixture::new();
    let overview = fixture.run(&["--help"]).ok().stdout;
    assert!(overview.contains("Usage: cytoscope") && overview.contains("Exit codes"), "{overview}");
    assert!(!overview.contains("probe-device"), "the device probe is internal");
    for command in COMMANDS {
        let is_explained =
            overview.lines().any(|l| l.trim_start().strip_prefix(command).is_some_and(|r| r.trim().len() > 10));
        assert!(is_explained, "{command} is not explained in the overview");
        for form in ["--help", "-h"] {
            let help = fixture.run(&[command, form]).ok();
            assert!(help.stderr.is_empty());
            assert!(help.stdout.contains(&format!("Usage: cytoscope {command}")), "{}", help.stdout);
            assert!(help.stdout.contains("Options:"), "{}", help.stdout);
            let bare = without_description(&help.stdout);
            assert!(bare.is_empty(), "{command} {form} does not say what these do: {bare:?}");
            assert!(help.stdout.lines().all(|l| l.chars().count() <= 120), "{command}: lines too long to read");
        }
    }
    assert_eq!(fixture.run(&["--version"]).ok().stdout.trim(), format!("cytoscope {}", env!("CARGO_PKG_VERSION")));
}

/// Returns the names of options in a text.
fn option_names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("--") && !word.starts_with("---"));
    words.filter(|word| word.len() > 2).map(str::to_owned).collect()
}

#[test]
fn the_guide_lists_every_option_of_every_command() {
    let guide = include_str!("../../docs/guide/commands.md");
    let fixture = Fixture::new();
    // The worker has no options.
    for command in COMMANDS.into_iter().filter(|command| *command != "worker") {
        let section = guide.split(&format!("### `{command}`\n")).nth(1).unwrap_or_else(|| panic!("{command}"));
        let listed = option_names(section.split("\n#").next().unwrap());
        let help = fixture.run(&[command, "-h"]).ok().stdout;
        let names = help.lines().filter(|line| line.len() - line.trim_start().len() <= 8);
        let names = names.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--")));
        let mut expected: BTreeSet<String> = names.flat_map(option_names).collect();
        for common in ["--help", "--verbose"] {
            assert!(expected.remove(common), "{command}: {help}");
        }
        assert_eq!(listed, expected, "{command}");
    }
}

#[test]
fn undescribed_options_are_detected() {
    let help =
        "Usage: x\n\nOptions:\n      --described <A>  What it is\n      --bare <B>\n  -h, --help      Print help\n";
    assert_eq!(without_description(help), ["      --bare <B>"]);
}

#[test]
fn wrong_usage_exits_with_code_2() {
    let fixture = Fixture::new();
    fixture.write("a.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    // Without a command, the window would open, but there is no display.
    fixture.fails(1, &[], &["no display", "--help"]);
    fixture.fails(1, &["a.tif"], &["no display", "--help"]);
    fixture.fails(2, &["paint"], &["paint", "--help"]);
    fixture.fails(2, &["info"], &["FILE", "Usage"]);
    fixture.fails(2, &["info", "a.tif", "--frobnicate"], &["--frobnicate"]);
    fixture.fails(2, &["predict", "a.tif"], &["--out"]);
    fixture.fails(2, &["predict", "--out", "o"], &["INPUTS"]);
    // The package is taken as one of the stacks.
    let swallowed = ["quantize", "--mode", "static", "--calibrate", "a.tif", "package", "--out", "o"];
    fixture.fails(2, &swallowed, &["<PACKAGE>", "Usage: cytoscope quantize <PACKAGE> --mode"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--tile", "3,4"], &["Z,Y,X"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--tile", "0,4,4"], &["positive"]);
    fixture.fails(
        2,
        &["predict", "a.tif", "--model", "nuclei-dog", "--out", "o", "--tile", "1,5,5"],
        &["--tile", "too small"],
    );
    for overlap in ["1.5", "0.91", "-0.1"] {
        let expected = format!("invalid --overlap {overlap}: expected a number from 0 to 0.9");
        fixture.fails(2, &["predict", "a.tif", "--out", "o", "--overlap", overlap], &[&expected]);
    }
    let cropped = ["predict", "a.tif", "--out", "o", "--overlap", "0.5", "--blend", "crop"];
    fixture.fails(2, &cropped, &["--overlap", "--blend gaussian"]);
    fixture.fails(2, &["predict", "a.tif", "--rerun", "r.json", "--out", "o"], &["--rerun", "INPUTS"]);
    fixture.fails(2, &["predict", "--rerun", "r.json", "--out", "o", "--channel", "1"], &["--rerun", "--channel"]);
    let output = ["predict", "--rerun", "r.json", "--out", "o", "--output-tensor", "mask"];
    fixture.fails(2, &output, &["--rerun", "--output-tensor"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--blend", "smear"], &["smear", "auto, crop, gaussian"]);
    fixture.fails(
        2,
        &["predict", "a.tif", "--out", "o", "--outputs", "maps,gold"],
        &["gold", "maps, labels, table, preview, preprocessed"],
    );
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--memory-budget", "lots"], &["2G"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--memory-budget", "2"], &["2 bytes", "2G or 2M"]);
    let below = ["evaluate", "--pred", "a.tif", "--truth", "a.tif", "--ignore-below"];
    fixture.fails(2, &[&below[..], &["20um"]].concat(), &["20um", "--ignore-below", "whole number without a unit"]);
    fixture.fails(2, &["segment", "a.tif", "--out", "l.tif", "--smooth-um", "1um"], &["1um", "number without a unit"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--device", "gpu"], &["gpu", "auto, cpu, cuda"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--precision", "f17"], &["f17", "int8"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--threads", "100000"], &["threads"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--axes", "ABC"], &["ABC"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--voxel-size", "1,0,1"], &["µm"]);
    let ran = fixture.fails(2, &["predict", "a.tif", "--out", "o", "--model", "nosuch"], &["nosuch"]);
    assert!(ran.stderr.contains("nuclei"), "the error must name the installed models: {}", ran.stderr);
    fixture.fails(2, &["convert", "a.tif", "b.jpg"], &["b.jpg", ".ome.tif"]);
    fixture.fails(2, &["convert", "a.tif", "b.npy", "--compression", "zstd"], &[".ome.tif"]);
    fixture.fails(2, &["info", "a.tif", "--series", "3"], &["a.tif", "series 3"]);
    fixture.fails(2, &["segment", "a.tif", "--out", "l.png"], &["l.png", ".tif"]);
    fixture.fails(2, &["segment", "a.tif", "--out", "l.tif", "--threshold", "high"], &["otsu"]);
    fixture.fails(2, &["simulate", "--kind", "worms", "--out", "s"], &["nuclei, cells, labelfree"]);
    fixture.fails(2, &["simulate", "--kind", "nuclei", "--shape", "99999,99999,99999", "--out", "s"], &["too large"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--stages-only"], &["--trace"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o", "--performance", "best"], &["best", "least-memory"]);
    fixture.fails(2, &["tune", "--model", "scratch"], &["scratch", "--training"]);
    fixture.fails(2, &["tune", "--model", "nosuch"], &["nosuch"]);
    fixture.fails(2, &["tune", "--series", "1"], &["--data"]);
    fixture.fails(2, &["tune", "--only-training"], &["--training"]);
    fixture.fails(2, &["tune", "--preset", "best", "--save"], &["most-accurate"]);
    fixture.fails(2, &["export", "nuclei", "--format", "gif", "--out", "x"], &["safetensors"]);
    // The extension of a name decides the format; unknown extensions are refused, and the error lists the known ones.
    fixture.fails(2, &["export", "nuclei", "--format", "onnx", "--out", "x.zip"], &["x.zip", "expected .onnx"]);
    fixture.fails(2, &["export", "nuclei", "--format", "bioimageio", "--out", "x.onnx"], &["x.onnx", ".zip", "folder"]);
    fixture.fails(
        2,
        &["export", "nuclei", "--format", "safetensors", "--out", "x"],
        &["no file extension", ".safetensors"],
    );
    fixture.fails(2, &["export", "nuclei", "--out", "x.gif"], &["x.gif", ".zip", "folder", ".onnx", ".safetensors"]);
    // A missing file is reported first.
    std::fs::write(fixture.path("nuclei.zip"), "").unwrap();
    fixture.fails(2, &["import", "nuclei.zip", "--out", "x.pt"], &["x.pt", "ends in .pt", ".zip", "folder"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o.tif"], &["o.tif", "folder", ".zarr"]);
    fixture.fails(2, &["predict", "a.tif", "--out", "o.zip"], &["o.zip", "folder", ".ozx", ".zarr.zip"]);
    let measure = ["measure", "a.tif", "--intensities", "a.tif", "--out", "t.xlsx"];
    fixture.fails(2, &measure, &["t.xlsx", ".csv", ".parquet"]);
    fixture.fails(2, &["simulate", "--kind", "nuclei", "--out", "s.tif"], &["s.tif", "folder"]);
    // Nothing was started: the output folders are empty.
    for folder in ["o", "s"] {
        assert!(fixture.names(folder).is_empty(), "{folder}: {:?}", fixture.names(folder));
    }
}

//! `train`: what comes out, and what is refused.

use crate::common::{Desk, Ran, missing, python, say_skipped};
use cytoscope_graph::package::Package;
use cytoscope_train::TrainConfig;
use image::RgbImage;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// Simulated pairs `sim/nuclei_N_raw.tif` and `_labels.tif`.
pub(crate) fn pairs(desk: &Desk, count: u64) {
    for seed in 1..=count {
        desk.nuclei("16,64,64", seed);
    }
}

/// Settings of a small training, written as `t.toml`.
pub(crate) fn settings(desk: &Desk, more: &str) {
    let text = format!(
        "{more}\npatch_zyx = [8, 32, 32]\nbatch = 2\nema = 0.9\n[network]\nfilters = [8, 16]\n[validation]\ntimes = 4\n"
    );
    std::fs::write(desk.path("t.toml"), text).unwrap();
}

pub(crate) const SMALL: [&str; 8] =
    ["train", "--task", "segmentation", "--data", "sim", "--config", "t.toml", "--json"];

fn f1(report: &Value, when: &str) -> f64 {
    report[when]["f1@0.5"].as_f64().unwrap_or_else(|| panic!("no F1 {when}: {report:#}"))
}

#[test]
fn a_network_learns_nuclei_and_its_package_stands_on_its_own() {
    let desk = Desk::new();
    pairs(&desk, 5);
    settings(&desk, "");
    let report = desk.run(&[&SMALL[..], &["--steps", "90", "--out", "m"]].concat()).json();
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
    assert_eq!((report["verdict"].as_str(), report["steps"].as_u64()), (Some("taught"), Some(90)));
    assert!(f1(&report, "after") > 0.6, "{report:#}");
    let losses: Vec<f64> =
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    assert!(mean(&losses[losses.len() - 10..]) < 0.6 * mean(&losses[..5]), "{losses:?}");
    assert!(!desk.path("m.training").exists(), "the training's folder is taken away when its work is done");
    // Both networks, as they were measured here.
    let (quantized, has_int8) = (&report["quantized"], !report["after_int8"].as_object().unwrap().is_empty());
    assert_eq!(quantized.is_object(), has_int8, "{report:#}");
    if has_int8 {
        let bytes = |of: &str| quantized[of].as_u64().unwrap();
        let file = |name: &str| desk.bytes(&format!("m/{name}")).len() as u64;
        assert_eq!((bytes("float_bytes"), bytes("int8_bytes")), (file("model.onnx"), file("model_int8.onnx")));
        assert!(quantized["tile_times"][0]["int8_wall_ms"].as_f64().unwrap() > 0.0);
    }
    // The package says where it comes from, and its own test passes when it is imported.
    let rdf = String::from_utf8(desk.bytes("m/rdf.yaml")).unwrap();
    for part in ["training:", "seed_channel", "min_peak", "scale_range"] {
        assert!(rdf.contains(part), "no {part} in {rdf}");
    }
    let card = String::from_utf8(desk.bytes("m/README.md")).unwrap();
    assert!(card.contains("## Validation") && card.contains("## Loss"), "{card}");
    // Its pictures are there after quantizing, too, and the card shows every one of them.
    let pictures: Vec<String> =
        desk.names("m").into_iter().filter(|n| n.ends_with(".png") || n.ends_with(".svg")).collect();
    assert_eq!(pictures, ["curves.svg", "example_0.png"], "a fifth of five pairs is validated on");
    assert!(pictures.iter().all(|n| card.contains(&format!("]({n})")) && rdf.contains(&format!("- {n}"))), "{rdf}");
    let imported = desk.run(&["import", "m", "--out", "again", "--json"]).json();
    assert_eq!(imported["test"].as_str(), Some("its test outputs are reproduced"), "{imported:#}");
    // A stack that it has never seen, against its truth, by the other commands.
    desk.nuclei("16,64,64", 77);
    desk.run(&["predict", "sim/nuclei_77_raw.tif", "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let arguments =
        ["evaluate", "--pred", "p/nuclei_77_raw_labels.tif", "--truth", "sim/nuclei_77_labels.tif", "--json"];
    let scores = desk.run(&arguments).json();
    let found = scores["instances"][0]["f1"].as_f64().unwrap();
    assert!(found > 0.5, "{scores:#}");
    // Another program computes the same from the declared network's file, on the test stack scaled as the package says.
    let script = "import sys, numpy, onnxruntime\n\
                  s = onnxruntime.InferenceSession(sys.argv[1])\n\
                  x, y = numpy.load(sys.argv[2]), numpy.load(sys.argv[3])\n\
                  low, high = numpy.percentile(x, [1.0, 99.8])\n\
                  x = ((x - low) / (high - low + 1e-6)).astype(numpy.float32)\n\
                  z = s.run(None, {s.get_inputs()[0].name: x})[0]\n\
                  assert z.shape == y.shape and numpy.abs(z - y).max() < 1e-3, numpy.abs(z - y).max()";
    let files = ["m/model.onnx", "m/test_input_0.npy", "m/test_output_0.npy"].map(|f| desk.path(f));
    python("numpy, onnxruntime", script, &files.each_ref().map(|p| p.as_path()));

    // Taught on with a rate that ruins it, the network that training started from is what is kept.
    settings(&desk, "ema = 0.0");
    let text = String::from_utf8(desk.bytes("t.toml")).unwrap().replacen("ema = 0.9\n", "", 1);
    std::fs::write(desk.path("t.toml"), format!("{text}[schedule]\nrate = 5.0\n")).unwrap();
    let arguments = ["--from", "m", "--steps", "4", "--without-int8", "--out", "worse"];
    let report = desk.run(&[&SMALL[..], &arguments].concat()).json();
    assert_eq!(report["verdict"].as_str(), Some("start"), "{report:#}");
    assert!(f1(&report, "after") >= f1(&report, "before"), "{report:#}");
}

/// Panels of a picture, as wide as high.
pub(crate) fn panels(desk: &Desk, name: &str) -> Vec<RgbImage> {
    let picture = image::load_from_memory(&desk.bytes(name)).unwrap().to_rgb8();
    let edge = picture.height();
    assert!(edge <= 320, "{edge}");
    let step = edge + 6;
    assert_eq!((picture.width() + 6) % step, 0, "{:?}", picture.dimensions());
    (0..(picture.width() + 6) / step)
        .map(|i| image::imageops::crop_imm(&picture, i * step, 0, edge, edge).to_image())
        .collect()
}

/// The points of a curve of an SVG and the circles of a class; fails if the text is no XML.
fn curve_and_circles(svg: &str, curve: &str, circles: &str) -> (usize, usize) {
    let mut reader = quick_xml::Reader::from_str(svg);
    let (mut points, mut found, mut depth) = (0, 0, 0);
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(_) => depth += 1,
            quick_xml::events::Event::End(_) => depth -= 1,
            quick_xml::events::Event::Empty(tag) => {
                let of = |name: &str| {
                    let attribute = tag.try_get_attribute(name).unwrap();
                    attribute.map_or_else(String::new, |a| a.value.into_owned())
                };
                match tag.name().as_ref() {
                    "polyline" if of("class") == curve => points += of("points").split(' ').count(),
                    "circle" if of("class") == circles => found += 1,
                    _ => {}
                }
            }
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "{svg}");
    (points, found)
}

#[test]
fn a_package_shows_what_it_makes_of_images_and_how_it_learnt() {
    let desk = Desk::new();
    pairs(&desk, 3);
    settings(&desk, "");
    let arguments = [&SMALL[..], &["--steps", "30", "--without-int8", "--out"]].concat();
    let report = desk.run(&[&arguments[..], &["m"]].concat()).json();
    let count = |key: &str| report["history"][key].as_array().unwrap().len();
    let svg = String::from_utf8(desk.bytes("m/curves.svg")).unwrap();
    assert_eq!(curve_and_circles(&svg, "loss", "validation"), (count("steps"), count("validations")));
    assert_eq!(curve_and_circles(&svg, "score", "best").0, count("validations"));
    // The yellow lines are where the truth's file has borders, in its fullest slice.
    let case = report["pairs_after"][0]["name"].as_str().unwrap();
    let file = desk.names("sim").into_iter().find(|n| n.contains(case) && n.ends_with("_labels.tif")).unwrap();
    let truth = desk.image(&format!("sim/{file}")).samples().to_f32();
    let full = |z: usize| truth[z * 4096..(z + 1) * 4096].iter().filter(|l| **l > 0.0).count();
    let z = (0..16).rev().max_by_key(|z| full(*z)).unwrap();
    let label = |y: usize, x: usize| truth[(z * 64 + y) * 64 + x];
    let shown = panels(&desk, "m/example_0.png");
    assert_eq!(shown.len(), 2, "nothing was known before a training from scratch");
    let yellow = |y: usize, x: usize| shown[0].get_pixel(x as u32, y as u32).0 == [255, 190, 60];
    let (mut rims, mut insides) = (0, 0);
    for y in 1..63 {
        for x in 1..63 {
            let own = label(y, x);
            let any = (0..25).any(|i| yellow(y * 5 + i / 5, x * 5 + i % 5));
            if own == 0.0 {
                assert!(!any, "background at {y}, {x}");
                continue;
            }
            // The pixel in the middle of each side of the voxel.
            for (dy, dx) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
                let border = label(y + dy - 1, x + dx - 1) != own;
                assert_eq!(yellow(y * 5 + dy * 2, x * 5 + dx * 2), border, "{y}, {x}: side {dy}, {dx}");
                rims += usize::from(border);
            }
            if (0..9).all(|i| label(y + i / 3 - 1, x + i % 3 - 1) == own) {
                assert!(!any, "inside an object at {y}, {x}");
                insides += 1;
            }
        }
    }
    assert!(rims > 100 && insides > 100, "{rims} {insides}");
    assert!(!shown[1].pixels().any(|p| p.0 == [255, 190, 60]), "what was found has a colour of its own");

    // Taught on, there is a before; and a zip made of the package has all of it.
    let report = desk.run(&[&arguments[..], &["next.zip", "--from", "m"]].concat()).json();
    assert!(report["before"]["f1@0.5"].is_number());
    desk.run(&["import", "next.zip", "--out", "next"]).ok();
    assert_eq!(panels(&desk, "next/example_0.png").len(), 3);
    let [zip, folder] = ["next.zip", "next"].map(|n| Package::open(&desk.path(n)).unwrap());
    assert_eq!(zip.rdf["covers"], serde_json::json!(["example_0.png", "curves.svg"]));
    assert_eq!(folder.rdf["covers"], zip.rdf["covers"]);
    for name in ["example_0.png", "curves.svg", "README.md"] {
        assert_eq!(zip.files().read(name).unwrap(), desk.bytes(&format!("next/{name}")), "{name}");
    }
    let card = String::from_utf8(desk.bytes("next/README.md")).unwrap();
    assert!(card.contains("](example_0.png)") && card.contains("before"), "{card}");
    assert!(card.contains(&case.replace('_', "\\_")), "a name is no markup: {card}");
}

#[test]
fn a_stain_is_learnt_and_keeps_its_intensity_scale() {
    let desk = Desk::new();
    for seed in ["1", "2", "3", "4"] {
        desk.run(&["simulate", "--kind", "labelfree", "--shape", "16,64,64", "--seed", seed, "--out", "sim"]).ok();
    }
    settings(&desk, "");
    let arguments = ["train", "--task", "labelfree", "--data", "sim", "--config", "t.toml", "--json", "--steps", "150"];
    let report = desk.run(&[&arguments[..], &["--out", "m", "--without-int8"]].concat()).json();
    assert!(report["after"]["pearson"].as_f64().unwrap() > 0.2, "{report:#}");
    let shown = panels(&desk, "m/example_0.png");
    assert_eq!(shown.len(), 3, "the image, the true stain, the predicted one");
    let green = |p: &RgbImage| p.pixels().filter(|p| p.0[1] > p.0[0]).count();
    assert!(green(&shown[0]) == 0 && green(&shown[1]) > 1000 && green(&shown[2]) > 1000);
    let image = desk.names("sim").into_iter().find(|n| n == "labelfree_1_raw.tif");
    let image = format!("sim/{}", image.unwrap());
    desk.run(&["predict", &image, "--model", "m", "--device", "cpu", "--out", "p"]).ok();
    let predicted = desk.names("p").into_iter().find(|n| n.ends_with("_prediction.tif")).unwrap();
    let truth = desk.names("sim").into_iter().find(|n| n == "labelfree_1_target.tif").unwrap();
    let mean = |v: Vec<f32>| v.iter().map(|x| f64::from(*x)).sum::<f64>() / v.len() as f64;
    let [predicted, truth] =
        [format!("p/{predicted}"), format!("sim/{truth}")].map(|n| mean(desk.image(&n).samples().to_f32()));
    // The stain's own counts, not a picture of them.
    assert!((predicted / truth - 1.0).abs() < 0.5, "{predicted} against {truth}");
}

#[test]
fn what_cannot_be_taught_is_refused_with_a_reason() {
    let desk = Desk::new();
    settings(&desk, "");
    std::fs::create_dir(desk.path("sim")).unwrap();
    desk.fails(3, &[&SMALL[..], &["--out", "m"]].concat(), &["sim", "no pair"]);
    pairs(&desk, 2);
    std::fs::write(desk.path("bad.toml"), "learning_rat = 1\n").unwrap();
    let arguments = ["train", "--task", "segmentation", "--data", "sim", "--out", "m"];
    desk.fails(2, &[&arguments[..], &["--config", "bad.toml"]].concat(), &["bad.toml", "learning_rat"]);
    desk.fails(2, &[&arguments[..], &["--device", "cuda:63"]].concat(), &["cuda:63", "cpu (usable)"]);
    desk.fails(2, &[&arguments[..], &["--from", "nobody"]].concat(), &["nobody"]);
    desk.fails(2, &[&arguments[..], &["--minutes", "0"]].concat(), &["minutes"]);
    // Too little for a few steps: the least that will do is said, and nothing is begun.
    desk.fails(
        2,
        &[&SMALL[..], &["--minutes", "0.001", "--out", "m"]].concat(),
        &["0.001", "give at least", "minutes"],
    );
    std::fs::create_dir(desk.path("full")).unwrap();
    std::fs::write(desk.path("full/mine.txt"), "mine").unwrap();
    let into = ["train", "--task", "segmentation", "--data", "sim", "--out", "full"];
    desk.fails(2, &into, &["full", "did not make"]);
    // A rate at which no step can succeed: given up with a reason, and nothing is written.
    std::fs::write(
        desk.path("wild.toml"),
        "patch_zyx = [8, 32, 32]\nbatch = 1\nema = 0.0\n[network]\nfilters = [8]\n[schedule]\nrate = 1e38\nwarm_up = 0.0\n",
    )
    .unwrap();
    let wild = [&arguments[..], &["--config", "wild.toml", "--steps", "40"]].concat();
    desk.fails(3, &wild, &["no number", "schedule.rate"]);
    assert!(!desk.path("m").exists());
    // A label image of another shape is named, and left out.
    desk.write("sim/odd_raw.tif", "ZYX", &[4, 8, 8], vec![7u16; 256]);
    desk.write("sim/odd_labels.tif", "ZYX", &[4, 8, 9], vec![1u16; 288]);
    let ran = desk.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat()).ok();
    assert!(ran.stderr.contains("odd") && ran.stderr.contains("left out"), "{}", ran.stderr);
}

/// Seconds that a run may take beside its minutes: starting the program, and writing the package.
const ASIDE_SECS: f64 = 10.0;

#[test]
fn the_minutes_are_kept_where_validation_is_dear() {
    let desk = Desk::new();
    for seed in 1..=24 {
        desk.nuclei("24,128,128", seed);
    }
    // Twelve stacks are validated on, which all of them together would take longer than the steps.
    let text = "patch_zyx = [8, 32, 32]\nbatch = 2\n[network]\nfilters = [8, 16]\n\
                [validation]\nfraction = 0.5\nmax_files = 12\ntimes = 20\n";
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let began = Instant::now();
    let report = desk.run(&[&SMALL[..], &["--minutes", "1", "--out", "m"]].concat()).json();
    let secs = began.elapsed().as_secs_f64();
    assert!(secs < 1.3 * 60.0 + ASIDE_SECS, "{secs} s: {:#}", report["history"]["notes"]);
    let count = |key: &str| report["history"][key].as_array().unwrap().len();
    assert!((1..=20).contains(&count("validations")), "{:#}", report["history"]["validations"]);
    assert!(count("notes") < 25, "{:#}", report["history"]["notes"]);
    assert!(report["steps"].as_u64().unwrap() >= 20, "{report:#}");
    assert_eq!(report["validation_pairs"].as_u64(), Some(12));
}

#[test]
fn a_folder_of_other_things_is_summed_up_and_listed_in_a_file() {
    let desk = Desk::new();
    let told = |ran: &Ran| ran.stderr.lines().filter(|l| l.contains("odd") || l.contains("more of")).count();
    let details = |ran: &Ran| -> String {
        let line =
            ran.stderr.lines().find(|l| l.contains("are listed in ")).unwrap_or_else(|| panic!("{}", ran.stderr));
        let path = line.split("are listed in ").nth(1).unwrap().trim_end_matches('.');
        std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    std::fs::create_dir(desk.path("sim")).unwrap();
    settings(&desk, "");
    for i in 0..200 {
        std::fs::write(desk.path(&format!("sim/odd{i}_raw.tif")), "x").unwrap();
    }
    for i in 200..300 {
        std::fs::write(desk.path(&format!("sim/odd{i}.czi")), "x").unwrap();
    }
    let names = || (0..200).map(|i| format!("odd{i}_raw.tif")).chain((200..300).map(|i| format!("odd{i}.czi")));
    // Nothing of it is a pair.
    let arguments = [&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat();
    let ran = desk.fails(3, &arguments, &["no pair", "200 files, such as", "no target", "100 files, such as"]);
    assert!(told(&ran) <= 10 && ran.stderr.lines().count() <= 12, "{}", ran.stderr);
    let list = details(&ran);
    assert!(names().all(|name| list.contains(&name)) && list.starts_with("300 problems"), "{list}");
    // Beside two pairs it does not keep anybody from learning.
    pairs(&desk, 2);
    let ran = desk.run(&arguments).ok();
    assert!(told(&ran) <= 10, "{}", ran.stderr);
    let list = details(&ran);
    assert!(names().all(|name| list.contains(&name)), "{list}");
}

/// Whatever GPU there is, software included, learns what the processor learns.
#[test]
fn a_gpu_takes_the_same_steps() {
    let desk = Desk::new();
    pairs(&desk, 2);
    let text = "patch_zyx = [8, 16, 16]\nbatch = 1\n[network]\nfilters = [4, 8]\n[validation]\ntimes = 1\n";
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let with_gpu = |arguments: &[&str]| {
        let out = desk.command(arguments).env("CYTOSCOPE_SOFTWARE_GPU", "1").output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let devices = with_gpu(&["devices", "--json"]);
    let list = devices.as_array().unwrap();
    let gpu = list.iter().find(|d| d["usable"] == true && d["id"] != "cpu").map(|d| (&d["id"], &d["name"]));
    let Some((gpu, name)) = gpu.and_then(|(id, name)| Some((id.as_str()?, name))) else {
        return say_skipped(&format!("no GPU, not even in software (install mesa-vulkan-drivers): {devices}"));
    };
    let losses = |device: &str, out: &str, config: &str| -> Vec<f64> {
        let arguments =
            ["--json", "--steps", "6", "--without-int8", "--config", config, "--device", device, "--out", out];
        let report = with_gpu(&[&SMALL[..5], &arguments].concat());
        assert!(device == "cpu" || &report["device"] == name, "{report:#}");
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect()
    };
    let want = losses("cpu", "on-cpu", "t.toml");
    // In mixed precision the curve is the same but for what 16 bits round.
    std::fs::write(desk.path("half.toml"), format!("precision = \"f16\"\n{text}")).unwrap();
    for (out, config, tolerance) in [("on-gpu", "t.toml", 5e-3), ("half", "half.toml", 2e-2)] {
        let got = losses(gpu, out, config);
        assert!(!got.is_empty() && got.len() == want.len(), "{got:?}, {want:?}");
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() < tolerance * want.abs(), "{config}: {got} instead of {want}");
        }
    }
    desk.fails(2, &[&SMALL[..5], &["--config", "half.toml", "--out", "m"]].concat(), &["precision", "f32"]);
}

#[test]
fn recipes_of_the_bundled_networks_are_settings() {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/recipes");
    let found: Vec<_> = std::fs::read_dir(recipes).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(found.len() >= 2, "{found:?}");
    for path in found {
        let config = TrainConfig::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        config.check().unwrap();
    }
}

#[test]
fn deep_supervision_teaches_coarse_levels_and_leaves_one_output() {
    let desk = Desk::new();
    pairs(&desk, 2);
    let text = "patch_zyx = [8, 32, 32]\nbatch = 1\n[network]\nfilters = [4, 8, 8]\ndeep_supervision = true\n\
                [segment]\nthreshold = { fixed = 0.45 }\nheight = \"seeds\"\nmin_volume_um3 = 7.0\n";
    std::fs::write(desk.path("t.toml"), text).unwrap();
    let arguments = ["--steps", "30", "--without-int8", "--out", "m"];
    let report = desk.run(&[&SMALL[..], &arguments].concat()).json();
    let steps: Vec<f64> =
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect();
    assert!(steps.last().unwrap() < &(0.9 * steps[0]), "{steps:?}");
    desk.run(&["predict", "sim/nuclei_1_raw.tif", "--model", "m", "--out", "o"]).ok();
    // Foreground and height, and nothing of the coarser level.
    assert_eq!(desk.image("o/nuclei_1_raw_probability.tif").shape()[1], 2);
    // How objects are made is what was asked for, not what would score better.
    let segment = Package::open(&desk.path("m")).unwrap().config()["segment"].clone();
    assert_eq!((&segment["threshold"]["fixed"], &segment["min_volume_um3"]), (&0.45.into(), &7.0.into()));
}

#[test]
fn batches_in_parts_teach_what_whole_ones_do() {
    let desk = Desk::new();
    pairs(&desk, 2);
    settings(&desk, "");
    // A network without batch norms, and a loss that is a mean over voxels: the parts of a batch know nothing of one another.
    desk.run(&[&SMALL[..], &["--steps", "2", "--without-int8", "--out", "m"]].concat()).ok();
    let losses = |batch: usize, accumulate: usize| -> Vec<f64> {
        let text = format!(
            "clip_norm = 1000.0\npatch_zyx = [8, 32, 32]\nbatch = {batch}\naccumulate = {accumulate}\n[loss]\nkind = \"bce\"\n[optimizer]\nkind = \"sgd\"\n[schedule]\nrate = 0.05\n[validation]\ntimes = 1\n"
        );
        std::fs::write(desk.path("t.toml"), text).unwrap();
        let out = format!("m{accumulate}");
        let arguments = ["--from", "m", "--steps", "8", "--without-int8", "--out", &out];
        let report = desk.run(&[&SMALL[..], &arguments].concat()).json();
        report["history"]["steps"].as_array().unwrap().iter().map(|p| p["loss"].as_f64().unwrap()).collect()
    };
    let (whole, parts) = (losses(4, 1), losses(1, 4));
    assert_eq!((whole.len(), parts.len()), (8, 8));
    for (a, b) in whole.iter().zip(&parts) {
        assert!((a - b).abs() < 3e-2 * a.abs(), "{whole:?} and {parts:?}");
    }
    // Gradients that were added up and not averaged would have gone four times as far.
    let fell = |v: &[f64]| v[0] - v[v.len() - 1];
    assert!(fell(&whole) > 0.1 && (fell(&parts) / fell(&whole) - 1.0).abs() < 0.3, "{whole:?} and {parts:?}");
}

#[test]
fn what_is_no_number_in_a_stain_spoils_neither_scores_nor_the_package() {
    let desk = Desk::new();
    for seed in ["1", "2", "3"] {
        desk.run(&["simulate", "--kind", "labelfree", "--shape", "8,48,48", "--seed", seed, "--out", "sim"]).ok();
        let name = format!("sim/labelfree_{seed}_target.tif");
        let mut stain = desk.image(&name).samples().to_f32();
        stain.iter_mut().step_by(97).for_each(|v| *v = f32::NAN);
        desk.write(&name, "ZYX", &[8, 48, 48], stain);
    }
    settings(&desk, "");
    let arguments = ["train", "--task", "labelfree", "--data", "sim", "--config", "t.toml", "--json", "--steps", "12"];
    let report = desk.run(&[&arguments[..], &["--out", "m", "--without-int8"]].concat()).json();
    for score in ["pearson", "psnr_db", "ssim"] {
        assert!(report["after"][score].as_f64().is_some_and(f64::is_finite), "{score}: {report:#}");
    }
    for v in report["history"]["validations"].as_array().unwrap() {
        assert!(v["scores"].as_object().unwrap().values().all(Value::is_number), "{v}");
    }
}

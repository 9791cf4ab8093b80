//! Predicting from the window: the same bytes as the command line, live objects, and an engine that is killed.

use crate::desk::{Desk, sees};
use cytoscope_ui::document::Role;
use eframe::egui::Key;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;
use std::process::{Command, Stdio};

fn sample_predicted() -> Desk {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("labels", |w| {
        w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some() && d.results.is_some())
    });
    desk.settle();
    desk
}

#[test]
fn the_window_and_the_command_line_give_the_same_bytes() {
    let desk = sample_predicted();
    let from_window = desk.path("sample/cytoscope");
    let from_line = desk.path("line");
    let ran = Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("predict")
        .arg(desk.path("sample/nuclei_raw.tif"))
        .arg("--out")
        .arg(&from_line)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let names = |folder: &Path| {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&from_window), names(&from_line));
    for name in names(&from_line).iter().filter(|n| !n.ends_with("provenance.json")) {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(&from_window) == read(&from_line), "{name} differs");
    }
}

#[test]
fn objects_are_measured_and_linked_to_the_image() {
    let mut desk = sample_predicted();
    let objects = desk.window.state().document().unwrap().results.as_ref().unwrap().rows.len();
    let truth = cytoscope_formats::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif"),
        &cytoscope_formats::OpenOptions::default(),
    );
    let truth = truth.unwrap().read_all().unwrap().samples().to_f32().into_iter().fold(0.0, f32::max) as usize;
    assert!(objects.abs_diff(truth) * 4 < truth, "{objects} objects where the truth has {truth}");
    desk.click("Objects");
    assert!(desk.sees(&format!("{objects} objects")), "{}", desk.on_screen());
    // The largest first; a click on its row goes there.
    desk.click("Sort by Volume µm³");
    let document = desk.window.state().document().unwrap();
    let results = document.results.as_ref().unwrap();
    let volume = results.column("volume_um3").unwrap();
    let largest = results.order[0];
    assert!((0..objects).all(|r| results.value(r, volume) <= results.value(largest, volume)));
}

#[test]
fn objects_follow_the_sliders_and_are_kept_when_asked() {
    let mut desk = sample_predicted();
    let count = |desk: &Desk| desk.window.state().document().unwrap().results.as_ref().unwrap().rows.len();
    let before = count(&desk);
    let labels = desk.path("sample/cytoscope/nuclei_raw_labels.tif");
    let kept_before = std::fs::read(&labels).unwrap();
    desk.click("Leave out objects at the border");
    desk.until("a preview", |w| sees(w, "not kept yet"));
    assert_eq!(std::fs::read(&labels).unwrap(), kept_before, "a preview writes nothing");
    desk.click("Keep these objects");
    desk.until("the kept table", |w| {
        w.state().document().and_then(|d| d.results.as_ref()).is_some_and(|r| r.rows.len() < before)
    });
    desk.settle();
    assert_ne!(std::fs::read(&labels).unwrap(), kept_before);
    // Opened anew, what was kept is there.
    let after = count(&desk);
    let home = desk.folder.path().to_owned();
    desk.window = crate::desk::window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    desk.until("results", |w| w.state().document().is_some_and(|d| d.results.is_some()));
    assert_eq!(count(&desk), after);
}

#[cfg(unix)]
#[test]
fn an_engine_that_is_killed_comes_back_and_only_its_job_is_lost() {
    // A stack that takes some seconds.
    let mut desk = Desk::with(|folder| {
        let small = cytoscope_formats::open(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif"),
            &cytoscope_formats::OpenOptions::default(),
        );
        let small = small.unwrap();
        let (values, meta) = (small.read_all().unwrap(), small.meta().clone());
        let cytoscope_volume::Samples::U16(values) = values.samples() else { panic!() };
        let (nz, n) = (96, 640);
        let at = |z: usize, y: usize, x: usize| values[((z % 32) * 160 + y % 160) * 160 + x % 160];
        let large: Vec<u16> =
            (0..nz).flat_map(|z| (0..n).flat_map(move |y| (0..n).map(move |x| at(z, y, x)))).collect();
        let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![nz, n, n], large).unwrap();
        let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::ImageJ);
        spec.voxel_size_um = meta.voxel_size_um;
        let path = folder.join("large.tif");
        cytoscope_formats::write_array(&path, &array, &spec).unwrap();
        vec![path]
    });
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("tiles on screen", |w| w.state().document().is_some_and(|d| d.of_role(Role::Live).is_some()));
    let pid = desk.window.state().engine_pid().unwrap();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    desk.until("the news", |w| sees(w, "The engine was restarted"));
    assert!(desk.sees("large.tif"), "the stack is still there: {}", desk.on_screen());
    assert!(desk.window.state().document().unwrap().of_role(Role::Live).is_none());
    let left: Vec<_> = std::fs::read_dir(desk.path("cytoscope")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "half-written results: {left:?}");
    desk.until("another engine", |w| w.state().engine_pid().is_some_and(|p| p != pid));
    desk.click("Predict this stack");
    desk.until("labels", |w| w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some()));
}

#[test]
fn truth_beside_the_prediction_tells_what_was_matched() {
    let mut desk = sample_predicted();
    let truth = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    desk.window.state_mut().compare_with(&truth);
    desk.until("the scores", |w| sees(w, "F1 "));
    // The command line's own scores of the same files.
    let labels = desk.path("sample/cytoscope/nuclei_raw_labels.tif");
    let scores = |ignore_below: &str| -> serde_json::Value {
        let ran = Command::new(env!("CARGO_BIN_EXE_cytoscope"))
            .args(["evaluate", "--json", "--ignore-below", ignore_below, "--pred"])
            .arg(&labels)
            .arg("--truth")
            .arg(&truth)
            .output()
            .unwrap();
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let kinds = |scores: &serde_json::Value| {
        [("merges", "merges"), ("splits", "splits"), ("misses", "misses"), ("false_objects", "false objects")]
            .map(|(key, name)| format!("{} {name}", scores["errors"][key]))
    };
    let all = scores("0");
    let f1 = find_f1(&all).unwrap();
    assert!(desk.sees(&format!("F1 {f1:.3} at IoU 0.5")), "{f1}: {}", desk.on_screen());
    for line in kinds(&all) {
        assert!(desk.sees(&line), "{line}: {}", desk.on_screen());
    }
    assert!(!desk.sees("ignored"), "{}", desk.on_screen());
    // The larger half of the true objects.
    let image = cytoscope_formats::open(&truth, &cytoscope_formats::OpenOptions::default()).unwrap();
    let mut voxels = std::collections::BTreeMap::<u32, u64>::new();
    for label in image.read_all().unwrap().samples().to_f32() {
        *voxels.entry(label as u32).or_default() += 1;
    }
    voxels.remove(&0);
    let mut sizes: Vec<u64> = voxels.into_values().collect();
    sizes.sort_unstable();
    let limit = sizes[sizes.len() / 2];
    let field = "Ignore true objects below voxels";
    desk.window.get_by_label(field).focus();
    desk.window.run_steps(2);
    desk.window.get_by_label(field).type_text(&limit.to_string());
    desk.window.run_steps(2);
    desk.window.key_press(Key::Enter);
    desk.until("the scores of larger objects", |w| sees(w, "ignored"));
    let larger = scores(&limit.to_string());
    let f1 = find_f1(&larger).unwrap();
    assert!(larger["ignored"]["true_objects"].as_u64() >= Some(1), "{larger}");
    assert!(desk.sees(&format!("F1 {f1:.3} at IoU 0.5")), "{f1}: {}", desk.on_screen());
    for line in kinds(&larger) {
        assert!(desk.sees(&line), "{line}: {}", desk.on_screen());
    }
}

/// The F1 at IoU 0.5, wherever the report has it.
fn find_f1(value: &serde_json::Value) -> Option<f64> {
    match value {
        serde_json::Value::Object(map) => {
            let here = map.get("threshold").and_then(serde_json::Value::as_f64) == Some(0.5);
            let f1 = map.get("f1").and_then(serde_json::Value::as_f64).filter(|_| here);
            f1.or_else(|| map.values().find_map(find_f1))
        }
        serde_json::Value::Array(all) => all.iter().find_map(find_f1),
        _ => None,
    }
}

#[test]
fn splitting_that_is_switched_on_again_is_the_models_own() {
    let mut desk = sample_predicted();
    // The last row of the table has the number of objects.
    let table = std::fs::read_to_string(desk.path("sample/cytoscope/nuclei_raw_objects.csv")).unwrap();
    let objects = table.lines().count() - 1;
    assert!(desk.sees(&format!("{objects} objects")), "{}", desk.on_screen());
    desk.click("Split touching objects");
    desk.until("fewer objects", |w| sees(w, "objects, not kept yet"));
    assert!(!desk.sees(&format!("{objects} objects, not")) && !desk.sees("Split less"), "{}", desk.on_screen());
    desk.click("Split touching objects");
    desk.until("as many as before", |w| sees(w, &format!("{objects} objects, not kept yet")));
    assert!(!desk.sees("Split less (µm)"), "the network's height has no unit: {}", desk.on_screen());
}

#[test]
fn device_and_number_format_are_as_chosen() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    for (choose, what) in [("Device", "cpu"), ("Number format", "f32")] {
        desk.click(choose);
        let name =
            desk.window.query_all_by_label_contains(what).map(|n| n.accesskit_node().label().unwrap_or_default());
        let name = name.into_iter().find(|n| n.starts_with(what)).unwrap_or_else(|| panic!("{}", desk.on_screen()));
        desk.click(&name);
    }
    desk.click("Predict this stack");
    let provenance = desk.path("sample/cytoscope/nuclei_raw_provenance.json");
    desk.until("the record", |_| provenance.is_file());
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(provenance).unwrap()).unwrap();
    assert_eq!((&record["job"]["device"], &record["job"]["precision"]), (&"cpu".into(), &"f32".into()), "{record}");
}

#[test]
fn files_that_are_not_ours_are_replaced_only_after_a_question() {
    let mut desk = Desk::new();
    let labels = desk.path("sample/cytoscope/nuclei_raw_labels.tif");
    std::fs::create_dir_all(labels.parent().unwrap()).unwrap();
    std::fs::write(&labels, "drawn by hand").unwrap();
    desk.click("Open the sample");
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("the question", |w| sees(w, "Replace existing files?"));
    assert!(desk.sees("nuclei_raw_labels.tif"), "{}", desk.on_screen());
    desk.click("Keep the files");
    assert!(!desk.sees("Replace existing files?"));
    assert_eq!(std::fs::read(&labels).unwrap(), b"drawn by hand");
    desk.click("Predict this stack");
    desk.until("the question", |w| sees(w, "Replace existing files?"));
    desk.click("Replace");
    desk.until("labels", |w| {
        w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some() && d.results.is_some())
    });
    assert_ne!(std::fs::read(&labels).unwrap(), b"drawn by hand");
}

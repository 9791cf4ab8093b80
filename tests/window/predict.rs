//! Predicting: the same bytes as the command line, live objects, comparison with truth, and a killed engine.

use crate::fixture::{Fixture, SMALL, bundled_sample, read_json, sees};
use crate::gestures::{
    enter_path, read_labels, save, save_as_suggested, session_labels, small_sample_predicted, toggled, voxel_um,
    wait_for_tools,
};
use crate::queue::open_copies;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
use cytoscope_pipeline::{OutputTensor, ResultFormat};
use cytoscope_testkit::file_names;
use cytoscope_ui::Workbench;
use cytoscope_ui::document::Role;
use cytoscope_volume::Array;
use eframe::egui::Key;
use eframe::egui::accesskit::{self, Toggled};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_window_and_the_command_line_give_the_same_bytes() {
    let fixture = small_sample_predicted();
    let from_window = fixture.path("sample/cytoscope");
    let from_line = fixture.path("line");
    let ran = Command::new(env!("CARGO_BIN_EXE_cytoscope"))
        .arg("predict")
        .arg(fixture.path("sample/nuclei_raw.tif"))
        .arg("--out")
        .arg(&from_line)
        .env_remove("CYTOSCOPE_SOFTWARE_GPU")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(file_names(&from_window), file_names(&from_line));
    for name in file_names(&from_line).iter().filter(|n| !n.ends_with("provenance.json")) {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert!(read(&from_window) == read(&from_line), "{name} differs");
    }
}

/// The true labels of the middle of the sample.
fn middle_of_truth() -> Vec<u32> {
    let truth = bundled_sample().with_file_name("nuclei_labels.tif");
    let whole = cytoscope_formats::open(&truth, &cytoscope_formats::OpenOptions::default()).unwrap();
    let values = whole.read_all().unwrap().samples().to_f32();
    let rows = values.chunks_exact(160).enumerate().filter(|(row, _)| (40..40 + SMALL).contains(&(row % 160)));
    rows.flat_map(|(_, row)| row[40..40 + SMALL].iter().map(|label| *label as u32)).collect()
}

#[test]
fn objects_are_measured_and_linked_to_the_image() {
    let mut fixture = small_sample_predicted();
    let objects = fixture.window.state().document().unwrap().results.as_ref().unwrap().rows.len();
    let truth: std::collections::BTreeSet<u32> = middle_of_truth().into_iter().filter(|label| *label > 0).collect();
    let truth = truth.len();
    assert!(objects.abs_diff(truth) * 4 < truth, "{objects} objects, {truth} in the ground truth");
    fixture.click("Objects");
    assert!(fixture.sees(&format!("{objects} objects")), "{}", fixture.on_screen());
    // The largest object comes first.
    fixture.click("Sort by Volume (µm³)");
    let document = fixture.window.state().document().unwrap();
    let results = document.results.as_ref().unwrap();
    let volume = results.column("volume_um3").unwrap();
    let largest = results.order[0];
    assert!((0..objects).all(|r| results.value(r, volume) <= results.value(largest, volume)));
    // Their surfaces are saved under the name that the dialog suggests.
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.state_mut().send(cytoscope_ui::command::Command::SaveMesh);
    save_as_suggested(&mut fixture);
    fixture.until("the meshes", |w| sees(w, "Saved the meshes of"));
    assert!(fixture.path("sample/nuclei_raw_objects.stl").is_file());
    // Those that follow the faces of the voxels are those of the command line.
    fixture.click("Smooth meshes");
    fixture.click("Save meshes…");
    let [saved, expected] = ["saved.stl", "expected.stl"].map(|name| fixture.path(name));
    enter_path(&mut fixture, &saved);
    fixture.until("the meshes of voxels", |_| saved.is_file());
    let labels = fixture.path("sample/cytoscope/nuclei_raw_labels.tif");
    let [z, y, x] = voxel_um(&fixture);
    let size = format!("{z},{y},{x}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_cytoscope"));
    command.arg("mesh").arg(labels).args(["--unsmoothed", "--voxel-size", size.as_str(), "--out"]).arg(&expected);
    assert!(command.output().unwrap().status.success());
    assert!(std::fs::read(&saved).unwrap() == std::fs::read(&expected).unwrap(), "the surfaces differ");
}

#[test]
fn sliders_preview_objects_and_saving_is_explicit() {
    let mut fixture = small_sample_predicted();
    let count = |fixture: &Fixture| fixture.window.state().document().unwrap().results.as_ref().unwrap().rows.len();
    let before = count(&fixture);
    let labels = fixture.path("sample/cytoscope/nuclei_raw_labels.tif");
    let saved_before = std::fs::read(&labels).unwrap();
    fixture.window.state_mut().send(cytoscope_ui::command::Command::ToggleMap);
    fixture.until("the map's slider", |w| w.query_all_by_label("Opacity").next().is_some());
    fixture.until("the map's limits", |w| sees(w, "Lower limit of Probability"));
    fixture.window.run_steps(10);
    let button = fixture.window.get_by_label("Predict this stack").rect();
    let view = fixture.window.get_by_label_contains("XY view").rect();
    assert!(button.width() < 300.0 && view.left() < 270.0, "sliders widen no panel: {button:?} {view:?}");
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    assert_eq!(std::fs::read(&labels).unwrap(), saved_before, "a preview writes nothing");
    fixture.click_enabled("Save objects");
    fixture.until("the kept table", |w| {
        w.state().document().and_then(|d| d.results.as_ref()).is_some_and(|r| r.rows.len() < before)
    });
    fixture.settle();
    assert_ne!(std::fs::read(&labels).unwrap(), saved_before);
    // The next window shows the saved objects with their settings, and knows those of the prediction.
    let after = count(&fixture);
    let settings = |fixture: &Fixture| fixture.window.state().document().unwrap().segment.clone();
    let predicted_settings = settings(&fixture);
    assert!(predicted_settings.is_some());
    let home = fixture.folder.path().to_owned();
    fixture.window = crate::fixture::window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.until("results", |w| w.state().document().is_some_and(|d| d.results.is_some()));
    assert_eq!((count(&fixture), settings(&fixture)), (after, predicted_settings));
    fixture.until("the settings", |w| toggled(w, "Exclude border objects") == Some(Toggled::True));
    // They are restored by saving once more.
    fixture.click("Reset");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    fixture.click_enabled("Save objects");
    fixture.until("the predicted objects", |w| {
        w.state().document().and_then(|d| d.results.as_ref()).is_some_and(|r| r.rows.len() == before)
    });
    fixture.until("no button", |w| w.query_by_label("Reset").is_none());
}

#[test]
fn neither_documentation_of_a_model_nor_preprocessing_steps_widen_their_panel() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    let button = |fixture: &Fixture| fixture.window.get_by_label("Predict this stack").rect();
    let before = button(&fixture);
    fixture.click("About this model");
    fixture.window.run_steps(30);
    let after = button(&fixture);
    assert!(after.top() > before.top() + 100.0, "the documentation of the model nuclei is long");
    assert!((after.left() - before.left()).abs() < 20.0, "its tables are wide: {before:?} {after:?}");
    fixture.click("About this model");
    fixture.click("Add step");
    fixture.click("Gaussian smoothing");
    fixture.window.run_steps(60);
    let after = button(&fixture);
    assert!((after.left() - before.left()).abs() < 20.0, "a row with three buttons: {before:?} {after:?}");
}

#[test]
fn unsaved_options_of_each_stack_are_kept_until_its_objects_are_saved() {
    let mut fixture = Fixture::with_small_sample();
    open_copies(&mut fixture, 2);
    fixture.click_enabled("Predict all 2 stacks");
    fixture.until("the objects", |w| {
        w.state().documents().iter().all(|d| d.overlay_with_role(Role::Labels).is_some() && d.results.is_some())
    });
    fixture.click("stack 0.tif");
    fixture.settle();
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    // The other stack has no preview, and gets one of its own.
    fixture.click("stack 1.tif");
    fixture.settle();
    assert!(!fixture.sees("not saved yet"), "{}", fixture.on_screen());
    fixture.click("Fill holes");
    fixture.until("its preview", |w| sees(w, "not saved yet"));
    fixture.click("stack 0.tif");
    fixture.settle();
    assert!(fixture.sees("not saved yet"), "{}", fixture.on_screen());
    // Options whose objects could not be saved are kept.
    let labels = fixture.path("cytoscope/stack 0_labels.tif");
    let drawn = fixture.path("drawn.tif");
    std::fs::write(&drawn, "drawn by hand").unwrap();
    // The old file may still be mapped, so it is not overwritten in place.
    std::fs::rename(&drawn, &labels).unwrap();
    fixture.click_enabled("Save objects");
    fixture.until("the question", |w| sees(w, "Replace existing files?"));
    fixture.click("Keep files");
    assert!(fixture.sees("not saved yet"), "{}", fixture.on_screen());
    fixture.click_enabled("Save objects");
    fixture.until("the question", |w| sees(w, "Replace existing files?"));
    fixture.click("Replace");
    fixture.until("the end", |w| !sees(w, "not saved yet"));
    assert_ne!(std::fs::read(&labels).unwrap(), b"drawn by hand");
}

#[cfg(unix)]
#[test]
fn killed_engine_restarts_and_continues_its_prediction() {
    // A stack whose prediction takes some seconds.
    let mut fixture = Fixture::with(|folder| {
        let small = cytoscope_formats::open(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif"),
            &cytoscope_formats::OpenOptions::default(),
        );
        let small = small.unwrap();
        let (values, meta) = (small.read_all().unwrap(), small.meta().clone());
        let cytoscope_volume::Samples::U16(values) = values.samples() else { panic!() };
        let (nz, n) = (48, 280);
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
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture
        .until("tiles on screen", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Live).is_some()));
    // The memory of the prediction is stated while it runs.
    let plan = fixture.window.state().jobs().iter().find_map(|job| job.plan.clone()).unwrap();
    assert!(plan.stated_peak_bytes > 32 << 20, "{plan:?}");
    let stated = format!("about {}", cytoscope_profile::bytes_text(plan.stated_peak_bytes));
    assert!(fixture.sees(&stated), "{stated}: {}", fixture.on_screen());
    let folder = fixture.path("cytoscope");
    let partial_files = || -> Vec<String> {
        file_names(&folder).into_iter().filter(|name| name.ends_with(".cytoscope-partial")).collect()
    };
    fixture.until("a partial file", |_| !partial_files().is_empty());
    // It must not end before it is killed.
    fixture.stop_engine();
    let partial = partial_files();
    let pid = fixture.window.state().engine_pid().unwrap();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    fixture.until("the notification", |w| sees(w, "The engine was restarted"));
    assert!(fixture.sees("large.tif"), "the stack is still there: {}", fixture.on_screen());
    assert!(fixture.window.state().document().unwrap().overlay_with_role(Role::Live).is_none());
    // The next engine may have begun its own files.
    let left: Vec<String> = partial_files().into_iter().filter(|name| partial.contains(name)).collect();
    assert!(left.is_empty(), "partial files remain: {left:?}");
    fixture.until("another engine", |w| w.state().engine_pid().is_some_and(|p| p != pid));
    fixture.until("the row of the job", |w| sees(w, "the prediction continues after its finished slices"));
    fixture.until("labels", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some()));
}

#[test]
fn comparison_with_truth_shows_the_scores_of_evaluate() {
    let mut fixture = small_sample_predicted();
    let truth = fixture.path("truth.tif");
    let values = middle_of_truth();
    let array = Array::new("ZYX".parse().unwrap(), vec![values.len() / (SMALL * SMALL), SMALL, SMALL], values).unwrap();
    write_array(&truth, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    fixture.window.state_mut().compare_with(&truth);
    fixture.until("the scores", |w| sees(w, "F1 "));
    // The scores of `evaluate` for the same files.
    let labels = fixture.path("sample/cytoscope/nuclei_raw_labels.tif");
    let scores = |ignore_below: &str, more: &[&str]| -> serde_json::Value {
        let ran = Command::new(env!("CARGO_BIN_EXE_cytoscope"))
            .args(["evaluate", "--json", "--ignore-below", ignore_below, "--pred"])
            .arg(&labels)
            .arg("--truth")
            .arg(&truth)
            .args(more)
            .output()
            .unwrap();
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let kinds = |scores: &serde_json::Value| {
        // The singular, which the plural begins with.
        [("merges", "merge"), ("splits", "split"), ("misses", "miss"), ("false_objects", "false object")]
            .map(|(key, name)| format!("{} {name}", scores["errors"][key]))
    };
    let all = scores("0", &[]);
    let f1 = find_f1(&all).unwrap();
    assert!(fixture.sees(&format!("F1 {f1:.3} at IoU 0.5")), "{f1}: {}", fixture.on_screen());
    for line in kinds(&all) {
        assert!(fixture.sees(&line), "{line}: {}", fixture.on_screen());
    }
    assert!(!fixture.sees("ignored"), "{}", fixture.on_screen());
    // A size limit that keeps the larger half of the true objects.
    let image = cytoscope_formats::open(&truth, &cytoscope_formats::OpenOptions::default()).unwrap();
    let mut voxels = std::collections::BTreeMap::<u32, u64>::new();
    for label in image.read_all().unwrap().samples().to_f32() {
        *voxels.entry(label as u32).or_default() += 1;
    }
    voxels.remove(&0);
    let first_label = voxels.keys().next().unwrap().to_string();
    let absent = (1u32..).find(|label| !voxels.contains_key(label)).unwrap();
    let mut sizes: Vec<u64> = voxels.into_values().collect();
    sizes.sort_unstable();
    let limit = sizes[sizes.len() / 2];
    let field = "Ignore true objects below voxels";
    fixture.window.get_by_label(field).focus();
    fixture.window.run_steps(2);
    fixture.window.get_by_label(field).type_text(&limit.to_string());
    fixture.window.run_steps(2);
    fixture.window.key_press(Key::Enter);
    fixture.until("the scores of larger objects", |w| sees(w, "ignored"));
    let larger = scores(&limit.to_string(), &[]);
    let f1 = find_f1(&larger).unwrap();
    assert!(larger["ignored"]["true_objects"].as_u64() >= Some(1), "{larger}");
    assert!(fixture.sees(&format!("F1 {f1:.3} at IoU 0.5")), "{f1}: {}", fixture.on_screen());
    for line in kinds(&larger) {
        assert!(fixture.sees(&line), "{line}: {}", fixture.on_screen());
    }
    // As if the voxels of the first true object were not annotated.
    fixture.click("Ignore label");
    // The field moves when the scores with its first number arrive, which is above all labels.
    fixture.until("the note on the first number", |w| sees(w, "No voxel of the ground truth has the label"));
    fixture.window.run_steps(30);
    fixture.type_into("Ignore label number", &absent.to_string());
    fixture.window.key_press(Key::Enter);
    let note = format!("No voxel of the ground truth has the label {absent}");
    fixture.until("the note", |w| sees(w, &note));
    fixture.type_into("Ignore label number", &first_label);
    fixture.window.key_press(Key::Enter);
    let annotated = scores(&limit.to_string(), &["--ignore-label", &first_label]);
    let f1 = find_f1(&annotated).unwrap();
    fixture.until("the scores of annotated voxels", |w| {
        sees(w, &format!("F1 {f1:.3} at IoU 0.5")) && kinds(&annotated).iter().all(|line| sees(w, line))
    });
    fixture.click("Ignore label");
    fixture.until("the scores of all voxels", |w| kinds(&larger).iter().all(|line| sees(w, line)));
}

/// Finds the F1 at IoU 0.5 anywhere in a report.
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

/// Moves the slider with this name a step to the right.
fn nudge(fixture: &mut Fixture, name: &str) {
    let is_slider = |node: &egui_kittest::Node<'_>| node.accesskit_node().role() == accesskit::Role::Slider;
    fixture.window.query_all_by_label(name).find(is_slider).unwrap().focus();
    fixture.window.run_steps(2);
    fixture.window.key_press(Key::ArrowRight);
    fixture.window.run_steps(4);
}

#[test]
fn keeping_small_isolated_objects_is_stored_with_the_settings_of_saved_objects() {
    let mut fixture = small_sample_predicted();
    let keeps =
        |fixture: &Fixture| fixture.window.get_by_label("Keep small isolated objects").accesskit_node().toggled();
    let save_objects = |fixture: &mut Fixture| {
        fixture.until("a preview", |w| sees(w, "not saved yet"));
        fixture.click_enabled("Save objects");
        fixture.until("the end", |w| !sees(w, "not saved yet"));
        fixture.settle();
        let record = read_json(&fixture.path("sample/cytoscope/nuclei_raw_labels.tif_provenance.json"));
        assert_eq!(record["kind"], "segment", "{record}");
        record["job"]["options"].clone()
    };
    // The model keeps them, and so do changes of other settings.
    assert_eq!(keeps(&fixture), Some(Toggled::True));
    fixture.click("Fill holes");
    let options = save_objects(&mut fixture);
    assert!(options["fill_holes"] == false && options["isolated"].is_object(), "{options}");
    assert_eq!(keeps(&fixture), Some(Toggled::True));
    fixture.click("Keep small isolated objects");
    assert_eq!(keeps(&fixture), Some(Toggled::False));
    let options = save_objects(&mut fixture);
    assert!(options["isolated"].is_null(), "{options}");
}

#[test]
fn switching_splitting_back_on_restores_the_models_settings_and_its_sliders_end_those_for_tissue() {
    let mut fixture = small_sample_predicted();
    // The table has one row per object.
    let table = std::fs::read_to_string(fixture.path("sample/cytoscope/nuclei_raw_objects.csv")).unwrap();
    let objects = table.lines().count() - 1;
    assert!(fixture.sees(&format!("{objects} objects")), "{}", fixture.on_screen());
    assert!(!fixture.sees("not saved yet"), "{}", fixture.on_screen());
    // The stack shows an embryo, so its objects are the same without the settings for tissue.
    let as_many = format!("{objects} objects, not saved yet");
    fixture.click("Split more in tissue");
    fixture.until("as many as predicted", |w| sees(w, &as_many));
    fixture.click("Split touching objects");
    fixture.until("fewer objects", |w| sees(w, "objects, not saved yet") && !sees(w, &as_many));
    assert!(!fixture.sees("Split less"), "{}", fixture.on_screen());
    fixture.click("Split touching objects");
    fixture.until("as many as before", |w| sees(w, &as_many));
    assert!(!fixture.sees("Split less (µm)"), "the network's height has no unit: {}", fixture.on_screen());
    // A value that is set by hand applies everywhere; settings that split nothing leave those for tissue on.
    let more = |fixture: &Fixture| fixture.window.get_by_label("Split more in tissue").accesskit_node().toggled();
    assert_eq!(more(&fixture), Some(Toggled::False));
    fixture.click("Split more in tissue");
    nudge(&mut fixture, "Smooth map (µm)");
    assert_eq!(more(&fixture), Some(Toggled::True));
    for slider in ["Split less", "Smooth shapes (µm)"] {
        nudge(&mut fixture, slider);
        assert_eq!(more(&fixture), Some(Toggled::False), "{slider}");
        fixture.click("Split more in tissue");
        assert_eq!(more(&fixture), Some(Toggled::True), "{slider}");
    }
}

#[test]
fn results_in_ome_zarr_are_found_again_measured_and_corrected() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Result format");
    fixture.click("OME-Zarr");
    assert_eq!(fixture.window.state().settings().result_format, ResultFormat::OmeZarr);
    fixture.click_enabled("Predict this stack");
    let folder = fixture.path("sample/cytoscope");
    let labels = folder.join("nuclei_raw_probability.zarr/labels/objects");
    let shows = |w: &Harness<'static, Workbench>| {
        let document = w.state().document();
        let shown = document.and_then(|d| d.overlay_with_role(Role::Labels)).is_some_and(|shown| shown.path == labels);
        shown && document.is_some_and(|d| d.overlay_with_role(Role::Map).is_some())
    };
    fixture.until("labels", |w| shows(w) && w.state().document().is_some_and(|d| d.results.is_some()));
    fixture.settle();
    // The next window shows them, and measures them again without their table.
    let table = folder.join("nuclei_raw_objects.csv");
    let measured = std::fs::read(&table).unwrap();
    std::fs::remove_file(&table).unwrap();
    let home = fixture.folder.path().to_owned();
    fixture.window = crate::fixture::window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.until("the labels", shows);
    fixture.settle();
    fixture.click("Objects");
    assert!(fixture.sees("These labels are not measured yet"), "{}", fixture.on_screen());
    fixture.click_enabled("Measure objects");
    fixture.until("the table", |w| w.state().document().is_some_and(|d| d.results.is_some()));
    assert!(std::fs::read(&table).unwrap() == measured);
    assert!(!fixture.sees("Labels have changed since"), "{}", fixture.on_screen());
    // Corrections start from them, and are saved beside the folder.
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    let predicted = read_labels(&labels);
    assert!(session_labels(&fixture) == predicted);
    assert!(read_labels(&folder.join("nuclei_raw_corrections_base.tif")) == predicted);
    assert!(save(&mut fixture) == predicted);
}

#[test]
fn chosen_device_precision_voxel_size_and_results_are_used() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Voxel size…");
    for (axis, um) in [("Z", "2"), ("Y", "0.75"), ("X", "0.75")] {
        fixture.type_into(&format!("Voxel size {axis}"), um);
    }
    fixture.click("Apply");
    fixture.until("the voxel size", |w| w.state().document().is_some_and(|d| d.given_voxel_um().is_some()));
    fixture.settle();
    for (choose, what) in [("Device", "cpu"), ("Precision", "f32")] {
        fixture.click(choose);
        let name =
            fixture.window.query_all_by_label_contains(what).map(|n| n.accesskit_node().label().unwrap_or_default());
        let name = name.into_iter().find(|n| n.starts_with(what)).unwrap_or_else(|| panic!("{}", fixture.on_screen()));
        fixture.click(&name);
    }
    fixture.click("Choose results");
    fixture.click("Maps");
    fixture.click("Table");
    let is_kept = fixture.window.query_all_by_label("Labels").any(|n| n.accesskit_node().is_disabled());
    assert!(is_kept, "the last result stays");
    fixture.click("Table");
    fixture.click_enabled("Predict this stack");
    let provenance = fixture.path("sample/cytoscope/nuclei_raw_provenance.json");
    fixture.until("the record", |_| provenance.is_file());
    let record = read_json(&provenance);
    assert_eq!((&record["job"]["device"], &record["job"]["precision"]), (&"cpu".into(), &"f32".into()), "{record}");
    assert_eq!(record["job"]["voxel_um"], serde_json::json!([2.0, 0.75, 0.75]), "{record}");
    assert_eq!(record["job"]["outputs"], serde_json::json!(["labels", "table"]), "{record}");
    fixture.until("the labels", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some()));
    assert!(!fixture.path("sample/cytoscope/nuclei_raw_probability.tif").exists());
}

#[test]
fn foreign_files_are_replaced_only_after_a_prompt() {
    let mut fixture = Fixture::with_small_sample();
    let labels = fixture.path("sample/cytoscope/nuclei_raw_labels.tif");
    std::fs::create_dir_all(labels.parent().unwrap()).unwrap();
    std::fs::write(&labels, "drawn by hand").unwrap();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("the question", |w| sees(w, "Replace existing files?"));
    assert!(fixture.sees("nuclei_raw_labels.tif"), "{}", fixture.on_screen());
    fixture.click("Keep files");
    assert!(!fixture.sees("Replace existing files?"));
    assert_eq!(std::fs::read(&labels).unwrap(), b"drawn by hand");
    fixture.click_enabled("Predict this stack");
    fixture.until("the question", |w| sees(w, "Replace existing files?"));
    fixture.click("Replace");
    fixture.until("labels", |w| {
        w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some() && d.results.is_some())
    });
    assert_ne!(std::fs::read(&labels).unwrap(), b"drawn by hand");
}

/// Writes a network with the outputs `mask` and `boundary`.
pub(crate) fn save_two_outputs(path: &Path) {
    let mut graph = Graph::new("two outputs");
    let free = |name: &str| Dim::Free(name.to_owned());
    let shape = vec![Dim::Fixed(1), Dim::Fixed(1), free("z"), free("y"), free("x")];
    let x = graph.add_input("x", ElementType::F32, shape);
    for (name, factor) in [("mask", 1.0f32), ("boundary", -1.0)] {
        let weight = Tensor::new([1, 1, 1, 1, 1], vec![factor]).unwrap();
        let weight = graph.add_initializer(format!("{name} weight"), weight);
        let output = graph.push(name, Op::Conv(ConvAttrs::same(&[1, 1, 1])), &[Some(x), Some(weight)]);
        graph.outputs.push(output);
    }
    cytoscope_onnx::save(&graph, path).unwrap();
}

#[test]
fn a_selected_model_that_cannot_be_used_is_named() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings/models")).unwrap();
        std::fs::write(folder.join("settings/models/mine.onnx"), "not a network").unwrap();
        std::fs::write(folder.join("settings/settings.json"), r#"{"model": "mine"}"#).unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![4, 16, 16], vec![7u16; 4 * 16 * 16]).unwrap();
        let path = folder.join("small.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.until("the warning", |w| sees(w, "The selected model, mine, cannot be used: "));
    fixture.click("Model");
    fixture.click("nuclei");
    fixture.until("the selected model", |w| !sees(w, "cannot be used"));
}

#[test]
fn the_chosen_output_of_a_model_is_predicted_with_the_chosen_blending_and_remembered() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir_all(folder.join("settings/models")).unwrap();
        save_two_outputs(&folder.join("settings/models/two.onnx"));
        std::fs::write(folder.join("settings/settings.json"), r#"{"model": "two"}"#).unwrap();
        let values: Vec<u16> = (0..4 * 16 * 16).map(|i| (i * 37 % 101) as u16).collect();
        let array = Array::new("ZYX".parse().unwrap(), vec![4, 16, 16], values).unwrap();
        let path = folder.join("small.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.settle();
    fixture.click("Output");
    fixture.click("boundary");
    fixture.click("Blending");
    fixture.click("Gaussian");
    fixture.click("Overlap");
    fixture.click_enabled("Predict this stack");
    let record = fixture.path("cytoscope/small_provenance.json");
    fixture.until("the record", |_| record.is_file());
    let record = read_json(&record);
    assert_eq!(record["job"]["output_tensor"], "boundary", "{record}");
    let tiles = &record["job"]["tiles"];
    assert_eq!(tiles["blend"], "gaussian", "{record}");
    assert_eq!(tiles["overlap"], 0.25, "{record}");
    let chosen = fixture.window.state().settings().output_of_model.get("two").cloned();
    assert_eq!(chosen, Some(OutputTensor::Id("boundary".to_owned())));
    // Blending is one of the settings that are reset.
    for answer in ["Cancel", "Reset all"] {
        assert!(fixture.sees("Overlap"), "{}", fixture.on_screen());
        fixture.window.state_mut().send(cytoscope_ui::command::Command::ResetLayout);
        fixture.until("the question", |w| sees(w, "Reset layout and settings?"));
        fixture.click(answer);
        fixture.until("the answer", |w| !sees(w, "Reset layout and settings?"));
    }
    fixture.until("the default", |w| !sees(w, "Overlap"));
}

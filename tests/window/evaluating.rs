//! Scoring predictions and models in the window: the scores of the command line, and the table that is saved.

use crate::accessibility;
use crate::files::write_plate;
use crate::fixture::{Fixture, sees};
use crate::gestures::{choose_folder, enter_path, save_as_suggested};
use cytoscope_formats::{Channel, Container, OpenOptions, WriteSpec, write_array};
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_volume::Array;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;
use std::path::Path;

/// Chooses a file in the window's own file dialog, which the button opens.
fn choose_file(fixture: &mut Fixture, button: &str, file: &Path) {
    fixture.click(button);
    enter_path(fixture, file);
}

/// Opens the page for scoring predictions, with the window's own file dialog.
fn open_evaluation(fixture: &mut Fixture) {
    fixture.window.state_mut().use_own_file_dialog();
    fixture.window.run_steps(3);
    fixture.window.state_mut().send(Command::Evaluate);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
}

/// Saves the scores on screen as the file dialog suggests, and returns the table in the file `table`.
fn saved_scores(fixture: &mut Fixture, table: &Path) -> String {
    fixture.click("Save scores…");
    save_as_suggested(fixture);
    fixture.until("the table", |_| table.is_file());
    let text = std::fs::read_to_string(table).unwrap();
    assert!(text.lines().count() > 1, "{text}");
    text
}

/// The number of true objects that the command line finds, and of all of them, as the window shows them.
fn found_by_command(predicted: &Path, truth: &Path, options: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
    command.args(["evaluate", "--json", "--pred"]).arg(predicted).arg("--truth").arg(truth).args(options);
    let printed = command.output().unwrap().stdout;
    let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    found_objects_text(&report["instances"][0])
}

/// The number of true objects that were found, and of all of them, as the window shows them.
fn found_objects_text(score: &serde_json::Value) -> String {
    format!("{} of {}", score["tp"], score["n_true"])
}

#[test]
fn the_page_opens_at_the_section_of_the_menu_entry() {
    let mut fixture = Fixture::new();
    // The window is so low that the page must scroll.
    fixture.window.set_size([800.0, 300.0].into());
    fixture.window.run_steps(3);
    let top = |w: &Harness<'static, Workbench>| w.query_by_label("Evaluate predictions").map(|n| n.rect().top());
    for _ in 0..2 {
        fixture.window.state_mut().send(Command::Convert);
        fixture.until("the files to convert", |w| sees(w, "No files yet") && top(w).is_none_or(|top| top > 200.0));
        fixture.window.state_mut().send(Command::Close);
        fixture.until("no page", |w| !sees(w, "Convert and evaluate"));
        fixture.window.state_mut().send(Command::Evaluate);
        fixture.until("the section for scoring", |w| top(w).is_some_and(|top| top < 180.0));
    }
}

#[test]
fn predictions_are_scored_and_the_scores_are_saved() {
    let mut fixture = Fixture::new();
    let labels = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    let [predicted, truth] = ["predicted", "truth"].map(|name| {
        let folder = fixture.path(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&labels, folder.join("nuclei_labels.tif")).unwrap();
        folder
    });
    open_evaluation(&mut fixture);
    choose_folder(&mut fixture, "Prediction folder…", &predicted);
    choose_folder(&mut fixture, "Ground truth folder…", &truth);
    // In a low window, the page scrolls to the scores.
    fixture.window.set_size([800.0, 480.0].into());
    fixture.click_enabled("Evaluate");
    let top_of_scores =
        |w: &Harness<'static, Workbench>| w.query_by_label("Scores").map(|heading| heading.rect().top());
    fixture.until("the scores", |w| sees(w, "1 pair") && top_of_scores(w).is_some_and(|top| top < 180.0));
    fixture.window.set_size([1360.0, 860.0].into());
    fixture.window.run_steps(5);
    // The labels are compared with themselves.
    assert!(fixture.sees("F1 at IoU 0.50") && fixture.sees("1.0000"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "scores");
    fixture.window.get_by_label("PQ").scroll_to_me();
    fixture.until_hover_shows("PQ", "Panoptic quality: F1 times the mean IoU of the matched objects");
    let table = saved_scores(&mut fixture, &predicted.join("scores.csv"));
    assert!(table.contains(",0.5,1,1,1,"), "{table}");
}

#[test]
fn a_model_has_the_scores_of_the_command_line_on_the_same_pairs() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir(folder.join("settings")).unwrap();
        // The model without training is the fastest one.
        let settings = r#"{"model": "nuclei-dog", "device": "cpu"}"#;
        std::fs::write(folder.join("settings/settings.json"), settings).unwrap();
        Vec::new()
    });
    let pairs = fixture.path("pairs");
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
        let output = command.args(arguments).arg(&pairs).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(&["simulate", "--kind", "nuclei", "--shape", "12,64,64", "--seed", "3", "--count", "2", "--out"]);
    let printed = run(&["evaluate", "--model", "nuclei-dog", "--device", "cpu", "--json", "--data"]);
    let report: serde_json::Value = serde_json::from_slice(&printed).unwrap();
    let score = &report["instances"][0];
    assert!(score["n_true"].as_u64() > Some(0), "{report}");
    open_evaluation(&mut fixture);
    fixture.click("A model");
    fixture.until("the models", |w| sees(w, "Segments objects"));
    assert!(fixture.sees("Evaluate a model") && !fixture.sees("Evaluate predictions"), "{}", fixture.on_screen());
    choose_folder(&mut fixture, "Folder of pairs…", &pairs);
    fixture.click_enabled("Evaluate");
    fixture.until("the scores", |w| sees(w, "2 pairs · predicted by nuclei-dog"));
    let found = found_objects_text(score);
    let f1 = format!("{:.4}", score["f1"].as_f64().unwrap());
    assert!(fixture.sees(&found) && fixture.sees(&f1), "{found}, {f1}: {}", fixture.on_screen());
    accessibility::check(&fixture, "scores of a model");
    let table = fixture.path("scores.csv");
    let table = saved_scores(&mut fixture, &table);
    assert!(table.contains("_raw.tif"), "{table}");
    // Scores of other settings are not those of what is shown.
    fixture.click("Predictions");
    assert!(!fixture.sees("predicted by"), "{}", fixture.on_screen());
}

#[test]
fn a_model_is_scored_on_the_channel_that_its_predictions_read() {
    let mut fixture = Fixture::with(|folder| {
        std::fs::create_dir(folder.join("settings")).unwrap();
        let remembered = serde_json::json!({"nuclei-dog": ["dapi"]});
        let settings = serde_json::json!({"model": "nuclei-dog", "device": "cpu", "channels_of_model": remembered});
        std::fs::write(folder.join("settings/settings.json"), settings.to_string()).unwrap();
        Vec::new()
    });
    let (simulated, pairs) = (fixture.path("simulated"), fixture.path("pairs"));
    let run = |arguments: &[&str], path: &Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cytoscope"));
        let output = command.args(arguments).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(&["simulate", "--kind", "nuclei", "--shape", "12,64,64", "--seed", "3", "--out"], &simulated);
    std::fs::create_dir(&pairs).unwrap();
    std::fs::copy(simulated.join("nuclei_3_labels.tif"), pairs.join("nuclei_3_labels.tif")).unwrap();
    let image = cytoscope_formats::open(&simulated.join("nuclei_3_raw.tif"), &OpenOptions::default()).unwrap();
    let image = image.read_all().unwrap().samples().to_f32();
    let noise = (0..image.len()).map(|i| (i * 37 % 101) as f32);
    let both: Vec<f32> = noise.chain(image.iter().copied()).collect();
    let both = Array::new("CZYX".parse().unwrap(), vec![2, 12, 64, 64], both).unwrap();
    let mut spec = WriteSpec::of(&both, Container::OmeTiff);
    spec.channels = ["noise", "DAPI"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    write_array(&pairs.join("nuclei_3_raw.ome.tif"), &both, &spec).unwrap();
    let [noise, dapi] = ["0", "1"].map(|channel| {
        let command =
            ["evaluate", "--model", "nuclei-dog", "--device", "cpu", "--json", "--channel", channel, "--data"];
        let report: serde_json::Value = serde_json::from_slice(&run(&command, &pairs)).unwrap();
        found_objects_text(&report["instances"][0])
    });
    assert_ne!(noise, dapi);
    open_evaluation(&mut fixture);
    fixture.click("A model");
    fixture.until("the models", |w| sees(w, "Segments objects"));
    choose_folder(&mut fixture, "Folder of pairs…", &pairs);
    fixture.until("the channels of the pairs", |w| sees(w, "Channel"));
    fixture.click_enabled("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair · predicted by nuclei-dog"));
    assert!(fixture.sees(&dapi), "{dapi}: {}", fixture.on_screen());
    accessibility::check(&fixture, "the channel of pairs");
    fixture.click("Channel");
    fixture.click("noise");
    assert!(!fixture.sees("predicted by"), "scores of another channel: {}", fixture.on_screen());
    let remembered = fixture.window.state().settings().channels_of_model.get("nuclei-dog").cloned();
    assert_eq!(remembered, Some(vec!["noise".to_owned()]), "predictions read it, too");
    fixture.click_enabled("Evaluate");
    fixture.until("the scores of the other channel", |w| sees(w, "predicted by nuclei-dog") && sees(w, &noise));
}

#[test]
fn the_series_that_is_scored_is_chosen_by_name() {
    let mut fixture = Fixture::new();
    let (plate, truth) = (fixture.path("plate.zarr"), fixture.path("truth.tif"));
    let label = |z: usize, at: usize| (z / 3 * 2 + at / 24 / 8) as u16;
    write_plate(&plate, [4, 6], [16, 24], label);
    let values = (0..6).flat_map(|z| (0..16 * 24).map(move |at| label(z, at))).collect::<Vec<u16>>();
    let array = Array::new("ZYX".parse().unwrap(), vec![6, 16, 24], values).unwrap();
    write_array(&truth, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &plate);
    choose_file(&mut fixture, "Ground truth file…", &truth);
    // The first series has fewer slices than the ground truth.
    fixture.type_into("Series to score", "A/1/1.zarr");
    fixture.click_enabled("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair"));
    // Of the four regions, the first is the background.
    assert!(fixture.sees("3 of 3"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "the series that is scored");
}

#[test]
fn voxels_that_are_not_annotated_are_left_out_as_on_the_command_line() {
    let mut fixture = Fixture::new();
    let shape = [32, 160, 160];
    let labels = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_labels.tif");
    let labels = cytoscope_formats::open(&labels, &OpenOptions::default()).unwrap().read_all().unwrap();
    let labels: Vec<u16> = labels.samples().to_f32().into_iter().map(|label| label as u16).collect();
    let write = |name: &str, values: Vec<u16>| {
        let array = Array::new("ZYX".parse().unwrap(), shape.to_vec(), values).unwrap();
        write_array(&fixture.path(name), &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        fixture.path(name)
    };
    // Every third object is missed, and only the first half of each slice is annotated.
    let predicted =
        write("predicted.tif", labels.iter().map(|label| if label.is_multiple_of(3) { 0 } else { *label }).collect());
    let is_annotated = |voxel: usize| voxel / shape[2] % shape[1] < shape[1] / 2;
    let annotated = labels.iter().enumerate().map(|(voxel, label)| if is_annotated(voxel) { *label } else { 255 });
    let truth = write("truth.tif", annotated.collect());
    let all = found_by_command(&predicted, &truth, &[]);
    let annotated_scores = found_by_command(&predicted, &truth, &["--ignore-label", "255"]);
    assert_ne!(all, annotated_scores);
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &predicted);
    choose_file(&mut fixture, "Ground truth file…", &truth);
    fixture.click_enabled("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair") && sees(w, &all));
    assert!(fixture.sees("Matched IoU"), "{}", fixture.on_screen());
    // The label 255 is suggested.
    fixture.click("Ignore label");
    assert!(!fixture.sees("1 pair"), "scores of other settings: {}", fixture.on_screen());
    fixture.click_enabled("Evaluate");
    fixture.until("the scores of annotated voxels", |w| sees(w, &annotated_scores));
    accessibility::check(&fixture, "the label of voxels that are not annotated");
    // The names of the two files differ; the table of scores is beside the prediction and names the ground truth.
    let table = saved_scores(&mut fixture, &predicted.with_file_name("scores.csv"));
    assert!(table.contains("truth.tif"), "{table}");
}

#[test]
fn a_channel_to_score_is_chosen_and_a_note_says_which_one_was_scored() {
    let mut fixture = Fixture::new();
    let values = |step: usize| -> Vec<f32> { (0..4 * 16 * 16).map(|i| (i * step % 101) as f32).collect() };
    let both = Array::new("CZYX".parse().unwrap(), vec![2, 4, 16, 16], [values(53), values(37)].concat()).unwrap();
    let mut spec = WriteSpec::of(&both, Container::OmeTiff);
    spec.channels = ["first", "second"].map(|name| Channel { name: name.to_owned(), color_rgb: None }).to_vec();
    let [predicted, truth] = ["predicted.ome.tif", "truth.tif"].map(|name| fixture.path(name));
    write_array(&predicted, &both, &spec).unwrap();
    let one = Array::new("ZYX".parse().unwrap(), vec![4, 16, 16], values(37)).unwrap();
    write_array(&truth, &one, &WriteSpec::of(&one, Container::ImageJ)).unwrap();
    open_evaluation(&mut fixture);
    choose_file(&mut fixture, "Prediction file…", &predicted);
    // The list of its channels moves what is below.
    fixture.until("its channels", |w| sees(w, "Prediction channel"));
    choose_file(&mut fixture, "Ground truth file…", &truth);
    fixture.click_enabled("Evaluate");
    fixture.until("the scores", |w| sees(w, "1 pair"));
    let note = "only channel 0 (first) of its 2 channels is compared";
    assert!(fixture.sees(note) && !fixture.sees("Pearson 1.0000"), "{}", fixture.on_screen());
    accessibility::check(&fixture, "scores of a channel");
    fixture.click("Prediction channel");
    fixture.click("second");
    fixture.click_enabled("Evaluate");
    fixture.until("the scores of equal channels", |w| sees(w, "Pearson 1.0000"));
    assert!(!fixture.sees(note) && !fixture.sees("Ground truth channel"), "{}", fixture.on_screen());
}

#[test]
fn ground_truth_says_what_is_compared_while_there_are_no_labels() {
    let mut fixture = Fixture::with(|folder| {
        let values: Vec<u16> = (0..8 * 32 * 32).map(|i| (i * 37 % 101) as u16).collect();
        let array = Array::new("ZYX".parse().unwrap(), vec![8, 32, 32], values).unwrap();
        let paths = ["small.tif", "truth.tif"].map(|name| folder.join(name));
        paths.iter().for_each(|path| write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap());
        vec![paths[0].clone()]
    });
    fixture.settle();
    let truth = fixture.path("truth.tif");
    fixture.window.state_mut().compare_with(&truth);
    fixture.until("what is missing", |w| sees(w, "Predict, or add labels, to compare objects"));
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Model");
    fixture.click("labelfree-nuclei");
    fixture.until("the model of a stain", |w| sees(w, "Predicts a stain"));
    fixture.click_enabled("Predict this stack");
    fixture.until("where stains are scored", |w| sees(w, "A predicted stain is scored on another page"));
    fixture.click("Evaluate predictions…");
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
}

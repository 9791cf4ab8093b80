//! Correcting labels: strokes are saved as drawn, and no stroke is lost.

use crate::fixture::{Fixture, sees, window};
use crate::gestures::{
    SHAPE, begin_stroke, choose_folder, command, corrected, correcting_sample, current_label, current_slice, label_at,
    press, read_labels, release, save, session_labels, small_sample_predicted, start_correcting, stroke,
    voxel_positions, wait_for_tools,
};
use crate::quit::close;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::document::Role;
use cytoscope_ui::theme;
use cytoscope_volume::Array;
use eframe::egui::{Key, Modifiers, Shape};
use egui_kittest::Harness;
use egui_kittest::kittest::{NodeT, Queryable};
use std::path::{Path, PathBuf};

#[test]
fn stroke_follows_the_pointer_and_can_be_undone_and_redone() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    assert!(fixture.sees("Nothing to undo"), "{}", fixture.on_screen());
    let save_button = |fixture: &Fixture| fixture.window.get_by_label("Save corrected labels").rect();
    let place = save_button(&fixture);
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    assert!(!fixture.sees("Nothing to undo"), "{}", fixture.on_screen());
    assert_eq!(save_button(&fixture), place, "the button stays where it is");
    let labels = save(&mut fixture);
    assert_eq!(labels.len(), SHAPE.iter().product::<usize>());
    assert!((42..=88).all(|x| label_at(&labels, [z, 40, x]) == 1), "along the line");
    assert_eq!(
        (label_at(&labels, [z, 60, 60]), label_at(&labels, [z, 40, 110]), label_at(&labels, [z + 1, 40, 60])),
        (0, 0, 0)
    );
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    fixture.window.step();
    fixture.settle();
    assert!(save(&mut fixture).iter().all(|l| *l == 0), "the stroke is undone");
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::Y);
    fixture.window.step();
    fixture.settle();
    assert!(save(&mut fixture) == labels, "the stroke is redone");
}

#[test]
fn surfaces_are_saved_only_of_corrected_labels_that_are_saved() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    fixture.click("Objects");
    let is_disabled = |fixture: &Fixture| fixture.window.get_by_label("Save meshes…").accesskit_node().is_disabled();
    assert!(is_disabled(&fixture), "the file of the labels lacks the stroke");
    fixture.click("Correct");
    wait_for_tools(&mut fixture);
    save(&mut fixture);
    fixture.click("Objects");
    fixture.until_enabled("Save meshes…");
}

#[test]
fn a_stack_is_not_converted_with_labels_that_lack_unsaved_corrections() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    fixture.window.state_mut().send(Command::Convert);
    fixture.until("the page", |w| sees(w, "Convert and evaluate"));
    fixture.click("OME-Zarr");
    fixture.until_enabled("Convert");
    fixture.click("With labels of open stacks");
    fixture.until("the labels to be missed", |w| {
        w.query_all_by_label("Convert").any(|node| node.accesskit_node().is_disabled())
    });
    fixture.click("With labels of open stacks");
    fixture.until_enabled("Convert");
}

#[test]
fn a_click_that_closes_a_menu_draws_nothing() {
    let mut fixture = correcting_sample();
    for title in ["Help", "View"] {
        fixture.click(title);
        stroke(&mut fixture, (130.0, 130.0), (130.0, 130.0));
        assert!(session_labels(&fixture).iter().all(|label| *label == 0), "{title}");
    }
    stroke(&mut fixture, (130.0, 130.0), (130.0, 130.0));
    assert!(session_labels(&fixture).contains(&1), "no menu was open");
}

#[test]
fn two_labels_are_merged_by_clicks() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (30.0, 40.0), (30.0, 90.0));
    fixture.click("New label");
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    let labels = save(&mut fixture);
    assert_eq!((label_at(&labels, [z, 30, 60]), label_at(&labels, [z, 100, 60])), (1, 2));
    fixture.click("Merge labels");
    let clear = "Clear selection";
    fixture.until("no selection", |w| w.query_by_label(clear).is_some_and(|b| b.accesskit_node().is_disabled()));
    stroke(&mut fixture, (100.0, 60.0), (100.0, 60.0));
    fixture.until("a selection", |w| w.query_by_label(clear).is_some_and(|b| !b.accesskit_node().is_disabled()));
    stroke(&mut fixture, (30.0, 60.0), (30.0, 60.0));
    fixture.click("Apply merge or split");
    fixture.settle();
    let labels = save(&mut fixture);
    assert_eq!(
        (label_at(&labels, [z, 30, 60]), label_at(&labels, [z, 100, 60])),
        (2, 2),
        "the first label keeps its number"
    );
}

/// Number of points that are drawn as selected in the views.
fn drawn_points(fixture: &Fixture) -> usize {
    let is_point = |shape: &Shape| matches!(shape, Shape::Circle(point) if point.fill == theme::ON_IMAGE);
    fixture.window.output().shapes.iter().filter(|clipped| is_point(&clipped.shape)).count()
}

#[test]
fn selected_labels_are_marked_only_while_the_tools_are_on_screen() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (30.0, 40.0), (30.0, 90.0));
    fixture.settle();
    fixture.click("Merge labels");
    stroke(&mut fixture, (30.0, 60.0), (30.0, 60.0));
    fixture.until("the selected label", |w| sees(w, "1 selected"));
    fixture.window.run_steps(3);
    assert!(drawn_points(&fixture) > 0);
    fixture.click("Objects");
    fixture.window.run_steps(3);
    assert_eq!(drawn_points(&fixture), 0);
    fixture.click("Correct");
    wait_for_tools(&mut fixture);
    fixture.window.run_steps(3);
    assert!(drawn_points(&fixture) > 0, "{}", fixture.on_screen());
}

#[test]
fn unsaved_strokes_are_restored_in_the_next_window() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, Vec::new());
    assert!(!corrected(&fixture).exists());
    fixture.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.settle();
    fixture.click("Correct");
    fixture.until("the hint", |w| sees(w, "Earlier corrections of this stack are kept"));
    fixture.click("Label this stack");
    fixture.until("the notification", |w| sees(w, "1 earlier correction restored"));
    wait_for_tools(&mut fixture);
    assert_eq!(label_at(&save(&mut fixture), [z, 40, 60]), 1);
}

/// Closes the sample and opens it again in the same window.
fn reopen_sample(fixture: &mut Fixture) {
    fixture.window.state_mut().send(Command::Close);
    fixture.until("the empty window", |w| w.state().document().is_none());
    fixture.window.state_mut().send(Command::OpenSample);
    fixture.settle();
}

/// File of the shown labels.
fn labels_file(window: &Harness<'static, Workbench>) -> Option<PathBuf> {
    window.state().document()?.labels_path().map(Path::to_owned)
}

/// Returns from correcting to the Predict panel.
fn show_predict_panel(fixture: &mut Fixture) {
    fixture.window.state_mut().send(Command::Models);
    fixture.click("Back to the stacks");
    fixture.settle();
}

#[test]
fn corrections_are_found_again_after_another_results_folder_was_chosen() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let chosen = fixture.path("chosen");
    std::fs::create_dir(&chosen).unwrap();
    fixture.window.state_mut().use_own_file_dialog();
    show_predict_panel(&mut fixture);
    choose_folder(&mut fixture, "Results folder", &chosen);
    reopen_sample(&mut fixture);
    fixture.click("Correct");
    fixture.until("the hint", |w| sees(w, "Earlier corrections of this stack are kept"));
    fixture.click("Label this stack");
    fixture.until("the notification", |w| sees(w, "Corrections in another folder are continued"));
    wait_for_tools(&mut fixture);
    let saved = save(&mut fixture);
    assert_eq!(label_at(&saved, [z, 40, 60]), 1);
    fixture.until("the measurement", |w| w.state().document().is_some_and(|d| d.results.is_some()));
    // The saved labels are shown, too, and corrected further.
    reopen_sample(&mut fixture);
    let labels = corrected(&fixture);
    fixture.until("the labels", |w| labels_file(w).as_ref() == Some(&labels));
    fixture.until("the notification", |w| sees(w, "Results of another folder are shown"));
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    assert!(session_labels(&fixture) == saved);
    assert_eq!(std::fs::read_dir(&chosen).unwrap().count(), 0, "nothing was begun there");
}

#[test]
fn objects_that_were_saved_after_corrections_are_shown_and_the_corrections_can_be_chosen() {
    let mut fixture = small_sample_predicted();
    let objects = labels_file(&fixture.window).unwrap();
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let labels = corrected(&fixture);
    saved(&mut fixture, &labels);
    let table = labels.with_file_name("nuclei_raw_corrected_objects.csv");
    fixture.until("the measurement", |w| {
        w.state().document().and_then(|d| d.results.as_ref()).is_some_and(|results| results.path == table)
    });
    // Some time later.
    let minute = std::time::Duration::from_secs(60);
    let file = std::fs::File::options().write(true).open(&labels).unwrap();
    file.set_modified(std::time::SystemTime::now() - minute).unwrap();
    drop(file);
    show_predict_panel(&mut fixture);
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    fixture.click_enabled("Save objects");
    fixture.until("the saved objects", |w| labels_file(w).as_ref() == Some(&objects));
    fixture.settle();
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.until("the notification", |w| sees(w, "Objects that are newer than corrections are shown"));
    fixture.until("the objects", |w| labels_file(w).as_ref() == Some(&objects));
    for (name, file) in [("nuclei_raw_corrected_labels.tif", &labels), ("nuclei_raw_labels.tif", &objects)] {
        fixture.click(&format!("Show {name}"));
        fixture.until("the other labels", |w| labels_file(w).as_ref() == Some(file));
        fixture.settle();
    }
}

#[test]
fn start_over_begins_with_the_labels_shown_and_renames_the_earlier_files() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    save(&mut fixture);
    fixture.until("the measurement", |w| w.state().document().is_some_and(|d| d.results.is_some()));
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, Vec::new());
    // Another program replaces the saved labels, so the journal does not belong to the labels that are shown.
    let object = |[_, y, x]: [usize; 3]| if (100..130).contains(&y) && (60..90).contains(&x) { 7u16 } else { 0 };
    let values: Vec<u16> = voxel_positions().map(object).collect();
    let array = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), values).unwrap();
    let (labels, journal) = (corrected(&fixture), fixture.path("sample/cytoscope/nuclei_raw.corrections"));
    write_array(&labels, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let others = read_labels(&labels);
    let earlier = [&labels, &journal].map(|path| std::fs::read(path).unwrap());
    fixture.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.settle();
    fixture.until("the labels", |w| w.state().document().is_some_and(|d| d.overlay_with_role(Role::Labels).is_some()));
    fixture.click("Correct");
    fixture.click("Correct this stack");
    fixture.until("the choice", |w| sees(w, "Earlier corrections exist"));
    fixture.click("Start over");
    fixture.until("the notification", |w| sees(w, "Earlier corrections were set aside"));
    wait_for_tools(&mut fixture);
    let renamed = ["nuclei_raw_corrected_labels_earlier1.tif", "nuclei_raw_earlier1.corrections"];
    let renamed = renamed.map(|name| fixture.path("sample/cytoscope").join(name));
    assert!(!labels.exists() && renamed.each_ref().map(|path| std::fs::read(path).unwrap()) == earlier);
    assert_eq!(fixture.window.state().document().unwrap().labels_path(), Some(renamed[0].as_path()));
    assert!(session_labels(&fixture) == others);
    command(&mut fixture, Key::Z);
    assert!(session_labels(&fixture) == others, "the earlier steps cannot be undone");
    // New corrections are saved beside the earlier ones.
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let saved = save(&mut fixture);
    assert_eq!((label_at(&saved, [z, 40, 60]), label_at(&saved, [z, 115, 75])), (current_label(&fixture), 7));
    assert!(renamed.each_ref().map(|path| std::fs::read(path).unwrap()) == earlier, "the earlier files are unchanged");
}

/// Corrects the sample in a window that adds training pairs to `dataset`. Returns the folder of the window as well.
fn correcting_with_dataset() -> (Fixture, PathBuf) {
    let mut fixture = Fixture::new();
    let home = fixture.folder.path().to_owned();
    std::fs::create_dir_all(home.join("settings")).unwrap();
    let settings = format!(r#"{{"dataset_folder": {:?}}}"#, home.join("dataset").display().to_string());
    std::fs::write(home.join("settings/settings.json"), settings).unwrap();
    fixture.window = window(&home, vec![home.join("sample/nuclei_raw.tif")]);
    fixture.settle();
    start_correcting(&mut fixture);
    (fixture, home)
}

#[test]
fn a_training_pair_can_be_limited_to_the_corrected_slices() {
    let (mut fixture, home) = correcting_with_dataset();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let labels = save(&mut fixture);
    fixture.click("Training labels");
    fixture.click("Corrected slices");
    fixture.click("Use as training data");
    fixture.until("the pair", |w| sees(w, "Training pair nuclei_raw added"));
    let known = read_labels(&home.join("dataset/nuclei_raw_labels.tif"));
    assert_eq!(known.len(), labels.len());
    let (corrected, voxels) = (current_slice(&fixture), SHAPE[1] * SHAPE[2]);
    for (z, (known, labels)) in known.chunks(voxels).zip(labels.chunks(voxels)).enumerate() {
        let is_right = if z == corrected { known == labels } else { known.iter().all(|label| *label == 65_535) };
        assert!(is_right, "slice {z}, corrected was {corrected}");
    }
    let table = std::fs::read_to_string(home.join("dataset/dataset.csv")).unwrap();
    assert_eq!(table, "raw,seg,ignore\nnuclei_raw_raw.tif,nuclei_raw_labels.tif,65535\n");
}

#[test]
fn a_corrected_stack_becomes_a_training_pair() {
    let (mut fixture, home) = correcting_with_dataset();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    let labels = save(&mut fixture);
    fixture.click("Use as training data");
    fixture.until("the pair", |w| sees(w, "Training pair nuclei_raw added"));
    let written: Vec<_> = walk(&home.join("dataset"));
    let same = |p: &PathBuf, v: &[u32]| p.extension().is_some_and(|e| e == "tif") && read_labels(p) == v;
    assert!(written.iter().any(|p| same(p, &labels)), "labels among {written:?}");
    let raw = read_labels(&home.join("sample/nuclei_raw.tif"));
    assert!(written.iter().any(|p| same(p, &raw)), "raw values among {written:?}");
    // With more labels, a second pair is added and the first one stays unchanged.
    let kept: Vec<_> = written.iter().filter(|p| p.extension().is_some_and(|e| e == "tif")).collect();
    let bytes: Vec<_> = kept.iter().map(|p| std::fs::read(p).unwrap()).collect();
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    fixture.click("Use as training data");
    fixture.until("the second pair", |w| sees(w, "Training pair nuclei_raw-2 added"));
    assert!(kept.iter().map(|p| std::fs::read(p).unwrap()).eq(bytes));
    let table = std::fs::read_to_string(home.join("dataset/dataset.csv")).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(
        lines,
        ["raw,seg", "nuclei_raw_raw.tif,nuclei_raw_labels.tif", "nuclei_raw-2_raw.tif,nuclei_raw-2_labels.tif"]
    );
    assert_eq!(
        label_at(&read_labels(&home.join("dataset/nuclei_raw-2_labels.tif")), [current_slice(&fixture), 100, 60]),
        1
    );
}

#[test]
fn labels_drawn_on_a_stack_without_voxel_size_state_none() {
    let mut fixture = Fixture::with(|folder| vec![flat_stack(folder, "stack.tif", "ZYX", &[4, 64, 64])]);
    fixture.settle();
    start_correcting(&mut fixture);
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    command(&mut fixture, Key::S);
    fixture.until("the file", |w| sees(w, "All saved"));
    let saved = fixture.path("cytoscope/stack_corrected_labels.tif");
    let image = cytoscope_formats::open(&saved, &cytoscope_formats::OpenOptions::default()).unwrap();
    assert!(image.meta().voxel_size_um.is_unknown(), "{:?}", image.meta().voxel_size_um);
}

/// A window that corrects the first of two time points.
fn correcting_series() -> Fixture {
    let mut fixture = Fixture::with(|folder| vec![flat_stack(folder, "series.tif", "TZYX", &[2, 4, 64, 64])]);
    fixture.settle();
    start_correcting(&mut fixture);
    fixture
}

/// Writes a stack without structures to a folder, and returns its path.
fn flat_stack(folder: &Path, name: &str, axes: &str, shape: &[usize]) -> PathBuf {
    let values = vec![9u16; shape.iter().product()];
    let array = Array::new(axes.parse().unwrap(), shape.to_vec(), values).unwrap();
    let path = folder.join(name);
    write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    path
}

/// Waits until the labels of a document have one step to undo, which is in the journal.
fn until_one_step(fixture: &mut Fixture, document: u64) {
    fixture.until("the step", |w| {
        let correction = w.state().corrections().of(document);
        correction.and_then(|c| c.state.as_ref()).is_some_and(|s| s.undo_count == 1)
    });
}

#[test]
fn a_stroke_is_kept_once_another_time_point_is_shown() {
    let mut fixture = correcting_series();
    let document = fixture.window.state().document().unwrap().id;
    let to = begin_stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    fixture.window.key_press(Key::CloseBracket);
    fixture.until("the other time point", |w| w.state().document().is_some_and(|d| d.time == 1));
    until_one_step(&mut fixture, document);
    let drawn = session_labels(&fixture);
    release(&mut fixture, to);
    fixture.settle();
    assert!(session_labels(&fixture) == drawn && drawn.iter().any(|l| *l > 0));
}

#[test]
fn a_stroke_is_kept_once_another_stack_is_shown() {
    let mut fixture = Fixture::with(|folder| {
        ["one.tif", "two.tif"].map(|name| flat_stack(folder, name, "ZYX", &[4, 64, 64])).to_vec()
    });
    fixture.until("both stacks", |w| w.state().documents().len() == 2);
    fixture.settle();
    start_correcting(&mut fixture);
    let document = fixture.window.state().document().unwrap();
    let (id, path) = (document.id, document.path.clone());
    begin_stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let other = ["one.tif", "two.tif"].map(|name| fixture.path(name)).into_iter().find(|other| *other != path);
    fixture.window.state_mut().open_paths(&[other.unwrap()]);
    fixture.until("the other stack", |w| w.state().document().is_some_and(|d| d.id != id));
    // The button is still pressed.
    until_one_step(&mut fixture, id);
}

#[test]
fn a_stroke_is_kept_once_a_page_hides_the_stacks() {
    let mut fixture = correcting_series();
    let document = fixture.window.state().document().unwrap().id;
    begin_stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    fixture.window.state_mut().send(Command::Train);
    until_one_step(&mut fixture, document);
}

#[test]
fn labels_of_another_time_point_than_the_shown_one_do_not_change() {
    let mut fixture = correcting_series();
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let drawn = session_labels(&fixture);
    assert!(drawn.iter().any(|l| *l > 0));
    press(&mut fixture, Key::CloseBracket);
    press(&mut fixture, Key::Delete);
    assert!(fixture.sees("Another time point is shown"), "{}", fixture.on_screen());
    assert!(session_labels(&fixture) == drawn);
    fixture.click("Go to time point 1");
    assert_eq!(fixture.window.state().document().unwrap().time, 0);
    // The other time point has its own corrections.
    press(&mut fixture, Key::CloseBracket);
    fixture.click("Correct this time point");
    fixture.until("its corrections", |w| {
        let state = w.state();
        let correction = state.document().and_then(|d| state.corrections().of(d.id));
        correction.is_some_and(|c| c.time == 1 && c.state.is_some())
    });
    fixture.settle();
    assert!(session_labels(&fixture).iter().all(|l| *l == 0));
    assert!(fixture.path("cytoscope/series_t0.corrections").is_file());
}

/// Saves the corrections on screen, and returns the labels in their file.
fn saved(fixture: &mut Fixture, labels: &Path) -> Vec<u32> {
    assert!(fixture.sees("Modified"), "{}", fixture.on_screen());
    command(fixture, Key::S);
    fixture.until("the file", |w| sees(w, "All saved"));
    fixture.settle();
    read_labels(labels)
}

/// Corrects the other time point of a series of two.
fn correct_time_point(fixture: &mut Fixture, time: usize) {
    press(fixture, if time == 0 { Key::OpenBracket } else { Key::CloseBracket });
    fixture.click("Correct this time point");
    wait_for_tools(fixture);
    let state = fixture.window.state();
    let corrected = state.document().and_then(|d| state.corrections().of(d.id)).map(|c| c.time);
    assert_eq!(corrected, Some(time));
}

#[test]
fn what_is_undone_after_saving_is_unsaved_and_saved_next_at_each_time_point() {
    let mut fixture = correcting_series();
    let [first, second] = [0, 1].map(|time| fixture.path(&format!("cytoscope/series_t{time}_corrected_labels.tif")));
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let drawn = saved(&mut fixture, &first);
    assert!(drawn.iter().any(|label| *label > 0));
    command(&mut fixture, Key::Z);
    assert!(fixture.sees("Modified"), "{}", fixture.on_screen());
    // Neither time point loses what is not saved yet while the other one is corrected.
    correct_time_point(&mut fixture, 1);
    stroke(&mut fixture, (30.0, 20.0), (30.0, 50.0));
    let other = session_labels(&fixture);
    correct_time_point(&mut fixture, 0);
    assert!(session_labels(&fixture).iter().all(|label| *label == 0), "the stroke is undone");
    assert!(saved(&mut fixture, &first).iter().all(|label| *label == 0));
    command(&mut fixture, Key::Y);
    assert!(saved(&mut fixture, &first) == drawn, "the stroke is redone");
    correct_time_point(&mut fixture, 1);
    assert!(session_labels(&fixture) == other && !second.exists());
    assert!(saved(&mut fixture, &second) == other && read_labels(&first) == drawn);
}

#[test]
fn unsaved_corrections_of_a_time_point_that_is_no_longer_corrected_are_listed_and_saved_before_the_window_closes() {
    let mut fixture = correcting_series();
    let files = [0, 1].map(|time| fixture.path(&format!("cytoscope/series_t{time}_corrected_labels.tif")));
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let first = session_labels(&fixture);
    correct_time_point(&mut fixture, 1);
    assert!(!close(&mut fixture), "the dialog opens first");
    fixture.until("the dialog", |w| sees(w, "Unsaved corrections"));
    assert!(fixture.sees("series.tif · time point 1"), "{}", fixture.on_screen());
    assert!(!fixture.sees("series.tif · time point 2"), "nothing was drawn there: {}", fixture.on_screen());
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Unsaved corrections"));
    stroke(&mut fixture, (30.0, 20.0), (30.0, 50.0));
    let second = session_labels(&fixture);
    assert!(!close(&mut fixture));
    fixture.until("both time points", |w| ["1", "2"].iter().all(|n| sees(w, &format!("series.tif · time point {n}"))));
    fixture.click("Save and quit");
    fixture.until("the files", |_| files.iter().all(|file| file.is_file()));
    fixture.until("the end", |w| w.state().corrections().is_settled() && !sees(w, "Saving…"));
    assert!(close(&mut fixture), "everything is saved");
    assert!(read_labels(&files[0]) == first && read_labels(&files[1]) == second);
}

#[test]
fn unsaved_corrections_survive_another_prediction() {
    let mut fixture = small_sample_predicted();
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    let predicted = session_labels(&fixture);
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    let drawn = session_labels(&fixture);
    assert!(drawn != predicted);
    fixture.window.state_mut().send(Command::Predict);
    fixture.until("the new labels", |w| sees(w, "Other labels are shown now"));
    fixture.settle();
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    assert!(session_labels(&fixture) == drawn);
    let labels = corrected(&fixture);
    assert!(saved(&mut fixture, &labels) == drawn);
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { all.extend(walk(&path)) } else { all.push(path) }
    }
    all
}

//! Objects of single time points: saved, saved again, found again, and measured.

use crate::fixture::{Fixture, read_json, sees, window};
use crate::gestures::{press, read_labels, session_labels, start_correcting, stroke, toggled, wait_for_tools};
use crate::quit::close;
use cytoscope_formats::{Container, OpenOptions, WriteSpec, open, write_array};
use cytoscope_testkit::file_names;
use cytoscope_ui::Workbench;
use cytoscope_ui::command::Command;
use cytoscope_ui::correct::tools::EditAction;
use cytoscope_ui::document::Role;
use cytoscope_ui::results::Results;
use cytoscope_ui::work::JobState;
use cytoscope_volume::Array;
use eframe::egui::accesskit::Toggled;
use eframe::egui::{Key, Modifiers};
use egui_kittest::Harness;
use std::path::{Path, PathBuf};

/// Writes a part of the sample as a stack with two time points, the first of which may be empty. The names of its results do
/// not have `.ome`.
fn series(folder: &Path, is_first_empty: bool) -> PathBuf {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let sample = open(&sample, &OpenOptions::default()).unwrap();
    let values = sample.read_all().unwrap().samples().to_f32();
    let at = |z: usize, y: usize, x: usize| values[(z * 160 + y) * 160 + x] as u16;
    let (nz, n) = (12, 96);
    let one: Vec<u16> =
        (0..nz).flat_map(|z| (0..n).flat_map(move |y| (0..n).map(move |x| at(z + 8, y + 20, x + 20)))).collect();
    let first = if is_first_empty { vec![0; one.len()] } else { one.clone() };
    let array = Array::new("TZYX".parse().unwrap(), vec![2, nz, n, n], [first, one].concat()).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.voxel_size_um = sample.meta().voxel_size_um;
    let path = folder.join("series.ome.tif");
    write_array(&path, &array, &spec).unwrap();
    path
}

/// Path and only time point of the shown labels.
fn shown_labels(window: &Harness<'static, Workbench>) -> Option<(PathBuf, Option<usize>)> {
    let labels = window.state().document()?.overlay_with_role(Role::Labels)?;
    Some((labels.path.clone(), labels.only_time))
}

/// Name of the shown table.
fn shown_table(window: &Harness<'static, Workbench>) -> Option<String> {
    let table = &window.state().document()?.results.as_ref()?.path;
    Some(table.file_name()?.to_string_lossy().into_owned())
}

/// Excludes border objects of the time point on screen, or includes them again, and saves the objects. Returns whether existing
/// files are asked about first.
fn save_objects(fixture: &mut Fixture) -> bool {
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    fixture.click_enabled("Save objects");
    let asks = |w: &Harness<'static, Workbench>| sees(w, "Replace existing files?");
    fixture.until("the end", |w| asks(w) || !sees(w, "not saved yet"));
    asks(&fixture.window)
}

/// Opens a stack with two time points, predicts it, and saves the objects of the second one.
fn objects_of_second_time_point() -> Fixture {
    let mut fixture = Fixture::with(|folder| vec![series(folder, false)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("labels", |w| shown_labels(w).is_some() && shown_table(w).is_some());
    let all = fixture.path("cytoscope/series_labels.tif");
    let before = std::fs::read(&all).unwrap();
    press(&mut fixture, Key::CloseBracket);
    assert_eq!(fixture.window.state().document().unwrap().time, 1);
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    assert!(std::fs::read(&all).unwrap() == before, "the labels of all time points are unchanged");
    fixture
}

/// Predicts the second time point of a stack only.
fn second_time_point_predicted() -> Fixture {
    let mut fixture = Fixture::with(|folder| vec![series(folder, true)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    press(&mut fixture, Key::CloseBracket);
    fixture.click("Only this time point");
    fixture.click_enabled("Predict this stack");
    fixture
}

/// The labels of the second time point that were saved, and the number of rows of their table.
fn saved_objects(fixture: &Fixture) -> (Vec<u32>, usize) {
    let folder = fixture.path("cytoscope");
    let table = Results::read(&folder.join("series_t1_objects.csv")).unwrap();
    (read_labels(&folder.join("series_t1_labels.tif")), table.rows.len())
}

#[test]
fn objects_that_were_excluded_are_included_again_by_saving_once_more() {
    let mut fixture = second_time_point_predicted();
    fixture.until("labels", |w| shown_labels(w).is_some_and(|(_, time)| time == Some(1)) && shown_table(w).is_some());
    let predicted = Results::read(&fixture.path("cytoscope/series_objects.csv")).unwrap().rows.len();
    let is_excluded = |w: &Harness<'static, Workbench>| toggled(w, "Exclude border objects");
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    let excluded = saved_objects(&fixture);
    assert!(excluded.1 < predicted, "{} of {predicted} objects", excluded.1);
    assert_eq!(is_excluded(&fixture.window), Some(Toggled::True), "the objects on screen are without them");
    fixture.settle();
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    let included = saved_objects(&fixture);
    assert_eq!((included.1, is_excluded(&fixture.window)), (predicted, Some(Toggled::False)));
    assert!(included.0.iter().filter(|label| **label > 0).count() > excluded.0.iter().filter(|l| **l > 0).count());
    // The next window continues from what was saved last.
    fixture.settle();
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    assert!(saved_objects(&fixture) == excluded);
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![home.join("series.ome.tif")]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    press(&mut fixture, Key::CloseBracket);
    fixture.until("the settings", |w| is_excluded(w) == Some(Toggled::True));
    fixture.settle();
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    assert!(saved_objects(&fixture) == included);
}

#[test]
fn unsaved_objects_of_each_time_point_are_kept_until_they_are_saved() {
    let mut fixture = Fixture::with(|folder| vec![series(folder, false)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("labels", |w| shown_labels(w).is_some() && shown_table(w).is_some());
    let folder = fixture.path("cytoscope");
    press(&mut fixture, Key::CloseBracket);
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    // The other time point has its predicted labels, and gets its own preview.
    press(&mut fixture, Key::OpenBracket);
    let all = folder.join("series_labels.tif");
    fixture.until("the predicted labels", |w| shown_labels(w) == Some((all.clone(), None)));
    assert!(!fixture.sees("not saved yet"), "{}", fixture.on_screen());
    assert_eq!(toggled(&fixture.window, "Exclude border objects"), Some(Toggled::False));
    fixture.click("Fill holes");
    fixture.until("its preview", |w| sees(w, "not saved yet") && shown_labels(w).is_some_and(|(_, t)| t == Some(0)));
    // The window does not close without a question.
    assert!(!close(&mut fixture));
    fixture.until("the dialog", |w| sees(w, "Unsaved objects"));
    fixture.window.key_press(Key::Escape);
    fixture.until("no dialog", |w| !sees(w, "Unsaved objects"));
    for (key, time) in [(Key::CloseBracket, 1), (Key::OpenBracket, 0)] {
        press(&mut fixture, key);
        fixture.until("its preview", |w| {
            sees(w, "not saved yet") && shown_labels(w).is_some_and(|(path, t)| t == Some(time) && path != all)
        });
        fixture.click_enabled("Save objects");
        fixture.until("the end", |w| !sees(w, "not saved yet"));
        fixture.settle();
        let record = read_json(&folder.join(format!("series_t{time}_labels.tif_provenance.json")));
        let options = &record["job"]["options"];
        let expected = (time == 1, time == 1);
        assert_eq!((options["drop_border"] == true, options["fill_holes"] == true), expected, "{options}");
    }
    assert!(close(&mut fixture), "everything is saved");
}

#[test]
fn an_estimate_measures_the_objects_of_the_time_point_on_screen() {
    let mut fixture = Fixture::with(|folder| vec![series(folder, true)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    press(&mut fixture, Key::CloseBracket);
    fixture.click_enabled("Estimate");
    let objects = |w: &Harness<'static, Workbench>| Some(w.state().document()?.object_size.found?.estimate?.objects);
    fixture.until("the estimate", |w| objects(w).is_some());
    assert!(objects(&fixture.window) > Some(2), "the first time point is empty");
}

#[test]
fn labels_of_all_time_points_are_measured_at_all_of_them() {
    let mut fixture = Fixture::with(|folder| vec![series(folder, false)]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click_enabled("Predict this stack");
    fixture.until("labels", |w| shown_labels(w).is_some() && shown_table(w).is_some());
    let table = fixture.path("cytoscope/series_objects.csv");
    let predicted = std::fs::read_to_string(&table).unwrap();
    press(&mut fixture, Key::CloseBracket);
    fixture.window.state_mut().send(Command::Measure);
    let done = |w: &Harness<'static, Workbench>| w.state().jobs().iter().filter(|j| j.state == JobState::Done).count();
    fixture.until("the measurement", |w| done(w) == 2);
    // The table of the prediction has the rows of both time points.
    assert!(predicted.contains("\n0,1,") && predicted.contains("\n1,1,"), "{predicted}");
    assert_eq!(std::fs::read_to_string(&table).unwrap(), predicted);
}

#[test]
fn only_the_shown_time_point_is_predicted_and_its_results_belong_to_it() {
    let mut fixture = second_time_point_predicted();
    let folder = fixture.path("cytoscope");
    let [predicted, saved] = ["series_labels.tif", "series_t1_labels.tif"].map(|name| folder.join(name));
    fixture.until("labels", |w| shown_labels(w) == Some((predicted.clone(), Some(1))) && shown_table(w).is_some());
    let record = read_json(&folder.join("series_provenance.json"));
    assert_eq!(record["job"]["time"], 1, "{record}");
    assert_eq!(read_labels(&predicted).len(), 12 * 96 * 96, "the file has one time point");
    let map_time = |w: &Harness<'static, Workbench>| w.state().document()?.overlay_with_role(Role::Map)?.only_time;
    fixture.until("the map", |w| map_time(w) == Some(1));
    // Its objects are refined in its map, and measured at it: the first time point is empty.
    fixture.click("Split touching objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    fixture.click_enabled("Save objects");
    fixture.until("the saved labels", |w| shown_labels(w) == Some((saved.clone(), Some(1))));
    let table = folder.join("series_t1_objects.csv");
    let results = Results::read(&table).unwrap();
    let mean = results.columns.iter().position(|name| name.starts_with("mean")).unwrap();
    assert!(!results.rows.is_empty() && (0..results.rows.len()).all(|row| results.value(row, mean) > 0.0));
    // The next window shows them at their time point, too, and no controls for objects at the other one.
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![home.join("series.ome.tif")]);
    fixture.settle();
    fixture.until("the map", |w| map_time(w) == Some(1));
    fixture.until("the models", |w| sees(w, "made for"));
    assert!(!fixture.sees("Exclude border objects"), "{}", fixture.on_screen());
    press(&mut fixture, Key::CloseBracket);
    fixture.until("the saved labels", |w| shown_labels(w) == Some((saved.clone(), Some(1))));
    assert!(fixture.sees("Exclude border objects"), "{}", fixture.on_screen());
}

#[test]
fn objects_of_one_time_point_belong_to_it_and_do_not_replace_those_of_all() {
    let mut fixture = objects_of_second_time_point();
    let [all, one] = ["series_labels.tif", "series_t1_labels.tif"].map(|name| fixture.path("cytoscope").join(name));
    fixture.until("the saved labels", |w| shown_labels(w) == Some((one.clone(), Some(1))));
    assert!(one.is_file());
    // The other time point has the labels of the prediction.
    press(&mut fixture, Key::OpenBracket);
    fixture.until("the predicted labels", |w| shown_labels(w) == Some((all.clone(), None)));
    // Corrections start from the labels of their time point, even while another one is corrected.
    fixture.settle();
    let predicted = read_labels(&all);
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    assert!(session_labels(&fixture) == predicted[..predicted.len() / 2]);
    press(&mut fixture, Key::CloseBracket);
    fixture.click("Correct this time point");
    wait_for_tools(&mut fixture);
    let saved = read_labels(&one);
    assert!(session_labels(&fixture) == saved && saved != predicted[predicted.len() / 2..]);
}

#[test]
fn objects_of_one_time_point_are_saved_again_without_a_prompt_unless_they_were_edited() {
    let mut fixture = objects_of_second_time_point();
    let folder = fixture.path("cytoscope");
    let before = file_names(&folder);
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    assert_eq!(file_names(&folder), before, "no file was moved aside");
    // Nor does the next window ask, also after the objects were measured there.
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![home.join("series.ome.tif")]);
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    press(&mut fixture, Key::CloseBracket);
    let one = folder.join("series_t1_labels.tif");
    fixture.until("the saved labels", |w| shown_labels(w).is_some_and(|(path, _)| path == one));
    fixture.settle();
    let table = folder.join("series_t1_objects.csv");
    let measured = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let measured_before = measured(&table);
    fixture.window.state_mut().send(Command::Measure);
    fixture.until("the measurement", |w| sees(w, "Replace existing files?") || measured(&table) > measured_before);
    assert!(!fixture.sees("Replace existing files?"), "{}", fixture.on_screen());
    fixture.until("the end of the measurement", |w| w.state().active_jobs() == 0);
    fixture.settle();
    assert!(!save_objects(&mut fixture), "{}", fixture.on_screen());
    // An edited file is still asked about.
    let drawn = fixture.path("drawn.tif");
    std::fs::write(&drawn, "drawn by hand").unwrap();
    std::fs::rename(&drawn, &one).unwrap();
    assert!(save_objects(&mut fixture), "{}", fixture.on_screen());
    fixture.click("Keep files");
    assert_eq!(std::fs::read(&one).unwrap(), b"drawn by hand");
}

#[test]
fn objects_of_one_time_point_are_shown_at_it_when_the_stack_is_opened_again() {
    let mut fixture = objects_of_second_time_point();
    let home = fixture.folder.path().to_owned();
    fixture.window = window(&home, vec![home.join("series.ome.tif")]);
    fixture.settle();
    let [all, one] = ["series_labels.tif", "series_t1_labels.tif"].map(|name| home.join("cytoscope").join(name));
    for _ in 0..2 {
        fixture.until("the predicted labels", |w| {
            shown_labels(w) == Some((all.clone(), None)) && shown_table(w).as_deref() == Some("series_objects.csv")
        });
        press(&mut fixture, Key::CloseBracket);
        fixture.until("the saved labels", |w| {
            shown_labels(w) == Some((one.clone(), Some(1)))
                && shown_table(w).as_deref() == Some("series_t1_objects.csv")
        });
        press(&mut fixture, Key::OpenBracket);
    }
}

#[test]
fn saved_labels_are_measured_at_their_own_time_point() {
    // The time points have different intensities.
    let mut fixture = Fixture::with(|folder| {
        let values = [vec![9u16; 4 * 64 * 64], vec![20; 4 * 64 * 64]].concat();
        let array = Array::new("TZYX".parse().unwrap(), vec![2, 4, 64, 64], values).unwrap();
        let path = folder.join("series.tif");
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        vec![path]
    });
    fixture.settle();
    start_correcting(&mut fixture);
    stroke(&mut fixture, (20.0, 20.0), (20.0, 40.0));
    // Another time point is corrected while the labels are being saved.
    fixture.window.state_mut().send(Command::Correct(EditAction::Save));
    fixture.window.state_mut().send(Command::NextTime);
    fixture.window.run_steps(2);
    fixture.click("Correct this time point");
    wait_for_tools(&mut fixture);
    stroke(&mut fixture, (30.0, 20.0), (30.0, 50.0));
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::S);
    let tables = [0, 1].map(|time| fixture.path(&format!("cytoscope/series_t{time}_corrected_objects.csv")));
    fixture.until("both tables", |_| tables.iter().all(|table| table.is_file()));
    // A notification has the notes of the measurement, such as which time point was measured.
    fixture.until("the notes", |w| sees(w, "1 object measured"));
    for (time, (table, intensity)) in tables.iter().zip([9.0, 20.0]).enumerate() {
        let results = Results::read(table).unwrap();
        let mean = results.columns.iter().position(|name| name.starts_with("mean")).unwrap();
        let time_column = results.column("time").unwrap();
        assert_eq!((results.value(0, time_column), results.value(0, mean)), (time as f64, intensity), "{results:?}");
    }
    // The table of the time point on screen is shown.
    fixture.until("the table", |w| shown_table(w).as_deref() == Some("series_t1_corrected_objects.csv"));
}

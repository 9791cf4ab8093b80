//! The table of objects after corrections: outdated until the labels are saved and measured again.

use crate::fixture::{Fixture, sees, window};
use crate::gestures::{
    click_at, corrected, correcting_sample, current_label, current_slice, label_at, label_positions, press,
    read_labels, sample_predicted, save, session_labels, stroke, voxel_um, wait_for_tools,
};
use cytoscope_ui::document::Role;
use cytoscope_ui::results::Results;
use eframe::egui::Key;

const OUTDATED: &str = "Labels have changed since";

fn results(fixture: &Fixture) -> Option<&Results> {
    fixture.window.state().document().unwrap().results.as_ref()
}

/// Waits until the table shows the current corrected labels.
fn wait_until_measured(fixture: &mut Fixture) {
    fixture.until("the table", |w| {
        let document = w.state().document();
        let name = document.and_then(|d| d.results.as_ref()).map(|r| r.path.display().to_string());
        name.is_some_and(|n| n.ends_with("nuclei_raw_corrected_objects.csv"))
            && !sees(w, OUTDATED)
            && !sees(w, "Measuring")
    });
    fixture.settle();
}

/// Voxels of each label in the table.
fn table(fixture: &Fixture) -> Vec<(u32, usize)> {
    let results = results(fixture).unwrap();
    let column = results.column("voxels").unwrap();
    (0..results.rows.len()).map(|r| (results.label(r), results.value(r, column) as usize)).collect()
}

#[test]
fn saved_objects_replace_the_labels_in_the_ome_zarr_folder_of_their_prediction() {
    let mut fixture = Fixture::with_small_sample();
    fixture.click("Open the sample");
    fixture.settle();
    fixture.until("the models", |w| sees(w, "made for"));
    fixture.click("Result format");
    fixture.click("OME-Zarr");
    fixture.click_enabled("Predict this stack");
    fixture.until("the objects", |w| {
        w.state().document().is_some_and(|document| {
            let has = |role| document.overlay_with_role(role).is_some();
            has(Role::Map) && has(Role::Labels) && document.results.is_some()
        })
    });
    fixture.settle();
    let folder = fixture.path("sample/cytoscope");
    let in_folder = folder.join("nuclei_raw_probability.zarr/labels/objects");
    let predicted = read_labels(&in_folder);
    fixture.click("Exclude border objects");
    fixture.until("a preview", |w| sees(w, "not saved yet"));
    assert!(read_labels(&in_folder) == predicted, "a preview writes nothing");
    fixture.click_enabled("Save objects");
    fixture.until("the end", |w| !sees(w, "not saved yet"));
    fixture.settle();
    let saved = read_labels(&in_folder);
    assert!(saved != predicted && saved == read_labels(&folder.join("nuclei_raw_labels.tif")));
    assert!(!fixture.sees(OUTDATED), "{}", fixture.on_screen());
}

#[test]
fn saved_corrections_are_measured_and_unsaved_edits_mark_the_table_outdated() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    press(&mut fixture, Key::N);
    stroke(&mut fixture, (100.0, 40.0), (100.0, 60.0));
    fixture.click("Objects");
    assert!(fixture.sees("These labels are not measured yet"), "{}", fixture.on_screen());
    assert!(!fixture.sees("No objects yet"), "one hint: {}", fixture.on_screen());
    // The button saves the labels first.
    fixture.click_enabled("Measure objects");
    wait_until_measured(&mut fixture);
    let labels = read_labels(&corrected(&fixture));
    let expected: Vec<(u32, usize)> = [1, 2].map(|l| (l, label_positions(&labels, l).len())).to_vec();
    assert!(expected.iter().all(|(_, n)| *n > 50));
    assert_eq!(table(&fixture), expected);
    // Positions and intensities are checked against the file's own voxels.
    let raw = read_labels(&fixture.path("sample/nuclei_raw.tif"));
    let [_, um, _] = voxel_um(&fixture);
    let of = |name: &str| results(&fixture).unwrap().value(1, results(&fixture).unwrap().column(name).unwrap());
    let second = label_positions(&labels, 2);
    let n = second.len() as f64;
    let mean = second.iter().map(|p| f64::from(label_at(&raw, *p))).sum::<f64>() / n;
    let y_um = second.iter().map(|p| p[1] as f64 * um).sum::<f64>() / n;
    assert!((of("mean_raw") - mean).abs() < 1e-3 * mean, "{} {mean}", of("mean_raw"));
    assert!((of("centroid_y_um") - y_um).abs() < 1e-3 * y_um, "{} {y_um}", of("centroid_y_um"));
    // Another stroke makes the table outdated.
    fixture.click("Correct");
    stroke(&mut fixture, (130.0, 40.0), (130.0, 60.0));
    assert!(fixture.sees(OUTDATED), "{}", fixture.on_screen());
    fixture.click("Objects");
    assert!(fixture.sees(OUTDATED) && table(&fixture) == expected, "{}", fixture.on_screen());
    // After undo it is up to date again.
    crate::gestures::command(&mut fixture, Key::Z);
    assert!(!fixture.sees(OUTDATED), "{}", fixture.on_screen());
    crate::gestures::command(&mut fixture, Key::Y);
    assert!(fixture.sees(OUTDATED));
    // Saving measures the labels.
    fixture.click("Correct");
    let labels = save(&mut fixture);
    wait_until_measured(&mut fixture);
    assert_eq!(table(&fixture), [1, 2].map(|l| (l, label_positions(&labels, l).len())).to_vec());
    assert!(table(&fixture)[1].1 > expected[1].1 && label_at(&labels, [z, 130, 50]) == 2);
}

#[test]
fn predicted_table_is_kept_and_corrected_table_is_reloaded() {
    let mut fixture = sample_predicted();
    let predicted = fixture.path("sample/cytoscope/nuclei_raw_objects.csv");
    let before = std::fs::read(&predicted).unwrap();
    fixture.click("Correct");
    assert!(!fixture.sees(OUTDATED), "{}", fixture.on_screen());
    fixture.window.state_mut().document_mut().unwrap().select(Some(1));
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    // The tools draw a label that is not that of the selected object.
    assert_ne!(current_label(&fixture), 1);
    assert_eq!(fixture.window.state().document().unwrap().selected, None);
    // Measuring unchanged labels gives the prediction's own table.
    save(&mut fixture);
    wait_until_measured(&mut fixture);
    let own = fixture.path("sample/cytoscope/nuclei_raw_corrected_objects.csv");
    assert!(std::fs::read(&own).unwrap() == before);
    // One more object.
    let rows = results(&fixture).unwrap().rows.len();
    let label = current_label(&fixture);
    click_at(&mut fixture, 4.0, 4.0);
    assert!(fixture.sees(OUTDATED));
    let labels = save(&mut fixture);
    wait_until_measured(&mut fixture);
    assert!(!label_positions(&labels, label).is_empty() && session_labels(&fixture) == labels);
    assert_eq!(
        results(&fixture).unwrap().row_index(label, 0).map(|_| results(&fixture).unwrap().rows.len()),
        Some(rows + 1)
    );
    assert!(std::fs::read(&predicted).unwrap() == before, "the table of the prediction is unchanged");
    // The next start loads the corrected table; without it, the predicted one is marked as outdated.
    let home = fixture.folder.path().to_owned();
    let stack = home.join("sample/nuclei_raw.tif");
    fixture.window = window(&home, Vec::new());
    let again = |fixture: &mut Fixture| {
        fixture.window = window(&home, vec![stack.clone()]);
        fixture.until("results", |w| {
            w.state().document().is_some_and(|d| d.results.is_some() && d.overlay_with_role(Role::Labels).is_some())
        });
        fixture.settle();
        fixture.click("Objects");
    };
    again(&mut fixture);
    assert_eq!(results(&fixture).unwrap().rows.len(), rows + 1);
    assert!(!fixture.sees(OUTDATED), "{}", fixture.on_screen());
    std::fs::remove_file(&own).unwrap();
    again(&mut fixture);
    assert_eq!(results(&fixture).unwrap().rows.len(), rows);
    assert!(fixture.sees(OUTDATED), "{}", fixture.on_screen());
    fixture.click_enabled("Measure objects");
    wait_until_measured(&mut fixture);
    assert_eq!(results(&fixture).unwrap().rows.len(), rows + 1);
}

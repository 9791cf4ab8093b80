//! The table of objects after corrections: out of date until the labels are saved, then what was drawn.

use crate::desk::{Desk, sees, window};
use crate::hand::{
    at, begun, corrected, current, held, press, read, save, slice, stroke, tools, touch, voxel_um, voxels,
};
use cytoscope_ui::document::Role;
use cytoscope_ui::results::Results;
use eframe::egui::Key;

const OLD: &str = "Labels have changed since";

fn results(desk: &Desk) -> Option<&Results> {
    desk.window.state().document().unwrap().results.as_ref()
}

/// Waits until the table is that of the corrected labels, as they are now.
fn measured(desk: &mut Desk) {
    desk.until("the table", |w| {
        let document = w.state().document();
        let name = document.and_then(|d| d.results.as_ref()).map(|r| r.path.display().to_string());
        name.is_some_and(|n| n.ends_with("nuclei_raw_corrected_objects.csv")) && !sees(w, OLD) && !sees(w, "Measuring")
    });
    desk.settle();
}

/// Voxels of each label in the table.
fn table(desk: &Desk) -> Vec<(u32, usize)> {
    let results = results(desk).unwrap();
    let column = results.column("voxels").unwrap();
    (0..results.rows.len()).map(|r| (results.label(r), results.value(r, column) as usize)).collect()
}

#[test]
fn saved_corrections_are_measured_and_changed_ones_are_said_to_be_out_of_date() {
    let mut desk = begun();
    let z = slice(&desk);
    stroke(&mut desk, (40.0, 40.0), (40.0, 90.0));
    press(&mut desk, Key::N);
    stroke(&mut desk, (100.0, 40.0), (100.0, 60.0));
    desk.click("Objects");
    assert!(desk.sees("These labels are not measured yet"), "{}", desk.on_screen());
    // The button saves them first.
    desk.click("Measure objects again");
    measured(&mut desk);
    let labels = read(&corrected(&desk));
    let expected: Vec<(u32, usize)> = [1, 2].map(|l| (l, voxels(&labels, l).len())).to_vec();
    assert!(expected.iter().all(|(_, n)| *n > 50));
    assert_eq!(table(&desk), expected);
    // Positions and intensities, too, against the file's own voxels.
    let raw = read(&desk.path("sample/nuclei_raw.tif"));
    let [_, um, _] = voxel_um(&desk);
    let of = |name: &str| results(&desk).unwrap().value(1, results(&desk).unwrap().column(name).unwrap());
    let second = voxels(&labels, 2);
    let n = second.len() as f64;
    let mean = second.iter().map(|p| f64::from(at(&raw, *p))).sum::<f64>() / n;
    let y_um = second.iter().map(|p| p[1] as f64 * um).sum::<f64>() / n;
    assert!((of("mean_raw") - mean).abs() < 1e-3 * mean, "{} {mean}", of("mean_raw"));
    assert!((of("centroid_y_um") - y_um).abs() < 1e-3 * y_um, "{} {y_um}", of("centroid_y_um"));
    // Drawn on, they are others.
    desk.click("Correct");
    stroke(&mut desk, (130.0, 40.0), (130.0, 60.0));
    assert!(desk.sees(OLD), "{}", desk.on_screen());
    desk.click("Objects");
    assert!(desk.sees(OLD) && table(&desk) == expected, "{}", desk.on_screen());
    // Undone, they are as measured.
    crate::hand::command(&mut desk, Key::Z);
    assert!(!desk.sees(OLD), "{}", desk.on_screen());
    crate::hand::command(&mut desk, Key::Y);
    assert!(desk.sees(OLD));
    // Saving measures them.
    desk.click("Correct");
    let labels = save(&mut desk);
    measured(&mut desk);
    assert_eq!(table(&desk), [1, 2].map(|l| (l, voxels(&labels, l).len())).to_vec());
    assert!(table(&desk)[1].1 > expected[1].1 && at(&labels, [z, 130, 50]) == 2);
}

#[test]
fn a_predictions_table_stays_and_the_corrected_one_is_there_at_the_next_start() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("labels", |w| {
        w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some() && d.results.is_some())
    });
    desk.settle();
    let predicted = desk.path("sample/cytoscope/nuclei_raw_objects.csv");
    let before = std::fs::read(&predicted).unwrap();
    desk.click("Correct");
    assert!(!desk.sees(OLD), "{}", desk.on_screen());
    desk.click("Correct this stack");
    tools(&mut desk);
    // Unchanged labels measured again give the prediction's own table.
    save(&mut desk);
    measured(&mut desk);
    let own = desk.path("sample/cytoscope/nuclei_raw_corrected_objects.csv");
    assert!(std::fs::read(&own).unwrap() == before);
    // A new object more.
    let rows = results(&desk).unwrap().rows.len();
    let label = current(&desk);
    touch(&mut desk, 4.0, 4.0);
    assert!(desk.sees(OLD));
    let labels = save(&mut desk);
    measured(&mut desk);
    assert!(!voxels(&labels, label).is_empty() && held(&desk) == labels);
    assert_eq!(results(&desk).unwrap().row_of(label).map(|_| results(&desk).unwrap().rows.len()), Some(rows + 1));
    assert!(std::fs::read(&predicted).unwrap() == before, "the prediction's is as it was");
    // The next start has the corrected table; one that was not measured any more is said to be old.
    let home = desk.folder.path().to_owned();
    let stack = home.join("sample/nuclei_raw.tif");
    desk.window = window(&home, Vec::new());
    let again = |desk: &mut Desk| {
        desk.window = window(&home, vec![stack.clone()]);
        desk.until("results", |w| {
            w.state().document().is_some_and(|d| d.results.is_some() && d.of_role(Role::Labels).is_some())
        });
        desk.settle();
        desk.click("Objects");
    };
    again(&mut desk);
    assert_eq!(results(&desk).unwrap().rows.len(), rows + 1);
    assert!(!desk.sees(OLD), "{}", desk.on_screen());
    std::fs::remove_file(&own).unwrap();
    again(&mut desk);
    assert_eq!(results(&desk).unwrap().rows.len(), rows);
    assert!(desk.sees(OLD), "{}", desk.on_screen());
    desk.click("Measure objects again");
    measured(&mut desk);
    assert_eq!(results(&desk).unwrap().rows.len(), rows + 1);
}

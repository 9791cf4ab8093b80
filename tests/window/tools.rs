//! Every correction tool and action, by name or key: the resulting labels are checked voxel by voxel.

use crate::fixture::{Fixture, sees};
use crate::gestures::{
    SHAPE, begin_stroke, click_at, command, correcting_sample, current_label, current_slice, digest, distance_um, drag,
    draw, go_to_slice, label_at, label_positions, press, read_labels, release, sample_predicted, save, screen_position,
    session_labels, stroke, voxel_positions, voxel_um, wait_for_tools,
};
use cytoscope_ui::data::plane::Orientation;
use eframe::egui::{Key, Modifiers};
use std::collections::BTreeSet;

/// Pointer error in voxels: positions are rounded to thousandths of a point.
const OFF_VOXELS: f64 = 0.2;

fn radius_um(fixture: &Fixture) -> f64 {
    fixture.window.state().corrections().tools().radius_um
}

fn all_zero_but(labels: &[u32], label: u32) -> bool {
    labels.iter().all(|l| *l == 0 || *l == label)
}

/// Asserts that voxels in `within` clearly inside the brush radius around `center` have the label, and those clearly
/// outside do not.
fn assert_round(fixture: &Fixture, labels: &[u32], label: u32, center: [f64; 3], within: impl Fn([usize; 3]) -> bool) {
    let (size, radius) = (voxel_um(fixture), radius_um(fixture));
    let off = OFF_VOXELS * size[1].max(size[2]);
    for place in voxel_positions() {
        let apart = distance_um(size, center, place.map(|v| v as f64));
        let has_label = label_at(labels, place) == label;
        if !within(place) || apart > radius + off {
            assert!(!has_label, "{place:?} is {apart} µm away, of {radius}");
        } else if apart < radius - off {
            assert!(has_label, "{place:?} is {apart} µm away, of {radius}");
        }
    }
}

#[test]
fn a_tool_that_is_chosen_takes_the_pointer_from_the_line_profile() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    fixture.window.state_mut().send(cytoscope_ui::command::Command::ToggleLineProfile);
    fixture.until("the line profile", |w| sees(w, "Choose a tool to close the line profile."));
    fixture.click("Paint");
    fixture.until("no line profile", |w| !sees(w, "Drag a line across a slice."));
    fixture.settle();
    stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    assert_eq!(label_at(&save(&mut fixture), [z, 40, 60]), 1);
}

#[test]
fn eraser_removes_labels_under_the_pointer() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (60.0, 40.0), (60.0, 100.0));
    let before = save(&mut fixture);
    fixture.click("Erase");
    stroke(&mut fixture, (40.0, 70.0), (80.0, 70.0));
    let after = save(&mut fixture);
    assert_eq!((label_at(&before, [z, 60, 70]), label_at(&after, [z, 60, 70])), (1, 0));
    let reach = radius_um(&fixture) / voxel_um(&fixture)[2];
    for place in label_positions(&before, 1) {
        let away = (place[2] as f64 - 70.0).abs();
        if away > reach + OFF_VOXELS {
            assert_eq!(label_at(&after, place), 1, "{place:?} is outside the stroke");
        } else if away < reach - OFF_VOXELS {
            assert_eq!(label_at(&after, place), 0, "{place:?} is inside the stroke");
        }
    }
    assert!(label_positions(&after, 1).iter().all(|p| label_at(&before, *p) == 1), "nothing was added");
}

#[test]
fn fill_relabels_a_region_in_2d_or_3d() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    // A frame of four strokes in each of two slices.
    let frame = |fixture: &mut Fixture| {
        let corners = [(50.0, 50.0), (50.0, 100.0), (100.0, 100.0), (100.0, 50.0), (50.0, 50.0)];
        corners.windows(2).for_each(|c| stroke(fixture, c[0], c[1]));
    };
    frame(&mut fixture);
    go_to_slice(&mut fixture, z + 1);
    frame(&mut fixture);
    let before = session_labels(&fixture);
    press(&mut fixture, Key::N);
    press(&mut fixture, Key::G);
    click_at(&mut fixture, 75.0, 75.0);
    let after = save(&mut fixture);
    let inside = label_positions(&after, 2);
    assert!(inside.contains(&[z + 1, 75, 75]) && inside.contains(&[z + 1, 60, 60]));
    assert!(inside.iter().all(|[pz, y, x]| *pz == z + 1 && (50..=100).contains(y) && (50..=100).contains(x)));
    // Every voxel of background between the strokes, and no other, has changed.
    for place in voxel_positions() {
        let enclosed = place[0] == z + 1 && (56..95).contains(&place[1]) && (56..95).contains(&place[2]);
        if enclosed {
            assert_eq!(label_at(&after, place), 2, "{place:?}");
        } else if label_at(&before, place) != 0 {
            assert_eq!(label_at(&after, place), 1, "{place:?}");
        }
    }
    // The frames of both slices are one 3-D region.
    press(&mut fixture, Key::N);
    fixture.click("Fill region");
    fixture.click("3-D");
    click_at(&mut fixture, 50.0, 75.0);
    let after = save(&mut fixture);
    assert!(label_positions(&after, 1).is_empty());
    assert_eq!(label_positions(&after, 3), label_positions(&before, 1));
}

#[test]
fn picked_label_becomes_the_drawing_label() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (30.0, 40.0), (30.0, 90.0));
    press(&mut fixture, Key::N);
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    assert_eq!(current_label(&fixture), 2);
    press(&mut fixture, Key::I);
    click_at(&mut fixture, 30.0, 60.0);
    assert_eq!(current_label(&fixture), 1);
    // Afterwards the brush is active again.
    stroke(&mut fixture, (130.0, 40.0), (130.0, 90.0));
    let labels = save(&mut fixture);
    let found = [30, 100, 130].map(|y| label_at(&labels, [z, y, 60]));
    assert_eq!(found, [1, 2, 1]);
    // Picking on background keeps the label.
    fixture.click("Pick label");
    click_at(&mut fixture, 10.0, 10.0);
    assert_eq!(current_label(&fixture), 1);
}

#[test]
fn line_splits_a_label_in_two() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (60.0, 40.0), (60.0, 100.0));
    let before = save(&mut fixture);
    press(&mut fixture, Key::K);
    stroke(&mut fixture, (40.0, 60.0), (80.0, 60.0));
    fixture.until("the notification", |w| sees(w, "The other part is label 2"));
    let after = save(&mut fixture);
    assert_eq!(
        (label_at(&after, [z, 60, 45]), label_at(&after, [z, 60, 90])),
        (2, 1),
        "the larger part keeps its number"
    );
    let both: BTreeSet<_> = label_positions(&after, 1).into_iter().chain(label_positions(&after, 2)).collect();
    assert!(both == label_positions(&before, 1).into_iter().collect(), "the parts have the voxels of the label");
    assert!(
        label_positions(&after, 2).iter().all(|p| p[2] <= 61) && label_positions(&after, 1).iter().all(|p| p[2] >= 59)
    );
    // A line that crosses no label is reported and changes nothing.
    stroke(&mut fixture, (120.0, 20.0), (140.0, 20.0));
    fixture.until("the notification", |w| sees(w, "The line crosses no label"));
    assert!(session_labels(&fixture) == after);
}

#[test]
fn seeds_split_a_label_and_can_be_discarded() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    stroke(&mut fixture, (60.0, 40.0), (60.0, 40.0));
    stroke(&mut fixture, (60.0, 46.0), (60.0, 46.0));
    let before = save(&mut fixture);
    fixture.click("Split label");
    click_at(&mut fixture, 60.0, 39.0);
    click_at(&mut fixture, 60.0, 47.0);
    assert!(fixture.sees("2 selected"), "{}", fixture.on_screen());
    press(&mut fixture, Key::Escape);
    assert!(fixture.sees("0 selected"), "{}", fixture.on_screen());
    assert!(session_labels(&fixture) == before);
    click_at(&mut fixture, 60.0, 47.0);
    click_at(&mut fixture, 60.0, 39.0);
    press(&mut fixture, Key::Enter);
    let after = save(&mut fixture);
    assert_eq!(
        (label_at(&after, [z, 60, 47]), label_at(&after, [z, 60, 39])),
        (1, 2),
        "the first seed's part keeps the number"
    );
    let parts = [1, 2].map(|l| label_positions(&after, l));
    assert_eq!(parts[0].len() + parts[1].len(), label_positions(&before, 1).len());
    assert!(parts[0].len().abs_diff(parts[1].len()) < parts[0].len() / 3, "split at the narrowest place");
}

#[test]
fn deleting_a_label_leaves_the_others() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (30.0, 40.0), (30.0, 90.0));
    fixture.click("New label");
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    let before = save(&mut fixture);
    fixture.click("Delete label");
    fixture.settle();
    let after = save(&mut fixture);
    assert!(label_positions(&after, 2).is_empty() && !label_positions(&before, 2).is_empty());
    assert_eq!(label_positions(&after, 1), label_positions(&before, 1));
    // The freed number is reused for the next new label.
    press(&mut fixture, Key::N);
    assert_eq!(current_label(&fixture), 2);
}

#[test]
fn slices_between_drawn_slices_are_interpolated() {
    let mut fixture = correcting_sample();
    go_to_slice(&mut fixture, 8);
    stroke(&mut fixture, (60.0, 60.0), (60.0, 60.0));
    go_to_slice(&mut fixture, 12);
    stroke(&mut fixture, (60.0, 68.0), (60.0, 68.0));
    let before = save(&mut fixture);
    press(&mut fixture, Key::T);
    let after = save(&mut fixture);
    let slices: BTreeSet<usize> = label_positions(&after, 1).into_iter().map(|p| p[0]).collect();
    assert_eq!(slices.into_iter().collect::<Vec<_>>(), [8, 9, 10, 11, 12]);
    for z in [8, 12] {
        let of = |l: &[u32]| label_positions(l, 1).into_iter().filter(|p| p[0] == z).collect::<Vec<_>>();
        assert_eq!(of(&after), of(&before), "drawn slices are unchanged");
    }
    // The center of the middle slice is halfway between.
    let middle: Vec<_> = label_positions(&after, 1).into_iter().filter(|p| p[0] == 10).collect();
    let x = middle.iter().map(|p| p[2] as f64).sum::<f64>() / middle.len() as f64;
    assert!((x - 64.0).abs() < 1.0, "{x}");
}

#[test]
fn grow_and_shrink_use_physical_distance() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (60.0, 60.0), (60.0, 80.0));
    press(&mut fixture, Key::N);
    stroke(&mut fixture, (75.0, 60.0), (75.0, 80.0));
    let before = save(&mut fixture);
    let by_um = fixture.window.state().corrections().tools().margin_um;
    let size = voxel_um(&fixture);
    let own: Vec<[f64; 3]> = label_positions(&before, 2).iter().map(|p| p.map(|v| v as f64)).collect();
    fixture.click("Grow label");
    fixture.settle();
    let expanded = save(&mut fixture);
    let near = |place: [usize; 3]| {
        own.iter().map(|p| distance_um(size, *p, place.map(|v| v as f64))).fold(f64::INFINITY, f64::min)
    };
    let low = [0, 40, 40];
    let high = [SHAPE[0], 100, 100];
    for place in voxel_positions() {
        let boxed = (0..3).all(|a| (low[a]..high[a]).contains(&place[a]));
        let old = label_at(&before, place);
        let expected = if old == 0 && boxed && near(place) <= by_um * 1.0001 { 2 } else { old };
        assert_eq!(label_at(&expanded, place), expected, "{place:?}");
    }
    assert!(expanded != before);
    press(&mut fixture, Key::J);
    let shrunk = save(&mut fixture);
    for place in label_positions(&expanded, 2) {
        let step = |a: usize, by: i64| {
            let mut next = place.map(|v| v as i64);
            next[a] += by;
            let inside = (0..3).all(|a| (0..SHAPE[a] as i64).contains(&next[a]));
            inside.then(|| label_at(&expanded, next.map(|v| v as usize)))
        };
        // The margin is one pixel: only neighbors in the slice are that close.
        assert!((size[1] - by_um).abs() < 1e-9 && size[0] > by_um * 1.01, "{size:?} {by_um}");
        let outside = [(1, -1), (1, 1), (2, -1), (2, 1)].into_iter().any(|(a, by)| step(a, by).is_some_and(|l| l != 2));
        assert_eq!(label_at(&shrunk, place), if outside { 0 } else { 2 }, "{place:?}");
    }
    assert_eq!(label_positions(&shrunk, 1), label_positions(&before, 1));
}

#[test]
fn ball_brush_is_round_in_um_and_disc_brush_stays_in_its_slice() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    click_at(&mut fixture, 40.0, 40.0);
    let labels = save(&mut fixture);
    assert!(all_zero_but(&labels, 1));
    assert_round(&fixture, &labels, 1, [z as f64, 40.0, 40.0], |p| p[0] == z);
    press(&mut fixture, Key::N);
    fixture.click("3-D");
    for _ in 0..4 {
        press(&mut fixture, Key::Period);
    }
    click_at(&mut fixture, 100.0, 90.0);
    let labels = save(&mut fixture);
    assert_round(&fixture, &labels, 2, [z as f64, 100.0, 90.0], |_| true);
    let slices: BTreeSet<usize> = label_positions(&labels, 2).into_iter().map(|p| p[0]).collect();
    assert!(slices.len() > 2, "{slices:?}");
}

#[test]
fn strokes_in_xz_and_yz_stay_in_their_plane() {
    let mut fixture = correcting_sample();
    let [z, y, x] = fixture.window.state().document().unwrap().cursor;
    let (zf, yf, xf) = (z as f64, y as f64, x as f64);
    draw(&mut fixture, Orientation::Xz, [zf, yf, 30.0], [zf, yf, 60.0]);
    let labels = save(&mut fixture);
    assert!((32..=58).all(|x| label_at(&labels, [z, y, x]) == 1), "along the line");
    assert!(label_positions(&labels, 1).iter().all(|p| p[1] == y), "only in the drawn slice");
    assert!(label_positions(&labels, 1).iter().any(|p| p[0] != z), "as thick as the brush");
    press(&mut fixture, Key::N);
    draw(&mut fixture, Orientation::Zy, [zf, 30.0, xf], [zf, 60.0, xf]);
    let labels = save(&mut fixture);
    assert!((32..=58).all(|y| label_at(&labels, [z, y, x]) == 2), "along the line");
    assert!(label_positions(&labels, 2).iter().all(|p| p[2] == x), "only in the drawn slice");
    // Clicking on the same label changes nothing.
    draw(&mut fixture, Orientation::Zy, [zf, 45.0, xf], [zf, 45.0, xf]);
    let view = screen_position(&fixture, Orientation::Zy, [zf, 45.0, xf]);
    fixture.window.hover_at(view);
    fixture.window.step();
    assert_eq!(session_labels(&fixture), labels, "a dab on the same label changes nothing");
}

#[test]
fn correcting_a_prediction_starts_from_its_labels_and_keeps_its_file() {
    let mut fixture = sample_predicted();
    let predicted = fixture.path("sample/cytoscope/nuclei_raw_labels.tif");
    let (bytes, before) = (std::fs::read(&predicted).unwrap(), read_labels(&predicted));
    fixture.click("Correct");
    fixture.click("Correct this stack");
    wait_for_tools(&mut fixture);
    assert!(session_labels(&fixture) == before);
    // The new label is not used by the prediction.
    let max_label = before.iter().copied().max().unwrap();
    assert!(current_label(&fixture) > max_label);
    // An object in the current slice is picked and deleted.
    let z = current_slice(&fixture);
    let inner = |p: &[usize; 3]| {
        let [_, y, x] = *p;
        let own = label_at(&before, *p);
        p[0] == z
            && own > 0
            && (3..157).contains(&y)
            && (3..157).contains(&x)
            && (y - 2..=y + 2).all(|y| (x - 2..=x + 2).all(|x| label_at(&before, [z, y, x]) == own))
    };
    let seen = voxel_positions().find(inner).unwrap();
    let gone = label_at(&before, seen);
    fixture.click("Pick label");
    click_at(&mut fixture, seen[1] as f64, seen[2] as f64);
    assert_eq!(current_label(&fixture), gone);
    press(&mut fixture, Key::Delete);
    let after = save(&mut fixture);
    let expected: Vec<u32> = before.iter().map(|l| if *l == gone { 0 } else { *l }).collect();
    assert!(after == expected);
    assert!(std::fs::read(&predicted).unwrap() == bytes, "the prediction is unchanged");
}

#[test]
fn two_hundred_edits_undo_and_redo_exactly() {
    const STEPS: usize = 210;
    let mut fixture = correcting_sample();
    let mut states = vec![digest(&session_labels(&fixture))];
    for n in 0..STEPS {
        // Overlapping strokes of eleven labels.
        if n.is_multiple_of(20) && n > 0 {
            press(&mut fixture, Key::N);
        }
        let (row, column) = ((n * 37 % 140 + 10) as f64, (n * 53 % 120 + 10) as f64);
        stroke(&mut fixture, (row, column), (row, column + 20.0));
        states.push(digest(&session_labels(&fixture)));
    }
    let last = session_labels(&fixture);
    assert!(states.windows(2).all(|s| s[0] != s[1]), "each stroke changed something");
    for n in (0..STEPS).rev() {
        command(&mut fixture, Key::Z);
        assert_eq!(digest(&session_labels(&fixture)), states[n], "after undoing step {n}");
    }
    assert!(session_labels(&fixture).iter().all(|l| *l == 0));
    // With nothing left to undo, another undo does nothing.
    command(&mut fixture, Key::Z);
    assert_eq!(digest(&session_labels(&fixture)), states[0]);
    for (n, state) in states.iter().enumerate().skip(1) {
        command(&mut fixture, Key::Y);
        assert_eq!(digest(&session_labels(&fixture)), *state, "after redoing step {n}");
    }
    assert!(session_labels(&fixture) == last && save(&mut fixture) == last);
}

#[test]
fn fast_split_line_hits_a_thin_label() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    for _ in 0..12 {
        press(&mut fixture, Key::Comma);
    }
    // A row of voxels that falls between two sampled pointer positions.
    stroke(&mut fixture, (61.0, 40.0), (61.0, 100.0));
    let before = session_labels(&fixture);
    assert!(label_positions(&before, 1).iter().all(|p| p[1].abs_diff(61) <= 1), "the label is thin");
    press(&mut fixture, Key::K);
    stroke(&mut fixture, (24.0, 70.0), (130.0, 70.0));
    let after = save(&mut fixture);
    assert_eq!(
        [45, 90].map(|x| label_at(&after, [z, 61, x])).iter().collect::<BTreeSet<_>>().len(),
        2,
        "the label has two parts"
    );
    assert_eq!(label_positions(&after, 1).len() + label_positions(&after, 2).len(), label_positions(&before, 1).len());
}

#[test]
fn keys_and_clicks_that_change_nothing_say_why() {
    let mut fixture = Fixture::new();
    fixture.window.key_press_modifiers(Modifiers::COMMAND, Key::E);
    fixture.until("the reason", |w| sees(w, "Save table is not available") && sees(w, "Open a stack first."));
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    let drawn = session_labels(&fixture);
    fixture.window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::Z);
    fixture.until("the reason", |w| sees(w, "Redo is not available") && sees(w, "There is no edit to redo."));
    fixture.settle();
    assert!(session_labels(&fixture) == drawn, "nor is anything undone");
    press(&mut fixture, Key::M);
    click_at(&mut fixture, 30.0, 60.0);
    fixture.until("the reason", |w| sees(w, "There is no label here"));
    assert!(fixture.sees("0 selected"), "{}", fixture.on_screen());
}

#[test]
fn merging_an_undone_label_changes_nothing() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    press(&mut fixture, Key::N);
    stroke(&mut fixture, (30.0, 40.0), (30.0, 90.0));
    press(&mut fixture, Key::M);
    click_at(&mut fixture, 30.0, 60.0);
    click_at(&mut fixture, 100.0, 60.0);
    // Undo removes the second label, which was chosen first.
    command(&mut fixture, Key::Z);
    let before = session_labels(&fixture);
    assert!(label_positions(&before, 2).is_empty() && !label_positions(&before, 1).is_empty());
    press(&mut fixture, Key::Enter);
    fixture.until("the notification", |w| sees(w, "The selected labels no longer exist"));
    assert!(session_labels(&fixture) == before, "the other label is unchanged");
}

#[test]
fn escape_cancels_a_stroke_in_progress() {
    let mut fixture = correcting_sample();
    stroke(&mut fixture, (100.0, 40.0), (100.0, 90.0));
    let before = session_labels(&fixture);
    begin_stroke(&mut fixture, (40.0, 40.0), (40.0, 90.0));
    fixture.settle();
    assert!(session_labels(&fixture) != before, "the stroke is visible while it is drawn");
    press(&mut fixture, Key::Escape);
    assert!(session_labels(&fixture) == before);
    // The rest of the gesture draws nothing.
    let on = screen_position(&fixture, Orientation::Xy, [0.0, 80.0, 90.0]);
    fixture.window.hover_at(on);
    fixture.window.step();
    release(&mut fixture, on);
    fixture.settle();
    assert!(save(&mut fixture) == before);
}

#[test]
fn stroke_released_outside_its_view_ends() {
    let mut fixture = correcting_sample();
    let z = current_slice(&fixture);
    let from = screen_position(&fixture, Orientation::Xy, [0.0, 40.0, 40.0]);
    let outside = eframe::egui::pos2(from.x, 2.0);
    drag(&mut fixture, from, outside, 1);
    release(&mut fixture, outside);
    fixture.settle();
    let first = save(&mut fixture);
    assert!((0..=40).all(|y| label_at(&first, [z, y, 40]) == 1), "painted up to the border");
    // Moving over the view afterwards draws nothing.
    let free = screen_position(&fixture, Orientation::Xy, [0.0, 120.0, 120.0]);
    fixture.window.hover_at(free);
    fixture.window.step();
    fixture.settle();
    assert!(session_labels(&fixture) == first);
}

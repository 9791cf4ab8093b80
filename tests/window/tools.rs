//! Every tool and deed of correcting, by its name or key: the labels are what was asked for, voxel by voxel.

use crate::desk::{Desk, sees};
use crate::hand::{
    SHAPE, apart_um, at, begun, command, current, digest, draw, go_to, held, places, press, read, save, slice, stroke,
    tools, touch, voxel_um, voxels,
};
use cytoscope_ui::data::plane::Orientation;
use cytoscope_ui::document::Role;
use eframe::egui::Key;
use std::collections::BTreeSet;

/// How far the pointer may be off, in voxels: it is told in whole thousandths of points.
const OFF_VOXELS: f64 = 0.2;

fn radius_um(desk: &Desk) -> f64 {
    desk.window.state().corrections().tools.radius_um
}

fn all_zero_but(labels: &[u32], label: u32) -> bool {
    labels.iter().all(|l| *l == 0 || *l == label)
}

/// Every voxel well inside `radius_um` of the place in `within` is of the label, every one well outside is not.
fn is_round(desk: &Desk, labels: &[u32], label: u32, center: [f64; 3], within: impl Fn([usize; 3]) -> bool) {
    let (size, radius) = (voxel_um(desk), radius_um(desk));
    let off = OFF_VOXELS * size[1].max(size[2]);
    for place in places() {
        let apart = apart_um(size, center, place.map(|v| v as f64));
        let is = at(labels, place) == label;
        if !within(place) || apart > radius + off {
            assert!(!is, "{place:?} is {apart} µm away, of {radius}");
        } else if apart < radius - off {
            assert!(is, "{place:?} is {apart} µm away, of {radius}");
        }
    }
}

#[test]
fn erasing_takes_away_what_the_pointer_goes_over() {
    let mut desk = begun();
    let z = slice(&desk);
    stroke(&mut desk, (60.0, 40.0), (60.0, 100.0));
    let before = save(&mut desk);
    desk.click("Erase");
    stroke(&mut desk, (40.0, 70.0), (80.0, 70.0));
    let after = save(&mut desk);
    assert_eq!((at(&before, [z, 60, 70]), at(&after, [z, 60, 70])), (1, 0));
    let reach = radius_um(&desk) / voxel_um(&desk)[2];
    for place in voxels(&before, 1) {
        let away = (place[2] as f64 - 70.0).abs();
        if away > reach + OFF_VOXELS {
            assert_eq!(at(&after, place), 1, "{place:?} was not gone over");
        } else if away < reach - OFF_VOXELS {
            assert_eq!(at(&after, place), 0, "{place:?} was gone over");
        }
    }
    assert!(voxels(&after, 1).iter().all(|p| at(&before, *p) == 1), "nothing was added");
}

#[test]
fn filling_gives_a_region_the_current_label_in_its_slice_or_in_all() {
    let mut desk = begun();
    let z = slice(&desk);
    // A frame of four strokes, in two slices.
    let frame = |desk: &mut Desk| {
        let corners = [(50.0, 50.0), (50.0, 100.0), (100.0, 100.0), (100.0, 50.0), (50.0, 50.0)];
        corners.windows(2).for_each(|c| stroke(desk, c[0], c[1]));
    };
    frame(&mut desk);
    go_to(&mut desk, z + 1);
    frame(&mut desk);
    let before = held(&desk);
    press(&mut desk, Key::N);
    press(&mut desk, Key::G);
    touch(&mut desk, 75.0, 75.0);
    let after = save(&mut desk);
    let inside = voxels(&after, 2);
    assert!(inside.contains(&[z + 1, 75, 75]) && inside.contains(&[z + 1, 60, 60]));
    assert!(inside.iter().all(|[pz, y, x]| *pz == z + 1 && (50..=100).contains(y) && (50..=100).contains(x)));
    // Every voxel of background between the strokes, and no other, has changed.
    for place in places() {
        let enclosed = place[0] == z + 1 && (56..95).contains(&place[1]) && (56..95).contains(&place[2]);
        if enclosed {
            assert_eq!(at(&after, place), 2, "{place:?}");
        } else if at(&before, place) != 0 {
            assert_eq!(at(&after, place), 1, "{place:?}");
        }
    }
    // The frames of both slices are one region.
    press(&mut desk, Key::N);
    desk.click("Fill region");
    desk.click("3-D");
    touch(&mut desk, 50.0, 75.0);
    let after = save(&mut desk);
    assert!(voxels(&after, 1).is_empty());
    assert_eq!(voxels(&after, 3), voxels(&before, 1));
}

#[test]
fn a_label_that_is_picked_is_drawn_with() {
    let mut desk = begun();
    let z = slice(&desk);
    stroke(&mut desk, (30.0, 40.0), (30.0, 90.0));
    press(&mut desk, Key::N);
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    assert_eq!(current(&desk), 2);
    press(&mut desk, Key::I);
    touch(&mut desk, 30.0, 60.0);
    assert_eq!(current(&desk), 1);
    // The brush is in hand again.
    stroke(&mut desk, (130.0, 40.0), (130.0, 90.0));
    let labels = save(&mut desk);
    let found = [30, 100, 130].map(|y| at(&labels, [z, y, 60]));
    assert_eq!(found, [1, 2, 1]);
    // Where there is no label, none is picked.
    desk.click("Pick label");
    touch(&mut desk, 10.0, 10.0);
    assert_eq!(current(&desk), 1);
}

#[test]
fn a_line_splits_a_label_in_two() {
    let mut desk = begun();
    let z = slice(&desk);
    stroke(&mut desk, (60.0, 40.0), (60.0, 100.0));
    let before = save(&mut desk);
    press(&mut desk, Key::K);
    stroke(&mut desk, (40.0, 60.0), (80.0, 60.0));
    let after = save(&mut desk);
    assert_eq!((at(&after, [z, 60, 45]), at(&after, [z, 60, 90])), (2, 1), "the larger part keeps its number");
    let both: BTreeSet<_> = voxels(&after, 1).into_iter().chain(voxels(&after, 2)).collect();
    assert!(both == voxels(&before, 1).into_iter().collect(), "no voxel is lost or won");
    assert!(voxels(&after, 2).iter().all(|p| p[2] <= 61) && voxels(&after, 1).iter().all(|p| p[2] >= 59));
    assert!(desk.sees("The other part is label 2"), "{}", desk.on_screen());
    // A line beside every label says so and changes nothing.
    stroke(&mut desk, (120.0, 20.0), (140.0, 20.0));
    assert!(desk.sees("The line crosses no label"), "{}", desk.on_screen());
    assert!(held(&desk) == after);
}

#[test]
fn seeds_split_a_label_and_can_be_dropped() {
    let mut desk = begun();
    let z = slice(&desk);
    stroke(&mut desk, (60.0, 40.0), (60.0, 40.0));
    stroke(&mut desk, (60.0, 46.0), (60.0, 46.0));
    let before = save(&mut desk);
    desk.click("Split label");
    touch(&mut desk, 60.0, 39.0);
    touch(&mut desk, 60.0, 47.0);
    assert!(desk.sees("2 chosen"), "{}", desk.on_screen());
    press(&mut desk, Key::Escape);
    assert!(desk.sees("0 chosen"), "{}", desk.on_screen());
    assert!(held(&desk) == before);
    touch(&mut desk, 60.0, 47.0);
    touch(&mut desk, 60.0, 39.0);
    press(&mut desk, Key::Enter);
    let after = save(&mut desk);
    assert_eq!((at(&after, [z, 60, 47]), at(&after, [z, 60, 39])), (1, 2), "the first seed's part keeps the number");
    let parts = [1, 2].map(|l| voxels(&after, l));
    assert_eq!(parts[0].len() + parts[1].len(), voxels(&before, 1).len());
    assert!(parts[0].len().abs_diff(parts[1].len()) < parts[0].len() / 3, "cut at the neck");
}

#[test]
fn deleting_a_label_leaves_the_others() {
    let mut desk = begun();
    stroke(&mut desk, (30.0, 40.0), (30.0, 90.0));
    desk.click("New label");
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    let before = save(&mut desk);
    desk.click("Delete label");
    desk.settle();
    let after = save(&mut desk);
    assert!(voxels(&after, 2).is_empty() && !voxels(&before, 2).is_empty());
    assert_eq!(voxels(&after, 1), voxels(&before, 1));
    // The number that is free again is the next new one.
    press(&mut desk, Key::N);
    assert_eq!(current(&desk), 2);
}

#[test]
fn slices_between_two_drawn_ones_are_interpolated() {
    let mut desk = begun();
    go_to(&mut desk, 8);
    stroke(&mut desk, (60.0, 60.0), (60.0, 60.0));
    go_to(&mut desk, 12);
    stroke(&mut desk, (60.0, 68.0), (60.0, 68.0));
    let before = save(&mut desk);
    press(&mut desk, Key::T);
    let after = save(&mut desk);
    let slices: BTreeSet<usize> = voxels(&after, 1).into_iter().map(|p| p[0]).collect();
    assert_eq!(slices.into_iter().collect::<Vec<_>>(), [8, 9, 10, 11, 12]);
    for z in [8, 12] {
        let of = |l: &[u32]| voxels(l, 1).into_iter().filter(|p| p[0] == z).collect::<Vec<_>>();
        assert_eq!(of(&after), of(&before), "what was drawn stays");
    }
    // The middle lies between: its centre is halfway.
    let middle: Vec<_> = voxels(&after, 1).into_iter().filter(|p| p[0] == 10).collect();
    let x = middle.iter().map(|p| p[2] as f64).sum::<f64>() / middle.len() as f64;
    assert!((x - 64.0).abs() < 1.0, "{x}");
}

#[test]
fn growing_and_shrinking_go_a_true_distance() {
    let mut desk = begun();
    stroke(&mut desk, (60.0, 60.0), (60.0, 80.0));
    press(&mut desk, Key::N);
    stroke(&mut desk, (75.0, 60.0), (75.0, 80.0));
    let before = save(&mut desk);
    let by_um = desk.window.state().corrections().tools.margin_um;
    let size = voxel_um(&desk);
    let own: Vec<[f64; 3]> = voxels(&before, 2).iter().map(|p| p.map(|v| v as f64)).collect();
    desk.click("Grow label");
    desk.settle();
    let grown = save(&mut desk);
    let near = |place: [usize; 3]| {
        own.iter().map(|p| apart_um(size, *p, place.map(|v| v as f64))).fold(f64::INFINITY, f64::min)
    };
    let low = [0, 40, 40];
    let high = [SHAPE[0], 100, 100];
    for place in places() {
        let boxed = (0..3).all(|a| (low[a]..high[a]).contains(&place[a]));
        let old = at(&before, place);
        let expected = if old == 0 && boxed && near(place) <= by_um * 1.0001 { 2 } else { old };
        assert_eq!(at(&grown, place), expected, "{place:?}");
    }
    assert!(grown != before);
    press(&mut desk, Key::J);
    let shrunk = save(&mut desk);
    for place in voxels(&grown, 2) {
        let step = |a: usize, by: i64| {
            let mut next = place.map(|v| v as i64);
            next[a] += by;
            let inside = (0..3).all(|a| (0..SHAPE[a] as i64).contains(&next[a]));
            inside.then(|| at(&grown, next.map(|v| v as usize)))
        };
        // A margin of a pixel: only neighbours in the slice are that near.
        assert!((size[1] - by_um).abs() < 1e-9 && size[0] > by_um * 1.01, "{size:?} {by_um}");
        let outside = [(1, -1), (1, 1), (2, -1), (2, 1)].into_iter().any(|(a, by)| step(a, by).is_some_and(|l| l != 2));
        assert_eq!(at(&shrunk, place), if outside { 0 } else { 2 }, "{place:?}");
    }
    assert_eq!(voxels(&shrunk, 1), voxels(&before, 1));
}

#[test]
fn a_ball_is_round_in_micrometres_and_a_disc_stays_in_its_slice() {
    let mut desk = begun();
    let z = slice(&desk);
    touch(&mut desk, 40.0, 40.0);
    let labels = save(&mut desk);
    assert!(all_zero_but(&labels, 1));
    is_round(&desk, &labels, 1, [z as f64, 40.0, 40.0], |p| p[0] == z);
    press(&mut desk, Key::N);
    desk.click("3-D");
    for _ in 0..4 {
        press(&mut desk, Key::Period);
    }
    touch(&mut desk, 100.0, 90.0);
    let labels = save(&mut desk);
    is_round(&desk, &labels, 2, [z as f64, 100.0, 90.0], |_| true);
    let slices: BTreeSet<usize> = voxels(&labels, 2).into_iter().map(|p| p[0]).collect();
    assert!(slices.len() > 2, "{slices:?}");
}

#[test]
fn what_is_drawn_on_the_other_cuts_lies_in_them() {
    let mut desk = begun();
    let [z, y, x] = desk.window.state().document().unwrap().cursor;
    let (zf, yf, xf) = (z as f64, y as f64, x as f64);
    draw(&mut desk, Orientation::Xz, [zf, yf, 30.0], [zf, yf, 60.0]);
    let labels = save(&mut desk);
    assert!((32..=58).all(|x| at(&labels, [z, y, x]) == 1), "along the line");
    assert!(voxels(&labels, 1).iter().all(|p| p[1] == y), "in the cut alone");
    assert!(voxels(&labels, 1).iter().any(|p| p[0] != z), "as thick as the brush");
    press(&mut desk, Key::N);
    draw(&mut desk, Orientation::Zy, [zf, 30.0, xf], [zf, 60.0, xf]);
    let labels = save(&mut desk);
    assert!((32..=58).all(|y| at(&labels, [z, y, x]) == 2), "along the line");
    assert!(voxels(&labels, 2).iter().all(|p| p[2] == x), "in the cut alone");
    // Interpolation goes across the cut last drawn in.
    draw(&mut desk, Orientation::Zy, [zf, 45.0, xf], [zf, 45.0, xf]);
    let view = crate::hand::place(&desk, Orientation::Zy, [zf, 45.0, xf]);
    desk.window.hover_at(view);
    desk.window.step();
    assert_eq!(held(&desk), labels, "a dab on the same label changes nothing");
}

#[test]
fn corrections_of_a_prediction_begin_with_its_labels_and_leave_its_file_alone() {
    let mut desk = Desk::new();
    desk.click("Open the sample");
    desk.settle();
    desk.until("the models", |w| sees(w, "made for"));
    desk.click("Predict this stack");
    desk.until("labels", |w| {
        w.state().document().is_some_and(|d| d.of_role(Role::Labels).is_some() && d.results.is_some())
    });
    desk.settle();
    let predicted = desk.path("sample/cytoscope/nuclei_raw_labels.tif");
    let (bytes, before) = (std::fs::read(&predicted).unwrap(), read(&predicted));
    desk.click("Correct");
    desk.click("Correct this stack");
    tools(&mut desk);
    assert!(held(&desk) == before);
    // A new label is one that the prediction has not.
    let most = before.iter().copied().max().unwrap();
    assert!(current(&desk) > most);
    // The first label in the slice on screen is picked and deleted.
    let z = slice(&desk);
    let inner = |p: &[usize; 3]| {
        let [_, y, x] = *p;
        let own = at(&before, *p);
        p[0] == z
            && own > 0
            && (3..157).contains(&y)
            && (3..157).contains(&x)
            && (y - 2..=y + 2).all(|y| (x - 2..=x + 2).all(|x| at(&before, [z, y, x]) == own))
    };
    let seen = places().find(inner).unwrap();
    let gone = at(&before, seen);
    desk.click("Pick label");
    touch(&mut desk, seen[1] as f64, seen[2] as f64);
    assert_eq!(current(&desk), gone);
    press(&mut desk, Key::Delete);
    let after = save(&mut desk);
    let expected: Vec<u32> = before.iter().map(|l| if *l == gone { 0 } else { *l }).collect();
    assert!(after == expected);
    assert!(std::fs::read(&predicted).unwrap() == bytes, "the prediction is as it was");
}

#[test]
fn two_hundred_steps_are_undone_and_redone_to_the_bit() {
    const STEPS: usize = 210;
    let mut desk = begun();
    let mut states = vec![digest(&held(&desk))];
    for n in 0..STEPS {
        // Strokes of eleven labels that lie over each other.
        if n.is_multiple_of(20) && n > 0 {
            press(&mut desk, Key::N);
        }
        let (row, column) = ((n * 37 % 140 + 10) as f64, (n * 53 % 120 + 10) as f64);
        stroke(&mut desk, (row, column), (row, column + 20.0));
        states.push(digest(&held(&desk)));
    }
    let last = held(&desk);
    assert!(states.windows(2).all(|s| s[0] != s[1]), "each stroke changed something");
    for n in (0..STEPS).rev() {
        command(&mut desk, Key::Z);
        assert_eq!(digest(&held(&desk)), states[n], "after undoing step {n}");
    }
    assert!(held(&desk).iter().all(|l| *l == 0));
    // Nothing is left to undo: once more does nothing.
    command(&mut desk, Key::Z);
    assert_eq!(digest(&held(&desk)), states[0]);
    for (n, state) in states.iter().enumerate().skip(1) {
        command(&mut desk, Key::Y);
        assert_eq!(digest(&held(&desk)), *state, "after redoing step {n}");
    }
    assert!(held(&desk) == last && save(&mut desk) == last);
}

#[test]
fn a_line_drawn_fast_finds_a_thin_label() {
    let mut desk = begun();
    let z = slice(&desk);
    for _ in 0..12 {
        press(&mut desk, Key::Comma);
    }
    // One row of voxels, far from where the pointer is told to be.
    stroke(&mut desk, (61.0, 40.0), (61.0, 100.0));
    let before = held(&desk);
    assert!(voxels(&before, 1).iter().all(|p| p[1].abs_diff(61) <= 1), "a thin one");
    press(&mut desk, Key::K);
    stroke(&mut desk, (24.0, 70.0), (130.0, 70.0));
    let after = save(&mut desk);
    assert_eq!([45, 90].map(|x| at(&after, [z, 61, x])).iter().collect::<BTreeSet<_>>().len(), 2, "two parts");
    assert_eq!(voxels(&after, 1).len() + voxels(&after, 2).len(), voxels(&before, 1).len());
}

#[test]
fn labels_chosen_to_merge_and_then_undone_take_nothing_with_them() {
    let mut desk = begun();
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    press(&mut desk, Key::N);
    stroke(&mut desk, (30.0, 40.0), (30.0, 90.0));
    press(&mut desk, Key::M);
    touch(&mut desk, 30.0, 60.0);
    touch(&mut desk, 100.0, 60.0);
    // Chosen first, the second label is gone again.
    command(&mut desk, Key::Z);
    let before = held(&desk);
    assert!(voxels(&before, 2).is_empty() && !voxels(&before, 1).is_empty());
    press(&mut desk, Key::Enter);
    assert!(held(&desk) == before, "the other one is as it was");
    assert!(desk.sees("What was chosen is no longer there"), "{}", desk.on_screen());
}

#[test]
fn escape_takes_back_a_stroke_under_way() {
    let mut desk = begun();
    stroke(&mut desk, (100.0, 40.0), (100.0, 90.0));
    let before = held(&desk);
    let [from, to, on] = [[40.0, 40.0], [40.0, 90.0], [80.0, 90.0]]
        .map(|[row, column]| crate::hand::place(&desk, Orientation::Xy, [0.0, row, column]));
    desk.window.hover_at(from);
    desk.window.step();
    desk.window.drag_at(from);
    desk.window.step();
    desk.window.hover_at(to);
    desk.settle();
    assert!(held(&desk) != before, "it is on screen while it is drawn");
    press(&mut desk, Key::Escape);
    assert!(held(&desk) == before);
    // What is left of the gesture draws nothing.
    desk.window.hover_at(on);
    desk.window.step();
    desk.window.drop_at(on);
    desk.window.step();
    desk.settle();
    assert!(save(&mut desk) == before);
}

#[test]
fn a_stroke_that_ends_outside_its_view_ends_all_the_same() {
    let mut desk = begun();
    let z = slice(&desk);
    let from = crate::hand::place(&desk, Orientation::Xy, [0.0, 40.0, 40.0]);
    let outside = eframe::egui::pos2(from.x, 2.0);
    desk.window.hover_at(from);
    desk.window.step();
    desk.window.drag_at(from);
    desk.window.step();
    desk.window.hover_at(outside);
    desk.window.step();
    desk.window.drop_at(outside);
    desk.window.step();
    desk.settle();
    let first = save(&mut desk);
    assert!((0..=40).all(|y| at(&first, [z, y, 40]) == 1), "up to the border");
    // The next movement over the view draws nothing.
    let free = crate::hand::place(&desk, Orientation::Xy, [0.0, 120.0, 120.0]);
    desk.window.hover_at(free);
    desk.window.step();
    desk.settle();
    assert!(held(&desk) == first);
}

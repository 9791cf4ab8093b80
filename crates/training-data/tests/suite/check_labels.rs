//! Labels that do not belong to their image are found before training starts.

use crate::check::{find_and_check, has, with_bad};
use crate::common::write;
use cytoscope_training_data::{CheckOptions, Report, Severity, check};

#[test]
fn intensities_in_place_of_labels_are_doubted() {
    let shape = [4, 24, 24];
    let values = |of: &dyn Fn(usize) -> usize| -> Vec<u16> { (0..4 * 24 * 24).map(|i| of(i) as u16).collect() };
    let image = values(&|i| 100 + i * 7 % 13);
    let noise = values(&|i| 1 + i * 31 % 97);
    has(&with_bad(image.clone(), shape, noise, shape), Severity::Warning, "may be intensities instead of labels");
    let objects = values(&|i| 1 + i % 24 / 4);
    let problems = with_bad(image, shape, objects, shape);
    assert!(!problems.iter().any(|problem| problem.message.contains("intensities")), "{problems:?}");
}

#[test]
fn a_label_that_fills_most_of_an_image_is_doubted_unless_it_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2 {
        let labels = blobs(number);
        write(&folder.path().join(format!("p{number}_raw.tif")), BLOBS, image_of(&labels, 500, number));
        // Background has the label 65535 in the first stack.
        let label_of = |label: &u16| if number == 0 && *label == 0 { u16::MAX } else { *label };
        let labels: Vec<u16> = labels.iter().map(label_of).collect();
        write(&folder.path().join(format!("p{number}_labels.tif")), BLOBS, labels);
    }
    let (mut dataset, report) = find_and_check(folder.path());
    let doubted = |report: &Report| -> Vec<String> {
        let found = report.problems.iter().filter(|problem| problem.message.contains("much more than any other one"));
        found
            .map(|problem| format!("{}: {}; {}", problem.pair.as_deref().unwrap(), problem.message, problem.next_step))
            .collect()
    };
    let found = doubted(&report);
    assert_eq!(found.len(), 1, "{:#?}", report.problems);
    assert!(found[0].starts_with("p0: ") && found[0].contains("the label 65535 fills "), "{found:?}");
    assert!(found[0].contains("data.ignore_label in the settings to 65535"), "{found:?}");
    dataset.ignore_label = Some(65_535);
    assert_eq!(doubted(&check(&dataset, &CheckOptions::default())), Vec::<String>::new());
}

/// Shape of the stacks of [`blobs`].
const BLOBS: [usize; 3] = [4, 32, 32];

/// Returns labels of eight squares at other places for each number.
fn blobs(number: usize) -> Vec<u16> {
    let mut labels = vec![0; 4 * 32 * 32];
    let mut state = number * 7919 + 17;
    let mut place = || {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        (state >> 8) % 27
    };
    for label in 1..=8 {
        let (y, x) = (place(), place());
        for i in 0..4 * 5 * 5 {
            labels[(i / 25 * 32 + y + i / 5 % 5) * 32 + x + i % 5] = label;
        }
    }
    labels
}

/// Returns an image in which the objects are brighter by `contrast`, with noise that is different for each number.
fn image_of(labels: &[u16], contrast: u16, number: usize) -> Vec<u16> {
    let value = |(i, label): (usize, &u16)| 100 + contrast * (*label).min(1) + (i * (31 + 2 * number) % 17) as u16;
    labels.iter().enumerate().map(value).collect()
}

/// Returns the warnings about labels that do not fit, with the names of their pairs; the labels are those of `targets`.
fn misfits(targets: &[Vec<u16>], contrast: u16) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    for (number, target) in targets.iter().enumerate() {
        let path = |kind: &str| folder.path().join(format!("p{number}_{kind}.tif"));
        write(&path("raw"), BLOBS, image_of(&blobs(number), contrast, number));
        write(&path("labels"), BLOBS, target.clone());
    }
    let (dataset, report) = find_and_check(folder.path());
    assert_eq!(report.usable(&dataset).len(), targets.len(), "{:#?}", report.problems);
    let found = report.problems.into_iter().filter(|problem| problem.message.contains("do not fit its image"));
    found.map(|problem| (problem.pair.unwrap(), problem.message.to_string())).collect()
}

#[test]
fn labels_of_another_image_or_in_another_orientation_are_doubted() {
    let own: Vec<Vec<u16>> = (0..6).map(blobs).collect();
    assert_eq!(misfits(&own, 500), []);
    let mut wrong = own.clone();
    let place = |i: usize| [i / 1024, i / 32 % 32, i % 32];
    let moved = |to: &dyn Fn([usize; 3]) -> usize| (0..4096).map(|i| own[5][to(place(i))]).collect::<Vec<u16>>();
    wrong.swap(1, 2);
    for (turned, words) in [
        (moved(&|[z, y, x]| (z * 32 + 31 - y) * 32 + x), "mirrored along Y ("),
        (moved(&|[z, y, x]| (z * 32 + y) * 32 + 31 - x), "mirrored along X ("),
        (moved(&|[z, y, x]| (z * 32 + x) * 32 + y), "with Y and X exchanged ("),
    ] {
        wrong[5] = turned;
        let found = misfits(&wrong, 500);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["p1", "p2", "p5"], "{found:#?}");
        assert!(found[0].1.contains("but that of p2 (") && found[1].1.contains("but that of p1 ("), "{found:#?}");
        assert!(found[2].1.contains(words), "{found:#?}");
        // Objects that are as bright as the background fit no image.
        assert_eq!(misfits(&wrong, 0), []);
    }
    // Each image with the labels of the next one.
    let mut shifted = own;
    shifted.rotate_left(1);
    assert_eq!(misfits(&shifted, 500).len(), 6);
}

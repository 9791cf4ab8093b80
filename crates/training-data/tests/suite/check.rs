//! Problems of training data are found before training starts.

use crate::common::{tiny, tiny_pair, write, write_with};
use cytoscope_formats::Compression;
use cytoscope_training_data::{
    CheckOptions, Dataset, FindOptions, IgnoreLabel, Pair, Part, Problem, Report, Severity, SourceOptions, Sources,
    SplitOptions, TrainingTask, check, check_with, find_pairs, find_pairs_with, split,
};
use cytoscope_volume::{Samples, VoxelSize};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

fn good_pairs(count: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..count {
        tiny_pair(&folder.path().join(format!("g{i}_raw.tif")), &folder.path().join(format!("g{i}_labels.tif")), i);
    }
    folder
}

pub(crate) fn find_and_check(folder: &Path) -> (Dataset, Report) {
    let dataset = find_pairs(folder, TrainingTask::Segmentation).unwrap();
    let report = check(&dataset, &CheckOptions::default());
    (dataset, report)
}

/// Returns the problems of a pair called `x` beside three good pairs.
pub(crate) fn with_bad(
    image: impl Into<Samples>,
    shape: [usize; 3],
    labels: impl Into<Samples>,
    target: [usize; 3],
) -> Vec<Problem> {
    let folder = good_pairs(3);
    write(&folder.path().join("x_raw.tif"), shape, image);
    write(&folder.path().join("x_labels.tif"), target, labels);
    let (dataset, report) = find_and_check(folder.path());
    let usable = report.usable(&dataset);
    let broken = report.problems.iter().any(|p| p.pair.as_deref() == Some("x") && p.severity == Severity::Error);
    assert_eq!(usable.iter().any(|p| p.name == "x"), !broken);
    assert_eq!(usable.iter().filter(|p| p.name.starts_with('g')).count(), 3, "{:?}", report.problems);
    report.problems.into_iter().filter(|p| p.pair.as_deref() == Some("x")).collect()
}

pub(crate) fn has(problems: &[Problem], severity: Severity, words: &str) {
    let fits = |p: &Problem| p.severity == severity && p.message.contains(words) && !p.next_step.is_empty();
    assert!(problems.iter().any(fits), "no {severity:?} with \"{words}\" among {problems:#?}");
}

#[test]
fn valid_data_have_no_errors_and_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, image, labels) = tiny(0);
    let um = VoxelSize::new_um(2.0, 0.5, 0.5);
    write_with(&folder.path().join("a_raw.ome.tif"), shape, image.clone(), um, Compression::Deflate);
    write_with(&folder.path().join("a_labels.tif"), shape, labels.clone(), um, Compression::None);
    let (_, report) = find_and_check(folder.path());
    assert_eq!(report.problems, []);
    let pair = &report.pairs[0];
    assert!(pair.usable);
    assert_eq!((pair.shape_zyx, pair.objects), (shape, Some(3)));
    assert_eq!(pair.voxel_um, [Some(2.0), Some(0.5), Some(0.5)]);
    let share = labels.iter().filter(|l| **l > 0).count() as f64 / labels.len() as f64;
    assert!((pair.foreground_share.unwrap() - share).abs() < 1e-12);
    // Objects 1 and 2 are two slices of 8 x 3 voxels, object 3 is four of 8 x 4.
    assert_eq!(pair.median_extent_um, Some([4.0, 4.0, 1.5]));
    // In four slices, the diameter is that of a section.
    let area = 24.0 * 0.25;
    let diameter = 2.0 * (area / std::f64::consts::PI).sqrt();
    assert!((pair.median_diameter_um.unwrap() - diameter).abs() < 1e-9);
    let mut sorted = image.clone();
    sorted.sort_unstable();
    let about = pair.intensities.unwrap();
    assert_eq!((about.min, about.max), (f64::from(sorted[0]), f64::from(sorted[319])));
    let at = |p: f64| f64::from(sorted[(p / 100.0 * 319.0).round() as usize]);
    assert_eq!(about.percentiles, [at(1.0), at(50.0), at(99.0)]);
    // The report survives serialization to JSON.
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

#[test]
fn invalid_shapes_and_values_are_problems() {
    let (shape, image, labels) = tiny(9);
    let n = 320;
    has(&with_bad(image.clone(), shape, vec![1u8; 4 * 10 * 8], [4, 10, 8]), Severity::Error, "shape");
    has(&with_bad(image.clone(), shape, vec![0u16; n], shape), Severity::Warning, "no label other than background");
    has(&with_bad(vec![7u16; n], shape, labels.clone(), shape), Severity::Error, "are 7");
    let halves: Vec<f32> = (0..n).map(|i| i as f32 / 2.0).collect();
    has(&with_bad(image.clone(), shape, halves, shape), Severity::Error, "not integers");
    let whole: Vec<f32> = labels.iter().map(|l| f32::from(*l)).collect();
    assert!(with_bad(image.clone(), shape, whole, shape).iter().all(|p| p.severity == Severity::Warning));
    let negative: Vec<i16> = labels.iter().map(|l| if *l == 3 { -1 } else { *l as i16 }).collect();
    has(&with_bad(image.clone(), shape, negative, shape), Severity::Warning, "negative");
    let mut odd: Vec<f32> = image.iter().map(|v| f32::from(*v)).collect();
    odd[5] = f32::NAN;
    has(&with_bad(odd, shape, labels.clone(), shape), Severity::Warning, "1 of its 320 voxels is NaN");
    has(&with_bad(vec![f32::NAN; n], shape, labels.clone(), shape), Severity::Error, "none of its voxels");
    let clipped: Vec<u16> = image.iter().map(|v| (*v).min(255)).collect();
    has(&with_bad(clipped, shape, labels, shape), Severity::Warning, "overexposed");
}

#[test]
fn a_plane_is_one_slice_and_a_copy_of_the_image_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let array = |v: Vec<u16>| cytoscope_volume::Array::new("YX".parse().unwrap(), vec![16, 20], v).unwrap();
    let (_, image, labels) = tiny(0);
    for (name, v) in [("p.tif", image), ("p_masks.tif", labels)] {
        let a = array(v);
        let mut spec = cytoscope_formats::WriteSpec::of(&a, cytoscope_formats::Container::ImageJ);
        spec.voxel_size_um = VoxelSize { z: None, y: Some(0.5), x: Some(0.5) };
        cytoscope_formats::write_array(&folder.path().join(name), &a, &spec).unwrap();
    }
    let (_, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, "single plane");
    assert_eq!(report.pairs[0].shape_zyx, [1, 16, 20]);
    // It has no distance between slices, so its voxels are as high as wide.
    let is_half = |um: &Option<f64>| um.is_some_and(|um| (um - 0.5).abs() < 1e-4);
    assert!(report.pairs[0].voxel_um.iter().all(is_half), "{:?}", report.pairs[0].voxel_um);
    assert!(!report.problems.iter().any(|problem| problem.message.contains("voxel size")), "{:?}", report.problems);
    assert!(report.pairs[0].usable);
    std::fs::copy(folder.path().join("p.tif"), folder.path().join("p_masks.tif")).unwrap();
    has(&find_and_check(folder.path()).1.problems, Severity::Error, "same voxels as its image");
}

#[test]
fn a_copy_of_a_training_image_in_another_sample_type_is_not_validated_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |part: &str, name: &str| folder.path().join(part).join(name);
    for number in 0..2 {
        let name = |kind: &str| format!("t{number}_{kind}.tif");
        tiny_pair(&at("train", &name("raw")), &at("train", &name("labels")), number);
    }
    let (shape, image, labels) = tiny(1);
    let floats: Vec<f32> = image.iter().map(|value| f32::from(*value)).collect();
    write(&at("val", "copy_raw.tif"), shape, floats.clone());
    write(&at("val", "copy_labels.tif"), shape, labels.clone());
    // One voxel with another value, and the same intensities otherwise.
    let mut swapped = floats;
    let other = swapped.iter().position(|value| *value != swapped[0]).unwrap();
    swapped.swap(0, other);
    write(&at("val", "alike_raw.tif"), shape, swapped);
    write(&at("val", "alike_labels.tif"), shape, labels);
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "t1_raw.tif (t1), which is in another part of the data");
    let usable: Vec<String> = report.usable(&dataset).into_iter().map(|pair| pair.name).collect();
    assert_eq!(usable, ["alike", "t0", "t1"]);
    let digests: BTreeSet<_> = report.pairs.iter().map(|pair| pair.image_digest.clone()).collect();
    assert_eq!(digests.len(), 4, "files are recognized by their own content");
}

#[test]
fn masks_are_errors_unless_the_target_is_semantic() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..3 {
        let (shape, image, labels) = tiny(i);
        write(&folder.path().join(format!("m{i}.tif")), shape, image);
        let mask: Vec<u8> = labels.iter().map(|l| if *l > 0 { 255 } else { 0 }).collect();
        write(&folder.path().join(format!("m{i}_masks.tif")), shape, mask);
    }
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "label 255");
    assert!(report.usable(&dataset).is_empty());
    let semantic = check(&dataset, &CheckOptions { semantic: true, ..CheckOptions::default() });
    assert_eq!(semantic.usable(&dataset).len(), 3);
    let ignored = CheckOptions { ignore_label: Some(IgnoreLabel::Greatest), ..CheckOptions::default() };
    has(&check(&dataset, &ignored).problems, Severity::Error, "no label other than background, nor has any other");
}

#[test]
fn data_without_any_object_are_unusable() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, _, labels) = tiny(0);
    for i in 0..3 {
        let (_, image, _) = tiny(i);
        write(&folder.path().join(format!("e{i}.tif")), shape, image);
        write(&folder.path().join(format!("e{i}_masks.tif")), shape, vec![0u16; labels.len()]);
    }
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "no label other than background, nor has any other target");
    assert!(report.usable(&dataset).is_empty());
    let semantic = check(&dataset, &CheckOptions { semantic: true, ..CheckOptions::default() });
    assert!(semantic.usable(&dataset).is_empty());
    // Images without objects are useful beside others.
    std::fs::remove_file(folder.path().join("e0_masks.tif")).unwrap();
    write(&folder.path().join("e0_masks.tif"), shape, labels);
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, "no label other than background");
    assert_eq!(report.usable(&dataset).len(), 3);
}

#[test]
fn one_object_in_each_image_is_not_a_mask() {
    let folder = tempfile::tempdir().unwrap();
    let add = |number: usize, is_in: fn(u16) -> bool| {
        let (shape, image, labels) = tiny(number);
        write(&folder.path().join(format!("m{number}.tif")), shape, image);
        let labels: Vec<u8> = labels.iter().map(|l| u8::from(is_in(*l))).collect();
        write(&folder.path().join(format!("m{number}_masks.tif")), shape, labels);
    };
    (0..3).for_each(|number| add(number, |label| label == 3));
    let (dataset, report) = find_and_check(folder.path());
    assert_eq!(report.usable(&dataset).len(), 3, "{:?}", report.problems);
    // If another file shows that they are masks, they are all refused.
    add(3, |label| label > 0);
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "label 1");
    assert!(report.usable(&dataset).is_empty());
}

#[test]
fn missing_or_different_voxel_sizes_are_warnings() {
    let folder = good_pairs(2);
    let (_, report) = find_and_check(folder.path());
    let missing: Vec<_> = report.problems.iter().filter(|p| p.message.contains("states a voxel size")).collect();
    assert_eq!(missing.len(), 1, "one warning for all files: {missing:?}");
    let (shape, image, labels) = tiny(7);
    let at = |n: &str| folder.path().join(n);
    write_with(&at("x_raw.tif"), shape, image, VoxelSize::new_um(2.0, 0.5, 0.5), Compression::None);
    write_with(&at("x_labels.tif"), shape, labels, VoxelSize::new_um(2.0, 0.4, 0.4), Compression::None);
    let (shape, image, labels) = tiny(8);
    write_with(&at("y_raw.tif"), shape, image, VoxelSize::new_um(4.0 / 3.0, 0.5, 0.5), Compression::None);
    write_with(&at("y_labels.tif"), shape, labels, VoxelSize::new_um(4.0 / 3.0, 0.5, 0.5), Compression::None);
    let (_, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, "0.4");
    has(&report.problems, Severity::Warning, "range from 1.33 to 2 µm along Z");
    let others = report.problems.iter().filter(|p| p.message.contains("but other files do")).count();
    assert_eq!(others, 2);
    let of_target = "so that of its target is used";
    assert!(!report.problems.iter().any(|p| p.message.contains(of_target)));
    write(&at("y_raw.tif"), shape, tiny(8).1);
    let (_, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, of_target);
}

#[test]
fn implausible_voxel_sizes_are_errors() {
    let folder = good_pairs(2);
    let (shape, image, labels) = tiny(7);
    let metres = VoxelSize::new_um(2e-6, 6.5e-7, 6.5e-7);
    write_with(&folder.path().join("x_raw.ome.tif"), shape, image, metres, Compression::None);
    write(&folder.path().join("x_labels.tif"), shape, labels);
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "in meters");
    assert!(report.usable(&dataset).iter().all(|p| p.name != "x"));
    let error = Sources::open(&dataset.pairs, &SourceOptions::default()).unwrap_err().to_string();
    assert!(error.contains("x_raw") && error.contains("in meters"), "{error}");
    // The voxel size in the settings overrides that of the file.
    let given: Vec<_> = dataset.pairs.into_iter().map(|p| Pair { voxel_um: Some([2.0, 0.65, 0.65]), ..p }).collect();
    Sources::open(&given, &SourceOptions::default()).unwrap();
}

#[test]
fn copies_in_one_or_several_parts_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    for (part, name, number) in
        [("train", "a", 1), ("train", "b", 1), ("train", "c", 2), ("val", "d", 2), ("val", "e", 3)]
    {
        let at = |s: &str| folder.path().join(part).join(format!("{name}{s}.tif"));
        tiny_pair(&at("_raw"), &at("_labels"), number);
    }
    let (dataset, report) = find_and_check(folder.path());
    let error = |name: &str| {
        report.problems.iter().find(|p| p.pair.as_deref() == Some(name) && p.severity == Severity::Error).cloned()
    };
    assert!(error("b").unwrap().message.contains("a_raw.tif"));
    assert!(error("d").unwrap().message.contains("another part"));
    let usable: Vec<String> = report.usable(&dataset).into_iter().map(|p| p.name).collect();
    assert_eq!(usable, ["a", "c", "e"]);
}

/// Writes images with several targets each; the first character of a name identifies the image.
fn images_with_targets(folder: &Path, copies: &[usize]) {
    for (number, copies) in copies.iter().enumerate() {
        for copy in 0..*copies {
            let (shape, image, labels) = tiny(number);
            let renumbered: Vec<u16> = labels.iter().map(|l| if *l > 0 { l + 10 * copy as u16 } else { 0 }).collect();
            // Names that are not related otherwise.
            let name = format!("{number}{}", ["x", "_t1", "-b", "q_t7", "z"][copy]);
            write(&folder.join(format!("{name}_raw.tif")), shape, image);
            write(&folder.join(format!("{name}_labels.tif")), shape, renumbered);
        }
    }
}

#[test]
fn a_copy_without_a_part_belongs_to_the_training_set() {
    let folder = tempfile::tempdir().unwrap();
    images_with_targets(folder.path(), &[2, 1]);
    let mut dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let problem_of_the_copy = |dataset: &Dataset| {
        let report = check(dataset, &CheckOptions::default());
        report.problems.into_iter().find(|problem| problem.message.contains("the same voxels")).unwrap()
    };
    dataset.pairs[0].part = Some(Part::Train);
    let problem = problem_of_the_copy(&dataset);
    assert_eq!(problem.severity, Severity::Warning, "{problem:?}");
    dataset.pairs[0].part = Some(Part::Validation);
    let problem = problem_of_the_copy(&dataset);
    assert!(problem.severity == Severity::Error && problem.message.contains("another part"), "{problem:?}");
}

#[test]
fn an_image_with_several_targets_is_never_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    images_with_targets(folder.path(), &[5, 1, 3, 1, 2, 1, 4]);
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, "with another target");
    let usable = report.usable(&dataset);
    assert_eq!(usable.len(), 17);
    let together = report.copies();
    let sizes: Vec<usize> = together.iter().map(Vec::len).collect();
    assert_eq!(sizes, [5, 3, 2, 4]);
    let leaks = |seed: u64, fraction: f64, together: &[Vec<String>]| {
        let options = SplitOptions { seed, fraction, together: together.to_vec(), ..SplitOptions::default() };
        let got = split(&usable, &options).unwrap();
        assert_eq!(got.train.len() + got.validation.len(), 17);
        assert!(!got.train.is_empty() && !got.validation.is_empty());
        let images = |pairs: &[cytoscope_training_data::Pair]| -> BTreeSet<char> {
            pairs.iter().filter_map(|p| p.name.chars().next()).collect()
        };
        !images(&got.train).is_disjoint(&images(&got.validation))
    };
    for seed in 0..300 {
        for fraction in [0.0, 0.2, 0.5, 0.9] {
            assert!(!leaks(seed, fraction, &together), "seed {seed}, share {fraction}");
        }
    }
    assert!((0..20).any(|seed| leaks(seed, 0.2, &[])), "names alone do not prevent it");
    // The remaining copies stay together if the pair they refer to is not usable.
    std::fs::write(folder.path().join("0-b_labels.tif"), b"nothing").unwrap();
    let (_, report) = find_and_check(folder.path());
    assert_eq!(report.copies()[0].len(), 4);
}

#[test]
fn targets_of_the_only_image_are_split_at_the_same_place() {
    let folder = tempfile::tempdir().unwrap();
    images_with_targets(folder.path(), &[3]);
    let (dataset, report) = find_and_check(folder.path());
    let options = SplitOptions { together: report.copies(), ..SplitOptions::default() };
    let got = split(&report.usable(&dataset), &options).unwrap();
    assert!(got.how.contains("one image"), "{}", got.how);
    let columns = |pairs: &[cytoscope_training_data::Pair]| -> Vec<[usize; 2]> {
        let of = |p: &cytoscope_training_data::Pair| p.window.map(|w| [w.start_zyx[2], w.size_zyx[2]]);
        pairs.iter().filter_map(of).collect()
    };
    assert_eq!((columns(&got.train), columns(&got.validation)), (vec![[0, 8]; 3], vec![[8, 2]; 3]));
    // With additional images, the ends are still in the validation set.
    images_with_targets(folder.path(), &[3, 1, 1]);
    let (dataset, report) = find_and_check(folder.path());
    let options = SplitOptions { together: report.copies(), keep: got.validation_names(), ..SplitOptions::default() };
    let more = split(&report.usable(&dataset), &options).unwrap();
    assert_eq!((more.train.len(), &more.validation), (5, &got.validation));
    assert_eq!(columns(&more.train), [[0, 8]; 3]);
}

#[test]
fn a_single_partly_labeled_stack_has_objects_on_both_sides() {
    // Objects in the only known slice, three of them in the left half of the stack.
    let folder = tempfile::tempdir().unwrap();
    let shape = [6, 20, 60];
    let labels_of = |width: usize| -> Vec<u16> {
        let label = |y: usize, x: usize| u16::from((5..12).contains(&y) && x < width && (2..7).contains(&(x % 10)));
        (0..7200)
            .map(|i| match (i / 1200, label(i / 60 % 20, i % 60)) {
                (2, 1) => (1 + i % 60 / 10) as u16,
                (2, _) => 0,
                _ => u16::MAX,
            })
            .collect()
    };
    let image: Vec<u16> = (0..7200).map(|i| 100 + (i * 31 % 17) as u16).collect();
    write(&folder.path().join("a_raw.tif"), shape, image);
    let split_with = |labels: Vec<u16>, keep: Vec<String>| {
        write(&folder.path().join("a_labels.tif"), shape, labels);
        let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
        let options = CheckOptions { ignore_label: Some(IgnoreLabel::Value(65_535)), ..CheckOptions::default() };
        let report = check(&dataset, &options);
        let (objects, cuts) = (report.objects(), report.cuts());
        split(&report.usable(&dataset), &SplitOptions { objects, cuts, keep, ..SplitOptions::default() })
    };
    let got = split_with(labels_of(30), Vec::new()).unwrap();
    let columns = |pair: &Pair| pair.window.map(|w| [w.start_zyx[2], w.size_zyx[2]]);
    assert_eq!([columns(&got.train[0]), columns(&got.validation[0])], [Some([0, 19]), Some([19, 41])]);
    assert!(got.how.contains("X axis, from voxel 19 on, with 1 of 3 objects"), "{}", got.how);
    // The earlier place is kept, even if the labels of other objects were added.
    for width in [30, 60] {
        let again = split_with(labels_of(width), got.validation_names()).unwrap();
        assert_eq!((&again.train, &again.validation), (&got.train, &got.validation));
    }
    let quarter = split_with(labels_of(60), Vec::new()).unwrap();
    assert_eq!(columns(&quarter.validation[0]), Some([45, 15]));
    assert_eq!(quarter.validation_names(), [format!("{} (its end)", quarter.validation[0].name)]);
    let again = split_with(labels_of(30), quarter.validation_names()).unwrap();
    assert_eq!((&again.train, &again.validation), (&quarter.train, &quarter.validation));
    let error = split_with(labels_of(0), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("see the problems of the data"), "{error}");
}

#[test]
fn a_single_stack_without_labels_on_both_sides_of_any_cut_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [8, 32, 32];
    let image: Vec<u16> = (0..8192).map(|i| 100 + (i * 31 % 17) as u16).collect();
    write(&folder.path().join("a_raw.tif"), shape, image);
    // Objects of one voxel each, at these places Z, Y, X.
    let split_with = |objects: &[[usize; 3]]| {
        let mut labels = vec![0u16; 8192];
        for (number, [z, y, x]) in objects.iter().enumerate() {
            labels[(z * 32 + y) * 32 + x] = number as u16 + 1;
        }
        write(&folder.path().join("a_labels.tif"), shape, labels);
        let (dataset, report) = find_and_check(folder.path());
        let (objects, cuts) = (report.objects(), report.cuts());
        split(&dataset.pairs, &SplitOptions { objects, cuts, ..SplitOptions::default() })
    };
    let cases: [(&[[usize; 3]], &str); 3] = [
        (&[], "its labels contain no objects"),
        (&[[3, 20, 20]], "its labels cannot be divided into a part for training and one for validation"),
        (&[[3, 20, 20], [5, 20, 20]], "its labels cannot be divided into a part for training and one for validation"),
    ];
    for (objects, problem) in cases {
        let error = split_with(objects).unwrap_err().to_string();
        let next_step = "; label at least two objects that are apart along Y or X, or add a second image";
        assert!(error.contains("a_labels.tif: there is no other image for validation"), "{error}");
        assert!(error.contains(problem) && error.ends_with(next_step), "{error}");
    }
    // With the advice followed, one object is on each side.
    let got = split_with(&[[3, 20, 20], [3, 20, 23]]).unwrap();
    assert!(got.how.contains("with 1 of 2 objects"), "{}", got.how);
}

#[test]
fn ambiguous_channels_and_time_points_name_the_setting() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, image, labels) = tiny(0);
    let join = |axes: &str, name: &str, parts: [Vec<u16>; 2]| {
        let shape = [&[2], &shape[..]].concat();
        let array = cytoscope_volume::Array::new(axes.parse().unwrap(), shape, parts.concat()).unwrap();
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
        cytoscope_formats::write_array(&folder.path().join(name), &array, &spec).unwrap();
    };
    join("CZYX", "c_raw.ome.tif", [labels.clone(), image.clone()]);
    join("CZYX", "c_labels.ome.tif", [image.clone(), labels.clone()]);
    let next_steps = |options: &FindOptions| {
        let dataset = find_pairs_with(folder.path(), TrainingTask::Segmentation, options).unwrap();
        let report = check(&dataset, &CheckOptions::default());
        let steps: Vec<String> = report.of(Severity::Error).map(|p| p.next_step.to_string()).collect();
        (report.pairs.iter().all(|p| p.usable), steps.join("; "))
    };
    let (_, steps) = next_steps(&FindOptions::default());
    assert!(steps.contains("set data.image_channel in the settings to one of 0 to 1"), "{steps}");
    assert!(steps.contains("set data.labels_channel in the settings to the name or number"), "{steps}");
    let (_, steps) = next_steps(&FindOptions { image_channel: Some(2), ..FindOptions::default() });
    assert!(steps.contains("set data.image_channel in the settings to one of 0 to 1"), "{steps}");
    let (_, steps) =
        next_steps(&FindOptions { image_channel: Some(1), target_channel: Some(2), ..FindOptions::default() });
    assert!(steps.contains("set data.target_channel in the settings to one of 0 to 1"), "{steps}");
    let both = FindOptions { image_channel: Some(1), target_channel: Some(1), ..FindOptions::default() };
    assert_eq!(next_steps(&both), (true, String::new()));
    let (_, steps) = next_steps(&FindOptions { time: Some(3), ..both });
    assert!(steps.contains("remove data.time from"), "{steps}");
    let swapped =
        FindOptions { same_file: true, image_channel: Some(1), target_channel: Some(0), ..FindOptions::default() };
    std::fs::remove_file(folder.path().join("c_labels.ome.tif")).unwrap();
    assert_eq!(next_steps(&swapped), (true, String::new()));
}

#[test]
fn few_objects_are_a_warning_and_unreadable_files_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [4, 16, 16];
    for i in 0..4u16 {
        let image: Vec<u16> = (0..1024).map(|v| v + i).collect();
        let labels: Vec<u16> = (0..1024).map(|v| if i == 3 { 1 + v / 600 } else { 1 + v / 16 }).collect();
        write(&folder.path().join(format!("f{i}.tif")), shape, image);
        write(&folder.path().join(format!("f{i}_masks.tif")), shape, labels);
    }
    std::fs::write(folder.path().join("broken.tif"), b"II*\0not really").unwrap();
    write(&folder.path().join("broken_masks.tif"), shape, vec![1u16; 1024]);
    let (_, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Warning, "has 2 objects, but the other pairs have about 64");
    let broken: Vec<_> = report.problems.iter().filter(|p| p.pair.as_deref() == Some("broken")).cloned().collect();
    assert_eq!(broken.len(), 1);
    assert_eq!(broken[0].severity, Severity::Error);
    assert!(broken[0].file.ends_with("broken.tif"));
}

#[test]
fn several_time_points_require_a_choice() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, image, labels) = tiny(0);
    for (name, v) in [("t.tif", image), ("t_masks.tif", labels)] {
        let array =
            cytoscope_volume::Array::new("TZYX".parse().unwrap(), [&[2], &shape[..]].concat(), [v.clone(), v].concat())
                .unwrap();
        let spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::ImageJ);
        cytoscope_formats::write_array(&folder.path().join(name), &array, &spec).unwrap();
    }
    let (mut dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "2 time points");
    assert!(report.problems.iter().any(|p| p.next_step.contains("set data.time in the settings to one of 0 to 1")));
    dataset.pairs[0].image.time = Some(1);
    dataset.pairs[0].target.time = Some(1);
    assert!(check(&dataset, &CheckOptions::default()).pairs[0].usable);
}

#[test]
fn statements_of_a_file_that_are_not_applied_are_warnings() {
    let folder = good_pairs(3);
    let replace = |name: &str, text: &[u8], by: &[u8]| {
        let path = folder.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(text.len()).position(|found| found == text).unwrap();
        bytes[at..at + text.len()].copy_from_slice(by);
        std::fs::write(&path, bytes).unwrap();
    };
    // ImageJ shows the values of a function of the stored ones.
    replace("g1_raw.tif", b"mode=grayscale", b"cf=1\nc0=1.0\n##");
    replace("g2_labels.tif", b"slices=4", b"slices=9");
    let (dataset, report) = find_and_check(folder.path());
    for (pair, file, words) in
        [("g1", "g1_raw.tif", "the stored values are used"), ("g2", "g2_labels.tif", "they are read as slices")]
    {
        let found: Vec<&Problem> = report.problems.iter().filter(|p| p.message.contains(words)).collect();
        assert_eq!(found.len(), 1, "{words}: {:?}", report.problems);
        assert_eq!((found[0].pair.as_deref(), found[0].severity), (Some(pair), Severity::Warning));
        assert!(found[0].file.ends_with(file) && !found[0].next_step.is_empty(), "{:?}", found[0]);
    }
    assert_eq!(report.usable(&dataset).len(), 3);
}

#[test]
fn a_check_can_be_stopped() {
    let folder = good_pairs(6);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let report = check_with(&dataset, &CheckOptions::default(), &|_, total| {
        assert_eq!(total, 6);
        ControlFlow::Break(())
    });
    assert!(report.stopped && report.pairs.len() == 6 && report.usable(&dataset).len() < 6);
}

#[test]
fn too_many_labels_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [2, 1024, 600];
    let n = 2 * 1024 * 600u32;
    assert!(u64::from(n) > cytoscope_training_data::limits::MAX_OBJECTS);
    write(&folder.path().join("a.tif"), shape, (0..n).map(|v| (v % 251) as u8).collect::<Vec<_>>());
    write(&folder.path().join("a_masks.npy"), shape, (0..n).collect::<Vec<_>>());
    let (dataset, report) = find_and_check(folder.path());
    has(&report.problems, Severity::Error, "MAX_OBJECTS");
    assert!(report.usable(&dataset).is_empty());
    // Statistics of a stack of many slabs are those of the whole.
    let sum: f64 = (0..n).map(|v| f64::from(v % 251)).sum();
    assert!((report.pairs[0].intensities.unwrap().mean - sum / f64::from(n)).abs() < 1e-9);
}

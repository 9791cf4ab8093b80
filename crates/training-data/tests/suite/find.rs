//! Usual layouts of training data are found, and files without a counterpart are reported.

use crate::common::{names, tiny, tiny_pair, write};
use cytoscope_formats::SeriesChoice;
use cytoscope_training_data::{
    Convention, FindOptions, Part, Problem, Severity, SpacingOrder, TrainingTask, check, find_pairs, find_pairs_with,
};
use proptest::prelude::*;
use std::fs;

fn one(name: &str, image: &str, target: &str) -> Vec<(String, String, String)> {
    vec![(name.to_owned(), image.to_owned(), target.to_owned())]
}

/// Each pair of files in one folder is found as a pair of that name and passes the check.
#[test]
fn pairs_are_found_by_suffixes_and_prefixes() {
    for (name, image, target) in [
        ("x", "x.tif", "x_masks.tif"),
        ("x", "x_img.tif", "x_masks.tif"),
        ("x", "x.ome.tif", "x_cp_masks.tif"),
        ("2017-12-04_1a", "2017-12-04_1a_raw.tif", "2017-12-04_1a_labels_clean.tif"),
        ("Emb01_t251", "Emb01_t251_raw.tif", "Emb01_t251_labels.tif"),
        ("a b", "a b_img.tiff", "a b_label.tif"),
        ("3d", "img3d.tif", "mask3d.tif"),
        ("X", "X_RAW.TIF", "x_Labels.tif"),
        ("n", "n.npy", "n_masks.npy"),
        // The same text, composed and decomposed.
        ("\u{e9}mb", "\u{e9}mb_img.tif", "e\u{301}mb_masks.tif"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        tiny_pair(&folder.path().join(image), &folder.path().join(target), 1);
        let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
        let expected = if image == "img3d.tif" { one("img3d", image, target) } else { one(name, image, target) };
        assert_eq!(names(&dataset), expected);
        assert_eq!(dataset.problems, []);
        assert_eq!(dataset.conventions, [Convention::Suffixes]);
        let report = check(&dataset, &Default::default());
        assert_eq!(report.of(Severity::Error).count(), 0, "{:?}", report.problems);
    }
}

#[test]
fn options_of_another_layout_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    tiny_pair(&folder.path().join("a.tif"), &folder.path().join("a_masks.tif"), 1);
    let refusal = |options: &FindOptions| {
        find_pairs_with(folder.path(), TrainingTask::Segmentation, options).unwrap_err().to_string()
    };
    let at = folder.path().join("t.csv");
    fs::write(&at, "raw,seg\na.tif,a_masks.tif\n").unwrap();
    let same_file = FindOptions { same_file: true, ..FindOptions::default() };
    let same_file = find_pairs_with(&at, TrainingTask::Segmentation, &same_file).unwrap_err().to_string();
    assert!(same_file.contains("in separate files") && same_file.contains("remove data.same_file"), "{same_file}");
    fs::remove_file(at).unwrap();
    let column = refusal(&FindOptions { split_column: Some("fold".into()), ..FindOptions::default() });
    assert!(column.contains("there is no table") && column.contains("remove data.split_column"), "{column}");
    let spacing = refusal(&FindOptions { spacing_order: Some(SpacingOrder::Xyz), ..FindOptions::default() });
    assert!(spacing.contains("nnU-Net's layout") && spacing.contains("remove data.spacing_order"), "{spacing}");
}

#[test]
fn the_preferred_target_is_used_and_the_other_reported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    tiny_pair(&at("a_raw.tif"), &at("a_labels.tif"), 1);
    write(&at("a_labels_clean.tif"), tiny(1).0, tiny(1).2);
    write(&at("b.tif"), tiny(2).0, tiny(2).1);
    write(&at("c_masks.tif"), tiny(3).0, tiny(3).2);
    fs::write(at("notes.txt"), "hello").unwrap();
    fs::write(at("d.oir"), "hello").unwrap();
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("a", "a_raw.tif", "a_labels_clean.tif"));
    let about: Vec<String> =
        dataset.problems.iter().map(|p| p.file.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(about, ["a_labels.tif", "b.tif", "c_masks.tif", "d.oir"]);
    assert!(dataset.problems.iter().all(|p| !p.next_step.is_empty() && p.severity == Severity::Warning));
}

#[test]
fn a_segmentation_of_cellpose_is_used_where_masks_were_not_exported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    write(&at("x.tif"), tiny(1).0, tiny(1).1);
    write(&at("x_seg.npy"), tiny(1).0, tiny(1).2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("x", "x.tif", "x_seg.npy"));
    assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    write(&at("x_cp_masks.tif"), tiny(1).0, tiny(1).2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("x", "x.tif", "x_cp_masks.tif"));
    assert_eq!(dataset.problems, []);
}

#[test]
fn a_pickled_cellpose_file_says_what_to_export() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("x.tif"), tiny(1).0, tiny(1).1);
    let mut pickle = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (), }".to_vec();
    pickle.resize(128, b' ');
    fs::write(folder.path().join("x_seg.npy"), &pickle).unwrap();
    let error = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("x_seg.npy") && error.contains("export masks as TIFF"), "{error}");
    // With exported masks it is ignored.
    write(&folder.path().join("x_masks.tif"), tiny(1).0, tiny(1).2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("x", "x.tif", "x_masks.tif"));
    assert_eq!(dataset.problems, []);
}

#[test]
fn folders_of_images_and_targets_are_paired() {
    for (images, targets) in
        [("images", "masks"), ("raw", "gt"), ("raw", "labels"), ("input", "target"), ("Images", "Labels")]
    {
        let folder = tempfile::tempdir().unwrap();
        let at = |f: &str, n: &str| folder.path().join(f).join(n);
        tiny_pair(&at(images, "a.tif"), &at(targets, "a.tif"), 1);
        tiny_pair(&at(images, "b_raw.tif"), &at(targets, "b_labels.tif"), 2);
        write(&at(images, "c.tif"), tiny(3).0, tiny(3).1);
        write(&at(targets, "d.tif"), tiny(3).0, tiny(3).2);
        let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
        let mut expected = one("a", "a.tif", "a.tif");
        expected.extend(one("b", "b_raw.tif", "b_labels.tif"));
        assert_eq!(names(&dataset), expected, "{images}");
        assert_eq!(dataset.problems.len(), 2);
        assert_eq!(dataset.conventions, [Convention::TwoFolders]);
    }
}

/// File systems of other systems have no names that differ only in case.
#[cfg(target_os = "linux")]
#[test]
fn images_whose_names_differ_only_in_case_keep_their_own_targets() {
    let folder = tempfile::tempdir().unwrap();
    let at = |f: &str, n: &str| folder.path().join(f).join(n);
    for (number, name) in ["A1.tif", "a1.tif"].into_iter().enumerate() {
        tiny_pair(&at("images", name), &at("masks", name), number);
    }
    // Without a target in the same case, another one is used.
    tiny_pair(&at("images", "B.tif"), &at("masks", "b.tif"), 2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let expected = [one("A1", "A1.tif", "A1.tif"), one("B", "B.tif", "b.tif"), one("a1", "a1.tif", "a1.tif")].concat();
    assert_eq!((names(&dataset), dataset.problems), (expected, Vec::new()));
}

/// As above, in one folder.
#[cfg(target_os = "linux")]
#[test]
fn targets_belong_to_the_image_in_the_same_case() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(&at("A.tif"), tiny(1).0, tiny(1).1);
    tiny_pair(&at("a.tif"), &at("a_masks.tif"), 2);
    tiny_pair(&at("B.tif"), &at("B_masks.tif"), 3);
    tiny_pair(&at("b_raw.tif"), &at("b_masks.tif"), 4);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let expected =
        [one("B", "B.tif", "B_masks.tif"), one("a", "a.tif", "a_masks.tif"), one("b", "b_raw.tif", "b_masks.tif")];
    assert_eq!(names(&dataset), expected.concat());
    let files: Vec<_> = dataset.problems.iter().map(|problem| problem.file.clone()).collect();
    assert_eq!(files, [at("A.tif")], "{:?}", dataset.problems);
}

#[test]
fn a_second_folder_of_targets_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |f: &str| folder.path().join(f).join("a.tif");
    tiny_pair(&at("images"), &at("masks"), 1);
    tiny_pair(&at("other"), &at("Labels"), 2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(dataset.pairs.iter().map(|pair| &pair.target.path).collect::<Vec<_>>(), [&at("masks")]);
    let files: Vec<_> = dataset.problems.iter().map(|problem| problem.file.clone()).collect();
    assert_eq!(files, [folder.path().join("Labels")], "{:?}", dataset.problems);
    assert!(dataset.problems[0].message.contains("are those in masks"), "{:?}", dataset.problems);
}

#[test]
fn folder_names_define_the_parts() {
    let folder = tempfile::tempdir().unwrap();
    for (part, name) in [("train", "a"), ("train", "b"), ("val", "c"), ("test", "a"), ("Held-Out", "d")] {
        let at = |f: &str| folder.path().join(part).join(f).join(format!("{name}.tif"));
        tiny_pair(&at("images"), &at("masks"), 1);
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let parts: Vec<_> = dataset.pairs.iter().map(|p| (p.name.as_str(), p.part.unwrap())).collect();
    let expected = [
        ("b", Part::Train),
        ("c", Part::Validation),
        ("d", Part::Test),
        ("test/images/a", Part::Test),
        ("train/images/a", Part::Train),
    ];
    assert_eq!(parts, expected);
}

#[test]
fn nnunet_datasets_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join("Dataset007_Cells").join(n);
    for (case, number) in [("c1", 1), ("c2", 2)] {
        tiny_pair(&at(&format!("imagesTr/{case}_0000.tif")), &at(&format!("labelsTr/{case}.tif")), number);
        write(&at(&format!("imagesTr/{case}_0001.tif")), tiny(number).0, tiny(number).1);
        fs::write(at(&format!("imagesTr/{case}.json")), r#"{"spacing": [1.5, 0.25, 0.2]}"#).unwrap();
    }
    write(&at("imagesTr/c3_0000.tif"), tiny(3).0, tiny(3).1);
    let about = r#"{"channel_names": {"0": "DAPI", "1": "GFP"}, "labels": {"background": 0, "cell": 1, "ignore": 4},
                    "numTraining": 2, "file_ending": ".tif"}"#;
    fs::write(at("dataset.json"), about).unwrap();
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let mut expected = one("c1", "c1_0000.tif", "c1.tif");
    expected.extend(one("c2", "c2_0000.tif", "c2.tif"));
    assert_eq!(names(&dataset), expected);
    assert_eq!((dataset.ignore_label, dataset.labels_are_classes), (Some(4), true));
    assert_eq!(dataset.pairs[0].voxel_um, Some([1.5, 0.25, 0.2]));
    assert!(dataset.problems.iter().any(|p| p.message.contains("interpreted as Z, Y, X")));
    assert!(dataset.problems.iter().any(|p| p.message.contains("no labels") && p.file.ends_with("c3_0000.tif")));
    let options =
        FindOptions { spacing_order: Some(SpacingOrder::Xyz), image_channel: Some(1), ..FindOptions::default() };
    let reversed = find_pairs_with(&at("dataset.json"), TrainingTask::Segmentation, &options).unwrap();
    assert_eq!(reversed.pairs[0].voxel_um, Some([0.2, 0.25, 1.5]));
    assert_eq!(names(&reversed)[0].1, "c1_0001.tif");
    assert_eq!(check(&reversed, &Default::default()).of(Severity::Error).count(), 0);
    for (wrong, says) in
        [("[2e-6, 6.5e-7, 6.5e-7]", "in meters"), ("[0, 1, 1]", "along Z is 0"), ("[1, 1]", "three"), ("[1, 2", "JSON")]
    {
        fs::write(at("imagesTr/c1.json"), format!("{{\"spacing\": {wrong}}}")).unwrap();
        let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
        assert_eq!(dataset.pairs[0].voxel_um, None);
        assert!(dataset.problems.iter().any(|p| p.message.contains(says)), "{says}: {:?}", dataset.problems);
    }
    // So are declarations of the wrong type: without the ignore label, ignored voxels would count.
    for (wrong, says) in [
        (r#"{"labels": {"background": 0, "cell": 1, "ignore": "4"}}"#, "its label \"ignore\" is \"4\""),
        (r#"{"labels": ["background", "cell"]}"#, "its labels is"),
        (r#"{"file_ending": 3}"#, "its file_ending is 3"),
    ] {
        fs::write(at("dataset.json"), wrong).unwrap();
        let error = find_pairs(&at("dataset.json"), TrainingTask::Segmentation).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // An unsupported file format is an error.
    fs::write(at("dataset.json"), r#"{"file_ending": ".oir"}"#).unwrap();
    let error = find_pairs(&at("dataset.json"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains(".oir") && error.contains("convert"), "{error}");
}

#[test]
fn files_of_one_case_of_nnunet_with_other_extensions_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    tiny_pair(&at("imagesTr/c1_0000.tif"), &at("labelsTr/c1.tif"), 1);
    tiny_pair(&at("imagesTr/c1_0000.ome.tif"), &at("labelsTr/c1.ome.tif"), 2);
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("c1", "c1_0000.tif", "c1.tif"));
    for unused in ["imagesTr/c1_0000.ome.tif", "labelsTr/c1.ome.tif"] {
        let is_noted = |problem: &Problem| problem.file == at(unused) && problem.message.contains("is not used");
        assert!(dataset.problems.iter().any(is_noted), "{unused}: {:?}", dataset.problems);
    }
}

#[test]
fn label_free_layouts_are_found() {
    for (image, target) in [
        ("x_bf.tif", "x_fluo.tif"),
        ("x_phase.tif", "x_fluor.tif"),
        ("brightfield/x.tif", "signal/x.tif"),
        ("brightfield_x.tif", "signal_x.tif"),
        ("x.tif", "x_signal.tif"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (shape, raw, labels) = tiny(1);
        write(&folder.path().join(image), shape, raw);
        write(&folder.path().join(target), shape, labels);
        let dataset = find_pairs(folder.path(), TrainingTask::LabelFree).unwrap();
        assert_eq!(dataset.pairs.len(), 1, "{image}");
        assert!(dataset.pairs[0].image.path.ends_with(image), "{image}");
        assert_eq!(check(&dataset, &Default::default()).of(Severity::Error).count(), 0);
    }
}

#[test]
fn labels_beside_the_stain_of_a_pair_are_not_reported_in_label_free_training() {
    let folder = tempfile::tempdir().unwrap();
    let (shape, raw, labels) = tiny(1);
    for name in ["x_raw.tif", "y_bf.tif"] {
        write(&folder.path().join(name), shape, raw.clone());
    }
    for name in ["x_target.tif", "x_labels.tif", "y_fluo.tif", "y_Masks.tif", "z_labels.tif"] {
        write(&folder.path().join(name), shape, labels.clone());
    }
    let dataset = find_pairs(folder.path(), TrainingTask::LabelFree).unwrap();
    assert_eq!(dataset.pairs.len(), 2);
    // Without a stain, it may be an image.
    let files: Vec<_> = dataset.problems.iter().map(|problem| problem.file.clone()).collect();
    assert_eq!(files, [folder.path().join("z_labels.tif")]);
}

#[test]
fn errors_of_empty_and_missing_folders_have_a_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let error = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("no pair") && error.contains("NAME_masks.tif"), "{error}");
    let error = find_pairs(folder.path(), TrainingTask::LabelFree).unwrap_err().to_string();
    assert!(error.contains("NAME_bf.tif"), "{error}");
    let error = find_pairs(&folder.path().join("none"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("check that the path exists"), "{error}");
    // A loop of links does not hang.
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(folder.path(), folder.path().join("again")).unwrap();
        assert!(find_pairs(folder.path(), TrainingTask::Segmentation).is_err());
    }
}

#[test]
fn parts_can_be_subfolders_of_images_and_targets() {
    let folder = tempfile::tempdir().unwrap();
    for (part, n) in [("train", 1), ("validation", 2)] {
        let at = |f: &str| folder.path().join(f).join(part).join(format!("c{n}.tif"));
        tiny_pair(&at("images"), &at("masks"), n);
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    let parts: Vec<_> = dataset.pairs.iter().map(|p| p.part.unwrap()).collect();
    assert_eq!(parts, [Part::Train, Part::Validation]);
}

#[test]
fn files_of_models_below_the_data_are_not_training_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    tiny_pair(&at("day1/a.tif"), &at("day1/a_masks.tif"), 1);
    for (model, mark) in [("net", "rdf.yaml"), ("other.training", "lock")] {
        tiny_pair(&at(model).join("test_input_0.npy"), &at(model).join("test_output_0.npy"), 2);
        fs::write(at(model).join(mark), "").unwrap();
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!((dataset.pairs.len(), dataset.problems), (1, vec![]));
    let options = FindOptions { same_file: true, ..FindOptions::default() };
    let dataset = find_pairs_with(folder.path(), TrainingTask::LabelFree, &options).unwrap();
    assert!(dataset.pairs.iter().all(|pair| pair.image.path.starts_with(at("day1"))), "{:?}", dataset.pairs);
    assert_eq!(dataset.pairs.len(), 2);
}

#[test]
fn folders_of_data_sets_of_bioimage_io_are_searched() {
    for (name, description, is_data) in [
        ("rdf.yaml", "name: cells\ntype: dataset\nversion: 1\n", true),
        ("bioimageio.yaml", "type: \"dataset\" # of cells\r\nname: cells\r\n", true),
        ("rdf.yaml", "name: net\ntype: model\ntraining_data:\n  type: dataset\n", false),
        ("rdf.yaml", "name: net\n", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        tiny_pair(&at("day1/a.tif"), &at("day1/a_masks.tif"), 1);
        tiny_pair(&at("day2/b.tif"), &at("day2/b_masks.tif"), 2);
        fs::write(at("day2").join(name), description).unwrap();
        let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
        assert_eq!(dataset.pairs.len(), if is_data { 2 } else { 1 }, "{description}");
    }
}

/// Comparing each pair with all files would take minutes.
#[test]
fn many_pairs_of_one_folder_are_found_in_linear_time() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..4000 {
        for name in ["img", "mask"] {
            fs::write(folder.path().join(format!("{name}{i}.tif")), []).unwrap();
        }
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!((dataset.pairs.len(), dataset.problems.len()), (4000, 0));
}

#[test]
fn folders_too_deep_are_not_searched() {
    let folder = tempfile::tempdir().unwrap();
    let mut deep = folder.path().to_owned();
    (0..=cytoscope_training_data::limits::MAX_DEPTH).for_each(|i| deep.push(format!("f{i}")));
    tiny_pair(&deep.join("a.tif"), &deep.join("a_masks.tif"), 1);
    assert!(find_pairs(folder.path(), TrainingTask::Segmentation).is_err());
    assert!(find_pairs(deep.parent().unwrap(), TrainingTask::Segmentation).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Any content of a table or JSON file gives pairs or an error, never a panic.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), head in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let text = if head { [b"raw,seg\n".to_vec(), bytes.clone()].concat() } else { bytes.clone() };
        fs::write(folder.path().join("train.csv"), text).unwrap();
        let _ = find_pairs(folder.path(), TrainingTask::Segmentation);
        let nn = folder.path().join("nn");
        fs::create_dir_all(nn.join("imagesTr")).unwrap();
        fs::create_dir_all(nn.join("labelsTr")).unwrap();
        fs::write(nn.join("dataset.json"), &bytes).unwrap();
        fs::write(nn.join("imagesTr/a_0000.tif"), b"").unwrap();
        fs::write(nn.join("labelsTr/a.tif"), b"").unwrap();
        fs::write(nn.join("imagesTr/a.json"), &bytes).unwrap();
        if let Ok(dataset) = find_pairs(&nn, TrainingTask::Segmentation) {
            prop_assert!(check(&dataset, &Default::default()).usable(&dataset).is_empty());
        }
        fs::write(nn.join("dataset.json"), b"{}").unwrap();
        prop_assert_eq!(find_pairs(&nn, TrainingTask::Segmentation).unwrap().pairs.len(), 1);
        fs::write(folder.path().join("x.npy"), [b"\x93NUMPY".to_vec(), bytes].concat()).unwrap();
        let _ = find_pairs(folder.path(), TrainingTask::LabelFree);
    }
}

/// Pipes and devices in a folder are reported but not opened, since reading them would block.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_reported_and_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let at = |n: &str| folder.path().join(n);
    let pipe = |n: &str| assert!(std::process::Command::new("mkfifo").arg(at(n)).status().unwrap().success());
    tiny_pair(&at("a.tif"), &at("a_masks.tif"), 1);
    pipe("b.tif");
    pipe("b_masks.tif");
    std::os::unix::fs::symlink("/dev/zero", at("c.npy")).unwrap();
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("a", "a.tif", "a_masks.tif"));
    let problem: Vec<_> = dataset.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(problem, ["this is a pipe, a socket or a device"; 3]);
    pipe("table.csv");
    let error = find_pairs(&at("table.csv"), TrainingTask::Segmentation).unwrap_err().to_string();
    assert!(error.contains("named pipe"), "{error}");
}

/// Python objects are distinguished from arrays in any formatting of the header.
#[test]
fn files_of_python_objects_are_ignored_in_any_formatting() {
    let folder = tempfile::tempdir().unwrap();
    tiny_pair(&folder.path().join("a.tif"), &folder.path().join("a_masks.tif"), 1);
    for (i, header) in [
        "{'descr': '|O', 'fortran_order': False, 'shape': (), }",
        "{\"shape\":(),\"fortran_order\":False,\"descr\":\"|O\"}",
    ]
    .into_iter()
    .enumerate()
    {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        fs::write(folder.path().join(format!("a{i}_seg.npy")), bytes).unwrap();
    }
    let dataset = find_pairs(folder.path(), TrainingTask::Segmentation).unwrap();
    assert_eq!(names(&dataset), one("a", "a.tif", "a_masks.tif"));
}

#[test]
fn a_file_without_the_chosen_series_is_a_problem_of_its_pair_only() {
    let folder = tempfile::tempdir().unwrap();
    tiny_pair(&folder.path().join("a.tif"), &folder.path().join("a_masks.tif"), 1);
    tiny_pair(&folder.path().join("b.tif"), &folder.path().join("b_masks.tif"), 2);
    fs::write(folder.path().join("b.tif"), b"II*\0 and no image").unwrap();
    let options = FindOptions { series: SeriesChoice::Index(1), ..FindOptions::default() };
    let dataset = find_pairs_with(folder.path(), TrainingTask::Segmentation, &options).unwrap();
    // Files of a single series are used as they are.
    assert_eq!(names(&dataset), one("a", "a.tif", "a_masks.tif"));
    let [problem] = dataset.problems.as_slice() else { panic!("{:?}", dataset.problems) };
    assert!(problem.file.ends_with("b.tif"), "{problem:?}");
}

//! Unusual inputs: each gives a result or a helpful error message.

use crate::common::{Fixture, shared_data};
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_volume::{Array, VoxelSize};
use serde_json::Value;

fn notes(report: &Value) -> String {
    report["inputs"][0]["notes"].to_string()
}

#[test]
fn flat_tiny_and_blank_images_are_predicted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,48,48", 1);
    let slice = fixture.integers(&raw)[3 * 48 * 48..4 * 48 * 48].to_vec();
    fixture.write("flat.tif", "YX", &[48, 48], slice);
    fixture.write("one.tif", "ZYX", &[1, 1, 1], vec![7u16]);
    fixture.write("row.tif", "YX", &[1, 40], (0..40).collect::<Vec<u16>>());
    fixture.write("column.npy", "ZYX", &[30, 1, 1], (0..30).collect::<Vec<u8>>());
    fixture.write("blank.tif", "ZYX", &[4, 20, 20], vec![0u16; 1600]);
    for name in ["flat.tif", "one.tif", "row.tif", "column.npy", "blank.tif"] {
        let report = fixture.run(&["predict", name, "--out", "o", "--json"]).json();
        let stem = name.split('.').next().unwrap();
        let shape = fixture.image(name).squeeze();
        assert_eq!(fixture.image(&format!("o/{stem}_labels.tif")).squeeze().shape(), shape.shape(), "{name}");
        assert!(notes(&report).contains("voxel size"), "{name}: a missing voxel size must be noted");
        let values = fixture.image(&format!("o/{stem}_probability.tif")).samples().to_f32();
        assert!(values.iter().all(|v| v.is_finite()), "{name}");
    }
    let report = fixture.run(&["predict", "blank.tif", "--out", "o", "--json"]).json();
    assert_eq!(report["inputs"][0]["objects"], serde_json::json!([0]));
    assert_eq!(fixture.table("o/blank_objects.csv").len(), 1, "a table without objects keeps its header");
}

#[test]
fn slices_that_were_saved_as_time_points_are_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,48,48", 1);
    fixture.write("times.tif", "TYX", &[6, 48, 48], fixture.integers(&raw));
    let is_noted = |options: &[&str]| {
        let command = ["predict", "times.tif", "--model", "nuclei-dog", "--device", "cpu", "--out", "o", "--json"];
        let report = fixture.run(&[&command[..], options].concat()).json();
        notes(&report).contains("6 time points of one slice") && notes(&report).contains("--axes ZYX")
    };
    assert!(is_noted(&[]));
    assert!(!is_noted(&["--axes", "ZYX"]));
    assert!(!is_noted(&["--axes", "TYX"]));
    assert!(!is_noted(&["--time", "2"]));
}

#[test]
fn stacks_without_contrast_are_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,48,48", 1);
    fixture.write("blank.tif", "ZYX", &[4, 20, 20], vec![5u16; 1600]);
    fixture.write("nan.npy", "ZYX", &[4, 20, 20], vec![f32::NAN; 1600]);
    fixture.write("faint.npy", "ZYX", &[4, 20, 20], (0..1600).map(|i| i as f32 * 1e-10).collect::<Vec<f32>>());
    fixture.write("times.tif", "TZYX", &[2, 4, 20, 20], [(0..1600).collect::<Vec<u16>>(), vec![0; 1600]].concat());
    // Fewer bright voxels than the upper percentile leaves out.
    let few = (0..1600).map(|i| if (790..793).contains(&i) { 900 } else { 0 }).collect::<Vec<u16>>();
    fixture.write("few.tif", "ZYX", &[4, 20, 20], few);
    for (name, note) in [
        ("blank.tif", "all input values are 5: "),
        ("nan.npy", "all input values are NaN, infinite or too large for 32-bit floats: "),
        ("times.tif", "all input values of time point 1 are 0: "),
        ("faint.npy", "% of their contrast"),
        ("few.tif", "so few values of the stack differ from the others"),
    ] {
        let command = ["predict", name, "--voxel-size", "1,1,1", "--out", "o", "--json"];
        let report = fixture.run(&command).json();
        assert!(notes(&report).contains(note), "{report}");
        let text = fixture.run(&command[..command.len() - 1]).ok().stdout;
        assert!(text.contains(note), "{text}");
    }
    let report = fixture.run(&["predict", &raw, "--out", "o", "--json"]).json();
    assert!(!notes(&report).contains("all input values") && !notes(&report).contains("of their contrast"), "{report}");
}

#[cfg(unix)]
#[test]
fn a_broken_link_in_a_folder_of_stacks_fails_alone() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,48,48", 1);
    std::fs::create_dir(fixture.path("in")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("in/a.tif")).unwrap();
    std::os::unix::fs::symlink("missing.tif", fixture.path("in/b.tif")).unwrap();
    let command = ["predict", "in", "--model", "nuclei-dog", "--out", "o"];
    fixture.fails(3, &command, &["in/b.tif: no such file", "1 of 2 inputs failed"]);
    assert!(fixture.path("o/a_labels.tif").is_file());
}

#[test]
fn a_stack_whose_results_would_have_too_long_names_is_refused_before_it_is_predicted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,48,48", 1);
    let name = format!("{}.tif", "a".repeat(236));
    std::fs::copy(fixture.path(&raw), fixture.path(&name)).unwrap();
    let command = ["predict", &name, "--model", "nuclei-dog", "--device", "cpu", "--out", "o"];
    fixture.fails(2, &command, &["too long", "shorter name"]);
    assert!(!fixture.path("o").exists());
}

#[test]
fn values_that_are_not_finite_are_noted_where_they_are_measured() {
    let fixture = Fixture::new();
    let mut labels = vec![0u16; 2 * 8 * 8];
    labels[..3].fill(1);
    labels[60..64].fill(2);
    let mut values = vec![1f32; 2 * 8 * 8];
    values[40] = f32::NAN;
    fixture.write("labels.tif", "ZYX", &[2, 8, 8], labels);
    fixture.write("outside.npy", "ZYX", &[2, 8, 8], values.clone());
    values[1] = f32::NAN;
    fixture.write("inside.npy", "ZYX", &[2, 8, 8], values);
    let note = "so intensities of 1 object in the table are";
    for command in [
        vec!["measure", "labels.tif", "--out", "t.csv"],
        vec![
            "segment",
            "labels.tif",
            "--threshold",
            "0.5",
            "--min-volume-um3",
            "0",
            "--out",
            "s.tif",
            "--table",
            "t.csv",
        ],
    ] {
        for (intensities, is_noted) in [("inside.npy", true), ("outside.npy", false)] {
            let options = ["--voxel-size", "1,1,1", "--force", "--intensities", intensities];
            let text = fixture.run(&[&command[..], &options].concat()).ok().stdout;
            assert_eq!(text.contains(note), is_noted, "{text}");
            let means: Vec<String> = fixture.table("t.csv").into_iter().skip(1).map(|row| row.join(",")).collect();
            assert!(means.len() == 2 && means[0].contains("NaN") == is_noted, "{means:?}");
        }
    }
}

#[test]
fn a_voxel_size_in_the_order_of_x_y_z_is_doubted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 2);
    for (size, is_doubted) in [("0.5,0.5,1", true), ("1,0.5,0.5", false), ("1,0.5,0.52", false)] {
        let predict = ["predict", &raw, "--model", "nuclei-dog", "--diameter", "10", "--device", "cpu"];
        let more = ["--voxel-size", size, "--outputs", "maps", "--out", "o", "--force"];
        let noted = fixture.run(&[&predict[..], &more].concat()).ok().stdout;
        assert_eq!(noted.contains("check that --voxel-size is in the order Z,Y,X"), is_doubted, "{size}: {noted}");
    }
    // The same sizes in a file.
    let values = fixture.integers(&raw);
    for (size, is_doubted) in [([0.5, 0.5, 1.0], true), ([1.0, 0.5, 0.5], false)] {
        let stack = Array::new("ZYX".parse().unwrap(), vec![8, 48, 48], values.clone()).unwrap();
        let mut spec = WriteSpec::of(&stack, Container::OmeTiff);
        spec.voxel_size_um = VoxelSize::new_um(size[0], size[1], size[2]);
        write_array(&fixture.path("sized.ome.tif"), &stack, &spec).unwrap();
        let predict = ["predict", "sized.ome.tif", "--model", "nuclei-dog", "--diameter", "10", "--device", "cpu"];
        let more = ["--outputs", "maps", "--out", "o", "--force"];
        let noted = fixture.run(&[&predict[..], &more].concat()).ok().stdout;
        assert_eq!(noted.contains("but pixels are usually square; check it"), is_doubted, "{size:?}: {noted}");
    }
}

#[test]
fn a_diameter_in_another_unit_is_doubted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 2);
    // The slices are 19.2 µm wide.
    for (diameter, doubt) in [
        ("0.6", Some("objects of 0.6 µm are only 1.5 voxels wide")),
        ("500", Some("objects of 500 µm are larger than a slice of 19.2 × 19.2 µm")),
        ("10", None),
    ] {
        let predict = ["predict", &raw, "--model", "nuclei-dog", "--diameter", diameter, "--device", "cpu"];
        let more = ["--voxel-size", "1,0.4,0.4", "--outputs", "maps", "--out", "o", "--force"];
        let noted = fixture.run(&[&predict[..], &more].concat()).ok().stdout;
        assert_eq!(noted.contains("probably not the one that was meant"), doubt.is_some(), "{diameter}: {noted}");
        assert!(doubt.is_none_or(|text| noted.contains(text)), "{diameter}: {noted}");
    }
}

#[test]
fn volumes_without_a_voxel_size_are_noted() {
    let fixture = Fixture::new();
    let mut labels = vec![0u16; 4 * 12 * 12];
    (0..4).for_each(|y| labels[(2 * 12 + y + 3) * 12 + 3..][..4].fill(1));
    fixture.write("labels.tif", "ZYX", &[4, 12, 12], labels.clone());
    fixture.write("slice.tif", "YX", &[12, 12], labels[2 * 144..3 * 144].to_vec());
    for command in [
        vec!["measure", "labels.tif", "--intensities", "labels.tif", "--out", "t.csv", "--force"],
        vec!["segment", "labels.tif", "--out", "s.tif", "--force"],
        vec!["mesh", "labels.tif", "--out", "m.stl", "--force"],
    ] {
        let text = fixture.run(&command).ok().stdout;
        assert!(text.contains("voxel size along Z, Y, X is unknown"), "{text}");
        let report = fixture.run(&[&command[..], &["--json"]].concat()).json();
        assert_eq!(report["notes"].as_array().map(Vec::len), Some(1), "{report}");
        let text = fixture.run(&[&command[..], &["--voxel-size", "2,0.5,0.5"]].concat()).ok().stdout;
        assert!(!text.contains("unknown"), "{text}");
    }
    let text = fixture.run(&["segment", "slice.tif", "--out", "s.tif", "--force"]).ok().stdout;
    assert!(text.contains("voxel size along Y, X is unknown"), "{text}");
}

#[test]
fn slices_that_are_very_far_apart_are_doubted() {
    let fixture = Fixture::new();
    let mut labels = vec![0u16; 4 * 12 * 12];
    (0..4).for_each(|y| labels[(2 * 12 + y + 3) * 12 + 3..][..4].fill(1));
    fixture.write("labels.tif", "ZYX", &[4, 12, 12], labels);
    let predict = ["predict", "labels.tif", "--model", "nuclei-dog", "--device", "cpu", "--out", "o"];
    for command in [
        vec!["measure", "labels.tif", "--out", "t.csv"],
        vec!["segment", "labels.tif", "--out", "s.tif"],
        vec!["mesh", "labels.tif", "--out", "m.stl"],
        predict.to_vec(),
    ] {
        for (size, is_doubted) in [("60,1,1", true), ("20,1,1", false)] {
            let text = fixture.run(&[&command[..], &["--voxel-size", size, "--force"]].concat()).ok().stdout;
            let note = "the slices are 60 µm apart, but a pixel is 1 µm wide";
            assert_eq!(text.contains(note), is_doubted, "{command:?}: {text}");
        }
    }
}

#[test]
fn commands_for_one_time_point_or_channel_name_the_one_that_they_use() {
    let fixture = Fixture::new();
    let mut labels = vec![0u16; 2 * 4 * 12 * 12];
    (0..8).for_each(|slice| labels[(slice * 12 + 5) * 12 + 3..][..4].fill(1));
    fixture.write("times.tif", "TZYX", &[2, 4, 12, 12], labels.clone());
    fixture.write("channels.tif", "ZCYX", &[4, 2, 12, 12], labels);
    let size = ["--voxel-size", "1,1,1", "--force"];
    for command in [
        vec!["measure", "times.tif", "--intensities", "times.tif", "--time", "1", "--out", "t.csv"],
        vec!["segment", "times.tif", "--time", "1", "--out", "s.tif"],
        vec!["mesh", "times.tif", "--time", "1", "--out", "m.stl"],
    ] {
        let text = fixture.run(&[&command[..], &size].concat()).ok().stdout;
        assert!(text.contains("2 time points: only time point 1 is") && text.contains("--time"), "{text}");
    }
    let text = fixture.run(&[&["segment", "channels.tif", "--out", "s.tif"][..], &size].concat()).ok().stdout;
    assert!(text.contains("2 channels: only channel 0 is segmented"), "{text}");
}

#[test]
fn objects_of_a_predicted_time_point_are_measured_in_this_time_point() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let first = fixture.integers(&raw);
    let second: Vec<u16> = first.iter().map(|value| value / 2).collect();
    fixture.write("film.tif", "TZYX", &[3, 8, 48, 48], [&first[..], &first, &second].concat());
    fixture.write("short.tif", "TZYX", &[2, 8, 48, 48], [first, second.clone()].concat());
    fixture.write("alone.tif", "ZYX", &[8, 48, 48], second);
    let predict = ["predict", "film.tif", "--model", "nuclei-dog", "--time", "2", "--outputs", "maps", "--out", "o"];
    fixture.run(&predict).ok();
    std::fs::copy(fixture.path("o/film_probability.tif"), fixture.path("map.tif")).unwrap();
    let table = |map: &str, stack: &str| {
        let command = ["segment", map, "--intensities", stack, "--out", "l.tif", "--table", "t.csv", "--force"];
        let noted = fixture.run(&command).ok().stderr;
        (fixture.bytes("t.csv"), noted.contains("the map has one time point, but this image has"))
    };
    let expected = table("map.tif", "alone.tif").0;
    assert!(expected.iter().filter(|byte| **byte == b'\n').count() > 1, "there are objects");
    assert!(table("o/film_probability.tif", "film.tif") == (expected.clone(), false));
    // Without its record, the time point of a map is unknown, and another image may lack it.
    for (map, stack) in [("map.tif", "film.tif"), ("o/film_probability.tif", "short.tif")] {
        let (measured, is_noted) = table(map, stack);
        assert!(is_noted && measured != expected, "{map}, {stack}");
    }
}

#[test]
fn labels_of_a_predicted_time_point_belong_to_this_time_point() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let first = fixture.integers(&raw);
    let second: Vec<u16> = first.iter().map(|value| value / 2).collect();
    fixture.write("film.tif", "TZYX", &[3, 8, 48, 48], [&first[..], &first, &second].concat());
    let predict = ["predict", "film.tif", "--model", "nuclei-dog", "--time", "2", "--outputs", "labels", "--out", "o"];
    fixture.run(&predict).ok();
    let labels = "o/film_labels.tif";
    std::fs::copy(fixture.path(labels), fixture.path("alone.tif")).unwrap();
    let table = |labels: &str, time: &[&str]| {
        let command = ["measure", labels, "--intensities", "film.tif", "--out", "t.csv", "--force", "--json"];
        // The record also states a slice spacing.
        let size = ["--voxel-size", "1,1,1"];
        let notes = fixture.run(&[&command[..], &size, time].concat()).json()["notes"].to_string();
        (fixture.bytes("t.csv"), notes.contains("predicted from time point 2, but time point 1 is measured"))
    };
    let (expected, _) = table("alone.tif", &["--time", "2"]);
    assert!(expected.iter().filter(|byte| **byte == b'\n').count() > 1, "there are objects");
    assert!(
        table(labels, &[]) == (expected.clone(), false) && table(labels, &["--time", "2"]) == (expected.clone(), false)
    );
    // Without the record, the time point is unknown; one that is given is measured.
    assert!(table("alone.tif", &[]).0 != expected);
    let (other, is_noted) = table(labels, &["--time", "1"]);
    assert!(is_noted && other != expected);
    // Results whose names do not state that of their record.
    for out in ["p/seg.ozx", "q/seg.zarr"] {
        fixture.run(&["predict", "film.tif", "--model", "nuclei-dog", "--time", "2", "--out", out]).ok();
        let own = table(out, &[]);
        assert!(!own.1 && own == table(out, &["--time", "2"]) && own.0 != table(out, &["--time", "0"]).0, "{out}");
    }
    let convert = ["convert", "film.tif", "z.zarr", "--labels", labels];
    fixture.fails(3, &convert, &["predicted from time point 2", "all 3 time points are converted", "--time 2"]);
    let words = ["predicted from time point 2", "but time point 1 is converted"];
    fixture.fails(3, &[&convert[..], &["--time", "1"]].concat(), &words);
    fixture.run(&[&convert[..], &["--time", "2"]].concat()).ok();
}

#[test]
fn objects_of_a_stack_that_was_predicted_with_other_axes_are_measured_with_these() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let first = fixture.integers(&raw);
    let second: Vec<u16> = first.iter().map(|value| value / 2).collect();
    let slices = first.chunks(48 * 48).zip(second.chunks(48 * 48));
    let interleaved: Vec<u16> = slices.flat_map(|(first, second)| [first, second].concat()).collect();
    // Without its axes, an array is read as CZYX.
    fixture.write("mixed.npy", "ZCYX", &[8, 2, 48, 48], interleaved);
    fixture.write("right.npy", "CZYX", &[2, 8, 48, 48], [&first[..], &second].concat());
    std::fs::create_dir(fixture.path("other")).unwrap();
    fixture.write("other/mixed.npy", "ZYX", &[8, 48, 48], first);
    let predict = ["predict", "mixed.npy", "--axes", "ZCYX", "--model", "nuclei-dog", "--channel", "0", "--out", "o"];
    fixture.run(&predict).ok();
    let map = "o/mixed_probability.tif";
    let table = |stack: &str| {
        let command = ["segment", map, "--intensities", stack, "--out", "l.tif", "--table", "t.csv", "--force"];
        fixture.run(&command).ok();
        fixture.table("t.csv")
    };
    let expected = table("right.npy");
    assert!(expected.len() > 1, "there are objects");
    assert_eq!(table("mixed.npy"), expected);
    // Another file of the same name, which cannot have these axes.
    assert_eq!(table("other/mixed.npy").len(), expected.len());
    // The labels are measured with them, too, unless others are given.
    let measure = |stack: &str| {
        fixture.run(&["measure", "o/mixed_labels.tif", "--intensities", stack, "--out", "m.csv", "--force"]).ok();
        fixture.table("m.csv")
    };
    let measured = measure("mixed.npy");
    assert!(measured.len() == expected.len() && measured == measure("right.npy"), "{measured:?}");
    assert_eq!(measure("other/mixed.npy").len(), expected.len());
    let command = ["measure", "o/mixed_labels.tif", "--intensities", "mixed.npy", "--axes", "CZYX", "--out", "c.csv"];
    fixture.fails(3, &command, &["[2, 48, 48]"]);
}

#[test]
fn convert_names_the_channels_and_time_points_of_a_file() {
    let fixture = Fixture::new();
    fixture.write("film.tif", "TZYX", &[3, 2, 4, 4], vec![1u8; 96]);
    let convert = ["convert", "film.tif", "x.tif"];
    for (option, advice) in [("--time", "give --time 0 to 2"), ("--channel", "leave out --channel")] {
        fixture.fails(3, &[&convert[..], &[option, "3"]].concat(), &["3 does not exist", advice]);
    }
}

#[test]
fn a_threshold_below_all_values_of_a_map_is_noted() {
    let fixture = Fixture::new();
    let values: Vec<u8> = (0..4 * 12 * 12).map(|i| if (i / 12) % 6 < 3 { 200 } else { 20 }).collect();
    fixture.write("map.tif", "ZYX", &[4, 12, 12], values);
    let command =
        ["segment", "map.tif", "--method", "components", "--out", "l.tif", "--force", "--voxel-size", "1,1,1"];
    for (threshold, is_noted) in [("0.5", true), ("100", false)] {
        let text = fixture.run(&[&command[..], &["--threshold", threshold]].concat()).ok().stdout;
        assert_eq!(text.contains("every voxel belongs to an object"), is_noted, "{threshold}: {text}");
    }
}

#[test]
fn a_threshold_above_all_values_of_a_map_is_noted_with_their_range() {
    let fixture = Fixture::new();
    let values: Vec<u8> = (0..4 * 12 * 12).map(|i| if (i / 12) % 6 < 3 { 200 } else { 20 }).collect();
    fixture.write("map.tif", "ZYX", &[4, 12, 12], values);
    let command =
        ["segment", "map.tif", "--method", "components", "--out", "l.tif", "--force", "--voxel-size", "1,1,1"];
    for (threshold, is_noted) in [("300", true), ("100", false)] {
        let text = fixture.run(&[&command[..], &["--threshold", threshold]].concat()).ok().stdout;
        assert_eq!(text.contains("above the threshold, 300: the values range from 20 to 200"), is_noted, "{text}");
    }
}

#[test]
fn a_label_image_that_is_segmented_is_noted() {
    let fixture = Fixture::new();
    // Squares of 12 voxels that touch in pairs.
    let label = |i: usize| {
        let (y, x) = (i / 64 % 64, i % 64);
        let is_inside = y % 16 < 12 && x % 32 < 24;
        if is_inside { (1 + y / 16 * 4 + x / 32 * 2 + usize::from(x % 32 >= 12)) as u16 } else { 0 }
    };
    let labels: Vec<u16> = (0..4 * 64 * 64).map(label).collect();
    let map: Vec<f32> = labels.iter().map(|label| if *label > 0 { 0.9 } else { 0.1 }).collect();
    fixture.write("labels.tif", "ZYX", &[4, 64, 64], labels);
    fixture.write("map.tif", "ZYX", &[4, 64, 64], map);
    for (name, is_noted) in [("labels.tif", true), ("map.tif", false)] {
        let command = ["segment", name, "--voxel-size", "1,1,1", "--out", "s.tif", "--force"];
        let text = fixture.run(&command).ok().stdout;
        assert_eq!(text.contains("the map may be a label image: "), is_noted, "{text}");
    }
}

#[test]
fn a_numpy_file_whose_axes_would_be_guessed_wrongly_is_noted() {
    let fixture = Fixture::new();
    for (axes, shape, guess) in [
        ("TZYX", vec![2, 3, 4, 5], Some("CZYX")),
        ("TYX", vec![2, 4, 15], Some("ZYX")),
        ("ZYX", vec![6, 4, 5], None),
        ("YX", vec![12, 10], None),
    ] {
        fixture.write("a.tif", axes, &shape, (0..120).collect::<Vec<u8>>());
        let text = fixture.run(&["convert", "a.tif", "a.npy", "--force"]).ok().stderr;
        let note = guess.map(|guess| format!("its axes, {axes}; it is read with {guess} unless --axes {axes}"));
        assert_eq!(text.contains("state its axes"), note.is_some(), "{axes}: {text}");
        assert!(note.is_none_or(|note| text.contains(&note)), "{axes}: {text}");
    }
}

#[test]
fn nan_voxels_are_ignored_and_reported() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,64,64", 1);
    let mut values = fixture.image(&raw).samples().to_f32();
    for y in 0..6 {
        values[(3 * 64 + y) * 64..][..6].fill(f32::NAN);
    }
    values[0] = f32::INFINITY;
    fixture.write("holes.tif", "ZYX", &[8, 64, 64], values);
    fixture.write("nothing.tif", "ZYX", &[3, 9, 9], vec![f32::NAN; 243]);
    let base = ["--voxel-size", "1.75,0.8,0.8", "--out", "o", "--json"];
    let report = fixture.run(&[&["predict", "holes.tif"], &base[..]].concat()).json();
    assert!(notes(&report).contains("NaN"), "{}", notes(&report));
    // Missing voxels do not spread; away from them the result equals that of the stack without holes, except for small
    // changes of the percentiles.
    fixture.run(&[&["predict", &raw], &base[..]].concat()).ok();
    let (a, b) = (fixture.image("o/holes_probability.tif"), fixture.image("o/nuclei_1_raw_probability.tif"));
    let (a, b) = (a.samples().to_f32(), b.samples().to_f32());
    assert!(a.iter().all(|v| v.is_finite()));
    let far = |v: &[f32]| v[(2 * 64 + 60) * 64 + 60];
    assert!((far(&a) - far(&b)).abs() < 0.01, "{} for {}", far(&a), far(&b));
    assert!(report["inputs"][0]["objects"][0].as_u64().unwrap() > 0);
    let report = fixture.run(&[&["predict", "nothing.tif"], &base[..]].concat()).json();
    assert!(notes(&report).contains("NaN"));
    assert_eq!(report["inputs"][0]["objects"], serde_json::json!([0]));
    fixture.run(&[&["predict", &raw], &base[..]].concat()).ok();
}

#[test]
fn an_overexposed_stack_is_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,64,64", 1);
    let values = fixture.integers(&raw);
    let mut sorted = values.clone();
    sorted.sort_unstable();
    // The brightest tenth is cut off.
    let white = u32::from(sorted[sorted.len() * 9 / 10]);
    let clipped = |value: &u16| (u32::from(*value) * 4095 / white).min(4095) as u16;
    fixture.write("clipped.tif", "ZYX", &[8, 64, 64], values.iter().map(clipped).collect::<Vec<_>>());
    for (name, is_noted) in [(raw.as_str(), false), ("clipped.tif", true)] {
        let predict = ["predict", name, "--model", "nuclei-dog", "--diameter", "10", "--voxel-size", "2,1,1"];
        let report = fixture.run(&[&predict[..], &["--out", "o", "--json"]].concat()).json();
        let noted = notes(&report);
        assert_eq!(noted.contains("are 4095, the highest one of a camera"), is_noted, "{name}: {noted}");
    }
}

#[test]
fn slices_saved_as_channels_are_detected() {
    let fixture = Fixture::new();
    fixture.write("odd.tif", "CYX", &[9, 20, 20], vec![3u16; 3600]);
    let report = fixture.run(&["predict", "odd.tif", "--out", "o", "--json"]).json();
    assert!(notes(&report).contains("--axes ZYX"), "{}", notes(&report));
    let report = fixture.run(&["predict", "odd.tif", "--axes", "ZYX", "--out", "o", "--json"]).json();
    assert_eq!(report["inputs"][0]["shape_zyx"], serde_json::json!([9, 20, 20]));
}

#[test]
fn file_names_may_contain_spaces_and_any_letters() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    let name = "my cells é 細胞 (1).v2.tif";
    std::fs::copy(fixture.path(&raw), fixture.path(name)).unwrap();
    let report = fixture.run(&["predict", name, "--out", "out put/ö", "--json"]).json();
    assert_eq!(report["inputs"][0]["input"], name);
    assert!(fixture.path("out put/ö/my cells é 細胞 (1).v2_labels.tif").is_file(), "{:?}", fixture.names("out put/ö"));
    fixture.run(&["convert", name, "ü.npy"]).ok();
    fixture.fails(3, &["info", "nicht da ß.tif"], &["nicht da ß.tif"]);
}

#[test]
fn all_sample_types_give_the_same_prediction() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 3);
    let values = fixture.integers(&raw);
    let shape = [6, 40, 40];
    fixture.write("a.tif", "ZYX", &shape, values.clone());
    fixture.write("b.npy", "ZYX", &shape, values.iter().map(|v| i64::from(*v) - 300).collect::<Vec<_>>());
    fixture.write("c.npy", "ZYX", &shape, values.iter().map(|v| f64::from(*v) * 1e-3).collect::<Vec<_>>());
    fixture.write("d.ome.tif", "ZYX", &shape, values.iter().map(|v| i32::from(*v)).collect::<Vec<_>>());
    // In int8, a difference in the last bit can move values by a quantization step.
    let options = ["--diameter", "20", "--voxel-size", "2.5,1,1", "--precision", "f32"];
    fixture.run(&[&["predict", "a.tif", "b.npy", "c.npy", "d.ome.tif", "--out", "o"], &options[..]].concat()).ok();
    let expected = fixture.image("o/a_probability.tif").samples().to_f32();
    // Percentile scaling removes offset and gain.
    for stem in ["b", "c", "d"] {
        let got = fixture.image(&format!("o/{stem}_probability.tif")).samples().to_f32();
        let worst = cytoscope_testkit::largest_difference(&got, &expected);
        assert!(worst < 1e-3, "{stem}: {worst}");
    }
}

#[test]
fn real_stacks_give_results() {
    let Some(data) = shared_data() else { return };
    let fixture = Fixture::new();
    let mut seen = 0;
    for group in ["nuclei_and_cells", "label_free"] {
        let mut files = Vec::new();
        let mut folders = vec![data.join(group)];
        while let Some(folder) = folders.pop() {
            let mut here: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
            here.sort();
            folders.extend(here.iter().filter(|p| p.is_dir()).cloned());
            let stack = |p: &std::path::PathBuf| {
                let name = p.file_name().unwrap().to_string_lossy().to_lowercase();
                // The names of some ground-truth masks do not say so.
                let is_truth = ["label", "mask", "_ndn.", "_nsn."].iter().any(|part| name.contains(part));
                name.ends_with(".tif") && !is_truth
            };
            // The smallest one of each kind of data.
            let bytes = |path: &std::path::PathBuf| std::fs::metadata(path).unwrap().len();
            files.extend(here.into_iter().filter(stack).min_by_key(bytes));
        }
        for file in files {
            // The filter is faster than the network, whose scores on these stacks have their own tests.
            let arguments = ["predict", file.to_str().unwrap(), "--model", "nuclei-dog", "--out", group, "--json"];
            let report = fixture.run(&arguments).json();
            let one = &report["inputs"][0];
            let objects: u64 = one["objects"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
            eprintln!("{}: {} {objects} objects", file.display(), one["shape_zyx"]);
            assert!(group == "label_free" || objects > 0, "{}: nothing found", file.display());
            seen += 1;
        }
    }
    assert!(seen >= 8, "only {seen} real stacks");
    assert!(fixture.leftovers().is_empty());
}

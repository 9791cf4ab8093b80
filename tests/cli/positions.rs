//! Commands on the positions of a plate, which are the series of one OME-Zarr folder.

use crate::common::{Fixture, predict};

/// Writes stacks as the positions `A/1/0.zarr` and `A/1/1.zarr` of `plate.zarr`.
fn write_plate(fixture: &Fixture, stacks: &[String; 2]) {
    let group = |path: &str, ome: serde_json::Value| {
        std::fs::create_dir_all(fixture.path(path)).unwrap();
        let json = serde_json::json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
        std::fs::write(fixture.path(path).join("zarr.json"), json.to_string()).unwrap();
    };
    let images = [0, 1].map(|i| serde_json::json!({"path": format!("{i}.zarr")}));
    group("plate.zarr", serde_json::json!({"plate": {"wells": [{"path": "A/1"}]}}));
    group("plate.zarr/A/1", serde_json::json!({"well": {"images": images}}));
    for (i, stack) in stacks.iter().enumerate() {
        fixture.run(&["convert", stack, &format!("plate.zarr/A/1/{i}.zarr")]).ok();
    }
}

#[test]
fn positions_are_predicted_by_number_by_name_and_all_together() {
    let fixture = Fixture::new();
    let stacks = [1, 2].map(|seed| fixture.nuclei("12,40,50", seed));
    write_plate(&fixture, &stacks);
    for (i, stack) in stacks.iter().enumerate() {
        let only = ["--outputs", "labels", "--format", "tiff"];
        fixture.run(&predict(stack, &format!("alone{i}"), &only)).ok();
    }
    let info = fixture.run(&["info", "plate.zarr", "--json"]).json();
    assert_eq!(info["series_names"], serde_json::json!(["A/1/0.zarr", "A/1/1.zarr"]));
    let labels = [0, 1].map(|i| fixture.image(&format!("alone{i}/nuclei_{}_raw_labels.tif", i + 1)));
    let to_tiff = |series: &'static str| ["--outputs", "labels", "--format", "tiff", "--series", series];
    fixture.run(&predict("plate.zarr", "named", &to_tiff("A/1/1.zarr"))).ok();
    assert_eq!(fixture.image("named/plate_s1_labels.tif"), labels[1]);
    let ran = fixture.run(&[&predict("plate.zarr", "all", &to_tiff("all"))[..], &["--json"]].concat()).json();
    assert_eq!(ran["inputs"].as_array().unwrap().len(), 2);
    assert_eq!(ran["inputs"][1]["series"].as_u64(), Some(1));
    // A note says that the first one is used only if none is chosen.
    let is_noted = |text: &str| text.contains("there are 2 series: only the first one, A/1/0.zarr,");
    assert!(!is_noted(&ran["inputs"].to_string()), "{ran:#}");
    let first =
        fixture.run(&[&predict("plate.zarr", "first", &["--outputs", "labels"])[..], &["--json"]].concat()).json();
    assert!(is_noted(&first["inputs"][0]["notes"].to_string()), "{first:#}");
    assert!(is_noted(&fixture.run(&["convert", "plate.zarr", "first.tif"]).ok().stderr));
    let plate = ["evaluate", "--pred", "plate.zarr", "--truth", "plate.zarr"];
    assert!(is_noted(&fixture.run(&plate).ok().stderr));
    assert!(!is_noted(&fixture.run(&[&plate[..], &["--series", "1"]].concat()).ok().stderr));
    let diameter = ["diameter", "plate.zarr", "--model", "nuclei-dog", "--device", "cpu"];
    assert!(is_noted(&fixture.run(&diameter).ok().stderr));
    for (name, expected) in ["plate_labels.tif", "plate_s1_labels.tif"].iter().zip(&labels) {
        assert_eq!(&fixture.image(&format!("all/{name}")), expected, "{name}");
    }
    fixture.run(&["predict", "--rerun", "all/plate_s1_provenance.json", "--out", "again"]).ok();
    assert_eq!(fixture.image("again/plate_s1_labels.tif"), labels[1]);
    // Files of one series are evaluated as they are; a position is converted.
    let scores = ["evaluate", "--pred", "all/plate_s1_labels.tif", "--truth", "named/plate_s1_labels.tif", "--json"];
    let report = fixture.run(&[&scores[..], &["--series", "1"]].concat()).json();
    assert_eq!(report["pairs"].as_array().unwrap().len(), 1);
    let chosen = fixture.run(&["convert", "plate.zarr", "one.tif", "--series", "a/1/1.zarr"]).ok();
    assert!(!chosen.stderr.contains("series"), "{}", chosen.stderr);
    assert_eq!(fixture.image("one.tif"), fixture.image(&stacks[1]));
    // All positions are converted, each to its own file.
    let all = ["convert", "plate.zarr", "two.tif", "--series", "all"];
    let ran = fixture.run(&all).ok();
    assert!(!is_noted(&ran.stderr), "{}", ran.stderr);
    for (name, stack) in ["two.tif", "two_s1.tif"].iter().zip(&stacks) {
        assert_eq!(fixture.image(name), fixture.image(stack), "{name}");
    }
    fixture.run(&["provenance", "two_s1.tif", "--rerun", "--out", "two_again.tif"]).ok();
    assert_eq!(fixture.image("two_again.tif"), fixture.image(&stacks[1]));
    let report = fixture.run(&["convert", "plate.zarr", "each.zarr", "--series", "all", "--json"]).json();
    assert_eq!(report["outputs"], serde_json::json!(["each.zarr", "each_s1.zarr"]), "{report:#}");
    for (name, stack) in ["each.zarr", "each_s1.zarr"].iter().zip(&stacks) {
        assert_eq!(fixture.integers(name), fixture.integers(stack), "{name}");
    }
    // An OME-Zarr in one file, with labels in it.
    let zipped = ["convert", &stacks[0], "one.ozx", "--labels", "alone0/nuclei_1_raw_labels.tif"];
    fixture.run(&zipped).ok();
    assert_eq!(fixture.integers("one.ozx"), fixture.integers(&stacks[0]));
    let info = fixture.run(&["info", "one.ozx", "--json"]).json();
    assert_eq!(info["series_names"][1], "labels/nuclei_1_raw_labels", "{info:#}");
    fixture.fails(2, &zipped, &["one.ozx", "--force"]);
    fixture.run(&[&zipped[..], &["--force"]].concat()).ok();
    assert!(fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
    let zips = fixture.run(&["convert", "plate.zarr", "z.zarr.zip", "--series", "all", "--json"]).json();
    assert_eq!(zips["outputs"], serde_json::json!(["z.zarr.zip", "z_s1.zarr.zip"]), "{zips:#}");
    assert_eq!(fixture.integers("z_s1.zarr.zip"), fixture.integers(&stacks[1]));
    // If the file of a position exists, nothing is written.
    for name in ["two.tif", "two.tif_provenance.json"] {
        std::fs::remove_file(fixture.path(name)).unwrap();
    }
    fixture.fails(2, &all, &["two_s1.tif already exists", "--force"]);
    assert!(!fixture.path("two.tif").exists());
    let labels = ["--labels", "all/plate_labels.tif"];
    fixture.fails(2, &[&["convert", "plate.zarr", "l.zarr", "--series", "all"][..], &labels].concat(), &["--series N"]);
    fixture.fails(2, &predict("plate.zarr", "none", &to_tiff("B/1")), &["no series", "1 (A/1/1.zarr)"]);
    fixture.fails(2, &predict("plate.zarr", "all.zarr", &["--series", "all"]), &["one stack", "there are 2"]);
    // A position that fails does not stop the others.
    std::fs::write(fixture.path("plate.zarr/A/1/1.zarr/0/zarr.json"), "{").unwrap();
    let damaged = ["convert", "plate.zarr", "three.tif", "--series", "all"];
    fixture.fails(3, &damaged, &["failed: series 1: ", "1 of 2 series"]);
    assert_eq!(fixture.image("three.tif"), fixture.image(&stacks[0]));
}

#[test]
fn objects_of_a_predicted_position_are_measured_in_this_position() {
    let fixture = Fixture::new();
    let stacks = [1, 2].map(|seed| fixture.nuclei("12,40,50", seed));
    write_plate(&fixture, &stacks);
    let more = ["--outputs", "maps", "--format", "tiff", "--series"];
    fixture.run(&predict("plate.zarr", "o", &[&more[..], &["1"]].concat())).ok();
    fixture.run(&predict("plate.zarr", "all", &[&more[..], &["all"]].concat())).ok();
    let map = "o/plate_s1_probability.tif";
    std::fs::copy(fixture.path(map), fixture.path("map.tif")).unwrap();
    let table_with = |map: &str, stack: &str, series: &[&str]| {
        let command = ["segment", map, "--intensities", stack, "--out", "l.tif", "--table", "t.csv", "--force"];
        let noted = fixture.run(&[&command[..], series].concat()).ok().stderr;
        (fixture.integers("l.tif"), fixture.bytes("t.csv"), noted.contains("there are 2 series"))
    };
    let table = |map: &str, stack: &str| table_with(map, stack, &[]);
    let expected = table("map.tif", "plate.zarr/A/1/1.zarr");
    assert!(expected.1.iter().filter(|byte| **byte == b'\n').count() > 1 && !expected.2, "there are objects");
    assert!(table(map, "plate.zarr") == expected);
    assert!(table("all/plate_s1_probability.tif", "plate.zarr") == expected);
    assert!(!table("all/plate_probability.tif", "plate.zarr").2, "the record names the first one");
    // Without its record, the position of a map is unknown.
    let (labels, measured, is_noted) = table("map.tif", "plate.zarr");
    assert!(is_noted && labels == expected.0 && measured != expected.1);
    // A position that is given is measured, also the first one.
    assert!(table_with(map, "plate.zarr", &["--series", "0"]) == (labels, measured, false));
    assert!(table_with("map.tif", "plate.zarr", &["--series", "1"]) == expected);
    // The same holds for labels that are measured or stored with their image.
    let labels = ["--outputs", "labels", "--format", "tiff", "--series", "1"];
    fixture.run(&predict("plate.zarr", "labels", &labels)).ok();
    let measured = |series: &[&str]| {
        let command =
            ["measure", "labels/plate_s1_labels.tif", "--intensities", "plate.zarr", "--out", "m.csv", "--force"];
        let printed = fixture.run(&[&command[..], series].concat()).ok().stdout;
        assert!(!printed.contains("there are 2 series"), "the position is known: {printed}");
        (fixture.bytes("m.csv"), printed.contains("predicted from series 1, but series 0 is measured"))
    };
    let own = measured(&[]);
    assert!(!own.1 && own == measured(&["--series", "1"]));
    let (first, is_noted) = measured(&["--series", "0"]);
    assert!(is_noted && first != own.0);
    let convert = ["convert", "plate.zarr", "one.zarr", "--labels", "labels/plate_s1_labels.tif"];
    fixture.fails(3, &convert, &["predicted from series 1", "--series 1"]);
    fixture.run(&[&convert[..], &["--series", "1"]].concat()).ok();
    // Nor is a note needed if the first position of a map is given.
    for (series, is_noted) in [(&[][..], true), (&["--series", "0"], false)] {
        let segment = ["segment", "plate.zarr", "--out", "p.tif", "--force"];
        let printed = fixture.run(&[&segment[..], series].concat()).ok().stdout;
        assert_eq!(printed.contains("there are 2 series"), is_noted, "{printed}");
    }
}

#[test]
fn results_of_a_series_and_of_a_file_of_that_name_are_kept_apart() {
    let fixture = Fixture::new();
    let stacks = [1, 2].map(|seed| fixture.nuclei("12,40,50", seed));
    write_plate(&fixture, &stacks);
    fixture.run(&["convert", &stacks[0], "plate_s1.tif"]).ok();
    let more = ["--outputs", "labels", "--format", "tiff", "--series", "all"];
    // In one run, those of the second are numbered.
    let both = [&["predict", "plate_s1.tif"][..], &predict("plate.zarr", "both", &more)[1..]].concat();
    fixture.run(&both).ok();
    for name in ["plate_labels.tif", "plate_s1_labels.tif", "plate_s1_2_labels.tif"] {
        assert!(fixture.path(&format!("both/{name}")).is_file(), "{name}");
    }
    // In another run, they are refused.
    fixture.run(&predict("plate.zarr", "one", &more)).ok();
    let before = fixture.bytes("one/plate_s1_labels.tif");
    let exists = ["plate_s1_provenance.json", "already exists", "--force"];
    fixture.fails(2, &predict("plate_s1.tif", "one", &more), &exists);
    assert!(fixture.bytes("one/plate_s1_labels.tif") == before);
    // The name of the second series is not given, so results of a file of that name are not replaced with permission either.
    fixture.run(&predict("plate_s1.tif", "two", &more)).ok();
    let before = fixture.bytes("two/plate_s1_labels.tif");
    let forced = [&predict("plate.zarr", "two", &more)[..], &["--force"]].concat();
    fixture.fails(
        2,
        &forced,
        &["plate_s1_provenance.json is of a prediction of ", "plate_s1.tif, not of a series of "],
    );
    assert!(fixture.bytes("two/plate_s1_labels.tif") == before);
    assert!(fixture.path("two/plate_labels.tif").is_file(), "the first series has a name of its own");
    // Its own results are replaced.
    fixture.run(&[&predict("plate.zarr", "one", &more)[..], &["--force"]].concat()).ok();
}

//! `segment`: the objects of a map, and labels that are kept.

use crate::common::Fixture;
use std::collections::BTreeSet;

#[test]
fn segment_finds_the_objects_of_a_map() {
    let fixture = Fixture::new();
    // Two separate blocks and a single voxel.
    let at = |z: usize, y: usize, x: usize| (z * 20 + y) * 30 + x;
    let mut map = vec![0.05f32; 10 * 20 * 30];
    for z in 2..8 {
        for y in 4..16 {
            (3..12).chain(17..27).for_each(|x| map[at(z, y, x)] = 0.9);
        }
    }
    map[at(0, 0, 29)] = 0.9;
    fixture.write("map.tif", "ZYX", &[10, 20, 30], map.clone());
    let common = ["segment", "--force", "map.tif", "--threshold", "0.5", "--method", "components", "--json"];
    let report =
        fixture.run(&[&common[..], &["--out", "l.tif", "--table", "t.csv", "--min-volume-um3", "10"]].concat()).json();
    assert_eq!(report["objects"], 2);
    let found = fixture.labels("l.tif");
    let expected: Vec<bool> = map.iter().enumerate().map(|(i, v)| *v > 0.5 && i != at(0, 0, 29)).collect();
    assert!(found.iter().zip(&expected).all(|(l, e)| (*l > 0) == *e));
    assert_ne!(found[at(4, 8, 5)], found[at(4, 8, 20)]);
    let sizes: BTreeSet<String> = fixture.table("t.csv")[1..].iter().map(|r| r[1].clone()).collect();
    assert_eq!(sizes, BTreeSet::from([(6 * 12 * 9).to_string(), (6 * 12 * 10).to_string()]));
    let report = fixture.run(&[&common[..], &["--out", "l.tif", "--min-volume-um3", "0"]].concat()).json();
    assert_eq!(report["objects"], 3);
    let report =
        fixture.run(&[&common[..], &["--out", "l.tif", "--min-volume-um3", "0", "--drop-border"]].concat()).json();
    assert_eq!(report["objects"], 2);
    let negative = ["segment", "--force", "map.tif", "--threshold", "-1", "--method", "components", "--json"];
    let report = fixture.run(&[&negative[..], &["--out", "l.tif"]].concat()).json();
    assert_eq!(report["objects"], 1, "the whole stack is above a negative threshold");
    fixture.fails(3, &["segment", "map.tif", "--out", "x.tif", "--channel", "2"], &["map.tif", "channel 2"]);
    fixture.fails(3, &["segment", "nothere.tif", "--out", "x.tif"], &["nothere.tif"]);
    assert!(!fixture.path("x.tif").exists());
}

#[test]
fn a_table_that_lists_the_objects_of_earlier_labels_is_noted() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    fixture.run(&["predict", &raw, "--model", "nuclei-dog", "--out", "o"]).ok();
    let segment = ["segment", "o/nuclei_1_raw_probability.tif", "--out", "o/nuclei_1_raw_labels.tif"];
    let with_settings = |more: &[&str]| {
        let ran = fixture.run(&[&segment[..], more].concat()).ok();
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let note = "nuclei_1_raw_objects.csv lists the objects of the earlier labels";
    let printed = with_settings(&["--threshold", "0.9"]);
    assert!(printed.contains(note) && printed.contains("--table"), "{printed}");
    let table = ["--table", "o/nuclei_1_raw_objects.csv"];
    assert!(!with_settings(&[&["--threshold", "0.9"][..], &table].concat()).contains(note), "it is written again");
}

#[test]
fn objects_from_the_map_of_a_prediction_are_made_again_unless_they_were_edited() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,40,40", 1);
    fixture.run(&["predict", &raw, "--model", "nuclei-dog", "--out", "o", "--outputs", "maps"]).ok();
    let segment = ["segment", "o/nuclei_1_raw_probability.tif", "--out", "o/own.tif"];
    fixture.run(&segment).ok();
    let first = fixture.bytes("o/own.tif");
    // Other settings; nothing is moved aside.
    fixture.run(&[&segment[..], &["--threshold", "0.9"]].concat()).ok();
    assert!(fixture.bytes("o/own.tif") != first, "the labels are the same");
    assert_eq!(fixture.names("o").iter().filter(|name| name.contains("before")).count(), 0);
    // Labels that a program changed are kept.
    std::fs::write(fixture.path("o/own.tif"), "drawn by hand").unwrap();
    fixture.fails(2, &segment, &["own.tif", "--force"]);
    assert_eq!(fixture.bytes("o/own.tif"), b"drawn by hand");
    // Without a prediction's record, a map could be any image.
    std::fs::copy(fixture.path(segment[1]), fixture.path("map.tif")).unwrap();
    fixture.run(&["segment", "map.tif", "--out", "l.tif"]).ok();
    fixture.fails(2, &["segment", "map.tif", "--out", "l.tif"], &["l.tif", "--force"]);
}

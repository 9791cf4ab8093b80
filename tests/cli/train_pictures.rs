//! Pictures in the packages of trained networks: examples of the validation images, and curves of the training run.

use crate::common::Fixture;
use crate::train::{SMALL, simulate_pairs, write_settings};
use cytoscope_model_package::Package;
use image::RgbImage;

/// The square panels of a picture.
pub(crate) fn panels(fixture: &Fixture, name: &str) -> Vec<RgbImage> {
    let picture = image::load_from_memory(&fixture.bytes(name)).unwrap().to_rgb8();
    let edge = picture.height();
    assert!(edge <= 320, "{edge}");
    let step = edge + 6;
    assert_eq!((picture.width() + 6) % step, 0, "{:?}", picture.dimensions());
    (0..(picture.width() + 6) / step)
        .map(|i| image::imageops::crop_imm(&picture, i * step, 0, edge, edge).to_image())
        .collect()
}

/// Counts the points of a curve in an SVG and the circles of a class; fails if the text is not XML.
fn curve_and_circles(svg: &str, curve: &str, circles: &str) -> (usize, usize) {
    let mut reader = quick_xml::Reader::from_str(svg);
    let (mut points, mut found, mut depth) = (0, 0, 0);
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(_) => depth += 1,
            quick_xml::events::Event::End(_) => depth -= 1,
            quick_xml::events::Event::Empty(tag) => {
                let of = |name: &str| {
                    let attribute = tag.try_get_attribute(name).unwrap();
                    attribute.map_or_else(String::new, |a| a.value.into_owned())
                };
                match tag.name().as_ref() {
                    "polyline" if of("class") == curve => points += of("points").split(' ').count(),
                    "circle" if of("class") == circles => found += 1,
                    _ => {}
                }
            }
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "{svg}");
    (points, found)
}

#[test]
fn package_contains_example_pictures_and_training_curves() {
    let fixture = Fixture::new();
    simulate_pairs(&fixture, 3);
    write_settings(&fixture, "");
    let arguments = [&SMALL[..], &["--steps", "30", "--without-int8", "--out"]].concat();
    let report = fixture.run(&[&arguments[..], &["m"]].concat()).json();
    let count = |key: &str| report["history"][key].as_array().unwrap().len();
    let svg = String::from_utf8(fixture.bytes("m/curves.svg")).unwrap();
    assert_eq!(curve_and_circles(&svg, "loss", "validation"), (count("steps"), count("validations")));
    assert_eq!(curve_and_circles(&svg, "score", "best").0, count("validations"));
    // The yellow outlines match the borders in the ground-truth file, in the slice with the most foreground.
    let case = report["pairs_after"][0]["name"].as_str().unwrap();
    let file = fixture.names("sim").into_iter().find(|n| n.contains(case) && n.ends_with("_labels.tif")).unwrap();
    let truth = fixture.image(&format!("sim/{file}")).samples().to_f32();
    let full = |z: usize| truth[z * 4096..(z + 1) * 4096].iter().filter(|l| **l > 0.0).count();
    let z = (0..16).rev().max_by_key(|z| full(*z)).unwrap();
    let label = |y: usize, x: usize| truth[(z * 64 + y) * 64 + x];
    let shown = panels(&fixture, "m/example_0.png");
    assert_eq!(shown.len(), 2, "a network trained from scratch has no prediction before training");
    let yellow = |y: usize, x: usize| shown[0].get_pixel(x as u32, y as u32).0 == [255, 190, 60];
    let (mut rims, mut insides) = (0, 0);
    for y in 1..63 {
        for x in 1..63 {
            let own = label(y, x);
            let any = (0..25).any(|i| yellow(y * 5 + i / 5, x * 5 + i % 5));
            if own == 0.0 {
                assert!(!any, "background at {y}, {x}");
                continue;
            }
            // The middle pixel of each side of the voxel.
            for (dy, dx) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
                let border = label(y + dy - 1, x + dx - 1) != own;
                assert_eq!(yellow(y * 5 + dy * 2, x * 5 + dx * 2), border, "{y}, {x}: side {dy}, {dx}");
                rims += usize::from(border);
            }
            if (0..9).all(|i| label(y + i / 3 - 1, x + i % 3 - 1) == own) {
                assert!(!any, "inside an object at {y}, {x}");
                insides += 1;
            }
        }
    }
    assert!(rims > 100 && insides > 100, "{rims} {insides}");
    assert!(!shown[1].pixels().any(|p| p.0 == [255, 190, 60]), "predicted outlines have another color");

    // After fine-tuning there is a score before training, and a zip of the package is complete.
    let report = fixture.run(&[&arguments[..], &["next.zip", "--from", "m"]].concat()).json();
    assert!(report["before"]["f1@0.5"].is_number());
    fixture.run(&["import", "next.zip", "--out", "next"]).ok();
    assert_eq!(panels(&fixture, "next/example_0.png").len(), 3);
    let [zip, folder] = ["next.zip", "next"].map(|n| Package::open(&fixture.path(n)).unwrap());
    assert_eq!(zip.rdf["covers"], serde_json::json!(["example_0.png", "curves.svg"]));
    assert_eq!(folder.rdf["covers"], zip.rdf["covers"]);
    for name in ["example_0.png", "curves.svg", "README.md"] {
        assert_eq!(zip.files().read(name).unwrap(), fixture.bytes(&format!("next/{name}")), "{name}");
    }
    let card = String::from_utf8(fixture.bytes("next/README.md")).unwrap();
    assert!(card.contains("](example_0.png)") && card.contains("before"), "{card}");
    assert!(card.contains(&case.replace('_', "\\_")), "the name is escaped: {card}");
}

//! Pictures in color, and other images with several samples in each pixel.

use crate::common::Fixture;

#[test]
fn an_rgb_picture_asks_for_a_channel() {
    let fixture = Fixture::new();
    let pixels: Vec<u8> = (0..32 * 32 * 3).map(|i| (i * 7 % 251) as u8).collect();
    fixture.write("rgb.tif", "YXS", &[32, 32, 3], pixels);
    fixture.fails(3, &["predict", "rgb.tif", "--out", "o"], &["rgb.tif", "RGB", "--channel 0 (red)"]);
    assert!(fixture.names("o").is_empty());
    fixture.run(&["predict", "rgb.tif", "--channel", "1", "--out", "o"]).ok();
    fixture.fails(3, &["predict", "rgb.tif", "--channel", "3", "--out", "o"], &["rgb.tif", "--channel from 0 to 2"]);
}

#[test]
fn many_samples_in_each_pixel_are_not_taken_for_colors() {
    let fixture = Fixture::new();
    let values: Vec<u16> = (0..32 * 32 * 8).map(|i| (i * 7 % 251) as u16).collect();
    fixture.write("samples.ome.tif", "YXS", &[32, 32, 8], values);
    let words = ["samples.ome.tif", "each of its pixels has 8 samples (axis S)", "--channel 0 to 7", "as a page"];
    fixture.fails(3, &["predict", "samples.ome.tif", "--model", "nuclei-dog", "--out", "o"], &words);
    let chosen = ["predict", "samples.ome.tif", "--model", "nuclei-dog", "--channel", "7", "--out", "o"];
    fixture.run(&chosen).ok();
}

#[test]
fn the_only_color_of_a_picture_is_predicted() {
    let fixture = Fixture::new();
    // Disks on a lattice.
    let value = |x: u32, y: u32| {
        let off = |at: u32| f64::from(at % 32) - 15.5;
        if off(x).hypot(off(y)) <= 9.0 { 200u8 } else { 20 }
    };
    let save = |name: &str, pixel: &dyn Fn(u8, u8) -> [u8; 3]| {
        let image = image::RgbImage::from_fn(128, 128, |x, y| image::Rgb(pixel(value(x, y), value(x + 9, y))));
        image.save(fixture.path(name)).unwrap();
    };
    save("gray.png", &|v, _| [v; 3]);
    save("blue.png", &|v, _| [0, 0, v]);
    save("two.png", &|v, other| [0, other, v]);
    for (name, note) in [("gray", "red is used"), ("blue", "blue is used")] {
        let file = format!("{name}.png");
        let report = fixture.run(&["predict", &file, "--out", "o", "--json"]).json();
        assert!(report["inputs"][0]["notes"].to_string().contains(note), "{report}");
        assert_eq!(report["inputs"][0]["objects"][0], 16, "{report}");
    }
    assert_eq!(fixture.integers("o/blue_labels.tif"), fixture.integers("o/gray_labels.tif"));
    fixture.fails(3, &["predict", "two.png", "--out", "o"], &["two.png", "RGB", "--channel 0 (red)"]);
}

#[test]
fn the_samples_of_an_rgb_picture_are_channels_of_their_colors_in_ome_zarr() {
    let fixture = Fixture::new();
    let pixels: Vec<u8> = (0..32 * 32 * 3).map(|i| 20 + (i * 7 % 151) as u8).collect();
    fixture.write("rgb.tif", "YXS", &[32, 32, 3], pixels);
    fixture.run(&["convert", "rgb.tif", "rgb.zarr"]).ok();
    let text = std::fs::read_to_string(fixture.path("rgb.zarr/zarr.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let channels = json["attributes"]["ome"]["omero"]["channels"].as_array().unwrap();
    let colors: Vec<_> = channels.iter().map(|channel| channel["color"].as_str().unwrap()).collect();
    assert_eq!(colors, ["FF0000", "00FF00", "0000FF"]);
    for channel in channels {
        let window = &channel["window"];
        assert_eq!((window["start"].as_f64(), window["end"].as_f64()), (Some(0.0), Some(255.0)), "{window}");
    }
}

#[test]
fn one_color_of_an_rgb_picture_is_converted() {
    let fixture = Fixture::new();
    let pixels: Vec<u8> = (0..32 * 32 * 3).map(|i| (i * 7 % 251) as u8).collect();
    let green: Vec<u16> = pixels.iter().skip(1).step_by(3).map(|value| u16::from(*value)).collect();
    fixture.write("rgb.tif", "YXS", &[32, 32, 3], pixels);
    for out in ["green.tif", "green.ome.tif", "green.npy", "green.ome.zarr"] {
        fixture.run(&["convert", "rgb.tif", out, "--channel", "1"]).ok();
        assert_eq!(fixture.integers(out), green, "{out}");
        let shape = fixture.image(out).shape().to_vec();
        assert_eq!(shape.iter().filter(|extent| **extent > 1).collect::<Vec<_>>(), [&32, &32], "{out}");
    }
    fixture.fails(3, &["convert", "rgb.tif", "x.tif", "--channel", "3"], &["rgb.tif", "channel 3", "0 to 2"]);
}

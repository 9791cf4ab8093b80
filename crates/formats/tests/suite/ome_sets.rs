//! OME-XML: annotations that are not images, and images whose planes are in several files.

use crate::common::tiff_builder::{Tiff, gray};
use cytoscope_formats::{FormatErrorKind, OpenOptions, first_file_per_series, open, open_bytes};
use std::path::Path;

#[test]
fn annotations_of_other_programs_in_ome_xml_are_no_images() {
    let image = "<Image Name=\"cells\"><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"1\" SizeC=\"2\" \
                 SizeT=\"1\"><Channel Name=\"nuclei\"/><Channel Name=\"actin\"/><TiffData/></Pixels></Image>";
    let annotations = "<StructuredAnnotations><XMLAnnotation><Value><Image Name=\"other\"><Pixels/><Channel Name=\"lamp\"/>\
                       <TiffData IFD=\"x\"/></Image></Value></XMLAnnotation></StructuredAnnotations>";
    for content in [format!("{image}{annotations}"), format!("{annotations}{image}")] {
        let mut t = Tiff::new();
        for i in 0..2u8 {
            let at = t.data(&[i; 12]);
            let mut tags = gray(4, 3, at, 12);
            let text = format!("<OME>{content}</OME>");
            tags.push((270, 2, text.bytes().map(u32::from).chain([0]).collect()));
            tags.sort_by_key(|tag| tag.0);
            t.page(&tags);
        }
        let image = open_bytes(t.bytes, &OpenOptions::default()).unwrap();
        let meta = image.meta();
        assert_eq!((meta.axes.to_string().as_str(), meta.series_names.as_slice()), ("CYX", &["cells".to_owned()][..]));
        assert_eq!([0, 1].map(|channel| meta.channel_name(channel)), ["nuclei", "actin"]);
    }
}

#[test]
fn images_of_a_document_without_tiff_data_follow_each_other() {
    let image = |slices: usize, channels: usize| {
        format!(
            "<Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"{slices}\" SizeC=\"{channels}\" \
             SizeT=\"1\"/></Image>"
        )
    };
    let mut t = Tiff::new();
    for i in 0..6u8 {
        let at = t.data(&[i; 12]);
        let mut tags = gray(4, 3, at, 12);
        if i == 0 {
            let text = format!("<OME>{}{}{}</OME>", image(2, 1), image(1, 3), image(1, 1));
            tags.push((270, 2, text.bytes().map(u32::from).chain([0]).collect()));
            tags.sort_by_key(|tag| tag.0);
        }
        t.page(&tags);
    }
    let first_values = |series: usize| {
        let options = OpenOptions { series, ..OpenOptions::default() };
        let array = open_bytes(t.bytes.clone(), &options).unwrap().read_all().unwrap();
        array.samples().as_bytes().chunks(12).map(|plane| plane[0]).collect::<Vec<u8>>()
    };
    assert_eq!([0, 1, 2].map(first_values), [vec![0, 1], vec![2, 3, 4], vec![5]]);
}

/// Two images of two slices each, in four files; slice i is filled with i.
#[test]
fn a_file_of_a_set_opens_the_image_that_it_belongs_to() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a0.tif", "a1.tif", "b0.tif", "b1.tif"];
    let image = |files: &[&str]| {
        let plane = |(z, name): (usize, &&str)| {
            format!("<TiffData FirstZ=\"{z}\" IFD=\"0\"><UUID FileName=\"{name}\">urn:uuid:{name}</UUID></TiffData>")
        };
        let planes: String = files.iter().enumerate().map(plane).collect();
        format!(
            "<Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"2\" SizeC=\"1\" SizeT=\"1\">{planes}</Pixels></Image>"
        )
    };
    let images = image(&names[..2]) + &image(&names[2..]);
    let complete = |name: &str| format!("<OME UUID=\"urn:uuid:{name}\">{images}</OME>");
    let elsewhere = |name: &str, holder: &str| {
        format!(
            "<OME UUID=\"urn:uuid:{name}\"><BinaryOnly MetadataFile=\"{holder}\" UUID=\"urn:uuid:{holder}\"/></OME>"
        )
    };
    let write = |name: &str, description: String| {
        let mut t = Tiff::new();
        let value = names.iter().position(|n| *n == name).unwrap() as u8;
        let at = t.data(&[value; 12]);
        let mut tags = gray(4, 3, at, 12);
        tags.push((270, 2, description.bytes().map(u32::from).chain([0]).collect()));
        tags.sort_by_key(|tag| tag.0);
        t.page(&tags);
        std::fs::write(folder.path().join(name), &t.bytes).unwrap();
    };
    let first_value = |name: &str, series: usize| {
        let options = OpenOptions { series, ..OpenOptions::default() };
        let image = open(&folder.path().join(name), &options).unwrap();
        assert_eq!((image.meta().shape.as_slice(), image.meta().series_count), (&[2, 3, 4][..], 2), "{name}");
        image.read_all().unwrap().samples().as_bytes()[0]
    };
    let companion = "set.companion.ome";
    std::fs::write(folder.path().join(companion), complete(companion)).unwrap();
    // The metadata are in every file, in the first one, or in a companion file.
    for holder in [None, Some("a0.tif"), Some(companion)] {
        for name in names {
            let text = holder.filter(|h| *h != name).map_or_else(|| complete(name), |h| elsewhere(name, h));
            write(name, text);
        }
        for (name, expected) in [("a0.tif", [0, 2]), ("a1.tif", [0, 2]), ("b0.tif", [2, 0]), ("b1.tif", [2, 0])] {
            assert_eq!([first_value(name, 0), first_value(name, 1)], expected, "{name}, metadata in {holder:?}");
        }
        assert_eq!([first_value(companion, 0), first_value(companion, 1)], [0, 2]);
    }
}

/// Two images in a file each; the file of the second one is missing.
#[test]
fn an_image_whose_file_is_missing_is_not_read_from_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let image = |name: &str| {
        format!(
            "<Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"1\" SizeC=\"1\" SizeT=\"1\"><TiffData \
             IFD=\"0\"><UUID FileName=\"{name}\">urn:uuid:{name}</UUID></TiffData></Pixels></Image>"
        )
    };
    let write = |name: &str, images: String| {
        let mut t = Tiff::new();
        let at = t.data(&[7u8; 12]);
        let mut tags = gray(4, 3, at, 12);
        tags.push((270, 2, format!("<OME>{images}</OME>").bytes().map(u32::from).chain([0]).collect()));
        tags.sort_by_key(|tag| tag.0);
        t.page(&tags);
        std::fs::write(folder.path().join(name), &t.bytes).unwrap();
    };
    let open_series =
        |name: &str, series: usize| open(&folder.path().join(name), &OpenOptions { series, ..OpenOptions::default() });
    write("p0.tif", image("p0.tif") + &image("p1.tif"));
    let first = open_series("p0.tif", 0).unwrap();
    assert_eq!((first.meta().series_count, first.read_all().unwrap().samples().as_bytes()[0]), (2, 7));
    let error = open_series("p0.tif", 1).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed);
    assert!(error.to_string().contains("'p1.tif', which is missing"), "{error}");
    // A single file with all images may have been renamed.
    write("renamed.tif", image("before.tif") + &image("before.tif"));
    for series in [0, 1] {
        assert_eq!(open_series("renamed.tif", series).unwrap().read_all().unwrap().samples().as_bytes()[0], 7);
    }
}

/// Writes a page filled with a value, with OME-XML.
fn write_page(path: &Path, value: u8, xml: &str) {
    let mut t = Tiff::new();
    let at = t.data(&[value; 12]);
    let mut tags = gray(4, 3, at, 12);
    tags.push((270, 2, xml.bytes().map(u32::from).chain([0]).collect()));
    tags.sort_by_key(|tag| tag.0);
    t.page(&tags);
    std::fs::write(path, &t.bytes).unwrap();
}

/// An image of slices, each in a file of its own.
fn image_of(names: &[&str]) -> String {
    let plane = |(z, name): (usize, &&str)| {
        format!("<TiffData FirstZ=\"{z}\" IFD=\"0\"><UUID FileName=\"{name}\">urn:uuid:{z}</UUID></TiffData>")
    };
    let (planes, depth): (String, usize) = (names.iter().enumerate().map(plane).collect(), names.len());
    format!(
        "<Image Name=\"{}\"><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"{depth}\" SizeC=\"1\" \
         SizeT=\"1\">{planes}</Pixels></Image>",
        names.join("+")
    )
}

/// Programs that manage data keep files in a store, and link to them.
#[cfg(unix)]
#[test]
fn the_files_of_a_set_may_be_links_to_files_elsewhere_but_are_named_in_its_folder() {
    let [folder, store] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let names = ["a.ome.tif", "b.ome.tif"];
    for (value, name) in (1..).zip(names) {
        let stored = store.path().join(format!("{value}.bin"));
        write_page(&stored, value, &format!("<OME>{}</OME>", image_of(&names)));
        std::os::unix::fs::symlink(&stored, folder.path().join(name)).unwrap();
    }
    let image = open(&folder.path().join("a.ome.tif"), &OpenOptions::default()).unwrap();
    assert_eq!(image.read_all().unwrap().samples().as_bytes(), [[1u8; 12], [2; 12]].concat());
    let outside = store.path().join("1.bin").display().to_string();
    let named = folder.path().join("c.ome.tif");
    write_page(&named, 1, &format!("<OME>{}</OME>", image_of(&["c.ome.tif", &outside])));
    let refused = open(&named, &OpenOptions::default()).and_then(|image| image.read_all()).unwrap_err().to_string();
    assert!(refused.contains("which is not in the same folder"), "{refused}");
}

/// Systems write accents in names as characters of their own or as parts of letters.
#[test]
fn files_of_a_set_are_found_by_names_in_another_unicode_form() {
    let folder = tempfile::tempdir().unwrap();
    let xml =
        format!("<OME>{}{}</OME>", image_of(&["other.ome.tif"]), image_of(&["\u{e9}0.ome.tif", "\u{e9}1.ome.tif"]));
    let on_disk = ["e\u{301}0.ome.tif", "e\u{301}1.ome.tif"].map(|name| folder.path().join(name));
    for (value, path) in (1..).zip(&on_disk) {
        write_page(path, value, &xml);
    }
    for path in &on_disk {
        let image = open(path, &OpenOptions::default()).unwrap();
        let samples = image.read_all().unwrap().samples().as_bytes().to_vec();
        assert_eq!(samples, [[1u8; 12], [2; 12]].concat(), "{path:?}");
        assert!(image.files().iter().all(|file| file.is_file()), "{:?}", image.files());
    }
}

#[test]
fn one_file_of_each_image_of_a_set_stands_for_it_in_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let list = |names: &[&str]| names.iter().map(|name| at(name)).collect::<Vec<_>>();
    // A set with one image, one with two, files that name only themselves, and one that cannot be opened.
    let (a, b) = (["a0.ome.tif", "a1.ome.tif"], ["b0.ome.tif", "b1.ome.tif", "b2.ome.tif"]);
    for name in a {
        write_page(&at(name), 0, &format!("<OME>{}</OME>", image_of(&a)));
    }
    for name in b {
        write_page(&at(name), 0, &format!("<OME>{}{}</OME>", image_of(&b[..1]), image_of(&b[1..])));
    }
    for name in ["c0.ome.tif", "c1.ome.tif"] {
        write_page(&at(name), 0, &format!("<OME>{}</OME>", image_of(&[name])));
    }
    std::fs::write(at("d.ome.tif"), b"no image").unwrap();
    let all = list(&[&a[..], &b[..], &["c0.ome.tif", "c1.ome.tif", "d.ome.tif", "e.npy"][..]].concat());
    let kept = list(&["a0.ome.tif", "b0.ome.tif", "b1.ome.tif", "c0.ome.tif", "c1.ome.tif", "d.ome.tif", "e.npy"]);
    assert_eq!(first_file_per_series(&all), kept);
    assert_eq!(first_file_per_series(&all[1..]), [&all[1..2], &kept[1..]].concat());
}

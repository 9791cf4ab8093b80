//! Names and texts that are no plain text, and an output that takes nothing.

use crate::common::Desk;

#[cfg(unix)]
#[test]
fn a_name_that_is_no_unicode_is_refused_before_any_work() {
    use std::os::unix::ffi::OsStrExt;
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    let odd = std::ffi::OsStr::from_bytes(b"st\xffck.tif");
    std::fs::create_dir(desk.path("in")).unwrap();
    std::fs::copy(desk.path(&raw), desk.path("in").join(odd)).unwrap();
    let out = desk.command(&["predict", "--out", "o"]).arg(std::path::Path::new("in").join(odd)).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("Unicode") && !desk.path("o").exists(), "{said}");
    // In a folder it fails alone: the others are predicted.
    std::fs::copy(desk.path(&raw), desk.path("in/plain.tif")).unwrap();
    let out = desk.command(&["predict", "in", "--model", "nuclei-dog", "--out", "o"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("Unicode") && said.contains("1 of 2 inputs failed"), "{said}");
    assert!(desk.path("o/plain_labels.tif").is_file());
}

#[test]
fn text_from_files_does_not_steer_the_terminal() {
    let desk = Desk::new();
    // A channel's name that clears the screen, colours what follows, and rings: as 7-bit and as 8-bit codes.
    let evil = "\u{1b}[2J\u{1b}[31mred\u{7}\u{9b}2Jx";
    let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![2, 4, 4], vec![1u16; 32]).unwrap();
    let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
    spec.channels = vec![cytoscope_formats::Channel { name: evil.to_owned(), color_rgb: None }];
    let written = cytoscope_formats::write_array(&desk.path("e.ome.tif"), &array, &spec);
    let name = if written.is_ok() { "e.ome.tif" } else { "e.tif" };
    if written.is_err() {
        spec.container = cytoscope_formats::Container::ImageJ;
        cytoscope_formats::write_array(&desk.path("e.tif"), &array, &spec).unwrap();
    }
    for arguments in
        [vec!["info", name], vec!["info", name, "--json"], vec!["predict", name, "--channel", "9", "--out", "o"]]
    {
        let ran = desk.run(&arguments);
        for text in [&ran.stdout, &ran.stderr] {
            let raw = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(raw, None, "{arguments:?}: {text:?}");
        }
    }
    let named =
        desk.run(&["info", name, "--json"]).json()["channels"][0]["name"].as_str().unwrap_or_default().to_owned();
    assert!(named.contains("red"), "the name itself is kept: {named:?}");
    // A file's own name, too.
    std::fs::write(desk.path("a\u{1b}[31m.tif"), "no image").unwrap();
    let ran = desk.run(&["info", "a\u{1b}[31m.tif"]);
    assert!(ran.code == Some(3) && !ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn an_output_that_takes_nothing_is_an_error_and_a_reader_that_left_is_none() {
    let desk = Desk::new();
    let raw = desk.nuclei("8,48,48", 1);
    for arguments in [vec!["info", &raw], vec!["info", &raw, "--json"], vec!["devices", "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = desk.command(&arguments).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(4), "{arguments:?}: {said}");
        assert!(said.contains("standard output") && said.contains("space"), "{said}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = desk.command(&["info", &raw]).stdout(writer).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
}

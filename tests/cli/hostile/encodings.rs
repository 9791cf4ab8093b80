//! File names and texts with unusual bytes, and a standard output that cannot be written.

use crate::common::Fixture;

#[cfg(unix)]
#[test]
fn non_unicode_names_are_refused_before_any_work() {
    use std::os::unix::ffi::OsStrExt;
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let odd = std::ffi::OsStr::from_bytes(b"st\xffck.tif");
    std::fs::create_dir(fixture.path("in")).unwrap();
    std::fs::copy(fixture.path(&raw), fixture.path("in").join(odd)).unwrap();
    let out = fixture.command(&["predict", "--out", "o"]).arg(std::path::Path::new("in").join(odd)).output().unwrap();
    let printed = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{printed}");
    assert!(printed.contains("Unicode") && !fixture.path("o").exists(), "{printed}");
    // In a folder, only this file fails.
    std::fs::copy(fixture.path(&raw), fixture.path("in/plain.tif")).unwrap();
    let out = fixture.command(&["predict", "in", "--model", "nuclei-dog", "--out", "o"]).output().unwrap();
    let printed = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{printed}");
    assert!(printed.contains("Unicode") && printed.contains("1 of 2 inputs failed"), "{printed}");
    assert!(fixture.path("o/plain_labels.tif").is_file());
}

#[test]
fn text_from_files_never_controls_the_terminal() {
    let fixture = Fixture::new();
    // A channel name that clears the screen, colors text and rings the bell, as 7-bit and 8-bit codes.
    let evil = "\u{1b}[2J\u{1b}[31mred\u{7}\u{9b}2Jx";
    let array = cytoscope_volume::Array::new("ZYX".parse().unwrap(), vec![2, 4, 4], vec![1u16; 32]).unwrap();
    let mut spec = cytoscope_formats::WriteSpec::of(&array, cytoscope_formats::Container::OmeTiff);
    spec.channels = vec![cytoscope_formats::Channel { name: evil.to_owned(), color_rgb: None }];
    let written = cytoscope_formats::write_array(&fixture.path("e.ome.tif"), &array, &spec);
    let name = if written.is_ok() { "e.ome.tif" } else { "e.tif" };
    if written.is_err() {
        spec.container = cytoscope_formats::Container::ImageJ;
        cytoscope_formats::write_array(&fixture.path("e.tif"), &array, &spec).unwrap();
    }
    for arguments in
        [vec!["info", name], vec!["info", name, "--json"], vec!["predict", name, "--channel", "9", "--out", "o"]]
    {
        let ran = fixture.run(&arguments);
        for text in [&ran.stdout, &ran.stderr] {
            let raw = text.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(raw, None, "{arguments:?}: {text:?}");
        }
    }
    let named =
        fixture.run(&["info", name, "--json"]).json()["channels"][0]["name"].as_str().unwrap_or_default().to_owned();
    assert!(named.contains("red"), "the name itself is kept: {named:?}");
    // A file name is treated alike.
    std::fs::write(fixture.path("a\u{1b}[31m.tif"), "no image").unwrap();
    let ran = fixture.run(&["info", "a\u{1b}[31m.tif"]);
    assert!(ran.code == Some(3) && !ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
    // A line break in a name begins no line.
    std::fs::copy(fixture.path(name), fixture.path("a\nb.ome.tif")).unwrap();
    for arguments in [&["info", "a\nb.ome.tif"][..], &["convert", "a\nb.ome.tif", "c\nb.npy"]] {
        let ran = fixture.run(arguments).ok();
        assert!(
            [&ran.stdout, &ran.stderr].iter().all(|text| !text.contains("\nb.")),
            "{:?} {:?}",
            ran.stdout,
            ran.stderr
        );
        assert!(ran.stdout.contains("\\u{a}b."), "{:?}", ran.stdout);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_stdout_is_an_error_and_a_closed_pipe_is_not() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("8,48,48", 1);
    let (options, commands) = (["--help", "--version"], ["info", "train", "bench"]);
    let helps = options.map(|option| vec![option]).into_iter().chain(commands.map(|name| vec![name, "--help"]));
    let jobs = [vec!["info", &raw], vec!["info", &raw, "--json"], vec!["devices", "--json"]];
    for arguments in jobs.into_iter().chain(helps) {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = fixture.command(&arguments).stdout(full).output().unwrap();
        let printed = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(4), "{arguments:?}: {printed}");
        assert!(printed.contains("standard output") && printed.contains("space"), "{printed}");
    }
    for arguments in [["info", &raw], ["train", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = fixture.command(&arguments).stdout(writer).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

//! Paths that are not regular files are refused at once, and the error names their kind.

use cytoscope_formats::{FormatErrorKind, OpenOptions, open};
use std::path::Path;

fn assert_refused(path: &Path, says: &str) {
    let error = open(path, &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported, "{error}");
    let text = error.to_string();
    assert!(text.contains(says) && text.contains("an image file"), "\"{text}\" does not say \"{says}\"");
}

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_sockets_devices_and_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert_refused(folder.path(), "a folder");
    let path = folder.path().join("a.tif");
    pipe(&path);
    assert_refused(&path, "a named pipe");
    let socket = folder.path().join("b.tif");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_refused(&socket, "a socket");
    assert_refused(Path::new("/dev/zero"), "a device");
    let link = folder.path().join("c.tif");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    assert_refused(&link, "a device");
}

#[test]
fn a_set_that_names_a_pipe_does_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let companion = folder.path().join("set.companion.ome");
    let xml = r#"<OME><Image><Pixels DimensionOrder="XYZCT" Type="uint8" SizeX="2" SizeY="2" SizeZ="1" SizeC="1" SizeT="1">
        <TiffData IFD="0"><UUID FileName="a.tif">urn:uuid:1</UUID></TiffData></Pixels></Image></OME>"#;
    std::fs::write(&companion, xml).unwrap();
    pipe(&folder.path().join("a.tif"));
    let error = open(&companion, &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("a.tif"), "{error}");
}

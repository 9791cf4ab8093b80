//! Memory while scrolling through a huge stack. The test has its own process, because its memory is measured.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, reason = "a test")]

#[path = "window/fixture.rs"]
mod fixture;

use fixture::Fixture;

#[test]
fn scrolling_through_eight_gigabytes_uses_little_memory() {
    // A sparse file, which takes no disk space.
    let mut fixture = Fixture::with(|folder| {
        let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        header.extend(b"{'descr': '<u2', 'fortran_order': False, 'shape': (1024, 2048, 2048), }");
        header.resize(127, b' ');
        header.push(b'\n');
        let path = folder.join("large.npy");
        std::fs::write(&path, &header).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(128 + (8 << 30)).unwrap();
        vec![path]
    });
    fixture.settle();
    let before = cytoscope_profile::resident_bytes().unwrap_or(0);
    for _ in 0..60 {
        fixture.window.key_press(eframe::egui::Key::PageUp);
        fixture.window.run_steps(2);
        fixture.settle();
    }
    assert_eq!(fixture.window.state().document().unwrap().cursor[0], 512 + 60);
    let growth = cytoscope_profile::resident_bytes().unwrap_or(0).saturating_sub(before);
    assert!(growth < 1 << 30, "scrolling took {growth} bytes");
}

//! A stack far larger than what may be held: alone in its process, whose memory is what is measured.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, reason = "a test")]

#[path = "window/desk.rs"]
mod desk;

use desk::Desk;

#[test]
fn eight_gigabytes_are_scrolled_through_in_little_memory() {
    // Sparse: it takes no disk.
    let mut desk = Desk::with(|folder| {
        let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        header.extend(b"{'descr': '<u2', 'fortran_order': False, 'shape': (1024, 2048, 2048), }");
        header.resize(127, b' ');
        header.push(b'\n');
        let path = folder.join("large.npy");
        std::fs::write(&path, &header).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(128 + (8 << 30)).unwrap();
        vec![path]
    });
    desk.settle();
    let before = cytoscope_profile::resident_bytes().unwrap_or(0);
    for _ in 0..60 {
        desk.window.key_press(eframe::egui::Key::PageUp);
        desk.window.run_steps(2);
        desk.settle();
    }
    assert_eq!(desk.window.state().document().unwrap().cursor[0], 512 + 60);
    let grown = cytoscope_profile::resident_bytes().unwrap_or(0).saturating_sub(before);
    assert!(grown < 1 << 30, "scrolling took {grown} bytes");
}

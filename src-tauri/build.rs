//! Tauri's part of the build, where the shell itself is built.

fn main() {
    #[cfg(feature = "desktop")]
    tauri_build::build();
}

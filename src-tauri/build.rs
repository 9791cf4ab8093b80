//! Runs Tauri's build script when the `desktop` feature is enabled.

fn main() {
    #[cfg(feature = "desktop")]
    tauri_build::build();
}

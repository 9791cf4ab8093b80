//! Machine profiles, as `tune` stores them and predictions use them. No panic, and what is read can be written and read again.
#![no_main]
use cytoscope_pipeline::MachineProfiles;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns the path of the file of this process.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::env::temp_dir().join(format!("cytoscope-fuzz-profiles-{}.json", std::process::id())))
}

fuzz_target!(|data: &[u8]| {
    std::fs::write(path(), data).expect("writing the profiles");
    match MachineProfiles::read(path()) {
        Ok(profiles) => {
            profiles.write(path()).expect("writing the profiles again");
            let _ = MachineProfiles::read(path()).expect("profiles that were written");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});

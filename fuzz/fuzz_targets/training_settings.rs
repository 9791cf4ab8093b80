//! Training settings and ranges of a search, both in TOML, and single settings (`KEY=VALUE`). No panic, and each trial of a
//! search has a value for each setting.
#![no_main]
use cytoscope_train::{SearchSpace, SettingAssignment, TrainConfig};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns the path of the file of this process.
fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| std::env::temp_dir().join(format!("cytoscope-fuzz-settings-{}.toml", std::process::id())))
}

fuzz_target!(|data: &[u8]| {
    std::fs::write(path(), data).expect("writing the settings");
    match TrainConfig::read(path()) {
        Ok(config) => {
            let _ = config.check();
            let _ = config.to_toml();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match SearchSpace::read(path()) {
        Ok(space) => {
            for trial in space.trials(7, 4) {
                assert_eq!(trial.len(), space.keys().count());
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let lines = std::str::from_utf8(data).unwrap_or_default().lines();
    let assignments: Vec<SettingAssignment> = lines.filter_map(|line| line.parse().ok()).collect();
    let _ = TrainConfig::read_with(None, &assignments);
});

//! Settings: what is read, kept and merged when several windows write them.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::span::{Attributes, Id, Record};

#[test]
fn settings_round_trip_and_broken_files_give_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/settings.json");
    let mut settings = Settings { theme: ThemeChoice::Light, ..Settings::default() };
    for i in 0..20 {
        settings.add_recent(Path::new(&format!("/data/{i}.tif")));
    }
    settings.add_recent(Path::new("/data/15.tif"));
    settings.remember_axes(Path::new("/data/15.tif"), Some("TYX"));
    settings.remember_voxel_size(Path::new("/data/15.tif"), VoxelSize::new_um(2.0, 0.5, 0.25));
    settings.remember_voxel_size(Path::new("/slices/a.tif"), VoxelSize { z: Some(3.0), ..VoxelSize::default() });
    settings.remember_voxel_size(Path::new("/other/a.tif"), VoxelSize::new_um(1.0, 1.0, 1.0));
    settings.remember_voxel_size(Path::new("/other/b.tif"), VoxelSize::default());
    settings.remember_series("/data/plate.zarr".into(), 3);
    settings.remember_series("/data/other.czi".into(), 1);
    settings.remember_series("/data/other.czi".into(), 0);
    settings.save(&path).unwrap();
    let loaded = Settings::load(&path);
    assert_eq!(loaded, settings);
    let series = ["/data/plate.zarr", "/data/other.czi"].map(|file| loaded.series_for(Path::new(file)));
    assert_eq!((series, loaded.series_of_file.len()), ([3, 0], 1));
    assert_eq!((loaded.recent.len(), loaded.recent[0].to_str()), (MAX_RECENT, Some("/data/15.tif")));
    assert_eq!(loaded.recent.iter().filter(|p| p.ends_with("15.tif")).count(), 1);
    assert_eq!(loaded.axes_for(Path::new("/data/other.tif")), Some("TYX"));
    let sizes = ["/data/b.tif", "/slices/b.tif", "/other/c.tif"].map(|file| loaded.voxel_size_for(Path::new(file)));
    assert_eq!(sizes.map(|size| (size.z, size.x)), [(Some(2.0), Some(0.25)), (Some(3.0), None), (None, None)]);
    let scored = ["/data", "/data/a.tif", "/data/truth", "/slices"];
    let scored = scored.map(|path| loaded.voxel_size_in(Path::new(path)));
    let (whole, along_z) = (VoxelSize::new_um(2.0, 0.5, 0.25), VoxelSize { z: Some(3.0), ..VoxelSize::default() });
    assert_eq!(scored, [whole, whole, VoxelSize::default(), along_z]);
    std::fs::write(&path, "{ half").unwrap();
    assert_eq!(Settings::load(&path), Settings::default());
    std::fs::write(&path, r#"{"theme": "dark", "of a later version": 3}"#).unwrap();
    assert_eq!(Settings::load(&path).theme, ThemeChoice::Dark);
}

#[test]
fn a_new_series_is_remembered_in_place_of_others() {
    let mut settings = Settings::default();
    for i in 0..MAX_FILES {
        settings.remember_series(format!("/data/{i:03}.czi").into(), 1);
    }
    let last = Path::new("/data/499.czi");
    settings.remember_series(last.to_owned(), 2);
    assert_eq!((settings.series_for(last), settings.series_of_file.len()), (2, MAX_FILES));
    let new = Path::new("/data/new.czi");
    settings.remember_series(new.to_owned(), 3);
    assert_eq!((settings.series_for(new), settings.series_of_file.len()), (3, MAX_FILES));
    assert_eq!(settings.series_for(last), 2);
}

#[test]
fn axes_and_voxel_size_of_a_new_folder_are_remembered_in_place_of_others() {
    let mut settings = Settings::default();
    let size = VoxelSize::new_um(2.0, 0.5, 0.25);
    let file = |i: usize| PathBuf::from(format!("/data/{i:05}/a.tif"));
    for i in 0..=MAX_FOLDERS {
        settings.remember_axes(&file(i), Some("ZYX"));
        settings.remember_voxel_size(&file(i), size);
    }
    let last = file(MAX_FOLDERS);
    assert_eq!((settings.axes_for(&last), settings.voxel_size_for(&last)), (Some("ZYX"), size));
    assert_eq!((settings.axes_of_folder.len(), settings.voxel_size_of_folder.len()), (MAX_FOLDERS, MAX_FOLDERS));
    // Other axes of a known folder replace no other folder.
    settings.remember_axes(&last, Some("TYX"));
    assert_eq!((settings.axes_for(&last), settings.axes_of_folder.len()), (Some("TYX"), MAX_FOLDERS));
}

#[test]
fn windows_with_the_same_file_write_only_what_they_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let mut earlier = Settings::default();
    ["/data/a.tif", "/data/b.tif"].iter().for_each(|file| earlier.add_recent(Path::new(file)));
    earlier.remember_axes(Path::new("/data/a.tif"), Some("ZYX"));
    earlier.save(&path).unwrap();
    let [(first_file, mut first), (second_file, mut second)] = [path.clone(), path.clone()].map(SettingsFile::read);
    first.theme = ThemeChoice::Light;
    first.add_recent(Path::new("/data/first.tif"));
    first.remember_axes(Path::new("/first/a.tif"), Some("TYX"));
    first_file.save(&first).unwrap();
    second.show_3d = false;
    second.add_recent(Path::new("/data/a.tif"));
    second.remember_axes(Path::new("/data/a.tif"), None);
    second.remember_voxel_size(Path::new("/second/a.tif"), VoxelSize::new_um(2.0, 1.0, 1.0));
    second_file.save(&second).unwrap();
    // What was saved once is not saved again with later changes.
    second.model = "cells".to_owned();
    first.theme = ThemeChoice::Dark;
    first_file.save(&first).unwrap();
    second_file.save(&second).unwrap();
    let stored = Settings::load(&path);
    assert_eq!((stored.theme, stored.show_3d, stored.model.as_str()), (ThemeChoice::Dark, false, "cells"));
    let recent: Vec<&str> = stored.recent.iter().filter_map(|path| path.to_str()).collect();
    assert_eq!(recent, ["/data/a.tif", "/data/first.tif", "/data/b.tif"]);
    let axes = ["/first/b.tif", "/data/a.tif"].map(|file| stored.axes_for(Path::new(file)));
    assert_eq!((axes, stored.voxel_size_for(Path::new("/second/b.tif")).z), ([Some("TYX"), None], Some(2.0)));
    // Without a readable file, all settings are written.
    std::fs::write(&path, "{ half").unwrap();
    first_file.save(&first).unwrap();
    assert_eq!(Settings::load(&path), first);
}

#[test]
fn settings_that_only_a_later_version_knows_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let later = serde_json::json!({
        "theme": "sepia", "device": "abacus", "outputs": ["table", "holograms"], "later": {"a": [1, 2]}
    });
    std::fs::write(&path, later.to_string()).unwrap();
    let (file, mut settings) = SettingsFile::read(path.clone());
    settings.show_3d = false;
    settings.add_recent(Path::new("/data/a.tif"));
    file.save(&settings).unwrap();
    let stored: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for unchanged in ["theme", "device", "outputs", "later"] {
        assert_eq!(stored[unchanged], later[unchanged]);
    }
    let loaded = Settings::load(&path);
    assert_eq!((loaded.show_3d, loaded.recent.len()), (false, 1));
}

/// Counts the warnings of a thread.
struct WarningCounter(Arc<AtomicUsize>);

impl tracing::Subscriber for WarningCounter {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        if *event.metadata().level() == tracing::Level::WARN {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_setting_that_cannot_be_read_is_logged_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let stored = serde_json::json!({
        "theme": "sepia", "device": "abacus", "threads": "eight", "outputs": ["table", "holograms"],
        "recent": ["/data/a.tif", 5]
    });
    std::fs::write(&path, stored.to_string()).unwrap();
    let warnings = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(WarningCounter(Arc::clone(&warnings)), || {
        let (file, mut settings) = SettingsFile::read(path.clone());
        assert_eq!(warnings.load(Ordering::Relaxed), 5, "one for each setting");
        for name in ["b", "c"] {
            settings.add_recent(Path::new(&format!("/data/{name}.tif")));
            file.save(&settings).unwrap();
        }
    });
    assert_eq!(warnings.load(Ordering::Relaxed), 5, "saving logs nothing");
    let recent = ["/data/c.tif", "/data/b.tif", "/data/a.tif"].map(PathBuf::from);
    assert_eq!(Settings::load(&path).recent, recent);
}

#[test]
fn a_setting_of_another_type_falls_back_alone_and_stays_until_it_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let stored = serde_json::json!({
        "theme": "dark", "threads": "eight", "show_3d": 0, "recent": "/data/a.tif", "model": "cells", "device": 7,
        "axes_of_folder": {"/a": 5, "/b": "TYX"}, "series_of_file": "none"
    });
    std::fs::write(&path, stored.to_string()).unwrap();
    let (file, mut settings) = SettingsFile::read(path.clone());
    let axes_of_folder = BTreeMap::from([(PathBuf::from("/b"), "TYX".to_owned())]);
    let model = "cells".to_owned();
    let readable = Settings { theme: ThemeChoice::Dark, model, axes_of_folder, ..Settings::default() };
    assert_eq!(settings, readable);
    settings.show_scale_bar = false;
    file.save(&settings).unwrap();
    let content = || serde_json::from_slice::<Value>(&std::fs::read(&path).unwrap()).unwrap();
    for (name, value) in stored.as_object().unwrap() {
        assert_eq!(&content()[name], value);
    }
    // Settings that the user changes are read again by the next window.
    settings.threads = Some(3);
    settings.add_recent(Path::new("/data/b.tif"));
    settings.remember_series("/data/c.czi".into(), 2);
    settings.remember_axes(Path::new("/c/c.tif"), Some("ZYX"));
    file.save(&settings).unwrap();
    assert_eq!(Settings::load(&path), settings);
    let left = content();
    assert_eq!([&left["show_3d"], &left["device"], &left["axes_of_folder"]["/a"]], [0, 7, 5]);
}

#[test]
fn windows_that_save_at_the_same_time_keep_each_others_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    std::thread::scope(|scope| {
        for window in ["a", "b"] {
            let path = path.clone();
            scope.spawn(move || {
                let (file, mut settings) = SettingsFile::read(path);
                for n in 0..20 {
                    settings.remember_axes(Path::new(&format!("/{window}/{n}/x.tif")), Some("ZYX"));
                    file.save(&settings).unwrap();
                }
            });
        }
    });
    assert_eq!(Settings::load(&path).axes_of_folder.len(), 40);
}

#[test]
fn settings_that_could_not_be_written_are_written_with_the_next_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (path, blocked) = (folder.path().join("settings.json"), folder.path().join("elsewhere"));
    Settings::default().save(&path).unwrap();
    let (file, mut settings) = SettingsFile::read(path.clone());
    settings.theme = ThemeChoice::Light;
    std::fs::rename(&path, &blocked).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(file.save(&settings).is_err());
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&blocked, &path).unwrap();
    settings.show_3d = false;
    file.save(&settings).unwrap();
    let stored = Settings::load(&path);
    assert_eq!((stored.theme, stored.show_3d), (ThemeChoice::Light, false));
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_unicode_do_not_lose_the_other_settings() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"/data/\xff.tif"));
    let mut settings = Settings { theme: ThemeChoice::Light, ..Settings::default() };
    settings.add_recent(Path::new("/data/a.tif"));
    settings.add_recent(odd);
    settings.dataset_folder = Some(odd.to_owned());
    settings.results_folder = Some(odd.to_owned());
    settings.save(&path).unwrap();
    let loaded = Settings::load(&path);
    assert_eq!((loaded.theme, loaded.recent), (ThemeChoice::Light, vec![PathBuf::from("/data/a.tif")]));
    assert_eq!((loaded.dataset_folder, loaded.results_folder), (None, None));
}

#[test]
fn choices_for_predictions_are_stored_as_text_and_unknown_ones_become_auto() {
    let stored = |device: &str, precision: &str, format: &str| {
        let text = serde_json::json!({
            "theme": "dark", "device": device, "precision": precision, "result_format": format
        });
        from_readable::<Settings>(text.as_object().unwrap())
    };
    let chosen = stored("cpu", "int8", "ome-zarr");
    assert_eq!((chosen.device.to_string().as_str(), chosen.precision), ("cpu", Some(Precision::Int8)));
    assert_eq!(chosen.result_format, ResultFormat::OmeZarr);
    let json = serde_json::to_value(&chosen).unwrap();
    assert_eq!((&json["device"], &json["precision"]), (&"cpu".into(), &"int8".into()));
    assert_eq!(json["result_format"], "ome-zarr");
    let outputs = serde_json::json!({"outputs": ["table", "holograms", "labels"]});
    let outputs = from_readable::<Settings>(outputs.as_object().unwrap()).outputs;
    assert_eq!(outputs, [Output::Labels, Output::Table].into());
    let unknown = stored("abacus", "f17", "hdf5");
    assert_eq!(unknown, Settings { theme: ThemeChoice::Dark, ..Settings::default() });
    let json = serde_json::to_value(&unknown).unwrap();
    assert_eq!((&json["device"], &json["precision"]), (&"auto".into(), &"auto".into()));
}

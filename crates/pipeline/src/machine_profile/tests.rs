//! Machine profiles: which settings they fill, and the file that stores them.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use serde_json::json;

fn tuned(device: DeviceId, precision: Precision) -> InferenceSettings {
    InferenceSettings {
        device,
        device_name: None,
        precision,
        tile_zyx: Some([16, 64, 64]),
        threads: 2,
        secs: 1.0,
        peak_bytes: None,
        relative_l2: None,
    }
}

fn profile(fingerprint: &str) -> MachineProfile {
    MachineProfile {
        model: "m".to_owned(),
        fingerprint: fingerprint.to_owned(),
        machine: "here".to_owned(),
        program: "p".to_owned(),
        tuned_unix_secs: 7,
        preset: Preset::Fastest,
        inference: BTreeMap::from([
            (Preset::Fastest, tuned(DeviceId::Cuda(0), Precision::F16)),
            (Preset::MostAccurate, tuned(DeviceId::Cpu, Precision::F32)),
        ]),
        training: BTreeMap::new(),
    }
}

fn job(more: serde_json::Value) -> PredictJob {
    let mut value = json!({"inputs": ["a.tif"], "model": "m", "out": "o"});
    for (key, part) in more.as_object().unwrap() {
        value[key] = part.clone();
    }
    serde_json::from_value(value).unwrap()
}

/// Applies the profile, and returns the settings that it changed.
fn changed(job: &mut PredictJob, request: &str) -> Vec<ProfiledSetting> {
    let applied = profile("f").apply_to_prediction(job, request.parse().unwrap());
    applied.map_or_else(Vec::new, |a| a.settings.into_iter().map(|(setting, _)| setting).collect())
}

#[test]
fn a_profile_fills_only_what_the_user_left_open() {
    use ProfiledSetting::{Device, Precision as OfPrecision, Threads, Tile};
    let mut open = job(json!({}));
    assert_eq!(changed(&mut open, "auto"), [Device, OfPrecision, Tile, Threads]);
    assert_eq!((open.device, open.precision), (DeviceRequest::Device(DeviceId::Cuda(0)), Some(Precision::F16)));
    assert_eq!((open.tiles.recorded, open.threads), (Some([16, 64, 64]), 2));
    assert_eq!(changed(&mut job(json!({"threads": 5, "memory_budget_bytes": 1})), "auto"), [Device, OfPrecision]);
    let mut accurate = job(json!({}));
    changed(&mut accurate, "most-accurate");
    assert_eq!(accurate.device, DeviceRequest::Device(DeviceId::Cpu));
    // The profile's settings of another device or precision are not mixed with the given ones.
    let given = [json!({"device": "cpu"}), json!({"precision": "int8"})];
    for unchanged in given.map(job) {
        let mut one = unchanged.clone();
        assert_eq!((changed(&mut one, "auto"), one), (Vec::new(), unchanged));
    }
    assert_eq!(changed(&mut job(json!({"device": "cuda:0", "precision": "f32"})), "auto"), [Threads]);
    for (request, is_noted) in [("off", false), ("least-memory", true)] {
        assert!(changed(&mut job(json!({})), request).is_empty(), "{request}");
        assert_eq!(request.parse::<PerformanceRequest>().unwrap().unused_note().is_some(), is_noted, "{request}");
    }
}

#[test]
fn settings_of_a_gpu_are_used_only_on_the_one_that_was_measured() {
    let precisions = [Precision::F32, Precision::F16];
    let gpu = |name: &str, usable| Device { usable, ..Device::named(DeviceId::Cuda(0), name, &precisions) };
    let measured = measured_gpu_name(DeviceId::Cuda(0), &[gpu("A", true)]);
    assert_eq!(measured.as_deref(), Some("A"));
    assert_eq!(measured_gpu_name(DeviceId::Cpu, &[Device { id: DeviceId::Cpu, ..gpu("A", true) }]), None);
    let settings = vec![(ProfiledSetting::Precision, "f16".to_owned())];
    let applied = profile("f").applied(Preset::Fastest, measured.as_deref(), settings.clone()).unwrap();
    let on_gpu = DeviceRequest::Device(DeviceId::Cuda(0));
    assert_eq!(applied.problem(on_gpu, &[gpu("A", true)]), None);
    let other = applied.problem(on_gpu, &[gpu("B", true)]).unwrap();
    assert!(other.contains("cuda:0 is B, and the settings were measured on A"), "{other}");
    for gone in [vec![gpu("A", false)], Vec::new()] {
        assert!(applied.problem(on_gpu, &gone).unwrap().contains("cuda:0 cannot be used now"));
    }
    for request in [DeviceRequest::Auto, DeviceRequest::Device(DeviceId::Cpu)] {
        assert_eq!(applied.problem(request, &[]), None);
    }
    // Profiles of earlier versions name no GPU.
    let earlier = profile("f").applied(Preset::Fastest, None, settings);
    assert_eq!(earlier.unwrap().problem(on_gpu, &[gpu("B", true)]), None);
}

#[test]
fn a_precision_that_the_device_has_lost_is_not_used() {
    let applied = |device: &str, precision: Precision| {
        let settings =
            [(ProfiledSetting::Device, device.to_owned()), (ProfiledSetting::Precision, precision.to_string())];
        profile("f").applied(Preset::Fastest, None, settings.to_vec()).unwrap()
    };
    // A virtual machine that moved to a CPU without bf16, and a GPU on which the test of f16 failed.
    for (id, precision) in [(DeviceId::Cpu, Precision::Bf16), (DeviceId::Cuda(0), Precision::F16)] {
        let (stored, request) = (applied(&id.to_string(), precision), DeviceRequest::Device(id));
        let problem = |precisions: &[Precision]| stored.problem(request, &[Device::named(id, "A", precisions)]);
        assert_eq!(problem(&[Precision::F32, precision]), None);
        let lost = problem(&[Precision::F32]).unwrap();
        assert!(lost.contains(&format!("{id} does not compute in its precision {precision} now")), "{lost}");
    }
    // The user gave the precision: the job reports that it cannot be used.
    let given = profile("f").applied(Preset::Fastest, None, vec![(ProfiledSetting::Threads, "2".to_owned())]).unwrap();
    let cpu = Device::named(DeviceId::Cpu, "A", &[Precision::F32]);
    assert_eq!(given.problem(DeviceRequest::Device(DeviceId::Cpu), &[cpu]), None);
}

#[test]
fn stored_profiles_are_read_back_and_replace_earlier_ones_of_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/profiles.json");
    assert!(MachineProfiles::read(&path).unwrap().is_empty());
    let mut all = MachineProfiles::default();
    all.put(profile("a"));
    all.put(profile("b"));
    let training = TrainingSettings {
        device: DeviceId::Cpu,
        device_name: None,
        precision: None,
        batch: None,
        workers: Some(2),
        prefetch: None,
        threads: 0,
        secs_per_patch: 0.1,
        peak_bytes: None,
    };
    let later = MachineProfile {
        tuned_unix_secs: 9,
        inference: BTreeMap::new(),
        training: BTreeMap::from([(Preset::Fastest, training)]),
        ..profile("a")
    };
    all.put(later);
    all.write(&path).unwrap();
    let read = MachineProfiles::read(&path).unwrap();
    assert_eq!(read, all);
    let found = read.find("a", "here").unwrap();
    assert_eq!((found.tuned_unix_secs, found.inference.len(), found.training.len()), (9, 2, 1));
    assert!(read.find("a", "elsewhere").is_none() && read.find("b", "here").is_some());
    for number in 0..2 * MAX_PROFILES {
        all.put(profile(&number.to_string()));
    }
    assert_eq!(all.profiles.len(), MAX_PROFILES);
}

#[test]
fn two_writers_keep_each_others_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/profiles.json");
    std::thread::scope(|scope| {
        for writer in ["a", "b"] {
            let path = &path;
            scope.spawn(move || {
                for number in 0..10 {
                    let added = profile(&format!("{writer}{number}"));
                    MachineProfiles::update(path, |profiles| profiles.put(added)).unwrap();
                }
            });
        }
    });
    let stored = MachineProfiles::read(&path).unwrap();
    let all = ["a", "b"].into_iter().flat_map(|writer| (0..10).map(move |number| format!("{writer}{number}")));
    let lost: Vec<String> = all.filter(|fingerprint| stored.find(fingerprint, "here").is_none()).collect();
    assert_eq!(lost, Vec::<String>::new());
    // A file that cannot be read stays as it is.
    std::fs::write(&path, "no JSON").unwrap();
    assert!(MachineProfiles::update(&path, |profiles| profiles.put(profile("a"))).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "no JSON");
}

#[test]
fn damaged_and_later_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profiles.json");
    for (text, words) in [
        ("no JSON", "no machine profiles"),
        ("{\"format\": 9, \"machines\": []}", "format 9"),
        ("{\"format\": 1, \"profiles\": [{}]}", "no machine profiles"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = MachineProfiles::read(&path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("tune --save"), "{error}");
    }
    std::fs::write(&path, vec![b' '; MAX_FILE_BYTES as usize + 1]).unwrap();
    assert!(MachineProfiles::read(&path).unwrap_err().to_string().contains("larger"));
}

#[test]
fn an_unknown_request_is_refused_with_all_names_and_each_name_is_read() {
    for name in PerformanceRequest::names() {
        assert_eq!(name.parse::<PerformanceRequest>().unwrap().to_string(), name);
    }
    assert_eq!(
        "fast".parse::<PerformanceRequest>().unwrap_err(),
        "invalid performance \"fast\": expected auto, off, fastest, least-memory or most-accurate"
    );
}

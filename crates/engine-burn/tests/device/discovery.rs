//! Device discovery, with child processes that crash, hang or print garbage.

use cytoscope_engine::{Device, DeviceId, EngineError, Precision, Shortcoming};
use cytoscope_engine_burn::BurnEngine;
use cytoscope_engine_burn::probe::{Kind, ProbePart, ProbeRequest, child_main, discover, discover_all, discover_kind};
#[cfg(unix)]
use cytoscope_engine_burn::probe::{discover_unless_hung, forget_hung};
use std::path::Path;
use std::time::{Duration, Instant};

fn shell(script: &str, timeout: Duration) -> Device {
    let devices = discover_kind(Kind::Wgpu, Path::new("/bin/sh"), &["-c", script], timeout);
    assert_eq!(devices.len(), 1);
    devices[0].clone()
}

#[cfg(unix)]
#[test]
fn a_failing_probe_becomes_an_unusable_device_with_a_reason() {
    let minute = Duration::from_secs(60);
    let crashed = shell("echo 'bad thing in driver' >&2; kill -SEGV $$", minute);
    assert!(!crashed.usable);
    assert!(crashed.reason.contains("crashed") && crashed.reason.contains("signal 11"), "{}", crashed.reason);
    assert!(crashed.reason.contains("bad thing in driver"), "{}", crashed.reason);
    let left = shell("exit 3", minute);
    assert!(left.reason.contains("exit code 3"), "{}", left.reason);
    let garbage = shell("echo 'hello {'", minute);
    assert!(!garbage.usable && garbage.reason.contains("hello {"), "{}", garbage.reason);
    let silent = shell("true", minute);
    assert!(!silent.usable && !silent.reason.is_empty());
    let start = Instant::now();
    let hung = shell("sleep 100", Duration::from_millis(300));
    assert!(hung.reason.contains("did not answer"), "{}", hung.reason);
    assert!(start.elapsed() < Duration::from_secs(90), "it was waited for");
    let missing = discover_kind(Kind::Cuda, Path::new("/no/such/program"), &[], minute);
    assert!(missing[0].reason.contains("cannot start the probe") && missing[0].id == DeviceId::Cuda(0));
}

#[cfg(unix)]
#[test]
fn devices_of_all_kinds_are_discovered() {
    let script = r#"echo 'a driver says hello'
        echo "[{\"id\":\"$0:0\",\"name\":\"G\",\"memory_bytes\":null,\"usable\":true,\"reason\":\"\",\"precisions\":[\"f32\"]}]""#;
    let devices = discover(Path::new("/bin/sh"), &["-c", script]);
    let ids: Vec<_> = devices.iter().map(|d| (d.id, d.usable)).collect();
    assert_eq!(ids, [(DeviceId::Cuda(0), true), (DeviceId::Wgpu(0), true)]);
}

#[cfg(unix)]
#[test]
fn a_gpu_that_crashes_does_not_hide_the_others() {
    let script = r#"device() {
            echo "{\"id\":\"$1\",\"name\":\"G\",\"memory_bytes\":null,\"usable\":$2,\"reason\":\"\",\"precisions\":[]}"
        }
        case "$0" in
            cuda | cuda:0) kill -SEGV $$ ;;
            cuda:list) echo "[$(device cuda:0 false),$(device cuda:1 false)]" ;;
            cuda:1) echo "[$(device cuda:1 true)]" ;;
            *) echo "[$(device wgpu:0 true)]" ;;
        esac"#;
    let devices = discover(Path::new("/bin/sh"), &["-c", script]);
    let found: Vec<_> = devices.iter().map(|d| (d.id, d.usable)).collect();
    assert_eq!(found, [(DeviceId::Cuda(0), false), (DeviceId::Cuda(1), true), (DeviceId::Wgpu(0), true)]);
    assert!(devices[0].reason.contains("crashed") && devices[0].reason.contains("signal 11"), "{}", devices[0].reason);
}

#[cfg(unix)]
#[test]
fn a_gpu_that_is_gone_when_it_is_tested_has_a_reason() {
    let script = r#"device() {
            echo "{\"id\":\"$1\",\"name\":\"G\",\"memory_bytes\":null,\"usable\":$2,\"reason\":\"$3\",\"precisions\":[]}"
        }
        case "$0" in
            cuda) exit 3 ;;
            cuda:list) echo "[$(device cuda:0 false),$(device cuda:1 false)]" ;;
            cuda:0) echo "[$(device cuda:0 true works)]" ;;
            cuda:1) echo "[$(device cuda:0 false nodriver)]" ;;
            *) echo "[$(device wgpu:0 true)]" ;;
        esac"#;
    let devices = discover(Path::new("/bin/sh"), &["-c", script]);
    let found: Vec<_> = devices.iter().map(|d| (d.id, d.usable, d.reason.as_str())).collect();
    let expected =
        [(DeviceId::Cuda(0), true, "works"), (DeviceId::Cuda(1), false, "nodriver"), (DeviceId::Wgpu(0), true, "")];
    assert_eq!(found, expected);
}

/// The start of a script that prints CUDA devices: `device INDEX USABLE PRECISIONS UNTESTED`.
#[cfg(unix)]
const DEVICE: &str = r#"device() {
        lacks="[{\"kind\":\"untested_precisions\",\"precisions\":[$4]}]"
        [ -n "$4" ] || lacks="[]"
        echo "{\"id\":\"cuda:$1\",\"name\":\"G\",\"memory_bytes\":null,\"usable\":$2,\"reason\":\"R\",\"precisions\":[$3],\"shortcomings\":$lacks}"
    }
    "#;

/// Looks for CUDA devices with a script whose argument is the request.
#[cfg(unix)]
fn cuda_by_script(script: &str, timeout: Duration) -> Vec<Device> {
    discover_all(Kind::Cuda, Path::new("/bin/sh"), &["-c", &format!("{DEVICE}{script}")], timeout)
}

#[cfg(unix)]
fn failed(precision: Precision, error: &str) -> Shortcoming {
    Shortcoming::FailedPrecisions { precisions: vec![precision], error: error.to_owned() }
}

#[cfg(unix)]
#[test]
fn a_precision_whose_test_hangs_or_crashes_hides_neither_those_before_nor_those_after_it() {
    let script = |end: &str| {
        format!(
            r#"case "$0" in
                cuda)
                    echo "[$(device 0 false '' '"f32","tf32","f16","bf16"')]"
                    echo "[$(device 0 true '"f32"' '"tf32","f16","bf16"')]"
                    {end} ;;
                cuda:0:f16) echo "[$(device 0 true '"f16"' '')]" ;;
                cuda:0:bf16) exit 4 ;;
                *) exit 3 ;;
            esac"#
        )
    };
    let crash = ("kill -SEGV $$", Duration::from_secs(60), "the driver crashed (signal 11); update the driver");
    let late = "the driver did not answer within 15 s: restart the computer; if it happens again, update the driver";
    let hang = ("exec sleep 100", Duration::from_secs(18), late);
    for (end, timeout, error) in [crash, hang] {
        let devices = cuda_by_script(&script(end), timeout);
        let [device] = devices.as_slice() else { panic!("{devices:?}") };
        assert!(device.usable && device.precisions == [Precision::F32, Precision::F16], "{device:?}");
        let expected = [
            failed(Precision::Tf32, error),
            failed(Precision::Bf16, "the driver crashed (exit code 4); update the driver"),
        ];
        assert_eq!(device.shortcomings, expected);
        assert!(device.reason.contains("correct; tf32") && device.reason.contains(error), "{}", device.reason);
    }
}

#[cfg(unix)]
#[test]
fn a_precision_that_there_was_no_time_to_test_has_not_failed() {
    let script = r#"case "$0" in
            cuda) echo "[$(device 0 true '"f32"' '"tf32","f16","bf16"')]"; kill -SEGV $$ ;;
            cuda:0:*) exec sleep 100 ;;
            *) exit 3 ;;
        esac"#;
    let devices = cuda_by_script(script, Duration::from_secs(9));
    let [device] = devices.as_slice() else { panic!("{devices:?}") };
    assert!(device.usable && device.precisions == [Precision::F32], "{device:?}");
    let untested = Shortcoming::UntestedPrecisions { precisions: vec![Precision::F16, Precision::Bf16] };
    assert_eq!(
        device.shortcomings,
        [failed(Precision::Tf32, "the driver crashed (signal 11); update the driver"), untested]
    );
    assert!(device.reason.contains("no time to test f16, bf16"), "{}", device.reason);
}

#[cfg(unix)]
#[test]
fn devices_after_one_that_crashes_are_tested_alone() {
    let script = r#"case "$0" in
            cuda)
                echo "[$(device 0 true '"f32"' ''),$(device 1 false '' '"f32","f16"'),$(device 2 false '' '"f32"')]"
                kill -SEGV $$ ;;
            cuda:1) echo "[$(device 1 true '"f32"' '"f16"')]"; kill -SEGV $$ ;;
            cuda:2) echo "[$(device 2 true '"f32"' '')]" ;;
            *) exit 3 ;;
        esac"#;
    let devices = cuda_by_script(script, Duration::from_secs(60));
    let found: Vec<_> = devices.iter().map(|d| (d.id, d.usable, d.precisions.as_slice())).collect();
    let f32_only = &[Precision::F32][..];
    assert_eq!(found, [0, 1, 2].map(|index| (DeviceId::Cuda(index), true, f32_only)));
    assert_eq!(devices[1].shortcomings, [failed(Precision::F16, "the driver crashed (signal 11); update the driver")]);
    assert!(devices[0].shortcomings.is_empty() && devices[2].shortcomings.is_empty(), "{devices:?}");
}

/// Looks for CUDA devices as a start of the program does, with a script whose argument is the request. Returns them, and the
/// requests.
#[cfg(unix)]
fn start_by_script(script: &str, folder: &Path) -> (Vec<Device>, Vec<String>) {
    let log = folder.join("requests");
    let _ = std::fs::remove_file(&log);
    let script = format!("echo \"$0\" >> '{}'; {DEVICE}{script}", log.display());
    let args = ["-c", script.as_str()];
    let timeout = Duration::from_millis(1800);
    let devices = discover_unless_hung(Kind::Cuda, Path::new("/bin/sh"), &args, timeout, folder);
    let requests = std::fs::read_to_string(&log).unwrap();
    (devices, requests.lines().map(str::to_owned).collect())
}

#[cfg(unix)]
fn scratch_folder(name: &str) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[cfg(unix)]
#[test]
fn a_probe_that_hung_is_repeated_if_the_driver_changes_or_on_request_only() {
    let folder = scratch_folder("hung-probe");
    let list = folder.join("list");
    let script = format!(r#"case "$0" in cuda:list) cat '{}' ;; *) exec sleep 100 ;; esac"#, list.display());
    let set_driver = |driver: &str| {
        let device = r#"{"id":"cuda:0","name":"G","memory_bytes":null,"usable":false,"reason":"R","precisions":[]"#;
        std::fs::write(&list, format!(r#"[{device},"driver":"{driver}"}}]"#)).unwrap();
    };
    // Returns the reason of the only device, and whether it was tested.
    let find = || {
        let (devices, requests) = start_by_script(&script, &folder);
        assert_eq!(devices.iter().map(|d| (d.id, d.usable)).collect::<Vec<_>>(), [(DeviceId::Cuda(0), false)]);
        (devices[0].reason.clone(), requests.iter().any(|request| request != "cuda:list"))
    };
    // A single slow test hides no device at the next start.
    for start in 0..2 {
        let (reason, is_tested) = find();
        let is_now = reason.contains("did not answer within 1.5 s") && !reason.contains("earlier");
        assert!(is_tested && is_now, "{start}: {reason}");
    }
    // No list before, and a list after that, as if the driver was changed.
    let (reason, is_tested) = find();
    assert!(!is_tested && reason.contains("did not answer within 1.5 s") && reason.contains("earlier"), "{reason}");
    for driver in ["570", "571"] {
        set_driver(driver);
        assert!(find().1 && find().1, "{driver}: another driver");
        assert!(!find().1, "{driver}");
    }
    forget_hung(&folder);
    assert!(find().1, "requested");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[cfg(unix)]
#[test]
fn a_device_that_hangs_after_it_worked_beside_a_hung_one_is_not_waited_for_at_each_start() {
    let folder = scratch_folder("hung-later");
    let hangs = folder.join("hangs");
    let script = format!(
        r#"case "$0" in
            cuda:list) echo "[$(device 0 false '' ''),$(device 1 false '' '')]" ;;
            cuda:0 | cuda:0:f32)
                [ ! -e '{}' ] || exec sleep 100
                echo "[$(device 0 true '"f32"' '')]" ;;
            *) exec sleep 100 ;;
        esac"#,
        hangs.display()
    );
    let find = || {
        let (devices, requests) = start_by_script(&script, &folder);
        (devices.iter().map(|d| d.usable).collect::<Vec<_>>(), requests)
    };
    for _ in 0..2 {
        assert_eq!(find().0, [true, false]);
    }
    let (usable, requests) = find();
    assert!(usable == [true, false] && requests == ["cuda:list", "cuda:0:f32"], "{usable:?} {requests:?}");
    std::fs::write(&hangs, "").unwrap();
    let (usable, requests) = find();
    assert!(usable == [false, false] && requests == ["cuda:list", "cuda:0:f32"], "{usable:?} {requests:?}");
    let (usable, requests) = find();
    assert!(usable == [false, false] && requests.contains(&"cuda:1".to_owned()), "{usable:?} {requests:?}");
    let (usable, requests) = find();
    assert!(usable == [false, false] && requests == ["cuda:list"], "{usable:?} {requests:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn requests_of_probes_are_read_as_they_are_written() {
    let parts = [
        ("cuda", ProbePart::All),
        ("cuda:list", ProbePart::List),
        ("cuda:2", ProbePart::Index(2)),
        ("cuda:1:f16", ProbePart::Precision(1, Precision::F16)),
    ];
    for (text, part) in parts {
        let request: ProbeRequest = text.parse().unwrap();
        assert_eq!((request.kind, request.part, request.to_string().as_str()), (Kind::Cuda, part, text));
    }
    for wrong in ["gpu", "cuda:", "cuda:x", "cuda:1:f17", "cuda:1:"] {
        assert!(wrong.parse::<ProbeRequest>().is_err(), "{wrong}");
    }
}

#[test]
fn missing_cuda_components_are_named_and_software_vulkan_is_off_by_default() {
    let cuda: Vec<Device> = serde_json::from_str(&child_main("cuda", &mut |_| ())).unwrap();
    for device in cuda.iter().filter(|d| !d.usable) {
        eprintln!("{}: {}", device.id, device.reason);
        assert!(!device.reason.is_empty());
        assert!(matches!(BurnEngine::open(device), Err(EngineError::Device { .. })));
    }
    let wgpu = cytoscope_engine_burn::probe::run_with_software(Kind::Wgpu, false);
    for device in wgpu.iter().filter(|d| d.name.contains("llvmpipe")) {
        assert!(!device.usable && device.reason.contains("CYTOSCOPE_SOFTWARE_GPU=1"), "{}", device.reason);
    }
}

#[test]
fn a_device_that_has_changed_is_refused() {
    let Some(engine) = crate::engine() else { return };
    let mut device = cytoscope_engine::Engine::device(engine).clone();
    if !matches!(device.id, DeviceId::Wgpu(_)) {
        return cytoscope_testkit::skip("CUDA devices are known by their number alone");
    }
    device.name = "another one".to_owned();
    let refused = BurnEngine::open(&device).unwrap_err().to_string();
    assert!(refused.contains("another one"), "{refused}");
    device.id = DeviceId::Wgpu(99);
    assert!(BurnEngine::open(&device).is_err());
}

//! Device discovery, with child processes that crash, hang or print garbage.

use cytoscope_engine::{Device, DeviceId, EngineError};
use cytoscope_engine_burn::BurnEngine;
use cytoscope_engine_burn::probe::{Kind, child_main, discover, discover_kind};
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

#[test]
fn missing_cuda_components_are_named_and_software_vulkan_is_off_by_default() {
    let cuda: Vec<Device> = serde_json::from_str(&child_main("cuda")).unwrap();
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

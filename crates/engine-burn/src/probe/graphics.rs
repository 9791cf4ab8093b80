//! Probes devices of Vulkan, Metal and DX12.

use super::{SOFTWARE_VARIABLE, test_device};
use crate::adapters;
use crate::guard::guard;
use cytoscope_engine::{Device, DeviceId, Precision};

/// Returns all adapters, or only the one with the given index, and tests those that may be used; `software` allows software
/// renderers.
pub(super) fn devices(software: bool, only: Option<usize>) -> Vec<Device> {
    described(software, |device| only.is_none_or(|index| device.id == DeviceId::Wgpu(index)))
}

/// Returns all adapters without testing any.
pub(super) fn list() -> Vec<Device> {
    described(false, |_| false)
}

/// Describes the adapters, and tests those that `test` selects.
fn described(software: bool, test: impl Fn(&Device) -> bool) -> Vec<Device> {
    let listed = match guard(DeviceId::Wgpu(0), || Ok(adapters::list())) {
        Ok(listed) => listed,
        Err(error) => return vec![super::Kind::Wgpu.unusable(error.to_string())],
    };
    let mut devices = Vec::with_capacity(listed.len());
    for (index, adapter) in listed.into_iter().enumerate() {
        let device = Device {
            id: DeviceId::Wgpu(index),
            name: adapter.info.name.clone(),
            // wgpu does not report the memory size.
            memory_bytes: None,
            free_bytes: None,
            usable: false,
            reason: String::new(),
            shortcomings: Vec::new(),
            precisions: Vec::new(),
            driver: adapters::driver(&adapter.info),
        };
        let good = format!("{} works: a test convolution was correct", adapters::api(adapter.info.backend));
        devices.push(if adapter.device.is_none() {
            Device { reason: "adapters of this kind are not supported".to_owned(), ..device }
        } else if adapter.is_software() && !software {
            let api = adapters::api(adapter.info.backend);
            let reason =
                format!("software {api} (slower than the CPU engine); set {SOFTWARE_VARIABLE}=1 to allow it for tests");
            Device { reason, ..device }
        } else if test(&device) {
            test_device(device, &[Precision::F32], &good, None, &mut |_| ())
        } else {
            device
        });
    }
    devices
}

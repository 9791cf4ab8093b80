//! Probes devices of Vulkan, Metal and DX12.

use super::{SOFTWARE_VARIABLE, test_device};
use crate::adapters::{api, driver, list};
use crate::guard::guard;
use cytoscope_engine::{Device, DeviceId};

/// Returns all adapters, and tests those that may be used; `software` allows software renderers.
pub(super) fn devices(software: bool) -> Vec<Device> {
    let adapters = match guard(DeviceId::Wgpu(0), || Ok(list())) {
        Ok(adapters) => adapters,
        Err(error) => return vec![super::Kind::Wgpu.unusable(error.to_string())],
    };
    let mut devices = Vec::with_capacity(adapters.len());
    for (index, adapter) in adapters.into_iter().enumerate() {
        let device = Device {
            id: DeviceId::Wgpu(index),
            name: adapter.info.name.clone(),
            // wgpu does not report the memory size.
            memory_bytes: None,
            usable: false,
            reason: String::new(),
            precisions: Vec::new(),
            driver: driver(&adapter.info),
        };
        let good = format!("{} works: a test convolution was correct", api(adapter.info.backend));
        devices.push(if adapter.device.is_none() {
            Device { reason: "adapters of this kind are not supported".to_owned(), ..device }
        } else if adapter.is_software() && !software {
            let reason = format!(
                "software Vulkan (slower than the CPU engine); set {SOFTWARE_VARIABLE}=1 to allow it for tests"
            );
            Device { reason, ..device }
        } else {
            test_device(device, good)
        });
    }
    devices
}

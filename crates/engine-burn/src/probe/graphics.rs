//! Devices of Vulkan, Metal and DX12.

use super::{SOFTWARE_VARIABLE, try_out};
use crate::adapters::{api, driver, list};
use crate::guard::guard;
use cytoscope_engine::{Device, DeviceId};

/// Every adapter, each tried out if it may be used.
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
            // wgpu does not say.
            memory_bytes: None,
            usable: false,
            reason: String::new(),
            precisions: Vec::new(),
            driver: driver(&adapter.info),
        };
        let good = format!("{} works: a test convolution was right", api(adapter.info.backend));
        devices.push(if adapter.device.is_none() {
            Device { reason: "Burn has no name for an adapter of this kind".to_owned(), ..device }
        } else if adapter.is_software() && !software {
            let reason = format!(
                "software Vulkan (slower than the processor's own engine); {SOFTWARE_VARIABLE}=1 allows it for tests"
            );
            Device { reason, ..device }
        } else {
            try_out(device, good)
        });
    }
    devices
}

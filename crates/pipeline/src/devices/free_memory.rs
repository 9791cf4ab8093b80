//! The free memory of the devices at the start of a job.

use super::Devices;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_engine_burn::probe;

impl Devices {
    /// Returns the devices with the memory that is free now on those that may be used for a request: other programs may have
    /// taken or freed some since the devices were listed.
    #[must_use]
    pub fn with_free_memory_now(self, request: DeviceRequest) -> Self {
        self.with_free_memory(request, probe::free_bytes)
    }

    /// Like [`Devices::with_free_memory_now`]; `free_bytes` returns the free memory of a device, if that is known.
    fn with_free_memory(mut self, request: DeviceRequest, free_bytes: impl Fn(DeviceId) -> Option<u64>) -> Self {
        // In place of a GPU that has failed, any other may be used.
        let is_open = match request {
            DeviceRequest::Auto => true,
            DeviceRequest::Device(id) => self.has_failed(id),
        };
        let may_be_used = |id: DeviceId| is_open || request == DeviceRequest::Device(id);
        for device in self.all.iter_mut().filter(|device| device.usable && may_be_used(device.id)) {
            device.free_bytes = free_bytes(device.id).or(device.free_bytes);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::FailedDevice;
    use cytoscope_engine::Device;

    #[test]
    fn free_memory_is_asked_of_the_usable_devices_of_the_request() {
        let gpu = |id: DeviceId, usable: bool| {
            let named = Device::named(id, "a GPU", &[]);
            Device { memory_bytes: Some(100), free_bytes: Some(90), usable, ..named }
        };
        let [first, second, broken, other] =
            [DeviceId::Cuda(0), DeviceId::Cuda(1), DeviceId::Cuda(2), DeviceId::Wgpu(0)];
        let all = vec![gpu(first, true), gpu(second, true), gpu(broken, false), gpu(other, true)];
        let devices = Devices { all, ..Devices::cpu_only() };
        // The driver knows nothing about the last device.
        let free = |request| {
            let now = |id: DeviceId| (id != other).then_some(40);
            let devices = devices.clone().with_free_memory(request, now);
            devices.list().iter().map(|device| device.free_bytes).collect::<Vec<_>>()
        };
        assert_eq!(free(DeviceRequest::Auto), [Some(40), Some(40), Some(90), Some(90)]);
        assert_eq!(free(DeviceRequest::Device(second)), [Some(90), Some(40), Some(90), Some(90)]);
        let failed = FailedDevice { id: second, reason: "it was in use".to_owned() };
        let replaced = devices.without(&[failed]).with_free_memory(DeviceRequest::Device(second), |_| Some(40));
        let free_bytes: Vec<_> = replaced.list().iter().map(|device| device.free_bytes).collect();
        assert_eq!(free_bytes, [Some(40), Some(90), Some(90), Some(40)], "another GPU computes in place of the second");
    }
}

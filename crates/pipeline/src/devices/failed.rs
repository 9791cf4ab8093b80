//! GPUs that are not used, because an earlier process has ended while it used them.

use super::Devices;
use cytoscope_engine::{DeviceId, DeviceRequest, Precision};
use serde::{Deserialize, Serialize};

/// A GPU that is not used, because a process has ended while it used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDevice {
    /// The GPU.
    pub id: DeviceId,
    /// What happened, and how the GPU can be used again, as text for the user.
    pub reason: String,
}

impl Devices {
    /// Returns the devices without these GPUs, which stay in the list, with the reason why they are not used.
    /// [`Devices::for_model`] selects the next device in place of one of them.
    #[must_use]
    pub fn without(mut self, failed: &[FailedDevice]) -> Self {
        self.failed = failed.iter().filter(|failed| failed.id != DeviceId::Cpu).cloned().collect();
        for FailedDevice { id, reason } in &self.failed {
            for device in self.all.iter_mut().filter(|device| device.usable && device.id == *id) {
                device.usable = false;
                device.precisions.clear();
                device.reason.clone_from(reason);
            }
        }
        self
    }

    /// Returns whether a GPU is not used, because an earlier process has ended while it used it.
    pub(super) fn has_failed(&self, id: DeviceId) -> bool {
        self.failed.iter().any(|failed| failed.id == id)
    }

    /// Returns the GPU in whose place another device has to run a job: the requested one, or one of those that have failed
    /// if a 16-bit precision is requested that none of the others has.
    pub(super) fn failed_choice(&self, request: DeviceRequest, precision: Option<Precision>) -> Option<&FailedDevice> {
        if let DeviceRequest::Device(id) = request {
            return self.failed.iter().find(|failed| failed.id == id);
        }
        let is_there = |precision: Precision| self.all.iter().any(|d| d.usable && d.precisions.contains(&precision));
        let is_missing = precision.is_some_and(|precision| precision.is_half() && !is_there(precision));
        self.failed.first().filter(|_| is_missing)
    }

    /// Returns the end of the sentence about a choice among the devices, which names those that have failed.
    pub(super) fn failed_text(&self) -> String {
        self.failed.iter().map(|failed| format!("; {}", failed.sentence())).collect()
    }
}

impl FailedDevice {
    /// Says that the GPU is not used, and why.
    pub(super) fn sentence(&self) -> String {
        format!("{} is not used: {}", self.id, self.reason)
    }
}

/// Lets [`Devices::discover`] test GPUs again whose probe hung at an earlier start.
pub fn forget_hung_probes() {
    cytoscope_engine_burn::probe::forget_hung(&cytoscope_engine_burn::cache_folder());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::Device;

    #[test]
    fn a_failed_gpu_stays_in_the_list_with_the_reason_and_does_not_hide_the_others() {
        let ids = [DeviceId::Cuda(0), DeviceId::Cuda(1), DeviceId::Wgpu(0), DeviceId::Cpu];
        let gpu = |id: DeviceId| Device::named(id, "a GPU", &[Precision::F32]);
        let broken = Device { usable: false, reason: "no driver".to_owned(), ..gpu(DeviceId::Wgpu(0)) };
        let all = vec![gpu(ids[0]), gpu(ids[1]), broken, gpu(ids[3])];
        let failed = ids.map(|id| FailedDevice { id, reason: "it was in use".to_owned() });
        let devices = Devices { all, ..Devices::cpu_only() }.without(&[failed[0].clone(), failed[2].clone()]);
        let listed: Vec<_> = devices.list().iter().map(|d| (d.id, d.usable, d.reason.as_str())).collect();
        let expected =
            [(ids[0], false, "it was in use"), (ids[1], true, ""), (ids[2], false, "no driver"), (ids[3], true, "")];
        assert_eq!(listed, expected);
        let refused = devices.engine(DeviceId::Cuda(0)).err().unwrap().to_string();
        assert!(refused.contains("it was in use"), "{refused}");
        assert!(Devices::cpu_only().without(&failed).list().iter().all(|cpu| cpu.usable), "the CPU always remains");
    }

    #[test]
    fn another_device_replaces_a_failed_gpu_that_a_job_needs() {
        let gpu = |index: usize, precisions: &[Precision]| Device::named(DeviceId::Cuda(index), "a GPU", precisions);
        let all = vec![gpu(0, &[Precision::F32, Precision::F16]), gpu(1, &[Precision::F32])];
        let failed = FailedDevice { id: DeviceId::Cuda(0), reason: "it was in use".to_owned() };
        let devices = Devices { all, ..Devices::cpu_only() }.without(std::slice::from_ref(&failed));
        let replaced = |request, precision: Option<Precision>| devices.failed_choice(request, precision);
        let (first, second) = (DeviceRequest::Device(DeviceId::Cuda(0)), DeviceRequest::Device(DeviceId::Cuda(1)));
        assert_eq!(replaced(first, None), Some(&failed));
        assert_eq!(replaced(second, Some(Precision::F16)), None, "the requested GPU says that it lacks f16");
        assert_eq!(replaced(DeviceRequest::Auto, Some(Precision::F16)), Some(&failed));
        assert_eq!(replaced(DeviceRequest::Auto, Some(Precision::F32)), None);
        assert_eq!(replaced(DeviceRequest::Auto, None), None);
        assert_eq!(devices.failed_text(), "; cuda:0 is not used: it was in use");
        assert_eq!(Devices::cpu_only().failed_text(), "");
    }
}

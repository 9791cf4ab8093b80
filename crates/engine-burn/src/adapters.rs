//! The adapters wgpu sees, and which of Burn's devices each of them is.

use burn_wgpu::{RuntimeOptions, WgpuDevice, graphics, init_setup};
use cytoscope_engine::Device;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use wgpu::{AdapterInfo, Backend, DeviceType};

/// One adapter. Its place in [`list`] is the index of its device.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    pub info: AdapterInfo,
    /// What Burn calls it; `None` where Burn has no name for it.
    pub device: Option<WgpuDevice>,
}

impl Adapter {
    /// Whether a processor does the work.
    pub(crate) fn is_software(&self) -> bool {
        let name = self.info.name.to_lowercase();
        let known = ["llvmpipe", "lavapipe", "swiftshader", "basic render driver"];
        self.info.device_type == DeviceType::Cpu || known.iter().any(|k| name.contains(k))
    }
}

/// Driver and version as one text.
pub(crate) fn driver(info: &AdapterInfo) -> String {
    let parts = [info.driver.as_str(), info.driver_info.as_str(), api(info.backend)];
    parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The name of a graphics interface.
pub(crate) fn api(backend: Backend) -> &'static str {
    match backend {
        Backend::Vulkan => "Vulkan",
        Backend::Metal => "Metal",
        Backend::Dx12 => "DX12",
        Backend::Gl => "OpenGL",
        _ => "other",
    }
}

/// The graphics interfaces of this system, the preferred one first. OpenGL is left out.
pub(crate) const INTERFACES: &[Backend] = if cfg!(target_os = "macos") {
    &[Backend::Metal]
} else if cfg!(windows) {
    &[Backend::Vulkan, Backend::Dx12]
} else {
    &[Backend::Vulkan]
};

/// The adapters of the first interface that has any, in its own order, which is the same every time.
pub(crate) fn list() -> Vec<Adapter> {
    for backend in INTERFACES {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: (*backend).into(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let found = block_on(instance.enumerate_adapters((*backend).into()));
        if !found.is_empty() {
            return name_all(found.iter().map(wgpu::Adapter::get_info).collect());
        }
    }
    Vec::new()
}

/// Burn counts the adapters of each kind by themselves, and has a name for one processor only.
fn name_all(infos: Vec<AdapterInfo>) -> Vec<Adapter> {
    let (mut discrete, mut integrated, mut virtual_, mut software) = (0, 0, 0, 0);
    let next = |counter: &mut usize| {
        *counter += 1;
        *counter - 1
    };
    let mut named = Vec::with_capacity(infos.len());
    for info in infos {
        let device = match info.device_type {
            DeviceType::DiscreteGpu => Some(WgpuDevice::DiscreteGpu(next(&mut discrete))),
            DeviceType::IntegratedGpu => Some(WgpuDevice::IntegratedGpu(next(&mut integrated))),
            DeviceType::VirtualGpu => Some(WgpuDevice::VirtualGpu(next(&mut virtual_))),
            DeviceType::Cpu => (next(&mut software) == 0).then_some(WgpuDevice::Cpu),
            DeviceType::Other => None,
        };
        named.push(Adapter { info, device });
    }
    named
}

/// What tells one adapter from another.
fn identity(info: &AdapterInfo) -> (String, String, u32, u32, String) {
    (info.name.clone(), driver(info), info.vendor, info.device, info.device_pci_bus_id.clone())
}

/// Burn's device for adapter `index`, which must still be the one that was found as `device`. A device is started once in a
/// process; it is this room's own.
pub(crate) fn open(index: usize, device: &Device) -> Result<WgpuDevice, String> {
    static STARTED: Mutex<BTreeMap<usize, AdapterInfo>> = Mutex::new(BTreeMap::new());
    let adapters = list();
    let Some(adapter) = adapters.get(index) else {
        return Err(format!("there are {} graphics adapters now, and {} was asked for", adapters.len(), device.id));
    };
    if adapter.info.name != device.name || driver(&adapter.info) != device.driver {
        return Err(format!("it is {} now and was {} when devices were listed", adapter.info.name, device.name));
    }
    let Some(burn) = adapter.device.clone() else {
        return Err("Burn has no name for an adapter of this kind".to_owned());
    };
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let info = started.entry(index).or_insert_with(|| {
        let options = RuntimeOptions::default();
        let setup = match adapter.info.backend {
            Backend::Metal => init_setup::<graphics::Metal>(&burn, options),
            Backend::Dx12 => init_setup::<graphics::Dx12>(&burn, options),
            _ => init_setup::<graphics::Vulkan>(&burn, options),
        };
        setup.adapter.get_info()
    });
    if identity(info) != identity(&adapter.info) {
        return Err(format!("Burn started {} instead of {}", info.name, adapter.info.name));
    }
    Ok(burn)
}

/// Waits for a future that wgpu completes at once outside the web.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

//! Lists wgpu's adapters and maps them to Burn's devices.

use crate::hardware::first_with_hardware;
use burn_wgpu::{RuntimeOptions, WgpuDevice, graphics, init_setup};
use cytoscope_engine::Device;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use wgpu::{AdapterInfo, Backend, DeviceType};

/// A wgpu adapter. Its position in [`list`] is the index of its device.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    /// wgpu's description of it: name, driver, kind and graphics API.
    pub info: AdapterInfo,
    /// The device in Burn; `None` if Burn has none for this kind of adapter.
    pub device: Option<WgpuDevice>,
}

impl Adapter {
    /// Returns whether the adapter is a software renderer that runs on the CPU.
    pub(crate) fn is_software(&self) -> bool {
        let name = self.info.name.to_lowercase();
        let known = ["llvmpipe", "lavapipe", "swiftshader", "basic render driver"];
        self.info.device_type == DeviceType::Cpu || known.iter().any(|k| name.contains(k))
    }
}

/// Returns the driver's name and version, and the graphics API.
pub(crate) fn driver(info: &AdapterInfo) -> String {
    let parts = [info.driver.as_str(), info.driver_info.as_str(), api(info.backend)];
    parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns the name of a graphics API.
pub(crate) fn api(backend: Backend) -> &'static str {
    match backend {
        Backend::Vulkan => "Vulkan",
        Backend::Metal => "Metal",
        Backend::Dx12 => "DX12",
        Backend::Gl => "OpenGL",
        _ => "other",
    }
}

/// The graphics APIs of this operating system, the preferred one first. OpenGL is not used.
pub(crate) const INTERFACES: &[Backend] = if cfg!(target_os = "macos") {
    &[Backend::Metal]
} else if cfg!(windows) {
    &[Backend::Vulkan, Backend::Dx12]
} else {
    &[Backend::Vulkan]
};

/// Returns the adapters of the first graphics API that has hardware, or else of the first one that has any adapter. Their
/// order is that of the API, which is stable. A software renderer of Vulkan does not hide a GPU of DX12.
pub(crate) fn list() -> Vec<Adapter> {
    let api_adapters = |backend: &Backend| {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: (*backend).into(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let found = block_on(instance.enumerate_adapters((*backend).into()));
        assign_devices(found.iter().map(wgpu::Adapter::get_info).collect())
    };
    let is_hardware = |adapter: &Adapter| adapter.device.is_some() && !adapter.is_software();
    first_with_hardware(INTERFACES.iter().map(api_adapters), is_hardware)
}

/// Returns the adapters with Burn's devices. Burn numbers the adapters of each kind separately and supports a single software
/// renderer.
fn assign_devices(infos: Vec<AdapterInfo>) -> Vec<Adapter> {
    let (mut discrete, mut integrated, mut virtual_, mut software) = (0, 0, 0, 0);
    let next = |counter: &mut usize| {
        *counter += 1;
        *counter - 1
    };
    let mut adapters = Vec::with_capacity(infos.len());
    for info in infos {
        let device = match info.device_type {
            DeviceType::DiscreteGpu => Some(WgpuDevice::DiscreteGpu(next(&mut discrete))),
            DeviceType::IntegratedGpu => Some(WgpuDevice::IntegratedGpu(next(&mut integrated))),
            DeviceType::VirtualGpu => Some(WgpuDevice::VirtualGpu(next(&mut virtual_))),
            DeviceType::Cpu => (next(&mut software) == 0).then_some(WgpuDevice::Cpu),
            DeviceType::Other => None,
        };
        adapters.push(Adapter { info, device });
    }
    adapters
}

/// Returns the properties that distinguish one adapter from another.
fn identity(info: &AdapterInfo) -> (String, String, u32, u32, String) {
    (info.name.clone(), driver(info), info.vendor, info.device, info.device_pci_bus_id.clone())
}

/// Returns Burn's device for adapter `index`, which must still be the adapter that was listed as `device`. A device is
/// initialized once per process and not shared with other users of wgpu.
///
/// # Errors
/// The reason, as text, if the adapter no longer exists, is another one now, or is not supported by Burn.
pub(crate) fn open(index: usize, device: &Device) -> Result<WgpuDevice, String> {
    static STARTED: Mutex<BTreeMap<usize, AdapterInfo>> = Mutex::new(BTreeMap::new());
    let adapters = list();
    let Some(adapter) = adapters.get(index) else {
        let found = match adapters.len() {
            1 => "1 graphics adapter".to_owned(),
            count => format!("{count} graphics adapters"),
        };
        return Err(format!("{} no longer exists: {found} found", device.id));
    };
    if adapter.info.name != device.name || driver(&adapter.info) != device.driver {
        return Err(format!(
            "the adapter is now {}, but was {} when devices were listed",
            adapter.info.name, device.name
        ));
    }
    let Some(burn) = adapter.device.clone() else {
        return Err("adapters of this kind are not supported".to_owned());
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
        return Err(format!("Burn opened {} instead of {}", info.name, adapter.info.name));
    }
    Ok(burn)
}

/// Polls a future that wgpu completes immediately on native platforms.
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

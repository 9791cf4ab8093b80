//! Probes NVIDIA GPUs. CUDA is initialized only after all its components have been found.

use super::listing::{ListedGpu, cached_names, is_nvrtc, parse_listed};
use super::{Kind, test_device};
use cytoscope_engine::{Device, DeviceId};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) fn devices() -> Vec<Device> {
    if let Err(reason) = parts() {
        return vec![Kind::Cuda.unusable(reason)];
    }
    let listed = listed();
    // CUDA and `nvidia-smi` may number GPUs differently; `nvidia-smi` uses the order of the bus. Its details of a GPU
    // are used only if the order cannot matter.
    let alike = listed.windows(2).all(|pair| pair[0] == pair[1]);
    let by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
    let restricted = std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
    let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => list.split(',').filter(|part| !part.trim().is_empty()).count(),
        Err(_) => listed.len(),
    };
    let count = if listed.is_empty() { device_nodes().max(1) } else { visible.min(listed.len()) };
    let describe = |index: usize| {
        let known = if alike { listed.first() } else { listed.get(index).filter(|_| by_bus && !restricted) };
        let driver = listed.first().map(|l| format!("NVIDIA {} CUDA", l.driver)).unwrap_or_default();
        Device {
            id: DeviceId::Cuda(index),
            name: known.map_or_else(|| format!("NVIDIA GPU {index}"), |l| l.name.clone()),
            memory_bytes: known.and_then(|l| l.memory_bytes),
            usable: false,
            reason: String::new(),
            precisions: Vec::new(),
            driver,
        }
    };
    (0..count).map(|i| test_device(describe(i), "CUDA works: a test convolution was correct".to_owned())).collect()
}

/// Checks driver, device node, NVRTC and headers, in this order; the error says what to install.
pub(super) fn parts() -> Result<(), String> {
    if cfg!(target_os = "macos") {
        return Err("CUDA is not available on macOS".to_owned());
    }
    let folders = Folders::of_this_system();
    if cfg!(windows) {
        if !folders.has(|name| name == "nvcuda.dll") {
            return Err("NVIDIA driver (nvcuda.dll) not found: install the driver".to_owned());
        }
        if !folders.has(|name| name.starts_with("nvrtc64_") && name.ends_with(".dll")) {
            return Err("NVRTC (nvrtc64_*.dll) not found: install the CUDA toolkit 12 and add it to PATH".to_owned());
        }
        return headers();
    }
    if !folders.has(|name| name == "libcuda.so" || name == "libcuda.so.1") {
        return Err("NVIDIA driver (libcuda.so.1) not found: install the driver".to_owned());
    }
    if device_nodes() == 0 && !Path::new("/dev/dxg").exists() {
        return Err("no NVIDIA device (/dev/nvidia0) found: load the driver's kernel module, or pass the GPU to this \
                    container"
            .to_owned());
    }
    if !folders.has(is_nvrtc) {
        let unseen =
            ["/usr/local/cuda/lib64", "/opt/cuda/lib64"].into_iter().find(|f| contains_file(Path::new(f), is_nvrtc));
        return Err(match unseen {
            Some(folder) => {
                format!("NVRTC is in {folder}, which the loader does not search: add it to LD_LIBRARY_PATH")
            }
            None => "NVRTC (libnvrtc.so.12) not found: install cuda-nvrtc".to_owned(),
        });
    }
    headers()
}

/// Checks for CUDA's headers, which kernels include when they are compiled at run time.
fn headers() -> Result<(), String> {
    let set = std::env::var_os("CUDA_PATH").filter(|v| !v.is_empty()).map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda", "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA"];
    let root = set.or_else(|| usual.iter().map(PathBuf::from).find(|p| p.exists()));
    let root = root.or_else(|| Path::new("/usr/bin/nvcc").exists().then(|| PathBuf::from("/usr")));
    match root {
        Some(root) if root.join("include/cuda_runtime.h").exists() || root.join("include/cuda_fp16.h").exists() => {
            Ok(())
        }
        Some(root) => Err(format!(
            "CUDA headers (cuda_runtime.h) not found in {}: install cuda-cudart-dev",
            root.join("include").display()
        )),
        None => Err("CUDA headers (cuda_runtime.h) not found: install cuda-cudart-dev, or set CUDA_PATH".to_owned()),
    }
}

/// Returns the number of device nodes `/dev/nvidia<n>`.
fn device_nodes() -> usize {
    let Ok(entries) = std::fs::read_dir("/dev") else { return 0 };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    names
        .filter_map(|name| name.strip_prefix("nvidia").map(str::to_owned))
        .filter(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        .count()
}

/// The folders and the cache that the system's loader searches for libraries.
struct Folders {
    folders: Vec<PathBuf>,
    /// Library names in the loader's cache.
    cached: Vec<String>,
}

impl Folders {
    fn of_this_system() -> Self {
        let variable = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };
        let mut folders: Vec<PathBuf> =
            std::env::var_os(variable).map(|v| std::env::split_paths(&v).collect()).unwrap_or_default();
        if cfg!(windows) {
            folders.extend(std::env::var_os("SystemRoot").map(|root| PathBuf::from(root).join("System32")));
            return Self { folders, cached: Vec::new() };
        }
        folders.extend(["/lib", "/usr/lib", "/lib64", "/usr/lib64"].map(PathBuf::from));
        let caches = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
        let cached = caches.iter().find_map(|program| output(program, &["-p"])).unwrap_or_default();
        Self { folders, cached: cached_names(&cached) }
    }

    fn has(&self, wanted: impl Fn(&str) -> bool + Copy) -> bool {
        self.cached.iter().any(|name| wanted(name)) || self.folders.iter().any(|folder| contains_file(folder, wanted))
    }
}

fn contains_file(folder: &Path, wanted: impl Fn(&str) -> bool) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|e| e.file_name().to_str().is_some_and(&wanted))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    ran.status.success().then(|| String::from_utf8_lossy(&ran.stdout).into_owned())
}

fn listed() -> Vec<ListedGpu> {
    let query = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"];
    output("nvidia-smi", &query).map(|text| parse_listed(&text)).unwrap_or_default()
}

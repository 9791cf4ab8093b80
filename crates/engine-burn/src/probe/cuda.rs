//! Probes NVIDIA GPUs. CUDA is initialized only after all its components have been found.

use super::listing::{
    ListedGpu, NumberedGpu, Numbering, QUERIES, architectures, cached_libraries, parse_listed, parse_proc,
};
use super::precisions::supported_precisions;
use super::toolkit::{Headers, Places, nvrtc_advice_on_windows, nvrtc_names};
use super::{CUDA_WORKS, Candidate, Kind, child, driver, test_devices};
use crate::tuning;
use cytoscope_engine::{Device, DeviceId, Precision, Shortcoming};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of the programs that list GPUs and libraries. `nvidia-smi` hangs if one of several GPUs does.
const LISTING_TIMEOUT: Duration = Duration::from_secs(8);

/// The installed components of CUDA.
pub(super) struct Parts {
    /// The NVRTC library that is loaded, if its path is known.
    nvrtc: Option<PathBuf>,
    headers: Headers,
}

/// Tests the devices, or only the one with the given index, in all their precisions or only in the given one. `report` receives
/// the devices before each test.
pub(super) fn devices(
    only: Option<usize>,
    precision: Option<Precision>,
    report: &mut dyn FnMut(&[Device]),
) -> Vec<Device> {
    let listed = listed();
    let parts = match parts(listed.first().map(|gpu| gpu.driver.as_str())) {
        Ok(parts) => parts,
        Err(reason) => return vec![Kind::Cuda.unusable(reason)],
    };
    let driver_gpus = driver::gpus(only);
    let gpus = numbered(&listed, driver_gpus.as_ref().map(|gpus| gpus.all.as_slice()));
    let all = described(&listed, &gpus, &parts);
    tuning::set_known_devices(&all);
    let lacks = match &parts.headers {
        Headers::Partial { missing, reason } => Some(Shortcoming::MissingHeaders {
            headers: missing.iter().map(|&header| header.to_owned()).collect(),
            advice: reason.clone(),
        }),
        Headers::Complete | Headers::Missing(_) => None,
    };
    let candidate = |(index, device): (usize, Device)| {
        let capability = gpus.get(index).and_then(|gpu| gpu.capability);
        let mut offered = supported_precisions(capability, parts.headers.suffice_for_tensor_cores());
        offered.retain(|offered| precision.is_none_or(|wanted| wanted == *offered));
        Candidate { device, offered, lacks: lacks.clone() }
    };
    let wanted = all.into_iter().enumerate().filter(|(index, _)| only.is_none_or(|only| only == *index));
    test_devices(wanted.map(candidate).collect(), CUDA_WORKS, report)
}

/// Returns the devices without testing them.
pub(super) fn list() -> Vec<Device> {
    let listed = listed();
    match parts(listed.first().map(|gpu| gpu.driver.as_str())) {
        // A driver that fails would hide all of them.
        Ok(parts) => described(&listed, &numbered(&listed, None), &parts),
        Err(reason) => vec![Kind::Cuda.unusable(reason)],
    }
}

/// Returns the GPUs in the order of CUDA.
fn numbered(listed: &[ListedGpu], driver_gpus: Option<&[NumberedGpu]>) -> Vec<NumberedGpu> {
    Numbering::for_this_process().numbered(listed, driver_gpus, device_nodes())
}

/// Returns the devices of the GPUs, which were not tested.
fn described(listed: &[ListedGpu], gpus: &[NumberedGpu], parts: &Parts) -> Vec<Device> {
    let describe = |(index, gpu): (usize, &NumberedGpu)| Device {
        id: DeviceId::Cuda(index),
        name: gpu.name.clone().unwrap_or_else(|| format!("NVIDIA GPU {index}")),
        memory_bytes: gpu.memory_bytes,
        free_bytes: gpu.free_bytes,
        usable: false,
        reason: String::new(),
        shortcomings: Vec::new(),
        precisions: Vec::new(),
        driver: stack(listed.first(), &architectures(gpu, listed), parts),
    };
    gpus.iter().enumerate().map(describe).collect()
}

/// Names everything that decides which kernels run: driver, architecture, compiler, and headers that are missing.
fn stack(listed: Option<&ListedGpu>, architecture: &str, parts: &Parts) -> String {
    let driver = listed.map_or_else(|| "NVIDIA CUDA".to_owned(), |gpu| format!("NVIDIA {} CUDA", gpu.driver));
    let mut text = format!("{driver}, {architecture}, {}", nvrtc_version(parts.nvrtc.as_deref()));
    if let Headers::Partial { missing, .. } = &parts.headers {
        if missing.iter().any(|name| name.ends_with("mma.h")) {
            text.push_str(", no tensor-core headers");
        }
        text.extend([", without ", missing.join(" ").as_str()]);
    }
    text
}

/// Returns the version of NVRTC from the name of its file. Names without a full version are supplemented by the size.
fn nvrtc_version(path: Option<&Path>) -> String {
    let Some(path) = path else { return "NVRTC".to_owned() };
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    match name.split_once(".so.") {
        Some((_, version)) if version.contains('.') => format!("NVRTC {version}"),
        _ => format!("NVRTC {name} of {} bytes", std::fs::metadata(&real).map_or(0, |m| m.len())),
    }
}

/// Checks driver, device node, NVRTC and headers, in this order; the error says what to install. `driver` is the version
/// of the driver, if known.
pub(super) fn parts(driver: Option<&str>) -> Result<Parts, String> {
    if cfg!(target_os = "macos") {
        return Err("CUDA is not available on macOS".to_owned());
    }
    let libraries = Libraries::on_this_system();
    let drivers: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };
    if libraries.find(drivers).is_none() {
        let name = drivers.last().copied().unwrap_or_default();
        return Err(format!("NVIDIA driver ({name}) not found: install the driver"));
    }
    if !cfg!(windows) && device_nodes() == 0 && !Path::new("/dev/dxg").exists() {
        return Err("no NVIDIA device (/dev/nvidia0) found: load the driver's kernel module, or pass the GPU to this \
                    container"
            .to_owned());
    }
    let places = Places::on_this_system();
    match (libraries.find(nvrtc_names(cfg!(windows))), places.headers(driver)) {
        (None, _) if cfg!(windows) => Err(nvrtc_advice_on_windows(&libraries.similar("nvrtc64_"))),
        (None, headers) => {
            let usual = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"].map(PathBuf::from);
            Err(places.without_nvrtc(&headers, &usual, driver))
        }
        (Some(_), Headers::Missing(reason)) => Err(reason),
        (nvrtc, headers) => Ok(Parts { nvrtc, headers }),
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
struct Libraries {
    folders: Vec<PathBuf>,
    /// Libraries in the loader's cache, by name and path.
    cached: Vec<(String, PathBuf)>,
}

impl Libraries {
    fn on_this_system() -> Self {
        let variable = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };
        let mut folders: Vec<PathBuf> =
            std::env::var_os(variable).map(|v| std::env::split_paths(&v).collect()).unwrap_or_default();
        if cfg!(windows) {
            folders.extend(std::env::var_os("SystemRoot").map(|root| PathBuf::from(root).join("System32")));
            return Self { folders, cached: Vec::new() };
        }
        folders.extend(["/lib", "/usr/lib", "/lib64", "/usr/lib64"].map(PathBuf::from));
        let caches = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
        let list = |program: &&str| output(program, &["-p"], LISTING_TIMEOUT);
        let cached = caches.iter().find_map(list).unwrap_or_default();
        Self { folders, cached: cached_libraries(&cached) }
    }

    /// Returns the path of the library that is loaded under the first of these names that exists.
    fn find(&self, names: &[&str]) -> Option<PathBuf> {
        names.iter().find_map(|name| {
            let in_folders = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
            in_folders.or_else(|| self.cached.iter().find(|(cached, _)| cached == name).map(|(_, path)| path.clone()))
        })
    }

    /// Returns the names of libraries that start with `start`.
    fn similar(&self, start: &str) -> Vec<String> {
        let entries = self.folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        entries.filter_map(|e| e.file_name().into_string().ok()).filter(|name| name.starts_with(start)).collect()
    }
}

/// Returns what a program prints; `None` if it does not exist, fails, or does not end in time.
fn output(program: &str, arguments: &[&str], timeout: Duration) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running = command.spawn().ok()?;
    let printed = child::read_all(running.stdout.take());
    let Some(status) = child::wait(&mut running, timeout) else {
        child::end(&mut running);
        return None;
    };
    let bytes = printed.recv_timeout(timeout).ok().filter(|_| status.success())?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Asks the [`QUERIES`] one after the other, and returns the first answer. None follows a query that took the whole time: the
/// program would hang again.
fn first_answer(timeout: Duration, ask: impl Fn(&str) -> Option<String>) -> Option<String> {
    let start = Instant::now();
    QUERIES.iter().take_while(|_| start.elapsed() < timeout).find_map(|query| ask(query))
}

fn listed() -> Vec<ListedGpu> {
    let ask = |query: &str| output("nvidia-smi", &[query, "--format=csv,noheader,nounits"], LISTING_TIMEOUT);
    let listed = first_answer(LISTING_TIMEOUT, ask).map(|text| parse_listed(&text)).unwrap_or_default();
    if !listed.is_empty() {
        return listed;
    }
    let proc = Path::new("/proc/driver/nvidia");
    let version = std::fs::read_to_string(proc.join("version")).unwrap_or_default();
    let folders = std::fs::read_dir(proc.join("gpus")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.sort();
    let gpus: Vec<String> =
        folders.iter().filter_map(|folder| std::fs::read_to_string(folder.join("information")).ok()).collect();
    parse_proc(&version, &gpus)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_or_fails_lists_nothing() {
        let minute = Duration::from_secs(60);
        assert_eq!(output("sh", &["-c", "echo GPU"], minute).as_deref(), Some("GPU\n"));
        assert_eq!(output("sh", &["-c", "echo GPU; exit 1"], minute), None);
        assert_eq!(output("sh", &["-c", "echo GPU; exec sleep 5"], Duration::from_millis(200)), None);
        assert_eq!(output("/no/such/program", &[], minute), None);
    }

    #[test]
    fn a_listing_that_hangs_is_not_asked_for_again() {
        let asked = std::cell::RefCell::new(Vec::new());
        let refuse = |query: &str| -> Option<String> {
            asked.borrow_mut().push(query.to_owned());
            None
        };
        assert_eq!(first_answer(Duration::from_secs(60), refuse), None);
        assert_eq!(asked.take(), QUERIES, "old versions refuse the first query");
        let timeout = Duration::from_millis(10);
        let hang = |query: &str| {
            std::thread::sleep(timeout);
            refuse(query)
        };
        // Another program may have taken the time before the first query.
        assert_eq!(first_answer(timeout, hang), None);
        assert!(asked.take().len() <= 1, "it would take the rest of the time of all tests of devices");
    }
}

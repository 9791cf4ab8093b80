//! Configures where Burn caches its kernel timings and compiled kernels, records which sessions are tuned, and reports tuning
//! and compiling.

use cubecl_runtime::config::autotune::{AutotuneConfig, AutotuneLogLevel};
use cubecl_runtime::config::cache::CacheConfig;
use cubecl_runtime::config::compilation::CompilationConfig;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use cytoscope_engine::select::fingerprint;
use cytoscope_engine::{Device, DeviceId, Preparation, TuningListener};
use directories::BaseDirs;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The kernels of this build: the versions of the program and of the libraries whose kernels are timed and compiled, and a
/// hash of the sources of the kernels of this crate. Part of the key of everything that is measured with them or compiled
/// from them and kept between runs.
pub const KERNELS: &str = concat!(
    "cytoscope ",
    env!("CARGO_PKG_VERSION"),
    ", Burn 0.21.0, CubeCL 0.10.0, kernels ",
    env!("CYTOSCOPE_KERNELS")
);

/// Time between two reports of tuning or compiling.
#[cfg(not(test))]
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Time between two reports in unit tests.
#[cfg(test)]
const TELL_EVERY: Duration = Duration::from_millis(50);

/// The markers of the sessions whose kernels this process has compiled.
static COMPILED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The known GPUs of this machine, usable or not.
static KNOWN: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Returns the folder of Burn's kernel timings and compiled kernels: `gpu-tuning` in the folder named by
/// `CYTOSCOPE_CACHE`, or in `cytoscope` in the user's cache folder. It has a folder for each combination of GPUs, drivers
/// and versions. The first run of a shape measures; later processes read the timings. The folder may be deleted at any
/// time.
pub fn tuning_folder() -> PathBuf {
    cache_folder().join("gpu-tuning")
}

/// Returns the folder of what is known about devices: the one named by `CYTOSCOPE_CACHE`, or `cytoscope` in the user's cache
/// folder.
pub fn cache_folder() -> PathBuf {
    let named = std::env::var_os("CYTOSCOPE_CACHE").filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = named.or_else(|| Some(BaseDirs::new()?.cache_dir().join("cytoscope")));
    base.unwrap_or_else(|| std::env::temp_dir().join("cytoscope"))
}

/// States the GPUs of this machine, usable or not. Burn has one cache for all devices of a process and numbers them, so
/// the cache is only valid for the same list. Has no effect after the first engine was opened.
pub fn set_known_devices(gpus: &[Device]) {
    let gpus = gpus.iter().filter(|d| d.id != DeviceId::Cpu).cloned();
    *KNOWN.lock().unwrap_or_else(PoisonError::into_inner) = gpus.collect();
}

/// Returns the key of the cache for a list of GPUs: it changes if any of them is of another kind (name, memory), or has
/// another driver, architecture, compiler or set of headers (see [`Device::driver`]), or if the kernels are of another
/// version. GPUs of the same kind share it, because a cluster may assign another one to each job.
pub(crate) fn cache_key(gpus: &[Device], kernels: &str) -> String {
    let describe = |d: &Device| format!("{}|{}|{:?}|{}", d.id, d.name, d.memory_bytes, d.driver);
    let mut all: Vec<String> = gpus.iter().map(describe).collect();
    all.sort();
    all.dedup();
    fingerprint(format!("{kernels}\n{}", all.join("\n")).as_bytes())
}

/// Returns whether compiled kernels may be cached: Burn's cache does not distinguish CUDA devices, so all of them must
/// have the same architecture. Other devices do not use it.
pub(crate) fn may_cache_kernels(gpus: &[Device]) -> bool {
    let mut cuda = gpus.iter().filter(|d| matches!(d.id, DeviceId::Cuda(_))).map(|d| (&d.name, &d.driver));
    let first = cuda.next();
    first.is_some() && cuda.all(|d| Some(d) == first)
}

/// Configures Burn for a device, once per process and before its first use. Burn's environment variables
/// (`CUBECL_AUTOTUNE_LEVEL`, `CUBECL_DEBUG_LOG`) still apply; its configuration files are ignored. Returns the cache
/// folder of this process.
pub(crate) fn configure(device: &Device) -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut gpus = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !gpus.iter().any(|d| d.id == device.id) {
            gpus.push(device.clone());
        }
        let key = cache_key(&gpus, KERNELS);
        let wanted = tuning_folder().join(&key);
        // Burn panics if it cannot write there; fall back to the temporary folder.
        let folder =
            if writable(&wanted) { wanted } else { std::env::temp_dir().join("cytoscope-gpu-tuning").join(&key) };
        let mut autotune = AutotuneConfig { cache: CacheConfig::File(folder.clone()), ..AutotuneConfig::default() };
        autotune.logger.level = AutotuneLogLevel::Disabled;
        let kernels = (may_cache_kernels(&gpus) && writable(&folder)).then(|| CacheConfig::File(folder.clone()));
        let compilation = CompilationConfig { cache: kernels, ..CompilationConfig::default() };
        let config = CubeClRuntimeConfig { autotune, compilation, ..CubeClRuntimeConfig::default() };
        // This panics if the configuration was read before; that configuration then applies to the whole process.
        let _ = std::panic::catch_unwind(|| CubeClRuntimeConfig::set(config.override_from_env()));
        folder
    })
}

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".{}.partial", std::process::id()));
    // `create_new` does not follow a symbolic link of this name.
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::File::create_new(&probe).map(drop));
    if written.is_ok() {
        // A leftover probe is empty and has a hidden name.
        let _ = std::fs::remove_file(&probe);
    }
    written.is_ok()
}

/// Whether Burn has timed its kernels for a session: an empty file in the cache folder says so.
#[derive(Debug, Clone)]
pub(crate) struct TuningState {
    /// Folder of the timings.
    timings: PathBuf,
    marker: PathBuf,
    is_tuned: bool,
    /// Whether no kernel of the session is timed.
    is_fixed: bool,
    /// Whether kernels of the session may not be compiled yet; only of sessions none of whose kernels are timed.
    compiles: bool,
}

/// Maximum number of times that a run is repeated because timings were written during it, maybe by another process.
const MAX_REPEATS: usize = 3;

impl TuningState {
    /// Looks up the state of a session on a device; `work` describes its steps and shapes.
    pub(crate) fn of(folder: &Path, device: DeviceId, work: &str) -> Self {
        let marker = folder.join("tuned").join(fingerprint(format!("{device}\n{work}").as_bytes()));
        let timings = folder.join("autotune");
        Self { timings, is_tuned: marker.exists(), is_fixed: false, compiles: false, marker }
    }

    /// Returns the state of a session that times no kernels.
    pub(crate) fn not_needed(self) -> Self {
        let compiles = !compiled().contains(&self.marker);
        Self { is_fixed: true, compiles, ..self }
    }

    /// Runs `work`. If the kernels of the session may not be compiled yet, and it takes longer than a second, the listener
    /// receives how long it has taken so far.
    pub(crate) fn reporting_compiling<T>(
        &self,
        listener: &TuningListener,
        device: DeviceId,
        work: impl FnOnce() -> T,
    ) -> T {
        if self.compiles { run_reporting(listener, device, Preparation::Compiling, work) } else { work() }
    }

    /// Records that the session has waited for a run, so that its kernels are compiled.
    pub(crate) fn end_compiling(&mut self) {
        if self.compiles {
            compiled().insert(self.marker.clone());
            self.compiles = false;
        }
    }

    /// Runs `work`, whose argument says whether to record times. If the session is not tuned or compiled yet, the listener
    /// receives how long that has taken so far.
    ///
    /// Before Burn times the kernels of a step, it discards the errors of the steps before, whose results are then wrong.
    /// So a run in which it did so is only a rehearsal: `work` is repeated, and the last result counts.
    pub(crate) fn run<T, E>(
        &mut self,
        listener: &TuningListener,
        device: DeviceId,
        mut work: impl FnMut(bool) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_fixed {
            return self.reporting_compiling(listener, device, || work(true));
        }
        let was_tuned = self.is_tuned;
        let mut bytes = folder_bytes(&self.timings);
        let mut result =
            if was_tuned { work(true) } else { run_reporting(listener, device, Preparation::Tuning, || work(false)) };
        let mut is_recorded = was_tuned;
        for _ in 0..MAX_REPEATS {
            let now = folder_bytes(&self.timings);
            if result.is_err() || (self.is_tuned && now == bytes) {
                break;
            }
            (bytes, self.is_tuned) = (now, true);
            result = work(!is_recorded);
            is_recorded = true;
        }
        if result.is_err() {
            self.is_tuned = was_tuned;
        } else if !was_tuned {
            // Without the file, the next process only reports tuning once more.
            let folder = self.marker.parent().map_or(Ok(()), std::fs::create_dir_all);
            let _ = folder.and_then(|()| std::fs::File::create_new(&self.marker).map(drop));
        }
        result
    }
}

/// Returns the size of all files below a folder; 0 if it cannot be read. Files of timings only grow.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => folder_bytes(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Returns [`COMPILED`].
fn compiled() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    COMPILED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`, and reports to a listener every second how long it has taken; if it is tuning, also at the start.
fn run_reporting<T>(
    listener: &TuningListener,
    device: DeviceId,
    preparation: Preparation,
    work: impl FnOnce() -> T,
) -> T {
    let (stop, stopped) = channel::<()>();
    std::thread::scope(|scope| {
        let ticker = std::thread::Builder::new().name("tuning".to_owned()).spawn_scoped(scope, move || {
            let (start, mut elapsed) = (Instant::now(), Duration::ZERO);
            loop {
                // Most kernels are compiled, or were kept, within the first second.
                if preparation == Preparation::Tuning || !elapsed.is_zero() {
                    listener.notify(device, preparation, elapsed);
                }
                if !matches!(stopped.recv_timeout(TELL_EVERY), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
                elapsed = start.elapsed();
            }
        });
        let result = work();
        drop(stop);
        // Without a thread, nothing is reported.
        drop(ticker);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn gpu(index: usize, name: &str, driver: &str) -> Device {
        Device { driver: driver.to_owned(), ..Device::named(DeviceId::Cuda(index), name, &[]) }
    }

    #[test]
    fn another_gpu_driver_architecture_or_version_has_another_cache() {
        let hopper = gpu(0, "H", "NVIDIA 575 CUDA, sm_90, NVRTC 12.9");
        let key = |gpus: &[Device]| cache_key(gpus, "1");
        let own = key(std::slice::from_ref(&hopper));
        assert_eq!(own, key(&[hopper.clone(), hopper.clone()]));
        let others = [
            gpu(1, "H", "NVIDIA 575 CUDA, sm_90, NVRTC 12.9"),
            gpu(0, "T", "NVIDIA 575 CUDA, sm_90, NVRTC 12.9"),
            gpu(0, "H", "NVIDIA 580 CUDA, sm_90, NVRTC 12.9"),
            gpu(0, "H", "NVIDIA 575 CUDA, sm_75, NVRTC 12.9"),
            gpu(0, "H", "NVIDIA 575 CUDA, sm_90, NVRTC 13.0"),
            gpu(0, "H", "NVIDIA 575 CUDA, sm_90, NVRTC 12.9, no tensor-core headers"),
        ];
        for other in others {
            assert_ne!(own, key(std::slice::from_ref(&other)), "{other:?}");
            assert_ne!(own, key(&[hopper.clone(), other]), "a second GPU");
        }
        // A part of the GPU (MIG) has the same name.
        let part = Device { memory_bytes: Some(10 << 30), ..hopper.clone() };
        assert_ne!(own, key(&[part]));
        assert_ne!(own, cache_key(&[hopper], "2"));
    }

    #[test]
    fn each_of_two_unlike_gpus_has_a_cache_of_its_own_whichever_is_visible() {
        // With CUDA_VISIBLE_DEVICES, each of them is the only GPU, of index 0.
        let ada = gpu(0, "NVIDIA RTX 4090", "NVIDIA 580 CUDA, sm_89, NVRTC 13.0");
        let turing = gpu(0, "NVIDIA T4", "NVIDIA 580 CUDA, sm_75, NVRTC 13.0");
        let key = |gpu: &Device| cache_key(std::slice::from_ref(gpu), "1");
        assert_ne!(key(&ada), key(&turing));
        // How much memory is free does not matter, nor which of several GPUs of a kind it is.
        assert_eq!(key(&ada), key(&Device { free_bytes: Some(1 << 30), ..ada.clone() }));
    }

    #[test]
    fn the_kernels_of_a_build_are_known_by_a_hash_of_their_sources() {
        let (_, hash) = KERNELS.rsplit_once("kernels ").unwrap();
        assert!(hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{KERNELS}");
    }

    #[test]
    fn the_libraries_in_the_key_have_the_versions_of_the_build() {
        let manifest = include_str!("../../../Cargo.toml");
        for (package, name) in [("burn-cuda", "Burn"), ("cubecl", "CubeCL")] {
            let start = format!("{package} = {{ version = \"=");
            let pinned = manifest.lines().find_map(|line| line.strip_prefix(start.as_str())).unwrap();
            let version = pinned.split('"').next().unwrap();
            assert!(KERNELS.contains(&format!("{name} {version},")), "{KERNELS}, but the build has {name} {version}");
        }
    }

    #[test]
    fn kernels_are_cached_only_if_all_cuda_devices_are_alike() {
        let (hopper, turing) = (gpu(0, "H", "sm_90"), gpu(1, "T", "sm_75"));
        let vulkan = Device { id: DeviceId::Wgpu(0), ..turing.clone() };
        assert!(may_cache_kernels(&[hopper.clone(), vulkan.clone()]));
        assert!(may_cache_kernels(&[hopper.clone(), gpu(1, "H", "sm_90")]));
        assert!(!may_cache_kernels(&[hopper, turing]));
        assert!(!may_cache_kernels(&[vulkan]));
    }

    #[test]
    fn tuning_is_reported_and_its_run_repeated_until_one_succeeds() {
        let folder = std::env::temp_dir().join(format!("cytoscope-tuning-{}", std::process::id()));
        let timings = folder.join("autotune/device-0");
        std::fs::create_dir_all(&timings).unwrap();
        let times = Arc::new(Mutex::new(0));
        let count = Arc::clone(&times);
        let listener = TuningListener::new(move |device, preparation, _| {
            assert_eq!((device, preparation), (DeviceId::Cuda(3), Preparation::Tuning));
            *count.lock().unwrap() += 1;
        });
        // Whether tuning was reported, and which runs were recorded. `writes` is the number of runs that write timings.
        let run = |result: Result<(), ()>, writes: usize| {
            let before = *times.lock().unwrap();
            let mut state = TuningState::of(&folder, DeviceId::Cuda(3), "a network");
            let mut runs = Vec::new();
            let got = state.run(&listener, DeviceId::Cuda(3), |is_recorded| {
                if runs.len() < writes {
                    let log = timings.join("conv.json.log");
                    let text = std::fs::read_to_string(&log).unwrap_or_default();
                    std::fs::write(&log, text + "timing").unwrap();
                }
                runs.push(is_recorded);
                result
            });
            assert_eq!(got, result);
            (*times.lock().unwrap() > before, runs)
        };
        assert_eq!(run(Err(()), 0), (true, vec![false]), "a failed run does not count");
        assert_eq!(run(Ok(()), 1), (true, vec![false, true]), "errors of the first run may be lost");
        assert_eq!(run(Ok(()), 0), (false, vec![true]), "the state is stored");
        assert_eq!(run(Ok(()), 1), (false, vec![true, false]), "timings were deleted or did not suit");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn compiling_is_reported_in_the_first_run_of_a_network_if_it_takes_long() {
        let times = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&times);
        let listener = TuningListener::new(move |device, preparation, elapsed| {
            assert_eq!((device, preparation), (DeviceId::Cuda(4), Preparation::Compiling));
            seen.lock().unwrap().push(elapsed);
        });
        let state = |work: &str| TuningState::of(Path::new("no folder"), DeviceId::Cuda(4), work).not_needed();
        // How often compiling was reported during a run that takes this time and lasts until so many reports have come, which may
        // be late on a busy machine.
        let run = |state: &mut TuningState, takes: Duration, reports: usize| {
            let before = times.lock().unwrap().len();
            let end = Instant::now() + Duration::from_secs(60);
            let work = |is_recorded: bool| {
                assert!(is_recorded);
                std::thread::sleep(takes);
                while times.lock().unwrap().len() < before + reports && Instant::now() < end {
                    std::thread::sleep(TELL_EVERY);
                }
                Ok::<(), ()>(())
            };
            state.run(&listener, DeviceId::Cuda(4), work).unwrap();
            times.lock().unwrap().len() - before
        };
        let (short, long) = (Duration::ZERO, TELL_EVERY * 10);
        let mut first = state("a network");
        // On a busy machine, nothing may take long, too.
        assert!((0..50).any(|_| run(&mut first, short, 0) == 0), "nothing to say");
        assert!(run(&mut first, long, 2) >= 2, "the run before was not waited for");
        assert!(times.lock().unwrap().iter().all(|elapsed| *elapsed >= TELL_EVERY));
        first.end_compiling();
        assert_eq!(run(&mut first, long, 0), 0, "the kernels are compiled");
        assert_eq!(run(&mut state("a network"), long, 0), 0, "another session of the same network");
        assert!(run(&mut state("another network"), long, 2) >= 2);
    }
}

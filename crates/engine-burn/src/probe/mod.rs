//! Lists GPUs, with the reason for each one that cannot be used.
//!
//! Probing a device may crash or hang in its driver, so [`discover`] probes in child processes and reports how they
//! ended. The child prints the result of [`child_main`].

mod child;
mod cuda;
mod driver;
mod graphics;
mod hung;
mod listing;
mod precisions;
mod toolkit;

pub use child::{
    TIMEOUT, discover, discover_all, discover_kind, discover_remembering, discover_unless_hung, forget_hung,
};

use cytoscope_engine::{CompileOptions, Device, DeviceId, Engine, EngineError, Precision, Shortcoming};
use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, GraphError, Op, Tensor, ValueId};
use precisions::{Tested, test_each};

/// Environment variable that allows software Vulkan, for tests.
pub const SOFTWARE_VARIABLE: &str = "CYTOSCOPE_SOFTWARE_GPU";

/// Reason that is listed for a CUDA device that works.
const CUDA_WORKS: &str = "CUDA works: a test convolution was correct";

/// A kind of devices, probed in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// NVIDIA GPUs through CUDA.
    Cuda,
    /// GPUs through Vulkan, Metal or DX12.
    Wgpu,
}

impl Kind {
    /// All kinds, in the order in which devices are listed.
    pub const ALL: [Kind; 2] = [Kind::Cuda, Kind::Wgpu];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cuda => "cuda",
            Kind::Wgpu => "wgpu",
        }
    }

    /// Returns a placeholder device for the whole kind, if none exists or probing failed.
    fn unusable(self, reason: impl Into<String>) -> Device {
        let (id, name) = match self {
            Kind::Cuda => (DeviceId::Cuda(0), "NVIDIA CUDA"),
            Kind::Wgpu => (DeviceId::Wgpu(0), "Vulkan, Metal or DX12"),
        };
        Device {
            id,
            name: name.to_owned(),
            memory_bytes: None,
            free_bytes: None,
            usable: false,
            reason: reason.into(),
            shortcomings: Vec::new(),
            precisions: Vec::new(),
            driver: String::new(),
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kind::ALL.into_iter().find(|k| k.name() == text);
        found.ok_or_else(|| format!("unknown kind of device \"{text}\": expected cuda or wgpu"))
    }
}

/// Request to a child process: the devices of a kind, their list without a test, a single device, or one precision of it. As
/// text, `cuda`, `cuda:list`, `cuda:1` or `cuda:1:f16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Kind of the devices to probe.
    pub kind: Kind,
    /// Which devices of that kind are tested.
    pub part: ProbePart,
}

/// Which devices of a kind are probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbePart {
    /// A small network runs on every device.
    All,
    /// Devices are only listed; none is opened.
    List,
    /// The device of this index is tested.
    Index(usize),
    /// The device of this index is tested in this precision only.
    Precision(usize, Precision),
}

impl std::fmt::Display for ProbeRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.name();
        match self.part {
            ProbePart::All => f.write_str(kind),
            ProbePart::List => write!(f, "{kind}:list"),
            ProbePart::Index(index) => write!(f, "{kind}:{index}"),
            ProbePart::Precision(index, precision) => write!(f, "{kind}:{index}:{precision}"),
        }
    }
}

impl std::str::FromStr for ProbeRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, part) = match text.split_once(':') {
            None => (text, ProbePart::All),
            Some((kind, "list")) => (kind, ProbePart::List),
            Some((kind, device_text)) => {
                let invalid = || {
                    format!("invalid probe \"{text}\": expected cuda, cuda:list, cuda:INDEX or cuda:INDEX:PRECISION")
                };
                let (index, precision) = match device_text.split_once(':') {
                    Some((index, precision)) => (index, Some(precision)),
                    None => (device_text, None),
                };
                let index: usize = index.parse().map_err(|_| invalid())?;
                let precision = precision.map(str::parse::<Precision>).transpose().map_err(|_| invalid())?;
                (kind, precision.map_or(ProbePart::Index(index), |precision| ProbePart::Precision(index, precision)))
            }
        };
        Ok(Self { kind: kind.parse()?, part })
    }
}

/// Probes the devices of a kind in this process, which a driver may crash.
pub fn run_in_this_process(kind: Kind) -> Vec<Device> {
    run_request(ProbeRequest { kind, part: ProbePart::All }, &mut |_| ())
}

/// Like [`run_in_this_process`], for a request. `report` receives the devices before each test of a precision.
fn run_request(request: ProbeRequest, report: &mut dyn FnMut(&[Device])) -> Vec<Device> {
    let software = std::env::var_os(SOFTWARE_VARIABLE).is_some_and(|v| !v.is_empty() && v != "0");
    run_part(request, software, report)
}

/// Like [`run_in_this_process`], but `software` instead of [`SOFTWARE_VARIABLE`] decides whether software Vulkan is
/// usable.
pub fn run_with_software(kind: Kind, software: bool) -> Vec<Device> {
    run_part(ProbeRequest { kind, part: ProbePart::All }, software, &mut |_| ())
}

fn run_part(request: ProbeRequest, software: bool, report: &mut dyn FnMut(&[Device])) -> Vec<Device> {
    let kind = request.kind;
    let found = match (kind, request.part) {
        (Kind::Cuda, ProbePart::All) => cuda::devices(None, None, report),
        (Kind::Cuda, ProbePart::List) => cuda::list(),
        (Kind::Cuda, ProbePart::Index(index)) => cuda::devices(Some(index), None, report),
        (Kind::Cuda, ProbePart::Precision(index, precision)) => cuda::devices(Some(index), Some(precision), report),
        (Kind::Wgpu, ProbePart::All) => graphics::devices(software, None),
        (Kind::Wgpu, ProbePart::List) => graphics::list(),
        // Only one precision is tested.
        (Kind::Wgpu, ProbePart::Index(index) | ProbePart::Precision(index, _)) => {
            graphics::devices(software, Some(index))
        }
    };
    if found.is_empty() {
        return vec![kind.unusable(match kind {
            Kind::Cuda => "no NVIDIA GPU found",
            Kind::Wgpu if cfg!(target_os = "macos") => "no Metal device found",
            Kind::Wgpu if cfg!(windows) => "no Vulkan or DX12 device found: install the GPU's driver",
            Kind::Wgpu => "no Vulkan device found: install the GPU's Vulkan driver",
        })];
    }
    found
}

/// Returns the free memory of a device in bytes, which is requested from the driver in this process; `None` if the driver
/// does not say, and for devices other than NVIDIA GPUs.
pub fn free_bytes(id: DeviceId) -> Option<u64> {
    match id {
        // If CUDA is initialized while a component is missing, it stays unusable for the rest of the process.
        DeviceId::Cuda(index) => cuda_parts().ok().and_then(|()| driver::free_bytes(index)),
        DeviceId::Wgpu(_) | DeviceId::Cpu => None,
    }
}

/// Returns the last line that the child process must print: the devices of `request`, the text of a [`ProbeRequest`], as JSON.
/// Before each test, `print` receives such a line with what is known so far, in case the driver crashes or hangs in it.
pub fn child_main(request: &str, print: &mut dyn FnMut(&str)) -> String {
    let line = |devices: &[Device]| serde_json::to_string(devices).unwrap_or_else(|_| "[]".to_owned());
    let devices = match request.parse::<ProbeRequest>() {
        Ok(request) => run_request(request, &mut |devices| print(&line(devices))),
        Err(reason) => vec![Kind::Wgpu.unusable(reason)],
    };
    line(&devices)
}

/// Checks that all components of CUDA are installed, without initializing CUDA.
///
/// # Errors
/// The first missing component and how to install it.
pub(crate) fn cuda_parts() -> Result<(), String> {
    cuda::parts(None).map(|_| ())
}

/// A device that is to be tested.
struct Candidate {
    device: Device,
    /// The precisions that it may have, f32 first.
    offered: Vec<Precision>,
    /// What is known to be missing if the device works.
    lacks: Option<Shortcoming>,
}

/// Tests devices one after the other; `good` is the reason listed for those that work. `report` receives all of them before
/// each test.
fn test_devices(candidates: Vec<Candidate>, good: &str, report: &mut dyn FnMut(&[Device])) -> Vec<Device> {
    let untested = |of: &Candidate| {
        let tested = Tested { good: Vec::new(), failed: Vec::new(), untested: of.offered.clone() };
        described(&of.device, &tested, good, &[])
    };
    let mut all: Vec<Device> = candidates.iter().map(untested).collect();
    for (index, Candidate { device, offered, lacks }) in candidates.into_iter().enumerate() {
        report(&all);
        let mut report_one = |so_far: Device| {
            if let Some(slot) = all.get_mut(index) {
                *slot = so_far;
            }
            report(&all);
        };
        let tested = test_device(device, &offered, good, lacks, &mut report_one);
        if let Some(slot) = all.get_mut(index) {
            *slot = tested;
        }
    }
    all
}

/// Runs a tiny network on a device in each precision and returns it with `usable`, `precisions` and `reason` set by the
/// results. `offered` are the precisions that it may have, f32 first; `good` is the reason if the device works, and `lacks` what
/// is known to be missing then. `report` receives the device before each test.
fn test_device(
    device: Device,
    offered: &[Precision],
    good: &str,
    lacks: Option<Shortcoming>,
    report: &mut dyn FnMut(Device),
) -> Device {
    let device = Device { usable: true, precisions: offered.to_vec(), ..device };
    let lacks: Vec<Shortcoming> = lacks.into_iter().collect();
    match find_precisions(&device, |so_far| report(described(&device, so_far, good, &lacks))) {
        Ok(tested) => described(&device, &tested, good, &lacks),
        Err(reason) => Device { usable: false, precisions: Vec::new(), reason, ..device },
    }
}

/// Returns a device as the tests of its precisions have found it.
fn described(device: &Device, tested: &Tested, good: &str, lacks: &[Shortcoming]) -> Device {
    let usable = !tested.good.is_empty();
    let shortcomings = [lacks.to_vec(), tested.shortcomings()].concat();
    let mut device = Device { usable, precisions: tested.good.clone(), shortcomings, ..device.clone() };
    let error = tested.failed.first().map(|(_, error)| error.clone());
    device.reason = if usable { reason(good, &device) } else { error.unwrap_or_default() };
    device
}

/// Returns the reason listed for a device that works, with its shortcomings.
fn reason(good: &str, device: &Device) -> String {
    std::iter::once(good.to_owned()).chain(device.shortcoming().map(String::from)).collect::<Vec<_>>().join("; ")
}

/// Tests the precisions of a device that CubeCL has registered for it.
fn find_precisions(device: &Device, report: impl FnMut(&Tested)) -> Result<Tested, String> {
    let id = device.id;
    // Burn is configured when a device is opened, and must not be asked for the device before.
    crate::BurnEngine::open(device).map_err(|e| failure(&e))?;
    let mut offered = device.precisions.clone();
    offered.retain(|precision| crate::is_registered(id, *precision));
    test_each(&offered, |precision| check(device, precision), report)
}

/// Returns a network that convolves a volume of 3×3×3 ones with a kernel of ones, whose result is 27 in the center and 8 in
/// the corners. For tensor cores, it does so as the mean of 16 channels.
fn network(precision: Precision) -> Result<Graph, GraphError> {
    let mut graph = Graph::new("probe");
    let x = graph.add_input("x", ElementType::F32, [1, 1, 3, 3, 3].map(Dim::Fixed).to_vec());
    let mut convolve = |name: &str, x: ValueId, [outputs, inputs, kernel]: [usize; 3], weight: f32| {
        let shape = [outputs, inputs, kernel, kernel, kernel];
        let weights = Tensor::new(shape, vec![weight; shape.iter().product()])?;
        let w = graph.add_initializer(format!("{name} weights"), weights);
        Ok::<ValueId, GraphError>(graph.push(name, Op::Conv(ConvAttrs::same(&[kernel; 3])), &[Some(x), Some(w)]))
    };
    let y = if precision == Precision::F32 {
        convolve("y", x, [1, 1, 3], 1.0)?
    } else {
        let copies = convolve("copies", x, [16, 1, 1], 1.0)?;
        let sums = convolve("sums", copies, [16, 16, 3], 1.0 / 16.0)?;
        convolve("y", sums, [1, 16, 1], 1.0 / 16.0)?
    };
    graph.outputs.push(y);
    Ok(graph)
}

/// Returns why the network of the probe did not run. It is so small that smaller tiles would not help.
fn failure(error: &EngineError) -> String {
    match error {
        EngineError::OutOfMemory { .. } => format!("{}; close other programs that use this GPU", error.finding()),
        other => other.to_string(),
    }
}

/// Runs the network of the probe in a precision.
fn check(device: &Device, precision: Precision) -> Result<(), String> {
    let run = || -> Result<Vec<Tensor>, EngineError> {
        let options = CompileOptions { precision, ..CompileOptions::default() };
        let engine = crate::BurnEngine::open(device)?;
        let mut session = engine.compile(&network(precision)?, &[vec![1, 1, 3, 3, 3]], &options)?;
        session.run(&[Tensor::new([1, 1, 3, 3, 3], vec![1.0f32; 27])?])
    };
    let outputs = run().map_err(|e| failure(&e))?;
    let got = outputs.first().and_then(Tensor::as_f32).unwrap_or_default();
    let picked = (got.first().copied(), got.get(13).copied(), got.get(26).copied());
    if picked == (Some(8.0), Some(27.0), Some(8.0)) {
        Ok(())
    } else {
        Err(format!("wrong results: a test convolution returned {picked:?} instead of 8, 27 and 8; update the driver"))
    }
}

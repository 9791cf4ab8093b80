//! Probes devices in child processes, which may crash, hang or print garbage.

use super::hung::{self, HungProbe, NO_ANSWER};
use super::precisions::failures;
use super::{CUDA_WORKS, Kind, ProbePart, ProbeRequest};
use crate::explain::explained;
use cytoscope_engine::{Device, DeviceId, Precision, Shortcoming};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time limit of a child process, or of two one after the other if the first one does not survive the test of a precision.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of a child process that lists devices without a test.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a child process that lists devices if that failed at an earlier start: each start waits for it.
const LIST_AGAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of starts in a row in which a test hung, before later starts do not repeat it: a single one may have been slow, such as
/// while kernels were compiled under load.
const MIN_HANGS: u32 = 2;
/// Time that a child process may take to end after it was killed.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// Largest number of bytes read from a child process.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// Probes the devices of all kinds in parallel, each as [`discover_all`] does.
pub fn discover(program: &Path, args: &[&str]) -> Vec<Device> {
    of_all_kinds(|kind| discover_all(kind, program, args, TIMEOUT))
}

/// Probes the devices of all kinds in parallel, each as [`discover_unless_hung`] does.
pub fn discover_remembering(program: &Path, args: &[&str], folder: &Path) -> Vec<Device> {
    of_all_kinds(|kind| discover_unless_hung(kind, program, args, TIMEOUT, folder))
}

/// Lets devices whose probe hung be tested again, see [`discover_unless_hung`].
pub fn forget_hung(folder: &Path) {
    Kind::ALL.into_iter().for_each(|kind| hung::forget(folder, kind));
}

/// Returns the devices of all kinds, which are probed in parallel.
fn of_all_kinds(probe: impl Fn(Kind) -> Vec<Device> + Sync) -> Vec<Device> {
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let probe = &probe;
        let probes = Kind::ALL.map(|kind| (kind, scope.spawn(move || probe(kind))));
        for (kind, probe) in probes {
            let devices = probe.join();
            found.extend(devices.unwrap_or_else(|_| vec![kind.unusable("the probe thread failed")]));
        }
    });
    found
}

/// Probes the devices of a kind: runs `program args… REQUEST`, which must print [`super::child_main`] of that [`ProbeRequest`],
/// for at most `timeout`. If the test of a kind's devices fails, each device is tested in a separate process, so that one that
/// crashes does not hide the others. A precision whose test crashes or hangs does not hide those that were tested before; those
/// after it are tested in separate processes.
pub fn discover_all(kind: Kind, program: &Path, args: &[&str], timeout: Duration) -> Vec<Device> {
    Prober::new(kind, program, args, timeout).discover()
}

/// Probes the devices of a kind as [`discover_all`] does, and remembers in a file in `folder` if a test hangs. If one hung in
/// two starts in a row, devices are only listed, and those that worked are tested in their first precision: they are
/// tested completely again if the list or their driver changes or such a test hangs, by another version of the program, after a
/// restart of the system, and after a day.
pub fn discover_unless_hung(
    kind: Kind,
    program: &Path,
    args: &[&str],
    timeout: Duration,
    folder: &Path,
) -> Vec<Device> {
    let prober = Prober::new(kind, program, args, timeout);
    let earlier = HungProbe::read(folder, kind);
    if let Some(known) = earlier.as_ref().filter(|earlier| earlier.hangs >= MIN_HANGS)
        && let Some(devices) = prober.known_again(known)
    {
        if prober.has_hung.get() {
            // A device that worked hangs: the next start tests all of them, and remembers that if it hangs again.
            HungProbe { hangs: 1, ..known.clone() }.write(folder, kind);
        }
        return devices;
    }
    let devices = prober.discover();
    if prober.has_hung.get() {
        let listed = prober.ask(ProbePart::List, LIST_TIMEOUT).ok();
        let before = earlier.filter(|earlier| earlier.is_of(listed.as_deref())).map_or(0, |earlier| earlier.hangs);
        HungProbe { devices: devices.clone(), listed, hangs: before.saturating_add(1) }.write(folder, kind);
    } else {
        hung::forget(folder, kind);
    }
    devices
}

/// Asks child processes about the devices of a kind.
struct Prober<'a> {
    kind: Kind,
    program: &'a Path,
    args: &'a [&'a str],
    timeout: Duration,
    /// Whether a test did not end in time.
    has_hung: Cell<bool>,
}

impl<'a> Prober<'a> {
    fn new(kind: Kind, program: &'a Path, args: &'a [&'a str], timeout: Duration) -> Self {
        Self { kind, program, args, timeout, has_hung: Cell::new(false) }
    }

    /// Finds and tests the devices, see [`discover_all`].
    fn discover(&self) -> Vec<Device> {
        let kind = self.kind;
        let failed = match self.ask(ProbePart::All, self.first_timeout()) {
            Ok(devices) => return or_none_found(kind, devices),
            Err(failed) => failed,
        };
        let ProbeFailure { reason: failed, so_far, timed_out } = failed;
        self.has_hung.set(timed_out);
        if so_far.len() > 1 && so_far.iter().any(|device| !untested(device).is_empty()) {
            return so_far.into_iter().map(|device| self.test_if_untested(device)).collect();
        }
        if let Some(only) = so_far.into_iter().find(is_partly_tested) {
            return vec![self.test_later_precisions(only, failed)];
        }
        let listed = match self.ask(ProbePart::List, self.timeout) {
            Ok(devices) if devices.len() > 1 => devices,
            // The only device is the one that failed.
            Ok(devices) => {
                let only = devices.into_iter().next().unwrap_or_else(|| kind.unusable(""));
                return vec![unusable(only, failed)];
            }
            Err(_) => return vec![kind.unusable(failed)],
        };
        listed.into_iter().map(|device| self.test_alone(device)).collect()
    }

    /// Returns the devices of a probe that hung at earlier starts, if they are still the same.
    fn known_again(&self, known: &HungProbe) -> Option<Vec<Device>> {
        let limit = if known.listed.is_some() { LIST_TIMEOUT } else { LIST_AGAIN_TIMEOUT };
        let listed = self.ask(ProbePart::List, limit).ok();
        if !known.is_of(listed.as_deref()) {
            return None;
        }
        let again = |device: Device| {
            let now = listed.iter().flatten().find(|now| now.id == device.id);
            let device = Device { free_bytes: now.and_then(|now| now.free_bytes), ..hung::known_earlier(device) };
            let first = device.precisions.first().copied().filter(|_| device.usable);
            match first.map(|precision| self.test_precision(device.id, precision, self.first_timeout())) {
                Some(Err(failed)) => {
                    self.has_hung.set(self.has_hung.get() || failed.timed_out);
                    unusable(device, failed.reason)
                }
                Some(Ok(())) | None => device,
            }
        };
        Some(known.devices.iter().cloned().map(again).collect())
    }

    /// Returns the time limit of a child process that tests several precisions. The rest of the time is for those that it could
    /// not test.
    fn first_timeout(&self) -> Duration {
        self.timeout * 5 / 6
    }

    fn ask(&self, part: ProbePart, timeout: Duration) -> Result<Vec<Device>, ProbeFailure> {
        let request = ProbeRequest { kind: self.kind, part }.to_string();
        let args: Vec<&str> = self.args.iter().copied().chain([request.as_str()]).collect();
        run_probe(self.program, &args, timeout)
    }

    /// Returns a device with the results of its test, which is made in a separate process if it had not ended when the process of
    /// all devices failed.
    fn test_if_untested(&self, device: Device) -> Device {
        if untested(&device).is_empty() { device } else { self.test_alone(device) }
    }

    /// Tests a device in a separate process.
    fn test_alone(&self, device: Device) -> Device {
        let index = match device.id {
            DeviceId::Cuda(index) | DeviceId::Wgpu(index) => index,
            DeviceId::Cpu => return device,
        };
        match self.ask(ProbePart::Index(index), self.first_timeout()) {
            Ok(tested) => {
                // Without the device, the child says why there is none of its kind.
                let other = tested.first().map_or("the probe did not find it again", |other| other.reason.as_str());
                let gone = unusable(device, other.to_owned());
                tested.into_iter().find(|d| d.id == gone.id).unwrap_or(gone)
            }
            Err(ProbeFailure { reason, so_far, timed_out }) => {
                self.has_hung.set(self.has_hung.get() || timed_out);
                match so_far.into_iter().find(|d| d.id == device.id && is_partly_tested(d)) {
                    Some(tested) => self.test_later_precisions(tested, reason),
                    None => unusable(device, reason),
                }
            }
        }
    }

    /// Returns a device that works in a precision, but whose test has ended with `reason` in a later one. Tests the precisions
    /// after that one in separate processes.
    fn test_later_precisions(&self, mut device: Device, reason: String) -> Device {
        let end = Instant::now() + self.timeout / 6;
        let mut precisions = untested(&device).to_vec().into_iter();
        device.shortcomings.retain(|of| !matches!(of, Shortcoming::UntestedPrecisions { .. }));
        let mut failed: Vec<(Precision, String)> =
            precisions.next().map(|culprit| (culprit, reason)).into_iter().collect();
        let mut timed_out = Vec::new();
        for precision in precisions {
            let left = end.saturating_duration_since(Instant::now());
            match self.test_precision(device.id, precision, left) {
                Ok(()) => device.precisions.push(precision),
                Err(ProbeFailure { timed_out: true, .. }) => timed_out.push(precision),
                Err(ProbeFailure { reason, .. }) => failed.push((precision, reason)),
            }
        }
        device.shortcomings.extend(failures(failed));
        if !timed_out.is_empty() {
            device.shortcomings.push(Shortcoming::UntestedPrecisions { precisions: timed_out });
        }
        device.reason = super::reason(CUDA_WORKS, &device);
        device
    }

    /// Tests a precision of a device in a separate process.
    fn test_precision(&self, id: DeviceId, precision: Precision, timeout: Duration) -> Result<(), ProbeFailure> {
        let index = match id {
            DeviceId::Cuda(index) | DeviceId::Wgpu(index) => index,
            DeviceId::Cpu => 0,
        };
        let found = self.ask(ProbePart::Precision(index, precision), timeout)?;
        match found.into_iter().find(|device| device.id == id) {
            Some(device) if device.usable && device.precisions.contains(&precision) => Ok(()),
            Some(device) => Err(ProbeFailure::because(device.reason)),
            None => Err(ProbeFailure::because("the probe did not find the device again".to_owned())),
        }
    }
}

/// Why a child process has not answered.
struct ProbeFailure {
    reason: String,
    /// Whether it was ended because it took too long.
    timed_out: bool,
    /// The devices as they were before the test in which it ended; empty if it had not begun to test.
    so_far: Vec<Device>,
}

impl ProbeFailure {
    fn because(reason: String) -> Self {
        Self { reason, timed_out: false, so_far: Vec::new() }
    }
}

/// Returns the precisions of a device whose test had not ended.
fn untested(device: &Device) -> &[Precision] {
    let untested = device.shortcomings.iter().find_map(|shortcoming| match shortcoming {
        Shortcoming::UntestedPrecisions { precisions } => Some(precisions.as_slice()),
        _ => None,
    });
    untested.unwrap_or_default()
}

/// Returns whether a device works in a precision, and others were still to be tested.
fn is_partly_tested(device: &Device) -> bool {
    device.usable && !untested(device).is_empty()
}

fn unusable(device: Device, reason: String) -> Device {
    Device { usable: false, reason, precisions: Vec::new(), shortcomings: Vec::new(), ..device }
}

/// Runs `program args…`, which must print [`super::child_main`] of `kind`, for at most `timeout`. If the child fails,
/// returns one unusable device with the reason.
pub fn discover_kind(kind: Kind, program: &Path, args: &[&str], timeout: Duration) -> Vec<Device> {
    match run_probe(program, args, timeout) {
        Ok(devices) => or_none_found(kind, devices),
        Err(failed) => vec![kind.unusable(failed.reason)],
    }
}

/// Returns the devices, or an unusable one if there are none.
fn or_none_found(kind: Kind, devices: Vec<Device>) -> Vec<Device> {
    if devices.is_empty() { vec![kind.unusable("the probe found no devices")] } else { devices }
}

fn run_probe(program: &Path, args: &[&str], timeout: Duration) -> Result<Vec<Device>, ProbeFailure> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| ProbeFailure::because(format!("cannot start the probe: {e}")))?;
    let output = read_lines(child.stdout.take());
    let errors = read_all(child.stderr.take());
    let status = wait(&mut child, timeout);
    if status.is_none() {
        end(&mut child);
    }
    let output = lines(&output);
    // Drivers print to the same pipe: the last line that parses as devices counts.
    let devices: Option<Vec<Device>> = output.iter().rev().find_map(|line| serde_json::from_str(line).ok());
    let Some(status) = status else {
        let seconds = timeout.as_secs_f32();
        let reason = format!("{NO_ANSWER} {seconds} s: restart the computer; if it happens again, update the driver");
        return Err(ProbeFailure { reason, timed_out: true, so_far: devices.unwrap_or_default() });
    };
    if !status.success() {
        // A process that the child started may keep the pipe open.
        let errors = errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors);
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let message: String = last.trim().chars().take(200).collect();
        let explanation = explained(&message);
        let colon = if message.is_empty() { "" } else { ": " };
        // An explanation says what to do.
        let advice = if explanation.as_str() == message { "; update the driver" } else { "" };
        let reason = format!("the driver crashed ({}){colon}{explanation}{advice}", describe_status(status));
        return Err(ProbeFailure { reason, timed_out: false, so_far: devices.unwrap_or_default() });
    }
    devices.ok_or_else(|| {
        let message: String = output.join("\n").trim().chars().take(80).collect();
        ProbeFailure::because(format!("the probe printed \"{message}\" instead of devices"))
    })
}

/// Returns the lines that a child process prints, each as soon as it is complete.
fn read_lines(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if let Some(mut pipe) = pipe {
            for line in BufReader::new(pipe.by_ref().take(MAX_OUTPUT_BYTES)).split(b'\n').map_while(Result::ok) {
                // The receiver may have given up.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
            drop(sender);
            // Drain the rest, so that the child does not block on a full pipe.
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
    });
    receiver
}

/// Returns the lines until the pipe is closed, or those of a second: a process that the child started may keep it open.
fn lines(from: &Receiver<String>) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(1);
    let next = || from.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

/// Returns what a child process prints, as soon as it has closed the pipe.
pub(super) fn read_all(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is reported; the receiver may have given up.
            let _ = pipe.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
            let _ = sender.send(bytes);
            // Drain the rest, so that the child does not block on a full pipe.
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
    });
    receiver
}

/// Kills a child process. A process that hangs in a driver may not even end then, and is left alone.
pub(super) fn end(child: &mut Child) {
    // It fails only if the child has ended already.
    let _ = child.kill();
    let _ = wait(child, KILL_WAIT);
}

/// Waits for a child process to end; `None` if it does not within this time.
pub(super) fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(10)),
            _ => return None,
        }
    }
}

fn describe_status(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    status.code().map_or_else(|| "unknown exit status".to_owned(), |code| format!("exit code {code}"))
}

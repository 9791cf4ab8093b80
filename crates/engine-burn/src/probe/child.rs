//! Probes devices in child processes, which may crash, hang or print garbage.

use super::{Kind, ProbePart, ProbeRequest};
use crate::explain::explained;
use cytoscope_engine::{Device, DeviceId};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time limit of a child process.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a child process may take to end after it was killed.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// Largest number of bytes read from a child process.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// Probes the devices of all kinds in parallel: runs `program args… REQUEST`, which must print [`super::child_main`] of
/// that [`ProbeRequest`]. If the test of a kind's devices fails, each device is tested in a separate process, so that
/// one that crashes does not hide the others.
pub fn discover(program: &Path, args: &[&str]) -> Vec<Device> {
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let probes = Kind::ALL.map(|kind| (kind, scope.spawn(move || discover_all(kind, program, args, TIMEOUT))));
        for (kind, probe) in probes {
            let devices = probe.join();
            found.extend(devices.unwrap_or_else(|_| vec![kind.unusable("the probe thread failed")]));
        }
    });
    found
}

/// Probes the devices of a kind in one child process; if that fails, in one for each device.
fn discover_all(kind: Kind, program: &Path, args: &[&str], timeout: Duration) -> Vec<Device> {
    let ask = |part: ProbePart| {
        let request = ProbeRequest { kind, part }.to_string();
        let args: Vec<&str> = args.iter().copied().chain([request.as_str()]).collect();
        run_probe(program, &args, timeout)
    };
    let failed = match ask(ProbePart::All) {
        Ok(devices) => return or_none_found(kind, devices),
        Err(reason) => reason,
    };
    let listed = match ask(ProbePart::List) {
        Ok(devices) if devices.len() > 1 => devices,
        // The only device is the one that failed.
        Ok(devices) => {
            let only = devices.into_iter().next().unwrap_or_else(|| kind.unusable(""));
            return vec![Device { usable: false, reason: failed, ..only }];
        }
        Err(_) => return vec![kind.unusable(failed)],
    };
    let test = |device: Device| {
        let index = match device.id {
            DeviceId::Cuda(index) | DeviceId::Wgpu(index) => index,
            DeviceId::Cpu => return device,
        };
        match ask(ProbePart::Index(index)) {
            Ok(tested) => {
                // Without the device, the child says why there is none of its kind.
                let other = tested.first().map_or("the probe did not find it again", |other| other.reason.as_str());
                let reason = other.to_owned();
                let gone = Device { usable: false, reason, ..device };
                tested.into_iter().find(|d| d.id == gone.id).unwrap_or(gone)
            }
            Err(reason) => Device { usable: false, reason, ..device },
        }
    };
    listed.into_iter().map(test).collect()
}

/// Runs `program args…`, which must print [`super::child_main`] of `kind`, for at most `timeout`. If the child fails,
/// returns one unusable device with the reason.
pub fn discover_kind(kind: Kind, program: &Path, args: &[&str], timeout: Duration) -> Vec<Device> {
    match run_probe(program, args, timeout) {
        Ok(devices) => or_none_found(kind, devices),
        Err(reason) => vec![kind.unusable(reason)],
    }
}

/// Returns the devices, or an unusable one if there are none.
fn or_none_found(kind: Kind, devices: Vec<Device>) -> Vec<Device> {
    if devices.is_empty() { vec![kind.unusable("the probe found no devices")] } else { devices }
}

fn run_probe(program: &Path, args: &[&str], timeout: Duration) -> Result<Vec<Device>, String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start the probe: {e}"))?;
    let output = read_all(child.stdout.take());
    let errors = read_all(child.stderr.take());
    let Some(status) = wait(&mut child, timeout) else {
        end(&mut child);
        return Err(format!("the driver did not answer within {} s", timeout.as_secs_f32()));
    };
    // A process that the child started may keep the pipes open.
    let text = |from: Receiver<Vec<u8>>| {
        String::from_utf8_lossy(&from.recv_timeout(Duration::from_secs(1)).unwrap_or_default()).into_owned()
    };
    let (output, errors) = (text(output), text(errors));
    if !status.success() {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let message: String = last.trim().chars().take(200).collect();
        let message = explained(&message);
        let colon = if message.is_empty() { "" } else { ": " };
        return Err(format!("the driver crashed ({}){colon}{message}", describe_status(status)));
    }
    // Drivers print to the same pipe: the last line that parses as devices counts.
    let devices = output.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    devices.ok_or_else(|| {
        let message: String = output.trim().chars().take(80).collect();
        format!("the probe printed \"{message}\" instead of devices")
    })
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

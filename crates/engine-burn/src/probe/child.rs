//! Probing in child processes that may crash, hang or talk nonsense.

use super::Kind;
use cytoscope_engine::Device;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long a child may take.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes read from a child.
const MOST_OUTPUT: u64 = 1 << 20;

/// Looks at the devices of every kind at once: for each, `program args… <kind>` is started, which prints
/// [`super::child_main`] of that kind.
pub fn discover(program: &Path, args: &[&str]) -> Vec<Device> {
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let probes = Kind::ALL.map(|kind| {
            let args: Vec<&str> = args.iter().copied().chain([kind.name()]).collect();
            (kind, scope.spawn(move || discover_kind(kind, program, &args, TIMEOUT)))
        });
        for (kind, probe) in probes {
            let devices = probe.join();
            found.extend(devices.unwrap_or_else(|_| vec![kind.unusable("the probe could not be followed")]));
        }
    });
    found
}

/// Starts `program args…`, which prints [`super::child_main`] of `kind`, and waits no longer than `timeout`. A child that
/// fails becomes one device that cannot be used, with the reason.
pub fn discover_kind(kind: Kind, program: &Path, args: &[&str], timeout: Duration) -> Vec<Device> {
    match ask(program, args, timeout) {
        Ok(devices) if !devices.is_empty() => devices,
        Ok(_) => vec![kind.unusable("the probe found nothing")],
        Err(reason) => vec![kind.unusable(reason)],
    }
}

fn ask(program: &Path, args: &[&str], timeout: Duration) -> Result<Vec<Device>, String> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("the probe could not be started: {e}"))?;
    let printed = read_all(child.stdout.take());
    let complaints = read_all(child.stderr.take());
    let Some(status) = wait(&mut child, timeout) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("the driver did not answer within {} s of being probed", timeout.as_secs_f32()));
    };
    // A process the child left behind may hold the pipes open.
    let text = |from: Receiver<Vec<u8>>| {
        String::from_utf8_lossy(&from.recv_timeout(Duration::from_secs(1)).unwrap_or_default()).into_owned()
    };
    let (printed, complaints) = (text(printed), text(complaints));
    if !status.success() {
        let last = complaints.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let said: String = last.trim().chars().take(200).collect();
        let colon = if said.is_empty() { "" } else { ": " };
        return Err(format!("the driver crashed while being probed ({}){colon}{said}", ending(status)));
    }
    // Drivers print to the same place: the devices are the last line that holds them.
    let devices = printed.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    devices.ok_or_else(|| {
        let said: String = printed.trim().chars().take(80).collect();
        format!("the probe did not answer with devices but with \"{said}\"")
    })
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.by_ref().take(MOST_OUTPUT).read_to_end(&mut bytes);
            let _ = sender.send(bytes);
            // The child must not wait for a reader.
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
    });
    receiver
}

fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(10)),
            _ => return None,
        }
    }
}

fn ending(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("signal {signal}");
    }
    status.code().map_or_else(|| "unknown ending".to_owned(), |code| format!("exit code {code}"))
}

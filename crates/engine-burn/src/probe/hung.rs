//! Probes that hung, so that they are not waited for again at each start. A file for each kind of devices states what was found
//! and at how many starts of the program in a row it hung. It counts until the system is started again, and for a day at most. A
//! change of the driver changes the list of devices, which is compared; another version of the program tests all of them.

use super::Kind;
use cytoscope_engine::{Device, DeviceId};
use cytoscope_profile::system_start_secs;
use cytoscope_storage::json::{read_json, write_json};
use cytoscope_storage::message;
use cytoscope_storage::setting::LIST_DEVICES;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Time in seconds after which devices are tested again.
const MAX_AGE_SECS: u64 = 24 * 60 * 60;
/// Largest difference in seconds between two statements of when the system was started, where it has no identifier of its start.
const MAX_START_DIFFERENCE_SECS: u64 = 20;
/// What the reason of a device contains whose probe hung.
pub(super) const NO_ANSWER: &str = "the driver did not answer within";

/// What a probe found that hung.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HungProbe {
    /// The devices, with the reasons for those that cannot be used.
    pub(super) devices: Vec<Device>,
    /// The devices as they are listed without a test; `None` if listing them failed.
    pub(super) listed: Option<Vec<Device>>,
    /// Number of starts of the program in a row in which a test hung, with the same list.
    pub(super) hangs: u32,
}

/// The form in a file: version of the program, identifier of the start of the system, time in seconds since 1970, devices,
/// their list, and the number of starts in which a test hung.
type Stored = (String, String, u64, Vec<Device>, Option<Vec<Device>>, u32);
/// The version of the program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl HungProbe {
    /// Reads what the last probe of a kind found if it hung since the system was started, and not long ago.
    pub(super) fn read(folder: &Path, kind: Kind) -> Option<Self> {
        let path = file(folder, kind);
        let stored: Option<Stored> = read_json(&path, MAX_BYTES)
            .inspect_err(|error| tracing::warn!("{}: the last probe is not known: {error}", path.display()))
            .ok()?;
        let (version, start, at_secs, devices, listed, hangs) = stored?;
        let age_secs = now_secs().checked_sub(at_secs)?;
        let is_known = version == VERSION && is_same_start(&start, &system_start()) && age_secs < MAX_AGE_SECS;
        is_known.then_some(Self { devices, listed, hangs })
    }

    /// Writes the file, which a later start reads.
    pub(super) fn write(self, folder: &Path, kind: Kind) {
        let path = file(folder, kind);
        let stored: Stored = (VERSION.to_owned(), system_start(), now_secs(), self.devices, self.listed, self.hangs);
        if let Err(error) = write_json(&path, &stored) {
            tracing::warn!("that a probe hung is not stored, so it is repeated at the next start: {error}");
        }
    }

    /// Returns whether the devices are listed as they were; `None` stands for a list that failed.
    pub(super) fn is_of(&self, listed: Option<&[Device]>) -> bool {
        let identities = |devices: &[Device]| -> Vec<(DeviceId, String, String)> {
            devices.iter().map(|device| (device.id, device.name.clone(), device.driver.clone())).collect()
        };
        self.listed.as_deref().map(identities) == listed.map(identities)
    }
}

/// Removes the file of a kind, so that its devices are tested again.
pub(super) fn forget(folder: &Path, kind: Kind) {
    let path = file(folder, kind);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!("{}: it cannot be removed: {error}", path.display());
        }
        _ => {}
    }
}

/// Returns a device whose reason says that it was found earlier.
pub(super) fn known_earlier(device: Device) -> Device {
    if !device.reason.contains(NO_ANSWER) {
        return device;
    }
    let reason = message!("{} (found at an earlier start; see {LIST_DEVICES} to test it again)", device.reason);
    Device { reason: reason.into(), ..device }
}

fn file(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(format!("hung-probe-{}.json", kind.name()))
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns an identifier that changes when the system is started or, where it has none, the time of its start in seconds.
fn system_start() -> String {
    let identifier = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    identifier.map_or_else(|_| system_start_secs().to_string(), |id| id.trim().to_owned())
}

/// Returns whether two texts of [`system_start`] are of the same start.
fn is_same_start(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a_secs), Ok(b_secs)) => a_secs.abs_diff(b_secs) <= MAX_START_DIFFERENCE_SECS,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_hung_probe_is_known_to_the_same_version_until_the_system_is_restarted() {
        let folder = std::env::temp_dir().join(format!("cytoscope-hung-{}", std::process::id()));
        let probe = HungProbe { devices: Vec::new(), listed: None, hangs: 2 };
        probe.clone().write(&folder, Kind::Cuda);
        assert_eq!(HungProbe::read(&folder, Kind::Cuda), Some(probe));
        let path = file(&folder, Kind::Cuda);
        let known = |version: &str, start: &str, at_secs: u64| {
            let stored: Stored = (version.to_owned(), start.to_owned(), at_secs, Vec::new(), None, 2);
            write_json(&path, &stored).unwrap();
            HungProbe::read(&folder, Kind::Cuda).is_some()
        };
        let (start, now) = (system_start(), now_secs());
        assert!(known(VERSION, &start, now - 60));
        assert!(!known("0.0.0", &start, now - 60), "another version");
        assert!(!known(VERSION, "7", now - 60), "another start");
        assert!(!known(VERSION, &start, now - MAX_AGE_SECS), "a day ago");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn times_of_the_same_start_may_differ_by_seconds() {
        assert!(is_same_start("1700000000", "1700000003") && !is_same_start("1700000000", "1700000100"));
        assert!(
            is_same_start("5f0c-1", "5f0c-1") && !is_same_start("5f0c-1", "5f0c-2") && !is_same_start("5f0c-1", "7")
        );
    }
}

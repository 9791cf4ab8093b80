//! Probes that hung, so that they are not waited for again at each start: a file for each kind of devices with what was found, for
//! this start of the system and at most a day. Another driver has another list of devices, which is compared.

use super::Kind;
use cytoscope_engine::Device;
use cytoscope_storage::json::{read_json, write_json};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Time in seconds after which devices are tested again.
const MAX_AGE_SECS: u64 = 24 * 60 * 60;
/// What the reason of a device contains whose probe hung.
pub(super) const NO_ANSWER: &str = "the driver did not answer within";

/// What a probe found that hung.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HungProbe {
    /// The devices, with the reasons for those that cannot be used.
    pub(super) devices: Vec<Device>,
    /// The devices as they are listed without a test; `None` if listing them failed.
    pub(super) listed: Option<Vec<Device>>,
}

/// The form in a file: identifier of the start of the system, time in seconds since 1970, devices, and their list.
type Stored = (String, u64, Vec<Device>, Option<Vec<Device>>);

impl HungProbe {
    /// Reads what the last probe of a kind found if it hung since the system was started, and not long ago.
    pub(super) fn read(folder: &Path, kind: Kind) -> Option<Self> {
        let path = file(folder, kind);
        let stored: Option<Stored> = read_json(&path, MAX_BYTES)
            .inspect_err(|error| tracing::warn!("{}: the last probe is not known: {error}", path.display()))
            .ok()?;
        let (start, at_secs, devices, listed) = stored?;
        let age_secs = now_secs().checked_sub(at_secs)?;
        (start == system_start() && age_secs < MAX_AGE_SECS).then_some(Self { devices, listed })
    }

    /// Writes the file, which a later start reads.
    pub(super) fn write(self, folder: &Path, kind: Kind) {
        let path = file(folder, kind);
        let stored: Stored = (system_start(), now_secs(), self.devices, self.listed);
        if let Err(error) = write_json(&path, &stored) {
            tracing::warn!("that a probe hung is not stored, so it is repeated at the next start: {error}");
        }
    }

    /// Returns whether the devices are listed as they were.
    pub(super) fn is_of(&self, listed: &[Device]) -> bool {
        let identity = |device: &Device| (device.id, device.name.clone(), device.driver.clone());
        self.listed.as_ref().is_some_and(|known| known.iter().map(identity).eq(listed.iter().map(identity)))
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
    let reason = format!(
        "{} (found at an earlier start; it is tested again by cytoscope devices, after a restart of the computer, or with \
         another driver)",
        device.reason
    );
    Device { reason, ..device }
}

fn file(folder: &Path, kind: Kind) -> PathBuf {
    folder.join(format!("hung-probe-{}.json", kind.name()))
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns an identifier that changes when the system is started; empty where it is not known.
fn system_start() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

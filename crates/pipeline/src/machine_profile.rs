//! Machine profiles: the settings that `tune` measured to be best for a model on a machine, which later runs use where
//! the user gives none. They are stored in one file of the user's folder, which several machines may share.

use crate::predict::PredictJob;
use crate::{JobError, Model, user_folder};
use cytoscope_engine::{Device, DeviceId, DeviceRequest, Precision};
use cytoscope_storage::json::{read_json_with_format, write_json};
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::names::alternatives;
use cytoscope_storage::setting::SAVE_TUNING;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Version of the file of machine profiles; it changes when a file would be misread.
pub const MACHINE_PROFILES_FORMAT: u32 = 1;
/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of stored profiles; the oldest ones are dropped.
const MAX_PROFILES: usize = 500;
/// Key of training runs from scratch, in place of a model's fingerprint.
pub const SCRATCH: &str = "scratch";

/// Goal that a profile's settings were chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The shortest time, whatever memory it takes.
    Fastest,
    /// The lowest peak memory of the process.
    LeastMemory,
    /// The smallest difference from 32-bit floats, then the shortest time.
    MostAccurate,
}

impl Preset {
    /// All presets, fastest first.
    pub const ALL: [Preset; 3] = [Preset::Fastest, Preset::LeastMemory, Preset::MostAccurate];
}

cytoscope_storage::named! {
    /// Returns the name used on the command line and in files.
    pub fn name(Preset) {
        Fastest => "fastest",
        LeastMemory => "least-memory",
        MostAccurate => "most-accurate",
    }
}

cytoscope_storage::parsed_by_name!(Preset, "invalid preset");

/// Whether a run uses the machine profile, and which of its presets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PerformanceRequest {
    /// The preset that the profile was saved with.
    #[default]
    Auto,
    /// Settings of machine profiles are not used.
    Off,
    /// The settings of one preset.
    Preset(Preset),
}

impl PerformanceRequest {
    /// Name of [`Self::Auto`].
    const AUTO: &'static str = "auto";
    /// Name of [`Self::Off`].
    const OFF: &'static str = "off";

    /// Returns a note for the user that a preset that was requested by name has no effect; `None` without such a request.
    pub fn unused_note(self) -> Option<Message> {
        let Self::Preset(preset) = self else { return None };
        Some(message!(
            "performance {preset} has no effect: the machine profile has no such settings for this model, device and \
             precision ({SAVE_TUNING} measures and stores them), or other options set all of them"
        ))
    }

    /// Returns the names of all requests on the command line and in files.
    pub fn names() -> impl Iterator<Item = &'static str> {
        [Self::AUTO, Self::OFF].into_iter().chain(Preset::ALL.map(Preset::name))
    }
}

impl fmt::Display for PerformanceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(Self::AUTO),
            Self::Off => f.write_str(Self::OFF),
            Self::Preset(preset) => preset.fmt(f),
        }
    }
}

impl FromStr for PerformanceRequest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            Self::AUTO => Ok(Self::Auto),
            Self::OFF => Ok(Self::Off),
            preset => preset.parse().map(Self::Preset).map_err(|_| {
                let names: Vec<&str> = Self::names().collect();
                format!("invalid performance \"{text}\": expected {}", alternatives(&names))
            }),
        }
    }
}

impl TryFrom<String> for PerformanceRequest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PerformanceRequest> for String {
    fn from(request: PerformanceRequest) -> String {
        request.to_string()
    }
}

/// Settings of a prediction, with what was measured with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceSettings {
    /// Device that runs the network.
    pub device: DeviceId,
    /// Product name of the GPU that was measured; `None` for the CPU, and in profiles of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Precision in which the network runs.
    pub precision: Precision,
    /// Tile size Z, Y, X in voxels; `None` for the size that the program chooses, or one pass over the stack.
    pub tile_zyx: Option<[usize; 3]>,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
    /// Shortest time of the prediction in seconds.
    pub secs: f64,
    /// Peak memory of the process in bytes, if known.
    pub peak_bytes: Option<u64>,
    /// Relative L2 difference of the maps to those of 32-bit floats, if known.
    pub relative_l2: Option<f64>,
}

/// Settings of a training run, with what was measured with them. The program chooses each setting that is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingSettings {
    /// The device that computes the steps.
    pub device: DeviceId,
    /// Product name of the GPU that was measured; `None` for the CPU, and in profiles of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Precision of the convolutions of a training step; `None` for the default of the device.
    pub precision: Option<Precision>,
    /// Patches per batch; `None` for the default.
    pub batch: Option<usize>,
    /// Number of threads that prepare patches; `None` for the default.
    pub workers: Option<usize>,
    /// Maximum number of patches that are prepared in advance.
    pub prefetch: Option<usize>,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
    /// Shortest time of a patch in seconds.
    pub secs_per_patch: f64,
    /// Peak memory of the process in bytes, if known.
    pub peak_bytes: Option<u64>,
}

/// The settings that tuning found best for a model on a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// Name of the model that was measured.
    pub model: String,
    /// Fingerprint of the model, or [`SCRATCH`].
    pub fingerprint: String,
    /// The machine, as [`machine_key`] describes it.
    pub machine: String,
    /// Name and version of the program that tuned.
    pub program: String,
    /// Time of tuning in seconds since 1970.
    pub tuned_unix_secs: u64,
    /// The preset that is used without a request.
    pub preset: Preset,
    /// Settings of predictions for each preset that was measured.
    #[serde(default)]
    pub inference: BTreeMap<Preset, InferenceSettings>,
    /// Settings of training runs for each preset that was measured.
    #[serde(default)]
    pub training: BTreeMap<Preset, TrainingSettings>,
}

/// A setting that was taken from a machine profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfiledSetting {
    /// The device that runs or trains the network.
    Device,
    /// The number format in which the network runs.
    Precision,
    /// The tile size.
    Tile,
    /// The number of threads.
    Threads,
    /// The batch size.
    Batch,
    /// The number of data workers.
    Workers,
    /// The number of patches that are prepared in advance.
    Prefetch,
}

/// Which settings of a run came from a machine profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppliedProfile {
    /// Preset whose settings are used.
    pub preset: Preset,
    /// The machine that the profile was tuned on, as [`machine_key`] describes it.
    pub machine: String,
    /// Product name of the GPU that was measured; `None` for the CPU, and from profiles of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Time of tuning in seconds since 1970.
    pub tuned_unix_secs: u64,
    /// The settings, with their values as on the command line.
    pub settings: Vec<(ProfiledSetting, String)>,
}

impl AppliedProfile {
    /// Returns what was applied as text for the user.
    pub fn text(&self) -> String {
        let name = |setting| match setting {
            ProfiledSetting::Device => "device",
            ProfiledSetting::Precision => "precision",
            ProfiledSetting::Tile => "tile",
            ProfiledSetting::Threads => "threads",
            ProfiledSetting::Batch => "batch",
            ProfiledSetting::Workers => "workers",
            ProfiledSetting::Prefetch => "prefetch",
        };
        let all: Vec<String> =
            self.settings.iter().map(|(setting, value)| format!("{} {value}", name(*setting))).collect();
        format!("from the machine profile ({}): {}", self.preset, all.join(", "))
    }

    /// Returns why the settings cannot be used by a job on the device `request`: its GPU cannot be used now, or is not the one
    /// that was measured, or the device no longer computes in the precision of the profile. `None` if they can be used.
    pub fn problem(&self, request: DeviceRequest, devices: &[Device]) -> Option<Message> {
        let DeviceRequest::Device(id) = request else { return None };
        let Some(device) = devices.iter().find(|device| device.id == id && device.usable) else {
            let problem = message!("the machine profile is not used: its device {id} cannot be used now");
            return (id != DeviceId::Cpu).then_some(problem);
        };
        let is_gpu = id != DeviceId::Cpu;
        if let Some(measured) = self.device_name.as_ref().filter(|measured| is_gpu && **measured != device.name) {
            return Some(message!(
                "the machine profile is not used: {id} is {}, and the settings were measured on {measured}; run \
                 {SAVE_TUNING} again",
                device.name
            ));
        }
        // A driver or an instruction set may have changed: virtual machines have general names of CPUs.
        let precision = self.precision().filter(|precision| !device.precisions.contains(precision))?;
        Some(message!(
            "the machine profile is not used: {id} does not compute in its precision {precision} now; run {SAVE_TUNING} again"
        ))
    }

    /// Returns the precision that came from the profile; `None` if the job stated one.
    fn precision(&self) -> Option<Precision> {
        let (_, name) = self.settings.iter().find(|(setting, _)| *setting == ProfiledSetting::Precision)?;
        name.parse().ok()
    }
}

/// Returns the name to store for a measured device: that of a GPU, since the description of the machine names only the CPU.
pub fn measured_gpu_name(id: DeviceId, devices: &[Device]) -> Option<String> {
    let is_measured = |device: &&Device| device.id == id && id != DeviceId::Cpu;
    devices.iter().find(is_measured).map(|device| device.name.clone())
}

/// Returns the description of this machine that is a part of a profile's key: CPU, number of cores, and system.
pub fn machine_key() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = cytoscope_profile::cpu_name().unwrap_or("unknown CPU");
    format!("{cpu}, {cores} cores, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}

impl MachineProfile {
    /// Returns the preset to use; `None` if no profile is wanted.
    pub fn preset_for(&self, request: PerformanceRequest) -> Option<Preset> {
        match request {
            PerformanceRequest::Off => None,
            PerformanceRequest::Auto => Some(self.preset),
            PerformanceRequest::Preset(preset) => Some(preset),
        }
    }

    /// Returns the record of settings that were applied, and measured on a GPU of this name; `None` if there are none.
    pub fn applied(
        &self,
        preset: Preset,
        device_name: Option<&str>,
        settings: Vec<(ProfiledSetting, String)>,
    ) -> Option<AppliedProfile> {
        let (machine, tuned_unix_secs) = (self.machine.clone(), self.tuned_unix_secs);
        let device_name = device_name.map(str::to_owned);
        (!settings.is_empty()).then_some(AppliedProfile { preset, machine, device_name, tuned_unix_secs, settings })
    }

    /// Sets the device, precision, tile and threads that the job leaves open. Settings that were measured together stay
    /// together: if the job's device or precision is not the profile's, nothing that depends on it is set.
    pub fn apply_to_prediction(&self, job: &mut PredictJob, request: PerformanceRequest) -> Option<AppliedProfile> {
        let preset = self.preset_for(request)?;
        let tuned = self.inference.get(&preset)?;
        let is_same_precision = job.precision.is_none_or(|given| given == tuned.precision);
        let is_same_device = match job.device {
            DeviceRequest::Auto => is_same_precision,
            DeviceRequest::Device(given) => given == tuned.device,
        };
        if !is_same_device {
            return None;
        }
        let mut settings = Vec::new();
        if job.device == DeviceRequest::Auto {
            job.device = DeviceRequest::Device(tuned.device);
            settings.push((ProfiledSetting::Device, tuned.device.to_string()));
        }
        if job.precision.is_none() {
            job.precision = Some(tuned.precision);
            settings.push((ProfiledSetting::Precision, tuned.precision.to_string()));
        }
        let tiles = &mut job.tiles;
        let is_open = tiles.tile.is_none()
            && tiles.recorded.is_none()
            && tiles.overlap.is_none()
            && tiles.blend.is_none()
            && job.memory_budget_bytes.is_none();
        if let Some(tile @ [z, y, x]) = tuned.tile_zyx.filter(|_| is_open && is_same_precision) {
            tiles.recorded = Some(tile);
            settings.push((ProfiledSetting::Tile, format!("{z},{y},{x}")));
        }
        if job.threads == 0 && tuned.threads > 0 {
            job.threads = tuned.threads;
            settings.push((ProfiledSetting::Threads, tuned.threads.to_string()));
        }
        self.applied(preset, tuned.device_name.as_deref(), settings)
    }
}

/// All machine profiles of this user, as the file stores them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineProfiles {
    /// [`MACHINE_PROFILES_FORMAT`] of the program that wrote the file.
    format: u32,
    profiles: Vec<MachineProfile>,
}

impl Default for MachineProfiles {
    fn default() -> Self {
        Self { format: MACHINE_PROFILES_FORMAT, profiles: Vec::new() }
    }
}

impl MachineProfiles {
    /// Returns the file of the user's profiles: `machine-profiles.json` in the user's folder; `None` without one.
    pub fn user_path() -> Option<PathBuf> {
        user_folder().map(|folder| folder.join("machine-profiles.json"))
    }

    /// Reads a file of profiles; a missing one has none.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be read, is too large, or was written by another version.
    pub fn read(path: &Path) -> Result<Self, JobError> {
        let next_step = message!("remove the file, and run {SAVE_TUNING} again");
        let read = read_json_with_format(path, MAX_FILE_BYTES, MACHINE_PROFILES_FORMAT);
        Ok(read.map_err(JobError::stored(path, "machine profiles", next_step))?.unwrap_or_default())
    }

    /// Writes the profiles, and creates the folder.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), JobError> {
        Ok(write_json(path, self)?)
    }

    /// Reads a file of profiles, changes them and writes them, if they have changed. Other processes that do so wait, so that
    /// none loses what another one has added.
    ///
    /// # Errors
    /// Same as [`Self::read`] and [`Self::write`], and [`JobError`] if the file cannot be locked.
    pub fn update<R>(path: &Path, change: impl FnOnce(&mut Self) -> R) -> Result<R, JobError> {
        let _lock = ResultsLock::for_update(path)?;
        let mut profiles = Self::read(path)?;
        let before = profiles.clone();
        let result = change(&mut profiles);
        if profiles != before {
            profiles.write(path)?;
        }
        Ok(result)
    }

    /// Adds a profile in place of an earlier one of the same model and machine. Settings of the earlier one for a kind of run
    /// that was not tuned again are kept.
    pub fn put(&mut self, mut profile: MachineProfile) {
        let is_same = |p: &MachineProfile| p.fingerprint == profile.fingerprint && p.machine == profile.machine;
        if let Some(at) = self.profiles.iter().position(is_same) {
            let earlier = self.profiles.remove(at);
            if profile.inference.is_empty() {
                profile.inference = earlier.inference;
            }
            if profile.training.is_empty() {
                profile.training = earlier.training;
            }
        }
        self.profiles.push(profile);
        let surplus = self.profiles.len().saturating_sub(MAX_PROFILES);
        self.profiles.drain(..surplus);
    }

    /// Fills the settings that a prediction leaves open from the profile of its model on this machine. Returns the
    /// settings that were filled; `None` without any.
    ///
    /// # Errors
    /// [`JobError`] if the model cannot be loaded; it is not loaded if no profile can be used.
    pub fn apply_to_prediction(
        &self,
        job: &mut PredictJob,
        request: PerformanceRequest,
    ) -> Result<Option<AppliedProfile>, JobError> {
        if self.is_empty() || request == PerformanceRequest::Off {
            return Ok(None);
        }
        let fingerprint = Model::load(&job.model)?.fingerprint;
        let profile = self.find(&fingerprint, &machine_key());
        Ok(profile.and_then(|profile| profile.apply_to_prediction(job, request)))
    }

    /// Returns whether there are no profiles.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Returns the newest profile of a model of this name on a machine, for display: models of one name may differ.
    pub fn find_by_name(&self, model: &str, machine: &str) -> Option<&MachineProfile> {
        self.profiles.iter().rev().find(|p| p.model == model && p.machine == machine)
    }

    /// Returns the profile of a model (its fingerprint, or [`SCRATCH`]) on a machine.
    pub fn find(&self, fingerprint: &str, machine: &str) -> Option<&MachineProfile> {
        self.profiles.iter().find(|p| p.fingerprint == fingerprint && p.machine == machine)
    }
}

#[cfg(test)]
mod tests;

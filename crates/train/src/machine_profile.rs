//! Settings of a training run from the profile of this machine.

use crate::config::{TrainConfig, TrainPrecision};
use crate::estimate::EstimateJob;
use crate::job::TrainJob;
use crate::start::TrainStart;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::{AppliedProfile, JobError, MachineProfile, MachineProfiles, Model, ProfiledSetting, SCRATCH};

/// Returns the profile of a start model on a machine; `None` if there is none.
fn find<'a>(
    from: &TrainStart,
    profiles: &'a MachineProfiles,
    machine: &str,
) -> Result<Option<&'a MachineProfile>, JobError> {
    if profiles.is_empty() {
        return Ok(None);
    }
    match from {
        TrainStart::Scratch => Ok(profiles.find(SCRATCH, machine)),
        TrainStart::Model(model) => Ok(profiles.find(&Model::load(model)?.fingerprint, machine)),
    }
}

impl TrainJob {
    /// Returns the settings that a machine profile may set.
    pub fn open_settings(&mut self) -> OpenSettings<'_> {
        let Self { from, config, device, may_change_device, threads, .. } = self;
        OpenSettings { from, config, device, may_change_device: Some(may_change_device), threads }
    }
}

impl EstimateJob {
    /// Returns the settings that a machine profile may set; they are the same as in the training run whose cost is
    /// estimated.
    pub fn open_settings(&mut self) -> OpenSettings<'_> {
        let Self { from, config, device, threads, .. } = self;
        OpenSettings { from, config, device, may_change_device: None, threads }
    }
}

/// The settings of a training run, or of its estimate, that a machine profile may set.
pub struct OpenSettings<'a> {
    /// Starting point of the training run.
    from: &'a TrainStart,
    config: &'a mut TrainConfig,
    device: &'a mut DeviceRequest,
    /// Whether a device other than the requested one may continue the run; `None` for an estimate.
    may_change_device: Option<&'a mut bool>,
    threads: &'a mut usize,
}

impl OpenSettings<'_> {
    /// Fills the settings that were left open from the profile of the start model on a machine, with the preset that
    /// `config.performance` asks for. If a device or precision other than the profile's is requested, nothing is filled.
    /// Returns the settings that were filled; `None` without any.
    ///
    /// # Errors
    /// [`JobError`] if the start model cannot be read.
    pub fn set_from(self, profiles: &MachineProfiles, machine: &str) -> Result<Option<AppliedProfile>, JobError> {
        Ok(find(self.from, profiles, machine)?.and_then(|profile| self.apply(profile)))
    }

    fn apply(self, profile: &MachineProfile) -> Option<AppliedProfile> {
        let Self { config, device, may_change_device, threads, .. } = self;
        let preset = profile.preset_for(config.performance)?;
        let tuned = profile.training.get(&preset)?;
        let precision = tuned.precision.and_then(TrainPrecision::of);
        let is_same_precision = config.precision == TrainPrecision::Auto || Some(config.precision) == precision;
        let is_same_device = match *device {
            DeviceRequest::Auto => true,
            DeviceRequest::Device(given) => given == tuned.device,
        };
        if !is_same_device || !is_same_precision {
            return None;
        }
        let mut settings = Vec::new();
        if *device == DeviceRequest::Auto {
            *device = DeviceRequest::Device(tuned.device);
            if let Some(may_change_device) = may_change_device {
                *may_change_device = true;
            }
            settings.push((ProfiledSetting::Device, tuned.device.to_string()));
        }
        if let Some(value) = precision.filter(|_| config.precision == TrainPrecision::Auto) {
            config.precision = value;
            settings.extend(tuned.precision.map(|p| (ProfiledSetting::Precision, p.to_string())));
        }
        for (setting, open, value) in [
            (ProfiledSetting::Batch, &mut config.batch, tuned.batch),
            (ProfiledSetting::Workers, &mut config.workers, tuned.workers),
            (ProfiledSetting::Prefetch, &mut config.prefetch, tuned.prefetch),
        ] {
            if let Some(value) = value.filter(|_| open.is_none()) {
                *open = Some(value);
                settings.push((setting, value.to_string()));
            }
        }
        if *threads == 0 && tuned.threads > 0 {
            *threads = tuned.threads;
            settings.push((ProfiledSetting::Threads, tuned.threads.to_string()));
        }
        profile.applied(preset, tuned.device_name.as_deref(), settings)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_engine::{DeviceId, Precision};
    use cytoscope_pipeline::{Preset, TrainingSettings};
    use serde_json::json;
    use std::collections::BTreeMap;

    fn profile() -> MachineProfile {
        let tuned = TrainingSettings {
            device: DeviceId::Cuda(0),
            device_name: None,
            precision: Some(Precision::F16),
            batch: Some(8),
            workers: Some(5),
            prefetch: None,
            threads: 0,
            secs_per_patch: 0.01,
            peak_bytes: None,
        };
        MachineProfile {
            model: SCRATCH.to_owned(),
            fingerprint: SCRATCH.to_owned(),
            machine: "here".to_owned(),
            program: "p".to_owned(),
            tuned_unix_secs: 1,
            preset: Preset::Fastest,
            inference: BTreeMap::new(),
            training: BTreeMap::from([(Preset::Fastest, tuned)]),
        }
    }

    fn job(config: serde_json::Value, device: &str) -> TrainJob {
        let value = json!({"task": "segmentation", "data": "d", "from": "scratch", "out": "m", "config": config,
                           "device": device});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_profile_fills_only_settings_that_are_open() {
        use ProfiledSetting::{Batch, Device, Precision as OfPrecision, Workers};
        let changed = |job: &mut TrainJob| -> Vec<ProfiledSetting> {
            let applied = job.open_settings().apply(&profile());
            applied.map_or_else(Vec::new, |a| a.settings.into_iter().map(|(setting, _)| setting).collect())
        };
        let mut open = job(json!({}), "auto");
        assert_eq!(changed(&mut open), [Device, OfPrecision, Batch, Workers]);
        assert_eq!((open.config.batch, open.config.workers, open.config.prefetch), (Some(8), Some(5), None));
        assert_eq!(open.config.precision, TrainPrecision::F16);
        assert_eq!(changed(&mut job(json!({"batch": 2, "precision": "f16"}), "cuda:0")), [Workers]);
        for (config, device) in
            [(json!({}), "cpu"), (json!({"precision": "f32"}), "auto"), (json!({"performance": "off"}), "auto")]
        {
            let unchanged = job(config, device);
            let mut one = unchanged.clone();
            assert!(changed(&mut one).is_empty() && one == unchanged, "{unchanged:?}");
        }
    }

    #[test]
    fn a_run_from_scratch_has_a_profile_of_its_own() {
        let mut profiles = MachineProfiles::default();
        let applied = |profiles: &MachineProfiles, machine: &str| {
            let applied = job(json!({}), "auto").open_settings().set_from(profiles, machine).unwrap();
            applied.map(|applied| applied.machine)
        };
        assert_eq!(applied(&profiles, "here"), None);
        profiles.put(profile());
        assert_eq!(applied(&profiles, "here"), Some("here".to_owned()));
        assert_eq!(applied(&profiles, "elsewhere"), None);
    }
}

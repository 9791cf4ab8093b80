//! Running a recorded prediction again, as closely to the recorded run as this machine allows.

use crate::devices::{DeviceChoice, Devices};
use crate::folder_digest::chunks_change;
use crate::predict::input_channels::has_read_first_channel;
use crate::predict::zarr::is_ome_zarr_name;
use crate::predict::{PredictJob, ResultFormat, TilePlan, TileRequest};
use crate::provenance::{CheckedInput, Provenance, changes_of, program};
use crate::recorded::Recorded;
use crate::{JobError, Model, StatisticsScope};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_formats::{is_zarr_folder, is_zarr_zip_name};
use std::path::Path;

/// A recorded prediction that is ready to be run again.
#[derive(Debug)]
pub struct Rerun {
    /// The recorded job, with the device, precision and tiles of the recorded run where this machine can use them.
    pub job: PredictJob,
    /// The devices to run it with.
    pub devices: Devices,
    /// Differences from the recorded run, one sentence each.
    pub notes: Vec<String>,
}

impl Provenance {
    /// Prepares the recorded prediction to be run again. With the recorded model, it runs on the recorded device in the
    /// recorded precision, and if the input has not changed either, with the recorded tiles. If that device, precision
    /// or tile size cannot be used, the job is run with one that can. With another model, the job is run as it was requested.
    ///
    /// `devices_for` returns the devices to choose from for a request.
    ///
    /// # Errors
    /// [`JobError`] if the recorded options are invalid, or the model is missing or cannot be read.
    pub fn rerun(self, devices_for: impl FnOnce(DeviceRequest) -> Devices) -> Result<Rerun, JobError> {
        self.job.options().check()?;
        let mut notes = Vec::new();
        let program = program();
        if self.program != program {
            notes.push(format!("the recorded result was made by {}, but this is {program}", self.program));
        }
        let model = Model::load(&self.job.model)?;
        let is_same_model = model.fingerprint == self.model.fingerprint;
        if !is_same_model {
            notes.push(format!(
                "the model {} ({}) is not the one that made the recorded result (fingerprint {}, recorded {})",
                model.name,
                model.path.display(),
                model.fingerprint,
                self.model.fingerprint
            ));
        }
        if let [_, .., last] = self.parts.as_slice() {
            notes.push(format!(
                "several devices or precisions computed the recorded result: it is made again with the last one, {} in {}",
                last.device, last.precision
            ));
        }
        let scope = StatisticsScope::of(&model).filter(|_| is_same_model);
        notes.extend(statistics_note(self.statistics, scope).map(str::to_owned));
        let changes = changes_of(&self.checked_inputs());
        let is_same_input = changes.is_empty();
        notes.extend(changes);
        let wrote = |wanted: &str| self.outputs.iter().any(|file| file.path.extension().is_some_and(|e| e == wanted));
        // A preprocessed stack is a TIFF file beside OME-Zarr results, too.
        let wrote_zarr = wrote("zarr") || self.outputs.iter().any(|file| is_zarr_zip_name(&file.path));
        let wrote_tiff = wrote("tif") && !wrote_zarr;
        let mut job = self.job;
        // Earlier versions wrote TIFF for every input.
        if wrote_tiff && job.format.is_auto() && job.inputs.iter().any(|input| is_zarr_folder(input)) {
            job.format = ResultFormat::Tiff;
        }
        if is_same_model && has_read_first_channel(&job, &model) {
            job.channel = Some(0);
        }
        // The folder of the new results may have another name.
        if job.format.is_auto() && is_ome_zarr_name(&job.out) {
            job.format = ResultFormat::OmeZarr;
        }
        let recorded: Option<DeviceChoice> =
            if is_same_model { recorded_part(self.device, "device", &mut notes) } else { None };
        let devices = devices_for(recorded.as_ref().map_or(job.device, |device| DeviceRequest::Device(device.id)));
        if let Some(recorded) = recorded {
            let precision = self.precision.unwrap_or_else(|| model.precision_on(recorded.id, job.precision));
            notes.extend(replay_device(&mut job, &recorded, precision, &devices));
        }
        let plan: Option<TilePlan> =
            if is_same_model && is_same_input { recorded_part(self.plan, "tiles", &mut notes) } else { None };
        if let Some(TilePlan { tile, overlap, blend, .. }) = plan {
            job.tiles = TileRequest { tile: None, recorded: Some(tile), overlap: Some(overlap), blend: Some(blend) };
        }
        Ok(Rerun { job, devices, notes })
    }

    /// Returns what differs from when the prediction was recorded, one sentence each: the program, the input and the model.
    pub fn differences(&self) -> Vec<String> {
        self.differences_from(&self.checked_inputs(), self.model.change())
    }

    /// Like [`Provenance::differences`], of inputs that were compared, and with the change of the model.
    pub(crate) fn differences_from(&self, inputs: &[CheckedInput], model_change: Option<String>) -> Vec<String> {
        let program = program();
        let mut found = Vec::new();
        if self.program != program {
            found.push(format!("the recorded result was made by {}, but this is {program}", self.program));
        }
        found.extend(changes_of(inputs));
        found.extend(model_change);
        found
    }

    /// Returns the recorded inputs, compared with the files as they are now.
    pub(crate) fn checked_inputs(&self) -> Vec<CheckedInput> {
        let named = |path: &Path, change: Option<String>| -> Vec<String> {
            change.map(|change| format!("the input {} {change}", path.display())).into_iter().collect()
        };
        // The job's paths are absolute; only a damaged record has none.
        let own = [self.input.path.clone()];
        let inputs = if self.job.inputs.is_empty() { own.as_slice() } else { self.job.inputs.as_slice() };
        let changes = inputs.iter().flat_map(|input| named(input, self.input.change_on_disk(input))).collect();
        let mut checked = vec![CheckedInput { text: self.input.text(), changes }];
        if let (Some(files), Some(input)) = (&self.input_files, inputs.first()) {
            let changes = files.changes(input, || Some(self.job.open(input).ok()?.files()));
            checked.push(CheckedInput { text: files.text(), changes });
        }
        checked.extend(self.chunks.iter().map(|chunks| {
            let changes = named(&chunks.path, chunks_change(chunks));
            CheckedInput { text: chunks.text(), changes }
        }));
        checked.extend(self.input_tensors.iter().map(|tensor| {
            let changes = named(&tensor.file.path, tensor.file.change_on_disk(&tensor.file.path));
            CheckedInput { text: tensor.text(), changes }
        }));
        checked
    }
}

/// Returns a note if the recorded run used statistics of the whole stack, but each slice `now` has its own.
fn statistics_note(recorded: Option<StatisticsScope>, now: Option<StatisticsScope>) -> Option<&'static str> {
    let differs = now == Some(StatisticsScope::Slice) && recorded != now;
    differs.then_some(
        "the recorded run computed the statistics of the model's processing steps, such as percentiles, over the whole stack; \
         now each slice has its own, so the results of a stack differ",
    )
}

/// Returns a part of a record. Records of other versions may describe it in another way: then there is none, and a note
/// says so.
fn recorded_part<T>(part: Recorded<T>, what: &str, notes: &mut Vec<String>) -> Option<T> {
    match part.into_inner() {
        Ok(part) => Some(part),
        Err(error) => {
            notes.push(format!("the recorded {what} cannot be read ({error}): it is chosen again"));
            None
        }
    }
}

/// Requests the recorded device and precision, or what is available in their place. Returns what differs, one sentence
/// each.
fn replay_device(
    job: &mut PredictJob,
    recorded: &DeviceChoice,
    precision: Precision,
    devices: &Devices,
) -> Vec<String> {
    let DeviceChoice { id, name, .. } = recorded;
    let mut notes = Vec::new();
    let found = devices.list().iter().find(|device| device.id == *id);
    job.precision = Some(precision);
    let computes = match found.filter(|device| device.usable) {
        Some(device) => {
            job.device = DeviceRequest::Device(*id);
            if device.name != *name {
                notes.push(format!("the recorded result was made on {id} ({name}), which is {} now", device.name));
            }
            device.precisions.contains(&precision)
        }
        None => {
            job.device = DeviceRequest::Auto;
            let reason = found.map_or("there is no such device", |device| device.reason.as_str());
            notes.push(format!("the recorded device {id} ({name}) is not available ({reason}): another one is used"));
            devices.list().iter().any(|device| device.usable && device.precisions.contains(&precision))
        }
    };
    if !computes {
        job.precision = None;
        notes.push(format!("the recorded precision {precision} is not available: another one is used"));
    }
    notes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::{Device, DeviceId};

    fn job() -> PredictJob {
        serde_json::from_str(r#"{"inputs": ["x.tif"], "model": "m", "out": "o"}"#).unwrap()
    }

    fn gpu(usable: bool) -> Device {
        let gpu = Device::named(DeviceId::Cuda(0), "A GPU", &[Precision::F32, Precision::F16]);
        Device { usable, reason: "its driver is too old".to_owned(), ..gpu }
    }

    fn replayed(devices: &Devices, precision: Precision) -> (PredictJob, String) {
        let (id, name) = (DeviceId::Cuda(0), "A GPU".to_owned());
        let recorded = DeviceChoice { id, name, why: String::new(), measurements: Vec::new() };
        let mut job = job();
        let notes = replay_device(&mut job, &recorded, precision, devices);
        (job, notes.join("; "))
    }

    #[test]
    fn a_rerun_requests_the_recorded_device_and_precision() {
        let (job, notes) = replayed(&Devices::with_gpus(vec![gpu(true)]), Precision::F16);
        assert_eq!(job.device, DeviceRequest::Device(DeviceId::Cuda(0)));
        assert_eq!((job.precision, notes.as_str()), (Some(Precision::F16), ""));
    }

    #[test]
    fn a_rerun_says_which_part_of_the_record_cannot_be_used() {
        let mut notes = Vec::new();
        let from_another_version = serde_json::json!({"id": "a device of another version"});
        let part: Recorded<DeviceChoice> = serde_json::from_value(from_another_version).unwrap();
        assert_eq!(recorded_part(part, "device", &mut notes), None);
        let notes = notes.join("; ");
        assert!(
            notes.starts_with("the recorded device cannot be read (") && notes.ends_with("): it is chosen again"),
            "{notes}"
        );
    }

    #[test]
    fn a_rerun_says_that_statistics_are_now_those_of_slices() {
        let (stack, slice) = (Some(StatisticsScope::Stack), Some(StatisticsScope::Slice));
        assert!(statistics_note(None, slice).is_some_and(|note| note.contains("each slice")));
        for (recorded, now) in [(slice, slice), (None, stack), (stack, stack), (None, None)] {
            assert_eq!(statistics_note(recorded, now), None, "{recorded:?}, {now:?}");
        }
    }

    #[test]
    fn a_rerun_without_the_recorded_device_says_so_and_uses_another_one() {
        let (job, notes) = replayed(&Devices::with_gpus(vec![gpu(false)]), Precision::F32);
        assert_eq!((job.device, job.precision), (DeviceRequest::Auto, Some(Precision::F32)));
        assert!(notes.contains("cuda:0") && notes.contains("its driver is too old"), "{notes}");
        let (job, notes) = replayed(&Devices::cpu_only(), Precision::F16);
        assert_eq!((job.device, job.precision), (DeviceRequest::Auto, None));
        assert!(notes.contains("there is no such device") && notes.contains("f16"), "{notes}");
    }
}

//! Completes options that are not given from the profile of this machine.

use super::devices;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{AppliedProfile, Context, MachineProfiles, PerformanceRequest, PredictJob, machine_key};
use cytoscope_storage::message;
use cytoscope_train::TrainJob;

/// Returns the stored profiles. A file that cannot be used is reported, and counts as empty.
fn stored(context: &Context) -> MachineProfiles {
    let Some(path) = MachineProfiles::user_path() else { return MachineProfiles::default() };
    MachineProfiles::read(&path).unwrap_or_else(|error| {
        context.note(message!("the machine profiles are not used: {error}"));
        MachineProfiles::default()
    })
}

/// Restores the job as it was given if the device from the machine profile cannot be used, or is not the one that was
/// measured. Returns what came from the profile, and the devices to choose from.
fn checked<J>(
    job: &mut J,
    given: J,
    applied: Option<AppliedProfile>,
    device: impl Fn(&J) -> DeviceRequest,
    context: &Context,
) -> (Option<AppliedProfile>, Devices) {
    let available = devices::found(device(job), &context.recorder);
    if let Some(problem) = applied.as_ref().and_then(|applied| applied.problem(device(job), available.list())) {
        context.note(problem);
        *job = given;
        return (None, devices::found(device(job), &context.recorder));
    }
    if let Some(applied) = &applied {
        context.note(applied.text());
    }
    (applied, available)
}

/// Reports that a preset that was requested by name has no effect.
fn report_unused(request: PerformanceRequest, applied: Option<&AppliedProfile>, context: &Context) {
    if let Some(note) = request.unused_note().filter(|_| applied.is_none()) {
        context.note(note);
    }
}

/// Completes a prediction job from the machine profile. Returns what came from it, and the devices to choose from.
pub(super) fn for_prediction(
    job: &mut PredictJob,
    request: PerformanceRequest,
    context: &Context,
) -> (Option<AppliedProfile>, Devices) {
    let given = job.clone();
    let applied = apply_to_prediction(job, request, context);
    report_unused(request, applied.as_ref(), context);
    checked(job, given, applied, |job| job.device, context)
}

fn apply_to_prediction(job: &mut PredictJob, request: PerformanceRequest, context: &Context) -> Option<AppliedProfile> {
    if request == PerformanceRequest::Off {
        return None;
    }
    // The job reports a model that cannot be loaded.
    stored(context).apply_to_prediction(job, request).ok().flatten()
}

/// Completes a training job from the machine profile. Returns what came from it, and the devices to choose from.
pub(super) fn for_training(job: &mut TrainJob, context: &Context) -> (Option<AppliedProfile>, Devices) {
    let given = job.clone();
    let applied = apply_to_training(job, context);
    report_unused(job.config.performance, applied.as_ref(), context);
    checked(job, given, applied, |job| job.device, context)
}

fn apply_to_training(job: &mut TrainJob, context: &Context) -> Option<AppliedProfile> {
    if job.config.performance == PerformanceRequest::Off {
        return None;
    }
    // The job reports a start model that cannot be loaded.
    job.open_settings().set_from(&stored(context), &machine_key()).ok().flatten()
}

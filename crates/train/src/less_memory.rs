//! Retries training steps for which a GPU has too little memory: more activations are recomputed, with the same results.

use crate::device_choice::finding;
use crate::step::{StepperOptions, activation_budget};
use cytoscope_engine::{Device, DeviceId, EngineError};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::bytes_text;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;

/// How often the memory limit of activations is halved on a GPU that runs out of memory, before it counts as too small.
pub(crate) const MAX_HALVINGS: usize = 3;

/// Halves the memory limit of activations in `options` after a step has run out of memory on a GPU, and returns a note about
/// it. `held_bytes` are those of the activations of the step; 0 if it was not compiled. Returns `None` if the device has
/// failed otherwise, or if its memory is not known and no step was compiled.
pub(crate) fn halve_activations(
    error: &JobError,
    options: &mut StepperOptions,
    device: &Device,
    held_bytes: u64,
) -> Option<Message> {
    let is_full = matches!(error, JobError::Engine(EngineError::OutOfMemory { .. }));
    let held_bytes = if held_bytes == 0 { u64::MAX } else { held_bytes };
    let bytes = activation_budget(options.memory_budget_bytes, device).min(held_bytes);
    if !is_full || device.id == DeviceId::Cpu || bytes == u64::MAX {
        return None;
    }
    options.memory_budget_bytes = Some(bytes / 2);
    Some(message!("{}; trying again with at most {} of activations", finding(error), bytes_text(bytes / 2)))
}

/// Makes steps with `attempt`, and if a GPU runs out of memory, again with a lower memory limit of activations. `attempt`
/// writes the bytes of the activations of its step to its second argument. The lowered limit in bytes is returned, too; `None`
/// if the first attempt succeeded.
pub(crate) fn with_less_memory<T>(
    context: &Context,
    device: &Device,
    mut options: StepperOptions,
    mut attempt: impl FnMut(&StepperOptions, &mut u64) -> Result<T, JobError>,
) -> Result<(T, Option<u64>), JobError> {
    let mut lowered_bytes = None;
    for _ in 0..MAX_HALVINGS {
        let mut held_bytes = 0;
        let error = match attempt(&options, &mut held_bytes) {
            Err(error) => error,
            Ok(done) => return Ok((done, lowered_bytes)),
        };
        match halve_activations(&error, &mut options, device, held_bytes) {
            Some(note) => {
                context.note(note);
                lowered_bytes = options.memory_budget_bytes;
            }
            None => return Err(error),
        }
    }
    Ok((attempt(&options, &mut 0)?, lowered_bytes))
}

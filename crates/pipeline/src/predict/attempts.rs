//! The attempts to predict an input file or a volume in memory: what is tried next after one has failed.

use super::PredictOptions;
use crate::devices::{Devices, SelectedEngine};
use crate::{Context, JobError, JobErrorKind, Model};
use cytoscope_engine::{DeviceId, EngineError, Precision};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;

/// What is different in the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextAttempt {
    /// Fewer tiles are computed at once, or smaller ones.
    SmallerSessions,
    /// The network is computed in 32 bits instead of 16.
    In32Bits,
    /// Another device takes over.
    OnNextDevice,
}

/// The attempts to predict an input or a volume. If memory runs out, fewer tiles at once or smaller ones are tried, as long as
/// another device could take over; if 16-bit floats overflow, 32 bits; and finally the next device.
pub(super) struct Attempts<'a> {
    context: &'a Context,
    devices: &'a Devices,
    model: &'a Model,
    options: &'a PredictOptions,
    /// Whether notes are shown at once, besides being kept.
    shows_notes: bool,
    /// The device of the next attempt.
    engine: SelectedEngine,
    /// Whether the network exceeds the range of 16-bit floats, so that devices compute in 32 bits.
    is_wide: bool,
    /// Devices that have failed for a reason other than lack of memory.
    lost: Vec<DeviceId>,
    /// Devices that ran out of memory before others were tried.
    full: Vec<DeviceId>,
    /// The first of those devices.
    left: Option<SelectedEngine>,
    /// What did not work, and what was tried instead.
    notes: Vec<Message>,
}

impl<'a> Attempts<'a> {
    /// Starts with a device. `shows_notes` states whether notes are shown at once, besides being kept.
    pub(super) fn new(
        context: &'a Context,
        devices: &'a Devices,
        model: &'a Model,
        options: &'a PredictOptions,
        engine: &SelectedEngine,
        shows_notes: bool,
    ) -> Self {
        Self {
            context,
            devices,
            model,
            options,
            shows_notes,
            engine: engine.clone(),
            is_wide: engine.is_wide,
            lost: engine.lost.clone(),
            full: Vec::new(),
            left: None,
            notes: Vec::new(),
        }
    }

    /// Returns the device of the next attempt.
    pub(super) fn engine(&self) -> &SelectedEngine {
        &self.engine
    }

    /// Keeps a note, and shows it if notes are shown at once.
    pub(super) fn note(&mut self, note: impl Into<Message>) {
        let note: Message = note.into();
        if self.shows_notes {
            self.context.note(note.clone());
        }
        self.notes.push(note);
    }

    /// Decides how to continue after an attempt has failed.
    ///
    /// # Errors
    /// `error` if nothing is left to try, if the requested 16-bit precision is not available, or if it is not that of an
    /// engine; [`JobError::Canceled`]; [`JobError::Engine`] if no device can take over.
    pub(super) fn after(&mut self, error: JobError) -> Result<NextAttempt, JobError> {
        self.context.report_lost(&error);
        if error.kind() == JobErrorKind::Canceled {
            return Err(JobError::Canceled);
        }
        let error = match error {
            JobError::Engine(error) => error,
            other => return Err(other),
        };
        let is_full = matches!(error, EngineError::OutOfMemory { .. });
        if is_full && self.shrink() {
            let change = if self.engine.last_batch() > 1 { "fewer tiles at once" } else { "smaller tiles" };
            self.note(message!("{}; trying {change}", error.finding()));
            return Ok(NextAttempt::SmallerSessions);
        }
        // In 32 bits, the network may stay within the range of the type.
        if !self.is_wide && matches!(error, EngineError::NotFinite { .. }) {
            self.is_wide = true;
            self.engine = self.engine.in_32_bits();
            let precision = self.engine.precision(self.model, self.options.precision);
            self.note(message!("{}; computing in {precision}", error.finding()));
            return Ok(NextAttempt::In32Bits);
        }
        // The other devices may have 16-bit floats, but the requested one does not.
        let is_refused = self.options.precision.is_some_and(Precision::is_half)
            && matches!(error, EngineError::UnsupportedPrecision { .. });
        if is_refused || !self.engine.has_fallback() {
            return Err(JobError::Engine(error));
        }
        self.take_next_device(&error, is_full)?;
        Ok(NextAttempt::OnNextDevice)
    }

    /// Lowers the memory of sessions on a device that another one could replace. Returns false if there is nothing to lower:
    /// requested tiles are not made smaller.
    fn shrink(&self) -> bool {
        self.engine.has_fallback()
            && (self.options.tiles.tile.is_none() || self.engine.last_batch() > 1)
            && self.engine.shrink_sessions()
    }

    /// Selects the next device after one has failed, and reports it.
    fn take_next_device(&mut self, error: &EngineError, is_full: bool) -> Result<(), JobError> {
        let gone = if is_full { &mut self.full } else { &mut self.lost };
        gone.push(self.engine.choice.id);
        let tried = [self.lost.as_slice(), self.full.as_slice()].concat();
        let mut options = self.options.clone();
        if self.is_wide {
            options.precision = Some(Precision::F32);
        }
        let next = self.devices.fall_back(self.context, self.model, &options, &self.engine, error, &tried)?;
        let precision = next.precision(self.model, self.options.precision);
        let in_precision = match self.options.precision {
            Some(asked) if asked.is_half() && !precision.is_half() => format!(" in {precision}"),
            _ => String::new(),
        };
        let place = match next.choice.id {
            DeviceId::Cpu => "the CPU".to_owned(),
            gpu => gpu.to_string(),
        };
        self.note(message!("{}; continuing on {place}{in_precision}", error.finding()));
        next.report(self.context);
        let failed = std::mem::replace(&mut self.engine, next);
        if is_full {
            self.left.get_or_insert(failed).leave();
        }
        Ok(())
    }

    /// Ends the attempts to predict an input of a job. Returns the device of the next input, and the notes. The next input
    /// may fit the memory of a device that was too small for this one, but a device that has failed otherwise is not used
    /// again. If this input exceeds the range of 16-bit floats, the next ones are computed in 32 bits at once.
    pub(super) fn end_input(self) -> (SelectedEngine, Vec<Message>) {
        let Self { engine, left, lost, is_wide, notes, .. } = self;
        (settled(left.unwrap_or(engine), lost, is_wide), notes)
    }

    /// Ends the attempts to predict a volume. Returns the device of the last attempt, and the notes. No device that failed
    /// or ran out of memory is used again.
    pub(super) fn end_volume(self) -> (SelectedEngine, Vec<Message>) {
        let Self { engine, lost, full, is_wide, notes, .. } = self;
        (settled(engine, [lost, full].concat(), is_wide), notes)
    }
}

/// Does the work of a job without its own results, such as an estimate, on a device, and continues like a prediction if
/// that fails: in 32 bits or on the next devices.
///
/// # Errors
/// Same as [`Attempts::after`], if nothing is left to try.
pub(crate) fn on_devices<T>(
    context: &Context,
    devices: &Devices,
    model: &Model,
    options: &PredictOptions,
    engine: &SelectedEngine,
    mut work: impl FnMut(&SelectedEngine) -> Result<T, JobError>,
) -> Result<T, JobError> {
    let mut attempts = Attempts::new(context, devices, model, options, engine, true);
    loop {
        match work(attempts.engine()) {
            Ok(done) => return Ok(done),
            Err(error) => attempts.after(error)?,
        };
    }
}

/// Returns a device that remembers which ones are lost, and whether to compute in 32 bits.
fn settled(mut engine: SelectedEngine, lost: Vec<DeviceId>, is_wide: bool) -> SelectedEngine {
    engine.lost = lost;
    if is_wide {
        engine.stay_in_32_bits();
    }
    engine
}

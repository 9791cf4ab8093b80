//! Handles the events of correction sessions, and shows their labels.

use super::session::{SessionEvent, SessionTask};
use super::source::SnapshotSource;
use super::{Corrections, Phase, note_unsaved};
use crate::document::{DocumentChange, file_name};
use crate::documents::{CorrectedLabels, Documents, DocumentsAction};
use crate::effect::Effects;
use crate::jobs::JobsAction;
use cytoscope_corrections::{Change, ExportedPair, Replay};
use std::path::{Path, PathBuf};

impl Corrections {
    /// Handles the events of all sessions.
    pub(crate) fn poll(&mut self) -> Effects {
        let mut effects = Effects::default();
        let mut events: Vec<(u64, SessionEvent)> = Vec::new();
        for (id, correction) in &self.by_document {
            events.extend(correction.corrector.poll().into_iter().map(|e| (*id, e)));
        }
        for (id, event) in events {
            self.handle_event(id, event, &mut effects);
        }
        self.poll_closing(&mut effects);
        effects
    }

    /// Reports what sessions have finished after their documents were closed, and removes sessions that have ended.
    fn poll_closing(&mut self, effects: &mut Effects) {
        // Read before polling: whatever an ended session has sent is in its channel.
        let has_ended: Vec<bool> = self.closing.iter().map(|c| c.corrector.has_ended()).collect();
        let events = self.closing.iter().flat_map(|c| c.corrector.poll().into_iter().map(move |event| (c, event)));
        for (correction, event) in events {
            match event {
                SessionEvent::Failed(what, why) => effects.error(format!("{what} failed"), why),
                SessionEvent::Saved(path) => {
                    labels_saved(correction.document, path, correction.time, false, effects);
                }
                SessionEvent::MovedAside(path) => notify_moved_aside(&path, effects),
                SessionEvent::Exported(pair) => notify_exported(&pair, effects),
                SessionEvent::State(state) => note_unsaved(&mut self.closed_unsaved, correction, &state),
                SessionEvent::OtherLabels(why) | SessionEvent::OpenFailed(why) if correction.saving => {
                    effects.error(format!("{} failed", SessionTask::Save), why);
                }
                SessionEvent::Opened(_)
                | SessionEvent::OtherLabels(_)
                | SessionEvent::OpenFailed(_)
                | SessionEvent::Edited(_) => {}
            }
        }
        let mut has_ended = has_ended.into_iter();
        self.closing.retain(|_| !has_ended.next().unwrap_or(false));
    }

    fn handle_event(&mut self, id: u64, event: SessionEvent, effects: &mut Effects) {
        let Some(correction) = self.by_document.get_mut(&id) else { return };
        match event {
            SessionEvent::Opened(replay) => {
                correction.phase = Phase::Open;
                notify_replay(&replay, effects);
            }
            SessionEvent::OtherLabels(why) => correction.phase = Phase::OtherLabels(why),
            SessionEvent::OpenFailed(why) => {
                self.by_document.remove(&id);
                effects.error("Corrections cannot be opened", why);
            }
            SessionEvent::State(state) => {
                // The edits of an earlier session are among those of this one.
                self.closed_unsaved.remove(&(id, correction.time));
                if correction.label == 0 {
                    correction.label = state.free;
                    // An object that was selected before is not the one that the tools change.
                    effects.act(DocumentsAction::Change { document: id, change: DocumentChange::Select(None) });
                }
                correction.state = Some(*state);
                correction.fresh = true;
            }
            SessionEvent::Edited(change) => notify_change(&change, effects),
            SessionEvent::Failed(what, why) => {
                correction.saving &= what != SessionTask::Save;
                correction.save_again &= what != SessionTask::Save;
                correction.exporting &= what != SessionTask::Export;
                effects.error(format!("{what} failed"), why);
            }
            SessionEvent::MovedAside(path) => notify_moved_aside(&path, effects),
            SessionEvent::Saved(path) => {
                correction.saving = false;
                if std::mem::take(&mut correction.save_again) {
                    correction.save();
                }
                labels_saved(id, path, correction.time, true, effects);
            }
            SessionEvent::Exported(pair) => {
                correction.exporting = false;
                notify_exported(&pair, effects);
            }
        }
    }

    /// Displays the newest labels, once the previous ones are on screen.
    pub(crate) fn show_labels(&mut self, documents: &Documents) -> Effects {
        let mut effects = Effects::default();
        for (id, correction) in &mut self.by_document {
            let (true, Some(state)) = (correction.fresh, &correction.state) else { continue };
            let on_screen = documents.active_id() == Some(*id);
            if (on_screen && documents.loader().is_busy()) || documents.get(*id).is_none() {
                continue;
            }
            let labels = CorrectedLabels {
                source: SnapshotSource::new(state.labels.clone()),
                path: correction.files.labels.clone(),
                name: file_name(&correction.files.labels),
                time: correction.time,
                label: correction.label,
            };
            effects.act(DocumentsAction::ShowCorrected { document: *id, labels: Box::new(labels) });
            correction.fresh = false;
            if on_screen {
                (self.wake)();
            }
        }
        effects
    }
}

/// Reports the saved labels of a time point, and asks for their measurement. They are on screen if their session is open.
fn labels_saved(document: u64, labels: PathBuf, time: usize, is_open: bool, effects: &mut Effects) {
    effects.success(format!("Saved {}", file_name(&labels)), labels.display().to_string());
    effects.act(DocumentsAction::LabelsSaved { document, path: labels.clone(), time, is_open });
    effects.act(JobsAction::MeasureSaved { document, labels, time });
}

fn notify_moved_aside(path: &Path, effects: &mut Effects) {
    let details = format!("It contained other labels and was renamed to {}.", path.display());
    effects.success("A file was moved aside", details);
}

fn notify_exported(pair: &ExportedPair, effects: &mut Effects) {
    let folder = pair.table.parent().map(|p| p.display().to_string()).unwrap_or_default();
    effects.success(format!("Training pair {} added", pair.name), folder);
}

fn notify_replay(replay: &Replay, effects: &mut Effects) {
    match replay.entries {
        0 => {}
        1 => effects.success("1 earlier correction restored", ""),
        n => effects.success("Earlier corrections restored", format!("{n} steps, including undo and redo")),
    }
    if let Some(dropped) = &replay.dropped {
        let kept =
            dropped.kept_at.as_ref().map(|p| format!(" They were saved to {}.", p.display())).unwrap_or_default();
        effects.info(
            "The end of the journal was damaged",
            format!(
                "{} bytes could not be read ({}).{kept} Everything before them was restored.",
                dropped.bytes, dropped.why
            ),
        );
    }
}

fn notify_change(change: &Change, effects: &mut Effects) {
    if !change.undoable {
        effects.info(format!("{} cannot be undone", change.name), "It exceeds the undo memory limit.");
    }
    match change.new_labels.as_slice() {
        [] => {}
        [one] => effects.success(change.name.clone(), format!("The other part is label {one}.")),
        more => effects.success(change.name.clone(), format!("The other parts are labels {more:?}.")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::correct::Correction;
    use crate::correct::files::CorrectionFiles;
    use crate::correct::session::SessionRequest;
    use crate::correct::session::{Base, Corrector, SessionStart};
    use crate::effect::{Effect, Wake};
    use cytoscope_corrections::{Brush, BrushShape, DrawOver, Edit, LabelVolume, LoadOptions};
    use cytoscope_volume::VoxelSize;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Open corrections of the third time point of document 7, which have no labels yet.
    fn correction(folder: &Path, wake: &Wake) -> Correction {
        let files = CorrectionFiles::of(folder, "stack", Some(2));
        let start = SessionStart {
            bases: vec![Base::Empty],
            shape_zyx: [2, 3, 4],
            voxel_um: VoxelSize::new_um(1.0, 1.0, 1.0),
            time: None,
            files: files.clone(),
        };
        Correction {
            corrector: Corrector::open(start, None, Arc::clone(wake)).unwrap(),
            document: 7,
            phase: Phase::Open,
            state: None,
            fresh: false,
            label: 0,
            files,
            time: 2,
            saving: false,
            save_again: false,
            exporting: false,
        }
    }

    #[test]
    fn edits_that_are_made_while_labels_are_being_saved_are_saved_after_that() {
        let folder = tempfile::tempdir().unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut corrections = Corrections::new(&wake);
        let mut correction = correction(folder.path(), &wake);
        let labels = correction.files.labels.clone();
        let brush = Brush { shape: BrushShape::Ball, radius_um: 0.5, value: 5, over: DrawOver::Any };
        correction.save();
        correction.send(SessionRequest::Apply(Edit::Paint { brush, points: vec![[1.0, 1.0, 1.0]] }));
        correction.save();
        corrections.by_document.insert(7, correction);
        let end = Instant::now() + Duration::from_secs(60);
        let mut saved = 0;
        let is_open = |c: &Correction| c.saving || c.corrector.is_busy();
        while corrections.by_document.values().any(is_open) {
            assert!(Instant::now() < end, "the labels were not saved in time");
            let is_saved =
                |e: &Effect| matches!(e, Effect::Act(Action::Documents(DocumentsAction::LabelsSaved { .. })));
            saved += corrections.poll().into_iter().filter(is_saved).count();
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = corrections.poll();
        assert_eq!(saved, 2);
        assert!(corrections.by_document.values().all(|c| !c.is_modified()));
        assert_eq!(LabelVolume::load(&labels, &LoadOptions::default()).unwrap().voxel_count(5), 1);
    }

    #[test]
    fn unsaved_corrections_are_listed_for_the_document_that_took_the_place_of_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut corrections = Corrections::new(&wake);
        let correction = correction(folder.path(), &wake);
        let brush = Brush { shape: BrushShape::Ball, radius_um: 0.5, value: 5, over: DrawOver::Any };
        correction.edit(Edit::Paint { brush, points: vec![[1.0, 1.0, 1.0]] });
        corrections.by_document.insert(7, correction);
        let end = Instant::now() + Duration::from_secs(60);
        while !corrections.is_unsaved(7) {
            assert!(Instant::now() < end, "the edit was not made in time");
            let _ = corrections.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        corrections.close(7, "Corrections are kept", &mut Effects::default());
        corrections.carry_over(7, 9);
        let listed = |corrections: &Corrections| {
            [7, 9].map(|document| corrections.closed_unsaved_times(document).collect::<Vec<usize>>())
        };
        assert_eq!(listed(&corrections), [vec![], vec![2]]);
        while !corrections.closing.is_empty() {
            assert!(Instant::now() < end, "the session did not end in time");
            let _ = corrections.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(listed(&corrections), [vec![], vec![2]], "its last state is noted there, too");
    }

    #[test]
    fn labels_that_are_saved_while_their_session_closes_are_measured_at_their_time_point() {
        let folder = tempfile::tempdir().unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut corrections = Corrections::new(&wake);
        let mut correction = correction(folder.path(), &wake);
        let labels_file = correction.files.labels.clone();
        // Another time point is corrected at once.
        correction.save();
        corrections.by_document.insert(7, correction);
        corrections.end(7);
        let end = Instant::now() + Duration::from_secs(60);
        let (mut measured, mut shown) = (Vec::new(), Vec::new());
        while !corrections.closing.is_empty() {
            assert!(Instant::now() < end, "the session did not end in time");
            for effect in corrections.poll() {
                match effect {
                    Effect::Act(Action::Jobs(JobsAction::MeasureSaved { document, labels, time })) => {
                        measured.push((document, labels, time));
                    }
                    Effect::Act(Action::Documents(DocumentsAction::LabelsSaved { is_open, .. })) => shown.push(is_open),
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(measured, [(7, labels_file, 2)]);
        assert_eq!(shown, [false], "other labels are on screen");
    }
}

//! Edit actions that apply immediately: undo and redo, merging and splitting the selection, growing, saving; and the
//! settings of the tools.

use super::session::{PairToExport, SessionRequest};
use super::source::axis;
use super::tools::{BRUSH_STEP, EditAction, StrokeMask, Tool, Tools};
use super::{Correction, Corrections, Phase};
use crate::channels::input_channels;
use crate::display::Display;
use crate::document::{Document, DocumentChange};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::jobs::Jobs;
use crate::opener::FileRequest;
use crate::views::pen::{Marks, PointerEvent};
use cytoscope_corrections::{DrawOver, Edit, KnownVoxels, Scope};
use std::path::PathBuf;

/// Minimum number of labels to merge or of seeds to split with.
const MIN_SELECTED: usize = 2;

/// An action on the corrections of labels. Variants without a document id apply to the active document.
pub(crate) enum CorrectionsAction {
    /// Opens the corrections of a document, from the labels it shows.
    Start(u64),
    /// Continues earlier corrections of a document, whichever labels are shown.
    ContinueEarlier(u64),
    /// Sets earlier corrections of a document aside and starts over with the labels shown.
    StartOver(u64),
    /// Closes the corrections of a document; the journal keeps them.
    Close {
        /// Id of the document.
        document: u64,
        /// Title of the notification, if there are unsaved edits.
        notification_title: &'static str,
    },
    /// Assigns the closed corrections of a document to the one that took its place and has the same voxels.
    CarryOver {
        /// Id of the document that was closed.
        from: u64,
        /// Id of the document that took its place.
        to: u64,
    },
    /// Runs an edit action.
    Edit(EditAction),
    /// Selects a tool.
    Tool(Tool),
    /// Sets the label that the tools paint.
    Label(u32),
    /// Applies the selected tool to pointer events.
    PointerEvents(Vec<PointerEvent>),
    /// Multiplies the brush radius by a factor.
    ScaleBrush(f64),
    /// Sets the brush radius in µm.
    Radius(f64),
    /// Sets whether brush and fill work in 3-D.
    Brush3d(bool),
    /// Sets which voxels strokes may change.
    Mask(StrokeMask),
    /// Sets the distance in µm by which labels grow or shrink.
    Margin(f64),
    /// Sets which voxels of an exported training pair are known.
    KnownVoxels(KnownVoxels),
    /// Exports a document as a training pair to the dataset folder that was chosen for it.
    ExportTo {
        /// Id of the document.
        document: u64,
        /// Folder of the dataset.
        folder: PathBuf,
    },
    /// Ends the strokes in progress in all documents, so that they are kept, or reported if they are refused.
    EndStrokes,
    /// Saves the unsaved labels of all documents, also of time points whose corrections were closed.
    SaveAll,
}

/// Why an edit action is disabled now; `None` if it is enabled. `points` is the number of selected points, `has_selection` says
/// whether there are some or a line is being drawn, and `is_shown` whether the tools are on screen.
pub(crate) fn reason_against(
    action: EditAction,
    correction: Option<&Correction>,
    tools: &Tools,
    (points, has_selection): (usize, bool),
    is_shown: bool,
) -> Option<&'static str> {
    let Some((correction, state)) = correction.and_then(|c| Some((c, c.state.as_ref()?))) else {
        return Some("Start correcting labels first.");
    };
    let (is_enabled, reason) = match action {
        EditAction::Undo => return (state.undo_count == 0).then_some("There is no edit to undo."),
        EditAction::Redo => return state.redo.is_empty().then_some("There is no edit to redo."),
        EditAction::Save => return correction.saving.then_some("The labels are being saved."),
        EditAction::Export => return correction.exporting.then_some("The stack is being added to the training data."),
        EditAction::NewLabel => (state.free > 0, "All labels are used."),
        EditAction::Delete
        | EditAction::Interpolate
        | EditAction::Grow
        | EditAction::Shrink
        | EditAction::FillHoles => (correction.label > 0, "Choose a label first."),
        EditAction::Apply => match tools.tool {
            Tool::Merge => (points >= MIN_SELECTED, "Click at least two labels first."),
            Tool::Split => (points >= MIN_SELECTED, "Draw a line across a label, or click at least two seeds first."),
            _ => (false, "Choose the tool for merging or for splitting labels first."),
        },
        EditAction::ClearSelection => (has_selection || can_have_stroke(tools.tool), "Nothing is selected."),
        EditAction::EnlargeBrush | EditAction::ShrinkBrush => {
            (tools.tool.has_brush(), "Choose the tool for painting or for erasing first.")
        }
        EditAction::ToggleBall => (true, ""),
    };
    match is_shown {
        false => Some("Show the Correct panel first."),
        true => (!is_enabled).then_some(reason),
    }
}

/// Whether a tool draws strokes that [`EditAction::ClearSelection`] also cancels.
fn can_have_stroke(tool: Tool) -> bool {
    !matches!(tool, Tool::Navigate | Tool::Merge | Tool::Split)
}

impl Corrections {
    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(
        &mut self,
        action: CorrectionsAction,
        documents: &Documents,
        jobs: &Jobs,
        display: &Display,
    ) -> Effects {
        let mut effects = Effects::default();
        match action {
            CorrectionsAction::Start(id) => self.request_start(id, None, documents, jobs, &mut effects),
            CorrectionsAction::ContinueEarlier(id) => self.continue_earlier(id, documents, jobs, &mut effects),
            CorrectionsAction::StartOver(id) => self.start_over(id, &mut effects),
            CorrectionsAction::Close { document, notification_title } => {
                self.close(document, notification_title, &mut effects);
            }
            CorrectionsAction::CarryOver { from, to } => self.carry_over(from, to),
            CorrectionsAction::Edit(action) => self.run_action(action, documents, jobs, display, &mut effects),
            CorrectionsAction::Tool(tool) => self.select_tool(tool, documents),
            CorrectionsAction::Label(label) => {
                let Some(document) = documents.active() else { return effects };
                let correction = self.by_document.get_mut(&document.id);
                // Labels of other time points are numbered independently.
                if let Some(correction) = correction.filter(|c| label > 0 && c.time == document.time) {
                    correction.label = label;
                }
            }
            CorrectionsAction::PointerEvents(events) => {
                for event in events {
                    self.apply_pointer_event(event, documents, &mut effects);
                }
            }
            CorrectionsAction::ScaleBrush(factor) => self.tools.scale(factor),
            CorrectionsAction::Radius(um) => self.tools.radius_um = um,
            CorrectionsAction::Brush3d(ball) => self.tools.ball = ball,
            CorrectionsAction::Mask(mask) => self.tools.mask = mask,
            CorrectionsAction::Margin(um) => self.tools.margin_um = um,
            CorrectionsAction::KnownVoxels(which) => self.tools.known_voxels = which,
            CorrectionsAction::ExportTo { document, folder } => {
                // Both may have been closed while the folder was chosen.
                match documents.get(document).filter(|document| self.open(document.id).is_some()) {
                    Some(document) => self.export_pair(document, folder, jobs, display),
                    None => effects.error(
                        "The training pair was not added",
                        "Its corrections were closed: open them again in Correct, then add the pair again.",
                    ),
                }
            }
            CorrectionsAction::EndStrokes => {
                let open = self.by_document.values().filter(|c| c.phase == Phase::Open);
                open.for_each(|c| c.send(SessionRequest::EndStroke));
            }
            CorrectionsAction::SaveAll => {
                self.by_document.values_mut().filter(|c| c.is_modified()).for_each(Correction::save);
                self.save_closed(documents, &mut effects);
            }
        }
        effects
    }

    fn select_tool(&mut self, tool: Tool, documents: &Documents) {
        self.tools.select(tool);
        let Some(id) = documents.active_id() else { return };
        self.marks.remove(&id);
        // Ends a stroke in progress.
        if let Some(correction) = self.open(id) {
            correction.send(SessionRequest::EndStroke);
        }
    }

    fn run_action(
        &mut self,
        action: EditAction,
        documents: &Documents,
        jobs: &Jobs,
        display: &Display,
        effects: &mut Effects,
    ) {
        let Some(document) = documents.active() else { return };
        let id = document.id;
        let Some(correction) = self.by_document.get_mut(&id).filter(|c| c.phase == Phase::Open) else { return };
        if action.changes_labels() && document.time != correction.time {
            // The labels that would change are not on screen.
            return notify_other_time(correction.time, effects);
        }
        let (tools, label, scope) = (&mut self.tools, correction.label, Scope::Volume);
        match action {
            EditAction::Undo => correction.send(SessionRequest::Undo),
            EditAction::Redo => correction.send(SessionRequest::Redo),
            EditAction::Save => correction.save(),
            EditAction::Export => match display.settings().dataset_folder.clone() {
                Some(folder) => self.export_pair(document, folder, jobs, display),
                None => {
                    let folder = document.path.parent().map(Into::into);
                    let request = FileRequest::DatasetFolder(Some(id));
                    effects.act(DocumentsAction::Ask { request, folder, name: String::new() });
                }
            },
            EditAction::NewLabel => {
                correction.label = correction.state.as_ref().map_or(0, |s| s.free);
                effects.act(select_label_action(id, correction.label));
                if !matches!(tools.tool, Tool::Paint | Tool::Fill) {
                    tools.select(Tool::Paint);
                }
            }
            EditAction::Delete => correction.edit(Edit::Delete { label, scope }),
            EditAction::Apply => {
                let marks = self.marks.remove(&id).unwrap_or_default();
                apply_selection(correction, &marks, tools.tool, id, effects);
            }
            EditAction::ClearSelection => {
                let marks = self.marks.remove(&id).unwrap_or_default();
                if marks.points.is_empty() && marks.line.is_empty() {
                    correction.send(SessionRequest::CancelStroke);
                }
            }
            EditAction::Interpolate => {
                let axis = axis(tools.view);
                correction.edit(Edit::Interpolate { label, axis, at: None, over: DrawOver::Background });
            }
            EditAction::Grow => {
                let by_um = tools.margin_um;
                correction.edit(Edit::Grow { label, by_um, scope, over: DrawOver::Background });
            }
            EditAction::Shrink => correction.edit(Edit::Shrink { label, by_um: tools.margin_um, scope }),
            EditAction::FillHoles => correction.edit(Edit::FillHoles { label, scope, over: DrawOver::Background }),
            EditAction::EnlargeBrush => tools.scale(BRUSH_STEP),
            EditAction::ShrinkBrush => tools.scale(1.0 / BRUSH_STEP),
            EditAction::ToggleBall => tools.ball = !tools.ball,
        }
    }

    /// Adds a document and its labels to a dataset as a training pair.
    fn export_pair(&mut self, document: &Document, dataset: PathBuf, jobs: &Jobs, display: &Display) {
        let known_voxels = self.tools.known_voxels;
        let Some(correction) = self.by_document.get_mut(&document.id).filter(|c| c.phase == Phase::Open) else {
            return;
        };
        correction.exporting = true;
        // The channel of the model's first input, which is also predicted from.
        let settings = display.settings();
        let chosen = jobs.model(settings).map(|card| input_channels(card, document, settings));
        let channel = chosen.and_then(|channels| channels.first().copied()).unwrap_or(0);
        correction.send(SessionRequest::Export(PairToExport {
            raw: document.path.clone(),
            series: document.series,
            axes: document.axes.clone(),
            voxel_um: document.given_voxel_um(),
            channel: (document.extents.channels > 1).then_some(channel),
            time: (document.extents.times > 1).then_some(correction.time),
            dataset,
            known_voxels,
            base: Some(correction.files.base.clone()),
            name: document.stem(),
        }));
    }
}

/// Merges the selected labels, or splits a label by the selected seeds.
fn apply_selection(correction: &mut Correction, marks: &Marks, tool: Tool, document: u64, effects: &mut Effects) {
    let places = marks.points.iter().map(|p| p.map(|v| v.round().max(0.0) as usize));
    // Undo may have removed the selected labels.
    let on_labels: Vec<([usize; 3], u32)> =
        places.filter_map(|at| Some((at, correction.state.as_ref()?.labels.get(at).filter(|l| *l > 0)?))).collect();
    let (Some((_, first)), true) = (on_labels.first(), on_labels.len() >= MIN_SELECTED) else {
        return effects.info("The selected labels no longer exist", "Click the labels again.");
    };
    let scope = Scope::Volume;
    if tool == Tool::Merge {
        let rest = on_labels.iter().skip(1).map(|(_, label)| *label).collect();
        correction.edit(Edit::Merge { labels: rest, into: *first, scope });
        correction.label = *first;
        effects.act(select_label_action(document, *first));
    } else {
        let seeds = on_labels.iter().map(|(at, _)| *at).collect();
        correction.edit(Edit::SplitBySeeds { label: *first, seeds, scope });
    }
}

/// Notifies the user that the corrections belong to time point `time` (from 0), which is not the one shown.
pub(super) fn notify_other_time(time: usize, effects: &mut Effects) {
    let details = format!("These corrections belong to time point {}: go back to it.", time + 1);
    effects.info("Another time point is shown", details);
}

/// Returns the action that selects a label.
pub(super) fn select_label_action(document: u64, label: u32) -> DocumentsAction {
    DocumentsAction::Change { document, change: DocumentChange::Select(Some(label)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_select_clear_nothing_else() {
        let found: Vec<Tool> = Tool::ALL.into_iter().filter(|tool| can_have_stroke(*tool)).collect();
        assert_eq!(found, [Tool::Paint, Tool::Erase, Tool::Fill, Tool::Pick]);
    }
}

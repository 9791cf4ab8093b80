//! Edit actions that apply immediately: undo and redo, merging and splitting the selection, growing, saving.

use super::Phase;
use super::session::{Pair, Request};
use super::source::axis;
use super::tools::{BRUSH_STEP, EditAction, Tool};
use crate::app::Workbench;
use crate::command::Command;
use crate::opener::FileRequest;
use crate::panels::PanelTask;
use cytoscope_annotate::{Edit, Over, Scope};
use std::path::PathBuf;

/// Minimum number of labels to merge or of seeds to split with.
const MIN_SELECTED: usize = 2;

impl Workbench {
    /// Whether an edit action is enabled now.
    pub(crate) fn can_run_action(&self, action: EditAction) -> bool {
        let Some(correction) = self.correction() else { return false };
        let Some(state) = &correction.state else { return false };
        let tools = &self.corrections.tools;
        let points = self.document().map_or(0, |d| d.marks.points.len());
        let here = self.panels.task == PanelTask::Correct;
        match action {
            EditAction::Undo => state.undo_count > 0,
            EditAction::Redo => !state.redo.is_empty(),
            EditAction::Save => !correction.saving,
            EditAction::Export => !correction.exporting,
            EditAction::NewLabel => here && state.free > 0,
            EditAction::Delete
            | EditAction::Interpolate
            | EditAction::Grow
            | EditAction::Shrink
            | EditAction::FillHoles => here && correction.label > 0,
            EditAction::Apply => here && matches!(tools.tool, Tool::Merge | Tool::Split) && points >= MIN_SELECTED,
            EditAction::ClearSelection => here && (points > 0 || tools.tool != Tool::Navigate),
            EditAction::EnlargeBrush | EditAction::ShrinkBrush => here && tools.tool.has_brush(),
            EditAction::ToggleBall => here,
        }
    }

    /// Title of a command now; undo and redo name the step they affect.
    pub(crate) fn current_title(&self, command: Command) -> String {
        let state = self.correction().and_then(|c| c.state.as_ref());
        let step = match command {
            Command::Correct(EditAction::Undo) => state.and_then(|s| s.undo.first()),
            Command::Correct(EditAction::Redo) => state.and_then(|s| s.redo.first()),
            _ => None,
        };
        step.map_or_else(|| command.title().to_owned(), |step| format!("{}: {step}", command.title()))
    }

    /// Selects a tool.
    pub(crate) fn select_tool(&mut self, tool: Tool) {
        self.corrections.tools.select(tool);
        if let Some(document) = self.document_mut() {
            document.marks = Default::default();
        }
        // Ends a stroke in progress.
        if let Some(correction) = self.correction() {
            correction.ask(Request::End);
        }
    }

    /// Runs an edit action.
    pub(crate) fn run_action(&mut self, action: EditAction) {
        let Some(id) = self.active else { return };
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        let Some(correction) = self.corrections.of.get_mut(&id).filter(|c| c.phase == Phase::Open) else { return };
        let tools = &mut self.corrections.tools;
        let label = correction.label;
        let scope = Scope::Volume;
        let edit = |edit| Request::Apply(edit);
        match action {
            EditAction::Undo => correction.ask(Request::Undo),
            EditAction::Redo => correction.ask(Request::Redo),
            EditAction::Save => {
                correction.saving = true;
                correction.ask(Request::Save(correction.places.labels.clone()));
            }
            EditAction::Export => match self.settings.dataset_folder.clone() {
                Some(folder) => self.export_pair(folder),
                None => {
                    self.corrections.export_when_chosen = true;
                    self.opener.ask(FileRequest::DatasetFolder, document.path.parent().map(Into::into), String::new());
                }
            },
            EditAction::NewLabel => {
                correction.label = correction.state.as_ref().map_or(0, |s| s.free);
                document.select(Some(correction.label));
                if !matches!(tools.tool, Tool::Paint | Tool::Fill) {
                    tools.select(Tool::Paint);
                }
            }
            EditAction::Delete => correction.ask(edit(Edit::Delete { label, scope })),
            EditAction::Apply => {
                let places = document.marks.points.iter().map(|p| p.map(|v| v.round().max(0.0) as usize));
                // Undo may have removed the selected labels.
                let on_labels: Vec<([usize; 3], u32)> = places
                    .filter_map(|at| Some((at, correction.state.as_ref()?.labels.get(at).filter(|l| *l > 0)?)))
                    .collect();
                let (Some((_, first)), true) = (on_labels.first(), on_labels.len() >= MIN_SELECTED) else {
                    document.marks = Default::default();
                    self.notifications.info("The selected labels no longer exist", "Click the labels again.");
                    return;
                };
                if tools.tool == Tool::Merge {
                    let rest = on_labels.iter().skip(1).map(|(_, label)| *label).collect();
                    correction.ask(edit(Edit::Merge { labels: rest, into: *first, scope }));
                    correction.label = *first;
                    document.select(Some(*first));
                } else {
                    let seeds = on_labels.iter().map(|(at, _)| *at).collect();
                    correction.ask(edit(Edit::SplitBySeeds { label: *first, seeds, scope }));
                }
                document.marks = Default::default();
            }
            EditAction::ClearSelection => {
                if document.marks.points.is_empty() && document.marks.line.is_empty() {
                    correction.ask(Request::Cancel);
                }
                document.marks = Default::default();
            }
            EditAction::Interpolate => {
                let axis = axis(tools.view);
                correction.ask(edit(Edit::Interpolate { label, axis, at: None, over: Over::Background }));
            }
            EditAction::Grow => {
                let by_um = tools.margin_um;
                correction.ask(edit(Edit::Grow { label, by_um, scope, over: Over::Background }));
            }
            EditAction::Shrink => correction.ask(edit(Edit::Shrink { label, by_um: tools.margin_um, scope })),
            EditAction::FillHoles => correction.ask(edit(Edit::FillHoles { label, scope, over: Over::Background })),
            EditAction::EnlargeBrush => tools.scale(BRUSH_STEP),
            EditAction::ShrinkBrush => tools.scale(1.0 / BRUSH_STEP),
            EditAction::ToggleBall => tools.ball = !tools.ball,
        }
    }

    /// Adds the active document and its labels to a dataset as a training pair.
    pub(crate) fn export_pair(&mut self, dataset: PathBuf) {
        let channel = self.panels.predict.channel;
        let Some(document) = self.document() else { return };
        let id = document.id;
        let several = document.extents.channels > 1;
        let pair = Pair {
            raw: document.path.clone(),
            channel: several.then(|| channel.min(document.extents.channels - 1)),
            time: (document.extents.times > 1).then_some(document.time),
            dataset,
            extent: self.corrections.tools.extent,
            base: None,
            name: document.path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        let Some(correction) = self.corrections.of.get_mut(&id).filter(|c| c.phase == Phase::Open) else {
            return;
        };
        correction.exporting = true;
        let base = Some(correction.places.base.clone()).filter(|base| base.is_file());
        correction.ask(Request::Export(Pair { time: pair.time.map(|_| correction.time), base, ..pair }));
    }
}

//! What is done to labels at once: undo and redo, merging and splitting what was collected, growing, saving.

use super::Phase;
use super::session::{Pair, Request};
use super::source::axis;
use super::tools::{BRUSH_STEP, Deed, Tool};
use crate::app::Workbench;
use crate::command::Command;
use crate::opener::Ask;
use crate::panels::Task;
use cytoscope_annotate::{Edit, Over, Scope};
use std::path::PathBuf;

/// Labels that are merged, or parts that a label is split into, at least.
const LEAST_COLLECTED: usize = 2;

impl Workbench {
    /// Whether a deed can be done now.
    pub(crate) fn can_deed(&self, deed: Deed) -> bool {
        let Some(correction) = self.correction() else { return false };
        let Some(state) = &correction.state else { return false };
        let tools = &self.corrections.tools;
        let points = self.document().map_or(0, |d| d.marks.points.len());
        let here = self.panels.task == Task::Correct;
        match deed {
            Deed::Undo => state.undo_count > 0,
            Deed::Redo => !state.redo.is_empty(),
            Deed::Save => !correction.saving,
            Deed::Export => !correction.exporting,
            Deed::NewLabel => here && state.free > 0,
            Deed::Delete | Deed::Interpolate | Deed::Grow | Deed::Shrink | Deed::FillHoles => {
                here && correction.label > 0
            }
            Deed::Apply => here && matches!(tools.tool, Tool::Merge | Tool::Split) && points >= LEAST_COLLECTED,
            Deed::Drop => here && (points > 0 || tools.tool != Tool::Look),
            Deed::Larger | Deed::Smaller => here && tools.tool.has_brush(),
            Deed::Ball => here,
        }
    }

    /// What a command is called now.
    pub(crate) fn title_now(&self, command: Command) -> String {
        let state = self.correction().and_then(|c| c.state.as_ref());
        let step = match command {
            Command::Correct(Deed::Undo) => state.and_then(|s| s.undo.first()),
            Command::Correct(Deed::Redo) => state.and_then(|s| s.redo.first()),
            _ => None,
        };
        step.map_or_else(|| command.title().to_owned(), |step| format!("{}: {step}", command.title()))
    }

    /// Takes a tool in hand.
    pub(crate) fn take_tool(&mut self, tool: Tool) {
        self.corrections.tools.take(tool);
        if let Some(document) = self.document_mut() {
            document.marks = Default::default();
        }
        // A stroke under way ends here.
        if let Some(correction) = self.correction() {
            correction.ask(Request::End);
        }
    }

    /// Does a deed.
    pub(crate) fn do_deed(&mut self, deed: Deed) {
        let Some(id) = self.active else { return };
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        let Some(correction) = self.corrections.of.get_mut(&id).filter(|c| c.phase == Phase::Open) else { return };
        let tools = &mut self.corrections.tools;
        let label = correction.label;
        let scope = Scope::Volume;
        let edit = |edit| Request::Apply(edit);
        match deed {
            Deed::Undo => correction.ask(Request::Undo),
            Deed::Redo => correction.ask(Request::Redo),
            Deed::Save => {
                correction.saving = true;
                correction.ask(Request::Save(correction.places.labels.clone()));
            }
            Deed::Export => match self.settings.dataset_folder.clone() {
                Some(folder) => self.export_pair(folder),
                None => {
                    self.corrections.export_when_chosen = true;
                    self.opener.ask(Ask::DatasetFolder, document.path.parent().map(Into::into), String::new());
                }
            },
            Deed::NewLabel => {
                correction.label = correction.state.as_ref().map_or(0, |s| s.free);
                document.select(Some(correction.label));
                if !matches!(tools.tool, Tool::Paint | Tool::Fill) {
                    tools.take(Tool::Paint);
                }
            }
            Deed::Delete => correction.ask(edit(Edit::Delete { label, scope })),
            Deed::Apply => {
                let places = document.marks.points.iter().map(|p| p.map(|v| v.round().max(0.0) as usize));
                // Undoing may have taken away what was collected.
                let on_labels: Vec<([usize; 3], u32)> = places
                    .filter_map(|at| Some((at, correction.state.as_ref()?.labels.get(at).filter(|l| *l > 0)?)))
                    .collect();
                let (Some((_, first)), true) = (on_labels.first(), on_labels.len() >= LEAST_COLLECTED) else {
                    document.marks = Default::default();
                    self.notices.info("What was chosen is no longer there", "Click the labels again.");
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
            Deed::Drop => {
                if document.marks.points.is_empty() && document.marks.line.is_empty() {
                    correction.ask(Request::Cancel);
                }
                document.marks = Default::default();
            }
            Deed::Interpolate => {
                let axis = axis(tools.view);
                correction.ask(edit(Edit::Interpolate { label, axis, at: None, over: Over::Background }));
            }
            Deed::Grow => {
                let by_um = tools.margin_um;
                correction.ask(edit(Edit::Grow { label, by_um, scope, over: Over::Background }));
            }
            Deed::Shrink => correction.ask(edit(Edit::Shrink { label, by_um: tools.margin_um, scope })),
            Deed::FillHoles => correction.ask(edit(Edit::FillHoles { label, scope, over: Over::Background })),
            Deed::Larger => tools.scale(BRUSH_STEP),
            Deed::Smaller => tools.scale(1.0 / BRUSH_STEP),
            Deed::Ball => tools.ball = !tools.ball,
        }
    }

    /// Adds the stack on screen and its labels to a dataset.
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

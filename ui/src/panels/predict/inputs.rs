//! The inputs of a prediction: channels of the stack, and other files of models with several input tensors.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::document::{Document, file_name};
use crate::jobs::{InputFile, InputOfDocument, JobsAction};
use crate::panels::channels::{channel_lists, channels_title};
use crate::panels::{heading, named_button, weak};
use crate::state::State;
use crate::theme;
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;
use std::path::Path;

/// Choice of the channel for each input of the model that is read from the stack, if the stack has several.
pub(super) fn channel_choice(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    let Some(card) = state.model().filter(|_| document.channels.len() > 1) else { return };
    let inputs = state.jobs.inputs_from_stack(document.id, card);
    if inputs.is_empty() {
        return;
    }
    heading(ui, channels_title(card));
    let names: Vec<&str> = document.channels.iter().map(|c| c.name.as_str()).collect();
    if let Some(channels) = channel_lists(ui, card, &inputs, &names, "the stack", state.settings()) {
        actions.send(DisplayAction::InputChannels { model: card.name.clone(), channels });
    }
}

/// Choice of a file for each input tensor of a model with several.
pub(super) fn input_files(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    let Some(card) = state.model().filter(|card| card.inputs.len() > 1) else { return };
    heading(ui, "Inputs in files");
    for input in &card.inputs {
        let of = InputOfDocument::new(document.id, card, &input.id);
        let file = state.jobs.input_file(&of);
        ui.horizontal_wrapped(|ui| {
            let ask = named_button(ui, true, icon::FILE, &format!("File of {}…", input.id));
            let hint =
                "Read this input of the model from another file, which must have the shape and voxel size of the stack";
            if ask.on_hover_text(hint).clicked() {
                let folder = document.path.parent().map(Path::to_owned);
                actions.send(JobsAction::AskInputFile(of.clone(), folder));
            }
            match file {
                None => _ = weak(ui, "from the stack"),
                Some(file) => chosen_file(ui, &of, file, actions),
            }
        });
    }
}

/// Draws the name of the file of an input, its channels, and the button that reads the input from the stack again.
fn chosen_file(ui: &mut Ui, of: &InputOfDocument, file: &InputFile, actions: &mut Actions) {
    weak(ui, file_name(&file.path)).on_hover_text(file.path.display().to_string());
    let mut channels = file.channels.clone();
    let edit = egui::TextEdit::singleline(&mut channels).hint_text("channels").desired_width(80.0);
    let edit = theme::text_field(ui, true, edit);
    edit.widget_info(|| {
        let name = format!("Channels of {}", of.input);
        let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, name);
        info.current_text_value = Some(channels.clone());
        info
    });
    edit.on_hover_text(
        "Channels of the file, by name or number (from 0), separated by commas; if empty, those named like the input, or all",
    );
    if named_button(ui, true, icon::X, &format!("Read {} from the stack", of.input)).clicked() {
        actions.send(JobsAction::SetInputFile(of.clone(), None));
    } else if channels != file.channels {
        let changed = InputFile { channels, ..file.clone() };
        actions.send(JobsAction::SetInputFile(of.clone(), Some(changed)));
    }
}

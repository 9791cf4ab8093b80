//! The page for converting files and for scoring predictions.

mod parts;
mod scores;

use super::channels::{channel_lists, channels_title};
use super::predict::{device_choice, facts, model_list, precision_choice};
use super::series::series_field;
use super::{
    frame, heading, job_progress, labeled_choice, named_button, named_primary_button, number_field, page_top, weak,
};
use crate::action::Actions;
use crate::batch::{Batch, BatchAction, BatchSection, ConvertFormat, ScoreSubject, ScoredModel, start_folder};
use crate::diameter::{DiameterChoice, given_diameter};
use crate::display::DisplayAction;
use crate::document::file_name;
use crate::documents::{DocumentsAction, distinct_name, namesakes};
use crate::number_text::counted;
use crate::opener::FileRequest;
use crate::state::State;
use crate::theme;
use cytoscope_formats::Compression;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::{DiameterRequest, DiameterUnit, PairRole};
use cytoscope_volume::VoxelSize;
use eframe::egui::{self, Ui};
use egui_phosphor::regular as icon;
use parts::parts;
use scores::scores;
use std::path::Path;

/// Maximum height of the list of files to convert; longer lists are scrolled.
const FILE_LIST_HEIGHT: f32 = 320.0;
/// What is wrong with a file that would be converted to itself.
const SAME_NAME: &str =
    "Already has the name that the converted file would get: choose an output folder or another format";
/// Width of the list of models.
const MODEL_LIST_WIDTH: f32 = 320.0;
/// The label that is suggested for voxels that are not annotated.
const FIRST_UNKNOWN_LABEL: i64 = 255;
/// The lowest label of images of integers of 32 bits.
const MIN_LABEL: f64 = i32::MIN as f64;
/// The highest label of images of integers of 32 bits.
const MAX_LABEL: f64 = u32::MAX as f64;

/// Draws the page.
pub(super) fn batch_page(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    page_top(ui, "Convert and evaluate", actions);
    let page_frame = frame(ui);
    egui::CentralPanel::default().frame(page_frame).show(ui, |ui| {
        egui::ScrollArea::vertical().id_salt("batch page").auto_shrink([false; 2]).show(ui, |ui| {
            let opened = newly_opened(ui, state.batch);
            let scroll_to = |ui: &Ui, section: BatchSection| {
                if opened == Some(section) {
                    ui.scroll_to_cursor(Some(egui::Align::TOP));
                }
            };
            scroll_to(ui, BatchSection::Convert);
            convert(ui, state, actions);
            ui.add_space(theme::GROUP_GAP);
            ui.separator();
            scroll_to(ui, BatchSection::Evaluate);
            evaluate(ui, state, actions);
        });
    });
}

/// The section that was opened since the page was drawn last.
fn newly_opened(ui: &Ui, batch: &Batch) -> Option<BatchSection> {
    let id = egui::Id::new("opened section");
    let (section, number) = batch.opened;
    let before = ui.data(|data| data.get_temp::<u64>(id)).unwrap_or(0);
    ui.data_mut(|data| data.insert_temp(id, number));
    (before != number).then_some(section)
}

fn ask(request: FileRequest, folder: Option<&Path>, actions: &mut Actions) {
    actions.send(DocumentsAction::Ask { request, folder: folder.map(Path::to_owned), name: String::new() });
}

fn convert(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let batch = state.batch;
    heading(ui, "Convert files");
    ui.horizontal_wrapped(|ui| {
        if named_button(ui, true, icon::PLUS, "Add files…").clicked() {
            ask(FileRequest::ConvertFiles, None, actions);
        }
        let has_stacks = !state.documents.all().is_empty();
        let add = named_button(ui, has_stacks, icon::STACK, "Add open stacks");
        if add.on_disabled_hover_text("No stack is open.").clicked() {
            actions.send(BatchAction::AddOpen);
        }
    });
    if batch.files.len() > 1 {
        ui.horizontal(|ui| {
            weak(ui, counted(batch.files.len() as u64, "file"));
            if named_button(ui, true, icon::X, "Clear list").on_hover_text("The files are kept").clicked() {
                actions.send(BatchAction::ForgetAll);
            }
        });
    }
    if batch.files.is_empty() {
        weak(ui, "No files yet. Add them, or drop files or folders here.");
    } else {
        file_list(ui, batch, actions);
    }
    convert_settings(ui, batch, actions);
    convert_start(ui, state, actions);
}

/// Draws the format of converted files and where they are written.
fn convert_settings(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        ui.label("Format");
        for format in ConvertFormat::ALL {
            if ui.selectable_label(batch.format == format, format.name()).clicked() {
                actions.send(BatchAction::Format(format));
            }
        }
    });
    if batch.format == ConvertFormat::OmeTiff {
        ui.horizontal_wrapped(|ui| {
            ui.label("Compression");
            let all =
                [(Compression::None, "None"), (Compression::Deflate, "Deflate"), (Compression::Zstd, "Zstandard")];
            for (compression, name) in all {
                if ui.selectable_label(batch.compression == compression, name).clicked() {
                    actions.send(BatchAction::Compression(compression));
                }
            }
        });
    }
    ui.horizontal_wrapped(|ui| {
        if named_button(ui, true, icon::FOLDER, "Output folder…").clicked() {
            ask(FileRequest::ConvertFolder, batch.folder.as_deref(), actions);
        }
        let folder = batch.folder.as_ref().map_or("Beside each file".to_owned(), |f| f.display().to_string());
        weak(ui, folder);
        if batch.folder.is_some() && named_button(ui, true, icon::X, "Beside each file").clicked() {
            actions.send(BatchAction::Folder(None));
        }
    });
    parts(ui, batch, actions);
    let mut replace = batch.replace;
    let hint = "If off, a file whose converted file already exists is not converted";
    if theme::checkbox(ui, &mut replace, "Replace existing files").on_hover_text(hint).changed() {
        actions.send(BatchAction::Replace(replace));
    }
}

/// Draws the button that starts the conversion, and its progress.
fn convert_start(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let batch = state.batch;
    let running = batch.converting(state.jobs);
    ui.horizontal(|ui| {
        let reason = reason_against_converting(state);
        let convert = named_primary_button(ui, reason.is_none(), icon::SWAP, "Convert");
        if convert.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
            actions.send(BatchAction::Convert);
        }
        if running > 0 {
            ui.spinner();
            ui.label(format!("{running} left to convert"));
            let cancel = named_button(ui, true, icon::STOP_CIRCLE, "Cancel conversions");
            if cancel.on_hover_text("Files that are already converted are kept").clicked() {
                actions.send(BatchAction::CancelConversions);
            }
        }
    });
    if running > 0 {
        let started = batch.started().max(1);
        let done = started.saturating_sub(running);
        ui.add(egui::ProgressBar::new(done as f32 / started as f32).desired_height(8.0).desired_width(320.0));
    }
}

/// Why no files can be converted now; `None` if they can.
fn reason_against_converting(state: State<'_>) -> Option<&'static str> {
    let reason = state.reason_against_jobs();
    if reason.is_some() {
        reason
    } else if state.batch.files.is_empty() {
        Some("Add files first.")
    } else if state.batch.converting(state.jobs) > 0 {
        Some("Wait until the files are converted, or cancel the conversions.")
    } else {
        // The files of the labels lack them.
        let mut unsaved = state.documents.all().iter().filter(|d| state.corrections.is_unsaved(d.id));
        let is_unsaved = state.batch.stores_labels() && unsaved.any(|d| state.batch.files.contains(&d.path));
        is_unsaved.then_some("Save the corrected labels first, or turn off \"With labels of open stacks\".")
    }
}

/// Lists the files to convert; only the visible rows are drawn.
fn file_list(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    let spacing = ui.spacing();
    let (least, padding) = (spacing.interact_size.y, spacing.button_padding.y);
    let row_height = least.max(ui.text_style_height(&egui::TextStyle::Button) + 2.0 * padding);
    let area = egui::ScrollArea::vertical().id_salt("files to convert").auto_shrink([false, true]);
    area.max_height(FILE_LIST_HEIGHT).show_rows(ui, row_height, batch.files.len(), |ui, rows| {
        for file in batch.files.get(rows).into_iter().flatten() {
            ui.horizontal(|ui| {
                ui.set_height(row_height);
                let close = ui.add(egui::Button::new(icon::X).frame(false));
                let name = format!("Remove {} from the list", file_name(file));
                close.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, &name));
                if close.on_hover_text("Remove from the list; the file is kept").clicked() {
                    actions.send(BatchAction::Forget(file.clone()));
                }
                let output = batch.converted_path(file);
                // The built-in fonts have no arrow.
                let shown = distinct_name(&file_name(file), file, &namesakes(file, &batch.files));
                let text = match output == *file {
                    true => format!("{shown}  {}  {SAME_NAME}", icon::WARNING),
                    false => format!("{shown}  {}  {}", icon::ARROW_RIGHT, file_name(&output)),
                };
                ui.add(egui::Label::new(text).truncate()).on_hover_text(file.display().to_string());
            });
        }
    });
}

fn evaluate(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let batch = state.batch;
    let title = match batch.subject {
        ScoreSubject::Predictions => "Evaluate predictions",
        ScoreSubject::Model => "Evaluate a model",
    };
    heading(ui, title);
    weak(ui, "Label images are matched object by object, other images are compared by intensity.");
    ui.horizontal_wrapped(|ui| {
        ui.label("Score");
        let subjects = [(ScoreSubject::Predictions, "Predictions"), (ScoreSubject::Model, "A model")];
        for (subject, name) in subjects {
            let is_chosen = batch.subject == subject;
            if ui.selectable_label(is_chosen, name).clicked() && !is_chosen {
                actions.send(BatchAction::Score(subject));
            }
        }
    });
    match batch.subject {
        ScoreSubject::Predictions => predictions_to_score(ui, batch, actions),
        ScoreSubject::Model => model_to_score(ui, state, actions),
    }
    ui.horizontal_wrapped(|ui| {
        ui.label("Ignore true objects below");
        let mut voxels = batch.ignore_below as f64;
        if number_field(ui, &mut voxels, 0.0..=1e9, 1.0, "Ignore true objects below voxels") {
            actions.send(BatchAction::IgnoreBelow(voxels as u64));
        }
        ui.label("voxels");
    });
    unknown_label(ui, batch, actions);
    evaluation_start(ui, state, actions);
    // New scores may lie below the visible part of the page.
    let id = egui::Id::new("scores are shown");
    let were_shown = ui.data(|data| data.get_temp::<bool>(id)).unwrap_or(false);
    ui.data_mut(|data| data.insert_temp(id, batch.report.is_some()));
    if let Some(report) = &batch.report {
        if !were_shown {
            ui.scroll_to_cursor(Some(egui::Align::TOP));
        }
        scores(ui, report, batch.scored_model.as_deref(), actions);
    }
}

/// Draws the choice of the label of voxels that are not annotated.
fn unknown_label(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        let mut is_used = batch.ignore_label.is_some();
        let hint = "Voxels with this label are not annotated and do not count";
        if theme::checkbox(ui, &mut is_used, "Ignore label").on_hover_text(hint).changed() {
            actions.send(BatchAction::IgnoreLabel(is_used.then_some(FIRST_UNKNOWN_LABEL)));
        }
        let Some(label) = batch.ignore_label else { return };
        let mut label = label as f64;
        if number_field(ui, &mut label, MIN_LABEL..=MAX_LABEL, 1.0, "Ignore label number") {
            actions.send(BatchAction::IgnoreLabel(Some(label.round() as i64)));
        }
    });
}

/// Draws the choice of the predictions and their ground truth.
fn predictions_to_score(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    weak(ui, "Files of folders are paired by name.");
    let (prediction, truth) = (PairRole::Prediction, PairRole::Truth);
    let places = [
        ("Prediction folder…", FileRequest::Predictions, "Prediction file…", FileRequest::PredictionFile, prediction),
        ("Ground truth folder…", FileRequest::Truths, "Ground truth file…", FileRequest::TruthFile, truth),
    ];
    for (folders, folder_request, file, file_request, role) in places {
        ui.horizontal_wrapped(|ui| {
            let path = &batch.scored(role).path;
            let start = path.as_deref().and_then(start_folder);
            if named_button(ui, true, icon::FOLDER, folders).clicked() {
                ask(folder_request, start, actions);
            }
            if named_button(ui, true, icon::FILE, file).clicked() {
                ask(file_request, start, actions);
            }
            weak(ui, path.as_ref().map(|p| p.display().to_string()).unwrap_or_default());
        });
        scored_channel(ui, batch, role, actions);
    }
    ui.horizontal(|ui| {
        ui.label("Series");
        if let Some(series) = series_field(ui, "Series to score", &batch.scored_series) {
            actions.send(BatchAction::Series(series));
        }
    });
}

/// Draws the choice of the model, the settings of its predictions and the pairs that it is scored on.
fn model_to_score(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    weak(
        ui,
        "The model predicts the images of pairs, which are compared with their labels or stains; nothing is written. The pairs \
         are in a folder or table as for training.",
    );
    if let Some(card) = state.model() {
        ui.horizontal(|ui| {
            ui.label("Model");
            model_list(ui, state, card, MODEL_LIST_WIDTH, actions);
        });
        weak(ui, facts(card));
        scored_diameter(ui, state.batch, card, actions);
    }
    device_choice(ui, state, actions);
    precision_choice(ui, state, actions);
    ui.horizontal_wrapped(|ui| {
        let pairs = state.batch.pairs.as_deref();
        let start = pairs.and_then(start_folder);
        if named_button(ui, true, icon::FOLDER, "Folder of pairs…").clicked() {
            ask(FileRequest::PairsFolder, start, actions);
        }
        if named_button(ui, true, icon::TABLE, "Table of pairs…").on_hover_text("A CSV file").clicked() {
            ask(FileRequest::PairsTable, start, actions);
        }
        weak(ui, pairs.map(|path| path.display().to_string()).unwrap_or_default());
    });
    if let Some(card) = state.model() {
        pair_channels(ui, state, card, actions);
    }
}

/// Draws the choice of the channels of the pairs' images that the model predicts, if there are several. It is that of the
/// Predict panel.
fn pair_channels(ui: &mut Ui, state: State<'_>, card: &ModelCard, actions: &mut Actions) {
    let names = state.batch.pair_channels.names(card);
    if names.is_empty() {
        return;
    }
    let lists = |ui: &mut Ui| {
        ui.label(channels_title(card));
        let inputs: Vec<usize> = (0..card.input_channels).collect();
        channel_lists(ui, card, &inputs, &names, "the first image", state.settings())
    };
    let chosen = if card.input_channels > 1 { lists(ui) } else { ui.horizontal(lists).inner };
    if let Some(channels) = chosen {
        actions.send(DisplayAction::InputChannels { model: card.name.clone(), channels });
        actions.send(BatchAction::ForgetScores);
    }
}

/// Draws the object diameter of the pairs, for models that rescale objects to a nominal diameter.
fn scored_diameter(ui: &mut Ui, batch: &Batch, card: &ModelCard, actions: &mut Actions) {
    let Some(nominal_um) = card.object_diameter_um else { return };
    let choice = DiameterChoice {
        unset: ["Automatic", "Estimated when each image is predicted"],
        hint: "The diameter in all pairs; in voxels where the voxel size is unknown",
        first: nominal_um,
        unit: DiameterUnit::Um,
        reason: None,
    };
    let mut given = given_diameter(batch.diameter);
    ui.horizontal(|ui| {
        ui.label("Object diameter");
        choice.show(ui, &mut given);
    });
    let diameter = given.map_or(DiameterRequest::Auto, DiameterRequest::Given);
    if diameter != batch.diameter {
        actions.send(BatchAction::Diameter(diameter));
    }
}

/// Why what is chosen cannot be scored now; `None` if it can.
fn reason_against_evaluating(state: State<'_>) -> Option<&'static str> {
    let batch = state.batch;
    let reason = state.reason_against_jobs();
    match batch.subject {
        _ if reason.is_some() => reason,
        ScoreSubject::Predictions if batch.prediction.path.is_none() => Some("Choose predictions."),
        ScoreSubject::Predictions if batch.truth.path.is_none() => Some("Choose their ground truth."),
        ScoreSubject::Predictions => None,
        ScoreSubject::Model if batch.pairs.is_none() => Some("Choose pairs."),
        ScoreSubject::Model => state.reason_against_predicting(),
    }
}

/// Sends the action that scores what is chosen.
fn start_evaluation(state: State<'_>, actions: &mut Actions) {
    let (batch, settings) = (state.batch, state.settings());
    match batch.subject {
        ScoreSubject::Predictions => {
            // The voxel size that the user has set for the files of the ground truth, or else for those of the predictions.
            let paths = [&batch.truth, &batch.prediction].into_iter().filter_map(|files| files.path.as_ref());
            let sizes = paths.map(|path| settings.voxel_size_in(path));
            actions.send(BatchAction::Evaluate(sizes.fold(VoxelSize::default(), VoxelSize::or)));
        }
        ScoreSubject::Model => {
            let Some(card) = state.model() else { return };
            actions.send(BatchAction::EvaluateModel(ScoredModel {
                name: card.name.clone(),
                title: card.title.clone(),
                rescales: card.object_diameter_um.is_some(),
                device: settings.device,
                precision: settings.precision,
                channels: batch.pair_channels.inputs(card, settings),
                voxel_um: batch.pairs.as_deref().and_then(|path| settings.voxel_size_in(path).zyx_um()),
            }));
        }
    }
}

/// Draws the button that starts the scoring, and its progress.
fn evaluation_start(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let batch = state.batch;
    let is_running = batch.is_evaluating(state.jobs);
    let running = is_running.then_some("Wait until the evaluation has finished, or cancel it.");
    let reason = reason_against_evaluating(state).or(running);
    ui.horizontal(|ui| {
        let button = named_primary_button(ui, reason.is_none(), icon::SCALES, "Evaluate");
        if button.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
            start_evaluation(state, actions);
        }
        if is_running {
            ui.spinner();
            if named_button(ui, true, icon::STOP_CIRCLE, "Cancel evaluation").clicked() {
                actions.send(BatchAction::CancelEvaluation);
            }
        }
    });
    if let Some(job) = batch.evaluation(state.jobs) {
        job_progress(ui, job);
    }
}

/// Choice of the channel of predictions or ground truth that is scored, if there are several.
fn scored_channel(ui: &mut Ui, batch: &Batch, role: PairRole, actions: &mut Actions) {
    let files = batch.scored(role);
    if files.channels.len() < 2 {
        return;
    }
    let (id, name) = match role {
        PairRole::Prediction => ("prediction channel", "Prediction channel"),
        PairRole::Truth => ("truth channel", "Ground truth channel"),
    };
    let automatic = "Automatic";
    let mut channel = files.channel;
    let shown = channel.and_then(|index| files.channels.get(index)).map_or(automatic, String::as_str);
    let response = labeled_choice(ui, id, name, shown, |ui| {
        ui.selectable_value(&mut channel, None, automatic);
        for (index, name) in files.channels.iter().enumerate() {
            ui.selectable_value(&mut channel, Some(index), name.as_str());
        }
    });
    response.on_hover_text(
        "Automatic scores all channels of stains, paired by name or else in order, and the first channel of other files",
    );
    if channel != files.channel {
        actions.send(BatchAction::Channel(role, channel));
    }
}

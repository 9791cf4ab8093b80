//! Dialogs: keyboard shortcuts, about, resetting, closing a stack that is being predicted, axes of a file.

use crate::action::Actions;
use crate::command::{Command, keys_text};
use crate::display::{AxesDialog, Dialog, DisplayAction};
use crate::document::{GivenMetadata, file_name};
use crate::documents::DocumentsAction;
use crate::number_text::counted;
use crate::panels::{filled_button, list_height, weak};
use crate::state::State;
use crate::theme;
use crate::voxel_size::voxel_size_dialog;
use cytoscope_volume::Axes;
use eframe::egui::{self, Modifiers, RichText};

/// Main third-party software and its licenses.
const MADE_BY_OTHERS: &str = "egui and eframe (MIT or Apache-2.0), wgpu (MIT or Apache-2.0), Burn (MIT or \
                              Apache-2.0), rayon (MIT or Apache-2.0), Phosphor icons (MIT), and the libraries named \
                              in Cargo.lock.";

/// Width of the window in points from which the list of shortcuts has two columns of commands.
const TWO_COLUMNS_FROM: f32 = 760.0;

/// Height of the dialog of shortcuts around their list, and of the window around the dialog, in points.
const AROUND_SHORTCUTS: f32 = 260.0;

/// Draws the open dialogs.
pub(crate) fn dialogs(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    if state.display.is_open(Dialog::Shortcuts) && shortcuts_dialog(ctx) {
        actions.send(DisplayAction::Close(Dialog::Shortcuts));
    }
    if state.display.is_open(Dialog::About) && about_dialog(ctx) {
        actions.send(DisplayAction::Close(Dialog::About));
    }
    if state.display.is_open(Dialog::Reset)
        && let Some(reset) = reset_dialog(ctx)
    {
        actions.send(DisplayAction::Close(Dialog::Reset));
        if reset {
            actions.send(DisplayAction::Reset);
        }
    }
    if state.display.is_open(Dialog::CloseStack) {
        close_dialog(ctx, state, actions);
    }
    axes_dialog(ctx, state, actions);
    voxel_size_dialog(ctx, state, actions);
}

/// Asks whether to close the active stack although it is being predicted. The question is withdrawn once the prediction has
/// ended.
fn close_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let Some(document) = state.predicted_document() else {
        return actions.send(DisplayAction::Close(Dialog::CloseStack));
    };
    let response = theme::dialog(ctx, "close stack").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.add(egui::Label::new(RichText::new(format!("Close {}?", state.documents.title(document))).heading()).wrap());
        ui.add_space(8.0);
        let what = "The stack is being predicted, or waits for another job. Closing it cancels the prediction.";
        ui.add(egui::Label::new(what).wrap());
        ui.add_space(8.0);
        ui.horizontal(|ui| {
            let keep = ui.button("Keep it open").clicked().then_some(false);
            keep.or_else(|| ui.button("Cancel prediction and close").clicked().then_some(true))
        })
        .inner
    });
    let Some(close) = response.inner.or_else(|| response.should_close().then_some(false)) else { return };
    actions.send(DisplayAction::Close(Dialog::CloseStack));
    if close {
        actions.send(DocumentsAction::Close);
    }
}

/// Lists the keyboard shortcuts; returns whether to close the dialog.
fn shortcuts_dialog(ctx: &egui::Context) -> bool {
    let response = theme::dialog(ctx, "shortcuts").show(ctx, |ui| {
        ui.heading("Keyboard shortcuts");
        ui.add_space(8.0);
        // Small windows cannot show all rows.
        let height = list_height(ctx, f32::INFINITY, AROUND_SHORTCUTS);
        let columns = if ctx.content_rect().width() < TWO_COLUMNS_FROM { 1 } else { 2 };
        let list = egui::ScrollArea::vertical().max_height(height).min_scrolled_height(height);
        list.show(ui, |ui| shortcut_grid(ui, columns));
        ui.add_space(8.0);
        for text in gestures(ctx) {
            weak(ui, text);
        }
        ui.add_space(8.0);
        ui.button("Close").clicked()
    });
    response.inner || response.should_close()
}

/// What pointer and keys do in a slice view, besides commands.
fn gestures(ctx: &egui::Context) -> [String; 2] {
    let [command, alt] = [Modifiers::COMMAND, Modifiers::ALT].map(|modifiers| ctx.format_modifiers(modifiers));
    [
        format!(
            "In a slice view, a click or the arrow keys (Shift: ten voxels) move the crosshair, the wheel changes the \
             slice, {command}+wheel and the keys + and - zoom, dragging pans, and a double-click fits the slice."
        ),
        format!("While drawing, {alt}+wheel changes the brush, and dragging with Space held pans."),
    ]
}

/// Draws the commands with their keys, in this number of columns.
fn shortcut_grid(ui: &mut egui::Ui, columns: usize) {
    let keyed: Vec<Command> = Command::ALL.into_iter().filter(|c| c.shortcut().is_some()).collect();
    let rows = keyed.len().div_ceil(columns);
    let grid = egui::Grid::new(("shortcuts", columns)).num_columns(2 * columns);
    let grid = grid.spacing([22.0, 3.0]).min_row_height(18.0);
    grid.show(ui, |ui| {
        for row in 0..rows {
            for command in keyed.iter().skip(row).step_by(rows) {
                ui.label(command.title().trim_end_matches('…'));
                let keys = command.shortcut().map(|s| keys_text(ui.ctx(), &s)).unwrap_or_default();
                ui.label(RichText::new(keys).monospace().weak());
            }
            ui.end_row();
        }
    });
}

/// Shows version and license; returns whether to close the dialog.
fn about_dialog(ctx: &egui::Context) -> bool {
    let response = theme::dialog(ctx, "about").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.heading("Cytoscope");
        ui.label(format!("Version {}", env!("CARGO_PKG_VERSION")));
        ui.add_space(8.0);
        ui.label("Segments cells and predicts stains in 3-D microscopy stacks. Everything runs on this machine.");
        ui.add_space(8.0);
        ui.label("License: MIT or Apache-2.0, at your option.");
        weak(ui, format!("Built with {MADE_BY_OTHERS}"));
        ui.add_space(8.0);
        ui.button("Close").clicked()
    });
    response.inner || response.should_close()
}

/// Asks whether to restore the default layout and settings; returns the answer, if there is one.
fn reset_dialog(ctx: &egui::Context) -> Option<bool> {
    let response = theme::dialog(ctx, "reset").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.heading("Reset layout and settings?");
        ui.add_space(8.0);
        let what = "The theme, the layout, and the choices of model, device, memory and results return to their \
                    defaults. Recent files and what was chosen for files, folders and models are kept.";
        ui.add(egui::Label::new(what).wrap());
        ui.add_space(8.0);
        ui.horizontal(|ui| {
            let reset = ui.button("Reset all").clicked();
            let cancel = ui.button("Cancel").clicked();
            (reset || cancel).then_some(reset)
        })
        .inner
    });
    response.inner.or_else(|| response.should_close().then_some(false))
}

/// Draws the axes dialog, if it is open.
fn axes_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let Some(AxesDialog { file: path, series, text: typed }) = state.display.axes_dialog() else { return };
    let mut text = typed.clone();
    let (mut apply, mut forget) = (false, false);
    let shown = state.documents.all().iter().find(|d| d.path == *path && d.series == *series);
    let response = theme::dialog(ctx, "axes").show(ctx, |ui| {
        ui.set_width(380.0);
        ui.heading("Axes of the file");
        weak(ui, file_name(path));
        if let Some(document) = shown {
            let extents = document.extents;
            let counts = [(extents.times, "time point"), (extents.zyx[0], "slice"), (extents.channels, "channel")]
                .map(|(count, one)| counted(count as u64, one));
            weak(ui, format!("Read as {}", counts.join(", ")));
        }
        ui.add_space(8.0);
        ui.label("Order of the axes in the file: T for time, Z for slices, C for channels.");
        ui.horizontal(|ui| {
            for usual in ["ZYX", "TYX", "CYX", "TZYX", "ZCYX", "TZCYX"] {
                if ui.selectable_label(text == usual, usual).clicked() {
                    text = usual.to_owned();
                }
            }
        });
        let edit = egui::TextEdit::singleline(&mut text).hint_text("for example ZYX");
        let edit = theme::text_field(ui, true, edit);
        edit.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Axes"));
        let is_entered = edit.lost_focus() && ui.input(|i| i.key_pressed(egui::Key::Enter));
        if ui.memory(|m| m.focused()).is_none() {
            edit.request_focus();
        }
        let parsed: Result<Axes, _> = text.trim().to_uppercase().parse();
        if let (Err(error), false) = (&parsed, text.trim().is_empty()) {
            ui.colored_label(theme::bad(ui.visuals()), error.to_string());
        }
        weak(ui, "Remembered for all files in this folder.");
        ui.add_space(8.0);
        ui.horizontal(|ui| {
            let button = ui.add_enabled(parsed.is_ok(), filled_button(RichText::new("Apply"), parsed.is_ok()));
            let button = button.on_disabled_hover_text("Type the axes first, such as TZCYX.");
            apply = button.clicked() || (is_entered && parsed.is_ok());
            forget = ui.button("Use the file's axes").clicked();
            ui.button("Cancel").clicked()
        })
        .inner
    });
    if text != *typed {
        actions.send(DisplayAction::TypeAxes(text.clone()));
    }
    // Axes are applied only if they are valid.
    let axes = if apply { text.trim().to_uppercase().parse::<Axes>().ok() } else { None };
    if forget || axes.is_some() {
        let remembered = axes.as_ref().map(ToString::to_string);
        actions.send(DisplayAction::RememberAxes { file: path.clone(), axes: remembered });
        let replaces = shown.map(|document| document.id);
        let given = GivenMetadata { axes, voxel_size_um: state.settings().voxel_size_for(path) };
        actions.send(DocumentsAction::Reopen { path: path.clone(), given, series: *series, replaces });
    }
    if apply || forget || response.inner || response.should_close() {
        actions.send(DisplayAction::CloseAxes);
    }
}

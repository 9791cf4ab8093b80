//! Menu bar, and the toolbar of the views.

use super::menu_keys::{DrawnMenu, is_opened_by_keys, move_with_arrows};
use super::{ICON, icon_button, icon_button_height, item_text, list_height};
use crate::action::Actions;
use crate::command::{Command, keys_text};
use crate::correct::CorrectionsAction;
use crate::correct::pointer::pen;
use crate::correct::tools::{EditAction, Tool};
use crate::display::{DisplayAction, PanelTask};
use crate::document::{Document, DocumentChange, file_name};
use crate::documents::{DocumentsAction, distinct_name, namesakes};
use crate::line_profile::{line_profile_panel, line_profile_pen};
use crate::preprocess::crop_of_copy;
use crate::state::State;
use crate::theme;
use crate::views::layout::Layout;
use crate::views::pen::{Marks, note_open_popup};
use crate::views::slice::{ViewOptions, ViewResponse};
use eframe::egui::{self, Frame, Id, Margin, Popup, RichText, Ui};
use egui_phosphor::regular as icon;

/// Menus with their commands; `None` is a separator.
const MENUS: [(&str, &[Option<Command>]); 5] = [
    (
        "File",
        &[
            Some(Command::Open),
            Some(Command::OpenSample),
            None,
            Some(Command::OpenLabels),
            Some(Command::OpenTruth),
            None,
            Some(Command::Screenshot),
            Some(Command::SaveTable),
            Some(Command::SaveAnnData),
            Some(Command::SaveMesh),
            Some(Command::OpenRun),
            None,
            Some(Command::Convert),
            None,
            Some(Command::Close),
            Some(Command::Quit),
        ],
    ),
    (
        "View",
        &[
            Some(Command::Fit),
            Some(Command::AutoContrast),
            Some(Command::Play),
            None,
            Some(Command::ToggleLabels),
            Some(Command::NextLabelStyle),
            Some(Command::ToggleMap),
            Some(Command::ToggleSwipe),
            Some(Command::ToggleLineProfile),
            Some(Command::ToggleCrosshair),
            Some(Command::ToggleScaleBar),
            None,
            Some(Command::ToggleLibrary),
            Some(Command::ToggleTasks),
            Some(Command::ToggleProfiler),
            Some(Command::Toggle3d),
            Some(Command::NextTheme),
            Some(Command::ResetLayout),
        ],
    ),
    (
        "Predict",
        &[
            Some(Command::Predict),
            Some(Command::PredictAll),
            Some(Command::Evaluate),
            None,
            Some(Command::Models),
            Some(Command::Train),
            None,
            Some(Command::Cancel),
            Some(Command::CancelPredictions),
        ],
    ),
    (
        "Edit",
        &[
            Some(Command::Correct(EditAction::Undo)),
            Some(Command::Correct(EditAction::Redo)),
            None,
            Some(Command::Tool(Tool::Navigate)),
            Some(Command::Tool(Tool::Paint)),
            Some(Command::Tool(Tool::Erase)),
            Some(Command::Tool(Tool::Fill)),
            Some(Command::Tool(Tool::Pick)),
            Some(Command::Tool(Tool::Merge)),
            Some(Command::Tool(Tool::Split)),
            None,
            Some(Command::Correct(EditAction::NewLabel)),
            Some(Command::Correct(EditAction::Delete)),
            Some(Command::Correct(EditAction::Interpolate)),
            Some(Command::Correct(EditAction::FillHoles)),
            Some(Command::Correct(EditAction::Grow)),
            Some(Command::Correct(EditAction::Shrink)),
            None,
            Some(Command::Correct(EditAction::Save)),
            Some(Command::Correct(EditAction::Export)),
        ],
    ),
    ("Help", &[Some(Command::Palette), Some(Command::Shortcuts), Some(Command::ShowLogFolder), Some(Command::About)]),
];

/// Height of a window beside the items of an open menu: its title, and the margins of both, in points.
const AROUND_MENU: f32 = 64.0;

/// Width of the sliders for slice and time point if both are shown.
const NARROW_SLIDER: f32 = 96.0;

/// Least width of these sliders, in narrow toolbars.
const LEAST_SLIDER: f32 = 16.0;

/// Width of a slider's label and number, with the gaps beside them.
const SLIDER_LABELS: f32 = 82.0;

/// Starts the next row if this one is too narrow for a width. Sliders and combo boxes do not move to it by themselves.
pub(super) fn make_room(ui: &mut Ui, width: f32) {
    if ui.available_size_before_wrap().x < width {
        ui.end_row();
    }
}

/// Number of icon buttons that fit into the rest of this row of the toolbar and the next row, in which `reserved` points
/// stay free.
fn buttons_that_fit(ui: &Ui, reserved: f32) -> usize {
    let gap = ui.spacing().item_spacing.x;
    let pitch = (ICON + 2.0 * ui.spacing().button_padding.x).max(28.0) + gap;
    // One point less, so that rounding does not move a button to a third row.
    let fit = |width: f32| ((width + gap - 1.0) / pitch).floor().max(0.0) as usize;
    fit(ui.available_size_before_wrap().x) + fit(ui.max_rect().width() - reserved)
}

/// The commands of the toolbar that do not fit into it, as a menu.
fn more_menu(ui: &mut Ui, state: State<'_>, commands: &[Command], actions: &mut Actions) {
    let button =
        egui::Button::new(RichText::new(icon::DOTS_THREE).size(ICON)).min_size(egui::vec2(28.0, theme::BUTTON_HEIGHT));
    let (response, menu) = egui::containers::menu::MenuButton::from_button(button).ui(ui, |ui| {
        ui.set_min_width(220.0);
        commands.iter().filter_map(|command| command_button(ui, state, *command, actions)).collect::<Vec<Id>>()
    });
    let (popup, items) = (Popup::default_response_id(&response), menu.map(|menu| menu.inner));
    move_with_arrows(ui.ctx(), &[DrawnMenu { title: response.id, popup, items }]);
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "More tools"));
    response.on_hover_text("More tools");
}

/// A slider from 1 to `last` with a number field beside it.
fn slider_and_number(ui: &mut Ui, value: &mut usize, last: usize, name: &str) {
    let slider = ui.add(egui::Slider::new(value, 1..=last).show_value(false));
    slider.widget_info(|| egui::WidgetInfo::slider(true, *value as f64, name));
    let number = ui.add(egui::DragValue::new(value).range(1..=last));
    number.widget_info(|| {
        let text = format!("{name} number");
        egui::WidgetInfo {
            value: Some(*value as f64),
            ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, text)
        }
    });
}

/// Adds the reason why a command is disabled, if it is, as a tooltip.
pub(super) fn with_reason(response: egui::Response, state: State<'_>, command: Command) -> egui::Response {
    match state.reason_against_command(command) {
        Some(reason) => response.on_disabled_hover_text(reason),
        None => response,
    }
}

/// Draws a menu item for a command. Returns its id if it is enabled.
fn command_button(ui: &mut Ui, state: State<'_>, command: Command, actions: &mut Actions) -> Option<Id> {
    let title = state.current_title(command);
    let on = state.is_on(command);
    let sign = match on {
        Some(true) => icon::CHECK_SQUARE,
        Some(false) => icon::SQUARE,
        None => command.icon(),
    };
    // A wide item widens the menu, also where a scroll bar takes a part of it.
    let mut button = egui::Button::new(format!("{sign}   {title}")).wrap_mode(egui::TextWrapMode::Extend);
    if let Some(shortcut) = command.shortcut() {
        button = button.shortcut_text(keys_text(ui.ctx(), &shortcut));
    }
    let enabled = state.is_enabled(command);
    let response = ui.add_enabled(enabled, button);
    response.widget_info(|| match on {
        Some(on) => egui::WidgetInfo::selected(egui::WidgetType::Button, enabled, on, &title),
        None => egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, &title),
    });
    let response = with_reason(response, state, command);
    if response.clicked() {
        actions.command(command);
        ui.close();
    }
    enabled.then_some(response.id)
}

/// Draws the menu bar.
pub(super) fn top_bar(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    note_open_popup(ui.ctx());
    let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(8, 4));
    egui::Panel::top("menus").frame(frame).show(ui, |ui| {
        egui::MenuBar::new().ui(ui, |ui| {
            if is_opened_by_keys(ui.ctx()) {
                // The menu of the title under the pointer is closed.
                let resting = ui.visuals().widgets.inactive;
                ui.visuals_mut().widgets.hovered = resting;
            }
            let mut menus = Vec::with_capacity(MENUS.len());
            for (name, commands) in MENUS {
                let drawn = ui.menu_button(name, |ui| menu(ui, state, commands, actions));
                theme::frame_focused(ui, &drawn.response);
                let popup = Popup::default_response_id(&drawn.response);
                menus.push(DrawnMenu { title: drawn.response.id, popup, items: drawn.inner });
            }
            move_with_arrows(ui.ctx(), &menus);
        });
    });
}

/// Draws a menu, which is scrolled in low windows. Returns the ids of the items that are enabled.
fn menu(ui: &mut Ui, state: State<'_>, commands: &[Option<Command>], actions: &mut Actions) -> Vec<Id> {
    ui.set_min_width(250.0);
    let height = list_height(ui.ctx(), f32::INFINITY, AROUND_MENU);
    let scroll = egui::ScrollArea::vertical().max_height(height).min_scrolled_height(height);
    scroll.show(ui, |ui| menu_items(ui, state, commands, actions)).inner
}

/// Draws the items of a menu. Returns the ids of those that are enabled.
fn menu_items(ui: &mut Ui, state: State<'_>, commands: &[Option<Command>], actions: &mut Actions) -> Vec<Id> {
    let mut enabled = Vec::new();
    for command in commands {
        match command {
            Some(command) => enabled.extend(command_button(ui, state, *command, actions)),
            None => _ = ui.separator(),
        }
        if *command == Some(Command::OpenSample) && !state.settings().recent.is_empty() {
            enabled.extend(recent_menu(ui, state, actions));
        }
    }
    show_focused_item(ui, &enabled);
    enabled
}

/// Scrolls to the item of a menu that keys have moved the focus to: it may be out of sight.
fn show_focused_item(ui: &Ui, items: &[Id]) {
    let key = Id::new("focused item of a menu");
    let focused = ui.ctx().memory(|memory| memory.focused()).filter(|id| items.contains(id));
    let before = ui.ctx().data(|data| data.get_temp::<Option<Id>>(key)).flatten();
    if focused == before {
        return;
    }
    ui.ctx().data_mut(|data| data.insert_temp(key, focused));
    if let Some(item) = focused.and_then(|id| ui.ctx().read_response(id)) {
        item.scroll_to_me(None);
    }
}

/// Draws the menu of recent files. Returns the ids of its title and, if it is open, of its items.
fn recent_menu(ui: &mut Ui, state: State<'_>, actions: &mut Actions) -> Vec<Id> {
    let drawn = ui.menu_button(format!("{}   Recent", icon::CLOCK_COUNTER_CLOCKWISE), |ui| {
        let recent = &state.settings().recent;
        let mut items = Vec::with_capacity(recent.len());
        for path in recent {
            let name = distinct_name(&file_name(path), path, &namesakes(path, recent));
            let item = ui.button(item_text(&name)).on_hover_text(path.display().to_string());
            if item.clicked() {
                actions.send(DocumentsAction::Open(vec![path.clone()]));
                ui.close();
            }
            items.push(item.id);
        }
        items
    });
    std::iter::once(drawn.response.id).chain(drawn.inner.into_iter().flatten()).collect()
}

/// Draws the center of the window: toolbar and views.
pub(super) fn center(ui: &mut Ui, state: State<'_>, views: &mut Layout, actions: &mut Actions) {
    let frame = Frame::new().fill(ui.visuals().panel_fill).inner_margin(Margin::symmetric(8, 4));
    egui::Panel::top("controls").frame(frame).show(ui, |ui| {
        // Labels are placed in the middle of a row of this height.
        ui.spacing_mut().interact_size.y = icon_button_height(ui);
        ui.horizontal_wrapped(|ui| controls(ui, state, actions));
    });
    line_profile_panel(ui, state, views, actions);
    let screenshots = state.display.screenshots();
    let settings = state.settings();
    let options = ViewOptions {
        crosshair: settings.show_crosshair,
        scale_bar: if screenshots.is_bare() { screenshots.with_bar() } else { settings.show_scale_bar },
        swipe: state.display.swipe(),
        pen: line_profile_pen(state).or_else(|| pen(state, views.hover().map(|h| h.zyx))),
        ring: state.ring(),
        crop: outlined_crop(state),
        bare: screenshots.is_bare(),
        only_xy: false,
    };
    let Some(document) = state.document() else { return };
    let marks = Marks { profile_line: state.display.profile_line(document.id), ..selected(state, document) };
    let view_response = views.show(ui, document, state.documents.loader(), &marks, options);
    send_view_response(document.id, view_response, state, actions);
}

/// The points that are selected for merging or splitting labels, and the line that is drawn, while the tools are on screen with
/// the time point that is corrected.
fn selected(state: State<'_>, document: &Document) -> Marks {
    let is_at_time = state.correction().is_some_and(|correction| correction.time == document.time);
    let has_tools = is_at_time && state.display.task() == PanelTask::Correct;
    if has_tools { state.corrections.marks(document.id) } else { Marks::default() }
}

/// The crop of a preprocessed copy, while the panel that sets it is shown.
fn outlined_crop(state: State<'_>) -> Option<[[usize; 2]; 3]> {
    let is_set_here = state.settings().show_tasks && state.display.task() == PanelTask::Predict;
    state.document().filter(|_| is_set_here).and_then(crop_of_copy)
}

/// Sends what was done in the views.
fn send_view_response(document: u64, view_response: ViewResponse, state: State<'_>, actions: &mut Actions) {
    for change in view_response.changes {
        actions.send(DocumentsAction::Change { document, change });
    }
    if let Some(label) = view_response.picked {
        actions.send(DocumentsAction::Change { document, change: DocumentChange::Select(Some(label)) });
        actions.send(DisplayAction::RevealObject(true));
        actions.send(CorrectionsAction::Label(label));
    }
    if let Some(factor) = view_response.brush_factor {
        actions.send(CorrectionsAction::ScaleBrush(factor));
    }
    let events = view_response.pointer_events;
    if events.is_empty() {
        return;
    }
    match state.display.shows_line_profile() {
        true => actions.send(DisplayAction::DrawLineProfile { document, events }),
        false => actions.send(CorrectionsAction::PointerEvents(events)),
    }
}

/// Draws the toolbar.
fn controls(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let playing = state.documents.is_playing();
    if let Some(document) = state.document() {
        position_sliders(ui, document, actions);
    }
    let buttons = [
        Command::Play,
        Command::Fit,
        Command::AutoContrast,
        Command::ToggleLabels,
        Command::NextLabelStyle,
        Command::ToggleMap,
        Command::ToggleSwipe,
        Command::ToggleLineProfile,
        Command::Screenshot,
    ];
    let swipe = state.display.swipe();
    let reserved = swipe.map_or(0.0, |_| ui.spacing().slider_width + ui.spacing().item_spacing.x);
    let fit = buttons_that_fit(ui, reserved);
    let shown = if fit < buttons.len() { fit.saturating_sub(1) } else { buttons.len() };
    let (buttons, further) = buttons.split_at(shown);
    for command in buttons.iter().copied() {
        let enabled = state.is_enabled(command);
        let pauses = command == Command::Play && playing;
        let on = pauses || state.is_on(command) == Some(true);
        let sign = if pauses { icon::PAUSE } else { command.icon() };
        let response = icon_button(ui, sign, &state.current_title(command), enabled, on);
        let response = match command.shortcut() {
            Some(keys) => response.on_hover_text(keys_text(ui.ctx(), &keys)),
            None => response,
        };
        let response = with_reason(response, state, command);
        if response.clicked() {
            actions.command(command);
        }
    }
    if !further.is_empty() {
        more_menu(ui, state, further, actions);
    }
    if let Some(mut share) = swipe {
        let width = ui.spacing().slider_width;
        make_room(ui, width);
        let slider = ui.add(egui::Slider::new(&mut share, 0.0..=1.0).show_value(false));
        slider.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Slider, true, "Swipe"));
        if slider.on_hover_text("Moves the divider; overlays to its right are hidden").changed() {
            actions.send(DisplayAction::Swipe(share));
        }
    }
}

/// Draws the sliders for slice and time point.
fn position_sliders(ui: &mut Ui, document: &Document, actions: &mut Actions) {
    let [z, y, x] = document.cursor;
    let mut send = |change| actions.send(DocumentsAction::Change { document: document.id, change });
    let width = ui.spacing().slider_width;
    if document.is_3d() && document.extents.times > 1 {
        // In a window of the initial size, the toolbar has one row; in narrow ones, both sliders share the first row.
        let room = ui.max_rect().width() / 2.0 - SLIDER_LABELS;
        ui.spacing_mut().slider_width = room.clamp(LEAST_SLIDER, NARROW_SLIDER);
    }
    if document.is_3d() {
        ui.label("Z");
        let mut slice = z + 1;
        slider_and_number(ui, &mut slice, document.extents.zyx[0], "Slice");
        if slice != z + 1 {
            send(DocumentChange::Cursor([slice.saturating_sub(1), y, x]));
        }
    }
    if document.extents.times > 1 {
        ui.label("T");
        let mut time = document.time + 1;
        slider_and_number(ui, &mut time, document.extents.times, "Time point");
        if time != document.time + 1 {
            send(DocumentChange::Time(time.saturating_sub(1)));
        }
    }
    ui.spacing_mut().slider_width = width;
}

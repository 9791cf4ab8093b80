//! The command palette: fuzzy search over all commands.

use crate::action::Actions;
use crate::command::{Command, keys_text};
use crate::display::{Dialog, DisplayAction};
use crate::panels::{list_height, weak};
use crate::state::State;
use crate::theme;
use crate::typed_ahead::take_text;
use eframe::egui::{self, Align2, Key, RichText, Ui, vec2};

/// Maximum height of the list of commands in points.
const LIST_HEIGHT: f32 = 380.0;

/// Height of the palette above and below its list, and of the window above the palette, in points.
const AROUND_LIST: f32 = 196.0;

/// State that the palette keeps between frames.
#[derive(Debug, Default)]
pub(crate) struct Palette {
    query: String,
    chosen: usize,
}

/// Rank of a title in which the letters of a query only occur in order.
const SCATTERED: usize = 100;

/// Rank of a title for a query, lower is better: the position of the query, or [`SCATTERED`].
fn rank(title: &str, query: &str) -> Option<usize> {
    let title = title.to_lowercase();
    let query = query.to_lowercase();
    if let Some(at) = title.find(query.trim()) {
        return Some(at);
    }
    let mut rest = title.chars();
    query.chars().filter(|c| !c.is_whitespace()).all(|c| rest.any(|t| t == c)).then_some(SCATTERED)
}

/// Lists the matching commands that are disabled, and why, or says that no command matches.
fn nothing_found(ui: &mut Ui, state: State<'_>, query: &str) {
    let mut is_any = false;
    for command in Command::ALL {
        let title = state.current_title(command);
        let is_match = rank(&title, query).is_some_and(|rank| rank < SCATTERED);
        if let Some(reason) = state.reason_against_command(command).filter(|_| is_match) {
            weak(ui, format!("{}: {reason}", title.trim_end_matches('…')));
            is_any = true;
        }
    }
    if !is_any {
        weak(ui, "No matching command");
    }
}

/// Lists the commands that were found, of which number `chosen` is marked and, if it `has_moved`, scrolled to. Returns the one
/// that was clicked.
fn command_list(ui: &mut Ui, found: &[(usize, Command, String)], chosen: usize, has_moved: bool) -> Option<Command> {
    let mut clicked = None;
    for (i, (_, command, title)) in found.iter().enumerate() {
        let text = RichText::new(format!("{}   {title}", command.icon())).size(14.0);
        let is_chosen = i == chosen;
        let mut keys = RichText::new(command.shortcut().map(|s| keys_text(ui.ctx(), &s)).unwrap_or_default());
        if is_chosen {
            // Weak text could not be read on the accent.
            keys = keys.color(theme::ON_ACCENT);
        }
        let button =
            egui::Button::new(text).selected(is_chosen).shortcut_text(keys).min_size(vec2(ui.available_width(), 28.0));
        let response = ui.add(button);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, title));
        if is_chosen && has_moved {
            response.scroll_to_me(None);
        }
        if response.clicked() {
            clicked = Some(*command);
        }
    }
    clicked
}

/// Draws the palette, if it is open.
pub(crate) fn palette(ctx: &egui::Context, state: State<'_>, panel: &mut Palette, actions: &mut Actions) {
    if !state.display.is_open(Dialog::Palette) {
        *panel = Palette::default();
        return;
    }
    let field = egui::Id::new("palette query");
    if !ctx.memory(|memory| memory.has_focus(field)) {
        panel.query.push_str(&take_text(ctx, field));
    }
    let query = panel.query.clone();
    let mut found: Vec<(usize, Command, String)> = Command::ALL
        .into_iter()
        .filter(|c| *c != Command::Palette && state.is_enabled(*c))
        .map(|c| (c, state.current_title(c)))
        .filter_map(|(c, title)| Some((rank(&title, &query)?, c, title)))
        .collect();
    // Enter must not run a command other than the one that was named, even if that one is disabled.
    let is_named = |c: &Command| rank(&state.current_title(*c), &query).is_some_and(|rank| rank < SCATTERED);
    if Command::ALL.iter().any(is_named) {
        found.retain(|(rank, ..)| *rank < SCATTERED);
    }
    found.sort_by_key(|(rank, ..)| *rank);
    let (up, down, enter, escape) = ctx.input_mut(|i| {
        let mut take = |key| i.consume_key(egui::Modifiers::NONE, key);
        (take(Key::ArrowUp), take(Key::ArrowDown), take(Key::Enter), take(Key::Escape))
    });
    let last = found.len().saturating_sub(1);
    panel.chosen = panel.chosen.min(last);
    if down {
        panel.chosen = (panel.chosen + 1).min(last);
    }
    if up {
        panel.chosen = panel.chosen.saturating_sub(1);
    }
    let mut run = enter.then(|| found.get(panel.chosen).map(|f| f.1)).flatten();
    let modal = theme::dialog(ctx, "palette")
        .area(egui::Modal::default_area(egui::Id::new("palette")).anchor(Align2::CENTER_TOP, vec2(0.0, 80.0)));
    let response = modal.show(ctx, |ui| {
        ui.set_width(440.0);
        let edit = egui::TextEdit::singleline(&mut panel.query)
            .id(field)
            .hint_text("Search commands")
            .desired_width(f32::INFINITY)
            .font(egui::FontId::proportional(16.0));
        let response = theme::text_field(ui, true, edit);
        response.widget_info(|| egui::WidgetInfo {
            current_text_value: Some(panel.query.clone()),
            ..egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Command")
        });
        if !response.has_focus() {
            response.request_focus();
        }
        if response.changed() {
            panel.chosen = 0;
        }
        ui.add_space(6.0);
        // A dialog keeps its size, so the list would stay as short as after the latest search.
        let height = list_height(ctx, LIST_HEIGHT, AROUND_LIST);
        let list = egui::ScrollArea::vertical().max_height(height).min_scrolled_height(height);
        list.show(ui, |ui| {
            if let Some(clicked) = command_list(ui, &found, panel.chosen, up || down) {
                run = Some(clicked);
            }
            if found.is_empty() {
                nothing_found(ui, state, &query);
            }
        });
    });
    if let Some(command) = run {
        actions.command(command);
    }
    if run.is_some() || escape || response.should_close() {
        actions.send(DisplayAction::Close(Dialog::Palette));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_letters_in_order_find_a_command() {
        assert_eq!(rank("Automatic contrast", "contr"), Some(10));
        assert_eq!(rank("Automatic contrast", "atcon"), Some(100));
        assert_eq!(rank("Automatic contrast", "xyz"), None);
        assert!(rank("Fit views", "").is_some());
    }
}

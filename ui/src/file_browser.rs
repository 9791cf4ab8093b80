//! The built-in file dialog, for desktops that offer none: folders, a filter by extensions, and a field for names and paths.
//!
//! Reading a folder is work on a disk ([`visit`]); its result comes back as a [`Visited`].

use crate::action::{Action, Actions};
use crate::disk::DiskEffect;
use crate::display::DisplayAction;
use crate::effect::Effects;
use crate::file_dialog::{Choice, DialogSpec};
use crate::panels::{list_height, named_button, named_primary_button, row_text, weak};
use crate::theme;
use crate::typed_ahead::take_text;
use cytoscope_formats::is_zarr_folder;
use cytoscope_storage::{io_advice, io_message, io_problem};
use eframe::egui::{self, Key, RichText, vec2};
use egui_phosphor::regular as icon;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf, is_separator};

/// Maximum number of entries of a folder that are listed.
const MAX_ENTRIES: usize = 20_000;
/// Height of a row in points.
const ROW_HEIGHT: f32 = theme::BUTTON_HEIGHT;
/// Maximum height of the list in points.
const LIST_HEIGHT: f32 = 320.0;
/// Height of the dialog above and below its list, in points.
const AROUND_LIST: f32 = 236.0;

/// A file or folder in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// File name without the folder.
    pub(crate) name: String,
    /// Whether it is a folder that can be entered; an OME-Zarr folder counts as a file.
    pub(crate) is_folder: bool,
}

/// Result of visiting a path: folder, file, nothing or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visited {
    /// A folder that can be listed.
    Folder {
        /// Absolute path of the folder.
        path: PathBuf,
        /// Its entries, folders first, each kind by name; without hidden ones.
        entries: Vec<Entry>,
    },
    /// A file or an OME-Zarr folder.
    File(PathBuf),
    /// Nothing, in a folder that exists.
    Nothing(PathBuf),
    /// The path cannot be used; the reason.
    Problem(String),
}

/// Looks at a path; blocks until the disk has responded.
pub(crate) fn visit(path: &Path) -> Visited {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if path.is_dir() {
        if is_zarr_folder(&path) {
            return Visited::File(path);
        }
        return match list(&path) {
            Ok(entries) => Visited::Folder { path, entries },
            Err(error) => Visited::Problem(io_message(&path, &error)),
        };
    }
    if path.exists() {
        return Visited::File(path);
    }
    if path.parent().is_some_and(Path::is_dir) {
        return Visited::Nothing(path);
    }
    Visited::Problem(missing(&path, false))
}

/// The message that a path does not exist, and what to do next.
fn missing(path: &Path, can_be_created: bool) -> String {
    let next = if can_be_created { "create it, or check the name" } else { "check the path, or choose from the list" };
    format!("{} does not exist: {next}", path.display())
}

/// Creates a folder and looks at it; blocks until the disk has responded.
pub(crate) fn visit_new(path: &Path) -> Visited {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            let (problem, advice) = (io_problem(&error), io_advice(&error));
            Visited::Problem(format!("{} cannot be created: {problem}; {advice}", path.display()))
        }
        _ => visit(path),
    }
}

fn list(folder: &Path) -> std::io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entries.len() == MAX_ENTRIES {
            break;
        }
        // Reports cannot contain names that are not Unicode.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = entry.path();
        let is_zarr = name.to_lowercase().contains(".zarr") && is_zarr_folder(&path);
        entries.push(Entry { is_folder: path.is_dir() && !is_zarr, name });
    }
    entries.sort_by_cached_key(|e| (!e.is_folder, e.name.to_lowercase()));
    Ok(entries)
}

/// An action on the dialog.
pub(crate) enum BrowserAction {
    /// The text in the field for a name or path.
    Type(String),
    /// Highlights a row; `add` keeps the other highlighted rows.
    Row {
        /// Name of the entry.
        name: String,
        /// Whether other rows stay highlighted.
        add: bool,
    },
    /// Moves the highlighted row by a number of rows; up if negative.
    Move(i64),
    /// Opens a folder, or chooses a file.
    Visit(PathBuf),
    /// Chooses what is typed or highlighted.
    Accept,
    /// Chooses the typed folder, or the shown one if nothing is typed.
    ChooseFolder,
    /// Creates the folder whose name was typed, and shows it.
    CreateFolder,
    /// Sets whether files with other extensions are listed.
    AllFiles(bool),
    /// Answers whether to replace an existing file.
    Replace(bool),
    /// Closes the dialog.
    Cancel,
}

/// State of the dialog while it is open.
pub(crate) struct FileBrowser {
    spec: DialogSpec,
    /// The folder whose entries are listed.
    folder: PathBuf,
    entries: Vec<Entry>,
    /// Name or path in the field.
    typed: String,
    /// Names of the highlighted rows.
    highlighted: BTreeSet<String>,
    /// The row that the arrow keys move.
    cursor: usize,
    all_files: bool,
    /// Whether the disk was asked what is at a path, and has not answered yet.
    visiting: bool,
    /// The typed text at the time of the last request to the disk.
    typed_at_visit: String,
    /// Whether the typed folder is chosen once the disk has found it.
    choose_typed: bool,
    problem: Option<String>,
    /// A folder that was typed and does not exist, and can be created.
    new_folder: Option<PathBuf>,
    /// An existing file that would be replaced.
    replace: Option<PathBuf>,
}

/// Result of an action on the dialog.
pub(crate) enum BrowserResult {
    /// The dialog stays open.
    Open,
    /// The dialog closes.
    Closed,
}

impl FileBrowser {
    /// Opens the dialog and asks for the entries of its first folder.
    pub(crate) fn open(spec: DialogSpec, effects: &mut Effects) -> Self {
        let home = || std::env::home_dir().or_else(|| std::env::current_dir().ok());
        let folder = spec.folder.clone().or_else(home).unwrap_or_default();
        let typed = if spec.choice == Choice::NewFile { spec.suggested.clone() } else { String::new() };
        let mut browser = Self {
            spec,
            folder: folder.clone(),
            entries: Vec::new(),
            typed,
            highlighted: BTreeSet::new(),
            cursor: 0,
            all_files: false,
            visiting: false,
            typed_at_visit: String::new(),
            choose_typed: false,
            problem: None,
            new_folder: None,
            replace: None,
        };
        browser.visit(folder, effects);
        browser
    }

    /// Names of all entries of the folder.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// The entries that are listed: those that have one of the extensions and contain the typed text in their name.
    fn listed(&self) -> Vec<&Entry> {
        let filter = match self.spec.choice {
            Choice::NewFile => String::new(),
            _ if self.is_path() => String::new(),
            _ => self.typed.trim().to_lowercase(),
        };
        let fits = |e: &&Entry| match self.spec.choice {
            _ if e.is_folder => true,
            Choice::Folder => false,
            _ => self.all_files || self.spec.fits(&e.name),
        };
        self.entries
            .iter()
            .filter(fits)
            .filter(|e| filter.is_empty() || e.name.to_lowercase().contains(&filter))
            .collect()
    }

    /// Whether a path is typed, not a name.
    fn is_path(&self) -> bool {
        self.typed.contains(is_separator) || self.typed.trim() == "~"
    }

    /// The typed name or path as an absolute path; a first part `~` is the user's home folder.
    fn typed_path(&self) -> PathBuf {
        let typed = self.typed.trim();
        // The names of files may begin with `~`, too.
        let below_home = typed.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with(is_separator));
        let below_home = below_home.map(|rest| rest.trim_start_matches(is_separator));
        match (below_home, std::env::home_dir()) {
            (Some(rest), Some(home)) => home.join(rest),
            _ => self.folder.join(typed),
        }
    }

    fn visit(&mut self, path: PathBuf, effects: &mut Effects) {
        self.visiting = true;
        self.typed_at_visit.clone_from(&self.typed);
        (self.problem, self.new_folder) = (None, None);
        effects.disk(DiskEffect::Visit { path });
    }

    /// Applies an action. Returns whether the dialog stays open.
    pub(crate) fn apply(&mut self, action: BrowserAction, effects: &mut Effects) -> BrowserResult {
        match action {
            BrowserAction::Type(text) => {
                self.typed = text;
                self.new_folder = None;
                self.cursor = 0;
                self.highlighted.clear();
            }
            BrowserAction::Row { name, add } => {
                if !add || self.spec.choice != Choice::Files {
                    self.highlighted.clear();
                }
                let row = self.listed().iter().position(|e| e.name == name);
                self.cursor = row.unwrap_or(0);
                let is_file = self.entries.iter().any(|e| e.name == name && !e.is_folder);
                if is_file && self.spec.choice == Choice::NewFile {
                    self.typed.clone_from(&name);
                }
                self.highlighted.insert(name);
            }
            BrowserAction::Move(rows) => {
                let last = self.listed().len().saturating_sub(1);
                let none = self.highlighted.is_empty();
                self.cursor = if none { 0 } else { self.cursor.saturating_add_signed(rows as isize).min(last) };
                let name = self.listed().get(self.cursor).map(|e| e.name.clone());
                self.highlighted = name.into_iter().collect();
            }
            BrowserAction::Visit(path) => self.visit(path, effects),
            BrowserAction::Accept => return self.accept(effects),
            BrowserAction::ChooseFolder => return self.choose_folder(effects),
            BrowserAction::CreateFolder => {
                if let Some(path) = self.new_folder.take() {
                    (self.visiting, self.problem) = (true, None);
                    effects.disk(DiskEffect::CreateFolder { path });
                }
            }
            BrowserAction::AllFiles(all) => self.all_files = all,
            BrowserAction::Replace(replace) => {
                if let Some(path) = self.replace.take().filter(|_| replace) {
                    effects.act(Action::Chosen(self.spec.request, vec![path]));
                    return BrowserResult::Closed;
                }
            }
            BrowserAction::Cancel => return BrowserResult::Closed,
        }
        BrowserResult::Open
    }

    fn choose_folder(&mut self, effects: &mut Effects) -> BrowserResult {
        let typed = self.typed.trim();
        if typed.is_empty() {
            effects.act(Action::Chosen(self.spec.request, vec![self.folder.clone()]));
            return BrowserResult::Closed;
        }
        if self.is_path() || self.names().any(|name| name == typed) || self.listed().is_empty() {
            self.choose_typed = true;
            self.visit(self.typed_path(), effects);
            return BrowserResult::Open;
        }
        // Part of a name: the folder is opened first.
        self.accept(effects)
    }

    /// Whether a folder is the one whose name or path was typed when the disk was asked for it.
    fn is_typed(&self, folder: &Path) -> bool {
        self.typed == self.typed_at_visit && std::path::absolute(self.typed_path()).is_ok_and(|typed| typed == folder)
    }

    fn accept(&mut self, effects: &mut Effects) -> BrowserResult {
        let files: Vec<PathBuf> = self
            .entries
            .iter()
            .filter(|e| !e.is_folder && self.highlighted.contains(&e.name))
            .map(|e| self.folder.join(&e.name))
            .collect();
        if self.spec.choice != Choice::NewFile && files.len() > 1 {
            effects.act(Action::Chosen(self.spec.request, files));
            return BrowserResult::Closed;
        }
        let row = self.listed().get(self.cursor).map(|e| (e.name.clone(), e.is_folder));
        let is_highlighted = row.as_ref().is_some_and(|(name, _)| self.highlighted.contains(name));
        let path = match (self.spec.choice, row) {
            // A highlighted folder is opened, whatever name is typed.
            (Choice::NewFile, Some((name, true))) if is_highlighted => self.folder.join(name),
            (Choice::NewFile, _) if self.typed.trim().is_empty() => {
                return self.nothing_chosen("Type a name for the file");
            }
            (Choice::NewFile, _) => self.typed_path(),
            (_, Some((name, _))) if !self.is_path() && (is_highlighted || !self.typed.trim().is_empty()) => {
                self.folder.join(name)
            }
            (Choice::Folder, _) if self.typed.trim().is_empty() && !self.visiting => {
                return self.choose_folder(effects);
            }
            _ if self.typed.trim().is_empty() => return self.nothing_chosen("Choose a file, or type its name"),
            _ => self.typed_path(),
        };
        self.visit(path, effects);
        BrowserResult::Open
    }

    /// Says what is to be chosen first, unless the folder is still being read.
    fn nothing_chosen(&mut self, advice: &str) -> BrowserResult {
        if !self.visiting {
            self.problem = Some(advice.to_owned());
        }
        BrowserResult::Open
    }

    /// The path of a new file with the first extension of the dialog; `None` if it has one of its extensions already.
    fn with_extension(&self, path: &Path) -> Option<PathBuf> {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let extension = self.spec.extensions.first().filter(|_| !self.spec.fits(&name))?;
        Some(path.with_file_name(format!("{name}.{extension}")))
    }

    /// Handles what is at a path. Returns whether the dialog stays open.
    pub(crate) fn visited(&mut self, visited: Visited, effects: &mut Effects) -> BrowserResult {
        self.visiting = false;
        let choose_typed = std::mem::take(&mut self.choose_typed);
        let choice = self.spec.choice;
        // A new file gets its extension unless a folder has the typed name; only the disk knows that.
        if let (Choice::NewFile, Visited::File(path) | Visited::Nothing(path)) = (choice, &visited)
            && let Some(path) = self.with_extension(path)
        {
            self.visit(path, effects);
            return BrowserResult::Open;
        }
        match visited {
            Visited::Folder { path, entries } => {
                if entries.len() == MAX_ENTRIES {
                    self.problem = Some(format!("Only {MAX_ENTRIES} entries are listed: type the names of others"));
                }
                let is_chosen = choose_typed && self.is_typed(&path);
                self.folder = path;
                self.entries = entries;
                self.cursor = 0;
                self.highlighted.clear();
                // Text that was typed while the folder was read stays.
                let is_unchanged = self.typed == self.typed_at_visit;
                if is_unchanged && (choice != Choice::NewFile || self.is_path()) {
                    self.typed.clear();
                }
                if is_chosen {
                    return self.choose_folder(effects);
                }
            }
            Visited::File(path) => match choice {
                Choice::Folder => self.problem = Some(format!("{} is not a folder", path.display())),
                Choice::NewFile => self.replace = Some(path),
                Choice::File | Choice::Files => {
                    effects.act(Action::Chosen(self.spec.request, vec![path]));
                    return BrowserResult::Closed;
                }
            },
            Visited::Nothing(path) if choice == Choice::NewFile => {
                effects.act(Action::Chosen(self.spec.request, vec![path]));
                return BrowserResult::Closed;
            }
            Visited::Nothing(path) => {
                self.problem = Some(missing(&path, choice == Choice::Folder));
                self.new_folder = Some(path).filter(|_| choice == Choice::Folder);
            }
            Visited::Problem(problem) => self.problem = Some(problem),
        }
        BrowserResult::Open
    }
}

/// Draws the dialog, if it is open.
pub(crate) fn browser_dialog(ctx: &egui::Context, browser: Option<&FileBrowser>, actions: &mut Actions) {
    let Some(browser) = browser else { return };
    let mut send = |action| actions.send(DisplayAction::Browser(action));
    if let Some(path) = &browser.replace {
        return replace_question(ctx, path, &mut send);
    }
    let field = egui::Id::new("file browser path");
    // In its first frame, what is behind the dialog may still have the focus.
    let is_new = ctx.read_response(field).is_none();
    let focused = ctx.memory(|memory| memory.focused()).filter(|_| !is_new);
    let ahead = if focused.is_none() { take_text(ctx, field) } else { String::new() };
    let takes_keys = focused.is_none_or(|id| id == field);
    let pressed = if takes_keys { keys(ctx, browser, &ahead) } else { Vec::new() };
    let response = theme::dialog(ctx, "file browser").show(ctx, |ui| {
        ui.set_width(600.0);
        ui.heading(browser.spec.title);
        folder_row(ui, browser, &mut send);
        let mut typed = browser.typed.clone() + &ahead;
        let hint =
            if browser.spec.choice == Choice::NewFile { "Name or path" } else { "Name, path, or part of a name" };
        let edit = egui::TextEdit::singleline(&mut typed).id(field).hint_text(hint).desired_width(f32::INFINITY);
        let edit = theme::text_field(ui, true, edit);
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "File name");
            info.current_text_value = Some(typed.clone());
            info
        });
        if is_new || ui.memory(|m| m.focused()).is_none() {
            edit.request_focus();
        }
        if typed != browser.typed {
            send(BrowserAction::Type(typed));
        }
        ui.add_space(theme::GAP);
        rows(ui, browser, &mut send);
        if let Some(problem) = &browser.problem {
            ui.colored_label(theme::bad(ui.visuals()), problem);
        }
        if browser.new_folder.is_some() && named_button(ui, true, icon::FOLDER_PLUS, "Create folder").clicked() {
            send(BrowserAction::CreateFolder);
        }
        ui.add_space(theme::GAP);
        buttons(ui, browser, &mut send);
    });
    // After the text that was typed in the same frame, which Enter accepts.
    pressed.into_iter().for_each(&mut send);
    if response.should_close() {
        send(BrowserAction::Cancel);
    }
}

/// Takes the arrow keys, Enter and Backspace, which no button has the focus for, and returns what they do; `ahead` was typed in
/// this frame.
fn keys(ctx: &egui::Context, browser: &FileBrowser, ahead: &str) -> Vec<BrowserAction> {
    let is_empty = browser.typed.is_empty() && ahead.is_empty();
    let (up, down, enter, back) = ctx.input_mut(|i| {
        let mut take = |key| i.consume_key(egui::Modifiers::NONE, key);
        (take(Key::ArrowUp), take(Key::ArrowDown), take(Key::Enter), is_empty && take(Key::Backspace))
    });
    let parent = browser.folder.parent().filter(|_| back).map(|parent| BrowserAction::Visit(parent.to_owned()));
    let pressed = [
        up.then_some(BrowserAction::Move(-1)),
        down.then_some(BrowserAction::Move(1)),
        enter.then_some(BrowserAction::Accept),
        parent,
    ];
    pressed.into_iter().flatten().collect()
}

fn folder_row(ui: &mut egui::Ui, browser: &FileBrowser, send: &mut impl FnMut(BrowserAction)) {
    ui.horizontal(|ui| {
        let parent = browser.folder.parent();
        let up = named_button(ui, parent.is_some(), icon::ARROW_UP, "Up");
        let up = up.on_disabled_hover_text("There is no folder above this one.");
        if let (true, Some(parent)) = (up.clicked(), parent) {
            send(BrowserAction::Visit(parent.to_owned()));
        }
        if let (true, Some(home)) = (named_button(ui, true, icon::HOUSE, "Home").clicked(), std::env::home_dir()) {
            send(BrowserAction::Visit(home));
        }
        if browser.visiting {
            ui.spinner();
        }
        let text = browser.folder.display().to_string();
        // If it is cut off, its tooltip is the whole path.
        ui.add(egui::Label::new(RichText::new(text).strong()).truncate());
    });
}

fn rows(ui: &mut egui::Ui, browser: &FileBrowser, send: &mut impl FnMut(BrowserAction)) {
    let listed = browser.listed();
    if listed.is_empty() && !browser.visiting {
        let text = match browser.spec.choice {
            Choice::Folder => "This folder contains no other folders. Enter chooses it.",
            Choice::File | Choice::Files | Choice::NewFile => "This folder contains no matching files.",
        };
        weak(ui, text);
    }
    let height = list_height(ui.ctx(), LIST_HEIGHT, AROUND_LIST);
    let scroll = egui::ScrollArea::vertical().id_salt(&browser.folder).max_height(height).auto_shrink([false; 2]);
    scroll.show_rows(ui, ROW_HEIGHT, listed.len(), |ui, range| {
        for entry in listed.get(range).unwrap_or_default() {
            let sign = if entry.is_folder { icon::FOLDER } else { icon::FILE };
            let on = browser.highlighted.contains(&entry.name);
            let text = row_text(ui, sign, &entry.name);
            let is_whole = text.ends_with(&entry.name);
            let button = egui::Button::selectable(on, text).truncate();
            let response = ui.add(button.min_size(vec2(ui.available_width(), ROW_HEIGHT)));
            response
                .widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::SelectableLabel, true, on, &entry.name));
            let response = if is_whole { response } else { response.on_hover_text(&entry.name) };
            if response.double_clicked() || (response.clicked() && entry.is_folder) {
                send(BrowserAction::Visit(browser.folder.join(&entry.name)));
            } else if response.clicked() {
                let add = ui.input(|i| i.modifiers.command || i.modifiers.shift);
                send(BrowserAction::Row { name: entry.name.clone(), add });
            }
        }
    });
}

fn buttons(ui: &mut egui::Ui, browser: &FileBrowser, send: &mut impl FnMut(BrowserAction)) {
    ui.horizontal(|ui| {
        if !browser.spec.extensions.is_empty() {
            let mut all = browser.all_files;
            let others = theme::checkbox(ui, &mut all, "All files");
            if others.on_hover_text(format!("If off, only {} are listed", browser.spec.extensions.join(", "))).changed()
            {
                send(BrowserAction::AllFiles(all));
            }
        }
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let (name, action) = match browser.spec.choice {
                Choice::File | Choice::Files => ("Open file", BrowserAction::Accept),
                Choice::Folder => ("Choose this folder", BrowserAction::ChooseFolder),
                Choice::NewFile => ("Save file", BrowserAction::Accept),
            };
            if named_primary_button(ui, !browser.visiting, icon::CHECK, name).clicked() {
                send(action);
            }
            let cancel = ui.button(format!("{}  Cancel", icon::X));
            // Jobs have a button with this text, too.
            cancel.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Cancel dialog"));
            if cancel.clicked() {
                send(BrowserAction::Cancel);
            }
        });
    });
}

fn replace_question(ctx: &egui::Context, path: &Path, send: &mut impl FnMut(BrowserAction)) {
    let response = theme::dialog(ctx, "replace file").show(ctx, |ui| {
        ui.set_width(420.0);
        ui.heading("Replace the file?");
        weak(ui, path.display().to_string());
        ui.add_space(theme::GROUP_GAP);
        ui.horizontal(|ui| {
            let keep = ui.button("Keep file").clicked().then_some(false);
            keep.or_else(|| ui.button("Replace file").clicked().then_some(true))
        })
        .inner
    });
    if let Some(replace) = response.inner.or_else(|| response.should_close().then_some(false)) {
        send(BrowserAction::Replace(replace));
    }
}

#[cfg(test)]
#[path = "file_browser_tests.rs"]
mod tests;

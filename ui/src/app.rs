//! The workbench: the window's states put together, the order of a frame, and the interface for programs and tests.

use crate::action::{Action, Actions};
use crate::batch::{Batch, BatchAction};
use crate::command::Command;
use crate::correct::Corrections;
use crate::correct::pointer::pen;
use crate::correct::tools::EditAction;
use crate::data::plane::Orientation;
use crate::disk::{DiskEffect, DiskEvent};
use crate::display::{Dialog, Display, DisplayAction, PanelTask};
use crate::document::{Document, Role};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::{Effects, Wake};
use crate::executor::DiskExecutor;
use crate::file_browser::browser_dialog;
use crate::jobs::{Jobs, JobsAction};
use crate::line_profile::line_profile_csv;
use crate::models::Models;
use crate::opener::{FileRequest, ProfileFormat};
use crate::overwrite::overwrite_dialog;
use crate::panels::{self, Panels};
use crate::provenance::{record_dialog, split_records};
use crate::quit::{QuitState, quit_dialog};
use crate::runs::RunId;
use crate::screenshots::{ScreenshotSubject, screenshot_dialog};
use crate::settings::Settings;
use crate::shell::{self, FromShell, ShellLink};
use crate::state::State;
use crate::theme;
use crate::training::models::TrainedModelFormat;
use crate::training::{Training, TrainingAction, Wizard};
use crate::typed_ahead::{put_back, take_after};
use crate::work::JobView;
use cytoscope_pipeline::user_folder;
use cytoscope_train::TrainConfig;
use eframe::egui;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Start options of the workbench.
#[derive(Debug, Clone, Default)]
pub struct WorkbenchOptions {
    /// Stacks that are opened when the window starts.
    pub files: Vec<PathBuf>,
    /// Executable that runs the engine process when called with `worker`. Without it nothing can be predicted.
    pub program: Option<PathBuf>,
    /// File of the settings. Without it they are not saved.
    pub settings_path: Option<PathBuf>,
    /// Path of the bundled sample stack; `None` if it is not installed.
    pub sample: Option<PathBuf>,
    /// Folder of the log files. Without it the log cannot be shown.
    pub log_folder: Option<PathBuf>,
    /// Training settings that the wizard starts from.
    pub train_config: TrainConfig,
}

/// The window: its documents, jobs, training and display, and what draws them.
pub struct Workbench {
    pub(crate) documents: Documents,
    pub(crate) jobs: Jobs,
    pub(crate) training: Training,
    pub(crate) corrections: Corrections,
    pub(crate) models: Models,
    pub(crate) batch: Batch,
    pub(crate) display: Display,
    /// State that the panels keep between frames.
    pub(crate) panels: Panels,
    /// Actions of this frame, applied at its end.
    actions: Actions,
    /// Carries out what touches a disk.
    pub(crate) disk: DiskExecutor,
    /// Connection to the installed shell, if it started the window.
    shell: Option<ShellLink>,
    wake: Wake,
}

impl Workbench {
    /// Creates the workbench, installs the theme and opens the files of `options`.
    pub fn new(ctx: &egui::Context, options: WorkbenchOptions) -> Self {
        let WorkbenchOptions { files, program, settings_path, sample, log_folder, train_config } = options;
        theme::install(ctx);
        let wake: Wake = {
            let ctx = ctx.clone();
            Arc::new(move || ctx.request_repaint())
        };
        // The engine process knows the user's own folder. Another one, such as a test's, must be passed to it.
        let home = settings_path.as_deref().and_then(Path::parent);
        let models = home.filter(|h| user_folder().as_deref() != Some(h)).map(|h| h.join("models"));
        let profiles = home.map(|home| home.join("machine-profiles.json"));
        let mut workbench = Self {
            documents: Documents::new(&wake, sample),
            jobs: Jobs::new(program.as_deref(), models, settings_path.as_deref(), &wake),
            training: Training::new(settings_path.as_deref(), train_config, &wake),
            corrections: Corrections::new(&wake),
            models: Models::new(settings_path.as_deref()),
            batch: Batch::default(),
            display: Display::new(ctx, settings_path, log_folder),
            panels: Panels::new(&wake),
            actions: Actions::default(),
            disk: DiskExecutor::new(&wake),
            shell: None,
            wake,
        };
        workbench.jobs.use_earlier_folder(workbench.display.settings().results_folder.clone());
        if let Some(path) = profiles {
            workbench.disk.queue(DiskEffect::ReadMachineProfiles { path });
        }
        workbench.open_paths(&files);
        workbench
    }

    /// Shared references to all states.
    pub(crate) fn state(&self) -> State<'_> {
        State {
            documents: &self.documents,
            jobs: &self.jobs,
            training: &self.training,
            corrections: &self.corrections,
            models: &self.models,
            batch: &self.batch,
            display: &self.display,
        }
    }

    /// The states for reading, and what drawing changes.
    fn split(&mut self) -> (State<'_>, &mut Panels, &mut Actions) {
        let state = State {
            documents: &self.documents,
            jobs: &self.jobs,
            training: &self.training,
            corrections: &self.corrections,
            models: &self.models,
            batch: &self.batch,
            display: &self.display,
        };
        (state, &mut self.panels, &mut self.actions)
    }

    /// Connects the window to the shell that started it.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn connect_shell(&mut self, input: Box<dyn Read + Send>, output: Box<dyn Write + Send>) -> std::io::Result<()> {
        self.shell = Some(ShellLink::new(input, output, Arc::clone(&self.wake))?);
        Ok(())
    }

    /// Uses the window's own file dialog, whether or not the desktop has one.
    pub fn use_own_file_dialog(&mut self) {
        self.documents.use_own_dialogs();
    }

    /// Returns the document that the views show; `None` if no stack is open.
    pub fn document(&self) -> Option<&Document> {
        self.documents.active()
    }

    /// Returns the document that the views show, for changes.
    pub fn document_mut(&mut self) -> Option<&mut Document> {
        self.documents.active_mut()
    }

    /// Returns the open stacks, in the order of the library.
    pub fn documents(&self) -> &[Document] {
        self.documents.all()
    }

    /// Opens files and the stacks in folders. A file that is already open becomes the active document.
    pub fn open_paths(&mut self, paths: &[PathBuf]) {
        self.apply(DocumentsAction::Open(paths.to_vec()));
    }

    /// Shows a label image as ground truth of the active document.
    pub fn compare_with(&mut self, path: &Path) {
        if let Some(document) = self.documents.active_id() {
            self.apply(DocumentsAction::OpenOverlay { document, role: Role::Truth, path: path.to_owned() });
        }
    }

    /// Whether nothing is being read, drawn or opened, so that the picture on screen is complete.
    pub fn is_settled(&self) -> bool {
        !self.documents.is_opening()
            && !self.disk.is_busy()
            && !self.display.records().is_busy()
            && !self.jobs.is_preparing_rerun()
            && !self.documents.loader().is_busy()
            && self.has_complete_views()
            && self.corrections.is_settled()
    }

    /// Whether the views showed everything in the last frame, or are hidden by a page.
    fn has_complete_views(&self) -> bool {
        self.documents.active().is_none() || self.display.task().is_page() || self.panels.views.is_settled()
    }

    /// Whether the slice view of this orientation shows the active document.
    pub fn shows(&self, orientation: Orientation) -> bool {
        self.document().is_some() && self.panels.views.view(orientation).has_picture()
    }

    /// Returns the jobs of this window, oldest first.
    pub fn jobs(&self) -> &[JobView] {
        self.jobs.all()
    }

    /// Number of running and queued jobs.
    pub fn active_jobs(&self) -> usize {
        self.jobs.active()
    }

    /// Number of queued and running predictions.
    pub fn waiting_predictions(&self) -> usize {
        self.jobs.waiting_predictions()
    }

    /// Process id of the engine process while it accepts jobs.
    pub fn engine_pid(&self) -> Option<u32> {
        match self.jobs.engine() {
            Some(cytoscope_worker::WorkerState::Ready { pid, .. }) => Some(pid),
            _ => None,
        }
    }

    /// Title of the window, which names the active document.
    pub fn title(&self) -> &str {
        self.display.title()
    }

    /// Returns the settings that are kept between sessions.
    pub fn settings(&self) -> &Settings {
        self.display.settings()
    }

    /// Corrections of all open documents.
    pub fn corrections(&self) -> &Corrections {
        &self.corrections
    }

    /// Returns the state of the training wizard.
    pub fn wizard(&self) -> &Wizard {
        self.training.wizard()
    }

    /// Whether a training run is active. Closing the window pauses it first.
    pub fn is_training(&self) -> bool {
        self.training.is_active()
    }

    /// Sets a folder or table as training data and checks it.
    pub fn train_on(&mut self, data: PathBuf) {
        self.apply(TrainingAction::TrainOn(data));
    }

    /// Reads a model file chosen as the start model.
    pub fn start_from_file(&mut self, path: PathBuf) {
        self.apply(TrainingAction::StartFromFile(path));
    }

    /// Exports the trained model.
    pub fn export_model(&mut self, format: TrainedModelFormat, to: PathBuf) {
        self.apply(TrainingAction::Export(format, to));
    }

    /// Saves a screenshot; images of the window are taken in the next frames.
    pub fn take_screenshot(&mut self, subject: ScreenshotSubject, path: PathBuf) {
        let document = self.documents.active_id();
        self.apply(Action::Chosen(FileRequest::Screenshot(subject, document), vec![path]));
    }

    /// Opens a stored run in the profiler: a trace or a report.
    pub fn open_run(&mut self, path: PathBuf) {
        self.apply(JobsAction::OpenRun(path));
    }

    /// Saves the performance profile of a run.
    pub fn save_profile(&mut self, format: ProfileFormat, run: RunId, path: PathBuf) {
        self.apply(Action::Chosen(FileRequest::Profile(format, run), vec![path]));
    }

    /// The displayed line profile as CSV.
    pub fn line_profile_csv(&self) -> Option<String> {
        line_profile_csv(self.state(), &self.panels.views)
    }

    /// Queues a command, as a menu item or shortcut does.
    pub fn send(&mut self, command: Command) {
        self.actions.command(command);
    }

    /// Pauses a training run before the window closes.
    pub(crate) fn pause_training(&mut self) {
        self.apply(TrainingAction::Pause);
    }

    /// State of quitting.
    pub(crate) fn quit_state(&self) -> QuitState {
        self.display.quit()
    }

    /// Sets the state of quitting.
    pub(crate) fn set_quit_state(&mut self, quit: QuitState) {
        self.display.set_quit(quit);
    }

    /// Collects what files, jobs, sessions and the shell have reported since the last frame.
    fn poll_all(&mut self, ctx: &egui::Context) {
        put_back(ctx, std::mem::take(&mut self.panels.typed_ahead));
        let dropped: Vec<PathBuf> = ctx.input(|i| i.raw.dropped_files.iter().filter_map(|f| f.path.clone()).collect());
        self.handle_dropped(dropped);
        self.disk.poll().into_iter().for_each(|event| self.handle_disk(event));
        let effects = self.documents.poll();
        self.carry_out(effects);
        let effects = self.jobs.poll(&self.documents);
        self.carry_out(effects);
        let effects = self.batch.poll(&self.jobs);
        self.carry_out(effects);
        self.documents.refresh_live();
        self.jobs.update_queue(self.documents.is_opening());
        let effects = self.training.poll(&self.jobs, &self.display);
        self.carry_out(effects);
        // Read before polling: whatever is done by now has its event in the channel.
        let busy = self.corrections.is_busy();
        let effects = self.corrections.poll();
        self.carry_out(effects);
        self.poll_shell(ctx);
        let (volume, profiler) = (self.panels.views.volume_rect(), self.panels.profiler.rect());
        let is_complete = !self.documents.loader().is_busy() && self.has_complete_views();
        let effects = self.display.poll(volume, profiler, is_complete);
        self.carry_out(effects);
        // Labels may be saved again with later edits.
        self.poll_quit(ctx, busy || self.corrections.is_busy());
        self.documents.play(ctx);
        self.shortcuts(ctx);
        let active = self.documents.active().map(|d| self.documents.title(d));
        let files = self.documents.paths().into_iter().chain(self.batch.files.iter().map(PathBuf::as_path));
        let names: Vec<&str> = files.filter_map(Path::to_str).chain(self.documents.names_in_files()).collect();
        self.display.update_title_and_fonts(active.as_deref(), &names);
    }

    /// Opens dropped files, or uses a single one as training data while the wizard is open. Provenance records are shown over
    /// any page.
    fn handle_dropped(&mut self, dropped: Vec<PathBuf>) {
        let (records, dropped) = split_records(&dropped);
        records.into_iter().for_each(|record| self.apply(DisplayAction::OpenRecord(record)));
        match (dropped.as_slice(), self.display.task()) {
            ([], _) => {}
            ([one], PanelTask::Train) => self.train_on(one.clone()),
            (_, PanelTask::Batch) => self.apply(BatchAction::Add(dropped)),
            _ => self.apply(DocumentsAction::Open(dropped)),
        }
    }

    /// Handles requests of the shell and reports the open files.
    fn poll_shell(&mut self, ctx: &egui::Context) {
        let Some(link) = &mut self.shell else { return };
        link.report_files(&self.documents.paths());
        for message in link.poll() {
            let effects = match message {
                FromShell::Request(request) => shell::handle_request(ctx, request),
                FromShell::Unreadable(why) => shell::unreadable(&why),
                // No question is asked: there may be no user to answer, and all corrections are in their journals.
                FromShell::Gone => {
                    self.set_quit_state(QuitState::Decided);
                    continue;
                }
            };
            self.carry_out(effects);
        }
    }

    /// Runs the commands whose keys were pressed. Those that are disabled say why.
    fn shortcuts(&mut self, ctx: &egui::Context) {
        let (state, panels, actions) = self.split();
        // A dialog that was opened in the last frame is not drawn yet.
        let is_opening = state.display.is_open(Dialog::Palette) || state.display.browser().is_some();
        let asks_removal = state.display.task() == PanelTask::Models && state.models.removal().is_some();
        let has_dialog = ctx.memory(|m| m.top_modal_layer().is_some());
        if has_dialog || is_opening || asks_removal || state.display.is_quitting() {
            return;
        }
        let typing = ctx.text_edit_focused();
        let focused = ctx.memory(|m| m.focused());
        let has_menu = egui::Popup::is_any_open(ctx);
        let drawing = pen(state, None).is_some();
        let has_page = state.display.task().is_page();
        let all = Command::ALL.into_iter();
        let keyed = all.flat_map(|c| c.shortcut().into_iter().chain(c.other_shortcut()).map(move |s| (c, s)));
        // Shortcuts with Shift first: those without it would consume them.
        let (shifted, plain): (Vec<_>, Vec<_>) = keyed.partition(|(_, s)| s.modifiers.shift);
        let mut refused = Effects::default();
        for (command, shortcut) in shifted.into_iter().chain(plain) {
            // While a text field has the focus, plain letters and undo belong to it.
            let undoes = matches!(command, Command::Correct(EditAction::Undo | EditAction::Redo));
            if typing && (shortcut.modifiers.is_none() || undoes) {
                continue;
            }
            // Letters that are typed on a page, beside its fields, are not meant for the views behind it.
            let is_for_views = command.changes_views() || matches!(command, Command::Tool(_) | Command::Correct(_));
            if has_page && is_for_views && shortcut.modifiers.is_none() {
                continue;
            }
            // While drawing, holding the space bar pans the view.
            if drawing && shortcut.logical_key == egui::Key::Space {
                continue;
            }
            // Space, Enter and Escape belong to the focused widget, and to an open menu.
            if is_shared_key(&shortcut) && (has_menu || focused.is_some_and(|id| !panels.views.is_view(id))) {
                continue;
            }
            let is_enabled = state.is_enabled(command);
            if is_enabled
                && command.opens_field()
                && let Some(typed) = take_after(ctx, &shortcut)
            {
                panels.typed_ahead.extend(typed);
                // A field behind the dialog would take what is typed until the dialog is drawn.
                ctx.memory_mut(|memory| focused.into_iter().for_each(|id| memory.surrender_focus(id)));
            }
            if (!is_enabled && is_shared_key(&shortcut)) || !ctx.input_mut(|i| i.consume_shortcut(&shortcut)) {
                continue;
            }
            if is_enabled {
                // An open menu would stay in front of a dialog, and take its keys.
                egui::Popup::close_all(ctx);
                actions.command(command);
            } else if let Some(reason) = state.reason_against_command(command) {
                let title = state.current_title(command);
                refused.disabled(format!("{} is not available", title.trim_end_matches('…')), reason);
            }
        }
        self.carry_out(refused);
    }

    /// Draws dialogs and notifications; `center` is the area of the views.
    fn show_dialogs(&mut self, ctx: &egui::Context, center: egui::Rect) {
        let (state, panels, actions) = self.split();
        let task = state.display.task();
        panels::empty::drop_hint(ctx, task);
        panels::palette::palette(ctx, state, &mut panels.palette, actions);
        panels::dialogs::dialogs(ctx, state, actions);
        // The record waits while the user chooses a folder.
        if state.display.browser().is_none() {
            record_dialog(ctx, state, actions);
        }
        browser_dialog(ctx, state.display.browser(), actions);
        screenshot_dialog(ctx, state, actions);
        // The question waits while the user chooses another folder.
        if let Some(question) = state.jobs.overwrite_question().filter(|_| state.display.browser().is_none()) {
            overwrite_dialog(ctx, question, state.jobs.similar_questions(), actions);
        }
        let choice = quit_dialog(ctx, state);
        let mut place = center;
        if task == PanelTask::Train {
            // Keeps notifications off the wizard's navigation buttons.
            place.max.y -= panels::train::FOOT;
        }
        state.display.notifications().show(ctx, place, actions);
        self.answer_quit(ctx, choice);
    }

    /// Applies the actions and commands of this frame.
    fn apply_actions(&mut self, ctx: &egui::Context) {
        let (changes, commands) = self.actions.take();
        if !changes.is_empty() || !commands.is_empty() {
            // Shows what has changed.
            ctx.request_repaint();
        }
        changes.into_iter().for_each(|action| self.apply(action));
        commands.into_iter().for_each(|command| self.execute(ctx, command));
        // What was polled or applied in this frame may have hidden the labels that are drawn.
        let can_draw = pen(self.state(), None).is_some() && !self.display.shows_line_profile();
        self.corrections.end_hidden_stroke(self.documents.active().filter(|_| can_draw));
        let effects = self.display.save_settings();
        self.carry_out(effects);
    }
}

/// Whether keys operate focused widgets and dialogs, besides being those of a command.
fn is_shared_key(shortcut: &egui::KeyboardShortcut) -> bool {
    let is_shared = matches!(shortcut.logical_key, egui::Key::Space | egui::Key::Enter | egui::Key::Escape);
    shortcut.modifiers.is_none() && is_shared
}

impl eframe::App for Workbench {
    fn logic(&mut self, ctx: &egui::Context, _frame: &mut eframe::Frame) {
        self.poll_all(ctx);
    }

    fn ui(&mut self, ui: &mut egui::Ui, frame: &mut eframe::Frame) {
        let ctx = ui.ctx().clone();
        self.documents.update_comparison();
        let (state, panels, actions) = self.split();
        let format = frame.wgpu_render_state().map(|s| s.target_format);
        panels.views.prepare_volume(state.settings().show_3d, format);
        let center = panels::show(ui, state, panels, actions);
        let effects = self.corrections.show_labels(&self.documents);
        self.carry_out(effects);
        self.show_dialogs(&ctx, center);
        theme::frame_focused_field(&ctx);
        self.apply_actions(&ctx);
    }

    fn on_exit(&mut self) {
        let effects = self.display.save_settings_now();
        self.carry_out(effects);
        for event in self.disk.finish() {
            // The window is closed, so a failure is only logged.
            if let DiskEvent::SettingsSaved(Err(reason)) = event {
                tracing::error!("Settings could not be saved: {reason}");
            }
        }
    }
}

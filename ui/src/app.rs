//! The workbench: open documents, running jobs, and the only place where commands change them.

use crate::command::Command;
use crate::compare::Compare;
use crate::correct::Corrections;
use crate::correct::tools::EditAction;
use crate::data::loader::{CACHE_BYTES, Loader};
use crate::data::plane::Orientation;
use crate::document::{Document, Role};
use crate::letters::FontFallback;
use crate::notifications::Notifications;
use crate::opener::{FileRequest, Opener, expand};
use crate::overwrite::OverwriteQuestion;
use crate::panels::{PanelTask, Panels};
use crate::queue::Queue;
use crate::quit::QuitState;
use crate::ruler::RulerState;
use crate::settings::Settings;
use crate::shell::ShellLink;
use crate::shots::Screenshots;
use crate::theme;
use crate::training::Wizard;
use crate::views::layout::Layout;
use crate::work::Work;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::user_folder;
use cytoscope_train::TrainConfig;
use eframe::egui::{self, Frame};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slices per second during playback.
const PLAY_RATE: f64 = 12.0;

/// Start options of the workbench.
#[derive(Debug, Clone, Default)]
pub struct WorkbenchOptions {
    /// Files to open.
    pub files: Vec<PathBuf>,
    /// Executable that runs the engine process when called with `worker`. Without it nothing can be predicted.
    pub program: Option<PathBuf>,
    /// File of the settings. Without it they are not saved.
    pub settings_path: Option<PathBuf>,
    /// Bundled sample stack.
    pub sample: Option<PathBuf>,
    /// Folder of the log files. Without it the log cannot be shown.
    pub log_folder: Option<PathBuf>,
    /// Default training configuration.
    pub train_config: TrainConfig,
}

/// State of the window.
pub struct Workbench {
    pub(crate) documents: Vec<Document>,
    pub(crate) active: Option<u64>,
    pub(crate) settings: Settings,
    pub(crate) loader: Loader,
    pub(crate) opener: Opener,
    pub(crate) work: Work,
    pub(crate) notifications: Notifications,
    pub(crate) compare: Compare,
    pub(crate) layout: Layout,
    pub(crate) panels: Panels,
    pub(crate) options: WorkbenchOptions,
    pub(crate) corrections: Corrections,
    pub(crate) shell: Option<ShellLink>,
    pub(crate) queue: Queue,
    pub(crate) ruler: RulerState,
    pub(crate) screenshots: Screenshots,
    pub(crate) wizard: Wizard,
    /// Requests a repaint; callable from any thread.
    pub(crate) wake: Arc<dyn Fn() + Send + Sync>,
    /// Commands sent in this frame, executed at its end.
    pub(crate) commands: Vec<Command>,
    /// Documents whose live prediction has new tiles since its planes were read.
    pub(crate) updated_live: BTreeSet<u64>,
    /// Object tables written by jobs of this window, with the record of each file.
    pub(crate) tables: BTreeMap<PathBuf, FileRecord>,
    /// Jobs that wait for the user's decision about overwriting files.
    pub(crate) overwrite: VecDeque<OverwriteQuestion>,
    /// State of the quit dialog.
    pub(crate) quit_state: QuitState,
    playing: Option<Instant>,
    /// Summary lines of the finished predictions of a running batch.
    pub(crate) batch_done: Vec<String>,
    title: String,
    font_fallback: FontFallback,
    saved: Settings,
    saved_at: Instant,
}

impl Workbench {
    /// Creates the workbench, installs the theme and opens the files of `options`.
    pub fn new(ctx: &egui::Context, options: WorkbenchOptions) -> Self {
        theme::install(ctx);
        let settings = options.settings_path.as_deref().map(Settings::load).unwrap_or_default();
        ctx.set_theme(settings.theme.preference());
        let wake = {
            let ctx = ctx.clone();
            Arc::new(move || ctx.request_repaint()) as Arc<dyn Fn() + Send + Sync>
        };
        // The engine process knows the user's own folder. Another one, such as a test's, must be passed to it.
        let home = options.settings_path.as_deref().and_then(Path::parent);
        let models = home.filter(|h| user_folder().as_deref() != Some(h)).map(|h| h.join("models"));
        let (for_loader, for_compare) = (Arc::clone(&wake), Arc::clone(&wake));
        let mut workbench = Self {
            documents: Vec::new(),
            active: None,
            loader: Loader::new(CACHE_BYTES, move || for_loader()),
            opener: Opener::new(Arc::clone(&wake)),
            work: Work::new(options.program.as_deref(), models, Arc::clone(&wake)),
            wizard: Wizard::new(options.settings_path.as_deref(), options.train_config.clone(), &wake),
            corrections: Corrections::default(),
            shell: None,
            queue: Queue::new(options.settings_path.as_deref()),
            ruler: RulerState::default(),
            screenshots: Screenshots::default(),
            wake,
            notifications: Notifications::default(),
            compare: Compare::new(move || for_compare()),
            layout: Layout::default(),
            panels: Panels::default(),
            commands: Vec::new(),
            updated_live: BTreeSet::new(),
            tables: BTreeMap::new(),
            overwrite: VecDeque::new(),
            quit_state: QuitState::No,
            playing: None,
            batch_done: Vec::new(),
            title: String::new(),
            font_fallback: FontFallback::default(),
            saved: settings.clone(),
            saved_at: Instant::now(),
            settings,
            options,
        };
        let files = workbench.options.files.clone();
        workbench.open_paths(&files);
        workbench
    }

    /// The active document.
    pub fn document(&self) -> Option<&Document> {
        self.documents.iter().find(|d| Some(d.id) == self.active)
    }

    /// The active document.
    pub fn document_mut(&mut self) -> Option<&mut Document> {
        self.documents.iter_mut().find(|d| Some(d.id) == self.active)
    }

    /// The document with this id.
    pub(crate) fn find(&mut self, id: u64) -> Option<&mut Document> {
        self.documents.iter_mut().find(|d| d.id == id)
    }

    /// Opens files and the stacks in folders. A file that is already open becomes the active document.
    pub fn open_paths(&mut self, paths: &[PathBuf]) {
        for path in expand(paths) {
            let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
            if let Some(open) = self.documents.iter().find(|d| d.path == absolute) {
                self.active = Some(open.id);
                continue;
            }
            // The settings hold axes that were valid when they were set; if edited by hand, the file's may be used.
            let axes = self.settings.axes_of(&absolute).and_then(|a| a.parse().ok());
            self.opener.open(absolute, axes);
        }
    }

    /// Shows a label image as ground truth of the active document.
    pub fn compare_with(&mut self, path: &Path) {
        if let Some(at) = self.documents.iter().position(|d| Some(d.id) == self.active) {
            self.opener.overlay(&self.documents[at], Role::Truth, path.to_owned());
        }
    }

    /// Whether nothing is being read, drawn or opened, so that the picture on screen is complete.
    pub fn is_settled(&self) -> bool {
        self.opener.in_progress == 0
            && !self.loader.is_busy()
            && self.layout.is_settled()
            && self.corrections.is_settled()
    }

    /// Whether the slice view of this orientation shows the active document.
    pub fn shows(&self, orientation: Orientation) -> bool {
        self.document().is_some() && self.layout.view(orientation).has_picture()
    }

    /// Every open stack.
    pub fn documents(&self) -> &[Document] {
        &self.documents
    }

    /// Jobs, oldest first.
    pub fn jobs(&self) -> &[crate::work::JobView] {
        &self.work.jobs
    }

    /// Number of running and queued jobs.
    pub fn active_jobs(&self) -> usize {
        self.work.active()
    }

    /// Title of the window, which names the active document.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The saved settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Process id of the engine process while it accepts jobs.
    pub fn engine_pid(&self) -> Option<u32> {
        match self.work.state() {
            Some(cytoscope_worker::WorkerState::Ready { pid, .. }) => Some(pid),
            _ => None,
        }
    }

    /// Queues a command, as a menu item or shortcut does.
    pub fn send(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// Whether a command is enabled now.
    pub(crate) fn is_enabled(&self, command: Command) -> bool {
        let document = self.document();
        let has = |role| document.is_some_and(|d| d.of_role(role).is_some());
        match command {
            Command::OpenSample => self.options.sample.is_some(),
            Command::ShowLog => self.options.log_folder.is_some(),
            Command::OpenLabels
            | Command::OpenTruth
            | Command::Close
            | Command::Fit
            | Command::AutoContrast
            | Command::ToggleCrosshair
            | Command::ToggleScaleBar
            | Command::ToggleRuler
            | Command::Screenshot => document.is_some(),
            Command::Predict => document.is_some_and(|d| self.work.of_document(d.id).is_none()) && self.can_predict(),
            Command::PredictAll => self.documents.len() > 1 && self.can_predict(),
            Command::Cancel => self.work.active() > 0,
            Command::NextSlice | Command::PreviousSlice | Command::Play => document.is_some_and(Document::is_3d),
            Command::NextTime | Command::PreviousTime => document.is_some_and(|d| d.extents.times > 1),
            Command::ToggleLabels | Command::NextLabelStyle => has(Role::Labels) || has(Role::Truth),
            Command::ToggleMap => has(Role::Map),
            Command::ToggleSwipe => document.is_some_and(|d| !d.overlays.is_empty()),
            Command::SaveTable => document.is_some_and(|d| d.results.is_some()),
            Command::Measure => self.can_measure(),
            Command::Tool(_) => self.correction().is_some() && self.panels.task == PanelTask::Correct,
            Command::Correct(action) => self.can_run_action(action),
            _ => true,
        }
    }

    fn can_predict(&self) -> bool {
        self.options.program.is_some() && self.work.models.iter().any(|m| m.problem.is_none())
    }

    fn poll_all(&mut self, ctx: &egui::Context) {
        let dropped: Vec<PathBuf> = ctx.input(|i| i.raw.dropped_files.iter().filter_map(|f| f.path.clone()).collect());
        if !dropped.is_empty() {
            self.open_dropped(&dropped);
        }
        for opened in self.opener.poll() {
            self.handle_opened(opened);
        }
        for outcome in self.work.poll() {
            self.handle_outcome(outcome);
        }
        self.notify_batch();
        self.refresh_live();
        self.poll_queue();
        self.poll_training(ctx);
        // Read before polling: whatever is done by now has its event in the channel.
        let busy = self.corrections.is_busy();
        self.poll_corrections();
        self.poll_shell(ctx);
        self.poll_pictures(ctx);
        self.poll_quit(ctx, busy);
        self.play(ctx);
        self.shortcuts(ctx);
        let title = self.document().map_or_else(|| "Cytoscope".to_owned(), |d| format!("{} – Cytoscope", d.name));
        if self.title != title {
            ctx.send_viewport_cmd(egui::ViewportCommand::Title(title.clone()));
            self.title = title;
        }
        let names = self.documents.iter().map(|d| d.path.as_path());
        self.font_fallback.watch(ctx, names.chain(self.settings.recent.iter().map(PathBuf::as_path)));
    }

    /// Opens dropped files, or uses a single one as training data while the wizard is open.
    fn open_dropped(&mut self, dropped: &[PathBuf]) {
        match dropped {
            [one] if self.panels.task == PanelTask::Train => self.train_on(one.clone()),
            _ => self.open_paths(dropped),
        }
    }

    fn play(&mut self, ctx: &egui::Context) {
        let Some(last) = self.playing else { return };
        let pause = Duration::from_secs_f64(1.0 / PLAY_RATE);
        if last.elapsed() >= pause && !self.loader.is_busy() {
            self.playing = Some(Instant::now());
            if let Some(document) = self.document_mut() {
                let n = document.extents.zyx[0].max(1);
                document.cursor[0] = (document.cursor[0] + 1) % n;
            }
        }
        ctx.request_repaint_after(pause);
    }

    /// Whether playback is running.
    pub(crate) fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    fn shortcuts(&mut self, ctx: &egui::Context) {
        if self.panels.palette.is_open() || self.is_quitting() {
            return;
        }
        let typing = ctx.text_edit_focused();
        let focused = ctx.memory(|m| m.focused());
        let drawing = self.pen().is_some();
        let all = Command::ALL.into_iter();
        let keyed = all.flat_map(|c| c.shortcut().into_iter().chain(c.other_shortcut()).map(move |s| (c, s)));
        // Shortcuts with Shift first: those without it would consume them.
        let (shifted, plain): (Vec<_>, Vec<_>) = keyed.partition(|(_, s)| s.modifiers.shift);
        for (command, shortcut) in shifted.into_iter().chain(plain) {
            // While a text field has the focus, plain letters and undo belong to it.
            let undoes = matches!(command, Command::Correct(EditAction::Undo | EditAction::Redo));
            if typing && (shortcut.modifiers.is_none() || undoes) {
                continue;
            }
            // While drawing, holding the space bar pans the view.
            if drawing && shortcut.logical_key == egui::Key::Space {
                continue;
            }
            // Space, Enter and Escape belong to the focused widget.
            let presses = shortcut.modifiers.is_none()
                && matches!(shortcut.logical_key, egui::Key::Space | egui::Key::Enter | egui::Key::Escape);
            if presses && focused.is_some_and(|id| !self.layout.is_view(id)) {
                continue;
            }
            if self.is_enabled(command) && ctx.input_mut(|i| i.consume_shortcut(&shortcut)) {
                self.commands.push(command);
            }
        }
    }

    fn execute_commands(&mut self, ctx: &egui::Context) {
        for command in std::mem::take(&mut self.commands) {
            self.execute(ctx, command);
        }
        if self.settings != self.saved && self.saved_at.elapsed() > Duration::from_secs(1) {
            self.save_settings();
        }
    }

    fn save_settings(&mut self) {
        self.saved_at = Instant::now();
        let Some(path) = self.options.settings_path.clone() else { return };
        self.saved = self.settings.clone();
        if let Err(error) = self.settings.save(&path) {
            self.notifications.error("Settings could not be saved", error.to_string());
        }
    }

    fn execute(&mut self, ctx: &egui::Context, command: Command) {
        let folder = self.document().and_then(|d| d.path.parent().map(Path::to_owned));
        let folder = folder.or_else(|| self.settings.recent.first().and_then(|p| p.parent().map(Path::to_owned)));
        let name = self.document().map(|d| d.name.clone()).unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default().to_owned();
        match command {
            Command::Open => self.opener.ask(FileRequest::Stacks, folder, String::new()),
            Command::OpenSample => {
                if let Some(sample) = self.options.sample.clone() {
                    self.open_paths(&[sample]);
                }
            }
            Command::OpenLabels | Command::OpenTruth => {
                if let Some(id) = self.active {
                    let ask =
                        if command == Command::OpenLabels { FileRequest::Labels(id) } else { FileRequest::Truth(id) };
                    self.opener.ask(ask, folder, String::new());
                }
            }
            Command::Close => self.close(),
            Command::Predict => {
                if let Some(id) = self.active {
                    self.start_prediction(id);
                }
            }
            Command::PredictAll => {
                let ids: Vec<u64> = self.documents.iter().map(|d| d.id).collect();
                ids.into_iter().for_each(|id| self.start_prediction(id));
            }
            Command::Cancel => {
                let running = self.work.running().or_else(|| self.work.jobs.iter().find(|j| !j.state.is_over()));
                if let Some(id) = running.map(|j| j.id) {
                    self.work.cancel(id);
                }
            }
            Command::NextSlice => self.with_document(|d| d.step(0, 1)),
            Command::PreviousSlice => self.with_document(|d| d.step(0, -1)),
            Command::NextTime => self.with_document(|d| d.step_time(1)),
            Command::PreviousTime => self.with_document(|d| d.step_time(-1)),
            Command::Play => self.playing = if self.playing.is_some() { None } else { Some(Instant::now()) },
            Command::Fit => {
                self.layout.reset_volume();
                self.with_document(|d| d.cameras = [None; 3]);
            }
            Command::AutoContrast => self.with_document(|d| {
                for channel in &mut d.channels {
                    if let Some(histogram) = &channel.histogram {
                        (channel.display.low, channel.display.high) = histogram.limits();
                    }
                }
            }),
            Command::ToggleLabels => self.with_document(|d| {
                let shown = d.overlays.iter().any(|o| o.is_labels() && o.visible);
                d.overlays.iter_mut().filter(|o| o.is_labels()).for_each(|o| o.visible = !shown);
            }),
            Command::NextLabelStyle => self.with_document(|d| {
                use crate::data::composite::LabelStyle::{Both, Fill, Outline};
                for overlay in d.overlays.iter_mut().filter(|o| o.is_labels()) {
                    overlay.labels.style = match overlay.labels.style {
                        Outline => Fill,
                        Fill => Both,
                        Both => Outline,
                    };
                }
            }),
            Command::ToggleMap => self.with_document(|d| {
                if let Some(map) = d.of_role_mut(Role::Map) {
                    map.visible = !map.visible;
                }
            }),
            Command::ToggleCrosshair => self.settings.show_crosshair = !self.settings.show_crosshair,
            Command::ToggleScaleBar => self.settings.show_scale_bar = !self.settings.show_scale_bar,
            Command::ToggleSwipe => self.layout.toggle_swipe(),
            Command::ToggleRuler => self.ruler.toggle(),
            Command::Screenshot => self.screenshots.open(),
            Command::SaveTable => self.opener.ask(FileRequest::Table, folder, format!("{stem}_objects.csv")),
            Command::Measure => self.measure_labels(),
            Command::ToggleLibrary => self.settings.show_library = !self.settings.show_library,
            Command::ToggleTasks => self.settings.show_tasks = !self.settings.show_tasks,
            Command::ToggleProfiler => self.settings.show_profiler = !self.settings.show_profiler,
            Command::Toggle3d => self.settings.show_3d = !self.settings.show_3d,
            Command::ResetLayout => {
                let recent = std::mem::take(&mut self.settings.recent);
                self.settings = Settings { recent, ..Settings::default() };
                self.layout = Layout::default();
                ctx.set_theme(self.settings.theme.preference());
            }
            Command::NextTheme => {
                use crate::theme::ThemeChoice::{Dark, Light, System};
                self.settings.theme = match self.settings.theme {
                    System => Light,
                    Light => Dark,
                    Dark => System,
                };
                ctx.set_theme(self.settings.theme.preference());
            }
            Command::Palette => self.panels.palette.open(),
            Command::Train => self.open_training(),
            Command::Shortcuts => self.panels.dialogs.shortcuts = true,
            Command::ShowLog => {
                if let Some(folder) = self.options.log_folder.clone() {
                    self.opener.show_folder(folder);
                }
            }
            Command::About => self.panels.dialogs.about = true,
            Command::Tool(tool) => self.select_tool(tool),
            Command::Correct(action) => self.run_action(action),
            Command::Quit => ctx.send_viewport_cmd(egui::ViewportCommand::Close),
        }
    }

    fn with_document(&mut self, change: impl FnOnce(&mut Document)) {
        if let Some(document) = self.document_mut() {
            change(document);
        }
    }

    fn close(&mut self) {
        let Some(at) = self.documents.iter().position(|d| Some(d.id) == self.active) else { return };
        let id = self.documents[at].id;
        self.close_corrections(id, "Corrections are kept");
        let gone = self.documents.remove(at);
        if let Some(job) = self.work.of_document(gone.id) {
            self.work.cancel(job.id);
        }
        self.loader.forget(gone.id);
        gone.overlays.iter().for_each(|o| self.loader.forget(o.source_id));
        self.layout.forget(std::iter::once(gone.id).chain(gone.overlays.iter().map(|o| o.source_id)));
        self.active = self.documents.get(at.min(self.documents.len().saturating_sub(1))).map(|d| d.id);
        self.playing = None;
    }
}

impl eframe::App for Workbench {
    fn logic(&mut self, ctx: &egui::Context, _frame: &mut eframe::Frame) {
        self.poll_all(ctx);
    }

    fn ui(&mut self, ui: &mut egui::Ui, frame: &mut eframe::Frame) {
        let ctx = ui.ctx().clone();
        if let Some(document) = self.documents.iter_mut().find(|d| Some(d.id) == self.active) {
            self.compare.update(document);
        }
        self.layout.prepare_volume(self.settings.show_3d, frame.wgpu_render_state().map(|s| s.target_format));
        self.top_bar(ui);
        self.queue_bar(ui);
        self.training_bar(ui);
        self.status_bar(ui);
        if self.settings.show_profiler {
            self.profiler_panel(ui);
        }
        let training = self.panels.task == PanelTask::Train;
        if self.settings.show_library && !self.documents.is_empty() && !training {
            self.library_panel(ui);
        }
        if training || (self.settings.show_tasks && !self.documents.is_empty()) {
            self.tasks_panel(ui);
        }
        let frame = Frame::new().fill(ui.visuals().panel_fill);
        let views = egui::CentralPanel::default().frame(frame).show(ui, |ui| {
            if training {
                self.training_page(ui);
            } else if self.documents.is_empty() {
                self.empty(ui);
            } else {
                self.center(ui);
            }
        });
        self.show_corrections();
        self.drop_hint(&ctx);
        self.palette(&ctx);
        self.dialogs(&ctx);
        self.screenshot_dialog(&ctx);
        self.overwrite_dialog(&ctx);
        self.quit_dialog(&ctx);
        let mut place = views.response.rect;
        if training {
            // Keeps notifications off the wizard's navigation buttons.
            place.max.y -= crate::panels::train::FOOT;
        }
        self.notifications.show(&ctx, place);
        self.execute_commands(&ctx);
    }

    fn on_exit(&mut self) {
        if self.settings != self.saved {
            self.save_settings();
        }
    }
}

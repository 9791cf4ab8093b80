//! State of the window: settings, panels, dialogs, tools of the views, notifications, and whether it is closing.

mod action;

pub(crate) use action::DisplayAction;

use crate::disk::DiskEffect;
use crate::effect::{Effects, ViewsEffect};
use crate::file_browser::{BrowserResult, FileBrowser, Visited};
use crate::font_fallback::FontFallback;
use crate::jobs::JobsAction;
use crate::line_profile::{LineProfileTool, ProfileLine};
use crate::notifications::{Level, Notifications};
use crate::provenance::{Records, ShownRecord};
use crate::quit::QuitState;
use crate::screenshots::Screenshots;
use crate::settings::{Settings, SettingsFile};
use crate::theme::ThemeChoice;
use crate::voxel_size::VoxelSizeDialog;
use crate::work::JobSubject;
use eframe::egui;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Settings are saved at most this often.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Tasks of the right panel, in workflow order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PanelTask {
    /// Predict and refine the segmentation.
    #[default]
    Predict,
    /// Correct labels by hand.
    Correct,
    /// View measured objects.
    Objects,
    /// Train a model.
    Train,
    /// List, test, measure, quantize, export and remove models.
    Models,
    /// Convert and score files.
    Batch,
}

impl PanelTask {
    /// Whether the task has a page in the center of the window instead of the views.
    pub(crate) fn is_page(self) -> bool {
        matches!(self, Self::Train | Self::Models | Self::Batch)
    }
}

/// A part of the window that can be hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The list of open and recent stacks.
    Library,
    /// The panel of the current task, such as predicting or correcting.
    Tasks,
    /// The panel of jobs and their profiles.
    Profiler,
    /// The 3-D view of the active document.
    Volume,
    /// The lines through the shared position in slice views.
    Crosshair,
    /// The bar of a round length in µm in each view.
    ScaleBar,
}

/// A dialog without its own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialog {
    /// Command palette.
    Palette,
    /// Keyboard shortcuts.
    Shortcuts,
    /// Version and license.
    About,
    /// Question whether to restore the default layout and settings.
    Reset,
    /// Question whether to close the active stack, which cancels its prediction.
    CloseStack,
}

/// The dialog that asks for the axes of a file.
pub(crate) struct AxesDialog {
    /// File that will be reopened with the axes.
    pub(crate) file: PathBuf,
    /// Number of the series that will be reopened, from 0.
    pub(crate) series: usize,
    /// The text typed so far.
    pub(crate) text: String,
}

/// Settings, panels, dialogs, tools of the views and notifications.
pub(crate) struct Display {
    settings: Settings,
    /// The settings as they were last saved.
    saved: Settings,
    saved_at: Instant,
    /// Whether that failed, so that the end of the window tries again.
    save_failed: bool,
    settings_file: Option<Arc<SettingsFile>>,
    /// Folder of the log files.
    log_folder: Option<PathBuf>,
    task: PanelTask,
    dialogs: BTreeSet<Dialog>,
    axes_dialog: Option<AxesDialog>,
    voxel_size_dialog: Option<VoxelSizeDialog>,
    /// Provenance records that are open or being read.
    records: Records,
    /// The window's own file dialog, if it is open.
    browser: Option<FileBrowser>,
    notifications: Notifications,
    reveal_object: bool,
    /// Position of the swipe line as a fraction of the view width; `None` if off.
    swipe: Option<f32>,
    line_profile: LineProfileTool,
    screenshots: Screenshots,
    quit: QuitState,
    title: String,
    fonts: FontFallback,
    ctx: egui::Context,
}

impl Display {
    /// Reads the settings and applies their theme.
    pub(crate) fn new(ctx: &egui::Context, settings_path: Option<PathBuf>, log_folder: Option<PathBuf>) -> Self {
        let (settings_file, settings) = settings_path.map(SettingsFile::read).unzip();
        let settings = settings.unwrap_or_default();
        ctx.set_theme(settings.theme.preference());
        Self {
            saved: settings.clone(),
            settings,
            saved_at: Instant::now(),
            save_failed: false,
            settings_file: settings_file.map(Arc::new),
            log_folder,
            task: PanelTask::default(),
            dialogs: BTreeSet::new(),
            axes_dialog: None,
            voxel_size_dialog: None,
            records: Records::new(ctx.clone()),
            browser: None,
            notifications: Notifications::default(),
            reveal_object: false,
            swipe: None,
            line_profile: LineProfileTool::default(),
            screenshots: Screenshots::default(),
            quit: QuitState::No,
            title: String::new(),
            fonts: FontFallback::default(),
            ctx: ctx.clone(),
        }
    }

    /// Current settings, including unsaved changes.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Folder of the log files.
    pub(crate) fn log_folder(&self) -> Option<&Path> {
        self.log_folder.as_deref()
    }

    /// Task of the right panel; it stays selected while the panel is hidden.
    pub(crate) fn task(&self) -> PanelTask {
        self.task
    }

    /// Whether this dialog is shown.
    pub(crate) fn is_open(&self, dialog: Dialog) -> bool {
        self.dialogs.contains(&dialog)
    }

    /// The dialog that asks for the axes of a file, if it is open.
    pub(crate) fn axes_dialog(&self) -> Option<&AxesDialog> {
        self.axes_dialog.as_ref()
    }

    /// The dialog that asks for the voxel size of a document, if it is open.
    pub(crate) fn voxel_size_dialog(&self) -> Option<&VoxelSizeDialog> {
        self.voxel_size_dialog.as_ref()
    }

    /// Provenance records that are open or being read.
    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    /// The window's own file dialog, if it is open.
    pub(crate) fn browser(&self) -> Option<&FileBrowser> {
        self.browser.as_ref()
    }

    /// Notifications that are shown, oldest first.
    pub(crate) fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    /// Whether the object table is to scroll to the selected row.
    pub(crate) fn reveals_object(&self) -> bool {
        self.reveal_object
    }

    /// Position of the swipe line as a fraction of the view width; `None` if off.
    pub(crate) fn swipe(&self) -> Option<f32> {
        self.swipe
    }

    /// Whether the line profile is active.
    pub(crate) fn shows_line_profile(&self) -> bool {
        self.line_profile.is_on()
    }

    /// The line of the line profile in a document.
    pub(crate) fn profile_line(&self, document: u64) -> Option<ProfileLine> {
        self.line_profile.line(document)
    }

    /// Choices of the dialog for screenshots, and the pending one.
    pub(crate) fn screenshots(&self) -> &Screenshots {
        &self.screenshots
    }

    /// State of quitting.
    pub(crate) fn quit(&self) -> QuitState {
        self.quit
    }

    /// Sets the state of quitting.
    pub(crate) fn set_quit(&mut self, quit: QuitState) {
        self.quit = quit;
    }

    /// Whether quitting is in progress.
    pub(crate) fn is_quitting(&self) -> bool {
        self.quit != QuitState::No
    }

    /// Title of the window.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Shows a notification; `about` is the job whose failure it reports.
    pub(crate) fn notify(&mut self, level: Level, title: String, details: String, about: Option<JobSubject>) {
        self.notifications.push(level, title, details, about);
    }

    /// Removes notifications about earlier failures of a job that is run again.
    pub(crate) fn remove_failures_of(&mut self, job: &JobSubject) {
        self.notifications.remove_failures_of(job);
    }

    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(&mut self, action: DisplayAction) -> Effects {
        let mut effects = Effects::default();
        match action {
            DisplayAction::Task(task) => self.task = task,
            DisplayAction::ShowStacks => self.show_stacks(),
            DisplayAction::ShowTraining => {
                self.settings.show_tasks = true;
                self.task = PanelTask::Train;
            }
            DisplayAction::Toggle(part) => self.toggle(part),
            DisplayAction::NextTheme => self.next_theme(),
            DisplayAction::Reset => self.reset(&mut effects),
            DisplayAction::Model(name) => self.settings.model = name,
            DisplayAction::InputChannels { model, channels } => {
                self.settings.channels_of_model.insert(model, channels);
            }
            DisplayAction::OutputOfModel { model, output } => self.settings.remember_output(model, output),
            DisplayAction::Device(device) => self.settings.device = device,
            DisplayAction::Precision(precision) => self.settings.precision = precision,
            DisplayAction::Performance(request) => self.settings.performance = request,
            DisplayAction::MemoryBudget(mib) => self.settings.memory_budget_mib = mib,
            DisplayAction::Threads(threads) => self.settings.threads = threads,
            DisplayAction::SmoothMeshes(smooth) => self.settings.smooth_meshes = smooth,
            DisplayAction::Outputs(outputs) => self.settings.outputs = outputs,
            DisplayAction::ResultFormat(format) => self.settings.result_format = format,
            DisplayAction::DatasetFolder(folder) => self.settings.dataset_folder = Some(folder),
            DisplayAction::ResultsFolder(folder) => self.settings.results_folder = folder,
            DisplayAction::AddRecentFile(path) => self.settings.add_recent(&path),
            DisplayAction::RememberAxes { file, axes } => self.settings.remember_axes(&file, axes.as_deref()),
            DisplayAction::RememberVoxelSize { file, voxel_size_um } => {
                self.settings.remember_voxel_size(&file, voxel_size_um);
            }
            DisplayAction::RememberSeries { file, series } => self.settings.remember_series(file, series),
            DisplayAction::AskAxes { file, series, text } => {
                // Another file that could not be opened does not replace what is being typed; its error stays on screen.
                self.axes_dialog.get_or_insert(AxesDialog { file, series, text });
            }
            DisplayAction::TypeAxes(text) => self.type_axes(text),
            DisplayAction::CloseAxes => self.axes_dialog = None,
            DisplayAction::AskVoxelSize { document, zyx } => {
                self.voxel_size_dialog = Some(VoxelSizeDialog { document, zyx });
            }
            DisplayAction::TypeVoxelSize(zyx) => {
                if let Some(dialog) = &mut self.voxel_size_dialog {
                    dialog.zyx = zyx;
                }
            }
            DisplayAction::CloseVoxelSize => self.voxel_size_dialog = None,
            DisplayAction::OpenRecord(path) => self.records.read(path, &mut effects),
            DisplayAction::AskRerunFolder => self.records.ask_folder(&mut effects),
            DisplayAction::RerunFolder(folder) => self.records.set_folder(folder),
            DisplayAction::CloseRecord => self.records.close_first(),
            DisplayAction::CloseAllRecords => self.records.close_all(),
            DisplayAction::Open(dialog) => _ = self.dialogs.insert(dialog),
            DisplayAction::Close(dialog) => _ = self.dialogs.remove(&dialog),
            DisplayAction::Browse(spec) => self.browser = Some(FileBrowser::open(*spec, &mut effects)),
            DisplayAction::Browser(action) => {
                let result = self.browser.as_mut().map(|browser| browser.apply(action, &mut effects));
                self.close_browser(result);
            }
            DisplayAction::CloseNotification(number) => self.notifications.close(number),
            DisplayAction::RevealObject(reveal) => self.reveal_object = reveal,
            DisplayAction::ToggleSwipe => self.swipe = if self.swipe.is_some() { None } else { Some(0.5) },
            DisplayAction::Swipe(fraction) => {
                if let Some(swipe) = &mut self.swipe {
                    *swipe = fraction;
                }
            }
            DisplayAction::ToggleLineProfile => self.line_profile.toggle(),
            DisplayAction::DrawLineProfile { document, events } => self.line_profile.draw(document, &events),
            DisplayAction::OpenScreenshotDialog => self.screenshots.open(),
            DisplayAction::ScreenshotChoices { subject, with_bar } => self.screenshots.choose(subject, with_bar),
            DisplayAction::CloseScreenshotDialog => self.screenshots.close(),
            DisplayAction::TakeScreenshot { subject, path } => {
                self.screenshots.take(subject, path);
                self.ctx.request_repaint();
            }
        }
        effects
    }

    /// Sets the text of the axes dialog, if it is open.
    fn type_axes(&mut self, text: String) {
        if let Some(dialog) = &mut self.axes_dialog {
            dialog.text = text;
        }
    }

    /// Leaves the panels that show no stack.
    fn show_stacks(&mut self) {
        if matches!(self.task, PanelTask::Models | PanelTask::Batch) {
            self.task = PanelTask::Predict;
        }
    }

    /// Switches from the theme of the system to light, dark, and back.
    fn next_theme(&mut self) {
        self.settings.theme = match self.settings.theme {
            ThemeChoice::System => ThemeChoice::Light,
            ThemeChoice::Light => ThemeChoice::Dark,
            ThemeChoice::Dark => ThemeChoice::System,
        };
        self.ctx.set_theme(self.settings.theme.preference());
    }

    /// Returns to the default choices and layout.
    fn reset(&mut self, effects: &mut Effects) {
        self.settings = self.settings.with_default_choices();
        self.swipe = None;
        self.ctx.set_theme(self.settings.theme.preference());
        effects.views(ViewsEffect::ResetLayout);
        effects.act(JobsAction::ResultsFolder(None));
        for action in [JobsAction::Tile(None), JobsAction::Blend(None), JobsAction::Overlap(None)] {
            effects.act(action);
        }
    }

    /// Handles what the window's own file dialog asked the disk for.
    pub(crate) fn visited(&mut self, visited: Visited) -> Effects {
        let mut effects = Effects::default();
        let result = self.browser.as_mut().map(|browser| browser.visited(visited, &mut effects));
        self.close_browser(result);
        effects
    }

    fn close_browser(&mut self, result: Option<BrowserResult>) {
        if matches!(result, Some(BrowserResult::Closed)) {
            self.browser = None;
        }
    }

    fn toggle(&mut self, part: Part) {
        let settings = &mut self.settings;
        let shown = match part {
            Part::Library => &mut settings.show_library,
            Part::Tasks => &mut settings.show_tasks,
            Part::Profiler => &mut settings.show_profiler,
            Part::Volume => &mut settings.show_3d,
            Part::Crosshair => &mut settings.show_crosshair,
            Part::ScaleBar => &mut settings.show_scale_bar,
        };
        *shown = !*shown;
    }

    /// Takes pending screenshots, removes old notifications and opens records that were read. The areas are those of the 3-D view
    /// and the profiler; `is_complete` says whether the views showed everything in the last frame.
    pub(crate) fn poll(&mut self, volume: egui::Rect, profiler: egui::Rect, is_complete: bool) -> Effects {
        self.notifications.expire(Instant::now());
        let mut effects = self.screenshots.poll(&self.ctx, volume, profiler, is_complete);
        self.records.poll(&mut effects);
        effects
    }

    /// Updates window title and fallback fonts: the title names the active document, the fonts have glyphs for these names,
    /// those of recent files, those in the file dialog and the provenance record that is shown.
    pub(crate) fn update_title_and_fonts(&mut self, active: Option<&str>, names: &[&str]) {
        let title = active.map_or_else(|| "Cytoscope".to_owned(), |name| format!("{name} – Cytoscope"));
        if self.title != title {
            self.ctx.send_viewport_cmd(egui::ViewportCommand::Title(title.clone()));
            self.title = title;
        }
        let recent = self.settings.recent.iter().filter_map(|path| path.to_str());
        let listed = self.browser.iter().flat_map(FileBrowser::names);
        let recorded = self.records.open().first().into_iter().flat_map(ShownRecord::texts);
        self.fonts.watch(&self.ctx, names.iter().copied().chain(recent).chain(listed).chain(recorded));
    }

    /// Saves the settings if they have changed, at most once in [`SAVE_INTERVAL`].
    pub(crate) fn save_settings(&mut self) -> Effects {
        let is_due = self.settings != self.saved && self.saved_at.elapsed() > SAVE_INTERVAL;
        if is_due { self.save_settings_now() } else { Effects::default() }
    }

    /// Saves the settings if they have changed, or if saving them failed.
    pub(crate) fn save_settings_now(&mut self) -> Effects {
        let mut effects = Effects::default();
        if self.settings != self.saved || self.save_failed {
            self.saved_at = Instant::now();
            if let Some(file) = self.settings_file.clone() {
                self.saved = self.settings.clone();
                effects.disk(DiskEffect::SaveSettings { settings: Box::new(self.settings.clone()), file });
            }
        }
        effects
    }

    /// Notifies the user if saving failed.
    pub(crate) fn settings_saved(&mut self, result: Result<(), String>) -> Effects {
        let mut effects = Effects::default();
        self.save_failed = result.is_err();
        if let Err(reason) = result {
            effects.error("Settings could not be saved", reason);
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Effect;
    use cytoscope_pipeline::OutputTensor;
    use cytoscope_volume::VoxelSize;

    #[test]
    fn settings_that_could_not_be_saved_are_saved_at_the_end_without_further_changes() {
        let mut display = Display::new(&egui::Context::default(), Some(PathBuf::from("/nothere/settings.json")), None);
        let saves = |effects: Effects| {
            effects.into_iter().any(|effect| matches!(effect, Effect::Disk(DiskEffect::SaveSettings { .. })))
        };
        let _ = display.apply(DisplayAction::Toggle(Part::Library));
        assert!(saves(display.save_settings_now()));
        assert!(!saves(display.save_settings_now()), "it is under way");
        let _ = display.settings_saved(Err("the disk is full".to_owned()));
        display.saved_at = Instant::now().checked_sub(2 * SAVE_INTERVAL).unwrap_or(display.saved_at);
        assert!(!saves(display.save_settings()), "the failure would be reported again and again");
        assert!(saves(display.save_settings_now()));
        let _ = display.settings_saved(Ok(()));
        assert!(!saves(display.save_settings_now()));
    }

    #[test]
    fn resetting_keeps_what_was_remembered_about_files_and_models() {
        let mut display = Display::new(&egui::Context::default(), None, None);
        let file = PathBuf::from("/data/series.czi");
        for action in [
            DisplayAction::AddRecentFile(file.clone()),
            DisplayAction::RememberAxes { file: file.clone(), axes: Some("TYX".to_owned()) },
            DisplayAction::RememberVoxelSize { file: file.clone(), voxel_size_um: VoxelSize::new_um(2.0, 1.0, 1.0) },
            DisplayAction::RememberSeries { file: file.clone(), series: 2 },
            DisplayAction::DatasetFolder("/data/dataset".into()),
            DisplayAction::ResultsFolder(Some("/data/results".into())),
            DisplayAction::InputChannels { model: "cells".to_owned(), channels: vec!["membrane".to_owned()] },
            DisplayAction::OutputOfModel { model: "cells".to_owned(), output: Some(OutputTensor::All) },
            DisplayAction::Toggle(Part::Library),
            DisplayAction::Model("cells".to_owned()),
            DisplayAction::Reset,
        ] {
            let _ = display.apply(action);
        }
        let settings = display.settings();
        assert!(settings.show_library && settings.model == Settings::default().model, "choices are reset");
        assert_eq!(settings.results_folder, None);
        assert_eq!((settings.axes_for(&file), settings.series_for(&file)), (Some("TYX"), 2));
        assert_eq!(settings.voxel_size_for(&file).z, Some(2.0));
        assert_eq!(settings.dataset_folder.as_deref(), Some(Path::new("/data/dataset")));
        assert_eq!((settings.recent.len(), settings.channels_of_model.len()), (1, 1));
        assert_eq!(settings.output_of_model.get("cells"), Some(&OutputTensor::All));
    }

    #[test]
    fn another_broken_file_does_not_replace_typed_axes() {
        let mut display = Display::new(&egui::Context::default(), None, None);
        let ask = |name: &str| DisplayAction::AskAxes { file: name.into(), series: 0, text: String::new() };
        for action in [ask("a.tif"), DisplayAction::TypeAxes("ZY".to_owned()), ask("b.tif")] {
            let _ = display.apply(action);
        }
        let shown = display.axes_dialog().map(|dialog| (dialog.file.clone(), dialog.text.as_str()));
        assert_eq!(shown, Some(("a.tif".into(), "ZY")));
    }
}

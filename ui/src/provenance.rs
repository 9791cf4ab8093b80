//! Provenance records: how a result was made, in the words of `cytoscope provenance`.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::document::{Document, Overlay, Role, file_name};
use crate::documents::DocumentsAction;
use crate::effect::Effects;
use crate::engine_notes::failure_in_window;
use crate::jobs::JobsAction;
use crate::opener::FileRequest;
use crate::panels::{capitalized, heading, list_height, weak, whole_link, with_stop};
use crate::rerun;
use crate::state::State;
use crate::theme;
use cytoscope_pipeline::job_record::{is_record_name, read_record_of};
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::{AS_RECORDED, RecordLine, RecordPart, RecordSummary};
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Question that a record answers: text of the links, and title of the dialog.
const QUESTION: &str = "How was this made?";

/// Title of the notification about a record that cannot be opened.
const NOT_OPENED: &str = "The provenance record cannot be opened";

/// Maximum number of records that are open or being read.
const MAX_RECORDS: usize = 20;

/// Maximum number of lines of a part of a record that are shown. The command prints all.
const MAX_LINES: usize = 200;

/// Maximum length of a line in characters.
const MAX_CHARS: usize = 1000;

/// Width of the dialog in points, in windows that are wider.
const DIALOG_WIDTH: f32 = 680.0;

/// Width of a window beside the dialog in points.
const BESIDE_DIALOG: f32 = 60.0;

/// Greatest height of the text of a record in points.
const TEXT_HEIGHT: f32 = 520.0;

/// Height of a window above and below that text in points: title, folder, buttons and margins.
const AROUND_TEXT: f32 = 240.0;

/// A provenance record in words, as long as can be drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShownRecord {
    /// Path of the record.
    pub(crate) path: PathBuf,
    /// Command, and program with its version.
    title: String,
    /// The lines of each part that has any, in order.
    parts: Vec<(RecordPart, Vec<String>)>,
    /// Differences from the time when the record was written, one sentence each.
    differences: Vec<String>,
    /// The folder for the results of its job if that is run again, or why the window cannot run it.
    rerun_folder: Result<PathBuf, &'static str>,
}

impl ShownRecord {
    /// Reads the record of a result, or the record at a path itself, and compares inputs and model with it, which may take
    /// seconds.
    ///
    /// # Errors
    /// A message with the next step if there is no record, or it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let read = read_record_of(path);
        let (path, record) = read.map_err(|error| failure_in_window(&error.message(), error.next_step().as_deref()))?;
        let rerun_folder = rerun::default_folder(&path, &record);
        let mut summary = record.summary();
        summary.differences.extend(record.changed_outputs(&path));
        Ok(Self::new(path, summary, rerun_folder))
    }

    /// The record at a path in words, without what is too long to be drawn.
    fn new(path: PathBuf, summary: RecordSummary, rerun_folder: Result<PathBuf, &'static str>) -> Self {
        let mut parts: Vec<(RecordPart, Vec<String>)> = Vec::new();
        for RecordLine { part, text } in summary.lines {
            match parts.last_mut() {
                Some((last, lines)) if *last == part => lines.push(text),
                _ => parts.push((part, vec![text])),
            }
        }
        let parts = parts.into_iter().map(|(part, lines)| (part, limited(lines))).collect();
        Self { path, title: shortened(summary.title), parts, differences: limited(summary.differences), rerun_folder }
    }

    /// The texts that are shown, such as those with names of files.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        let lines = self.parts.iter().flat_map(|(_, lines)| lines.iter().map(String::as_str));
        lines.chain(self.differences.iter().map(String::as_str))
    }

    /// The record as the command prints it.
    fn to_text(&self) -> String {
        let lines = self.parts.iter().flat_map(|(_, lines)| lines).map(|line| format!("  {line}"));
        let notes = self.differences.iter().map(|difference| format!("  note: {difference}"));
        let unchanged = self.differences.is_empty().then(|| format!("  {AS_RECORDED}"));
        let all = std::iter::once(self.title.clone()).chain(lines).chain(notes).chain(unchanged);
        all.map(|line| line + "\n").collect()
    }
}

/// A result or record that was requested, and the record, or why it cannot be read.
type ReadRecord = (PathBuf, Result<ShownRecord, String>);

/// The records that are open, of which the first one is shown, and those that are being read. Each is read on a thread of its
/// own: looking at the inputs may take long, and must not delay other work on files.
pub(crate) struct Records {
    open: Vec<ShownRecord>,
    /// The results and records that were requested.
    reading: Vec<PathBuf>,
    /// The record for whose job another folder was asked for.
    asked: Option<PathBuf>,
    sender: Sender<ReadRecord>,
    receiver: Receiver<ReadRecord>,
    ctx: egui::Context,
}

impl Records {
    /// No records.
    pub(crate) fn new(ctx: egui::Context) -> Self {
        let (sender, receiver) = channel();
        Self { open: Vec::new(), reading: Vec::new(), asked: None, sender, receiver, ctx }
    }

    /// The records that are open; the first one is shown.
    pub(crate) fn open(&self) -> &[ShownRecord] {
        &self.open
    }

    /// Whether the record of a result, or the record at this path, is being read.
    pub(crate) fn is_reading(&self, path: &Path) -> bool {
        self.reading.iter().any(|reading| reading == path)
    }

    /// Whether a record is being read.
    pub(crate) fn is_busy(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Reads the record of a result, or the record at a path itself.
    pub(crate) fn read(&mut self, path: PathBuf, effects: &mut Effects) {
        if self.is_reading(&path) {
            return;
        }
        if self.open.len() + self.reading.len() >= MAX_RECORDS {
            let shown = path.display();
            let reason = format!("{MAX_RECORDS} records are open. Close some of them, then open {shown} again.");
            return effects.error(NOT_OPENED, reason);
        }
        let (sender, ctx, requested) = (self.sender.clone(), self.ctx.clone(), path.clone());
        let spawned = std::thread::Builder::new().name("record".to_owned()).spawn(move || {
            let record = ShownRecord::read(&requested);
            // Sending fails only if the window is closed.
            let _ = sender.send((requested, record));
            ctx.request_repaint();
        });
        match spawned {
            Ok(_) => self.reading.push(path),
            Err(error) => effects.error(NOT_OPENED, format!("{error}: close other programs and try again")),
        }
    }

    /// Opens the records that were read since the last call.
    pub(crate) fn poll(&mut self, effects: &mut Effects) {
        let read: Vec<ReadRecord> = self.receiver.try_iter().collect();
        for (path, record) in read {
            self.reading.retain(|reading| *reading != path);
            match record {
                Ok(record) => self.add(record),
                Err(reason) => effects.error(NOT_OPENED, reason),
            }
        }
    }

    /// Opens a record after those that are open. One that is open already is replaced.
    fn add(&mut self, record: ShownRecord) {
        match self.open.iter_mut().find(|open| open.path == record.path) {
            Some(open) => *open = record,
            None => self.open.push(record),
        }
    }

    /// Asks for the folder that the results of the shown record's job are written to if it is run again.
    pub(crate) fn ask_folder(&mut self, effects: &mut Effects) {
        let Some(record) = self.open.first() else { return };
        self.asked = Some(record.path.clone());
        let folder = record.path.parent().map(Path::to_owned);
        effects.act(DocumentsAction::Ask { request: FileRequest::RerunFolder, folder, name: String::new() });
    }

    /// Sets that folder for the record that it was asked for.
    pub(crate) fn set_folder(&mut self, folder: PathBuf) {
        let asked = self.asked.take();
        if let Some(record) = self.open.iter_mut().find(|record| asked.as_ref() == Some(&record.path)) {
            record.rerun_folder = Ok(folder);
        }
    }

    /// Closes the record that is shown, if there is one.
    pub(crate) fn close_first(&mut self) {
        if !self.open.is_empty() {
            self.open.remove(0);
        }
    }

    /// Closes all records.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
    }
}

/// Returns the lines that are shown of a part of a record, each no longer than can be drawn, and how many are left out.
fn limited(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    let left_out = (more > 0).then(|| format!("and {more} more"));
    lines.into_iter().map(shortened).chain(left_out).collect()
}

/// Returns the start of a text that is longer than [`MAX_CHARS`].
fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Returns the provenance records among files, and the other files.
pub(crate) fn split_records(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    paths.iter().cloned().partition(|path| is_record_name(path))
}

impl Document {
    /// The result whose provenance record says how an overlay was made; `None` if there is none, or the labels were corrected
    /// and saved to another file since.
    pub(crate) fn recorded_result<'a>(&self, overlay: &'a Overlay) -> Option<&'a Path> {
        let is_saved_elsewhere = overlay.role == Role::Labels && self.saved_labels.is_some();
        (overlay.has_record && !is_saved_elsewhere).then(|| containing_maps(&overlay.path))
    }
}

/// Draws the link that opens the record of a result, which is the stack or layer with this name.
pub(crate) fn record_link(ui: &mut Ui, state: State<'_>, name: &str, result: &Path, actions: &mut Actions) {
    if state.display.records().is_reading(result) {
        weak(ui, "Reading the record…");
        return;
    }
    let response = whole_link(ui, QUESTION);
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Link, true, format!("{QUESTION} {name}")));
    let hint = "Inputs, model, settings and device, from the provenance record beside the file";
    if response.on_hover_text(hint).clicked() {
        actions.send(DisplayAction::OpenRecord(result.to_owned()));
    }
}

/// Draws the record that is shown, if there is one.
pub(crate) fn record_dialog(ctx: &egui::Context, state: State<'_>, actions: &mut Actions) {
    let [record, others @ ..] = state.display.records().open() else { return };
    let response = theme::dialog(ctx, "provenance record").show(ctx, |ui| {
        ui.set_width(DIALOG_WIDTH.min(ctx.content_rect().width() - BESIDE_DIALOG));
        ui.heading(QUESTION);
        weak(ui, file_name(&record.path)).on_hover_text(record.path.display().to_string());
        ui.add_space(theme::GAP);
        ui.add(egui::Label::new(RichText::new(&record.title).strong()).wrap());
        let height = list_height(ctx, TEXT_HEIGHT, AROUND_TEXT);
        let area = egui::ScrollArea::vertical().id_salt("record").auto_shrink([false, true]).max_height(height);
        area.min_scrolled_height(height).show(ui, |ui| record_text(ui, record));
        ui.add_space(theme::GAP);
        folder_row(ui, record, actions);
        ui.add_space(theme::GAP);
        ui.horizontal(|ui| {
            let runs_again = rerun_button(ui, state, record, actions);
            if ui.button("Copy text").clicked() {
                ctx.copy_text(record.to_text());
            }
            if !others.is_empty() && ui.button("Close all").clicked() {
                actions.send(DisplayAction::CloseAllRecords);
            }
            let close = if others.is_empty() { "Close" } else { "Next record" };
            ui.button(close).clicked() || runs_again
        })
        .inner
    });
    if response.inner || response.should_close() {
        actions.send(DisplayAction::CloseRecord);
    }
}

/// Draws the folder that the results are written to if the job is run again, or why the window cannot run it.
fn folder_row(ui: &mut Ui, record: &ShownRecord, actions: &mut Actions) {
    let folder = match &record.rerun_folder {
        Ok(folder) => folder,
        Err(reason) => {
            weak(ui, *reason);
            return;
        }
    };
    ui.horizontal(|ui| {
        let hint = "Choose the folder that \"Run again\" writes to";
        if ui.button("Other folder…").on_hover_text(hint).clicked() {
            actions.send(DisplayAction::AskRerunFolder);
        }
        let text = format!("\"Run again\" writes to {}", folder.display());
        ui.add(egui::Label::new(RichText::new(text).weak().size(12.0)).truncate());
    });
}

/// Draws the button that runs the job of a record again. Returns whether it was clicked.
fn rerun_button(ui: &mut Ui, state: State<'_>, record: &ShownRecord, actions: &mut Actions) -> bool {
    let Ok(folder) = &record.rerun_folder else { return false };
    // The device of the recorded run is looked for among them.
    let missing = match state.jobs.devices() {
        _ if !state.jobs.has_engine() => Some("The engine is not running"),
        _ if state.jobs.tuning().is_some() => Some("Settings are being tuned, which other jobs would disturb"),
        [] => Some("The devices are not known yet"),
        _ => None,
    };
    let hint =
        "Run the job with its inputs, model, settings and device, and compare the results with the recorded ones";
    let button = ui.add_enabled(missing.is_none(), egui::Button::new("Run again")).on_hover_text(hint);
    let is_clicked = button.on_disabled_hover_text(missing.unwrap_or_default()).clicked();
    if is_clicked {
        actions.send(JobsAction::RunAgain { record: record.path.clone(), folder: folder.clone() });
    }
    is_clicked
}

/// Draws what differs now, and the lines of a record, each part below its name.
fn record_text(ui: &mut Ui, record: &ShownRecord) {
    if record.differences.is_empty() {
        let text = format!("{}  {}", icon::CHECK, with_stop(&capitalized(AS_RECORDED)));
        let text = RichText::new(text).color(theme::good(ui.visuals()));
        ui.add(egui::Label::new(text).wrap());
    }
    for difference in &record.differences {
        let text = format!("{}  {}", icon::WARNING, with_stop(&capitalized(difference)));
        let text = RichText::new(text).color(theme::warn(ui.visuals()));
        ui.add(egui::Label::new(text).wrap());
    }
    for (part, lines) in &record.parts {
        heading(ui, part_name(*part));
        for line in lines {
            ui.add(egui::Label::new(line).wrap());
        }
    }
}

/// Name of a part of a record, for display.
fn part_name(part: RecordPart) -> &'static str {
    match part {
        RecordPart::Settings => "Settings",
        RecordPart::Inputs => "Inputs",
        RecordPart::Model => "Model",
        RecordPart::Computation => "Computation",
        RecordPart::Outputs => "Results",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn record(path: &str, lines: Vec<RecordLine>, differences: &[&str]) -> ShownRecord {
        let differences = differences.iter().map(|text| (*text).to_owned()).collect();
        let summary = RecordSummary { title: "convert, cytoscope 1".to_owned(), lines, differences };
        ShownRecord::new(path.into(), summary, Ok("rerun".into()))
    }

    fn input(text: String) -> RecordLine {
        RecordLine { part: RecordPart::Inputs, text }
    }

    #[test]
    fn records_of_thousands_of_files_and_long_settings_are_shown_in_part() {
        let setting = RecordLine { part: RecordPart::Settings, text: "ä".repeat(MAX_CHARS + 1) };
        let inputs = (0..MAX_LINES + 3).map(|n| input(format!("read {n}.tif: 1 bytes")));
        let shown = record("r_provenance.json", std::iter::once(setting).chain(inputs).collect(), &[]);
        let texts: Vec<&str> = shown.texts().collect();
        // One setting, and a line about the inputs that are left out.
        assert_eq!(texts.len(), 1 + MAX_LINES + 1);
        assert_eq!((texts[0].chars().count(), texts[0].ends_with("ä…")), (MAX_CHARS + 1, true));
        assert_eq!((texts[1], texts.last()), ("read 0.tif: 1 bytes", Some(&"and 3 more")));
    }

    #[test]
    fn the_copied_text_is_that_of_the_command() {
        let line = || vec![input("read a.tif: 1 bytes, unchanged".to_owned())];
        let unchanged = record("r_provenance.json", line(), &[]).to_text();
        let expected = "convert, cytoscope 1\n  read a.tif: 1 bytes, unchanged\n  program, inputs and model are those of \
                        the record\n";
        assert_eq!(unchanged, expected);
        let changed = record("r_provenance.json", line(), &["the input a.tif has changed"]).to_text();
        assert!(changed.ends_with("\n  note: the input a.tif has changed\n"), "{changed}");
    }

    #[test]
    fn records_are_shown_one_after_the_other_and_once_each() {
        let mut records = Records::new(egui::Context::default());
        for (name, difference) in [("a", "old"), ("b", "b"), ("a", "new")] {
            records.add(record(&format!("{name}_provenance.json"), Vec::new(), &[difference]));
        }
        let shown = |records: &Records| -> Vec<String> {
            records.open().iter().flat_map(ShownRecord::texts).map(str::to_owned).collect()
        };
        assert_eq!(shown(&records), ["new", "b"]);
        records.close_first();
        assert_eq!(shown(&records), ["b"]);
        records.close_all();
        records.close_first();
        assert!(records.open().is_empty());
    }

    #[test]
    fn a_folder_is_set_for_the_record_that_it_was_asked_for() {
        let mut records = Records::new(egui::Context::default());
        for name in ["a", "b"] {
            records.add(record(&format!("{name}_provenance.json"), Vec::new(), &[]));
        }
        let folders = |records: &Records| -> Vec<PathBuf> {
            records.open().iter().flat_map(|record| record.rerun_folder.clone()).collect()
        };
        let mut effects = Effects::default();
        records.ask_folder(&mut effects);
        assert_eq!(effects.into_iter().count(), 1);
        records.set_folder("chosen".into());
        assert_eq!(folders(&records), ["chosen", "rerun"].map(PathBuf::from));
        // The dialog of the desktop may still be open when the record is closed.
        records.ask_folder(&mut Effects::default());
        records.close_first();
        records.set_folder("late".into());
        assert_eq!(folders(&records), [PathBuf::from("rerun")]);
    }

    #[test]
    fn no_more_records_are_read_than_can_be_open() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::new(egui::Context::default());
        let mut effects = Effects::default();
        for number in 0..=MAX_RECORDS {
            records.read(folder.path().join(format!("{number}_provenance.json")), &mut effects);
        }
        assert_eq!(effects.into_iter().count(), 1, "the last one is refused");
        // None of the files exists.
        let (mut failures, end) = (0, Instant::now() + Duration::from_secs(60));
        while records.is_busy() {
            assert!(Instant::now() < end, "the records were not read in time");
            let mut effects = Effects::default();
            records.poll(&mut effects);
            failures += effects.into_iter().count();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((failures, records.open().len()), (MAX_RECORDS, 0));
    }

    #[test]
    fn a_missing_or_damaged_record_is_reported_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [("a_provenance.json", "{}"), ("b.tif", "no record beside it")] {
            std::fs::write(path(name), text).unwrap();
        }
        let reason = |name: &str| ShownRecord::read(&path(name)).unwrap_err();
        for (name, problem) in [
            ("a_provenance.json", "it lists no outputs.\nGive a _provenance.json"),
            ("b.tif", "no provenance record beside this result.\nGive the record"),
        ] {
            assert!(reason(name).contains(problem), "{}", reason(name));
        }
        let (records, others) = split_records(&["a_provenance.json", "b.tif"].map(PathBuf::from));
        assert_eq!((records, others), (vec![PathBuf::from("a_provenance.json")], vec![PathBuf::from("b.tif")]));
    }
}

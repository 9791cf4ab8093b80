//! Predictions asked for and not done: kept in a file, so that a queue goes on after the window was closed or killed.
//!
//! Each window has a file of its own, locked while it lives. What lies in files that nobody holds was left by windows that have gone.

use crate::app::Workbench;
use crate::document::file_name;
use crate::theme;
use crate::work::{JobView, Purpose};
use cytoscope_pipeline::PredictJob;
use cytoscope_pipeline::worker::JobId;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Folder of the files, beside the settings.
const FOLDER: &str = "queues";

/// Largest file that is read back.
const MAX_BYTES: u64 = 32 << 20;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// A prediction was asked for.
    Asked {
        /// Its number in this file.
        number: u64,
        /// What is to be done.
        job: Box<PredictJob>,
    },
    /// It is over: done, failed or cancelled.
    Over {
        /// Its number.
        number: u64,
    },
}

/// The predictions of a file that are not over, in their order. What cannot be read, as after a torn write, is left out.
fn unfinished(text: &str) -> Vec<PredictJob> {
    let mut asked: Vec<(u64, PredictJob)> = Vec::new();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(Entry::Asked { number, job }) => asked.push((number, *job)),
            Ok(Entry::Over { number }) => asked.retain(|(n, _)| *n != number),
            Err(_) => {}
        }
    }
    asked.into_iter().map(|(_, job)| job).collect()
}

/// A file that another window left, and holds no more; held by this one from now on.
fn take_left(path: &Path) -> Option<(Vec<PredictJob>, File)> {
    let file = File::open(path).ok()?;
    file.try_lock().ok()?;
    let mut bytes = Vec::new();
    (&file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some((unfinished(&String::from_utf8_lossy(&bytes)), file))
}

/// What the writer is told, in order.
enum Message {
    Write(Entry),
    /// What lies in these files is written down elsewhere now, or not wanted any more.
    Remove(Vec<(File, PathBuf)>),
}

/// Writes the lines as they come; the file begins with the first.
fn write(folder: &Path, messages: &Receiver<Message>) -> io::Result<()> {
    let mut file: Option<(File, PathBuf)> = None;
    let mut open = 0u64;
    while let Ok(message) = messages.recv() {
        let entry = match message {
            Message::Write(entry) => entry,
            Message::Remove(files) => {
                // One that cannot be removed is offered again, no more.
                files.into_iter().for_each(|(_held, path)| drop(std::fs::remove_file(path)));
                continue;
            }
        };
        // A path that is no text cannot be kept; the others can.
        let Ok(mut line) = serde_json::to_vec(&entry) else { continue };
        open = match entry {
            Entry::Asked { .. } => open + 1,
            Entry::Over { .. } => open.saturating_sub(1),
        };
        let (out, _) = match &mut file {
            Some(file) => file,
            None => file.insert(begin(folder)?),
        };
        line.push(b'\n');
        out.write_all(&line)?;
        out.sync_data()?;
        if open == 0 {
            // Nothing waits: nothing is to be found.
            out.set_len(0)?;
            out.rewind()?;
        }
    }
    let Some((file, path)) = file else { return Ok(()) };
    // By name: a process being started elsewhere in this one may still have the file, and the lock with it, for a moment.
    file.unlock()?;
    if open == 0 { std::fs::remove_file(path) } else { Ok(()) }
}

fn begin(folder: &Path) -> io::Result<(File, PathBuf)> {
    std::fs::create_dir_all(folder)?;
    for n in 0..1000 {
        let path = folder.join(format!("{}-{n}.jsonl", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                // Another window may have taken it for one that was left, in between: it is that one's then.
                if file.try_lock().is_ok() && path.exists() {
                    return Ok((file, path));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("there are too many queues"))
}

/// The queue of this window, and what others left.
#[derive(Default)]
pub struct Queue {
    writer: Option<(Sender<Message>, std::thread::JoinHandle<io::Result<()>>)>,
    /// Predictions of this window that are not over: the job, and its number in the file.
    open: Vec<(JobId, u64)>,
    next: u64,
    left: Vec<PredictJob>,
    left_in: Vec<(File, PathBuf)>,
    /// Those that go on once their stack is open, with their numbers in the file.
    to_start: Vec<(u64, PredictJob)>,
}

impl Queue {
    /// The queue beside these settings; without settings it is forgotten with the window.
    pub fn new(settings: Option<&Path>) -> Self {
        let Some(folder) = settings.and_then(Path::parent).map(|f| f.join(FOLDER)) else { return Self::default() };
        let mut queue = Self::default();
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "jsonl")) {
            if let Some((jobs, file)) = take_left(&path) {
                queue.left.extend(jobs);
                queue.left_in.push((file, path));
            }
        }
        let (sender, messages) = channel();
        let spawned = std::thread::Builder::new().name("queue".to_owned()).spawn(move || write(&folder, &messages));
        queue.writer = spawned.ok().map(|thread| (sender, thread));
        if queue.left.is_empty() {
            queue.forget_left();
        }
        queue
    }

    /// Stacks whose prediction another window did not finish.
    pub fn left(&self) -> impl Iterator<Item = &Path> {
        self.left.iter().flat_map(|job| job.inputs.iter().map(PathBuf::as_path))
    }

    /// Leaves them.
    pub fn forget_left(&mut self) {
        self.left.clear();
        let files = std::mem::take(&mut self.left_in);
        self.tell(Message::Remove(files));
    }

    fn tell(&mut self, message: Message) {
        if let Some((sender, _)) = &self.writer {
            // A writer that gave up (a full disk) is no reason not to predict.
            let _ = sender.send(message);
        }
    }

    fn put(&mut self, entry: Entry) {
        self.tell(Message::Write(entry));
    }

    /// Writes down a prediction that is wanted; gives its number.
    fn note(&mut self, job: &PredictJob) -> u64 {
        self.next += 1;
        self.put(Entry::Asked { number: self.next, job: Box::new(job.clone()) });
        self.next
    }

    /// Notes a prediction that was asked for.
    pub fn asked(&mut self, id: JobId, job: &PredictJob) {
        let number = self.note(job);
        self.open.push((id, number));
    }

    /// Takes over what was left: it is written down here before it is removed there.
    fn take_over(&mut self) -> Vec<PathBuf> {
        let jobs = std::mem::take(&mut self.left);
        let paths = jobs.iter().flat_map(|j| j.inputs.clone()).collect();
        for job in jobs {
            let number = self.note(&job);
            self.to_start.push((number, job));
        }
        self.forget_left();
        paths
    }

    /// Notes those that are over.
    pub fn update(&mut self, jobs: &[JobView]) {
        let waits = |id: JobId| jobs.iter().any(|j| j.id == id && !j.state.is_over());
        let (open, over): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open).into_iter().partition(|(id, _)| waits(*id));
        self.open = open;
        for (_, number) in over {
            self.put(Entry::Over { number });
        }
    }

    /// The prediction that goes on with a stack that was opened.
    fn take_waiting(&mut self, path: &Path) -> Option<(u64, PredictJob)> {
        let at = self.to_start.iter().position(|(_, j)| j.inputs.iter().any(|i| i == path))?;
        Some(self.to_start.remove(at))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Workbench {
    /// Goes on with what an earlier window did not finish: the stacks are opened, and each is predicted as it was to be. What was done is kept.
    pub(crate) fn continue_queue(&mut self) {
        let paths = self.queue.take_over();
        self.open_paths(&paths);
        let open: Vec<(u64, PathBuf)> = self.documents.iter().map(|d| (d.id, d.path.clone())).collect();
        open.into_iter().for_each(|(id, path)| self.continue_prediction(id, &path));
    }

    /// Starts the prediction that a stack was opened for.
    pub(crate) fn continue_prediction(&mut self, document: u64, path: &Path) {
        let Some((number, job)) = self.queue.take_waiting(path) else { return };
        if self.work.of_document(document).is_some() {
            // It was asked for again meanwhile.
            self.queue.put(Entry::Over { number });
            return;
        }
        let title = format!("{} · {}", file_name(path), job.model);
        let id = self.work.predict(document, title, PredictJob { resume: true, ..job });
        self.queue.open.push((id, number));
    }

    /// Predicts, and notes it until it is over.
    pub(crate) fn predict_and_note(&mut self, document: u64, title: String, job: PredictJob) {
        let kept = job.clone();
        let id = self.work.predict(document, title, job);
        self.queue.asked(id, &kept);
    }

    /// Offers to go on with what an earlier window did not finish.
    pub(crate) fn queue_bar(&mut self, ui: &mut Ui) {
        let names: Vec<String> = self.queue.left().map(file_name).collect();
        if names.is_empty() {
            return;
        }
        let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(egui::Margin::symmetric(10, 6));
        egui::Panel::top("unfinished").frame(frame).show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.label(RichText::new(icon::QUEUE).size(16.0).color(theme::ACCENT));
                let text = match names.as_slice() {
                    [one] => format!("The prediction of {one} was not finished."),
                    all => format!("{} predictions were not finished.", all.len()),
                };
                ui.label(text).on_hover_text(names.join("\n"));
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    if ui.button("Forget").on_hover_text("The stacks and what was done of them are kept").clicked() {
                        self.queue.forget_left();
                    }
                    let button =
                        egui::Button::new(RichText::new("Continue").color(theme::ON_ACCENT)).fill(theme::ACCENT);
                    if ui.add(button).clicked() {
                        self.continue_queue();
                    }
                });
            });
        });
    }

    /// Notes the predictions that are over.
    pub(crate) fn poll_queue(&mut self) {
        self.queue.update(&self.work.jobs);
        if self.opener.under_way == 0 {
            // Stacks that did not open; they are offered again the next time.
            self.queue.to_start.clear();
        }
    }

    /// Predictions that wait or run.
    pub fn waiting_predictions(&self) -> usize {
        let waits = |j: &&JobView| !j.state.is_over() && matches!(j.purpose, Purpose::Predict { .. });
        self.work.jobs.iter().filter(waits).count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;

    fn job(input: &str) -> PredictJob {
        let text = serde_json::json!({"inputs": [input], "model": "nuclei", "out": "o", "device": "cpu"});
        serde_json::from_value(text).unwrap()
    }

    fn left(settings: &Path) -> Vec<PathBuf> {
        Queue::new(Some(settings)).left().map(Path::to_owned).collect()
    }

    #[test]
    fn what_is_not_over_is_found_by_the_next_window_alone() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let mut queue = Queue::new(Some(&settings));
        for (i, name) in ["/a.tif", "/b c.tif", "/d.tif"].iter().enumerate() {
            queue.asked(JobId(i as u64), &job(name));
        }
        queue.open.retain(|(id, _)| id.0 != 1);
        queue.put(Entry::Over { number: 2 });
        let files = || std::fs::read_dir(folder.path().join(FOLDER)).map_or(0, |f| f.count());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while files() == 0 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(left(&settings).is_empty(), "the file is held by a window that lives");
        drop(queue);
        let mut next = Queue::new(Some(&settings));
        assert_eq!(next.left().collect::<Vec<_>>(), [Path::new("/a.tif"), Path::new("/d.tif")]);
        next.forget_left();
        drop(next);
        assert!(left(&settings).is_empty());
        assert_eq!(files(), 0);
    }

    #[test]
    fn a_queue_that_came_to_its_end_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let mut queue = Queue::new(Some(&settings));
        queue.asked(JobId(7), &job("/a.tif"));
        queue.update(&[]);
        drop(queue);
        assert_eq!(std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[test]
    fn torn_and_strange_lines_are_left_out() {
        let line = |name: &str, number: u64| {
            serde_json::to_string(&Entry::Asked { number, job: Box::new(job(name)) }).unwrap()
        };
        let torn = line("/torn.tif", 3);
        let text = format!("{}\nnonsense\n{}\n{}", line("/a.tif", 1), line("/b.tif", 2), &torn[..torn.len() - 4]);
        let names: Vec<_> = unfinished(&text).into_iter().flat_map(|j| j.inputs).collect();
        assert_eq!(names, [PathBuf::from("/a.tif"), PathBuf::from("/b.tif")]);
        // Torn inside of a letter.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-0.jsonl");
        let whole = format!("{}\n{}", line("/a.tif", 1), line("/細胞.tif", 2));
        let cut = whole.find('胞').unwrap() + 1;
        std::fs::write(&path, &whole.as_bytes()[..cut]).unwrap();
        assert_eq!(take_left(&path).unwrap().0.len(), 1);
    }
}

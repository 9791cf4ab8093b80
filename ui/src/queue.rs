//! Persistent queue of unfinished predictions, so that they can continue after the window was closed or killed.
//!
//! Each window holds a lock on its own queue file. Unlocked files were left by windows that have ended.

use crate::document::GivenMetadata;
use crate::work::JobView;
use cytoscope_formats::SeriesChoice;
use cytoscope_pipeline::PredictJob;
use cytoscope_storage::lock::is_at;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use cytoscope_volume::VoxelSize;
use cytoscope_worker::JobId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Folder of the queue files, beside the settings.
const FOLDER: &str = "queues";

/// Maximum size of a queue file that is read.
const MAX_BYTES: u64 = 32 << 20;

/// A line of a queue file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// A prediction was requested.
    #[serde(rename = "asked")]
    Requested {
        /// Number of the entry in this file.
        number: u64,
        /// The prediction of one stack.
        job: Box<PredictJob>,
    },
    /// A prediction has ended: done, failed or canceled.
    #[serde(rename = "over")]
    Ended {
        /// Number of the entry.
        number: u64,
    },
}

/// A prediction as a queue file holds it.
struct StoredJob {
    job: PredictJob,
    /// Fields that only a later version knows.
    unknown: Map<String, Value>,
}

/// What an ended window left in its file.
struct Unfinished {
    /// The unfinished predictions, in order.
    jobs: Vec<StoredJob>,
    /// Lines that stay in the file, because only a later version can read them; empty if there are none.
    kept: String,
}

/// Reads what is unfinished in a file. Lines that are no JSON, as after a torn write, are logged and skipped.
fn unfinished(text: &str) -> Unfinished {
    let mut asked: Vec<(u64, StoredJob)> = Vec::new();
    let mut kept = String::new();
    let mut is_later = false;
    for line in text.lines() {
        let is_kept = match serde_json::from_str(line) {
            Ok(Entry::Requested { number, job }) => {
                asked.push((number, StoredJob { unknown: unknown_fields(line, &job), job: *job }));
                false
            }
            Ok(Entry::Ended { number }) => {
                let count = asked.len();
                asked.retain(|(n, _)| *n != number);
                // The prediction may be one of those that only a later version can read.
                asked.len() == count
            }
            Err(error) if serde_json::from_str::<Map<String, Value>>(line).is_ok() => {
                tracing::warn!(
                    "a line of an earlier queue cannot be read, but is kept, because a later version may have written it: \
                     {error}"
                );
                is_later = true;
                true
            }
            Err(error) => {
                tracing::warn!("a line of an earlier queue cannot be read and is skipped: {error}");
                false
            }
        };
        if is_kept {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let jobs = asked.into_iter().map(|(_, job)| job).collect();
    Unfinished { jobs, kept: if is_later { kept } else { String::new() } }
}

/// The fields of the prediction in a line that `job`, as read from it, does not have.
fn unknown_fields(line: &str, job: &PredictJob) -> Map<String, Value> {
    let stored: Value = serde_json::from_str(line).unwrap_or_default();
    let known = serde_json::to_value(job).unwrap_or_default();
    let fields = stored.pointer("/asked/job").and_then(Value::as_object).into_iter().flatten();
    let unknown = fields.filter(|(name, _)| known.get(name.as_str()).is_none());
    unknown.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The line of an entry, without its end, with further fields of the prediction.
fn line_of(entry: &Entry, unknown: Map<String, Value>) -> serde_json::Result<Vec<u8>> {
    if unknown.is_empty() {
        return serde_json::to_vec(entry);
    }
    let mut value = serde_json::to_value(entry)?;
    if let Some(job) = value.pointer_mut("/asked/job").and_then(Value::as_object_mut) {
        job.extend(unknown);
    }
    serde_json::to_vec(&value)
}

/// Opens, locks and reads a queue file that an ended window left; `None` if another window holds it or has removed it, or if
/// it cannot be read, which is logged.
fn lock_abandoned(path: &Path) -> Option<(Vec<StoredJob>, AbandonedFile)> {
    let lost = |error: &io::Error| tracing::warn!("an earlier queue cannot be read: {}: {error}", path.display());
    lock_opened(open_regular(path).inspect_err(lost).ok()?, path)
}

/// Locks and reads a queue file that was opened at a path, see [`lock_abandoned`].
fn lock_opened(file: File, path: &Path) -> Option<(Vec<StoredJob>, AbandonedFile)> {
    let lost = |reason: &dyn Display| tracing::warn!("an earlier queue cannot be read: {}: {reason}", path.display());
    // It fails if another window holds the lock.
    file.try_lock().ok()?;
    if !is_at(&file, path) {
        // Another window has taken over its predictions and removed or replaced it since it was opened.
        return None;
    }
    let mut bytes = Vec::new();
    if let Err(error) = (&file).take(MAX_BYTES + 1).read_to_end(&mut bytes) {
        lost(&error);
        return None;
    }
    if bytes.len() as u64 > MAX_BYTES {
        lost(&format!("it is larger than {MAX_BYTES} bytes"));
        return None;
    }
    let Unfinished { jobs, kept } = unfinished(&String::from_utf8_lossy(&bytes));
    let is_kept_whole = kept.as_bytes() == bytes;
    Some((jobs, AbandonedFile { file, path: path.to_owned(), kept, is_kept_whole }))
}

/// Messages to the writer thread.
enum Message {
    /// Write an entry, with fields of its prediction that only a later version knows.
    Write(Entry, Map<String, Value>),
    /// Remove these files: their entries were taken over or discarded.
    Remove(Vec<AbandonedFile>),
}

/// A locked queue file of an ended window.
struct AbandonedFile {
    file: File,
    path: PathBuf,
    /// Lines that stay in the file, see [`Unfinished::kept`].
    kept: String,
    /// Whether the file holds nothing else.
    is_kept_whole: bool,
}

impl AbandonedFile {
    /// Removes the file, or all but the lines that stay in it. If that fails, its predictions are only offered again.
    fn remove(self) {
        if self.kept.is_empty() {
            drop(std::fs::remove_file(&self.path));
        } else if !self.is_kept_whole
            && let Err(error) = atomic_write(&self.path, self.kept.as_bytes())
        {
            tracing::warn!("an earlier queue cannot be changed: {error}");
        }
    }
}

/// Writes entries as they arrive; the file is created for the first one.
fn write(folder: &Path, messages: &Receiver<Message>) -> io::Result<()> {
    let mut file: Option<(File, PathBuf)> = None;
    let mut open = BTreeSet::new();
    while let Ok(message) = messages.recv() {
        let (entry, unknown) = match message {
            Message::Write(entry, unknown) => (entry, unknown),
            Message::Remove(files) => {
                files.into_iter().for_each(AbandonedFile::remove);
                continue;
            }
        };
        // Paths that are not UTF-8 cannot be saved and are skipped.
        let Ok(mut line) = line_of(&entry, unknown) else { continue };
        match entry {
            Entry::Requested { number, .. } => _ = open.insert(number),
            // Its request could not be saved.
            Entry::Ended { number } if !open.remove(&number) => continue,
            Entry::Ended { .. } => {}
        }
        let (out, _) = match &mut file {
            Some(file) => file,
            None => file.insert(begin(folder)?),
        };
        line.push(b'\n');
        out.write_all(&line)?;
        out.sync_data()?;
        if open.is_empty() {
            // Nothing is unfinished, so the file is emptied.
            out.set_len(0)?;
            out.rewind()?;
        }
    }
    let Some((file, path)) = file else { return Ok(()) };
    // Unlocked explicitly: a child process being started may still hold the file, and with it the lock, for a moment.
    // Where there are no locks, there is nothing to unlock.
    let _ = file.unlock();
    if open.is_empty() { std::fs::remove_file(path) } else { Ok(()) }
}

fn begin(folder: &Path) -> io::Result<(File, PathBuf)> {
    std::fs::create_dir_all(folder)?;
    for n in 0..1000 {
        let path = folder.join(format!("{}-{n}.jsonl", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                // Another window may have locked the new file as abandoned in between; then it keeps it. Where there are no
                // locks, no window does.
                if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && is_at(&file, &path) {
                    return Ok((file, path));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many queue files"))
}

/// The queue of this window, and unfinished predictions of earlier windows.
#[derive(Default)]
pub struct Queue {
    writer: Option<(Sender<Message>, std::thread::JoinHandle<io::Result<()>>)>,
    /// Unfinished predictions of this window: job id and entry number.
    open: Vec<(JobId, u64)>,
    next: u64,
    abandoned: Vec<StoredJob>,
    abandoned_files: Vec<AbandonedFile>,
    /// Predictions that start once their stack is open, with their entry numbers.
    to_start: Vec<(u64, PredictJob)>,
}

impl Queue {
    /// Opens the queue beside the settings file. Without settings nothing is persisted.
    pub fn new(settings: Option<&Path>) -> Self {
        let Some(folder) = settings.and_then(Path::parent).map(|f| f.join(FOLDER)) else { return Self::default() };
        let mut queue = Self::default();
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => Some(entries),
            // The folder is created with the first queue.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("earlier queues cannot be listed: {}: {error}", folder.display());
                None
            }
        };
        let entries = entries.into_iter().flatten().flatten();
        for path in entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "jsonl")) {
            if let Some((jobs, file)) = lock_abandoned(&path) {
                queue.abandoned.extend(jobs);
                queue.abandoned_files.push(file);
            }
        }
        let (sender, messages) = channel();
        let spawned = std::thread::Builder::new().name("queue".to_owned()).spawn(move || write(&folder, &messages));
        let spawned = spawned.inspect_err(|e| tracing::warn!("the queue of predictions cannot be saved: {e}"));
        queue.writer = spawned.ok().map(|thread| (sender, thread));
        if queue.abandoned.is_empty() {
            queue.discard_abandoned();
        }
        queue
    }

    /// Stacks whose prediction an earlier window did not finish.
    pub fn abandoned(&self) -> impl Iterator<Item = &Path> {
        self.abandoned.iter().flat_map(|stored| stored.job.inputs.iter().map(PathBuf::as_path))
    }

    /// Discards the unfinished predictions of earlier windows.
    pub fn discard_abandoned(&mut self) {
        self.abandoned.clear();
        let files = std::mem::take(&mut self.abandoned_files);
        self.send(Message::Remove(files));
    }

    fn send(&mut self, message: Message) {
        if let Some((sender, _)) = &self.writer {
            // Predictions run even if the queue cannot be written, for example on a full disk.
            let _ = sender.send(message);
        }
    }

    fn write_entry(&mut self, entry: Entry) {
        self.send(Message::Write(entry, Map::new()));
    }

    /// Writes an entry for a prediction, with fields that only a later version knows, and returns its number.
    fn record(&mut self, job: &PredictJob, unknown: Map<String, Value>) -> u64 {
        self.next += 1;
        let entry = Entry::Requested { number: self.next, job: Box::new(job.clone()) };
        self.send(Message::Write(entry, unknown));
        self.next
    }

    /// Adds a requested prediction to the queue file.
    pub fn add(&mut self, id: JobId, job: &PredictJob) {
        let number = self.record(job, Map::new());
        self.open.push((id, number));
    }

    /// Takes over the predictions of earlier windows: they are written to this window's file before the old files are
    /// removed. Returns path, series and given metadata of each stack that has to be open for them.
    pub(crate) fn take_over(&mut self) -> Vec<(PathBuf, usize, GivenMetadata)> {
        let mut stacks = Vec::new();
        for StoredJob { job, unknown } in std::mem::take(&mut self.abandoned) {
            // A prediction of all series is continued with the document of the first one.
            let series = match job.series {
                SeriesChoice::Index(series) => series,
                SeriesChoice::Name(_) | SeriesChoice::All => 0,
            };
            let given = GivenMetadata {
                axes: job.axes.clone(),
                voxel_size_um: job.voxel_um.map_or(job.voxel_axes_um, |[z, y, x]| VoxelSize::new_um(z, y, x)),
            };
            stacks.extend(job.inputs.iter().map(|path| (path.clone(), series, given.clone())));
            let number = self.record(&job, unknown);
            self.to_start.push((number, job));
        }
        self.discard_abandoned();
        stacks
    }

    /// Records the predictions that have ended.
    pub fn update(&mut self, jobs: &[JobView]) {
        let waits = |id: JobId| jobs.iter().any(|j| j.id == id && !j.state.is_over());
        let (open, over): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open).into_iter().partition(|(id, _)| waits(*id));
        self.open = open;
        for (_, number) in over {
            self.write_entry(Entry::Ended { number });
        }
    }

    /// The prediction that waits for a stack to be opened, with its entry number.
    pub(crate) fn take_waiting(&mut self, path: &Path, series: usize) -> Option<(u64, PredictJob)> {
        let is_of = |job: &PredictJob| {
            let is_of_series = match job.series {
                SeriesChoice::Index(index) => index == series,
                SeriesChoice::Name(_) | SeriesChoice::All => series == 0,
            };
            is_of_series && job.inputs.iter().any(|i| i == path)
        };
        let at = self.to_start.iter().position(|(_, job)| is_of(job))?;
        Some(self.to_start.remove(at))
    }

    /// Records that a prediction that waited for its stack is running.
    pub(crate) fn started(&mut self, id: JobId, number: u64) {
        self.open.push((id, number));
    }

    /// Records that a prediction that waited for its stack is not needed.
    pub(crate) fn not_needed(&mut self, number: u64) {
        self.write_entry(Entry::Ended { number });
    }

    /// Gives up the predictions whose stacks did not open; they are offered again at the next start.
    pub(crate) fn give_up_waiting(&mut self) {
        self.to_start.clear();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            if let Ok(Err(error)) = thread.join() {
                tracing::warn!("the queue of predictions could not be saved: {error}");
            }
        }
        for abandoned in &self.abandoned_files {
            // Unlocked explicitly, as in `write`: the next window offers their predictions.
            let _ = abandoned.file.unlock();
        }
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

    fn abandoned_stacks(settings: &Path) -> Vec<PathBuf> {
        Queue::new(Some(settings)).abandoned().map(Path::to_owned).collect()
    }

    #[test]
    fn unfinished_predictions_are_found_only_by_the_next_window() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let mut queue = Queue::new(Some(&settings));
        for (i, name) in ["/a.tif", "/b c.tif", "/d.tif"].iter().enumerate() {
            queue.add(JobId(i as u64), &job(name));
        }
        queue.open.retain(|(id, _)| id.0 != 1);
        queue.write_entry(Entry::Ended { number: 2 });
        let files = || std::fs::read_dir(folder.path().join(FOLDER)).map_or(0, |f| f.count());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while files() == 0 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(abandoned_stacks(&settings).is_empty(), "an open window holds the file");
        drop(queue);
        let mut next = Queue::new(Some(&settings));
        assert_eq!(next.abandoned().collect::<Vec<_>>(), [Path::new("/a.tif"), Path::new("/d.tif")]);
        next.discard_abandoned();
        drop(next);
        assert!(abandoned_stacks(&settings).is_empty());
        assert_eq!(files(), 0);
    }

    #[test]
    fn predictions_continue_with_their_series_axes_and_voxel_size() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let path = PathBuf::from("/a.czi");
        let given =
            GivenMetadata { axes: Some("TYX".parse().unwrap()), voxel_size_um: VoxelSize::new_um(2.0, 0.5, 0.25) };
        let mut queue = Queue::new(Some(&settings));
        queue.add(JobId(0), &job("/a.czi"));
        let (axes, voxel_um) = (given.axes.clone(), Some([2.0, 0.5, 0.25]));
        let other = PredictJob { series: SeriesChoice::Index(2), axes, voxel_um, ..job("/a.czi") };
        queue.add(JobId(1), &other);
        drop(queue);
        let mut next = Queue::new(Some(&settings));
        assert_eq!(next.take_over(), [(path.clone(), 0, GivenMetadata::default()), (path.clone(), 2, given)]);
        assert!(next.take_waiting(&path, 1).is_none());
        for series in [2, 0] {
            let (_, waiting) = next.take_waiting(&path, series).unwrap();
            assert_eq!(waiting.series, SeriesChoice::Index(series));
        }
    }

    #[test]
    fn a_finished_queue_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let mut queue = Queue::new(Some(&settings));
        queue.add(JobId(7), &job("/a.tif"));
        queue.update(&[]);
        drop(queue);
        assert_eq!(std::fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn a_prediction_whose_path_cannot_be_saved_removes_no_other_one() {
        use std::os::unix::ffi::OsStringExt as _;
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let not_unicode = PathBuf::from(std::ffi::OsString::from_vec(b"/\xff.tif".to_vec()));
        let mut queue = Queue::new(Some(&settings));
        queue.add(JobId(0), &job("/a.tif"));
        queue.add(JobId(1), &PredictJob { inputs: vec![not_unicode], ..job("/b.tif") });
        // The engine refuses it at once.
        queue.open.retain(|(id, _)| id.0 != 1);
        queue.write_entry(Entry::Ended { number: 2 });
        drop(queue);
        assert_eq!(abandoned_stacks(&settings), [PathBuf::from("/a.tif")]);
    }

    #[test]
    fn torn_and_invalid_lines_are_skipped() {
        let line = |name: &str, number: u64| {
            serde_json::to_string(&Entry::Requested { number, job: Box::new(job(name)) }).unwrap()
        };
        let torn = line("/torn.tif", 3);
        let text = format!("{}\nnonsense\n{}\n{}", line("/a.tif", 1), line("/b.tif", 2), &torn[..torn.len() - 4]);
        let read = unfinished(&text);
        let names: Vec<_> = read.jobs.into_iter().flat_map(|stored| stored.job.inputs).collect();
        assert_eq!(names, [PathBuf::from("/a.tif"), PathBuf::from("/b.tif")]);
        assert_eq!(read.kept, "");
        // Cut inside a multi-byte character.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-0.jsonl");
        let whole = format!("{}\n{}", line("/a.tif", 1), line("/細胞.tif", 2));
        let cut = whole.find('胞').unwrap() + 1;
        std::fs::write(&path, &whole.as_bytes()[..cut]).unwrap();
        assert_eq!(lock_abandoned(&path).unwrap().0.len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_another_window_has_removed_or_replaced_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-0.jsonl");
        let entry = Entry::Requested { number: 1, job: Box::new(job("/a.tif")) };
        let write = || std::fs::write(&path, serde_json::to_string(&entry).unwrap()).unwrap();
        write();
        let opened = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(lock_opened(opened, &path).is_none());
        write();
        let opened = File::open(&path).unwrap();
        atomic_write(&path, b"{\"paused\": {}}\n").unwrap();
        assert!(lock_opened(opened, &path).is_none());
        assert!(lock_abandoned(&path).is_some_and(|(jobs, file)| jobs.is_empty() && file.is_kept_whole));
    }

    #[test]
    fn a_queue_that_is_too_large_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let path = folder.path().join(FOLDER).join("1-0.jsonl");
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        OpenOptions::new().write(true).create_new(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(abandoned_stacks(&settings).is_empty());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), MAX_BYTES + 1);
    }

    #[test]
    fn what_only_a_later_version_can_read_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("settings.json");
        let path = folder.path().join(FOLDER).join("1-0.jsonl");
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        let [asked, later, over] = [
            r#"{"asked": {"number": 1, "job": {"inputs": ["/a.tif"], "model": "nuclei", "out": "o", "later": 5}}}"#,
            r#"{"paused": {"number": 2, "job": {"inputs": ["/b.tif"]}}}"#,
            r#"{"over": {"number": 2}}"#,
        ];
        std::fs::write(&path, format!("{asked}\n{later}\n{over}\n")).unwrap();
        let mut queue = Queue::new(Some(&settings));
        assert_eq!(queue.abandoned().collect::<Vec<_>>(), [Path::new("/a.tif")]);
        assert_eq!(queue.take_over().len(), 1);
        drop(queue);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{later}\n{over}\n"));
        // The prediction is in the file of the window that took it over, with all its fields.
        let files = std::fs::read_dir(folder.path().join(FOLDER)).unwrap().map(|entry| entry.unwrap().path());
        let taken_over = files.filter(|file| *file != path).map(|file| std::fs::read_to_string(file).unwrap());
        let taken_over: Vec<Value> = taken_over.map(|text| serde_json::from_str(text.trim()).unwrap()).collect();
        assert_eq!(taken_over.len(), 1);
        assert_eq!(taken_over[0]["asked"]["job"]["later"], 5);
        // A later window has nothing to change in the file.
        let written = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        OpenOptions::new().write(true).open(&path).unwrap().set_modified(written).unwrap();
        Queue::new(Some(&settings)).discard_abandoned();
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
    }
}

//! The thread that owns a correction session: requests go in and events come out, so that no edit blocks the window.

use super::failure::failure_text;
use super::files::CorrectionFiles;
use cytoscope_corrections::{
    Brush, Change, CorrectionError, Edit, ExportedPair, KnownVoxels, LabelSnapshot, LabelVolume, LoadOptions,
    RawSource, Replay, SaveTicket, Saved, Session, SessionOptions, export_part,
};
use cytoscope_formats::OpenOptions;
use cytoscope_pipeline::Extents;
use cytoscope_volume::{Axes, VoxelSize};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time without requests after which the session counts as idle.
const IDLE: Duration = Duration::from_secs(20);

/// Maximum number of voxels of labels that are copied to set the stack's voxel size, if their file states none or
/// another.
const MAX_RESIZED_VOXELS: usize = 1 << 28;

/// Number of undo and redo names sent to the window.
const MAX_STEP_NAMES: usize = 12;

/// Labels that corrections start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// All voxels are background.
    Empty,
    /// The labels of a label image.
    File(PathBuf),
}

/// Parameters of a new session.
#[derive(Debug, Clone)]
pub struct SessionStart {
    /// Candidate labels to start from; the first one that matches the journal is used.
    pub bases: Vec<Base>,
    /// Number of voxels of the stack along Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Voxel size of the stack in µm.
    pub voxel_um: VoxelSize,
    /// Time point, if the stack has several. Label images with several time points are read at the same one.
    pub time: Option<usize>,
    /// Paths of the correction files.
    pub files: CorrectionFiles,
}

/// A training pair to export to a dataset.
#[derive(Debug, Clone)]
pub struct PairToExport {
    /// Path of the stack that is corrected.
    pub raw: PathBuf,
    /// Series of its file, from 0.
    pub series: usize,
    /// Axes set by the user, which replace those of the file.
    pub axes: Option<Axes>,
    /// Voxel size Z, Y, X in µm set by the user, which replaces that of the file.
    pub voxel_um: Option<[f64; 3]>,
    /// Channel, if the stack has several.
    pub channel: Option<usize>,
    /// Time point, if the stack has several.
    pub time: Option<usize>,
    /// Folder of the dataset that the pair is added to.
    pub dataset: PathBuf,
    /// Name of the pair in the dataset.
    pub name: String,
    /// Which labels are used; all other voxels get the ignore label.
    pub known_voxels: KnownVoxels,
    /// File of the labels that the corrections started from, if any; it need not exist.
    pub base: Option<PathBuf>,
}

/// What the window asks the thread of a session to do.
#[derive(Debug)]
pub enum SessionRequest {
    /// Starts a stroke at a point (voxel coordinates Z, Y, X).
    BeginStroke(Brush, [f64; 3]),
    /// Extends the stroke to a point.
    ExtendStroke([f64; 3]),
    /// Makes the stroke one undo step.
    EndStroke,
    /// Restores the labels from before the stroke.
    CancelStroke,
    /// Applies an edit to the labels.
    Apply(Edit),
    /// Undoes the last edit.
    Undo,
    /// Redoes the last undone step.
    Redo,
    /// Saves the labels to a file.
    Save(PathBuf),
    /// Writes the stack and its labels as a training pair.
    Export(PairToExport),
    /// Result of saving the labels.
    Written(PathBuf, Result<Saved, CorrectionError>),
    /// Closes the session after all edits are in the journal.
    Close,
}

/// Labels and undo steps at one moment.
#[derive(Debug, Clone)]
pub struct CorrectionState {
    /// Copy-on-write snapshot of the label volume.
    pub labels: LabelSnapshot,
    /// Names of the next steps to undo, next first, at most `MAX_STEP_NAMES`.
    pub undo: Vec<String>,
    /// Number of steps that can be undone.
    pub undo_count: usize,
    /// Names of the next steps to redo, next first, at most `MAX_STEP_NAMES`.
    pub redo: Vec<String>,
    /// Whether there are unsaved edits, including a stroke in progress.
    pub modified: bool,
    /// Number of labels in use.
    pub label_count: usize,
    /// A free label; 0 if there is none.
    pub free: u32,
    /// Why the journal could not be written to the disk, if so.
    pub sync_failure: Option<String>,
}

/// What a session tried. Messages name it as the subject of "failed".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionTask {
    /// To draw a stroke.
    Stroke,
    /// To apply another edit.
    Edit,
    /// To undo a step.
    Undo,
    /// To redo a step.
    Redo,
    /// To save the labels.
    Save,
    /// To record in the journal that the labels are saved.
    RecordSave,
    /// To export a training pair.
    Export,
}

impl fmt::Display for SessionTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stroke => "The stroke",
            Self::Edit => "The edit",
            Self::Undo => "Undoing",
            Self::Redo => "Redoing",
            Self::Save => "Saving",
            Self::RecordSave => "Recording the save",
            Self::Export => "Adding the pair",
        })
    }
}

/// What the thread of a session reports to the window.
#[derive(Debug)]
pub enum SessionEvent {
    /// The session is open; what was recovered from its journal.
    Opened(Replay),
    /// The journal belongs to other labels.
    OtherLabels(String),
    /// The session cannot be opened.
    OpenFailed(String),
    /// The labels or undo steps changed.
    State(Box<CorrectionState>),
    /// An edit was applied; what it changed.
    Edited(Change),
    /// A request failed: what was tried, and why.
    Failed(SessionTask, String),
    /// The labels were saved to this file.
    Saved(PathBuf),
    /// A file with other labels was renamed to this path before saving.
    MovedAside(PathBuf),
    /// A training pair was exported.
    Exported(Box<ExportedPair>),
}

/// The end of a session: receiving fails once its thread has released the journal.
pub struct SessionEnd(Receiver<()>);

/// A session on its own thread. Dropping it finishes all requests and closes the journal.
pub struct Corrector {
    requests: Sender<SessionRequest>,
    events: Receiver<SessionEvent>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    /// The end of this session, until the next session on its journal waits for it.
    end: Option<SessionEnd>,
}

impl Corrector {
    /// Opens a session; `wake` is called whenever there is an event. The journal is opened `after` the end of the
    /// previous session on it.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn open(
        start: SessionStart,
        after: Option<SessionEnd>,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<Self> {
        let (requests, receiver) = channel();
        let (events_out, events) = channel();
        // Nothing is sent: the end of the sender is the end of the thread.
        let (running, end) = channel();
        let waiting = Arc::new(AtomicUsize::new(1));
        let mut session_thread = SessionThread {
            requests_in: requests.clone(),
            events_out,
            wake,
            waiting: Arc::clone(&waiting),
            writing: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("corrections".to_owned()).spawn(move || {
            if let Some(SessionEnd(after)) = after {
                // It fails when the earlier session has ended, which is what is waited for.
                let _ = after.recv();
            }
            session_thread.work(&start, &receiver);
            drop(running);
        })?;
        Ok(Self { requests, events, waiting, thread: Some(thread), end: Some(SessionEnd(end)) })
    }

    /// Asks the session to finish all requests and to close the journal; returns at once. Events are sent until the end.
    pub fn close(&self) {
        // A thread that has ended has closed its session.
        let _ = self.requests.send(SessionRequest::Close);
    }

    /// Whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The end of the session, for the next session on its journal; `None` if one waits for it already.
    pub fn take_end(&mut self) -> Option<SessionEnd> {
        self.end.take()
    }

    /// Queues a request for the session's thread; returns at once.
    pub fn send(&self, request: SessionRequest) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // A thread that has ended has sent its reason.
        if self.requests.send(request).is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Events since the last call.
    pub fn poll(&self) -> Vec<SessionEvent> {
        self.events.try_iter().collect()
    }

    /// Whether any request is unfinished. Those of a thread that has ended, such as by a panic, will never be finished.
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && !self.has_ended()
    }
}

impl Drop for Corrector {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// State of the session thread.
struct SessionThread {
    requests_in: Sender<SessionRequest>,
    events_out: Sender<SessionEvent>,
    wake: Arc<dyn Fn() + Send + Sync>,
    waiting: Arc<AtomicUsize>,
    /// Threads that write files.
    writing: Vec<JoinHandle<()>>,
}

impl SessionThread {
    fn emit(&self, event: SessionEvent) {
        // Sending fails only if the window is closed.
        let _ = self.events_out.send(event);
    }

    fn done(&self, n: usize) {
        self.waiting.fetch_sub(n, Ordering::SeqCst);
        (self.wake)();
    }

    fn work(&mut self, start: &SessionStart, receiver: &Receiver<SessionRequest>) {
        let opened = open(start);
        let mut session = match opened {
            Ok((session, replay)) => {
                self.emit(SessionEvent::Opened(replay));
                session
            }
            Err(e) => {
                self.emit(match e {
                    CorrectionError::OtherBase { .. } => SessionEvent::OtherLabels(failure_text(&e)),
                    e => SessionEvent::OpenFailed(failure_text(&e)),
                });
                self.done(1);
                return;
            }
        };
        self.emit(SessionEvent::State(Box::new(state(&session))));
        self.done(1);
        let mut tidy = true;
        loop {
            let first = match receiver.recv_timeout(IDLE) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    // A long journal is compacted while the session is idle; if that fails, it stays long.
                    if tidy && !session.has_open_stroke() && session.needs_compaction() {
                        tidy = session.compact().is_ok();
                        self.emit(SessionEvent::State(Box::new(state(&session))));
                        (self.wake)();
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut requests = vec![first];
            requests.extend(receiver.try_iter());
            let n = requests.iter().filter(|r| !matches!(r, SessionRequest::Close)).count();
            let mut close = false;
            for request in requests {
                close |= matches!(request, SessionRequest::Close);
                if let Err((what, error)) = self.handle(&mut session, request) {
                    self.emit(SessionEvent::Failed(what, failure_text(&error)));
                }
            }
            self.emit(SessionEvent::State(Box::new(state(&session))));
            self.done(n);
            if close {
                break;
            }
        }
        for writing in self.writing.drain(..) {
            // Failures of writing are sent as events.
            let _ = writing.join();
        }
        // Saves that finished just before closing are recorded as well.
        for request in receiver.try_iter() {
            if let SessionRequest::Written(..) = request {
                // The journal still has the edits of labels that were not saved.
                if let Err((what, error)) = self.handle(&mut session, request) {
                    self.emit(SessionEvent::Failed(what, failure_text(&error)));
                }
            }
        }
        // Edits that may not be on the disk are written once more; if that fails, the last state has the reason.
        if session.sync_failure().is_some() {
            let _ = session.compact();
        }
        self.emit(SessionEvent::State(Box::new(state(&session))));
        // A journal that cannot be closed is recovered when the stack is opened again.
        let _ = session.close();
        (self.wake)();
    }

    fn handle(&mut self, session: &mut Session, request: SessionRequest) -> Result<(), (SessionTask, CorrectionError)> {
        let stroke = |e| (SessionTask::Stroke, e);
        match request {
            SessionRequest::BeginStroke(brush, at) => session.begin_stroke(brush, at).map(|_| ()).map_err(stroke),
            SessionRequest::ExtendStroke(to) => session.extend_stroke(to).map(|_| ()).map_err(stroke),
            SessionRequest::EndStroke => self.end_stroke(session).map_err(stroke),
            SessionRequest::CancelStroke => {
                session.cancel_stroke();
                Ok(())
            }
            SessionRequest::Apply(edit) => {
                self.end_stroke(session).map_err(stroke)?;
                let change = session.apply(&edit).map_err(|e| (SessionTask::Edit, e))?;
                self.emit(SessionEvent::Edited(change));
                Ok(())
            }
            SessionRequest::Undo => {
                self.end_stroke(session).map_err(stroke)?;
                session.undo().map(|_| ()).map_err(|e| (SessionTask::Undo, e))
            }
            SessionRequest::Redo => {
                self.end_stroke(session).map_err(stroke)?;
                session.redo().map(|_| ()).map_err(|e| (SessionTask::Redo, e))
            }
            SessionRequest::Save(path) => {
                self.end_or_report_stroke(session);
                let ticket = session.begin_save().map_err(|e| (SessionTask::Save, e))?;
                self.write(ticket, path);
                Ok(())
            }
            SessionRequest::Written(path, saved) => {
                let saved = saved.map_err(|e| (SessionTask::Save, e))?;
                let moved_to = saved.kept_aside().map(std::path::Path::to_owned);
                // The labels are saved, even if the journal cannot record it.
                let recorded = session.mark_saved(saved).map_err(|e| (SessionTask::RecordSave, e));
                self.emit(SessionEvent::Saved(path));
                moved_to.into_iter().for_each(|moved_to| self.emit(SessionEvent::MovedAside(moved_to)));
                recorded
            }
            SessionRequest::Export(pair) => {
                self.end_or_report_stroke(session);
                let ticket = session.begin_save().map_err(|e| (SessionTask::Export, e))?;
                self.export(ticket, pair);
                Ok(())
            }
            SessionRequest::Close => {
                self.end_or_report_stroke(session);
                Ok(())
            }
        }
    }

    /// Makes a stroke in progress a step, and reports what it changed.
    fn end_stroke(&self, session: &mut Session) -> Result<(), CorrectionError> {
        if let Some(change) = session.end_stroke()? {
            self.emit(SessionEvent::Edited(change));
        }
        Ok(())
    }

    /// Like [`Self::end_stroke`], before a request for all other edits, which goes on if the stroke is refused.
    fn end_or_report_stroke(&self, session: &mut Session) {
        if let Err(error) = self.end_stroke(session) {
            self.emit(SessionEvent::Failed(SessionTask::Stroke, failure_text(&error)));
        }
    }

    fn write(&mut self, ticket: SaveTicket, path: PathBuf) {
        let (requests_in, waiting) = (self.requests_in.clone(), Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::SeqCst);
        let spawned = std::thread::Builder::new().name("saving labels".to_owned()).spawn(move || {
            let saved = ticket.save(&path, &mut |_, _| ControlFlow::Continue(()));
            if requests_in.send(SessionRequest::Written(path, saved)).is_err() {
                waiting.fetch_sub(1, Ordering::SeqCst);
            }
        });
        self.track_writer(SessionTask::Save, spawned);
    }

    fn export(&mut self, ticket: SaveTicket, pair: PairToExport) {
        let (events_out, wake, waiting) = (self.events_out.clone(), Arc::clone(&self.wake), Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::SeqCst);
        let spawned = std::thread::Builder::new().name("adding a pair".to_owned()).spawn(move || {
            let raw = RawSource {
                path: &pair.raw,
                series: pair.series,
                axes: pair.axes.clone(),
                voxel_um: pair.voxel_um,
                channel: pair.channel,
                time: pair.time,
            };
            let base = pair.base.as_ref().filter(|path| pair.known_voxels != KnownVoxels::All && path.is_file());
            let base = base.map(|path| load_time(path, pair.time)).transpose();
            let exported = base.and_then(|base| {
                let base = base.as_ref().map(LabelVolume::labels);
                export_part(&raw, ticket.labels(), base, pair.known_voxels, &pair.dataset, &pair.name)
            });
            // If the receiver is gone, the window has closed, and the export is on disk.
            let _ = events_out.send(match exported {
                Ok(exported) => SessionEvent::Exported(Box::new(exported)),
                Err(e) => SessionEvent::Failed(SessionTask::Export, failure_text(&e)),
            });
            waiting.fetch_sub(1, Ordering::SeqCst);
            wake();
        });
        self.track_writer(SessionTask::Export, spawned);
    }

    fn track_writer(&mut self, what: SessionTask, spawned: std::io::Result<JoinHandle<()>>) {
        self.writing.retain(|w| !w.is_finished());
        match spawned {
            Ok(thread) => self.writing.push(thread),
            Err(e) => {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                self.emit(SessionEvent::Failed(what, format!("{e}.\nClose other programs and try again.")));
            }
        }
    }
}

fn state(session: &Session) -> CorrectionState {
    CorrectionState {
        labels: session.volume().snapshot(),
        undo: session.undo_names().take(MAX_STEP_NAMES).map(str::to_owned).collect(),
        undo_count: session.undo_names().count(),
        redo: session.redo_names().take(MAX_STEP_NAMES).map(str::to_owned).collect(),
        modified: session.is_modified(),
        label_count: session.volume().label_count(),
        free: session.new_label().unwrap_or(0),
        sync_failure: session.sync_failure(),
    }
}

/// Opens the session on the first base that matches the journal.
fn open(start: &SessionStart) -> Result<(Session, Replay), CorrectionError> {
    let (mut refused, mut unreadable) = (None, None);
    let is_new = std::fs::metadata(&start.files.journal).map_or(true, |m| m.len() == 0);
    for base in &start.bases {
        let (volume, path) = match base {
            Base::Empty => (LabelVolume::new(start.shape_zyx, start.voxel_um)?, None),
            Base::File(path) => match load(start, path) {
                Ok(volume) => (volume, Some(path.as_path())),
                // The journal may match the next candidate, for example the copy of the original labels.
                Err(e) if !is_new => {
                    unreadable = unreadable.or(Some(e));
                    continue;
                }
                Err(e) => return Err(e),
            },
        };
        // Those of a prediction may be in an OME-Zarr folder.
        let folder_labels = path.filter(|path| path.is_dir()).map(|_| volume.snapshot());
        match Session::open(volume, path, &start.files.journal, SessionOptions::default()) {
            Ok(opened) => {
                if let Some(path) = path.filter(|_| is_new) {
                    start.files.set_base_aside(path)?;
                }
                // Also for a journal whose labels could not be copied before, for example because the disk was full.
                match (path, folder_labels) {
                    (Some(_), Some(labels)) => start.files.save_base(&labels)?,
                    (Some(path), None) => start.files.copy_base(path)?,
                    (None, _) => {}
                }
                return Ok(opened);
            }
            Err(e @ CorrectionError::OtherBase { .. }) => refused = refused.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    Err(unreadable.or(refused).unwrap_or(CorrectionError::Canceled))
}

/// Loads labels of a time point. A file with a single time point is taken to belong to it.
fn load_time(path: &std::path::Path, time: Option<usize>) -> Result<LabelVolume, CorrectionError> {
    // A file that cannot be opened is reported when it is loaded.
    let image = cytoscope_formats::open(path, &OpenOptions::default()).ok();
    let times = image.map_or(1, |image| Extents::of(image.meta()).times);
    LabelVolume::load(path, &LoadOptions { time: time.filter(|_| times > 1), ..LoadOptions::default() })
}

/// Loads a label image and gives it the stack's voxel size, which brush radii refer to.
fn load(start: &SessionStart, path: &std::path::Path) -> Result<LabelVolume, CorrectionError> {
    let volume = load_time(path, start.time)?;
    let shape = volume.shape_zyx();
    let same = volume.voxel_size_um().zyx_um_or_one() == start.voxel_um.zyx_um_or_one();
    if same || shape.iter().product::<usize>() > MAX_RESIZED_VOXELS {
        return Ok(volume);
    }
    LabelVolume::from_dense(shape, start.voxel_um, &volume.labels().to_dense())
}

#[cfg(test)]
mod tests;

//! The thread that holds a session: edits are asked for and what came of them is told, so that none keeps the window waiting.

use super::places::Places;
use cytoscope_annotate::{
    AnnotateError, Brush, Change, Edit, ExportedPair, Extent, LabelSnapshot, LabelVolume, LoadOptions, RawSource,
    Replay, SaveTicket, Saved, Session, SessionOptions, export_part,
};
use cytoscope_volume::VoxelSize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// So long after the last request nobody draws.
const IDLE: Duration = Duration::from_secs(20);

/// Labels of up to so many voxels are put on the stack's voxel size where their file has none or another.
const MAX_RESIZED_VOXELS: usize = 1 << 28;

/// Names of steps told to the window.
const MAX_NAMES: usize = 12;

/// What corrections begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Nothing but background.
    Empty,
    /// A label image.
    File(PathBuf),
}

/// How a session is opened.
#[derive(Debug, Clone)]
pub struct Start {
    /// Labels to begin with; the first that the journal fits.
    pub bases: Vec<Base>,
    /// The stack's extents.
    pub shape_zyx: [usize; 3],
    /// The stack's voxel size.
    pub voxel_um: VoxelSize,
    /// Time point of a label image that has several.
    pub time: Option<usize>,
    /// Files.
    pub places: Places,
}

/// A pair to be added to a dataset.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The stack.
    pub raw: PathBuf,
    /// Its channel, where there are several.
    pub channel: Option<usize>,
    /// Its time point, where there are several.
    pub time: Option<usize>,
    /// The folder.
    pub dataset: PathBuf,
    /// The pair's name.
    pub name: String,
    /// Which of its voxels are known.
    pub extent: Extent,
    /// The labels that correcting began with; none where that was without any.
    pub base: Option<PathBuf>,
}

/// What is asked for.
#[derive(Debug)]
pub enum Request {
    /// A stroke begins at a point (voxel coordinates Z, Y, X).
    Begin(Brush, [f64; 3]),
    /// It goes on to a point.
    Extend([f64; 3]),
    /// It ends.
    End,
    /// It is taken back.
    Cancel,
    /// An edit.
    Apply(Edit),
    /// Takes the newest step back.
    Undo,
    /// Makes it again.
    Redo,
    /// Writes the labels.
    Save(PathBuf),
    /// Adds a pair to a dataset.
    Export(Pair),
    /// Labels were written, or not.
    Written(PathBuf, Result<Saved, AnnotateError>),
    /// The end.
    Close,
}

/// Labels and steps as they are.
#[derive(Debug, Clone)]
pub struct State {
    /// The labels.
    pub labels: LabelSnapshot,
    /// Steps that can be undone, the next one first; the first few.
    pub undo: Vec<String>,
    /// How many there are.
    pub undo_count: usize,
    /// Steps that can be redone, the next one first; the first few.
    pub redo: Vec<String>,
    /// Whether something is not saved.
    pub modified: bool,
    /// Labels in use.
    pub label_count: usize,
    /// A label not in use.
    pub free: u32,
    /// Why the journal is not on the disk, if it is not.
    pub sync_failure: Option<String>,
}

/// What is told.
#[derive(Debug)]
pub enum Event {
    /// The session is open.
    Opened(Replay),
    /// The journal belongs to other labels.
    OtherLabels(String),
    /// It cannot be opened.
    NotOpened(String),
    /// Labels and steps.
    State(Box<State>),
    /// An edit was made.
    Edited(Change),
    /// Something could not be done.
    Failed(&'static str, String),
    /// Labels were written.
    Saved(PathBuf),
    /// A file that other labels were in was moved here when labels were written in its place.
    KeptAside(PathBuf),
    /// A pair was added.
    Exported(Box<ExportedPair>),
}

/// A session on its own thread. Dropped, it makes what was asked for and closes the journal.
pub struct Corrector {
    requests: Sender<Request>,
    events: Receiver<Event>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Corrector {
    /// Opens a session; `wake` is called whenever there is news.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub fn open(start: Start, wake: Arc<dyn Fn() + Send + Sync>) -> std::io::Result<Self> {
        let (requests, asked) = channel();
        let (tell, events) = channel();
        let waiting = Arc::new(AtomicUsize::new(1));
        let mut desk = Desk { own: requests.clone(), tell, wake, waiting: Arc::clone(&waiting), writing: Vec::new() };
        let thread =
            std::thread::Builder::new().name("corrections".to_owned()).spawn(move || desk.work(&start, &asked))?;
        Ok(Self { requests, events, waiting, thread: Some(thread) })
    }

    /// Asks for something.
    pub fn ask(&self, request: Request) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // A thread that has gone has told why.
        if self.requests.send(request).is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// What has come since the last call.
    pub fn poll(&self) -> Vec<Event> {
        self.events.try_iter().collect()
    }

    /// Whether something asked for is not done.
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Corrector {
    fn drop(&mut self) {
        let _ = self.requests.send(Request::Close);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's side.
struct Desk {
    own: Sender<Request>,
    tell: Sender<Event>,
    wake: Arc<dyn Fn() + Send + Sync>,
    waiting: Arc<AtomicUsize>,
    /// Files being written.
    writing: Vec<JoinHandle<()>>,
}

impl Desk {
    fn tell(&self, event: Event) {
        // A window that has gone needs no news.
        let _ = self.tell.send(event);
    }

    fn done(&self, n: usize) {
        self.waiting.fetch_sub(n, Ordering::SeqCst);
        (self.wake)();
    }

    fn work(&mut self, start: &Start, asked: &Receiver<Request>) {
        let opened = open(start);
        let mut session = match opened {
            Ok((session, replay)) => {
                self.tell(Event::Opened(replay));
                session
            }
            Err(e) => {
                self.tell(match e {
                    AnnotateError::OtherBase { .. } => Event::OtherLabels(e.to_string()),
                    e => Event::NotOpened(e.to_string()),
                });
                self.done(1);
                return;
            }
        };
        self.tell(Event::State(Box::new(state(&session))));
        self.done(1);
        let mut tidy = true;
        loop {
            let first = match asked.recv_timeout(IDLE) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    // A journal grown long is shortened while nobody draws; one that cannot be is left as it is.
                    tidy = tidy && (session.is_stroking() || !session.wants_compaction() || session.compact().is_ok());
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut requests = vec![first];
            requests.extend(asked.try_iter());
            let n = requests.iter().filter(|r| !matches!(r, Request::Close)).count();
            let mut close = false;
            for request in requests {
                close |= matches!(request, Request::Close);
                if let Err((what, error)) = self.act(&mut session, request) {
                    self.tell(Event::Failed(what, error.to_string()));
                }
            }
            self.tell(Event::State(Box::new(state(&session))));
            self.done(n);
            if close {
                break;
            }
        }
        for writing in self.writing.drain(..) {
            let _ = writing.join();
        }
        // What was written just before the end is noted, too.
        for request in asked.try_iter() {
            if let Request::Written(..) = request {
                let _ = self.act(&mut session, request);
            }
        }
        let _ = session.close();
    }

    fn act(&mut self, session: &mut Session, request: Request) -> Result<(), (&'static str, AnnotateError)> {
        let stroke = |e| ("The stroke", e);
        match request {
            Request::Begin(brush, at) => session.begin_stroke(brush, at).map(|_| ()).map_err(stroke),
            Request::Extend(to) => session.extend_stroke(to).map(|_| ()).map_err(stroke),
            Request::End => {
                if let Some(change) = session.end_stroke().map_err(stroke)? {
                    self.tell(Event::Edited(change));
                }
                Ok(())
            }
            Request::Cancel => {
                session.cancel_stroke();
                Ok(())
            }
            Request::Apply(edit) => {
                let change = session.apply(&edit).map_err(|e| ("The edit", e))?;
                self.tell(Event::Edited(change));
                Ok(())
            }
            Request::Undo => session.undo().map(|_| ()).map_err(|e| ("Undoing", e)),
            Request::Redo => session.redo().map(|_| ()).map_err(|e| ("Redoing", e)),
            Request::Save(path) => {
                let ticket = session.begin_save().map_err(|e| ("Saving", e))?;
                self.write(ticket, path);
                Ok(())
            }
            Request::Written(path, saved) => {
                let saved = saved.map_err(|e| ("Saving", e))?;
                let aside = saved.kept_aside().map(std::path::Path::to_owned);
                session.mark_saved(saved).map_err(|e| ("Noting the save", e))?;
                self.tell(Event::Saved(path));
                aside.into_iter().for_each(|aside| self.tell(Event::KeptAside(aside)));
                Ok(())
            }
            Request::Export(pair) => {
                let ticket = session.begin_save().map_err(|e| ("Adding the pair", e))?;
                self.export(ticket, pair);
                Ok(())
            }
            Request::Close => Ok(()),
        }
    }

    fn write(&mut self, ticket: SaveTicket, path: PathBuf) {
        let (own, waiting) = (self.own.clone(), Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::SeqCst);
        let spawned = std::thread::Builder::new().name("saving labels".to_owned()).spawn(move || {
            let saved = ticket.save(&path, &mut |_, _| ControlFlow::Continue(()));
            if own.send(Request::Written(path, saved)).is_err() {
                waiting.fetch_sub(1, Ordering::SeqCst);
            }
        });
        self.began("Saving", spawned);
    }

    fn export(&mut self, ticket: SaveTicket, pair: Pair) {
        let (tell, wake, waiting) = (self.tell.clone(), Arc::clone(&self.wake), Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::SeqCst);
        let spawned = std::thread::Builder::new().name("adding a pair".to_owned()).spawn(move || {
            let raw = RawSource { path: &pair.raw, series: 0, channel: pair.channel, time: pair.time };
            let base = pair.base.as_ref().filter(|_| pair.extent != Extent::Everything);
            let base = base.map(|path| LabelVolume::load(path, &LoadOptions::default())).transpose();
            let exported = base.and_then(|base| {
                let base = base.as_ref().map(LabelVolume::labels);
                export_part(&raw, ticket.labels(), base, pair.extent, &pair.dataset, &pair.name)
            });
            let _ = tell.send(match exported {
                Ok(exported) => Event::Exported(Box::new(exported)),
                Err(e) => Event::Failed("Adding the pair", e.to_string()),
            });
            waiting.fetch_sub(1, Ordering::SeqCst);
            wake();
        });
        self.began("Adding the pair", spawned);
    }

    fn began(&mut self, what: &'static str, spawned: std::io::Result<JoinHandle<()>>) {
        self.writing.retain(|w| !w.is_finished());
        match spawned {
            Ok(thread) => self.writing.push(thread),
            Err(e) => {
                self.waiting.fetch_sub(1, Ordering::SeqCst);
                self.tell(Event::Failed(what, format!("{e}: close other programs and try again")));
            }
        }
    }
}

fn state(session: &Session) -> State {
    State {
        labels: session.volume().snapshot(),
        undo: session.undo_names().take(MAX_NAMES).map(str::to_owned).collect(),
        undo_count: session.undo_names().count(),
        redo: session.redo_names().take(MAX_NAMES).map(str::to_owned).collect(),
        modified: session.is_modified(),
        label_count: session.volume().label_count(),
        free: session.new_label().unwrap_or(0),
        sync_failure: session.sync_failure(),
    }
}

/// Opens the session on the first of the bases that the journal fits.
fn open(start: &Start) -> Result<(Session, Replay), AnnotateError> {
    let mut refused = None;
    let is_new = std::fs::metadata(&start.places.journal).map_or(true, |m| m.len() == 0);
    for base in &start.bases {
        let (volume, path) = match base {
            Base::Empty => (LabelVolume::new(start.shape_zyx, start.voxel_um)?, None),
            Base::File(path) => (load(start, path)?, Some(path.as_path())),
        };
        match Session::open(volume, path, &start.places.journal, SessionOptions::default()) {
            Ok(opened) => {
                if let (Some(path), true) = (path, is_new) {
                    start.places.keep_base(path).map_err(|source| AnnotateError::Io {
                        file: start.places.base.clone(),
                        doing: "keeping the labels as they were",
                        source,
                    })?;
                }
                return Ok(opened);
            }
            Err(e @ AnnotateError::OtherBase { .. }) => refused = refused.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    Err(refused.unwrap_or(AnnotateError::Cancelled))
}

/// A label image on the stack's voxel size, which brushes are measured with.
fn load(start: &Start, path: &std::path::Path) -> Result<LabelVolume, AnnotateError> {
    let options = LoadOptions { time: start.time, ..LoadOptions::default() };
    let volume = LabelVolume::load(path, &options)?;
    let shape = volume.shape_zyx();
    let same = volume.voxel_size_um().zyx_or_unit() == start.voxel_um.zyx_or_unit();
    if same || shape.iter().product::<usize>() > MAX_RESIZED_VOXELS {
        return Ok(volume);
    }
    LabelVolume::from_dense(shape, start.voxel_um, &volume.labels().to_dense())
}

//! `worker` and its client: what a window relies on.

use crate::common::{Desk, say_skipped};
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::worker::{
    JobId, JobResult, LabelArray, LiveArray, LiveRegion, PROTOCOL_VERSION, Reply, Request, Worker, WorkerEvent,
    WorkerState,
};
use cytoscope_pipeline::{ConvertJob, Event, JobErrorKind, LabelFormat, PredictJob, SegmentJob, SegmentReport};
use cytoscope_profile::Stage;
use cytoscope_volume::Axis;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A voxel size at which the simulated nuclei are the size the model was made for.
const VOXEL_UM: [f64; 3] = [1.75, 0.8, 0.8];
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A command made anew as often as it is needed.
fn again(of: &Command) -> impl Fn() -> Command + Send + 'static {
    let program = of.get_program().to_owned();
    let arguments: Vec<_> = of.get_args().map(ToOwned::to_owned).collect();
    let variables: Vec<_> = of.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    let folder = of.get_current_dir().map(Path::to_owned);
    move || {
        let mut command = Command::new(&program);
        command.args(&arguments);
        for (key, value) in &variables {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        folder.iter().for_each(|f| _ = command.current_dir(f));
        command
    }
}

/// The worker's command, with a temporary folder of its own: `tmp` on the desk.
fn command(desk: &Desk) -> Command {
    let temporary = desk.path("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut command = desk.command(&["worker"]);
    command.env("TMPDIR", temporary);
    command
}

/// A client and all it was told.
struct Engine {
    worker: Worker,
    seen: Vec<WorkerEvent>,
    at: usize,
    woken: Arc<AtomicUsize>,
}

impl Engine {
    fn start(desk: &Desk) -> Self {
        Self::of(&command(desk))
    }

    fn of(command: &Command) -> Self {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let wake = Arc::new(move || _ = counter.fetch_add(1, Ordering::Relaxed));
        Self { worker: Worker::start_with(again(command), wake), seen: Vec::new(), at: 0, woken }
    }

    /// The next event that a question finds something in; earlier ones are passed over.
    fn wait<T>(&mut self, what: &str, find: impl Fn(&WorkerEvent) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            self.seen.extend(self.worker.poll());
            while let Some(event) = self.seen.get(self.at) {
                self.at += 1;
                if let Some(found) = find(event) {
                    return found;
                }
            }
            assert!(start.elapsed() < PATIENCE, "{what} did not come; this did: {:#?}", self.seen);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn reply<T>(&mut self, what: &str, find: impl Fn(&Reply) -> Option<T>) -> T {
        self.wait(what, |event| if let WorkerEvent::Reply(reply) = event { find(reply) } else { None })
    }

    /// The line that ends a job.
    fn end(&mut self, id: u64) -> Reply {
        self.reply(&format!("the end of job {id}"), |r| (r.ends() == Some(JobId(id))).then(|| r.clone()))
    }

    fn done(&mut self, id: u64) -> JobResult {
        match self.end(id) {
            Reply::Done { result, .. } => result,
            other => panic!("job {id}: {other:?}"),
        }
    }

    fn segmented(&mut self, id: u64) -> SegmentReport {
        match self.done(id) {
            JobResult::Segment(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until tiles of a job are computed.
    fn computing(&mut self, id: u64) {
        self.reply("a tile", |reply| match reply {
            Reply::Progress { id: of, event: Event::Progress { stage, done, .. } } => {
                (of.0 == id && stage == "predict" && *done > 0).then_some(())
            }
            Reply::Failed { sentence, .. } => panic!("{sentence}"),
            _ => None,
        });
    }

    fn ready(&mut self) -> (u32, PathBuf) {
        let start = Instant::now();
        loop {
            if let WorkerState::Ready { pid, folder } = self.worker.state() {
                return (pid, folder);
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", self.worker.state());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn job(value: Value) -> PredictJob {
    serde_json::from_value(value).unwrap()
}

/// A job that takes long: a large stack in small tiles.
fn long(desk: &Desk, out: &str) -> PredictJob {
    let name = "large.tif";
    if !desk.path(name).exists() {
        let small = desk.image(&desk.nuclei("16,64,64", 1));
        let values: Vec<u16> = small.samples().to_f32().iter().map(|v| *v as u16).collect();
        let mut large = Vec::with_capacity(48 * 512 * 512);
        for z in 0..48 {
            for y in 0..512 {
                let row = ((z % 16) * 64 + y % 64) * 64;
                (0..8).for_each(|_| large.extend_from_slice(&values[row..row + 64]));
            }
        }
        desk.write(name, "ZYX", &[48, 512, 512], large);
    }
    job(json!({
        "inputs": [desk.path(name)], "model": "nuclei", "out": desk.path(out), "device": "cpu", "tiles": {"tile": [48, 64, 64]},
    }))
}

fn convert(desk: &Desk, input: &str, output: &str) -> ConvertJob {
    serde_json::from_value(json!({"input": desk.path(input), "output": desk.path(output)})).unwrap()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(unix)]
fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// What two runs of one job wrote to one folder, the first of which was renamed.
fn assert_same_files(desk: &Desk, first: &str, second: &str) {
    let names = desk.names(second);
    assert!(!names.is_empty());
    assert_eq!(names, desk.names(first));
    for name in names {
        let [a, b] = [first, second].map(|folder| desk.bytes(&format!("{folder}/{name}")));
        if name.ends_with("_provenance.json") {
            let [a, b] = [a, b].map(|bytes| {
                let mut value: Value = serde_json::from_slice(&bytes).unwrap();
                assert!(value["finished_unix_secs"].take().as_u64().unwrap() > 0);
                value
            });
            assert_eq!(a, b);
        } else {
            assert!(a == b, "{name} differs");
        }
    }
}

/// The worker without a client.
struct Bare {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Bare {
    fn start(desk: &Desk) -> Self {
        let mut child =
            command(desk).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    fn say(&mut self, line: &[u8]) {
        self.input.as_mut().unwrap().write_all(&[line, b"\n"].concat()).unwrap();
    }

    /// The next line, which is a reply whatever was said.
    fn hear(&mut self) -> Reply {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    fn fault(&mut self) -> String {
        match self.hear() {
            Reply::Fault { sentence } => sentence,
            other => panic!("{other:?}"),
        }
    }

    fn greet(&mut self) -> PathBuf {
        self.say(format!("{{\"request\":\"hello\",\"version\":{PROTOCOL_VERSION}}}").as_bytes());
        match self.hear() {
            Reply::Ready { version, program, pid, folder } => {
                assert_eq!((version, program.as_str()), (PROTOCOL_VERSION, env!("CARGO_PKG_VERSION")));
                assert_eq!(pid, self.child.id());
                folder
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn it_greets_in_its_version_and_survives_every_line() {
    let desk = Desk::new();
    let mut bare = Bare::start(&desk);
    bare.say(b"{\"request\":\"devices\",\"id\":1}");
    assert!(bare.fault().contains("hello"));
    bare.say(b"{\"request\":\"hello\",\"version\":99}");
    let sentence = bare.fault();
    assert!(sentence.contains("99") && sentence.contains(&PROTOCOL_VERSION.to_string()), "{sentence}");
    bare.say(b"{\"request\":\"models\",\"id\":1}");
    assert!(bare.fault().contains("hello"), "a refused version is no greeting");
    let folder = bare.greet();
    assert!(folder.starts_with(desk.path("tmp")) && folder.is_dir());
    let lines: [&[u8]; 8] = [
        b"what?",
        b"{}",
        b"[1,2]",
        b"{\"request\":\"dance\",\"id\":1}",
        b"{\"request\":\"predict\",\"id\":1}",
        b"{\"request\":\"cancel\",\"id\":-4}",
        b"{\"request\":\"hello\",\"version\":1",
        b"\xff\xfe{}",
    ];
    for line in lines {
        bare.say(line);
        let sentence = bare.fault();
        assert!(sentence.len() > 20, "{sentence}");
    }
    // More than may be held, without an end for a long time.
    bare.say(&vec![b'a'; (16 << 20) + 1]);
    assert!(bare.fault().contains("16777216 bytes"));
    bare.say(b"");
    bare.say(b"{\"request\":\"cancel\",\"id\":12345}");
    bare.say(b"{\"request\":\"release\",\"id\":12345}");
    // It still does what it is for, whatever came before; relative paths count from its own folder.
    desk.write("a.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    bare.say(b"{\"request\":\"convert\",\"id\":7,\"job\":{\"input\":\"a.tif\",\"output\":\"a.npy\"}}");
    let heard: Vec<Reply> = std::iter::repeat_with(|| bare.hear()).take_while(|r| r.ends().is_none()).collect();
    assert!(heard.contains(&Reply::Started { id: JobId(7) }), "{heard:?}");
    assert!(desk.path("a.npy").is_file());
    // A job with the number of a waiting or running one is refused; the shutdown ends it all.
    bare.say(b"{\"request\":\"shutdown\"}");
    assert!(bare.child.wait().unwrap().success());
    assert!(!folder.exists() && desk.names("tmp").is_empty(), "{:?}", desk.names("tmp"));
}

#[test]
fn a_prediction_through_it_is_that_of_the_command_line_to_the_byte() {
    let desk = Desk::new();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("sample_data/nuclei_raw.tif");
    let out = desk.path("o");
    let outputs = "raw,labels,table,preview";
    let arguments = ["predict", sample.to_str().unwrap(), "--out", out.to_str().unwrap(), "--outputs", outputs];
    desk.run(&[&arguments[..], &["--device", "cpu", "--tile", "27,64,64"]].concat()).ok();
    std::fs::rename(&out, desk.path("by_command")).unwrap();
    let mut engine = Engine::start(&desk);
    let job = job(json!({
        "inputs": [sample], "model": "nuclei", "out": out, "device": "cpu", "tiles": {"tile": [27, 64, 64]},
        "outputs": outputs.split(',').collect::<Vec<_>>(),
    }));
    engine.worker.send(Request::Predict { id: JobId(1), job, live: true, operators: false });
    let JobResult::Predict(outcome) = engine.done(1) else { panic!() };
    assert!(outcome.failed.is_empty());
    assert_eq!(desk.names("o").len(), 5, "{:?}", desk.names("o"));
    assert_eq!(outcome.done[0].outputs.len(), 5);
    assert_same_files(&desk, "by_command", "o");
    assert!(engine.woken.load(Ordering::Relaxed) > 0);
    // What the panels of a window show came on the way.
    let replies = || engine.seen.iter().filter_map(|e| if let WorkerEvent::Reply(r) = e { Some(r) } else { None });
    let stages: BTreeSet<Stage> = replies()
        .filter_map(|r| if let Reply::Stages { totals, .. } = r { Some(totals) } else { None })
        .flatten()
        .map(|t| t.stage)
        .collect();
    assert!(stages.is_superset(&[Stage::Read, Stage::Compute, Stage::Objects, Stage::Write].into()), "{stages:?}");
    let spans =
        || replies().filter_map(|r| if let Reply::Spans { spans, .. } = r { Some(spans) } else { None }).flatten();
    assert!(spans().any(|s| s.stage == Stage::Op) && spans().filter(|s| s.stage == Stage::Compute).count() > 1);
    let device =
        replies().find_map(|r| if let Reply::Memory { device, .. } = r { device.clone() } else { None }).unwrap();
    assert_eq!((device.id.to_string().as_str(), device.why.as_str()), ("cpu", "asked for"));
    let by_stage: BTreeSet<&str> = replies()
        .filter_map(|r| match r {
            Reply::Progress { event: Event::Progress { stage, done, total, .. }, .. } if done == total => {
                Some(&**stage)
            }
            _ => None,
        })
        .collect();
    assert!(
        by_stage.is_superset(&["predict", "objects", "write"].into()),
        "the end of each stage is told: {by_stage:?}"
    );
}

#[test]
fn on_a_gpu_too_it_is_that_of_the_command_line() {
    let desk = Desk::new();
    let raw = desk.nuclei("20,90,100", 3);
    let software = |mut command: Command| {
        command.env("CYTOSCOPE_SOFTWARE_GPU", "1");
        command
    };
    let devices = software(desk.command(&["devices", "--json"])).output().unwrap();
    let devices: Value = serde_json::from_slice(&devices.stdout).unwrap();
    let usable = devices.as_array().unwrap().iter().filter(|d| d["usable"] == true).filter_map(|d| d["id"].as_str());
    let Some(gpu) = usable.filter(|id| *id != "cpu").map(str::to_owned).next() else {
        return say_skipped("no GPU, not even in software (install mesa-vulkan-drivers)");
    };
    let (raw, out) = (desk.path(&raw), desk.path("o"));
    let arguments =
        ["predict", raw.to_str().unwrap(), "--out", out.to_str().unwrap(), "--tile", "20,48,64", "--device", &gpu];
    let ran = software(desk.command(&arguments)).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    std::fs::rename(&out, desk.path("by_command")).unwrap();
    let mut engine = Engine::of(&software(command(&desk)));
    for (id, operators) in [(1, false), (2, true)] {
        let job = job(json!({
            "inputs": [raw], "model": "nuclei", "out": out, "device": gpu, "tiles": {"tile": [20, 48, 64]},
        }));
        engine.worker.send(Request::Predict { id: JobId(id), job, live: true, operators });
        let from = engine.seen.len();
        engine.done(id);
        assert_same_files(&desk, "by_command", "o");
        let spans = engine.seen[from..].iter().filter_map(|e| match e {
            WorkerEvent::Reply(Reply::Spans { spans, .. }) => Some(spans),
            _ => None,
        });
        let stages: BTreeSet<Stage> = spans.flatten().map(|s| s.stage).collect();
        assert!(stages.contains(&Stage::Compute) && stages.contains(&Stage::Upload), "{stages:?}");
        assert_eq!(stages.contains(&Stage::Op), operators, "single operators are waited for where that was asked for");
    }
}

#[test]
fn a_growing_prediction_becomes_the_result() {
    let desk = Desk::new();
    let raw = desk.nuclei("20,90,100", 3);
    let mut engine = Engine::start(&desk);
    for (id, blend) in [(1, "crop"), (2, "gaussian")] {
        let job = job(json!({
            "inputs": [desk.path(&raw)], "model": "nuclei", "out": desk.path(blend), "device": "cpu", "outputs": ["raw"],
            "voxel_um": VOXEL_UM, "tiles": {"tile": [20, 48, 64], "blend": blend},
        }));
        engine.worker.send(Request::Predict { id: JobId(id), job, live: true, operators: false });
        let from = engine.seen.len();
        engine.done(id);
        let mut seen = vec![false; 20 * 90 * 100];
        let mut array = None;
        for event in &engine.seen[from..] {
            let WorkerEvent::Reply(Reply::Live { path, channels, shape_zyx, regions, input, .. }) = event else {
                continue;
            };
            assert_eq!((*channels, *shape_zyx, input), (2, [20, 90, 100], &desk.path(&raw)));
            array = Some(LiveArray::open(path, *channels, *shape_zyx).unwrap());
            for LiveRegion { start_zyx: s, size_zyx: n } in regions {
                for z in s[0]..s[0] + n[0] {
                    (s[1]..s[1] + n[1]).for_each(|y| seen[(z * 90 + y) * 100 + s[2]..][..n[2]].fill(true));
                }
            }
        }
        assert!(seen.iter().all(|s| *s), "{blend}: not every voxel was told as finished");
        // Planes C within Z in the file.
        let result = desk.image(&format!("{blend}/nuclei_3_raw_raw.tif")).samples().to_f32();
        let array = array.unwrap();
        for (z, planes) in result.chunks_exact(2 * 90 * 100).enumerate() {
            for (c, plane) in planes.chunks_exact(90 * 100).enumerate() {
                assert!(array.slice(Axis::Z, z, c).unwrap() == plane, "{blend}: slice {z}, channel {c}");
            }
        }
    }
    let (_, folder) = engine.ready();
    let live = || {
        std::fs::read_dir(&folder)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "f32"))
            .count()
    };
    assert_eq!(live(), 1, "the first one's array has gone");
    engine.worker.send(Request::Release { id: JobId(2) });
    engine.worker.send(Request::Devices { id: JobId(3) });
    engine.reply("devices", |r| matches!(r, Reply::Devices { .. }).then_some(()));
    assert_eq!(live(), 0, "released");
}

#[test]
fn jobs_wait_in_order_and_are_cancelled_waiting_or_running() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&desk);
    engine.worker.send(Request::Predict { id: JobId(1), job: long(&desk, "o"), live: false, operators: false });
    for (id, output) in [(2, "a.npy"), (3, "b.npy"), (4, "c.npy")] {
        engine.worker.send(Request::Convert { id: JobId(id), job: convert(&desk, &raw, output) });
    }
    engine.computing(1);
    let waiting: Vec<(u64, usize)> = engine
        .seen
        .iter()
        .filter_map(
            |e| if let WorkerEvent::Reply(Reply::Queued { id, ahead }) = e { Some((id.0, *ahead)) } else { None },
        )
        .collect();
    assert_eq!(waiting, [(2, 1), (3, 2), (4, 3)]);
    engine.worker.send(Request::Cancel { id: JobId(3) });
    assert_eq!(engine.end(3), Reply::Cancelled { id: JobId(3) }, "removed while the first one runs");
    // The same number again is a mistake that harms nobody.
    engine.worker.send(Request::Convert { id: JobId(4), job: convert(&desk, &raw, "d.npy") });
    engine.reply("a fault", |r| matches!(r, Reply::Fault { sentence } if sentence.contains("job 4")).then_some(()));
    assert!(!desk.leftovers().is_empty(), "it was writing something that could be left behind");
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Cancelled { id: JobId(1) });
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
    engine.done(2);
    engine.done(4);
    let ends: Vec<JobId> =
        engine.seen.iter().filter_map(|e| if let WorkerEvent::Reply(r) = e { r.ends() } else { None }).collect();
    assert_eq!(ends, [3, 1, 2, 4].map(JobId));
    assert_eq!([2, 3, 4].map(|i| desk.path(["a.npy", "b.npy", "c.npy"][i - 2]).exists()), [true, false, true]);
    assert!(desk.leftovers().is_empty(), "{:?}", desk.leftovers());
    // A failure says why, and the worker goes on.
    engine.worker.send(Request::Convert { id: JobId(9), job: convert(&desk, "nothere.tif", "e.npy") });
    let Reply::Failed { kind, sentence, .. } = engine.end(9) else { panic!() };
    assert_eq!(kind, JobErrorKind::BadInput);
    assert!(sentence.contains("nothere.tif"), "{sentence}");
    // Dropping the client ends the process and its folder, in mid-job.
    engine.worker.send(Request::Predict { id: JobId(10), job: long(&desk, "o"), live: true, operators: false });
    engine.computing(10);
    let (pid, folder) = engine.ready();
    assert!(folder.is_dir());
    drop(engine);
    assert!(!is_alive(pid) && !folder.exists());
    assert!(desk.names("o").is_empty() && desk.leftovers().is_empty(), "{:?}", desk.leftovers());
}

#[cfg(unix)]
#[test]
fn killed_it_loses_the_running_job_alone_and_leaves_nothing() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&desk);
    let (first, folder) = engine.ready();
    engine.worker.send(Request::Predict { id: JobId(1), job: long(&desk, "o"), live: true, operators: false });
    engine.worker.send(Request::Convert { id: JobId(2), job: convert(&desk, &raw, "a.npy") });
    engine.worker.send(Request::Convert { id: JobId(3), job: convert(&desk, &raw, "b.npy") });
    engine.computing(1);
    assert!(!desk.leftovers().is_empty() && folder.is_dir(), "there is something that could be left behind");
    kill(first);
    let (reason, lost) = engine.wait("the death", |e| match e {
        WorkerEvent::Died { reason, lost } => Some((reason.clone(), lost.clone())),
        _ => None,
    });
    assert_eq!(lost, [JobId(1)]);
    assert!(reason.contains("signal 9"), "{reason}");
    assert!(!folder.exists() && desk.leftovers().is_empty(), "{:?}", desk.leftovers());
    assert!(desk.names("o").is_empty(), "{:?}", desk.names("o"));
    engine.wait("a new process", |e| (*e == WorkerEvent::Restarted).then_some(()));
    engine.done(2);
    engine.done(3);
    assert!(desk.path("a.npy").is_file() && desk.path("b.npy").is_file());
    let (second, _) = engine.ready();
    assert_ne!(first, second);
    // The lost job is no trouble to who asks for it again.
    let again = PredictJob { outputs: ["labels".parse().unwrap()].into(), ..long(&desk, "o") };
    engine.worker.send(Request::Predict { id: JobId(4), job: again, live: false, operators: false });
    engine.done(4);
    assert_eq!(desk.names("o"), ["large_labels.tif", "large_provenance.json"]);
    drop(engine);
    assert!(!is_alive(second) && desk.names("tmp").is_empty(), "{:?}", desk.names("tmp"));
}

/// Starts a long live prediction in a worker without a client, and returns once tiles are computed.
fn predicting(desk: &Desk) -> (Bare, PathBuf) {
    let job = long(desk, "o");
    let mut bare = Bare::start(desk);
    let folder = bare.greet();
    let request = Request::Predict { id: JobId(1), job, live: true, operators: false };
    bare.say(&serde_json::to_vec(&request).unwrap());
    while !matches!(bare.hear(), Reply::Live { .. }) {}
    assert!(!desk.leftovers().is_empty() && folder.is_dir(), "there is something that could be left behind");
    (bare, folder)
}

#[test]
fn it_ends_with_its_input_in_mid_job() {
    let desk = Desk::new();
    let (mut bare, folder) = predicting(&desk);
    bare.input = None;
    // Nobody need read what it still says.
    drop(bare.output);
    assert!(bare.child.wait().unwrap().success());
    assert!(!folder.exists() && desk.names("tmp").is_empty(), "{:?}", desk.names("tmp"));
    assert!(desk.names("o").is_empty() && desk.leftovers().is_empty(), "{:?}", desk.leftovers());
}

#[cfg(unix)]
#[test]
fn what_is_left_when_window_and_worker_are_killed_goes_with_the_next_worker() {
    let desk = Desk::new();
    let (mut bare, folder) = predicting(&desk);
    bare.child.kill().unwrap();
    bare.child.wait().unwrap();
    assert!(folder.is_dir() && !desk.leftovers().is_empty());
    // Other people's folders, and those of living workers, stay.
    let mut alive = Bare::start(&desk);
    let other = alive.greet();
    assert!(!folder.exists(), "{:?}", desk.names("tmp"));
    assert!(desk.leftovers().is_empty() && desk.names("o").is_empty(), "{:?}", desk.leftovers());
    std::fs::create_dir(desk.path("tmp/cytoscope-worker-notes")).unwrap();
    let mut third = Bare::start(&desk);
    third.greet();
    assert!(other.is_dir() && desk.path("tmp/cytoscope-worker-notes").is_dir());
    for mut bare in [alive, third] {
        bare.input = None;
        assert!(bare.child.wait().unwrap().success());
    }
}

#[cfg(unix)]
#[test]
fn it_gives_up_on_what_dies_and_dies() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let gave_up = |e: &WorkerEvent| match e {
        WorkerEvent::GaveUp { reason, lost } => Some((reason.clone(), lost.clone())),
        _ => None,
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo the driver is upset >&2; exit 3"]);
    let mut engine = Engine::of(&shell);
    engine.worker.send(Request::Convert { id: JobId(1), job: convert(&desk, &raw, "a.npy") });
    let (reason, lost) = engine.wait("that it gives up", gave_up);
    assert!(reason.contains("exit code 3") && reason.contains("the driver is upset"), "{reason}");
    assert_eq!(lost, [JobId(1)]);
    let deaths = engine.seen.iter().filter(|e| matches!(e, WorkerEvent::Died { .. })).count();
    assert_eq!((deaths, engine.worker.state()), (3, WorkerState::Dead));
    engine.worker.send(Request::Cancel { id: JobId(1) });
    engine.worker.send(Request::Convert { id: JobId(2), job: convert(&desk, &raw, "a.npy") });
    assert!(matches!(engine.end(2), Reply::Failed { .. }), "nobody waits for ever");
    engine.worker.restart();
    engine.wait("that it gives up again", gave_up);
    // What is not there, and what speaks another language, is not tried three times.
    let mut engine = Engine::of(&Command::new("/no/such/program"));
    assert!(engine.wait("that it gives up", gave_up).0.contains("/no/such/program"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo good morning; cat"]);
    let mut engine = Engine::of(&shell);
    engine.wait("that it gives up", gave_up);
    assert!(!engine.seen.iter().any(|e| matches!(e, WorkerEvent::Died { .. })));
}

#[cfg(unix)]
#[test]
fn a_shutdown_is_no_crash_and_can_be_undone() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&desk);
    let (pid, _) = engine.ready();
    engine.worker.send(Request::Shutdown);
    let start = Instant::now();
    while engine.worker.state() != WorkerState::Dead {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!is_alive(pid));
    engine.worker.restart();
    engine.ready();
    engine.worker.send(Request::Convert { id: JobId(1), job: convert(&desk, &raw, "a.npy") });
    engine.done(1);
    assert!(!engine.seen.iter().any(|e| matches!(e, WorkerEvent::Died { .. } | WorkerEvent::GaveUp { .. })));
}

#[test]
fn a_dragged_slider_gets_the_last_segmentation_and_leaves_no_files() {
    let desk = Desk::new();
    let raw = desk.nuclei("14,80,96", 1);
    let mut engine = Engine::start(&desk);
    engine.worker.send(Request::Models { id: JobId(1) });
    let card: ModelCard = engine.reply("models", |r| match r {
        Reply::Models { models, .. } => models.iter().find(|m| m.name == "nuclei-dog").cloned(),
        _ => None,
    });
    let predict = job(json!({
        "inputs": [desk.path(&raw)], "model": "nuclei", "out": desk.path("o"), "device": "cpu", "voxel_um": VOXEL_UM,
    }));
    engine.worker.send(Request::Predict { id: JobId(2), job: predict, live: false, operators: false });
    let segment = |labels: Option<PathBuf>, table: Option<PathBuf>| SegmentJob {
        map: desk.path("o/nuclei_1_raw_raw.tif"),
        labels,
        table,
        channel: card.segment_channel,
        seed_channel: Some(card.seed_channel),
        time: 0,
        voxel_um: None,
        intensities: Some(desk.path(&raw)),
        options: card.segment.clone().unwrap(),
    };
    // With the model's own settings the map gives the prediction's own objects and table.
    let (labels, table) = (desk.path("l.tif"), desk.path("t.csv"));
    let same = segment(Some(labels), Some(table));
    engine.worker.send(Request::Segment { id: JobId(3), job: same, replaces: None });
    let report = engine.segmented(3);
    assert_eq!((report.format, report.shape_zyx), (LabelFormat::Tiff, [14, 80, 96]));
    assert!(report.objects > 3);
    assert_eq!(desk.image("l.tif"), desk.image("o/nuclei_1_raw_labels.tif"));
    assert_eq!(desk.table("t.csv"), desk.table("o/nuclei_1_raw_objects.csv"));
    // A slider: many in a row, each making the one before needless.
    let (_, folder) = engine.ready();
    let files = || {
        std::fs::read_dir(&folder)
            .unwrap()
            .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "u32"))
            .count()
    };
    let last = 40;
    for id in 10..=last {
        let replaces = (id > 10).then(|| JobId(id - 1));
        engine.worker.send(Request::Segment { id: JobId(id), job: segment(None, None), replaces });
    }
    let report = engine.segmented(last);
    assert_eq!(report.format, LabelFormat::RawU32);
    let ends: Vec<u64> = engine
        .seen
        .iter()
        .filter_map(|e| if let WorkerEvent::Reply(r) = e { r.ends() } else { None })
        .map(|id| id.0)
        .filter(|id| *id >= 10)
        .collect();
    let each: BTreeSet<u64> = ends.iter().copied().collect();
    assert_eq!((ends.len(), each), (31, (10..=last).collect()), "each ends, and once");
    assert_eq!(files(), 1, "those replaced are gone");
    let array = LabelArray::open(&report.labels, report.shape_zyx).unwrap();
    let expected: Vec<u32> = desk.image("l.tif").samples().to_f32().iter().map(|v| *v as u32).collect();
    let whole = LiveRegion { start_zyx: [0; 3], size_zyx: report.shape_zyx };
    assert_eq!(array.region(whole).unwrap(), expected);
    let across_x: Vec<u32> = expected.chunks_exact(96).map(|row| row[37]).collect();
    assert_eq!(array.slice(Axis::X, 37).unwrap(), across_x);
    engine.worker.send(Request::Release { id: JobId(last) });
    engine.worker.send(Request::Convert { id: JobId(99), job: convert(&desk, &raw, "a.npy") });
    engine.done(99);
    assert_eq!(files(), 0);
    // A map without the channel asked for is refused with what there is.
    let beyond = SegmentJob { seed_channel: Some(2), ..segment(None, None) };
    engine.worker.send(Request::Segment { id: JobId(100), job: beyond, replaces: None });
    let Reply::Failed { sentence, .. } = engine.end(100) else { panic!() };
    assert!(sentence.contains("channel 2") && sentence.contains("has 2"), "{sentence}");
}

#[test]
fn models_and_devices_are_told_with_what_is_wrong_with_them() {
    let desk = Desk::new();
    let models = desk.path("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::write(models.join("broken.onnx"), "no network").unwrap();
    let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nuclei-dog");
    std::fs::create_dir(models.join("mine")).unwrap();
    for entry in std::fs::read_dir(&bundled).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, models.join("mine").join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(models.join("best.alias"), "mine\n").unwrap();
    let mut command = command(&desk);
    command.env("CYTOSCOPE_MODELS", &models);
    let mut engine = Engine::of(&command);
    engine.worker.send(Request::Models { id: JobId(1) });
    engine.worker.send(Request::Devices { id: JobId(2) });
    let cards: Vec<ModelCard> =
        engine.reply("models", |r| if let Reply::Models { models, .. } = r { Some(models.clone()) } else { None });
    let find = |name: &str| cards.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}: {cards:?}"));
    let mine = find("mine");
    assert_eq!((mine.aliases.as_slice(), mine.problem.as_ref()), (&["best".to_owned()][..], None));
    assert_eq!((mine.voxel_um, mine.input_channels, mine.output_channels), (Some(VOXEL_UM), 1, 2));
    assert_eq!(mine.output_channel_names, ["probability", "brightness"]);
    assert!(mine.documentation.contains("# nuclei-dog") && mine.testable && mine.tests.iter().all(|t| t.is_file()));
    assert_eq!((mine.tests.len(), mine.licence.as_deref()), (2, Some("MIT")));
    assert_eq!(mine.citations[0].doi.as_deref(), Some("10.1098/rspb.1980.0020"));
    assert_eq!((mine.segment_channel, mine.seed_channel), (0, 1));
    assert_eq!(mine.segment.as_ref().map(|s| s.min_volume_um3), Some(200.0));
    let broken = find("broken");
    assert!(broken.problem.as_ref().is_some_and(|p| p.contains("broken.onnx")), "{:?}", broken.problem);
    let devices =
        engine.reply("devices", |r| if let Reply::Devices { devices, .. } = r { Some(devices.clone()) } else { None });
    let told: Value = desk.run(&["devices", "--json"]).json();
    let ids: Vec<String> = devices.iter().map(|d| d.id.to_string()).collect();
    let expected: Vec<&str> = told.as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, expected, "as the command line tells");
    assert!(devices.iter().any(|d| d.id.to_string() == "cpu" && d.usable));
}

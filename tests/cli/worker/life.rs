//! How it begins, ends and dies, and what is left then.

use super::{Engine, PATIENCE, command, convert, is_alive, long};
use crate::common::Desk;
use cytoscope_pipeline::PredictJob;
use cytoscope_pipeline::worker::{JobId, PROTOCOL_VERSION, Reply, Request, Worker, WorkerEvent, WorkerState};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(unix)]
fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
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
    // Asked to, it ends, and its folder with it.
    bare.say(b"{\"request\":\"shutdown\"}");
    assert!(bare.child.wait().unwrap().success());
    assert!(!folder.exists() && desk.names("tmp").is_empty(), "{:?}", desk.names("tmp"));
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
fn what_never_greets_is_given_up() {
    let desk = Desk::new();
    let raw = desk.nuclei("6,32,32", 1);
    let silent = || {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 1000"]);
        command
    };
    let worker = Worker::start_patiently(silent, Arc::new(|| {}), Duration::from_millis(300));
    worker.send(Request::Convert { id: JobId(1), job: convert(&desk, &raw, "a.npy") });
    let end = Instant::now() + Duration::from_secs(60);
    let mut seen = Vec::new();
    while !seen.iter().any(|e| matches!(e, WorkerEvent::GaveUp { .. })) {
        assert!(Instant::now() < end, "{seen:?}");
        seen.extend(worker.poll());
        std::thread::sleep(Duration::from_millis(10));
    }
    let last = seen
        .iter()
        .find_map(|e| if let WorkerEvent::GaveUp { reason, lost } = e { Some((reason, lost)) } else { None });
    let (reason, lost) = last.unwrap();
    assert!(reason.contains("did not answer"), "{reason}");
    assert_eq!((lost.as_slice(), worker.state()), ([JobId(1)].as_slice(), WorkerState::Dead));
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

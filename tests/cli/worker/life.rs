//! Starting, ending and crashing of the worker, and what remains afterwards.

use super::{Engine, TIMEOUT, command, convert, is_alive, job, long_job, predict_request};
use crate::common::Fixture;
#[cfg(unix)]
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::{JobErrorKind, PredictJob};
use cytoscope_worker::{
    ContinuedJob, Job, JobId, PROTOCOL_VERSION, Reply, Request, Timeouts, Worker, WorkerEvent, WorkerState,
};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The reason, the lost and the continued jobs of a process that has ended.
#[cfg(unix)]
fn died(event: &WorkerEvent) -> Option<(String, Vec<JobId>, Vec<ContinuedJob>)> {
    match event {
        WorkerEvent::Died { reason, lost, again } => Some((reason.clone(), lost.clone(), again.clone())),
        _ => None,
    }
}

#[cfg(unix)]
fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// A worker process driven without the client.
struct RawWorker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl RawWorker {
    fn start(fixture: &Fixture) -> Self {
        let mut child =
            command(fixture).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), child, output }
    }

    fn send_line(&mut self, line: &[u8]) {
        self.input.as_mut().unwrap().write_all(&[line, b"\n"].concat()).unwrap();
    }

    /// Reads the next line as a reply.
    fn read_reply(&mut self) -> Reply {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the worker ended");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    fn fault(&mut self) -> String {
        match self.read_reply() {
            Reply::Fault { message } => message,
            other => panic!("{other:?}"),
        }
    }

    fn handshake(&mut self) -> PathBuf {
        self.send_line(format!("{{\"request\":\"hello\",\"version\":{PROTOCOL_VERSION}}}").as_bytes());
        match self.read_reply() {
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
fn worker_checks_the_version_and_survives_malformed_lines() {
    let fixture = Fixture::new();
    let mut worker = RawWorker::start(&fixture);
    worker.send_line(b"{\"request\":\"devices\",\"id\":1}");
    assert!(worker.fault().contains("hello"));
    worker.send_line(b"{\"request\":\"hello\",\"version\":99}");
    let message = worker.fault();
    assert!(message.contains("99") && message.contains(&PROTOCOL_VERSION.to_string()), "{message}");
    worker.send_line(b"{\"request\":\"models\",\"id\":1}");
    assert!(worker.fault().contains("hello"), "a refused version is not a handshake");
    let folder = worker.handshake();
    assert!(folder.starts_with(fixture.path("tmp")) && folder.is_dir());
    let lines: [&[u8]; 8] = [
        b"what?",
        b"{}",
        b"[1,2]",
        b"{\"request\":\"dance\",\"id\":1}",
        b"{\"request\":\"run\",\"job\":{\"predict\":{}}}",
        b"{\"request\":\"cancel\",\"id\":-4}",
        b"{\"request\":\"hello\",\"version\":1",
        b"\xff\xfe{}",
    ];
    for line in lines {
        worker.send_line(line);
        let message = worker.fault();
        assert!(message.len() > 20, "{message}");
    }
    // An invalid job fails, so that nobody waits for it.
    for (id, job) in [(8, "{\"paint\":{}}"), (9, "{\"train_check\":{\"task\":\"nothing\"}}")] {
        worker.send_line(format!("{{\"request\":\"run\",\"id\":{id},\"job\":{job}}}").as_bytes());
        match worker.read_reply() {
            Reply::Failed { id: of, kind: JobErrorKind::WrongUse, .. } => assert_eq!(of, JobId(id)),
            other => panic!("{other:?}"),
        }
    }
    // A line longer than the limit.
    worker.send_line(&vec![b'a'; (16 << 20) + 1]);
    assert!(worker.fault().contains("16777216 bytes"));
    worker.send_line(b"");
    worker.send_line(b"{\"request\":\"cancel\",\"id\":12345}");
    worker.send_line(b"{\"request\":\"release\",\"id\":12345}");
    // It still runs jobs; relative paths refer to its working directory.
    fixture.write("a.tif", "ZYX", &[2, 8, 8], vec![1u16; 128]);
    worker
        .send_line(b"{\"request\":\"run\",\"id\":7,\"job\":{\"convert\":{\"input\":\"a.tif\",\"output\":\"a.npy\"}}}");
    let replies: Vec<Reply> =
        std::iter::repeat_with(|| worker.read_reply()).take_while(|r| r.ends().is_none()).collect();
    assert!(replies.contains(&Reply::Started { id: JobId(7) }), "{replies:?}");
    assert!(fixture.path("a.npy").is_file());
    // On shutdown it ends and removes its folder.
    worker.send_line(b"{\"request\":\"shutdown\"}");
    assert!(worker.child.wait().unwrap().success());
    assert!(!folder.exists() && fixture.names("tmp").is_empty(), "{:?}", fixture.names("tmp"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_finds_models_and_devices_after_its_program_file_was_replaced() {
    let fixture = Fixture::new();
    // Beside the built program, so that both can be links to one file.
    let installed = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = installed.path().join("cytoscope");
    let model = installed.path().join("models/nuclei-dog");
    std::fs::create_dir_all(&model).unwrap();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/models/nuclei-dog")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    std::fs::hard_link(env!("CARGO_BIN_EXE_cytoscope"), &program).unwrap();
    let usual = command(&fixture);
    let mut worker = Command::new(&program);
    worker.args(usual.get_args()).envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    worker.env_remove("CYTOSCOPE_MODELS").env_remove("CYTOSCOPE_SOFTWARE_GPU");
    let mut engine = Engine::start_command(&worker);
    engine.ready();
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "another version").unwrap();
    engine.worker.send(Request::Models { id: JobId(1) });
    let models =
        engine.reply("the models", |r| if let Reply::Models { models, .. } = r { Some(models.clone()) } else { None });
    let model = model.canonicalize().unwrap();
    assert!(models.iter().any(|card| card.name == "nuclei-dog" && card.path == model), "{models:?}");
    engine.worker.send(Request::Devices { id: JobId(2), again: true });
    let devices = engine
        .reply("the devices", |r| if let Reply::Devices { devices, .. } = r { Some(devices.clone()) } else { None });
    assert!(devices.iter().all(|device| !device.reason.contains("cannot start")), "{devices:?}");
}

#[cfg(unix)]
#[test]
fn killed_worker_leaves_nothing_and_the_next_one_continues_its_prediction() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&fixture);
    let (first, folder) = engine.ready();
    engine.worker.send(predict_request(1, long_job(&fixture, "o"), true));
    engine.worker.send(Request::run(JobId(2), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    engine.worker.send(Request::run(JobId(3), Job::Convert(convert(&fixture, &raw, "b.npy"))));
    engine.wait_for_tiles(1);
    assert!(!fixture.leftovers().is_empty() && folder.is_dir(), "partial files exist while it runs");
    kill(first);
    let (reason, lost, again) = engine.wait("the end of the process", died);
    let continued: Vec<JobId> = again.iter().map(|job| job.id).collect();
    assert_eq!((lost.as_slice(), continued.as_slice()), (&[][..], &[JobId(1)][..]));
    assert!(reason.contains("signal 9") && again[0].note.contains(&reason), "{reason}: {again:?}");
    assert!(!again[0].note.contains("on the CPU"), "it ran there before: {again:?}");
    assert!(!folder.exists() && fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
    assert!(fixture.names("o").is_empty(), "{:?}", fixture.names("o"));
    engine.wait("a new process", |e| (*e == WorkerEvent::Restarted).then_some(()));
    // It continues before the waiting jobs.
    engine.done(1);
    engine.done(2);
    engine.done(3);
    assert!(fixture.path("a.npy").is_file() && fixture.path("b.npy").is_file());
    let (second, _) = engine.ready();
    assert_ne!(first, second);
    let names = ["large_labels.tif", "large_objects.csv", "large_probability.tif", "large_provenance.json"];
    assert_eq!(fixture.names("o"), names);
    drop(engine);
    assert!(!is_alive(second) && fixture.names("tmp").is_empty(), "{:?}", fixture.names("tmp"));
}

/// Starts a long live prediction in a worker without a client, and returns once tiles are computed.
fn start_prediction(fixture: &Fixture) -> (RawWorker, PathBuf) {
    let job = long_job(fixture, "o");
    let mut worker = RawWorker::start(fixture);
    let folder = worker.handshake();
    let request = predict_request(1, job, true);
    worker.send_line(&serde_json::to_vec(&request).unwrap());
    while !matches!(worker.read_reply(), Reply::Live { .. }) {}
    assert!(!fixture.leftovers().is_empty() && folder.is_dir(), "partial files exist while it runs");
    (worker, folder)
}

#[test]
fn worker_ends_when_its_input_closes_during_a_job() {
    let fixture = Fixture::new();
    let (mut worker, folder) = start_prediction(&fixture);
    worker.input = None;
    // Its remaining output need not be read.
    drop(worker.output);
    assert!(worker.child.wait().unwrap().success());
    assert!(!folder.exists() && fixture.names("tmp").is_empty(), "{:?}", fixture.names("tmp"));
    assert!(fixture.names("o").is_empty() && fixture.leftovers().is_empty(), "{:?}", fixture.leftovers());
}

#[cfg(unix)]
#[test]
fn next_worker_removes_what_a_killed_one_left() {
    let fixture = Fixture::new();
    let (mut worker, folder) = start_prediction(&fixture);
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    assert!(folder.is_dir() && !fixture.leftovers().is_empty());
    // Foreign folders and those of living workers stay.
    let mut alive = RawWorker::start(&fixture);
    let other = alive.handshake();
    assert!(!folder.exists(), "{:?}", fixture.names("tmp"));
    assert!(fixture.leftovers().is_empty() && fixture.names("o").is_empty(), "{:?}", fixture.leftovers());
    std::fs::create_dir(fixture.path("tmp/cytoscope-worker-notes")).unwrap();
    let mut third = RawWorker::start(&fixture);
    third.handshake();
    assert!(other.is_dir() && fixture.path("tmp/cytoscope-worker-notes").is_dir());
    for mut worker in [alive, third] {
        worker.input = None;
        assert!(worker.child.wait().unwrap().success());
    }
}

#[cfg(unix)]
#[test]
fn client_gives_up_on_a_silent_program() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let silent = || {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 1000"]);
        command
    };
    let timeouts = Timeouts { ready: Duration::from_millis(300), ..Timeouts::default() };
    let worker = Worker::start_with_timeouts(silent, Arc::new(|| {}), timeouts);
    worker.send(Request::run(JobId(1), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    let end = Instant::now() + TIMEOUT;
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
    assert_eq!(reason, "the engine process did not respond within 1 s");
    assert_eq!((lost.as_slice(), worker.state()), ([JobId(1)].as_slice(), WorkerState::Dead));
}

/// A shell in the folder of the fixture that is ready for requests and then executes a script.
#[cfg(unix)]
fn shell(fixture: &Fixture, script: &str) -> Command {
    let ready = format!(
        "{{\"reply\":\"ready\",\"version\":{PROTOCOL_VERSION},\"program\":\"0\",\"pid\":'$$',\"folder\":\"/nowhere/at-all\"}}"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &format!("read -r hello; echo '{ready}'; {script}")]).current_dir(fixture.path("."));
    command
}

/// A prediction that may run on a GPU.
#[cfg(unix)]
fn any_prediction() -> PredictJob {
    job(json!({"inputs": ["a.tif"], "model": "nuclei", "out": "o", "device": "auto"}))
}

/// The last reply of a process that does not hang.
#[cfg(unix)]
const RAN_ON_CPU: &str = "{\"reply\":\"failed\",\"id\":1,\"kind\":\"other\",\"sentence\":\"it ran on the CPU\"}";

/// A process that starts a job on the first of two GPUs that the client does not leave out, and then hangs. Without such a
/// GPU, the job fails. It appends the requests to `requests.txt`.
#[cfg(unix)]
fn hanging(fixture: &Fixture) -> Command {
    let choose = "case \"$hello\" in *cuda:1*) gpu=cpu;; *cuda:0*) gpu=cuda:1;; *) gpu=cuda:0;; esac";
    let event = "{\"event\":\"device\",\"id\":\"'$gpu'\",\"name\":\"a GPU\",\"why\":\"requested\"}";
    let started = "{\"reply\":\"started\",\"id\":1}";
    let device = format!("{{\"reply\":\"progress\",\"id\":1,\"event\":{event}}}");
    let record = "read -r run || exit; printf '%s\\n' \"$run\" >> requests.txt";
    let end = format!("[ $gpu != cpu ] || echo '{RAN_ON_CPU}'; exec sleep 1000");
    shell(fixture, &format!("{choose}; {record}; echo '{started}'; echo '{device}'; {end}"))
}

/// A process that starts the first job and then hangs, before it reports a device. Every later job fails. It appends the
/// requests to `requests.txt`.
#[cfg(unix)]
fn hanging_before_its_device_is_known(fixture: &Fixture) -> Command {
    let started = "{\"reply\":\"started\",\"id\":1}";
    let record = "printf '%s\\n' \"$run\" >> requests.txt";
    let later = format!("[ -e requests.txt ] && {{ {record}; echo '{RAN_ON_CPU}'; exec sleep 1000; }}");
    shell(fixture, &format!("read -r run || exit; {later}; {record}; echo '{started}'; exec sleep 1000"))
}

/// Asserts that the job of a process ends on the CPU.
#[cfg(unix)]
fn assert_ran_on_cpu(engine: &mut Engine) {
    let end = engine.end(1);
    assert!(matches!(&end, Reply::Failed { message, .. } if message == "it ran on the CPU"), "{end:?}");
}

/// The jobs that hanging processes were asked to run.
#[cfg(unix)]
fn requested(fixture: &Fixture) -> Vec<Job> {
    let text = String::from_utf8(fixture.bytes("requests.txt")).unwrap();
    let job = |line: &str| match serde_json::from_str::<Request>(line).unwrap() {
        Request::Run { job, .. } => *job,
        other => panic!("{other:?}"),
    };
    text.lines().map(job).collect()
}

/// How predictions were to continue in the requests of a fixture, and why on the CPU.
#[cfg(unix)]
fn continued(fixture: &Fixture) -> Vec<(bool, Option<String>)> {
    let job_files = |job: &Job| match job {
        Job::Predict { prediction, .. } => (prediction.resume, prediction.cpu_because.clone()),
        other => panic!("{other:?}"),
    };
    requested(fixture).iter().map(job_files).collect()
}

/// Times after which a job that shows no progress soon counts as hung, although other tests leave its process little of the
/// processor before it hangs.
#[cfg(unix)]
fn short_timeouts() -> Timeouts {
    Timeouts { progress: Duration::from_secs(5), ..Timeouts::default() }
}

#[cfg(unix)]
#[test]
fn a_job_that_hangs_on_a_gpu_continues_on_the_next_one_and_then_on_the_cpu() {
    let fixture = Fixture::new();
    let mut engine = Engine::start_with(&hanging(&fixture), short_timeouts());
    engine.worker.send(predict_request(1, any_prediction(), false));
    for gpu in ["cuda:0", "cuda:1"] {
        let (reason, lost, again) = engine.wait("the end of a process", died);
        let expected = format!("the job on {gpu} showed no progress");
        assert!(reason.contains(&expected) && lost.is_empty(), "{reason}: {lost:?}");
        assert!(again[0].id == JobId(1) && again[0].note.ends_with("on another device"), "{again:?}");
    }
    assert_ran_on_cpu(&mut engine);
    assert_eq!(continued(&fixture), [(false, None), (true, None), (true, None)]);
}

#[cfg(unix)]
#[test]
fn a_job_that_hangs_before_its_device_is_known_continues_on_the_cpu() {
    let fixture = Fixture::new();
    let mut engine = Engine::start_with(&hanging_before_its_device_is_known(&fixture), short_timeouts());
    engine.worker.send(predict_request(1, any_prediction(), false));
    let (reason, lost, again) = engine.wait("the first process", died);
    assert!(reason.contains("the job on a GPU showed no progress") && lost.is_empty(), "{reason}: {lost:?}");
    assert!(again[0].id == JobId(1) && again[0].note.ends_with("on the CPU"), "{again:?}");
    assert_ran_on_cpu(&mut engine);
    let because = format!("a GPU was in use when {reason}");
    assert_eq!(continued(&fixture), [(false, None), (true, Some(because))]);
}

#[cfg(unix)]
#[test]
fn scoring_that_hangs_on_a_gpu_starts_again_on_the_next_one_and_then_on_the_cpu() {
    let fixture = Fixture::new();
    let mut engine = Engine::start_with(&hanging(&fixture), short_timeouts());
    let score = serde_json::from_value(json!({"evaluate_model": {"model": "nuclei", "data": "d"}})).unwrap();
    engine.worker.send(Request::run(JobId(1), score));
    for _ in 0..2 {
        let (_, lost, again) = engine.wait("the end of a process", died);
        assert!(lost.is_empty() && again[0].id == JobId(1), "{lost:?} {again:?}");
        assert!(again[0].note.ends_with("the evaluation starts again, on another device"), "{again:?}");
    }
    assert_ran_on_cpu(&mut engine);
    let devices: Vec<DeviceRequest> = requested(&fixture).iter().map(Job::device).collect();
    assert_eq!(devices, [DeviceRequest::Auto; 3]);
}

#[cfg(unix)]
#[test]
fn a_canceled_job_that_hangs_on_a_gpu_does_not_block_the_queue() {
    let fixture = Fixture::new();
    let timeouts = Timeouts { canceled: Duration::from_millis(200), ..Timeouts::default() };
    let mut engine = Engine::start_with(&hanging(&fixture), timeouts);
    engine.worker.send(predict_request(1, any_prediction(), false));
    let on_gpu = |reply: &Reply| matches!(reply, Reply::Progress { .. }).then_some(());
    engine.reply("the device", on_gpu);
    engine.worker.send(Request::Cancel { id: JobId(1) });
    assert_eq!(engine.end(1), Reply::Canceled { id: JobId(1) });
    let (reason, lost, again) = engine.wait("the end of the process", died);
    assert!(reason.contains("the canceled job on cuda:0 did not stop"), "{reason}");
    assert!(lost.is_empty() && again.is_empty(), "{lost:?} {again:?}");
    engine.wait("the next process", |event| (*event == WorkerEvent::Restarted).then_some(()));
    // The next job may use the GPU.
    engine.worker.send(predict_request(1, any_prediction(), false));
    let device = engine.reply("the next device", |reply| match reply {
        Reply::Progress { event: cytoscope_pipeline::Event::Device(device), .. } => Some(device.id),
        _ => None,
    });
    assert_eq!(device, cytoscope_engine::DeviceId::Cuda(0));
}

/// The reply about progress with this event.
#[cfg(unix)]
fn progress(event: &str) -> String {
    format!("{{\"reply\":\"progress\",\"id\":1,\"event\":{event}}}")
}

/// A process that starts the first job on a GPU, executes `end`, and is to end there. The next process ends, too, if it is to
/// leave out a GPU; otherwise its job fails. It appends its requests to `requests.txt`.
#[cfg(unix)]
fn ending_once(fixture: &Fixture, end: &str) -> Command {
    let device = progress("{\"event\":\"device\",\"id\":\"cuda:0\",\"name\":\"a GPU\",\"why\":\"requested\"}");
    let started = "{\"reply\":\"started\",\"id\":1}";
    let first = format!("touch first; echo '{started}'; echo '{device}'; {end}");
    let next = format!("case \"$hello\" in *cuda*) exit 4;; esac; echo '{RAN_ON_CPU}'; exec sleep 1000");
    let record = "printf '%s\\n' \"$run\" >> requests.txt";
    shell(fixture, &format!("read -r run || exit; [ -e first ] || {{ {first}; }}; {record}; {next}"))
}

#[cfg(unix)]
#[test]
fn a_process_that_ends_while_objects_are_found_leaves_no_gpu_out() {
    let fixture = Fixture::new();
    let amounts = "\"stage\":\"objects\",\"done\":1,\"total\":9,\"unit\":\"slices\",\"rate\":0.0,\"eta_secs\":0.0";
    let objects = progress(&format!("{{\"event\":\"progress\",{amounts}}}"));
    let command = ending_once(&fixture, &format!("echo '{objects}'; exit 3"));
    let mut engine = Engine::start_with(&command, Timeouts::default());
    engine.worker.send(predict_request(1, any_prediction(), false));
    let (reason, lost, again) = engine.wait("the first process", died);
    assert!(reason.contains("exit code 3") && lost.is_empty() && again.len() == 1, "{reason}: {lost:?}");
    assert!(again[0].note.ends_with("continues after its finished slices"), "{again:?}");
    assert_ran_on_cpu(&mut engine);
    assert_eq!(continued(&fixture), [(true, None)]);
}

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_leaves_no_gpu_out() {
    let fixture = Fixture::new();
    let mut engine = Engine::start_with(&ending_once(&fixture, "kill -KILL $$"), Timeouts::default());
    engine.worker.send(predict_request(1, any_prediction(), false));
    let (reason, lost, again) = engine.wait("the first process", died);
    assert!(reason.contains("(kill)") && lost.is_empty() && again.len() == 1, "{reason}: {lost:?}");
    assert!(again[0].note.ends_with("on the CPU"), "{again:?}");
    assert_ran_on_cpu(&mut engine);
    assert_eq!(continued(&fixture), [(true, Some(format!("cuda:0 was in use when {reason}")))]);
}

#[cfg(unix)]
#[test]
fn a_process_whose_output_stays_open_after_it_was_killed_is_replaced() {
    let fixture = Fixture::new();
    let started = "{\"reply\":\"started\",\"id\":1}";
    // The first process starts another one, which keeps the output open.
    let first = format!("touch first; sleep 100 & echo '{started}'; exec sleep 1000");
    let script = format!("read -r run || exit; [ -e first ] || {{ {first}; }}; echo '{RAN_ON_CPU}'; exec sleep 1000");
    let mut engine = Engine::start_with(&shell(&fixture, &script), short_timeouts());
    engine.worker.send(predict_request(1, any_prediction(), false));
    let (reason, lost, again) = engine.wait("the first process", died);
    assert!(reason.contains("showed no progress") && lost.is_empty() && again.len() == 1, "{reason}: {lost:?}");
    assert_ran_on_cpu(&mut engine);
}

#[cfg(unix)]
#[test]
fn a_process_that_retires_is_replaced_and_the_next_one_gets_the_waiting_jobs() {
    let fixture = Fixture::new();
    let retiring = "{\"reply\":\"retiring\",\"reason\":\"cuda:0 has failed\"}";
    let failed = "{\"reply\":\"failed\",\"id\":1,\"kind\":\"other\",\"sentence\":\"this is the second process\"}";
    // It ends when its standard input is closed.
    let first = format!("echo first >> retired; echo '{retiring}'; cat > /dev/null; exit 3");
    let script = format!("read -r run || exit; [ -e retired ] || {{ {first}; }}; echo '{failed}'; cat > /dev/null");
    let mut engine = Engine::start_command(&shell(&fixture, &script));
    engine.worker.send(predict_request(1, any_prediction(), false));
    let reply = engine.end(1);
    assert!(matches!(&reply, Reply::Failed { message, .. } if message == "this is the second process"), "{reply:?}");
    assert!(engine.seen.contains(&WorkerEvent::Restarted), "{:?}", engine.seen);
    let is_death = |e: &WorkerEvent| matches!(e, WorkerEvent::Died { .. } | WorkerEvent::GaveUp { .. });
    assert!(!engine.seen.iter().any(is_death), "{:?}", engine.seen);
}

#[cfg(unix)]
#[test]
fn client_gives_up_after_repeated_deaths() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let gave_up = |e: &WorkerEvent| match e {
        WorkerEvent::GaveUp { reason, lost } => Some((reason.clone(), lost.clone())),
        _ => None,
    };
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo the driver is upset >&2; exit 3"]);
    let mut engine = Engine::start_command(&shell);
    engine.worker.send(Request::run(JobId(1), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    let (reason, lost) = engine.wait("giving up", gave_up);
    assert!(reason.contains("exit code 3") && reason.contains("the driver is upset"), "{reason}");
    assert_eq!(lost, [JobId(1)]);
    let deaths = engine.seen.iter().filter(|e| matches!(e, WorkerEvent::Died { .. })).count();
    assert_eq!((deaths, engine.worker.state()), (3, WorkerState::Dead));
    engine.worker.send(Request::Cancel { id: JobId(1) });
    engine.worker.send(Request::run(JobId(2), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    assert!(matches!(engine.end(2), Reply::Failed { .. }), "jobs fail instead of waiting forever");
    engine.worker.restart();
    engine.wait("giving up again", gave_up);
    // A missing program and one that does not speak the protocol are not retried.
    let mut engine = Engine::start_command(&Command::new("/no/such/program"));
    assert!(engine.wait("giving up", gave_up).0.contains("/no/such/program"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo good morning; cat"]);
    let mut engine = Engine::start_command(&shell);
    engine.wait("giving up", gave_up);
    assert!(!engine.seen.iter().any(|e| matches!(e, WorkerEvent::Died { .. })));
}

#[cfg(unix)]
#[test]
fn shutdown_is_not_a_crash_and_restart_works() {
    let fixture = Fixture::new();
    let raw = fixture.nuclei("6,32,32", 1);
    let mut engine = Engine::start(&fixture);
    let (pid, _) = engine.ready();
    engine.worker.send(Request::Shutdown);
    let start = Instant::now();
    while engine.worker.state() != WorkerState::Dead {
        assert!(start.elapsed() < TIMEOUT);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!is_alive(pid));
    engine.worker.restart();
    engine.ready();
    engine.worker.send(Request::run(JobId(1), Job::Convert(convert(&fixture, &raw, "a.npy"))));
    engine.done(1);
    assert!(!engine.seen.iter().any(|e| matches!(e, WorkerEvent::Died { .. } | WorkerEvent::GaveUp { .. })));
}

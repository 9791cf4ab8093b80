//! The worker process, driven without a client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use super::*;
use cytoscope_engine::{Engine, EngineError, Precision};
use cytoscope_pipeline::PerformanceRequest;
use cytoscope_testkit::SharedBuffer;
use serde_json::json;
use std::io::{Cursor, Read};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

#[test]
fn a_panic_fails_only_its_job() {
    let error = catch_panics(|| -> Result<(), JobError> { panic!("slice 7 is missing") }).unwrap_err();
    assert!(error.to_string().contains("slice 7 is missing"), "{error}");
    assert_eq!(error.kind(), JobErrorKind::Other);
}

#[test]
fn a_segmentation_releases_all_segmentations_that_it_replaces() {
    let folder = tempfile::tempdir().unwrap();
    let mut retained = RetainedFiles::default();
    let files = [1, 2, 3, 4].map(|i| (JobId(i), folder.path().join(i.to_string())));
    for (id, path) in &files {
        std::fs::write(path, "labels").unwrap();
        retained.labels.insert(*id, path.clone());
    }
    // 1 is done, 2 was canceled before it was done, 3 is done; 4 is unrelated.
    retained.replaces.extend([(JobId(2), JobId(1)), (JobId(3), JobId(2))]);
    retained.release_replaced(JobId(3));
    assert_eq!(files.each_ref().map(|(_, path)| path.exists()), [false, false, true, true]);
    assert!(retained.replaces.is_empty());
}

#[test]
fn a_refused_segmentation_replaces_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let options = WorkerOptions { discover: Box::new(Devices::cpu_only), temporary: temporary.path().to_owned() };
    let shared = ServeShared::new(io::sink(), options).unwrap();
    let segment = |replaces: Option<u64>| Job::Segment {
        segmentation: serde_json::from_str("{\"map\": \"m.tif\"}").unwrap(),
        replaces: replaces.map(JobId),
    };
    for id in 1..=MAX_QUEUED_JOBS as u64 {
        shared.enqueue(JobId(id), segment(None)).unwrap();
    }
    assert_eq!(shared.enqueue(JobId(2), segment(Some(1))), Err(ProtocolError::DuplicateId(JobId(2))));
    // The queue is full, and the segmentation to replace is not in it.
    let is_queued = |id: JobId| shared.queue().contains(id);
    let new = JobId(1 << 40);
    shared.enqueue(new, segment(Some(1 << 41))).unwrap();
    assert!(!is_queued(new) && shared.retained().replaces.is_empty());
    shared.enqueue(new, segment(Some(1))).unwrap();
    assert!(is_queued(new) && !is_queued(JobId(1)));
    assert_eq!(shared.retained().replaces, BTreeMap::from([(new, JobId(1))]));
}

/// Returns lines, then blocks until it is asked to end, such as when a job has started.
struct Lines(Cursor<Vec<u8>>, Receiver<()>);

impl Read for Lines {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(to)?;
        if n == 0 {
            let _ = self.1.recv_timeout(Duration::from_secs(60));
        }
        Ok(n)
    }
}

#[test]
fn a_job_that_does_not_stop_does_not_keep_the_worker_alive() {
    let temporary = tempfile::tempdir().unwrap();
    let (started, wait) = channel();
    let has_answered = Arc::new(AtomicBool::new(false));
    let answered = Arc::clone(&has_answered);
    let discover = move || {
        let _ = started.send(());
        // A driver that hangs.
        std::thread::sleep(GRACE * 20);
        answered.store(true, Ordering::SeqCst);
        Devices::cpu_only()
    };
    let hello = Request::Hello { version: PROTOCOL_VERSION, failed: Vec::new() };
    let prediction = serde_json::from_str("{\"inputs\": [\"a.tif\"], \"model\": \"nuclei\", \"out\": \"o\"}").unwrap();
    let predict = Request::run(
        JobId(1),
        Job::Predict {
            prediction,
            live: false,
            operators: false,
            performance: PerformanceRequest::Off,
            remeasure: false,
        },
    );
    let lines = [hello, predict].map(|r| format!("{}\n", serde_json::to_string(&r).unwrap())).concat();
    let options = WorkerOptions { discover: Box::new(discover), temporary: temporary.path().to_owned() };
    serve(io::BufReader::new(Lines(Cursor::new(lines.into_bytes()), wait)), io::sink(), options).unwrap();
    assert!(!has_answered.load(Ordering::SeqCst), "the worker waited for the driver");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn an_invalid_job_fails_and_does_not_end_an_accepted_one() {
    let temporary = tempfile::tempdir().unwrap();
    let (started, wait) = channel();
    let output = SharedBuffer::default();
    let replies_so_far = output.clone();
    let discover = move || {
        let _ = started.send(());
        // The job runs until all lines are read.
        let start = Instant::now();
        while !String::from_utf8_lossy(&replies_so_far.bytes()).contains("\"id\":2")
            && start.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        Devices::cpu_only()
    };
    let hello = format!("{{\"request\":\"hello\",\"version\":{PROTOCOL_VERSION}}}");
    let prediction = "{\"prediction\":{\"inputs\":[\"a.tif\"],\"model\":\"nuclei\",\"out\":\"o\"}}";
    let lines = [
        "{\"request\":\"run\",\"id\":1,\"job\":{\"paint\":{}}}".to_owned(),
        hello,
        format!("{{\"request\":\"run\",\"id\":1,\"job\":{{\"predict\":{prediction}}}}}"),
        "{\"request\":\"run\",\"id\":1,\"job\":{\"paint\":{}}}".to_owned(),
        "{\"request\":\"run\",\"id\":2,\"job\":{\"paint\":{}}}\n".to_owned(),
    ];
    let options = WorkerOptions { discover: Box::new(discover), temporary: temporary.path().to_owned() };
    let input = Lines(Cursor::new(lines.join("\n").into_bytes()), wait);
    serve(io::BufReader::new(input), output.clone(), options).unwrap();
    let text = String::from_utf8(output.bytes()).unwrap();
    let replies: Vec<Reply> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let faults = replies.iter().filter(|r| matches!(r, Reply::Fault { .. })).count();
    let is_refused = |id: u64| {
        let is_of = |r: &&Reply| r.ends() == Some(JobId(id));
        let mut ends = replies.iter().filter(is_of);
        ends.any(|r| matches!(r, Reply::Failed { kind: JobErrorKind::WrongUse, .. }))
    };
    assert_eq!((faults, is_refused(1), is_refused(2)), (2, false, true), "{text}");
}

/// Writes to a buffer, and says when the worker has retired.
struct UntilRetired(SharedBuffer, Sender<()>);

impl Write for UntilRetired {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.windows(8).any(|part| part == b"retiring") {
            let _ = self.1.send(());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the replies to requests until the worker has retired.
fn replies_until_retired(requests: Vec<Request>, discover: impl Fn() -> Devices + Send + Sync + 'static) -> Vec<Reply> {
    replies_without(Vec::new(), requests, discover)
}

/// Returns the replies of a worker that leaves out GPUs, until it has retired.
fn replies_without(
    failed: Vec<FailedDevice>,
    requests: Vec<Request>,
    discover: impl Fn() -> Devices + Send + Sync + 'static,
) -> Vec<Reply> {
    let temporary = tempfile::tempdir().unwrap();
    let (retired, wait) = channel();
    let hello = Request::Hello { version: PROTOCOL_VERSION, failed };
    let lines = std::iter::once(hello).chain(requests).map(|r| serde_json::to_string(&r).unwrap() + "\n");
    let input = Lines(Cursor::new(lines.collect::<String>().into_bytes()), wait);
    let output = SharedBuffer::default();
    let options = WorkerOptions { discover: Box::new(discover), temporary: temporary.path().to_owned() };
    serve(io::BufReader::new(input), UntilRetired(output.clone(), retired), options).unwrap();
    let text = String::from_utf8(output.bytes()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn gpu() -> Device {
    Device::named(DeviceId::Cuda(0), "a GPU", &[Precision::F32])
}

#[test]
fn the_worker_retires_after_other_devices_were_found() {
    let count = AtomicUsize::new(0);
    let discover = move || {
        // The third time, there is a GPU.
        let gpus = if count.fetch_add(1, Ordering::Relaxed) < 2 { Vec::new() } else { vec![gpu()] };
        Devices::with_gpus(gpus)
    };
    let requests = [false, false, true, true].into_iter().zip(1..);
    let requests = requests.map(|(again, id)| Request::Devices { id: JobId(id), again }).collect();
    let replies = replies_until_retired(requests, discover);
    let listed = replies.iter().filter_map(|reply| match reply {
        Reply::Devices { id, devices } => Some((id.0, devices.len())),
        _ => None,
    });
    assert_eq!(listed.collect::<Vec<_>>(), [(1, 1), (2, 1), (3, 1), (4, 2)], "{replies:?}");
    assert!(matches!(replies.last(), Some(Reply::Retiring { .. })), "{replies:?}");
}

#[test]
fn a_gpu_that_an_earlier_process_used_at_its_end_is_left_out_until_devices_are_looked_for_again() {
    let reason = "it was in use when the driver hung".to_owned();
    let failed = vec![FailedDevice { id: DeviceId::Cuda(0), reason: reason.clone() }];
    let requests = [false, true].into_iter().zip(1..);
    let requests = requests.map(|(again, id)| Request::Devices { id: JobId(id), again }).collect();
    let replies = replies_without(failed, requests, || Devices::with_gpus(vec![gpu()]));
    let listed = replies.iter().filter_map(|reply| match reply {
        Reply::Devices { devices, .. } => devices.first().map(|gpu| (gpu.usable, gpu.reason.clone())),
        _ => None,
    });
    assert_eq!(listed.collect::<Vec<_>>(), [(false, reason), (true, String::new())], "{replies:?}");
    assert!(matches!(replies.last(), Some(Reply::Retiring { .. })), "{replies:?}");
}

/// Opens no device.
fn open_none(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
    Err(EngineError::Device { device: device.id, reason: "it has no power".into() })
}

/// Asserts that the worker retires after the first of two predictions on a device, during which a GPU fails.
fn assert_retires_after_a_failed_gpu(device: &str) {
    let out = tempfile::tempdir().unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let request = |id: u64| {
        let (input, model) = (format!("{folder}/sample_data/nuclei_raw.tif"), format!("{folder}/models/nuclei-dog"));
        let prediction = json!({"inputs": [input], "model": model, "out": out.path(), "device": device});
        let job = serde_json::from_value(json!({"predict": {"prediction": prediction}})).unwrap();
        Request::run(JobId(id), job)
    };
    let cpu = Devices::cpu_only().list()[0].clone();
    let discover = move || Devices::with_engines(vec![gpu(), cpu.clone()], open_none);
    let replies = replies_until_retired(vec![request(1), request(2)], discover);
    let lost = Event::DeviceLost { id: DeviceId::Cuda(0), reason: "it has no power".to_owned() };
    assert!(replies.contains(&Reply::Progress { id: JobId(1), event: lost }), "{replies:?}");
    assert!(replies.iter().any(|reply| reply.ends() == Some(JobId(1))), "{replies:?}");
    assert!(!replies.contains(&Reply::Started { id: JobId(2) }), "{replies:?}");
    assert!(matches!(replies.last(), Some(Reply::Retiring { reason }) if reason.contains("cuda:0")), "{replies:?}");
}

#[test]
fn the_worker_starts_no_job_after_one_in_which_a_gpu_has_failed() {
    assert_retires_after_a_failed_gpu("cuda:0");
}

#[test]
fn the_worker_starts_no_job_after_a_gpu_has_failed_while_devices_were_compared() {
    assert_retires_after_a_failed_gpu("auto");
}

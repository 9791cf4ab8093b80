//! `cytoscope profile --leaks`: repeats a job in one process, and fails if its memory grows.

use super::failure::{Failure, Outcome};
use super::predict::message_of;
use super::{devices, eprint_line, print, print_json, progress, unreadable};
use cytoscope_formats::chunk_cache_bytes;
use cytoscope_pipeline::{Context, JobErrorKind, engine_memory};
use cytoscope_profile::leaks::{LeakReport, MAX_REPETITIONS, MIN_REPETITIONS, MemoryOwner, repeat};
use cytoscope_profile::{Recorder, resident_bytes};
use cytoscope_storage::message;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::{by_count, counted};
use cytoscope_training_data::patch_cache_bytes;
use cytoscope_worker::{Job, JobResult};
use std::io::Read;
use std::path::Path;

/// Maximum size of a job in bytes.
const MAX_JOB_BYTES: u64 = 1 << 20;
/// Number of repetitions with which growth of the whole process is rarely mistaken for a leak.
const CERTAIN_REPETITIONS: usize = 20;
/// Name of the owner of all memory, which is not counted exactly.
const PROCESS: &str = "process";
/// The owners of memory that are judged. All but the process are counted exactly.
const OWNERS: [MemoryOwner; 5] = [
    MemoryOwner { name: PROCESS, tolerance_bytes: 1 << 20, bytes: resident_bytes },
    MemoryOwner { name: "engine arena", tolerance_bytes: 0, bytes: || engine_memory().arena_bytes },
    MemoryOwner { name: "device memory", tolerance_bytes: 0, bytes: device_bytes },
    MemoryOwner { name: "chunk cache", tolerance_bytes: 0, bytes: || Some(chunk_cache_bytes()) },
    MemoryOwner { name: "patch cache", tolerance_bytes: 0, bytes: || Some(patch_cache_bytes()) },
];

/// Returns the bytes of tensors that remain on GPUs; 0 if all sessions have ended.
fn device_bytes() -> Option<u64> {
    Some(engine_memory().device.unwrap_or_default().allocated_bytes)
}

/// Repeats the job in the file at `path`, prints the verdict, and fails if memory grows.
pub(super) fn run(path: &Path, repetitions: usize, as_json: bool) -> Outcome {
    if !(MIN_REPETITIONS..=MAX_REPETITIONS).contains(&repetitions) {
        return Err(Failure::wrong_use(format!(
            "--leaks is {repetitions}: expected {MIN_REPETITIONS} to {MAX_REPETITIONS} repetitions"
        )));
    }
    let job = read_job(path)?;
    let available = devices::for_request(job.device());
    let context = progress::context(false, true, Recorder::totals_only());
    let report = repeat(repetitions, &OWNERS, |number| {
        eprint_line(&format!("[repetition {} of {repetitions}]", number + 1));
        // A new recorder for each repetition, because recorded spans take memory.
        let context = Context { recorder: Recorder::totals_only(), ..context.clone() };
        let ran = job.run(&context, &available, None, &|_| {}).map_err(Failure::from);
        ran.and_then(failed_inputs).map_err(|failure| with_repetition(failure, number))
    })?;
    if as_json {
        print_json(&report)?;
    } else {
        let (all, are) = (counted(repetitions, "repetition"), by_count(report.warm_up, "is", "are"));
        print(&format!("{all}, of which {} {are} warm-up", report.warm_up));
        report.messages().iter().for_each(|message| print(&format!("  {message}")));
    }
    verdict(&report)
}

/// Returns whether a text is a job, which can be repeated.
pub(super) fn is_job(text: &[u8]) -> bool {
    serde_json::from_slice::<Job>(text).is_ok()
}

/// Adds to the failure of any repetition but the first (number 0) that the job itself works.
fn with_repetition(failure: Failure, number: usize) -> Failure {
    if number == 0 || failure.kind() == JobErrorKind::Canceled {
        return failure;
    }
    Failure::new(
        failure.kind(),
        message!(
            "repetition {}: {failure}; the one before succeeded: if the job may replace its results, add \"overwrite\": \
             \"replace\" to it",
            number + 1
        ),
    )
}

/// Fails if memory grows.
fn verdict(report: &LeakReport) -> Outcome {
    if report.owners.is_empty() {
        return Err(Failure::other("this system does not report the memory of a process"));
    }
    let growing: Vec<&str> = report.owners.iter().filter(|o| o.grows).map(|o| o.owner.as_str()).collect();
    if growing.is_empty() {
        return Ok(());
    }
    // The other owners are counted exactly.
    let is_certain = report.repetitions >= CERTAIN_REPETITIONS || growing != [PROCESS];
    let next_step = if is_certain {
        String::new()
    } else {
        format!("; repeat the job at least {CERTAIN_REPETITIONS} times, because its first repetitions fill caches")
    };
    Err(Failure::other(format!(
        "memory grows with the number of repetitions, held by: {}; expected constant memory after the warm-up{next_step}",
        growing.join(", ")
    )))
}

/// Fails if inputs of a prediction failed, or were skipped because their results exist: then nothing was repeated.
fn failed_inputs(result: JobResult) -> Outcome {
    let JobResult::Predict(outcome) = result else { return Ok(()) };
    if let Some(failed) = outcome.failed.first() {
        return Err(Failure::new(failed.kind, message_of(failed)));
    }
    match outcome.done.iter().find(|report| report.resumed) {
        Some(report) => Err(Failure::bad_input(format!(
            "{} was skipped, because its results exist; expected a job that computes in every repetition",
            report.input.display()
        ))
        .and_next("remove \"resume\"")),
        None => Ok(()),
    }
}

fn read_job(path: &Path) -> Result<Job, Failure> {
    let failed = |problem: String| Failure::bad_input(format!("{}: {problem}", path.display()));
    let mut text = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_JOB_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| unreadable(path, error))?;
    if text.len() as u64 > MAX_JOB_BYTES {
        return Err(failed(format!("the file is larger than {MAX_JOB_BYTES} bytes; expected a job")));
    }
    serde_json::from_slice(&text).map_err(|error| {
        let kind = JobErrorKind::BadInput;
        let expected = "expected a job such as {\"predict\": {\"prediction\": {\"inputs\": [\"a.tif\"], \"model\": \
                        \"nuclei\", \"out\": \"o\"}}}";
        Failure::new(kind, format!("{}: {error}; {expected}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_formats::{Container, Image, OpenOptions, WriteSpec, open, write_array};
    use cytoscope_pipeline::ConvertJob;
    use cytoscope_training_data::{Pair, Sampler, SamplerOptions, SourceOptions, Sources};
    use cytoscope_volume::Array;
    use std::sync::Arc;

    #[test]
    fn caches_that_outlive_a_job_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("a_raw.tif");
        let labels = folder.path().join("a_labels.tif");
        for path in [&stack, &labels] {
            let values: Vec<u16> = (0..4 * 32 * 32).map(|i| 1 + i / 512).collect();
            let array = Array::new("ZYX".parse().unwrap(), vec![4, 32, 32], values).unwrap();
            write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let zarr = folder.path().join("a.zarr");
        let job = serde_json::json!({"input": stack, "output": zarr});
        serde_json::from_value::<ConvertJob>(job).unwrap().run(&Context::default()).unwrap();
        let read = || {
            let image = open(&zarr, &OpenOptions::default()).unwrap();
            image.read_all().unwrap();
            image
        };
        let sampled = || {
            let pairs = [Pair::new("a", &stack, &labels)];
            let sources = Sources::open(&pairs, &SourceOptions::default()).unwrap();
            Sampler::new(Arc::new(sources), SamplerOptions { patch_zyx: [1, 8, 8], ..SamplerOptions::default() })
                .unwrap()
        };
        let held = |names: &[&str], job: &mut dyn FnMut()| {
            let repeated = repeat(8, &OWNERS, |_| {
                job();
                Ok::<(), ()>(())
            });
            let report = repeated.unwrap();
            let grows = |name: &str| report.owners.iter().any(|owner| owner.owner == name && owner.grows);
            assert!(
                ["chunk cache", "patch cache"].iter().all(|name| grows(name) == names.contains(name)),
                "{report:?}"
            );
            verdict(&report)
        };
        let mut images: Vec<Image> = Vec::new();
        let failure = held(&["chunk cache"], &mut || images.push(read())).unwrap_err();
        assert!(failure.to_string().contains("chunk cache"), "{failure}");
        let mut samplers: Vec<Sampler> = Vec::new();
        let failure = held(&["patch cache"], &mut || samplers.push(sampled())).unwrap_err();
        assert!(failure.to_string().contains("patch cache"), "{failure}");
        // Memory that a job frees does not count as held.
        let _ = held(&[], &mut || drop((read(), sampled())));
    }

    #[test]
    fn the_verdict_names_who_holds_the_memory() {
        let owner = |name: &'static str, grows_by: u64| {
            let held = move |number: u64| 1000 + number * grows_by;
            cytoscope_profile::leaks::OwnerGrowth {
                owner: name.to_owned(),
                bytes: (0..8).map(held).collect(),
                growth_bytes: grows_by as f64,
                grows: grows_by > 0,
            }
        };
        let report = |owners| LeakReport { repetitions: 8, warm_up: 2, owners };
        assert!(verdict(&report(vec![owner("process", 0), owner("engine arena", 0)])).is_ok());
        let failure = verdict(&report(vec![owner("process", 9), owner("engine arena", 0)])).unwrap_err();
        assert_eq!(failure.exit_code(), 1);
        assert!(failure.to_string().contains("held by: process;"), "{failure}");
        assert!(failure.to_string().contains("at least 20 times"), "few repetitions: {failure}");
        let counted = verdict(&report(vec![owner("process", 9), owner("patch cache", 9)])).unwrap_err();
        assert!(counted.to_string().contains("held by: process, patch cache;"), "{counted}");
        assert!(!counted.to_string().contains("at least 20 times"), "a cache is counted exactly: {counted}");
        let many = verdict(&LeakReport { repetitions: 20, ..report(vec![owner("process", 9)]) }).unwrap_err();
        assert!(!many.to_string().contains("at least 20 times"), "{many}");
        assert!(verdict(&report(Vec::new())).is_err(), "nothing was measured");
    }
}

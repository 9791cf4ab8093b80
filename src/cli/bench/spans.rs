//! `bench --span-cost`: what recording costs a prediction.

use super::metrics::{Figures, nested, spreads};
use super::results::{GitInfo, Machine, TaskResult, amount};
use super::tasks::TaskKind;
use crate::cli::failure::Failure;
use crate::cli::measured::sampled_memory;
use crate::cli::{eprint_line, print};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_formats::{Image, OpenOptions};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Model, PredictOptions, VolumeOutputs, predict_volume};
use cytoscope_profile::Recorder;
use std::path::Path;
use std::time::Instant;

/// A way to record a run: its name, the recorder, and whether it records operators or spans for a trace.
type Mode = (&'static str, fn() -> Recorder, bool);

/// Ways to record a run, with the reference first.
const MODES: [Mode; 4] = [
    // The calls are compiled, but nothing is recorded.
    ("off", Recorder::off, false),
    // Every run without --trace.
    ("totals by stage", Recorder::totals_only, false),
    ("trace, --stages-only", Recorder::without_operators, true),
    ("trace", Recorder::new, true),
];

/// Predicts the stack at `data` in memory on the CPU in each way, in turns, and prints the ratio of each to the run of the
/// same round that records nothing. The first round warms up and does not count.
///
/// # Errors
/// The failure to load the model, to read the stack, or to predict.
pub(super) fn run(
    context: &Context,
    model: &str,
    data: &Path,
    repeat: usize,
    timestamp: &str,
) -> Result<Vec<TaskResult>, Failure> {
    let model = Model::load(model)?;
    let image = cytoscope_formats::open(data, &OpenOptions::default())?;
    let mut secs: [Vec<f64>; MODES.len()] = Default::default();
    let mut spans = [0; MODES.len()];
    for round in 0..=repeat {
        eprint_line(&if round == 0 { "[warm-up]".to_owned() } else { format!("[round {round} of {repeat}]") });
        for (mode, (_, recorder, samples)) in MODES.iter().enumerate() {
            context.check()?;
            let recorder = recorder();
            let sampler = samples.then(|| sampled_memory(&recorder));
            let taken = predict(context, &recorder, &model, &image)?;
            drop(sampler);
            if round > 0 {
                secs[mode].push(taken);
            }
            spans[mode] = recorder.totals().iter().map(|total| total.count).sum::<u64>();
        }
    }
    let (git_info, machine) = (GitInfo::here(), Machine::this());
    let results = MODES.iter().zip(&secs).zip(spans).map(|(((name, ..), own), spans)| {
        let figures: Vec<Figures> = own
            .iter()
            .zip(&secs[0])
            .map(|(own, off)| {
                Figures::from([
                    ("run_secs".to_owned(), *own),
                    ("cost_ratio".to_owned(), own / off.max(f64::MIN_POSITIVE)),
                    ("spans".to_owned(), spans as f64),
                ])
            })
            .collect();
        let spreads = spreads(&figures);
        if let Some((secs, ratio)) = spreads.get("run_secs").zip(spreads.get("cost_ratio")) {
            let (median, secs) = (ratio.median, amount("run_secs", secs.median));
            print(&format!("{name:22} {secs:>10}  {median:.4} ({:.4} to {:.4})  {spans} spans", ratio.min, ratio.max));
        }
        TaskResult {
            name: (*name).to_owned(),
            kind: TaskKind::Inference,
            timestamp: timestamp.to_owned(),
            success: true,
            error: None,
            git_info: git_info.clone(),
            machine: Some(machine.clone()),
            runs: own.len(),
            metrics: nested(&spreads),
            dataset_info: None,
        }
    });
    Ok(results.collect())
}

/// Predicts the maps of the first time point, and returns the seconds it took.
fn predict(context: &Context, recorder: &Recorder, model: &Model, image: &Image) -> Result<f64, Failure> {
    let own = Context { recorder: recorder.clone(), ..context.clone() };
    let options = PredictOptions { time: Some(0), ..PredictOptions::default() };
    let cpu = DeviceRequest::Device(DeviceId::Cpu);
    let engine = Devices::cpu_only().for_model(&own, model, cpu, &options)?;
    let start = Instant::now();
    predict_volume(&own, &engine, model, image, &options, VolumeOutputs::Maps)?;
    Ok(start.elapsed().as_secs_f64())
}

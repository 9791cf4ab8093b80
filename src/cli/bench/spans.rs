//! `bench --span-cost`: what recording costs a prediction.

use super::metrics::{Figures, Metric, nested, spreads};
use super::paired::{COVERAGE, Random, median_interval, verdict};
use super::results::{Origin, Store, TaskResult, amount};
use super::tasks::TaskKind;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::measured::sampled_memory;
use crate::cli::{eprint_line, print};
use cpu_time::ProcessTime;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_formats::{Image, OpenOptions};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, Model, PredictOptions, VolumeOutputs, predict_volume};
use cytoscope_profile::Recorder;
use cytoscope_storage::counted;
use std::path::Path;
use std::time::{Duration, Instant};

/// Default duration in seconds, if neither --seconds nor --repeat is given.
pub(super) const DEFAULT_SECS: u64 = 120;
/// Minimum number of pairs of each mode; fewer say nothing about the spread.
const MIN_PAIRS: usize = 5;
/// Time between two reports of the progress.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Time after which the results so far are stored again: the bootstrap of many pairs takes part of a second.
const STORE_EVERY: Duration = Duration::from_secs(30);

/// A way to record a run.
struct Mode {
    name: &'static str,
    recorder: fn() -> Recorder,
    /// Whether the memory is sampled, as for a trace.
    samples: bool,
    /// Ratio to a run without recording that it should stay below; `None` for runs without recording.
    limit: Option<f64>,
}

/// Ways to record a run. The first is the one that all are compared with, itself included: its ratio is the noise.
const MODES: [Mode; 4] = [
    // The calls are compiled, but nothing is recorded.
    Mode { name: "off", recorder: Recorder::off, samples: false, limit: None },
    // Every run without --trace.
    Mode { name: "totals by stage", recorder: Recorder::totals_only, samples: false, limit: Some(1.01) },
    Mode { name: "trace, --stages-only", recorder: Recorder::without_operators, samples: true, limit: Some(1.03) },
    Mode { name: "trace", recorder: Recorder::new, samples: true, limit: Some(1.03) },
];

/// When the measurement ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// After this number of pairs of each mode.
    Pairs(usize),
    /// After this time, with at least [`MIN_PAIRS`] pairs of each mode.
    Time(Duration),
}

impl Extent {
    fn is_reached(self, pairs: usize, elapsed: Duration) -> bool {
        match self {
            Self::Pairs(count) => pairs >= count,
            Self::Time(limit) => pairs >= MIN_PAIRS && elapsed >= limit,
        }
    }
}

/// Times of one run in seconds.
#[derive(Debug, Clone, Copy)]
struct RunTimes {
    wall_secs: f64,
    cpu_secs: f64,
}

/// Times of a run in one mode, and of the run without recording right before or after it.
struct PairedTimes {
    own: RunTimes,
    off: RunTimes,
}

/// The pairs of each mode.
type Pairs = [Vec<PairedTimes>; MODES.len()];

/// Inputs of the prediction in each run.
struct Workload<'a> {
    context: &'a Context,
    model: &'a Model,
    image: &'a Image,
}

/// Predicts the stack at `data` in memory on the CPU in pairs: once in one of the ways and once without recording, in random
/// order; the ways take turns. Prints the median ratio of each way with its interval. A first run of each way warms up. The
/// results so far are stored from time to time, and on an interruption.
///
/// # Errors
/// The failure to load the model, to read the stack, to predict, or to store the results.
pub(super) fn run(
    context: &Context,
    model: &str,
    data: &Path,
    extent: Extent,
    timestamp: &str,
    store: Store<'_>,
) -> Result<Vec<TaskResult>, Failure> {
    let model = Model::load(model)?;
    let image = cytoscope_formats::open(data, &OpenOptions::default())?;
    let workload = Workload { context, model: &model, image: &image };
    let mut spans = [0; MODES.len()];
    for (mode, spans) in MODES.iter().zip(&mut spans) {
        *spans = workload.predict(mode)?.1;
    }
    let origin = Origin::of_this_bench(timestamp);
    let mut pairs = Pairs::default();
    let measured = workload.measure(extent, &mut pairs, &mut |pairs| store(&results(pairs, spans, &origin).0));
    let (results, lines) = results(&pairs, spans, &origin);
    store(&results)?;
    measured?;
    print(&format!("ratio to a run without recording, with the {:.0} % interval of its median", 100.0 * COVERAGE));
    lines.iter().for_each(|line| print(line));
    Ok(results)
}

/// Returns the results of the modes that were measured, and their lines for the user.
fn results(pairs: &Pairs, spans: [u64; MODES.len()], origin: &Origin) -> (Vec<TaskResult>, Vec<String>) {
    let (mut results, mut lines) = (Vec::new(), Vec::new());
    for ((mode, pairs), spans) in MODES.iter().zip(pairs).zip(spans) {
        if !pairs.is_empty() {
            let (metrics, line) = metrics(mode, pairs, spans);
            results.push(origin.result(mode.name, TaskKind::Inference, pairs.len(), metrics));
            lines.extend(line);
        }
    }
    (results, lines)
}

/// Returns the figures of a mode: the spread of times and ratios, and the intervals of the median ratios. These are also
/// returned as a line for the user.
fn metrics(mode: &Mode, pairs: &[PairedTimes], spans: u64) -> (serde_json::Value, Option<String>) {
    let ratio = |own: f64, off: f64| own / off.max(f64::MIN_POSITIVE);
    let figures: Vec<Figures> = pairs
        .iter()
        .map(|PairedTimes { own, off }| {
            Figures::from([
                (Metric::RunSecs.name().to_owned(), own.wall_secs),
                (Metric::CostRatio.name().to_owned(), ratio(own.wall_secs, off.wall_secs)),
                (Metric::CpuCostRatio.name().to_owned(), ratio(own.cpu_secs, off.cpu_secs)),
                (Metric::Spans.name().to_owned(), spans as f64),
            ])
        })
        .collect();
    let mut all = spreads(&figures);
    let interval = |name: &str| {
        let values: Vec<f64> = figures.iter().filter_map(|run| run.get(name).copied()).collect();
        median_interval(&values)
    };
    let mut line = None;
    if let Some(((wall, cpu), secs)) = interval(Metric::CostRatio.name())
        .zip(interval(Metric::CpuCostRatio.name()))
        .zip(all.get(Metric::RunSecs.name()))
    {
        let limit = mode.limit.map_or_else(|| "noise".to_owned(), |limit| verdict(&wall, limit));
        line = Some(format!(
            "{:22} {:>10}  {:.4} ({:.4} to {:.4}), CPU time {:.4} ({:.4} to {:.4}), {}, {}: {limit}",
            mode.name,
            amount(Metric::RunSecs.name(), secs.median),
            wall.median,
            wall.min,
            wall.max,
            cpu.median,
            cpu.min,
            cpu.max,
            counted(pairs.len(), "pair"),
            counted(spans, "span")
        ));
        all.insert("cost_interval".to_owned(), wall);
        all.insert("cpu_cost_interval".to_owned(), cpu);
    }
    (nested(&all), line)
}

/// Returns the line that reports how many pairs of each mode were measured.
fn progress_line(rounds: usize, elapsed: Duration) -> String {
    format!("[{} of each in {:.0} s]", counted(rounds, "pair"), elapsed.as_secs_f64())
}

impl Workload<'_> {
    /// Measures pairs of all modes in turns, and passes them to `store` from time to time.
    fn measure(
        &self,
        extent: Extent,
        pairs: &mut Pairs,
        store: &mut dyn FnMut(&Pairs) -> Outcome,
    ) -> Result<(), Failure> {
        let (mut random, start) = (Random::new(1), Instant::now());
        let (mut reported, mut stored) = (start, start);
        let mut order: [usize; MODES.len()] = std::array::from_fn(|mode| mode);
        let mut rounds = 0;
        while !extent.is_reached(rounds, start.elapsed()) {
            random.shuffle(&mut order);
            for mode in order {
                pairs[mode].push(self.pair(&MODES[mode], &mut random)?);
            }
            rounds += 1;
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                eprint_line(&progress_line(rounds, start.elapsed()));
            }
            if stored.elapsed() >= STORE_EVERY {
                store(pairs)?;
                stored = Instant::now();
            }
        }
        Ok(())
    }

    /// Runs a mode and the reference in random order.
    fn pair(&self, mode: &Mode, random: &mut Random) -> Result<PairedTimes, Failure> {
        let reference = &MODES[0];
        if random.below(2) == 0 {
            let own = self.predict(mode)?.0;
            return Ok(PairedTimes { own, off: self.predict(reference)?.0 });
        }
        let off = self.predict(reference)?.0;
        Ok(PairedTimes { own: self.predict(mode)?.0, off })
    }

    /// Predicts the maps of the first time point, and returns the times and the number of spans.
    fn predict(&self, mode: &Mode) -> Result<(RunTimes, u64), Failure> {
        self.context.check()?;
        let recorder = (mode.recorder)();
        let sampler = mode.samples.then(|| sampled_memory(&recorder));
        let own = Context { recorder: recorder.clone(), ..self.context.clone() };
        let options = PredictOptions { time: Some(0), ..PredictOptions::default() };
        let cpu = DeviceRequest::Device(DeviceId::Cpu);
        let engine = Devices::cpu_only().for_model(&own, self.model, cpu, &options)?;
        let (wall, cpu_time) = (Instant::now(), ProcessTime::now());
        predict_volume(&own, &engine, self.model, self.image, &options, VolumeOutputs::Maps)?;
        let taken = RunTimes { wall_secs: wall.elapsed().as_secs_f64(), cpu_secs: cpu_time.elapsed().as_secs_f64() };
        drop(sampler);
        Ok((taken, recorder.totals().iter().map(|total| total.count).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_counts_pairs() {
        let line = |rounds| progress_line(rounds, Duration::from_secs(5));
        assert_eq!([line(1), line(2)], ["[1 pair of each in 5 s]", "[2 pairs of each in 5 s]"]);
    }

    #[test]
    fn the_result_of_a_mode_counts_pairs_and_spans() {
        let times = RunTimes { wall_secs: 1.0, cpu_secs: 1.0 };
        let line = metrics(&MODES[0], &[PairedTimes { own: times, off: times }], 1).1;
        assert!(line.unwrap().ends_with(", 1 pair, 1 span: noise"));
    }
}

//! The figures of a task's run, from its trace and its report.

use crate::cli::reports::{PredictCommandReport, TrainCommandReport};
use cytoscope_profile::{FIRST_STEP_MARK, SpanRecord, Stage, StoredRun};
use cytoscope_train::TrainReport;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Figures of one run by name; a dot separates the parts of a name. Times end in `_secs`, sizes in `_bytes`.
pub(super) type Figures = BTreeMap<String, f64>;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// A time.
    Seconds,
    /// A size.
    Bytes,
    /// A whole number.
    Count,
    /// An error relative to a reference, of any magnitude.
    RelativeError,
    /// A rate, ratio or score.
    Number,
}

impl Unit {
    /// Returns the unit of a figure by its name: a score or ratio, if it is none of [`Metric`].
    pub(super) fn of(figure: &str) -> Self {
        Metric::ALL.iter().find(|metric| metric.name() == figure).map_or(Self::Number, |metric| metric.unit())
    }
}

/// Defines the figures of a run with their names in files of results, and their units.
macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $unit:ident;)+) => {
        /// A figure of a run. The scores of training runs are not listed here, because they depend on the task.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Metric {
            $($(#[$doc])* $variant,)+
        }

        impl Metric {
            /// All figures.
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name in files of results.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the unit.
            const fn unit(self) -> Unit {
                match self {
                    $(Self::$variant => Unit::$unit,)+
                }
            }
        }
    };
}

metrics! {
    /// Duration of the process.
    TotalSecs, "total_secs", Seconds;
    /// Reading the model.
    CheckpointLoadSecs, "checkpoint_load_secs", Seconds;
    /// Comparing devices and checking the network.
    VerifySecs, "verify_secs", Seconds;
    /// Preparing the network.
    ModelInitSecs, "model_init_secs", Seconds;
    /// Reading and preprocessing before the first tile.
    FirstBatchLoadSecs, "first_batch.load_secs", Seconds;
    /// Copies of the first tile to and from the device.
    FirstBatchTransferSecs, "first_batch.transfer_secs", Seconds;
    /// Running the network on the first tile.
    FirstBatchForwardSecs, "first_batch.forward_secs", Seconds;
    /// Joining the first tile.
    FirstBatchPostSecs, "first_batch.post_secs", Seconds;
    /// Predictions of all inputs.
    FullPredictionSecs, "full_prediction_secs", Seconds;
    /// Voxels that are predicted per second.
    VoxelsPerSec, "voxels_per_sec", Number;
    /// Mean time of a tile.
    AvgBatchSecs, "avg_batch_secs", Seconds;
    /// Checking the training data.
    DataSetupSecs, "data_setup_secs", Seconds;
    /// The whole training run.
    FullSecs, "full_secs", Seconds;
    /// A training step.
    StepSecs, "step_secs", Seconds;
    /// Patches that are trained on per second.
    SamplesPerSec, "samples_per_sec", Number;
    /// Waiting for the first batch.
    DataLoadingFirstBatchSecs, "data_loading_first_batch_secs", Seconds;
    /// Forward pass of the first batch.
    ForwardFirstBatchSecs, "forward_first_batch_secs", Seconds;
    /// From the first step to the end of the first epoch, with the validations in between.
    FirstEpochSecs, "first_epoch_secs", Seconds;
    /// A run of the network.
    RunSecs, "run_secs", Seconds;
    /// Peak memory of the process.
    PeakBytes, "peak_bytes", Bytes;
    /// Peak memory of the device.
    DevicePeakBytes, "device_peak_bytes", Bytes;
    /// Size of the network in its package.
    NetworkBytes, "network_bytes", Bytes;
    /// Memory for activations.
    ArenaBytes, "arena_bytes", Bytes;
    /// Steps of quantization-aware training.
    QatSteps, "qat_steps", Count;
    /// Spans that a run records.
    Spans, "spans", Count;
    /// How many times as fast a run is as the first row.
    SpeedUp, "speed_up", Number;
    /// Time with recording, divided by the time without.
    CostRatio, "cost_ratio", Number;
    /// CPU time with recording, divided by that without.
    CpuCostRatio, "cpu_cost_ratio", Number;
    /// Relative L2 difference to a reference; may be much smaller than 1.
    RelativeL2, "relative_l2", RelativeError;
}

/// The report of a task's run.
pub(super) enum TaskReport {
    Inference(Box<PredictCommandReport>),
    Training(Box<TrainCommandReport>),
}

/// Spread of a figure over the runs of a task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    /// Smallest value of all runs; of a comparison, its lower bound.
    pub min: f64,
    /// Middle value of all runs, or the mean of the two middle ones.
    pub median: f64,
    /// Largest value of all runs; of a comparison, its upper bound.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of values; `None` without any.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { min, median: cytoscope_profile::median(&values)?, max })
    }

    /// Returns how many times as fast this time is as `reference`: the ratio of the medians, and its bounds from the
    /// extremes of both.
    pub(super) fn speed_up(&self, reference: &Self) -> Option<Self> {
        let ratio = |a: f64, b: f64| (b > 0.0).then(|| a / b);
        Some(Self {
            min: ratio(reference.min, self.max)?,
            median: ratio(reference.median, self.median)?,
            max: ratio(reference.max, self.min)?,
        })
    }

    /// Returns by how much this is more than `reference`: the difference of the medians, and its bounds from the extremes of
    /// both.
    pub(super) fn minus(&self, reference: &Self) -> Self {
        Self { min: self.min - reference.max, median: self.median - reference.median, max: self.max - reference.min }
    }
}

/// Returns the spread of each figure that every run has.
pub(super) fn spreads(runs: &[Figures]) -> BTreeMap<String, Spread> {
    let names = runs.first().into_iter().flat_map(BTreeMap::keys);
    names
        .filter_map(|name| {
            let values: Option<Vec<f64>> = runs.iter().map(|run| run.get(name).copied()).collect();
            Some((name.clone(), Spread::of(values?)?))
        })
        .collect()
}

/// Returns spreads as JSON, with the parts of their names as nested objects.
pub(super) fn nested(spreads: &BTreeMap<String, Spread>) -> Value {
    let mut all = Map::new();
    for (name, spread) in spreads {
        match name.split_once('.') {
            None => {
                all.insert(name.clone(), json!(spread));
            }
            Some((group, part)) => {
                let group = all.entry(group).or_insert_with(|| Value::Object(Map::new()));
                if let Some(group) = group.as_object_mut() {
                    group.insert(part.to_owned(), json!(spread));
                }
            }
        }
    }
    Value::Object(all)
}

/// Returns the spreads in JSON written by [`nested`]; other values are left out.
pub(super) fn flat(value: &Value) -> BTreeMap<String, Spread> {
    let spread = |value: &Value| serde_json::from_value::<Spread>(value.clone()).ok();
    let mut all = BTreeMap::new();
    for (name, value) in value.as_object().into_iter().flatten() {
        match spread(value) {
            Some(found) => {
                all.insert(name.clone(), found);
            }
            None => {
                let parts = value.as_object().into_iter().flatten();
                all.extend(parts.filter_map(|(part, value)| Some((format!("{name}.{part}"), spread(value)?))));
            }
        }
    }
    all
}

/// Returns the figures of a run: `run` from its trace, `report` from its standard output. `total_secs` is the duration
/// of the process.
pub(super) fn figures(run: &StoredRun, report: &TaskReport, total_secs: f64) -> Figures {
    let mut figures = Figures::from([(Metric::TotalSecs.name().to_owned(), total_secs)]);
    let mut add = |name: &str, value: Option<f64>| {
        if let Some(value) = value.filter(|v| v.is_finite()) {
            figures.insert(name.to_owned(), value);
        }
    };
    add(Metric::PeakBytes.name(), run.record.facts.peak_bytes.map(|bytes| bytes as f64));
    let device_peak = run.record.facts.device_memory_peak.as_ref();
    add(Metric::DevicePeakBytes.name(), device_peak.map(|peak| peak.reserved_bytes as f64));
    match report {
        TaskReport::Inference(_) => add_inference(run, &mut add),
        TaskReport::Training(report) => add_training(run, &report.report, &mut add),
    }
    figures
}

/// Returns the seconds of some stages.
fn seconds(run: &StoredRun, stages: &[Stage]) -> f64 {
    run.record.stages.iter().filter(|total| stages.contains(&total.stage)).map(|total| total.seconds).sum()
}

fn end_us(span: &SpanRecord) -> f64 {
    span.start_us + span.duration_us
}

/// Returns the first span of a stage that starts at `from_us` or later.
fn first<'a>(spans: &'a [SpanRecord], stages: &[Stage], from_us: f64) -> Option<&'a SpanRecord> {
    let later = spans.iter().filter(|span| stages.contains(&span.stage) && span.start_us >= from_us);
    later.min_by(|a, b| a.start_us.total_cmp(&b.start_us))
}

fn add_inference(run: &StoredRun, add: &mut dyn FnMut(&str, Option<f64>)) {
    add(Metric::CheckpointLoadSecs.name(), Some(seconds(run, &[Stage::Load])));
    // Most of it is the check of the network, which only its first run on a machine has.
    add(Metric::VerifySecs.name(), Some(seconds(run, &[Stage::Verify])));
    add(Metric::ModelInitSecs.name(), Some(seconds(run, &[Stage::Compile])));
    let inputs = &run.record.facts.inputs;
    let full_secs: f64 = inputs.iter().map(|input| input.seconds).sum();
    let voxels: f64 = inputs.iter().map(|input| input.voxels as f64).sum();
    add(Metric::FullPredictionSecs.name(), Some(full_secs).filter(|_| !inputs.is_empty()));
    add(Metric::VoxelsPerSec.name(), Some(voxels / full_secs));
    // The spans include the copies to and from a GPU, which the total of the stage does not.
    let tiles = || run.spans.iter().filter(|span| span.stage == Stage::Compute);
    let tiles_secs: f64 = tiles().map(|span| span.duration_us / 1e6).sum();
    add(Metric::AvgBatchSecs.name(), Some(tiles_secs / tiles().count() as f64).filter(|secs| secs.is_finite()));
    let Some(forward) = first(&run.spans, &[Stage::Compute], 0.0) else { return };
    // What the first tile needed: everything after its network was compiled.
    let compiled = run.spans.iter().filter(|s| s.stage == Stage::Compile && end_us(s) <= forward.start_us);
    let from_us = compiled.map(end_us).fold(0.0, f64::max);
    let before = |stages: &[Stage]| -> f64 {
        let inside =
            |s: &&SpanRecord| stages.contains(&s.stage) && s.start_us >= from_us && s.start_us < forward.start_us;
        run.spans.iter().filter(inside).map(|s| s.duration_us / 1e6).sum()
    };
    add(Metric::FirstBatchLoadSecs.name(), Some(before(&[Stage::Read, Stage::Normalize, Stage::Resample])));
    // On a GPU, the run of a tile copies its input and output.
    let is_copy = |s: &&SpanRecord| {
        let is_inside = s.start_us >= forward.start_us && end_us(s) <= end_us(forward);
        matches!(s.stage, Stage::Upload | Stage::Download) && s.thread == forward.thread && is_inside
    };
    let copying_secs: f64 = run.spans.iter().filter(is_copy).map(|s| s.duration_us / 1e6).sum();
    add(Metric::FirstBatchTransferSecs.name(), Some(before(&[Stage::Upload]) + copying_secs));
    add(Metric::FirstBatchForwardSecs.name(), Some((forward.duration_us / 1e6 - copying_secs).max(0.0)));
    let joined = first(&run.spans, &[Stage::Blend], end_us(forward));
    add(Metric::FirstBatchPostSecs.name(), joined.map(|span| span.duration_us / 1e6));
}

fn add_training(run: &StoredRun, report: &TrainReport, add: &mut dyn FnMut(&str, Option<f64>)) {
    add(Metric::ModelInitSecs.name(), Some(seconds(run, &[Stage::Load, Stage::Compile])));
    add(Metric::DataSetupSecs.name(), Some(seconds(run, &[Stage::Check])));
    add(Metric::FullSecs.name(), Some(report.seconds));
    add(Metric::StepSecs.name(), Some(report.step_secs));
    add(Metric::SamplesPerSec.name(), Some(report.batch as f64 / report.step_secs));
    for (name, score) in &report.after {
        add(&format!("final.{}", name.to_string().replace('.', "_")), Some(*score));
    }
    // The last one: those before are of devices that failed.
    let Some(mark) = run.marks.iter().rev().find(|mark| mark.label == FIRST_STEP_MARK) else { return };
    let secs = |span: &SpanRecord| span.duration_us / 1e6;
    add(Metric::DataLoadingFirstBatchSecs.name(), first(&run.spans, &[Stage::DataWait], mark.at_us).map(secs));
    add(
        Metric::ForwardFirstBatchSecs.name(),
        first(&run.spans, &[Stage::Forward, Stage::Compute], mark.at_us).map(secs),
    );
    let steps = run.spans.iter().filter(|s| s.stage == Stage::Optimizer && s.start_us >= mark.at_us);
    let mut ends: Vec<f64> = steps.map(end_us).collect();
    ends.sort_by(f64::total_cmp);
    let epoch_steps = usize::try_from(report.epoch_steps).ok();
    let last = epoch_steps.and_then(|steps| ends.get(steps.checked_sub(1)?));
    add(Metric::FirstEpochSecs.name(), last.map(|end| (end - mark.at_us) / 1e6));
}

/// Returns what the report of a training run says about its data.
pub(super) fn dataset_info(report: &TaskReport) -> Option<Value> {
    let TaskReport::Training(report) = report else { return None };
    let TrainReport { train_pairs, validation_pairs, patch_zyx, batch, steps, epoch_steps, .. } = &report.report;
    Some(json!({
        "train_pairs": train_pairs, "validation_pairs": validation_pairs, "patch_zyx": patch_zyx, "batch": batch,
        "steps": steps, "epoch_steps": epoch_steps,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_profile::{InputFacts, MemoryMark, RUN_FORMAT, RunFacts, RunRecord, StageTotal};
    use std::borrow::Cow;

    fn span(stage: Stage, start_us: f64, duration_us: f64) -> SpanRecord {
        SpanRecord::new(stage, "x", start_us, duration_us)
    }

    fn stored(spans: Vec<SpanRecord>, marks: Vec<MemoryMark>, inputs: Vec<InputFacts>) -> StoredRun {
        let total = |s: &SpanRecord| StageTotal {
            stage: s.stage,
            count: 1,
            seconds: s.duration_us / 1e6,
            bytes: 0,
            voxels: 0,
            macs: 0,
        };
        let record = RunRecord {
            format: RUN_FORMAT,
            program: "p".to_owned(),
            command: "c".to_owned(),
            stages: spans.iter().map(total).collect(),
            facts: RunFacts { inputs, ..RunFacts::default() },
        };
        StoredRun { record, spans, marks, timeline: Vec::new(), spans_not_kept: 0 }
    }

    #[test]
    fn the_first_tile_is_counted_from_its_compiled_network_on() {
        let spans = vec![
            span(Stage::Verify, 0.0, 2e6),
            span(Stage::Read, 2e6, 3e6),
            span(Stage::Compile, 5e6, 1e6),
            span(Stage::Read, 6e6, 2e6),
            span(Stage::Normalize, 8e6, 1e6),
            span(Stage::Upload, 9e6, 5e5),
            // On a GPU, copies are part of the run.
            span(Stage::Upload, 1e7, 2.5e5),
            span(Stage::Download, 1.35e7, 5e5),
            span(Stage::Compute, 1e7, 4e6),
            span(Stage::Blend, 1.4e7, 2.5e5),
        ];
        let input = InputFacts { seconds: 4.0, voxels: 1000, ..InputFacts::default() };
        let run = stored(spans, Vec::new(), vec![input]);
        let report = PredictCommandReport {
            inputs: Vec::new(),
            failed: Vec::new(),
            run: run.record.clone(),
            advice: Vec::new(),
        };
        let found = figures(&run, &TaskReport::Inference(Box::new(report)), 20.0);
        let expected = [
            ("verify_secs", 2.0),
            ("model_init_secs", 1.0),
            ("first_batch.load_secs", 3.0),
            ("first_batch.transfer_secs", 1.25),
            ("first_batch.forward_secs", 3.25),
            ("avg_batch_secs", 4.0),
            ("first_batch.post_secs", 0.25),
            ("full_prediction_secs", 4.0),
            ("voxels_per_sec", 250.0),
            ("total_secs", 20.0),
        ];
        for (name, value) in expected {
            assert_eq!(found.get(name), Some(&value), "{name}");
        }
    }

    #[test]
    fn steps_before_the_first_counted_one_are_not_part_of_the_epoch() {
        let label = Cow::Borrowed(FIRST_STEP_MARK);
        let marks = vec![MemoryMark { label, at_us: 1e6, resident_bytes: 0 }];
        let step = |at: f64| [span(Stage::DataWait, at, 1e5), span(Stage::Optimizer, at + 2e5, 1e5)];
        let spans: Vec<SpanRecord> = [0.0, 1e6, 2e6, 3e6].into_iter().flat_map(step).collect();
        let report = crate::cli::reports::tests::train_report(json!({"f1@0.5": 0.5}));
        let found = figures(&stored(spans, marks, Vec::new()), &TaskReport::Training(Box::new(report)), 10.0);
        let close = |name: &str, value: f64| (found.get(name).copied().unwrap_or(f64::NAN) - value).abs() < 1e-9;
        assert!(close("first_epoch_secs", 1.3) && close("data_loading_first_batch_secs", 0.1), "{found:?}");
        assert!(close("final.f1@0_5", 0.5) && close("full_secs", 9.0), "{found:?}");
    }

    #[test]
    fn every_documented_figure_has_the_unit_that_its_name_ends_in() {
        let guide = include_str!("../../../docs/guide/measuring.md");
        let (_, tables) = guide.split_once("the name of a figure ends in its unit").unwrap();
        let rows = tables.lines().filter(|line| line.starts_with("| `"));
        let names = rows.flat_map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            // The parts of a group are listed in its meaning.
            let prefix = if cells[1] == "`first_batch`" { "first_batch." } else { "" };
            let listed = if prefix.is_empty() { cells[1] } else { cells[2] };
            listed.split('`').skip(1).step_by(2).map(move |name| format!("{prefix}{name}")).collect::<Vec<_>>()
        });
        let names: Vec<String> = names.collect();
        assert!(names.iter().any(|name| name == "first_batch.load_secs") && names.len() > 20, "{names:?}");
        for name in names {
            let expected = match name.rsplit_once('_').map(|(_, unit)| unit) {
                Some("secs") => Unit::Seconds,
                Some("bytes") => Unit::Bytes,
                _ => Unit::Number,
            };
            assert_eq!(Unit::of(&name), expected, "{name}");
        }
    }

    #[test]
    fn spreads_survive_their_json() {
        let run =
            |a: f64, b: f64| Figures::from([("total_secs".to_owned(), a), ("first_batch.load_secs".to_owned(), b)]);
        let all = spreads(&[run(3.0, 1.0), run(1.0, 2.0), run(2.0, 4.0)]);
        assert_eq!(all.get("total_secs"), Some(&Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(flat(&nested(&all)), all);
        let even = spreads(&[run(1.0, 0.0), run(4.0, 0.0)]);
        assert_eq!(even.get("total_secs").map(|s| s.median), Some(2.5));
    }

    #[test]
    fn a_speed_up_has_the_spread_of_both_sides() {
        let (old, new) = (Spread { min: 8.0, median: 10.0, max: 12.0 }, Spread { min: 4.0, median: 5.0, max: 8.0 });
        assert_eq!(new.speed_up(&old), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
    }
}

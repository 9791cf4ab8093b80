//! What a command measured about its run, for its trace and its report.

use super::failure::Outcome;
use cpu_time::ProcessTime;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::predict::Blend;
use cytoscope_pipeline::{Certainty, DiameterUnit, InputReport, Model, ObjectDiameter, PredictJob};
use cytoscope_profile::{
    Advice, DeviceTime, DiameterCertainty, DiameterFacts, InputFacts, Joining, Recorder, RunFacts, RunRecord, Stage,
    StageTotal, TileFacts, TrainingFacts, advise, operator_totals,
};
use cytoscope_storage::write::atomic_write_with;
use cytoscope_train::{TrainJob, TrainReport};
use std::path::Path;
use std::time::Instant;

/// Name and version of this program, as run records state them.
pub(crate) const PROGRAM: &str = concat!("cytoscope ", env!("CARGO_PKG_VERSION"));

/// Returns the recorder of a command: with spans for a trace, with those of operators unless `stages_only`, and with
/// totals alone without a trace.
pub(crate) fn recorder(trace: Option<&Path>, stages_only: bool) -> Recorder {
    match trace {
        None => Recorder::totals_only(),
        Some(_) if stages_only => Recorder::without_operators(),
        Some(_) => Recorder::new(),
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Measures wall and CPU time from its creation on.
pub(crate) struct RunClock {
    start: Instant,
    cpu: ProcessTime,
}

impl RunClock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: ProcessTime::now() }
    }

    /// Returns the facts that every run knows; `threads` is 0 for all cores.
    pub(crate) fn facts(&self, threads: usize) -> RunFacts {
        let cores = cores();
        RunFacts {
            wall_secs: self.start.elapsed().as_secs_f64(),
            cpu_secs: Some(self.cpu.elapsed().as_secs_f64()),
            threads: Some(if threads == 0 { cores } else { threads }),
            cores: Some(cores),
            peak_bytes: cytoscope_profile::peak_resident_bytes(),
            ..RunFacts::default()
        }
    }
}

/// The measurements of a command that has ended.
pub(crate) struct MeasuredRun {
    /// What the trace and the report contain as `run`.
    pub record: RunRecord,
    /// What the report contains as `advice`.
    pub advice: Vec<Advice>,
}

impl MeasuredRun {
    pub(crate) fn new(command: &str, recorder: &Recorder, facts: RunFacts) -> Self {
        let advice = advise(&facts, &operator_totals(&recorder.spans()));
        Self { record: RunRecord::new(PROGRAM, command, recorder, facts), advice }
    }

    /// Writes the trace, if one was requested.
    pub(crate) fn write_trace(&self, recorder: &Recorder, path: Option<&Path>) -> Outcome {
        let Some(path) = path else { return Ok(()) };
        Ok(atomic_write_with(path, |out| recorder.write_trace(&self.record, out))?)
    }
}

/// Returns the facts about the predicted inputs of a job, without those that were skipped.
pub(crate) fn input_facts(job: &PredictJob, reports: &[InputReport]) -> Vec<InputFacts> {
    // Without a request, tiles are blended only if the network allows nothing else.
    let is_blended = job.tiles.blend == Some(Blend::Gaussian);
    let crop_possible = is_blended && Model::load(&job.model).is_ok_and(|model| model.reach.is_some());
    let done = reports.iter().filter(|report| !report.resumed);
    done.map(|report| one_input(report, job.memory_budget_bytes, crop_possible)).collect()
}

fn one_input(report: &InputReport, budget_bytes: Option<u64>, crop_possible: bool) -> InputFacts {
    let voxels = report.shape_zyx.iter().product::<usize>().saturating_mul(report.times);
    let times = report.device.measurements.iter();
    let measured = times.filter_map(|m| Some(DeviceTime { device: m.device.to_string(), best_ms: m.best_ms? }));
    InputFacts {
        name: report.input.display().to_string(),
        seconds: report.seconds,
        voxels: voxels as u64,
        device: report.device.id.to_string(),
        precision: report.precision.clone(),
        measured: measured.collect(),
        tiles: tile_facts(report, budget_bytes, crop_possible),
        seam_energy: report.seam_energy,
        diameter: report.diameter.as_ref().map(diameter_facts),
    }
}

fn tile_facts(report: &InputReport, budget_bytes: Option<u64>, crop_possible: bool) -> Option<TileFacts> {
    let total = |stage| report.stages.iter().find(|t: &&StageTotal| t.stage == stage);
    let (computed, joined) = total(Stage::Compute).zip(total(Stage::Blend))?;
    let plan = &report.plan;
    let joining = match plan.blend {
        Blend::Crop => Joining::Crop,
        Blend::Gaussian => Joining::Gaussian,
    };
    Some(TileFacts {
        joining,
        crop_possible: joining == Joining::Crop || crop_possible,
        tile_zyx: plan.tile,
        count: computed.count / (report.times as u64).max(1),
        computed_voxels: computed.voxels,
        kept_voxels: joined.voxels,
        planned_bytes: plan.stated_peak_bytes,
        budget_bytes,
    })
}

fn diameter_facts(diameter: &ObjectDiameter) -> DiameterFacts {
    let estimate = diameter.estimate.map(|estimate| {
        let certainty = match estimate.certainty {
            Certainty::None => DiameterCertainty::None,
            Certainty::Low => DiameterCertainty::Low,
            Certainty::Medium => DiameterCertainty::Medium,
            Certainty::High => DiameterCertainty::High,
        };
        (certainty, estimate.objects as u64)
    });
    DiameterFacts { diameter: diameter.diameter, has_voxel_size: diameter.unit == DiameterUnit::Um, estimate }
}

/// Returns the facts about a training run.
pub(crate) fn training_facts(job: &TrainJob, report: &TrainReport) -> TrainingFacts {
    let device = match job.device {
        DeviceRequest::Auto => DeviceId::Cpu,
        DeviceRequest::Device(id) => id,
    };
    TrainingFacts {
        step_secs: report.step_secs,
        stalled_secs: report.stalled_secs,
        workers: job.config.workers,
        device: device.to_string(),
    }
}

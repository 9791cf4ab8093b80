//! Facts about a run in the reports of a prediction, for its advice.

use super::{Blend, InputReport, NoPass, PredictJob};
use crate::{Certainty, DiameterUnit, Model, ObjectDiameter};
use cytoscope_engine::DeviceId;
use cytoscope_engine::select::Measurement;
use cytoscope_profile::{
    DeviceTime, DiameterCertainty, DiameterFacts, InputFacts, Joining, Stage, StageTotal, TileFacts, TileReason,
};
use std::collections::BTreeMap;

/// Returns the facts about the predicted inputs of a job, without those that were skipped.
pub fn input_facts(job: &PredictJob, reports: &[InputReport]) -> Vec<InputFacts> {
    // Without a request, tiles are blended only if the network allows nothing else.
    let is_blended = job.tiles.blend == Some(Blend::Gaussian);
    let crop_possible = is_blended && Model::load(&job.model).is_ok_and(|model| model.reach.is_some());
    let done = reports.iter().filter(|report| !report.resumed);
    // A budget does not choose tiles whose size was given.
    let budget_bytes = job.memory_budget_bytes.filter(|_| job.tiles.tile.is_none());
    done.map(|report| one_input(report, budget_bytes, crop_possible)).collect()
}

fn one_input(report: &InputReport, budget_bytes: Option<u64>, crop_possible: bool) -> InputFacts {
    let voxels = report.shape_zyx.iter().product::<usize>().saturating_mul(report.times);
    // Of the device that ran, the precision that ran counts; of others, the fastest one that may be chosen.
    let mut measured: BTreeMap<DeviceId, f64> = BTreeMap::new();
    let is_comparable = |m: &&Measurement| m.device != report.device.id || m.precision == Some(report.precision);
    let comparable = report.device.measurements.iter().filter(is_comparable);
    for (device, best_ms) in comparable.filter_map(|m| Some((m.device, m.usable_ms()?))) {
        measured.entry(device).and_modify(|ms| *ms = ms.min(best_ms)).or_insert(best_ms);
    }
    let measured = measured.into_iter().map(|(device, best_ms)| DeviceTime { device: device.into(), best_ms });
    InputFacts {
        name: report.input.display().to_string(),
        seconds: report.seconds,
        voxels: voxels as u64,
        is_plane: report.shape_zyx[0] == 1,
        device: report.device.id.into(),
        precision: report.precision.into(),
        measured: measured.collect(),
        tiles: tile_facts(report, budget_bytes, crop_possible),
        seam_energy: report.seam_energy,
        diameter: report.diameter.as_ref().map(diameter_facts),
        traffic: report.traffic,
        transfer_secs: report.traffic.map(|_| seconds(&report.stages, &[Stage::Upload, Stage::Download])),
        compute_secs: report.traffic.map(|_| seconds(&report.stages, &[Stage::Compute])),
        objects: report.segment.as_ref().map(|_| report.objects.iter().map(|n| u64::from(*n)).sum()),
    }
}

/// Returns the seconds of some stages.
fn seconds(totals: &[StageTotal], stages: &[Stage]) -> f64 {
    totals.iter().filter(|total| stages.contains(&total.stage)).map(|total| total.seconds).sum()
}

fn tile_facts(report: &InputReport, budget_bytes: Option<u64>, crop_possible: bool) -> Option<TileFacts> {
    let total = |stage| report.stages.iter().find(|t: &&StageTotal| t.stage == stage);
    let (computed, joined) = total(Stage::Compute).zip(total(Stage::Blend))?;
    let plan = report.plan.as_ref()?;
    let joining = match plan.blend {
        Blend::Crop => Joining::Crop,
        Blend::Gaussian => Joining::Gaussian,
    };
    Some(TileFacts {
        joining,
        crop_possible: joining == Joining::Crop || crop_possible,
        tile_zyx: plan.tile,
        // A run of the network may compute several tiles.
        count: joined.count / (report.times as u64).max(1),
        computed_voxels: computed.voxels,
        kept_voxels: joined.voxels,
        planned_bytes: plan.stated_peak_bytes,
        budget_bytes,
        grid_zyx: report.grid_zyx,
        halo_zyx: plan.halo,
        reason: plan.no_pass.as_ref().and_then(reason_for_tiles),
    })
}

/// Returns the reason for tiles, if a change of model or memory would avoid them.
fn reason_for_tiles(reason: &NoPass) -> Option<TileReason> {
    match reason {
        NoPass::NormalizesOverTile => Some(TileReason::NormalizesOverTile),
        memory => memory.sufficient_budget_bytes().map(|pass_budget_bytes| TileReason::Memory { pass_budget_bytes }),
    }
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
    DiameterFacts {
        diameter: diameter.diameter,
        has_voxel_size: diameter.unit == DiameterUnit::Um,
        estimate,
        voxel_zyx: Some(diameter.voxel),
    }
}

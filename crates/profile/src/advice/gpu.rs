//! Advice on predictions on a GPU: copies between host and device, and the launches of kernels.

use super::tiles::{MIN_SAVED, shape_text};
use super::{Advice, AdviceRule, AdvisedSetting, MAX_TRANSFERS, at_most_faster, percent};
use crate::facts::InputFacts;
use cytoscope_storage::message;
use cytoscope_storage::setting::{ON_CPU, TILE};

/// Mean duration in seconds of a step of a network on a GPU below which it is about as long as its launch. This is an
/// estimate, which the advice states: a step is one or more kernels, each of which takes the host about 10 µs to launch, and
/// neither their number nor the time of their launches is measured.
const LAUNCH_SECS: f64 = 30e-6;
/// Share of a prediction's time spent in the network above which a faster network is worth a change.
const MIN_COMPUTING: f64 = 0.2;

pub(super) fn transfers(input: &InputFacts) -> Option<(f64, Advice)> {
    let (traffic, transfer_secs) = input.traffic.as_ref().zip(input.transfer_secs)?;
    let share = transfer_secs / input.seconds;
    if input.device.is_cpu() || !share.is_finite() || share <= MAX_TRANSFERS {
        return None;
    }
    let evidence = format!(
        "copies between host and {} take {} of the time ({transfer_secs:.2} of {:.2} s): {}",
        input.device,
        percent(share),
        input.seconds,
        traffic.text()
    );
    let gain = format!("{} faster prediction", at_most_faster(share));
    let tiles = input.tiles.as_ref().filter(|tiles| tiles.count > 1);
    let Some((tiles, larger)) = tiles.and_then(|tiles| Some((tiles, tiles.larger_tile()?))) else {
        let change = message!("several stacks in one command, so that the weights are copied once; or {ON_CPU}");
        return Some((share, Advice::new(AdviceRule::Transfers, evidence, gain, change)));
    };
    let effect = if tiles.saved_share(larger) >= MIN_SAVED {
        "so that less overlap is copied"
    } else {
        "so that the same voxels are copied in fewer parts"
    };
    let change = message!("{TILE} {}, {effect}; or {ON_CPU}", shape_text(larger));
    let advice = Advice::new(AdviceRule::Transfers, evidence, gain, change);
    Some((share, advice.with(AdvisedSetting::Tile(larger))))
}

pub(super) fn launch_overhead(input: &InputFacts) -> Option<(f64, Advice)> {
    let (traffic, compute_secs) = input.traffic.as_ref().zip(input.compute_secs)?;
    let step_secs = compute_secs / traffic.steps as f64;
    let is_computing = compute_secs > MIN_COMPUTING * input.seconds;
    // Without steps, the mean is not a finite number.
    if input.device.is_cpu() || !is_computing || !step_secs.is_finite() || step_secs >= LAUNCH_SECS {
        return None;
    }
    let tiles = input.tiles.as_ref().filter(|tiles| tiles.count > 1)?;
    let larger = tiles.larger_tile()?;
    let evidence = format!(
        "a step of the network takes {:.0} µs on {}, and launching its kernels about {:.0} µs by an estimate (launches are not \
         measured): {} runs of tiles of {} voxels have {} steps",
        step_secs * 1e6,
        input.device,
        LAUNCH_SECS * 1e6,
        traffic.runs,
        shape_text(tiles.tile_zyx),
        traffic.steps
    );
    let gain = format!(
        "{} faster inference if the estimate is right: each launch then computes more voxels",
        at_most_faster(0.5)
    );
    let change = message!("{TILE} {}, if there is memory for it", shape_text(larger));
    let advice = Advice::new(AdviceRule::LaunchOverhead, evidence, gain, change);
    Some((compute_secs / input.seconds, advice.with(AdvisedSetting::Tile(larger))))
}

//! Advice: what would make a run faster or its result better, derived from what the run measured.

mod gpu;
mod machine;
mod objects;
mod passes;
mod rule;
mod tiles;
mod training;

pub use rule::AdviceRule;
pub use training::smaller_batch;

use crate::OperatorTotal;
use crate::device::RunDevice;
use crate::facts::{InputFacts, RunFacts};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{ACCURACY_BUDGET, CALIBRATE, DEVICE, MODE, QUANTIZE};
use serde::{Deserialize, Serialize};

/// Share of the operators' time above which float operators of an int8 network are worth a change.
const MAX_FLOAT_SHARE: f64 = 0.1;
/// Ratio of the probes of two devices above which the slower one is worth a change.
const SLOWER_DEVICE: f64 = 1.25;
/// Share of the time of a prediction or a training run spent on copies between host and device above which fewer copies are
/// worth a change.
const MAX_TRANSFERS: f64 = 0.2;

/// A setting with the value that a piece of advice proposes, for programs that can apply it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvisedSetting {
    /// Tile size Z, Y, X in voxels.
    Tile([usize; 3]),
    /// Memory budget in bytes.
    MemoryBudget(u64),
    /// The default way of joining tiles, which is cropping, or no tiles at all.
    #[serde(alias = "crop")]
    DefaultBlend,
    /// Device that computes the network.
    Device(RunDevice),
    /// Number of threads.
    Threads(usize),
    /// Number of data workers of a training run.
    Workers(usize),
    /// The number of patches that the data workers of a training run prepare in advance, which limits how many of them work.
    Prefetch {
        /// Number of patches.
        patches: usize,
        /// Number of data workers, if more of them are proposed too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        workers: Option<usize>,
    },
    /// Number of patches per training batch.
    Batch(usize),
    /// A smaller training batch, and more of them for each optimizer step, so that a step has the same patches.
    AccumulatedBatch {
        /// Number of patches per batch.
        batch: usize,
        /// Number of batches per optimizer step.
        accumulate: usize,
    },
    /// Memory limit for the activations of a training step in MiB.
    ActivationMib(u64),
    /// An object diameter that is estimated from each stack.
    EstimatedDiameter,
    /// An object diameter given by the user. This one was assumed, in µm, or in voxels if the voxel size is unknown.
    Diameter(f64),
    /// A voxel size given by the user.
    VoxelSize,
}

/// A change that would make a run faster or its result better.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Rule that gave the advice.
    pub rule: AdviceRule,
    /// Measurement that the advice is based on, as a sentence.
    pub evidence: String,
    /// Gain that the change is expected to bring.
    pub expected_gain: String,
    /// The option or setting that makes the change.
    #[serde(with = "change_text")]
    pub change: Message,
    /// The setting, if a program can apply the change without asking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setting: Option<AdvisedSetting>,
    /// Number of further inputs that the rule applies to; the evidence is that of the input with the largest gain.
    pub further_inputs: usize,
}

impl Advice {
    fn new(rule: AdviceRule, evidence: String, expected_gain: String, change: impl Into<Message>) -> Self {
        Self { rule, evidence, expected_gain, change: change.into(), setting: None, further_inputs: 0 }
    }

    /// Adds the setting that makes the change.
    fn with(self, setting: AdvisedSetting) -> Self {
        Self { setting: Some(setting), ..self }
    }
}

/// A change in JSON: its text.
mod change_text {
    use cytoscope_storage::message::Message;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(change: &Message, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(change)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Message, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

/// Returns the advice for a run. `operators` are the operators of its trace; without a trace, none.
pub fn advise(facts: &RunFacts, operators: &[OperatorTotal]) -> Vec<Advice> {
    let inputs = &facts.inputs;
    let all = [
        training::data_wait(facts),
        training::small_batch(facts),
        training::recomputation(facts),
        worst(inputs, tiles::small_tiles),
        worst(inputs, tiles::limited_by_budget),
        worst(inputs, passes::tile_normalization),
        machine::memory_pressure(facts),
        worst(inputs, gpu::transfers),
        training::transfers(facts),
        worst(inputs, gpu::launch_overhead),
        float_operators(inputs, operators),
        worst(inputs, tiles::seams),
        worst(inputs, slower_device),
        machine::threads_above_cores(facts),
        machine::idle_threads(facts),
        machine::slowdown(facts),
        worst(inputs, objects::uncertain_diameter),
        worst(inputs, objects::wrong_diameter),
        worst(inputs, objects::missing_voxel_size),
        worst(inputs, objects::wrong_voxel_size),
    ];
    all.into_iter().flatten().collect()
}

/// Returns the advice of the input with the largest gain; a rule returns a number that grows with the gain.
fn worst(inputs: &[InputFacts], rule: impl Fn(&InputFacts) -> Option<(f64, Advice)>) -> Option<Advice> {
    let found: Vec<(&InputFacts, (f64, Advice))> = inputs.iter().filter_map(|i| Some((i, rule(i)?))).collect();
    let further_inputs = found.len().saturating_sub(1);
    let (input, (_, advice)) = found.into_iter().max_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b))?;
    let evidence =
        if inputs.len() > 1 { format!("{}: {}", input.name, advice.evidence) } else { advice.evidence.clone() };
    Some(Advice { evidence, further_inputs, ..advice })
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Returns how much faster work becomes at most if this share of its time is saved.
fn at_most_faster(saved_share: f64) -> String {
    format!("up to {:.2}×", 1.0 / (1.0 - saved_share.clamp(0.0, 0.99)))
}

fn float_operators(inputs: &[InputFacts], operators: &[OperatorTotal]) -> Option<Advice> {
    if !inputs.iter().any(|i| i.precision.is_int8()) || !operators.iter().any(OperatorTotal::is_int8) {
        return None;
    }
    let all: f64 = operators.iter().map(|o| o.seconds).sum();
    let mut floats: Vec<&OperatorTotal> = operators.iter().filter(|o| o.macs > 0 && !o.is_int8()).collect();
    floats.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let share = floats.iter().map(|o| o.seconds).sum::<f64>() / all;
    if !share.is_finite() || share <= MAX_FLOAT_SHARE {
        return None;
    }
    let names: Vec<&str> = floats.iter().take(3).map(|o| o.name.as_str()).collect();
    let evidence = format!(
        "{} float convolutions and matrix products take {} of the operators' time in an int8 network: {}{}",
        floats.len(),
        percent(share),
        names.join(", "),
        if floats.len() > names.len() { ", …" } else { "" }
    );
    let gain = format!("{} faster inference", at_most_faster(share));
    let change = message!(
        "quantize again with {QUANTIZE}: with stacks like these ({CALIBRATE}), with training ({MODE} qat), or with a larger \
         {ACCURACY_BUDGET}"
    );
    Some(Advice::new(AdviceRule::FloatOperators, evidence, gain, change))
}

fn slower_device(input: &InputFacts) -> Option<(f64, Advice)> {
    let own = input.measured.iter().find(|m| m.device == input.device)?;
    let best = input.measured.iter().min_by(|a, b| a.best_ms.total_cmp(&b.best_ms))?;
    let ratio = own.best_ms / best.best_ms;
    if !ratio.is_finite() || ratio < SLOWER_DEVICE {
        return None;
    }
    let evidence = format!(
        "a small tile took {:.1} ms on {}, and {:.1} ms on {}",
        own.best_ms, own.device, best.best_ms, best.device
    );
    let gain = format!("about {ratio:.1}× faster inference");
    let advice = Advice::new(AdviceRule::SlowerDevice, evidence, gain, message!("{DEVICE} {}", best.device));
    Some((ratio, advice.with(AdvisedSetting::Device(best.device.clone()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Joining, TileFacts, TileReason};
    use crate::{DeviceTime, DeviceTraffic, DiameterCertainty, DiameterFacts, OperatorPrecision, TrainingFacts};

    const NONE: [AdviceRule; 0] = [];

    fn rules(facts: &RunFacts, operators: &[OperatorTotal]) -> Vec<AdviceRule> {
        advise(facts, operators).into_iter().map(|advice| advice.rule).collect()
    }

    fn input_facts(input: InputFacts) -> RunFacts {
        RunFacts { inputs: vec![input], ..RunFacts::default() }
    }

    fn tiles(kept_voxels: u64, budget_bytes: Option<u64>) -> TileFacts {
        TileFacts {
            joining: Joining::Crop,
            crop_possible: true,
            tile_zyx: [32, 64, 64],
            count: 8,
            computed_voxels: 1000,
            kept_voxels,
            planned_bytes: 100 << 20,
            budget_bytes,
            grid_zyx: None,
            halo_zyx: [0; 3],
            reason: None,
        }
    }

    fn tile_facts(tiles: TileFacts) -> RunFacts {
        input_facts(InputFacts { tiles: Some(tiles), ..InputFacts::default() })
    }

    #[test]
    fn a_run_without_measurements_gets_no_advice() {
        assert!(advise(&RunFacts::default(), &[]).is_empty());
        assert!(advise(&input_facts(InputFacts::default()), &[]).is_empty());
    }

    #[test]
    fn waiting_for_data_asks_for_workers_while_there_are_cores() {
        let facts = |stalled_secs, workers| RunFacts {
            cores: Some(4),
            training: Some(TrainingFacts {
                step_secs: 1.0,
                stalled_secs,
                workers,
                device: "cpu".into(),
                ..TrainingFacts::default()
            }),
            ..RunFacts::default()
        };
        assert_eq!(rules(&facts(0.15, 1), &[]), NONE);
        assert_eq!(rules(&facts(0.5, 1), &[]), [AdviceRule::DataWait]);
        let change = |workers| advise(&facts(0.5, workers), &[])[0].change.clone();
        assert!(change(1).starts_with("--set workers=2 ") && change(3).starts_with("--set workers=4 "));
        assert!(change(4).contains("[augment]"), "{}", change(4));
        assert!(
            change(1).contains("prefetch") && change(1).contains("--set cache_bytes=") && change(4).contains("cache")
        );
        let setting = |workers| advise(&facts(0.5, workers), &[])[0].setting.clone();
        assert_eq!((setting(3), setting(4)), (Some(AdvisedSetting::Workers(4)), None));
        // A step that waits for nearly all of its time is less than twice as fast with twice the workers.
        assert!(advise(&facts(0.9, 1), &[])[0].expected_gain.contains("1.89×"));
        assert!(advise(&facts(0.9, 4), &[])[0].expected_gain.contains("10.00×"));
    }

    #[test]
    fn small_tiles_are_named_with_their_cause() {
        assert_eq!(rules(&tile_facts(tiles(700, None)), &[]), NONE);
        assert_eq!(rules(&tile_facts(tiles(400, None)), &[]), [AdviceRule::SmallTiles]);
        assert_eq!(rules(&tile_facts(TileFacts { count: 1, ..tiles(400, None) }), &[]), NONE, "nothing can be larger");
        let budget = |bytes| tile_facts(tiles(400, Some(bytes)));
        assert_eq!(rules(&budget(150 << 20), &[]), [AdviceRule::MemoryBudget]);
        assert_eq!(rules(&budget(4 << 30), &[]), NONE, "the budget is not the cause");
        assert!(advise(&budget(150 << 20), &[])[0].change.contains("300M"));
        assert!(advise(&budget(150 << 20), &[])[0].expected_gain.contains("without a budget"));
        let small = advise(&tile_facts(tiles(400, None)), &[]).remove(0);
        assert_eq!(small.setting, Some(AdvisedSetting::Tile([32, 128, 128])));
        assert!(small.change.contains("--tile 32,128,128"), "{}", small.change);
    }

    #[test]
    fn larger_tiles_that_save_nothing_are_not_advised() {
        let of = |edge| {
            let grid_zyx = Some([32, edge, edge]);
            tile_facts(TileFacts { grid_zyx, halo_zyx: [0, 10, 10], tile_zyx: [32, 100, 100], ..tiles(400, None) })
        };
        assert_eq!(rules(&of(1000), &[]), [AdviceRule::SmallTiles]);
        // Five tiles of 100 cover 405 voxels. Tiles of 200, 300 and 400 compute more: three, two and two of them are needed.
        assert_eq!(rules(&of(405), &[]), NONE);
    }

    #[test]
    fn overlapping_tiles_count_what_they_compute_more_than_once() {
        let blended =
            |kept, budget| TileFacts { joining: Joining::Gaussian, crop_possible: false, ..tiles(kept, budget) };
        assert_eq!(rules(&tile_facts(blended(420, None)), &[]), NONE, "the default overlap");
        let advice = advise(&tile_facts(blended(300, None)), &[]);
        assert_eq!((advice.len(), advice[0].rule), (1, AdviceRule::SmallTiles));
        assert!(advice[0].evidence.contains("70 % of the computed voxels are overlap"), "{}", advice[0].evidence);
        assert!(advice[0].change.contains("--overlap"), "{}", advice[0].change);
        assert_eq!(rules(&tile_facts(blended(300, Some(150 << 20))), &[]), [AdviceRule::MemoryBudget]);
        // Where cropping is possible, that is the advice.
        let croppable = TileFacts { crop_possible: true, ..blended(300, None) };
        assert_eq!(rules(&tile_facts(croppable), &[]), [AdviceRule::Seams]);
    }

    #[test]
    fn what_keeps_a_stack_from_passing_once_is_named() {
        let blended = |kept, reason| TileFacts {
            joining: Joining::Gaussian,
            crop_possible: false,
            reason: Some(reason),
            ..tiles(kept, None)
        };
        let normalizes = TileReason::NormalizesOverTile;
        assert_eq!(rules(&tile_facts(blended(420, normalizes)), &[]), [AdviceRule::TileNormalization]);
        assert_eq!(rules(&tile_facts(blended(700, normalizes)), &[]), NONE, "little overlaps");
        assert_eq!(rules(&tile_facts(TileFacts { count: 1, ..blended(420, normalizes) }), &[]), NONE, "one tile");
        let advice = advise(&tile_facts(blended(420, normalizes)), &[]).remove(0);
        assert!(advice.evidence.contains("58 % of the computed voxels are overlap"), "{}", advice.evidence);
        // The budget that is advised is enough for a pass.
        let reason = Some(TileReason::Memory { pass_budget_bytes: (900 << 20) + 1 });
        let limited = TileFacts { reason, ..tiles(400, Some(150 << 20)) };
        let advice = advise(&tile_facts(limited), &[]).remove(0);
        assert_eq!(
            (advice.rule, advice.setting),
            (AdviceRule::MemoryBudget, Some(AdvisedSetting::MemoryBudget(901 << 20)))
        );
        assert!(advice.change.contains("901M") && advice.change.contains("once"), "{}", advice.change);
    }

    #[test]
    fn copies_count_on_devices_only() {
        let facts = |device: &str, transfer_secs, count| {
            input_facts(InputFacts {
                device: device.into(),
                seconds: 10.0,
                transfer_secs: Some(transfer_secs),
                traffic: Some(DeviceTraffic { uploads: 7, ..DeviceTraffic::default() }),
                tiles: Some(TileFacts { count, ..tiles(1000, None) }),
                ..InputFacts::default()
            })
        };
        assert_eq!(rules(&facts("cuda:0", 1.0, 8), &[]), NONE);
        assert_eq!(rules(&facts("cpu", 4.0, 8), &[]), NONE);
        let advice = advise(&facts("cuda:0", 4.0, 8), &[]).remove(0);
        assert_eq!((advice.rule, advice.setting), (AdviceRule::Transfers, Some(AdvisedSetting::Tile([32, 128, 128]))));
        assert!(advice.evidence.contains("40 %") && advice.evidence.contains("7 uploads"), "{}", advice.evidence);
        // These tiles do not overlap, those with a halo do.
        assert!(advice.change.contains("the same voxels are copied in fewer parts"), "{}", advice.change);
        let mut overlapping = facts("cuda:0", 4.0, 8);
        let halo_zyx = [0, 8, 8];
        overlapping.inputs[0].tiles =
            Some(TileFacts { halo_zyx, grid_zyx: Some([32, 1000, 1000]), ..tiles(700, None) });
        let advice = advise(&overlapping, &[]).remove(0);
        assert!(advice.change.contains("less overlap is copied"), "{}", advice.change);
        let single_tile = advise(&facts("cuda:0", 4.0, 1), &[]).remove(0);
        assert!(single_tile.setting.is_none() && single_tile.change.contains("several stacks"), "{single_tile:?}");
    }

    #[test]
    fn tiles_are_too_small_for_a_gpu_that_launches_as_long_as_it_computes() {
        let facts = |device: &str, compute_secs, steps, count| {
            input_facts(InputFacts {
                device: device.into(),
                seconds: 4.0,
                compute_secs: Some(compute_secs),
                traffic: Some(DeviceTraffic { runs: 500, steps, ..DeviceTraffic::default() }),
                tiles: Some(TileFacts { count, ..tiles(1000, None) }),
                ..InputFacts::default()
            })
        };
        let advice = advise(&facts("cuda:0", 2.0, 100_000, 500), &[]).remove(0);
        let larger = Some(AdvisedSetting::Tile([32, 128, 128]));
        assert_eq!((advice.rule, &advice.setting), (AdviceRule::LaunchOverhead, &larger));
        assert!(advice.evidence.contains("20 µs on cuda:0") && advice.evidence.contains("500 runs"), "{advice:?}");
        assert!(advice.evidence.contains("30 µs by an estimate (launches are not measured)"), "{advice:?}");
        assert!(advice.expected_gain.contains("if the estimate is right"), "{advice:?}");
        assert!(advice.change.starts_with("--tile 32,128,128"), "{}", advice.change);
        // Longer steps, one tile, the CPU, a network that takes little of the time, and unknown steps.
        assert_eq!(rules(&facts("cuda:0", 2.0, 10_000, 500), &[]), NONE);
        assert_eq!(rules(&facts("cuda:0", 2.0, 100_000, 1), &[]), NONE);
        assert_eq!(rules(&facts("cpu", 2.0, 100_000, 500), &[]), NONE);
        assert_eq!(rules(&facts("cuda:0", 0.5, 100_000, 500), &[]), NONE);
        assert_eq!(rules(&facts("cuda:0", 2.0, 0, 500), &[]), NONE);
    }

    #[test]
    fn float_operators_count_in_int8_networks_only() {
        let operator = |name: &str, seconds, macs| OperatorTotal {
            name: name.to_owned(),
            count: 1,
            seconds,
            macs,
            bytes: 0,
            precision: None,
        };
        let int8 = OperatorTotal { precision: Some(OperatorPrecision::Int8), ..operator("Conv a", 1.0, 9) };
        let facts = |precision: &str| input_facts(InputFacts { precision: precision.into(), ..InputFacts::default() });
        let mixed = [int8, operator("Conv b", 1.0, 9), operator("Resize c", 1.0, 0)];
        assert_eq!(rules(&facts("int8"), &mixed), [AdviceRule::FloatOperators]);
        // An interface has its own words for commands and options, and leaves out those in parentheses that it lacks.
        let change = advise(&facts("int8"), &mixed).remove(0).change;
        let named: Vec<_> = change.settings().map(|(_, setting)| setting).collect();
        assert_eq!(named, [QUANTIZE, CALIBRATE, MODE, ACCURACY_BUDGET]);
        assert!(change.contains("(--mode qat)"), "{change}");
        assert_eq!(rules(&facts("f32"), &mixed), NONE);
        assert_eq!(rules(&facts("int8"), &[mixed[0].clone(), mixed[2].clone()]), NONE);
    }

    #[test]
    fn blending_is_replaced_by_cropping_only_where_the_network_allows_it() {
        let blended = TileFacts { joining: Joining::Gaussian, ..tiles(1000, None) };
        assert_eq!(rules(&tile_facts(blended.clone()), &[]), [AdviceRule::Seams]);
        assert_eq!(rules(&tile_facts(TileFacts { crop_possible: false, ..blended }), &[]), NONE);
    }

    #[test]
    fn a_faster_device_is_named() {
        let facts = |device: &str| {
            let time = |device: &str, best_ms| DeviceTime { device: device.into(), best_ms };
            let measured = vec![time("cpu", 30.0), time("cuda:0", 3.0)];
            input_facts(InputFacts { device: device.into(), measured, ..InputFacts::default() })
        };
        assert_eq!(rules(&facts("cuda:0"), &[]), NONE);
        let advice = advise(&facts("cpu"), &[]);
        assert_eq!((advice[0].rule, advice[0].change.as_str()), (AdviceRule::SlowerDevice, "--device cuda:0"));
    }

    #[test]
    fn threads_are_compared_with_cores_and_cpu_time() {
        let facts = |threads, cpu_secs, device: &str| RunFacts {
            wall_secs: 10.0,
            cpu_secs: Some(cpu_secs),
            threads: Some(threads),
            cores: Some(2),
            inputs: vec![InputFacts { device: device.into(), ..InputFacts::default() }],
            ..RunFacts::default()
        };
        assert_eq!(rules(&facts(2, 18.0, "cpu"), &[]), NONE);
        assert_eq!(rules(&facts(2, 9.0, "cpu"), &[]), [AdviceRule::IdleThreads]);
        // Fewer threads help nothing that used all of them at times.
        let names_threads =
            |cpu_secs| advise(&facts(2, cpu_secs, "cpu"), &[])[0].change.contains("--threads 1 for each");
        assert!(names_threads(9.0) && !names_threads(13.0));
        assert_eq!(rules(&facts(2, 9.0, "cuda:0"), &[]), NONE, "the GPU computes");
        assert_eq!(rules(&RunFacts { wall_secs: 1.0, ..facts(2, 0.5, "cpu") }, &[]), NONE, "too short to tell");
        assert_eq!(rules(&facts(4, 18.0, "cpu"), &[]), [AdviceRule::ThreadsAboveCores]);
        let compared = |others: &[&str]| {
            let measured = others.iter().map(|device| DeviceTime { device: (*device).into(), best_ms: 9.0 });
            let input = InputFacts { device: "cpu".into(), measured: measured.collect(), ..InputFacts::default() };
            RunFacts { inputs: vec![input], verify_secs: Some(5.0), ..facts(2, 9.0, "cpu") }
        };
        assert_eq!(rules(&compared(&["cpu", "wgpu:0"]), &[]), NONE, "the threads waited for the GPU");
        assert_eq!(rules(&compared(&["cpu"]), &[]), [AdviceRule::IdleThreads]);
        let trained = |verify_secs| RunFacts {
            inputs: Vec::new(),
            training: Some(TrainingFacts { device: "cpu".into(), ..TrainingFacts::default() }),
            verify_secs,
            ..facts(2, 9.0, "cpu")
        };
        assert_eq!(rules(&trained(Some(5.0)), &[]), NONE, "the steps of devices were compared");
        assert_eq!(rules(&trained(None), &[]), [AdviceRule::IdleThreads]);
    }

    #[test]
    fn doubts_about_the_object_size_name_the_option() {
        let facts = |certainty, has_voxel_size| {
            let diameter =
                Some(DiameterFacts { diameter: 9.0, has_voxel_size, estimate: Some((certainty, 2)), voxel_zyx: None });
            input_facts(InputFacts { diameter, ..InputFacts::default() })
        };
        assert_eq!(rules(&facts(DiameterCertainty::High, true), &[]), NONE);
        assert_eq!(rules(&facts(DiameterCertainty::Low, true), &[]), [AdviceRule::UncertainDiameter]);
        assert_eq!(rules(&facts(DiameterCertainty::High, false), &[]), [AdviceRule::MissingVoxelSize]);
        let advice = advise(&facts(DiameterCertainty::None, true), &[]);
        assert!(advice[0].change.contains("--diameter"));
    }

    #[test]
    fn an_advice_for_many_inputs_is_given_once() {
        let input = |name: &str, kept| InputFacts {
            name: name.to_owned(),
            tiles: Some(tiles(kept, None)),
            ..InputFacts::default()
        };
        let inputs = vec![input("a", 500), input("b", 200), input("c", 900)];
        let advice = advise(&RunFacts { inputs, ..RunFacts::default() }, &[]);
        assert_eq!((advice.len(), advice[0].further_inputs), (1, 1));
        assert!(advice[0].evidence.starts_with("b: 80 %"), "{}", advice[0].evidence);
    }
}

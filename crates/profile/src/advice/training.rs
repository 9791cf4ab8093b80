//! Advice on training: data workers, batch size, activations that are computed twice, and copies to and from a GPU.

use super::{Advice, AdviceRule, AdvisedSetting, MAX_TRANSFERS, at_most_faster, percent};
use crate::facts::{RunFacts, TrainingFacts};
use crate::train_setting::{CACHE_BYTES, PREFETCH, VALIDATION_TIMES, WORKERS};
use cytoscope_storage::message;
use cytoscope_storage::setting::{BATCH, ON_CPU, SET, SET_ACCUMULATE, SET_ANY_MEMORY_LIMIT, SET_WORKERS};

/// Share of a training step above which waiting for data is worth a change.
const MAX_DATA_WAIT: f64 = 0.2;
/// Largest factor by which a batch is divided, unless its size is a prime number.
const MAX_BATCH_FACTOR: usize = 1 << 16;
/// Share of a step's multiply-accumulates above which computing them a second time is worth a change.
const MAX_RECOMPUTED: f64 = 0.1;

pub(super) fn data_wait(facts: &RunFacts) -> Option<Advice> {
    let training = facts.training.as_ref()?;
    let share = training.stalled_secs / training.step_secs;
    if !share.is_finite() || share <= MAX_DATA_WAIT {
        return None;
    }
    // 0 stands for an unknown number.
    let workers = training.workers.max(1);
    let prefetch = Some(training.prefetch).filter(|prefetch| *prefetch > 0);
    // At most as many patches as may be in advance are prepared at a time; other workers are idle.
    let busy = prefetch.map_or(workers, |prefetch| prefetch.min(workers));
    let cores = facts.cores.unwrap_or(usize::MAX);
    let is_prefetch_short = busy < workers.min(cores);
    let more = if is_prefetch_short { workers.min(cores) } else { workers.saturating_mul(2).min(cores) };
    // One patch in preparation and one in advance for each worker, and at least two batches.
    let needed_prefetch = workers.max(more).max(training.batch).saturating_mul(2);
    // The remedy if stacks are read and decoded again and again.
    let cache = message!("if the stacks are compressed and fit in memory, a larger cache ({SET} {CACHE_BYTES}=BYTES)");
    let larger_prefetch = |workers| AdvisedSetting::Prefetch { patches: needed_prefetch, workers };
    let (change, setting) = if is_prefetch_short {
        let change = message!(
            "a larger prefetch ({SET} {PREFETCH}={needed_prefetch}), so that all data workers have work; {cache}"
        );
        (change, Some(larger_prefetch(None)))
    } else if more > workers && prefetch.is_some_and(|prefetch| prefetch < more) {
        let change =
            message!("{SET_WORKERS}{more} and a larger prefetch ({SET} {PREFETCH}={needed_prefetch}); {cache}");
        (change, Some(larger_prefetch(Some(more))))
    } else if more > workers {
        let change = message!(
            "{SET_WORKERS}{more} (or {WORKERS} = {more} in the settings file); a larger prefetch ({SET} {PREFETCH}=N) \
             if only some steps wait; {cache}"
        );
        (change, Some(AdvisedSetting::Workers(more)))
    } else {
        let change = message!(
            "less augmentation ([augment] in the settings file) or uncompressed stacks, because every core already has a \
             data worker; {cache}"
        );
        (change, None)
    };
    let advance = prefetch.map_or_else(String::new, |prefetch| format!(" and {PREFETCH} = {prefetch}"));
    let evidence = format!(
        "waiting for data takes {} of a training step ({:.3} of {:.3} s) with {WORKERS} = {workers}{advance}",
        percent(share),
        training.stalled_secs,
        training.step_secs
    );
    let saved = if more > busy { saved_by_workers(facts, training, [busy, more]) } else { share };
    let condition = if more > busy && training.device.is_cpu() { ", if no other program uses the cores" } else { "" };
    let gain = format!("{} faster steps{condition}", at_most_faster(saved));
    Some(Advice { setting, ..Advice::new(AdviceRule::DataWait, evidence, gain, change) })
}

/// Returns the share of a step's time, 0 to 1, that a larger number of data workers saves at most. Of the two numbers of
/// workers, the first one was measured.
///
/// A worker keeps one core busy. If the CPU computes the steps, its threads and the workers share the cores equally, so that
/// more workers fill the cores that are idle while a step waits, and slow down the computation of the steps. A GPU computes
/// while the workers have all cores.
fn saved_by_workers(facts: &RunFacts, training: &TrainingFacts, workers: [usize; 2]) -> f64 {
    let waited = (training.stalled_secs / training.step_secs).clamp(0.0, 1.0);
    let computed = 1.0 - waited;
    let [workers, more] = workers.map(|count| count as f64);
    let cores = facts.cores.map_or(f64::INFINITY, |cores| cores as f64);
    let threads = facts.threads.or(facts.cores).filter(|_| training.device.is_cpu()).unwrap_or(0) as f64;
    // Share of a core that each thread and each worker has while a step is computed.
    let core_share = |workers: f64| (cores / (threads + workers)).min(1.0);
    // Core time of the patches of a step, of its computation, and the duration of its computation beside more workers.
    let patch_work = workers * (computed * core_share(workers) + waited);
    let step_work = computed * threads * core_share(workers);
    let computing = computed * core_share(workers) / core_share(more);
    let waiting = patch_work / more - computing * core_share(more);
    let step = if waiting > 0.0 {
        computing + waiting
    } else {
        // The workers are ahead, so that they leave cores to the computation: all of them are busy, or the workers wait.
        let alone = computed * core_share(workers) / core_share(0.0);
        alone.max((step_work + patch_work) / cores)
    };
    (1.0 - step).clamp(0.0, 1.0)
}

pub(super) fn small_batch(facts: &RunFacts) -> Option<Advice> {
    let training = facts.training.as_ref()?;
    let larger = training.larger_batch.filter(|larger| *larger > training.batch)?;
    let evidence = format!(
        "a batch of {} patches leaves at least half of the memory for activations on {} unused",
        training.batch, training.device
    );
    let gain = "more patches per second, because each kernel has more to compute".to_owned();
    let change = message!("{BATCH} {larger}; learning rates that suited the smaller batch may need to be larger");
    let advice = Advice::new(AdviceRule::SmallBatch, evidence, gain, change);
    Some(advice.with(AdvisedSetting::Batch(larger)))
}

pub(super) fn recomputation(facts: &RunFacts) -> Option<Advice> {
    let training = facts.training.as_ref()?;
    let share = training.recomputed_share.filter(|share| *share > MAX_RECOMPUTED && share.is_finite())?;
    let evidence = format!(
        "a training step does {} more multiplications, so that fewer activations are kept in memory",
        percent(share)
    );
    let gain = format!("{} faster steps", at_most_faster(share / (1.0 + share)));
    let memory = message!("a larger {SET_ANY_MEMORY_LIMIT}, if there is memory for it");
    // 0 stands for an unknown number.
    let Some((batch, accumulate)) = smaller_batch(training.batch, training.accumulate).filter(|(_, n)| *n > 0) else {
        return Some(Advice::new(AdviceRule::Recomputation, evidence, gain, memory));
    };
    let change =
        message!("{BATCH} {batch} {SET_ACCUMULATE}{accumulate}, which keeps the patches of a step; or {memory}");
    let advice = Advice::new(AdviceRule::Recomputation, evidence, gain, change);
    Some(advice.with(AdvisedSetting::AccumulatedBatch { batch, accumulate }))
}

pub(super) fn transfers(facts: &RunFacts) -> Option<Advice> {
    let training = facts.training.as_ref()?;
    let (traffic, transfer_secs) = training.traffic.as_ref().zip(training.transfer_secs)?;
    let share = transfer_secs / facts.wall_secs;
    if training.device.is_cpu() || !share.is_finite() || share <= MAX_TRANSFERS {
        return None;
    }
    let evidence = format!(
        "copies between host and {} take {} of the training run ({transfer_secs:.2} of {:.2} s); its steps alone made {}",
        training.device,
        percent(share),
        facts.wall_secs,
        traffic.text()
    );
    let gain = format!("{} faster training", at_most_faster(share));
    let others = message!("fewer validations ({SET} {VALIDATION_TIMES}=N), whose stacks are copied, too; or {ON_CPU}");
    let Some(larger) = training.larger_batch.filter(|larger| *larger > training.batch) else {
        return Some(Advice::new(AdviceRule::Transfers, evidence, gain, others));
    };
    let change = message!("{BATCH} {larger}, whose patches are copied at once; {others}");
    let advice = Advice::new(AdviceRule::Transfers, evidence, gain, change);
    Some(advice.with(AdvisedSetting::Batch(larger)))
}

/// Returns the largest batch size of at most half of `batch` with which an optimizer step can have the same number of
/// patches, and the number of batches that it then accumulates instead of `accumulate`; `None` for a batch of one patch, and
/// for sizes that no training run has.
pub fn smaller_batch(batch: usize, accumulate: usize) -> Option<(usize, usize)> {
    // A record may state any size: the search ends with a small factor, or when there can be none.
    let is_possible = |factor: &usize| factor.checked_mul(*factor).is_some_and(|square| square <= batch);
    let factor = (2..=MAX_BATCH_FACTOR).take_while(is_possible).find(|factor| batch.is_multiple_of(*factor));
    let smaller = match factor {
        Some(factor) => batch / factor,
        // A prime number.
        None if batch > 1 && !is_possible(&MAX_BATCH_FACTOR) => 1,
        None => return None,
    };
    Some((smaller, accumulate.saturating_mul(batch / smaller)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn data_workers_beside_a_cpu_that_computes_gain_only_idle_cores() {
        let gain = |device: &str, cores, threads, share: f64, workers| {
            let training = TrainingFacts {
                step_secs: 2.0,
                stalled_secs: 2.0 * share,
                workers,
                device: device.into(),
                ..TrainingFacts::default()
            };
            let facts = RunFacts { cores: Some(cores), threads: Some(threads), ..of(training) };
            let gain = data_wait(&facts).unwrap().expected_gain;
            let (gain, condition) = gain.split_once(" faster steps").unwrap();
            assert_eq!(condition, if device == "cpu" { ", if no other program uses the cores" } else { "" });
            gain.to_owned()
        };
        // While half of a step waits, one of two cores is idle: a quarter of all core time.
        assert_eq!(gain("cpu", 2, 2, 0.5, 1), "up to 1.33×");
        // The first worker was nearly alone: the second one halves the wait, beside about a tenth for the computation.
        assert_eq!(gain("cpu", 2, 2, 0.9, 1), "up to 1.82×");
        // The wait ends, and all cores are busy.
        assert_eq!(gain("cpu", 2, 2, 0.25, 1), "up to 1.14×");
        // One thread leaves cores to both workers, and a GPU leaves all of them.
        assert_eq!(gain("cpu", 4, 1, 0.5, 1), "up to 2.00×");
        assert_eq!(gain("cuda:0", 2, 2, 0.5, 1), "up to 2.00×");
        assert_eq!(gain("cuda:0", 2, 2, 0.25, 1), "up to 1.33×");
        assert_eq!(gain("cuda:0", 2, 2, 0.9, 1), "up to 2.00×");
    }

    #[test]
    fn data_workers_that_prefetching_stops_are_not_counted() {
        let advice = |workers, prefetch| {
            let training = TrainingFacts {
                step_secs: 2.0,
                stalled_secs: 1.0,
                workers,
                prefetch,
                batch: 3,
                device: "cuda:0".into(),
                ..TrainingFacts::default()
            };
            data_wait(&RunFacts { cores: Some(4), threads: Some(4), ..of(training) }).unwrap()
        };
        // A second worker would have no patch to prepare.
        let both = advice(1, 1);
        assert!(
            both.change.starts_with("--set workers=2 and a larger prefetch (--set prefetch=6);"),
            "{}",
            both.change
        );
        assert_eq!(both.setting, Some(AdvisedSetting::Prefetch { patches: 6, workers: Some(2) }));
        assert!(both.evidence.ends_with("workers = 1 and prefetch = 1"), "{}", both.evidence);
        // Three of four workers wait, although every core has one.
        let prefetch = advice(4, 1);
        assert!(prefetch.change.starts_with("a larger prefetch (--set prefetch=8),"), "{}", prefetch.change);
        assert_eq!(prefetch.setting, Some(AdvisedSetting::Prefetch { patches: 8, workers: None }));
        assert_eq!(prefetch.expected_gain, "up to 2.00× faster steps");
        for enough in [2, 8] {
            let workers = advice(1, enough);
            assert!(workers.change.starts_with("--set workers=2 ("), "{}", workers.change);
            assert_eq!(workers.setting, Some(AdvisedSetting::Workers(2)));
        }
        // Every core has a worker that prepares a patch.
        for prefetch in [4, 8] {
            let augmentation = advice(8, prefetch);
            assert!(augmentation.change.contains("[augment]"), "{}", augmentation.change);
            assert_eq!(augmentation.setting, None);
        }
        // Eight workers share four cores.
        assert_eq!(advice(8, 2).expected_gain, "up to 2.00× faster steps");
    }

    fn of(training: TrainingFacts) -> RunFacts {
        RunFacts { training: Some(training), ..RunFacts::default() }
    }

    #[test]
    fn a_batch_that_leaves_memory_unused_is_named_with_the_size_that_fits() {
        let facts = |larger_batch| {
            of(TrainingFacts { batch: 4, larger_batch, device: "cuda:0".into(), ..TrainingFacts::default() })
        };
        assert_eq!(small_batch(&facts(None)), None);
        assert_eq!(small_batch(&facts(Some(4))), None);
        let advice = small_batch(&facts(Some(8))).unwrap();
        assert_eq!(advice.setting, Some(AdvisedSetting::Batch(8)));
        assert!(advice.change.starts_with("--batch 8"), "{}", advice.change);
    }

    #[test]
    fn copies_of_a_training_run_count_on_devices_only() {
        let facts = |device: &str, transfer_secs, larger_batch| {
            let traffic = Some(crate::DeviceTraffic { uploads: 7, ..crate::DeviceTraffic::default() });
            let device = device.into();
            let training = TrainingFacts { batch: 2, larger_batch, device, traffic, ..TrainingFacts::default() };
            RunFacts { wall_secs: 10.0, ..of(TrainingFacts { transfer_secs, ..training }) }
        };
        assert_eq!(transfers(&facts("cuda:0", None, None)), None);
        assert_eq!(transfers(&facts("cuda:0", Some(1.0), None)), None);
        assert_eq!(transfers(&facts("cpu", Some(4.0), None)), None);
        let advice = transfers(&facts("cuda:0", Some(4.0), None)).unwrap();
        assert_eq!((advice.rule, &advice.setting), (AdviceRule::Transfers, &None));
        assert!(advice.evidence.contains("40 %") && advice.evidence.contains("7 uploads"), "{}", advice.evidence);
        assert!(advice.expected_gain.contains("1.67×") && advice.change.contains("validation.times"), "{advice:?}");
        let larger = transfers(&facts("cuda:0", Some(4.0), Some(4))).unwrap();
        assert_eq!(larger.setting, Some(AdvisedSetting::Batch(4)));
        assert!(larger.change.starts_with("--batch 4"), "{}", larger.change);
    }

    #[test]
    fn recomputation_is_weighed_by_what_it_costs() {
        let facts = |batch, recomputed_share| {
            of(TrainingFacts { batch, accumulate: 3, recomputed_share, ..TrainingFacts::default() })
        };
        assert_eq!(recomputation(&facts(4, None)), None);
        assert_eq!(recomputation(&facts(4, Some(0.05))), None);
        let advice = recomputation(&facts(4, Some(0.25))).unwrap();
        assert_eq!(advice.setting, Some(AdvisedSetting::AccumulatedBatch { batch: 2, accumulate: 6 }));
        assert!(advice.change.starts_with("--batch 2 --set accumulate=6,"), "{}", advice.change);
        assert!(advice.expected_gain.contains("1.25×"), "{}", advice.expected_gain);
        let single_sample = recomputation(&facts(1, Some(0.25))).unwrap();
        assert!(single_sample.setting.is_none() && single_sample.change.contains("memory_mib"), "{single_sample:?}");
        // A record of an earlier version does not state how many batches a step has.
        let unknown = TrainingFacts { batch: 4, recomputed_share: Some(0.25), ..TrainingFacts::default() };
        assert_eq!(recomputation(&of(unknown)).unwrap().setting, None);
    }

    #[test]
    fn smaller_batches_keep_the_patches_of_a_step() {
        assert_eq!(smaller_batch(1, 5), None);
        assert_eq!(smaller_batch(8, 1), Some((4, 2)));
        // Half of them would be another number of patches.
        assert_eq!(smaller_batch(9, 2), Some((3, 6)));
        assert_eq!(smaller_batch(5, 1), Some((1, 5)));
        for batch in 2..50 {
            let (smaller, accumulate) = smaller_batch(batch, 7).unwrap();
            assert!(2 * smaller <= batch && smaller * accumulate == 7 * batch, "{batch}");
        }
        // Sizes of a damaged record: primes of 31 and 64 bits.
        assert_eq!(smaller_batch(2_147_483_647, 1), Some((1, 2_147_483_647)));
        assert_eq!(smaller_batch(usize::MAX - 58, 1), None);
    }
}

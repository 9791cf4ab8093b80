//! Advice on the machine: threads, memory, and work that becomes slower.

use super::{Advice, AdviceRule, AdvisedSetting, at_most_faster, percent};
use crate::bytes_text;
use crate::facts::RunFacts;
use crate::train_setting::ACCUMULATE;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{BATCH, MEMORY_BUDGET, SET_MEMORY_LIMIT, THREADS};

/// Share of the threads' time that should be CPU time.
const MIN_CPU_SHARE: f64 = 0.7;
/// Wall time in seconds below which start-up dominates the CPU share.
const MIN_WALL_SECS: f64 = 2.0;
/// Share of the machine's memory above which a run leaves too little for the system and for other programs, so that it
/// may be slowed down by swapping, or ended.
const MAX_MEMORY_SHARE: f64 = 0.85;
/// Ratio of the times of the same work late and early in a run above which the machine has become slower.
const MAX_SLOWDOWN: f64 = 1.25;

pub(super) fn threads_above_cores(facts: &RunFacts) -> Option<Advice> {
    let (threads, cores) = facts.threads.zip(facts.cores)?;
    if threads <= cores {
        return None;
    }
    let evidence = format!("{threads} threads share {cores} cores");
    let gain = "fewer switches between threads, and less memory".to_owned();
    let advice = Advice::new(AdviceRule::ThreadsAboveCores, evidence, gain, message!("{THREADS} {cores}"));
    Some(advice.with(AdvisedSetting::Threads(cores)))
}

/// Returns the seconds in which the threads of a run on the CPU may have waited for other devices, which were compared with
/// it.
fn waited_for_devices_secs(facts: &RunFacts) -> f64 {
    let mut measured = facts.inputs.iter().flat_map(|input| &input.measured);
    // A training run states no times of devices.
    let is_compared = facts.training.is_some() || measured.any(|time| !time.device.is_cpu());
    if is_compared { facts.verify_secs.unwrap_or(0.0) } else { 0.0 }
}

pub(super) fn idle_threads(facts: &RunFacts) -> Option<Advice> {
    let (threads, cores) = facts.threads.zip(facts.cores)?;
    let cpu_secs = facts.cpu_secs?;
    let wall_secs = facts.wall_secs - waited_for_devices_secs(facts);
    let share = cpu_secs / (wall_secs * threads as f64);
    let is_measurable = wall_secs >= MIN_WALL_SECS && (1..=cores).contains(&threads) && facts.is_on_cpu();
    if !is_measurable || share >= MIN_CPU_SHARE {
        return None;
    }
    let counted = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let evidence = format!(
        "{cpu_secs:.1} s of CPU time in {wall_secs:.1} s on {counted}: {} of the threads' time",
        percent(share)
    );
    let used = (cpu_secs / wall_secs).ceil().max(1.0);
    let fewer = if used < threads as f64 {
        message!("; if several runs share the machine, {THREADS} {used:.0} for each")
    } else {
        Message::default()
    };
    let change = message!(
        "end other programs that compute{fewer}; if stages of one thread (read, objects, write) dominate, several runs at once"
    );
    let gain = format!("{} faster", at_most_faster(1.0 - share));
    Some(Advice::new(AdviceRule::IdleThreads, evidence, gain, change))
}

pub(super) fn memory_pressure(facts: &RunFacts) -> Option<Advice> {
    let (peak_bytes, total_bytes) = facts.peak_bytes.zip(facts.memory_bytes)?;
    // On a GPU, the settings limit the memory of the device. Jobs other than predictions and training have no such setting.
    if !facts.is_on_cpu() {
        return None;
    }
    let share = peak_bytes as f64 / total_bytes as f64;
    if !share.is_finite() || share <= MAX_MEMORY_SHARE {
        return None;
    }
    let evidence = format!(
        "the run took {} at its peak, {} of the memory of this machine ({})",
        bytes_text(peak_bytes),
        percent(share),
        bytes_text(total_bytes)
    );
    let gain = "no swapping, and the run does not end because memory runs out".to_owned();
    let half_mib = (total_bytes >> 21).max(1);
    let (change, setting) = if facts.training.is_some() {
        let change = message!(
            "{SET_MEMORY_LIMIT}{half_mib}, which computes some activations twice; or a smaller {BATCH} with \
             {ACCUMULATE} increased"
        );
        (change, AdvisedSetting::ActivationMib(half_mib))
    } else {
        let change = message!("{MEMORY_BUDGET} {half_mib}M, which makes slabs or tiles smaller");
        (change, AdvisedSetting::MemoryBudget(half_mib.saturating_mul(1 << 20)))
    };
    Some(Advice::new(AdviceRule::MemoryPressure, evidence, gain, change).with(setting))
}

pub(super) fn slowdown(facts: &RunFacts) -> Option<Advice> {
    let slowdown = facts.slowdown.as_ref().filter(|_| facts.is_on_cpu())?;
    let ratio = slowdown.late_secs / slowdown.early_secs;
    if !ratio.is_finite() || ratio <= MAX_SLOWDOWN {
        return None;
    }
    let evidence = format!(
        "the same work ({}) took {:.3} s at the start and {:.3} s at the end ({} times in all): the CPU became hot and \
         lowered its clock, or other programs started to compute",
        slowdown.work, slowdown.early_secs, slowdown.late_secs, slowdown.count
    );
    let gain = format!("up to {ratio:.2}× faster at the end");
    let fewer = facts.threads.filter(|threads| *threads > 1).map(|threads| (threads / 2).max(1));
    let threads = fewer.map_or_else(Message::default, |n| message!("; {THREADS} {n} computes with less heat"));
    let change = message!("end other programs, improve the cooling, or connect the power supply{threads}");
    let advice = Advice::new(AdviceRule::Slowdown, evidence, gain, change);
    Some(match fewer {
        Some(threads) => advice.with(AdvisedSetting::Threads(threads)),
        None => advice,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::{InputFacts, Slowdown, TrainingFacts};

    #[test]
    fn a_run_that_takes_nearly_all_memory_is_made_smaller() {
        let facts = |peak_bytes: u64| RunFacts {
            peak_bytes: Some(peak_bytes << 30),
            memory_bytes: Some(16 << 30),
            inputs: vec![InputFacts { device: "cpu".into(), ..InputFacts::default() }],
            ..RunFacts::default()
        };
        assert_eq!(memory_pressure(&facts(13)), None);
        // A job without a setting for its memory, and one whose setting limits that of the GPU.
        assert_eq!(memory_pressure(&RunFacts { inputs: Vec::new(), ..facts(15) }), None);
        let on_gpu = vec![InputFacts { device: "cuda:0".into(), ..InputFacts::default() }];
        assert_eq!(memory_pressure(&RunFacts { inputs: on_gpu, ..facts(15) }), None);
        assert_eq!(memory_pressure(&RunFacts { memory_bytes: None, ..facts(15) }), None);
        let prediction = memory_pressure(&facts(15)).unwrap();
        assert!(prediction.change.contains("--memory-budget 8192M"), "{}", prediction.change);
        assert_eq!(prediction.setting, Some(AdvisedSetting::MemoryBudget(8 << 30)));
        let training = TrainingFacts { device: "cpu".into(), ..TrainingFacts::default() };
        let training = RunFacts { training: Some(training), inputs: Vec::new(), ..facts(15) };
        let training = memory_pressure(&training).unwrap();
        assert!(training.change.contains("--set memory_mib=8192,"), "{}", training.change);
    }

    #[test]
    fn work_that_becomes_slower_on_the_cpu_is_reported() {
        let facts = |late_secs, device: &str| RunFacts {
            threads: Some(4),
            slowdown: Some(Slowdown { work: "tile".to_owned(), count: 40, early_secs: 1.0, late_secs }),
            inputs: vec![InputFacts { device: device.into(), ..InputFacts::default() }],
            ..RunFacts::default()
        };
        assert_eq!(slowdown(&facts(1.2, "cpu")), None);
        assert_eq!(slowdown(&facts(2.0, "cuda:0")), None, "the host only waits for the device");
        let advice = slowdown(&facts(2.0, "cpu")).unwrap();
        assert_eq!(advice.setting, Some(AdvisedSetting::Threads(2)));
        assert!(advice.evidence.contains("1.000 s at the start and 2.000 s at the end"), "{}", advice.evidence);
    }
}

//! The number of steps and validations that fit into the budget of a training run.
//!
//! The time budget is wall-clock time for everything: checking the data, steps, validations and finalizing. All
//! functions here depend only on measured costs and elapsed time, so that plans can be tested with simulated ones.

use crate::config::BudgetConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Measured duration of a step and of a validation in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Costs {
    /// Duration of an optimizer step, waiting for patches included.
    pub step_secs: f64,
    /// 0 if there is no validation set.
    pub validation_secs: f64,
}

/// Progress of a training run, by which the rest of its budget is planned.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Progress {
    /// Total duration in all processes of this training run, resumed ones included.
    pub spent_secs: f64,
    /// Part of `spent_secs` that validations took.
    pub validating_secs: f64,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Number of completed validations, not counting that of the start model.
    pub validations: usize,
    /// Step of the last validation.
    pub last_validation: u64,
}

/// Plan of the rest of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// Number of optimizer steps of the whole run.
    pub steps: u64,
    /// Step after which the next validation follows.
    pub next_validation: u64,
}

/// How many pairs and voxels a validation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ValidationSize {
    /// Number of validation pairs.
    pub cases: usize,
    /// Maximum number of voxels per pair; larger stacks are cropped.
    pub voxels: usize,
}

/// Maximum fraction of the time budget for all validations together, except for the last one, which is always made.
const VALIDATIONS_SHARE: f64 = 0.2;
/// Maximum fraction of the time budget for one validation.
const VALIDATION_SHARE: f64 = VALIDATIONS_SHARE / 3.0;
/// Validations are reduced when one takes longer than its time by this factor.
const VALIDATION_SLACK: f64 = 1.5;
/// Minimum and maximum fraction of the time budget reserved for finalizing: tuning, packaging, quantization.
const FINALIZE_SHARES: [f64; 2] = [0.1, 0.25];
/// Like [`FINALIZE_SHARES`], without quantization.
const FLOAT_FINALIZE_SHARES: [f64; 2] = [0.05, 0.2];
/// Duration of finalizing in validations, including quantization-aware training.
const FINALIZE_VALIDATIONS: f64 = 14.0;
/// Like [`FINALIZE_VALIDATIONS`], without quantization: prediction, tuning, and scores of the package.
const FLOAT_FINALIZE_VALIDATIONS: f64 = 4.0;
/// Fraction of the time budget that quantization may exceed it by.
pub(crate) const OVERTIME_SHARE: f64 = 0.1;
/// Minimum number of steps of a useful training run.
pub(crate) const MIN_STEPS: u64 = 20;
/// Safety factor of the recommended time budget over the minimum.
const ADVICE_MARGIN: f64 = 1.25;
/// Lower bound of the completed fraction of a validation that ran out of time.
const MIN_SHARE_DONE: f64 = 0.02;
/// Minimum number of voxels of a validation.
const MIN_CASE_VOXELS: usize = 1 << 16;
/// Default number of epochs.
const DEFAULT_EPOCHS: usize = 30;
/// Minimum number of patches per epoch.
const MIN_EPOCH_PATCHES: usize = 64;
/// Lower bound of the duration of a step in seconds.
const MIN_STEP_SECS: f64 = 1e-4;

/// Returns the number of steps per epoch, where `tiles` patches cover the data once.
pub(crate) fn epoch_steps(tiles: usize, patches_per_step: usize) -> u64 {
    (tiles.max(MIN_EPOCH_PATCHES)).div_ceil(patches_per_step.max(1)) as u64
}

/// Budget of a training run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget<'a> {
    /// Limits that the settings state: minutes, steps or epochs.
    pub config: &'a BudgetConfig,
    /// Number of optimizer steps per epoch.
    pub epoch_steps: u64,
    /// Number of validations that the settings ask for.
    pub validations: usize,
    /// Whether an int8 network is made.
    pub int8: bool,
}

impl Budget<'_> {
    /// Returns the time budget in seconds; `None` if there is none.
    pub(crate) fn total_secs(&self) -> Option<f64> {
        self.config.minutes.map(|m| m * 60.0)
    }

    /// Returns the maximum duration of a validation in seconds; `None` without a time budget.
    pub(crate) fn max_validation_secs(&self) -> Option<f64> {
        self.total_secs().map(|total| total * VALIDATION_SHARE)
    }

    /// Returns the seconds that are reserved for finalizing.
    fn finalize_secs(&self, total: f64, costs: Costs) -> f64 {
        let ([low, high], validations) = match self.int8 {
            true => (FINALIZE_SHARES, FINALIZE_VALIDATIONS),
            false => (FLOAT_FINALIZE_SHARES, FLOAT_FINALIZE_VALIDATIONS),
        };
        (costs.validation_secs * validations).clamp(total * low, total * high)
    }

    /// Returns the number of remaining validations within a time budget, including the last one.
    fn validations_left(&self, total: f64, costs: Costs, now: Progress) -> usize {
        if costs.validation_secs <= 0.0 {
            return 0;
        }
        let affordable = (total * VALIDATIONS_SHARE - now.validating_secs).max(0.0) / costs.validation_secs;
        let requested = self.validations.saturating_sub(now.validations);
        (affordable as usize).min(requested).max(1)
    }

    /// Returns the number of remaining validations.
    pub(crate) fn validations_planned(&self, costs: Costs, now: Progress) -> usize {
        match self.total_secs() {
            Some(total) => self.validations_left(total, costs, now),
            None if costs.validation_secs > 0.0 => self.validations.saturating_sub(now.validations),
            None => 0,
        }
    }

    /// Returns the number of steps from the limits of steps and epochs, regardless of the time budget; `None` if there
    /// is only a time budget.
    fn requested_steps(&self) -> Option<u64> {
        let epochs = self.config.epochs.map(|epochs| self.epoch_steps.saturating_mul(epochs as u64));
        let requested = self.config.steps.map(|s| s as u64).into_iter().chain(epochs).min();
        let default = self.epoch_steps.saturating_mul(DEFAULT_EPOCHS as u64);
        requested.or_else(|| self.config.minutes.is_none().then_some(default)).map(|steps| steps.max(1))
    }

    /// Returns the plan of the rest of the run. The total is never less than the steps done, and equal to them if no
    /// time is left.
    pub(crate) fn plan(&self, costs: Costs, now: Progress) -> StepPlan {
        let requested = self.requested_steps();
        let (by_time, left) = match self.total_secs() {
            None => (None, self.validations.max(1)),
            Some(total) => {
                let validations = self.validations_left(total, costs, now);
                let left = total
                    - self.finalize_secs(total, costs)
                    - now.spent_secs
                    - validations as f64 * costs.validation_secs.max(0.0);
                let steps = (left / costs.step_secs.max(MIN_STEP_SECS)).max(0.0) as u64;
                (Some(now.step.saturating_add(steps)), validations)
            }
        };
        let steps = by_time.into_iter().chain(requested).min().unwrap_or(1).max(now.step).max(1);
        let last = now.last_validation.min(now.step);
        let next = last + (steps - last).div_ceil(left.max(1) as u64);
        StepPlan { steps, next_validation: next.clamp(now.step + 1, steps.max(now.step + 1)) }
    }

    /// Returns whether the rest of the time budget is needed for validation and finalizing, so that no further step is
    /// made.
    pub(crate) fn is_over(&self, costs: Costs, now: Progress) -> bool {
        let Some(total) = self.total_secs() else { return false };
        let validated = now.validations > 0 && now.last_validation == now.step;
        let validation = if validated { 0.0 } else { costs.validation_secs };
        now.spent_secs + costs.step_secs + validation > total - self.finalize_secs(total, costs)
    }

    /// Returns the minimum useful time budget in minutes, if the given one is smaller. The start model is scored with
    /// `start_networks` networks before the first step.
    pub(crate) fn minutes_needed(&self, costs: Costs, spent_secs: f64, start_networks: usize) -> Option<f64> {
        let minutes = self.config.minutes?;
        let enough = |minutes: f64| {
            let config = BudgetConfig { minutes: Some(minutes), epochs: None, steps: None, ..*self.config };
            let budget = Budget { config: &config, ..*self };
            let validation_secs = budget.max_validation_secs().map_or(0.0, |max| costs.validation_secs.min(max));
            let validating_secs = start_networks as f64 * validation_secs;
            let now = Progress { spent_secs: spent_secs + validating_secs, validating_secs, ..Progress::default() };
            budget.plan(Costs { validation_secs, ..costs }, now).steps >= MIN_STEPS
        };
        let few = self.requested_steps().is_some_and(|steps| steps < MIN_STEPS);
        if enough(minutes) || (few && minutes * 60.0 > spent_secs) {
            return None;
        }
        let mut least = minutes.max(spent_secs / 60.0).max(1e-3);
        while !enough(least) && least < 1e9 {
            least *= 1.02;
        }
        Some(round_up_minutes((least * ADVICE_MARGIN).max(minutes)))
    }

    /// Returns the size of a validation that fits into its maximum duration; `None` if no reduction is needed.
    /// `cases` are the voxels of each pair at the network's voxel size; a voxel takes `voxel_secs` seconds.
    pub(crate) fn fit_validation_size(&self, cases: &[usize], voxel_secs: f64) -> Option<ValidationSize> {
        let affordable = self.max_validation_secs()? / voxel_secs.max(f64::MIN_POSITIVE);
        let largest = cases.iter().copied().max()?;
        if cases.iter().map(|v| *v as f64).sum::<f64>() <= affordable {
            return None;
        }
        let mean = cases.iter().map(|v| *v as f64).sum::<f64>() / cases.len() as f64;
        let count = ((affordable / mean.max(1.0)) as usize).clamp(1, cases.len());
        let voxels = if count > 1 || mean <= affordable { largest } else { affordable as usize };
        Some(ValidationSize { cases: count, voxels: voxels.max(MIN_CASE_VOXELS) })
    }

    /// Returns a smaller size for the next validations, after one of `size` took `secs` for the fraction `share` of
    /// its work; less than 1 if it ran out of time. `None` if no reduction is needed or possible.
    pub(crate) fn shrink(&self, size: ValidationSize, secs: f64, share: f64) -> Option<ValidationSize> {
        let allowance = self.max_validation_secs()?;
        let total_secs = secs / share.clamp(MIN_SHARE_DONE, 1.0);
        if share >= 1.0 && total_secs <= allowance * VALIDATION_SLACK {
            return None;
        }
        let max_factor = if share < 1.0 { 0.5 } else { 1.0 };
        let cases = size.cases as f64 * (allowance / total_secs.max(1e-9)).min(max_factor);
        let smaller = if cases >= 1.0 {
            ValidationSize { cases: cases as usize, ..size }
        } else {
            let voxels = (size.voxels as f64 * cases) as usize;
            ValidationSize { cases: 1, voxels: voxels.max(MIN_CASE_VOXELS) }
        };
        (smaller != size && smaller.voxels <= size.voxels).then_some(smaller)
    }

    /// Returns the duration after which a validation is stopped; `None` without a time budget.
    pub(crate) fn validation_timeout(&self) -> Option<Duration> {
        self.max_validation_secs().and_then(|secs| Duration::try_from_secs_f64(secs * VALIDATION_SLACK).ok())
    }
}

/// Rounds minutes up to two significant digits.
fn round_up_minutes(minutes: f64) -> f64 {
    let unit = 10f64.powf(minutes.log10().floor() - 1.0).max(0.1);
    (minutes / unit - 1e-9).ceil() * unit
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn config(minutes: f64) -> BudgetConfig {
        BudgetConfig { minutes: Some(minutes), ..BudgetConfig::default() }
    }

    fn budget(config: &BudgetConfig) -> Budget<'_> {
        Budget { config, epoch_steps: 100, validations: 8, int8: true }
    }

    /// Costs of a step, and of a validation of all cases, as a function of the step.
    type CostsAt = fn(u64) -> Costs;

    /// A training run on a simulated clock, which makes the same decisions as the training loop.
    struct Clock<'a> {
        budget: Budget<'a>,
        now: Progress,
        size: ValidationSize,
        costs: CostsAt,
        measured: Costs,
        validations: usize,
        plans: usize,
    }

    const ALL: ValidationSize = ValidationSize { cases: 6, voxels: 4 << 20 };

    impl Clock<'_> {
        fn share(&self) -> f64 {
            (self.size.cases * self.size.voxels) as f64 / (ALL.cases * ALL.voxels) as f64
        }

        /// Makes a validation; `false` if it ran out of time and must be repeated.
        fn validate(&mut self) -> bool {
            let total_secs = (self.costs)(self.now.step).validation_secs * self.share();
            let limit = self.budget.validation_timeout().map_or(f64::INFINITY, |l| l.as_secs_f64());
            // A stopped validation still completes its current case or setting, at most a twelfth; its share is an
            // estimate.
            let secs = if total_secs > limit { limit + total_secs / 12.0 } else { total_secs };
            let share = if total_secs > limit { (1.5 * secs / total_secs).min(0.99) } else { 1.0 };
            self.spend(secs);
            self.now.validating_secs += secs;
            self.measured.validation_secs = secs;
            self.validations += 1;
            let smaller = self.budget.shrink(self.size, secs, share);
            if let Some(size) = smaller {
                let had = self.share();
                self.size = size;
                self.measured.validation_secs *= self.share() / had;
            }
            smaller.is_none() || share >= 1.0
        }

        fn spend(&mut self, secs: f64) {
            self.now.spent_secs += secs;
        }

        /// Simulates the training run; returns its total duration in seconds.
        fn run(&mut self) -> f64 {
            let voxel_secs = (self.costs)(0).validation_secs / (ALL.cases * ALL.voxels) as f64;
            self.size = self.budget.fit_validation_size(&[ALL.voxels; ALL.cases], voxel_secs).unwrap_or(ALL);
            while !self.validate() {}
            let mut plan = self.budget.plan(self.measured, self.now);
            let mut planned = self.now.spent_secs;
            while self.now.step < plan.steps {
                if self.now.spent_secs - planned > 0.05 * self.budget.total_secs().unwrap_or(f64::INFINITY) {
                    plan = self.budget.plan(self.measured, self.now);
                    (planned, self.plans) = (self.now.spent_secs, self.plans + 1);
                }
                if self.now.step > 0 && self.budget.is_over(self.measured, self.now) {
                    plan.steps = self.now.step;
                } else {
                    let step = (self.costs)(self.now.step).step_secs;
                    self.spend(step);
                    self.now.step += 1;
                    self.measured.step_secs += 0.1 * (step - self.measured.step_secs);
                }
                if self.now.step >= plan.next_validation.min(plan.steps) {
                    while !self.validate() {}
                    (self.now.validations, self.now.last_validation) = (self.now.validations + 1, self.now.step);
                    if self.now.step < plan.steps {
                        plan = self.budget.plan(self.measured, self.now);
                        (planned, self.plans) = (self.now.spent_secs, self.plans + 1);
                    }
                }
            }
            self.now.spent_secs + self.budget.total_secs().map_or(0.0, |t| self.budget.finalize_secs(t, self.measured))
        }
    }

    fn clock(config: &BudgetConfig, spent: f64, costs: CostsAt) -> Clock<'_> {
        let now = Progress { spent_secs: spent, ..Progress::default() };
        let measured = Costs { validation_secs: 0.0, ..costs(0) };
        Clock { budget: budget(config), now, size: ALL, costs, measured, validations: 0, plans: 0 }
    }

    #[test]
    fn the_time_budget_is_kept_for_any_cost_of_validation() {
        let scenes: [(&str, CostsAt); 6] = [
            ("cheap", |_| Costs { step_secs: 0.5, validation_secs: 2.0 }),
            ("expensive", |_| Costs { step_secs: 0.7, validation_secs: 90.0 }),
            // As with a network that finds no objects at first.
            ("expensive after the first steps", |s| Costs {
                step_secs: 0.7,
                validation_secs: if s == 0 { 0.01 } else { 100.0 },
            }),
            ("steps that become slow", |s| Costs { step_secs: if s < 20 { 0.3 } else { 2.0 }, validation_secs: 8.0 }),
            ("steps that become fast", |s| Costs { step_secs: if s < 20 { 2.0 } else { 0.3 }, validation_secs: 8.0 }),
            ("both become slow", |s| Costs { step_secs: 0.2 + 0.01 * s as f64, validation_secs: 5.0 + s as f64 }),
        ];
        for (name, costs) in scenes {
            for minutes in [1.0, 2.0, 5.0, 20.0, 120.0] {
                let config = config(minutes);
                let mut clock = clock(&config, 10.0, costs);
                let total = clock.run();
                let all = minutes * 60.0;
                assert!(total < 1.15 * all, "{name}, {minutes} minutes: {total} s");
                assert!(total > 0.8 * all, "{name}, {minutes} minutes: {total} s");
                // A misjudged validation and the last one are not part of the limit of 20 %.
                assert!(clock.now.validating_secs < 0.45 * all, "{name}, {minutes} minutes: {:?}", clock.now);
                assert!((1..=14).contains(&clock.validations), "{name}, {minutes} minutes: {}", clock.validations);
                assert!(clock.plans <= 40, "{name}, {minutes} minutes: {} plans", clock.plans);
            }
        }
        // With enough time, no validation is reduced or left out.
        let config = config(60.0);
        let mut clock = clock(&config, 30.0, |_| Costs { step_secs: 0.5, validation_secs: 6.0 });
        clock.run();
        assert_eq!((clock.size, clock.validations), (ALL, 9));
        assert!(clock.now.step > 6000, "{:?}", clock.now);
    }

    #[test]
    fn a_plan_reserves_time_for_validation_and_finalizing() {
        let costs = Costs { step_secs: 0.5, validation_secs: 6.0 };
        let twenty = config(20.0);
        let now = Progress { spent_secs: 30.0, validating_secs: 6.0, ..Progress::default() };
        let plan = budget(&twenty).plan(costs, now);
        let total_secs = 30.0 + plan.steps as f64 * 0.5 + 8.0 * 6.0;
        assert!((total_secs - 20.0 * 60.0 * 0.9).abs() < 1.0, "{total_secs}");
        assert_eq!(plan.next_validation, plan.steps.div_ceil(8));
        // A fifth of the time budget allows four validations of 60 s, one of which was that of the start model.
        let expensive = Costs { validation_secs: 60.0, ..costs };
        let plan = budget(&twenty).plan(expensive, Progress { spent_secs: 90.0, validating_secs: 60.0, ..now });
        assert_eq!(plan.steps, ((1200.0 - 300.0 - 90.0 - 180.0) / 0.5) as u64);
        assert_eq!(plan.next_validation, plan.steps.div_ceil(3));
        // Halfway through the run.
        let half =
            Progress { spent_secs: 600.0, validating_secs: 200.0, step: 500, validations: 2, last_validation: 400 };
        let plan = budget(&twenty).plan(expensive, half);
        assert_eq!((plan.steps, plan.next_validation), (500 + 480, 980), "one validation is left, the last one");
        let over = Progress { spent_secs: 1190.0, ..half };
        assert_eq!(budget(&twenty).plan(expensive, over).steps, 500);
        assert!(budget(&twenty).is_over(expensive, over) && !budget(&twenty).is_over(expensive, half));
    }

    #[test]
    fn steps_and_epochs_are_as_requested() {
        let costs = Costs { step_secs: 0.5, validation_secs: 6.0 };
        let start = Progress::default();
        let steps = |config: BudgetConfig| budget(&config).plan(costs, start).steps;
        assert_eq!(steps(BudgetConfig::default()), 3000);
        assert_eq!(steps(BudgetConfig { epochs: Some(7), ..BudgetConfig::default() }), 700);
        assert_eq!(steps(BudgetConfig { epochs: Some(7), steps: Some(10), ..config(20.0) }), 10);
        let config = BudgetConfig { steps: Some(10), ..BudgetConfig::default() };
        let fixed = budget(&config);
        assert!(!fixed.is_over(costs, Progress { spent_secs: 1e9, ..start }));
        assert_eq!(fixed.shrink(ALL, 1e9, 0.5), None);
        assert_eq!(
            (
                fixed.fit_validation_size(&[1 << 30; 9], 1.0),
                fixed.validation_timeout(),
                fixed.minutes_needed(costs, 1e9, 1)
            ),
            (None, None, None)
        );
    }

    #[test]
    fn a_time_budget_that_is_too_small_yields_the_minimum() {
        let costs = Costs { step_secs: 3.0, validation_secs: 80.0 };
        let one = config(1.0);
        let least = budget(&one).minutes_needed(costs, 28.0, 1).unwrap();
        // 28 s and 20 steps of 3 s are 88 s, plus validation and finalizing.
        assert!((2.0..4.0).contains(&least), "{least}");
        let enough = config(least);
        assert_eq!(budget(&enough).minutes_needed(costs, 28.0, 1), None);
        assert_eq!(budget(&one).minutes_needed(Costs { step_secs: 0.5, ..costs }, 12.0, 1), None);
        let long = budget(&one).minutes_needed(costs, 3000.0, 1).unwrap();
        assert!((70.0..120.0).contains(&long), "{long}");
    }

    #[test]
    fn the_minimum_includes_scores_of_both_networks_of_the_start_model() {
        // Of 60 s, 15 s are for finalizing; 15 s are spent, and a validation takes 4 s. With one at the end, and one or two
        // before the first step, 22 or 18 steps of 1 s remain, of 20 that are needed.
        let costs = Costs { step_secs: 1.0, validation_secs: 4.0 };
        let of = |config: &BudgetConfig, start_networks: usize| {
            Budget { validations: 1, ..budget(config) }.minutes_needed(costs, 15.0, start_networks)
        };
        assert_eq!(of(&config(1.0), 1), None);
        let least = of(&config(1.0), 2).unwrap();
        let steps = 0.75 * least * 60.0 - 15.0 - 3.0 * 4.0;
        assert!((20.0..40.0).contains(&steps), "{least} minutes, {steps} steps");
        assert_eq!(of(&config(least), 2), None);
    }

    #[test]
    fn validation_uses_fewer_pairs_and_then_crops() {
        // A validation may take 4 s of one minute.
        let one = config(1.0);
        let of = |cases: &[usize], voxel_secs: f64| budget(&one).fit_validation_size(cases, voxel_secs);
        assert_eq!(of(&[800_000; 6], 0.5e-6), None, "2.4 s");
        assert_eq!(of(&[800_000; 6], 2e-6), Some(ValidationSize { cases: 2, voxels: 800_000 }));
        let part = of(&[800_000; 6], 20e-6).unwrap();
        assert!(part.cases == 1 && part.voxels.abs_diff(200_000) < 2, "{part:?}");
        assert_eq!(of(&[800_000; 6], 1.0), Some(ValidationSize { cases: 1, voxels: MIN_CASE_VOXELS }));
        assert_eq!(of(&[], 1.0), None);
        let smaller = |size, secs, share| budget(&one).shrink(size, secs, share);
        let six = ValidationSize { cases: 6, voxels: 800_000 };
        assert_eq!(smaller(six, 5.0, 1.0), None, "within the slack");
        assert_eq!(smaller(six, 8.0, 1.0), Some(ValidationSize { cases: 3, ..six }));
        assert_eq!(smaller(six, 4.0, 0.9), Some(ValidationSize { cases: 3, ..six }));
        assert_eq!(smaller(six, 4.0, 0.25), Some(ValidationSize { cases: 1, ..six }), "16 s for all of it");
        assert_eq!(smaller(six, 6.0, 0.125), Some(ValidationSize { cases: 1, voxels: 400_000 }), "48 s for all of it");
        let part = ValidationSize { cases: 1, voxels: 800_000 };
        assert_eq!(smaller(part, 16.0, 1.0), Some(ValidationSize { cases: 1, voxels: 200_000 }));
        assert_eq!(smaller(ValidationSize { cases: 1, voxels: MIN_CASE_VOXELS }, 400.0, 0.5), None);
        assert_eq!(smaller(ValidationSize { cases: 1, voxels: 1000 }, 400.0, 0.5), None, "never enlarged");
    }

    #[test]
    fn small_data_have_a_minimum_epoch() {
        assert_eq!(epoch_steps(3, 2), 32);
        assert_eq!(epoch_steps(1001, 2), 501);
    }
}

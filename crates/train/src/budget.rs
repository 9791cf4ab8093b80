//! How many steps and validations fit into the time that was given.
//!
//! Minutes are the time on the clock for everything: looking through the data, steps, validations, and what follows training. All
//! functions here are of measured costs and of the time that has passed, so that a plan can be tried with made-up ones.

use crate::config::BudgetConfig;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a step and a validation take on this machine, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Costs {
    pub step: f64,
    /// 0 where there is nothing to validate on.
    pub validation: f64,
}

/// How far a training is. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Progress {
    /// Time that has passed in all its runs.
    pub spent: f64,
    /// The part of it that validations took.
    pub validating: f64,
    /// Steps done.
    pub step: u64,
    /// Validations done, that of what training started from left out, and the step of the last one.
    pub validations: usize,
    pub last_validation: u64,
}

/// What is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Steps in all.
    pub steps: u64,
    /// The step after which the network is validated next.
    pub next_validation: u64,
}

/// How much is validated on at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// Pairs.
    pub cases: usize,
    /// Most voxels of each; what is larger is cut.
    pub voxels: usize,
}

/// Greatest share of the minutes that all validations take together, apart from the last one, which always comes.
const VALIDATIONS_SHARE: f64 = 0.2;
/// Greatest share of the minutes that one validation takes.
const VALIDATION_SHARE: f64 = VALIDATIONS_SHARE / 3.0;
/// A validation that takes this much longer than it should makes the next ones smaller.
const VALIDATION_SLACK: f64 = 1.5;
/// Least and greatest share of the minutes that are kept for what follows training: choosing settings, packing, quantizing.
const ENDING_SHARES: [f64; 2] = [0.1, 0.25];
/// As [`ENDING_SHARES`], where no network is quantized.
const FLOAT_ENDING_SHARES: [f64; 2] = [0.05, 0.2];
/// What follows takes about as long as so many validations; quantizing teaches the quantized network.
const ENDING_VALIDATIONS: f64 = 14.0;
/// As [`ENDING_VALIDATIONS`], where no network is quantized: maps, settings, and the scores of the package.
const FLOAT_ENDING_VALIDATIONS: f64 = 4.0;
/// Share of the minutes that quantizing may last beyond them.
pub(crate) const OVERTIME_SHARE: f64 = 0.1;
/// Fewest steps that are worth a training.
pub(crate) const LEAST_STEPS: u64 = 20;
/// What is advised is so much longer than what would just do.
const ADVICE_MARGIN: f64 = 1.25;
/// The share of a validation that was broken off is taken to be at least this.
const LEAST_SHARE_DONE: f64 = 0.02;
/// Fewest voxels that a validation looks at.
const LEAST_CASE_VOXELS: usize = 1 << 16;
/// Epochs where nothing is said.
const DEFAULT_EPOCHS: usize = 30;
/// Fewest patches that count as an epoch.
const LEAST_EPOCH_PATCHES: usize = 64;
/// A step is taken to last at least so many seconds.
const LEAST_STEP_SECS: f64 = 1e-4;

/// Steps of an epoch.
pub(crate) fn epoch_steps(tiles: usize, patches_a_step: usize) -> u64 {
    (tiles.max(LEAST_EPOCH_PATCHES)).div_ceil(patches_a_step.max(1)) as u64
}

/// What a training may take, and what is asked of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget<'a> {
    pub config: &'a BudgetConfig,
    /// Steps of an epoch.
    pub epoch_steps: u64,
    /// Validations that are wished for.
    pub validations: usize,
    /// Whether a quantized network is made.
    pub int8: bool,
}

impl Budget<'_> {
    /// Seconds for everything; `None` without minutes.
    pub(crate) fn total(&self) -> Option<f64> {
        self.config.minutes.map(|m| m * 60.0)
    }

    /// Seconds that one validation may take; `None` without minutes.
    pub(crate) fn validation_allowance(&self) -> Option<f64> {
        self.total().map(|total| total * VALIDATION_SHARE)
    }

    /// Seconds that are kept for what follows training.
    fn ending(&self, total: f64, costs: Costs) -> f64 {
        let ([low, high], validations) = match self.int8 {
            true => (ENDING_SHARES, ENDING_VALIDATIONS),
            false => (FLOAT_ENDING_SHARES, FLOAT_ENDING_VALIDATIONS),
        };
        (costs.validation * validations).clamp(total * low, total * high)
    }

    /// Validations that are still to come, the last one included.
    fn validations_left(&self, total: f64, costs: Costs, now: Progress) -> usize {
        if costs.validation <= 0.0 {
            return 0;
        }
        let affordable = (total * VALIDATIONS_SHARE - now.validating).max(0.0) / costs.validation;
        let wished = self.validations.saturating_sub(now.validations);
        (affordable as usize).min(wished).max(1)
    }

    /// Validations that are still to come.
    pub(crate) fn validations_planned(&self, costs: Costs, now: Progress) -> usize {
        match self.total() {
            Some(total) => self.validations_left(total, costs, now),
            None if costs.validation > 0.0 => self.validations.saturating_sub(now.validations),
            None => 0,
        }
    }

    /// Steps that are asked for by number, whatever the minutes.
    fn by_number(&self) -> Option<u64> {
        let epochs = self.config.epochs.map(|epochs| self.epoch_steps.saturating_mul(epochs as u64));
        let asked = self.config.steps.map(|s| s as u64).into_iter().chain(epochs).min();
        let default = self.epoch_steps.saturating_mul(DEFAULT_EPOCHS as u64);
        asked.or_else(|| self.config.minutes.is_none().then_some(default)).map(|steps| steps.max(1))
    }

    /// What is to come. Never fewer steps than are done; where no time is left, no more.
    pub(crate) fn plan(&self, costs: Costs, now: Progress) -> Plan {
        let by_number = self.by_number();
        let (by_time, left) = match self.total() {
            None => (None, self.validations.max(1)),
            Some(total) => {
                let validations = self.validations_left(total, costs, now);
                let left =
                    total - self.ending(total, costs) - now.spent - validations as f64 * costs.validation.max(0.0);
                let steps = (left / costs.step.max(LEAST_STEP_SECS)).max(0.0) as u64;
                (Some(now.step.saturating_add(steps)), validations)
            }
        };
        let steps = by_time.into_iter().chain(by_number).min().unwrap_or(1).max(now.step).max(1);
        let last = now.last_validation.min(now.step);
        let next = last + (steps - last).div_ceil(left.max(1) as u64);
        Plan { steps, next_validation: next.clamp(now.step + 1, steps.max(now.step + 1)) }
    }

    /// Whether the minutes leave no room for another step: what is left is for a validation and for what follows.
    pub(crate) fn is_over(&self, costs: Costs, now: Progress) -> bool {
        let Some(total) = self.total() else { return false };
        let tried = now.validations > 0 && now.last_validation == now.step;
        let validation = if tried { 0.0 } else { costs.validation };
        now.spent + costs.step + validation > total - self.ending(total, costs)
    }

    /// The least minutes that are worth a training, where those given are fewer.
    pub(crate) fn too_short(&self, costs: Costs, spent: f64) -> Option<f64> {
        let minutes = self.config.minutes?;
        let enough = |minutes: f64| {
            let config = BudgetConfig { minutes: Some(minutes), epochs: None, steps: None, ..*self.config };
            let of_minutes = Budget { config: &config, ..*self };
            let validation = of_minutes.validation_allowance().map_or(0.0, |most| costs.validation.min(most));
            // The first one is of what training starts from.
            let now = Progress { spent: spent + validation, validating: validation, ..Progress::default() };
            of_minutes.plan(Costs { validation, ..costs }, now).steps >= LEAST_STEPS
        };
        let few = self.by_number().is_some_and(|steps| steps < LEAST_STEPS);
        if enough(minutes) || (few && minutes * 60.0 > spent) {
            return None;
        }
        let mut least = minutes.max(spent / 60.0).max(1e-3);
        while !enough(least) && least < 1e9 {
            least *= 1.02;
        }
        Some(rounded_up((least * ADVICE_MARGIN).max(minutes)))
    }

    /// The extent of a validation that takes no longer than it may. `cases` are the voxels of each pair, at the voxel size the network
    /// works at; a voxel takes `voxel_secs`.
    pub(crate) fn extent(&self, cases: &[usize], voxel_secs: f64) -> Option<Extent> {
        let affordable = self.validation_allowance()? / voxel_secs.max(f64::MIN_POSITIVE);
        let largest = cases.iter().copied().max()?;
        if cases.iter().map(|v| *v as f64).sum::<f64>() <= affordable {
            return None;
        }
        let mean = cases.iter().map(|v| *v as f64).sum::<f64>() / cases.len() as f64;
        let count = ((affordable / mean.max(1.0)) as usize).clamp(1, cases.len());
        let voxels = if count > 1 || mean <= affordable { largest } else { affordable as usize };
        Some(Extent { cases: count, voxels: voxels.max(LEAST_CASE_VOXELS) })
    }

    /// The extent of the next validations where one of this extent took `secs` for `share` of what was to be done: less than all of it if
    /// it was broken off for the time it took. `None` if they may stay as they are, or cannot be smaller.
    pub(crate) fn smaller(&self, extent: Extent, secs: f64, share: f64) -> Option<Extent> {
        let allowance = self.validation_allowance()?;
        let whole = secs / share.clamp(LEAST_SHARE_DONE, 1.0);
        if share >= 1.0 && whole <= allowance * VALIDATION_SLACK {
            return None;
        }
        let most = if share < 1.0 { 0.5 } else { 1.0 };
        let cases = extent.cases as f64 * (allowance / whole.max(1e-9)).min(most);
        let smaller = if cases >= 1.0 {
            Extent { cases: cases as usize, ..extent }
        } else {
            let voxels = (extent.voxels as f64 * cases) as usize;
            Extent { cases: 1, voxels: voxels.max(LEAST_CASE_VOXELS) }
        };
        (smaller != extent && smaller.voxels <= extent.voxels).then_some(smaller)
    }

    /// How long a validation may go on before it is broken off; `None` without minutes.
    pub(crate) fn validation_limit(&self) -> Option<Duration> {
        self.validation_allowance().and_then(|secs| Duration::try_from_secs_f64(secs * VALIDATION_SLACK).ok())
    }
}

/// Minutes as one would say them: two digits.
fn rounded_up(minutes: f64) -> f64 {
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

    /// What a step takes, and a validation of all cases, after so many steps.
    type CostsAt = fn(u64) -> Costs;

    /// A training on a made-up clock, which asks what the loop asks.
    struct Clock<'a> {
        budget: Budget<'a>,
        now: Progress,
        extent: Extent,
        costs: CostsAt,
        measured: Costs,
        validations: usize,
        plans: usize,
    }

    const ALL: Extent = Extent { cases: 6, voxels: 4 << 20 };

    impl Clock<'_> {
        fn share(&self) -> f64 {
            (self.extent.cases * self.extent.voxels) as f64 / (ALL.cases * ALL.voxels) as f64
        }

        /// A validation; `false` if it was broken off and has to be made again.
        fn validate(&mut self) -> bool {
            let whole = (self.costs)(self.now.step).validation * self.share();
            let limit = self.budget.validation_limit().map_or(f64::INFINITY, |l| l.as_secs_f64());
            // What is broken off ends with the case or setting at work, a twelfth at most; how much was done is not known well.
            let secs = if whole > limit { limit + whole / 12.0 } else { whole };
            let share = if whole > limit { (1.5 * secs / whole).min(0.99) } else { 1.0 };
            self.spend(secs);
            self.now.validating += secs;
            self.measured.validation = secs;
            self.validations += 1;
            let smaller = self.budget.smaller(self.extent, secs, share);
            if let Some(extent) = smaller {
                let had = self.share();
                self.extent = extent;
                self.measured.validation *= self.share() / had;
            }
            smaller.is_none() || share >= 1.0
        }

        fn spend(&mut self, secs: f64) {
            self.now.spent += secs;
        }

        /// Seconds in all.
        fn run(&mut self) -> f64 {
            let voxel_secs = (self.costs)(0).validation / (ALL.cases * ALL.voxels) as f64;
            self.extent = self.budget.extent(&[ALL.voxels; ALL.cases], voxel_secs).unwrap_or(ALL);
            while !self.validate() {}
            let mut plan = self.budget.plan(self.measured, self.now);
            let mut planned = self.now.spent;
            while self.now.step < plan.steps {
                if self.now.spent - planned > 0.05 * self.budget.total().unwrap_or(f64::INFINITY) {
                    plan = self.budget.plan(self.measured, self.now);
                    (planned, self.plans) = (self.now.spent, self.plans + 1);
                }
                if self.now.step > 0 && self.budget.is_over(self.measured, self.now) {
                    plan.steps = self.now.step;
                } else {
                    let step = (self.costs)(self.now.step).step;
                    self.spend(step);
                    self.now.step += 1;
                    self.measured.step += 0.1 * (step - self.measured.step);
                }
                if self.now.step >= plan.next_validation.min(plan.steps) {
                    while !self.validate() {}
                    (self.now.validations, self.now.last_validation) = (self.now.validations + 1, self.now.step);
                    if self.now.step < plan.steps {
                        plan = self.budget.plan(self.measured, self.now);
                        (planned, self.plans) = (self.now.spent, self.plans + 1);
                    }
                }
            }
            self.now.spent + self.budget.total().map_or(0.0, |t| self.budget.ending(t, self.measured))
        }
    }

    fn clock(config: &BudgetConfig, spent: f64, costs: CostsAt) -> Clock<'_> {
        let now = Progress { spent, ..Progress::default() };
        let measured = Costs { validation: 0.0, ..costs(0) };
        Clock { budget: budget(config), now, extent: ALL, costs, measured, validations: 0, plans: 0 }
    }

    #[test]
    fn the_minutes_are_kept_whatever_validation_costs() {
        let scenes: [(&str, CostsAt); 6] = [
            ("cheap", |_| Costs { step: 0.5, validation: 2.0 }),
            ("dear", |_| Costs { step: 0.7, validation: 90.0 }),
            // As of a network that finds nothing at first.
            ("dear once something is learnt", |s| Costs { step: 0.7, validation: if s == 0 { 0.01 } else { 100.0 } }),
            ("steps that become slow", |s| Costs { step: if s < 20 { 0.3 } else { 2.0 }, validation: 8.0 }),
            ("steps that become fast", |s| Costs { step: if s < 20 { 2.0 } else { 0.3 }, validation: 8.0 }),
            ("both become slow", |s| Costs { step: 0.2 + 0.01 * s as f64, validation: 5.0 + s as f64 }),
        ];
        for (name, costs) in scenes {
            for minutes in [1.0, 2.0, 5.0, 20.0, 120.0] {
                let config = config(minutes);
                let mut clock = clock(&config, 10.0, costs);
                let total = clock.run();
                let all = minutes * 60.0;
                assert!(total < 1.15 * all, "{name}, {minutes} minutes: {total} s");
                assert!(total > 0.8 * all, "{name}, {minutes} minutes: {total} s");
                // One that is misjudged, and the last one, come on top of a fifth.
                assert!(clock.now.validating < 0.45 * all, "{name}, {minutes} minutes: {:?}", clock.now);
                assert!((1..=14).contains(&clock.validations), "{name}, {minutes} minutes: {}", clock.validations);
                assert!(clock.plans <= 40, "{name}, {minutes} minutes: {} plans", clock.plans);
            }
        }
        // Where there is time for all of it, nothing is left out.
        let config = config(60.0);
        let mut clock = clock(&config, 30.0, |_| Costs { step: 0.5, validation: 6.0 });
        clock.run();
        assert_eq!((clock.extent, clock.validations), (ALL, 9));
        assert!(clock.now.step > 6000, "{:?}", clock.now);
    }

    #[test]
    fn a_plan_leaves_room_for_validations_and_what_follows() {
        let costs = Costs { step: 0.5, validation: 6.0 };
        let twenty = config(20.0);
        let now = Progress { spent: 30.0, validating: 6.0, ..Progress::default() };
        let plan = budget(&twenty).plan(costs, now);
        let whole = 30.0 + plan.steps as f64 * 0.5 + 8.0 * 6.0;
        assert!((whole - 20.0 * 60.0 * 0.9).abs() < 1.0, "{whole}");
        assert_eq!(plan.next_validation, plan.steps.div_ceil(8));
        // With validations of 60 s three fit into a fifth of the minutes, that of the start among them.
        let dear = Costs { validation: 60.0, ..costs };
        let plan = budget(&twenty).plan(dear, Progress { spent: 90.0, validating: 60.0, ..now });
        assert_eq!(plan.steps, ((1200.0 - 300.0 - 90.0 - 180.0) / 0.5) as u64);
        assert_eq!(plan.next_validation, plan.steps.div_ceil(3));
        // In the middle of it all.
        let half = Progress { spent: 600.0, validating: 200.0, step: 500, validations: 2, last_validation: 400 };
        let plan = budget(&twenty).plan(dear, half);
        assert_eq!((plan.steps, plan.next_validation), (500 + 480, 980), "one validation is left, the last one");
        let over = Progress { spent: 1190.0, ..half };
        assert_eq!(budget(&twenty).plan(dear, over).steps, 500);
        assert!(budget(&twenty).is_over(dear, over) && !budget(&twenty).is_over(dear, half));
    }

    #[test]
    fn steps_and_epochs_are_as_many_as_asked() {
        let costs = Costs { step: 0.5, validation: 6.0 };
        let start = Progress::default();
        let steps = |config: BudgetConfig| budget(&config).plan(costs, start).steps;
        assert_eq!(steps(BudgetConfig::default()), 3000);
        assert_eq!(steps(BudgetConfig { epochs: Some(7), ..BudgetConfig::default() }), 700);
        assert_eq!(steps(BudgetConfig { epochs: Some(7), steps: Some(10), ..config(20.0) }), 10);
        let config = BudgetConfig { steps: Some(10), ..BudgetConfig::default() };
        let fixed = budget(&config);
        assert!(!fixed.is_over(costs, Progress { spent: 1e9, ..start }));
        assert_eq!(fixed.smaller(ALL, 1e9, 0.5), None);
        assert_eq!(
            (fixed.extent(&[1 << 30; 9], 1.0), fixed.validation_limit(), fixed.too_short(costs, 1e9)),
            (None, None, None)
        );
    }

    #[test]
    fn minutes_that_are_too_few_are_known_with_the_least_that_will_do() {
        let costs = Costs { step: 3.0, validation: 80.0 };
        let one = config(1.0);
        let least = budget(&one).too_short(costs, 28.0).unwrap();
        // 28 s and 20 steps of 3 s are 88 s, to which validations and what follows come.
        assert!((2.0..4.0).contains(&least), "{least}");
        let enough = config(least);
        assert_eq!(budget(&enough).too_short(costs, 28.0), None);
        assert_eq!(budget(&one).too_short(Costs { step: 0.5, ..costs }, 12.0), None);
        let long = budget(&one).too_short(costs, 3000.0).unwrap();
        assert!((70.0..120.0).contains(&long), "{long}");
    }

    #[test]
    fn validation_looks_at_fewer_pairs_and_then_at_parts() {
        // A validation may take 4 s of one minute.
        let one = config(1.0);
        let of = |cases: &[usize], voxel_secs: f64| budget(&one).extent(cases, voxel_secs);
        assert_eq!(of(&[800_000; 6], 0.5e-6), None, "2.4 s");
        assert_eq!(of(&[800_000; 6], 2e-6), Some(Extent { cases: 2, voxels: 800_000 }));
        let part = of(&[800_000; 6], 20e-6).unwrap();
        assert!(part.cases == 1 && part.voxels.abs_diff(200_000) < 2, "{part:?}");
        assert_eq!(of(&[800_000; 6], 1.0), Some(Extent { cases: 1, voxels: LEAST_CASE_VOXELS }));
        assert_eq!(of(&[], 1.0), None);
        let smaller = |extent, secs, share| budget(&one).smaller(extent, secs, share);
        let six = Extent { cases: 6, voxels: 800_000 };
        assert_eq!(smaller(six, 5.0, 1.0), None, "little more than it may");
        assert_eq!(smaller(six, 8.0, 1.0), Some(Extent { cases: 3, ..six }));
        assert_eq!(smaller(six, 4.0, 0.9), Some(Extent { cases: 3, ..six }));
        assert_eq!(smaller(six, 4.0, 0.25), Some(Extent { cases: 1, ..six }), "16 s for all of it");
        assert_eq!(smaller(six, 6.0, 0.125), Some(Extent { cases: 1, voxels: 400_000 }), "48 s for all of it");
        let part = Extent { cases: 1, voxels: 800_000 };
        assert_eq!(smaller(part, 16.0, 1.0), Some(Extent { cases: 1, voxels: 200_000 }));
        assert_eq!(smaller(Extent { cases: 1, voxels: LEAST_CASE_VOXELS }, 400.0, 0.5), None);
        assert_eq!(smaller(Extent { cases: 1, voxels: 1000 }, 400.0, 0.5), None, "it is not made larger");
    }

    #[test]
    fn small_data_still_make_an_epoch() {
        assert_eq!(epoch_steps(3, 2), 32);
        assert_eq!(epoch_steps(1001, 2), 501);
    }
}

//! How many steps fit into the time that was given.

use crate::config::BudgetConfig;
use std::time::Duration;

/// What a step and a validation take on this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Costs {
    pub step: Duration,
    pub validation: Duration,
}

/// Least share of a budget of minutes that is kept for what follows training: choosing settings, packing, quantizing.
const KEPT_SHARE: f64 = 0.1;
/// Greatest share that is.
const KEPT_MOST_SHARE: f64 = 0.25;
/// What follows takes about as long as so many validations, its quantized network being taught included.
const KEPT_VALIDATIONS: f64 = 14.0;
/// The least that is kept.
const KEPT_LEAST_SECS: f64 = 12.0;
/// Epochs where nothing is said.
const DEFAULT_EPOCHS: usize = 30;
/// Fewest patches that count as an epoch.
const LEAST_EPOCH_PATCHES: usize = 64;

/// Steps of an epoch.
pub(crate) fn epoch_steps(tiles: usize, patches_a_step: usize) -> u64 {
    (tiles.max(LEAST_EPOCH_PATCHES)).div_ceil(patches_a_step.max(1)) as u64
}

/// Steps that training takes, `spent` of the minutes being gone and `done` steps being behind.
pub(crate) fn steps(
    budget: &BudgetConfig,
    epoch_steps: u64,
    validations: usize,
    costs: Costs,
    spent: Duration,
    done: u64,
) -> u64 {
    let mut all = Vec::new();
    if let Some(minutes) = budget.minutes {
        let total = minutes * 60.0;
        let validation = costs.validation.as_secs_f64();
        let follows = (validation * KEPT_VALIDATIONS).clamp(total * KEPT_SHARE, total * KEPT_MOST_SHARE);
        let left = total - follows.max(KEPT_LEAST_SECS) - spent.as_secs_f64() - validations as f64 * validation;
        all.push(done + (left / costs.step.as_secs_f64().max(1e-4)).max(1.0) as u64);
    }
    if let Some(steps) = budget.steps {
        all.push(steps as u64);
    }
    if let Some(epochs) = budget.epochs {
        all.push(epoch_steps.saturating_mul(epochs as u64));
    }
    all.into_iter().min().unwrap_or(epoch_steps.saturating_mul(DEFAULT_EPOCHS as u64)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_leave_room_for_validation_and_what_follows() {
        let costs = Costs { step: Duration::from_millis(500), validation: Duration::from_secs(6) };
        let budget = BudgetConfig { minutes: Some(20.0), ..BudgetConfig::default() };
        let planned = steps(&budget, 100, 8, costs, Duration::from_secs(30), 0);
        let whole = 30.0 + planned as f64 * 0.5 + 8.0 * 6.0;
        assert!(whole < 20.0 * 60.0 * 0.91, "{whole}");
        assert!(whole > 20.0 * 60.0 * 0.88, "{whole}");
        let slow = Costs { validation: Duration::from_secs(15), ..costs };
        let whole = 30.0 + steps(&budget, 100, 8, slow, Duration::from_secs(30), 0) as f64 * 0.5 + 8.0 * 15.0;
        assert!(whole < 20.0 * 60.0 - 14.0 * 15.0 + 1.0, "{whole}");
        let both = BudgetConfig { steps: Some(10), ..budget };
        assert_eq!(steps(&both, 100, 8, costs, Duration::ZERO, 0), 10);
        assert_eq!(steps(&BudgetConfig::default(), 100, 8, costs, Duration::ZERO, 0), 3000);
        let none = BudgetConfig { minutes: Some(0.1), ..BudgetConfig::default() };
        assert_eq!(steps(&none, 100, 8, costs, Duration::from_secs(30), 7), 8, "at least one more");
    }

    #[test]
    fn small_data_still_make_an_epoch() {
        assert_eq!(epoch_steps(3, 2), 32);
        assert_eq!(epoch_steps(1001, 2), 501);
    }
}

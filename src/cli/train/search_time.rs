//! The time that a search still takes.

use cytoscope_train::SearchRung;
use indicatif::HumanDuration;
use std::time::Duration;

/// Estimate of the time that a search still takes, from the runs that it has made.
#[derive(Default)]
pub(super) struct RemainingTime {
    steps_left: f64,
    timed_steps: f64,
    timed_secs: f64,
}

impl RemainingTime {
    /// Begins the first of the rungs that are left, with this number of trials.
    pub(super) fn begin_rung(&mut self, trials: usize, rungs: &[SearchRung]) {
        let rung_steps = |(place, rung): (usize, &SearchRung)| {
            let trials = if place == 0 { trials } else { rung.trials };
            trials as f64 * rung.steps as f64
        };
        self.steps_left = rungs.iter().enumerate().map(rung_steps).sum();
    }

    /// Counts a run with this number of steps; `secs` is its duration if it was made now and has not failed.
    pub(super) fn add(&mut self, steps: usize, secs: Option<f64>) {
        self.steps_left -= steps as f64;
        if let Some(secs) = secs {
            self.timed_steps += steps as f64;
            self.timed_secs += secs;
        }
    }

    /// Returns the number of seconds that are left; `None` if it is unknown.
    pub(super) fn secs(&self) -> Option<f64> {
        let secs = self.timed_secs / self.timed_steps * self.steps_left;
        (secs.is_finite() && secs >= 0.0).then_some(secs)
    }

    /// Returns the time that is left, for the user; empty if it is unknown or less than a second.
    pub(super) fn text(&self) -> String {
        let left = self.secs().and_then(|secs| Duration::try_from_secs_f64(secs).ok());
        let left = left.filter(|left| left.as_secs() > 0);
        left.map_or_else(String::new, |left| format!(", about {:#} left", HumanDuration(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_steps_that_are_left() {
        let rung = |trials, steps| SearchRung { trials, steps };
        let rungs = [rung(4, 10), rung(2, 20), rung(1, 40)];
        let mut remaining = RemainingTime::default();
        remaining.begin_rung(4, &rungs);
        // A run of an earlier search says nothing about the speed.
        remaining.add(10, None);
        assert_eq!(remaining.text(), "");
        remaining.add(10, Some(30.0));
        assert_eq!(remaining.text(), ", about 5m left", "100 steps at 3 s each");
        // All but one trial have failed.
        remaining.begin_rung(1, &rungs[2..]);
        assert_eq!(remaining.text(), ", about 2m left");
        remaining.add(40, Some(120.0));
        assert_eq!(remaining.text(), "");
    }
}

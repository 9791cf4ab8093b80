//! Learning rate schedules.

/// Decay of the learning rate after the warm-up. Progress runs from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// The learning rate stays at its peak after the warm-up.
    Constant,
    /// Exponential decay: the same factor every step.
    Exponential {
        /// Final rate relative to the peak.
        end: f64,
    },
    /// The learning rate falls along half a cosine period, from its peak to the final rate.
    Cosine {
        /// Final rate relative to the peak.
        end: f64,
    },
}

/// Learning rate as a function of progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Rate after the warm-up.
    pub peak: f64,
    /// Fraction of the training run over which the rate rises linearly from almost 0.
    pub warm_up: f64,
    /// Decay after the warm-up.
    pub decay: Decay,
}

impl Schedule {
    /// Returns the rate at `progress` (0 at the first step, 1 at the end; clamped).
    pub fn rate(&self, progress: f64) -> f64 {
        let progress = if progress.is_nan() { 0.0 } else { progress.clamp(0.0, 1.0) };
        if progress < self.warm_up {
            return self.peak * (progress / self.warm_up).max(0.01);
        }
        let rest = (1.0 - self.warm_up).max(f64::MIN_POSITIVE);
        let position = ((progress - self.warm_up) / rest).clamp(0.0, 1.0);
        self.peak
            * match self.decay {
                Decay::Constant => 1.0,
                Decay::Exponential { end } => end.max(f64::MIN_POSITIVE).powf(position),
                Decay::Cosine { end } => end + (1.0 - end) * 0.5 * (1.0 + (std::f64::consts::PI * position).cos()),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_rise_in_the_warm_up_and_decay_to_the_final_rate() {
        for (decay, end) in
            [(Decay::Constant, 1.0), (Decay::Exponential { end: 0.1 }, 0.1), (Decay::Cosine { end: 0.05 }, 0.05)]
        {
            let schedule = Schedule { peak: 2e-3, warm_up: 0.1, decay };
            assert!(schedule.rate(0.0) > 0.0 && schedule.rate(0.0) < 1e-4);
            assert!((schedule.rate(0.05) - 1e-3).abs() < 1e-9);
            assert!((schedule.rate(0.1) - 2e-3).abs() < 1e-9);
            assert!((schedule.rate(1.0) - 2e-3 * end).abs() < 1e-9);
            assert_eq!(schedule.rate(7.0), schedule.rate(1.0));
        }
        let half = Schedule { peak: 1.0, warm_up: 0.0, decay: Decay::Cosine { end: 0.0 } };
        assert!((half.rate(0.5) - 0.5).abs() < 1e-12);
    }
}

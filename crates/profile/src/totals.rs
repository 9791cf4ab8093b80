//! Totals of the spans of a run by name, and the durations of training steps.

use crate::{MemoryMark, SpanRecord, Stage};
use std::collections::BTreeMap;

/// Totals of one operator, or of other spans with the same stage and name.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanTotal {
    /// Stage of the spans.
    pub stage: Stage,
    /// Operator and node, or another name.
    pub name: String,
    /// Number of spans.
    pub count: u64,
    /// Wall time in seconds, summed over threads.
    pub seconds: f64,
    /// Bytes read, written or copied.
    pub bytes: u64,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Number format of an operator; `None` for other spans, and if it is unknown.
    pub precision: Option<crate::OperatorPrecision>,
}

impl SpanTotal {
    /// Returns the name for display, with the number format of an operator on 8-bit integers.
    pub fn shown_name(&self) -> String {
        crate::device::shown_name(&self.name, self.precision)
    }
}

/// Returns the totals of spans by stage, name and number format, the longest first.
pub fn span_totals(spans: &[SpanRecord]) -> Vec<SpanTotal> {
    let mut sums: BTreeMap<(Stage, &str, Option<crate::OperatorPrecision>), SpanTotal> = BTreeMap::new();
    for span in spans {
        let total = sums.entry((span.stage, span.name.as_ref(), span.precision)).or_insert_with(|| SpanTotal {
            stage: span.stage,
            name: span.name.to_string(),
            count: 0,
            seconds: 0.0,
            bytes: 0,
            macs: 0,
            precision: span.precision,
        });
        total.count += 1;
        total.seconds += span.duration_us / 1e6;
        total.bytes = total.bytes.saturating_add(span.bytes);
        total.macs = total.macs.saturating_add(span.macs);
    }
    let mut totals: Vec<SpanTotal> = sums.into_values().collect();
    totals.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    totals
}

/// Label of the memory mark before the first training step of a run, and before the first one after another device or a
/// smaller memory limit has replaced one that failed. Steps before it are only timed, to plan the run, or are those of a
/// device that failed.
pub const FIRST_STEP_MARK: &str = "first step";

/// Returns the durations of the training steps of a run in seconds, each the sum of its parts: waiting for data, passes,
/// optimizer step. Time between the parts, such as a validation, does not count, nor do steps before the
/// last [mark](FIRST_STEP_MARK) of a first one: times of different devices are not mixed.
pub fn step_durations_secs(spans: &[SpanRecord], marks: &[MemoryMark]) -> Vec<f64> {
    let first_step_us = marks.iter().filter(|mark| mark.label == FIRST_STEP_MARK).map(|mark| mark.at_us);
    let first_us = first_step_us.fold(f64::NEG_INFINITY, f64::max);
    let is_relevant = |s: &&SpanRecord| {
        use Stage::{Backward, Compute, DataWait, Forward, Optimizer, Validate};
        s.start_us >= first_us && matches!(s.stage, DataWait | Forward | Backward | Compute | Optimizer | Validate)
    };
    let mut parts: Vec<&SpanRecord> = spans.iter().filter(is_relevant).collect();
    parts.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    let (mut steps, mut step_us, mut validating_until_us) = (Vec::new(), 0.0, f64::NEG_INFINITY);
    for part in parts {
        match part.stage {
            Stage::Validate => validating_until_us = part.start_us + part.duration_us,
            // A validation predicts, which is not part of a step.
            _ if part.start_us < validating_until_us => {}
            Stage::Optimizer => {
                steps.push((step_us + part.duration_us) / 1e6);
                step_us = 0.0;
            }
            _ => step_us += part.duration_us,
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_by_name_longest_first() {
        let span = |name: &'static str, thread: usize, duration_us: f64| SpanRecord {
            thread,
            bytes: 1,
            ..SpanRecord::new(Stage::Op, name, 0.0, duration_us)
        };
        let totals = span_totals(&[span("a", 0, 5e6), span("b", 0, 9e6), span("a", 1, 6e6)]);
        assert_eq!((totals[0].name.as_str(), totals[0].count, totals[0].bytes), ("a", 2, 2));
        assert!((totals[0].seconds - 11.0).abs() < 1e-9);
    }

    fn span(stage: Stage, start_secs: f64, secs: f64) -> SpanRecord {
        SpanRecord::new(stage, "part", 1e6 * start_secs, 1e6 * secs)
    }

    #[test]
    fn a_step_is_the_sum_of_its_parts_without_validations() {
        let spans = [
            span(Stage::DataWait, 0.0, 0.5),
            span(Stage::Forward, 0.5, 1.0),
            span(Stage::Backward, 1.5, 2.0),
            span(Stage::Optimizer, 3.5, 0.25),
            // Reported at their ends: the validation after the prediction in it.
            span(Stage::Compute, 4.0, 3.0),
            span(Stage::Validate, 3.9, 4.0),
            span(Stage::Augment, 8.0, 9.0),
            span(Stage::Compute, 8.0, 1.5),
            span(Stage::Optimizer, 9.5, 0.5),
            span(Stage::Forward, 10.0, 1.0),
        ];
        assert_eq!(step_durations_secs(&spans, &[]), [3.75, 2.0], "the last step has not ended");
        assert!(step_durations_secs(&[], &[]).is_empty());
        let mark = |label: &'static str, at_us| MemoryMark { label: label.into(), at_us, resident_bytes: 0 };
        let marks = [mark("prepared", 0.0), mark(FIRST_STEP_MARK, 8e6)];
        assert_eq!(step_durations_secs(&spans, &marks), [2.0], "the first step was only timed");
        // A GPU that fails in its second step, after which the CPU continues.
        let spans = [
            span(Stage::Compute, 1.0, 0.25),
            span(Stage::Optimizer, 1.25, 0.25),
            span(Stage::Compute, 1.5, 0.25),
            span(Stage::Forward, 3.0, 4.0),
            span(Stage::Optimizer, 7.0, 1.0),
        ];
        let marks = [mark(FIRST_STEP_MARK, 1e6), mark(FIRST_STEP_MARK, 2e6)];
        assert_eq!(step_durations_secs(&spans, &marks), [5.0], "steps of the GPU are not steps of the CPU");
    }
}

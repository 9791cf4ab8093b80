//! The times of two runs side by side.

use crate::{OperatorTotal, StageTotal};
use serde::Serialize;
use std::collections::BTreeMap;

/// Times of the same stage or operator in two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedTime {
    /// Name of the stage or operator.
    pub name: String,
    /// Seconds in the first run; 0 if it is not there.
    pub first_secs: f64,
    /// Seconds in the second run; 0 if it is not there.
    pub second_secs: f64,
    /// Second time divided by the first; `None` if the first is 0.
    pub ratio: Option<f64>,
}

impl ComparedTime {
    /// Returns the times `first_secs` and `second_secs` with their ratio.
    pub fn new(name: impl Into<String>, first_secs: f64, second_secs: f64) -> Self {
        let ratio = (first_secs > 0.0).then(|| second_secs / first_secs);
        Self { name: name.into(), first_secs, second_secs, ratio }
    }
}

/// Returns the times of the stages of two runs: in the order of the first, then those that only the second has.
pub fn compare_stages(first: &[StageTotal], second: &[StageTotal]) -> Vec<ComparedTime> {
    let times = |all: &[StageTotal]| all.iter().map(|t| (t.stage.name().to_owned(), t.seconds)).collect::<Vec<_>>();
    compare_times(&times(first), &times(second))
}

/// Returns the times of the operators of two runs: in the order of the first, then those that only the second has.
pub fn compare_operators(first: &[OperatorTotal], second: &[OperatorTotal]) -> Vec<ComparedTime> {
    let times = |all: &[OperatorTotal]| all.iter().map(|o| (o.name.clone(), o.seconds)).collect::<Vec<_>>();
    compare_times(&times(first), &times(second))
}

fn compare_times(first: &[(String, f64)], second: &[(String, f64)]) -> Vec<ComparedTime> {
    let of_first: BTreeMap<&str, f64> = first.iter().map(|(name, secs)| (name.as_str(), *secs)).collect();
    let of_second: BTreeMap<&str, f64> = second.iter().map(|(name, secs)| (name.as_str(), *secs)).collect();
    let only_second = second.iter().map(|(name, _)| name.as_str()).filter(|name| !of_first.contains_key(name));
    let names = first.iter().map(|(name, _)| name.as_str()).chain(only_second);
    let compared = |name: &str| {
        let first_secs = of_first.get(name).copied().unwrap_or(0.0);
        ComparedTime::new(name, first_secs, of_second.get(name).copied().unwrap_or(0.0))
    };
    names.map(compared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_one_run_has_is_compared_with_nothing() {
        let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect::<Vec<_>>();
        let compared = compare_times(&of(&[("read", 2.0), ("blend", 1.0)]), &of(&[("write", 3.0), ("read", 1.0)]));
        let rows: Vec<_> = compared.iter().map(|c| (c.name.as_str(), c.ratio)).collect();
        assert_eq!(rows, [("read", Some(0.5)), ("blend", Some(0.0)), ("write", None)]);
    }
}

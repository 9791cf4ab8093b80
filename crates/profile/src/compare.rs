//! The times of two runs side by side.

use crate::{OperatorTotal, StageTotal};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

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

/// Returns the times of the operators of two runs in any number format: in the order of the first, then those that only the
/// second has. If fusion has changed the name of an operator in the second run, the operator is found by its node and listed
/// under its name in the first run. Empty if one of the runs has no operators: they may have run without being recorded, as in a
/// report.
pub fn compare_operators(first: &[OperatorTotal], second: &[OperatorTotal]) -> Vec<ComparedTime> {
    if first.is_empty() || second.is_empty() {
        return Vec::new();
    }
    let (first, second) = (operator_times(first), operator_times(second));
    let (first_by_name, second_by_name) = (single_nodes(&first, &second), single_nodes(&second, &first));
    let renamed: BTreeMap<&str, &str> =
        second_by_name.iter().filter_map(|(node, name)| Some((*name, *first_by_name.get(node)?))).collect();
    let in_first = |(name, secs): &(String, f64)| {
        let name = renamed.get(name.as_str()).copied().unwrap_or(name.as_str());
        (name.to_owned(), *secs)
    };
    let second: Vec<(String, f64)> = second.iter().map(in_first).collect();
    compare_times(&first, &second)
}

/// Returns the seconds of operators by name, in all number formats together.
fn operator_times(operators: &[OperatorTotal]) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for operator in operators {
        *sums.entry(&operator.name).or_default() += operator.seconds;
    }
    let names = operators.iter().map(|operator| operator.name.as_str());
    names.filter_map(|name| Some((name.to_owned(), sums.remove(name)?))).collect()
}

/// Returns the names that `others` lack, by their node; nodes of several such names are left out.
fn single_nodes<'a>(times: &'a [(String, f64)], others: &[(String, f64)]) -> BTreeMap<&'a str, &'a str> {
    let others: BTreeSet<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
    let mut found: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for name in times.iter().map(|(name, _)| name.as_str()).filter(|name| !others.contains(name)) {
        if let Some(node) = node_name(name) {
            found.entry(node).and_modify(|single| *single = None).or_insert(Some(name));
        }
    }
    found.into_iter().filter_map(|(node, name)| Some((node, name?))).collect()
}

/// Returns the node in the name of an operator, which follows the operators that were fused: `a` of `Conv + Relu a`. `None` if
/// the operator belongs to no node.
fn node_name(name: &str) -> Option<&str> {
    let (mut op, mut rest) = name.split_once(' ')?;
    loop {
        let next = match rest.strip_prefix("+ ") {
            Some(next) => next,
            None if op.ends_with(',') => rest,
            None => break,
        };
        (op, rest) = next.split_once(' ')?;
    }
    let node = rest.strip_suffix(" (reference)").unwrap_or(rest);
    (!node.is_empty()).then_some(node)
}

fn compare_times(first: &[(String, f64)], second: &[(String, f64)]) -> Vec<ComparedTime> {
    let first_by_name: BTreeMap<&str, f64> = first.iter().map(|(name, secs)| (name.as_str(), *secs)).collect();
    let second_by_name: BTreeMap<&str, f64> = second.iter().map(|(name, secs)| (name.as_str(), *secs)).collect();
    let only_second = second.iter().map(|(name, _)| name.as_str()).filter(|name| !first_by_name.contains_key(name));
    let names = first.iter().map(|(name, _)| name.as_str()).chain(only_second);
    let compared = |name: &str| {
        let first_secs = first_by_name.get(name).copied().unwrap_or(0.0);
        ComparedTime::new(name, first_secs, second_by_name.get(name).copied().unwrap_or(0.0))
    };
    names.map(compared).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OperatorPrecision;

    #[test]
    fn operators_of_float_and_int8_networks_are_compared_by_their_nodes() {
        let operator = |name: &str, seconds, precision| OperatorTotal {
            name: name.to_owned(),
            count: 1,
            seconds,
            macs: 0,
            bytes: 0,
            precision: Some(precision),
        };
        let float = |name, seconds| operator(name, seconds, OperatorPrecision::Float);
        let int8 = |name, seconds| operator(name, seconds, OperatorPrecision::Int8);
        let first = [float("FusedConv a", 4.0), float("Conv b", 2.0), float("Conv c", 1.0), float("Vjp c", 1.0)];
        let second = [int8("FusedConv + QuantizeLinear a", 1.0), int8("Conv b", 0.5), float("Conv b", 0.5)];
        let fused = [float("Conv + Relu c", 1.0), float("border", 1.0)];
        let compared = compare_operators(&first, &[&second[..], &fused].concat());
        let rows: Vec<_> = compared.iter().map(|c| (c.name.as_str(), c.ratio)).collect();
        let expected = [
            ("FusedConv a", Some(0.25)),
            ("Conv b", Some(0.5)),
            ("Conv c", Some(0.0)),
            ("Vjp c", Some(0.0)),
            ("Conv + Relu c", None),
            ("border", None),
        ];
        assert_eq!(rows, expected, "of node c, it is unknown which operators are the same");
        assert!(compare_operators(&first, &[]).is_empty() && compare_operators(&[], &first).is_empty(), "of a report");
    }

    #[test]
    fn names_end_with_their_node() {
        let names =
            ["Conv a", "InstanceNorm, GroupNorm + Add + Relu up.0", "Softmax my node (reference)", "border", "Conv "];
        assert_eq!(names.map(node_name), [Some("a"), Some("up.0"), Some("my node"), None, None]);
    }

    #[test]
    fn what_only_one_run_has_is_compared_with_nothing() {
        let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect::<Vec<_>>();
        let compared = compare_times(&of(&[("read", 2.0), ("blend", 1.0)]), &of(&[("write", 3.0), ("read", 1.0)]));
        let rows: Vec<_> = compared.iter().map(|c| (c.name.as_str(), c.ratio)).collect();
        assert_eq!(rows, [("read", Some(0.5)), ("blend", Some(0.0)), ("write", None)]);
    }
}

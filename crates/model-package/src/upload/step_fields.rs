//! Pre- and postprocessing steps of a package that is uploaded, by the names and values of bioimageio.spec 0.5.

use super::tensor_fields::entries;
use super::{Checker, given};
use serde_json::Value;
use std::collections::BTreeSet;

/// A step and the parameters that it takes.
struct StepFields {
    id: &'static str,
    known: &'static [&'static str],
    required: &'static [&'static str],
    /// Whether the parameters may be left out as a whole.
    has_defaults: bool,
}

/// The steps that the program runs.
static STEPS: [StepFields; 10] = [
    StepFields { id: "binarize", known: &["axis", "threshold"], required: &["threshold"], has_defaults: false },
    StepFields {
        id: "clip",
        known: &["axes", "max", "max_percentile", "min", "min_percentile"],
        required: &[],
        has_defaults: false,
    },
    StepFields { id: "ensure_dtype", known: &["dtype"], required: &["dtype"], has_defaults: false },
    StepFields {
        id: "fixed_zero_mean_unit_variance",
        known: &["axis", "mean", "std"],
        required: &["mean", "std"],
        has_defaults: false,
    },
    StepFields {
        id: "scale_mean_variance",
        known: &["axes", "eps", "reference_tensor"],
        required: &["reference_tensor"],
        has_defaults: false,
    },
    StepFields { id: "scale_linear", known: &["axis", "gain", "offset"], required: &[], has_defaults: false },
    StepFields {
        id: "scale_range",
        known: &["axes", "eps", "max_percentile", "min_percentile", "reference_tensor"],
        required: &[],
        has_defaults: true,
    },
    StepFields { id: "sigmoid", known: &[], required: &[], has_defaults: true },
    StepFields { id: "softmax", known: &["axis"], required: &[], has_defaults: true },
    StepFields { id: "zero_mean_unit_variance", known: &["axes", "eps"], required: &[], has_defaults: true },
];
/// Parameters that are one number, or a list of numbers along an axis.
const ALONG_AXIS: [&str; 5] = ["gain", "mean", "offset", "std", "threshold"];
/// The largest `eps`.
const MAX_EPS: f64 = 0.1;
/// The percentile that is scaled to 1 is above this.
const MIN_UPPER_PERCENTILE: f64 = 1.0;
/// The smallest fixed standard deviation.
const MIN_STD: f64 = 1e-6;

impl<'a> Checker<'a> {
    /// Checks the steps of a tensor.
    pub(super) fn steps(&mut self, part: &str, steps: Option<&'a Value>, is_output: bool) {
        let Some(steps) = steps else { return };
        let Some(list) = steps.as_array() else {
            return self.refuse(part, "is not a list: write a list of steps, or remove it");
        };
        for (i, step) in list.iter().enumerate() {
            let part = format!("{part}[{i}]");
            let id = step.get("id").and_then(Value::as_str).unwrap_or_default();
            let Some(fields) = STEPS.iter().find(|fields| fields.id == id) else { continue };
            if id == "scale_mean_variance" && !is_output {
                self.refuse(format!("{part}.id"), "is scale_mean_variance, a step of outputs only: remove it");
            }
            let names: &[&str] = if id == "sigmoid" { &["id"] } else { &["id", "kwargs"] };
            self.known_fields(&format!("{part}."), step, names);
            let kwargs = format!("{part}.kwargs");
            match step.get("kwargs") {
                None if fields.has_defaults => {}
                Some(parameters) if parameters.is_object() => {
                    if id != "sigmoid" {
                        self.parameters(&kwargs, fields, parameters);
                    }
                }
                None | Some(_) => self.refuse(kwargs, "has no parameters: write a mapping of them"),
            }
        }
    }

    fn parameters(&mut self, part: &str, fields: &StepFields, kwargs: &'a Value) {
        self.known_fields(&format!("{part}."), kwargs, fields.known);
        for key in fields.required {
            if given(kwargs, key).is_none() {
                self.refuse(format!("{part}.{key}"), format!("is missing: {} needs it", fields.id));
            }
        }
        let number = |key: &str| given(kwargs, key).and_then(Value::as_f64);
        for key in ["gain", "offset", "eps", "min_percentile", "max_percentile"] {
            if fields.known.contains(&key) && fields.id != "clip" && kwargs.get(key).is_some_and(Value::is_null) {
                self.refuse(format!("{part}.{key}"), "is empty: write a number, or remove it");
            }
        }
        if let Some(eps) = number("eps").filter(|eps| *eps > MAX_EPS) {
            self.refuse(format!("{part}.eps"), format!("is {eps}: give one of at most {MAX_EPS}"));
        }
        if let Some(upper) = number("max_percentile").filter(|value| *value <= MIN_UPPER_PERCENTILE) {
            let next = format!("give one above {MIN_UPPER_PERCENTILE}, in percent");
            self.refuse(format!("{part}.max_percentile"), format!("is {upper}: {next}"));
        }
        let stds = kwargs.get("std").into_iter().chain(entries(kwargs, "std")).filter_map(Value::as_f64);
        if let Some(std) = stds.min_by(f64::total_cmp).filter(|std| *std < MIN_STD) {
            self.refuse(format!("{part}.std"), format!("is {std}: give one of at least {MIN_STD}"));
        }
        if given(kwargs, "axes").is_some_and(|axes| !axes.is_array()) {
            self.refuse(format!("{part}.axes"), "is not a list: list the ids of the axes");
        }
        let bounds = ["max", "max_percentile", "min", "min_percentile"];
        if fields.id == "clip" && bounds.iter().all(|key| given(kwargs, key).is_none()) {
            self.refuse(part, "has neither min nor max: give one of them, or remove the step");
        }
        let has_percentile = number("min_percentile").or(number("max_percentile")).is_some();
        if fields.id == "clip" && given(kwargs, "axes").is_some() && !has_percentile {
            self.refuse(format!("{part}.axes"), "is given, but no percentile: remove it, or give a percentile");
        }
        self.axis(part, fields, kwargs);
    }

    /// Checks that lists of numbers have an axis and equal lengths and single numbers have none, and that a linear scaling
    /// changes values.
    fn axis(&mut self, part: &str, fields: &StepFields, kwargs: &'a Value) {
        let mut lengths = BTreeSet::new();
        let mut has_number = false;
        for key in ALONG_AXIS {
            match kwargs.get(key).filter(|_| fields.known.contains(&key)) {
                Some(Value::Array(list)) => _ = lengths.insert(list.len()),
                Some(_) => has_number = true,
                None => {}
            }
        }
        let has_list = !lengths.is_empty();
        // Only a linear scaling may have a number for all and a list.
        if lengths.len() > 1 || (has_list && has_number && fields.id != "scale_linear") {
            self.refuse(part, "has lists of different lengths, or a list and a number: give equally many of each");
        }
        let has_axis = given(kwargs, "axis").is_some();
        if has_list && !has_axis {
            self.refuse(
                format!("{part}.axis"),
                "is missing: lists of numbers need the id of their axis, such as channel",
            );
        } else if has_axis && has_number && !has_list {
            self.refuse(format!("{part}.axis"), "is given, but no list of numbers along it: remove it");
        }
        if fields.id == "scale_linear" {
            let all = |key: &str, neutral: f64| match kwargs.get(key) {
                Some(Value::Array(_)) => entries(kwargs, key).iter().all(|value| value.as_f64() == Some(neutral)),
                Some(value) => value.as_f64() == Some(neutral),
                None => true,
            };
            if all("gain", 1.0) && all("offset", 0.0) {
                self.refuse(part, "has gain 1 and offset 0, which change nothing: remove the step");
            }
        }
    }
}

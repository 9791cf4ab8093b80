//! Fields of the tensors of a package that is uploaded, by the names and values of bioimageio.spec 0.5: their data and axes.

use super::{Checker, given};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Fields of an input tensor.
const INPUT_FIELDS: [&str; 10] = [
    "axes",
    "data",
    "description",
    "id",
    "optional",
    "output_of",
    "pad",
    "preprocessing",
    "sample_tensor",
    "test_tensor",
];
/// Fields of an output tensor.
const OUTPUT_FIELDS: [&str; 7] =
    ["axes", "data", "description", "id", "postprocessing", "sample_tensor", "test_tensor"];
/// Fields of data that are described by a list of their values.
const NOMINAL_FIELDS: [&str; 3] = ["type", "unit", "values"];
/// Fields of other data.
const INTERVAL_FIELDS: [&str; 5] = ["offset", "range", "scale", "type", "unit"];
/// Maximum number of characters of the description of a tensor or an axis.
const SHORT_DESCRIPTION: usize = 128;

/// Units of the axes of type `space`.
const SPACE_UNITS: [&str; 26] = [
    "attometer",
    "angstrom",
    "centimeter",
    "decimeter",
    "exameter",
    "femtometer",
    "foot",
    "gigameter",
    "hectometer",
    "inch",
    "kilometer",
    "megameter",
    "meter",
    "micrometer",
    "mile",
    "millimeter",
    "nanometer",
    "parsec",
    "petameter",
    "picometer",
    "terameter",
    "yard",
    "yoctometer",
    "yottameter",
    "zeptometer",
    "zettameter",
];
/// Units of the axes of type `time`.
const TIME_UNITS: [&str; 23] = [
    "attosecond",
    "centisecond",
    "day",
    "decisecond",
    "exasecond",
    "femtosecond",
    "gigasecond",
    "hectosecond",
    "hour",
    "kilosecond",
    "megasecond",
    "microsecond",
    "millisecond",
    "minute",
    "nanosecond",
    "petasecond",
    "picosecond",
    "second",
    "terasecond",
    "yoctosecond",
    "yottasecond",
    "zeptosecond",
    "zettasecond",
];

/// An axis whose size depends on no other one, so that the sizes of others may refer to it.
struct Independent<'a> {
    min_size: f64,
    scale: f64,
    unit: Option<&'a str>,
}

/// Axes that sizes may refer to, by the ids of their tensor and their own.
type KnownAxes<'a> = BTreeMap<(&'a str, &'a str), Independent<'a>>;

/// Returns the entries of a list; none if it is missing or another value.
pub(super) fn entries<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Returns a text; `None` if it is missing or another value.
fn text_field<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The type of an axis, such as `space`.
fn axis_type(axis: &Value) -> &str {
    text_field(axis, "type").unwrap_or_default()
}

/// The id of an axis: by default its type, of `space` x.
fn axis_id(axis: &Value) -> &str {
    let kind = axis_type(axis);
    text_field(axis, "id").unwrap_or(if kind == "space" { "x" } else { kind })
}

/// Adds the axes of a tensor whose size does not refer to another axis.
fn add_axes<'a>(known: &mut KnownAxes<'a>, tensor: &'a Value, tensor_id: &'a str) {
    for axis in entries(tensor, "axes") {
        let size = axis.get("size");
        let smallest = || size.and_then(|size| size.get("min")).and_then(Value::as_f64);
        let min_size = match axis_type(axis) {
            "batch" => None,
            "channel" => Some(entries(axis, "channel_names").len() as f64),
            _ => size.and_then(Value::as_f64).or_else(smallest),
        };
        let Some(min_size) = min_size else { continue };
        let scale = axis.get("scale").and_then(Value::as_f64).unwrap_or(1.0);
        known.insert((tensor_id, axis_id(axis)), Independent { min_size, scale, unit: text_field(axis, "unit") });
    }
}

impl<'a> Checker<'a> {
    /// Checks the fields of inputs and outputs, of their data, axes and processing steps.
    pub(super) fn tensor_fields(&mut self) {
        if !self.is_05() {
            return;
        }
        let rdf: &'a Value = self.rdf;
        let mut known = KnownAxes::new();
        for (key, default_id, fields, steps) in [
            ("inputs", "input", INPUT_FIELDS.as_slice(), "preprocessing"),
            ("outputs", "output", OUTPUT_FIELDS.as_slice(), "postprocessing"),
        ] {
            let tensors = entries(rdf, key);
            for tensor in tensors {
                add_axes(&mut known, tensor, text_field(tensor, "id").unwrap_or(default_id));
            }
            for (i, tensor) in tensors.iter().enumerate() {
                let part = format!("{key}[{i}]");
                self.known_fields(&format!("{part}."), tensor, fields);
                self.id_and_description(&part, tensor);
                for key in ["test_tensor", "sample_tensor"] {
                    if let Some(file) = given(tensor, key) {
                        self.file_entry(&format!("{part}.{key}"), file);
                    }
                }
                if let Some(file) = given(tensor, "sample_tensor") {
                    self.file(&format!("{part}.sample_tensor"), file);
                }
                self.data(&format!("{part}.data"), tensor.get("data"));
                self.axes(&part, tensor, &known, key == "outputs");
                self.steps(&format!("{part}.{steps}"), tensor.get(steps), key == "outputs");
            }
        }
    }

    /// Checks the id and the description of a tensor or an axis.
    fn id_and_description(&mut self, part: &str, tensor: &'a Value) {
        if let Some(id) = tensor.get("id") {
            self.text(&format!("{part}.id"), id);
        }
        let part = format!("{part}.description");
        let Some(text) = tensor.get("description").and_then(|text| self.text(&part, text)) else { return };
        let count = text.chars().count();
        if count > SHORT_DESCRIPTION {
            let next = "shorten it, and move details into README.md";
            self.refuse(part, format!("has {count} characters, at most {SHORT_DESCRIPTION} are allowed: {next}"));
        }
    }

    /// Checks the description of a tensor's values, or those of its channels.
    fn data(&mut self, part: &str, data: Option<&'a Value>) {
        let all: Vec<(String, &'a Value)> = match data {
            None => return,
            Some(Value::Array(list)) => list.iter().enumerate().map(|(i, one)| (format!("{part}[{i}]"), one)).collect(),
            Some(one) => vec![(part.to_owned(), one)],
        };
        let mut types = BTreeSet::new();
        for (part, one) in all {
            if !one.is_object() {
                self.refuse(part, "is not a mapping: write its type, such as type: float32");
                continue;
            }
            let is_nominal = one.get("values").is_some();
            let fields = if is_nominal { NOMINAL_FIELDS.as_slice() } else { INTERVAL_FIELDS.as_slice() };
            self.known_fields(&format!("{part}."), one, fields);
            types.insert(text_field(one, "type").unwrap_or(if is_nominal { "uint8" } else { "float32" }));
            if one.get("type").is_some_and(|name| !name.is_string()) {
                self.refuse(format!("{part}.type"), "is not text: write a type such as float32");
            }
            if is_nominal && entries(one, "values").is_empty() {
                self.refuse(format!("{part}.values"), "is not a list of values: list them, or describe their range");
            }
            if one.get("range").is_some() && entries(one, "range").len() != 2 {
                self.refuse(
                    format!("{part}.range"),
                    "is not a list of two numbers: write the lowest and highest value",
                );
            }
            for key in ["offset", "scale"] {
                if one.get(key).is_some_and(|value| !value.is_number()) {
                    self.refuse(format!("{part}.{key}"), "is not a number: write one, or remove the field");
                }
            }
        }
        if types.len() > 1 {
            let found = types.into_iter().collect::<Vec<_>>().join(", ");
            self.refuse(part, format!("has different types ({found}): give all channels the type of the tensor"));
        }
    }

    fn axes(&mut self, tensor_part: &str, tensor: &'a Value, known: &KnownAxes<'a>, is_output: bool) {
        let mut ids = BTreeSet::new();
        for (i, axis) in entries(tensor, "axes").iter().enumerate() {
            let part = format!("{tensor_part}.axes[{i}]");
            let (kind, id) = (axis_type(axis), axis_id(axis));
            self.known_fields(&format!("{part}."), axis, axis_fields(kind, is_output));
            self.id_and_description(&part, axis);
            if !ids.insert(id) {
                self.refuse(format!("{part}.id"), format!("is {id:?}, as that of another axis: give each one its own"));
            }
            if (kind == "batch") != (id == "batch") {
                self.refuse(
                    format!("{part}.id"),
                    format!("is {id:?}: give the batch axis, and only that axis, the id batch"),
                );
            }
            match kind {
                "batch" => {
                    if given(axis, "size").is_some_and(|size| size.as_f64() != Some(1.0)) {
                        self.refuse(format!("{part}.size"), "is not 1: remove it, so that batches may have any size");
                    }
                }
                "channel" => self.channel_names(&format!("{part}.channel_names"), axis),
                _ => {
                    self.unit_and_scale(&part, kind, axis);
                    self.size(&part, axis, known, is_output);
                }
            }
        }
    }

    fn channel_names(&mut self, part: &str, axis: &'a Value) {
        let names = entries(axis, "channel_names");
        if names.is_empty() {
            self.refuse(part, "is missing: list a name for each channel");
        }
        for (i, name) in names.iter().enumerate() {
            self.text(&format!("{part}[{i}]"), name);
        }
    }

    fn unit_and_scale(&mut self, part: &str, kind: &str, axis: &'a Value) {
        let units = if kind == "time" { TIME_UNITS.as_slice() } else { SPACE_UNITS.as_slice() };
        if let Some(unit) = given(axis, "unit").filter(|_| kind != "index")
            && !unit.as_str().is_some_and(|unit| units.contains(&unit))
        {
            let expected = if kind == "time" { "second or millisecond" } else { "micrometer or nanometer" };
            self.refuse(format!("{part}.unit"), format!("is {unit}: write a unit in full, such as {expected}"));
        }
        if axis.get("scale").is_some_and(Value::is_null) {
            self.refuse(format!("{part}.scale"), "is empty: write a number, or remove it");
        }
    }

    /// Checks the size of an axis, and the halo that may be cut from it.
    fn size(&mut self, part: &str, axis: &'a Value, known: &KnownAxes<'a>, is_output: bool) {
        let size_part = format!("{part}.size");
        let Some(size) = given(axis, "size") else {
            return self.refuse(size_part, "is missing: give a number, min and step, or tensor_id and axis_id");
        };
        let of = [text_field(size, "tensor_id"), text_field(size, "axis_id")];
        let (mut min_size, mut scales) = (None, [1.0; 2]);
        if let [Some(tensor), Some(id)] = of {
            self.known_fields(&format!("{size_part}."), size, &["axis_id", "offset", "tensor_id"]);
            let offset = size.get("offset").map_or(Some(0), Value::as_i64);
            if offset.is_none() {
                self.refuse(format!("{size_part}.offset"), "is not a whole number: write one, or remove it");
            }
            match known.get(&(tensor, id)) {
                None => self.refuse(
                    size_part,
                    format!("refers to {tensor}.{id}: name an axis whose size is a number, or min and step"),
                ),
                Some(other) => {
                    let scale = axis.get("scale").and_then(Value::as_f64).unwrap_or(1.0);
                    min_size = Some((other.min_size * other.scale / scale + offset.unwrap_or(0) as f64).floor());
                    scales = [scale, other.scale];
                    let unit = text_field(axis, "unit");
                    // A unit that does not exist is refused once.
                    let is_known = |unit: Option<&str>| {
                        unit.is_none_or(|unit| SPACE_UNITS.contains(&unit) || TIME_UNITS.contains(&unit))
                    };
                    if unit != other.unit && is_known(unit) && is_known(other.unit) {
                        let [own, others] = [unit, other.unit].map(|unit| unit.unwrap_or("missing"));
                        let problem =
                            format!("is {own}, but that of {tensor}.{id}, which the size refers to, is {others}");
                        self.refuse(format!("{part}.unit"), format!("{problem}: give both axes the same unit"));
                    }
                }
            }
        } else if size.is_object() {
            self.own_size(&size_part, axis_type(axis), size, is_output);
        }
        if let Some(halo) = axis.get("halo").filter(|_| is_output) {
            let voxels = halo.as_f64().filter(|halo| *halo >= 1.0);
            let part = format!("{part}.halo");
            match (voxels, min_size) {
                (None, _) => self.refuse(part, format!("is {halo}: give a number from 1, or remove it")),
                (Some(_), None) => {
                    self.refuse(part, "needs a size that refers to another axis: change it, or remove the halo")
                }
                (Some(voxels), Some(min)) if min - 2.0 * voxels < 1.0 => {
                    let next = "raise the smallest size of that axis";
                    self.refuse(part, format!("is {halo}, but the axis may have only {min} voxels: {next}"));
                }
                (Some(voxels), Some(_)) => {
                    let [own, other] = scales;
                    let others = voxels * own / other;
                    if others.fract() != 0.0 {
                        let next = "give a halo that is a whole number of these, too";
                        let message =
                            format!("is {halo}, or {others} voxels of the axis that the size refers to: {next}");
                        self.refuse(part, message);
                    }
                }
            }
        }
    }

    /// Checks the size of an axis as a smallest size with a step, which inputs may have, or as one that depends on the data.
    fn own_size(&mut self, part: &str, kind: &str, size: &'a Value, is_output: bool) {
        if is_output && kind == "index" {
            return self.known_fields(&format!("{part}."), size, &["max", "min"]);
        }
        if is_output {
            let next = "give a number, or the tensor_id and axis_id of the axis that decides it";
            return self.refuse(part, format!("is neither fixed nor refers to another axis: {next}"));
        }
        self.known_fields(&format!("{part}."), size, &["min", "step"]);
        if given(size, "min").is_none() {
            self.refuse(format!("{part}.min"), "is missing: give the smallest size");
        }
        if !given(size, "step").and_then(Value::as_f64).is_some_and(|step| step >= 1.0) {
            self.refuse(format!("{part}.step"), "is missing or 0: give the step between sizes, or a fixed size");
        }
    }
}

/// The fields of an axis of this type.
fn axis_fields(kind: &str, is_output: bool) -> &'static [&'static str] {
    match (kind, is_output) {
        ("batch", _) => &["description", "id", "size", "type"],
        ("channel", _) => &["channel_names", "description", "id", "type"],
        ("index", false) => &["concatenable", "description", "id", "size", "type"],
        ("index", true) => &["description", "id", "size", "type"],
        (_, false) => &["concatenable", "description", "id", "scale", "size", "type", "unit"],
        (_, true) => &["description", "halo", "id", "scale", "size", "type", "unit"],
    }
}

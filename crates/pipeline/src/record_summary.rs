//! Provenance records in words, which the command line prints and the window shows.

use crate::ObjectDiameter;
use crate::diameter::Certainty;
use crate::job_record::{AnyRecord, JobRecord};
use crate::predict::PredictedSlices;
use crate::provenance::{CheckedInput, ModelRecord, Provenance};
use crate::results::FileRecord;
use cytoscope_engine::Precision;
use cytoscope_storage::counted;
use serde_json::Value;
use std::fmt::Display;

/// Text about a record whose summary lists no differences.
pub const AS_RECORDED: &str = "program, inputs and model are those of the record";

/// Names of options that are shapes in voxels.
const SHAPES: [&str; 3] = ["tile", "recorded", "patch_zyx"];

/// The part of a record that a line is about, in the order of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordPart {
    /// Options of the job that are set, by the names of their fields.
    Settings,
    /// Files and folders that were read.
    Inputs,
    /// The model that was run or read.
    Model,
    /// Device, precision, tiles and object diameter.
    Computation,
    /// Files and folders that were written.
    Outputs,
}

/// A line of text about a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordLine {
    /// What the line is about.
    pub part: RecordPart,
    /// The text, without a full stop.
    pub text: String,
}

/// A record in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSummary {
    /// Command, and program with its version, such as `predict, cytoscope 1.0.0`.
    pub title: String,
    /// How the result was made, ordered by [`RecordLine::part`]. Inputs and model are said to be unchanged, or not.
    pub lines: Vec<RecordLine>,
    /// Differences from the time when the record was written, one sentence each: the program, the inputs and the model.
    pub differences: Vec<String>,
}

impl AnyRecord {
    /// Returns the record in words. To compare them with the record, the inputs are looked at and the model is loaded, which
    /// may take seconds.
    pub fn summary(&self) -> RecordSummary {
        match self {
            Self::Prediction(record) => prediction_summary(record),
            Self::Job(record) => job_summary(record),
        }
    }
}

/// Lines of text that are collected part by part.
#[derive(Default)]
struct Lines(Vec<RecordLine>);

impl Lines {
    fn add(&mut self, part: RecordPart, text: String) {
        self.0.push(RecordLine { part, text });
    }

    /// Adds the options of a job that are set, by the names of its fields.
    fn add_settings(&mut self, job: &Value) {
        for (name, value) in job.as_object().into_iter().flatten() {
            self.add_setting(name, value);
        }
    }

    /// Adds an option that is set. Those of a group have a line each, such as `tiles.overlap: 0.25`.
    fn add_setting(&mut self, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::Object(fields) => {
                for (field, value) in fields {
                    self.add_setting(&format!("{name}.{field}"), value);
                }
            }
            Value::Array(values) if values.iter().any(|value| value.is_object() || value.is_array()) => {
                for (number, value) in (1_usize..).zip(values) {
                    self.add_setting(&format!("{name}.{number}"), value);
                }
            }
            Value::Array(values) if values.is_empty() => {}
            Value::Array(values) => self.add(RecordPart::Settings, format!("{name}: {}", list_text(name, values))),
            value => self.add(RecordPart::Settings, format!("{name}: {}", plain_text(value))),
        }
    }

    fn add_inputs(&mut self, inputs: &[CheckedInput]) {
        for CheckedInput { text, changes } in inputs {
            self.add(RecordPart::Inputs, format!("{text}, {}", state(changes.is_empty())));
        }
    }

    /// Adds a model; `change` is how it differs from the record, if it does.
    fn add_model(&mut self, model: &ModelRecord, change: Option<&String>) {
        let ModelRecord { name, path, fingerprint } = model;
        let state = state(change.is_none());
        self.add(RecordPart::Model, format!("model {name} ({}), fingerprint {fingerprint}, {state}", path.display()));
    }

    fn add_device(&mut self, id: impl Display, name: &str, precision: Option<Precision>) {
        self.add(RecordPart::Computation, format!("device: {id} ({name}){}", in_precision(precision)));
    }

    fn add_tile(&mut self, shape: &[usize]) {
        self.add(RecordPart::Computation, format!("tile: {}", shape_text(shape)));
    }

    fn add_outputs(&mut self, outputs: &[FileRecord]) {
        for FileRecord { path, bytes, .. } in outputs {
            self.add(RecordPart::Outputs, format!("wrote {}: {bytes} bytes", path.display()));
        }
    }
}

/// Returns a value without the quotes of JSON.
fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the values of an option: shapes and sizes along axes as products, others with commas.
fn list_text(name: &str, values: &[Value]) -> String {
    let texts = values.iter().map(plain_text);
    let field = name.rsplit('.').next().unwrap_or(name);
    if SHAPES.contains(&field) {
        return shape_text(texts);
    }
    let separator = if field.ends_with("_um") { " × " } else { ", " };
    texts.collect::<Vec<_>>().join(separator)
}

/// Returns a shape in voxels, such as `64 × 64 × 64 voxels`.
fn shape_text(shape: impl IntoIterator<Item = impl Display>) -> String {
    let extents: Vec<String> = shape.into_iter().map(|extent| extent.to_string()).collect();
    format!("{} voxels", extents.join(" × "))
}

/// Returns how something that was read compares with its record.
fn state(is_unchanged: bool) -> &'static str {
    if is_unchanged { "unchanged" } else { "changed or missing" }
}

/// Returns the precision behind the name of a device; empty if it is not recorded.
fn in_precision(precision: Option<Precision>) -> String {
    precision.map_or_else(String::new, |precision| format!(" in {precision}"))
}

/// Returns the object diameter with its origin. Advice on how to set another one is left out.
fn diameter_text(diameter: &ObjectDiameter) -> String {
    let origin = match &diameter.estimate {
        None => "as given".to_owned(),
        Some(estimate) if estimate.certainty == Certainty::None => "assumed, because no objects were found".to_owned(),
        Some(estimate) => {
            format!("estimated from {} ({})", counted(estimate.objects, "object"), estimate.certainty.words())
        }
    };
    format!("object diameter: {:.1} {}, {origin}", diameter.diameter, diameter.unit.symbol())
}

fn prediction_summary(record: &Provenance) -> RecordSummary {
    let (inputs, model_change) = (record.checked_inputs(), record.model.change());
    let mut lines = Lines::default();
    match serde_json::to_value(&record.job) {
        Ok(job) => lines.add_settings(&job),
        Err(error) => lines.add(RecordPart::Settings, format!("the settings cannot be shown ({error})")),
    }
    lines.add_inputs(&inputs);
    lines.add_model(&record.model, model_change.as_ref());
    match record.device.get() {
        Ok(device) => lines.add_device(device.id, &device.name, record.precision),
        Err(error) => lines.add(
            RecordPart::Computation,
            format!("device: as another version recorded it{} ({error})", in_precision(record.precision)),
        ),
    }
    for PredictedSlices { slices, device, precision } in &record.parts {
        lines.add(RecordPart::Computation, format!("  {}: {device} in {precision}", counted(slices, "slice")));
    }
    match record.plan.get() {
        Ok(plan) => lines.add_tile(&plan.tile),
        Err(error) => lines.add(RecordPart::Computation, format!("tile: as another version recorded it ({error})")),
    }
    if let Some(diameter) = &record.diameter {
        lines.add(RecordPart::Computation, diameter_text(diameter));
    }
    lines.add_outputs(&record.outputs);
    RecordSummary {
        title: format!("predict, {}", record.program),
        lines: lines.0,
        differences: record.differences_from(&inputs, model_change),
    }
}

fn job_summary(record: &JobRecord) -> RecordSummary {
    let inputs = record.checked_inputs();
    let model_change = record.model.as_ref().and_then(ModelRecord::change);
    let mut lines = Lines::default();
    lines.add_settings(&record.job);
    lines.add_inputs(&inputs);
    if let Some(model) = &record.model {
        lines.add_model(model, model_change.as_ref());
    }
    if let Some(device) = &record.device {
        lines.add_device(device.id, &device.name, record.precision);
    }
    if !record.tile_shape.is_empty() {
        lines.add_tile(&record.tile_shape);
    }
    lines.add_outputs(&record.outputs);
    RecordSummary {
        title: format!("{}, {}", record.kind.name(), record.program),
        lines: lines.0,
        differences: record.differences_from(&inputs, model_change),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::job_record::{read_any, read_record_of};
    use std::path::Path;

    /// Writes the record of a prediction of `input`, with an estimated object diameter.
    fn write_prediction(path: &Path, input: &Path) {
        let record = serde_json::json!({
            "program": "cytoscope 0.0.1", "fingerprint": "f",
            "job": {
                "inputs": [input], "model": "m", "out": "o", "channel": 1, "outputs": ["table", "labels"],
                "tiles": {"tile": [64, 96, 128], "overlap": 0.5}, "voxel_um": [2.0, 0.5, 0.25],
            },
            "model": {"name": "m", "path": "/nothere/m", "fingerprint": "abc"},
            "input": crate::provenance::InputRecord::sampled(input).unwrap(),
            "outputs": [{"path": "x_labels.tif", "bytes": 5, "sha256": ""}],
            "device": {"id": "cpu", "name": "A CPU", "why": "", "measurements": []}, "precision": "f32", "plan": null,
            "diameter": {
                "diameter": 7.94, "unit": "um", "voxel": [1.0, 1.0, 1.0], "nominal_um": 8.0,
                "estimate": {"diameter": 7.94, "range": [6.0, 9.0], "objects": 12, "certainty": "high"},
            },
            "objects": [12], "finished_unix_secs": 5,
        });
        std::fs::write(path, record.to_string()).unwrap();
    }

    fn texts(summary: &RecordSummary, part: RecordPart) -> Vec<&str> {
        let lines = summary.lines.iter().filter(|line| line.part == part);
        lines.map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn the_summary_of_a_prediction_says_how_it_was_made_and_what_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (input, path) = (folder.path().join("x.tif"), folder.path().join("x_provenance.json"));
        std::fs::write(&input, "abc").unwrap();
        write_prediction(&path, &input);
        let summary = read_any(&path).unwrap().summary();
        assert_eq!(summary.title, "predict, cytoscope 0.0.1");
        let settings = texts(&summary, RecordPart::Settings);
        let inputs = format!("inputs: {}", input.display());
        for text in [
            inputs.as_str(),
            "channel: 1",
            "outputs: labels, table",
            "tiles.tile: 64 × 96 × 128 voxels",
            "tiles.overlap: 0.5",
            "voxel_um: 2.0 × 0.5 × 0.25",
        ] {
            assert!(settings.contains(&text), "no {text:?}: {settings:#?}");
        }
        assert!(!settings.iter().any(|text| text.contains(['[', '{', '"'])), "{settings:#?}");
        // SHA-256 of "abc", from FIPS 180-2.
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let read = format!("read {}: 3 bytes, fingerprint {hash}", input.display());
        assert_eq!(texts(&summary, RecordPart::Inputs), [format!("{read}, unchanged")]);
        let model = "model m (/nothere/m), fingerprint abc, changed or missing";
        assert_eq!(texts(&summary, RecordPart::Model), [model]);
        let computation = texts(&summary, RecordPart::Computation);
        assert_eq!(computation[0], "device: cpu (A CPU) in f32");
        assert!(computation[1].starts_with("tile: as another version recorded it ("), "{computation:?}");
        assert_eq!(computation[2], "object diameter: 7.9 µm, estimated from 12 objects (high certainty)");
        assert_eq!(texts(&summary, RecordPart::Outputs), ["wrote x_labels.tif: 5 bytes"]);
        assert!(summary.lines.is_sorted_by_key(|line| line.part), "{summary:#?}");
        // The program and the model differ.
        assert_eq!(summary.differences.len(), 2, "{summary:#?}");
        std::fs::write(&input, "abcd").unwrap();
        let changed = read_any(&path).unwrap().summary();
        assert_eq!(texts(&changed, RecordPart::Inputs), [format!("{read}, changed or missing")]);
        assert!(changed.differences.iter().any(|change| change.contains("had 3 bytes")), "{changed:#?}");
    }

    #[test]
    fn settings_in_groups_and_lists_of_groups_have_a_line_each() {
        let mut lines = Lines::default();
        lines.add_settings(&serde_json::json!({
            "options": {"threshold": {"fixed": 0.5}, "tissue": null, "drop_border": true}, "channels": ["DAPI", 2],
            "preprocess": [{"step": "median", "radius": 1}, {"step": "invert"}], "objects": [],
        }));
        let texts: Vec<&str> = lines.0.iter().map(|line| line.text.as_str()).collect();
        let expected = [
            "options.threshold.fixed: 0.5",
            "options.drop_border: true",
            "channels: DAPI, 2",
            "preprocess.1.step: median",
            "preprocess.1.radius: 1",
            "preprocess.2.step: invert",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn only_a_result_that_a_record_lists_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["x.tif", "x_labels.tif", "x_raw.tif", "y.npy", "y.npy_provenance.json"] {
            std::fs::write(path(name), "abc").unwrap();
        }
        write_prediction(&path("x_provenance.json"), &path("x.tif"));
        let has_record = |name: &str| crate::job_record::has_record(&path(name));
        assert_eq!(["x_labels.tif", "y.npy"].map(has_record), [true; 2]);
        assert_eq!(["x.tif", "x_raw.tif", "z_labels.tif"].map(has_record), [false; 3]);
        let (found, _) = read_record_of(&path("x_labels.tif")).unwrap();
        assert_eq!(found, path("x_provenance.json"));
        let missing = read_record_of(&path("x.tif")).unwrap_err().to_string();
        assert!(missing.contains("there is no provenance record beside this result"), "{missing}");
    }
}

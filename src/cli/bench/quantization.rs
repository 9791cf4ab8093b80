//! `bench --quantization`: a model in floats and quantized in several ways, compared by size, speed and accuracy.

use super::metrics::{Figures, Metric};
use super::tasks::Task;
use crate::cli::child::{self, Scratch};
use crate::cli::diameter::comparison_diameter;
use crate::cli::failure::Failure;
use crate::cli::maps::{read_maps, relative_l2};
use crate::cli::reports::PredictCommandReport;
use crate::cli::{eprint_line, note_line};
use cytoscope_engine::Precision;
use cytoscope_pipeline::{Context, Model, PredictJob};
use cytoscope_quantize::{QuantizeMode, QuantizeReport};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the task that is the reference.
const FLOAT: &str = "float";

/// Limits of quantization-aware training; `None` for the defaults of `quantize`.
#[derive(Debug, Clone, Copy)]
pub(super) struct QatLimits {
    /// Maximum number of optimizer steps.
    pub(super) steps: Option<u64>,
    /// Maximum duration of training in minutes.
    pub(super) minutes: Option<f64>,
}

/// Values that are compared besides the figures of each run.
pub(super) struct Quantization {
    /// Steps of quantization-aware training; 0 if calibration alone met the accuracy budget.
    qat_steps: f64,
    /// Sizes of the networks in bytes, by task.
    network_bytes: BTreeMap<String, f64>,
    /// The maps of the float network.
    reference: Option<Vec<f32>>,
}

/// Returns the options of a prediction. The diameter is given, because each network would estimate a different one, and
/// predict on a different grid.
fn prediction_options(precision: Precision, diameter: Option<f64>) -> Vec<String> {
    let mut options = vec![format!("--precision={precision}"), "--device=cpu".to_owned(), "--outputs=maps".to_owned()];
    options.extend(diameter.map(|diameter| format!("--diameter={diameter}")));
    options
}

impl Quantization {
    /// Names of the packages in the working folder: tasks and packages are named by the mode.
    pub(super) fn packages() -> [&'static str; 3] {
        QuantizeMode::ALL.map(QuantizeMode::name)
    }

    /// Quantizes a model, calibrated on the stack at `data`, with a maximum relative L2 error of the outputs and these
    /// limits of quantization-aware training. Returns the tasks that predict this stack.
    ///
    /// # Errors
    /// The failure of a quantization.
    pub(super) fn prepare(
        context: &Context,
        model: &str,
        data: &Path,
        accuracy_budget: f64,
        qat: QatLimits,
        scratch: &Scratch,
    ) -> Result<(Self, Vec<Task>), Failure> {
        let prediction = PredictJob::new(vec![data.to_owned()], model.to_owned(), PathBuf::new());
        let diameter =
            comparison_diameter(&Model::load(model)?, prediction, context, |note| eprint_line(&note_line(&note)))?;
        let options = |precision: Precision| prediction_options(precision, diameter);
        let data = data.display().to_string();
        let mut tasks = vec![Task::inference(FLOAT, model, &data, options(Precision::F32))];
        let (mut network_bytes, mut qat_steps) = (BTreeMap::new(), 0.0);
        for mode in QuantizeMode::ALL {
            eprint_line(&format!("quantizing: {mode}"));
            let package = scratch.path().join(mode.name()).display().to_string();
            let mut words = vec![
                "quantize".to_owned(),
                format!("--mode={mode}"),
                format!("--calibrate={data}"),
                format!("--out={package}"),
                format!("--accuracy-budget={accuracy_budget}"),
                "--json".to_owned(),
            ];
            if mode == QuantizeMode::Qat {
                words.extend(qat.steps.map(|steps| format!("--steps={steps}")));
                words.extend(qat.minutes.map(|minutes| format!("--minutes={minutes}")));
            }
            words.extend(["--".to_owned(), model.to_owned()]);
            let report: QuantizeReport = child::report(&words)?;
            qat_steps = report.qat.as_ref().map_or(qat_steps, |qat| qat.steps as f64);
            if mode == QuantizeMode::Qat && report.qat.is_none() {
                eprint_line(
                    "note: qat did not train: calibration alone meets the accuracy budget; a smaller \
                     --accuracy-budget makes it train",
                );
            }
            network_bytes.insert(FLOAT.to_owned(), report.float_bytes as f64);
            network_bytes.insert(mode.name().to_owned(), report.int8_bytes as f64);
            tasks.push(Task::inference(mode.name(), &package, &data, options(Precision::Int8)));
        }
        Ok((Self { qat_steps, network_bytes, reference: None }, tasks))
    }

    /// Adds the size of the network, and the difference of its maps to the maps of the float network.
    pub(super) fn add_to(&mut self, task: &str, report: &PredictCommandReport, figures: &mut Figures) {
        figures.extend(self.network_bytes.get(task).map(|bytes| (Metric::NetworkBytes.name().to_owned(), *bytes)));
        if task == QuantizeMode::Qat.name() {
            figures.insert(Metric::QatSteps.name().to_owned(), self.qat_steps);
        }
        let maps = read_maps(report);
        if task == FLOAT && self.reference.is_none() {
            self.reference.clone_from(&maps);
        }
        let difference = self.reference.as_ref().zip(maps).and_then(|(float, maps)| relative_l2(float, &maps));
        figures.extend(difference.map(|error| (Metric::RelativeL2.name().to_owned(), error)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_networks_predict_with_the_same_object_diameter() {
        for (precision, option) in [(Precision::F32, "--precision=f32"), (Precision::Int8, "--precision=int8")] {
            let options = prediction_options(precision, Some(9.25));
            assert!(options.contains(&"--diameter=9.25".to_owned()) && options[0] == option, "{options:?}");
        }
        assert_eq!(prediction_options(Precision::Int8, None).len(), 3, "for a model without an object diameter");
    }
}

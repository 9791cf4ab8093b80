//! Writes the result of a quantization: a package, or the int8 network alone.

use crate::{QuantizeJob, QuantizeReport};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::{Package, Tolerance};
use cytoscope_pipeline::packages::{self, Quantized, test_inputs, test_outputs};
use cytoscope_pipeline::{Context, JobError, Note, ProgressStage, ProgressUnit};
use cytoscope_storage::folder::Replaced;
use cytoscope_storage::target;
use std::collections::BTreeMap;

impl QuantizeJob {
    /// Writes the package, or the ONNX file; `source` is the float network and `graph` the int8 network. Adds to the report what
    /// was left out of the package, and a note if a folder was moved aside, and for each output that deviates by more than its
    /// declared tolerance.
    ///
    /// # Errors
    /// [`JobError::Storage`] if something appeared at the path since the job started that may not be replaced, or the
    /// output cannot be written; [`JobError::Model`] if a network does not run or has no ONNX form.
    pub(crate) fn write(
        &self,
        context: &Context,
        package: &Package,
        source: Graph,
        graph: Graph,
        report: &mut QuantizeReport,
    ) -> Result<(), JobError> {
        if self.writes_network() {
            let meter = context.meter(ProgressStage::Write, 1, ProgressUnit::Steps);
            // A quantization can take hours, in which a file may have appeared at the path.
            target::check_file(&self.out, &[], self.overwrite)?;
            cytoscope_onnx::save(&graph, &self.out).map_err(|e| JobError::unwritable(&self.out, e))?;
            meter.finish();
            return Ok(());
        }
        let inputs = test_inputs(package)?;
        let mut meter = context.meter(ProgressStage::Write, 2, ProgressUnit::Steps);
        // The package's test outputs are those of the declared network.
        let package_path = package.path.display().to_string();
        let outputs = |graph: &Graph| test_outputs(&package_path, &package.inputs, &package.outputs, graph, &inputs);
        let float_outputs = outputs(&source)?;
        let (test_outputs, tolerance) = if self.without_float {
            let int8_outputs = outputs(&graph)?;
            let mut tolerances = Vec::new();
            for ((spec, float), int8) in package.outputs.iter().zip(&float_outputs).zip(&int8_outputs) {
                let (tolerance, deviation) = declared_tolerance(float, int8);
                report.notes.extend(tolerance_note(&spec.id, tolerance, deviation).map(Note::from));
                tolerances.push(tolerance);
            }
            (int8_outputs, Some(tolerances))
        } else {
            (float_outputs, None)
        };
        meter.add(1)?;
        let record = serde_json::json!({
            "mode": report.mode,
            "method": report.method.map(|m| m.to_string()),
            "other_methods": report.other_methods.iter().map(|m| (&m.tensor, m.method.to_string())).collect::<BTreeMap<_, _>>(),
            "equalized": report.equalized,
            "outputs": report.outputs,
            "agreement_metric": report.agreement_metric,
            "accuracy_budget": report.accuracy_budget,
            "budget_met": report.budget_met,
            "left_float": report.left_float,
            "bias_corrected": report.bias_corrected,
            "qat": report.qat,
            "calibration_tiles": report.calibration_tiles,
            "held_out_tiles": report.held_out_tiles,
        });
        let quantized =
            Quantized { tolerance, graph, float_graph: (!self.without_float).then_some(source), test_outputs, record };
        let saved = packages::save_quantized(package, inputs, quantized, &self.out, self.overwrite)?;
        report.left_out = saved.left_out;
        if let Replaced::MovedTo(aside) = saved.replaced {
            report.notes.push(Note::info(format!(
                "the previous contents of {} were moved to {}",
                self.out.display(),
                aside.display()
            )));
            report.moved_to = Some(aside);
        }
        meter.finish();
        Ok(())
    }
}

/// Maximum absolute tolerance as a share of an output's maximum. bioimage.io's specification allows 0.01; a little less is declared,
/// because its library computes the product in 32 bits.
const MAX_ABSOLUTE_SHARE: f64 = 0.01 * (1.0 - 1e-6);

/// Returns the tolerance of an output for another program's results, and the largest deviation of the int8 network from
/// the float network. Summing in another order may change values by one quantization step. The total effect is smaller
/// than the quantization error, which is therefore the tolerance, if bioimage.io accepts it. NaN counts as an infinite
/// deviation.
fn declared_tolerance(float: &Tensor, int8: &Tensor) -> (Tolerance, f64) {
    let (float, int8) = (float.to_f64_vec(), int8.to_f64_vec());
    let deviations = float.iter().zip(&int8).map(|(a, b)| (a - b).abs());
    let deviation =
        deviations.fold(0.0, |largest: f64, one| if one.is_nan() { f64::INFINITY } else { largest.max(one) });
    let max_absolute = int8.iter().copied().fold(0.0, f64::max) * MAX_ABSOLUTE_SHARE;
    let absolute = deviation.max(Tolerance::default().absolute).min(max_absolute);
    (Tolerance { absolute, relative: 1e-2, outside_ppm: 1000.0 }, deviation)
}

/// Returns a note for the user if an output deviates by more than its declared tolerance.
fn tolerance_note(output: &str, tolerance: Tolerance, deviation: f64) -> Option<String> {
    (deviation > tolerance.absolute).then(|| {
        format!(
            "output \"{output}\": the package declares a tolerance of {:.2e}, the largest that bioimage.io accepts for \
             its test output, but the int8 network deviates by up to {deviation:.2e} from the float network: the \
             package's test can fail in other programs",
            tolerance.absolute
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_is_compared_with_its_own_tolerance() {
        // Heights of up to 100 deviate by less than 1 %, probabilities of up to 0.5 by more.
        let (heights, height_deviation) =
            declared_tolerance(&Tensor::vector(vec![0.0f32, 100.0]), &Tensor::vector(vec![0.5f32, 100.0]));
        let (probabilities, probability_deviation) =
            declared_tolerance(&Tensor::vector(vec![0.0f32, 0.5]), &Tensor::vector(vec![0.25f32, 0.5]));
        assert_eq!((heights.absolute, height_deviation), (0.5, 0.5));
        assert_eq!((probabilities.absolute, probability_deviation), (0.5 * MAX_ABSOLUTE_SHARE, 0.25));
        assert_eq!(tolerance_note("heights", heights, height_deviation), None);
        let note = tolerance_note("probabilities", probabilities, probability_deviation).unwrap_or_default();
        for part in ["output \"probabilities\"", "5.00e-3", "2.50e-1"] {
            assert!(note.contains(part), "no {part} in {note}");
        }
    }

    #[test]
    fn an_int8_output_that_is_nan_has_a_note() {
        let output = |value: f32| Tensor::vector(vec![1.0, value]);
        let (tolerance, deviation) = declared_tolerance(&output(0.5), &output(f32::NAN));
        assert_eq!((tolerance.absolute, deviation), (MAX_ABSOLUTE_SHARE, f64::INFINITY));
        assert!(tolerance_note("maps", tolerance, deviation).is_some_and(|note| note.contains("by up to inf")));
    }

    #[test]
    fn small_deviations_declare_the_default_and_no_note() {
        let values = Tensor::vector(vec![0.0f32, 0.25, 1.0]);
        let (tolerance, deviation) = declared_tolerance(&values, &values);
        assert_eq!((tolerance.absolute, deviation), (Tolerance::default().absolute, 0.0));
        assert_eq!(tolerance_note("maps", tolerance, deviation), None);
    }
}

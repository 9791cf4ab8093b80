//! Writes the result of a quantization: a package, or the int8 network alone.

use crate::{QuantizeJob, QuantizeReport, QuantizeStage};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::{Package, Tolerance};
use cytoscope_pipeline::packages::{self, Quantized, test_inputs, test_outputs};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_storage::folder::Replaced;

impl QuantizeJob {
    /// Writes the package, or the ONNX file; `source` is the float network and `graph` the int8 network. Adds a note to the
    /// report if a folder was moved aside, or the declared tolerance is smaller than the deviation.
    pub(crate) fn write(
        &self,
        context: &Context,
        package: &Package,
        source: Graph,
        graph: Graph,
        report: &mut QuantizeReport,
    ) -> Result<(), JobError> {
        if self.writes_network() {
            let meter = QuantizeStage::Write.meter(context, 1);
            cytoscope_onnx::save(&graph, &self.out).map_err(|e| JobError::model(self.out.display().to_string(), e))?;
            meter.finish();
            return Ok(());
        }
        let inputs = test_inputs(package)?;
        let mut meter = QuantizeStage::Write.meter(context, 2);
        // The package's test outputs are those of the declared network.
        let package_path = package.path.display().to_string();
        let outputs = |graph: &Graph| test_outputs(&package_path, &package.inputs, &package.outputs, graph, &inputs);
        let float_outputs = outputs(&source)?;
        let (test_outputs, tolerance) = if self.without_float {
            let int8_outputs = outputs(&graph)?;
            let (tolerance, deviation) = declared_tolerance(&float_outputs, &int8_outputs);
            if deviation > tolerance.absolute {
                report.notes.push(format!(
                    "the package declares a tolerance of {:.2e}, the largest that bioimage.io accepts for its test outputs, but \
                     the int8 network deviates by up to {deviation:.2e} from the float network: the package's test can fail in \
                     other programs",
                    tolerance.absolute
                ));
            }
            (int8_outputs, Some(tolerance))
        } else {
            (float_outputs, None)
        };
        meter.add(1)?;
        let record = serde_json::json!({
            "mode": report.mode,
            "method": report.method.map(|m| m.to_string()),
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
        if let Replaced::MovedTo(aside) =
            packages::save_quantized(package, inputs, quantized, &self.out, self.overwrite)?
        {
            report.notes.push(format!("what was at {} was moved to {}", self.out.display(), aside.display()));
        }
        meter.finish();
        Ok(())
    }
}

/// Maximum absolute tolerance that bioimage.io's specification allows, as a share of an output's maximum.
const MAX_ABSOLUTE_SHARE: f64 = 0.01;

/// Returns the tolerance for another program's results, and the largest deviation of the int8 network from the float network.
/// Summing in another order may change values by one quantization step. The total effect is smaller than the quantization
/// error, which is therefore the tolerance, if bioimage.io accepts it.
fn declared_tolerance(float: &[Tensor], int8: &[Tensor]) -> (Tolerance, f64) {
    let pairs = float.iter().zip(int8).map(|(a, b)| (a.to_f64_vec(), b.to_f64_vec()));
    let deviations = pairs.flat_map(|(a, b)| a.into_iter().zip(b).map(|(a, b)| (a - b).abs()).collect::<Vec<_>>());
    let largest = deviations.fold(0.0, f64::max);
    let max_value = |t: &Tensor| t.to_f64_vec().into_iter().fold(0.0, f64::max);
    let max_absolute = int8.iter().map(|t| max_value(t) * MAX_ABSOLUTE_SHARE).fold(f64::INFINITY, f64::min);
    let absolute = largest.max(Tolerance::default().absolute).min(max_absolute);
    (Tolerance { absolute, relative: 1e-2, outside_ppm: 1000.0 }, largest)
}

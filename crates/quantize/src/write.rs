//! Writes the package with the int8 network.

use crate::{QuantizeJob, QuantizeReport, QuantizeStage};
use cytoscope_graph::{Graph, Tensor};
use cytoscope_model_package::{Package, Tolerance};
use cytoscope_pipeline::packages::{self, Quantized, test_inputs, test_outputs};
use cytoscope_pipeline::{Context, JobError};

impl QuantizeJob {
    /// Writes the package, or the ONNX file; `source` is the float network and `graph` the int8 network.
    pub(crate) fn write(
        &self,
        context: &Context,
        package: &Package,
        source: Graph,
        graph: Graph,
        report: &QuantizeReport,
    ) -> Result<(), JobError> {
        if self.writes_network() {
            let mut meter = QuantizeStage::Write.meter(context, 1);
            cytoscope_onnx::save(&graph, &self.out).map_err(|e| JobError::model(self.out.display().to_string(), e))?;
            return meter.add(1);
        }
        let inputs = test_inputs(package)?;
        let mut meter = QuantizeStage::Write.meter(context, 2);
        // The package's test outputs are those of the declared network.
        let package_path = package.path.display().to_string();
        let outputs = |graph: &Graph| test_outputs(&package_path, &package.inputs, &package.outputs, graph, &inputs);
        let float_outputs = outputs(&source)?;
        let (test_outputs, tolerance) = if self.without_float {
            let of_integers = outputs(&graph)?;
            let tolerance = tolerance(&float_outputs, &of_integers);
            (of_integers, Some(tolerance))
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
        packages::save_quantized(package, inputs, quantized, &self.out, self.overwrite)?;
        meter.add(1)
    }
}

/// Maximum absolute tolerance that bioimage.io's specification allows, as a share of an output's maximum.
const MAX_ABSOLUTE_SHARE: f64 = 0.01;

/// Returns the tolerance for another program's results. Another order of summation moves values to neighboring
/// quantization steps, whose total effect is smaller than the quantization error of the outputs.
fn tolerance(float: &[Tensor], quantized: &[Tensor]) -> Tolerance {
    let pairs = float.iter().zip(quantized).filter_map(|(a, b)| Some((a.as_f32()?, b.as_f32()?)));
    let largest = pairs.flat_map(|(a, b)| a.iter().zip(b)).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    let max_value = |t: &Tensor| t.to_f64_vec().into_iter().fold(0.0, f64::max);
    let max_absolute = quantized.iter().map(|t| max_value(t) * MAX_ABSOLUTE_SHARE).fold(f64::INFINITY, f64::min);
    let absolute = largest.max(Tolerance::default().absolute).min(max_absolute);
    Tolerance { absolute, relative: 1e-2, outside_ppm: 1000.0 }
}

//! Export of a model: as ONNX, as a bioimage.io package, or its weights as safetensors.

use crate::job_record::recorded;
use crate::packages::{Saved, save};
use crate::{Context, JobError, LeftOut, find_model};
use cytoscope_graph::{Graph, TensorData};
use cytoscope_model_package::{Package, check_destination, refuse_inside_package};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::Replaced;
use cytoscope_storage::target::{check_extension, check_file, check_parent};
use cytoscope_storage::write::write_checked;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A format that models are exported in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportFormat {
    /// The network as it is run; an int8 network with QuantizeLinear and DequantizeLinear nodes.
    Onnx,
    /// A bioimage.io package of format 0.5.
    Bioimageio,
    /// The float network's weights.
    Safetensors,
}

impl ExportFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Bioimageio, Self::Onnx, Self::Safetensors];

    /// File name extensions of this format, without the dot; an empty extension stands for a folder.
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::Onnx => &["onnx"],
            Self::Bioimageio => &["zip", ""],
            Self::Safetensors => &["safetensors", "st"],
        }
    }
}

/// Exports a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExportJob {
    /// Package by path or name.
    pub model: String,
    /// Format to write.
    pub format: ExportFormat,
    /// File to write; for [`ExportFormat::Bioimageio`] also a folder.
    pub out: PathBuf,
    /// Whether to replace something other than a package of this program at the output path.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// What an export wrote, the result of an [`ExportJob`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// The file or folder written.
    pub output: PathBuf,
    /// Files and sections of the model's package that the exported package lacks. Only [`ExportFormat::Bioimageio`] has
    /// them: the other formats hold the network or its weights alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Where an existing folder was moved to, or a file that appeared at the path during the export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<PathBuf>,
}

impl ExportJob {
    /// Runs the job and writes its provenance record beside the output.
    ///
    /// # Errors
    /// [`JobError::Model`] if the model cannot be read or expressed in the format; [`JobError::Storage`] if the output is
    /// inside the package, has the wrong extension, may not be written to or cannot be written. No partly written files are
    /// left.
    pub fn run(&self, context: &Context) -> Result<ExportReport, JobError> {
        recorded(self, context, |_| self.export(context))
    }

    fn export(&self, context: &Context) -> Result<ExportReport, JobError> {
        let path = find_model(&self.model)?;
        check_extension(&self.out, self.format.extensions())?;
        match self.format {
            ExportFormat::Bioimageio => check_destination(&self.out, &[&path], self.overwrite)?,
            ExportFormat::Onnx | ExportFormat::Safetensors => check_file(&self.out, &[&path], self.overwrite)?,
        }
        refuse_inside_package(&self.out, &[&path])?;
        check_parent(&self.out)?;
        let loading = context.recorder.span(Stage::Load, "package");
        let package = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
        loading.finish();
        context.check()?;
        if self.format != ExportFormat::Bioimageio {
            // Another program may have created the file meanwhile.
            check_file(&self.out, &[&path], self.overwrite)?;
        }
        let writing = context.recorder.span(Stage::Write, "model");
        let mut report = ExportReport { output: self.out.clone(), left_out: Vec::new(), moved_to: None };
        match self.format {
            ExportFormat::Onnx => {
                let bytes = cytoscope_onnx::to_bytes(&package.graph).map_err(|e| JobError::unwritable(&self.out, e))?;
                report.moved_to = self.write_file(&bytes)?;
            }
            ExportFormat::Bioimageio => {
                let Saved { replaced, left_out } = save(&package, &self.out, self.overwrite)?;
                report.left_out = left_out;
                if let Replaced::MovedTo(aside) = replaced {
                    report.moved_to = Some(aside);
                }
            }
            ExportFormat::Safetensors => {
                // For a quantized package, the float network's weights; the int8 weights and scales if it has no float
                // network.
                let graph = package.float_graph.as_ref().unwrap_or(&package.graph);
                let bytes = encode_safetensors(graph).map_err(|e| JobError::model(path.display().to_string(), e))?;
                report.moved_to = self.write_file(&bytes)?;
            }
        }
        writing.finish();
        Ok(report)
    }

    /// Writes a file after its path was checked. Returns the new path of a file that another program has created there since.
    fn write_file(&self, bytes: &[u8]) -> Result<Option<PathBuf>, JobError> {
        Ok(write_checked(&self.out, bytes, self.overwrite)?)
    }
}

/// Returns the weights of a network as a safetensors file. Constants of 64-bit integers and of bools are arguments of
/// operators, such as axes and shapes, and are left out.
fn encode_safetensors(graph: &Graph) -> Result<Vec<u8>, String> {
    macro_rules! stored {
        ($dtype:ident, $values:expr) => {
            (Dtype::$dtype, $values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
        };
    }
    let mut weights = Vec::new();
    for (id, tensor) in &graph.initializers {
        let (dtype, bytes) = match tensor.data() {
            TensorData::F32(values) => stored!(F32, values),
            TensorData::F64(values) => stored!(F64, values),
            TensorData::F16(values) => stored!(F16, values),
            TensorData::BF16(values) => stored!(BF16, values),
            TensorData::I8(values) => stored!(I8, values),
            TensorData::U8(values) => stored!(U8, values),
            TensorData::I16(values) => stored!(I16, values),
            TensorData::U16(values) => stored!(U16, values),
            TensorData::I32(values) => stored!(I32, values),
            TensorData::U32(values) => stored!(U32, values),
            TensorData::I64(_) | TensorData::U64(_) | TensorData::Bool(_) => continue,
        };
        weights.push((graph.value(*id).name.clone(), dtype, tensor.shape().to_vec(), bytes));
    }
    let views = weights.iter().map(|(name, dtype, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
        view.map(|v| (name.clone(), v)).map_err(|e| format!("{name}: {e}"))
    });
    let views = views.collect::<Result<Vec<_>, _>>()?;
    safetensors::serialize(views, None).map_err(|e| e.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_appears_at_the_path_of_a_network_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("m.onnx");
        let job =
            |overwrite| ExportJob { model: "m".to_owned(), format: ExportFormat::Onnx, out: out.clone(), overwrite };
        std::fs::write(&out, "created meanwhile").unwrap();
        let aside = job(Overwrite::Refuse).write_file(b"first").unwrap().unwrap();
        assert_eq!(std::fs::read(&out).unwrap(), b"first");
        assert_eq!(std::fs::read(&aside).unwrap(), b"created meanwhile");
        assert_eq!(job(Overwrite::Replace).write_file(b"second").unwrap(), None);
        assert_eq!(std::fs::read(&out).unwrap(), b"second");
    }
}

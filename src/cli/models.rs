//! `cytoscope import` and `cytoscope export`.

use super::failure::{Failure, Outcome};
use super::{devices, print, print_json, progress};
use clap::{Args, ValueEnum};
use cytoscope_graph::{Graph, TensorData};
use cytoscope_model_package::{Package, check_destination};
use cytoscope_pipeline::packages::ImportJob;
use cytoscope_pipeline::{find_model, packages};
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_storage::folder::Replaced;
use cytoscope_storage::target::{check_ending, check_file, check_parent, resolved};
use safetensors::Dtype;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Import {
    /// Model to import: a bioimage.io folder or zip, an .onnx file, or a PyTorch checkpoint (.pt, .pth, .ckpt or
    /// .safetensors).
    file: PathBuf,
    /// Package to write: a folder or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Architecture of a PyTorch checkpoint, if it is not to be recognised from the tensors: monai-unet, basic-unet,
    /// dynunet, segresnet, torch-em-unet, nnunet or fnet.
    #[arg(long, value_name = "NAME")]
    architecture: Option<String>,
    /// Replace an existing package: a file is overwritten, a folder is moved aside; an input is never replaced.
    #[arg(long)]
    force: bool,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Export {
    /// Package to export: a path or the name of an installed model.
    package: String,
    /// Format to write.
    #[arg(long, value_enum)]
    format: Format,
    /// Output: .onnx; .zip or a folder; .safetensors or .st.
    #[arg(long)]
    out: PathBuf,
    /// Replace an existing output: a file is overwritten, a folder is moved aside; the package itself is never
    /// replaced.
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The network as it is run; an int8 network with QuantizeLinear and DequantizeLinear nodes.
    Onnx,
    /// The whole package, as a zip or a folder.
    Bioimageio,
    /// The weights, by tensor name.
    Safetensors,
}

impl Format {
    /// The endings of files in this format, without their dot; the empty one stands for a folder.
    fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Onnx => &["onnx"],
            Self::Bioimageio => &["zip", ""],
            Self::Safetensors => &["safetensors", "st"],
        }
    }
}

impl Import {
    pub(crate) fn run(self) -> Outcome {
        let context = progress::context(false, self.json, Recorder::totals_only());
        let job = ImportJob {
            file: self.file,
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
            architecture: self.architecture,
        };
        let report = job.run(&context, &devices::discover())?;
        if self.json {
            return print_json(&report);
        }
        print(&format!("wrote {}: {}", job.out.display(), report.name));
        report.architecture.iter().for_each(|name| print(&format!("  architecture: {name}")));
        report.assumptions.iter().for_each(|text| print(&format!("  assumed: {text}")));
        print(&format!("  self-test: {}", report.test));
        for e in &report.engines {
            let how = if e.agrees {
                "matches the reference executor".to_owned()
            } else {
                format!("NOT usable: {}", e.detail)
            };
            print(&format!("  on {} ({}): {how}", e.device, e.precision));
        }
        report.left_out.iter().for_each(|file| print(&format!("  left out: {file}")));
        report.moved_to.iter().for_each(|aside| print(&format!("  moved the previous package to {}", aside.display())));
        Ok(())
    }
}

impl Export {
    pub(crate) fn run(self) -> Outcome {
        let path = find_model(&self.package)?;
        let overwrite = Overwrite::from_force(self.force);
        check_ending(&self.out, self.format.endings())?;
        match self.format {
            Format::Bioimageio => check_destination(&self.out, &[&path], overwrite)?,
            Format::Onnx | Format::Safetensors => check_file(&self.out, &[&path], overwrite)?,
        }
        let inside = resolved(&self.out).starts_with(resolved(&path)) && path.is_dir();
        if inside {
            return Err(Failure::wrong_use(format!(
                "{}: the output is inside the package and would change it; write to another folder",
                self.out.display()
            )));
        }
        check_parent(&self.out)?;
        let package = Package::open(&path)?;
        match self.format {
            Format::Onnx => cytoscope_onnx::save(&package.graph, &self.out)?,
            Format::Bioimageio => {
                if let Replaced::MovedTo(aside) = packages::save(&package, &self.out, overwrite)? {
                    print(&format!("moved the previous package to {}", aside.display()));
                }
            }
            Format::Safetensors => {
                // For a quantized package, the float network's weights; the int8 weights and scales if it has no float
                // network.
                let graph = package.float_graph.as_ref().unwrap_or(&package.graph);
                let bytes = safetensors_of(graph)?;
                cytoscope_storage::write::atomic_write(&self.out, &bytes)?;
            }
        }
        print(&format!("wrote {}", self.out.display()));
        Ok(())
    }
}

/// Returns the weights of a network as a safetensors file. Constants of 64-bit integers and of bools are arguments of
/// operators, such as axes and shapes, and are left out.
fn safetensors_of(graph: &Graph) -> Result<Vec<u8>, Failure> {
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
        view.map(|v| (name.clone(), v)).map_err(|e| Failure::other(format!("{name}: {e}")))
    });
    let views = views.collect::<Result<Vec<_>, _>>()?;
    safetensors::serialize(views, None).map_err(|e| Failure::other(e.to_string()))
}

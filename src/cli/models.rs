//! `cytoscope import` and `cytoscope export`.

use super::failure::{Failure, Outcome};
use super::{print, print_json};
use clap::{Args, ValueEnum};
use cytoscope_graph::TensorData;
use cytoscope_pipeline::{find_model, packages};
use safetensors::Dtype;
use std::path::PathBuf;

/// Options of `import`.
#[derive(Args)]
pub(crate) struct Import {
    /// A bioimage.io folder or zip with ONNX weights, or an .onnx file.
    file: PathBuf,
    /// The package to write: a folder, or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Options of `export`.
#[derive(Args)]
pub(crate) struct Export {
    /// A package by path or name.
    package: String,
    /// What to write.
    #[arg(long, value_enum)]
    format: Format,
    /// Where to write it.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The network as it is run; an int8 one with quantize and dequantize nodes.
    Onnx,
    /// The whole package as a zip.
    Bioimageio,
    /// The weights by name.
    Safetensors,
}

impl Import {
    pub(crate) fn run(self) -> Outcome {
        let report = packages::import(&self.file, &self.out)?;
        if self.json {
            return print_json(&report);
        }
        print(&format!("wrote {}: {}", self.out.display(), report.name));
        print(&format!("  its test: {}", report.test));
        Ok(())
    }
}

impl Export {
    pub(crate) fn run(self) -> Outcome {
        let path = find_model(&self.package)?;
        let package = cytoscope_graph::package::Package::open(&path)?;
        match self.format {
            Format::Onnx => package.graph.save(&self.out)?,
            Format::Bioimageio => packages::save(&package, &self.out)?,
            Format::Safetensors => {
                // Of a quantized package the float network's weights, or its bytes and scales where it has no other.
                let graph = package.float_graph.as_ref().unwrap_or(&package.graph);
                let named = graph.initializers.iter().filter_map(|(id, tensor)| {
                    let (dtype, bytes): (_, Vec<u8>) = match tensor.data() {
                        TensorData::F32(values) => (Dtype::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                        TensorData::I8(values) => (Dtype::I8, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                        TensorData::U8(values) => (Dtype::U8, values.clone()),
                        _ => return None,
                    };
                    Some((graph.value(*id).name.clone(), dtype, tensor.shape().to_vec(), bytes))
                });
                let owned: Vec<_> = named.collect();
                let views = owned.iter().map(|(name, dtype, shape, bytes)| {
                    let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes);
                    view.map(|v| (name.clone(), v)).map_err(|e| Failure::other(format!("{name}: {e}")))
                });
                let views = views.collect::<Result<Vec<_>, _>>()?;
                let bytes = safetensors::serialize(views, None).map_err(|e| Failure::other(e.to_string()))?;
                cytoscope_formats::atomic_write(&self.out, &bytes)?;
            }
        }
        print(&format!("wrote {}", self.out.display()));
        Ok(())
    }
}

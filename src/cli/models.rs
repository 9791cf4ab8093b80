//! `cytoscope import` and `cytoscope export`.

use super::failure::Outcome;
use super::measured::Measurement;
use super::options::{StageTraceOption, one_of};
use super::values::parse_nominal_diameter;
use super::{devices, parse_um, print, progress};
use clap::{Args, ValueEnum};
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::packages::{Architecture, ImportJob};
use cytoscope_pipeline::{ExportFormat, ExportJob, FinalActivation, ImportSettings, ModelTask, find_model};
use cytoscope_storage::target::{check_extension, extension};
use cytoscope_storage::{Overwrite, StorageError};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Import {
    /// Model to import: a bioimage.io folder or zip, an .onnx file, or a PyTorch checkpoint (.pt, .pth, .ckpt, .p or
    /// .safetensors).
    file: PathBuf,
    /// Package to write: a folder or a .zip.
    #[arg(long)]
    out: PathBuf,
    /// Architecture of a PyTorch checkpoint: monai-unet, basic-unet, dynunet, segresnet, torch-em-unet, nnunet or fnet; by
    /// default it is recognized from the tensors.
    #[arg(long, value_name = "NAME",
          value_parser = one_of::<Architecture>(Architecture::ALL.map(Architecture::name)), hide_possible_values = true)]
    architecture: Option<Architecture>,
    /// Task of the model, unless its file states it: segmentation (objects) or labelfree (a stain). By default, fnet and
    /// the label-free models of CytoDL predict a stain, and other networks objects.
    #[arg(long, value_parser = one_of::<ModelTask>(ModelTask::ALL.map(ModelTask::name)), hide_possible_values = true)]
    task: Option<ModelTask>,
    /// Activation that follows the network and is not part of it: none, sigmoid or softmax. By default the one that the
    /// file states, or else none.
    #[arg(long = "final", value_name = "ACTIVATION",
          value_parser = one_of::<FinalActivation>(FinalActivation::ALL.map(FinalActivation::name)),
          hide_possible_values = true)]
    final_activation: Option<FinalActivation>,
    /// Voxel size Z,Y,X in µm of the stacks that the network was trained on; stacks are resampled to it. A network on
    /// slices ignores Z. By default that of nnU-Net's plans, if the file has any.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Median diameter in µm of the objects of the training data: predictions then rescale every stack so that its objects
    /// have this diameter, which is the nominal one of the model. Needs the voxel size of the training data.
    #[arg(long, value_name = "UM", value_parser = parse_nominal_diameter)]
    diameter: Option<f64>,
    /// Replace an existing package that Cytoscope did not write, or that was changed: a file is overwritten, a folder is
    /// moved aside; an input is never replaced.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Export {
    /// Model package to export (folder, .zip or .onnx) or name of an installed model.
    package: String,
    /// Format to write; by default the one that the file extension of --out stands for.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// File or folder to write: .onnx for onnx, .zip or a folder for bioimageio, .safetensors or .st for safetensors.
    #[arg(long)]
    out: PathBuf,
    /// Replace an existing output: a file is overwritten, a folder is moved aside; the package itself is never
    /// replaced.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
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
    fn format(self) -> ExportFormat {
        match self {
            Self::Onnx => ExportFormat::Onnx,
            Self::Bioimageio => ExportFormat::Bioimageio,
            Self::Safetensors => ExportFormat::Safetensors,
        }
    }
}

impl Import {
    pub(crate) fn run(self) -> Outcome {
        let job = ImportJob {
            file: self.file,
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
            cpu_because: None,
            settings: ImportSettings {
                architecture: self.architecture,
                task: self.task,
                final_activation: self.final_activation,
                voxel_um: self.voxel_size,
                object_diameter_um: self.diameter,
            },
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(false, self.json, measurement.recorder());
        let devices = devices::found(DeviceRequest::Auto, &context.recorder);
        let (report, run) = measurement.finish(job.run(&context, &devices), 0)?;
        if self.json {
            return run.print_json(&report);
        }
        print(&format!("wrote {}: {}", job.out.display(), report.name));
        if let Some(architecture) = report.architecture {
            print(&format!("  architecture: {}", architecture.name()));
        }
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
        report.left_out.iter().for_each(|part| print(&format!("  left out: {part}")));
        report
            .moved_to
            .iter()
            .for_each(|aside| print(&format!("  moved the previous contents to {}", aside.display())));
        run.print_records();
        Ok(())
    }
}

impl Export {
    pub(crate) fn run(self) -> Outcome {
        let job = ExportJob {
            model: self.package,
            format: self.format.map_or_else(|| export_format(&self.out), |format| Ok(format.format()))?,
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
        };
        let trace = self.tracing.trace.as_deref();
        let model = trace.map(|_| find_model(&job.model)).transpose()?;
        let measurement = Measurement::for_job(trace, &job, model.as_deref())?;
        let context = progress::context(false, self.json, measurement.recorder());
        let (report, run) = measurement.finish(job.run(&context), 0)?;
        if self.json {
            return run.print_json(&report);
        }
        if let Some(aside) = &report.moved_to {
            print(&format!("moved the previous contents to {}", aside.display()));
        }
        print(&format!("wrote {}", report.output.display()));
        report.left_out.iter().for_each(|part| print(&format!("  left out: {part}")));
        if job.format == ExportFormat::Onnx {
            print(
                "  note: only the network was written, without pre- and postprocessing: for a package, give a folder or a \
                 .zip",
            );
        }
        run.print_records();
        Ok(())
    }
}

/// Returns the format that the extension of an output stands for.
///
/// # Errors
/// The extension is that of no format.
fn export_format(out: &Path) -> Result<ExportFormat, StorageError> {
    let known: Vec<&str> = ExportFormat::ALL.iter().flat_map(|format| format.extensions()).copied().collect();
    check_extension(out, &known)?;
    let extension = extension(out).unwrap_or_default();
    let format = ExportFormat::ALL.into_iter().find(|format| format.extensions().contains(&extension.as_str()));
    Ok(format.unwrap_or(ExportFormat::Bioimageio))
}

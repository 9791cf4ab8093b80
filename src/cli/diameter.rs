//! `cytoscope diameter`: estimates the median object diameter of stacks.

use super::failure::Outcome;
use super::options::{ImageOptions, ThreadsOption};
use super::{devices, print, print_json, progress};
use clap::Args;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::predict::{ChannelRef, expand_inputs};
use cytoscope_pipeline::{DiameterJob, DiameterRequest, PredictJob};
use cytoscope_profile::Recorder;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Diameter {
    /// Stacks, or folders of stacks.
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Model package (folder, .zip or .onnx) or name of an installed model. It must declare an object diameter.
    #[arg(long, default_value = "nuclei")]
    model: String,
    /// Device: auto (the fastest one, by measurement), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: DeviceRequest,
    /// Channel to use as the model's input, counted from 0.
    #[arg(long)]
    channel: Option<usize>,
    /// Channels to use as the model's inputs, in their order, by name or number, such as membrane,nuclei.
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", conflicts_with = "channel")]
    channels: Vec<ChannelRef>,
    /// Time point to use, counted from 0.
    #[arg(long)]
    time: Option<usize>,
    #[command(flatten)]
    image: ImageOptions,
    #[command(flatten)]
    threading: ThreadsOption,
    /// Print the estimates of all stacks as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Diameter {
    pub(crate) fn run(self) -> Outcome {
        let context = progress::context(false, self.json, Recorder::totals_only());
        let available = devices::for_request(self.device);
        let mut estimates = Vec::new();
        for input in expand_inputs(&self.inputs)? {
            let prediction = PredictJob {
                inputs: vec![input.clone()],
                model: self.model.clone(),
                out: PathBuf::new(),
                format: Default::default(),
                device: self.device,
                precision: None,
                tiles: Default::default(),
                outputs: Default::default(),
                channel: self.channel,
                channels: self.channels.clone(),
                time: self.time,
                series: self.image.series.clone(),
                axes: self.image.axes.clone(),
                voxel_um: self.image.voxel_size,
                diameter: DiameterRequest::Auto,
                preprocess: Default::default(),
                memory_budget_bytes: None,
                resume: false,
                threads: self.threading.threads,
                overwrite: Default::default(),
            };
            let found = DiameterJob { prediction }.run(&context, &available)?;
            if !self.json {
                print(&format!("{}: {}", input.display(), found.sentence()));
            }
            estimates.push(json!({"input": input, "object_diameter": found}));
        }
        if self.json {
            return print_json(&json!({"inputs": estimates}));
        }
        Ok(())
    }
}

//! `cytoscope devices`, and the hidden GPU probe that it runs in child processes.

use super::failure::Outcome;
use super::{print, print_json};
use clap::Args;
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::devices::{Devices, ProbeRequest, forget_hung_probes};
use cytoscope_pipeline::own_program;
use cytoscope_profile::{Recorder, Stage, bytes_text};

#[derive(Args)]
pub(crate) struct DevicesCommand {
    /// Print the devices as a JSON array.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct ProbeDevice {
    /// Devices to probe: those of a kind (`cuda` or `wgpu`), their list (`cuda:list`), one of them (`cuda:1`), or one of them
    /// in one precision (`cuda:1:f16`).
    request: ProbeRequest,
}

/// Returns every device of this machine. GPUs are probed in child processes, because a faulty driver may crash.
pub(crate) fn discover() -> Devices {
    match own_program() {
        Ok(program) => Devices::discover(&program),
        Err(error) => {
            tracing::warn!("GPU probing skipped: cannot determine the executable path: {error}");
            Devices::cpu_only()
        }
    }
}

impl DevicesCommand {
    pub(crate) fn run(self) -> Outcome {
        forget_hung_probes();
        let devices = discover();
        if self.json {
            return print_json(&devices.list());
        }
        for d in devices.list() {
            let precisions: Vec<&str> = d.precisions.iter().map(|p| p.name()).collect();
            print(&format!("{:8} {}  {}", d.id.to_string(), if d.usable { "usable  " } else { "unusable" }, d.name));
            print(&format!("         {}", d.reason));
            if d.usable {
                let free = d.free_bytes.map_or_else(String::new, |bytes| format!(", {} free", bytes_text(bytes)));
                let memory = d.memory_bytes.map_or_else(|| "unknown memory".to_owned(), bytes_text) + &free;
                print(&format!("         {memory}; computes in {}", precisions.join(", ")));
            }
        }
        Ok(())
    }
}

impl ProbeDevice {
    pub(crate) fn run(self) -> Outcome {
        print(&cytoscope_pipeline::devices::probe_child(self.request, &mut print));
        Ok(())
    }
}

/// Returns the devices to choose from, as [`for_request`], with a span of the time that finding them takes.
pub(crate) fn found(request: DeviceRequest, recorder: &Recorder) -> Devices {
    let _finding = recorder.span(Stage::Verify, "devices");
    for_request(request)
}

/// Returns the devices to choose from for `--device`; GPUs are not probed if the CPU is requested by name.
pub(crate) fn for_request(request: DeviceRequest) -> Devices {
    if request == DeviceRequest::Device(DeviceId::Cpu) { Devices::cpu_only() } else { discover() }
}

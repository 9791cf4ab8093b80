//! The stages of a quantization, which its progress events name.

use cytoscope_pipeline::{Context, Meter};

/// A stage of a quantization. Before the first one, the pipeline reports how many stacks it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizeStage {
    /// Tries settings and measures their errors.
    Calibrate,
    /// Searches for the layers that must stay in float.
    Layers,
    /// Measures the run times of both networks.
    Time,
    /// Computes the test outputs and writes the package.
    Write,
}

impl QuantizeStage {
    /// Returns the name of the stage in progress events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrate => "calibrate",
            Self::Layers => "layers",
            Self::Time => "time",
            Self::Write => "write",
        }
    }

    /// Returns what the stage counts: runs of a network, or steps.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Calibrate | Self::Layers | Self::Time => "runs",
            Self::Write => "steps",
        }
    }

    /// Returns the progress meter of the stage.
    pub(crate) fn meter(self, context: &Context, total: u64) -> Meter<'_> {
        context.meter(self.name(), total, self.unit())
    }
}

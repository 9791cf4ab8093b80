//! The naive reference executor as an engine, so that tests can compare every engine with it.

use cytoscope_engine::{CompileOptions, CompileReport, Device, DeviceId, Engine, EngineError, Precision, Session};
use cytoscope_graph::{Graph, Interrupt, Tensor};

/// Runs graphs with the reference executor: slow and simple, the standard that other engines are tested against.
pub struct ReferenceEngine {
    device: Device,
}

impl Default for ReferenceEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceEngine {
    /// Creates an engine that runs every operator on the reference executor.
    pub fn new() -> Self {
        Self {
            device: Device {
                id: DeviceId::Cpu,
                name: "reference executor".to_owned(),
                memory_bytes: cytoscope_profile::available_bytes(),
                free_bytes: None,
                usable: true,
                reason: "for checking other engines".to_owned(),
                shortcomings: Vec::new(),
                precisions: vec![Precision::F32],
                driver: "reference".to_owned(),
            },
        }
    }
}

impl Engine for ReferenceEngine {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn compile(
        &self,
        graph: &Graph,
        input_shapes: &[Vec<usize>],
        options: &CompileOptions,
    ) -> Result<Box<dyn Session>, EngineError> {
        cytoscope_engine::shapes_by_input(graph, input_shapes)?;
        if options.precision != Precision::F32 {
            return Err(EngineError::UnsupportedPrecision {
                engine: "reference",
                precision: options.precision,
                has: "f32".into(),
            });
        }
        let report = CompileReport {
            weight_bytes: graph.initializer_bytes() as u64,
            backend: "reference".to_owned(),
            ..CompileReport::default()
        };
        Ok(Box::new(ReferenceSession { graph: graph.clone(), report, interrupt: options.interrupt.clone() }))
    }
}

struct ReferenceSession {
    graph: Graph,
    report: CompileReport,
    /// Stops a run between two nodes.
    interrupt: Interrupt,
}

impl Session for ReferenceSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        let named = self.graph.inputs.iter().map(|id| self.graph.value(*id).name.clone()).zip(inputs.iter().cloned());
        Ok(cytoscope_reference::run_unless(&self.interrupt, &self.graph, &named.collect::<Vec<_>>())?)
    }

    fn report(&self) -> &CompileReport {
        &self.report
    }
}

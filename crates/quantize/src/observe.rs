//! Runs graphs on calibration tiles and records the values of their tensors.

use crate::histogram::Histogram;
use crate::inputs::InputChannels;
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_graph::{Graph, Tensor, ValueId};
use cytoscope_graph_passes::infer_shapes;
use cytoscope_pipeline::{CalibrationTile, Context, JobError};
use cytoscope_profile::Recorder;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum bytes of tensors that are recorded in one run of the network.
const MAX_RECORDED_BYTES: usize = 256 << 20;

/// Runs graphs tile by tile.
pub(crate) struct Runner<'a> {
    /// Receives progress, and returns whether the job was canceled.
    pub context: &'a Context,
    /// The engine that runs float and quantized graphs.
    pub engine: &'a dyn Engine,
    /// Number of threads to compile for; 0 uses all cores.
    pub threads: usize,
    /// Channels of the inputs of all graphs.
    pub channels: InputChannels,
}

impl Runner<'_> {
    /// Compiles a graph for tiles of one shape. DequantizeLinear nodes of quantized graphs are folded into float
    /// weights.
    pub(crate) fn compile(&self, graph: &Graph, shape: &[usize]) -> Result<Box<dyn Session>, JobError> {
        let shapes: Vec<Vec<usize>> = self.channels.shapes(graph, shape).into_iter().map(|(_, shape)| shape).collect();
        let mut graph = graph.clone();
        cytoscope_graph_passes::fold_dequantized(&mut graph)?;
        cytoscope_graph_passes::eliminate_dead(&mut graph);
        let options =
            CompileOptions { threads: self.threads, recorder: Recorder::totals_only(), ..CompileOptions::default() };
        Ok(self.engine.compile(&graph, &shapes, &options)?)
    }

    /// Runs every tile and passes its outputs to a callback.
    pub(crate) fn each(
        &self,
        graph: &Graph,
        tiles: &[CalibrationTile],
        mut then: impl FnMut(usize, Vec<Tensor>) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let mut session: Option<(Vec<usize>, Box<dyn Session>)> = None;
        for (index, tile) in tiles.iter().enumerate() {
            self.context.check()?;
            let shape = tile.values.shape();
            let mut current = match session.take().filter(|(of, _)| of == shape) {
                Some(current) => current,
                None => (shape.to_vec(), self.compile(graph, shape)?),
            };
            let outputs = current.1.run(&self.channels.split(&tile.values)?)?;
            session = Some(current);
            then(index, outputs)?;
        }
        Ok(())
    }

    /// Returns the outputs of every tile.
    pub(crate) fn outputs(&self, graph: &Graph, tiles: &[CalibrationTile]) -> Result<Vec<Vec<Tensor>>, JobError> {
        let mut all = Vec::with_capacity(tiles.len());
        self.each(graph, tiles, |_, outputs| {
            all.push(outputs);
            Ok(())
        })?;
        Ok(all)
    }

    /// Passes the values of some tensors to `visit`, with the tile they belong to. Only a few tensors are recorded per
    /// run, so that memory use is bounded.
    pub(crate) fn visit(
        &self,
        graph: &Graph,
        wanted: &BTreeSet<ValueId>,
        tiles: &[CalibrationTile],
        mut visit: impl FnMut(ValueId, &CalibrationTile, &Tensor) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let Some(first) = tiles.first() else { return Ok(()) };
        let inside: Vec<ValueId> = wanted.iter().copied().filter(|id| !graph.inputs.contains(id)).collect();
        if graph.inputs.iter().any(|id| wanted.contains(id)) {
            for tile in tiles {
                let tensors = self.channels.split(&tile.values)?;
                let read = graph.inputs.iter().zip(tensors.iter()).filter(|(id, _)| wanted.contains(id));
                for (id, tensor) in read {
                    visit(*id, tile, tensor)?;
                }
            }
        }
        for some in self.portions(graph, &inside, first.values.shape())? {
            let mut part = graph.clone();
            part.outputs.clone_from(&some);
            cytoscope_graph_passes::eliminate_dead(&mut part);
            self.each(&part, tiles, |index, outputs| {
                let Some(tile) = tiles.get(index) else { return Ok(()) };
                some.iter().zip(&outputs).try_for_each(|(id, tensor)| visit(*id, tile, tensor))
            })?;
        }
        Ok(())
    }

    /// Groups tensors, in order, into portions of at most [`MAX_RECORDED_BYTES`].
    fn portions(&self, graph: &Graph, ids: &[ValueId], shape: &[usize]) -> Result<Vec<Vec<ValueId>>, JobError> {
        let mut shaped = graph.clone();
        infer_shapes(&mut shaped, &self.channels.shapes(graph, shape))?;
        let mut portions: Vec<Vec<ValueId>> = Vec::new();
        let mut left = 0;
        for &id in ids {
            let bytes = shaped.value(id).fixed_shape().map_or(MAX_RECORDED_BYTES, |s| s.iter().product::<usize>() * 4);
            match portions.last_mut().filter(|_| bytes <= left) {
                Some(portion) => portion.push(id),
                None => {
                    left = MAX_RECORDED_BYTES;
                    portions.push(vec![id]);
                }
            }
            left = left.saturating_sub(bytes);
        }
        Ok(portions)
    }
}

/// Statistics of tensors on the calibration tiles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Histogram of the values of each tensor.
    pub histograms: BTreeMap<ValueId, Histogram>,
    /// Maximum |x| of each channel of each tensor.
    pub largest: BTreeMap<ValueId, Vec<f32>>,
}

/// Returns the values of an observed tensor.
///
/// # Errors
/// [`JobError::Internal`] if they are not 32-bit floats.
pub(super) fn floats<'a>(graph: &Graph, id: ValueId, tensor: &'a Tensor) -> Result<&'a [f32], JobError> {
    tensor.as_f32().ok_or_else(|| {
        let (name, dtype) = (&graph.value(id).name, tensor.dtype());
        JobError::Internal(format!("quantize: the tensor \"{name}\" is {dtype:?}, expected F32"))
    })
}

/// Runs the graph on the tiles and returns the statistics of the given tensors.
pub(crate) fn observe(
    runner: &Runner<'_>,
    graph: &Graph,
    wanted: &BTreeSet<ValueId>,
    tiles: &[CalibrationTile],
) -> Result<Observed, JobError> {
    let mut observed = Observed::default();
    runner.visit(graph, wanted, tiles, |id, tile, tensor| {
        let values = floats(graph, id, tensor)?;
        if !observed.histograms.entry(id).or_default().add(values) {
            return Err(JobError::Mismatch {
                path: (&tile.from).into(),
                problem: format!(
                    "for it, the network's tensor \"{}\" is not finite (NaN or infinite)",
                    graph.value(id).name
                )
                .into(),
                next_step: "leave this stack out of the calibration".into(),
            });
        }
        let channels = tensor.shape().get(1).copied().unwrap_or(1).max(1);
        let largest = observed.largest.entry(id).or_insert_with(|| vec![0.0; channels]);
        let plane = tensor.shape().iter().skip(2).product::<usize>().max(1);
        for (i, voxels) in values.chunks(plane).enumerate() {
            if let Some(max) = largest.get_mut(i % channels) {
                *max = voxels.iter().fold(*max, |m, v| m.max(v.abs()));
            }
        }
        Ok(())
    })?;
    Ok(observed)
}

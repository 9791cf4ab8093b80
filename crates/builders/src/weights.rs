//! Parameter initialization of the builders.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::random::split_mix;
use cytoscope_graph::{
    Activation, ConvAttrs, ConvTransposeAttrs, Dim, ElementType, Graph, GraphError, Op, Result, Tensor, ValueId,
};

/// The parameters of a network to be built.
#[derive(Debug, Clone)]
pub enum Weights<'a> {
    /// By name, as documented by the builder; a missing name or a wrong shape is an error.
    Named(&'a BTreeMap<String, Arc<Tensor>>),
    /// Random: kernels from a normal distribution with variance 2 / ((1 + slope²)·fan-in) (He et al. 2015), scales 1,
    /// biases 0.
    Random {
        /// Seed of the random numbers; the same seed gives the same network on every machine.
        seed: u64,
    },
}

/// Starts a graph with the input `x` of shape `[n, channels, d, h, w]`, without the first spatial axes if `axes` is less
/// than 3. Only the number of channels is fixed.
pub(super) fn graph_with_input(name: &str, channels: usize, axes: usize) -> (Graph, ValueId) {
    let mut graph = Graph::new(name);
    let spatial = ["d", "h", "w"];
    let free = |n: &str| Dim::Free(n.to_owned());
    let mut shape = vec![free("n"), Dim::Fixed(channels)];
    shape.extend(spatial.iter().skip(3usize.saturating_sub(axes)).map(|n| free(n)));
    let x = graph.add_input("x", ElementType::F32, shape);
    (graph, x)
}

/// Makes `y` the output of a graph, under this name, and returns the graph with inferred shapes.
pub(super) fn finish_graph(mut graph: Graph, y: ValueId) -> Result<Graph> {
    if let Some(value) = graph.values.get_mut(y.index()) {
        value.name = "y".into();
    }
    graph.outputs.push(y);
    cytoscope_graph_passes::infer_shapes::<ValueId>(&mut graph, &[])?;
    graph.validate()?;
    Ok(graph)
}

/// A graph under construction, and its parameters.
pub(super) struct NetworkBuilder<'a> {
    /// The graph so far, with its weights as initializers.
    pub graph: Graph,
    weights: &'a Weights<'a>,
    state: u64,
    slope: f32,
}

impl<'a> NetworkBuilder<'a> {
    /// Starts a graph with its input, as [`graph_with_input`] does.
    pub(super) fn new(
        name: &str,
        weights: &'a Weights<'a>,
        channels: usize,
        axes: usize,
        slope: f32,
    ) -> (Self, ValueId) {
        let (graph, x) = graph_with_input(name, channels, axes);
        let state = if let Weights::Random { seed } = weights { *seed } else { 0 };
        (Self { graph, weights, state, slope }, x)
    }

    /// Draws normal numbers with mean 0 (Box & Muller 1958).
    fn normal(&mut self, n: usize, deviation: f64) -> Vec<f32> {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (0..n)
            .map(|_| {
                let (u, v) = (unit(split_mix(&mut self.state)), unit(split_mix(&mut self.state)));
                ((-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v) * deviation) as f32
            })
            .collect()
    }

    /// Adds the parameter `name` of `shape`; `fill` initializes it unless weights are given by name.
    fn parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        fill: impl FnOnce(&mut Self, usize) -> Vec<f32>,
    ) -> Result<ValueId> {
        let tensor = match self.weights {
            Weights::Named(map) => {
                let found =
                    map.get(name).ok_or_else(|| GraphError::misused("weights", "none", format!("\"{name}\"")))?;
                if found.shape() != shape || found.dtype() != ElementType::F32 {
                    let got = format!("{:?} {}", found.shape(), found.dtype());
                    return Err(GraphError::misused(format!("weight \"{name}\""), got, format!("{shape:?} float32")));
                }
                Arc::clone(found)
            }
            Weights::Random { .. } => {
                let n = shape.iter().product();
                Arc::new(Tensor::new(shape, fill(self, n))?)
            }
        };
        Ok(self.graph.add_initializer(name, tensor))
    }

    pub(super) fn constant(&mut self, name: &str, shape: &[usize], value: f32) -> Result<ValueId> {
        self.parameter(name, shape, |_, n| vec![value; n])
    }

    fn kernel(&mut self, name: &str, shape: &[usize], fan_in: usize) -> Result<ValueId> {
        let gain = 2.0 / (1.0 + f64::from(self.slope).powi(2));
        self.parameter(name, shape, |m, n| m.normal(n, (gain / fan_in.max(1) as f64).sqrt()))
    }

    /// Adds a convolution with weight `prefix.weight` and, if it has one, bias `prefix.bias`.
    pub(super) fn conv(
        &mut self,
        prefix: &str,
        x: ValueId,
        (inputs, outputs): (usize, usize),
        attrs: ConvAttrs,
        bias: bool,
    ) -> Result<ValueId> {
        let taps: usize = attrs.kernel.iter().product();
        let shape = [&[outputs, inputs][..], &attrs.kernel].concat();
        let w = self.kernel(&format!("{prefix}.weight"), &shape, inputs * taps)?;
        let mut arguments = vec![Some(x), Some(w)];
        if bias {
            arguments.push(Some(self.constant(&format!("{prefix}.bias"), &[outputs], 0.0)?));
        }
        Ok(self.graph.push(format!("{prefix}.out"), Op::Conv(attrs), &arguments))
    }

    /// Adds a transposed convolution that multiplies lengths by `factors`, without bias.
    pub(super) fn upsample(
        &mut self,
        prefix: &str,
        x: ValueId,
        (inputs, outputs): (usize, usize),
        factors: &[usize],
    ) -> Result<ValueId> {
        let shape = [&[inputs, outputs][..], factors].concat();
        let w = self.kernel(&format!("{prefix}.weight"), &shape, inputs)?;
        let op = Op::ConvTranspose(ConvTransposeAttrs::upsample(factors));
        Ok(self.graph.push(format!("{prefix}.out"), op, &[Some(x), Some(w)]))
    }

    pub(super) fn leaky(&mut self, name: &str, x: ValueId) -> ValueId {
        let op = Op::Activation(Activation::LeakyRelu { alpha: self.slope });
        self.graph.push(name, op, &[Some(x)])
    }

    /// Makes `y` the output of the graph, and returns it, as [`finish_graph`] does.
    pub(super) fn finish(self, y: ValueId) -> Result<Graph> {
        finish_graph(self.graph, y)
    }
}

//! Which tile sizes a network accepts, and how far around a voxel its outputs depend on the input.

use super::Model;
use crate::model_inputs;
use cytoscope_engine::Precision;
use cytoscope_graph::{Budget, Graph, GraphLimits, Interrupt, lcm};
use cytoscope_graph_passes::{analysis, infer_shapes_limited};
use cytoscope_model_package::{AxisKind, AxisSize, Package, TensorSpec};

/// The tile sizes along Z, Y, X that a network accepts, in voxels.
pub(super) struct TileLimits {
    /// Minimum size.
    pub(super) min_size: [usize; 3],
    /// Sizes are multiples of this.
    pub(super) step: [usize; 3],
    /// Whether only the minimum size is accepted.
    pub(super) fixed: [bool; 3],
    /// Same as [`Model::reach`].
    pub(super) reach: Option<[usize; 3]>,
}

impl TileLimits {
    /// Returns the limits of a package whose network has this number of spatial axes, or why it cannot be run on tiles.
    pub(super) fn of(package: &Package, spatial_axes: usize) -> Result<Self, String> {
        let field = analysis::receptive_field(&package.graph)
            .map_err(|e| format!("{e}{}", size_hint(&package.graph, spatial_axes)))?;
        let static_norm = !analysis::depends_on_tile_statistics(&package.graph);
        // The value for axis Z, Y or X; networks on slices have no Z.
        let along = |values: &[usize], a: usize, missing: usize| {
            let skip = 3 - spatial_axes;
            if a < skip { missing } else { values.get(a - skip).copied().unwrap_or(missing) }
        };
        let multiples: Vec<usize> = field.axes.iter().map(|axis| axis.multiple_of).collect();
        let multiples = std::array::from_fn(|a| along(&multiples, a, 1).max(1));
        let (step, min_size) = common_tile_sizes(&package.inputs, multiples)?;
        let lengths = fixed_lengths(&package.graph, spatial_axes);
        let with_fixed = |sizes: [usize; 3]| -> [usize; 3] { std::array::from_fn(|a| lengths[a].unwrap_or(sizes[a])) };
        let (step, min_size) = (with_fixed(step), with_fixed(min_size));
        let fixed = lengths.map(|length| length.is_some());
        let halo = field.halo().filter(|_| static_norm && !fixed.contains(&true));
        let reach: Option<[usize; 3]> = halo.map(|halo| std::array::from_fn(|a| along(&halo, a, 0)));
        Ok(Self { min_size, step, fixed, reach })
    }
}

impl Model {
    /// Returns the shape of the predicted output for a tile Z, Y, X that the network does not keep the size of, so that it cannot
    /// be predicted; `None` for other tiles, and if the network does not accept the tile or its output is not known in advance.
    pub(crate) fn other_output_shape(&self, precision: Precision, tile: [usize; 3]) -> Option<Vec<usize>> {
        let mut graph = self.network(precision).clone();
        let (input, output) = (*graph.inputs.first()?, *graph.outputs.get(self.output_index)?);
        // A pass never has the tensors in memory as a whole.
        let limits = GraphLimits { tensor_elements: usize::MAX, ..GraphLimits::default() };
        let budget = Budget::new(&graph, Interrupt::default());
        let shape = self.tensor_shape(self.input_channels, tile);
        infer_shapes_limited(&mut graph, &[(input, shape)], &limits, &budget).ok()?;
        let found = graph.value(output).fixed_shape()?;
        let values = |shape: &[usize]| shape.iter().fold(1, |count: usize, length| count.saturating_mul(*length));
        // Networks on slices compute each slice of a tile separately.
        let expected = values(&tile[3 - self.spatial_axes..]).saturating_mul(self.output_channels);
        (values(&found) != expected).then_some(found)
    }
}

/// Returns the step and the minimum of the tile sizes along Z, Y, X, given the multiples that the network requires.
fn tile_sizes(input: &TensorSpec, multiples: [usize; 3]) -> ([usize; 3], [usize; 3]) {
    let (mut step, mut min_size) = (multiples, multiples);
    for (a, kind) in [AxisKind::Z, AxisKind::Y, AxisKind::X].into_iter().enumerate() {
        match input.axis(kind).map(|axis| &axis.size) {
            Some(AxisSize::Fixed(n)) => (step[a], min_size[a]) = (*n, *n),
            Some(AxisSize::Step { min, step: s }) => {
                let s = (*s).max(1);
                step[a] = lcm(step[a], if min % s == 0 { s } else { 1 });
                min_size[a] = (*min).max(step[a]).next_multiple_of(step[a]);
            }
            _ => {}
        }
    }
    (step, min_size)
}

/// Returns the step and the minimum of the tile sizes along Z, Y, X that all inputs accept, or why there are none.
fn common_tile_sizes(inputs: &[TensorSpec], multiples: [usize; 3]) -> Result<([usize; 3], [usize; 3]), String> {
    let (mut step, mut min_size) = (multiples, multiples);
    for (index, input) in inputs.iter().enumerate() {
        let (own_step, own_min) = tile_sizes(input, multiples);
        for a in 0..3 {
            // The first input is taken as it is: a fixed length need not be a multiple of what the network requires.
            let both = if index == 0 { own_step[a] } else { lcm(step[a], own_step[a]) };
            step[a] = both;
            min_size[a] =
                if index == 0 { own_min[a] } else { min_size[a].max(own_min[a]).next_multiple_of(both.max(1)) };
        }
    }
    model_inputs::check_fixed_sizes(inputs, step, min_size)?;
    Ok((step, min_size))
}

/// Returns the lengths along Z, Y, X that the network's input must have; `None` along an axis whose length is free.
fn fixed_lengths(graph: &Graph, spatial_axes: usize) -> [Option<usize>; 3] {
    let shape = graph.inputs.first().and_then(|id| graph.value(*id).shape.as_ref());
    std::array::from_fn(|a| {
        let axis = (a + spatial_axes).checked_sub(3)? + 2;
        shape?.get(axis)?.fixed().filter(|length| *length > 0)
    })
}

/// Returns what to do about a network that does not compute with the lengths that it declares as free.
fn size_hint(graph: &Graph, spatial_axes: usize) -> &'static str {
    if fixed_lengths(graph, spatial_axes).iter().flatten().count() < spatial_axes {
        "; if the network accepts inputs of one size only, export it without dynamic axes"
    } else {
        ""
    }
}

//! Tiles of networks with several inputs: one tensor holds the channels of all.

use cytoscope_graph::{Graph, Tensor, ValueId};
use cytoscope_pipeline::{JobError, Model};
use std::borrow::Cow;

/// The numbers of channels of a network's inputs, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputChannels(Vec<usize>);

impl InputChannels {
    /// Returns those of a model.
    pub(crate) fn of(model: &Model) -> Self {
        Self(model.inputs.iter().map(|input| input.channels).collect())
    }

    /// Joins several inputs of a network to one, which takes whole tiles. A network with one input stays as it is.
    pub(crate) fn join(&self, graph: &mut Graph) -> Result<(), JobError> {
        Ok(cytoscope_graph_passes::join_inputs(graph, &self.0)?)
    }

    /// Returns the inputs of a network with their shapes for a tile of the shape `tile`.
    pub(crate) fn shapes(&self, graph: &Graph, tile: &[usize]) -> Vec<(ValueId, Vec<usize>)> {
        let shape = |channels: usize| -> Vec<usize> {
            let length = |(axis, length): (usize, &usize)| if axis == 1 { channels } else { *length };
            tile.iter().enumerate().map(length).collect()
        };
        match self.0.as_slice() {
            [_] => graph.inputs.iter().map(|id| (*id, tile.to_vec())).collect(),
            several => graph.inputs.iter().zip(several).map(|(id, channels)| (*id, shape(*channels))).collect(),
        }
    }

    /// Returns the tensors of the inputs for a tile.
    pub(crate) fn split<'t>(&self, tile: &'t Tensor) -> Result<Cow<'t, [Tensor]>, JobError> {
        if let [_] = self.0.as_slice() {
            return Ok(Cow::Borrowed(std::slice::from_ref(tile)));
        }
        let not_split = || JobError::Internal(format!("quantize: a tile of shape {:?} has not {self:?}", tile.shape()));
        let (values, total) = (tile.as_f32().ok_or_else(not_split)?, self.0.iter().sum::<usize>());
        let [samples, channels, space @ ..] = tile.shape() else { return Err(not_split()) };
        if *channels != total {
            return Err(not_split());
        }
        let voxels: usize = space.iter().product();
        let mut tensors = Vec::with_capacity(self.0.len());
        let mut first = 0;
        for own in &self.0 {
            let range = first * voxels..(first + own) * voxels;
            let sample_channels = values.chunks((total * voxels).max(1)).filter_map(|sample| sample.get(range.clone()));
            let shape = [&[*samples, *own][..], space].concat();
            tensors.push(Tensor::new(shape, sample_channels.collect::<Vec<_>>().concat())?);
            first += own;
        }
        Ok(Cow::Owned(tensors))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_pipeline::join_tensors;

    #[test]
    fn the_tensors_of_the_inputs_are_those_of_the_tile() {
        let tensor = |channels: usize, first: usize| {
            let values: Vec<f32> = (first..first + 2 * channels * 6).map(|v| v as f32).collect();
            Tensor::new([2, channels, 2, 3], values).unwrap()
        };
        let inputs = [tensor(1, 0), tensor(2, 100)];
        let tile = join_tensors(inputs.to_vec()).unwrap();
        // The channels of all inputs of the first sample, then those of the second.
        assert_eq!(tile.shape(), [2, 3, 2, 3]);
        let first: Vec<f32> = tile.as_f32().unwrap().iter().step_by(6).copied().collect();
        assert_eq!(first, [0.0, 100.0, 106.0, 6.0, 112.0, 118.0]);
        assert_eq!(*InputChannels(vec![1, 2]).split(&tile).unwrap(), inputs);
        // One input is the tile itself.
        assert!(matches!(InputChannels(vec![3]).split(&tile).unwrap(), Cow::Borrowed([one]) if *one == tile));
        assert!(InputChannels(vec![2, 2]).split(&tile).is_err());
    }
}

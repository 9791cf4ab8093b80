//! The input on which devices and precisions are compared for a model.

use crate::{JobError, Model, package_test, verify};
use cytoscope_graph::Tensor;
use cytoscope_model_package::Package;

/// Voxels along each axis of the tile that is used to compare the speed of devices.
const PROBE_EDGE: usize = 48;

/// Returns the size Z, Y, X of the tile that devices are measured on.
pub(crate) fn probe_edge(model: &Model) -> [usize; 3] {
    std::array::from_fn(|a| if a == 0 && model.spatial_axes == 2 { 1 } else { model.tile_length(PROBE_EDGE, a) })
}

/// Returns the network's input for a tile of size Z, Y, X, and whether it is the package's preprocessed test tensor, cut
/// off or mirrored at its borders. Otherwise, the values are synthetic: they say nothing about the error on images. The
/// test tensor is read only if `use_test_tensor`.
///
/// # Errors
/// [`JobError::Engine`] if the tile is too large for a tensor.
pub(crate) fn probe_input(model: &Model, edge: [usize; 3], use_test_tensor: bool) -> Result<(Tensor, bool), JobError> {
    let shape = model.tensor_shape(model.input_channels, edge);
    if use_test_tensor && let Some(tensor) = test_tensor(model).and_then(|tensor| mirrored(&tensor, &shape)) {
        return Ok((tensor, true));
    }
    let values = verify::synthetic_values(shape.iter().product());
    Ok((Tensor::new(shape, values)?, false))
}

/// Returns the preprocessed test tensor of a model's package; `None` if it has none that can be used.
fn test_tensor(model: &Model) -> Option<Tensor> {
    let unused = |error: &dyn std::fmt::Display| {
        tracing::warn!("the test tensor of {} is not used: {error}", model.path.display());
    };
    let package = Package::open(&model.path).inspect_err(|error| unused(error)).ok()?;
    let (inputs, _) = package.test_tensors().inspect_err(|error| unused(error)).ok()??;
    let inputs = package_test::network_inputs(&package, &inputs).inspect_err(|error| unused(error)).ok()?;
    join_tensors(inputs)
}

/// Joins tensors of several inputs along the channels (axis 1), as [`Model::graph`] takes them; `None` if they differ in
/// other axes, or the elements are not f32. A single tensor stays as it is.
pub fn join_tensors(tensors: Vec<Tensor>) -> Option<Tensor> {
    let mut tensors = tensors.into_iter();
    let first = tensors.next()?;
    tensors.try_fold(first, |joined, tensor| {
        let (own, other) = (joined.shape(), tensor.shape());
        let ([batch, channels, space @ ..], [other_batch, more, other_space @ ..]) = (own, other) else { return None };
        if batch != other_batch || space != other_space {
            return None;
        }
        let voxels = space.iter().product::<usize>();
        let (own, other) = (joined.as_f32()?, tensor.as_f32()?);
        let mut values = Vec::with_capacity(own.len() + other.len());
        for sample in 0..*batch {
            values.extend_from_slice(own.get(sample * channels * voxels..(sample + 1) * channels * voxels)?);
            values.extend_from_slice(other.get(sample * more * voxels..(sample + 1) * more * voxels)?);
        }
        let shape: Vec<usize> = [*batch, channels + more].into_iter().chain(space.iter().copied()).collect();
        Tensor::new(shape, values).ok()
    })
}

/// Returns a tensor of another shape with the values of the first sample of `tensor`, which is cut off or mirrored at its
/// borders along the spatial axes; `None` if the number of axes or channels differs, or the elements are not f32.
pub(crate) fn mirrored(tensor: &Tensor, shape: &[usize]) -> Option<Tensor> {
    let (own, values) = (tensor.shape(), tensor.as_f32()?);
    if own.len() != shape.len() || own.get(1) != shape.get(1) || values.is_empty() {
        return None;
    }
    let total: usize = shape.iter().product();
    let mut filled = Vec::with_capacity(total);
    for index in 0..total {
        // The last axis varies fastest, in both tensors.
        let (mut rest, mut at, mut stride) = (index, 0, 1);
        for (own, wanted) in own.iter().zip(shape).rev() {
            at += stride * mirrored_index(rest % wanted, *own);
            rest /= wanted;
            stride *= own;
        }
        filled.push(*values.get(at)?);
    }
    Tensor::new(shape.to_vec(), filled).ok()
}

/// Returns the position of `index` on an axis of `length` elements that is continued by mirroring without repeating its
/// ends.
fn mirrored_index(index: usize, length: usize) -> usize {
    let period = 2 * length.saturating_sub(1);
    let place = index.checked_rem(period).unwrap_or(0);
    if place < length { place } else { period - place }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn tensors_of_several_inputs_are_joined_along_the_channels() {
        let tensor = |channels: usize, first: usize| {
            let values = (first..first + 2 * channels * 3).map(|v| v as f32).collect::<Vec<f32>>();
            Tensor::new(vec![2, channels, 1, 3], values).unwrap()
        };
        let both = join_tensors(vec![tensor(1, 0), tensor(2, 100)]).unwrap();
        assert_eq!(both.shape(), [2, 3, 1, 3]);
        let values = both.as_f32().unwrap();
        assert_eq!(values[..9], [0.0, 1.0, 2.0, 100.0, 101.0, 102.0, 103.0, 104.0, 105.0]);
        assert_eq!(values[9..12], [3.0, 4.0, 5.0]);
        assert_eq!(join_tensors(vec![tensor(1, 0)]), Some(tensor(1, 0)));
        let wide = Tensor::new(vec![2, 1, 1, 4], vec![0.0f32; 8]).unwrap();
        assert_eq!(join_tensors(vec![tensor(1, 0), wide]), None);
        assert_eq!(join_tensors(Vec::new()), None);
    }

    #[test]
    fn a_test_tensor_is_mirrored_or_cut_off_to_the_shape_of_a_tile() {
        let tensor = Tensor::new(vec![1, 2, 2, 3], (0..12).map(|v| v as f32).collect()).unwrap();
        let grown = mirrored(&tensor, &[1, 2, 3, 4]).unwrap();
        let first: &[f32] = &[0.0, 1.0, 2.0, 1.0, 3.0, 4.0, 5.0, 4.0, 0.0, 1.0, 2.0, 1.0];
        let (values, second) = (grown.as_f32().unwrap(), first.iter().map(|v| v + 6.0).collect::<Vec<f32>>());
        assert_eq!((&values[..12], &values[12..]), (first, second.as_slice()));
        let cut = mirrored(&tensor, &[1, 2, 1, 2]).unwrap();
        assert_eq!(cut.as_f32().unwrap(), [0.0, 1.0, 6.0, 7.0]);
        assert!(mirrored(&tensor, &[1, 3, 2, 3]).is_none(), "another number of channels");
        assert_eq!((0..5).map(|i| mirrored_index(i, 1)).max(), Some(0));
    }
}

//! Joining all inputs of a network into one input with the channels of all.

use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, GraphError, Node, Op, Result, Tensor, ValueId};

/// Maximum number of channels of all inputs together.
const MAX_JOINED_CHANNELS: usize = 256;

/// Replaces the inputs of a network by one, whose channels (axis 1) are those of the inputs in their order; `channels` are
/// their numbers. A network with one input stays as it is.
///
/// Each former input is the output of a convolution of the joined one, with a kernel of length 1 and weights 0 and 1, because
/// all engines have convolutions, but not slices along the channels. It changes no finite value in f32.
///
/// # Errors
/// [`GraphError::Unsupported`] if inputs differ in rank, have fewer than three axes, do not have the stated number of channels,
/// have elements other than f32, or have more than 256 channels together.
pub fn join_inputs(graph: &mut Graph, channels: &[usize]) -> Result<()> {
    if graph.inputs.len() < 2 {
        return Ok(());
    }
    if graph.inputs.len() != channels.len() {
        let (found, stated) = (graph.inputs.len(), channels.len());
        return Err(GraphError::malformed(format!("the network has {found} inputs, but {stated} are described")));
    }
    join_first_inputs(graph, channels)
}

/// Like [`join_inputs`] for the first inputs of a graph, one for each number of `channels`; those after them stay.
///
/// # Errors
/// Same as [`join_inputs`].
pub fn join_first_inputs(graph: &mut Graph, channels: &[usize]) -> Result<()> {
    if channels.len() < 2 {
        return Ok(());
    }
    if graph.inputs.len() < channels.len() {
        let (found, stated) = (graph.inputs.len(), channels.len());
        return Err(GraphError::malformed(format!("the network has {found} inputs, but {stated} are described")));
    }
    let total = channels.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
    if total > MAX_JOINED_CHANNELS {
        let what = format!("{total} channels in all inputs, more than {MAX_JOINED_CHANNELS}");
        return Err(GraphError::unsupported(what));
    }
    let mut dims = joined_dims(graph, channels)?;
    if let Some(axis) = dims.get_mut(1) {
        *axis = Dim::Fixed(total);
    }
    let kernel = vec![1; dims.len().saturating_sub(2)];
    let joined = graph.add_value("inputs", Some(ElementType::F32), Some(dims));
    let inputs: Vec<ValueId> = graph.inputs.splice(..channels.len(), [joined]).collect();
    let mut nodes = Vec::with_capacity(inputs.len() + graph.nodes.len());
    let mut first = 0;
    for (input, &count) in inputs.into_iter().zip(channels) {
        let name = graph.value(input).name.clone();
        let mut weights = vec![0.0f32; count * total];
        for (channel, row) in weights.chunks_exact_mut(total.max(1)).enumerate() {
            row.iter_mut().skip(first + channel).take(1).for_each(|weight| *weight = 1.0);
        }
        let shape: Vec<usize> = [count, total].into_iter().chain(kernel.iter().copied()).collect();
        let weight = graph.add_initializer(format!("{name}.channels"), Tensor::new(shape, weights)?);
        nodes.push(Node {
            name: format!("{name}.select"),
            op: Op::Conv(ConvAttrs::same(&kernel)),
            inputs: vec![Some(joined), Some(weight)],
            outputs: vec![Some(input)],
        });
        first += count;
    }
    nodes.append(&mut graph.nodes);
    graph.nodes = nodes;
    Ok(())
}

/// Returns the number of channels (axis 1) of each input of a network; 1 where it is not fixed.
pub fn input_channels(graph: &Graph) -> Vec<usize> {
    let channels = |id: &ValueId| graph.value(*id).shape.as_ref().and_then(|axes| axes.get(1)).and_then(Dim::fixed);
    graph.inputs.iter().map(|id| channels(id).unwrap_or(1)).collect()
}

/// Returns the axes of the joined input, with the channels of the first one: a length is fixed if it is fixed in any input.
fn joined_dims(graph: &Graph, channels: &[usize]) -> Result<Vec<Dim>> {
    let mut joined: Option<Vec<Dim>> = None;
    for (&input, &count) in graph.inputs.iter().zip(channels) {
        let own = input_dims(graph, input, count)?;
        match &mut joined {
            None => joined = Some(own),
            Some(joined) if joined.len() != own.len() => {
                let (name, rank) = (&graph.value(input).name, own.len());
                let what = format!("the input \"{name}\" of {rank} axes beside one of {}", joined.len());
                return Err(GraphError::unsupported(what));
            }
            Some(joined) => {
                for (known, own) in joined.iter_mut().zip(own) {
                    if known.fixed().is_none() {
                        *known = own;
                    }
                }
            }
        }
    }
    Ok(joined.unwrap_or_default())
}

/// Returns the axes of an input of f32 with `count` channels.
fn input_dims(graph: &Graph, input: ValueId, count: usize) -> Result<Vec<Dim>> {
    let value = graph.value(input);
    let unsupported = |what: String| GraphError::unsupported(format!("the input \"{}\" {what}", value.name));
    if let Some(dtype) = value.dtype.filter(|dtype| *dtype != ElementType::F32) {
        return Err(unsupported(format!("of {} beside other inputs: expected float32", dtype.name())));
    }
    let shape = value.shape.clone().filter(|shape| shape.len() > 2);
    let shape = shape.ok_or_else(|| unsupported("without batch, channel and spatial axes".to_owned()))?;
    match shape.get(1).and_then(Dim::fixed).filter(|channels| *channels != count) {
        Some(channels) => Err(unsupported(format!("of {channels} channels, where the description states {count}"))),
        None => Ok(shape),
    }
}

//! The tensors in which buffers hold parameters, gradients and moments. On a device, parameters are joined to a few long
//! tensors, so that each kernel of the optimizer works on many parameters at once.

use crate::error::model_error;
use cytoscope_autodiff::{GradientGraph, Parameter};
use cytoscope_graph::{Dim, ElementType, Node, Op, Tensor, ValueId};
use cytoscope_pipeline::JobError;

/// Maximum number of elements of a tensor that holds several parameters, 32 MiB: an update stores parameters and both
/// moments in one buffer, and WebGPU guarantees bindings of 128 MiB.
const MAX_ELEMENTS: usize = 1 << 23;
/// Parts that start at multiples of this number of elements (512 bytes) are not copied by any device.
const ALIGNMENT: usize = 128;

/// Which part of which tensor holds a parameter, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    tensor: usize,
    start: usize,
    length: usize,
}

/// The tensors that hold the parameters.
pub(crate) struct Joined {
    /// The tensors; the optimizer updates each of them like a single parameter.
    pub tensors: Vec<Parameter>,
    /// Where the parameters are, in their order; `None` if each tensor is one parameter.
    places: Option<Vec<Place>>,
}

/// Returns the number of elements.
fn length(parameter: &Parameter) -> usize {
    parameter.shape.iter().product()
}

fn misfit(name: &str) -> JobError {
    JobError::Internal(format!("training step: the tensor of \"{name}\" has the wrong number of elements"))
}

impl Joined {
    /// Holds each parameter in its own tensor.
    pub(crate) fn separate(parameters: &[Parameter]) -> Self {
        Self { tensors: parameters.to_vec(), places: None }
    }

    /// Joins the parameters with weight decay, and those without. Elements between parameters are 0 and have no gradient.
    pub(crate) fn new(parameters: &[Parameter]) -> Self {
        let mut order: Vec<(usize, &Parameter)> = parameters.iter().enumerate().collect();
        order.sort_by_key(|(_, p)| p.decays);
        let mut found: Vec<(bool, usize)> = Vec::new();
        let mut places: Vec<(usize, Place)> = Vec::new();
        for (index, p) in order {
            let added = length(p);
            let aligned = found.last().map_or(0, |(_, elements)| elements.next_multiple_of(ALIGNMENT));
            let start = match found.last_mut() {
                Some((decays, elements)) if *decays == p.decays && aligned + added <= MAX_ELEMENTS => {
                    *elements = aligned + added;
                    aligned
                }
                _ => {
                    found.push((p.decays, added));
                    0
                }
            };
            places.push((index, Place { tensor: found.len() - 1, start, length: added }));
        }
        places.sort_by_key(|(index, _)| *index);
        let tensor = |(number, (decays, elements)): (usize, (bool, usize))| Parameter {
            name: format!("joined{number}"),
            shape: vec![elements],
            decays,
        };
        let tensors = found.into_iter().enumerate().map(tensor).collect();
        Self { tensors, places: Some(places.into_iter().map(|(_, place)| place).collect()) }
    }

    /// Returns the tensors that hold these values of the parameters; none if there are no values.
    ///
    /// # Errors
    /// If a value and its parameter differ in their number of elements.
    pub(crate) fn join(&self, values: Vec<Tensor>) -> Result<Vec<Tensor>, JobError> {
        let Some(places) = self.places.as_ref().filter(|_| !values.is_empty()) else { return Ok(values) };
        let mut joined: Vec<Vec<f32>> = self.tensors.iter().map(|t| vec![0.0; length(t)]).collect();
        for (index, (value, place)) in values.iter().zip(places).enumerate() {
            let part = joined.get_mut(place.tensor).and_then(|t| t.get_mut(place.start..place.start + place.length));
            match (part, value.as_f32().filter(|v| v.len() == place.length)) {
                (Some(part), Some(value)) => part.copy_from_slice(value),
                _ => return Err(misfit(&format!("parameter {index}"))),
            }
        }
        Ok(joined.into_iter().map(Tensor::vector).collect())
    }

    /// Cuts the values of these parameters out of the tensors that hold them.
    ///
    /// # Errors
    /// If a tensor has too few elements.
    pub(crate) fn split(&self, parameters: &[Parameter], joined: Vec<Tensor>) -> Result<Vec<Tensor>, JobError> {
        let Some(places) = &self.places else { return Ok(joined) };
        let value = |(p, place): (&Parameter, &Place)| -> Result<Tensor, JobError> {
            let all = joined.get(place.tensor).and_then(Tensor::as_f32);
            let own = all.and_then(|values| values.get(place.start..place.start + place.length));
            let own = own.ok_or_else(|| misfit(&p.name))?.to_vec();
            Tensor::new(p.shape.clone(), own).map_err(model_error("the network"))
        };
        parameters.iter().zip(places).map(value).collect()
    }

    /// Changes the inputs and outputs of a gradient graph that are parameters and gradients to the tensors that hold them.
    pub(crate) fn rewrite(&self, made: &mut GradientGraph) {
        let Some(places) = &self.places else { return };
        let GradientGraph { graph, parameters, .. } = made;
        let separate = graph.inputs.split_off(graph.inputs.len().saturating_sub(parameters.len()));
        let body = std::mem::take(&mut graph.nodes);
        let held: Vec<ValueId> = (self.tensors.iter())
            .map(|t| graph.add_input(&t.name, ElementType::F32, vec![Dim::Fixed(length(t))]))
            .collect();
        for ((value, p), place) in separate.into_iter().zip(parameters.iter()).zip(places) {
            let mut integers = |what: &str, numbers: Vec<i64>| {
                Some(graph.add_initializer(format!("{}.{what}", p.name), Tensor::vector(numbers)))
            };
            let start = integers("start", vec![place.start as i64]);
            let end = integers("end", vec![(place.start + place.length) as i64]);
            let axis = integers("axis", vec![0]);
            let shape = integers("shape", p.shape.iter().map(|n| *n as i64).collect());
            let part =
                graph.push(format!("{}.part", p.name), Op::Slice, &[held.get(place.tensor).copied(), start, end, axis]);
            graph.nodes.push(Node {
                name: format!("{}.separate", p.name),
                op: Op::Reshape { allow_zero: true },
                inputs: vec![Some(part), shape],
                outputs: vec![Some(value)],
            });
        }
        graph.nodes.extend(body);
        let gradients: Vec<ValueId> = graph.outputs.drain(1..=parameters.len()).collect();
        let mut parts: Vec<Vec<(Place, ValueId)>> = vec![Vec::new(); self.tensors.len()];
        for ((gradient, p), place) in gradients.into_iter().zip(parameters.iter()).zip(places) {
            let all = graph.add_initializer(format!("{}.all", p.name), Tensor::vector(vec![-1i64]));
            let reshape = Op::Reshape { allow_zero: true };
            let flat = graph.push(format!("{}.flat", p.name), reshape, &[Some(gradient), Some(all)]);
            if let Some(parts) = parts.get_mut(place.tensor) {
                parts.push((*place, flat));
            }
        }
        for (number, (tensor, mut parts)) in self.tensors.iter().zip(parts).enumerate() {
            parts.sort_by_key(|(place, _)| place.start);
            let (mut list, mut end) = (Vec::with_capacity(2 * parts.len()), 0);
            for (place, part) in parts {
                if place.start > end {
                    let zeros = Tensor::vector(vec![0.0f32; place.start - end]);
                    list.push(Some(graph.add_initializer(format!("{}.gap{end}", tensor.name), zeros)));
                }
                list.push(Some(part));
                end = place.start + place.length;
            }
            let joined = graph.push(format!("{}.gradient", tensor.name), Op::concat(0), &list);
            graph.outputs.insert(1 + number, joined);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_graph::{BinaryOp, Graph};

    fn parameters() -> Vec<Parameter> {
        let parameter =
            |name: &str, shape: &[usize], decays| Parameter { name: name.to_owned(), shape: shape.to_vec(), decays };
        vec![
            parameter("a", &[3], false),
            parameter("b", &[2, 3], true),
            parameter("c", &[2, 64], true),
            parameter("d", &[1, 2], false),
        ]
    }

    fn values(from: f32) -> Vec<Tensor> {
        let numbered = |(i, p): (usize, &Parameter)| {
            Tensor::new(p.shape.clone(), (0..length(p)).map(|k| from + (100 * i + k) as f32).collect::<Vec<f32>>())
        };
        parameters().iter().enumerate().map(|p| numbered(p).unwrap()).collect()
    }

    #[test]
    fn joined_parameters_are_those_that_were_joined() {
        let parameters = parameters();
        let joined = Joined::new(&parameters);
        let shapes: Vec<(&[usize], bool)> = joined.tensors.iter().map(|t| (t.shape.as_slice(), t.decays)).collect();
        assert_eq!(shapes, [(&[130][..], false), (&[256][..], true)]);
        let held = joined.join(values(1.0)).unwrap();
        let decaying = held[1].as_f32().unwrap();
        assert_eq!(decaying[..2], [101.0, 102.0]);
        assert_eq!(decaying[127..130], [0.0, 201.0, 202.0], "parameters are aligned, with zeros between them");
        assert_eq!(joined.split(&parameters, held).unwrap(), values(1.0));
        assert!(joined.join(Vec::new()).unwrap().is_empty());
        assert!(joined.join(values(1.0).into_iter().rev().collect()).is_err());
        let separate = Joined::separate(&parameters);
        assert_eq!(separate.tensors, parameters);
        assert_eq!(separate.split(&parameters, separate.join(values(2.0)).unwrap()).unwrap(), values(2.0));
    }

    #[test]
    fn a_rewritten_graph_computes_the_same_gradients() {
        let parameters = parameters();
        let mut graph = Graph::new("step");
        let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(1)]);
        let inputs: Vec<ValueId> = (parameters.iter())
            .map(|p| graph.add_input(&p.name, ElementType::F32, p.shape.iter().map(|n| Dim::Fixed(*n)).collect()))
            .collect();
        graph.outputs.push(x);
        for (p, input) in parameters.iter().zip(&inputs) {
            let name = format!("{}.gradient", p.name);
            let gradient = graph.push(name, Op::Binary(BinaryOp::Mul), &[Some(*input), Some(x)]);
            graph.outputs.push(gradient);
        }
        let mut made =
            GradientGraph { graph, parameters: parameters.clone(), norms: Vec::new(), recomputed: None, halved: None };
        let joined = Joined::new(&parameters);
        joined.rewrite(&mut made);
        let held = joined.join(values(1.0)).unwrap();
        let names = made.graph.inputs.iter().map(|id| made.graph.value(*id).name.clone());
        let given = std::iter::once(Tensor::vector(vec![2.0f32])).chain(held);
        let given: Vec<(String, Tensor)> = names.zip(given).collect();
        let found = cytoscope_reference::run(&made.graph, &given).unwrap();
        let gradients = joined.split(&parameters, found[1..].to_vec()).unwrap();
        for (gradient, value) in gradients.iter().zip(values(1.0)) {
            let doubled: Vec<f32> = value.as_f32().unwrap().iter().map(|v| v * 2.0).collect();
            assert_eq!((gradient.shape(), gradient.as_f32().unwrap()), (value.shape(), doubled.as_slice()));
        }
    }
}

//! Reverse-mode differentiation: the gradient of a scalar with respect to chosen values, as additional nodes of the
//! same graph.
//!
//! Nodes are visited from last to first. Each operator has one rule ([`rules`]) that expresses the gradients of its
//! inputs in terms of the gradient of its output. Only nodes between the chosen values and the scalar are differentiated.

mod arithmetic;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use cytoscope_graph::{BinaryOp, ElementType, Graph, GraphError, Node, Op, Result, Tensor, ValueId, op_name};

/// Appends the gradient of `scalar` with respect to each value of `wrt` and returns the gradients in the order of `wrt`
/// (`None` if the scalar does not depend on the value). All shapes must have been inferred and fixed. `seed` is the
/// gradient of the scalar itself, a value of its shape; `None` for 1.
///
/// # Errors
/// [`GraphError::UnsupportedOp`], naming an operator between `wrt` and the scalar whose derivative is not implemented;
/// [`GraphError::Misused`] if a shape between them is unknown.
pub fn differentiate(
    graph: &mut Graph,
    scalar: ValueId,
    wrt: &[ValueId],
    seed: Option<ValueId>,
) -> Result<Vec<Option<ValueId>>> {
    let mut active: BTreeSet<ValueId> = wrt.iter().copied().collect();
    // Shapes, indices and truth values have no gradient.
    let varies = |id: &&ValueId| graph.value(**id).dtype.is_none_or(ElementType::is_float);
    for node in &graph.nodes {
        if node.inputs.iter().flatten().any(|id| active.contains(id)) {
            active.extend(node.outputs.iter().flatten().filter(varies));
        }
    }
    let mut needed = BTreeSet::from([scalar]);
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().flatten().any(|id| needed.contains(id)) {
            needed.extend(node.inputs.iter().flatten());
        }
    }
    active.retain(|id| needed.contains(id));
    let dtype = graph.value(scalar).dtype.unwrap_or(ElementType::F32);
    let seed = match seed {
        Some(seed) => seed,
        None => graph.add_initializer("loss.gradient", Tensor::new(Vec::new(), vec![1.0f64])?.cast(dtype)),
    };
    let mut backward = Backward { graph, active, parts: BTreeMap::from([(scalar, vec![seed])]) };
    for index in (0..backward.graph.nodes.len()).rev() {
        let node = backward.graph.nodes[index].clone();
        backward.node(&node)?;
    }
    Ok(wrt.iter().map(|id| backward.total(*id)).collect())
}

/// State of the backward pass.
struct Backward<'g> {
    graph: &'g mut Graph,
    /// Values whose gradients are needed.
    active: BTreeSet<ValueId>,
    /// Terms of each value's gradient found so far; the gradient is their sum.
    parts: BTreeMap<ValueId, Vec<ValueId>>,
}

impl Backward<'_> {
    /// Returns the sum of the terms found so far.
    fn total(&mut self, id: ValueId) -> Option<ValueId> {
        let parts = self.parts.get(&id)?.clone();
        let mut sum = *parts.first()?;
        let name = format!("{}.gradient.sum", self.graph.value(id).name);
        for part in parts.get(1..).unwrap_or_default() {
            sum = self.graph.push(name.clone(), Op::Binary(BinaryOp::Add), &[Some(sum), Some(*part)]);
            self.shape_like(sum, id);
        }
        self.parts.insert(id, vec![sum]);
        Some(sum)
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let wanted: Vec<bool> = node.inputs.iter().map(|id| id.is_some_and(|id| self.active.contains(&id))).collect();
        if !wanted.contains(&true) {
            return Ok(());
        }
        let mut gradients = Vec::with_capacity(node.outputs.len());
        for output in &node.outputs {
            gradients.push(match output {
                Some(id) if self.active.contains(id) => self.total(*id),
                _ => None,
            });
        }
        if gradients.iter().all(Option::is_none) {
            return Ok(());
        }
        let found = self.rule(node, &gradients, &wanted).map_err(|e| e.at(&node.name, op_name(&node.op)))?;
        for ((input, gradient), wanted) in node.inputs.iter().zip(found).zip(wanted) {
            if let (Some(input), Some(gradient), true) = (input, gradient, wanted) {
                self.shape_like(gradient, *input);
                self.parts.entry(*input).or_default().push(gradient);
            }
        }
        Ok(())
    }

    /// Gives a gradient without a shape the shape and type of the value it belongs to.
    fn shape_like(&mut self, gradient: ValueId, reference: ValueId) {
        if self.graph.value(gradient).shape.is_none()
            && let Some(shape) = self.graph.value(reference).fixed_shape()
        {
            self.set_shape(gradient, &shape, reference);
        }
    }

    fn shape(&self, id: ValueId) -> Result<Vec<usize>> {
        let value = self.graph.value(id);
        value.fixed_shape().ok_or_else(|| {
            GraphError::misused(
                format!("shape of \"{}\"", value.name),
                "unknown",
                "known axis lengths, which differentiation needs",
            )
        })
    }
}

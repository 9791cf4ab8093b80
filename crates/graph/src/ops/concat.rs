//! `Concat`: tensors side by side along one axis.

use super::{AxisEffect, AxisLengths, Op, Operator, axis_over_slices};
use crate::error::{GraphError, Result};
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::infer::{Info, OpInputs, free, resolve_axis, shape_text};

impl Op {
    /// Concatenation along `axis`; a negative axis counts from the end.
    pub fn concat(axis: i64) -> Self {
        Self::Concat { axis }
    }
}

/// The attributes of [`Op::Concat`].
pub(crate) struct Concat {
    /// Axis along which the inputs are joined; a negative one counts from the end.
    pub axis: i64,
}

impl Operator for Concat {
    fn infer(&self, args: &OpInputs<'_>) -> Result<Vec<Info>> {
        Ok(vec![output(self.axis, args)?])
    }

    fn axis_effect(&self, lengths: &AxisLengths) -> Result<AxisEffect> {
        let joined = resolve_axis(self.axis, lengths.rank)?;
        Ok(if joined == lengths.axis { AxisEffect::All } else { AxisEffect::SameOfAll })
    }

    fn moves_only(&self) -> bool {
        true
    }

    fn joined_axis(&self) -> Option<i64> {
        Some(self.axis)
    }

    fn moved_inputs(&self, node: &Node, output_rank: Option<usize>) -> Option<Vec<ValueId>> {
        if resolve_axis(self.axis, output_rank?).ok()? != 1 {
            return None;
        }
        node.inputs.iter().copied().collect()
    }

    fn over_slices(&self, node: &Node, graph: &mut Graph) -> Option<Node> {
        // A constant part has one slice, not those of the stack.
        if node.inputs.iter().flatten().any(|id| graph.constant(*id).is_some()) {
            return None;
        }
        Some(Node { op: Op::concat(axis_over_slices(self.axis)?), ..node.clone() })
    }
}

fn output(axis: i64, args: &OpInputs<'_>) -> Result<Info> {
    let dtype = args.same_type(0..args.inputs.len())?;
    let first = args.need(0)?;
    let Some(rank) = (0..args.inputs.len()).find_map(|i| args.get(i).and_then(Info::rank)) else {
        return Ok(Info::new(dtype, None));
    };
    let axis = resolve_axis(axis, rank)?;
    let mut shape = first.shape.clone();
    for index in 1..args.inputs.len() {
        let other = args.need(index)?;
        shape = match (shape, &other.shape) {
            (Some(a), Some(b)) if a.len() == b.len() => {
                let joined = a.iter().zip(b).enumerate().map(|(i, pair)| match pair {
                    (Dim::Fixed(x), Dim::Fixed(y)) if i == axis => Ok(Dim::Fixed(x.saturating_add(*y))),
                    (x, y) if i == axis => Ok(free(format!("{x}+{y}"))),
                    (Dim::Fixed(x), Dim::Fixed(y)) if x != y => {
                        Err(GraphError::misused(format!("shape of input {index}"), shape_text(b), shape_text(&a)))
                    }
                    (Dim::Free(_), y @ Dim::Fixed(_)) => Ok(y.clone()),
                    (x, _) => Ok(x.clone()),
                });
                Some(joined.collect::<Result<_>>()?)
            }
            (Some(a), Some(b)) => {
                return Err(GraphError::misused("axes of the inputs", b.len().to_string(), a.len().to_string()));
            }
            _ => None,
        };
    }
    Ok(Info::new(dtype, shape))
}

//! Types and shapes of an operator's outputs.
//!
//! Each operator has one rule, which checks the inputs and determines type and shape of the outputs. The reference
//! executor applies the same rules to concrete shapes before it computes, so its kernels may rely on these checks.

mod data;
mod elementwise;
mod shape_ops;
mod training;
mod window;

/// Rules that the reference executor and the analyses also apply.
pub mod rules {
    pub use super::data::reduced_axes;
    pub use super::elementwise::broadcast;
    pub use super::shape_ops::{
        AxisSlice, pad_plan, permutation, range_length, shape_range, slice_axis, slice_plan, wrapped_position,
    };
}

use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::{Dim, Graph, ValueId};
use crate::limits::{GraphLimits, check_limit, checked_elements};
use crate::ops::Op;
use crate::tensor::{ElementType, Tensor};

/// Known facts about a value.
#[derive(Debug, Clone, Default)]
pub struct Info {
    /// Type of the elements; `None` if unknown.
    pub dtype: Option<ElementType>,
    /// Lengths of the axes, outermost first; `None` if the rank is unknown.
    pub shape: Option<Vec<Dim>>,
    /// The value itself, if it follows from shapes and constants.
    pub value: Option<Arc<Tensor>>,
}

impl Info {
    /// Returns the info of a constant, whose type, shape and value are all known.
    pub fn of(tensor: &Arc<Tensor>) -> Self {
        Self { dtype: Some(tensor.dtype()), shape: Some(fixed(tensor.shape())), value: Some(Arc::clone(tensor)) }
    }

    /// Describes a value whose elements are unknown.
    pub fn new(dtype: Option<ElementType>, shape: Option<Vec<Dim>>) -> Self {
        Self { dtype, shape, value: None }
    }

    /// Returns the number of axes, if it is known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// Returns the lengths of the axes, if all are known.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::fixed).collect()
    }

    /// Returns the value as integers, if it is known.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.value.as_ref()?.to_i64_vec()
    }
}

/// Returns the product of the lengths, saturating at `usize::MAX`.
pub fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1usize, |total, n| total.saturating_mul(*n))
}

/// Converts lengths to fixed dimensions.
pub fn fixed(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::Fixed(n)).collect()
}

/// Formats a shape for error messages, with the names of free dimensions: `[1, 16, depth, 64]`.
pub fn shape_text(shape: &[Dim]) -> String {
    let lengths: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", lengths.join(", "))
}

/// The inputs of one operator, with checks that all rules share.
pub(crate) struct OpInputs<'a> {
    /// Known facts about each input; `None` for an absent optional one.
    pub inputs: &'a [Option<&'a Info>],
    /// Number of outputs that the node names.
    pub outputs: usize,
    /// Limits that the shapes of the outputs must respect.
    pub limits: &'a GraphLimits,
}

impl<'a> OpInputs<'a> {
    /// Returns input `index`, which must be present.
    pub(crate) fn need(&self, index: usize) -> Result<&'a Info> {
        self.get(index).ok_or_else(|| GraphError::misused("inputs", format!("no input {index}"), "a tensor"))
    }

    /// Returns input `index`, if present.
    pub(crate) fn get(&self, index: usize) -> Option<&'a Info> {
        self.inputs.get(index).copied().flatten()
    }

    /// Checks that input `index` has one of these types, if its type is known.
    pub(crate) fn types(&self, index: usize, allowed: &[ElementType]) -> Result<()> {
        match self.get(index).and_then(|i| i.dtype) {
            Some(t) if !allowed.contains(&t) => {
                let names: Vec<_> = allowed.iter().map(|t| t.name()).collect();
                Err(GraphError::misused(format!("element type of input {index}"), t.name(), names.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that those of these inputs whose type is known have the same type, and returns it.
    pub(crate) fn same_type(&self, indices: impl IntoIterator<Item = usize>) -> Result<Option<ElementType>> {
        let mut found: Option<ElementType> = None;
        for index in indices {
            match (found, self.get(index).and_then(|i| i.dtype)) {
                (Some(a), Some(b)) if a != b => {
                    return Err(GraphError::misused(format!("element type of input {index}"), b.name(), a.name()));
                }
                (None, Some(b)) => found = Some(b),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Checks the size of an output that does not follow from the size of the inputs.
    pub(crate) fn check_output_size(&self, shape: &[usize], what: &str) -> Result<()> {
        checked_elements(shape, "tensor_elements", what, self.limits.tensor_elements).map(|_| ())
    }
}

/// The floating-point types.
pub(crate) const FLOATS: [ElementType; 4] = [ElementType::F32, ElementType::F64, ElementType::F16, ElementType::BF16];

/// Resolves an axis that may be negative, counting from the end of `rank` axes.
///
/// # Errors
/// [`GraphError::Misused`] if there is no such axis.
pub fn resolve_axis(axis: i64, rank: usize) -> Result<usize> {
    let positive = if axis < 0 { axis.checked_add(rank as i64).unwrap_or(-1) } else { axis };
    usize::try_from(positive)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| GraphError::misused("axis", axis.to_string(), format!("one of {rank} axes")))
}

/// Maximum length of a derived name of a free dimension: names that record how a length was computed double with each
/// concatenation of a value with itself.
const MAX_NAME: usize = 96;

/// Returns a free dimension with this name, or with a hash of the name if it is too long.
pub(crate) fn free(name: String) -> Dim {
    if name.len() <= MAX_NAME {
        return Dim::Free(name);
    }
    // FNV-1a (Fowler, Noll & Vo).
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    Dim::Free(format!("length_{hash:016x}"))
}

/// Applies a length rule to a dimension. A free dimension keeps its name if the rule keeps the length, and gets a name
/// with the factor (`d/2`, `d*2`) if it scales.
pub(crate) fn map_dim(dim: &Dim, rule: impl Fn(usize) -> Result<usize>) -> Result<Dim> {
    let name = match dim {
        Dim::Fixed(n) => return rule(*n).map(Dim::Fixed),
        Dim::Free(name) => name,
    };
    const PROBES: [usize; 2] = [3 << 12, 5 << 12];
    let results = PROBES.map(|p| rule(p).ok());
    let [Some(a), Some(b)] = results else { return Ok(free(format!("{name}'"))) };
    if [a, b] == PROBES {
        return Ok(dim.clone());
    }
    let factor = |big: [usize; 2], small: [usize; 2]| {
        let f = big[0].checked_div(small[0])?;
        (small[0] * f == big[0] && small[1] * f == big[1]).then_some(f)
    };
    Ok(free(if let Some(f) = factor(PROBES, [a, b]) {
        rescaled(name, f, '/', '*')
    } else if let Some(f) = factor([a, b], PROBES) {
        rescaled(name, f, '*', '/')
    } else {
        format!("{name}'")
    }))
}

/// Appends a scale factor to `name`, or cancels it against an opposite factor at its end.
fn rescaled(name: &str, factor: usize, symbol: char, inverse: char) -> String {
    if let Some((base, number)) = name.rsplit_once(['*', '/']) {
        let sign = name.as_bytes().get(base.len()).copied().map(char::from);
        if let Ok(old) = number.parse::<usize>() {
            if sign == Some(inverse) && old == factor {
                return base.to_owned();
            }
            if sign == Some(inverse) && factor > 0 && old % factor == 0 {
                return format!("{base}{inverse}{}", old / factor);
            }
            if sign == Some(symbol) {
                return format!("{base}{symbol}{}", old.saturating_mul(factor));
            }
        }
    }
    format!("{name}{symbol}{factor}")
}

/// Returns types and shapes of an operator's outputs, one entry per requested output.
///
/// # Errors
/// If the inputs do not fit the operator.
pub fn node_infos(op: &Op, inputs: &[Option<&Info>], outputs: usize, limits: &GraphLimits) -> Result<Vec<Info>> {
    let args = OpInputs { inputs, outputs, limits };
    check_lists(op, &args)?;
    let mut infos = infer_outputs(op, &args)?;
    for info in &infos {
        if let Some(shape) = info.fixed_shape() {
            checked_elements(&shape, "tensor_elements", "an output", limits.tensor_elements)?;
        }
    }
    infos.resize(outputs, Info::default());
    Ok(infos)
}

/// Returns the inputs of an operator whose elements are lengths, axes or positions along axes.
fn list_inputs(op: &Op) -> &'static [usize] {
    match op {
        Op::ConstantOfShape { .. } => &[0],
        Op::Split { .. }
        | Op::Reshape { .. }
        | Op::Squeeze
        | Op::Unsqueeze
        | Op::Expand
        | Op::Tile
        | Op::Reduce { .. }
        | Op::TopK { .. } => &[1],
        Op::Pad { .. } => &[1, 3],
        Op::Resize(_) => &[1, 2, 3],
        Op::Slice => &[1, 2, 3, 4],
        _ => &[],
    }
}

/// Refuses lists with very many elements. Each is read for each node that has it as an input, and one constant may be that of very
/// many nodes.
fn check_lists(op: &Op, args: &OpInputs<'_>) -> Result<()> {
    let most = args.outputs.max(args.limits.listed_elements);
    for index in list_inputs(op) {
        let count = args.get(*index).and_then(|info| info.value.as_ref()).map_or(0, |value| value.len());
        check_limit("listed_elements", format!("the list in input {index}"), count as u128, most as u128)?;
    }
    Ok(())
}

/// Applies the rule of an operator.
fn infer_outputs(op: &Op, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    if let Some(infos) = op.with_operator(|o| o.infer(args)) {
        return infos;
    }
    for rule in [window::infer, shape_ops::infer, data::infer, training::infer] {
        if let Some(infos) = rule(op, args)? {
            return Ok(infos);
        }
    }
    elementwise::infer(op, args)
}

/// Checks that `shape` fits the declared shape of the input `id`.
///
/// # Errors
/// [`GraphError::Misused`], naming the input.
pub fn fits(graph: &Graph, id: ValueId, shape: &[usize]) -> Result<()> {
    let value = graph.value(id);
    let Some(declared) = &value.shape else { return Ok(()) };
    let same =
        declared.len() == shape.len() && declared.iter().zip(shape).all(|(d, n)| d.fixed().is_none_or(|d| d == *n));
    if same {
        return Ok(());
    }
    let what = format!("shape of input \"{}\"", value.name);
    Err(GraphError::misused(what, format!("{shape:?}"), shape_text(declared)))
}

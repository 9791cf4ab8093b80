//! Equations of Einstein sums: parsed and checked against the shapes of the operands.

use crate::error::{GraphError, Result};
use crate::limits::{GraphLimits, checked_elements};

/// An Einstein sum: label lengths, and for each operand the stride of each label.
#[derive(Debug)]
pub struct EinsumPlan {
    /// Lengths of the labels, output labels first.
    pub lengths: Vec<usize>,
    /// Number of output labels.
    pub output: usize,
    /// For each operand, the distance in elements between neighbors along each label; 0 for labels that it lacks, or along
    /// which it has length 1.
    pub strides: Vec<Vec<usize>>,
}

/// Returns the number of products that an Einsum sums; `u128::MAX` if the equation does not fit its inputs.
pub fn einsum_products(equation: &str, shapes: &[Vec<usize>]) -> u128 {
    let plan = einsum_plan(equation, shapes);
    plan.map_or(u128::MAX, |p| p.lengths.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128)))
}

/// Parses an equation such as `bhid,bhjd->bhij` (letters only, no ellipsis) into labels, lengths and strides.
///
/// # Errors
/// [`GraphError::Misused`] if the equation is invalid or does not fit the shapes; over a limit if it has too many
/// products.
pub fn einsum_plan(equation: &str, shapes: &[Vec<usize>]) -> Result<EinsumPlan> {
    let bad = |why: &str| GraphError::misused("einsum", format!("\"{equation}\" on {shapes:?}"), why);
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation, None),
    };
    let operands: Vec<Vec<char>> = left.split(',').map(|o| o.chars().collect()).collect();
    if operands.len() != shapes.len() || !left.chars().all(|c| c.is_ascii_alphabetic() || c == ',') {
        return Err(bad("letters, one group per input"));
    }
    let mut output: Vec<char> = match right {
        Some(r) => r.chars().collect(),
        None => {
            let mut once: Vec<char> =
                left.chars().filter(|c| *c != ',' && left.chars().filter(|d| d == c).count() == 1).collect();
            once.sort_unstable();
            once
        }
    };
    let count = output.len();
    if output.iter().enumerate().any(|(at, c)| output.iter().take(at).any(|before| before == c)) {
        return Err(bad("each output letter once"));
    }
    for c in operands.iter().flatten() {
        if !output.contains(c) {
            output.push(*c);
        }
    }
    let mut known: Vec<Option<usize>> = vec![None; output.len()];
    let mut strides = Vec::new();
    for (labels, shape) in operands.iter().zip(shapes) {
        if labels.len() != shape.len() {
            return Err(bad("one letter per axis"));
        }
        let mut step = vec![0; output.len()];
        for (axis, (label, &n)) in labels.iter().zip(shape).enumerate() {
            let at = output.iter().position(|c| c == label).unwrap_or(0);
            if !fits(known.get_mut(at), n) || labels.iter().zip(shape).any(|(l, other)| l == label && *other != n) {
                return Err(bad("equal lengths for each letter, or 1"));
            }
            // An axis of length 1 is repeated where the letter has another length in another operand.
            if let Some(slot) = step.get_mut(at).filter(|_| n != 1) {
                *slot += shape.iter().skip(axis + 1).product::<usize>();
            }
        }
        strides.push(step);
    }
    if output.iter().take(count).any(|c| !left.contains(*c)) {
        return Err(bad("output letters that occur in the inputs"));
    }
    // Every letter occurs in an operand, so that its length is known.
    let lengths: Vec<usize> = known.into_iter().map(Option::unwrap_or_default).collect();
    let allowed = GraphLimits::default().tensor_elements;
    checked_elements(&lengths, "tensor_elements", "the products of an Einsum", allowed)?;
    Ok(EinsumPlan { lengths, output: count, strides })
}

/// Adds the length of an axis to what is known about its letter; returns whether it fits.
fn fits(known: Option<&mut Option<usize>>, n: usize) -> bool {
    match known {
        Some(length) if length.is_none_or(|length| length == n || length == 1) => *length = Some(n),
        Some(_) if n == 1 => {}
        _ => return false,
    }
    true
}

impl EinsumPlan {
    /// Returns the shape of the result.
    pub fn output_lengths(&self) -> Vec<usize> {
        self.lengths.iter().take(self.output).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_letter_has_one_length_and_occurs_once_in_the_output() {
        let lengths = |equation: &str, shapes: &[&[usize]]| {
            let shapes: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
            einsum_plan(equation, &shapes).map(|plan| plan.output_lengths()).ok()
        };
        assert_eq!(lengths("ij,jk", &[&[2, 3], &[3, 4]]), Some(vec![2, 4]));
        assert_eq!(lengths("ij,jk", &[&[2, 0], &[0, 4]]), Some(vec![2, 4]));
        // Axes of length 0 have a length, too.
        for shapes in [[&[0][..], &[5]], [&[5], &[0]], [&[2], &[5]]] {
            assert_eq!(lengths("i,i->i", &shapes), None, "{shapes:?}");
        }
        // Axes of length 1 are repeated, as in NumPy and ONNX Runtime, but not within an operand.
        for shapes in [[&[1][..], &[5]], [&[5], &[1]]] {
            assert_eq!(lengths("i,i->i", &shapes), Some(vec![5]), "{shapes:?}");
        }
        assert_eq!(lengths("bij,bjk->bik", &[&[1, 2, 1], &[5, 3, 4]]), Some(vec![5, 2, 4]));
        assert_eq!(lengths("ii->i", &[&[1, 5]]), None);
        assert_eq!(lengths("i->ii", &[&[3]]), None);
        assert_eq!(lengths("i->j", &[&[3]]), None);
    }
}

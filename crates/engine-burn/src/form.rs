//! Every tensor on a device has five axes: sample, channel, z, y, x. Axes a model lacks have length 1.
//!
//! Only ones are put in, so a tensor's elements keep their order: going to the form and back copies nothing.

/// Lengths of the five axes.
pub(crate) type Form = [usize; 5];

/// The form of a tensor of this shape; `None` for more than five axes or more elements than a device can index.
pub(crate) fn form(shape: &[usize]) -> Option<Form> {
    let rank = shape.len();
    if rank > 5 {
        return None;
    }
    let mut form = [1; 5];
    for (axis, &length) in shape.iter().enumerate() {
        form[place(rank, axis)] = length;
    }
    let elements = form.iter().try_fold(1usize, |n, l| n.checked_mul(*l))?;
    (elements <= i32::MAX as usize).then_some(form)
}

/// Where axis `axis` of a tensor with `rank` axes lies in the form.
pub(crate) fn place(rank: usize, axis: usize) -> usize {
    if axis < 2 { axis } else { axis + 5 - rank }
}

/// The form of a tensor that is broadcast to `rank` axes: numpy puts the missing ones in front.
pub(crate) fn broadcast_form(shape: &[usize], rank: usize) -> Option<Form> {
    let missing = rank.checked_sub(shape.len())?;
    let whole: Vec<usize> = std::iter::repeat_n(1, missing).chain(shape.iter().copied()).collect();
    form(&whole)
}

/// Number of elements.
pub(crate) fn count(form: &Form) -> usize {
    form.iter().product()
}

/// One to three per-axis numbers as three, the missing outer ones `fill`.
pub(crate) fn three(values: &[usize], fill: usize) -> [usize; 3] {
    let missing = 3usize.saturating_sub(values.len());
    std::array::from_fn(|i| if i < missing { fill } else { values.get(i - missing).copied().unwrap_or(fill) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_put_where_images_have_them() {
        assert_eq!(form(&[2, 3, 4, 5]), Some([2, 3, 1, 4, 5]));
        assert_eq!(form(&[7]), Some([7, 1, 1, 1, 1]));
        assert_eq!(form(&[]), Some([1; 5]));
        assert_eq!(form(&[1; 6]), None);
        assert_eq!(broadcast_form(&[3, 1, 1], 4), Some([1, 3, 1, 1, 1]));
        assert_eq!(broadcast_form(&[8], 5), Some([1, 1, 1, 1, 8]));
        assert_eq!(three(&[4, 5], 1), [1, 4, 5]);
    }
}

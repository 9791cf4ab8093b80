//! The five axes of every device tensor: sample, channel, Z, Y, X. Missing axes have length 1.
//!
//! Only axes of length 1 are inserted, so the order of elements stays the same and conversion needs no copy.

/// Lengths of the five axes N, C, Z, Y, X.
pub(crate) type Form = [usize; 5];

/// Returns the form of a tensor of this shape; `None` if it has more than five axes or more elements than an i32 can
/// index.
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

/// Returns the position, in the form, of axis `axis` of a tensor with `rank` axes.
pub(crate) fn place(rank: usize, axis: usize) -> usize {
    if axis < 2 { axis } else { axis + 5 - rank }
}

/// Returns the form of a tensor that is broadcast to `rank` axes. As in NumPy, missing axes are added in front.
pub(crate) fn broadcast_form(shape: &[usize], rank: usize) -> Option<Form> {
    let missing = rank.checked_sub(shape.len())?;
    let padded_shape: Vec<usize> = std::iter::repeat_n(1, missing).chain(shape.iter().copied()).collect();
    form(&padded_shape)
}

/// Returns the number of elements.
pub(crate) fn count(form: &Form) -> usize {
    form.iter().product()
}

/// Returns the lengths for messages, such as "16 channels of 32 × 64 × 64 voxels".
pub(crate) fn described(form: &Form) -> String {
    let counted = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    let image = format!("{} of {}", counted(form[1], "channel"), described_voxels(form));
    if form[0] == 1 { image } else { format!("{} of {image}", counted(form[0], "sample")) }
}

/// Returns the lengths along Z, Y, X for messages, such as "32 × 64 × 64 voxels".
pub(crate) fn described_voxels([_, _, depth, height, width]: &Form) -> String {
    format!("{depth} × {height} × {width} voxels")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_axes_are_inserted_with_length_one() {
        assert_eq!(form(&[2, 3, 4, 5]), Some([2, 3, 1, 4, 5]));
        assert_eq!(form(&[7]), Some([7, 1, 1, 1, 1]));
        assert_eq!(form(&[]), Some([1; 5]));
        assert_eq!(form(&[1; 6]), None);
        assert_eq!(broadcast_form(&[3, 1, 1], 4), Some([1, 3, 1, 1, 1]));
        assert_eq!(broadcast_form(&[8], 5), Some([1, 1, 1, 1, 8]));
    }

    #[test]
    fn messages_name_the_lengths_of_a_form() {
        assert_eq!(described(&[1, 16, 32, 64, 64]), "16 channels of 32 × 64 × 64 voxels");
        assert_eq!(described(&[2, 1, 1, 4, 5]), "2 samples of 1 channel of 1 × 4 × 5 voxels");
    }
}

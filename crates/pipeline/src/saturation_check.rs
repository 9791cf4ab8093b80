//! Checks whether a stack is overexposed: where values are cut off at the highest one, objects lose their texture, and touching
//! ones can no longer be distinguished.

use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_volume::statistics::is_camera_max;

/// Fewest values that are checked.
const MIN_VALUES: usize = 1000;
/// Maximum share of the highest value in a stack that is not overexposed, as in the check of training data.
const MAX_SHARE: f64 = 0.01;

/// Returns a note if many values of a slice of integers are the highest one of a camera. A mask, which has two values, is none.
pub(crate) fn saturation_note(values: &[f32]) -> Option<Message> {
    if values.len() < MIN_VALUES {
        return None;
    }
    let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lowest = values.iter().copied().fold(f32::INFINITY, f32::min);
    let is_mask = values.iter().all(|value| *value == lowest || *value == highest);
    let share = values.iter().filter(|value| **value == highest).count() as f64 / values.len() as f64;
    (is_camera_max(f64::from(highest)) && !is_mask && share > MAX_SHARE).then(|| {
        message!(
            "{:.1} % of the values of the middle slice are {highest}, the highest one of a camera: the stack is overexposed, so \
             objects may be merged or too large; acquire it with less light, or use the data before clipping",
            share * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slices_with_many_of_the_highest_values_of_a_camera_are_overexposed() {
        // Values from 0 to 99 times a factor.
        let slice = |factor: f32, limit: f32| -> Vec<f32> {
            (0..5000).map(|i| ((i % 100) as f32 * factor).min(limit)).collect()
        };
        let text = saturation_note(&slice(50.0, 4095.0)).map(|note| note.to_string()).unwrap_or_default();
        assert!(text.contains("18.0 % of the values of the middle slice are 4095"), "{text}");
        assert!(saturation_note(&slice(3.0, 255.0)).is_some());
        // 12 bits, stored as the upper ones of 16.
        let shifted = saturation_note(&slice(800.0, 65_520.0)).map(|note| note.to_string()).unwrap_or_default();
        assert!(shifted.contains("are 65520, the highest one of a camera"), "{shifted}");
        for values in [
            slice(50.0, 5000.0),
            slice(50.0, 4000.0),
            slice(1.0, 63.0),
            slice(1000.0, 255.0),
            vec![255.0; 5000],
            slice(3.0, 255.0).into_iter().take(999).collect(),
            Vec::new(),
        ] {
            assert_eq!(saturation_note(&values), None);
        }
    }
}

//! Checks that a stack does not show dark objects on a bright background: models of bright objects find its gaps instead.

use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::PREPROCESS;

/// Fewest values that are checked.
const MIN_VALUES: usize = 1000;
/// Percentiles of the dark objects, and of the bright end without outliers.
const DARK: f64 = 1.0;
const BRIGHT: f64 = 95.0;
/// Percentile that exceeds the median unless the bright end is saturated, as in overexposed stacks and masks.
const BRIGHTEST: f64 = 99.5;
/// Maximum range from the median to the bright end, relative to that from the median to the dark end. In stacks of
/// fluorescence, it is above 1, in phase contrast about 0.5.
const MAX_RATIO: f64 = 0.2;

/// Returns a note if most values of a slice are close to its brightest ones, and the others far below: those of dark objects on
/// a bright background. Values that are not finite do not count.
pub(crate) fn bright_background_note(values: &[f32]) -> Option<Message> {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    if sorted.len() < MIN_VALUES {
        return None;
    }
    let at = |percent: f64| sorted.get((percent / 100.0 * (sorted.len() - 1) as f64) as usize).copied().map(f64::from);
    let (dark, median, bright, brightest) = (at(DARK)?, at(50.0)?, at(BRIGHT)?, at(BRIGHTEST)?);
    (brightest > median && bright - median < MAX_RATIO * (median - dark)).then(|| {
        message!(
            "the objects may be dark on a bright background: most values of the middle slice are close to the highest ones; a \
             model of bright objects, such as fluorescent nuclei, finds the gaps between them instead (add the step invert in \
             {PREPROCESS})"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of 16 levels, and in every fourth row of 60 voxels an object that differs by `contrast`.
    fn slice(contrast: f32) -> Vec<f32> {
        let noise = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 28) as f32;
        let object = |i: usize| if (i / 60).is_multiple_of(4) { contrast } else { 0.0 };
        (0..6000).map(|i| 1000.0 + noise(i) + object(i)).collect()
    }

    #[test]
    fn dark_objects_are_distinguished_from_bright_ones_and_from_none() {
        let noted = bright_background_note(&slice(-400.0)).map(|note| note.to_string()).unwrap_or_default();
        assert!(noted.contains("dark on a bright background") && noted.contains("invert in --preprocess"), "{noted}");
        let with_nan: Vec<f32> = [f32::NAN; 4000].into_iter().chain(slice(-400.0)).collect();
        assert!(bright_background_note(&with_nan).is_some());
        // Overexposed objects that cover most of the slice, and a mask of them.
        let overexposed: Vec<f32> = slice(-400.0).iter().map(|value| value.min(1000.0)).collect();
        let mask: Vec<f32> = slice(-400.0).iter().map(|value| if *value < 1000.0 { 0.0 } else { 255.0 }).collect();
        for values in [slice(400.0), slice(0.0), overexposed, mask, vec![5.0; 6000], vec![f32::NAN; 6000], Vec::new()] {
            assert_eq!(bright_background_note(&values), None);
        }
    }
}

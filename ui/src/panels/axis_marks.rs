//! Marks of the axes of plots. By default, only marks at powers of 10 have a label where the others are close to each other: on
//! an axis from 0 to 0.9, only 0.

use eframe::egui::emath::format_with_decimals_in_range;
use egui_plot::{GridInput, GridMark};
use std::ops::RangeInclusive;

/// Maximum number of distances between the marks of a vertical axis.
const MOST_Y: f64 = 6.0;

/// The same of an axis of about 100 points, where the labels of more marks would not fit below each other.
const MOST_LOW_Y: f64 = 3.0;

/// Maximum number of distances between the marks of a horizontal axis, whose labels are beside each other.
const MOST_X: f64 = 4.0;

/// The distance with one digit of 1, 2 or 5 that is not smaller than `rough`.
pub(crate) fn round_distance(rough: f64) -> f64 {
    let decade = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|d| *d >= rough).unwrap_or(rough)
}

/// Marks of a horizontal axis.
pub(crate) fn x_marks(input: GridInput) -> Vec<GridMark> {
    marks(input, MOST_X, 0.0)
}

/// Marks of a vertical axis.
pub(crate) fn y_marks(input: GridInput) -> Vec<GridMark> {
    marks(input, MOST_Y, 0.0)
}

/// Marks of a low vertical axis.
pub(crate) fn low_y_marks(input: GridInput) -> Vec<GridMark> {
    marks(input, MOST_LOW_Y, 0.0)
}

/// Marks of a vertical axis of numbers of objects.
pub(crate) fn count_marks(input: GridInput) -> Vec<GridMark> {
    marks(input, MOST_Y, 1.0)
}

/// The number at a mark of an axis, with as many decimals as the distance of the marks. By default, marks that are 0.05 apart have
/// one decimal, and those that are 0.5 apart have none.
pub(crate) fn mark_text(mark: GridMark, _range: &RangeInclusive<f64>) -> String {
    // The small number is more than the rounding error of the logarithm.
    let decimals = (-(mark.step_size.log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize;
    format_with_decimals_in_range(mark.value, decimals..=decimals)
}

/// At most `most` distances between marks at round values, which are at least `least` apart.
fn marks(input: GridInput, most: f64, least: f64) -> Vec<GridMark> {
    let (low, high) = input.bounds;
    let distance = round_distance((high - low) / most).max(least);
    if !distance.is_normal() {
        return Vec::new();
    }
    let (first, last) = ((low / distance).ceil() as i64, (high / distance).floor() as i64);
    let marks = (first..=last).take(most as usize + 1);
    marks.map(|i| GridMark { value: i as f64 * distance, step_size: distance }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number_text::short_number;

    fn shown(marks: fn(GridInput) -> Vec<GridMark>, low: f64, high: f64) -> Vec<String> {
        let marks = marks(GridInput { bounds: (low, high), base_step_size: 0.01 });
        marks.iter().map(|mark| short_number(mark.value)).collect()
    }

    #[test]
    fn axes_have_several_round_marks() {
        assert_eq!(shown(y_marks, -0.05, 1.05), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(shown(y_marks, -0.01, 0.93), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(shown(y_marks, -0.1, 2.2), ["0", "0.5", "1", "1.5", "2"]);
        assert_eq!(shown(y_marks, 930.0, 980.0), ["930", "940", "950", "960", "970", "980"]);
        assert_eq!(shown(x_marks, -10.0, 1450.0), ["0", "500", "1000"]);
        assert_eq!(shown(low_y_marks, 0.654, 0.712), ["0.66", "0.68", "0.7"]);
        assert_eq!(shown(low_y_marks, -4.0, 88.0), ["0", "50"]);
        assert!(shown(y_marks, 1.0, 1.0).is_empty() && shown(y_marks, 0.0, f64::INFINITY).is_empty());
    }

    #[test]
    fn numbers_at_marks_have_the_decimals_of_their_distance() {
        let texts = |low, high| -> Vec<String> {
            let marks = y_marks(GridInput { bounds: (low, high), base_step_size: 0.01 });
            marks.into_iter().map(|mark| mark_text(mark, &(low..=high))).collect()
        };
        assert_eq!(texts(0.84, 1.01), ["0.85", "0.90", "0.95", "1.00"]);
        assert_eq!(texts(-0.1, 2.2), ["0.0", "0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(texts(-0.05, 1.05), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(930.0, 980.0), ["930", "940", "950", "960", "970", "980"]);
        assert_eq!(texts(0.0, 0.005), ["0.000", "0.001", "0.002", "0.003", "0.004", "0.005"]);
    }

    #[test]
    fn marks_of_numbers_of_objects_are_integers() {
        assert_eq!(shown(count_marks, 0.0, 2.1), ["0", "1", "2"]);
        assert_eq!(shown(count_marks, 0.0, 14.7), ["0", "5", "10"]);
    }
}

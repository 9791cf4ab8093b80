//! Scale bars of round length.

use crate::number_text::short_number;

/// Allowed lengths, times powers of ten.
const ROUND: [f64; 3] = [1.0, 2.0, 5.0];

/// The longest round length in µm that takes at most `max_points` points; `None` without a valid scale.
pub fn length_um(points_per_um: f64, max_points: f64) -> Option<f64> {
    if !points_per_um.is_finite() || points_per_um <= 0.0 {
        return None;
    }
    let longest = max_points / points_per_um;
    let power = 10f64.powf(longest.log10().floor());
    ROUND.iter().map(|r| r * power).rfind(|l| *l <= longest * (1.0 + 1e-9))
}

/// Formats a length with a suitable unit.
pub fn text(um: f64) -> String {
    if um >= 1000.0 {
        format!("{} mm", short_number(um / 1000.0))
    } else if um < 1.0 {
        format!("{} nm", short_number(um * 1000.0))
    } else {
        format!("{} µm", short_number(um))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn bars_are_round_and_fit() {
        for points_per_um in [0.003, 0.01, 0.7, 3.0, 10.0, 444.0] {
            let um = length_um(points_per_um, 120.0).unwrap();
            let points = um * points_per_um;
            assert!((48.0 - 1e-6..=120.0 + 1e-6).contains(&points), "{points_per_um}: {um} µm take {points}");
        }
        assert_eq!(length_um(10.0, 100.0), Some(10.0));
        assert_eq!((text(0.5), text(20.0), text(5000.0)), ("500 nm".into(), "20 µm".into(), "5 mm".into()));
        assert_eq!(length_um(f64::NAN, 100.0), None);
    }
}

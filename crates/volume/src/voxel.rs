//! Physical voxel sizes.

use crate::number_text;
use serde::{Deserialize, Serialize};

/// Smallest plausible voxel size in µm: 1 nm, finer than volume electron microscopy of cells (2 to 10 nm).
pub const MIN_PLAUSIBLE_UM: f64 = 1e-3;
/// Largest plausible voxel size in µm: 1 mm, coarser than any microscope (light-sheet slices: 0.1 mm).
pub const MAX_PLAUSIBLE_UM: f64 = 1e3;
/// Largest plausible ratio of the voxel sizes along two axes; serial sections reach 50.
pub const MAX_PLAUSIBLE_RATIO: f64 = 1e3;

/// Voxel sizes of light microscopes in µm. A unit is proposed if it brings an implausible number into this range.
const TYPICAL_UM: std::ops::RangeInclusive<f64> = 0.02..=50.0;
/// Units and their length in µm, in the order in which they are tried.
const UNITS: [(&str, f64); 6] = [
    ("meters", 1e6),
    ("millimeters", 1e3),
    ("nanometers", 1e-3),
    ("ångström", 1e-4),
    ("centimeters", 1e4),
    ("inches", 25_400.0),
];

/// Voxel size in µm along Z, Y, X; `None` if the file does not state it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct VoxelSize {
    /// Distance between slices in µm.
    pub z: Option<f64>,
    /// Distance between rows in µm.
    pub y: Option<f64>,
    /// Distance between columns in µm.
    pub x: Option<f64>,
}

/// Why a voxel size is implausible, or a text is not a voxel size. Files with an implausible size can be opened and shown,
/// but operations that depend on it are refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImplausibleVoxelSize {
    /// A text other than three positive sizes.
    #[error("invalid voxel size \"{text}\": expected three positive sizes Z,Y,X in µm, such as 1.0,0.3,0.3")]
    NotThreeSizes {
        /// Text that was given as the voxel size.
        text: String,
    },
    /// A size that is zero, negative or not finite.
    #[error(
        "the voxel size along {axis} is {} µm; a positive number was expected; give the size in µm", number_text(*.um)
    )]
    NotALength {
        /// Z, Y or X.
        axis: char,
        /// The size in µm.
        um: f64,
    },
    /// A size outside [`MIN_PLAUSIBLE_UM`] to [`MAX_PLAUSIBLE_UM`].
    #[error(
        "the voxel size along {axis} is {} µm; {MIN_PLAUSIBLE_UM} to {MAX_PLAUSIBLE_UM} µm was expected{}; \
         give the size in µm", number_text(*.um), unit_hint(.likely)
    )]
    OutOfRange {
        /// Z, Y or X.
        axis: char,
        /// The size in µm.
        um: f64,
        /// The unit that the number probably has, and the resulting size in µm.
        likely: Option<(&'static str, f64)>,
    },
    /// Sizes that differ by more than [`MAX_PLAUSIBLE_RATIO`].
    #[error(
        "the voxel size is {long_um} µm along {long_axis} and {short_um} µm along {short_axis}, a ratio of more than \
        {MAX_PLAUSIBLE_RATIO}; one of them is probably in another unit; give both in µm"
    )]
    Ratio {
        /// Axis of the larger size.
        long_axis: char,
        /// The larger size in µm.
        long_um: f64,
        /// Axis of the smaller size.
        short_axis: char,
        /// The smaller size in µm.
        short_um: f64,
    },
}

impl ImplausibleVoxelSize {
    /// Returns what to do next, which is the end of the message; `None` if the message ends with what was expected.
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::NotThreeSizes { .. } => None,
            Self::NotALength { .. } | Self::OutOfRange { .. } => Some("give the size in µm"),
            Self::Ratio { .. } => Some("give both in µm"),
        }
    }
}

fn unit_hint(likely: &Option<(&'static str, f64)>) -> String {
    likely.map_or_else(String::new, |(unit, um)| format!("; the number is probably in {unit}, i.e. {um} µm"))
}

/// The unit that turns a number into a typical voxel size, and that size in µm, rounded to four digits.
fn likely_unit(um: f64) -> Option<(&'static str, f64)> {
    let found = UNITS.iter().map(|(unit, factor)| (*unit, um * factor)).find(|(_, size)| TYPICAL_UM.contains(size))?;
    Some((found.0, format!("{:.3e}", found.1).parse().unwrap_or(found.1)))
}

impl VoxelSize {
    /// Creates a voxel size in µm that is known along all axes.
    pub fn new_um(z: f64, y: f64, x: f64) -> Self {
        Self { z: Some(z), y: Some(y), x: Some(x) }
    }

    /// Parses `Z,Y,X` as three positive sizes in µm; whether they are plausible is not checked.
    ///
    /// # Errors
    /// [`ImplausibleVoxelSize::NotThreeSizes`] for any other text.
    pub fn parse_zyx_um(text: &str) -> Result<[f64; 3], ImplausibleVoxelSize> {
        let parts: Result<Vec<f64>, _> = text.split(',').map(|p| p.trim().parse()).collect();
        match parts.as_deref() {
            Ok([z, y, x]) if [z, y, x].iter().all(|v| v.is_finite() && **v > 0.0) => Ok([*z, *y, *x]),
            _ => Err(ImplausibleVoxelSize::NotThreeSizes { text: text.to_owned() }),
        }
    }

    /// Whether the size is unknown along all axes.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// The sizes along the axes where they are known, and those of `other` along the others.
    pub fn or(self, other: Self) -> Self {
        Self { z: self.z.or(other.z), y: self.y.or(other.y), x: self.x.or(other.x) }
    }

    /// The sizes `[z, y, x]` in µm, with 1 µm along axes where the size is unknown, not finite or not positive.
    pub fn zyx_um_or_one(self) -> [f64; 3] {
        [self.z, self.y, self.x].map(|s| s.filter(|v| v.is_finite() && *v > 0.0).unwrap_or(1.0))
    }

    /// The sizes `[z, y, x]` in µm if all three are known, finite and positive.
    pub fn zyx_um(self) -> Option<[f64; 3]> {
        let ok = |s: Option<f64>| s.filter(|v| v.is_finite() && *v > 0.0);
        Some([ok(self.z)?, ok(self.y)?, ok(self.x)?])
    }

    /// The sizes in an image with this number of slices: a single slice has no distance to others, so an unknown size along Z
    /// is taken as that along X.
    #[must_use]
    pub fn in_slices(self, slices: usize) -> Self {
        let is_known = self.z.is_some_and(|z| z.is_finite() && z > 0.0);
        if slices == 1 && !is_known { Self { z: self.x, ..self } } else { self }
    }

    /// Volume of one voxel in µm³; unknown sizes count as 1 µm.
    pub fn volume_um3(self) -> f64 {
        self.zyx_um_or_one().iter().product()
    }

    /// Checks that the known sizes are plausible for a microscope. Call it before a grid is computed from them.
    ///
    /// # Errors
    /// [`ImplausibleVoxelSize`] with the first implausible axis and, if one fits, the unit that was probably meant.
    pub fn check(self) -> Result<(), ImplausibleVoxelSize> {
        let known = [('Z', self.z), ('Y', self.y), ('X', self.x)];
        let known: Vec<(char, f64)> = known.into_iter().filter_map(|(axis, um)| Some((axis, um?))).collect();
        for &(axis, um) in &known {
            if !um.is_finite() || um <= 0.0 {
                return Err(ImplausibleVoxelSize::NotALength { axis, um });
            }
            if !(MIN_PLAUSIBLE_UM..=MAX_PLAUSIBLE_UM).contains(&um) {
                return Err(ImplausibleVoxelSize::OutOfRange { axis, um, likely: likely_unit(um) });
            }
        }
        let long = known.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let short = known.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        match (long, short) {
            (Some((long_axis, long_um)), Some((short_axis, short_um))) if long_um > short_um * MAX_PLAUSIBLE_RATIO => {
                Err(ImplausibleVoxelSize::Ratio { long_axis, long_um, short_axis, short_um })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn sizes_of_real_microscopes_are_plausible() {
        for [z, y, x] in
            [[0.29, 0.065, 0.065], [0.04, 0.004, 0.004], [1.75, 0.4, 0.4], [100.0, 5.0, 5.0], [2.0, 0.1, 0.1]]
        {
            VoxelSize::new_um(z, y, x).check().unwrap();
        }
        VoxelSize::default().check().unwrap();
        VoxelSize { z: None, y: Some(0.1), x: Some(0.1) }.check().unwrap();
        VoxelSize::new_um(MIN_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM, MIN_PLAUSIBLE_UM).check().unwrap();
        VoxelSize::new_um(MAX_PLAUSIBLE_UM, MAX_PLAUSIBLE_UM, MAX_PLAUSIBLE_UM).check().unwrap();
    }

    #[test]
    fn texts_are_three_positive_sizes() {
        assert_eq!(VoxelSize::parse_zyx_um("2, 0.5,0.25"), Ok([2.0, 0.5, 0.25]));
        for text in ["", "2", "2,0.5", "2,0.5,0", "2,0.5,-1", "2,0.5,nan", "2,0.5,inf", "2,0.5,a", "1,2,3,4"] {
            let error = VoxelSize::parse_zyx_um(text).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")) && error.contains("Z,Y,X in µm"), "{error}");
        }
    }

    #[test]
    fn unknown_sizes_are_taken_from_another_voxel_size() {
        let slices = VoxelSize { z: Some(3.0), ..VoxelSize::default() };
        assert_eq!(slices.or(VoxelSize::new_um(1.0, 0.5, 0.25)), VoxelSize::new_um(3.0, 0.5, 0.25));
        assert_eq!(VoxelSize::default().or(slices), slices);
    }

    #[test]
    fn a_size_that_is_unknown_along_an_axis_is_incomplete() {
        assert_eq!(VoxelSize::new_um(2.0, 0.5, 0.25).zyx_um(), Some([2.0, 0.5, 0.25]));
        for um in [None, Some(0.0), Some(f64::NAN)] {
            assert_eq!(VoxelSize { z: um, ..VoxelSize::new_um(2.0, 0.5, 0.25) }.zyx_um(), None, "{um:?}");
        }
    }

    #[test]
    fn misread_units_are_recognized() {
        let likely = |um: f64| match VoxelSize::new_um(um, um, um).check() {
            Err(ImplausibleVoxelSize::OutOfRange { axis: 'Z', likely, .. }) => likely,
            other => unreachable!("{um}: {other:?}"),
        };
        assert_eq!(likely(6.5e-7), Some(("meters", 0.65)));
        assert_eq!(likely(6.5e-5), Some(("millimeters", 0.065)));
        assert_eq!(likely(6500.0), Some(("nanometers", 6.5)));
        assert_eq!(likely(65_000.0), Some(("ångström", 6.5)));
        assert_eq!(likely(1e6), None);
        assert_eq!(likely(1e300), None);
        let text = VoxelSize::new_um(1.0, 1.0, 6.5e-7).check().unwrap_err().to_string();
        assert!(text.contains("along X is 0.00000065 µm") && text.contains("in meters, i.e. 0.65 µm"), "{text}");
        for (um, shown) in [(1e99, "along Z is 1e99 µm; 0.001 to 1000 µm"), (1e-99, "1e-99 µm"), (-1e99, "-1e99 µm;")]
        {
            let text = VoxelSize::new_um(um, 1.0, 1.0).check().unwrap_err().to_string();
            assert!(text.contains(shown) && text.len() < 200, "{text}");
        }
    }

    #[test]
    fn messages_end_with_the_next_step_that_they_state() {
        for [z, y, x] in [[0.0, 1.0, 1.0], [1e9, 1.0, 1.0], [900.0, 0.01, 0.01]] {
            let error = VoxelSize::new_um(z, y, x).check().unwrap_err();
            let step = error.next_step().unwrap();
            assert!(error.to_string().ends_with(&format!("; {step}")), "{error}");
        }
        assert_eq!(VoxelSize::parse_zyx_um("2").unwrap_err().next_step(), None);
    }

    #[test]
    fn sizes_that_are_not_positive_lengths_are_refused() {
        for um in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let checked = VoxelSize { z: None, y: Some(um), x: Some(1.0) }.check();
            assert!(matches!(checked, Err(ImplausibleVoxelSize::NotALength { axis: 'Y', .. })), "{um}");
        }
        let flat = VoxelSize::new_um(900.0, 0.5, 0.5).check();
        assert!(matches!(flat, Err(ImplausibleVoxelSize::Ratio { long_axis: 'Z', short_axis: 'Y', .. })), "{flat:?}");
    }
}

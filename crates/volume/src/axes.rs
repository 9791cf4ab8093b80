//! Named axes: T (time), Z, C (channel), Y, X, S (samples of one pixel, such as RGB).

use crate::VolumeError;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// One named axis of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Axis {
    /// Time points of a series.
    T,
    /// Slices, along the optical axis.
    Z,
    /// Channels, such as stains.
    C,
    /// Rows of a slice.
    Y,
    /// Columns of a slice.
    X,
    /// Samples of one pixel, interleaved (RGB).
    S,
}

impl Axis {
    /// Every axis in the canonical order T, Z, C, Y, X, S.
    pub const CANONICAL: [Axis; 6] = [Axis::T, Axis::Z, Axis::C, Axis::Y, Axis::X, Axis::S];

    /// Returns the axis of an upper- or lower-case letter.
    pub fn from_letter(letter: char) -> Option<Axis> {
        Some(match letter.to_ascii_uppercase() {
            'T' => Axis::T,
            'Z' => Axis::Z,
            'C' => Axis::C,
            'Y' => Axis::Y,
            'X' => Axis::X,
            'S' => Axis::S,
            _ => return None,
        })
    }

    /// The axis as an upper-case letter.
    pub fn letter(self) -> char {
        match self {
            Axis::T => 'T',
            Axis::Z => 'Z',
            Axis::C => 'C',
            Axis::Y => 'Y',
            Axis::X => 'X',
            Axis::S => 'S',
        }
    }
}

/// An ordered list of distinct axes, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Axes(Vec<Axis>);

impl Axes {
    /// Creates a list of axes, outermost first.
    ///
    /// # Errors
    /// [`VolumeError::BadAxes`] if an axis occurs twice.
    pub fn new(axes: Vec<Axis>) -> Result<Self, VolumeError> {
        for (i, axis) in axes.iter().enumerate() {
            if axes[..i].contains(axis) {
                return Err(VolumeError::BadAxes { text: axes.iter().map(|a| a.letter()).collect() });
            }
        }
        Ok(Self(axes))
    }

    /// Returns all axes in the canonical order T, Z, C, Y, X, S.
    pub fn canonical() -> Self {
        Self(Axis::CANONICAL.to_vec())
    }

    /// Returns the axes Z, Y, X of a single volume.
    pub fn zyx() -> Self {
        Self(vec![Axis::Z, Axis::Y, Axis::X])
    }

    /// Returns the axes, outermost first.
    pub fn as_slice(&self) -> &[Axis] {
        &self.0
    }

    /// Returns the number of axes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Index of an axis in the list; the outermost axis has index 0.
    pub fn position(&self, axis: Axis) -> Option<usize> {
        self.0.iter().position(|a| *a == axis)
    }

    /// Whether the list contains an axis.
    pub fn contains(&self, axis: Axis) -> bool {
        self.0.contains(&axis)
    }

    /// Iterates over the axes, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = Axis> + '_ {
        self.0.iter().copied()
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|a| write!(f, "{}", a.letter()))
    }
}

impl FromStr for Axes {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let bad = || VolumeError::BadAxes { text: text.to_owned() };
        let axes: Option<Vec<Axis>> = text.chars().map(Axis::from_letter).collect();
        Axes::new(axes.ok_or_else(bad)?).map_err(|_| bad())
    }
}

impl TryFrom<String> for Axes {
    type Error = VolumeError;

    fn try_from(text: String) -> Result<Self, VolumeError> {
        text.parse()
    }
}

impl From<Axes> for String {
    fn from(axes: Axes) -> String {
        axes.to_string()
    }
}

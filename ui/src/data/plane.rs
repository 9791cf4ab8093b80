//! One flat cut through a stack, and where it lies.

use cytoscope_volume::{DType, Element, Samples, with_samples};
use std::ops::Range;

/// How a cut lies in the stack; rows run down, columns to the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Orientation {
    /// Rows are Y, columns X: the slice a microscope takes.
    Xy,
    /// Rows are Z, columns X.
    Xz,
    /// Rows are Y, columns Z.
    Zy,
}

impl Orientation {
    /// Every one, as the window lists them.
    pub const ALL: [Orientation; 3] = [Orientation::Xy, Orientation::Zy, Orientation::Xz];

    /// Index among Z, Y, X of the axis that the cut stands on, of its rows, and of its columns.
    pub fn axes(self) -> [usize; 3] {
        match self {
            Orientation::Xy => [0, 1, 2],
            Orientation::Xz => [1, 0, 2],
            Orientation::Zy => [2, 1, 0],
        }
    }

    /// Rows and columns of a full-size cut through a stack.
    pub fn cut(self, zyx: [usize; 3]) -> [usize; 2] {
        let [_, rows, columns] = self.axes();
        [zyx[rows], zyx[columns]]
    }

    /// Where a row and column of a cut are in the slice as arrays with axes Z, Y, X give it, the first axis that is left in rows: one across
    /// X comes as rows of Z, and its view has rows of Y.
    pub fn place_in_slice(self, zyx: [usize; 3], row: usize, column: usize) -> usize {
        let [rows, columns] = self.cut(zyx);
        match self {
            Orientation::Zy => column * rows + row,
            Orientation::Xy | Orientation::Xz => row * columns + column,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Orientation::Xy => "XY",
            Orientation::Xz => "XZ",
            Orientation::Zy => "YZ",
        }
    }

    /// The letter of the axis that scrolling moves along.
    pub fn scrolls(self) -> &'static str {
        ["Z", "Y", "X"][self.axes()[0]]
    }
}

/// A cut, or a window of one, with every `step`-th row and column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneAt {
    /// How it lies.
    pub orientation: Orientation,
    /// Its place along the axis it stands on.
    pub index: usize,
    /// Channel; the samples of a colour pixel count as channels.
    pub channel: usize,
    /// Time point.
    pub time: usize,
    /// Rows of the full-size cut that it covers.
    pub rows: Range<usize>,
    /// Columns that it covers.
    pub columns: Range<usize>,
    /// Full-size rows and columns a pixel stands for.
    pub step: usize,
}

impl PlaneAt {
    /// Pixels down and across.
    pub fn size(&self) -> [usize; 2] {
        [self.rows.len().div_ceil(self.step.max(1)), self.columns.len().div_ceil(self.step.max(1))]
    }
}

/// Values of a cut: intensities as stored where that is 8 or 16 bits without sign, as 32-bit float otherwise; labels whole.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 8-bit intensities.
    U8(Vec<u8>),
    /// 16-bit intensities.
    U16(Vec<u16>),
    /// Other intensities.
    F32(Vec<f32>),
    /// Labels; 0 is background.
    Labels(Vec<u32>),
}

impl Values {
    /// None of the kind that samples are shown as.
    pub fn empty(dtype: DType, labels: bool) -> Self {
        match dtype {
            _ if labels => Values::Labels(Vec::new()),
            DType::U8 => Values::U8(Vec::new()),
            DType::U16 => Values::U16(Vec::new()),
            _ => Values::F32(Vec::new()),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Values::U8(v) => v.len(),
            Values::U16(v) => v.len(),
            Values::F32(v) => v.len(),
            Values::Labels(v) => v.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    pub fn get(&self, i: usize) -> Option<f64> {
        match self {
            Values::U8(v) => v.get(i).map(|v| f64::from(*v)),
            Values::U16(v) => v.get(i).map(|v| f64::from(*v)),
            Values::F32(v) => v.get(i).map(|v| f64::from(*v)),
            Values::Labels(v) => v.get(i).map(|v| f64::from(*v)),
        }
    }

    /// Appends samples, thinned to every `step`-th row and column of `size`: means for intensities, first values for labels.
    pub fn append(&mut self, samples: &Samples, size: [usize; 2], step: usize) {
        with_samples!(samples, v => self.append_typed(v, size, step));
    }

    fn append_typed<E: Element>(&mut self, v: &[E], [rows, columns]: [usize; 2], step: usize) {
        let row = |r: usize, c: usize, n: usize| {
            let end = (c + n).min(columns);
            v.get(r * columns + c..r * columns + end).unwrap_or_default()
        };
        if let Values::Labels(out) = self {
            for r in (0..rows).step_by(step) {
                out.extend(row(r, 0, columns).iter().step_by(step).map(|v| v.to_f64() as u32));
            }
            return;
        }
        let mean = |r: usize, c: usize| {
            let (mut sum, mut n) = (0.0, 0usize);
            for rr in r..(r + step).min(rows) {
                let part = row(rr, c, step);
                sum += part.iter().map(|v| v.to_f64()).sum::<f64>();
                n += part.len();
            }
            sum / n.max(1) as f64
        };
        for r in (0..rows).step_by(step) {
            match self {
                Values::U8(out) if step == 1 => out.extend(row(r, 0, columns).iter().map(|v| v.to_f64() as u8)),
                Values::U16(out) if step == 1 => out.extend(row(r, 0, columns).iter().map(|v| v.to_f64() as u16)),
                Values::F32(out) if step == 1 => out.extend(row(r, 0, columns).iter().map(|v| v.to_f32())),
                Values::U8(out) => out.extend((0..columns).step_by(step).map(|c| mean(r, c).round() as u8)),
                Values::U16(out) => out.extend((0..columns).step_by(step).map(|c| mean(r, c).round() as u16)),
                Values::F32(out) => out.extend((0..columns).step_by(step).map(|c| mean(r, c) as f32)),
                Values::Labels(_) => {}
            }
        }
    }

    /// Cut or filled with zeros to a length.
    pub fn resize(&mut self, len: usize) {
        match self {
            Values::U8(v) => v.resize(len, 0),
            Values::U16(v) => v.resize(len, 0),
            Values::F32(v) => v.resize(len, 0.0),
            Values::Labels(v) => v.resize(len, 0),
        }
    }
}

/// A cut that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Plane {
    /// Where it lies.
    pub at: PlaneAt,
    /// Pixels down and across.
    pub size: [usize; 2],
    /// `size[0] * size[1]` values, row by row.
    pub values: Values,
}

impl Plane {
    /// The value at a full-size row and column, if the cut covers it.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        if !self.at.rows.contains(&row) || !self.at.columns.contains(&column) {
            return None;
        }
        let step = self.at.step.max(1);
        let (r, c) = ((row - self.at.rows.start) / step, (column - self.at.columns.start) / step);
        self.values.get(r * self.size[1] + c)
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.values.len()
            * match self.values {
                Values::U8(_) => 1,
                Values::U16(_) => 2,
                Values::F32(_) | Values::Labels(_) => 4,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intensities_are_averaged_and_labels_are_not() {
        let samples = Samples::U16(vec![0, 2, 10, 4, 6, 20, 1, 1, 9]);
        let mut mean = Values::empty(DType::U16, false);
        mean.append(&samples, [3, 3], 2);
        assert_eq!(mean, Values::U16(vec![3, 15, 1, 9]));
        let mut labels = Values::empty(DType::U16, true);
        labels.append(&samples, [3, 3], 2);
        assert_eq!(labels, Values::Labels(vec![0, 10, 1, 9]));
        let mut whole = Values::empty(DType::I16, false);
        whole.append(&Samples::I16(vec![-3, 4]), [1, 2], 1);
        assert_eq!(whole, Values::F32(vec![-3.0, 4.0]));
    }
}

//! A 2-D slice of a stack, and its position.

use cytoscope_volume::{DType, Element, Samples, with_samples};
use std::ops::Range;

/// Orientation of a slice. Rows run down, columns to the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Orientation {
    /// Rows are Y, columns X: the acquired slice.
    Xy,
    /// Rows are Z, columns X.
    Xz,
    /// Rows are Y, columns Z.
    Zy,
}

impl Orientation {
    /// All orientations, in the order of the window.
    pub const ALL: [Orientation; 3] = [Orientation::Xy, Orientation::Zy, Orientation::Xz];

    /// Indices (0 = Z, 1 = Y, 2 = X) of the axis perpendicular to the slice, of its rows and of its columns.
    pub fn axes(self) -> [usize; 3] {
        match self {
            Orientation::Xy => [0, 1, 2],
            Orientation::Xz => [1, 0, 2],
            Orientation::Zy => [2, 1, 0],
        }
    }

    /// Rows and columns of a full-resolution slice of a stack of Z, Y, X voxels.
    pub fn slice_shape(self, zyx: [usize; 3]) -> [usize; 2] {
        let [_, rows, columns] = self.axes();
        [zyx[rows], zyx[columns]]
    }

    /// Index of a row and column in the flat slice of an array with axes Z, Y, X, whose rows run along the first
    /// remaining axis. A YZ slice is therefore stored with rows along Z, while its view has rows along Y.
    pub fn index_in_slice(self, zyx: [usize; 3], row: usize, column: usize) -> usize {
        let [rows, columns] = self.slice_shape(zyx);
        match self {
            Orientation::Zy => column * rows + row,
            Orientation::Xy | Orientation::Xz => row * columns + column,
        }
    }

    /// Name of the slice plane.
    pub fn name(self) -> &'static str {
        match self {
            Orientation::Xy => "XY",
            Orientation::Xz => "XZ",
            Orientation::Zy => "YZ",
        }
    }

    /// Letter of the axis that scrolling moves along.
    pub fn scroll_axis(self) -> &'static str {
        ["Z", "Y", "X"][self.axes()[0]]
    }
}

/// A slice, or a region of one, at full or reduced resolution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlaneAt {
    /// Which two axes are rows and columns.
    pub orientation: Orientation,
    /// Index along the perpendicular axis.
    pub index: usize,
    /// Channel; the samples of an RGB pixel count as channels.
    pub channel: usize,
    /// Time point, counted from 0.
    pub time: usize,
    /// Rows of the full-resolution slice that are covered.
    pub rows: Range<usize>,
    /// Columns of the full-resolution slice that are covered.
    pub columns: Range<usize>,
    /// Full-resolution slices, rows and columns per pixel. Several slices are shown by the one at `index`, or by their mean if
    /// the file has a level with it.
    pub steps: [usize; 3],
}

impl PlaneAt {
    /// A whole slice of a stack of Z, Y, X voxels at full resolution, of the first channel and time point.
    pub fn whole(orientation: Orientation, index: usize, zyx: [usize; 3]) -> Self {
        let [rows, columns] = orientation.slice_shape(zyx);
        Self { orientation, index, channel: 0, time: 0, rows: 0..rows, columns: 0..columns, steps: [1; 3] }
    }

    /// Full-resolution rows and columns per pixel, at least one.
    pub fn pixel_size(&self) -> [usize; 2] {
        let [_, rows, columns] = self.steps;
        [rows.max(1), columns.max(1)]
    }

    /// Height and width in pixels.
    pub fn size(&self) -> [usize; 2] {
        let [rows, columns] = self.pixel_size();
        [self.rows.len().div_ceil(rows), self.columns.len().div_ceil(columns)]
    }
}

/// Values of a slice. Unsigned 8- and 16-bit intensities keep their type, others become 32-bit floats; labels are
/// integers.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 8-bit intensities.
    U8(Vec<u8>),
    /// 16-bit intensities.
    U16(Vec<u16>),
    /// Intensities of all other types, as 32-bit floats.
    F32(Vec<f32>),
    /// Labels; 0 is background.
    Labels(Vec<u32>),
}

impl Values {
    /// Empty values of the type that samples of `dtype` are converted to for display.
    pub fn empty(dtype: DType, labels: bool) -> Self {
        match dtype {
            _ if labels => Values::Labels(Vec::new()),
            DType::U8 => Values::U8(Vec::new()),
            DType::U16 => Values::U16(Vec::new()),
            _ => Values::F32(Vec::new()),
        }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Values::U8(v) => v.len(),
            Values::U16(v) => v.len(),
            Values::F32(v) => v.len(),
            Values::Labels(v) => v.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any value is neither NaN nor infinite.
    pub fn has_finite(&self) -> bool {
        match self {
            Values::F32(v) => v.iter().any(|value| value.is_finite()),
            Values::U8(_) | Values::U16(_) | Values::Labels(_) => !self.is_empty(),
        }
    }

    /// The value at an index.
    pub fn get(&self, i: usize) -> Option<f64> {
        match self {
            Values::U8(v) => v.get(i).map(|v| f64::from(*v)),
            Values::U16(v) => v.get(i).map(|v| f64::from(*v)),
            Values::F32(v) => v.get(i).map(|v| f64::from(*v)),
            Values::Labels(v) => v.get(i).map(|v| f64::from(*v)),
        }
    }

    /// Appends samples of shape `size` (rows, columns), of which each block of `steps` rows and columns becomes a value:
    /// intensities by the mean, labels by the first value. A shape that is smaller than `wanted` is first extended by its last
    /// row and column.
    pub fn append(&mut self, samples: &Samples, size: [usize; 2], wanted: [usize; 2], steps: [usize; 2]) {
        with_samples!(samples, v => {
            if size == wanted {
                self.append_typed(v, size, steps);
            } else {
                self.append_typed(&extended(v, size, wanted), wanted, steps);
            }
        });
    }

    fn append_typed<E: Element>(&mut self, v: &[E], [rows, columns]: [usize; 2], steps: [usize; 2]) {
        let [row_step, column_step] = steps.map(|step| step.max(1));
        let row = |r: usize, c: usize, n: usize| {
            let end = (c + n).min(columns);
            v.get(r * columns + c..r * columns + end).unwrap_or_default()
        };
        if let Values::Labels(out) = self {
            for r in (0..rows).step_by(row_step) {
                out.extend(row(r, 0, columns).iter().step_by(column_step).map(|v| v.to_f64() as u32));
            }
            return;
        }
        let mean = |r: usize, c: usize| {
            let (mut sum, mut n) = (0.0, 0usize);
            for rr in r..(r + row_step).min(rows) {
                let part = row(rr, c, column_step);
                sum += part.iter().map(|v| v.to_f64()).sum::<f64>();
                n += part.len();
            }
            sum / n.max(1) as f64
        };
        let whole = row_step == 1 && column_step == 1;
        for r in (0..rows).step_by(row_step) {
            let columns_of_pixels = (0..columns).step_by(column_step);
            match self {
                Values::U8(out) if whole => out.extend(row(r, 0, columns).iter().map(|v| v.to_f64() as u8)),
                Values::U16(out) if whole => out.extend(row(r, 0, columns).iter().map(|v| v.to_f64() as u16)),
                Values::F32(out) if whole => out.extend(row(r, 0, columns).iter().map(|v| v.to_f32())),
                Values::U8(out) => out.extend(columns_of_pixels.map(|c| mean(r, c).round() as u8)),
                Values::U16(out) => out.extend(columns_of_pixels.map(|c| mean(r, c).round() as u16)),
                Values::F32(out) => out.extend(columns_of_pixels.map(|c| mean(r, c) as f32)),
                Values::Labels(_) => {}
            }
        }
    }

    /// Truncates or zero-pads to a length.
    pub fn resize(&mut self, len: usize) {
        match self {
            Values::U8(v) => v.resize(len, 0),
            Values::U16(v) => v.resize(len, 0),
            Values::F32(v) => v.resize(len, 0.0),
            Values::Labels(v) => v.resize(len, 0),
        }
    }
}

/// Samples of shape `size` (rows, columns) cut or extended to the shape `wanted`; the last row and column are repeated.
fn extended<E: Element>(v: &[E], [rows, columns]: [usize; 2], wanted: [usize; 2]) -> Vec<E> {
    let mut out = Vec::with_capacity(wanted[0] * wanted[1]);
    for r in 0..wanted[0] {
        let start = r.min(rows.saturating_sub(1)) * columns;
        let row = v.get(start..start + columns).unwrap_or_default();
        let Some(last) = row.last() else { continue };
        out.extend((0..wanted[1]).map(|c| *row.get(c).unwrap_or(last)));
    }
    out
}

/// A slice that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Plane {
    /// Position of the plane in its stack, and its region.
    pub at: PlaneAt,
    /// Height and width in pixels.
    pub size: [usize; 2],
    /// `size[0] * size[1]` values, row by row.
    pub values: Values,
}

impl Plane {
    /// The value at a full-resolution row and column, if the plane covers it.
    pub fn value(&self, row: usize, column: usize) -> Option<f64> {
        if !self.at.rows.contains(&row) || !self.at.columns.contains(&column) {
            return None;
        }
        let [rows, columns] = self.at.pixel_size();
        let (r, c) = ((row - self.at.rows.start) / rows, (column - self.at.columns.start) / columns);
        self.values.get(r * self.size[1] + c)
    }

    /// Size of the values in bytes.
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
        mean.append(&samples, [3, 3], [3, 3], [2, 2]);
        assert_eq!(mean, Values::U16(vec![3, 15, 1, 9]));
        let mut labels = Values::empty(DType::U16, true);
        labels.append(&samples, [3, 3], [3, 3], [2, 2]);
        assert_eq!(labels, Values::Labels(vec![0, 10, 1, 9]));
        let mut whole = Values::empty(DType::I16, false);
        whole.append(&Samples::I16(vec![-3, 4]), [1, 2], [1, 2], [1, 1]);
        assert_eq!(whole, Values::F32(vec![-3.0, 4.0]));
        let mut rows_only = Values::empty(DType::U16, false);
        rows_only.append(&samples, [3, 3], [3, 3], [2, 1]);
        assert_eq!(rows_only, Values::U16(vec![2, 4, 15, 1, 1, 9]));
    }

    #[test]
    fn rows_that_a_level_lacks_repeat_the_last_one() {
        let samples = Samples::U16(vec![1, 2, 3, 4]);
        let mut values = Values::empty(DType::U16, false);
        values.append(&samples, [2, 2], [3, 3], [1, 1]);
        assert_eq!(values, Values::U16(vec![1, 2, 2, 3, 4, 4, 3, 4, 4]));
    }
}

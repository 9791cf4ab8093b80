//! Arrays in files of the private folder, read slice by slice while they may still be written.

use super::LiveRegion;
use bytemuck::Pod;
use cytoscope_pipeline::JobError;
use cytoscope_volume::{Axis, element_count};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes read at once for a slice that crosses all planes.
const READ_BYTES: usize = 8 << 20;

/// A prediction in progress ([`super::Reply::Live`]): 32-bit floats, axes C, Z, Y, X.
///
/// Values that are not finished yet are 0. Each read returns the current contents of the file.
#[derive(Debug)]
pub struct LiveArray(RawArray);

/// Labels in the private folder ([`cytoscope_pipeline::LabelFormat::RawU32`]): 32-bit numbers, axes Z, Y, X.
#[derive(Debug)]
pub struct LabelArray(RawArray);

impl LiveArray {
    /// Opens the file of an array with `channels` and shape Z, Y, X.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be opened or does not have the size of such an array.
    pub fn open(path: &Path, channels: usize, shape_zyx: [usize; 3]) -> Result<Self, JobError> {
        RawArray::open(path, channels, shape_zyx).map(Self)
    }

    /// Returns the shape Z, Y, X.
    pub fn shape_zyx(&self) -> [usize; 3] {
        self.0.shape
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> usize {
        self.0.channels
    }

    /// Reads one slice perpendicular to Z, Y or X: its values along the other two axes, in the order Z, Y, X.
    ///
    /// # Errors
    /// [`JobError`] for another axis, a slice or channel that does not exist, or a file that cannot be read.
    pub fn slice(&self, axis: Axis, index: usize, channel: usize) -> Result<Vec<f32>, JobError> {
        let mut values = self.0.slice::<f32>(axis, index, channel)?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|v| *v = f32::from_bits(v.to_bits().swap_bytes()));
        }
        Ok(values)
    }

    /// Reads the values of a region, axes Z, Y, X.
    ///
    /// # Errors
    /// Same as [`LiveArray::slice`].
    pub fn region(&self, region: LiveRegion, channel: usize) -> Result<Vec<f32>, JobError> {
        let mut values = self.0.region::<f32>(region, channel)?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|v| *v = f32::from_bits(v.to_bits().swap_bytes()));
        }
        Ok(values)
    }
}

impl LabelArray {
    /// Opens the file of labels of shape Z, Y, X.
    ///
    /// # Errors
    /// Same as [`LiveArray::open`].
    pub fn open(path: &Path, shape_zyx: [usize; 3]) -> Result<Self, JobError> {
        RawArray::open(path, 1, shape_zyx).map(Self)
    }

    /// Returns the shape Z, Y, X.
    pub fn shape_zyx(&self) -> [usize; 3] {
        self.0.shape
    }

    /// Reads one slice perpendicular to Z, Y or X: its labels along the other two axes, in the order Z, Y, X.
    ///
    /// # Errors
    /// Same as [`LiveArray::slice`].
    pub fn slice(&self, axis: Axis, index: usize) -> Result<Vec<u32>, JobError> {
        let mut values = self.0.slice::<u32>(axis, index, 0)?;
        values.iter_mut().for_each(|v| *v = u32::from_le(*v));
        Ok(values)
    }

    /// Reads the labels of a region, axes Z, Y, X.
    ///
    /// # Errors
    /// Same as [`LiveArray::slice`].
    pub fn region(&self, region: LiveRegion) -> Result<Vec<u32>, JobError> {
        let mut values = self.0.region::<u32>(region, 0)?;
        values.iter_mut().for_each(|v| *v = u32::from_le(*v));
        Ok(values)
    }
}

/// Four-byte values, axes C, Z, Y, X.
#[derive(Debug)]
struct RawArray {
    file: File,
    path: PathBuf,
    channels: usize,
    shape: [usize; 3],
}

impl RawArray {
    fn open(path: &Path, channels: usize, shape: [usize; 3]) -> Result<Self, JobError> {
        let [z, y, x] = shape;
        let expected = element_count(&[channels, z, y, x, 4])? as u64;
        let io = |error| JobError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes != expected {
            return Err(JobError::Mismatch {
                path: path.to_owned(),
                problem: format!("it has {bytes} bytes, but {channels} × {z} × {y} × {x} values need {expected}")
                    .into(),
                next_step: "open it with the shape that the worker reported".into(),
            });
        }
        Ok(Self { file, path: path.to_owned(), channels, shape })
    }

    fn out_of_range(&self, problem: String) -> JobError {
        let [z, y, x] = self.shape;
        JobError::Mismatch {
            path: self.path.clone(),
            problem: problem.into(),
            next_step: format!("the array has {} channels of {z} × {y} × {x}", self.channels).into(),
        }
    }

    fn slice<T: Pod>(&self, axis: Axis, index: usize, channel: usize) -> Result<Vec<T>, JobError> {
        let normal = match axis {
            Axis::Z => 0,
            Axis::Y => 1,
            Axis::X => 2,
            other => return Err(self.out_of_range(format!("a slice perpendicular to {other:?} was requested"))),
        };
        let mut region = LiveRegion { start_zyx: [0; 3], size_zyx: self.shape };
        (region.start_zyx[normal], region.size_zyx[normal]) = (index, 1);
        self.region(region, channel)
    }

    fn region<T: Pod>(&self, region: LiveRegion, channel: usize) -> Result<Vec<T>, JobError> {
        let LiveRegion { start_zyx: start, size_zyx: size } = region;
        let fits = (0..3).all(|a| start[a].checked_add(size[a]).is_some_and(|end| end <= self.shape[a]));
        if !fits || channel >= self.channels {
            return Err(
                self.out_of_range(format!("{size:?} voxels from {start:?} of channel {channel} were requested"))
            );
        }
        let [depth, ny, nx] = self.shape;
        let at = |z: usize, y: usize, x: usize| ((channel * depth + z) * ny + y) * nx + x;
        let mut values = vec![T::zeroed(); size.iter().product()];
        if values.is_empty() {
            return Ok(values);
        }
        if size[2] == nx && size[1] == ny {
            self.read(at(start[0], 0, 0), &mut values)?;
        } else if size[2] == nx {
            for (z, plane) in values.chunks_exact_mut(size[1] * nx).enumerate() {
                self.read(at(start[0] + z, start[1], 0), plane)?;
            }
        } else if size[2] * 8 >= nx {
            for (row, run) in values.chunks_exact_mut(size[2]).enumerate() {
                self.read(at(start[0] + row / size[1], start[1] + row % size[1], start[2]), run)?;
            }
        } else {
            // For a few columns, reading whole rows in few calls is faster than one call per row.
            let rows_at_once = (READ_BYTES / (4 * nx)).clamp(1, size[1]);
            let mut rows = vec![T::zeroed(); rows_at_once * nx];
            for (z, plane) in values.chunks_exact_mut(size[1] * size[2]).enumerate() {
                for (i, part) in plane.chunks_mut(rows_at_once * size[2]).enumerate() {
                    let count = part.len() / size[2];
                    let rows = rows.get_mut(..count * nx).unwrap_or_default();
                    self.read(at(start[0] + z, start[1] + i * rows_at_once, 0), rows)?;
                    for (to, row) in part.chunks_exact_mut(size[2]).zip(rows.chunks_exact(nx)) {
                        to.copy_from_slice(&row[start[2]..start[2] + size[2]]);
                    }
                }
            }
        }
        Ok(values)
    }

    /// Reads values, starting with number `first`.
    fn read<T: Pod>(&self, first: usize, values: &mut [T]) -> Result<(), JobError> {
        read_at(&self.file, first as u64 * 4, bytemuck::cast_slice_mut(values))
            .map_err(|error| JobError::Io { path: self.path.clone(), error })
    }
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut at: u64, mut bytes: &mut [u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => {
                bytes = &mut bytes[n..];
                at += n as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn slices_and_regions_return_the_written_values() {
        let (channels, shape) = (2, [3, 5, 40]);
        let value = |c: usize, z: usize, y: usize, x: usize| (c * 1000 + z * 300 + y * 50 + x) as f32;
        let mut bytes = Vec::new();
        for c in 0..channels {
            for z in 0..shape[0] {
                for y in 0..shape[1] {
                    (0..shape[2]).for_each(|x| bytes.extend(value(c, z, y, x).to_le_bytes()));
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.f32");
        std::fs::write(&path, &bytes).unwrap();
        let array = LiveArray::open(&path, channels, shape).unwrap();
        for c in 0..channels {
            let z: Vec<f32> = (0..5).flat_map(|y| (0..40).map(move |x| value(c, 2, y, x))).collect();
            assert_eq!(array.slice(Axis::Z, 2, c).unwrap(), z);
            let y: Vec<f32> = (0..3).flat_map(|z| (0..40).map(move |x| value(c, z, 4, x))).collect();
            assert_eq!(array.slice(Axis::Y, 4, c).unwrap(), y);
            let x: Vec<f32> = (0..3).flat_map(|z| (0..5).map(move |y| value(c, z, y, 39))).collect();
            assert_eq!(array.slice(Axis::X, 39, c).unwrap(), x);
            for width in [2, 20] {
                let region = LiveRegion { start_zyx: [1, 2, 7], size_zyx: [2, 3, width] };
                let expected: Vec<f32> = (1..3)
                    .flat_map(|z| (2..5).flat_map(move |y| (7..7 + width).map(move |x| value(c, z, y, x))))
                    .collect();
                assert_eq!(array.region(region, c).unwrap(), expected);
            }
        }
        for (axis, index, channel) in [(Axis::Z, 3, 0), (Axis::X, 40, 0), (Axis::Z, 0, 2), (Axis::C, 0, 0)] {
            assert!(array.slice(axis, index, channel).is_err(), "{axis:?} {index} {channel}");
        }
        let past = LiveRegion { start_zyx: [0, 0, usize::MAX], size_zyx: [1, 1, 2] };
        assert!(array.region(past, 0).is_err());
        assert!(LiveArray::open(&path, 1, shape).is_err());
        assert!(LiveArray::open(&path, usize::MAX, shape).is_err());
        assert!(LabelArray::open(&folder.path().join("none"), shape).is_err());
    }
}

//! Loading and saving label images, part by part.

use crate::chunks::{CHUNK_ZYX, Chunk, ChunkGrid, LabelSnapshot};
use crate::geometry::{Plane, SliceAxis};
use crate::limits::{self, Limits};
use crate::{CorrectionError, LabelVolume};
use cytoscope_formats::{
    Channel, Compression, Container, FormatError, Image, OpenOptions, StackWriter, WriteSpec, open,
};
use cytoscope_volume::{Array, Axes, Axis, DType, Element, Region, Samples, element_count, with_samples};
use std::ops::ControlFlow;
use std::path::Path;

/// Approximate size of the slabs in which an image is read, in bytes.
const PART_BYTES: usize = 64 << 20;

/// Which volume of a file to load, and limits.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Index of the image, if the file holds several.
    pub series: usize,
    /// Index of the channel; required if there are several.
    pub channel: Option<usize>,
    /// Index of the time point; required if there are several.
    pub time: Option<usize>,
    /// Limits on the size of the labels.
    pub limits: Limits,
}

/// Progress callback of a load or a save: number of finished parts and of all parts. Returning `Break` cancels.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>;

impl LabelVolume {
    /// Loads a label image: integers of any type (or floats with integer values), axes Z, Y, X.
    ///
    /// # Errors
    /// [`CorrectionError::Format`] if the file cannot be read, [`CorrectionError::NotLabels`] if a value is negative,
    /// fractional or above 32 bits, or the axes do not match, [`CorrectionError::TooLarge`] if a limit is exceeded.
    pub fn load(path: &Path, options: &LoadOptions) -> Result<Self, CorrectionError> {
        Self::load_with(path, options, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Like [`LabelVolume::load`], with a progress callback.
    ///
    /// # Errors
    /// Same as [`LabelVolume::load`]; [`CorrectionError::Canceled`] if `progress` breaks.
    pub fn load_with(path: &Path, options: &LoadOptions, progress: Progress) -> Result<Self, CorrectionError> {
        let open_options = OpenOptions { series: options.series, ..OpenOptions::default() };
        let image = open(path, &open_options)?;
        let stack = Stack::of(&image, options.channel, options.time)?;
        let grid = ChunkGrid::new(stack.shape_zyx)?;
        let voxels = element_count(&stack.shape_zyx).map_or(u64::MAX, |n| n as u64);
        let next_step = "crop the image, or split it";
        limits::check("the number of voxels", voxels, "max_voxels", options.limits.max_voxels, next_step)?;
        let mut labels = LabelSnapshot::empty(grid, image.meta().voxel_size_um);
        let [nz, ny, nx] = stack.shape_zyx;
        // A part consists of whole rows of chunks, as many along Y as fit.
        let row_bytes = CHUNK_ZYX[0].min(nz) * CHUNK_ZYX[1].min(ny) * nx * image.meta().dtype.size_bytes();
        let rows = (PART_BYTES / row_bytes.max(1)).max(1) * CHUNK_ZYX[1];
        let parts = nz.div_ceil(CHUNK_ZYX[0]) * ny.div_ceil(rows);
        let mut stored = 0u64;
        let mut done = 0;
        for z in (0..nz).step_by(CHUNK_ZYX[0]) {
            for y in (0..ny).step_by(rows) {
                if progress(done, parts).is_break() {
                    return Err(CorrectionError::Canceled);
                }
                let start = [z, y, 0];
                let end = [(z + CHUNK_ZYX[0]).min(nz), (y + rows).min(ny), nx];
                let part = crate::BoundsZyx { start, end };
                let values = stack.read(&image, part.start, part.size())?;
                let values = to_labels(path, values, part.start, part.size())?;
                for chunk in grid.overlapping(&part) {
                    let own = grid.bounds(chunk);
                    let row = |(z, y): (usize, usize)| {
                        let at = ((z - start[0]) * part.size()[1] + y - start[1]) * nx;
                        values.get(at + own.start[2]..at + own.end[2]).unwrap_or_default()
                    };
                    let own_values: Vec<u32> = own.rows().flat_map(row).copied().collect();
                    let expected = grid.chunk_voxels(chunk);
                    if own_values.len() != expected {
                        let problem = format!("{} of {expected} voxels were read at {start:?}", own_values.len());
                        return Err(CorrectionError::NotLabels {
                            file: path.to_owned(),
                            problem,
                            next_step: "read it again",
                        });
                    }
                    let new_chunk = Chunk::from_values(&own_values);
                    stored += new_chunk.stored_bytes();
                    limits::check_stored_bytes(stored, &options.limits, next_step)?;
                    if let Some(slot) = labels.chunks.get_mut(chunk) {
                        *slot = new_chunk;
                    }
                }
                done += 1;
            }
        }
        Self::from_snapshot(labels, &options.limits)
    }
}

impl LabelSnapshot {
    /// Writes a label image: `uint16` as ImageJ TIFF if the labels fit, otherwise `uint32` as OME-TIFF, with a display
    /// range so that labels are not displayed black. The file is replaced atomically.
    ///
    /// # Errors
    /// [`CorrectionError::Format`] if it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), CorrectionError> {
        self.save_with(path, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Like [`LabelSnapshot::save`], with a progress callback.
    ///
    /// # Errors
    /// Same as [`LabelSnapshot::save`]; [`CorrectionError::Canceled`] if `progress` breaks, in which case no file is left.
    pub fn save_with(&self, path: &Path, progress: Progress) -> Result<(), CorrectionError> {
        Ok(self.write_slices(path, progress)?.finish()?)
    }

    /// Writes all slices and returns the writer; the file appears at `path` when the writer is finished.
    pub(crate) fn write_slices(&self, path: &Path, progress: Progress) -> Result<StackWriter, CorrectionError> {
        let max_label = self.max_label();
        let narrow = max_label <= u32::from(u16::MAX);
        let (container, dtype) =
            if narrow { (Container::ImageJ, DType::U16) } else { (Container::OmeTiff, DType::U32) };
        let [nz, ny, nx] = self.shape_zyx();
        let mut spec = WriteSpec::new(container, Axes::zyx(), vec![nz, ny, nx], dtype);
        spec.voxel_size_um = self.voxel_size_um();
        spec.channels = vec![Channel { name: "labels".to_owned(), color_rgb: None }];
        spec.display_range = Some((0.0, f64::from(max_label.max(1))));
        spec.compression = if narrow { Compression::None } else { Compression::Deflate };
        let mut writer = StackWriter::create(path, &spec)?;
        for z in 0..nz {
            if progress(z, nz).is_break() {
                return Err(CorrectionError::Canceled);
            }
            let values = self.read(&Plane::new(SliceAxis::Z, z).bounds(self.shape_zyx())?)?;
            let samples = if narrow {
                Samples::U16(values.into_iter().map(|v| v as u16).collect())
            } else {
                Samples::U32(values)
            };
            writer.write(&plane(path, ny, nx, samples)?)?;
        }
        Ok(writer)
    }
}

/// Converts the samples of one slice to an array with axes Y, X.
pub(crate) fn plane(path: &Path, ny: usize, nx: usize, samples: Samples) -> Result<Array, CorrectionError> {
    let yx = Axes::new(vec![Axis::Y, Axis::X]).unwrap_or_default();
    Array::new(yx, vec![ny, nx], samples).map_err(|e| {
        FormatError::Misused {
            file: path.to_owned(),
            problem: e.to_string(),
            next_step: "give slices of the same size and type".into(),
        }
        .into()
    })
}

/// One channel and time point of an image, as a volume.
pub(crate) struct Stack {
    /// Number of voxels along Z, Y, X.
    pub shape_zyx: [usize; 3],
    time: usize,
    channel: usize,
}

impl Stack {
    /// # Errors
    /// [`CorrectionError::NotLabels`] if the channel or time point does not exist, or is not given although there are
    /// several, and for RGB images.
    pub fn of(image: &Image, channel: Option<usize>, time: Option<usize>) -> Result<Self, CorrectionError> {
        let meta = image.meta();
        let full: [usize; 6] = meta.shape_full.as_slice().try_into().unwrap_or([0; 6]);
        let [times, nz, channels, ny, nx, samples] = full;
        let refuse =
            |problem: String, next_step| CorrectionError::NotLabels { file: meta.path.clone(), problem, next_step };
        if samples != 1 {
            let problem = format!("it has {samples} samples per pixel (colors)");
            return Err(refuse(problem, "expected one value per voxel: save it without colors"));
        }
        let choose = |what: &str, asked: Option<usize>, count: usize, next_step: &'static str| match asked {
            Some(i) if i < count => Ok(i),
            Some(i) => Err(refuse(format!("there is no {what} {i}: it has {count}"), next_step)),
            None if count == 1 => Ok(0),
            None => Err(refuse(format!("it has {count} {what}s"), next_step)),
        };
        let channel = choose("channel", channel, channels, "choose one of its channels, counted from 0")?;
        let time = choose("time point", time, times, "choose one of its time points, counted from 0")?;
        Ok(Self { shape_zyx: [nz, ny, nx], time, channel })
    }

    /// Reads a box in C order.
    pub fn read(&self, image: &Image, start: [usize; 3], size: [usize; 3]) -> Result<Samples, CorrectionError> {
        let region = Region {
            start: vec![self.time, start[0], self.channel, start[1], start[2], 0],
            size: vec![1, size[0], 1, size[1], size[2], 1],
        };
        Ok(image.read(0, &region)?.into_samples())
    }
}

/// Converts samples to labels; an error for values that are not exact 32-bit labels.
fn to_labels(path: &Path, samples: Samples, start: [usize; 3], size: [usize; 3]) -> Result<Vec<u32>, CorrectionError> {
    fn from_integers<T: Copy + TryInto<u32> + std::fmt::Display>(values: &[T]) -> Result<Vec<u32>, (usize, String)> {
        values.iter().enumerate().map(|(i, v)| (*v).try_into().map_err(|_| (i, v.to_string()))).collect()
    }
    fn from_floats<E: Element>(values: &[E]) -> Result<Vec<u32>, (usize, String)> {
        let one = |(i, v): (usize, &E)| {
            let v = v.to_f64();
            let fits = v.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&v);
            if fits { Ok(v as u32) } else { Err((i, v.to_string())) }
        };
        values.iter().enumerate().map(one).collect()
    }
    let labels = match samples {
        Samples::U32(values) => Ok(values),
        Samples::U8(v) => from_integers(&v),
        Samples::U16(v) => from_integers(&v),
        Samples::U64(v) => from_integers(&v),
        Samples::I8(v) => from_integers(&v),
        Samples::I16(v) => from_integers(&v),
        Samples::I32(v) => from_integers(&v),
        Samples::I64(v) => from_integers(&v),
        floats => with_samples!(&floats, v => from_floats(v)),
    };
    labels.map_err(|(i, value)| {
        let [_, ny, nx] = size;
        let at = [start[0] + i / (ny * nx), start[1] + i / nx % ny, start[2] + i % nx];
        CorrectionError::NotLabels {
            file: path.to_owned(),
            problem: format!("the value {value} at Z, Y, X = {at:?} is not a label"),
            next_step: "expected whole numbers from 0 to 4294967295; check that this is the label image",
        }
    })
}

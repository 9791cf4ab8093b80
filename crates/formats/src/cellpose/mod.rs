//! Cellpose's `_seg.npy`: a pickled dictionary, from which only the masks are read.

mod numpy;

use crate::{
    dense::Dense,
    error::{Fault, FormatError},
    file_format::FileFormat,
    meta::{ByteOrder, Channel},
    npy,
    opening::OpenOptions,
    read_ahead::ReadAhead,
    reader::{Opened, Pixels},
    source::Source,
};
use cytoscope_pickle::{Pickle, Value};
use cytoscope_storage::npy as header;
use cytoscope_volume::{Region, Samples};
use numpy::ArrayValue;
use std::path::Path;

/// Opens the masks of a `_seg.npy` file. The pickle is read without executing anything and may name NumPy arrays only;
/// other arrays of the file (outlines, flows) are skipped.
pub(crate) fn open(source: Source, head: &[u8], options: &OpenOptions) -> Result<Opened, Fault> {
    let prefix = header::prefix(head)?;
    let pickle = numpy::read(&source, (prefix.header_at + prefix.header_bytes) as u64)?;
    let masks = masks(&pickle)?;
    let layout = layout(&pickle, &masks)?;
    let (shape_full, dtype, order) = (layout.shape_full, layout.dtype, layout.order);
    let pixels = Masks { source, layout, ahead: ReadAhead::default() };
    let mut opened = Opened::new(FileFormat::Cellpose, shape_full, dtype, Box::new(pixels));
    opened.byte_order = order;
    opened.channels = vec![Channel { name: "masks".to_owned(), color_rgb: None }];
    opened.with_options(options)
}

/// The array `masks` of the dictionary that the file contains.
fn masks(pickle: &Pickle) -> Result<ArrayValue, Fault> {
    let other = || {
        Fault::unsupported(
            "its Python objects are not a segmentation of Cellpose (a dictionary with masks)",
            "save a plain array of numbers",
        )
    };
    let object = numpy::array(pickle, pickle.root())?.ok_or_else(other)?;
    let Value::List(objects) = pickle.value(object.data) else { return Err(other()) };
    let [object] = objects.as_slice() else { return Err(other()) };
    let masks = pickle.entry(*object, "masks").ok_or_else(other)?;
    numpy::array(pickle, masks)?.ok_or_else(other)
}

/// Type and positions of the masks.
fn layout(pickle: &Pickle, masks: &ArrayValue) -> Result<Dense, Fault> {
    let dtype = header::SampleType::from_code(&masks.code).map(npy::dtype_for).filter(|d| !d.is_float());
    let dtype = dtype.ok_or_else(|| {
        Fault::unsupported(format!("its masks have the sample type {:?}", masks.code), "save them as integers")
    })?;
    let ([z, y, x], [z_stride, y_stride, x_stride]) = match (masks.shape.as_slice(), masks.strides.as_slice()) {
        (&[y, x], &[y_stride, x_stride]) => ([1, y, x], [0, y_stride, x_stride]),
        (&[z, y, x], &[z_stride, y_stride, x_stride]) => ([z, y, x], [z_stride, y_stride, x_stride]),
        _ => {
            return Err(Fault::unsupported(
                format!("its masks have the shape {:?}", masks.shape),
                "save masks with the axes YX or ZYX",
            ));
        }
    };
    let Value::Bytes(samples) = pickle.value(masks.data) else {
        return Err(Fault::malformed("its masks have no samples"));
    };
    let stored = samples.end.saturating_sub(samples.start);
    let layout = Dense {
        order: if masks.big_endian { ByteOrder::Big } else { ByteOrder::Little },
        dtype,
        data_at: samples.start,
        shape_full: [1, z, 1, y, x, 1],
        strides: [0, z_stride, 0, y_stride, x_stride, 1],
    };
    if layout.data_bytes() != Some(stored) {
        return Err(Fault::malformed(format!("masks of shape {:?} do not fit {stored} bytes", masks.shape)));
    }
    Ok(layout)
}

/// The masks of an open file.
#[derive(Debug)]
struct Masks {
    source: Source,
    layout: Dense,
    ahead: ReadAhead,
}

impl Pixels for Masks {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.ahead.read(&self.layout, &self.source, region).map_err(|f| f.at(path))
    }

    fn cache_bytes(&self) -> u64 {
        self.ahead.held_bytes(&self.layout)
    }

    fn limit_cache(&self, bytes: u64) {
        self.ahead.limit(bytes);
    }

    fn is_label_image(&self) -> bool {
        true
    }
}

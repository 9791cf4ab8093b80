//! MRC of electron microscopy (`.mrc`, `.map`, `.rec`, `.st`): a header of 1024 bytes, an extended header, and samples in slices.
//!
//! Format: <https://www.ccpem.ac.uk/mrc-format/mrc2014/>. Rows are in the order of the file, which begins at the bottom.

use crate::{
    dense::Dense,
    error::{Fault, FormatError},
    fields::Fields,
    file_format::FileFormat,
    meta::{ByteOrder, positive},
    opening::OpenOptions,
    reader::{Opened, Pixels, check_shape},
    source::Source,
};
use cytoscope_volume::{DType, Region, Samples, VoxelSize};
use std::path::Path;

/// Length of the header in bytes.
const HEADER_BYTES: usize = 1024;
/// Position and bytes of the signature, whose fourth byte is a space or zero.
const MAP_AT: usize = 208;
const MAP: &[u8] = b"MAP";
/// Position of the machine stamp, and its first byte in big-endian files.
const STAMP_AT: usize = 212;
const BIG: u8 = 0x11;
/// Position of IMOD's stamp, the stamp, and the flag after it that bytes are signed.
const IMOD_AT: usize = 152;
const IMOD: u32 = 1_146_047_817;
const SIGNED_BYTES: u32 = 1;
/// Mode of colors: three unsigned bytes for each voxel.
const RGB_MODE: i32 = 16;
/// Space groups of stacks of volumes.
const VOLUME_STACKS: std::ops::RangeInclusive<i32> = 401..=630;
const ANGSTROMS_PER_UM: f64 = 1e4;
/// Advice for files that are not supported.
const EXPORT: &str = "export it as 8- or 16-bit integers or 32-bit floats, for example with IMOD's newstack";

/// Whether the first bytes of a file are those of an MRC file.
pub(crate) fn looks_like_mrc(head: &[u8]) -> bool {
    head.get(MAP_AT..).is_some_and(|rest| rest.starts_with(MAP))
        && order(head).is_some_and(|order| mode(&Fields { bytes: head, order }).is_ok())
}

/// The byte order, by the machine stamp, or else by the mode, which is a small number.
fn order(head: &[u8]) -> Option<ByteOrder> {
    let is_plausible = |order: &ByteOrder| {
        let mode = Fields { bytes: head, order: *order }.i32(12);
        mode.is_ok_and(|mode| (0..1000).contains(&mode))
    };
    let orders = if head.get(STAMP_AT) == Some(&BIG) {
        [ByteOrder::Big, ByteOrder::Little]
    } else {
        [ByteOrder::Little, ByteOrder::Big]
    };
    orders.into_iter().find(is_plausible)
}

fn mode(fields: &Fields<'_>) -> Result<i32, Fault> {
    fields.i32(12)
}

/// Opens an MRC file. Only the header is read.
pub(crate) fn open(source: Source, options: &OpenOptions) -> Result<Opened, Fault> {
    let head = source.read_vec(0, HEADER_BYTES)?;
    let order = order(&head).ok_or_else(|| Fault::malformed("the MRC header states no known mode"))?;
    let fields = Fields { bytes: &head, order };
    let dtype = sample_type(&fields)?;
    let layout = layout(&fields, dtype)?;
    check_shape(&layout.shape_full, dtype, &options.limits)?;
    let needed = layout.data_bytes().ok_or_else(|| Fault::malformed("the MRC image is too large"))?;
    if !source.holds(layout.data_at, needed) {
        let stored = source.len().saturating_sub(layout.data_at);
        return Err(Fault::malformed(format!("its header declares {needed} bytes of samples, but {stored} follow it")));
    }
    let voxel_size_um = voxel_size_um(&fields)?;
    let mut opened = Opened::new(FileFormat::Mrc, layout.shape_full, dtype, Box::new(Mrc { source, layout }));
    opened.byte_order = order;
    opened.voxel_size_um = voxel_size_um;
    opened.with_options(options)
}

fn sample_type(fields: &Fields<'_>) -> Result<DType, Fault> {
    Ok(match mode(fields)? {
        // Programs other than IMOD write signed bytes.
        0 if fields.u32(IMOD_AT)? == IMOD && fields.u32(IMOD_AT + 4)? & SIGNED_BYTES == 0 => DType::U8,
        0 => DType::I8,
        1 => DType::I16,
        2 => DType::F32,
        6 => DType::U16,
        12 => DType::F16,
        RGB_MODE => DType::U8,
        3 | 4 => return Err(Fault::unsupported("its samples are complex numbers", EXPORT)),
        other => return Err(Fault::unsupported(format!("its samples have the mode {other}"), EXPORT)),
    })
}

/// A number of the header that counts something.
fn count(fields: &Fields<'_>, at: usize, what: &str) -> Result<usize, Fault> {
    let number = fields.i32(at)?;
    usize::try_from(number).map_err(|_| Fault::malformed(format!("the MRC header states {number} {what}")))
}

/// The positions of the samples: columns, rows and slices, the fastest first; and volumes.
fn layout(fields: &Fields<'_>, dtype: DType) -> Result<Dense, Fault> {
    let [nx, ny, nz] = [count(fields, 0, "columns")?, count(fields, 4, "rows")?, count(fields, 8, "slices")?];
    let extended = count(fields, 92, "bytes of the extended header")?;
    let depth = count(fields, 36, "intervals along Z")?;
    let is_stack = VOLUME_STACKS.contains(&fields.i32(88)?) && depth > 0 && nz % depth == 0;
    let (volumes, slices) = if is_stack { (nz / depth, depth) } else { (1, nz) };
    let too_large = || Fault::malformed("the MRC image is too large");
    let colors = if mode(fields)? == RGB_MODE { 3 } else { 1 };
    let plane = nx.checked_mul(ny).and_then(|plane| plane.checked_mul(colors)).ok_or_else(too_large)?;
    let row = nx.saturating_mul(colors);
    let volume = plane.checked_mul(slices).ok_or_else(too_large)?;
    Ok(Dense {
        order: fields.order,
        dtype,
        data_at: HEADER_BYTES as u64 + extended as u64,
        shape_full: [volumes, slices, 1, ny, nx, colors],
        strides: [volume, plane, 0, row, colors, 1],
    })
}

/// The size of a cell in Å, divided by its number of intervals. Columns, rows and slices are along the axes that the header maps
/// them to. A size of 1 Å along all axes, which no image of cells has, stands for none.
fn voxel_size_um(fields: &Fields<'_>) -> Result<VoxelSize, Fault> {
    let along = |axis: usize| -> Result<Option<f64>, Fault> {
        let (intervals, length) = (fields.i32(28 + 4 * axis)?, f64::from(fields.f32(40 + 4 * axis)?));
        Ok(positive(length / f64::from(intervals)))
    };
    let mapped = [fields.i32(64)?, fields.i32(68)?, fields.i32(72)?];
    let mut sorted = mapped;
    sorted.sort_unstable();
    let axes = if sorted == [1, 2, 3] { mapped.map(|axis| axis.unsigned_abs() as usize - 1) } else { [0, 1, 2] };
    // A stack of images has one interval along Z: its slices have no distance.
    let has_distance = fields.i32(36)? > 1 || fields.i32(8)? <= 1;
    let [x, y, z] = axes;
    let (x, y, z) = (along(x)?, along(y)?, along(z)?.filter(|_| has_distance));
    if [x, y, z.or(x)] == [Some(1.0); 3] {
        return Ok(VoxelSize::default());
    }
    let um = |angstroms: Option<f64>| angstroms.and_then(|length| positive(length / ANGSTROMS_PER_UM));
    Ok(VoxelSize { z: um(z), y: um(y), x: um(x) })
}

/// An open image.
#[derive(Debug)]
struct Mrc {
    source: Source,
    layout: Dense,
}

impl Pixels for Mrc {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.layout.read(&self.source, region).map_err(|fault| fault.at(path))
    }
}

//! The `.roi` format, after ImageJ's `RoiDecoder`: <https://imagej.net/ij/developer/source/ij/io/RoiDecoder.java.html>.

use super::{MAGIC, limits::PointBudget};
use crate::{error::Fault, fields::Fields};

/// A closed outline: points x, y in pixels, where pixel 0 reaches from 0 to 1.
pub(super) type Loop = Vec<[f64; 2]>;

/// An area with its position in the stack.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Roi {
    /// Name of the entry in a ROI set, or else the name in the file.
    pub name: String,
    /// Outlines; an outline inside another one is a hole.
    pub loops: Vec<Loop>,
    /// Slice, counted from 1; 0 if the area belongs to all slices.
    pub z: usize,
    /// Time point, counted from 1; 0 if the area belongs to all of them.
    pub t: usize,
}

/// Length of each of the two headers in bytes.
const HEADER: usize = 64;
/// Largest coordinate of a point in pixels.
const MAX_COORDINATE: f64 = 1_048_576.0;
/// Largest slice or time point.
const MAX_POSITION: i32 = 1 << 21;
/// Largest number of characters of a name that are read.
const MAX_NAME_CHARS: usize = 4096;
/// Largest number of points of one outline that is made from an oval or a curve.
const MAX_CURVE_POINTS: f64 = 4096.0;

impl Roi {
    /// Height and width of the smallest image that contains the area.
    pub fn extent(&self) -> [usize; 2] {
        let last = |i: usize| {
            let values = self.loops.iter().flatten().filter_map(|p| p.get(i));
            values.fold(0.0f64, |m, v| m.max(*v)).ceil() as usize
        };
        [last(1), last(0)]
    }

    /// Whether no pixel of a stack of these extents can be inside the area: it lies after the last slice, or beside the slices.
    pub fn is_outside(&self, [depth, height, width]: [usize; 3]) -> bool {
        let points = || self.loops.iter().flatten();
        let beside = |i: usize, extent: usize| {
            points().all(|point| point[i] <= 0.0) || points().all(|point| point[i] >= extent as f64)
        };
        self.z > depth || beside(0, width) || beside(1, height)
    }

    /// Smallest and largest coordinate along X (0) or Y (1); infinite and reversed if there are no points.
    fn span(&self, axis: usize) -> [f64; 2] {
        let values = self.loops.iter().flatten().filter_map(|p| p.get(axis));
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(*v), high.max(*v)])
    }

    /// Number of crossings of the outlines with the centers of rows, and of rows between them: the work of drawing the
    /// area once. At least 1.
    pub fn crossings(&self) -> f64 {
        let height = |points: &Loop| -> f64 {
            let next = points.iter().skip(1).chain(points.first());
            points.iter().zip(next).map(|([_, a], [_, b])| (a - b).abs() + 1.0).sum()
        };
        let [top, bottom] = self.span(1);
        let rows = (bottom - top).max(0.0);
        self.loops.iter().map(height).sum::<f64>() + rows + 1.0
    }

    /// Number of pixels of a window (corner and size along Y, X) in the bounding box of the area.
    pub fn area_within(&self, corner: [usize; 2], size: [usize; 2]) -> f64 {
        let length = |axis: usize, start: usize, extent: usize| {
            let [low, high] = self.span(axis);
            let (start, end) = (start as f64, start as f64 + extent as f64);
            (high.ceil().min(end) - low.floor().max(start)).max(0.0)
        };
        length(1, corner[0], size[0]) * length(0, corner[1], size[1])
    }
}

/// Types of regions in the header.
mod kind {
    /// Straight lines between points.
    pub const POLYGON: u8 = 0;
    /// A rectangle, parallel to the axes.
    pub const RECTANGLE: u8 = 1;
    /// An ellipse that fills a rectangle; its axes are parallel to those of the image.
    pub const OVAL: u8 = 2;
    /// An outline that the user drew, or an ellipse of any orientation.
    pub const FREEHAND: u8 = 7;
    /// An outline that ImageJ's wand found.
    pub const TRACED: u8 = 8;
}

/// Parses a region; `None` if it is not an area (a line, points, an angle). `name` replaces the name in the file.
///
/// Points and outlines are counted in `budget` before they are stored.
pub(super) fn parse(bytes: &[u8], name: &str, budget: &mut PointBudget) -> Result<Option<Roi>, Fault> {
    let f = Fields::big(bytes);
    if f.slice(0, 4)? != MAGIC {
        return Err(Fault::malformed("a region does not begin with \"Iout\""));
    }
    f.slice(0, HEADER)?;
    let (version, kind) = (f.u16(4)?, f.u8(6)?);
    let subpixel = f.u16(50)? & 128 != 0;
    let composite = f.i32(36)?;
    let loops = match kind {
        _ if composite > 0 => composite_loops(&f, composite as usize, budget)?,
        kind::RECTANGLE => {
            budget.add_points(4)?;
            vec![corners(rectangle(&f, subpixel && version >= 223)?)]
        }
        kind::OVAL => {
            let [x, y, w, h] = rectangle(&f, subpixel && version >= 223)?;
            vec![ellipse([x + w / 2.0, y + h / 2.0], [w / 2.0, 0.0], [0.0, h / 2.0], budget)?]
        }
        kind::POLYGON | kind::FREEHAND | kind::TRACED => {
            vec![polygon(&f, kind, subpixel && version >= 222, budget)?]
        }
        _ => return Ok(None),
    };
    if composite <= 0 {
        budget.add_outline()?;
    }
    let sound = loops.iter().flatten().flatten().all(|v| v.is_finite() && v.abs() <= MAX_COORDINATE);
    if !sound {
        return Err(Fault::malformed("a point of a region is far outside of any image"));
    }
    let (own_name, z, t) = second_header(&f)?;
    let name = if name.is_empty() { own_name } else { name.to_owned() };
    Ok(Some(Roi { name, loops, z, t }))
}

/// A coordinate of 16 bits. They are signed, but images may be larger than 32767 pixels.
fn coordinate(f: &Fields<'_>, at: usize) -> Result<f64, Fault> {
    let value = f.i16(at)?;
    Ok(if value < -5000 { f64::from(value.cast_unsigned()) } else { f64::from(value) })
}

/// Left, top, width and height.
fn rectangle(f: &Fields<'_>, subpixel: bool) -> Result<[f64; 4], Fault> {
    if subpixel {
        return Ok([f.f32(18)?, f.f32(22)?, f.f32(26)?, f.f32(30)?].map(f64::from));
    }
    let (top, left, bottom, right) = (coordinate(f, 8)?, coordinate(f, 10)?, coordinate(f, 12)?, coordinate(f, 14)?);
    Ok([left, top, right - left, bottom - top])
}

fn corners([x, y, w, h]: [f64; 4]) -> Loop {
    vec![[x, y], [x + w, y], [x + w, y + h], [x, y + h]]
}

/// An ellipse with a center and the vectors to the ends of its half axes.
fn ellipse(center: [f64; 2], a: [f64; 2], b: [f64; 2], budget: &mut PointBudget) -> Result<Loop, Fault> {
    let size = a[0].hypot(a[1]) + b[0].hypot(b[1]);
    let count = (4.0 * size).clamp(64.0, MAX_CURVE_POINTS);
    let count = if count.is_finite() { count as usize } else { 64 };
    budget.add_points(count)?;
    let point = |i: usize| {
        let (sin, cos) = (i as f64 / count as f64 * std::f64::consts::TAU).sin_cos();
        [center[0] + a[0] * cos + b[0] * sin, center[1] + a[1] * cos + b[1] * sin]
    };
    Ok((0..count).map(point).collect())
}

fn polygon(f: &Fields<'_>, kind: u8, subpixel: bool, budget: &mut PointBudget) -> Result<Loop, Fault> {
    let count = match f.u16(16)? {
        0 if kind == kind::FREEHAND => return ellipse_on_axis(f, budget),
        0 => f.u32(18)? as usize,
        count => usize::from(count),
    };
    let size = if subpixel { 4 } else { 2 };
    let start = if subpixel { HEADER.saturating_add(count.saturating_mul(4)) } else { HEADER };
    // All points are in the file, so there are not more of them than bytes.
    let bytes = count.saturating_mul(2 * size);
    let points = Fields { bytes: f.slice(start, bytes)?, order: f.order };
    budget.add_points(count)?;
    let (top, left) = (coordinate(f, 8)?, coordinate(f, 10)?);
    (0..count)
        .map(|i| {
            let (x, y) = (i * size, (count + i) * size);
            Ok(if subpixel {
                [f64::from(points.f32(x)?), f64::from(points.f32(y)?)]
            } else {
                [left + f64::from(points.u16(x)?), top + f64::from(points.u16(y)?)]
            })
        })
        .collect()
}

/// An ellipse or rotated rectangle, which is stored as the two ends of its long axis.
fn ellipse_on_axis(f: &Fields<'_>, budget: &mut PointBudget) -> Result<Loop, Fault> {
    let [x1, y1, x2, y2, parameter] = [f.f32(18)?, f.f32(22)?, f.f32(26)?, f.f32(30)?, f.f32(52)?].map(f64::from);
    let center = [(x1 + x2) / 2.0, (y1 + y2) / 2.0];
    let along = [(x2 - x1) / 2.0, (y2 - y1) / 2.0];
    match f.u16(48)? {
        // The parameter is the ratio of the axes.
        3 => ellipse(center, along, [-along[1] * parameter, along[0] * parameter], budget),
        // The parameter is the width.
        5 => {
            budget.add_points(4)?;
            let length = along[0].hypot(along[1]);
            let half = if length > 0.0 { parameter / 2.0 / length } else { 0.0 };
            let (dx, dy) = (-along[1] * half, along[0] * half);
            Ok(vec![[x1 + dx, y1 + dy], [x2 + dx, y2 + dy], [x2 - dx, y2 - dy], [x1 - dx, y1 - dy]])
        }
        other => Err(Fault::unsupported(
            format!("a freehand region has no points (subtype {other})"),
            "convert it to a polygon in ImageJ (Edit > Selection > Make Polygon)",
        )),
    }
}

/// The outlines of a composite region: `count` floats of segments (move, line, curves, close) from the first byte after
/// the header on.
fn composite_loops(f: &Fields<'_>, count: usize, budget: &mut PointBudget) -> Result<Vec<Loop>, Fault> {
    let values = Fields { bytes: f.slice(HEADER, count.saturating_mul(4))?, order: f.order };
    let point = |i: usize| Ok::<_, Fault>([f64::from(values.f32(4 * i)?), f64::from(values.f32(4 * i + 4)?)]);
    let mut loops: Vec<Loop> = Vec::new();
    let mut at = 0;
    while at < count {
        let segment = values.f32(4 * at)?;
        let ends = at + 1;
        let last = loops.last().and_then(|l| l.last()).copied();
        let controls = match segment {
            0.0 => {
                budget.add_outline()?;
                budget.add_points(1)?;
                loops.push(vec![point(ends)?]);
                at += 3;
                continue;
            }
            1.0 => 1,
            2.0 => 2,
            3.0 => 3,
            4.0 => {
                at += 1;
                continue;
            }
            other => return Err(Fault::malformed(format!("a composite region has a segment of the type {other}"))),
        };
        let (Some(outline), Some(from)) = (loops.last_mut(), last) else {
            return Err(Fault::malformed("a composite region does not begin with a point"));
        };
        let mut points = vec![from];
        for k in 0..controls {
            points.push(point(ends + 2 * k)?);
        }
        let more = curve(&points);
        budget.add_points(more.len())?;
        outline.extend(more);
        at += 1 + 2 * controls;
    }
    Ok(loops)
}

/// Number of lines that stand for a curve.
const CURVE_STEPS: usize = 16;

/// Points of a Bézier curve after its first one; of a line, only its end.
fn curve(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let steps = if points.len() > 2 { CURVE_STEPS } else { 1 };
    let at = |t: f64| {
        let mut row = points.to_vec();
        while row.len() > 1 {
            row = row
                .windows(2)
                .map(|p| [p[0][0] + (p[1][0] - p[0][0]) * t, p[0][1] + (p[1][1] - p[0][1]) * t])
                .collect();
        }
        row.first().copied().unwrap_or_default()
    };
    (1..=steps).map(|i| at(i as f64 / steps as f64)).collect()
}

/// Name, slice and time point.
fn second_header(f: &Fields<'_>) -> Result<(String, usize, usize), Fault> {
    let stack_position = f.i32(56)?;
    let at = f.i32(60)?;
    let (mut name, mut z, mut t) = (String::new(), stack_position, 0);
    if at != 0 {
        // Without its second header, a region would be drawn in another slice, or in all.
        let is_inside = |at: &usize| *at >= HEADER && f.slice(*at, 24).is_ok();
        let at = usize::try_from(at).ok().filter(is_inside).ok_or_else(|| {
            Fault::malformed(format!("the slice and time point of a region are at byte {at}, which it does not have"))
        })?;
        let hyperstack_position = [f.i32(at + 4)?, f.i32(at + 8)?, f.i32(at + 12)?];
        if hyperstack_position != [0; 3] {
            [_, z, t] = hyperstack_position;
        }
        let (name_at, chars) = (f.i32(at + 16)?, f.i32(at + 20)?);
        if let (Ok(name_at), Ok(chars)) = (usize::try_from(name_at), usize::try_from(chars)) {
            let utf16 = f.slice(name_at, 2 * chars.min(MAX_NAME_CHARS)).unwrap_or_default();
            let units: Vec<u16> = utf16.as_chunks::<2>().0.iter().map(|b| u16::from_be_bytes(*b)).collect();
            name = String::from_utf16_lossy(&units);
        }
    }
    if !(0..=MAX_POSITION).contains(&z) || !(0..=MAX_POSITION).contains(&t) {
        return Err(Fault::malformed(format!("a region is in slice {z} at time {t}")));
    }
    Ok((name, z as usize, t as usize))
}

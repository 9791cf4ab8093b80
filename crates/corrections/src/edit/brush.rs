//! Painting and erasing with disks and balls, whose radius is in µm, along lines without gaps.

use super::DrawOver;
use crate::chunks::CHUNK_ZYX;
use crate::geometry::{BoundsZyx, SliceAxis};
use crate::limits::{self, MAX_STROKE_PIECES};
use crate::volume::LabelWriter;
use crate::{CorrectionError, LabelVolume};
use std::ops::Range;

/// Tolerance of the squared radius for rounding errors, relative: a radius of three voxels includes the third voxel.
const TOLERANCE: f64 = 1e-9;
/// Largest absolute coordinate of a point, in voxels.
const MAX_COORDINATE: f64 = 1e9;

/// Region that a brush paints around its center.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BrushShape {
    /// A disk in the slice of the stroke's first point.
    Disk(SliceAxis),
    /// A ball, which paints several slices at once; its radius is in µm.
    Ball,
}

/// A brush for painting and erasing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Brush {
    /// Whether the brush paints one slice or several.
    pub shape: BrushShape,
    /// Radius in µm. Voxels whose center is within the radius are painted; voxels on the line are always painted.
    pub radius_um: f64,
    /// The label to paint; 0 erases.
    pub value: u32,
    /// Which voxels may change. To erase only one label, use value 0 and [`DrawOver::Inside`].
    pub over: DrawOver,
}

impl Brush {
    /// Name of a step that was drawn with the brush, such as "Paint 3" or "Erase".
    pub(crate) fn name(&self) -> String {
        match (self.value, self.over) {
            (0, DrawOver::Inside(label)) => format!("Erase {label}"),
            (0, _) => "Erase".to_owned(),
            (value, _) => format!("Paint {value}"),
        }
    }

    fn check(&self) -> Result<(), CorrectionError> {
        if self.radius_um.is_finite() && self.radius_um >= 0.0 {
            return Ok(());
        }
        let got = format!("{} µm", self.radius_um);
        Err(CorrectionError::BadParameter { what: "the brush radius", got, expected: "0 µm or more" })
    }
}

/// Refuses points with coordinates that are not finite or too large.
pub(crate) fn check_points(points: &[[f64; 3]]) -> Result<(), CorrectionError> {
    match points.iter().find(|p| p.iter().any(|c| !c.is_finite() || c.abs() > MAX_COORDINATE)) {
        None => Ok(()),
        Some(p) => Err(CorrectionError::BadParameter {
            what: "a point of the line, in voxels,",
            got: format!("{p:?}"),
            expected: "finite coordinates near the volume",
        }),
    }
}

/// Paints along a polyline.
pub(crate) fn paint(writer: &mut LabelWriter, brush: &Brush, points: &[[f64; 3]]) -> Result<(), CorrectionError> {
    let Some(first) = points.first() else { return Ok(()) };
    check_points(points)?;
    segment(writer, brush, *first, *first)?;
    let points: Vec<[f64; 3]> = points.iter().map(|p| flatten(brush, *first, *p)).collect();
    points.windows(2).try_for_each(|pair| segment(writer, brush, pair[0], pair[1]))
}

/// Projects a point into the slice of a stroke that begins at `first`; for balls, the point is unchanged.
pub(crate) fn flatten(brush: &Brush, first: [f64; 3], mut point: [f64; 3]) -> [f64; 3] {
    if let BrushShape::Disk(axis) = brush.shape {
        point[axis.index()] = first[axis.index()].round();
    }
    point
}

/// Paints all voxels within the brush's radius of the line from `a` to `b`. A disk paints in the slice of `a`.
pub(crate) fn segment(
    writer: &mut LabelWriter,
    brush: &Brush,
    a: [f64; 3],
    b: [f64; 3],
) -> Result<(), CorrectionError> {
    brush.check()?;
    check_points(&[a, b])?;
    let (a, b) = (flatten(brush, a, a), flatten(brush, a, b));
    let within = drawable(writer.volume(), brush, a);
    let Some(within) = within else { return Ok(()) };
    let capsule = Capsule::new(writer.volume().voxel_size_um().zyx_um_or_one(), a, b, brush.radius_um);
    if let Some(bounds) = capsule.bounds(&within) {
        check_work(&bounds)?;
        for (z, y) in bounds.rows() {
            if let Some(xs) = capsule.row(z, y, bounds.start[2]..bounds.end[2]) {
                writer.row(z, y, xs, brush.value, |old| brush.over.allows(old));
            }
        }
    }
    line(a, b, &within, |[z, y, x]| writer.row(z, y, x..x + 1, brush.value, |old| brush.over.allows(old)));
    Ok(())
}

/// Refuses a part of a stroke whose box has too many rows, before anything is painted.
fn check_work(bounds: &BoundsZyx) -> Result<(), CorrectionError> {
    let [nz, ny, nx] = bounds.size().map(|extent| extent as u64);
    let pieces = nz.saturating_mul(ny).saturating_mul(nx.div_ceil(CHUNK_ZYX[2] as u64).saturating_add(1));
    let what = "the number of pieces of rows that the brush covers";
    limits::check(
        what,
        pieces,
        "MAX_STROKE_PIECES",
        MAX_STROKE_PIECES,
        "paint with a smaller brush, or in a single slice",
    )
}

/// The part of the volume that a stroke starting at `a` can paint.
fn drawable(volume: &LabelVolume, brush: &Brush, a: [f64; 3]) -> Option<BoundsZyx> {
    let mut within = BoundsZyx::whole(volume.shape_zyx());
    if let BrushShape::Disk(axis) = brush.shape {
        let i = axis.index();
        let at = a[i];
        if at < 0.0 || at >= within.end[i] as f64 {
            return None;
        }
        within.start[i] = at as usize;
        within.end[i] = at as usize + 1;
    }
    Some(within)
}

/// Calls `f` for the voxels on the line from `a` to `b` inside a box. Each voxel shares a face, an edge or a corner
/// with the next.
pub(crate) fn line(a: [f64; 3], b: [f64; 3], within: &BoundsZyx, mut f: impl FnMut([usize; 3])) {
    let delta = [0, 1, 2].map(|i| b[i] - a[i]);
    let steps = delta.iter().fold(0.0f64, |n, d| n.max(d.abs())).ceil().max(1.0);
    // The part of the line that is near the box.
    let (mut from, mut to) = (0.0f64, 1.0f64);
    for i in 0..3 {
        let (low, high) = (within.start[i] as f64 - 1.0, within.end[i] as f64);
        if delta[i] == 0.0 {
            if a[i] < low || a[i] > high {
                return;
            }
            continue;
        }
        let (t0, t1) = ((low - a[i]) / delta[i], (high - a[i]) / delta[i]);
        (from, to) = (from.max(t0.min(t1)), to.min(t0.max(t1)));
    }
    if from > to {
        return;
    }
    let mut k = (from * steps).floor();
    while k <= (to * steps).ceil() {
        let at = [0, 1, 2].map(|i| (a[i] + delta[i] * (k / steps)).round());
        if (0..3).all(|i| at[i] >= within.start[i] as f64 && at[i] < within.end[i] as f64) {
            f(at.map(|c| c as usize));
        }
        k += 1.0;
    }
}

/// A capsule: all points within a radius of a line segment, in µm.
struct Capsule {
    voxel_um: [f64; 3],
    a: [f64; 3],
    d: [f64; 3],
    length2: f64,
    radius_um: f64,
    limit2: f64,
}

impl Capsule {
    fn new(voxel_um: [f64; 3], a: [f64; 3], b: [f64; 3], radius_um: f64) -> Self {
        let a_um = [0, 1, 2].map(|i| a[i] * voxel_um[i]);
        let d = [0, 1, 2].map(|i| b[i] * voxel_um[i] - a_um[i]);
        let length2 = d.iter().map(|v| v * v).sum();
        Self { voxel_um, a: a_um, d, length2, radius_um, limit2: radius_um * radius_um * (1.0 + TOLERANCE) }
    }

    /// Whether a voxel's center is inside.
    fn contains_voxel(&self, zyx: [usize; 3]) -> bool {
        let q = [0, 1, 2].map(|i| zyx[i] as f64 * self.voxel_um[i] - self.a[i]);
        let dot: f64 = (0..3).map(|i| q[i] * self.d[i]).sum();
        let t = if self.length2 > 0.0 { (dot / self.length2).clamp(0.0, 1.0) } else { 0.0 };
        (0..3).map(|i| (q[i] - t * self.d[i]).powi(2)).sum::<f64>() <= self.limit2
    }

    /// A box around the capsule, clipped to `within`.
    fn bounds(&self, within: &BoundsZyx) -> Option<BoundsZyx> {
        let mut bounds = *within;
        for i in 0..3 {
            let (a, b) = (self.a[i], self.a[i] + self.d[i]);
            let low = ((a.min(b) - self.radius_um) / self.voxel_um[i]).floor() - 1.0;
            let high = ((a.max(b) + self.radius_um) / self.voxel_um[i]).ceil() + 2.0;
            // A cast from float to integer saturates.
            bounds.start[i] = bounds.start[i].max(low as usize);
            bounds.end[i] = bounds.end[i].min(high as usize);
        }
        (0..3).all(|i| bounds.start[i] < bounds.end[i]).then_some(bounds)
    }

    /// The columns of `xs` that are inside. A row intersects a capsule in one interval, whose ends are computed and
    /// then corrected with [`Capsule::contains_voxel`].
    fn row(&self, z: usize, y: usize, xs: Range<usize>) -> Option<Range<usize>> {
        let limit2 = self.limit2 * (1.0 + TOLERANCE) + f64::MIN_POSITIVE;
        let c = [z as f64 * self.voxel_um[0] - self.a[0], y as f64 * self.voxel_um[1] - self.a[1]];
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut add = |from: f64, to: f64| {
            if from <= to {
                (low, high) = (low.min(from), high.max(to));
            }
        };
        // The balls around both ends; positions along X are in µm from the first end.
        for t in [0.0, 1.0] {
            let far2 = (c[0] - t * self.d[0]).powi(2) + (c[1] - t * self.d[1]).powi(2);
            if far2 <= limit2 {
                let half = (limit2 - far2).sqrt();
                add(t * self.d[2] - half, t * self.d[2] + half);
            }
        }
        if self.length2 > 0.0 {
            // Between them: |q|² − (q·d)²/|d|² ≤ r², with q = (c, s), where 0 ≤ q·d ≤ |d|².
            let e = c[0] * self.d[0] + c[1] * self.d[1];
            let c2 = c[0] * c[0] + c[1] * c[1];
            let square = 1.0 - self.d[2] * self.d[2] / self.length2;
            let (mut from, mut to) = (f64::NEG_INFINITY, f64::INFINITY);
            if square > 1e-12 {
                let half_linear = e * self.d[2] / self.length2;
                let constant = c2 - e * e / self.length2 - limit2;
                let root2 = half_linear * half_linear - square * constant;
                if root2 >= 0.0 {
                    (from, to) = ((half_linear - root2.sqrt()) / square, (half_linear + root2.sqrt()) / square);
                } else {
                    (from, to) = (1.0, 0.0);
                }
            } else if c2 - e * e / self.length2 > limit2 {
                (from, to) = (1.0, 0.0);
            }
            if self.d[2] != 0.0 {
                let ends = [-e / self.d[2], (self.length2 - e) / self.d[2]];
                (from, to) = (from.max(ends[0].min(ends[1])), to.min(ends[0].max(ends[1])));
            } else if !(0.0..=self.length2).contains(&e) {
                (from, to) = (1.0, 0.0);
            }
            add(from, to);
        }
        if low > high {
            return None;
        }
        let column = |s: f64| (s + self.a[2]) / self.voxel_um[2];
        let mut start = xs.start.max((column(low).floor() - 1.0) as usize);
        let mut end = xs.end.min((column(high).ceil() + 2.0) as usize);
        while start < end && !self.contains_voxel([z, y, start]) {
            start += 1;
        }
        while start < end && !self.contains_voxel([z, y, end - 1]) {
            end -= 1;
        }
        (start < end).then_some(start..end)
    }
}

//! Limits on the memory and the work that regions can cause. Each is checked before the memory is allocated or the work is
//! done, because a region of a few bytes may cover a whole plane, and a zip may hold many copies of it.

use super::parse::Roi;
use crate::error::{Fault, Remedy};
use cytoscope_volume::Region;

/// Largest number of points of all outlines of a file: as many as a file of `max_metadata_bytes` can store.
const MAX_POINTS: u64 = 1 << 26;
/// Largest number of outlines of all regions of a file.
const MAX_OUTLINES: u64 = 1 << 23;
/// Largest number of crossings of the outlines of one region with the rows of the image, which are held in memory while
/// it is drawn.
const MAX_CROSSINGS_PER_REGION: f64 = 67_108_864.0;
/// Largest number of crossings of all outlines with the rows of the image: the work of drawing them once.
const MAX_CROSSINGS: f64 = 268_435_456.0;
/// Largest number of crossings in all planes of one read: regions without a position are drawn in each plane.
const MAX_CROSSINGS_PER_READ: f64 = 17_179_869_184.0;
/// Largest number of pixels in the bounding boxes of all regions in all planes of one read, unless the read has so many
/// pixels that this is at most [`MAX_COVERAGE`] times their number.
const MAX_AREA_PER_READ: f64 = 68_719_476_736.0;
/// Number of times that regions may cover all pixels of any read.
const MAX_COVERAGE: f64 = 64.0;

/// Points and outlines that the regions of a file have so far.
#[derive(Debug, Default)]
pub(super) struct PointBudget {
    points: u64,
    outlines: u64,
}

impl PointBudget {
    /// Counts further points of outlines before they are stored.
    pub fn add_points(&mut self, count: usize) -> Result<(), Fault> {
        self.points = self.points.saturating_add(count as u64);
        if self.points > MAX_POINTS {
            return Err(Fault::over(
                "the number of points of all outlines",
                self.points,
                "MAX_POINTS",
                MAX_POINTS,
                Remedy::FewerRegions,
            ));
        }
        Ok(())
    }

    /// Counts a further outline before it is stored.
    pub fn add_outline(&mut self) -> Result<(), Fault> {
        self.outlines = self.outlines.saturating_add(1);
        if self.outlines > MAX_OUTLINES {
            return Err(Fault::over(
                "the number of outlines",
                self.outlines,
                "MAX_OUTLINES",
                MAX_OUTLINES,
                Remedy::FewerRegions,
            ));
        }
        Ok(())
    }
}

/// Refuses regions whose outlines are too long to be drawn once.
pub(super) fn check_outlines(rois: &[Roi]) -> Result<(), Fault> {
    let mut total = 0.0;
    for crossings in rois.iter().map(Roi::crossings) {
        if crossings > MAX_CROSSINGS_PER_REGION {
            let (what, limit) = ("the length of the outlines of a region", MAX_CROSSINGS_PER_REGION as u64);
            return Err(Fault::over(what, crossings as u64, "MAX_CROSSINGS_PER_REGION", limit, Remedy::FewerRegions));
        }
        total += crossings;
    }
    if total > MAX_CROSSINGS {
        return Err(Fault::over(
            "the length of all outlines",
            total as u64,
            "MAX_CROSSINGS",
            MAX_CROSSINGS as u64,
            Remedy::FewerRegions,
        ));
    }
    Ok(())
}

/// Refuses a read (axes T, Z, C, Y, X, S) in which regions would be drawn too often or on too many pixels.
pub(super) fn check_drawing<'r>(rois: impl IntoIterator<Item = &'r Roi>, region: &Region) -> Result<(), Fault> {
    let (Some([t0, z0, _, y0, x0, _]), Some([nt, nz, _, ny, nx, _])) =
        (region.start.first_chunk::<6>(), region.size.first_chunk::<6>())
    else {
        return Ok(());
    };
    // Number of planes along an axis in which a region with a position (0 for all, otherwise counted from 1) is drawn.
    let along = |position: usize, start: usize, extent: usize| match position.checked_sub(1) {
        None => extent as f64,
        Some(at) => f64::from(u8::from(at >= start && at - start < extent)),
    };
    let (mut crossings, mut area) = (0.0, 0.0);
    for roi in rois {
        let planes = along(roi.t, *t0, *nt) * along(roi.z, *z0, *nz);
        if planes == 0.0 {
            continue;
        }
        crossings += roi.crossings() * planes;
        area += roi.area_within([*y0, *x0], [*ny, *nx]) * planes;
    }
    if crossings > MAX_CROSSINGS_PER_READ {
        let (what, limit) = ("the length of all outlines in all planes", MAX_CROSSINGS_PER_READ as u64);
        return Err(Fault::over(what, crossings as u64, "MAX_CROSSINGS_PER_READ", limit, Remedy::FewerRegions));
    }
    let pixels = [nt, nz, ny, nx].into_iter().map(|extent| *extent as f64).product::<f64>();
    let max_area = MAX_AREA_PER_READ.max(MAX_COVERAGE * pixels);
    if area > max_area {
        let what = "the area of all regions in all planes";
        return Err(Fault::over(what, area as u64, "MAX_AREA_PER_READ", max_area as u64, Remedy::FewerRegions));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roi::parse::parse;

    #[test]
    fn points_and_outlines_are_counted_over_all_regions() {
        let mut budget = PointBudget::default();
        assert!(budget.add_points(MAX_POINTS as usize).is_ok());
        assert!(matches!(budget.add_points(1), Err(Fault::OverLimit(..))));
        assert!((0..MAX_OUTLINES).all(|_| budget.add_outline().is_ok()));
        assert!(matches!(budget.add_outline(), Err(Fault::OverLimit(..))));
    }

    #[test]
    fn the_points_of_ovals_are_counted_before_they_are_stored() {
        // An oval of 20 000 × 20 000 pixels, which is drawn with 4096 points, far more than its 64 bytes.
        let mut oval = vec![0; 64];
        oval[..7].copy_from_slice(b"Iout\0\xe3\x02");
        oval[12..16].copy_from_slice(&[20_000u16.to_be_bytes(); 2].concat());
        let mut budget = PointBudget { points: MAX_POINTS - 4096, outlines: 0 };
        assert!(matches!(parse(&oval, "", &mut budget), Ok(Some(_))));
        let more = parse(&oval, "", &mut budget);
        assert!(matches!(more, Err(Fault::OverLimit(problem, _)) if problem.contains("MAX_POINTS")));
    }

    #[test]
    fn outlines_that_are_too_long_to_be_drawn_are_refused() {
        let zigzag = |turns: u32| Roi {
            name: String::new(),
            loops: vec![(0..turns).map(|i| [0.0, f64::from(i % 2) * 65_536.0]).collect()],
            z: 1,
            t: 1,
        };
        assert!(check_outlines(&[zigzag(1000)]).is_ok());
        let named =
            |rois: &[Roi], name: &str| matches!(check_outlines(rois), Err(Fault::OverLimit(p, _)) if p.contains(name));
        assert!(named(&[zigzag(1100)], "MAX_CROSSINGS_PER_REGION"));
        assert!(named(&[zigzag(1000), zigzag(1000), zigzag(1000), zigzag(1000), zigzag(1000)], "MAX_CROSSINGS ="));
    }

    #[test]
    fn a_large_stack_may_be_covered_many_times() {
        let whole = |_| Roi {
            name: String::new(),
            loops: vec![vec![[0.0, 0.0], [1024.0, 0.0], [1024.0, 1024.0], [0.0, 1024.0]]],
            z: 0,
            t: 0,
        };
        let stack = Region::whole(&[1, 4096, 1, 1024, 1024, 1]);
        assert!(check_drawing(&(0..64).map(whole).collect::<Vec<_>>(), &stack).is_ok());
        assert!(check_drawing(&(0..65).map(whole).collect::<Vec<_>>(), &stack).is_err());
    }

    #[test]
    fn the_rows_between_distant_outlines_count() {
        let small = |y: f64| vec![[0.0, y], [1.0, y], [1.0, y + 1.0]];
        let apart = Roi { name: String::new(), loops: vec![small(0.0), small(1e6)], z: 0, t: 0 };
        assert!(apart.crossings() >= 1e6);
    }
}

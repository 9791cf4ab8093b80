//! ImageJ regions of interest (`.roi`, and sets of them in a `.zip`), read as a label image.

mod fill;
mod limits;
mod parse;
mod trace;

pub(crate) use trace::{Position, encode, trace};

use crate::{
    error::{Fault, FormatError, Remedy},
    file_format::FileFormat,
    limits::{Limits, SHARED_SLACK_BYTES},
    meta::{ByteOrder, Channel},
    ome_zarr::is_zarr_zip_name,
    opening::OpenOptions,
    reader::{Opened, Pixels},
    source::Source,
};
use cytoscope_storage::message;
use cytoscope_storage::setting::LIKE;
use cytoscope_volume::{DType, Region, Samples};
use limits::PointBudget;
use parse::Roi;
use std::{collections::BTreeMap, io::Read, ops::Range, path::Path};

/// First bytes of a `.roi` file.
pub(crate) const MAGIC: &[u8] = b"Iout";
/// First bytes of a zip file.
pub(crate) const ZIP: &[u8] = b"PK\x03\x04";
/// First bytes of a zip file without files.
const EMPTY_ZIP: &[u8] = b"PK\x05\x06";

/// Whether the name of a path ends in `.roi` or `.zip`, so that it is a region or a set of regions, and not an OME-Zarr.
pub fn is_roi_name(path: &Path) -> bool {
    let has = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
    (has("roi") || has("zip")) && !is_zarr_zip_name(path)
}

/// Whether a file is a zip, which may be a set of regions.
pub(crate) fn is_set(head: &[u8]) -> bool {
    head.starts_with(ZIP) || head.starts_with(EMPTY_ZIP)
}

/// Opens one region, or the regions of a zip, as labels. The image is as large as the stack that the options name, or
/// just contains all regions. Regions outside of that stack are left out, unless all are.
pub(crate) fn open(source: Source, head: &[u8], options: &OpenOptions) -> Result<Opened, Fault> {
    let limits = &options.limits;
    if source.len() > limits.max_metadata_bytes {
        return Err(Fault::over(
            "the size of the file",
            source.len(),
            "max_metadata_bytes",
            limits.max_metadata_bytes,
            Remedy::FewerRegions,
        ));
    }
    let bytes = source.read_vec(0, source.len() as usize)?;
    let (mut rois, skipped) = if is_set(head) {
        read_set(bytes, limits)?
    } else {
        let roi = parse::parse(&bytes, "", &mut PointBudget::default())?;
        let skipped = usize::from(roi.is_none());
        (roi.into_iter().collect(), skipped)
    };
    // A set without regions is that of a stack without objects; only the stack states the extents.
    if rois.is_empty() && (skipped > 0 || options.shape_zyx.is_none()) {
        let draw = "draw polygons, ovals, rectangles or freehand outlines";
        return Err(if skipped > 0 {
            let problem =
                format!("it outlines no objects: it has {skipped} lines, points or other regions without area");
            Fault::unsupported(problem, draw)
        } else {
            let next_step = message!("{draw}; if the stack has no objects, state its size with convert {LIKE} STACK");
            Fault::unsupported("it contains no regions", next_step)
        });
    }
    limits::check_outlines(&rois)?;
    // In a time series without slices, regions state the plane, as in ImageJ, and their names the time point.
    for roi in rois.iter_mut().filter(|roi| roi.t == 0 && named_time(&roi.name) == Some(roi.z)) {
        (roi.t, roi.z) = (roi.z, 0);
    }
    let labels = labels(&rois);
    let dtype = if labels.iter().all(|l| *l <= u32::from(u16::MAX)) { DType::U16 } else { DType::U32 };
    let last = |of: fn(&Roi) -> usize| rois.iter().map(of).max().unwrap_or(0).max(1);
    let own = [last(|r| r.z), last(|r| r.extent()[0]), last(|r| r.extent()[1])];
    let [z, y, x] = options.shape_zyx.unwrap_or(own);
    // Regions after the time points of the stack are not left out, so that labels of another stack are noticed.
    let times = options.times.unwrap_or(1).max(last(|r| r.t));
    if z == 1 && times > 1 {
        // ImageJ numbers the planes of a time series of planes like slices.
        for roi in rois.iter_mut().filter(|roi| roi.t == 0) {
            (roi.t, roi.z) = (roi.z, 0);
        }
    }
    let outside = |roi: &&Roi| options.shape_zyx.is_some_and(|shape| roi.is_outside(shape));
    let regions_outside: Vec<String> = rois.iter().filter(outside).map(|roi| roi.name.clone()).collect();
    if !rois.is_empty() && regions_outside.len() == rois.len() {
        let all = match rois.len() {
            1 => "its only region lies".to_owned(),
            count => format!("all {count} of its regions lie"),
        };
        return Err(Fault::unsupported(
            format!("{all} outside of the stack of {z} × {y} × {x} voxels (Z, Y, X)"),
            "give the stack that they were drawn on",
        ));
    }
    let shape_full = [times, z, 1, y, x, 1];
    let max_bytes = if options.shape_zyx.is_some() { limits.max_read_bytes } else { limits.max_unstored_bytes };
    let set = Set::new(rois, labels, dtype, max_bytes);
    let mut opened = Opened::new(FileFormat::ImageJRoi, shape_full, dtype, Box::new(set));
    opened.byte_order = ByteOrder::Big;
    opened.channels = vec![Channel { name: "labels".to_owned(), color_rgb: None }];
    opened.unread_pages = skipped;
    opened.regions_outside = regions_outside;
    opened.with_options(options)
}

/// Reads the areas of a zip; also returns the number of regions that are not areas.
fn read_set(bytes: Vec<u8>, limits: &Limits) -> Result<(Vec<Roi>, usize), Fault> {
    let invalid = |e: zip::result::ZipError| Fault::malformed(format!("it is not a valid zip file ({e})"));
    let max_stored_bytes = (bytes.len() as u64).saturating_mul(2).saturating_add(SHARED_SLACK_BYTES);
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).map_err(invalid)?;
    if archive.len() as u64 > limits.max_pages {
        return Err(Fault::over(
            "the number of files",
            archive.len() as u64,
            "max_pages",
            limits.max_pages,
            Remedy::FewerRegions,
        ));
    }
    let (mut rois, mut skipped, mut found) = (Vec::new(), 0, false);
    let (mut left, mut points, mut stored_bytes) = (limits.max_metadata_bytes, PointBudget::default(), 0u64);
    let files = archive.len();
    for index in 0..files {
        let entry = archive.by_index(index).map_err(invalid)?;
        let name = entry.name().map_err(invalid)?.into_owned();
        // The set may be in a folder of the zip. Files that begin with "._" hold attributes that macOS stores.
        let file = name.rsplit(['/', '\\']).next().unwrap_or(&name);
        let Some(stem) = file.strip_suffix(".roi").filter(|_| !file.starts_with("._")) else { continue };
        found = true;
        // In a valid zip each byte belongs to one file. Data that many files share would be expanded for each of them.
        stored_bytes = stored_bytes.saturating_add(entry.compressed_size());
        if stored_bytes > max_stored_bytes {
            return Err(Fault::malformed("its files overlap in the zip"));
        }
        let mut roi = Vec::new();
        entry
            .take(left.saturating_add(1))
            .read_to_end(&mut roi)
            .map_err(|e| Fault::malformed(format!("\"{name}\" cannot be expanded ({e})")))?;
        left = left.checked_sub(roi.len() as u64).ok_or_else(|| {
            let limit = limits.max_metadata_bytes;
            Fault::over(
                "the expanded size of its regions",
                limit.saturating_add(1),
                "max_metadata_bytes",
                limit,
                Remedy::FewerRegions,
            )
        })?;
        match parse::parse(&roi, stem, &mut points).map_err(|fault| with_region_name(fault, &name))? {
            Some(roi) => rois.push(roi),
            None => skipped += 1,
        }
    }
    if !found && files > 0 {
        return Err(Fault::unsupported("the zip contains no ImageJ regions (.roi)", "open an image or a ROI set"));
    }
    Ok((rois, skipped))
}

/// Names the file of a damaged region in the zip.
fn with_region_name(fault: Fault, name: &str) -> Fault {
    match fault {
        Fault::Malformed(problem, next_step) => Fault::Malformed(format!("\"{name}\": {problem}").into(), next_step),
        other => other,
    }
}

/// The label of each region: the number N of its name `label-N`, if all have such names, or its number in the set.
fn labels(rois: &[Roi]) -> Vec<u32> {
    let named: Option<Vec<u32>> = rois.iter().map(|r| named_label(&r.name)).collect();
    named.unwrap_or_else(|| (1..=rois.len() as u32).collect())
}

fn named_label(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("label-")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|label| *label > 0)
}

/// The time point T of a name `label-N_t-T`, as the writer names the regions of a time series without slices.
fn named_time(name: &str) -> Option<usize> {
    let (label, time) = name.strip_prefix("label-")?.split_once("_t-")?;
    if !label.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    time.parse().ok().filter(|time| *time > 0)
}

/// The regions of a file with their labels. Of overlapping regions, the last one is seen.
#[derive(Debug)]
struct Set {
    rois: Vec<Roi>,
    /// Indices of the regions that have a time point and a slice, counted from 1; 0 if they belong to all.
    by_position: BTreeMap<(usize, usize), Vec<usize>>,
    labels: Vec<u32>,
    dtype: DType,
    /// Largest number of bytes of one read.
    max_bytes: u64,
}

impl Set {
    fn new(rois: Vec<Roi>, labels: Vec<u32>, dtype: DType, max_bytes: u64) -> Self {
        let mut by_position: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (index, roi) in rois.iter().enumerate() {
            by_position.entry((roi.t, roi.z)).or_default().push(index);
        }
        Self { rois, by_position, labels, dtype, max_bytes }
    }

    /// The regions that are drawn in some of these time points and slices, which count from 0.
    fn within(&self, times: Range<usize>, slices: Range<usize>) -> impl Iterator<Item = &Roi> {
        let positions = |planes: Range<usize>| std::iter::once(0).chain(planes.start + 1..planes.end + 1);
        let all = positions(times).flat_map(move |t| positions(slices.clone()).map(move |z| (t, z)));
        let indices = all.filter_map(move |position| self.by_position.get(&position)).flatten();
        indices.filter_map(move |index| self.rois.get(*index))
    }

    fn draw(&self, region: &Region) -> Result<Vec<u32>, Fault> {
        let count = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let bytes = (count as u64).saturating_mul(4);
        if bytes > self.max_bytes {
            return Err(Fault::over(
                "the size of the labels",
                bytes,
                "max_unstored_bytes",
                self.max_bytes,
                Remedy::Crop,
            ));
        }
        let mut out = vec![0; count];
        let (Some([t0, z0, _, y0, x0, _]), Some([_, nz, _, ny, nx, _])) =
            (region.start.first_chunk::<6>(), region.size.first_chunk::<6>())
        else {
            return Ok(out);
        };
        let nt = region.size.first().copied().unwrap_or(0);
        limits::check_drawing(self.within(*t0..t0 + nt, *z0..z0 + nz), region)?;
        for (plane, pixels) in out.chunks_exact_mut((ny * nx).max(1)).enumerate() {
            let (t, z) = (t0 + plane / nz.max(&1), z0 + plane % nz.max(&1));
            // The regions of this plane, of its slice, of its time point, and of all planes, in the order of the file.
            let positions = [(t + 1, z + 1), (0, z + 1), (t + 1, 0), (0, 0)];
            let mut drawn: Vec<usize> =
                positions.iter().filter_map(|p| self.by_position.get(p)).flatten().copied().collect();
            drawn.sort_unstable();
            for (roi, label) in drawn.into_iter().filter_map(|i| Some((self.rois.get(i)?, self.labels.get(i)?))) {
                fill::fill(&roi.loops, *y0..y0 + ny, *x0..x0 + nx, |row, columns| {
                    if let Some(run) = pixels.get_mut(row * nx + columns.start..row * nx + columns.end) {
                        run.fill(*label);
                    }
                });
            }
        }
        Ok(out)
    }
}

impl Pixels for Set {
    fn is_label_image(&self) -> bool {
        true
    }

    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        let labels = self.draw(region).map_err(|f| f.at(path))?;
        Ok(match self.dtype {
            DType::U16 => Samples::U16(labels.into_iter().map(|l| l as u16).collect()),
            _ => Samples::U32(labels),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region that is drawn in all planes.
    fn everywhere(outline: parse::Loop) -> Roi {
        Roi { name: String::new(), loops: vec![outline], z: 0, t: 0 }
    }

    fn set(rois: Vec<Roi>) -> Set {
        let labels = (1..=rois.len() as u32).collect();
        Set::new(rois, labels, DType::U16, 1 << 30)
    }

    fn over_limit(outcome: Result<Vec<u32>, Fault>, name: &str) {
        assert!(matches!(&outcome, Err(Fault::OverLimit(problem, _)) if problem.contains(name)), "{outcome:?}");
    }

    #[test]
    fn names_of_regions_end_in_roi_or_zip_unless_they_are_those_of_an_ome_zarr() {
        let has_name = |name: &str| is_roi_name(Path::new(name));
        assert!(has_name("a/rois.zip") && has_name("one.ROI"));
        assert!(!has_name("a.zarr.zip") && !has_name("a.ozx") && !has_name("roi") && !has_name("labels.tif"));
    }

    #[test]
    fn outlines_that_are_drawn_in_too_many_planes_are_refused() {
        let set = set(vec![everywhere((0..20_000).map(|i| [f64::from(i % 2), 0.25]).collect())]);
        let drawn = |times: usize| set.draw(&Region::whole(&[times, 1, 1, 1, 1, 1]));
        assert_eq!(drawn(3).map(|labels| labels.len()).ok(), Some(3));
        over_limit(drawn(1 << 20), "MAX_CROSSINGS_PER_READ");
    }

    #[test]
    fn regions_without_points_count_as_work() {
        let empty = set((0..20_000).map(|_| everywhere(Vec::new())).collect());
        assert_eq!(empty.draw(&Region::whole(&[2, 1, 1, 1, 1, 1])).ok(), Some(vec![0, 0]));
        over_limit(empty.draw(&Region::whole(&[1 << 20, 1, 1, 1, 1, 1])), "MAX_CROSSINGS_PER_READ");
    }

    #[test]
    fn the_area_that_is_drawn_in_one_read_is_limited_to_what_is_visible() {
        // Flat and wide: few crossings, many pixels.
        let wide = |_| everywhere(vec![[0.0, 0.0], [1e6, 0.0], [1e6, 1.0], [0.0, 1.0]]);
        let set = set((0..100_000).map(wide).collect());
        over_limit(set.draw(&Region::whole(&[1, 1, 1, 1, 1 << 20, 1])), "MAX_AREA_PER_READ");
        let narrow = set.draw(&Region::whole(&[1, 1, 1, 1, 2, 1]));
        assert_eq!(narrow.ok(), Some(vec![100_000, 100_000]));
    }

    /// The size is such that work growing with its square would take minutes.
    #[test]
    fn regions_of_many_slices_are_drawn_slice_by_slice_in_linear_time() {
        const SLICES: usize = 60_000;
        let square = vec![[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]];
        let set = set((1..=SLICES).map(|z| Roi { z, ..everywhere(square.clone()) }).collect());
        for z in 0..SLICES {
            let slice = Region::whole(&[1, 1, 1, 1, 1, 1]).with_range(1, z, 1);
            assert_eq!(set.draw(&slice).ok(), Some(vec![z as u32 + 1]));
        }
    }

    #[test]
    fn regions_at_positions_are_drawn_in_the_order_of_the_file() {
        let at = |t, z| Roi { t, z, ..everywhere(vec![[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]) };
        let set = set(vec![at(0, 2), at(2, 0), at(1, 1), at(0, 0), at(2, 2), at(0, 1)]);
        let drawn = set.draw(&Region::whole(&[2, 2, 1, 1, 1, 1]));
        // Planes: t1 z1, t1 z2, t2 z1, t2 z2.
        assert_eq!(drawn.ok(), Some(vec![6, 4, 6, 5]));
    }
}

//! Splitting a label along a line in a slice: the voxels on the line separate its parts, and are then added to them.

use super::brush::{check_points, line};
use super::face_neighbors::each_neighbor;
use crate::CorrectionError;
use crate::geometry::{BoundsZyx, Plane, Scope, SliceAxis};
use crate::volume::LabelWriter;
use cytoscope_objects::components::{self, Connectivity};
use std::collections::VecDeque;

/// A piece with fewer voxels than the line divided by this is an artifact of an unsteady line and is added to its
/// neighbors, unless it is one of the two largest pieces.
const FRAGMENT_DIVISOR: usize = 8;

/// Splits a label along a line through `points`, in one slice or, if `through`, in all slices along the axis. Returns the new
/// labels; the largest part of each connected component keeps the old one.
pub(super) fn split_by_line(
    writer: &mut LabelWriter,
    label: u32,
    axis: SliceAxis,
    points: &[[f64; 3]],
    through: bool,
) -> Result<Vec<u32>, CorrectionError> {
    check_points(points)?;
    let volume = writer.volume();
    let shape_zyx = volume.shape_zyx();
    let first = points.first().ok_or(CorrectionError::BadParameter {
        what: "the line to cut along",
        got: "no point".to_owned(),
        expected: "a line across the label",
    })?;
    let index = first[axis.index()].round();
    if index < 0.0 || index >= shape_zyx[axis.index()] as f64 {
        return Err(CorrectionError::OutOfBounds {
            what: "the line to cut along",
            at: vec![index as usize],
            shape_zyx,
        });
    }
    let plane = Plane::new(axis, index as usize);
    let bounds = volume.checked_bounds(label, if through { Scope::Volume } else { Scope::Slice(plane) })?;
    let size = bounds.size();
    let mask = volume.label_mask(label, &bounds);
    let on_line = rasterize(points, plane, &bounds, shape_zyx)?;
    let [rows, columns] = axis.rows_columns();
    let crossed = |i: usize| {
        let at = [i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]];
        mask[i] && on_line[at[rows] * size[columns] + at[columns]]
    };
    let crossed: Vec<bool> = (0..mask.len()).map(crossed).collect();
    let (parts, count) = divide(&mask, &crossed, size).map_err(|e| match e {
        DivideError::Uncut(problem) => {
            let next_step = "draw the line across the label; begin and end it outside of the label";
            CorrectionError::NotPossible { label, problem: problem.to_owned(), next_step }
        }
        DivideError::Objects(e) => e.into(),
    })?;
    let new_labels = volume.free_labels(count)?;
    writer.fill_box(
        &bounds,
        |i| (parts[i] > 0).then(|| new_labels.get(parts[i] as usize - 1).copied().unwrap_or(label)),
        |old| old == label,
    );
    Ok(new_labels)
}

/// Mask of the pixels (rows, columns) of a box's slice that the line crosses.
fn rasterize(
    points: &[[f64; 3]],
    plane: Plane,
    bounds: &BoundsZyx,
    shape_zyx: [usize; 3],
) -> Result<Vec<bool>, CorrectionError> {
    let axis = plane.axis.index();
    let [rows, columns] = plane.axis.rows_columns();
    let mut within = plane.bounds(shape_zyx)?;
    for a in [rows, columns] {
        (within.start[a], within.end[a]) = (bounds.start[a], bounds.end[a]);
    }
    let mut on_line = vec![false; bounds.size()[rows] * bounds.size()[columns]];
    let flat: Vec<[f64; 3]> = points
        .iter()
        .map(|p| {
            let mut p = *p;
            p[axis] = plane.index as f64;
            p
        })
        .collect();
    for pair in flat.windows(2) {
        line(pair[0], pair[1], &within, |at| {
            on_line[(at[rows] - bounds.start[rows]) * bounds.size()[columns] + at[columns] - bounds.start[columns]] =
                true;
        });
    }
    Ok(on_line)
}

enum DivideError {
    Uncut(&'static str),
    Objects(cytoscope_objects::ObjectsError),
}

impl From<cytoscope_objects::ObjectsError> for DivideError {
    fn from(e: cytoscope_objects::ObjectsError) -> Self {
        DivideError::Objects(e)
    }
}

/// Returns the part of each voxel, and the number `n` of parts that get new labels. Parts `1..=n` get new labels,
/// larger numbers keep the label, and 0 is not affected.
fn divide(mask: &[bool], crossed: &[bool], size: [usize; 3]) -> Result<(Vec<u32>, usize), DivideError> {
    if !crossed.contains(&true) {
        return Err(DivideError::Uncut("the line does not touch it"));
    }
    let mut component_labels = vec![0u32; mask.len()];
    let component_count = components::label(mask, size, Connectivity::Faces, |m| m, &mut component_labels)? as usize;
    let open: Vec<bool> = mask.iter().zip(crossed).map(|(m, c)| *m && !*c).collect();
    let mut parts = vec![0u32; mask.len()];
    let count = components::label(&open, size, Connectivity::Faces, |m| m, &mut parts)? as usize;
    drop(open);
    // Number of voxels of each piece and the connected component it belongs to; number of line voxels in each
    // component.
    let mut pieces = vec![(0usize, 0usize); count + 1];
    let mut lines = vec![0usize; component_count + 1];
    for i in (0..mask.len()).filter(|i| mask[*i]) {
        lines[component_labels[i] as usize] += usize::from(crossed[i]);
        let piece = &mut pieces[parts[i] as usize];
        *piece = (piece.0 + 1, component_labels[i] as usize);
    }
    let mut pieces_by_component: Vec<Vec<usize>> = vec![Vec::new(); component_count + 1];
    (1..=count).for_each(|p| pieces_by_component[pieces[p].1].push(p));
    // Part number of each piece: first the pieces with new labels, then those that keep the label.
    let (mut new, mut keep) = (Vec::new(), Vec::new());
    for (w, list) in pieces_by_component.iter_mut().enumerate().filter(|(w, list)| lines[*w] > 0 && list.len() > 1) {
        list.sort_by_key(|p| std::cmp::Reverse(pieces[*p].0));
        keep.push(list[0]);
        let is_fragment = |n: usize, piece: usize| n > 1 && pieces[piece].0 * FRAGMENT_DIVISOR < lines[w];
        new.extend(list.iter().enumerate().skip(1).filter(|(n, p)| !is_fragment(*n, **p)).map(|(_, p)| *p));
    }
    if new.is_empty() {
        return Err(DivideError::Uncut("the line does not divide it into two parts"));
    }
    let mut part_of_piece = vec![0u32; count + 1];
    new.iter().chain(&keep).zip(1..).for_each(|(piece, part)| part_of_piece[*piece] = part);
    parts.iter_mut().for_each(|p| *p = part_of_piece[*p as usize]);
    let start = (0..parts.len()).filter(|i| parts[*i] != 0).collect();
    spread(&mut parts, size, start, |i| mask[i]);
    Ok((parts, new.len()))
}

/// Spreads parts from the voxels `start` to their unassigned neighbors, breadth first.
fn spread(parts: &mut [u32], size: [usize; 3], start: Vec<usize>, may_take: impl Fn(usize) -> bool) {
    let mut queue = VecDeque::from(start);
    while let Some(at) = queue.pop_front() {
        let part = parts[at];
        each_neighbor(at, size, |next| {
            if parts[next] == 0 && may_take(next) {
                parts[next] = part;
                queue.push_back(next);
            }
        });
    }
}

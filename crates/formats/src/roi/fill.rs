//! Pixels inside outlines.

use super::parse::Loop;
use std::ops::Range;

/// Calls `run` with a row and a range of columns for all pixels of a window whose centers are inside the outlines
/// (even-odd rule, so that an outline inside another one is a hole). Rows and columns count from the window's corner.
pub(super) fn fill(
    loops: &[Loop],
    rows: Range<usize>,
    columns: Range<usize>,
    mut run: impl FnMut(usize, Range<usize>),
) {
    let heights = || loops.iter().flatten().map(|point| point[1]);
    let (top, bottom) = (heights().fold(f64::INFINITY, f64::min), heights().fold(f64::NEG_INFINITY, f64::max));
    // The rows that the outlines reach.
    let (window_top, rows) = (rows.start, first_center(top, &rows)..first_center(bottom, &rows));
    let mut crossings: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    for points in loops {
        let next = points.iter().skip(1).chain(points.first());
        for ([x0, y0], [x1, y1]) in points.iter().zip(next) {
            let (low, high) = (y0.min(*y1), y0.max(*y1));
            let first = first_center(low, &rows);
            let end = first_center(high, &rows);
            for row in first..end {
                let y = row as f64 + 0.5;
                let x = x0 + (y - y0) * (x1 - x0) / (y1 - y0);
                if let Some(list) = crossings.get_mut(row - rows.start) {
                    list.push(x);
                }
            }
        }
    }
    for (row, list) in crossings.iter_mut().enumerate() {
        list.sort_by(f64::total_cmp);
        for [from, to] in list.as_chunks::<2>().0 {
            let (from, to) = (first_center(*from, &columns), first_center(*to, &columns));
            if from < to {
                run(rows.start - window_top + row, from - columns.start..to - columns.start);
            }
        }
    }
}

/// Returns the first pixel of a range whose center is at or after the coordinate `at`; the end of the range if there is
/// none.
fn first_center(at: f64, range: &Range<usize>) -> usize {
    // The conversion of a float saturates, and a negative one is 0.
    ((at - 0.5).ceil() as usize).clamp(range.start, range.end)
}

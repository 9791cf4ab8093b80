//! Bands of a stack along Y, for planes that do not fit in memory.

use cytoscope_engine::Band;
use cytoscope_graph_passes::analysis::AxisReach;

/// Splits `rows` into at most `count` bands that pass equally many rows. `None` if the receptive field is unbounded, or
/// if the bands are not smaller than the stack.
pub(crate) fn bands(rows: usize, count: usize, reach: &AxisReach) -> Option<Vec<Band>> {
    if count <= 1 {
        let all = 0..rows;
        return Some(vec![Band { fed: all.clone(), kept: all }]);
    }
    let step = reach.multiple_of.max(1);
    let kept = rows.div_ceil(count).next_multiple_of(step);
    let (before, after) = (reach.before?.next_multiple_of(step), reach.after?.next_multiple_of(step));
    // All bands have the same number of rows and start on multiples of the strides, also the last one.
    let least = before + kept + after;
    let height = least + rows.checked_sub(least)? % step;
    let last = rows.checked_sub(height).filter(|last| *last > 0)?;
    let band = |start: usize| {
        let first = start.saturating_sub(before).min(last);
        Band { fed: first..first + height, kept: start..(start + kept).min(rows) }
    };
    Some((0..rows).step_by(kept).map(band).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bands_overlap_by_the_receptive_field() {
        let reach = AxisReach { before: Some(3), after: Some(3), multiple_of: 4 };
        let band = |fed, kept| Band { fed, kept };
        assert_eq!(bands(100, 2, &reach), Some(vec![band(0..60, 0..52), band(40..100, 52..100)]));
        assert_eq!(bands(100, 1, &reach), Some(vec![band(0..100, 0..100)]));
        assert_eq!(bands(12, 2, &reach), None, "a band with its borders would exceed the stack");
        assert_eq!(bands(100, 2, &AxisReach { before: None, ..reach }), None);
    }

    proptest! {
        #[test]
        fn kept_rows_tile_the_stack_and_their_receptive_fields_are_fed(
            rows in 1usize..400, count in 1usize..9, before in 0usize..20, after in 0usize..20, step in 1usize..9,
        ) {
            let reach = AxisReach { before: Some(before), after: Some(after), multiple_of: step };
            let Some(bands) = bands(rows, count, &reach) else { return Ok(()) };
            prop_assert!(bands.len() <= count);
            let mut next = 0;
            for band in &bands {
                prop_assert_eq!(band.kept.start, next);
                next = band.kept.end;
                prop_assert_eq!(band.fed.start % step, 0);
                prop_assert_eq!(band.fed.len(), bands[0].fed.len());
                prop_assert!(band.fed.end <= rows);
                prop_assert!(band.fed.start <= band.kept.start.saturating_sub(before));
                prop_assert!(band.fed.end >= (band.kept.end + after).min(rows));
            }
            prop_assert_eq!(next, rows);
        }
    }
}

//! Linear sum assignment for small dense problems.

/// Returns the column of each row such that the sum of `benefit[row][column]` is maximal. Every row gets a column, so
/// there must be at least as many columns as rows. Hungarian method with potentials, O(rows² · columns).
///
/// A column whose benefit is NaN or −∞ is given only to rows that no other column is left for; +∞ is greater than the sum of any
/// finite benefits.
pub(crate) fn maximize(benefit: &[Vec<f64>]) -> Vec<usize> {
    let benefit = &finite(benefit);
    let rows = benefit.len();
    let columns = benefit.first().map_or(0, Vec::len);
    debug_assert!(rows <= columns);
    // Indices start at 1: column 0 stands for the row being assigned.
    let (mut u, mut v) = (vec![0.0; rows + 1], vec![0.0; columns + 1]);
    let mut row_of = vec![0usize; columns + 1];
    let mut way = vec![0usize; columns + 1];
    for row in 1..=rows {
        row_of[0] = row;
        let mut column = 0;
        let mut least = vec![f64::INFINITY; columns + 1];
        let mut used = vec![false; columns + 1];
        loop {
            used[column] = true;
            let r = row_of[column];
            let (mut delta, mut next) = (f64::INFINITY, 0);
            for j in 1..=columns {
                if used[j] {
                    continue;
                }
                let reduced = -benefit[r - 1][j - 1] - u[r] - v[j];
                if reduced < least[j] {
                    least[j] = reduced;
                    way[j] = column;
                }
                if least[j] < delta {
                    (delta, next) = (least[j], j);
                }
            }
            for j in 0..=columns {
                if used[j] {
                    u[row_of[j]] += delta;
                    v[j] -= delta;
                } else {
                    least[j] -= delta;
                }
            }
            column = next;
            if row_of[column] == 0 {
                break;
            }
        }
        while column != 0 {
            let previous = way[column];
            row_of[column] = row_of[previous];
            column = previous;
        }
    }
    let mut given = vec![0; rows];
    for (column, row) in row_of.iter().enumerate().skip(1) {
        if *row > 0 {
            given[row - 1] = column - 1;
        }
    }
    given
}

/// Largest amount of a benefit: sums of benefits stay finite.
const MAX_BENEFIT: f64 = 1e100;

/// Returns the benefits with finite numbers for NaN and ±∞ that outweigh all others: the method does not end with them.
fn finite(benefit: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let amounts = benefit.iter().flatten().map(|value| value.abs()).filter(|amount| amount.is_finite());
    let largest = amounts.fold(0.0, f64::max).min(MAX_BENEFIT);
    let bound = (2.0 * largest + 1.0) * (benefit.len() as f64 + 1.0);
    let bounded = |value: &f64| if value.is_nan() { -bound } else { value.clamp(-bound, bound) };
    benefit.iter().map(|row| row.iter().map(bounded).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn best(benefit: &[Vec<f64>], row: usize, used: &mut Vec<bool>) -> f64 {
        if row == benefit.len() {
            return 0.0;
        }
        let mut top = f64::NEG_INFINITY;
        for j in 0..used.len() {
            if !used[j] {
                used[j] = true;
                top = top.max(benefit[row][j] + best(benefit, row + 1, used));
                used[j] = false;
            }
        }
        top
    }

    proptest! {
        #[test]
        fn equals_trying_all(rows in 1usize..5, extra in 0usize..3, values in prop::collection::vec(0.0f64..1.0, 35)) {
            let columns = rows + extra;
            let benefit: Vec<Vec<f64>> = (0..rows).map(|r| values[r * columns..(r + 1) * columns].to_vec()).collect();
            let given = maximize(&benefit);
            let sum: f64 = given.iter().enumerate().map(|(r, c)| benefit[r][*c]).sum();
            prop_assert!((sum - best(&benefit, 0, &mut vec![false; columns])).abs() < 1e-9);
        }
    }

    #[test]
    fn benefits_that_are_not_finite_are_ordered() {
        let (nan, infinite) = (f64::NAN, f64::INFINITY);
        assert_eq!(maximize(&[vec![nan, 1.0], vec![nan, nan]]), [1, 0]);
        assert_eq!(maximize(&[vec![-infinite, -9.0], vec![-9.0, -infinite]]), [1, 0]);
        assert_eq!(maximize(&[vec![infinite, 0.5], vec![infinite, 0.1]]), [1, 0]);
        assert_eq!(maximize(&[vec![f64::MAX, 1.0], vec![f64::MAX, f64::MAX]]), [0, 1]);
        let mut given = maximize(&[vec![nan; 3], vec![nan; 3], vec![nan; 3]]);
        given.sort_unstable();
        assert_eq!(given, [0, 1, 2], "a column for each row");
    }
}

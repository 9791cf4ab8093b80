//! Groups of pairs that stay together in one set.

use crate::dataset::Pair;
use cytoscope_formats::series_suffix;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Pairs that stay together, so that the validation set is independent of the training set.
///
/// Names are split into tokens at `_`, `-`, `.` and spaces, and tokens are removed from the end, except for the first
/// one. If that gives fewer than two groups, every pair is its own group, apart from
/// [`SplitOptions::together`](super::SplitOptions::together).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Every pair is its own group.
    None,
    /// Time points of a sample are a group: tokens such as `t251`, `time3`, `tp12` or `frame0007` are removed
    /// (`Emb10_t251` and `Emb10_t501` belong to `Emb10`).
    #[default]
    ByTime,
    /// Like [`Group::ByTime`], and plain numbers are removed, too (`plate2_well3_001` belongs to `plate2_well3`).
    ByName,
}

impl Group {
    /// Returns the group of a name.
    pub fn key(self, name: &str) -> &str {
        if self == Group::None {
            return name;
        }
        let mut key = name;
        while let Some(at) = key.rfind(['_', '-', '.', ' ']).filter(|at| *at > 0) {
            let token = key.get(at + 1..).unwrap_or_default();
            let number = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
            let lower = token.to_ascii_lowercase();
            let words = ["timepoint", "time", "frame", "tp", "t"];
            let is_time = words.iter().any(|w| lower.strip_prefix(w).is_some_and(number));
            let is_removed = is_time || (self == Group::ByName && number(token));
            if !is_removed {
                break;
            }
            key = key.get(..at).unwrap_or_default();
        }
        key
    }
}

/// Groups the pairs by name; groups with an identical image are merged.
pub(super) fn grouped(pool: &[Pair], group: Group, together: &[Vec<String>]) -> BTreeMap<String, Vec<Pair>> {
    let pair_keys: Vec<String> = pool.iter().map(|pair| pair_key(pair, group)).collect();
    let keys: BTreeMap<&str, &str> =
        pool.iter().zip(&pair_keys).map(|(pair, key)| (pair.name.as_str(), key.as_str())).collect();
    // From the key of a merged group to a smaller key of the same image (union-find).
    let mut smaller: BTreeMap<&str, &str> = BTreeMap::new();
    for copies in together {
        let there = copies.iter().filter_map(|name| keys.get(name.as_str()).copied());
        let joined: BTreeSet<&str> = there.map(|key| root_key(&smaller, key)).collect();
        if let Some(first) = joined.first().copied() {
            smaller.extend(joined.into_iter().skip(1).map(|key| (key, first)));
        }
    }
    let mut groups: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
    for (pair, key) in pool.iter().zip(&pair_keys) {
        groups.entry(root_key(&smaller, key).to_owned()).or_default().push(pair.clone());
    }
    groups
}

/// Returns the group of a pair, which follows from its name. The number of the image's series stays in it: if each time point
/// is a file of several series, the time points of one series are a group.
fn pair_key(pair: &Pair, group: Group) -> String {
    let suffix = series_suffix(pair.image.series);
    match pair.name.strip_suffix(&suffix).filter(|name| !name.is_empty()) {
        Some(name) => format!("{}{suffix}", group.key(name)),
        None => group.key(&pair.name).to_owned(),
    }
}

/// Follows the merged groups to the final key.
fn root_key<'a>(smaller: &BTreeMap<&'a str, &'a str>, mut key: &'a str) -> &'a str {
    while let Some(parent) = smaller.get(key).copied() {
        key = parent;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_keys_omit_time_points_and_numbers() {
        assert_eq!(Group::ByTime.key("Emb10_t251"), "Emb10");
        assert_eq!(Group::ByTime.key("2017-12-04_1a"), "2017-12-04_1a");
        assert_eq!(Group::ByTime.key("fish Time03-frame7"), "fish");
        assert_eq!(Group::ByTime.key("img_001"), "img_001");
        assert_eq!(Group::ByName.key("plate2_well3_001"), "plate2_well3");
        assert_eq!(Group::ByName.key("12_13"), "12");
        assert_eq!(Group::ByName.key("t7"), "t7");
        assert_eq!(Group::None.key("Emb10_t251"), "Emb10_t251");
    }

    #[test]
    fn time_points_of_a_series_are_a_group() {
        let series_pair = |file: &str, series: usize| {
            let mut pair = Pair::new(format!("{file}{}", series_suffix(series)), "raw.czi", "labels.czi");
            pair.image.series = series;
            pair
        };
        let files = ["fish_t1", "fish_t2", "fish_t3"];
        let pairs: Vec<Pair> = files.iter().flat_map(|file| (0..4).map(|series| series_pair(file, series))).collect();
        let groups = grouped(&pairs, Group::ByTime, &[]);
        let sizes: Vec<(&str, usize)> = groups.iter().map(|(key, pairs)| (key.as_str(), pairs.len())).collect();
        assert_eq!(sizes, [("fish", 3), ("fish_s1", 3), ("fish_s2", 3), ("fish_s3", 3)]);
        assert_eq!(grouped(&pairs, Group::None, &[]).len(), 12);
        // The name of a file may end in the same way.
        let alike = ["a_t1_s1", "a_t2_s1"].map(|name| Pair::new(name, "raw.tif", "labels.tif"));
        assert_eq!(grouped(&alike, Group::ByTime, &[]).len(), 2);
    }
}

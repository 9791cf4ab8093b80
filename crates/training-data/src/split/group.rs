//! Groups of pairs that stay together in one set.

use crate::dataset::Pair;
use cytoscope_formats::series_suffix;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Pairs that stay together, so that the validation set is independent of the training set.
///
/// Names are split into tokens at `_`, `-`, `.`, `/` and spaces, and tokens are removed, but never all of them. If that gives
/// fewer than two groups, every pair is its own group, apart from [`SplitOptions::together`](super::SplitOptions::together).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Every pair is its own group.
    None,
    /// Time points of a sample are a group: tokens such as `t251`, `time3`, `tp12` or `frame0007` are removed, also if the number
    /// is a token of its own (`Emb10_t251`, `Emb10_t_501` and `t900_Emb10` belong to `Emb10`). Files whose names have no other
    /// tokens are a group with those of the same folder (`Emb10/t251`).
    #[default]
    ByTime,
    /// Like [`Group::ByTime`], and plain numbers at the end are removed, too (`plate2_well3_001` belongs to `plate2_well3`).
    ByName,
}

/// Characters between the tokens of a name.
const SEPARATORS: [char; 5] = ['_', '-', '.', ' ', '/'];
/// Words before the number of a time point.
const TIME_WORDS: [&str; 5] = ["timepoint", "time", "frame", "tp", "t"];

fn is_number(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|b| b.is_ascii_digit())
}

/// Returns a name without its time points; `None` if it has no other tokens.
fn without_times(name: &str) -> Option<String> {
    let pieces: Vec<&str> = name.split_inclusive(SEPARATORS).collect();
    let token = |piece: &str| piece.trim_end_matches(SEPARATORS).to_ascii_lowercase();
    let (mut kept, mut ends_in_time, mut at) = (String::new(), false, 0);
    while let Some(piece) = pieces.get(at) {
        let own = token(piece);
        let is_time = TIME_WORDS.iter().any(|word| own.strip_prefix(word).is_some_and(is_number));
        // The word and the number are two tokens.
        let is_pair =
            TIME_WORDS.contains(&own.as_str()) && pieces.get(at + 1).is_some_and(|next| is_number(&token(next)));
        ends_in_time = is_time || is_pair;
        if !ends_in_time {
            kept.push_str(piece);
        }
        at += if is_pair { 2 } else { 1 };
    }
    if ends_in_time {
        // The separator before what was removed.
        kept.pop();
    }
    (!kept.trim_matches(SEPARATORS).is_empty()).then_some(kept)
}

impl Group {
    /// Returns the group of a name.
    pub fn key(self, name: &str) -> String {
        if self == Group::None {
            return name.to_owned();
        }
        let mut key = without_times(name).unwrap_or_else(|| name.to_owned());
        while self == Group::ByName
            && let Some(at) = key.rfind(SEPARATORS).filter(|at| *at > 0)
            && key.get(at + 1..).is_some_and(is_number)
        {
            key.truncate(at);
        }
        key
    }
}

/// Groups the pairs by name; groups with an identical image are merged.
pub(super) fn grouped(pool: &[Pair], group: Group, together: &[Vec<String>]) -> BTreeMap<String, Vec<Pair>> {
    let root = common_folder(pool);
    let pair_keys: Vec<String> = pool.iter().map(|pair| pair_key(pair, group, &root)).collect();
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

/// Returns the folder that all images are in, perhaps in folders of it; empty if there is none.
fn common_folder(pool: &[Pair]) -> PathBuf {
    let mut folders = pool.iter().filter_map(|pair| pair.image.path.parent());
    let first = folders.next().unwrap_or(Path::new(""));
    let common = folders.try_fold(first, |common, folder| common.ancestors().find(|parent| folder.starts_with(parent)));
    common.map(Path::to_owned).unwrap_or_default()
}

/// Returns the group of a pair, which follows from its name, or from its folder in `root` if the name of its file has only the
/// time point. The number of the image's series stays in it: if each time point is a file of several series, the time points of
/// one series are a group.
fn pair_key(pair: &Pair, group: Group, root: &Path) -> String {
    let suffix = series_suffix(pair.image.series);
    let stripped = pair.name.strip_suffix(&suffix).filter(|name| !name.is_empty());
    let (name, suffix) = stripped.map_or((pair.name.as_str(), ""), |name| (name, suffix.as_str()));
    let file = name.rsplit('/').next().unwrap_or(name);
    if group == Group::None || without_times(file).is_some() {
        return format!("{}{suffix}", group.key(name));
    }
    let folder = pair.image.path.parent().unwrap_or(Path::new(""));
    let below = folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().replace('\\', "/");
    format!("{below}{suffix}")
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
        assert_eq!(Group::ByName.key("plate_001_t3"), "plate");
        for name in ["Emb10_t251_c2", "Emb10_t_251_c2", "t251_Emb10_c2", "Emb10-Time-7_c2", "Emb10_c2-frame 12"] {
            let key = Group::ByTime.key(name).replace('-', "_");
            assert_eq!(key, "Emb10_c2", "{name}");
        }
        for whole in ["Emb10_t_c2", "t_251", "a_t1x", "_t1", "images/Emb10"] {
            assert_eq!(Group::ByTime.key(whole), whole);
        }
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
        let alike = ["a_t1_s1", "a_t2_s1", "a_t1_s2"].map(|name| Pair::new(name, "raw.tif", "labels.tif"));
        assert_eq!(grouped(&alike, Group::ByTime, &[]).len(), 2);
    }

    #[test]
    fn time_points_in_a_folder_of_their_own_are_a_group() {
        // Names begin with a folder only if several files have the same name.
        let names = ["Emb1/t001", "t002", "Emb2/t001", "t003", "Emb3"];
        let folders = ["Emb1", "Emb1", "Emb2", "Emb2", ""];
        let pairs: Vec<Pair> = names
            .iter()
            .zip(folders)
            .map(|(name, folder)| {
                let file = format!("{}.tif", name.rsplit('/').next().unwrap_or(name));
                Pair::new(*name, Path::new("/data/images").join(folder).join(file), "labels.tif")
            })
            .collect();
        let sizes = |group: Group| -> Vec<(String, usize)> {
            grouped(&pairs, group, &[]).into_iter().map(|(key, pairs)| (key, pairs.len())).collect()
        };
        let expected = [("Emb1", 2), ("Emb2", 2), ("Emb3", 1)].map(|(key, count)| (key.to_owned(), count));
        assert_eq!(sizes(Group::ByTime), expected);
        assert_eq!(sizes(Group::None).len(), 5);
        // The only folder gives no groups.
        let one = grouped(&pairs[..2], Group::ByTime, &[]);
        assert_eq!(one.into_keys().collect::<Vec<_>>(), [""]);
    }
}

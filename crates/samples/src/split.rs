//! Which pairs are learnt from and which are watched.

use crate::dataset::{Pair, Part, Window};
use crate::error::{SamplesError, check_range};
use crate::stack::{Stack, open_image};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Which pairs stay together, so that validation does not see what was learnt from.
///
/// Names are taken apart at `_`, `-`, `.` and spaces, and tokens are removed from their end; never the first one. Where fewer than two
/// groups would be left, every pair is a group of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Every pair for itself.
    None,
    /// Time points of one sample: tokens such as `t251`, `time3`, `tp12` or `frame0007` are removed (`Emb10_t251` and `Emb10_t501`
    /// are both of `Emb10`).
    #[default]
    ByTime,
    /// As [`Group::ByTime`], and plain numbers as well (`plate2_well3_001` is of `plate2_well3`).
    ByName,
}

impl Group {
    /// The group of a name.
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
            let goes = is_time || (self == Group::ByName && number(token));
            if !goes {
                break;
            }
            key = key.get(..at).unwrap_or_default();
        }
        key
    }
}

/// How to split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SplitOptions {
    /// Share of the pairs to validate on, 0 to 0.9; at least one pair where there are two.
    pub fraction: f64,
    /// Seed of the choice.
    pub seed: u64,
    /// Pairs that stay together.
    pub group: Group,
    /// Whether a split that the data bring along goes before.
    pub given: bool,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { fraction: 0.2, seed: 0, group: Group::default(), given: true }
    }
}

/// Pairs by what they are for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// Learnt from.
    pub train: Vec<Pair>,
    /// Watched while learning; a box of the only file where there is one.
    pub validation: Vec<Pair>,
    /// Kept for a last look.
    pub test: Vec<Pair>,
    /// How it was made, as a sentence.
    pub how: String,
}

/// Splits pairs, always the same way for the same names, fraction and seed, in whatever order they come.
///
/// With one pair, validation is the last quarter of its longer axis of Y and X, and training sees the rest.
///
/// # Errors
/// [`SamplesError::Parameter`] for no pairs or a fraction outside its range; [`SamplesError`] if the only pair cannot be read or is
/// too small to be cut.
pub fn split(pairs: &[Pair], options: &SplitOptions) -> Result<Split, SamplesError> {
    check_range("the share of validation", options.fraction, 0.0..=0.9, "0 to 0.9")?;
    let of = |part| pairs.iter().filter(move |p| p.part == Some(part)).cloned().collect::<Vec<_>>();
    let (given_train, given_validation, given_test) = (of(Part::Train), of(Part::Validation), of(Part::Test));
    let free: Vec<Pair> = pairs.iter().filter(|p| p.part.is_none()).cloned().collect();
    let can_train = given_train.len() + free.len();
    if options.given && can_train > 0 && !given_validation.is_empty() {
        let mut train = given_train;
        train.extend(free);
        let how = "The split is the one that the data bring along.".to_owned();
        return Ok(sorted(Split { train, validation: given_validation, test: given_test, how }));
    }
    let (pool, test) = if options.given && can_train > 0 {
        let mut pool = given_train;
        pool.extend(free);
        (pool, given_test)
    } else {
        (pairs.to_vec(), Vec::new())
    };
    match pool.as_slice() {
        [] => Err(SamplesError::Parameter {
            what: "the number of pairs to split",
            got: "0".to_owned(),
            expected: "at least one: see the problems that were found in the data",
        }),
        [only] => cut(only, test),
        _ => Ok(sorted(by_groups(pool, test, options))),
    }
}

fn sorted(mut split: Split) -> Split {
    for pairs in [&mut split.train, &mut split.validation, &mut split.test] {
        pairs.sort_by(|a, b| (&a.name, &a.image.path).cmp(&(&b.name, &b.image.path)));
    }
    split
}

fn by_groups(pool: Vec<Pair>, test: Vec<Pair>, options: &SplitOptions) -> Split {
    let mut group = options.group;
    let keys: BTreeSet<&str> = pool.iter().map(|p| group.key(&p.name)).collect();
    if keys.len() < 2 {
        group = Group::None;
    }
    let mut groups: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
    let total = pool.len();
    for pair in pool {
        groups.entry(group.key(&pair.name).to_owned()).or_default().push(pair);
    }
    let (count, largest) = (groups.len(), groups.values().map(Vec::len).max().unwrap_or(0));
    let mut drawn: Vec<([u8; 32], Vec<Pair>)> = groups
        .into_iter()
        .map(|(key, pairs)| {
            let mut hash = Sha256::new();
            hash.update(options.seed.to_le_bytes());
            hash.update(key.as_bytes());
            (hash.finalize().into(), pairs)
        })
        .collect();
    drawn.sort_by_key(|a| a.0);
    let wanted = ((options.fraction * total as f64).round() as usize).clamp(1, total - 1);
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    let mut left = count;
    for (_, pairs) in drawn {
        // The last group is kept for training, whatever its size.
        let fits = validation.len() + pairs.len() <= wanted || validation.is_empty();
        if validation.len() < wanted && fits && left > 1 {
            validation.extend(pairs);
        } else {
            train.extend(pairs);
        }
        left -= 1;
    }
    if train.is_empty() {
        std::mem::swap(&mut train, &mut validation);
    }
    let together = if largest > 1 && count > 1 { format!(", {count} groups kept together") } else { String::new() };
    let how = format!("{} of {total} pairs are for validation (seed {}{together}).", validation.len(), options.seed);
    Split { train, validation, test, how }
}

/// One stack: the end of it is for validation.
fn cut(pair: &Pair, test: Vec<Pair>) -> Result<Split, SamplesError> {
    let whole = match pair.window {
        Some(window) => window,
        None => {
            let stack = Stack::of(&pair.image, &open_image(&pair.image)?)?;
            Window { start_zyx: [0; 3], size_zyx: stack.zyx }
        }
    };
    let axis = if whole.size_zyx[1] >= whole.size_zyx[2] { 1 } else { 2 };
    let extent = whole.size_zyx[axis];
    let kept = extent - extent / 4;
    if extent < 8 {
        return Err(SamplesError::data(
            &pair.image.path,
            format!("it is the only pair, and with {:?} voxels too small to be cut into two", whole.size_zyx),
            "add a second pair to validate on",
        ));
    }
    let part = |start: usize, size: usize, part: Part| {
        let mut window = whole;
        window.start_zyx[axis] += start;
        window.size_zyx[axis] = size;
        Pair { window: Some(window), part: Some(part), ..pair.clone() }
    };
    let name = if axis == 1 { "Y" } else { "X" };
    let how =
        format!("There is one pair: the last quarter of its {name} axis, from voxel {kept} on, is for validation.");
    let (train, validation) = (vec![part(0, kept, Part::Train)], vec![part(kept, extent - kept, Part::Validation)]);
    Ok(Split { train, validation, test, how })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<Pair> {
        names.iter().map(|n| Pair::new(*n, format!("{n}_raw.tif"), format!("{n}_labels.tif"))).collect()
    }

    #[test]
    fn time_points_and_numbers_are_told_from_names() {
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
    fn the_split_does_not_depend_on_the_order_and_keeps_groups() {
        let names: Vec<String> = (1..=11).flat_map(|e| ["t251", "t501"].map(|t| format!("Emb{e:02}_{t}"))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut pairs = named(&names);
        for seed in 0..20 {
            let options = SplitOptions { seed, ..SplitOptions::default() };
            let one = split(&pairs, &options).unwrap();
            pairs.reverse();
            assert_eq!(split(&pairs, &options).unwrap(), one);
            assert_eq!(one.train.len() + one.validation.len(), 22);
            assert_eq!(one.validation.len(), 4);
            let keys = |p: &[Pair]| p.iter().map(|p| p.name[..5].to_owned()).collect::<BTreeSet<_>>();
            assert!(keys(&one.train).is_disjoint(&keys(&one.validation)));
        }
        let seeds: BTreeSet<String> = (0..20)
            .map(|seed| {
                split(&pairs, &SplitOptions { seed, ..SplitOptions::default() }).unwrap().validation[0].name.clone()
            })
            .collect();
        assert!(seeds.len() > 3);
    }

    #[test]
    fn two_pairs_are_one_and_one_even_of_one_embryo() {
        let pairs = named(&["Emb1_t1", "Emb1_t2"]);
        for fraction in [0.0, 0.5, 0.9] {
            let got = split(&pairs, &SplitOptions { fraction, ..SplitOptions::default() }).unwrap();
            assert_eq!((got.train.len(), got.validation.len()), (1, 1));
        }
    }

    #[test]
    fn a_given_split_goes_before() {
        let mut pairs = named(&["a", "b", "c", "d"]);
        pairs[0].part = Some(Part::Validation);
        pairs[3].part = Some(Part::Test);
        let got = split(&pairs, &SplitOptions::default()).unwrap();
        assert_eq!(got.validation[0].name, "a");
        assert_eq!(got.train.len(), 2);
        assert_eq!(got.test[0].name, "d");
        // Only training is given: validation is taken from it.
        pairs.iter_mut().for_each(|p| p.part = Some(Part::Train));
        let got = split(&pairs, &SplitOptions::default()).unwrap();
        assert_eq!((got.train.len(), got.validation.len()), (3, 1));
        assert!(split(&[], &SplitOptions::default()).is_err());
    }
}

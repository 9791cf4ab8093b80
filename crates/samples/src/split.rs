//! Which pairs are learnt from and which are watched.

use crate::dataset::{Pair, Part, Window};
use crate::error::{SamplesError, check_range};
use crate::stack::{Role, Stack, open_image};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Which pairs stay together, so that validation does not see what was learnt from.
///
/// Names are taken apart at `_`, `-`, `.` and spaces, and tokens are removed from their end; never the first one. Where fewer than two
/// groups would be left, every pair is a group of its own, but for [`SplitOptions::together`].
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Names of pairs that stay together besides: those of one image, as [`crate::Report::copies`] gives them.
    pub together: Vec<Vec<String>>,
    /// What an earlier split validated on, as [`Split::validation_names`] gives it, goes before all else; names that are not
    /// there are left aside. Where none is there, or nothing would be left to learn from, the split is made anew.
    pub keep: Vec<String>,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { fraction: 0.2, seed: 0, group: Group::default(), given: true, together: Vec::new(), keep: Vec::new() }
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

/// What follows the name of a pair in [`Split::validation_names`] where only its end is validated on.
const END: &str = " (its end)";

impl Split {
    /// Names of the pairs that are validated on, for [`SplitOptions::keep`]; of a pair that was cut, `NAME (its end)`.
    pub fn validation_names(&self) -> Vec<String> {
        let is_cut = |pair: &Pair| pair.window.is_some() && self.train.iter().any(|t| t.name == pair.name);
        let name = |pair: &Pair| if is_cut(pair) { format!("{}{END}", pair.name) } else { pair.name.clone() };
        self.validation.iter().map(name).collect()
    }
}

/// Splits pairs, always the same way for the same names, fraction and seed, in whatever order they come.
///
/// With one pair, or several of one image, validation is the last quarter of its longer axis of Y and X, and training sees the rest.
///
/// # Errors
/// [`SamplesError::Parameter`] for no pairs or a fraction outside its range; [`SamplesError`] if the only pair cannot be read or is
/// too small to be cut; so for one of [`SplitOptions::keep`] that is cut.
pub fn split(pairs: &[Pair], options: &SplitOptions) -> Result<Split, SamplesError> {
    check_range("the share of validation", options.fraction, 0.0..=0.9, "0 to 0.9")?;
    if let Some(kept) = kept(pairs, options)? {
        return Ok(sorted(kept));
    }
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
    if pool.is_empty() {
        return Err(SamplesError::Parameter {
            what: "the number of pairs to split",
            got: "0".to_owned(),
            expected: "at least one: see the problems that were found in the data",
        });
    }
    let mut groups = grouped(&pool, options.group, &options.together);
    if groups.len() < 2 {
        groups = grouped(&pool, Group::None, &options.together);
    }
    Ok(sorted(if groups.len() < 2 { cut_all(&pool, test)? } else { by_groups(groups, test, options) }))
}

/// The pairs whose names, with an ending, are among some names.
fn those_of<'a>(pairs: &'a [Pair], ending: &str, names: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let is_named = |name: &&str| names.contains(format!("{name}{ending}").as_str());
    pairs.iter().map(|p| p.name.as_str()).filter(is_named).collect()
}

/// Names, and those of the same images.
fn with_copies<'a>(names: &BTreeSet<&'a str>, together: &'a [Vec<String>]) -> BTreeSet<&'a str> {
    let are_copies = |copies: &&Vec<String>| copies.iter().any(|name| names.contains(name.as_str()));
    let copies = together.iter().filter(are_copies).flatten().map(String::as_str);
    names.iter().copied().chain(copies).collect()
}

/// The split that goes on with what an earlier one validated on; `None` where there is none.
fn kept(pairs: &[Pair], options: &SplitOptions) -> Result<Option<Split>, SamplesError> {
    let names: BTreeSet<&str> = options.keep.iter().map(String::as_str).collect();
    let (whole, ends) = (those_of(pairs, "", &names), those_of(pairs, END, &names));
    // Another pair of an image that is validated on cannot be learnt from.
    let (all_whole, all_ends) = (with_copies(&whole, &options.together), with_copies(&ends, &options.together));
    let (mut train, mut validation, mut test) = (Vec::new(), Vec::new(), Vec::new());
    for pair in pairs {
        let name = pair.name.as_str();
        let given = pair.part.filter(|_| options.given && !whole.contains(name) && !ends.contains(name));
        if all_whole.contains(name) || given == Some(Part::Validation) {
            validation.push(pair.clone());
        } else if given == Some(Part::Test) {
            test.push(pair.clone());
        } else if all_ends.contains(name) {
            let (start, end, _) = cut(pair)?;
            train.push(start);
            validation.push(end);
        } else {
            train.push(pair.clone());
        }
    }
    let there = whole.len() + ends.len();
    if there == 0 || train.is_empty() {
        return Ok(None);
    }
    let gone = names.len().saturating_sub(there);
    let left = if gone > 0 { format!("; {gone} of them are no longer there") } else { String::new() };
    let how = format!("Validation is on what it was before, {} of {} pairs{left}.", validation.len(), pairs.len());
    Ok(Some(Split { train, validation, test, how }))
}

fn sorted(mut split: Split) -> Split {
    for pairs in [&mut split.train, &mut split.validation, &mut split.test] {
        pairs.sort_by(|a, b| (&a.name, &a.image.path).cmp(&(&b.name, &b.image.path)));
    }
    split
}

/// Pairs that stay together, by a name of the group: those of one group of names, and those of one image with all of theirs.
fn grouped(pool: &[Pair], group: Group, together: &[Vec<String>]) -> BTreeMap<String, Vec<Pair>> {
    let keys: BTreeMap<&str, &str> = pool.iter().map(|p| (p.name.as_str(), group.key(&p.name))).collect();
    // From the key of a group to a smaller one of the same image, if any.
    let mut smaller: BTreeMap<&str, &str> = BTreeMap::new();
    for copies in together {
        let there = copies.iter().filter_map(|name| keys.get(name.as_str()).copied());
        let joined: BTreeSet<&str> = there.map(|key| least(&smaller, key)).collect();
        if let Some(first) = joined.first().copied() {
            smaller.extend(joined.into_iter().skip(1).map(|key| (key, first)));
        }
    }
    let mut groups: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
    for pair in pool {
        groups.entry(least(&smaller, group.key(&pair.name)).to_owned()).or_default().push(pair.clone());
    }
    groups
}

/// The last key that a key leads to.
fn least<'a>(smaller: &BTreeMap<&'a str, &'a str>, mut key: &'a str) -> &'a str {
    while let Some(next) = smaller.get(key).copied() {
        key = next;
    }
    key
}

/// Draws groups for validation until its share is reached; at least two groups.
fn by_groups(groups: BTreeMap<String, Vec<Pair>>, test: Vec<Pair>, options: &SplitOptions) -> Split {
    let sizes: Vec<usize> = groups.values().map(Vec::len).collect();
    let (count, total): (usize, usize) = (sizes.len(), sizes.iter().sum());
    let [smallest, largest] = [sizes.iter().min(), sizes.iter().max()].map(|n| n.copied().unwrap_or(0));
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
    let wanted = ((options.fraction * total as f64).round() as usize).min(total.saturating_sub(1)).max(1);
    let (mut train, mut validation) = (Vec::new(), Vec::new());
    let mut left = count;
    for (_, pairs) in drawn {
        // One group is kept for training, and one for validation, the smallest if none is as small as is wanted.
        let fits = validation.len() + pairs.len() <= wanted.max(smallest);
        if validation.len() < wanted && fits && (left > 1 || validation.is_empty()) {
            validation.extend(pairs);
        } else {
            train.extend(pairs);
        }
        left -= 1;
    }
    let together = if largest > 1 { format!(", {count} groups kept together") } else { String::new() };
    let how = format!("{} of {total} pairs are for validation (seed {}{together}).", validation.len(), options.seed);
    Split { train, validation, test, how }
}

/// Pairs of one image: its end is for validation.
fn cut_all(pairs: &[Pair], test: Vec<Pair>) -> Result<Split, SamplesError> {
    let (mut train, mut validation, mut place) = (Vec::new(), Vec::new(), String::new());
    for pair in pairs {
        let (start, end, at) = cut(pair)?;
        train.push(start);
        validation.push(end);
        place = at;
    }
    let what = if pairs.len() == 1 { "pair" } else { "image" };
    let how = format!("There is one {what}: {place}, is for validation.");
    Ok(Split { train, validation, test, how })
}

/// The start of a pair's stack, its end, and where that is, in words.
fn cut(pair: &Pair) -> Result<(Pair, Pair, String), SamplesError> {
    let whole = match pair.window {
        Some(window) => window,
        None => {
            let stack = Stack::of(&pair.image, Role::Image, &open_image(&pair.image)?)?;
            Window { start_zyx: [0; 3], size_zyx: stack.zyx }
        }
    };
    let axis = if whole.size_zyx[1] >= whole.size_zyx[2] { 1 } else { 2 };
    let extent = whole.size_zyx[axis];
    let kept = extent - extent / 4;
    if extent < 8 {
        return Err(SamplesError::data(
            &pair.image.path,
            format!("no other image is there to validate on, and {:?} voxels are too few to be cut", whole.size_zyx),
            "add a second image",
        ));
    }
    let part = |start: usize, size: usize, part: Part| {
        let mut window = whole;
        window.start_zyx[axis] += start;
        window.size_zyx[axis] = size;
        Pair { window: Some(window), part: Some(part), ..pair.clone() }
    };
    let name = if axis == 1 { "Y" } else { "X" };
    let words = format!("the last quarter of its {name} axis, from voxel {kept} on");
    Ok((part(0, kept, Part::Train), part(kept, extent - kept, Part::Validation), words))
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
    fn copies_stay_together_and_leave_room_for_others() {
        // Six pairs of one image, of two samples: with what else is of these samples, they are one group of seven.
        let names = ["a_t1", "b_t1", "c1", "c2", "c3", "c4", "a_t2", "d", "e", "f"];
        let pairs = named(&names);
        let together = vec![["a_t1", "b_t1", "c1", "c2", "c3", "c4"].map(str::to_owned).to_vec()];
        let alone = grouped(&pairs, Group::ByTime, &together);
        assert_eq!(alone.keys().map(String::as_str).collect::<Vec<_>>(), ["a", "d", "e", "f"]);
        assert_eq!(alone["a"].len(), 7);
        for seed in 0..50 {
            let options = SplitOptions { seed, together: together.clone(), ..SplitOptions::default() };
            let got = split(&pairs, &options).unwrap();
            // The large group is never all that is validated on.
            assert_eq!((got.train.len(), got.validation.len()), (8, 2), "{seed}");
            assert!(got.validation.iter().all(|p| ["d", "e", "f"].contains(&p.name.as_str())));
        }
        // Sets that share a pair are one.
        let chain: Vec<Vec<String>> =
            names.windows(2).take(8).map(|w| w.iter().map(|n| (*n).to_owned()).collect()).collect();
        assert_eq!(grouped(&pairs, Group::None, &chain).len(), 2);
    }

    #[test]
    fn what_was_validated_on_stays_so() {
        let pairs = named(&["a", "b", "c", "d", "e"]);
        let first = split(&pairs, &SplitOptions { seed: 3, fraction: 0.4, ..SplitOptions::default() }).unwrap();
        let keep = first.validation_names();
        assert_eq!(keep.len(), 2);
        let names = |pairs: &[Pair]| pairs.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        // Whatever seed and share, and with pairs added: those go to training.
        let more = named(&["a", "a2", "b", "c", "d", "e", "f", "g"]);
        let options = SplitOptions { seed: 9, keep: keep.clone(), ..SplitOptions::default() };
        let again = split(&pairs, &options).unwrap();
        assert_eq!((&again.train, &again.validation), (&first.train, &first.validation));
        let got = split(&more, &options).unwrap();
        assert_eq!((names(&got.validation), got.train.len()), (keep.clone(), 6));
        // But for another pair of an image that is validated on.
        let together = vec![vec![keep[0].clone(), "g".to_owned()]];
        let got = split(&more, &SplitOptions { together, ..options.clone() }).unwrap();
        assert_eq!(names(&got.validation), [keep.clone(), vec!["g".to_owned()]].concat());
        // One that is gone is told; where all are, or nothing is left to learn from, the split is made anew.
        let gone: Vec<Pair> = pairs.iter().filter(|p| p.name != keep[0]).cloned().collect();
        let got = split(&gone, &options).unwrap();
        assert_eq!(names(&got.validation), keep[1..]);
        assert!(got.how.contains("1 of them"), "{}", got.how);
        let all_gone: Vec<Pair> = pairs.iter().filter(|p| !keep.contains(&p.name)).cloned().collect();
        assert_eq!(split(&all_gone, &options).unwrap().validation.len(), 1);
        let only: Vec<Pair> = pairs.iter().filter(|p| keep.contains(&p.name)).cloned().collect();
        let got = split(&only, &options).unwrap();
        assert_eq!((got.train.len(), got.validation.len()), (1, 1));
        // What the data keep for a last look is not learnt from.
        let mut marked = more;
        marked.iter_mut().filter(|p| p.name == "f").for_each(|p| p.part = Some(Part::Test));
        assert_eq!(names(&split(&marked, &options).unwrap().test), ["f"]);
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

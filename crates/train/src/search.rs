//! Search for training settings: ranges of settings, the settings of a trial, and the rungs of successive halving.

use crate::assign::SettingAssignment;
use crate::error::{invalid_toml, wrong_use};
use crate::toml_text::toml_text;
use cytoscope_pipeline::JobError;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::rounded;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use toml::{Table, Value};

/// Maximum number of trials of one search.
pub const MAX_TRIALS: usize = 10_000;

/// Values of a setting that a search draws from.
#[derive(Debug, Clone, PartialEq)]
enum SettingRange {
    /// Numbers between two bounds, all equally likely.
    Uniform([f64; 2]),
    /// Numbers between two positive bounds, whose logarithms are equally likely.
    LogUniform([f64; 2]),
    /// Integers from the first bound to the second.
    Integers([i64; 2]),
    /// A list of values, all equally likely.
    Values(Vec<Value>),
}

/// Number of draws for each trial after which combinations that were not drawn are listed instead.
const DRAWS_PER_TRIAL: u64 = 16;

/// Names of the ranges in the file.
const RANGES: [&str; 4] = ["uniform", "log_uniform", "integers", "values"];

impl SettingRange {
    /// Reads the table of a range; `key` is the setting, for messages.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if there are several ranges, or the values do not suit their range.
    fn parse(key: &str, table: &Table) -> Result<Self, JobError> {
        let several = || {
            let found: Vec<&str> = table.keys().map(String::as_str).collect();
            wrong_use(format!("{key}: found {}, expected exactly one of {}", found.join(", "), RANGES.join(", ")))
        };
        let (name, value) = table.iter().next().filter(|_| table.len() == 1).ok_or_else(several)?;
        let range_value = value.clone();
        let (range, expected) = match name.as_str() {
            "uniform" => (range_value.try_into().ok().map(Self::Uniform), "two numbers, the smaller one first"),
            "log_uniform" => {
                (range_value.try_into().ok().map(Self::LogUniform), "two numbers above 0, the smaller one first")
            }
            "integers" => (range_value.try_into().ok().map(Self::Integers), "two integers, the smaller one first"),
            "values" => (range_value.try_into().ok().map(Self::Values), "a list with at least one value"),
            _ => return Err(several()),
        };
        let invalid = || wrong_use(format!("{key}: {name} is {value}, expected {expected}"));
        range.filter(Self::is_valid).ok_or_else(invalid)
    }

    fn is_valid(&self) -> bool {
        match self {
            // The difference of finite bounds may exceed the largest number.
            Self::Uniform([low, high]) => low <= high && (high - low).is_finite(),
            Self::LogUniform([low, high]) => *low > 0.0 && low <= high && high.is_finite(),
            Self::Integers([low, high]) => low <= high,
            Self::Values(values) => !values.is_empty(),
        }
    }

    /// Returns the value at a position from 0 to below 1.
    fn at(&self, position: f64) -> Option<Value> {
        match self {
            Self::Uniform([low, high]) => Some(readable(low + position * (high - low), [*low, *high])),
            Self::LogUniform([low, high]) => {
                Some(readable((low.ln() + position * (high.ln() - low.ln())).exp(), [*low, *high]))
            }
            Self::Integers([low, high]) => {
                let count = high.abs_diff(*low) as f64 + 1.0;
                let offset = (position * count).floor() as i64;
                Some(Value::Integer(low.saturating_add(offset).min(*high)))
            }
            Self::Values(values) => values.get((position * values.len() as f64) as usize).cloned(),
        }
    }

    /// Returns the first different values, at most `limit`; `None` if they are all numbers between two bounds.
    fn first_values(&self, limit: usize) -> Option<Vec<Value>> {
        match self {
            Self::Uniform(bounds) | Self::LogUniform(bounds) => {
                let [low, high] = *bounds;
                (low == high).then(|| vec![readable(low, *bounds)])
            }
            Self::Integers([low, high]) => Some((*low..=*high).take(limit).map(Value::Integer).collect()),
            Self::Values(values) => {
                let mut distinct: Vec<Value> = Vec::new();
                for value in values {
                    if distinct.len() < limit && !distinct.contains(value) {
                        distinct.push(value.clone());
                    }
                }
                Some(distinct)
            }
        }
    }
}

/// Returns a number rounded, so that tables are readable and repeat the trial exactly, but not beyond the bounds of its range:
/// the settings may refuse the next number.
fn readable(number: f64, [low, high]: [f64; 2]) -> Value {
    Value::Float(rounded(number).clamp(low, high))
}

/// The ranges of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchSpace {
    /// Ranges by the key of the setting.
    ranges: BTreeMap<String, SettingRange>,
}

impl SearchSpace {
    /// Reads a TOML file of ranges: each setting, by its key as in a settings file, has `uniform`, `log_uniform`,
    /// `integers` or `values`.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be read, or for the first range that is invalid.
    pub fn read(path: &Path) -> Result<Self, JobError> {
        let file = open_regular(path).map_err(|error| JobError::unreadable(path, error))?;
        Self::parse(&toml_text(path, file)?).map_err(|error| match error {
            JobError::WrongUse(misuse) => JobError::WrongUse(misuse.about(path.display())),
            other => other,
        })
    }

    fn parse(text: &str) -> Result<Self, JobError> {
        let table: Table = text.parse().map_err(|e: toml::de::Error| JobError::WrongUse(invalid_toml(text, &e)))?;
        let mut ranges = BTreeMap::new();
        collect_ranges("", table, &mut ranges)?;
        if ranges.is_empty() {
            return Err(wrong_use(
                "no ranges: expected at least one, such as schedule.rate = { log_uniform = [1e-4, 1e-2] }",
            ));
        }
        Ok(Self { ranges })
    }

    /// Returns the keys of the settings, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.ranges.keys().map(String::as_str)
    }

    /// Returns the settings of `count` trials, each in the order of [`SearchSpace::keys`] and different from the others. There
    /// are fewer if the ranges have no further combination. The settings of a trial depend on the seed and on its number only.
    pub fn trials(&self, seed: u64, count: usize) -> Vec<Vec<SettingAssignment>> {
        let (mut trials, mut known) = (Vec::new(), BTreeSet::new());
        let mut add = |settings: Vec<SettingAssignment>| {
            let values: Vec<String> = settings.iter().map(SettingAssignment::value).collect();
            if trials.len() < count && known.insert(values) {
                trials.push(settings);
            }
            trials.len() >= count
        };
        let draws = (count as u64).saturating_mul(DRAWS_PER_TRIAL);
        let mut drawn = (0..draws).map(|draw| self.draw(seed, draw));
        if !drawn.any(&mut add) {
            // Fewer than `count` of these are known.
            let _ = self.combinations(count.saturating_mul(2)).into_iter().any(&mut add);
        }
        trials
    }

    /// Returns the first combinations of the values of all ranges, at most `limit`; none if a range has too many values.
    fn combinations(&self, limit: usize) -> Vec<Vec<SettingAssignment>> {
        let mut combinations = vec![Vec::new()];
        for (key, range) in &self.ranges {
            let Some(values) = range.first_values(limit) else { return Vec::new() };
            let assignments: Vec<SettingAssignment> =
                values.into_iter().map(|value| SettingAssignment::new(key, value)).collect();
            let extended = combinations.iter().flat_map(|first: &Vec<SettingAssignment>| {
                assignments.iter().map(move |last| [first.as_slice(), std::slice::from_ref(last)].concat())
            });
            combinations = extended.take(limit).collect();
        }
        combinations
    }

    /// Returns a combination of settings, in the order of [`SearchSpace::keys`]; it depends on the seed and the number of the
    /// draw only.
    pub fn draw(&self, seed: u64, draw: u64) -> Vec<SettingAssignment> {
        let settings = self.ranges.iter().enumerate().filter_map(|(place, (key, range))| {
            let mut state = seed;
            for part in [draw, place as u64] {
                state = mixed(state ^ mixed(part));
            }
            let position = (state >> 11) as f64 / (1u64 << 53) as f64;
            Some(SettingAssignment::new(key, range.at(position)?))
        });
        settings.collect()
    }
}

/// Returns a number whose bits all depend on those of `x` (the step of SplitMix64).
fn mixed(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Adds the ranges of a table and of the tables in it.
fn collect_ranges(prefix: &str, table: Table, ranges: &mut BTreeMap<String, SettingRange>) -> Result<(), JobError> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        let inner = match value {
            Value::Table(inner) => inner,
            other => return Err(wrong_use(format!("{key}: found {other}, expected a range: {}", RANGES.join(", ")))),
        };
        if !inner.keys().any(|name| RANGES.contains(&name.as_str())) {
            collect_ranges(&key, inner, ranges)?;
            continue;
        }
        let range = SettingRange::parse(&key, &inner)?;
        ranges.insert(key, range);
    }
    Ok(())
}

/// A rung of successive halving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchRung {
    /// Number of combinations of settings to try.
    pub trials: usize,
    /// Number of optimizer steps of each trial.
    pub steps: usize,
}

/// Returns the rungs of a search: half as many trials on each with twice as many steps, down to one trial with all
/// steps.
pub fn search_rungs(trials: usize, steps: usize) -> Vec<SearchRung> {
    let mut counts = vec![trials.max(1)];
    while let Some(count) = counts.last().copied().filter(|count| *count > 1) {
        counts.push(count.div_ceil(2));
    }
    let last = counts.len() - 1;
    let search_rung = |(rung, &trials): (usize, &usize)| {
        let shift = u32::try_from(last - rung).unwrap_or(u32::MAX);
        SearchRung { trials, steps: steps.checked_shr(shift).unwrap_or(0).max(1) }
    };
    counts.iter().enumerate().map(search_rung).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::config::TrainConfig;

    const SPACE: &str = "ema = { uniform = [0.5, 0.9] }\nschedule.rate = { log_uniform = [1e-4, 1e-2] }\n\
                         [network]\nconvs_per_block = { integers = [1, 3] }\nfilters = { values = [[4], [4, 8]] }\n";

    #[test]
    fn trials_are_inside_the_ranges_and_repeat() {
        let space = SearchSpace::parse(SPACE).unwrap();
        let keys: Vec<&str> = space.keys().collect();
        assert_eq!(keys, ["ema", "network.convs_per_block", "network.filters", "schedule.rate"]);
        let configs: Vec<TrainConfig> =
            (0..200).map(|trial| TrainConfig::read_with(None, &space.draw(3, trial)).unwrap()).collect();
        assert!(configs.iter().all(|c| (0.5..=0.9).contains(&c.ema)));
        let rates: Vec<f64> = configs.iter().map(|c| c.schedule.rate.unwrap()).collect();
        assert!(rates.iter().all(|rate| (0.99e-4..=1.01e-2).contains(rate)));
        // As many in each power of ten.
        let small = rates.iter().filter(|rate| **rate < 1e-3).count();
        assert!((70..130).contains(&small), "{small}");
        for convs in 1..=3 {
            let count = configs.iter().filter(|c| c.network.convs_per_block == convs).count();
            assert!((40..95).contains(&count), "{convs}: {count}");
        }
        assert!([vec![4], vec![4, 8]].iter().all(|f| configs.iter().any(|c| c.network.filters == *f)));
        assert_eq!(space.draw(3, 5), space.draw(3, 5));
        assert_ne!(space.draw(3, 5), space.draw(4, 5));
    }

    #[test]
    fn no_two_trials_have_the_same_settings() {
        let text = |space: &SearchSpace, seed, count| -> Vec<String> {
            let trials = space.trials(seed, count);
            trials.iter().map(|trial| trial.iter().map(|one| format!("{one};")).collect()).collect()
        };
        let discrete = SearchSpace::parse(
            "batch = { integers = [1, 2] }\nema = { values = [0.5, 0.9, 0.5] }\nvalidation.times = { uniform = [3.0, 3.0] }",
        )
        .unwrap();
        for count in 1..=9 {
            let trials = text(&discrete, 7, count);
            assert_eq!(trials.len(), count.min(4), "{trials:?}");
            assert_eq!(trials.iter().collect::<BTreeSet<_>>().len(), trials.len(), "{trials:?}");
            assert_eq!(trials[..], text(&discrete, 7, 9)[..trials.len()], "the number of trials changes none of them");
        }
        // The last of many values is hardly ever drawn, but listed.
        let many: Vec<String> = (0..500).map(|i| if i == 250 { "2".to_owned() } else { "1".to_owned() }).collect();
        let rare = SearchSpace::parse(&format!("batch = {{ values = [{}] }}", many.join(", "))).unwrap();
        assert_eq!(rare.trials(3, 5).len(), 2);
        let integers = SearchSpace::parse("batch = { integers = [1, 100] }").unwrap();
        assert_eq!(integers.trials(3, 100).len(), 100);
        assert_eq!(SearchSpace::parse(SPACE).unwrap().trials(3, 100).len(), 100);
        let whole = SearchSpace::parse("batch = { integers = [-9223372036854775808, 9223372036854775807] }").unwrap();
        assert_eq!(whole.trials(3, 10).len(), 10);
    }

    #[test]
    fn rounding_does_not_leave_a_range() {
        // The average of the weights must be below 1.
        let space = SearchSpace::parse("ema = { uniform = [0.99, 0.9999999] }\n").unwrap();
        let near_one = SearchSpace::parse("ema = { log_uniform = [0.9999996, 0.9999999] }\n").unwrap();
        for trial in 0..20 {
            for settings in [space.draw(1, trial), near_one.draw(1, trial)] {
                let config = TrainConfig::read_with(None, &settings).unwrap();
                assert!((0.99..=0.999_999_9).contains(&config.ema), "{}", config.ema);
            }
        }
    }

    #[test]
    fn invalid_ranges_are_named() {
        for (text, words) in [
            ("", "no ranges"),
            ("ema = 0.5", "ema: found 0.5"),
            (
                "ema = { uniform = [0.9, 0.5] }",
                "ema: uniform is [0.9, 0.5], expected two numbers, the smaller one first",
            ),
            ("ema = { uniform = [0.5] }", "ema: uniform is [0.5], expected two numbers"),
            ("ema = { uniform = [0.5, nan] }", "ema: uniform is [0.5, nan], expected two numbers"),
            ("ema = { uniform = [-1.5e308, 1.5e308] }", "ema: uniform is"),
            ("schedule.rate = { log_uniform = [0.0, 1.0] }", "schedule.rate: log_uniform is [0.0, 1.0], expected two"),
            (
                "batch = { integers = [4, 1] }",
                "batch: integers is [4, 1], expected two integers, the smaller one first",
            ),
            ("batch = { integers = [1.5, 4] }", "batch: integers is [1.5, 4], expected two integers"),
            ("batch = { values = [] }", "batch: values is [], expected a list with at least one value"),
            (
                "batch = { values = [1], integers = [1, 2] }",
                "expected exactly one of uniform, log_uniform, integers, values",
            ),
            ("batch = { integers = [1, 2], step = 1 }", "batch: found integers, step, expected exactly one of uniform"),
        ] {
            let error = SearchSpace::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn rungs_halve_the_trials_and_double_the_steps() {
        let rungs = |trials, steps| -> Vec<(usize, usize)> {
            search_rungs(trials, steps).into_iter().map(|rung| (rung.trials, rung.steps)).collect()
        };
        assert_eq!(rungs(8, 800), [(8, 100), (4, 200), (2, 400), (1, 800)]);
        assert_eq!(rungs(5, 3), [(5, 1), (3, 1), (2, 1), (1, 3)]);
        assert_eq!(rungs(1, 50), [(1, 50)]);
    }
}

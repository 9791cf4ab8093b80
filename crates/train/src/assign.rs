//! Settings given one by one as text, such as `schedule.rate=0.001`, which override a settings file.

use crate::config::TrainConfig;
use crate::error::{wrong_use, wrong_use_with};
use crate::toml_problem::{Place, setting_problem};
use crate::toml_text::toml_text;
use cytoscope_pipeline::JobError;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use toml::{Table, Value};

/// A setting and its value. As text, `KEY=VALUE`: the key as in the settings file, with dots between tables and their
/// keys; the value in TOML, where text needs no quotes.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingAssignment {
    /// The parts of the key.
    key: Vec<String>,
    value: Value,
}

impl FromStr for SettingAssignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "invalid setting \"{text}\": expected KEY=VALUE as in the settings file, such as schedule.rate=0.001"
            )
        };
        let (key, value) = text.split_once('=').ok_or_else(invalid)?;
        let key: Vec<String> = key.split('.').map(|part| part.trim().to_owned()).collect();
        if key.iter().any(String::is_empty) {
            return Err(invalid());
        }
        let value = value.trim();
        let value = value.parse::<Value>().unwrap_or_else(|_| Value::String(value.to_owned()));
        Ok(Self { key, value })
    }
}

impl fmt::Display for SettingAssignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key.join("."), self.value)
    }
}

impl SettingAssignment {
    /// Returns an assignment of a TOML value to a key, whose parts are separated by dots.
    pub(crate) fn new(key: &str, value: Value) -> Self {
        Self { key: key.split('.').map(str::to_owned).collect(), value }
    }

    /// Returns the key, with dots between its parts.
    pub fn key(&self) -> String {
        self.key.join(".")
    }

    /// Returns the value in TOML.
    pub fn value(&self) -> String {
        self.value.to_string()
    }

    /// Returns whether settings have this value.
    pub fn is_in(&self, config: &TrainConfig) -> bool {
        self.set_in(config).is_some_and(|changed| changed == *config)
    }

    /// Returns settings with this value; `None` if they cannot have it.
    pub fn set_in(&self, config: &TrainConfig) -> Option<TrainConfig> {
        // JSON, because TOML has no null for a setting that is none.
        let mut settings = serde_json::to_value(config).ok()?;
        let (last, tables) = self.key.split_last()?;
        let mut table = settings.as_object_mut()?;
        for part in tables {
            table = table.get_mut(part)?.as_object_mut()?;
        }
        table.insert(last.clone(), serde_json::to_value(&self.value).ok()?);
        serde_json::from_value(settings).ok()
    }

    /// Sets the value in the settings.
    fn apply(&self, settings: &mut Table) -> Result<(), JobError> {
        let Some((last, tables)) = self.key.split_last() else { return Ok(()) };
        let mut table = settings;
        for part in tables {
            let entry = table.entry(part.clone()).or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().ok_or_else(|| {
                let problem = format!("setting {}: {part} is a value, expected a table", self.key());
                wrong_use_with(problem, "check the key")
            })?;
        }
        table.insert(last.clone(), self.value.clone());
        Ok(())
    }
}

impl TrainConfig {
    /// Reads the settings from a TOML file, or starts with the defaults, and sets single ones.
    ///
    /// # Errors
    /// Same as [`TrainConfig::read`].
    pub fn read_with(path: Option<&Path>, assignments: &[SettingAssignment]) -> Result<Self, JobError> {
        if assignments.is_empty() {
            return path.map_or_else(|| Ok(Self::default()), Self::read);
        }
        let mut settings = match path {
            None => Table::new(),
            Some(path) => {
                // Read once: it may be a pipe.
                let file = std::fs::File::open(path).map_err(|error| JobError::unreadable(path, error))?;
                let text = toml_text(path, file)?;
                // Errors in the file itself are reported with their line.
                Self::parse(path, &text)?;
                text.parse::<Table>().map_err(|e| wrong_use(format!("{}: {e}", path.display())))?
            }
        };
        let file = settings.clone();
        for assignment in assignments {
            assignment.apply(&mut settings)?;
        }
        let invalid =
            |error: &str| wrong_use(format!("settings {}: {error}", refused_keys(&file, assignments).join(", ")));
        let type_error = |e: toml::de::Error| invalid(&setting_problem(e.message(), &Place::default()));
        let config: Self = settings.clone().try_into().map_err(type_error)?;
        config.refuse_unknown(&settings).map_err(|e| invalid(&e))?;
        Ok(config)
    }

    /// Returns assignments that give `base` these settings: only those that differ, section by section in alphabetic order.
    /// A section whose fields depend on each other, such as the loss with its kind, is one assignment.
    ///
    /// # Errors
    /// [`JobError::Internal`] if TOML cannot hold a setting.
    pub fn changes_from(&self, base: &Self) -> Result<Vec<SettingAssignment>, JobError> {
        let (now, before) = (self.to_table()?, base.to_table()?);
        let mut changes = Vec::new();
        for (section, value) in &now {
            let mut single = Vec::new();
            add_changes(section, value, before.get(section), &mut single);
            let changed = single.iter().try_fold(base.clone(), |config, change| change.set_in(&config));
            let is_complete = match changed {
                Some(config) => config.to_table()?.get(section) == Some(value),
                None => false,
            };
            if !is_complete {
                single = vec![SettingAssignment::new(section, value.clone())];
            }
            changes.extend(single);
        }
        Ok(changes)
    }

    fn to_table(&self) -> Result<Table, JobError> {
        let unreadable = |e: toml::de::Error| JobError::Internal(format!("the training settings are not read: {e}"));
        self.to_toml()?.parse::<Table>().map_err(unreadable)
    }
}

/// Returns the keys of the assignments that the settings of a file refuse even without those of other sections; all keys if
/// there are none.
fn refused_keys(file: &Table, assignments: &[SettingAssignment]) -> Vec<String> {
    let is_refused = |assignment: &&SettingAssignment| {
        let mut settings = file.clone();
        let mut section = assignments.iter().filter(|other| other.key.first() == assignment.key.first());
        let is_set = section.all(|other| other.apply(&mut settings).is_ok());
        let config: Result<TrainConfig, toml::de::Error> = settings.clone().try_into();
        !is_set || !config.is_ok_and(|config| config.refuse_unknown(&settings).is_ok())
    };
    let refused: Vec<String> = assignments.iter().filter(is_refused).map(SettingAssignment::key).collect();
    if refused.is_empty() { assignments.iter().map(SettingAssignment::key).collect() } else { refused }
}

/// Adds an assignment for each value in a setting that differs from what was set before.
fn add_changes(key: &str, value: &Value, before: Option<&Value>, changes: &mut Vec<SettingAssignment>) {
    match (value, before) {
        (value, Some(before)) if value == before => {}
        (Value::Table(table), Some(Value::Table(before))) => {
            for (name, value) in table {
                add_changes(&format!("{key}.{name}"), value, before.get(name), changes);
            }
        }
        _ => changes.push(SettingAssignment::new(key, value.clone())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::config::TrainPrecision;
    use cytoscope_profile::train_setting::TrainSetting;

    fn set(texts: &[&str]) -> Result<TrainConfig, String> {
        let assignments: Vec<SettingAssignment> = texts.iter().map(|text| text.parse().unwrap()).collect();
        TrainConfig::read_with(None, &assignments).map_err(|e| e.to_string())
    }

    #[test]
    fn single_settings_replace_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.toml");
        std::fs::write(&file, "batch = 4\n[network]\nfilters = [8, 16]\nconvs_per_block = 1\n").unwrap();
        let texts = ["network.filters=[4, 8]", "schedule.rate = 1e-3", "precision=f16", "ema=0.5"];
        let assignments: Vec<SettingAssignment> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let config = TrainConfig::read_with(Some(&file), &assignments).unwrap();
        assert_eq!((config.batch, config.network.filters, config.network.convs_per_block), (Some(4), vec![4, 8], 1));
        assert_eq!((config.schedule.rate, config.precision, config.ema), (Some(1e-3), TrainPrecision::F16, 0.5));
        assert_eq!(TrainConfig::read_with(Some(&file), &[]).unwrap(), TrainConfig::read(&file).unwrap());
    }

    #[test]
    fn settings_are_compared_with_single_ones() {
        let config = set(&["network.filters=[4, 8]", "ema=0.5", "loss.kind=bce", "segment.min_peak=0.25"]).unwrap();
        let is_in = |text: &str| text.parse::<SettingAssignment>().unwrap().is_in(&config);
        for same in ["network.filters=[4, 8]", "ema=0.5", "loss.kind=bce", "segment.min_peak=0.25", "accumulate=1"] {
            assert!(is_in(same), "{same}");
        }
        for other in ["network.filters=[4]", "ema=0.6", "loss.kind=dice", "segment.min_peak=0.5", "batch=2", "color=1"]
        {
            assert!(!is_in(other), "{other}");
        }
    }

    #[test]
    fn changed_settings_as_text_give_the_same_settings_again() {
        let texts = [
            "batch=4",
            "network.filters=[4, 8]",
            "schedule.rate=1e-3",
            "loss={ kind = \"focal\", gamma = 3.0 }",
            "augment.scale.probability=0.25",
            "patch_zyx=[8, 32, 32]",
            "diameter=12.5",
            "segment.min_peak=0.25",
            "target.kind=semantic",
            "only=[\"head\"]",
        ];
        let (config, base) = (set(&texts).unwrap(), TrainConfig { ema: 0.5, ..TrainConfig::default() });
        let changes: Vec<String> = config.changes_from(&base).unwrap().iter().map(ToString::to_string).collect();
        // Parsed as the window stores them.
        let assignments: Vec<SettingAssignment> = changes.iter().map(|text| text.parse().unwrap()).collect();
        let again = assignments.iter().try_fold(base, |config, change| change.set_in(&config)).unwrap();
        assert_eq!(again, config, "{changes:?}");
        let has = |text: &str| changes.iter().any(|change| change == text);
        assert!(has("batch=4") && has("network.filters=[4, 8]") && has("ema=0.99"), "{changes:?}");
        assert!(!changes.iter().any(|change| change.starts_with("network.convs")), "{changes:?}");
        assert!(config.changes_from(&config).unwrap().is_empty());
    }

    #[test]
    fn settings_that_advice_names_exist() {
        for setting in TrainSetting::ALL {
            let text = format!("{setting}=1");
            assert!(set(&[text.as_str()]).is_ok(), "{text}: {:?}", set(&[text.as_str()]));
        }
    }

    #[test]
    fn settings_that_do_not_exist_or_do_not_fit_are_named() {
        for (text, word) in [
            ("color=red", "color"),
            ("batch=many", "batch"),
            ("batch=many", "expected a whole number"),
            ("schedule.rate=fast", "expected a number"),
            ("batch.size=2", "batch"),
            ("segment.seed_hight=0.1", "seed_hight"),
        ] {
            let base = if text.starts_with("batch.") { vec!["batch=2", text] } else { vec![text] };
            let error = set(&base).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        // Numbers may have many digits.
        let error = set(&["color=1e99"]).unwrap_err();
        assert!(error.starts_with("settings color: ") && !error.contains("000"), "{error}");
        // Of several settings, those of a section that cannot be read are named.
        let error = set(&["batch=2", "loss.kind=focal", "ema=0.5", "budget.patience=1"]).unwrap_err();
        assert!(error.starts_with("settings loss.kind: the setting gamma is missing"), "{error}");
        for text in ["batch", "=2", "network.=3"] {
            assert!(text.parse::<SettingAssignment>().unwrap_err().contains("KEY=VALUE"));
        }
    }
}

//! All training settings with their defaults. The `--config` option of the command line reads them from a TOML file.

mod network;
mod optimization;

use crate::data_config::DataConfig;
use crate::error::{invalid_toml, wrong_use, wrong_use_with};
use crate::toml_text::toml_text;
use cytoscope_engine::Precision;
use cytoscope_graph::ElementType;
use cytoscope_model_package::license_problem;
use cytoscope_objects::{IsolatedOptions, OversizedOptions, SegmentOptions, TissueOptions};
use cytoscope_pipeline::{DiameterRequest, JobError, PerformanceRequest};
use cytoscope_training_data::limits::{MAX_PREFETCH, MAX_WORKERS};
use cytoscope_training_data::{AugmentOptions, Normalize, TargetKind};
use cytoscope_volume::number_text;
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::Table;

pub use network::NetworkConfig;
pub(crate) use optimization::loss;
pub use optimization::{LossConfig, OptimizerConfig, ScheduleConfig};

/// Default number of patches per batch.
const BATCH: usize = 2;
/// Maximum number of patches per batch; larger batches do not train faster.
pub const MAX_BATCH: usize = 4096;
/// Maximum number of batches for gradient accumulation.
pub const MAX_ACCUMULATE: usize = 1 << 16;
/// Maximum time budget in minutes: 30 days.
pub const MAX_MINUTES: f64 = 30.0 * 24.0 * 60.0;
/// Maximum edge length of a patch in voxels.
const MAX_PATCH_EDGE: usize = 4096;
/// Sections whose types ignore unknown keys: packages of other versions may have more segmentation settings, and serde
/// ignores all keys beside a `kind` without parameters.
const LENIENT_SECTIONS: [&str; 4] = ["loss", "normalize", "segment", "target"];

/// Training settings. A setting that is `None` is derived from the data or the start model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Which channel, time point and axes of the files to use.
    pub data: DataConfig,
    /// Training target made from the labels.
    pub target: Option<TargetKind>,
    /// Shape of a patch along Z, Y, X in voxels.
    pub patch_zyx: Option<[usize; 3]>,
    /// Patches per batch.
    pub batch: Option<usize>,
    /// Batches whose gradients are accumulated before each optimizer step.
    pub accumulate: usize,
    /// Voxel size along Z, Y, X in µm that all images are resampled to.
    pub voxel_um: Option<[f64; 3]>,
    /// Median object diameter: measured on the labels of each pair, or given in µm for all pairs (in voxels for files
    /// without a voxel size). Images are scaled so that objects have the model's nominal diameter.
    pub diameter: DiameterRequest,
    /// Nominal object diameter in µm of a network trained from scratch; by default the median of the data.
    pub object_diameter_um: Option<f64>,
    /// Intensity normalization. `normalise` is accepted in settings of earlier versions.
    #[serde(alias = "normalise")]
    pub normalize: Option<Normalize>,
    /// Fraction of patches that are centered on an object, 0 to 1.
    pub object_bias: f64,
    /// Random changes of the training patches.
    pub augment: AugmentOptions,
    /// Architecture of a network trained from scratch.
    pub network: NetworkConfig,
    /// Training loss: its kind and parameters.
    pub loss: Option<LossConfig>,
    /// Optimizer and its hyperparameters.
    pub optimizer: OptimizerConfig,
    /// How the learning rate changes over the run.
    pub schedule: ScheduleConfig,
    /// Duration of the training run.
    pub budget: BudgetConfig,
    /// When and how the validation set is predicted and scored.
    pub validation: ValidationConfig,
    /// Decay of the exponential moving average (EMA) of the parameters, which is validated and saved; 0 disables it.
    pub ema: f64,
    /// Maximum gradient norm (gradient clipping); 0 disables it.
    pub clip_norm: f32,
    /// Fraction of the training run after which batch norms are folded into the convolutions; batch norms of a start
    /// model are folded at once. With 1, batch norms are kept, also in the package.
    pub norm_share: f64,
    /// Train only parameters whose names contain one of these strings; if empty, all.
    pub only: Vec<String>,
    /// Number of data workers: threads that prepare patches. By default as many as the cores allow: one for every four
    /// cores if the CPU computes the steps, all but one on a GPU, at most eight.
    pub workers: Option<usize>,
    /// Maximum number of patches that are prepared in advance; by default four batches, at least 8, and two more for
    /// each data worker after the first.
    pub prefetch: Option<usize>,
    /// Size of the voxel cache in bytes.
    pub cache_bytes: u64,
    /// Memory limit for activations in MiB: beyond it, some activations are recomputed in the backward pass. By default
    /// half of the free memory.
    pub memory_mib: Option<u64>,
    /// Data type of convolutions and matrix products. 16-bit types need a GPU.
    pub precision: TrainPrecision,
    /// Segmentation settings of the model; by default the ones with the best validation score.
    pub segment: Option<SegmentOptions>,
    /// Which preset of the machine profile fills the settings that are left open: `auto` (the saved one), `off`,
    /// `fastest`, `least-memory` or `most-accurate`.
    pub performance: PerformanceRequest,
    /// Identifier of the license of the model in the SPDX list, such as `CC-BY-4.0`; by default that of the start model, or
    /// none.
    pub license: Option<String>,
}

/// Data type of convolutions and matrix products during training. Parameters, norms, loss and optimizer use 32-bit
/// floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainPrecision {
    /// TF32 on CUDA, 32-bit floats elsewhere.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// 32-bit floats; convolutions may round their factors to 10 mantissa bits (CUDA only).
    Tf32,
    /// 16-bit floats with loss scaling, so that small gradients do not underflow.
    F16,
    /// bfloat16: 16-bit floats with the range of 32-bit floats.
    Bf16,
}

impl TrainPrecision {
    /// Returns the training precision of this name; `None` for 8-bit integers, which only predictions compute in.
    pub fn of(precision: Precision) -> Option<Self> {
        match precision {
            Precision::F32 => Some(Self::F32),
            Precision::Tf32 => Some(Self::Tf32),
            Precision::F16 => Some(Self::F16),
            Precision::Bf16 => Some(Self::Bf16),
            Precision::Int8 => None,
        }
    }

    /// Returns the 16-bit element type, or `None` for 32-bit training.
    pub(crate) fn half(self) -> Option<ElementType> {
        match self {
            Self::Auto | Self::F32 | Self::Tf32 => None,
            Self::F16 => Some(ElementType::F16),
            Self::Bf16 => Some(ElementType::BF16),
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            data: DataConfig::default(),
            target: None,
            patch_zyx: None,
            batch: None,
            accumulate: 1,
            voxel_um: None,
            diameter: DiameterRequest::Auto,
            object_diameter_um: None,
            normalize: None,
            object_bias: 0.7,
            augment: AugmentOptions::default(),
            network: NetworkConfig::default(),
            loss: None,
            optimizer: OptimizerConfig::default(),
            schedule: ScheduleConfig::default(),
            budget: BudgetConfig::default(),
            validation: ValidationConfig::default(),
            ema: 0.99,
            clip_norm: 1.0,
            norm_share: 0.35,
            only: Vec::new(),
            workers: None,
            prefetch: None,
            cache_bytes: 2 << 30,
            memory_mib: None,
            precision: TrainPrecision::default(),
            segment: None,
            performance: PerformanceRequest::Auto,
            license: None,
        }
    }
}

impl TrainConfig {
    /// Returns the number of patches per batch.
    pub(crate) fn batch_size(&self) -> usize {
        self.batch.unwrap_or(BATCH)
    }

    /// Returns the number of patches that the gradient of one optimizer step is computed from.
    pub fn patches_per_step(&self) -> usize {
        self.batch_size().saturating_mul(self.accumulate)
    }

    /// Reads the settings from a TOML file.
    ///
    /// # Errors
    /// [`JobError`] if the file cannot be read; [`JobError::WrongUse`] that names an unknown or invalid setting.
    pub fn read(path: &Path) -> Result<Self, JobError> {
        let file = std::fs::File::open(path).map_err(|error| JobError::unreadable(path, error))?;
        Self::parse(path, &toml_text(path, file)?)
    }

    /// Reads the settings from the text of a TOML file; errors name its path.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, JobError> {
        let invalid = |e: toml::de::Error| JobError::WrongUse(invalid_toml(text, &e).about(path.display()));
        let config: Self = toml::from_str(text).map_err(invalid)?;
        let given: Table = text.parse().map_err(invalid)?;
        config.refuse_unknown(&given).map_err(|e| wrong_use(format!("{}: {e}", path.display())))?;
        Ok(config)
    }

    /// Refuses keys that these settings, which were read from `given`, do not have; the error names the key.
    pub(crate) fn refuse_unknown(&self, given: &Table) -> Result<(), String> {
        let mut complete = self.clone();
        if let Some(segment) = &mut complete.segment {
            // Optional settings are known keys, too.
            let none =
                TissueOptions { min_fill: 0.0, window_um: 0.0, height_smooth_um: 0.0, seed_height: 0.0, outline: None };
            segment.tissue.get_or_insert(none).outline.get_or_insert(0.0);
            segment.isolated.get_or_insert(IsolatedOptions { volume_share: 0.0, min_mean: 0.0 });
            let none = OversizedOptions { min_volume_um3: 0.0, part_share: 0.0, seed_share: 0.0, max_neck: None };
            segment.oversized.get_or_insert(none).max_neck.get_or_insert(0.0);
        }
        let as_json = |e: serde_json::Error| e.to_string();
        let known = serde_json::to_value(&complete).map_err(as_json)?;
        for section in LENIENT_SECTIONS {
            let (Some(given), Some(known)) = (given.get(section), known.get(section)) else { continue };
            refuse_unknown_keys(section, &serde_json::to_value(given).map_err(as_json)?, known)?;
        }
        Ok(())
    }

    /// Returns the settings as TOML, which [`TrainConfig::read`] reads.
    ///
    /// # Errors
    /// [`JobError::Internal`] if TOML cannot hold a setting.
    pub fn to_toml(&self) -> Result<String, JobError> {
        toml::to_string(self).map_err(|e| JobError::Internal(format!("the training settings are not stored: {e}")))
    }

    /// Checks the settings that no other crate checks.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for the first setting that is out of range.
    pub fn check(&self) -> Result<(), JobError> {
        let share = |what: &str, v: f64| {
            if (0.0..=1.0).contains(&v) { Ok(()) } else { Err(wrong_use(format!("{what} is {v}: expected 0 to 1"))) }
        };
        share("ema", self.ema)?;
        share("norm_share", self.norm_share)?;
        share("object_bias", self.object_bias)?;
        share("schedule.warm_up", self.schedule.warm_up)?;
        share("schedule.end", self.schedule.end)?;
        share("validation.fraction", self.validation.fraction)?;
        let within = |what: &str, n: usize, max: usize| {
            if (1..=max).contains(&n) { Ok(()) } else { Err(wrong_use(format!("{what} is {n}: expected 1 to {max}"))) }
        };
        within("accumulate", self.accumulate, MAX_ACCUMULATE)?;
        within("batch", self.batch.unwrap_or(1), MAX_BATCH)?;
        within("workers", self.workers.unwrap_or(1), MAX_WORKERS)?;
        within("prefetch", self.prefetch.unwrap_or(1), MAX_PREFETCH)?;
        if let Some(rate) = self.schedule.rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            return Err(wrong_use(format!(
                "schedule.rate is {}: expected a number above 0, such as 0.001",
                number_text(rate)
            )));
        }
        if !(self.clip_norm.is_finite() && self.clip_norm >= 0.0) {
            return Err(wrong_use(format!("clip_norm is {}: expected 0 or more", self.clip_norm)));
        }
        for edge in self.patch_zyx.into_iter().flatten() {
            within("an edge of patch_zyx", edge, MAX_PATCH_EDGE)?;
        }
        if let Some(diameter) = self.object_diameter_um.filter(|d| !(1e-3..=1e6).contains(d)) {
            let given = number_text(diameter);
            return Err(wrong_use(format!("object_diameter_um is {given}: expected a diameter in µm, such as 12")));
        }
        for (what, limit) in [("epochs", self.budget.epochs), ("steps", self.budget.steps)] {
            if limit == Some(0) {
                return Err(wrong_use(format!(
                    "budget.{what} is 0: expected at least 1, or an untrained network is written"
                )));
            }
        }
        if let Some(problem) = self.budget.minutes.and_then(minutes_problem) {
            return Err(wrong_use(format!("budget.minutes {problem}")));
        }
        if let Some(voxel) = self.voxel_um.filter(|v| v.iter().any(|s| !s.is_finite() || *s <= 0.0)) {
            return Err(wrong_use(format!("voxel_um is {voxel:?}: expected three numbers above 0, in µm")));
        }
        if let Some(problem) = self.license.as_deref().and_then(license_problem) {
            return Err(wrong_use_with(format!("license {}", problem.problem), problem.next_step));
        }
        self.schedule.check()?;
        self.loss.map_or(Ok(()), LossConfig::check)?;
        self.optimizer.check()?;
        self.data.check()?;
        self.network.check()
    }
}

/// Returns what is wrong with a time budget in minutes, as text that follows the name of the setting; `None` if it can be used.
pub fn minutes_problem(minutes: f64) -> Option<String> {
    let is_usable = minutes > 0.0 && minutes <= MAX_MINUTES;
    let given = number_text(minutes);
    (!is_usable).then(|| format!("is {given}: expected a number above 0 and at most {MAX_MINUTES} (30 days)"))
}

/// Refuses keys of the table `given`, and of the tables in it, that `known` lacks.
fn refuse_unknown_keys(path: &str, given: &serde_json::Value, known: &serde_json::Value) -> Result<(), String> {
    let (Some(given), Some(known)) = (given.as_object(), known.as_object()) else { return Ok(()) };
    for (key, value) in given {
        let Some(inner) = known.get(key) else {
            let expected: Vec<&str> = known.keys().map(String::as_str).collect();
            return Err(format!("unknown setting {path}.{key}: expected one of {}", expected.join(", ")));
        };
        refuse_unknown_keys(&format!("{path}.{key}"), value, inner)?;
    }
    Ok(())
}

/// Budget of a training run: the smallest of the limits that are set; 30 epochs if none is set.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetConfig {
    /// Epochs; an epoch has as many patches as cover the data once, at least 64.
    pub epochs: Option<usize>,
    /// Wall-clock time in minutes, including checks, validation and quantization.
    pub minutes: Option<f64>,
    /// Maximum number of optimizer steps.
    pub steps: Option<usize>,
    /// Early stopping: validations without a better score after which training ends; 0 disables it.
    pub patience: usize,
}

impl BudgetConfig {
    /// Returns whether any limit is set.
    pub(crate) fn is_given(&self) -> bool {
        self.epochs.is_some() || self.minutes.is_some() || self.steps.is_some()
    }
}

/// When and how the validation set is predicted and scored.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Fraction of the pairs in the validation set.
    pub fraction: f64,
    /// Number of validations in a training run.
    pub times: usize,
    /// Maximum number of pairs that are predicted in each validation.
    pub max_files: usize,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self { fraction: 0.2, times: 8, max_files: 6 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_objects::Threshold;
    use cytoscope_objects::components::Connectivity;

    #[test]
    fn unknown_settings_of_every_section_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let tissue = "min_fill = 0.4\nwindow_um = 36.0\nheight_smooth_um = 0.6\nseed_height = 0.1\n";
        let oversized = "min_volume_um3 = 900.0\npart_share = 0.3\nseed_share = 0.6\n";
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TrainConfig::read(&path).map_err(|error| error.to_string())
        };
        for (text, key) in [
            ("[segment]\nseed_hight = 0.1\n".to_owned(), "seed_hight"),
            (format!("[segment.tissue]\n{tissue}outlines = 0.7\n"), "outlines"),
            (format!("[segment.oversized]\n{oversized}seed = 0.1\n"), "seed"),
            (format!("[segment.oversized]\n{oversized}max_necks = 0.7\n"), "max_necks"),
            ("[segment]\nheight = { distance_plus_seeds = { weight_um = 1.0, weight = 2.0 } }\n".to_owned(), "weight"),
            ("[loss]\nkind = \"dice_ce\"\ngamma = 2.0\n".to_owned(), "gamma"),
            ("[target]\nkind = \"instances\"\nwidth_um = 1.0\n".to_owned(), "width_um"),
            ("[normalize]\nkind = \"none\"\neps = 1.0\n".to_owned(), "eps"),
            ("[schedule]\nrates = 0.1\n".to_owned(), "rates"),
        ] {
            let error = read(&text).unwrap_err();
            let is_refused = ["unknown", "unexpected keys"].iter().any(|words| error.contains(words));
            assert!(is_refused && error.contains(key), "{text}: {error}");
        }
        let known = format!("[segment]\nthreshold = {{ fixed = 0.5 }}\n[segment.tissue]\n{tissue}outline = 0.7\n");
        let large = format!("{known}[segment.oversized]\n{oversized}");
        let read_oversized = |text: &str| read(text).unwrap().segment.unwrap().oversized.unwrap();
        assert_eq!((read_oversized(&large).seed_share, read_oversized(&large).max_neck), (0.6, None));
        assert_eq!(read_oversized(&format!("{large}max_neck = 0.75\n")).max_neck, Some(0.75));
        assert_eq!(read(&known).unwrap().segment.unwrap().tissue.unwrap().outline, Some(0.7));
    }

    #[test]
    fn a_threshold_is_a_name_or_a_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let read = |threshold: &str| {
            std::fs::write(&path, format!("[segment]\nthreshold = {threshold}\n")).unwrap();
            TrainConfig::read(&path).map(|config| config.segment.unwrap().threshold).map_err(|error| error.to_string())
        };
        for text in ["0.25", "{ fixed = 0.25 }"] {
            assert_eq!(read(text), Ok(Threshold::Fixed(0.25)), "{text}");
        }
        assert_eq!(read("\"otsu\""), Ok(Threshold::Otsu));
        for text in ["\"high\"", "{ fix = 1.0 }", "true"] {
            let error = read(text).unwrap_err();
            assert!(error.contains("a threshold must be \"otsu\", a number"), "{text}: {error}");
        }
    }

    #[test]
    fn the_connectivity_of_earlier_packages_is_read() {
        let read = |name: &str| {
            let config: TrainConfig = toml::from_str(&format!("[segment]\nconnectivity = \"{name}\"\n")).unwrap();
            config.segment.unwrap().connectivity
        };
        assert_eq!(["faces", "Faces"].map(read), [Connectivity::Faces; 2]);
        assert_eq!(["corners", "Corners"].map(read), [Connectivity::Corners; 2]);
    }

    #[test]
    fn the_guide_lists_every_setting_with_its_default() {
        let guide = include_str!("../../../docs/guide/training.md");
        let text = guide.split("\n## Settings\n").nth(1).unwrap().split("```toml\n").nth(1).unwrap();
        let text = text.split("```").next().unwrap();
        let config: TrainConfig = toml::from_str(text).unwrap();
        config.refuse_unknown(&text.parse().unwrap()).unwrap();
        let (stated, defaults) = (serde_json::to_value(&config).unwrap(), serde_json::to_value(TrainConfig::default()));
        let (documented, defaults) = (text.parse::<Table>().unwrap(), defaults.unwrap());
        // Channels and files have their own table, budgets are options, and only the names of augmentations are listed.
        let elsewhere = ["data", "augment", "budget.epochs", "budget.minutes", "budget.steps"];
        for (section, default) in defaults.as_object().unwrap() {
            if elsewhere.contains(&section.as_str()) {
                continue;
            }
            assert!(documented.contains_key(section), "{section} is not documented");
            let Some(keys) = default.as_object() else {
                assert!(
                    default.is_null() || stated[section] == *default,
                    "{section}: {} is not the default",
                    stated[section]
                );
                continue;
            };
            for (key, default) in keys {
                if elsewhere.contains(&format!("{section}.{key}").as_str()) {
                    continue;
                }
                let is_documented = documented.get(section).is_some_and(|given| given.get(key).is_some());
                assert!(is_documented, "{section}.{key} is not documented");
                // Strides depend on the data.
                let is_default = default.is_null() || key == "strides" || stated[section][key] == *default;
                assert!(is_default, "{section}.{key}: {} is not the default", stated[section][key]);
            }
        }
        for augmentation in defaults["augment"].as_object().unwrap().keys() {
            assert!(text.contains(augmentation.as_str()), "augment.{augmentation} is not documented");
        }
    }

    #[test]
    fn a_license_that_bioimage_io_refuses_is_refused() {
        let check = |license: &str| TrainConfig { license: Some(license.to_owned()), ..TrainConfig::default() }.check();
        check("CC-BY-4.0").unwrap();
        for (license, next) in [("mit", "write MIT"), ("my own", "spdx.org/licenses"), ("GPL-3.0", "deprecated")] {
            let error = check(license).unwrap_err().to_string();
            assert!(error.contains(license) && error.contains(next), "{error}");
        }
    }

    #[test]
    fn settings_that_no_network_can_be_trained_with_are_refused_with_what_was_found() {
        let check = |text: &str| {
            let config: TrainConfig = toml::from_str(text).unwrap();
            config.check().map_err(|error| error.to_string())
        };
        for valid in [
            "loss = { kind = \"tversky\", alpha = 0.3, beta = 0.7 }",
            "loss = { kind = \"huber\", delta = 0.5 }",
            "optimizer = { kind = \"sgd\", momentum = 0.0, weight_decay = 0.0 }",
            "network = { filters = [4, 8], strides = [[1, 2, 2]] }",
        ] {
            assert_eq!(check(valid), Ok(()), "{valid}");
        }
        for (text, found) in [
            ("loss = { kind = \"tversky\", alpha = 0.5, beta = -0.1 }", "loss.beta is -0.1"),
            ("loss = { kind = \"focal\", gamma = nan }", "loss.gamma is NaN"),
            ("loss = { kind = \"huber\", delta = 0.0 }", "loss.delta is 0.0"),
            ("optimizer = { kind = \"adamw\", weight_decay = -1.0 }", "optimizer.weight_decay is -1.0"),
            ("optimizer = { kind = \"adam\", weight_decay = inf }", "optimizer.weight_decay is inf"),
            ("optimizer = { kind = \"sgd\", momentum = 1.5 }", "optimizer.momentum is 1.5"),
            ("network = { filters = [] }", "network.filters has 0 levels"),
            ("network = { filters = [8, 2000] }", "network.filters has 2000"),
            ("network = { convs_per_block = 9 }", "network.convs_per_block is 9"),
            ("network = { compress = -2.0 }", "network.compress is -2.0"),
            ("network = { filters = [8, 16], strides = [[2, 2, 2], [2, 2, 2]] }", "network.strides has 2 entries"),
            ("network = { filters = [8, 16], strides = [[2, 5, 2]] }", "network.strides has 5"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(found) && error.contains("expected"), "{text}: {error}");
        }
    }

    #[test]
    fn a_time_budget_is_above_0_and_at_most_30_days() {
        let check = |minutes: f64| {
            let budget = BudgetConfig { minutes: Some(minutes), ..BudgetConfig::default() };
            TrainConfig { budget, ..TrainConfig::default() }.check().map_err(|error| error.to_string())
        };
        assert_eq!([0.01, MAX_MINUTES].map(check), [Ok(()), Ok(())]);
        for (minutes, shown) in [(0.0, "0"), (-1.0, "-1"), (43_201.0, "43201"), (1e99, "1e99"), (f64::NAN, "NaN")] {
            let error = check(minutes).unwrap_err();
            let expected = format!("budget.minutes is {shown}: expected a number above 0 and at most 43200 (30 days)");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn written_settings_are_read_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.toml");
        let chosen = TrainConfig {
            target: Some(TargetKind::Semantic),
            patch_zyx: Some([8, 32, 32]),
            workers: Some(3),
            memory_mib: Some(512),
            diameter: DiameterRequest::Given(9.5),
            segment: Some(SegmentOptions::default()),
            only: vec!["head".to_owned()],
            license: Some("CC-BY-4.0".to_owned()),
            data: DataConfig { image_channel: Some(1), same_file: true, ..DataConfig::default() },
            ..TrainConfig::default()
        };
        for config in [TrainConfig::default(), chosen] {
            std::fs::write(&path, config.to_toml().unwrap()).unwrap();
            assert_eq!(TrainConfig::read(&path).unwrap(), config);
        }
    }
}

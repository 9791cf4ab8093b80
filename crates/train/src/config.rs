//! Every setting of a training, with its default; as TOML, `--config` of the command line.

use crate::error::wrong;
use cytoscope_graph::ElementType;
use cytoscope_graph::training::{Decay, Loss, LossKind, LossTerm, Optimizer, Schedule};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::{DiameterRequest, JobError, MAX_THREADS};
use cytoscope_samples::{AugmentOptions, ChannelPair, FindOptions, Normalise, SpacingOrder, TargetKind};
use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Most patches of a step: their gradients are one sum, and more learn nothing faster.
const MAX_BATCH: usize = 4096;
/// Most batches whose gradients are added up.
const MAX_ACCUMULATE: usize = 1 << 16;
/// Longest edge of a patch in voxels.
const MAX_PATCH_EDGE: usize = 4096;

/// Settings of a training. What is `None` follows from the data or the model that training starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// What is taken of the files.
    pub data: DataConfig,
    /// What is to be learnt from labels.
    pub target: Option<TargetKind>,
    /// Voxels of a patch along Z, Y, X.
    pub patch_zyx: Option<[usize; 3]>,
    /// Patches in a step.
    pub batch: Option<usize>,
    /// Batches whose gradients are added up before the parameters move.
    pub accumulate: usize,
    /// Voxel size Z, Y, X in µm that everything is brought to.
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter of the objects: measured on the labels of each pair, or given in µm for all pairs (in voxels where files
    /// state no voxel size). Objects are brought to the model's nominal diameter by it.
    pub diameter: DiameterRequest,
    /// Nominal object diameter in µm of a network from scratch; by default the median of the data.
    pub object_diameter_um: Option<f64>,
    /// How intensities are scaled.
    pub normalise: Option<Normalise>,
    /// How often a patch is centred on an object.
    pub object_bias: f64,
    /// How patches are changed.
    pub augment: AugmentOptions,
    /// A network to begin from scratch.
    pub network: NetworkConfig,
    /// What is made small.
    pub loss: Option<LossConfig>,
    /// How parameters move.
    pub optimizer: OptimizerConfig,
    /// How fast.
    pub schedule: ScheduleConfig,
    /// How long.
    pub budget: BudgetConfig,
    /// How it is watched.
    pub validation: ValidationConfig,
    /// Memory of the average of the parameters that is validated and kept; 0 for none.
    pub ema: f64,
    /// Largest norm of a gradient; 0 for any.
    pub clip_norm: f32,
    /// Share of the training that batch norms gather statistics, before they are folded into the convolutions.
    pub norm_share: f64,
    /// Only parameters whose names hold one of these are taught; all if empty.
    pub only: Vec<String>,
    /// Threads that make patches.
    pub workers: usize,
    /// Bytes of voxels kept in memory.
    pub cache_bytes: u64,
    /// MiB of activations held at once: above that, some are computed again where the backward pass needs them. By default half of
    /// the free memory.
    pub memory_mib: Option<u64>,
    /// What products are computed in. 16 bits are for graphics cards.
    pub precision: TrainPrecision,
    /// How objects are made of the maps; found by their score if not given.
    pub segment: Option<SegmentOptions>,
}

/// What products are computed in while training. Parameters, norms, losses and the optimizer keep 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainPrecision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats; the loss is scaled so that small gradients do not vanish.
    F16,
    /// 16-bit floats with the range of 32-bit ones.
    Bf16,
}

impl TrainPrecision {
    /// The 16-bit floats.
    pub(crate) fn half(self) -> Option<ElementType> {
        match self {
            Self::F32 => None,
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
            normalise: None,
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
            workers: 1,
            cache_bytes: 2 << 30,
            memory_mib: None,
            precision: TrainPrecision::default(),
            segment: None,
        }
    }
}

impl TrainConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] that names the setting which is not known or not right.
    pub fn read(path: &Path) -> Result<Self, JobError> {
        let text = std::fs::read_to_string(path).map_err(|error| JobError::Io { path: path.to_owned(), error })?;
        toml::from_str(&text).map_err(|e| wrong(format!("{}: {e}", path.display())))
    }

    /// Checks what no other room checks.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for the first setting out of its range.
    pub fn check(&self) -> Result<(), JobError> {
        let share = |what: &str, v: f64| {
            if (0.0..=1.0).contains(&v) { Ok(()) } else { Err(wrong(format!("{what} is {v}: expected 0 to 1"))) }
        };
        share("ema", self.ema)?;
        share("norm_share", self.norm_share)?;
        share("object_bias", self.object_bias)?;
        share("schedule.warm_up", self.schedule.warm_up)?;
        share("schedule.end", self.schedule.end)?;
        share("validation.fraction", self.validation.fraction)?;
        let within = |what: &str, n: usize, most: usize| {
            if (1..=most).contains(&n) { Ok(()) } else { Err(wrong(format!("{what} is {n}: expected 1 to {most}"))) }
        };
        within("accumulate", self.accumulate, MAX_ACCUMULATE)?;
        within("batch", self.batch.unwrap_or(1), MAX_BATCH)?;
        within("workers", self.workers, MAX_THREADS)?;
        if self.schedule.rate.is_some_and(|r| !r.is_finite() || r <= 0.0) {
            return Err(wrong(format!(
                "schedule.rate is {:?}: expected a number above 0, such as 0.001",
                self.schedule.rate
            )));
        }
        if !(self.clip_norm.is_finite() && self.clip_norm >= 0.0) {
            return Err(wrong("clip_norm must be 0 or more"));
        }
        for edge in self.patch_zyx.into_iter().flatten() {
            within("an edge of patch_zyx", edge, MAX_PATCH_EDGE)?;
        }
        if self.object_diameter_um.is_some_and(|d| !(1e-3..=1e6).contains(&d)) {
            return Err(wrong("object_diameter_um must be a diameter in µm, such as 12"));
        }
        if self.budget.minutes.is_some_and(|m| !(m.is_finite() && m > 0.0)) {
            return Err(wrong("budget.minutes must be a number above 0"));
        }
        if self.voxel_um.is_some_and(|v| v.iter().any(|s| !s.is_finite() || *s <= 0.0)) {
            return Err(wrong("voxel_um must be three sizes above 0"));
        }
        self.data.check()?;
        self.network.check()
    }
}

/// What is taken of the files, and what is known of them that they do not say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// Channel of the images, from 0, where they have several; of nnU-Net's files, which of `_0000`, `_0001` and so on.
    pub image_channel: Option<usize>,
    /// Channel of the targets, from 0, where they have several.
    pub target_channel: Option<usize>,
    /// Image and target are the two channels of one file: every file is a pair by itself.
    pub same_file: bool,
    /// Time point of images and targets, from 0, where they have several.
    pub time: Option<usize>,
    /// Axes of the files where their own are wrong, such as `ZYX`.
    pub axes: Option<Axes>,
    /// Voxel size Z, Y, X of the files in µm, where they say it wrong or not at all.
    pub voxel_um: Option<[f64; 3]>,
    /// Label of voxels that are not known, in all label images; they count in no loss and no score.
    pub ignore_label: Option<i64>,
    /// Column of a table that says what a row is for (train, valid, test).
    pub split_column: Option<String>,
    /// Order of the numbers of nnU-Net's `spacing`.
    pub spacing_order: Option<SpacingOrder>,
}

impl DataConfig {
    /// Refuses settings that fit no files.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        let two = self.image_channel.zip(self.target_channel).is_some_and(|(image, target)| image != target);
        if self.same_file && !two {
            return Err(wrong(
                "data.same_file: give two different channels as data.image_channel and data.target_channel",
            ));
        }
        if self.voxel_um.is_some_and(|v| v.iter().any(|s| !(1e-6..=1e6).contains(s))) {
            return Err(wrong("data.voxel_um must be three sizes above 0, in µm"));
        }
        if self.axes.as_ref().is_some_and(|axes| axes.iter().next().is_none()) {
            return Err(wrong("data.axes: expected some of the letters T, Z, C, Y, X, S, such as \"ZYX\""));
        }
        if self.split_column.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(wrong("data.split_column must be the name of a column"));
        }
        Ok(())
    }

    /// How pairs are looked for.
    pub(crate) fn find_options(&self) -> FindOptions {
        let both = self.image_channel.zip(self.target_channel).filter(|_| self.same_file);
        FindOptions {
            channels: both.map(|(input, target)| ChannelPair { input, target }),
            image_channel: self.image_channel,
            target_channel: self.target_channel,
            time: self.time,
            axes: self.axes.clone(),
            split_column: self.split_column.as_ref().map(|name| name.trim().to_owned()),
            voxel_um: self.voxel_um,
            spacing_order: self.spacing_order,
        }
    }
}

/// A U-Net of ours to begin from scratch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Channels of each level.
    pub filters: Vec<usize>,
    /// Stride into each level after the first, along Z, Y, X; made from the voxel size if empty.
    pub strides: Vec<[usize; 3]>,
    /// Convolutions in each block.
    pub convs_per_block: usize,
    /// Before the first convolution, x becomes kx / (1 + |kx|) with this k: bright objects and dim ones differ less. 0 leaves x.
    /// For labels only.
    pub compress: f32,
    /// While it is taught, levels below the finest have outputs of their own, which count half as much from level to level
    /// (deep supervision). The network that comes out has one.
    pub deep_supervision: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            filters: vec![16, 32, 64],
            strides: Vec::new(),
            convs_per_block: 2,
            compress: 4.0,
            deep_supervision: false,
        }
    }
}

impl NetworkConfig {
    fn check(&self) -> Result<(), JobError> {
        let few = self.filters.len() <= 6 && self.filters.iter().all(|f| (1..=1024).contains(f));
        if self.filters.is_empty() || !few || !(1..=8).contains(&self.convs_per_block) {
            return Err(wrong(
                "network: expected 1 to 6 levels of 1 to 1024 filters, and 1 to 8 convolutions in a block",
            ));
        }
        if !(self.compress.is_finite() && (0.0..=1000.0).contains(&self.compress)) {
            return Err(wrong("network.compress: expected 0 to 1000"));
        }
        let fits = self.strides.is_empty() || self.strides.len() + 1 == self.filters.len();
        if !fits || self.strides.iter().flatten().any(|s| !(1..=4).contains(s)) {
            return Err(wrong("network.strides: expected one less than filters, each 1 to 4 along Z, Y, X"));
        }
        Ok(())
    }
}

/// The loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum LossConfig {
    /// Binary cross entropy.
    Bce,
    /// Dice.
    Dice,
    /// Both.
    DiceCe,
    /// Tversky.
    Tversky {
        /// Weight of what is predicted wrongly.
        alpha: f32,
        /// Weight of what is missed.
        beta: f32,
    },
    /// Focal.
    Focal {
        /// γ
        gamma: f32,
    },
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    L1,
    /// Huber's.
    Huber {
        /// Where it turns from a square to a line.
        delta: f32,
    },
}

impl LossConfig {
    fn kind(self) -> LossKind {
        match self {
            Self::Bce => LossKind::BinaryCrossEntropy,
            Self::Dice => LossKind::Dice { smooth: 1.0 },
            Self::DiceCe => LossKind::DiceCrossEntropy { smooth: 1.0 },
            Self::Tversky { alpha, beta } => LossKind::Tversky { alpha, beta, smooth: 1.0 },
            Self::Focal { gamma } => LossKind::Focal { gamma },
            Self::Mse => LossKind::MeanSquared,
            Self::L1 => LossKind::MeanAbsolute,
            Self::Huber { delta } => LossKind::Huber { delta },
        }
    }
}

/// The loss of a target: on its foreground the one that is asked for (Dice and cross entropy by default), on the channels that tell
/// objects apart cross entropy, whose targets may lie between 0 and 1; regressions take the mean squared error.
pub(crate) fn loss(target: TargetKind, asked: Option<LossConfig>) -> Loss {
    let default = if target.of_labels() { LossConfig::DiceCe } else { LossConfig::Mse };
    let kind = asked.unwrap_or(default).kind();
    let sigmoid = target.of_labels();
    let mut terms = vec![LossTerm { kind, channels: 0..1, factor: 1.0, sigmoid, within: None }];
    if target.channels() > 1 {
        // Background is most of a patch: what tells objects apart lies inside them, and counts there once more.
        let kind = LossKind::BinaryCrossEntropy;
        for within in [None, Some(0)] {
            terms.push(LossTerm { kind, channels: 1..target.channels(), factor: 1.0, sigmoid, within });
        }
    }
    Loss { terms }
}

/// The optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled decay.
    Adamw {
        /// Decay.
        #[serde(default = "decay")]
        weight_decay: f32,
    },
    /// Adam.
    Adam {
        /// Decay.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Gradient descent.
    Sgd {
        /// Momentum.
        #[serde(default = "momentum")]
        momentum: f32,
        /// Look ahead.
        #[serde(default)]
        nesterov: bool,
        /// Decay.
        #[serde(default)]
        weight_decay: f32,
    },
}

fn decay() -> f32 {
    1e-4
}

fn momentum() -> f32 {
    0.9
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::Adamw { weight_decay: decay() }
    }
}

impl OptimizerConfig {
    pub(crate) fn rule(self) -> Optimizer {
        let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
        match self {
            Self::Adamw { weight_decay } => Optimizer::AdamW { beta1, beta2, epsilon, weight_decay },
            Self::Adam { weight_decay } => Optimizer::Adam { beta1, beta2, epsilon, weight_decay },
            Self::Sgd { momentum, nesterov, weight_decay } => Optimizer::Sgd { momentum, nesterov, weight_decay },
        }
    }
}

/// How the rate falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayConfig {
    /// Not at all.
    Constant,
    /// By the same factor every step.
    Exponential,
    /// Along half a cosine.
    #[default]
    Cosine,
}

/// The learning rate over the training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleConfig {
    /// Greatest rate; by default 0.002 from scratch and 0.001 from a model.
    pub rate: Option<f64>,
    /// How it falls.
    pub decay: DecayConfig,
    /// Share of the training over which it rises first.
    pub warm_up: f64,
    /// Share of the greatest rate that is left at the end.
    pub end: f64,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self { rate: None, decay: DecayConfig::Cosine, warm_up: 0.03, end: 0.01 }
    }
}

impl ScheduleConfig {
    pub(crate) fn schedule(&self, from_scratch: bool) -> Schedule {
        let peak = self.rate.unwrap_or(if from_scratch { 2e-3 } else { 1e-3 });
        let decay = match self.decay {
            DecayConfig::Constant => Decay::Constant,
            DecayConfig::Exponential => Decay::Exponential { end: self.end },
            DecayConfig::Cosine => Decay::Cosine { end: self.end },
        };
        Schedule { peak, warm_up: self.warm_up, decay }
    }
}

/// How long training lasts: the shortest of what is given; 30 epochs if nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetConfig {
    /// Times that as many patches are seen as cover the data once (at least 64).
    pub epochs: Option<usize>,
    /// Minutes on the clock, everything included.
    pub minutes: Option<f64>,
    /// Steps.
    pub steps: Option<usize>,
    /// Validations without a better score after which training ends; 0: never.
    pub patience: usize,
}

impl BudgetConfig {
    /// Whether anything is said about how long it lasts.
    pub(crate) fn is_given(&self) -> bool {
        self.epochs.is_some() || self.minutes.is_some() || self.steps.is_some()
    }
}

/// How training is watched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ValidationConfig {
    /// Share of the files left out of training.
    pub fraction: f64,
    /// Validations over the training.
    pub times: usize,
    /// Most files predicted each time.
    pub max_files: usize,
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self { fraction: 0.2, times: 8, max_files: 6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TrainConfig, String> {
        let config: TrainConfig = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check().map_err(|e| e.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_is_taken_of_the_files_is_read_and_handed_on() {
        let all = "[data]\nimage_channel = 2\ntarget_channel = 1\ntime = 4\naxes = \"ZYX\"\n\
                   voxel_um = [2.0, 0.5, 0.5]\nsplit_column = \"fold\"\nspacing_order = \"xyz\"\n";
        let config = read(all).unwrap();
        let options = FindOptions {
            channels: None,
            image_channel: Some(2),
            target_channel: Some(1),
            time: Some(4),
            axes: Some("ZYX".parse().unwrap()),
            split_column: Some("fold".to_owned()),
            voxel_um: Some([2.0, 0.5, 0.5]),
            spacing_order: Some(SpacingOrder::Xyz),
        };
        assert_eq!(config.data.find_options(), options);
        let channels = read(&format!("{all}same_file = true\n")).unwrap().data.find_options().channels;
        assert_eq!(channels, Some(ChannelPair { input: 2, target: 1 }));
        assert_eq!(read("").unwrap().data.find_options(), FindOptions::default());
        // What a kept training says is read back.
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
    }

    #[test]
    fn settings_that_fit_no_files_are_refused_by_name() {
        for (text, words) in [
            ("chanel = 1", "chanel"),
            ("same_file = true", "data.image_channel"),
            ("same_file = true\nimage_channel = 1\ntarget_channel = 1", "two different"),
            ("voxel_um = [0.0, 1.0, 1.0]", "data.voxel_um"),
            ("axes = \"\"", "data.axes"),
            ("axes = \"ZYQ\"", "ZYQ"),
            ("split_column = \" \"", "data.split_column"),
            ("image_channel = -1", "image_channel"),
        ] {
            let error = read(&format!("[data]\n{text}\n")).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

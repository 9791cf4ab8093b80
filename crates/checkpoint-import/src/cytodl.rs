//! Settings about the output of a network that CytoDL stores in a checkpoint.

use serde_json::Value as Json;

/// PyTorch losses that measure differences of intensities.
const INTENSITY_LOSSES: [&str; 4] = ["MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"];

/// The head of a network that CytoDL trained, as its settings describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CytoDlHead {
    /// Whether it was trained to predict intensities, such as those of a stain.
    pub predicts_intensities: bool,
    /// Whether CytoDL applies a sigmoid to its output.
    pub has_sigmoid: bool,
}

impl CytoDlHead {
    /// Reads the settings of a `MultiTaskIm2Im` (`hyper_parameters` of the checkpoint); `None` if there is not exactly
    /// one head with a loss.
    pub(crate) fn read(settings: &Json) -> Option<Self> {
        let mut heads = settings.get("task_heads")?.as_object()?.values();
        let (Some(head), None) = (heads.next(), heads.next()) else { return None };
        let loss = class(head.get("loss")?)?;
        let activation = head.pointer("/postprocess/prediction/activation").and_then(class);
        Some(Self {
            predicts_intensities: INTENSITY_LOSSES.contains(&loss),
            has_sigmoid: activation == Some("Sigmoid"),
        })
    }
}

/// Returns the name of the class that a Hydra setting instantiates, without its module.
fn class(setting: &Json) -> Option<&str> {
    setting.get("_target_")?.as_str()?.rsplit('.').next()
}

//! The setting of what a training run starts from: `scratch`, or the path or name of a model.

use crate::network::start_model_path;
use cytoscope_pipeline::{Model, SCRATCH};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Starting point of a training run. Its text, on the command line and in JSON, is `scratch` or the path or name of the
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TrainStart {
    /// A new network with random weights.
    #[default]
    Scratch,
    /// The start model: a package or an ONNX file by its path, or an installed model by its name.
    Model(String),
}

impl TrainStart {
    /// Returns the path or name of the start model; `None` for a new network.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Scratch => None,
            Self::Model(model) => Some(model),
        }
    }

    /// Returns the text: `scratch`, or the path or name of the start model.
    pub fn as_str(&self) -> &str {
        self.model().unwrap_or(SCRATCH)
    }

    /// Returns the fingerprint of the content of the start model, or of its trainable counterpart if there is one; `None`
    /// for a new network, and for a model that cannot be opened.
    pub fn fingerprint(&self) -> Option<String> {
        let path = start_model_path(self.model()?).ok()?;
        Model::load(path.to_str()?).ok().map(|model| model.fingerprint)
    }
}

impl fmt::Display for TrainStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<String> for TrainStart {
    fn from(text: String) -> Self {
        if text == SCRATCH { Self::Scratch } else { Self::Model(text) }
    }
}

impl From<TrainStart> for String {
    fn from(start: TrainStart) -> Self {
        match start {
            TrainStart::Scratch => SCRATCH.to_owned(),
            TrainStart::Model(model) => model,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn json_and_the_command_line_name_the_same_start() {
        let model = TrainStart::Model("nuclei".to_owned());
        for (text, start) in [("scratch", TrainStart::Scratch), ("nuclei", model)] {
            assert_eq!(TrainStart::from(text.to_owned()), start);
            assert_eq!(serde_json::from_value::<TrainStart>(json!(text)).unwrap(), start);
            assert_eq!(serde_json::to_value(&start).unwrap(), json!(text));
            assert_eq!(start.to_string(), text);
        }
        assert!(serde_json::from_value::<TrainStart>(json!(7)).is_err());
    }

    #[test]
    fn the_fingerprint_of_a_start_model_is_that_of_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        for file in std::fs::read_dir(package).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let start = TrainStart::Model(folder.path().to_str().unwrap().to_owned());
        let before = start.fingerprint();
        assert!(before.as_ref().is_some_and(|found| !found.contains('.')), "{before:?}");
        assert_eq!(start.fingerprint(), before);
        let description = folder.path().join("rdf.yaml");
        let text = std::fs::read_to_string(&description).unwrap();
        std::fs::write(&description, text.replace("version: 0.1.0", "version: 0.2.0")).unwrap();
        assert!(start.fingerprint().is_some_and(|changed| Some(changed) != before));
        std::fs::remove_file(&description).unwrap();
        assert_eq!(start.fingerprint(), None);
        assert_eq!(TrainStart::Scratch.fingerprint(), None);
    }
}

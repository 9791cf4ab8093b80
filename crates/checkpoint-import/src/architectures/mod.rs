//! The known architectures, and how they are recognized.

mod basic_unet;
mod dynunet;
mod fnet;
mod monai_unet;
mod nnunet;
mod segresnet;
mod torch_em;

use crate::error::ImportError;
use crate::layers::list_first;
use crate::tensors::StoredTensor;
use cytoscope_graph::{Activation, Graph};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;

pub use nnunet::{Normalization, Plans};

/// LeakyReLU with PyTorch's default of the slope, as in DynUNet and nnU-Net.
const LEAKY: Activation = Activation::LeakyRelu { alpha: 0.01 };

/// A network architecture whose weights can be imported; serialized as its [name](Architecture::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Architecture {
    /// MONAI's `UNet`, plain or with residual units.
    #[serde(rename = "monai-unet")]
    MonaiUNet,
    /// MONAI's `BasicUNet`.
    #[serde(rename = "basic-unet")]
    BasicUNet,
    /// MONAI's `DynUNet`, also as the backbone of CytoDL.
    #[serde(rename = "dynunet")]
    DynUNet,
    /// MONAI's `SegResNet`.
    #[serde(rename = "segresnet")]
    SegResNet,
    /// `UNet2d` and `UNet3d` of torch-em, as in bioimage.io's examples.
    #[serde(rename = "torch-em-unet")]
    TorchEmUNet,
    /// nnU-Net, with plain or residual encoder.
    #[serde(rename = "nnunet")]
    NnUNet,
    /// The network of pytorch_fnet.
    #[serde(rename = "fnet")]
    Fnet,
}

impl Architecture {
    /// All architectures, in the order in which they are tried.
    pub const ALL: [Self; 7] =
        [Self::MonaiUNet, Self::BasicUNet, Self::DynUNet, Self::SegResNet, Self::TorchEmUNet, Self::NnUNet, Self::Fnet];

    /// Returns the name of the architecture in files, errors and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MonaiUNet => "monai-unet",
            Self::BasicUNet => "basic-unet",
            Self::DynUNet => "dynunet",
            Self::SegResNet => "segresnet",
            Self::TorchEmUNet => "torch-em-unet",
            Self::NnUNet => "nnunet",
            Self::Fnet => "fnet",
        }
    }

    /// Returns the names of all architectures, separated by commas.
    pub(crate) fn list_names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Names of tensors; a network of the architecture has exactly one of them.
    fn signatures(self) -> &'static [&'static str] {
        match self {
            Self::MonaiUNet => &["model.0.conv.unit0.conv.weight", "model.0.conv.weight"],
            Self::BasicUNet => &["conv_0.conv_0.conv.weight"],
            Self::DynUNet => &["input_block.conv1.conv.weight"],
            Self::SegResNet => &["convInit.conv.weight"],
            Self::TorchEmUNet => &["encoder.blocks.0.block.1.weight", "encoder.blocks.0.block.0.weight"],
            Self::NnUNet => &[nnunet::PLAIN, nnunet::RESIDUAL],
            Self::Fnet => &["net_recurse.sub_2conv_more.conv1.weight"],
        }
    }

    /// Returns what precedes the names of the architecture's tensors, such as `model.` in a checkpoint of Lightning;
    /// `None` if there are no such tensors.
    fn prefix(self, tensors: &BTreeMap<String, StoredTensor>) -> Option<&str> {
        let prefixes = tensors.keys().flat_map(|name| self.signatures().iter().map(move |s| name.strip_suffix(*s)));
        prefixes.flatten().filter(|prefix| prefix.is_empty() || prefix.ends_with('.')).min_by_key(|prefix| prefix.len())
    }

    fn build(
        self,
        tensors: &BTreeMap<String, &StoredTensor>,
        kwargs: &Kwargs<'_>,
    ) -> Result<(Graph, Vec<String>), ImportError> {
        match self {
            Self::MonaiUNet => monai_unet::build(tensors, kwargs),
            Self::BasicUNet => basic_unet::build(tensors, kwargs),
            Self::DynUNet => dynunet::build(tensors, kwargs),
            Self::SegResNet => segresnet::build(tensors, kwargs),
            Self::TorchEmUNet => torch_em::build(tensors, kwargs),
            Self::NnUNet => nnunet::build(tensors),
            Self::Fnet => fnet::build(tensors),
        }
    }
}

impl std::str::FromStr for Architecture {
    type Err = ImportError;

    fn from_str(text: &str) -> Result<Self, ImportError> {
        let named = Self::ALL.into_iter().find(|architecture| architecture.name() == text);
        named.ok_or_else(|| ImportError::UnknownArchitecture { name: text.to_owned(), known: Self::list_names() })
    }
}

/// A network built from a checkpoint.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The network, with input `x` and output `y`.
    pub graph: Graph,
    /// Architecture that was recognized or requested.
    pub architecture: Architecture,
    /// Settings that the tensors do not determine, with the values that were assumed, one sentence each.
    pub assumptions: Vec<String>,
}

/// Builds the network that the tensors belong to. Without `architecture`, it is recognized from their names. `kwargs` are
/// the known arguments of the network's constructor, or null.
///
/// # Errors
/// [`ImportError`] if no architecture is recognized, a tensor is missing, unknown or does not fit, or the arguments
/// request something unsupported.
pub(crate) fn network(
    tensors: &BTreeMap<String, StoredTensor>,
    architecture: Option<Architecture>,
    kwargs: &Json,
) -> Result<Imported, ImportError> {
    let candidates = architecture.map_or(Architecture::ALL.to_vec(), |requested| vec![requested]);
    let found = candidates.into_iter().find_map(|known| known.prefix(tensors).map(|prefix| (known, prefix.to_owned())));
    let names: Vec<&str> = tensors.keys().map(String::as_str).collect();
    let Some((architecture, prefix)) = found else {
        return Err(match architecture {
            Some(requested) => ImportError::Tensor {
                tensor: requested.signatures().first().copied().unwrap_or_default().to_owned(),
                problem: format!("is missing: the tensors are {}", list_first(&names)),
                architecture: requested.name(),
            },
            None => ImportError::Unrecognized { tensors: list_first(&names), known: Architecture::list_names() },
        });
    };
    let others: Vec<&str> = names.iter().copied().filter(|name| !name.starts_with(&prefix)).collect();
    if !others.is_empty() {
        return Err(ImportError::Unused { tensors: list_first(&others), architecture: architecture.name() });
    }
    let own = tensors.iter().filter_map(|(name, t)| Some((name.strip_prefix(&prefix)?.to_owned(), t))).collect();
    let (graph, assumptions) = architecture.build(&own, &Kwargs(kwargs))?;
    Ok(Imported { graph, architecture, assumptions })
}

/// Arguments of a network's constructor in a package's description; null if they are unknown.
struct Kwargs<'a>(&'a Json);

impl Kwargs<'_> {
    /// Returns an argument that is given and not null.
    fn get(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns the name that an argument states, in lower case, such as `leakyrelu`; `None` if the argument is not given. In
    /// MONAI, an argument is a name or a list of a name and settings.
    fn stated_name(&self, key: &str) -> Option<String> {
        let value = self.0.get(key)?;
        Some(value.get(0).unwrap_or(value).as_str().unwrap_or_default().to_lowercase())
    }

    /// Returns a number among the settings of an argument, such as the slope of `["leakyrelu", {"negative_slope": 0.1}]`;
    /// `None` if it is not given.
    fn setting(&self, key: &str, setting: &str) -> Result<Option<f32>, ImportError> {
        let given = self.0.get(key).and_then(|value| value.get(1)).and_then(|settings| settings.get(setting));
        let Some(value) = given else { return Ok(None) };
        let number = value.as_f64().map(|v| v as f32).filter(|v| v.is_finite() && *v >= 0.0);
        number.map(Some).ok_or_else(|| ImportError::InvalidArgument {
            argument: format!("{setting} of {key}"),
            value: value.to_string(),
            expected: "0 or a positive number",
        })
    }

    /// Returns the LeakyReLU that an argument states; `None` if the argument is not given.
    fn leaky_relu(&self, key: &str) -> Result<Option<Activation>, ImportError> {
        self.accept(key, &["leakyrelu"])?;
        let slope = self.setting(key, "negative_slope")?;
        Ok(self.get(key).map(|_| slope.map_or(LEAKY, |alpha| Activation::LeakyRelu { alpha })))
    }

    /// Refuses an argument with a value other than `accepted`, in lower case; null is a value.
    fn accept(&self, key: &str, accepted: &[&str]) -> Result<(), ImportError> {
        let (Some(value), Some(name)) = (self.0.get(key), self.stated_name(key)) else { return Ok(()) };
        if accepted.contains(&name.as_str()) {
            return Ok(());
        }
        Err(ImportError::UnsupportedArgument {
            argument: key.to_owned(),
            value: value.to_string(),
            supported: accepted.join(", "),
        })
    }

    /// Returns the activation after the last layer.
    fn final_activation(&self) -> Result<Option<Activation>, ImportError> {
        if self.get("final_activation").is_none() {
            return Ok(None);
        }
        self.accept("final_activation", &["sigmoid"])?;
        Ok(Some(Activation::Sigmoid))
    }
}

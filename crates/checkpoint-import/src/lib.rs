//! Networks from the weight files of PyTorch.
//!
//! A weight file holds named tensors and no network. [`Checkpoint`] reads the tensors: from the zip files of
//! `torch.save` (`.pt`, `.pth`, `.ckpt`) and from safetensors. The pickle inside a zip is read by
//! [`cytoscope_pickle`], which builds values and never calls anything.
//!
//! [`Checkpoint::network`] builds the network: its architecture is recognized from the names of the tensors, channels
//! and kernels are taken from their shapes, and the settings that they do not determine are listed as assumptions.
//!
//! The crate owns the reading of weight files and the architectures that it recognizes ([`Architecture`]). It fails with an
//! [`ImportError`] if a file is damaged, over a limit or names Python objects, or if no known architecture fits: every tensor
//! must be used, and every tensor that the architecture needs must be there.
#![forbid(unsafe_code)]

mod architectures;
mod archive;
mod cytodl;
mod error;
mod layers;
mod state;
mod tensors;

pub use architectures::{Architecture, Imported, Normalization, Plans};
pub use cytodl::CytoDlHead;
pub use error::ImportError;
pub use tensors::StoredTensor;

use archive::Archive;
use cytoscope_graph::ElementType;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum size of a weight file in bytes.
pub const MAX_CHECKPOINT_BYTES: u64 = 4 << 30;
/// Maximum ratio of the bytes of all tensors to those of the file. Tensors may share a storage, as tied weights do, so that a
/// small file can hold large tensors.
const MAX_SHARING: u64 = 16;
/// Extensions of the names of weight files; `.p` is that of pytorch_fnet.
pub const EXTENSIONS: [&str; 5] = ["pt", "pth", "ckpt", "p", "safetensors"];

/// The tensors of a weight file.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    tensors: BTreeMap<String, StoredTensor>,
    arguments: Option<Json>,
    head: Option<CytoDlHead>,
}

/// Number of bytes that [`is_torch_save`] needs.
pub const START_BYTES: usize = 512;

/// Returns whether a file that begins with these bytes, up to [`START_BYTES`], was written by `torch.save`, in its zip format
/// or in the one from before version 1.6.
pub fn is_torch_save(start: &[u8]) -> bool {
    archive::is_torch_save(start)
}

impl Checkpoint {
    /// Reads a weight file. The format is recognized from the content.
    ///
    /// # Errors
    /// [`ImportError`] if the file is of another format, damaged, over a limit, or names Python objects that are not
    /// accepted.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ImportError> {
        if bytes.len() as u64 > MAX_CHECKPOINT_BYTES {
            let what = format!("{} bytes", bytes.len());
            return Err(ImportError::OverLimit { what, limit: MAX_CHECKPOINT_BYTES });
        }
        // A safetensors file starts with the length of its JSON header.
        if bytes.get(8) == Some(&b'{') {
            return Ok(Self { tensors: read_safetensors(bytes)?, arguments: None, head: None });
        }
        let mut archive = Archive::open(bytes)?;
        let tensors = state::weights(&mut archive)?;
        let tensor_bytes = tensors.values().fold(0u64, |sum, tensor| sum.saturating_add(tensor.bytes()));
        let limit = MAX_SHARING.saturating_mul(bytes.len() as u64);
        if tensor_bytes > limit {
            let what = format!("tensors of {tensor_bytes} bytes in a file of {} bytes", bytes.len());
            return Err(ImportError::OverLimit { what, limit });
        }
        let settings = state::entry(archive.pickle(), "hyper_parameters");
        Ok(Self {
            tensors,
            arguments: state::entry(archive.pickle(), "init_args"),
            head: settings.as_ref().and_then(CytoDlHead::read),
        })
    }

    /// Returns the tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Builds the network of the tensors. The architecture is recognized if it is `None`; `kwargs` are the arguments of
    /// the network's constructor as a package states them, or null.
    ///
    /// # Errors
    /// [`ImportError`] if no architecture is recognized, a tensor is missing, unknown or does not fit (it is named), or
    /// the arguments request something unsupported.
    pub fn network(&self, architecture: Option<Architecture>, kwargs: &Json) -> Result<Imported, ImportError> {
        architectures::network(&self.tensors, architecture, kwargs)
    }

    /// Returns the arguments of the trainer that nnU-Net stores, with its plans.
    pub fn nnunet_arguments(&self) -> Option<&Json> {
        self.arguments.as_ref()
    }

    /// Returns what CytoDL's settings state about the network's output, if the checkpoint has them.
    pub fn cytodl_head(&self) -> Option<CytoDlHead> {
        self.head
    }
}

fn read_safetensors(bytes: &[u8]) -> Result<BTreeMap<String, StoredTensor>, ImportError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| ImportError::malformed(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    if file.len() > state::MAX_TENSORS {
        let what = format!("{} tensors", file.len());
        return Err(ImportError::OverLimit { what, limit: state::MAX_TENSORS as u64 });
    }
    for (name, view) in file.tensors() {
        state::check_name_bytes(name.len())?;
        let dtype = element_type(view.dtype()).ok_or_else(|| {
            ImportError::malformed(format!("tensor \"{name}\" has the type {:?}, which is not supported", view.dtype()))
        })?;
        let strides = tensors::contiguous(view.shape());
        let storage = Arc::new(view.data().to_vec());
        let tensor = StoredTensor::new(&name, dtype, (view.shape().to_vec(), strides), 0, storage)?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

fn element_type(dtype: Dtype) -> Option<ElementType> {
    Some(match dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::BF16,
        Dtype::I8 => ElementType::I8,
        Dtype::U8 => ElementType::U8,
        Dtype::I16 => ElementType::I16,
        Dtype::U16 => ElementType::U16,
        Dtype::I32 => ElementType::I32,
        Dtype::U32 => ElementType::U32,
        Dtype::I64 => ElementType::I64,
        Dtype::U64 => ElementType::U64,
        Dtype::BOOL => ElementType::Bool,
        _ => return None,
    })
}

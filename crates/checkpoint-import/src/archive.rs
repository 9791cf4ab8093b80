//! The zip containers that `torch.save` writes: a pickle, and the bytes of each storage in a separate file.

use crate::MAX_CHECKPOINT_BYTES;
use crate::error::ImportError;
use crate::tensors::{MAX_AXES, StoredTensor};
use cytoscope_graph::ElementType;
use cytoscope_pickle::{Global, Pickle, Value, ValueId};
use cytoscope_storage::limited::{DIRECTORY_TOO_LARGE, LimitedReader};
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::Arc;

/// Maximum number of bytes read to list a zip.
const MAX_DIRECTORY_BYTES: u64 = 64 << 20;
/// Maximum size of the pickle in bytes. A checkpoint with a thousand tensors has a pickle of 0.2 MB.
const MAX_PICKLE_BYTES: usize = 16 << 20;
/// Maximum depth of calls around a tensor: a parameter is one call around the call that rebuilds its tensor.
const MAX_NESTING: usize = 4;

/// First bytes of the format of PyTorch before version 1.6: a pickled number.
const LEGACY: [u8; 15] = [0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];

/// Signature of a file in a zip.
const ZIP_ENTRY: &[u8] = b"PK\x03\x04";
/// Where a file in a zip states the length of its name, two bytes, and where the name begins.
const ZIP_NAME: (usize, usize) = (26, 30);

/// Whether a file that begins with these bytes was written by `torch.save`: its zips begin with the pickle.
pub(crate) fn is_torch_save(start: &[u8]) -> bool {
    let first_name = || {
        let length = start.get(ZIP_NAME.0..)?.first_chunk::<2>()?;
        start.get(ZIP_NAME.1..)?.get(..usize::from(u16::from_le_bytes(*length)))
    };
    let is_zip = start.starts_with(ZIP_ENTRY) && first_name().is_some_and(|name| name.ends_with(b"/data.pkl"));
    is_zip || start.starts_with(&LEGACY)
}

/// An open checkpoint in PyTorch's zip format.
pub(crate) struct Archive<'a> {
    entries: Entries<'a>,
    pickle: Pickle,
    storages: BTreeMap<String, Arc<Vec<u8>>>,
}

/// The files of the zip.
struct Entries<'a> {
    zip: zip::ZipArchive<LimitedReader<Cursor<&'a [u8]>>>,
    /// Folder of all entries, with its slash.
    prefix: String,
    /// Bytes that may still be read: all entries together are not larger than the file.
    left: u64,
}

impl Entries<'_> {
    /// Reads an entry; `None` if there is no such entry.
    fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        let full = format!("{}{name}", self.prefix);
        let damaged = |error: &dyn std::fmt::Display| ImportError::malformed(format!("{full}: {error}"));
        let entry = match self.zip.by_name(&full) {
            Ok(entry) => entry,
            Err(zip::result::ZipError::FileNotFound) => return Ok(None),
            Err(error) => return Err(damaged(&error)),
        };
        let size = entry.size();
        if entry.compressed_size() != size {
            return Err(damaged(&"it is compressed, but torch.save does not compress"));
        }
        self.left = self.left.checked_sub(size).ok_or_else(|| damaged(&"it is larger than the file"))?;
        let mut bytes = Vec::new();
        entry.take(size).read_to_end(&mut bytes).map_err(|error| damaged(&error))?;
        Ok(Some(bytes))
    }
}

impl<'a> Archive<'a> {
    /// Opens a checkpoint and reads its pickle.
    ///
    /// # Errors
    /// [`ImportError`] if it is of another format, damaged, or holds more than data.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, ImportError> {
        if bytes.starts_with(&LEGACY) {
            return Err(ImportError::Format {
                found: "the checkpoint has PyTorch's format from before version 1.6".to_owned(),
                next_step: "convert it in Python: torch.save(torch.load(\"old.pt\", map_location=\"cpu\"), \"new.pt\")",
            });
        }
        let (reader, limit) = LimitedReader::new(Cursor::new(bytes), MAX_DIRECTORY_BYTES, DIRECTORY_TOO_LARGE);
        let zip = zip::ZipArchive::new(reader).map_err(|error| {
            ImportError::malformed(format!(
                "it is neither safetensors nor a zip that torch.save wrote ({error}); copy or save it again"
            ))
        })?;
        limit.lift();
        let names: Vec<String> = zip.file_names().flatten().map(|name| name.into_owned()).collect();
        let pickle = names.iter().filter(|n| n.matches('/').count() <= 1).find_map(|n| n.strip_suffix("data.pkl"));
        let prefix = pickle.filter(|prefix| prefix.is_empty() || prefix.ends_with('/'));
        let prefix = prefix.ok_or_else(|| ImportError::malformed("the zip has no data.pkl: it is not a checkpoint"))?;
        if names.iter().any(|n| n.strip_prefix(prefix).is_some_and(|n| n == "constants.pkl" || n.starts_with("code/")))
        {
            return Err(ImportError::Format {
                found: "the file is a TorchScript archive: it holds code, which is not run here".to_owned(),
                next_step: "export it in Python: torch.onnx.export(torch.jit.load(\"model.pt\"), example_input, \
                            \"model.onnx\"), and import the ONNX file",
            });
        }
        let prefix = prefix.to_owned();
        let mut entries = Entries { zip, prefix, left: (bytes.len() as u64).min(MAX_CHECKPOINT_BYTES) };
        if entries.read("byteorder")?.is_some_and(|order| order.starts_with(b"big")) {
            return Err(ImportError::Format {
                found: "the checkpoint was written on a big-endian machine".to_owned(),
                next_step: "load it with torch.load and save it with torch.save on a little-endian machine, such as a PC",
            });
        }
        let pickled = entries.read("data.pkl")?.ok_or_else(|| ImportError::malformed("there is no data.pkl"))?;
        if pickled.len() > MAX_PICKLE_BYTES {
            let what = format!("a pickle of {} bytes", pickled.len());
            return Err(ImportError::OverLimit { what, limit: MAX_PICKLE_BYTES as u64 });
        }
        Ok(Self { entries, pickle: Pickle::read(&pickled, &is_accepted)?, storages: BTreeMap::new() })
    }

    pub(crate) fn pickle(&self) -> &Pickle {
        &self.pickle
    }

    /// Whether a value is a tensor or a parameter.
    pub(crate) fn is_tensor(&self, id: ValueId) -> bool {
        self.rebuild_call(id).is_some()
    }

    /// Returns the function that makes a tensor or parameter, and its arguments; `None` for other values.
    fn rebuild_call(&self, id: ValueId) -> Option<(&str, &[ValueId])> {
        let (function, call) = self.pickle.call(id)?;
        let is_rebuild = function.module == "torch._utils" && function.name.starts_with("_rebuild_");
        is_rebuild.then_some((function.name.as_str(), call.arguments.as_slice()))
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// [`ImportError`], which names the tensor, if it does not have the form that `torch.save` writes, or does not fit its
    /// storage.
    pub(crate) fn tensor(&mut self, name: &str, id: ValueId) -> Result<StoredTensor, ImportError> {
        let bad = |what: &str| ImportError::malformed(format!("tensor \"{name}\" {what}"));
        let mut id = id;
        for _ in 0..MAX_NESTING {
            match self.rebuild_call(id) {
                Some(("_rebuild_parameter" | "_rebuild_parameter_with_state", arguments)) => {
                    id = arguments.first().copied().ok_or_else(|| bad("is a parameter without a tensor"))?;
                }
                _ => break,
            }
        }
        let Some(("_rebuild_tensor_v2", &[storage, offset, shape, strides, ..])) = self.rebuild_call(id) else {
            return Err(bad("does not have the form that torch.save writes"));
        };
        let offset = self.pickle.count(offset).ok_or_else(|| bad("has no offset"))?;
        let shape = self.counts(name, shape)?.ok_or_else(|| bad("has no shape"))?;
        let strides = self.counts(name, strides)?.ok_or_else(|| bad("has no strides"))?;
        let (dtype, key, elements) = self.storage(storage).ok_or_else(|| bad("has a storage of an unknown type"))?;
        // A storage without elements may have no file.
        let bytes = self.storage_bytes(&key)?.or_else(|| (elements == 0).then(Arc::default));
        let bytes = bytes.ok_or_else(|| bad("has a storage that is not in the file"))?;
        if elements.checked_mul(dtype.size_bytes()).is_none_or(|needed| needed > bytes.len()) {
            return Err(bad("has a storage that is shorter than declared"));
        }
        StoredTensor::new(name, dtype, (shape, strides), offset, bytes)
    }

    /// Returns one number for each axis of a tensor; `None` if the value is not a tuple of them.
    fn counts(&self, name: &str, id: ValueId) -> Result<Option<Vec<usize>>, ImportError> {
        let tuple = match self.pickle.call(id) {
            Some((function, call)) if function.is(&["torch"], "Size") => call.arguments.first().copied(),
            _ => Some(id),
        };
        let Some(items) = tuple.and_then(|tuple| self.pickle.tuple(tuple)) else { return Ok(None) };
        if items.len() > MAX_AXES {
            let what = format!("a tensor of {} axes, \"{name}\"", items.len());
            return Err(ImportError::OverLimit { what, limit: MAX_AXES as u64 });
        }
        Ok(items.iter().map(|item| self.pickle.count(*item)).collect())
    }

    /// Returns type, key and number of elements of a storage.
    fn storage(&self, id: ValueId) -> Option<(ElementType, String, usize)> {
        let Value::External(external) = self.pickle.value(id) else { return None };
        let &[kind, class, key, _, elements] = self.pickle.tuple(*external)? else { return None };
        let dtype = storage_type(self.pickle.global(class)?)?;
        (self.pickle.text(kind)? == "storage").then_some(())?;
        Some((dtype, self.pickle.text(key)?.to_owned(), self.pickle.count(elements)?))
    }

    fn storage_bytes(&mut self, key: &str) -> Result<Option<Arc<Vec<u8>>>, ImportError> {
        if let Some(bytes) = self.storages.get(key) {
            return Ok(Some(Arc::clone(bytes)));
        }
        let bytes = self.entries.read(&format!("data/{key}"))?.map(Arc::new);
        if let Some(bytes) = &bytes {
            self.storages.insert(key.to_owned(), Arc::clone(bytes));
        }
        Ok(bytes)
    }
}

/// Returns the element type of a storage class.
fn storage_type(class: &Global) -> Option<ElementType> {
    if class.module != "torch" {
        return None;
    }
    Some(match class.name.as_str() {
        "FloatStorage" => ElementType::F32,
        "DoubleStorage" => ElementType::F64,
        "HalfStorage" => ElementType::F16,
        "BFloat16Storage" => ElementType::BF16,
        "CharStorage" => ElementType::I8,
        "ByteStorage" => ElementType::U8,
        "ShortStorage" => ElementType::I16,
        "IntStorage" => ElementType::I32,
        "LongStorage" => ElementType::I64,
        "BoolStorage" => ElementType::Bool,
        _ => return None,
    })
}

/// Classes and functions that checkpoints of training programs name beside their tensors. None is ever called: they
/// describe settings and histories, which are ignored.
const IGNORED_NAMES: [(&str, &[&str]); 18] = [
    ("_codecs", &["encode"]),
    ("argparse", &["Namespace"]),
    // The steps at which PyTorch's `MultiStepLR` lowers the learning rate.
    ("collections", &["Counter"]),
    ("builtins", &["bool", "complex", "float", "int", "list", "slice", "str", "tuple"]),
    ("__builtin__", &["bool", "complex", "float", "int", "list", "slice", "str", "tuple", "long", "unicode"]),
    ("functools", &["partial"]),
    ("lightning.fabric.utilities.data", &["AttributeDict"]),
    ("lightning_fabric.utilities.data", &["AttributeDict"]),
    ("pytorch_lightning.utilities.parsing", &["AttributeDict"]),
    ("numpy", &["dtype", "ndarray"]),
    ("numpy.core.multiarray", &["scalar", "_reconstruct"]),
    ("numpy._core.multiarray", &["scalar", "_reconstruct"]),
    ("omegaconf.base", &["ContainerMetadata", "Metadata"]),
    ("omegaconf.dictconfig", &["DictConfig"]),
    ("omegaconf.listconfig", &["ListConfig"]),
    ("omegaconf.nodes", &["AnyNode", "BooleanNode", "FloatNode", "IntegerNode", "StringNode"]),
    ("pathlib", &["Path", "PosixPath", "PurePosixPath", "WindowsPath"]),
    ("typing", &["Any"]),
];

/// Whether a checkpoint may name this class or function.
pub(crate) fn is_accepted(module: &str, name: &str) -> bool {
    let builds_tensors = match module {
        "torch._utils" => {
            matches!(name, "_rebuild_tensor_v2" | "_rebuild_parameter" | "_rebuild_parameter_with_state")
        }
        "torch" => {
            let types = ["float", "double", "half", "bfloat", "int", "uint", "long", "short", "bool"];
            name == "Size"
                || name == "device"
                || name.ends_with("Storage")
                || types.iter().any(|t| name.strip_prefix(t).is_some_and(|r| r.chars().all(|c| c.is_ascii_digit())))
        }
        _ => false,
    };
    builds_tensors || IGNORED_NAMES.iter().any(|(known, names)| *known == module && names.contains(&name))
}

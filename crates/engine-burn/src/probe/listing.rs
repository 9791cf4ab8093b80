//! Parses what `nvidia-smi` and `ldconfig` print.

use std::path::PathBuf;

/// A GPU as `nvidia-smi` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedGpu {
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub driver: String,
    /// Free GPU memory in bytes; `None` if the driver does not say.
    pub free_bytes: Option<u64>,
    /// Compute capability, such as `9.0`.
    pub capability: Option<String>,
}

impl ListedGpu {
    /// Returns whether another GPU is of the same kind; their free memory may differ.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = |gpu: &Self| (gpu.name.clone(), gpu.memory_bytes, gpu.driver.clone(), gpu.capability.clone());
        kind(self) == kind(other)
    }

    /// Returns the architecture, such as `sm_90`, or a text that says that it is unknown.
    pub(crate) fn architecture(&self) -> String {
        self.capability
            .as_ref()
            .map_or_else(|| "unknown architecture".to_owned(), |c| format!("sm_{}", c.replace('.', "")))
    }
}

/// The fields that `nvidia-smi --query-gpu` is asked for. Old versions do not know the last one.
pub(crate) const QUERIES: [&str; 2] = [
    "--query-gpu=name,memory.total,driver_version,memory.free,compute_cap",
    "--query-gpu=name,memory.total,driver_version,memory.free",
];

/// Parses the output of `nvidia-smi` for one of [`QUERIES`] with `--format=csv,noheader,nounits`.
pub(crate) fn parse_listed(text: &str) -> Vec<ListedGpu> {
    let fields = text.lines().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    let bytes = |mebibytes: &str| mebibytes.parse::<u64>().ok().map(|m| m << 20);
    fields
        .filter_map(|f| match f.as_slice() {
            [name, total, driver, more @ ..] => Some(ListedGpu {
                name: (*name).to_owned(),
                memory_bytes: bytes(total),
                driver: (*driver).to_owned(),
                free_bytes: more.first().and_then(|free| bytes(free)),
                capability: more
                    .get(1)
                    .filter(|c| c.starts_with(|d: char| d.is_ascii_digit()))
                    .map(|c| (*c).to_owned()),
            }),
            _ => None,
        })
        .collect()
}

/// Parses what the Linux driver says about itself and each GPU, for systems without `nvidia-smi`: the text of
/// `/proc/driver/nvidia/version`, and of `information` in each folder of `/proc/driver/nvidia/gpus`.
pub(crate) fn parse_proc(version: &str, gpus: &[String]) -> Vec<ListedGpu> {
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() > 1 && parts.iter().all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    let driver = version.split_whitespace().find(is_version).unwrap_or("of unknown version");
    let models = gpus.iter().filter_map(|text| text.lines().find_map(|line| line.trim().strip_prefix("Model:")));
    let gpu = |model: &str| ListedGpu {
        name: model.trim().to_owned(),
        memory_bytes: None,
        driver: driver.to_owned(),
        free_bytes: None,
        capability: None,
    };
    models.map(gpu).collect()
}

/// Returns the libraries in the output of `ldconfig -p`, whose lines are `libz.so.1 (libc6,x86-64) => /lib/libz.so.1`, by
/// name and path.
pub(crate) fn cached_libraries(text: &str) -> Vec<(String, PathBuf)> {
    let lines = text.lines().filter_map(|line| line.split_once(" => "));
    lines
        .filter_map(|(before, path)| Some((before.split_whitespace().next()?.to_owned(), PathBuf::from(path.trim()))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_nvidia_smi_and_ldconfig_are_parsed() {
        let cache =
            "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\tlibz.so (libc6) => /z\n";
        let cached = cached_libraries(cache);
        assert_eq!(cached[0], ("libcuda.so.1".to_owned(), PathBuf::from("/lib/libcuda.so.1")));
        assert_eq!((cached.len(), cached[1].0.as_str()), (2, "libz.so"));
        let gpus = parse_listed(
            "NVIDIA H200, 143771, 570.86.15, 143000, 9.0\nnonsense\nNVIDIA T4, [N/A], 570.86.15\n\
             NVIDIA H200, 143771, 570.86.15, 1000, 9.0\n",
        );
        assert_eq!(
            (gpus.len(), gpus[0].memory_bytes, gpus[0].free_bytes),
            (3, Some(143_771 << 20), Some(143_000 << 20))
        );
        assert_eq!((gpus[1].name.as_str(), gpus[1].memory_bytes, gpus[1].free_bytes), ("NVIDIA T4", None, None));
        assert_eq!(
            (gpus[0].architecture(), gpus[1].architecture().as_str()),
            ("sm_90".to_owned(), "unknown architecture")
        );
        let version =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n";
        let gpus_of_proc = parse_proc(version, &["Model: \t\t NVIDIA H200\nIRQ: 12\n".to_owned(), String::new()]);
        assert_eq!(gpus_of_proc.len(), 1);
        assert_eq!((gpus_of_proc[0].name.as_str(), gpus_of_proc[0].driver.as_str()), ("NVIDIA H200", "570.86.15"));
        assert!(gpus[0].is_like(&gpus[2]) && !gpus[0].is_like(&gpus[1]));
    }
}

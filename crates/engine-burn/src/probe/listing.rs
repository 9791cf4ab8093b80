//! Parses what `nvidia-smi` and `ldconfig` print, and combines it with what the driver says.

use std::path::PathBuf;

/// A GPU as `nvidia-smi` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedGpu {
    /// Product name, such as `NVIDIA H200`.
    pub name: String,
    /// GPU memory in bytes; `None` if the driver does not say.
    pub memory_bytes: Option<u64>,
    /// Version of the driver, such as `570.86.15`.
    pub driver: String,
    /// Free GPU memory in bytes; `None` if the driver does not say.
    pub free_bytes: Option<u64>,
    /// Compute capability, such as 90 for 9.0.
    pub capability: Option<u32>,
}

impl ListedGpu {
    /// Returns whether another GPU is of the same kind; their free memory may differ.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let kind = |gpu: &Self| (gpu.name.clone(), gpu.memory_bytes, gpu.driver.clone(), gpu.capability);
        kind(self) == kind(other)
    }
}

/// Returns the architecture of a compute capability, such as `sm_90`, or a text that says that it is unknown.
fn architecture(capability: Option<u32>) -> String {
    capability.map_or_else(|| "unknown architecture".to_owned(), |number| format!("sm_{number}"))
}

/// A GPU and its index in CUDA, if the index is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NumberedGpu {
    /// Product name, such as `NVIDIA H200`.
    pub name: Option<String>,
    /// GPU memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Free GPU memory in bytes.
    pub free_bytes: Option<u64>,
    /// Compute capability, such as 90 for 9.0.
    pub capability: Option<u32>,
}

/// Which GPUs CUDA numbers, and in which order, according to environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Numbering {
    /// Whether the order is that of the bus, like that of `nvidia-smi`.
    pub is_by_bus: bool,
    /// The value of `CUDA_VISIBLE_DEVICES`, which restricts and orders the GPUs.
    pub visible: Option<String>,
}

impl Numbering {
    /// Returns the numbering of this process.
    pub(crate) fn for_this_process() -> Self {
        let is_by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
        let visible = std::env::var_os("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned());
        Self { is_by_bus, visible }
    }

    /// Returns the GPUs that the list distinguishes: if there are several unlike GPUs, the details of one are used only
    /// if its index is certain.
    fn guessed(&self, listed: &[ListedGpu]) -> Vec<NumberedGpu> {
        let alike = listed.windows(2).all(|pair| pair[0].is_like(&pair[1]));
        let count = match &self.visible {
            Some(list) => list.split(',').filter(|part| !part.trim().is_empty()).count().min(listed.len()),
            None => listed.len(),
        };
        let least_free = listed.iter().filter_map(|gpu| gpu.free_bytes).min();
        let guess = |index: usize| {
            let own = listed.get(index).filter(|_| self.is_by_bus && self.visible.is_none());
            let known = if alike { listed.first() } else { own };
            NumberedGpu {
                name: known.map(|gpu| gpu.name.clone()),
                memory_bytes: known.and_then(|gpu| gpu.memory_bytes),
                free_bytes: own.and_then(|gpu| gpu.free_bytes).or(least_free.filter(|_| alike)),
                capability: known.and_then(|gpu| gpu.capability),
            }
        };
        (0..count).map(guess).collect()
    }

    /// Returns the GPUs in the order of CUDA. What the driver did not say, or was not asked, is taken from the list, if that
    /// is certain. Without a list, `nodes` is the number of GPUs, at least 1.
    pub(crate) fn numbered(
        &self,
        listed: &[ListedGpu],
        driver_gpus: Option<&[NumberedGpu]>,
        nodes: usize,
    ) -> Vec<NumberedGpu> {
        let mut guessed = self.guessed(listed);
        if listed.is_empty() {
            guessed.resize(nodes.max(1), NumberedGpu::default());
        }
        let Some(driver_gpus) = driver_gpus else { return guessed };
        guessed.resize(driver_gpus.len(), NumberedGpu::default());
        let combined = driver_gpus.iter().cloned().zip(guessed).map(|(own, guess)| NumberedGpu {
            name: own.name.or(guess.name),
            memory_bytes: own.memory_bytes.or(guess.memory_bytes),
            free_bytes: own.free_bytes.or(guess.free_bytes),
            capability: own.capability.or(guess.capability),
        });
        combined.collect()
    }
}

/// Returns the architecture of a GPU; if it is unknown, those of all listed ones.
pub(crate) fn architectures(gpu: &NumberedGpu, listed: &[ListedGpu]) -> String {
    match (gpu.capability, listed) {
        (None, [_, ..]) => listed.iter().map(|gpu| architecture(gpu.capability)).collect::<Vec<_>>().join(" or "),
        (capability, _) => architecture(capability),
    }
}

/// The fields that are requested from `nvidia-smi --query-gpu`. Old versions do not know the last one.
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
                capability: more.get(1).and_then(|text| {
                    let (major, minor) = text.split_once('.')?;
                    major.parse::<u32>().ok()?.checked_mul(10)?.checked_add(minor.parse().ok()?)
                }),
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
        assert_eq!((gpus[0].capability, gpus[1].capability), (Some(90), None));
        let version =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12\n";
        let gpus_of_proc = parse_proc(version, &["Model: \t\t NVIDIA H200\nIRQ: 12\n".to_owned(), String::new()]);
        assert_eq!(gpus_of_proc.len(), 1);
        assert_eq!((gpus_of_proc[0].name.as_str(), gpus_of_proc[0].driver.as_str()), ("NVIDIA H200", "570.86.15"));
        assert!(gpus[0].is_like(&gpus[2]) && !gpus[0].is_like(&gpus[1]));
    }

    /// A computer with an Ada and a Turing GPU.
    fn unlike() -> Vec<ListedGpu> {
        parse_listed("NVIDIA RTX 4090, 24564, 580.65, 24000, 8.9\nNVIDIA T4, 15360, 580.65, 15000, 7.5\n")
    }

    #[test]
    fn the_driver_says_which_of_two_unlike_gpus_has_which_index() {
        let listed = unlike();
        let gpu = |name: &str, capability: u32, gib: u64| NumberedGpu {
            name: Some(name.to_owned()),
            memory_bytes: Some(gib << 30),
            free_bytes: Some((gib - 1) << 30),
            capability: Some(capability),
        };
        // CUDA puts the fastest GPU first, whatever the bus says; the variable may leave one out.
        let (ada, turing) = (gpu("NVIDIA RTX 4090", 89, 24), gpu("NVIDIA T4", 75, 15));
        for visible in [None, Some("1,0".to_owned())] {
            let numbering = Numbering { is_by_bus: false, visible };
            let both = [turing.clone(), ada.clone()];
            assert_eq!(numbering.numbered(&listed, Some(&both), 2), both);
            let guessed = numbering.numbered(&listed, None, 2);
            assert_eq!(guessed, [NumberedGpu::default(), NumberedGpu::default()], "the list alone does not say it");
            assert_eq!(architectures(&guessed[0], &listed), "sm_89 or sm_75");
        }
        let only = Numbering { is_by_bus: false, visible: Some("1".to_owned()) };
        let found = only.numbered(&listed, Some(std::slice::from_ref(&turing)), 2);
        assert_eq!((found.as_slice(), architectures(&found[0], &listed).as_str()), ([turing].as_slice(), "sm_75"));
    }

    #[test]
    fn without_the_driver_the_list_describes_gpus_whose_index_is_certain() {
        let by_bus = Numbering { is_by_bus: true, visible: None };
        let found = by_bus.numbered(&unlike(), None, 2);
        assert_eq!((found[0].capability, found[1].capability), (Some(89), Some(75)));
        assert_eq!(found[1].free_bytes, Some(15_000 << 20));
        let alike = parse_listed("NVIDIA H200, 143771, 570.86, 143000, 9.0\nNVIDIA H200, 143771, 570.86, 1000, 9.0\n");
        let found = Numbering::default().numbered(&alike, None, 2);
        assert_eq!((found.len(), found[1].capability, found[1].free_bytes), (2, Some(90), Some(1000 << 20)));
        assert_eq!(Numbering::default().numbered(&[], None, 0), [NumberedGpu::default()]);
        // What the driver does not say is taken from the list.
        let closed = NumberedGpu { name: Some("NVIDIA H200".to_owned()), ..NumberedGpu::default() };
        let found = Numbering::default().numbered(&alike, Some(&[closed]), 2);
        assert_eq!((found.len(), found[0].capability), (1, Some(90)));
    }
}

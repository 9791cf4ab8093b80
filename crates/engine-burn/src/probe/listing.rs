//! Parses what `nvidia-smi` and `ldconfig` print.

/// A GPU as `nvidia-smi` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedGpu {
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub driver: String,
}

/// Parses the output of `nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits`.
pub(crate) fn parse_listed(text: &str) -> Vec<ListedGpu> {
    let fields = text.lines().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    fields
        .filter_map(|f| match f.as_slice() {
            [name, mebibytes, driver] => Some(ListedGpu {
                name: (*name).to_owned(),
                memory_bytes: mebibytes.parse::<u64>().ok().map(|m| m << 20),
                driver: (*driver).to_owned(),
            }),
            _ => None,
        })
        .collect()
}

/// Returns whether a library is one of the NVRTC versions that Burn loads.
pub(crate) fn is_nvrtc(name: &str) -> bool {
    ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11"].contains(&name)
}

/// Returns the library names in the output of `ldconfig -p`, whose lines are `libz.so.1 (libc6,x86-64) =>
/// /lib/libz.so.1`.
pub(crate) fn cached_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| line.contains(" => ")) {
        names.extend(line.split_whitespace().next().map(str::to_owned));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_nvidia_smi_and_ldconfig_are_parsed() {
        let cache =
            "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\tlibz.so (libc6) => /z\n";
        assert_eq!(cached_names(cache), ["libcuda.so.1", "libz.so"]);
        let gpus = parse_listed("NVIDIA H200, 143771, 570.86.15\nnonsense\nNVIDIA T4, [N/A], 570.86.15\n");
        assert_eq!((gpus.len(), gpus[0].memory_bytes), (2, Some(143_771 << 20)));
        assert_eq!((gpus[1].name.as_str(), gpus[1].memory_bytes), ("NVIDIA T4", None));
        assert!(is_nvrtc("libnvrtc.so.12") && !is_nvrtc("libnvrtc-builtins.so.12.4"));
    }
}

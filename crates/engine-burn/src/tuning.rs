//! Configures where Burn caches its kernel timings.

use cubecl_runtime::config::autotune::{AutotuneConfig, AutotuneLogLevel};
use cubecl_runtime::config::cache::CacheConfig;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use directories::BaseDirs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Returns the folder of Burn's kernel timings, by device: `gpu-tuning` in the folder named by `CYTOSCOPE_CACHE`, or in
/// `cytoscope` in the user's cache folder. The first run of a shape on a device measures; later processes read the
/// timings. The folder may be deleted at any time.
pub fn tuning_folder() -> PathBuf {
    let named = std::env::var_os("CYTOSCOPE_CACHE").filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = named.or_else(|| Some(BaseDirs::new()?.cache_dir().join("cytoscope")));
    base.unwrap_or_else(|| std::env::temp_dir().join("cytoscope")).join("gpu-tuning")
}

/// Configures Burn, once per process and before its first use. Its environment variables (`CUBECL_AUTOTUNE_LEVEL`,
/// `CUBECL_DEBUG_LOG`) still apply; its configuration files are ignored.
pub(crate) fn configure() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let wanted = tuning_folder();
        // Burn panics if it cannot write there; fall back to the temporary folder.
        let folder = if writable(&wanted) { wanted } else { std::env::temp_dir().join("cytoscope-gpu-tuning") };
        let mut autotune = AutotuneConfig { cache: CacheConfig::File(folder), ..AutotuneConfig::default() };
        autotune.logger.level = AutotuneLogLevel::Disabled;
        let config = CubeClRuntimeConfig { autotune, ..CubeClRuntimeConfig::default() };
        // This panics if the configuration was read before; that configuration then applies to the whole process.
        let _ = std::panic::catch_unwind(|| CubeClRuntimeConfig::set(config.override_from_env()));
    });
}

fn writable(folder: &Path) -> bool {
    let probe = folder.join(format!(".{}.partial", std::process::id()));
    // `create_new` does not follow a symbolic link of this name.
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::File::create_new(&probe).map(drop));
    if written.is_ok() {
        let _ = std::fs::remove_file(&probe);
    }
    written.is_ok()
}

//! The settings of a training run that advice names.

cytoscope_storage::message_settings! {
    /// A setting of a training run, as it is written in its settings file, and after `--set`.
    pub enum TrainSetting {
        /// Batches per optimizer step.
        Accumulate, ACCUMULATE, "accumulate";
        /// Memory for decoded stacks in bytes.
        CacheBytes, CACHE_BYTES, "cache_bytes";
        /// Memory limit for the activations of a training step in MiB.
        MemoryMib, MEMORY_MIB, "memory_mib";
        /// Patches that are prepared in advance.
        Prefetch, PREFETCH, "prefetch";
        /// Number of validations.
        ValidationTimes, VALIDATION_TIMES, "validation.times";
        /// Number of data workers.
        Workers, WORKERS, "workers";
    }
}

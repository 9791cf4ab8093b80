//! The instruction sets that tests run on.

use cytoscope_kernels::{Isa, IsaName};

/// Returns all instruction sets of this machine, and reports those that are skipped.
pub fn isas() -> Vec<Isa> {
    let available = |name: IsaName| {
        let isa = Isa::available(name);
        if isa.is_none() {
            cytoscope_testkit::skip(format!("this machine does not support {}", name.as_str()));
        }
        isa
    };
    IsaName::ALL.into_iter().filter_map(available).collect()
}

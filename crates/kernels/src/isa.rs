//! Instruction sets as proof tokens.

use std::fmt;

/// The name of an instruction set, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaName {
    /// Plain Rust; whatever the compiler's baseline vectorises to.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 F, VL, BW, DQ.
    Avx512,
}

impl IsaName {
    /// Every instruction set there are kernels for, lowest first.
    pub const ALL: [IsaName; 3] = [IsaName::Portable, IsaName::Avx2, IsaName::Avx512];

    /// The name used by `CYTOSCOPE_ISA`.
    pub fn as_str(self) -> &'static str {
        match self {
            IsaName::Portable => "portable",
            IsaName::Avx2 => "avx2",
            IsaName::Avx512 => "avx512",
        }
    }
}

/// An instruction set this machine has: only [`Isa::available`] and [`Isa::detect`] make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaName);

impl Isa {
    /// The token for `name`, if this machine has that instruction set.
    pub fn available(name: IsaName) -> Option<Isa> {
        let has = match name {
            IsaName::Portable => true,
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        };
        has.then_some(Isa(name))
    }

    /// The highest instruction set of this machine, or the one `CYTOSCOPE_ISA` names where the machine has it.
    pub fn detect() -> Isa {
        let wanted = std::env::var("CYTOSCOPE_ISA").ok();
        let forced = IsaName::ALL.into_iter().find(|n| wanted.as_deref() == Some(n.as_str()));
        forced
            .and_then(Isa::available)
            .or_else(|| IsaName::ALL.into_iter().rev().find_map(Isa::available))
            .unwrap_or(Isa(IsaName::Portable))
    }

    /// The instruction set's name.
    pub fn name(self) -> IsaName {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

//! Instruction sets as tokens that prove CPU support.

use std::fmt;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// Name of an instruction set, in ascending order of capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaName {
    /// Plain Rust, vectorized for the compiler's baseline target.
    Portable,
    /// AVX2 with FMA and half-precision conversion.
    Avx2,
    /// AVX2 with byte dot products (AVX-VNNI).
    Avx2Vnni,
    /// AVX-512 F, VL, BW, DQ.
    Avx512,
    /// AVX-512 with byte dot products (VNNI).
    Avx512Vnni,
    /// AVX-512 VNNI with the byte matrix unit (AMX-INT8).
    Amx,
}

/// Width of the float arithmetic of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Simd {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Instructions that multiply bf16 values and accumulate in 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bf16Unit {
    /// Vectors (AVX-512 BF16).
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The matrix unit (AMX-BF16), with AVX-512 BF16 for rounding.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl IsaName {
    /// All instruction sets with kernels, lowest first.
    pub const ALL: [IsaName; 6] =
        [IsaName::Portable, IsaName::Avx2, IsaName::Avx2Vnni, IsaName::Avx512, IsaName::Avx512Vnni, IsaName::Amx];

    /// Returns the name used by `CYTOSCOPE_ISA`.
    pub fn as_str(self) -> &'static str {
        match self {
            IsaName::Portable => "portable",
            IsaName::Avx2 => "avx2",
            IsaName::Avx2Vnni => "avx2-vnni",
            IsaName::Avx512 => "avx512",
            IsaName::Avx512Vnni => "avx512-vnni",
            IsaName::Amx => "amx",
        }
    }
}

/// An instruction set that this CPU supports. Only [`Isa::available`] and [`Isa::detect`] create one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(IsaName);

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Returns whether vector products of bf16 are used: only on AMD's CPUs, where they should be faster than those of 32-bit
/// floats, which has not been measured. On Intel's, they have half the rate. The vendor is checked once, because every run of
/// voxels needs the answer and CPUID is slow, especially in virtual machines.
#[cfg(target_arch = "x86_64")]
fn has_fast_vector_bf16() -> bool {
    static IS_FAST: OnceLock<bool> = OnceLock::new();
    *IS_FAST.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        has_bf16() && name.as_flattened() == b"AuthenticAMD"
    })
}

impl Isa {
    /// Returns the token for `name`, if this CPU supports that instruction set. Under Miri, which interprets neither
    /// inline assembly nor most vector instructions, only the portable one is available.
    pub fn available(name: IsaName) -> Option<Isa> {
        if cfg!(miri) && name != IsaName::Portable {
            return None;
        }
        let has = match name {
            IsaName::Portable => true,
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2Vnni => has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx512 => has_avx512(),
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx512Vnni => has_avx512() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            IsaName::Amx => has_avx512() && is_x86_feature_detected!("avx512vnni") && crate::amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        };
        has.then_some(Isa(name))
    }

    /// Returns the instruction set of this name, as in `CYTOSCOPE_ISA`; `None` if the name is unknown or this CPU lacks the
    /// instruction set.
    pub fn named(name: &str) -> Option<Isa> {
        IsaName::ALL.into_iter().find(|isa| isa.as_str() == name).and_then(Isa::available)
    }

    /// Returns the highest supported instruction set, or the one named by `CYTOSCOPE_ISA` if it is supported.
    pub fn detect() -> Isa {
        let wanted = std::env::var("CYTOSCOPE_ISA").ok();
        wanted
            .and_then(|name| Isa::named(&name))
            .or_else(|| IsaName::ALL.into_iter().rev().find_map(Isa::available))
            .unwrap_or(Isa(IsaName::Portable))
    }

    /// Returns the value of `CYTOSCOPE_ISA` if it has no effect: it does not name an instruction set, or this CPU lacks it.
    pub fn ignored() -> Option<String> {
        let wanted = std::env::var("CYTOSCOPE_ISA").ok().filter(|wanted| !wanted.is_empty())?;
        Isa::named(&wanted).is_none().then_some(wanted)
    }

    /// Returns the instruction set's name.
    pub fn name(self) -> IsaName {
        self.0
    }

    /// Returns whether the kernels of this instruction set multiply bf16 values on this CPU: those for AMX if it has AMX-BF16
    /// and AVX-512 BF16, and those for AVX-512 VNNI and AMX on AMD's CPUs with AVX-512 BF16.
    pub fn multiplies_bf16(self) -> bool {
        self.bf16_unit().is_some()
    }

    /// Returns the instructions that multiply bf16 values.
    pub(crate) fn bf16_unit(self) -> Option<Bf16Unit> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaName::Amx if has_bf16() && crate::amx::has_bf16() => Some(Bf16Unit::Amx),
            #[cfg(target_arch = "x86_64")]
            IsaName::Amx | IsaName::Avx512Vnni if has_fast_vector_bf16() => Some(Bf16Unit::Avx512),
            _ => None,
        }
    }

    /// Returns whether a block of channels fits into one register, and there are 32 registers: AVX-512.
    pub(crate) fn has_wide_registers(self) -> bool {
        self.0 >= IsaName::Avx512
    }

    /// Returns the float arithmetic of the instruction set.
    pub(crate) fn simd(self) -> Simd {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx2 | IsaName::Avx2Vnni => Simd::Avx2,
            #[cfg(target_arch = "x86_64")]
            IsaName::Avx512 | IsaName::Avx512Vnni | IsaName::Amx => Simd::Avx512,
            _ => Simd::Portable,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_sets_of_avx512_have_wide_registers() {
        for isa in IsaName::ALL.map(Isa) {
            let is_narrow = matches!(isa.name(), IsaName::Portable | IsaName::Avx2 | IsaName::Avx2Vnni);
            assert_eq!(isa.has_wide_registers(), !is_narrow, "{isa}");
        }
    }
}

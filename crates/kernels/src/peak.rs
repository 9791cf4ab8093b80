//! Measures the peak rate of a core with loops of multiply-add instructions on registers.

use crate::{Isa, IsaName};
use std::hint::black_box;
use std::time::Instant;

/// Peak operations per second of one core; a multiply-add counts as two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// With 32-bit floats.
    pub float: f64,
    /// With bytes and 32-bit sums.
    pub bytes: f64,
}

/// Measures the multiply-add instructions that the kernels of an instruction set use, as the best of a few short loops.
/// A rate is 0 if there is no such loop (portable code, bytes without dot products).
pub fn measure(isa: Isa) -> Peak {
    let best = |ops: f64, f: &dyn Fn()| {
        let rate = |_| {
            let start = Instant::now();
            f();
            ops / start.elapsed().as_secs_f64()
        };
        (0..5).map(rate).fold(0.0, f64::max)
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (isa, best, black_box(0), IsaName::Portable);
        Peak { float: 0.0, bytes: 0.0 }
    }
    #[cfg(target_arch = "x86_64")]
    {
        let chains = (ROUNDS * CHAINS) as f64;
        // SAFETY: holding `isa` proves that the CPU has the instruction set of the loop that is chosen for it.
        unsafe {
            let float = match isa.name() {
                IsaName::Portable => 0.0,
                IsaName::Avx2 | IsaName::Avx2Vnni => best(chains * 16.0, &|| fma256()),
                _ => best(chains * 32.0, &|| fma512()),
            };
            let bytes = match isa.name() {
                IsaName::Avx2Vnni => best(chains * 64.0, &|| dot256()),
                IsaName::Avx512Vnni => best(chains * 128.0, &|| dot512()),
                IsaName::Amx => best((ROUNDS / 8 * 4) as f64 * 32768.0, &|| crate::int8::amx::run_products(ROUNDS / 8)),
                _ => 0.0,
            };
            Peak { float, bytes }
        }
    }
}

#[cfg(target_arch = "x86_64")]
const ROUNDS: usize = 400_000;
#[cfg(target_arch = "x86_64")]
const CHAINS: usize = 12;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn fma512() {
    let (a, b) = (black_box(_mm512_set1_ps(1.000_000_1)), black_box(_mm512_set1_ps(1e-9)));
    let mut sums = [black_box(_mm512_setzero_ps()); CHAINS];
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm512_fmadd_ps(*s, a, b);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn fma256() {
    let (a, b) = (black_box(_mm256_set1_ps(1.000_000_1)), black_box(_mm256_set1_ps(1e-9)));
    let mut sums = [black_box(_mm256_setzero_ps()); CHAINS];
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm256_fmadd_ps(*s, a, b);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn dot512() {
    let (a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(1)));
    let mut sums = [black_box(_mm512_setzero_si512()); CHAINS];
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm512_dpbusd_epi32(*s, a, b);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn dot256() {
    let (a, b) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(1)));
    let mut sums = [black_box(_mm256_setzero_si256()); CHAINS];
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm256_dpbusd_avx_epi32(*s, a, b);
        }
    }
    black_box(sums);
}

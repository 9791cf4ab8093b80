//! Measures the peak rates of the machine: multiply-adds in registers, and bytes to and from memory.

#[cfg(target_arch = "x86_64")]
use crate::isa::Bf16Unit;
use crate::{Isa, IsaName};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread::ScopedJoinHandle;
use std::time::Instant;

/// Repetitions of each loop, which takes about a millisecond.
const ROUNDS: usize = 400_000;
/// Number of vector registers with sums that do not depend on each other: enough to hide the latency of an instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) const CHAINS: usize = 12;
/// Number of floats that the portable loop updates; they fit into the vector registers of every CPU.
const PORTABLE_CHAINS: usize = 32;

/// Peak operations per second of one core; a multiply-add counts as two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// Operations on 32-bit floats per second.
    pub float: f64,
    /// Operations on bf16 values with 32-bit sums per second; 0 if the kernels have none, see [`Isa::multiplies_bf16`].
    pub bf16: f64,
    /// Operations on bytes with 32-bit sums per second; 0 for the portable kernels.
    pub bytes: f64,
}

/// Measures the multiply-add instructions that the kernels of an instruction set use, as the best of a few short loops.
/// The rate of bytes is 0 if there is no such loop: the portable kernels have no instructions for them.
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
        let _ = (isa, IsaName::Portable);
        Peak { float: best(portable_operations(), &portable), bf16: 0.0, bytes: 0.0 }
    }
    #[cfg(target_arch = "x86_64")]
    {
        let chains = (ROUNDS * CHAINS) as f64;
        // SAFETY: holding `isa` proves that the CPU has the instruction set of the loop that is chosen for it.
        unsafe {
            let float = match isa.name() {
                IsaName::Portable => best(portable_operations(), &portable),
                IsaName::Avx2 | IsaName::Avx2Vnni => best(chains * 16.0, &|| fma256()),
                _ => best(chains * 32.0, &|| fma512()),
            };
            let bytes = match isa.name() {
                IsaName::Avx2 | IsaName::Avx512 => best(chains * 64.0, &|| madd256()),
                IsaName::Avx2Vnni => best(chains * 64.0, &|| dot256()),
                IsaName::Avx512Vnni => best(chains * 128.0, &|| dot512()),
                IsaName::Amx => best((ROUNDS / 8 * 4) as f64 * 32768.0, &|| crate::int8::amx::run_products(ROUNDS / 8)),
                _ => 0.0,
            };
            let bf16 = match isa.bf16_unit() {
                Some(Bf16Unit::Amx) => {
                    best((ROUNDS / 8 * 4) as f64 * 16384.0, &|| crate::bf16::amx::run_products(ROUNDS / 8))
                }
                Some(Bf16Unit::Avx512) => best(chains * 64.0, &|| crate::bf16::avx512::run_products(ROUNDS)),
                None => 0.0,
            };
            Peak { float, bf16, bytes }
        }
    }
}

/// Runs `measure` on `threads` threads at once, and returns the sum of their rates: threads that share a core, or its clock, are
/// slower than one thread alone.
pub fn measure_threads(isa: Isa, threads: usize) -> Peak {
    let barrier = Barrier::new(threads.max(1));
    let measured = std::thread::scope(|scope| {
        let start = || {
            barrier.wait();
            measure(isa)
        };
        let running: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(start)).collect();
        running.into_iter().map(joined).collect::<Vec<Peak>>()
    });
    let sum = |of: fn(&Peak) -> f64| measured.iter().map(of).sum::<f64>();
    Peak { float: sum(|peak| peak.float), bf16: sum(|peak| peak.bf16), bytes: sum(|peak| peak.bytes) }
}

/// Returns what a thread measured. A panic is passed on: the sum of the other threads would be too small a rate.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(measured) => measured,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Measures the bytes per second that all threads together read from and write to memory: the best of a few rounds of
/// `a[i] = b[i] + s · c[i]`, counted as three transfers per element (the triad of the STREAM benchmark). The arrays of
/// all threads together have about `total_bytes`, which should exceed the caches.
pub fn memory_bytes_per_sec(threads: usize, total_bytes: usize) -> f64 {
    const PASSES: usize = 5;
    let threads = threads.max(1);
    let len = (total_bytes / threads / (3 * size_of::<f32>())).max(1);
    let barrier = Barrier::new(threads);
    let triad = || {
        let (mut a, b, c) = (vec![0.0f32; len], vec![1.0f32; len], vec![2.0f32; len]);
        let scale = black_box(0.5f32);
        let pass = |_| {
            barrier.wait();
            let start = Instant::now();
            for ((a, b), c) in a.iter_mut().zip(&b).zip(&c) {
                *a = *b + scale * *c;
            }
            black_box(&mut a);
            start.elapsed().as_secs_f64()
        };
        (0..PASSES).map(pass).collect::<Vec<f64>>()
    };
    let seconds = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(triad)).collect();
        running.into_iter().map(joined).collect::<Vec<Vec<f64>>>()
    });
    let bytes = (3 * size_of::<f32>() * len) as f64;
    // A pass ends with its slowest thread.
    let slowest = |pass: usize| seconds.iter().filter_map(|all| all.get(pass).copied()).fold(0.0, f64::max);
    let rate = |pass: usize| seconds.len() as f64 * bytes / slowest(pass).max(f64::MIN_POSITIVE);
    // In the first pass, the system provides the pages of the memory.
    (1..PASSES).map(rate).fold(0.0, f64::max)
}

/// Returns the operations of [`portable`].
fn portable_operations() -> f64 {
    2.0 * (ROUNDS * PORTABLE_CHAINS) as f64
}

/// Multiplies and adds in plain Rust, as the portable kernels do.
fn portable() {
    let (a, b) = (black_box(1.000_000_1f32), black_box(1e-9f32));
    let mut sums = black_box([0.0f32; PORTABLE_CHAINS]);
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = *s * a + b;
        }
    }
    black_box(sums);
}

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

/// Multiplies bytes, adds the products in pairs to 16 and then to 32 bits, and adds these to the sums. The sums are also
/// factors: products of constants would be computed once, before the loop.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn madd256() {
    let (a, ones) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi16(1)));
    let mut sums = [black_box(_mm256_setzero_si256()); CHAINS];
    for _ in 0..ROUNDS {
        for s in &mut sums {
            *s = _mm256_add_epi32(*s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, *s), ones));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "measures for a fraction of a second of virtual time, which takes an interpreter hours")]
    fn every_machine_has_a_peak_of_computing_and_of_memory() {
        for isa in [Some(Isa::detect()), Isa::available(IsaName::Portable)].into_iter().flatten() {
            let peak = measure_threads(isa, 2);
            let multiplies_bytes = isa.name() != IsaName::Portable;
            assert!(peak.float > 0.0 && (peak.bytes > 0.0) == multiplies_bytes, "{isa}: {peak:?}");
            assert_eq!(peak.bf16 > 0.0, isa.multiplies_bf16(), "{isa}: {peak:?}");
        }
        match Isa::available(IsaName::Avx2) {
            Some(isa) => assert!(measure(isa).bytes > 0.0, "{isa}"),
            None => cytoscope_testkit::skip("this machine does not support avx2"),
        }
        let rate = memory_bytes_per_sec(2, 3 << 20);
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}

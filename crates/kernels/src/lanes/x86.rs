//! The lanes of x86-64: two registers of AVX2, or one of AVX-512.

use super::Lanes;
use std::arch::x86_64::*;

/// Two 256-bit registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY: the intrinsics need AVX2, FMA and F16C, which the trait's contract requires of the CPU.
impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and 16 readable elements at `from`; the loads are
        // unaligned.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and 16 readable elements at `from`; the loads are
        // unaligned.
        unsafe {
            let (a, b) = (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast()));
            Self(_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and 16 readable elements at `from`; the loads are
        // unaligned.
        unsafe {
            Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and 16 readable elements at `from`; the loads are
        // unaligned.
        unsafe {
            let (a, b) = (_mm_loadl_epi64(from.cast()), _mm_loadl_epi64(from.add(8).cast()));
            Self(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and room for 16 elements at `to`; the stores are
        // unaligned.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and room for 16 elements at `to`; the stores are
        // unaligned.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }
    #[inline(always)]
    unsafe fn store_u8(self, low: f32, high: f32, offset: i32, to: *mut u8) {
        // SAFETY: the caller guarantees AVX2, FMA and F16C and room for 16 elements at `to`; the stores are
        // unaligned.
        unsafe {
            let (low, high, offset) = (_mm256_set1_ps(low), _mm256_set1_ps(high), _mm256_set1_epi32(offset));
            let whole = |v| {
                let v = _mm256_min_ps(_mm256_max_ps(v, low), high);
                _mm256_add_epi32(_mm256_cvtps_epi32(v), offset)
            };
            // 0 1 2 3 | 4 5 6 7 and 8 … 15 -> words 0 1 2 3 8 9 10 11 | 4 5 6 7 12 13 14 15 -> bytes in order.
            let words = _mm256_packus_epi32(whole(self.0), whole(self.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn round_clamp(self, low: f32, high: f32) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe {
            let (low, high) = (_mm256_set1_ps(low), _mm256_set1_ps(high));
            let clamp = |v| _mm256_round_ps::<NEAREST>(_mm256_min_ps(_mm256_max_ps(v, low), high));
            Self(clamp(self.0), clamp(self.1))
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe { Self(_mm256_fmadd_ps(self.0, a.0, b.0), _mm256_fmadd_ps(self.1, a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul_then_add(self, a: Self, b: Self) -> Self {
        // SAFETY: `fma` needs AVX2, FMA and F16C, which the caller guarantees.
        unsafe { self.fma(a, b) }
    }
    #[inline(always)]
    unsafe fn leaky(self, slope: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used. The sign bit selects; −0
        // becomes −0 · slope, which is also 0.
        unsafe {
            Self(
                _mm256_blendv_ps(self.0, _mm256_mul_ps(self.0, slope.0), self.0),
                _mm256_blendv_ps(self.1, _mm256_mul_ps(self.1, slope.1), self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used. If one operand is NaN, the result is the
        // second.
        unsafe { Self(_mm256_max_ps(_mm256_setzero_ps(), self.0), _mm256_max_ps(_mm256_setzero_ps(), self.1)) }
    }
    #[inline(always)]
    unsafe fn greater(first: [Self; 2], second: [Self; 2]) -> [Self; 2] {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_NLE_UQ>(second[0].0, first[0].0);
            let high = _mm256_cmp_ps::<_CMP_NLE_UQ>(second[0].1, first[0].1);
            [
                Self(_mm256_blendv_ps(first[0].0, second[0].0, low), _mm256_blendv_ps(first[0].1, second[0].1, high)),
                Self(_mm256_blendv_ps(first[1].0, second[1].0, low), _mm256_blendv_ps(first[1].1, second[1].1, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn where_equal(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe {
            Self(
                _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(a.0, b.0)),
                _mm256_and_ps(self.1, _mm256_cmp_ps::<_CMP_EQ_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn where_positive(self, of: Self, slope: Self) -> Self {
        // SAFETY: the caller guarantees AVX2, FMA and F16C; only registers are used.
        unsafe {
            let above = _mm256_cmp_ps::<_CMP_GT_OQ>(of.0, _mm256_setzero_ps());
            let above_high = _mm256_cmp_ps::<_CMP_GT_OQ>(of.1, _mm256_setzero_ps());
            Self(
                _mm256_blendv_ps(_mm256_mul_ps(self.0, slope.0), self.0, above),
                _mm256_blendv_ps(_mm256_mul_ps(self.1, slope.1), self.1, above_high),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: `to_array` needs AVX2, FMA and F16C, which the caller guarantees.
        unsafe { self.to_array() }.iter().sum()
    }
    #[inline(always)]
    unsafe fn sums(of: [Self; 16]) -> Self {
        // Macros, because closures that are used twice are not inlined into code for a target feature.
        macro_rules! pair {
            ($i:expr) => {
                _mm256_hadd_ps(_mm256_add_ps(of[$i].0, of[$i].1), _mm256_add_ps(of[$i + 1].0, of[$i + 1].1))
            };
        }
        // Each half of the register holds partial sums of the four vectors.
        macro_rules! four {
            ($i:expr) => {
                _mm256_hadd_ps(pair!($i), pair!($i + 2))
            };
        }
        macro_rules! eight {
            ($i:expr) => {{
                let (low, high) = (four!($i), four!($i + 4));
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
            }};
        }
        // SAFETY: the caller guarantees AVX2; only registers are used.
        unsafe { Self(eight!(0), eight!(8)) }
    }
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: `out` holds 16 values, and the caller guarantees AVX2, FMA and F16C.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }
}

/// Implements [`Lanes::fma_three`] with a barrier between calls. Without it, the compiler reads many values ahead
/// and spills sums.
///
/// # Safety
/// The CPU must support AVX-512 F, and `x` must point to a value.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn fma_three(vectors: [Avx512; 3], x: *const f32, [a, b, c]: [Avx512; 3]) -> [Avx512; 3] {
    // SAFETY: the caller guarantees AVX-512 F and a readable value at `x`. The assembly is only a comment; it keeps
    // the compiler from moving reads across it.
    unsafe {
        let x = _mm512_set1_ps(*x);
        let mut a = _mm512_fmadd_ps(vectors[0].0, x, a.0);
        let mut b = _mm512_fmadd_ps(vectors[1].0, x, b.0);
        let mut c = _mm512_fmadd_ps(vectors[2].0, x, c.0);
        std::arch::asm!(
            "/* {} {} {} */",
            inout(zmm_reg) a,
            inout(zmm_reg) b,
            inout(zmm_reg) c,
            options(nostack, preserves_flags)
        );
        [Avx512(a), Avx512(b), Avx512(c)]
    }
}

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

// SAFETY: the intrinsics need AVX-512 F, which the trait's contract requires of the CPU.
impl Lanes for Avx512 {
    const HAS_32_REGISTERS: bool = true;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees AVX-512 F and 16 readable elements at `from`; the loads are unaligned.
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self {
        // SAFETY: the caller guarantees AVX-512 F and 16 readable elements at `from`; the loads are unaligned.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees AVX-512 F and 16 readable elements at `from`; the loads are unaligned.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees AVX-512 F and 16 readable elements at `from`; the loads are unaligned.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees AVX-512 F and room for 16 elements at `to`; the stores are unaligned.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller guarantees AVX-512 F and room for 16 elements at `to`; the stores are unaligned.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, low: f32, high: f32, offset: i32, to: *mut u8) {
        // SAFETY: the caller guarantees AVX-512 F and room for 16 elements at `to`; the stores are unaligned.
        unsafe {
            let v = _mm512_min_ps(_mm512_max_ps(self.0, _mm512_set1_ps(low)), _mm512_set1_ps(high));
            let whole = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(offset));
            _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(whole));
        }
    }
    #[inline(always)]
    unsafe fn round_clamp(self, low: f32, high: f32) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe {
            let v = _mm512_min_ps(_mm512_max_ps(self.0, _mm512_set1_ps(low)), _mm512_set1_ps(high));
            Self(_mm512_roundscale_ps::<NEAREST>(v))
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_add_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_sub_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_mul_ps(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul_then_add(self, a: Self, b: Self) -> Self {
        // SAFETY: `fma` needs AVX-512 F, which the caller guarantees.
        unsafe { self.fma(a, b) }
    }
    #[inline(always)]
    unsafe fn fma_three(vectors: [Self; 3], x: *const f32, sums: [Self; 3]) -> [Self; 3] {
        // SAFETY: the caller guarantees AVX-512 F and a readable value at `x`.
        unsafe { fma_three(vectors, x, sums) }
    }
    #[inline(always)]
    unsafe fn leaky(self, slope: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe {
            let negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, _mm512_setzero_ps());
            Self(_mm512_mask_mul_ps(self.0, negative, self.0, slope.0))
        }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used. If one operand is NaN, the result is the second.
        unsafe { Self(_mm512_max_ps(_mm512_setzero_ps(), self.0)) }
    }
    #[inline(always)]
    unsafe fn greater(first: [Self; 2], second: [Self; 2]) -> [Self; 2] {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe {
            let above = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(second[0].0, first[0].0);
            [
                Self(_mm512_mask_blend_ps(above, first[0].0, second[0].0)),
                Self(_mm512_mask_blend_ps(above, first[1].0, second[1].0)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn where_equal(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { Self(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a.0, b.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn where_positive(self, of: Self, slope: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe {
            let below = !_mm512_cmp_ps_mask::<_CMP_GT_OQ>(of.0, _mm512_setzero_ps());
            Self(_mm512_mask_mul_ps(self.0, below, self.0, slope.0))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn sums(of: [Self; 16]) -> Self {
        // Pairs are interleaved and added: after four rounds, lane i is the sum of vector i. These are macros,
        // because closures that are used twice are not inlined into code for a target feature.
        macro_rules! pair {
            ($a:expr, $b:expr) => {
                _mm512_add_ps(_mm512_unpacklo_ps($a.0, $b.0), _mm512_unpackhi_ps($a.0, $b.0))
            };
        }
        macro_rules! four {
            ($i:literal) => {{
                // Within 128 bits: (a0+a2, b0+b2, a1+a3, b1+b3), then the sums of four vectors side by side.
                let (x, y) = (pair!(of[$i], of[$i + 1]), pair!(of[$i + 2], of[$i + 3]));
                _mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(x, y), _mm512_shuffle_ps::<0b11_10_11_10>(x, y))
            }};
        }
        macro_rules! halves {
            ($a:expr, $b:expr) => {
                _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0b01_00_01_00>($a, $b),
                    _mm512_shuffle_f32x4::<0b11_10_11_10>($a, $b),
                )
            };
        }
        // SAFETY: the caller guarantees AVX-512 F; only registers are used.
        unsafe {
            let q = [four!(0), four!(4), four!(8), four!(12)];
            // Each quarter of a register holds partial sums of its four vectors; add the quarters.
            let (x, y) = (halves!(q[0], q[1]), halves!(q[2], q[3]));
            Self(_mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(x, y),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(x, y),
            ))
        }
    }
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; 16] {
        let mut out = [0.0; 16];
        // SAFETY: `out` holds 16 values, and the caller guarantees AVX-512 F.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }
}

//! Sixteen `f32` lanes: one channel block of one voxel. Row loops are generic over [`Lanes`], and [`with_lanes`]
//! compiles them for each width of float arithmetic.

#[cfg(target_arch = "x86_64")]
mod x86;

use half::f16;

/// Sixteen `f32` values in registers.
///
/// # Safety
/// Functions may only be called (after inlining) inside a function compiled for the implementing type's instruction
/// set, on a CPU that supports it. Pointers must reach sixteen elements; they need not be aligned.
pub(crate) trait Lanes: Copy {
    /// Whether the CPU has 32 registers of 16 lanes, and not 16 of eight.
    const HAS_32_REGISTERS: bool = false;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_i32(from: *const i32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_u8(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_f16(self, to: *mut u16);
    /// Stores `clamp(round_half_even(self), low, high) + offset` as bytes; NaN becomes `low`.
    unsafe fn store_u8(self, low: f32, high: f32, offset: i32, to: *mut u8);
    /// Returns `clamp(round_half_even(self), low, high)`; NaN becomes `low`.
    unsafe fn round_clamp(self, low: f32, high: f32) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    /// Returns `self · a + b`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// Returns `self · a + b`, rounded once or twice, whichever is faster.
    unsafe fn mul_then_add(self, a: Self, b: Self) -> Self;
    /// Returns `sums[i] + vectors[i] · x` for one value in memory and three vectors.
    #[inline(always)]
    unsafe fn fma_three(vectors: [Self; 3], x: *const f32, sums: [Self; 3]) -> [Self; 3] {
        // SAFETY: the caller guarantees a CPU that supports `Self` and a readable value at `x`.
        unsafe {
            let x = Self::splat(*x);
            [
                vectors[0].mul_then_add(x, sums[0]),
                vectors[1].mul_then_add(x, sums[1]),
                vectors[2].mul_then_add(x, sums[2]),
            ]
        }
    }
    /// Returns `self` where it is not negative, else `self · slope`.
    unsafe fn leaky(self, slope: Self) -> Self;
    /// Returns `self` where it is not negative, else 0; NaN stays NaN.
    unsafe fn relu(self) -> Self;
    /// Returns [`Lanes::leaky`], and 0 for −∞ if the slope is 0. `slopes` repeats `slope`, which is the same for a whole row.
    #[inline(always)]
    unsafe fn activate(self, slope: f32, slopes: Self) -> Self {
        // SAFETY: the caller guarantees a CPU that supports `Self`.
        unsafe {
            if slope == 0.0 {
                self.relu()
            } else if slope == 1.0 {
                self
            } else {
                self.leaky(slopes)
            }
        }
    }
    /// Returns `self` where `of` is positive, else `self · slope`.
    unsafe fn where_positive(self, of: Self, slope: Self) -> Self;
    /// Each operand is a value and a payload. Returns the greater value of each lane and its payload; the second
    /// operand if the values cannot be compared (NaN), the first if they are equal.
    unsafe fn greater(first: [Self; 2], second: [Self; 2]) -> [Self; 2];
    /// Returns `self` where `a` equals `b`, else 0.
    unsafe fn where_equal(self, a: Self, b: Self) -> Self;
    /// Returns the sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// Returns the lanes as an array.
    unsafe fn to_array(self) -> [f32; 16];
    /// Returns the sums of the lanes of sixteen vectors, in their order.
    #[inline(always)]
    unsafe fn sums(of: [Self; 16]) -> Self {
        let mut out = [0.0; 16];
        for (o, v) in out.iter_mut().zip(of) {
            // SAFETY: the caller guarantees a CPU that supports `Self`.
            *o = unsafe { v.sum() };
        }
        // SAFETY: the caller guarantees a CPU that supports `Self`; `out` holds 16 values, and the load is unaligned.
        unsafe { Self::load(out.as_ptr()) }
    }
}

/// Sixteen lanes as an array.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 16]);

// SAFETY: plain Rust arrays; loads and stores touch exactly the 16 elements that the trait's contract promises.
impl Lanes for Plain {
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 16])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable elements at `from`; the read is unaligned.
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self {
        // SAFETY: the caller guarantees 16 readable elements at `from`; the read is unaligned.
        Self(unsafe { from.cast::<[i32; 16]>().read_unaligned() }.map(|v| v as f32))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable elements at `from`; the read is unaligned.
        Self(unsafe { from.cast::<[u16; 16]>().read_unaligned() }.map(|v| f16::from_bits(v).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller guarantees 16 readable elements at `from`; the read is unaligned.
        Self(unsafe { from.cast::<[u8; 16]>().read_unaligned() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller guarantees room for 16 elements at `to`; the write is unaligned.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        // SAFETY: the caller guarantees room for 16 elements at `to`; the write is unaligned.
        unsafe { to.cast::<[u16; 16]>().write_unaligned(self.0.map(|v| f16::from_f32(v).to_bits())) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, low: f32, high: f32, offset: i32, to: *mut u8) {
        // SAFETY: the caller guarantees room for 16 elements at `to`; the write is unaligned.
        unsafe {
            let rounded = self.round_clamp(low, high).0;
            to.cast::<[u8; 16]>().write_unaligned(rounded.map(|v| (v as i32 + offset) as u8));
        }
    }
    #[inline(always)]
    unsafe fn round_clamp(self, low: f32, high: f32) -> Self {
        Self(self.0.map(|v| if v > low { v.min(high).round_ties_even() } else { low }))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] - other.0[i]))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(a.0[i], b.0[i])))
    }
    #[inline(always)]
    unsafe fn mul_then_add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn leaky(self, slope: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] < 0.0 { self.0[i] * slope.0[i] } else { self.0[i] }))
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Self(self.0.map(|v| if v < 0.0 { 0.0 } else { v }))
    }
    #[inline(always)]
    unsafe fn greater(first: [Self; 2], second: [Self; 2]) -> [Self; 2] {
        let of = |which: usize, i: usize| {
            let first_is = second[0].0[i] <= first[0].0[i];
            if first_is { first[which].0[i] } else { second[which].0[i] }
        };
        [Self(std::array::from_fn(|i| of(0, i))), Self(std::array::from_fn(|i| of(1, i)))]
    }
    #[inline(always)]
    unsafe fn where_equal(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| if a.0[i] == b.0[i] { self.0[i] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn where_positive(self, of: Self, slope: Self) -> Self {
        Self(std::array::from_fn(|i| if of.0[i] > 0.0 { self.0[i] } else { self.0[i] * slope.0[i] }))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; 16] {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Defines a function that runs `$body` with `$L` bound to the lanes of the instruction set of `isa`. The body is
/// compiled once for each instruction set.
macro_rules! with_lanes {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<$L:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// The pointers must be valid for the lengths that the arguments state.
        $vis unsafe fn $name(isa: crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            unsafe fn imp<$L: crate::lanes::Lanes>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller guarantees the pointers, and this function is compiled for the instruction set of
                // the lanes.
                unsafe { imp::<crate::lanes::Avx512>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller guarantees the pointers, and this function is compiled for the instruction set of
                // the lanes.
                unsafe { imp::<crate::lanes::Avx2>($($arg),*) }
            }
            // SAFETY: holding `isa` proves that the CPU has the instruction set; the caller guarantees that the
            // pointers are valid for the lengths that the arguments state.
            unsafe {
                match isa.simd() {
                    #[cfg(target_arch = "x86_64")]
                    crate::isa::Simd::Avx512 => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    crate::isa::Simd::Avx2 => avx2($($arg),*),
                    crate::isa::Simd::Portable => imp::<crate::lanes::Plain>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use with_lanes;

//! The matrix unit (AMX): detection, configuration of tiles, and moves between tiles and memory.
//!
//! The instructions have no stable intrinsics, so inline assembly is used. Every block of assembly declares the tiles that
//! it writes as clobbered; values of tiles cannot be declared as inputs or outputs in Rust, although they are kept from
//! one block to the next. This is sound because the compiler allocates no tile: it does so only for intrinsics in
//! functions compiled for AMX, of which the program has none. Flags and, unless an option says otherwise, memory are
//! clobbered by default. Blocks without the option `pure` stay in order.
#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::sync::OnceLock;

/// Size of a row of a tile in bytes.
pub(crate) const ROW_BYTES: usize = 64;

/// What the matrix unit multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unit {
    /// 8-bit integers (AMX-INT8).
    bytes: bool,
    /// 16-bit floats with the exponent range of a 32-bit float (AMX-BF16).
    bf16: bool,
}

/// Returns whether the CPU has AMX-INT8 and the operating system lets this process use it; checked once.
pub(crate) fn is_available() -> bool {
    unit().bytes
}

/// Returns whether the CPU has AMX-BF16, too, and the operating system lets this process use it.
pub(crate) fn has_bf16() -> bool {
    unit().bf16
}

fn unit() -> Unit {
    static UNIT: OnceLock<Unit> = OnceLock::new();
    *UNIT.get_or_init(|| {
        let supported = supported();
        let may_use = supported.bytes && request_permission();
        Unit { bytes: may_use, bf16: may_use && supported.bf16 }
    })
}

fn supported() -> Unit {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    let none = Unit { bytes: false, bf16: false };
    if __cpuid(0).eax < 0x1d || __cpuid(1).ecx >> 27 & 1 == 0 {
        return none;
    }
    // Leaf 7: bit 22 AMX-BF16, bit 24 AMX-TILE, bit 25 AMX-INT8. Leaf 0x1d, palette 1: 8 tiles of 16 rows of 64 bytes.
    let (features, palette) = (__cpuid_count(7, 0).edx, __cpuid_count(0x1d, 1));
    let tiles =
        features >> 24 & 3 == 3 && palette.ebx >> 16 >= 8 && palette.ebx & 0xffff >= 64 && palette.ecx & 0xffff >= 16;
    // SAFETY: CPUID leaf 1, bit 27 was checked above: the operating system has enabled XGETBV.
    let bytes = tiles && unsafe { _xgetbv(0) } >> 17 & 3 == 3;
    Unit { bytes, bf16: bytes && features >> 22 & 1 == 1 }
}

/// Requests permission to use tiles, as Linux requires (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    let (mut result, request, feature): (i64, i64, i64) = (158, 0x1023, 18);
    // SAFETY: arch_prctl with this request reads and writes no memory of the process. `rcx` and `r11`, which syscalls
    // overwrite, are declared.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") request, in("rsi") feature, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// Configures this thread's tiles: 0 to 3 are results, 4 and 5 inputs with `depth` bytes per row, 6 and 7 weights with
/// `depth / 4` rows.
///
/// # Safety
/// The CPU must support AMX-INT8 and [`is_available`] must have returned true, which an AMX token proves.
pub(crate) unsafe fn configure(depth: usize) {
    assert!(depth > 0 && depth <= ROW_BYTES && depth.is_multiple_of(4), "rows of {depth} bytes do not fit into a tile");
    #[repr(align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    for tile in 0..8 {
        let (rows, row_bytes) = match tile {
            0..=3 => (16, 64),
            4 | 5 => (16, depth),
            _ => (depth / 4, 64),
        };
        config.0[16 + 2 * tile] = row_bytes as u8;
        config.0[48 + tile] = rows as u8;
    }
    // SAFETY: the caller guarantees AMX. The configuration is 64 bytes of palette 1 within its limits, as the assertion
    // shows. The instruction clears all tiles, which are declared.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) config.0.as_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly));
    }
}

/// Releases this thread's tiles.
///
/// # Safety
/// The CPU must support AMX-INT8 and [`is_available`] must have returned true, which an AMX token proves.
pub(crate) unsafe fn release() {
    // SAFETY: the caller guarantees AMX. The instruction touches no memory and clears all tiles, which are declared.
    unsafe {
        asm!("tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, nomem));
    }
}

// Tiles are `tt`, because the name of a clobbered register must be a plain literal.
/// Loads a tile from rows that are `$stride` bytes apart.
macro_rules! load {
    ($tile:tt, $from:expr, $stride:expr) => {
        std::arch::asm!(concat!("tileloadd ", $tile, ", [{}+{}*1]"), in(reg) $from, in(reg) $stride, out($tile) _,
            options(nostack, readonly))
    };
}
/// Stores a tile of 32-bit sums as rows of 64 bytes.
macro_rules! store {
    ($tile:tt, $to:expr) => {
        std::arch::asm!(concat!("tilestored [{}+{}*1], ", $tile), in(reg) $to, in(reg) 64usize, options(nostack))
    };
}
pub(crate) use {load, store};

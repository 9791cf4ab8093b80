//! Long tensors that hold several parts, such as the gradients of many parameters.

use super::memory::{empty, length, per_element};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Number of parts that a launch copies. WebGPU guarantees eight arrays for a kernel, one of which CubeCL uses.
const PARTS_AT_ONCE: usize = 6;

/// Copies parts to a stretch of `y` that starts at `first`. The range of each part ends where that of the next one starts; the
/// rest of a range, after its part, becomes 0. Positions are relative to `first`.
#[cube(launch)]
fn copy_parts(
    a: &Array<f32>,
    b: &Array<f32>,
    c: &Array<f32>,
    d: &Array<f32>,
    e: &Array<f32>,
    f: &Array<f32>,
    y: &mut Array<f32>,
    first: u32,
    end_a: u32,
    end_b: u32,
    end_c: u32,
    end_d: u32,
    end_e: u32,
    end_f: u32,
    length_a: u32,
    length_b: u32,
    length_c: u32,
    length_d: u32,
    length_e: u32,
    length_f: u32,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= end_f {
        terminate!();
    }
    let mut value = 0.0f32;
    if unit < length_a && unit < end_a {
        value = a[unit as usize];
    }
    if unit >= end_a && unit < end_b && unit - end_a < length_b {
        value = b[(unit - end_a) as usize];
    }
    if unit >= end_b && unit < end_c && unit - end_b < length_c {
        value = c[(unit - end_b) as usize];
    }
    if unit >= end_c && unit < end_d && unit - end_c < length_d {
        value = d[(unit - end_c) as usize];
    }
    if unit >= end_d && unit < end_e && unit - end_d < length_e {
        value = e[(unit - end_d) as usize];
    }
    if unit >= end_e && unit < end_f && unit - end_e < length_f {
        value = f[(unit - end_e) as usize];
    }
    y[(first + unit) as usize] = value;
}

/// A part of a long tensor.
pub(super) struct LongPart<R: CubeRuntime> {
    /// A dense array.
    pub values: CubeTensor<R>,
    /// Number of elements.
    pub length: usize,
    /// Position of the first element in the long tensor.
    pub start: usize,
}

/// Returns a tensor of this many elements (axes `elements`, 1, 1, 1, 1) that consists of parts, in the order of their
/// positions, the first of which is 0; all other elements are 0. There is one launch for a few parts. Returns `None` if there
/// are no parts.
pub(super) fn join<R: CubeRuntime>(parts: &[LongPart<R>], elements: usize) -> Option<CubeTensor<R>> {
    let y = empty(&parts.first()?.values, [elements, 1, 1, 1, 1], DType::F32);
    for (index, of) in parts.chunks(PARTS_AT_ONCE).enumerate() {
        let (begin, first, last) = (index * PARTS_AT_ONCE, of.first()?.start, of.last()?);
        let stop = parts.get(begin + of.len()).map_or(elements, |next| next.start);
        // Parts that are missing in the last launch have no elements.
        let at = |i: usize| of.get(i).unwrap_or(last);
        let end = |i: usize| length(of.get(i + 1).map_or(stop, |next| next.start).saturating_sub(first));
        let (client, cubes, dim) = per_element(&y, stop.saturating_sub(first));
        copy_parts::launch::<R>(
            &client,
            cubes,
            dim,
            at(0).values.clone().into_array_arg(),
            at(1).values.clone().into_array_arg(),
            at(2).values.clone().into_array_arg(),
            at(3).values.clone().into_array_arg(),
            at(4).values.clone().into_array_arg(),
            at(5).values.clone().into_array_arg(),
            y.clone().into_array_arg(),
            length(first),
            end(0),
            end(1),
            end(2),
            end(3),
            end(4),
            end(5),
            length(at(0).length),
            length(at(1).length),
            length(at(2).length),
            length(at(3).length),
            length(at(4).length),
            length(at(5).length),
        );
    }
    Some(y)
}

//! The layout of tensors in memory: kernels read and write arrays with axes N, Z, Y, X, C, without strides, which CubeCL
//! would copy to the device at every launch.

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::{DType, Shape};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

/// Alignment of tensors that share memory, in elements: 512 bytes, the most that a backend asks for.
pub(crate) const ALIGNMENT: usize = 128;

/// A tensor of floats in the order of its voxels, at equal distances; the channels of a voxel are adjacent.
pub(super) struct Dense<R: CubeRuntime> {
    /// The memory; `form` and `pitch` describe it, whatever shape the tensor has itself.
    pub tensor: CubeTensor<R>,
    /// Lengths of the axes N, Z, Y, X, C.
    pub form: [usize; 5],
    /// Number of elements from one voxel to the next.
    pub pitch: usize,
}

impl<R: CubeRuntime> Dense<R> {
    /// Returns the number of voxels of all samples.
    pub(super) fn voxels(&self) -> usize {
        self.form[..4].iter().product()
    }
}

/// Returns a length as an argument of a kernel. Tensors have fewer elements than an i32 can index.
pub(super) fn length(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Returns the number of neighboring channels that may be read at once.
pub(super) fn vector<R: CubeRuntime>(x: &Dense<R>, channels: usize) -> usize {
    let is_aligned = x.tensor.handle.offset_start.is_none_or(|offset| offset.is_multiple_of(16));
    if is_aligned && channels.is_multiple_of(4) && x.pitch.is_multiple_of(4) { 4 } else { 1 }
}

/// Reserves memory for a tensor with axes N, Z, Y, X, C and elements of type `dtype`, on the device of another one.
pub(super) fn empty<R: CubeRuntime>(like: &CubeTensor<R>, form: [usize; 5], dtype: DType) -> CubeTensor<R> {
    let bytes = form.iter().product::<usize>() * dtype.size();
    let handle = like.client.empty(bytes);
    CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), Shape::from(form), handle, dtype)
}

/// Returns the client of a tensor, and the number of cubes and their size for a kernel of `count` units.
pub(super) fn per_element<R: CubeRuntime>(on: &CubeTensor<R>, count: usize) -> (ComputeClient<R>, CubeCount, CubeDim) {
    let client = on.client.clone();
    let dim = CubeDim::new(&client, count);
    let cubes = calculate_cube_count_elemwise(&client, count, dim);
    (client, cubes, dim)
}

/// A voxel of a tensor with axes N, Z, Y, X, C, and one of its channels or vectors of channels.
#[derive(CubeType, Clone)]
pub(super) struct Place {
    /// Index along N.
    pub sample: u32,
    /// Index along Z.
    pub z: u32,
    /// Index along Y.
    pub y: u32,
    /// Index along X.
    pub x: u32,
    /// Index of the channel, or of the vector of channels.
    pub channel: u32,
}

/// Returns the place of an element, or a vector of channels, of a dense tensor with these lengths.
#[cube]
pub(super) fn place(index: u32, depth: u32, height: u32, width: u32, channels: u32) -> Place {
    let voxel = index / channels;
    let row = voxel / width;
    let slice = row / height;
    Place { sample: slice / depth, z: slice % depth, y: row % height, x: voxel % width, channel: index % channels }
}

/// A voxel, counted over all samples, and one of its vectors of channels.
#[derive(CubeType, Clone)]
pub(super) struct VoxelVector {
    /// Index of the voxel over N, Z, Y, X.
    pub voxel: u32,
    /// Index of the vector among those of the voxel.
    pub channel: u32,
}

/// Returns the vector of channels that unit number `unit` works on, if each unit works on one and neighboring units share a
/// voxel. A voxel has `vectors` vectors.
#[cube]
pub(super) fn voxel_vector(unit: u32, vectors: u32) -> VoxelVector {
    VoxelVector { voxel: unit / vectors, channel: unit % vectors }
}

/// Returns a vector of channels in 32 bits. `pitch` is the number of vectors from one voxel to the next.
#[cube]
pub(super) fn read_vector<F: Float, N: Size>(x: &Array<Vector<F, N>>, at: &VoxelVector, pitch: u32) -> Vector<f32, N> {
    Vector::<f32, N>::cast_from(x[(at.voxel * pitch + at.channel) as usize])
}

/// Lengths of a tensor along Z, Y, X, as an argument of a kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct LengthsZyx {
    /// Voxels along Z.
    pub depth: u32,
    /// Voxels along Y.
    pub height: u32,
    /// Voxels along X.
    pub width: u32,
}

/// Returns lengths along Z, Y, X as an argument of a kernel.
pub(super) fn lengths_zyx<R: CubeRuntime>([depth, height, width]: [usize; 3]) -> LengthsZyxLaunch<R> {
    LengthsZyxLaunch::new(length(depth), length(height), length(width))
}

/// Returns the number of a voxel, counted over all samples of a tensor with these lengths.
#[cube]
pub(super) fn voxel_number(sample: u32, z: u32, y: u32, x: u32, lengths: &LengthsZyx) -> u32 {
    ((sample * lengths.depth + z) * lengths.height + y) * lengths.width + x
}

/// The windows of a convolution or of pooling, along Z, Y, X: position `o` of the output reads positions
/// `o · stride + tap · dilation − padding` of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Reach {
    /// Lengths of the kernel.
    pub kernel: [usize; 3],
    /// Distance between the windows of neighboring outputs, in input positions.
    pub stride: [usize; 3],
    /// Number of voxels before the first one; negative if the first ones are not read.
    pub padding: [isize; 3],
    /// Distance between neighboring taps, in input positions.
    pub dilation: [usize; 3],
}

/// Returns the position that a tap reads along one of the axes Z, Y, X.
#[cube]
pub(super) fn read_at(output: u32, tap: u32, #[comptime] axis: usize, #[comptime] reach: Reach) -> i32 {
    let stride = comptime!(reach.stride[axis] as u32);
    let dilation = comptime!(reach.dilation[axis] as u32);
    let padding = comptime!(reach.padding[axis] as i32);
    (output * stride + tap * dilation) as i32 - padding
}

/// Returns the number of elements from one voxel to the next if a tensor with these lengths and strides, axes N, Z, Y, X,
/// C, is dense.
pub(super) fn pitch(lengths: [usize; 5], strides: [usize; 5]) -> Option<usize> {
    let mut known: Option<(usize, usize)> = None;
    for axis in (0..4).rev().filter(|a| lengths[*a] > 1) {
        let (first, expected) = known.unwrap_or((strides[axis], strides[axis]));
        if strides[axis] != expected {
            return None;
        }
        known = Some((first, expected * lengths[axis]));
    }
    let pitch = known.map_or(lengths[4], |(first, _)| first);
    (pitch >= lengths[4] && (lengths[4] == 1 || strides[4] == 1)).then_some(pitch)
}

/// A [`Layout`], as an argument of a kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct KernelLayout {
    start: u32,
    sample: u32,
    z: u32,
    y: u32,
    x: u32,
    channel: u32,
}

/// Returns the position in memory of an element.
#[cube]
fn position(at: &Place, layout: &KernelLayout) -> u32 {
    layout.start
        + at.sample * layout.sample
        + at.z * layout.z
        + at.y * layout.y
        + at.x * layout.x
        + at.channel * layout.channel
}

/// Copies a box with axes N, Z, Y, X, C between two layouts.
#[cube(launch)]
fn copy_box<FX: Float, FY: Float>(
    x: &Array<FX>,
    y: &mut Array<FY>,
    count: u32,
    lengths: LengthsZyx,
    channels: u32,
    from: KernelLayout,
    to: KernelLayout,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let at = place(unit, lengths.depth, lengths.height, lengths.width, channels);
    let read = position(&at, &from);
    let write = position(&at, &to);
    y[write as usize] = FY::cast_from(x[read as usize]);
}

/// Where the elements of a box lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Position of the first element.
    pub start: usize,
    /// Distances along the axes N, Z, Y, X, C.
    pub strides: [usize; 5],
}

impl Layout {
    /// Returns the layout of a tensor of this form without gaps.
    pub(super) fn of(form: [usize; 5]) -> Self {
        let mut strides = [1; 5];
        for axis in (0..4).rev() {
            strides[axis] = strides[axis + 1] * form[axis + 1];
        }
        Self { start: 0, strides }
    }

    fn for_kernel<R: CubeRuntime>(self) -> KernelLayoutLaunch<R> {
        let [sample, z, y, x, channel] = self.strides.map(length);
        KernelLayoutLaunch::new(length(self.start), sample, z, y, x, channel)
    }
}

/// Copies a box of these lengths along N, Z, Y, X, C from one layout to another, with one launch. Elements become those of
/// the type of `y`.
pub(super) fn copy<R: CubeRuntime>(x: CubeTensor<R>, from: Layout, lengths: [usize; 5], y: &CubeTensor<R>, to: Layout) {
    let count: usize = lengths.iter().product();
    let types = [x.dtype.into(), y.dtype.into()];
    let (client, cubes, dim) = per_element(&x, count);
    copy_box::launch::<R>(
        &client,
        cubes,
        dim,
        flat_view(x).into_array_arg(),
        flat_view(y.clone()).into_array_arg(),
        length(count),
        lengths_zyx([lengths[1], lengths[2], lengths[3]]),
        length(lengths[4]),
        from.for_kernel(),
        to.for_kernel(),
        types,
    );
}

/// Multiplies the elements of a box with axes N, Z, Y, X, C by the weights of their voxels. `y` gets the products without gaps.
#[cube(launch)]
fn weigh_box(
    x: &Array<f32>,
    weights: &Array<f32>,
    y: &mut Array<f32>,
    count: u32,
    lengths: LengthsZyx,
    channels: u32,
    from: KernelLayout,
    by: KernelLayout,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let at = place(unit, lengths.depth, lengths.height, lengths.width, channels);
    let read = position(&at, &from);
    let factor = position(&at, &by);
    y[unit as usize] = x[read as usize] * weights[factor as usize];
}

/// Adds elements without gaps to those of a box with axes N, Z, Y, X, C.
#[cube(launch)]
fn add_box(x: &Array<f32>, y: &mut Array<f32>, count: u32, lengths: LengthsZyx, channels: u32, to: KernelLayout) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let at = place(unit, lengths.depth, lengths.height, lengths.width, channels);
    let write = position(&at, &to);
    let before = y[write as usize];
    y[write as usize] = before + x[unit as usize];
}

/// Adds the first rows and columns (`lengths`) of a sample of tiles, times the weights of its voxels, to `sums`, from row and
/// column `corner` on. All tensors have axes N, C, Z, Y, X. Returns `None` if their elements are not f32. Products are
/// rounded before they are added, as on the host, so there are two launches.
pub(super) fn add_weighted<R: CubeRuntime>(
    (tiles, sample): (CubeTensor<R>, usize),
    weights: CubeTensor<R>,
    sums: &CubeTensor<R>,
    corner: [usize; 2],
    [rows, columns]: [usize; 2],
) -> Option<()> {
    let (_, from) = axes(&tiles)?;
    let (_, by) = axes(&weights)?;
    let ([_, channels, depth, ..], to) = axes(sums)?;
    if [tiles.dtype, weights.dtype, sums.dtype] != [DType::F32; 3] {
        return None;
    }
    let last = |[sample, channel, z, y, x]: [usize; 5]| [sample, z, y, x, channel];
    let products = empty(sums, [1, depth, rows, columns, channels], DType::F32);
    let count = channels * depth * rows * columns;
    let (client, cubes, dim) = per_element(sums, count);
    weigh_box::launch::<R>(
        &client,
        cubes,
        dim,
        flat_view(tiles).into_array_arg(),
        flat_view(weights).into_array_arg(),
        products.clone().into_array_arg(),
        length(count),
        lengths_zyx([depth, rows, columns]),
        length(channels),
        Layout { start: sample * from[0], strides: last(from) }.for_kernel(),
        Layout { start: 0, strides: [0, by[2], by[3], by[4], 0] }.for_kernel(),
    );
    let (client, cubes, dim) = per_element(sums, count);
    add_box::launch::<R>(
        &client,
        cubes,
        dim,
        products.into_array_arg(),
        flat_view(sums.clone()).into_array_arg(),
        length(count),
        lengths_zyx([depth, rows, columns]),
        length(channels),
        Layout { start: corner[0] * to[3] + corner[1] * to[4], strides: last(to) }.for_kernel(),
    );
    Some(())
}

/// Returns the lengths and strides of a tensor of floats with five axes; `None` for any other tensor.
pub(super) fn axes<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<([usize; 5], [usize; 5])> {
    let lengths: Vec<usize> = tensor.meta.shape().iter().copied().collect();
    let strides: Vec<usize> = tensor.meta.strides().iter().copied().collect();
    let found = (lengths.try_into().ok()?, strides.try_into().ok()?);
    matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16).then_some(found)
}

/// Returns a tensor with five axes as one with a single axis, in the same memory; `None` if its elements have gaps or another
/// order in memory.
pub(super) fn in_order<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<Dense<R>> {
    let (lengths, strides) = axes(tensor)?;
    let expected = Layout::of(lengths).strides;
    let is_packed = (0..5).all(|axis| lengths[axis] == 1 || strides[axis] == expected[axis]);
    let elements = lengths.iter().product();
    let form = [elements, 1, 1, 1, 1];
    is_packed.then(|| Dense { tensor: flat_view(tensor.clone()), form, pitch: 1 })
}

/// Returns a tensor with axes N, Z, Y, X, C as a dense one: itself, or a copy, with one launch. `None`
/// unless it has five axes and float elements.
pub(super) fn dense<R: CubeRuntime>(tensor: CubeTensor<R>) -> Option<Dense<R>> {
    let (form, strides) = axes(&tensor)?;
    if let Some(pitch) = pitch(form, strides) {
        return Some(Dense { tensor: flat_view(tensor), form, pitch });
    }
    let y = empty(&tensor, form, tensor.dtype);
    copy(tensor, Layout { start: 0, strides }, form, &y, Layout::of(form));
    Some(Dense { tensor: y, form, pitch: form[4] })
}

/// Returns all memory of a tensor as an array, which has more elements than the form of the tensor if its rows have gaps.
pub(super) fn flat_view<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    let elements = tensor.handle.size_in_used() as usize / tensor.dtype.size();
    CubeTensor::new_contiguous(tensor.client, tensor.device, Shape::from([elements]), tensor.handle, tensor.dtype)
}

/// Returns a tensor without gaps in another form with the same number of elements.
pub(super) fn reshaped<R: CubeRuntime>(tensor: CubeTensor<R>, form: [usize; 5]) -> CubeTensor<R> {
    CubeTensor::new_contiguous(tensor.client, tensor.device, Shape::from(form), tensor.handle, tensor.dtype)
}

/// Returns a part of a dense tensor of f32, in the same memory; `None` if it exceeds it.
pub(super) fn part<R: CubeRuntime>(tensor: &CubeTensor<R>, start: usize, form: [usize; 5]) -> Option<CubeTensor<R>> {
    Some(reshaped(span(tensor, start, form.iter().product())?, form))
}

/// Returns successive elements of a dense tensor of f32, in the same memory; `None` if they exceed it.
fn span<R: CubeRuntime>(tensor: &CubeTensor<R>, start: usize, length: usize) -> Option<CubeTensor<R>> {
    let total_bytes = tensor.handle.size_in_used();
    let [from, bytes] = [start, length].map(|elements: usize| (elements * size_of::<f32>()) as u64);
    let after = total_bytes.checked_sub(from.checked_add(bytes)?)?;
    let handle = tensor.handle.clone().offset_start(from).offset_end(after);
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    Some(CubeTensor::new_contiguous(client, device, Shape::from([length]), handle, tensor.dtype))
}

/// Returns the elements of a tensor of f32 with five axes in their order, as arrays of at most `length` elements: in the memory
/// of the tensor, or of a copy if its elements have gaps or another order. `None` for other tensors.
pub(super) fn pieces<R: CubeRuntime>(x: CubeTensor<R>, length: usize) -> Option<Vec<CubeTensor<R>>> {
    let (form, strides) = axes(&x).filter(|_| x.dtype == DType::F32 && length > 0)?;
    let packed = if in_order(&x).is_some() {
        x
    } else {
        let y = empty(&x, form, DType::F32);
        copy(x, Layout { start: 0, strides }, form, &y, Layout::of(form));
        y
    };
    let count = form.iter().product();
    (0..count).step_by(length).map(|start| span(&packed, start, length.min(count - start))).collect()
}

#[cube(launch)]
fn gather(
    slab: &Array<f32>,
    starts: &Array<i32>,
    y: &mut Array<f32>,
    lengths: LengthsZyx,
    channels: u32,
    layout: KernelLayout,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    let unit = ABSOLUTE_POS as u32;
    let at = place(unit, lengths.depth, lengths.height, lengths.width, channels);
    let start = (at.sample * 3) as usize;
    let z = at.z + starts[start] as u32;
    let y_at = at.y + starts[start + 1] as u32;
    let x_at = at.x + starts[start + 2] as u32;
    let from = z * layout.z + y_at * layout.y + x_at * layout.x + at.channel * layout.channel;
    y[ABSOLUTE_POS] = slab[from as usize];
}

/// Cuts tiles of this form (N, Z, Y, X, C) from a slab with axes 1, Z, Y, X, C, with one launch. `starts` are the
/// positions Z, Y, X of all tiles. Returns `None` if the slab has other than five axes.
pub(super) fn tiles<R: CubeRuntime>(
    slab: CubeTensor<R>,
    starts: CubeTensor<R>,
    form: [usize; 5],
) -> Option<CubeTensor<R>> {
    let (_, strides) = axes(&slab).filter(|_| slab.dtype == DType::F32)?;
    let y = empty(&slab, form, DType::F32);
    let count: usize = form.iter().product();
    let (client, cubes, dim) = per_element(&slab, count);
    gather::launch::<R>(
        &client,
        cubes,
        dim,
        flat_view(slab).into_array_arg(),
        starts.into_array_arg(),
        y.clone().into_array_arg(),
        lengths_zyx([form[1], form[2], form[3]]),
        length(form[4]),
        Layout { start: 0, strides }.for_kernel(),
    );
    Some(y)
}

/// Numbers in the table of [`cut`] for each part.
const PART_NUMBERS: u32 = 6;

/// Copies parts of a tensor. For each part, the table has the position of its first element, its lengths along Z, Y, X,
/// and where it starts and ends in `y`.
#[cube(launch)]
fn cut(x: &Array<f32>, table: &Array<i32>, y: &mut Array<f32>, parts: u32, channels: u32, layout: KernelLayout) {
    let unit = ABSOLUTE_POS as u32;
    for part in 0..parts {
        let at = (part * PART_NUMBERS) as usize;
        let start = table[at + 4] as u32;
        let end = table[at + 5] as u32;
        if unit >= start && unit < end {
            let depth = table[at + 1] as u32;
            let height = table[at + 2] as u32;
            let width = table[at + 3] as u32;
            let own = place(unit - start, depth, height, width, channels);
            let from = table[at] as u32 + position(&own, &layout);
            y[unit as usize] = x[from as usize];
        }
    }
}

/// A part of one sample of a tensor: the first voxel and the lengths along Z, Y, X.
#[derive(Clone, Copy)]
pub(super) struct SampleBox {
    /// Index along N.
    pub sample: usize,
    /// First voxel along Z, Y, X.
    pub start: [usize; 3],
    /// Voxels along Z, Y, X; at least 1.
    pub lengths: [usize; 3],
}

/// Copies regions, with all channels, of a tensor with axes N, Z, Y, X, C, with one launch. Returns one tensor for each, with
/// axes 1, Z, Y, X, C; `None` if the tensor does not have five axes and elements of f32, or a region exceeds it.
pub(super) fn regions<R: CubeRuntime>(
    x: CubeTensor<R>,
    regions: &[SampleBox],
    upload: impl FnOnce(Vec<i32>) -> CubeTensor<R>,
) -> Option<Vec<CubeTensor<R>>> {
    let (form, strides) = axes(&x).filter(|_| x.dtype == DType::F32)?;
    let fits = |r: &SampleBox| {
        let is_inside = |a: usize| r.lengths[a] > 0 && r.start[a] + r.lengths[a] <= form[a + 1];
        r.sample < form[0] && (0..3).all(is_inside)
    };
    if !regions.iter().all(fits) {
        return None;
    }
    let whole_form = |r: &SampleBox| [1, r.lengths[0], r.lengths[1], r.lengths[2], form[4]];
    let first = |r: &SampleBox| r.sample * strides[0] + (0..3).map(|a| r.start[a] * strides[a + 1]).sum::<usize>();
    if let [region] = regions {
        let y = empty(&x, whole_form(region), DType::F32);
        let from = Layout { start: first(region), strides };
        copy(x, from, whole_form(region), &y, Layout::of(whole_form(region)));
        return Some(vec![y]);
    }
    if regions.is_empty() {
        return Some(Vec::new());
    }
    let (mut table, mut starts, mut all) = (Vec::new(), Vec::new(), 0usize);
    for region in regions {
        let elements: usize = whole_form(region).iter().product();
        let [z, y, x] = region.lengths;
        let numbers = [first(region), z, y, x, all, all + elements];
        table.extend(numbers.map(|n| i32::try_from(n).unwrap_or(i32::MAX)));
        starts.push(all);
        all = (all + elements).next_multiple_of(ALIGNMENT);
    }
    let y = empty(&x, [all, 1, 1, 1, 1], DType::F32);
    let (client, cubes, dim) = per_element(&x, all);
    cut::launch::<R>(
        &client,
        cubes,
        dim,
        flat_view(x).into_array_arg(),
        upload(table).into_array_arg(),
        y.clone().into_array_arg(),
        length(regions.len()),
        length(form[4]),
        Layout { start: 0, strides }.for_kernel(),
    );
    regions.iter().zip(starts).map(|(region, start)| part(&y, start, whole_form(region))).collect()
}

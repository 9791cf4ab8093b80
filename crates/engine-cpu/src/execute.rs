//! Runs one step on the arena.

use crate::lower::Program;
use crate::session::internal;
use crate::split::Split;
use crate::step::{Affine, Elem, Epilogue, Kind, PlaneScale, Slot, Step, Term};
use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_graph::{GraphError, Tensor, ValueId};
use cytoscope_kernels::apply::{self, Source};
use cytoscope_kernels::conv::{self, Finish, Quantizer, Target};
use cytoscope_kernels::norm::Moments;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::{Blocked, Isa, KernelError, norm, pointwise, pool, reorder, resize};
use std::collections::BTreeMap;

/// The memory that steps read and write.
pub(crate) struct Memory<'a> {
    /// Blocked values, in 32-bit words.
    pub arena: &'a mut [f32],
    /// Dense values.
    pub dense: &'a mut BTreeMap<ValueId, Tensor>,
    /// Moments by index and image.
    pub moments: Vec<Vec<Moments>>,
    /// Scale and zero point of each run-time quantization, once computed.
    pub ranges: Vec<Option<(f32, u8)>>,
    /// Memory limit of dense values and the reference executor, in bytes.
    pub dense_bytes: u64,
}

/// Views words as their first `len` bytes.
fn bytes(words: &[f32], len: usize) -> &[u8] {
    let all: &[u8] = bytemuck::cast_slice(words);
    &all[..len.min(all.len())]
}

fn halves(words: &[f32], len: usize) -> &[u16] {
    let all: &[u16] = bytemuck::cast_slice(words);
    &all[..len.min(all.len())]
}

fn bytes_mut(words: &mut [f32], len: usize) -> &mut [u8] {
    let all: &mut [u8] = bytemuck::cast_slice_mut(words);
    let len = len.min(all.len());
    &mut all[..len]
}

/// Views words as the element type of a slot.
fn target<'a>(words: &'a mut [f32], slot: &Slot, quantizer: Option<Quantizer>) -> Option<Target<'a>> {
    let len = slot.layout.len();
    Some(match slot.elem {
        Elem::F32 => Target::F32(words),
        Elem::F16 => {
            let all: &mut [u16] = bytemuck::cast_slice_mut(words);
            let len = len.min(all.len());
            Target::F16(&mut all[..len])
        }
        Elem::U8 { .. } => Target::U8(bytes_mut(words, len), quantizer?),
    })
}

/// Computes one image, given its index, the words to write and the words that can be read.
type PerImage<'a> = dyn FnMut(usize, &mut [f32], &Split<'_>) -> Result<(), EngineError> + 'a;

/// Returns the scale and shift of each channel of a term for one image.
fn scale_and_shift(
    affine: &Affine,
    moments: &[Vec<Moments>],
    ranges: &[Option<(f32, u8)>],
    image: usize,
) -> Option<(Vec<f32>, Vec<f32>)> {
    Some(match affine {
        Affine::Dynamic { ranges: at, channels } => {
            let (scale, zero) = (*ranges.get(*at)?)?;
            (vec![scale; *channels], vec![-scale * f32::from(zero); *channels])
        }
        Affine::Fixed { scale, shift } => (scale.clone(), shift.clone()),
        Affine::Norm { moments: at, gamma, beta, epsilon, factor, groups } => {
            let stored = moments.get(*at)?.get(image)?;
            // Moments of the true values, without the storage factor.
            let own: Vec<(f64, f64)> = stored
                .iter()
                .zip(factor)
                .map(|((mean, variance), f)| (mean / f64::from(*f), variance / f64::from(*f).powi(2)))
                .collect();
            let together = (own.len() / (*groups).max(1)).max(1);
            let of_group = |group: &[(f64, f64)]| {
                let count = group.len() as f64;
                let mean = group.iter().map(|(m, _)| m).sum::<f64>() / count;
                let square = group.iter().map(|(m, v)| v + (m - mean) * (m - mean)).sum::<f64>() / count;
                (mean, square)
            };
            let grouped = own.chunks(together).flat_map(|g| std::iter::repeat_n(of_group(g), g.len()));
            let all = grouped.zip(gamma.iter().zip(beta)).zip(factor);
            all.map(|(((mean, variance), (gamma, beta)), factor)| {
                let gain = f64::from(*gamma) / (variance + f64::from(*epsilon)).sqrt();
                ((gain / f64::from(*factor)) as f32, (f64::from(*beta) - mean * gain) as f32)
            })
            .unzip()
        }
        Affine::PlaneNorm { moments: at, weights, gamma, beta, epsilon } => {
            let (mean, variance) = *moments.get(*at)?.get(image)?.first()?;
            let all = weights.iter().zip(gamma.iter().zip(beta));
            all.map(|(weight, (gamma, beta))| {
                let weight = f64::from(*weight);
                let gain = f64::from(*gamma) * weight / (weight * weight * variance + f64::from(*epsilon)).sqrt();
                (gain as f32, (f64::from(*beta) - mean * gain) as f32)
            })
            .unzip()
        }
    })
}

pub(crate) fn run_step(program: &Program, isa: Isa, step: &Step, memory: &mut Memory<'_>) -> Result<(), EngineError> {
    let Memory { arena, dense, moments, ranges, dense_bytes } = memory;
    let slot = |i: usize| program.slots.get(i).copied().ok_or_else(|| internal(&step.name, "missing slot".to_owned()));
    let buffer_error = || internal(&step.name, "buffers overlap".to_owned());
    let kernel = |e: KernelError| internal(&step.name, e.to_string());
    // Runs `f(image, target, split)` for each image of the written slot.
    let mut for_each_image = |to: Slot, f: &mut PerImage<'_>| {
        for image in 0..to.images {
            let (split, target) = Split::new(arena, to.range(image)).ok_or_else(buffer_error)?;
            f(image, target, &split)?;
        }
        Ok(())
    };
    let slots_of = |terms: &[Term]| terms.iter().map(|t| slot(t.slot)).collect::<Result<Vec<_>, _>>();
    match &step.kind {
        Kind::Pack { from, to } => {
            let to = slot(*to)?;
            let tensor = dense.get(from).or_else(|| program.graph.constant(*from).map(|t| t.as_ref()));
            let tensor = tensor.ok_or_else(|| internal(&step.name, "missing tensor".to_owned()))?;
            let per_image = to.layout.channels * to.layout.voxels();
            let range = |image: usize| image * per_image..(image + 1) * per_image;
            if let Elem::U8 { zero_point } = to.elem {
                // Signed bytes are stored with an offset of 128.
                let signed: Option<Vec<u8>> = tensor.as_i8().map(|v| v.iter().map(|v| (*v as u8) ^ 0x80).collect());
                let values = signed.as_deref().or(tensor.as_u8()).ok_or_else(buffer_error)?;
                return for_each_image(to, &mut |image, target, _| {
                    let source = values.get(range(image)).ok_or_else(buffer_error)?;
                    let target = bytes_mut(target, to.layout.len());
                    reorder::pack(source, &to.layout, zero_point, target).map_err(kernel)
                });
            }
            let values = tensor.as_f32().ok_or_else(|| internal(&step.name, "tensor is not f32".to_owned()))?;
            for_each_image(to, &mut |image, target, _| {
                let source = values.get(range(image)).ok_or_else(buffer_error)?;
                reorder::pack(source, &to.layout, 0.0, target).map_err(kernel)
            })
        }
        Kind::Unpack { from, to, shape, signed } => {
            let from = slot(*from)?;
            let per_image = from.layout.channels * from.layout.voxels();
            let tensor = if let Elem::U8 { .. } = from.elem {
                let mut values = vec![0u8; per_image * from.images];
                for (image, target) in values.chunks_exact_mut(per_image.max(1)).enumerate() {
                    let source = arena.get(from.range(image)).ok_or_else(buffer_error)?;
                    reorder::unpack(bytes(source, from.layout.len()), &from.layout, target).map_err(kernel)?;
                }
                let back = |values: Vec<u8>| values.into_iter().map(|v| (v ^ 0x80) as i8).collect::<Vec<i8>>();
                if *signed { Tensor::new(shape.clone(), back(values))? } else { Tensor::new(shape.clone(), values)? }
            } else {
                let mut values = vec![0.0f32; per_image * from.images];
                for (image, target) in values.chunks_exact_mut(per_image.max(1)).enumerate() {
                    let source = arena.get(from.range(image)).ok_or_else(buffer_error)?;
                    reorder::unpack(source, &from.layout, target).map_err(kernel)?;
                }
                Tensor::new(shape.clone(), values)?
            };
            dense.insert(*to, tensor);
            Ok(())
        }
        Kind::ClearBorder { slot: of } => {
            let to = slot(*of)?;
            for_each_image(to, &mut |_, target, _| match to.elem {
                Elem::U8 { zero_point } => {
                    reorder::clear_border(&to.layout, zero_point, bytes_mut(target, to.layout.len())).map_err(kernel)
                }
                Elem::F32 => reorder::clear_border(&to.layout, 0.0, target).map_err(kernel),
                // No kernel reads the border of 16-bit floats.
                Elem::F16 => Ok(()),
            })
        }
        Kind::Conv { input, epilogue, output, .. } | Kind::ConvInt8 { input, epilogue, output, .. } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let extra = epilogue.residual.map(slot).transpose()?;
            let resolved = resolve_dynamic(epilogue, ranges).ok_or_else(buffer_error)?;
            let epilogue = resolved.as_ref().unwrap_or(epilogue);
            let mut image_moments = Vec::new();
            for_each_image(to, &mut |image, words, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                let r = extra.map(|r| split.read(r.range(image)).ok_or_else(buffer_error)).transpose()?;
                let finish = to_finish(epilogue, r.zip(extra.as_ref().map(|r| &r.layout)));
                let destination = target(words, &to, epilogue.quantizer).ok_or_else(buffer_error)?;
                let moments = match &step.kind {
                    Kind::Conv { weights, shape, .. } => {
                        conv::conv(isa, x, &from.layout, weights, shape, &finish, destination, &to.layout)
                    }
                    Kind::ConvInt8 { weights, shape, .. } => {
                        let x = bytes(x, from.layout.len());
                        conv::conv_int8(isa, x, &from.layout, weights, shape, &finish, destination, &to.layout)
                    }
                    _ => return Err(buffer_error()),
                };
                image_moments.extend(moments.map_err(kernel)?);
                Ok(())
            })?;
            store_moments(moments, epilogue.moments, image_moments);
            Ok(())
        }
        Kind::ConvTranspose { input, weights, epilogue, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, words, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                let destination = target(words, &to, epilogue.quantizer).ok_or_else(buffer_error)?;
                let epilogue = to_finish(epilogue, None);
                conv::conv_transpose(isa, x, &from.layout, weights, &epilogue, destination, &to.layout).map_err(kernel)
            })
        }
        Kind::ConvTransposeInt8 { input, weights, epilogue, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, words, split| {
                let x = bytes(split.read(from.range(image)).ok_or_else(buffer_error)?, from.layout.len());
                let destination = target(words, &to, epilogue.quantizer).ok_or_else(buffer_error)?;
                let epilogue = to_finish(epilogue, None);
                conv::conv_transpose_int8(isa, x, &from.layout, weights, &epilogue, destination, &to.layout)
                    .map_err(kernel)
            })
        }
        Kind::Moments { input, moments: at } => {
            let from = slot(*input)?;
            let mut image_moments = Vec::new();
            for image in 0..from.images {
                let source = arena.get(from.range(image)).ok_or_else(buffer_error)?;
                let len = from.layout.len();
                image_moments.push(
                    match from.elem {
                        Elem::F32 if from.layout.block == 1 => norm::channel_moments(isa, source, &from.layout),
                        Elem::F32 => norm::moments(isa, &Source::F32(source, &from.layout)),
                        Elem::F16 => norm::moments(isa, &Source::F16(halves(source, len), &from.layout)),
                        Elem::U8 { .. } => norm::moments(isa, &Source::U8(bytes(source, len), &from.layout)),
                    }
                    .map_err(kernel)?,
                );
            }
            store_moments(moments, Some(*at), image_moments);
            Ok(())
        }
        Kind::Apply { terms, activation, quantizer, output } => {
            let (to, from) = (slot(*output)?, slots_of(terms)?);
            for_each_image(to, &mut |image, words, split| {
                let tables = term_tables(terms, moments, ranges, image).ok_or_else(buffer_error)?;
                let mut sums = Vec::with_capacity(terms.len());
                for ((term, slot), (scale, shift)) in terms.iter().zip(&from).zip(&tables) {
                    let in_place = slot.range(image) == to.range(image) && slot.elem == to.elem;
                    let source = source(term, slot, split, image, in_place).ok_or_else(buffer_error)?;
                    sums.push(apply::Term { source, scale, shift });
                }
                let destination = target(words, &to, *quantizer).ok_or_else(buffer_error)?;
                apply::apply(isa, &sums, *activation, destination, &to.layout).map_err(kernel)
            })
        }
        Kind::Head { terms, channels, activation, weights, bias, quantizer, output } => {
            let (to, from) = (slot(*output)?, slots_of(terms)?);
            for_each_image(to, &mut |image, words, split| {
                let tables = term_tables(terms, moments, ranges, image).ok_or_else(buffer_error)?;
                let mut sums = Vec::with_capacity(terms.len());
                for ((term, slot), (scale, shift)) in terms.iter().zip(&from).zip(&tables) {
                    let source = source(term, slot, split, image, false).ok_or_else(buffer_error)?;
                    sums.push(apply::Term { source, scale, shift });
                }
                let head = apply::Head { weights, bias, quantizer: *quantizer };
                apply::apply_head(isa, &sums, *channels, *activation, &head, words, &to.layout).map_err(kernel)
            })
        }
        Kind::PlanarNorm { input, scale, bias, epsilon, activation, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let in_place = from.range(image) == to.range(image);
                let source =
                    if in_place { None } else { Some(split.read(from.range(image)).ok_or_else(buffer_error)?) };
                let moments = norm::channel_moments(isa, source.unwrap_or(target), &from.layout).map_err(kernel)?;
                let affine = Affine::Norm {
                    moments: 0,
                    gamma: scale.clone(),
                    beta: bias.clone(),
                    epsilon: *epsilon,
                    factor: vec![1.0; scale.len()],
                    groups: scale.len(),
                };
                let (gain, shift) = scale_and_shift(&affine, &[vec![moments]], &[], 0).ok_or_else(buffer_error)?;
                match source {
                    None => norm::affine_in_place(isa, target, &to.layout, &gain, &shift, None, *activation),
                    Some(x) => norm::affine(isa, x, &from.layout, &gain, &shift, None, *activation, target, &to.layout),
                }
                .map_err(kernel)
            })
        }
        Kind::Affine { input, scale, shift, residual, activation, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let extra = residual.map(slot).transpose()?;
            for_each_image(to, &mut |image, target, split| {
                let r = extra.map(|r| split.read(r.range(image)).ok_or_else(buffer_error)).transpose()?;
                let residual = r.zip(extra.as_ref().map(|r| &r.layout));
                if from.range(image) == to.range(image) {
                    norm::affine_in_place(isa, target, &to.layout, scale, shift, residual, *activation)
                } else {
                    let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                    norm::affine(isa, x, &from.layout, scale, shift, residual, *activation, target, &to.layout)
                }
                .map_err(kernel)
            })
        }
        Kind::Unary { f, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                if from.range(image) == to.range(image) {
                    return pointwise::unary_in_place(isa, *f, target, &to.layout).map_err(kernel);
                }
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                pointwise::unary(isa, *f, x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Binary { f, a, b, output } => {
            let (a, b, to) = (slot(*a)?, slot(*b)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let x = split.read(a.range(image)).ok_or_else(buffer_error)?;
                let y = split.read(b.range(image)).ok_or_else(buffer_error)?;
                pointwise::binary(isa, *f, (x, &a.layout), (y, &b.layout), target, &to.layout).map_err(kernel)
            })
        }
        Kind::Pool { kind, shape, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                match (from.elem, kind) {
                    (Elem::U8 { .. }, Pool::Max) => {
                        let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                        pool::max_bytes(isa, shape, x, &from.layout, y, &to.layout)
                    }
                    _ => pool::pool(isa, *kind, shape, x, &from.layout, target, &to.layout),
                }
                .map_err(kernel)
            })
        }
        Kind::Resize { tables, input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                if let Elem::U8 { .. } = from.elem {
                    let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                    return resize::pick_bytes(tables, x, &from.layout, y, &to.layout).map_err(kernel);
                }
                resize::resize(isa, tables, x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::DynamicQuantize { input, ranges: at, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let (mut low, mut high) = (0.0f32, 0.0f32);
            for_each_image(to, &mut |image, _, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                let (l, h) = norm::range(isa, x, &from.layout).map_err(kernel)?;
                (low, high) = (low.min(l), high.max(h));
                Ok(())
            })?;
            // As in ONNX, the range includes 0. An empty range gets scale 1, so that every byte is the zero point.
            let scale = if high > low { (high - low) / 255.0 } else { 1.0 };
            let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0) as u8;
            if let Some(place) = ranges.get_mut(*at) {
                *place = Some((scale, zero));
            }
            let (ones, zeros) = (vec![1.0; to.layout.channels], vec![0.0; to.layout.channels]);
            for_each_image(to, &mut |image, words, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                let bytes = bytes_mut(words, to.layout.len());
                if from.layout.block == 1 {
                    let quantizer = Quantizer::new(scale, zero);
                    reorder::quantize_planes(isa, x, &from.layout, quantizer, bytes, &to.layout).map_err(kernel)?;
                    return reorder::clear_border(&to.layout, zero, bytes).map_err(kernel);
                }
                let term = apply::Term { source: Source::F32(x, &from.layout), scale: &ones, shift: &zeros };
                let target = Target::U8(bytes, Quantizer::new(scale, zero));
                apply::apply(isa, &[term], conv::Activation::None, target, &to.layout).map_err(kernel)?;
                reorder::clear_border(&to.layout, zero, bytes_mut(words, to.layout.len())).map_err(kernel)
            })
        }
        Kind::QuantizePlanes { input, quantizer, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                let y = bytes_mut(target, to.layout.len());
                reorder::quantize_planes(isa, x, &from.layout, *quantizer, y, &to.layout).map_err(kernel)
            })
        }
        Kind::DequantizePlanes { input, scale, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            let (scale, zero_point) = match (*scale, from.elem) {
                (PlaneScale::Known(scale), Elem::U8 { zero_point }) => (scale, zero_point),
                (PlaneScale::Known(scale), _) => (scale, 0),
                (PlaneScale::AtRunTime(at), _) => ranges.get(at).copied().flatten().ok_or_else(buffer_error)?,
            };
            for_each_image(to, &mut |image, target, split| {
                let x = bytes(split.read(from.range(image)).ok_or_else(buffer_error)?, from.layout.len());
                reorder::dequantize_planes(x, &from.layout, scale, zero_point, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Translate { input, table, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let y = bytes_mut(target, to.layout.len());
                if from.range(image) == to.range(image) {
                    pointwise::translate_in_place(table, y, &to.layout).map_err(kernel)
                } else {
                    let x = bytes(split.read(from.range(image)).ok_or_else(buffer_error)?, from.layout.len());
                    pointwise::translate(x, &from.layout, table, y, &to.layout).map_err(kernel)
                }
            })
        }
        Kind::Copy { input, output } => {
            let (from, to) = (slot(*input)?, slot(*output)?);
            for_each_image(to, &mut |image, target, split| {
                let x = split.read(from.range(image)).ok_or_else(buffer_error)?;
                if let Elem::U8 { .. } = from.elem {
                    let (x, y) = (bytes(x, from.layout.len()), bytes_mut(target, to.layout.len()));
                    return pointwise::copy(x, &from.layout, y, &to.layout).map_err(kernel);
                }
                pointwise::copy(x, &from.layout, target, &to.layout).map_err(kernel)
            })
        }
        Kind::Reference { node } => {
            let node = program.graph.nodes.get(*node).ok_or_else(|| internal(&step.name, "missing node".to_owned()))?;
            let results = {
                let inputs: Vec<Option<&Tensor>> = node
                    .inputs
                    .iter()
                    .map(|id| {
                        id.and_then(|id| dense.get(&id).or_else(|| program.graph.constant(id).map(|t| t.as_ref())))
                    })
                    .collect();
                let held = dense.values().fold(0u64, |t, d| t.saturating_add(d.size_bytes()));
                let remaining = dense_bytes.saturating_sub(held);
                cytoscope_reference::eval_within(&node.op, &inputs, node.outputs.len(), remaining)
                    .map_err(out_of_memory)?
            };
            for (id, tensor) in node.outputs.iter().zip(results) {
                if let Some(id) = id {
                    dense.insert(*id, tensor);
                }
            }
            Ok(())
        }
    }
}

/// Turns the reference executor's memory limit error into this engine's out-of-memory error.
fn out_of_memory(error: GraphError) -> EngineError {
    match error {
        GraphError::OverLimit { limit: cytoscope_reference::MEMORY, asked, allowed, .. } => EngineError::OutOfMemory {
            device: DeviceId::Cpu,
            needed_bytes: u64::try_from(asked).unwrap_or(u64::MAX),
            available_bytes: u64::try_from(allowed).unwrap_or(u64::MAX),
        },
        other => other.into(),
    }
}

/// Returns a convolution's epilogue with the run-time scale and zero point of its input, `Some(None)` if those are
/// constant, or `None` if they have not been computed.
#[allow(clippy::option_option)]
fn resolve_dynamic(epilogue: &Epilogue, ranges: &[Option<(f32, u8)>]) -> Option<Option<Epilogue>> {
    let Some(dynamic) = &epilogue.dynamic else { return Some(None) };
    let (input_scale, zero) = (*ranges.get(dynamic.ranges)?)?;
    let scale: Vec<f32> = epilogue.scale.iter().flatten().map(|s| s * input_scale).collect();
    // The sums use raw bytes: the zero point's share of them is subtracted with the bias.
    let extra = scale.iter().zip(&dynamic.weight_sums).map(|(s, sum)| -f32::from(zero) * sum * s);
    let bias = match &epilogue.bias {
        Some(bias) => extra.zip(bias).map(|(e, b)| e + b).collect(),
        None => extra.collect(),
    };
    Some(Some(Epilogue { scale: Some(scale), bias: Some(bias), dynamic: None, ..epilogue.clone() }))
}

/// Returns an epilogue as the kernels take it.
fn to_finish<'a>(epilogue: &'a Epilogue, residual: Option<(&'a [f32], &'a Blocked)>) -> Finish<'a> {
    Finish {
        scale: epilogue.scale.as_deref(),
        bias: epilogue.bias.as_deref(),
        residual,
        activation: epilogue.activation,
        moments: epilogue.moments.is_some(),
    }
}

fn store_moments(moments: &mut [Vec<Moments>], at: Option<usize>, image_moments: Vec<Moments>) {
    if let Some(place) = at.and_then(|at| moments.get_mut(at)) {
        *place = image_moments;
    }
}

/// Returns scale and shift of every term for one image.
fn term_tables(
    terms: &[Term],
    moments: &[Vec<Moments>],
    ranges: &[Option<(f32, u8)>],
    image: usize,
) -> Option<Vec<(Vec<f32>, Vec<f32>)>> {
    terms.iter().map(|t| scale_and_shift(&t.affine, moments, ranges, image)).collect()
}

/// Returns what a term reads of one image.
fn source<'a>(term: &Term, slot: &'a Slot, split: &Split<'a>, image: usize, in_place: bool) -> Option<Source<'a>> {
    if in_place {
        return Some(Source::InPlace);
    }
    let (words, layout) = (split.read(slot.range(image))?, &slot.layout);
    Some(match slot.elem {
        _ if term.plane => Source::Plane(words, layout),
        Elem::F32 => Source::F32(words, layout),
        Elem::F16 => Source::F16(halves(words, layout.len()), layout),
        Elem::U8 { .. } => Source::U8(bytes(words, layout.len()), layout),
    })
}

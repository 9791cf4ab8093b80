//! Runs one step of a training graph on the arena.

use super::emit::{Program, Step};
use super::kind::{Norm, Plan, Term};
use super::update;
use crate::session::internal;
use crate::split::Split;
use crate::step::Slot;
use cytoscope_engine::EngineError;
use cytoscope_graph::{Tensor, ValueId};
use cytoscope_kernels::apply::{self, Source};
use cytoscope_kernels::conv::{self, Activation, ConvShape, Finish, PackedConv, Target, Transposed, WeightShape};
use cytoscope_kernels::norm::Moments;
use cytoscope_kernels::train::{self, Activated, InputGradient, NormFactors};
use cytoscope_kernels::{Isa, KernelError, norm, pointwise, pool, reorder, resize};
use std::collections::BTreeMap;

/// The memory that steps read and write.
pub(crate) struct Memory<'a> {
    /// Blocked values.
    pub arena: &'a mut [f32],
    /// Dense values.
    pub dense: &'a mut BTreeMap<ValueId, Tensor>,
    /// Mean and variance by channel, for each image or once for the whole batch.
    pub moments: Vec<Vec<Moments>>,
}

type RunResult<T> = Result<T, EngineError>;

struct Runner<'a, 'm> {
    program: &'a Program,
    isa: Isa,
    name: &'a str,
    memory: &'a mut Memory<'m>,
}

pub(crate) fn run_step(program: &Program, isa: Isa, step: &Step, memory: &mut Memory<'_>) -> RunResult<()> {
    let name = match step {
        Step::Plan(i) | Step::Reference(i) => program.graph.nodes.get(*i).map_or("", |n| n.name.as_str()),
        _ => "reorder",
    };
    let mut runner = Runner { program, isa, name, memory };
    match step {
        Step::Pack(id) => runner.pack(*id),
        Step::Unpack(id) => runner.unpack(*id),
        Step::ClearBorder(id) => {
            let slot = runner.slot(*id)?;
            runner.for_each_image(slot, |_, target, _| reorder::clear_border(&slot.layout, 0.0, target))
        }
        Step::Reference(node) => runner.reference(*node),
        Step::Plan(i) => match program.plans.get(*i) {
            Some(plan) => runner.plan(plan),
            None => Err(runner.fail("missing plan")),
        },
    }
}

/// Returns one image of a slot other than the written one.
fn read_image<'s>(split: &Split<'s>, slot: &Slot, image: usize) -> Result<&'s [f32], KernelError> {
    split.read(slot.range(image)).ok_or(KernelError::Mismatch {
        what: "buffers",
        expected: "disjoint".to_owned(),
        got: "overlapping".to_owned(),
    })
}

impl Runner<'_, '_> {
    fn fail(&self, reason: &str) -> EngineError {
        internal(self.name, reason.to_owned())
    }

    fn kernel(&self) -> impl Fn(KernelError) -> EngineError + use<> {
        let name = self.name.to_owned();
        move |e| internal(&name, e.to_string())
    }

    fn slot(&self, id: ValueId) -> RunResult<Slot> {
        self.program.slots.get(&id).copied().ok_or_else(|| self.fail("value has no slot"))
    }

    fn tensor(&self, id: ValueId) -> RunResult<&Tensor> {
        let constant = || self.program.graph.constant(id).map(|t| t.as_ref());
        self.memory.dense.get(&id).or_else(constant).ok_or_else(|| self.fail("missing tensor"))
    }

    fn floats(&self, id: ValueId) -> RunResult<Vec<f32>> {
        let tensor = self.tensor(id)?;
        tensor.as_f32().map(<[f32]>::to_vec).ok_or_else(|| self.fail("tensor is not f32"))
    }

    /// Runs `f(image, target, split)` for each image of a slot that is written.
    fn for_each_image(
        &mut self,
        to: Slot,
        mut f: impl FnMut(usize, &mut [f32], &Split<'_>) -> Result<(), KernelError>,
    ) -> RunResult<()> {
        let kernel = self.kernel();
        for image in 0..to.images {
            let (split, target) = Split::new(self.memory.arena, to.range(image))
                .ok_or_else(|| internal(self.name, "arena".to_owned()))?;
            f(image, target, &split).map_err(&kernel)?;
        }
        Ok(())
    }

    /// Runs `f(image, source)` for each image of a slot that is read.
    fn for_each_source(
        &self,
        from: Slot,
        mut f: impl FnMut(usize, &[f32]) -> Result<(), KernelError>,
    ) -> RunResult<()> {
        for image in 0..from.images {
            let source = self.memory.arena.get(from.range(image)).ok_or_else(|| self.fail("arena"))?;
            f(image, source).map_err(self.kernel())?;
        }
        Ok(())
    }

    fn pack(&mut self, id: ValueId) -> RunResult<()> {
        let to = self.slot(id)?;
        let tensor = self.tensor(id)?.clone();
        let values = tensor.as_f32().ok_or_else(|| self.fail("tensor is not f32"))?;
        let per_image = to.layout.channels * to.layout.voxels();
        self.for_each_image(to, |image, target, _| {
            let source = values.get(image * per_image..(image + 1) * per_image).unwrap_or_default();
            reorder::pack(source, &to.layout, 0.0, target)
        })
    }

    fn unpack(&mut self, id: ValueId) -> RunResult<()> {
        let from = self.slot(id)?;
        let shape = self.program.graph.value(id).fixed_shape().ok_or_else(|| self.fail("unknown shape"))?;
        let per_image = from.layout.channels * from.layout.voxels();
        let mut values = vec![0.0f32; per_image * from.images];
        self.for_each_source(from, |image, source| {
            reorder::unpack(source, &from.layout, &mut values[image * per_image..(image + 1) * per_image])
        })?;
        self.memory.dense.insert(id, Tensor::new(shape, values)?);
        Ok(())
    }

    fn reference(&mut self, node: usize) -> RunResult<()> {
        let node = self.program.graph.nodes.get(node).ok_or_else(|| self.fail("missing node"))?;
        let results = {
            let inputs: Vec<Option<&Tensor>> =
                node.inputs.iter().map(|id| id.map(|id| self.tensor(id)).transpose()).collect::<RunResult<_>>()?;
            match update::run(self.isa, &node.op, &inputs) {
                Some(made) => made?,
                None => cytoscope_reference::eval(&node.op, &inputs, node.outputs.len())?,
            }
        };
        for (id, tensor) in node.outputs.iter().zip(results) {
            if let Some(id) = id {
                self.memory.dense.insert(*id, tensor);
            }
        }
        Ok(())
    }

    /// Stores a dense result in the shape of a value.
    fn store_dense(&mut self, id: ValueId, values: Vec<f32>) -> RunResult<()> {
        let shape = self.program.graph.value(id).fixed_shape().ok_or_else(|| self.fail("unknown shape"))?;
        self.memory.dense.insert(id, Tensor::new(shape, values)?);
        Ok(())
    }

    fn plan(&mut self, plan: &Plan) -> RunResult<()> {
        let isa = self.isa;
        match plan {
            Plan::Absorbed | Plan::Reference => Ok(()),
            Plan::Conv { x, weight, bias, shape, activation, moments, output } => {
                let packed = self.packed(*weight, *bias, *x, shape)?;
                self.convolve(*x, &packed, shape, *activation, *moments, *output)
            }
            Plan::Transposed { x, weight, bias, kernel, output } => {
                let (from, to) = (self.slot(*x)?, self.slot(*output)?);
                let (values, bias) = (self.floats(*weight)?, bias.map(|b| self.floats(b)).transpose()?);
                let channels = [from.layout.channels, to.layout.channels];
                let packed =
                    Transposed::<PackedConv>::new(isa, &values, bias.as_deref(), channels, *kernel, from.layout.block)
                        .map_err(self.kernel())?;
                self.for_each_image(to, |image, target, split| {
                    let x = read_image(split, &from, image)?;
                    let end = Finish::default();
                    conv::conv_transpose(isa, x, &from.layout, &packed, &end, Target::F32(target), &to.layout)
                })
            }
            Plan::ConvGradient { x, weight, dy, shape, dx, dw, db, accumulate_into } => {
                if let Some(dw) = dw {
                    self.weight_gradient(*x, *dy, shape, *dw)?;
                }
                if let Some(db) = db {
                    self.channel_sums(*dy, *db)?;
                }
                let Some(dx) = dx else { return Ok(()) };
                self.input_gradient(*weight, *dy, shape, *accumulate_into, *dx)
            }
            Plan::ChannelSums { x, output } => self.channel_sums(*x, *output),
            Plan::Apply { terms, new_moments, activation, statistics, output } => {
                for (x, at) in new_moments {
                    self.compute_moments(*x, *at)?;
                }
                for (at, mean, variance) in statistics {
                    self.merge_moments(*at)?;
                    let image_moments =
                        self.memory.moments.get(*at).and_then(|m| m.first()).cloned().unwrap_or_default();
                    for (id, pick) in [(mean, 0), (variance, 1)] {
                        if let Some(id) = id {
                            let values =
                                image_moments.iter().map(|m| if pick == 0 { m.0 } else { m.1 } as f32).collect();
                            self.store_dense(*id, values)?;
                        }
                    }
                }
                self.apply(terms, *activation, *output)
            }
            Plan::NormGradient { x, dy, norm, activation, dx, d_scale, d_bias } => {
                self.norm_gradient(*x, *dy, norm, *activation, [*dx, *d_scale, *d_bias])
            }
            Plan::UnaryGradient { y, dy, of, output } => {
                let (y, dy, to) = (self.slot(*y)?, self.slot(*dy)?, self.slot(*output)?);
                let of = *of;
                self.for_each_image(to, |image, target, split| {
                    let (y_values, g) = (read_image(split, &y, image)?, read_image(split, &dy, image)?);
                    train::activation_gradient(isa, of, y_values, &y.layout, g, &dy.layout, false, target, &to.layout)
                })
            }
            Plan::Unary { f, x, output } => {
                let (from, to) = (self.slot(*x)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    if from.range(image) == to.range(image) {
                        pointwise::unary_in_place(isa, *f, target, &to.layout)
                    } else {
                        pointwise::unary(isa, *f, read_image(split, &from, image)?, &from.layout, target, &to.layout)
                    }
                })
            }
            Plan::Binary { f, a, b, output } => {
                let (a, b, to) = (self.slot(*a)?, self.slot(*b)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    let b_values = read_image(split, &b, image)?;
                    if a.range(image) == to.range(image) {
                        return train::add(isa, 1.0, b_values, &b.layout, target, &to.layout);
                    }
                    let a_values = (read_image(split, &a, image)?, &a.layout);
                    pointwise::binary(isa, *f, a_values, (b_values, &b.layout), target, &to.layout)
                })
            }
            Plan::Pool { pool: kind, shape, x, output } => {
                let (from, to) = (self.slot(*x)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    pool::pool(isa, *kind, shape, read_image(split, &from, image)?, &from.layout, target, &to.layout)
                })
            }
            Plan::Resize { tables, x, output } => {
                let (from, to) = (self.slot(*x)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    resize::resize(isa, tables, read_image(split, &from, image)?, &from.layout, target, &to.layout)
                })
            }
            Plan::PoolGradient { pool: kind, shape, x, dy, output } => {
                let (x, dy, to) = (self.slot(*x)?, self.slot(*dy)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    let (seen, g) = ((read_image(split, &x, image)?, &x.layout), read_image(split, &dy, image)?);
                    train::pool_gradient(isa, *kind, shape, Some(seen), g, &dy.layout, false, target, &to.layout)
                })
            }
            Plan::ResizeGradient { tables, dy, output } => {
                let (dy, to) = (self.slot(*dy)?, self.slot(*output)?);
                self.for_each_image(to, |image, target, split| {
                    train::resize_gradient(
                        isa,
                        tables,
                        read_image(split, &dy, image)?,
                        &dy.layout,
                        false,
                        target,
                        &to.layout,
                    )
                })
            }
            Plan::Concat { inputs, blocks, output } => {
                let whole = self.slot(*output)?;
                for (input, block) in inputs.iter().zip(blocks) {
                    let from = self.slot(*input)?;
                    let layout = cytoscope_kernels::Blocked { halo: whole.layout.halo, ..from.layout };
                    let start = whole.start + block * whole.layout.block_stride();
                    let to = Slot { layout, start, ..whole };
                    self.copy(from, to)?;
                }
                Ok(())
            }
            Plan::Slice { x, block, output } => {
                let (whole, to) = (self.slot(*x)?, self.slot(*output)?);
                let layout = cytoscope_kernels::Blocked { halo: whole.layout.halo, ..to.layout };
                let start = whole.start + block * whole.layout.block_stride();
                self.copy(Slot { layout, start, ..whole }, to)
            }
        }
    }

    /// Copies a slot, unless source and destination are the same.
    fn copy(&mut self, from: Slot, to: Slot) -> RunResult<()> {
        if from.range(0) == to.range(0) {
            return Ok(());
        }
        self.for_each_image(to, |image, target, split| {
            pointwise::copy(read_image(split, &from, image)?, &from.layout, target, &to.layout)
        })
    }

    fn packed(&self, weight: ValueId, bias: Option<ValueId>, x: ValueId, shape: &ConvShape) -> RunResult<PackedConv> {
        let (values, from) = (self.floats(weight)?, self.slot(x)?);
        let bias = bias.map(|b| self.floats(b)).transpose()?;
        let channels = self.tensor(weight)?.shape().first().copied().unwrap_or(0);
        let of = WeightShape::dense(channels, from.layout.channels, shape.kernel.iter().product());
        PackedConv::new(self.isa, &values, bias.as_deref(), of, from.layout.block).map_err(self.kernel())
    }

    fn convolve(
        &mut self,
        x: ValueId,
        packed: &PackedConv,
        shape: &ConvShape,
        activation: Activation,
        moments: Option<usize>,
        output: ValueId,
    ) -> RunResult<()> {
        let (isa, from, to) = (self.isa, self.slot(x)?, self.slot(output)?);
        let finish = Finish { activation, moments: moments.is_some(), ..Finish::default() };
        let mut image_moments = Vec::new();
        self.for_each_image(to, |image, target, split| {
            let x = read_image(split, &from, image)?;
            let of = conv::conv(isa, x, &from.layout, packed, shape, &finish, Target::F32(target), &to.layout)?;
            image_moments.extend(of);
            Ok(())
        })?;
        if let Some(place) = moments.and_then(|at| self.memory.moments.get_mut(at)) {
            *place = image_moments;
        }
        Ok(())
    }

    fn weight_gradient(&mut self, x: ValueId, dy: ValueId, shape: &ConvShape, dw: ValueId) -> RunResult<()> {
        let (isa, from, to) = (self.isa, self.slot(x)?, self.slot(dy)?);
        let taps: usize = shape.kernel.iter().product();
        let mut values = vec![0.0; from.layout.channels * to.layout.channels * taps];
        for image in 0..from.images {
            let get = |slot: &Slot| self.memory.arena.get(slot.range(image)).ok_or_else(|| self.fail("arena"));
            let (x, dy) = (get(&from)?, get(&to)?);
            train::conv_weight_gradient(isa, x, &from.layout, dy, &to.layout, shape, &mut values)
                .map_err(self.kernel())?;
        }
        self.store_dense(dw, values)
    }

    fn input_gradient(
        &mut self,
        weight: ValueId,
        dy: ValueId,
        shape: &ConvShape,
        accumulate_into: Option<ValueId>,
        dx: ValueId,
    ) -> RunResult<()> {
        let (isa, from, to) = (self.isa, self.slot(dy)?, self.slot(dx)?);
        let accumulate_into = accumulate_into.map(|o| self.slot(o)).transpose()?;
        let channels = [from.layout.channels, to.layout.channels];
        let values = self.floats(weight)?;
        let packed = InputGradient::new(isa, &values, channels, shape, from.layout.block).map_err(self.kernel())?;
        self.for_each_image(to, |image, target, split| {
            if let Some(accumulate_into) = accumulate_into.filter(|o| o.range(image) != to.range(image)) {
                pointwise::copy(
                    read_image(split, &accumulate_into, image)?,
                    &accumulate_into.layout,
                    target,
                    &to.layout,
                )?;
            }
            let dy = read_image(split, &from, image)?;
            train::conv_input_gradient(isa, dy, &from.layout, &packed, accumulate_into.is_some(), target, &to.layout)
        })
    }

    fn channel_sums(&mut self, x: ValueId, output: ValueId) -> RunResult<()> {
        let (isa, from) = (self.isa, self.slot(x)?);
        let mut sums = vec![0.0f64; from.layout.channels];
        self.for_each_source(from, |_, source| {
            let image_sums = train::channel_sums(isa, source, &from.layout)?;
            sums.iter_mut().zip(image_sums).for_each(|(s, v)| *s += v);
            Ok(())
        })?;
        self.store_dense(output, sums.into_iter().map(|s| s as f32).collect())
    }

    fn compute_moments(&mut self, x: ValueId, at: usize) -> RunResult<()> {
        let (isa, from) = (self.isa, self.slot(x)?);
        let mut image_moments = Vec::new();
        self.for_each_source(from, |_, source| {
            image_moments.push(norm::moments(isa, &Source::F32(source, &from.layout))?);
            Ok(())
        })?;
        if let Some(place) = self.memory.moments.get_mut(at) {
            *place = image_moments;
        }
        Ok(())
    }

    /// Combines the moments of all images, which have equal size, into those of the batch.
    fn merge_moments(&mut self, at: usize) -> RunResult<()> {
        let Some(place) = self.memory.moments.get_mut(at) else { return Err(self.fail("missing moments")) };
        let images = place.len().max(1) as f64;
        let channels = place.first().map_or(0, Vec::len);
        let of = |c: usize| place.iter().filter_map(move |m| m.get(c).copied());
        let joined: Moments = (0..channels)
            .map(|c| {
                let mean = of(c).map(|(m, _)| m).sum::<f64>() / images;
                let variance = of(c).map(|(m, v)| v + (m - mean) * (m - mean)).sum::<f64>() / images;
                (mean, variance)
            })
            .collect();
        *place = vec![joined];
        Ok(())
    }

    /// Returns mean and 1 / √(variance + ε) of each channel of an image.
    fn statistics(&self, norm: &Norm, image: usize) -> RunResult<Vec<(f64, f64)>> {
        let all = self.memory.moments.get(norm.moments).ok_or_else(|| self.fail("missing moments"))?;
        let of = all.get(if norm.batch { 0 } else { image }).ok_or_else(|| self.fail("missing moments"))?;
        Ok(of.iter().map(|(mean, variance)| (*mean, 1.0 / (variance + f64::from(norm.epsilon)).sqrt())).collect())
    }

    /// Returns scale and shift of a normalisation, by channel.
    fn affine(&self, norm: &Norm, image: usize) -> RunResult<(Vec<f32>, Vec<f32>)> {
        let (scale, bias) = (self.floats(norm.scale)?, self.floats(norm.bias)?);
        let all = self.statistics(norm, image)?.into_iter().zip(scale.into_iter().zip(bias));
        Ok(all
            .map(|((mean, inverse), (scale, bias))| {
                let gain = f64::from(scale) * inverse;
                (gain as f32, (f64::from(bias) - mean * gain) as f32)
            })
            .unzip())
    }

    fn apply(&mut self, terms: &[Term], activation: Activation, output: ValueId) -> RunResult<()> {
        let (isa, to) = (self.isa, self.slot(output)?);
        let from: Vec<Slot> = terms.iter().map(|t| self.slot(t.x)).collect::<RunResult<_>>()?;
        let channels = to.layout.channels;
        let mut tables = Vec::with_capacity(to.images);
        for image in 0..to.images {
            let of = |term: &Term| match &term.norm {
                Some(norm) => self.affine(norm, image),
                None => Ok((vec![1.0; channels], vec![0.0; channels])),
            };
            tables.push(terms.iter().map(of).collect::<RunResult<Vec<_>>>()?);
        }
        self.for_each_image(to, |image, target, split| {
            let mut sums = Vec::with_capacity(from.len());
            for (slot, (scale, shift)) in from.iter().zip(&tables[image]) {
                sums.push(apply::Term {
                    source: Source::F32(read_image(split, slot, image)?, &slot.layout),
                    scale,
                    shift,
                });
            }
            apply::apply(isa, &sums, activation, Target::F32(target), &to.layout)
        })
    }

    /// Computes the gradients of a norm's input, scale and bias, as far as `to` asks for them.
    fn norm_gradient(
        &mut self,
        x: ValueId,
        dy: ValueId,
        norm: &Norm,
        activation: Activation,
        to: [Option<ValueId>; 3],
    ) -> RunResult<()> {
        let isa = self.isa;
        let [dx, d_scale, d_bias] = to;
        let (from, g) = (self.slot(x)?, self.slot(dy)?);
        let (weight, channels) = (self.floats(norm.scale)?, from.layout.channels);
        let mut all = Vec::with_capacity(from.images);
        let mut total = vec![(0.0f64, 0.0f64); channels];
        let mut sums = Vec::with_capacity(from.images);
        for image in 0..from.images {
            let (scale, shift) = self.affine(norm, image)?;
            let (mean, inverse): (Vec<f32>, Vec<f32>) =
                self.statistics(norm, image)?.into_iter().map(|(m, i)| (m as f32, i as f32)).unzip();
            let get = |slot: &Slot| self.memory.arena.get(slot.range(image)).ok_or_else(|| self.fail("arena"));
            let (x, dy) = (get(&from)?, get(&g)?);
            let after = Activated { scale: &scale, shift: &shift, activation };
            let image_sums = train::norm_gradient_sums(isa, x, &from.layout, dy, &g.layout, &after, &mean, &inverse)
                .map_err(self.kernel())?;
            total.iter_mut().zip(&image_sums).for_each(|(t, s)| *t = (t.0 + s.0, t.1 + s.1));
            sums.push(image_sums);
            all.push((scale, shift, mean, inverse));
        }
        for (id, second) in [(d_scale, true), (d_bias, false)] {
            if let Some(id) = id {
                self.store_dense(id, total.iter().map(|t| if second { t.1 } else { t.0 } as f32).collect())?;
            }
        }
        let Some(dx) = dx else { return Ok(()) };
        let to = self.slot(dx)?;
        let voxels = from.layout.voxels();
        self.for_each_image(to, |image, target, split| {
            let Some((scale, shift, mean, inverse)) = all.get(image) else { return Ok(()) };
            let (sums, count) =
                if norm.batch { (&total, voxels * from.images) } else { (sums.get(image).unwrap_or(&total), voxels) };
            let factors = NormFactors::new(&weight, mean, inverse, sums, count)?;
            let after = Activated { scale, shift, activation };
            let (x, dy) = (read_image(split, &from, image)?, read_image(split, &g, image)?);
            train::norm_gradient(isa, x, &from.layout, dy, &g.layout, &after, &factors, false, target, &to.layout)
        })
    }
}

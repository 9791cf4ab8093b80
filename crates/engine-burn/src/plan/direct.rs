//! Turns the steps of a network into steps for the kernels of this crate, if there are kernels for all of them.
//!
//! Norms, sums and activations become factors and shifts that are applied together, at the latest when another step
//! needs the result.

mod conv;

use super::{Constant, Cut, GpuStep, Kind, PoolAxis, Source, Tap};
use crate::form::Form;
use crate::kernels::{ALIGNMENT, Curve, Direct, FactorType, Pooling};
use cytoscope_graph::{BinaryOp, ElementType, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of groups of channels of all samples of a norm: WebGPU starts at most 65,535 cubes along an axis.
const MAX_GROUPS: usize = 65_535;
/// Maximum number of channels of a group: their statistics are in the memory that a cube shares.
const MAX_GROUP_CHANNELS: usize = 1024;

/// Maximum number of channels of a voxel that one unit reads one after the other.
const MAX_SEARCHED_CHANNELS: usize = 1024;

/// Returns whether what a kernel computes is stored in 32 bits.
fn needs_32_bits(kernel: &Direct) -> bool {
    matches!(kernel, Direct::Coefficients { .. } | Direct::ArgReduce { .. })
}

/// Which kernels may be used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    /// The type to which convolutions may round their factors, for tensor cores; `None` computes in f32.
    pub factor_type: Option<FactorType>,
    /// The 16-bit type in which values between the steps are stored, if any. Sums are of 32 bits.
    pub half: Option<ElementType>,
}

/// The same computation as steps for kernels.
pub(super) struct Lowered {
    /// In execution order.
    pub steps: Vec<GpuStep>,
    /// All constants, one after the other.
    pub packed: Constant,
    /// Where the constants of the steps are.
    pub parts: Vec<Part>,
}

/// Position of a constant in memory that it shares with others, in elements, and its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// First element.
    pub start: usize,
    /// Lengths of the axes N, C, Z, Y, X.
    pub form: Form,
    /// The 16-bit type to which it is converted, if any.
    pub half: Option<ElementType>,
}

/// Puts constants one after the other, so that they are copied to the device at once. Returns `None` if they are more
/// than a tensor can hold.
fn pack(constants: Vec<Constant>) -> Option<(Constant, Vec<Part>)> {
    let (mut values, mut parts) = (Vec::new(), Vec::with_capacity(constants.len()));
    for constant in constants {
        parts.push(Part { start: values.len(), form: constant.form, half: constant.half });
        values.extend(constant.values);
        values.resize(values.len().next_multiple_of(ALIGNMENT), 0.0);
    }
    let form = [values.len(), 1, 1, 1, 1];
    (values.len() <= i32::MAX as usize).then_some((Constant { form, values, half: None }, parts))
}

/// A tensor whose channels have yet to be multiplied by factors and increased by shifts.
#[derive(Clone, Copy)]
struct Term {
    x: Source,
    coefficients: Source,
}

/// A value that is not computed yet: the sum of its terms.
#[derive(Clone)]
struct Pending {
    terms: Vec<Term>,
    name: String,
}

struct Lowering<'a> {
    kernels: Kernels,
    old: &'a [Constant],
    tables: &'a [Vec<i32>],
    steps: Vec<GpuStep>,
    constants: Vec<Constant>,
    /// Forms of the values.
    forms: BTreeMap<ValueId, Form>,
    outputs: &'a BTreeSet<ValueId>,
    /// Values that are stored in 16 bits.
    halves: BTreeSet<ValueId>,
    /// Number of steps that read a value, plus one if it is an output.
    readers: BTreeMap<ValueId, usize>,
    pending: BTreeMap<ValueId, Pending>,
    /// Values that are aliases, with the sources of the values that they stand for.
    aliases: BTreeMap<ValueId, Source>,
    /// Coefficients that change nothing, by the number of channels.
    identities: BTreeMap<usize, usize>,
    scratch_count: u32,
}

/// Returns the steps as steps for kernels; `None` if there is no kernel for one of them. `inputs` are the graph's, with
/// their forms; `scratch_count` temporary values are in use. Graphs of several inputs without convolutions have none.
pub(super) fn lower(
    steps: &[GpuStep],
    (constants, tables): (&[Constant], &[Vec<i32>]),
    inputs: &[(ValueId, Form)],
    outputs: &BTreeSet<ValueId>,
    scratch_count: u32,
    kernels: Kernels,
) -> Option<Lowered> {
    // Training steps pass tensors from session to session in device memory, and tensors of one backend are unknown to
    // the other: sums of gradients stay on the backend of the gradients.
    let has_layers = steps.iter().any(|s| matches!(s.kind, Kind::Conv { .. } | Kind::Upsample { .. }));
    if inputs.len() > 1 && !has_layers {
        return None;
    }
    let mut forms: BTreeMap<ValueId, Form> = inputs.iter().copied().collect();
    forms.extend(steps.iter().flat_map(|s| s.outputs.iter().copied()));
    let mut readers: BTreeMap<ValueId, usize> = outputs.iter().map(|v| (*v, 1)).collect();
    for source in steps.iter().flat_map(|s| &s.inputs) {
        if let Source::Value(value) = source {
            *readers.entry(*value).or_default() += 1;
        }
    }
    let mut lowering = Lowering {
        kernels,
        old: constants,
        tables,
        steps: Vec::new(),
        constants: Vec::new(),
        forms,
        outputs,
        halves: BTreeSet::new(),
        readers,
        pending: BTreeMap::new(),
        aliases: BTreeMap::new(),
        identities: BTreeMap::new(),
        scratch_count,
    };
    for step in steps {
        lowering.step(step)?;
    }
    for output in outputs {
        lowering.compute(*output)?;
    }
    let (packed, parts) = pack(lowering.constants)?;
    (!lowering.steps.is_empty()).then_some(Lowered { steps: lowering.steps, packed, parts })
}

impl Lowering<'_> {
    fn step(&mut self, step: &GpuStep) -> Option<()> {
        let &[(output, form)] = step.outputs.as_slice() else { return None };
        match &step.kind {
            Kind::Conv { window, bias, residual, activation } => {
                self.conv(step, (output, form), window, *bias, *residual, *activation)
            }
            Kind::Upsample { factors, channels, bias } => {
                self.upsample(step, (output, form), *factors, *channels, *bias)
            }
            Kind::Normalize { groups, epsilon } => self.normalize(step, (output, form), *groups, *epsilon),
            Kind::Affine => {
                let (factors, shifts) = (self.known(step, 1, form[1])?, self.known(step, 2, form[1])?);
                let coefficients = self.coefficients(factors, shifts);
                let x = self.input(step, 0)?;
                self.later(step, output, vec![Term { x, coefficients }])
            }
            Kind::Scalar { op, value, reversed } => {
                let (factor, shift) = match (op, reversed) {
                    (BinaryOp::Mul, _) => (*value, 0.0),
                    (BinaryOp::Add, _) => (1.0, *value),
                    (BinaryOp::Sub, false) => (1.0, -*value),
                    (BinaryOp::Sub, true) => (-1.0, *value),
                    _ => return None,
                };
                let coefficients = self.coefficients(vec![factor; form[1]], vec![shift; form[1]]);
                let x = self.input(step, 0)?;
                self.later(step, output, vec![Term { x, coefficients }])
            }
            // The form of a tensor with fewer axes than the output differs from the form that it is broadcast in.
            Kind::Binary { op: BinaryOp::Add, forms } if *forms == [form; 2] && self.have_form(step, form) => {
                let (a, b) = (self.term(step, 0, form[1])?, self.term(step, 1, form[1])?);
                self.later(step, output, vec![a, b])
            }
            Kind::Activation(activation) => {
                let curve = Curve::of(*activation)?;
                let terms = self.terms(step, form[1])?;
                self.scale(terms, curve, (output, form), &step.name);
                Some(())
            }
            Kind::Concat { axis: 1 } => self.concatenate(step, (output, form)),
            Kind::Pool { max, before, after: _, axes } => {
                let (pooling, factor) = self.pooling(*max, before, axes)?;
                let x = self.input(step, 0)?;
                self.push(step, Direct::Pool { pooling, factor }, vec![x], (output, form));
                Some(())
            }
            Kind::Resample(axes) => {
                let Some(Source::Value(x)) = step.inputs.first() else { return None };
                let factors = repeats(*self.forms.get(x)?, axes, self.tables)?;
                let x = self.input(step, 0)?;
                self.push(step, Direct::Repeat(factors), vec![x], (output, form));
                Some(())
            }
            Kind::Softmax { axis: 1, log } if form[1] <= MAX_SEARCHED_CHANNELS => {
                let x = self.input(step, 0)?;
                self.push(step, Direct::Softmax { log: *log }, vec![x], (output, form));
                Some(())
            }
            Kind::ArgReduce { max, last, axis: 1 } => {
                let Some(Source::Value(x)) = step.inputs.first() else { return None };
                if self.forms.get(x)?[1] > MAX_SEARCHED_CHANNELS {
                    return None;
                }
                let x = self.input(step, 0)?;
                self.push(step, Direct::ArgReduce { max: *max, last: *last }, vec![x], (output, form));
                Some(())
            }
            Kind::Slice(cuts) if self.covers(step, cuts) => self.rename(step, (output, form)),
            Kind::Reshape => match step.inputs.first()? {
                Source::Value(value) if self.forms.get(value) == Some(&form) => self.rename(step, (output, form)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether all inputs of a step are values of this form.
    fn have_form(&self, step: &GpuStep, form: Form) -> bool {
        step.inputs.iter().all(|input| match input {
            Source::Value(value) => self.forms.get(value) == Some(&form),
            Source::Constant(_) => false,
        })
    }

    /// Returns whether a slice is all of its input.
    fn covers(&self, step: &GpuStep, cuts: &[Cut; 5]) -> bool {
        let form = match step.inputs.first() {
            Some(Source::Value(value)) => self.forms.get(value),
            _ => None,
        };
        form.is_some_and(|form| (0..5).all(|a| cuts[a] == Cut { start: 0, len: form[a], step: 1 }))
    }

    /// Returns pooling over several axes as one window, and the factor of an average. `None` if an axis is not spatial, or
    /// if averages are of different numbers of elements.
    fn pooling(&self, max: bool, before: &[usize; 5], axes: &[PoolAxis]) -> Option<(Pooling, f32)> {
        let padding = [before[2], before[3], before[4]];
        let mut pooling = Pooling { max, kernel: [1; 3], stride: [1; 3], padding, dilation: [1; 3] };
        let mut factor = 1.0;
        for axis in axes {
            let a = axis.axis.checked_sub(2)?;
            (pooling.kernel[a], pooling.stride[a], pooling.dilation[a]) = (axis.kernel, axis.stride, axis.dilation);
            if let Some(weights) = axis.weights {
                let values = &self.old.get(weights)?.values;
                let first = *values.first()?;
                if values.iter().any(|v| *v != first) {
                    return None;
                }
                factor *= first;
            }
        }
        Some((pooling, factor))
    }

    /// Makes the output of a step an alias of its input. An output of the graph is a copy instead; `None` if no step comes before.
    fn rename(&mut self, step: &GpuStep, (output, form): (ValueId, Form)) -> Option<()> {
        let x = self.input(step, 0)?;
        if !self.outputs.contains(&output) {
            self.aliases.insert(output, x);
            return Some(());
        }
        if self.steps.is_empty() {
            return None;
        }
        let coefficients = self.identity(form[1]);
        self.scale(vec![Term { x, coefficients }], Curve::IDENTITY, (output, form), &step.name);
        Some(())
    }

    fn push(&mut self, step: &GpuStep, direct: Direct, inputs: Vec<Source>, output: (ValueId, Form)) {
        self.emit(direct, inputs, output, &step.name, step.macs);
    }

    fn emit(&mut self, direct: Direct, inputs: Vec<Source>, output: (ValueId, Form), name: &str, macs: u64) {
        self.forms.insert(output.0, output.1);
        let to = match self.kernels.half {
            // Outputs of the graph are f32, and coefficients and positions need the precision.
            Some(half) if !self.outputs.contains(&output.0) && !needs_32_bits(&direct) => {
                self.halves.insert(output.0);
                half
            }
            _ => ElementType::F32,
        };
        self.steps.push(GpuStep {
            kind: Kind::Direct(direct, to),
            inputs,
            outputs: vec![output],
            name: name.to_owned(),
            macs,
            scratch_elements: 0,
            last_used: Vec::new(),
        });
    }

    /// Creates a temporary value.
    fn scratch(&mut self) -> ValueId {
        self.scratch_count += 1;
        ValueId(u32::MAX - self.scratch_count)
    }

    fn constant(&mut self, values: Vec<f32>) -> Source {
        self.typed(Constant { form: [values.len(), 1, 1, 1, 1], values, half: None })
    }

    fn typed(&mut self, constant: Constant) -> Source {
        self.constants.push(constant);
        Source::Constant(self.constants.len() - 1)
    }

    /// Returns the numbers of a constant input; `None` if there are not `length` of them, or if they have 16 bits.
    fn known(&self, step: &GpuStep, index: usize, length: usize) -> Option<Vec<f32>> {
        let Some(Source::Constant(at)) = step.inputs.get(index) else { return None };
        let constant = self.old.get(*at).filter(|c| c.half.is_none() && c.values.len() == length)?;
        Some(constant.values.clone())
    }

    /// Adds the factor and the shift of each channel.
    fn coefficients(&mut self, mut factors: Vec<f32>, shifts: Vec<f32>) -> Source {
        factors.extend(shifts);
        self.constant(factors)
    }

    /// Returns coefficients that change nothing.
    fn identity(&mut self, channels: usize) -> Source {
        if let Some(known) = self.identities.get(&channels) {
            return Source::Constant(*known);
        }
        let added = self.coefficients(vec![1.0; channels], vec![0.0; channels]);
        if let Source::Constant(index) = added {
            self.identities.insert(channels, index);
        }
        added
    }

    /// Returns the source of a value in the new steps.
    fn resolve(&self, value: ValueId) -> Source {
        self.aliases.get(&value).copied().unwrap_or(Source::Value(value))
    }

    /// Returns an input of a step, which must not be a constant, and computes it if that is not done.
    fn input(&mut self, step: &GpuStep, index: usize) -> Option<Source> {
        let Some(Source::Value(value)) = step.inputs.get(index) else { return None };
        let source = self.resolve(*value);
        if let Source::Value(value) = source {
            self.compute(value)?;
        }
        Some(source)
    }

    /// Computes a value if that is not done.
    fn compute(&mut self, value: ValueId) -> Option<()> {
        if let Some(Pending { terms, name }) = self.pending.remove(&value) {
            let form = *self.forms.get(&value)?;
            self.scale(terms, Curve::IDENTITY, (value, form), &name);
        }
        Some(())
    }

    /// Returns an input of a step as a term of a sum, which is computed if it is a sum itself.
    fn term(&mut self, step: &GpuStep, index: usize, channels: usize) -> Option<Term> {
        if let Some(Source::Value(value)) = step.inputs.get(index)
            && let Source::Value(value) = self.resolve(*value)
            && self.pending.get(&value).is_some_and(|p| p.terms.len() == 1)
        {
            return self.pending.remove(&value)?.terms.first().copied();
        }
        let x = self.input(step, index)?;
        Some(Term { x, coefficients: self.identity(channels) })
    }

    /// Returns the first input of a step as a sum.
    fn terms(&mut self, step: &GpuStep, channels: usize) -> Option<Vec<Term>> {
        if let Some(Source::Value(value)) = step.inputs.first()
            && let Source::Value(value) = self.resolve(*value)
            && let Some(pending) = self.pending.remove(&value)
        {
            return Some(pending.terms);
        }
        Some(vec![self.term(step, 0, channels)?])
    }

    /// Computes a sum when it is needed; at once if several steps need it.
    fn later(&mut self, step: &GpuStep, output: ValueId, terms: Vec<Term>) -> Option<()> {
        self.pending.insert(output, Pending { terms, name: step.name.clone() });
        if self.readers.get(&output).copied().unwrap_or(0) > 1 { self.compute(output) } else { Some(()) }
    }

    fn scale(&mut self, terms: Vec<Term>, curve: Curve, output: (ValueId, Form), name: &str) {
        let two = terms.len() == 2;
        let inputs = terms.into_iter().flat_map(|t| [t.x, t.coefficients]).collect();
        self.emit(Direct::Scale { two, curve }, inputs, output, name, 0);
    }

    fn normalize(
        &mut self,
        step: &GpuStep,
        (output, form): (ValueId, Form),
        groups: usize,
        epsilon: f32,
    ) -> Option<()> {
        let channels = form[1];
        if form[0] * groups > MAX_GROUPS || channels / groups > MAX_GROUP_CHANNELS {
            return None;
        }
        let x = self.input(step, 0)?;
        let mut sources = vec![x];
        for index in 1..3 {
            // Older files have one number per group.
            let numbers = match self.known(step, index, channels) {
                Some(numbers) => numbers,
                None => {
                    let each = self.known(step, index, groups)?;
                    each.into_iter().flat_map(|v| std::iter::repeat_n(v, channels / groups)).collect()
                }
            };
            sources.push(self.constant(numbers));
        }
        let coefficients = self.scratch();
        self.push(
            step,
            Direct::Coefficients { groups, epsilon },
            sources,
            (coefficients, [form[0], 2 * channels, 1, 1, 1]),
        );
        self.later(step, output, vec![Term { x, coefficients: Source::Value(coefficients) }])
    }

    fn concatenate(&mut self, step: &GpuStep, (output, form): (ValueId, Form)) -> Option<()> {
        let mut joined: Option<(Source, usize)> = None;
        for index in 0..step.inputs.len() {
            let Some(Source::Value(value)) = step.inputs.get(index) else { return None };
            let channels = self.forms.get(value)?[1];
            let next = self.input(step, index)?;
            joined = Some(match joined {
                None => (next, channels),
                Some((before, sum)) => {
                    let all = sum + channels;
                    let to = if index + 1 == step.inputs.len() { output } else { self.scratch() };
                    let mut form = form;
                    form[1] = all;
                    self.push(step, Direct::Concat, vec![before, next], (to, form));
                    (Source::Value(to), all)
                }
            });
        }
        (step.inputs.len() > 1).then_some(())
    }
}

/// Returns how often each position is repeated along Z, Y, X; `None` if resampling does anything but repeat positions.
fn repeats(form: Form, axes: &[(usize, Vec<Tap>)], tables: &[Vec<i32>]) -> Option<[usize; 3]> {
    let mut factors = [1; 3];
    for (axis, taps) in axes {
        let &[Tap { table, weights: None }] = taps.as_slice() else { return None };
        let table = tables.get(table)?;
        let factor = table.len() / form.get(*axis)?;
        let is_repeated = table.iter().enumerate().all(|(at, from)| usize::try_from(*from) == Ok(at / factor.max(1)));
        if factor == 0 || table.len() != factor * form[*axis] || !is_repeated {
            return None;
        }
        *factors.get_mut(axis.checked_sub(2)?)? = factor;
    }
    Some(factors)
}

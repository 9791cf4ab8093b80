//! Activations at the end of a kernel.

use cubecl::prelude::*;
use cytoscope_graph::Activation;

/// Kind of an activation; its parameters are in [`Curve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Identity,
    Relu,
    /// The first parameter is the slope for negative numbers.
    LeakyRelu,
    /// The first parameter is the bound for negative numbers.
    Elu,
    Sigmoid,
    Silu,
    Tanh,
    Softsign,
    /// The parameters are the bounds.
    Clip,
}

/// An activation with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Curve {
    /// The function, which determines the meaning of the two parameters.
    pub kind: Kind,
    /// First parameter: a slope, a bound or a minimum; 0 if there is none.
    pub first: f32,
    /// Second parameter: a maximum; 0 if there is none.
    pub second: f32,
}

impl Curve {
    /// No activation: values stay as they are.
    pub(crate) const IDENTITY: Self = Self { kind: Kind::Identity, first: 0.0, second: 0.0 };

    /// Returns the curve of an activation; `None` if kernels have none for it.
    pub(crate) fn of(activation: Activation) -> Option<Self> {
        let (kind, first, second) = match activation {
            Activation::Relu => (Kind::Relu, 0.0, 0.0),
            Activation::LeakyRelu { alpha } => (Kind::LeakyRelu, alpha, 0.0),
            Activation::Elu { alpha } => (Kind::Elu, alpha, 0.0),
            Activation::Sigmoid => (Kind::Sigmoid, 0.0, 0.0),
            Activation::Silu => (Kind::Silu, 0.0, 0.0),
            Activation::Tanh => (Kind::Tanh, 0.0, 0.0),
            Activation::Softsign => (Kind::Softsign, 0.0, 0.0),
            // Shader languages have no infinite numbers.
            Activation::Clip { min, max } => (Kind::Clip, min.max(f32::MIN), max.min(f32::MAX)),
            _ => return None,
        };
        Some(Self { kind, first, second })
    }

    /// Returns the slope for negative numbers of an activation that is linear on both sides of 0; `None` for other ones.
    pub(crate) fn slope(self) -> Option<f32> {
        match self.kind {
            Kind::Relu => Some(0.0),
            Kind::LeakyRelu => Some(self.first),
            _ => None,
        }
    }
}

/// Applies an activation to each element. Arguments of functions are bounded as in `exec::elementwise`. NaN stays NaN: it
/// results from numbers that exceeded the range of their type, and a bound in its place would look plausible.
#[cube]
pub(super) fn curve<N: Size>(x: Vector<f32, N>, first: f32, second: f32, #[comptime] kind: Kind) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0);
    let one = Vector::<f32, N>::new(1.0);
    let mut y = x;
    if comptime!(matches!(kind, Kind::Relu)) {
        y = max(x, zero);
    }
    if comptime!(matches!(kind, Kind::LeakyRelu)) {
        y = max(x, zero) + min(x, zero) * Vector::<f32, N>::new(first);
    }
    if comptime!(matches!(kind, Kind::Elu)) {
        y = max(x, zero) + (min(x, zero).exp() - one) * Vector::<f32, N>::new(first);
    }
    if comptime!(matches!(kind, Kind::Sigmoid)) {
        y = one / (one + (zero - max(x, Vector::<f32, N>::new(-85.0))).exp());
    }
    if comptime!(matches!(kind, Kind::Silu)) {
        y = x / (one + (zero - max(x, Vector::<f32, N>::new(-85.0))).exp());
    }
    if comptime!(matches!(kind, Kind::Tanh)) {
        y = min(max(x, Vector::<f32, N>::new(-15.0)), Vector::<f32, N>::new(15.0)).tanh();
    }
    if comptime!(matches!(kind, Kind::Softsign)) {
        y = x / (one + x.abs());
    }
    if comptime!(matches!(kind, Kind::Clip)) {
        y = min(max(x, Vector::<f32, N>::new(first)), Vector::<f32, N>::new(second));
    }
    // Of NaN and a bound, `max` and `min` return the bound.
    if comptime!(!matches!(kind, Kind::Identity | Kind::Silu | Kind::Softsign)) {
        y = select_many(Vector::is_nan(x), x, y);
    }
    y
}

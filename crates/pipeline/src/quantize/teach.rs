//! Quantized networks that are taught to do what the float one does; whoever can teach is given by the caller.

use crate::{Context, JobError};
use cytoscope_graph::{Graph, Tensor};
use serde::{Deserialize, Serialize};

/// What a quantized network is to learn.
pub struct Lesson<'a> {
    /// The float network.
    pub float: &'a Graph,
    /// The quantized one, with ranges of its own.
    pub quantized: &'a Graph,
    /// Tiles to learn from, as the networks take them.
    pub tiles: &'a [Tensor],
    /// The worst output's relative L2 error on the tiles held out.
    pub error: &'a dyn Fn(&Graph) -> Result<f64, JobError>,
    /// That error before.
    pub before: f64,
    /// That error is small enough.
    pub budget: f64,
}

/// A network that was taught, and how long it took.
pub struct Taught {
    /// The quantized network with the weights that did best on the tiles held out.
    pub graph: Graph,
    /// Its error on them.
    pub error: f64,
    /// Steps taken.
    pub steps: u64,
}

/// Teaches a quantized network, with the rounding in it.
pub trait Teacher {
    /// The network that was taught; never a worse one than it was given.
    ///
    /// # Errors
    /// [`JobError`] if the network cannot be taught, or on cancelling.
    fn teach(&self, context: &Context, lesson: &Lesson<'_>) -> Result<Taught, JobError>;
}

/// What teaching brought.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaughtReport {
    /// Steps taken.
    pub steps: u64,
    /// Relative L2 error of the worst output before, every layer in int8.
    pub before: f64,
    /// And after.
    pub after: f64,
    /// Wall seconds.
    pub seconds: f64,
    /// Whether what was taught is what was written; else layers stayed in floats instead.
    pub kept: bool,
}

//! Variants of the float network, and the ranges of their tensors.

use crate::Candidate;
use crate::histogram::{Histogram, Method};
use cytoscope_graph::{Graph, GraphError};
use cytoscope_graph_passes::quantize::{self, Activations, Group, QuantRange};
use cytoscope_pipeline::JobError;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Calibration method of one tensor that differs from that of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorMethod {
    /// Name of the tensor, or of the first one of those that share a range.
    pub tensor: String,
    /// Method of its range.
    pub method: Method,
}

/// Calibration methods of all groups of tensors that share a range.
#[derive(Debug, Clone)]
pub(crate) struct Methods {
    /// Method of all groups for which `own` has none.
    pub common: Method,
    /// Methods of single groups, by their index.
    pub own: BTreeMap<usize, Method>,
}

impl Methods {
    /// Returns one method for all groups.
    pub(crate) fn all(common: Method) -> Self {
        Self { common, own: BTreeMap::new() }
    }

    /// Returns the method of a group.
    pub(crate) fn of(&self, group: usize) -> Method {
        self.own.get(&group).copied().unwrap_or(self.common)
    }
}

/// Minimum and maximum of each group.
type Ranges = Vec<(f32, f32)>;

/// A float network with equalized channels, and the histograms of its tensors.
pub(crate) struct Variant {
    /// The float network.
    pub graph: Graph,
    /// Strength of channel equalization, 0 to 1; `None` without.
    pub strength: Option<f64>,
    /// Groups of tensors that share a range.
    pub groups: Vec<(Group, Histogram)>,
    /// Ranges computed so far: for each method, one per group.
    pub ranges: RefCell<Vec<(Method, Ranges)>>,
}

/// The variant and calibration methods with the smallest error, with every layer in int8.
pub(crate) struct BestVariant {
    /// The float network of the variant, with the histograms of its tensors.
    pub variant: Variant,
    /// Calibration methods; `None` for dynamic ranges.
    pub methods: Option<Methods>,
    /// Relative L2 error of the worst output.
    pub error: f64,
    /// All settings that were tried.
    pub candidates: Vec<Candidate>,
}

impl BestVariant {
    /// Returns the tensors whose ranges are not computed by the common method.
    pub(crate) fn other_methods(&self) -> Vec<TensorMethod> {
        let own = self.methods.iter().flat_map(|methods| &methods.own);
        own.filter_map(|(index, method)| {
            let source = self.variant.groups.get(*index)?.0.sources.first()?;
            Some(TensorMethod { tensor: self.variant.graph.value(*source).name.clone(), method: *method })
        })
        .collect()
    }
}

impl Variant {
    /// Returns the range of each group according to a calibration method; each is computed only once.
    fn ranges(&self, method: Method) -> Ranges {
        let mut known = self.ranges.borrow_mut();
        if let Some((_, ranges)) = known.iter().find(|(m, _)| *m == method) {
            return ranges.clone();
        }
        let ranges: Ranges = self.groups.iter().map(|(_, histogram)| histogram.range(method)).collect();
        known.push((method, ranges.clone()));
        ranges
    }

    /// Returns the range of a group according to a calibration method.
    pub(crate) fn range(&self, group: usize, method: Method) -> Option<(f32, f32)> {
        self.ranges(method).get(group).copied()
    }

    /// Returns the quantized graph, with the layers in `keep` in float.
    pub(crate) fn quantized(&self, methods: Option<&Methods>, keep: &BTreeSet<String>) -> Result<Graph, JobError> {
        let Some(methods) = methods else {
            return Ok(quantize::quantize(&self.graph, &Activations::Dynamic, keep)?);
        };
        let ranges: Ranges = (0..self.groups.len()).filter_map(|i| self.range(i, methods.of(i))).collect();
        let range = |group: &Group| {
            let same = |g: &Group| g.sources.iter().any(|id| group.sources.contains(id));
            let known = self.groups.iter().zip(&ranges).find(|((g, _), _)| same(g));
            let Some((_, (low, high))) = known else {
                let names: Vec<&str> = group.sources.iter().map(|id| self.graph.value(*id).name.as_str()).collect();
                return Err(GraphError::misused("range of a group", "none", format!("one for {}", names.join(", "))));
            };
            QuantRange::of(*low, *high)
        };
        Ok(quantize::quantize(&self.graph, &Activations::Static(&range), keep)?)
    }
}

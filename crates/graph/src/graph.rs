//! The computation graph: values, nodes, constants, and their invariants.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, LazyLock};

use crate::error::{GraphError, Result};
use crate::ops::Op;
use crate::tensor::{ElementType, Tensor};

/// Name of what [`Graph::value`] returns for an id of another graph.
const FOREIGN_NAME: &str = "a value that is not in this graph";

/// Index of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The id as an index into [`Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Length of a tensor axis, known or free.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A length that is the same in every run.
    Fixed(usize),
    /// Symbolic length with this name, chosen by the caller.
    Free(String),
}

impl Dim {
    /// Returns the length if it is known.
    pub fn fixed(&self) -> Option<usize> {
        if let Self::Fixed(n) = self { Some(*n) } else { None }
    }
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Free(name) => f.write_str(name),
        }
    }
}

/// A named tensor that flows through the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Unique within the graph, never empty.
    pub name: String,
    /// Type of the elements; `None` until shapes are inferred.
    pub dtype: Option<ElementType>,
    /// Axis lengths, if the rank is known.
    pub shape: Option<Vec<Dim>>,
}

impl Value {
    /// Returns the shape if all lengths are known.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::fixed).collect()
    }
}

/// One application of an operator to values.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Name used in messages. May be empty in files; the importer then generates one.
    pub name: String,
    /// The operator with its attributes.
    pub op: Op,
    /// Input values; `None` where an optional input is absent.
    pub inputs: Vec<Option<ValueId>>,
    /// Output values; `None` where an optional output is not used.
    pub outputs: Vec<Option<ValueId>>,
}

impl Node {
    /// Returns input `index`, if present.
    pub fn input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// Returns output `index`, if used.
    pub fn output(&self, index: usize) -> Option<ValueId> {
        self.outputs.get(index).copied().flatten()
    }
}

/// The set of value names of a graph, for passes that add many values: [`Graph::add_value`] scans all values on every
/// call.
#[derive(Debug)]
pub struct ValueNames(HashSet<String>);

impl ValueNames {
    /// Returns the names of a graph's values.
    pub fn of(graph: &Graph) -> Self {
        Self(graph.values.iter().map(|v| v.name.clone()).collect())
    }

    /// Like [`Graph::add_initializer`], without the scan.
    pub fn add_initializer(&mut self, graph: &mut Graph, wanted: &str, tensor: Tensor) -> ValueId {
        let mut name = wanted.to_owned();
        let mut number = graph.values.len();
        while name.is_empty() || !self.0.insert(name.clone()) {
            name = format!("{wanted}_{number}");
            number += 1;
        }
        let shape = tensor.shape().iter().map(|&n| Dim::Fixed(n)).collect();
        let id = graph.push_value(Value { name, dtype: Some(tensor.dtype()), shape: Some(shape) });
        graph.initializers.insert(id, Arc::new(tensor));
        id
    }
}

/// A network: operators in execution order, with their weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Name of the graph.
    pub name: String,
    /// All values, indexed by [`ValueId`].
    pub values: Vec<Value>,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Values that the caller provides.
    pub inputs: Vec<ValueId>,
    /// Values that the caller receives.
    pub outputs: Vec<ValueId>,
    /// Constants and weights, by value.
    pub initializers: BTreeMap<ValueId, Arc<Tensor>>,
    /// Default-domain opset of the file the graph was read from.
    pub opset: i64,
    /// Entries of the model's `metadata_props`.
    pub metadata: BTreeMap<String, String>,
}

impl Graph {
    /// Creates a graph without inputs, nodes and outputs.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), opset: crate::GRAPH_OPSET, ..Self::default() }
    }

    /// Returns the value `id`, if it belongs to this graph.
    pub fn get(&self, id: ValueId) -> Option<&Value> {
        self.values.get(id.index())
    }

    /// Returns the value `id`. If it does not belong to this graph, returns a placeholder of unknown type and shape, whose name
    /// states the problem: nothing can be computed from it, and errors show its name. [`Graph::validate`] refuses a graph that
    /// refers to such a value.
    pub fn value(&self, id: ValueId) -> &Value {
        static FOREIGN: LazyLock<Value> =
            LazyLock::new(|| Value { name: FOREIGN_NAME.to_owned(), dtype: None, shape: None });
        self.get(id).unwrap_or(&FOREIGN)
    }

    /// Returns the id of the value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Adds a value. A number is appended to a name that is empty or already taken.
    pub fn add_value(
        &mut self,
        name: impl Into<String>,
        dtype: Option<ElementType>,
        shape: Option<Vec<Dim>>,
    ) -> ValueId {
        let wanted: String = name.into();
        let mut name = wanted.clone();
        let mut number = self.values.len();
        while name.is_empty() || self.find(&name).is_some() {
            name = if wanted.is_empty() { format!("v{number}") } else { format!("{wanted}_{number}") };
            number += 1;
        }
        self.push_value(Value { name, dtype, shape })
    }

    /// Adds a value whose name is known to be unique; [`Graph::validate`] refuses the graph otherwise.
    pub fn push_value(&mut self, value: Value) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(value);
        id
    }

    /// Adds a constant tensor and returns the value that holds it.
    pub fn add_initializer(&mut self, name: impl Into<String>, tensor: impl Into<Arc<Tensor>>) -> ValueId {
        let tensor = tensor.into();
        let shape = tensor.shape().iter().map(|&n| Dim::Fixed(n)).collect();
        let id = self.add_value(name, Some(tensor.dtype()), Some(shape));
        self.initializers.insert(id, tensor);
        id
    }

    /// Adds an input of type `dtype` and axes `shape`.
    pub fn add_input(&mut self, name: impl Into<String>, dtype: ElementType, shape: Vec<Dim>) -> ValueId {
        let id = self.add_value(name, Some(dtype), Some(shape));
        self.inputs.push(id);
        id
    }

    /// Appends a node with one output and returns that output, which is named after the node.
    pub fn push(&mut self, name: impl Into<String>, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let name = name.into();
        let output = self.add_value(name.clone(), None, None);
        self.nodes.push(Node { name, op, inputs: inputs.to_vec(), outputs: vec![Some(output)] });
        output
    }

    /// Returns the constant `id`, if it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.initializers.get(&id)
    }

    /// Returns the graph's constants by name.
    pub fn named_initializers(&self) -> BTreeMap<String, Arc<Tensor>> {
        self.initializers.iter().map(|(&id, t)| (self.value(id).name.clone(), Arc::clone(t))).collect()
    }

    /// Maps each value to the node that produces it.
    pub fn producers(&self) -> BTreeMap<ValueId, usize> {
        let mut map = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            map.extend(node.outputs.iter().flatten().map(|&id| (id, index)));
        }
        map
    }

    /// Maps each value to the nodes that read it (a node that reads it twice is listed twice). Graph outputs are not
    /// included.
    pub fn consumers(&self) -> BTreeMap<ValueId, Vec<usize>> {
        let mut map: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for &id in node.inputs.iter().flatten() {
                map.entry(id).or_default().push(index);
            }
        }
        map
    }

    /// Total size of all constants in bytes.
    pub fn initializer_bytes(&self) -> usize {
        self.initializers.values().map(|t| t.len() * t.dtype().size_bytes()).sum()
    }

    /// Checks the invariants: names unique and not empty, every value produced once and before it is read, outputs
    /// produced.
    ///
    /// # Errors
    /// [`GraphError::Malformed`], naming the value and node.
    pub fn validate(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for value in &self.values {
            if value.name.is_empty() {
                return Err(GraphError::malformed("a value has no name"));
            }
            if !names.insert(value.name.as_str()) {
                return Err(GraphError::malformed(format!("two values are named \"{}\"", value.name)));
            }
        }
        let known = |id: ValueId, what: &str| {
            self.get(id)
                .map(|_| ())
                .ok_or_else(|| GraphError::malformed(format!("{what} refers to a value that does not exist")))
        };
        let mut made: BTreeSet<ValueId> = BTreeSet::new();
        for (what, ids) in [
            ("an input", self.inputs.iter().collect::<Vec<_>>()),
            ("an initializer", self.initializers.keys().collect()),
        ] {
            for &id in ids {
                known(id, what)?;
                if !made.insert(id) {
                    return Err(GraphError::malformed(format!("\"{}\" is defined twice", self.value(id).name)));
                }
            }
        }
        for node in &self.nodes {
            for &id in node.inputs.iter().flatten() {
                known(id, "an input of a node")?;
                if !made.contains(&id) {
                    return Err(GraphError::malformed(format!(
                        "node \"{}\" reads \"{}\", which no earlier node produces",
                        node.name,
                        self.value(id).name
                    )));
                }
            }
            for &id in node.outputs.iter().flatten() {
                known(id, "an output of a node")?;
                if !made.insert(id) {
                    return Err(GraphError::malformed(format!("\"{}\" is produced twice", self.value(id).name)));
                }
            }
        }
        for &id in &self.outputs {
            known(id, "an output")?;
            if !made.contains(&id) {
                return Err(GraphError::malformed(format!("output \"{}\" is never produced", self.value(id).name)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_graph_is_named_as_such() {
        let mut graph = Graph::new("g");
        let x = graph.add_input("x", ElementType::F32, vec![Dim::Fixed(2)]);
        assert_eq!(graph.value(x).name, "x");
        let foreign = ValueId(7);
        assert_eq!(graph.get(foreign), None);
        assert_eq!(graph.value(foreign).name, "a value that is not in this graph");
        assert_eq!(graph.value(foreign).fixed_shape(), None);
        graph.outputs.push(foreign);
        let refused = graph.validate().map_err(|e| e.to_string());
        assert!(refused.is_err_and(|e| e.contains("an output refers to a value that does not exist")));
    }
}

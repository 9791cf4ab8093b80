//! The graph itself: values, nodes, constants, and the rules that hold between them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::op::Op;
use crate::tensor::{ElementType, Tensor};

/// Index of a value in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

impl ValueId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Length of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Known.
    Fixed(usize),
    /// Chosen by the caller, under this name.
    Free(String),
}

impl Dim {
    /// The length, if it is known.
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
    /// Unique in the graph, never empty.
    pub name: String,
    /// Type of its elements, when known.
    pub dtype: Option<ElementType>,
    /// Its axes, when their number is known.
    pub shape: Option<Vec<Dim>>,
}

impl Value {
    /// The lengths, if all are known.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::fixed).collect()
    }
}

/// One step of the computation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// For messages; may be empty in files, made up at import.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// What it reads; `None` where an optional input is absent.
    pub inputs: Vec<Option<ValueId>>,
    /// What it makes; `None` where an optional output is not wanted.
    pub outputs: Vec<Option<ValueId>>,
}

impl Node {
    /// Input number `index`, if it is there.
    pub fn input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// Output number `index`, if it is wanted.
    pub fn output(&self, index: usize) -> Option<ValueId> {
        self.outputs.get(index).copied().flatten()
    }
}

/// The names of a graph's values, for passes that add many: [`Graph::add_value`] looks at every value for each it adds.
pub(crate) struct Names(HashSet<String>);

impl Names {
    pub(crate) fn of(graph: &Graph) -> Self {
        Self(graph.values.iter().map(|v| v.name.clone()).collect())
    }

    /// As [`Graph::add_initializer`].
    pub(crate) fn add_initializer(&mut self, graph: &mut Graph, wanted: &str, tensor: Tensor) -> ValueId {
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

/// A model's computation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Name of the graph.
    pub name: String,
    /// Every value; [`ValueId`] indexes it.
    pub values: Vec<Value>,
    /// The steps, each after all it reads from.
    pub nodes: Vec<Node>,
    /// What a caller gives.
    pub inputs: Vec<ValueId>,
    /// What a caller gets.
    pub outputs: Vec<ValueId>,
    /// Constants and weights.
    pub initializers: BTreeMap<ValueId, Arc<Tensor>>,
    /// Opset of the default domain the graph was written in.
    pub opset: i64,
    /// Free text of the model (`metadata_props`), by key.
    pub metadata: BTreeMap<String, String>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), opset: crate::EXPORT_OPSET, ..Self::default() }
    }

    /// The value `id`, if it is of this graph.
    pub fn get(&self, id: ValueId) -> Option<&Value> {
        self.values.get(id.index())
    }

    /// The value `id`; an empty one if `id` is not of this graph.
    pub fn value(&self, id: ValueId) -> &Value {
        static NONE: Value = Value { name: String::new(), dtype: None, shape: None };
        self.values.get(id.index()).unwrap_or(&NONE)
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Adds a value. A name already taken, or empty, gets a number appended.
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

    /// Adds a value whose name is known to be new.
    pub(crate) fn push_value(&mut self, value: Value) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(value);
        id
    }

    /// Adds a constant.
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

    /// Appends a node with one output, and gives that output, which is named after the node.
    pub fn push(&mut self, name: impl Into<String>, op: Op, inputs: &[Option<ValueId>]) -> ValueId {
        let name = name.into();
        let output = self.add_value(name.clone(), None, None);
        self.nodes.push(Node { name, op, inputs: inputs.to_vec(), outputs: vec![Some(output)] });
        output
    }

    /// The constant `id`, if it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.initializers.get(&id)
    }

    /// For each value, the node that makes it.
    pub fn producers(&self) -> BTreeMap<ValueId, usize> {
        let mut map = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            map.extend(node.outputs.iter().flatten().map(|&id| (id, index)));
        }
        map
    }

    /// For each value, the nodes that read it (a node that reads it twice is there twice). Graph outputs are not in it.
    pub fn consumers(&self) -> BTreeMap<ValueId, Vec<usize>> {
        let mut map: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for &id in node.inputs.iter().flatten() {
                map.entry(id).or_default().push(index);
            }
        }
        map
    }

    /// Every reference to `from`, in nodes and outputs, becomes one to `to`.
    pub fn replace_uses(&mut self, from: ValueId, to: ValueId) {
        for id in self.nodes.iter_mut().flat_map(|n| n.inputs.iter_mut().flatten()).chain(&mut self.outputs) {
            if *id == from {
                *id = to;
            }
        }
    }

    /// Bytes of all constants.
    pub fn initializer_bytes(&self) -> usize {
        self.initializers.values().map(|t| t.len() * t.dtype().size_bytes()).sum()
    }

    /// Checks the rules: names unique and not empty, every value made once and before it is read, outputs made.
    ///
    /// # Errors
    /// [`GraphError::Malformed`] naming the value and node.
    pub fn validate(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for value in &self.values {
            if value.name.is_empty() {
                return Err(GraphError::malformed("a value has no name"));
            }
            if !names.insert(value.name.as_str()) {
                return Err(GraphError::malformed(format!("two values are called \"{}\"", value.name)));
            }
        }
        let known = |id: ValueId, what: &str| {
            self.get(id).map(|_| ()).ok_or_else(|| GraphError::malformed(format!("{what} refers to no value")))
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
                        "node \"{}\" reads \"{}\", which nothing before it makes",
                        node.name,
                        self.value(id).name
                    )));
                }
            }
            for &id in node.outputs.iter().flatten() {
                known(id, "an output of a node")?;
                if !made.insert(id) {
                    return Err(GraphError::malformed(format!("\"{}\" is made twice", self.value(id).name)));
                }
            }
        }
        for &id in &self.outputs {
            known(id, "an output")?;
            if !made.contains(&id) {
                return Err(GraphError::malformed(format!("output \"{}\" is never made", self.value(id).name)));
            }
        }
        Ok(())
    }
}

//! Model-local functions and branches of `If`: their nodes are inserted in place of the node.

use std::collections::BTreeMap;

use super::attributes::resolved;
use super::{Importer, Pending, check_opset};
use crate::proto::{AttributeValue, FunctionProto, GraphProto, NodeProto, TensorProto};
use cytoscope_graph::infer::Info;
use cytoscope_graph::{GraphError, Node, Op, Result, ValueId, check_limit};

/// Maximum depth of functions and branches inside each other.
const MAX_DEPTH: usize = 16;

/// The attributes with which a model-local function is called.
pub(crate) type Arguments<'a> = BTreeMap<&'a str, &'a AttributeValue<'a>>;

/// The content of a function or branch.
struct Body<'a> {
    nodes: &'a [NodeProto<'a>],
    initializers: Vec<TensorProto<'a>>,
    /// Names of the inputs of a function, with their values; `None` for an absent optional input.
    given: Vec<(&'a str, Option<ValueId>)>,
    /// Names of the outputs.
    outputs: Vec<&'a str>,
    /// Version of the operator set of the default domain.
    opset: i64,
    /// Bytes in the file.
    size: u64,
}

impl Importer<'_> {
    /// Inserts the nodes of a function in place of a node that calls it. `outer` are the arguments of the function that
    /// contains the node.
    pub(super) fn call(
        &mut self,
        function: &FunctionProto<'_>,
        node: &NodeProto<'_>,
        name: &str,
        outer: Option<&Arguments<'_>>,
    ) -> Result<()> {
        let inputs = self.inputs(node, name)?;
        if inputs.len() > function.inputs.len() {
            return Err(GraphError::malformed(format!(
                "node \"{name}\" has {} inputs: its function \"{}\" has {}",
                inputs.len(),
                function.name,
                function.inputs.len()
            )));
        }
        let opset = function.opset.unwrap_or(self.opset);
        check_opset(opset)?;
        let mut arguments = resolved(&node.attributes, outer)?;
        for default in &function.defaults {
            arguments.entry(default.name).or_insert(&default.value);
        }
        let given = function.inputs.iter().enumerate().map(|(i, name)| (*name, inputs.get(i).copied().flatten()));
        let body = Body {
            nodes: &function.nodes,
            initializers: Vec::new(),
            given: given.collect(),
            outputs: function.outputs.clone(),
            opset,
            size: function.size,
        };
        self.inline(body, &node.outputs, Some(&arguments))
    }

    /// Inserts the nodes of the branch that an `If` takes, which must be known before the network runs.
    pub(super) fn branch(
        &mut self,
        node: &Pending<'_>,
        outputs: &[&str],
        arguments: Option<&Arguments<'_>>,
    ) -> Result<()> {
        let known = self.info(node.input(0)).and_then(|info| info.value.as_ref());
        if let Some(value) = known.filter(|value| value.len() != 1) {
            let problem = format!("its condition has {} elements, expected one", value.len());
            return Err(GraphError::malformed(format!("node \"{}\": {problem}", node.name)));
        }
        let Some(condition) = known.and_then(|value| value.to_f64_vec().first().copied()) else {
            return Err(node.unsupported(
                "its condition depends on the data, or on the length of an axis that is not fixed; export the network \
                 with fixed lengths",
            ));
        };
        let name = if condition == 0.0 { "else_branch" } else { "then_branch" };
        let Some(AttributeValue::Graph(bytes)) = node.attributes.get(name) else {
            return Err(GraphError::malformed(format!("node \"{}\" has no {name}", node.name)));
        };
        let graph = GraphProto::decode(bytes, self.limits)?;
        if graph.has_sparse {
            return Err(GraphError::unsupported("sparse initializers"));
        }
        let body = Body {
            nodes: &graph.nodes,
            initializers: graph.initializers,
            given: Vec::new(),
            outputs: graph.outputs.iter().map(|output| output.name).collect(),
            opset: self.opset,
            size: bytes.len() as u64,
        };
        self.inline(body, outputs, arguments)
    }

    /// Inserts the nodes of a function or branch. Their names are hidden again afterwards, and copies of the outputs get
    /// the names `outer`.
    fn inline(&mut self, body: Body<'_>, outer: &[&str], arguments: Option<&Arguments<'_>>) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(GraphError::unsupported(format!("functions and branches more than {MAX_DEPTH} deep")));
        }
        self.inlined_nodes += 1 + body.nodes.len();
        self.inlined_bytes = self.inlined_bytes.saturating_add(body.size);
        let what = "the functions and branches in the graph";
        check_limit("nodes", what, self.inlined_nodes as u128, self.limits.nodes as u128)?;
        check_limit("model_bytes", what, self.inlined_bytes.into(), self.limits.model_bytes.into())?;
        let given = body.given.iter().map(|(name, _)| *name);
        let stored = body.initializers.iter().map(|tensor| tensor.name);
        let computed = body.nodes.iter().flat_map(|node| node.outputs.iter().copied());
        let local: Vec<&str> = given.chain(stored).chain(computed).collect();
        let hidden: Vec<_> = local.into_iter().map(|name| (name, self.names.remove(name))).collect();
        for (name, id) in body.given {
            self.names.insert(name.to_owned(), id);
        }
        let outer_opset = std::mem::replace(&mut self.opset, body.opset);
        for tensor in body.initializers {
            self.initializer(tensor)?;
        }
        self.nodes(body.nodes, &body.outputs, arguments)?;
        let found: Vec<Option<ValueId>> = body.outputs.iter().map(|name| self.value_named(name)).collect();
        self.opset = outer_opset;
        self.depth -= 1;
        // In reverse: if a name occurs twice, its first entry has the outer value.
        for (name, id) in hidden.into_iter().rev() {
            match id {
                Some(id) => self.names.insert(name.to_owned(), id),
                None => self.names.remove(name),
            };
        }
        for (index, name) in outer.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let from = found.get(index).copied().flatten();
            let from = from.ok_or_else(|| GraphError::malformed(format!("\"{name}\" is never produced")))?;
            let to = self.define(name, Info::default())?;
            let (inputs, outputs) = (vec![Some(from)], vec![Some(to)]);
            self.finish(Node { name: (*name).to_owned(), op: Op::Identity, inputs, outputs })?;
        }
        Ok(())
    }
}

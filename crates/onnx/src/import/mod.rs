//! Import of ONNX files into a [`Graph`]: names are resolved, nodes sorted topologically and operators normalized to
//! one form.

mod attributes;
mod composed;
mod contrib;
mod fused;
mod inline;
mod layers;
mod operators;
mod order;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::proto::{
    ExternalData, FunctionProto, GraphProto, ModelProto, NodeProto, ReadExternal, TensorProto, ValueInfo,
    tensor_from_proto,
};
use cytoscope_graph::infer::Info;
use cytoscope_graph::{
    Budget, Dim, ElementType, Graph, GraphError, GraphErrorKind, GraphLimits, Interrupt, Node, Op, Result, Tensor,
    Value, ValueId, check_limit, checked_elements,
};
use cytoscope_graph_passes::{infer_node, merged_shape};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::parent_folder;

use attributes::Attributes;
use inline::Arguments;

/// Newest default-domain opset that this importer was checked against.
pub const NEWEST_OPSET: i64 = 25;

/// First version of the file format in which a file must state its opsets.
const FIRST_IR_WITH_OPSETS: i64 = 3;

/// Reads an ONNX file. External data is read from the same folder.
///
/// # Errors
/// If the file cannot be read, is malformed, exceeds a limit, or uses an unsupported feature.
pub fn load(path: &Path, limits: &GraphLimits) -> Result<Graph> {
    let io = |source| GraphError::Io { path: path.to_owned(), source };
    let file = open_regular(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    check_limit("model_bytes", format!("\"{}\"", path.display()), size.into(), limits.model_bytes.into())?;
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    // A file that grows during reading is rejected as too large below.
    file.take(limits.model_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    from_bytes(&bytes, Some(parent_folder(path)), limits)
}

/// Reads an ONNX model from bytes. `folder` is the folder of its external data; without it, models with external
/// data are refused.
///
/// # Errors
/// If the bytes are malformed, exceed a limit, or use an unsupported feature.
pub fn from_bytes(bytes: &[u8], folder: Option<&Path>, limits: &GraphLimits) -> Result<Graph> {
    from_bytes_with_files(bytes, folder, limits).map(|(graph, _)| graph)
}

/// Like [`from_bytes`], and returns the paths of the files from which external data were read, in order.
///
/// # Errors
/// Same as [`from_bytes`].
pub fn from_bytes_with_files(
    bytes: &[u8],
    folder: Option<&Path>,
    limits: &GraphLimits,
) -> Result<(Graph, Vec<PathBuf>)> {
    read_model(bytes, folder.map_or(ExternalData::Refused, ExternalData::Folder), limits)
}

/// Like [`from_bytes`], for a model whose external data are not in a folder: `read` returns the files.
///
/// # Errors
/// Same as [`from_bytes`]; malformed with the problem of `read`.
pub fn from_bytes_with_reader(bytes: &[u8], read: ReadExternal<'_>, limits: &GraphLimits) -> Result<Graph> {
    read_model(bytes, ExternalData::Files(read), limits).map(|(graph, _)| graph)
}

fn read_model(bytes: &[u8], external: ExternalData<'_>, limits: &GraphLimits) -> Result<(Graph, Vec<PathBuf>)> {
    check_limit("model_bytes", "the model", bytes.len() as u128, limits.model_bytes.into())?;
    let model = ModelProto::decode(bytes, limits).map_err(|error| match error {
        GraphError::Malformed { what } => {
            let advice = "export or copy the model again";
            GraphError::malformed(format!("the file is not ONNX, or it is damaged ({what}); {advice}"))
        }
        other => other,
    })?;
    let proto = model
        .graph
        .ok_or_else(|| GraphError::malformed("the file contains no graph; export or copy the model again"))?;
    check_limit("nodes", "the graph", proto.nodes.len() as u128, limits.nodes as u128)?;
    let opset = match model.opsets.iter().find(|(d, _)| is_default(d)) {
        Some((_, version)) => *version,
        // Files of the format's versions 1 and 2 have no opsets and mean the first one.
        None if model.ir_version < FIRST_IR_WITH_OPSETS => 1,
        None => {
            return Err(GraphError::malformed(
                "the file does not state the opset of its operators: expected an opset import of the default domain",
            ));
        }
    };
    check_opset(opset)?;
    let mut importer =
        Importer::new(opset, limits, Budget::with_constant_bytes(bytes.len() as u64, Interrupt::default()));
    importer.graph.name = proto.name.to_owned();
    importer.domains = model.opsets.iter().map(|(d, v)| ((*d).to_owned(), *v)).collect();
    for function in &model.functions {
        let by_domain = importer.functions.entry(function.name).or_default();
        by_domain.entry(function.domain).or_default().insert(function.overload, function);
    }
    importer.external = external;
    importer.graph.metadata = model.metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    importer.read(proto)?;
    importer.graph.validate()?;
    Ok((importer.graph, importer.external_files.into_iter().collect()))
}

/// Why an operator that is not known is refused.
const UNKNOWN: &str = "not implemented; export the model without it, for example with another opset";

/// Refuses opsets whose operators are not known.
fn check_opset(opset: i64) -> Result<()> {
    if (1..=NEWEST_OPSET).contains(&opset) {
        return Ok(());
    }
    Err(GraphError::unsupported(format!(
        "opset {opset}; opsets 1 to {NEWEST_OPSET} are supported: export the model with one of them"
    )))
}

/// States the domain of an unsupported operator, and the version of the domain.
fn in_domain(error: GraphError, domain: &str, opset: i64) -> GraphError {
    match error {
        GraphError::UnsupportedOp { op, node, why, .. } => {
            GraphError::UnsupportedOp { op: format!("{domain}.{op}"), node, opset, why }
        }
        other => other,
    }
}

fn is_default(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// A node during import. Its conversion may still change its inputs.
pub(crate) struct Pending<'a> {
    /// Name of the node, stated by errors.
    pub name: String,
    /// ONNX name of the operator.
    pub op_type: &'a str,
    /// Version of the operator set of the default domain that the file uses.
    pub opset: i64,
    /// Attributes as in the file.
    pub attributes: Attributes<'a>,
    /// Values that are read; `None` for an absent optional input.
    pub inputs: Vec<Option<ValueId>>,
    /// Values that are computed; `None` for an output that is not used.
    pub outputs: Vec<Option<ValueId>>,
}

impl Pending<'_> {
    pub(crate) fn input(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// Sets input `index`, adding absent inputs before it as needed.
    pub(crate) fn set_input(&mut self, index: usize, id: Option<ValueId>) {
        if self.inputs.len() <= index {
            self.inputs.resize(index + 1, None);
        }
        if let Some(slot) = self.inputs.get_mut(index) {
            *slot = id;
        }
    }

    /// Refuses the node if it lacks an attribute that has no default in ONNX.
    pub(crate) fn require(&self, attribute: &str) -> Result<()> {
        if self.attributes.has(attribute) {
            return Ok(());
        }
        Err(GraphError::malformed(format!("node \"{}\": {} without {attribute}", self.name, self.op_type)))
    }

    pub(crate) fn unsupported(&self, why: impl Into<String>) -> GraphError {
        GraphError::UnsupportedOp {
            op: self.op_type.to_owned(),
            node: self.name.clone(),
            opset: self.opset,
            why: why.into(),
        }
    }
}

/// The functions of a model by name, domain and overload.
type Functions<'a> = HashMap<&'a str, HashMap<&'a str, HashMap<&'a str, &'a FunctionProto<'a>>>>;

/// The graph being built, and what is known about its values so far.
pub(crate) struct Importer<'l> {
    graph: Graph,
    /// Values by their names at the node that is imported; `None` for an absent input of a function.
    names: HashMap<String, Option<ValueId>>,
    /// Names that new values cannot have.
    used_names: HashSet<String>,
    /// The number at the end of the last name that was made unique, by the beginning of the name.
    last_numbers: HashMap<String, usize>,
    infos: BTreeMap<ValueId, Info>,
    declared: HashMap<String, (Option<ElementType>, Option<Vec<Dim>>)>,
    /// For each value that is the shape of another one, that other value.
    shape_of: BTreeMap<ValueId, ValueId>,
    domains: BTreeMap<String, i64>,
    /// Version of the operator set of the default domain at the node that is imported.
    opset: i64,
    functions: Functions<'l>,
    /// Where external data are.
    external: ExternalData<'l>,
    /// Bytes of all tensors that were read from external data.
    external_bytes: u64,
    /// Files of these data.
    external_files: BTreeSet<PathBuf>,
    /// The SHA-1 of those files whose tensors state one, by location.
    external_digests: BTreeMap<String, String>,
    /// Number of functions and branches around the node that is imported.
    depth: usize,
    /// Nodes of all functions and branches that were inserted, and these themselves.
    inlined_nodes: usize,
    /// Bytes of all functions and branches that were inserted.
    inlined_bytes: u64,
    limits: &'l GraphLimits,
    /// Budget for computing values that shapes depend on.
    budget: Budget,
}

impl<'l> Importer<'l> {
    fn new(opset: i64, limits: &'l GraphLimits, budget: Budget) -> Self {
        Self {
            graph: Graph { opset, ..Graph::default() },
            names: HashMap::new(),
            used_names: HashSet::new(),
            last_numbers: HashMap::new(),
            infos: BTreeMap::new(),
            declared: HashMap::new(),
            shape_of: BTreeMap::new(),
            domains: BTreeMap::new(),
            opset,
            functions: HashMap::new(),
            external: ExternalData::Refused,
            external_bytes: 0,
            external_files: BTreeSet::new(),
            external_digests: BTreeMap::new(),
            depth: 0,
            inlined_nodes: 0,
            inlined_bytes: 0,
            limits,
            budget,
        }
    }
}

impl Importer<'_> {
    fn read(&mut self, proto: GraphProto<'_>) -> Result<()> {
        if proto.has_sparse {
            return Err(GraphError::unsupported("sparse initializers"));
        }
        let outputs = proto.nodes.iter().flat_map(|node| node.outputs.iter().copied());
        let given = proto.initializers.iter().map(|tensor| tensor.name).chain(proto.inputs.iter().map(|i| i.name));
        self.used_names = outputs.chain(given).map(str::to_owned).collect();
        for info in proto.value_infos.iter().chain(&proto.outputs) {
            let dtype = ElementType::from_onnx_code(info.element);
            self.declared.insert(info.name.to_owned(), (dtype, info.shape.clone()));
        }
        for tensor in proto.initializers {
            self.initializer(tensor)?;
        }
        for info in &proto.inputs {
            // Old files also list the initializers as inputs.
            if self.value_named(info.name).is_some_and(|id| self.graph.initializers.contains_key(&id)) {
                continue;
            }
            let dtype = element_type(info)?;
            if let Some(shape) = &info.shape {
                check_limit("rank", format!("input \"{}\"", info.name), shape.len() as u128, self.limits.rank as u128)?;
            }
            let given = Info::new(dtype, info.shape.clone());
            self.check_size(&given, info.name)?;
            let id = self.define(info.name, given)?;
            self.graph.inputs.push(id);
        }
        let needed: Vec<&str> = proto.outputs.iter().map(|info| info.name).collect();
        self.nodes(&proto.nodes, &needed, None)?;
        for info in &proto.outputs {
            let id = self.value_named(info.name);
            let id = id.ok_or_else(|| GraphError::malformed(format!("output \"{}\" is never produced", info.name)))?;
            self.graph.outputs.push(id);
        }
        for (&id, info) in &self.infos {
            if let Some(value) = self.graph.values.get_mut(id.index()) {
                value.dtype = info.dtype;
                value.shape = info.shape.clone();
            }
        }
        Ok(())
    }

    fn initializer(&mut self, tensor: TensorProto<'_>) -> Result<()> {
        let name = tensor.name;
        let tensor = Arc::new(self.stored(tensor)?);
        self.define(name, Info::of(&tensor))?;
        self.constant(name, tensor);
        Ok(())
    }

    /// Reads a stored tensor, which may be in another file.
    fn stored(&mut self, tensor: TensorProto<'_>) -> Result<Tensor> {
        let (name, is_external) = (tensor.name, tensor.is_external);
        let [location, checksum] = ["location", "checksum"]
            .map(|key| tensor.external.iter().find(|(found, _)| *found == key).map(|(_, value)| *value));
        let tensor = tensor_from_proto(tensor, &self.external, self.limits)?;
        if is_external {
            // Many tensors may state the same part of a file.
            let bytes = tensor.len().saturating_mul(tensor.dtype().size_bytes()) as u64;
            self.external_bytes = self.external_bytes.saturating_add(bytes);
            let (requested, allowed) = (self.external_bytes.into(), self.limits.model_bytes.into());
            check_limit("model_bytes", "the external data of all tensors", requested, allowed)?;
            if let (ExternalData::Folder(folder), Some(location)) = (self.external, location) {
                self.external_files.insert(folder.join(location));
            }
            if let (Some(location), Some(checksum)) = (location, checksum) {
                self.check_external_file(name, location, checksum)?;
            }
        }
        Ok(tensor)
    }

    /// Compares an external file with the SHA-1 that a tensor states.
    fn check_external_file(&mut self, tensor: &str, location: &str, checksum: &str) -> Result<()> {
        let found = match self.external_digests.get(location) {
            Some(found) => found.clone(),
            None => {
                let found = self.external.sha1(location)?;
                self.external_digests.insert(location.to_owned(), found.clone());
                found
            }
        };
        if checksum.trim().eq_ignore_ascii_case(&found) {
            return Ok(());
        }
        Err(GraphError::malformed(format!(
            "external file \"{location}\" has the SHA-1 {found}, but tensor \"{tensor}\" expects \"{checksum}\": the file belongs \
             to another model or was changed; export or download the model again"
        )))
    }

    fn value_named(&self, name: &str) -> Option<ValueId> {
        self.names.get(name).copied().flatten()
    }

    /// Adds a value with this name; inside a function or branch, where names may be those of other values, it gets an
    /// unused one in the graph.
    fn define(&mut self, name: &str, info: Info) -> Result<ValueId> {
        if name.is_empty() {
            return Err(GraphError::malformed("a value has no name"));
        }
        let unused = if self.depth == 0 { name.to_owned() } else { self.unique_name(name) };
        self.used_names.insert(unused.clone());
        let value = Value { name: unused, dtype: info.dtype, shape: info.shape.clone() };
        let id = self.graph.push_value(value);
        if self.names.insert(name.to_owned(), Some(id)).is_some() {
            return Err(GraphError::malformed(format!("two values are named \"{name}\"")));
        }
        self.infos.insert(id, info);
        Ok(id)
    }

    fn constant(&mut self, name: &str, tensor: Arc<Tensor>) {
        if let Some(id) = self.value_named(name) {
            self.graph.initializers.insert(id, tensor);
        }
    }

    /// Returns a name that no value has yet.
    fn unique_name(&mut self, base: &str) -> String {
        let is_taken = |name: &str| self.used_names.contains(name) || self.declared.contains_key(name);
        if !is_taken(base) {
            return base.to_owned();
        }
        // Names that were found to be taken are not looked up again: a file may declare very many of them.
        let mut number = self.last_numbers.get(base).copied().unwrap_or(0).max(self.graph.values.len());
        let mut name = format!("{base}_{number}");
        while is_taken(&name) {
            number += 1;
            name = format!("{base}_{number}");
        }
        self.last_numbers.insert(base.to_owned(), number);
        name
    }

    /// Adds a constant under an unused name that starts with `base`; returns its value.
    pub(crate) fn add_constant(&mut self, base: &str, tensor: Tensor) -> Result<ValueId> {
        let name = self.unique_name(base);
        let tensor = Arc::new(tensor);
        let id = self.define(&name, Info::of(&tensor))?;
        self.constant(&name, tensor);
        Ok(id)
    }

    /// Adds a constant vector of integers.
    pub(crate) fn add_ints(&mut self, base: &str, values: &[i64]) -> Result<ValueId> {
        self.add_constant(base, Tensor::vector(values.to_vec()))
    }

    /// Adds a node that the file does not have, with one output.
    pub(crate) fn emit(&mut self, base: &str, op: Op, inputs: &[Option<ValueId>]) -> Result<ValueId> {
        check_limit("nodes", "the graph", self.graph.nodes.len() as u128, self.limits.nodes as u128)?;
        let name = self.unique_name(base);
        let id = self.define(&name, Info::default())?;
        self.finish(Node { name, op, inputs: inputs.to_vec(), outputs: vec![Some(id)] })?;
        Ok(id)
    }

    /// Returns what is known about a value.
    pub(crate) fn info(&self, id: Option<ValueId>) -> Option<&Info> {
        self.infos.get(&id?)
    }

    pub(crate) fn rank(&self, id: Option<ValueId>) -> Option<usize> {
        self.info(id)?.rank()
    }

    /// Checks the size of a value whose shape the file declares.
    fn check_size(&self, info: &Info, name: &str) -> Result<()> {
        let Some(shape) = info.fixed_shape() else { return Ok(()) };
        checked_elements(&shape, "tensor_elements", &format!("\"{name}\""), self.limits.tensor_elements).map(|_| ())
    }

    /// Adds a node whose outputs are defined, and infers their types and shapes.
    fn finish(&mut self, node: Node) -> Result<()> {
        let found = infer_node(&node, &self.infos, self.limits, &self.budget).map_err(|e| match e.kind() {
            GraphErrorKind::Misused => GraphError::malformed(e.to_string()),
            _ => e,
        })?;
        let lengths = self.gathered_lengths(&node);
        for (id, mut info) in node.outputs.iter().zip(found) {
            let Some(id) = id else { continue };
            info.value = info.value.or_else(|| lengths.clone());
            if let Some((dtype, shape)) = self.declared.get(&self.graph.value(*id).name) {
                info.dtype = info.dtype.or(*dtype);
                info.shape = merged_shape(info.shape, shape.as_deref());
                self.check_size(&info, &node.name)?;
            }
            self.infos.insert(*id, info);
        }
        if let (Op::Shape { start: 0, end: None }, Some(x), Some(shape)) = (&node.op, node.input(0), node.output(0)) {
            self.shape_of.insert(shape, x);
        }
        self.graph.nodes.push(node);
        Ok(())
    }

    /// Returns the lengths that a `Gather` takes from the shape of a value, if these are fixed; other axes may be free.
    fn gathered_lengths(&self, node: &Node) -> Option<Arc<Tensor>> {
        let Op::Gather { axis: 0 } = node.op else { return None };
        let shape = self.info(self.shape_of.get(&node.input(0)?).copied())?.shape.as_ref()?;
        // More indices than there can be axes are not those of a shape, and the lengths of each node would be kept.
        let axes = self.info(node.input(1))?.value.as_ref().filter(|axes| axes.len() <= self.limits.rank)?;
        let length = |axis: i64| {
            let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
            Some(shape.get(usize::try_from(axis).ok()?)?.fixed()? as i64)
        };
        let lengths: Vec<i64> = axes.to_i64_vec()?.into_iter().map(length).collect::<Option<_>>()?;
        Tensor::new(axes.shape(), lengths).ok().map(Arc::new)
    }

    /// Returns the values that a node reads; `None` for an absent optional input.
    fn inputs(&self, proto: &NodeProto<'_>, name: &str) -> Result<Vec<Option<ValueId>>> {
        let mut inputs = Vec::with_capacity(proto.inputs.len());
        for input in &proto.inputs {
            inputs.push(match *input {
                "" => None,
                read => *self.names.get(read).ok_or_else(|| {
                    GraphError::malformed(format!("node \"{name}\" reads \"{read}\", which no node produces"))
                })?,
            });
        }
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        Ok(inputs)
    }

    fn node(&mut self, proto: &NodeProto<'_>, call: Option<&Arguments<'_>>) -> Result<()> {
        let first_output = proto.outputs.iter().find(|o| !o.is_empty()).copied().unwrap_or_default();
        let name = if proto.name.is_empty() { first_output } else { proto.name };
        let overloads = self.functions.get(proto.op_type).and_then(|by_domain| by_domain.get(proto.domain));
        if let Some(function) = overloads.and_then(|overloads| overloads.get(proto.overload).copied()) {
            return self.call(function, proto, name, call);
        }
        let is_contrib = proto.domain == contrib::DOMAIN;
        if !is_default(proto.domain) && !is_contrib {
            return Err(GraphError::UnsupportedOp {
                op: format!("{}.{}", proto.domain, proto.op_type),
                node: name.to_owned(),
                opset: self.domains.get(proto.domain).copied().unwrap_or(1),
                why: match proto.domain {
                    contrib::CHANNELS_IN_BLOCKS => format!(
                        "operators of domain \"{}\" are written for one kind of CPU; use the model from which ONNX Runtime made \
                         this file, or save it with extended optimizations",
                        proto.domain
                    ),
                    domain => format!(
                        "operators of domain \"{domain}\" are not supported; export the model with operators of ONNX's default \
                         domain"
                    ),
                },
            });
        }
        let mut pending = Pending {
            name: shortened(name).to_owned(),
            op_type: proto.op_type,
            opset: self.opset,
            attributes: Attributes::new(&proto.attributes, call)?,
            inputs: self.inputs(proto, name)?,
            outputs: Vec::new(),
        };
        if proto.op_type == "If" && !is_contrib {
            return self.branch(&pending, &proto.outputs, call);
        }
        if proto.op_type == "Constant" && !is_contrib {
            let tensor = Arc::new(operators::constant(self, &pending)?);
            self.define(first_output, Info::of(&tensor))?;
            self.constant(first_output, tensor);
            return pending.attributes.refuse_unread(&pending);
        }
        // Outputs are defined after the nodes that the conversion emits, so that those cannot read them.
        let wanted: Vec<&str> = proto.outputs.clone();
        pending.outputs = vec![None; wanted.len()];
        let op = if is_contrib {
            let version = self.domains.get(proto.domain).copied().unwrap_or(1);
            contrib::convert(self, &mut pending).map_err(|e| in_domain(e, contrib::DOMAIN, version))?
        } else {
            convert(self, &mut pending, &wanted)?
        };
        pending.attributes.refuse_unread(&pending)?;
        for (slot, wanted) in pending.outputs.iter_mut().zip(&wanted) {
            if !wanted.is_empty() {
                *slot = Some(self.define(wanted, Info::default())?);
            }
        }
        if !matches!(op, Op::Split { .. }) {
            while pending.outputs.last() == Some(&None) {
                pending.outputs.pop();
            }
        }
        self.finish(Node { name: name.to_owned(), op, inputs: pending.inputs, outputs: pending.outputs })
    }
}

/// Largest number of bytes of a node's name that the names of emitted nodes begin with. A node with very many inputs and a long name
/// could otherwise make the names of the nodes that it becomes take far more memory than the file.
const MAX_NAME_BYTES: usize = 256;

/// Returns the beginning of a name.
fn shortened(name: &str) -> &str {
    let end = (0..=MAX_NAME_BYTES.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    name.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// Returns the operator of `node`; the conversion may emit further nodes. `wanted` are the names of the outputs, empty
/// where one is not used.
fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>, wanted: &[&str]) -> Result<Op> {
    if let Some(op) = crate::ops::convert(im, node)? {
        return Ok(op);
    }
    if let Some(op) = layers::convert(im, node, wanted)? {
        return Ok(op);
    }
    if let Some(op) = composed::convert(im, node)? {
        return Ok(op);
    }
    operators::convert(im, node, wanted)
}

fn element_type(info: &ValueInfo<'_>) -> Result<Option<ElementType>> {
    if info.not_tensor {
        return Err(GraphError::unsupported(format!("input \"{}\" is not a tensor", info.name)));
    }
    let dtype = ElementType::from_onnx_code(info.element);
    if dtype.is_none() && info.element != 0 {
        return Err(GraphError::unsupported(format!(
            "input \"{}\" has ONNX type {}; export the model with inputs of numbers or booleans",
            info.name, info.element
        )));
    }
    Ok(dtype)
}

//! Messages of `onnx.proto`, borrowed from the bytes of the file.

use super::wire::Reader;
use cytoscope_graph::{Dim, GraphError, GraphLimits, Result, check_limit};

/// Maximum number of values (initializers, inputs, outputs, declared shapes) per permitted node: a convolution has a
/// weight, a bias and a declared output, a quantized one has six more.
const VALUES_PER_NODE: usize = 16;
/// Maximum number of attributes of one node; no ONNX operator has more than 20.
const MAX_ATTRIBUTES: usize = 64;
/// Maximum number of operator sets of a model; real files have one for each domain.
const MAX_OPSETS: usize = 1024;
/// Maximum number of axes of one value in a file; [`GraphLimits::rank`] allows fewer.
const MAX_AXES: usize = 1024;

/// `ModelProto`
#[derive(Debug, Default)]
pub(crate) struct ModelProto<'a> {
    /// Version of the file format, 0 if absent.
    pub ir_version: i64,
    /// Domain and version of each operator set.
    pub opsets: Vec<(&'a str, i64)>,
    /// Keys and values of `metadata_props`.
    pub metadata: Vec<(&'a str, &'a str)>,
    /// The graph, without which a model is refused.
    pub graph: Option<GraphProto<'a>>,
    /// Functions that the model defines, which nodes call like operators.
    pub functions: Vec<FunctionProto<'a>>,
}

/// `FunctionProto`
#[derive(Debug, Default)]
pub(crate) struct FunctionProto<'a> {
    /// Operator type of the nodes that call the function.
    pub name: &'a str,
    /// Domain of these nodes.
    pub domain: &'a str,
    /// Name that distinguishes functions of the same name and domain; usually empty.
    pub overload: &'a str,
    /// Names of the inputs inside the function.
    pub inputs: Vec<&'a str>,
    /// Names of the outputs inside the function.
    pub outputs: Vec<&'a str>,
    /// Nodes in the order of the file.
    pub nodes: Vec<NodeProto<'a>>,
    /// Attributes that a call may leave out, with their values.
    pub defaults: Vec<Attribute<'a>>,
    /// Version of the operator set of the default domain, if stated.
    pub opset: Option<i64>,
    /// Bytes of the message.
    pub size: u64,
}

/// `GraphProto`
#[derive(Debug, Default)]
pub(crate) struct GraphProto<'a> {
    /// Name of the graph; may be empty.
    pub name: &'a str,
    /// Nodes in the order of the file, which need not be that of execution.
    pub nodes: Vec<NodeProto<'a>>,
    /// Tensors with constant values.
    pub initializers: Vec<TensorProto<'a>>,
    /// Inputs of the graph; files of old versions list the initializers here, too.
    pub inputs: Vec<ValueInfo<'a>>,
    /// Outputs of the graph.
    pub outputs: Vec<ValueInfo<'a>>,
    /// Types and shapes that the file declares for values inside the graph.
    pub value_infos: Vec<ValueInfo<'a>>,
    /// Whether there are sparse initializers, which are not supported.
    pub has_sparse: bool,
}

/// `NodeProto`
#[derive(Debug, Default)]
pub(crate) struct NodeProto<'a> {
    /// Name of the node; may be empty.
    pub name: &'a str,
    /// ONNX name of the operator.
    pub op_type: &'a str,
    /// Domain of the operator; empty for that of ONNX.
    pub domain: &'a str,
    /// Which of several functions of the same name is called; usually empty.
    pub overload: &'a str,
    /// Names of the values that are read; empty for an absent optional input.
    pub inputs: Vec<&'a str>,
    /// Names of the values that are computed; empty for an output that is not used.
    pub outputs: Vec<&'a str>,
    /// At most [`MAX_ATTRIBUTES`].
    pub attributes: Vec<Attribute<'a>>,
}

/// `AttributeProto`
#[derive(Debug)]
pub(crate) struct Attribute<'a> {
    /// Name that the operator gives to the attribute.
    pub name: &'a str,
    /// The value; texts and raw tensors are borrowed from the file.
    pub value: AttributeValue<'a>,
}

/// Payload of an `AttributeProto`: the field that its type selects.
#[derive(Debug)]
pub(crate) enum AttributeValue<'a> {
    Float(f32),
    Int(i64),
    Text(&'a [u8]),
    Tensor(Box<TensorProto<'a>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    /// A subgraph, not decoded.
    Graph(&'a [u8]),
    /// The name of an attribute of the function that contains the node.
    Reference(&'a str),
    /// A type, or anything else that no supported operator uses.
    Other,
}

/// `TensorProto`
#[derive(Debug, Default)]
pub(crate) struct TensorProto<'a> {
    /// Name of the value that the tensor initializes; empty in attributes.
    pub name: &'a str,
    /// Length of each axis, not checked.
    pub dims: Vec<i64>,
    /// `TensorProto.DataType`, 0 if absent.
    pub data_type: i32,
    /// Elements as little-endian bytes, which take precedence over the lists of numbers.
    pub raw: Option<&'a [u8]>,
    /// Elements of type f32.
    pub floats: Vec<f32>,
    /// Elements of integer and 16-bit float types, from `int32_data` and `int64_data`.
    pub ints: Vec<i64>,
    /// Elements of type f64.
    pub doubles: Vec<f64>,
    /// Elements of unsigned 32- and 64-bit types, from `uint64_data`, with the same bits.
    pub uints: Vec<i64>,
    /// Keys and values that say where elements outside of the file are: `location`, `offset`, `length`.
    pub external: Vec<(&'a str, &'a str)>,
    /// Whether the elements are outside of the file.
    pub is_external: bool,
    /// Whether the elements are strings, which are not supported.
    pub has_strings: bool,
}

/// `ValueInfoProto`
#[derive(Debug, Default)]
pub(crate) struct ValueInfo<'a> {
    /// Name of the value.
    pub name: &'a str,
    /// `TensorProto.DataType`, 0 if absent.
    pub element: i32,
    /// Lengths of the axes; one that the file neither states nor names gets a name from the value's name and the axis.
    /// `None` if the file declares no shape.
    pub shape: Option<Vec<Dim>>,
    /// A sequence, map, optional or sparse tensor.
    pub not_tensor: bool,
}

/// Returns `key` and `value` of a `StringStringEntryProto` (fields 1 and 2).
fn pair(bytes: &[u8]) -> Result<(&str, &str)> {
    let mut reader = Reader::new(bytes, "StringStringEntryProto");
    let (mut key, mut value) = ("", "");
    while let Some((field, raw)) = reader.next()? {
        match field {
            1 => key = reader.text(field, raw)?,
            2 => value = reader.text(field, raw)?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// Returns domain and version of an `OperatorSetIdProto`.
fn opset(bytes: &[u8]) -> Result<(&str, i64)> {
    let mut reader = Reader::new(bytes, "OperatorSetIdProto");
    let (mut domain, mut version) = ("", 0);
    while let Some((field, raw)) = reader.next()? {
        match field {
            1 => domain = reader.text(field, raw)?,
            2 => version = reader.int(field, raw)?,
            _ => {}
        }
    }
    Ok((domain, version))
}

impl<'a> ModelProto<'a> {
    /// Counts of messages are checked during reading: a message of two bytes takes a hundred bytes in memory.
    pub(crate) fn decode(bytes: &'a [u8], limits: &GraphLimits) -> Result<Self> {
        let mut reader = Reader::new(bytes, "ModelProto");
        let mut model = Self::default();
        let mut function_nodes = 0;
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => model.ir_version = reader.int(field, raw)?,
                7 => model.graph = Some(GraphProto::decode(reader.bytes(field, raw)?, limits)?),
                8 if model.opsets.len() >= MAX_OPSETS => {
                    return Err(GraphError::malformed(format!("a model states more than {MAX_OPSETS} operator sets")));
                }
                8 => model.opsets.push(opset(reader.bytes(field, raw)?)?),
                14 => {
                    let count = model.metadata.len() as u128 + 1;
                    check_limit("nodes", "the number of metadata entries of the model", count, limits.nodes as u128)?;
                    model.metadata.push(pair(reader.bytes(field, raw)?)?);
                }
                25 => {
                    let function = FunctionProto::decode(reader.bytes(field, raw)?, limits)?;
                    function_nodes += 1 + function.nodes.len();
                    check_limit("nodes", "the model's functions", function_nodes as u128, limits.nodes as u128)?;
                    model.functions.push(function);
                }
                _ => {}
            }
        }
        Ok(model)
    }
}

impl<'a> FunctionProto<'a> {
    fn decode(bytes: &'a [u8], limits: &GraphLimits) -> Result<Self> {
        let mut reader = Reader::new(bytes, "FunctionProto");
        let mut function = Self { size: bytes.len() as u64, ..Self::default() };
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => function.name = reader.text(field, raw)?,
                4 => function.inputs.push(reader.text(field, raw)?),
                5 => function.outputs.push(reader.text(field, raw)?),
                7 => function.nodes.push(NodeProto::decode(reader.bytes(field, raw)?)?),
                9 => {
                    let (domain, version) = opset(reader.bytes(field, raw)?)?;
                    if matches!(domain, "" | "ai.onnx") {
                        function.opset = Some(version);
                    }
                }
                10 => function.domain = reader.text(field, raw)?,
                11 => function.defaults.push(Attribute::decode(reader.bytes(field, raw)?)?),
                13 => function.overload = reader.text(field, raw)?,
                _ => {}
            }
            check_limit("nodes", "a function", function.nodes.len() as u128, limits.nodes as u128)?;
            if function.defaults.len() > MAX_ATTRIBUTES {
                return Err(GraphError::malformed(format!("a function has more than {MAX_ATTRIBUTES} attributes")));
            }
        }
        Ok(function)
    }
}

impl<'a> GraphProto<'a> {
    pub(crate) fn decode(bytes: &'a [u8], limits: &GraphLimits) -> Result<Self> {
        let mut reader = Reader::new(bytes, "GraphProto");
        let mut graph = Self::default();
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => graph.nodes.push(NodeProto::decode(reader.bytes(field, raw)?)?),
                2 => graph.name = reader.text(field, raw)?,
                5 => graph.initializers.push(TensorProto::decode(reader.bytes(field, raw)?)?),
                11 => graph.inputs.push(ValueInfo::decode(reader.bytes(field, raw)?)?),
                12 => graph.outputs.push(ValueInfo::decode(reader.bytes(field, raw)?)?),
                13 => graph.value_infos.push(ValueInfo::decode(reader.bytes(field, raw)?)?),
                15 => graph.has_sparse = true,
                _ => {}
            }
            check_limit("nodes", "the graph", graph.nodes.len() as u128, limits.nodes as u128)?;
            let values = graph.initializers.len() + graph.inputs.len() + graph.outputs.len() + graph.value_infos.len();
            let most = limits.nodes.saturating_mul(VALUES_PER_NODE);
            check_limit("nodes", "the number of values in the graph", values as u128, most as u128)?;
        }
        Ok(graph)
    }
}

impl<'a> NodeProto<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "NodeProto");
        let mut node = Self::default();
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => node.inputs.push(reader.text(field, raw)?),
                2 => node.outputs.push(reader.text(field, raw)?),
                3 => node.name = reader.text(field, raw)?,
                4 => node.op_type = reader.text(field, raw)?,
                5 if node.attributes.len() >= MAX_ATTRIBUTES => {
                    return Err(GraphError::malformed(format!("a node has more than {MAX_ATTRIBUTES} attributes")));
                }
                5 => node.attributes.push(Attribute::decode(reader.bytes(field, raw)?)?),
                7 => node.domain = reader.text(field, raw)?,
                8 => node.overload = reader.text(field, raw)?,
                _ => {}
            }
        }
        Ok(node)
    }
}

impl<'a> Attribute<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "AttributeProto");
        let mut name = "";
        let (mut float, mut int, mut text, mut tensor, mut other) = (None, None, None, None, false);
        let (mut graph, mut reference) = (None, None);
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        let mut kind = 0;
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => name = reader.text(field, raw)?,
                2 => float = Some(reader.float(field, raw)?),
                3 => int = Some(reader.int(field, raw)?),
                4 => text = Some(reader.bytes(field, raw)?),
                5 => tensor = Some(TensorProto::decode(reader.bytes(field, raw)?)?),
                7 => reader.floats(field, raw, &mut floats)?,
                8 => reader.ints(field, raw, &mut ints)?,
                6 => graph = Some(reader.bytes(field, raw)?),
                9 | 10 | 11 | 14 | 15 | 22 | 23 => other = true,
                21 => reference = Some(reader.text(field, raw)?).filter(|name| !name.is_empty()),
                20 => kind = reader.int(field, raw)?,
                _ => {}
            }
        }
        if let Some(reference) = reference {
            return Ok(Self { name, value: AttributeValue::Reference(reference) });
        }
        if let Some(graph) = graph {
            return Ok(Self { name, value: AttributeValue::Graph(graph) });
        }
        // Writers omit zeros and empty lists; then only the declared type tells which value was meant.
        let value = match kind {
            1 => AttributeValue::Float(float.unwrap_or(0.0)),
            2 => AttributeValue::Int(int.unwrap_or(0)),
            3 => AttributeValue::Text(text.unwrap_or_default()),
            6 => AttributeValue::Floats(floats),
            7 => AttributeValue::Ints(ints),
            _ => match (tensor, float, int, text) {
                (Some(t), ..) => AttributeValue::Tensor(Box::new(t)),
                _ if other || kind != 0 => AttributeValue::Other,
                (_, Some(f), ..) => AttributeValue::Float(f),
                (_, _, Some(i), _) => AttributeValue::Int(i),
                (_, _, _, Some(s)) => AttributeValue::Text(s),
                _ if !floats.is_empty() => AttributeValue::Floats(floats),
                _ => AttributeValue::Ints(ints),
            },
        };
        Ok(Self { name, value })
    }
}

impl<'a> TensorProto<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "TensorProto");
        let mut tensor = Self::default();
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => reader.ints(field, raw, &mut tensor.dims)?,
                2 => tensor.data_type = reader.int(field, raw)? as i32,
                4 => reader.floats(field, raw, &mut tensor.floats)?,
                5 | 7 => reader.ints(field, raw, &mut tensor.ints)?,
                6 => tensor.has_strings = true,
                8 => tensor.name = reader.text(field, raw)?,
                9 => tensor.raw = Some(reader.bytes(field, raw)?),
                10 => reader.doubles(field, raw, &mut tensor.doubles)?,
                11 => reader.ints(field, raw, &mut tensor.uints)?,
                13 => tensor.external.push(pair(reader.bytes(field, raw)?)?),
                14 => tensor.is_external = reader.int(field, raw)? == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }
}

impl<'a> ValueInfo<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "ValueInfoProto");
        let mut info = Self::default();
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => info.name = reader.text(field, raw)?,
                2 => {
                    let mut kind = Reader::new(reader.bytes(field, raw)?, "TypeProto");
                    while let Some((field, raw)) = kind.next()? {
                        match field {
                            1 => info.tensor_type(kind.bytes(field, raw)?)?,
                            4 | 5 | 7 | 8 | 9 => info.not_tensor = true,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some(shape) = &mut info.shape {
            for (axis, dim) in shape.iter_mut().enumerate() {
                if *dim == Dim::Free(String::new()) {
                    *dim = Dim::Free(format!("{}_{axis}", info.name));
                }
            }
        }
        Ok(info)
    }

    fn tensor_type(&mut self, bytes: &'a [u8]) -> Result<()> {
        let mut reader = Reader::new(bytes, "TypeProto.Tensor");
        while let Some((field, raw)) = reader.next()? {
            match field {
                1 => self.element = reader.int(field, raw)? as i32,
                2 => {
                    let mut shape = Vec::new();
                    let mut inner = Reader::new(reader.bytes(field, raw)?, "TensorShapeProto");
                    while let Some((field, raw)) = inner.next()? {
                        if field == 1 && shape.len() >= MAX_AXES {
                            return Err(GraphError::malformed(format!("a value has more than {MAX_AXES} axes")));
                        }
                        if field == 1 {
                            shape.push(dim(inner.bytes(field, raw)?)?);
                        }
                    }
                    self.shape = Some(shape);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns a dimension: a length, a name, or (with an empty name) an unknown length. Negative lengths count as unknown.
fn dim(bytes: &[u8]) -> Result<Dim> {
    let mut reader = Reader::new(bytes, "Dimension");
    let mut result = Dim::Free(String::new());
    while let Some((field, raw)) = reader.next()? {
        match field {
            1 => {
                if let Ok(n) = usize::try_from(reader.int(field, raw)?) {
                    result = Dim::Fixed(n);
                }
            }
            2 => result = Dim::Free(reader.text(field, raw)?.to_owned()),
            _ => {}
        }
    }
    Ok(result)
}

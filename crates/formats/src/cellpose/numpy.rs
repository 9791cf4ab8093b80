//! NumPy arrays in a pickle: which functions a file may call, and which array such a call describes.

use crate::{error::Fault, source::Source};
use cytoscope_pickle::{ByteSource, Pickle, PickleError, Value, ValueId};
use std::io;

/// Maximum length of the code of a sample type in bytes.
const MAX_CODE_BYTES: usize = 32;
/// Maximum number of axes of an array.
const MAX_AXES: usize = 64;
/// Modules of the functions that rebuild arrays and scalars, of NumPy 2 and 1.
const MULTIARRAY: [&str; 2] = ["numpy._core.multiarray", "numpy.core.multiarray"];
/// Modules of the function that rebuilds arrays in protocol 5, of NumPy 2 and 1.
const NUMERIC: [&str; 2] = ["numpy._core.numeric", "numpy.core.numeric"];

/// Modules of the paths of files, which Cellpose stores if it was given them: from Python 3.13 on, and before.
const PATHS: [&str; 2] = ["pathlib._local", "pathlib"];

/// An array as the pickle describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ArrayValue {
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// NumPy's type code without byte order, such as `u2`.
    pub code: String,
    /// Whether the samples are big-endian; false for types of single bytes.
    pub big_endian: bool,
    /// Distances between neighbors along the axes, in samples.
    pub strides: Vec<usize>,
    /// The samples ([`Value::Bytes`]), or the objects of an object array ([`Value::List`]).
    pub data: ValueId,
}

impl ByteSource for Source {
    fn len_bytes(&self) -> u64 {
        self.len()
    }

    fn read_exact_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match self.read_at(at, into) {
            Ok(()) => Ok(()),
            Err(Fault::Io(_, error)) => Err(error),
            Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Reads a pickle of NumPy arrays that begins at a position of a file. Arrays are skipped, so they take no memory.
pub(super) fn read(source: &Source, at: u64) -> Result<Pickle, Fault> {
    Pickle::read_at(source, at, &is_accepted).map_err(fault)
}

/// Whether a file may name this class or function.
fn is_accepted(module: &str, name: &str) -> bool {
    match name {
        "_reconstruct" | "scalar" => MULTIARRAY.contains(&module),
        "_frombuffer" => NUMERIC.contains(&module),
        "ndarray" | "dtype" => module == "numpy",
        "PosixPath" | "WindowsPath" | "PurePosixPath" | "PureWindowsPath" => PATHS.contains(&module),
        _ => false,
    }
}

fn fault(error: PickleError) -> Fault {
    let next_step = "save the masks as TIFF (in Cellpose: File > Save masks as PNG/tif, or --save_tif)";
    match error {
        PickleError::Malformed { .. } => Fault::malformed(error.to_string()),
        PickleError::Opcode { .. } => Fault::unsupported(error.to_string(), next_step),
        PickleError::Global { module, name } => Fault::unsupported(
            format!("it contains a Python object of the type {module}.{name}, but only NumPy arrays can be read"),
            next_step,
        ),
        PickleError::OverLimit { .. } => Fault::OverLimit(error.to_string().into(), next_step.into()),
        PickleError::Io(error) => Fault::Io("reading", error),
    }
}

/// Returns the array that a value describes; `None` if it describes no array.
///
/// # Errors
/// [`Fault::Malformed`] if the description is not as NumPy writes it.
pub(super) fn array(pickle: &Pickle, id: ValueId) -> Result<Option<ArrayValue>, Fault> {
    let Some((function, call)) = pickle.call(id) else { return Ok(None) };
    // Both calls have the same four parts: the state (version, shape, type, order, data), and the arguments (data, type,
    // shape, order, and the order of the axes from NumPy 2.3 on).
    let (shape, sample, data, order) = if function.is(&MULTIARRAY, "_reconstruct") {
        let state = call.state.and_then(|state| pickle.tuple(state)).ok_or_else(damaged)?;
        let &[_, shape, sample, is_fortran, data, ..] = state else { return Err(damaged()) };
        let Value::Bool(is_fortran) = pickle.value(is_fortran) else { return Err(damaged()) };
        (shape, sample, data, if *is_fortran { Order::Fortran } else { Order::C })
    } else if function.is(&NUMERIC, "_frombuffer") {
        let &[data, sample, shape, order, ref axes @ ..] = call.arguments.as_slice() else { return Err(damaged()) };
        let order = match (pickle.text(order), axes) {
            (Some("C"), _) => Order::C,
            (Some("F"), _) => Order::Fortran,
            (Some("K"), [axes, ..]) => Order::Axes(counts(pickle, *axes).ok_or_else(damaged)?),
            _ => return Err(damaged()),
        };
        (shape, sample, data, order)
    } else {
        return Ok(None);
    };
    let (shape, strides) = counts(pickle, shape).and_then(|shape| order.arrange(shape)).ok_or_else(damaged)?;
    let (code, big_endian) = sample_type(pickle, sample).ok_or_else(damaged)?;
    Ok(Some(ArrayValue { shape, strides, code, big_endian, data }))
}

/// How the samples of an array follow each other.
enum Order {
    /// The last axis varies fastest.
    C,
    /// The first axis varies fastest.
    Fortran,
    /// The samples have C order, and axis `i` of the array is axis `axes[i]` of the stated shape.
    Axes(Vec<usize>),
}

impl Order {
    /// Shape and strides of an array whose shape is stated; `None` if the order of its axes is not a permutation.
    fn arrange(self, stated: Vec<usize>) -> Option<(Vec<usize>, Vec<usize>)> {
        let rank = stated.len();
        let mut strides = vec![0; rank];
        let mut fastest_first: Vec<usize> = (0..rank).collect();
        if !matches!(self, Self::Fortran) {
            fastest_first.reverse();
        }
        let mut step = 1usize;
        for axis in fastest_first {
            *strides.get_mut(axis)? = step;
            // Whether the samples fit is checked by the product of all extents.
            step = step.saturating_mul(*stated.get(axis)?);
        }
        let Self::Axes(axes) = self else { return Some((stated, strides)) };
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            return None;
        }
        let arranged = |of: &[usize]| axes.iter().map(|axis| of.get(*axis).copied()).collect::<Option<Vec<usize>>>();
        Some((arranged(&stated)?, arranged(&strides)?))
    }
}

/// The whole numbers of a tuple with one for each axis.
fn counts(pickle: &Pickle, id: ValueId) -> Option<Vec<usize>> {
    let values = pickle.tuple(id).filter(|values| values.len() <= MAX_AXES)?;
    values.iter().map(|value| pickle.count(*value)).collect()
}

/// Code of a sample type, and whether it is big-endian.
fn sample_type(pickle: &Pickle, id: ValueId) -> Option<(String, bool)> {
    let (_, call) = pickle.call(id).filter(|(function, _)| function.is(&["numpy"], "dtype"))?;
    let code = pickle.text(*call.arguments.first()?).filter(|code| code.len() <= MAX_CODE_BYTES)?;
    // The state is a version, the byte order, and further parts.
    let order = call.state.and_then(|state| pickle.tuple(state)).and_then(|state| state.get(1));
    Some((code.to_owned(), order.and_then(|order| pickle.text(*order)) == Some(">")))
}

fn damaged() -> Fault {
    Fault::malformed("its pickled arrays do not have the form that NumPy writes")
}

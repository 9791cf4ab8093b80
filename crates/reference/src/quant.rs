//! Quantization: rounding half to even, saturating.

use super::{Call, wrong_type};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{ElementType, GraphError, Op, Result, Tensor, TensorData};

/// Returns the smallest and largest value of a quantized type.
fn bounds(t: ElementType) -> Result<(f64, f64)> {
    Ok(match t {
        ElementType::U8 => (0.0, 255.0),
        ElementType::I8 => (-128.0, 127.0),
        ElementType::U16 => (0.0, 65535.0),
        ElementType::I16 => (-32768.0, 32767.0),
        ElementType::I32 => (-2147483648.0, 2147483647.0),
        other => return Err(wrong_type(other)),
    })
}

/// Maps each element of a tensor to its entry of the scale.
struct ScaleMap {
    shape: Vec<usize>,
    axis: usize,
    block: usize,
    entries: usize,
}

impl ScaleMap {
    fn new(shape: &[usize], scale: &Tensor, axis: i64, block: usize) -> Result<Self> {
        let axis = if scale.len() == 1 { 0 } else { resolve_axis(axis, shape.len())? };
        Ok(Self { shape: shape.to_vec(), axis, block, entries: scale.len() })
    }

    fn entry(&self, index: usize) -> usize {
        if self.entries == 1 {
            return 0;
        }
        let inner: usize = self.shape[self.axis + 1..].iter().product();
        let length = self.shape[self.axis];
        let at = index / inner % length;
        if self.block == 0 {
            return at;
        }
        index / inner / length * length.div_ceil(self.block) * inner + at / self.block * inner + index % inner
    }
}

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    match op {
        Op::QuantizeLinear { axis, block_size, .. } => {
            let scale = call.need(1)?;
            let to = call.types.first().copied().flatten().unwrap_or(ElementType::U8);
            let map = ScaleMap::new(x.shape(), scale, *axis, *block_size)?;
            let (low, high) = bounds(to)?;
            if let (Some(values), Some(&[s]), ElementType::U8) = (x.as_f32(), scale.as_f32(), to) {
                let zero = zeros(call.get(2), 1).first().copied().unwrap_or(0.0) as f32;
                let q = values.iter().map(|v| ((v / s).round_ties_even() + zero).clamp(0.0, 255.0) as u8);
                return Ok(vec![Tensor::new(x.shape(), q.collect::<Vec<u8>>())?]);
            }
            let (scales, zeros) = (scale.to_f64_vec(), zeros(call.get(2), scale.len()));
            let single = x.dtype() != ElementType::F64;
            let values: Vec<f64> = x
                .to_f64_vec()
                .into_iter()
                .enumerate()
                .map(|(i, v)| {
                    let e = map.entry(i);
                    // The division is done in the input's precision: f32 unless the tensor is f64.
                    let q = if single { f64::from(v as f32 / scales[e] as f32) } else { v / scales[e] };
                    (q.round_ties_even() + zeros[e]).clamp(low, high)
                })
                .collect();
            Ok(vec![Tensor::new(x.shape(), values)?.cast(to)])
        }
        Op::DequantizeLinear { axis, block_size } => {
            let scale = call.need(1)?;
            if let (Some(values), Some(&[s])) = (x.as_u8(), scale.as_f32()) {
                // At most 256 values: each is computed once.
                let zero = zeros(call.get(2), 1).first().copied().unwrap_or(0.0);
                let table: [f32; 256] = std::array::from_fn(|q| ((q as f64 - zero) * f64::from(s)) as f32);
                let made = values.iter().map(|q| table[usize::from(*q)]);
                return Ok(vec![Tensor::new(x.shape(), made.collect::<Vec<f32>>())?]);
            }
            let map = ScaleMap::new(x.shape(), scale, *axis, *block_size)?;
            let (scales, zeros) = (scale.to_f64_vec(), zeros(call.get(2), scale.len()));
            let values: Vec<f64> = x
                .to_f64_vec()
                .into_iter()
                .enumerate()
                .map(|(i, v)| {
                    let e = map.entry(i);
                    (v - zeros[e]) * scales[e]
                })
                .collect();
            Ok(vec![Tensor::new(x.shape(), values)?.cast(scale.dtype())])
        }
        _ => dynamic(x, call),
    }
}

fn zeros(zero: Option<&Tensor>, entries: usize) -> Vec<f64> {
    zero.map_or_else(|| vec![0.0; entries], Tensor::to_f64_vec)
}

/// ONNX `DynamicQuantizeLinear`: the range is widened to include zero and divided into 255 steps.
fn dynamic(x: &Tensor, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let values = super::typed::<f32>(x)?;
    let max = values.iter().copied().fold(0.0f32, f32::max);
    let min = values.iter().copied().fold(0.0f32, f32::min);
    let scale = (max - min) / 255.0;
    let scale = if scale == 0.0 { 1.0 } else { scale };
    let zero = (0.0 - min / scale).clamp(0.0, 255.0).round_ties_even();
    let q: Vec<u8> = values.iter().map(|v| ((v / scale).round_ties_even() + zero).clamp(0.0, 255.0) as u8).collect();
    let mut results = vec![Tensor::new(x.shape(), q)?, Tensor::scalar(scale), Tensor::scalar(zero as u8)];
    results.truncate(call.shapes.len());
    Ok(results)
}

/// Returns 8-bit values as i32 minus the zero point; a zero point with several entries runs along `axis`.
pub(super) fn without_zero(x: &Tensor, zero: Option<&Tensor>, axis: usize) -> Result<Vec<i32>> {
    let mut values: Vec<i32> = match x.data() {
        TensorData::U8(v) => v.iter().map(|&v| i32::from(v)).collect(),
        TensorData::I8(v) => v.iter().map(|&v| i32::from(v)).collect(),
        _ => return Err(wrong_type(x.dtype())),
    };
    let zeros = zero.map(Tensor::to_f64_vec).unwrap_or_default();
    let inner: usize = x.shape().get(axis + 1..).unwrap_or_default().iter().product();
    let length = x.shape().get(axis).copied().unwrap_or(1);
    match zeros.as_slice() {
        [] => {}
        [z] => values.iter_mut().for_each(|v| *v -= *z as i32),
        many if many.len() == length => {
            for (i, v) in values.iter_mut().enumerate() {
                *v -= many[i / inner.max(1) % length] as i32;
            }
        }
        many => return Err(GraphError::misused("zero point", many.len().to_string(), format!("1 or {length}"))),
    }
    Ok(values)
}

/// Scales i32 sums by a·b/y, rounds, shifts and saturates them to the type of the zero point. Scales of `b` with
/// several entries run along `axis` of the sums.
pub(super) fn requantize(
    sums: &Tensor,
    a_scale: &Tensor,
    b_scale: &Tensor,
    y_scale: &Tensor,
    y_zero: &Tensor,
    axis: usize,
) -> Result<Tensor> {
    let one = |t: &Tensor| {
        let v = t.to_f64_vec();
        if let [v] = v.as_slice() { Ok(*v as f32) } else { Err(GraphError::misused("scale", v.len().to_string(), "1")) }
    };
    let (a, y, zero) = (one(a_scale)?, one(y_scale)?, one(y_zero)?);
    let factors: Vec<f32> = b_scale.to_f64_vec().into_iter().map(|b| a * b as f32 / y).collect();
    let length = sums.shape().get(axis).copied().unwrap_or(1);
    if factors.len() != 1 && factors.len() != length {
        return Err(GraphError::misused("scale", factors.len().to_string(), format!("1 or {length}")));
    }
    let inner: usize = sums.shape().get(axis + 1..).unwrap_or_default().iter().product();
    let (low, high) = bounds(y_zero.dtype())?;
    let values: Vec<f64> = super::typed::<i32>(sums)?
        .iter()
        .enumerate()
        .map(|(i, &s)| {
            let f = if factors.len() == 1 { factors[0] } else { factors[i / inner.max(1) % length] };
            (f64::from((s as f32 * f).round_ties_even()) + f64::from(zero)).clamp(low, high)
        })
        .collect();
    Ok(Tensor::new(sums.shape(), values)?.cast(y_zero.dtype()))
}

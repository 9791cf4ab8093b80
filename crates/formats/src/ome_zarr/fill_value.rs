//! The samples of chunks that are not stored.

use crate::error::Fault;
use cytoscope_volume::DType;
use half::f16;
use serde_json::Value;

/// Whole numbers up to this one, 2⁵³, are exact in 64-bit floats.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// The fill value in native byte order.
pub(super) fn fill_value(dtype: DType, value: &Value) -> Result<Vec<u8>, Fault> {
    let size = dtype.size_bytes();
    let wrong = || {
        let shown: String = value.to_string().chars().take(80).collect();
        Fault::malformed(format!("the fill value {shown} is not a value of the type {dtype}"))
    };
    let number = match value {
        Value::Null | Value::Bool(false) => return Ok(vec![0; size]),
        Value::Bool(true) => 1.0,
        Value::Number(number) => number.as_f64().ok_or_else(wrong)?,
        Value::String(name) => match name.as_str() {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            hex => return hexadecimal(hex, size).ok_or_else(wrong),
        },
        _ => return Err(wrong()),
    };
    let is_exact = number.fract() == 0.0 && number.abs() < MAX_EXACT_INTEGER;
    let bytes = match dtype {
        DType::F64 => number.to_ne_bytes().to_vec(),
        DType::F32 => (number as f32).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(number).to_ne_bytes().to_vec(),
        DType::U64 => {
            let exact = (is_exact && number >= 0.0).then_some(number as u64);
            value.as_u64().or(exact).ok_or_else(wrong)?.to_ne_bytes().to_vec()
        }
        _ => {
            let integer = value.as_i64().or(is_exact.then_some(number as i64)).ok_or_else(wrong)?;
            let bits = size as u32 * 8;
            let (low, high) = match dtype {
                DType::I8 | DType::I16 | DType::I32 | DType::I64 => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
                _ => (0, i64::MAX >> (63 - bits)),
            };
            if integer < low || integer > high {
                return Err(wrong());
            }
            let bytes = integer.to_le_bytes();
            let mut native = bytes.get(..size).unwrap_or_default().to_vec();
            if cfg!(target_endian = "big") {
                native.reverse();
            }
            native
        }
    };
    Ok(bytes)
}

/// The bits of a float, most significant digit first, such as `0x7fc00000`.
fn hexadecimal(text: &str, size: usize) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").filter(|digits| digits.len() == size * 2 && digits.is_ascii())?;
    let bits = u64::from_str_radix(digits, 16).ok()?;
    let mut native = bits.to_le_bytes().get(..size)?.to_vec();
    if cfg!(target_endian = "big") {
        native.reverse();
    }
    Some(native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fill_values_have_the_bytes_of_their_type() {
        let of = |dtype: DType, value: Value| fill_value(dtype, &value).ok();
        assert_eq!(of(DType::U16, json!(258)), Some(258u16.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::I16, json!(-2)), Some((-2i16).to_ne_bytes().to_vec()));
        assert_eq!(of(DType::U64, json!(u64::MAX)), Some(vec![255; 8]));
        assert_eq!(of(DType::U64, json!(0.0)), Some(vec![0; 8]));
        assert_eq!(of(DType::U64, json!(7.0)), Some(7u64.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::I64, json!(i64::MIN)), Some(i64::MIN.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::F32, json!("-Infinity")), Some(f32::NEG_INFINITY.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::F32, json!("0x3f800000")), Some(1f32.to_ne_bytes().to_vec()));
        assert_eq!(of(DType::U8, Value::Null), Some(vec![0]));
        assert_eq!(of(DType::U8, json!(true)), Some(vec![1]));
        for (dtype, value) in [
            (DType::U8, json!(256)),
            (DType::U8, json!(-1)),
            (DType::U16, json!(1.5)),
            (DType::U16, json!("NaN")),
            (DType::U64, json!(-1)),
            (DType::U64, json!(-1.0)),
            (DType::U64, json!(1.5)),
            (DType::I64, json!(1e19)),
            (DType::F32, json!("0x3f80")),
            (DType::U8, json!([0])),
        ] {
            assert_eq!(of(dtype, value.clone()), None, "{dtype} {value}");
        }
    }
}

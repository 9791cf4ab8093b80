//! Sample types that a file format lacks, and those that store the same values.

use crate::JobError;
use crate::measure::label_numbers;
use cytoscope_formats::Container;
use cytoscope_volume::{DType, Samples};
use std::path::Path;

/// Returns the type in which a format stores samples of a type: the same one, or for a type that the format does not have,
/// one that can hold its values. For int64 in TIFF, this depends on whether a value is negative.
pub(crate) fn stored_type(container: Container, dtype: DType, is_negative: bool) -> DType {
    match (container, dtype) {
        (Container::Npy, _) | (_, DType::U8 | DType::U16 | DType::U32) => dtype,
        _ if is_negative && depends_on_sign(container, dtype) => DType::I32,
        (Container::Cellpose | Container::RoiSet, _) | (_, DType::U64 | DType::I64) => DType::U32,
        (Container::ImageJ | Container::OmeTiff, DType::F16) => DType::F32,
        (Container::ImageJ, DType::I8) => DType::I16,
        (Container::ImageJ | Container::OmeTiff, _) => dtype,
    }
}

/// Whether the [`stored_type`] of samples depends on whether one of them is negative.
pub(crate) fn depends_on_sign(container: Container, dtype: DType) -> bool {
    dtype == DType::I64 && matches!(container, Container::ImageJ | Container::OmeTiff)
}

/// Returns a note if an image file has another sample type, `stored`, than its image; `None` for formats that hold labels only.
pub(crate) fn stored_type_note(output: &Path, container: Container, dtype: DType, stored: DType) -> Option<String> {
    let has_another = stored != dtype && matches!(container, Container::ImageJ | Container::OmeTiff);
    let name = output.display();
    has_another.then(|| format!("{name}: this format has no {dtype}; the same values are stored as {stored}"))
}

/// Converts samples of the image at `path` to their [`stored_type`], without changing a value.
///
/// # Errors
/// [`JobError::Mismatch`] with the first value that the type does not hold.
pub(crate) fn with_stored_type(path: &Path, samples: Samples, stored: DType) -> Result<Samples, JobError> {
    let dtype = samples.dtype();
    let refused = |value: String, range: String| JobError::Mismatch {
        path: path.to_owned(),
        problem: format!("the value {value} cannot be stored in this format, which has no {dtype}").into(),
        next_step: format!("write it as .npy or .zarr, or give an image of integers from {range}").into(),
    };
    Ok(match (samples, stored) {
        (samples, _) if dtype == stored => samples,
        (Samples::F16(values), DType::F32) => Samples::F32(values.iter().map(|value| value.to_f32()).collect()),
        (Samples::I8(values), DType::I16) => Samples::I16(values.into_iter().map(i16::from).collect()),
        (Samples::I64(values), DType::I32) => {
            let narrow = |value: i64| {
                i32::try_from(value).map_err(|_| refused(value.to_string(), format!("{} to {}", i32::MIN, i32::MAX)))
            };
            Samples::I32(values.into_iter().map(narrow).collect::<Result<Vec<i32>, JobError>>()?)
        }
        (samples, _) => {
            let numbers = label_numbers(samples).map_err(|value| refused(value, format!("0 to {}", u32::MAX)))?;
            Samples::U32(numbers)
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn types_that_a_format_does_not_have_are_stored_as_others_with_the_same_values() {
        let convert = |container: Container, samples: Samples| {
            let stored = stored_type(container, samples.dtype(), false);
            with_stored_type(Path::new("a.npy"), samples, stored).map_err(|error| error.to_string())
        };
        for container in [Container::ImageJ, Container::OmeTiff, Container::Cellpose, Container::RoiSet] {
            let wide = convert(container, Samples::I64(vec![0, 70_000])).unwrap();
            assert_eq!(wide, Samples::U32(vec![0, 70_000]), "{container:?}");
            let refused = convert(container, Samples::I64(vec![3, -1])).unwrap_err();
            assert!(refused.contains("the value -1") && refused.contains("int64"), "{refused}");
        }
        assert_eq!(convert(Container::ImageJ, Samples::I8(vec![-1, 2])).unwrap(), Samples::I16(vec![-1, 2]));
        for (container, samples) in [
            (Container::Npy, Samples::I64(vec![-1])),
            (Container::OmeTiff, Samples::I8(vec![-1])),
            (Container::ImageJ, Samples::F32(vec![0.5])),
            (Container::Cellpose, Samples::U8(vec![1])),
        ] {
            assert_eq!(convert(container, samples.clone()).unwrap(), samples);
        }
        assert_eq!(stored_type(Container::OmeTiff, DType::F16, true), DType::F32);
    }

    #[test]
    fn negative_64_bit_integers_are_stored_in_tiff_if_they_fit_32_bits() {
        for container in [Container::ImageJ, Container::OmeTiff] {
            let stored = stored_type(container, DType::I64, true);
            let convert = |values: Vec<i64>| with_stored_type(Path::new("a.npy"), Samples::I64(values), stored);
            let limits = [i32::MIN, -1, i32::MAX];
            assert_eq!(convert(limits.map(i64::from).to_vec()).unwrap(), Samples::I32(limits.to_vec()));
            let refused = convert(vec![-1, 1 << 31]).unwrap_err().to_string();
            assert!(
                refused.contains("the value 2147483648") && refused.contains("-2147483648 to 2147483647"),
                "{refused}"
            );
        }
        // These formats hold labels only.
        assert_eq!(stored_type(Container::RoiSet, DType::I64, true), DType::U32);
    }

    #[test]
    fn a_note_says_that_the_type_is_another_one() {
        let note = |container: Container, dtype: DType| {
            stored_type_note(Path::new("a.ome.tif"), container, dtype, stored_type(container, dtype, true))
        };
        let half = note(Container::OmeTiff, DType::F16).unwrap();
        assert!(["a.ome.tif", "float16", "float32"].iter().all(|word| half.contains(word)), "{half}");
        assert!(note(Container::ImageJ, DType::I8).is_some_and(|note| note.contains("int16")));
        assert!(note(Container::ImageJ, DType::I64).is_some_and(|note| note.contains("int32")));
        for (container, dtype) in [
            (Container::OmeTiff, DType::I8),
            (Container::ImageJ, DType::F32),
            (Container::Npy, DType::F16),
            (Container::Cellpose, DType::I64),
        ] {
            assert_eq!(note(container, dtype), None, "{container:?} {dtype}");
        }
    }
}

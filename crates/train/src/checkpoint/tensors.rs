//! The tensor file of a checkpoint: the network and its optimizer as a file of tensors with names, and back.

use super::{TrainState, bad};
use crate::config::TrainPrecision;
use crate::step::ModelState;
use cytoscope_graph::Tensor;
use cytoscope_pipeline::JobError;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// The content of a tensor file: parameters, optimizer state, EMA and batch norm statistics by name.
pub(super) fn tensor_file(names: &[String], model: &ModelState) -> Result<Vec<u8>, JobError> {
    let mut tensors: Vec<(String, &Tensor)> = Vec::new();
    // Some optimizers have no second moments, and the EMA is optional; any other length would drop tensors.
    for (part, list, is_optional) in [
        ("value", &model.values, false),
        ("first", &model.first_moment, false),
        ("second", &model.second_moment, true),
        ("average", &model.average, true),
    ] {
        let is_absent = is_optional && list.is_empty();
        if !is_absent && list.len() != names.len() {
            let problem = format!("checkpoint: {} tensors \"{part}\" for {} parameters", list.len(), names.len());
            return Err(JobError::Internal(problem));
        }
        tensors.extend(names.iter().zip(list).map(|(name, t)| (format!("{part}/{name}"), t)));
    }
    tensors.extend(model.running_stats.iter().map(|(name, t)| (format!("running/{name}"), t)));
    // safetensors stores little-endian bytes, which all supported machines use.
    let views = tensors
        .into_iter()
        .map(|(name, tensor)| {
            let values = tensor.as_f32().ok_or_else(|| {
                JobError::Internal(format!("checkpoint: \"{name}\" is {:?}, expected F32", tensor.dtype()))
            })?;
            let view = TensorView::new(Dtype::F32, tensor.shape().to_vec(), float_bytes(values))
                .map_err(|e| JobError::Internal(format!("checkpoint: \"{name}\": {e}")))?;
            Ok::<_, JobError>((name, view))
        })
        .collect::<Result<Vec<_>, JobError>>()?;
    safetensors::serialize(views, None).map_err(|e| JobError::Internal(e.to_string()))
}

/// Reads the tensors by name.
pub(super) fn parse_tensors(path: &Path, bytes: &[u8]) -> Result<BTreeMap<String, Tensor>, JobError> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| bad(path, e.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(bad(path, format!("\"{name}\" is {:?}, expected F32", view.dtype())));
        }
        let values: Vec<f32> =
            view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let tensor = Tensor::new(view.shape(), values).map_err(|e| bad(path, e.to_string()))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Copies the saved tensors and counters into a network state with the same parameter names and shapes. `precision` is
/// the precision of the continued run; if the checkpoint has another one, the run starts with the loss scale of
/// `model`.
pub(crate) fn restore(
    model: &mut ModelState,
    names: &[String],
    state: &TrainState,
    precision: TrainPrecision,
    tensors: &BTreeMap<String, Tensor>,
    path: &Path,
) -> Result<(), JobError> {
    let take = |key: String, to: &mut Tensor| -> Result<(), JobError> {
        let found = tensors.get(&key).filter(|t| t.shape() == to.shape());
        *to =
            found.cloned().ok_or_else(|| bad(path, format!("it has no tensor \"{key}\" of shape {:?}", to.shape())))?;
        Ok(())
    };
    for (i, name) in names.iter().enumerate() {
        for (part, list) in [
            ("value", &mut model.values),
            ("first", &mut model.first_moment),
            ("second", &mut model.second_moment),
            ("average", &mut model.average),
        ] {
            if let Some(t) = list.get_mut(i) {
                take(format!("{part}/{name}"), t)?;
            }
        }
    }
    for (name, t) in &mut model.running_stats {
        take(format!("running/{name}"), t)?;
    }
    model.optimizer_steps = state.optimizer_steps;
    let is_same_precision = match state.precision {
        Some(saved) => saved == precision,
        // Only f16 scales the loss.
        None => (model.loss_scale > 1.0) == (state.loss_scale > 1.0),
    };
    if is_same_precision {
        (model.loss_scale, model.steady_steps) = (state.loss_scale, state.steady_steps);
    }
    Ok(())
}

fn float_bytes(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::VERSION;
    use crate::history::History;
    use serde_json::json;

    fn model(values: Vec<Tensor>) -> ModelState {
        ModelState {
            first_moment: values.clone(),
            second_moment: Vec::new(),
            average: Vec::new(),
            running_stats: BTreeMap::new(),
            optimizer_steps: 0,
            loss_scale: 1.0,
            steady_steps: 0,
            values,
        }
    }

    #[test]
    fn saved_tensors_are_read_back_and_none_is_dropped() {
        let names = ["a".to_owned(), "b".to_owned()];
        let floats = |v: f32| Tensor::vector(vec![v, -v]);
        let bytes = tensor_file(&names, &model(vec![floats(1.0), floats(2.0)])).unwrap();
        let tensors = parse_tensors(Path::new("t"), &bytes).unwrap();
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["first/a", "first/b", "value/a", "value/b"]);
        assert_eq!(tensors["value/b"], floats(2.0));

        let missing = tensor_file(&names, &model(vec![floats(1.0)])).unwrap_err().to_string();
        assert!(missing.contains("1 tensors \"value\" for 2 parameters"), "{missing}");
        let integers = Tensor::vector(vec![1i64, 2]);
        let wrong = tensor_file(&names, &model(vec![floats(1.0), integers])).unwrap_err().to_string();
        assert!(wrong.contains("\"value/b\""), "{wrong}");
    }

    /// Returns the loss scale and its steady steps of a run that continues in a precision.
    fn resumed_scale(state: &TrainState, precision: TrainPrecision, initial_scale: f32) -> (f32, u32) {
        let mut resumed = ModelState { loss_scale: initial_scale, ..model(Vec::new()) };
        restore(&mut resumed, &[], state, precision, &BTreeMap::new(), Path::new("t")).unwrap();
        (resumed.loss_scale, resumed.steady_steps)
    }

    #[test]
    fn the_loss_scale_is_kept_in_the_same_precision_only() {
        use TrainPrecision::{Auto, F16, F32};
        let saved = |precision: Option<TrainPrecision>, loss_scale: f32| -> TrainState {
            serde_json::from_value(json!({
                "version": VERSION, "job": {"task": "segmentation", "data": "d", "from": "scratch", "out": "m"},
                "config": {}, "data_fingerprint": "", "step": 9, "steps": 10, "next_patch": 18, "folded": false,
                "rate_factor": 1.0, "rescues": 0, "seconds": 1.0, "best": null, "peak": null, "start_score": null,
                "since_best": 0, "due": false, "history": History::default(), "optimizer_steps": 9,
                "precision": precision, "loss_scale": loss_scale, "steady_steps": 7, "tensors": "",
            }))
            .unwrap()
        };
        assert_eq!(resumed_scale(&saved(Some(F16), 1024.0), F16, 32_768.0), (1024.0, 7));
        assert_eq!(resumed_scale(&saved(Some(F16), 1.0), F16, 32_768.0), (1.0, 7), "after many overflows");
        assert_eq!(resumed_scale(&saved(Some(F16), 1024.0), F32, 1.0), (1.0, 0));
        assert_eq!(resumed_scale(&saved(Some(F16), 1.0), F32, 1.0), (1.0, 0));
        assert_eq!(resumed_scale(&saved(Some(Auto), 1.0), F16, 32_768.0), (32_768.0, 0));
        // Checkpoints of earlier versions show the precision only by the loss scale.
        assert_eq!(resumed_scale(&saved(None, 1024.0), F16, 32_768.0), (1024.0, 7));
        assert_eq!(resumed_scale(&saved(None, 1024.0), F32, 1.0), (1.0, 0));
    }
}

//! Preprocessing of cases that are parts of images: with the statistics of the whole image, as in training and in
//! predictions of the image.

use super::{Case, Validator};
use crate::candidate::Candidate;
use cytoscope_pipeline::{CancelToken, ImagePreprocessing, JobError};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

impl Validator {
    /// Returns the preprocessing of a case that is a part of an image; `None` if it is the whole image. That of an image is
    /// computed once.
    pub(super) fn preprocessing(
        &self,
        cancel: &CancelToken,
        candidate: &Candidate,
        case: &Case,
    ) -> Result<Option<ImagePreprocessing>, JobError> {
        let Some(window) = case.window else { return Ok(None) };
        let known = self.known_preprocessing().get(&case.name).cloned();
        let whole = match known.filter(|known| candidate.preprocesses(known)) {
            Some(known) => known,
            None => {
                let found = candidate.preprocessing(cancel, &case.open_whole()?, &case.options())?;
                self.known_preprocessing().insert(case.name.clone(), found.clone());
                found
            }
        };
        Ok(Some(whole.starting_at(window.start_zyx[0])))
    }

    fn known_preprocessing(&self) -> MutexGuard<'_, BTreeMap<String, ImagePreprocessing>> {
        self.preprocessing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::budget::ValidationSize;
    use crate::validator::{Diameters, ValidatorOptions};
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_graph::{ConvAttrs, Dim, ElementType, Graph, Op, Tensor};
    use cytoscope_model_package::{
        AxisKind, AxisSize, AxisSpec, PackageBuilder, Processing, StatisticsAxes, TensorSpec, TensorType,
    };
    use cytoscope_pipeline::devices::Devices;
    use cytoscope_pipeline::{Model, VolumeOutputs};
    use cytoscope_training_data::{ImageRef, Pair, StackWindow, TargetKind};
    use cytoscope_volume::{Array, Axes};
    use serde_json::json;
    use std::path::{Path, PathBuf};

    fn tensor(id: &str, channels: usize, like: Option<&str>, processing: Vec<Processing>) -> TensorSpec {
        let axis = |kind, size| AxisSpec { kind, size, voxel_um: None, halo: 0, channel_names: Vec::new() };
        let size = |name: &str| match like {
            None => AxisSize::Step { min: 1, step: 1 },
            Some(tensor) => {
                AxisSize::Reference { tensor: tensor.to_owned(), axis: name.to_owned(), scale: 1.0, offset: 0.0 }
            }
        };
        let fixed = [(AxisKind::Batch, 1), (AxisKind::Channel, channels)];
        let space = [(AxisKind::Z, "z"), (AxisKind::Y, "y"), (AxisKind::X, "x")];
        let axes = fixed.into_iter().map(|(kind, count)| axis(kind, AxisSize::Fixed(count)));
        let axes = axes.chain(space.into_iter().map(|(kind, name)| axis(kind, size(name)))).collect();
        let (id, description) = (id.to_owned(), String::new());
        TensorSpec { id, description, dtype: TensorType::Float32, axes, processing, test_tensor: None }
    }

    /// A model that returns the sum of its channels, each scaled from its minimum and maximum to 0 and 1.
    fn sum_of_scaled(channels: usize) -> Candidate {
        let mut graph = Graph::new("sum");
        let [n, d, h, w] = ["n", "d", "h", "w"].map(|name| Dim::Free(name.to_owned()));
        let x = graph.add_input("x", ElementType::F32, vec![n, Dim::Fixed(channels), d, h, w]);
        let ones = Tensor::new([1, channels, 1, 1, 1], vec![1.0f32; channels]).unwrap();
        let weight = graph.add_initializer("weight", ones);
        let y = graph.push("y", Op::Conv(ConvAttrs::same(&[1; 3])), &[Some(x), Some(weight)]);
        graph.outputs.push(y);
        let scale = Processing::ScaleRange {
            min_percentile: 0.0,
            max_percentile: 100.0,
            eps: 1e-6,
            axes: StatisticsAxes { batch: false, channel: false, by_slice: false },
            reference_tensor: None,
        };
        let package = PackageBuilder {
            name: "sum of channels".to_owned(),
            description: "made by a test".to_owned(),
            documentation: "# Made by a test\n".to_owned(),
            authors: vec!["A test".to_owned()],
            cite: Vec::new(),
            license: Some("MIT".to_owned()),
            tags: Vec::new(),
            inputs: vec![tensor("x", channels, None, vec![scale])],
            outputs: vec![tensor("y", 1, Some("x"), Vec::new())],
            graph,
            test_inputs: Vec::new(),
            test_outputs: Vec::new(),
            config: json!({"task": "labelfree"}),
            covers: Vec::new(),
            float_graph: None,
            tolerance: None,
        };
        let model = Model::from_package(package.in_memory(Path::new("a test")).unwrap()).unwrap();
        Candidate::new(&CancelToken::default(), &Devices::cpu_only(), model, None, 1).unwrap()
    }

    const SHAPE: [usize; 3] = [4, 6, 10];

    /// Writes 240 voxels, or several channels of them, to a file.
    fn write(folder: &Path, name: &str, axes: &str, values: Vec<u16>) -> PathBuf {
        let mut shape = SHAPE.to_vec();
        if axes.len() == 4 {
            shape.insert(0, values.len() / 240);
        }
        let array = Array::new(axes.parse::<Axes>().unwrap(), shape, values).unwrap();
        let path = folder.join(name);
        write_array(&path, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        path
    }

    /// Validates the pair on at most `voxels` voxels, and returns what the model predicts for them.
    fn predicted(pair: Pair, channels: usize, voxels: usize) -> Vec<f32> {
        let options = ValidatorOptions {
            max_cases: 1,
            objects: BTreeMap::new(),
            target: TargetKind::Semantic,
            stains: Vec::new(),
            model_um: None,
            ignored: None,
            diameters: Diameters::default(),
        };
        let validator = Validator::new(&[pair], options).unwrap();
        let validator = validator.resized(ValidationSize { cases: 1, voxels }).unwrap();
        let (cancel, candidate) = (CancelToken::default(), sum_of_scaled(channels));
        let predict = || validator.predict(&cancel, &candidate, 0, VolumeOutputs::Maps).unwrap().maps.unwrap();
        let found = predict();
        assert_eq!(found, predict(), "the second prediction uses the known preprocessing");
        found
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        let worst = cytoscope_testkit::largest_difference(found, expected);
        assert!(worst < 1e-5, "{worst}: {found:?} instead of {expected:?}");
    }

    #[test]
    fn parts_of_an_image_are_normalized_by_the_whole_image() {
        let folder = tempfile::tempdir().unwrap();
        // Brightness rises from 0 to 239, and the object is in the last 2 × 3 × 2 voxels.
        let image = write(folder.path(), "a.ome.tif", "ZYX", (0..240).collect());
        let is_object = |i: usize| i / 60 >= 2 && i / 10 % 6 >= 3 && i % 10 >= 8;
        let labels = (0..240).map(|i| u16::from(is_object(i))).collect();
        let pair = Pair::new("a", image, write(folder.path(), "labels.ome.tif", "ZYX", labels));
        let scaled = |wanted: &dyn Fn(usize) -> bool| -> Vec<f32> {
            (0..240).filter(|i| wanted(*i)).map(|i| i as f32 / 239.0).collect()
        };
        assert_close(&predicted(pair.clone(), 1, usize::MAX), &scaled(&|_| true));
        // The last two columns of the stack, as in the validation set of a single stack.
        let window = Some(StackWindow { start_zyx: [0, 0, 8], size_zyx: [4, 6, 2] });
        assert_close(&predicted(Pair { window, ..pair.clone() }, 1, usize::MAX), &scaled(&|i| i % 10 >= 8));
        // The cube of two voxels at the object: the first of the places that hold most of it.
        let found = predicted(pair, 1, 8);
        assert!(found.len() == 8 && found[0] > 100.0 / 239.0, "{found:?}");
        let first = (found[0] * 239.0).round() as usize;
        assert!(is_object(first));
        let cube: Vec<f32> = [0, 1, 10, 11, 60, 61, 70, 71].map(|step| (first + step) as f32 / 239.0).to_vec();
        assert_close(&found, &cube);
    }

    #[test]
    fn each_channel_of_a_part_is_normalized_by_its_own_whole_image() {
        let folder = tempfile::tempdir().unwrap();
        let rising: Vec<u16> = (0..240).collect();
        let falling: Vec<u16> = (0..240).map(|i| 1000 + 10 * (239 - i)).collect();
        let far = vec![60_000; 240];
        let file = write(folder.path(), "a.ome.tif", "CZYX", [far, rising.clone(), falling].concat());
        let labels = write(folder.path(), "labels.ome.tif", "ZYX", rising.iter().map(|v| v % 2).collect());
        let channel = |channel: usize| ImageRef { channel: Some(channel), ..ImageRef::of(&file) };
        let window = Some(StackWindow { start_zyx: [1, 2, 8], size_zyx: [2, 3, 2] });
        let pair = Pair { image: channel(1), more_images: vec![channel(2)], window, ..Pair::new("a", &file, labels) };
        // The scaled channels are i / 239 and 1 − i / 239.
        assert_close(&predicted(pair, 2, usize::MAX), &[1.0; 12]);
    }
}

//! The inputs of predictions: channels of the stack and, for models with several input tensors, other files.

use super::Jobs;
use crate::channels::{channels_of_inputs, parse_channels};
use crate::document::Document;
use crate::documents::DocumentsAction;
use crate::effect::Effects;
use crate::opener::FileRequest;
use crate::settings::Settings;
use cytoscope_pipeline::cards::{InputCard, ModelCard};
use cytoscope_pipeline::predict::{ChannelRef, InputTensor};
use std::path::PathBuf;

/// The file that an input tensor of a model is read from instead of the stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputFile {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// Its channels as typed, by name or number, separated by commas; empty for those of the tensor's name, or all.
    pub(crate) channels: String,
}

/// An input tensor of a model for a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputOfDocument {
    /// Id of the document.
    pub(crate) document: u64,
    /// Name of the model.
    pub(crate) model: String,
    /// Id of the tensor.
    pub(crate) input: String,
}

impl InputOfDocument {
    /// The input tensor with this id.
    pub(crate) fn new(document: u64, model: &ModelCard, input: &str) -> Self {
        Self { document, model: model.name.clone(), input: input.to_owned() }
    }
}

impl Jobs {
    /// The file that an input tensor is read from; `None` for the stack.
    pub(crate) fn input_file(&self, input: &InputOfDocument) -> Option<&InputFile> {
        self.input_files.get(input)
    }

    /// Sets the file that an input tensor is read from; `None` reads it from the stack.
    pub(super) fn set_input_file(&mut self, input: InputOfDocument, file: Option<InputFile>) {
        match file {
            Some(file) => _ = self.input_files.insert(input, file),
            None => _ = self.input_files.remove(&input),
        }
    }

    /// Asks for the file that an input tensor is read from.
    pub(super) fn ask_input_file(&mut self, input: InputOfDocument, folder: Option<PathBuf>, effects: &mut Effects) {
        let request = FileRequest::InputFile(input.document);
        self.asked_input = Some(input);
        effects.act(DocumentsAction::Ask { request, folder, name: String::new() });
    }

    /// Reads the input tensor that was asked about from a file.
    pub(super) fn input_file_chosen(&mut self, document: u64, path: PathBuf) {
        if let Some(input) = self.asked_input.take_if(|asked| asked.document == document) {
            self.set_input_file(input, Some(InputFile { path, channels: String::new() }));
        }
    }

    /// Numbers of the input channels of a model that are read from a document's stack.
    pub(crate) fn inputs_from_stack(&self, document: u64, model: &ModelCard) -> Vec<usize> {
        if model.inputs.is_empty() {
            return (0..model.input_channels).collect();
        }
        let (mut first, mut from_stack) = (0_usize, Vec::new());
        for InputCard { id, channels } in &model.inputs {
            let end = first + *channels;
            if self.input_file(&InputOfDocument::new(document, model, id)).is_none() {
                from_stack.extend(first..end);
            }
            first = end;
        }
        from_stack
    }

    /// The channels of a document's stack that a prediction reads. If some input tensors are read from other files, they are
    /// those of the images of input tensors instead.
    pub(super) fn prediction_inputs(
        &self,
        model: &ModelCard,
        document: &Document,
        settings: &Settings,
    ) -> (Vec<ChannelRef>, Vec<InputTensor>) {
        let from_stack = self.inputs_from_stack(document.id, model);
        let names: Vec<&str> = document.channels.iter().map(|c| c.name.as_str()).collect();
        let chosen = channels_of_inputs(model, from_stack.iter().copied(), &names, settings);
        // A single channel leaves nothing to choose.
        let chosen: Vec<usize> = if document.extents.channels > 1 { chosen } else { Vec::new() };
        let mut channels = chosen.into_iter().map(ChannelRef::Index);
        if from_stack.len() == model.input_channels {
            return (channels.collect(), Vec::new());
        }
        let tensor = |InputCard { id, channels: count }: &InputCard| {
            if let Some(file) = self.input_file(&InputOfDocument::new(document.id, model, id)) {
                let (path, channels) = (file.path.clone(), parse_channels(&file.channels));
                return Some(InputTensor { name: id.clone(), file: Some(path), channels });
            }
            let channels: Vec<ChannelRef> = channels.by_ref().take(*count).collect();
            (!channels.is_empty()).then(|| InputTensor { name: id.clone(), file: None, channels })
        };
        (Vec::new(), model.inputs.iter().filter_map(tensor).collect())
    }

    /// Sets the files of a document for the one that takes its place, too.
    pub(super) fn copy_input_files(&mut self, from: u64, to: u64) {
        let of_old = self.input_files.iter().filter(|(input, _)| input.document == from);
        let copies: Vec<_> =
            of_old.map(|(input, file)| (InputOfDocument { document: to, ..input.clone() }, file.clone())).collect();
        self.input_files.extend(copies);
    }

    /// Forgets the files of a document that was closed or opened again.
    pub(super) fn forget_input_files(&mut self, document: u64) {
        self.input_files.retain(|input, _| input.document != document);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::effect::Wake;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::cards::card;
    use cytoscope_volume::Array;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn an_input_in_a_file_leaves_the_channels_of_the_stack_to_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.ome.tif");
        let array = Array::new("CZYX".parse().unwrap(), vec![2, 2, 4, 4], vec![1u16; 64]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
        let document = Document::open(&path, None, 0).unwrap();
        let inputs = ["membrane", "nuclei"].map(|id| InputCard { id: id.to_owned(), channels: 1 }).to_vec();
        let model = ModelCard { inputs, input_channels: 2, ..card("two", Path::new("/no/such/model")) };
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        let of = |jobs: &Jobs| jobs.prediction_inputs(&model, &document, &Settings::default());
        let channels = [0, 1].map(ChannelRef::Index);
        let from_stack = (channels.to_vec(), Vec::new());
        assert_eq!(of(&jobs), from_stack);
        let membrane = InputOfDocument::new(document.id, &model, "membrane");
        let file = InputFile { path: "/membrane.tif".into(), channels: "actin".to_owned() };
        jobs.set_input_file(membrane.clone(), Some(file));
        let tensor = |name: &str, file: Option<&str>, channel: ChannelRef| InputTensor {
            name: name.to_owned(),
            file: file.map(PathBuf::from),
            channels: vec![channel],
        };
        let actin = ChannelRef::Name("actin".to_owned());
        let both = [tensor("membrane", Some("/membrane.tif"), actin), tensor("nuclei", None, ChannelRef::Index(0))];
        assert_eq!(of(&jobs), (Vec::new(), both.to_vec()));
        jobs.set_input_file(membrane, None);
        assert_eq!(of(&jobs), from_stack);
    }

    #[test]
    fn what_is_chosen_for_predictions_stays_when_a_stack_with_the_same_voxels_takes_its_place() {
        let wake: Wake = Arc::new(|| {});
        let model = card("two", Path::new("/no/such/model"));
        let file = InputFile { path: "/membrane.tif".into(), channels: "actin".to_owned() };
        let chosen_after = |to: Option<u64>| {
            let mut jobs = Jobs::new(None, None, None, &wake);
            jobs.set_input_file(InputOfDocument::new(7, &model, "membrane"), Some(file.clone()));
            jobs.one_time.insert(7);
            jobs.replace_document(7, to, &mut Effects::default());
            let chosen_for = |document: u64| {
                let found = jobs.input_file(&InputOfDocument::new(document, &model, "membrane")).cloned();
                (found, jobs.predicts_one_time(document))
            };
            [7, 8].map(chosen_for)
        };
        let nothing = (None::<InputFile>, false);
        assert_eq!(chosen_after(Some(8)), [nothing.clone(), (Some(file.clone()), true)]);
        assert_eq!(chosen_after(None), [nothing.clone(), nothing], "a stack with another shape");
    }
}

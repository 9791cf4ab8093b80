//! Custom kernels among operators that Burn queues and fuses: each becomes an operation of Burn's queue.

use super::{DeviceBackend, Training};
use crate::exec::Image;
use crate::form::Form;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use burn_tensor::{DType, Shape, Tensor, TensorPrimitive};
use std::marker::PhantomData;

/// The operation of [`DeviceBackend::train`].
#[derive(Debug)]
struct Queued<B> {
    description: CustomOpIr,
    kernel: Training,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + DeviceBackend> Operation<B::FusionRuntime> for Queued<B> {
    fn execute(&self, handles: &mut HandleContainer<B::Handle>) {
        let mut inputs = Vec::with_capacity(self.description.inputs.len());
        for input in &self.description.inputs {
            inputs.push(image::<B>(TensorPrimitive::Float(handles.get_float_tensor::<B>(input))));
        }
        // Burn fails, and with it the session, if an output is missing.
        let made = B::train(&self.kernel, inputs).unwrap_or_default();
        for (output, made) in self.description.outputs.iter().zip(made) {
            handles.register_float_tensor::<B>(&output.id, made.into_primitive().tensor());
        }
    }
}

fn image<B: DeviceBackend>(primitive: TensorPrimitive<B>) -> Image<B> {
    Tensor::from_primitive(primitive)
}

/// Queues the computation of [`DeviceBackend::train`] of the backend beneath Burn's fusion.
pub(super) fn train<B: FusionBackend + DeviceBackend>(
    kernel: &Training,
    inputs: Vec<Image<Fusion<B>>>,
) -> Option<Vec<Image<Fusion<B>>>> {
    let forms: Vec<Form> = inputs.iter().map(Tensor::dims).collect();
    let types: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let (forms, dtype) = (kernel.outputs(&forms, &types)?, kernel.output_type(*types.first()?));
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_primitive().tensor()).collect();
    let (streams, client) = (OperationStreams::with_inputs(&inputs), inputs.first()?.client.clone());
    let output = |form: &Form| TensorIr::uninit(client.create_empty_handle(), Shape::from(*form), dtype);
    let outputs: Vec<TensorIr> = forms.iter().map(output).collect();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let description = CustomOpIr::new(kernel.name(), &inputs, &outputs);
    let operation = Queued::<B> { description: description.clone(), kernel: kernel.clone(), backend: PhantomData };
    let made = client.register(streams, OperationIr::Custom(description), operation);
    Some(made.into_iter().map(|tensor| Tensor::from_primitive(TensorPrimitive::Float(tensor))).collect())
}

//! Kernels of our own among operators that Burn queues and fuses: each becomes an operation of Burn's queue.

use super::DeviceBackend;
use crate::exec::Image;
use crate::form::Form;
use crate::plan::Taps;
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};
use burn_tensor::{Shape, Tensor, TensorPrimitive};
use std::marker::PhantomData;

/// The operation of [`DeviceBackend::weight_gradient`]. Its inputs are x and dy.
#[derive(Debug)]
struct WeightGradient<B> {
    description: CustomOpIr,
    taps: Taps,
    form: Form,
    backend: PhantomData<B>,
}

impl<B: FusionBackend + DeviceBackend> Operation<B::FusionRuntime> for WeightGradient<B> {
    fn execute(&self, handles: &mut HandleContainer<B::Handle>) {
        let ([x, dy], [output]) = (self.description.inputs.as_slice(), self.description.outputs.as_slice()) else {
            return;
        };
        let [x, dy] = [x, dy].map(|input| image::<B>(TensorPrimitive::Float(handles.get_float_tensor::<B>(input))));
        // Burn fails, and with it the session, if an output is missing.
        if let Some(dw) = B::weight_gradient(&x, &dy, &self.taps, self.form) {
            handles.register_float_tensor::<B>(&output.id, dw.into_primitive().tensor());
        }
    }
}

fn image<B: DeviceBackend>(of: TensorPrimitive<B>) -> Image<B> {
    Tensor::from_primitive(of)
}

/// Queues the computation of [`DeviceBackend::weight_gradient`] of the backend beneath Burn's fusion.
pub(super) fn weight_gradient<B: FusionBackend + DeviceBackend>(
    x: &Image<Fusion<B>>,
    dy: &Image<Fusion<B>>,
    taps: &Taps,
    form: Form,
) -> Option<Image<Fusion<B>>> {
    if taps.groups != 1 {
        return None;
    }
    let dtype = x.dtype();
    let [x, dy] = [x, dy].map(|tensor| tensor.clone().into_primitive().tensor());
    let (streams, client) = (OperationStreams::with_inputs([&x, &dy]), x.client.clone());
    let output = TensorIr::uninit(client.create_empty_handle(), Shape::from(form), dtype);
    let description = CustomOpIr::new("weight_gradient", &[x.into_ir(), dy.into_ir()], &[output]);
    let operation = WeightGradient::<B> { description: description.clone(), taps: *taps, form, backend: PhantomData };
    let made = client.register(streams, OperationIr::Custom(description), operation).pop()?;
    Some(Tensor::from_primitive(TensorPrimitive::Float(made)))
}

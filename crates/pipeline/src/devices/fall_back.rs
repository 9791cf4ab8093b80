//! The device on which a job continues after another one has failed.

use super::{
    DEVICE_TIMES, DeviceChoice, Devices, FailedDevice, SelectedEngine, measurements, precision_on, unverified_note,
};
use crate::predict::PredictOptions;
use crate::probe_input::probe_edge;
use crate::verify::{Verification, verify, wrong_result};
use crate::{Context, JobError, JobErrorKind, Model};
use cytoscope_engine::select::{Choice, Measurement};
use cytoscope_engine::{Device, DeviceId, EngineError, Precision};
use cytoscope_storage::message;
use std::mem::discriminant;

impl Devices {
    /// Selects the device on which an input continues after another one has failed: the GPU not yet `tried` on which
    /// the model was measured to be fastest, or else the CPU. A device that lacks the requested 16 bits computes in
    /// f32.
    ///
    /// # Errors
    /// [`JobError::Engine`] if the CPU does not compute the network correctly; [`JobError::Canceled`].
    pub(crate) fn fall_back(
        &self,
        context: &Context,
        model: &Model,
        options: &PredictOptions,
        failed: &SelectedEngine,
        error: &EngineError,
        tried: &[DeviceId],
    ) -> Result<SelectedEngine, JobError> {
        let why = match error {
            EngineError::Device { .. } | EngineError::OutOfMemory { .. } => error.finding().to_string(),
            other => format!("{} failed: {other}", failed.choice.id),
        };
        let is_full = matches!(error, EngineError::OutOfMemory { .. });
        let gpus = self.next_gpus(&failed.choice, is_full, tried);
        let next = self.take_over(context, model, options, &failed.choice, why, &gpus)?;
        Ok(SelectedEngine { profile: failed.profile.clone(), ..next })
    }

    /// Selects the device for a job in place of a GPU that has failed in an earlier process: the other GPU on which the
    /// model was measured to be fastest, or else the CPU.
    ///
    /// # Errors
    /// Same as [`Devices::fall_back`].
    pub(super) fn after_failure(
        &self,
        context: &Context,
        model: &Model,
        options: &PredictOptions,
        failed: &FailedDevice,
    ) -> Result<SelectedEngine, JobError> {
        let shape = model.tensor_shape(model.input_channels, probe_edge(model));
        let stored = measurements(DEVICE_TIMES).stored(&model.fingerprint, &[&shape], options.threads);
        let name = self.all.iter().find(|device| device.id == failed.id).map(|device| device.name.clone());
        let (id, name) = (failed.id, name.unwrap_or_default());
        let choice = DeviceChoice { id, name, why: String::new(), measurements: stored };
        let gpus = self.next_gpus(&choice, false, &[]);
        self.take_over(context, model, options, &choice, failed.sentence(), &gpus)
    }

    /// Selects the first of the `gpus` that computes the network correctly, or else the CPU, in place of the device of a
    /// choice, which has failed for the reason `why`.
    fn take_over(
        &self,
        context: &Context,
        model: &Model,
        options: &PredictOptions,
        failed: &DeviceChoice,
        why: String,
        gpus: &[&Device],
    ) -> Result<SelectedEngine, JobError> {
        let mut measurements = failed.measurements.clone();
        measurements.iter_mut().filter(|m| m.device == failed.id).for_each(|m| m.reason.clone_from(&why));
        for device in gpus {
            let Some(precision) = precision_to_continue(model, device, options.precision, &measurements) else {
                continue;
            };
            let (why, measurements) = (why.clone().into(), measurements.clone());
            let choice = Choice { device: device.id, precision, why, measurements };
            let forced = options.precision.map(|_| precision);
            context.report_tried_device(device.id);
            let opened =
                (self.open)(device).inspect_err(|error| context.report_lost_device(error)).map_err(JobError::from);
            let checked =
                opened.and_then(|engine| match verify(context, model, engine.as_ref(), precision, options.threads)? {
                    Verification::Agrees => Ok(SelectedEngine::new(engine, choice)),
                    Verification::Differs { how } => Err(wrong_result(model, engine.as_ref(), &how)),
                });
            match checked {
                Ok(selected) => return Ok(SelectedEngine { forced, ..selected }),
                Err(error) if error.kind() == JobErrorKind::Canceled => return Err(error),
                Err(error) => context.note(message!("{} is not used: {}", device.id, error.message())),
            }
        }
        self.cpu_after(context, model, options, why, measurements)
    }

    /// Selects the CPU, for the reason `why`. It computes in f32 if a 16-bit format is requested that it lacks.
    pub(crate) fn cpu_after(
        &self,
        context: &Context,
        model: &Model,
        options: &PredictOptions,
        why: String,
        measurements: Vec<Measurement>,
    ) -> Result<SelectedEngine, JobError> {
        let engine = self.engine(DeviceId::Cpu)?;
        let lacks = |precision: &Precision| precision.is_half() && !engine.device().precisions.contains(precision);
        let forced = options.precision.filter(lacks).map(|_| Precision::F32);
        let precision = forced.unwrap_or_else(|| model.precision_on(DeviceId::Cpu, options.precision));
        match verify(context, model, engine.as_ref(), precision, options.threads) {
            Ok(Verification::Agrees) => {}
            Ok(Verification::Differs { how }) => return Err(wrong_result(model, engine.as_ref(), &how)),
            Err(error) if error.kind() == JobErrorKind::Canceled => return Err(error),
            // If the network does not run at all, predicting the stack reports that.
            Err(error) => context.note(unverified_note(DeviceId::Cpu, &error)),
        }
        let choice = Choice { device: DeviceId::Cpu, precision, why: why.into(), measurements };
        let forced = options.precision.map(|_| precision);
        Ok(SelectedEngine { forced, ..SelectedEngine::new(engine, choice) })
    }

    /// Returns the GPUs that may take over from a device, the fastest first. Those on which the model was not measured are
    /// last; those that are slower than the CPU are left out, and so is the same GPU with another driver if `is_full` says
    /// that it ran out of memory.
    fn next_gpus(&self, failed: &DeviceChoice, is_full: bool, tried: &[DeviceId]) -> Vec<&Device> {
        let DeviceChoice { id: failed_id, name, measurements, .. } = failed;
        let has_same_memory = |gpu: &Device| gpu.name == *name && discriminant(&gpu.id) != discriminant(failed_id);
        let cpu_ms = best_on(measurements, DeviceId::Cpu).map_or(f64::INFINITY, |(ms, _)| ms);
        let ms_on = |gpu: &Device| best_on(measurements, gpu.id).map(|(ms, _)| ms);
        let may_run = |gpu: &&Device| {
            let is_next = gpu.usable && ![DeviceId::Cpu, *failed_id].contains(&gpu.id) && !tried.contains(&gpu.id);
            is_next && !(is_full && has_same_memory(gpu)) && ms_on(gpu).is_none_or(|ms| ms < cpu_ms)
        };
        let mut gpus: Vec<&Device> = self.all.iter().filter(may_run).collect();
        let order = |gpu: &Device| ms_on(gpu).unwrap_or(f64::INFINITY);
        gpus.sort_by(|a, b| order(a).total_cmp(&order(b)));
        gpus
    }
}

/// Returns the shortest time in ms that was measured on a device, with its precision.
fn best_on(measurements: &[Measurement], id: DeviceId) -> Option<(f64, Precision)> {
    let on_device = measurements.iter().filter(|m| m.device == id);
    on_device.filter_map(|m| Some((m.usable_ms()?, m.precision?))).min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Returns the precision in which a GPU continues a job: the requested one, or f32 if it lacks the requested 16-bit
/// format; without a request, the fastest one that was measured. `None` if it lacks another requested one.
fn precision_to_continue(
    model: &Model,
    device: &Device,
    requested: Option<Precision>,
    measurements: &[Measurement],
) -> Option<Precision> {
    let precision = precision_on(model, device, requested);
    match requested {
        None => Some(best_on(measurements, device.id).map_or(precision, |(_, fastest)| fastest)),
        Some(_) if device.precisions.contains(&precision) => Some(precision),
        Some(asked) => asked.is_half().then_some(Precision::F32),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_engine::{CompileOptions, DeviceRequest, Engine, Session};
    use cytoscope_engine_cpu::CpuEngine;
    use cytoscope_graph::Graph;

    fn gpu(id: DeviceId, name: &str) -> Device {
        let precisions = vec![Precision::F32, Precision::F16];
        Device { id, name: name.to_owned(), precisions, ..CpuEngine::new().device().clone() }
    }

    fn measured(device: DeviceId, precision: Precision, best_ms: f64) -> Measurement {
        let (precision, best_ms) = (Some(precision), Some(best_ms));
        let (error, lowered_limit_bytes) = (None, None);
        Measurement { device, precision, best_ms, error, lowered_limit_bytes, reason: String::new(), cached: true }
    }

    fn open(_: &Device) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(CpuEngine::new()))
    }

    /// A device that was chosen with these measurements.
    fn chosen(id: DeviceId, name: &str, measurements: Vec<Measurement>) -> DeviceChoice {
        DeviceChoice { id, name: name.to_owned(), why: String::new(), measurements }
    }

    /// The CPU's kernels, as another device and in any precision.
    struct As(Device, CpuEngine);

    impl Engine for As {
        fn name(&self) -> &'static str {
            self.1.name()
        }

        fn device(&self) -> &Device {
            &self.0
        }

        fn compile(
            &self,
            graph: &Graph,
            shapes: &[Vec<usize>],
            options: &CompileOptions,
        ) -> Result<Box<dyn Session>, EngineError> {
            self.1.compile(graph, shapes, &CompileOptions { precision: Precision::F32, ..options.clone() })
        }
    }

    fn open_as(device: &Device) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(As(device.clone(), CpuEngine::new())))
    }

    #[test]
    fn the_fastest_measured_gpu_is_next_and_the_same_one_with_another_driver_is_not_if_its_memory_is_full() {
        let ids = [DeviceId::Cuda(0), DeviceId::Cuda(1), DeviceId::Cuda(2), DeviceId::Wgpu(0), DeviceId::Wgpu(1)];
        let mut all: Vec<Device> = ids.iter().zip(["A", "B", "C", "A", "D"]).map(|(id, name)| gpu(*id, name)).collect();
        all.push(Device { usable: false, ..gpu(DeviceId::Wgpu(2), "E") });
        all.push(CpuEngine::new().device().clone());
        let devices = Devices::with_engines(all, open);
        let f32 = Precision::F32;
        let times = vec![
            measured(DeviceId::Cuda(0), f32, 1.0),
            measured(DeviceId::Cuda(1), f32, 9.0),
            measured(DeviceId::Cuda(1), Precision::F16, 3.0),
            measured(DeviceId::Wgpu(0), f32, 5.0),
            measured(DeviceId::Wgpu(1), f32, 90.0),
            measured(DeviceId::Cpu, f32, 50.0),
        ];
        let failed = chosen(DeviceId::Cuda(0), "A", times);
        let next = |is_full: bool, tried: &[DeviceId]| -> Vec<DeviceId> {
            devices.next_gpus(&failed, is_full, tried).into_iter().map(|gpu| gpu.id).collect()
        };
        // The second wgpu device is slower than the CPU; the third CUDA device was not measured.
        assert_eq!(next(false, &[]), [DeviceId::Cuda(1), DeviceId::Wgpu(0), DeviceId::Cuda(2)]);
        assert_eq!(next(false, &[DeviceId::Cuda(1)]), [DeviceId::Wgpu(0), DeviceId::Cuda(2)]);
        assert_eq!(next(true, &[]), [DeviceId::Cuda(1), DeviceId::Cuda(2)]);
        // A GPU that has failed in an earlier process is not used for any job.
        let lost = FailedDevice { id: DeviceId::Cuda(1), reason: "it was in use".to_owned() };
        let others: Vec<DeviceId> =
            devices.without(&[lost]).next_gpus(&failed, false, &[]).into_iter().map(|gpu| gpu.id).collect();
        assert_eq!(others, [DeviceId::Wgpu(0), DeviceId::Cuda(2)]);
    }

    #[test]
    fn the_next_gpu_runs_the_jobs_of_one_that_has_failed_in_an_earlier_process() {
        let model = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei-dog")).unwrap();
        let all = vec![gpu(DeviceId::Cuda(0), "A"), gpu(DeviceId::Cuda(1), "A"), CpuEngine::new().device().clone()];
        let failed =
            |index: usize| FailedDevice { id: DeviceId::Cuda(index), reason: "it was in use when it hung".to_owned() };
        let options = PredictOptions { precision: Some(Precision::F16), ..PredictOptions::default() };
        let selected = |failed: &[FailedDevice]| {
            let devices = Devices::with_engines(all.clone(), open_as).without(failed);
            let request = DeviceRequest::Device(DeviceId::Cuda(0));
            devices.for_model(&Context::default(), &model, request, &options).unwrap()
        };
        let next = selected(&[failed(0)]);
        assert_eq!((next.choice.id, next.precision(&model, options.precision)), (DeviceId::Cuda(1), Precision::F16));
        assert_eq!(next.choice.why, "cuda:0 is not used: it was in use when it hung");
        let last = selected(&[failed(0), failed(1)]);
        assert_eq!((last.choice.id, last.precision(&model, options.precision)), (DeviceId::Cpu, Precision::F32));
    }

    #[test]
    fn the_cpu_continues_in_bf16_only_if_it_has_it() {
        let model = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei-dog")).unwrap();
        let failed = FailedDevice { id: DeviceId::Cuda(0), reason: "it was in use when it hung".to_owned() };
        let options = PredictOptions { precision: Some(Precision::Bf16), ..PredictOptions::default() };
        let request = DeviceRequest::Device(failed.id);
        for (precisions, expected) in
            [(&[Precision::F32, Precision::Bf16][..], Precision::Bf16), (&[Precision::F32][..], Precision::F32)]
        {
            let all = vec![gpu(failed.id, "A"), Device::named(DeviceId::Cpu, "a CPU", precisions)];
            let devices = Devices::with_engines(all, open_as).without(std::slice::from_ref(&failed));
            let next = devices.for_model(&Context::default(), &model, request, &options).unwrap();
            assert_eq!((next.choice.id, next.precision(&model, options.precision)), (DeviceId::Cpu, expected));
        }
    }

    #[test]
    fn a_gpu_continues_in_the_requested_precision_or_in_the_fastest_measured_one() {
        let model = Model::load(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nuclei")).unwrap();
        let device = gpu(DeviceId::Cuda(1), "B");
        let times = [measured(device.id, Precision::F32, 9.0), measured(device.id, Precision::F16, 3.0)];
        let on = |requested: Option<Precision>, times: &[Measurement]| {
            precision_to_continue(&model, &device, requested, times)
        };
        assert_eq!(on(None, &times), Some(Precision::F16));
        assert_eq!(on(None, &[]), Some(Precision::F32));
        assert_eq!(on(Some(Precision::F16), &[]), Some(Precision::F16));
        assert_eq!(on(Some(Precision::Bf16), &[]), Some(Precision::F32), "the GPU lacks bf16");
        assert_eq!(on(Some(Precision::Int8), &[]), None);
    }
}

//! Training steps on a device, compared with those on the CPU.

use super::*;
use cytoscope_autodiff::prepare;
use cytoscope_builders::{DynUNet, UNet3d, Weights, dynunet, unet3d};
use cytoscope_engine::{DeviceId, Engine, Precision};
use cytoscope_engine_burn::{BurnEngine, probe};
use cytoscope_graph::{LossKind, LossTerm};
use cytoscope_pipeline::devices::Devices;

const SHAPE: [usize; 5] = [2, 1, 4, 8, 12];

fn options() -> StepperOptions {
    StepperOptions {
        loss: Loss::single(LossKind::DiceCrossEntropy { smooth: 1.0 }, 1),
        // Updates in proportion to the gradients: others enlarge rounding errors of gradients near 0.
        optimizer: Optimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 },
        shape: SHAPE.to_vec(),
        batch_statistics: true,
        further_weights: false,
        only: Vec::new(),
        ema: 0.9,
        threads: 1,
        memory_budget_bytes: None,
        half: None,
        exact: true,
        recorder: Recorder::totals_only(),
        tuning: TuningListener::default(),
    }
}

/// Returns a tensor of pseudo-random numbers in −1..1.
fn noise(seed: usize) -> Tensor {
    let count: usize = SHAPE.iter().product();
    let values = (0..count).map(|i| ((i + seed) * 7919 % 1000) as f32 / 500.0 - 1.0).collect::<Vec<f32>>();
    Tensor::new(SHAPE, values).unwrap()
}

/// Computes the gradients of two batches and makes an optimizer step; returns the sum of the losses.
fn step(stepper: &mut Stepper) -> f64 {
    step_of(stepper, &[1, 2])
}

/// Computes the gradients of batches and makes an optimizer step; returns the sum of the losses.
fn step_of(stepper: &mut Stepper, batches: &[usize]) -> f64 {
    let mut losses = 0.0;
    for batch in batches.iter().copied() {
        let image = noise(batch);
        let bright = image.as_f32().unwrap().iter().map(|v| f32::from(u8::from(*v > 0.2))).collect::<Vec<f32>>();
        let ones = Tensor::new(SHAPE, vec![1.0f32; image.len()]).unwrap();
        match stepper.forward_backward(vec![image, Tensor::new(SHAPE, bright).unwrap(), ones]).unwrap() {
            StepOutput::Loss(loss) => losses += loss,
            other => panic!("{other:?}"),
        }
    }
    stepper.optimizer_step(0.05, 1.0, batches.len()).unwrap();
    losses
}

/// Checks that tensors differ little, relative to their L2 norm.
fn assert_close(what: &str, got: &[Tensor], want: &[Tensor]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.shape(), want.shape(), "{what} {index}");
        let (got, want) = (got.to_f64_vec(), want.to_f64_vec());
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let norm = want.iter().map(|v| v * v).sum::<f64>().sqrt();
        assert!(off <= 2e-3 * norm.max(1e-2), "{what} {index}: {off} of {norm}");
    }
}

/// The network that is trained.
fn network() -> Graph {
    let config = DynUNet { filters: vec![8, 12], strides: vec![1, 2], ..DynUNet::default() };
    prepare(&dynunet(&config, &Weights::Random { seed: 7 }).unwrap()).unwrap()
}

/// A network with batch norms, which have running statistics.
fn network_with_batch_norms() -> Graph {
    let config = UNet3d { filters: vec![4, 6], strides: vec![[1, 2, 2]], ..UNet3d::default() };
    prepare(&unet3d(&config, &Weights::Random { seed: 7 }).unwrap()).unwrap()
}

/// Returns a stepper of a network in f16 on a GPU; `None`, with a report of the skip, without such a GPU.
fn in_f16(net: Graph, options: StepperOptions) -> Option<Stepper> {
    let devices = probe::run_with_software(probe::Kind::Wgpu, true);
    let gpu = devices.iter().find(|device| device.usable).map(|device| BurnEngine::open(device).unwrap());
    let Some(gpu) = gpu.filter(|gpu| gpu.training_precisions().contains(&Precision::F16)) else {
        cytoscope_testkit::skip("no Vulkan or Metal device with f16");
        return None;
    };
    let options = StepperOptions { half: Some(ElementType::F16), ..options };
    Some(Stepper::new(net, &gpu, &options).unwrap())
}

#[test]
fn steps_that_overflow_in_f16_are_skipped_and_counted_when_losses_are_read() {
    const STEPS: u32 = 40;
    let options = StepperOptions { loss: Loss::single(LossKind::MeanSquared, 1), ..options() };
    let Some(mut stepper) = in_f16(network(), options) else { return };
    assert!(stepper.is_scaled());
    let step = |stepper: &mut Stepper| {
        let target: Vec<f32> = noise(2).as_f32().unwrap().iter().map(|v| v * 1e3).collect();
        let ones = Tensor::new(SHAPE, vec![1.0f32; target.len()]).unwrap();
        let batch = vec![noise(1), Tensor::new(SHAPE, target).unwrap(), ones];
        assert_eq!(stepper.forward_backward_later(batch).unwrap(), StepOutput::Loss(0.0));
        stepper.optimizer_step(1e-3, 1.0, 1).unwrap();
    };
    // The gradient of the loss is above 2, so that it overflows even in 32 bits.
    let scale = 2.0f32.powi(127);
    let before = ModelState { loss_scale: scale, ..stepper.state().unwrap() };
    stepper.set_state(before.clone()).unwrap();
    step(&mut stepper);
    assert_eq!(stepper.state().unwrap(), ModelState { loss_scale: scale / 2.0, ..before.clone() });
    assert!(stepper.has_unread());
    assert_eq!((stepper.unread_loss().unwrap(), stepper.take_skipped_steps()), (Some(0.0), 1));
    assert!(!stepper.has_unread());
    let largest = cytoscope_graph::LossScale::default().max;
    stepper.set_state(ModelState { loss_scale: largest, ..before.clone() }).unwrap();
    step(&mut stepper);
    let downloads = |stepper: &Stepper| stepper.traffic().unwrap().downloads;
    let downloads_before = downloads(&stepper);
    (1..STEPS).for_each(|_| step(&mut stepper));
    assert_eq!(downloads(&stepper), downloads_before, "nothing is read in a step");
    let loss = stepper.unread_loss().unwrap().expect("every loss is finite");
    let (skipped, after) = (stepper.take_skipped_steps() as u32, stepper.state().unwrap());
    assert!(skipped < STEPS, "all steps were skipped");
    assert_eq!((after.optimizer_steps, after.loss_scale), (STEPS - skipped, largest / 2.0f32.powi(skipped as i32)));
    assert_eq!(stepper.take_skipped_steps(), 0);
    // The mean of (1000 t)² is about a third of 10⁶; the few small steps hardly change it.
    let mean = loss / f64::from(STEPS - skipped);
    assert!((1e5..1e6).contains(&mean), "a loss of {mean}");
    assert!(after.values.iter().all(|t| t.as_f32().unwrap().iter().all(|v| v.is_finite())));
    assert_ne!(after.values, before.values);
}

/// Returns the bits of parameters, first and second moments, averages and running statistics, each kind in one list.
fn bits(of: &ModelState) -> [Vec<u32>; 5] {
    let kinds: [Vec<&Tensor>; 5] = [
        of.values.iter().collect(),
        of.first_moment.iter().collect(),
        of.second_moment.iter().collect(),
        of.average.iter().collect(),
        of.running_stats.values().collect(),
    ];
    kinds.map(|tensors| tensors.iter().flat_map(|t| t.as_f32().unwrap()).map(|v| v.to_bits()).collect())
}

#[test]
fn a_step_that_overflows_in_f16_changes_nothing_but_the_loss_scale() {
    const SCALE: f32 = 256.0;
    let loss = Loss::single(LossKind::MeanSquared, 1);
    let options = StepperOptions { loss, optimizer: Optimizer::default(), ..options() };
    let Some(mut stepper) = in_f16(network_with_batch_norms(), options) else { return };
    assert!(stepper.is_scaled() && stepper.has_norms());
    // Makes a step with targets of this size. Returns how many steps were skipped, and the state after it.
    let step = |stepper: &mut Stepper, size: f32| {
        let target: Vec<f32> = noise(2).as_f32().unwrap().iter().map(|v| v * size).collect();
        let ones = Tensor::new(SHAPE, vec![1.0f32; target.len()]).unwrap();
        let batch = vec![noise(1), Tensor::new(SHAPE, target).unwrap(), ones];
        assert_eq!(stepper.forward_backward_later(batch).unwrap(), StepOutput::Loss(0.0));
        stepper.optimizer_step(1e-3, 1.0, 1).unwrap();
        assert!(stepper.unread_loss().unwrap().is_some(), "every loss is finite");
        (stepper.take_skipped_steps(), stepper.state().unwrap())
    };
    let start = ModelState { loss_scale: SCALE, ..stepper.state().unwrap() };
    stepper.set_state(start.clone()).unwrap();
    let (skipped, made) = step(&mut stepper, 1.0);
    assert_eq!((skipped, made.optimizer_steps, made.steady_steps, made.loss_scale), (0, 1, 1, SCALE));
    for (kind, (before, after)) in bits(&start).iter().zip(bits(&made)).enumerate() {
        assert!(!before.is_empty() && *before != after, "a step without overflow changes kind {kind}");
    }
    // The largest gradient of the loss is above 2: with the first scale, it overflows even in 32 bits, with the second one only
    // in 16.
    for scale in [2.0f32.powi(127), cytoscope_graph::LossScale::default().max] {
        let before = ModelState { loss_scale: scale, ..made.clone() };
        stepper.set_state(before.clone()).unwrap();
        let (skipped, after) = step(&mut stepper, 1e3);
        assert_eq!((skipped, after.optimizer_steps, after.steady_steps, after.loss_scale), (1, 1, 0, scale / 2.0));
        for (kind, (before, after)) in bits(&before).iter().zip(bits(&after)).enumerate() {
            assert!(*before == after, "a scale of {scale}: kind {kind} has changed");
        }
    }
    // The steps after it are made again.
    stepper.set_state(ModelState { loss_scale: SCALE, ..made.clone() }).unwrap();
    let (skipped, after) = step(&mut stepper, 1.0);
    assert_eq!((skipped, after.optimizer_steps), (0, 2));
    assert!(bits(&after).iter().zip(bits(&made)).all(|(after, before)| *after != before));
}

/// Returns steppers of the same network on a GPU and on the CPU; `None`, with a report of the skip, without a GPU.
fn on_both(options: &StepperOptions) -> Option<[Stepper; 2]> {
    both_of(&network(), options)
}

/// Like [`on_both`], for any network.
fn both_of(net: &Graph, options: &StepperOptions) -> Option<[Stepper; 2]> {
    let devices = probe::run_with_software(probe::Kind::Wgpu, true);
    let Some(device) = devices.iter().find(|device| device.usable) else {
        cytoscope_testkit::skip("no Vulkan or Metal device");
        return None;
    };
    let (gpu, cpu) = (BurnEngine::open(device).unwrap(), Devices::cpu_only().engine(DeviceId::Cpu).unwrap());
    let stepper = |engine: &dyn Engine| Stepper::new(net.clone(), engine, options).unwrap();
    Some([stepper(&gpu), stepper(cpu.as_ref())])
}

#[test]
fn every_loss_is_read_also_after_a_spike_and_many_readings() {
    let loss = Loss::single(LossKind::MeanSquared, 1);
    let Some(both) = on_both(&StepperOptions { loss, ..options() }) else { return };
    let losses = both.map(|mut stepper| {
        let batches = (0..2 * MAX_READINGS).map(|number| {
            let size = if number == 5 { 1e4 } else { 1.0 };
            let target: Vec<f32> = noise(number).as_f32().unwrap().iter().map(|v| v * size).collect();
            let ones = Tensor::new(SHAPE, vec![1.0f32; target.len()]).unwrap();
            let output = stepper.forward_backward(vec![noise(1), Tensor::new(SHAPE, target).unwrap(), ones]).unwrap();
            if let StepOutput::Loss(loss) = output { loss } else { panic!("{output:?}") }
        });
        batches.collect::<Vec<f64>>()
    });
    let [on_gpu, on_cpu] = losses;
    for (number, (got, want)) in on_gpu.iter().zip(&on_cpu).enumerate() {
        assert!((got - want).abs() <= 1e-3 * want.abs(), "batch {number}: {got} instead of {want}");
    }
}

#[test]
fn further_channels_can_have_weights_of_their_own() {
    let config = DynUNet { out_channels: 2, filters: vec![4, 6], strides: vec![1, 2], ..DynUNet::default() };
    let net = prepare(&dynunet(&config, &Weights::Random { seed: 7 }).unwrap()).unwrap();
    let engine = Devices::cpu_only().engine(DeviceId::Cpu).unwrap();
    let term =
        |channels| LossTerm { kind: LossKind::BinaryCrossEntropy, channels, factor: 1.0, sigmoid: true, within: None };
    let loss = |terms: Vec<LossTerm>, further: Option<f32>| {
        let options = StepperOptions { loss: Loss { terms }, further_weights: further.is_some(), ..options() };
        let mut stepper = Stepper::new(net.clone(), engine.as_ref(), &options).unwrap();
        let count: usize = SHAPE.iter().product();
        let bits: Vec<f32> = (0..2 * count).map(|i| f32::from(u8::from(i % 3 == 0))).collect();
        let target = Tensor::new([2, 2, 4, 8, 12], bits).unwrap();
        let weight = |value: f32| Tensor::new(SHAPE, vec![value; count]).unwrap();
        let mut batch = vec![noise(1), target, weight(1.0)];
        batch.extend(further.map(weight));
        match stepper.forward_backward(batch).unwrap() {
            StepOutput::Loss(loss) => loss,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (loss(vec![term(0..1)], None), loss(vec![term(1..2)], None));
    let both = || vec![term(0..1), term(1..2)];
    assert!((loss(both(), Some(0.0)) - first).abs() < 1e-6);
    assert!((loss(both(), Some(1.0)) - (first + second)).abs() < 1e-5);
}

#[test]
fn steps_on_joined_parameters_are_those_of_the_cpu() {
    let Some([mut on_gpu, mut on_cpu]) = on_both(&options()) else { return };
    for number in 1..=3 {
        let (got, want) = (step(&mut on_gpu), step(&mut on_cpu));
        assert!((got - want).abs() <= 1e-3 * want.abs().max(1.0), "step {number}: losses {got} instead of {want}");
    }
    let (got, want) = (on_gpu.state().unwrap(), on_cpu.state().unwrap());
    assert_close("value", &got.values, &want.values);
    assert_close("first moment", &got.first_moment, &want.first_moment);
    assert_close("average", &got.average, &want.average);
    assert_eq!((got.second_moment.len(), got.optimizer_steps), (0, 3));
    // The hyper-parameters, the norm, and one update each of the parameters with and without weight decay.
    let traffic = on_gpu.update.traffic().unwrap();
    assert_eq!((traffic.runs, traffic.steps), (3, 3 * 4));
    let sessions = [Some(&on_gpu.gradients), Some(&on_gpu.update), on_gpu.sum.as_ref(), on_gpu.averages.as_ref()];
    let session_traffic: Vec<DeviceTraffic> =
        sessions.into_iter().flatten().filter_map(BoundSession::traffic).collect();
    let all = on_gpu.traffic().unwrap();
    assert_eq!(all.runs, session_traffic.iter().map(|traffic| traffic.runs).sum::<u64>());
    // Steps are timed by the time of these calls.
    assert!(all.synchronizations >= all.runs, "a run may not have ended when the call returns: {all:?}");
    let session_downloads: u64 = session_traffic.iter().map(|traffic| traffic.downloads).sum();
    assert!(all.downloads > session_downloads, "the state was downloaded, too: {all:?}");
    assert_eq!(on_cpu.traffic(), None);
    on_gpu.set_state(want.clone()).unwrap();
    assert_eq!(on_gpu.state().unwrap(), want);
}

#[test]
fn running_statistics_are_updated_by_the_mean_over_all_batches_of_a_step() {
    let net = network_with_batch_norms();
    let engine = Devices::cpu_only().engine(DeviceId::Cpu).unwrap();
    let after = |batches: &[usize]| {
        let mut stepper = Stepper::new(net.clone(), engine.as_ref(), &options()).unwrap();
        step_of(&mut stepper, batches);
        stepper.state().unwrap().running_stats
    };
    let (first, second, both) = (after(&[1]), after(&[2]), after(&[1, 2]));
    assert!(!both.is_empty() && first != second, "the batches have different statistics");
    for (name, found) in &both {
        let values = [found, &first[name], &second[name]].map(Tensor::to_f64_vec);
        for ((both, first), second) in values[0].iter().zip(&values[1]).zip(&values[2]) {
            let mean = (first + second) / 2.0;
            assert!((both - mean).abs() <= 1e-6 + 1e-5 * mean.abs(), "{name}: {both} instead of {mean}");
        }
    }
}

#[test]
fn running_statistics_of_several_batches_are_those_of_the_cpu() {
    let Some([mut on_gpu, mut on_cpu]) = both_of(&network_with_batch_norms(), &options()) else { return };
    for batches in [&[1, 2][..], &[3], &[4, 5, 6]] {
        step_of(&mut on_gpu, batches);
        step_of(&mut on_cpu, batches);
    }
    let [got, want] = [on_gpu, on_cpu].map(|stepper| stepper.state().unwrap().running_stats);
    assert_eq!(got.keys().collect::<Vec<&String>>(), want.keys().collect::<Vec<&String>>());
    let tensors = |of: &BTreeMap<String, Tensor>| of.values().cloned().collect::<Vec<Tensor>>();
    assert_close("running statistic", &tensors(&got), &tensors(&want));
}

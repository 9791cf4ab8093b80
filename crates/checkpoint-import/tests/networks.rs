//! Networks from tensors: recognized by their names, equal to those that the tensors come from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::{Values, checkpoint, python};
use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_checkpoint_import::{Architecture, Checkpoint, Imported, Normalization, Plans};
use cytoscope_graph::{Activation, Graph, Op, Padding, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;

type State = BTreeMap<String, Values>;

/// Reproducible numbers in -0.5..0.5.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    cytoscope_testkit::uniform(seed, count).into_iter().map(|v| v - 0.5).collect()
}

/// A state with random values; variances are positive.
fn state(shapes: &[(String, Vec<usize>)]) -> State {
    let of = |(i, (name, shape)): (usize, &(String, Vec<usize>))| {
        let mut values = noise(i as u64 + 1, shape.iter().product());
        if name.ends_with("running_var") {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        (name.clone(), (shape.clone(), values))
    };
    shapes.iter().enumerate().map(of).collect()
}

fn import(state: &State) -> Result<Imported, String> {
    let read = Checkpoint::from_bytes(&checkpoint(state, &["state_dict"])).unwrap();
    read.network(None, &Value::Null).map_err(|error| error.to_string())
}

fn run(graph: &Graph, x: &Tensor) -> Tensor {
    cytoscope_reference::run(graph, &[("x".into(), x.clone())]).unwrap().remove(0)
}

fn input(shape: &[usize]) -> Tensor {
    Tensor::new(shape, noise(99, shape.iter().product())).unwrap()
}

/// Collects the shapes of layers under PyTorch's names.
#[derive(Default)]
struct Shapes(Vec<(String, Vec<usize>)>);

impl Shapes {
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.0.push((name.to_owned(), shape.to_vec()));
    }

    /// A convolution with bias, 2-D, kernel `k`.
    fn conv(&mut self, name: &str, inputs: usize, outputs: usize, k: usize) {
        self.add(&format!("{name}.weight"), &[outputs, inputs, k, k]);
        self.add(&format!("{name}.bias"), &[outputs]);
    }

    fn transposed(&mut self, name: &str, inputs: usize, outputs: usize, k: usize) {
        self.add(&format!("{name}.weight"), &[inputs, outputs, k, k]);
        self.add(&format!("{name}.bias"), &[outputs]);
    }

    fn norm(&mut self, name: &str, channels: usize) {
        self.add(&format!("{name}.weight"), &[channels]);
        self.add(&format!("{name}.bias"), &[channels]);
    }

    fn batch_norm(&mut self, name: &str, channels: usize) {
        self.norm(name, channels);
        self.add(&format!("{name}.running_mean"), &[channels]);
        self.add(&format!("{name}.running_var"), &[channels]);
        self.add(&format!("{name}.num_batches_tracked"), &[]);
    }
}

fn torch_em() -> State {
    let mut s = Shapes::default();
    for (name, inputs, outputs) in [("encoder.blocks.0", 1, 4), ("base", 4, 8), ("decoder.blocks.0", 8, 4)] {
        s.conv(&format!("{name}.block.1"), inputs, outputs, 3);
        s.conv(&format!("{name}.block.4"), outputs, outputs, 3);
    }
    s.conv("decoder.samplers.0.conv", 8, 4, 1);
    s.conv("out_conv", 4, 3, 1);
    state(&s.0)
}

/// Channels 4 and 8, strides 2, one residual unit of two convolutions a level.
fn monai_unet() -> State {
    let mut s = Shapes::default();
    for (name, inputs, outputs, residual_kernel) in [("model.0", 1, 4, 3), ("model.1.submodule", 4, 8, 1)] {
        for (unit, inputs) in [(0, inputs), (1, outputs)] {
            s.conv(&format!("{name}.conv.unit{unit}.conv"), inputs, outputs, 3);
            s.add(&format!("{name}.conv.unit{unit}.adn.A.weight"), &[1]);
        }
        s.conv(&format!("{name}.residual"), inputs, outputs, residual_kernel);
    }
    s.transposed("model.2.0.conv", 12, 3, 3);
    s.add("model.2.0.adn.A.weight", &[1]);
    s.conv("model.2.1.conv.unit0.conv", 3, 3, 3);
    state(&s.0)
}

fn basic_unet() -> State {
    let mut s = Shapes::default();
    let features = [2, 3, 4, 6, 8];
    let two = |s: &mut Shapes, name: &str, inputs: usize, outputs: usize| {
        for (index, inputs) in [inputs, outputs].into_iter().enumerate() {
            s.conv(&format!("{name}.conv_{index}.conv"), inputs, outputs, 3);
            s.norm(&format!("{name}.conv_{index}.adn.N"), outputs);
        }
    };
    two(&mut s, "conv_0", 1, 2);
    for level in 1..5 {
        two(&mut s, &format!("down_{level}.convs"), features[level - 1], features[level]);
    }
    for level in (1..5).rev() {
        let up = if level == 1 { features[1] } else { features[level] / 2 };
        s.transposed(&format!("upcat_{level}.upsample.deconv"), features[level], up, 2);
        two(&mut s, &format!("upcat_{level}.convs"), features[level - 1] + up, features[level - 1]);
    }
    s.conv("final_conv", 2, 3, 1);
    state(&s.0)
}

fn segresnet() -> State {
    let mut s = Shapes::default();
    let block = |s: &mut Shapes, name: &str, channels: usize| {
        for index in 1..=2 {
            s.norm(&format!("{name}.norm{index}"), channels);
            s.add(&format!("{name}.conv{index}.conv.weight"), &[channels, channels, 3, 3]);
        }
    };
    s.add("convInit.conv.weight", &[8, 1, 3, 3]);
    block(&mut s, "down_layers.0.1", 8);
    s.add("down_layers.1.0.conv.weight", &[16, 8, 3, 3]);
    block(&mut s, "down_layers.1.1", 16);
    block(&mut s, "down_layers.1.2", 16);
    s.add("up_samples.0.0.conv.weight", &[8, 16, 1, 1]);
    block(&mut s, "up_layers.0.0", 8);
    s.norm("conv_final.0", 8);
    s.conv("conv_final.2.conv", 8, 3, 1);
    state(&s.0)
}

fn nnunet() -> State {
    let mut s = Shapes::default();
    let block = |s: &mut Shapes, name: &str, inputs: usize, outputs: usize| {
        s.conv(&format!("{name}.conv"), inputs, outputs, 3);
        s.norm(&format!("{name}.norm"), outputs);
        // nnU-Net stores every layer twice.
        s.conv(&format!("{name}.all_modules.0"), inputs, outputs, 3);
        s.norm(&format!("{name}.all_modules.1"), outputs);
    };
    block(&mut s, "encoder.stages.0.0.convs.0", 1, 4);
    block(&mut s, "encoder.stages.1.0.convs.0", 4, 8);
    block(&mut s, "decoder.encoder.stages.0.0.convs.0", 1, 4);
    s.transposed("decoder.transpconvs.0", 8, 4, 2);
    block(&mut s, "decoder.stages.0.convs.0", 8, 4);
    s.conv("decoder.seg_layers.0", 4, 3, 1);
    state(&s.0)
}

fn fnet() -> State {
    let mut s = Shapes::default();
    let two = |s: &mut Shapes, name: &str, inputs: usize, outputs: usize| {
        for (index, inputs) in [(1, inputs), (2, outputs)] {
            s.conv(&format!("{name}.conv{index}"), inputs, outputs, 3);
            s.batch_norm(&format!("{name}.bn{index}"), outputs);
        }
    };
    two(&mut s, "net_recurse.sub_2conv_more", 1, 4);
    s.conv("net_recurse.conv_down", 4, 4, 2);
    s.batch_norm("net_recurse.bn0", 4);
    two(&mut s, "net_recurse.sub_u.sub_2conv_more", 4, 8);
    s.transposed("net_recurse.convt", 8, 4, 2);
    s.batch_norm("net_recurse.bn1", 4);
    two(&mut s, "net_recurse.sub_2conv_less", 8, 4);
    s.conv("conv_out", 4, 3, 3);
    state(&s.0)
}

#[test]
fn architectures_are_recognized_and_every_tensor_counts() {
    let cases: [(Architecture, State); 6] = [
        (Architecture::TorchEmUNet, torch_em()),
        (Architecture::MonaiUNet, monai_unet()),
        (Architecture::BasicUNet, basic_unet()),
        (Architecture::SegResNet, segresnet()),
        (Architecture::NnUNet, nnunet()),
        (Architecture::Fnet, fnet()),
    ];
    let x = input(&[1, 1, 16, 32]);
    for (architecture, state) in cases {
        let name = architecture.name();
        let made = import(&state).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(made.architecture, architecture);
        let y = run(&made.graph, &x);
        assert_eq!(y.shape(), [1, 3, 16, 32], "{name}");
        // The tensors of a Lightning module have a prefix.
        let wrapped: State = state.iter().map(|(k, v)| (format!("net.backbone.{k}"), v.clone())).collect();
        assert_eq!(run(&import(&wrapped).unwrap().graph, &x), y, "{name}");
        for tensor in state.keys() {
            let is_copy = tensor.contains("all_modules") || tensor.starts_with("decoder.encoder");
            if is_copy || tensor.ends_with("num_batches_tracked") {
                continue;
            }
            // A norm removes the bias of the convolution before it.
            let counts = |made: &Imported| tensor.ends_with("conv.bias") || run(&made.graph, &x) != y;
            let mut changed = state.clone();
            changed.get_mut(tensor).unwrap().1.iter_mut().for_each(|v| *v = *v * 3.0 + 0.5);
            assert!(counts(&import(&changed).unwrap()), "{name}: {tensor}");
            let mut other = state.clone();
            let (mut shape, _) = other.remove(tensor).unwrap();
            match import(&other) {
                Err(error) => {
                    let words = ["is missing", "not recognized", "has no tensors"];
                    assert!(words.iter().any(|word| error.contains(word)), "{name}: {tensor}: {error}");
                }
                Ok(without) => assert!(tensor.ends_with("bias") && counts(&without), "{name}: {tensor}"),
            }
            let is_transposed =
                ["transp", "deconv", "convt", "model.2.0.conv"].iter().any(|part| tensor.contains(part));
            let axis = usize::from(shape.len() > 1 && !is_transposed);
            if axis == 1 && shape[1] == 1 {
                // The first convolution decides on the number of input channels.
                continue;
            }
            shape[axis] += 4;
            let values = noise(1, shape.iter().product());
            other.insert(tensor.clone(), (shape, values));
            let error = import(&other).unwrap_err();
            assert!(error.contains(&format!("\"{tensor}\" has ")), "{name}: {tensor}: {error}");
        }
        let mut more = state.clone();
        more.insert("aux_head.weight".to_owned(), (vec![1], vec![0.0]));
        let error = import(&more).unwrap_err();
        assert!(error.contains("aux_head.weight") && error.contains(name), "{error}");
    }
}

#[test]
fn dynunet_is_the_one_of_the_builders() {
    for residual in [true, false] {
        let config = DynUNet { filters: vec![4, 6, 8], residual, out_channels: 2, ..DynUNet::default() };
        let built = dynunet(&config, &Weights::Random { seed: 4 }).unwrap();
        let mut state: State = built
            .named_initializers()
            .iter()
            .map(|(name, t)| (name.clone(), (t.shape().to_vec(), t.as_f32().unwrap().to_vec())))
            .collect();
        // MONAI stores blocks again under the names of their skips, and heads for training.
        state.insert("skip_layers.downsample.conv1.conv.weight".to_owned(), (vec![1], vec![0.0]));
        state.insert("deep_supervision_heads.0.conv.conv.weight".to_owned(), (vec![1], vec![0.0]));
        let made = import(&state).unwrap();
        assert_eq!(made.architecture, Architecture::DynUNet);
        let x = input(&[1, 1, 8, 12, 16]);
        assert_eq!(run(&made.graph, &x), run(&built, &x), "residual: {residual}");
    }
}

#[test]
fn settings_missing_from_tensors_are_required_or_assumed() {
    let read = Checkpoint::from_bytes(&checkpoint(&monai_unet(), &[])).unwrap();
    let assumed = read.network(None, &Value::Null).unwrap().assumptions.join("; ");
    assert!(assumed.contains("strides are 2") && assumed.contains("instance norms"), "{assumed}");
    let given = read.network(None, &json!({"strides": [2], "norm": "INSTANCE", "act": ["PRELU", {}]})).unwrap();
    assert_eq!(given.assumptions, Vec::<String>::new());
    let x = input(&[1, 1, 32, 48]);
    assert_eq!(run(&given.graph, &x), run(&read.network(None, &Value::Null).unwrap().graph, &x));
    let error = read.network(None, &json!({"act": "relu"})).unwrap_err().to_string();
    assert!(error.contains("act = relu: expected prelu"), "{error}");
    let error = read.network(None, &json!({"act": "swish"})).unwrap_err().to_string();
    assert!(error.contains("swish") && error.contains("torch.onnx.export"), "{error}");
    let read = Checkpoint::from_bytes(&checkpoint(&torch_em(), &[])).unwrap();
    let y = run(&read.network(None, &json!({"final_activation": "Sigmoid"})).unwrap().graph, &x);
    assert!(y.as_f32().unwrap().iter().all(|v| (0.0..=1.0).contains(v)));
    assert!(read.network(None, &json!({"final_activation": "Softmax"})).is_err());
    assert!(read.network(None, &json!({"postprocessing": "affinities_to_boundaries2d"})).is_err());
    let error = read.network(None, &json!({"scale_factors": [[1, 2, 2], [2, 2, 2]]})).unwrap_err().to_string();
    assert!(error.contains("scale_factors = [[1,2,2],[2,2,2]]"), "{error}");
    let halved = read.network(None, &json!({"scale_factors": [[2, 2]]})).unwrap();
    assert!(!halved.assumptions.join("; ").contains("halves"), "{:?}", halved.assumptions);
    // A number of groups that is not a number is not replaced by the default.
    let read = Checkpoint::from_bytes(&checkpoint(&segresnet(), &[])).unwrap();
    let error = read.network(None, &json!({"num_groups": "four"})).unwrap_err().to_string();
    assert!(error.contains("num_groups = \"four\""), "{error}");
    let error = read.network(None, &json!({"norm": "batch"})).unwrap_err().to_string();
    assert!(error.contains("norm = batch: expected group or instance"), "{error}");
    let read = Checkpoint::from_bytes(&checkpoint(&torch_em(), &[])).unwrap();
    // A requested architecture is not replaced by another.
    let error = read.network(Some(Architecture::SegResNet), &Value::Null).unwrap_err().to_string();
    assert!(error.contains("convInit.conv.weight") && error.contains("base.block"), "{error}");
    let error = "resnet50".parse::<Architecture>().unwrap_err().to_string();
    assert!(error.contains("resnet50") && error.contains("dynunet"), "{error}");
    let unknown = import(&BTreeMap::from([("fc.weight".to_owned(), (vec![1, 1], vec![0.0]))])).unwrap_err();
    assert!(unknown.contains("fc.weight") && unknown.contains("segresnet") && unknown.contains("onnx"), "{unknown}");
    let mut broken = torch_em();
    broken.get_mut("base.block.1.weight").unwrap().1[3] = f32::NAN;
    let values = broken["base.block.1.weight"].1.len();
    let refused = import(&broken).unwrap_err();
    let named = format!("\"base.block.1.weight\" contains values that are NaN or infinite (1 of {values})");
    assert!(refused.contains(&named) && refused.contains("import a checkpoint from before"), "{refused}");
    assert!(!refused.contains("do not fit the architecture"), "{refused}");
}

#[test]
fn settings_of_activations_and_norms_are_those_of_the_package() {
    let network = |state: &State, kwargs: Value| {
        Checkpoint::from_bytes(&checkpoint(state, &[])).unwrap().network(None, &kwargs).map_err(|e| e.to_string())
    };
    let slopes = |made: &Imported| -> Vec<f32> {
        let of = |op: &Op| if let Op::Activation(Activation::LeakyRelu { alpha }) = op { Some(*alpha) } else { None };
        made.graph.nodes.iter().filter_map(|node| of(&node.op)).collect()
    };
    // Without a slope, PyTorch's default is that of the layer, not that of the network.
    let cases = [(json!("LEAKYRELU"), 0.01), (json!(["leakyrelu", {"negative_slope": 0.25}]), 0.25)];
    for (act, slope) in cases {
        let made = network(&basic_unet(), json!({"act": act, "norm": ["instance", {"eps": 0.125, "affine": true}]}));
        let made = made.unwrap();
        assert_eq!(slopes(&made), [slope; 18]);
        assert_eq!(made.assumptions, Vec::<String>::new());
        let norm = Op::InstanceNormalization { epsilon: 0.125 };
        assert_eq!(made.graph.nodes.iter().filter(|node| node.op == norm).count(), 18);
    }
    assert_eq!(slopes(&network(&basic_unet(), Value::Null).unwrap()), [0.1; 18]);
    for bad in [json!({"norm": null}), json!({"act": ["leakyrelu", {"negative_slope": "a"}]})] {
        let error = network(&basic_unet(), bad).unwrap_err();
        assert!(error.contains("null") || error.contains("negative_slope"), "{error}");
    }
    // Group norms have tensors of the same names: the assumption is listed.
    let assumed = network(&basic_unet(), Value::Null).unwrap().assumptions.join("; ");
    assert!(assumed.contains("instance norms"), "{assumed}");
    let made = network(&segresnet(), json!({"norm": ["INSTANCE", {"affine": true}]})).unwrap();
    assert!(!made.graph.nodes.iter().any(|node| matches!(node.op, Op::GroupNormalization { .. })));
    assert!(!made.assumptions.join("; ").contains("groups"), "{:?}", made.assumptions);
}

#[test]
fn strides_of_dynunet_change_the_padding() {
    let mut s = Shapes::default();
    for (name, inputs, outputs) in [("input_block", 1, 2), ("bottleneck", 2, 4), ("upsamples.0.conv_block", 4, 2)] {
        for (index, inputs) in [(1, inputs), (2, outputs)] {
            s.add(&format!("{name}.conv{index}.conv.weight"), &[outputs, inputs, 3, 3]);
            s.norm(&format!("{name}.norm{index}"), outputs);
        }
    }
    s.add("upsamples.0.transp_conv.conv.weight", &[4, 2, 3, 2]);
    s.conv("output_block.conv.conv", 2, 3, 1);
    let made = import(&state(&s.0)).unwrap();
    let strided = made.graph.nodes.iter().find_map(|node| match &node.op {
        Op::Conv(attrs) if attrs.strides == [3, 2] => Some(attrs.padding.clone()),
        _ => None,
    });
    // A kernel of 3: (3 - 3 + 1) / 2 and (3 - 2 + 1) / 2, rounded down.
    assert_eq!(strided, Some(Padding::symmetric(vec![0, 1])));
    assert_eq!(run(&made.graph, &input(&[1, 1, 12, 8])).shape(), [1, 3, 12, 8]);
    let stated = |strides: Value| {
        let read = Checkpoint::from_bytes(&checkpoint(&state(&s.0), &[])).unwrap();
        read.network(None, &json!({"strides": strides})).map_err(|error| error.to_string())
    };
    let assumed = stated(json!([[1, 1], [3, 2]])).unwrap().assumptions.join("; ");
    assert!(!assumed.contains("stride"), "{assumed}");
    let error = stated(json!([[1, 2], [3, 2]])).unwrap_err();
    assert!(error.contains("strides[0] = [1,2]") && error.contains("torch.onnx.export"), "{error}");
}

#[test]
fn architectures_are_stored_by_the_names_of_the_command_line() {
    for architecture in Architecture::ALL {
        assert_eq!(serde_json::to_value(architecture).unwrap(), architecture.name());
        assert_eq!(architecture.name().parse::<Architecture>().unwrap(), architecture);
    }
}

#[test]
fn plans_of_nnunet_are_read() {
    let plans = json!({
        "transpose_forward": [0, 1, 2],
        "configurations": {
            "3d_fullres": {"spacing": [2.0, 0.5, 0.5], "normalization_schemes": ["ZScoreNormalization"]},
            "3d_cascade": {"inherits_from": "3d_fullres", "spacing": [4.0, 1.0, 1.0]},
            "ct": {"normalization_schemes": ["CTNormalization"]},
            "loop": {"inherits_from": "loop"},
            "orphan": {"inherits_from": "3d_lowres", "normalization_schemes": ["ZScoreNormalization"]},
            "masked": {"inherits_from": "3d_fullres", "use_mask_for_norm": [true]},
            "whole": {"inherits_from": "3d_fullres", "use_mask_for_norm": [false]},
            "text": {"inherits_from": "3d_fullres", "spacing": [2.0, "0.5", 0.5]},
        },
    });
    let read = Plans::read(&plans, "3d_cascade").unwrap();
    assert_eq!(read, Plans { normalization: Normalization::ZScore, spacing: vec![4.0, 1.0, 1.0] });
    assert_eq!(Plans::read(&plans, "whole").unwrap(), Plans::read(&plans, "3d_fullres").unwrap());
    for (configuration, words) in [
        ("ct", "CTNormalization"),
        ("loop", "inherits from itself"),
        ("orphan", "\"3d_lowres\", which is not in the plans"),
        ("masked", "use_mask_for_norm"),
        ("text", "expected numbers"),
        ("2d", "3d_cascade"),
    ] {
        let error = Plans::read(&plans, configuration).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(Plans::read(&json!({"transpose_forward": [1, 0, 2], "configurations": {"a": {}}}), "a").is_err());
}

#[test]
fn networks_of_the_installed_monai_give_the_same_outputs() {
    let script = "
import sys, torch
from monai.networks.nets import UNet, BasicUNet, DynUNet, SegResNet
torch.manual_seed(3)
nets = {
    'unet': UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2),
    'plain': UNet(3, 1, 2, (4, 8, 16), (2, 2), norm='batch'),
    'basic': BasicUNet(3, 1, 2, (4, 4, 6, 8, 10, 4)),
    'basicup': BasicUNet(3, 1, 2, (4, 4, 6, 8, 10, 4), upsample='nontrainable'),
    'dynunet': DynUNet(3, 1, 2, [3, (1, 3, 3), 3], [1, (1, 2, 2), 2], [(1, 2, 2), 2], filters=[4, 6, 8], res_block=True),
    'segresnet': SegResNet(3, 8, 1, 2),
}
x = torch.randn(1, 1, 16, 32, 32)
torch.save({'x': x}, sys.argv[1] + '/x.pt')
for name, net in nets.items():
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm3d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    torch.save({'state_dict': net.state_dict()}, f'{sys.argv[1]}/{name}.pt')
    with torch.no_grad():
        torch.save({'y': net.eval()(x)}, f'{sys.argv[1]}/{name}_y.pt')
print(*nets)
";
    let folder = tempfile::tempdir().unwrap();
    let Some(names) = python("torch, monai", script, &[folder.path()]) else { return };
    let read = |name: &str| Checkpoint::from_bytes(&std::fs::read(folder.path().join(name)).unwrap()).unwrap();
    let x = read("x.pt").tensors()["x"].to_tensor().unwrap();
    for name in names.split_whitespace() {
        let made = read(&format!("{name}.pt")).network(None, &Value::Null).unwrap();
        let expected = read(&format!("{name}_y.pt")).tensors()["y"].to_tensor().unwrap();
        let got = run(&made.graph, &x);
        assert_eq!(got.shape(), expected.shape(), "{name}");
        let worst = cytoscope_testkit::largest_difference(got.as_f32().unwrap(), expected.as_f32().unwrap());
        assert!(worst < 1e-4, "{name}: {worst}");
    }
}

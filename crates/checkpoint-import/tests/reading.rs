//! Weight files: what is read, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use common::{View, archive, checkpoint, dict, int, python, text, view};
use cytoscope_checkpoint_import::{Checkpoint, CytoDlHead, START_BYTES, is_torch_save};
use cytoscope_graph::ElementType;
use cytoscope_testkit::shared_data;
use std::collections::BTreeMap;

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().keys().map(String::as_str).collect()
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f64> {
    checkpoint.tensors()[name].to_tensor().unwrap().to_f64_vec()
}

fn refused(bytes: &[u8]) -> String {
    Checkpoint::from_bytes(bytes).unwrap_err().to_string()
}

/// A checkpoint with one tensor `t`.
fn one(of: &View<'_>) -> Vec<u8> {
    archive(&dict(&[("t", view(0, of))]), &[of.bytes], &[])
}

#[test]
fn every_type_is_read() {
    let cases: [(&str, ElementType, &[u8], [f64; 2]); 10] = [
        ("FloatStorage", ElementType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], [1.0, -2.0]),
        ("DoubleStorage", ElementType::F64, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0], [1.0, -2.0]),
        ("HalfStorage", ElementType::F16, &[0, 0x3c, 0, 0xc0], [1.0, -2.0]),
        ("BFloat16Storage", ElementType::BF16, &[0x80, 0x3f, 0, 0xc0], [1.0, -2.0]),
        ("CharStorage", ElementType::I8, &[1, 0xfe], [1.0, -2.0]),
        ("ByteStorage", ElementType::U8, &[1, 0xfe], [1.0, 254.0]),
        ("ShortStorage", ElementType::I16, &[1, 0, 0xfe, 0xff], [1.0, -2.0]),
        ("IntStorage", ElementType::I32, &[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff], [1.0, -2.0]),
        (
            "LongStorage",
            ElementType::I64,
            &[1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 255, 255, 255, 255, 255, 255, 255],
            [1.0, -2.0],
        ),
        ("BoolStorage", ElementType::Bool, &[1, 0], [1.0, 0.0]),
    ];
    for (class, dtype, bytes, expected) in cases {
        let of = View { class, bytes, elements: 2, shape: &[2], strides: &[1], offset: 0 };
        let read = Checkpoint::from_bytes(&one(&of)).unwrap();
        assert_eq!(read.tensors()["t"].dtype(), dtype);
        assert_eq!(values(&read, "t"), expected, "{class}");
    }
    let of = View { class: "QInt8Storage", bytes: &[1], elements: 1, shape: &[1], strides: &[1], offset: 0 };
    assert!(refused(&one(&of)).contains("\"t\" has a storage of an unknown type"));
}

#[test]
fn strides_and_offset_select_elements_and_stay_in_the_storage() {
    let bytes: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let of = View { class: "FloatStorage", bytes: &bytes, elements: 8, shape: &[3, 2], strides: &[1, 3], offset: 2 };
    // A transposed 2 × 3 view that starts at the third element.
    assert_eq!(values(&Checkpoint::from_bytes(&one(&of)).unwrap(), "t"), [2.0, 5.0, 3.0, 6.0, 4.0, 7.0]);
    let huge = usize::try_from(u32::MAX / 4).unwrap();
    let views: [(&[usize], &[usize], usize); 8] = [
        (&[3, 2], &[1, 3], 3),
        (&[2], &[8], 0),
        (&[9], &[1], 0),
        (&[8], &[1, 1], 0),
        (&[8], &[0], 1),
        (&[huge, huge], &[1, 1], 0),
        (&[2, 2], &[huge, huge], 0),
        (&[1], &[1], 8),
    ];
    for (shape, strides, offset) in views {
        let problem = Checkpoint::from_bytes(&one(&View { shape, strides, offset, ..of }));
        match problem {
            // Repeating an element is a view that fits: it is not larger than its storage.
            Ok(read) if strides == [0] => assert_eq!(values(&read, "t"), [1.0; 8]),
            other => {
                let message = other.unwrap_err().to_string();
                assert!(message.contains("\"t\"") && message.contains("extends beyond"), "{shape:?}: {message}");
            }
        }
    }
    let of = View { class: "FloatStorage", bytes: &bytes, elements: 9, shape: &[8], strides: &[1], offset: 0 };
    assert!(refused(&one(&of)).contains("shorter than declared"));
}

#[test]
fn tensors_that_share_a_storage_are_limited_by_the_size_of_the_file() {
    let bytes = vec![0; 1 << 16];
    let of =
        View { class: "ByteStorage", bytes: &bytes, elements: 1 << 16, shape: &[1 << 16], strides: &[1], offset: 0 };
    let shared = |count: usize| {
        let names: Vec<String> = (0..count).map(|i| format!("w{i}")).collect();
        let entries: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (name.as_str(), view(0, &of))).collect();
        archive(&dict(&entries), &[of.bytes], &[])
    };
    assert_eq!(names(&Checkpoint::from_bytes(&shared(8)).unwrap()).len(), 8);
    let message = refused(&shared(64));
    assert!(message.contains("tensors of 4194304 bytes in a file of"), "{message}");
}

#[test]
fn files_of_torch_save_are_recognized_from_their_start() {
    let of = View { class: "ByteStorage", bytes: &[7], elements: 1, shape: &[1], strides: &[1], offset: 0 };
    let start = |bytes: &[u8]| is_torch_save(&bytes[..bytes.len().min(START_BYTES)]);
    assert!(start(&one(&of)));
    assert!(start(&[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.']));
    for other in [&b""[..], b"PK\x03\x04", b"PK\x05\x06", &[0x80, 2, b'}', b'.'], &one(&of)[..40]] {
        assert!(!start(other), "{other:?}");
    }
}

#[test]
fn names_and_axes_of_tensors_are_limited() {
    let of = View { class: "ByteStorage", bytes: &[7], elements: 1, shape: &[1], strides: &[1], offset: 0 };
    let nested = |depth: usize, key: &str| {
        let wrap = |inner, _| dict(&[(key, inner)]);
        archive(&(0..depth).fold(dict(&[("w", view(0, &of))]), wrap), &[of.bytes], &[])
    };
    assert_eq!(names(&Checkpoint::from_bytes(&nested(2, "part")).unwrap()), ["part.part.w"]);
    // Long names in every dictionary, each of which is read once for each way to it.
    let long = "a".repeat(600);
    assert_eq!(names(&Checkpoint::from_bytes(&nested(1, &long)).unwrap()), [format!("{long}.w")]);
    let message = refused(&nested(2, &long));
    assert!(message.contains("a name of 12") && message.contains("more than the limit of 1024"), "{message}");
    // Long names of other entries do not matter.
    let longer = "a".repeat(2000);
    let other = dict(&[(longer.as_str(), int(1)), ("w", view(0, &of))]);
    assert_eq!(names(&Checkpoint::from_bytes(&archive(&other, &[of.bytes], &[])).unwrap()), ["w"]);
    for axes in [9, 100_000] {
        let ones = vec![1; axes];
        let message = refused(&one(&View { shape: &ones, strides: &ones, ..of }));
        assert!(message.contains(&format!("a tensor of {axes} axes, \"t\"")) && message.len() < 200, "{message}");
    }
}

#[test]
fn names_and_axes_in_safetensors_are_limited() {
    let file = |name: &str, shape: &str| {
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7]].concat()
    };
    assert_eq!(values(&Checkpoint::from_bytes(&file("w", "1,1")).unwrap(), "w"), [7.0]);
    assert!(refused(&file(&"w".repeat(1025), "1")).contains("a name of 1025 bytes"));
    let message = refused(&file("w", &["1"; 50_000].join(",")));
    assert!(message.contains("a tensor of 50000 axes, \"w\"") && message.len() < 200, "{message}");
    let entry = |i: usize| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let header = format!("{{{}}}", (0..=1 << 16).map(entry).collect::<Vec<_>>().join(","));
    let many = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    assert!(refused(&many).contains("65537 tensors"));
}

#[test]
fn weights_are_found_among_other_entries() {
    let tensors = BTreeMap::from([("conv.weight".to_owned(), (vec![2, 1], vec![3.0, 4.0]))]);
    for wrap in [&[][..], &["state_dict"], &["model_state_dict"], &["network_weights"], &["any", "other"]] {
        let read = Checkpoint::from_bytes(&checkpoint(&tensors, wrap)).unwrap();
        let prefix = if wrap.len() == 2 { "any.other." } else { "" };
        assert_eq!(names(&read), [format!("{prefix}conv.weight")]);
        assert_eq!(values(&read, &format!("{prefix}conv.weight")), [3.0, 4.0]);
    }
    let of = View { class: "ByteStorage", bytes: &[7], elements: 1, shape: &[1], strides: &[1], offset: 0 };
    let moment = dict(&[("exp_avg", view(0, &of))]);
    // A parameter is a tensor, and the versions of modules are attributes of the dictionary.
    let mut state = b"ccollections\nOrderedDict\n)R(".to_vec();
    state.extend([text("w"), b"ctorch._utils\n_rebuild_parameter\n(".to_vec(), view(0, &of)].concat());
    state.extend([b"\x88NtRu".to_vec(), dict(&[("_metadata", int(1))]), b"b".to_vec()].concat());
    let root = dict(&[("optimizer_states", moment.clone()), ("epoch", int(5)), ("weights_of_mine", state)]);
    let read = Checkpoint::from_bytes(&archive(&root, &[&[7]], &[])).unwrap();
    assert_eq!(names(&read), ["weights_of_mine.w"]);
    let nothing = archive(&dict(&[("optimizer_states", moment)]), &[&[7]], &[]);
    assert!(refused(&nothing).contains("holds no weights"));
}

#[test]
fn python_objects_are_refused_by_name_and_never_constructed() {
    let attacks: [(&[u8], &str); 5] = [
        (b"cos\nsystem\n(X\x04\x00\x00\x00truetR", "os.system"),
        (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR", "builtins.eval"),
        (b"\x8c\x02os\x8c\x06system\x93)R", "os.system"),
        (b"cmy.nets\nNet\n)\x81}b", "my.nets.Net"),
        (b"(S'true'\nios\nsystem\n", "opcode 0x53"),
    ];
    for (pickled, named) in attacks {
        let message = refused(&archive(pickled, &[], &[]));
        assert!(message.contains(named) && message.contains("not accepted"), "{message}");
        assert!(message.contains("state_dict()"), "{message}");
    }
    // Settings of training programs are names only.
    let settings: [&[u8]; 2] = [
        b"}(X\x01\x00\x00\x00acpathlib\nPosixPath\n(X\x01\x00\x00\x00ptRu",
        // The state of a `MultiStepLR` with one milestone.
        b"}(X\x01\x00\x00\x00accollections\nCounter\n}(J\x03\x00\x00\x00J\x01\x00\x00\x00u\x85Ru",
    ];
    for pickled in settings {
        let message = refused(&archive(pickled, &[], &[]));
        assert!(message.contains("holds no weights"), "{message}");
    }
}

#[test]
fn other_formats_are_refused_with_a_next_step() {
    assert!(refused(b"abc").contains("neither safetensors nor a zip"));
    let legacy =
        [&[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'][..], b"\x80\x02M"];
    assert!(refused(&legacy.concat()).contains("torch.save(torch.load("));
    let script = archive(b"}", &[], &[("constants.pkl", b"\x80\x02).")]);
    assert!(refused(&script).contains("TorchScript") && refused(&script).contains("torch.onnx.export"));
    assert!(refused(&archive(b"}", &[], &[("byteorder", b"big")])).contains("big-endian"));
    assert!(refused(&archive(b"K\x01", &[], &[])).contains("no dictionary"));
}

#[test]
fn safetensors_are_read() {
    let header = r#"{"a.weight":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},"n":{"dtype":"I64","shape":[],"data_offsets":[4,12]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0, 0x3c, 0, 0xc0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let read = Checkpoint::from_bytes(&bytes).unwrap();
    assert_eq!((values(&read, "a.weight"), values(&read, "n")), (vec![1.0, -2.0], vec![3.0]));
    bytes.pop();
    assert!(refused(&bytes).contains("malformed"));
}

#[test]
fn real_checkpoints_are_read_or_refused() {
    let Some(data) = shared_data("checkpoints") else { return };
    let folder = data.join("reader_cases");
    let read = |name: &str| {
        Checkpoint::from_bytes(&std::fs::read(folder.join(name)).unwrap()).map_err(|error| error.to_string())
    };
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        match read(&name) {
            Ok(found) => {
                assert!(!name.contains("legacy") && !name.contains("broken"), "{name}");
                found.tensors().values().for_each(|t| assert_eq!(t.to_tensor().unwrap().shape(), t.shape()));
                count += 1;
            }
            Err(message) if name.contains("legacy") => assert!(message.contains("before version 1.6"), "{message}"),
            Err(message) => assert!(name.contains("broken"), "{name}: {message}"),
        }
    }
    assert!(count >= 50, "{count}");
    let tensor =
        |case: &str, name: &str| values(&read(&format!("src_pytorch_tests_reader_test_data_{case}.pt")).unwrap(), name);
    assert_eq!(tensor("float16", "tensor"), [1.5, -2.25, 3.125]);
    assert_eq!(tensor("float64", "tensor"), [1.1, 2.2, 3.3]);
    assert_eq!(tensor("int16", "tensor"), [1000.0, -2000.0, 3000.0]);
    assert_eq!(tensor("scalar", "tensor"), [42.0]);
    assert!(tensor("empty", "tensor").is_empty());
    assert_eq!(tensor("buffers", "buffer2"), [1.0, 0.0]);
    assert_eq!(tensor("tensor_2d", "tensor"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(tensor("parameter", "param")[0], f64::from(1.024_911_9f32));
    let nested = read("src_pytorch_tests_reader_test_data_complex_structure.pt").unwrap();
    assert!(names(&nested).contains(&"state.encoder.layer_0.weight"), "{:?}", names(&nested));
    let legacy = std::fs::read(data.join("tiktorch/CREMI_DUNet_state.nn")).unwrap();
    assert!(refused(&legacy).contains("before version 1.6"));
}

#[test]
fn files_of_the_installed_pytorch_are_read() {
    let script = "
import sys, torch
base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
state = {'plain': base, 'turned': base.permute(2, 0, 1), 'part': base[1, :, 1:3], 'half': base.half() / 8,
         'brain': base.bfloat16(), 'counts': torch.tensor([1, -2]), 'param': torch.nn.Parameter(base[0] * 2)}
torch.save({'state_dict': state, 'epoch': 3, 'optimizer_states': [{'lr': 0.1}]}, sys.argv[1])
for name, tensor in state.items():
    print(name, *tensor.shape, '|', *tensor.detach().double().flatten().tolist())
";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.pt");
    let Some(printed) = python("torch", script, &[&path]) else { return };
    let read = Checkpoint::from_bytes(&std::fs::read(&path).unwrap()).unwrap();
    for line in printed.lines() {
        let (head, numbers) = line.split_once('|').unwrap();
        let mut head = head.split_whitespace();
        let name = head.next().unwrap();
        let shape: Vec<usize> = head.map(|n| n.parse().unwrap()).collect();
        let expected: Vec<f64> = numbers.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!((read.tensors()[name].shape(), values(&read, name)), (shape.as_slice(), expected), "{name}");
    }
    assert_eq!(read.tensors().len(), 7);
}

#[test]
fn settings_of_cytodl_say_what_the_network_predicts() {
    let of = View { class: "ByteStorage", bytes: &[7], elements: 1, shape: &[1], strides: &[1], offset: 0 };
    let target = |class: &str| dict(&[("_target_", text(class))]);
    let head = |loss: &str, activation: &str| {
        let prediction = dict(&[("activation", target(activation))]);
        dict(&[("loss", target(loss)), ("postprocess", dict(&[("prediction", prediction)]))])
    };
    let read = |heads: &[(&str, Vec<u8>)]| {
        let settings = dict(&[("x_key", text("brightfield")), ("task_heads", dict(heads))]);
        let root = dict(&[("state_dict", dict(&[("w", view(0, &of))])), ("hyper_parameters", settings)]);
        Checkpoint::from_bytes(&archive(&root, &[&[7]], &[])).unwrap().cytodl_head()
    };
    let found = |predicts_intensities, has_sigmoid| Some(CytoDlHead { predicts_intensities, has_sigmoid });
    let stain = head("torch.nn.MSELoss", "torch.nn.Identity");
    assert_eq!(read(&[("dna", stain.clone())]), found(true, false));
    let objects = head("monai.losses.DiceCELoss", "torch.nn.Sigmoid");
    assert_eq!(read(&[("seg", objects.clone())]), found(false, true));
    // If there are several heads, it is not known which one's output is used.
    assert_eq!(read(&[("dna", stain), ("seg", objects)]), None);
    assert_eq!(read(&[("dna", text("none"))]), None);
    assert_eq!(Checkpoint::from_bytes(&one(&of)).unwrap().cytodl_head(), None);
}

//! Packages that are hostile or state impossible numbers are refused, and nothing outside the package is read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_builders::{DynUNet, Weights, dynunet};
use cytoscope_graph::Tensor;
use cytoscope_model_package::{AxisKind, AxisSize, Files, MAX_FILES, Package, PackageError, Tolerance, compare};
use std::io::Write;
use std::path::Path;

fn model() -> Vec<u8> {
    let config = DynUNet { filters: vec![1, 2], strides: vec![1, 2], ..DynUNet::default() };
    cytoscope_onnx::to_bytes(&dynunet(&config, &Weights::Random { seed: 0 }).unwrap()).unwrap()
}

/// Returns a description of specification 0.5; `z_axis` and `step` replace parts of the Z axis and of the single
/// processing step.
fn rdf_05(z_axis: &str, step: &str) -> String {
    format!(
        "format_version: 0.5.3\ntype: model\nname: small\nweights: {{onnx: {{source: model.onnx}}}}\n\
         inputs:\n- id: raw\n  axes:\n  - {{type: batch}}\n  - {{type: channel, channel_names: [raw]}}\n\
         {z}\n  - {{type: space, id: y, size: {{min: 4, step: 2}}}}\n  - {{type: space, id: x, size: {{min: 4, step: 2}}}}\n\
         \x20 preprocessing:\n  - {step}\n\
         outputs:\n- id: map\n  axes:\n  - {{type: batch}}\n  - {{type: channel, channel_names: [map]}}\n\
         \x20 - {{type: space, id: z, size: {{tensor_id: raw, axis_id: z}}}}\n\
         \x20 - {{type: space, id: y, size: {{tensor_id: raw, axis_id: y}}}}\n\
         \x20 - {{type: space, id: x, size: {{tensor_id: raw, axis_id: x}}}}\n",
        z = format_args!("  - {{type: space, id: z, {z_axis}}}"),
    )
}

const Z: &str = "unit: micrometer, scale: 0.5, halo: 2, size: {min: 4, step: 2}";
const STEP: &str = "{id: zero_mean_unit_variance, kwargs: {eps: 1.0e-6}}";

fn rdf_04(shape: &str, halo: &str) -> String {
    format!(
        "format_version: 0.4.10\ntype: model\nname: small\nweights: {{onnx: {{source: model.onnx}}}}\n\
         inputs:\n- {{name: raw, axes: bczyx, data_type: float32, shape: {shape}}}\n\
         outputs:\n- name: map\n  axes: bczyx\n  data_type: float32\n  halo: {halo}\n\
         \x20 shape: {{reference_tensor: raw, scale: [1.0, 0.0, 1.0, 1.0, 1.0], offset: [0.0, 0.5, 0.0, 0.0, 0.0]}}\n"
    )
}

fn folder_with(rdf: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rdf.yaml"), rdf).unwrap();
    std::fs::write(folder.path().join("model.onnx"), model()).unwrap();
    folder
}

fn refused(rdf: &str, says: &[&str]) {
    let folder = folder_with(rdf);
    let error = Package::open(folder.path()).unwrap_err();
    assert!(matches!(error, PackageError::Bad { .. }), "{error}");
    let text = error.to_string();
    assert!(text.len() < 600, "{text}");
    for part in says {
        assert!(text.contains(part), "\"{text}\" does not say \"{part}\"");
    }
}

#[test]
fn ordinary_descriptions_open() {
    let new = Package::open(folder_with(&rdf_05(Z, STEP)).path()).unwrap();
    let z = new.inputs[0].axis(AxisKind::Z).unwrap();
    assert_eq!((z.voxel_um, z.halo, &z.size), (Some(0.5), 2, &AxisSize::Step { min: 4, step: 2 }));
    let shape = "{min: [1, 1, 4.0, 4, 4], step: [0, 0, 2, 2, 2]}";
    let old = Package::open(folder_with(&rdf_04(shape, "[0, 0, 2, 2, 2]")).path()).unwrap();
    assert_eq!(old.inputs[0].axes[2].size, AxisSize::Step { min: 4, step: 2 });
    assert_eq!(old.outputs[0].axes[2].halo, 2);
}

#[test]
fn lengths_of_0_4_refer_to_tensors_whose_names_have_dots_and_are_new_where_the_scale_is_null() {
    let rdf = rdf_04("[1, 1, 4, 4, 4]", "[0, 0, 0, 0, 0]").replace("name: raw", "name: input.1");
    let with = |reference: &str, scale: &str| {
        let rdf = rdf.replace("reference_tensor: raw", &format!("reference_tensor: {reference}"));
        let rdf = rdf.replace("scale: [1.0, 0.0, 1.0, 1.0, 1.0]", &format!("scale: {scale}"));
        let rdf = rdf.replace("offset: [0.0, 0.5, 0.0, 0.0, 0.0]", "offset: [0, 1.5, 0, 0, 0.5]");
        Package::open(folder_with(&rdf).path()).unwrap().outputs.remove(0).axes
    };
    let refers = |axis: &str, scale: f64, offset: f64| AxisSize::Reference {
        tensor: "input.1".to_owned(),
        axis: axis.to_owned(),
        scale,
        offset,
    };
    let axes = with("input.1", "[1, null, 1, 2, 1]");
    assert_eq!(axes[1].size, refers("channel", 0.0, 3.0));
    assert_eq!(axes[3].size, refers("y", 2.0, 0.0));
    assert_eq!(axes[4].size, refers("x", 1.0, 1.0));
    assert_eq!(with("input.1.y", "[1, 1, 1, 1, 1]")[2].size, refers("y", 1.0, 0.0));
}

#[test]
fn numbers_of_axes_have_ranges() {
    for (z, says) in [
        ("unit: micrometer, scale: 1.0e+300, size: 4", "scale"),
        ("unit: micrometer, scale: .inf, size: 4", "scale \".inf\""),
        ("unit: micrometer, scale: .nan, size: 4", "scale \".nan\""),
        ("unit: micrometer, scale: -1, size: 4", "scale -1"),
        ("unit: micrometer, scale: \"1\", size: 4", "scale \"1\""),
        ("unit: meter, scale: 1.0e-9, size: 0", "size 0"),
        ("unit: micrometer, scale: 6.5e-7, size: 4", "voxels of 0.00000065 µm"),
        ("size: 18446744073709551615", "size 18446744073709551615"),
        ("size: -4", "size -4"),
        ("size: 4.5", "size 4.5"),
        ("size: [4]", "size of a list of 1"),
        ("size: {min: 0, step: 2}", "min 0"),
        ("size: {min: 4, step: 1.0e+9}", "step 1000000000"),
        ("size: {min: 4, step: .inf}", "step"),
        ("size: {tensor_id: x, offset: 1.0e+30}", "offset"),
        ("size: 4, halo: 100000000000", "halo 100000000000"),
        ("size: 4, halo: -1", "halo -1"),
        ("size: 1000000, unit: nanometer, scale: 500", "\"raw\" has more than the limit of 268435456 elements"),
    ] {
        let rdf = rdf_05(z, STEP)
            .replace("min: 4, step: 2}}\n  - {type: space, id: x", "min: 400, step: 2}}\n  - {type: space, id: x");
        refused(&rdf, &[says]);
    }
}

#[test]
fn numbers_of_processing_have_ranges() {
    for (step, says) in [
        ("{id: zero_mean_unit_variance, kwargs: {eps: 0}}", "eps 0"),
        ("{id: zero_mean_unit_variance, kwargs: {eps: .nan}}", "eps \".nan\""),
        ("{id: zero_mean_unit_variance, kwargs: {eps: small}}", "eps \"small\""),
        ("{id: scale_range, kwargs: {min_percentile: .inf}}", "min_percentile"),
        ("{id: scale_range, kwargs: {min_percentile: -1}}", "min_percentile -1"),
        ("{id: scale_range, kwargs: {max_percentile: 101}}", "max_percentile 101"),
        ("{id: scale_range, kwargs: {min_percentile: 50, max_percentile: 50}}", "percentiles 50 and 50"),
        ("{id: scale_linear, kwargs: {gain: 1.0e+300}}", "gain"),
        ("{id: scale_linear, kwargs: {gain: [1, x]}}", "gain \"x\""),
        ("{id: scale_linear, kwargs: {gain: []}}", "no numbers in gain"),
        ("{id: clip, kwargs: {min: .inf}}", "min"),
        ("{id: clip, kwargs: {min: 2, max: 1}}", "min 2 above max 1"),
        ("{id: binarize, kwargs: {}}", "needs threshold"),
        ("{id: binarize, kwargs: {threshold: [0.5, .nan]}}", "threshold"),
        ("{id: fixed_zero_mean_unit_variance, kwargs: {mean: 0, std: 0}}", "std 0"),
        ("{id: fixed_zero_mean_unit_variance, kwargs: {mean: 0, std: -1}}", "std -1"),
    ] {
        refused(&rdf_05(Z, step), &[says]);
    }
}

#[test]
fn numbers_of_old_descriptions_have_ranges() {
    let good = "[1, 1, 4, 4, 4]";
    for (shape, halo, says) in [
        ("[1, 1, 0, 4, 4]", "[]", "shape 0"),
        ("[1, 1, -4, 4, 4]", "[]", "shape -4"),
        ("[1, 1, 1000000, 1000000, 4]", "[]", "elements"),
        ("{min: [1, 1, 1.0e+18, 4, 4], step: [0, 0, 1, 1, 1]}", "[]", "min 1e+18"),
        ("{min: [1, 1, 4, 4, 4], step: [0, 0, .inf, 1, 1]}", "[]", "step"),
        (good, "[0, 0, 1.0e+300, 0, 0]", "halo"),
        (good, "[0, 0, -3, 0, 0]", "halo -3"),
    ] {
        refused(&rdf_04(shape, halo), &[says]);
    }
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    for (z, says) in [
        ("size: 4, unit: [micrometer]", "unit a list of 1: expected a text"),
        ("size: {tensor_id: [x], axis_id: z}", "tensor_id a list of 1"),
        ("size: {tensor_id: raw}", "expected a number, min and step, or tensor_id and axis_id"),
    ] {
        refused(&rdf_05(z, STEP), &[says]);
    }
    for (step, says) in [
        ("{id: zero_mean_unit_variance, kwargs: [1]}", "kwargs a list of 1: expected a mapping"),
        ("{id: zero_mean_unit_variance, kwargs: {axes: [z, y, [x]]}}", "axes a list of 1: expected a text"),
        ("{id: zero_mean_unit_variance, kwargs: {mode: per_image}}", "mode \"per_image\": expected per_sample"),
        ("{id: scale_range, kwargs: {reference_tensor: {id: raw}}}", "reference_tensor a mapping of 1"),
    ] {
        refused(&rdf_05(Z, step), &[says]);
    }
    let rdf = rdf_05(Z, STEP);
    for (from, to, says) in [
        (
            "  preprocessing:\n  - {id",
            "  preprocessing:\n    {id",
            "\"raw\" has processing a mapping of 2: expected a list",
        ),
        ("channel_names: [raw]", "channel_names: raw", "channel_names \"raw\": expected a list"),
        ("channel_names: [raw]", "channel_names: [{name: raw}]", "channel_names a mapping of 1: expected a text"),
        ("{source: model.onnx}", "{source: model.onnx, sha256: [0]}", "sha256 a list of 1: expected a text"),
        ("type: model", "type: [model]", "type a list of 1: expected a text"),
    ] {
        assert!(rdf.contains(from), "{from}");
        refused(&rdf.replacen(from, to, 1), &[says]);
    }
    // A name that YAML reads as a number is a name.
    let numbered = rdf.replacen("channel_names: [raw]", "channel_names: [488]", 1);
    let package = Package::open(folder_with(&numbered).path()).unwrap();
    assert_eq!(package.inputs[0].axis(AxisKind::Channel).unwrap().channel_names, ["488"]);
}

#[test]
fn old_descriptions_with_lists_of_the_wrong_type_are_refused() {
    let good = "[1, 1, 4, 4, 4]";
    for (shape, halo, says) in [
        (good, "2", "halo 2: expected a list"),
        ("\"1, 1, 4, 4, 4\"", "[]", "has a shape of \"1, 1, 4, 4, 4\": expected a list"),
        ("{step: [0, 0, 1, 1, 1]}", "[]", "has a shape of a mapping of 1: expected a list"),
        ("{min: 4, step: [0, 0, 1, 1, 1]}", "[]", "min 4: expected a list"),
    ] {
        refused(&rdf_04(shape, halo), &[says]);
    }
}

#[test]
fn a_large_absolute_tolerance_does_not_accept_any_output() {
    let expected = Tensor::vector(vec![0.0f32, 1.0, 0.5, 0.25]);
    let wrong = Tensor::vector(vec![0.5f32, 0.5, 1.0, 0.75]);
    let endless = Tolerance { absolute: f64::INFINITY, ..Tolerance::default() };
    assert!(compare("map", &expected, &wrong, endless).is_err());
    compare("map", &expected, &expected, endless).unwrap();
    let near = Tensor::vector(vec![0.2f32, 0.8, 0.4, 0.3]);
    compare("map", &expected, &near, endless).unwrap();
}

#[test]
fn an_infinite_value_is_reproduced_only_by_itself() {
    let infinite = Tensor::vector(vec![f32::INFINITY, 1.0]);
    compare("map", &infinite, &infinite, Tolerance::default()).unwrap();
    assert!(compare("map", &infinite, &Tensor::vector(vec![5.0f32, 1.0]), Tolerance::default()).is_err());
}

#[test]
fn hostile_yaml_is_refused() {
    let body = rdf_05(Z, STEP);
    let aliases = format!("{body}config: {{a: &a {}, b: [{}]}}\n", "x".repeat(1_000_000), "*a, ".repeat(90_000));
    refused(&aliases, &["rdf.yaml", "bytes of text"]);
    refused(&format!("{body}config: {}", "[".repeat(100_000)), &["opening brackets", "10000"]);
    refused(&format!("{body}config: {}", "{a: ".repeat(100_000)), &["opening brackets"]);
    let large = format!("{body}# {}\n", "x".repeat(5 << 20));
    let error = Package::open(folder_with(&large).path()).unwrap_err();
    assert!(matches!(error, PackageError::TooLarge { .. }), "{error}");
}

#[test]
fn terminal_control_characters_in_messages_are_escaped() {
    let axis = "size: 4}\n  - {type: \"\\e[2J\\a\", id: z";
    let folder = folder_with(&rdf_05(axis, STEP));
    let text = Package::open(folder.path()).unwrap_err().to_string();
    assert!(text.contains("\\u{1b}[2J\\u{7}") && !text.contains('\u{1b}'), "{text}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_of_a_package_are_not_followed_out_of_it() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let folder = folder_with(&rdf_05(Z, STEP));
    let at = |name: &str| folder.path().join(name);
    symlink(outside.path().join("secret"), at("README.md")).unwrap();
    symlink(outside.path(), at("up")).unwrap();
    symlink("model.onnx", at("same.onnx")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    symlink("/dev/zero", at("zero")).unwrap();
    let package = Package::open(folder.path()).unwrap();
    let files = package.files();
    for (name, says) in [("README.md", "link"), ("up/secret", "link"), ("pipe", "named pipe"), ("zero", "link")] {
        let error = files.read(name).unwrap_err();
        assert!(matches!(&error, PackageError::Bad { .. }) && error.to_string().contains(says), "{name}: {error}");
        assert_eq!(files.file_path(name), None, "{name}");
    }
    assert_eq!(files.names().unwrap(), ["model.onnx", "rdf.yaml", "same.onnx"]);
    assert_eq!(files.read("same.onnx").unwrap(), files.read("model.onnx").unwrap());
    assert!(matches!(files.read("none"), Err(PackageError::Missing { .. })));
    // The description and the model themselves.
    for name in ["rdf.yaml", "model.onnx"] {
        let folder = folder_with(&rdf_05(Z, STEP));
        std::fs::remove_file(folder.path().join(name)).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
        assert!(pipe.success());
        let text = Package::open(folder.path()).unwrap_err().to_string();
        assert!(text.contains("named pipe"), "{text}");
    }
    // A package that is itself a pipe.
    for name in ["pipe", "pipe.onnx", "pipe.zip"] {
        let path = outside.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let text = Package::open(&path).unwrap_err().to_string();
        assert!(text.contains("named pipe"), "{text}");
    }
}

fn zip(path: &Path, files: &[(&str, &[u8])]) {
    let mut writer = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, bytes) in files {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_file_that_is_in_the_zip_but_cannot_be_read_is_not_called_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    zip(&path, &[("rdf.yaml", rdf_05(Z, STEP).as_bytes()), ("model.onnx", &model())]);
    // A compression method that no program knows in the local header and the directory entry of the network.
    let mut bytes = std::fs::read(&path).unwrap();
    let starts: Vec<usize> = (0..bytes.len() - 60)
        .filter(|at| match &bytes[*at..*at + 4] {
            b"PK\x03\x04" => bytes[at + 30..].starts_with(b"model.onnx"),
            b"PK\x01\x02" => bytes[at + 46..].starts_with(b"model.onnx"),
            _ => false,
        })
        .collect();
    assert_eq!(starts.len(), 2);
    for at in starts {
        let method = if bytes[at + 2] == 3 { at + 8 } else { at + 10 };
        bytes[method..method + 2].copy_from_slice(&0x7777u16.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let text = Package::open(&path).unwrap_err().to_string();
    assert!(text.contains("\"model.onnx\" cannot be read from the zip"), "{text}");
}

/// A protobuf field of bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut n = bytes.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend(bytes);
    out
}

/// An ONNX file that adds the number in `w.data` to the tensor `raw`.
fn with_external_data() -> Vec<u8> {
    let (int, text) =
        (|number: u8, value: u8| vec![number << 3, value], |number, text: &str| field(number, text.as_bytes()));
    let node = [text(1, "raw"), text(1, "w"), text(2, "map"), text(4, "Add")].concat();
    let value = |name: &str| {
        let axes = field(2, &field(1, &text(2, "n")).repeat(5));
        [text(1, name), field(2, &field(1, &[int(1, 1), axes].concat()))].concat()
    };
    let location = field(13, &[text(1, "location"), text(2, "w.data")].concat());
    let number = [int(1, 1), int(2, 1), text(8, "w"), location, int(14, 1)].concat();
    let graph = [field(1, &node), field(5, &number), field(11, &value("raw")), field(12, &value("map"))].concat();
    [int(1, 8), field(7, &graph), field(8, &int(2, 17))].concat()
}

#[test]
fn external_data_of_the_network_are_read_from_a_folder_and_from_a_zip() {
    let folder = tempfile::tempdir().unwrap();
    let (rdf, network, number) = (rdf_05(Z, STEP), with_external_data(), 2.5f32.to_le_bytes());
    let read = |path: &Path| {
        let package = Package::open(path).unwrap();
        let constants: Vec<Tensor> = package.graph.initializers.values().map(|tensor| (**tensor).clone()).collect();
        assert_eq!(constants, [Tensor::vector(vec![2.5f32])]);
    };
    let files = [("rdf.yaml", rdf.as_bytes()), ("model.onnx", network.as_slice()), ("w.data", number.as_slice())];
    std::fs::create_dir(folder.path().join("a")).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join("a").join(name), bytes).unwrap();
    }
    read(&folder.path().join("a"));
    let path = folder.path().join("a.zip");
    zip(&path, &files);
    read(&path);
    let sums = |path: &Path| Package::open(path).unwrap().external_sha256;
    assert_eq!(sums(&path), [cytoscope_storage::sha256_of_bytes(&number)]);
    assert!(sums(&folder.path().join("a")).is_empty(), "the files themselves are known");
    zip(&path, &files.map(|(name, bytes)| if name == "w.data" { (name, &bytes[..3]) } else { (name, bytes) }));
    assert!(Package::open(&path).unwrap_err().to_string().contains("shorter than 4 bytes"));
    zip(&path, &files[..2]);
    let error = Package::open(&path).unwrap_err().to_string();
    assert!(error.contains("w.data") && error.contains("cannot be read"), "{error}");
}

#[test]
fn external_data_have_the_checksum_of_the_description() {
    let folder = tempfile::tempdir().unwrap();
    let (network, number) = (with_external_data(), 2.5f32.to_le_bytes());
    let (inside, zipped) = (folder.path().join("a"), folder.path().join("a.zip"));
    std::fs::create_dir(&inside).unwrap();
    let open = |sha256: &str| {
        let stated = format!("{{onnx: {{source: model.onnx, external_data: {{source: w.data, sha256: {sha256}}}}}}}");
        let rdf = rdf_05(Z, STEP).replace("{onnx: {source: model.onnx}}", &stated);
        assert!(rdf.contains(sha256));
        let files = [("rdf.yaml", rdf.as_bytes()), ("model.onnx", network.as_slice()), ("w.data", number.as_slice())];
        for (name, bytes) in files {
            std::fs::write(inside.join(name), bytes).unwrap();
        }
        zip(&zipped, &files);
        [&inside, &zipped].map(|path| Package::open(path).map_or_else(|error| Some(error.to_string()), |_| None))
    };
    // By sha256sum, of the bytes 00 00 20 40.
    let digest = "072e3304b03423a4767d28c5fed09f81d5190ff60a3d078c6c1350eeb8bee28b";
    for (sha256, is_right) in [(digest.to_owned(), true), (digest.to_uppercase(), true), ("0".repeat(64), false)] {
        for refusal in open(&format!("\"{sha256}\"")) {
            match refusal {
                None => assert!(is_right, "{sha256}"),
                Some(text) => assert!(!is_right && text.contains("w.data") && text.contains(digest), "{text}"),
            }
        }
    }
}

#[test]
fn a_zip_of_several_packages_is_refused_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    let (rdf, net) = (rdf_05(Z, STEP), model());
    let both: [(&str, &[u8]); 3] =
        [("b/rdf.yaml", rdf.as_bytes()), ("b/model.onnx", &net), ("a/rdf.yaml", rdf.as_bytes())];
    zip(&path, &both);
    let text = Package::open(&path).unwrap_err().to_string();
    assert!(text.contains("several packages, such as a and b"), "{text}");
    // A description at the top is that of the whole zip, and macOS adds files of its own.
    for one in [
        [&both[..], &[("rdf.yaml", rdf.as_bytes()), ("model.onnx", net.as_slice())]].concat(),
        [&both[..2], &[("__MACOSX/b.bioimageio.yaml", &b"x"[..])]].concat(),
    ] {
        zip(&path, &one);
        Package::open(&path).unwrap();
    }
}

#[test]
fn zips_expand_within_limits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zip");
    let rdf = rdf_05(Z, STEP);
    let bomb = vec![0u8; (256 << 20) + 1];
    zip(&path, &[("a/rdf.yaml", rdf.as_bytes()), ("a/model.onnx", &model()), ("a/README.md", &bomb)]);
    let package = Package::open(&path).unwrap();
    let error = package.files().read("README.md").unwrap_err();
    assert!(matches!(error, PackageError::TooLarge { limit, .. } if limit == 256 << 20), "{error}");
    let Files::Zip { prefix, .. } = package.files() else { panic!("no zip") };
    assert_eq!(prefix, "a/");
    // A zip directory that is too large to be listed.
    let long = "n".repeat(60_000);
    let names: Vec<String> = (0..300).map(|i| format!("{long}{i}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|n| (n.as_str(), &b""[..])).collect();
    zip(&path, &many);
    let text = Package::open(&path).unwrap_err().to_string();
    assert!(text.contains("directory of more than"), "{text}");
}

#[test]
fn a_file_that_is_named_often_is_checked_once_and_not_arbitrarily_many_are() {
    let findings = |attachments: &str| {
        let folder = folder_with(&format!("{}attachments:\n{attachments}", rdf_05(Z, STEP)));
        std::fs::write(folder.path().join("large.bin"), vec![0; 32 << 20]).unwrap();
        let package = Package::open(folder.path()).unwrap();
        package
            .upload_findings()
            .into_iter()
            .filter(|finding| finding.part.starts_with("attachments"))
            .collect::<Vec<_>>()
    };
    // Reading 64 GiB would take minutes.
    let same = findings(&"- source: large.bin\n  sha256: none\n".repeat(2000));
    assert_eq!(same.iter().filter(|finding| finding.part.ends_with(".sha256")).count(), 2000);
    let different: String = (0..MAX_FILES + 5).map(|i| format!("- source: f{i}\n")).collect();
    let missing = findings(&different);
    let says = |text: &str| missing.iter().filter(|finding| finding.message.contains(text)).count();
    assert_eq!((says("which the package lacks"), says("more than 4096 files")), (MAX_FILES, 5));
}

#[test]
fn older_descriptions_need_a_newer_version_and_the_advice_names_no_command() {
    let shape = "{min: [1, 1, 4.0, 4, 4], step: [0, 0, 2, 2, 2]}";
    let folder = folder_with(&rdf_04(shape, "[0, 0, 2, 2, 2]"));
    let findings = Package::open(folder.path()).unwrap().upload_findings();
    let of_version = findings.iter().find(|finding| finding.part == "format_version").unwrap();
    let expected = "is \"0.4.10\", but new models need 0.5: import the model, which writes a package of version 0.5";
    assert_eq!(of_version.message, expected);
    assert!(findings.iter().all(|finding| !finding.message.contains("cytoscope ")), "{findings:?}");
}

#[test]
fn the_size_of_all_test_tensors_is_limited() {
    let test = "  test_tensor: {source: t.npy}\n";
    let rdf = rdf_05(Z, STEP);
    let rdf = rdf.replace("- id: raw\n", &format!("- id: raw\n{test}"));
    let rdf = rdf.replace("- id: map\n", &format!("- id: map\n{test}"));
    let folder = folder_with(&rdf);
    let tensor = cytoscope_graph::npy::write(&Tensor::vector(vec![1.0f32; 10]));
    std::fs::write(folder.path().join("t.npy"), &tensor).unwrap();
    let package = Package::open(folder.path()).unwrap();
    let both = 2 * tensor.len() as u64;
    let (inputs, outputs) = package.test_tensors_up_to(both).unwrap().unwrap();
    assert_eq!((inputs.len(), outputs.len()), (1, 1));
    let error = package.test_tensors_up_to(both - 1).unwrap_err().to_string();
    assert!(error.contains("with the other test tensors") && error.contains(&(both - 1).to_string()), "{error}");
}

//! Writes weight files as `torch.save` does, byte by byte.
#![allow(dead_code, unused_imports, reason = "each test program uses a part")]

use std::collections::BTreeMap;
use std::io::Write;

pub use cytoscope_testkit::python;

/// A tensor: shape and values in C order.
pub type Values = (Vec<usize>, Vec<f32>);

/// A view of a storage: class and bytes of the storage, shape, strides, offset.
pub struct View<'a> {
    pub class: &'a str,
    pub bytes: &'a [u8],
    pub elements: usize,
    pub shape: &'a [usize],
    pub strides: &'a [usize],
    pub offset: usize,
}

/// Pickles a text.
pub fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![b'X'];
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Pickles an integer.
pub fn int(number: usize) -> Vec<u8> {
    let mut bytes = vec![b'J'];
    bytes.extend((number as u32).to_le_bytes());
    bytes
}

fn ints(numbers: &[usize]) -> Vec<u8> {
    let mut bytes = vec![b'('];
    numbers.iter().for_each(|n| bytes.extend(int(*n)));
    bytes.push(b't');
    bytes
}

/// A dictionary of pickled values.
pub fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"}(".to_vec();
    for (key, value) in entries {
        bytes.extend(text(key));
        bytes.extend(value);
    }
    bytes.push(b'u');
    bytes
}

/// A tensor of a pickle, whose storage has this key.
pub fn view(key: usize, view: &View<'_>) -> Vec<u8> {
    let mut bytes = b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    bytes.extend(text("storage"));
    bytes.extend(format!("ctorch\n{}\n", view.class).as_bytes());
    bytes.extend(text(&key.to_string()));
    bytes.extend(text("cpu"));
    bytes.extend(int(view.elements));
    bytes.extend(b"tQ");
    bytes.extend(int(view.offset));
    bytes.extend(ints(view.shape));
    bytes.extend(ints(view.strides));
    bytes.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    bytes
}

/// A zip of `archive/data.pkl`, the storages, and other files.
pub fn archive(pickled: &[u8], storages: &[&[u8]], others: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut pickle = b"\x80\x02".to_vec();
    pickle.extend(pickled);
    pickle.push(b'.');
    let mut files = vec![("data.pkl".to_owned(), pickle)];
    files.extend(storages.iter().enumerate().map(|(i, bytes)| (format!("data/{i}"), bytes.to_vec())));
    files.extend(others.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())));
    for (name, bytes) in files {
        zip.start_file(format!("archive/{name}").as_str(), options).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A checkpoint of 32-bit floats; `wrap` are the entries of nested dictionaries around the state dict.
pub fn checkpoint(tensors: &BTreeMap<String, Values>, wrap: &[&str]) -> Vec<u8> {
    let storages: Vec<Vec<u8>> =
        tensors.values().map(|(_, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let entries: Vec<(&str, Vec<u8>)> = tensors
        .iter()
        .zip(&storages)
        .enumerate()
        .map(|(key, ((name, (shape, values)), bytes))| {
            let mut strides = vec![1; shape.len()];
            for axis in (1..shape.len()).rev() {
                strides[axis - 1] = strides[axis] * shape[axis];
            }
            let of = View { class: "FloatStorage", bytes, elements: values.len(), shape, strides: &strides, offset: 0 };
            (name.as_str(), view(key, &of))
        })
        .collect();
    let pickled = wrap.iter().rev().fold(dict(&entries), |inner, key| dict(&[(*key, inner)]));
    archive(&pickled, &storages.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[])
}

//! Pickles of untrusted files: what is read, and what is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use cytoscope_pickle::{
    ByteSource, Global, MAX_NAME_BYTES, MAX_TEXT_BYTES, MAX_TEXTS_BYTES, MAX_VALUES, Pickle, PickleError, Value,
};
use std::cell::Cell;
use std::io;

fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
    Pickle::read(bytes, &|_, _| true)
}

/// The pickled object of a pickle that is read.
fn root(bytes: &[u8]) -> Value {
    let pickle = read(bytes).unwrap();
    pickle.value(pickle.root()).clone()
}

/// The name of the exceeded limit, and the limit.
fn exceeded(bytes: &[u8]) -> (&'static str, u64) {
    match read(bytes) {
        Err(PickleError::OverLimit { what, limit }) => (what, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn plain_values_are_read_as_python_reads_them() {
    // Written by pickle.dumps of Python 3, the values beside.
    let cases: [(&[u8], Value); 15] = [
        (b"\x80\x02N.", Value::None),
        (b"\x80\x02\x88.", Value::Bool(true)),
        (b"\x80\x02K\xff.", Value::Int(255)),
        (b"\x80\x02M\xff\xff.", Value::Int(65_535)),
        (b"\x80\x02J\xfe\xff\xff\xff.", Value::Int(-2)),
        (b"\x80\x02\x8a\x01\xff.", Value::Int(-1)),
        (b"\x80\x02\x8a\x05\x00\x00\x00\x00\x01.", Value::Int(1 << 32)),
        (b"\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", Value::Int(i64::MIN)),
        (b"\x80\x02\x8a\x00.", Value::Int(0)),
        (b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", Value::LargeInt),
        (b"\x80\x02G\xbf\xf8\x00\x00\x00\x00\x00\x00.", Value::Float(-1.5)),
        (b"\x80\x02X\x03\x00\x00\x00\xc2\xb5m.", Value::Text("µm".to_owned())),
        (b"\x80\x04\x95\x06\x00\x00\x00\x00\x00\x00\x00\x8c\x02\xc2\xb5\x94.", Value::Text("µ".to_owned())),
        (b"\x80\x03C\x03abc.", Value::Bytes(4..7)),
        // A byte string of Python 2 that is not UTF-8.
        (b"\x80\x02U\x02\xff\xfe.", Value::Bytes(4..6)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(root(bytes), expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn containers_keep_order_and_the_last_of_equal_keys_counts() {
    // {'a': (1, 2), 'b': [1]}, then 'a' is set to None.
    let pickle = read(b"\x80\x02}(U\x01aK\x01K\x02\x86U\x01b]K\x01auU\x01aNs.").unwrap();
    let entry = |key: &str| pickle.entry(pickle.root(), key).map(|id| pickle.value(id).clone());
    assert_eq!(entry("a"), Some(Value::None));
    assert!(matches!(entry("b"), Some(Value::List(items)) if pickle.count(items[0]) == Some(1)));
    assert_eq!(entry("c"), None);
    // An OrderedDict that is made from a list of pairs, and a set.
    let pickle = read(b"\x80\x02ccollections\nOrderedDict\n](U\x01kK\x07\x86e\x85R.").unwrap();
    assert_eq!(pickle.entry(pickle.root(), "k").and_then(|id| pickle.count(id)), Some(7));
    assert!(matches!(root(b"\x80\x04\x8f(K\x01K\x02\x90."), Value::Set(items) if items.len() == 2));
    // A list that contains itself.
    let own = read(b"]q\x00h\x00a.").unwrap();
    assert!(matches!(own.value(own.root()), Value::List(items) if items == &[own.root()]));
}

#[test]
fn only_accepted_names_are_read_and_nothing_is_called() {
    let accepted = |module: &str, name: &str| (module, name) == ("shapes", "Box");
    let read = |bytes: &[u8]| Pickle::read(bytes, &accepted);
    let refused: [(&[u8], &str); 4] = [
        (b"cos\nsystem\nX\x04\x00\x00\x00true\x85R.", "os.system"),
        (b"\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"cbuiltins\neval\n.", "builtins.eval"),
        (b"cshapes\nBox.open\n.", "shapes.Box.open"),
    ];
    for (bytes, named) in refused {
        let error = read(bytes).unwrap_err();
        assert!(matches!(error, PickleError::Global { .. }) && error.to_string().contains(named), "{error}");
    }
    // Box(3) with the state {}.
    let pickle = read(b"cshapes\nBox\nK\x03\x85R}b.").unwrap();
    let (function, call) = pickle.call(pickle.root()).unwrap();
    assert_eq!(function, &Global { module: "shapes".to_owned(), name: "Box".to_owned() });
    assert!(function.is(&["forms", "shapes"], "Box") && !function.is(&["forms"], "Box"));
    assert_eq!(pickle.count(call.arguments[0]), Some(3));
    assert_eq!(call.state.map(|id| pickle.value(id)), Some(&Value::Dict(Vec::new())));
}

#[test]
fn short_pickles_cannot_request_much_memory() {
    let lists = [vec![b']'; MAX_VALUES + 1], b".".to_vec()].concat();
    assert_eq!(exceeded(&lists), ("values", MAX_VALUES as u64));
    // A tuple of a thousand items that is copied into ten thousand calls.
    let mut calls = b"cm\nf\nq\x00(".to_vec();
    calls.extend([b'N'; 1000]);
    calls.extend(b"tq\x01");
    (0..10_000).for_each(|_| calls.extend(b"h\x00h\x01R"));
    calls.push(b'.');
    assert_eq!(exceeded(&calls), ("copied values", MAX_VALUES as u64));
    let name = [b"c".to_vec(), vec![b'm'; MAX_NAME_BYTES + 1], b"\nf\n.".to_vec()].concat();
    assert_eq!(exceeded(&name), ("bytes in a name", MAX_NAME_BYTES as u64));
    // A text that is too long to be kept, and many that are kept.
    let text = |bytes: u64| [b"X".to_vec(), (bytes as u32).to_le_bytes().to_vec(), vec![b'a'; bytes as usize]].concat();
    let long = [text(MAX_TEXT_BYTES + 1), b".".to_vec()].concat();
    assert_eq!(root(&long), Value::Bytes(5..MAX_TEXT_BYTES + 6));
    let many = text(MAX_TEXT_BYTES).repeat((MAX_TEXTS_BYTES / MAX_TEXT_BYTES) as usize + 1);
    assert_eq!(exceeded(&many), ("bytes of text", MAX_TEXTS_BYTES));
    // Names that are made from two texts of the memo again and again.
    let part = [b"X".to_vec(), (MAX_NAME_BYTES as u32).to_le_bytes().to_vec(), vec![b'n'; MAX_NAME_BYTES]].concat();
    let uses = MAX_TEXTS_BYTES as usize / (2 * MAX_NAME_BYTES) + 1;
    let names = [part, b"q\x00".to_vec(), b"h\x00h\x00\x93".repeat(uses), b".".to_vec()].concat();
    assert_eq!(exceeded(&names), ("bytes of text", MAX_TEXTS_BYTES));
}

#[test]
fn damaged_pickles_are_refused() {
    // Lengths beyond the end, an empty stack, marks that are not matched, a memo entry that does not exist.
    for bytes in [
        &b"X\xff\xff\xff\x7fabc."[..],
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"(0.",
        b"t.",
        b"N(Nu.",
        b"1.",
        b"Na.",
        b"NNNs.",
        b"h\x07.",
        b"\x85.",
        b"R.",
        b"b.",
        b"NN\x86b.",
        b"K",
        b"",
        b"\x8a\x09123.",
        b"cm\nf",
        b"NN\x93.",
        b"ccollections\nOrderedDict\n]K\x01a\x85R.",
    ] {
        let read = read(bytes);
        assert!(matches!(read, Err(PickleError::Malformed { .. })), "{}: {read:?}", bytes.escape_ascii());
    }
    for (bytes, opcode) in [(&b"(lp0\n."[..], b'l'), (&b"NI1\n."[..], b'I'), (&b"(S'a'\nios\nsystem\n."[..], b'S')] {
        match read(bytes) {
            Err(PickleError::Opcode { at, opcode: found }) => assert_eq!((at, found), (1, opcode)),
            other => panic!("{other:?}"),
        }
    }
}

/// A source that counts the bytes read from it; a read at `fails_at` fails.
struct Counting {
    bytes: Vec<u8>,
    read: Cell<u64>,
    fails_at: u64,
}

impl ByteSource for Counting {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_exact_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        if at >= self.fails_at {
            return Err(io::Error::other("the disk is gone"));
        }
        self.read.set(self.read.get() + into.len() as u64);
        self.bytes.as_slice().read_exact_at(at, into)
    }
}

#[test]
fn arrays_in_a_file_are_skipped_without_being_read() {
    // (bytes of 8 MiB, 5) after a header of three bytes.
    let length = 8u64 << 20;
    let mut bytes = b"abc(\x8e".to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.resize(bytes.len() + length as usize, 0);
    bytes.extend(b"K\x05t.");
    let mut source = Counting { bytes, read: Cell::new(0), fails_at: u64::MAX };
    let pickle = Pickle::read_at(&source, 3, &|_, _| false).unwrap();
    let items = pickle.tuple(pickle.root()).unwrap();
    assert_eq!(pickle.value(items[0]), &Value::Bytes(13..13 + length));
    assert_eq!(pickle.count(items[1]), Some(5));
    assert!(source.read.get() < 1 << 18, "{} bytes were read", source.read.get());
    source.fails_at = 1000;
    let error = Pickle::read_at(&source, 3, &|_, _| false).unwrap_err();
    assert!(matches!(error, PickleError::Io(_)) && error.to_string().contains("the disk is gone"), "{error}");
}

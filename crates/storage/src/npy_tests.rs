//! Headers that NumPy 2 accepts or refuses. Each expectation was checked with `numpy.load`, except where noted.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;

fn parsed(text: &str) -> Result<Header, HeaderError> {
    parse(1, text.as_bytes())
}

#[test]
fn spacing_quotes_and_key_order_do_not_matter() {
    let expected = Header { code: "f4".into(), big_endian: false, fortran_order: true, shape: vec![2, 3, 4] };
    for text in [
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3, 4), }          \n",
        "{'descr':'<f4','fortran_order':True,'shape':(2,3,4)}",
        "{\"shape\" :\t(2 ,3, 4,) , \"descr\"\n:\n\"<f4\",\n'fortran_order' : True}",
        "{'fortran_order'   :   True, 'shape': (2, 3, 4), 'descr': \"<f4\",}\n",
        // As Python 2 wrote it.
        "{u'descr': u'<f4', u'fortran_order': True, u'shape': (2L, 3L, 4L)}",
    ] {
        assert_eq!(parsed(text), Ok(expected.clone()), "{text}");
    }
}

#[test]
fn shapes_of_any_rank_are_parsed() {
    let shape = |text: &str| parsed(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {text}}}"));
    assert_eq!(shape("()").unwrap().shape, Vec::<usize>::new());
    assert_eq!(shape("(5,)").unwrap().shape, vec![5]);
    assert_eq!(shape("(0, 5)").unwrap().shape, vec![0, 5]);
    for wrong in ["(5)", "5", "[2, 3]", "(2, 3.0)", "(-2, 3)", "(True, 3)", "(2, '3')", "((2, 3),)", "None"] {
        assert!(shape(wrong).is_err(), "{wrong}");
    }
    assert!(matches!(shape("(99999999999999999999999,)"), Err(HeaderError::Syntax { .. })));
    assert!(matches!(shape("(007,)"), Err(HeaderError::Syntax { .. })));
}

#[test]
fn byte_orders_are_parsed() {
    let of = |descr: &str| {
        let header = parsed(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ()}}")).unwrap();
        (header.code, header.big_endian)
    };
    let native = cfg!(target_endian = "big");
    assert_eq!(of("<u2"), ("u2".into(), false));
    assert_eq!(of(">u2"), ("u2".into(), true));
    assert_eq!(of("|u1"), ("u1".into(), native));
    assert_eq!(of("=u2"), ("u2".into(), native));
    assert_eq!(of("u2"), ("u2".into(), native));
    assert_eq!(of(">>u2"), (">u2".into(), true));
}

#[test]
fn exactly_three_keys_are_accepted() {
    let all = "'descr': '<f4', 'fortran_order': False, 'shape': (1,)";
    assert_eq!(parsed(&format!("{{{all}, 'extra': 1}}")), Err(HeaderError::UnknownKey("extra".into())));
    // NumPy uses the last one; this parser refuses, because it is unknown which one was meant.
    assert_eq!(parsed(&format!("{{{all}, 'shape': (2,)}}")), Err(HeaderError::DuplicateKey("shape".into())));
    assert_eq!(parsed("{'descr': '<f4', 'shape': (1,)}"), Err(HeaderError::MissingKey("fortran_order")));
    assert_eq!(parsed("{'fortran_order': True, 'shape': (1,)}"), Err(HeaderError::MissingKey("descr")));
    assert_eq!(parsed("{'fortran_order': True, 'descr': '<f4'}"), Err(HeaderError::MissingKey("shape")));
    assert_eq!(parsed("{}"), Err(HeaderError::MissingKey("descr")));
}

#[test]
fn values_of_the_wrong_type_are_refused() {
    let with = |descr: &str, order: &str| {
        parsed(&format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': (1,)}}")).unwrap_err()
    };
    assert_eq!(with("'<f4'", "1"), HeaderError::WrongValue("fortran_order", "True or False"));
    assert_eq!(with("'<f4'", "'True'"), HeaderError::WrongValue("fortran_order", "True or False"));
    assert!(matches!(with("'<f4'", "true"), HeaderError::Syntax { .. }));
    assert!(matches!(with("'<f4'", "Trueish"), HeaderError::Syntax { .. }));
    assert_eq!(with("[('a', '<f4'), ('b', [('c', '<i2', (2, 3))])]", "False"), HeaderError::Records);
    assert_eq!(with("None", "False"), HeaderError::WrongValue("descr", "the name of a sample type"));
}

#[test]
fn malformed_text_is_refused() {
    for text in [
        "",
        "{",
        "descr",
        "{'descr",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} {}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,",
        "{'descr': '<f4',, 'fortran_order': False, 'shape': (1,)}",
    ] {
        assert!(matches!(parsed(text), Err(HeaderError::Syntax { .. })), "{text}");
    }
    // Nested deeper than any record type; the parser must not overflow its stack.
    let deep = format!("{{'descr': {}", "[".repeat(60_000));
    assert!(matches!(parsed(&deep), Err(HeaderError::Syntax { .. })));
    assert_eq!(parse(3, b"{'descr': '\xff'}"), Err(HeaderError::NotText));
}

#[test]
fn prefixes_of_all_versions_are_parsed() {
    let at = |header_at, version| Ok(Prefix { version, header_at, header_bytes: 118 });
    assert_eq!(prefix(b"\x93NUMPY\x01\x00\x76\x00{'"), at(10, 1));
    assert_eq!(prefix(b"\x93NUMPY\x02\x00\x76\x00\x00\x00"), at(12, 2));
    assert_eq!(prefix(b"\x93NUMPY\x03\x00\x76\x00\x00\x00"), at(12, 3));
    assert_eq!(prefix(b"\x93NUMPY\x04\x00\x76\x00\x00\x00"), Err(HeaderError::Version(4, 0)));
    assert_eq!(prefix(b"\x93NUMPY\x01\x01\x76\x00\x00\x00"), Err(HeaderError::Version(1, 1)));
    assert_eq!(prefix(b"\x93NUMPY\x02\x00\x76\x00"), Err(HeaderError::CutShort));
    assert_eq!(prefix(b"\x93NUMPY"), Err(HeaderError::CutShort));
    assert_eq!(prefix(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), Err(HeaderError::TooLong(0xffff_ffff)));
    assert_eq!(prefix(b"PK\x03\x04"), Err(HeaderError::Magic));
}

//! NPY headers as NumPy and other programs write them.

use cytoscope_formats::{FormatErrorKind, OpenOptions, open_bytes};
use cytoscope_volume::Samples;

fn file(version: u8, header: &str, samples: &[i16]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend(header.as_bytes());
    bytes.extend(samples.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

fn read(version: u8, header: &str, samples: &[i16]) -> Result<Vec<i16>, FormatErrorKind> {
    let image = open_bytes(file(version, header, samples), &OpenOptions::default()).map_err(|e| e.kind())?;
    match image.read_all().unwrap().into_samples() {
        Samples::I16(values) => Ok(values),
        other => panic!("{:?}", other.dtype()),
    }
}

#[test]
fn every_version_and_spelling_is_read() {
    let samples = [1, 2, 3, 4, 5, -6];
    for version in [1, 2, 3] {
        for header in [
            "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }   \n",
            "{'descr':'<i2','fortran_order':False,'shape':(2,3)}",
            "{\"shape\":(2,3,), \"fortran_order\" : False, \"descr\":\"<i2\"}",
        ] {
            assert_eq!(read(version, header, &samples), Ok(samples.to_vec()), "{header}");
        }
    }
}

#[test]
fn fortran_order_is_recognized_in_every_spelling() {
    for header in [
        "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }",
        "{'descr':'<i2','fortran_order':True,'shape':(2,3)}",
        "{'descr': '<i2', 'fortran_order' :\tTrue, 'shape': (2, 3)}",
        "{\"descr\": \"<i2\", \"fortran_order\": True, \"shape\": (2, 3)}",
    ] {
        assert_eq!(read(1, header, &[0; 6]), Err(FormatErrorKind::Unsupported), "{header}");
    }
    // With a single axis both orders are the same.
    let header = "{'descr': '<i2', 'fortran_order': True, 'shape': (1, 3)}";
    assert_eq!(read(1, header, &[7, 8, 9]), Ok(vec![7, 8, 9]));
}

#[test]
fn ambiguous_headers_are_refused() {
    for header in [
        "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), 'shape': (3, 2)}",
        "{'descr': '<i2', 'shape': (2, 3)}",
        "{'descr': '<i2', 'fortran_order': False, 'order': 'F', 'shape': (2, 3)}",
        "{'descr': '<i2', 'fortran_order': False, 'shape': [2, 3]}",
        "# 'descr': '<i2' 'shape': (2, 3)",
    ] {
        assert_eq!(read(1, header, &[0; 6]), Err(FormatErrorKind::Malformed), "{header}");
    }
}

#[test]
fn arrays_without_samples_and_with_too_many_planes_are_refused() {
    let open = |shape: &str, samples: usize| {
        let header = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}}}");
        open_bytes(file(1, &header, &vec![0; samples]), &OpenOptions::default()).map(|_| ()).map_err(|e| e.kind())
    };
    // The first states a channel axis that would take all memory, the second overflows.
    for shape in ["(1099511627776, 0, 1, 1)", "(0, 1099511627776, 1099511627776)", "(0, 3)", "(3, 0)"] {
        assert_eq!(open(shape, 0), Err(FormatErrorKind::Malformed), "{shape}");
    }
    assert_eq!(open("(2097153, 1, 1)", 2_097_153), Err(FormatErrorKind::OverLimit));
    assert_eq!(open("(1000, 1, 1)", 1000), Ok(()));
}

#[test]
fn an_array_whose_last_axis_may_be_a_color_says_so() {
    let reason = |shape: &str, count: usize, axes: Option<&str>| {
        let header = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}}}");
        let options = OpenOptions { axes: axes.map(|axes| axes.parse().unwrap()), ..OpenOptions::default() };
        let image = open_bytes(file(1, &header, &vec![0; count]), &options).unwrap();
        image.meta().read_as_slices.clone()
    };
    let picture = reason("(20, 30, 3)", 1800, None).unwrap();
    assert!(picture.contains("length 3 is read as X") && picture.contains("YXC"), "{picture}");
    assert!(reason("(2, 20, 30, 4)", 4800, None).is_some());
    assert_eq!(reason("(20, 30, 3)", 1800, Some("YXC")), None);
    for (stack, count) in [("(20, 30, 30)", 18_000), ("(3, 20, 30)", 1800), ("(20, 30, 1)", 600), ("(30, 3)", 90)] {
        assert_eq!(reason(stack, count, None), None, "{stack}");
    }
}

//! NPY headers as NumPy and other programs write them.

use cytoscope_formats::{FormatErrorKind, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};

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
        assert_eq!(read(1, header, &[1, 4, 2, 5, 3, -6]), Ok(vec![1, 2, 3, 4, 5, -6]), "{header}");
        assert_eq!(read(1, header, &[0; 5]), Err(FormatErrorKind::Malformed), "{header}");
    }
    // With a single axis both orders are the same.
    let header = "{'descr': '<i2', 'fortran_order': True, 'shape': (1, 3)}";
    assert_eq!(read(1, header, &[7, 8, 9]), Ok(vec![7, 8, 9]));
}

/// A file with the element `n` of the array, counted in C order, made by `element`.
fn array_file(descr: &str, is_fortran: bool, shape: [usize; 3], element: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let (order, [planes, rows, columns]) = (if is_fortran { "True" } else { "False" }, shape);
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({planes}, {rows}, {columns})}}");
    let mut bytes = file(1, &header, &[]);
    let mut put =
        |plane: usize, row: usize, column: usize| bytes.extend(element((plane * rows + row) * columns + column));
    if is_fortran {
        for column in 0..columns {
            for row in 0..rows {
                (0..planes).for_each(|plane| put(plane, row, column));
            }
        }
    } else {
        for plane in 0..planes {
            for row in 0..rows {
                (0..columns).for_each(|column| put(plane, row, column));
            }
        }
    }
    bytes
}

#[test]
fn arrays_in_fortran_order_that_numpy_wrote_are_read() {
    // numpy.save of numpy.asfortranarray((numpy.arange(24) + 1).reshape(2, 3, 4).astype(">u2")).
    let stored = [1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23, 4, 16, 8, 20, 12, 24];
    let mut bytes = file(1, "{'descr': '>u2', 'fortran_order': True, 'shape': (2, 3, 4), }", &[]);
    bytes.extend(stored.iter().flat_map(|value: &u16| value.to_be_bytes()));
    let image = open_bytes(bytes, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 1, 3, 4, 1]);
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16((1..=24).collect()));
    // numpy.save of numpy.array([[1, 3], [2, 4]], "<f8", order="F").
    let seed = include_bytes!("../../../../fuzz/seeds/read_npy/fortran_doubles");
    let doubles = open_bytes(seed.to_vec(), &OpenOptions::default()).unwrap();
    assert_eq!(doubles.read_all().unwrap().into_samples(), Samples::F64(vec![1.0, 3.0, 2.0, 4.0]));
}

#[test]
fn every_sample_type_is_read_in_fortran_order() {
    for descr in ["|b1", "|u1", "|i1", "<u2", ">u2", "<i2", "<f2", "<u4", ">i4", "<f4", ">f4", "<u8", ">i8", "<f8"] {
        let size: usize = descr[2..].parse().unwrap();
        let element = |n: usize| (0..size).map(|byte| (n * 8 + byte) as u8).collect::<Vec<u8>>();
        let read = |is_fortran: bool| {
            let bytes = array_file(descr, is_fortran, [2, 3, 4], element);
            open_bytes(bytes, &OpenOptions::default()).unwrap().read_all().unwrap()
        };
        let (rows, columns) = (read(false), read(true));
        assert_eq!((columns.shape(), columns.dtype()), (rows.shape(), rows.dtype()), "{descr}");
        assert!(columns.samples().as_bytes() == rows.samples().as_bytes(), "{descr}");
    }
}

#[test]
fn regions_of_arrays_in_fortran_order_are_read() {
    // Larger than what is read at once; with few samples in each part of the file; and in other axes than by default.
    for (shape, axes) in [([60, 170, 130], "ZYX"), ([5000, 3, 4], "ZYX"), ([3, 5000, 4], "TYX"), ([70, 80, 3], "YXC")] {
        let element = |n: usize| (n as u32).to_be_bytes().to_vec();
        let options = OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
        let open = |is_fortran: bool| open_bytes(array_file(">u4", is_fortran, shape, element), &options).unwrap();
        let (rows, columns) = (open(false), open(true));
        let full = rows.meta().shape_full.clone();
        assert_eq!(columns.meta().shape_full, full);
        let whole = Region::whole(&full);
        let mut regions = vec![whole.clone()];
        for axis in (0..6).filter(|axis| full[*axis] > 1) {
            let last = full[axis] - 1;
            regions.push(whole.clone().with_range(axis, last, 1));
            regions.push(whole.clone().with_range(axis, 1, last).with_range(3, full[3] / 2, 1));
        }
        for region in regions {
            let (got, expected) = (columns.read(0, &region).unwrap(), rows.read(0, &region).unwrap());
            assert!(got.samples().as_bytes() == expected.samples().as_bytes(), "{shape:?} {axes} {region:?}");
        }
    }
}

#[test]
fn a_file_in_fortran_order_is_read_once_for_all_of_its_slices() {
    let shape = [12, 40, 50];
    let [depth, height, width] = shape;
    let slice_bytes = (2 * height * width) as u64;
    let file_bytes = depth as u64 * slice_bytes;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.npy");
    let element = |n: usize| (n as u16).to_le_bytes().to_vec();
    std::fs::write(&path, array_file("<u2", true, shape, element)).unwrap();
    let plane = |z: usize| Region::whole(&[1, depth, 1, height, width, 1]).with_range(1, z, 1);
    // Reads slices and returns the number of bytes that are read from the file.
    let read = |limit_bytes: Option<u64>, slices: &mut dyn Iterator<Item = usize>| {
        let image = open(&path, &OpenOptions::default()).unwrap();
        let opened = image.bytes_read();
        let kept = image.cache_bytes();
        assert!(kept >= file_bytes, "{kept}");
        if let Some(bytes) = limit_bytes {
            image.limit_cache(bytes);
            assert!(image.cache_bytes() < kept, "{bytes}");
        }
        for z in slices {
            let first = (z * height * width) as u16;
            let wanted: Vec<u16> = (first..).take(height * width).collect();
            assert_eq!(image.read(0, &plane(z)).unwrap().into_samples(), Samples::U16(wanted), "{z}");
        }
        image.bytes_read() - opened
    };
    let is_about = |bytes: u64, times: u64| (times * file_bytes * 9 / 10..=times * file_bytes).contains(&bytes);
    for (limit_bytes, times) in [(None, 1), (Some(6 * slice_bytes), 2), (Some(5 * slice_bytes), 3), (Some(0), 12)] {
        let bytes = read(limit_bytes, &mut (0..depth));
        assert!(is_about(bytes, times), "{limit_bytes:?}: {bytes} bytes of {file_bytes}");
    }
    // From the end as well, if all slices are kept.
    let backwards = read(None, &mut (0..depth).rev());
    assert!(is_about(backwards, 1), "{backwards} bytes of {file_bytes}");
    // A part of each row is not read ahead.
    let image = open(&path, &OpenOptions::default()).unwrap();
    let opened = image.bytes_read();
    image.read(0, &plane(3).with_range(4, 0, 2)).unwrap();
    assert!(image.bytes_read() - opened < file_bytes / 10);
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

/// The note on the axes of an array of zeros with `count` values.
fn reason(shape: &str, count: usize, axes: Option<&str>) -> Option<String> {
    let header = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}}}");
    let options = OpenOptions { axes: axes.map(|axes| axes.parse().unwrap()), ..OpenOptions::default() };
    let image = open_bytes(file(1, &header, &vec![0; count]), &options).unwrap();
    image.meta().read_as_slices.clone()
}

#[test]
fn an_array_whose_axes_may_be_channels_or_time_points_says_how_they_are_read() {
    let arrays = [("(8, 2, 5, 6)", 480, "CZYX"), ("(2, 1, 3, 5, 6)", 180, "TCZYX"), ("(1, 2, 3, 5, 6)", 180, "TCZYX")];
    for (shape, count, order) in arrays {
        let note = reason(shape, count, None).unwrap();
        assert!(note.contains(&format!("in the order {order}:")), "{note}");
    }
    assert_eq!(reason("(8, 2, 5, 6)", 480, Some("ZCYX")), None);
    for (stack, count) in [("(8, 5, 6)", 240), ("(1, 8, 5, 6)", 240), ("(1, 1, 8, 5, 6)", 240)] {
        assert_eq!(reason(stack, count, None), None, "{stack}");
    }
}

#[test]
fn an_array_whose_last_axis_may_be_a_color_says_so() {
    let picture = reason("(20, 30, 3)", 1800, None).unwrap();
    assert!(picture.contains("length 3 is read as X") && picture.contains("YXC"), "{picture}");
    assert!(reason("(2, 20, 30, 4)", 4800, None).is_some());
    assert_eq!(reason("(20, 30, 3)", 1800, Some("YXC")), None);
    for (stack, count) in [("(20, 30, 30)", 18_000), ("(3, 20, 30)", 1800), ("(20, 30, 1)", 600), ("(30, 3)", 90)] {
        assert_eq!(reason(stack, count, None), None, "{stack}");
    }
}

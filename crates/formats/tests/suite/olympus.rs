//! Olympus OIF and OIB, made by these tests: pixel `i` of time point `t`, slice `z` and channel `c` is
//! `i + 200 t + 50 z + 20 c`. Python's `oiffile`, where it is present, reads the same.

use crate::common::{
    self,
    tiff_builder::{Tiff, gray},
};
use cfb::{CompoundFile, Version};
use cytoscope_formats::{FormatErrorKind, Image, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{Region, Samples};
use std::{
    fs,
    io::{Cursor, Write},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The settings of an image of two channels, three slices and two time points.
const SETTINGS: &str = "[ProfileSaveInfo]\nName=FVProfile\nVersion=1.2.6.0\n[Axis 0 Parameters Common]\n\
    AxisCode=\"X\"\nAxisName=\"X\"\nMaxSize=3\nStartPosition=0.0\nEndPosition=1.5\nPixUnit=\"um\"\nUnitName=\"um\"\n\
    [Axis 1 Parameters Common]\nAxisCode=\"Y\"\nMaxSize=2\nStartPosition=0.0\nEndPosition=1.0\nUnitName=\"um\"\n\
    [Axis 2 Parameters Common]\nAxisCode=\"C\"\nMaxSize=2\nStartPosition=1.0\nEndPosition=2.0\nUnitName=\"Ch\"\n\
    [Axis 3 Parameters Common]\nAxisCode=\"Z\"\nMaxSize=3\nStartPosition=-152140.0\nEndPosition=-154140.0\n\
    UnitName=\"nm\"\n[Axis 4 Parameters Common]\nAxisCode=\"T\"\nMaxSize=2\nStartPosition=0.0\nEndPosition=2500.0\n\
    UnitName=\"ms\"\n[Axis 5 Parameters Common]\nAxisCode=\"A\"\nMaxSize=0\n[Axis 6 Parameters Common]\n\
    AxisCode=\"L\"\nMaxSize=0\n[Axis 7 Parameters Common]\nAxisCode=\"P\"\nMaxSize=0\n[Axis Parameter Common]\n\
    AxisCount=5\nAxisOrder=\"XYCZT\"\n[Reference Image Parameter]\nImageDepth=2\nImageHeight=2\nImageWidth=3\n\
    ValidBitCounts=12\nWidthConvertValue=0.5\nWidthUnit=\"um\"\nHeightConvertValue=0.25\nHeightUnit=\"um\"\n\
    [GUI Channel 1 Parameters]\nCH Activate=1\nCH Name=\"CH1\"\nDyeName=\"Alexa Fluor 488\"\n\
    [GUI Channel 2 Parameters]\nCH Activate=0\nCH Name=\"CH2\"\nDyeName=\"Cy3\"\n\
    [GUI Channel 3 Parameters]\nCH Activate=1\nCH Name=\"TD1\"\nDyeName=\"None\"\n";

/// A text as FluoView writes it.
fn utf_16(text: &str) -> Vec<u8> {
    let text = text.replace('\n', "\r\n");
    [0xFF, 0xFE].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
}

/// A TIFF with one page of 2 × 3 pixels of 16 bits, which count up from `first`.
fn plane(first: u16) -> Vec<u8> {
    let mut tiff = Tiff::new();
    let at = tiff.data(&(0..6).flat_map(|i| (first + i).to_le_bytes()).collect::<Vec<u8>>());
    let mut tags = gray(3, 2, at, 12);
    tags[2].2 = vec![16];
    tiff.page(&tags);
    tiff.bytes
}

/// The files beside the settings: planes, and what is no plane.
fn members() -> Vec<(String, Vec<u8>)> {
    let mut members = vec![
        ("s_C001-R001.tif".to_owned(), plane(9999)),
        ("s_C001Z001T001.pty".to_owned(), utf_16("[File Info]\nDataName=\"s_C001Z001T001.tif\"\n")),
        ("s_Thumb.bmp".to_owned(), b"BM".to_vec()),
    ];
    for (t, z, c) in (0..2).flat_map(|t| (0..3).flat_map(move |z| (0..2).map(move |c| (t, z, c)))) {
        let name = format!("s_C{:03}Z{:03}T{:03}.tif", c + 1, z + 1, t + 1);
        members.push((name, plane(200 * t + 50 * z + 20 * c)));
    }
    members
}

/// The samples of the image, axes T, Z, C, Y, X.
fn samples() -> Samples {
    let first = |plane: u16| 200 * (plane / 6) + 50 * (plane / 2 % 3) + 20 * (plane % 2);
    Samples::U16((0..12).flat_map(|plane| (0..6).map(move |i| first(plane) + i)).collect())
}

/// Writes an OIF and returns its path.
fn write_oif(folder: &Path, settings: &[u8], members: &[(String, Vec<u8>)]) -> PathBuf {
    let path = folder.join("stack.oif");
    fs::write(&path, settings).unwrap();
    let planes = folder.join("stack.oif.files");
    fs::create_dir(&planes).unwrap();
    for (name, bytes) in members {
        fs::write(planes.join(name), bytes).unwrap();
    }
    path
}

/// An OIB.
fn oib(version: Version, settings: &[u8], members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut file = CompoundFile::create_with_version(version, Cursor::new(Vec::new())).unwrap();
    let mut info = "[OibSaveInfo]\nVersion=2.0.0.0\nName=stack\nCompression=0\nMainFileName=Stream00000\n\
        Stream00000=stack.oif\nStorage00001=stack.oif.files\n"
        .to_owned();
    file.create_storage("/Storage00001").unwrap();
    file.create_stream("/Stream00000").unwrap().write_all(settings).unwrap();
    for (i, (name, bytes)) in members.iter().enumerate() {
        let key = format!("Stream{:05}", i + 1);
        info += &format!("{key}=Storage00001/{name}\n");
        file.create_stream(format!("/Storage00001/{key}")).unwrap().write_all(bytes).unwrap();
    }
    file.create_stream("/OibInfo.txt").unwrap().write_all(&utf_16(&info)).unwrap();
    file.flush().unwrap();
    file.into_inner().into_inner()
}

/// The OIF and the OIBs of both versions in a folder.
fn written() -> (TempDir, [PathBuf; 3]) {
    let folder = tempfile::tempdir().unwrap();
    let settings = utf_16(SETTINGS);
    let oif = write_oif(folder.path(), &settings, &members());
    let oibs = [(Version::V3, "small.oib"), (Version::V4, "large.oib")].map(|(version, name)| {
        let path = folder.path().join(name);
        fs::write(&path, oib(version, &settings, &members())).unwrap();
        path
    });
    let [small, large] = oibs;
    (folder, [oif, small, large])
}

fn opened(path: &Path) -> Result<Image, FormatErrorKind> {
    open(path, &OpenOptions::default()).map_err(|error| error.kind())
}

/// The kind of the error of opening an OIF with these settings and planes.
fn refused(settings: &str, members: &[(String, Vec<u8>)]) -> Option<FormatErrorKind> {
    let folder = tempfile::tempdir().unwrap();
    opened(&write_oif(folder.path(), &utf_16(settings), members)).err()
}

#[test]
fn planes_axes_and_metadata_are_read() {
    let (_folder, paths) = written();
    for (path, format) in paths.iter().zip(["oif", "oib", "oib"]) {
        let image = opened(path).unwrap();
        let meta = image.meta();
        assert_eq!((meta.format.as_str(), meta.compression.as_str(), meta.bits_per_sample), (format, "none", 12));
        assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("TZCYX", &[2, 3, 2, 2, 3][..]));
        assert_eq!(image.read_all().unwrap().into_samples(), samples(), "{path:?}");
        let voxel = meta.voxel_size_um;
        for (found, expected) in [(voxel.z, 1.0), (voxel.y, 0.25), (voxel.x, 0.5)] {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{voxel:?}");
        }
        assert_eq!((meta.time_interval_secs, meta.missing_planes), (Some(2.5), 0));
        // Of a detector without a dye, the name is that of the detector; the second one was not used.
        let names: Vec<&str> = meta.channels.iter().map(|channel| channel.name.as_str()).collect();
        assert_eq!(names, ["Alexa Fluor 488", "TD1"]);
    }
}

#[test]
fn names_of_another_number_of_channels_are_not_used() {
    let names = |settings: &str| {
        let image = open_bytes(oib(Version::V3, &utf_16(settings), &members()), &OpenOptions::default()).unwrap();
        let names: Vec<String> = image.meta().channels.iter().map(|channel| channel.name.clone()).collect();
        names.join(", ")
    };
    let three = SETTINGS.replace("CH Activate=0", "CH Activate=1");
    assert_eq!(names(&three), ", ");
    let acquired = "[Channel 1 Parameters]\nDyeName=\"DAPI\"\n[Channel 2 Parameters]\nCH Name=\"CH4\"\n";
    assert_eq!(names(&format!("{three}{acquired}")), "DAPI, CH4");
}

#[test]
fn seeds_of_the_fuzz_target_are_read() {
    for seed in [
        &include_bytes!("../../../../fuzz/seeds/read_olympus/small_sectors")[..],
        &include_bytes!("../../../../fuzz/seeds/read_olympus/large_sectors")[..],
    ] {
        assert_eq!(common::opened(seed.to_vec(), 0).unwrap().read_all().unwrap().into_samples(), samples());
    }
}

#[test]
fn oiffile_reads_the_same() {
    const READ: &str = "import sys, oiffile
for path in sys.argv[1:]:
    with oiffile.OifFile(path) as file:
        planes = file.series[0]
        print(planes.axes, *planes.shape, planes.asarray().transpose(2, 1, 0, 3, 4).ravel().tolist())
        print(file.axes, file.shape)
";
    let Some(python) = cytoscope_testkit::python_with("oiffile") else { return };
    let (_folder, paths) = written();
    let text = common::run_python(&python, READ, &paths);
    let Samples::U16(values) = samples() else { panic!("16 bits") };
    for lines in text.lines().collect::<Vec<_>>().chunks(2) {
        assert_eq!(lines, [format!("CZT 2 3 2 {values:?}").as_str(), "TZCYX (2, 3, 2, 2, 3)"]);
    }
    assert_eq!(text.lines().count(), 6);
}

#[test]
fn all_files_of_an_image_are_listed() {
    let (_folder, [oif, oib, _]) = written();
    let files = opened(&oif).unwrap().files();
    assert_eq!((files.len(), files.first()), (13, Some(&oif)));
    assert!(files.iter().all(|file| file.is_file()));
    assert_eq!(opened(&oib).unwrap().files(), [oib]);
}

#[test]
fn a_region_is_read_without_the_other_planes() {
    let (_folder, paths) = written();
    let part = Region { start: vec![1, 2, 1, 1, 1, 0], size: vec![1, 1, 1, 1, 2, 1] };
    for path in &paths {
        let (image, other) = (opened(path).unwrap(), opened(path).unwrap());
        let before = image.bytes_read();
        assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![324, 325]));
        let whole = Region::whole(&other.meta().shape_full);
        other.read(0, &whole).unwrap();
        let [part, whole] = [&image, &other].map(|image| image.bytes_read() - before);
        assert!(part > 0 && 6 * part < whole, "{part} bytes of {whole}");
    }
}

#[test]
fn planes_that_were_not_acquired_are_missing() {
    let members: Vec<_> = members().into_iter().filter(|(name, _)| !name.contains("Z002T002")).collect();
    let settings = utf_16(SETTINGS);
    let folder = tempfile::tempdir().unwrap();
    let files = open_bytes(oib(Version::V4, &settings, &members), &OpenOptions::default());
    for image in [opened(&write_oif(folder.path(), &settings, &members)).unwrap(), files.unwrap()] {
        assert_eq!((image.meta().shape.as_slice(), image.meta().missing_planes), (&[2, 3, 2, 2, 3][..], 2));
        let Samples::U16(read) = image.read_all().unwrap().into_samples() else { panic!("16 bits") };
        let Samples::U16(expected) = samples() else { panic!("16 bits") };
        assert_eq!((&read[..48], &read[60..]), (&expected[..48], &expected[60..]));
        assert_eq!(read[48..60], [0; 12]);
    }
}

#[test]
fn axes_that_no_name_states_have_one_plane() {
    let members: Vec<_> = (0..2).map(|c| (format!("s_C00{}.tif", c + 1), plane(20 * c))).collect();
    let image = open_bytes(oib(Version::V3, &utf_16(SETTINGS), &members), &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape_full, [1, 1, 2, 2, 3, 1]);
    assert_eq!(image.meta().time_interval_secs, None);
    let options = OpenOptions { axes: Some("ZYX".parse().unwrap()), ..OpenOptions::default() };
    let image = open_bytes(oib(Version::V3, &utf_16(SETTINGS), &members), &options).unwrap();
    assert_eq!(image.meta().shape_full, [1, 2, 1, 2, 3, 1]);
}

#[test]
fn settings_in_utf_8_and_decimal_commas_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SETTINGS.replace("WidthConvertValue=0.5", "WidthConvertValue=0,5").replace("HeightConvert", "Other");
    let image = opened(&write_oif(folder.path(), settings.as_bytes(), &members())).unwrap();
    let voxel = image.meta().voxel_size_um;
    // Without a size of pixels, that of Y is the length of the axis divided by its pixels.
    assert_eq!((voxel.y, voxel.x), (Some(0.5), Some(0.5)));
    assert_eq!(image.read_all().unwrap().into_samples(), samples());
}

#[test]
fn what_cannot_be_read_is_refused() {
    use FormatErrorKind::{Malformed, Misused, OverLimit, Unsupported};
    let changed = |text: &str, other: &str| {
        assert!(SETTINGS.contains(text), "{text}");
        refused(&SETTINGS.replace(text, other), &members())
    };
    assert_eq!(changed("XYCZT", "XYCZT"), None, "unchanged");
    assert_eq!(changed("XYCZT", "XZC"), Some(Unsupported), "an X-Z scan");
    assert_eq!(changed("\"L\"\nMaxSize=0", "\"L\"\nMaxSize=32"), Some(Unsupported), "wavelengths");
    assert_eq!(changed("AxisCode=\"Y\"", "AxisCode=\"N\""), Some(Unsupported), "settings of something else");
    assert_eq!(changed("\"Z\"\nMaxSize=3", "\"Z\"\nMaxSize=2"), Some(Malformed), "a plane beyond the last slice");
    assert_eq!(changed("\"T\"\nMaxSize=2", "\"T\"\nMaxSize=99999999999"), Some(OverLimit));
    assert_eq!(refused(SETTINGS, &[]), Some(Malformed), "no planes");
    assert_eq!(refused(SETTINGS, &[("s_C001.tif".to_owned(), b"no TIFF".to_vec())]), Some(Malformed));
    // The folder with the planes has another name.
    let (folder, [oif, ..]) = written();
    let renamed = folder.path().join("renamed.oif");
    fs::rename(oif, &renamed).unwrap();
    let error = open(&renamed, &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("renamed.oif.files, which does not exist") && error.contains("beside"), "{error}");
    let second = OpenOptions { series: 1, ..OpenOptions::default() };
    let file = oib(Version::V3, &utf_16(SETTINGS), &members());
    assert_eq!(open_bytes(file, &second).err().map(|error| error.kind()), Some(Misused));
}

#[test]
fn a_plane_of_another_size_is_an_error_when_it_is_read() {
    let mut members = members();
    let (_, bytes) = members.iter_mut().find(|(name, _)| name == "s_C002Z003T002.tif").unwrap();
    *bytes = common::tiff_builder::pages(1, &[], &[]);
    let image = open_bytes(oib(Version::V3, &utf_16(SETTINGS), &members), &OpenOptions::default()).unwrap();
    assert_eq!(image.read_all().unwrap_err().kind(), FormatErrorKind::Malformed);
    let first = Region::whole(&image.meta().shape_full).with_range(0, 0, 1);
    assert_eq!(image.read(0, &first).unwrap().into_samples().len(), 36);
}

#[test]
fn damaged_compound_files_are_refused() {
    use FormatErrorKind::{Malformed, Unsupported};
    let whole = oib(Version::V3, &utf_16(SETTINGS), &members());
    let kind = |bytes: Vec<u8>| common::opened(bytes, 0).and_then(|image| image.read_all().map_err(|e| e.kind())).err();
    assert_eq!(kind(whole.clone()), None);
    for cut in [8, 100, 512, 1024, whole.len() / 2] {
        assert_eq!(kind(whole[..cut].to_vec()), Some(Malformed), "{cut}");
    }
    // Bytes of the header and the tables: no panic, and either an error or an image.
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xFF;
        let _ = kind(damaged);
    }
    let mut other = CompoundFile::create(Cursor::new(Vec::new())).unwrap();
    other.create_stream("/Contents").unwrap().write_all(b"a document").unwrap();
    other.flush().unwrap();
    assert_eq!(kind(other.into_inner().into_inner()), Some(Unsupported));
}

/// A stream may not begin in the middle of another one: a small file could then hold any number of planes.
#[test]
fn streams_that_share_their_bytes_are_refused() {
    let long: Vec<u8> = [plane(0), vec![0; 100_000]].concat();
    let members: Vec<_> =
        (1..=9).map(|z| (format!("s_Z00{z}.tif"), if z == 1 { long.clone() } else { plane(0) })).collect();
    let settings = utf_16(&SETTINGS.replace("\"Z\"\nMaxSize=3", "\"Z\"\nMaxSize=9"));
    let mut file = oib(Version::V4, &settings, &members);
    assert_eq!(common::opened(file.clone(), 0).err(), None);
    // First sector and length of a stream are the last twelve bytes of its entry of 128 bytes, before which its name is.
    let entry = |file: &[u8], name: &str| {
        let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        (0..file.len() / 128).map(|i| i * 128).find(|at| file[*at..].starts_with(&name)).unwrap()
    };
    let first = entry(&file, "Stream00001");
    let place = file[first + 116..first + 128].to_vec();
    for i in 2..=9 {
        let other = entry(&file, &format!("Stream0000{i}"));
        file[other + 116..other + 128].copy_from_slice(&place);
    }
    assert_eq!(common::opened(file, 0).err(), Some(FormatErrorKind::Malformed));
}

#[test]
fn limits_hold() {
    let (_folder, paths) = written();
    let d = Limits::default;
    for (limits, kinds) in [
        (Limits { max_pages: 11, ..d() }, [true; 3]),
        (Limits { max_set_files: 11, ..d() }, [true, false, false]),
        (Limits { max_read_bytes: 47, ..d() }, [true; 3]),
    ] {
        for (path, refused) in paths.iter().zip(kinds) {
            let options = OpenOptions { limits: limits.clone(), ..OpenOptions::default() };
            let read = open(path, &options).and_then(|image| image.read_all()).map_err(|error| error.kind());
            assert_eq!(read.err(), refused.then_some(FormatErrorKind::OverLimit), "{path:?} {limits:?}");
        }
    }
}

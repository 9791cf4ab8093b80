//! HDF5 files that `../data/hdf5/make_hdf5.py` wrote with h5py and npy2bdv: sample `i` of a stack is `i`, plus 1000 for each time
//! point, 200 for each channel, 400 for each tile and 10000 for each level.

use crate::common::{self, opened};
use cytoscope_formats::{FormatErrorKind, Image, Limits, OpenOptions, open, open_bytes};
use cytoscope_volume::{DType, Region, Samples};
use std::path::Path;

macro_rules! seed {
    ($name:literal) => {
        include_bytes!(concat!("../../../../fuzz/seeds/read_hdf5/", $name)).to_vec()
    };
}

/// A folder with these files.
fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn series(path: &Path, series: usize) -> Image {
    open(path, &OpenOptions { series, ..OpenOptions::default() }).unwrap()
}

/// The samples along T, Z, C, Y, X of stacks of three slices of 30 samples; `first` is the first one of a time point and channel.
fn stacks(times: u16, channels: u16, first: impl Fn(u16, u16) -> u16) -> Samples {
    let planes = (0..times).flat_map(|t| (0..3).flat_map(move |z| (0..channels).map(move |c| (t, z, c))));
    Samples::U16(
        planes
            .flat_map(|(t, z, c)| (0..30).map(move |i| (t, z, c, i)))
            .map(|(t, z, c, i)| first(t, c) + 30 * z + i)
            .collect(),
    )
}

#[test]
fn stacks_of_imaris_are_read_without_their_padding() {
    let image = opened(seed!("imaris"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.compression.as_str(), meta.dtype), ("imaris", "zlib", DType::U16));
    assert_eq!(meta.shape_full, [2, 3, 2, 5, 6, 1]);
    let size = meta.voxel_size_um;
    assert_eq!((size.z, size.y, size.x, meta.time_interval_secs), (Some(2.0), Some(0.5), Some(0.5), Some(2.5)));
    let channels: Vec<_> = meta.channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("DAPI", Some([0, 0, 255])), ("Alexa µ", Some([255, 128, 0]))]);
    assert_eq!(image.read_all().unwrap().into_samples(), stacks(2, 2, |t, c| 1000 * t + 200 * c));
    let image = opened(seed!("imaris_old"), 0).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), stacks(1, 1, |_, _| 0));
}

#[test]
fn extents_and_voxel_sizes_of_imaris_may_be_numbers() {
    let image = opened(seed!("imaris_numbers"), 0).unwrap();
    let meta = image.meta();
    let size = meta.voxel_size_um;
    assert_eq!((meta.shape_full.as_slice(), size.z), (&[1, 3, 1, 5, 6, 1][..], Some(2.0)));
    assert_eq!((size.y, size.x), (Some(0.5), Some(0.5)));
    let channels: Vec<_> = meta.channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("DAPI", Some([0, 128, 255]))]);
    assert_eq!(image.read_all().unwrap().into_samples(), stacks(1, 1, |_, _| 0), "without padding");
}

#[test]
fn levels_of_imaris_are_read() {
    let image = opened(seed!("imaris"), 0).unwrap();
    let shapes: Vec<&[usize]> = image.meta().levels.iter().map(|level| level.shape_full.as_slice()).collect();
    assert_eq!(shapes, [[2, 3, 2, 5, 6, 1], [2, 2, 2, 3, 3, 1]]);
    let part = Region { start: vec![1, 0, 1, 1, 0, 0], size: vec![1, 2, 1, 1, 3, 1] };
    let expected = [3, 4, 5, 12, 13, 14].map(|i| 10_000 + 1000 + 200 + i);
    assert_eq!(image.read(1, &part).unwrap().into_samples(), Samples::U16(expected.to_vec()));
}

#[test]
fn chunks_of_channels_may_differ() {
    let image = opened(seed!("chunks_differ"), 0).unwrap();
    // The second time, all chunks are in the cache.
    for _ in 0..2 {
        assert_eq!(image.read_all().unwrap().into_samples(), stacks(1, 2, |_, c| 200 * c));
    }
}

#[test]
fn stacks_of_another_size_are_refused_when_they_are_read() {
    let image = opened(seed!("sizes_differ"), 0).unwrap();
    assert_eq!(image.meta().shape_full, [2, 3, 1, 5, 6, 1]);
    let time = |t: usize| Region { start: vec![t, 0, 0, 0, 0, 0], size: vec![1, 3, 1, 5, 6, 1] };
    assert_eq!(image.read(0, &time(0)).unwrap().into_samples(), stacks(1, 1, |_, _| 0));
    assert_eq!(image.read(0, &time(1)).unwrap_err().kind(), FormatErrorKind::Malformed);
}

#[test]
fn levels_that_stacks_lack_are_not_read_as_zeros() {
    // Setups 0 and 2 are channels.
    let xml = include_bytes!("../data/hdf5/bdv.xml").to_vec();
    let folder = folder(&[("bdv.h5", seed!("levels_differ")), ("bdv.xml", xml)]);
    let image = series(&folder.path().join("bdv.h5"), 0);
    assert_eq!((image.meta().shape_full.as_slice(), image.meta().levels.len()), (&[2, 3, 2, 5, 6, 1][..], 1));
    // Alone, the first one has a second level at the first time point.
    let image = opened(seed!("levels_differ"), 0).unwrap();
    assert_eq!(image.meta().levels.len(), 2);
    let time = |t: usize| Region { start: vec![t, 0, 0, 0, 0, 0], size: vec![1, 2, 1, 3, 3, 1] };
    assert_eq!(image.read(1, &time(0)).unwrap().into_samples(), Samples::U16((0..18).collect()));
    assert_eq!(image.read(1, &time(1)).unwrap_err().kind(), FormatErrorKind::Malformed);
}

#[test]
fn a_region_reads_only_its_chunks() {
    let folder = folder(&[("a.ims", seed!("imaris_old"))]);
    let image = series(&folder.path().join("a.ims"), 0);
    let part = Region { start: vec![0, 2, 0, 1, 5, 0], size: vec![1, 1, 1, 2, 1, 1] };
    // The index of the chunks is read, too: a node of a few thousand bytes.
    let before = image.bytes_read();
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![71, 77]));
    let first = image.bytes_read() - before;
    assert!(first < 6000, "{first} bytes");
    // The chunk is kept, which a limit prevents.
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![71, 77]));
    assert_eq!(image.bytes_read() - before, first);
    image.limit_cache(0);
    image.read(0, &part).unwrap();
    assert!(image.bytes_read() - before > first);
}

#[test]
fn setups_of_big_data_viewer_are_channels_of_tiles() {
    let xml = include_bytes!("../data/hdf5/bdv.xml").to_vec();
    let folder = folder(&[("bdv.h5", seed!("bdv")), ("bdv.xml", xml)]);
    for name in ["bdv.h5", "bdv.xml"] {
        let path = folder.path().join(name);
        for tile in 0..2u16 {
            let image = series(&path, usize::from(tile));
            let meta = image.meta();
            assert_eq!(
                (meta.format.as_str(), meta.series_names.join(", ").as_str()),
                ("bigdataviewer", "tile 0, tile 1")
            );
            assert_eq!((meta.shape_full.as_slice(), meta.dtype), (&[2, 3, 2, 5, 6, 1][..], DType::U16));
            let size = meta.voxel_size_um;
            assert_eq!((size.z, size.y, size.x), (Some(2.0), Some(0.5), Some(0.25)), "{name}");
            let channels: Vec<&str> = meta.channels.iter().map(|channel| channel.name.as_str()).collect();
            assert_eq!((channels, meta.levels.len()), (vec!["GFP", "RFP"], 2));
            // The first channel of the second tile is missing at the second time point.
            assert_eq!(meta.missing_planes, 3 * usize::from(tile));
            let Samples::U16(samples) = image.read_all().unwrap().into_samples() else { panic!("another type") };
            let Samples::U16(mut expected) = stacks(2, 2, |t, c| 40_000 + 1000 * t + 200 * c + 400 * tile) else {
                unreachable!()
            };
            if tile == 1 {
                (0..3).for_each(|z| expected[180 + 60 * z..][..30].fill(0));
            }
            assert_eq!(samples, expected, "{name}, tile {tile}");
            let files: Vec<_> =
                image.files().into_iter().filter_map(|file| file.file_name().map(|f| f.to_owned())).collect();
            assert_eq!(files, ["bdv.h5", "bdv.xml"]);
        }
    }
    // Without its XML, each setup is an image.
    let image = opened(seed!("bdv"), 3).unwrap();
    assert_eq!(image.meta().series_names, ["setup 0", "setup 1", "setup 2", "setup 3"]);
    assert_eq!((image.meta().voxel_size_um.x, image.meta().missing_planes), (None, 0));
    assert_eq!(image.read_all().unwrap().into_samples(), stacks(2, 1, |t, _| 40_600 + 1000 * t));
}

#[test]
fn stacks_in_linked_files_are_read_from_the_same_folder() {
    let folder = folder(&[("a.h5", seed!("links")), ("imaris_old", seed!("imaris_old"))]);
    let image = series(&folder.path().join("a.h5"), 0);
    assert_eq!(image.meta().shape_full, [1, 4, 1, 8, 8, 1], "with padding");
    let part = Region { start: vec![0, 1, 0, 1, 4, 0], size: vec![1, 1, 1, 1, 3, 1] };
    assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U16(vec![40, 41, 9999]));
    assert_eq!(image.files().len(), 2);
    // That is the folder of the HDF5 file, which may be below that of its XML.
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    for (name, bytes) in [("a.h5", seed!("links")), ("imaris_old", seed!("imaris_old"))] {
        std::fs::write(inner.join(name), bytes).unwrap();
    }
    let xml = folder.path().join("other.xml");
    std::fs::write(&xml, include_str!("../data/hdf5/bdv.xml").replace("bdv.h5", "inner/a.h5")).unwrap();
    let below = series(&xml, 0);
    assert_eq!(below.read(0, &part).unwrap().into_samples(), Samples::U16(vec![40, 41, 9999]));
    assert_eq!(below.files().len(), 3);
    std::fs::remove_file(folder.path().join("imaris_old")).unwrap();
    let error = open(&folder.path().join("a.h5"), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    assert!(error.to_string().contains("\"imaris_old\""), "{error}");
}

#[cfg(unix)]
#[test]
fn of_many_linked_files_some_do_not_stay_open() {
    let folder = folder(&[("a.h5", seed!("many_links"))]);
    let linked = |number: usize| folder.path().join(format!("{number:03}"));
    (0..130).for_each(|number| std::fs::write(linked(number), seed!("imaris_old")).unwrap());
    let [first, last] = [0, 129].map(|number| series(&folder.path().join("a.h5"), number));
    assert_eq!(last.files().len(), 131);
    let read = |image: &Image, z: usize| {
        let part = Region { start: vec![0, z, 0, 1, 4, 0], size: vec![1, 1, 1, 1, 3, 1] };
        image.read(0, &part).map(|array| array.into_samples()).map_err(|error| error.kind())
    };
    for image in [&first, &last] {
        assert_eq!(read(image, 1), Ok(Samples::U16(vec![40, 41, 9999])));
    }
    // Files that are open can be read after they were removed.
    for number in [0, 129] {
        std::fs::remove_file(linked(number)).unwrap();
    }
    assert_eq!(read(&first, 2), Ok(Samples::U16(vec![70, 71, 9999])));
    assert_eq!(read(&last, 2), Err(FormatErrorKind::Io));
}

#[test]
fn the_axes_and_the_voxel_size_of_ilastik_are_read() {
    let image = opened(seed!("ilastik"), 0).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.series_names.join(", ").as_str()), ("hdf5", "exported_data"));
    assert_eq!((meta.axes.to_string().as_str(), meta.shape.as_slice()), ("ZCYX", &[3, 2, 5, 6][..]));
    let size = meta.voxel_size_um;
    assert_eq!((size.z, size.y, size.x), (Some(2.0), Some(0.5), Some(0.25)));
    assert!(meta.not_applied.is_empty());
    let planes = (0..6u8).map(|plane| (plane / 2, plane % 2));
    let expected = planes.flat_map(|(z, c)| (0..30).map(move |i| 2 * (30 * z + i) + c)).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(expected));
    // Other axes may be stated.
    let options = OpenOptions { axes: Some("TYXZ".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(open_bytes(seed!("ilastik"), &options).unwrap().meta().shape_full, [3, 2, 1, 5, 6, 1]);
    let options = OpenOptions { axes: Some("ZYX".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(open_bytes(seed!("ilastik"), &options).unwrap_err().kind(), FormatErrorKind::Misused);
}

#[test]
fn datasets_of_numbers_are_series() {
    let image = |series| opened(seed!("plain"), series).unwrap();
    let half = image(0);
    assert_eq!(half.meta().series_names, ["volume/half", "volume/mask", "volume/raw", "a_slice"]);
    assert_eq!((half.meta().dtype, half.meta().shape_full.as_slice()), (DType::F16, &[1, 2, 1, 3, 3, 1][..]));
    let Samples::F16(samples) = half.read_all().unwrap().into_samples() else { panic!("another type") };
    assert_eq!(
        samples.iter().map(|v| v.to_f32() * 2.0).collect::<Vec<_>>(),
        (0..18u8).map(f32::from).collect::<Vec<_>>()
    );
    // Booleans, along named axes.
    let mask = image(1);
    assert_eq!(mask.meta().shape_full, [2, 1, 1, 3, 4, 1]);
    assert!(mask.meta().not_applied.is_empty());
    let expected = (0..24u8).map(|i| u8::from(i % 3 == 0)).collect();
    assert_eq!(mask.read_all().unwrap().into_samples(), Samples::U8(expected));
    // The axes are guessed, which a note says.
    let raw = image(2);
    assert_eq!(raw.meta().axes.to_string(), "ZYX");
    assert!(raw.meta().not_applied.iter().any(|note| note.ends_with("ZYX")), "{:?}", raw.meta().not_applied);
    let expected = (0..90u8).map(|i| f32::from(i) / 4.0).collect();
    assert_eq!(raw.read_all().unwrap().into_samples(), Samples::F32(expected));
    // Big-endian.
    assert_eq!(image(3).read_all().unwrap().into_samples(), Samples::U16((300..330).collect()));
    assert_eq!(opened(seed!("plain"), 4).unwrap_err(), FormatErrorKind::Misused);
}

#[test]
fn what_cannot_be_read_is_named_and_the_other_datasets_are_listed() {
    let (file, linked) = (seed!("partial"), seed!("imaris_old"));
    let folder = folder(&[("a.h5", file), ("imaris_old", linked.clone()), ("copy", linked)]);
    let image = |number| series(&folder.path().join("a.h5"), number);
    // The same position in two linked files is that of two datasets.
    let mut names: Vec<String> = ["good", "links/copy", "links/imaris_old"].map(str::to_owned).to_vec();
    names.extend((0..9).map(|i| format!("many/{i}")));
    let good = image(0);
    assert_eq!(good.meta().series_names, names);
    let note = good.meta().not_applied.first().cloned().unwrap_or_default();
    assert!(note.starts_with("\"virtual\" (and 2 more) cannot be read"), "{note}");
    assert_eq!(good.read_all().unwrap().into_samples(), stacks(1, 1, |_, _| 0));
    assert_eq!(image(1).meta().shape_full, [1, 4, 1, 8, 8, 1]);
    assert_eq!(image(11).read_all().unwrap().into_samples(), Samples::U8(vec![8; 12]));
    // The oldest form of groups.
    let old = opened(seed!("partial_old"), 0).unwrap();
    assert_eq!(old.meta().series_names, ["good", "zero"]);
    assert!(old.meta().not_applied.iter().any(|note| note.starts_with("\"virtual\" cannot be read")));
    assert_eq!(old.read_all().unwrap().into_samples(), stacks(1, 1, |_, _| 0));
    assert_eq!(opened(seed!("virtual"), 0).unwrap_err(), FormatErrorKind::Unsupported);
}

#[test]
fn chunks_of_all_filters_and_indices_are_read() {
    let read = |file: Vec<u8>| -> Vec<(String, &'static str, Result<Samples, FormatErrorKind>)> {
        let names = opened(file.clone(), 0).unwrap().meta().series_names.clone();
        let one = |(series, name): (usize, String)| {
            let image = opened(file.clone(), series).unwrap();
            let samples = image.read_all().map(|array| array.into_samples()).map_err(|error| error.kind());
            (name, image.meta().compression.as_str(), samples)
        };
        names.into_iter().enumerate().map(one).collect()
    };
    let all = read(seed!("filters"));
    let compressions: Vec<_> = all.iter().map(|(name, compression, _)| (name.as_str(), *compression)).collect();
    let expected = [
        ("bitshuffle", "bitshuffle"),
        ("bitshuffle_blocks", "bitshuffle"),
        ("bitshuffle_plain", "bitshuffle"),
        ("blosc", "blosc"),
        ("blosc2", "none"),
        ("bzip2", "bz2"),
        ("gzip", "zlib"),
        ("lz4", "lz4"),
        ("lz4_blocks", "lz4"),
        ("lzf", "lzf"),
        ("scaleoffset", "none"),
        ("shuffled", "zlib"),
        ("szip", "szip"),
        ("zstd", "zstd"),
    ];
    assert_eq!(compressions, expected);
    for (name, _, samples) in all {
        let expected = if name == "blosc2" { Err(FormatErrorKind::Unsupported) } else { Ok(stacks(1, 1, |_, _| 0)) };
        assert_eq!(samples, expected, "{name}");
    }
    for (name, _, samples) in read(seed!("indices")) {
        let expected = match (name.as_str(), stacks(1, 1, |_, _| 0)) {
            // The last chunk alone is stored, with its last sample.
            ("sparse", Samples::U16(mut all)) => {
                all.fill(7);
                all[89] = 9;
                Samples::U16(all)
            }
            (_, all) => all,
        };
        assert_eq!(samples, Ok(expected), "{name}");
    }
}

#[test]
fn chunks_are_found_in_trees_of_several_levels() {
    let image = opened(seed!("deep"), 0).unwrap();
    assert_eq!((image.meta().shape.as_slice(), image.meta().dtype), (&[10, 12][..], DType::U16));
    // Chunks that are not stored have the fill value.
    let sample = |y: u16, x: u16| if (x + y).is_multiple_of(11) { 500 } else { 12 * y + x };
    let expected = (0..10).flat_map(|y| (0..12).map(move |x| sample(y, x))).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U16(expected));
}

#[test]
fn limits_hold_for_what_small_files_state() {
    let image = opened(seed!("huge"), 0).unwrap();
    assert_eq!(image.meta().shape, [20, 10_000, 10_000]);
    let part = |size: usize| Region { start: vec![0, 19, 0, 5, 5, 0], size: vec![1, 1, 1, size, size, 1] };
    assert_eq!(image.read(0, &part(2)).unwrap().into_samples(), Samples::U16(vec![3; 4]));
    assert_eq!(image.read_all().map_err(|error| error.kind()), Err(FormatErrorKind::OverLimit));
    // Chunks are not expanded to more than their size.
    let error = opened(seed!("bomb"), 0).unwrap().read_all().unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Malformed);
    assert!(error.to_string().contains("LZ4"), "{error}");
    let limited = |limits| open_bytes(seed!("huge"), &OpenOptions { limits, ..OpenOptions::default() });
    let small_chunks = limited(Limits { max_chunk_bytes: 1_999_999, ..Limits::default() });
    assert_eq!(small_chunks.unwrap_err().kind(), FormatErrorKind::OverLimit);
    // All paths count, not those of images alone.
    let names = |max_metadata_bytes: u64| {
        let limits = Limits { max_metadata_bytes, ..Limits::default() };
        open_bytes(seed!("partial_old"), &OpenOptions { limits, ..OpenOptions::default() }).map(|_| ())
    };
    assert_eq!(names(18).map_err(|error| error.kind()), Ok(()));
    assert_eq!(names(17).map_err(|error| error.kind()), Err(FormatErrorKind::OverLimit));
    let few_planes = limited(Limits { max_pages: 19, ..Limits::default() });
    assert_eq!(few_planes.unwrap_err().kind(), FormatErrorKind::OverLimit);
}

#[test]
fn damaged_files_are_refused() {
    let magic = b"\x89HDF\r\n\x1a\n";
    assert_eq!(
        opened([&magic[..], &[0; 100]].concat(), 0).unwrap_err(),
        FormatErrorKind::Unsupported,
        "addresses of 0 bytes"
    );
    assert_eq!(opened(seed!("empty_level"), 0).unwrap_err(), FormatErrorKind::Malformed);
    for file in [seed!("imaris"), seed!("imaris_old"), seed!("bdv"), seed!("ilastik")] {
        for cut in [8, 50, 400, file.len() / 2, file.len() - 1] {
            let kind = opened(file[..cut].to_vec(), 0).unwrap_err();
            assert_eq!(kind, FormatErrorKind::Malformed, "{cut} of {} bytes", file.len());
        }
    }
    let folder = folder(&[("a.xml", include_bytes!("../data/hdf5/bdv.xml").to_vec())]);
    let error = open(&folder.path().join("a.xml"), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Unsupported);
    assert!(error.to_string().contains("\"bdv.h5\""), "{error}");
}

#[test]
fn all_sample_types_and_layouts_of_h5py_are_read() {
    let Some(python) = common::python_with("h5py, numpy") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import sys, h5py, numpy
out = sys.argv[1]
types = ["u1", "i1"] + [order + kind for order in "<>" for kind in ["u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]]
layouts = [{}, {"chunks": (2, 7, 5)}, {"chunks": (5, 11, 13), "compression": "gzip", "shuffle": True},
           {"chunks": (1, 4, 13), "maxshape": (None, None, 13)}]
random = numpy.random.default_rng(1)
count = 0
for version in ["earliest", "v108", "v112"]:
    for layout in layouts:
        for name in types:
            data = (random.random((5, 11, 13)) * 100 - 20 * ("u" not in name)).astype(name)
            with h5py.File(f"{out}/{count}.h5", "w", libver=version) as file:
                file.create_dataset("group/data", data=data, **layout)
            numpy.save(f"{out}/{count}.npy", data)
            count += 1
print(count)
"#;
    let count = common::run_python(&python, script, &[folder.path().to_str().unwrap()]);
    for i in 0..count.trim().parse::<usize>().unwrap() {
        let read = |extension: &str| series(&folder.path().join(format!("{i}.{extension}")), 0).read_all().unwrap();
        let (found, expected) = (read("h5"), read("npy"));
        assert!(found == expected, "{i}: {:?} and {:?}", found.dtype(), expected.dtype());
    }
}

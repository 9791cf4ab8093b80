//! Laziness, regions, limits, axes, levels and broken headers, on files made here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use cytoscope_formats::{
    Compression, Container, FormatErrorKind, Limits, OpenOptions, StackWriter, WriteSpec, open, open_bytes, write_array,
};
use cytoscope_volume::{Array, DType, Region};
use proptest::prelude::*;
use std::{io::Write, path::Path};

/// A classic little-endian TIFF: pages of (tag, type, values), pixels wherever the tags say.
struct Tiff {
    bytes: Vec<u8>,
    link: usize,
}

impl Tiff {
    fn new() -> Self {
        Tiff { bytes: b"II*\0\0\0\0\0".to_vec(), link: 4 }
    }

    /// Appends data and gives its offset.
    fn data(&mut self, data: &[u8]) -> u32 {
        self.bytes.resize(self.bytes.len().next_multiple_of(2), 0);
        let at = self.bytes.len() as u32;
        self.bytes.extend(data);
        at
    }

    fn directory(&mut self, tags: &[(u16, u16, Vec<u32>)]) -> u32 {
        let mut entries = Vec::new();
        for (tag, kind, values) in tags {
            let raw: Vec<u8> = match kind {
                1 | 2 => values.iter().map(|v| *v as u8).collect(),
                3 => values.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let count = if *kind == 5 { values.len() / 2 } else { values.len() } as u32;
            let field = if raw.len() <= 4 {
                let mut field = raw;
                field.resize(4, 0);
                field
            } else {
                self.data(&raw).to_le_bytes().to_vec()
            };
            entries.extend(tag.to_le_bytes());
            entries.extend(kind.to_le_bytes());
            entries.extend(count.to_le_bytes());
            entries.extend(field);
        }
        let mut body = (tags.len() as u16).to_le_bytes().to_vec();
        body.extend(entries);
        body.extend([0; 4]);
        self.data(&body)
    }

    fn page(&mut self, tags: &[(u16, u16, Vec<u32>)]) {
        let at = self.directory(tags);
        self.bytes[self.link..self.link + 4].copy_from_slice(&at.to_le_bytes());
        self.link = self.bytes.len() - 4;
    }
}

type Tags = Vec<(u16, u16, Vec<u32>)>;

fn gray(width: u32, height: u32, offset: u32, count: u32) -> Tags {
    vec![
        (256, 4, vec![width]),
        (257, 4, vec![height]),
        (258, 3, vec![8]),
        (259, 3, vec![1]),
        (262, 3, vec![1]),
        (273, 4, vec![offset]),
        (277, 3, vec![1]),
        (278, 4, vec![height]),
        (279, 4, vec![count]),
    ]
}

fn kind_of(bytes: Vec<u8>) -> Option<FormatErrorKind> {
    open_bytes(bytes, &OpenOptions::default()).and_then(|i| i.read_all()).err().map(|e| e.kind())
}

#[test]
fn a_ten_gigabyte_stack_opens_by_its_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.ome.tif");
    // 1250 planes of 8 MiB: directories first, then a hole.
    let (planes, side) = (1250u64, 2048u64);
    let mut head = b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0".to_vec();
    let tags: [(u16, u16, u64); 8] = [
        (256, 4, side),
        (257, 4, side),
        (258, 3, 16),
        (259, 3, 1),
        (262, 3, 1),
        (273, 16, 0),
        (277, 3, 1),
        (279, 16, 2 * side * side),
    ];
    let size = 8 + 20 * tags.len() as u64 + 8;
    let data = 16 + planes * size;
    for page in 0..planes {
        head.extend((tags.len() as u64).to_le_bytes());
        for (tag, kind, value) in tags {
            let value = if tag == 273 { data + page * 2 * side * side } else { value };
            head.extend(tag.to_le_bytes());
            head.extend(kind.to_le_bytes());
            head.extend(1u64.to_le_bytes());
            head.extend(value.to_le_bytes());
        }
        let next = if page + 1 == planes { 0 } else { 16 + (page + 1) * size };
        head.extend(next.to_le_bytes());
    }
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&head).unwrap();
    file.set_len(data + planes * 2 * side * side).unwrap();
    drop(file);
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape, [1250, 2048, 2048]);
    let opening = image.bytes_read();
    assert!(opening < 512 << 10, "opening read {opening} bytes");
    let region = Region { start: vec![0, 1249, 0, 2000, 100, 0], size: vec![1, 1, 1, 40, 50, 1] };
    assert_eq!(image.read(0, &region).unwrap().shape(), [1, 1, 1, 40, 50, 1]);
    let reading = image.bytes_read() - opening;
    assert!(reading < 64 << 10, "the region read {reading} bytes");
}

#[test]
fn imagej_stacks_above_4_gb_have_one_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("virtual.tif");
    // As ImageJ writes it: one directory, images=N, the planes behind it; the file is a hole with one value in it.
    let (planes, side) = (600usize, 2048usize);
    let mut tiff = Tiff::new();
    let text = format!("ImageJ=1.54f\nimages={planes}\nslices=300\nframes=2\nhyperstack=true\n\0");
    let mut tags = gray(side as u32, side as u32, 4096, (side * side * 2) as u32);
    tags[2].2 = vec![16];
    tags.insert(5, (270, 2, text.bytes().map(u32::from).collect()));
    tiff.page(&tags);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&tiff.bytes).unwrap();
    file.set_len(4096 + (planes * side * side * 2) as u64).unwrap();
    let at = 4096 + (599 * side * side + 7 * side + 9) as u64 * 2;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(at)).unwrap();
    file.write_all(&[0x34, 0x12]).unwrap();
    drop(file);
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(
        (image.meta().axes.to_string().as_str(), image.meta().shape.as_slice()),
        ("TZYX", &[2, 300, side, side][..])
    );
    assert!(image.bytes_read() < 4096);
    let region = Region { start: vec![1, 299, 0, 7, 9, 0], size: vec![1; 6] };
    assert_eq!(image.read(0, &region).unwrap().samples().to_f32(), [4660.0]);
    // One that announces more than it holds is refused.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    assert_eq!(open(&path, &OpenOptions::default()).unwrap_err().kind(), FormatErrorKind::Malformed);
}

#[test]
fn imagej_stacks_above_4_gb_are_written_so() {
    // Streams 4.2 GB of zeros; skipped where the disk has no room for it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.tif");
    if std::env::var_os("CYTOSCOPE_LARGE_FILES").is_none() {
        {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIPPED: writing 4.2 GB (set CYTOSCOPE_LARGE_FILES=1 to do it)");
        }
        return;
    }
    let spec = WriteSpec::new(Container::ImageJ, "ZYX".parse().unwrap(), vec![1010, 2048, 1024], DType::U16);
    let mut writer = StackWriter::create(&path, &spec).unwrap();
    for z in 0..1010u16 {
        writer.write(&Array::new("YX".parse().unwrap(), vec![2048, 1024], vec![z; 2048 * 1024]).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().shape, [1010, 2048, 1024]);
    let last = Region { start: vec![0, 1009, 0, 2047, 1023, 0], size: vec![1; 6] };
    assert_eq!(image.read(0, &last).unwrap().samples().to_f32(), [1009.0]);
    if let Some(python) = common::python() {
        let script = "import sys,tifffile;t=tifffile.TiffFile(sys.argv[1]);s=t.series[0];print(t.is_imagej,len(t.pages),s.axes,s.shape,tifffile.memmap(sys.argv[1])[1009,2047,1023])";
        let said = common::run_python(&python, script, &[path.to_str().unwrap()]);
        assert_eq!(said.trim(), "True 1 ZYX (1010, 2048, 1024) 1009");
    }
}

#[test]
fn ome_tiffs_above_4_gb_are_bigtiffs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.ome.tif");
    if std::env::var_os("CYTOSCOPE_LARGE_FILES").is_none() {
        {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIPPED: writing 4.2 GB (set CYTOSCOPE_LARGE_FILES=1 to do it)");
        }
        return;
    }
    let spec = WriteSpec::new(Container::OmeTiff, "CZYX".parse().unwrap(), vec![2, 505, 2048, 1024], DType::U16);
    let mut writer = StackWriter::create(&path, &spec).unwrap();
    for z in 0..1010u16 {
        writer.write(&Array::new("YX".parse().unwrap(), vec![2048, 1024], vec![z; 2048 * 1024]).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape[0]), ("ZCYX", 505));
    let last = Region { start: vec![0, 504, 1, 2047, 1023, 0], size: vec![1; 6] };
    assert_eq!(image.read(0, &last).unwrap().samples().to_f32(), [1009.0]);
    if let Some(python) = common::python() {
        let script = "import sys,tifffile;t=tifffile.TiffFile(sys.argv[1]);s=t.series[0];\
                      print(t.is_ome,t.is_bigtiff,s.axes,s.shape,s.pages[1009].asarray()[2047,1023])";
        let said = common::run_python(&python, script, &[path.to_str().unwrap()]);
        assert_eq!(said.trim(), "True True CZYX (2, 505, 2048, 1024) 1009");
    }
}

#[test]
fn pages_of_a_kind_not_read_are_counted() {
    let mut t = Tiff::new();
    let at = t.data(&[7; 12]);
    t.page(&gray(4, 3, at, 12));
    let mut fax = gray(4, 3, at, 12);
    fax[3].2 = vec![4];
    t.page(&fax);
    t.page(&gray(4, 3, at, 12));
    let image = open_bytes(t.bytes, &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().shape.as_slice(), image.meta().unread_pages), (&[2, 3, 4][..], 1));
}

#[test]
fn a_region_touches_only_its_strips() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strips.ome.tif");
    let values: Vec<u16> = (0..8 * 512 * 512u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as u16).collect();
    let array = Array::new("ZYX".parse().unwrap(), vec![8, 512, 512], values).unwrap();
    let mut spec = WriteSpec::of(&array, Container::OmeTiff);
    spec.compression = Compression::Zstd;
    write_array(&path, &array, &spec).unwrap();
    let image = open(&path, &OpenOptions::default()).unwrap();
    let opening = image.bytes_read();
    let region = Region { start: vec![0, 5, 0, 300, 17, 0], size: vec![1, 1, 1, 8, 100, 1] };
    let part = image.read(0, &region).unwrap();
    let reading = image.bytes_read() - opening;
    assert!(reading < 300 << 10, "one strip of two is read, not {reading} bytes");
    let expected = array.crop(&Region { start: vec![5, 300, 17], size: vec![1, 8, 100] }).unwrap();
    assert_eq!(part.samples(), expected.samples());
}

#[test]
fn broken_headers_are_malformed() {
    let good = {
        let mut t = Tiff::new();
        let at = t.data(&[7; 12]);
        t.page(&gray(4, 3, at, 12));
        t.bytes
    };
    assert_eq!(kind_of(good.clone()), None);
    for cut in 0..good.len() {
        let kind = kind_of(good[..cut].to_vec());
        // Without its last four bytes, the link to the next page, the file is still whole.
        assert!(kind.is_some() || cut >= good.len() - 4, "cut to {cut} bytes it reads");
    }
    let page = |edit: &dyn Fn(&mut Tags)| {
        let mut t = Tiff::new();
        let at = t.data(&[7; 12]);
        let mut tags = gray(4, 3, at, 12);
        edit(&mut tags);
        t.page(&tags);
        kind_of(t.bytes)
    };
    use FormatErrorKind::{Malformed, OverLimit, Unsupported};
    assert_eq!(page(&|t| t[0].2 = vec![0]), Some(Malformed), "no width");
    assert_eq!(page(&|t| drop(t.remove(1))), Some(Malformed), "no height");
    assert_eq!(page(&|t| t[5].2 = vec![1 << 30]), Some(Malformed), "data past the end");
    assert_eq!(page(&|t| t[7].2 = vec![0]), Some(Malformed), "no rows in a strip");
    assert_eq!(page(&|t| t[2].2 = vec![200]), Some(Malformed), "200 bits");
    assert_eq!(page(&|t| t[3].2 = vec![34712]), Some(Unsupported), "JPEG 2000");
    assert_eq!(page(&|t| t[3].2 = vec![8]), Some(Malformed), "no Deflate data");
    assert_eq!(
        page(&|t| (t[0].2, t[1].2, t[7].2) = (vec![1 << 20], vec![1 << 20], vec![1 << 20])),
        Some(Malformed),
        "1 TB"
    );
    assert_eq!(
        page(&|t| (t[0].2, t[1].2, t[5].2, t[7].2, t[8].2) =
            (vec![1 << 20], vec![1 << 20], vec![0], vec![1 << 20], vec![0])),
        Some(OverLimit),
        "1 TB of nothing"
    );
}

#[test]
fn strips_that_lie_over_each_other_do_not_multiply() {
    // 20 000 pages that all show the same 64 KiB would be 1.3 GB.
    let mut t = Tiff::new();
    let at = t.data(&[1; 65536]);
    for _ in 0..20_000 {
        t.page(&gray(256, 256, at, 65536));
    }
    assert_eq!(kind_of(t.bytes), Some(FormatErrorKind::OverLimit));
}

#[test]
fn each_limit_holds() {
    let mut t = Tiff::new();
    let at = t.data(&[7; 12]);
    for _ in 0..3 {
        t.page(&gray(4, 3, at, 12));
    }
    let mut description = gray(4, 3, at, 12);
    description.push((270, 2, vec![65; 500]));
    let mut packed = Tiff::new();
    let at = packed.data(&[0x89, 7, 0, 0]);
    let mut tags = gray(12, 10, at, 2);
    tags[3].2 = vec![32773];
    packed.page(&tags);
    let mut unstored = Tiff::new();
    unstored.page(&gray(40, 30, 0, 0));
    let mut noted = Tiff::new();
    noted.data(&[7; 12]);
    noted.page(&description);
    let check = |bytes: &[u8], limits: Limits, name: &str| {
        let good = open_bytes(bytes.to_vec(), &OpenOptions::default()).and_then(|i| i.read_all());
        assert!(good.is_ok(), "{name}: {good:?}");
        let options = OpenOptions { limits, ..OpenOptions::default() };
        let error = open_bytes(bytes.to_vec(), &options).and_then(|i| i.read_all()).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::OverLimit, "{name}");
        assert!(error.to_string().contains(name), "{error}");
    };
    let d = Limits::default;
    check(&t.bytes, Limits { max_pages: 2, ..d() }, "max_pages");
    check(&t.bytes, Limits { max_ifd_entries: 5, ..d() }, "max_ifd_entries");
    check(&t.bytes, Limits { max_read_bytes: 30, ..d() }, "max_read_bytes");
    check(&noted.bytes, Limits { max_metadata_bytes: 400, ..d() }, "max_metadata_bytes");
    check(&packed.bytes, Limits { max_chunk_bytes: 100, ..d() }, "max_chunk_bytes");
    check(&unstored.bytes, Limits { max_unstored_bytes: 1000, ..d() }, "max_unstored_bytes");
    // The set of files is counted when its planes are looked up.
    let xml = |n: usize| {
        let planes: String = (0..n)
            .map(|i| format!("<TiffData FirstZ=\"{i}\" IFD=\"0\"><UUID FileName=\"{i}.tif\"/></TiffData>"))
            .collect();
        format!(
            "<OME><Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"{n}\" SizeC=\"1\" SizeT=\"1\">{planes}</Pixels></Image></OME>"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    for i in 0..3 {
        std::fs::write(folder.path().join(format!("{i}.tif")), &t.bytes).unwrap();
    }
    let path = folder.path().join("set.companion.ome");
    std::fs::write(&path, xml(3)).unwrap();
    assert_eq!(open(&path, &OpenOptions::default()).unwrap().meta().shape, [3, 3, 4]);
    let limits = Limits { max_set_files: 2, ..d() };
    let error = open(&path, &OpenOptions { limits, ..OpenOptions::default() }).unwrap_err();
    assert!(error.kind() == FormatErrorKind::OverLimit && error.to_string().contains("max_set_files"), "{error}");
    std::fs::write(&path, xml(4)).unwrap();
    let error = open(&path, &OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("'3.tif', which is missing"), "{error}");
}

#[test]
fn axes_can_be_overridden() {
    let mut t = Tiff::new();
    for i in 0..6u8 {
        let at = t.data(&[i; 12]);
        t.page(&gray(4, 3, at, 12));
    }
    let with = |axes: &str| {
        let options = OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
        open_bytes(t.bytes.clone(), &options).map(|i| i.meta().axes.to_string())
    };
    assert_eq!(open_bytes(t.bytes.clone(), &OpenOptions::default()).unwrap().meta().axes.to_string(), "ZYX");
    assert_eq!(with("TYX").unwrap(), "TYX");
    assert_eq!(with("C").unwrap(), "CYX");
    assert_eq!(with("TZYX").unwrap_err().kind(), FormatErrorKind::Misused);
    assert_eq!(with("ZXY").unwrap_err().kind(), FormatErrorKind::Misused);
    // A hyperstack's axes are renamed one by one.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tif");
    let array = Array::new("TZYX".parse().unwrap(), vec![2, 3, 2, 2], (0..24u8).collect::<Vec<_>>()).unwrap();
    write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let options = OpenOptions { axes: Some("CZYX".parse().unwrap()), ..OpenOptions::default() };
    let swapped = open(&path, &options).unwrap().read_all().unwrap();
    let expected = Array::new("CZYX".parse().unwrap(), vec![2, 3, 2, 2], (0..24u8).collect::<Vec<_>>()).unwrap();
    assert_eq!(swapped, expected.transpose(&"ZCYX".parse().unwrap()).unwrap());
}

#[test]
fn sub_ifds_are_levels() {
    let mut t = Tiff::new();
    let small = t.data(&[9; 2]);
    let sub = t.directory(&gray(2, 1, small, 2));
    let at = t.data(&[7; 12]);
    let mut tags = gray(4, 3, at, 12);
    tags.push((330, 4, vec![sub]));
    t.page(&tags);
    let image = open_bytes(t.bytes, &OpenOptions::default()).unwrap();
    assert_eq!(image.meta().levels.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["0", "1"]);
    assert_eq!(image.meta().levels[1].shape_full, [1, 1, 1, 1, 2, 1]);
    let level = image.read(1, &Region::whole(&[1, 1, 1, 1, 2, 1])).unwrap();
    assert_eq!(level.samples().as_bytes(), [9, 9]);
    assert_eq!(image.read(2, &Region::whole(&[1; 6])).unwrap_err().kind(), FormatErrorKind::Misused);
}

#[test]
fn messages_name_the_file_and_the_next_step() {
    let error = open(Path::new("/nowhere/at/all.tif"), &OpenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Io);
    assert!(error.to_string().starts_with("/nowhere/at/all.tif: opening failed"), "{error}");
    assert!(error.to_string().ends_with("check that the path exists"), "{error}");
}

#[test]
fn info_is_the_json_of_the_contract() {
    let mut t = Tiff::new();
    let at = t.data(&[7; 12]);
    t.page(&gray(4, 3, at, 12));
    let json = serde_json::to_value(open_bytes(t.bytes, &OpenOptions::default()).unwrap().meta()).unwrap();
    let expected = serde_json::json!({
        "path": "<memory>", "format": "tiff", "axes": "YX", "shape": [3, 4], "axes_full": "TZCYXS",
        "shape_full": [1, 1, 1, 3, 4, 1], "dtype": "uint8", "voxel_size_um": {"z": null, "y": null, "x": null},
        "channels": [{"name": ""}], "compression": "none", "byte_order": "little",
        "levels": [{"name": "0", "shape_full": [1, 1, 1, 3, 4, 1]}], "series": 0, "series_count": 1, "bits_per_sample": 8,
    });
    assert_eq!(json, expected);
}

fn extents() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<usize>)> {
    let axis = |most: usize| {
        (1..=most).prop_flat_map(|n| (Just(n), 0..n)).prop_flat_map(|(n, s)| (Just(n), Just(s), 1..=n - s))
    };
    (
        axis(2),
        axis(4),
        axis(3),
        axis(40),
        axis(70),
        prop_oneof![Just((1, 0, 1)), Just((3, 0, 3)), Just((3, 1, 1)), Just((2, 1, 1))],
    )
        .prop_map(|(t, z, c, y, x, s)| {
            let all = [t, z, c, y, x, s];
            (all.iter().map(|a| a.0).collect(), all.iter().map(|a| a.1).collect(), all.iter().map(|a| a.2).collect())
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn regions_are_parts_of_the_whole((shape, start, size) in extents(), how in 0usize..5) {
        let folder = tempfile::tempdir().unwrap();
        let len: usize = shape.iter().product();
        let array = Array::new("TZCYXS".parse().unwrap(), shape, (0..len as u32).map(|i| (i * 7 + i / 9) as u16).collect::<Vec<_>>()).unwrap();
        let (name, container, compression) = [
            ("a.tif", Container::ImageJ, Compression::None),
            ("a.ome.tif", Container::OmeTiff, Compression::None),
            ("a.ome.tif", Container::OmeTiff, Compression::Deflate),
            ("a.ome.tif", Container::OmeTiff, Compression::Zstd),
            ("a.npy", Container::Npy, Compression::None),
        ][how];
        let array = if container == Container::ImageJ && array.shape()[5] == 2 { return Ok(()) } else { array };
        let path = folder.path().join(name);
        let written = if container == Container::Npy { array.clone().squeeze() } else { array.clone() };
        let mut spec = WriteSpec::of(&written, container);
        spec.compression = compression;
        if written.axes().is_empty() || written.axes().len() > 5 { return Ok(()) }
        write_array(&path, &written, &spec).unwrap();
        let axes = (container == Container::Npy).then(|| written.axes().clone());
        let image = open(&path, &OpenOptions { axes, ..OpenOptions::default() }).unwrap();
        let region = Region { start, size };
        prop_assert_eq!(image.read(0, &region).unwrap(), array.crop(&region).unwrap());
    }
}

//! TIFF files above 4 GB: what opening them reads, and how they are written.

use crate::common;
use crate::common::tiff_builder::{Tiff, gray};
use cytoscope_formats::{Container, FormatErrorKind, OpenOptions, StackWriter, WriteSpec, open};
use cytoscope_testkit::skip;
use cytoscope_volume::{Array, DType, Region};
use std::io::Write;

#[test]
fn opening_a_ten_gigabyte_stack_reads_only_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.ome.tif");
    // 1250 planes of 8 MiB: directories first, then a hole in the file.
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
    // As ImageJ writes it: one directory, images=N, then the planes. The file is a hole with one value in it.
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
    // A file that declares more than it contains is refused.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    assert_eq!(open(&path, &OpenOptions::default()).unwrap_err().kind(), FormatErrorKind::Malformed);
}

#[test]
fn imagej_stacks_above_4_gb_are_written_with_one_directory() {
    // Streams 4.2 GB of zeros.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.tif");
    if std::env::var_os("CYTOSCOPE_LARGE_FILES").is_none() {
        return skip("it writes 4.2 GB (set CYTOSCOPE_LARGE_FILES=1 to run it)");
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
        let output = common::run_python(&python, script, &[path.to_str().unwrap()]);
        assert_eq!(output.trim(), "True 1 ZYX (1010, 2048, 1024) 1009");
    }
}

#[test]
fn ome_tiffs_above_4_gb_are_bigtiffs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.ome.tif");
    if std::env::var_os("CYTOSCOPE_LARGE_FILES").is_none() {
        return skip("it writes 4.2 GB (set CYTOSCOPE_LARGE_FILES=1 to run it)");
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
        let output = common::run_python(&python, script, &[path.to_str().unwrap()]);
        assert_eq!(output.trim(), "True True CZYX (2, 505, 2048, 1024) 1009");
    }
}

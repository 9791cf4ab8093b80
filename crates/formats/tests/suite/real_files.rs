//! Files from microscopes that others distribute. They are not part of the repository: the variable
//! `CYTOSCOPE_MICROSCOPE_FILES` names a folder with them. Expected values are those of other programs.

use cytoscope_formats::{OpenOptions, open};
use cytoscope_testkit::skip;
use cytoscope_volume::Samples;
use std::path::PathBuf;

/// The path of a file, or `None` with a report of the skip if it is missing. `source` says where it is from.
fn file(name: &str, source: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CYTOSCOPE_MICROSCOPE_FILES").map(PathBuf::from);
    let path = folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
    if path.is_none() {
        skip(format!("{name} not found (set CYTOSCOPE_MICROSCOPE_FILES to a folder with it; it is part of {source})"));
    }
    path
}

/// A confocal stack of 2014 from a Nikon A1, read with Python's `nd2` package, version 0.12.0.
#[test]
fn an_nd2_file_of_a_microscope_is_read_as_by_the_nd2_package() {
    let source = "`pip download --no-binary pims_nd2 pims_nd2==1.1`";
    let Some(path) = file("cluster.nd2", source) else { return };
    let image = open(&path, &OpenOptions::default()).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.axes.to_string().as_str()), ("nd2", "TZCYX"));
    assert_eq!((meta.shape.as_slice(), meta.bits_per_sample), ([3, 10, 2, 31, 38].as_slice(), 12));
    assert_eq!((meta.series_count, meta.missing_planes, meta.compression.as_str()), (1, 0, "none"));
    let v = meta.voxel_size_um;
    assert_eq!((v.z, v.y, v.x), (Some(0.5), Some(0.167_808_983_232_682_45), Some(0.167_808_983_232_682_45)));
    let channels: Vec<_> = meta.channels.iter().map(|c| (c.name.as_str(), c.color_rgb)).collect();
    assert_eq!(channels, [("5-FAM/pH 9.0", Some([120, 233, 15])), ("FM 4-64/2% CHAPS", Some([254, 1, 0]))]);
    let Samples::U16(samples) = image.read_all().unwrap().into_samples() else { panic!("not 16 bits") };
    // Sum and brightest pixel of planes T, Z, C.
    for (t, z, c, sum, brightest) in [
        (0, 0, 0, 243, (20, 26, 73)),
        (1, 4, 0, 391_845, (7, 20, 2956)),
        (1, 4, 1, 129_772, (20, 14, 1502)),
        (2, 9, 1, 0, (0, 0, 0)),
    ] {
        let plane = samples.chunks_exact(31 * 38).nth((t * 10 + z) * 2 + c).unwrap();
        assert_eq!(plane.iter().map(|v| u32::from(*v)).sum::<u32>(), sum, "{t} {z} {c}");
        let (y, x, value) = brightest;
        assert_eq!(plane[y * 38 + x], value, "{t} {z} {c}");
    }
    assert_eq!(samples.iter().map(|v| u64::from(*v)).sum::<u64>(), 4_832_891);
}

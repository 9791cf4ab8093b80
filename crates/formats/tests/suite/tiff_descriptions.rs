//! Axes and sizes that TIFF files state in a text: the settings of ScanImage, the descriptions of ImageJ, and JSON as tifffile
//! writes it.

use crate::common::page_samples;
use crate::common::tiff_builder::{Tag, Tiff, long, pages, short, text};
use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, open_bytes};
use cytoscope_volume::{Region, Samples};

fn opened(bytes: Vec<u8>) -> Result<Image, FormatErrorKind> {
    open_bytes(bytes, &OpenOptions::default()).map_err(|e| e.kind())
}

#[test]
fn scanimage_files_have_channels_slices_and_times_in_the_order_of_acquisition() {
    let software = "SI.VERSION_MAJOR = 2020\nSI.hChannels.channelSave = [1;3]\n\
                    SI.hChannels.channelName = {'GCaMP';'none';'tdTomato'}\nSI.hStackManager.numSlices = 3\n\
                    SI.hStackManager.framesPerSlice = 1\nSI.hStackManager.stackZStepSize = -2.5\n\
                    SI.hRoiManager.scanVolumeRate = 0.5\n\
                    SI.hRoiManager.imagingFovUm = [-30 -20;30 -20;30 20;-30 20]\n";
    let image = opened(pages(12, &[text(305, software)], &[])).unwrap();
    let meta = image.meta();
    assert_eq!((meta.format.as_str(), meta.axes.to_string().as_str()), ("scanimage", "TZCYX"));
    assert_eq!(meta.shape, [2, 3, 2, 2, 3]);
    let v = meta.voxel_size_um;
    assert_eq!((v.z, v.y, v.x, meta.time_interval_secs), (Some(2.5), Some(20.0), Some(20.0), Some(2.0)));
    let names: Vec<&str> = meta.channels.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["GCaMP", "tdTomato"]);
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples(0..12));
    // No stack was acquired: the number of slices is that of an earlier one.
    let series = format!("{software}SI.hStackManager.enable = false\n");
    assert_eq!(opened(pages(12, &[text(305, &series)], &[])).unwrap().meta().shape, [6, 2, 2, 3]);
    // As many volumes as frames of a slice, in fast mode: the slices of a volume follow each other.
    let fast = software.replace("framesPerSlice = 1", "framesPerSlice = 2") + "SI.hFastZ.enable = true\n";
    let image = opened(pages(12, &[text(305, &fast)], &[])).unwrap();
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples(0..12));
    // Version 3: the frames of a slice follow each other.
    let state = "state.configName='a'\rstate.acq.numberOfChannelsSave=1\rstate.acq.numberOfZSlices=2\r\
                 state.acq.numberOfFrames=3\rstate.acq.zStepSize=1.5\r";
    let image = opened(pages(6, &[text(270, state)], &[])).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().voxel_size_um.z), ("TZYX", Some(1.5)));
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 3, 1, 4, 2, 5]));
    // A time series, as version 5 describes it.
    let described = "frameNumbers = 1\nscanimage.SI5.channelsSave = 1\nscanimage.SI5.stackNumSlices = 1\n\
                     scanimage.SI5.scanFrameRate = 4";
    let image = opened(pages(3, &[text(270, described)], &[])).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().time_interval_secs), ("TYX", Some(0.25)));
    // A stack that was stopped early.
    assert_eq!(opened(pages(10, &[text(305, software)], &[])).unwrap().meta().shape, [5, 2, 2, 3]);
}

/// Settings of a fast stack of three slices in two channels, followed by one flyback frame.
const FAST: &str = "SI.hChannels.channelSave = [1;2]\nSI.hFastZ.enable = true\nSI.hFastZ.discardFlybackFrames = true\n\
                    SI.hFastZ.numDiscardFlybackFrames = 1\nSI.hStackManager.enable = true\n\
                    SI.hStackManager.stackMode = 'fast'\nSI.hStackManager.numSlices = 11\n\
                    SI.hStackManager.actualNumSlices = 3\nSI.hStackManager.framesPerSlice = 1\n\
                    SI.hStackManager.numFramesPerVolume = 3\nSI.hStackManager.numFramesPerVolumeWithFlyback = 4\n\
                    SI.hRoiManager.scanFrameRate = 10\nSI.hRoiManager.scanVolumeRate = 2.5\n";

#[test]
fn scanimage_volumes_have_no_flyback_frames() {
    let image = opened(pages(16, &[text(305, FAST)], &[])).unwrap();
    let meta = image.meta();
    assert_eq!((meta.shape.as_slice(), meta.unread_pages, meta.missing_planes), ([2, 3, 2, 2, 3].as_slice(), 4, 0));
    assert_eq!(meta.time_interval_secs, Some(0.4));
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]));
    // Stopped in the middle of the second volume: its last slice reads as zeros.
    let image = opened(pages(12, &[text(305, FAST)], &[])).unwrap();
    let meta = image.meta();
    assert_eq!((meta.shape.as_slice(), meta.unread_pages, meta.missing_planes), ([2, 3, 2, 2, 3].as_slice(), 2, 2));
    let (Samples::U8(mut expected), Samples::U8(read)) =
        (page_samples([0, 1, 2, 3, 4, 5, 8, 9, 10, 11]), image.read_all().unwrap().into_samples())
    else {
        panic!("other types")
    };
    expected.resize(72, 0);
    assert_eq!(read, expected);
    // Two frames of each slice follow each other; the flyback is at the end of the volume only.
    let repeated = FAST.replace("framesPerSlice = 1", "framesPerSlice = 2").replace("PerVolume = 3", "PerVolume = 6");
    let repeated = repeated.replace("Flyback = 4", "Flyback = 7").replace("[1;2]", "1");
    let image = opened(pages(14, &[text(305, &repeated)], &[])).unwrap();
    assert_eq!((image.meta().shape.as_slice(), image.meta().time_interval_secs), ([4, 3, 2, 3].as_slice(), None));
    let expected = page_samples([0, 2, 4, 1, 3, 5, 7, 9, 11, 8, 10, 12]);
    assert_eq!(image.read_all().unwrap().into_samples(), expected);
}

#[test]
fn earlier_scanimage_versions_state_flyback_frames_in_other_settings() {
    let volumes = |bytes: Vec<u8>| {
        let image = opened(bytes).unwrap();
        (image.meta().shape.clone(), image.meta().unread_pages, image.read_all().unwrap().into_samples())
    };
    // The number of frames per volume includes the flyback; the number of slices is that of another stack.
    let old = "SI.hChannels.channelSave = 1\nSI.hFastZ.enable = true\nSI.hFastZ.discardFlybackFrames = true\n\
               SI.hFastZ.numDiscardFlybackFrames = 2\nSI.hFastZ.numFramesPerVolume = 5\n\
               SI.hStackManager.numSlices = 7\nSI.hStackManager.framesPerSlice = 1\n";
    let expected = (vec![2, 3, 2, 3], 4, page_samples([0, 1, 2, 5, 6, 7]));
    assert_eq!(volumes(pages(10, &[text(305, old)], &[])), expected);
    let described = "scanimage.SI5.fastZEnable = true\nscanimage.SI5.fastZImageType = 'XY-Z'\n\
                     scanimage.SI5.fastZNumDiscardFrames = 1\nscanimage.SI5.stackNumSlices = 3\n\
                     scanimage.SI5.acqNumFrames = 1\nscanimage.SI5.channelsSave = 1";
    let expected = (vec![2, 3, 2, 3], 2, page_samples([0, 1, 2, 4, 5, 6]));
    assert_eq!(volumes(pages(8, &[text(270, described)], &[])), expected);
}

#[test]
fn scanimage_volumes_of_an_unknown_order_are_slices() {
    let shape = |count: u8, first: &[Tag]| opened(pages(count, first, &[])).unwrap().meta().shape.clone();
    let frame = |number: u8| text(270, &format!("frameNumbers = {number}\nframeNumberAcquisition = {number}\n"));
    assert_eq!(shape(16, &[frame(5), text(305, FAST)]), [2, 3, 2, 2, 3], "the second file of an acquisition");
    assert_eq!(shape(16, &[frame(4), text(305, FAST)]), [8, 2, 2, 3], "a file that begins in the middle of a volume");
    let averaged = format!("{FAST}SI.hScan2D.logAverageFactor = 2\n");
    assert_eq!(shape(16, &[text(305, &averaged)]), [8, 2, 2, 3], "means of frames, with flyback");
    let inconsistent = FAST.replace("numFramesPerVolume = 3", "numFramesPerVolume = 2");
    assert_eq!(shape(16, &[text(305, &inconsistent)]), [8, 2, 2, 3]);
    let across = "scanimage.SI5.fastZEnable = true\nscanimage.SI5.fastZImageType = 'XZ'\n\
                  scanimage.SI5.fastZNumDiscardFrames = 1\nscanimage.SI5.stackNumSlices = 3";
    assert_eq!(shape(8, &[text(270, across)]), [8, 2, 3]);
}

#[test]
fn means_of_scanimage_frames_are_as_far_apart_as_the_frames_they_were_made_of() {
    let software = "SI.hChannels.channelSave = 1\nSI.hStackManager.enable = false\nSI.hScan2D.logAverageFactor = 5\n\
                    SI.hRoiManager.scanFrameRate = 10\n";
    let image = opened(pages(3, &[text(305, software)], &[])).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().time_interval_secs), ("TYX", Some(0.5)));
}

#[test]
fn an_image_says_why_its_pages_are_slices_although_the_file_states_other_axes() {
    let description = "ImageJ=1.54f\nimages=6\nchannels=2\nslices=3\nhyperstack=true\n";
    let whole = opened(pages(6, &[text(270, description)], &[])).unwrap();
    assert_eq!((whole.meta().axes.to_string().as_str(), &whole.meta().read_as_slices), ("ZCYX", &None));
    // The acquisition was stopped early.
    let stopped = pages(5, &[text(270, description)], &[]);
    let image = opened(stopped.clone()).unwrap();
    assert_eq!(image.meta().axes.to_string(), "ZYX");
    let why = image.meta().read_as_slices.clone().unwrap();
    assert!(why.contains("3 slices and 2 channels, but the file has 5 pages"), "{why}");
    let given = OpenOptions { axes: Some("TYX".parse().unwrap()), ..OpenOptions::default() };
    assert_eq!(open_bytes(stopped, &given).unwrap().meta().read_as_slices, None);
    let settings = "SI.hChannels.channelSave = [1;2]\nSI.hStackManager.enable = false\n";
    let image = opened(pages(3, &[text(305, settings)], &[])).unwrap();
    assert!(image.meta().read_as_slices.as_deref().is_some_and(|why| why.contains("2 channels")), "{:?}", image.meta());
    // A single page is a slice in any case.
    assert_eq!(opened(pages(1, &[text(305, settings)], &[])).unwrap().meta().read_as_slices, None);
}

#[test]
fn a_plane_that_was_taken_from_an_imagej_stack_is_read_although_its_description_is_that_of_the_stack() {
    let description = "ImageJ=1.49i\nimages=50\nslices=50\nloop=false\n";
    let image = opened(pages(1, &[text(270, description)], &[])).unwrap();
    assert_eq!((image.meta().format.as_str(), image.meta().shape.as_slice()), ("imagej", [2, 3].as_slice()));
    assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0]));
    let file = |compression: u16, at: u32, count: u32, pixels_before: &[u8]| {
        let mut tiff = Tiff::new();
        tiff.data(pixels_before);
        tiff.page(&[
            long(256, &[3]),
            long(257, &[2]),
            short(258, &[8]),
            short(259, &[compression]),
            short(262, &[1]),
            text(270, description),
            long(273, &[at]),
            short(277, &[1]),
            long(278, &[2]),
            long(279, &[count]),
        ]);
        tiff.bytes
    };
    // Compressed with PackBits, so that no other planes can follow.
    let packed = file(32773, 8, 7, &[5, 0, 1, 2, 3, 4, 5]);
    // The directory comes first, and the file ends after the plane.
    let at = file(1, 0, 6, &[]).len() as u32;
    let directory_first = [file(1, at, 6, &[]), (0..6).collect()].concat();
    for bytes in [packed, directory_first] {
        let image = opened(bytes).unwrap();
        assert_eq!((image.meta().shape.as_slice(), &image.meta().read_as_slices), ([2, 3].as_slice(), &None));
        assert_eq!(image.read_all().unwrap().into_samples(), page_samples([0]));
    }
    // A stack that was cut off in its second plane or after it.
    for bytes in [9, 12] {
        let cut_off = [file(1, at, 6, &[]), (0..bytes).collect()].concat();
        assert_eq!(opened(cut_off).unwrap_err(), FormatErrorKind::Malformed);
    }
}

#[test]
fn a_print_resolution_that_imagej_kept_is_no_voxel_size() {
    let rational = |tag: u16, value: u32| (tag, 5, 1, [value.to_le_bytes(), 1u32.to_le_bytes()].concat());
    let size = |unit: &str, per_unit: u32| {
        let description = format!("ImageJ=1.54f\nimages=2\nslices=2\nunit={unit}\nspacing=0.0001\n");
        let tags = [text(270, &description), rational(282, per_unit), rational(283, per_unit)];
        let image = opened(pages(2, &tags, &[])).unwrap();
        let v = image.meta().voxel_size_um;
        [v.z, v.y, v.x].map(|um| um.map(|um| (um * 1000.0).round() / 1000.0))
    };
    assert_eq!(size("inch", 300), [Some(2.54), None, None]);
    assert_eq!(size("inch", 50_800), [Some(2.54), Some(0.5), Some(0.5)]);
    assert_eq!(size("cm", 300), [Some(1.0), Some(33.333), Some(33.333)]);
}

#[test]
fn an_axis_whose_own_unit_is_no_length_has_no_voxel_size() {
    let rational = |tag: u16, value: u32| (tag, 5, 1, [value.to_le_bytes(), 1u32.to_le_bytes()].concat());
    let size = |units: &str| {
        let description = format!("ImageJ=1.54f\nimages=2\nslices=2\nunit=micron\nspacing=3.0\n{units}");
        let tags = [text(270, &description), rational(282, 2), rational(283, 2)];
        let size = opened(pages(2, &tags, &[])).unwrap().meta().voxel_size_um;
        [size.z, size.y, size.x]
    };
    assert_eq!(size(""), [Some(3.0), Some(0.5), Some(0.5)]);
    assert_eq!(size("yunit=\nzunit=mm\n"), [Some(3000.0), Some(0.5), Some(0.5)]);
    assert_eq!(size("zunit=pixel\n"), [None, Some(0.5), Some(0.5)]);
    assert_eq!(size("yunit=sec\n"), [Some(3.0), None, Some(0.5)]);
}

#[test]
fn the_pixel_size_of_imagej_without_a_unit_has_that_of_the_resolution_tags() {
    let rational = |tag: u16, value: u32| (tag, 5, 1, [value.to_le_bytes(), 1u32.to_le_bytes()].concat());
    let size = |lines: &str, unit: u16| {
        let description = format!("ImageJ=1.54f\nimages=2\nslices=2\nspacing=1.5\n{lines}");
        let sizes = [rational(282, 20_000), rational(283, 40_000), short(296, &[unit])];
        let tags = [&[text(270, &description)][..], &sizes].concat();
        let size = opened(pages(2, &tags, &[])).unwrap().meta().voxel_size_um;
        [size.z, size.y, size.x]
    };
    let centimeters = 3;
    assert_eq!(size("", centimeters), [None, Some(0.25), Some(0.5)]);
    assert_eq!(size("unit=pixel\n", centimeters), [None; 3]);
    assert_eq!(size("xunit=sec\n", centimeters), [None; 3]);
    assert_eq!(size("unit=mm\n", centimeters), [Some(1500.0), Some(0.025), Some(0.05)]);
    let no_unit = 1;
    assert_eq!(size("", no_unit), [None; 3]);
}

/// Scripts often give tifffile a resolution and a spacing without a unit.
#[test]
fn a_note_names_the_sizes_that_imagej_states_without_a_unit_of_length() {
    let rational = |tag: u16, value: u32| (tag, 5, 1, [value.to_le_bytes(), 1u32.to_le_bytes()].concat());
    let notes = |lines: &str, per_unit: u32, unit: u16| {
        let description = format!("ImageJ=1.54f\nimages=2\nslices=2\n{lines}");
        let sizes = [rational(282, per_unit), rational(283, per_unit), short(296, &[unit])];
        let tags = [&[text(270, &description)][..], &sizes].concat();
        opened(pages(2, &tags, &[])).unwrap().meta().not_applied.clone()
    };
    let note = |sizes: &str| {
        format!("the spacing {sizes} is not used as the voxel size, because the file states no unit of length for it")
    };
    let all = note("0.5 along Z, 0.1 along Y, 0.1 along X");
    for unit in ["", "unit=pixel\n", "unit=sec\n"] {
        assert_eq!(notes(&format!("{unit}spacing=0.5\n"), 10, 1), [all.as_str()], "{unit}");
    }
    assert_eq!(notes("unit=micron\nzunit=sec\nspacing=0.5\n", 10, 1), [note("0.5 along Z")]);
    // Sizes with a unit, those of voxels that are not calibrated, and a print resolution.
    for (lines, per_unit, unit) in [("unit=micron\nspacing=0.5\n", 10, 1), ("spacing=1.0\n", 1, 1), ("", 300, 2)] {
        assert_eq!(notes(lines, per_unit, unit), [""; 0], "{lines}");
    }
}

/// Pages of 2 x 3 pixels with three samples in separate planes, which count up.
fn separate_samples(description: &str, count: u8) -> Vec<u8> {
    let mut tiff = Tiff::new();
    for page in 0..count {
        let at = [0, 6, 12].map(|from| tiff.data(&(0..6).map(|i| page * 18 + from + i).collect::<Vec<u8>>()));
        let mut tags = vec![
            long(256, &[3]),
            long(257, &[2]),
            short(258, &[8, 8, 8]),
            short(259, &[1]),
            short(262, &[2]),
            long(273, &at),
            short(277, &[3]),
            long(278, &[2]),
            long(279, &[6, 6, 6]),
            short(284, &[2]),
        ];
        if page == 0 {
            tags.insert(5, text(270, description));
        }
        tiff.page(&tags);
    }
    tiff.bytes
}

#[test]
fn planes_that_tifffile_stored_as_the_samples_of_a_color_keep_their_axes() {
    for (axes, shape, count) in [
        ("ZYX", "[3, 2, 3]", 1),
        ("TYX", "[3, 2, 3]", 1),
        ("CYX", "[3, 2, 3]", 1),
        ("TZYX", "[2, 3, 2, 3]", 2),
        ("ZCYX", "[2, 3, 2, 3]", 2),
    ] {
        let description = format!("{{\"shape\": {shape}, \"axes\": \"{axes}\"}}");
        let image = opened(separate_samples(&description, count)).unwrap();
        assert_eq!(image.meta().axes.to_string(), axes);
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..18 * count).collect()), "{axes}");
        if axes == "TZYX" {
            let part = Region { start: vec![1, 2, 0, 1, 1, 0], size: vec![1, 1, 1, 1, 2, 1] };
            assert_eq!(image.read(0, &part).unwrap().into_samples(), Samples::U8(vec![34, 35]));
        }
    }
    // Without axes, it is a color, as the page states, with a note.
    let unnamed = "{\"shape\": [3, 2, 3]}";
    let color = opened(separate_samples(unnamed, 1)).unwrap();
    assert_eq!(color.meta().axes.to_string(), "YXS");
    let [note] = color.meta().not_applied.as_slice() else { panic!("{:?}", color.meta().not_applied) };
    assert!(
        note.contains("[3, 2, 3] without axes") && note.contains("read as colors") && note.ends_with("ZYX"),
        "{note}"
    );
    // Other axes can be given, for the samples too.
    let options = |axes: &str| OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
    let stack = separate_samples("{\"shape\": [3, 2, 3], \"axes\": \"ZYX\"}", 1);
    for given in ["TYX", "CYX", "YXS"] {
        assert_eq!(open_bytes(stack.clone(), &options(given)).unwrap().meta().axes.to_string(), given);
    }
    // So can those of planes without axes, also before them.
    for (shape, count, given) in [
        (unnamed, 1, "ZYX"),
        (unnamed, 1, "CYX"),
        (unnamed, 1, "YXS"),
        ("{\"shape\": [4, 3, 2, 3]}", 4, "ZCYX"),
        ("{\"shape\": [4, 3, 2, 3]}", 4, "ZYXS"),
        ("{\"shape\": [2, 2, 3, 2, 3]}", 4, "TZCYX"),
    ] {
        let image = open_bytes(separate_samples(shape, count), &options(given)).unwrap();
        assert_eq!(image.meta().axes.to_string(), given, "{shape}");
        assert_eq!(image.meta().not_applied, [""; 0], "{shape} {given}");
        let samples = image.read_all().unwrap().into_samples();
        assert!(given.ends_with('S') || samples == Samples::U8((0..18 * count).collect()), "{shape} {given}");
    }
}

#[test]
fn an_image_says_that_the_axes_of_its_json_description_do_not_fit_its_pages() {
    let description = "{\"shape\": [2, 3, 2, 3], \"axes\": \"TZYX\"}";
    assert_eq!(opened(pages(6, &[text(270, description)], &[])).unwrap().meta().axes.to_string(), "TZYX");
    let image = opened(pages(5, &[text(270, description)], &[])).unwrap();
    assert_eq!(image.meta().axes.to_string(), "ZYX");
    let why = image.meta().read_as_slices.clone().unwrap();
    assert!(why.contains("TZYX") && why.contains("5 pages"), "{why}");
    // Pages that were written one by one describe only themselves.
    let own = "{\"shape\": [2, 3], \"axes\": \"YX\"}";
    let image = opened(pages(5, &[], &[text(270, own)])).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), &image.meta().read_as_slices), ("ZYX", &None));
}

#[test]
fn pages_whose_json_description_names_no_usable_axes_are_slices_with_a_reason_and_can_be_named() {
    let six = |description: &str| pages(6, &[text(270, description)], &[]);
    for (description, named) in [
        ("{\"shape\": [2, 3, 2, 3]}", "the shape [2, 3, 2, 3] without axes"),
        ("{\"shape\": [2, 3, 2, 3], \"axes\": \"RZYX\"}", "the axes RZYX"),
        ("{\"shape\": [6, 2, 3], \"axes\": \"ZXY\"}", "the axes ZXY"),
        ("{\"shape\": [6, 2, 3], \"axes\": \"XYZ\"}", "the axes XYZ"),
    ] {
        let image = opened(six(description)).unwrap();
        assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape[0]), ("ZYX", 6), "{description}");
        let why = image.meta().read_as_slices.clone().unwrap_or_default();
        assert!(why.contains(named) && why.contains("6 pages"), "{description}: {why}");
    }
    for plain in ["{\"shape\": [6, 2, 3]}", "{\"shape\": [1, 6, 2, 3]}", "{\"other\": 1}", "text"] {
        assert_eq!(opened(six(plain)).unwrap().meta().read_as_slices, None, "{plain}");
    }
    // Rows of a page along X, columns along C: they are not the pages of the file.
    let rows = opened(six("{\"shape\": [6, 2, 3], \"axes\": \"YXC\"}")).unwrap();
    assert!(rows.meta().read_as_slices.is_some());
    // The lengths are known, only the names are not.
    let options = |axes: &str| OpenOptions { axes: Some(axes.parse().unwrap()), ..OpenOptions::default() };
    let named = open_bytes(six("{\"shape\": [2, 3, 2, 3]}"), &options("CZYX")).unwrap();
    assert_eq!((named.meta().axes.to_string().as_str(), &named.meta().read_as_slices), ("ZCYX", &None));
    assert_eq!(named.meta().shape, [3, 2, 2, 3]);
    let error = open_bytes(six("{\"shape\": [6, 2, 3]}"), &options("CZYX")).unwrap_err();
    assert_eq!(error.kind(), FormatErrorKind::Misused);
}

//! Tags and descriptions of TIFF files: what is not applied to pixels is reported, and what would be misread is refused.

use crate::common::tiff_builder::{Tags, Tiff, gray};
use cytoscope_formats::{FormatError, FormatErrorKind, ImageMeta, OpenOptions, open_bytes};
use cytoscope_volume::Samples;

/// The metadata of a file with pages of 4 × 3 pixels; the first page has more tags.
fn meta_of(pages: u8, more: Tags) -> ImageMeta {
    opened(pages, more).unwrap()
}

fn opened(pages: u8, more: Tags) -> Result<ImageMeta, FormatError> {
    let mut t = Tiff::new();
    for page in 0..pages {
        let at = t.data(&[page; 12]);
        let mut tags = gray(4, 3, at, 12);
        if page == 0 {
            tags.extend(more.clone());
            tags.sort_by_key(|tag| tag.0);
        }
        t.page(&tags);
    }
    Ok(open_bytes(t.bytes, &OpenOptions::default())?.meta().clone())
}

fn description(text: &str) -> Tags {
    vec![(270, 2, text.bytes().map(u32::from).chain([0]).collect())]
}

#[test]
fn an_image_says_that_imagej_shows_other_values_than_those_stored() {
    let with = |lines: &str| meta_of(2, description(&format!("ImageJ=1.54f\nimages=2\nslices=2\n{lines}"))).not_applied;
    // How ImageJ stores signed 16-bit images.
    let signed = with("cf=0\nc0=-32768.0\nc1=1.0\nvunit=Gray Value\n");
    assert_eq!(signed, ["ImageJ shows the stored values minus 32768: here, the stored values are used"]);
    let line = with("cf=0\nc0=10\nc1=0.5\n");
    assert_eq!(line, ["ImageJ shows the stored values times 0.5, plus 10: here, the stored values are used"]);
    for function in ["cf=3\nc0=1\nc1=2\nc2=3\nc3=4\n", "cf=0\nc0=x\n"] {
        let sentences = with(function);
        assert!(sentences.len() == 1 && sentences[0].contains("calibration function"), "{sentences:?}");
    }
    for none in ["", "cf=20\n", "cf=0\nc0=0.0\nc1=1.0\n", "c0=5\nc1=2\n"] {
        assert_eq!(with(none), [""; 0], "{none:?}");
    }
}

#[test]
fn the_speed_at_which_imagej_plays_a_stack_is_no_time_interval() {
    let interval = |lines: &str| {
        let text = format!("ImageJ=1.54f\nimages=2\nframes=2\n{lines}");
        meta_of(2, description(&text)).time_interval_secs
    };
    assert_eq!(interval("fps=5\nloop=false\n"), None);
    assert_eq!(interval("fps=5\nfinterval=2.5\n"), Some(2.5));
    assert_eq!(interval("finterval=2.5\ntunit=Milliseconds\n"), Some(0.0025));
}

#[test]
fn an_inverted_color_table_of_imagej_is_no_color() {
    let rising: Vec<u32> = (0..256).collect();
    let falling: Vec<u32> = (0..256).rev().collect();
    let green = [vec![0; 256], rising, vec![0; 256]].concat();
    let inverted = [falling.clone(), falling.clone(), falling].concat();
    let head = b"JIJIstul\x02\0\0\0".iter().map(|byte| u32::from(*byte));
    let mut more = description("ImageJ=1.54f\nimages=2\nchannels=2\n");
    more.push((50838, 4, vec![12, 768, 768]));
    more.push((50839, 1, head.chain(green).chain(inverted).collect()));
    let colors: Vec<_> = meta_of(2, more).channels.iter().map(|channel| channel.color_rgb).collect();
    assert_eq!(colors, [Some([0, 255, 0]), None]);
}

#[test]
fn an_image_says_that_its_orientation_is_not_applied() {
    let with = |value: u32| meta_of(2, vec![(274, 3, vec![value])]).not_applied;
    for usual in [0, 1, 9] {
        assert_eq!(with(usual), [""; 0], "{usual}");
    }
    let sentences: Vec<String> = (2..=8).flat_map(with).collect();
    assert_eq!(sentences.len(), 7);
    assert!(sentences.iter().all(|text| text.contains("(tag Orientation)")), "{sentences:?}");
    assert!(sentences[2].contains("upside down") && sentences[4].contains("90° clockwise"), "{sentences:?}");
    // A tag that is not a number does not keep the file from being read.
    assert_eq!(meta_of(1, vec![(274, 2, vec![65, 0])]).shape, [3, 4]);
}

#[test]
fn pages_that_ome_xml_does_not_describe_are_counted_and_named() {
    let image = |content: &str| {
        format!(
            "<OME UUID=\"urn:uuid:1\"><Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"3\" \
             SizeC=\"1\" SizeT=\"1\">{content}</Pixels></Image></OME>"
        )
    };
    let all = [
        "",
        "<TiffData/>",
        "<TiffData IFD=\"0\" PlaneCount=\"3\"/>",
        "<TiffData IFD=\"0\" PlaneCount=\"5\"/>",
        "<TiffData IFD=\"0\" FirstZ=\"0\"/><TiffData IFD=\"1\" FirstZ=\"1\"/><TiffData IFD=\"2\" FirstZ=\"2\"/>",
        "<TiffData PlaneCount=\"3\"><UUID FileName=\"renamed.ome.tif\">urn:uuid:1</UUID></TiffData>",
    ];
    for content in all {
        let exact = meta_of(3, description(&image(content)));
        assert_eq!((exact.shape.as_slice(), exact.unread_pages), ([3, 3, 4].as_slice(), 0), "{content}");
        assert_eq!(exact.not_applied, [""; 0], "{content}");
        let longer = meta_of(5, description(&image(content)));
        assert_eq!((longer.shape.as_slice(), longer.unread_pages), ([3, 3, 4].as_slice(), 2), "{content}");
        let expected = "2 pages of the file are left out: the OME-XML does not describe them";
        assert_eq!(longer.not_applied, [expected], "{content}");
    }
    let one = meta_of(4, description(&image("")));
    assert_eq!(one.not_applied, ["1 page of the file is left out: the OME-XML does not describe it"]);
}

#[test]
fn pages_with_several_slices_are_refused() {
    let depth = |slices: u32| opened(1, vec![(32997, 4, vec![slices])]);
    assert_eq!(depth(1).unwrap().shape, [3, 4]);
    let error = depth(8).unwrap_err();
    assert!(error.kind() == FormatErrorKind::Unsupported && error.to_string().contains("8 slices"), "{error}");
    // A signed number.
    let error = opened(1, vec![(32997, 9, vec![8])]).unwrap_err();
    assert!(error.kind() == FormatErrorKind::Malformed && error.to_string().contains("tag 32997"), "{error}");
}

#[test]
fn the_pixel_size_is_read_in_the_units_of_tifffile() {
    let x_um = |pixels: u32, unit: u32| {
        let tags = vec![(282, 5, vec![pixels, 1]), (283, 5, vec![pixels, 1]), (296, 3, vec![unit])];
        meta_of(1, tags).voxel_size_um.x
    };
    assert_eq!([x_um(2, 5), x_um(500, 4), x_um(20_000, 3)], [Some(0.5), Some(2.0), Some(0.5)]);
    // A default resolution of 1, and a number without a unit, state no size.
    assert_eq!([x_um(1, 4), x_um(1, 3), x_um(100, 1)], [None; 3]);
}

#[test]
fn an_ndtiff_says_that_its_pages_are_read_as_slices() {
    let file = |mark: u32| {
        let mut t = Tiff::new();
        assert_eq!(t.data(&mark.to_le_bytes()), 8);
        for page in 0..3 {
            let at = t.data(&[page; 12]);
            t.page(&gray(4, 3, at, 12));
        }
        t.bytes
    };
    let note = |mark: u32, axes: Option<&str>| {
        let options = OpenOptions { axes: axes.map(|axes| axes.parse().unwrap()), ..OpenOptions::default() };
        open_bytes(file(mark), &options).unwrap().meta().read_as_slices.clone()
    };
    assert!(note(483_729, None).is_some_and(|text| text.contains("NDTiff of Micro-Manager")));
    assert_eq!([note(483_729, Some("CYX")), note(483_730, None)], [None, None]);
}

#[test]
fn the_resolution_tags_of_ome_tiff_count_if_its_xml_states_no_pixel_size() {
    let size = |attributes: &str, per_unit: u32, unit: u32| {
        let mut tags = description(&format!(
            "<OME><Image><Pixels DimensionOrder=\"XYZCT\" SizeX=\"4\" SizeY=\"3\" SizeZ=\"2\" SizeC=\"1\" SizeT=\"1\" \
             {attributes}><TiffData/></Pixels></Image></OME>"
        ));
        tags.extend([(282, 5, vec![per_unit, 1]), (283, 5, vec![per_unit, 1]), (296, 3, vec![unit])]);
        let size = meta_of(2, tags).voxel_size_um;
        (size.z, size.y, size.x)
    };
    assert_eq!(size("PhysicalSizeZ=\"2\"", 20_000, 3), (Some(2.0), Some(0.5), Some(0.5)));
    assert_eq!(size("PhysicalSizeX=\"0.25\"", 20_000, 3), (None, None, Some(0.25)));
    // Dots per inch are a print setting.
    assert_eq!(size("", 300, 2), (None, None, None));
}

#[test]
fn a_resolution_whose_unit_cannot_be_read_is_not_one_in_inches() {
    let size = |unit: Tags| {
        let mut tags: Tags = vec![(282, 5, vec![20_000, 1]), (283, 5, vec![20_000, 1])];
        tags.extend(unit);
        let size = meta_of(1, tags).voxel_size_um;
        (size.y, size.x)
    };
    assert_eq!(size(vec![(296, 3, vec![3])]), (Some(0.5), Some(0.5)));
    assert_eq!(size(Vec::new()), (Some(1.27), Some(1.27)), "inches are the default");
    assert_eq!(size(vec![(296, 5, vec![3, 1])]), (None, None), "a fraction instead of an integer");
}

#[test]
fn sizes_that_scripts_give_to_tifffile_are_read() {
    let sizes = |axes: &str, words: &str, per_unit: u32, unit: u32| {
        let mut tags = description(&format!("{{\"shape\": [2, 3, 4], \"axes\": \"{axes}\", {words}}}"));
        tags.extend([(282, 5, vec![per_unit, 1]), (283, 5, vec![per_unit, 1]), (296, 3, vec![unit])]);
        let meta = meta_of(2, tags);
        let size = meta.voxel_size_um;
        (size.z, size.y, size.x, meta.time_interval_secs)
    };
    let imagej = "\"spacing\": 1.5, \"unit\": \"um\", \"finterval\": 4";
    // Without a unit of the resolution, and with inches, which tifffile writes by default.
    for unit in [1, 2] {
        assert_eq!(sizes("ZYX", imagej, 4, unit), (Some(1.5), Some(0.25), Some(0.25), None));
    }
    assert_eq!(sizes("TYX", imagej, 1, 1), (Some(1.5), None, None, Some(4.0)), "the default resolution");
    let interval = |words: &str| sizes("TYX", words, 1, 1).3;
    assert_eq!(interval("\"finterval\": 500, \"tunit\": \"ms\""), Some(0.5));
    assert_eq!(interval("\"finterval\": 5, \"tunit\": \"frame\""), None, "no unit of time");
    // Many pixels per inch could be the size of the sample, but only without a unit in the description.
    let millimeters = "\"spacing\": 0.0015, \"unit\": \"mm\"";
    assert_eq!(sizes("ZYX", millimeters, 4000, 2), (Some(1.5), Some(0.25), Some(0.25), None));
    let (_, y, x, _) = sizes("ZYX", "\"spacing\": 1.5", 25_400, 2);
    assert_eq!((y, x), (Some(1.0), Some(1.0)));
    // Pixels per centimeter are what they say.
    assert_eq!(sizes("ZYX", imagej, 20_000, 3), (Some(1.5), Some(0.5), Some(0.5), None));
    let ome = "\"PhysicalSizeX\": 250, \"PhysicalSizeXUnit\": \"nm\", \"PhysicalSizeZ\": 2, \"TimeIncrement\": 3";
    assert_eq!(sizes("ZYX", ome, 1, 1), (Some(2.0), None, Some(0.25), None));
    // Neither a number without a unit nor one that is not positive is a size.
    assert_eq!(sizes("ZYX", "\"spacing\": 1.5", 4, 1), (None, None, None, None));
    assert_eq!(sizes("ZYX", "\"spacing\": 0, \"unit\": \"um\"", 1, 1), (None, None, None, None));
}

/// A page of 2 × 3 pixels with 5 samples each, 0 to 29, and a description.
fn five_samples(photometric: u32, description: &str) -> Vec<u8> {
    let mut tiff = Tiff::new();
    let pixels = tiff.data(&(0..30).collect::<Vec<u8>>());
    let mut tags = gray(3, 2, pixels, 30);
    for (tag, _, values) in &mut tags {
        match *tag {
            258 => *values = vec![8; 5],
            262 => *values = vec![photometric],
            277 => *values = vec![5],
            _ => {}
        }
    }
    let text: Vec<u32> = description.bytes().map(u32::from).chain([0]).collect();
    tags.push((270, 2, text));
    tags.sort_by_key(|tag| tag.0);
    tiff.page(&tags);
    tiff.bytes
}

#[test]
fn samples_that_tifffile_states_as_channels_are_channels() {
    let stated = "{\"shape\": [2, 3, 5], \"axes\": \"YXC\"}";
    let image = open_bytes(five_samples(1, stated), &OpenOptions::default()).unwrap();
    assert_eq!((image.meta().axes.to_string().as_str(), image.meta().shape.as_slice()), ("CYX", &[5, 2, 3][..]));
    assert_eq!(image.meta().channels.len(), 5);
    let by_channel: Vec<u8> = (0..5).flat_map(|c| (0..6).map(move |pixel| pixel * 5 + c)).collect();
    assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8(by_channel));
    // A color with two more samples, samples that are not stated as channels, and another number of them.
    let other = ["{\"shape\": [2, 3, 5], \"axes\": \"YXS\"}", "{\"shape\": [2, 3, 4], \"axes\": \"YXC\"}"];
    for (photometric, description) in [(2, stated), (1, other[0]), (1, other[1])] {
        let image = open_bytes(five_samples(photometric, description), &OpenOptions::default()).unwrap();
        assert_eq!(image.meta().axes.to_string(), "YXS", "{photometric} {description}");
    }
}

/// A file with one page of 2 × 3 pixels and a description, which ends with `planes` planes of bytes.
fn one_page(planes: u8, description: &str) -> Vec<u8> {
    let page = |pixels: usize| {
        let mut tiff = Tiff::new();
        let mut tags = gray(3, 2, pixels as u32, 6);
        tags.push((270, 2, description.bytes().map(u32::from).chain([0]).collect()));
        tags.sort_by_key(|tag| tag.0);
        tiff.page(&tags);
        tiff.bytes
    };
    // The length of the directory does not depend on the place of the pixels.
    let mut bytes = page(page(8).len());
    bytes.extend(0..6 * planes);
    bytes
}

#[test]
fn planes_behind_the_only_page_of_tifffile_are_read() {
    for (description, axes) in [
        ("{\"shape\": [2, 2, 2, 3], \"axes\": \"TZYX\", \"truncated\": true}", "TZYX"),
        ("{\"shape\": [4, 2, 3], \"truncated\": true}", "ZYX"),
    ] {
        let image = open_bytes(one_page(4, description), &OpenOptions::default()).unwrap();
        assert_eq!(image.meta().axes.to_string(), axes);
        assert_eq!(image.read_all().unwrap().into_samples(), Samples::U8((0..24).collect()), "{description}");
        // Another program has saved the first plane with its description.
        let one = open_bytes(one_page(1, description), &OpenOptions::default()).unwrap();
        assert_eq!(one.read_all().unwrap().into_samples(), Samples::U8((0..6).collect()), "{description}");
    }
    let stated = "{\"shape\": [4, 2, 3], \"axes\": \"ZYX\", \"truncated\": false}";
    assert_eq!(open_bytes(one_page(4, stated), &OpenOptions::default()).unwrap().meta().shape, [2, 3]);
}

/// The planes after that of the only page are found only if its strips follow each other.
#[test]
fn planes_behind_a_page_whose_strips_have_gaps_are_not_read() {
    let stack = |second: u32| {
        let mut tiff = Tiff::new();
        let pixels = tiff.data(&(0..24).collect::<Vec<u8>>());
        let mut tags = gray(3, 2, pixels, 6);
        for (tag, _, values) in &mut tags {
            match *tag {
                273 => values.push(pixels + second),
                278 => *values = vec![1],
                279 => *values = vec![3, 3],
                _ => {}
            }
        }
        tags.extend(description("ImageJ=1.54f\nimages=4\nslices=4\n"));
        tags.sort_by_key(|tag| tag.0);
        tiff.page(&tags);
        open_bytes(tiff.bytes, &OpenOptions::default())
    };
    assert_eq!(stack(3).unwrap().read_all().unwrap().into_samples(), Samples::U8((0..24).collect()));
    for second in [0, 2, 6] {
        assert_eq!(stack(second).unwrap_err().kind(), FormatErrorKind::Unsupported, "{second}");
    }
}

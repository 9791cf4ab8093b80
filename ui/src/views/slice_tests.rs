//! A slice view on planes that cannot be read, and the values under the pointer.
#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use crate::data::histogram::Histogram;
use crate::data::plane::{Plane, Values};
use crate::data::source::{Cancel, PlaneSource, SourceError};
use crate::document::fresh_id;
use cytoscope_formats::{Container, WriteSpec, write_array};
use cytoscope_volume::Array;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Planes of which only the first can be read.
struct FirstOnly;

impl PlaneSource for FirstOnly {
    fn plane(&self, at: &PlaneAt, _cancel: &Cancel) -> Result<Plane, SourceError> {
        if at.index > 0 {
            return Err(SourceError::Io(std::io::Error::other("the disk is gone")));
        }
        let size = at.size();
        Ok(Plane { at: at.clone(), size, values: Values::U8(vec![9; size[0] * size[1]]) })
    }
}

/// Planes of which only those of the second channel can be read.
struct SecondChannel;

impl PlaneSource for SecondChannel {
    fn plane(&self, at: &PlaneAt, _cancel: &Cancel) -> Result<Plane, SourceError> {
        if at.channel != 1 {
            return Err(SourceError::Io(std::io::Error::other("the disk is gone")));
        }
        let size = at.size();
        Ok(Plane { at: at.clone(), size, values: Values::U8(vec![9; size[0] * size[1]]) })
    }
}

struct Shown {
    view: SliceView,
    document: Document,
    loader: PlaneLoader,
    hover: Option<Hover>,
}

/// Writes an 8-bit stack of 3 × 8 × 8 voxels of a value.
fn write(path: &Path, value: u8) {
    let array = Array::new("ZYX".parse().unwrap(), vec![3, 8, 8], vec![value; 192]).unwrap();
    write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
}

/// The XY view of a document.
fn shown(document: Document) -> Harness<'static, Shown> {
    let options = ViewOptions {
        crosshair: false,
        scale_bar: false,
        swipe: None,
        pen: None,
        ring: None,
        crop: None,
        bare: false,
        only_xy: false,
    };
    let loader = PlaneLoader::new(1 << 20, || {});
    Harness::builder().with_size([200.0, 160.0]).build_ui_state(
        move |ui, shown: &mut Shown| {
            let Shown { view, document, loader, hover } = shown;
            let response = view.show(ui, Orientation::Xy, document, loader, &Marks::default(), options);
            *hover = response.hover;
            response.changes.into_iter().for_each(|change| document.apply(change));
        },
        Shown { view: SliceView::default(), document, loader, hover: None },
    )
}

/// Steps the window until `is` holds.
fn until(harness: &mut Harness<'static, Shown>, what: &str, is: impl Fn(&Harness<'static, Shown>) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is(harness) {
        assert!(Instant::now() < end, "timed out waiting for {what}");
        harness.step();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_slice_that_cannot_be_read_is_named_and_leaves_no_other_picture() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    write(&path, 1);
    let mut document = Document::open(&path, None, 0).unwrap();
    document.source = Arc::new(FirstOnly);
    document.cursor = [0; 3];
    let mut harness = shown(document);
    let names = |harness: &Harness<'static, Shown>, name: &str| harness.query_by_label(name).is_some();
    let has_picture = |harness: &Harness<'static, Shown>| harness.state().view.has_picture();
    until(&mut harness, "the first slice", |h| names(h, "XY view, slice 1 of 3") && has_picture(h));
    harness.state_mut().document.cursor[0] = 1;
    let failed = "XY view, slice 2 of 3, cannot be read";
    until(&mut harness, "the failure", |h| names(h, failed) && !has_picture(h));
    harness.state_mut().document.cursor[0] = 0;
    until(&mut harness, "the first slice again", |h| names(h, "XY view, slice 1 of 3") && has_picture(h));
}

#[test]
fn a_slice_without_finite_values_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    // The second slice has one finite value.
    let values: Vec<f32> = (0..192).map(|i| if i == 100 { 1.0 } else { f32::NAN }).collect();
    let array = Array::new("ZYX".parse().unwrap(), vec![3, 8, 8], values).unwrap();
    write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let mut document = Document::open(&path, None, 0).unwrap();
    document.cursor = [0; 3];
    let mut harness = shown(document);
    let names = |harness: &Harness<'static, Shown>, name: &str| harness.query_by_label(name).is_some();
    until(&mut harness, "the name", |h| names(h, "XY view, slice 1 of 3, no finite values"));
    harness.state_mut().document.cursor[0] = 1;
    until(&mut harness, "the other slice", |h| names(h, "XY view, slice 2 of 3") && h.state().view.has_picture());
}

#[test]
fn labels_under_the_pointer_are_not_those_of_the_ground_truth() {
    let folder = tempfile::tempdir().unwrap();
    let [stack, labels, truth] = ["stack.tif", "labels.tif", "truth.tif"].map(|name| folder.path().join(name));
    for (path, value) in [(&stack, 1), (&labels, 3), (&truth, 5)] {
        write(path, value);
    }
    let mut document = Document::open(&stack, None, 0).unwrap();
    for (role, path) in [(Role::Labels, &labels), (Role::Truth, &truth)] {
        let overlay = Document::overlay(path, role, ([3, 8, 8], 1), None).unwrap();
        document.put(overlay);
    }
    let mut harness = shown(document);
    harness.hover_at(pos2(100.0, 80.0));
    let found = |hover: &Hover| (hover.values.clone(), hover.label, hover.truth);
    let expected = Some((vec![1.0], Some(3), Some(5)));
    until(&mut harness, "the values", |h| h.state().hover.as_ref().map(found) == expected);
}

#[test]
fn all_visible_channels_have_a_value_under_the_pointer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    // Three slices of three channels each.
    let values: Vec<u8> = [4, 6, 8].repeat(3).into_iter().flat_map(|value| [value; 64]).collect();
    let array = Array::new("ZCYX".parse().unwrap(), vec![3, 3, 8, 8], values).unwrap();
    write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let mut document = Document::open(&path, None, 0).unwrap();
    document.channels[1].visible = false;
    let mut harness = shown(document);
    harness.hover_at(pos2(100.0, 80.0));
    let values = |h: &Harness<'static, Shown>| h.state().hover.as_ref().map(|hover| hover.values.clone());
    until(&mut harness, "the values", |h| values(h) == Some(vec![4.0, 8.0]));
}

#[test]
fn only_visible_channels_that_can_be_read_have_values_and_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let [stack, map] = ["stack.tif", "stack_prediction.tif"].map(|name| folder.path().join(name));
    let array = Array::new("ZCYX".parse().unwrap(), vec![3, 2, 8, 8], vec![4u8; 384]).unwrap();
    write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    write(&map, 7);
    let document = || {
        let mut document = Document::open(&stack, None, 0).unwrap();
        document.put(Document::overlay(&map, Role::Map, ([3, 8, 8], 1), None).unwrap());
        document
    };
    let mut unreadable = document();
    unreadable.source = Arc::new(SecondChannel);
    let mut hidden = document();
    hidden.channels.iter_mut().for_each(|channel| channel.visible = false);
    for (document, channels, values) in [(unreadable, vec![1], vec![9.0]), (hidden, vec![], vec![])] {
        let mut harness = shown(document);
        harness.hover_at(pos2(100.0, 80.0));
        let expected = Some((channels, values, Some(7.0)));
        until(&mut harness, "the map", |h| {
            let Shown { view, hover, .. } = h.state();
            let channels: Vec<usize> = view.shown_channels().iter().map(|shown| shown.plane().at.channel).collect();
            hover.as_ref().map(|hover| (channels, hover.values.clone(), hover.map)) == expected
        });
    }
}

#[test]
fn a_map_that_is_shown_gets_a_histogram_for_its_contrast_limits() {
    let folder = tempfile::tempdir().unwrap();
    let [stack, map, labels] = ["a.tif", "a_prediction.tif", "a_labels.tif"].map(|name| folder.path().join(name));
    [&stack, &map, &labels].into_iter().for_each(|path| write(path, 7));
    let mut document = Document::open(&stack, None, 0).unwrap();
    for (role, path) in [(Role::Map, &map), (Role::Labels, &labels)] {
        document.put(Document::overlay(path, role, ([3, 8, 8], 1), None).unwrap());
    }
    let histogram = |document: &Document, role| {
        let histogram = document.overlay_with_role(role)?.histogram.as_ref()?;
        Some((histogram.low, histogram.high))
    };
    assert_eq!(histogram(&document, Role::Map), None);
    let mut harness = shown(document);
    until(&mut harness, "the histogram", |h| histogram(&h.state().document, Role::Map) == Some((7.0, 7.0)));
    assert_eq!(histogram(&harness.state().document, Role::Labels), None);
    // A plane of an earlier map.
    let earlier_histogram = Histogram { low: 0.0, high: 1.0, counts: vec![1], slice: 0, time: 0 };
    harness
        .state_mut()
        .document
        .apply(DocumentChange::MapHistogram { source: fresh_id(), histogram: earlier_histogram });
    assert_eq!(histogram(&harness.state().document, Role::Map), Some((7.0, 7.0)));
}

#[test]
fn a_growing_stain_is_shown_with_its_values_so_far_and_growing_probabilities_from_0_to_1() {
    let folder = tempfile::tempdir().unwrap();
    let [stack, stain, map] = ["a.tif", "stain.tif", "map.tif"].map(|name| folder.path().join(name));
    for (path, value) in [(&stack, 7), (&stain, 7), (&map, 1)] {
        write(path, value);
    }
    for (path, expected) in [(&stain, (0.0, 8.0)), (&map, (0.0, 1.0))] {
        let mut document = Document::open(&stack, None, 0).unwrap();
        document.put(Document::overlay(path, Role::Live, ([3, 8, 8], 1), None).unwrap());
        let mut harness = shown(document);
        let limits = |h: &Harness<'static, Shown>| {
            let display = &h.state().document.overlay_with_role(Role::Live).unwrap().display;
            (display.low, display.high)
        };
        until(&mut harness, "the picture", |h| h.state().view.has_picture() && limits(h) == expected);
        harness.run_steps(3);
        assert_eq!(limits(&harness), expected, "{}", path.display());
    }
    // Values of an earlier prediction.
    let mut document = Document::open(&stack, None, 0).unwrap();
    document.put(Document::overlay(&map, Role::Live, ([3, 8, 8], 1), None).unwrap());
    document.apply(DocumentChange::LiveContrast { source: fresh_id(), low: 0.0, high: 9.0 });
    assert_eq!(document.overlay_with_role(Role::Live).unwrap().display.high, 1.0);
}

#[test]
fn the_histogram_is_that_of_the_slice_on_screen_and_the_contrast_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stack.tif");
    let values: Vec<u8> = [4, 6, 8].into_iter().flat_map(|value| [value; 64]).collect();
    let array = Array::new("ZYX".parse().unwrap(), vec![3, 8, 8], values).unwrap();
    write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let mut document = Document::open(&path, None, 0).unwrap();
    document.cursor = [0; 3];
    let mut harness = shown(document);
    let lowest = |h: &Harness<'static, Shown>| h.state().document.channels[0].histogram.as_ref().map(|found| found.low);
    until(&mut harness, "the first slice", |h| lowest(h) == Some(4.0));
    let limits = |h: &Harness<'static, Shown>| {
        let display = &h.state().document.channels[0].display;
        (display.low, display.high)
    };
    assert_eq!(limits(&harness), (4.0, 5.0));
    harness.state_mut().document.cursor[0] = 2;
    until(&mut harness, "the last slice", |h| lowest(h) == Some(8.0));
    assert_eq!(limits(&harness), (4.0, 5.0));
}

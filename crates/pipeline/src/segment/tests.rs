//! Segmentation of maps: the labels in their folder, voxel sizes, and the check of what was predicted.
#![allow(clippy::unwrap_used, reason = "a test")]
use super::*;
use crate::job_record::{AnyRecord, read_any, record_path};
use crate::{Event, ProgressStage};
use cytoscope_formats::{WriteSpec, ZarrImageSpec, ZarrWriter, pack_zarr, write_array};
use cytoscope_objects::Threshold;
use cytoscope_volume::Samples;

/// A map of 4 × 8 × 8 voxels with an object of 18 voxels.
fn map_values() -> Vec<f32> {
    let inside = |range: Range<usize>, at: usize| range.contains(&at);
    let value = |i: usize| inside(1..3, i / 64) && inside(2..5, i / 8 % 8) && inside(2..5, i % 8);
    (0..256).map(|i| f32::from(u8::from(value(i)))).collect()
}

#[test]
fn saved_labels_replace_those_in_the_folder_of_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("x_probability.zarr");
    let mut writer = ZarrWriter::create_listed(&map, ZarrImageSpec::new("x", [1, 1, 4, 8, 8], DType::F32)).unwrap();
    let predicted = writer.add_labels(ZarrImageSpec::new("objects", [1, 1, 4, 8, 8], DType::U16)).unwrap();
    writer.write(0, [0; 3], &Samples::F32(map_values())).unwrap();
    writer.write(predicted, [0; 3], &Samples::U16(vec![7; 256])).unwrap();
    let _ = writer.finish().unwrap().finish(zarr::FOLDER_KIND).unwrap().publish().unwrap();
    let labels = folder.path().join("x_labels.tif");
    let run = |min_volume_um3: f64| {
        let text = serde_json::json!({"map": &map, "labels": &labels, "replace_labels_of_map": true});
        let job: SegmentJob = serde_json::from_value(text).unwrap();
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            height: None,
            min_volume_um3,
            ..SegmentOptions::default()
        };
        SegmentJob { options, overwrite: Overwrite::Replace, ..job }.run(&Context::default()).unwrap()
    };
    let read = |path: &Path| open(path, &OpenOptions::default()).unwrap().read_all().unwrap().samples().to_f32();
    assert_eq!(run(1.0).objects, 1);
    assert_eq!(read(&labels).iter().sum::<f32>(), 18.0);
    assert_eq!(read(&map.join("labels/objects")), read(&labels));
    assert_eq!(read(&map), map_values());
    let content = zarr::unchanged_content(&Context::default(), &map).unwrap();
    assert!(content.is_some(), "it can be replaced by the next prediction");
    let AnyRecord::Job(record) = read_any(&record_path(&labels)).unwrap() else { unreachable!() };
    assert_eq!(record.differences(), Vec::<String>::new(), "the new labels do not count as a changed input");
    // A folder that the user has changed is not replaced, and a note says so.
    std::fs::create_dir(map.join("labels/mine")).unwrap();
    std::fs::write(map.join("labels/mine/zarr.json"), "{}").unwrap();
    let report = run(30.0);
    assert_eq!((report.objects, read(&labels).iter().sum::<f32>()), (0, 0.0));
    let notes = report.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(notes.contains("x_probability.zarr has changed since its prediction"), "{notes}");
    assert_eq!(read(&map.join("labels/objects")).iter().sum::<f32>(), 18.0);
    assert!(map.join("labels/mine/zarr.json").is_file());
}

#[test]
fn the_maps_in_a_zip_file_are_segmented_whichever_series_of_the_stack_was_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("x_s1.ozx");
    let mut writer = ZarrWriter::create(&map, ZarrImageSpec::new("x", [1, 1, 4, 8, 8], DType::F32)).unwrap();
    let predicted = writer.add_labels(ZarrImageSpec::new("objects", [1, 1, 4, 8, 8], DType::U16)).unwrap();
    writer.write(0, [0; 3], &Samples::F32(map_values())).unwrap();
    writer.write(predicted, [0; 3], &Samples::U16(vec![7; 256])).unwrap();
    pack_zarr(writer.finish().unwrap(), &|| true).unwrap().unwrap().publish().unwrap();
    let labels = folder.path().join("x_labels.tif");
    let text = serde_json::json!({"map": &map, "labels": &labels, "series": 1});
    let job: SegmentJob = serde_json::from_value(text).unwrap();
    let options = SegmentOptions {
        threshold: Threshold::Fixed(0.5),
        height: None,
        min_volume_um3: 1.0,
        ..SegmentOptions::default()
    };
    SegmentJob { options, ..job }.run(&Context::default()).unwrap();
    let written = open(&labels, &OpenOptions::default()).unwrap().read_all().unwrap();
    assert_eq!(written.samples().to_f32().iter().sum::<f32>(), 18.0, "the label image was segmented");
}

#[test]
fn an_assumed_voxel_size_is_used_where_none_is_stated_and_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, stated: VoxelSize, assumed_voxel_um| {
        let map = folder.path().join(format!("{name}_probability.tif"));
        let array = Array::new("ZYX".parse().unwrap(), vec![4, 8, 8], map_values()).unwrap();
        let spec = WriteSpec { voxel_size_um: stated, ..WriteSpec::of(&array, Container::ImageJ) };
        write_array(&map, &array, &spec).unwrap();
        let labels = folder.path().join(format!("{name}_labels.tif"));
        let job = SegmentJob {
            map,
            labels: Some(labels.clone()),
            replace_labels_of_map: false,
            table: None,
            table_format: Default::default(),
            series: Default::default(),
            channel: 0,
            seed_channel: None,
            time: 0,
            voxel_um: None,
            assumed_voxel_um,
            intensities: None,
            intensities_time: None,
            // The object has 18 voxels.
            options: SegmentOptions {
                threshold: Threshold::Fixed(0.5),
                height: None,
                min_volume_um3: 30.0,
                ..SegmentOptions::default()
            },
            overwrite: Overwrite::default(),
        };
        let report = job.run(&Context::default()).unwrap();
        let size = open(&labels, &OpenOptions::default()).unwrap().meta().voxel_size_um;
        (report.objects, report.voxel_um, size.is_unknown())
    };
    let (unknown, assumed) = (VoxelSize::default(), Some([2.5, 1.0, 1.0]));
    assert_eq!(run("none", unknown, None), (0, [1.0; 3], true));
    assert_eq!(run("assumed", unknown, assumed), (1, [2.5, 1.0, 1.0], true));
    let stated = VoxelSize::new_um(1.5, 1.0, 1.0);
    assert_eq!(run("stated", stated, assumed), (0, [1.5, 1.0, 1.0], false));
}

#[test]
fn objects_of_a_map_of_one_time_point_are_measured_at_this_time_point_of_their_stack() {
    let folder = tempfile::tempdir().unwrap();
    let [map, stack, labels, table] =
        ["x_probability.tif", "x.tif", "x_labels.tif", "x_objects.csv"].map(|name| folder.path().join(name));
    let array = Array::new("ZYX".parse().unwrap(), vec![4, 8, 8], map_values()).unwrap();
    write_array(&map, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let array = Array::new("TZYX".parse().unwrap(), vec![2, 4, 8, 8], [[9u16; 256], [20; 256]].concat()).unwrap();
    write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
    let job = serde_json::json!({
        "map": map, "labels": labels, "table": table, "intensities": stack, "intensities_time": 1
    });
    let job: SegmentJob = serde_json::from_value(job).unwrap();
    let threshold = Threshold::Fixed(0.5);
    let options = SegmentOptions { threshold, height: None, min_volume_um3: 1.0, ..SegmentOptions::default() };
    assert_eq!(SegmentJob { options, ..job }.run(&Context::default()).unwrap().objects, 1);
    let text = std::fs::read_to_string(&table).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let mean = rows[0].iter().position(|name| name.starts_with("mean")).unwrap();
    assert_eq!(rows[1][mean].parse::<f64>().unwrap(), 20.0, "{text}");
}

#[cfg(unix)]
#[test]
fn the_folder_behind_a_link_keeps_its_labels_and_a_note_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (map, link) = (folder.path().join("kept.zarr"), folder.path().join("x_probability.zarr"));
    let mut writer = ZarrWriter::create_listed(&map, ZarrImageSpec::new("x", [1, 1, 4, 8, 8], DType::F32)).unwrap();
    let predicted = writer.add_labels(ZarrImageSpec::new("objects", [1, 1, 4, 8, 8], DType::U16)).unwrap();
    writer.write(0, [0; 3], &Samples::F32(map_values())).unwrap();
    writer.write(predicted, [0; 3], &Samples::U16(vec![7; 256])).unwrap();
    let _ = writer.finish().unwrap().finish(zarr::FOLDER_KIND).unwrap().publish().unwrap();
    std::os::unix::fs::symlink(&map, &link).unwrap();
    let labels = folder.path().join("x_labels.tif");
    let text = serde_json::json!({"map": &link, "labels": &labels, "replace_labels_of_map": true});
    let job: SegmentJob = serde_json::from_value(text).unwrap();
    let report = job.run(&Context::default()).unwrap();
    let notes = report.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert!(notes.contains("x_probability.zarr is a link to a folder"), "{notes}");
    let objects = open(&map.join("labels/objects"), &OpenOptions::default()).unwrap().read_all().unwrap();
    assert_eq!(objects.samples().to_f32(), vec![7.0; 256]);
}

#[test]
fn the_check_of_a_map_folder_shows_its_files_and_can_be_canceled() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("x_probability.zarr");
    let mut writer = ZarrWriter::create_listed(&map, ZarrImageSpec::new("x", [1, 1, 4, 8, 8], DType::F32)).unwrap();
    writer.write(0, [0; 3], &Samples::F32(map_values())).unwrap();
    let _ = writer.finish().unwrap().finish(zarr::FOLDER_KIND).unwrap().publish().unwrap();
    let (context, seen) = Context::recording_events();
    assert!(MapState::of(&context, &map).unwrap().is_unchanged);
    let is_file_progress = |event: &Event| matches!(event, Event::Progress(progress) if progress.stage == ProgressStage::Check && progress.total > 1);
    assert!(seen.lock().unwrap().iter().any(is_file_progress));
    context.cancel.cancel();
    assert!(matches!(MapState::of(&context, &map), Err(JobError::Canceled)));
}

#[test]
fn a_map_with_nan_is_segmented_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let map = folder.path().join("map.tif");
    for is_nan in [false, true] {
        let mut values = map_values();
        if is_nan {
            values[0] = f32::NAN;
        }
        let array = Array::new("ZYX".parse().unwrap(), vec![4, 8, 8], values).unwrap();
        write_array(&map, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let job = serde_json::json!({"map": &map, "labels": folder.path().join(format!("{is_nan}.tif"))});
        let job: SegmentJob = serde_json::from_value(job).unwrap();
        let threshold = Threshold::Fixed(0.5);
        let options = SegmentOptions { threshold, height: None, min_volume_um3: 1.0, ..SegmentOptions::default() };
        let report = SegmentJob { options, ..job }.run(&Context::default()).unwrap();
        assert_eq!(report.objects, 1);
        let is_noted = report.notes.iter().any(|note| note.message.contains("NaN count as background"));
        assert_eq!(is_noted, is_nan, "{:?}", report.notes);
    }
}

#[test]
fn the_advice_on_a_missing_time_point_names_time_points() {
    let times = |error: JobError| error.message().time_points().map(|(_, time)| time).collect::<Vec<_>>();
    let path = Path::new("a.tif");
    let refused = check_index(path, &FilePart::TimePoint.named(5), TIME, 5, 3).unwrap_err();
    assert_eq!(times(refused), [5, 0, 2]);
    let refused = crate::predict::resolve::check_time(Some(5), 3, path).unwrap_err();
    assert_eq!(times(refused), [5, 0, 2]);
    let refused = check_index(path, &FilePart::Channel.named(5), CHANNEL, 5, 3).unwrap_err();
    assert!(times(refused).is_empty());
}

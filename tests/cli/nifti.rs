//! Notes on the orientation of NIfTI files.

use crate::common::Fixture;

/// Writes a NIfTI file of two slices of 8 × 8 voxels whose x axis points to the right or to the left.
fn write_nifti(fixture: &Fixture, name: &str, x_direction: f32, values: &[u16]) {
    let mut bytes = vec![0u8; 352];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &348i32.to_le_bytes());
    [3i16, 8, 8, 2].iter().enumerate().for_each(|(i, extent)| put(40 + 2 * i, &extent.to_le_bytes()));
    put(70, &512i16.to_le_bytes());
    put(72, &16i16.to_le_bytes());
    put(108, &352f32.to_le_bytes());
    put(254, &1i16.to_le_bytes());
    for (at, value) in [(280, x_direction), (300, 1.0), (320, 1.0)] {
        put(at, &value.to_le_bytes());
    }
    put(344, b"n+1\0");
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    std::fs::write(fixture.path(name), bytes).unwrap();
}

#[test]
fn different_orientations_of_nifti_files_that_belong_together_are_noted() {
    let fixture = Fixture::new();
    let labels: Vec<u16> = (0..128).map(|i| u16::from(i % 8 < 3)).collect();
    let image: Vec<u16> = (0..128).map(|i| 100 + i).collect();
    write_nifti(&fixture, "right.nii", 1.0, &image);
    for (name, direction, is_noted) in [("same.nii", 1.0, false), ("left.nii", -1.0, true)] {
        write_nifti(&fixture, name, direction, &labels);
        let measure = ["measure", name, "--intensities", "right.nii", "--out", "t.csv", "--force", "--json"];
        let evaluate = ["evaluate", "--pred", name, "--truth", "right.nii", "--json"];
        for arguments in [&measure[..], &evaluate] {
            let notes = fixture.run(arguments).json()["notes"].to_string();
            assert_eq!(notes.contains("orientations are not applied"), is_noted, "{arguments:?}: {notes}");
        }
    }
}

#[test]
fn convert_notes_that_the_orientation_of_a_nifti_file_is_not_kept() {
    let fixture = Fixture::new();
    let image: Vec<u16> = (0..128).collect();
    write_nifti(&fixture, "left.nii", -1.0, &image);
    for output in ["left.ome.tif", "left.zarr", "left.npy"] {
        let stderr = fixture.run(&["convert", "left.nii", output]).ok().stderr;
        assert!(stderr.contains("left.nii: the directions LAS of its axes"), "{output}: {stderr}");
    }
    for series in ["0", "all"] {
        let convert = ["convert", "left.nii", "report.npy", "--series", series, "--force", "--json"];
        let notes = fixture.run(&convert).json()["notes"].to_string();
        assert!(notes.contains("left.nii: the directions LAS of its axes"), "{series}: {notes}");
    }
    let stderr = fixture.run(&["convert", "left.ome.tif", "again.tif"]).ok().stderr;
    assert!(!stderr.contains("directions"), "{stderr}");
}

#[test]
fn segment_and_mesh_note_that_the_orientation_of_a_nifti_file_is_not_kept() {
    let fixture = Fixture::new();
    let labels: Vec<u16> = (0..128).map(|i| u16::from(i % 8 < 3)).collect();
    write_nifti(&fixture, "left.nii", -1.0, &labels);
    write_nifti(&fixture, "right.nii", 1.0, &labels);
    let segment = ["segment", "left.nii", "--threshold", "0.5", "--out", "l.tif", "--force", "--json"];
    let mesh = ["mesh", "left.nii", "--out", "m.stl", "--json"];
    let noted = |command: &[&str]| fixture.run(command).json()["notes"].to_string();
    for (command, output) in [(&segment[..], "the results"), (&mesh[..], "m.stl")] {
        let notes = noted(command);
        let expected = format!("the directions LAS of its axes x, y, z are not stated in {output}");
        assert_eq!(notes.matches(&expected).count(), 1, "{notes}");
    }
    let measured = ["--table", "t.csv", "--intensities", "right.nii"];
    let notes = noted(&[&segment[..], &measured].concat());
    assert!(notes.contains("orientations are not applied"), "{notes}");
}

#[test]
fn predict_notes_once_that_the_orientation_of_a_nifti_file_is_not_kept() {
    let fixture = Fixture::new();
    let image: Vec<u16> = (0..128).collect();
    write_nifti(&fixture, "left.nii", -1.0, &image);
    let notes = |report: &serde_json::Value| report["inputs"][0]["notes"].to_string();
    let predict = ["predict", "left.nii", "--model", "nuclei-dog", "--out", "o", "--force", "--json"];
    let noted = notes(&fixture.run(&predict).json());
    assert_eq!(noted.matches("the directions LAS of its axes").count(), 1, "{noted}");
    assert!(noted.contains("not stated in the results"), "{noted}");
    fixture.run(&["convert", "left.nii", "plain.tif"]).ok();
    let plain = ["predict", "plain.tif", "--model", "nuclei-dog", "--out", "p", "--json"];
    let noted = notes(&fixture.run(&plain).json());
    assert!(!noted.contains("directions"), "{noted}");
}

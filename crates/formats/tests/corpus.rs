//! All files of the shared TIFF collection: `core` files match by hash, `extended` files match or are refused,
//! `malformed` files are refused or read within limits of time and memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use cytoscope_formats::{FormatErrorKind, Image, OpenOptions, open};
use cytoscope_volume::{Array, Axes, Axis, DType};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{path::Path, time::Instant};

fn manifest(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("the manifest is readable");
    let json: Value = serde_json::from_str(&text).expect("the manifest is JSON");
    json["files"].as_array().expect("the manifest lists files").clone()
}

/// The array with its axes in the manifest's order, in which S may come first and the page axis is called I or Q.
fn in_manifest_order(array: Array, axes: &str) -> Array {
    let order: Vec<Axis> = axes
        .chars()
        .map(|c| if matches!(c, 'I' | 'Q') { Axis::Z } else { Axis::from_letter(c).expect("a known axis") })
        .filter(|a| array.axes().contains(*a))
        .collect();
    array.transpose(&Axes::new(order).expect("distinct axes")).expect("the same axes")
}

fn sha(array: &Array) -> String {
    let bytes = Sha256::digest(array.samples().as_bytes());
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Compares a file with the manifest; the error is the difference.
fn check_file(folder: &Path, entry: &Value, all: &[Value]) -> Result<(), String> {
    let file = entry["file"].as_str().unwrap_or_default();
    let image = open(&folder.join(file), &OpenOptions::default()).map_err(|e| format!("{:?} {e}", e.kind()))?;
    if image.meta().missing_planes != 0 {
        return Err("planes are missing".into());
    }
    let count = entry["series"].as_array().map_or(0, Vec::len);
    for index in 0..count {
        let expected = &entry["series"][index];
        let options = OpenOptions { series: index, ..OpenOptions::default() };
        let image =
            if index == 0 { image.clone() } else { open(&folder.join(file), &options).map_err(|e| e.to_string())? };
        check_series(folder, file, &image, entry, expected, all).map_err(|e| format!("series {index}: {e}"))?;
    }
    Ok(())
}

fn check_series(
    folder: &Path,
    file: &str,
    image: &Image,
    entry: &Value,
    expected: &Value,
    all: &[Value],
) -> Result<(), String> {
    let array = image.read_all().map_err(|e| format!("{:?} {e}", e.kind()))?;
    if let Some(reference) = entry["reference_pixels"].as_str() {
        return within_two(&array, &folder.join(reference));
    }
    // Any file of a set opens the whole set; the manifest lists each file as a single plane.
    if file.contains("multiples/") {
        if array.shape() != [5, 24, 18] {
            return Err(format!("the set has shape {:?}", array.shape()));
        }
        let mut compared = 0;
        for other in all {
            let name = other["file"].as_str().unwrap_or_default();
            let sibling = Path::new(name).parent() == Path::new(file).parent();
            if sibling && other["page0_array"]["pixel_sha256"].is_string() {
                let z = usize::from(name.as_bytes()[name.find("multifile-Z").expect("a set file") + 11] - b'1');
                let region = cytoscope_volume::Region { start: vec![z, 0, 0], size: vec![1, 24, 18] };
                let plane = array.crop(&region).map_err(|e| e.to_string())?;
                if Some(sha(&plane).as_str()) != other["page0_array"]["pixel_sha256"].as_str() {
                    return Err(format!("plane {z} of the set is wrong"));
                }
                compared += 1;
            }
        }
        return if compared == 5 {
            Ok(())
        } else {
            Err(format!("{compared} of 5 planes are listed with their pixels"))
        };
    }
    let dtype = expected["dtype"].as_str().unwrap_or_default();
    if dtype != array.dtype().name() && !(dtype == "bool" && array.dtype().name() == "uint8") {
        return Err(format!("dtype {} where {dtype} is right", array.dtype()));
    }
    let array = in_manifest_order(array, expected["axes"].as_str().unwrap_or_default());
    let shape: Vec<u64> =
        expected["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64).filter(|n| *n != 1).collect();
    if shape != array.shape().iter().map(|n| *n as u64).collect::<Vec<_>>() {
        return Err(format!("shape {:?} where {shape:?} is right", array.shape()));
    }
    if Some(sha(&array).as_str()) != expected["pixel_sha256"].as_str() {
        return Err("the pixels differ".into());
    }
    Ok(())
}

fn within_two(array: &Array, reference: &Path) -> Result<(), String> {
    let options = OpenOptions { axes: Some("YXS".parse().expect("axes")), ..OpenOptions::default() };
    let reference = open(reference, &options).and_then(|i| i.read_all()).map_err(|e| e.to_string())?;
    if (reference.shape(), reference.dtype(), array.dtype()) != (array.shape(), DType::U8, DType::U8) {
        let (found, expected) = (array.shape(), reference.shape());
        return Err(format!("{} {found:?} where {} {expected:?} is right", array.dtype(), reference.dtype()));
    }
    let worst =
        array.samples().as_bytes().iter().zip(reference.samples().as_bytes()).map(|(a, b)| a.abs_diff(*b)).max();
    if worst.unwrap_or(0) > 2 { Err(format!("off by {worst:?}")) } else { Ok(()) }
}

#[test]
fn core_files_match_the_manifest() {
    let Some(folder) = common::tiff_folder() else { return };
    let all = manifest(&folder);
    let core: Vec<&Value> = all.iter().filter(|f| f["tier"] == "core").collect();
    let wrong: Vec<String> =
        core.iter().filter_map(|f| check_file(&folder, f, &all).err().map(|e| format!("{}: {e}", f["file"]))).collect();
    assert!(wrong.is_empty(), "{} of {} core files are wrong:\n{}", wrong.len(), core.len(), wrong.join("\n"));
    assert_eq!(core.len(), 157);
}

#[test]
fn extended_files_match_the_manifest_or_are_refused() {
    let Some(folder) = common::tiff_folder() else { return };
    let all = manifest(&folder);
    let (mut right, mut refused, mut unchecked, mut wrong) = (0, Vec::new(), Vec::new(), Vec::new());
    for f in all.iter().filter(|f| f["tier"] == "extended") {
        let path = folder.join(f["file"].as_str().unwrap_or_default());
        match open(&path, &OpenOptions::default()).and_then(|i| i.read_all()) {
            Err(e) if e.kind() == FormatErrorKind::Unsupported => refused.push(format!("{e}")),
            Err(e) => wrong.push(format!("{} {:?} {e}", f["file"], e.kind())),
            Ok(_) if f["hash_exact"] != true => unchecked.push(f["file"].to_string()),
            Ok(_) => match check_file(&folder, f, &all) {
                Ok(()) => right += 1,
                Err(e) => wrong.push(format!("{}: {e}", f["file"])),
            },
        }
    }
    println!(
        "{right} right, {} refused, {} lossy: {unchecked:?}\n{}",
        refused.len(),
        unchecked.len(),
        refused.join("\n")
    );
    assert!(wrong.is_empty(), "{} extended files are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(right > refused.len(), "most extended files are refused");
}

#[test]
fn malformed_files_are_refused_or_read_within_bounds() {
    let Some(folder) = common::tiff_folder() else { return };
    let all = manifest(&folder);
    let mut refused = 0;
    let bad: Vec<&Value> = all.iter().filter(|f| f["tier"] == "malformed").collect();
    for f in &bad {
        let path = folder.join(f["file"].as_str().unwrap_or_default());
        let began = Instant::now();
        if let Err(e) = open(&path, &OpenOptions::default()).and_then(|i| i.read_all()) {
            refused += 1;
            println!("{:?} {e}", e.kind());
        }
        // Far above the usual milliseconds: work that grows with a number in the file takes minutes.
        assert!(began.elapsed().as_secs() < 60, "{} took {:?}", path.display(), began.elapsed());
    }
    println!("{refused} of {} refused", bad.len());
    assert!(refused > 0, "no malformed file is listed, or none is refused");
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.trim().strip_suffix(" kB"));
        let peak_kib: u64 = peak.and_then(|p| p.trim().parse().ok()).unwrap_or(0);
        println!("peak memory {} MiB", peak_kib >> 10);
        assert!(peak_kib < 1 << 20, "peak memory {peak_kib} KiB");
    } else {
        cytoscope_testkit::skip("peak memory is checked on Linux only");
    }
}

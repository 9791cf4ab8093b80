//! Notes on which part of a file a job uses, and how the file was read.

use super::PredictJob;
use crate::stack::Extents;
use cytoscope_formats::{
    Channel, ChunkFiles, FileFormat, Image, ImageMeta, SeriesChoice, count_files_outside_series, nifti_directions,
};
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_storage::setting::{ALL_SERIES, AXES, CHANNEL, SERIES, TIME, VOXEL_SIZE};
use cytoscope_volume::number_text;
use std::fmt;
use std::path::Path;

/// How a slice of a numbered series is read alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SliceAlone {
    /// With the option of the axes.
    ByAxes,
    /// In its own folder, for jobs without that option.
    ByFolder,
}

impl fmt::Display for SliceAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByAxes => write!(f, "{AXES} YX reads each file separately"),
            Self::ByFolder => f.write_str("to read one alone, move it to a separate folder"),
        }
    }
}

/// Returns notes on how an image was read: that several numbered files became one stack, and how to read one `alone`; why
/// pages are read as slices; what is not applied; and that planes are missing, or regions of interest outside of the stack.
pub(crate) fn reading_notes(image: &Image, alone: SliceAlone) -> Vec<Message> {
    let file_notes = missing_notes(image.meta()).into_iter().chain(regions_note(image.meta()));
    numbered_series_note(image, alone).into_iter().chain(file_notes).collect()
}

/// Returns notes on what is missing in a file: why pages are read as slices, what the file states that is not applied, and that
/// planes are read as zeros.
pub(crate) fn missing_notes(meta: &ImageMeta) -> Vec<Message> {
    let missing = match meta.missing_planes {
        0 => None,
        1 => Some("1 plane is not in the file and is read as zeros".to_owned()),
        count => Some(format!("{count} planes are not in the file and are read as zeros")),
    };
    let not_applied = meta.not_applied.iter().cloned().map(Message::from);
    let slices = meta.read_as_slices.clone().map(Message::from);
    slices.into_iter().chain(not_applied).chain(missing.map(Message::from)).collect()
}

/// Share of the files of chunks that may be absent without a note, as a divisor: programs do not store chunks of zeros.
const ABSENT_WITHOUT_NOTE: u64 = 10;

/// How the note on absent files of chunks begins.
const NOT_STORED: &str = "a part of the image is not stored and is read as one value";

/// Whether a note says that files of chunks are absent. It is true of every job on an image of which empty background was left
/// out, so a program that runs many jobs on the same image can show it once.
pub fn is_on_absent_chunks(note: &str) -> bool {
    note.contains(NOT_STORED)
}

/// Returns the note that a large part of an OME-Zarr image is not stored, as after a copy that was interrupted. `None` for label
/// images, most of whose chunks may be background.
pub(crate) fn absent_chunks_note(image: &Image) -> Option<Message> {
    if image.is_label_image() {
        return None;
    }
    absent_note(image.look_for_chunk_files()?).map(Message::from)
}

/// Returns the note about these files of chunks, if a large part of them is absent.
fn absent_note(files: ChunkFiles) -> Option<String> {
    let ChunkFiles { all, looked_for, absent } = files;
    if absent.saturating_mul(ABSENT_WITHOUT_NOTE) <= looked_for {
        return None;
    }
    let share = match looked_for == all {
        true => format!("{absent} of the {all} files of its chunks are"),
        false => format!(
            "about {:.0} % of the {all} files of its chunks are",
            100.0 * absent as f64 / looked_for.max(1) as f64
        ),
    };
    Some(format!(
        "{NOT_STORED}: {share} absent; programs leave out empty background, but if anything else is missing, copy the image \
         again: a copy may have been interrupted"
    ))
}

/// Returns the note that each time point of a file is a single slice although it states no interval between time points:
/// many programs save the slices of a stack as time points. `None` for other files, and if the job states axes or a time point.
pub(crate) fn slices_as_times_note(job: &PredictJob, meta: &ImageMeta) -> Option<Message> {
    let Extents { times, zyx: [depth, ..], .. } = Extents::of(meta);
    let is_unclear = meta.time_interval_secs.is_none() && job.axes.is_none() && job.time.is_none();
    (times > 1 && depth == 1 && is_unclear).then(|| {
        let axes = meta.axes.to_string().replace('T', "Z");
        // An array needs a letter for each of its axes, a TIFF file those of its planes in their order.
        let is_known = axes == "ZYX" && !matches!(meta.format, FileFormat::OmeZarr | FileFormat::Npy);
        let advice = match is_known {
            true => message!("use {AXES} {axes}"),
            false => message!("give its axes with {AXES}, with Z in place of T"),
        };
        message!(
            "the file has {times} time points of one slice, each of which is predicted alone; if they are the slices of one \
             stack, {advice}"
        )
    })
}

/// Returns the note that the `output` does not state the orientation of a NIfTI file; `None` for files without one.
pub(crate) fn orientation_note(input: &Path, output: &str) -> Option<Message> {
    let directions = nifti_directions(input)?;
    Some(message!(
        "the directions {directions} of its axes x, y, z are not stated in {output}: voxels keep their order"
    ))
}

/// Regions of interest outside of their stack that a note names.
const NAMED_REGIONS: usize = 5;

/// Returns the note that regions of interest are left out, because they lie outside of the stack that gives their extents.
pub(crate) fn regions_note(meta: &ImageMeta) -> Option<Message> {
    let outside = &meta.regions_outside;
    let names: Vec<&str> = outside.iter().take(NAMED_REGIONS).map(String::as_str).collect();
    let more = if outside.len() > NAMED_REGIONS { ", …" } else { "" };
    let what = match outside.len() {
        0 => return None,
        1 => "1 region of interest lies outside of the stack and is left out".to_owned(),
        count => format!("{count} regions of interest lie outside of the stack and are left out"),
    };
    Some(message!("{what}: {}{more}", names.join(", ")))
}

/// Returns the note that several numbered files were read as one stack, how to read one `alone`, and how many files of the same
/// name were left out; `None` for other images. The files may be images that do not belong together.
fn numbered_series_note(image: &Image, alone: SliceAlone) -> Option<Message> {
    let files = if image.meta().is_numbered_series() { image.files() } else { Vec::new() };
    let [first, .., last] = files.as_slice() else { return None };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let left_out = match count_files_outside_series(&files) {
        0 => String::new(),
        1 => "; another file of this name was not, because a number is missing or it differs from them".to_owned(),
        n => format!("; {n} other files of this name were not, because a number is missing or they differ from them"),
    };
    let (count, first, last) = (files.len(), name(first), name(last));
    Some(message!("{count} files, {first} to {last}, were read as one stack ({alone}){left_out}"))
}

/// An axis of a file along which a job uses one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilePart {
    Channel,
    TimePoint,
}

impl FilePart {
    /// Returns the name of an element along the axis.
    fn noun(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::TimePoint => "time point",
        }
    }

    /// Returns the number of the element `index`.
    pub(crate) fn number(self, index: usize) -> Message {
        match self {
            Self::Channel => message!("{index}"),
            Self::TimePoint => message!("{}", TimePoint(index)),
        }
    }

    /// Returns the name of the element `index`, with its number.
    pub(crate) fn named(self, index: usize) -> Message {
        message!("{} {}", self.noun(), self.number(index))
    }
}

/// Returns the note that one part of several is used, as the predicate `used` says; `None` if there is only one.
pub(crate) fn one_of_several_note(part: FilePart, index: usize, count: usize, used: &str) -> Option<Message> {
    let option = match part {
        FilePart::Channel => CHANNEL,
        FilePart::TimePoint => TIME,
    };
    let (what, one) = (part.noun(), part.named(index));
    (count > 1).then(|| message!("there are {count} {what}s: only {one} {used} (choose another with {option})"))
}

/// Maximum number of channels whose names a note lists.
const MAX_LISTED_CHANNELS: usize = 8;

/// Returns the names of the channels in parentheses, after a space; nothing if one has no name, or if they are many.
pub(super) fn listed_channels(channels: &[Channel]) -> String {
    let names: Vec<&str> = channels.iter().map(|channel| channel.name.trim()).filter(|name| !name.is_empty()).collect();
    let is_listed = !names.is_empty() && names.len() == channels.len() && names.len() <= MAX_LISTED_CHANNELS;
    if is_listed { format!(" ({})", names.join(", ")) } else { String::new() }
}

/// Which other series of a file a job can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherSeries {
    /// Another one.
    One,
    /// Another one, or all.
    OneOrAll,
}

/// Displays how other series are chosen.
impl fmt::Display for OtherSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "choose another with {SERIES}")?;
        match self {
            Self::One => Ok(()),
            Self::OneOrAll => write!(f, ", or all with {ALL_SERIES}"),
        }
    }
}

/// Returns the note that the first of several series of a file is used, as the predicate `used` says, because no other one
/// was chosen, and how the `other` ones are chosen. `None` if another one was chosen, or the others are label images of this
/// one.
pub(crate) fn first_series_note(
    choice: &SeriesChoice,
    meta: &ImageMeta,
    used: &str,
    other: OtherSeries,
) -> Option<Message> {
    let count = SeriesChoice::All.chosen_indices(meta).map_or(1, |all| all.len());
    (choice.is_first() && count > 1).then(|| {
        let name = meta.series_name(0);
        message!("there are {count} series: only the first one, {name}, {used} ({other})")
    })
}

/// Returns the note that the label image of a file is used, worded by the predicate `used`, because no series was
/// chosen and the first one is not a label image. `None` if the first or the chosen one is used.
pub(crate) fn label_series_note(choice: &SeriesChoice, meta: &ImageMeta, used: &str) -> Option<Message> {
    (choice.is_first() && meta.series > 0).then(|| {
        let [name, first] = [meta.series, 0].map(|series| meta.series_name(series));
        // The number of the first image also stands for no choice.
        message!(
            "the label image {name} {used}, not the first image of the file ({SERIES} with its name, {first}, chooses that \
             image)"
        )
    })
}

/// Returns the note that lengths are measured in voxels, because the size along an axis with several voxels is unknown, and
/// which of the `stated` sizes Z, Y, X in µm are therefore not used.
pub(crate) fn unused_voxel_size_note(stated: [Option<f64>; 3], flat: bool) -> Message {
    let sizes = || ["Z", "Y", "X"].into_iter().zip(stated).filter(move |(axis, _)| !flat || *axis != "Z");
    let unused: Vec<String> =
        sizes().filter_map(|(axis, um)| Some(format!("{} µm along {axis}", number_text(um?)))).collect();
    if unused.is_empty() {
        return message!(
            "the voxel size in the file is missing: lengths are measured in voxels along X (set it with {VOXEL_SIZE})"
        );
    }
    let unknown: Vec<&str> = sizes().filter(|(_, um)| um.is_none()).map(|(axis, _)| axis).collect();
    message!(
        "the voxel size in the file is unknown along {}, so what it states is not used ({}): pixels are taken as square, and \
         lengths are measured in voxels along X; give all three sizes with {VOXEL_SIZE}",
        unknown.join(", "),
        unused.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_part_of_an_image_that_is_not_stored_is_noted() {
        let note = |all, looked_for, absent| absent_note(ChunkFiles { all, looked_for, absent });
        for (all, looked_for, absent) in [(1, 1, 0), (10, 10, 1), (65_536, 256, 25)] {
            assert_eq!(note(all, looked_for, absent), None, "{absent} of {looked_for}");
        }
        let whole = note(10, 10, 2).unwrap_or_default();
        assert!(
            whole.contains("2 of the 10 files of its chunks are absent; programs leave out empty background"),
            "{whole}"
        );
        assert!(whole.contains("copy the image again") && is_on_absent_chunks(&whole), "{whole}");
        assert!(!is_on_absent_chunks("1 plane is not in the file and is read as zeros"));
        let part = note(65_536, 256, 64).unwrap_or_default();
        assert!(part.contains("about 25 % of the 65536 files of its chunks are absent"), "{part}");
    }

    #[test]
    fn channels_are_listed_if_all_have_names_and_they_are_few() {
        let listed = |names: &[&str]| {
            let channel = |name: &&str| Channel { name: (*name).to_owned(), color_rgb: None };
            listed_channels(&names.iter().map(channel).collect::<Vec<_>>())
        };
        assert_eq!(listed(&["membrane", "DAPI "]), " (membrane, DAPI)");
        for names in [&[][..], &["DAPI", ""], &["a"; MAX_LISTED_CHANNELS + 1]] {
            assert_eq!(listed(names), "", "{names:?}");
        }
    }

    #[test]
    fn sizes_that_are_not_used_are_named() {
        let note = |stated, flat| unused_voxel_size_note(stated, flat).to_string();
        let without_z = note([None, Some(0.4), Some(0.8)], false);
        assert!(without_z.contains("unknown along Z,"), "{without_z}");
        assert!(
            without_z.contains("0.4 µm along Y, 0.8 µm along X") && without_z.contains("--voxel-size"),
            "{without_z}"
        );
        // A single slice has no distance to others.
        let flat = note([Some(2.0), None, Some(0.8)], true);
        assert!(flat.contains("unknown along Y,") && flat.contains("(0.8 µm along X)"), "{flat}");
        let missing = note([None; 3], false);
        assert!(missing.contains("is missing") && missing.contains("--voxel-size"), "{missing}");
    }
}

//! ScanImage: TIFF pages in the order of acquisition; the settings of the microscope, which are text, state the axes.
//!
//! Version 3 writes the settings (`state.acq.…`) to the description, 4 and 5 too (`scanimage.SI5.…`), later ones to the tag
//! Software (`SI.hChannels.…`). Channels are the fastest axis.

use super::{
    file::TiffFile,
    series::{PlaneRef, Series, plain_resolution},
};
use crate::meta::{Channel, positive};
use cytoscope_volume::{Axis, VoxelSize};
use std::collections::HashMap;

/// Tag with the name of the program, or the settings of ScanImage.
const SOFTWARE: u16 = 305;
/// Number of characters at the end of a description that name ScanImage.
const TAIL_CHARS: usize = 256;
/// Largest number of channels.
const MAX_CHANNELS: usize = 64;

/// The settings of ScanImage: values by their last two words, such as `hChannels.channelSave`.
pub(crate) struct Settings(HashMap<String, String>);

/// The settings of a file; `None` if ScanImage did not write it.
pub(crate) fn settings(file: &TiffFile, description: &str) -> Option<Settings> {
    let software = file.first.get(SOFTWARE).and_then(|entry| file.container.text(entry).ok()).unwrap_or_default();
    let tail_at = description.char_indices().rev().nth(TAIL_CHARS - 1).map_or(0, |(at, _)| at);
    let is_described = description.starts_with("state.")
        || description.get(tail_at..).is_some_and(|tail| tail.contains("scanimage.SI"));
    match (software.starts_with("SI."), is_described) {
        (true, _) => Some(Settings::parse(&software)),
        (false, true) => Some(Settings::parse(description)),
        (false, false) => None,
    }
}

impl Settings {
    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (key, value) = line.split_once('=')?;
            let mut words = key.trim().rsplitn(3, '.');
            let (last, before) = (words.next()?, words.next()?);
            Some((format!("{before}.{last}"), value.trim().to_owned()))
        };
        Self(text.split(['\n', '\r']).filter_map(line).collect())
    }

    /// The first of these settings that the file has.
    fn get(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.0.get(*key)).map(String::as_str)
    }

    fn number(&self, keys: &[&str]) -> Option<f64> {
        self.get(keys)?.parse().ok()
    }

    fn flag(&self, keys: &[&str]) -> Option<bool> {
        self.get(keys).map(|value| matches!(value, "true" | "1"))
    }

    /// A count above 0; infinite ones are none.
    fn count(&self, keys: &[&str]) -> Option<usize> {
        self.number(keys).filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize)
    }

    /// The numbers in a list such as `[1;2]`.
    fn numbers(&self, keys: &[&str]) -> Vec<f64> {
        let text = self.get(keys).unwrap_or_default();
        let is_between = |c: char| matches!(c, '[' | ']' | ';' | ',' | ' ');
        text.split(is_between).filter_map(|part| part.parse().ok()).collect()
    }

    /// Numbers of the saved channels, from 1; those of version 3 are not listed but counted.
    fn saved_channels(&self) -> Vec<usize> {
        let listed = self.numbers(&["hChannels.channelSave", "SI5.channelsSave", "SI4.channelsSave"]);
        let listed: Vec<usize> = listed.into_iter().filter(|n| (1.0..1e6).contains(n)).map(|n| n as usize).collect();
        let is_listed = (1..=MAX_CHANNELS).contains(&listed.len());
        let counted = || self.count(&["acq.numberOfChannelsSave"]).filter(|n| *n <= MAX_CHANNELS).unwrap_or(1);
        if is_listed { listed } else { (1..=counted()).collect() }
    }

    fn channel_name(&self, number: usize) -> String {
        // A list of names in quotation marks: {'GCaMP';'tdTomato'}.
        let names = self.get(&["hChannels.channelName", "SI5.channelsName"]).unwrap_or_default();
        names.split('\'').skip(1).step_by(2).nth(number.saturating_sub(1)).unwrap_or_default().to_owned()
    }

    /// Leading axes and their extents in storage order, slowest first.
    fn dims(&self, pages: usize, channels: usize) -> Vec<(Axis, usize)> {
        if !pages.is_multiple_of(channels) {
            tracing::warn!(
                "ScanImage saved {channels} channels, but the file has {pages} pages: they are read as slices"
            );
            return vec![(Axis::Z, pages)];
        }
        let planes = pages / channels;
        // In fast mode, volumes follow each other. The number of slices is a setting that is saved even if no stack was
        // acquired.
        let fast_mode = self.get(&["hStackManager.stackMode"]).is_some_and(|mode| mode.contains("fast"));
        let is_fast = fast_mode || self.flag(&["hFastZ.enable"]) == Some(true);
        let is_stack = is_fast || self.flag(&["hStackManager.enable"]) != Some(false);
        let slices = self
            .count(&["hStackManager.actualNumSlices"])
            .or_else(|| self.count(&["hStackManager.numSlices", "SI5.stackNumSlices", "SI4.stackNumSlices"]))
            .or_else(|| self.count(&["acq.numberOfZSlices"]))
            .filter(|_| is_stack)
            .unwrap_or(1);
        let frames = self
            .count(&["hStackManager.framesPerSlice", "SI5.acqNumFrames", "SI4.acqNumFrames"])
            .or_else(|| self.count(&["acq.numberOfFrames"]))
            .unwrap_or(1);
        let mut dims = if slices <= 1 {
            vec![(Axis::T, planes)]
        } else if !is_fast && slices.checked_mul(frames) == Some(planes) {
            // The frames of a slice follow each other.
            vec![(Axis::Z, slices), (Axis::T, frames)]
        } else if planes.is_multiple_of(slices) {
            // Volumes, or slices whose frames were averaged.
            vec![(Axis::T, planes / slices), (Axis::Z, slices)]
        } else {
            tracing::warn!(
                "ScanImage declares {slices} slices, but there are {planes} planes: they are read as slices"
            );
            vec![(Axis::Z, planes)]
        };
        dims.push((Axis::C, channels));
        dims
    }

    /// Distances between pixels along Y and X in µm from the corners of the field of view.
    fn pixel_um(&self, [height, width]: [usize; 2]) -> Option<[f64; 2]> {
        let corners = self.numbers(&["hRoiManager.imagingFovUm"]);
        let extent = |first: usize| {
            let values = || corners.iter().skip(first).step_by(2).copied();
            positive(values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min))
        };
        Some([extent(1)? / height.max(1) as f64, extent(0)? / width.max(1) as f64])
    }
}

/// The image of a ScanImage file with pages of `shape_yx` pixels.
pub(crate) fn series(file: &TiffFile, settings: &Settings, pages: &[u32], shape_yx: [usize; 2]) -> Series {
    let saved = settings.saved_channels();
    let dims = settings.dims(pages.len(), saved.len());
    let extent = |axis: Axis| dims.iter().find(|(known, _)| *known == axis).map_or(1, |(_, n)| *n);
    let step = settings.number(&[
        "hStackManager.actualStackZStepSize",
        "hStackManager.stackZStepSize",
        "SI5.stackZStepSize",
        "SI4.stackZStepSize",
        "acq.zStepSize",
    ]);
    let rate = match extent(Axis::Z) {
        1 => settings.number(&["hRoiManager.scanFrameRate", "SI5.scanFrameRate", "SI4.scanFrameRate", "acq.frameRate"]),
        _ => settings.number(&["hRoiManager.scanVolumeRate"]),
    };
    let stated = plain_resolution(file);
    let of_view = settings.pixel_um(shape_yx);
    let names = saved.iter().map(|number| settings.channel_name(*number));
    Series {
        format: "scanimage",
        planes: pages.iter().map(|page| Some(PlaneRef { file: 0, page: *page, slice: 0 })).collect(),
        voxel_size_um: VoxelSize {
            z: step.and_then(|um| positive(um.abs())).filter(|_| extent(Axis::Z) > 1),
            y: stated.y.or(of_view.map(|um| um[0])),
            x: stated.x.or(of_view.map(|um| um[1])),
        },
        time_interval_secs: rate.and_then(positive).map(|hz| 1.0 / hz).filter(|_| extent(Axis::T) > 1),
        channels: if extent(Axis::C) == saved.len() {
            names.map(|name| Channel { name, color_rgb: None }).collect()
        } else {
            Vec::new()
        },
        dims,
        ..Series::default()
    }
}

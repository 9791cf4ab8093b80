//! ScanImage: TIFF pages are stored in the order of acquisition; the microscope settings, stored as text, give the axes.
//!
//! Versions 3 (`state.acq.…`), 4 and 5 (`scanimage.SI5.…`) store the settings in the image description, later versions in
//! the Software tag (`SI.hChannels.…`). From version 4 of its TIFF format on, ScanImage stores the number of frames per
//! volume both with and without flyback frames (`hStackManager.…`); in older files, `hFastZ.numFramesPerVolume` counts the
//! flyback frames too.

use super::{
    file::TiffFile,
    scanimage_order::{Acquisition, Order, order},
    series::{PlaneRef, Series, plain_resolution},
};
use crate::file_format::FileFormat;
use crate::meta::{Channel, ignore_entry, positive};
use cytoscope_volume::{Axis, VoxelSize};
use std::collections::HashMap;

/// The Software tag: the name of the program that wrote the file or, in ScanImage files, the microscope settings.
const SOFTWARE: u16 = 305;
/// Number of characters at the end of a description that are searched for ScanImage's name.
const TAIL_CHARS: usize = 256;
/// Largest number of channels.
const MAX_CHANNELS: usize = 64;
/// Largest number of settings that are read from a file; real files have about 1000.
const MAX_SETTINGS: usize = 1 << 16;
/// Settings with the number of frames per volume, without and with the flyback frames.
const FRAMES_PER_VOLUME: &str = "hStackManager.numFramesPerVolume";
const FRAMES_WITH_FLYBACK: &str = "hStackManager.numFramesPerVolumeWithFlyback";

/// The microscope settings that ScanImage stored in a file.
pub(crate) struct Settings {
    /// Values by the last two parts of their keys, such as `hChannels.channelSave`.
    values: HashMap<String, String>,
    /// Number of the file's first frame in its acquisition, from 1, if the description states it.
    first_frame: Option<usize>,
}

/// Reads the settings of a file; `None` if ScanImage did not write it.
pub(crate) fn settings(file: &TiffFile, description: &str) -> Option<Settings> {
    let software = file.first.get(SOFTWARE).and_then(|entry| file.container.text(entry).ok()).unwrap_or_default();
    let tail_at = description.char_indices().rev().nth(TAIL_CHARS - 1).map_or(0, |(at, _)| at);
    let is_described = description.starts_with("state.")
        || description.get(tail_at..).is_some_and(|tail| tail.contains("scanimage.SI"));
    let values = match (software.starts_with("SI."), is_described) {
        (true, _) => values(&software),
        (false, true) => values(description),
        (false, false) => return None,
    };
    let frame = |line: &str| -> Option<usize> {
        let (key, value) = line.split_once('=')?;
        if key.trim() == "frameNumberAcquisition" { value.trim().parse().ok() } else { None }
    };
    Some(Settings { values, first_frame: description.split(['\n', '\r']).find_map(frame) })
}

/// Parses lines such as `SI.hChannels.channelSave = 1`: values by the last two parts of their keys.
fn values(text: &str) -> HashMap<String, String> {
    let line = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let mut words = key.trim().rsplitn(3, '.');
        let (last, before) = (words.next()?, words.next()?);
        Some((format!("{before}.{last}"), value.trim().to_owned()))
    };
    text.split(['\n', '\r']).filter_map(line).take(MAX_SETTINGS).collect()
}

impl Settings {
    /// Returns the first of these settings that the file has.
    fn get(&self, keys: &[&str]) -> Option<&str> {
        keys.iter().find_map(|key| self.values.get(*key)).map(String::as_str)
    }

    fn number(&self, keys: &[&str]) -> Option<f64> {
        self.get(keys)?.parse().ok()
    }

    fn flag(&self, keys: &[&str]) -> Option<bool> {
        self.get(keys).map(|value| matches!(value, "true" | "1"))
    }

    /// Returns a count from 1 to 10⁹; `None` for other values, such as `Inf`.
    fn count(&self, keys: &[&str]) -> Option<usize> {
        self.number(keys).filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize)
    }

    /// Returns the numbers of a list such as `[1;2]`; none if the file has no such list. A list with anything else is ignored
    /// as a whole, which is logged: the numbers that are left would stand for other channels.
    fn numbers(&self, keys: &[&str]) -> Vec<f64> {
        let text = self.get(keys).unwrap_or_default();
        let is_separator = |c: char| matches!(c, '[' | ']' | ';' | ',' | ' ');
        let parts = text.split(is_separator).filter(|part| !part.is_empty());
        let numbers: Option<Vec<f64>> = parts.map(|part| part.parse().ok()).collect();
        let ignored = || ignore_entry(keys.first().copied().unwrap_or_default(), text, "a list of numbers");
        numbers.or_else(ignored).unwrap_or_default()
    }

    /// Returns the numbers of the saved channels, from 1. Version 3 stores only how many channels there are.
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

    /// Number of frames averaged into each saved frame.
    fn averaged_frames(&self) -> usize {
        self.count(&["hScan2D.logAverageFactor"]).unwrap_or(1)
    }

    /// Returns how the planes were acquired.
    ///
    /// # Errors
    /// A description of the settings, if the order of the planes cannot be derived from them.
    fn acquisition(&self, channels: usize) -> Result<Acquisition, String> {
        // In fast mode, volumes are acquired back to back. The number of slices is stored even if no stack was acquired.
        let fast_mode = self.get(&["hStackManager.stackMode"]).is_some_and(|mode| mode.contains("fast"));
        let has_fast_focus = self.flag(&["hFastZ.enable", "SI5.fastZEnable", "SI4.fastZEnable"]) == Some(true);
        let is_fast = fast_mode || has_fast_focus;
        let is_stack = is_fast || self.flag(&["hStackManager.enable"]) != Some(false);
        let slices = self
            .count(&["hStackManager.actualNumSlices"])
            .or_else(|| self.count(&["hStackManager.numSlices", "SI5.stackNumSlices", "SI4.stackNumSlices"]))
            .or_else(|| self.count(&["acq.numberOfZSlices"]))
            .filter(|_| is_stack)
            .unwrap_or(1);
        let acquired = self
            .count(&["hStackManager.framesPerSlice", "SI5.acqNumFrames", "SI4.acqNumFrames"])
            .or_else(|| self.count(&["acq.numberOfFrames"]))
            .unwrap_or(1);
        let states_flyback = self.get(&[FRAMES_WITH_FLYBACK]).is_some();
        let averaged = self.averaged_frames();
        let frames = match acquired {
            // Before version 4 of the TIFF format, a fast focus acquired one frame per slice.
            _ if is_fast && !states_flyback => 1,
            n if n.is_multiple_of(averaged) => n / averaged,
            n => n,
        };
        let earlier_frames = self.first_frame.unwrap_or(1).saturating_sub(1);
        let acquisition = Acquisition { channels, slices, frames, flyback: 0, earlier_frames };
        if states_flyback {
            self.with_stated_flyback(acquisition)
        } else if has_fast_focus {
            self.with_discarded_frames(acquisition)
        } else {
            Ok(acquisition)
        }
    }

    /// Adds the number of flyback frames that files of TIFF format 4 give: frames per volume with flyback frames, minus
    /// those without. The files contain the flyback frames even if `hFastZ.discardFlybackFrames` is set, which only
    /// affects the display.
    fn with_stated_flyback(&self, acquisition: Acquisition) -> Result<Acquisition, String> {
        let (kept, all) = (self.count(&[FRAMES_PER_VOLUME]), self.count(&[FRAMES_WITH_FLYBACK]));
        match kept.zip(all) {
            _ if acquisition.slices <= 1 => Ok(acquisition),
            Some((kept, all)) if kept == all => Ok(acquisition),
            Some((kept, all))
                if kept < all
                    && self.averaged_frames() == 1
                    && acquisition.slices.checked_mul(acquisition.frames) == Some(kept) =>
            {
                Ok(Acquisition { flyback: all - kept, ..acquisition })
            }
            _ => Err(format!(
                "{} slices of {} frames, means of {} frames, and {} frames per volume ({} with flyback)",
                acquisition.slices,
                acquisition.frames,
                self.averaged_frames(),
                self.get(&[FRAMES_PER_VOLUME]).unwrap_or("no"),
                self.get(&[FRAMES_WITH_FLYBACK]).unwrap_or("no")
            )),
        }
    }

    /// Adds the number of flyback frames that older files give. They contain these frames even if ScanImage "discarded" them.
    fn with_discarded_frames(&self, acquisition: Acquisition) -> Result<Acquisition, String> {
        let discarded = ["hFastZ.numDiscardFlybackFrames", "SI5.fastZNumDiscardFrames", "SI4.fastZNumDiscardFrames"];
        let flyback = self.count(&discarded).unwrap_or(0);
        let all = self.count(&["hFastZ.numFramesPerVolume"]);
        let slices = all.and_then(|n| n.checked_sub(flyback)).filter(|n| *n > 0).unwrap_or(acquisition.slices);
        if flyback == 0 || slices <= 1 {
            return Ok(Acquisition { slices, ..acquisition });
        }
        let flags = ["hFastZ.discardFlybackFrames", "SI5.fastZDiscardFlybackFrames", "SI4.fastZDiscardFlybackFrames"];
        let image_type = self.get(&["SI5.fastZImageType", "SI4.fastZImageType"]).map(|text| text.trim_matches('\''));
        let repeats = self.count(&["SI5.acqNumFrames", "SI4.acqNumFrames"]).unwrap_or(1);
        let is_known = self.flag(&flags) != Some(false) && repeats == 1 && self.averaged_frames() == 1;
        if !is_known || image_type.is_some_and(|kind| kind != "XY-Z") {
            return Err(format!(
                "{flyback} flyback frames per volume of {slices} slices (discarded: {}, scan type {}, {repeats} frames per \
                 slice, means of {} frames)",
                self.get(&flags).unwrap_or("not stated"),
                image_type.unwrap_or("not stated"),
                self.averaged_frames()
            ));
        }
        Ok(Acquisition { slices, flyback, ..acquisition })
    }

    /// Returns the pixel size along Y and X in µm, computed from the corners of the field of view.
    fn pixel_um(&self, [height, width]: [usize; 2]) -> Option<[f64; 2]> {
        let corners = self.numbers(&["hRoiManager.imagingFovUm"]);
        let extent = |first: usize| {
            let values = || corners.iter().skip(first).step_by(2).copied();
            positive(values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min))
        };
        Some([extent(1)? / height.max(1) as f64, extent(0)? / width.max(1) as f64])
    }
}

/// Returns the image series of a ScanImage file whose pages have `shape_yx` pixels.
pub(crate) fn series(file: &TiffFile, settings: &Settings, pages: &[u32], shape_yx: [usize; 2]) -> Series {
    let saved = settings.saved_channels();
    let order = match settings.acquisition(saved.len()) {
        Ok(acquisition) => order(pages.len(), &acquisition),
        Err(stated) => {
            let why = "the order of its planes is unknown, so they are read as slices";
            Order::slices(pages.len(), saved.len(), format!("the ScanImage file has {stated}: {why}"))
        }
    };
    let dims = order.dims;
    let extent = |axis: Axis| dims.iter().find(|(known, _)| *known == axis).map_or(1, |(_, n)| *n);
    let step = settings.number(&[
        "hStackManager.actualStackZStepSize",
        "hStackManager.stackZStepSize",
        "SI5.stackZStepSize",
        "SI4.stackZStepSize",
        "acq.zStepSize",
    ]);
    let frame_rate = ["hRoiManager.scanFrameRate", "SI5.scanFrameRate", "SI4.scanFrameRate", "acq.frameRate"];
    let rate = match (order.volumes > 1, order.frames > 1) {
        (true, false) => settings.number(&["hRoiManager.scanVolumeRate"]),
        (false, true) => settings.number(&frame_rate).map(|hz| hz / settings.averaged_frames() as f64),
        // With several volumes and several frames per slice, intervals are not uniform.
        _ => None,
    };
    let stated = plain_resolution(file);
    let view_um = settings.pixel_um(shape_yx);
    let names = saved.iter().map(|number| settings.channel_name(*number));
    let plane = |index: usize| pages.get(index).map(|page| PlaneRef { file: 0, page: *page, slice: 0 });
    Series {
        format: FileFormat::ScanImage,
        planes: order.pages.iter().map(|index| plane((*index)?)).collect(),
        unread_pages: pages.len().saturating_sub(order.pages.iter().flatten().count()),
        voxel_size_um: VoxelSize {
            z: step.and_then(|um| positive(um.abs())).filter(|_| extent(Axis::Z) > 1),
            y: stated.y.or(view_um.map(|um| um[0])),
            x: stated.x.or(view_um.map(|um| um[1])),
        },
        time_interval_secs: rate.and_then(positive).map(|hz| 1.0 / hz).filter(|_| extent(Axis::T) > 1),
        channels: if extent(Axis::C) == saved.len() {
            names.map(|name| Channel { name, color_rgb: None }).collect()
        } else {
            Vec::new()
        },
        dims,
        read_as_slices: order.read_as_slices,
        ..Series::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_channels_with_anything_but_numbers_is_ignored_as_a_whole() {
        let channels = |list: &str| {
            let values = values(&format!("SI.hChannels.channelSave = {list}"));
            Settings { values, first_frame: None }.saved_channels()
        };
        assert_eq!(channels("[1;3]"), [1, 3]);
        assert_eq!(channels("[1;x;3]"), [1]);
    }
}

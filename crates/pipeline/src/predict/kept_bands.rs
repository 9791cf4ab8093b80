//! Bands of a pass that are finished while its slices are not.
//!
//! Slices that are too large for the memory budget pass in bands of rows and columns, so they are complete only once the
//! last band is. An interrupted pass therefore also keeps what its earlier bands have stored, with a record of their number
//! and the checksum of their values. The next run continues after them if its bands have the same rows and columns, and the
//! same device computes them in the same precision.

use super::pass_plan::PassBand;
use cytoscope_engine::{DeviceId, Precision};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

/// Values that are read at once; at least one row.
const VALUES_AT_ONCE: usize = 1 << 16;

/// Record of finished bands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptBands {
    /// Index of their time point among those that are predicted.
    index: usize,
    /// The first slice on the model's grid that they cover; they end with the last slice of the time point.
    first_z: usize,
    /// Where the kept rows and the kept columns of all bands end.
    ends: [Vec<usize>; 2],
    /// Number of finished bands, in the order of the pass.
    count: usize,
    /// Device that computed them.
    device: DeviceId,
    /// Precision in which the network ran.
    pub precision: Precision,
    /// CRC-32 of their values.
    crc32: u32,
}

/// Where the slices of a time point are in a file: slices of all channels, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlicesInFile {
    /// Index of the time point among those that are predicted.
    pub index: usize,
    /// Z, Y, X of a time point on the model's grid.
    pub grid: [usize; 3],
    /// Number of channels of a slice.
    pub channels: usize,
}

/// The bands of the pass over a time point.
pub(super) struct BandProgress {
    slices: SlicesInFile,
    first_z: usize,
    /// Kept rows and columns of each band, in the order of the pass.
    parts: Vec<[Range<usize>; 2]>,
    /// Number of finished bands.
    finished: usize,
    /// Number of finished bands that are part of the checksum.
    checked: usize,
    checksum: crc32fast::Hasher,
    device: DeviceId,
    precision: Precision,
}

impl BandProgress {
    /// Returns the bands of a pass over the slices from `first_z` on, none of which is finished; `None` if whole slices pass.
    pub(super) fn new(
        bands: &[PassBand],
        slices: SlicesInFile,
        first_z: usize,
        (device, precision): (DeviceId, Precision),
    ) -> Option<Self> {
        let [_, height, width] = slices.grid;
        let inside = |range: Range<usize>, extent: usize| range.start.min(extent)..range.end.min(extent);
        let part =
            |band: &PassBand| [inside(band.rows.kept.clone(), height), inside(band.columns.kept_in_volume(), width)];
        let parts: Vec<[Range<usize>; 2]> = bands.iter().map(part).collect();
        let checksum = crc32fast::Hasher::new();
        (parts.len() > 1).then_some(Self {
            slices,
            first_z,
            parts,
            finished: 0,
            checked: 0,
            checksum,
            device,
            precision,
        })
    }

    /// Returns the index of the time point.
    pub(super) fn index(&self) -> usize {
        self.slices.index
    }

    /// Returns the number of finished bands, and of all bands.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.finished, self.parts.len()]
    }

    /// Returns the voxels of a slice in the finished bands.
    pub(super) fn finished_area(&self) -> usize {
        self.parts.iter().take(self.finished).map(|[rows, columns]| rows.len() * columns.len()).sum()
    }

    /// Continues after the bands of an interrupted run; returns whether that is possible.
    pub(super) fn continue_after(&mut self, earlier: &KeptBands, file: &mut File) -> bool {
        let is_same = (earlier.index, &earlier.ends) == (self.slices.index, &self.ends())
            && (earlier.device, earlier.precision) == (self.device, self.precision)
            && earlier.first_z <= self.first_z
            && (1..self.parts.len()).contains(&earlier.count);
        if !is_same {
            return false;
        }
        let first_z = std::mem::replace(&mut self.first_z, earlier.first_z);
        self.finished = earlier.count;
        // A file that cannot be read holds no finished bands.
        if self.add_finished(file).is_ok() && self.crc32() == earlier.crc32 {
            return true;
        }
        (self.first_z, self.finished, self.checked, self.checksum) = (first_z, 0, 0, crc32fast::Hasher::new());
        false
    }

    /// States that the next band is finished.
    pub(super) fn finish_band(&mut self) {
        self.finished += 1;
    }

    /// Returns the record of the finished bands; `None` if there are none. With the last band, slices are complete.
    ///
    /// # Errors
    /// If their values cannot be read.
    pub(super) fn record(&mut self, file: &mut File) -> io::Result<Option<KeptBands>> {
        self.add_finished(file)?;
        if self.checked == 0 {
            return Ok(None);
        }
        let SlicesInFile { index, .. } = self.slices;
        let (first_z, ends, count, crc32) = (self.first_z, self.ends(), self.checked, self.crc32());
        Ok(Some(KeptBands { index, first_z, ends, count, device: self.device, precision: self.precision, crc32 }))
    }

    fn ends(&self) -> [Vec<usize>; 2] {
        [0, 1].map(|axis| {
            let mut ends: Vec<usize> = self.parts.iter().map(|part| part[axis].end).collect();
            ends.sort_unstable();
            ends.dedup();
            ends
        })
    }

    /// Adds the finished bands that are not part of the checksum yet, except the last one.
    fn add_finished(&mut self, file: &mut File) -> io::Result<()> {
        let end = self.finished.min(self.parts.len().saturating_sub(1));
        while self.checked < end {
            if let Some(part) = self.parts.get(self.checked).cloned() {
                self.add_part(&part, file)?;
            }
            self.checked += 1;
        }
        Ok(())
    }

    fn add_part(&mut self, [rows, columns]: &[Range<usize>; 2], file: &mut File) -> io::Result<()> {
        let SlicesInFile { index, grid: [depth, height, width], channels } = self.slices;
        let at_once = (VALUES_AT_ONCE / width.max(1)).max(1);
        let [row_bytes, kept_bytes] = [width, columns.len()].map(|values| values * size_of::<f32>());
        let mut buffer = Vec::new();
        for slice in (index * depth + self.first_z) * channels..(index + 1) * depth * channels {
            for first in rows.clone().step_by(at_once) {
                let count = at_once.min(rows.end - first);
                let at = ((slice * height + first) * width + columns.start) as u64 * size_of::<f32>() as u64;
                // The file may end with the columns of these bands.
                buffer.resize((count - 1) * row_bytes + kept_bytes, 0u8);
                file.seek(SeekFrom::Start(at))?;
                file.read_exact(&mut buffer)?;
                for row in buffer.chunks(row_bytes.max(1)) {
                    self.checksum.update(row.get(..kept_bytes).unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    fn crc32(&self) -> u32 {
        self.checksum.clone().finalize()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::super::pass_plan::pass_bands;
    use super::*;
    use cytoscope_engine::Band;
    use cytoscope_volume::tile::Span;
    use std::io::Write;

    /// Two time points of 3 slices of 5 × 7 voxels, two channels.
    const SLICES: SlicesInFile = SlicesInFile { index: 1, grid: [3, 5, 7], channels: 2 };

    /// Four bands; the last row is outside the volume.
    fn bands(first_rows: usize) -> Vec<PassBand> {
        let rows = [0..first_rows, first_rows..6].map(|kept| Band { fed: 0..6, kept });
        let columns = [(0, 4), (4, 3)].map(|(keep_start, keep_len)| Span { start: 0, len: 7, keep_start, keep_len });
        pass_bands(&rows, &columns)
    }

    fn progress(first_rows: usize, precision: Precision) -> BandProgress {
        BandProgress::new(&bands(first_rows), SLICES, 1, (DeviceId::Cpu, precision)).unwrap()
    }

    #[test]
    fn bands_are_continued_if_they_are_the_same_and_their_values_unchanged() {
        let mut file = tempfile::tempfile().unwrap();
        let values: Vec<u8> = (0..2 * 3 * 2 * 5 * 7 * 4).map(|i| (i % 251) as u8).collect();
        file.write_all(&values).unwrap();
        let mut written = progress(3, Precision::F32);
        assert_eq!(written.record(&mut file).unwrap(), None);
        written.finish_band();
        let first = written.record(&mut file).unwrap().unwrap();
        written.finish_band();
        let second = written.record(&mut file).unwrap().unwrap();
        assert_ne!(first, second);
        let mut next = progress(3, Precision::F32);
        assert!(next.continue_after(&second, &mut file));
        // Rows 0 to 2 and 3 to 4 of the first four columns.
        assert_eq!((next.counts(), next.finished_area()), ([2, 4], 5 * 4));
        assert_eq!(next.record(&mut file).unwrap(), Some(second.clone()));
        assert!(!progress(2, Precision::F32).continue_after(&second, &mut file), "other rows");
        assert!(!progress(3, Precision::Int8).continue_after(&second, &mut file), "another precision");
        // Changes outside the finished bands do not matter: in another time point, in an earlier slice, in other columns.
        let slice = |z: usize, channel: usize| ((3 + z) * 2 + channel) * 5 * 7;
        // The rest of the last row is not written before the other bands.
        file.set_len((slice(2, 1) + 4 * 7 + 4) as u64 * 4).unwrap();
        assert!(progress(3, Precision::F32).continue_after(&second, &mut file));
        let mut change = |at: usize| {
            file.seek(SeekFrom::Start(at as u64 * 4)).unwrap();
            file.write_all(&[255; 4]).unwrap();
            progress(3, Precision::F32).continue_after(&second, &mut file)
        };
        assert!(change(0) && change(slice(0, 1)) && change(slice(1, 0) + 4) && change(slice(2, 1) + 4 * 7 + 6));
        assert!(!change(slice(2, 1) + 4 * 7 + 3), "its last voxel");
    }

    #[test]
    fn whole_slices_have_no_bands_and_the_last_band_is_not_recorded() {
        let whole = [Band { fed: 0..6, kept: 0..6 }];
        let columns = [Span { start: 0, len: 7, keep_start: 0, keep_len: 7 }];
        let on_cpu = (DeviceId::Cpu, Precision::F32);
        assert!(BandProgress::new(&pass_bands(&whole, &columns), SLICES, 0, on_cpu).is_none());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 2 * 3 * 2 * 5 * 7 * 4]).unwrap();
        let mut progress = progress(3, Precision::F32);
        (0..4).for_each(|_| progress.finish_band());
        assert_eq!(progress.record(&mut file).unwrap().unwrap().count, 3);
        // A file that is too short holds no finished bands.
        let earlier = progress.record(&mut file).unwrap().unwrap();
        file.set_len(100).unwrap();
        let mut next = self::progress(3, Precision::F32);
        assert!(!next.continue_after(&earlier, &mut file));
        assert_eq!(next.counts(), [0, 4]);
    }
}

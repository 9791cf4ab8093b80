//! The order of ScanImage's planes, and the frames that it stores while a fast focus returns to the first slice.
//!
//! As in ScanImage's own functions `opentif` and `extractHeaderData` (2015 to 2022): channels are the fastest axis, then
//! the frames of a slice, slices and volumes. The flyback frames of a volume come after its last slice.

use cytoscope_volume::Axis;

/// How the planes of a file were acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acquisition {
    /// Number of saved channels, at least 1.
    pub channels: usize,
    /// Number of slices of a volume, at least 1.
    pub slices: usize,
    /// Number of stored frames of a slice, which follow each other; at least 1.
    pub frames: usize,
    /// Number of frames at the end of each volume that show no slice.
    pub flyback: usize,
    /// Number of frames of the same acquisition that are in earlier files.
    pub earlier_frames: usize,
}

/// The pages of a file in the order of their axes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// Leading axes and their extents, slowest first.
    pub dims: Vec<(Axis, usize)>,
    /// The page of each plane, in the order of `dims`; `None` for planes of the last volume that were not acquired.
    pub pages: Vec<Option<usize>>,
    /// Number of volumes that follow each other; 1 without slices.
    pub volumes: usize,
    /// Number of frames that follow each other at the same depth.
    pub frames: usize,
    /// Why the order is not known, as a sentence, if all pages are slices for that reason.
    pub read_as_slices: Option<String>,
}

impl Order {
    /// All pages as slices, where their order is not known; `why` is a sentence.
    pub fn slices(pages: usize, channels: usize, why: String) -> Self {
        let channels = if channels > 0 && pages.is_multiple_of(channels) { channels } else { 1 };
        let slices = Self::as_stored(&[(Axis::Z, pages / channels), (Axis::C, channels)], pages, 1, 1);
        Self { read_as_slices: Some(why), ..slices }
    }

    fn as_stored(dims: &[(Axis, usize)], pages: usize, volumes: usize, frames: usize) -> Self {
        Self { dims: dims.to_vec(), pages: (0..pages).map(Some).collect(), volumes, frames, read_as_slices: None }
    }

    /// Time points, slices and channels of volumes that begin every `per_volume` planes.
    fn volumes(planes: usize, volumes: usize, per_volume: usize, acquisition: &Acquisition) -> Self {
        let Acquisition { channels, slices, frames, .. } = *acquisition;
        let mut pages = Vec::with_capacity(volumes * frames * slices * channels);
        for volume in 0..volumes {
            for frame in 0..frames {
                for slice in 0..slices {
                    let plane = volume * per_volume + slice * frames + frame;
                    pages.extend((0..channels).map(|c| (plane < planes).then_some(plane * channels + c)));
                }
            }
        }
        let dims = vec![(Axis::T, volumes * frames), (Axis::Z, slices), (Axis::C, channels)];
        Self { dims, pages, volumes, frames, read_as_slices: None }
    }
}

/// Returns the order of the pages of a file.
pub(super) fn order(pages: usize, acquisition: &Acquisition) -> Order {
    let Acquisition { channels, slices, frames, flyback, .. } = *acquisition;
    if channels == 0 || !pages.is_multiple_of(channels) {
        let why =
            format!("ScanImage saved {channels} channels, but the file has {pages} pages: they are read as slices");
        return Order::slices(pages, 1, why);
    }
    let planes = pages / channels;
    if slices <= 1 {
        return Order::as_stored(&[(Axis::T, planes), (Axis::C, channels)], pages, 1, planes);
    }
    let kept = slices.saturating_mul(frames.max(1));
    let per_volume = kept.saturating_add(flyback);
    let (complete, rest) = (planes / per_volume, planes % per_volume);
    if flyback > 0 {
        return without_flyback(pages, kept, acquisition);
    }
    let stored =
        |outer, inner, volumes, frames| Order::as_stored(&[outer, inner, (Axis::C, channels)], pages, volumes, frames);
    match (complete, rest, frames) {
        // The frames of a slice follow each other.
        (1, 0, _) => stored((Axis::Z, slices), (Axis::T, frames), 1, frames),
        (_, 0, 1) => stored((Axis::T, complete), (Axis::Z, slices), complete, 1),
        (_, 0, _) => Order::volumes(planes, complete, per_volume, acquisition),
        // Slices whose frames were averaged.
        _ if planes.is_multiple_of(slices) => stored((Axis::T, planes / slices), (Axis::Z, slices), planes / slices, 1),
        _ => {
            let why =
                format!("ScanImage declares {slices} slices, but there are {planes} planes: they are read as slices");
            Order::slices(pages, channels, why)
        }
    }
}

/// The order of volumes of `kept` planes, each followed by its flyback frames, which are left out.
fn without_flyback(pages: usize, kept: usize, acquisition: &Acquisition) -> Order {
    let Acquisition { channels, flyback, earlier_frames, .. } = *acquisition;
    let (planes, per_volume) = (pages / channels, kept.saturating_add(flyback));
    let (complete, rest) = (planes / per_volume, planes % per_volume);
    if !earlier_frames.is_multiple_of(per_volume) {
        let why = format!(
            "the ScanImage file begins in the middle of a volume, with frame {} of an acquisition of {per_volume} frames \
             per volume: its planes are read as slices, and so are {flyback} flyback frames per volume",
            earlier_frames.saturating_add(1)
        );
        return Order::slices(pages, channels, why);
    }
    if complete == 0 && rest < kept {
        let why =
            format!("ScanImage declares volumes of {kept} planes, but there are {planes}: they are read as slices");
        return Order::slices(pages, channels, why);
    }
    if (1..kept).contains(&rest) {
        tracing::warn!(
            "ScanImage was stopped after {rest} of the {kept} planes of the last volume: the others are read as zeros"
        );
    }
    Order::volumes(planes, complete + usize::from(rest > 0), per_volume, acquisition)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Acquisition = Acquisition { channels: 1, slices: 3, frames: 1, flyback: 0, earlier_frames: 0 };

    /// The pages of the planes, and the extents along T, Z, C.
    fn arranged(pages: usize, of: Acquisition) -> (Vec<Option<usize>>, [usize; 3]) {
        let order = order(pages, &of);
        let extent = |axis| order.dims.iter().find(|(known, _)| *known == axis).map_or(1, |(_, n)| *n);
        (order.pages, [extent(Axis::T), extent(Axis::Z), extent(Axis::C)])
    }

    #[test]
    fn flyback_frames_at_the_end_of_each_volume_are_left_out() {
        let of = Acquisition { flyback: 2, ..PLAIN };
        let (pages, extents) = arranged(10, of);
        assert_eq!((extents, pages), ([2, 3, 1], [0, 1, 2, 5, 6, 7].map(Some).to_vec()));
        // Stopped before the flyback of the last volume, and in the middle of its slices.
        assert_eq!(arranged(8, of).0, [0, 1, 2, 5, 6, 7].map(Some));
        let (pages, extents) = arranged(7, of);
        assert_eq!((extents, pages.last()), ([2, 3, 1], Some(&None)));
        assert_eq!(arranged(3, of), ([0, 1, 2].map(Some).to_vec(), [1, 3, 1]));
        // Channels are pages of the same frame.
        let (pages, extents) = arranged(20, Acquisition { channels: 2, ..of });
        assert_eq!(extents, [2, 3, 2]);
        assert_eq!(pages, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15].map(Some));
    }

    #[test]
    fn the_frames_of_a_slice_come_before_the_next_slice_in_every_volume() {
        let of = Acquisition { frames: 2, ..PLAIN };
        let (pages, extents) = arranged(12, of);
        assert_eq!(extents, [4, 3, 1]);
        assert_eq!(pages, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11].map(Some));
        let (pages, extents) = arranged(14, Acquisition { flyback: 1, ..of });
        assert_eq!(extents, [4, 3, 1]);
        assert_eq!(pages, [0, 2, 4, 1, 3, 5, 7, 9, 11, 8, 10, 12].map(Some));
    }

    #[test]
    fn orders_that_are_not_known_are_slices() {
        let of = Acquisition { flyback: 2, ..PLAIN };
        assert_eq!(arranged(2, of).1, [1, 2, 1], "less than a volume");
        assert_eq!(arranged(10, Acquisition { earlier_frames: 3, ..of }).1, [1, 10, 1], "in the middle of a volume");
        assert_eq!(arranged(10, Acquisition { earlier_frames: 15, ..of }).1, [2, 3, 1]);
        assert_eq!(arranged(7, Acquisition { channels: 2, ..PLAIN }).1, [1, 7, 1]);
        let huge = Acquisition { slices: 1 << 40, frames: 1 << 40, flyback: 1 << 40, ..PLAIN };
        assert_eq!(arranged(7, huge).1, [1, 7, 1]);
    }
}

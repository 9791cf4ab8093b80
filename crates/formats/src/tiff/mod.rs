//! Reading of TIFF, ImageJ TIFF, OME-TIFF, numbered TIFF files, Zeiss LSM, MetaMorph STK, Olympus FluoView and ScanImage:
//! container, pages, series and pixels.

pub(crate) mod file;
pub(crate) mod fluoview;
pub(crate) mod ifd;
pub(crate) mod imagej;
pub(crate) mod lsm;
pub(crate) mod ome;
pub(crate) mod ome_xml;
pub(crate) mod orientation;
pub(crate) mod page;
pub(crate) mod plan;
mod pyramid;
pub(crate) mod read;
pub(crate) mod sample_axis;
pub(crate) mod scanimage;
mod scanimage_order;
pub(crate) mod series;
mod shaped;
pub(crate) mod shared_strips;
pub(crate) mod slices;
pub(crate) mod stk;

//! Reading and writing of every format, with files that other programs wrote, files made by the tests, and hostile ones.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bounded;
mod cellpose;
#[path = "../common/mod.rs"]
mod common;
mod czi;
mod dialect_seeds;
mod dialects;
mod docs;
mod hdf5;
mod large_files;
mod lif;
mod metaimage;
mod mrc;
mod nd2;
mod nifti;
mod npy;
mod nrrd;
mod olympus;
mod ome_sets;
mod ome_zarr;
mod ome_zarr_codecs;
mod ome_zarr_hostile;
mod ome_zarr_pcodec;
mod ome_zarr_plates;
mod ome_zarr_zip;
mod raster;
mod reader;
mod real_files;
mod roi;
mod round_trip;
mod slide;
#[cfg(unix)]
mod special;
mod tiff_descriptions;
mod tiff_tags;
mod zarr_arrays;

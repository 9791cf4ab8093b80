//! HDF5 files: stacks of Imaris, views of BigDataViewer, and datasets of other programs, such as ilastik.
//!
//! The crate `hdf5-reader` reads the structure of the files and decodes chunks; only those that a region touches are read.

mod bdv;
mod bdv_xml;
mod bitshuffle;
mod chunk_tree;
mod dataset;
mod file;
mod filters;
mod imaris;
mod links;
mod pixels;
mod samples;

use crate::{
    error::{Fault, Remedy, choose_index},
    limits::Limits,
    names::on_disk,
    opening::OpenOptions,
    reader::Opened,
    source::{Counters, Source},
};
use cytoscope_storage::{counted, write::parent_folder};
use file::File;
use std::{path::Path, sync::Arc};

/// First bytes of an HDF5 file.
const MAGIC: &[u8] = b"\x89HDF\r\n\x1a\n";

/// Advice for files that are not supported.
const EXPORT: &str = "export it as OME-TIFF, for example with Fiji";

/// Whether the first bytes of a file are those of an HDF5 file, or of the XML of BigDataViewer, which names one.
pub(crate) fn looks_like_hdf5(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || bdv_xml::is_one(head)
}

/// Whether an HDF5 file is described by the XML of BigDataViewer beside it.
pub(crate) fn is_described(path: &Path) -> bool {
    bdv_xml::beside(path, &Limits::default(), &Arc::default()).is_ok_and(|found| found.is_some())
}

/// Opens one image of a file with the first bytes `head`; its path names the folder of the files that belong to it.
pub(crate) fn open(
    path: &Path,
    source: Source,
    head: &[u8],
    options: &OpenOptions,
    counters: &Arc<Counters>,
) -> Result<Opened, Fault> {
    if !head.starts_with(MAGIC) {
        return open_xml(path, &source, options, counters);
    }
    let file = File::open(source, parent_folder(path), &options.limits, counters)?;
    let root = file.root()?;
    if imaris::is_imaris(&file, &root)? {
        return imaris::open(file, path, options);
    }
    match bdv::stored_views(&file, &root)? {
        Some(views) => bdv::open(file, path, views, bdv_xml::beside(path, &options.limits, counters)?, options),
        None => dataset::open(file, path, options),
    }
}

/// Opens one image of BigDataViewer by its XML, which names the HDF5 file.
fn open_xml(path: &Path, source: &Source, options: &OpenOptions, counters: &Arc<Counters>) -> Result<Opened, Fault> {
    let description = bdv_xml::read(source, &options.limits)?;
    let Some(name) = description.hdf5.clone() else {
        let problem = "the pixels that the XML of BigDataViewer describes are not in an HDF5 file";
        return Err(Fault::unsupported(problem, EXPORT));
    };
    let folder = parent_folder(path);
    let stored = on_disk(folder, Path::new(&name));
    let Some(source) = Source::inside(folder, &stored, Arc::clone(counters))? else {
        let problem = format!("the file with the pixels, {name:?}, is not in its folder");
        return Err(Fault::unsupported(problem, "copy both files into one folder"));
    };
    let pixels = folder.join(stored);
    let file = File::open(source, parent_folder(&pixels), &options.limits, counters)?;
    let root = file.root()?;
    let Some(views) = bdv::stored_views(&file, &root)? else {
        return Err(Fault::malformed(format!("the file {name:?} has no views of BigDataViewer")));
    };
    bdv::open(file, &pixels, views, Some((path.to_owned(), description)), options)
}

/// Checks the number of a series among `count` ones, which are called `what`.
fn check_series(options: &OpenOptions, count: usize, what: &str) -> Result<(), Fault> {
    let limit = options.limits.max_pages;
    if count as u64 > limit {
        return Err(Fault::over("the number of images", count as u64, "max_pages", limit, Remedy::Split));
    }
    if options.series >= count {
        let problem = format!("there is no series {}: the file has {}", options.series, counted(count, what));
        return Err(Fault::Misused(problem.into(), choose_index(count).into()));
    }
    Ok(())
}

/// Checks the size of the names of all series.
fn check_names(names: &[String], limits: &Limits) -> Result<(), Fault> {
    let bytes = names.iter().fold(0u64, |bytes, name| bytes.saturating_add(name.len() as u64));
    if bytes > limits.max_metadata_bytes {
        let (what, limit) = ("the size of the names of its images", limits.max_metadata_bytes);
        return Err(Fault::over(what, bytes, "max_metadata_bytes", limit, Remedy::Split));
    }
    Ok(())
}

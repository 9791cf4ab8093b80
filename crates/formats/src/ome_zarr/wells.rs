//! The images of the wells of a plate. For plates on disk they are kept in this process, because each series of a plate is
//! opened on its own: the metadata of a well are read again only if they have changed.

use super::{
    METADATA_NAMES,
    folder::Folder,
    multiscales::{check_image_count, well_images},
};
use crate::error::Fault;
use rayon::prelude::*;
use std::{
    collections::{HashMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

/// Number of plates that are kept, those opened last.
const MAX_PLATES: usize = 4;
/// Largest size in bytes of the paths of the wells and images of a plate that is kept.
const MAX_KEPT_BYTES: usize = 8 << 20;
/// Metadata are kept if they were last changed longer than this before they were read. File systems round the time of a
/// change by up to two seconds, so that a further change might have the same time.
const SETTLED_AFTER: Duration = Duration::from_secs(3);

/// Name of the metadata file that a group is read from, its size in bytes, and the time of its last change.
type Stamp = (&'static str, u64, SystemTime);

/// A stored well.
#[derive(Debug)]
struct Well {
    stamp: Stamp,
    /// Paths of its images inside the plate.
    images: Vec<String>,
}

/// The wells of a plate by their paths.
type Wells = HashMap<String, Arc<Well>>;

/// The wells of the plates that were opened last, by the path of the plate; the newest plate is the last one.
static PLATES: Mutex<VecDeque<(PathBuf, Arc<Wells>)>> = Mutex::new(VecDeque::new());

/// Returns the paths of the images of these wells, well by well. Wells that are not stored are left out.
///
/// # Errors
/// [`Fault`] if the metadata of a well cannot be read or are invalid, or if there are too many images.
pub(super) fn images_of_wells(folder: &Folder, wells: &[&str]) -> Result<Vec<String>, Fault> {
    let plate = folder.on_disk().and_then(|root| std::fs::canonicalize(root).ok());
    let kept = plate.as_deref().map(kept_wells).unwrap_or_default();
    let unchanged: Vec<Option<&Arc<Well>>> = wells
        .par_iter()
        .map(|path| {
            let well = kept.get(*path)?;
            (stamp(&plate.as_deref()?.join(path))? == well.stamp).then_some(well)
        })
        .collect();
    let began = SystemTime::now();
    let (mut images, mut now) = (Vec::new(), Wells::new());
    for (path, unchanged) in wells.iter().zip(unchanged) {
        if let Some(well) = unchanged {
            images.extend(well.images.iter().cloned());
            now.insert((*path).to_owned(), Arc::clone(well));
        } else if let Some(group) = folder.group(path)? {
            let found = well_images(&group, path)?;
            images.extend(found.iter().cloned());
            // The well has been read, so its path stays inside the plate.
            let stamp = plate.as_deref().and_then(|plate| stamp(&plate.join(path)));
            let settled = stamp.filter(|(_, _, changed)| is_settled(*changed, began));
            now.extend(settled.map(|stamp| ((*path).to_owned(), Arc::new(Well { stamp, images: found }))));
        }
        check_image_count(images.len())?;
    }
    if let Some(plate) = plate {
        keep(plate, now);
    }
    Ok(images)
}

/// The kept wells of a plate; none if it is not kept.
fn kept_wells(plate: &Path) -> Arc<Wells> {
    let plates = PLATES.lock().unwrap_or_else(PoisonError::into_inner);
    plates.iter().find(|(path, _)| path == plate).map(|(_, wells)| Arc::clone(wells)).unwrap_or_default()
}

/// Keeps the wells of a plate as those of the newest one.
fn keep(plate: PathBuf, wells: Wells) {
    let bytes: usize =
        wells.iter().map(|(path, well)| path.len() + well.images.iter().map(String::len).sum::<usize>()).sum();
    let mut plates = PLATES.lock().unwrap_or_else(PoisonError::into_inner);
    plates.retain(|(path, _)| *path != plate);
    if bytes <= MAX_KEPT_BYTES {
        plates.push_back((plate, Arc::new(wells)));
    }
    while plates.len() > MAX_PLATES {
        plates.pop_front();
    }
}

/// The stamp of the group in a folder; `None` if it has no metadata.
fn stamp(group: &Path) -> Option<Stamp> {
    METADATA_NAMES.into_iter().find_map(|name| {
        let file = group.join(name).metadata().ok()?;
        Some((name, file.len(), file.modified().ok()?))
    })
}

/// Whether a change of a file was long enough before a moment for a later change to have another time.
fn is_settled(changed: SystemTime, moment: SystemTime) -> bool {
    moment.duration_since(changed).is_ok_and(|age| age > SETTLED_AFTER)
}

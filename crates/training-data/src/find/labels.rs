//! Images with several label images, such as nuclei and cells: files `x_nuclei_labels.tif` and `x_cells_labels.tif`,
//! folders `masks/nuclei` and `masks/cells`, or columns of a table. Training uses one of them.

use super::names::strip_suffix_ignoring_case;
use super::suffixes::strip_target_suffix;
use super::{FindOptions, SearchResults};
use crate::dataset::{Problem, TrainingTask};
use crate::setting::{IN_SETTINGS, LABELS_CHANNEL};
use cytoscope_formats::ChannelRef;
use cytoscope_storage::message;
use std::path::Path;

/// Characters between the parts of a file name.
const SEPARATORS: [char; 3] = ['_', '-', '.'];
/// Maximum number of label images that are listed in a message.
const MAX_LISTED: usize = 16;

/// Returns the name of the label image to use; `None` if none is chosen by its name.
pub(crate) fn chosen_name(task: TrainingTask, options: &FindOptions) -> Option<&str> {
    match &options.labels_channel {
        Some(ChannelRef::Name(name)) if task == TrainingTask::Segmentation => {
            Some(name.trim()).filter(|name| !name.is_empty())
        }
        _ => None,
    }
}

/// Splits a stem such as `x_nuclei` at its last separator: `x` and `nuclei`.
pub(crate) fn split_name(stem: &str) -> Option<(&str, &str)> {
    let (rest, name) = stem.rsplit_once(|c: char| SEPARATORS.contains(&c))?;
    (!rest.is_empty() && !name.is_empty()).then_some((rest, name))
}

/// Returns `stem` without a separator and `name` at its end.
fn strip_name<'a>(stem: &'a str, name: &str) -> Option<&'a str> {
    SEPARATORS.iter().find_map(|separator| strip_suffix_ignoring_case(stem, &format!("{separator}{name}")))
}

/// Returns the stem of the image whose label image `name` a file with this stem is: `x` for `x_nuclei_labels` and
/// `x_labels_nuclei` if `name` is `nuclei`.
pub(crate) fn image_stem<'a>(stem: &'a str, name: &str) -> Option<&'a str> {
    let before = strip_target_suffix(stem).and_then(|rest| strip_name(rest, name));
    before.or_else(|| strip_name(stem, name).and_then(strip_target_suffix))
}

/// Adds a problem to an image or a folder for which none of these label images is used: none is chosen, or the chosen
/// one does not exist.
pub(crate) fn report_choice(file: &Path, names: &[String], chosen: Option<&str>, found: &mut SearchResults) {
    let listed = listed(names);
    let (problem, next_step) = match chosen {
        None => (
            format!("none of its label images is chosen: {listed}"),
            message!("set {LABELS_CHANNEL} {IN_SETTINGS} to the name of one of them"),
        ),
        Some(name) => (
            format!("it has no label image \"{name}\""),
            message!("its label images are {listed}: set {LABELS_CHANNEL} {IN_SETTINGS} to one of them"),
        ),
    };
    found.problems.push(Problem::error(file, problem, next_step));
}

/// Returns names in a row, in alphabetical order.
pub(crate) fn listed(names: &[String]) -> String {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let more = if names.len() > MAX_LISTED { ", …" } else { "" };
    names.truncate(MAX_LISTED);
    format!("{}{more}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_label_image_stands_before_or_after_the_suffix() {
        assert_eq!(image_stem("x_nuclei_labels", "nuclei"), Some("x"));
        assert_eq!(image_stem("x_1_Labels_Nuclei", "nuclei"), Some("x_1"));
        assert_eq!(image_stem("x-dead_cells-masks", "dead_cells"), Some("x"));
        assert_eq!(image_stem("x_cells_labels", "nuclei"), None);
        assert_eq!(image_stem("nuclei_labels", "nuclei"), None);
        assert_eq!(image_stem("x_nuclei", "nuclei"), None, "this may be an image of nuclei");
        assert_eq!(split_name("x_1_cells"), Some(("x_1", "cells")));
        assert_eq!(split_name("cells"), None);
        assert_eq!(split_name("_cells"), None);
    }

    #[test]
    fn a_long_list_of_label_images_is_shortened() {
        let names: Vec<String> = (0..40).map(|i| format!("n{i:02}")).collect();
        let text = listed(&names);
        assert!(text.starts_with("n00, n01") && text.ends_with("n15, …"), "{text}");
        assert_eq!(listed(&["b".to_owned(), "a".to_owned(), "b".to_owned()]), "a, b");
    }
}

//! Stacks with the same file name, which have the same result files in a folder that is chosen for both.

use super::Jobs;
use crate::document::{Document, Role};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use cytoscope_formats::{series_suffix, stack_stem};
use cytoscope_pipeline::Artifact;
use cytoscope_pipeline::predict::containing_maps;
use std::path::{Path, PathBuf};

impl Jobs {
    /// Removes the layers of open stacks whose files are the results of another stack by now, given by its file and series: the
    /// user has allowed a prediction to replace them.
    pub(super) fn remove_replaced_layers(
        &mut self,
        stack: &(PathBuf, usize),
        outputs: &[Artifact],
        documents: &Documents,
        effects: &mut Effects,
    ) {
        let (path, series) = stack;
        let stem = format!("{}{}", stack_stem(path), series_suffix(*series));
        let is_namesake = |other: &&Document| other.stem() == stem && (&other.path, other.series) != (path, *series);
        for other in documents.all().iter().filter(is_namesake) {
            let roles = replaced_layers(other, outputs);
            if roles.is_empty() {
                continue;
            }
            if roles.contains(&Role::Map) {
                self.discard_unsaved(other.id, "its map was replaced", effects);
            }
            for role in roles {
                effects.act(DocumentsAction::RemoveOverlay { document: other.id, role });
            }
            let details = format!(
                "The layers of {} were removed: {} has the same name, and its results have replaced them.",
                documents.title(other),
                path.display()
            );
            effects.info("Results of another stack were replaced", details);
        }
    }
}

/// The layers of a document whose files are among the outputs of a job, and the preview of objects in a map that is.
fn replaced_layers(document: &Document, outputs: &[Artifact]) -> Vec<Role> {
    let is_output = |path: &Path| outputs.iter().any(|output| containing_maps(&output.path) == containing_maps(path));
    let of = |role: Role| document.overlay_with_role(role);
    let is_map = of(Role::Map).is_some_and(|map| is_output(&map.path));
    let is_labels = of(Role::Labels).is_some_and(|labels| is_output(&labels.path) || (is_map && labels.is_preview));
    let roles = [(Role::Map, is_map), (Role::Labels, is_labels)];
    roles.into_iter().filter(|(_, is_replaced)| *is_replaced).map(|(role, _)| role).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::effect::{Effect, Wake};
    use crate::opener::Expanded;
    use crate::settings::Settings;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::ArtifactKind;
    use cytoscope_volume::Array;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Polls the documents until something has happened.
    fn wait(documents: &mut Documents, is_done: impl Fn(&Documents) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_done(documents) {
            assert!(Instant::now() < end, "it did not happen in time");
            let _ = documents.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn layers_whose_files_another_stack_of_the_same_name_has_replaced_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        let stacks = ["a", "b"].map(|folder| {
            let stack = home.path().join(folder).join("cells.tif");
            std::fs::create_dir(stack.parent().unwrap()).unwrap();
            write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
            stack
        });
        let labels = home.path().join("cells_labels.tif");
        write_array(&labels, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let files = Expanded { files: stacks.to_vec(), ..Expanded::default() };
        let _ = documents.listed(files, &Settings::default());
        wait(&mut documents, |documents| documents.all().len() == 2);
        let [first, second] =
            stacks.each_ref().map(|stack| documents.all().iter().find(|d| d.path == *stack).map(|d| d.id).unwrap());
        for document in [first, second] {
            let action = DocumentsAction::OpenOverlay { document, role: Role::Labels, path: labels.clone() };
            let _ = documents.apply(action);
            wait(&mut documents, |documents| {
                documents.get(document).is_some_and(|d| d.overlay_with_role(Role::Labels).is_some())
            });
        }
        let mut jobs = Jobs::new(None, None, None, &wake);
        let mut removed = |outputs: &[Artifact]| -> Vec<u64> {
            let mut effects = Effects::default();
            jobs.remove_replaced_layers(&(stacks[1].clone(), 0), outputs, &documents, &mut effects);
            let of = |effect: Effect| match effect {
                Effect::Act(Action::Documents(DocumentsAction::RemoveOverlay { document, .. })) => Some(document),
                _ => None,
            };
            effects.into_iter().filter_map(of).collect()
        };
        assert_eq!(removed(&[Artifact::new(ArtifactKind::Labels, &labels)]), [first]);
        assert!(removed(&[Artifact::new(ArtifactKind::Table, home.path().join("cells_objects.csv"))]).is_empty());
    }
}

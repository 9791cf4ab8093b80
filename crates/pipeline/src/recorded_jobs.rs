//! Inputs and outputs of the jobs of this crate, for their provenance records.

use crate::job_record::{JobKind, Recordable, beside};
use crate::packages::ImportJob;
use crate::{ConvertJob, EvaluateJob, ExportJob, MeasureJob, MeshJob, SegmentJob};
use std::iter::once;
use std::path::{Path, PathBuf};

impl Recordable for SegmentJob {
    const KIND: JobKind = JobKind::Segment;

    fn inputs(&self) -> Vec<&Path> {
        once(&self.map).chain(&self.intensities).map(PathBuf::as_path).collect()
    }

    fn outputs(&self) -> Vec<&Path> {
        self.labels.iter().chain(&self.table).map(PathBuf::as_path).collect()
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        once(&mut self.map).chain(&mut self.intensities).chain(&mut self.labels).chain(&mut self.table).collect()
    }

    crate::recordable_setters!(overwrite: overwrite);

    fn set_output(&mut self, out: PathBuf) {
        if let Some(table) = &mut self.table {
            *table = beside(&out, table);
        }
        // Written elsewhere, the labels replace nothing.
        self.replace_labels_of_map = false;
        self.labels = Some(out);
    }
}

impl Recordable for MeasureJob {
    const KIND: JobKind = JobKind::Measure;

    fn inputs(&self) -> Vec<&Path> {
        once(&self.labels).chain(&self.intensities).map(PathBuf::as_path).collect()
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.table.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        once(&mut self.labels).chain(&mut self.intensities).chain([&mut self.table]).collect()
    }

    crate::recordable_setters!(overwrite: overwrite, output: table);
}

impl Recordable for MeshJob {
    const KIND: JobKind = JobKind::Mesh;

    fn inputs(&self) -> Vec<&Path> {
        vec![self.labels.as_path()]
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.out.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.labels, &mut self.out]
    }

    crate::recordable_setters!(overwrite: overwrite, output: out);
}

impl Recordable for ConvertJob {
    const KIND: JobKind = JobKind::Convert;

    fn inputs(&self) -> Vec<&Path> {
        once(&self.input).chain(&self.labels).chain(&self.like).map(PathBuf::as_path).collect()
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.output.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        once(&mut self.input).chain(&mut self.labels).chain(&mut self.like).chain(once(&mut self.output)).collect()
    }

    crate::recordable_setters!(overwrite: overwrite, output: output);
}

impl Recordable for EvaluateJob {
    const KIND: JobKind = JobKind::Evaluate;

    fn inputs(&self) -> Vec<&Path> {
        vec![self.prediction.as_path(), self.truth.as_path()]
    }

    fn outputs(&self) -> Vec<&Path> {
        self.out.iter().map(PathBuf::as_path).collect()
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        once(&mut self.prediction).chain(once(&mut self.truth)).chain(&mut self.out).collect()
    }

    crate::recordable_setters!(overwrite: overwrite, output: out);
}

impl Recordable for ImportJob {
    const KIND: JobKind = JobKind::Import;

    fn inputs(&self) -> Vec<&Path> {
        vec![self.file.as_path()]
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.out.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.file, &mut self.out]
    }

    crate::recordable_setters!(overwrite: overwrite, output: out);
}

impl Recordable for ExportJob {
    const KIND: JobKind = JobKind::Export;

    fn inputs(&self) -> Vec<&Path> {
        Vec::new()
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.out.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.out]
    }

    fn model_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.model)
    }

    crate::recordable_setters!(overwrite: overwrite, output: out);
}

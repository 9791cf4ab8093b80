//! Networks on trial: scored, shown, and kept if they are the best.

use crate::checkpoint::Standing;
use crate::decode::{self, Care};
use crate::history::ValidationPoint;
use crate::package;
use crate::pictures::Section;
use crate::step::Stepper;
use crate::train::Training;
use crate::validate::Scores;
use cytoscope_engine::Precision;
use cytoscope_graph::package::PACKAGE_KIND;
use cytoscope_graph::{Graph, passes};
use cytoscope_pipeline::{Event, JobError};
use cytoscope_samples::TargetKind;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Scores so near one another are taken as equal.
const SCORE_NOISE: f64 = 0.01;

/// How a network did.
pub(crate) struct Tried {
    /// Scores with the settings for objects that there are.
    pub(crate) plain: Scores,
    /// Scores with those that suit it.
    pub(crate) tuned: Scores,
    /// What it made of each pair with the former, where that was asked for.
    pub(crate) seen: Vec<Option<Section>>,
    /// What it made of the pair that is shown, with the latter.
    pub(crate) live: Option<Section>,
}

impl Training<'_> {
    /// Writes a package that is only to be tried.
    pub(crate) fn plain(&self, graph: &Graph, to: &Path) -> Result<(), JobError> {
        let description = self.describe(json!({}), String::from("# Being taught\n"), "being taught".to_owned());
        if graph.outputs.len() == 1 {
            return package::write(&description, graph, to);
        }
        // What only teaching needs stays behind.
        let mut first = graph.clone();
        first.outputs.truncate(1);
        passes::eliminate_dead(&mut first);
        package::write(&description, &first, to)
    }

    /// Whether how objects are made of the maps is found by their score.
    pub(crate) fn tunes(&self) -> bool {
        let target = self.start.target;
        let parted = target.of_labels() && target != TargetKind::Semantic;
        parted && self.config.segment.is_none() && !self.validator.is_empty()
    }

    /// Scores of a network; with what it made of each pair, if that is to be shown.
    pub(crate) fn score(&self, graph: &Graph, show: bool) -> Result<Tried, JobError> {
        let path = self.folder.path.join("candidate");
        self.plain(graph, &path)?;
        let cancel = &self.context.cancel;
        let scores = if self.tunes() {
            let channel = package::seed_channel(self.start.target);
            decode::maps(cancel, self.devices, &self.validator, &path, channel).and_then(|maps| {
                let (options, [plain, tuned]) =
                    decode::tune(cancel, &self.validator, &maps, &self.segment, Care::Quick)?;
                let mut seen = vec![None; if show { self.validator.cases.len() } else { 0 }];
                for (map, to) in maps.iter().zip(&mut seen) {
                    *to = self.views.section(map.case(), &map.labels(&self.segment)?);
                }
                let live = match maps.iter().find(|map| Some(map.case()) == self.views.live()) {
                    Some(map) => self.views.section(map.case(), &map.labels(&options)?),
                    None => None,
                };
                Ok(Tried { plain, tuned, seen, live })
            })
        } else {
            let mut seen = Vec::new();
            let mut see = |case: usize, made: &[f32]| seen.push(self.views.section(case, made));
            let found = self.validator.score_seen(cancel, self.devices, &path, Some(Precision::F32), &mut see);
            let live = self.views.live().and_then(|case| seen.get(case)?.clone());
            found.map(|scores| Tried { plain: scores.clone(), tuned: scores, seen, live })
        };
        // One that stays is replaced by the next.
        let _ = cytoscope_storage::folder::remove_finished(&path, PACKAGE_KIND);
        scores
    }

    pub(crate) fn tell(&self, standing: &mut Standing, scores: &Scores, best: bool) {
        let point = ValidationPoint { step: standing.step, score: scores.score, scores: scores.scores.clone(), best };
        standing.history.validations.push(point);
        self.context.tell(&Event::Validated {
            step: standing.step,
            score: scores.score,
            scores: scores.scores.clone(),
            best,
        });
    }

    /// Shows what was made of a pair. Without a place for the picture training goes on without it.
    pub(crate) fn show(&self, step: u64, live: Option<&Section>) {
        let Some((case, live)) = self.views.live().zip(live) else { return };
        let Some((png, caption)) = self.views.shown(case, live).zip(self.views.caption(case)) else { return };
        let path = self.folder.shown();
        if cytoscope_storage::write::atomic_write(&path, &png).is_ok() {
            self.context.tell(&Event::Pictured { step, path, caption });
        }
    }

    /// Scores the network as it is, and keeps it if it is the best. False if it was cancelled: then it is still due.
    pub(crate) fn validate(&self, standing: &mut Standing, stepper: &Stepper) -> Result<bool, JobError> {
        let graph = stepper.folded()?;
        let began = Instant::now();
        let Tried { tuned: scores, live, .. } = match self.score(&graph, false) {
            Err(JobError::Cancelled) => return Ok(false),
            other => other?,
        };
        standing.validation_secs = began.elapsed().as_secs_f64();
        let better = standing.peak.is_none_or(|peak| scores.score > peak);
        // Few files make a noisy score: of networks that are as good, the one taught longer is kept.
        let near = standing.peak.is_none_or(|peak| scores.score > peak - SCORE_NOISE);
        let best = better || (near && standing.start_score.is_none_or(|start| scores.score > start));
        if best {
            self.plain(&graph, &self.folder.best(standing.step))?;
            standing.best = Some((scores.score, standing.step));
        }
        self.tell(standing, &scores, best);
        self.show(standing.step, live.as_ref());
        standing.peak = Some(standing.peak.map_or(scores.score, |peak| peak.max(scores.score)));
        standing.since_best = if better { 0 } else { standing.since_best + 1 };
        Ok(true)
    }
}

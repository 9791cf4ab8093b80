//! Networks on trial: scored, shown, and kept if they are the best.

use crate::budget::Extent;
use crate::checkpoint::Standing;
use crate::decode::{self, Care};
use crate::history::ValidationPoint;
use crate::package;
use crate::pictures::{Section, Views};
use crate::step::Stepper;
use crate::train::Training;
use crate::validate::{Scores, Validator};
use cytoscope_engine::Precision;
use cytoscope_graph::package::{PACKAGE_KIND, Package};
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
    /// The share of pairs and settings that were tried: 1, unless it was broken off for the time it took.
    pub(crate) share: f64,
    /// Seconds it took.
    pub(crate) secs: f64,
}

/// How a validation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validated {
    /// The scores are told and kept.
    Done,
    /// It was cancelled; it is still due.
    Cancelled,
    /// It was broken off for the time it took, and the next one can be smaller; it is still due.
    BrokenOff,
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

    /// Scores of a network; with what it made of each pair, if that is to be shown. It is broken off where it would take more of the
    /// minutes than it may.
    pub(crate) fn score(&self, graph: &Graph, show: bool) -> Result<Tried, JobError> {
        let began = Instant::now();
        let path = self.folder.path.join("candidate");
        self.plain(graph, &path)?;
        let tried = if self.tunes() { self.score_tuned(&path, began, show) } else { self.score_plain(&path, began) };
        // One that stays is replaced by the next.
        let _ = cytoscope_storage::folder::remove_finished(&path, PACKAGE_KIND);
        tried.map(|tried| Tried { secs: began.elapsed().as_secs_f64(), ..tried })
    }

    /// Scores with the settings for objects that suit it.
    fn score_tuned(&self, model: &Path, began: Instant, show: bool) -> Result<Tried, JobError> {
        let cancel = &self.context.cancel;
        let limit = self.budget().validation_limit();
        let channel = package::seed_channel(self.start.target);
        let until = limit.map(|limit| began + limit / 2);
        let maps = decode::maps(cancel, self.devices, &self.validator, model, channel, until)?;
        let until = limit.map(|limit| began + limit);
        let found = decode::tune(cancel, &self.validator, &maps, &self.segment, Care::Quick, until)?;
        let mut seen = vec![None; if show { self.validator.cases.len() } else { 0 }];
        for (map, to) in maps.iter().zip(&mut seen) {
            *to = self.views.section(map.case(), &map.labels(&self.segment)?);
        }
        let live = match maps.iter().find(|map| Some(map.case()) == self.views.live()) {
            Some(map) => self.views.section(map.case(), &map.labels(&found.options)?),
            None => None,
        };
        // Maps take about as long as the settings tried on them.
        let share = maps.len() as f64 / self.validator.cases.len().max(1) as f64 * (0.5 + 0.5 * found.share);
        Ok(Tried { plain: found.given, tuned: found.best, seen, live, share, secs: 0.0 })
    }

    /// Scores with the settings for objects that there are, or without any.
    fn score_plain(&self, model: &Path, began: Instant) -> Result<Tried, JobError> {
        let mut seen = Vec::new();
        let mut see = |case: usize, made: &[f32]| seen.push(self.views.section(case, made));
        let until = self.budget().validation_limit().map(|limit| began + limit);
        let (cancel, precision) = (&self.context.cancel, Some(Precision::F32));
        let scores = self.validator.score_seen(cancel, self.devices, model, precision, until, &mut see)?;
        let live = self.views.live().and_then(|case| seen.get(case)?.clone());
        let share = scores.pairs.len() as f64 / self.validator.cases.len().max(1) as f64;
        Ok(Tried { plain: scores.clone(), tuned: scores, seen, live, share, secs: 0.0 })
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

    /// Scores the network as it is, and keeps it if it is the best. Where that took too long for the minutes, the next validations look
    /// at less, and `before` and the best network are scored anew.
    pub(crate) fn validate(
        &mut self,
        standing: &mut Standing,
        stepper: &Stepper,
        before: &mut Option<Tried>,
    ) -> Result<Validated, JobError> {
        let graph = stepper.folded()?;
        let tried = match self.score(&graph, false) {
            Err(JobError::Cancelled) => return Ok(Validated::Cancelled),
            other => other?,
        };
        standing.took(tried.secs);
        let smaller = self.budget().smaller(self.validator.extent(), tried.secs, tried.share);
        if let Some(extent) = smaller.filter(|_| tried.share < 1.0) {
            return match self.look_at_less(standing, extent, before) {
                Ok(()) => Ok(Validated::BrokenOff),
                Err(JobError::Cancelled) => Ok(Validated::Cancelled),
                Err(error) => Err(error),
            };
        }
        let scores = tried.tuned;
        let better = standing.peak.is_none_or(|peak| scores.score > peak);
        // Few files make a noisy score: of networks that are as good, the one taught longer is kept.
        let near = standing.peak.is_none_or(|peak| scores.score > peak - SCORE_NOISE);
        let best = better || (near && standing.start_score.is_none_or(|start| scores.score > start));
        if best {
            self.plain(&graph, &self.folder.best(standing.step))?;
            standing.best = Some((scores.score, standing.step));
        }
        self.tell(standing, &scores, best);
        self.show(standing.step, tried.live.as_ref());
        standing.peak = Some(standing.peak.map_or(scores.score, |peak| peak.max(scores.score)));
        standing.since_best = if better { 0 } else { standing.since_best + 1 };
        match smaller.map_or(Ok(()), |extent| self.look_at_less(standing, extent, before)) {
            Ok(()) => Ok(Validated::Done),
            Err(JobError::Cancelled) => Ok(Validated::Cancelled),
            Err(error) => Err(error),
        }
    }

    /// Validates on fewer pairs, or parts of them, from now on. What has a score gets one on these; where that fails, a run that goes on
    /// validates as before.
    pub(crate) fn look_at_less(
        &mut self,
        standing: &mut Standing,
        extent: Extent,
        before: &mut Option<Tried>,
    ) -> Result<(), JobError> {
        let volume = |validator: &Validator| validator.voxels().iter().map(|v| *v as f64).sum::<f64>();
        let had = volume(&self.validator);
        let sentence = self.look_at(extent)?;
        standing.validation_secs *= volume(&self.validator) / had.max(1.0);
        self.score_anew(standing, before)?;
        standing.extent = Some(extent);
        let sentence = format!("{sentence} from step {} on, to keep to the minutes.", standing.step);
        self.context.note(sentence.clone());
        standing.history.notes.push(sentence);
        Ok(())
    }

    /// Other pairs to validate on, or parts of them; with a sentence without its end that says so.
    pub(crate) fn look_at(&mut self, extent: Extent) -> Result<String, JobError> {
        let had = self.validator.extent();
        self.validator = self.validator.resized(extent)?;
        self.views = Views::of(&self.validator, self.start.target);
        let now = self.validator.extent();
        let part = if now.voxels < had.voxels { " and at a part of each" } else { "" };
        Ok(format!("Validation looks at {} of {} pairs{part}", now.cases, self.validation.len()))
    }

    /// Scores of what training started from and of the best network, where they have any: those they had are of other images.
    pub(crate) fn score_anew(&self, standing: &mut Standing, before: &mut Option<Tried>) -> Result<(), JobError> {
        let start = if before.is_some() || standing.start_score.is_some() {
            Some(self.score(&self.start.graph, true)?)
        } else {
            None
        };
        let score = start.as_ref().map(|tried| tried.tuned.score);
        let best = match standing.best.filter(|_| !self.validator.is_empty()) {
            None => None,
            Some((_, 0)) if score.is_some() => score.map(|score| (score, 0)),
            Some((_, step)) => {
                let path = if step == 0 { self.folder.start() } else { self.folder.best(step) };
                let kept = Package::open(&path).map_err(|e| JobError::model(path.display().to_string(), e))?;
                let tried = self.score(&kept.graph, false)?;
                standing.took(tried.secs);
                Some((tried.tuned.score, step))
            }
        };
        if let Some(tried) = start {
            standing.took(tried.secs);
            standing.start_score = score;
            *before = Some(tried);
        }
        if let Some((score, step)) = best {
            standing.best = Some((score, step));
            standing.peak = Some(score);
            standing.since_best = 0;
        }
        Ok(())
    }
}

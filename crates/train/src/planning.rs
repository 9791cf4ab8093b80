//! The plan of a training: made from a few timed steps, kept to while it goes on.

use crate::budget::{Budget, Costs, Extent, OVERTIME_SHARE, Progress};
use crate::checkpoint::Standing;
use crate::error::wrong;
use crate::history::History;
use crate::step::Stepper;
use crate::train::Training;
use crate::trial::Tried;
use cytoscope_graph::{ElementType, Graph};
use cytoscope_pipeline::{CancelToken, JobError};
use std::time::{Duration, Instant};

/// Steps tried before the plan is made.
const TRIAL_STEPS: usize = 3;
/// Points of the curve that say what a step takes now.
const RECENT_POINTS: usize = 20;
/// Share of the minutes after which the plan is made anew.
const PLAN_SHARE: f64 = 0.05;
/// Changes of the plan that are made, and those that are told.
const CHANGES: [f64; 2] = [0.03, 0.1];
/// What a validation takes for a voxel, in what a step takes for a voxel that is learnt from: maps, and objects made of them with a
/// few settings. Measured on nuclei with the network of the default settings.
const VALIDATION_TO_STEP: f64 = 1.5;

impl Training<'_> {
    /// What the training may take.
    pub(crate) fn budget(&self) -> Budget<'_> {
        Budget {
            config: &self.config.budget,
            epoch_steps: self.epoch_steps,
            validations: self.config.validation.times.max(1),
            int8: !self.job.without_int8,
        }
    }

    /// What a step takes lately, and a validation.
    fn costs(&self, standing: &Standing) -> Costs {
        let recent = standing.history.steps.iter().rev().take(RECENT_POINTS).map(|p| p.step_secs);
        let recent: Vec<f64> = recent.filter(|secs| secs.is_finite()).collect();
        let step = match recent.len() {
            0 => standing.first_step_secs,
            n => recent.iter().sum::<f64>() / n as f64,
        };
        let validation = if self.validator.is_empty() { 0.0 } else { standing.validation_secs };
        Costs { step, validation }
    }

    fn progress(&self, standing: &Standing) -> Progress {
        let later = standing.history.validations.iter().filter(|v| v.step > 0);
        Progress {
            spent: self.seconds(standing),
            validating: standing.validating_secs,
            step: standing.step,
            validations: later.clone().count(),
            last_validation: later.map(|v| v.step).max().unwrap_or(0),
        }
    }

    /// Tries a few steps, scores what training starts from, and makes the plan.
    pub(crate) fn begin(&mut self, graph: Graph) -> Result<(Standing, Stepper, Option<Tried>), JobError> {
        let mut stepper = self.stepper(graph, true)?;
        let beginning = stepper.state.clone();
        let step = self.time_steps(&mut stepper)?;
        stepper.state = beginning;
        let extent = self.fit_validation(step)?;
        let mut standing = Standing { extent, ..self.new_standing(step) };
        let mut before = None;
        if !self.validator.is_empty() {
            self.context.note("Scoring what training starts from.");
            let tried = self.score(&self.start.graph, self.start.comparable)?;
            standing.took(tried.secs);
            let smaller = self.budget().smaller(self.validator.extent(), tried.secs, tried.share);
            before = Some(tried).filter(|_| self.start.comparable);
            if let Some(extent) = smaller {
                self.look_at_less(&mut standing, extent, &mut before)?;
            }
        }
        let plan = self.budget().plan(self.costs(&standing), self.progress(&standing));
        standing.steps = plan.steps;
        standing.next_validation = plan.next_validation;
        self.tell_plan(&standing, &stepper);
        if let Some(scores) = before.as_ref().map(|b| b.tuned.clone()) {
            standing.start_score = Some(scores.score);
            standing.peak = Some(scores.score);
            self.plain(&self.start.graph, &self.folder.start())?;
            standing.best = Some((scores.score, 0));
            self.tell(&mut standing, &scores, true);
            self.show(standing.step, before.as_ref().and_then(|b| b.live.as_ref()));
        }
        Ok((standing, stepper, before))
    }

    /// Seconds of a step: the median of a few, that of its patches included.
    fn time_steps(&self, stepper: &mut Stepper) -> Result<f64, JobError> {
        let mut loader = self.loader(0)?;
        let mut secs = Vec::new();
        for _ in 0..TRIAL_STEPS {
            self.context.check()?;
            let begun = Instant::now();
            let [image, target, weight] = self.batch(&mut loader)?;
            for _ in 0..self.config.accumulate {
                stepper.learn(image.clone(), target.clone(), weight.clone())?;
            }
            stepper.advance(1e-9, self.config.clip_norm, self.config.accumulate)?;
            secs.push(begun.elapsed().as_secs_f64());
        }
        secs.sort_by(f64::total_cmp);
        Ok(secs.get(secs.len() / 2).copied().unwrap_or(1.0))
    }

    /// Refuses minutes in which nothing can be learnt, and lets validation look at as much as the minutes allow, as far as the time of
    /// a step tells.
    fn fit_validation(&mut self, step_secs: f64) -> Result<Option<Extent>, JobError> {
        let patches = (self.batch * self.config.accumulate).max(1) as f64;
        let learnt: f64 = patches * self.patch.iter().map(|n| *n as f64).product::<f64>();
        let magnification = self.validator.magnification(self.voxel_um);
        let voxel_secs = VALIDATION_TO_STEP * step_secs / learnt.max(1.0) * magnification;
        let cases = self.validator.voxels();
        let validation = cases.iter().map(|v| *v as f64).sum::<f64>() * voxel_secs;
        let spent = self.began.elapsed().as_secs_f64();
        let costs = Costs { step: step_secs, validation };
        if let (Some(minutes), Some(least)) = (self.config.budget.minutes, self.budget().too_short(costs, spent)) {
            let looked = format!("{spent:.0} s have gone by with looking through the data");
            return Err(too_short(minutes, least, &format!("{looked}, and a step takes {step_secs:.2} s")));
        }
        let extent = self.budget().extent(&cases, voxel_secs);
        if let Some(extent) = extent {
            let sentence = self.look_at(extent)?;
            self.context.note(format!("{sentence}, to keep to the minutes."));
        }
        Ok(extent)
    }

    fn tell_plan(&self, standing: &Standing, stepper: &Stepper) {
        let context = self.context;
        let (costs, steps) = (self.costs(standing), standing.steps);
        let validations = self.budget().validations_planned(costs, self.progress(standing));
        context.note(format!(
            "{} values to teach; a step takes {:.2} s, a validation {:.1} s; {steps} steps are planned ({:.1} epochs), about {:.0} minutes; {:.0} MiB for activations.",
            stepper.parameter_count(),
            costs.step,
            costs.validation,
            steps as f64 / self.epoch_steps.max(1) as f64,
            (steps as f64 * costs.step + validations as f64 * costs.validation) / 60.0,
            stepper.arena_bytes() as f64 / f64::from(1 << 20),
        ));
        if let (Some(halved), Some(half)) = (stepper.halved(), self.config.precision.half()) {
            context.note(format!(
                "Mixed precision: {} operators compute in {half}; parameters, norms and the loss stay in {}.",
                halved.nodes,
                ElementType::F32
            ));
        }
        if let Some(r) = stepper.recomputed() {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            context.note(format!(
                "Memory: {:.0} MiB of activations are held instead of {:.0}; for that {} operators are run twice, {:.0} % of a step's work.",
                mib(r.bytes_after),
                mib(r.bytes_before),
                r.nodes,
                100.0 * r.macs_again as f64 / r.macs.max(1) as f64
            ));
        }
    }

    fn new_standing(&self, first_step_secs: f64) -> Standing {
        Standing {
            version: 0,
            job: self.job.clone(),
            config: self.config.clone(),
            data_fingerprint: self.fingerprint.clone(),
            step: 0,
            steps: 1,
            next_patch: 0,
            folded: false,
            rate_factor: 1.0,
            rescues: 0,
            seconds: 0.0,
            best: None,
            peak: None,
            start_score: None,
            since_best: 0,
            due: false,
            ended: false,
            since_point: (0.0, 0),
            validation: self.validation.clone(),
            intensity: self.intensity,
            history: History::default(),
            optimizer_steps: 0,
            loss_scale: 1.0,
            steady_steps: 0,
            validation_secs: 0.0,
            validating_secs: 0.0,
            first_step_secs,
            next_validation: 0,
            extent: None,
            tensors: String::new(),
        }
    }

    /// What is otherwise than when a training was kept: its budget, its data.
    pub(crate) fn go_on(&self, standing: &mut Standing) -> Result<(), JobError> {
        if standing.config.budget != self.config.budget {
            standing.config = self.config.clone();
            standing.ended = false;
            standing.since_best = 0;
            let plan = self.budget().plan(self.costs(standing), self.progress(standing));
            standing.steps = plan.steps;
            standing.next_validation = plan.next_validation;
            standing.due |= standing.step == standing.steps && !self.validator.is_empty() && !is_tried(standing);
            let sentence = format!("It is to last otherwise than before: {} steps are planned now.", standing.steps);
            self.context.note(sentence);
        }
        if standing.data_fingerprint != self.fingerprint {
            self.context.note("The data have changed since: it goes on with them as they are now.");
            standing.history.notes.push(format!("The data were others from step {} on.", standing.step));
            standing.data_fingerprint.clone_from(&self.fingerprint);
            standing.validation.clone_from(&self.validation);
            // Scores of other images say nothing of those to come.
            self.score_anew(standing, &mut None)?;
        }
        Ok(())
    }

    /// Keeps within the minutes: steps and validations turned out to take longer, or shorter.
    pub(crate) fn replan(&self, standing: &mut Standing) {
        if self.config.budget.minutes.is_none() || standing.step >= standing.steps {
            return;
        }
        let plan = self.budget().plan(self.costs(standing), self.progress(standing));
        let change = (plan.steps as f64 / standing.steps.max(1) as f64 - 1.0).abs();
        if change > CHANGES[0] && plan.steps > standing.step {
            if change > CHANGES[1] {
                standing.history.notes.push(format!(
                    "At step {} the plan was changed from {} to {} steps to keep to the minutes.",
                    standing.step, standing.steps, plan.steps
                ));
            }
            standing.steps = plan.steps;
        }
        standing.next_validation = plan.next_validation.min(standing.steps);
    }

    /// Seconds after which the plan is made anew.
    pub(crate) fn seconds_between_plans(&self) -> f64 {
        self.budget().total().map_or(f64::INFINITY, |total| total * PLAN_SHARE)
    }

    /// Whether a validation follows the step that was just made.
    pub(crate) fn is_validation_due(&self, standing: &Standing) -> bool {
        if standing.step >= standing.steps {
            return true;
        }
        if self.config.budget.minutes.is_some() {
            return standing.step >= standing.next_validation;
        }
        let validations = self.config.validation.times.max(1) as u64;
        let passed = |step: u64| step * validations / standing.steps.max(1);
        // Another number of steps moves them all: none comes right after one.
        let last = standing.history.validations.last().map_or(0, |v| v.step);
        let soon = (standing.step - last.min(standing.step)) * 2 * validations < standing.steps;
        !soon && passed(standing.step) > passed(standing.step - 1)
    }

    /// Whether the minutes leave no room for another step. One is always made.
    pub(crate) fn is_over(&self, standing: &Standing) -> bool {
        standing.step > 0 && self.budget().is_over(self.costs(standing), self.progress(standing))
    }

    /// Makes the steps made all there are.
    pub(crate) fn end_here(&self, standing: &mut Standing) {
        if standing.step < standing.steps {
            standing
                .history
                .notes
                .push(format!("Ended at step {} of {} to keep to the minutes.", standing.step, standing.steps));
        }
        standing.steps = standing.step;
        standing.due = !self.validator.is_empty() && !is_tried(standing);
    }

    /// When the minutes are over; `None` without minutes.
    pub(crate) fn end_of_minutes(&self, standing: &Standing) -> Option<Instant> {
        let left = (self.budget().total()? - standing.seconds).max(0.0);
        self.began.checked_add(Duration::try_from_secs_f64(left).ok()?)
    }

    /// A token that is cancelled with the training, and when quantizing has to be given up to keep to the minutes.
    pub(crate) fn until_overtime(&self, standing: &Standing) -> CancelToken {
        let cancel = &self.context.cancel;
        let overtime = self.budget().total().and_then(|t| Duration::try_from_secs_f64(t * OVERTIME_SHARE).ok());
        match self.end_of_minutes(standing).zip(overtime).and_then(|(end, more)| end.checked_add(more)) {
            Some(at) => cancel.until(at),
            None => cancel.clone(),
        }
    }
}

/// Whether the network as it stands has a score.
fn is_tried(standing: &Standing) -> bool {
    standing.history.validations.last().is_some_and(|v| v.step == standing.step)
}

/// A number of minutes that are too few.
pub(crate) fn too_short(minutes: f64, least: f64, why: &str) -> JobError {
    let least = (least * 10.0).round() / 10.0;
    wrong(format!(
        "{minutes} min is too little time to learn anything from these data here: {why}; give at least {least} minutes"
    ))
}

//! Successive halving: all candidates are run, the slower half is dropped, and so on until two are left. These and the
//! default are then run several times in turns.

use super::progress::TuneProgress;
use crate::cli::failure::Failure;
use cytoscope_pipeline::{CandidateOutcome, JobErrorKind, ProcessEvent};
use serde::Serialize;
use std::iter::successors;
use std::time::{Duration, Instant};

/// A process is ended after this many times the duration of the fastest one so far, plus [`GRACE_SECS`].
const TOO_SLOW: f64 = 4.0;
/// Seconds that a process may take in addition: for its start, loading the model and choosing the device.
const GRACE_SECS: f64 = 10.0;

/// Factor by which memory may exceed the lowest one and still count as the lowest: the memory of a process varies.
const MEMORY_TOLERANCE: f64 = 1.05;

/// Number of candidates that reach the final, besides the default.
const FINALISTS: usize = 2;
/// Runs of each candidate in the final.
const FINAL_RUNS: usize = 5;

/// Settings that are tried.
pub(super) trait Candidate {
    /// Returns the settings as text.
    fn label(&self) -> String;
}

/// Measurements of one run of a candidate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// The time that candidates are compared by, in seconds.
    pub secs: f64,
    /// Duration of the process in seconds.
    pub process_secs: f64,
    /// Peak memory of the process in bytes, if known.
    pub peak_bytes: Option<u64>,
    /// Relative L2 difference of the result to the result in 32-bit floats, if known.
    pub relative_l2: Option<f64>,
}

/// How the search ended for a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(super) enum TrialEnd {
    /// It won: it was the fastest, or no slower than the fastest by more than the spread of the runs and given before it.
    Fastest,
    /// It lost the final to a candidate that was given before it, but the times differ by no more than the spread of the runs.
    WithinSpread,
    /// It was among the slower half, or lost the final.
    Slower {
        /// Round after which it was dropped, from 1.
        round: usize,
    },
    /// Its process was ended, because it took many times as long as the fastest one.
    TooSlow {
        /// Round in which it was ended, from 1.
        round: usize,
    },
    /// Its process ended with an error.
    Failed {
        /// The error message.
        error: String,
    },
    /// The search was interrupted while it was among the candidates.
    Interrupted,
}

/// A candidate with its runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Trial<C> {
    /// The settings that were tried.
    #[serde(flatten)]
    pub candidate: C,
    /// Time of each run in seconds.
    pub secs: Vec<f64>,
    /// Highest peak memory of the process in bytes, if known.
    pub peak_bytes: Option<u64>,
    /// Relative L2 difference of the result to the result in 32-bit floats, if known.
    pub relative_l2: Option<f64>,
    /// Why no more runs followed.
    #[serde(flatten)]
    pub end: TrialEnd,
}

impl<C> Trial<C> {
    fn new(candidate: C) -> Self {
        Self { candidate, secs: Vec::new(), peak_bytes: None, relative_l2: None, end: TrialEnd::Fastest }
    }

    /// Returns the shortest time in seconds; `None` without a run. Other programs only make runs slower.
    pub(super) fn best_secs(&self) -> Option<f64> {
        self.secs.iter().copied().min_by(f64::total_cmp)
    }

    fn add(&mut self, measured: Measured) {
        self.secs.push(measured.secs);
        self.peak_bytes = self.peak_bytes.max(measured.peak_bytes);
        self.relative_l2 = self.relative_l2.or(measured.relative_l2);
    }
}

/// What a search has found.
#[derive(Debug)]
pub(super) struct Search<C> {
    /// All candidates, in the order in which they were given.
    pub trials: Vec<Trial<C>>,
    /// Whether the search ended by itself, not because it was interrupted.
    pub is_complete: bool,
}

/// Returns the longest time that a process may take if the fastest one took this many seconds.
pub(super) fn time_limit(fastest_process_secs: f64) -> Duration {
    Duration::try_from_secs_f64(TOO_SLOW * fastest_process_secs + GRACE_SECS).unwrap_or(Duration::MAX)
}

/// Like [`search_from_default`], with the first candidate as the default.
///
/// # Errors
/// Same as [`search_from_default`].
pub(super) fn search<C: Candidate>(
    candidates: Vec<C>,
    progress: TuneProgress,
    measure: impl FnMut(&C, Option<Duration>) -> Result<Option<Measured>, Failure>,
) -> Result<Search<C>, Failure> {
    search_from_default(candidates, 0, progress, measure)
}

/// Finds the fastest candidate. The one at `default` always reaches the final if it can run, and wins unless another one is
/// faster by more than the spread of the runs. `measure` runs a candidate once within a time limit, and returns `None` if that
/// was exceeded. A candidate that fails is dropped. A search that is interrupted ends with what was measured.
///
/// # Errors
/// Cancellation before anything was measured, or the first failure if all candidates fail.
pub(super) fn search_from_default<C: Candidate>(
    candidates: Vec<C>,
    default: usize,
    progress: TuneProgress,
    measure: impl FnMut(&C, Option<Duration>) -> Result<Option<Measured>, Failure>,
) -> Result<Search<C>, Failure> {
    let mut trials: Vec<Trial<C>> = candidates.into_iter().map(Trial::new).collect();
    let mut rounds = Rounds { progress, measure, count: 0, fastest_process_secs: None, first_failure: None };
    let mut active: Vec<usize> = (0..trials.len()).collect();
    while active.len() > FINALISTS {
        if let Err(failure) = rounds.run(&mut trials, &active, runs_after_halving(active.len())) {
            return interrupted(trials, failure);
        }
        active.retain(|index| is_in_search(&trials, *index));
        let secs = |index: &usize| trials.get(*index).and_then(Trial::best_secs).unwrap_or(f64::INFINITY);
        active.sort_by(|a, b| secs(a).total_cmp(&secs(b)));
        let kept_count = active.len().div_ceil(2).max(FINALISTS).min(active.len());
        for index in active.split_off(kept_count) {
            if let Some(trial) = trials.get_mut(index) {
                trial.end = TrialEnd::Slower { round: rounds.count };
            }
        }
    }
    if let Some(dropped) = trials.get_mut(default).filter(|trial| matches!(trial.end, TrialEnd::Slower { .. })) {
        dropped.end = TrialEnd::Fastest;
        active.insert(0, default);
    }
    for later_turns in (0..FINAL_RUNS).rev() {
        let is_alone = active.len() < 2;
        let has_run = active.iter().all(|index| trials.get(*index).is_some_and(|trial| !trial.secs.is_empty()));
        if is_alone && has_run {
            break;
        }
        let later_runs = if is_alone { 0 } else { later_turns * active.len() };
        if let Err(failure) = rounds.run(&mut trials, &active, later_runs) {
            return interrupted(trials, failure);
        }
        active.retain(|index| is_in_search(&trials, *index));
        // A machine that gets slower or faster in the meantime favors none.
        active.reverse();
    }
    decide(&mut trials, &active, default, rounds.count);
    match rounds.first_failure {
        Some(failure) if active.is_empty() => Err(failure),
        _ => Ok(Search { trials, is_complete: true }),
    }
}

/// The rounds of a search.
struct Rounds<M> {
    progress: TuneProgress,
    /// Runs a candidate once.
    measure: M,
    /// Number of rounds so far.
    count: usize,
    /// Duration of the fastest process so far, in seconds.
    fastest_process_secs: Option<f64>,
    /// The first failure of a candidate.
    first_failure: Option<Failure>,
}

impl<M> Rounds<M> {
    /// Runs these candidates once, in this order. About `later_runs` runs follow this round.
    ///
    /// # Errors
    /// Cancellation.
    fn run<C: Candidate>(&mut self, trials: &mut [Trial<C>], order: &[usize], later_runs: usize) -> Result<(), Failure>
    where
        M: FnMut(&C, Option<Duration>) -> Result<Option<Measured>, Failure>,
    {
        self.count += 1;
        let (round, count) = (self.count, order.len());
        self.progress.show(&ProcessEvent::Round { round, candidates: count });
        let mut finished_secs = Vec::new();
        for (place, index) in order.iter().enumerate() {
            let Some(trial) = trials.get_mut(*index) else { continue };
            let limit = self.fastest_process_secs.map(time_limit);
            let start = Instant::now();
            let outcome = match (self.measure)(&trial.candidate, limit) {
                Ok(Some(measured)) => {
                    let (secs, process_secs) = (measured.secs, measured.process_secs);
                    let fastest = self.fastest_process_secs.map_or(process_secs, |f| f.min(process_secs));
                    self.fastest_process_secs = Some(fastest);
                    trial.add(measured);
                    CandidateOutcome::Measured { secs }
                }
                Ok(None) => {
                    trial.end = TrialEnd::TooSlow { round };
                    CandidateOutcome::TooSlow
                }
                Err(failure) if failure.kind() == JobErrorKind::Canceled => return Err(failure),
                Err(failure) => {
                    let error = failure.to_string();
                    trial.end = TrialEnd::Failed { error: error.clone() };
                    self.first_failure.get_or_insert(failure);
                    CandidateOutcome::Failed { error }
                }
            };
            finished_secs.push(start.elapsed().as_secs_f64());
            let place = place + 1;
            let eta_secs = eta_secs(&finished_secs, count - place, later_runs);
            let settings = trial.candidate.label();
            self.progress.show(&ProcessEvent::Candidate { place, candidates: count, settings, outcome, eta_secs });
        }
        Ok(())
    }
}

/// Returns whether a candidate has neither been dropped nor failed.
fn is_in_search<C>(trials: &[Trial<C>], index: usize) -> bool {
    trials.get(index).is_some_and(|trial| trial.end == TrialEnd::Fastest)
}

/// Median and quartiles of the runs of a candidate in the final, in seconds.
#[derive(Debug, Clone, Copy)]
struct FinalTimes {
    lower_secs: f64,
    median_secs: f64,
    upper_secs: f64,
}

impl FinalTimes {
    /// Returns the times of a candidate in its last runs, those of the final; `None` without a run.
    fn of(secs: &[f64]) -> Option<Self> {
        let mut secs: Vec<f64> = secs.iter().rev().take(FINAL_RUNS).copied().collect();
        secs.sort_by(f64::total_cmp);
        let (count, quarter) = (secs.len(), secs.len() / 4);
        let at = |place: usize| secs.get(place).copied();
        let upper_secs = at(count.checked_sub(1 + quarter)?)?;
        Some(Self { lower_secs: at(quarter)?, median_secs: at(count / 2)?, upper_secs })
    }

    /// Returns whether the medians differ by no more than the larger one of the two interquartile ranges.
    fn is_as_fast_as(&self, other: &Self) -> bool {
        let spread = |times: &Self| times.upper_secs - times.lower_secs;
        (self.median_secs - other.median_secs).abs() <= spread(self).max(spread(other))
    }
}

/// Ends the final, whose last round is given: of the finalists that are as fast as the fastest one within the spread of their
/// runs, the default, or else the one that was given first, stays [`TrialEnd::Fastest`].
fn decide<C>(trials: &mut [Trial<C>], finalists: &[usize], default: usize, round: usize) {
    let times_of = |index: &usize| Some((*index, FinalTimes::of(&trials.get(*index)?.secs)?));
    let mut times: Vec<(usize, FinalTimes)> = finalists.iter().filter_map(times_of).collect();
    times.sort_by_key(|(index, _)| (*index != default, *index));
    let medians = times.iter().map(|(_, times)| *times);
    let Some(fastest) = medians.min_by(|a, b| a.median_secs.total_cmp(&b.median_secs)) else { return };
    let winner = times.iter().find(|(_, times)| times.is_as_fast_as(&fastest)).map(|(index, _)| *index);
    for (index, times) in times {
        if let Some(trial) = trials.get_mut(index).filter(|_| Some(index) != winner) {
            let is_as_fast = times.is_as_fast_as(&fastest);
            trial.end = if is_as_fast { TrialEnd::WithinSpread } else { TrialEnd::Slower { round } };
        }
    }
}

/// Returns the number of runs after a round with this number of candidates, if none fails, without those of a default that was
/// dropped.
fn runs_after_halving(candidates: usize) -> usize {
    let halves = successors(Some(candidates.div_ceil(2)), |n| Some(n.div_ceil(2)));
    halves.take_while(|n| *n > FINALISTS).sum::<usize>() + FINALISTS.min(candidates) * FINAL_RUNS
}

/// Returns the estimated remaining seconds of a search. The `to_go` runs of the current round are assumed to take as long as its
/// finished runs on average. Only the faster half reaches the later rounds, so their `later_runs` are assumed to take as long
/// as the faster half of the finished runs.
fn eta_secs(finished_secs: &[f64], to_go: usize, later_runs: usize) -> f64 {
    let mean = |secs: &[f64]| secs.iter().sum::<f64>() / secs.len().max(1) as f64;
    let mut faster = finished_secs.to_vec();
    faster.sort_by(f64::total_cmp);
    faster.truncate(faster.len().div_ceil(2));
    to_go as f64 * mean(finished_secs) + later_runs as f64 * mean(&faster)
}

/// Returns the measurements of an interrupted search; the failure if nothing was measured.
fn interrupted<C>(mut trials: Vec<Trial<C>>, failure: Failure) -> Result<Search<C>, Failure> {
    if trials.iter().all(|trial| trial.secs.is_empty()) {
        return Err(failure);
    }
    for trial in trials.iter_mut().filter(|trial| trial.end == TrialEnd::Fastest) {
        trial.end = TrialEnd::Interrupted;
    }
    Ok(Search { trials, is_complete: false })
}

/// A candidate that was run, with its shortest time in seconds.
pub(super) type TimedTrial<'a, C> = (&'a Trial<C>, f64);

/// Returns the candidates that were run, except those that failed, perhaps in a later round.
pub(super) fn timed<C>(trials: &[Trial<C>]) -> Vec<TimedTrial<'_, C>> {
    let usable = trials.iter().filter(|trial| !matches!(trial.end, TrialEnd::Failed { .. }));
    usable.filter_map(|trial| Some((trial, trial.best_secs()?))).collect()
}

/// Returns the candidate that won the search if it is among these, and else the one with the shortest time.
pub(super) fn quickest<'a, C: 'a>(among: impl Iterator<Item = TimedTrial<'a, C>>) -> Option<TimedTrial<'a, C>> {
    let key = |(trial, secs): &TimedTrial<'a, C>| (trial.end != TrialEnd::Fastest, *secs);
    among.min_by(|a, b| {
        let ((a_lost, a_secs), (b_lost, b_secs)) = (key(a), key(b));
        a_lost.cmp(&b_lost).then(a_secs.total_cmp(&b_secs))
    })
}

/// Returns the candidate that won the search; if it was interrupted, the quickest one of those that could have won.
pub(super) fn fastest<'a, C>(all: &[TimedTrial<'a, C>]) -> Option<TimedTrial<'a, C>> {
    let quickest_with_end = |end: TrialEnd| quickest(all.iter().copied().filter(move |(trial, _)| trial.end == end));
    quickest_with_end(TrialEnd::Fastest).or_else(|| quickest_with_end(TrialEnd::Interrupted))
}

/// Returns the fastest of the candidates with the lowest peak memory; `None` if no memory is known.
pub(super) fn least_memory<'a, C>(all: &[TimedTrial<'a, C>]) -> Option<TimedTrial<'a, C>> {
    let least_bytes = all.iter().filter_map(|(trial, _)| trial.peak_bytes).min()?;
    let is_least = |bytes: u64| bytes as f64 <= MEMORY_TOLERANCE * least_bytes as f64;
    quickest(all.iter().copied().filter(|(trial, _)| trial.peak_bytes.is_some_and(is_least)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate that takes this many seconds.
    #[derive(Debug, Clone, PartialEq)]
    struct Takes(f64);

    impl Candidate for Takes {
        fn label(&self) -> String {
            self.0.to_string()
        }
    }

    fn measured(secs: f64) -> Measured {
        Measured { secs, process_secs: secs, peak_bytes: Some(secs as u64), relative_l2: None }
    }

    #[test]
    fn the_slower_half_is_dropped_after_each_round_until_the_final() {
        let candidates = [5.0, 1.0, 8.0, 2.0, 3.0, 7.0, 6.0, 4.0].map(Takes).to_vec();
        let mut order = Vec::new();
        let trials = search(candidates, TuneProgress::Lines, |takes, _| {
            order.push(takes.0);
            Ok(Some(measured(takes.0)))
        });
        let Search { trials, is_complete } = trials.unwrap();
        assert!(is_complete);
        let of = |secs: f64| trials.iter().find(|t| t.candidate == Takes(secs)).unwrap();
        let final_runs = order.split_off(8 + 4);
        assert_eq!(order[8..], [1.0, 2.0, 3.0, 4.0]);
        // The default, 5.0, is run again with the two fastest, all in turns.
        assert_eq!(final_runs, [[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]].concat().repeat(3)[..3 * FINAL_RUNS]);
        assert_eq!((&of(1.0).end, of(1.0).secs.len(), of(1.0).best_secs()), (&TrialEnd::Fastest, 7, Some(1.0)));
        assert_eq!((&of(2.0).end, of(2.0).secs.len()), (&TrialEnd::Slower { round: 7 }, 7));
        assert_eq!((&of(5.0).end, of(5.0).secs.len()), (&TrialEnd::Slower { round: 7 }, 6));
        assert_eq!((&of(4.0).end, &of(6.0).end), (&TrialEnd::Slower { round: 2 }, &TrialEnd::Slower { round: 1 }));
    }

    /// Searches with the runs of two candidates, the default first, and returns how each ended.
    fn final_of(runs: [[f64; FINAL_RUNS]; 2]) -> Vec<TrialEnd> {
        let mut left = runs.map(|runs| runs.into_iter());
        let candidates = [0.0, 1.0].map(Takes).to_vec();
        let found = search(candidates, TuneProgress::Lines, |takes, _| {
            Ok(Some(measured(left[takes.0 as usize].next().expect("more runs than in a final"))))
        });
        let trials = found.unwrap().trials;
        assert!(trials.iter().all(|trial| trial.secs.len() == FINAL_RUNS), "{trials:?}");
        trials.into_iter().map(|trial| trial.end).collect()
    }

    #[test]
    fn the_default_is_kept_unless_another_one_is_faster_beyond_the_spread() {
        // The first run of the other one is faster, and its shortest time is shorter, but so are some of the default's.
        let noisy = final_of([[1.1, 1.0, 1.2, 1.05, 1.15], [0.95, 1.05, 1.15, 1.0, 1.1]]);
        assert_eq!(noisy, [TrialEnd::Fastest, TrialEnd::WithinSpread]);
        let faster = final_of([[1.0, 1.02, 1.01, 1.03, 1.0], [0.8, 0.81, 0.82, 0.8, 0.81]]);
        assert_eq!(faster, [TrialEnd::Slower { round: FINAL_RUNS }, TrialEnd::Fastest]);
        // Another program disturbs a single run of the faster one.
        let disturbed = final_of([[1.0, 1.02, 1.01, 1.03, 1.0], [4.0, 0.81, 0.82, 0.8, 0.81]]);
        assert_eq!(disturbed, faster);
        let slower = final_of([[1.0, 1.02, 1.01, 1.03, 1.0], [1.3, 1.31, 1.3, 1.32, 1.3]]);
        assert_eq!(slower, [TrialEnd::Fastest, TrialEnd::Slower { round: FINAL_RUNS }]);
        assert_eq!(final_of([[1.0; FINAL_RUNS]; 2]), noisy, "the same times");
    }

    #[test]
    fn a_default_that_was_dropped_by_chance_wins_the_final() {
        for (takes, default) in [([1.0, 0.999, 1.001, 1.002, 1.003], 0), ([0.999, 1.001, 1.002, 1.003, 1.0], 4)] {
            // The default's first run is disturbed; later, no other is faster.
            let mut runs_of_default = 0;
            let found = search_from_default(takes.map(Takes).to_vec(), default, TuneProgress::Lines, |takes, _| {
                let is_default = takes.0 == 1.0;
                runs_of_default += usize::from(is_default);
                let noise = 0.01 * (runs_of_default % 3) as f64;
                let disturbance = if is_default && runs_of_default == 1 { 1.0 } else { noise };
                Ok(Some(measured(takes.0 + disturbance)))
            });
            let trials = found.unwrap().trials;
            assert_eq!((&trials[default].end, trials[default].secs.len()), (&TrialEnd::Fastest, 1 + FINAL_RUNS));
            assert_eq!(trials.iter().filter(|trial| trial.end == TrialEnd::Fastest).count(), 1, "{trials:?}");
        }
    }

    #[test]
    fn a_default_that_is_not_the_first_candidate_wins_within_the_spread() {
        let candidates = [0.0, 1.0].map(Takes).to_vec();
        let found = search_from_default(candidates, 1, TuneProgress::Lines, |_, _| Ok(Some(measured(1.0))));
        let ends: Vec<TrialEnd> = found.unwrap().trials.into_iter().map(|trial| trial.end).collect();
        assert_eq!(ends, [TrialEnd::WithinSpread, TrialEnd::Fastest]);
    }

    #[test]
    fn a_single_candidate_is_run_once() {
        let trials = search(vec![Takes(1.0)], TuneProgress::Lines, |takes, _| Ok(Some(measured(takes.0))));
        let trials = trials.unwrap().trials;
        assert_eq!((&trials[0].end, trials[0].secs.len()), (&TrialEnd::Fastest, 1));
    }

    #[test]
    fn the_time_left_counts_the_runs_of_all_later_rounds() {
        // 8 candidates: then 4, and 2 in the final. 5 candidates: then 3, and 2 in the final.
        assert_eq!((runs_after_halving(8), runs_after_halving(5)), (4 + 2 * FINAL_RUNS, 3 + 2 * FINAL_RUNS));
        // 3 and 4 candidates: the final follows.
        assert_eq!((runs_after_halving(3), runs_after_halving(4)), (2 * FINAL_RUNS, 2 * FINAL_RUNS));
        assert_eq!(eta_secs(&[4.0, 2.0], 6, 14), 6.0 * 3.0 + 14.0 * 2.0);
        assert_eq!(eta_secs(&[1.0, 7.0], 0, 0), 0.0);
    }

    #[test]
    fn failures_and_processes_beyond_the_limit_leave_the_search() {
        let candidates = [1.0, 100.0, -1.0].map(Takes).to_vec();
        let trials = search(candidates, TuneProgress::Lines, |takes, limit| {
            if takes.0 < 0.0 {
                return Err(Failure::other("no memory"));
            }
            let is_too_slow = limit.is_some_and(|limit| takes.0 > limit.as_secs_f64());
            Ok((!is_too_slow).then(|| measured(takes.0)))
        })
        .unwrap()
        .trials;
        let ends: Vec<&TrialEnd> = trials.iter().map(|t| &t.end).collect();
        let failed = TrialEnd::Failed { error: "no memory".to_owned() };
        assert_eq!(ends, [&TrialEnd::Fastest, &TrialEnd::TooSlow { round: 1 }, &failed]);
    }

    #[test]
    fn a_candidate_that_fails_in_a_later_round_is_in_no_preset() {
        let mut runs = 0;
        let trials = search([1.0, 2.0, 3.0, 4.0].map(Takes).to_vec(), TuneProgress::Lines, |takes, _| {
            runs += 1;
            // In its first run, the fastest candidate, which holds the least memory, has not failed yet.
            if takes.0 < 2.0 && runs > 4 { Err(Failure::other("no memory")) } else { Ok(Some(measured(takes.0))) }
        })
        .unwrap()
        .trials;
        assert_eq!((trials[0].secs.len(), &trials[1].end), (1, &TrialEnd::Fastest));
        let all = timed(&trials);
        assert_eq!(fastest(&all).map(|(trial, _)| trial.candidate.0), Some(2.0));
        assert_eq!(least_memory(&all).map(|(trial, _)| trial.candidate.0), Some(2.0));
    }

    #[test]
    fn an_interrupted_search_ends_with_what_was_measured() {
        // The final, in which the default, 4.0, takes part, is interrupted after its first run.
        let mut runs = 0;
        let found = search([4.0, 2.0, 3.0, 1.0].map(Takes).to_vec(), TuneProgress::Lines, |takes, _| {
            runs += 1;
            if runs > 5 { Err(Failure::new(JobErrorKind::Canceled, "canceled")) } else { Ok(Some(measured(takes.0))) }
        })
        .unwrap();
        assert!(!found.is_complete);
        let of = |secs: f64| found.trials.iter().find(|t| t.candidate == Takes(secs)).map(|t| (t.secs.len(), &t.end));
        assert_eq!(of(4.0), Some((2, &TrialEnd::Interrupted)));
        assert_eq!(of(2.0), Some((1, &TrialEnd::Interrupted)));
        assert_eq!(of(3.0), Some((1, &TrialEnd::Slower { round: 1 })));
        let all = timed(&found.trials);
        assert_eq!(fastest(&all).map(|(trial, _)| trial.candidate.0), Some(1.0));
        // In the first round, candidates that were not reached have no times, and are in no preset.
        let mut runs = 0;
        let found = search([4.0, 2.0, 1.0].map(Takes).to_vec(), TuneProgress::Lines, |takes, _| {
            runs += 1;
            if runs > 2 { Err(Failure::new(JobErrorKind::Canceled, "canceled")) } else { Ok(Some(measured(takes.0))) }
        })
        .unwrap();
        assert_eq!(
            (found.is_complete, &found.trials[2].end, found.trials[2].best_secs()),
            (false, &TrialEnd::Interrupted, None)
        );
        assert_eq!(fastest(&timed(&found.trials)).map(|(trial, _)| trial.candidate.0), Some(2.0));
    }

    #[test]
    fn the_search_fails_if_all_candidates_fail_or_it_is_canceled_before_the_first_run() {
        let fail = |takes: &Takes, _: Option<Duration>| Err(Failure::bad_input(takes.label()));
        let all_fail = search(vec![Takes(1.0), Takes(2.0)], TuneProgress::Lines, fail);
        assert_eq!(all_fail.unwrap_err().to_string(), "1");
        let cancel = |_: &Takes, _: Option<Duration>| Err(Failure::new(JobErrorKind::Canceled, "canceled"));
        let canceled = search(vec![Takes(1.0)], TuneProgress::Lines, cancel);
        assert_eq!(canceled.unwrap_err().exit_code(), 5);
    }
}

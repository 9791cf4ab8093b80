//! The plots of a search as an SVG file: the score of each trial over the rungs, and beside each setting.

use super::search::Row;
use cytoscope_storage::counted;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Width and height of a plot in pixels, with its labels.
const PLOT: [f64; 2] = [320.0, 240.0];
/// Space for labels: left, right, above, below.
const MARGIN: [f64; 4] = [52.0, 14.0, 30.0, 40.0];
/// Number of plots in a row.
const COLUMNS: usize = 3;
/// Ratio of the largest to the smallest value of a setting from which its axis is logarithmic.
const LOGARITHMIC: f64 = 50.0;

/// Returns the plots of the trials with finite scores; `None` without any. `keys` are the settings in the order of the rows'
/// values.
pub(super) fn svg(rows: &[Row], keys: &[String]) -> Option<String> {
    let finite_score = |row: &Row| row.score.filter(|score| score.is_finite());
    let scored: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, finite_score(row)?))).collect();
    let scores = Scale::of(scored.iter().map(|(_, score)| *score))?;
    let best = best_trial(&scored)?;
    let mut plots = vec![over_rungs(&scored, best, &scores)?];
    for (at, key) in keys.iter().enumerate() {
        plots.extend(beside_setting(&scored, (at, key.as_str()), best, &scores));
    }
    let columns = plots.len().min(COLUMNS);
    let (width, height) = (PLOT[0] * columns as f64, PLOT[1] * plots.len().div_ceil(COLUMNS) as f64);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (number, plot) in plots.iter().enumerate() {
        let (x, y) = ((number % COLUMNS) as f64 * PLOT[0], (number / COLUMNS) as f64 * PLOT[1]);
        // Writing to a text cannot fail.
        let _ = writeln!(text, "<g transform=\"translate({x} {y})\">\n{plot}</g>");
    }
    text.push_str("</svg>\n");
    Some(text)
}

/// Returns the trial with the highest score on the last rung that was reached.
fn best_trial(scored: &[(&Row, f64)]) -> Option<usize> {
    let order = |(row, score): &(&Row, f64)| (row.rung, *score);
    let best = scored.iter().map(|entry| (order(entry), entry.0.trial));
    best.max_by(|((a, x), _), ((b, y), _)| a.cmp(b).then(x.total_cmp(y))).map(|(_, trial)| trial)
}

/// An axis: values from `low` to `high`, linear or logarithmic.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl Scale {
    /// Returns the linear axis of these values; `None` without finite ones.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values.filter(|value| value.is_finite()).fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        })?;
        Some(Self { low, high, is_logarithmic: false })
    }

    /// Returns the axis with logarithms if the values are positive and differ by a large factor.
    fn logarithmic_if_wide(self) -> Self {
        let is_logarithmic = self.low > 0.0 && self.high / self.low >= LOGARITHMIC;
        Self { is_logarithmic, ..self }
    }

    /// Returns the place of a value from 0 to 1; the middle if all values are equal.
    fn place(&self, value: f64) -> f64 {
        let of = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let length = of(self.high) - of(self.low);
        if length > 0.0 { (of(value) - of(self.low)) / length } else { 0.5 }
    }
}

fn pixel_x(place: f64) -> f64 {
    MARGIN[0] + place * (PLOT[0] - MARGIN[0] - MARGIN[1])
}

fn pixel_y(place: f64) -> f64 {
    PLOT[1] - MARGIN[3] - place * (PLOT[1] - MARGIN[2] - MARGIN[3])
}

/// Starts a plot: its title, its axes, and the ends of both.
fn frame(title: &str, [left, right]: [&str; 2], scores: &Scale) -> String {
    let (x0, x1, y0, y1) = (pixel_x(0.0), pixel_x(1.0), pixel_y(0.0), pixel_y(1.0));
    let (title, left, right) = (escaped(title), escaped(left), escaped(right));
    let (below, middle) = (y0 + 16.0, (x0 + x1) / 2.0);
    format!(
        "<text x=\"{middle}\" y=\"18\" text-anchor=\"middle\" font-size=\"12\">{title}</text>\n\
         <path d=\"M{x0} {y1} V{y0} H{x1}\" fill=\"none\" stroke=\"#888\"/>\n\
         <text x=\"{x0}\" y=\"{below}\">{left}</text>\n\
         <text x=\"{x1}\" y=\"{below}\" text-anchor=\"end\">{right}</text>\n\
         <text x=\"{end}\" y=\"{y0}\" text-anchor=\"end\">{low:.3}</text>\n\
         <text x=\"{end}\" y=\"{top}\" text-anchor=\"end\">{high:.3}</text>\n",
        end = x0 - 5.0,
        top = y1 + 8.0,
        low = scores.low,
        high = scores.high
    )
}

/// Returns a point; its tooltip names trial, steps and score.
fn point((x, y): (f64, f64), row: &Row, score: f64, is_best: bool) -> String {
    let (radius, fill) = if is_best { (5.0, "#d1495b") } else { (3.5, "#30638e") };
    let (trial, steps) = (row.trial, counted(row.steps, "step"));
    format!(
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\" fill-opacity=\"0.75\"><title>trial {trial}, \
         {steps}: score {score:.4}</title></circle>\n"
    )
}

/// Draws the score of each trial over the number of steps.
fn over_rungs(scored: &[(&Row, f64)], best: usize, scores: &Scale) -> Option<String> {
    let mut steps = Scale::of(scored.iter().map(|(row, _)| row.steps as f64))?;
    // Each rung has twice the steps of the one before.
    steps.is_logarithmic = steps.low > 0.0;
    let [left, right] = [steps.low, steps.high].map(|n| counted(n, "step"));
    let mut plot = frame("score by steps, a line for each trial", [left.as_str(), right.as_str()], scores);
    let mut trials: BTreeMap<usize, Vec<(&Row, f64)>> = BTreeMap::new();
    for &(row, score) in scored {
        trials.entry(row.trial).or_default().push((row, score));
    }
    let place = |row: &Row, score: f64| (pixel_x(steps.place(row.steps as f64)), pixel_y(scores.place(score)));
    for (trial, mut runs) in trials {
        runs.sort_by_key(|(row, _)| row.rung);
        let line: Vec<String> = runs
            .iter()
            .map(|(row, score)| {
                let (x, y) = place(row, *score);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let color = if trial == best { "#d1495b" } else { "#bbb" };
        let _ = writeln!(plot, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>", line.join(" "));
        for (row, score) in runs {
            plot.push_str(&point(place(row, score), row, score, trial == best));
        }
    }
    Some(plot)
}

/// Plots each trial's last score against the value of setting `key`, the `at`-th one. If a value is not a finite
/// number, all are placed in alphabetical order.
fn beside_setting(scored: &[(&Row, f64)], (at, key): (usize, &str), best: usize, scores: &Scale) -> Option<String> {
    let mut last: BTreeMap<usize, (&Row, f64)> = BTreeMap::new();
    for &(row, score) in scored {
        let entry = last.entry(row.trial).or_insert((row, score));
        if row.rung > entry.0.rung {
            *entry = (row, score);
        }
    }
    let values: Vec<&str> = last.values().filter_map(|(row, _)| row.values.get(at)).map(String::as_str).collect();
    let finite = |value: &&str| value.parse::<f64>().ok().filter(|number| number.is_finite());
    let numbers: Option<Vec<f64>> = values.iter().map(finite).collect();
    let mut names = values.clone();
    names.sort_unstable();
    names.dedup();
    let scale = match &numbers {
        Some(numbers) => Scale::of(numbers.iter().copied())?.logarithmic_if_wide(),
        None => Scale::of([0.0, names.len().saturating_sub(1) as f64].into_iter())?,
    };
    let position = |value: &str| match &numbers {
        Some(_) => value.parse().unwrap_or(scale.low),
        None => names.iter().position(|name| *name == value).unwrap_or(0) as f64,
    };
    let [left, right] = match (&numbers, names.first().zip(names.last())) {
        (None, Some((first, last))) => [(*first).to_owned(), (*last).to_owned()],
        _ => [scale.low.to_string(), scale.high.to_string()],
    };
    let title = if scale.is_logarithmic { format!("{key} (logarithmic)") } else { key.to_owned() };
    let mut plot = frame(&title, [left.as_str(), right.as_str()], scores);
    for &(row, score) in last.values() {
        let Some(value) = row.values.get(at) else { continue };
        let place = (pixel_x(scale.place(position(value))), pixel_y(scores.place(score)));
        plot.push_str(&point(place, row, score, row.trial == best));
    }
    Some(plot)
}

/// Returns text that XML does not read as markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trial: usize, rung: usize, score: Option<f64>, values: [&str; 2]) -> Row {
        Row {
            trial,
            rung,
            steps: 10 << rung,
            score,
            seconds: 1.0,
            error: String::new(),
            values: values.map(str::to_owned).to_vec(),
        }
    }

    /// Panics if a text is not well-formed XML.
    fn check_xml(text: &str) {
        let mut reader = quick_xml::Reader::from_str(text);
        while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
    }

    #[test]
    fn every_scored_run_is_a_point_and_every_setting_a_plot() {
        let rows = [
            row(0, 1, Some(0.5), ["0.001", "[4, 8]"]),
            row(1, 1, Some(0.7), ["0.1", "<b>"]),
            row(2, 1, None, ["0.01", "[4]"]),
            row(1, 2, Some(0.8), ["0.1", "<b>"]),
        ];
        let keys = ["schedule.rate".to_owned(), "network.filters".to_owned()];
        let svg = svg(&rows, &keys).unwrap();
        check_xml(&svg);
        let count = |name: &str| svg.matches(&format!("<{name} ")).count();
        // Three runs over the rungs, and the last run of two trials beside each setting.
        assert_eq!((count("g"), count("polyline"), count("circle")), (3, 2, 3 + 2 + 2), "{svg}");
        assert!(svg.contains("schedule.rate (logarithmic)") && svg.contains("&lt;b&gt;"), "{svg}");
        assert_eq!(svg.matches("r=\"5\"").count(), 2 + 1 + 1, "the best trial is trial 1");
    }

    #[test]
    fn a_search_without_scores_has_no_plots() {
        assert_eq!(svg(&[], &[]), None);
        assert_eq!(svg(&[row(0, 1, None, ["1", "2"])], &[]), None);
        // One trial: all axes have length 0.
        let one = svg(&[row(0, 1, Some(0.5), ["1", "2"])], &["a".to_owned()]).unwrap();
        assert!(!one.contains("NaN") && !one.contains("inf"), "{one}");
    }

    #[test]
    fn scores_and_settings_that_are_not_finite_have_no_place_outside_the_plots() {
        let rows = [
            row(0, 1, Some(0.5), ["1", "2"]),
            row(1, 1, Some(0.6), ["inf", "nan"]),
            row(2, 1, Some(f64::NAN), ["3", "4"]),
        ];
        let svg = svg(&rows, &["a".to_owned(), "b".to_owned()]).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("\"inf\""), "{svg}");
        assert!(svg.contains("trial 1") && !svg.contains("trial 2"), "{svg}");
    }
}

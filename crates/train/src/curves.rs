//! Plot of a training run as SVG: loss and learning rate on the left, validation scores on the right.

use crate::history::History;
use std::fmt::Write;

/// Width and height of the plot.
const SIZE: [f64; 2] = [920.0, 330.0];
/// Top and bottom of both diagrams.
const ROWS: [f64; 2] = [52.0, 274.0];
/// Left and right of the loss diagram and of the score diagram.
const COLUMNS: [[f64; 2]; 2] = [[66.0, 412.0], [568.0, 900.0]];
// Colors.
const LOSS: &str = "#1f7795";
const RATE: &str = "#b86e00";
const SCORE: &str = "#1f7795";
const BEST: &str = "#d98200";
const TEXT: &str = "#333a40";
const GRID: &str = "#dfe3e6";
/// A loss that falls by more than this factor is drawn on a logarithmic axis.
const LOG_AXIS_FROM: f64 = 30.0;

/// An axis: its range, and whether it is logarithmic.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// Returns the position of a value on the axis, from 0 to 1.
    fn share(&self, v: f64) -> f64 {
        let place = |v: f64| if self.log { v.max(f64::MIN_POSITIVE).log10() } else { v };
        let (low, high) = (place(self.low), place(self.high));
        let share = (place(v) - low) / (high - low).max(f64::MIN_POSITIVE);
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Returns the values of the ticks.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decade = |v: f64| v.max(f64::MIN_POSITIVE).log10();
            let (first, last) = (decade(self.low).floor() as i32, decade(self.high).ceil() as i32);
            let steps: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let all = (first..=last).flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
            let inside = 1e-9 * self.high;
            return all.filter(|v| *v >= self.low - inside && *v <= self.high + inside).take(40).collect();
        }
        let step = tick_distance(self.high - self.low);
        let first = (self.low / step - 1e-9).ceil();
        (0..40).map(|i| (first + f64::from(i)) * step).take_while(|v| *v <= self.high + step * 1e-6).collect()
    }

    /// Returns a linear axis from tick to tick around these values.
    fn around(low: f64, high: f64) -> Self {
        if low >= high {
            let reach = (low.abs() * 0.1).max(1e-6);
            return Self { low: low - reach, high: high + reach, log: false };
        }
        let step = tick_distance(high - low);
        Self { low: (low / step + 1e-9).floor() * step, high: (high / step - 1e-9).ceil() * step, log: false }
    }
}

/// Returns a tick distance that gives four to eight ticks.
fn tick_distance(range: f64) -> f64 {
    let rough = (range / 5.0).max(f64::MIN_POSITIVE);
    let decade = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * decade).find(|d| *d >= rough * 0.999).unwrap_or(rough)
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, v| ends.map_or(Some((v, v)), |(low, high): (f64, f64)| Some((low.min(v), high.max(v)))))
}

/// Formats a number as short as possible.
fn number(v: f64) -> String {
    let size = v.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{v:.0e}");
    }
    let text = format!("{v:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Escapes text for XML; characters that XML does not allow are removed.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => out.push(c),
        }
    }
    out
}

/// SVG text under construction. Writing to a string cannot fail.
struct Svg(String);

impl Svg {
    fn line(&mut self, from: [f64; 2], to: [f64; 2], color: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"/>",
            from[0], from[1], to[0], to[1]
        );
    }

    fn text(&mut self, at: [f64; 2], anchor: &str, color: &str, more: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\"{more}>{}</text>",
            at[0],
            at[1],
            escaped(text)
        );
    }

    /// Adds text rotated by 90° counterclockwise.
    fn vertical_text(&mut self, at: [f64; 2], color: &str, text: &str) {
        let rotation = format!(" transform=\"rotate(-90 {:.1} {:.1})\"", at[0], at[1]);
        self.text(at, "middle", color, &rotation, text);
    }

    fn curve(&mut self, class: &str, color: &str, more: &str, points: &[[f64; 2]]) {
        let _ = write!(self.0, "<polyline class=\"{class}\" fill=\"none\" stroke=\"{color}\"{more} points=\"");
        for (i, [x, y]) in points.iter().enumerate() {
            let _ = write!(self.0, "{}{x:.1},{y:.1}", if i > 0 { " " } else { "" });
        }
        self.0.push_str("\"/>\n");
    }

    fn dot(&mut self, class: &str, at: [f64; 2], radius: f64, fill: &str, stroke: &str) {
        let _ = writeln!(
            self.0,
            "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"2\"/>",
            at[0], at[1]
        );
    }

    /// Draws grid lines, ticks and numbers of both axes.
    fn frame(&mut self, columns: [f64; 2], steps: &Scale, values: &Scale) {
        for v in values.ticks() {
            let y = row(values, v);
            self.line([columns[0], y], [columns[1], y], GRID);
            self.text([columns[0] - 8.0, y + 4.0], "end", TEXT, "", &number(v));
        }
        for v in steps.ticks() {
            let x = column(columns, steps, v);
            self.line([x, ROWS[1]], [x, ROWS[1] + 4.0], TEXT);
            self.text([x, ROWS[1] + 19.0], "middle", TEXT, "", &number(v));
        }
        self.line([columns[0], ROWS[1]], [columns[1], ROWS[1]], TEXT);
        self.text([columns[0].midpoint(columns[1]), ROWS[1] + 40.0], "middle", TEXT, "", "step");
    }
}

fn column([left, right]: [f64; 2], steps: &Scale, v: f64) -> f64 {
    left + (right - left) * steps.share(v)
}

fn row(values: &Scale, v: f64) -> f64 {
    ROWS[1] + (ROWS[0] - ROWS[1]) * values.share(v)
}

/// Returns the plot as SVG; `None` if there are neither steps nor validations. `metric` is the name of the score.
pub(crate) fn svg(history: &History, metric: &str) -> Option<String> {
    let last_step = history.steps.iter().map(|p| p.step).chain(history.validations.iter().map(|v| v.step)).max()?;
    let steps = Scale { low: 0.0, high: last_step.max(1) as f64, log: false };
    let mut svg = Svg(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"DejaVu Sans, \
         Verdana, sans-serif\" font-size=\"12\" role=\"img\">\n<title>Loss and validation score</title>\n\
         <rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        SIZE[0], SIZE[1]
    ));
    losses(&mut svg, history, &steps);
    scores(&mut svg, history, &steps, metric);
    svg.0.push_str("</svg>\n");
    Some(svg.0)
}

const HEAD: &str = " font-size=\"14\" font-weight=\"bold\"";

fn losses(svg: &mut Svg, history: &History, steps: &Scale) {
    let columns = COLUMNS[0];
    let Some((low, high)) = ends(history.steps.iter().map(|p| p.loss).filter(|v| v.is_finite())) else { return };
    let log = low > 0.0 && high / low > LOG_AXIS_FROM;
    let loss_axis = if log { Scale { low, high, log } } else { Scale::around(low.min(0.0), high) };
    svg.text([columns[0], 22.0], "start", TEXT, HEAD, "Loss and learning rate");
    svg.frame(columns, steps, &loss_axis);
    let top = history.steps.iter().map(|p| p.rate).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let rates = Scale { low: 0.0, high: if top > 0.0 { top } else { 1.0 }, log: false };
    for share in [0.0, 0.5, 1.0] {
        let y = row(&rates, rates.high * share);
        let text = if share > 0.0 { format!("{:.1e}", rates.high * share) } else { "0".to_owned() };
        svg.line([columns[1], y], [columns[1] + 4.0, y], RATE);
        svg.text([columns[1] + 8.0, y + 4.0], "start", RATE, "", &text);
    }
    let middle = ROWS[0].midpoint(ROWS[1]);
    svg.vertical_text([18.0, middle], LOSS, if log { "loss (logarithmic)" } else { "loss" });
    svg.vertical_text([columns[1] + 70.0, middle], RATE, "learning rate");
    let x = |step: u64| column(columns, steps, step as f64);
    let rate_points: Vec<[f64; 2]> = history.steps.iter().map(|p| [x(p.step), row(&rates, p.rate)]).collect();
    let loss_points: Vec<[f64; 2]> = history.steps.iter().map(|p| [x(p.step), row(&loss_axis, p.loss)]).collect();
    svg.curve("rate", RATE, " stroke-width=\"1.5\" stroke-dasharray=\"6 4\"", &rate_points);
    svg.curve("loss", LOSS, " stroke-width=\"1.5\" stroke-linejoin=\"round\"", &loss_points);
}

fn scores(svg: &mut Svg, history: &History, steps: &Scale, metric: &str) {
    let columns = COLUMNS[1];
    svg.text([columns[0], 22.0], "start", TEXT, HEAD, "Validation score");
    let Some((low, _)) = ends(history.validations.iter().map(|v| v.score).filter(|v| v.is_finite())) else {
        svg.text([columns[0], 48.0], "start", TEXT, "", "There was no validation set.");
        return;
    };
    // The axis ends at 1. If all scores are high, it starts at 0.5.
    let scores = Scale::around(if low >= 0.7 { 0.5 } else { low.min(0.0) }, 1.0);
    svg.frame(columns, steps, &scores);
    svg.vertical_text([columns[0] - 46.0, ROWS[0].midpoint(ROWS[1])], SCORE, metric);
    let points: Vec<[f64; 2]> =
        history.validations.iter().map(|v| [column(columns, steps, v.step as f64), row(&scores, v.score)]).collect();
    svg.curve("score", SCORE, " stroke-width=\"2\" stroke-linejoin=\"round\"", &points);
    points.iter().for_each(|at| svg.dot("validation", *at, 3.0, SCORE, "none"));
    let best = history.validations.iter().zip(&points).rev().find(|(v, _)| v.best && v.score.is_finite());
    if let Some((best, at)) = best {
        svg.dot("best", *at, 6.0, "none", BEST);
        let text = format!("best: {:.3} at step {}", best.score, best.step);
        svg.text([columns[1], ROWS[0] - 10.0], "end", BEST, "", &text);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

    use super::*;
    use crate::history::{StepPoint, ValidationPoint};
    use std::collections::BTreeMap;

    fn point(step: u64, loss: f64) -> StepPoint {
        StepPoint { step, loss, rate: 1e-3, step_secs: 1.0, stalled_secs: 0.0 }
    }

    fn validation(step: u64, score: f64, best: bool) -> ValidationPoint {
        ValidationPoint { step, score, scores: BTreeMap::new(), best }
    }

    fn curve_points(svg: &str, class: &str) -> Vec<[f64; 2]> {
        let start = svg.split(&format!("<polyline class=\"{class}\"")).nth(1).unwrap();
        let points = start.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let number = |t: &str| t.parse::<f64>().unwrap();
        points.split(' ').map(|p| p.split_once(',').map(|(x, y)| [number(x), number(y)]).unwrap()).collect()
    }

    #[test]
    fn every_point_is_drawn_at_its_value() {
        let history = History {
            steps: (1..=100).map(|i| point(i, 1.0 - i as f64 / 200.0)).collect(),
            validations: vec![validation(0, 0.0, false), validation(50, 0.5, true), validation(100, 0.25, false)],
            notes: Vec::new(),
        };
        let svg = svg(&history, "Dice & <others>").unwrap();
        let loss = curve_points(&svg, "loss");
        assert_eq!((loss.len(), curve_points(&svg, "rate").len()), (100, 100));
        assert!(loss.windows(2).all(|w| w[0][0] < w[1][0] && w[0][1] < w[1][1]), "steps go right, losses go down");
        let score = curve_points(&svg, "score");
        // From 0 at the bottom to 1 at the top.
        let at = |share: f64| ROWS[1] + (ROWS[0] - ROWS[1]) * share;
        let rows: Vec<f64> = score.iter().map(|p| p[1]).collect();
        assert_eq!(rows, [at(0.0), at(0.5), at(0.25)].map(|v| (v * 10.0).round() / 10.0));
        assert_eq!(svg.matches("class=\"validation\"").count(), 3);
        assert!(svg.contains("best: 0.500 at step 50"));
        assert!(svg.contains("Dice &amp; &lt;others&gt;"));
    }

    #[test]
    fn incomplete_histories_are_plotted_without_nan() {
        assert!(svg(&History::default(), "Dice").is_none());
        let only_steps = History { steps: vec![point(1, 0.0)], ..History::default() };
        let only_scores = History { validations: vec![validation(0, -0.25, true)], ..History::default() };
        let wide = History { steps: vec![point(1, 1e6), point(2, 1e-6)], ..History::default() };
        let equal = History { steps: vec![point(3, 0.5), point(4, 0.5)], ..History::default() };
        let mut none = History { steps: vec![point(1, f64::NAN), point(2, 0.5)], ..History::default() };
        none.validations.push(validation(2, f64::NAN, true));
        for history in [only_steps, only_scores, wide, equal, none] {
            let made = svg(&history, "Dice").unwrap();
            assert!(!made.contains("inf") && !made.contains("NaN"), "{made}");
            assert!(made.ends_with("</svg>\n") && made.len() < 20_000);
        }
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(Scale::around(0.0, 0.93).ticks().len(), 6);
        assert_eq!(Scale { low: 0.0, high: 1500.0, log: false }.ticks(), [0.0, 500.0, 1000.0, 1500.0]);
        let decades = Scale { low: 0.02, high: 3.0, log: true }.ticks();
        assert_eq!(
            decades.iter().map(|v| number(*v)).collect::<Vec<_>>(),
            ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]
        );
        assert_eq!([0.0, 0.25, 12_000.0, 1e-5].map(number), ["0", "0.25", "12000", "1e-5"]);
    }
}

//! Applies the selected tool to pointer events.

use super::actions::{notify_other_time, select_label_action};
use super::session::SessionRequest;
use super::source::axis;
use super::tools::Tool;
use super::{Correction, Corrections};
use crate::display::{DisplayAction, PanelTask};
use crate::documents::{Documents, DocumentsAction};
use crate::effect::Effects;
use crate::state::State;
use crate::theme;
use crate::views::pen::{Marks, Pen, PointerEvent, PointerPhase};
use cytoscope_corrections::{Edit, Plane, Scope};
use eframe::egui::Color32;
use std::collections::HashMap;

/// Minimum length in voxels of a split line; shorter ones are seeds.
const LINE_VOXELS: f64 = 2.0;

/// Sampled points per voxel of line length.
const POINTS_PER_VOXEL: f64 = 2.0;

/// Maximum number of points sampled between two pointer events.
const MAX_POINTS: usize = 1 << 16;

/// The voxel that contains a point, if it lies in the stack.
fn voxel(zyx: [f64; 3], extents: [usize; 3]) -> Option<[usize; 3]> {
    let at = zyx.map(f64::round);
    (0..3).all(|a| at[a] >= 0.0 && at[a] < extents[a] as f64).then(|| at.map(|v| v as usize))
}

fn length(line: &[[f64; 3]]) -> f64 {
    let apart = |p: &[[f64; 3]]| (0..3).map(|a| (p[0][a] - p[1][a]).powi(2)).sum::<f64>().sqrt();
    line.windows(2).map(apart).sum()
}

/// Points from `a` to `b`, dense enough to skip no voxel even if the pointer moved fast.
fn between(a: [f64; 3], b: [f64; 3]) -> impl Iterator<Item = [f64; 3]> {
    let longest = (0..3).map(|i| (b[i] - a[i]).abs()).fold(0.0, f64::max);
    let steps = ((longest * POINTS_PER_VOXEL).ceil() as usize).clamp(1, MAX_POINTS);
    (0..=steps).map(move |n| {
        let share = n as f64 / steps as f64;
        [0, 1, 2].map(|i| a[i] + (b[i] - a[i]) * share)
    })
}

/// The brush or tool to draw at the pointer, while labels can be corrected; `at` is the voxel under the pointer.
pub(crate) fn pen(state: State<'_>, at: Option<[usize; 3]>) -> Option<Pen> {
    let tools = state.corrections.tools();
    let correction = state.correction().filter(|_| state.display.task() == PanelTask::Correct)?;
    if tools.tool == Tool::Navigate {
        return None;
    }
    let color = match tools.tool {
        Tool::Paint => {
            let [r, g, b] = cytoscope_formats::label_color(u64::from(correction.label));
            Color32::from_rgb(r, g, b)
        }
        _ => theme::ON_IMAGE,
    };
    Some(Pen { radius_um: tools.tool.has_brush().then_some(tools.radius_um), ball: tools.ball, color, at })
}

/// The label of a voxel, as last reported by the session; 0 outside the stack.
fn label_at(correction: &Correction, at: Option<[usize; 3]>) -> u32 {
    at.and_then(|at| correction.state.as_ref().and_then(|s| s.labels.get(at))).unwrap_or(0)
}

impl Corrections {
    /// Applies the selected tool to a pointer event.
    pub(super) fn apply_pointer_event(&mut self, event: PointerEvent, documents: &Documents, effects: &mut Effects) {
        let Some(document) = documents.active() else { return };
        let id = document.id;
        let Some(correction) = self.by_document.get_mut(&id) else { return };
        let tools = &mut self.tools;
        if document.time != correction.time {
            if event.phase == PointerPhase::Down {
                notify_other_time(correction.time, effects);
            }
            return;
        }
        let at = voxel(event.zyx, document.extents.zyx);
        let here = label_at(correction, at);
        tools.view = event.view;
        match (tools.tool, event.phase) {
            (Tool::Paint | Tool::Erase, PointerPhase::Down) => {
                let brush = tools.brush(event.view, correction.label, here);
                correction.send(SessionRequest::BeginStroke(brush, event.zyx));
                self.stroke_in = Some(id);
                effects.act(DocumentsAction::ShowLabels(id));
            }
            (Tool::Paint | Tool::Erase, PointerPhase::Move) => correction.send(SessionRequest::ExtendStroke(event.zyx)),
            (Tool::Paint | Tool::Erase, PointerPhase::Up) => {
                correction.send(SessionRequest::EndStroke);
                self.stroke_in = None;
            }
            (Tool::Fill, PointerPhase::Down) => {
                let Some(seed) = at else {
                    return effects.info("Nothing was filled", "Click inside the stack.");
                };
                let slice = Plane::new(axis(event.view), seed[event.view.axes()[0]]);
                let scope = if tools.ball { Scope::Volume } else { Scope::Slice(slice) };
                correction.edit(Edit::Fill { seed, value: correction.label, scope });
                effects.act(DocumentsAction::ShowLabels(id));
            }
            (Tool::Pick, PointerPhase::Down) if here > 0 => {
                correction.label = here;
                effects.act(select_label_action(id, here));
                effects.act(DisplayAction::RevealObject(true));
                tools.tool = tools.before;
            }
            (Tool::Merge, PointerPhase::Down) if here > 0 => {
                let shape = correction.state.as_ref().map_or([0; 3], |s| s.labels.shape_zyx());
                let is_same = |p: [f64; 3]| label_at(correction, voxel(p, shape)) == here;
                toggle_point(self.marks.entry(id).or_default(), event.zyx, is_same);
            }
            (Tool::Pick | Tool::Merge, PointerPhase::Down) => notify_no_label(effects),
            (Tool::Split, phase) => {
                let marks = self.marks.entry(id).or_default();
                draw_split(correction, marks, event, phase, document.extents.zyx, effects);
            }
            _ => {}
        }
    }
}

/// Draws the line of the split tool; a line that is too short is a seed.
fn draw_split(
    correction: &Correction,
    marks: &mut Marks,
    event: PointerEvent,
    phase: PointerPhase,
    extents: [usize; 3],
    effects: &mut Effects,
) {
    match phase {
        PointerPhase::Down => {
            marks.line = vec![event.zyx];
            marks.line_view = Some(event.view);
        }
        PointerPhase::Move => marks.line.push(event.zyx),
        PointerPhase::Up => {
            let points = std::mem::take(&mut marks.line);
            marks.line_view = None;
            if length(&points) < LINE_VOXELS {
                match label_at(correction, voxel(event.zyx, extents)) {
                    0 => notify_no_label(effects),
                    _ => marks.points.push(event.zyx),
                }
                return;
            }
            let mut under: HashMap<u32, usize> = HashMap::new();
            for point in points.windows(2).flat_map(|pair| between(pair[0], pair[1])) {
                *under.entry(label_at(correction, voxel(point, extents))).or_default() += 1;
            }
            let most_crossed = under.into_iter().filter(|(l, _)| *l > 0).max_by_key(|(l, n)| (*n, *l));
            match most_crossed {
                Some((label, _)) => {
                    let axis = axis(event.view);
                    correction.edit(Edit::SplitByLine { label, axis, points, through: true });
                }
                None => effects.info("The line crosses no label", "Draw the line across the label to split."),
            }
        }
    }
}

/// Notifies the user that the tool needs a label where background was clicked.
fn notify_no_label(effects: &mut Effects) {
    effects.info("There is no label here", "Click a label in the image.");
}

/// Adds a point to the selection, or removes the points on the same label.
fn toggle_point(marks: &mut Marks, at: [f64; 3], is_same: impl Fn([f64; 3]) -> bool) {
    let before = marks.points.len();
    marks.points.retain(|p| !is_same(*p));
    if marks.points.len() == before {
        marks.points.push(at);
    }
}

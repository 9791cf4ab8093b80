//! What tools do where the pointer goes.

use super::session::Request;
use super::source::axis;
use super::tools::Tool;
use crate::app::Workbench;
use crate::document::Document;
use crate::panels::Task;
use crate::theme;
use crate::views::pen::{Pen, Step, Touch};
use cytoscope_annotate::{Edit, Plane, Scope};
use eframe::egui::Color32;
use std::collections::HashMap;

/// Voxels that the pointer has to go for a line instead of a seed.
const LINE_VOXELS: f64 = 2.0;

/// Points looked at on a line, a voxel of its length.
const POINTS_PER_VOXEL: f64 = 2.0;

/// Points looked at between two that the pointer told.
const MAX_POINTS: usize = 1 << 16;

/// The voxel that a point is in, if it is in the stack.
fn voxel(zyx: [f64; 3], extents: [usize; 3]) -> Option<[usize; 3]> {
    let at = zyx.map(f64::round);
    (0..3).all(|a| at[a] >= 0.0 && at[a] < extents[a] as f64).then(|| at.map(|v| v as usize))
}

fn length(line: &[[f64; 3]]) -> f64 {
    let apart = |p: &[[f64; 3]]| (0..3).map(|a| (p[0][a] - p[1][a]).powi(2)).sum::<f64>().sqrt();
    line.windows(2).map(apart).sum()
}

/// Points from `a` to `b`, close enough that no voxel is passed over, however fast the pointer went.
fn between(a: [f64; 3], b: [f64; 3]) -> impl Iterator<Item = [f64; 3]> {
    let longest = (0..3).map(|i| (b[i] - a[i]).abs()).fold(0.0, f64::max);
    let steps = ((longest * POINTS_PER_VOXEL).ceil() as usize).clamp(1, MAX_POINTS);
    (0..=steps).map(move |n| {
        let share = n as f64 / steps as f64;
        [0, 1, 2].map(|i| a[i] + (b[i] - a[i]) * share)
    })
}

impl Workbench {
    /// What is in hand, where labels can be corrected.
    pub(crate) fn pen(&self) -> Option<Pen> {
        let tools = &self.corrections.tools;
        let correction = self.correction().filter(|_| self.panels.task == Task::Correct)?;
        if tools.tool == Tool::Look {
            return None;
        }
        let color = match tools.tool {
            Tool::Paint => {
                let [r, g, b] = cytoscope_formats::label_color(u64::from(correction.label));
                Color32::from_rgb(r, g, b)
            }
            _ => theme::ON_IMAGE,
        };
        Some(Pen {
            radius_um: tools.tool.has_brush().then_some(tools.radius_um),
            ball: tools.ball,
            color,
            at: self.layout.hover.map(|h| h.zyx),
        })
    }

    /// A label clicked while looking around becomes the current one.
    pub(crate) fn choose_label(&mut self, label: u32) {
        let Some(id) = self.active else { return };
        if let Some(correction) = self.corrections.of.get_mut(&id).filter(|_| label > 0) {
            correction.label = label;
        }
    }

    /// Does what the tool in hand does.
    pub(crate) fn touched(&mut self, touches: &[Touch]) {
        for touch in touches {
            self.touch(*touch);
        }
    }

    fn touch(&mut self, touch: Touch) {
        let Some(id) = self.active else { return };
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        let Some(correction) = self.corrections.of.get_mut(&id) else { return };
        let tools = &mut self.corrections.tools;
        if document.time != correction.time {
            if touch.step == Step::Down {
                self.notices.info(
                    "Another time point is on screen",
                    format!("These corrections are of time point {}: go back to it.", correction.time + 1),
                );
            }
            return;
        }
        let at = voxel(touch.zyx, document.extents.zyx);
        let label_at = |at: Option<[usize; 3]>| {
            at.and_then(|at| correction.state.as_ref().and_then(|s| s.labels.get(at))).unwrap_or(0)
        };
        let here = label_at(at);
        tools.view = touch.view;
        match (tools.tool, touch.step) {
            (Tool::Paint | Tool::Erase, Step::Down) => {
                let brush = tools.brush(touch.view, correction.label, here);
                correction.ask(Request::Begin(brush, touch.zyx));
                show_labels(document);
            }
            (Tool::Paint | Tool::Erase, Step::Move) => correction.ask(Request::Extend(touch.zyx)),
            (Tool::Paint | Tool::Erase, Step::Up) => correction.ask(Request::End),
            (Tool::Fill, Step::Down) => {
                if let Some(seed) = at {
                    let slice = Plane::new(axis(touch.view), seed[touch.view.axes()[0]]);
                    let scope = if tools.ball { Scope::Volume } else { Scope::Slice(slice) };
                    correction.ask(Request::Apply(Edit::Fill { seed, value: correction.label, scope }));
                    show_labels(document);
                }
            }
            (Tool::Pick, Step::Down) if here > 0 => {
                correction.label = here;
                document.select(Some(here));
                self.panels.objects.scroll_to_selected = true;
                tools.tool = tools.before;
            }
            (Tool::Merge, Step::Down) if here > 0 => toggle(document, touch.zyx, |p| {
                label_at(voxel(p, correction.state.as_ref().map_or([0; 3], |s| s.labels.shape_zyx()))) == here
            }),
            (Tool::Split, Step::Down) => {
                document.marks.line = vec![touch.zyx];
                document.marks.line_view = Some(touch.view);
            }
            (Tool::Split, Step::Move) => document.marks.line.push(touch.zyx),
            (Tool::Split, Step::Up) => {
                let points = std::mem::take(&mut document.marks.line);
                document.marks.line_view = None;
                if length(&points) < LINE_VOXELS {
                    if here > 0 {
                        document.marks.points.push(touch.zyx);
                    }
                    return;
                }
                let extents = document.extents.zyx;
                let mut under: HashMap<u32, usize> = HashMap::new();
                for point in points.windows(2).flat_map(|pair| between(pair[0], pair[1])) {
                    *under.entry(label_at(voxel(point, extents))).or_default() += 1;
                }
                let most = under.into_iter().filter(|(l, _)| *l > 0).max_by_key(|(l, n)| (*n, *l));
                match most {
                    Some((label, _)) => {
                        let axis = axis(touch.view);
                        correction.ask(Request::Apply(Edit::SplitByLine { label, axis, points, through: true }));
                    }
                    None => self.notices.info("The line crosses no label", "Draw it across the one to be split."),
                }
            }
            _ => {}
        }
    }
}

/// What one corrects is to be seen.
fn show_labels(document: &mut Document) {
    if let Some(overlay) = document.of_role_mut(crate::document::Role::Labels) {
        overlay.visible = true;
    }
}

/// Marks a point, or takes back the one on the same label.
fn toggle(document: &mut Document, at: [f64; 3], same: impl Fn([f64; 3]) -> bool) {
    let before = document.marks.points.len();
    document.marks.points.retain(|p| !same(*p));
    if document.marks.points.len() == before {
        document.marks.points.push(at);
    }
}

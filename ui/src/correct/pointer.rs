//! Applies the selected tool to pointer events.

use super::session::Request;
use super::source::axis;
use super::tools::Tool;
use crate::app::Workbench;
use crate::document::Document;
use crate::panels::PanelTask;
use crate::theme;
use crate::views::pen::{Pen, PointerEvent, PointerPhase};
use cytoscope_annotate::{Edit, Plane, Scope};
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

impl Workbench {
    /// The brush or tool to draw at the pointer, while labels can be corrected.
    pub(crate) fn pen(&self) -> Option<Pen> {
        let tools = &self.corrections.tools;
        let correction = self.correction().filter(|_| self.panels.task == PanelTask::Correct)?;
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
        Some(Pen {
            radius_um: tools.tool.has_brush().then_some(tools.radius_um),
            ball: tools.ball,
            color,
            at: self.layout.hover.map(|h| h.zyx),
        })
    }

    /// Makes a clicked label the current one.
    pub(crate) fn set_current_label(&mut self, label: u32) {
        let Some(id) = self.active else { return };
        if let Some(correction) = self.corrections.of.get_mut(&id).filter(|_| label > 0) {
            correction.label = label;
        }
    }

    /// Applies the selected tool to pointer events.
    pub(crate) fn apply_pointer_events(&mut self, events: &[PointerEvent]) {
        for event in events {
            self.apply_pointer_event(*event);
        }
    }

    fn apply_pointer_event(&mut self, event: PointerEvent) {
        let Some(id) = self.active else { return };
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        let Some(correction) = self.corrections.of.get_mut(&id) else { return };
        let tools = &mut self.corrections.tools;
        if document.time != correction.time {
            if event.phase == PointerPhase::Down {
                self.notifications.info(
                    "Another time point is shown",
                    format!("These corrections belong to time point {}: go back to it.", correction.time + 1),
                );
            }
            return;
        }
        let at = voxel(event.zyx, document.extents.zyx);
        let label_at = |at: Option<[usize; 3]>| {
            at.and_then(|at| correction.state.as_ref().and_then(|s| s.labels.get(at))).unwrap_or(0)
        };
        let here = label_at(at);
        tools.view = event.view;
        match (tools.tool, event.phase) {
            (Tool::Paint | Tool::Erase, PointerPhase::Down) => {
                let brush = tools.brush(event.view, correction.label, here);
                correction.ask(Request::Begin(brush, event.zyx));
                show_labels(document);
            }
            (Tool::Paint | Tool::Erase, PointerPhase::Move) => correction.ask(Request::Extend(event.zyx)),
            (Tool::Paint | Tool::Erase, PointerPhase::Up) => correction.ask(Request::End),
            (Tool::Fill, PointerPhase::Down) => {
                if let Some(seed) = at {
                    let slice = Plane::new(axis(event.view), seed[event.view.axes()[0]]);
                    let scope = if tools.ball { Scope::Volume } else { Scope::Slice(slice) };
                    correction.ask(Request::Apply(Edit::Fill { seed, value: correction.label, scope }));
                    show_labels(document);
                }
            }
            (Tool::Pick, PointerPhase::Down) if here > 0 => {
                correction.label = here;
                document.select(Some(here));
                self.panels.objects.scroll_to_selected = true;
                tools.tool = tools.before;
            }
            (Tool::Merge, PointerPhase::Down) if here > 0 => toggle_point(document, event.zyx, |p| {
                label_at(voxel(p, correction.state.as_ref().map_or([0; 3], |s| s.labels.shape_zyx()))) == here
            }),
            (Tool::Split, PointerPhase::Down) => {
                document.marks.line = vec![event.zyx];
                document.marks.line_view = Some(event.view);
            }
            (Tool::Split, PointerPhase::Move) => document.marks.line.push(event.zyx),
            (Tool::Split, PointerPhase::Up) => {
                let points = std::mem::take(&mut document.marks.line);
                document.marks.line_view = None;
                if length(&points) < LINE_VOXELS {
                    if here > 0 {
                        document.marks.points.push(event.zyx);
                    }
                    return;
                }
                let extents = document.extents.zyx;
                let mut under: HashMap<u32, usize> = HashMap::new();
                for point in points.windows(2).flat_map(|pair| between(pair[0], pair[1])) {
                    *under.entry(label_at(voxel(point, extents))).or_default() += 1;
                }
                let most_crossed = under.into_iter().filter(|(l, _)| *l > 0).max_by_key(|(l, n)| (*n, *l));
                match most_crossed {
                    Some((label, _)) => {
                        let axis = axis(event.view);
                        correction.ask(Request::Apply(Edit::SplitByLine { label, axis, points, through: true }));
                    }
                    None => {
                        self.notifications.info("The line crosses no label", "Draw the line across the label to split.")
                    }
                }
            }
            _ => {}
        }
    }
}

/// Makes the labels being corrected visible.
fn show_labels(document: &mut Document) {
    if let Some(overlay) = document.of_role_mut(crate::document::Role::Labels) {
        overlay.visible = true;
    }
}

/// Adds a point to the selection, or removes the points on the same label.
fn toggle_point(document: &mut Document, at: [f64; 3], same: impl Fn([f64; 3]) -> bool) {
    let before = document.marks.points.len();
    document.marks.points.retain(|p| !same(*p));
    if document.marks.points.len() == before {
        document.marks.points.push(at);
    }
}

//! Line profile: a line in a view, its length, and the intensities along it.

use crate::action::Actions;
use crate::command::Command;
use crate::data::composite::DisplayedPlane;
use crate::data::plane::{Orientation, Plane};
use crate::document::Document;
use crate::documents::DocumentsAction;
use crate::opener::FileRequest;
use crate::panels::axis_marks::low_y_marks;
use crate::panels::{frame, icon_button, icon_row, legend, weak, x_axis, y_axis};
use crate::state::State;
use crate::theme;
use crate::views::layout::Layout;
use crate::views::pen::{Pen, PointerEvent, PointerPhase};
use eframe::egui::{self, Color32, RichText, Ui, Vec2b};
use egui_phosphor::regular as icon;
use egui_plot::{Line, Plot, PlotPoints};

/// Maximum number of samples along a line.
const MAX_SAMPLES: usize = 4096;

/// Minimum height of the panel in points.
const MIN_HEIGHT: f32 = 110.0;

/// Minimum length of a line in voxels; shorter ones are clicks.
const MIN_VOXELS: f64 = 0.5;

/// A line along which distance and intensities are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProfileLine {
    /// Slice view that it was drawn in.
    pub view: Orientation,
    /// End points in voxel coordinates Z, Y, X; integers are voxel centers.
    pub ends: [[f64; 3]; 2],
}

/// Intensity profile of one channel along a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Channel index.
    pub channel: usize,
    /// Pairs of distance from the start and value.
    pub points: Vec<[f64; 2]>,
}

impl ProfileLine {
    /// Length of the line for a voxel size Z, Y, X, in its unit.
    pub fn length(&self, voxel: [f64; 3]) -> f64 {
        let [a, b] = self.ends;
        (0..3).map(|i| ((b[i] - a[i]) * voxel[i]).powi(2)).sum::<f64>().sqrt()
    }

    /// Intensity profiles of the displayed planes, about two samples per voxel, linearly interpolated. Points outside
    /// the stack have no sample.
    pub fn curves(&self, shown: &[DisplayedPlane], voxel: [f64; 3]) -> Vec<Curve> {
        let [_, rows, columns] = self.view.axes();
        let [a, b] = self.ends.map(|p| [p[rows], p[columns]]);
        let voxels = (b[0] - a[0]).abs().max((b[1] - a[1]).abs());
        let count = ((voxels * 2.0).ceil() as usize + 1).clamp(2, MAX_SAMPLES);
        let length = self.length(voxel);
        let channels = shown.iter().filter_map(|s| match s {
            DisplayedPlane::Intensity(plane, _) => Some(plane),
            DisplayedPlane::Labels(..) => None,
        });
        let along = |plane: &Plane| -> Vec<[f64; 2]> {
            let place = |i: usize| {
                let t = i as f64 / (count - 1) as f64;
                let value = interpolate(plane, a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t)?;
                Some([t * length, value])
            };
            (0..count).filter_map(place).collect()
        };
        channels.map(|plane| Curve { channel: plane.at.channel, points: along(plane) }).collect()
    }
}

/// Bilinear interpolation in a plane, clamped within the outermost half voxel; `None` outside the plane.
fn interpolate(plane: &Plane, row: f64, column: f64) -> Option<f64> {
    let split = |at: f64, from: usize, to: usize| {
        let inside = at >= from as f64 - 0.5 && at <= to as f64 - 0.5 && to > from;
        let at = at.clamp(from as f64, to.saturating_sub(1) as f64);
        inside.then(|| (at.floor() as usize, (at.floor() as usize + 1).min(to - 1), at - at.floor()))
    };
    let (r0, r1, down) = split(row, plane.at.rows.start, plane.at.rows.end)?;
    let (c0, c1, right) = split(column, plane.at.columns.start, plane.at.columns.end)?;
    let mix = |r: usize| Some(plane.value(r, c0)? * (1.0 - right) + plane.value(r, c1)? * right);
    Some(mix(r0)? * (1.0 - down) + mix(r1)? * down)
}

/// Unit of the distances along a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LengthUnit {
    Micrometers,
    /// The voxel size is unknown.
    Voxels,
}

impl LengthUnit {
    /// Returns the name of the unit for display.
    fn name(self) -> &'static str {
        match self {
            Self::Micrometers => "µm",
            Self::Voxels => "voxels",
        }
    }

    /// Returns the unit in the name of a table's column.
    fn in_column(self) -> &'static str {
        match self {
            Self::Micrometers => "um",
            Self::Voxels => "px",
        }
    }
}

/// Curves by channel name, length of the line, and the unit of both.
type Profile = (Vec<(String, Curve)>, f64, LengthUnit);

/// The curves as CSV; all have the same distances.
fn csv(curves: &[(String, Curve)], unit: LengthUnit) -> String {
    let mut text = format!("distance_{}", unit.in_column());
    for (name, _) in curves {
        text.push_str(&format!(",\"{}\"", name.replace('"', "\"\"")));
    }
    text.push('\n');
    let longest = curves.iter().map(|(_, c)| c.points.len()).max().unwrap_or(0);
    for i in 0..longest {
        let at = curves.iter().find_map(|(_, c)| c.points.get(i)).map_or(0.0, |p| p[0]);
        text.push_str(&format!("{at:.4}"));
        for (_, curve) in curves {
            match curve.points.get(i) {
                Some([_, value]) => text.push_str(&format!(",{value}")),
                None => text.push(','),
            }
        }
        text.push('\n');
    }
    text
}

/// State of the line profile tool.
#[derive(Debug, Default)]
pub struct LineProfileTool {
    on: bool,
    line: Option<(u64, ProfileLine)>,
}

impl LineProfileTool {
    /// Whether the tool is active.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Switches the tool on or off.
    pub fn toggle(&mut self) {
        self.on = !self.on;
    }

    /// The line in a document, if it is more than a click.
    pub fn line(&self, document: u64) -> Option<ProfileLine> {
        let line = self.line.filter(|(of, _)| *of == document && self.on).map(|(_, line)| line);
        line.filter(|line| line.length([1.0; 3]) >= MIN_VOXELS)
    }

    /// Updates the line from pointer events in a document.
    pub fn draw(&mut self, document: u64, events: &[PointerEvent]) {
        for event in events {
            match (event.phase, &mut self.line) {
                (PointerPhase::Down, line) => {
                    *line = Some((document, ProfileLine { view: event.view, ends: [event.zyx; 2] }));
                }
                (_, Some((of, line))) if *of == document && line.view == event.view => line.ends[1] = event.zyx,
                _ => {}
            }
        }
    }
}

/// The pointer tool while the line profile is active.
pub(crate) fn line_profile_pen(state: State<'_>) -> Option<Pen> {
    state.display.shows_line_profile().then_some(Pen { radius_um: None, ball: false, color: theme::ACCENT, at: None })
}

/// The profile of the line in a document, from the planes that `views` show.
fn profile_along(document: &Document, state: State<'_>, views: &Layout) -> Option<Profile> {
    let line = state.display.profile_line(document.id)?;
    let (voxel, unit) = if document.voxel_known {
        (document.voxel_um, LengthUnit::Micrometers)
    } else {
        ([1.0; 3], LengthUnit::Voxels)
    };
    let curves = line.curves(views.view(line.view).shown_channels(), voxel);
    let named = curves.into_iter().map(|curve| {
        let name = document.channels.get(curve.channel).map_or_else(String::new, |c| c.name.clone());
        (name, curve)
    });
    Some((named.collect(), line.length(voxel), unit))
}

/// The displayed profile as CSV.
pub(crate) fn line_profile_csv(state: State<'_>, views: &Layout) -> Option<String> {
    let (curves, _, unit) = profile_along(state.document()?, state, views)?;
    Some(csv(&curves, unit))
}

/// Draws the profile panel below the views.
pub(crate) fn line_profile_panel(ui: &mut Ui, state: State<'_>, views: &Layout, actions: &mut Actions) {
    if !state.display.shows_line_profile() {
        return;
    }
    let Some(document) = state.document() else { return };
    let profile = profile_along(document, state, views);
    let curve_colors: Vec<Color32> = document.channels.iter().map(|c| curve_color(&c.display.map)).collect();
    let mut close = false;
    let mut save = false;
    let panel = egui::Panel::bottom("line profile").frame(frame(ui)).resizable(true);
    // In low windows, the views keep most of the height.
    let default_height = (ui.available_height() * 0.3).clamp(MIN_HEIGHT, 190.0);
    let most_height = (ui.available_height() * 0.5).clamp(MIN_HEIGHT, 420.0);
    panel.default_size(default_height).size_range(MIN_HEIGHT..=most_height).show(ui, |ui| {
        icon_row(ui, |ui| {
            ui.label(RichText::new("Line profile").strong());
            match &profile {
                Some((_, length, unit)) => ui.label(format!("{length:.2} {}", unit.name())),
                None => weak(ui, "Drag a line across a slice."),
            };
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                close = icon_button(ui, icon::X, "Close line profile", true, false).clicked();
                let table = icon_button(ui, icon::TABLE, "Save line profile as CSV", profile.is_some(), false);
                save = table.on_disabled_hover_text("Drag a line across a slice first.").clicked();
            });
        });
        let Some((curves, _, unit)) = &profile else {
            ui.allocate_space(ui.available_size());
            return;
        };
        if !curves.is_empty() && curves.iter().all(|(_, curve)| curve.points.is_empty()) {
            weak(ui, "The line is outside the visible part of the stack.");
            ui.allocate_space(ui.available_size());
            return;
        }
        let label = format!("Distance in {}", unit.name());
        let color_of = |curve: &Curve| curve_colors.get(curve.channel).copied().unwrap_or(theme::ACCENT);
        if curves.len() > 1 {
            legend(ui, curves.iter().map(|(name, curve)| (color_of(curve), name.as_str())));
        }
        let plot = Plot::new("line profile")
            .allow_scroll(false)
            .allow_drag(Vec2b::FALSE)
            .custom_x_axes(x_axis(label))
            .custom_y_axes(y_axis("Value"))
            .y_grid_spacer(low_y_marks)
            .y_axis_min_width(44.0);
        plot.show(ui, |plot| {
            for (name, curve) in curves {
                let points = PlotPoints::from(curve.points.clone());
                plot.line(Line::new(name.clone(), points).color(color_of(curve)));
            }
        });
    });
    if close {
        actions.command(Command::ToggleLineProfile);
    }
    if save {
        let folder = document.path.parent().map(Into::into);
        let name = "line_profile.csv".to_owned();
        actions.send(DocumentsAction::Ask { request: FileRequest::LineProfile(document.id), folder, name });
    }
}

/// Color of a channel's curve, visible on light and dark backgrounds.
fn curve_color(map: &crate::data::composite::ColorMap) -> Color32 {
    use crate::data::composite::ColorMap::Tint;
    match map {
        Tint([r, g, b]) => Color32::from_rgb(*r, *g, *b).gamma_multiply(0.9),
        _ => theme::ACCENT,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use crate::data::plane::{PlaneAt, Values};
    use crate::document::Overlay;
    use std::sync::Arc;

    fn shown(rows: usize, columns: usize, f: impl Fn(usize, usize) -> f32) -> Vec<DisplayedPlane> {
        let values = (0..rows * columns).map(|i| f(i / columns, i % columns)).collect();
        let at = PlaneAt { channel: 2, ..PlaneAt::whole(Orientation::Xz, 0, [rows, 1, columns]) };
        let plane = Plane { at, values: Values::F32(values), size: [rows, columns] };
        vec![DisplayedPlane::Intensity(Arc::new(plane), Overlay::map_display())]
    }

    #[test]
    fn a_ramp_is_a_straight_line_in_um() {
        // Value = 10 z + x; voxels of 2 µm in Z and 0.5 µm in X.
        let planes = shown(9, 30, |z, x| 10.0 * z as f32 + x as f32);
        let line = ProfileLine { view: Orientation::Xz, ends: [[1.0, 4.0, 2.0], [7.0, 4.0, 20.0]] };
        let voxel = [2.0, 1.0, 0.5];
        assert!((line.length(voxel) - 15.0).abs() < 1e-12);
        let curves = line.curves(&planes, voxel);
        assert_eq!((curves.len(), curves[0].channel, curves[0].points.len()), (1, 2, 37));
        for [at, value] in &curves[0].points {
            let t = at / 15.0;
            assert!((value - (12.0 + t * (60.0 + 18.0))).abs() < 1e-4, "{at} {value}");
        }
        let text = csv(&[("a \"b\"".to_owned(), curves[0].clone())], LengthUnit::Micrometers);
        assert_eq!(text.lines().take(2).collect::<Vec<_>>(), ["distance_um,\"a \"\"b\"\"\"", "0.0000,12"]);
        assert_eq!(text.lines().count(), 38);
        // Without a voxel size, the window counts voxels as everywhere; the column keeps its name.
        assert_eq!((LengthUnit::Voxels.name(), LengthUnit::Voxels.in_column()), ("voxels", "px"));
    }

    #[test]
    fn samples_outside_the_stack_are_skipped() {
        let planes = shown(4, 5, |_, _| 1.0);
        let line = ProfileLine { view: Orientation::Xz, ends: [[1.0, 0.0, -3.0], [1.0, 0.0, 8.0]] };
        let points = &line.curves(&planes, [1.0; 3])[0].points;
        assert!((points.first().unwrap()[0] - 2.5).abs() < 1e-9 && (points.last().unwrap()[0] - 7.5).abs() < 1e-9);
        assert!(points.iter().all(|p| (p[1] - 1.0).abs() < 1e-6));
    }
}

//! Camera of the 3-D view: free rotation, panning and zoom, in orthographic or perspective projection.
//!
//! World coordinates are in µm with axes X (right), Y (down), Z (away from the viewer), so that slices are not
//! mirrored.

use eframe::egui::{Pos2, Rect, Vec2, vec2};

/// A point or direction: X, Y, Z.
pub type Xyz = [f64; 3];

/// Initial tilt and turn in degrees: the first slice on top, as if the stack lay on a stage.
const HOME_DEGREES: [f64; 2] = [-52.0, -28.0];

/// Fraction of the pane that the volume fills initially.
const FILL: f64 = 0.78;

/// Distance of the eye in perspective projection, in volume diagonals.
const EYE_DIAGONALS: f64 = 1.4;

/// Minimum and maximum zoom.
const ZOOM: [f64; 2] = [0.3, 40.0];

pub(crate) fn add(a: Xyz, b: Xyz) -> Xyz {
    std::array::from_fn(|i| a[i] + b[i])
}

pub(crate) fn scale(a: Xyz, s: f64) -> Xyz {
    a.map(|v| v * s)
}

pub(crate) fn length(a: Xyz) -> f64 {
    a.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// A rotation, as a unit quaternion W, X, Y, Z.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation([f64; 4]);

impl Rotation {
    /// The rotation that changes nothing.
    pub const IDENTITY: Rotation = Rotation([1.0, 0.0, 0.0, 0.0]);

    /// Right-handed rotation about an axis; a zero axis gives the identity.
    fn from_axis_angle(axis: Xyz, radians: f64) -> Self {
        let n = length(axis);
        if n.is_nan() || n <= 0.0 {
            return Self::IDENTITY;
        }
        let (sin, cos) = (radians / 2.0).sin_cos();
        Self([cos, axis[0] / n * sin, axis[1] / n * sin, axis[2] / n * sin])
    }

    /// The rotation that applies `first`, then `self`.
    fn compose(self, first: Rotation) -> Self {
        let [a, b, c, d] = self.0;
        let [e, f, g, h] = first.0;
        let q = [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ];
        // Normalized, so that rounding errors of many small rotations do not add up.
        let n = q.iter().map(|v| v * v).sum::<f64>().sqrt();
        if n > 0.0 { Self(q.map(|v| v / n)) } else { Self::IDENTITY }
    }

    /// Returns the rotation that undoes this one.
    pub fn inverse(self) -> Self {
        let [w, x, y, z] = self.0;
        Self([w, -x, -y, -z])
    }

    /// Returns the rotated vector.
    pub fn apply(self, v: Xyz) -> Xyz {
        let [w, x, y, z] = self.0;
        let cross = |a: Xyz, b: Xyz| [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
        let axis = [x, y, z];
        let t = scale(cross(axis, v), 2.0);
        add(add(v, scale(t, w)), cross(axis, t))
    }
}

/// Camera position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Camera {
    /// Rotation from volume axes to view axes (right, down, away).
    pub rotation: Rotation,
    /// Point at the center of the pane, relative to the volume's center, in diagonals.
    pub target: Xyz,
    /// Zoom; 1 fits the volume.
    pub zoom: f64,
    /// Whether the projection is perspective.
    pub perspective: bool,
}

impl Default for Camera {
    fn default() -> Self {
        let [tilt, turn] = HOME_DEGREES.map(f64::to_radians);
        let rotation =
            Rotation::from_axis_angle([1.0, 0.0, 0.0], tilt).compose(Rotation::from_axis_angle([0.0, 0.0, 1.0], turn));
        Self { rotation, target: [0.0; 3], zoom: 1.0, perspective: false }
    }
}

impl Camera {
    /// The view along Z, as in a slice view.
    pub fn front() -> Self {
        Self { rotation: Rotation::IDENTITY, ..Self::default() }
    }

    /// Rotates as if the pointer dragged the near side. `moved` is a fraction of the pane; 1 is half a turn.
    ///
    /// Rotation axes lie in the pane, which avoids gimbal lock.
    pub fn rotate(&mut self, moved: Vec2) {
        let axis = [f64::from(moved.y), -f64::from(moved.x), 0.0];
        let turned = Rotation::from_axis_angle(axis, f64::from(moved.length()) * std::f64::consts::PI);
        self.rotation = turned.compose(self.rotation);
    }
}

/// A ray through a point of the screen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ray {
    /// Start point in µm.
    pub origin: Xyz,
    /// Direction, not normalized.
    pub direction: Xyz,
}

/// Projection of a volume onto a pane: from µm to screen points and back.
#[derive(Debug, Clone, Copy)]
pub struct Projection {
    rotation: Rotation,
    target_um: Xyz,
    center: Pos2,
    /// Screen points per µm at the target.
    pub points_per_um: f64,
    eye_um: f64,
    perspective: bool,
    diagonal_um: f64,
    size_um: Xyz,
}

impl Projection {
    /// The projection of a volume of size X, Y, Z in µm onto `rect`.
    pub fn new(camera: &Camera, size_um: Xyz, rect: Rect) -> Self {
        let diagonal_um = length(size_um).max(1e-9);
        let mut seen = [1e-9f64; 2];
        for corner in corners(size_um) {
            let at = Camera::default().rotation.apply(add(corner, scale(size_um, -0.5)));
            seen = [seen[0].max(at[0].abs()), seen[1].max(at[1].abs())];
        }
        let pane_size = [f64::from(rect.width().max(8.0)), f64::from(rect.height().max(8.0))];
        let fitted = (pane_size[0] / (2.0 * seen[0])).min(pane_size[1] / (2.0 * seen[1])) * FILL;
        Self {
            rotation: camera.rotation,
            target_um: add(scale(size_um, 0.5), scale(camera.target, diagonal_um)),
            center: rect.center(),
            points_per_um: fitted * camera.zoom.clamp(ZOOM[0], ZOOM[1]),
            eye_um: diagonal_um * EYE_DIAGONALS,
            perspective: camera.perspective,
            diagonal_um,
            size_um,
        }
    }

    /// Screen position of a point, and its depth behind the target in µm.
    pub fn to_screen(&self, um: Xyz) -> (Pos2, f64) {
        let [x, y, z] = self.rotation.apply(add(um, scale(self.target_um, -1.0)));
        let nearer = if self.perspective { self.eye_um / (self.eye_um + z).max(self.eye_um * 1e-3) } else { 1.0 };
        let points = self.points_per_um * nearer;
        (self.center + vec2((x * points) as f32, (y * points) as f32), z)
    }

    /// The viewing ray through a screen point. Origin and direction are linear in the point.
    pub fn ray(&self, at: Pos2) -> Ray {
        let off = at - self.center;
        let (x, y) = (f64::from(off.x) / self.points_per_um, f64::from(off.y) / self.points_per_um);
        let back = self.rotation.inverse();
        let (from, to) = if self.perspective {
            ([0.0, 0.0, -self.eye_um], [x / self.eye_um, y / self.eye_um, 1.0])
        } else {
            // Far enough that the whole volume lies ahead for any target.
            ([x, y, -2.0 * self.diagonal_um], [0.0, 0.0, 1.0])
        };
        Ray { origin: add(back.apply(from), self.target_um), direction: back.apply(to) }
    }

    /// Transforms a direction from view axes (right, down, away) to volume axes.
    pub fn from_view(&self, direction: Xyz) -> Xyz {
        self.rotation.inverse().apply(direction)
    }

    /// Pans by a number of screen points.
    pub fn pan(&self, camera: &mut Camera, moved: Vec2) {
        let um = [-f64::from(moved.x) / self.points_per_um, -f64::from(moved.y) / self.points_per_um, 0.0];
        let target = add(camera.target, scale(self.from_view(um), 1.0 / self.diagonal_um));
        // The target stays inside the volume, so that it cannot leave the pane.
        let half = scale(self.size_um, 0.5 / self.diagonal_um);
        camera.target = std::array::from_fn(|i| target[i].clamp(-half[i], half[i]));
    }

    /// Zooms about a screen point.
    pub fn zoom(&self, camera: &mut Camera, factor: f64, at: Pos2) {
        let before = camera.zoom;
        camera.zoom = (before * factor).clamp(ZOOM[0], ZOOM[1]);
        let off = at - self.center;
        let share = (before / camera.zoom - 1.0) as f32;
        self.pan(camera, off * share);
    }
}

/// Corners of a box at the origin; bits 0, 1, 2 of the index select X, Y, Z.
pub fn corners(size: Xyz) -> [Xyz; 8] {
    std::array::from_fn(|i| std::array::from_fn(|a| if i >> a & 1 == 1 { size[a] } else { 0.0 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::pos2;

    const RECT: Rect = Rect { min: Pos2 { x: 100.0, y: 50.0 }, max: Pos2 { x: 500.0, y: 350.0 } };
    const SIZE: Xyz = [40.0, 30.0, 20.0];

    fn close(a: Xyz, b: Xyz) -> bool {
        length(add(a, scale(b, -1.0))) < 1e-6
    }

    #[test]
    fn a_slice_seen_from_the_front_is_not_mirrored() {
        let projection = Projection::new(&Camera::front(), SIZE, RECT);
        let origin = projection.to_screen([0.0; 3]).0;
        let (x, y) = (projection.to_screen([40.0, 0.0, 0.0]).0, projection.to_screen([0.0, 30.0, 0.0]).0);
        assert!(x.x > origin.x && (x.y - origin.y).abs() < 1e-3, "X runs to the right");
        assert!(y.y > origin.y && (y.x - origin.x).abs() < 1e-3, "Y runs down");
        assert!(projection.to_screen([0.0, 0.0, 20.0]).1 > projection.to_screen([0.0; 3]).1, "Z runs away");
        let ratio = f64::from(x.x - origin.x) / f64::from(y.y - origin.y);
        assert!((ratio - 40.0 / 30.0).abs() < 1e-4, "true aspect");
        let middle = projection.to_screen([20.0, 15.0, 10.0]).0;
        assert!((middle - RECT.center()).length() < 1e-3);
    }

    #[test]
    fn rays_pass_through_their_screen_point() {
        for perspective in [false, true] {
            let mut camera = Camera { perspective, zoom: 1.7, ..Camera::default() };
            camera.rotate(vec2(0.3, -0.45));
            camera.target = [0.1, -0.05, 0.02];
            let projection = Projection::new(&camera, SIZE, RECT);
            for corner in corners(SIZE) {
                let (at, _) = projection.to_screen(corner);
                let Ray { origin, direction } = projection.ray(at);
                let to = add(corner, scale(origin, -1.0));
                let along = (0..3).map(|i| to[i] * direction[i]).sum::<f64>() / length(direction).powi(2);
                assert!(along > 0.0, "the corner is in front of the eye");
                let miss = length(add(to, scale(direction, -along)));
                assert!(miss < 1e-3, "{corner:?} missed by {miss} µm");
            }
        }
    }

    #[test]
    fn dragging_moves_the_near_side_with_the_pointer() {
        let mut camera = Camera::default();
        for step in 0..200 {
            let moved = [vec2(0.02, 0.0), vec2(0.0, 0.02), vec2(-0.013, 0.017)][step % 3];
            let projection = Projection::new(&camera, SIZE, RECT);
            // A point near the eye on the viewing axis.
            let near = add(scale(SIZE, 0.5), projection.from_view([0.0, 0.0, -5.0]));
            camera.rotate(moved);
            let (after, _) = Projection::new(&camera, SIZE, RECT).to_screen(near);
            let went = after - RECT.center();
            assert!(went.normalized().dot(moved.normalized()) > 0.999, "step {step}: {moved:?} moved it by {went:?}");
        }
        let turned = camera.rotation.apply([1.0, 2.0, 3.0]);
        assert!((length(turned) - 14f64.sqrt()).abs() < 1e-9, "still a rotation");
        assert!(close(camera.rotation.inverse().apply(turned), [1.0, 2.0, 3.0]));
    }

    #[test]
    fn the_volume_fits_initially_and_zoom_keeps_the_point_under_the_pointer() {
        let mut camera = Camera::default();
        let projection = Projection::new(&camera, SIZE, RECT);
        for corner in corners(SIZE) {
            assert!(RECT.contains(projection.to_screen(corner).0), "{corner:?} is off the pane");
        }
        let at = pos2(260.0, 240.0);
        let under = add(projection.ray(at).origin, projection.from_view([0.0, 0.0, 2.0 * length(SIZE)]));
        projection.zoom(&mut camera, 2.0, at);
        let after = Projection::new(&camera, SIZE, RECT).to_screen(under).0;
        assert!((after - at).length() < 0.01, "{after:?}");
        projection.zoom(&mut camera, 1e9, at);
        assert!(camera.zoom <= ZOOM[1]);
    }

    #[test]
    fn panning_follows_the_pointer_and_keeps_the_volume_in_view() {
        let mut camera = Camera::front();
        let projection = Projection::new(&camera, SIZE, RECT);
        let middle = scale(SIZE, 0.5);
        projection.pan(&mut camera, vec2(12.0, -7.0));
        let moved = Projection::new(&camera, SIZE, RECT).to_screen(middle).0 - RECT.center();
        assert!((moved - vec2(12.0, -7.0)).length() < 0.01, "{moved:?}");
        for _ in 0..1000 {
            projection.pan(&mut camera, vec2(500.0, 500.0));
        }
        let projection = Projection::new(&camera, SIZE, RECT);
        assert!(corners(SIZE).iter().any(|c| RECT.contains(projection.to_screen(*c).0)));
    }
}

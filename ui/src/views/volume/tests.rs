//! The 3-D view rendered by a graphics driver, here in software.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use super::*;
use crate::data::composite::{Blending, ColorMap};
use crate::data::plane::{Plane, PlaneAt};
use crate::data::source::{Cancel, PlaneSource, SourceError};
use crate::data::test_planes::{NumberedPlanes, wait_until};
use cytoscope_formats::{Container, WriteSpec, label_color, write_array};
use cytoscope_volume::{Array, Samples, VoxelSize};
use eframe::egui_wgpu::WgpuSetup;
use eframe::wgpu;
use egui_kittest::Harness;
use image::RgbaImage;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHAPE: [usize; 3] = [24, 48, 72];
const VOXEL_UM: [f64; 3] = [1.5, 0.5, 0.5];
/// Center X, Y, Z in µm of a ball off the center of the stack.
const BALL_UM: [f64; 3] = [26.0, 8.0, 24.0];
const RADIUS_UM: f64 = 4.0;
const PANE: Vec2 = Vec2 { x: 420.0, y: 340.0 };

/// Counts the planes read from a file.
struct Counting {
    of: Arc<dyn PlaneSource>,
    reads: AtomicUsize,
}

impl PlaneSource for Counting {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.of.plane(at, cancel)
    }
}

struct TestState {
    view: VolumeView,
    document: Document,
    counting: Arc<Counting>,
    rect: Rect,
    picked: Option<u32>,
    _folder: tempfile::TempDir,
}

fn in_ball(i: usize, center_um: [f64; 3]) -> bool {
    let zyx = [i / (SHAPE[1] * SHAPE[2]), i / SHAPE[2] % SHAPE[1], i % SHAPE[2]];
    let off = |a: usize| (zyx[2 - a] as f64 + 0.5) * VOXEL_UM[2 - a] - center_um[a];
    (0..3).map(|a| off(a) * off(a)).sum::<f64>() < RADIUS_UM * RADIUS_UM
}

fn write(path: &std::path::Path, samples: Samples) {
    let array = Array::new("ZYX".parse().unwrap(), SHAPE.to_vec(), samples).unwrap();
    let voxel_size_um = VoxelSize { z: Some(VOXEL_UM[0]), y: Some(VOXEL_UM[1]), x: Some(VOXEL_UM[2]) };
    write_array(path, &array, &WriteSpec { voxel_size_um, ..WriteSpec::of(&array, Container::OmeTiff) }).unwrap();
}

/// A stack with a bright ball on a dim background.
fn state() -> TestState {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ball.ome.tif");
    let voxels = SHAPE.iter().product::<usize>();
    write(&path, Samples::U16((0..voxels).map(|i| if in_ball(i, BALL_UM) { 900 } else { 100 }).collect()));
    let mut document = Document::open(&path, None, 0).unwrap();
    assert_eq!((document.extents.zyx, document.voxel_um), (SHAPE, VOXEL_UM));
    let counting = Arc::new(Counting { of: Arc::clone(&document.source), reads: AtomicUsize::new(0) });
    document.source = Arc::<Counting>::clone(&counting);
    document.channels[0].wants_limits = false;
    document.channels[0].display = Intensity {
        map: ColorMap::Gray,
        low: 100.0,
        high: 800.0,
        gamma: 1.0,
        opacity: 1.0,
        blending: Blending::Additive,
    };
    TestState { view: VolumeView::default(), document, counting, rect: Rect::NOTHING, picked: None, _folder: folder }
}

fn setup() -> WgpuSetup {
    egui_kittest::wgpu::default_wgpu_setup()
}

/// Whether there is a graphics driver. If not, reports that the test is skipped.
fn has_driver() -> bool {
    let mut instance = wgpu::InstanceDescriptor::new_without_display_handle();
    instance.backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let instance = wgpu::Instance::new(instance);
    let adapters = std::pin::pin!(instance.enumerate_adapters(wgpu::Backends::all()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let found = matches!(adapters.poll(&mut context), std::task::Poll::Ready(a) if !a.is_empty());
    if !found {
        cytoscope_testkit::skip("no graphics driver, not even one in software");
    }
    found
}

/// Draws the view and applies what it changes.
fn draw(ui: &mut Ui, state: &mut TestState) {
    state.rect = ui.available_rect_before_wrap();
    let options = ViewOptions {
        crosshair: false,
        scale_bar: false,
        swipe: None,
        pen: None,
        ring: None,
        crop: None,
        bare: false,
        only_xy: false,
    };
    let view_response = state.view.show(ui, &state.document, TextureFormat::Rgba8Unorm, options);
    state.picked = view_response.picked.or(state.picked);
    view_response.changes.into_iter().for_each(|change| state.document.apply(change));
}

fn harness(state: TestState, setup: WgpuSetup) -> Harness<'static, TestState> {
    Harness::builder().with_size(PANE).with_step_dt(1.0 / 60.0).wgpu_setup(setup).build_ui_state(draw, state)
}

/// Runs frames until everything is loaded and drawn, and returns the image.
fn settled(harness: &mut Harness<'_, TestState>) -> RgbaImage {
    let end = Instant::now() + Duration::from_secs(60);
    harness.step();
    while !harness.state().view.is_settled() {
        assert!(Instant::now() < end, "the picture was not ready in time");
        std::thread::sleep(Duration::from_millis(2));
        harness.step();
    }
    let mut image = harness.render().unwrap();
    while !harness.state().view.is_settled() {
        assert!(Instant::now() < end, "the picture was not drawn");
        image = harness.render().unwrap();
    }
    image
}

fn projection(state: &TestState) -> Projection {
    let camera = state.view.cameras[&state.document.id];
    let um = [2, 1, 0].map(|a| SHAPE[a] as f64 * VOXEL_UM[a]);
    Projection::new(&camera, um, state.rect)
}

/// Center and size of the nearly white pixels, which only the ball has.
fn white(image: &RgbaImage) -> (egui::Pos2, Vec2) {
    let (mut sum, mut n, mut bounds) = (Vec2::ZERO, 0, Rect::NOTHING);
    for (x, y, pixel) in image.enumerate_pixels() {
        if pixel.0[..3].iter().all(|v| *v > 235) {
            let at = egui::pos2(x as f32 + 0.5, y as f32 + 0.5);
            sum += at.to_vec2();
            n += 1;
            bounds.extend_with(at);
        }
    }
    assert!(n > 0, "nothing is bright");
    ((sum / n as f32).to_pos2(), bounds.size())
}

#[test]
fn the_ball_appears_at_its_projection_from_every_side() {
    if !has_driver() {
        return;
    }
    let mut harness = harness(state(), setup());
    let mut aside = Camera::front();
    aside.rotate(vec2(0.31, -0.22));
    aside.zoom = 1.3;
    let eye = Camera { perspective: true, ..aside };
    for (name, camera) in [("front", Camera::front()), ("home", Camera::default()), ("aside", aside), ("eye", eye)] {
        let id = harness.state().document.id;
        let view = &mut harness.state_mut().view;
        view.perspective = camera.perspective;
        view.cameras.insert(id, camera);
        let (at, size) = white(&settled(&mut harness));
        let projection = projection(harness.state());
        let expected = projection.to_screen(BALL_UM).0;
        assert!((at - expected).length() < 2.5, "{name}: the ball is at {at:?}, not at {expected:?}");
        if !camera.perspective {
            let across = 2.0 * RADIUS_UM * projection.points_per_um;
            assert!((f64::from(size.max_elem()) - across).abs() < 0.25 * across, "{name}: {size:?}, not {across}");
        }
    }
    assert_eq!(harness.state().counting.reads.load(Ordering::SeqCst), SHAPE[0], "each slice was read once");
    harness.state_mut().view.chosen = Some(Mode::Attenuated);
    let (at, _) = white(&settled(&mut harness));
    let expected = projection(harness.state()).to_screen(BALL_UM).0;
    assert!((at - expected).length() < 4.0, "attenuated: {at:?}, not {expected:?}");
}

#[test]
fn changing_contrast_redraws_without_reading_and_idle_frames_draw_nothing() {
    if !has_driver() {
        return;
    }
    let mut harness = harness(state(), setup());
    let image = settled(&mut harness);
    let at = projection(harness.state()).to_screen(BALL_UM).0;
    let red = |image: &RgbaImage| i32::from(image.get_pixel(at.x as u32, at.y as u32).0[0]);
    assert!(red(&image) > 250);
    let (reads, drawn) = (harness.state().counting.reads.load(Ordering::SeqCst), harness.state().view.drawn());
    for _ in 0..5 {
        harness.step();
        harness.render().unwrap();
    }
    assert_eq!(harness.state().view.drawn(), drawn, "nothing has changed");
    harness.state_mut().document.channels[0].display.high = 1700.0;
    // The background of the pane shows through pixels below full brightness.
    let half = red(&settled(&mut harness));
    assert!((127..=127 + 8).contains(&half), "half way between the limits is {half}");
    harness.state_mut().document.channels[0].display.map = ColorMap::Tint([0, 255, 0]);
    assert!(red(&settled(&mut harness)) <= 8);
    assert_eq!(harness.state().counting.reads.load(Ordering::SeqCst), reads, "nothing was read again");
    assert_eq!(harness.state().view.drawn(), drawn + 2);
}

#[test]
fn labels_are_surfaces_in_their_own_colors_and_a_click_selects() {
    if !has_driver() {
        return;
    }
    let mut state = state();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("labels.ome.tif");
    let other_um = [9.0, 15.0, 12.0];
    let label = |i| if in_ball(i, BALL_UM) { 70_001 } else { u32::from(in_ball(i, other_um)) * 9 };
    write(&path, Samples::U32((0..SHAPE.iter().product()).map(label).collect()));
    state.document.put(Document::overlay(&path, Role::Labels, (SHAPE, 1), None).unwrap());
    assert_eq!(state.view.mode(&state.document), Mode::Labels, "labels are shown once there are any");
    let mut harness = harness(state, setup());
    let image = settled(&mut harness);
    let hue = |rgb: [u8; 3]| rgb.map(|v| f32::from(v) / f32::from(rgb.iter().copied().max().unwrap().max(1)));
    for (um, id) in [(BALL_UM, 70_001u32), (other_um, 9)] {
        let at = projection(harness.state()).to_screen(um).0;
        let [r, g, b, _] = image.get_pixel(at.x as u32, at.y as u32).0;
        let (seen, wanted) = (hue([r, g, b]), hue(label_color(u64::from(id))));
        let off = seen.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(r.max(g).max(b) > 90 && off < 0.15, "label {id} is {:?}, not {:?}", [r, g, b], label_color(id.into()));
    }
    // A lit ball has varying brightness.
    let above = projection(harness.state()).to_screen(BALL_UM).0;
    let side = image.get_pixel(above.x as u32, above.y as u32 + 16).0;
    assert_ne!(side, image.get_pixel(above.x as u32, above.y as u32 - 12).0);

    for (um, id) in [(other_um, 9), (BALL_UM, 70_001)] {
        let at = projection(harness.state()).to_screen(um).0;
        harness.drag_at(at);
        harness.step();
        harness.drop_at(at);
        harness.step();
        assert_eq!(harness.state().picked, Some(id));
        let cursor = harness.state().document.cursor;
        let place = (cursor[0] * SHAPE[1] + cursor[1]) * SHAPE[2] + cursor[2];
        assert_eq!(label(place), id, "the cursor {cursor:?} is in the label");
        harness.run_steps(30);
    }
    let before = settled(&mut harness);
    harness.state_mut().document.select(Some(70_001));
    let after = settled(&mut harness);
    let at = projection(harness.state()).to_screen(BALL_UM).0;
    let [then, now] = [&before, &after].map(|i| i.get_pixel(at.x as u32, at.y as u32).0.map(u32::from));
    assert!(now[..3].iter().sum::<u32>() > then[..3].iter().sum::<u32>(), "the selected label is brighter");
    let empty = projection(harness.state()).to_screen([34.0, 22.0, 34.0]).0;
    harness.drag_at(empty);
    harness.step();
    harness.drop_at(empty);
    harness.step();
    assert_eq!(harness.state().picked, Some(0), "background");
}

#[test]
fn dragging_turns_and_a_double_click_resets() {
    if !has_driver() {
        return;
    }
    let mut harness = harness(state(), setup());
    let (first, _) = white(&settled(&mut harness));
    let middle = harness.state().rect.center();
    harness.drag_at(middle);
    harness.step();
    harness.hover_at(middle + vec2(60.0, 35.0));
    harness.step();
    assert!(!harness.state().view.is_settled(), "the picture is smaller while the view moves");
    harness.render().unwrap();
    harness.drop_at(middle + vec2(60.0, 35.0));
    let (turned, _) = white(&settled(&mut harness));
    assert!((turned - first).length() > 10.0, "{first:?} and {turned:?}");
    let expected = projection(harness.state()).to_screen(BALL_UM).0;
    assert!((turned - expected).length() < 2.5);
    harness.run_steps(60);
    for _ in 0..2 {
        harness.drag_at(middle);
        harness.step();
        harness.drop_at(middle);
        harness.step();
    }
    let (back, _) = white(&settled(&mut harness));
    assert!((back - first).length() < 0.1, "{back:?}");
}

#[test]
fn a_volume_above_the_texture_limit_is_a_problem_with_both_sizes() {
    if !has_driver() {
        return;
    }
    let WgpuSetup::CreateNew(mut new) = setup() else { panic!("another setup") };
    let plain = Arc::clone(&new.device_descriptor);
    new.device_descriptor = Arc::new(move |adapter| {
        let mut wanted = plain(adapter);
        wanted.required_limits.max_texture_dimension_3d = 64;
        wanted
    });
    let mut harness = harness(state(), WgpuSetup::CreateNew(new));
    settled(&mut harness);
    let problem = harness.state().view.renderer.problem().expect("72 voxels are more than 64");
    assert!(problem.contains("64") && problem.contains("72"), "{problem}");
    settled(&mut harness);
    assert_eq!(harness.state().view.drawn(), 0);
}

#[test]
fn a_volume_that_is_read_between_two_frames_is_awaited_until_its_picture_has_full_size() {
    let planes = Arc::new(NumberedPlanes::default());
    let mut state = state();
    state.document.source = Arc::<NumberedPlanes>::clone(&planes);
    let mut harness = Harness::builder().with_size(PANE).with_step_dt(1.0 / 60.0).build_ui_state(draw, state);
    harness.step();
    assert!(!harness.state().view.is_settled(), "nothing is read yet");
    planes.open.store(true, Ordering::SeqCst);
    let is_read = |state: &TestState| state.view.reader.as_ref().is_some_and(|reader| reader.progress().is_none());
    wait_until("the volume", || is_read(harness.state()));
    assert!(!harness.state().view.is_settled(), "it is not in the picture");
    harness.step();
    assert!(harness.state().view.moving && !harness.state().view.is_settled(), "the first picture is smaller");
    let end = Instant::now() + Duration::from_secs(60);
    while !harness.state().view.is_settled() {
        assert!(Instant::now() < end, "the picture was not ready in time");
        harness.step();
    }
    assert!(harness.state().view.newest.contains_key(&Slot::Channel(0)));
}

#[test]
fn the_view_and_its_buttons_have_names() {
    use egui_kittest::kittest::Queryable;
    let mut harness = Harness::builder().with_size(PANE).build_ui_state(
        |ui, state: &mut TestState| {
            let options = ViewOptions {
                crosshair: true,
                scale_bar: true,
                swipe: None,
                pen: None,
                ring: None,
                crop: None,
                bare: false,
                only_xy: false,
            };
            state.view.show(ui, &state.document, TextureFormat::Rgba8Unorm, options);
        },
        state(),
    );
    harness.run_steps(3);
    harness.get_by_label("3-D view, maximum intensity");
    harness.get_by_label("Attenuated maximum intensity").click();
    harness.run_steps(3);
    harness.get_by_label("3-D view, attenuated maximum intensity");
    harness.get_by_label("Perspective").click();
    harness.run_steps(3);
    assert!(projection_is_perspective(harness.state()));
    harness.get_by_label("Reset the 3-D view");
    harness.get_by_label("Labels as surfaces");
}

fn projection_is_perspective(state: &TestState) -> bool {
    state.view.cameras[&state.document.id].perspective
}

#[test]
fn the_buttons_in_the_corner_have_the_same_order_in_narrow_panes() {
    use egui_kittest::kittest::Queryable;
    for (width, is_row) in [(400.0, true), (160.0, false), (110.0, false)] {
        let window = Harness::builder().with_size([420.0, 220.0]).build_ui(move |ui| {
            let rect = Rect::from_min_size(egui::Pos2::ZERO, vec2(width, 200.0));
            corner_buttons(ui, rect, true, |_| false);
        });
        let place = |name: &str| {
            let rect = window.get_by_label(name).rect();
            [rect.top(), rect.left()].map(|at| at.round() as i32)
        };
        let places = CORNER_BUTTONS.map(|(_, _, name)| place(name));
        assert!(places.is_sorted(), "{width}: {places:?}");
        assert_eq!(places[0][0] == places[4][0], is_row, "{width}: {places:?}");
    }
}

#[test]
fn a_hidden_view_frees_gpu_memory_and_is_redrawn_without_reading() {
    if !has_driver() {
        return;
    }
    let mut harness = harness(state(), setup());
    let (before, _) = white(&settled(&mut harness));
    harness.state_mut().view.release();
    assert_eq!((harness.state().view.drawn(), harness.state().view.id()), (0, None));
    let (after, _) = white(&settled(&mut harness));
    assert_eq!((before, harness.state().view.drawn()), (after, 1));
    assert_eq!(harness.state().counting.reads.load(Ordering::SeqCst), SHAPE[0]);
}

//! Voxels of a patch that are outside the stack, not annotated or in gaps between objects have their own weights.

use crate::common::{place, places, plain, right_angles, sampler, scene, write};
use cytoscope_training_data::{GapWeight, IgnoreLabel, Outside, Pair, SamplerOptions, TargetKind};

#[test]
fn voxels_outside_the_stack_have_weight_zero() {
    let shape = [6, 20, 20];
    let (_folder, pair, _) = scene(shape, [1.0; 3]);
    for outside in [Outside::Mirror, Outside::Background] {
        let options = SamplerOptions { outside, ..plain([10, 32, 24], TargetKind::Instances) };
        let patch = sampler(std::slice::from_ref(&pair), options).sample(3).unwrap();
        let counted: Vec<f32> =
            patch.image.iter().zip(&patch.weight).filter(|(_, w)| **w > 0.0).map(|(v, _)| *v).collect();
        assert_eq!(counted, places(shape), "every voxel of the stack counts once");
        let fill: Vec<f32> =
            patch.image.iter().zip(&patch.weight).filter(|(_, w)| **w == 0.0).map(|(v, _)| *v).collect();
        match outside {
            Outside::Background => assert!(fill.iter().all(|v| *v == 0.0)),
            Outside::Mirror => assert!(fill.iter().all(|v| place(*v)[1] < 20) && fill.iter().any(|v| *v > 0.0)),
        }
    }
}

#[test]
fn voxels_with_the_ignore_label_have_weight_zero() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [4, 16, 16];
    let labels: Vec<i16> = (0..1024).map(|i| [0, 1, -1, 2][i % 16 / 4]).collect();
    let at = |n: &str| folder.path().join(n);
    write(&at("a.tif"), shape, places(shape));
    write(&at("a_masks.tif"), shape, labels);
    let options = SamplerOptions { ignore_label: Some(IgnoreLabel::Value(-1)), ..plain(shape, TargetKind::Instances) };
    let patch = sampler(&[Pair::new("a", at("a.tif"), at("a_masks.tif"))], options).sample(0).unwrap();
    for (i, w) in patch.weight.iter().enumerate() {
        assert_eq!(*w, f32::from(u8::from(i % 16 / 4 != 2)));
        assert_eq!(patch.target[i], f32::from(u8::from(i % 16 / 4 % 2 == 1)));
    }
}

#[test]
fn patches_contain_known_voxels_if_others_have_the_ignore_label() {
    let folder = tempfile::tempdir().unwrap();
    // Known are 8 × 8 voxels of background in slice 2, and 8 × 8 voxels of six objects in slice 15.
    let shape = [20, 40, 40];
    let labels: Vec<u8> = (0..32_000)
        .map(|i| match (i / 1600, i / 40 % 40, i % 40) {
            (2, 4..12, 20..28) => 0,
            (15, 30..38, x @ 1..9) => 1 + (x % 6) as u8,
            _ => u8::MAX,
        })
        .collect();
    let at = |n: &str| folder.path().join(n);
    write(&at("a.tif"), shape, places(shape));
    write(&at("a_masks.tif"), shape, labels.clone());
    let pair = Pair::new("a", at("a.tif"), at("a_masks.tif"));
    let options = |object_bias: f64| SamplerOptions {
        object_bias,
        ignore_label: Some(IgnoreLabel::Greatest),
        augment: right_angles(),
        ..plain([6, 12, 12], TargetKind::Instances)
    };
    for (object_bias, in_background) in [(0.0, 30..71), (1.0, 0..1)] {
        let sampler = sampler(std::slice::from_ref(&pair), options(object_bias));
        let mut slices = [0; 2];
        for index in 0..100 {
            let patch = sampler.sample(index).unwrap();
            assert!(patch.weight.iter().any(|weight| *weight > 0.0), "patch {index} from {:?}", patch.from);
            slices[usize::from(patch.from.center_zyx[0] > 8.0)] += 1;
        }
        assert!(in_background.contains(&slices[0]), "{slices:?}: both parts have equally many known voxels");
    }
    // Without such voxels, patches do not depend on the ignore label.
    write(&at("a_masks.tif"), shape, labels.iter().map(|label| label % u8::MAX).collect::<Vec<u8>>());
    let with = sampler(std::slice::from_ref(&pair), options(0.3));
    let without = sampler(std::slice::from_ref(&pair), SamplerOptions { ignore_label: None, ..options(0.3) });
    assert!((0..9).all(|index| with.sample(index).unwrap().image == without.sample(index).unwrap().image));
}

#[test]
fn heights_have_no_weight_where_an_unknown_slice_is_closer_than_the_boundary() {
    // Two touching squares of 5 × 5 voxels; only the middle slice is known.
    let folder = tempfile::tempdir().unwrap();
    let shape = [5, 12, 12];
    let is_in = |v: usize, from: usize| (from..from + 5).contains(&v);
    let labels: Vec<u16> = (0..720)
        .map(|i| match (i / 144 == 2, is_in(i / 12 % 12, 3), is_in(i % 12, 1), is_in(i % 12, 6)) {
            (false, ..) => u16::MAX,
            (true, true, true, _) => 1,
            (true, true, _, true) => 2,
            _ => 0,
        })
        .collect();
    let at = |n: &str| folder.path().join(n);
    write(&at("a.tif"), shape, places(shape));
    write(&at("a_masks.tif"), shape, labels.clone());
    let pair = Pair::new("a", at("a.tif"), at("a_masks.tif"));
    let sample = |target: TargetKind, ignore_label: Option<IgnoreLabel>| {
        let options = SamplerOptions { ignore_label, ..plain(shape, target) };
        sampler(std::slice::from_ref(&pair), options).sample(0).unwrap()
    };
    let patch = sample(TargetKind::Instances, Some(IgnoreLabel::Greatest));
    for (i, label) in labels.iter().enumerate() {
        let is_known = i / 144 == 2;
        let depth = |v: usize, from: usize| (v - from + 1).min(from + 5 - v);
        let height = match label {
            1 => depth(i / 12 % 12, 3).min(depth(i % 12, 1)),
            2 => depth(i / 12 % 12, 3).min(depth(i % 12, 6)),
            _ => 0,
        };
        assert_eq!(patch.weight[i], f32::from(u8::from(is_known)));
        assert_eq!(patch.further_weight[i], f32::from(u8::from(is_known && height <= 1)));
        assert!((patch.target[720 + i] - height as f32 / 3.0).abs() < 1e-6);
    }
    assert!(sample(TargetKind::Instances, None).further_weight.is_empty());
    assert!(sample(TargetKind::Semantic, Some(IgnoreLabel::Greatest)).further_weight.is_empty());
}

#[test]
fn gaps_have_higher_weights() {
    let (_folder, pair, _) = scene([16, 48, 48], [1.0; 3]);
    let options =
        SamplerOptions { gap_weight: Some(GapWeight::default()), ..plain([16, 48, 48], TargetKind::Instances) };
    let patch = sampler(&[pair], options).sample(0).unwrap();
    assert!(patch.weight.iter().all(|w| (1.0..=5.0).contains(w)));
    assert!(patch.weight.iter().any(|w| *w > 2.0) && patch.weight.contains(&1.0));
}

//! Public data sets are found, checked, split and sampled.

use cytoscope_testkit::shared_data;
use cytoscope_training_data::{
    AugmentOptions, CheckOptions, FindOptions, Sampler, SamplerOptions, Severity, SourceOptions, Sources, SplitOptions,
    TargetKind, TrainingTask, check, find_pairs, find_pairs_with, split,
};
use std::collections::BTreeSet;
use std::sync::Arc;

#[test]
fn mouse_embryos_are_checked_split_and_sampled() {
    let Some(folder) = shared_data("nuclei_and_cells/bbbc050") else { return };
    let options = FindOptions { voxel_um: Some([1.75, 0.8, 0.8]), ..FindOptions::default() };
    let dataset = find_pairs_with(&folder, TrainingTask::Segmentation, &options).unwrap();
    assert_eq!(dataset.pairs.len(), 26);
    assert_eq!(dataset.problems, []);
    let report = check(&dataset, &CheckOptions::default());
    assert_eq!(report.of(Severity::Error).count(), 0, "{:#?}", report.problems);
    for pair in &report.pairs {
        assert!(pair.objects.unwrap() >= 2 && pair.shape_zyx[0] == 51, "{pair:?}");
        let diameter = pair.median_diameter_um.unwrap();
        assert!((4.0..30.0).contains(&diameter), "nuclei of {diameter} µm");
        let share = pair.foreground_share.unwrap();
        assert!((0.001..0.5).contains(&share), "{share}");
    }
    // Time points of an embryo stay together.
    let got = split(&report.usable(&dataset), &SplitOptions::default()).unwrap();
    let embryos =
        |pairs: &[cytoscope_training_data::Pair]| pairs.iter().map(|p| p.name[..5].to_owned()).collect::<BTreeSet<_>>();
    assert!(embryos(&got.train).is_disjoint(&embryos(&got.validation)));
    assert_eq!(embryos(&got.train).len() + embryos(&got.validation).len(), 11);
    assert!((2..=6).contains(&got.validation.len()), "{}", got.how);
    // Nuclei are brighter than the background under all augmentations.
    let sources = Arc::new(Sources::open(&got.train, &SourceOptions::default()).unwrap());
    let options = SamplerOptions {
        voxel_um: Some([1.6, 0.8, 0.8]),
        augment: AugmentOptions::always(),
        object_bias: 1.0,
        target: TargetKind::Instances,
        ..SamplerOptions::default()
    };
    let sampler = Sampler::new(sources, options).unwrap();
    let (mut brighter, mut pairs) = (0, BTreeSet::new());
    for index in 0..30 {
        let patch = sampler.sample(index).unwrap();
        let n = patch.weight.len();
        let mean = |inside: bool| {
            let of: Vec<f64> = (0..n)
                .filter(|i| patch.weight[*i] > 0.0 && (patch.target[*i] > 0.5) == inside)
                .map(|i| f64::from(patch.image[i]))
                .collect();
            of.iter().sum::<f64>() / of.len().max(1) as f64
        };
        brighter += u32::from(mean(true) > mean(false) + 0.3);
        pairs.insert(patch.from.pair);
        let heights = &patch.target[n..];
        assert!(heights.iter().zip(&patch.target).all(|(h, f)| (*h > 0.0) == (*f > 0.5) && *h <= 1.0));
        assert!(heights.iter().any(|h| *h > 0.5));
    }
    assert!(brighter >= 28, "only {brighter} of 30 patches have bright nuclei");
    assert!(pairs.len() > 10);
}

#[test]
fn other_segmentation_folders_are_found_and_checked() {
    for (name, count) in
        [("nuclei_and_cells/orzzet_gland", 4), ("nuclei_and_cells/stardist", 1), ("nuclei_and_cells/wolny_patch", 1)]
    {
        let Some(folder) = shared_data(name) else { continue };
        let dataset = find_pairs(&folder, TrainingTask::Segmentation).unwrap();
        assert_eq!(dataset.pairs.len(), count, "{name}: {:?}", dataset.problems);
        let report = check(&dataset, &CheckOptions::default());
        assert_eq!(report.of(Severity::Error).count(), 0, "{name}: {:#?}", report.problems);
        assert!(report.pairs.iter().all(|p| p.objects.unwrap() > 5), "{name}");
    }
    if let Some(folder) = shared_data("nuclei_and_cells/cellseg3d") {
        let error = find_pairs(&folder, TrainingTask::Segmentation).unwrap_err().to_string();
        assert!(error.contains("no pair") && error.contains("no target"), "{error}");
    }
}

#[test]
fn a_label_free_pair_is_split_and_sampled() {
    let Some(folder) = shared_data("label_free/acm_beads") else { return };
    let dataset = find_pairs(&folder, TrainingTask::LabelFree).unwrap();
    assert_eq!(dataset.pairs.len(), 1);
    let report = check(&dataset, &CheckOptions::default());
    assert_eq!(report.of(Severity::Error).count(), 0, "{:#?}", report.problems);
    let got = split(&report.usable(&dataset), &SplitOptions::default()).unwrap();
    assert_eq!((got.train.len(), got.validation.len()), (1, 1));
    let options = SamplerOptions { target: TargetKind::Regression, ..SamplerOptions::default() };
    let sources = Arc::new(Sources::open(&got.train, &SourceOptions::default()).unwrap());
    let sampler = Sampler::new(sources, options).unwrap();
    let moments = sampler.target_moments()[0];
    let patch = sampler.sample(0).unwrap();
    let range = moments.min as f32 - 1e-3..=moments.max as f32 + 1e-3;
    assert!(patch.target.iter().all(|v| range.contains(v)), "the stain keeps its intensities");
}

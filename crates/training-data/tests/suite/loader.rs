//! Patches are delivered in order and are independent of the number of workers; failures are errors.

use crate::common::{balls, write};
use cytoscope_training_data::{
    AugmentOptions, Loader, LoaderOptions, Origin, Pair, Patch, Sampler, SamplerOptions, SourceOptions, Sources,
    TrainingDataError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn synthetic_patch(index: u64) -> Patch {
    Patch {
        index,
        shape_zyx: [1, 1, 2],
        image_channels: 1,
        channels: 2,
        image: vec![index as f32; 2],
        target: vec![0.5; 4],
        weight: vec![1.0; 2],
        further_weight: Vec::new(),
        from: Origin { pair: 0, name: "x".into(), center_zyx: [0.0; 3] },
    }
}

#[test]
fn batches_are_the_same_for_any_number_of_workers_and_after_resuming() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [12, 40, 40];
    let labels = balls(shape, [1.0; 3], 12.0, 6.2);
    let image: Vec<u16> = labels.iter().enumerate().map(|(i, l)| 100 + 10 * l + (i % 13) as u16).collect();
    write(&folder.path().join("a.tif"), shape, image);
    write(&folder.path().join("a_masks.tif"), shape, labels);
    let pair = Pair::new("a", folder.path().join("a.tif"), folder.path().join("a_masks.tif"));
    // All threads share a cache that is too small for the stacks.
    let sources = Arc::new(Sources::open(&[pair], &SourceOptions { cache_bytes: 40_000 }).unwrap());
    let options =
        SamplerOptions { patch_zyx: [8, 24, 24], augment: AugmentOptions::always(), ..SamplerOptions::default() };
    let sampler = Arc::new(Sampler::new(sources, options).unwrap());
    let run = |workers: usize, start: u64, batches: usize| {
        let options = LoaderOptions { workers, prefetch: 5, start };
        let mut loader = Loader::new(Arc::clone(&sampler), options).unwrap();
        let got: Vec<_> = (0..batches).map(|_| loader.next_batch(3).unwrap()).collect();
        assert_eq!(loader.position(), start + 3 * batches as u64);
        got
    };
    let one = run(1, 0, 5);
    assert_eq!(one, run(4, 0, 5));
    assert_eq!(one[3..], run(3, 9, 2));
    let first = &one[1];
    assert_eq!((first.first, first.count, first.shape_zyx, first.channels), (3, 3, [8, 24, 24], 2));
    let n = 8 * 24 * 24;
    assert_eq!((first.image.len(), first.target.len(), first.weight.len()), (3 * n, 6 * n, 3 * n));
    let single = sampler.sample(4).unwrap();
    assert_eq!(first.image[n..2 * n], single.image);
    assert_eq!(first.target[2 * n..4 * n], single.target);
    assert_eq!(first.from[1], single.from);
}

#[test]
fn a_panic_or_an_error_affects_only_its_batch() {
    let make = |index: u64| match index {
        2 => panic!("odd luck"),
        5 => Err(TrainingDataError::Parameter { what: "x", got: "y".into(), expected: "z" }),
        _ => Ok(synthetic_patch(index)),
    };
    let mut loader = Loader::with(make, LoaderOptions { workers: 2, ..LoaderOptions::default() }).unwrap();
    assert_eq!(loader.next_batch(2).unwrap().first, 0);
    let error = loader.next_batch(2).unwrap_err().to_string();
    assert!(error.contains("patch 2") && error.contains("odd luck"), "{error}");
    assert!(loader.next_batch(2).unwrap_err().to_string().contains('z'));
    let batch = loader.next_batch(2).unwrap();
    assert_eq!((batch.first, batch.image), (6, vec![6.0, 6.0, 7.0, 7.0]));
    assert!(loader.next_batch(0).is_err());
}

#[test]
fn prefetching_is_limited_and_stops_on_drop() {
    let made = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&made);
    let make = move |index: u64| {
        counter.fetch_add(1, Ordering::SeqCst);
        // Those of later batches take so long that the consumer waits for them.
        std::thread::sleep(Duration::from_millis(if index < 4 { 5 } else { 200 }));
        Ok(synthetic_patch(index))
    };
    let mut loader = Loader::with(make, LoaderOptions { workers: 3, prefetch: 4, start: 0 }).unwrap();
    while loader.ready() < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(made.load(Ordering::SeqCst), 4);
    assert_eq!(loader.stalled_secs(), 0.0, "the consumer has not waited");
    loader.next_batch(4).unwrap();
    // On a busy machine the consumer may be late for some of them, too.
    for _ in 0..50 {
        loader.next_batch(4).unwrap();
        if loader.stalled_secs() > 0.0 {
            break;
        }
    }
    assert!(loader.stalled_secs() > 0.0, "the later batches were not ready");
    drop(loader);
    let after = made.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(made.load(Ordering::SeqCst), after);
}

#[test]
fn numbers_of_threads_and_patches_are_limited() {
    for (workers, prefetch) in [(0, 4), (1, 0), (100_000, 4), (1, 100_000)] {
        let options = LoaderOptions { workers, prefetch, start: 0 };
        assert!(Loader::with(|i| Ok(synthetic_patch(i)), options).is_err());
    }
}

//! The bytes of all arenas are counted. One test: others in the process would change the count.
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_kernels::{Arena, live_arena_bytes};

#[test]
fn arenas_count_while_they_exist() {
    assert_eq!(live_arena_bytes(), 0);
    let small = Arena::new(1000).unwrap();
    let small_bytes = live_arena_bytes();
    assert!((4000..5000).contains(&small_bytes), "{small_bytes}");
    let large = Arena::new(100_000).unwrap();
    assert!(live_arena_bytes() >= small_bytes + 400_000);
    drop(small);
    assert!(Arena::new(usize::MAX / 8).is_err());
    drop(large);
    assert_eq!(live_arena_bytes(), 0);
}

//! A job that keeps memory is found, and one that frees it is not. One test: others in the process would disturb it.
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_profile::leaks::{MemoryOwner, repeat};
use cytoscope_profile::resident_bytes;

const MIB: usize = 1 << 20;

#[test]
fn a_job_that_keeps_memory_grows_and_one_that_frees_it_does_not() {
    let process = [MemoryOwner { name: "process", tolerance_bytes: MIB as u64, bytes: resident_bytes }];
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut hold = |number: usize| -> Result<(), ()> {
        // Written, so that the memory is resident.
        kept.push(vec![number as u8 | 1; 6 * MIB]);
        Ok(())
    };
    let growing = repeat(8, &process, &mut hold).unwrap();
    assert!(kept.iter().all(|block| block.iter().all(|byte| *byte != 0)));
    assert!(growing.grows(), "{growing:?}");
    let growth = growing.owners[0].growth_bytes;
    assert!((4.0..8.0).contains(&(growth / MIB as f64)), "{growing:?}");
    assert!(growing.messages()[0].contains("process: GROWS"), "{:?}", growing.messages());
    let freed = |number: usize| -> Result<(), ()> {
        let block = vec![number as u8 | 1; 6 * MIB];
        assert!(block.iter().all(|byte| *byte != 0));
        Ok(())
    };
    let constant = repeat(8, &process, freed).unwrap();
    assert!(!constant.grows(), "{constant:?}");
    assert!(constant.messages()[0].contains("process: does not keep growing"), "{:?}", constant.messages());
}

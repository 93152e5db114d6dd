//! A random model test: thousands of operations against a store and against a small model of the contract.
//!
//! A [`script`] is made from a seed alone and speaks in picks ("the third of what runs"), so the same script
//! runs on every store, whatever the store decides. After each operation the [`state`] of the model moves on. Which
//! lane goes first is the store's choice, so a claim is not predicted but [judged](claim): the number must be
//! exact, and no task may be among the claimed that had no right to be. Then the model follows.
//!
//! Time comes in units of 1000 s, so that the seconds that a run itself takes never decide anything.
//!
//! When a store and the model disagree, the script is cut after the failing operation and then made
//! shorter, as long as it still fails on a fresh store. Seed and script are printed.

mod act;
mod claim;
mod family;
mod feed;
mod house;
mod look;
mod run;
mod schedules;
mod script;
mod state;
mod unique;

use std::time::{Duration, Instant};

use crate::store::TestStore;
use run::{Failure, Run};
use script::{Op, script};

/// One unit of the model's time.
const UNIT: Duration = Duration::from_secs(1_000);
/// Making a failing script shorter ends after this time.
const SHRINK_AT_MOST: Duration = Duration::from_secs(60);

/// The seed in `LANEWAY_SEED`, if there is one.
pub fn seed_of_environment() -> Option<u64> {
    std::env::var("LANEWAY_SEED").ok().map(|seed| seed.parse().expect("LANEWAY_SEED is a number"))
}

/// How many operations a script has: `LANEWAY_MODEL_OPS`, or `default`.
pub fn operations(default: usize) -> usize {
    let given = std::env::var("LANEWAY_MODEL_OPS").ok();
    given.map_or(default, |ops| ops.parse().expect("LANEWAY_MODEL_OPS is a number"))
}

/// Runs the script of `seed` on a fresh store and panics, with the shortest script found, when the store does
/// something that the contract does not allow.
pub async fn check(seed: u64, operations: usize, fresh: impl AsyncFn() -> TestStore) {
    let ops = script(seed, operations);
    let Err(failure) = replay(fresh().await, ops.clone()).await else { return };
    let (ops, failure) = shrink(ops[..=failure.step].to_vec(), failure, &fresh).await;
    let listing: Vec<_> = ops.iter().enumerate().map(|(step, op)| format!("{step:4}  {op:?}")).collect();
    panic!(
        "seed {seed} fails (LANEWAY_SEED={seed}), after {} operations:\n{}\n{}",
        ops.len(),
        listing.join("\n"),
        failure.problem
    );
}

/// Makes a failing script shorter, as long as what remains still fails: first whole pieces of it, ever smaller,
/// then what is inside the operations that are left.
async fn shrink(ops: Vec<Op>, failure: Failure, fresh: &impl AsyncFn() -> TestStore) -> (Vec<Op>, Failure) {
    let deadline = Instant::now() + SHRINK_AT_MOST;
    let mut best = (ops, failure);
    let mut piece = best.0.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < best.0.len() && Instant::now() < deadline {
            let mut fewer = best.0.clone();
            fewer.drain(start..(start + piece).min(fewer.len()));
            if !take_if_failing(&mut best, fewer, fresh).await {
                start += piece;
            }
        }
        piece /= 2;
    }
    let mut step = 0;
    while step < best.0.len() && Instant::now() < deadline {
        let mut simplified = false;
        for simpler in best.0[step].simpler() {
            let mut ops = best.0.clone();
            ops[step] = simpler;
            simplified = take_if_failing(&mut best, ops, fresh).await;
            if simplified {
                break;
            }
        }
        step += usize::from(!simplified);
    }
    best
}

/// Keeps a script as the best one when it fails on a fresh store, cut after the failing operation.
async fn take_if_failing(
    best: &mut (Vec<Op>, Failure),
    mut ops: Vec<Op>,
    fresh: &impl AsyncFn() -> TestStore,
) -> bool {
    let Err(failure) = replay(fresh().await, ops.clone()).await else { return false };
    ops.truncate(failure.step + 1);
    *best = (ops, failure);
    true
}

/// Runs a script in a task of its own, so that a panic inside a store is a failure like any other.
async fn replay(store: TestStore, ops: Vec<Op>) -> Result<(), Failure> {
    let last = ops.len().saturating_sub(1);
    match tokio::spawn(Run::replay(store, ops)).await {
        Ok(outcome) => outcome,
        Err(panicked) => Err(Failure { step: last, problem: format!("the store panicked: {panicked}") }),
    }
}

//! Random commands, with every invariant checked after each.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::*;
use laneway_core::*;

/// A small generator, so that a failing seed can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn some_lane(dice: &mut Dice) -> LaneKey {
    key(["a", "b", "c"][dice.below(3) as usize])
}

fn some_task(dice: &mut Dice) -> NewTask {
    let kind = Kind::new(["one", "two"][dice.below(2) as usize]).unwrap();
    let mut task = NewTask::new(kind, Json::default()).priority(dice.below(3) as i32).max_attempts(3);
    if dice.below(4) > 0 {
        let lane = Lane::new(some_lane(dice));
        let limit = LaneLimit::at(1 + dice.below(3) as u32).unwrap();
        task = task.lane(if dice.below(3) == 0 { lane.limit(limit) } else { lane });
    }
    if dice.below(5) == 0 { task.delay(secs(dice.below(5))) } else { task }
}

fn some_outcome(dice: &mut Dice) -> Outcome {
    match dice.below(8) {
        0 => retry(dice.below(4)),
        1 => Outcome::Snooze { after: secs(dice.below(4)) },
        2 => failed(),
        3 => Outcome::GivenBack,
        4 => Outcome::Cancelled { reason: None },
        _ => Outcome::completed(),
    }
}

fn some_settings(dice: &mut Dice) -> LaneSettings {
    let limit = match dice.below(4) {
        0 => LaneLimit::UNLIMITED,
        n => LaneLimit::at(n as u32).unwrap(),
    };
    LaneSettings {
        limit: (dice.below(2) == 0).then_some(limit),
        interval: (dice.below(4) == 0).then(|| secs(dice.below(3))),
        on_failure: (dice.below(4) == 0)
            .then(|| if dice.below(2) == 0 { OnFailure::Halt } else { OnFailure::Continue }),
    }
}

/// How many tasks of each lane run.
async fn running(f: &Fixture) -> HashMap<LaneKey, u64> {
    let leased = f.store.list(Listing::of(Place::Leased).limit(500)).await.unwrap();
    let mut running = HashMap::new();
    for lane in leased.tasks.into_iter().filter_map(|task| task.lane) {
        *running.entry(lane).or_default() += 1;
    }
    running
}

/// No lane that has just started something runs more than its limit.
async fn assert_limits(f: &Fixture, claimed: &[Claimed]) {
    let running = running(f).await;
    for lane in claimed.iter().filter_map(|claimed| claimed.task.lane.as_ref()) {
        let limit = f.store.lane(&queue(), lane).await.unwrap().unwrap().limit;
        assert!(running[lane] <= limit.stored() as u64, "{} runs {} of {limit}", lane, running[lane]);
    }
}

async fn random_life(seed: u64, steps: usize) {
    let f = fixture().await;
    let mut dice = Dice(seed);
    let mut crew = [worker(&f.store).await, worker(&f.store).await];
    let mut held: Vec<(SessionId, Claimed)> = vec![];
    let mut enqueued = 0;
    for step in 0..steps {
        let context = format!("seed {seed}, step {step}");
        let at = dice.below(2) as usize;
        match dice.below(20) {
            0..5 => {
                let tasks: Vec<_> = (0..=dice.below(4)).map(|_| some_task(&mut dice)).collect();
                enqueued += tasks.len() as u64;
                f.store.enqueue_many(tasks).await.unwrap();
            }
            5..15 => {
                let mut advance = crew[at].next().claim(queue(), dice.below(4) as u32);
                if dice.below(3) == 0 {
                    advance.claims[0].kinds = Kinds::Only(vec![Kind::new("one").unwrap()]);
                }
                let kinds = advance.claims[0].kinds.clone();
                let (mine, others): (Vec<_>, Vec<_>) =
                    held.drain(..).partition(|(session, _)| *session == crew[at].session);
                held = others;
                for (session, claimed) in mine {
                    if dice.below(2) == 0 {
                        advance.settles.push(claimed.settle(some_outcome(&mut dice)));
                    } else {
                        held.push((session, claimed));
                    }
                }
                let advanced = crew[at].advance(advance).await;
                assert!(
                    advanced.settled.iter().all(|settled| settled.verdict != Verdict::Already),
                    "{context}"
                );
                assert_limits(&f, &advanced.claimed).await;
                // The clock goes on meanwhile; what becomes due in this moment is no mistake.
                let nothing_due = advanced.next_due.is_none_or(|due| due > secs(1));
                if advanced.left != Left::More && nothing_due {
                    let more = f.store.is_claimable(&[queue()], &kinds).await.unwrap();
                    assert!(!more, "{context}: something claimable was left");
                }
                held.extend(advanced.claimed.into_iter().map(|claimed| (crew[at].session, claimed)));
            }
            15 => {
                let id = TaskId(1 + dice.below(enqueued + 1) as i64);
                f.store.cancel(id).await.unwrap();
            }
            16 => {
                let settings = some_settings(&mut dice);
                f.store.set_lane(&queue(), &some_lane(&mut dice), settings).await.unwrap();
            }
            17 => {
                f.clock.advance(Duration::from_millis(dice.below(3_000)));
                f.store.resume_lane(&queue(), &some_lane(&mut dice)).await.unwrap();
            }
            18 if dice.below(3) == 0 => {
                // One worker dies; the other has been heard of.
                f.clock.advance(secs(31));
                f.store.register(crew[1 - at].registration()).await.unwrap();
                f.store.sweep().await.unwrap();
                held.retain(|(session, _)| *session != crew[at].session);
                crew[at] = worker(&f.store).await;
            }
            _ => {
                let leases = held.iter().map(|(_, claimed)| claimed.lease.id).filter(|_| dice.below(2) == 0);
                let renewal = Renewal { leases: leases.collect(), ..crew[at].renewal() };
                held.retain(|(session, claimed)| {
                    *session != crew[at].session || renewal.leases.contains(&claimed.lease.id)
                });
                f.store.renew(renewal).await.unwrap();
                f.store.maintain().await.unwrap();
            }
        }
        assert_eq!(f.store.verify().await.unwrap(), Vec::<String>::new(), "{context}");
    }
    let total: u64 = f.store.counts().await.unwrap().iter().map(|count| count.tasks).sum();
    assert_eq!(total, enqueued, "seed {seed}: a task was lost or doubled");
}

#[tokio::test]
async fn every_invariant_holds_after_every_command() {
    for seed in 1..=8 {
        random_life(seed * 7_919, 150).await;
    }
}

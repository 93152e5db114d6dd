//! Scripts: operations in terms of picks, made from a seed.

/// How many workers a script has.
pub(super) const SLOTS: usize = 3;
/// The queues.
pub(super) const QUEUES: [&str; 2] = ["default", "other"];
/// The lanes of each queue.
pub(super) const LANES: [&str; 4] = ["a", "b", "c", "d"];
/// The kinds.
pub(super) const KINDS: [&str; 3] = ["x", "y", "z"];
/// The payloads.
pub(super) const PAYLOADS: [&str; 3] = ["{}", r#"{"a": 1}"#, r#"{"b": [2], "a": "x"}"#];
/// The unique keys.
pub(super) const KEYS: [&str; 2] = ["k", "l"];

/// The schedules.
pub(super) const SCHEDULES: [&str; 2] = ["morning", "night"];

/// One operation. Numbers called `which` pick from what is there when the operation runs, modulo their count.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Enqueue {
        queue: usize,
        lane: Option<usize>,
        limit: Option<u32>,
        tasks: Vec<NewTaskPick>,
    },
    /// With `fresh`, a worker that was lost has registered anew before.
    Advance {
        slot: usize,
        fresh: bool,
        settles: Vec<SettlePick>,
        claims: Vec<ClaimPick>,
    },
    Repeat {
        slot: usize,
    },
    Cancel {
        which: usize,
    },
    SetLane {
        queue: usize,
        lane: usize,
        limit: Option<u32>,
        interval: Option<u64>,
        halt: Option<bool>,
    },
    ResumeLane {
        queue: usize,
        lane: usize,
    },
    Pause {
        queue: usize,
    },
    Resume {
        queue: usize,
    },
    Renew {
        slot: usize,
        forget: u64,
        behind: u64,
    },
    Register {
        slot: usize,
    },
    Deregister {
        slot: usize,
    },
    AdvanceClock {
        units: u64,
    },
    Sweep {
        survivors: u64,
    },
    Schedule(ScheduleOp),
    Act(ActOp),
    House(HouseOp),
}

/// House-keeping, and the time for it.
#[derive(Clone, Debug)]
pub(super) enum HouseOp {
    /// In days; 0 for as long as by default.
    Keep {
        queue: usize,
        completed: u32,
        failed: u32,
    },
    PassDays {
        days: u32,
    },
    Maintain,
}

/// What operators do.
#[derive(Clone, Debug)]
pub(super) enum ActOp {
    Retry { which: usize },
    RetryChildren { which: usize },
    Snooze { which: usize, units: u64 },
    Delete { which: usize },
    SetPriority { which: usize, priority: i32 },
    PauseKind { kind: usize },
    ResumeKind { kind: usize },
    PauseLane { queue: usize, lane: usize },
    EndLanePause { queue: usize, lane: usize },
}

/// An operation on schedules. Intervals are in units.
#[derive(Clone, Debug)]
pub(super) enum ScheduleOp {
    Put { which: usize, interval: u64, all: bool, skip_open: bool },
    Fire,
    Pause { which: usize },
    Resume { which: usize },
    Run { which: usize },
    Remove { which: usize },
}

impl Op {
    /// The same operation with one thing less, in every way.
    pub fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Enqueue { queue, lane, limit, tasks } if tasks.len() > 1 => without_one(tasks)
                .map(|tasks| Self::Enqueue { queue: *queue, lane: *lane, limit: *limit, tasks })
                .collect(),
            Self::Advance { slot, fresh, settles, claims } => {
                let with = |settles, claims| Self::Advance { slot: *slot, fresh: *fresh, settles, claims };
                let fewer_settles = without_one(settles).map(|settles| with(settles, claims.clone()));
                let fewer_claims = without_one(claims).map(|claims| with(settles.clone(), claims));
                fewer_settles.chain(fewer_claims).collect()
            }
            _ => vec![],
        }
    }
}

fn without_one<T: Clone>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
    (0..all.len()).map(|place| {
        let mut fewer = all.to_vec();
        fewer.remove(place);
        fewer
    })
}

#[derive(Clone, Debug)]
pub(super) struct NewTaskPick {
    pub kind: usize,
    pub priority: i32,
    pub delay: u64,
    pub max_attempts: u32,
    /// Which of a few payloads.
    pub payload: usize,
    pub unique: Option<UniquePick>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct UniquePick {
    pub key: usize,
    pub scope: ScopePick,
    /// In the order of the variants of `OnConflict`.
    pub conflict: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ScopePick {
    Pending,
    Open,
    Within(u64),
}

#[derive(Clone, Debug)]
pub(super) struct SettlePick {
    /// Whose attempt: usually the slot's own.
    pub of_slot: usize,
    pub which: usize,
    /// True: pick from all attempts that were ever handed out, not only from those under way.
    pub any: bool,
    pub forged: bool,
    pub outcome: OutcomePick,
    pub spawn: Option<SpawnPick>,
}

/// What an attempt spawns.
#[derive(Clone, Debug)]
pub(super) struct SpawnPick {
    pub children: Vec<SpawnedPick>,
    pub siblings: Vec<SpawnedPick>,
    /// With whether they are kept on failure.
    pub follow_ups: Vec<(SpawnedPick, bool)>,
    pub policy: usize,
    pub then: bool,
}

#[derive(Clone, Debug)]
pub(super) struct SpawnedPick {
    pub queue: usize,
    pub lane: Option<usize>,
    pub kind: usize,
    pub priority: i32,
    pub delay: u64,
    pub max_attempts: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum OutcomePick {
    Completed,
    Result,
    Retry(u64),
    Snooze(u64),
    Failed,
    Cancelled,
    GivenBack,
}

#[derive(Clone, Debug)]
pub(super) struct ClaimPick {
    pub queue: usize,
    pub max: u32,
    /// Bit set of kinds; none set means all.
    pub kinds: u8,
}

/// The script of a seed.
pub(super) fn script(seed: u64, operations: usize) -> Vec<Op> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Thrown apart, so that schedules and operators come between the operations of a seed instead of changing them.
    let mut beat = fastrand::Rng::with_seed(!seed);
    let next = |_| match beat.u32(..24) {
        0..3 => Op::Schedule(schedule(&mut beat)),
        3..6 => Op::Act(act(&mut beat)),
        6 => Op::House(house(&mut beat)),
        _ => spawning(operation(&mut random), &mut beat),
    };
    (0..operations).map(next).collect()
}

/// Lets some attempts spawn, children or siblings of theirs more rarely than one each, so that families come to an end.
fn spawning(mut op: Op, random: &mut fastrand::Rng) -> Op {
    if let Op::Advance { settles, .. } = &mut op {
        for settle in settles {
            settle.spawn = (random.u32(..5) == 0).then(|| spawn(random));
        }
    }
    op
}

fn spawn(random: &mut fastrand::Rng) -> SpawnPick {
    let some = |random: &mut fastrand::Rng, most: usize| -> Vec<SpawnedPick> {
        (0..random.usize(..=most)).map(|_| spawned(random)).collect()
    };
    let (children, siblings, follow_ups) = match random.u32(..4) {
        0 => (vec![], some(random, 2), vec![]),
        1 => (vec![], vec![], some(random, 2)),
        _ => (some(random, 3), vec![], some(random, 1)),
    };
    let follow_ups = follow_ups.into_iter().map(|task| (task, random.bool())).collect();
    SpawnPick { children, siblings, follow_ups, policy: random.usize(..3), then: random.u32(..3) == 0 }
}

fn spawned(random: &mut fastrand::Rng) -> SpawnedPick {
    SpawnedPick {
        queue: random.usize(..QUEUES.len()),
        lane: (random.u32(..3) == 0).then(|| random.usize(..LANES.len())),
        kind: random.usize(..KINDS.len()),
        priority: random.i32(-1..2),
        delay: if random.u32(..6) == 0 { random.u64(1..3) } else { 0 },
        max_attempts: random.u32(1..3),
    }
}

fn act(random: &mut fastrand::Rng) -> ActOp {
    let (which, queue) = (random.usize(..1_000), random.usize(..QUEUES.len()));
    let (kind, lane) = (random.usize(..KINDS.len()), random.usize(..LANES.len()));
    match random.u32(..16) {
        0..3 => ActOp::Retry { which },
        3..5 => ActOp::RetryChildren { which },
        5..7 => ActOp::Snooze { which, units: random.u64(1..3) },
        7 => ActOp::Delete { which },
        8..10 => ActOp::SetPriority { which, priority: random.i32(-2..3) },
        10 => ActOp::PauseKind { kind },
        11..13 => ActOp::ResumeKind { kind },
        13 => ActOp::PauseLane { queue, lane },
        _ => ActOp::EndLanePause { queue, lane },
    }
}

fn house(random: &mut fastrand::Rng) -> HouseOp {
    match random.u32(..8) {
        0..2 => {
            let (completed, failed) = (random.u32(..3), random.u32(..3));
            HouseOp::Keep { queue: random.usize(..QUEUES.len()), completed, failed }
        }
        2..4 => HouseOp::PassDays { days: random.u32(1..5) },
        _ => HouseOp::Maintain,
    }
}

fn schedule(random: &mut fastrand::Rng) -> ScheduleOp {
    let which = random.usize(..SCHEDULES.len());
    match random.u32(..12) {
        0..3 => ScheduleOp::Put {
            which,
            interval: random.u64(1..3),
            all: random.bool(),
            skip_open: random.bool(),
        },
        3..8 => ScheduleOp::Fire,
        8 => ScheduleOp::Pause { which },
        9 => ScheduleOp::Resume { which },
        10 => ScheduleOp::Run { which },
        _ => ScheduleOp::Remove { which },
    }
}

fn operation(random: &mut fastrand::Rng) -> Op {
    let (queue, lane, slot) =
        (random.usize(..QUEUES.len()), random.usize(..LANES.len()), random.usize(..SLOTS));
    match random.u32(..100) {
        0..19 => enqueue(random, queue, lane),
        19..67 => advance(random, slot),
        67..71 => Op::Repeat { slot },
        71..77 => Op::Cancel { which: random.usize(..1_000) },
        77..81 => set_lane(random, queue, lane),
        81..84 => Op::ResumeLane { queue, lane },
        84 => Op::Pause { queue },
        85..88 => Op::Resume { queue },
        88..90 => Op::Renew { slot, forget: sparse(random), behind: random.u64(..3) },
        90..93 => Op::Register { slot },
        93 => Op::Deregister { slot },
        94..98 => Op::AdvanceClock { units: random.u64(1..3) },
        _ => Op::Sweep { survivors: random.u64(..) },
    }
}

fn enqueue(random: &mut fastrand::Rng, queue: usize, lane: usize) -> Op {
    let lane = (random.u32(..4) > 0).then_some(lane);
    let limit = (random.u32(..6) == 0).then(|| random.u32(1..4));
    let tasks = (0..random.usize(1..4)).map(|_| NewTaskPick {
        kind: random.usize(..KINDS.len()),
        priority: if random.u32(..4) == 0 { random.i32(-2..3) } else { 0 },
        delay: if random.u32(..6) == 0 { random.u64(1..4) } else { 0 },
        max_attempts: random.u32(1..5),
        payload: random.usize(..PAYLOADS.len()),
        unique: (random.u32(..3) == 0).then(|| unique(random)),
    });
    let tasks = tasks.collect();
    Op::Enqueue { queue, lane, limit, tasks }
}

fn unique(random: &mut fastrand::Rng) -> UniquePick {
    let scope = match random.u32(..3) {
        0 => ScopePick::Pending,
        1 => ScopePick::Open,
        _ => ScopePick::Within(random.u64(1..3)),
    };
    UniquePick { key: random.usize(..KEYS.len()), scope, conflict: random.usize(..5) }
}

fn advance(random: &mut fastrand::Rng, slot: usize) -> Op {
    let settles = (0..random.usize(..6)).map(|_| SettlePick {
        of_slot: if random.u32(..25) == 0 { random.usize(..SLOTS) } else { slot },
        which: random.usize(..1_000),
        any: random.u32(..8) == 0,
        forged: random.u32(..40) == 0,
        outcome: outcome(random),
        spawn: None,
    });
    let settles = settles.collect();
    let mut queues: Vec<usize> = (0..QUEUES.len()).collect();
    random.shuffle(&mut queues);
    queues.truncate(random.usize(..=QUEUES.len()));
    let claims = queues.into_iter().map(|queue| ClaimPick {
        queue,
        max: random.u32(1..6),
        kinds: if random.bool() { 0 } else { random.u8(1..8) },
    });
    let claims = claims.collect();
    Op::Advance { slot, fresh: random.u32(..4) > 0, settles, claims }
}

fn outcome(random: &mut fastrand::Rng) -> OutcomePick {
    match random.u32(..16) {
        0..6 => OutcomePick::Completed,
        6 => OutcomePick::Result,
        7..10 => OutcomePick::Retry(random.u64(..3)),
        10..12 => OutcomePick::Snooze(random.u64(..3)),
        12 => OutcomePick::Failed,
        13 => OutcomePick::Cancelled,
        _ => OutcomePick::GivenBack,
    }
}

fn set_lane(random: &mut fastrand::Rng, queue: usize, lane: usize) -> Op {
    let limit = random.bool().then(|| random.choice([1, 1, 2, 3, u32::MAX]).expect("not empty"));
    let interval = (random.u32(..3) == 0).then(|| random.choice([0, 0, 0, 1, 2]).expect("not empty"));
    let halt = (random.u32(..3) == 0).then(|| random.bool());
    Op::SetLane { queue, lane, limit, interval, halt }
}

/// Few bits set.
fn sparse(random: &mut fastrand::Rng) -> u64 {
    random.u64(..) & random.u64(..) & random.u64(..)
}

//! Chooses the tasks of one claim: turns in line order, each with the head of its lane, merged with tasks that have
//! no lane.
//!
//! Lower priority numbers go first; within one priority turns and lane-less tasks alternate. What begins alternates with
//! the advances, so that a worker with a single slot serves both. A claim takes as many as it may. The line shows only turns that can start (`line.rs`), so a turn is passed over for
//! one reason alone: the caller does not run the kind of its task.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};

use rusqlite::{Row, params};

use laneway_core::{Claim, Kinds};

use crate::claim::{Leases, Taken};
use crate::lane;
use crate::line;
use crate::row::{self, Sql};
use crate::turn::{self, LaneRow};
use crate::writer::Step;

/// Turns that are read from the line at a time.
const WINDOW: u32 = 100;

const FREE_TASKS: &str = "
select priority,
       id
from task
where queue = ?1
  and lane = 0
order by priority, id
limit ?2";

const FREE_TASKS_OF_KINDS: &str = "
select priority,
       id
from task
where queue = ?1
  and lane = 0
  and kind in (select value from json_each(?3))
order by priority, id
limit ?2";

const LINE: &str = "
select priority,
       seq,
       lane,
       task_id
from turn
where queue = ?1
  and (priority, seq) > (?2, ?3)
  and priority is not null
order by priority, seq
limit ?4";

// The task of a bound turn is left to that turn.
const HEAD: &str = "
select priority,
       id,
       kind
from task
where queue = ?1
  and lane = ?2
  and id not in (select task_id from turn where lane = ?2 and task_id is not null)
order by priority, id
limit 1";

const HEAD_OF_KINDS: &str = "
select priority,
       id,
       kind
from task
where queue = ?1
  and lane = ?2
  and kind in (select value from json_each(?3))
  and id not in (select task_id from turn where lane = ?2 and task_id is not null)
order by priority, id
limit 1";

const BOUND_TASK: &str = "select priority, id, kind from task where id = ?1";

const NEXT_FREE_TURN: &str = "select seq from turn where lane = ?1 and task_id is null order by seq limit 1";

const DELETE_TURN: &str = "delete from turn where seq = ?1";

const SET_NEXT_START: &str = "update lane set next_start = ?2 where id = ?1";

/// A place in the line, in the order in which places are served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: i64,
    seq: i64,
    lane: i64,
    task: Option<i64>,
}

/// A task that can start.
#[derive(Clone, Copy)]
struct Candidate {
    priority: i64,
    task: i64,
    /// The turn that it takes; none for a task without a lane.
    turn: Option<Turn>,
}

/// Serves one [`Claim`].
pub(crate) struct Picker<'a> {
    claim: &'a Claim,
    queue: i64,
    /// The kinds that the caller runs, as a JSON array.
    kinds: Option<String>,
    /// Tasks without a lane, in order.
    free: VecDeque<Candidate>,
    /// The part of the line that was read, and where to read on.
    line: VecDeque<Turn>,
    read_to: Option<(i64, i64)>,
    /// Turns that have moved up behind one that was taken, or whose task is less urgent than the line shows.
    moved: BinaryHeap<Reverse<Turn>>,
    /// The next turn and its task.
    next: Option<Candidate>,
    lanes: HashMap<i64, LaneRow>,
    /// Lanes that started something and now rest.
    resting: HashSet<i64>,
    /// What begins at a priority that has both.
    turns_begin: bool,
}

impl<'a> Picker<'a> {
    /// Reads what has no lane; the line is read as far as it is needed. `number` is the advance's.
    pub(crate) fn new(step: &Step<'_>, claim: &'a Claim, queue: i64, number: u64) -> rusqlite::Result<Self> {
        let kinds = match &claim.kinds {
            Kinds::All => None,
            Kinds::Only(kinds) => Some(row::json_array(kinds)),
        };
        let read = |row: &Row<'_>| Ok(Candidate { priority: row.get(0)?, task: row.get(1)?, turn: None });
        let free = match &kinds {
            None => step.db.all(FREE_TASKS, params![queue, claim.max], read)?,
            Some(kinds) => step.db.all(FREE_TASKS_OF_KINDS, params![queue, claim.max, kinds], read)?,
        };
        Ok(Self {
            claim,
            queue,
            kinds,
            free: free.into(),
            line: VecDeque::new(),
            read_to: Some((i64::MIN, i64::MIN)),
            moved: BinaryHeap::new(),
            next: None,
            lanes: HashMap::new(),
            resting: HashSet::new(),
            turns_begin: number % 2 == 1,
        })
    }

    /// Takes tasks until there are enough or no more, and lets the lines of their lanes follow.
    pub(crate) fn pick(mut self, step: &mut Step<'_>, leases: &mut Leases) -> rusqlite::Result<Vec<Taken>> {
        let mut taken = Vec::new();
        let mut last = None;
        while taken.len() < self.claim.max as usize {
            if self.next.is_none() {
                self.next = self.next_turn(step)?;
            }
            let Some(candidate) = self.choose(last) else { break };
            last = Some((candidate.priority, candidate.turn.is_some()));
            taken.push(self.take(step, leases, candidate)?);
        }
        // A lane with one turn has none left in the line.
        let lanes = self.lanes.values().filter(|lane| lane.issued > 1).map(|lane| lane.id).collect();
        line::refresh_all(step, lanes)?;
        Ok(taken)
    }

    /// The more urgent of the next turn and the next lane-less task; at the same priority they alternate.
    /// `last` is the priority of the last choice, and whether it was a turn.
    fn choose(&mut self, last: Option<(i64, bool)>) -> Option<Candidate> {
        let turn_goes = match (&self.next, self.free.front()) {
            (Some(turn), Some(free)) if turn.priority == free.priority => match last {
                Some((priority, was_turn)) if priority == turn.priority => !was_turn,
                _ => self.turns_begin,
            },
            (Some(turn), Some(free)) => turn.priority < free.priority,
            (turn, _) => turn.is_some(),
        };
        if turn_goes { self.next.take() } else { self.free.pop_front() }
    }

    /// The next turn of the line that the caller can use, with its task.
    fn next_turn(&mut self, step: &Step<'_>) -> rusqlite::Result<Option<Candidate>> {
        while let Some(turn) = self.next_in_line(step)? {
            if self.resting.contains(&turn.lane) {
                continue;
            }
            let Some(candidate) = self.candidate(step, turn)? else { continue };
            if candidate.priority > turn.priority {
                self.moved.push(Reverse(Turn { priority: candidate.priority, ..turn }));
                continue;
            }
            return Ok(Some(candidate));
        }
        Ok(None)
    }

    fn next_in_line(&mut self, step: &Step<'_>) -> rusqlite::Result<Option<Turn>> {
        if self.line.is_empty() {
            self.read_on(step)?;
        }
        match (self.line.front(), self.moved.peek()) {
            (Some(turn), Some(Reverse(moved))) if moved < turn => Ok(self.moved.pop().map(|moved| moved.0)),
            (None, Some(_)) => Ok(self.moved.pop().map(|moved| moved.0)),
            _ => Ok(self.line.pop_front()),
        }
    }

    fn read_on(&mut self, step: &Step<'_>) -> rusqlite::Result<()> {
        let Some((priority, seq)) = self.read_to else { return Ok(()) };
        let window = WINDOW.min(self.claim.max + 1);
        let turns = step.db.all(LINE, params![self.queue, priority, seq, window], |row| {
            Ok(Turn { priority: row.get(0)?, seq: row.get(1)?, lane: row.get(2)?, task: row.get(3)? })
        })?;
        let full = turns.len() == window as usize;
        self.read_to = turns.last().filter(|_| full).map(|turn| (turn.priority, turn.seq));
        self.line = turns.into();
        Ok(())
    }

    /// The task that `turn` would take: its own if it is bound, else the head of the lane. In an ordered lane
    /// nothing overtakes a head that the caller does not run; elsewhere the first that it runs is taken.
    fn candidate(&mut self, step: &Step<'_>, turn: Turn) -> rusqlite::Result<Option<Candidate>> {
        let ordered = self.lane(step, turn.lane)?.lim == 1;
        let read = |row: &Row<'_>| {
            let candidate = Candidate { priority: row.get(0)?, task: row.get(1)?, turn: Some(turn) };
            Ok((candidate, row.get::<_, String>(2)?))
        };
        let found = match (&self.kinds, turn.task) {
            (_, Some(task)) => step.db.first(BOUND_TASK, [task], read)?,
            (Some(kinds), None) if !ordered => {
                step.db.first(HEAD_OF_KINDS, params![self.queue, turn.lane, kinds], read)?
            }
            (_, None) => step.db.first(HEAD, [self.queue, turn.lane], read)?,
        };
        Ok(found.filter(|(_, kind)| self.runs(kind)).map(|(candidate, _)| candidate))
    }

    fn runs(&self, kind: &str) -> bool {
        match &self.claim.kinds {
            Kinds::All => true,
            Kinds::Only(kinds) => kinds.iter().any(|known| known.as_str() == kind),
        }
    }

    /// Moves a task into a lease, and its turn out of the line.
    fn take(
        &mut self,
        step: &Step<'_>,
        leases: &mut Leases,
        candidate: Candidate,
    ) -> rusqlite::Result<Taken> {
        let lane = match candidate.turn {
            Some(turn) => lane::shown_key(self.lane(step, turn.lane)?.key.clone())?,
            None => None,
        };
        if let Some(turn) = candidate.turn {
            self.take_turn(step, turn)?;
        }
        leases.take(step, self.claim, candidate.task, lane)
    }

    fn take_turn(&mut self, step: &Step<'_>, turn: Turn) -> rusqlite::Result<()> {
        step.db.run(DELETE_TURN, [turn.seq])?;
        let lane = self.lane(step, turn.lane)?;
        if lane.interval_us > 0 {
            let next_start = step.now + lane.interval_us;
            self.resting.insert(turn.lane);
            step.db.run(SET_NEXT_START, [turn.lane, next_start])?;
        } else if lane.issued > 1 && turn.task.is_none() {
            // The next free turn stood behind this one. Its task is at least as far back; `next_turn` looks.
            let behind = step.db.first(NEXT_FREE_TURN, [turn.lane], |row| row.get(0))?;
            self.moved.extend(behind.map(|seq| Reverse(Turn { seq, ..turn })));
        }
        Ok(())
    }

    fn lane(&mut self, step: &Step<'_>, lane: i64) -> rusqlite::Result<&LaneRow> {
        match self.lanes.entry(lane) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(turn::lane_row(step, lane)?)),
        }
    }
}

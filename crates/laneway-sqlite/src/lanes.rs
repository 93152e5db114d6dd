//! Looking at lanes: one, or those of a queue in order.
//!
//! Tasks are counted up to a bound. In a list every lane has a share of the tasks that may be counted, and those that have
//! more than it get a second one.

use std::time::Duration;

use rusqlite::{Connection, Row, params};

use laneway_core::{
    LANE_COUNT_MAX, LANES_COUNT_ROWS, LANES_LOOK_MAX, LaneKey, LaneLimit, LaneListing, LaneOrder, LanePage,
    LaneView, OnFailure, QueueName,
};

use crate::lane;
use crate::queue;
use crate::row::{self, Sql};

const VIEW: &str = "
select id,
       key,
       lim,
       interval_us,
       halts,
       halted,
       paused,
       issued - (select count(*) from turn where turn.lane = lane.id)
from lane
where id = ?1";

const BY_KEY: &str = "
select id,
       key,
       lim,
       interval_us,
       halts,
       halted,
       paused,
       issued - (select count(*) from turn where turn.lane = lane.id)
from lane
where queue = ?1
  and key > ?2
order by key
limit ?3";

const COUNT: &str = "select count(*) from (select 1 from task where queue = ?1 and lane = ?2 limit ?3)";

/// Comes before all keys of users and behind those of children and serial queues.
const FIRST_KEY: &str = "\u{4}";
/// Tasks of a lane that are counted however many lanes there are.
const SHARE_MIN: u64 = 20;

/// A lane as it is now.
pub(crate) fn view(db: &Connection, queue: &QueueName, key: &LaneKey) -> rusqlite::Result<Option<LaneView>> {
    let Some(queue) = queue::find(db, queue)? else { return Ok(None) };
    let Some(lane) = lane::find(db, queue, key.as_str())? else { return Ok(None) };
    let Some((lane, mut view)) = db.first(VIEW, [lane], read)? else { return Ok(None) };
    count(db, queue, lane, LANE_COUNT_MAX, &mut view)?;
    Ok(Some(view))
}

/// One page of the lanes of a queue.
pub(crate) fn list(db: &Connection, listing: &LaneListing) -> rusqlite::Result<LanePage> {
    let Some(queue) = queue::find(db, &listing.queue)? else { return Ok(listing.page(vec![], false)) };
    let after = listing.after.as_ref().map_or(FIRST_KEY, |cursor| cursor.key.as_str());
    let (after, most) = match listing.order {
        LaneOrder::Key => (after, listing.limit + 1),
        LaneOrder::Backlog | LaneOrder::Held => (FIRST_KEY, LANES_LOOK_MAX),
    };
    let mut lanes = db.all(BY_KEY, params![queue, after, most], read)?;
    let partial = listing.order != LaneOrder::Key && lanes.len() >= most as usize;
    count_all(db, queue, &mut lanes)?;

    let mut lanes: Vec<_> = lanes.into_iter().map(|(_, lane)| lane).collect();
    lanes.sort_by_key(|lane| std::cmp::Reverse(listing.order.number(lane)));
    if let Some(cursor) = &listing.after {
        lanes.retain(|lane| {
            let number = listing.order.number(lane);
            number < cursor.number || number == cursor.number && lane.key > cursor.key
        });
    }
    Ok(listing.page(lanes, partial))
}

/// The lane's number, and everything but its tasks.
fn read(row: &Row<'_>) -> rusqlite::Result<(i64, LaneView)> {
    let view = LaneView {
        key: row::lane_key(row.get(1)?)?,
        limit: LaneLimit::from_stored(row.get(2)?),
        interval: Duration::from_micros(row::count(row, 3)?),
        on_failure: if row.get(4)? { OnFailure::Halt } else { OnFailure::Continue },
        halted: row.get(5)?,
        paused: row.get(6)?,
        pending: 0,
        more: false,
        held: row::count(row, 7)?,
    };
    Ok((row.get(0)?, view))
}

fn count_all(db: &Connection, queue: i64, lanes: &mut [(i64, LaneView)]) -> rusqlite::Result<()> {
    let share = |lanes: usize| LANES_COUNT_ROWS / lanes.max(1) as u64;
    let first = share(lanes.len()).clamp(SHARE_MIN, LANE_COUNT_MAX);
    for (id, lane) in lanes.iter_mut() {
        count(db, queue, *id, first, lane)?;
    }
    let more = lanes.iter().filter(|(_, lane)| lane.more).count();
    if more as u64 * first > LANES_COUNT_ROWS / 2 {
        return Ok(()); // counting them again would cost as much as the first time
    }
    let second = (first + share(more)).min(LANE_COUNT_MAX);
    for (id, lane) in lanes.iter_mut().filter(|(_, lane)| lane.more) {
        count(db, queue, *id, second, lane)?;
    }
    Ok(())
}

fn count(db: &Connection, queue: i64, id: i64, bound: u64, lane: &mut LaneView) -> rusqlite::Result<()> {
    let tasks = db.first(COUNT, [queue, id, bound as i64 + 1], |row| row::count(row, 0))?.unwrap_or(0);
    (lane.pending, lane.more) = (tasks.min(bound), tasks > bound);
    Ok(())
}

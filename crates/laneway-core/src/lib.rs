//! The words of Laneway: what a task is, what may be asked of a store, and what it answers.
//!
//! Nothing here touches a database, a file or a clock. The two stores (`laneway-postgres`,
//! `laneway-sqlite`) implement [`Store`]; everything above them talks to that trait alone.
//!
//! Start with [`NewTask`] (what is enqueued), then [`Advance`] (how a worker settles and claims in one
//! step), then [`Store`] (the whole list of verbs). Every rule about input is in [`validate`], once, in
//! front of both stores.
#![doc = include_str!("../life_of_a_task.md")]

mod access;
mod act;
mod advance;
mod change;
mod cron;
mod error;
mod family;
mod filter;
pub mod fires;
mod health;
mod hint;
mod id;
mod json;
mod keep;
mod lane;
mod lane_list;
pub mod liveness;
mod look;
mod meter;
mod name;
mod outcome;
mod progress;
mod retry;
mod schedule;
mod stats;
mod store;
mod task;
mod time;
mod tree;
mod unique;
pub mod validate;
pub mod why;

pub use access::{NewToken, Scope, Token, TokenHash, TokenId};
pub use act::{
    ACT_MAX, Acted, Action, Actor, AuditEntry, AuditPage, BULK_STEP, Bulk, BulkId, BulkPage, BulkState,
    BulkStep, Edit, NewBulk, Pausable, Pause, Skip, check_act, check_pause,
};
pub use advance::{Advance, Advanced, Claim, Claimed, Kinds, Left, Scan};
pub use change::{Change, Changes, Position, Watch, WatcherId};
pub use error::StoreError;
pub use family::{
    Children, FAMILY_ERRORS_MAX, FamilyPolicy, FamilyView, FollowUp, FollowUpOnFailure, Serial, Spawned,
    Spawner, check_child, check_child_of, check_sibling_of, family_error, lane_in_serial_queue,
    serial_queue_in_use,
};
pub use filter::{Compare, Filter, Moment, Term, Test};
pub use health::{StoreHealth, TableHealth};
pub use hint::{Hint, HintSender, Hints};
pub use id::{LeaseId, LeaseRef, LeaseToken, SessionId, TaskId};
pub use json::Json;
pub use keep::{Keep, Maintained, QueueSettings};
pub use lane::{Lane, LaneLimit, LaneSettings, LaneView, OnFailure};
pub use lane_list::{
    LANE_COUNT_MAX, LANES_COUNT_ROWS, LANES_LOOK_MAX, LaneCursor, LaneListing, LaneOrder, LanePage,
};
pub use liveness::{Capacity, Fence, Orders, Registration, Renewal, Renewed, Sleep, Swept};
pub use look::{
    Cancel, Counts, Cursor, KindCounts, LOOK_ROWS_MAX, LOOK_TEXTS_MAX, Listing, Looked, Page, Place,
    QueueView, State, TaskView, WorkerView,
};
pub use meter::{Meter, TIME_BOUNDS, Times};
pub use name::{ActorName, Kind, LaneKey, QueueName, ScheduleName, Tag, UniqueKey};
pub use outcome::{Outcome, Settle, Settled, Verdict};
pub use progress::{PROGRESS_NOTE_MAX, Progress, ProgressView, Report};
pub use retry::RetryPolicy;
pub use schedule::{Fire, Fired, Missed, Overlap, Ran, Rule, Schedule, ScheduleView};
pub use stats::{FailedAttempt, Histogram, Point, Series, Totals};
pub use store::Store;
pub use task::{NewTask, Task, TaskOptions, When, check_bulk};
pub use time::{parse_span, parse_time};
pub use tree::{Rest, TREE_ROWS_MAX, Tree};
pub use unique::{Effect, Enqueued, KeyScope, OnConflict, Unique, content_hash};
pub use validate::{Code, InvalidInput, Limits};
pub use why::{Holder, OpenChild, Paused, Reason, Serving, Why};

//! The lanes of a queue as a list: by backlog, by what is held, or by key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lane::LaneView;
use crate::name::{LaneKey, QueueName};
use crate::validate::{self, Code, InvalidInput};

/// Tasks of one lane that are counted at most.
pub const LANE_COUNT_MAX: u64 = 10_000;
/// Lanes that one look orders by backlog or by what is held.
pub const LANES_LOOK_MAX: u32 = 5_000;
/// Tasks that one look counts in all lanes together. If there are more, lanes have shares of them.
pub const LANES_COUNT_ROWS: u64 = 100_000;

/// The order of a list of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneOrder {
    /// Most runnable tasks first.
    #[default]
    Backlog,
    /// Most turns with tasks first.
    Held,
    /// By key.
    Key,
}

impl LaneOrder {
    /// The order as stores and users name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Held => "held",
            Self::Key => "key",
        }
    }

    /// The number that lanes are ordered by; 0 for keys. Of two that were counted as far, the one that has more goes first.
    pub fn number(self, lane: &LaneView) -> u64 {
        match self {
            Self::Backlog => lane.pending + u64::from(lane.more),
            Self::Held => lane.held,
            Self::Key => 0,
        }
    }
}

impl FromStr for LaneOrder {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        [Self::Backlog, Self::Held, Self::Key].into_iter().find(|order| order.as_str() == text).ok_or_else(
            || {
                let problem = format!("`{}` is unknown; one of: backlog, held, key", text.escape_debug());
                InvalidInput::new(Code::InvalidName, "order", problem)
            },
        )
    }
}

/// A request for one page of the lanes of a queue.
///
/// ```
/// use laneway_core::{LaneListing, LaneOrder, QueueName};
///
/// let fullest = LaneListing::of(QueueName::new("mail")?).order(LaneOrder::Held).limit(20);
/// assert!(fullest.check().is_ok());
/// assert_eq!(fullest.limit(501).check().unwrap_err().code.as_str(), "out_of_range");
/// # Ok::<(), laneway_core::InvalidInput>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneListing {
    /// Whose lanes.
    pub queue: QueueName,
    /// In which order; lanes that are alike in it by key.
    pub order: LaneOrder,
    /// Go on after this lane.
    pub after: Option<LaneCursor>,
    /// At most this many lanes: 1 to 500.
    pub limit: u32,
}

impl LaneListing {
    /// The hundred lanes of `queue` with the most runnable tasks.
    pub fn of(queue: QueueName) -> Self {
        Self { queue, order: LaneOrder::default(), after: None, limit: 100 }
    }

    /// Another order.
    pub fn order(mut self, order: LaneOrder) -> Self {
        self.order = order;
        self
    }

    /// Goes on after a page of the same order.
    pub fn after(mut self, cursor: LaneCursor) -> Self {
        self.after = Some(cursor);
        self
    }

    /// At most this many lanes.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Checks the page size.
    ///
    /// # Errors
    /// `out_of_range`.
    pub fn check(&self) -> Result<(), InvalidInput> {
        validate::in_range("limit", self.limit, 1..=validate::PAGE_MAX)
    }

    /// Makes a page of its lanes and, if there is a next page, at least one lane more, all in order.
    pub fn page(&self, mut lanes: Vec<LaneView>, partial: bool) -> LanePage {
        let is_last = lanes.len() <= self.limit as usize;
        lanes.truncate(self.limit as usize);
        let last = lanes.last().filter(|_| !is_last);
        let next = last.map(|lane| LaneCursor { number: self.order.number(lane), key: lane.key.clone() });
        LanePage { lanes, next, partial }
    }
}

/// A place in a list of lanes: the number and the key of the last lane seen.
///
/// ```
/// use laneway_core::LaneCursor;
///
/// let cursor: LaneCursor = "42-customer-7".parse().unwrap();
/// assert_eq!((cursor.number, cursor.key.as_str()), (42, "customer-7"));
/// assert_eq!(cursor.to_string(), "42-customer-7");
/// assert!("customer".parse::<LaneCursor>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCursor {
    /// What the list is ordered by: backlog or held; 0 in a list by key.
    pub number: u64,
    /// The lane.
    pub key: LaneKey,
}

impl fmt::Display for LaneCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.key)
    }
}

impl FromStr for LaneCursor {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let parse = || {
            let (number, key) = text.split_once('-')?;
            let number = number.parse::<u64>().ok().filter(|number| i64::try_from(*number).is_ok())?;
            Some(Self { number, key: LaneKey::new(key).ok()? })
        };
        parse().ok_or_else(|| {
            let problem =
                format!("`{}` was not made by a listing; start at the first page", text.escape_debug());
            InvalidInput::new(Code::InvalidId, "cursor", problem)
        })
    }
}

/// One page of lanes. A lane whose number changes between two pages may be seen twice or not at all; by key, neither happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LanePage {
    /// The lanes.
    pub lanes: Vec<LaneView>,
    /// Where the next page starts; none when this was the last.
    #[serde(skip)]
    pub next: Option<LaneCursor>,
    /// True when the queue has more than [`LANES_LOOK_MAX`] lanes and only the first of them by key were put in order. The
    /// order by key has no such bound.
    pub partial: bool,
}

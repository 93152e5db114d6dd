//! What can be said about a task on the command line. Enqueue and schedules share it.

use clap::Args;
use laneway_core::{
    Code, InvalidInput, KeyScope, Lane, LaneKey, LaneLimit, NewTask, OnConflict, QueueName, RetryPolicy, Tag,
    Unique, UniqueKey, parse_span, parse_time,
};

/// Everything about a task but its kind and payload.
#[derive(Args, Debug, Default, PartialEq)]
pub struct TaskFlags {
    /// The queue that it waits in [default: default]
    #[arg(long, value_name = "NAME")]
    pub queue: Option<String>,
    /// The lane that it belongs to: in order, unless the lane has a limit above 1
    #[arg(long, value_name = "KEY")]
    pub lane: Option<String>,
    /// The limit that its lane has from now on
    #[arg(long, value_name = "N", requires = "lane")]
    pub limit: Option<u32>,
    /// Lower runs first, -1000 to 1000 [default: 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Start it this much later, such as 10m
    #[arg(long, value_name = "SPAN", conflicts_with = "at")]
    pub delay: Option<String>,
    /// Start it at this time, such as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// Store it only if no task of its kind and queue holds this key
    #[arg(long, value_name = "KEY", conflicts_with = "idempotency_key")]
    pub unique: Option<String>,
    /// How long it holds its key: open (until it has ended), pending (until it starts), or a span
    #[arg(long, value_name = "SCOPE", requires = "unique")]
    pub unique_scope: Option<String>,
    /// What becomes of it when its key is held: existing, replace, merge or reject
    #[arg(long, value_name = "RULE", requires = "unique")]
    pub on_conflict: Option<String>,
    /// Make repeating this harmless: with the same key no second task is stored
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Try it at most this often [default: 25]
    #[arg(long, value_name = "N")]
    pub max_attempts: Option<u32>,
    /// Wait so long after failed attempts, the last one again and again: 1s,10s,5m [default: 1s, 2s, 4s … 1h]
    #[arg(long, value_name = "SPANS", value_delimiter = ',')]
    pub retry: Vec<String>,
    /// End an attempt that takes longer
    #[arg(long, value_name = "SPAN")]
    pub timeout: Option<String>,
    /// A label; may be repeated
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
}

impl TaskFlags {
    /// The task with everything that was said about it.
    ///
    /// # Errors
    /// The first value that is not acceptable.
    pub fn apply(&self, mut task: NewTask) -> Result<NewTask, InvalidInput> {
        if let Some(queue) = &self.queue {
            task.queue = QueueName::new(queue)?;
        }
        task.lane = self.in_lane()?;
        if let Some(delay) = &self.delay {
            task = task.delay(parse_span("delay", delay)?);
        }
        if let Some(at) = &self.at {
            task = task.at(parse_time("at", at)?);
        }
        if let Some(timeout) = &self.timeout {
            task = task.timeout(parse_span("timeout", timeout)?);
        }
        task.priority = self.priority.unwrap_or(task.priority);
        task.max_attempts = self.max_attempts.unwrap_or(task.max_attempts);
        task.unique = self.key()?;
        if !self.retry.is_empty() {
            task.retry = self.policy()?;
        }
        task.tags = self.tags.iter().map(Tag::new).collect::<Result<_, _>>()?;
        Ok(task)
    }

    fn in_lane(&self) -> Result<Option<Lane>, InvalidInput> {
        let limit = self.limit.map(LaneLimit::at).transpose()?;
        match (&self.lane, limit) {
            (Some(key), limit) => Ok(Some(Lane { key: LaneKey::new(key)?, limit })),
            (None, Some(_)) => {
                Err(InvalidInput::new(Code::OutOfRange, "limit", "belongs to a lane; name one"))
            }
            (None, None) => Ok(None),
        }
    }

    fn key(&self) -> Result<Option<Unique>, InvalidInput> {
        if let Some(key) = &self.idempotency_key {
            return Ok(Some(Unique::idempotent(UniqueKey::new(key)?)));
        }
        let Some(key) = &self.unique else {
            let is_lost = self.unique_scope.is_some() || self.on_conflict.is_some();
            let lost = || {
                InvalidInput::new(
                    Code::OutOfRange,
                    "unique",
                    "is missing; scope and conflict rule belong to it",
                )
            };
            return if is_lost { Err(lost()) } else { Ok(None) };
        };
        let mut unique = Unique::new(UniqueKey::new(key)?);
        if let Some(scope) = &self.unique_scope {
            unique = unique.scope(key_scope(scope)?);
        }
        if let Some(rule) = &self.on_conflict {
            unique = unique.on_conflict(on_conflict(rule)?);
        }
        Ok(Some(unique))
    }

    fn policy(&self) -> Result<RetryPolicy, InvalidInput> {
        let delays = self.retry.iter().map(|text| parse_span("retry", text.trim()));
        let delays_ms = delays.map(|delay| delay.map(|delay| delay.as_millis() as u64));
        Ok(RetryPolicy::List { delays_ms: delays_ms.collect::<Result<_, _>>()? })
    }
}

fn key_scope(text: &str) -> Result<KeyScope, InvalidInput> {
    match text {
        "open" => Ok(KeyScope::WhileOpen),
        "pending" => Ok(KeyScope::WhilePending),
        span => parse_span("unique-scope", span).map(KeyScope::Within).map_err(|_| {
            let problem =
                format!("`{}` is none; one of: open, pending, a span such as 10m", span.escape_debug());
            InvalidInput::new(Code::OutOfRange, "unique-scope", problem)
        }),
    }
}

fn on_conflict(rule: &str) -> Result<OnConflict, InvalidInput> {
    let rules = [OnConflict::Existing, OnConflict::Replace, OnConflict::Merge, OnConflict::Reject];
    rules.into_iter().find(|known| known.stored() == rule).ok_or_else(|| {
        let problem = format!(
            "`{}` is none; one of: {}",
            rule.escape_debug(),
            rules.map(OnConflict::stored).join(", ")
        );
        InvalidInput::new(Code::OutOfRange, "on_conflict", problem)
    })
}

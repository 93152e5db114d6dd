//! Live changes as server-sent events.
//!
//! Events: `ready` (from here on nothing is missed), `changes`, `overview` (changes as numbers), `gap` (look at the tasks as they are), `heartbeat`, and
//! `bye` when the server stops. The id of each is a position of the change feed; a client that comes back with it as
//! `Last-Event-ID` is told what it missed, or that there is a gap.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use jiff::Timestamp;
use laneway_core::{Change, Code, InvalidInput, Position, QueueName, State as TaskState, TaskId};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::access::{Caller, Read};
use crate::feed::{Batch, News};
use crate::input::Asked;
use crate::metrics::Counted;
use crate::problem::{Problem, ProblemBody};
use crate::routes::App;

/// How often a silent stream says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
const OVERVIEW_EVERY: Duration = Duration::from_secs(1);

/// Which changes are told. All that is given must hold.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// Only this queue.
    queue: Option<String>,
    /// Only these states, with commas.
    state: Option<String>,
    /// Only this task.
    task: Option<i64>,
    /// Only what one of these means, with commas: `queue:mail`, `task:42`, `state:failed`; `overview` tells all changes as
    /// numbers of tasks, at most once a second.
    topics: Option<String>,
    /// Where to go on, for clients that cannot send `Last-Event-ID`.
    after: Option<String>,
}

/// Which changes a stream is about: all that is given must hold.
#[derive(Default)]
struct Topic {
    queue: Option<QueueName>,
    states: Option<Vec<TaskState>>,
    task: Option<TaskId>,
}

/// What a stream tells.
struct Topics {
    /// Changes that one of these means, task by task.
    any: Vec<Topic>,
    /// Numbers of tasks by queue and state that wait to be told.
    overview: Option<BTreeMap<(String, TaskState), u64>>,
}

/// Tasks of one queue that entered a state together.
#[derive(Serialize)]
struct Shown<'a> {
    at: Timestamp,
    queue: &'a str,
    state: TaskState,
    /// They were deleted from that state.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    tasks: Vec<ShownTask<'a>>,
}

#[derive(Serialize)]
struct ShownTask<'a> {
    id: i64,
    kind: &'a str,
}

impl StreamQuery {
    fn topics(&self) -> Result<Topics, Problem> {
        let Some(text) = &self.topics else {
            return Ok(Topics { any: vec![self.topic()?], overview: None });
        };
        if self.queue.is_some() || self.state.is_some() || self.task.is_some() {
            let problem = "stands alone; leave out queue, state and task";
            return Err(InvalidInput::new(Code::OutOfRange, "topics", problem).into());
        }
        let mut topics = Topics { any: vec![], overview: None };
        for word in text.split(',') {
            match word {
                "overview" => topics.overview = Some(BTreeMap::new()),
                word => topics.any.push(Topic::parse(word)?),
            }
        }
        Ok(topics)
    }

    fn topic(&self) -> Result<Topic, Problem> {
        let queue = self.queue.as_deref().map(QueueName::new).transpose()?;
        let states = self.state.as_deref().map(|states| states.split(',').map(str::parse).collect());
        Ok(Topic { queue, states: states.transpose()?, task: self.task.map(TaskId) })
    }

    fn after(&self, headers: &HeaderMap) -> Result<Option<Position>, Problem> {
        let header = headers.get("last-event-id").and_then(|value| value.to_str().ok());
        Ok(header.or(self.after.as_deref()).map(str::parse).transpose()?)
    }
}

impl Topic {
    fn parse(word: &str) -> Result<Self, InvalidInput> {
        let topic = Self::default();
        match word.split_once(':') {
            Some(("queue", name)) => Ok(Self { queue: Some(QueueName::new(name)?), ..topic }),
            Some(("state", state)) => Ok(Self { states: Some(vec![state.parse()?]), ..topic }),
            Some(("task", id)) => Ok(Self { task: Some(id.parse()?), ..topic }),
            _ => {
                let problem = format!(
                    "`{}` is none; one of: overview, queue:NAME, state:STATE, task:ID",
                    word.escape_debug()
                );
                Err(InvalidInput::new(Code::InvalidName, "topics", problem))
            }
        }
    }

    fn shown<'a>(&self, change: &'a Change) -> Option<Shown<'a>> {
        let is_meant = self.queue.as_ref().is_none_or(|queue| *queue == change.queue)
            && self.states.as_ref().is_none_or(|states| states.contains(&change.state));
        let tasks = change.tasks.iter().filter(|(id, _)| self.task.is_none_or(|task| task == *id));
        let tasks: Vec<_> = tasks.map(|(id, kind)| ShownTask { id: id.0, kind: kind.as_str() }).collect();
        let Change { at, state, deleted, .. } = *change;
        let shown = Shown { at, queue: change.queue.as_str(), state, deleted, tasks };
        (is_meant && !shown.tasks.is_empty()).then_some(shown)
    }
}

impl Topics {
    /// The change as the first topic shows it that means any of its tasks.
    fn shown<'a>(&self, change: &'a Change) -> Option<Shown<'a>> {
        let mut shown = self.any.iter().filter_map(|topic| topic.shown(change));
        let mut first = shown.next()?;
        for other in shown {
            first.tasks.extend(other.tasks);
        }
        first.tasks.sort_unstable_by_key(|task| task.id);
        first.tasks.dedup_by_key(|task| task.id);
        Some(first)
    }

    fn count(&mut self, batch: &Batch) {
        let Some(counted) = &mut self.overview else { return };
        for change in batch.changes.iter().filter(|change| !change.deleted) {
            *counted.entry((change.queue.to_string(), change.state)).or_default() +=
                change.tasks.len() as u64;
        }
    }

    fn has_counted(&self) -> bool {
        self.overview.as_ref().is_some_and(|counted| !counted.is_empty())
    }
}

/// Follow changes as server-sent events.
#[utoipa::path(
    get, path = "/api/v1/stream", tag = "stream", security(("token" = ["read"])),
    params(StreamQuery, ("Last-Event-ID" = Option<String>, Header, description = "Go on behind this event")),
    responses(
        (status = 200, description = "`ready`, `changes`, `gap`, `heartbeat`, `bye`", body = String,
         content_type = "text/event-stream"),
        (status = "4XX", body = ProblemBody)
    )
)]
pub(crate) async fn stream(
    _: Caller<Read>,
    State(app): State<App>,
    Asked(query): Asked<StreamQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let follower = Follower::begin(&app, query.topics()?, query.after(&headers)?);
    Ok(Sse::new(futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })))
}

/// One stream.
struct Follower {
    topics: Topics,
    /// Events that are known already.
    waiting: VecDeque<Event>,
    news: broadcast::Receiver<News>,
    /// Up to where its client was told; none until the feed is live.
    told: Option<Position>,
    /// The client knows an earlier position, so a new beginning is a gap.
    came_back: bool,
    heartbeat: tokio::time::Interval,
    /// When what was counted is told.
    overview: tokio::time::Interval,
    stop: CancellationToken,
    has_said_bye: bool,
    _counted: Counted,
}

impl Follower {
    fn begin(app: &App, topics: Topics, after: Option<Position>) -> Self {
        let followed = app.feed.follow(after);
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.reset();
        let mut follower = Self {
            topics,
            waiting: VecDeque::new(),
            news: followed.news,
            told: None,
            came_back: after.is_some(),
            heartbeat,
            overview: tokio::time::interval(OVERVIEW_EVERY),
            stop: app.stop.clone(),
            has_said_bye: false,
            _counted: Counted::in_gauge(&app.metrics.stream_clients),
        };
        match (followed.missed, followed.position) {
            (Some(missed), Some(position)) => {
                missed.iter().for_each(|batch| follower.take(batch));
                follower.begun("ready", position);
            }
            (None, Some(position)) => follower.begun_anew(position),
            (_, None) => (),
        }
        follower
    }

    /// The next event; none when the stream is over.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if self.has_said_bye {
                return None;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.has_said_bye = true;
                    self.say("bye", r#"{"reason":"the server stops"}"#);
                }
                news = self.news.recv() => match news {
                    Ok(News::Begun(position)) => self.begun_anew(position),
                    Ok(News::Batch(batch)) => self.take(&batch),
                    // The next batch has a position to go on from.
                    Err(RecvError::Lagged(_)) => self.say("gap", GAP),
                    Err(RecvError::Closed) => return None,
                },
                _ = self.overview.tick(), if self.topics.has_counted() => self.tell_overview(),
                _ = self.heartbeat.tick() => self.say("heartbeat", "{}"),
            }
        }
    }

    fn begun_anew(&mut self, position: Position) {
        let event = if self.came_back { "gap" } else { "ready" };
        self.begun(event, position);
    }

    fn begun(&mut self, event: &'static str, position: Position) {
        self.told = Some(position);
        self.came_back = true;
        self.say(event, if event == "gap" { GAP } else { "{}" });
    }

    fn take(&mut self, batch: &Arc<Batch>) {
        self.told = Some(batch.position);
        self.topics.count(batch);
        let changes: Vec<_> = batch.changes.iter().filter_map(|change| self.topics.shown(change)).collect();
        if changes.is_empty() {
            return;
        }
        let data = serde_json::to_string(&serde_json::json!({ "changes": changes }))
            .expect("strings and numbers can be encoded");
        self.say("changes", &data);
    }

    fn tell_overview(&mut self) {
        let counted = self.topics.overview.as_mut().map(std::mem::take).unwrap_or_default();
        let entered: Vec<_> = counted
            .into_iter()
            .map(
                |((queue, state), tasks)| serde_json::json!({"queue": queue, "state": state, "tasks": tasks}),
            )
            .collect();
        self.say("overview", &serde_json::json!({ "entered": entered }).to_string());
    }

    fn say(&mut self, event: &'static str, data: &str) {
        let said = Event::default().event(event).data(data);
        self.waiting.push_back(match self.told {
            Some(position) => said.id(position.to_string()),
            None => said,
        });
    }
}

const GAP: &str = r#"{"hint":"changes were missed; look at the tasks as they are"}"#;

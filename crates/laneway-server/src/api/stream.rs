//! Live changes as server-sent events.
//!
//! Events: `ready` (from here on nothing is missed), `changes`, `gap` (look at the tasks as they are), `heartbeat`, and
//! `bye` when the server stops. The id of each is a position of the change feed; a client that comes back with it as
//! `Last-Event-ID` is told what it missed, or that there is a gap.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use jiff::Timestamp;
use laneway_core::{Change, Position, QueueName, State as TaskState, TaskId};
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
    /// Where to go on, for clients that cannot send `Last-Event-ID`.
    after: Option<String>,
}

/// Which changes a stream is about.
struct Topic {
    queue: Option<QueueName>,
    states: Option<Vec<TaskState>>,
    task: Option<TaskId>,
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
    let follower = Follower::begin(&app, query.topic()?, query.after(&headers)?);
    Ok(Sse::new(futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    })))
}

/// One stream.
struct Follower {
    topic: Topic,
    /// Events that are known already.
    waiting: VecDeque<Event>,
    news: broadcast::Receiver<News>,
    /// Up to where its client was told; none until the feed is live.
    told: Option<Position>,
    /// The client knows an earlier position, so a new beginning is a gap.
    came_back: bool,
    heartbeat: tokio::time::Interval,
    stop: CancellationToken,
    has_said_bye: bool,
    _counted: Counted,
}

impl Follower {
    fn begin(app: &App, topic: Topic, after: Option<Position>) -> Self {
        let followed = app.feed.follow(after);
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        heartbeat.reset();
        let mut follower = Self {
            topic,
            waiting: VecDeque::new(),
            news: followed.news,
            told: None,
            came_back: after.is_some(),
            heartbeat,
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
        let changes: Vec<_> = batch.changes.iter().filter_map(|change| self.topic.shown(change)).collect();
        if changes.is_empty() {
            return;
        }
        let data = serde_json::to_string(&serde_json::json!({ "changes": changes }))
            .expect("strings and numbers can be encoded");
        self.say("changes", &data);
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

//! Races around one fire time on PostgreSQL, driven step by step: a scheduler is held at the moment that matters, while
//! others do what they would do then. Each fire time counts once, none is lost, and no scheduler waits for another.

use laneway_core::{Missed, Rule, Schedule, ScheduleName, Store, TaskId};
use laneway_postgres::{PostgresOptions, PostgresStore};
use laneway_testkit::cluster::{Cluster, Database};
use laneway_testkit::store::{ATask, a_task, kind, secs, soon, until};
use tokio_postgres::Client;

/// A scheduler's second statement as plain SQL, with what its first one saw, so that it can come late or be left
/// uncommitted. Returns the verdict.
const FIRE: &str = "
create function public.fire(p_seen bigint, p_fire_at timestamptz) returns text language sql volatile as $$
    select f.verdict
    from laneway.fire_schedule(
        's', p_seen, p_fire_at, p_fire_at, p_fire_at + interval '1000 seconds',
        array['work'], array['{}'], array['default'], array[0::smallint], array[25::smallint],
        array[null]::text[], array[null]::int[], array[null]::bigint[], array[null]::timestamptz[], array[null]::text[],
        array[null]::text[], array[null]::text[], array[null]::bigint[], array[null]::text[], array[null]::bigint[], 1000, null
    ) f
$$;";

const SEEN: &str = "select revision, next_fire_at::text from laneway.schedule";

struct Race {
    database: Database,
    store: PostgresStore,
}

/// What a scheduler has seen in its first statement.
struct Seen(i64, String);

impl Race {
    /// A schedule `s` that fires every thousand seconds, and whose first fire is due.
    async fn at_a_fire_time() -> Self {
        let database = Cluster::shared().await.database().await.unwrap();
        let store = PostgresStore::open(PostgresOptions::new(&database.url).pool_size(6)).await.unwrap();
        database.connect().await.unwrap().batch_execute(FIRE).await.unwrap();
        let race = Self { database, store };
        race.put(a_task()).await;
        race.let_an_interval_pass().await;
        race
    }

    async fn put(&self, task: ATask) {
        let schedule = Schedule::new(name(), Rule::Every(secs(1_000)), task.into()).missed(Missed::Once);
        soon("a put", self.store.put_schedule(schedule)).await.unwrap();
    }

    async fn let_an_interval_pass(&self) {
        let client = self.database.connect().await.unwrap();
        let past = "update laneway.schedule set anchor_at = anchor_at - interval '1000 seconds', \
                    next_fire_at = next_fire_at - interval '1000 seconds', last_fire_at = last_fire_at - interval '1000 seconds'";
        client.batch_execute(past).await.unwrap();
    }

    async fn see(&self) -> Seen {
        let row = self.database.connect().await.unwrap().query_one(SEEN, &[]).await.unwrap();
        Seen(row.get(0), row.get(1))
    }

    /// A scheduler whose transaction is open.
    async fn begin(&self) -> Client {
        let client = self.database.connect().await.unwrap();
        client.batch_execute("begin").await.unwrap();
        client
    }

    /// Other schedulers, three of them, at the same time.
    async fn three_fire(&self) -> Vec<TaskId> {
        let fire = || soon("a scheduler waits for nobody", self.store.fire_due());
        let (first, second, third) = tokio::join!(fire(), fire(), fire());
        [first, second, third].into_iter().flat_map(|fired| fired.unwrap().tasks).collect()
    }

    /// Waits until some statement in this database waits for a lock.
    async fn somebody_waits(&self) {
        let client = self.database.connect().await.unwrap();
        let text = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
        until("somebody waits for a lock", async || client.query_one(text, &[]).await.unwrap().get(0)).await;
    }

    async fn tasks(&self) -> u64 {
        self.store.counts().await.unwrap().iter().map(|count| count.tasks).sum()
    }

    async fn check(&self) {
        assert_eq!(self.store.verify().await.unwrap(), [""; 0]);
    }
}

fn name() -> ScheduleName {
    ScheduleName::new("s").unwrap()
}

async fn fire(client: &Client, seen: &Seen) -> String {
    let text = format!("select public.fire({}, '{}')", seen.0, seen.1);
    client.query_one(&text, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn three_schedulers_at_one_fire_time_make_one_task() {
    let race = Race::at_a_fire_time().await;

    let tasks = race.three_fire().await;

    assert_eq!(tasks.len(), 1);
    assert_eq!(race.tasks().await, 1);
    race.check().await;
}

#[tokio::test]
async fn schedulers_pass_by_a_schedule_that_another_is_firing() {
    let race = Race::at_a_fire_time().await;
    let slow = race.begin().await;
    assert_eq!(fire(&slow, &race.see().await).await, "fired");

    let others = race.three_fire().await;
    slow.batch_execute("commit").await.unwrap();

    assert_eq!(others, []);
    assert_eq!(race.three_fire().await, []);
    assert_eq!(race.tasks().await, 1);
    race.check().await;
}

#[tokio::test]
async fn a_fire_whose_scheduler_dies_is_fired_by_another() {
    let race = Race::at_a_fire_time().await;
    let doomed = race.begin().await;
    assert_eq!(fire(&doomed, &race.see().await).await, "fired");
    assert_eq!(race.three_fire().await, []);

    doomed.batch_execute("rollback").await.unwrap();

    assert_eq!(race.three_fire().await.len(), 1);
    assert_eq!(race.tasks().await, 1);
    race.check().await;
}

#[tokio::test]
async fn a_scheduler_that_comes_late_with_what_it_saw_changes_nothing() {
    let race = Race::at_a_fire_time().await;
    let seen = race.see().await;
    assert_eq!(race.three_fire().await.len(), 1);

    let late = race.begin().await;
    let verdict = fire(&late, &seen).await;
    late.batch_execute("commit").await.unwrap();

    assert_eq!(verdict, "lost");
    assert_eq!(race.tasks().await, 1);
    race.check().await;
}

#[tokio::test]
async fn a_fire_that_was_computed_before_a_change_is_left_to_the_next_with_the_new_task() {
    let race = Race::at_a_fire_time().await;
    let seen = race.see().await;

    race.put(a_task().kind("new")).await;
    let verdict = fire(&race.begin().await, &seen).await;

    assert_eq!(verdict, "lost");
    let tasks = race.three_fire().await;
    assert_eq!(tasks.len(), 1);
    assert_eq!(race.store.get(tasks[0]).await.unwrap().unwrap().kind, kind("new"));
    race.check().await;
}

#[tokio::test]
async fn a_change_that_meets_a_fire_waits_for_it_and_repeats_nothing() {
    let race = Race::at_a_fire_time().await;
    let slow = race.begin().await;
    assert_eq!(fire(&slow, &race.see().await).await, "fired");

    let change = race.put(a_task().kind("new"));
    let release = async {
        race.somebody_waits().await;
        slow.batch_execute("commit").await.unwrap();
    };
    tokio::join!(change, release);

    assert_eq!(race.three_fire().await, []);
    race.let_an_interval_pass().await;
    let tasks = race.three_fire().await;
    assert_eq!(race.store.get(tasks[0]).await.unwrap().unwrap().kind, kind("new"));
    assert_eq!(race.tasks().await, 2);
    race.check().await;
}

#[tokio::test]
async fn a_change_of_rule_that_was_computed_before_a_fire_is_not_written_after_it() {
    let race = Race::at_a_fire_time().await;
    let Seen(revision, next) = race.see().await;
    assert_eq!(race.three_fire().await.len(), 1);

    // Its new next fire is the very time that was just dealt with.
    let put = format!(
        "select laneway.put_schedule('ann', null, 's', {revision}, '{next}', null, null, 2000000000, '{next}', 'once', null, false, \
         '{{\"kind\": \"work\"}}', '{next}')"
    );
    let written: bool = race.begin().await.query_one(&put, &[]).await.unwrap().get(0);

    assert!(!written);
    assert_eq!(race.three_fire().await, []);
    race.check().await;
}

#[tokio::test]
async fn a_fire_that_was_computed_for_a_schedule_that_is_gone_does_not_hit_its_successor() {
    let race = Race::at_a_fire_time().await;
    let seen = race.see().await;

    race.store.remove_schedule(&name()).await.unwrap();
    race.put(a_task()).await;
    race.database
        .connect()
        .await
        .unwrap()
        .batch_execute(&format!(
            "update laneway.schedule set next_fire_at = '{0}', anchor_at = '{0}'",
            seen.1
        ))
        .await
        .unwrap();
    let verdict = fire(&race.begin().await, &seen).await;

    assert_eq!(verdict, "lost");
    assert_eq!(race.tasks().await, 0);
}

#[tokio::test]
async fn a_pause_waits_for_a_fire_and_then_holds() {
    let race = Race::at_a_fire_time().await;
    let slow = race.begin().await;
    assert_eq!(fire(&slow, &race.see().await).await, "fired");

    let name = name();
    let pause = soon("a pause", race.store.pause_schedule(&name));
    let release = async {
        race.somebody_waits().await;
        slow.batch_execute("commit").await.unwrap();
    };
    let (paused, ()) = tokio::join!(pause, release);

    assert!(paused.unwrap());
    assert_eq!(race.tasks().await, 1);
    assert!(race.store.schedule(&name).await.unwrap().unwrap().next_fire_at.is_none());
    race.check().await;
}

#[tokio::test]
async fn the_view_shows_what_there_is_and_what_is_overdue() {
    let race = Race::at_a_fire_time().await;
    let client = race.database.connect().await.unwrap();

    let text = "select name, kind, queue, every = interval '1000 seconds', missed, overlap, overdue > interval '0' from laneway.schedules";
    let row = client.query_one(text, &[]).await.unwrap();

    let texts: Vec<String> = [0, 1, 2, 4, 5].map(|column| row.get(column)).to_vec();
    assert_eq!(texts, ["s", "work", "default", "once", "allow"]);
    assert!(row.get::<_, bool>(3) && row.get::<_, bool>(6));
}

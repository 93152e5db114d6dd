//! Workers that run functions and procedures in the database.

use laneway::core::State as TaskState;
use laneway::{PostgresOptions, PostgresStore, SqliteStore, StoreHandle, Worker};
use laneway_testkit::cluster::{Cluster, Database};

use crate::support::*;

const HANDLERS: &str = "
create table effect (what text not null);
create procedure public.split(task bigint, payload jsonb) language plpgsql as $$
begin
    for part in 1 .. (payload->>'parts')::int loop
        perform laneway.spawn('part', json_build_object('part', part), max_attempts => 2, retry => '{\"list\": {\"delays_ms\": [0]}}');
    end loop;
    perform laneway.follow_up('after');
end $$;
create function public.part(task bigint, payload jsonb) returns jsonb language plpgsql as $$
begin
    insert into effect values ('part ' || (payload->>'part'));
    if payload->>'part' = '2' and (select attempt from laneway.get_task(task)) = 1 then
        raise exception 'not the first time';
    end if;
    return payload->'part';
end $$;
create function public.after(task bigint, payload jsonb) returns void language sql as $$ insert into effect values ('after') $$;
create function public.slow(task bigint, payload jsonb) returns void language sql as $$
    insert into effect values ('slow'); select pg_sleep(600);
$$;
select laneway.register_handler('split', 'public.split(bigint, jsonb)'), laneway.register_handler('part', 'public.part(bigint, jsonb)'),
    laneway.register_handler('after', 'public.after(bigint, jsonb)'), laneway.register_handler('slow', 'public.slow(bigint, jsonb)');";

async fn scene() -> (Database, StoreHandle, tokio_postgres::Client) {
    let database = Cluster::shared().await.database().await.unwrap();
    let store = PostgresStore::open(PostgresOptions::new(&database.url).pool_size(4)).await.unwrap();
    let client = database.connect().await.unwrap();
    client.batch_execute(HANDLERS).await.unwrap();
    (database, store.into(), client)
}

async fn enqueue(client: &tokio_postgres::Client, call: &str) -> laneway::core::TaskId {
    laneway::core::TaskId(
        client.query_one(&format!("select laneway.enqueue({call})"), &[]).await.unwrap().get(0),
    )
}

#[tokio::test]
async fn a_family_runs_in_the_database_and_its_effects_happen_once() {
    let (_database, store, client) = scene().await;
    let task = enqueue(&client, "'split', '{\"parts\": 5}'").await;

    let worker = Worker::builder(&store).sql_handlers().build().unwrap();
    worker.run_until_empty().await.unwrap();

    let view = store.get(task).await.unwrap().unwrap();
    assert_eq!((view.state, view.family.unwrap().completed), (TaskState::Completed, 5));
    let effects = "select count(*), count(distinct what), count(*) filter (where what = 'after') from effect";
    let row = client.query_one(effects, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (6, 6, 1));
    assert!(store.verify().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_handler_of_the_workers_own_comes_first() {
    let (_database, store, client) = scene().await;
    client
        .batch_execute("select laneway.register_handler('job', 'public.after(bigint, jsonb)')")
        .await
        .unwrap();
    laneway::Client::new(&store).enqueue(job(1)).await.unwrap();

    let worker =
        Worker::builder(&store).sql_handlers().handle(async |_: Job| Ok::<_, std::io::Error>(())).build();
    let summary = worker.unwrap().run_until_empty().await.unwrap();

    assert_eq!(summary.completed, 1);
    let effects: i64 = client.query_one("select count(*) from effect", &[]).await.unwrap().get(0);
    assert_eq!(effects, 0);
}

#[tokio::test]
async fn a_handler_that_takes_too_long_is_stopped_in_the_database() {
    let (_database, store, client) = scene().await;
    let task = enqueue(&client, "'slow', timeout => '100 ms', max_attempts => 1").await;

    let worker = Worker::builder(&store).sql_handlers().build().unwrap();
    worker.run_until_empty().await.unwrap();

    let view = store.get(task).await.unwrap().unwrap();
    assert_eq!((view.state, view.error.as_deref()), (TaskState::Failed, Some("timed out after 100ms")));
    let running = "select count(*) from pg_stat_activity where datname = current_database() and query like '%run_handler%' \
                   and state = 'active' and pid <> pg_backend_pid()";
    until("the server has stopped it", async || {
        client.query_one(running, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let effects: i64 = client.query_one("select count(*) from effect", &[]).await.unwrap().get(0);
    assert_eq!(effects, 0, "what it did is undone");
}

#[tokio::test]
async fn sqlite_has_no_handlers_of_its_own() {
    let store = SqliteStore::temporary().await.unwrap();

    let refused = Worker::builder(StoreHandle::from(store)).sql_handlers().build().err().unwrap();

    assert_eq!(refused.problems, ["sql_handlers needs a PostgresStore; this worker's store is sqlite"]);
}

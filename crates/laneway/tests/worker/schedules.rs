//! Workers fire schedules.

use laneway::Payload;
use laneway::core::{Json, Kind, NewTask, Rule, Schedule, ScheduleName};

use crate::on_both_stores;
use crate::support::*;

on_both_stores! {
    workers_run_the_tasks_of_schedules_once_per_fire,
}

async fn workers_run_the_tasks_of_schedules_once_per_fire(store: &TestStore) {
    let name = ScheduleName::new("s").unwrap();
    let task = NewTask::new(Kind::new(Job::KIND).unwrap(), Json::encode(&job(7)).unwrap());
    store.put_schedule(Schedule::new(name.clone(), Rule::Every(secs(1_000)), task)).await.unwrap();
    store.advance_clock(secs(1_000)).await;

    let (probe, recorder) = (Probe::new(store.handle()), Recorder::default());
    let workers = [(); 3].map(|()| start(a_worker(probe.handle(), &recorder, 4)));
    recorder.until("it has run", |log| log.ended.len() == 1).await;
    let fired = probe.calls("fire_due");
    until("all have looked again", async || probe.calls("fire_due") > fired + 6).await;

    assert_eq!(recorder.log().numbers(), [7]);
    for worker in workers {
        worker.stopped().await;
    }
}

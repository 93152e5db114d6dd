//! PostgreSQL restarts under load, with the real programs around it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use laneway_core::{State, TaskId};
use laneway_testkit::cluster::{Cluster, ClusterOptions};

use crate::daemons::{Daemon, get, post, until};
use crate::support::Session;

/// Ids that were accepted, and how often something was refused.
#[derive(Default)]
struct Load {
    accepted: BTreeSet<i64>,
    refused: usize,
}

/// Posts tasks one after the other. What is not accepted must be a 503 that says when to try again.
fn post_until(address: String, done: Arc<AtomicBool>) -> JoinHandle<Load> {
    std::thread::spawn(move || {
        let mut load = Load::default();
        while !done.load(Ordering::SeqCst) {
            let answer = post(&address, "/api/v1/tasks", r#"{"kind": "echo", "payload": 1}"#);
            if answer.starts_with("HTTP/1.1 201") {
                let id = answer.split("\"id\":").nth(1).and_then(|rest| rest.split(',').next());
                load.accepted.insert(id.expect("an id").parse().expect("a number"));
            } else {
                assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
                load.refused += 1;
            }
        }
        load
    })
}

/// Enqueues with the program, one after the other. What is not accepted must say that the store cannot be reached.
fn enqueue_until(session: Arc<Session>, done: Arc<AtomicBool>) -> JoinHandle<Load> {
    std::thread::spawn(move || {
        let mut load = Load::default();
        while !done.load(Ordering::SeqCst) {
            let ran = session.run("laneway enqueue echo 1 --lane cli -o id");
            match ran.code {
                0 => {
                    load.accepted.insert(ran.out.trim().parse().expect("an id"));
                }
                code => {
                    assert_eq!(code, 5, "{}", ran.err);
                    load.refused += 1;
                }
            }
        }
        load
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_daemons_and_three_workers_outlive_a_restart_of_postgresql() {
    let cluster = Cluster::start(ClusterOptions::default().durable(true)).await.unwrap();
    let session = Arc::new(Session::on(cluster.database().await.unwrap()));
    let mut daemons = [(); 2].map(|()| Daemon::start(&session, "serve --listen 0"));
    let addresses = daemons.each_mut().map(Daemon::address);
    let mut workers = [(); 3].map(|()| Daemon::start(&session, "worker run --concurrency 20"));
    workers.iter_mut().for_each(|worker| drop(worker.until("the worker starts with 20 slots")));
    let store = session.store().await;
    let completed = async || {
        let counts = store.counts().await.unwrap_or_default();
        let ended = counts.iter().filter(|count| count.state == State::Completed);
        ended.map(|count| count.tasks).sum::<u64>()
    };
    let done = Arc::new(AtomicBool::new(false));
    let clients = [
        post_until(addresses[0].clone(), Arc::clone(&done)),
        post_until(addresses[1].clone(), Arc::clone(&done)),
        enqueue_until(Arc::clone(&session), Arc::clone(&done)),
    ];
    until("work is done", async || completed().await > 100).await;

    cluster.stop_immediately().await.unwrap();
    for address in &addresses {
        until("the daemon notices", async || get(address, "/readyz").starts_with("HTTP/1.1 503")).await;
        assert!(get(address, "/livez").starts_with("HTTP/1.1 200"));
        let refused = post(address, "/api/v1/tasks", r#"{"kind": "echo"}"#);
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    }
    assert_eq!(session.run("laneway tasks ls").code, 5);
    cluster.restart().await.unwrap();
    for address in &addresses {
        until("the daemon is back", async || get(address, "/readyz").starts_with("HTTP/1.1 200")).await;
    }
    let before = completed().await;
    until("work goes on", async || completed().await > before + 100).await;
    done.store(true, Ordering::SeqCst);
    let loads = clients.map(|client| client.join().expect("the client goes on"));

    until("everything ends", async || {
        let counts = store.counts().await.unwrap_or_default();
        !counts.is_empty() && counts.iter().all(|count| count.state.has_ended() || count.tasks == 0)
    })
    .await;
    let all = session.out("laneway tasks ls --where state:completed --limit 10000 -o id");
    let ended: Vec<i64> = all.lines().map(|line| line.parse().expect("an id")).collect();
    let distinct: BTreeSet<i64> = ended.iter().copied().collect();
    assert_eq!((ended.len(), completed().await), (distinct.len(), distinct.len() as u64), "each ends once");
    for Load { accepted, refused } in loads {
        assert!(refused > 0, "every client meets the outage");
        for id in accepted {
            assert!(
                distinct.contains(&id)
                    || store
                        .get(TaskId(id))
                        .await
                        .unwrap()
                        .is_some_and(|task| task.state == State::Completed),
                "task {id} was accepted and has not completed"
            );
        }
    }
    assert_eq!(store.verify().await.unwrap(), Vec::<String>::new());
    for daemon in daemons.into_iter().chain(workers) {
        assert!(daemon.stop().success(), "it has lived through all of it");
    }
}

//! A worker in slow motion: every step is a call of the test.

use std::sync::Arc;
use std::time::Duration;

use laneway_core::{
    Advance, Advanced, Capacity, Claim, Claimed, Kinds, LeaseId, Orders, Outcome, QueueName, Registration,
    Renewal, Renewed, Scan, SessionId, Settle, Store, TaskId, Verdict,
};

use crate::store::{kind, queue};

/// A registered session that counts its advances.
pub struct TestWorker {
    store: Arc<dyn Store>,
    session: SessionId,
    last: Advance,
}

impl TestWorker {
    /// Registers a new session.
    pub async fn register(store: Arc<dyn Store>) -> Self {
        let worker = Self::unregistered(store);
        worker.store.register(worker.registration()).await.expect("a registration");
        worker
    }

    /// A session that no store knows.
    pub fn unregistered(store: Arc<dyn Store>) -> Self {
        let session = SessionId::random();
        Self { store, session, last: Advance::new(session, 0) }
    }

    /// What it registers with.
    pub fn registration(&self) -> Registration {
        Registration {
            session: self.session,
            name: "test".into(),
            queues: vec![QueueName::default()],
            kinds: Kinds::All,
            capacity: Capacity { slots: 10, free: 10, ..Default::default() },
        }
    }

    /// Its session.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The number of its last advance.
    pub fn advance_number(&self) -> u64 {
        self.last.number
    }

    /// Takes the next step, which `fill` describes. It looks from the beginning unless `fill` says otherwise: a
    /// test wants to know what is there, not what a store finds quickly.
    pub async fn advance(&mut self, fill: impl FnOnce(Advance) -> Advance) -> Advanced {
        let next = Advance::new(self.session, self.last.number + 1);
        self.last = fill(Advance { scan: Scan::Full, ..next });
        self.send().await
    }

    /// Takes the last step again, as if its answer had been lost.
    pub async fn advance_again(&mut self) -> Advanced {
        self.last.again = true;
        self.send().await
    }

    async fn send(&self) -> Advanced {
        self.store.advance(self.last.clone()).await.expect("an advance")
    }

    /// Claims from the default queue.
    pub async fn claim(&mut self, max: u32) -> Vec<Claimed> {
        self.claim_from("default", max).await
    }

    /// Claims from a queue.
    pub async fn claim_from(&mut self, name: &str, max: u32) -> Vec<Claimed> {
        self.advance(|advance| advance.claim(queue(name), max)).await.claimed
    }

    /// Claims one task from the default queue, which must be there.
    pub async fn claim_one(&mut self) -> Claimed {
        self.claim(1).await.pop().expect("something should have been claimable")
    }

    /// Claims only these kinds from the default queue.
    pub async fn claim_kinds(&mut self, kinds: &[&str], max: u32) -> Vec<Claimed> {
        let claim = claim_of_kinds("default", kinds, max);
        self.advance(|advance| Advance { claims: vec![claim], ..advance }).await.claimed
    }

    /// Settles one attempt.
    pub async fn settle(&mut self, claimed: &Claimed, outcome: Outcome) -> Verdict {
        self.settle_all(vec![claimed.settle(outcome)]).await[0]
    }

    /// Settles several attempts in one step.
    pub async fn settle_all(&mut self, settles: Vec<Settle>) -> Vec<Verdict> {
        let tasks: Vec<TaskId> = settles.iter().map(|settle| settle.task).collect();
        let advanced = self.advance(|advance| Advance { settles, ..advance }).await;
        let answered: Vec<TaskId> = advanced.settled.iter().map(|settled| settled.task).collect();
        assert_eq!(answered, tasks, "a settle is answered in the order of the request");
        advanced.settled.iter().map(|settled| settled.verdict).collect()
    }

    /// Completes attempts, all of which must count.
    pub async fn complete(&mut self, claimed: &[Claimed]) {
        let settles = claimed.iter().map(|one| one.settle(Outcome::completed())).collect();
        let verdicts = self.settle_all(settles).await;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Completed), "{verdicts:?}");
    }

    /// Renews and names these leases as known.
    pub async fn renew(&mut self, leases: Vec<LeaseId>) -> Renewed {
        let renewal = Renewal {
            session: self.session,
            capacity: Capacity { slots: 10, free: 7, ..Default::default() },
            leases,
            advance_number: self.last.number,
        };
        self.store.renew(renewal).await.expect("a renewal")
    }

    /// Renews with the leases of `claimed`, and returns the orders of a living session.
    pub async fn orders(&mut self, claimed: &[Claimed]) -> Orders {
        match self.renew(claimed.iter().map(|one| one.lease.id).collect()).await {
            Renewed::Alive(orders) => orders,
            Renewed::Lost => panic!("the session should be alive"),
        }
    }

    /// Renews without an opinion about leases.
    pub async fn stay_alive(&mut self) {
        self.store.register(self.registration()).await.expect("registering again renews");
    }

    /// Ends the session in an orderly way.
    pub async fn deregister(self) {
        self.store.deregister(self.session).await.expect("a deregistration");
    }
}

/// A wish for some kinds of one queue.
pub fn claim_of_kinds(name: &str, kinds: &[&str], max: u32) -> Claim {
    let kinds = Kinds::Only(kinds.iter().map(|name| kind(name)).collect());
    Claim { queue: queue(name), max, kinds, alone: vec![] }
}

/// The tasks of a claim, in its order.
pub fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|one| one.task.id).collect()
}

/// An attempt that failed.
pub fn retry_after(after: Duration) -> Outcome {
    Outcome::Retry { after, error: "did not work".into() }
}

/// An attempt that failed for good.
pub fn failed() -> Outcome {
    Outcome::Failed { error: "never works".into() }
}

//! Families: what a handler spawns, and what it can know about its children.
//!
//! Nothing is stored while the handler runs. What it spawns is collected in the attempt and goes with the settle that
//! completes it, in one transaction: an attempt that fails leaves nothing behind, and one that is repeated spawns once.

use laneway_core::{
    Advance, Children, FamilyPolicy, FamilyView, FollowUp, FollowUpOnFailure, NewTask, Outcome, Settle,
    Spawned, Spawner, State, StoreError, Verdict, check_child, check_sibling_of,
};
use serde::de::DeserializeOwned;

use crate::attempt::Attempt;
use crate::backoff::Backoff;
use crate::client::EndedTask;
use crate::draft::Draft;
use crate::failure::Failure;

/// An attempt that has spawned more is settled by a call of its own, so that it does not hold up the others.
const SHARED_SETTLE_MAX: usize = 100;

impl Attempt {
    /// Spawns a child: a task that this one waits for. Takes a payload, or a draft made with [`task`](crate::task); it runs in
    /// the queue of this task and with its priority unless it says otherwise.
    ///
    /// The children are stored when the handler has returned `Ok`, and then the task is `waiting` until all of them have
    /// ended. It completes with them, with the result that the handler returned, or fails if one of them has failed: see
    /// [`family_policy`](Self::family_policy).
    ///
    /// ```
    /// use laneway::{Attempt, Failure};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Crawl { pages: Vec<String> }
    /// # impl laneway::Payload for Crawl { const KIND: &'static str = "crawl"; }
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Page { url: String }
    /// # impl laneway::Payload for Page { const KIND: &'static str = "page.fetch"; }
    ///
    /// async fn crawl(crawl: Crawl, attempt: Attempt) -> Result<(), Failure> {
    ///     for url in crawl.pages {
    ///         attempt.spawn(laneway::task(Page { url }).lane("site:42").limit(3))?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// When the task cannot be stored: the attempt should end with that error.
    pub fn spawn(&self, child: impl Into<Draft>) -> Result<(), Failure> {
        let child = self.spawned_task(child.into())?;
        check_child(&child).map_err(refused)?;
        self.add(|spawned| spawned.children.push(child))
    }

    /// Spawns a sibling: a task that this one's parent waits for, too. It is counted before this attempt's own end is.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn); also when the task has no parent.
    pub fn spawn_sibling(&self, sibling: impl Into<Draft>) -> Result<(), Failure> {
        let sibling = self.spawned_task(sibling.into())?;
        check_child(&sibling).map_err(refused)?;
        let task = self.task();
        let spawner =
            Spawner { parent: task.parent, depth: task.depth, queue: &task.queue, is_serial: false };
        check_sibling_of(spawner).map_err(refused)?;
        self.add(|spawned| spawned.siblings.push(sibling))
    }

    /// Adds a task that starts after this one has completed, with its family. It is nobody's child. Of several with one
    /// unique key the first is stored. If this task fails or is cancelled, it does not run.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn follow_up(&self, task: impl Into<Draft>) -> Result<(), Failure> {
        self.follow(task.into(), FollowUpOnFailure::Drop)
    }

    /// Like [`follow_up`](Self::follow_up), but it also runs when this task fails.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn follow_up_kept_on_failure(&self, task: impl Into<Draft>) -> Result<(), Failure> {
        self.follow(task.into(), FollowUpOnFailure::Keep)
    }

    fn follow(&self, task: Draft, on_failure: FollowUpOnFailure) -> Result<(), Failure> {
        let task = self.spawned_task(task)?;
        self.add(|spawned| spawned.follow_ups.push(FollowUp { task, on_failure }))
    }

    /// What failures among the children mean. By default the task waits for all of them and then fails.
    ///
    /// # Errors
    /// When the attempt has ended.
    pub fn family_policy(&self, policy: FamilyPolicy) -> Result<(), Failure> {
        self.add(|spawned| spawned.policy = policy)
    }

    /// Which step of its family this is: 0 before it had children, 1 after its children have ended, and so on.
    pub fn step(&self) -> u32 {
        self.task().options.step
    }

    /// True when it has spawned children, which begin once it has ended.
    pub fn has_pending_children(&self) -> bool {
        self.spawned().as_ref().is_some_and(|spawned| !spawned.children.is_empty())
    }

    /// The children of the step before, counted.
    ///
    /// # Errors
    /// When the store could not be asked.
    pub async fn family(&self) -> Result<Option<FamilyView>, StoreError> {
        self.store().family(self.id()).await
    }

    /// The family that it belongs to itself: its parent's children, counted. None when it has no parent.
    ///
    /// # Errors
    /// When the store could not be asked.
    pub async fn siblings(&self) -> Result<Option<FamilyView>, StoreError> {
        match self.task().parent {
            Some(parent) => self.store().family(parent).await,
            None => Ok(None),
        }
    }

    /// True when a sibling has failed or was cancelled.
    ///
    /// # Errors
    /// When the store could not be asked.
    pub async fn has_failed_siblings(&self) -> Result<bool, StoreError> {
        Ok(self.siblings().await?.is_some_and(|family| family.has_failed()))
    }

    /// The children of the step before, in the order in which they were spawned, with results and errors.
    ///
    /// # Errors
    /// When the store could not be asked.
    pub async fn children(&self) -> Result<Vec<EndedTask>, StoreError> {
        let mut page = Children::of(self.id());
        let mut all = vec![];
        loop {
            let some = self.store().children(page).await?;
            let is_last = some.len() < page.limit as usize;
            page.after = some.last().map(|child| child.id);
            all.extend(some.into_iter().map(EndedTask::of));
            if is_last {
                return Ok(all);
            }
        }
    }

    /// What the children of the step before have returned, in the order in which they were spawned; those that did not
    /// complete are left out.
    ///
    /// # Errors
    /// When the store could not be asked, or a result is not a `T`.
    pub async fn results<T: DeserializeOwned>(&self) -> Result<Vec<T>, Failure> {
        let children = self.children().await?;
        let completed = children.iter().filter(|child| child.state() == State::Completed);
        completed.map(|child| child.result().map_err(Failure::discard)).collect()
    }

    fn spawned_task(&self, draft: Draft) -> Result<NewTask, Failure> {
        let (says_queue, says_priority) = (draft.says_queue, draft.says_priority);
        let mut task = draft.task.map_err(refused)?;
        if !says_queue {
            task.queue = self.task().queue.clone();
        }
        if !says_priority {
            task.priority = self.task().priority;
        }
        Ok(task)
    }

    fn add(&self, change: impl FnOnce(&mut Spawned)) -> Result<(), Failure> {
        match self.spawned().as_mut() {
            Some(spawned) => {
                change(spawned);
                Ok(())
            }
            None => Err(Failure::discard("the attempt has ended; nothing can be spawned any more")),
        }
    }

    /// The end of this attempt with what it has spawned. `then`: its handler has a next step.
    pub(crate) fn settle(&self, outcome: Outcome, then: bool) -> Settle {
        let mut spawned = self.spawned().take().unwrap_or_default();
        if !matches!(outcome, Outcome::Completed { .. }) {
            // Only what survives a failure is of use to the store.
            spawned.children.clear();
            spawned.siblings.clear();
            spawned.follow_ups.retain(|follow_up| follow_up.on_failure == FollowUpOnFailure::Keep);
        }
        self.claimed().settle(outcome).spawning(Spawned { then, again: self.resumes(), ..spawned })
    }

    /// The completion of this attempt in a transaction of its own. What it has spawned stays here: if that transaction does
    /// not commit, it goes with the ordinary settle.
    #[cfg(feature = "postgres")]
    pub(crate) fn completion(&self, then: bool) -> Settle {
        let spawned = self.spawned().clone().unwrap_or_default();
        self.claimed().settle(Outcome::completed()).spawning(Spawned { then, ..spawned })
    }

    /// True when this attempt does not call the handler, but lets failed children start anew.
    pub(crate) fn resumes(&self) -> bool {
        self.task().options.resume
    }

    /// True when settling it together with others would hold them up: it waits for keys, or has very much to store.
    pub(crate) fn settles_alone(&self) -> bool {
        self.spawned().as_ref().is_some_and(|spawned| {
            let has_keys = spawned.follow_ups.iter().any(|follow_up| follow_up.task.unique.is_some());
            spawned.len() > SHARED_SETTLE_MAX || has_keys
        })
    }
}

/// Settles an attempt by a call of its own, again and again while the store is out of reach or a key is being taken.
///
/// # Cancel safety
/// Dropped half-way it is recorded or not; a second settle is then answered `Already` or does it.
pub(crate) async fn settle_alone(attempt: &Attempt, settle: Settle) -> Result<Verdict, StoreError> {
    // The coordinator counts its advances from 1: no lease has this number.
    let mut advance = Advance::new(attempt.session(), 0).settle(settle);
    let mut backoff = Backoff::default();
    loop {
        match attempt.store().advance(advance.clone()).await {
            Ok(advanced) => return Ok(advanced.settled[0].verdict),
            Err(error) if !error.is_transient() => return Err(error),
            Err(_) => tokio::time::sleep(backoff.failed(tokio::time::Instant::now())).await,
        }
        advance.again = true;
    }
}

/// What is refused once is refused every time.
fn refused(refused: laneway_core::InvalidInput) -> Failure {
    Failure::discard(format!("{}: {}", refused.code, refused.message))
}

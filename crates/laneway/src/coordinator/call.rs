//! What the coordinator asks of the store, one call at a time.

use laneway_core::{Advance, Advanced, Fence, Kinds, QueueName, Registration, SessionId, Sleep, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::store_handle::StoreHandle;

/// One call.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Register(Registration),
    /// With the time when the first of the attempts ended that it settles.
    Advance(Advance, Option<Instant>),
    FallAsleep(Sleep),
    FencePassed(Fence),
    IsClaimable(Vec<QueueName>, Kinds),
    WakeUp(SessionId),
}

/// What came back.
pub(super) enum Answer {
    Done,
    Advanced(Advanced),
    Fence(Fence),
    Yes,
    No,
}

/// A call under way, in a task of its own that is never cancelled.
pub(super) struct InFlight {
    call: Call,
    sent: Instant,
    running: JoinHandle<Result<Answer, StoreError>>,
}

/// A call and when it was sent.
pub(super) struct Sent {
    pub call: Call,
    pub at: Instant,
}

impl Call {
    /// Starts the call in a task of its own.
    pub(super) fn spawn(self, store: &StoreHandle) -> InFlight {
        let (call, store) = (self.clone(), store.shared());
        let running = tokio::spawn(async move {
            match self {
                Self::Register(registration) => store.register(registration).await.map(|()| Answer::Done),
                Self::Advance(advance, _) => store.advance(advance).await.map(Answer::Advanced),
                Self::FallAsleep(sleep) => store.fall_asleep(sleep).await.map(Answer::Fence),
                Self::FencePassed(fence) => store.fence_passed(fence).await.map(Answer::from),
                Self::IsClaimable(queues, kinds) => {
                    store.is_claimable(&queues, &kinds).await.map(Answer::from)
                }
                Self::WakeUp(session) => store.wake_up(session).await.map(|()| Answer::Done),
            }
        });
        InFlight { call, sent: Instant::now(), running }
    }
}

impl From<bool> for Answer {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl InFlight {
    /// Waits for the answer and empties the place of the call. Must not be called while there is none.
    ///
    /// # Cancel safety
    /// A dropped future leaves the call where it is.
    pub(super) async fn answer(place: &mut Option<Self>) -> (Sent, Result<Answer, StoreError>) {
        let in_flight = place.as_mut().expect("a call is under way");
        let answer = match (&mut in_flight.running).await {
            Ok(answer) => answer,
            Err(panic) => Err(StoreError::Unexpected { doing: "answer", source: panic.into() }),
        };
        let InFlight { call, sent, .. } = place.take().expect("a call is under way");
        (Sent { call, at: sent }, answer)
    }
}

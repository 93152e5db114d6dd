//! How a claim is divided among the queues that a worker serves.
//!
//! Shares follow the weights over time, also when claims are small (smooth weighted round robin). A queue that was found
//! dry is asked for one task only until it gives something, so that it costs the others little and is not forgotten.

use std::collections::HashMap;

use laneway_core::QueueName;

struct Queue {
    name: QueueName,
    weight: i64,
    credit: i64,
    dry: bool,
}

/// The queues of a worker and what they are owed.
pub(crate) struct Shares {
    queues: Vec<Queue>,
}

impl Shares {
    pub(crate) fn new(queues: &[(QueueName, u32)]) -> Self {
        let queue = |(name, weight): &(QueueName, u32)| Queue {
            name: name.clone(),
            weight: i64::from(*weight),
            credit: 0,
            dry: false,
        };
        Self { queues: queues.iter().map(queue).collect() }
    }

    /// Divides `tasks`. Queues that get nothing are left out; what is owed most comes first.
    pub(crate) fn divide(&mut self, tasks: usize) -> Vec<(QueueName, u32)> {
        let mut wanted = vec![0; self.queues.len()];
        for _ in 0..tasks {
            let Some(place) = self.next(&wanted) else { break };
            wanted[place] += 1;
        }
        let mut shares: Vec<_> = std::iter::zip(&self.queues, wanted)
            .filter(|(_, wanted)| *wanted > 0)
            .map(|(queue, wanted)| (queue.name.clone(), wanted))
            .collect();
        shares.sort_by_key(|(_, wanted)| std::cmp::Reverse(*wanted));
        shares
    }

    /// The queue that is owed most, of those that may get one more.
    fn next(&mut self, wanted: &[u32]) -> Option<usize> {
        let alone = self.queues.len() == 1;
        let open = |(place, queue): &(usize, &Queue)| alone || !queue.dry || wanted[*place] == 0;
        let open: Vec<usize> = self.queues.iter().enumerate().filter(open).map(|(place, _)| place).collect();
        let total: i64 = open.iter().map(|place| self.queues[*place].weight).sum();
        for place in &open {
            self.queues[*place].credit += self.queues[*place].weight;
        }
        let place = open.into_iter().max_by_key(|place| self.queues[*place].credit)?;
        self.queues[place].credit -= total;
        Some(place)
    }

    /// Takes note of what a claim brought, and tells whether some queue gave all that it was asked for.
    pub(crate) fn answered(&mut self, asked: &[(QueueName, u32)], got: &HashMap<&QueueName, u32>) -> bool {
        let mut filled = false;
        for (name, asked) in asked {
            let full = got.get(name).is_some_and(|got| got >= asked);
            filled |= full;
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name == *name) {
                queue.dry = !full;
            }
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    fn shares(weights: &[(&str, u32)]) -> Shares {
        Shares::new(&weights.iter().map(|(name, weight)| (queue(name), *weight)).collect::<Vec<_>>())
    }

    #[test]
    fn shares_follow_the_weights() {
        let mut shares = shares(&[("mail", 3), ("default", 1)]);

        assert_eq!(shares.divide(8), [(queue("mail"), 6), (queue("default"), 2)]);
    }

    #[test]
    fn claims_of_one_follow_the_weights_over_time() {
        let mut shares = shares(&[("mail", 3), ("default", 1)]);

        let turns: Vec<_> = (0..8).map(|_| shares.divide(1)[0].0.to_string()).collect();

        assert_eq!(turns.iter().filter(|name| *name == "mail").count(), 6);
    }

    #[test]
    fn a_dry_queue_leaves_its_share_to_the_others_but_is_asked_again() {
        let mut shares = shares(&[("a", 1), ("b", 1)]);
        let asked = shares.divide(10);

        let filled = shares.answered(&asked, &HashMap::from([(&queue("b"), 5)]));

        assert!(filled);
        assert_eq!(shares.divide(10), [(queue("b"), 9), (queue("a"), 1)]);
        shares.answered(&[(queue("a"), 1), (queue("b"), 9)], &HashMap::from([(&queue("a"), 1)]));
        assert_eq!(shares.divide(10).iter().find(|(name, _)| *name == queue("a")).unwrap().1, 9);
    }

    #[test]
    fn an_only_queue_gets_everything_even_if_dry() {
        let mut shares = shares(&[("a", 1)]);
        shares.answered(&[(queue("a"), 10)], &HashMap::new());

        assert_eq!(shares.divide(10), [(queue("a"), 10)]);
    }
}

//! What can be set about a worker, and what the environment sets.

use std::env::VarError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use laneway_core::QueueName;

use crate::memory::Memory;
use crate::tuning::Tuned;

pub(crate) type MemoryProbe = Arc<dyn Fn() -> Option<Memory> + Send + Sync>;

/// The settings of a worker that stay as they are while it runs, with their defaults. The others are [`Tuned`].
#[derive(Clone)]
pub(crate) struct Options {
    pub name: String,
    pub queues: Vec<(QueueName, u32)>,
    pub grace: Duration,
    pub patience: Duration,
    pub memory_probe: MemoryProbe,
    /// How the number of slots came about, for the log.
    pub slots_because: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: default_name(),
            queues: vec![],
            grace: Duration::from_secs(30),
            patience: Duration::from_secs(5),
            memory_probe: Arc::new(Memory::now),
            slots_because: "default".into(),
        }
    }
}

/// Host and process, for humans.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.as_deref().map(str::trim).filter(|host| !host.is_empty()).unwrap_or("worker");
    format!("{host}:{}", std::process::id())
}

/// A ready-made size of a worker: so many workers of so many tasks each, as seed 003 counts them. It is still one
/// coordinator with the product as its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// 5 × 2 = 10 slots.
    Development,
    /// 20 × 3 = 60 slots.
    Staging,
    /// 100 × 5 = 500 slots.
    Production,
}

impl Profile {
    /// Workers and tasks of each.
    pub fn workers_and_concurrency(self) -> (usize, usize) {
        match self {
            Self::Development => (5, 2),
            Self::Staging => (20, 3),
            Self::Production => (100, 5),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Development => "development",
            Self::Staging => "staging",
            Self::Production => "production",
        })
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Development, Self::Staging, Self::Production];
        known
            .into_iter()
            .find(|profile| profile.to_string() == text)
            .ok_or_else(|| "one of: development, staging, production".into())
    }
}

/// What decides the number of slots: a ceiling, and perhaps workers × concurrency below it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sizing {
    pub ceiling: Option<usize>,
    pub profile: Option<Profile>,
    pub concurrency: Option<usize>,
}

impl Sizing {
    /// Slots, and how they came about.
    pub(crate) fn slots(self, default: usize) -> (usize, String) {
        let (workers, of_profile) = self.profile.map_or((1, None), |profile| {
            let (workers, concurrency) = profile.workers_and_concurrency();
            (workers, Some(concurrency))
        });
        let Some(concurrency) = self.concurrency.or(of_profile) else {
            let slots = self.ceiling.unwrap_or(default);
            return (slots, if self.ceiling.is_some() { "set" } else { "default" }.into());
        };
        let product = workers.saturating_mul(concurrency);
        let profile = self.profile.map(|profile| format!(", profile {profile}")).unwrap_or_default();
        match self.ceiling {
            Some(ceiling) if ceiling < product => {
                (ceiling, format!("min({ceiling}, {workers} × {concurrency}){profile}"))
            }
            _ => (product, format!("{workers} × {concurrency}{profile}")),
        }
    }
}

/// What the environment says. Mistakes are gathered for `build`.
pub(crate) fn read_environment(
    variable: impl Fn(&str) -> Result<String, VarError>,
    tuned: &mut Tuned,
    sizing: &mut Sizing,
    problems: &mut Vec<String>,
) {
    let mut read = |name: &str, allowed: &str| match variable(name) {
        Ok(text) if !text.trim().is_empty() => {
            Some((name.to_owned(), text.trim().to_owned(), allowed.to_owned()))
        }
        Ok(_) | Err(VarError::NotPresent) => None,
        Err(VarError::NotUnicode(_)) => {
            problems.push(format!("{name} is not text"));
            None
        }
    };
    let found = [
        read("LANEWAY_PROFILE", "one of: development, staging, production"),
        read("WORKER_CONCURRENCY", "a whole number from 1"),
        read("MAX_CONCURRENT_TASKS", "a whole number from 1"),
        read("CLAIM_BATCH_SIZE", "a whole number from 1"),
        read("POLL_INTERVAL_MS", "a whole number from 1"),
    ];
    for (name, text, allowed) in found.into_iter().flatten() {
        if apply(&name, &text, tuned, sizing).is_none() {
            problems.push(format!("{name} is `{}`; allowed is {allowed}", text.escape_debug()));
        }
    }
}

fn apply(name: &str, text: &str, tuned: &mut Tuned, sizing: &mut Sizing) -> Option<()> {
    let number = || text.parse::<usize>().ok().filter(|number| *number > 0);
    match name {
        "LANEWAY_PROFILE" => sizing.profile = Some(text.parse().ok()?),
        "WORKER_CONCURRENCY" => sizing.concurrency = Some(number()?),
        "MAX_CONCURRENT_TASKS" => sizing.ceiling = Some(number()?),
        "CLAIM_BATCH_SIZE" => tuned.claim_size = number()?,
        _ => tuned.poll_interval = Duration::from_millis(number()? as u64),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> (Tuned, usize, String, Vec<String>) {
        let (mut tuned, mut sizing, mut problems) = (Tuned::default(), Sizing::default(), vec![]);
        let look = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned()).ok_or(VarError::NotPresent)
        };
        read_environment(look, &mut tuned, &mut sizing, &mut problems);
        let (slots, because) = sizing.slots(tuned.slots);
        (tuned, slots, because, problems)
    }

    #[test]
    fn profiles_are_workers_times_concurrency() {
        for (profile, slots) in [("development", 10), ("staging", 60), ("production", 500)] {
            assert_eq!(environment(&[("LANEWAY_PROFILE", profile)]).1, slots);
        }
    }

    #[test]
    fn concurrency_overrides_the_profile_and_the_ceiling_caps_it() {
        let (_, slots, because, _) = environment(&[
            ("LANEWAY_PROFILE", "production"),
            ("WORKER_CONCURRENCY", "8"),
            ("MAX_CONCURRENT_TASKS", "700"),
        ]);

        assert_eq!((slots, because.as_str()), (700, "min(700, 100 × 8), profile production"));
    }

    #[test]
    fn without_anything_there_are_a_thousand_slots() {
        assert_eq!(environment(&[]).1, 1_000);
    }

    #[test]
    fn every_bad_value_is_reported() {
        let (_, _, _, problems) = environment(&[
            ("LANEWAY_PROFILE", "prod"),
            ("CLAIM_BATCH_SIZE", "0"),
            ("POLL_INTERVAL_MS", "fast"),
        ]);

        assert_eq!(
            problems,
            [
                "LANEWAY_PROFILE is `prod`; allowed is one of: development, staging, production",
                "CLAIM_BATCH_SIZE is `0`; allowed is a whole number from 1",
                "POLL_INTERVAL_MS is `fast`; allowed is a whole number from 1",
            ]
        );
    }

    #[test]
    fn claim_size_and_poll_interval_come_from_the_environment() {
        let (tuned, ..) = environment(&[("CLAIM_BATCH_SIZE", "10"), ("POLL_INTERVAL_MS", "50")]);

        assert_eq!((tuned.claim_size, tuned.poll_interval), (10, Duration::from_millis(50)));
    }
}

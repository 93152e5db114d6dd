//! Every setting, once.

use super::value::Form;

/// Which commands take a setting as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// All of them.
    Common,
    /// Those that run tasks.
    Working,
    /// Those that serve HTTP.
    Serving,
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its name in files: `worker.claim_batch_size`.
    pub key: &'static str,
    pub group: Group,
    /// Its flag, without the dashes.
    pub flag: &'static str,
    /// Its short name in the environment, besides the one that is made from the key.
    pub plain: Option<&'static str>,
    /// What values it takes.
    pub form: Form,
    /// None: it is not set.
    pub default: Option<&'static str>,
    /// True when a running daemon can read it again: on SIGHUP, or `POST /api/v1/settings/reload`.
    pub live: bool,
    pub help: &'static str,
}

impl Setting {
    const fn new(
        key: &'static str,
        group: Group,
        flag: &'static str,
        form: Form,
        help: &'static str,
    ) -> Self {
        Self { key, group, flag, plain: None, form, default: None, live: false, help }
    }

    const fn plain(self, name: &'static str) -> Self {
        Self { plain: Some(name), ..self }
    }

    const fn default(self, text: &'static str) -> Self {
        Self { default: Some(text), ..self }
    }

    const fn live(self) -> Self {
        Self { live: true, ..self }
    }

    /// Its full name in the environment: `LANEWAY_WORKER_CLAIM_BATCH_SIZE`.
    pub fn variable(&self) -> String {
        format!("LANEWAY_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }
}

/// The setting of this name.
pub fn find(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

use Group::{Common, Serving, Working};

/// All settings, in the order in which they are shown.
pub static SETTINGS: &[Setting] = &[
    Setting::new(
        "profile",
        Common,
        "profile",
        Form::Choice(&["development", "staging", "production"]),
        "a preset of worker.count and worker.concurrency: development 5 x 2, staging 20 x 3, production 100 x 5",
    ),
    Setting::new(
        "store.url",
        Common,
        "store",
        Form::Secret,
        "where tasks are kept: postgres://user@host/database or sqlite:FILE",
    )
    .plain("DATABASE_URL")
    .default("sqlite:.laneway/laneway.db"),
    Setting::new(
        "store.direct_url",
        Common,
        "direct-url",
        Form::Secret,
        "PostgreSQL: the address for the listener, when store.url leads to a pooler in transaction mode",
    ),
    Setting::new(
        "store.statements",
        Common,
        "statements",
        Form::Choice(&["auto", "named", "unnamed"]),
        "PostgreSQL: whether the server keeps the statements that are sent over and over; auto does where no pooler in transaction mode is in between",
    )
    .default("auto"),
    Setting::new(
        "store.schema",
        Common,
        "schema",
        Form::Text,
        "PostgreSQL: the schema that holds the tables",
    )
    .default("laneway"),
    Setting::new(
        "store.pool_size",
        Common,
        "pool-size",
        Form::Whole(1, 1_000),
        "PostgreSQL: connections at most, not counting the listener",
    )
    .default("8"),
    Setting::new(
        "store.ui_pool_size",
        Common,
        "ui-pool-size",
        Form::Whole(1, 1_000),
        "PostgreSQL: connections of their own for HTTP where a worker runs in the same process, so that looks never take the worker's",
    )
    .default("2"),
    Setting::new(
        "store.migrate",
        Common,
        "migrate",
        Form::Choice(&["auto", "never"]),
        "PostgreSQL: whether dev, serve and workers bring the tables up to date when they start",
    )
    .default("auto"),
    Setting::new(
        "worker.queues",
        Working,
        "queues",
        Form::Queues,
        "the queues that a worker serves, with weights if they differ: mail=3,default=1",
    )
    .default("default"),
    Setting::new(
        "worker.kinds",
        Working,
        "kinds",
        Form::Kinds,
        "of the built-in kinds only these; a worker takes what it has handlers for",
    )
    .default("*"),
    Setting::new(
        "worker.max_concurrent_tasks",
        Working,
        "max-concurrent-tasks",
        Form::Whole(1, 1_000_000),
        "tasks that run at once at most, whatever count and concurrency say",
    )
    .plain("MAX_CONCURRENT_TASKS")
    .default("1000")
    .live(),
    Setting::new(
        "worker.count",
        Working,
        "worker-count",
        Form::Whole(1, 10_000),
        "how many times worker.concurrency; still one claimer per process",
    )
    .default("1"),
    Setting::new(
        "worker.concurrency",
        Working,
        "concurrency",
        Form::Whole(1, 1_000_000),
        "tasks that run at once, times worker.count; as many as worker.max_concurrent_tasks if not set",
    )
    .plain("WORKER_CONCURRENCY")
    .live(),
    Setting::new(
        "worker.claim_batch_size",
        Working,
        "claim-batch-size",
        Form::Whole(1, 10_000),
        "tasks that one claim takes at most; never more than there are free slots",
    )
    .plain("CLAIM_BATCH_SIZE")
    .default("50")
    .live(),
    Setting::new(
        "worker.poll_interval_ms",
        Working,
        "poll-interval-ms",
        Form::Whole(1, 60_000),
        "how often a worker looks for work while no hints arrive",
    )
    .plain("POLL_INTERVAL_MS")
    .default("100")
    .live(),
    Setting::new(
        "worker.poll_interval_max_ms",
        Working,
        "poll-interval-max-ms",
        Form::Whole(1, 600_000),
        "how often it looks while hints arrive, in case one was lost",
    )
    .default("1000")
    .live(),
    Setting::new(
        "worker.wake",
        Working,
        "wake",
        Form::Choice(&["auto", "notify", "poll"]),
        "PostgreSQL: whether workers listen for hints (auto and notify), or only poll",
    )
    .default("auto"),
    Setting::new(
        "worker.memory_high",
        Working,
        "memory-high",
        Form::Ratio,
        "above this share of memory in use claims are halved",
    )
    .default("0.8")
    .live(),
    Setting::new(
        "worker.memory_stop",
        Working,
        "memory-stop",
        Form::Ratio,
        "above this share of memory in use nothing is claimed",
    )
    .default("0.95")
    .live(),
    Setting::new(
        "worker.min_free_ratio",
        Working,
        "min-free-ratio",
        Form::Ratio,
        "keeps this share of the slots free; ignored below 20 slots",
    )
    .default("0")
    .live(),
    Setting::new(
        "worker.latency_threshold_ms",
        Working,
        "latency-threshold-ms",
        Form::Whole(1, 86_400_000),
        "when one attempt of a hundred takes longer than this, claims are 30 % smaller",
    )
    .live(),
    Setting::new(
        "worker.shutdown_grace_s",
        Working,
        "shutdown-grace-s",
        Form::Whole(0, 86_400),
        "how long attempts may go on after the first signal to stop; then they are given back",
    )
    .default("30"),
    Setting::new(
        "worker.http_targets",
        Working,
        "http-targets",
        Form::Choice(&["public", "any"]),
        "which addresses http.request and endpoints may call: any includes private and loopback ones",
    )
    .default("public"),
    Setting::new(
        "worker.name",
        Working,
        "name",
        Form::Text,
        "the worker's name; host and process if not set",
    ),
    Setting::new(
        "server.url",
        Common,
        "server",
        Form::Url,
        "a Laneway server to talk to in place of a store: http://HOST:PORT or https://HOST, with its base path",
    ),
    Setting::new(
        "server.token",
        Common,
        "server-token",
        Form::Token,
        "the token for server.url; better as file:PATH or in the environment than as a flag, which others see",
    ),
    Setting::new(
        "server.listen",
        Serving,
        "listen",
        Form::Address,
        "where HTTP is served; any address but loopback needs a token in the store",
    )
    .plain("PORT")
    .default("127.0.0.1:7420"),
    Setting::new(
        "server.base_path",
        Serving,
        "base-path",
        Form::BasePath,
        "the path that a proxy puts in front of all routes; metrics and health are answered without it, too",
    )
    .default("/"),
    Setting::new(
        "server.public_url",
        Serving,
        "public-url",
        Form::Url,
        "the address that a proxy serves it under; on loopback it is then answered by that name, too",
    ),
    Setting::new(
        "server.read_only",
        Serving,
        "read-only",
        Form::Choice(&["false", "true"]),
        "refuse every request that would change something",
    )
    .default("false"),
    Setting::new(
        "auth.mode",
        Serving,
        "auth-mode",
        Form::Choice(&["auto", "tokens"]),
        "auto asks for tokens everywhere but on loopback, tokens asks for them there, too",
    )
    .default("auto"),
    Setting::new(
        "metrics.listen",
        Working,
        "metrics-listen",
        Form::Address,
        "a port of their own for /metrics, /livez and /readyz; a worker without a server has none otherwise",
    ),
    Setting::new(
        "log.level",
        Common,
        "log-level",
        Form::Log,
        "what is logged: error, warn, info, debug, trace, or a filter such as laneway=debug,info",
    )
    .plain("RUST_LOG")
    .default("info")
    .live(),
    Setting::new(
        "log.format",
        Common,
        "log-format",
        Form::Choice(&["auto", "text", "json"]),
        "auto is text on a terminal and JSON otherwise",
    )
    .default("auto"),
];

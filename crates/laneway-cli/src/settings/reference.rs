//! The pages that are made from the table of settings: the reference, and the template of a file.

use std::fmt::Write;

use super::table::{SETTINGS, Setting};

const INTRODUCTION: &str = "\
# Configuration

Made from the table of settings by `laneway config reference`; a test compares it.

Every setting has a key, a flag and a variable. The first of these layers that says anything decides:

1. the flag, such as `--claim-batch-size 10`
2. the context that is named with `--context NAME` or `LANEWAY_CONTEXT`
3. the variable with the full name, such as `LANEWAY_WORKER_CLAIM_BATCH_SIZE=10`
4. the variable with the plain name, such as `CLAIM_BATCH_SIZE=10`
5. the file that is named with `--config FILE`
6. `laneway.toml` in the working directory or the nearest one above it
7. `laneway/config.toml` in the user's configuration directory (`$XDG_CONFIG_HOME` or `~/.config`)
8. the profile: a preset of `worker.count` and `worker.concurrency`
9. the default

`laneway config show --origin` shows every effective value and where it came from, `laneway config explain KEY` tells about
one, `laneway config init` writes a file to begin with. Unknown keys and values that are not allowed are refused; the
message names the place. An empty variable is one that is not set.

A setting with a password in it (`store.url`, `store.direct_url`), and `server.token`, may be `file:PATH` or `env:NAME` instead: the secret is
read from there, and never shown.

Commands talk to a store, or to a server in front of one: whichever of `store.url` and `server.url` a higher layer names. Both in one layer are a mistake,
but for `DATABASE_URL`, which `LANEWAY_SERVER_URL` is above. See [a CLI far from the database](operations.md#a-cli-far-from-the-database).

`dev` and `demo` use a store of their own unless one is named with `--store`, whatever server files and the environment name. A default of `sqlite:.laneway/laneway.db` means the
`.laneway` directory of the working directory, or of the nearest one above it that has one.

A worker serves the queue `default` unless it is told which: a task waits in a queue of its own for a worker that is meant for it. `worker.min_free_ratio`
is 0, because a free slot is there to be used: with 0.1 a worker of 1,000 slots would keep 100 idle while work waits.

Settings that are marked *live* are read again by `dev`, `serve` and workers when they get SIGHUP, and by servers on `POST /api/v1/settings/reload`. Files are
checked as a whole first: a mistake in them is told and changes nothing. Changes of other settings are named; they need a restart. With fewer slots than tasks run,
a worker claims nothing until enough of them have ended. What belongs to a queue or a lane (pauses, limits,
retention, serial queues) is no setting of a process but kept in the store, with its author in the audit, and counts at once: `queues set`, `lanes set`.

## Contexts

A file may name stores and servers, so that nobody has to write addresses or mistake one for another:

```toml
[context.prod]
production = true
store.url = \"file:/run/secrets/laneway\"

[context.staging]
store.url = \"postgres://staging/app\"

[context.eu]
server.url = \"https://tasks.example.org\"
server.token = \"file:/run/secrets/laneway-token\"
```

`laneway --context prod tasks ls` uses the first. Every setting may stand in a context. In one with `production = true` every change that operators make is asked
about, also of a single task; `--yes` answers.

## What is not a setting

- Leases and heartbeats (`worker.lease_ms`, `worker.heartbeat_ms`): all workers of a store must agree on them; a silent worker is dead after 30 s.
- Batching of completions (`worker.flush_ms`, `worker.flush_max`): ends within a millisecond go together, and with the next claim.
- Retention (`retention.*`): it belongs to the queue and not to the process that happens to clean up.
- Traces (`otel.*`): the standard variables `OTEL_*` count, see [worker](worker.md).
- Label and colour (`server.label`, `server.color`): they are for pages, of which there are none yet.

## All settings

";

/// The page `docs/configuration.md`.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    page.push_str("| Key | Flag | Variables | Default | Allowed | |\n|---|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let plain = setting.plain.map(|name| format!(", `{name}`")).unwrap_or_default();
        let default = setting.default.map_or("-".into(), |text| format!("`{text}`"));
        let live = if setting.live { " *live*" } else { "" };
        let Setting { key, flag, help, form, .. } = setting;
        let (variable, allowed) = (setting.variable(), form.allowed());
        writeln!(
            page,
            "| `{key}` | `--{flag}` | `{variable}`{plain} | {default} | {allowed} | {help}{live} |"
        )
        .expect("a string takes everything");
    }
    page
}

/// A file in which every setting is written down as a comment.
pub fn template() -> String {
    let mut text = String::from("# Settings of laneway. Remove the # in front of what you want to change.\n");
    let mut section = "";
    for setting in SETTINGS {
        let (of, name) = setting.key.split_once('.').unwrap_or(("", setting.key));
        if of != section {
            write!(text, "\n[{of}]\n").expect("a string takes everything");
            section = of;
        }
        let value = setting.default.unwrap_or("");
        let value = if value.parse::<f64>().is_ok() { value.to_owned() } else { format!("\"{value}\"") };
        writeln!(text, "# {}\n#{name} = {value}", setting.help).expect("a string takes everything");
    }
    text
}

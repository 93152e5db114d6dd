//! Which layer decides a setting: flags, environment, files, profile, default, in this order.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use laneway::Profile;
use laneway_server::Reloaded;

use super::file::{self, Entry};
use super::flags::Given;
use super::table::{SETTINGS, Setting};
use super::value::{self, Form};
use crate::open::without_password;
use crate::problem::Problem;

/// Where the value of a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Flag(&'static str),
    Variable(String),
    File { path: PathBuf, line: usize },
    Profile(String),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "flag --{flag}"),
            Self::Variable(name) => write!(f, "env {name}"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One setting with its effective value.
#[derive(Clone, Debug)]
pub struct Value {
    pub setting: &'static Setting,
    /// As it was written; none when it is not set.
    pub text: Option<String>,
    pub origin: Origin,
    /// How high the layer is that it came from; 0 is the default.
    rank: usize,
}

impl Value {
    /// The value without its password; a reference to a secret stays one. None when it is not set.
    pub fn shown(&self) -> Option<String> {
        let text = self.text.clone()?;
        let is_elsewhere = text.starts_with("file:") || text.starts_with("env:");
        Some(match self.setting.form {
            Form::Secret => without_password(&text),
            Form::Token if !is_elsewhere => "***".to_owned(),
            _ => text,
        })
    }
}

/// What the layers are made of. Tests bring their own.
pub struct Sources<'a> {
    pub flags: &'a [Given],
    /// The file that was named with `--config`.
    pub config: Option<&'a Path>,
    /// The context that was named with `--context`.
    pub context: Option<&'a str>,
    pub working: &'a Path,
    pub variables: &'a [(String, String)],
}

/// All settings with their effective values.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Vec<Value>,
    /// Relative SQLite files are relative to this.
    working: PathBuf,
    /// The environment, for secrets that are written there.
    variables: Vec<(String, String)>,
    /// The context, if it is marked as production.
    production: Option<String>,
}

impl Settings {
    /// Reads all layers and checks every value in them.
    ///
    /// # Errors
    /// The first value that is not allowed, or the first key that is unknown; the message names the place.
    pub fn read(sources: &Sources<'_>) -> Result<Self, Problem> {
        refuse_unknown_variables(sources.variables)?;
        let files = read_files(sources)?;
        let context = context(sources, &files)?;
        let layers = |setting| layered(setting, sources, &files, context.as_deref());
        let profile = SETTINGS.iter().find(|setting| setting.key == "profile").and_then(layers);
        let values = SETTINGS.iter().map(|setting| {
            layers(setting).or_else(|| preset(setting, profile.as_ref())).unwrap_or_else(|| default(setting))
        });
        let values: Vec<_> = values.collect();
        values.iter().try_for_each(check)?;
        let (working, variables) = (sources.working.to_owned(), sources.variables.to_vec());
        let production = context.filter(|name| is_production(name, &files));
        Ok(Self { values, working, variables, production })
    }

    /// Every setting, in the order of the table.
    pub fn all(&self) -> &[Value] {
        &self.values
    }

    /// One setting.
    pub fn value(&self, key: &str) -> &Value {
        self.values
            .iter()
            .find(|value| value.setting.key == key)
            .expect("the table has every key that is asked for")
    }

    /// The text of a setting, with secrets read from where they are.
    ///
    /// # Errors
    /// When a secret is not where the setting says.
    pub fn text(&self, key: &str) -> Result<Option<String>, Problem> {
        let value = self.value(key);
        let Some(text) = value.text.as_deref() else { return Ok(None) };
        match value.setting.form {
            Form::Secret | Form::Token => self.secret(value, text).map(Some),
            _ => Ok(Some(text.to_owned())),
        }
    }

    fn secret(&self, value: &Value, text: &str) -> Result<String, Problem> {
        let refuse = |problem: String| {
            Problem::usage(format!("{} (from {}) {problem}", value.setting.key, value.origin))
        };
        if let Some(path) = text.strip_prefix("file:") {
            let read = std::fs::read_to_string(self.working.join(path));
            let read = read
                .map_err(|error| refuse(format!("names the file {path}, which cannot be read: {error}")))?;
            return Ok(read.trim().to_owned());
        }
        let Some(name) = text.strip_prefix("env:") else { return Ok(text.to_owned()) };
        let found = self.variables.iter().find(|(known, _)| known == name);
        found
            .map(|(_, secret)| secret.clone())
            .ok_or_else(|| refuse(format!("names the variable {name}, which is not set")))
    }

    /// The server that is talked to in place of a store: when the highest layer that names one of them names a server.
    ///
    /// # Errors
    /// When one layer names both.
    pub fn server(&self) -> Result<Option<&str>, Problem> {
        let (server, store) = (self.value("server.url"), self.value("store.url"));
        let Some(url) = server.text.as_deref().filter(|_| server.rank >= store.rank) else { return Ok(None) };
        if server.rank > store.rank {
            return Ok(Some(url));
        }
        let (of_store, of_server) = (&store.origin, &server.origin);
        let problem = format!(
            "a store (from {of_store}) and a server (from {of_server}) are both given; give one of them"
        );
        Err(Problem::usage(problem))
    }

    /// A setting that is a whole number.
    pub fn whole(&self, key: &str) -> Option<u64> {
        self.value(key).text.as_deref()?.parse().ok()
    }

    /// A setting that is a ratio.
    pub fn ratio(&self, key: &str) -> Option<f64> {
        self.value(key).text.as_deref()?.parse().ok()
    }

    /// True when a setting has this value.
    pub fn is(&self, key: &str, text: &str) -> bool {
        self.value(key).text.as_deref() == Some(text)
    }

    /// The queues that a worker serves, with their weights.
    pub fn queues(&self) -> Vec<(String, u32)> {
        let text = self.value("worker.queues").text.as_deref().unwrap_or_default();
        value::queues(text).expect("checked when it was read")
    }

    /// Whether a built-in kind is handled.
    pub fn handles(&self, kind: &str) -> bool {
        let text = self.value("worker.kinds").text.as_deref().unwrap_or("*");
        text == "*" || text.split(',').any(|named| named.trim() == kind)
    }

    /// The name that a proxy calls the server by.
    pub fn public_host(&self) -> Option<&str> {
        self.value("server.public_url").text.as_deref().and_then(value::host)
    }

    /// Where metrics have a port of their own.
    pub fn metrics_listen(&self) -> Option<std::net::SocketAddr> {
        self.value("metrics.listen").text.as_deref().and_then(value::address)
    }

    /// Where HTTP is served.
    pub fn listen(&self) -> std::net::SocketAddr {
        let text = self.value("server.listen").text.as_deref().unwrap_or_default();
        value::address(text).expect("checked when it was read")
    }

    /// How many tasks run at once, and how that came about.
    pub fn slots(&self) -> (usize, String) {
        let number = |key| self.whole(key).map(|number| number as usize);
        let ceiling = number("worker.max_concurrent_tasks").unwrap_or(1_000);
        let count = number("worker.count").unwrap_or(1);
        let concurrency = number("worker.concurrency").unwrap_or(ceiling);
        let slots = ceiling.min(count.saturating_mul(concurrency));
        (slots, format!("min({ceiling}, {count} x {concurrency}) = {slots}"))
    }

    /// The same settings but for one, which this command decides itself.
    pub fn with(&self, key: &str, text: &str) -> Self {
        let mut changed = self.clone();
        let value = changed.values.iter_mut().find(|value| value.setting.key == key);
        value.expect("the table has every key that is asked for").text = Some(text.to_owned());
        changed
    }

    /// The same settings, but one has its default.
    pub fn with_default(&self, key: &str) -> Self {
        let mut changed = self.clone();
        let value = changed.values.iter_mut().find(|value| value.setting.key == key);
        let value = value.expect("the table has every key that is asked for");
        *value = default(value.setting);
        changed
    }

    /// These settings with what is live in `read` in the place of what was, and what has changed.
    pub fn reloaded(&self, read: &Self) -> (Self, Reloaded) {
        let (mut next, mut reloaded) = (self.clone(), Reloaded::default());
        // A profile stands for several settings of which not all are live: it is changed as a whole, or not at all.
        let other_profile = self.value("profile").text != read.value("profile").text;
        let is_preset = |value: &Value| matches!(value.origin, Origin::Profile(_));
        for (old, new) in next.values.iter_mut().zip(&read.values) {
            let waits = !old.setting.live || (other_profile && (is_preset(old) || is_preset(new)));
            match (old.text == new.text, waits) {
                (true, true) => (),
                (false, true) => reloaded.needs_restart.push(old.setting.key.into()),
                (is_same, false) => {
                    reloaded.changed.extend((!is_same).then(|| old.setting.key.to_owned()));
                    *old = new.clone();
                }
            }
        }
        (next, reloaded)
    }

    /// The context that is used, if it is marked as production.
    pub fn production(&self) -> Option<&str> {
        self.production.as_deref()
    }

    /// The working directory.
    pub fn working(&self) -> &Path {
        &self.working
    }
}

type Files = [(PathBuf, Vec<Entry>)];

/// The context that is used: `--context`, or `LANEWAY_CONTEXT`.
fn context(sources: &Sources<'_>, files: &Files) -> Result<Option<String>, Problem> {
    let named = sources.context.map(str::to_owned).or_else(|| lookup(sources.variables, "LANEWAY_CONTEXT"));
    let Some(name) = named else { return Ok(None) };
    let mut known: Vec<_> =
        files.iter().flat_map(|(_, entries)| entries).filter_map(|entry| entry.context.as_deref()).collect();
    if known.contains(&name.as_str()) {
        return Ok(Some(name));
    }
    known.sort_unstable();
    known.dedup();
    let known =
        if known.is_empty() { "there are none".to_owned() } else { format!("one of: {}", known.join(", ")) };
    let problem = format!("there is no context `{}` in a settings file; {known}", name.escape_debug());
    Err(Problem::usage(problem))
}

/// True when the first file that says so says yes.
fn is_production(context: &str, files: &Files) -> bool {
    let mut entries = files.iter().flat_map(|(_, entries)| entries);
    let said = entries.find(|entry| entry.setting.is_none() && entry.context.as_deref() == Some(context));
    said.is_some_and(|entry| entry.text == "true")
}

fn read_files(sources: &Sources<'_>) -> Result<Vec<(PathBuf, Vec<Entry>)>, Problem> {
    let variable = |name: &str| lookup(sources.variables, name);
    let mut files = vec![];
    for path in file::search_path(sources.config, sources.working, variable) {
        match file::read(&path)? {
            Some(entries) => files.push((path, entries)),
            None if sources.config == Some(&path) => {
                return Err(Problem::usage(format!("there is no file {}", path.display())));
            }
            None => (),
        }
    }
    Ok(files)
}

fn lookup(variables: &[(String, String)], name: &str) -> Option<String> {
    let found = variables.iter().find(|(known, value)| known == name && !value.trim().is_empty());
    found.map(|(_, value)| value.trim().to_owned())
}

/// What the highest layer says that says anything.
fn layered(
    setting: &'static Setting,
    sources: &Sources<'_>,
    files: &Files,
    context: Option<&str>,
) -> Option<Value> {
    let value = |text: String, origin, rank| Some(Value { setting, text: Some(text), origin, rank });
    if let Some((_, text)) = sources.flags.iter().find(|(given, _)| given.key == setting.key) {
        return value(text.clone(), Origin::Flag(setting.flag), RANK_FLAG);
    }
    let in_files = |context: Option<&str>, rank: usize| {
        files.iter().enumerate().find_map(|(place, (path, entries))| {
            let is_meant = |entry: &&Entry| {
                entry.setting.is_some_and(|of| of.key == setting.key) && entry.context.as_deref() == context
            };
            let entry = entries.iter().find(is_meant)?;
            value(entry.text.clone(), Origin::File { path: path.clone(), line: entry.line }, rank - place)
        })
    };
    if let Some(found) = context.and_then(|context| in_files(Some(context), RANK_CONTEXT)) {
        return Some(found);
    }
    let full = (Some(setting.variable()), RANK_VARIABLE);
    let plain = (setting.plain.map(str::to_owned), RANK_PLAIN);
    for (name, rank) in [full, plain] {
        let Some(name) = name else { continue };
        if let Some(text) = lookup(sources.variables, &name) {
            return value(text, Origin::Variable(name), rank);
        }
    }
    in_files(None, RANK_FILE)
}

// How high layers are. A file that is less important than another one is as much lower as it comes later.
const RANK_FLAG: usize = 500;
const RANK_CONTEXT: usize = 400;
const RANK_VARIABLE: usize = 300;
const RANK_PLAIN: usize = 200;
const RANK_FILE: usize = 100;
const RANK_PROFILE: usize = 1;

fn preset(setting: &'static Setting, profile: Option<&Value>) -> Option<Value> {
    let name = profile?.text.as_deref()?;
    let (count, concurrency) = name.parse::<Profile>().ok()?.workers_and_concurrency();
    let number = match setting.key {
        "worker.count" => count,
        "worker.concurrency" => concurrency,
        _ => return None,
    };
    let (text, origin) = (Some(number.to_string()), Origin::Profile(name.to_owned()));
    Some(Value { setting, text, origin, rank: RANK_PROFILE })
}

fn default(setting: &'static Setting) -> Value {
    Value { setting, text: setting.default.map(str::to_owned), origin: Origin::Default, rank: 0 }
}

fn check(value: &Value) -> Result<(), Problem> {
    let Some(text) = &value.text else { return Ok(()) };
    let Value { setting, origin, .. } = value;
    if setting.form.accepts(text) {
        return Ok(());
    }
    let (key, allowed) = (setting.key, setting.form.allowed());
    let shown = match setting.form {
        Form::Secret | Form::Token => "empty".into(),
        _ => format!("`{}`", without_password(text).escape_debug()),
    };
    Err(Problem::usage(format!("{key} is {shown} (from {origin}); allowed is {allowed}")))
}

/// A variable that begins like one of ours but is none is a typing mistake, as in `LANEWAY_WORKER_CLAIM_BATCHSIZE`.
fn refuse_unknown_variables(variables: &[(String, String)]) -> Result<(), Problem> {
    let known: Vec<_> = SETTINGS.iter().map(Setting::variable).collect();
    let sections = SETTINGS.iter().filter_map(|setting| setting.key.split_once('.'));
    let sections: BTreeSet<_> =
        sections.map(|(section, _)| format!("LANEWAY_{}_", section.to_ascii_uppercase())).collect();
    for (name, _) in variables {
        if sections.iter().any(|section| name.starts_with(section.as_str())) && !known.contains(name) {
            let meant = file::nearest(name, known.iter().map(String::as_str));
            let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            return Err(Problem::usage(format!("the variable {name} is no setting{meant}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::find;
    use super::*;

    fn read(flags: &[(&str, &str)], variables: &[(&str, &str)], file: &str) -> Result<Settings, String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(file::FILE_NAME), file).unwrap();
        let flags: Vec<_> =
            flags.iter().map(|(key, text)| (find(key).unwrap(), (*text).to_owned())).collect();
        let variables: Vec<_> =
            variables.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
        let sources = Sources {
            flags: &flags,
            config: None,
            context: None,
            working: directory.path(),
            variables: &variables,
        };
        Settings::read(&sources)
            .map_err(|problem| problem.message.replace(&format!("{}/", directory.path().display()), ""))
    }

    #[test]
    fn the_highest_layer_that_says_anything_wins() {
        let (flag, full, plain) = (
            ("worker.claim_batch_size", "1"),
            ("LANEWAY_WORKER_CLAIM_BATCH_SIZE", "2"),
            ("CLAIM_BATCH_SIZE", "3"),
        );
        let file = "[worker]\nclaim_batch_size = 4";

        let size = |flags: &[_], variables: &[_], file: &str| {
            read(flags, variables, file).unwrap().whole("worker.claim_batch_size").unwrap()
        };
        assert_eq!(size(&[flag], &[full, plain], file), 1);
        assert_eq!(size(&[], &[full, plain], file), 2);
        assert_eq!(size(&[], &[plain], file), 3);
        assert_eq!(size(&[], &[], file), 4);
        assert_eq!(size(&[], &[], ""), 50);
    }

    #[test]
    fn a_profile_is_a_preset_that_every_layer_replaces() {
        let settings = read(&[], &[("LANEWAY_PROFILE", "production")], "worker.count = 7").unwrap();

        assert_eq!(settings.slots(), (35, "min(1000, 7 x 5) = 35".into()));
        assert_eq!(settings.value("worker.concurrency").origin.to_string(), "profile production");
    }

    #[test]
    fn mistakes_name_their_place_and_what_is_allowed() {
        for (file, variables, says) in [
            (
                "a = 1\nworker.claim_batchsize = 1",
                &[][..],
                "laneway.toml:1: unknown key `a`; `laneway config show` lists all keys",
            ),
            (
                "\nworker.claim_batchsize = 1",
                &[],
                "laneway.toml:2: unknown key `worker.claim_batchsize`; did you mean `worker.claim_batch_size`?",
            ),
            (
                "worker.count = [1]",
                &[],
                "laneway.toml:1: worker.count is a list or a date; allowed is 1 to 10000",
            ),
            ("[worker\n", &[], "laneway.toml:1: unclosed table, expected `]`"),
            (
                "",
                &[("CLAIM_BATCH_SIZE", "0")],
                "worker.claim_batch_size is `0` (from env CLAIM_BATCH_SIZE); allowed is 1 to 10000",
            ),
            (
                "",
                &[("LANEWAY_WORKER_CLAIM_BATCHSIZE", "1")],
                "the variable LANEWAY_WORKER_CLAIM_BATCHSIZE is no setting; did you mean LANEWAY_WORKER_CLAIM_BATCH_SIZE?",
            ),
        ] {
            assert_eq!(read(&[], variables, file).unwrap_err(), says);
        }
    }

    #[test]
    fn a_server_stands_in_for_a_store_when_a_higher_layer_names_it() {
        let chosen = |flags: &[_], variables: &[_], file: &str| {
            let settings = read(flags, variables, file).unwrap();
            settings.server().map(|url| url.map(str::to_owned)).map_err(|problem| problem.message)
        };
        let (store, server) = (("store.url", "sqlite:a.db"), ("server.url", "http://flag"));
        let (plain, variable) = (("DATABASE_URL", "postgres://db"), ("LANEWAY_SERVER_URL", "http://env"));
        let file = "server.url = \"http://file\"";

        assert_eq!(chosen(&[], &[], ""), Ok(None));
        assert_eq!(chosen(&[], &[], file), Ok(Some("http://file".into())));
        assert_eq!(chosen(&[], &[plain], file), Ok(None));
        assert_eq!(chosen(&[], &[plain, variable], ""), Ok(Some("http://env".into())));
        assert_eq!(chosen(&[store], &[variable], file), Ok(None));
        assert_eq!(chosen(&[server], &[plain], ""), Ok(Some("http://flag".into())));
        assert_eq!(
            chosen(&[store, server], &[], ""),
            Err("a store (from flag --store) and a server (from flag --server) are both given; give one of them"
                .into())
        );
    }

    #[test]
    fn a_token_is_not_shown_but_where_it_is_kept() {
        for (text, shown) in [
            ("lw_1_secret", "***"),
            ("file:/run/secrets/token", "file:/run/secrets/token"),
            ("env:T", "env:T"),
        ] {
            let settings = read(&[("server.token", text)], &[("T", "lw_1_secret")], "").unwrap();
            assert_eq!(settings.value("server.token").shown().as_deref(), Some(shown));
        }
    }

    #[test]
    fn secrets_are_read_from_where_they_are() {
        let settings = read(&[("store.url", "env:SECRET")], &[("SECRET", "postgres://x")], "").unwrap();
        assert_eq!(settings.text("store.url").unwrap().unwrap(), "postgres://x");

        let settings = read(&[("store.url", "file:nowhere")], &[], "").unwrap();
        assert!(settings.text("store.url").unwrap_err().message.contains("names the file nowhere"));
    }
}

//! `laneway config`: settings, and where they come from.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::Context;
use crate::output::{Column, Format, column};
use crate::problem::{Exit, Outcome, Problem};
use crate::settings::{
    FILE_NAME, Flags, Given, SETTINGS, Serving, Value, Working, find, reference_page, search_path, template,
};

/// Settings, and where they come from.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// The effective value of every setting
    Show(Show),
    /// Write a laneway.toml to begin with
    Init {
        /// Replace the one that is there
        #[arg(long)]
        force: bool,
    },
    /// The files that are read, and which of them exist
    Path,
    /// Everything about one setting
    Explain {
        /// Its key, such as worker.claim_batch_size
        key: String,
    },
    /// The reference of all settings, as Markdown
    Reference,
}

/// Shows effective values. Takes every setting as a flag, to see what it would do.
#[derive(Args, Debug)]
pub struct Show {
    /// Also say where each value comes from
    #[arg(long)]
    pub origin: bool,
    #[command(flatten)]
    pub working: Flags<Working>,
    #[command(flatten)]
    pub serving: Flags<Serving>,
}

/// One setting as it is shown.
#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: Option<String>,
    from: String,
}

impl Row {
    fn of(value: &Value) -> Self {
        Self { key: value.setting.key, value: value.shown(), from: value.origin.to_string() }
    }
}

const KEY: Column<Row> = column("KEY", |row, _| row.key.into());
const VALUE: Column<Row> = column("VALUE", |row, _| row.value.clone().unwrap_or("-".into()));
const FROM: Column<Row> = column("FROM", |row, _| row.from.clone());

impl Config {
    pub fn run(&self, context: &Context) -> Outcome {
        match self {
            Self::Show(command) => show(command, context),
            Self::Init { force } => init(*force, context),
            Self::Path => path(context),
            Self::Explain { key } => explain(key, context),
            Self::Reference => context.out.data(&reference_page()).map(|()| Exit::Done),
        }
    }

    pub fn flags(&self) -> Vec<Given> {
        match self {
            Self::Show(show) => [show.working.given.clone(), show.serving.given.clone()].concat(),
            _ => vec![],
        }
    }
}

fn show(command: &Show, context: &Context) -> Outcome {
    let rows: Vec<_> = context.settings.all().iter().map(Row::of).collect();
    let columns = if command.origin { &[KEY, VALUE, FROM][..] } else { &[KEY, VALUE] };
    context.out.list("settings", &rows, columns, None)?;
    if matches!(context.out.format, Format::Table | Format::Wide) {
        context.out.note(&format!("effective slots: {}", context.settings.slots().1));
    }
    Ok(Exit::Done)
}

fn init(force: bool, context: &Context) -> Outcome {
    let path = context.settings.working().join(FILE_NAME);
    if path.exists() && !force {
        return Err(Problem::usage(format!("{FILE_NAME} is there already; replace it with --force")));
    }
    std::fs::write(&path, template())
        .map_err(|error| Problem::because(format!("cannot write {}", path.display()), &error))?;
    context.out.note(&format!("wrote {FILE_NAME}; every setting is in it as a comment"));
    Ok(Exit::Done)
}

fn path(context: &Context) -> Outcome {
    #[derive(Serialize)]
    struct File {
        path: String,
        exists: bool,
    }
    let variable = |name: &str| std::env::var(name).ok();
    let files: Vec<_> = search_path(None, context.settings.working(), variable)
        .into_iter()
        .map(|path| File { exists: path.is_file(), path: path.display().to_string() })
        .collect();
    let exists = |file: &File, _| if file.exists { "read" } else { "not there" }.into();
    context.out.list(
        "files",
        &files,
        &[column("FILE", |file, _| file.path.clone()), column("STATE", exists)],
        None,
    )?;
    Ok(Exit::Done)
}

fn explain(key: &str, context: &Context) -> Outcome {
    let Some(setting) = find(key) else {
        let known = SETTINGS.iter().map(|setting| setting.key);
        let meant = crate::settings::nearest(key, known);
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        return Err(Problem::nothing(format!("there is no setting `{key}`{meant}")));
    };
    let value = context.settings.value(key);
    let plain = setting.plain.map(|name| format!(", {name}")).unwrap_or_default();
    let fields = [
        ("key", key.to_owned()),
        ("meaning", setting.help.to_owned()),
        ("value", value.shown().unwrap_or("-".into())),
        ("from", value.origin.to_string()),
        ("default", setting.default.unwrap_or("-").to_owned()),
        ("allowed", setting.form.allowed()),
        ("flag", format!("--{}", setting.flag)),
        ("variables", format!("{}{plain}", setting.variable())),
        (
            "live",
            if setting.live { "yes, with SIGHUP or POST /api/v1/settings/reload" } else { "no" }.to_owned(),
        ),
    ];
    context.out.one("setting", &Row::of(value), key, &fields)?;
    Ok(Exit::Done)
}

//! Settings in TOML files: where files are looked for, and how they are read.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::table::{SETTINGS, Setting, find};
use crate::problem::Problem;

/// The file that is looked for in the working directory and above it.
pub const FILE_NAME: &str = "laneway.toml";

/// One value of a file, and the line that it is in.
#[derive(Debug)]
pub struct Entry {
    /// The context that it belongs to; none: it counts always.
    pub context: Option<String>,
    /// None: it says whether its context is production.
    pub setting: Option<&'static Setting>,
    pub text: String,
    pub line: usize,
}

/// The files that are read, most important first, whether they exist or not.
pub fn search_path(
    given: Option<&Path>,
    working: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<PathBuf> {
    let above = working.ancestors().map(|directory| directory.join(FILE_NAME)).find(|path| path.is_file());
    let nearest = above.unwrap_or_else(|| working.join(FILE_NAME));
    let home = || variable("HOME").map(|home| Path::new(&home).join(".config"));
    let user = variable("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let user = user.map(|directory| directory.join("laneway").join("config.toml"));
    given.map(Path::to_owned).into_iter().chain([nearest]).chain(user).collect()
}

/// Reads one file. `None` when it does not exist.
pub fn read(path: &Path) -> Result<Option<Vec<Entry>>, Problem> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Problem::usage(format!("cannot read {}: {error}", path.display()))),
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, Problem> {
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let place = |at: usize| format!("{}:{}", path.display(), line_of(at));
    let root = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Problem::usage(format!("{}: {}", place(at), error.message()))
    })?;
    let mut found = vec![];
    collect(root.get_ref(), "", &mut found);
    found
        .into_iter()
        .map(|(key, at, value)| {
            let entry =
                entry(&key, value).map_err(|problem| Problem::usage(format!("{}: {problem}", place(at))))?;
            Ok(Entry { line: line_of(at), ..entry })
        })
        .collect()
}

type Found<'a> = (String, usize, &'a DeValue<'a>);

/// The values of a table and of the tables in it, with their full keys and where they begin.
fn collect<'a>(table: &'a DeTable<'a>, prefix: &str, found: &mut Vec<Found<'a>>) {
    for (key, value) in table.iter() {
        let full = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => collect(inner, &format!("{full}."), found),
            other => found.push((full, key.span().start, other)),
        }
    }
}

fn entry(key: &str, value: &DeValue<'_>) -> Result<Entry, String> {
    let Some((context, key)) = key.strip_prefix("context.").and_then(|rest| rest.split_once('.')) else {
        return settled(None, key, value);
    };
    match (key, value) {
        ("production", DeValue::Boolean(is)) => {
            Ok(Entry { context: Some(context.to_owned()), setting: None, text: is.to_string(), line: 0 })
        }
        ("production", _) => {
            Err(format!("{key} of context `{context}` is not valid; allowed is true or false"))
        }
        _ => settled(Some(context.to_owned()), key, value),
    }
}

fn settled(context: Option<String>, key: &str, value: &DeValue<'_>) -> Result<Entry, String> {
    let setting = find(key).ok_or_else(|| unknown(key))?;
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(value) => value.to_string(),
        _ => return Err(format!("{key} is a list or a date; allowed is {}", setting.form.allowed())),
    };
    Ok(Entry { context, setting: Some(setting), text, line: 0 })
}

/// The refusal of an unknown key, with the nearest known one.
pub fn unknown(key: &str) -> String {
    let known = SETTINGS.iter().map(|setting| setting.key);
    match nearest(key, known) {
        Some(meant) => format!("unknown key `{}`; did you mean `{meant}`?", key.escape_debug()),
        None => format!("unknown key `{}`; `laneway config show` lists all keys", key.escape_debug()),
    }
}

/// The name that somebody probably meant.
pub fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(text, name), name))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, name)| name)
}

//! Everything that goes to standard output, in one place.
//!
//! Data goes to standard output in the format that was asked for; chatter goes to standard error. A command describes
//! what it shows ([`Column`]s of a list, fields of one thing) and what its JSON is; how that looks is decided here.
//! `-o json` and `-o ndjson` are a contract: every document has a `version`.
//!
//! Whatever comes from the store is shown so that it cannot steer the terminal (`text::clean`).

mod table;
pub mod text;

use std::io::Write;

use console::Term;
use jiff::Timestamp;
use serde::Serialize;
use serde::ser::SerializeMap;

use crate::problem::Problem;

/// The version of the JSON contract.
const VERSION: u32 = 1;

/// How data is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns for people.
    #[default]
    Table,
    /// The same with more columns.
    Wide,
    /// One JSON document.
    Json,
    /// One JSON document per line and row.
    Ndjson,
    /// Only the ids or names, one per line.
    Id,
}

/// One column of a list.
pub struct Column<T> {
    pub title: &'static str,
    /// Shown only with `-o wide`.
    pub wide: bool,
    pub right: bool,
    /// What it says about a row, at this time.
    pub cell: fn(&T, Timestamp) -> String,
}

/// A column that is always shown.
pub const fn column<T>(title: &'static str, cell: fn(&T, Timestamp) -> String) -> Column<T> {
    Column { title, wide: false, right: false, cell }
}

/// Numbers stand right.
pub const fn right<T>(column: Column<T>) -> Column<T> {
    Column { right: true, ..column }
}

/// Only with `-o wide`.
pub const fn wide<T>(column: Column<T>) -> Column<T> {
    Column { wide: true, ..column }
}

/// Where output goes and how it looks.
#[derive(Clone, Debug)]
pub struct Out {
    pub format: Format,
    pub quiet: bool,
}

impl Out {
    /// True when people read along on standard error.
    pub fn is_watched(&self) -> bool {
        !self.quiet && Term::stderr().is_term()
    }

    /// Says something that is not data.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            // Nobody reads standard error when this fails.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Shows a list. `what` is its name in JSON, `next` where the next page begins.
    pub fn list<T: Serialize>(
        &self,
        what: &'static str,
        rows: &[T],
        columns: &[Column<T>],
        next: Option<&str>,
    ) -> Result<(), Problem> {
        let text = match self.format {
            Format::Table | Format::Wide => self.table(rows, columns),
            Format::Json => document(&List { what, rows, next }),
            Format::Ndjson => rows.iter().map(line).collect(),
            Format::Id => rows.iter().map(|row| format!("{}\n", id(row, columns))).collect(),
        };
        self.data(&text)
    }

    fn table<T>(&self, rows: &[T], columns: &[Column<T>]) -> String {
        let now = Timestamp::now();
        let shown: Vec<_> =
            columns.iter().filter(|column| !column.wide || self.format == Format::Wide).collect();
        let heads = shown.iter().map(|column| (column.title, column.right)).collect::<Vec<_>>();
        let cells =
            rows.iter().map(|row| shown.iter().map(|column| (column.cell)(row, now)).collect()).collect();
        table::aligned(&heads, cells, terminal_width())
    }

    /// Shows one thing: its fields to people, itself as JSON. `what` is its name in JSON.
    pub fn one<T: Serialize>(
        &self,
        what: &'static str,
        thing: &T,
        id: &str,
        fields: &[(&str, String)],
    ) -> Result<(), Problem> {
        let text = match self.format {
            Format::Table | Format::Wide => table::fields(fields),
            Format::Json => document(&One { what, thing }),
            Format::Ndjson => line(thing),
            Format::Id => format!("{}\n", text::clean(id)),
        };
        self.data(&text)
    }

    /// Shows the answer to an action: a sentence to people, a document as JSON.
    pub fn answer<T: Serialize>(&self, thing: &T, id: &str, sentence: &str) -> Result<(), Problem> {
        match self.format {
            Format::Table | Format::Wide => self.data(&format!("{}\n", text::clean(sentence))),
            Format::Json | Format::Ndjson => self.data(&line(thing)),
            Format::Id => self.data(&format!("{}\n", text::clean(id))),
        }
    }

    /// Writes text as it is.
    pub fn data(&self, text: &str) -> Result<(), Problem> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

/// What scripts take a row by: its first column.
fn id<T>(row: &T, columns: &[Column<T>]) -> String {
    columns.first().map(|column| text::clean(&(column.cell)(row, Timestamp::now()))).unwrap_or_default()
}

fn terminal_width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, columns)| usize::from(columns))
}

/// A JSON document for people and programs.
fn document(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("what stores answer can be encoded");
    format!("{}\n", text::json_clean(&text))
}

/// A JSON document on one line, with its version.
fn line(value: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Line<'a, T> {
        version: u32,
        #[serde(flatten)]
        value: &'a T,
    }
    let text =
        serde_json::to_string(&Line { version: VERSION, value }).expect("what stores answer can be encoded");
    format!("{}\n", text::json_clean(&text))
}

struct List<'a, T> {
    what: &'static str,
    rows: &'a [T],
    next: Option<&'a str>,
}

impl<T: Serialize> Serialize for List<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", &VERSION)?;
        map.serialize_entry(self.what, self.rows)?;
        if let Some(next) = self.next {
            map.serialize_entry("next", next)?;
        }
        map.end()
    }
}

struct One<'a, T> {
    what: &'static str,
    thing: &'a T,
}

impl<T: Serialize> Serialize for One<'_, T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("version", &VERSION)?;
        map.serialize_entry(self.what, self.thing)?;
        map.end()
    }
}

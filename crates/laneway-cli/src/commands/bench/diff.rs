//! `laneway bench diff`: what has changed between two reports.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::report::Report;
use crate::context::Context;
use crate::output::{column, right};
use crate::problem::{Exit, Outcome, Problem};

/// Compares two reports.
#[derive(Args, Debug)]
pub struct Diff {
    /// The report from before
    pub a: PathBuf,
    /// The report to compare with it
    pub b: PathBuf,
}

/// One figure of both.
#[derive(Debug, PartialEq, Serialize)]
struct Change {
    figure: String,
    a: f64,
    b: f64,
    /// How much larger the second one is; none when the first one is 0.
    percent: Option<f64>,
}

impl Diff {
    pub fn run(&self, context: &Context) -> Outcome {
        let (a, b) = (Report::read(&self.a)?, Report::read(&self.b)?);
        if a.bench != b.bench {
            let problem =
                format!("one is of bench {}, the other of bench {}; compare two of a kind", a.bench, b.bench);
            return Err(Problem::usage(problem));
        }
        if let Some(difference) = different_loads(&a, &b) {
            context.out.note(&format!("the loads differ: {difference}"));
        }
        let columns = [
            column("FIGURE", |change: &Change, _| change.figure.clone()),
            right(column("A", |change: &Change, _| change.a.to_string())),
            right(column("B", |change: &Change, _| change.b.to_string())),
            right(column("CHANGE", |change: &Change, _| {
                change.percent.map(|percent| format!("{percent:+.1}%")).unwrap_or_default()
            })),
        ];
        context.out.list("changes", &changes(&a, &b), &columns, None)?;
        Ok(Exit::Done)
    }
}

/// What is not the same about two loads.
fn different_loads(a: &Report, b: &Report) -> Option<String> {
    let named = [
        ("store", a.store.clone(), b.store.clone()),
        ("tasks", a.tasks.to_string(), b.tasks.to_string()),
        ("slots", a.slots.to_string(), b.slots.to_string()),
        ("lanes", a.lanes.to_string(), b.lanes.to_string()),
    ];
    let differ: Vec<_> = named
        .iter()
        .filter(|(_, a, b)| a != b)
        .map(|(name, a, b)| format!("{name} is {a} in the first and {b} in the second"))
        .collect();
    (!differ.is_empty()).then(|| differ.join(", "))
}

/// The figures that both have.
fn changes(a: &Report, b: &Report) -> Vec<Change> {
    let both = a.figures.0.iter().filter_map(|(name, a)| Some((name, *a, *b.figures.0.get(name)?)));
    both.map(|(name, a, b)| {
        let percent = (a != 0.0).then(|| ((b - a) / a * 1_000.0).round() / 10.0);
        Change { figure: name.clone(), a, b, percent }
    })
    .collect()
}

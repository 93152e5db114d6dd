//! Settings as flags: made from the table, so that none can be forgotten.

use std::marker::PhantomData;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::table::{Group, SETTINGS, Setting};

/// A setting that was given as a flag.
pub type Given = (&'static Setting, String);

/// The flags of one group of settings, to be flattened into a command.
#[derive(Clone, Debug)]
pub struct Flags<G> {
    pub given: Vec<Given>,
    group: PhantomData<G>,
}

/// Names a group of settings as a type.
pub trait Grouped {
    const GROUP: Group;
    const HEADING: &'static str;
}

/// The settings that every command takes.
#[derive(Clone, Debug)]
pub struct Common;
/// The settings of commands that run tasks.
#[derive(Clone, Debug)]
pub struct Working;
/// The settings of commands that serve HTTP.
#[derive(Clone, Debug)]
pub struct Serving;

impl Grouped for Common {
    const GROUP: Group = Group::Common;
    const HEADING: &'static str = "Global options";
}
impl Grouped for Working {
    const GROUP: Group = Group::Working;
    const HEADING: &'static str = "Worker settings";
}
impl Grouped for Serving {
    const GROUP: Group = Group::Serving;
    const HEADING: &'static str = "Server settings";
}

fn of<G: Grouped>() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.group == G::GROUP)
}

fn flag<G: Grouped>(setting: &'static Setting) -> Arg {
    let is_common = G::GROUP == Group::Common;
    let flag = Arg::new(setting.key)
        .long(setting.flag)
        .value_name(setting.form.placeholder())
        .help(capitalised(setting.help))
        .help_heading(G::HEADING)
        .global(is_common)
        // Few need these; `--help` shows them, `-h` does not.
        .hide_short_help(is_common && !matches!(setting.key, "store.url" | "server.url"));
    if setting.key == "store.url" { flag.visible_alias("database-url") } else { flag }
}

fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

impl<G: Grouped> FromArgMatches for Flags<G> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |setting: &Setting| matches.get_one::<String>(setting.key).cloned();
        let given = of::<G>().filter_map(|setting| Some((setting, value(setting)?))).collect();
        Ok(Self { given, group: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<G: Grouped> Args for Flags<G> {
    fn augment_args(command: Command) -> Command {
        command.args(of::<G>().map(flag::<G>))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

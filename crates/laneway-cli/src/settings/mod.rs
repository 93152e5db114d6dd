//! Settings: one table, and the layers that decide each value.
//!
//! `table.rs` lists every setting once, with its names, its range and its help; flags, environment, files, `config` and
//! the page `docs/configuration.md` all come from it. `layers.rs` decides which layer wins and remembers where each value
//! came from. A value is checked when it is read, wherever it came from, so that every mistake names its place.

mod file;
mod flags;
mod layers;
mod reference;
mod table;
mod value;

pub use file::{FILE_NAME, nearest, search_path};
pub use flags::{Common, Flags, Given, Serving, Working};
pub use layers::{Origin, Settings, Sources, Value};
pub use reference::{reference_page, template};
pub use table::{SETTINGS, find};

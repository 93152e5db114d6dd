//! Aligned text: one line per row, however long a cell is.

use console::{Alignment, measure_text_width, pad_str, truncate_str};

use super::text;

const GAP: &str = "  ";

/// Rows below their heads. Lines that are wider than the terminal are cut; a pipe gets everything.
pub fn aligned(heads: &[(&str, bool)], rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| text::clean(cell)).collect()).collect();
    let widths: Vec<_> = (0..heads.len())
        .map(|place| {
            let cells = rows.iter().map(|row| measure_text_width(&row[place]));
            cells.chain([measure_text_width(heads[place].0)]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<_> = cells
            .iter()
            .zip(heads)
            .zip(&widths)
            .map(|((cell, (_, right)), width)| {
                let side = if *right { Alignment::Right } else { Alignment::Left };
                pad_str(cell, *width, side, None).into_owned()
            })
            .collect();
        let line = padded.join(GAP);
        let line = width.map_or(line.clone(), |width| truncate_str(&line, width, "…").into_owned());
        format!("{}\n", line.trim_end())
    };
    let head = line(heads.iter().map(|(title, _)| *title).collect());
    let body: String = rows.iter().map(|row| line(row.iter().map(String::as_str).collect())).collect();
    console::style(head.trim_end()).bold().to_string() + "\n" + &body
}

/// Fields below one another, with their names on the left. A field without a value is left out.
pub fn fields(fields: &[(&str, String)]) -> String {
    let shown: Vec<_> = fields.iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = shown.iter().map(|(name, _)| measure_text_width(name)).max().unwrap_or(0);
    let indent = format!("\n{}", " ".repeat(width + GAP.len()));
    let field = |(name, value): &(&str, String)| {
        let value = value.lines().map(text::clean).collect::<Vec<_>>().join(&indent);
        format!("{}{GAP}{value}\n", pad_str(name, width, Alignment::Left, None))
    };
    shown.into_iter().map(field).collect()
}

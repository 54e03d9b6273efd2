//! Lists: what can be probed, which modules there are, what is armed. One row or one JSON object per item.

mod held;
mod offered;
mod replaced;

use super::table::{Align, Table};
use serde::Serialize;
use std::io::{self, Write};

pub use held::{ArmedSite, DetachedSession, KeptMemory};
pub use offered::{ListedLine, ListedModule, ListedSite, ListedUsdt};
pub use replaced::{ReplacedFunction, RestoredFunction};

/// Something that is shown as a row of a table or as an object of JSON.
pub trait Row: Serialize {
    /// The object's `"type"`.
    const TYPE: &'static str;

    /// The table's headings.
    const COLUMNS: &'static [(&'static str, Align)];

    /// The cells under the headings.
    fn cells(&self) -> Vec<String>;

    /// A line under the row, for what does not fit into columns.
    fn note(&self) -> Option<String> {
        None
    }
}

#[derive(Serialize)]
struct Typed<'a, R> {
    r#type: &'static str,
    #[serde(flatten)]
    row: &'a R,
}

/// Writes `rows` as JSON lines, and flushes.
///
/// # Errors
/// Those of `output`.
pub fn json_rows<R: Row>(output: &mut dyn Write, rows: &[R]) -> io::Result<()> {
    json_rows_after(output, rows, 0)
}

/// As [`json_rows`], behind as many lines as `before` says.
///
/// # Errors
/// Those of `output`.
pub fn json_rows_after<R: Row>(output: &mut dyn Write, rows: &[R], before: usize) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let object = Typed { r#type: R::TYPE, row };
        if before + index == 0 {
            output.write_all(super::json::first_line(&object)?.as_bytes())?;
        } else {
            crate::terminal::write_json(output, &object)?;
            output.write_all(b"\n")?;
        }
    }
    output.flush()
}

/// Writes `rows` as a table, at most `width` characters a line if there is a width, and flushes.
///
/// # Errors
/// Those of `output`.
pub fn text_rows<R: Row>(output: &mut dyn Write, rows: &[R], width: Option<usize>) -> io::Result<()> {
    let mut table = Table::new(R::COLUMNS);
    for row in rows {
        table.row(row.cells());
        if let Some(note) = row.note() {
            table.note(&note);
        }
    }
    table.write(output, width)?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_session::name::Source;

    fn sites() -> [ListedSite; 2] {
        let site = ListedSite {
            module: "libc.so.6".to_owned(),
            function: "malloc".to_owned(),
            source: Source::default(),
            aliases: vec!["__libc_malloc".to_owned()],
            address: 0x9d0a0,
            size: 1234,
            mechanism: Some("jump"),
            usdt: None,
            code: None,
            reason: None,
            no_return_code: None,
            no_return: None,
        };
        let refused = ListedSite {
            function: "_setjmp".to_owned(),
            aliases: vec![],
            mechanism: None,
            code: Some("too_short"),
            reason: Some("too short".to_owned()),
            no_return_code: Some("returns_oddly"),
            no_return: Some("returns twice".to_owned()),
            ..site.clone()
        };
        [site, refused]
    }

    #[test]
    fn rows_become_a_table() {
        let mut output = Vec::new();
        text_rows(&mut output, &sites(), Some(80)).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            "\
ADDRESS   SIZE  BY    FUNCTION
0x9d0a0  1,234  jump  libc.so.6:malloc
0x9d0a0  1,234  -     libc.so.6:_setjmp
    too short; no return probe: returns twice
"
        );
    }

    #[test]
    fn rows_become_json_objects() {
        let mut output = Vec::new();
        json_rows(&mut output, &sites()).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            concat!(
                r#"{"type":"site","version":1,"module":"libc.so.6","function":"malloc","aliases":["__libc_malloc"],"address":643232,"size":1234,"mechanism":"jump"}"#,
                "\n",
                r#"{"type":"site","module":"libc.so.6","function":"_setjmp","address":643232,"size":1234,"mechanism":null,"code":"too_short","reason":"too short","no_return_code":"returns_oddly","no_return":"returns twice"}"#,
                "\n",
            )
        );
    }
}

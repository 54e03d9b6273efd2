//! Tables that fit a terminal: columns as wide as their content, long names shortened in the middle.

pub(super) use crate::terminal::printable;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// The narrowest a shortened column gets.
const NARROWEST: usize = 12;

/// Rows of text under headings. Columns whose heading is aligned left give way when the table is too wide.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
    /// Lines under rows, by row.
    notes: BTreeMap<usize, Vec<String>>,
}

impl Table {
    /// A table with these headings and no rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self { columns: columns.iter().map(|&(h, a)| (h.to_owned(), a)).collect(), ..Self::default() }
    }

    /// Adds a row. Cells without a heading are left out, missing ones are empty. Control characters are replaced:
    /// names come from files that anybody can write, and a terminal obeys escape sequences.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|c| printable(&c));
        self.rows.push(cells.chain(std::iter::repeat(String::new())).take(self.columns.len()).collect());
    }

    /// Puts a line under the last row. It is never shortened.
    pub fn note(&mut self, text: &str) {
        if let Some(row) = self.rows.len().checked_sub(1) {
            self.notes.entry(row).or_default().push(printable(text));
        }
    }

    /// Puts lines under the last row, each as [`Table::note`] does.
    pub fn notes(&mut self, lines: &[String]) {
        lines.iter().for_each(|line| self.note(line));
    }

    /// Writes headings and rows, at most `width` characters a line if there is a width.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn write(&self, output: &mut dyn Write, width: Option<usize>) -> io::Result<()> {
        let widths = self.widths(width);
        let headings: Vec<&str> = self.columns.iter().map(|(h, _)| h.as_str()).collect();
        self.line(output, &headings, &widths)?;
        for (i, row) in self.rows.iter().enumerate() {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.line(output, &cells, &widths)?;
            for note in self.notes.get(&i).into_iter().flatten() {
                writeln!(output, "    {note}")?;
            }
        }
        Ok(())
    }

    fn line(&self, output: &mut dyn Write, cells: &[&str], widths: &[usize]) -> io::Result<()> {
        let mut line = String::new();
        for ((cell, &width), &(_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            let cell = shorten(cell, width);
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}")),
                Align::Right => line.push_str(&format!("{cell:>width$}")),
            }
        }
        writeln!(output, "{}", line.trim_end())
    }

    /// The width of every column, in characters.
    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let natural = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.map(String::as_str).chain([self.columns[i].0.as_str()]).map(|c| c.chars().count()).max()
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(|i| natural(i).unwrap_or(0)).collect();
        let Some(limit) = limit else { return widths };
        let gaps = 2 * widths.len().saturating_sub(1);
        // The widest name gives way first, so that short module names stay whole beside long C++ names.
        while widths.iter().sum::<usize>() + gaps > limit {
            let names = (0..widths.len()).filter(|&i| self.columns[i].1 == Align::Left);
            match names.max_by_key(|&i| widths[i]) {
                Some(widest) if widths[widest] > NARROWEST => widths[widest] -= 1,
                _ => break,
            }
        }
        widths
    }
}

/// `text` in at most `width` characters: what is too long loses its middle, because C++ and Rust names differ at
/// both ends.
pub(super) fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let head = kept / 2;
    let tail = kept - head;
    let mut short: String = text.chars().take(head).collect();
    short.push('…');
    short.extend(text.chars().skip(length - tail));
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(table: &Table, width: Option<usize>) -> String {
        let mut output = Vec::new();
        table.write(&mut output, width).unwrap();
        String::from_utf8(output).unwrap()
    }

    fn example() -> Table {
        let mut table =
            Table::new(&[("HITS", Align::Right), ("MODULE", Align::Left), ("FUNCTION", Align::Left)]);
        table.row(["1,234".into(), "libc.so.6".into(), "malloc".into()]);
        table.row([
            "7".into(),
            "server".into(),
            "ns::Parser<std::allocator<char>>::parse(std::string)".into(),
        ]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_content() {
        assert_eq!(
            written(&example(), None),
            " HITS  MODULE     FUNCTION\n\
             1,234  libc.so.6  malloc\n\
             \u{20}   7  server     ns::Parser<std::allocator<char>>::parse(std::string)\n"
        );
    }

    #[test]
    fn the_longest_names_lose_their_middle_on_a_narrow_terminal() {
        assert_eq!(
            written(&example(), Some(50)),
            " HITS  MODULE     FUNCTION\n\
             1,234  libc.so.6  malloc\n\
             \u{20}   7  server     ns::Parser<std:…rse(std::string)\n"
        );
        for width in 40..90 {
            assert!(written(&example(), Some(width)).lines().all(|l| l.chars().count() <= width), "{width}");
        }
    }

    #[test]
    fn terminals_are_not_given_orders_by_names() {
        let mut table = Table::new(&[("FUNCTION", Align::Left)]);
        table.row(["\u{1b}[2Jf\n".to_owned()]);
        assert_eq!(written(&table, None), "FUNCTION\n\u{fffd}[2Jf\u{fffd}\n");
    }

    #[test]
    fn shortening_keeps_both_ends() {
        for (text, width, expected) in [
            ("abcdefgh", 8, "abcdefgh"),
            ("abcdefgh", 7, "abc…fgh"),
            ("abcdefgh", 1, "…"),
            ("äöüßäöüß", 5, "äö…üß"),
        ] {
            assert_eq!(shorten(text, width), expected);
        }
    }
}

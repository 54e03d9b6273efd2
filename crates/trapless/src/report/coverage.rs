//! How much of a module can be probed without a trap: a row or a JSON object each for its entries and its instructions.

use super::listing::Row;
use super::table::Align;
use serde::Serialize;

/// How many sites there are, and what they can be had by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// File name of the module.
    pub module: String,
    /// `entries` of functions, or `instructions`.
    pub of: &'static str,
    /// How many were looked at.
    pub sites: usize,
    /// How many of them by a plain jump.
    pub jump: usize,
    /// How many by a short one.
    pub short: usize,
    /// How many not without a trap.
    pub refused: usize,
    /// Why not, the most frequent reason first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<KeptOut>,
}

/// Sites that have one reason in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptOut {
    /// The name of the reason.
    pub code: &'static str,
    /// The reason.
    pub reason: String,
    /// How many sites.
    pub sites: usize,
}

impl Row for Coverage {
    const TYPE: &'static str = "coverage";
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("NO TRAP", Align::Right),
        ("SITES", Align::Right),
        ("JUMP", Align::Right),
        ("SHORT", Align::Right),
        ("REFUSED", Align::Right),
        ("OF", Align::Left),
        ("MODULE", Align::Left),
    ];

    fn cells(&self) -> Vec<String> {
        let number = |n: usize| super::count(n as u64);
        vec![
            percent(self.sites - self.refused, self.sites),
            number(self.sites),
            number(self.jump),
            number(self.short),
            number(self.refused),
            self.of.to_owned(),
            self.module.clone(),
        ]
    }

    fn note(&self) -> Option<String> {
        let reason = |reason: &KeptOut| format!("{}: {}", super::count(reason.sites as u64), reason.reason);
        let reasons: Vec<String> = self.reasons.iter().map(reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// How many in a hundred, never rounded up to all of them.
fn percent(some: usize, all: usize) -> String {
    if all == 0 {
        return "-".to_owned();
    }
    let hundredths = some as u128 * 10_000 / all as u128;
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::super::{json_rows, text_rows};
    use super::*;

    #[test]
    fn what_is_refused_is_said_and_never_rounded_away() {
        let refused = |sites| KeptOut { code: "no_room", reason: "there is no room".to_owned(), sites };
        let some = Coverage {
            module: "libc.so.6".to_owned(),
            of: "entries",
            sites: 100_000,
            jump: 99_000,
            short: 999,
            refused: 1,
            reasons: vec![refused(1)],
        };
        let none = Coverage { sites: 0, jump: 0, short: 0, refused: 0, reasons: vec![], ..some.clone() };
        let all = Coverage { sites: 3, jump: 3, of: "instructions", ..none.clone() };
        let rows = [some, none, all];
        let mut text = Vec::new();
        text_rows(&mut text, &rows, Some(80)).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(" 99.99 %  100,000  99,000    999        1  entries"), "{text}");
        assert!(text.contains("1: there is no room"), "{text}");
        assert!(text.contains("100.00 %        3       3      0        0  instructions"), "{text}");
        assert!(text.contains("\n       -        0"), "{text}");
        let mut json = Vec::new();
        json_rows(&mut json, &rows[..1]).unwrap();
        assert_eq!(
            String::from_utf8(json).unwrap(),
            concat!(
                r#"{"type":"coverage","version":1,"module":"libc.so.6","of":"entries","sites":100000,"jump":99000,"short":999,"#,
                r#""refused":1,"reasons":[{"code":"no_room","reason":"there is no room","sites":1}]}"#,
                "\n"
            )
        );
    }
}

//! Puts the rows of all entries in order.

use std::ops::Range;

use super::{
    UnwindRow, UnwindRows,
    program::{Compiler, Span},
};

/// Entries without overlap, in order of their addresses.
#[derive(Default)]
pub(super) struct Spans(Vec<Span>);

impl Spans {
    /// Adds entries where none are yet. What is there already is believed, and so is the one that begins first.
    pub(super) fn add(&mut self, mut spans: Vec<Span>) {
        spans.sort_by_key(|span| span.range.start);
        let mut end = 0;
        spans.retain_mut(|span| {
            // What is left of an entry begins behind the one before it.
            span.range.start = span.range.start.max(end);
            end = end.max(span.range.end);
            !span.range.is_empty()
        });
        if self.0.is_empty() {
            self.0 = spans;
            return;
        }
        spans.retain(|span| !self.overlaps(&span.range));
        self.0.append(&mut spans);
        self.0.sort_by_key(|span| span.range.start);
    }

    /// Whether an entry tells of any byte of `range`.
    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.0.partition_point(|span| span.range.start < range.end);
        before.checked_sub(1).is_some_and(|last| self.0[last].range.end > range.start)
    }

    /// All rows, for code that lies in `code`, or where there are entries.
    pub(super) fn rows(self, compiler: Compiler, code: Range<u64>) -> UnwindRows {
        let first = self.0.first().map_or(code.start, |span| span.range.start.min(code.start));
        // Looked up by 256 bytes, so that parts of a table can be.
        let base = first & !0xff;
        let farthest = base.saturating_add(u32::MAX.into());
        let last = self.0.last().map_or(code.end, |span| span.range.end.max(code.end)).min(farthest);
        let mut rows: Vec<UnwindRow> = Vec::with_capacity(compiler.rows.len() + self.0.len());
        let mut defects = Vec::new();
        let mut end = None;
        let mut push = |offset: u32, rule: u32| {
            if rows.last().map_or(0, |row| row.rule) != rule {
                rows.push(UnwindRow { offset, rule });
            }
        };
        for span in &self.0 {
            let offset = |address: u64| u32::try_from(address - base).ok();
            let (Some(start), Some(last)) = (offset(span.range.start), offset(span.range.end)) else {
                defects
                    .push(format!("unwind table: code at {:#x} is too far from the rest", span.range.start));
                break;
            };
            if let Some(end) = end.filter(|&end| end != start) {
                push(end, 0);
            }
            let own = &compiler.rows[span.rows.clone()];
            // Those before the start of what is left of the entry end there, but for the last one.
            let skipped = own.partition_point(|row| row.0 <= span.range.start).saturating_sub(1);
            for (index, &(address, rule)) in own.iter().enumerate().skip(skipped) {
                let address = address.max(span.range.start);
                // A row that the next one replaces at once.
                if own.get(index + 1).is_some_and(|next| next.0 <= address) {
                    continue;
                }
                if let Some(at) = offset(address).filter(|&at| at < last) {
                    push(at, rule);
                }
            }
            end = Some(last);
        }
        if let Some(end) = end {
            push(end, 0);
        }
        UnwindRows { base, end: last.max(base), rows, rules: compiler.rules, defects }
    }
}

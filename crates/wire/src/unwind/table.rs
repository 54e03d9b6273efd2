//! The rows of one file, in the form of the area.

use super::{BUCKET_BITS, RULE_BITS, Rule};

/// The rows of a file; [`Area::add`](super::Area::add) writes them to an area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub(super) index: Vec<u32>,
    pub(super) rows: Vec<u32>,
    pub(super) rules: Vec<Rule>,
    pub(super) length: u32,
}

/// There is more of something than the layout has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("unwind tables have more rows, rules or bytes than their layout has room for")
    }
}

impl std::error::Error for TooLarge {}

impl Table {
    /// The table of `rows`: keys, and numbers of the rules that hold from there on. Keys ascend, and the last row's is the length: what it
    /// says is not looked at. A row with a number that has no rule says that there is none. Rule 0 should be that one.
    ///
    /// # Errors
    /// There are too many rules or rows.
    ///
    /// ```
    /// use trapless_wire::unwind::{Base, Rule, Slot, Table};
    ///
    /// // push %rbp; …; pop %rbp; ret
    /// let called = Rule { ra: Slot(-8), ..Rule::frame(Base::Stack, 8) };
    /// let pushed = Rule { ra: Slot(-8), fp: Slot(-16), ..Rule::frame(Base::Stack, 16) };
    /// let table = Table::new([(0, 1), (1, 2), (9, 1), (10, 0)], vec![Rule::default(), called, pushed])?;
    /// assert_eq!(table.length(), 10);
    /// # Ok::<(), trapless_wire::unwind::TooLarge>(())
    /// ```
    pub fn new(rows: impl IntoIterator<Item = (u32, u32)>, rules: Vec<Rule>) -> Result<Table, TooLarge> {
        if rules.len() > 1 << RULE_BITS {
            return Err(TooLarge);
        }
        let none = rules.iter().position(|rule| *rule == Rule::default());
        let mut rules = rules;
        let none = none.unwrap_or_else(|| {
            rules.push(Rule::default());
            rules.len() - 1
        }) as u32;
        let mut table = Table { index: vec![], rows: vec![none], rules, length: 0 };
        let low = |key: u32| (key & ((1 << BUCKET_BITS) - 1)) << RULE_BITS;
        for (key, rule) in rows {
            debug_assert!(key >= table.length, "rows ascend");
            table.open_buckets(key >> BUCKET_BITS);
            table.length = key;
            let rule = if (rule as usize) < table.rules.len() { rule } else { none };
            table.rows.push(low(key) | rule);
        }
        // The last one is beyond what can be looked up, and where a bucket ends there it is in none.
        table.open_buckets(table.length.div_ceil(1 << BUCKET_BITS));
        if table.rules.len() > 1 << RULE_BITS || table.rows.len() > u32::MAX as usize {
            return Err(TooLarge);
        }
        Ok(table)
    }

    /// Begins all buckets up to this one.
    fn open_buckets(&mut self, bucket: u32) {
        let rows = self.rows.len() as u32;
        self.index.resize(self.index.len().max(bucket as usize + 1), rows);
    }

    /// Whether it tells of no code at all.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many bytes of code it tells of.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// How many bytes it takes in an area.
    pub fn size(&self) -> usize {
        let words = self.index.len() + self.rows.len();
        (words * size_of::<u32>()).next_multiple_of(8) + self.rules.len() * Rule::SIZE
    }
}

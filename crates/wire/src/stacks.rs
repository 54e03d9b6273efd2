//! The call stacks that a script has kept, as the tool reads them.

use crate::{ScriptLayout, Table, TableView, Words};

/// The table of stacks in a region that others write.
#[derive(Clone, Copy)]
pub struct KeptStacks<'a, W: ?Sized>(TableView<'a, W>);

impl<'a, W: Words + ?Sized> KeptStacks<'a, W> {
    /// Those of a script whose shared part is at `shared` of the region. `None`: it keeps none.
    ///
    /// ```
    /// use trapless_wire::{KeptStacks, ScriptLayout, ScriptSizes, Words};
    /// struct Nothing;
    /// impl Words for Nothing {
    ///     fn word(&self, _: u64) -> u64 { 0 }
    /// }
    /// let layout = ScriptLayout::new(&ScriptSizes { frames: 5, ..ScriptSizes::default() }).unwrap();
    /// let stacks = KeptStacks::of(&layout, &Nothing, 0).unwrap();
    /// assert_eq!((stacks.get(7), stacks.count(), stacks.lost()), (None, 0, 0));
    /// ```
    pub fn of(layout: &ScriptLayout, words: &'a W, shared: u64) -> Option<Self> {
        let (at, table): (u64, Table) = layout.stacks?;
        Some(Self(TableView::new(words, shared + at, table)))
    }

    /// The addresses of a stack by its number, the innermost first. Those of callers are return addresses. `None`: there is none of this
    /// number.
    pub fn get(&self, number: u64) -> Option<Vec<u64>> {
        let words = self.0.get(&[number]).ok()??;
        let (count, frames) = words.split_first()?;
        Some(frames[..frames.len().min(usize::try_from(*count).ok()?)].to_vec())
    }

    /// The numbers of all of them.
    pub fn numbers(&self) -> Vec<u64> {
        let mut numbers = Vec::new();
        self.0.each(|entry| numbers.extend(entry.key.first()));
        numbers
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.live()
    }

    /// How many hits had one that could not be kept: their number is 0.
    pub fn lost(&self) -> u64 {
        self.0.full() + self.0.contended()
    }
}

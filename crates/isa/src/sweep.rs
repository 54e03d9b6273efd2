//! What reading a piece of code tells of where control can arrive.

use alloc::vec::Vec;

/// What was found in a piece of code, mostly one function. To be used again for the next one, for its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Every address that a direct branch, a call or a jump table leads to, and those that the code takes and may use in
    /// another way, less the turns. They may be addresses of data.
    pub targets: Vec<u64>,
    /// Where direct branches that are no calls lead inside the piece.
    pub turns: Vec<u64>,
    /// The addresses of other code that the code names, other than by branches. They may be addresses of data.
    pub taken: Vec<u64>,
    /// The addresses from which the code computes places to jump to, or for others to. They may be addresses of data, too.
    pub computed: Vec<u64>,
    /// The same, of constants that may be such addresses.
    pub guessed: Vec<u64>,
    /// Where such places were found out, and are among the targets.
    pub told: Vec<Told>,
    /// Whether it may jump to a place that it computes from what somebody gives it: from what it loads, its arguments or results of calls. Only
    /// a sweep that knows what leads into the code looks closely.
    pub leads_around: bool,
    /// Whether one of its jumps to what a table or a register says may lead to its first instruction, or to the one behind a landing place of
    /// indirect branches there.
    pub begins_again: bool,
    /// Whether `turns` are all there are.
    pub view: View,
}

/// A stretch of code that computes a place, of which it says where it is: as long as control arrives nowhere in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The address that it is computed from.
    pub from: u64,
    /// The stretch: behind this address.
    pub behind: u64,
    /// Up to this one, that of its last instruction.
    pub last: u64,
}

/// How much of a piece of code was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Each of its instructions, the first at its start, the last up to its end.
    Whole,
    /// Less: some bytes did not decode, or nobody has looked.
    #[default]
    Partial,
}

impl Swept {
    /// Forgets the piece before. The memory stays.
    pub fn clear(&mut self) {
        self.targets.clear();
        self.turns.clear();
        self.taken.clear();
        self.computed.clear();
        self.guessed.clear();
        self.told.clear();
        self.leads_around = false;
        self.begins_again = false;
        self.view = View::Partial;
    }
}

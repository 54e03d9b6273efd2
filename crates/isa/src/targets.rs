//! Every known address of a module that control can arrive at from elsewhere, a bit for each byte of its code.
//!
//! A large program has millions of branches. Sorted, their targets would take eight bytes each and seconds of sorting; bits
//! are set by all threads that read the code at once, and asked for with a look at one word.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

const BITS: u64 = u64::BITS as u64;
/// In bytes, of any instruction set.
const LONGEST_INSTRUCTION: u64 = 15;

/// Bits for the addresses of one range.
#[derive(Clone, Debug)]
struct Span<W> {
    /// Where it begins.
    start: u64,
    /// Where control arrives.
    arrivals: Vec<W>,
    /// Where a branch of the same function may lead, if it leads there at all.
    turns: Vec<W>,
}

impl<W> Span<W> {
    /// Index of the word for `address`, and its bit there.
    fn place(&self, address: u64) -> Option<(usize, u64)> {
        let offset = address.checked_sub(self.start)?;
        let word = usize::try_from(offset / BITS).ok().filter(|word| *word < self.arrivals.len())?;
        Some((word, 1 << (offset % BITS)))
    }
}

/// The span among `spans`, which are sorted, that holds `address`, and the address's place in it.
fn find<W>(spans: &[Span<W>], address: u64) -> Option<(&Span<W>, usize, u64)> {
    let span = &spans[spans.partition_point(|span| span.start <= address).checked_sub(1)?];
    let (word, bit) = span.place(address)?;
    Some((span, word, bit))
}

/// [`BranchTargets`] in the making, by several threads.
#[derive(Debug)]
pub struct Arrivals {
    spans: Vec<Span<AtomicU64>>,
}

impl Arrivals {
    /// Nothing arrives yet anywhere in `code`.
    pub fn over(code: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<_> = code.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                // So close that they share a word.
                Some(last) if range.start <= last.end.saturating_add(BITS) => {
                    last.end = last.end.max(range.end)
                }
                _ => joined.push(range),
            }
        }
        let empty = |words: u64| (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let span = |range: Range<u64>| {
            let words = (range.end - range.start).div_ceil(BITS);
            Span { start: range.start, arrivals: empty(words), turns: empty(words) }
        };
        Self { spans: joined.into_iter().map(span).collect() }
    }

    /// Control may arrive at `address`. It is forgotten where no code is.
    pub fn insert(&self, address: u64) {
        if let Some((span, word, bit)) = find(&self.spans, address) {
            set(&span.arrivals[word], bit);
        }
    }

    /// A branch that is no call leads to `address`, and stands in the same function.
    pub fn insert_turn(&self, address: u64) {
        if let Some((span, word, bit)) = find(&self.spans, address) {
            set(&span.arrivals[word], bit);
            set(&span.turns[word], bit);
        }
    }

    /// Not all branches of the function at `function` were seen: some may lead back to its entry, before or behind the landing
    /// place of indirect branches that it may begin with.
    pub fn may_turn_to_entry(&self, function: u64) {
        for address in function..function.saturating_add(LONGEST_INSTRUCTION + 1) {
            if let Some((span, word, bit)) = find(&self.spans, address) {
                set(&span.turns[word], bit);
            }
        }
    }

    /// What was inserted.
    pub fn targets(self) -> BranchTargets {
        let plain = |words: Vec<AtomicU64>| words.into_iter().map(AtomicU64::into_inner).collect();
        let plain = |span: Span<AtomicU64>| Span {
            start: span.start,
            arrivals: plain(span.arrivals),
            turns: plain(span.turns),
        };
        let spans = self.spans.into_iter().map(plain).collect();
        BranchTargets { known: Arc::new(Known { spans, ..Known::default() }), bias: 0 }
    }
}

/// Most targets have more than one branch, and a plain look is cheaper than a locked change.
fn set(word: &AtomicU64, bit: u64) {
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Every known address of a module that control can arrive at from elsewhere: targets of direct branches, jump
/// tables, landing pads, relocated code pointers.
///
/// What is known holds for the file, wherever it is mapped. So it is kept once, by the file's addresses, and seen from each of the places
/// ([`Self::moved_by`]).
#[derive(Clone, Debug, Default)]
pub struct BranchTargets {
    known: Arc<Known>,
    /// What is added to an address in there for the one that is asked for.
    bias: u64,
}

/// All addresses are the file's.
#[derive(Clone, Debug, Default)]
struct Known {
    /// By address.
    spans: Vec<Span<u64>>,
    computed: Vec<u64>,
    /// Functions that may begin again by other ways than their own direct branches.
    beginning_again: Vec<u64>,
    /// Functions that read no flags which they are called with.
    reads_no_flags: Vec<u64>,
    /// Functions whose callers read no flags which they return with.
    returns_no_flags: Vec<u64>,
    /// Whether nobody reads flags across a call by a pointer.
    pointers_keep_no_flags: bool,
}

impl BranchTargets {
    /// Those that `addresses` names. Nothing is known of where the branches stand.
    pub fn new(addresses: Vec<u64>) -> Self {
        let all = Arrivals::over(addresses.iter().map(|&address| address..address.saturating_add(1)));
        // Any of them may be one's own.
        addresses.iter().for_each(|&address| all.insert_turn(address));
        all.targets()
    }

    /// The same, with functions that control may enter at a place that is computed when the program runs: their first
    /// addresses.
    #[must_use]
    pub fn with_computed(mut self, functions: Vec<u64>) -> Self {
        let functions = self.in_file(functions);
        Arc::make_mut(&mut self.known).computed = functions;
        self
    }

    /// The same, with functions whose own direct branches do not tell all ways back to their entries: a jump table may lead there, or a branch
    /// in bytes that are another function's, too. Their first addresses.
    #[must_use]
    pub fn with_beginning_again(mut self, functions: Vec<u64>) -> Self {
        let functions = self.in_file(functions);
        Arc::make_mut(&mut self.known).beginning_again = functions;
        self
    }

    /// The same, with the first addresses of functions that read no flags which they are `called` with, and of those whose callers read
    /// none which they have `returned` with.
    #[must_use]
    pub fn with_unread_flags(mut self, called: Vec<u64>, returned: Vec<u64>) -> Self {
        let (called, returned) = (self.in_file(called), self.in_file(returned));
        let known = Arc::make_mut(&mut self.known);
        (known.reads_no_flags, known.returns_no_flags) = (called, returned);
        self
    }

    /// The same, where nobody reads flags across a call by a pointer: neither who is called, nor, behind it, who calls.
    #[must_use]
    pub fn with_no_flags_across_pointers(mut self) -> Self {
        Arc::make_mut(&mut self.known).pointers_keep_no_flags = true;
        self
    }

    /// Some addresses as they are kept: each once, in order.
    fn in_file(&self, mut addresses: Vec<u64>) -> Vec<u64> {
        addresses.iter_mut().for_each(|address| *address = address.wrapping_sub(self.bias));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The same targets of a module that lies `bias` bytes further on. Nothing is copied.
    #[must_use]
    pub fn moved_by(&self, bias: u64) -> Self {
        Self { known: Arc::clone(&self.known), bias: self.bias.wrapping_add(bias) }
    }

    /// Whether control may arrive at any instruction of `function`.
    pub fn is_computed(&self, function: u64) -> bool {
        self.known.computed.binary_search(&function.wrapping_sub(self.bias)).is_ok()
    }

    /// Whether `function` may begin again by another way than its own direct branches.
    pub fn may_begin_again(&self, function: u64) -> bool {
        self.known.beginning_again.binary_search(&function.wrapping_sub(self.bias)).is_ok()
    }

    /// Whether a function begins at `address` of which it is known that it reads no flags which it is called with.
    pub fn reads_no_flags(&self, address: u64) -> bool {
        self.known.reads_no_flags.binary_search(&address.wrapping_sub(self.bias)).is_ok()
    }

    /// Whether it is known that no caller of the function that begins at `address` reads flags which it returns with.
    pub fn returns_no_flags(&self, address: u64) -> bool {
        self.known.returns_no_flags.binary_search(&address.wrapping_sub(self.bias)).is_ok()
    }

    /// Whether it is known that nobody reads flags across a call by a pointer.
    pub fn pointers_keep_no_flags(&self) -> bool {
        self.known.pointers_keep_no_flags
    }

    /// The first target strictly between `start` and `end`: an instruction boundary or not, a patch over
    /// `start..end` would be entered there.
    pub fn first_inside(&self, start: u64, end: u64) -> Option<u64> {
        let first = start.checked_add(1).filter(|&first| first < end)?.wrapping_sub(self.bias);
        let last = (end - 1).wrapping_sub(self.bias);
        let found = match first <= last {
            true => self.known.first_in(first, last),
            // A bias that wraps around changes the order.
            false => self.known.first_in(first, u64::MAX).or_else(|| self.known.first_in(0, last)),
        };
        found.map(|target| target.wrapping_add(self.bias))
    }

    /// Whether control can arrive exactly at `address`.
    pub fn contains(&self, address: u64) -> bool {
        let found = find(&self.known.spans, address.wrapping_sub(self.bias));
        found.is_some_and(|(span, word, bit)| span.arrivals[word] & bit != 0)
    }

    /// How many addresses there are.
    pub fn len(&self) -> usize {
        let set =
            |span: &Span<u64>| span.arrivals.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.known.spans.iter().map(set).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a direct branch that is no call may lead to `entry` from its own function. `entry`: the function's first
    /// instruction, or the second where it begins with a landing place of indirect branches.
    pub fn is_turned_to(&self, entry: u64) -> bool {
        let both = |(span, word, bit): (&Span<u64>, usize, u64)| span.arrivals[word] & span.turns[word] & bit;
        find(&self.known.spans, entry.wrapping_sub(self.bias)).map_or(0, both) != 0
    }
}

impl Known {
    /// The first target from `first` to `last`.
    fn first_in(&self, first: u64, last: u64) -> Option<u64> {
        let begun = self.spans.partition_point(|span| span.start <= first).saturating_sub(1);
        self.spans[begun..].iter().take_while(|span| span.start <= last).find_map(|span| {
            let from = first.max(span.start) - span.start;
            let word = usize::try_from(from / BITS).ok()?;
            let mut mask = u64::MAX << (from % BITS);
            for (index, bits) in span.arrivals.iter().enumerate().skip(word) {
                let at = span.start.checked_add(index as u64 * BITS).filter(|&at| at <= last)?;
                let found = bits & mask;
                if found != 0 {
                    return at.checked_add(found.trailing_zeros().into()).filter(|&target| target <= last);
                }
                mask = u64::MAX;
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn targets_are_found_wherever_they_lie() {
        let near = [0x1000, 0x1001, 0x103f, 0x1040, 0x1041, 0x1080, 0x10ff];
        let far = [0, 63, 64, 1 << 20, (1 << 63) + 5, u64::MAX - 1];
        let mut all: Vec<u64> = near.into_iter().chain(far).collect();
        let targets = BranchTargets::new(all.clone());
        all.sort_unstable();
        for start in all.iter().flat_map(|&at| at.saturating_sub(70)..=at.saturating_add(2)) {
            assert_eq!(targets.contains(start), all.binary_search(&start).is_ok(), "{start:#x}");
            for length in [1, 2, 5, 15, 64, 65, 200] {
                let end = start.saturating_add(length);
                let expected = all.iter().copied().find(|&at| at > start && at < end);
                assert_eq!(targets.first_inside(start, end), expected, "{start:#x}..{end:#x}");
            }
        }
        assert_eq!(BranchTargets::default().first_inside(0, u64::MAX), None);
        assert!(!BranchTargets::default().contains(0));
    }

    #[test]
    fn only_code_has_targets_and_the_bias_moves_them() {
        let code = [0x2000..0x2010, 0x1000..0x1009, 0x1008..0x1100, 0x3000..0x3000];
        let arrivals = Arrivals::over(code);
        for address in [0xfff, 0x1000, 0x10c0, 0x2004, 0x3000, 0x9000, u64::MAX] {
            arrivals.insert(address);
        }
        arrivals.insert_turn(0x1004);
        arrivals.may_turn_to_entry(0x2000);
        let bias = 0x2000_u64.wrapping_neg();
        let in_file =
            arrivals.targets().with_computed(vec![0x1000]).with_unread_flags(vec![0x2000], vec![0x1000]);
        let in_file = in_file.with_beginning_again(vec![0x2004]);
        let targets = in_file.moved_by(0x50).moved_by(bias.wrapping_sub(0x50));
        for (address, arrives, turns) in [
            (0xfff, false, false),
            (0x1000, true, false),
            (0x1004, true, true),
            (0x10c0, true, false),
            (0x2000, false, false),
            (0x2004, true, true),
            (0x3000, false, false),
        ] {
            let moved = bias.wrapping_add(address);
            assert_eq!(
                (targets.contains(moved), targets.is_turned_to(moved)),
                (arrives, turns),
                "{address:#x}"
            );
        }
        assert_eq!(targets.first_inside(4, u64::MAX), Some(0x1000_u64.wrapping_add(bias)));
        assert_eq!(targets.first_inside(3, u64::MAX), Some(4), "the file's 0x2004");
        assert_eq!(in_file.first_inside(0, u64::MAX), Some(0x1000), "it has not moved itself");
        assert!(targets.is_computed(0x1000_u64.wrapping_add(bias)) && !targets.is_computed(0x1000));
        assert!(!targets.is_computed(0x2000_u64.wrapping_add(bias)));
        assert!(targets.reads_no_flags(0x2000_u64.wrapping_add(bias)) && !targets.reads_no_flags(0x2000));
        assert!(!targets.reads_no_flags(0x1000_u64.wrapping_add(bias)));
        assert!(targets.returns_no_flags(0x1000_u64.wrapping_add(bias)) && !targets.returns_no_flags(0x1000));
        assert!(!targets.returns_no_flags(0x2000_u64.wrapping_add(bias)));
        assert!(!targets.pointers_keep_no_flags());
        assert!(targets.clone().with_no_flags_across_pointers().pointers_keep_no_flags());
        assert!(targets.may_begin_again(0x2004_u64.wrapping_add(bias)) && !targets.may_begin_again(0x2004));
    }

    #[test]
    fn all_threads_see_what_each_has_inserted() {
        let arrivals = Arrivals::over(core::iter::once(0..1 << 16));
        let mut addresses = vec![];
        for step in [3, 5, 7] {
            (0..1 << 16).step_by(step).for_each(|address| arrivals.insert(address));
            addresses.extend((0..1 << 16).step_by(step));
        }
        let targets = arrivals.targets();
        assert!(addresses.into_iter().all(|address| targets.contains(address)));
        assert!(!targets.contains(1));
    }
}

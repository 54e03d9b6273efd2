//! What the programmer called it: Rust and C++ names from mangled symbols.
//!
//! A mangled name is a small program for building a string, and can be written to build a huge one (a "demangling
//! bomb"). So its length, the depth of its nesting and the size of what comes out are bounded; a name beyond a bound
//! stays mangled.

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Longer symbols stay as they are, in bytes.
const LONGEST_SYMBOL: usize = 8 << 10;
/// Longer results are given up, in bytes.
const LONGEST_RESULT: usize = 16 << 10;
/// Deeper nesting is given up. The C++ parser tries alternatives at each level, so a bad name can double its time every
/// few levels (96 took 100 ms for 200 letters). Of 90 000 names of node and LLVM, four are deeper than this.
const DEEPEST: u32 = 64;

/// A name as the programmer wrote it, in both forms that people use to name functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demangled<'a> {
    /// With parameter types where the language mangles them: `foo::bar(int)`.
    pub full: Cow<'a, str>,
    /// Without: `foo::bar`. The same as `full` for Rust and C.
    pub path: Cow<'a, str>,
}

impl<'a> Demangled<'a> {
    /// Both forms of `raw`; `raw` itself twice if it is not mangled.
    pub fn of(raw: &'a str) -> Demangled<'a> {
        if let Some(rust) = rust(raw) {
            return Demangled { full: Cow::Owned(rust.clone()), path: Cow::Owned(rust) };
        }
        if let Some(full) = cpp(raw, false) {
            let path = cpp(raw, true).unwrap_or_else(|| full.clone());
            return Demangled { full: Cow::Owned(full), path: Cow::Owned(path) };
        }
        Demangled { full: Cow::Borrowed(raw), path: Cow::Borrowed(raw) }
    }
}

/// The name as the programmer wrote it, with C++ parameter types and without Rust's hash; `raw` itself if it is not
/// mangled.
pub fn demangle(raw: &str) -> Cow<'_, str> {
    rust(raw).or_else(|| cpp(raw, false)).map_or(Cow::Borrowed(raw), Cow::Owned)
}

fn rust(raw: &str) -> Option<String> {
    if raw.len() > LONGEST_SYMBOL || !(raw.starts_with("_R") || raw.starts_with("_ZN")) {
        return None;
    }
    let name = rustc_demangle::try_demangle(raw).ok()?;
    let mut text = Bounded::default();
    // The alternate form leaves the hash out.
    write!(text, "{name:#}").ok()?;
    Some(text.0)
}

fn cpp(raw: &str, path_only: bool) -> Option<String> {
    if raw.len() > LONGEST_SYMBOL || !(raw.starts_with("_Z") || raw.starts_with("_GLOBAL_")) {
        return None;
    }
    if raw.is_ascii() {
        return ascii_cpp(raw, path_only);
    }
    let foreign = Foreign::of(raw)?;
    Some(foreign.put_back(&ascii_cpp(&foreign.ascii, path_only)?))
}

/// A mangled name whose letters beyond ASCII, which the demangler does not know, are stood in for by as many others. Lengths
/// in mangled names count bytes, so the stand-in for a run of such letters has as many bytes.
struct Foreign<'a> {
    ascii: String,
    /// Each run with its stand-in.
    runs: Vec<(&'a str, String)>,
}

impl<'a> Foreign<'a> {
    /// Letters that demanglers write in no word of their own.
    const STAND_INS: [char; 12] = ['Q', 'X', 'Y', 'J', 'W', 'U', 'H', 'O', 'B', 'M', 'P', 'F'];

    /// `None` where the name leaves no letters to stand in for others.
    fn of(raw: &'a str) -> Option<Self> {
        let mut unused = Self::STAND_INS.into_iter().filter(|letter| !raw.contains(*letter));
        let digits = [unused.next()?, unused.next()?];
        let mut runs: Vec<(&str, String)> = Vec::new();
        let mut ascii = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some(start) = rest.find(|letter: char| !letter.is_ascii()) {
            let (before, from) = rest.split_at(start);
            let (run, after) =
                from.split_at(from.find(|letter: char| letter.is_ascii()).unwrap_or(from.len()));
            ascii.push_str(before);
            match runs.iter().find(|(known, _)| *known == run) {
                Some((_, stand_in)) => ascii.push_str(stand_in),
                None => {
                    // A number of as many binary digits as the run has bytes: how many of that length there were.
                    let number = runs.iter().filter(|(known, _)| known.len() == run.len()).count();
                    if run.len() < usize::BITS as usize && number >> run.len() != 0 {
                        return None;
                    }
                    let digit = |place: usize| digits[number.checked_shr(place as u32).unwrap_or(0) & 1];
                    let stand_in: String = (0..run.len()).map(digit).collect();
                    ascii.push_str(&stand_in);
                    runs.push((run, stand_in));
                }
            }
            rest = after;
        }
        ascii.push_str(rest);
        // Longer ones first: a shorter one may be the beginning of a longer one.
        runs.sort_by_key(|(run, _)| std::cmp::Reverse(run.len()));
        Some(Self { ascii, runs })
    }

    fn put_back(&self, demangled: &str) -> String {
        let mut text = String::with_capacity(demangled.len());
        let mut rest = demangled;
        while let Some(letter) = rest.chars().next() {
            match self.runs.iter().find(|(_, stand_in)| rest.starts_with(stand_in.as_str())) {
                Some((run, stand_in)) => {
                    text.push_str(run);
                    rest = &rest[stand_in.len()..];
                }
                None => {
                    text.push(letter);
                    rest = &rest[letter.len_utf8()..];
                }
            }
        }
        text
    }
}

fn ascii_cpp(raw: &str, path_only: bool) -> Option<String> {
    let parse = ParseOptions::default().recursion_limit(DEEPEST);
    let (symbol, tail) = BorrowedSymbol::with_tail_and_options(raw.as_bytes(), &parse).ok()?;
    if !tail.is_empty() && !tail.starts_with(b".") && !tail.starts_with(b"@") {
        return None;
    }
    let mut options = DemangleOptions::new().recursion_limit(DEEPEST);
    if path_only {
        options = options.no_params().no_return_type();
    }
    let mut text = Bounded::default();
    symbol.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

/// Text that refuses to grow beyond [`LONGEST_RESULT`].
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_RESULT {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_as_they_were_written() {
        for (raw, full, path) in [
            ("main", "main", "main"),
            ("_ZN3foo3barEi", "foo::bar(int)", "foo::bar"),
            ("_ZN3foo3barEi.cold", "foo::bar(int) [clone .cold]", "foo::bar"),
            ("_Z3maxIiET_S0_S0_", "int max<int>(int, int)", "max<int>"),
            // As clang and gcc mangle them: lengths count bytes.
            ("_Z17größe_berechneni", "größe_berechnen(int)", "größe_berechnen"),
            ("_ZN7größe3barERKS_6länge", "größe::bar(größe const&, länge)", "größe::bar"),
            ("_Z6名前v", "名前()", "名前"),
            ("_ZN3FooC1Ev", "Foo::Foo()", "Foo::Foo"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar", "123foo::bar"),
            ("_Znope", "_Znope", "_Znope"),
            ("_ZN", "_ZN", "_ZN"),
            ("", "", ""),
        ] {
            let both = Demangled::of(raw);
            assert_eq!((&*both.full, &*both.path), (full, path), "{raw}");
            assert_eq!(demangle(raw), full);
        }
    }

    #[test]
    fn bombs_stay_mangled() {
        // Each S_ substitution doubles what came before.
        let doubling: String = (0..60).fold("_Z1fSt4pairI1xS_E".to_owned(), |mut name, index| {
            let earlier = if index == 0 { "S0_".to_owned() } else { format!("S{}_", to_base_36(index)) };
            let _ = write!(name, "St4pairI{earlier}{earlier}E");
            name
        });
        let nested = format!("_Z1f{}i", "P".repeat(5000));
        let deep = format!("_ZN{}E", "1aI".repeat(2000));
        let long = format!("_Z{}{}v", LONGEST_SYMBOL, "a".repeat(LONGEST_SYMBOL));
        let rust = format!("_RNvC{}{}", LONGEST_SYMBOL, "a".repeat(LONGEST_SYMBOL));
        for raw in [&doubling, &nested, &deep, &long, &rust] {
            let result = Demangled::of(raw);
            assert!(result.full.len() <= LONGEST_RESULT.max(raw.len()), "{}", &raw[..30]);
        }
        assert_eq!(demangle(&nested), nested);
        assert_eq!(demangle(&long), long);
    }

    fn to_base_36(number: u32) -> String {
        let digit = |value: u32| char::from_digit(value, 36).unwrap_or('0').to_ascii_uppercase();
        if number < 36 {
            digit(number).into()
        } else {
            format!("{}{}", digit(number / 36), digit(number % 36))
        }
    }
}

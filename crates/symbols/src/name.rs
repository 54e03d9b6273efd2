//! The names of functions, kept in one string per module.
//!
//! A large program has hundreds of thousands of names; an allocation for each would cost more than the names.

use crate::demangle::{Demangled, demangle};

/// How far a symbol is visible to the linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Binding {
    /// Visible to other modules or files.
    Global,
    /// Visible, and may be replaced by a global one.
    Weak,
    /// Known in one source file only; several functions of a module can carry the same local name.
    Local,
    /// No symbol: made from the address.
    Made,
}

/// One name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'m> {
    text: &'m str,
    plain: usize,
    binding: Binding,
}

impl<'m> Name<'m> {
    /// The symbol without its version, still mangled: `memcpy`, `_ZN3foo3barEi`, `sub_1040`.
    ///
    /// Bytes that are not UTF-8 stand as U+FFFD.
    pub fn plain(&self) -> &'m str {
        &self.text[..self.plain]
    }

    /// The symbol with its version, if it has one: `memcpy@@GLIBC_2.14`.
    pub fn versioned(&self) -> &'m str {
        self.text
    }

    /// The version alone: `GLIBC_2.14`.
    pub fn version(&self) -> Option<&'m str> {
        let version = self.text[self.plain..].trim_start_matches('@');
        (!version.is_empty()).then_some(version)
    }

    /// Whether a program linked today gets this version (`@@`); true for a name without version.
    pub fn is_default_version(&self) -> bool {
        !self.text[self.plain..].starts_with('@') || self.text[self.plain..].starts_with("@@")
    }

    /// The symbol's binding.
    pub fn binding(&self) -> Binding {
        self.binding
    }

    /// The plain name without what the compiler appends to clones and parts: `foo` for `foo.isra.0`, `foo.cold`.
    pub fn stem(&self) -> &'m str {
        let plain = self.plain();
        match clone_suffix(plain) {
            Some(suffix) => &plain[..plain.len() - suffix.len()],
            None => plain,
        }
    }

    /// What the compiler appended, with its dot: `.isra.0`, `.part.0`, `.constprop.0.cold`, `.llvm.123`.
    pub fn clone_suffix(&self) -> Option<&'m str> {
        clone_suffix(self.plain())
    }

    /// What the programmer called it, with and without parameters.
    pub fn demangled(&self) -> Demangled<'m> {
        Demangled::of(self.plain())
    }
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&demangle(self.plain()))
    }
}

/// Suffixes of gcc and LLVM that start the appended part. A dot alone does not: Go and assembly use it in names.
const CLONE_SUFFIXES: [&str; 8] =
    [".isra.", ".part.", ".constprop.", ".cold", ".lto_priv.", ".llvm.", ".localalias", ".clone."];

fn clone_suffix(plain: &str) -> Option<&str> {
    // Each begins with a dot, which most names do not have.
    let dot = plain.find('.')?;
    let behind = &plain[dot..];
    let start = CLONE_SUFFIXES.iter().filter_map(|suffix| behind.find(suffix)).min()? + dot;
    (start > 0).then_some(&plain[start..])
}

/// Whether the name says that it is the unlikely part of a function, which is jumped to and never called.
pub(crate) fn is_cold_part(plain: &str) -> bool {
    clone_suffix(plain).is_some_and(|suffix| suffix.split('.').any(|word| word == "cold"))
}

/// A name in a [`NameTable`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRecord {
    start: u32,
    len: u16,
    plain: u16,
    pub binding: Binding,
}

/// Names longer than this are not read: the longest that compilers emit are some thousand bytes.
pub(crate) const LONGEST_NAME: usize = 16 << 10;

/// All names of a module, end to end.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    text: String,
    /// How large `text` may become.
    limit: usize,
}

impl NameRecord {
    /// Length of the name without its version.
    pub(crate) fn plain_len(self) -> usize {
        self.plain.into()
    }
}

impl NameTable {
    /// An empty table for a file of `file_size` bytes. Symbols share strings, but not endlessly.
    pub(crate) fn for_file(file_size: usize) -> NameTable {
        let limit = file_size.saturating_mul(8).saturating_add(1 << 16).min(u32::MAX as usize);
        NameTable { text: String::new(), limit }
    }

    /// Adds a symbol's name, of which a version is given or stands in the name itself, as `.symtab` has it.
    ///
    /// `None` when the name is too long or the table full.
    pub(crate) fn add(
        &mut self,
        raw: &[u8],
        version: Option<(&[u8], bool)>,
        binding: Binding,
    ) -> Option<NameRecord> {
        let start = self.text.len();
        if raw.len() > LONGEST_NAME || start + raw.len() > self.limit {
            return None;
        }
        push_lossy(&mut self.text, raw);
        let plain = match version_start(&self.text[start..]) {
            Some(at) => at,
            None => {
                let plain = self.text.len() - start;
                if let Some((version, is_default)) = version.filter(|(version, _)| version.len() < 256) {
                    self.text.push_str(if is_default { "@@" } else { "@" });
                    push_lossy(&mut self.text, version);
                }
                plain
            }
        };
        let len = u16::try_from(self.text.len() - start).ok();
        let record = len.map(|len| NameRecord { start: start as u32, len, plain: plain as u16, binding });
        if record.is_none() {
            self.text.truncate(start);
        }
        record
    }

    pub(crate) fn get(&self, record: NameRecord) -> Name<'_> {
        let start = record.start as usize;
        let text = &self.text[start..start + record.len as usize];
        Name { text, plain: record.plain.into(), binding: record.binding }
    }
}

/// Where the version in a symbol's name begins. The first letter may be an @ without meaning one.
pub(crate) fn version_start(name: &str) -> Option<usize> {
    let first = name.chars().next()?.len_utf8();
    Some(first + name[first..].find('@')?)
}

fn push_lossy(text: &mut String, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(valid) => text.push_str(valid),
        Err(_) => text.push_str(&String::from_utf8_lossy(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fall_into_plain_version_and_clone_suffix() {
        type Row = (
            &'static [u8],
            Option<(&'static [u8], bool)>,
            &'static str,
            Option<&'static str>,
            bool,
            &'static str,
        );
        let rows: &[Row] = &[
            (b"memcpy", Some((b"GLIBC_2.14", true)), "memcpy", Some("GLIBC_2.14"), true, "memcpy"),
            (b"memcpy", Some((b"GLIBC_2.2.5", false)), "memcpy", Some("GLIBC_2.2.5"), false, "memcpy"),
            (b"memcpy@@GLIBC_2.14", None, "memcpy", Some("GLIBC_2.14"), true, "memcpy"),
            (b"memcpy@GLIBC_2.2.5", None, "memcpy", Some("GLIBC_2.2.5"), false, "memcpy"),
            (b"main", None, "main", None, true, "main"),
            (b"main.cold", None, "main.cold", None, true, "main"),
            (b"f.constprop.0.isra.0", None, "f.constprop.0.isra.0", None, true, "f"),
            (b"main.init", None, "main.init", None, true, "main.init"),
            (b"@odd", None, "@odd", None, true, "@odd"),
            (b"bad\xffbyte", None, "bad\u{fffd}byte", None, true, "bad\u{fffd}byte"),
            (b"", None, "", None, true, ""),
        ];
        let mut table = NameTable::for_file(1000);
        for &(raw, version, plain, expected_version, is_default, stem) in rows {
            let record = table.add(raw, version, Binding::Global).unwrap();
            let name = table.get(record);
            assert_eq!(
                (name.plain(), name.version(), name.is_default_version(), name.stem()),
                (plain, expected_version, is_default, stem)
            );
        }
    }

    #[test]
    fn cold_parts_are_told_from_clones() {
        for (name, expected) in [
            ("f.cold", true),
            ("f.cold.12", true),
            ("f.isra.0.cold", true),
            ("f.isra.0", false),
            ("f.part.0", false),
            ("f.colder", false),
            ("cold", false),
            ("main.cold_start", false),
        ] {
            assert_eq!(is_cold_part(name), expected, "{name}");
        }
    }

    #[test]
    fn the_table_stays_bounded() {
        let mut table = NameTable::for_file(0);
        let name = [b'a'; LONGEST_NAME];
        let added = (0..100).filter_map(|_| table.add(&name, None, Binding::Local)).count();
        assert_eq!(added, 4);
        assert!(table.add(&[b'a'; LONGEST_NAME + 1], None, Binding::Local).is_none());
    }
}

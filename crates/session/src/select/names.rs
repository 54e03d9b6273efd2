//! The forms in which one function's name may be written.

/// Whether `test` holds for any form of the raw symbol name `raw`. Demangling costs most, so it comes last.
pub(super) fn any_form(
    raw: &str,
    demangle: &dyn Fn(&str) -> Option<String>,
    mut test: impl FnMut(&str) -> bool,
) -> bool {
    let plain = unversioned(raw);
    if test(raw) || (plain.len() < raw.len() && test(plain)) {
        return true;
    }
    let Some(demangled) = demangle(plain) else { return false };
    let short = without_parameters(&demangled);
    let qualified = qualified_name(&demangled);
    test(&demangled)
        || (short.len() < demangled.len() && test(short))
        || (qualified.len() < short.len() && test(qualified))
}

/// A symbol's name without its version: `memcpy` for `memcpy@@GLIBC_2.14`.
pub fn unversioned(name: &str) -> &str {
    match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// A demangled C++ name without its parameter list and what follows it.
///
/// `ns::f(int) const` becomes `ns::f`; `(anonymous namespace)::f(int)` and `operator()(int)` keep what belongs to
/// the name. Names without a parameter list come back whole.
pub fn without_parameters(name: &str) -> &str {
    let mut end = name.trim_end();
    loop {
        let clone = end.strip_suffix(']').and_then(|e| e.rfind(" [clone").map(|at| &end[..at]));
        let shorter = clone.or_else(|| {
            [" const", " volatile", " &&", " &", " noexcept"].iter().find_map(|q| end.strip_suffix(q))
        });
        match shorter {
            Some(shorter) => end = shorter.trim_end(),
            None => break,
        }
    }
    if !end.ends_with(')') {
        return name;
    }
    match opening(end) {
        Some(at) if at > 0 && !end[..at].ends_with("operator") => &end[..at],
        _ => name,
    }
}

/// Byte offset of the parenthesis that the final one of `text` closes.
fn opening(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// A demangled C++ name without parameters and without the return type in front of it, which function templates
/// carry: `ns::max<int>` for `int ns::max<int>(int, int)`.
pub fn qualified_name(name: &str) -> &str {
    let name = without_parameters(name);
    // What follows `operator` may hold spaces and brackets that pair with nothing.
    let limit = name.find("operator").unwrap_or(name.len());
    let mut depth = 0i32;
    let mut start = 0;
    for (at, byte) in name.bytes().enumerate().take(limit) {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => depth -= 1,
            b' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    &name[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_return_types_are_told_from_names() {
        for (name, without, qualified) in [
            ("main", "main", "main"),
            ("ns::f(int)", "ns::f", "ns::f"),
            ("ns::f(int) const", "ns::f", "ns::f"),
            ("ns::f(void (*)(int))", "ns::f", "ns::f"),
            ("ns::f(int) [clone .cold]", "ns::f", "ns::f"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f", "(anonymous namespace)::f"),
            ("A::operator()(int) const &", "A::operator()", "A::operator()"),
            ("A::operator()", "A::operator()", "A::operator()"),
            ("A::operator bool() const", "A::operator bool", "A::operator bool"),
            ("bool operator< <int>(A<int>, int)", "bool operator< <int>", "operator< <int>"),
            ("int ns::max<int>(int, int)", "int ns::max<int>", "ns::max<int>"),
            ("std::map<a, b>::at(a const&)", "std::map<a, b>::at", "std::map<a, b>::at"),
            ("<T as core::fmt::Debug>::fmt", "<T as core::fmt::Debug>::fmt", "<T as core::fmt::Debug>::fmt"),
            ("f[abi:cxx11](int)", "f[abi:cxx11]", "f[abi:cxx11]"),
            (")", ")", ")"),
            ("(x)", "(x)", "(x)"),
            ("a))(b)", "a))", "a))"),
        ] {
            assert_eq!(without_parameters(name), without, "{name}");
            assert_eq!(qualified_name(name), qualified, "{name}");
        }
    }

    #[test]
    fn versions_are_cut() {
        for (name, expected) in [("memcpy@@GLIBC_2.14", "memcpy"), ("f@V1", "f"), ("f", "f"), ("@x", "@x")] {
            assert_eq!(unversioned(name), expected);
        }
    }
}

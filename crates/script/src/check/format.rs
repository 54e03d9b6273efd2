//! Formats of `printf`: which conversions there are, and which values they take.

use super::types::Type;

/// A conversion: the letters at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// `d`, `s`, `rx`, ….
    pub specifier: String,
}

/// The conversions of a format, `%%` not among them. What is none is text.
pub fn conversions(format: &str) -> Vec<Conversion> {
    let bytes = format.as_bytes();
    let mut all = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            at += 1;
            continue;
        }
        match conversion(&bytes[at + 1..]) {
            Some((specifier, length)) => {
                if specifier != "%" {
                    all.push(Conversion { specifier });
                }
                at += 1 + length;
            }
            None => at += 1,
        }
    }
    all
}

/// The conversion behind a `%`, and how long it is.
fn conversion(bytes: &[u8]) -> Option<(String, usize)> {
    let mut at = 0;
    // Each flag once, in this order.
    for flag in [b'-', b'+', b' ', b'#', b'0'] {
        if bytes.get(at) == Some(&flag) {
            at += 1;
        }
    }
    let number = |mut at: usize| {
        if bytes.get(at) == Some(&b'*') {
            return at + 1;
        }
        while bytes.get(at).is_some_and(u8::is_ascii_digit) {
            at += 1;
        }
        at
    };
    at = number(at);
    if bytes.get(at) == Some(&b'.') {
        let end = number(at + 1);
        if end > at + 1 {
            at = end;
        }
    }
    while bytes.get(at).is_some_and(|byte| b"hlLjzt".contains(byte)) {
        at += 1;
    }
    let rest = &bytes[at..];
    for long in ["gr", "rh", "rx"] {
        if rest.starts_with(long.as_bytes()) {
            return Some((long.to_owned(), at + 2));
        }
    }
    let byte = *rest.first()?;
    b"diouxXeEfFGaAcspn%gr".contains(&byte).then(|| (char::from(byte).to_string(), at + 1))
}

/// What is wrong with a format and the types of what it is filled with.
pub fn problem(conversions: &[Conversion], types: &[Type]) -> Option<String> {
    if types.len() != conversions.len() {
        let few = if types.len() < conversions.len() { "not enough" } else { "too many" };
        return Some(format!(
            "{few} arguments for format string ({} supplied, {} expected)",
            types.len(),
            conversions.len()
        ));
    }
    conversions.iter().zip(types).find_map(|(Conversion { specifier }, of)| {
        let is_integer = of.is_int() || matches!(of, Type::Bool | Type::Pointer(..));
        let fits = match specifier.as_str() {
            _ if matches!(of, Type::Void | Type::Mode) => {
                return Some(format!("unable to print none type for specifier: {specifier}"));
            }
            "d" | "i" | "u" | "o" | "x" | "X" | "c" | "p" | "gr" => is_integer,
            "e" | "E" | "f" | "F" | "g" | "G" | "a" | "A" => {
                if !of.is_int() && !matches!(of, Type::Float(_)) {
                    return Some(format!("unsupported format specifier: {specifier}"));
                }
                true
            }
            "r" | "rx" | "rh" => matches!(of, Type::Buffer(_)),
            "s" => true,
            other => return Some(format!("unsupported format specifier: {other}")),
        };
        (!fits).then(|| format!("unsupported format specifier for type '{of}': {specifier}"))
    })
}

/// Whether it prints a float.
pub fn is_of_floats(conversion: &Conversion) -> bool {
    matches!(conversion.specifier.as_bytes(), [b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_found_between_text() {
        for (format, expected) in [
            ("%d %s", &["d", "s"][..]),
            ("100%% %lld", &["d"]),
            ("%-+ #08.3lx", &["x"]),
            ("%rx%rh%r", &["rx", "rh", "r"]),
            ("%gr", &["gr"]),
            ("%*d %.*s", &["d", "s"]),
            ("% y %", &[]),
        ] {
            let found: Vec<String> = conversions(format).into_iter().map(|found| found.specifier).collect();
            assert_eq!(found, expected, "{format}");
        }
    }

    #[test]
    fn types_have_to_fit() {
        let told = |format, types: &[Type]| problem(&conversions(format), types);
        assert_eq!(told("%d", &[Type::INT8]), None);
        assert_eq!(told("%f", &[Type::INT8]), None);
        assert_eq!(
            told("%d", &[Type::String(2)]).unwrap(),
            "unsupported format specifier for type 'string[2]': d"
        );
        assert_eq!(
            told("%d", &[]).unwrap(),
            "not enough arguments for format string (0 supplied, 1 expected)"
        );
        assert_eq!(
            told("", &[Type::Bool]).unwrap(),
            "too many arguments for format string (1 supplied, 0 expected)"
        );
    }
}

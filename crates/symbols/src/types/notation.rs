//! How a type is written, in C's, C++'s and Rust's notation.
//!
//! C writes a type around the name of what has it: `int (*f[3])(char)`. So a type is written from the outside in: what stands
//! before the name and what stands behind it grow as pointers, arrays and functions are passed. Rust's compiler names all of its
//! types in full, and its names are taken.

use super::{Array, DEEPEST, Kind, Language, Pointer, Qualifier, Signature, TypeId, Types, Word};

/// Longer notations are cut, in bytes.
const LONGEST: usize = 1024;

/// The notation of a type, in its own language or in that one.
pub(super) fn of(types: &Types, id: TypeId, language: Option<Language>) -> String {
    let mut text = written(types, id, language, DEEPEST);
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

fn written(types: &Types, id: TypeId, asked: Option<Language>, depth: usize) -> String {
    let (mut before, mut behind) = (String::new(), String::new());
    let mut at = id;
    // A pointer binds weaker than what stands behind it: `(*p)[3]`.
    let mut ends_in_pointer = false;
    let mut qualifiers: Vec<Qualifier> = Vec::new();
    for _ in 0..depth {
        let this = types.get(at);
        let language = asked.unwrap_or(this.language);
        let is_rust = language == Language::Rust;
        match &this.kind {
            Kind::Qualified(qualifier, of) => {
                if !qualifiers.contains(qualifier) {
                    qualifiers.push(*qualifier);
                }
                at = *of;
                continue;
            }
            Kind::Pointer(_, to) if is_rust => {
                let base = match &this.name {
                    Some(name) => name.to_string(),
                    None => format!("*{}", written(types, *to, asked, depth / 2)),
                };
                return joined(&base, &qualifiers, language, &before, &behind);
            }
            Kind::Pointer(kind, to) => {
                let sign = match kind {
                    Pointer::Plain => "*",
                    Pointer::Reference => "&",
                    Pointer::RvalueReference => "&&",
                };
                before = format!("{sign}{}{before}", words_behind(&qualifiers, &before));
                qualifiers.clear();
                ends_in_pointer = true;
                at = *to;
                continue;
            }
            Kind::MemberPointer(of, class) => {
                let class = written(types, *class, asked, depth / 4);
                before = format!("{class}::*{}{before}", words_behind(&qualifiers, &before));
                qualifiers.clear();
                ends_in_pointer = true;
                at = *of;
                continue;
            }
            Kind::Array(array) if !(array.is_vector && this.name.is_some()) => {
                if is_rust {
                    let base = rust_array(types, array, asked, depth);
                    return joined(&base, &qualifiers, language, &before, &behind);
                }
                if std::mem::take(&mut ends_in_pointer) {
                    before = format!("({before}");
                    behind.push(')');
                }
                for count in &array.counts {
                    match count {
                        Some(count) => behind.push_str(&format!("[{count}]")),
                        None => behind.push_str("[]"),
                    }
                }
                at = array.of;
            }
            Kind::Function(signature) => {
                if is_rust {
                    let base = rust_function(types, signature, asked, depth);
                    return joined(&base, &qualifiers, language, &before, &behind);
                }
                if std::mem::take(&mut ends_in_pointer) {
                    before = format!("({before}");
                    behind.push(')');
                }
                behind.push_str(&parameters(types, signature, asked, depth));
                at = signature.result;
            }
            _ => {
                let base = plain(types, at, language, depth);
                return joined(&base, &qualifiers, language, &before, &behind);
            }
        }
        if before.len() + behind.len() > LONGEST {
            break;
        }
    }
    joined("…", &qualifiers, Language::C, &before, &behind)
}

fn word(qualifier: Qualifier) -> &'static str {
    match qualifier {
        Qualifier::Const => "const",
        Qualifier::Volatile => "volatile",
        Qualifier::Restrict => "restrict",
        Qualifier::Atomic => "_Atomic",
    }
}

/// The qualifiers of a pointer, which stand behind its star.
fn words_behind(qualifiers: &[Qualifier], next: &str) -> String {
    let words: Vec<_> = qualifiers.iter().map(|&qualifier| word(qualifier)).collect();
    let gap = if words.is_empty() || next.is_empty() { "" } else { " " };
    format!("{}{gap}", words.join(" "))
}

fn joined(base: &str, qualifiers: &[Qualifier], language: Language, before: &str, behind: &str) -> String {
    let mut text = String::new();
    if language != Language::Rust {
        for qualifier in qualifiers {
            text.push_str(word(*qualifier));
            text.push(' ');
        }
    }
    text.push_str(base);
    if !before.is_empty() || behind.starts_with('(') {
        text.push(' ');
    }
    text.push_str(before);
    text.push_str(behind);
    text
}

/// A type that is written in one piece.
fn plain(types: &Types, id: TypeId, language: Language, depth: usize) -> String {
    let this = types.get(id);
    let name = this.name.as_deref();
    let tagged = |word: Word| match (language, name) {
        (Language::Cpp | Language::Rust, Some(name)) => name.to_owned(),
        (_, Some(name)) => format!("{} {name}", word.text()),
        (Language::Cpp, None) => format!("(unnamed {})", word.text()),
        (_, None) => format!("{} {{...}}", word.text()),
    };
    match &this.kind {
        Kind::Void if language == Language::Rust => "()".to_owned(),
        Kind::Void => name.unwrap_or("void").to_owned(),
        Kind::Struct(of) => tagged(of.word),
        Kind::Declared(word) => tagged(*word),
        Kind::Enum(_) => tagged(Word::Enum),
        Kind::Typedef(of) => match name {
            Some(name) => name.to_owned(),
            None => written(types, *of, Some(language), depth / 2),
        },
        _ => name.unwrap_or("(unknown)").to_owned(),
    }
}

fn parameters(types: &Types, signature: &Signature, asked: Option<Language>, depth: usize) -> String {
    let mut all = Vec::new();
    let mut room = LONGEST;
    for id in &signature.parameters {
        let one = written(types, *id, asked, depth / 4);
        room = room.saturating_sub(one.len() + 2);
        if room == 0 {
            break;
        }
        all.push(one);
    }
    if signature.is_variadic {
        all.push("...".to_owned());
    }
    if all.is_empty() && asked.unwrap_or(Language::C) == Language::C {
        all.push("void".to_owned());
    }
    format!("({})", all.join(", "))
}

fn rust_array(types: &Types, array: &Array, asked: Option<Language>, depth: usize) -> String {
    let mut text = written(types, array.of, asked, depth / 2);
    for count in array.counts.iter().rev().take(DEEPEST) {
        text = match count {
            Some(count) => format!("[{text}; {count}]"),
            None => format!("[{text}]"),
        };
    }
    text
}

fn rust_function(types: &Types, signature: &Signature, asked: Option<Language>, depth: usize) -> String {
    let parameters = parameters(types, signature, asked.or(Some(Language::Rust)), depth);
    match types.kind(signature.result) {
        Kind::Void => format!("fn{parameters}"),
        _ => format!("fn{parameters} -> {}", written(types, signature.result, asked, depth / 4)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Encoding, Type};
    use super::*;

    #[test]
    fn types_are_written_as_c_declares_them() {
        let mut types = Types::new();
        let int = types.base("int", 4, Encoding::Signed);
        let char = types.base("char", 1, Encoding::SignedChar);
        let mut add =
            |kind| types.add(Type { name: None, size: None, align: None, language: Language::C, kind });
        let constant = add(Kind::Qualified(Qualifier::Const, char));
        let text = add(Kind::Pointer(Pointer::Plain, constant));
        let fixed = add(Kind::Qualified(Qualifier::Const, text));
        let row = add(Kind::Array(Array { of: int, counts: vec![Some(3), Some(4)], is_vector: false }));
        let to_row = add(Kind::Pointer(Pointer::Plain, row));
        let signature = Signature { result: int, parameters: vec![text, int], is_variadic: true };
        let function = add(Kind::Function(signature));
        let callback = add(Kind::Pointer(Pointer::Plain, function));
        let callbacks = add(Kind::Array(Array { of: callback, counts: vec![None], is_vector: false }));
        let nothing = Signature { result: Types::VOID, parameters: vec![], is_variadic: false };
        let nothing = add(Kind::Function(nothing));
        for (id, expected) in [
            (int, "int"),
            (text, "const char *"),
            (fixed, "const char *const"),
            (row, "int[3][4]"),
            (to_row, "int (*)[3][4]"),
            (function, "int (const char *, int, ...)"),
            (callback, "int (*)(const char *, int, ...)"),
            (callbacks, "int (*[])(const char *, int, ...)"),
            (nothing, "void (void)"),
        ] {
            assert_eq!(types.notation(id), expected);
        }
    }
}

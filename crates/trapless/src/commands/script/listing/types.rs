//! What DWARF tells of functions and types, as `-lv` shows it: `int* n`, `struct point { … };`.

use super::Place;
use std::collections::BTreeMap;
use trapless_symbols::types::{Kind, Word};
use trapless_symbols::{Module, TypeId, TypeReader, Types, TypesError};

/// The signatures of a module's functions.
pub(super) struct Signatures<'m> {
    module: &'m Module,
    types: Types,
    reader: Option<TypeReader<'m>>,
    missing: Option<TypesError>,
}

impl<'m> Signatures<'m> {
    /// Nothing is read before it is asked for.
    pub(super) fn of(module: &'m Module) -> Self {
        Self { module, types: Types::new(), reader: None, missing: None }
    }

    /// Why nothing can be told of any of them.
    pub(super) fn missing(&self) -> Option<&TypesError> {
        self.missing.as_ref()
    }

    fn reader(&mut self) -> Option<&mut TypeReader<'m>> {
        if self.reader.is_none() && self.missing.is_none() {
            match self.module.type_reader() {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => self.missing = Some(error),
            }
        }
        self.reader.as_mut()
    }

    fn function(&mut self, address: u64) -> Option<trapless_symbols::TypedFunction> {
        let mut types = std::mem::take(&mut self.types);
        let function = self.reader().map(|reader| reader.function(&mut types, address));
        self.types = types;
        function?.ok()
    }

    /// The lines of what a function takes.
    pub(super) fn parameters(&mut self, address: u64) -> Vec<String> {
        let Some(function) = self.function(address) else { return Vec::new() };
        let line = |of, name: Option<&str>| format!("    {}", declared(&self.types, of, name, true));
        function.parameters.iter().map(|parameter| line(parameter.of, parameter.name.as_deref())).collect()
    }

    /// The line of what it gives.
    pub(super) fn result(&mut self, address: u64) -> Vec<String> {
        let function = self.function(address).filter(|function| function.result != Types::VOID);
        let line = |of| format!("    {}", declared(&self.types, of, Some("retval"), true));
        function.map(|function| line(function.result)).into_iter().collect()
    }
}

/// A declaration in C. `tight`: a pointer's star is written with its type, `int* n`, and not with the name.
fn declared(types: &Types, of: TypeId, name: Option<&str>, tight: bool) -> String {
    let mut text = types.c_notation(of);
    if tight {
        text = text.replace(" *", "*").replace("**(", "** (").replace("*(", "* (");
    }
    let Some(name) = name else { return text };
    // The name of an array or of a function's pointer stands inside of its type.
    let inside = text.find("(*").and_then(|at| {
        let stars = text[at + 1..].len() - text[at + 1..].trim_start_matches('*').len();
        text[at + 1 + stars..].starts_with(')').then_some(at + 1 + stars)
    });
    match (inside, matches!(types.kind(of), Kind::Array(_)).then(|| text.find('[')).flatten()) {
        (Some(at), _) => format!("{}{name}{}", &text[..at], &text[at..]),
        (None, Some(at)) => format!("{} {name}{}", text[..at].trim_end(), &text[at..]),
        (None, None) if !tight && text.ends_with('*') => format!("{text}{name}"),
        (None, None) => format!("{text} {name}"),
    }
}

/// The definitions of a type, one for each file of the process that has one.
///
/// # Errors
/// There is none.
pub(super) fn definitions(place: &Place, name: &str) -> Result<Vec<String>, String> {
    let Some((process, images)) = &place.process else {
        return Err(format!(
            "{name}: types are looked for in the files of a process; give -p PID. The kernel's are told by bpftrace -lv and pahole"
        ));
    };
    if name.contains('*') {
        return Err(format!("{name}: types are looked for by their whole names"));
    }
    // The same definition is in many files.
    let mut found: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for image in images {
        let Ok(module) = image.module(Some(process)) else { continue };
        let Ok(mut reader) = module.type_reader() else { continue };
        let mut types = Types::new();
        let Ok(id) = reader.type_named(&mut types, name, None) else { continue };
        reader.complete(&mut types, id);
        let lines = if place.verbose { definition(&types, id) } else { Vec::new() };
        found.entry(lines).or_insert_with(|| image.path.clone());
    }
    if found.is_empty() {
        return Err(format!("{name}: no file of the process has debug information about it"));
    }
    let mut lines = Vec::new();
    for (definition, path) in found {
        match definition.split_first() {
            Some((first, rest)) => {
                lines.push(format!("{path}: {first}"));
                lines.extend_from_slice(rest);
            }
            None => lines.push(format!("{path}: {name}")),
        }
    }
    Ok(lines)
}

/// The lines of a type's definition.
fn definition(types: &Types, id: TypeId) -> Vec<String> {
    let id = types.stripped(id);
    let title = types.c_notation(id);
    let title = |word: Word| match title.starts_with(word.text()) {
        true => title.clone(),
        false => format!("{} {title}", word.text()),
    };
    let mut lines = Vec::new();
    match &types.get(id).kind {
        Kind::Struct(of) => {
            lines.push(format!("{} {{", title(of.word)));
            for member in &of.members {
                let mut text = declared(types, member.of, member.name.as_deref(), false);
                if let Some(bits) = member.bits {
                    text += &format!(" : {}", bits.count);
                }
                lines.push(format!("\t{text};"));
            }
            lines.push("};".to_owned());
        }
        Kind::Enum(of) => {
            lines.push(format!("{} {{", title(Word::Enum)));
            lines.extend(of.enumerators.iter().map(|(name, value)| format!("\t{name} = {value},")));
            lines.push("};".to_owned());
        }
        _ => lines.push(format!("{};", types.c_notation(id))),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use trapless_symbols::types::Encoding;

    #[test]
    fn declarations_have_their_names_where_c_has_them() {
        let mut types = Types::new();
        let int = types.base("int", 4, Encoding::Signed);
        let point = types.structure("point", &[("x", int), ("y", int)]);
        let to = types.pointer_to(point);
        let to_to = types.pointer_to(to);
        for (of, loose, tight) in [
            (int, "int n", "int n"),
            (to, "struct point *n", "struct point* n"),
            (to_to, "struct point **n", "struct point** n"),
        ] {
            assert_eq!(declared(&types, of, Some("n"), false), loose);
            assert_eq!(declared(&types, of, Some("n"), true), tight);
        }
        assert_eq!(definition(&types, point), ["struct point {", "\tint x;", "\tint y;", "};"]);
    }
}

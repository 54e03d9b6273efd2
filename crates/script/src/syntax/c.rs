//! C in scripts: the types and constants that definitions and headers give.
//!
//! Only what a script can use is kept: records, enums, typedefs, and what `#define` makes of names. Sizes and
//! offsets are the checker's, because they depend on the target.
//!
//! A header is read as far as it is understood. What is not a type is skipped, and so is a type that cannot
//! be understood: who uses it is told that it is not known. In the script itself everything must be
//! understood.

mod builtin;
mod constant;
mod declaration;
mod preprocess;
mod put_in;
mod token;
mod types;

pub use types::*;

use self::declaration::Declarations;
use self::preprocess::Preprocessor;
use self::token::{Place, Token, TokenKind, tokens};
use super::ast::CStatement;
use super::files::Files;
use crate::diagnostics::Diagnostics;
use crate::source::Sources;

/// How headers are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the script, where `#include "…"` looks first. Empty for the current one.
    pub beside: String,
    /// Where headers are looked for, in order: what `-I` says, then the system's directories.
    pub include_paths: Vec<String>,
    /// Headers that are included before the script, as `--include` says.
    pub include_files: Vec<String>,
    /// Names that are defined before anything is read.
    pub defines: Vec<(String, String)>,
    /// The bytes of an address, and of `long`.
    pub address_bytes: u8,
}

impl Default for Options {
    /// The system's usual directories, and a compiler for 64 bits that tells no processor.
    fn default() -> Options {
        let include_paths = ["/usr/local/include", "/usr/include"];
        Options {
            beside: String::new(),
            include_paths: include_paths.map(str::to_string).to_vec(),
            include_files: Vec::new(),
            defines: Vec::new(),
            address_bytes: 8,
        }
    }
}

impl Options {
    /// The same for a processor, by its name in the compiler: `x86_64`, `aarch64`, `i386`, `powerpc64le`.
    ///
    /// Another name is taken for 64 bits, and defined as compilers do.
    #[must_use]
    pub fn machine(mut self, name: &str) -> Options {
        let (names, triple): (&[&str], &str) = match name {
            "x86_64" => (&["__x86_64__", "__x86_64", "__amd64__"], "x86_64-linux-gnu"),
            "aarch64" => (&["__aarch64__", "__AARCH64EL__"], "aarch64-linux-gnu"),
            "i386" => (&["__i386__", "__i386", "i386"], "i386-linux-gnu"),
            "powerpc64le" => {
                (&["__powerpc64__", "__powerpc__", "__PPC64__", "__PPC__"], "powerpc64le-linux-gnu")
            }
            _ => (&[], ""),
        };
        self.defines.extend(names.iter().map(|name| ((*name).to_string(), "1".to_string())));
        if names.is_empty() {
            self.defines.push((format!("__{name}__"), "1".to_string()));
        } else {
            self.include_paths.push(format!("/usr/include/{triple}"));
        }
        if name == "powerpc64le" {
            self.defines.push(("_CALL_ELF".to_string(), "2".to_string()));
        }
        if name == "i386" {
            self.address_bytes = 4;
        }
        self
    }
}

/// The line of a script's first statement in the file that bpftrace would make of them, which errors tell.
const FIRST_LINE: u32 = 2;

/// Reads all definitions of a script.
pub(super) fn define(
    statements: &[CStatement],
    options: &Options,
    files: &dyn Files,
    sources: &mut Sources,
    diagnostics: &mut Diagnostics,
) -> Definitions {
    let mut definitions = Definitions::default();
    if statements.is_empty() && options.include_files.is_empty() {
        return definitions;
    }
    let mut input = Vec::new();
    let mut prelude = builtin::defines(options);
    for name in &options.include_files {
        prelude.push_str(&format!("#include \"{name}\"\n"));
    }
    // The text is made here, of names that fit.
    let Ok(source) = sources.add("<command line>", prelude.clone()) else { return definitions };
    input.extend(tokens(&prelude, Place::At(source, 0)));
    for statement in statements {
        let span = statement.span;
        let whole = sources.text(span) == statement.text;
        let place = if whole { Place::At(span.source, span.start) } else { Place::Whole(span) };
        let mut read = tokens(&statement.text, place);
        if let Some(last) = read.last().filter(|_| !statement.text.starts_with('#')) {
            let end = Token { kind: TokenKind::Sign, text: ";".into(), first: false, ..last.clone() };
            read.push(end);
        }
        input.append(&mut read);
    }
    let mut line = FIRST_LINE;
    let mut starts = Vec::new();
    for statement in statements {
        starts.push((statement.span, line));
        line += statement.text.lines().count() as u32;
    }
    let mut preprocessor = Preprocessor::new(options, files, sources, diagnostics);
    preprocessor.statements = starts;
    preprocessor.lines(&input);
    let Preprocessor { out, headers, pack_changes, macros, failed, .. } = preprocessor;
    if failed {
        return definitions;
    }
    Declarations::new(&out, &pack_changes, &headers, options, &mut definitions, diagnostics).all();
    definitions.macros = macros
        .into_iter()
        .filter(|(_, found)| !found.variadic && !found.body.is_empty())
        .map(|(name, found)| {
            let parameters =
                found.parameters.map(|names| names.iter().map(|name| name.to_string()).collect());
            (name.to_string(), Macro { parameters, body: token::text(&found.body) })
        })
        .collect();
    definitions
}

#[cfg(test)]
mod tests;

//! A whole text: its sections, probes, macros and declarations.

use super::{Failed, MAX_ERRORS, Parser, Result};
use crate::diagnostics::Diagnostic;
use crate::source::Span;
use crate::syntax::ast::{
    AttachPoint, Config, ConfigEntry, ConfigValue, Expr, Item, Macro, MacroParameter, MapDecl, Probe,
    Program, Subprog,
};
use crate::syntax::attach::{self, AttachError};
use crate::syntax::number;
use crate::syntax::words::is_builtin;

impl Parser<'_> {
    pub(super) fn program(mut self) -> Program {
        self.layout();
        let header = self.header();
        let (mut c, mut config, mut imports, mut items) = (Vec::new(), None, Vec::new(), Vec::new());
        self.layout();
        while self.at_c() {
            c.extend(self.c_statement());
            self.layout();
        }
        loop {
            self.layout();
            match self.peek_word() {
                b"config" if config.is_some() => self.misplaced_config("duplicate config block"),
                b"config" => match self.config() {
                    Ok(block) => config = Some(block),
                    Err(Failed) => self.skip_item(),
                },
                b"import" => match self.import() {
                    Ok(import) => imports.push(import),
                    Err(Failed) => self.skip_line(),
                },
                _ => break,
            }
        }
        loop {
            self.layout();
            if self.at_end() {
                break;
            }
            let before = self.position;
            match self.item() {
                Ok(item) => items.extend(item),
                Err(Failed) => self.skip_item(),
            }
            if self.position == before {
                self.bump(1);
            }
        }
        let span = Span::new(self.source, 0, self.bytes.len());
        Program { header, c, config, imports, items, comments: self.comments, span }
    }

    /// Takes the `#!` line.
    fn header(&mut self) -> Option<String> {
        if self.peek() != b'#' || self.peek_at(1) != b'!' {
            return None;
        }
        let start = self.position;
        self.bump(self.scan_line(start) - start);
        Some(self.slice(start, self.position).trim_end().to_string())
    }

    fn item(&mut self) -> Result<Option<Item>> {
        let start = self.position;
        if self.at_c() {
            self.c_statement();
            let span = self.span_from(start);
            self.error_at(span, "C definitions must appear before probes and functions");
            return Ok(None);
        }
        match self.peek_word() {
            b"config" => {
                self.misplaced_config("config must appear before probes and functions");
                Ok(None)
            }
            b"import" => {
                self.take_word("import");
                self.error_at(self.span_from(start), "root imports must appear before probes and functions");
                self.skip_line();
                Ok(None)
            }
            b"macro" => self.macro_item().map(|item| Some(Item::Macro(item))),
            b"fn" => self.subprog().map(|item| Some(Item::Subprog(item))),
            b"let" => self.map_declaration().map(|item| Some(Item::MapDecl(item))),
            _ => self.probe().map(|item| Some(Item::Probe(item))),
        }
    }

    fn config(&mut self) -> Result<Config> {
        let start = self.position;
        self.expect_word("config")?;
        self.expect(b'=')?;
        self.expect(b'{')?;
        let mut entries = Vec::new();
        while !self.take(b'}') {
            match self.config_entry() {
                Ok(entry) => entries.push(entry),
                Err(Failed) => {
                    self.skip_braces(1);
                    break;
                }
            }
        }
        Ok(Config { entries, span: self.span_from(start) })
    }

    fn config_entry(&mut self) -> Result<ConfigEntry> {
        if self.scan_layout(self.position) >= self.bytes.len() {
            return Err(self.error_here("expected '}'"));
        }
        let key = self.identifier("expected config key")?;
        self.expect(b'=')?;
        self.layout();
        let value = match self.peek() {
            b'"' => ConfigValue::Text(String::from_utf8_lossy(&self.string()?).into_owned()),
            b'0'..=b'9' => {
                let text = self.integer_text()?;
                let parsed = number::parse(&text);
                ConfigValue::Integer(parsed.map_err(|_| self.error_here("invalid integer in config"))?)
            }
            _ => match self.identifier("expected string, int, boolean, or ident")?.text {
                word if word == "true" || word == "false" => ConfigValue::Boolean(word == "true"),
                word => ConfigValue::Text(word),
            },
        };
        let span = key.span.to(self.span_from(self.end));
        if self.byte_at(self.scan_layout(self.position)) != b'}' {
            self.expect(b';')?;
        }
        Ok(ConfigEntry { key, value, span })
    }

    fn misplaced_config(&mut self, message: &str) {
        let start = self.position;
        self.take_word("config");
        self.error_at(self.span_from(start), message);
        self.skip_item();
    }

    fn macro_item(&mut self) -> Result<Macro> {
        let start = self.position;
        self.expect_word("macro")?;
        let name = self.identifier("expected macro name")?;
        let span = self.span_from(start);
        self.expect(b'(')?;
        let mut parameters = Vec::new();
        if !self.take(b')') {
            loop {
                parameters.push(self.macro_parameter()?);
                if !self.take(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        let body = self.block_with_value()?;
        Ok(Macro { name, parameters, body, span })
    }

    fn macro_parameter(&mut self) -> Result<MacroParameter> {
        self.layout();
        match self.peek() {
            b'$' => return Ok(MacroParameter::Variable(self.variable()?)),
            b'@' => return Ok(MacroParameter::Map(self.map())),
            _ => {}
        }
        let name = self.identifier("expected macro argument ($var, @map, or identifier)")?;
        if is_builtin(&name.text) {
            let message = format!("builtin '{}' can't be used as a macro argument", name.text);
            return Err(self.error_at(name.span, &message));
        }
        Ok(MacroParameter::Expr(name))
    }

    fn subprog(&mut self) -> Result<Subprog> {
        let start = self.position;
        self.expect_word("fn")?;
        let name = self.identifier("expected function name")?;
        let span = self.span_from(start);
        self.expect(b'(')?;
        let mut parameters = Vec::new();
        if !self.take(b')') {
            loop {
                self.layout();
                if self.peek() != b'$' {
                    return Err(self.error_here("expected variable in function argument"));
                }
                let variable = self.variable()?;
                self.expect(b':')?;
                parameters.push((variable, self.annotation()?));
                if !self.take(b',') {
                    break;
                }
            }
            self.expect(b')')?;
        }
        self.expect(b':')?;
        let returns = self.annotation()?;
        let body = self.body()?;
        Ok(Subprog { name, parameters, returns, body, span })
    }

    fn map_declaration(&mut self) -> Result<MapDecl> {
        let start = self.position;
        if self.byte_at(self.scan_layout(start + "let".len())) != b'@' {
            return Err(self.error_here(
                "root-level let statements need to be map declarations, e.g. let @a = hash(2);",
            ));
        }
        self.expect_word("let")?;
        self.layout();
        let map = self.map();
        self.expect(b'=')?;
        let kind = self.identifier("expected map type name")?;
        self.expect(b'(')?;
        let text = self.integer_text()?;
        let capacity = number::parse(&text)
            .map_err(|_| self.error_here("expected positive integer for map declaration max entries"))?;
        self.expect(b')')?;
        self.take(b';');
        Ok(MapDecl { map, kind, capacity, span: self.span_from(start) })
    }

    fn probe(&mut self) -> Result<Probe> {
        let mut attach = vec![self.attach_point()?];
        while self.take(b',') {
            self.layout();
            // A comma may be left behind the last.
            if matches!(self.peek(), b'/' | b'{') {
                break;
            }
            attach.push(self.attach_point()?);
        }
        let span = match attach.as_slice() {
            [first, .., last] => first.span.to(last.span),
            _ => attach[0].span,
        };
        let predicate = self.predicate()?;
        let body = self.body()?;
        self.resolve(&mut attach);
        Ok(Probe { attach, predicate, body, span })
    }

    /// Takes an attach point: everything up to layout, `,`, `{` or the `/` of a predicate.
    fn attach_point(&mut self) -> Result<AttachPoint> {
        self.layout();
        let start = self.position;
        let mut has_parts = false;
        while !self.at_end() {
            match self.peek() {
                b'{' | b',' => break,
                byte if byte.is_ascii_whitespace() => break,
                // Before the first colon it is no path.
                b'/' if !has_parts && self.position > start => break,
                b'"' => self.attach_quote(),
                byte => {
                    has_parts |= byte == b':';
                    self.bump(1);
                }
            }
        }
        if self.position == start {
            return Err(self.error_here("expected attach point"));
        }
        let text = self.slice(start, self.position);
        let span = self.span_from(start);
        Ok(AttachPoint { text, name: None, points: Vec::new(), span })
    }

    /// Finds what the attach points of a probe mean, once it is known that it is a probe.
    fn resolve(&mut self, attach: &mut [AttachPoint]) {
        for point in attach {
            match attach::parse(&point.text, self.attach) {
                Ok(parsed) => (point.name, point.points) = (parsed.name, parsed.points),
                Err(error) => {
                    if self.errors < MAX_ERRORS {
                        let told = Diagnostic::error(point.span, error.to_string());
                        let meant = match &error {
                            AttachError::Provider(name) => attach::nearest_provider(name),
                            _ => None,
                        };
                        self.diagnostics.push(match meant {
                            Some(meant) => told.hint(format!("did you mean '{meant}'?")),
                            None => told,
                        });
                    }
                    self.errors += 1;
                }
            }
        }
    }

    fn attach_quote(&mut self) {
        self.bump(1);
        while !self.at_end() && self.peek() != b'"' {
            self.bump(if self.peek() == b'\\' { 2 } else { 1 });
        }
        self.bump(1);
    }

    fn predicate(&mut self) -> Result<Option<Expr>> {
        if !self.take(b'/') {
            return Ok(None);
        }
        let predicate = self.expression()?;
        if !self.take(b'/') {
            return Err(self.error_here("expected '/' to close predicate"));
        }
        Ok(Some(predicate))
    }

    /// Skips an item that failed: behind its block, or to the end of the text.
    fn skip_item(&mut self) {
        self.skip_braces(0);
    }

    /// Skips to the end of a block in which `depth` braces are open.
    fn skip_braces(&mut self, mut depth: usize) {
        while !self.at_end() {
            match self.peek() {
                b'{' => depth += 1,
                b'}' if depth <= 1 => return self.bump(1),
                b'}' => depth -= 1,
                b';' if depth == 0 => return self.bump(1),
                _ => {}
            }
            self.bump(1);
        }
    }

    fn skip_line(&mut self) {
        while !self.at_end() && !matches!(self.peek(), b';' | b'\n') {
            self.bump(1);
        }
        self.take(b';');
    }
}

//! Trees as text: for `--fmt`, and for people who look at what macros made.
//!
//! What is printed is read again as the same tree. Parentheses are put where the grammar needs them, comments
//! stay before or behind what they were written at, and one empty line is kept where there were some.

mod expression;
mod statement;

use super::ast::{CStatement, Config, ConfigValue, Item, Macro, MacroParameter, Probe, Program, Subprog};
use super::words::is_word;
use crate::source::{Sources, Span};

/// A script as text. Its comments are found in `sources`.
///
/// ```
/// use trapless_script::diagnostics::Diagnostics;
/// use trapless_script::source::Sources;
/// use trapless_script::syntax::{parse_program, print};
///
/// let mut sources = Sources::default();
/// let script = sources.add("stdin", "begin{@a=1+2; /* why */}").unwrap();
/// let program = parse_program(
///     &sources,
///     script,
///     &Default::default(),
///     &mut Default::default(),
///     &mut Diagnostics::default(),
/// );
/// assert_eq!(print(&program, &sources), "begin\n{\n  @a = 1 + 2; // why\n}\n");
/// ```
pub fn print(program: &Program, sources: &Sources) -> String {
    let mut printer = Printer {
        out: String::new(),
        indent: 0,
        sources,
        comments: program
            .comments
            .iter()
            .map(|comment| comment.span)
            .filter(|span| !program.c.iter().any(|c| c.span.start <= span.start && span.end <= c.span.end))
            .collect(),
        next_comment: 0,
        last_end: 0,
    };
    printer.program(program);
    printer.out
}

struct Printer<'a> {
    out: String,
    indent: usize,
    sources: &'a Sources,
    comments: Vec<Span>,
    next_comment: usize,
    /// Where in the source that ended which was printed last.
    last_end: u32,
}

impl Printer<'_> {
    fn line(&mut self, text: &str) {
        self.begin_line();
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn begin_line(&mut self) {
        self.out.extend(std::iter::repeat_n(' ', 2 * self.indent));
    }

    /// The bytes between what was printed last and `at`.
    fn between(&self, span: Span) -> &str {
        self.sources.get(span.source).text().get(self.last_end as usize..span.start as usize).unwrap_or("")
    }

    /// Prints an empty line if there was one before `span`.
    fn gap(&mut self, span: Span) {
        let lines = self.between(span).bytes().filter(|&byte| byte == b'\n').count();
        let fresh = self.out.is_empty() || self.out.ends_with("{\n") || self.out.ends_with("\n\n");
        if lines > 1 && !fresh {
            self.out.push('\n');
        }
    }

    /// Prints the comments before `at`, and the empty line before what is there.
    fn before(&mut self, span: Span) {
        self.comments_until(span.start);
        self.gap(span);
    }

    /// Prints the comments that start before `at`. One on the line of what was printed last stays on it.
    fn comments_until(&mut self, at: u32) {
        while let Some(&comment) = self.comments.get(self.next_comment).filter(|comment| comment.start < at) {
            self.next_comment += 1;
            let trailing = comment.start >= self.last_end
                && !self.between(comment).contains('\n')
                && self.out.ends_with('\n')
                && !self.out.ends_with("{\n")
                && self.last_end > 0;
            if trailing {
                self.out.pop();
                self.out.push(' ');
            } else {
                self.gap(comment);
                self.begin_line();
            }
            for (index, text) in comment_lines(self.sources.text(comment)).into_iter().enumerate() {
                if index > 0 {
                    self.begin_line();
                }
                self.out.push_str("// ");
                self.out.truncate(self.out.trim_end().len() + usize::from(!text.is_empty()));
                self.out.push_str(&text);
                self.out.push('\n');
            }
            self.last_end = self.last_end.max(comment.end);
        }
    }

    fn done(&mut self, span: Span) {
        self.last_end = self.last_end.max(span.end);
    }

    fn program(&mut self, program: &Program) {
        if let Some(header) = &program.header {
            self.line(header);
            self.last_end = header.len() as u32;
        }
        for CStatement { text, span } in &program.c {
            self.before(*span);
            let end = if text.starts_with('#') { "" } else { ";" };
            self.out.push_str(&format!("{text}{end}\n"));
            self.done(*span);
        }
        if let Some(config) = &program.config {
            self.config(config);
        }
        for import in &program.imports {
            self.before(import.span);
            self.line(&format!("import {};", expression::string(import.path.as_bytes())));
            self.done(import.span);
        }
        for item in &program.items {
            self.item(item);
        }
        self.comments_until(u32::MAX);
    }

    fn config(&mut self, config: &Config) {
        self.before(config.span);
        self.line("config = {");
        self.indent += 1;
        self.last_end = config.span.start;
        for entry in &config.entries {
            self.before(entry.span);
            let value = match &entry.value {
                ConfigValue::Integer(number) => number.to_string(),
                ConfigValue::Boolean(value) => value.to_string(),
                ConfigValue::Text(text) if is_word(text) && text != "true" && text != "false" => text.clone(),
                ConfigValue::Text(text) => expression::string(text.as_bytes()),
            };
            self.line(&format!("{} = {value};", entry.key.text));
            self.done(entry.span);
        }
        self.comments_until(config.span.end);
        self.indent -= 1;
        self.line("}");
        self.done(config.span);
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Probe(probe) => self.probe(probe),
            Item::Macro(written) => self.macro_item(written),
            Item::Subprog(function) => self.subprog(function),
            Item::MapDecl(map) => {
                self.before(map.span);
                self.line(&format!("let @{} = {}({});", map.map.text, map.kind.text, map.capacity));
                self.done(map.span);
            }
        }
    }

    fn probe(&mut self, probe: &Probe) {
        self.before(probe.span);
        self.comments_until(probe.body.span.start);
        let points: Vec<&str> = probe.attach.iter().map(|point| point.text.as_str()).collect();
        self.line(&points.join(",\n"));
        if let Some(predicate) = &probe.predicate {
            let text = self.expression(predicate, 0);
            // A slash before these would begin a comment.
            let space = if text.starts_with(['*', '/']) { " " } else { "" };
            self.line(&format!("/{space}{text}/"));
        }
        self.last_end = probe.body.span.start;
        let body = self.block(&probe.body, true);
        self.line(&body);
        self.done(probe.body.span);
    }

    fn macro_item(&mut self, written: &Macro) {
        self.before(written.span);
        self.comments_until(written.body.span.start);
        let parameters: Vec<String> = written
            .parameters
            .iter()
            .map(|parameter| match parameter {
                MacroParameter::Variable(name) => format!("${}", name.text),
                MacroParameter::Map(name) => format!("@{}", name.text),
                MacroParameter::Expr(name) => name.text.clone(),
            })
            .collect();
        self.line(&format!("macro {}({})", written.name.text, parameters.join(", ")));
        self.last_end = written.body.span.start;
        let body = self.block(&written.body, false);
        self.line(&body);
        self.done(written.body.span);
    }

    fn subprog(&mut self, function: &Subprog) {
        self.before(function.span);
        self.comments_until(function.body.span.start);
        let mut parameters = Vec::new();
        for (name, of) in &function.parameters {
            parameters.push(format!("${} : {}", name.text, self.annotation(of)));
        }
        let returns = self.annotation(&function.returns);
        self.line(&format!("fn {}({}) : {returns}", function.name.text, parameters.join(", ")));
        self.last_end = function.body.span.start;
        let body = self.block(&function.body, true);
        self.line(&body);
        self.done(function.body.span);
    }
}

/// The text of a comment without its marks, line by line.
fn comment_lines(comment: &str) -> Vec<String> {
    if let Some(text) = comment.strip_prefix("//") {
        return vec![text.trim().to_string()];
    }
    let inside = comment.strip_prefix("/*").unwrap_or(comment);
    let inside = inside.strip_suffix("*/").unwrap_or(inside);
    let mut lines: Vec<String> =
        inside.lines().map(|line| line.trim().trim_start_matches('*').trim().to_string()).collect();
    let is_empty = |line: &String| line.is_empty();
    while lines.len() > 1 && lines.last().is_some_and(is_empty) {
        lines.pop();
    }
    while lines.len() > 1 && lines.first().is_some_and(is_empty) {
        lines.remove(0);
    }
    if lines.is_empty() {
        lines.push(String::new());
    }
    lines
}

#[cfg(test)]
mod tests;

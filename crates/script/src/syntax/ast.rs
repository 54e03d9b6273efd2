//! The tree of a script: what the parser reads, macros expand and the checker walks.
//!
//! Nothing here has a type yet. Every expression has an [`ExprId`], unique in its script, so that later
//! passes keep what they learn in tables beside the tree.
//!
//! Two trees are equal if they mean the same text: spans, ids and the notation of literals do not count.

mod expr;
mod point;
mod types;
pub mod visit;

pub use expr::*;
pub use point::*;
pub use types::*;

use crate::source::Span;

/// A name as written, without its sigil.
#[derive(Clone, Debug)]
pub struct Name {
    /// The name. A map without a name is the empty string.
    pub text: String,
    /// Where it stands, with its sigil.
    pub span: Span,
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.text == other.text
    }
}

/// One file of a script.
#[derive(Clone, Debug)]
pub struct Program {
    /// The `#!` line, without its end.
    pub header: Option<String>,
    /// Lines of the preprocessor and definitions of C, in order.
    pub c: Vec<CStatement>,
    /// The `config` block.
    pub config: Option<Config>,
    /// The files to import.
    pub imports: Vec<Import>,
    /// The body of the script, in order.
    pub items: Vec<Item>,
    /// Every comment, in order.
    pub comments: Vec<Comment>,
    /// The whole text.
    pub span: Span,
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.header == other.header
            && self.c == other.c
            && self.config == other.config
            && self.imports == other.imports
            && self.items == other.items
    }
}

/// A comment, which formatting keeps.
#[derive(Clone, Copy, Debug)]
pub struct Comment {
    /// The comment with its marks.
    pub span: Span,
}

/// A line of the preprocessor, or a definition of C, as text.
#[derive(Clone, Debug)]
pub struct CStatement {
    /// A `#` line, or `struct`, `union` or `enum` with its body and attributes.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

impl PartialEq for CStatement {
    fn eq(&self, other: &CStatement) -> bool {
        self.text == other.text
    }
}

/// `config = { … }`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings, in order.
    pub entries: Vec<ConfigEntry>,
    /// The whole block.
    pub span: Span,
}

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        self.entries == other.entries
    }
}

/// One setting of a config block.
#[derive(Clone, Debug)]
pub struct ConfigEntry {
    /// The option, as written.
    pub key: Name,
    /// Its value.
    pub value: ConfigValue,
    /// Key and value.
    pub span: Span,
}

impl PartialEq for ConfigEntry {
    fn eq(&self, other: &ConfigEntry) -> bool {
        self.key == other.key && self.value == other.value
    }
}

/// The value of a setting as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// A number.
    Integer(u64),
    /// `true` or `false`.
    Boolean(bool),
    /// A string, or a word without quotes.
    Text(String),
}

/// `import "path";`.
#[derive(Clone, Debug)]
pub struct Import {
    /// What is in quotes.
    pub path: String,
    /// From the keyword to the closing quote.
    pub span: Span,
}

impl PartialEq for Import {
    fn eq(&self, other: &Import) -> bool {
        self.path == other.path
    }
}

/// What the body of a script consists of.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A probe with its body.
    Probe(Probe),
    /// A macro. Expansion removes it.
    Macro(Macro),
    /// A function, which bpftrace parses and cannot call.
    Subprog(Subprog),
    /// The declaration of a map.
    MapDecl(MapDecl),
}

/// Attach points, a predicate and what to do.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where to attach, at least one.
    pub attach: Vec<AttachPoint>,
    /// What must hold for the body to run.
    pub predicate: Option<Expr>,
    /// What runs.
    pub body: Block,
    /// The attach points.
    pub span: Span,
}

impl PartialEq for Probe {
    fn eq(&self, other: &Probe) -> bool {
        self.attach == other.attach && self.predicate == other.predicate && self.body == other.body
    }
}

/// `macro name(parameters) { … }`.
#[derive(Clone, Debug)]
pub struct Macro {
    /// Its name. Several macros may have one name with different parameters.
    pub name: Name,
    /// What it takes.
    pub parameters: Vec<MacroParameter>,
    /// What a call becomes.
    pub body: Block,
    /// From the keyword to the name.
    pub span: Span,
}

impl PartialEq for Macro {
    fn eq(&self, other: &Macro) -> bool {
        self.name == other.name && self.parameters == other.parameters && self.body == other.body
    }
}

/// A parameter of a macro. The kind says what may be given.
#[derive(Clone, Debug, PartialEq)]
pub enum MacroParameter {
    /// `$v`: a variable, by reference.
    Variable(Name),
    /// `@m`: a map, by reference.
    Map(Name),
    /// `e`: any expression, put in as it is.
    Expr(Name),
}

impl MacroParameter {
    /// Its name.
    pub fn name(&self) -> &Name {
        match self {
            MacroParameter::Variable(name) | MacroParameter::Map(name) | MacroParameter::Expr(name) => name,
        }
    }
}

/// `fn name($a : type) : type { … }`.
#[derive(Clone, Debug)]
pub struct Subprog {
    /// Its name.
    pub name: Name,
    /// Its parameters with their types.
    pub parameters: Vec<(Name, TypeOf)>,
    /// What it returns.
    pub returns: TypeOf,
    /// Its body.
    pub body: Block,
    /// From the keyword to the name.
    pub span: Span,
}

impl PartialEq for Subprog {
    fn eq(&self, other: &Subprog) -> bool {
        self.name == other.name
            && self.parameters == other.parameters
            && self.returns == other.returns
            && self.body == other.body
    }
}

/// `let @m = hash(N);`.
#[derive(Clone, Debug)]
pub struct MapDecl {
    /// The map.
    pub map: Name,
    /// The kind of map, as written.
    pub kind: Name,
    /// How many keys it has room for.
    pub capacity: u64,
    /// The whole declaration.
    pub span: Span,
}

impl PartialEq for MapDecl {
    fn eq(&self, other: &MapDecl) -> bool {
        self.map == other.map && self.kind == other.kind && self.capacity == other.capacity
    }
}

/// Statements, and the value that the block has as an expression.
#[derive(Clone, Debug)]
pub struct Block {
    /// What runs, in order.
    pub statements: Vec<Stmt>,
    /// The expression without a semicolon at the end.
    ///
    /// The bodies of probes, loops and functions have none: there it is a statement.
    pub value: Option<Box<Expr>>,
    /// With its braces.
    pub span: Span,
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        self.statements == other.statements && self.value == other.value
    }
}

/// A statement.
#[derive(Clone, Debug)]
pub struct Stmt {
    /// What it does.
    pub kind: StmtKind,
    /// Where it stands, without its semicolon.
    pub span: Span,
}

impl PartialEq for Stmt {
    fn eq(&self, other: &Stmt) -> bool {
        self.kind == other.kind
    }
}

/// What a statement does.
#[derive(Clone, Debug, PartialEq)]
pub enum StmtKind {
    /// An expression for its effect.
    Expr(Expr),
    /// `let $x : type = value`.
    Let {
        /// The variable.
        variable: Name,
        /// Its type, if told.
        of: Option<TypeOf>,
        /// Its first value, if told.
        value: Option<Expr>,
    },
    /// `place = value`, or `place op= value`.
    Assign {
        /// What is assigned to.
        place: Place,
        /// The operator of a compound assignment.
        op: Option<BinaryOp>,
        /// What is assigned.
        value: Expr,
    },
    /// `_ = value`: the value is not wanted.
    Discard(Expr),
    /// `unroll (count) { … }`.
    Unroll {
        /// How often.
        count: Expr,
        /// What.
        body: Block,
    },
    /// `while (condition) { … }`.
    While {
        /// How long.
        condition: Expr,
        /// What.
        body: Block,
    },
    /// `for ($x : over) { … }`.
    For {
        /// The variable, which lives in the body.
        variable: Name,
        /// What is gone through.
        over: Iterable,
        /// What runs for each.
        body: Block,
    },
    /// `break`.
    Break,
    /// `continue`.
    Continue,
    /// `return`, with a value in functions.
    Return(Option<Expr>),
    /// `import "file.c";` in a block.
    Import(Import),
}

/// What `for` goes through.
#[derive(Clone, Debug)]
pub enum Iterable {
    /// The keys and values of a map.
    Map(Name),
    /// The integers from `start` up to, and without, `end`.
    Range {
        /// The first.
        start: Box<Expr>,
        /// The one behind the last.
        end: Box<Expr>,
        /// The loop up to here, as bpftrace tells it.
        span: Span,
    },
}

impl PartialEq for Iterable {
    fn eq(&self, other: &Iterable) -> bool {
        match (self, other) {
            (Iterable::Map(a), Iterable::Map(b)) => a == b,
            (Iterable::Range { start: a, end: b, .. }, Iterable::Range { start: c, end: d, .. }) => {
                (a, b) == (c, d)
            }
            _ => false,
        }
    }
}

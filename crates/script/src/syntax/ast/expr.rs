//! Expressions, and places that can be assigned to.

use super::{Block, Name, TypeOf};
use crate::source::Span;

/// The number of an expression in its script, for tables beside the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExprId(pub(crate) u32);

impl ExprId {
    /// The number, below the script's count of ids.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Hands out numbers for expressions.
#[derive(Clone, Debug, Default)]
pub struct ExprIds {
    next: u32,
}

impl ExprIds {
    /// A number that was not handed out yet.
    pub fn fresh(&mut self) -> ExprId {
        let id = ExprId(self.next);
        // The parser and the expander stop long before: both limit how much they read and write.
        self.next = self.next.saturating_add(1);
        id
    }

    /// How many were handed out.
    pub fn count(&self) -> usize {
        self.next as usize
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub struct Expr {
    /// Its number.
    pub id: ExprId,
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Expr) -> bool {
        self.kind == other.kind
    }
}

/// What an expression is.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// `42`, `0x2a`, `1e6`, `5ms`.
    Integer(Integer),
    /// `1.5`, `2.5e-3`. bpftrace has none.
    Float(Float),
    /// `true`, `false`.
    Boolean(bool),
    /// `"text"`, with its escapes resolved; any bytes, also 0.
    String(Vec<u8>),
    /// `$1`, from 1.
    Positional(u64),
    /// `$#`.
    PositionalCount,
    /// A word that is none of the reserved builtins: a function without parentheses, a constant of C, a mode
    /// of stacks, a type.
    Identifier(String),
    /// A reserved builtin: `pid`, `arg0`, `args`, ….
    Builtin(String),
    /// `name(arguments)`.
    Call {
        /// What is called.
        name: Name,
        /// With what. A [`ExprKind::TypeArg`] is left only where no macro took it.
        arguments: Vec<Expr>,
    },
    /// `typeof(…)` as an argument of a call.
    TypeArg(Box<TypeOf>),
    /// `sizeof(…)`.
    Sizeof(Box<TypeOf>),
    /// `offsetof(type, field.field)`.
    Offsetof {
        /// The record, or an expression of its type.
        of: Box<TypeOf>,
        /// The way to the field, at least one name.
        fields: Vec<Name>,
    },
    /// `typeinfo(…)`.
    Typeinfo(Box<TypeOf>),
    /// `$x`.
    Variable(String),
    /// `@m`, whole or with no key.
    Map(String),
    /// `@m[key]`. Several keys are one tuple.
    MapElement {
        /// The map.
        map: Name,
        /// The key.
        key: Box<Expr>,
    },
    /// `&$x`.
    VariableAddress(Name),
    /// `&@m`.
    MapAddress(Name),
    /// `left op right`.
    Binary {
        /// The operator.
        op: BinaryOp,
        /// Its left side.
        left: Box<Expr>,
        /// Its right side.
        right: Box<Expr>,
    },
    /// `op operand`.
    Unary {
        /// The operator.
        op: UnaryOp,
        /// What it works on.
        operand: Box<Expr>,
    },
    /// `++place`, `place--`, ….
    Step {
        /// What is counted up or down.
        place: Box<Place>,
        /// Which way.
        step: Step,
        /// Whether the value is that before or that after.
        order: StepOrder,
    },
    /// `record.name`, `pointer->name`.
    Field {
        /// The record or a pointer to it.
        of: Box<Expr>,
        /// How it was written. Both mean the same.
        access: Access,
        /// The field.
        name: Name,
    },
    /// `tuple.0`.
    TupleIndex {
        /// The tuple.
        of: Box<Expr>,
        /// Which part, from 0.
        index: u64,
    },
    /// `array[index]`, also of pointers and strings.
    Index {
        /// The array.
        of: Box<Expr>,
        /// Which element.
        index: Box<Expr>,
    },
    /// `(type)value`. The span is that of the parenthesised type.
    Cast {
        /// The type.
        to: Box<TypeOf>,
        /// The value.
        value: Box<Expr>,
    },
    /// `(a, b)`, also `()` and `(a,)`.
    Tuple(Vec<Expr>),
    /// `(x=1, y=2)`. The names differ.
    Record(Vec<RecordField>),
    /// `condition ? then : otherwise`.
    Ternary {
        /// What decides.
        condition: Box<Expr>,
        /// The value if it holds; nothing in `condition ?: otherwise`, where it is the condition itself.
        then: Option<Box<Expr>>,
        /// The value if it does not.
        otherwise: Box<Expr>,
    },
    /// `if condition { … } else …`.
    If {
        /// What decides.
        condition: Box<Expr>,
        /// What runs if it holds.
        then: Block,
        /// What runs if not: an [`ExprKind::Block`] or an [`ExprKind::If`].
        otherwise: Option<Box<Expr>>,
    },
    /// `{ …; value }`.
    Block(Block),
    /// `comptime value`.
    Comptime(Box<Expr>),
}

/// An integer of the text.
#[derive(Clone, Debug)]
pub struct Integer {
    /// Its value, with the factor of its unit.
    pub value: u64,
    /// How it was written.
    pub text: String,
}

impl PartialEq for Integer {
    fn eq(&self, other: &Integer) -> bool {
        self.value == other.value
    }
}

/// A float of the text.
#[derive(Clone, Debug)]
pub struct Float {
    /// Its value. Finite.
    pub value: f64,
    /// How it was written.
    pub text: String,
}

impl PartialEq for Float {
    fn eq(&self, other: &Float) -> bool {
        self.value == other.value
    }
}

/// `name=value` in a record.
#[derive(Clone, Debug)]
pub struct RecordField {
    /// The name.
    pub name: Name,
    /// The value.
    pub value: Expr,
    /// Both.
    pub span: Span,
}

impl PartialEq for RecordField {
    fn eq(&self, other: &RecordField) -> bool {
        self.name == other.name && self.value == other.value
    }
}

/// What can be assigned to.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its number among the expressions.
    pub id: ExprId,
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: PlaceKind,
}

impl PartialEq for Place {
    fn eq(&self, other: &Place) -> bool {
        self.kind == other.kind
    }
}

/// What a place is.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaceKind {
    /// `$x`.
    Variable(String),
    /// `@m`.
    Map(String),
    /// `@m[key]`.
    MapElement {
        /// The map.
        map: Name,
        /// The key, a tuple if there are several.
        key: Box<Expr>,
    },
}

/// How a field was reached.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// `.`
    Dot,
    /// `->`
    Arrow,
}

impl PartialEq for Access {
    // Both follow pointers by themselves.
    fn eq(&self, _: &Access) -> bool {
        true
    }
}

/// Which way a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `++`
    Up,
    /// `--`
    Down,
}

/// Whether a step has the value before it or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOrder {
    /// `++x`: the new value.
    Before,
    /// `x++`: the old value.
    After,
}

/// An operator with two sides, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `||`
    LogicalOr,
    /// `&&`
    LogicalAnd,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `&`
    BitAnd,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
    /// `<<`
    ShiftLeft,
    /// `>>`
    ShiftRight,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
}

impl BinaryOp {
    /// How strongly it binds, from 1 to 10. All associate to the left.
    pub fn precedence(self) -> u8 {
        match self {
            BinaryOp::LogicalOr => 1,
            BinaryOp::LogicalAnd => 2,
            BinaryOp::BitOr => 3,
            BinaryOp::BitXor => 4,
            BinaryOp::BitAnd => 5,
            BinaryOp::Equal | BinaryOp::NotEqual => 6,
            BinaryOp::Less | BinaryOp::LessEqual | BinaryOp::Greater | BinaryOp::GreaterEqual => 7,
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => 8,
            BinaryOp::Add | BinaryOp::Subtract => 9,
            BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Modulo => 10,
        }
    }

    /// How it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::LogicalOr => "||",
            BinaryOp::LogicalAnd => "&&",
            BinaryOp::BitOr => "|",
            BinaryOp::BitXor => "^",
            BinaryOp::BitAnd => "&",
            BinaryOp::Equal => "==",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterEqual => ">=",
            BinaryOp::ShiftLeft => "<<",
            BinaryOp::ShiftRight => ">>",
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Modulo => "%",
        }
    }
}

/// An operator before its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// `!`
    Not,
    /// `~`
    BitNot,
    /// `-`
    Minus,
    /// `*`
    Dereference,
}

impl UnaryOp {
    /// How it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            UnaryOp::Not => "!",
            UnaryOp::BitNot => "~",
            UnaryOp::Minus => "-",
            UnaryOp::Dereference => "*",
        }
    }
}

//! Builtins: what a script can know of the hit by a word alone.

use super::checker::Checker;
use super::clauses::ClauseKind;
use super::environment::{Described, Held};
use super::expression::literal;
use super::tree::{Call, Expr, Kind};
use super::types::{Clock, Int, Type};
use crate::ir::{ClockKind, Context, Kin, Unary};
use crate::source::Span;
use std::sync::Arc;
use trapless_isa::passed::MOST_PASSED;

/// What the kernel alone knows, and what to do instead.
const KERNELS: [(&str, &str); 14] = [
    ("kstack", "ustack tells the stack of the program"),
    ("ksym", "usym tells the symbol of an address in the program"),
    ("kaddr", "uaddr tells the address of a symbol in the program"),
    ("kptr", "pointers are the program's"),
    ("percpu_kaddr", "uaddr tells the address of a symbol in the program"),
    ("curtask", "pid, tid, comm, uid and ppid tell what is known of the task"),
    ("jiffies", "nsecs and elapsed tell the time"),
    ("path", "str reads a path from the program"),
    ("skboutput", "packets are the kernel's"),
    ("socket_cookie", "sockets are the kernel's"),
    ("unwatch", "watchpoints are not set"),
    ("debugf", "printf tells the same"),
    ("write_user", "the program's memory is not written to"),
    ("kfunc_allowed", "functions of the kernel are not called"),
];

/// Names of builtins that need no number.
pub const NAMES: [&str; 28] = [
    "pcomm",
    "leader_comm",
    "pid",
    "tid",
    "leader_tid",
    "ppid",
    "uid",
    "gid",
    "cpu",
    "ncpus",
    "numaid",
    "cgroup",
    "rand",
    "nsecs",
    "elapsed",
    "username",
    "comm",
    "usermode",
    "cpid",
    "ctx",
    "probe",
    "probetype",
    "func",
    "retval",
    "fretval",
    "duration",
    "args",
    "ustack",
];

impl Checker<'_> {
    /// The sentence that refuses what is the kernel's.
    pub fn refusal(name: &str) -> Option<String> {
        let (_, instead) = KERNELS.iter().find(|(kernel, _)| *kernel == name)?;
        Some(format!("{name} is about the kernel, and only user programs are probed here: {instead}"))
    }

    /// A builtin by its name; `None` if there is none of that name.
    pub fn builtin(&mut self, name: &str, span: Span) -> Option<Expr> {
        let name = name.strip_prefix("__builtin_").unwrap_or(name);
        let context = |of, context| Expr { of, span, kind: Kind::Context(context) };
        let time = |clock| Type::Int(Int { clock, ..Int::new(8, false) });
        if let Some(sentence) = Checker::refusal(name)
            && name != "kfunc_allowed"
        {
            self.error(span, sentence);
            return Some(Expr::nothing(span));
        }
        Some(match name {
            "pid" => context(Type::UINT32, Context::Pid),
            "tid" => context(Type::UINT32, Context::Tid),
            // A process is called after its first thread.
            "leader_tid" => context(Type::UINT32, Context::Pid),
            "ppid" => context(Type::UINT32, Context::ParentPid),
            "uid" => context(Type::UINT64, Context::Uid),
            "gid" => context(Type::UINT64, Context::Gid),
            "cpu" => context(Type::UINT64, Context::Cpu),
            "ncpus" => context(Type::UINT64, Context::Processors),
            "numaid" => context(Type::UINT64, Context::NumaNode),
            "cgroup" => context(Type::UINT64, Context::Cgroup),
            "rand" => super::convert::converted(context(Type::UINT64, Context::Random), &Type::UINT32),
            "nsecs" => context(time(Clock::Boot), Context::Time(ClockKind::Boot)),
            "elapsed" => context(Type::UINT64, Context::Elapsed),
            "username" => {
                let uid = context(Type::UINT64, Context::Uid);
                Expr { of: Type::Username, span, kind: Kind::Convert(Box::new(uid)) }
            }
            "comm" => Expr { of: Type::String(16), span, kind: Kind::Call(Call::Comm) },
            "pcomm" | "leader_comm" => {
                if self.at.clause.kind.is_in_program() && !self.environment.is_unsafe_allowed() {
                    let text = format!(
                        "{name} is unsafe in a probe: it is read through a descriptor that the program has for a moment. To use you need the --unsafe flag"
                    );
                    self.error(span, text);
                }
                let kin = if name == "pcomm" { Kin::Parent } else { Kin::Own };
                Expr { of: Type::String(16), span, kind: Kind::Call(Call::NameOf(kin)) }
            }
            "usermode" => literal(1, span),
            "cpid" => match self.environment.child() {
                Some(child) => Expr::int(Type::UINT32, child.into(), span),
                None => Expr::int(Type::UINT32, 0, span),
            },
            "ctx" => {
                let kind = self.at.clause.kind;
                if !kind.has_registers() && kind != ClauseKind::Interval {
                    let provider = kind.name();
                    self.error(span, format!("The ctx builtin can not be used with '{provider}' probes"));
                }
                Expr::int(self.structs.pointer(Type::Void), 0, span)
            }
            "probe" => self.probe(span),
            "probetype" => self.text(self.at.clause.kind.provider().as_bytes().to_vec(), span),
            "func" => self.func(span),
            "retval" => self.result(span),
            "fretval" => self.float_result(span),
            "duration" => {
                self.only_at_returns("duration", span);
                context(Type::UINT64, Context::Duration)
            }
            "args" => match (self.at.clause.kind, self.function().is_some()) {
                (ClauseKind::Entry | ClauseKind::Inside, _) | (ClauseKind::Return, true) => {
                    self.arguments(span)
                }
                (kind, _) => {
                    let provider = kind.provider();
                    self.error(
                        span,
                        format!(
                            "The args builtin can only be used with tracepoint, rawtracepoint, fentry/fexit, and \
                             uprobe probes ({provider} used here)"
                        ),
                    );
                    Expr::nothing(span)
                }
            },
            "ustack" | "dw_ustack" => self.stack(name, &[], span),
            "default_str_length" => literal(self.longest().into(), span),
            "safe_mode" => Expr::int(Type::Bool, (!self.environment.is_unsafe_allowed()).into(), span),
            "arch" => self.text(self.environment.machine().name.as_bytes().to_vec(), span),
            "config" => self.configuration(span),
            _ => return self.numbered(name, span),
        })
    }

    fn numbered(&mut self, name: &str, span: Span) -> Option<Expr> {
        let number = |prefix: &str| {
            let digits = name.strip_prefix(prefix)?;
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse().unwrap_or(u64::MAX))
        };
        let word = |context| Expr { of: Type::UINT64, span, kind: Kind::Context(context) };
        if let Some(number) = number("arg") {
            return Some(self.argument(name, number, span));
        }
        if let Some(number) = number("farg") {
            self.in_target(name, span);
            if number >= self.environment.machine().float_arguments.into() {
                self.error(span, format!("{} doesn't support {name}", self.environment.machine().name));
                return Some(Expr::nothing(span));
            }
            let bits = word(Context::FloatRegister(number as u8));
            return Some(Expr {
                of: Type::Float(8),
                span,
                kind: Kind::Unary(Unary::BitsFloat, Box::new(bits)),
            });
        }
        if let Some(number) = number("sarg") {
            self.in_target(name, span);
            if number > 4096 {
                self.error(span, format!("{name} is too far up the stack"));
                return Some(Expr::nothing(span));
            }
            let machine = self.environment.machine();
            let offset = machine.stack_arguments + i64::from(machine.word) * number as i64;
            let offset = Expr::int(Type::INT64, offset, span);
            let frame = word(Context::Frame);
            let kind = Kind::Binary(crate::ir::Binary::Add, Box::new(frame), Box::new(offset));
            let of = Type::int(machine.word, false);
            let address = Expr { of: self.structs.pointer(of.clone()), span, kind };
            return Some(Expr { of, span, kind: Kind::Deref(Box::new(address)) });
        }
        None
    }

    fn argument(&mut self, name: &str, number: u64, span: Span) -> Expr {
        let word = |context| Expr { of: Type::UINT64, span, kind: Kind::Context(context) };
        match self.at.clause.kind {
            ClauseKind::Usdt if number < MOST_PASSED as u64 => self.operand(number as u8, span),
            ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return
                if number < self.environment.machine().arguments.into() =>
            {
                word(Context::Argument(number as u8))
            }
            ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return | ClauseKind::Usdt => {
                self.error(span, format!("{} doesn't support {name}", self.environment.machine().name));
                Expr::nothing(span)
            }
            _ => {
                self.error(
                    span,
                    format!(
                        "The {name} builtin can only be used with 'kprobes', 'uprobes' and 'usdt' probes"
                    ),
                );
                Expr::nothing(span)
            }
        }
    }

    /// An argument of a USDT probe: a word, or a double where the notes of all places say so.
    pub(super) fn operand(&mut self, argument: u8, span: Span) -> Expr {
        let mut points = self.at.clause.points.iter();
        let is_float = points.all(|point| self.environment.is_float_operand(&point.point, argument));
        let of = if is_float { Type::Float(8) } else { Type::UINT64 };
        Expr { of, span, kind: Kind::Operand(argument) }
    }

    fn in_target(&mut self, name: &str, span: Span) {
        if !matches!(self.at.clause.kind, ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return) {
            self.error(span, format!("The {name} builtin can only be used with 'uprobes' and 'uretprobes'"));
        }
    }

    fn only_at_returns(&mut self, name: &str, span: Span) -> bool {
        let is_return = self.at.clause.kind == ClauseKind::Return;
        if !is_return {
            self.error(
                span,
                format!(
                    "The {name} builtin can only be used with 'kretprobe' and 'uretprobe' and 'fentry' probes"
                ),
            );
        }
        is_return
    }

    fn result(&mut self, span: Span) -> Expr {
        if !self.only_at_returns("retval", span) {
            return Expr::nothing(span);
        }
        // It has its type where all functions return the same, and is a word where they do not.
        if let Some((of, place)) = self.common_result().or_else(|| self.own_result()) {
            let of = self.structs.described(&of, 0);
            if let Some(value) = self.value_at(&place, of, span) {
                return value;
            }
        }
        Expr { of: Type::UINT64, span, kind: Kind::Context(Context::Result) }
    }

    /// What all functions of the clause return.
    fn common_result(&self) -> Option<(Described, Held)> {
        let mut results = self.at.clause.points.iter().map(|point| self.environment.result(&point.point));
        let first = results.next()??;
        results.all(|other| other.as_ref() == Some(&first)).then_some(first)
    }

    /// What the function returns that the clause is checked for.
    fn own_result(&mut self) -> Option<(Described, Held)> {
        if !self.environment.tells_results_apart() {
            return None;
        }
        self.at.body.depends_on_function = true;
        let function = self.function()?;
        function.result.zip(function.returned)
    }

    fn float_result(&mut self, span: Span) -> Expr {
        if !self.only_at_returns("fretval", span) {
            return Expr::nothing(span);
        }
        self.at.body.depends_on_function = true;
        // A float is told from a double by what debug information says, if it says it.
        let single =
            matches!(self.function().and_then(|function| function.result), Some(Described::Float(4)));
        let bits = Expr { of: Type::UINT64, span, kind: Kind::Context(Context::FloatResult) };
        let size = if single { 4 } else { 8 };
        self.from_float(bits, &Type::Float(size), size.into(), span)
    }

    fn probe(&mut self, span: Span) -> Expr {
        // Of the probed program's probes it is known when they are attached.
        match &self.at.clause.points[..] {
            [only] if !self.at.clause.kind.is_in_target() => {
                let text = only.text.clone().into_bytes();
                self.text(text, span)
            }
            _ => Expr { of: Type::Probe, span, kind: Kind::Context(Context::Site) },
        }
    }

    /// A value as the text that it is, where it is the name of the probe: the script computes with that, so each probe has a body of its own.
    pub(super) fn with_name(&mut self, value: Expr) -> Expr {
        if !matches!((&value.of, &value.kind), (Type::Probe, Kind::Context(Context::Site))) {
            return value;
        }
        self.at.body.depends_on_name = true;
        let known = self.at.function.as_ref().and_then(|function| function.probe.clone());
        let name = known.or_else(|| Some(self.at.clause.points.first()?.text.clone()));
        self.text(name.unwrap_or_default().into_bytes(), value.span)
    }

    fn func(&mut self, span: Span) -> Expr {
        match self.at.clause.kind {
            ClauseKind::Entry | ClauseKind::Inside | ClauseKind::Return => {
                Expr { of: Type::Function, span, kind: Kind::Context(Context::Site) }
            }
            kind => {
                let provider = kind.name();
                self.error(span, format!("The func builtin can not be used with '{provider}' probes"));
                Expr::nothing(span)
            }
        }
    }

    /// `config()`: every setting with its value.
    fn configuration(&mut self, span: Span) -> Expr {
        use crate::syntax::config::{MissingProbes, StackMode, Unstable};
        let settings = self.settings;
        let truth = |value: bool| Expr::int(Type::Bool, value.into(), span);
        let number = |value: u64| literal(value.into(), span);
        let text = |value: &str| {
            let room = value.len() as u32 + 1;
            Expr { of: Type::String(room), span, kind: Kind::Text(value.as_bytes().to_vec()) }
        };
        let unstable = |value| {
            text(match value {
                Unstable::Enable => "enable",
                Unstable::Warn => "warn",
                Unstable::Error => "error",
            })
        };
        let parts = [
            ("cpp_demangle", truth(settings.cpp_demangle)),
            ("lazy_symbolication", truth(settings.lazy_symbolication)),
            ("print_maps_on_exit", truth(settings.print_maps_on_exit)),
            ("use_blazesym", truth(settings.use_blazesym)),
            ("show_debug_info", truth(settings.show_debug_info)),
            ("log_size", number(settings.log_size)),
            ("max_bpf_progs", number(settings.max_bpf_progs)),
            ("max_cat_bytes", number(settings.max_cat_bytes)),
            ("max_map_keys", number(settings.max_map_keys)),
            ("max_probes", number(settings.max_probes)),
            ("max_strlen", number(settings.max_strlen)),
            ("on_stack_limit", number(settings.on_stack_limit)),
            ("perf_rb_pages", number(settings.perf_rb_pages)),
            ("str_trunc_trailer", text(&settings.str_trunc_trailer)),
            ("unstable_import_statement", unstable(settings.unstable_import_statement)),
            ("unstable_tseries", unstable(settings.unstable_tseries)),
            ("unstable_typeinfo", unstable(settings.unstable_typeinfo)),
            ("unstable_dw_ustack", unstable(settings.unstable_dw_ustack)),
            (
                "missing_probes",
                text(match settings.missing_probes {
                    MissingProbes::Error => "error",
                    MissingProbes::Warn => "warn",
                    MissingProbes::Ignore => "ignore",
                }),
            ),
            (
                "stack_mode",
                text(match settings.stack_mode {
                    StackMode::Bpftrace => "bpftrace",
                    StackMode::Perf => "perf",
                    StackMode::Raw => "raw",
                    StackMode::BuildId => "build_id",
                }),
            ),
            ("license", text(&settings.license)),
        ];
        let types = parts.iter().map(|(name, part)| (Arc::from(*name), part.of.clone()));
        let of = Type::Record(types.collect::<Vec<_>>().into());
        let parts = parts.into_iter().enumerate().map(|(index, (_, part))| (index, part));
        Expr { of, span, kind: Kind::Tuple(parts.collect()) }
    }
}

//! What went wrong where the script could not help it, in bpftrace's words.

use super::decode::error_text;
use super::json::write_string;
use crate::message::{ErrorKind, Location};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Error,
    Warning,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Warning => "WARNING",
        }
    }
}

/// What bpftrace asks of the kernel where an error comes from, and the answer.
struct Asked {
    name: &'static str,
    result: i64,
}

fn asked(kind: ErrorKind) -> Option<Asked> {
    let of = |name, result| Some(Asked { name, result });
    match kind {
        ErrorKind::Unreadable => of("probe_read_user", -14),
        ErrorKind::UnreadableText => of("probe_read_user_str", -14),
        ErrorKind::MapFull(_) => of("map_update_elem", -7),
        ErrorKind::NotThere(_) => of("map_delete_elem", -2),
        ErrorKind::Missing(_) => of("map_lookup_elem", 0),
        ErrorKind::DivideByZero | ErrorKind::Fuel | ErrorKind::OutOfBounds | ErrorKind::Assertion => None,
    }
}

pub(super) fn sentence(kind: ErrorKind) -> String {
    match kind {
        ErrorKind::DivideByZero => {
            "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the \
             result."
        }
        ErrorKind::OutOfBounds => "Array access out of bounds. This can lead to unexpected results.",
        ErrorKind::MapFull(_) => {
            "Map full; can't update element. Try increasing max_map_keys config or manually setting the max \
             entries in a map declaration e.g. `let @a = hash(5000)`"
        }
        ErrorKind::NotThere(_) => "Can't delete map element because it does not exist.",
        ErrorKind::Missing(_) => "Can't lookup map element because it does not exist.",
        ErrorKind::Unreadable | ErrorKind::UnreadableText => return error_text(14),
        ErrorKind::Fuel => {
            "The loops of this probe went round more often than they may. The probe was ended."
        }
        ErrorKind::Assertion => "assert failed",
    }
    .into()
}

/// Writes an error as text: where, what, the source, and the macro calls that it comes from.
pub(super) fn write_text(kind: ErrorKind, at: &Location, out: &mut Vec<u8>) {
    let mut message = sentence(kind);
    if let Some(Asked { name, result }) = asked(kind) {
        message.push_str(&format!("\nAdditional Info - helper: {name}, retcode: {result}"));
    }
    write_place(at, Severity::Warning, message.as_bytes(), true, out);
    write_calls(at, Severity::Warning, out);
}

/// Writes what `errorf` and `warnf` say: where and what, and the macro calls that it comes from.
pub(super) fn write_told(severity: Severity, at: &Location, message: &[u8], out: &mut Vec<u8>) {
    write_place(at, severity, message.strip_suffix(b"\n").unwrap_or(message), false, out);
    write_calls(at, severity, out);
}

/// Macro calls nest no deeper than the parser lets them; this ends a chain that does not end.
const MOST_CALLS: usize = 100;

fn write_calls(at: &Location, severity: Severity, out: &mut Vec<u8>) {
    let calls = std::iter::successors(at.expanded_from.as_deref(), |at| at.expanded_from.as_deref());
    for call in calls.take(MOST_CALLS) {
        write_place(call, severity, b"expanded from", true, out);
    }
}

fn write_place(at: &Location, severity: Severity, message: &[u8], with_source: bool, out: &mut Vec<u8>) {
    let Location { file, line, column, text, end, .. } = at;
    let lines = text.matches('\n').count();
    let place = match lines {
        0 => format!("{line}:{column}-{end}"),
        lines => format!("{line}-{}", *line as usize + lines),
    };
    out.extend(format!("{file}:{place}: {}: ", severity.word()).bytes());
    out.extend(message);
    out.push(b'\n');
    if !with_source {
        return;
    }
    out.extend(text.replace('\t', "    ").bytes());
    out.push(b'\n');
    if lines > 0 {
        return;
    }
    let marked = text.bytes().take(end.saturating_sub(1) as usize).enumerate();
    for (index, byte) in marked {
        let mark = if index + 1 < *column as usize { b' ' } else { b'~' };
        out.extend(std::iter::repeat_n(mark, if byte == b'\t' { 4 } else { 1 }));
    }
    out.push(b'\n');
}

/// Writes an error as JSON.
pub(super) fn write_json(kind: ErrorKind, at: &Location, out: &mut Vec<u8>) {
    match asked(kind) {
        Some(Asked { name, result }) => {
            out.extend(br#"{"type": "helper_error", "msg": "#);
            write_string(error_text(-result).as_bytes(), out);
            out.extend(format!(r#", "helper": "{name}", "retcode": {result}"#).bytes());
        }
        None => {
            out.extend(br#"{"type": "runtime_error", "msg": "#);
            write_string(sentence(kind).as_bytes(), out);
        }
    }
    write_json_place(at, out);
}

/// Writes what `errorf` and `warnf` say as JSON.
pub(super) fn write_told_json(severity: Severity, at: &Location, message: &[u8], out: &mut Vec<u8>) {
    let kind = match severity {
        Severity::Error => "errorf",
        Severity::Warning => "warnf",
    };
    out.extend(format!(r#"{{"type": "{kind}", "msg": "#).bytes());
    write_string(message, out);
    write_json_place(at, out);
}

fn write_json_place(at: &Location, out: &mut Vec<u8>) {
    out.extend(br#", "filename": "#);
    write_string(at.file.as_bytes(), out);
    out.extend(format!(", \"line\": {}, \"col\": {}}}\n", at.line, at.column).bytes());
}

/// The sentence for what a full map dropped without being asked.
pub(super) fn dropped(name: &str, count: u64) -> String {
    let updates = if count == 1 { "update was" } else { "updates were" };
    format!(
        "Map full; can't update element. {count} {updates} dropped. Try increasing max_map_keys config or \
         manually setting the max entries in a map declaration e.g. `let {name} = hash(5000)`"
    )
}

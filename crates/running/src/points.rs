//! From a script's attach points to the specifications that the rest of the program resolves.

use crate::files::pattern;
use trapless_script::syntax::ast::{ProbePoint, UserPlace, UserPoint};
use trapless_session::spec::{Kind, Location, Pattern, ProbeSpec, SourceLine};

/// The specification of an attach point in a program, in the modules that `module` means; `None` for what is in none.
pub fn specification(point: &ProbePoint, module: Pattern) -> Option<ProbeSpec> {
    let (location, kind) = match point {
        ProbePoint::Uprobe(user) => (location(user), Some(Kind::Entry)),
        ProbePoint::Uretprobe(user) => (location(user), Some(Kind::Return)),
        ProbePoint::Usdt { namespace, name, .. } => {
            (Location::Usdt { provider: namespace.as_deref().map(pattern), name: pattern(name) }, None)
        }
        _ => return None,
    };
    let text = written(point);
    Some(ProbeSpec { module, location, kind, mechanism: None, inlines: false, by_file: false, text })
}

/// The file that an attach point names.
pub fn target(point: &ProbePoint) -> Option<&str> {
    match point {
        ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user) => user.target.as_deref(),
        ProbePoint::Usdt { target, .. } => target.as_deref(),
        _ => None,
    }
}

fn location(user: &UserPoint) -> Location {
    match &user.place {
        UserPlace::Function { name, offset } => {
            Location::Function { pattern: pattern(name), offset: *offset }
        }
        UserPlace::Address(address) => Location::Address(*address),
        UserPlace::Line { file, line, column } => {
            let number = |number: &u64| u32::try_from(*number).unwrap_or(u32::MAX);
            Location::Line(SourceLine {
                file: file.clone(),
                line: number(line),
                column: column.as_ref().map(number),
            })
        }
    }
}

/// An attach point in a program as a script would write it, for messages.
pub fn written(point: &ProbePoint) -> String {
    let user = |provider: &str, user: &UserPoint| {
        let target = user.target.as_deref().unwrap_or("*");
        let place = match &user.place {
            UserPlace::Function { name, offset: 0 } => format!(":{name}"),
            UserPlace::Function { name, offset } => format!(":{name}+{offset}"),
            UserPlace::Address(address) => format!(":{address:#x}"),
            UserPlace::Line { file, line, column: None } => format!("@{file}:{line}"),
            UserPlace::Line { file, line, column: Some(column) } => format!("@{file}:{line}:{column}"),
        };
        let language = user.language.iter().map(|language| format!(":{language}")).collect::<String>();
        format!("{provider}:{target}{language}{place}")
    };
    match point {
        ProbePoint::Uprobe(of) => user("uprobe", of),
        ProbePoint::Uretprobe(of) => user("uretprobe", of),
        ProbePoint::Usdt { target, namespace, name } => {
            let target = target.as_deref().unwrap_or("*");
            let namespace = namespace.iter().map(|namespace| format!(":{namespace}")).collect::<String>();
            format!("usdt:{target}{namespace}:{name}")
        }
        ProbePoint::Chosen { number, at } => format!("chosen:{number}:{at:?}"),
        _ => String::new(),
    }
}

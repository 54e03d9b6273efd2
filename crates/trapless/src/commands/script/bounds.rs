//! Whether an attach point is a place in the code of its file: an offset may lie behind its function, an address in none. Scripts for bpftrace are
//! told so in its words.

use crate::target::Image;
use std::path::Path;
use trapless_script::syntax::ast::{ProbePoint, UserPlace};

/// Why it is none, if that is known. Of a file that cannot be read here nothing is.
pub(super) fn outside(file: &Path, point: &ProbePoint) -> Option<String> {
    let (ProbePoint::Uprobe(user) | ProbePoint::Uretprobe(user)) = point else { return None };
    let image = Image::file(file).ok()?;
    let module = image.module(None).ok()?;
    match &user.place {
        UserPlace::Function { name, offset } if *offset > 0 => {
            let size = module.function_named(name)?.size();
            (*offset >= size).then(|| format!("Offset outside the function bounds ('{name}' size is {size})"))
        }
        UserPlace::Address(address) if module.function_containing(*address).is_none() => {
            Some(format!("Could not resolve address: {}:{address:#x}", file.display()))
        }
        _ => None,
    }
}

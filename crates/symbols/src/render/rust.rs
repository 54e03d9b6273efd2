//! What the types of Rust's library stand for, by their names and fields.

use super::{Length, Rendering, plain::last_name};
use crate::types::{DEEPEST, Encoding, Kind, Struct, TypeId, Types};

/// How a type of the library is shown; none of another one.
pub(super) fn recognise(types: &Types, id: TypeId, of: &Struct, name: &str) -> Option<Rendering> {
    // Pointers that know a length, or a vtable.
    if let (Some(data), Some(length)) = (types.field(id, "data_ptr"), types.field(id, "length")) {
        let to = types.target(data.of)?;
        let is_text = name.ends_with("str") || name.contains("Box<str");
        let length = Length::At(length.offset);
        return Some(match is_text && is_byte(types, to) {
            true => Rendering::Text { data: data.offset, length },
            false => Rendering::Elements { data: data.offset, count: length, of: to },
        });
    }
    if let (Some(pointer), Some(_)) = (types.field(id, "pointer"), types.field(id, "vtable")) {
        return Some(Rendering::Opaque { pointer: pointer.offset });
    }
    let is_std = ["alloc::", "core::", "std::"].iter().any(|part| name.starts_with(part));
    if !is_std {
        return None;
    }
    let first = of.arguments.first().map(|(_, id)| *id);
    if name.contains("::niche_types::") {
        let inner = types.field(id, "__0")?;
        return Some(Rendering::Wrapped { inner: inner.offset, of: inner.of });
    }
    match last_name(name) {
        "String" | "OsString" | "PathBuf" => {
            let (offset, vec) = wrapped_vec(types, id)?;
            vector(types, vec, offset).map(|(data, length)| Rendering::Text { data, length })
        }
        "Vec" => {
            let (data, count) = vector(types, id, 0)?;
            Some(Rendering::Elements { data, count, of: first? })
        }
        "Rc" | "Arc" => {
            let (pointer, inner) = first_pointer(types, id, 0, DEEPEST)?;
            let value = types.field(inner, "value").or_else(|| types.field(inner, "data"))?;
            Some(Rendering::Owned { pointer, inner: value.offset, of: value.of })
        }
        "Cell" | "RefCell" | "UnsafeCell" | "NonZero" | "ManuallyDrop" | "Wrapping" | "AtomicBool"
        | "AtomicI8" | "AtomicU8" | "AtomicI16" | "AtomicU16" | "AtomicI32" | "AtomicU32" | "AtomicI64"
        | "AtomicU64" | "AtomicIsize" | "AtomicUsize" | "Pin" | "Saturating" | "Atomic" => {
            let names = ["value", "v", "__0", "pointer"];
            let inner = names.iter().find_map(|name| types.field(id, name))?;
            Some(Rendering::Wrapped { inner: inner.offset, of: inner.of })
        }
        _ => None,
    }
}

fn is_byte(types: &Types, id: TypeId) -> bool {
    matches!(types.kind(id), Kind::Base(Encoding::Unsigned | Encoding::UnsignedChar))
        && types.size(id) == Some(1)
}

/// The vector that a type keeps its text in.
fn wrapped_vec(types: &Types, id: TypeId) -> Option<(u64, TypeId)> {
    let (mut at, mut offset) = (id, 0_u64);
    for _ in 0..8 {
        if types.get(at).name.as_deref().is_some_and(|name| name.starts_with("alloc::vec::Vec<")) {
            return Some((offset, at));
        }
        let inner = ["vec", "inner", "bytes"].iter().find_map(|name| types.field(at, name))?;
        offset = offset.checked_add(inner.offset)?;
        at = types.stripped(inner.of);
    }
    None
}

/// Where a vector's pointer and its length are, from `offset` before it.
fn vector(types: &Types, id: TypeId, offset: u64) -> Option<(u64, Length)> {
    let length = types.field(id, "len")?.offset.checked_add(offset)?;
    let buffer = types.field(id, "buf")?;
    let (data, _) = first_pointer(types, buffer.of, buffer.offset, DEEPEST)?;
    Some((data.checked_add(offset)?, Length::At(length)))
}

/// The first pointer in a type, however many wrappers it lies in: where it is, and to what it leads.
fn first_pointer(types: &Types, id: TypeId, at: u64, depth: usize) -> Option<(u64, TypeId)> {
    let mut waiting = vec![(id, at, depth)];
    let mut budget = 256;
    while let Some((id, at, depth)) = waiting.pop() {
        budget -= 1;
        if budget == 0 || depth == 0 {
            return None;
        }
        match types.kind(id) {
            Kind::Pointer(_, to) => return Some((at, *to)),
            Kind::Struct(of) => {
                for member in of.members.iter().rev() {
                    let offset = member.offset.and_then(|offset| offset.checked_add(at))?;
                    waiting.push((member.of, offset, depth - 1));
                }
            }
            _ => {}
        }
    }
    None
}

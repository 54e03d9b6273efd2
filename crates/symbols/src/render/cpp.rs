//! What the types of libstdc++ and libc++ stand for, by the names of their fields.

use super::{Length, Rendering, ShortText};
use crate::types::{Kind, Struct, TypeId, Types};

/// How a class of the standard library is shown; none of another one, or if it has other fields than are known.
pub(super) fn recognise(types: &Types, id: TypeId, of: &Struct, name: &str) -> Option<Rendering> {
    // Libraries put their types into namespaces of their own: `std::__cxx11`, `std::__1`.
    let name = name.strip_prefix("std::")?;
    let name = match name.split_once("::") {
        Some((inner, rest)) if inner.starts_with("__") && !inner.contains('<') => rest,
        _ => name,
    };
    let (name, arguments) = name.split_once('<')?;
    let is_text = arguments.starts_with("char,") || arguments.starts_with("char>");
    let offset = |path: &str| types.field(id, path).map(|field| field.offset);
    let first = of.arguments.first().map(|(_, id)| *id);
    match name {
        "basic_string" if is_text => {
            if let Some(data) = offset("_M_dataplus._M_p") {
                let length = offset("_M_string_length").map_or(Length::Before(24), Length::At);
                return Some(Rendering::Text { data, length });
            }
            short_text(types, id)
        }
        "basic_string_view" if is_text => {
            let data = offset("_M_str").or_else(|| offset("__data_")).or_else(|| offset("__data"))?;
            let length = offset("_M_len").or_else(|| offset("__size_")).or_else(|| offset("__size"))?;
            Some(Rendering::Text { data, length: Length::At(length) })
        }
        "vector" => {
            let begin = types.field(id, "_M_impl._M_start").or_else(|| types.field(id, "__begin_"))?;
            let end = offset("_M_impl._M_finish").or_else(|| offset("__end_"))?;
            // `vector<bool>` has no elements in memory.
            let to = types.target(begin.of)?;
            Some(Rendering::Elements {
                data: begin.offset,
                count: Length::Until(end),
                of: first.unwrap_or(to),
            })
        }
        "span" => {
            let data = types.field(id, "_M_ptr").or_else(|| types.field(id, "__data_"))?;
            let count = offset("_M_extent._M_extent_value").or_else(|| offset("__size_"))?;
            let of = types.target(data.of)?;
            Some(Rendering::Elements { data: data.offset, count: Length::At(count), of })
        }
        "unique_ptr" => {
            let paths = ["_M_t._M_t._M_head_impl", "_M_t._M_head_impl", "__ptr_.__value_", "__ptr_"];
            owned(types, id, &paths)
        }
        "shared_ptr" | "__shared_ptr" | "weak_ptr" | "__weak_ptr" => owned(types, id, &["_M_ptr", "__ptr_"]),
        "optional" => {
            let engaged = offset("_M_payload._M_engaged").or_else(|| offset("__engaged_"))?;
            let inner =
                types.field(id, "_M_payload._M_payload._M_value").or_else(|| types.field(id, "__val_"))?;
            Some(Rendering::Optional { engaged, inner: inner.offset, of: inner.of })
        }
        "atomic" | "__atomic_base" => {
            let paths = ["_M_i", "_M_b._M_i", "_M_p", "__a_.__a_value", "__a_"];
            let inner = paths.iter().find_map(|path| types.field(id, path))?;
            Some(Rendering::Wrapped { inner: inner.offset, of: inner.of })
        }
        "reference_wrapper" => owned(types, id, &["_M_data", "__f_"]),
        _ => None,
    }
}

fn owned(types: &Types, id: TypeId, paths: &[&str]) -> Option<Rendering> {
    paths.iter().find_map(|path| {
        let field = types.field(id, path)?;
        let Kind::Pointer(_, to) = types.kind(field.of) else { return None };
        Some(Rendering::Owned { pointer: field.offset, inner: 0, of: *to })
    })
}

/// libc++'s string, in its versions.
fn short_text(types: &Types, id: TypeId) -> Option<Rendering> {
    let bases = ["__r_.__value_", "__rep_", "__r_.__first_"];
    let base = bases.iter().find_map(|path| types.field(id, path))?;
    let field = |path: &str| types.field(base.of, path);
    let at = |path: &str| field(path).map(|field| base.offset + field.offset);
    let short = at("__s.__data_")?;
    let length = field("__s.__size_")?;
    let length_at = base.offset + length.offset;
    // Before it had a bit of its own, the lowest bit of the first byte said that it is long.
    let (is_long, short_length) = match (field("__s.__is_long_"), length.bits) {
        (Some(is_long), Some(bits)) => {
            let bit = is_long.bits.map_or(0, |bits| bits.first);
            ((base.offset + is_long.offset, bit), (length_at, bits.first, bits.count))
        }
        _ => ((length_at, 0), (length_at, 1, 7)),
    };
    Some(Rendering::ShortText(Box::new(ShortText {
        is_long,
        short_length,
        short,
        data: at("__l.__data_")?,
        length: at("__l.__size_")?,
    })))
}

//! Any bytes as what people and /proc write: probe specifications, mangled names, maps and status files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_session::spec::{Exclusion, ProbeSpec, Syntax};

fuzz_target!(|bytes: &[u8]| {
    let _ = trapless_process::parse_maps(bytes);
    let _ = trapless_process::parse_status(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for syntax in [Syntax::Glob, Syntax::Regex] {
        if let Err(error) = ProbeSpec::parse(text, syntax) {
            let _ = error.to_string();
        }
        let _ = Exclusion::parse(text, syntax);
    }
    let _ = trapless_symbols::demangle(text);
});

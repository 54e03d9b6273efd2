//! Any bytes as an ELF file: everything the symbols crate can be asked of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_symbols::Module;

fuzz_target!(|bytes: &[u8]| {
    let Ok(module) = Module::parse("fuzzed", bytes.to_vec()) else { return };
    let functions = module.functions();
    for function in functions.iter() {
        for name in function.names() {
            let _ = name.demangled();
        }
        let _ = module.code(function.range());
        let _ = module.padding_after(function);
        let _ = module.source_line(function.address());
    }
    let _ = (module.build_id(), module.soname(), module.needed(), module.interpreter());
    let _ = (module.landing_pads(), module.code_pointers(), module.usdt());
    let _ = module.read_only_data_at(module.entry());
});

//! Any bytes as an ELF file: everything the symbols crate can be asked of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_isa::{Machine, operand::Source};
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
    for function in functions.iter().take(8) {
        let _ = module.function_lines(function.range());
    }
    for name in module.source_files().iter().take(4) {
        if let Ok(found) = module.statements(name, 1, Some(1)) {
            let _ = module.statements_in(&found.statements[0].place.file, &(0..=u32::MAX));
        }
    }
    let _ = module.inlined(|_| true);
    let _ = (module.build_id(), module.soname(), module.needed(), module.interpreter());
    let _ = (module.landing_pads(), module.code_pointers(), module.usdt());
    let _ = module.is_compiled_by_go(module.entry());
    let _ = module.read_only_data_at(module.entry());
    for argument in module.usdt().into_iter().flatten().flat_map(|probe| &probe.arguments) {
        for machine in [Machine::X86_64, Machine::I386, Machine::AArch64, Machine::PowerPc64Le] {
            let symbol = |name: &str| module.symbol_address(name);
            let _ = Source::parse(machine, &argument.operand, argument.size, &symbol);
        }
    }
});

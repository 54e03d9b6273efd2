use super::*;
use crate::source::Sources;
use crate::syntax::ast::ExprIds;
use crate::syntax::attach::AttachContext;
use crate::syntax::parse_program;

fn settings(block: &str, environment: &[(&str, &str)]) -> (Result<Settings, SettingError>, String) {
    let mut sources = Sources::default();
    let text = format!("config = {{ {block} }} begin {{ }}");
    let script = sources.add("stdin", text).unwrap();
    let mut diagnostics = Diagnostics::default();
    let program =
        parse_program(&sources, script, &AttachContext::default(), &mut ExprIds::default(), &mut diagnostics);
    let settings = Settings::new(program.config.as_ref(), environment.iter().copied(), &mut diagnostics);
    let told = diagnostics.render(&sources).lines().next().unwrap_or_default().to_string();
    (settings, told)
}

#[test]
fn a_name_has_three_forms() {
    for key in ["stack_mode", "STACK_MODE", "BPFTRACE_STACK_MODE"] {
        let (settings, told) = settings(&format!("{key}=perf"), &[]);
        assert_eq!((settings.unwrap().stack_mode, told.as_str()), (StackMode::Perf, ""), "{key}");
    }
}

#[test]
fn the_environment_comes_before_the_block() {
    let environment =
        [("BPFTRACE_MAX_STRLEN", "7"), ("BPFTRACE_NOT_KNOWN", "x"), ("MAX_PROBES", "1"), ("PATH", "")];
    let settings = settings("max_strlen=5; max_probes=3", &environment).0.unwrap();
    assert_eq!((settings.max_strlen, settings.max_probes), (7, 3));
}

#[test]
fn a_wrong_value_in_the_environment_is_an_error() {
    let error = settings("", &[("BPFTRACE_MAX_STRLEN", "much")]).0.unwrap_err();
    assert_eq!(error.to_string(), "max_strlen: expecting a number, got much");
}

#[test]
fn every_option_takes_its_values() {
    let block = "cache_user_symbols=\"PER_PID\"; cpp_demangle=no; lazy_symbolication=1; license=\"GPL v2\"; \
                 log_size=1; max_bpf_progs=2; max_cat_bytes=3; max_map_keys=4; max_probes=5; max_strlen=1e2; \
                 missing_probes=warn; on_stack_limit=6; perf_rb_pages=7; print_maps_on_exit=false; \
                 show_debug_info=0; stack_mode=build_id; str_trunc_trailer=\"\"; use_blazesym=off; \
                 unstable_tseries=enable; unstable_dw_ustack=error; unstable_typeinfo=true; \
                 unstable_import_statement=warn";
    let (settings, told) = settings(block, &[]);
    assert_eq!(told, "");
    let expected = Settings {
        cache_user_symbols: Some(SymbolCache::PerPid),
        cpp_demangle: false,
        lazy_symbolication: true,
        license: "GPL v2".to_string(),
        log_size: 1,
        max_bpf_progs: 2,
        max_cat_bytes: 3,
        max_map_keys: 4,
        max_probes: 5,
        max_strlen: 100,
        missing_probes: MissingProbes::Warn,
        on_stack_limit: 6,
        perf_rb_pages: 7,
        print_maps_on_exit: false,
        show_debug_info: false,
        stack_mode: StackMode::BuildId,
        str_trunc_trailer: String::new(),
        use_blazesym: false,
        unstable_tseries: Unstable::Enable,
        unstable_dw_ustack: Unstable::Error,
        unstable_typeinfo: Unstable::Enable,
        unstable_import_statement: Unstable::Warn,
    };
    assert_eq!(settings.unwrap(), expected);
}

#[test]
fn what_is_wrong_is_told() {
    let table = [
        ("BAD=1", "stdin:1:12-17: ERROR: BAD: not a known configuration option"),
        ("MAX_PROBES = \"hello\"", "stdin:1:12-32: ERROR: MAX_PROBES: expecting a number, got hello"),
        ("vmlinux=1", "stdin:1:12-21: ERROR: vmlinux: can only be set as an environment variable"),
        ("unstable_macro=warn", "stdin:1:12-31: WARNING: unstable_macro is deprecated and has no effect"),
        ("strlen=5", "stdin:1:12-20: WARNING: strlen has been renamed, please use max_strlen"),
        (
            "missing_probes=1",
            "stdin:1:12-28: ERROR: missing_probes: Invalid value for missing_probes: valid values are ignore, warn, \
             and error.",
        ),
        (
            "cpp_demangle=maybe",
            "stdin:1:12-30: ERROR: cpp_demangle: Invalid bool value: valid values are true, false, 1 or 0.",
        ),
        (
            "stack_mode=Perf",
            "stdin:1:12-27: ERROR: stack_mode: Invalid value for stack_mode: valid values are bpftrace, raw, perf, and \
             build_id.",
        ),
        (
            "license=MIT",
            "stdin:1:12-23: ERROR: Invalid value for license. Found: MIT. Valid values: Dual MIT/GPL, Dual \
             BSD/GPL, Dual MPL/GPL, GPL and additional rights, GPL v2, GPL.",
        ),
    ];
    for (block, expected) in table {
        assert_eq!(settings(block, &[]).1, expected, "{block}");
    }
}

#[test]
fn every_option_of_the_list_can_be_set() {
    for option in OPTIONS {
        let mut settings = Settings::default();
        assert!(!matches!(settings.set(option, &ConfigValue::Integer(1)), Err(Refused::Key)), "{option}");
    }
}

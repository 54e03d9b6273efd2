//! The settings of a script: its `config` block and variables of the environment.
//!
//! A name may be written as `stack_mode`, `STACK_MODE` or `BPFTRACE_STACK_MODE`. A variable of the
//! environment comes before the block. Settings that are about the kernel's means are read and checked, and
//! have no effect.

use super::ast::{Config, ConfigEntry, ConfigValue};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::nearest::nearest;

/// Every setting with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long what was read of a file's symbols is kept. Nothing is to be decided by the tool.
    pub cache_user_symbols: Option<SymbolCache>,
    /// Whether names of C++ and Rust are written as their sources do.
    pub cpp_demangle: bool,
    /// Whether stacks are given their names when they are printed, and not when they are taken.
    pub lazy_symbolication: bool,
    /// The license that the kernel is told. No effect.
    pub license: String,
    /// The bytes of the kernel's log. No effect.
    pub log_size: u64,
    /// How many programs may be made. No effect.
    pub max_bpf_progs: u64,
    /// How many bytes `cat` reads.
    pub max_cat_bytes: u64,
    /// How many keys a map has room for, if its declaration tells no number.
    pub max_map_keys: u64,
    /// How many probes may be attached.
    pub max_probes: u64,
    /// How many bytes `str`, `buf` and `path` read if the call tells no number.
    pub max_strlen: u64,
    /// What becomes of probes for which there is no place.
    pub missing_probes: MissingProbes,
    /// The bytes of one object on the kernel's stack. No effect.
    pub on_stack_limit: u64,
    /// The pages of the ring; 0 is to be decided by the tool.
    pub perf_rb_pages: u64,
    /// Whether maps are printed at the end.
    pub print_maps_on_exit: bool,
    /// Whether stacks tell files, lines and inlined frames.
    pub show_debug_info: bool,
    /// How stacks are printed.
    pub stack_mode: StackMode,
    /// What is put behind a text that was cut.
    pub str_trunc_trailer: String,
    /// Whether another library is used for symbols. No effect.
    pub use_blazesym: bool,
    /// Whether `tseries` may be used.
    pub unstable_tseries: Unstable,
    /// Whether `dw_ustack` may be used.
    pub unstable_dw_ustack: Unstable,
    /// Whether `typeinfo` may be used.
    pub unstable_typeinfo: Unstable,
    /// Whether blocks may import.
    pub unstable_import_statement: Unstable,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cache_user_symbols: None,
            cpp_demangle: true,
            lazy_symbolication: false,
            license: "GPL".to_string(),
            log_size: 1_000_000,
            max_bpf_progs: 1024,
            max_cat_bytes: 10_240,
            max_map_keys: 4096,
            max_probes: 1024,
            max_strlen: 1024,
            missing_probes: MissingProbes::Error,
            on_stack_limit: 32,
            perf_rb_pages: 0,
            print_maps_on_exit: true,
            show_debug_info: true,
            stack_mode: StackMode::Bpftrace,
            str_trunc_trailer: "..".to_string(),
            use_blazesym: true,
            unstable_tseries: Unstable::Warn,
            unstable_dw_ustack: Unstable::Warn,
            unstable_typeinfo: Unstable::Error,
            unstable_import_statement: Unstable::Error,
        }
    }
}

/// For what symbols are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolCache {
    /// Not at all.
    None,
    /// For each process.
    PerPid,
    /// For each file.
    PerProgram,
}

/// What becomes of probes for which there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingProbes {
    /// The script fails.
    Error,
    /// A warning is told.
    Warn,
    /// Nothing is told.
    Ignore,
}

/// Whether something may be used that can still change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstable {
    /// Yes.
    Enable,
    /// Yes, with a warning.
    Warn,
    /// No.
    Error,
}

/// How stacks are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackMode {
    /// Symbol and offset.
    Bpftrace,
    /// Address, symbol and offset, as Linux perf does.
    Perf,
    /// Addresses.
    Raw,
    /// The build id and the offset in the file.
    BuildId,
}

impl StackMode {
    /// The mode of that name.
    pub fn by_name(name: &str) -> Option<StackMode> {
        Some(match name {
            "bpftrace" => StackMode::Bpftrace,
            "perf" => StackMode::Perf,
            "raw" => StackMode::Raw,
            "build_id" => StackMode::BuildId,
            _ => return None,
        })
    }
}

/// Why a setting cannot be made. The texts are bpftrace's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct SettingError {
    /// The name, as written.
    pub key: String,
    /// Why.
    pub reason: String,
}

/// Names that are no more, and are read without effect.
const DEPRECATED: [&str; 6] = [
    "symbol_source",
    "max_type_res_iterations",
    "unstable_addr",
    "unstable_import",
    "unstable_macro",
    "unstable_map_decl",
];

/// Old names and new ones.
const RENAMED: [(&str, &str); 4] = [
    ("strlen", "max_strlen"),
    ("no_cpp_demangle", "cpp_demangle"),
    ("cat_bytes_max", "max_cat_bytes"),
    ("map_keys_max", "max_map_keys"),
];

/// Names that only the environment has.
const ENVIRONMENT_ONLY: [&str; 4] = ["btf", "kernel_build", "kernel_source", "vmlinux"];

/// Every option, for the one that was probably meant.
const OPTIONS: [&str; 22] = [
    "cache_user_symbols",
    "cpp_demangle",
    "lazy_symbolication",
    "license",
    "log_size",
    "max_bpf_progs",
    "max_cat_bytes",
    "max_map_keys",
    "max_probes",
    "max_strlen",
    "missing_probes",
    "on_stack_limit",
    "perf_rb_pages",
    "print_maps_on_exit",
    "show_debug_info",
    "stack_mode",
    "str_trunc_trailer",
    "use_blazesym",
    "unstable_tseries",
    "unstable_dw_ustack",
    "unstable_typeinfo",
    "unstable_import_statement",
];

const LICENSES: [&str; 6] =
    ["Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights", "GPL v2", "GPL"];

/// The name of an option without what may be around it.
fn plain(key: &str) -> String {
    let lower = key.to_ascii_lowercase();
    lower.strip_prefix("bpftrace_").map(str::to_string).unwrap_or(lower)
}

impl Settings {
    /// The settings of a block and an environment, which is pairs of names and values.
    ///
    /// Variables that are no options are passed over, as others may be meant for other programs. A wrong
    /// value in the environment is an error without a place.
    ///
    /// # Errors
    /// A variable of the environment has a wrong value. Errors of the block are told in `diagnostics`.
    pub fn new<'a>(
        block: Option<&Config>,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
        diagnostics: &mut Diagnostics,
    ) -> Result<Settings, SettingError> {
        let mut settings = Settings::default();
        for entry in block.into_iter().flat_map(|block| &block.entries) {
            settings.enter(entry, diagnostics);
        }
        for (name, value) in environment {
            let Some(key) = name.strip_prefix("BPFTRACE_") else { continue };
            let key = key.to_ascii_lowercase();
            match settings.set(&key, &ConfigValue::Text(value.to_string())) {
                Ok(_) => {}
                Err(Refused::Value(reason)) => return Err(SettingError { key, reason }),
                Err(Refused::Key) => {}
            }
        }
        Ok(settings)
    }

    fn enter(&mut self, entry: &ConfigEntry, diagnostics: &mut Diagnostics) {
        let written = &entry.key.text;
        let mut key = plain(written);
        if DEPRECATED.contains(&key.as_str()) {
            diagnostics.warning(entry.span, format!("{written} is deprecated and has no effect"));
            return;
        }
        if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == key) {
            diagnostics.warning(entry.span, format!("{written} has been renamed, please use {new}"));
            key = (*new).to_string();
        }
        let reason = match self.set(&key, &entry.value) {
            Ok(()) => return,
            Err(Refused::Value(reason)) => reason,
            Err(Refused::Key) if ENVIRONMENT_ONLY.contains(&key.as_str()) => {
                "can only be set as an environment variable".to_string()
            }
            Err(Refused::Key) => "not a known configuration option".to_string(),
        };
        let told = match key.as_str() {
            "license" => reason,
            _ => SettingError { key: written.clone(), reason }.to_string(),
        };
        let told = Diagnostic::error(entry.span, told);
        let meant = nearest(&key, OPTIONS).filter(|_| !OPTIONS.contains(&key.as_str()));
        diagnostics.push(match meant {
            Some(meant) => told.hint(format!("did you mean '{meant}'?")),
            None => told,
        });
    }

    fn set(&mut self, key: &str, value: &ConfigValue) -> Result<(), Refused> {
        match key {
            "cache_user_symbols" => self.cache_user_symbols = symbol_cache(value)?,
            "cpp_demangle" => self.cpp_demangle = boolean(value)?,
            "lazy_symbolication" => self.lazy_symbolication = boolean(value)?,
            "license" => self.license = license(value)?,
            "log_size" => self.log_size = number(value)?,
            "max_bpf_progs" => self.max_bpf_progs = number(value)?,
            "max_cat_bytes" => self.max_cat_bytes = number(value)?,
            "max_map_keys" => self.max_map_keys = number(value)?,
            "max_probes" => self.max_probes = number(value)?,
            "max_strlen" => self.max_strlen = number(value)?,
            "missing_probes" => self.missing_probes = missing_probes(value)?,
            "on_stack_limit" => self.on_stack_limit = number(value)?,
            "perf_rb_pages" => self.perf_rb_pages = number(value)?,
            "print_maps_on_exit" => self.print_maps_on_exit = boolean(value)?,
            "show_debug_info" => self.show_debug_info = boolean(value)?,
            "stack_mode" => self.stack_mode = stack_mode(value)?,
            "str_trunc_trailer" => self.str_trunc_trailer = text(value),
            "use_blazesym" => self.use_blazesym = boolean(value)?,
            "unstable_tseries" => self.unstable_tseries = unstable(value)?,
            "unstable_dw_ustack" => self.unstable_dw_ustack = unstable(value)?,
            "unstable_typeinfo" => self.unstable_typeinfo = unstable(value)?,
            "unstable_import_statement" => self.unstable_import_statement = unstable(value)?,
            _ => return Err(Refused::Key),
        }
        Ok(())
    }
}

/// What is wrong with a setting.
enum Refused {
    Key,
    Value(String),
}

fn refuse<T>(reason: &str) -> Result<T, Refused> {
    Err(Refused::Value(reason.to_string()))
}

fn text(value: &ConfigValue) -> String {
    match value {
        ConfigValue::Integer(number) => number.to_string(),
        ConfigValue::Boolean(value) => u64::from(*value).to_string(),
        ConfigValue::Text(text) => text.clone(),
    }
}

fn number(value: &ConfigValue) -> Result<u64, Refused> {
    match value {
        ConfigValue::Integer(number) => Ok(*number),
        ConfigValue::Boolean(value) => Ok(u64::from(*value)),
        ConfigValue::Text(text) => match super::number::parse(text) {
            Ok(number) => Ok(number),
            Err(_) => refuse(&format!("expecting a number, got {text}")),
        },
    }
}

fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn boolean(value: &ConfigValue) -> Result<bool, Refused> {
    let found = match value {
        ConfigValue::Integer(number) => Some(*number != 0),
        ConfigValue::Boolean(value) => Some(*value),
        ConfigValue::Text(text) => truth(text),
    };
    found.map_or_else(|| refuse("Invalid bool value: valid values are true, false, 1 or 0."), Ok)
}

fn symbol_cache(value: &ConfigValue) -> Result<Option<SymbolCache>, Refused> {
    match text(value).to_ascii_lowercase().as_str() {
        "none" | "0" => Ok(Some(SymbolCache::None)),
        "per_pid" => Ok(Some(SymbolCache::PerPid)),
        "per_program" => Ok(Some(SymbolCache::PerProgram)),
        "1" => Ok(None),
        _ => refuse("Invalid value for cache_user_symbols: valid values are PER_PID, PER_PROGRAM, and NONE."),
    }
}

fn license(value: &ConfigValue) -> Result<String, Refused> {
    let license = text(value);
    if LICENSES.contains(&license.as_str()) {
        return Ok(license);
    }
    refuse(&format!("Invalid value for license. Found: {license}. Valid values: {}.", LICENSES.join(", ")))
}

fn missing_probes(value: &ConfigValue) -> Result<MissingProbes, Refused> {
    match text(value).to_ascii_lowercase().as_str() {
        "error" => Ok(MissingProbes::Error),
        "warn" => Ok(MissingProbes::Warn),
        "ignore" => Ok(MissingProbes::Ignore),
        _ => refuse("Invalid value for missing_probes: valid values are ignore, warn, and error."),
    }
}

fn stack_mode(value: &ConfigValue) -> Result<StackMode, Refused> {
    match StackMode::by_name(&text(value)) {
        Some(mode) => Ok(mode),
        None => refuse("Invalid value for stack_mode: valid values are bpftrace, raw, perf, and build_id."),
    }
}

fn unstable(value: &ConfigValue) -> Result<Unstable, Refused> {
    let text = text(value);
    match (text.to_ascii_lowercase().as_str(), truth(&text)) {
        ("enable", _) | (_, Some(true)) => Ok(Unstable::Enable),
        ("warn", _) => Ok(Unstable::Warn),
        ("error", _) | (_, Some(false)) => Ok(Unstable::Error),
        _ => refuse("Invalid value for unstable config: valid values are enable, warn, and error."),
    }
}

#[cfg(test)]
mod tests;

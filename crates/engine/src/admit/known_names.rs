//! Which functions must not be followed to their return, by their names?
//!
//! Their code shows it too in most cases, and the verdict refuses those; this list is for what the code cannot show: a
//! function that hands its return address on, or is reached by no call at all.

use crate::Refusal;

/// Functions that choose by their caller: they compare their return address with the modules' addresses.
const CHOOSE_BY_CALLER: &[&str] = &[
    "dlopen",
    "dlmopen",
    "dlsym",
    "dlvsym",
    "dlclose",
    "dladdr",
    "dladdr1",
    "dlinfo",
    "dl_iterate_phdr",
    "__libc_dlopen_mode",
    "__libc_dlsym",
    "__libc_dlvsym",
    "_dl_open",
    "_dl_sym",
    "_dl_vsym",
    "_dl_addr",
    "_dl_find_object",
    "__dlopen",
    "__dlsym",
];

/// Profiling and sanitizer hooks, which report where they were called from.
const REPORT_CALLER: &[&str] = &[
    "mcount",
    "_mcount",
    "__mcount",
    "__mcount_internal",
    "__fentry__",
    "__cyg_profile_func_enter",
    "__cyg_profile_func_exit",
    "__tsan_func_entry",
    "__gmon_start__",
    "mtrace",
    "muntrace",
];

/// Functions that return more than once or to another frame, or that nobody calls.
const NO_PLAIN_RETURN: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "getcontext",
    "setcontext",
    "swapcontext",
    "makecontext",
    "__start_context",
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__clone_internal",
    "longjmp",
    "_longjmp",
    "siglongjmp",
    "__longjmp_chk",
    "__longjmp",
    "_start",
    "_dl_start_user",
    "_dl_start",
    "_dl_relocate_static_pie",
    "__restore_rt",
    "__restore",
    "_dl_runtime_resolve",
    "_dl_runtime_profile",
    "_dl_call_tls_init_tp",
    "__libc_start_call_main",
];

/// Families of such functions by how their names begin.
const PREFIXES: &[&str] = &[
    "_dl_runtime_resolve",
    "_dl_runtime_profile",
    "_dl_tlsdesc",
    "__x86.get_pc_thunk.",
    "__sanitizer_",
    "_Unwind_",
];

/// Whether a function with these names may return to another place than its caller has said.
pub(super) fn returns_plainly(names: &[&str]) -> Result<(), Refusal> {
    names.iter().try_for_each(|name| {
        if CHOOSE_BY_CALLER.contains(name) {
            return Err(Refusal::ChoosesByCaller);
        }
        if REPORT_CALLER.contains(name) {
            return Err(Refusal::ReportsCaller);
        }
        let odd = NO_PLAIN_RETURN.contains(name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if odd { Err(Refusal::ReturnsOddly) } else { Ok(()) }
    })
}

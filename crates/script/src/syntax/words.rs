//! Words that the grammar knows.

/// Builtins that are reserved: they can be no parameter of a macro, and in parentheses they are no type.
///
/// Every other builtin is an ordinary name, which a script's macro may take over.
pub fn is_builtin(word: &str) -> bool {
    const WORDS: [&str; 17] = [
        "args",
        "ctx",
        "kstack",
        "nsecs",
        "pid",
        "tid",
        "ustack",
        "__builtin_comm",
        "__builtin_cpid",
        "__builtin_cpu",
        "__builtin_dw_ustack",
        "__builtin_elapsed",
        "__builtin_func",
        "__builtin_ncpus",
        "__builtin_probe",
        "__builtin_retval",
        "__builtin_usermode",
    ];
    let numbered = |prefix| {
        let digits = word.strip_prefix(prefix);
        digits.is_some_and(|digits: &str| {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    WORDS.contains(&word) || numbered("arg") || numbered("sarg")
}

/// Names of types that are not defined by C.
pub fn is_type(word: &str) -> bool {
    const WORDS: [&str; 30] = [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float",
        "double",
        "void",
        "min_t",
        "max_t",
        "sum_t",
        "count_t",
        "avg_t",
        "stats_t",
        "umin_t",
        "umax_t",
        "usum_t",
        "uavg_t",
        "ustats_t",
        "timestamp",
        "macaddr_t",
        "cgroup_path_t",
        "string",
        "buffer",
        "inet",
        "username_t",
    ];
    WORDS.contains(&word)
}

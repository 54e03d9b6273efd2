//! What compilers bring along: the names they define, and the headers that are theirs and not the system's.

use std::fmt::Write;

use super::Options;

/// The names that are defined before anything is read, as lines.
pub(super) fn defines(options: &Options) -> String {
    let bytes = options.address_bytes;
    let long = if bytes == 8 { "0x7fffffffffffffffL" } else { "0x7fffffffL" };
    let word = if bytes == 8 { "long" } else { "int" };
    let mut text = String::from(
        "#define __STDC__ 1\n#define __STDC_VERSION__ 201710L\n#define __STDC_HOSTED__ 1\n#define __GNUC__ 4\n\
         #define __GNUC_MINOR__ 2\n#define __GNUC_PATCHLEVEL__ 1\n#define __linux__ 1\n#define __linux 1\n#define linux 1\n\
         #define __unix__ 1\n#define __unix 1\n#define __ELF__ 1\n#define __gnu_linux__ 1\n#define __CHAR_BIT__ 8\n\
         #define __SCHAR_MAX__ 127\n#define __SHRT_MAX__ 32767\n#define __INT_MAX__ 2147483647\n\
         #define __LONG_LONG_MAX__ 0x7fffffffffffffffLL\n#define __SIZEOF_SHORT__ 2\n#define __SIZEOF_INT__ 4\n\
         #define __SIZEOF_LONG_LONG__ 8\n#define __ORDER_LITTLE_ENDIAN__ 1234\n#define __ORDER_BIG_ENDIAN__ 4321\n\
         #define __BYTE_ORDER__ 1234\n#define __LITTLE_ENDIAN__ 1\n#define __WCHAR_TYPE__ int\n\
         #define __WINT_TYPE__ unsigned int\n",
    );
    _ = write!(
        text,
        "#define __LONG_MAX__ {long}\n#define __SIZEOF_LONG__ {bytes}\n#define __SIZEOF_POINTER__ {bytes}\n\
         #define __SIZE_TYPE__ unsigned {word}\n#define __PTRDIFF_TYPE__ {word}\n#define __SIZEOF_SIZE_T__ {bytes}\n"
    );
    if bytes == 8 {
        text.push_str("#define __LP64__ 1\n#define _LP64 1\n");
    }
    for (name, value) in &options.defines {
        _ = writeln!(text, "#define {name} {value}");
    }
    text
}

/// A header that the compiler brings, used if no directory has it.
pub(super) fn header(name: &str) -> Option<&'static str> {
    Some(match name {
        "stddef.h" => {
            "typedef __SIZE_TYPE__ size_t; typedef __PTRDIFF_TYPE__ ptrdiff_t; typedef __WCHAR_TYPE__ wchar_t;\n\
             typedef __WINT_TYPE__ wint_t; typedef struct { long long a; long double b; } max_align_t;\n\
             #define NULL 0\n"
        }
        "stdarg.h" => "typedef __builtin_va_list __gnuc_va_list; typedef __builtin_va_list va_list;\n",
        "stdbool.h" => "#define bool _Bool\n#define true 1\n#define false 0\n",
        "stdint.h" => {
            "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;\n\
             typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;\n\
             typedef unsigned long long uint64_t; typedef __PTRDIFF_TYPE__ intptr_t; typedef __SIZE_TYPE__ uintptr_t;\n\
             typedef long long intmax_t; typedef unsigned long long uintmax_t;\n"
        }
        "limits.h" => {
            "#define CHAR_BIT 8\n#define SCHAR_MAX 127\n#define UCHAR_MAX 255\n#define SHRT_MAX 32767\n\
             #define USHRT_MAX 65535\n#define INT_MAX 2147483647\n#define UINT_MAX 4294967295\n\
             #define LONG_MAX __LONG_MAX__\n#define LLONG_MAX __LONG_LONG_MAX__\n"
        }
        "float.h" | "stdnoreturn.h" | "stdalign.h" => "\n",
        _ => return None,
    })
}

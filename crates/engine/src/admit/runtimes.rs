//! Which run-time systems find their frames by return addresses?
//!
//! A garbage collector that looks up a frame's layout by its return address, a debugger of scripts, a library that copies
//! stacks: they read words that a followed call has replaced, and no unwinder's entry tells when. They are known by the
//! marks that they leave in files: names of symbols and sections, and texts where symbols were stripped.
//!
//! | run-time system | what it reads | not followed |
//! |---|---|---|
//! | Go | every return address on goroutine stacks, which it moves | Go's code; to its exits, calls are (`go`) |
//! | V8 | the word below an exit frame: the return address of C++ that generated code has called | V8, and what imports it: its callbacks are called in the same way |
//! | HotSpot | `last_Java_sp[-1]`: the return address of the VM's C++ that a stub has called; native methods store theirs | `libjvm` |
//! | OpenJ9, Graal's images, Dart, JavaScriptCore, SpiderMonkey | frames of generated code and the calls it makes into the VM | the VM |
//! | .NET | the frame behind a helper, found by unwinding the VM's C++ ("lazy machine state") | the VM; P/Invoke stores its return address |
//! | OCaml | a hash table of return addresses gives the layout of each frame | OCaml's code and its C run-time system |
//! | GHC | Haskell functions are jumped to, their stack is another one | Haskell's code and its run-time system |
//! | Mono | the word below a saved stack pointer: the return address of any native function that managed code has called | everything |
//! | SBCL | words on the stack keep code from being moved | everything |
//! | libunwind (nongnu) | what it has read from the stack, before it asks about it and from tables of its own | everything |
//! | greenlet, Guile, Ruby's `continuation`, stacklets | stacks are copied away and back, so a slot's address names many calls | everything |

use std::fmt;

/// A run-time system that finds its frames by return addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Runtime {
    /// Go.
    Go,
    /// V8: Node.js, Chromium, Electron, Deno.
    V8,
    /// OpenJDK's virtual machine.
    HotSpot,
    /// Eclipse's Java virtual machine.
    OpenJ9,
    /// Programs that GraalVM compiled ahead of time.
    NativeImage,
    /// OCaml's native code.
    OCaml,
    /// .NET, with a virtual machine or compiled ahead of time.
    DotNet,
    /// Mono.
    Mono,
    /// Haskell, by GHC.
    Ghc,
    /// WebKit's JavaScript.
    JavaScriptCore,
    /// Firefox's JavaScript.
    SpiderMonkey,
    /// Dart.
    Dart,
    /// Steel Bank Common Lisp.
    Sbcl,
    /// The unwinder of the nongnu project. LLVM's of the same name is told the real addresses, as libgcc's.
    Libunwind,
    /// Stacks are copied to the heap and back.
    CopiedStacks,
}

use Runtime::*;

impl Runtime {
    const ALL: [Runtime; 15] = [
        Go,
        V8,
        HotSpot,
        OpenJ9,
        NativeImage,
        OCaml,
        DotNet,
        Mono,
        Ghc,
        JavaScriptCore,
        SpiderMonkey,
        Dart,
        Sbcl,
        Libunwind,
        CopiedStacks,
    ];

    /// Whether it reads return addresses of other modules' functions, too.
    fn reaches_everywhere(self) -> bool {
        matches!(self, Mono | Sbcl | Libunwind | CopiedStacks)
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Go => "Go moves its stacks, and knows every return address on them",
            V8 => "V8 finds its frames by return addresses",
            HotSpot => "HotSpot finds Java's frames by the return addresses of its functions",
            OpenJ9 => "OpenJ9 finds Java's frames by return addresses",
            NativeImage => "a native image finds its frames by return addresses",
            OCaml => "OCaml finds its frames by return addresses",
            DotNet => ".NET finds managed frames by return addresses",
            Mono => "Mono finds managed frames by the return addresses of what they call",
            Ghc => "Haskell's functions are jumped to, and their stack is another one",
            JavaScriptCore => "JavaScriptCore finds its frames by return addresses",
            SpiderMonkey => "SpiderMonkey finds its frames by return addresses",
            Dart => "Dart finds its frames by return addresses",
            Sbcl => "SBCL keeps code by the return addresses on the stack",
            Libunwind => "libunwind goes by the return addresses on the stack before it asks about them",
            CopiedStacks => "stacks are copied away and back, with the return addresses on them",
        })
    }
}

/// A set of run-time systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtimes(u32);

impl Runtimes {
    /// Those of both sets.
    #[must_use]
    pub fn with(self, other: Runtimes) -> Runtimes {
        Runtimes(self.0 | other.0)
    }

    /// Whether `runtime` is among them.
    pub fn contains(self, runtime: Runtime) -> bool {
        self.0 & 1 << runtime as u32 != 0
    }

    /// One that keeps the functions of its own module from being followed.
    pub(super) fn finds_frames_itself(self) -> Option<Runtime> {
        Runtime::ALL.into_iter().find(|runtime| self.contains(*runtime))
    }

    /// One that keeps every function of its process from being followed.
    pub(super) fn reaches_everywhere(self) -> Option<Runtime> {
        Runtime::ALL.into_iter().find(|runtime| self.contains(*runtime) && runtime.reaches_everywhere())
    }
}

impl From<Runtime> for Runtimes {
    fn from(runtime: Runtime) -> Self {
        Runtimes(1 << runtime as u32)
    }
}

/// Whole names of symbols.
const SYMBOLS: &[(&[u8], Runtime)] = &[
    (b"runtime.morestack", Go),
    (b"gHotSpotVMStructs", HotSpot),
    (b"gHotSpotVMTypes", HotSpot),
    (b"graal_create_isolate", NativeImage),
    (b"caml_frametable", OCaml),
    (b"caml_system__code_begin", OCaml),
    (b"caml_plugin_header", OCaml),
    (b"caml_globals_map", OCaml),
    (b"coreclr_initialize", DotNet),
    (b"DotNetRuntimeInfo", DotNet),
    (b"RhpNewFast", DotNet),
    (b"mono_jit_init", Mono),
    (b"mono_jit_init_version", Mono),
    (b"hs_main", Ghc),
    (b"hs_init_ghc", Ghc),
    (b"stg_upd_frame_info", Ghc),
    (b"stg_ap_p_info", Ghc),
    (b"Dart_Initialize", Dart),
    (b"_kDartVmSnapshotInstructions", Dart),
    (b"_kDartIsolateSnapshotInstructions", Dart),
    (b"create_main_lisp_thread", Sbcl),
    (b"alloc_code_object", Sbcl),
    (b"_ULx86_64_step", Libunwind),
    (b"_ULx86_step", Libunwind),
    (b"_ULaarch64_step", Libunwind),
    (b"_ULppc64_step", Libunwind),
    (b"unw_backtrace", Libunwind),
    (b"PyInit__greenlet", CopiedStacks),
    (b"init_greenlet", CopiedStacks),
    (b"slp_switch", CopiedStacks),
    (b"slp_save_state", CopiedStacks),
    (b"stacklet_newthread", CopiedStacks),
    (b"scm_i_make_continuation", CopiedStacks),
    (b"scm_call_with_current_continuation", CopiedStacks),
    (b"Init_continuation", CopiedStacks),
    (b"scheme_setjmpup_relative", CopiedStacks),
];

/// How names of symbols begin.
const PREFIXES: &[(&[u8], Runtime)] = &[
    (b"_ZN2v8", V8),
    (b"_ZNK2v8", V8),
    (b"v8_Default_embedded_blob_", V8),
    (b"_ZN3JSC", JavaScriptCore),
    (b"_ZNK3JSC", JavaScriptCore),
    (b"_ZN2js3jit", SpiderMonkey),
];

/// How names of symbols end.
const SUFFIXES: &[(&[u8], Runtime)] = &[(b"__frametable", OCaml), (b"_con_info", Ghc)];

/// Names of sections.
const SECTIONS: &[(&str, Runtime)] = &[
    (".go.buildinfo", Go),
    (".gopclntab", Go),
    (".data.rel.ro.gopclntab", Go),
    (".note.go.buildid", Go),
    (".svm_heap", NativeImage),
    ("__managedcode", DotNet),
];

/// How names of files begin.
const FILES: &[(&str, Runtime)] = &[
    ("libjvm.so", HotSpot),
    ("libj9", OpenJ9),
    ("libcoreclr.so", DotNet),
    ("libmonosgen-", Mono),
    ("libxul.so", SpiderMonkey),
    ("libmozjs", SpiderMonkey),
    ("libjavascriptcore", JavaScriptCore),
    ("libunwind.so.8", Libunwind),
    ("libguile-", CopiedStacks),
    ("libpypy", CopiedStacks),
    ("_greenlet.", CopiedStacks),
    ("libHS", Ghc),
];

/// Texts in the constant data of files whose symbols were stripped: the first byte, and the others. Apart, or a program that holds this
/// list would be taken for one of them.
const TEXTS: &[(u8, &[u8], Runtime)] = &[
    (b'F', b"atal JavaScript invalid size error", V8),
    (b'U', b"ndefined_recursive_module", OCaml),
    (b'(', b"GHC version %s for %s)", Ghc),
];

/// What a file shows of run-time systems: shown its names one by one, it says which are in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks(Runtimes);

impl Marks {
    /// The texts to look for in a file without a symbol table, each with what it means.
    pub fn texts() -> impl Iterator<Item = (Vec<u8>, Runtime)> {
        TEXTS.iter().map(|(first, others, runtime)| ([&[*first], *others].concat(), *runtime))
    }

    /// Shows the name of a symbol, defined or imported.
    pub fn symbol(&mut self, name: &[u8]) {
        // Most names are none of these, and there are hundreds of thousands.
        let whole = SYMBOLS.iter().filter(|(mark, _)| name == *mark);
        let begin = PREFIXES.iter().filter(|(mark, _)| name.starts_with(mark));
        let end = SUFFIXES.iter().filter(|(mark, _)| name.ends_with(mark));
        whole.chain(begin).chain(end).for_each(|(_, runtime)| self.add(*runtime));
    }

    /// Shows the name of a section.
    pub fn section(&mut self, name: &str) {
        SECTIONS.iter().filter(|(mark, _)| name == *mark).for_each(|(_, runtime)| self.add(*runtime));
    }

    /// Shows the name of the file, or the name that others link it by.
    pub fn file(&mut self, name: &str) {
        FILES.iter().filter(|(mark, _)| name.starts_with(mark)).for_each(|(_, runtime)| self.add(*runtime));
    }

    /// Takes note of one whose text was found.
    pub fn add(&mut self, runtime: Runtime) {
        self.0 = self.0.with(runtime.into());
    }

    /// Those that were seen.
    pub fn runtimes(self) -> Runtimes {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_run_time_systems() {
        let symbol = |name: &str| {
            let mut marks = Marks::default();
            marks.symbol(name.as_bytes());
            marks.runtimes()
        };
        for (name, expected) in [
            ("caml_frametable", Some(OCaml)),
            ("camlStdlib__List__frametable", Some(OCaml)),
            ("_ZN2v88internal7Isolate4InitEv", Some(V8)),
            ("_ZN2v86Object3GetENS_5LocalIS0_EE", Some(V8)),
            ("gHotSpotVMStructs", Some(HotSpot)),
            ("PyInit__greenlet", Some(CopiedStacks)),
            ("base_GHCziMaybe_Just_con_info", Some(Ghc)),
            ("JNI_CreateJavaVM", None),
            ("camellia", None),
            ("_ZN3v8xE", None),
        ] {
            assert_eq!(symbol(name), expected.map_or(Runtimes::default(), Runtimes::from), "{name}");
        }
    }

    #[test]
    fn a_virtual_machine_is_not_followed_and_its_libraries_are() {
        let java = Runtimes::from(HotSpot);
        assert_eq!((java.finds_frames_itself(), java.reaches_everywhere()), (Some(HotSpot), None));
        let greenlet = Runtimes::from(CopiedStacks);
        assert_eq!(greenlet.reaches_everywhere(), Some(CopiedStacks));
    }

    #[test]
    fn every_one_has_a_place_of_its_own_in_a_set() {
        for (index, runtime) in Runtime::ALL.into_iter().enumerate() {
            assert_eq!(runtime as usize, index);
        }
    }
}

//! A library that is not Rust's, whose functions are followed.

use crate::common::{use_the_c_library, work};
use std::ffi::{CString, c_long, c_void};
use std::panic::catch_unwind;
use std::process::Command;

/// A library of C++ that was built with these flags and loaded; `None`: there is no compiler.
pub fn foreign(name: &str, flags: &[&str]) -> Option<Library> {
    let path = std::env::temp_dir().join(format!("trapless-{name}-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/returns/foreign.cc");
    let mut command = Command::new("g++");
    command.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&path).arg(source).args(flags);
    match command.status() {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            trapless_testing::skipped(format_args!("g++: {error}"));
            return None;
        }
    }
    let path_of_c = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library's constructors do nothing unusual.
    let handle = unsafe { libc::dlopen(path_of_c.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    std::fs::remove_file(&path).unwrap();
    Some(Library { handle, name })
}

pub struct Library {
    handle: *mut c_void,
    pub name: String,
}

// SAFETY: a handle of a library is the process's.
unsafe impl Sync for Library {}

impl Library {
    pub fn at(&self, name: &str) -> *const () {
        let name = CString::new(name).unwrap();
        // SAFETY: the library stays loaded.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found.cast_const().cast()
    }

    pub fn call(&self, name: &str, arguments: &[c_long]) -> c_long {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        // SAFETY: functions of the library take numbers, and more of them do not matter.
        let function: extern "C-unwind" fn(c_long, c_long, c_long, c_long, c_long, c_long) -> c_long =
            unsafe { std::mem::transmute(self.at(name)) };
        let [a, b, c, d, e, f] = all;
        function(a, b, c, d, e, f)
    }
}

/// Uses the C library for what programs use it for, with this one, too, and in a forked child; what [`work`] gives.
pub fn do_all_sorts_of_things(library: Option<&Library>) -> (u64, u64) {
    let expected = use_the_c_library();
    if let Some(library) = library {
        assert_eq!(library.call("sorts", &[1000]), 0);
        assert_eq!(library.call("ends_a_thread", &[]), 71);
        assert_eq!(library.call("jumps", &[100]), 100);
    }
    assert!(catch_unwind(|| panic!("it is caught")).is_err());
    // SAFETY: the child does what a forked child may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = work(11) == expected;
        // SAFETY: it takes an integer.
        unsafe { libc::_exit(if same { 5 } else { 6 }) }
    }
    let mut status = 0;
    // SAFETY: the call writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 5);
    expected
}

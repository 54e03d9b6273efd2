//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Programs find it by this name, wherever it was when they were linked.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtrapless_c.so");
    // Handling code and a handler of SIGTRAP stay for good, and lead into it: dlclose leaves it loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

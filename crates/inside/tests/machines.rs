//! Where there are probes in one's own process, and that they are refused elsewhere.

use trapless_inside::{Error, Inside, is_possible};

#[test]
fn other_machines_are_refused() {
    assert_eq!(is_possible(), cfg!(target_arch = "x86_64"));
    let ready = Inside::allow_seccomp();
    match is_possible() {
        true => assert!(ready.is_ok(), "{ready:?}"),
        false => assert!(matches!(ready, Err(Error::Machine)), "{ready:?}"),
    }
}

//! Any bytes as what a keeper answers and what it is asked for: what is read is said by those bytes and no others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trapless_engine::answer::{Answer, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(answer) = Answer::read(bytes) {
        assert_eq!(answer.bytes(), bytes, "{answer:?}");
        assert_eq!(Answer::read(&answer.bytes()), Ok(answer));
    }
    if let &[byte, ..] = bytes
        && let Ok(request) = Request::read(byte)
    {
        assert_eq!(request.byte(), byte);
    }
});

//! tmp
use std::time::Instant;
fn main() {
    let inside = trapless_inside::Inside::allow_seccomp().unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        let probe = inside.on("libc.so*:*", |_| {}).unwrap();
        println!("{} in {:?}", probe.functions(), start.elapsed());
        let start = Instant::now();
        drop(probe);
        println!("out {:?}", start.elapsed());
    }
}

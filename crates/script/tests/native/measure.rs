//! What a run costs above that of a body that does nothing. Run by hand:
//! `cargo test --release -p trapless-script --test native -- --ignored --nocapture`.

use crate::machine::{ARGUMENTS, Hit, Ready, TARGET};
use crate::scripts::*;
use std::time::Instant;
use trapless_script::ir::*;
use trapless_script::native::{Moment, compile};
use trapless_wire::Incomplete;

const ROUNDS: usize = 31;
const HITS: usize = 4096;

struct Measured {
    name: &'static str,
    ready: Ready,
    hits: Vec<[u64; ARGUMENTS]>,
    times: Vec<f64>,
    sends: bool,
}

#[test]
#[ignore = "measures, and takes its time"]
fn what_a_run_costs() {
    let of = |name, program: &Program, sends| {
        let bodies: Vec<_> =
            (0..program.bodies.len() as u32).map(|body| (BodyId(body), Moment::Entry)).collect();
        let ready = Ready::new(program, &bodies, 1).unwrap();
        let hits = (0..HITS as u64).map(|index| {
            let mixed = index.wrapping_mul(0x9e37_79b9) >> 3 & 4095;
            Hit::with(&[mixed, 7, 8, 9, 10, 11]).arguments
        });
        Measured { name, ready, hits: hits.collect(), times: vec![], sends }
    };
    use MapSharing::{PerThread, Shared};
    let mut all = vec![
        of("empty", &empty(), false),
        of("filter that fails", &filter(), false),
        of("@ = count()", &one(Aggregation::Count, PerThread), false),
        of("@ = count(), shared", &one(Aggregation::Count, Shared), false),
        of("@ = hist(arg0)", &one(Aggregation::Hist { bits: 0 }, PerThread), false),
        of("@ = stats(arg0)", &one(Aggregation::Average, PerThread), false),
        of("@ = max(arg0)", &one(Aggregation::Max { signed: true }, PerThread), false),
        of("@[arg0] = count(), 4,096 keys", &keyed(argument(0), Aggregation::Count, PerThread), false),
        of("the same, shared", &keyed(argument(0), Aggregation::Count, Shared), false),
        of(
            "@[tid] = count()",
            &keyed(Expression::Context(Context::Tid), Aggregation::Count, PerThread),
            false,
        ),
        of("start, delta, hist, delete (both)", &latency(), false),
        of("printf of three", &printf(), true),
        of("@[str(arg0)] = count(), 64", &by_string(64), false),
        of("@[str(arg0)] = count(), 1024", &by_string(1024), false),
    ];
    let texts: Vec<Vec<u8>> =
        (0..64).map(|index| format!("/var/lib/some/file-{index}\0").into_bytes()).collect();
    for measured in all.iter_mut().filter(|measured| measured.name.contains("str(")) {
        for (index, hit) in measured.hits.iter_mut().enumerate() {
            hit[0] = texts[index % 64].as_ptr() as u64;
        }
    }
    for _ in 0..ROUNDS {
        for measured in &mut all {
            let hit = Hit::default();
            let bodies = measured.ready.native.code.bodies.len();
            let extras = (0..bodies).map(|body| {
                let (extras, count) = measured.ready.extras(body, &hit);
                extras[..count].to_vec()
            });
            let extras: Vec<Vec<u64>> = extras.collect();
            let parts = if measured.sends { 16 } else { 1 };
            let mut time = 0.0;
            if bodies == 1 && !measured.sends {
                // What the others have left in the caches is not what is measured.
                measured.ready.run_many(0, 0, &measured.hits, &extras[0]);
            }
            for part in measured.hits.chunks(HITS / parts) {
                let start = Instant::now();
                if bodies == 1 {
                    measured.ready.run_many(0, 0, part, &extras[0]);
                } else {
                    for hit in part.chunks(1) {
                        measured.ready.run_many(0, 0, hit, &extras[0]);
                        measured.ready.run_many(1, 0, hit, &extras[1]);
                    }
                }
                time += start.elapsed().as_nanos() as f64;
                if measured.sends {
                    let drained =
                        measured.ready.ring(0).drain(&measured.ready.region, Incomplete::Wait, |_| {});
                    assert_eq!(drained.taken, part.len() as u64);
                }
            }
            measured.times.push(time / HITS as f64);
        }
    }
    let mut floor = 0.0;
    for measured in &mut all {
        measured.times.sort_by(f64::total_cmp);
        let median = measured.times[ROUNDS / 2];
        if measured.name == "empty" {
            floor = median;
        }
        let bytes: usize = measured.ready.native.code.bodies.iter().map(|body| body.bytes.len()).sum();
        println!("{:36} {:7.2} ns above {floor:.2}; {bytes} bytes", measured.name, median - floor);
    }
    for (name, program) in [
        ("count", one(Aggregation::Count, PerThread)),
        ("keyed", keyed(argument(0), Aggregation::Count, Shared)),
        ("latency", latency()),
        ("string", by_string(64)),
    ] {
        let bodies: Vec<_> =
            (0..program.bodies.len() as u32).map(|body| (BodyId(body), Moment::Entry)).collect();
        let mut times: Vec<f64> = (0..21)
            .map(|_| {
                let start = Instant::now();
                compile(&program, &bodies, &TARGET).unwrap();
                start.elapsed().as_micros() as f64 / 1000.0
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("compile {name}: {:.2} ms", times[10]);
    }
}

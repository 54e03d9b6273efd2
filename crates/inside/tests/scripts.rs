//! Scripts on the process of the test itself.

#![cfg(all(target_arch = "x86_64", feature = "script"))]

mod common;

use common::{apart, ready, use_the_c_library};
use std::hint::black_box;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use trapless_inside::{Error, Results, Script, ScriptOptions, Shown, Value};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn scripted_sum(a: u64, b: u64) -> u64 {
    black_box(black_box(a) + black_box(b))
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn scripted_length(text: *const u8) -> u64 {
    black_box(text).addr() as u64 & 1
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn scripted_product(a: u64, b: u64) -> u64 {
    black_box(black_box(a).wrapping_mul(black_box(b)))
}

const SUM: *const () = scripted_sum as *const ();

fn call(a: u64, b: u64) -> u64 {
    black_box(scripted_sum as extern "C" fn(u64, u64) -> u64)(a, b)
}

fn call_often(times: u64) {
    (0..times).for_each(|n| assert_eq!(call(n, 3), n + 3));
}

fn bytes_of(function: *const ()) -> [u8; 16] {
    // SAFETY: the functions here are longer, or padding follows.
    unsafe { function.cast::<[u8; 16]>().read_volatile() }
}

/// What a script prints.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Printed {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[track_caller]
fn run(text: &str) -> (Script, Printed) {
    let printed = Printed::default();
    let options = ScriptOptions::default().output(printed.clone()).errors(printed.clone());
    (ready().script_with(text, options).unwrap(), printed)
}

/// The one number of a map without keys.
#[track_caller]
fn number(results: &Results, map: &str) -> u64 {
    match &results.map(map).unwrap().entries[..] {
        [] => 0,
        [(None, Shown::Value(Value::Unsigned(value)))] => *value,
        [(None, Shown::Value(Value::Int(value)))] => *value as u64,
        other => panic!("{other:?}"),
    }
}

#[test]
fn entries_and_returns_fill_maps_and_print_from_then_on_until_it_is_stopped() {
    apart(|| {
        let before = bytes_of(SUM);
        let (script, printed) = run("begin { printf(\"begun\\n\"); @kept = 7; }
            uprobe:scripted_sum { @[arg0] = count(); @kept += arg1; printf(\"%d %s\\n\", arg0, func); }
            uretprobe:scripted_sum { @sizes = hist(retval); @last = retval; @n++; }
            end { printf(\"ended %d\\n\", @n); }");
        assert_eq!((script.functions(), script.skipped().len(), script.is_over()), (1, 0, false));
        assert_ne!(bytes_of(SUM), before);
        [2, 2, 9].into_iter().for_each(|n| assert_eq!(call(n, 5), n + 5));
        let results = script.results().unwrap();
        assert_eq!(
            [number(&results, "@n"), number(&results, "last"), number(&results, "@kept")],
            [3, 14, 22]
        );
        let count = |n| Shown::Value(Value::Unsigned(n));
        let key = |n| Some(Value::Unsigned(n));
        assert_eq!(results.map("@").unwrap().entries, [(key(9), count(1)), (key(2), count(2))]);
        let Shown::Histogram(buckets) = &results.map("sizes").unwrap().entries[0].1 else { panic!() };
        let buckets: Vec<_> =
            buckets.iter().map(|bucket| (bucket.first, bucket.last, bucket.count)).collect();
        assert_eq!(buckets, [(Some(4), Some(7), 2), (Some(8), Some(15), 1)]);
        assert!(results.text.contains("@[2]: 2\n") && results.text.contains("[4, 8)"), "{}", results.text);
        assert!(results.json.contains("{\"type\": \"map\", \"data\": {\"@n\": 3}}"), "{}", results.json);
        assert!(results.map("@none").is_none());
        let last = script.stop().unwrap();
        assert_eq!((bytes_of(SUM), call(1, 1)), (before, 2));
        assert_eq!(last, Results { losses: last.losses, ..results });
        let said = printed.text();
        let expected = "begun\n2 scripted_sum\n2 scripted_sum\n9 scripted_sum\nended 3\n\n\n";
        assert!(said.starts_with(expected) && said.ends_with(&last.text), "{said}");
    });
}

#[test]
fn each_call_counts_once_on_many_threads() {
    apart(|| {
        let (script, _) =
            run("uprobe:scripted_sum { @calls = count(); @by[arg1] = count(); @all[tid] = sum(arg1); @n++; }
            uretprobe:scripted_sum { @returned = count(); @least = min(retval); @most = max(retval); }");
        const THREADS: u64 = 8;
        const CALLS: u64 = 20_000;
        let all = Arc::new(Barrier::new(THREADS as usize));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let all = all.clone();
                std::thread::spawn(move || {
                    all.wait();
                    call_often(CALLS);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let results = script.stop().unwrap();
        for map in ["calls", "n", "returned"] {
            assert_eq!(number(&results, map), THREADS * CALLS, "{map}: {results:?}");
        }
        assert_eq!([number(&results, "least"), number(&results, "most")], [3, CALLS + 2]);
        assert_eq!(
            results.map("by").unwrap().entries,
            [(Some(Value::Unsigned(3)), Shown::Value(Value::Unsigned(THREADS * CALLS)))]
        );
        assert_eq!(results.map("all").unwrap().entries.len(), THREADS as usize);
        let mut losses = results.losses;
        losses.ours = 0;
        assert_eq!(losses, trapless_inside::Losses::default());
    });
}

/// Threads are in the function while scripts come and go: what is counted is what was called between, or a little more.
#[test]
fn scripts_come_and_go_while_threads_are_in_the_function() {
    apart(|| {
        let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(call(40, 2), 42);
                        calls.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for round in 0..12 {
                let began = calls.load(Ordering::SeqCst);
                let text = "uprobe:scripted_sum { @[arg0] = count(); @n = count(); } uretprobe:scripted_sum { @r = count(); }";
                let (script, _) = run(text);
                let from = calls.load(Ordering::SeqCst);
                while round % 2 == 0 && calls.load(Ordering::SeqCst) < from + 50 {
                    std::thread::yield_now();
                }
                let to = calls.load(Ordering::SeqCst);
                let results = script.stop().unwrap();
                let ended = calls.load(Ordering::SeqCst);
                // Eight threads may each have a call on the way that is told later.
                for map in ["n", "r"] {
                    let counted = number(&results, map);
                    assert!((to - from).saturating_sub(8) <= counted, "{counted} of {from} to {to}");
                    assert!(counted <= ended - began + 8, "{counted} of {began} to {ended}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        let before = bytes_of(SUM);
        drop(run("uprobe:scripted_sum { @n = count(); }"));
        assert_eq!(bytes_of(SUM), before);
    });
}

fn mapped() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[test]
fn a_script_that_comes_again_takes_no_more_memory_and_begins_with_nothing() {
    apart(|| {
        let once = |n: u64| {
            let text = format!(
                "begin {{ @first = {n}; }} uprobe:scripted_sum {{ @[arg0] = count(); @least = min(arg0); printf(\"%d\\n\", arg0); }}
                uretprobe:scripted_sum {{ @r = count(); }}"
            );
            let (script, printed) = run(&text);
            call(n + 5, 1);
            let results = script.stop().unwrap();
            let one = |key| (Some(Value::Unsigned(key)), Shown::Value(Value::Unsigned(1)));
            assert_eq!(results.map("@").unwrap().entries, [one(n + 5)]);
            assert_eq!(
                [number(&results, "first"), number(&results, "least"), number(&results, "r")],
                [n, n + 5, 1]
            );
            assert!(printed.text().starts_with(&format!("{}\n", n + 5)), "{}", printed.text());
        };
        (0..10).for_each(once);
        let (before, files) = (mapped(), std::fs::read_dir("/proc/self/fd").unwrap().count());
        (10..40).for_each(once);
        assert!(mapped() <= before + 8, "{} and then {}", before, mapped());
        assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), files);
    });
}

#[test]
fn what_cannot_be_read_is_zero_and_nothing_faults() {
    apart(|| {
        let (script, printed) =
            run("uprobe:scripted_length { @[str(arg0)] = count(); @byte = *(uint8*)arg0; }");
        let function = black_box(scripted_length as extern "C" fn(*const u8) -> u64);
        function(c"a text".as_ptr().cast());
        let owned = String::from("on the heap\0");
        function(owned.as_ptr());
        for nowhere in [0, 1, 0xffff_8000_0000_0000, usize::MAX - 3] {
            function(std::ptr::without_provenance(nowhere));
        }
        // It is gone while the other thread's own memory stays.
        let results = script.stop().unwrap();
        let keys: Vec<_> =
            results.map("@").unwrap().entries.iter().map(|entry| entry.0.clone().unwrap()).collect();
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        assert_eq!(keys.len(), 3, "{keys:?}");
        for key in ["a text", "on the heap", ""] {
            assert!(keys.contains(&text(key)), "{keys:?}");
        }
        assert_eq!((results.losses.unread, number(&results, "byte")), (0, 0), "{}", printed.text());
    });
}

/// The thread that prints calls what is probed, and that is none of the program's: no script hears itself.
#[test]
fn a_script_does_not_hear_itself() {
    apart(|| {
        let (one, printed) = run(
            "uprobe:libc:malloc, uprobe:libc:free, uprobe:libc:write, uprobe:libc:read { @[func] = count(); printf(\"%s\\n\", func); @all = count(); }",
        );
        let (other, _) = run("uprobe:libc:malloc { @ = count(); }");
        let made: Vec<Vec<u8>> = (0..50).map(|n| black_box(vec![1; 1000 + n])).collect();
        let before = other.results().unwrap();
        drop(made);
        let mut last = one.results().unwrap();
        // Whatever it prints it is not told again.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(6));
            last = one.results().unwrap();
        }
        let results = one.stop().unwrap();
        drop(other);
        assert!(results.losses.ours > 0 && number(&before, "@") >= 50, "{results:?}");
        let all = number(&results, "all");
        // Else each line would make others, as often as it is looked.
        assert!((100..20_000).contains(&all) && number(&last, "all") <= all, "{results:?}");
        let lines =
            printed.text().lines().filter(|line| ["malloc", "free", "read", "write"].contains(line)).count();
        assert_eq!(lines as u64, all);
    });
}

#[test]
fn handlers_counts_latencies_replacements_and_scripts_are_at_one_function() {
    apart(|| {
        let heard = Arc::new(AtomicU64::new(0));
        let handler = {
            let heard = heard.clone();
            move |call: &mut trapless_inside::Call<'_>| {
                _ = heard.fetch_add(call.arg::<u64>(1), Ordering::Relaxed)
            }
        };
        let (first, _) = run("uprobe:scripted_sum { @n = count(); @b = sum(arg1); }");
        let count = ready().count_function(SUM).unwrap();
        let (second, _) =
            run("uprobe:scripted_sum { @n = count(); } uretprobe:scripted_sum { @r = sum(retval); }");
        let probe = ready().on_function(SUM, handler).unwrap();
        call_often(10);
        let latency = ready().latency_function(SUM).unwrap();
        call_often(10);
        // SAFETY: both are alike.
        let replacement = unsafe { ready().replace(SUM, scripted_product as *const ()) }.unwrap();
        (0..10).for_each(|n| assert_eq!(call(n, 3), n * 3));
        drop(replacement);
        drop(probe);
        call_often(10);
        assert_eq!(heard.load(Ordering::Relaxed), 90);
        assert_eq!((count.calls(), latency.calls() + latency.lost()), (40, 30));
        drop(latency);
        let results = first.stop().unwrap();
        assert_eq!([number(&results, "n"), number(&results, "b")], [40, 120]);
        call_often(5);
        let results = second.stop().unwrap();
        let (plain, few) = ((0..10).map(|n| n + 3).sum::<u64>(), (0..5).map(|n| n + 3).sum::<u64>());
        assert_eq!([number(&results, "n"), number(&results, "r")], [45, 3 * plain + 3 * 45 + few]);
        assert_eq!((count.calls(), results.losses.not_followed), (45, 0));
    });
}

#[test]
fn returns_have_a_handler_or_a_script() {
    apart(|| {
        let text = "uretprobe:scripted_sum { @ = count(); }";
        let (script, _) = run(text);
        let refused = ready().around_function(SUM, |_| (), |_, ()| {});
        assert!(matches!(refused, Err(Error::Followed(_))), "{refused:?}");
        call_often(3);
        assert_eq!(number(&script.stop().unwrap(), "@"), 3);
        let handler = match ready().around_function(SUM, |_| (), |_, ()| {}) {
            // Where there is another unwinder, or greenlets.
            Err(Error::Unwinder(why)) => return trapless_testing::inapplicable!("{why}"),
            handler => handler.unwrap(),
        };
        let before = bytes_of(SUM);
        let refused = ready().script(text);
        assert!(matches!(refused, Err(Error::Followed(_))), "{refused:?}");
        let (entries, _) = run("uprobe:scripted_sum { @ = count(); }");
        call_often(3);
        assert_eq!((number(&entries.stop().unwrap(), "@"), bytes_of(SUM)), (3, before));
        drop(handler);
        let (script, _) = run(text);
        call_often(2);
        assert_eq!(number(&script.stop().unwrap(), "@"), 2);
    });
}

#[test]
fn exit_ends_the_script_and_not_the_program() {
    apart(|| {
        let before = bytes_of(SUM);
        let (script, printed) =
            run("uprobe:scripted_sum { @n++; if (@n == 3) { exit(); } } end { printf(\"end\\n\"); }");
        call_often(3);
        while !script.is_over() {
            std::thread::yield_now();
        }
        assert_eq!(bytes_of(SUM), before);
        call_often(3);
        let results = script.results().unwrap();
        assert_eq!(number(&results, "n"), 3);
        assert_eq!(script.stop().unwrap(), results);
        assert_eq!(printed.text(), format!("end\n\n\n{}", results.text));
        let (script, printed) = run("begin { print(1); exit(); } uprobe:scripted_sum { print(2); }");
        assert_eq!((script.is_over(), script.functions()), (true, 0));
        drop(script);
        assert_eq!(printed.text(), "1\n\n\n");
    });
}

#[test]
fn intervals_run_without_any_function() {
    apart(|| {
        let (script, printed) = run("interval:ms:1 { @++; if (@ == 3) { printf(\"%d\\n\", $1); exit(); } }");
        while !script.is_over() {
            std::thread::yield_now();
        }
        drop(script);
        assert!(printed.text().starts_with("0\n"), "{}", printed.text());
        let printed = Printed::default();
        let options = ScriptOptions::default().parameters(["5"]).json().output(printed.clone());
        drop(ready().script_with("begin { print($1); }", options).unwrap());
        assert_eq!(printed.text(), "{\"type\": \"value\", \"data\": 5}\n");
    });
}

#[test]
fn a_forked_child_runs_nothing_and_that_is_told() {
    apart(|| {
        let text = "uprobe:scripted_sum { @n = count(); @[arg1] = count(); }";
        let (script, _) = run(text);
        call_often(10);
        // SAFETY: the child calls, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = bytes_of(SUM);
            call_often(100);
            let asked = matches!(script.results(), Err(Error::Forked));
            drop(script);
            let is_out = bytes_of(SUM) != before;
            // Its own are its own.
            let (own, _) = run(text);
            call_often(4);
            let counted = number(&own.stop().unwrap(), "n");
            // SAFETY: it takes an integer.
            unsafe { libc::_exit(i32::from(!(asked && is_out && counted == 4))) };
        }
        let mut status = 0;
        // SAFETY: the call writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        call_often(10);
        let results = script.stop().unwrap();
        assert_eq!(number(&results, "n"), 20);
        assert!(results.losses.in_children >= 100, "{results:?}");
        // The child's blocks stay its own.
        let (script, _) = run(text);
        call_often(1);
        let results = script.stop().unwrap();
        assert_eq!((number(&results, "n"), results.losses.in_children), (1, 0));
    });
}

#[test]
fn the_c_library_is_used_while_much_of_it_is_probed() {
    apart(|| {
        let expected = use_the_c_library();
        let (script, _) = run(
            "uprobe:libc:mem*, uprobe:libc:str*, uprobe:libc:malloc, uprobe:libc:free { @[func] = count(); }
            uretprobe:libc:malloc { @sizes = hist(retval); } uprobe:libc:malloc { @asked = sum(arg0); }",
        );
        assert!(script.functions() > 50, "{script:?}");
        assert_eq!(use_the_c_library(), expected);
        let results = script.stop().unwrap();
        assert!(results.map("@").unwrap().entries.len() >= 2, "{}", results.text);
        assert!(number(&results, "asked") > 10_000, "{}", results.text);
        assert_eq!(use_the_c_library(), expected);
    });
}

#[test]
fn panics_pass_calls_that_are_followed() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C-unwind" fn scripted_panic(n: u64) -> u64 {
        if black_box(n) == 13 {
            std::panic::panic_any(13u32);
        }
        n
    }
    apart(|| {
        let (script, _) =
            run("uprobe:scripted_panic { @in = count(); } uretprobe:scripted_panic { @out = count(); }");
        let function = black_box(scripted_panic as extern "C-unwind" fn(u64) -> u64);
        std::panic::set_hook(Box::new(|_| {}));
        for n in 0..30 {
            assert_eq!(std::panic::catch_unwind(|| function(n)).is_err(), n == 13);
        }
        let results = script.stop().unwrap();
        assert_eq!([number(&results, "in"), number(&results, "out")], [30, 29]);
    });
}

#[test]
fn what_is_wrong_is_shown_at_its_place_and_nothing_is_patched() {
    apart(|| {
        let before = bytes_of(SUM);
        for (text, place, what) in [
            ("uprobe:scripted_sum { print(1); $a = ; }", "script:1:", "syntax"),
            ("uprobe:scripted_sum { print(nobody_knows); }", "script:1:", "nobody_knows"),
            ("uprobe:scripted_sum { $a = 1; $a = \"x\"; }", "script:1:", "Type mismatch"),
            ("uprobe:scripted_sum { system(\"true\"); }", "script:1:", "unsafe"),
            ("uprobe:scripted_sum { signal(\"KILL\"); }", "script:1:", "unsafe"),
            ("uprobe:scripted_sum { delay(1ms); }", "script:1:", "delay"),
            ("uprobe:scripted_sum { } kprobe:vfs_read { }", "script:1:", "kernel"),
            ("uprobe:scripted_sum { print(args.a); }", "script:1:", "args"),
        ] {
            let Err(Error::Script(told)) = ready().script(text) else { panic!("{text}") };
            assert!(told.starts_with(place) && told.contains(what), "{text}: {told}");
            let mut shown = told.lines().skip(1);
            assert_eq!(shown.next(), Some(text), "the line");
            assert!(shown.next().is_some_and(|mark| mark.trim_start().starts_with('~')), "{told}");
        }
        for (text, what) in [
            ("uprobe:scripted_sum { @[ustack] = count(); }", "ustack()"),
            ("uprobe:scripted_sum { } uprobe:scripted_sum+4 { }", "uprobe:scripted_sum+4"),
            ("uprobe:scripted_sum { } usdt:*:here { }", "usdt:*:here"),
            ("uprobe:scripted_sum { } self:signal:SIGUSR1 { }", "self:signal:SIGUSR1"),
            ("uprobe:scripted_sum { } uprobe:libc:0x1000 { }", "0x1000"),
        ] {
            match ready().script(text) {
                Err(error @ Error::NotInside { .. }) => assert!(error.to_string().contains(what), "{error}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in
            ["uprobe:scripted_sum { } uprobe:libc:no_such_function { }", "uprobe:no_such_library:f { }"]
        {
            assert!(matches!(ready().script(text), Err(Error::Find(_))), "{text}");
        }
        assert!(matches!(ready().script("uprobe:scripted_sum { let $a; "), Err(Error::Script(_))));
        assert_eq!(bytes_of(SUM), before);
    });
}

/// Waits for scripts on the thread that would do it.
struct Asks(Arc<Mutex<Option<Script>>>, Arc<Mutex<Vec<String>>>);

impl Write for Asks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(script) = &*self.0.lock().unwrap() {
            let asked = script.results().map(|_| ()).map_err(|error| error.to_string());
            let another = ready().script("begin { }").map(drop).map_err(|error| error.to_string());
            self.1.lock().unwrap().extend([asked, another].into_iter().flat_map(Result::err));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_prints_cannot_wait_for_scripts_and_what_cannot_be_written_is_told() {
    apart(|| {
        let (own, told) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Vec::new())));
        let options = ScriptOptions::default().output(Asks(own.clone(), told.clone()));
        let script = ready().script_with("uprobe:scripted_sum { print(arg0); }", options).unwrap();
        *own.lock().unwrap() = Some(script);
        call_often(1);
        while told.lock().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        let script = own.lock().unwrap().take().unwrap();
        assert!(told.lock().unwrap().iter().all(|told| told.contains("cannot wait")), "{told:?}");
        drop(script);

        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let options = ScriptOptions::default().output(Broken);
        let script =
            ready().script_with("uprobe:scripted_sum { print(arg0); @n = count(); }", options).unwrap();
        call_often(2);
        assert_eq!(number(&script.results().unwrap(), "n"), 2);
        assert!(matches!(script.stop(), Err(Error::Output(_))));

        struct Panics;
        impl Write for Panics {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                panic!("not written")
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let before = bytes_of(SUM);
        let options = ScriptOptions::default().output(Panics);
        let script =
            ready().script_with("uprobe:scripted_sum { print(arg0); @n = count(); }", options).unwrap();
        call_often(2);
        assert!(matches!(script.stop(), Err(Error::Output(_))));
        assert_eq!(bytes_of(SUM), before);
        let (script, _) = run("uprobe:scripted_sum { @n = count(); }");
        call_often(2);
        assert_eq!(number(&script.stop().unwrap(), "n"), 2);
    });
}

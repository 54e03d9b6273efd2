//! The tool on real programs, end to end. One program for all of these tests: what they share is compiled and linked once, and a short one fills
//! the time that a long one leaves.

mod bench;
mod bodies;
mod command_line;
mod computed_jumps;
mod coverage;
mod exact;
mod examples;
mod exceptions;
mod exits;
mod floats;
mod flow;
mod followed;
mod followed_ends;
mod forked_inside;
mod go_assembly;
mod go_handlers;
mod go_scripts;
mod goroutines;
mod handlers;
mod hostile_files;
mod hostile_names;
mod hostile_sessions;
mod i386;
mod i386_scripts;
mod i386_state;
mod inject;
mod inject_delays;
mod input;
mod interrupted;
mod kernel_semaphores;
mod killed;
mod kin;
mod language_docs;
mod launched;
mod library;
mod life;
mod listed;
mod loops;
mod lost_sites;
mod mapped_twice;
mod memory;
mod named_probes;
mod nested_handlers;
mod offered;
mod output;
mod own_memory;
mod patches;
mod pending;
mod places;
mod prologues;
mod quick;
mod read_by_others;
mod recipes;
mod refused;
mod removed_inside;
mod replace;
mod replace_refused;
mod returns;
mod runtimes;
mod sanitizers;
mod saved_contexts;
mod scalable;
mod script_fuzz;
mod script_types;
mod scripts;
mod scripts_live;
mod sharing_children;
mod short_jumps;
mod signed_returns;
mod sleepers;
mod slots;
mod support;
mod threads_in_the_way;
mod thrown;
mod tracers;
mod transparency;
mod trapped_edges;
mod trapped_life;
mod trapped_scripts;
mod trapped_state;
mod trapped_storm;
mod traps;
mod two_sessions;
mod typed;
mod unusual_threads;
mod unwound;
mod unwound_removal;
mod usdt;
mod usdt_scripts;
mod whoever;

/// A file that is not named above would not be compiled, and nobody would miss its tests.
#[test]
fn every_file_here_is_run() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end");
    let named: Vec<&str> = include_str!("main.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources = files
        .filter(|path| path.extension().is_some_and(|kind| kind == "rs") || path.join("mod.rs").exists());
    let mut found: Vec<String> = sources
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name != "main")
        .collect();
    found.sort_unstable();
    assert_eq!(found, named);
}

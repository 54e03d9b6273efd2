//! Numbers of a session are read by others than the tool that armed it: by `status`, with or without that tool, and by whoever knows the
//! shared region's address and nothing else.

use crate::support::text::Text;
use crate::support::tool::{Tool, run};
use crate::support::{Program, Target};
use serde_json::Value;
use trapless_wire::{Checked, Counters, Header, JournalSite, Numbers, RawPlace, Schema, Words};

/// Calls two functions as often as a line of input says, here or in a child.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) long f(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
__attribute__((noipa)) long g(long x) { asm volatile("" ::: "memory"); return x * 5 + 1; }
static void call(int n) { for (int i = 0; i < n; i++) if (f(i) != 3 * i + 7 || g(i) != 5 * i + 1) abort(); }
int main(void) {
    char line[64];
    printf("ready %p %p\n", f, g); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int n = atoi(line);
        if (n >= 0) call(n);
        else { pid_t child = fork(); if (!child) { call(-n); _exit(0); } waitpid(child, 0, 0); }
        puts("called"); fflush(stdout);
    }
}
"#;

/// Has the target call, and waits for it.
fn call(target: &mut Target, times: i32) {
    target.tell(&times.to_string());
    assert_eq!(target.line(), "called");
}

/// What `status` says of a function.
#[track_caller]
fn status(pid: &str, function: &str) -> Value {
    let ran = run(&["status", "-f", "json", "-p", pid]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let row = ran.json().into_iter().find(|row| row["function"] == function && row["hits"] != 0);
    row.unwrap_or_else(|| panic!("{function} is not armed or was not hit: {ran:?}"))
}

#[test]
fn status_shows_what_each_kind_of_session_collects_also_without_its_tool() {
    let program = Program::build("read", SOURCE, &[]);
    for arguments in [&["count"][..], &["count", "--return"], &["latency"], &["trace", "--return"]] {
        let mut target = program.start(&[]);
        let (pid, before) = (target.pid().to_string(), target.text());
        let tool = Tool::armed(&[arguments, &["-p", &pid, "read:f"]].concat());
        call(&mut target, 100);
        call(&mut target, -7);
        let check = |row: &Value, calls: u64, alive: bool| {
            let what = format!("{arguments:?}: {row}");
            assert_eq!((&row["hits"], &row["in_children"]), (&calls.into(), &7.into()), "{what}");
            assert_eq!(row["owner_alive"], alive, "{what}");
            let is_followed = arguments.contains(&"--return") || arguments[0] == "latency";
            assert_eq!(row.get("returns"), is_followed.then_some(&calls.into()), "{what}");
            assert_eq!(row.get("lost"), is_followed.then_some(&0.into()), "{what}");
            assert_eq!(row["records"], arguments[0] == "trace", "{what}");
            match arguments[0] {
                "latency" => {
                    let buckets = row["latency"]["buckets"].as_array().unwrap();
                    let counted: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
                    assert_eq!(counted, calls, "{what}");
                    assert!(row["latency"]["max"].as_u64().unwrap() > 0, "{what}");
                }
                _ => assert_eq!(row.get("latency"), None, "{what}"),
            }
        };
        check(&status(&pid, "f"), 100, true);
        tool.kill();
        call(&mut target, 11);
        check(&status(&pid, "f"), 111, false);
        let text = run(&["status", "-p", &pid]).out;
        let is_followed = arguments.contains(&"--return") || arguments[0] == "latency";
        assert_eq!(text.contains("111 returns"), is_followed, "{text}");
        assert!(text.contains("7 hits in children"), "{text}");
        // What a frame that runs has never written may hold a word of ours, and then memory stays.
        match run(&["detach", "-f", "json", "-p", &pid]).json()[0]["memory_kept"] == true {
            true => Text::of(target.pid()).assert_is_of_files(target.pid()),
            false => before.assert_restored(target.pid()),
        }
        call(&mut target, 1);
    }
}

#[test]
fn two_sessions_are_told_apart() {
    let program = Program::build("read", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let one = Tool::armed(&["latency", "-p", &pid, "read:f"]);
    call(&mut target, 5);
    let other = Tool::armed(&["count", "-p", &pid, "read:g"]);
    call(&mut target, 6);
    assert_eq!((&status(&pid, "f")["hits"], &status(&pid, "g")["hits"]), (&11.into(), &6.into()));
    assert_eq!(status(&pid, "g").get("returns"), None);
    one.interrupt();
    call(&mut target, 1);
    assert_eq!(status(&pid, "g")["hits"], 7);
    other.interrupt();
    before.assert_restored(target.pid());
}

/// The shared region, read by nobody in particular.
struct Region<'t> {
    target: &'t Target,
    start: u64,
}

impl Region<'_> {
    fn list<T: bytemuck::AnyBitPattern>(&self, at: u64, count: u64) -> Vec<T> {
        let bytes = self.target.read(self.start + at, count as usize * size_of::<T>());
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
}

impl Words for Region<'_> {
    fn word(&self, offset: u64) -> u64 {
        self.list(offset, 1)[0]
    }
}

/// Where the only shared region of a process is mapped.
fn region_of(pid: &str) -> std::ops::Range<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains("/memfd:trapless")).unwrap();
    let (start, rest) = line.split_once('-').unwrap();
    let [start, end] =
        [start, rest.split(' ').next().unwrap()].map(|at| u64::from_str_radix(at, 16).unwrap());
    start..end
}

#[test]
fn the_region_alone_tells_all_numbers() {
    let program = Program::build("read", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, addresses) = (target.pid().to_string(), [target.address(0), target.address(1)]);
    let tool = Tool::armed(&["latency", "-p", &pid, "read:f", "read:g"]);
    call(&mut target, 42);
    let mapped = region_of(&pid);
    let region = Region { target: &target, start: mapped.start };
    let header = Checked::read(&target.read(mapped.start, size_of::<Header>()), mapped).unwrap();
    let sites: Vec<JournalSite> = region.list(header.journal.site_at(0), header.journal.sites);
    let places: Vec<RawPlace> = region.list(header.places_at(), header.places);
    let (schema, doubted) = Schema::read(&header, &places);
    assert_eq!(doubted, 0);
    for address in addresses {
        // Behind an endbr64 is the entry all the same.
        let site = sites.iter().find(|site| site.site == address || site.site == address + 4).unwrap();
        let [Numbers { returns, lost, ref latency, .. }] =
            Counters::new(&header, &region).numbers(&[schema.places(site.probe)])[..]
        else {
            panic!("one probe has numbers once")
        };
        assert_eq!((returns, lost, latency.as_ref().unwrap().count), (42, 0, 42));
    }
    tool.interrupt();
}

#[test]
fn h1_a_schema_that_makes_no_sense_is_said_and_harms_nobody() {
    type Forge = fn(&mut RawPlace, &Header);
    let forgeries: [Forge; 8] = [
        |p, _| p.kind = 77,
        |p, _| p.offset = 1,
        |p, _| p.offset = 8,
        |p, _| p.offset = u32::MAX - 7,
        |p, h| p.offset = h.block_stride as u32,
        |p, _| p.arguments = 255,
        // A histogram where there is room for a counter only, or nearly none.
        |p, h| (p.kind, p.offset) = (4, h.block_stride as u32 - 8),
        // Records of a session that has no rings.
        |p, _| p.kind = 6,
    ];
    let program = Program::build("read", SOURCE, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    Tool::armed(&["count", "-p", &pid, "read:f"]).kill();
    call(&mut target, 9);
    let mapped = region_of(&pid);
    let region = Region { target: &target, start: mapped.start };
    let header = Checked::read(&target.read(mapped.start, size_of::<Header>()), mapped).unwrap();
    let at = header.region + header.places_at();
    let place: RawPlace = region.list(header.places_at(), 1)[0];
    for (index, forge) in forgeries.into_iter().enumerate() {
        let mut forged = place;
        forge(&mut forged, &header);
        target.write(at, bytemuck::bytes_of(&forged));
        let ran = run(&["status", "-f", "json", "-p", &pid]);
        assert_eq!(ran.code, Some(0), "forgery {index}: {ran:?}");
        assert!(ran.err.contains("makes no sense") && !ran.err.contains("panicked"), "{index}: {ran:?}");
        assert_eq!(ran.json()[0]["hits"], 0, "forgery {index}: {ran:?}");
    }
    target.write(at, bytemuck::bytes_of(&place));
    assert_eq!(status(&pid, "f")["hits"], 9);
    // Removal does not ask what was collected.
    target.write(at, &[0xff; size_of::<RawPlace>()]);
    let ran = run(&["detach", "-f", "json", "-p", &pid]);
    assert_eq!((ran.code, &ran.json()[0]["left"]), (Some(0), &0.into()), "{ran:?}");
    before.assert_restored(target.pid());
    call(&mut target, 1);
}

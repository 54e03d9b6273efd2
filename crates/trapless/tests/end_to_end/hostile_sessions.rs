//! Hard cases H1 and H5: sessions that a target has forged, or overwritten. What makes no sense is left alone and said; nothing is
//! written that the tool would not have written; and a process that has the id of the tool is not the tool.

use crate::support::assembly::X86;
use crate::support::tool::{Ran, Tool, run};
use crate::support::{self, Program, Target, counting_tells_unwinders};
use std::mem::offset_of;
use std::time::{Duration, Instant};
use trapless_wire::{Arena, Header, JournalSite, JournalWrite, MAX_SITES, PAGE};

/// Answers each line of input with what two functions give.
const ANSWERS: &str = r#"
#include <stdio.h>
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
__attribute__((noipa)) long other(long x) { asm volatile("" ::: "memory"); return x * 5 + 1; }
int main(void) {
    char line[64];
    printf("ready %p %p\n", subject, other); fflush(stdout);
    while (fgets(line, sizeof line, stdin)) { printf("%ld\n", subject(1) + other(1)); fflush(stdout); }
}
"#;

/// Where the shared region of a process is.
fn region_of(pid: &str) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.contains("/memfd:trapless")).unwrap();
    u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

/// A target with a session whose tool was killed.
struct Orphaned {
    target: Target,
    pid: String,
    region: u64,
    before: support::text::Text,
}

impl Orphaned {
    fn start() -> Orphaned {
        let program = Program::build("answers", ANSWERS, &[]);
        let target = program.start(&[]);
        let (pid, before) = (target.pid().to_string(), target.text());
        Tool::armed(&["count", "-p", &pid, "answers:subject"]).kill();
        let region = region_of(&pid);
        Orphaned { target, pid, region, before }
    }

    fn header(&self) -> Header {
        bytemuck::pod_read_unaligned(&self.target.read(self.region, size_of::<Header>()))
    }

    fn write_header(&self, header: &Header) {
        self.target.write(self.region, bytemuck::bytes_of(header));
    }

    /// The first site of its journal.
    fn entry(&self) -> Entry {
        let sizes = self.header().journal;
        let read = |at: u64, length: usize| self.target.read(self.region + at, length);
        let site = bytemuck::pod_read_unaligned(&read(sizes.site_at(0), size_of::<JournalSite>()));
        let write: JournalWrite =
            bytemuck::pod_read_unaligned(&read(sizes.write_at(0), size_of::<JournalWrite>()));
        let length = usize::from(write.length);
        let mut original = read(sizes.bytes_at(), 2 * length);
        let patched = original.split_off(length);
        Entry { site, write, original, patched }
    }

    fn write_entry(&self, Entry { site, write, original, patched }: &Entry) {
        let sizes = self.header().journal;
        let bytes = [&original[..], patched].concat();
        for (at, part) in [
            (sizes.site_at(0), bytemuck::bytes_of(site)),
            (sizes.write_at(0), bytemuck::bytes_of(write)),
            (sizes.bytes_at(), &bytes),
        ] {
            self.target.write(self.region + at, part);
        }
    }

    #[track_caller]
    fn answers(&mut self) {
        self.target.tell("go on");
        assert_eq!(self.target.line(), "16", "the target does not work any more");
    }

    /// Runs the tool on it: quickly, and without anything that looks like a defect of ours.
    #[track_caller]
    fn run(&mut self, verb: &str) -> Ran {
        let start = Instant::now();
        let ran = run(&[verb, "-p", &self.pid, "-f", "json"]);
        assert!(start.elapsed() < Duration::from_secs(120), "{ran:?}");
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        assert!(!ran.err.contains("panicked"), "{ran:?}");
        self.answers();
        ran
    }
}

/// A site and its only write, as they stand in the journal.
#[derive(Clone)]
struct Entry {
    site: JournalSite,
    write: JournalWrite,
    original: Vec<u8>,
    patched: Vec<u8>,
}

#[test]
fn h1_a_header_that_makes_no_sense_is_left_alone_and_said() {
    type Forge = fn(&mut Header);
    let forgeries: [(&str, Forge); 18] = [
        ("blocks", |h| h.block_stride = 1 << 40),
        ("blocks", |h| {
            h.ring_bits = 63 << 1 | {
                h.ring = 4096;
                1
            }
        }),
        ("region", |h| {
            h.block_count = u64::MAX;
            h.block_cursor = u64::MAX;
        }),
        ("region", |h| h.journal.sites = u64::MAX),
        ("region", |h| h.journal.writes = u64::MAX),
        ("region", |h| h.journal.writes = 0),
        ("region", |h| h.journal.bytes = u64::MAX),
        ("region", |h| h.region_size = u64::MAX),
        ("region", |h| h.region = 0),
        ("arenas", |h| h.arenas[0].address = u64::MAX - 100),
        ("arenas", |h| h.arenas[0].size = 1 << 60),
        ("arenas", |h| h.arenas = [Arena { address: PAGE, size: PAGE }; 96]),
        ("arenas", |h| h.arenas[1] = h.arenas[0]),
        ("owner", |h| h.state = 77),
        ("version", |h| h.version = 1),
        ("version", |h| h.version = 2),
        ("version", |h| h.version = u32::MAX),
        ("is none", |h| h.magic = *b"TRAPMORE"),
    ];
    let mut orphaned = Orphaned::start();
    let (header, armed) = (orphaned.header(), orphaned.target.text());
    for (part, forge) in forgeries {
        let mut forged = header;
        forge(&mut forged);
        orphaned.write_header(&forged);
        for verb in ["status", "detach"] {
            let ran = orphaned.run(verb);
            assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
            assert!(ran.err.contains("left alone") && ran.err.contains(part), "{part}: {ran:?}");
            assert!(armed == orphaned.target.text(), "{part}: something was written");
        }
    }
    orphaned.write_header(&header);
    orphaned.run("detach");
    orphaned.before.assert_restored(orphaned.target.pid());
}

#[test]
fn h1_removal_writes_nothing_that_the_tool_would_not_have_written() {
    type Forge = fn(&mut Entry, u64);
    // The second value is the address of a function that is not probed.
    let forgeries: [Forge; 18] = [
        |e, _| e.original[0] ^= 0xff,
        |e, _| e.original.fill(0xcc),
        |e, other| e.site.site = other,
        |e, other| e.write.address = other,
        |e, other| (e.site.site, e.write.address) = (other, other),
        |e, _| (e.site.site, e.write.address) = (u64::MAX - 2, u64::MAX - 2),
        |e, _| e.write.length = 255,
        |e, _| e.write.length = u16::MAX,
        |e, _| e.write.length = 0,
        |e, _| e.write.bytes = u32::MAX,
        |e, _| e.write.site = 1000,
        |e, _| e.write.kind = 2,
        |e, _| e.site.writes = 2,
        |e, _| e.site.detour = 0,
        |e, other| e.site.detour = other,
        |e, _| e.site.detour_size = u32::MAX,
        |e, _| e.patched.fill(0),
        |e, _| e.site.trap = 9,
    ];
    for (index, forge) in forgeries.into_iter().enumerate() {
        let mut orphaned = Orphaned::start();
        let (entry, armed) = (orphaned.entry(), orphaned.target.text());
        let mut forged = entry.clone();
        forge(&mut forged, orphaned.target.address(1));
        orphaned.write_entry(&forged);
        orphaned.run("status");
        let ran = orphaned.run("detach");
        let row = &ran.json()[0];
        assert_eq!(row["left"], 1, "forgery {index}: {ran:?}");
        // All others are as they were: those that serve handlers of signals. Those that unwinders ask stay as long as anything does.
        let left = match counting_tells_unwinders() {
            true => armed,
            false => orphaned.before.with(entry.write.address, &entry.patched),
        };
        assert!(left.is_now(orphaned.target.pid()), "forgery {index}: something was written");
        // The jump stands, and so does what it leads to.
        orphaned.write_entry(&entry);
        orphaned.run("detach");
        orphaned.before.assert_restored(orphaned.target.pid());
    }
}

#[test]
fn h1_a_site_in_an_arena_is_no_site() {
    let mut orphaned = Orphaned::start();
    let (mut entry, header) = (orphaned.entry(), orphaned.header());
    // A jump inside the arena to its own detour, which is there: as if it were a patch.
    let Arena { address, size } = header.arenas[0];
    // Elsewhere the first one is no arena of stubs, whose end has memory, but a module's: ahead of its code, and behind what it says of itself.
    entry.site.site = if X86 { address + size - 64 } else { address + 24 };
    entry.write.address = entry.site.site;
    if X86 {
        let distance = (entry.site.detour as i64 - (entry.site.site as i64 + 5)) as i32;
        entry.patched[0] = 0xe9;
        entry.patched[1..5].copy_from_slice(&distance.to_le_bytes());
    } else {
        let displaced = trapless_isa::Displaced { start: entry.site.site, length: 4, instructions: 1 };
        let isa = trapless_isa::Machine::beside(false).isa();
        entry.patched = isa.patch(&displaced, entry.site.detour).unwrap();
    }
    orphaned.target.write(entry.site.site, &entry.patched);
    orphaned.write_entry(&entry);
    let ran = orphaned.run("detach");
    assert_eq!(ran.json()[0]["left"], 1, "{ran:?}");
    let arena = orphaned.target.read(entry.site.site, entry.patched.len());
    assert!(arena == entry.patched && arena != entry.original);
}

#[test]
fn h5_a_journal_that_is_a_hole_costs_nothing() {
    let source = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    size_t size = strtoull(argv[1], 0, 10);
    int fd = memfd_create("trapless", 0);
    if (ftruncate(fd, size)) return 1;
    int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
    void *at = mmap((void *)0x100000000000, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) return 1;
    // Twice, as nobody of us does.
    mmap((void *)0x200000000000, size, PROT_READ | PROT_WRITE, flags, fd, 0);
    printf("ready %p\n", at); fflush(stdout);
    for (;;) pause();
}
"#;
    let orphaned = Orphaned::start();
    let mut header = orphaned.header();
    let other_memory = header.region;
    header.journal.sites = MAX_SITES;
    header.journal.writes = MAX_SITES;
    header.journal.bytes = 16 * MAX_SITES;
    header.blocks_offset = header.journal.end().next_multiple_of(PAGE);
    header.region_size = header.blocks_offset + header.block_count * header.block_stride;
    header.region = 0x1000_0000_0000;
    header.block_cursor = u64::MAX;
    assert_ne!(other_memory, header.region);
    let program = Program::build("hole", source, &[]);
    let target = program.start(&[&header.region_size.to_string()]);
    target.write(header.region, bytemuck::bytes_of(&header));
    let pid = target.pid().to_string();
    for verb in ["status", "detach"] {
        let ran = run(&[verb, "-p", &pid]);
        assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
        assert!(ran.err.contains("left alone: it says of its region"), "the second mapping: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{ran:?}");
    }
    let shared = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = shared.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    let kilobytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kilobytes < 8192, "reading filled {kilobytes} KiB of a hole");
}

#[test]
fn h3_a_process_with_the_tools_id_is_not_the_tool() {
    let mut orphaned = Orphaned::start();
    let ours = std::process::id();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Field 22 of proc(5); the state behind the name is field 3.
    let start = stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse::<u64>().unwrap();
    for (start, alive) in [(start, true), (start - 1, false), (0, false)] {
        let at = |offset: usize| orphaned.region + offset as u64;
        orphaned.target.write(at(offset_of!(Header, tool)), &ours.to_le_bytes());
        orphaned.target.write(at(offset_of!(Header, tool_start_time)), &start.to_le_bytes());
        let ran = orphaned.run("status");
        assert_eq!(ran.json()[0]["owner_alive"], alive, "{ran:?}");
    }
    // Nobody's, so the next run takes it out first.
    let ran = run(&["count", "-p", &orphaned.pid, "answers:other", "-d", "0.01"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    orphaned.before.assert_restored(orphaned.target.pid());
    orphaned.answers();
}

#[test]
fn h1_what_a_target_makes_of_the_journal_does_not_concern_its_tool() {
    let program = Program::build("answers", ANSWERS, &[]);
    let mut target = program.start(&[]);
    let (pid, before) = (target.pid().to_string(), target.text());
    let tool = Tool::armed(&["count", "--return", "-p", &pid, "answers:subject"]);
    let region = region_of(&pid);
    target.write(region + PAGE, &[0; 512]);
    target.tell("go on");
    assert_eq!(target.line(), "16");
    assert_eq!(tool.interrupt().hits("subject", "entry"), 1);
    before.assert_restored(target.pid());
}

/// Fills the rings of every block for ever, as if very many calls came.
const FILLS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((noipa)) long subject(long x) { asm volatile("" ::: "memory"); return x * 3 + 7; }
int main(void) {
    uint64_t region, blocks, stride, count, ring, records, cursor, tail, sequence, id;
    printf("ready %p\n", subject); fflush(stdout);
    scanf("%lx %lx %lx %lx %lx %lx %lx %lx %lx %lx", &region, &blocks, &stride, &count, &ring, &records, &cursor, &tail,
        &sequence, &id);
    *(volatile uint64_t *)(region + cursor) = count;
    puts("filling"); fflush(stdout);
    for (;;)
        for (uint64_t block = 1; block < count; block++) {
            char *base = (char *)region + blocks + block * stride;
            uint64_t from = *(volatile uint64_t *)(base + tail);
            *(volatile uint64_t *)(base + 8) = 1;
            for (uint64_t at = from; at < from + records; at++) {
                char *record = base + ring + (at & (records - 1)) * 128;
                *(volatile uint64_t *)(record + id) = 0;
                *(volatile uint64_t *)(record + sequence) = at + 1;
            }
        }
}
"#;

#[test]
fn h5_rings_that_are_never_empty_keep_nobody_and_fill_no_memory() {
    use trapless_isa::detour::{BLOCK_RING_TAIL, RECORD_ID, RECORD_SEQUENCE, RECORD_SHIFT};
    assert_eq!(1 << RECORD_SHIFT, 128, "the target counts on it");
    let program = Program::build("fills", FILLS, &[]);
    for limit in [&["-d", "1"][..], &[]] {
        let mut target = program.start(&[]);
        let pid = target.pid().to_string();
        let mut command = support::tool::trapless(&["trace", "-f", "json", "-p", &pid, "fills:subject"]);
        let tool = Tool::armed_with(command.args(limit));
        let region = region_of(&pid);
        let header: Header = bytemuck::pod_read_unaligned(&target.read(region, size_of::<Header>()));
        let told = [
            region,
            header.blocks_offset,
            header.block_stride,
            100,
            u64::from(header.ring),
            1 << header.ring_bits,
            Header::CURSOR_OFFSET,
            u64::from(BLOCK_RING_TAIL),
            u64::from(RECORD_SEQUENCE),
            u64::from(RECORD_ID),
        ];
        target.tell(&told.map(|number| format!("{number:x}")).join(" "));
        assert_eq!(target.line(), "filling");
        if limit.is_empty() {
            tool.signal(libc::SIGINT);
        }
        // All rings together would be 200 MiB.
        let (_, peak) = tool.peak_memory_until_its_end();
        assert!(peak < 150 << 10, "{peak} KiB");
    }
}

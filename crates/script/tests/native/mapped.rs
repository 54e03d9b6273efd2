//! What is known to be mapped is read plainly, and nothing else is. Whoever has an id that no thread has cannot read by a system call.

use crate::machine::{BLOCK, Hit, Mapping, Ready, SHARED, reads_memory};
use std::ops::Range;
use trapless_isa::detour::BLOCK_OWNER;
use trapless_script::ir::*;
use trapless_script::native::Moment;
use trapless_wire::{
    SCRIPT_BOUNDS, SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE, SCRIPT_GOROUTINES, SCRIPT_STACK_END,
    SCRIPT_STACK_START, WordsMut,
};

/// Nobody's.
const NO_TID: u64 = 0x3fff_fff0;
/// How much is read at most.
const MOST: u32 = 9000;

/// Reads as many bytes as the second argument says from where the first says, and tells whether they were there, and a sum of them.
fn ready() -> Ready {
    let argument = |number| Expression::Context(Context::Argument(number));
    let local = |number| Expression::Local(LocalId(number));
    let byte = |offset| Expression::Load { from: Place::Scratch(offset), as_: Width::Unsigned(8) };
    let last = Expression::Load { from: Place::Scratch(MOST - 8), as_: Width::Unsigned(8) };
    let code = vec![
        Statement::ReadBytes {
            to: Place::Scratch(0),
            size: MOST,
            from: argument(0),
            length: argument(1),
            ok: Some(LocalId(0)),
        },
        Statement::Emit {
            message: MessageId(0),
            parts: [local(0), byte(0), byte(8), last].map(Part::Word).to_vec(),
        },
    ];
    let body = Body { locals: vec![Scalar::Int], scratch: MOST, code };
    let program =
        Program { bodies: vec![body], messages: vec![vec![PartKind::Word; 4]], ..Program::default() };
    Ready::new(&program, &[(BodyId(0), Moment::Entry)], 1).unwrap()
}

/// What a read of so many bytes tells.
fn read(ready: &Ready, from: u64, length: u64, tid: u64) -> [u64; 4] {
    ready.run(0, 0, &Hit { tid, ..Hit::with(&[from, length]) });
    let mut told = [0; 4];
    ready.ring(0).drain(&ready.region, trapless_wire::Incomplete::Wait, |message| {
        told.copy_from_slice(&message.words);
    });
    told
}

fn set_shared(ready: &Ready, at: u32, value: u64) {
    ready.region.set_word(SHARED + u64::from(at), value);
}

#[test]
fn what_nobody_writes_of_the_programs_file_is_read_plainly_up_to_its_ends() {
    const PAGES: u64 = 4;
    if !reads_memory() {
        return;
    }
    let mapping = Mapping::new(PAGES * 4096);
    (0..PAGES * 512).for_each(|word| mapping.set_word(8 * word, word + 1));
    let start = mapping.address as u64;
    let ready = ready();
    assert_eq!(read(&ready, start, 16, NO_TID), [0; 4], "there is none");
    // Without the first and the last page.
    set_shared(&ready, SCRIPT_CONSTANT, start + 4096);
    set_shared(&ready, SCRIPT_CONSTANT_SIZE, (PAGES - 2) * 4096);
    let end = start + (PAGES - 1) * 4096;
    for (from, length, expected) in [
        (start + 4096, 16, [1, 513, 514, 0]),
        (start + 4096, 8192, [1, 513, 514, 0]),
        (end - 16, 16, [1, 1535, 1536, 0]),
        (end - 3, 3, [1, 0, 0, 0]),
        (end - 16, 0, [1, 0, 0, 0]),
        (start + 4096 + 13, 8, [1, 515 << 24, 0, 0]),
        // What lies behind the end is not there.
        (end - 8, 16, [0, 1536, 0, 0]),
        (end, 8, [0; 4]),
        (start + 4088, 16, [0; 4]),
        (start + 4095, 1, [0; 4]),
        (0, 8, [0; 4]),
        (u64::MAX - 3, 8, [0; 4]),
        (u64::MAX - 3, u64::MAX, [0; 4]),
    ] {
        assert_eq!(read(&ready, from, length, NO_TID), expected, "{:x} {length}", from - start);
    }
    // The program has taken its rights off a page.
    mapping.protect(2 * 4096, 4096, libc::PROT_NONE);
    assert_eq!(read(&ready, start + 4096, 16, NO_TID), [1, 513, 514, 0]);
    assert_eq!(read(&ready, start + 2 * 4096, 8, NO_TID), [0; 4]);
    assert_eq!(read(&ready, start + 2 * 4096 - 8, 16, NO_TID), [0, 1024, 0, 0]);
    mapping.protect(2 * 4096, 4096, libc::PROT_READ);
    assert_eq!(read(&ready, start + 2 * 4096 - 8, 16, NO_TID), [1, 1024, 1025, 0]);
    // What is not known is read by the kernel.
    assert_eq!(read(&ready, end - 8, 16, Hit::default().tid), [1, 1536, 1537, 0]);
}

/// This thread's stack.
fn own_stack() -> Range<u64> {
    // SAFETY: attributes of the thread that runs, which are written before they are read, and given back.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        assert_eq!(libc::pthread_attr_getstack(&attributes, &mut low, &mut size), 0);
        libc::pthread_attr_destroy(&mut attributes);
        low as u64..low as u64 + size as u64
    }
}

#[test]
fn what_is_in_use_of_a_threads_own_stack_is_read_plainly() {
    // How far behind the thread pointer the control block says it.
    const BOUNDS: u64 = 24;
    if !reads_memory() {
        return;
    }
    let own = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        const WORDS: usize = 40 * 512;
        let mut words: [u64; WORDS] = std::array::from_fn(|word| word as u64);
        let start = std::ptr::from_mut(std::hint::black_box(&mut words)) as u64;
        let at = |word: usize| start + 8 * word as u64;
        let (ready, stack) = (ready(), own_stack());
        let owner_at = ready.part(0) - u64::from(BLOCK) + u64::from(BLOCK_OWNER);
        let tell = |owner: u64, first: Range<u64>, bounds: u64| {
            ready.region.set_word(owner_at, owner);
            for (at, word) in
                [(SCRIPT_STACK_START, first.start), (SCRIPT_STACK_END, first.end), (SCRIPT_BOUNDS, bounds)]
            {
                set_shared(&ready, at, word);
            }
        };
        // The thread pointer is an address in the array, at the beginning of a page: what lies behind it is not read.
        let thread_pointer = (at(WORDS - 1024) + 4095) & !4095;
        let bounds = |low: u64, size: u64, guard: u64| {
            for (word, value) in (0..).zip([low, size, guard]) {
                // SAFETY: words of the array, which is read by nobody else meanwhile.
                unsafe { ((thread_pointer + BOUNDS + 8 * word) as *mut u64).write_volatile(value) };
            }
        };
        let is_read = |from: u64, length: u64| match read(&ready, from, length, NO_TID) {
            [1, ..] => true,
            [0, ..] => false,
            told => panic!("{told:?}"),
        };
        let expected = |word: usize| [1, word as u64, word as u64 + 1, 0];
        let size = stack.end - stack.start;
        let none = || 0..0;
        // Nothing is known.
        tell(thread_pointer, none(), 0);
        assert!(!is_read(at(3), 16));
        // The first thread's.
        tell(0, stack.clone(), 0);
        for word in [3, 600, 20_000] {
            assert_eq!(read(&ready, at(word), 16, NO_TID), expected(word));
        }
        assert_eq!(read(&ready, at(3), 8192, NO_TID), expected(3));
        assert!(is_read(stack.end - 8, 8) && !is_read(stack.end - 8, 16));
        assert!(!is_read(at(0) - (800 << 10), 8), "below the stack pointer, whatever was there");
        // Of a stack that the thread is not on, nothing: it began higher up, or lies elsewhere.
        tell(0, at(0) + 4096..stack.end, 0);
        assert!(!is_read(at(WORDS - 1), 8));
        tell(0, stack.start - size..stack.start, 0);
        assert!(!is_read(at(3), 16) && !is_read(stack.start - 16, 8));
        // As the control block says.
        tell(thread_pointer, none(), BOUNDS);
        let size = thread_pointer + 4096 - stack.start;
        for (low, size, guard, expected) in [
            (stack.start, size, 0, true),
            (stack.start, size, 4096, true),
            (stack.start, size + 0xf000, 4096, true),
            (stack.start, size + 0x1_0000, 4096, false),
            (0, size, 4096, false),
            (0, thread_pointer + 4096, 0, false),
            (stack.start, size - 8192, 0, false),
            (stack.start, size, size, false),
            (stack.start, size, u64::MAX, false),
            (at(0), thread_pointer + 4096 - at(0), 0, false),
            (stack.start, size, at(0) - stack.start, false),
            (stack.end, 4096, 0, false),
        ] {
            bounds(low, size, guard);
            assert_eq!(is_read(at(600), 16), expected, "{low:x} {size:x} {guard:x}");
        }
        bounds(stack.start, size, 4096);
        assert!(is_read(thread_pointer - 8, 8) && !is_read(thread_pointer - 8, 16), "it ends there");
        // What would be said on another page is not asked for.
        for offset in [0u64.wrapping_sub(8), 4096 - 16, 4096] {
            tell(thread_pointer, none(), offset);
            assert!(!is_read(at(600), 16), "{offset:x}");
        }
        tell(thread_pointer, none(), BOUNDS);
        assert!(is_read(at(600), 16));
        // Goroutines move their stacks.
        set_shared(&ready, SCRIPT_GOROUTINES, 1);
        assert!(!is_read(at(600), 16));
    });
    own.unwrap().join().unwrap();
}

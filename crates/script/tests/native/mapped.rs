//! What is known to be mapped is read plainly, and nothing else is. Whoever has an id that no thread has cannot read by a system call.

use crate::machine::{BLOCK, Hit, Mapping, Ready, SHARED, reads_memory};
use trapless_isa::detour::BLOCK_OWNER;
use trapless_script::ir::*;
use trapless_script::native::Moment;
use trapless_wire::{
    SCRIPT_CONSTANT, SCRIPT_CONSTANT_SIZE, SCRIPT_GOROUTINES, SCRIPT_LEADER, THREAD_MAIN_STACK, THREAD_STACK,
    THREAD_STRANGE, Words, WordsMut,
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
    // What is not known is read by the kernel.
    if reads_memory() {
        assert_eq!(read(&ready, end - 8, 16, Hit::default().tid), [1, 1536, 1537, 0]);
    }
}

/// The end of this thread's stack.
fn stack_end() -> u64 {
    // SAFETY: attributes of the thread that runs, which are written before they are read, and given back.
    unsafe {
        let mut attributes = std::mem::zeroed();
        assert_eq!(libc::pthread_getattr_np(libc::pthread_self(), &mut attributes), 0);
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        assert_eq!(libc::pthread_attr_getstack(&attributes, &mut low, &mut size), 0);
        libc::pthread_attr_destroy(&mut attributes);
        low as u64 + size as u64
    }
}

#[test]
fn of_a_threads_own_stack_what_is_in_use_is_read_plainly() {
    if !reads_memory() {
        return;
    }
    // Of a size of its own, on a thread of its own.
    let own = std::thread::Builder::new().stack_size(2 << 20).spawn(|| {
        const WORDS: usize = 40 * 512;
        let words: [u64; WORDS] = std::array::from_fn(|word| word as u64);
        let at = |word: usize| std::ptr::from_ref(&std::hint::black_box(&words)[word]) as u64;
        let (ready, tid) = (ready(), Hit::default().tid);
        let (part, owner) = (ready.part(0), stack_end() - 256);
        let owner_at = part - u64::from(BLOCK) + u64::from(BLOCK_OWNER);
        ready.region.set_word(owner_at, owner);
        let known = || ready.region.word(part + u64::from(THREAD_STACK));
        let forget = || {
            for at in [THREAD_STACK, THREAD_MAIN_STACK, THREAD_STRANGE] {
                ready.region.set_word(part + u64::from(at), 0);
            }
        };
        let expected = |word: usize| [1, word as u64, word as u64 + 1, 0];
        // It is asked bit by bit, and until then the kernel reads.
        let first = 3;
        let depth = |address: u64| (owner & !4095).saturating_sub(address & !4095) >> 12;
        let mut reads = 0;
        while known() >> 32 < depth(at(first)) {
            assert_eq!(read(&ready, at(first), 16, tid), expected(first));
            reads += 1;
            assert!(reads < 60, "{:x}", known());
        }
        assert!(reads > 2);
        assert_eq!(known(), depth(at(first)) << 32 | tid, "no further than it was asked for");
        // What is not in use is not asked for, whatever lies there.
        let before = known();
        read(&ready, at(0) - (800 << 10), 8, tid);
        assert_eq!(known(), before);
        // What is known is read without the kernel.
        assert_eq!(read(&ready, at(first), 16, NO_TID), [0; 4], "of another thread");
        ready.region.set_word(part + u64::from(THREAD_STACK), before & !0xffff_ffff | NO_TID);
        for word in [first, 600, 20_000] {
            assert_eq!(read(&ready, at(word), 16, NO_TID), expected(word));
        }
        assert_eq!(read(&ready, at(first), 8192, NO_TID), expected(first));
        assert_eq!(read(&ready, owner - 8, 16, NO_TID)[0], 0, "it ends there");
        assert_eq!(read(&ready, at(first) & !4095, 8, NO_TID)[0], 1);
        assert_eq!(read(&ready, (at(first) & !4095) - 1, 1, NO_TID), [0; 4], "it begins there");
        // The first thread's control block lies on no stack, and goroutines move theirs.
        for (what, value) in [(SCRIPT_LEADER, tid), (SCRIPT_GOROUTINES, 1)] {
            forget();
            set_shared(&ready, what, value);
            assert_eq!(read(&ready, at(600), 16, tid), expected(600));
            assert_eq!(known(), 0);
            set_shared(&ready, what, 0);
        }
    });
    own.unwrap().join().unwrap();
}

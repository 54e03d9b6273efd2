//! Which files are one, and how long they stay.

use super::*;
use crate::target::{self, Image};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::Instant;
use trapless_testing::copy_program;

/// A program that waits, ended when dropped.
struct Waiting(Child);

impl Waiting {
    fn start(program: &Path) -> Self {
        Self(Command::new(program).arg("600").stdout(Stdio::null()).spawn().unwrap())
    }

    /// It, when the loader is done.
    fn process(&self) -> Process {
        let pid = self.0.id();
        let until = Instant::now() + Duration::from_secs(60);
        let waits = || {
            std::fs::read_to_string(format!("/proc/{pid}/syscall"))
                .is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_clock_nanosleep)))
        };
        while !waits() {
            assert!(Instant::now() < until, "it sleeps");
            std::thread::sleep(Duration::from_millis(1));
        }
        target::open(pid as i32).unwrap()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SLEEP: &str = "/usr/bin/sleep";

fn image<'i>(images: &'i [Image], name: &str) -> &'i Image {
    images.iter().find(|image| image.name().starts_with(name)).unwrap()
}

#[test]
fn a_file_that_two_processes_map_is_read_and_analysed_once() {
    let programs = [(); 2].map(|()| Waiting::start(Path::new(SLEEP)));
    let [one, other] = programs.each_ref().map(Waiting::process);
    let files = Files::default();
    for name in ["sleep", "libc"] {
        let first = target::images(&one, &files).unwrap();
        let known = image(&first, name).opened(Some(&one)).unwrap();
        let (targets, places) = (known.targets().unwrap(), known.signal_places());
        let second = target::images(&other, &files).unwrap();
        let again = image(&second, name).opened(Some(&other)).unwrap();
        assert!(ptr::eq(known, again), "{name}: one file");
        assert!(
            ptr::eq(targets, again.targets().unwrap()) && ptr::eq(places, again.signal_places()),
            "{name}"
        );
        let biases = [image(&first, name).bias(Some(&one)), image(&second, name).bias(Some(&other))];
        assert_ne!(
            biases[0].as_ref().unwrap(),
            biases[1].as_ref().unwrap(),
            "{name}: each has its own place"
        );
        let apart = target::images(&other, &Files::default()).unwrap();
        assert!(!ptr::eq(known, image(&apart, name).opened(Some(&other)).unwrap()), "{name}: others' files");
    }
    // What was read from one stays when it has ended, and so does the way to its symbols.
    let libc = image(&target::images(&one, &files).unwrap(), "libc")
        .opened(Some(&one))
        .unwrap()
        .module()
        .path()
        .to_owned();
    drop(programs);
    assert!(libc.exists(), "{}", libc.display());
}

#[test]
fn a_file_that_was_replaced_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let (path, next) = (folder.path().join("sleep"), folder.path().join("next"));
    copy_program(SLEEP, &path);
    copy_program(SLEEP, &next);
    let files = Files::default();
    let before = [(); 2].map(|()| Waiting::start(&path));
    let [first, second] = before.each_ref().map(Waiting::process);
    std::fs::rename(&next, &path).unwrap();
    let after = Waiting::start(&path);
    let third = after.process();
    // Until both are older than a step, or they would not be kept at all: being deleted is a change, too.
    std::thread::sleep(LONGEST_STEP + Duration::from_millis(100));
    let processes = [&first, &second, &third];
    let images = processes.map(|process| target::images(process, &files).unwrap());
    let opened: Vec<_> = images
        .iter()
        .zip(processes)
        .map(|(images, process)| image(images, "sleep").opened(Some(process)).unwrap())
        .collect();
    assert!(ptr::eq(opened[0], opened[1]), "what was deleted is one file as well");
    assert!(!ptr::eq(opened[0], opened[2]));
    let name = |file: &File| file.module().path().file_name().unwrap().to_owned();
    assert_eq!([name(opened[0]), name(opened[2])], ["sleep (deleted)", "sleep"]);
    assert!(opened.iter().all(|file| file.targets().is_some_and(|targets| !targets.is_empty())));
}

#[test]
fn a_file_that_was_changed_just_now_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sleep");
    copy_program(SLEEP, &path);
    let program = Waiting::start(&path);
    let (process, files) = (program.process(), Files::default());
    let images = [(); 2].map(|()| target::images(&process, &files).unwrap());
    let [one, other] = images.each_ref().map(|images| image(images, "sleep").opened(Some(&process)).unwrap());
    assert!(!ptr::eq(one, other));
    let identity = Identity::of(&std::fs::metadata(&path).unwrap(), [None; 2]);
    let now = SystemTime::now();
    assert!(!identity.is_older_than(now) && identity.is_older_than(now + 2 * LONGEST_STEP));
    assert!(!identity.is_older_than(now - Duration::from_secs(600)), "a clock that was set back");
}

#[test]
fn whatever_is_written_to_a_file_makes_it_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let identity = || Identity::of(&std::fs::metadata(&path).unwrap(), [None; 2]);
    std::fs::write(&path, "one").unwrap();
    let first = identity();
    assert_eq!(first, identity());
    // Longer than the kernel's clock for files stands still.
    std::thread::sleep(Duration::from_millis(50));
    std::fs::write(&path, "two").unwrap();
    assert_ne!(first, identity(), "at the same place and of the same size");
    let elsewhere = Identity { folders: [None, Some((1, 2))], ..identity() };
    assert_ne!(elsewhere, identity(), "its symbols are looked for in another folder");
}

#[test]
fn what_nobody_uses_goes_when_it_is_too_much_the_oldest_first() {
    let kept = |sizes: &[u64]| {
        let mut kept = Kept::default();
        for (number, &size) in (0..).zip(sizes) {
            let about = std::fs::metadata(SLEEP).unwrap();
            let identity = Identity { inode: (0, number), size, ..Identity::of(&about, [None; 2]) };
            kept.asked = number;
            kept.keep(identity, Arc::new(File::open(Path::new(SLEEP)).unwrap()));
        }
        kept
    };
    let left = |kept: &Kept| {
        let mut left: Vec<u64> = kept.files.keys().map(|identity| identity.inode.1).collect();
        left.sort_unstable();
        left
    };
    for (most, largest, expected) in [
        (5, 100, &[0, 1, 2, 3][..]),
        (4, 100, &[0, 1, 2, 3]),
        (2, 100, &[2, 3]),
        (5, 40, &[0, 1, 2, 3]),
        (5, 39, &[1, 2, 3]),
        (5, 19, &[3]),
        (5, 9, &[]),
    ] {
        let mut kept = kept(&[10, 10, 10, 10]);
        kept.drop_unused(most, largest);
        assert_eq!(left(&kept), expected, "{most} of {largest} bytes");
    }
    let mut kept = kept(&[10, 10, 10, 10]);
    let used = kept.files.values().find(|entry| entry.asked == 0).map(|entry| Arc::clone(&entry.file));
    kept.drop_unused(0, 0);
    assert_eq!(left(&kept), [0], "the one that somebody uses");
    drop(used);
    kept.drop_unused(0, 0);
    assert!(kept.files.is_empty());
}

//! The tool's side of a gate ([`trapless_isa::detour::gate`]).
//!
//! Threads that arrive wake whoever waits for a word of the shared region by `futex`. A tool sleeps on descriptors, so a thread of its own waits
//! for the word and makes a descriptor readable. It does nothing else, takes no lock and allocates nothing: keepers are forked meanwhile.

use crate::{EngineError, Region, Session};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use trapless_isa::detour::gate::*;
use trapless_process::{Process, RemoteAddr};
use trapless_wire::Header;

/// Offset of a word of the gate in the region.
fn word(of: u32) -> u64 {
    Header::GATE_OFFSET + u64::from(of)
}

/// Tells of each arrival at a session's gate, until it is dropped.
#[derive(Debug)]
pub struct GateWatch {
    arrivals: Arc<File>,
    region: Arc<Region>,
    is_over: Arc<AtomicBool>,
    waiter: Option<JoinHandle<()>>,
}

impl GateWatch {
    fn new(region: &Arc<Region>) -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; what it returns is checked.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it is open, and nobody else's.
        let arrivals = Arc::new(unsafe { File::from_raw_fd(descriptor) });
        let is_over = Arc::new(AtomicBool::new(false));
        let (mut told, waits_for, over) = (Arc::clone(&arrivals), Arc::clone(region), Arc::clone(&is_over));
        let waiter = std::thread::Builder::new().name("gate".to_owned()).spawn(move || {
            let mut seen = 0;
            while !over.load(Ordering::Acquire) {
                let arrived = waits_for.half(word(GATE_ARRIVED));
                if arrived != seen {
                    // It fails where it is readable for very long already.
                    let _ = told.write(&1u64.to_ne_bytes());
                    seen = arrived;
                }
                waits_for.wait(word(GATE_ARRIVED), seen);
            }
        })?;
        Ok(Self { arrivals, region: Arc::clone(region), is_over, waiter: Some(waiter) })
    }

    /// What becomes readable when somebody has arrived.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }
}

impl Drop for GateWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let Some(waiter) = self.waiter.take() else { return };
        // It may be about to wait, and miss that it is woken.
        while !waiter.is_finished() {
            self.region.wake(word(GATE_ARRIVED));
            std::thread::yield_now();
        }
        let _ = waiter.join();
    }
}

impl Session {
    /// Shuts the gate, and tells of those who arrive. Whoever calls this has to [serve](Self::serve_gate) them until it is
    /// [opened](Self::open_gate).
    ///
    /// # Errors
    /// There is no thread or no descriptor to be had. The gate stays open.
    pub fn shut_gate(&self) -> Result<GateWatch, EngineError> {
        let watch = GateWatch::new(self.region()).map_err(EngineError::Map)?;
        self.region().set_half(word(GATE_STATE), GATE_SHUT);
        Ok(watch)
    }

    /// How many have arrived at the gate: to be asked before looking for what they have changed.
    pub fn arrived_at_gate(&self, watch: &GateWatch) -> u32 {
        // Told again from here on.
        let _ = (&*watch.arrivals).read(&mut [0; 8]);
        self.region().half(word(GATE_ARRIVED))
    }

    /// Lets those go on who had arrived at that time. A gate that has opened itself, because this took too long, is shut again.
    pub fn serve_gate(&self, arrived: u32) {
        self.region().set_half(word(GATE_STATE), GATE_SHUT);
        self.region().set_half(word(GATE_SERVED), arrived);
        self.region().wake(word(GATE_SERVED));
    }

    /// Lets everybody pass from now on.
    pub fn open_gate(&self) {
        self.region().set_half(word(GATE_STATE), 0);
        self.region().set_half(word(GATE_SERVED), self.region().half(word(GATE_ARRIVED)));
        self.region().wake(word(GATE_SERVED));
    }

    /// How often somebody has waited at the gate in vain.
    pub fn late_at_gate(&self) -> u32 {
        self.region().half(word(GATE_LATE))
    }
}

/// Opens the gate of a session in a stopped process: whoever waits there goes on as soon as he runs. In a forked child that counts in its
/// parent's memory nobody waits, and the gate is the parent's.
pub(crate) fn open(process: &Process, header: &Header) -> Result<(), EngineError> {
    if process.read_word(RemoteAddr(header.threads))? == 0 {
        return Ok(());
    }
    let at = |of: u32| RemoteAddr(header.region + word(of));
    let arrived = process.read_pod::<u32>(at(GATE_ARRIVED))?;
    process.write(at(GATE_STATE), &0u32.to_le_bytes())?;
    Ok(process.write(at(GATE_SERVED), &arrived.to_le_bytes())?)
}

//! What walks of stacks need to know of each process, from before it is probed until it is not: its unwind tables, and what it loads
//! meanwhile.

use crate::error::Error;
use crate::files::Files;
use crate::target::{self, Image};
use std::collections::HashMap;
use std::sync::Arc;
use trapless_engine::{ScriptMemory, Walks};
use trapless_process::Process;
use trapless_session::unwind::Unwinding;
use trapless_wire::unwind::DIRECTORY_OFFSET;
use trapless_wire::{UNWIND_ROOM, WordsMut};

/// The tables of all processes.
#[derive(Default)]
pub(super) struct Tables {
    /// Offset of tables in a script's shared part.
    at: u64,
    all: HashMap<i32, Table>,
}

struct Table {
    unwinding: Unwinding,
    /// Once it is probed.
    probed: Option<(Process, ScriptMemory)>,
}

impl Tables {
    /// For a script that has them at this offset.
    pub fn new(at: u64) -> Self {
        Self { at, all: HashMap::new() }
    }

    /// Those of a process that is to be probed.
    ///
    /// # Errors
    /// It has ended, or they are too large.
    pub fn prepare(&mut self, process: &Process, images: &[Image]) -> Result<Walks, Error> {
        let unwinding = Unwinding::new(process, images, UNWIND_ROOM)?;
        let walks = Walks { tables: (self.at, Arc::from(unwinding.bytes())) };
        self.all.insert(process.pid().0, Table { unwinding, probed: None });
        Ok(walks)
    }

    /// A process is probed, and this is the script's memory in it.
    pub fn join(&mut self, pid: i32, memory: ScriptMemory) {
        if let (Some(table), Ok(process)) = (self.all.get_mut(&pid), target::open(pid)) {
            table.probed = Some((process, memory));
        }
    }

    /// A process is probed no longer.
    pub fn leave(&mut self, pid: i32) {
        self.all.remove(&pid);
    }

    /// Adds what processes have loaded since. Of one that cannot be looked at, what there is stays.
    pub fn look(&mut self, files: &Files) {
        for Table { unwinding, probed } in self.all.values_mut() {
            let Some((process, memory)) = probed else { continue };
            if let Ok(true) = unwinding.update(process, files) {
                let at = memory.shared().start + self.at;
                let (from, fresh) = unwinding.fresh();
                let directory =
                    unwinding.bytes().get(DIRECTORY_OFFSET..).and_then(|bytes| bytes.first_chunk());
                // The word comes last: who reads it finds all that it leads to.
                if memory.region().write(at + from, fresh).is_ok()
                    && let Some(directory) = directory
                {
                    memory.region().set_word(at + DIRECTORY_OFFSET as u64, u64::from_le_bytes(*directory));
                }
            }
        }
    }
}

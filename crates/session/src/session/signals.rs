//! Where a program says which handlers its signals have, and where handlers return to: probes of our own stand there, so that handlers
//! see the program where they interrupt a detour ([`trapless_isa::detour::signals`]).
//!
//! It is done in the C library, and in the program itself where that has one of its own, as static programs do, and Go's, whose handler is probed. Where it is found
//! in neither, handlers see detours, and nothing is displaced that may fault in a way which the program handles.

use super::sharing::{add, is_c_library};
use crate::files::function_around;
use crate::resolve::{self, Sites};
use crate::target::Image;
use std::collections::BTreeMap;
use trapless_engine::{Wanted, find_sessions, spread};
use trapless_isa::SignalCall;
use trapless_process::Process;
use trapless_symbols::Module;

/// Probes at such places: images, and addresses in their files.
#[derive(Clone, Debug, Default)]
pub(super) struct Hooks(BTreeMap<(usize, u64), SignalCall>);

impl Hooks {
    /// Finds all, and adds sites for them where there are none. Without a process no handler is known, and only Go needs to know where they are.
    pub(super) fn find(process: Option<&Process>, images: &[Image], sites: &mut Sites) -> Self {
        let program = process.and_then(|process| process.exe().ok());
        let matters = |image: &Image| match process {
            Some(_) => {
                is_c_library(image.name())
                    || program.as_deref().is_some_and(|program| program.ends_with(image.name()))
            }
            None => image.module(None).is_ok_and(Module::is_go),
        };
        let searched = (0..images.len()).filter(|&index| matters(&images[index]));
        let searched: Vec<_> =
            searched.filter_map(|index| Some((index, images[index].opened(process).ok()?))).collect();
        let unread: Vec<_> = searched.iter().filter(|(_, file)| !file.knows_signal_places()).collect();
        spread::each(&unread, |(_, file)| {
            file.signal_places();
        });
        let mut hooks = BTreeMap::new();
        for (index, file) in searched {
            for &(address, call) in file.signal_places() {
                let holds = images[index].holds(process, address).unwrap_or(true);
                let function = function_around(file.module(), address).filter(|_| holds);
                let Some(function) = function else { continue };
                hooks.insert((index, address), call);
                add(sites, index, function, address);
            }
        }
        Self(hooks)
    }

    /// Whether handlers are found when they are installed, and when they return.
    pub(super) fn are_whole(&self) -> bool {
        let has = |call| self.0.values().any(|own| *own == call);
        (has(SignalCall::Action) || self.are_gos()) && has(SignalCall::Return)
    }

    /// Whether Go's handlers are probed.
    pub(super) fn are_gos(&self) -> bool {
        self.0.values().any(|call| *call == SignalCall::Handler)
    }

    /// What is done at a site.
    pub(super) fn at(&self, site: &resolve::Site) -> Option<SignalCall> {
        self.0.get(&(site.image, site.address)).copied()
    }

    /// What is wanted at a site, besides what was asked for.
    pub(super) fn want(&self, site: &resolve::Site, wanted: Wanted) -> Wanted {
        Wanted { signal: self.at(site), ..wanted }
    }
}

/// Whether another session shows handlers the program, which knows of its own detours only.
pub(super) fn are_shown_already(process: Option<&Process>) -> bool {
    let sessions = process.map(find_sessions);
    sessions.is_some_and(|sessions| {
        sessions.map_or(true, |all| all.iter().any(|other| !other.is_removed() && other.header.signals != 0))
    })
}

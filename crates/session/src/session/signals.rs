//! Where a program says which handlers its signals have, and where handlers return to: probes of our own stand there, so that handlers
//! see the program where they interrupt a detour ([`trapless_isa::detour::signals`]).
//!
//! It is done in the C library, and in the program itself where that has one of its own, as static programs do. Of Go's programs the
//! handler is probed. Where it is found in neither, handlers see detours, and nothing is displaced that may fault in a way which the
//! program handles.

use super::sharing::{add, is_c_library};
use crate::files::function_around;
use crate::resolve::{self, Sites};
use crate::target::Image;
use std::collections::{BTreeMap, BTreeSet};
use trapless_engine::{Wanted, find_sessions, spread};
use trapless_isa::SignalCall;
use trapless_process::Process;
use trapless_symbols::Module;

/// Probes at such places.
#[derive(Clone, Debug, Default)]
pub(super) struct Hooks {
    /// By image and address in its file.
    places: BTreeMap<(usize, u64), SignalCall>,
    /// Whether handlers are found when they are installed, and when they return.
    are_whole: bool,
    /// Whether Go's handlers are probed.
    are_gos: bool,
}

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
        let opened: Vec<_> = searched.map(|index| (index, images[index].opened(process).ok())).collect();
        let is_read = opened.iter().all(|(_, file)| file.is_some());
        let searched: Vec<_> = opened.into_iter().filter_map(|(index, file)| Some((index, file?))).collect();
        let unread: Vec<_> = searched.iter().filter(|(_, file)| !file.knows_signal_places()).collect();
        spread::each(&unread, |(_, file)| {
            file.signal_places();
        });
        let mut hooks = Self { are_whole: is_read, ..Self::default() };
        let mut is_any = false;
        for (index, file) in searched {
            let mut own = BTreeSet::new();
            for &(address, call) in file.signal_places() {
                let holds = images[index].holds(process, address).unwrap_or(true);
                let function = function_around(file.module(), address).filter(|_| holds);
                let Some(function) = function else { continue };
                hooks.places.insert((index, address), call);
                own.insert(call);
                add(sites, index, function, address);
            }
            // C's handlers come by the C library, Go's by Go. A program that has neither in itself has no say.
            let is_go = own.contains(&SignalCall::Handler);
            let has = (is_go || own.contains(&SignalCall::Action)) && own.contains(&SignalCall::Return);
            let must = is_c_library(images[index].name()) || file.module().is_go();
            hooks.are_whole &= has || !must;
            hooks.are_gos |= is_go && has;
            is_any |= has;
        }
        hooks.are_whole &= is_any;
        hooks
    }

    /// Whether handlers are found when they are installed, and when they return: in each of the libraries that do that.
    pub(super) fn are_whole(&self) -> bool {
        self.are_whole
    }

    /// Whether Go's handlers are probed.
    pub(super) fn are_gos(&self) -> bool {
        self.are_gos
    }

    /// What is done at a site.
    pub(super) fn at(&self, site: &resolve::Site) -> Option<SignalCall> {
        self.places.get(&(site.image, site.address)).copied()
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

//! Armed sites that somebody else took away, by the names their users know.

use crate::outcome::LostSite;
use std::path::{Path, PathBuf};
use trapless_engine::{Became, Plan, Recheck, Refusal, Session};
use trapless_process::Process;

/// The sites of a session, and what became of those that are no longer as they were armed.
#[derive(Debug)]
pub(super) struct Sites {
    recheck: Recheck,
    /// By index in the plan: address, module, function.
    names: Vec<(u64, String, String)>,
    lost: Vec<LostSite>,
    /// The program that the process runs instead.
    replaced: Option<PathBuf>,
}

impl Sites {
    /// All sites that were armed; `names` gives a site's module and function by its id.
    pub(super) fn new(
        session: &Session,
        plan: &Plan<'_>,
        refused: &[Option<Refusal>],
        names: impl Fn(u32) -> (String, String),
    ) -> Self {
        let names = plan.sites.iter().map(|site| {
            let (module, function) = names(site.request.id);
            (site.request.address, module, function)
        });
        let recheck = Recheck::new(session, refused);
        Self { recheck, names: names.collect(), lost: Vec::new(), replaced: None }
    }

    pub(super) fn look(&mut self, process: &Process, session: &Session, all: bool) {
        for (index, became) in self.recheck.look(process, session, all) {
            if became == Became::Replaced {
                // Told once, and not of each of its sites.
                self.replaced.get_or_insert_with(|| process.exe().unwrap_or_default());
                continue;
            }
            let Some((address, module, function)) = self.names.get(index as usize) else { continue };
            // A site is mended as often as it takes, and told once.
            if became == Became::Mended
                && self.lost.iter().any(|l| l.address == *address && l.code == became.code())
            {
                continue;
            }
            self.lost.push(LostSite {
                module: module.clone(),
                function: function.clone(),
                address: *address,
                code: became.code(),
                reason: became.to_string(),
            });
        }
    }

    pub(super) fn lost(&self) -> &[LostSite] {
        &self.lost
    }

    pub(super) fn replaced(&self) -> Option<&Path> {
        self.replaced.as_deref()
    }
}

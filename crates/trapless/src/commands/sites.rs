//! What `list` and `explain` look at: the sites of a process, of a command that is about to run, or of files.

use crate::cli::validated::{Listing, Target};
use crate::error::Error;
use crate::files::Files;
use crate::report::ListedUsdt;
use crate::resolve::{self, Kinds, Site, Sites, UsdtSite};
use crate::target::{self, Image};
use std::path::Path;
use trapless_process::Process;
use trapless_process::launch::{self, Launched};
use trapless_session::name::SiteName;
use trapless_session::session::SiteNotes;

/// A place to look for functions.
pub struct Place {
    of: Of,
    /// Its files.
    pub images: Vec<Image>,
}

/// Whose files they are.
enum Of {
    Process(Process),
    /// It stands until everything is shown, and ends unseen.
    Command(Box<Launched>),
    Nobody,
}

impl Place {
    /// Opens what a listing names.
    pub fn open(listing: &Listing) -> Result<Self, Error> {
        match &listing.target {
            Some(Target::Processes(pids)) => {
                let process = target::open(*pids.first().ok_or_else(|| Error::Usage("no process".into()))?)?;
                let images = target::images(&process, &Files::default())?;
                Ok(Self { of: Of::Process(process), images })
            }
            Some(Target::Launch(command)) => {
                let (program, arguments) =
                    command.split_first().ok_or_else(|| Error::Usage("no command".into()))?;
                let launched = launch::launch(program, arguments)?;
                let images = target::images(launched.process(), &Files::default())?;
                Ok(Self { of: Of::Command(Box::new(launched)), images })
            }
            // A listing is of one process, or of files.
            None | Some(Target::Whoever(_)) => {
                let mut images: Vec<Image> = Vec::new();
                for probe in &listing.selection.probes {
                    let path = probe.spec.module.text();
                    if !images.iter().any(|image| image.path == path) {
                        images.push(Image::file(Path::new(path))?);
                    }
                }
                Ok(Self { of: Of::Nobody, images })
            }
        }
    }

    /// The process, where there is one.
    pub fn process(&self) -> Option<&Process> {
        match &self.of {
            Of::Process(process) => Some(process),
            Of::Command(launched) => Some(launched.process()),
            Of::Nobody => None,
        }
    }

    /// What is told of a USDT probe at a site.
    pub fn told_usdt(
        &self,
        site: &Site,
        usdt: &UsdtSite,
        notes: Option<&SiteNotes>,
    ) -> Result<ListedUsdt, Error> {
        let known = notes.and_then(|notes| notes.arguments_of(usdt.site_name().text()));
        let not_shown = usdt.arguments.iter().zip(known.iter().flat_map(|known| known.iter()));
        let not_shown =
            not_shown.filter_map(|(argument, known)| Some(format!("{argument}: {}", known.unread()?)));
        let image = &self.images[site.image];
        let (module, bias) = (image.module(self.process())?, image.bias(self.process())?);
        let place = match module.functions().get(site.function) {
            Some(function) => {
                SiteName::new(function.name().plain(), site.address.wrapping_sub(function.address()))
                    .to_string()
            }
            None => format!("{:#x}", site.address),
        };
        Ok(ListedUsdt {
            provider: usdt.provider.clone(),
            name: usdt.name.clone(),
            place,
            arguments: usdt.arguments.iter().map(ToString::to_string).collect(),
            not_shown: not_shown.collect(),
            semaphore: usdt.semaphore.map(|at| at.wrapping_add(bias)),
        })
    }

    /// The sites that a listing's probes mean.
    pub fn sites(&self, listing: &Listing) -> Result<Sites, Error> {
        let selection = &listing.selection;
        let probes = selection.probes.iter().map(|probe| (&probe.spec, Kinds::hits(true, probe.returns)));
        let limit = selection.max_probes;
        let sites = resolve::resolve(self.process(), &self.images, probes, &selection.exclusions, limit)?;
        sites
            .remarks
            .iter()
            .for_each(|remark| crate::terminal::tell(crate::terminal::printable(&remark.text)));
        Ok(sites)
    }
}

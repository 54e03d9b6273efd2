//! Every function of several real libraries: verdicts, relocation near and far.

use crate::files::{LIBRARIES, Library};
use std::collections::BTreeMap;

#[test]
fn nearly_every_function_can_have_a_jump() {
    for (name, paths) in LIBRARIES {
        let start = std::time::Instant::now();
        let Some(library) = Library::open(paths) else { continue };
        let opened = start.elapsed();
        let isa = library.machine.isa();
        let (mut all, mut jumps) = (0, 0);
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut returns: BTreeMap<String, Vec<String>> = BTreeMap::new();
        library.each(|name, site| {
            all += 1;
            match isa.verdict(site).jump {
                Ok(_) => jumps += 1,
                Err(reason) => reasons
                    .entry(format!("{reason:?}").split('(').next().unwrap().into())
                    .or_default()
                    .push(name.into()),
            }
            if let Err(reason) = isa.return_verdict(site) {
                returns.entry(format!("{reason:?}")).or_default().push(name.into());
            }
        });
        println!(
            "{name}: {jumps} of {all} functions ({:.2} %) {opened:?} {:?} targets {}",
            100.0 * f64::from(jumps) / f64::from(all),
            start.elapsed(),
            library.targets.len()
        );
        for (r, n) in &reasons {
            println!("   {r} {} {:?}", n.len(), &n[..n.len().min(12)]);
        }
        for (r, n) in &returns {
            println!("   ret {r} {} {:?}", n.len(), &n[..n.len().min(60)]);
        }
    }
}

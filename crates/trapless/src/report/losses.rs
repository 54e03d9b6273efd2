//! What the numbers do not show, as lines for standard error.

use super::number::plural;
use super::{LostSite, Summary};
use std::collections::BTreeMap;

/// How many names stand behind each reason.
const EXAMPLES: usize = 2;

/// A line for each loss of a run. `traced`: hits were shown as lines, and those of children among them.
pub fn losses(summary: &Summary, traced: bool) -> Vec<String> {
    let losses = &summary.losses;
    let mut lines = Vec::new();
    for child in &losses.children {
        let hits = plural(child.hits, "hit");
        let is = if child.hits == 1 { "is" } else { "are" };
        lines.push(match child.pid {
            Some(pid) if traced => format!("{hits} above {is} of forked child {pid}"),
            Some(pid) => format!("{hits} in forked child {pid}, not counted above"),
            None if traced => format!(
                "{hits} above {is} of children with the program's own number, which share its memory or were made without the C library"
            ),
            None => format!("{hits} in children, not counted above"),
        });
    }
    if losses.not_shown > 0 {
        let (hits, they) =
            (plural(losses.not_shown, "hit"), if losses.not_shown == 1 { "it" } else { "they" });
        let what = if traced { "shown" } else { "counted" };
        lines.push(format!("{hits} not {what}, because {they} came faster than could be read"));
    }
    if losses.without_stack > 0 {
        let hits = plural(losses.without_stack, "hit");
        lines.push(format!("{hits} not shown, because there was too little of the stack to record more"));
    }
    if losses.left_by_exception > 0 {
        let calls = plural(losses.left_by_exception, "call");
        lines.push(format!("{calls} left by an exception, without a return that was seen"));
    }
    lines.extend(sharing(losses.sharing_children));
    lines.extend(lost(&losses.lost_sites));
    lines.extend(losses.notes.iter().map(|note| note.text.clone()));
    lines
}

/// What is told of so many children that shared the memory, if there were any.
pub fn sharing(children: u64) -> Option<String> {
    let (children, they) = match children {
        0 => return None,
        1 => ("1 child".to_owned(), "it"),
        n => (format!("{} children", super::count(n)), "they"),
    };
    Some(format!(
        "{children} started by vfork or posix_spawn shared the program's memory and could not be told from it: what {they} called is counted as its own"
    ))
}

/// Lost sites by reason, a line for each.
pub fn lost(sites: &[LostSite]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&LostSite>> = BTreeMap::new();
    for site in sites {
        reasons.entry(&site.reason).or_default().push(site);
    }
    let line = |(reason, sites): (&str, Vec<&LostSite>)| {
        let names: Vec<String> =
            sites.iter().take(EXAMPLES).map(|s| format!("{}:{}", s.module, s.function)).collect();
        let more = if sites.len() > EXAMPLES { ", …" } else { "" };
        let count = plural(sites.len() as u64, "probe");
        format!("{count} lost ({}{more}): {reason}", names.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{ChildHits, Losses, Note};
    use super::*;

    #[test]
    fn every_loss_is_a_line_with_its_own_number() {
        let site = |function: &str, reason: &str| LostSite {
            module: "libdl.so".into(),
            function: function.into(),
            address: 1,
            code: "unloaded",
            reason: reason.into(),
        };
        let unloaded = "the module was unloaded";
        let child = |pid, hits| ChildHits { pid, hits };
        let losses_of = |losses, traced| losses_in(losses, traced);
        fn losses_in(losses: Losses, traced: bool) -> Vec<String> {
            super::losses(&Summary { losses, ..Summary::default() }, traced)
        }
        let one = Losses {
            not_shown: 1,
            without_stack: 0,
            left_by_exception: 1,
            children: vec![child(Some(7), 1), child(None, 1)],
            sharing_children: 1,
            lost_sites: vec![site("f", unloaded)],
            notes: vec![Note { code: "said", text: "as it is".into() }],
        };
        assert_eq!(
            losses_of(one.clone(), false),
            [
                "1 hit in forked child 7, not counted above",
                "1 hit in children, not counted above",
                "1 hit not counted, because it came faster than could be read",
                "1 call left by an exception, without a return that was seen",
                "1 child started by vfork or posix_spawn shared the program's memory and could not be told from it: what it called is counted as its own",
                "1 probe lost (libdl.so:f): the module was unloaded",
                "as it is",
            ]
        );
        let many = Losses {
            not_shown: 1234,
            without_stack: 2,
            left_by_exception: 2,
            children: vec![child(Some(7), 2)],
            sharing_children: 20,
            lost_sites: ["f", "g", "h"].map(|f| site(f, unloaded)).to_vec(),
            notes: vec![],
        };
        assert_eq!(
            losses_of(many, true),
            [
                "2 hits above are of forked child 7",
                "1,234 hits not shown, because they came faster than could be read",
                "2 hits not shown, because there was too little of the stack to record more",
                "2 calls left by an exception, without a return that was seen",
                "20 children started by vfork or posix_spawn shared the program's memory and could not be told from it: what they called is counted as its own",
                "3 probes lost (libdl.so:f, libdl.so:g, …): the module was unloaded",
            ]
        );
        assert_eq!(
            losses_of(Losses { children: vec![child(None, 3)], ..Losses::default() }, true),
            [
                "3 hits above are of children with the program's own number, which share its memory or were made without the C library"
            ]
        );
        assert!(losses_of(Losses::default(), true).is_empty());
    }
}

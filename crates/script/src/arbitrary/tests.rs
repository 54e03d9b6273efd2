//! Random programs are verified ones, and all of the IR is among them.

use super::{Options, program};
use crate::ir::verify::verify;
use std::collections::BTreeSet;

#[test]
fn random_programs_are_verified_and_use_all_there_is() {
    let mut text = String::new();
    for seed in 0..2000 {
        let program = program(seed, &Options::default());
        assert_eq!(verify(&program), Ok(()), "seed {seed}");
        text.push_str(&format!("{:?}", program.bodies));
    }
    let words: BTreeSet<&str> = text.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    let source = include_str!("../ir.rs");
    // Each statement, expression, operation and value of a hit, by the source itself.
    let mut missing = Vec::new();
    for kind in [
        "Statement",
        "Expression",
        "Unary",
        "Binary",
        "Context",
        "ClockKind",
        "StackWalk",
        "Kin",
        "Part",
        "Place",
    ] {
        let start = source.find(&format!("pub enum {kind} {{")).expect("it is there");
        let body = &source[start..start + source[start..].find("\n}").expect("it ends")];
        let variants = body.lines().filter_map(|line| {
            let name =
                line.strip_prefix("    ")?.split(|letter: char| !letter.is_ascii_alphanumeric()).next()?;
            name.starts_with(|letter: char| letter.is_ascii_uppercase()).then_some(name)
        });
        let variants: Vec<&str> = variants.collect();
        assert!(variants.len() > 1, "{kind}");
        missing.extend(variants.into_iter().filter(|name| !words.contains(name)));
    }
    assert_eq!(missing, Vec::<&str>::new());
}

//! The examples of `docs/language.md`: each is run, and prints what stands there.
//!
//! A block that is called `bpftrace` holds a program. The block that is called `text` behind it is what the program prints on standard output,
//! without empty lines; one that is called `error`, the first line of what it says of itself, after the place. A program without either
//! needs a target: it is checked, and nothing more.

use crate::support::tool::{Ran, run};
use std::path::Path;

/// What a block shows.
#[derive(Debug, PartialEq)]
enum Shown {
    Printed(Vec<String>),
    Refused(String),
    Nothing,
}

/// A program, the line it begins at, and what is shown of it.
#[derive(Debug)]
struct Example {
    line: usize,
    program: String,
    shown: Shown,
}

/// A block of the page: the line of its fence, what it is called, and its text.
struct Block {
    line: usize,
    name: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(name) = line.strip_prefix("```") else { continue };
        let text: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        blocks.push(Block { line: at + 1, name: name.to_owned(), text: text.join("\n") });
    }
    blocks
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn examples() -> Vec<Example> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/language.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut examples: Vec<Example> = Vec::new();
    let mut is_open = false;
    for Block { line, name, text } in blocks(&page) {
        match name.as_str() {
            "bpftrace" => examples.push(Example { line, program: text, shown: Shown::Nothing }),
            "text" | "error" => {
                assert!(is_open, "line {line}: behind no program");
                let shown = match name.as_str() {
                    "text" => Shown::Printed(lines(&text)),
                    _ => Shown::Refused(text),
                };
                examples.last_mut().unwrap().shown = shown;
            }
            "sh" => {}
            other => panic!("line {line}: a block called {other:?}"),
        }
        is_open = name == "bpftrace";
    }
    examples
}

#[test]
fn examples_print_what_the_page_says() {
    let examples = examples();
    let mut ran = 0;
    for Example { line, program, shown } in &examples {
        let Shown::Printed(expected) = shown else { continue };
        let Ran { code, out, err } = run(&["-q", "-e", program]);
        assert_eq!((code, &lines(&out)), (Some(0), expected), "line {line}: {program}\n{err}");
        ran += 1;
    }
    assert!(ran >= 25, "{ran} of {}", examples.len());
}

#[test]
fn what_the_page_calls_refused_is_refused_with_these_words() {
    let examples = examples();
    let refused = examples.iter().filter(|example| matches!(example.shown, Shown::Refused(_)));
    let mut seen = 0;
    for Example { line, program, shown } in refused {
        let Shown::Refused(expected) = shown else { unreachable!() };
        let Ran { code, out, err } = run(&["-q", "-e", program]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "line {line}: {program}\n{err}");
        let said = err.lines().next().and_then(|said| Some(said.split_once(": ")?.1));
        assert_eq!(said, Some(expected.as_str()), "line {line}: {program}\n{err}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

#[test]
fn what_needs_a_target_is_well_written() {
    for Example { line, program, shown } in &examples() {
        if *shown != Shown::Nothing {
            continue;
        }
        let Ran { code, err, .. } = run(&["--fmt", "-e", program]);
        assert_eq!(code, Some(0), "line {line}: {program}\n{err}");
    }
}

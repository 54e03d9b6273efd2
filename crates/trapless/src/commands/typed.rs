//! `trace --typed`: arguments and results as their types say.
//!
//! What an argument points to has to be read when the function is entered: a text that is printed later has changed. So detours call a
//! [`body`] that puts the values together and reads what they lead to, by a [`table`] that says of each function where its arguments are and
//! of each type what has to be read. What was read is told to the tool, which shows it by the types, from these bytes alone.
//!
//! | file | question it answers |
//! |---|---|
//! | `function` | where are a function's arguments and its result, and what is shown of them? |
//! | `table` | how is that written down for the body? |
//! | `body` | what runs at a hit, and what does it tell? |
//! | `tape` | what do the bytes mean that it has told? |
//! | `calls` | which entry belongs to which return? |
//! | `code` | what is planned for the sites of a process? |

mod body;
mod calls;
mod code;
mod function;
mod table;
mod tape;
#[cfg(test)]
mod tests;

use crate::cli::validated::{CodeFor, Measure, Run};
use crate::commands::run::of_source;
use crate::error::Error;
use crate::report::View;
use calls::Typing;
use code::Typed;
use std::sync::Arc;

/// Shows calls with their types.
///
/// # Errors
/// Nothing could be probed, or the output broke.
pub(super) fn run(run: Run) -> Result<u8, Error> {
    let args = match run.measure {
        Measure::Trace { args } => args,
        _ => 0,
    };
    let typed = Arc::new(Typed::new(&run.selection, args, run.allow_seccomp)?);
    let code: Arc<dyn CodeFor> = typed.clone();
    let run = Run { script: Some(code), ..run };
    of_source(&run, View::Trace, Box::new(Typing::new(&run, typed)))
}

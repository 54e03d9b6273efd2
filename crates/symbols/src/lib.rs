//! ELF files on disk to functions: names, bounds, branch targets, USDT notes and source lines.
//!
//! This crate knows files, not processes and not probes. Addresses are the file's own virtual addresses (`vaddr`,
//! before any load bias) unless a name says *offset*. It reads little-endian ELF, 32 and 64 bit, for the machines in
//! [`Machine`], on any host.
//!
//! | file | question it answers |
//! |---|---|
//! | `source` | how do the bytes of a file get into memory safely? |
//! | `image` | what do the headers say, in one form for both classes? |
//! | `dynamic` | what is it called, and what does it need? |
//! | `module` | what is at this address, and what is this file? |
//! | `symtab` | which symbols does a table hold, and with which versions? |
//! | `frames` | which code do the unwind tables describe, and where do exceptions land? |
//! | `unwind` | how does a frame lead to its caller's, at each instruction? |
//! | `functions` | which functions are there, how long are they and what are they called? |
//! | `go_table` | which functions does a Go program have, and which did Go's compiler make, or its assembler, or C's? |
//! | `debug_file` | where are the symbols that were stripped off? |
//! | `pointers` | which code addresses does data refer to? |
//! | `unread` | what could not be read, and which code does that concern? |
//! | `strings` | which names and texts are in the file? |
//! | `notes`, `usdt` | what do the notes say? |
//! | `lines` | which source line is this? |
//! | `dwarf` | where is the code of a source line, and where was a function inlined? |
//! | `types` | which types are there, and how are they written? |
//! | `typed` | what does DWARF say of types, parameters, results and variables? |
//! | `location` | where is a value, at an instruction? |
//! | `abi` | where do functions take their arguments and give their results? |
//! | `render` | how is a value written? |
//! | `demangle` | what did the programmer call it? |
//!
//! What is in a file is never trusted. Headers that cannot be right make [`Module::open`] fail with a reason;
//! a table that cannot be read leaves its functions out and a line in [`Functions::defects`], and [`Module::unread`] says
//! which code that concerns. Nothing panics, and
//! work and memory are bounded by the size of the file.

#![deny(unsafe_code, unreachable_pub)]

pub mod abi;
mod debug_file;
pub mod demangle;
mod dwarf;
mod dynamic;
mod error;
mod frames;
mod functions;
mod go_table;
mod image;
mod lines;
mod location;
mod module;
mod name;
mod notes;
mod pointers;
pub mod render;
mod source;
mod strings;
mod symtab;
mod table;
mod typed;
pub mod types;
mod unread;
mod unwind;
mod usdt;

pub use debug_file::DebugSearch;
pub use demangle::{Demangled, demangle};
pub use dwarf::{
    FunctionLines, FunctionName, Gaps, InlinedInstance, LineSites, NoText, Place, SourceError, Statement,
    source_text,
};
pub use error::{ModuleError, NotesError};
pub use frames::Arrival;
pub use functions::{Function, Functions, Kind, Origin};
pub use image::{Machine, ModuleKind, Segment};
pub use lines::{SourceFrame, SourceLine};
pub use location::{Context, LARGEST_VALUE, Location, Piece, ResultLocation, Unavailable};
pub use module::Module;
pub use name::{Binding, Name};
pub use typed::{Scope, TypeReader, TypedFunction, TypesError, Variable};
pub use types::{TypeId, Types};
pub use unread::Unread;
pub use unwind::{Cfa, FrameRule, Rule, Saved, UnknownRule, UnwindBase, UnwindRow, UnwindRows};
pub use usdt::{UsdtArgument, UsdtProbe};

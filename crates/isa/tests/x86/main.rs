//! x86 against real libraries and the processor.

mod files;
mod libraries;
mod same;

//! x86 against real libraries and the processor.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulation;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod execution;
mod files;
mod fuzz;
mod libraries;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod processor;
mod same;

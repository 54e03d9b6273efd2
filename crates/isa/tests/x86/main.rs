//! x86 against real libraries and the processor.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detours;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulation;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod execution;
mod files;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod followed;
mod fuzz;
mod libraries;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod processor;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod faults;
mod same;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod vectors;

//! x86 against real libraries and the processor.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod asked;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod bodies;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod changes;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod conditions;
mod decided;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detours;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod emulation;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod execution;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod exits;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod faults;
mod files;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod followed;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod forms;
mod fuzz;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod landings;
mod libraries;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod loading;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod machine;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod narrow;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod processor;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod proof;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod same;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod sharing;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod shown;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod stackless;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod steered;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod stepping;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod sweep;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod templates;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod turning;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod unwound;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod vectors;

//! Probes in running programs that do not trap.

//! A process from outside: ptrace, /proc, registers, memory, mappings and remote system calls.

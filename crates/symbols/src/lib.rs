//! ELF files to function names, bounds, lines and USDT notes.

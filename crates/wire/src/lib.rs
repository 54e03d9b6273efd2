//! Layout of the memory trapless shares with its target.

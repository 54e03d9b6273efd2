//! Sites, plans, detours, patching, quiescence and removal.

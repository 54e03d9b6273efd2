//! The body against what layouts mean.

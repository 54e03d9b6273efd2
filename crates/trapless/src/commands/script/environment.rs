//! What a script's checker asks about the world: the command line, control groups, and what files tell of functions and types.

use crate::cli::script::{Text, Warnings};
use std::os::unix::fs::MetadataExt;
use trapless_script::check::environment::Environment;

/// The world of a command line.
pub(super) struct Outside<'t> {
    text: &'t Text,
}

impl<'t> Outside<'t> {
    /// Of this one.
    pub fn new(text: &'t Text) -> Self {
        Self { text }
    }
}

impl Environment for Outside<'_> {
    fn parameters(&self) -> &[String] {
        &self.text.positional
    }

    fn named(&self, name: &str) -> Option<String> {
        let of = |given: &String| match given.split_once('=') {
            Some((own, value)) if own == name => Some(value.to_owned()),
            None if given == name => Some(String::new()),
            _ => None,
        };
        self.text.named.iter().rev().find_map(of)
    }

    fn is_unsafe_allowed(&self) -> bool {
        self.text.is_unsafe
    }

    fn tells_failures(&self) -> bool {
        self.text.warnings == Warnings::All
    }

    fn cgroup(&self, path: &str) -> Option<u64> {
        std::fs::metadata(path).ok().filter(|about| about.is_dir()).map(|about| about.ino())
    }
}

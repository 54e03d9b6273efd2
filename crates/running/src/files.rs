//! Which files a script's attach point names, where no process says it: a path, a program of `PATH`, or a library as the loader finds it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use trapless_session::spec::{Pattern, Syntax};

/// Files of the loader's configuration that are read, with those that they include.
const MOST_CONFIGURED: usize = 256;

/// A pattern in which only `*` is special, as in bpftrace's names: `operator[]` is a name.
pub fn pattern(text: &str) -> Pattern {
    if !text.contains('*') {
        return Pattern::literal(text);
    }
    let mut glob = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '?' | '[' | ']' | '!' | '\\') {
            glob.push('\\');
        }
        glob.push(c);
    }
    Pattern::new(&glob, Syntax::Glob).unwrap_or_else(|_| Pattern::literal(text))
}

/// The pattern of the paths that processes know those files by which `target` means, a path with a `*` in it.
pub fn pattern_of_paths(target: &str) -> Option<Pattern> {
    // The directories ahead of the pattern may be links.
    let (fixed, rest) = target.split_at(target[..target.find('*')?].rfind('/')? + 1);
    let fixed = Path::new(fixed).canonicalize().ok()?;
    Some(pattern(&format!("{}/{rest}", fixed.to_str()?.trim_end_matches('/'))))
}

/// The ELF files that `target` names, by path. None, if there are none; several only for a pattern.
///
/// # Errors
/// A library's name is the beginning of several; their paths.
pub fn named(target: &str) -> Result<Vec<PathBuf>, Vec<PathBuf>> {
    let is_pattern = target.contains('*');
    if target.contains('/') {
        let found = if is_pattern { matching(target) } else { vec![PathBuf::from(target)] };
        return Ok(found.into_iter().filter(|path| is_elf(path)).collect());
    }
    let mut found = vec![PathBuf::from(target)];
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> =
        std::env::split_paths(&directories).filter(|d| !d.as_os_str().is_empty()).collect();
    if is_pattern {
        found = in_directory(Path::new(""), &pattern(target));
        let mut seen = BTreeSet::new();
        for directory in directories {
            // `/bin` is a link to `/usr/bin` on most machines.
            if directory.canonicalize().is_ok_and(|real| seen.insert(real)) {
                found.extend(in_directory(&directory, &pattern(target)));
            }
        }
        return Ok(found.into_iter().filter(|path| is_elf(path)).collect());
    }
    found.extend(directories.iter().map(|directory| directory.join(target)));
    match found.into_iter().find(|path| is_elf(path)) {
        Some(program) => Ok(vec![program]),
        None => library(target).map(|path| path.into_iter().collect()),
    }
}

/// Whether it is a program or a library. Others may have the name of one: C libraries leave linker scripts called `libc.so`.
fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut start = [0; 4];
    path.is_file()
        && std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && start == *b"\x7fELF"
}

/// The paths that match a pattern whose `*` stands for anything within one component.
fn matching(path: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from(if path.starts_with('/') { "/" } else { "" })];
    for component in path.split('/').filter(|component| !component.is_empty()) {
        found = match component.contains('*') {
            false => found.into_iter().map(|path| path.join(component)).collect(),
            true => {
                let component = pattern(component);
                found.iter().flat_map(|directory| in_directory(directory, &component)).collect()
            }
        };
    }
    found
}

/// The entries of a directory that match, in the order of their names. As in shells, hidden ones have to be named.
fn in_directory(directory: &Path, wanted: &Pattern) -> Vec<PathBuf> {
    let read = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let entries = std::fs::read_dir(read).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let shown = |name: &String| !name.starts_with('.') || wanted.text().starts_with('.');
    let mut found: Vec<PathBuf> =
        names.filter(|name| shown(name) && wanted.matches(name)).map(|name| directory.join(name)).collect();
    found.sort();
    found
}

/// A library by its file's name (`libc.so.6`), without what is behind `.so` (`libc`), or without `lib`, too (`c`).
fn library(name: &str) -> Result<Option<PathBuf>, Vec<PathBuf>> {
    let directories = library_directories();
    if let Some(exact) = directories.iter().map(|directory| directory.join(name)).find(|path| is_elf(path)) {
        return Ok(Some(exact));
    }
    for stem in [name.to_owned(), format!("lib{name}")] {
        let begin = pattern(&format!("{stem}.so*"));
        let all = directories.iter().flat_map(|directory| in_directory(directory, &begin));
        let mut seen = BTreeSet::new();
        let found: Vec<PathBuf> = all
            .filter(|path| is_elf(path))
            .filter(|path| path.canonicalize().is_ok_and(|real| seen.insert(real)))
            .collect();
        match found.as_slice() {
            [] => {}
            [one] => return Ok(Some(one.clone())),
            // The first directory decides, as it does for the loader.
            [first, others @ ..] if others.iter().all(|other| other.parent() != first.parent()) => {
                return Ok(Some(first.clone()));
            }
            _ => return Err(found),
        }
    }
    Ok(None)
}

/// Where the loader looks for libraries: the environment's directories, the configured ones, the usual ones. Each once.
fn library_directories() -> Vec<PathBuf> {
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&own).filter(|d| !d.as_os_str().is_empty()).collect();
    all.extend(configured());
    all.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    let mut seen = BTreeSet::new();
    all.retain(|directory| directory.canonicalize().is_ok_and(|real| seen.insert(real)));
    all
}

/// The directories of `/etc/ld.so.conf` and what it includes.
fn configured() -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let mut files = vec![PathBuf::from("/etc/ld.so.conf")];
    let mut read = 0;
    while let Some(file) = files.pop()
        && read < MOST_CONFIGURED
    {
        read += 1;
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            match line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
                Some(more) => {
                    let base = file.parent().unwrap_or(Path::new("/"));
                    let more = base.join(more.trim());
                    // Those that are named first are read first.
                    files.extend(matching(&more.display().to_string()).into_iter().rev());
                }
                None if line.starts_with('/') => directories.push(PathBuf::from(line)),
                None => {}
            }
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_is_a_pattern() {
        for (text, name, is_meant) in [
            ("operator[]", "operator[]", true),
            ("a?c", "abc", false),
            ("a*", "a[0]", true),
            ("a[0]*", "a[0]b", true),
            ("a[0]*", "a0b", false),
            ("*\\n", "a\\n", true),
            ("a!*", "a!b", true),
        ] {
            assert_eq!(pattern(text).matches(name), is_meant, "{text} {name}");
        }
    }

    #[test]
    fn paths_are_matched_as_processes_know_them() {
        let own = std::env::current_exe().unwrap().canonicalize().unwrap();
        let directory = own.parent().unwrap();
        let around = format!("{}/../{}/*", directory.display(), directory.file_name().unwrap().display());
        let of = pattern_of_paths(&around).unwrap();
        assert!(of.matches(own.to_str().unwrap()) && !of.matches("/bin/sh"), "{of:?}");
        assert!(pattern_of_paths("/bin/sh").is_none() && pattern_of_paths("lib*").is_none());
    }

    #[test]
    fn files_are_found_by_path_by_program_and_by_library() {
        assert_eq!(named("/nowhere/at/all"), Ok(vec![]));
        assert_eq!(named("/etc/passwd"), Ok(vec![]), "no ELF file");
        let own = std::env::current_exe().unwrap();
        assert_eq!(named(own.to_str().unwrap()), Ok(vec![own.clone()]));
        let directory = own.parent().unwrap().display();
        let found = named(&format!("{directory}/*")).unwrap();
        assert!(found.contains(&own));
        let programs = named("sh").unwrap();
        assert!(programs[0].ends_with("sh") && programs.len() == 1);
        assert!(named("s*").unwrap().len() > 1);
        // A machine without glibc or with nothing in the usual places has another name for it.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        if maps.contains("/libc.so.6") {
            for name in ["libc.so.6", "libc", "c"] {
                let found = named(name).unwrap();
                assert_eq!(found.len(), 1, "{name}");
                assert!(found[0].file_name().unwrap().to_str().unwrap().starts_with("libc.so"), "{found:?}");
            }
        }
        assert_eq!(named("no-program-and-no-library"), Ok(vec![]));
    }
}

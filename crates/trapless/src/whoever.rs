//! Which processes are meant where nobody names them by their ids.

use crate::spec::Pattern;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use trapless_process::{Mapping, Pid, parse_maps, status_of};

/// All processes that fulfil each of these conditions, at any time of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Whoever {
    /// The name that the kernel keeps, or that of the program's file.
    pub name: Option<Pattern>,
    /// The user whom they belong to (their real user id).
    pub user: Option<u32>,
    /// The control group that they are in, or one below it: a path that begins at the hierarchy's root.
    pub cgroup: Option<String>,
    /// They run or have mapped one of these files.
    pub files: BTreeSet<PathBuf>,
}

/// How the kernel tells files apart: device and inode.
type FileId = (u64, u64);

fn identity(path: impl AsRef<Path>) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

impl Whoever {
    /// The conditions with what the files are at the moment, to ask of many processes.
    pub fn now(&self) -> Conditions<'_> {
        Conditions {
            whoever: self,
            files: self.files.iter().filter_map(identity).collect(),
            has_libraries: self.files.is_empty() || self.files.iter().any(|file| !is_program(file)),
        }
    }

    /// How many files with code a process has mapped: more than before while its libraries are being loaded.
    pub fn mapped(pid: i32) -> usize {
        let Ok(text) = std::fs::read(format!("/proc/{pid}/maps")) else { return 0 };
        parse_maps(&text).map_or(0, |maps| maps.iter().filter(|m| m.perms.exec && m.path().is_some()).count())
    }

    /// Who they are, for messages: "that runs /usr/bin/server".
    pub fn text(&self) -> String {
        let mut conditions = Vec::new();
        if !self.files.is_empty() {
            let files: Vec<_> = self.files.iter().map(|file| file.display().to_string()).collect();
            conditions.push(format!("that runs {}", files.join(" or ")));
        }
        conditions.extend(self.name.as_ref().map(|name| format!("named {}", name.text())));
        conditions.extend(self.user.map(|user| format!("of user {user}")));
        conditions.extend(self.cgroup.as_ref().map(|group| format!("in the control group {group}")));
        conditions.join(" ")
    }
}

/// What is asked of a process.
pub struct Conditions<'w> {
    whoever: &'w Whoever,
    /// The files that there are.
    files: Vec<FileId>,
    /// Whether what is probed may be mapped later than the program.
    pub has_libraries: bool,
}

impl Conditions<'_> {
    /// Whether a process fulfils them now. One that has ended, or that we may not look at, does not.
    pub fn are_met_by(&self, pid: i32) -> bool {
        runs_a_program(pid)
            && self.may_be_met_by(pid)
            && (self.whoever.files.is_empty() || self.maps_one(pid))
    }

    /// Whether a process that has just started its program may come to fulfil them when its libraries are loaded.
    pub fn may_be_met_by(&self, pid: i32) -> bool {
        let Whoever { name, user, cgroup, .. } = self.whoever;
        name.as_ref().is_none_or(|name| has_name(pid, name))
            && user.is_none_or(|user| user_of(pid) == Some(user))
            && cgroup.as_ref().is_none_or(|group| is_in(pid, group))
            && (self.has_libraries || self.runs_one(pid))
    }

    fn is_one(&self, file: Option<FileId>) -> bool {
        file.is_some_and(|file| self.files.contains(&file))
    }

    fn runs_one(&self, pid: i32) -> bool {
        self.is_one(identity(format!("/proc/{pid}/exe")))
    }

    fn maps_one(&self, pid: i32) -> bool {
        if self.runs_one(pid) {
            return true;
        }
        let Ok(text) = std::fs::read(format!("/proc/{pid}/maps")) else { return false };
        // Most processes have no file with such a number, and are done with.
        let numbers: Vec<u64> = self.files.iter().map(|file| file.1).collect();
        let has = |number: &u64| {
            let number = format!(" {number} ");
            text.windows(number.len()).any(|part| part == number.as_bytes())
        };
        if !numbers.iter().any(has) {
            return false;
        }
        let Ok(maps) = parse_maps(&text) else { return false };
        let may_be = |mapping: &&Mapping| mapping.perms.exec && numbers.contains(&mapping.inode);
        maps.iter().filter(may_be).any(|mapping| {
            // As the process sees it, who may have another root; or by the mapping itself, which takes a right of its own.
            let (start, end) = (mapping.start.0, mapping.end.0);
            let mapped = identity(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
            let root = || PathBuf::from(format!("/proc/{pid}/root"));
            let seen = |path: &Path| identity(root().join(path.strip_prefix("/").unwrap_or(path)));
            self.is_one(mapped.or_else(|| seen(mapping.path()?)))
        })
    }
}

/// Whether the kernel keeps such a name of a process, or its program's file has it.
fn has_name(pid: i32, wanted: &Pattern) -> bool {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let comm = String::from_utf8_lossy(&comm);
    wanted.matches(comm.trim_end_matches('\n')) || {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        exe.file_name().is_some_and(|name| wanted.matches(&name.to_string_lossy()))
    }
}

/// Whether a process runs the same program as this one.
pub fn is_our_program(pid: i32) -> bool {
    static OWN: OnceLock<Option<FileId>> = OnceLock::new();
    let own = *OWN.get_or_init(|| identity("/proc/self/exe"));
    own.is_some() && identity(format!("/proc/{pid}/exe")) == own
}

fn user_of(pid: i32) -> Option<u32> {
    status_of(Pid(pid).leader()).ok().map(|status| status.uid[0])
}

/// Whether a process is in a control group of any hierarchy, or below it.
fn is_in(pid: i32, group: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let groups = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let below =
        |path: &str| path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    groups.into_iter().any(|path| group == "/" || below(path))
}

/// Whether a process is no thread of the kernel's, and has not ended.
fn runs_a_program(pid: i32) -> bool {
    match std::fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(_) => true,
        // Of somebody else's process nothing is told.
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Whether a file is executed and not loaded by others, as far as it shows: it has an interpreter or a fixed place. So have some C
/// libraries, which are known by their names. What is taken for a library is looked for in all that is mapped.
fn is_program(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_bytes();
    if name.ends_with(b".so") || name.windows(4).any(|part| part == b".so.") {
        return false;
    }
    let Ok(bytes) = std::fs::File::open(file).and_then(first_page) else { return false };
    let field = |at: usize, size: usize| {
        let bytes = bytes.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte)))
    };
    const ET_EXEC: usize = 2;
    const PT_INTERP: usize = 3;
    // Offset, entry's size and number of the program headers (`elf.h`).
    let [offset, size, number] = match bytes.get(..5) {
        Some(b"\x7fELF\x02") => [field(32, 8), field(54, 2), field(56, 2)],
        Some(b"\x7fELF\x01") => [field(28, 4), field(42, 2), field(44, 2)],
        _ => return false,
    }
    .map(Option::unwrap_or_default);
    let kind = |index: usize| field(offset.saturating_add(index * size), 4);
    field(16, 2) == Some(ET_EXEC) || (0..number).any(|index| kind(index) == Some(PT_INTERP))
}

fn first_page(file: std::fs::File) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    file.take(4096).read_to_end(&mut bytes).map(|_| bytes)
}

/// The control group that a path means, which may be one of its file system.
pub fn group_of(path: &str) -> String {
    let under = path.strip_prefix("/sys/fs/cgroup").filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let group = under.unwrap_or(path).trim_matches('/');
    format!("/{group}")
}

/// The id of a user who is named, or whose id is given.
///
/// # Errors
/// There is no such user.
pub fn user_id(name: &str) -> Result<u32, String> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let Ok(text) = std::ffi::CString::new(name) else { return Err("no such user".to_owned()) };
    let mut buffer = vec![0; 1 << 16];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the call writes an entry whose strings are in the buffer, whose size is said, and where the entry is.
    unsafe {
        libc::getpwnam_r(text.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found);
        found.as_ref().map(|entry| entry.pw_uid).ok_or_else(|| "no such user".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Syntax;

    #[test]
    fn we_are_who_we_are() {
        let own = std::process::id() as i32;
        let exe = std::env::current_exe().unwrap();
        let name = exe.file_name().unwrap().to_str().unwrap();
        let user = user_of(own);
        let whoever = Whoever {
            name: Some(Pattern::new(&format!("{}*", &name[..6]), Syntax::Glob).unwrap()),
            user,
            cgroup: Some("/".into()),
            files: [exe.clone()].into(),
        };
        assert!(whoever.now().are_met_by(own) && whoever.now().may_be_met_by(own));
        assert!(!whoever.now().are_met_by(1));
        for not in [
            Whoever { name: Some(Pattern::literal("another")), ..whoever.clone() },
            Whoever { user: user.map(|user| user + 1), ..whoever.clone() },
            Whoever { cgroup: Some("/nowhere".into()), ..whoever.clone() },
            Whoever { files: ["/bin/true".into()].into(), ..whoever.clone() },
        ] {
            assert!(!not.now().are_met_by(own), "{not:?}");
        }
    }

    #[test]
    fn libraries_are_seen_where_they_are_mapped() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc =
            maps.lines().find_map(|line| line.split(' ').next_back().filter(|p| p.contains("/libc.so")));
        let Some(libc) = libc else { return };
        let whoever = Whoever { files: [libc.into()].into(), ..Whoever::default() };
        assert!(whoever.now().has_libraries && whoever.now().are_met_by(std::process::id() as i32));
    }

    #[test]
    fn control_groups_are_known_by_either_path() {
        for (path, group) in [
            ("/sys/fs/cgroup", "/"),
            ("/sys/fs/cgroup/system.slice/", "/system.slice"),
            ("system.slice/a", "/system.slice/a"),
            ("/sys/fs/cgroups", "/sys/fs/cgroups"),
        ] {
            assert_eq!(group_of(path), group);
        }
        assert_eq!(user_id("0"), Ok(0));
        assert!(user_id("nobody of this name").is_err());
    }
}

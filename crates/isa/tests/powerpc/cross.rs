//! Where the cross compiler, qemu-user and Debian's libraries are. The project's set-up script fetches them; its folder is named by
//! `TRAPLESS_CROSS`.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

/// What the tests in this folder run with.
pub struct Cross {
    qemu: PathBuf,
    scratch: PathBuf,
}

const COMPILER: &str = "powerpc64le-linux-gnu-gcc";

impl Cross {
    /// The tools, or a line that says what is missing.
    pub fn find() -> Option<Self> {
        let in_path = |name: &str| {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.exists())
        };
        let set_up = env::var_os("TRAPLESS_CROSS").map(|folder| Path::new(&folder).join("bin/qemu-ppc64le"));
        let qemu = set_up.filter(|file| file.exists()).or_else(|| in_path("qemu-ppc64le"));
        match (qemu, in_path(COMPILER)) {
            (Some(qemu), Some(_)) => Some(Self { qemu, scratch: env!("CARGO_TARGET_TMPDIR").into() }),
            (None, _) => skip("no qemu-ppc64le in $TRAPLESS_CROSS/bin or PATH"),
            (_, None) => skip("no powerpc64le-linux-gnu-gcc in PATH"),
        }
    }

    /// Compiles a C file of this folder, unless a test did already, to a static program at a fixed address.
    pub fn compile_once(&self, source: &str) -> PathBuf {
        static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
        let mut compiled = COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        compiled.entry(source.into()).or_insert_with(|| self.compile(source)).clone()
    }

    fn compile(&self, source: &str) -> PathBuf {
        let program = self.scratch.join(source).with_extension("ppc64le");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/powerpc").join(source);
        let status = Command::new(COMPILER)
            .args([
                "-O2",
                "-mcpu=power8",
                "-static",
                "-no-pie",
                "-pthread",
                "-fexceptions",
                "-Wl,--eh-frame-hdr",
                "-Wall",
                "-Werror",
                "-o",
            ])
            .args([&program, &source])
            .status();
        assert!(status.expect("the compiler starts").success(), "{} compiles", source.display());
        program
    }

    /// A program under qemu-user, as the given processor. The base lets it map memory at low addresses.
    pub fn run(&self, program: &Path, processor: &str, arguments: &[&Path]) -> Command {
        let mut command = Command::new(&self.qemu);
        command.args(["-B", "0x100000000000", "-cpu", processor]).arg(program).args(arguments);
        command
    }

    /// A file to pass data to a program.
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }
}

fn skip<T>(reason: &str) -> Option<T> {
    trapless_testing::skip!("{reason}");
    None
}

/// The libraries of the target that can be found, as name and content.
pub fn libraries() -> Vec<(&'static str, Vec<u8>)> {
    let set_up = env::var_os("TRAPLESS_CROSS")
        .map(|folder| Path::new(&folder).join("libraries/ppc64el/usr/lib/powerpc64le-linux-gnu"));
    let installed = Some(PathBuf::from("/usr/powerpc64le-linux-gnu/lib"));
    let read = |name: &'static str| {
        let folders = [&set_up, &installed].into_iter().flatten();
        let content = folders.filter_map(|folder| std::fs::read(folder.join(name)).ok()).next();
        content.map(|content| (name, content))
    };
    let found: Vec<_> = ["libc.so.6", "libstdc++.so.6"].into_iter().filter_map(read).collect();
    if found.is_empty() {
        trapless_testing::skip!("no powerpc64le libraries in $TRAPLESS_CROSS/libraries");
    }
    found
}

//! What lies at addresses of a process: functions of its files, of its vDSO, and of code that it has made and told of in
//! `/tmp/perf-PID.map`.
//!
//! Files are opened when a process is looked at and stay open, so names are there after it has ended. What it loads later is found when an
//! address is asked for that is in no file, as long as it lives.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use trapless_process::Process;
use trapless_script::output::Symbol;
use trapless_session::files::Files;
use trapless_session::target::{self, Image};
use trapless_symbols::{Module, SourceLine, demangle};

/// The vDSO has a few pages.
const LARGEST_VDSO: u64 = 1 << 20;

/// More is not read of what a process says of the code that it makes.
const LARGEST_MAP: u64 = 256 << 20;

/// The files that a process has mapped, and its other code.
pub struct Mapped {
    process: Process,
    images: Vec<Image>,
    vdso: Option<(Range<u64>, Module)>,
    /// Functions that it has made: by their ends, where they begin and their names.
    made: BTreeMap<u64, (u64, String)>,
    /// How much of the file that tells of them was read.
    read: u64,
    /// What has been asked for.
    pub known: HashMap<u64, Vec<Symbol>>,
}

impl Mapped {
    /// What a process has now. `None`: it has ended.
    pub fn now(process: Process, files: &Files) -> Option<Self> {
        let images = images(&process, files)?;
        let vdso = vdso(&process);
        let (made, known) = (BTreeMap::new(), HashMap::new());
        Some(Self { process, images, vdso, made, read: 0, known })
    }

    /// The file that an address is in, and the address there.
    pub fn module_at(&self, address: u64) -> Option<(&Module, u64)> {
        let (image, at) = self.image_at(address)?;
        Some((image.module(Some(&self.process)).ok()?, at))
    }

    fn image_at(&self, address: u64) -> Option<(&Image, u64)> {
        let image = self.images.iter().find(|image| image.range.contains(&address))?;
        let bias = image.bias(Some(&self.process)).ok()?;
        Some((image, address.wrapping_sub(bias)))
    }

    /// The functions at an address: those inlined there, if `lines` are told, and the one that has the code.
    pub fn symbols(&mut self, files: &Files, address: u64, lines: bool) -> Vec<Symbol> {
        let in_vdso = |vdso: &Option<(Range<u64>, Module)>| {
            let (range, module) = vdso.as_ref().filter(|vdso| vdso.0.contains(&address))?;
            function(module, address - range.start, "[vdso]", lines)
        };
        if let Some(symbols) = in_vdso(&self.vdso) {
            return symbols;
        }
        if self.image_at(address).is_none() {
            if let Some(symbol) = self.made_at(address) {
                return vec![symbol];
            }
            // What was loaded since. Once it has ended nothing is found, and what there is stays.
            if let Some(images) = images(&self.process, files) {
                let known: Vec<Range<u64>> = self.images.iter().map(|image| image.range.clone()).collect();
                self.images.extend(images.into_iter().filter(|image| !known.contains(&image.range)));
            }
        }
        let Some((image, at)) = self.image_at(address) else { return Vec::new() };
        let module = image.module(Some(&self.process)).ok();
        module.and_then(|module| function(module, at, &image.path, lines)).unwrap_or_default()
    }

    /// A function that the process has made.
    fn made_at(&mut self, address: u64) -> Option<Symbol> {
        let find = |made: &BTreeMap<u64, (u64, String)>| {
            let (_, (start, name)) = made.range(address.checked_add(1)?..).next()?;
            let offset = address.checked_sub(*start)?;
            Some(Symbol { name: name.clone(), offset, ..Symbol::default() })
        };
        if let Some(symbol) = find(&self.made) {
            return Some(symbol);
        }
        self.read_made();
        find(&self.made)
    }

    /// Reads what was added to the file that tells of made code, whose lines are an address, a length and a name. It is as the process sees
    /// it, or else as we do.
    fn read_made(&mut self) {
        let pid = self.process.pid().0;
        let name = format!("tmp/perf-{pid}.map");
        let paths = [format!("/proc/{pid}/root/{name}"), format!("/{name}")];
        let Some(file) = paths.iter().find_map(|path| File::open(path).ok()) else { return };
        let length = file.metadata().map_or(0, |about| about.len());
        if length <= self.read || self.read >= LARGEST_MAP {
            return;
        }
        let mut reader = BufReader::new(file.take(LARGEST_MAP));
        if std::io::copy(&mut reader.by_ref().take(self.read), &mut std::io::sink()).is_err() {
            return;
        }
        let mut line = Vec::new();
        while let Ok(size @ 1..) = reader.read_until(b'\n', &mut line) {
            // One that is being written is read later.
            if line.last() != Some(&b'\n') {
                break;
            }
            self.read += size as u64;
            let text = String::from_utf8_lossy(&line);
            let mut parts = text.trim_end().splitn(3, ' ');
            let mut number = || u64::from_str_radix(parts.next()?.trim_start_matches("0x"), 16).ok();
            if let (Some(start), Some(length)) = (number(), number())
                && let (Some(end), Some(name)) = (start.checked_add(length), parts.next())
            {
                self.made.insert(end, (start, name.to_owned()));
            }
            line.clear();
        }
    }
}

/// The files of a process, all of them opened.
fn images(process: &Process, files: &Files) -> Option<Vec<Image>> {
    let images = target::images(process, files).ok()?;
    for image in &images {
        // Of those that cannot be opened there are no names.
        let _ = image.bias(Some(process));
    }
    Some(images)
}

fn vdso(process: &Process) -> Option<(Range<u64>, Module)> {
    let maps = process.maps().ok()?;
    let mapping = maps.special("[vdso]")?;
    let mut bytes = vec![0; mapping.len().min(LARGEST_VDSO) as usize];
    process.read_exact(mapping.start, &mut bytes).ok()?;
    // It is linked to begin at 0.
    Some((mapping.start.0..mapping.end.0, Module::parse("[vdso]", bytes).ok()?))
}

fn function(module: &Module, at: u64, path: &str, lines: bool) -> Option<Vec<Symbol>> {
    let function = module.functions().containing(at)?;
    let text = |line: Option<SourceLine>| line.map(|line| format!("{}:{}", line.file, line.line));
    let mut frames = if lines { module.source_frames(at) } else { Vec::new() };
    // The last one is the function itself.
    let own = frames.pop();
    let mut symbols: Vec<Symbol> = frames
        .into_iter()
        .map(|frame| Symbol {
            name: frame.function.map_or_else(|| "??".to_owned(), |name| demangle(&name).into_owned()),
            offset: 0,
            module: Some(path.to_owned()),
            line: text(frame.line),
            is_inlined: true,
        })
        .collect();
    symbols.push(Symbol {
        name: demangle(function.name().plain()).into_owned(),
        offset: at - function.address(),
        module: Some(path.to_owned()),
        line: own.and_then(|own| text(own.line)),
        is_inlined: false,
    });
    Some(symbols)
}

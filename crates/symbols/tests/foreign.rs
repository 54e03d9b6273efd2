//! Files of other machines, written byte by byte, and headers that are refused.

use trapless_symbols::{DebugSearch, Kind, Machine, Module, ModuleError, ModuleKind};

const EM_386: u16 = 3;
const EM_PPC64: u16 = 21;
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;
const ET_DYN: u16 = 3;

const BASE: u64 = 0x1_0000;
const TEXT_SIZE: u64 = 64;

/// (name, offset in .text, size, st_info, st_other)
type Symbol = (&'static str, u64, u64, u8, u8);

const LOCAL_NOTYPE: u8 = 0x00;
const GLOBAL_NOTYPE: u8 = 0x10;
const GLOBAL_FUNC: u8 = 0x12;
const LOCAL_FUNC: u8 = 0x02;
const GLOBAL_IFUNC: u8 = 0x1a;

/// A 64-bit file of one segment: header, `.text` of 64 bytes at [`BASE`] + 0x1000, `.rela.dyn`, `.symtab`.
fn elf64(kind: u16, machine: u16, symbols: &[Symbol], relocations: &[(u32, u64)]) -> Vec<u8> {
    let text = 0x1000;
    let mut strings = vec![0];
    let mut table = vec![0; 24];
    for &(name, offset, size, info, other) in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([info, other, 1, 0]);
        table.extend((BASE + text + offset).to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend(name.bytes().chain([0]));
    }
    let mut rela = Vec::new();
    for &(kind, target) in relocations {
        rela.extend((BASE + 0x3000).to_le_bytes());
        rela.extend(u64::from(kind).to_le_bytes());
        rela.extend((BASE + text + target).to_le_bytes());
    }
    let names = b"\0.text\0.symtab\0.strtab\0.rela.dyn\0.shstrtab\0";
    let name = |wanted: &str| {
        names.windows(wanted.len()).position(|window| window == wanted.as_bytes()).unwrap() as u32
    };

    let mut file = vec![0; 0x1000];
    file.extend([0; TEXT_SIZE as usize]);
    let mut sections = vec![vec![0; 64]];
    let mut section =
        |file: &mut Vec<u8>, title: &str, kind: u32, flags: u64, contents: &[u8], link: u32, entry: u64| {
            let (address, offset, size) = match title {
                ".text" => (BASE + text, text, TEXT_SIZE),
                _ => (0, file.len() as u64, contents.len() as u64),
            };
            file.extend(contents);
            let mut header = Vec::new();
            header.extend(name(title).to_le_bytes());
            header.extend(kind.to_le_bytes());
            header.extend([flags, address, offset, size].iter().flat_map(|number| number.to_le_bytes()));
            header.extend([link, 1].iter().flat_map(|number| number.to_le_bytes()));
            header.extend([8, entry].iter().flat_map(|number: &u64| number.to_le_bytes()));
            sections.push(header);
        };
    section(&mut file, ".text", 1, 6, &[], 0, 0);
    section(&mut file, ".symtab", 2, 0, &table, 3, 24);
    section(&mut file, ".strtab", 3, 0, &strings, 0, 0);
    section(&mut file, ".rela.dyn", 4, 2, &rela, 0, 24);
    section(&mut file, ".shstrtab", 3, 0, names, 0, 0);
    let section_headers = file.len() as u64;
    let size = section_headers;

    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([kind, machine].iter().flat_map(|number| number.to_le_bytes()));
    header.extend(1_u32.to_le_bytes());
    header.extend([BASE + text, 64, section_headers].iter().flat_map(|number| number.to_le_bytes()));
    header.extend(0_u32.to_le_bytes());
    header.extend([64, 56, 1, 64, sections.len() as u16, 5].iter().flat_map(|number| number.to_le_bytes()));
    header.extend([1_u32, 5].iter().flat_map(|number| number.to_le_bytes()));
    header.extend([0, BASE, BASE, size, size, 0x1000].iter().flat_map(|number| number.to_le_bytes()));
    file[..header.len()].copy_from_slice(&header);
    file.extend(sections.concat());
    file
}

#[test]
fn every_machine_is_read() {
    const SYMBOLS: &[Symbol] = &[
        ("$x", 0, 0, LOCAL_NOTYPE, 0),
        ("first", 0, 16, GLOBAL_FUNC, 0x60),
        ("$d", 16, 0, LOCAL_NOTYPE, 0),
        ("sizeless", 24, 0, GLOBAL_NOTYPE, 0),
        ("picked", 32, 8, GLOBAL_IFUNC, 0),
        ("00000017.plt_call.puts", 40, 8, LOCAL_FUNC, 0),
        ("last", 48, 0, LOCAL_FUNC, 0),
        ("beyond", 64, 0, GLOBAL_FUNC, 0),
    ];
    for (number, machine, relative, local_entry) in [
        (EM_X86_64, Machine::X86_64, 8, 0),
        (EM_AARCH64, Machine::AArch64, 1027, 0),
        (EM_PPC64, Machine::PowerPc64Le, 22, 8),
    ] {
        let bytes = elf64(ET_DYN, number, SYMBOLS, &[(relative, 20), (relative, 0x9999), (9999, 28)]);
        let module = Module::parse("foreign", bytes).unwrap();
        assert_eq!((module.machine(), module.kind()), (machine, ModuleKind::SharedLibrary));
        assert_eq!(module.entry(), BASE + 0x1000);
        let has_stub = machine != Machine::PowerPc64Le;
        let found: Vec<_> = module
            .functions()
            .iter()
            .map(|f| {
                (f.name().plain(), f.address() - BASE - 0x1000, f.size(), f.kind(), f.local_entry_offset())
            })
            .collect();
        let mut expected = vec![
            ("first", 0, 16, Kind::Function, local_entry),
            ("sizeless", 24, 8, Kind::Function, 0),
            ("picked", 32, 8, Kind::IfuncResolver, 0),
            ("00000017.plt_call.puts", 40, 8, Kind::Function, 0),
            ("last", 48, 16, Kind::Function, 0),
        ];
        expected.retain(|row| has_stub || !row.0.contains("plt_call"));
        assert_eq!(found, expected, "{machine:?}");
        let first = module.function_named("first").unwrap();
        assert_eq!(
            module.padding_after(first).len(),
            8,
            "up to the next function: mapping symbols do not count"
        );
        assert_eq!(module.code_pointers(), [BASE + 0x1000, BASE + 0x1000 + 20], "{machine:?}");
    }
}

#[test]
fn headers_that_cannot_be_used_say_why() {
    let sound = || elf64(ET_DYN, EM_X86_64, &[], &[]);
    let with = |changes: &[(usize, &[u8])]| {
        let mut bytes = sound();
        for &(at, new) in changes {
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        bytes
    };
    type Row = (&'static str, Vec<u8>, fn(&ModuleError) -> bool, &'static str);
    let rows: [Row; 16] = [
        ("empty", vec![], |e| matches!(e, ModuleError::Empty(_)), "is empty"),
        ("script", b"#!/bin/sh\n".to_vec(), |e| matches!(e, ModuleError::NotElf { .. }), "script"),
        (
            "linker script",
            b"/* GNU ld script".to_vec(),
            |e| matches!(e, ModuleError::NotElf { .. }),
            "linker script",
        ),
        ("archive", b"!<arch>\n".to_vec(), |e| matches!(e, ModuleError::NotElf { .. }), "static library"),
        ("text", b"hello".to_vec(), |e| matches!(e, ModuleError::NotElf { .. }), "no ELF magic"),
        ("magic only", b"\x7fELF".to_vec(), |e| matches!(e, ModuleError::Truncated { .. }), "ELF header"),
        ("big endian", with(&[(5, &[2])]), |e| matches!(e, ModuleError::BigEndian(_)), "big-endian"),
        ("class 7", with(&[(4, &[7])]), |e| matches!(e, ModuleError::Corrupt { .. }), "class 7"),
        (
            "riscv",
            with(&[(18, &[243, 0])]),
            |e| matches!(e, ModuleError::UnsupportedMachine { .. }),
            "machine 243",
        ),
        (
            "64-bit i386",
            with(&[(18, &EM_386.to_le_bytes())]),
            |e| matches!(e, ModuleError::UnsupportedMachine { machine: 3, bits: 64, .. }),
            "64 bit",
        ),
        ("object file", with(&[(16, &[1])]), |e| matches!(e, ModuleError::NotLoadable { .. }), "object file"),
        ("core", with(&[(16, &[4])]), |e| matches!(e, ModuleError::NotLoadable { .. }), "core dump"),
        ("no segments", with(&[(56, &[0])]), |e| matches!(e, ModuleError::NotLoadable { .. }), "loadable"),
        (
            "long segment",
            with(&[(64 + 32, &[0xff; 4])]),
            |e| matches!(e, ModuleError::Truncated { .. }),
            "a segment",
        ),
        (
            "segment around the end of memory",
            with(&[(64 + 16, &[0xff; 8])]),
            |e| matches!(e, ModuleError::Corrupt { .. }),
            "impossible size",
        ),
        (
            "section headers beyond the end",
            with(&[(40, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0])]),
            |e| matches!(e, ModuleError::Truncated { .. }),
            "section header table",
        ),
    ];
    for (what, bytes, is_expected, says) in rows {
        let error = Module::parse("some/file", bytes).expect_err(what);
        let text = error.to_string();
        assert!(is_expected(&error), "{what}: {error:?}");
        assert!(
            text.starts_with("some/file: ") && text.contains(says) && !text.contains('\n'),
            "{what}: {text}"
        );
    }
}

#[test]
fn paths_that_cannot_be_read_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let open = |path: &std::path::Path| Module::open_with(path, DebugSearch::nowhere()).unwrap_err();
    assert!(matches!(open(&missing), ModuleError::NotFound(path) if path == missing));
    assert!(matches!(open(folder.path()), ModuleError::NotAFile(_)));
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    if std::fs::read(&secret).is_ok() {
        return trapless_testing::inapplicable!("root may read everything");
    }
    assert!(matches!(open(&secret), ModuleError::Permission(_)));
}

#[test]
fn tables_that_cannot_be_read_are_noted() {
    let mut bytes = elf64(ET_DYN, EM_X86_64, &[("f", 0, 8, GLOBAL_FUNC, 0)], &[]);
    assert_eq!(Module::parse("sound", bytes.clone()).unwrap().functions().defects(), [""; 0]);
    // The size of .symtab is no multiple of a symbol's.
    let headers = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    bytes[headers + 2 * 64 + 32] += 1;
    let module = Module::parse("odd", bytes).unwrap();
    assert!(module.functions().is_empty());
    assert!(
        module.functions().defects()[0].starts_with("SymbolTable: "),
        "{:?}",
        module.functions().defects()
    );
}

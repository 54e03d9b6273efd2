//! Which names and texts are in a file, whatever they name: the marks that its compiler and its libraries leave.

use object::elf;

use crate::Module;

impl Module {
    /// Calls `see` with each symbol's name, of defined and of imported ones, in no order and perhaps more than once. Names that
    /// share their end with another one may be missing.
    pub fn each_symbol_name(&self, mut see: impl FnMut(&[u8])) {
        let tables = [(elf::SHT_SYMTAB, ".strtab"), (elf::SHT_DYNSYM, ".dynstr")];
        for (table, strings) in tables {
            if self.image.sections.iter().any(|section| section.kind == table) {
                let strings = self.image.section_bytes(&self.source, strings);
                strings.split(|&byte| byte == 0).filter(|name| !name.is_empty()).for_each(&mut see);
            }
        }
    }

    /// The names of its sections.
    pub fn section_names(&self) -> impl Iterator<Item = &str> {
        self.image.sections.iter().map(|section| section.name.as_str())
    }

    /// Whether its symbols were stripped: what is not exported has no name.
    pub fn is_stripped(&self) -> bool {
        !self.has_symtab()
    }

    /// Whether `text` stands in its constant data.
    pub fn has_text(&self, text: &[u8]) -> bool {
        let constant = self.image.sections.iter().filter(|section| {
            section.has(elf::SHF_ALLOC) && !section.has(elf::SHF_WRITE) && !section.is_code()
        });
        let mut parts: Vec<_> = constant.map(|section| section.file.clone()).collect();
        if parts.is_empty() {
            let constant = self.image.segments.iter().filter(|segment| !segment.writable);
            parts.extend(constant.map(|s| s.offset as usize..(s.offset + s.file_size) as usize));
        }
        let finder = memchr::memmem::Finder::new(text);
        parts.into_iter().any(|part| finder.find(self.source.get(part).unwrap_or_default()).is_some())
    }
}

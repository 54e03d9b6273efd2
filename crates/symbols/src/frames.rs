//! Which code the unwind tables describe, and where exceptions land.
//!
//! `.eh_frame` survives stripping because C++ and backtraces need it: each entry (FDE) gives the bounds of one
//! function or one part of it, and may point to an LSDA in `.gcc_except_table`, which lists landing pads: addresses
//! that the unwinder jumps to and that no branch instruction names.

use std::{collections::HashMap, ops::Range};

use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, CommonInformationEntry, EhFrame,
    EndianSlice, LittleEndian, Pointer, Register, UnwindSection,
};

use crate::image::{Image, Machine};

/// One FDE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub start: u64,
    pub end: u64,
    /// Address of the language-specific data.
    pub lsda: Option<u64>,
    /// Where the return address is before the first instruction.
    pub arrival: Arrival,
}

/// What the unwind table says of the moment before a function's first instruction: its rows hold for whoever arrives there,
/// by a call or by a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// As a call leaves it: the return address is on top of the stack, or in the link register, and nothing is saved yet.
    Called,
    /// A frame is set up already: this is a part of a function (`.cold`) that is jumped to.
    SetUp,
    /// The rows say something else, such as that there is no return address.
    Unclear,
    /// No entry of the table starts here.
    Untold,
}

pub(crate) type Reader<'b> = EndianSlice<'b, LittleEndian>;

/// What the unwind table tells.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// All FDEs of functions, in address order.
    pub frames: Vec<Frame>,
    /// Code that handlers of signals return to. An entry begins a byte ahead of it.
    pub trampolines: Vec<Range<u64>>,
    /// What could not be read of the table.
    pub defect: Option<String>,
}

/// What the file's table tells.
pub(crate) fn read(image: &Image, bytes: &[u8]) -> Told {
    let (frames, bases) = match table(image, bytes) {
        Ok(Some(found)) => found,
        Ok(None) => return Told::default(),
        Err(defect) => return Told { defect: Some(defect), ..Told::default() },
    };
    let mut told = Told::default();
    let failure = walk(image.machine, &frames, &bases, &mut told).err();
    told.frames.sort_unstable_by_key(|frame| (frame.start, frame.end));
    told.frames.dedup_by_key(|frame| frame.start);
    told.defect = failure.map(|error| error.to_string());
    told
}

/// Where the canonical frame address is when control is at `address`: a register, and what to add to it. None where no row tells,
/// or tells it by a computation.
pub(crate) fn cfa(image: &Image, bytes: &[u8], address: u64) -> Option<(u16, i64)> {
    let (frames, bases) = table(image, bytes).ok()??;
    let by_header = || {
        let header = image.frame_header.as_ref()?;
        let contents = image.bytes_at(bytes, header.start);
        let contents = contents.get(..(header.end - header.start) as usize).unwrap_or(contents);
        let header = gimli::EhFrameHdr::new(contents, LittleEndian);
        let header = header.parse(&bases, image.pointer_size() as u8).ok()?;
        let table = header.table()?;
        table.fde_for_address(&frames, &bases, address, EhFrame::cie_from_offset).ok()
    };
    let fde = by_header()
        .filter(|fde| fde.contains(address))
        .or_else(|| frames.fde_for_address(&bases, address, EhFrame::cie_from_offset).ok())?;
    let mut context = gimli::UnwindContext::new();
    let row = fde.unwind_info_for_address(&frames, &bases, &mut context, address).ok()?;
    match row.cfa() {
        gimli::CfaRule::RegisterAndOffset { register, offset } => Some((register.0, *offset)),
        gimli::CfaRule::Expression(_) => None,
    }
}

/// The table, and what addresses in it are relative to. `None` in a file without one.
pub(crate) fn table<'b>(
    image: &Image,
    bytes: &'b [u8],
) -> Result<Option<(EhFrame<Reader<'b>>, BaseAddresses)>, String> {
    let Some((address, contents)) = section(image, bytes)? else { return Ok(None) };
    let mut frames = EhFrame::new(contents, LittleEndian);
    frames.set_address_size(image.pointer_size() as u8);
    let mut bases = BaseAddresses::default().set_eh_frame(address);
    if let Some(header) = &image.frame_header {
        bases = bases.set_eh_frame_hdr(header.start);
    }
    for (name, set) in [
        (".text", BaseAddresses::set_text as fn(BaseAddresses, u64) -> BaseAddresses),
        (".got", BaseAddresses::set_got),
        // The linker's _GLOBAL_OFFSET_TABLE_ is here on x86 if there is such a section.
        (".got.plt", BaseAddresses::set_got),
    ] {
        if let Some(section) = image.section(name) {
            bases = set(bases, section.address);
        }
    }
    Ok(Some((frames, bases)))
}

fn walk(
    machine: Machine,
    frames: &EhFrame<Reader<'_>>,
    bases: &BaseAddresses,
    told: &mut Told,
) -> gimli::Result<()> {
    // Thousands of FDEs share a handful of CIEs.
    let mut cies: HashMap<usize, CommonInformationEntry<Reader<'_>>> = HashMap::new();
    let mut arrivals: HashMap<usize, Arrival> = HashMap::new();
    let mut entries = frames.entries(bases);
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = cies.get(&offset.0) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            cies.insert(offset.0, cie.clone());
            Ok(cie)
        })?;
        if fde.len() == 0 || fde.end_address() <= fde.initial_address() {
            continue;
        }
        // It starts one byte early, on purpose, and symbols tell more about it.
        if fde.is_signal_trampoline() {
            told.trampolines.push(fde.initial_address()..fde.end_address());
            continue;
        }
        let cie = fde.cie();
        let common = *arrivals.entry(cie.offset()).or_insert_with(|| {
            let plain = as_a_call_leaves_it(machine, cie);
            opening(cie.instructions(frames, bases), |row| plain.contains(row))
        });
        let own = opening(fde.instructions(frames, bases), |_| false);
        told.frames.push(Frame {
            start: fde.initial_address(),
            end: fde.end_address(),
            lsda: match fde.lsda() {
                Some(Pointer::Direct(address)) if address != 0 => Some(address),
                _ => None,
            },
            arrival: if common == Arrival::Called { own } else { common },
        });
    }
    Ok(())
}

/// The rows of a CIE that says no more than: the canonical frame address is that of the stack pointer before the call, and
/// the return address is where the call has put it (System V ABI, each processor's supplement, "DWARF register numbers").
fn as_a_call_leaves_it(
    machine: Machine,
    cie: &CommonInformationEntry<Reader<'_>>,
) -> Vec<CallFrameInstruction<usize>> {
    let (stack_pointer, offset, on_stack) = match machine {
        Machine::X86_64 => (7, 8, Some(16)),
        Machine::I386 => (4, 4, Some(8)),
        Machine::AArch64 => (31, 0, None),
        Machine::PowerPc64Le => (1, 0, None),
    };
    let mut rows = vec![CallFrameInstruction::DefCfa { register: Register(stack_pointer), offset }];
    if let Some(register) = on_stack
        && cie.return_address_register() == Register(register)
        && cie.data_alignment_factor() == -(offset as i64)
    {
        rows.push(CallFrameInstruction::Offset { register: Register(register), factored_offset: 1 });
    }
    rows
}

/// What the rows before the first instruction say, apart from those that `plain` knows.
fn opening(
    mut rows: CallFrameInstructionIter<'_, Reader<'_>>,
    plain: impl Fn(&CallFrameInstruction<usize>) -> bool,
) -> Arrival {
    use CallFrameInstruction::*;
    loop {
        match rows.next() {
            Ok(None) => return Arrival::Called,
            Ok(Some(AdvanceLoc { delta })) if delta > 0 => return Arrival::Called,
            Ok(Some(Nop | ArgsSize { .. } | AdvanceLoc { .. })) => {}
            Ok(Some(row)) if plain(&row) => {}
            Ok(Some(
                DefCfa { .. }
                | DefCfaOffset { .. }
                | DefCfaRegister { .. }
                | DefCfaExpression { .. }
                | Offset { .. },
            )) => return Arrival::SetUp,
            _ => return Arrival::Unclear,
        }
    }
}

/// Address and bytes of `.eh_frame`, by name or else by the pointer in `.eh_frame_hdr`. `None` in a file without one.
fn section<'b>(image: &Image, bytes: &'b [u8]) -> Result<Option<(u64, &'b [u8])>, String> {
    if let Some(section) = image.section(".eh_frame").filter(|section| !section.file.is_empty()) {
        let contents = bytes.get(section.file.clone()).ok_or("the file ends inside it")?;
        return Ok(Some((section.address, contents)));
    }
    match &image.frame_header {
        None => Ok(None),
        Some(header) => {
            by_header(image, bytes, header).map(Some).ok_or_else(|| "its header is damaged".into())
        }
    }
}

fn by_header<'b>(image: &Image, bytes: &'b [u8], header: &Range<u64>) -> Option<(u64, &'b [u8])> {
    let contents = image.bytes_at(bytes, header.start);
    let contents = contents.get(..(header.end - header.start) as usize).unwrap_or(contents);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start);
    let parsed =
        gimli::EhFrameHdr::new(contents, LittleEndian).parse(&bases, image.pointer_size() as u8).ok()?;
    let address = parsed.eh_frame_ptr().direct().ok()?;
    Some((address, image.bytes_at(bytes, address)))
}

/// The landing pads in the LSDAs of `frames`, sorted, and the frames whose LSDA makes no sense.
pub(crate) fn landing_pads(image: &Image, bytes: &[u8], frames: &[Frame]) -> (Vec<u64>, Vec<Range<u64>>) {
    let mut pads = Vec::new();
    let mut unread = Vec::new();
    // LSDAs do not overlap in a sound file, so together they are not longer than it.
    let mut budget = bytes.len();
    for frame in frames {
        let Some(lsda) = frame.lsda else { continue };
        let table = Lsda { image, bytes, cursor: lsda, rest: image.bytes_at(bytes, lsda) };
        match table.landing_pads(frame, budget, &mut pads) {
            Some(used) => budget = budget.saturating_sub(used),
            None => unread.push(frame.range()),
        }
    }
    pads.sort_unstable();
    pads.dedup();
    (pads, unread)
}

/// A reader of one LSDA, laid out as gcc's `unwind-dw2-fde` and `unwind-pe.h` read it.
struct Lsda<'b> {
    image: &'b Image,
    bytes: &'b [u8],
    /// Address of the first byte of `rest`.
    cursor: u64,
    rest: &'b [u8],
}

const DW_EH_PE_OMIT: u8 = 0xff;

impl Lsda<'_> {
    /// Adds the landing pads and gives the number of bytes read; `None` when the table makes no sense, after adding
    /// those before that point.
    fn landing_pads(mut self, frame: &Frame, budget: usize, pads: &mut Vec<u64>) -> Option<usize> {
        let start = self.cursor;
        let base = match self.byte()? {
            DW_EH_PE_OMIT => frame.start,
            encoding => self.encoded(encoding)?,
        };
        if self.byte()? != DW_EH_PE_OMIT {
            self.uleb()?;
        }
        let encoding = self.byte()?;
        let length = self.uleb()?;
        if length > budget as u64 {
            return None;
        }
        let end = self.cursor.checked_add(length)?;
        while self.cursor < end {
            let _region_start = self.encoded(encoding)?;
            let _region_length = self.encoded(encoding)?;
            let pad = self.encoded(encoding)?;
            let _action = self.uleb()?;
            if pad != 0 {
                pads.push(self.truncated(base.wrapping_add(pad)));
            }
        }
        Some((self.cursor - start) as usize)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.cursor += 1;
        Some(first)
    }

    fn fixed(&mut self, size: usize) -> Option<u64> {
        let (bytes, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        self.cursor += size as u64;
        Some(little_endian(bytes))
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A pointer by its DW_EH_PE encoding. Encodings that no compiler uses in call-site tables give `None`.
    fn encoded(&mut self, encoding: u8) -> Option<u64> {
        let place = self.cursor;
        let value = match encoding & 0x0f {
            0x00 => self.fixed(self.image.pointer_size())?,
            0x01 => self.uleb()?,
            0x02 => self.fixed(2)?,
            0x03 => self.fixed(4)?,
            0x04 | 0x0c => self.fixed(8)?,
            0x0a => self.fixed(2)? as i16 as u64,
            0x0b => self.fixed(4)? as i32 as u64,
            _ => return None,
        };
        let value = match encoding & 0x70 {
            0x00 => value,
            0x10 if value != 0 => value.wrapping_add(place),
            0x10 => 0,
            _ => return None,
        };
        if encoding & 0x80 == 0 {
            return Some(self.truncated(value));
        }
        let target = self.image.bytes_at(self.bytes, value);
        target.get(..self.image.pointer_size()).map(little_endian)
    }

    fn truncated(&self, value: u64) -> u64 {
        if self.image.is_64 { value } else { value & 0xffff_ffff }
    }
}

/// The number in up to eight bytes.
pub(crate) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

impl Frame {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

//! Which code the unwind tables describe, and where exceptions land.
//!
//! `.eh_frame` survives stripping because C++ and backtraces need it: each entry (FDE) gives the bounds of one
//! function or one part of it, and may point to an LSDA in `.gcc_except_table`, which lists landing pads: addresses
//! that the unwinder jumps to and that no branch instruction names.

use std::{collections::HashMap, ops::Range};

use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice,
    FrameDescriptionEntry, LittleEndian, Pointer, UnwindSection,
};

use crate::image::Image;

/// One FDE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub start: u64,
    pub end: u64,
    /// Address of the language-specific data.
    pub lsda: Option<u64>,
    /// The frame is already set up at the first instruction, so this is not where a call arrives: a `.cold` part.
    pub is_part: bool,
}

type Reader<'b> = EndianSlice<'b, LittleEndian>;

/// All FDEs in address order, and why reading stopped if it did before the end.
pub(crate) fn read(image: &Image, bytes: &[u8]) -> (Vec<Frame>, Option<gimli::Error>) {
    let Some((address, contents)) = section(image, bytes) else { return (Vec::new(), None) };
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
    let mut found = Vec::new();
    let failure = walk(&frames, &bases, &mut found).err();
    found.sort_unstable_by_key(|frame| (frame.start, frame.end));
    found.dedup_by_key(|frame| frame.start);
    (found, failure)
}

fn walk(frames: &EhFrame<Reader<'_>>, bases: &BaseAddresses, found: &mut Vec<Frame>) -> gimli::Result<()> {
    // Thousands of FDEs share a handful of CIEs.
    let mut cies: HashMap<usize, CommonInformationEntry<Reader<'_>>> = HashMap::new();
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
        // The FDE of a signal trampoline starts one byte early, on purpose, and symbols tell more about it.
        if fde.len() == 0 || fde.end_address() <= fde.initial_address() || fde.is_signal_trampoline() {
            continue;
        }
        found.push(Frame {
            start: fde.initial_address(),
            end: fde.end_address(),
            lsda: match fde.lsda() {
                Some(Pointer::Direct(address)) if address != 0 => Some(address),
                _ => None,
            },
            is_part: starts_with_a_frame(frames, bases, &fde),
        });
    }
    Ok(())
}

/// Whether the FDE moves the CFA or saves registers before its first instruction has run.
fn starts_with_a_frame(
    frames: &EhFrame<Reader<'_>>,
    bases: &BaseAddresses,
    fde: &FrameDescriptionEntry<Reader<'_>>,
) -> bool {
    let mut instructions = fde.instructions(frames, bases);
    // A frame that is set up shows it at once.
    for _ in 0..8 {
        match instructions.next() {
            Ok(Some(CallFrameInstruction::Nop)) => {}
            Ok(Some(
                CallFrameInstruction::DefCfa { .. }
                | CallFrameInstruction::DefCfaOffset { .. }
                | CallFrameInstruction::DefCfaRegister { .. }
                | CallFrameInstruction::DefCfaExpression { .. }
                | CallFrameInstruction::Offset { .. },
            )) => return true,
            _ => return false,
        }
    }
    false
}

/// Address and bytes of `.eh_frame`, by name or else by the pointer in `.eh_frame_hdr`.
fn section<'b>(image: &Image, bytes: &'b [u8]) -> Option<(u64, &'b [u8])> {
    if let Some(section) = image.section(".eh_frame").filter(|section| !section.file.is_empty()) {
        return Some((section.address, bytes.get(section.file.clone())?));
    }
    let header = image.frame_header.as_ref()?;
    let contents = image.bytes_at(bytes, header.start);
    let contents = contents.get(..(header.end - header.start) as usize).unwrap_or(contents);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start);
    let parsed =
        gimli::EhFrameHdr::new(contents, LittleEndian).parse(&bases, image.pointer_size() as u8).ok()?;
    let address = parsed.eh_frame_ptr().direct().ok()?;
    Some((address, image.bytes_at(bytes, address)))
}

/// The landing pads in the LSDAs of `frames`, sorted.
pub(crate) fn landing_pads(image: &Image, bytes: &[u8], frames: &[Frame]) -> Vec<u64> {
    let mut pads = Vec::new();
    // LSDAs do not overlap in a sound file, so together they are not longer than it.
    let mut budget = bytes.len();
    for frame in frames {
        let Some(lsda) = frame.lsda else { continue };
        let table = Lsda { image, bytes, cursor: lsda, rest: image.bytes_at(bytes, lsda) };
        let Some(used) = table.landing_pads(frame, budget, &mut pads) else { continue };
        budget = budget.saturating_sub(used);
        if budget == 0 {
            break;
        }
    }
    pads.sort_unstable();
    pads.dedup();
    pads
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

/// The frame among `frames`, which are sorted, that `address` lies in.
pub(crate) fn frame_at(frames: &[Frame], address: u64) -> Option<&Frame> {
    let index = frames.partition_point(|frame| frame.start <= address).checked_sub(1)?;
    Some(&frames[index]).filter(|frame| address < frame.end)
}

impl Frame {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

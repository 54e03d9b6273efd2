//! Statements on bytes: scratch, strings and foreign memory.

use super::Run;
use crate::ir::*;

/// A body's own memory, for one run.
pub(super) struct Frame {
    /// Integers, and the bits of doubles.
    pub(super) locals: Vec<u64>,
    pub(super) scratch: Vec<u8>,
}

/// A scalar in memory as it is held: an integer extended to 64 bits, or the bits of a double.
pub(super) fn load(bytes: &[u8], as_: Width) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let word = u64::from_le_bytes(word);
    match as_ {
        Width::Float(4) => f64::from(f32::from_bits(word as u32)).to_bits(),
        Width::Signed(1) => word as i8 as u64,
        Width::Signed(2) => word as i16 as u64,
        Width::Signed(4) => word as i32 as u64,
        Width::Unsigned(_) | Width::Signed(_) | Width::Float(_) => word,
    }
}

/// A scalar as it lies in memory: the first [`Width::size`] bytes.
fn store(value: u64, as_: Width) -> [u8; 8] {
    match as_ {
        Width::Float(4) => u64::from((f64::from_bits(value) as f32).to_bits()).to_le_bytes(),
        Width::Unsigned(_) | Width::Signed(_) | Width::Float(_) => value.to_le_bytes(),
    }
}

/// The bytes ahead of the first zero.
fn string(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

impl Run<'_, '_> {
    pub(super) fn on_bytes(&mut self, statement: &Statement) {
        match statement {
            Statement::Store { to, as_, value } => {
                let value = store(self.value(value), *as_);
                self.write(to, &value[..(as_.size() as usize).min(8)]);
            }
            Statement::Copy { to, from, size } => {
                let bytes = self.bytes(from, *size).to_vec();
                self.write(to, &bytes);
            }
            Statement::Zero { to, size } => self.write(to, &vec![0; *size as usize]),
            Statement::Read { into, from, as_, ok } => {
                let address = self.value(from);
                let mut bytes = [0; 8];
                let size = (as_.size() as usize).min(8);
                let whole = self.read(address, &mut bytes[..size]) == size;
                let value = if whole { load(&bytes[..size], *as_) } else { 0 };
                self.frame.set(*into, value);
                self.tell(*ok, whole);
            }
            Statement::ReadBytes { to, size, from, length, ok } => {
                let address = self.value(from);
                let length = self.value(length).min(u64::from(*size)) as usize;
                let mut bytes = vec![0; *size as usize];
                let whole = self.read(address, &mut bytes[..length]) == length;
                self.write(to, &bytes);
                self.tell(*ok, whole);
            }
            Statement::ReadString { to, size, from, most, length } => {
                let address = self.value(from);
                let most = self.value(most).min(u64::from(*size)) as usize;
                let mut bytes = vec![0; *size as usize];
                let told = self.read_string(address, &mut bytes[..most.saturating_sub(1)]);
                self.write(to, &bytes);
                if let Some(length) = length {
                    self.frame.set(*length, told as u64);
                }
            }
            Statement::Operand { into, argument, ok } => {
                let scalar = self.body.locals.get(into.0 as usize).copied().unwrap_or(Scalar::Int);
                let value = self.host.hit.operand(*argument, scalar);
                self.frame.set(*into, value.unwrap_or(0));
                self.tell(*ok, value.is_some());
            }
            Statement::StringLength { into, of, size } => {
                let length = string(self.bytes(of, *size)).len() as u64;
                self.frame.set(*into, length);
            }
            Statement::Compare { into, left, right, size, most, strings } => {
                let most = most.as_ref().map_or(u64::MAX, |most| self.value(most));
                let most = most.min(u64::from(*size)) as usize;
                let left = self.bytes(left, *size).to_vec();
                let right = self.bytes(right, *size);
                let same = differ(&left[..most.min(left.len())], &right[..most.min(right.len())], *strings);
                self.frame.set(*into, same.into());
            }
            Statement::Find { into, haystack, haystack_size, needle, needle_size } => {
                let needle = string(self.bytes(needle, *needle_size)).to_vec();
                let haystack = string(self.bytes(haystack, *haystack_size));
                let at = match needle.len() {
                    0 => Some(0),
                    length => haystack.windows(length).position(|window| window == needle),
                };
                self.frame.set(*into, at.map_or(u64::MAX, |at| at as u64));
            }
            _ => {}
        }
    }

    /// Reads foreign memory; what is not read becomes 0. Gives how many bytes were.
    fn read(&mut self, address: u64, into: &mut [u8]) -> usize {
        // Nothing is read beyond the end of the address space, nor from its beginning again.
        let room = usize::try_from((u64::MAX - address).saturating_add(1)).unwrap_or(usize::MAX);
        let length = into.len().min(room);
        let read = match length {
            0 => 0,
            _ => self.host.hit.read(address, &mut into[..length]).min(length),
        };
        into[read..].fill(0);
        read
    }

    /// Reads a string and zeroes what is behind it. Gives its length, or -1 if not even its first byte can be read.
    fn read_string(&mut self, address: u64, into: &mut [u8]) -> i64 {
        // In steps, so that a short string in a long room does not cost the whole room.
        const STEP: usize = 256;
        let mut length = 0;
        while length < into.len() {
            let step = STEP.min(into.len() - length);
            let Some(from) = address.checked_add(length as u64) else { break };
            let part = &mut into[length..length + step];
            let read = self.read(from, part);
            if read == 0 && length == 0 {
                return -1;
            }
            let found = string(&part[..read]).len();
            part[found..].fill(0);
            length += found;
            if found < step {
                break;
            }
        }
        length as i64
    }
}

/// Whether two runs of bytes of one length differ; as strings, ahead of the first zero that both have.
fn differ(left: &[u8], right: &[u8], strings: bool) -> bool {
    for (left, right) in left.iter().zip(right) {
        if left != right {
            return true;
        }
        if strings && *left == 0 {
            return false;
        }
    }
    false
}

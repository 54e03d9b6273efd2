//! Numbers in bytes, and floats that no Rust type has.

use crate::types::Encoding;

/// The word of 8 bytes at an offset; of 4, where the value ends there.
pub(super) fn word(bytes: &[u8], offset: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(offset).ok()?..)?;
    match (bytes.first_chunk(), bytes.first_chunk()) {
        (Some(bytes), _) => Some(u64::from_le_bytes(*bytes)),
        (None, Some(bytes)) => Some(u32::from_le_bytes(*bytes).into()),
        _ => None,
    }
}

/// Some bits, up to 128, without a sign.
pub(super) fn bits(bytes: &[u8], offset: u64, first: u32, count: u32) -> Option<u128> {
    let bytes = bytes.get(usize::try_from(offset).ok()?..)?;
    let (first, count) = (first as usize, count as usize);
    let end = (first + count).div_ceil(8);
    let mut value = 0_u128;
    for (index, byte) in bytes.get(..end)?.iter().enumerate().skip(first / 8) {
        let at = index * 8;
        let byte = u128::from(*byte);
        value |= match at.checked_sub(first) {
            Some(shift) if shift < 128 => byte << shift,
            Some(_) => 0,
            None => byte >> (first - at),
        };
    }
    Some(if count < 128 { value & ((1 << count) - 1) } else { value })
}

/// An unsigned number of `size` bytes.
pub(super) fn unsigned(bytes: &[u8], size: u64) -> Option<u128> {
    let count = u32::try_from(size.checked_mul(8)?).ok().filter(|&count| count <= 128)?;
    bits(bytes, 0, 0, count)
}

/// A number of so many bits with its sign.
pub(super) fn signed(value: u128, count: u32) -> i128 {
    let shift = 128_u32.saturating_sub(count);
    if shift == 128 { 0 } else { (value << shift) as i128 >> shift }
}

/// A base type's number as text, but for characters.
pub(super) fn text(encoding: Encoding, size: u64, bytes: &[u8], is_extended: bool) -> Option<String> {
    Some(match encoding {
        Encoding::Signed | Encoding::SignedChar => {
            signed(unsigned(bytes, size)?, size as u32 * 8).to_string()
        }
        Encoding::Unsigned | Encoding::UnsignedChar | Encoding::Utf => unsigned(bytes, size)?.to_string(),
        Encoding::Bool => if unsigned(bytes, size)? == 0 { "false" } else { "true" }.to_owned(),
        Encoding::Float => float(bytes, size, is_extended)?,
        Encoding::Complex => {
            let half = size / 2;
            let real = float(bytes, half, is_extended)?;
            let imaginary = float(bytes.get(half as usize..)?, half, is_extended)?;
            format!("{real} + {imaginary}i")
        }
        Encoding::Other => {
            let bytes = bytes.get(..size.min(16) as usize)?;
            let digits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{digits}")
        }
    })
}

fn float(bytes: &[u8], size: u64, is_extended: bool) -> Option<String> {
    let bits = unsigned(bytes, size)?;
    Some(match size {
        2 => shown(parts(bits, 5, 10)),
        4 => shortest(format!("{:?}", f32::from_bits(bits as u32))),
        8 => shortest(format!("{:?}", f64::from_bits(bits as u64))),
        // x87: a sign, 15 bits of exponent, and a fraction that has its leading one.
        10 | 12 | 16 if is_extended => {
            let (fraction, exponent) = (bits as u64, (bits >> 64) as u32 & 0x7fff);
            let sign = if bits >> 79 & 1 == 1 { -1.0 } else { 1.0 };
            match exponent {
                0x7fff if fraction << 1 == 0 => shown(sign * f64::INFINITY),
                0x7fff => shown(f64::NAN),
                _ => shown(sign * scaled(fraction as f64, exponent as i32 - 16383 - 63)),
            }
        }
        16 => shown(parts(bits, 15, 112)),
        _ => return None,
    })
}

/// A float of IEEE's form, as near as a double can be.
fn parts(bits: u128, exponent_bits: u32, fraction_bits: u32) -> f64 {
    let fraction = bits & ((1 << fraction_bits) - 1);
    let exponent = (bits >> fraction_bits) as u32 & ((1 << exponent_bits) - 1);
    let sign = if bits >> (fraction_bits + exponent_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let least = 1 - bias - fraction_bits as i32;
    sign * match exponent {
        0 => scaled(fraction as f64, least),
        _ if exponent == (1 << exponent_bits) - 1 && fraction == 0 => f64::INFINITY,
        _ if exponent == (1 << exponent_bits) - 1 => f64::NAN,
        _ => scaled((fraction | 1 << fraction_bits) as f64, exponent as i32 - bias - fraction_bits as i32),
    }
}

/// `value * 2^exponent`, in two steps, as the power alone may be out of range.
fn scaled(value: f64, exponent: i32) -> f64 {
    let half = exponent / 2;
    value * 2_f64.powi(half) * 2_f64.powi(exponent - half)
}

fn shown(value: f64) -> String {
    shortest(format!("{value:?}"))
}

/// Names of what is no number are written as C and Rust both do.
fn shortest(text: String) -> String {
    match text.as_str() {
        "NaN" => "nan".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_taken_from_where_they_are() {
        let bytes = 0x0123_4567_89ab_cdef_u64.to_le_bytes();
        for (offset, first, count, expected) in [
            (0, 0, 8, Some(0xef)),
            (0, 4, 8, Some(0xde)),
            (1, 2, 40, Some(0x0001_2345_6789_abcd >> 2 & 0xff_ffff_ffff)),
            (0, 0, 64, Some(0x0123_4567_89ab_cdef)),
            (7, 7, 1, Some(0)),
            (7, 0, 9, None),
            (9, 0, 1, None),
        ] {
            assert_eq!(bits(&bytes, offset, first, count), expected, "{offset} {first} {count}");
        }
        assert_eq!(
            (signed(0x7f, 8), signed(0x80, 8), signed(1, 1), signed(u128::MAX, 128)),
            (127, -128, -1, -1)
        );
    }

    #[test]
    fn floats_of_all_sizes_are_numbers() {
        let extended = |bytes: [u8; 10]| text(Encoding::Float, 16, &[&bytes[..], &[0; 6]].concat(), true);
        for (found, expected) in [
            (text(Encoding::Float, 4, &1.5_f32.to_le_bytes(), false), "1.5"),
            (text(Encoding::Float, 4, &0.1_f32.to_le_bytes(), false), "0.1"),
            (text(Encoding::Float, 8, &(-0.0_f64).to_le_bytes(), false), "-0.0"),
            (text(Encoding::Float, 8, &f64::NAN.to_le_bytes(), false), "nan"),
            (text(Encoding::Float, 2, &0x3e00_u16.to_le_bytes(), false), "1.5"),
            (extended([0, 0, 0, 0, 0, 0, 0, 0xc0, 0xff, 0x3f]), "1.5"),
            (extended([0, 0, 0, 0, 0, 0, 0, 0x80, 0x00, 0xc0]), "-2.0"),
            (text(Encoding::Float, 16, &(0x3fff_8000_u128 << 96).to_le_bytes(), false), "1.5"),
        ] {
            assert_eq!(found.as_deref(), Some(expected));
        }
    }
}

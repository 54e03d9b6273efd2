//! Formats of `printf`.
//!
//! bpftrace formats by the streams of C++, so padding differs from C's where they do: zeros are put ahead of a sign, a precision matters to
//! doubles only, and a field's width is used up by the first piece that a value is written in.

use super::value::{BufferForm, Value, float_text, write_buffer};

/// A format, taken apart: text, conversion, text, …, text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parsed {
    /// The text ahead of each conversion, and the one behind the last. `%%` is resolved.
    pub texts: Vec<String>,
    /// The conversions, each for one argument.
    pub conversions: Vec<Conversion>,
}

/// How one argument is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// `-`: aligned to the left.
    pub is_left: bool,
    /// `+`: positive numbers with their sign.
    pub has_plus: bool,
    /// `#`: with `0x` or `0`.
    pub has_base: bool,
    /// `0`: padded with zeros.
    pub has_zeros: bool,
    /// At least so wide.
    pub width: u32,
    /// Digits behind the point, of doubles.
    pub precision: Option<u32>,
    /// Of what size integers are: `hh`, `h`, `l`, `ll`, `j`, `z`, `t`, or nothing.
    pub length: String,
    /// What it is printed as: `d`, `s`, `rx`, ….
    pub kind: String,
}

/// Fields are no wider, and numbers no longer: what a script writes is not to take all memory.
const WIDEST: u32 = 4096;

impl Parsed {
    /// Takes a format apart. What is no conversion is text.
    ///
    /// ```
    /// use trapless_script::output::printf::Parsed;
    /// let parsed = Parsed::new("%-5s is 100%% %lld");
    /// assert_eq!(parsed.texts, ["", " is 100% ", ""]);
    /// assert_eq!((parsed.conversions[0].width, parsed.conversions[1].kind.as_str()), (5, "d"));
    /// ```
    pub fn new(format: &str) -> Parsed {
        let mut parsed = Parsed::default();
        let (mut text, mut rest) = (String::new(), format);
        while let Some(at) = rest.find('%') {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            match conversion(&rest[1..]) {
                Some((conversion, behind)) => {
                    rest = behind;
                    match conversion.kind.as_str() {
                        "%" => text.push('%'),
                        _ => {
                            parsed.texts.push(std::mem::take(&mut text));
                            parsed.conversions.push(conversion);
                        }
                    }
                }
                None => {
                    text.push('%');
                    rest = &rest[1..];
                }
            }
        }
        text.push_str(rest);
        parsed.texts.push(text);
        parsed
    }

    /// The text with its arguments. Conversions without an argument are left out.
    pub(crate) fn format(&self, arguments: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, text) in self.texts.iter().enumerate() {
            out.extend(text.bytes());
            if let (Some(conversion), Some(argument)) = (self.conversions.get(index), arguments.get(index)) {
                conversion.apply(argument, &mut out);
            }
        }
        out
    }
}

/// A conversion behind its `%`, and what is behind it. Flags have an order.
fn conversion(text: &str) -> Option<(Conversion, &str)> {
    fn flag(rest: &mut &str, flag: char) -> bool {
        let behind = rest.strip_prefix(flag);
        *rest = behind.unwrap_or(rest);
        behind.is_some()
    }
    /// A number, or `*`, which says nothing.
    fn number(rest: &mut &str) -> Option<u32> {
        if flag(rest, '*') {
            return None;
        }
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let digits = &rest[..end];
        *rest = &rest[end..];
        (!digits.is_empty()).then(|| digits.parse().unwrap_or(WIDEST).min(WIDEST))
    }
    let mut rest = text;
    let is_left = flag(&mut rest, '-');
    let has_plus = flag(&mut rest, '+');
    // A blank for the sign is read and does nothing.
    flag(&mut rest, ' ');
    let has_base = flag(&mut rest, '#');
    let has_zeros = flag(&mut rest, '0');
    let width = number(&mut rest).unwrap_or(0);
    let precision = match rest.strip_prefix('.') {
        Some(behind) if behind.starts_with(|letter: char| letter == '*' || letter.is_ascii_digit()) => {
            rest = behind;
            number(&mut rest)
        }
        _ => None,
    };
    let end = rest.find(|letter| !"hlLjzt".contains(letter)).unwrap_or(rest.len());
    let (length, behind) = rest.split_at(end);
    let letter = behind.chars().next()?;
    let size = match letter {
        _ if "diouxXeEfFGaAcspn%".contains(letter) => 1,
        'g' | 'r' => {
            let two = behind.get(..2).filter(|two| ["gr", "rh", "rx"].contains(two));
            two.map_or(1, str::len)
        }
        _ => return None,
    };
    let (kind, behind) = behind.split_at(size);
    let (length, kind) = (length.to_string(), kind.to_string());
    Some((Conversion { is_left, has_plus, has_base, has_zeros, width, precision, length, kind }, behind))
}

impl Conversion {
    fn apply(&self, value: &Value, out: &mut Vec<u8>) {
        let (text, piece) = match self.text(value) {
            Some(text) => (text, None),
            None => {
                let is_number = "diouxXeEfFgGaAcp".contains(self.kind.as_str());
                if is_number {
                    out.extend(b"!{invalid integer conversion: ");
                    value.write_text(out);
                    return out.push(b'}');
                }
                (value.text(), value.first_piece())
            }
        };
        let first = piece.unwrap_or(text.len());
        // A character is a byte here.
        let padding = (self.width as usize).saturating_sub(first);
        let fill = if self.has_zeros { b'0' } else { b' ' };
        let padding = std::iter::repeat_n(fill, padding);
        match self.is_left {
            true => {
                out.extend(&text[..first]);
                out.extend(padding);
            }
            false => {
                out.extend(padding);
                out.extend(&text[..first]);
            }
        }
        out.extend(&text[first..]);
    }

    /// The text of a conversion that says how; `None` for a value as it is printed anyway, or one that cannot be converted.
    fn text(&self, value: &Value) -> Option<Vec<u8>> {
        let text = match (self.kind.as_str(), value) {
            ("d" | "i", _) => {
                let number = self.signed(value.integer()?);
                let sign = if self.has_plus && number >= 0 { "+" } else { "" };
                format!("{sign}{number}")
            }
            ("u", _) => self.unsigned(value.integer()?).to_string(),
            ("o", _) => match self.unsigned(value.integer()?) {
                0 => "0".into(),
                number => format!("{}{number:o}", if self.has_base { "0" } else { "" }),
            },
            ("x", _) => match self.unsigned(value.integer()?) {
                0 => "0".into(),
                number => format!("{}{number:x}", if self.has_base { "0x" } else { "" }),
            },
            ("X", _) => match self.unsigned(value.integer()?) {
                0 => "0".into(),
                number => format!("{}{number:X}", if self.has_base { "0X" } else { "" }),
            },
            ("p", _) => match value.integer()? {
                0 => "0".into(),
                number => format!("{number:#x}"),
            },
            ("c", _) => return Some(vec![value.integer()? as u8]),
            ("e" | "E" | "f" | "F" | "g" | "G" | "a" | "A", _) => self.float(value.float()?),
            ("r", Value::Buffer(bytes)) => return Some(buffer(bytes, BufferForm::Text)),
            ("rx", Value::Buffer(bytes)) => return Some(buffer(bytes, BufferForm::Escaped)),
            ("rh", Value::Buffer(bytes)) => return Some(buffer(bytes, BufferForm::Hex)),
            ("s", Value::Int(number)) if self.has_plus && *number >= 0 => format!("+{number}"),
            _ => return None,
        };
        Some(text.into_bytes())
    }

    fn signed(&self, number: u64) -> i64 {
        match self.length.as_str() {
            "hh" => (number as i8).into(),
            "h" => (number as i16).into(),
            "l" | "ll" | "j" | "z" | "t" => number as i64,
            _ => (number as i32).into(),
        }
    }

    fn unsigned(&self, number: u64) -> u64 {
        match self.length.as_str() {
            "hh" => (number as u8).into(),
            "h" => (number as u16).into(),
            "l" | "ll" | "j" | "z" | "t" => number,
            _ => (number as u32).into(),
        }
    }

    /// As C does it; bpftrace has no doubles.
    fn float(&self, value: f64) -> String {
        let is_upper = self.kind.starts_with(|letter: char| letter.is_ascii_uppercase());
        let text = if !value.is_finite() {
            float_text(value)
        } else {
            let precision = self.precision.unwrap_or(6) as usize;
            match self.kind.as_str() {
                "f" | "F" => format!("{value:.precision$}"),
                "e" | "E" => exponential(value, precision),
                "g" | "G" => general(value, precision, self.has_base),
                _ => hexadecimal(value, self.precision),
            }
        };
        let text = if is_upper { text.to_uppercase() } else { text };
        if self.has_plus && !text.starts_with('-') { format!("+{text}") } else { text }
    }
}

fn buffer(bytes: &[u8], form: BufferForm) -> Vec<u8> {
    let mut out = Vec::new();
    write_buffer(&mut out, bytes, form);
    out
}

/// `d.ddde±dd`.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// So many digits, with an exponent where that is shorter. Zeros at the end of a fraction are left out, unless they are asked for.
fn general(value: f64, precision: usize, keeps_zeros: bool) -> String {
    let digits = precision.max(1);
    let text = exponential(value, digits - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i64 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') && !keeps_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if power < -4 || power >= digits as i64 {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let behind = usize::try_from(digits as i64 - 1 - power).unwrap_or(0);
    trimmed(&format!("{value:.behind$}"))
}

/// `0x1.hhhp±d`.
fn hexadecimal(value: f64, precision: Option<u32>) -> String {
    let bits = value.to_bits();
    let sign = if bits >> 63 == 1 { "-" } else { "" };
    let (power, mut fraction) = ((bits >> 52 & 0x7ff) as i64, bits & ((1 << 52) - 1));
    let (mut lead, power) = match (power, fraction) {
        (0, 0) => (0_u64, 0),
        (0, _) => (0, -1022),
        (power, _) => (1, power - 1023),
    };
    let digits = match precision {
        Some(precision) if precision < 13 => {
            let dropped = 52 - 4 * precision;
            let whole = (lead << 52) | fraction;
            let (kept, rest, half) = (whole >> dropped, whole & ((1 << dropped) - 1), 1 << (dropped - 1));
            let rounded = kept + u64::from(rest > half || rest == half && kept & 1 == 1);
            (lead, fraction) = (rounded >> (4 * precision), rounded << dropped & ((1 << 52) - 1));
            format!("{fraction:013x}")[..precision as usize].to_string()
        }
        Some(precision) => format!("{:0<width$}", format!("{fraction:013x}"), width = precision as usize),
        None => format!("{fraction:013x}").trim_end_matches('0').to_string(),
    };
    let point = if digits.is_empty() { "" } else { "." };
    format!("{sign}0x{lead}{point}{digits}p{power:+}")
}

#[cfg(test)]
mod tests;

//! Encodings of instructions (Power ISA 2.07B, books I and II), those of POWER8.
//!
//! A register's number is put into an instruction by a multiplication: a field is the factor that brings it
//! there.

/// Where a register's number goes. Such as name one register for two operands have two bits.
pub(super) type Field = u32;

pub(super) const T: Field = 1 << 21;
pub(super) const A: Field = 1 << 16;
pub(super) const B: Field = 1 << 11;
pub(super) const C: Field = 1 << 6;

/// An instruction without its registers, and where these go in the order of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    word: u32,
    fields: &'static [Field],
}

impl Form {
    /// The instruction with these registers.
    pub(super) fn with(self, registers: &[u8]) -> u32 {
        debug_assert_eq!(registers.len(), self.fields.len());
        self.fields
            .iter()
            .zip(registers)
            .fold(self.word, |word, (field, register)| word | (u32::from(*register) * field))
    }

    /// The same with 16 bits as its last operand: a distance or a constant.
    pub(super) fn and(self, low: i16) -> Form {
        Form { word: self.word | u32::from(low as u16), ..self }
    }
}

const fn form(primary: u32, extended: u32, fields: &'static [Field]) -> Form {
    Form { word: primary << 26 | extended << 1, fields }
}

/// An instruction of primary opcode 31 whose target and sources are in the usual places.
const fn arithmetic(extended: u32) -> Form {
    form(31, extended, &[T, A, B])
}

/// An instruction of primary opcode 31 whose source is in the place of the target.
const fn logical(extended: u32) -> Form {
    form(31, extended, &[A, T, B])
}

/// An instruction of primary opcode 31 with one source.
const fn unary(extended: u32) -> Form {
    form(31, extended, &[A, T])
}

// Arithmetic: the target, then the sources in their order.
pub(super) const ADD: Form = arithmetic(266);
/// `t = b - a` of the manual, with its operands in the order of a subtraction.
pub(super) const SUB: Form = form(31, 40, &[T, B, A]);
/// `subfic`: a constant, to be completed by [`Form::and`], less `a`.
pub(super) const SUB_FROM: Form = form(8, 0, &[T, A]);
pub(super) const NEG: Form = form(31, 104, &[T, A]);
pub(super) const MULTIPLY: Form = arithmetic(233);
pub(super) const MULTIPLY_HIGH: Form = arithmetic(73);
pub(super) const MULTIPLY_HIGH_UNSIGNED: Form = arithmetic(9);
pub(super) const DIVIDE: Form = arithmetic(489);
pub(super) const DIVIDE_UNSIGNED: Form = arithmetic(457);
pub(super) const AND: Form = logical(28);
/// `t = a & !b`
pub(super) const AND_NOT: Form = logical(60);
pub(super) const OR: Form = logical(444);
/// `t = a | !b`
pub(super) const OR_NOT: Form = logical(412);
pub(super) const XOR: Form = logical(316);
pub(super) const NOT: Form = form(31, 124, &[A, T | B]);
pub(super) const COPY: Form = form(31, 444, &[A, T | B]);
/// Shifts: by amounts below 128, of which the upper half gives 0, or copies of the sign.
pub(super) const SHIFT_LEFT: Form = logical(27);
pub(super) const SHIFT_RIGHT: Form = logical(539);
pub(super) const SHIFT_RIGHT_SIGNED: Form = logical(794);
/// `t = a rotated to the left by the low six bits of b`: `rldcl t,a,b,0`.
pub(super) const ROTATE: Form = form(30, 8, &[A, T, B]);
/// The same of the low 32 bits: `rlwnm t,a,b,0,31`.
pub(super) const ROTATE_WORD: Form = form(23, 31, &[A, T, B]);
pub(super) const EXTEND_BYTE: Form = unary(954);
pub(super) const EXTEND_HALF: Form = unary(922);
pub(super) const EXTEND_WORD: Form = unary(986);
pub(super) const LEADING_ZEROS: Form = unary(58);
pub(super) const LEADING_ZEROS_WORD: Form = unary(26);
pub(super) const POPULATION: Form = unary(506);

// With a constant: to be completed by [`Form::and`].
pub(super) const ADD_IMMEDIATE: Form = form(14, 0, &[T, A]);
pub(super) const ADD_SHIFTED: Form = form(15, 0, &[T, A]);
pub(super) const MULTIPLY_IMMEDIATE: Form = form(7, 0, &[T, A]);
pub(super) const OR_IMMEDIATE: Form = form(24, 0, &[A, T]);
pub(super) const OR_SHIFTED: Form = form(25, 0, &[A, T]);
pub(super) const XOR_IMMEDIATE: Form = form(26, 0, &[A, T]);
pub(super) const XOR_SHIFTED: Form = form(27, 0, &[A, T]);
/// These two say in cr0 what has come of them.
pub(super) const AND_IMMEDIATE: Form = form(28, 0, &[A, T]);
pub(super) const AND_SHIFTED: Form = form(29, 0, &[A, T]);
/// `li`: the second operand is no register, but 0.
pub(super) const LOAD_IMMEDIATE: Form = form(14, 0, &[T]);
pub(super) const LOAD_SHIFTED: Form = form(15, 0, &[T]);

/// The fields of rotates of 64 bits, a shift's and a mask's border, whose highest bits stand apart.
const fn rotate(extended: u32, by: u32, border: u32) -> Form {
    let fields = (by & 31) << 11 | (by >> 5) << 1 | (border & 31) << 6 | (border >> 5) << 5;
    Form { word: 30 << 26 | extended << 2 | fields, fields: &[A, T] }
}

/// `t = a << by`, for 0 to 63: `rldicr`.
pub(super) const fn shift_left_by(by: u32) -> Form {
    rotate(1, by, 63 - by)
}

/// `t = a >> by`, for 0 to 63: `rldicl`.
pub(super) const fn shift_right_by(by: u32) -> Form {
    rotate(0, (64 - by) % 64, by)
}

/// `t = a >> by` with copies of the sign, for 0 to 63: `sradi`.
pub(super) const fn shift_right_signed_by(by: u32) -> Form {
    Form { word: 31 << 26 | 413 << 2 | (by & 31) << 11 | (by >> 5) << 1, fields: &[A, T] }
}

/// `t = a` rotated to the left, for 0 to 63.
pub(super) const fn rotate_left_by(by: u32) -> Form {
    rotate(0, by, 0)
}

/// `t` = the low bits of `a`, 1 to 64 of them.
pub(super) const fn low_bits(bits: u32) -> Form {
    rotate(0, 0, 64 - bits)
}

/// `t = a` without the low bits, for 0 to 63.
pub(super) const fn without_low_bits(bits: u32) -> Form {
    rotate(1, 0, 63 - bits)
}

/// `t = t with the upper half replaced by the lower half of a`: `rldimi t,a,32,0`.
pub(super) const INSERT_UPPER: Form = rotate(3, 32, 0);

/// The lower half of `a`, rotated to the left, of which the bits from `first` to `last` stay: `rlwinm`. Bit
/// 0 is the highest.
pub(super) const fn rotate_word(by: u32, first: u32, last: u32) -> Form {
    Form { word: 21 << 26 | by << 11 | first << 6 | last << 1, fields: &[A, T] }
}

/// The same put into `t`, whose other bits stay: `rlwimi`.
pub(super) const fn insert_word(by: u32, first: u32, last: u32) -> Form {
    Form { word: 20 << 26 | by << 11 | first << 6 | last << 1, fields: &[A, T] }
}

// Comparisons, into cr0.
const DOUBLEWORDS: u32 = 1 << 21;

/// How integers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signs {
    Signed,
    Unsigned,
}

/// How many low bits of registers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    Word,
    Doubleword,
}

impl Compared {
    fn bit(self) -> u32 {
        match self {
            Compared::Word => 0,
            Compared::Doubleword => DOUBLEWORDS,
        }
    }
}

/// `cmpd`, `cmpw`, `cmpld`, `cmplw`.
pub(super) fn compare(signs: Signs, of: Compared) -> Form {
    let extended = match signs {
        Signs::Signed => 0,
        Signs::Unsigned => 32,
    };
    let Form { word, .. } = form(31, extended, &[]);
    Form { word: word | of.bit(), fields: &[A, B] }
}

/// `cmpdi` and the like. The constant's 16 bits are extended as signs say.
pub(super) fn compare_immediate(signs: Signs, of: Compared) -> Form {
    let primary = match signs {
        Signs::Signed => 11,
        Signs::Unsigned => 10,
    };
    Form { word: primary << 26 | of.bit(), fields: &[A] }
}

/// `andi. r0,a,mask`: says in cr0 whether any of the bits is set.
pub(super) fn test(mask: u16) -> Form {
    Form { word: 28 << 26 | u32::from(mask), fields: &[T] }
}

pub(super) const COMPARE_FLOATS: Form = form(63, 0, &[A, B]);

/// A bit of cr0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bit {
    Less,
    Greater,
    Equal,
    /// Of floating-point numbers: one of them is none.
    Unordered,
}

/// What is to be seen in cr0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Set(Bit),
    Clear(Bit),
}

impl Condition {
    pub(super) fn bit(self) -> u32 {
        let (Condition::Set(bit) | Condition::Clear(bit)) = self;
        bit as u32
    }

    pub(super) fn otherwise(self) -> Condition {
        match self {
            Condition::Set(bit) => Condition::Clear(bit),
            Condition::Clear(bit) => Condition::Set(bit),
        }
    }

    /// `bc`, without its distance.
    pub(super) fn branch(self) -> u32 {
        let when = match self {
            Condition::Set(_) => 12,
            Condition::Clear(_) => 4,
        };
        16 << 26 | when << 21 | self.bit() << 16
    }
}

/// `cror to,to,other`
pub(super) fn or_bits(to: Bit, other: Bit) -> Form {
    let (to, other) = (to as u32, other as u32);
    Form { word: 19 << 26 | to << 21 | to << 16 | other << 11 | 449 << 1, fields: &[] }
}

/// `t = if the bit is set { a } else { b }`: `isel`. A first source of 0 is no register, but the number.
pub(super) fn choose(bit: u32) -> Form {
    Form { word: 31 << 26 | bit << 6 | 15 << 1, fields: &[T, A, B] }
}

// Memory. The offset is completed by [`Form::and`], and a multiple of 4 where that is said.
pub(super) const LOAD: Form = form(58, 0, &[T, A]);
pub(super) const LOAD_WORD_SIGNED: Form = Form { word: 58 << 26 | 2, fields: &[T, A] };
pub(super) const LOAD_WORD: Form = form(32, 0, &[T, A]);
pub(super) const LOAD_HALF: Form = form(40, 0, &[T, A]);
pub(super) const LOAD_HALF_SIGNED: Form = form(42, 0, &[T, A]);
pub(super) const LOAD_BYTE: Form = form(34, 0, &[T, A]);
pub(super) const LOAD_DOUBLE: Form = form(50, 0, &[T, A]);
pub(super) const LOAD_SINGLE: Form = form(48, 0, &[T, A]);
pub(super) const STORE: Form = form(62, 0, &[T, A]);
pub(super) const STORE_WORD: Form = form(36, 0, &[T, A]);
pub(super) const STORE_HALF: Form = form(44, 0, &[T, A]);
pub(super) const STORE_BYTE: Form = form(38, 0, &[T, A]);
pub(super) const STORE_DOUBLE: Form = form(54, 0, &[T, A]);
pub(super) const STORE_SINGLE: Form = form(52, 0, &[T, A]);
/// `stdu`: stores, and puts the address into the second register.
pub(super) const STORE_UPDATE: Form = Form { word: 62 << 26 | 1, fields: &[T, A] };
/// `stdux`: the same at the sum of two registers, of which the first becomes the address.
pub(super) const STORE_UPDATE_INDEXED: Form = form(31, 181, &[T, A, B]);
/// Whole registers of vectors, of those of floating-point numbers the first 32, at the sum of two registers.
pub(super) const LOAD_VECTOR: Form = form(31, 844, &[T, A, B]);
pub(super) const STORE_VECTOR: Form = form(31, 972, &[T, A, B]);
/// `ldarx t,0,b`
pub(super) const LOAD_RESERVED: Form = form(31, 84, &[T, B]);
/// `stdcx. t,0,b`
pub(super) const STORE_CONDITIONAL: Form = Form { word: 31 << 26 | 214 << 1 | 1, fields: &[T, B] };
/// `sync`: all earlier accesses before all later ones.
pub(super) const SYNC: Form = form(31, 598, &[]);
/// `lwsync`: the same but for earlier stores and later loads.
pub(super) const LIGHT_SYNC: Form = Form { word: 31 << 26 | 1 << 21 | 598 << 1, fields: &[] };

impl Form {
    /// Whether the distance is a multiple of 4 (DS-form).
    pub(super) fn is_of_words(self) -> bool {
        matches!(self.word >> 26, 58 | 62)
    }
}

// Floating-point numbers. Those of 32 bits are held as those of 64.
pub(super) const FLOAT_ADD: Form = form(63, 21, &[T, A, B]);
pub(super) const FLOAT_SUB: Form = form(63, 20, &[T, A, B]);
pub(super) const FLOAT_MULTIPLY: Form = form(63, 25, &[T, A, C]);
pub(super) const FLOAT_DIVIDE: Form = form(63, 18, &[T, A, B]);
pub(super) const FLOAT_COPY: Form = form(63, 72, &[T, B]);
pub(super) const FLOAT_NEGATE: Form = form(63, 40, &[T, B]);
pub(super) const FLOAT_ABSOLUTE: Form = form(63, 264, &[T, B]);
pub(super) const FLOAT_ROOT: Form = form(63, 22, &[T, B]);
/// `frsp`: rounds to 32 bits.
pub(super) const FLOAT_ROUND: Form = form(63, 12, &[T, B]);
/// `fctidz`: to a signed integer, towards zero; the nearest there is.
pub(super) const FLOAT_TO_SIGNED: Form = form(63, 815, &[T, B]);
pub(super) const FLOAT_FROM_SIGNED: Form = form(63, 846, &[T, B]);
pub(super) const FLOAT_FROM_UNSIGNED: Form = form(63, 974, &[T, B]);
/// `mfvsrd` and `mtvsrd`: 64 bits between registers of both kinds.
pub(super) const BITS_OF_FLOAT: Form = form(31, 51, &[A, T]);
pub(super) const FLOAT_OF_BITS: Form = form(31, 179, &[T, A]);
/// `xscvspdpn`: a number of 32 bits in the upper half, as one of 64.
pub(super) const SINGLE_TO_DOUBLE: Form = form(60, 331 << 1, &[T, B]);
/// `xscvdpspn`: the other way.
pub(super) const DOUBLE_TO_SINGLE: Form = form(60, 267 << 1, &[T, B]);

// Control.
pub(super) const READ_LINK: Form = Form { word: 31 << 26 | 8 << 16 | 339 << 1, fields: &[T] };
pub(super) const WRITE_LINK: Form = Form { word: 31 << 26 | 8 << 16 | 467 << 1, fields: &[T] };
/// `bcl 20,31,$+4`: the way to ask for one's own address that processors do not take for a call.
pub(super) const HERE: u32 = 0x429f_0005;
/// `blrl`
pub(super) const CALL_LINK: u32 = 0x4e80_0021;
/// `blr`
pub(super) const RETURN: u32 = 0x4e80_0020;
/// `b`, without its distance.
pub(super) const BRANCH: u32 = 18 << 26;

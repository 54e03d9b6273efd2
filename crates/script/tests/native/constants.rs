//! Instructions with constants in them, which back ends choose by what these are; and bodies that are
//! longer than branches reach.

use crate::machine::{ARGUMENTS, Hit};
use crate::random::agree;
use crate::scripts::{argument, binary};
use trapless_script::arbitrary::INT_BINARY;
use trapless_script::ir::*;

/// What is near the limits of what instructions hold.
fn numbers() -> Vec<i64> {
    let limits = [0, 7, 8, 12, 15, 16, 24, 31, 32, 47, 63].into_iter().flat_map(|bit| {
        let power = 1i64.wrapping_shl(bit);
        [power, power.wrapping_sub(1), !power, power.wrapping_neg(), power.wrapping_add(1)]
    });
    let others =
        [0x00ff_ff00, 0x7fff_8000, 0xffff_8000, 0x8000_0000_8000, 0x0f0f_0000, 0x1234_5678_9abc_def0];
    let mut all: Vec<i64> = limits.chain(others).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A program that tells of each of some expressions.
fn told(expressions: Vec<Expression>) -> Program {
    const AT_ONCE: usize = 16;
    let mut program = Program { fuel: 1 << 30, ..Program::default() };
    let mut body = Body::default();
    for some in expressions.chunks(AT_ONCE) {
        let message = MessageId(program.messages.len() as u32);
        program.messages.push(vec![PartKind::Word; some.len()]);
        let parts = some.iter().cloned().map(Part::Word).collect();
        body.code.push(Statement::Emit { message, parts });
    }
    program.bodies.push(body);
    program
}

fn hits() -> Vec<Hit> {
    let numbers = numbers();
    let turned = |by: usize| -> Vec<u64> {
        (0..ARGUMENTS).map(|index| numbers[(index + by) % numbers.len()] as u64).collect()
    };
    (0..numbers.len()).step_by(ARGUMENTS).map(|by| Hit::with(&turned(by))).collect()
}

#[test]
fn operations_with_constants_do_the_same_natively_as_interpreted() {
    for (at, operation) in (0..).zip(INT_BINARY) {
        let of = |number: i64| {
            let given = argument((number.rem_euclid(ARGUMENTS as i64)) as u8);
            let number = Expression::Int(number);
            [
                binary(operation, given.clone(), number.clone()),
                binary(operation, number.clone(), given.clone()),
                // Where it decides.
                Expression::Select(
                    Box::new(binary(operation, given.clone(), number)),
                    Box::new(given),
                    Box::new(Expression::Int(at)),
                ),
            ]
        };
        agree(at as u64, &told(numbers().into_iter().flat_map(of).collect()), &hits());
    }
}

#[test]
fn floating_point_numbers_near_limits_do_the_same_natively_as_interpreted() {
    let bits = |number: u8| Expression::Unary(Unary::BitsFloat, Box::new(argument(number)));
    let unary = |operation, of: Expression| Expression::Unary(operation, Box::new(of));
    let mut all = Vec::new();
    for operation in [Binary::FloatAdd, Binary::FloatSubtract, Binary::FloatMultiply, Binary::FloatDivide] {
        // A NaN has any bits.
        let result = binary(operation, bits(0), bits(1));
        all.push(binary(Binary::FloatEqual, result.clone(), result.clone()));
        all.push(unary(Unary::ToInt, result));
    }
    for operation in [Binary::FloatEqual, Binary::FloatNotEqual, Binary::FloatLess, Binary::FloatLessOrEqual]
    {
        let result = binary(operation, bits(0), bits(1));
        all.push(Expression::Select(
            Box::new(result.clone()),
            Box::new(argument(2)),
            Box::new(Expression::Int(-1)),
        ));
        let chosen = Expression::Select(Box::new(result.clone()), Box::new(bits(0)), Box::new(bits(1)));
        all.extend([result, unary(Unary::FloatBits, chosen)]);
    }
    for operation in [Unary::ToFloat, Unary::UnsignedToFloat] {
        all.push(unary(Unary::FloatBits, unary(operation, argument(0))));
    }
    all.push(unary(Unary::ToInt, bits(0)));
    all.push(unary(Unary::FloatBits, unary(Unary::FloatNegate, bits(0))));
    let special = [
        0.0,
        -0.0,
        1.5,
        -2.5,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
        9.3e18,
        -9.3e18,
        9_223_372_036_854_775_807.0,
        1.8e19,
    ];
    let words: Vec<u64> =
        special.map(f64::to_bits).into_iter().chain(numbers().into_iter().map(|word| word as u64)).collect();
    let hits: Vec<Hit> = words
        .iter()
        .flat_map(|left| words[..special.len()].iter().map(|right| Hit::with(&[*left, *right, 5])))
        .collect();
    agree(0, &told(all), &hits);
}

#[test]
fn a_long_body_does_the_same_natively_as_interpreted() {
    let mut code = Vec::new();
    for number in 0..3000 {
        let bits = binary(Binary::ShiftRight, argument(0), Expression::Int(number % 64));
        let condition = binary(Binary::And, bits, Expression::Int(1));
        let sum = binary(
            Binary::Add,
            Expression::Local(LocalId(0)),
            argument((number % 7 + 1) as u8 % ARGUMENTS as u8),
        );
        let set = |value| Statement::Set(LocalId(0), value);
        let other =
            binary(Binary::Xor, Expression::Local(LocalId(0)), Expression::Int(number << 40 | 0x1234_5678));
        code.push(Statement::If(condition, vec![set(sum)], vec![set(other)]));
    }
    let part = Part::Word(Expression::Local(LocalId(0)));
    code.push(Statement::Emit { message: MessageId(0), parts: vec![part] });
    let body = Body { locals: vec![Scalar::Int], scratch: 0, code };
    let program = Program {
        messages: vec![vec![PartKind::Word]],
        bodies: vec![body],
        fuel: 1 << 30,
        ..Program::default()
    };
    let hits: Vec<Hit> =
        [0, 1, u64::MAX, 0x5555_1234_aaaa_4321].map(|word| Hit::with(&[word, 3, 5, 7])).into();
    agree(0, &program, &hits);
}

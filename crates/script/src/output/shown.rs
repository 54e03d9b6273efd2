//! Values by themselves, for those who do not print them as bpftrace does.

use super::decode::Decoder;
use super::resolve::Resolver;
use super::value::Value;
use crate::shape::Shape;

/// What stands behind strings that were cut.
const TRAILER: &str = "..";

/// The value of bytes. Those that are missing count as 0.
///
/// ```
/// use trapless_script::output::Value;
/// use trapless_script::shape::Shape;
/// # use trapless_script::output::{Resolver, Symbol, Zone, Ran, shown};
/// # struct Nobody;
/// # impl Resolver for Nobody {
/// #     fn stack(&mut self, _: u64) -> Vec<u64> { Vec::new() }
/// #     fn symbols(&mut self, _: u32, _: u64) -> Vec<Symbol> { Vec::new() }
/// #     fn build_id(&mut self, _: u32, _: u64) -> Option<(Vec<u8>, u64)> { None }
/// #     fn probe(&mut self, _: u64) -> String { String::new() }
/// #     fn function(&mut self, _: u64) -> String { String::new() }
/// #     fn user(&mut self, _: u64) -> Option<String> { None }
/// #     fn cgroup(&mut self, _: u64) -> Option<String> { None }
/// #     fn now(&mut self) -> i64 { 0 }
/// #     fn clock_start(&mut self, _: trapless_script::shape::TimeBase) -> i64 { 0 }
/// #     fn zone(&mut self, _: i64) -> Zone { Zone::default() }
/// #     fn file(&mut self, _: &[u8], _: usize) -> std::io::Result<Vec<u8>> { Ok(Vec::new()) }
/// #     fn command(&mut self, _: &[u8]) -> std::io::Result<Ran> { Ok(Ran::default()) }
/// # }
/// let value = shown(&Shape::Int { size: 2, signed: true }, &[0xfe, 0xff], &mut Nobody);
/// assert_eq!(value, Value::Int(-2));
/// ```
pub fn shown(shape: &Shape, bytes: &[u8], resolver: &mut dyn Resolver) -> Value {
    Decoder { resolver, trailer: TRAILER, divisor: 1 }.value(shape, bytes)
}

/// The frames of a call stack, the innermost first, each as a line; nothing of other values.
pub fn frames(shape: &Shape, bytes: &[u8], resolver: &mut dyn Resolver) -> Option<Vec<String>> {
    let Shape::Stack { .. } = shape else { return None };
    let text = shown(shape, bytes, resolver).text();
    let text = String::from_utf8_lossy(&text);
    Some(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// A value as frames of a line for flame graphs: the functions of a call stack, the outermost first; any other value as one frame.
pub fn folded(shape: &Shape, bytes: &[u8], resolver: &mut dyn Resolver) -> Vec<Vec<u8>> {
    let mut decoder = Decoder { resolver, trailer: TRAILER, divisor: 1 };
    match shape {
        Shape::Stack { frames, .. } => decoder.folded(bytes, *frames),
        other => vec![super::folded::clean(&decoder.value(other, bytes).text())],
    }
}

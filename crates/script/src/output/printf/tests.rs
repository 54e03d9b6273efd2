//! What becomes of each conversion. The expected texts of integers, strings and buffers are what bpftrace 0.27.1 printed.

use super::*;

fn format(format: &str, arguments: &[Value]) -> String {
    String::from_utf8(Parsed::new(format).format(arguments)).expect("text")
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn integers() {
    const LONG: i64 = 0x12_3456_78ab_cdef;
    for (conversion, number, expected) in [
        ("%d", 0x12_3456_7890, "878082192"),
        ("%ld", 0x12_3456_7890, "78187493520"),
        ("%d", -1, "-1"),
        ("%i", -1, "-1"),
        ("%5d", 42, "   42"),
        ("%-5d|", 42, "42   |"),
        ("%05d", -42, "00-42"),
        ("%-05d", 42, "42000"),
        ("%+d", 42, "+42"),
        ("%+d", 0, "+0"),
        ("% d", 42, "42"),
        ("%5.3d", 5, "    5"),
        ("%x", -1, "ffffffff"),
        ("%hhx", LONG, "ef"),
        ("%hx", LONG, "cdef"),
        ("%x", LONG, "78abcdef"),
        ("%jx", LONG, "12345678abcdef"),
        ("%zu", -1, "18446744073709551615"),
        ("%hhd", 200, "-56"),
        ("%hd", 40_000, "-25536"),
        ("%u", -1, "4294967295"),
        ("%lu", -1, "18446744073709551615"),
        ("%llu", -1, "18446744073709551615"),
        ("%+u", 5, "5"),
        ("%#x", 255, "0xff"),
        ("%#x", 0, "0"),
        ("%#X", 255, "0XFF"),
        ("%X", 171, "AB"),
        ("%o", 8, "10"),
        ("%#o", 8, "010"),
        ("%p", 4096, "0x1000"),
        ("%p", 0, "0"),
        ("%10p", 4096, "    0x1000"),
        ("%c", 65, "A"),
        ("%3c", 65, "  A"),
        ("%*d", 7, "7"),
        ("%s", 5, "5"),
        ("%+s", 5, "+5"),
        ("%r", 5, "5"),
    ] {
        assert_eq!(format(conversion, &[Value::Int(number)]), expected, "{conversion} {number}");
    }
}

#[test]
fn what_is_no_integer() {
    for (conversion, value, expected) in [
        ("%d", Value::Bool(true), "1"),
        ("%s", Value::Bool(true), "true"),
        ("%5s", Value::Bool(true), " true"),
        ("%d", Value::Named("ONE".into(), 1), "1"),
        ("%-5s|", Value::Named("ONE".into(), 1), "ONE  |"),
        ("%x", Value::Named("0x10".into(), 16), "10"),
        ("%5s", text("ba"), "   ba"),
        ("%-5s|", text("ba"), "ba   |"),
        ("%05s", text("ba"), "000ba"),
        ("%.1s", text("ba"), "ba"),
        ("%d", text("ba"), "!{invalid integer conversion: ba}"),
        ("%r", Value::Buffer(vec![9, 65, 255]), "\\x09A\\xff"),
        ("%5r", Value::Buffer(vec![65]), "    A"),
        ("%rx", Value::Buffer(vec![9, 65]), "\\x09\\x41"),
        ("%rh", Value::Buffer(vec![72, 101, 8]), "48 65 08"),
        ("%s", Value::Buffer(vec![0, 65]), "\\x00A"),
        ("%rh", text("ba"), "ba"),
        ("%5s", Value::Tuple(vec![Value::Int(1), text("a")]), "    (1, a)"),
        ("%-5s", Value::Array(vec![Value::Int(1), Value::Int(2)]), "[    1,2]"),
        ("%4s", Value::Record(vec![("a".into(), Value::Int(1))]), "  { .a = 1 }"),
        ("%s", Value::Record(vec![]), "{}"),
    ] {
        assert_eq!(format(conversion, std::slice::from_ref(&value)), expected, "{conversion} {value:?}");
    }
}

#[test]
fn doubles() {
    for (conversion, value, expected) in [
        ("%f", 1.5, "1.500000"),
        ("%.2f", 2.345, "2.35"),
        ("%.0f", 2.5, "2"),
        ("%8.3f", -1.0, "  -1.000"),
        ("%+f", 1.0, "+1.000000"),
        ("%e", 12345.678, "1.234568e+04"),
        ("%.1e", 0.00012, "1.2e-04"),
        ("%E", 1e-300, "1.000000E-300"),
        ("%.0e", 0.0, "0e+00"),
        ("%g", 100_000.0, "100000"),
        ("%g", 1e6, "1e+06"),
        ("%g", 0.0001, "0.0001"),
        ("%g", 0.00001, "1e-05"),
        ("%.3g", 2.3456, "2.35"),
        ("%g", 0.0, "0"),
        ("%#g", 1.0, "1.00000"),
        ("%.10g", 0.1, "0.1"),
        ("%G", 1e100, "1E+100"),
        ("%a", 1.0, "0x1p+0"),
        ("%a", 0.1, "0x1.999999999999ap-4"),
        ("%.2a", 0.1, "0x1.9ap-4"),
        ("%.0a", 1.75, "0x2p+0"),
        ("%A", -2.5, "-0X1.4P+1"),
        ("%a", 0.0, "0x0p+0"),
        ("%f", f64::INFINITY, "inf"),
        ("%F", f64::NEG_INFINITY, "-INF"),
        ("%f", f64::NAN, "nan"),
        ("%d", -2.7, "-2"),
        ("%s", 0.1, "0.1"),
        ("%s", 1.0, "1.0"),
        ("%s", 1e300, "1e300"),
    ] {
        assert_eq!(format(conversion, &[Value::Float(value)]), expected, "{conversion} {value}");
    }
    assert_eq!(format("%.1f", &[Value::Int(-3)]), "-3.0");
}

#[test]
fn what_is_no_conversion_is_text() {
    let one = [Value::Int(1)];
    for (text, expected) in [
        ("100%", "100%"),
        ("%%d %5%", "%d %"),
        ("%y%d", "%y1"),
        ("%-", "%-"),
        ("%0-5d", "%0-5d"),
        ("%.d%d", "%.d1"),
        ("ä%dö", "ä1ö"),
        ("%ä", "%ä"),
        ("%r%", "1%"),
    ] {
        assert_eq!(format(text, &one), expected, "{text}");
    }
    assert_eq!(format("%d %d|", &one), "1 |");
    assert_eq!(format("%99999999999d", &one).len(), WIDEST as usize);
}

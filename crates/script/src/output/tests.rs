//! What is printed, to the letter. What bpftrace can print too is as version 0.27.1 printed it.

use super::*;
use crate::interp::maps::Tables;
use crate::interp::{Added, add};
use crate::ir::{Aggregation, Map, MapSharing, MapValue, Program, SeriesOf};
use crate::message::{ErrorKind, KeyPrint, Location, MapPrint, Show, ValuePrint};
use crate::shape::{Bits, EnumNames, Field, Fields, Shape, StackMode, TimeBase};
use std::sync::Arc;

/// Knows a few names. It is 2023-11-14 22:13:20.123456789 UTC, two hours east of it.
struct Known;

const NOW: i64 = 1_700_000_000_123_456_789;

impl Resolver for Known {
    fn stack(&mut self, number: u64) -> Vec<u64> {
        if number == 1 { vec![0x1010, 0x2020, 0x9999] } else { Vec::new() }
    }

    fn symbols(&mut self, pid: u32, address: u64) -> Vec<Symbol> {
        let symbol = |name: &str, offset| Symbol { name: name.into(), offset, ..Symbol::default() };
        match (pid, address) {
            (7, 0x1010) => vec![
                Symbol { is_inlined: true, line: Some("a.h:3".into()), ..symbol("inner", 0) },
                Symbol { module: Some("/bin/app".into()), line: Some("a.c:9".into()), ..symbol("outer", 16) },
            ],
            (7, 0x2020) => vec![symbol("main", 32)],
            _ => Vec::new(),
        }
    }

    fn build_id(&mut self, _: u32, address: u64) -> Option<(Vec<u8>, u64)> {
        (address < 0x9000).then(|| (vec![0xab, 0x01], address & 0xff))
    }

    fn probe(&mut self, site: u64) -> String {
        format!("uprobe:./app:f{site}")
    }

    fn function(&mut self, site: u64) -> String {
        format!("f{site}")
    }

    fn user(&mut self, id: u64) -> Option<String> {
        (id == 0).then(|| "root".into())
    }

    fn cgroup(&mut self, id: u64) -> Option<String> {
        (id == 1).then(|| "/system.slice".into())
    }

    fn now(&mut self) -> i64 {
        NOW
    }

    fn clock_start(&mut self, clock: TimeBase) -> i64 {
        if clock == TimeBase::Boot { 1_000_000_000_000_000_000 } else { 0 }
    }

    fn zone(&mut self, _: i64) -> Zone {
        Zone { offset: 7200, name: "EET".into() }
    }

    fn file(&mut self, path: &[u8], most: usize) -> io::Result<Vec<u8>> {
        match path {
            b"/there" => Ok(b"some text\n"[..most.min(10)].to_vec()),
            _ => Err(io::Error::from_raw_os_error(2)),
        }
    }

    fn command(&mut self, command: &[u8]) -> io::Result<Ran> {
        match command {
            b"echo a" => Ok(Ran { printed: b"a\n".to_vec(), code: Some(0) }),
            b"exit 3" => Ok(Ran { printed: Vec::new(), code: Some(3) }),
            b"kill $$" => Ok(Ran::default()),
            _ => Err(io::Error::from_raw_os_error(13)),
        }
    }
}

/// What one message prints, on both streams, and what it asks for.
fn printed_with(
    messages: Messages,
    options: Options,
    parts: &[&[u8]],
    tables: &mut Tables,
) -> (String, String, Effect) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut printer = Printer::new(messages, options);
    let mut streams = Streams { out: &mut out, err: &mut err };
    let effect = printer.message(MessageId(0), parts, tables, &mut Known, &mut streams).expect("written");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(out), text(err), effect)
}

fn json() -> Options {
    Options { layout: Layout::Json, ..Options::default() }
}

/// What one message without maps prints as text, and as JSON.
fn printed(message: Message, parts: &[&[u8]]) -> ((String, String), (String, String)) {
    let of = |options| {
        let messages = Messages { messages: vec![message.clone()], maps: Vec::new() };
        let (out, err, effect) =
            printed_with(messages, options, parts, &mut Tables::new(&Program::default()));
        assert_eq!(effect, Effect::None);
        (out, err)
    };
    (of(Options::default()), of(json()))
}

fn word(value: i64) -> [u8; 8] {
    value.to_le_bytes()
}

fn int(size: u8, signed: bool) -> Shape {
    Shape::Int { size, signed }
}

/// Fields beside each other, without gaps.
fn fields(shapes: &[(&str, Shape)]) -> Arc<Fields> {
    let mut size = 0;
    let fields = shapes
        .iter()
        .map(|(name, shape)| {
            let offset = size;
            size += shape.size();
            Field { name: (*name).into(), offset, shape: shape.clone(), bits: None }
        })
        .collect();
    Arc::new(Fields { fields, size })
}

fn tuple(shapes: &[Shape]) -> Shape {
    let shapes: Vec<(&str, Shape)> = shapes.iter().map(|shape| ("", shape.clone())).collect();
    Shape::Tuple(fields(&shapes))
}

fn colours() -> Shape {
    let names = EnumNames { name: "colour".into(), values: vec![(1, "RED".into()), (-1, "NONE".into())] };
    Shape::Enum { size: 4, signed: true, names: Arc::new(names) }
}

fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn values_as_text_and_as_json() {
    let symbol = |address: i64| bytes(&[&word(address), &7_u32.to_le_bytes(), &[0; 4]]);
    let stack = |mode, frames| Shape::Stack { mode, frames };
    let time = |format: &str, clock| Shape::Time { format: format.into(), clock };
    let bits = |first, count, shape| {
        let field = Field { name: "x".into(), offset: 0, shape, bits: Some(Bits { first, count }) };
        Shape::Record(Arc::new(Fields { fields: vec![field], size: 4 }))
    };
    let text = |room| Shape::Text { room };
    for (shape, value, expected, expected_json) in [
        (Shape::None, vec![], "null", "null"),
        (int(8, true), word(-5).to_vec(), "-5", "-5"),
        (int(8, false), word(-1).to_vec(), "18446744073709551615", "\"18446744073709551615\""),
        (int(8, true), word(1 << 53).to_vec(), "9007199254740992", "9007199254740992"),
        (int(8, true), word((1 << 53) + 1).to_vec(), "9007199254740993", "\"9007199254740993\""),
        (int(8, true), word(i64::MAX).to_vec(), "9223372036854775807", "\"9223372036854775807\""),
        (int(8, true), word(i64::MIN).to_vec(), "-9223372036854775808", "-9223372036854775808"),
        (int(1, true), word(0x1ff).to_vec(), "-1", "-1"),
        (int(1, false), word(-1).to_vec(), "255", "255"),
        (int(2, true), word(0x8000).to_vec(), "-32768", "-32768"),
        (int(4, true), vec![1, 0, 0, 0], "1", "1"),
        // Fewer bytes than there should be.
        (int(4, true), vec![1], "1", "1"),
        (int(8, true), vec![], "0", "0"),
        (Shape::Bool, word(1).to_vec(), "true", "true"),
        (Shape::Bool, word(0).to_vec(), "false", "false"),
        (Shape::Float(8), 0.1_f64.to_bits().to_le_bytes().to_vec(), "0.1", "0.1"),
        (Shape::Float(8), 2_f64.to_bits().to_le_bytes().to_vec(), "2.0", "2.0"),
        (Shape::Float(8), f64::NAN.to_bits().to_le_bytes().to_vec(), "nan", "null"),
        (Shape::Float(4), 1.5_f32.to_bits().to_le_bytes().to_vec(), "1.5", "1.5"),
        (text(4), b"ab\0c".to_vec(), "ab", "\"ab\""),
        (text(4), b"abc".to_vec(), "abc", "\"abc\""),
        (text(4), b"abcd".to_vec(), "abcd..", "\"abcd..\""),
        (text(9), b"a\"\\\n\t\r\x01".to_vec(), "a\"\\\n\t\r\x01", r#""a\"\\\n\t\r\u0001""#),
        (text(4), "é".as_bytes().to_vec(), "é", "\"é\""),
        (Shape::Buffer { room: 4 }, b"\x03\0\0\0a\0\xffz".to_vec(), "a\\x00\\xff", "[97,0,-1]"),
        (Shape::Buffer { room: 1 }, b"\xff\0\0\0ab".to_vec(), "a", "[97]"),
        (Shape::Pointer(8), word(0x32).to_vec(), "0x32", "50"),
        (Shape::Pointer(8), word(0).to_vec(), "0x0", "0"),
        (Shape::Pointer(4), vec![0x32, 0, 0, 0x80], "0x80000032", "2147483698"),
        (colours(), word(1).to_vec(), "RED", "1"),
        (colours(), word(-1).to_vec(), "NONE", "4294967295"),
        (colours(), word(7).to_vec(), "7", "7"),
        (tuple(&[int(1, true), text(3)]), b"\x01ab\0".to_vec(), "(1, ab)", "[1,\"ab\"]"),
        (tuple(&[int(1, true)]), vec![1], "(1)", "[1]"),
        (
            Shape::Record(fields(&[("a", int(1, true)), ("b", tuple(&[int(1, true), Shape::Bool]))])),
            vec![1, 2, 1],
            "{ .a = 1, .b = (2, true) }",
            "{\"a\": 1, \"b\": [2,true]}",
        ),
        (Shape::Record(fields(&[])), vec![], "{}", "{}"),
        (bits(3, 4, int(4, false)), vec![0b0101_1111, 0, 0, 0], "{ .x = 11 }", "{\"x\": 11}"),
        (bits(0, 3, int(4, true)), vec![0b0000_0111, 0, 0, 0], "{ .x = -1 }", "{\"x\": -1}"),
        (
            Shape::Array { count: 2, of: Arc::new(Shape::Array { count: 2, of: Arc::new(int(1, true)) }) },
            vec![5, 6, 7, 8],
            "[[5,6],[7,8]]",
            "[[5,6],[7,8]]",
        ),
        // No more elements than there are bytes.
        (Shape::Array { count: u32::MAX, of: Arc::new(int(4, true)) }, vec![5, 0, 0, 0, 6], "[5,6]", "[5,6]"),
        (
            stack(StackMode::Bpftrace, 127),
            symbol(1),
            "\n        [inlined] inner@a.h:3\n        outer+16@a.c:9\n        main+32\n        0x9999\n",
            r#""\n        [inlined] inner@a.h:3\n        outer+16@a.c:9\n        main+32\n        0x9999\n""#,
        ),
        (
            stack(StackMode::Perf, 127),
            symbol(1),
            "\n\t1010 inner (inlined)\n\t1010 outer+16 (/bin/app)\n\t2020 main+32 ([unknown])\n\t9999 0x9999 ([unknown])\n",
            r#""\n\t1010 inner (inlined)\n\t1010 outer+16 (/bin/app)\n\t2020 main+32 ([unknown])\n\t9999 0x9999 ([unknown])\n""#,
        ),
        (stack(StackMode::Raw, 2), symbol(1), "\n1010\n2020\n", r#""\n1010\n2020\n""#),
        (
            stack(StackMode::BuildId, 127),
            symbol(1),
            "\nab01 0x10\nab01 0x20\n9999\n",
            r#""\nab01 0x10\nab01 0x20\n9999\n""#,
        ),
        (stack(StackMode::Bpftrace, 127), symbol(0), "\n", r#""\n""#),
        (Shape::Symbol, symbol(0x1010), "outer", "\"outer\""),
        (Shape::Symbol, symbol(1), "0x1", "\"0x1\""),
        (Shape::Symbol, symbol(0), "0", "\"0\""),
        (time("%H:%M:%S.%f", TimeBase::Real), word(NOW).to_vec(), "00:13:20.123456", "\"00:13:20.123456\""),
        (time("%l|%k", TimeBase::Tai), word(NOW).to_vec(), "123|123456789", "\"123|123456789\""),
        (time("%s", TimeBase::Boot), word(5_000_000_000).to_vec(), "1000000005", "\"1000000005\""),
        (time("%s", TimeBase::Real), word(999_999_999).to_vec(), "(?)", "\"(?)\""),
        (
            Shape::Inet,
            bytes(&[&2_u32.to_le_bytes(), &[127, 0, 0, 1], &[0; 12]]),
            "127.0.0.1",
            "\"127.0.0.1\"",
        ),
        (Shape::Inet, bytes(&[&10_u32.to_le_bytes(), &[0; 15], &[1]]), "::1", "\"::1\""),
        (
            Shape::Inet,
            bytes(&[&10_u32.to_le_bytes(), &[0; 10], &[255, 255, 1, 2, 3, 4]]),
            "::ffff:1.2.3.4",
            "\"::ffff:1.2.3.4\"",
        ),
        (Shape::Inet, bytes(&[&10_u32.to_le_bytes(), &[0; 12], &[1, 2, 3, 4]]), "::1.2.3.4", "\"::1.2.3.4\""),
        (Shape::Inet, vec![9; 20], "", "\"\""),
        (Shape::Mac, vec![5, 4, 3, 2, 1, 0xab], "05:04:03:02:01:AB", "\"05:04:03:02:01:AB\""),
        (Shape::Probe, word(3).to_vec(), "uprobe:./app:f3", "\"uprobe:./app:f3\""),
        (Shape::Function, word(3).to_vec(), "f3", "\"f3\""),
        (Shape::User, word(0).to_vec(), "root", "\"root\""),
        (Shape::User, word(99).to_vec(), "", "\"\""),
        (Shape::Error, word(22).to_vec(), "Invalid argument", "\"Invalid argument\""),
        (Shape::Cgroup, word(1).to_vec(), "/system.slice", "\"/system.slice\""),
    ] {
        let ((out, _), (json_out, _)) = printed(Message::PrintValue(shape.clone()), &[&value]);
        assert_eq!(out, format!("{expected}\n"), "{shape:?}");
        assert_eq!(json_out, format!("{{\"type\": \"value\", \"data\": {expected_json}}}\n"), "{shape:?}");
    }
}

#[test]
fn shapes_of_bytes_that_are_missing_are_zeros() {
    let shape = tuple(&[int(8, true), Shape::Text { room: 4 }, Shape::Inet, Shape::Symbol, colours()]);
    let ((out, _), _) = printed(Message::PrintValue(shape), &[]);
    assert_eq!(out, "(0, , , 0, 0)\n");
    // Deeper than the checker lets them be.
    let deep = (0..1000).fold(Shape::Bool, |inside, _| tuple(&[inside]));
    let ((out, _), _) = printed(Message::PrintValue(deep), &[&[1]]);
    assert!(out.contains("null"), "{out}");
}

fn format(text: &str, arguments: Vec<Shape>) -> Format {
    Format { format: text.into(), arguments }
}

#[test]
fn printf_and_those_that_go_elsewhere() {
    let words: [&[u8]; 2] = [&word(-1), b"abc"];
    let shapes = vec![int(8, true), Shape::Text { room: 8 }];
    let ((out, err), (json_out, _)) =
        printed(Message::Print(Channel::Out, format("%d %5s\n", shapes.clone())), &words);
    assert_eq!((out.as_str(), err.as_str()), ("-1   abc\n", ""));
    assert_eq!(json_out, "{\"type\": \"printf\", \"data\": \"-1   abc\\n\"}\n");

    let call =
        Location { file: "stdin".into(), line: 2, column: 3, text: "\tm();".into(), end: 6, from: None };
    let at = Location {
        file: "stdin".into(),
        line: 1,
        column: 15,
        text: "macro m() {".into(),
        end: 38,
        from: Some(Arc::new(call)),
    };
    for (channel, word, kind) in
        [(Channel::Error(at.clone()), "ERROR", "errorf"), (Channel::Warning(at.clone()), "WARNING", "warnf")]
    {
        let ((out, err), (json_out, json_err)) =
            printed(Message::Print(channel, format("bad %d %s\n", shapes.clone())), &words);
        let expected = format!(
            "stdin:1:15-38: {word}: bad -1 abc\n\
             stdin:2:3-6: {word}: expanded from\n    m();\n     ~~~\n"
        );
        assert_eq!((out.as_str(), err), ("", expected));
        let expected = format!(
            "{{\"type\": \"{kind}\", \"msg\": \"bad -1 abc\\n\", \"filename\": \"stdin\", \"line\": 1, \"col\": 15}}\n"
        );
        assert_eq!((json_out, json_err.as_str()), (expected, ""));
    }
    let messages = Messages {
        messages: vec![Message::Print(Channel::Warning(at), format("x", vec![]))],
        maps: Vec::new(),
    };
    let quiet = Options { has_warnings: false, ..Options::default() };
    let (out, err, _) = printed_with(messages, quiet, &[], &mut Tables::new(&Program::default()));
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
}

#[test]
fn files_commands_words_and_the_time() {
    let one = |text: &str| format(text, vec![Shape::Text { room: 16 }]);
    let cat = |path: &'static [u8]| printed(Message::Cat(one("/%s")), &[path]);
    let ((out, _), (json_out, _)) = cat(b"there");
    assert_eq!(out, "some text\n");
    assert_eq!(json_out, "{\"type\": \"cat\", \"data\": \"some text\\n\"}\n");
    let ((out, err), _) = cat(b"nope");
    let expected = "ERROR: failed to open file '/nope' (No such file or directory)\n";
    assert_eq!((out.as_str(), err.as_str()), ("", expected));

    let system = |command: &str, is_unsafe, layout| {
        let messages =
            Messages { messages: vec![Message::System(format(command, vec![]))], maps: Vec::new() };
        let options = Options { is_unsafe, layout, ..Options::default() };
        let (out, err, _) = printed_with(messages, options, &[], &mut Tables::new(&Program::default()));
        (out, err)
    };
    for (command, is_unsafe, layout, out, err) in [
        ("echo a", true, Layout::Text, "a\n\n", ""),
        ("echo a", true, Layout::Json, "{\"type\": \"syscall\", \"data\": \"a\\n\"}\n", ""),
        ("exit 3", true, Layout::Text, "", "ERROR: command exited with code 3\n"),
        ("kill $$", true, Layout::Text, "", "ERROR: child process did not exit normally\n"),
        ("nope", true, Layout::Text, "", "ERROR: the command could not be run (Permission denied)\n"),
        (
            "echo a",
            false,
            Layout::Text,
            "",
            "ERROR: syscall() not allowed in safe mode. Use '--unsafe'. (Operation not permitted)\n",
        ),
    ] {
        assert_eq!(system(command, is_unsafe, layout), (out.into(), err.into()), "{command}");
    }

    let join = Message::Join { between: ", ".into() };
    let count = word(3);
    let ((out, _), (json_out, _)) = printed(join.clone(), &[&count, b"a", b"b\0x", b"c", b"d"]);
    assert_eq!(out, "a, b, c\n");
    assert_eq!(json_out, "{\"type\": \"join\", \"data\": \"a, b, c\"}\n");
    let ((out, _), _) = printed(join, &[&word(-1), b"a", b"", b"c"]);
    assert_eq!(out, "a\n");

    let ((out, _), (json_out, _)) = printed(Message::Time { format: "%H:%M:%S\n".into() }, &[]);
    assert_eq!(out, "00:13:20\n");
    assert_eq!(json_out, "{\"type\": \"time\", \"data\": \"00:13:20\\n\"}\n");
}

#[test]
fn what_went_wrong() {
    let at = Location {
        file: "stdin".into(),
        line: 1,
        column: 9,
        text: "begin { @a[2]=1; }".into(),
        end: 16,
        from: None,
    };
    let source = "begin { @a[2]=1; }\n        ~~~~~~~\n";
    for (kind, text, expected_json) in [
        (
            ErrorKind::MapFull(MapId(0)),
            "Map full; can't update element. Try increasing max_map_keys config or manually setting the max entries in a map declaration e.g. `let @a = hash(5000)`\nAdditional Info - helper: map_update_elem, retcode: -7",
            r#""helper_error", "msg": "Argument list too long", "helper": "map_update_elem", "retcode": -7"#,
        ),
        (
            ErrorKind::NotThere(MapId(0)),
            "Can't delete map element because it does not exist.\nAdditional Info - helper: map_delete_elem, retcode: -2",
            r#""helper_error", "msg": "No such file or directory", "helper": "map_delete_elem", "retcode": -2"#,
        ),
        (
            ErrorKind::Missing(MapId(0)),
            "Can't lookup map element because it does not exist.\nAdditional Info - helper: map_lookup_elem, retcode: 0",
            r#""helper_error", "msg": "Success", "helper": "map_lookup_elem", "retcode": 0"#,
        ),
        (
            ErrorKind::Unreadable,
            "Bad address\nAdditional Info - helper: probe_read_user, retcode: -14",
            r#""helper_error", "msg": "Bad address", "helper": "probe_read_user", "retcode": -14"#,
        ),
        (
            ErrorKind::UnreadableText,
            "Bad address\nAdditional Info - helper: probe_read_user_str, retcode: -14",
            r#""helper_error", "msg": "Bad address", "helper": "probe_read_user_str", "retcode": -14"#,
        ),
        (
            ErrorKind::DivideByZero,
            "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result.",
            r#""runtime_error", "msg": "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result.""#,
        ),
        (
            ErrorKind::OutOfBounds,
            "Array access out of bounds. This can lead to unexpected results.",
            r#""runtime_error", "msg": "Array access out of bounds. This can lead to unexpected results.""#,
        ),
    ] {
        let ((out, err), (json_out, _)) = printed(Message::Error(kind, at.clone()), &[&word(0)]);
        assert_eq!((out.as_str(), err), ("", format!("stdin:1:9-16: WARNING: {text}\n{source}")));
        let expected =
            format!("{{\"type\": {expected_json}, \"filename\": \"stdin\", \"line\": 1, \"col\": 9}}\n");
        assert_eq!(json_out, expected);
    }
    let several = Location { text: "begin {\n  $x }".into(), ..at };
    let ((_, err), _) = printed(Message::Error(ErrorKind::DivideByZero, several), &[]);
    assert!(err.starts_with("stdin:1-2: WARNING: Divide"), "{err}");
    assert!(err.ends_with("result.\nbegin {\n  $x }\n"), "{err}");
}

#[test]
fn effects_are_told() {
    let effect = |message| {
        let messages = Messages { messages: vec![message], maps: Vec::new() };
        let parts: [&[u8]; 1] = [&word(69)];
        printed_with(messages, Options::default(), &parts, &mut Tables::new(&Program::default())).2
    };
    assert_eq!(effect(Message::Exit), Effect::Exit(69));
    assert_eq!(effect(Message::Result), Effect::Result(69));
    let mut printer = Printer::new(Messages::default(), Options::default());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut streams = Streams { out: &mut out, err: &mut err };
    let mut tables = Tables::new(&Program::default());
    let unknown = printer.message(MessageId(5), &[], &mut tables, &mut Known, &mut streams);
    assert_eq!(unknown.expect("nothing to write"), Effect::None);
}

/// A map with its contents, printed.
struct Shown {
    print: MapPrint,
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Shown {
    fn new(key: Option<Shape>, value: ValuePrint) -> Shown {
        let key = key.map(|shape| KeyPrint { is_list: matches!(shape, Shape::Tuple(_)), shape });
        let print = MapPrint { name: "@m".into(), key, value, at_exit: true };
        Shown { print, entries: Vec::new() }
    }

    fn plain(key: Option<Shape>, value: Shape) -> Shown {
        Shown::new(key, ValuePrint::Plain(value))
    }

    fn of(key: Option<Shape>, of: Aggregation, show: Show, signed: bool) -> Shown {
        Shown::new(key, ValuePrint::Aggregate { of, show, signed })
    }

    fn with(mut self, key: &[u8], value: &[u8]) -> Shown {
        self.entries.push((key.to_vec(), value.to_vec()));
        self
    }

    /// The same with values added for a key.
    fn adding(self, key: &[u8], values: &[i64]) -> Shown {
        let times: Vec<(u64, i64)> = values.iter().map(|value| (0, *value)).collect();
        self.adding_at(key, &times)
    }

    fn adding_at(mut self, key: &[u8], values: &[(u64, i64)]) -> Shown {
        let ValuePrint::Aggregate { of, .. } = self.print.value else { panic!("it takes values") };
        let mut words = vec![0; 8 * of.words() as usize];
        for (time, value) in values {
            let value = if of.is_of_floats() { (*value as f64).to_bits() } else { *value as u64 };
            add(of, &mut words, Added { value, weight: 1, time: *time });
        }
        self.entries.push((key.to_vec(), words));
        self
    }

    fn tables(&self) -> Tables {
        let key = self.print.key.as_ref().map_or(0, |key| key.shape.size());
        let value = MapValue::Bytes(self.print.value.size() as u32);
        let map = Map { name: "@m".into(), key, value, capacity: 100, sharing: MapSharing::Shared };
        let mut tables = Tables::new(&Program { maps: vec![map], ..Program::default() });
        for (key, value) in &self.entries {
            assert!(tables.set(MapId(0), key, value));
        }
        tables
    }

    fn print(&self, options: Options, top: i64, divisor: i64) -> String {
        let messages =
            Messages { messages: vec![Message::PrintMap(MapId(0))], maps: vec![self.print.clone()] };
        let parts: [&[u8]; 2] = [&word(top), &word(divisor)];
        printed_with(messages, options, &parts, &mut self.tables()).0
    }

    fn text(&self) -> String {
        self.print(Options::default(), 0, 0)
    }

    fn json(&self) -> String {
        self.print(json(), 0, 0)
    }

    fn at_end(&self, options: Options) -> String {
        let messages = Messages { messages: Vec::new(), maps: vec![self.print.clone()] };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut streams = Streams { out: &mut out, err: &mut err };
        let mut printer = Printer::new(messages, options);
        printer.end(&mut self.tables(), &mut Known, &mut streams).expect("written");
        String::from_utf8_lossy(&out).into_owned()
    }
}

fn byte() -> Option<Shape> {
    Some(int(1, true))
}

#[test]
fn maps_of_one_value() {
    let empty = Shown::plain(None, int(8, true));
    assert_eq!(
        (empty.text(), empty.json()),
        ("@m: 0\n".into(), "{\"type\": \"map\", \"data\": {\"@m\": 0}}\n".into())
    );
    assert_eq!((empty.at_end(Options::default()), empty.at_end(json())), ("\n\n".into(), String::new()));
    let one = empty.with(&[], &word(-7));
    assert_eq!(one.text(), "@m: -7\n");
    assert_eq!(one.at_end(Options::default()), "\n\n@m: -7\n");
    assert_eq!(one.print(Options::default(), 0, 2), "@m: -3\n");
    let quiet = Options { prints_maps: false, ..Options::default() };
    assert_eq!(one.at_end(quiet), "\n\n");
    let record = Shown::plain(
        None,
        Shape::Record(fields(&[("a", int(1, true)), ("b", tuple(&[int(1, true), Shape::Text { room: 2 }]))])),
    );
    assert_eq!(record.text(), "@m: { .a = 0, .b = (0, ) }\n");
    let stats = Shown::of(None, Aggregation::Average, Show::Statistics, true);
    assert_eq!(stats.text(), "@m: { .count = 0, .average = 0, .total = 0 }\n");
    let average = Shown::of(None, Aggregation::Average, Show::Average, true);
    assert_eq!(average.json(), "{\"type\": \"stats\", \"data\": {\"@m\": 0}}\n");
    assert_eq!(average.at_end(json()), "{\"type\": \"stats\", \"data\": {\"@m\": {}}}\n");
    let hist = Shown::of(None, Aggregation::Hist { bits: 0 }, Show::Histogram, true);
    assert_eq!((hist.text(), hist.json()), (String::new(), String::new()));
}

#[test]
fn integers_are_sorted_by_value_and_then_by_key() {
    let map = Shown::plain(byte(), int(1, true))
        .with(&[1], &[5])
        .with(&[2], &[0xff])
        .with(&[0xff], &[5])
        .with(&[4], &[100]);
    assert_eq!(map.text(), "@m[2]: -1\n@m[-1]: 5\n@m[1]: 5\n@m[4]: 100\n");
    assert_eq!(map.print(Options::default(), 2, 10), "@m[1]: 0\n@m[4]: 10\n");
    assert_eq!(map.print(Options::default(), 9, 0), map.text());
    assert_eq!(
        map.json(),
        "{\"type\": \"map\", \"data\": {\"@m\": {\"2\": -1, \"-1\": 5, \"1\": 5, \"4\": 100}}}\n"
    );
    let unsigned = Shown::plain(byte(), int(8, false)).with(&[1], &word(-1)).with(&[2], &word(1));
    assert_eq!(unsigned.text(), "@m[2]: 1\n@m[1]: 18446744073709551615\n");
    let empty = Shown::plain(byte(), int(8, false));
    assert_eq!((empty.text(), empty.json()), (String::new(), String::new()));
}

#[test]
fn all_else_is_sorted_by_key() {
    let text = Shape::Text { room: 2 };
    let map = Shown::plain(Some(text.clone()), text.clone())
        .with(b"b\0", b"x\0")
        .with(b"a\0", b"z\0")
        .with(b"c\0", b"y\0");
    assert_eq!(map.text(), "@m[a]: z\n@m[b]: x\n@m[c]: y\n");
    let key = tuple(&[int(2, true), text]);
    let map = Shown::plain(Some(key.clone()), Shape::Bool)
        .with(b"\x01\0b\0", &[1])
        .with(b"\xff\xffz\0", &[1])
        .with(b"\x01\0a\0", &[0]);
    assert_eq!(map.text(), "@m[-1, z]: true\n@m[1, a]: false\n@m[1, b]: true\n");
    assert_eq!(
        map.json(),
        "{\"type\": \"map\", \"data\": {\"@m\": {\"-1,z\": true, \"1,a\": false, \"1,b\": true}}}\n"
    );
    let nested = tuple(&[int(1, true), tuple(&[int(1, true), int(1, true)])]);
    let map = Shown::plain(Some(nested), Shape::Bool).with(&[0xfc, 0xfb, 0xfa], &[1]);
    assert_eq!(map.text(), "@m[-4, (-5, -6)]: true\n");
    assert_eq!(map.json(), "{\"type\": \"map\", \"data\": {\"@m\": {\"-4,(-5,-6)\": true}}}\n");
    let array = Shape::Array { count: 2, of: Arc::new(int(1, true)) };
    let map = Shown::plain(Some(tuple(&[array, int(1, true)])), Shape::Bool).with(&[1, 2, 42], &[1]);
    assert_eq!(map.text(), "@m[[1,2], 42]: true\n");
    let stack = Shape::Stack { mode: StackMode::Raw, frames: 2 };
    let map = Shown::plain(Some(stack), int(1, true)).with(&bytes(&[&word(1), &[0; 8]]), &[1]);
    assert_eq!(map.text(), "@m[\n1010\n2020\n]: 1\n");
}

#[test]
fn stacks_are_folded_for_flame_graphs() {
    let stack = Shape::Stack { mode: StackMode::Bpftrace, frames: 127 };
    let folded = || Options { is_folded: true, ..Options::default() };
    let key = bytes(&[&word(1), &7_u32.to_le_bytes(), &[0; 4]]);
    let map =
        Shown::of(Some(stack.clone()), Aggregation::Count, Show::Number, false).adding(&key, &[0, 0, 0]);
    assert_eq!(map.print(folded(), 0, 1), "0x9999;main;outer;inner 3\n");
    // With another part of the key, which stands where it is in it.
    let both = Shown::plain(Some(tuple(&[int(8, true), stack.clone()])), int(1, true));
    let both = both.with(&bytes(&[&word(5), &key]), &[4]);
    assert_eq!(both.print(folded(), 0, 1), "5;0x9999;main;outer;inner 4\n");
    // What is no number of a stack is text, and so is all in JSON.
    let text = Shown::plain(Some(stack), Shape::Bool).with(&key, &[1]);
    assert_eq!(text.print(folded(), 0, 1), text.text());
    assert_eq!(map.print(Options { layout: Layout::Json, ..folded() }, 0, 1), map.json());
}

#[test]
fn numbers_of_aggregations() {
    let number = |of, signed| Shown::of(byte(), of, Show::Number, signed);
    let count = number(Aggregation::Count, false).adding(&[1], &[0, 0]).adding(&[2], &[0]);
    assert_eq!(count.text(), "@m[2]: 1\n@m[1]: 2\n");
    assert_eq!(count.print(Options::default(), 0, 2), "@m[2]: 0\n@m[1]: 1\n");
    let sum = number(Aggregation::Sum, true).adding(&[1], &[10, -20]).adding(&[2], &[-30]);
    assert_eq!(sum.text(), "@m[2]: -30\n@m[1]: -10\n");
    let sum = number(Aggregation::Sum, false).adding(&[1], &[-1]).adding(&[2], &[1]);
    assert_eq!(sum.text(), "@m[2]: 1\n@m[1]: 18446744073709551615\n");
    let max = number(Aggregation::Max { signed: true }, true).adding(&[1], &[5, -1]).adding(&[2], &[-7]);
    assert_eq!(max.text(), "@m[2]: -7\n@m[1]: 5\n");
    let min = number(Aggregation::Min { signed: false }, false).adding(&[1], &[-1, 9]);
    assert_eq!(min.print(Options::default(), 0, 2), "@m[1]: 4\n");
    let floats = number(Aggregation::SumOfFloats, true).adding(&[1], &[1, 2]).adding(&[2], &[-1]);
    assert_eq!(floats.print(Options::default(), 0, 2), "@m[2]: -0.5\n@m[1]: 1.5\n");
    let floats = number(Aggregation::MaxOfFloats, true).adding(&[1], &[1, 2]);
    assert_eq!(floats.text(), "@m[1]: 2.0\n");
}

#[test]
fn averages_and_statistics() {
    let text = || Some(Shape::Text { room: 2 });
    let average = Shown::of(text(), Aggregation::Average, Show::Average, true);
    let average = [(b"a\0", 10), (b"b\0", 20), (b"c\0", 30), (b"d\0", 40)]
        .into_iter()
        .fold(average, |map, (key, value)| map.adding(key, &[value]));
    assert_eq!(average.print(Options::default(), 2, 10), "@m[c]: 3\n@m[d]: 4\n");
    assert_eq!(
        average.print(json(), 2, 10),
        "{\"type\": \"stats\", \"data\": {\"@m\": {\"c\": 3, \"d\": 4}}}\n"
    );
    let stats = |signed| Shown::of(byte(), Aggregation::Average, Show::Statistics, signed);
    let map = stats(true).adding(&[1], &[-10, -5, 5]).adding(&[2], &[-100]);
    assert_eq!(
        map.text(),
        "@m[2]: { .count = 1, .average = -100, .total = -100 }\n\
         @m[1]: { .count = 3, .average = -3, .total = -10 }\n"
    );
    assert_eq!(
        map.json(),
        "{\"type\": \"stats\", \"data\": {\"@m\": \
         {\"2\": {\"count\": 1, \"average\": -100, \"total\": -100}, \
         \"1\": {\"count\": 3, \"average\": -3, \"total\": -10}}}}\n"
    );
    assert_eq!(map.print(Options::default(), 1, 2), "@m[1]: { .count = 3, .average = -1, .total = -10 }\n");
    let floats = Shown::of(None, Aggregation::AverageOfFloats, Show::Statistics, true).adding(&[], &[1, 2]);
    assert_eq!(floats.text(), "@m: { .count = 2, .average = 1.5, .total = 3.0 }\n");
}

const FULL: &str = "|@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|";
const HALF: &str = "|@@@@@@@@@@@@@@@@@@@@@@@@@@                          |";
const NONE: &str = "|                                                    |";

#[test]
fn histograms_by_powers_of_two() {
    let hist = |bits| Shown::of(None, Aggregation::Hist { bits }, Show::Histogram, true);
    let map = hist(0).adding(&[], &[-1, 2, 3, 7, 20]);
    assert_eq!(
        map.text(),
        format!(
            "@m:\n\
             (..., 0)               1 {HALF}\n\
             [0]                    0 {NONE}\n\
             [1]                    0 {NONE}\n\
             [2, 4)                 2 {FULL}\n\
             [4, 8)                 1 {HALF}\n\
             [8, 16)                0 {NONE}\n\
             [16, 32)               1 {HALF}\n\n"
        )
    );
    let rows = "{\"max\": -1, \"count\": 1},{\"min\": 0, \"max\": 0, \"count\": 0},{\"min\": 1, \"max\": 1, \"count\": 0},\
        {\"min\": 2, \"max\": 3, \"count\": 2},{\"min\": 4, \"max\": 7, \"count\": 1},\
        {\"min\": 8, \"max\": 15, \"count\": 0},{\"min\": 16, \"max\": 31, \"count\": 1}";
    assert_eq!(map.json(), format!("{{\"type\": \"hist\", \"data\": {{\"@m\": [{rows}]}}}}\n"));
    // Counts are divided; without any left there are no bars.
    let lines = map.print(Options::default(), 0, 3);
    assert!(
        lines.lines().skip(1).filter(|line| !line.is_empty()).all(|line| line.ends_with(NONE)),
        "{lines}"
    );
    let zeroed = hist(0).with(&[], &[0; 520]);
    assert_eq!(zeroed.text(), "@m:\n\n");
    assert_eq!(zeroed.json(), "{\"type\": \"hist\", \"data\": {\"@m\": []}}\n");
}

/// The labels of a histogram's lines.
fn labels(map: &Shown) -> Vec<String> {
    let text = map.text();
    let lines = text.lines().skip(1).filter(|line| !line.is_empty());
    lines.map(|line| line[..16].trim_end().to_string()).collect()
}

#[test]
fn labels_are_shortened_by_their_power() {
    let hist = |bits, values: &[i64]| {
        labels(&Shown::of(None, Aggregation::Hist { bits }, Show::Histogram, true).adding(&[], values))
    };
    assert_eq!(hist(0, &[512, 1024]), ["[512, 1K)", "[1K, 2K)"]);
    assert_eq!(hist(0, &[1 << 19]), ["[512K, 1M)"]);
    assert_eq!(hist(0, &[10 << 30]), ["[8G, 16G)"]);
    assert_eq!(hist(0, &[i64::MAX]), ["[4E, 8E)"]);
    assert_eq!(hist(2, &[3000, 3200]), ["[2560, 3072)", "[3072, 3584)"]);
    assert_eq!(hist(2, &[1_000_000]), ["[896K, 1024K)"]);
    assert_eq!(hist(2, &[7, 8]), ["[7]", "[8, 10)"]);
    assert_eq!(hist(3, &[15, 16]), ["[15]", "[16, 18)"]);
    let map = Shown::of(None, Aggregation::Hist { bits: 3 }, Show::Histogram, true);
    let json = map.adding(&[], &[15, 16]).json();
    let rows = "{\"min\": 15, \"max\": 15, \"count\": 1},{\"min\": 16, \"max\": 17, \"count\": 1}";
    assert_eq!(json, format!("{{\"type\": \"hist\", \"data\": {{\"@m\": [{rows}]}}}}\n"));
}

#[test]
fn linear_histograms() {
    let linear = |min, max, step, values: &[i64]| {
        let of = Aggregation::LinearHist { min, max, step };
        Shown::of(None, of, Show::Histogram, true).adding(&[], values)
    };
    let map = linear(0, 10, 2, &[-1, 2, 3, 7, 10]);
    assert_eq!(labels(&map), ["(..., 0)", "[0, 2)", "[2, 4)", "[4, 6)", "[6, 8)", "[8, 10)", "[10, ...)"]);
    // A last step that goes beyond the end is one with what is above it.
    let map = linear(0, 10, 3, &[5, 9, 10, 11]);
    assert_eq!(
        map.text(),
        format!(
            "@m:\n\
             [3, 6)                 1 |@@@@@@@@@@@@@@@@@                                   |\n\
             [6, 9)                 0 {NONE}\n\
             [9, ...)               3 {FULL}\n\n"
        )
    );
    let rows = "{\"min\": 3, \"max\": 5, \"count\": 1},{\"min\": 6, \"max\": 8, \"count\": 0},{\"min\": 9, \"count\": 3}";
    assert_eq!(map.json(), format!("{{\"type\": \"hist\", \"data\": {{\"@m\": [{rows}]}}}}\n"));
    assert_eq!(
        labels(&linear(0, 4096, 1024, &[5000, 1500])),
        ["[1K, 2K)", "[2K, 3K)", "[3K, 4K)", "[4K, ...)"]
    );
    assert_eq!(labels(&linear(0, 4 << 20, 1 << 20, &[0, 1 << 20])), ["[0, 1M)", "[1M, 2M)"]);
    assert_eq!(labels(&linear(0, 5, 1, &[3])), ["[3]"]);
    assert_eq!(labels(&linear(1, 10, 5, &[-20, 7])), ["(..., 1)", "[1, 6)", "[6, ...)"]);
    assert_eq!(labels(&linear(0, 10, 5, &[100])), ["[10, ...)"]);
    assert_eq!(labels(&linear(-10, -5, 5, &[-7])), ["[-10, -5)"]);
}

#[test]
fn histograms_with_keys_are_sorted_by_how_many_there_were() {
    let key = tuple(&[int(1, true), Shape::Text { room: 2 }]);
    let map = Shown::of(Some(key), Aggregation::Hist { bits: 0 }, Show::Histogram, true)
        .adding(b"\x01b\0", &[2, 2])
        .adding(b"\x02a\0", &[1]);
    assert_eq!(
        map.text(),
        format!(
            "@m[2, a]:\n[1]                    1 {FULL}\n\n@m[1, b]:\n[2, 4)                 2 {FULL}\n\n"
        )
    );
    assert_eq!(
        map.print(Options::default(), 1, 0),
        format!("@m[1, b]:\n[2, 4)                 2 {FULL}\n\n")
    );
    assert_eq!(
        map.json(),
        "{\"type\": \"hist\", \"data\": {\"@m\": {\"2,a\": [{\"min\": 1, \"max\": 1, \"count\": 1}], \
         \"1,b\": [{\"min\": 2, \"max\": 3, \"count\": 2}]}}}\n"
    );
}

const TENTH: u64 = 100_000_000;

fn series(key: Option<Shape>, buckets: u32, of: SeriesOf, signed: bool) -> Shown {
    let of = Aggregation::TimeSeries { interval: TENTH, buckets, of };
    Shown::of(key, of, Show::Series, signed)
}

#[test]
fn time_series() {
    let points: Vec<(u64, i64)> = (5..10).map(|number| (number * TENTH, 9)).collect();
    let map = series(None, 5, SeriesOf::Latest, true).adding_at(&[], &points);
    assert_eq!(
        map.text(),
        "@m:\n             8                                                  10\n\
         hh:mm:ss.ms  |___________________________________________________|\n\
         02:00:00.500 |                         *                         | 9\n\
         02:00:00.600 |                         *                         | 9\n\
         02:00:00.700 |                         *                         | 9\n\
         02:00:00.800 |                         *                         | 9\n\
         02:00:00.900 |                         *                         | 9\n             \
         v___________________________________________________v\n             \
         8                                                  10\n\n"
    );
    assert!(map.json().starts_with(
        "{\"type\": \"tseries\", \"data\": {\"@m\": \
         [{\"interval_start\":\"1970-01-01 00:00:00.500000000\",\"value\":9},\
         {\"interval_start\":\"1970-01-01 00:00:00.600000000\",\"value\":9},"
    ));
}

#[test]
fn a_series_across_zero_shows_where_it_is() {
    let points: Vec<(u64, i64)> =
        [-5, -4, 0, 3, 5].iter().zip(1..).map(|(value, at)| (at * TENTH, *value)).collect();
    let map = series(None, 5, SeriesOf::Latest, true).adding_at(&[], &points);
    let text = map.text();
    let lines: Vec<&str> = text.lines().skip(3).take(5).collect();
    assert_eq!(
        lines,
        [
            "02:00:00.100 *                         .                         | -5",
            "02:00:00.200 |    *                    .                         | -4",
            "02:00:00.300 |                         *                         | 0",
            "02:00:00.400 |                         .              *          | 3",
            "02:00:00.500 |                         .                         * 5",
        ]
    );
}

#[test]
fn series_with_keys_share_their_time() {
    let key = || Some(Shape::Text { room: 4 });
    let map = series(key(), 4, SeriesOf::Latest, false)
        .adding_at(b"one\0", &[(0, 1), (TENTH, 5), (2 * TENTH, 0)])
        .adding_at(b"two\0", &[(3 * TENTH, 4), (4 * TENTH, 6)]);
    let text = map.text();
    let kept: Vec<&str> =
        text.lines().filter(|line| line.starts_with("02:") || line.starts_with('@')).collect();
    assert_eq!(
        kept,
        [
            "@m[one]:",
            "02:00:00.100 |                                                   * 5",
            "02:00:00.200 *                                                   | 0",
            "02:00:00.300 |                                                   | -",
            "02:00:00.400 |                                                   | -",
            "@m[two]:",
            "02:00:00.300 *                                                   | 4",
            "02:00:00.400 |                                                   * 6",
        ]
    );
    assert_eq!(
        map.json(),
        "{\"type\": \"tseries\", \"data\": {\"@m\": {\"one\": \
         [{\"interval_start\":\"1970-01-01 00:00:00.100000000\",\"value\":5},\
         {\"interval_start\":\"1970-01-01 00:00:00.200000000\",\"value\":0}], \"two\": \
         [{\"interval_start\":\"1970-01-01 00:00:00.300000000\",\"value\":4},\
         {\"interval_start\":\"1970-01-01 00:00:00.400000000\",\"value\":6}]}}}\n"
    );
    let averages = series(None, 2, SeriesOf::Average, true).adding_at(&[], &[(TENTH, -3), (TENTH + 1, -4)]);
    assert!(averages.text().contains("| -3\n"), "{}", averages.text());
    let edges =
        series(None, 2, SeriesOf::Latest, true).adding_at(&[], &[(TENTH, i64::MIN), (2 * TENTH, i64::MAX)]);
    assert!(edges.text().contains("| -9223372036854775808\n"), "{}", edges.text());
    let first = series(None, 2, SeriesOf::Latest, true).adding_at(&[], &[(0, 7), (TENTH, 9)]);
    assert!(first.text().contains("02:00:00.000 *                                                   | 0\n"));
    let zeroed = series(None, 2, SeriesOf::Latest, true).with(&[], &[0; 48]);
    assert_eq!(zeroed.text(), "@m:\n<no data>\n");
}

#[test]
fn one_key_of_a_map() {
    let shown = |map: Shown, parts: &[&[u8]], options| {
        let messages =
            Messages { messages: vec![Message::PrintKey(MapId(0))], maps: vec![map.print.clone()] };
        printed_with(messages, options, parts, &mut map.tables()).0
    };
    let plain = || Shown::plain(byte(), int(8, true));
    assert_eq!(shown(plain(), &[&[1], &word(5)], Options::default()), "5\n");
    assert_eq!(shown(plain(), &[&[1], &word(5)], json()), "{\"type\": \"value\", \"data\": 5}\n");
    let stats = Shown::of(byte(), Aggregation::Average, Show::Statistics, true).adding(&[1], &[5]);
    let words = stats.entries[0].1.clone();
    assert_eq!(
        shown(stats, &[&[1], &words], json()),
        "{\"type\": \"value\", \"data\": {\"count\": 1, \"average\": 5, \"total\": 5}}\n"
    );
}

#[test]
fn maps_at_the_end_are_in_the_order_of_their_names() {
    let names = ["@z", "@", "@b", "@a"];
    let print = |name: &str, at_exit| MapPrint {
        name: name.into(),
        key: None,
        value: ValuePrint::Plain(int(8, true)),
        at_exit,
    };
    let maps: Vec<MapPrint> = names.iter().map(|name| print(name, *name != "@b")).collect();
    let declared = Map {
        name: String::new(),
        key: 0,
        value: MapValue::Bytes(8),
        capacity: 1,
        sharing: MapSharing::Shared,
    };
    let mut tables = Tables::new(&Program { maps: vec![declared; 4], ..Program::default() });
    for map in 0..4 {
        tables.set(MapId(map), &[], &word(map.into()));
    }
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut streams = Streams { out: &mut out, err: &mut err };
    let mut printer = Printer::new(Messages { messages: Vec::new(), maps }, Options::default());
    printer.end(&mut tables, &mut Known, &mut streams).expect("written");
    assert_eq!(String::from_utf8(out).expect("text"), "\n\n@: 1\n@a: 3\n@z: 0\n");
}

#[test]
fn what_is_told_beside_the_script() {
    let told = |options: Options| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut streams = Streams { out: &mut out, err: &mut err };
        let mut printer = Printer::new(Messages::default(), options);
        printer.attached(1, &mut streams).expect("written");
        printer.attached(2, &mut streams).expect("written");
        printer.lost(3, &mut streams).expect("written");
        printer.out_of_fuel("begin", &mut streams).expect("written");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (text(out), text(err))
    };
    let fuel = "The loops of this probe went round more often than they may. The probe was ended.";
    let (out, err) = told(Options::default());
    assert_eq!(out, "");
    assert_eq!(err, format!("Attached 1 probe\nAttached 2 probes\nLost 3 events\nWARNING: begin: {fuel}\n"));
    let (out, err) = told(json());
    assert_eq!(err, "");
    assert_eq!(
        out,
        format!(
            "{{\"type\": \"attached_probes\", \"count\": 1, \"data\": {{\"probes\": 1}}}}\n\
             {{\"type\": \"attached_probes\", \"count\": 2, \"data\": {{\"probes\": 2}}}}\n\
             {{\"type\": \"lost_events\", \"count\": 3, \"data\": {{\"events\": 3}}}}\n\
             {{\"type\": \"runtime_error\", \"msg\": \"begin: {fuel}\"}}\n"
        )
    );
}

#[test]
fn tests_and_benchmarks() {
    let tests = [
        Tested { name: "a".into(), passed: true, duration: 1_500, printed: b"x\n".to_vec() },
        Tested { name: "b".into(), passed: false, duration: 2_000_000, printed: b"why\n\n".to_vec() },
    ];
    let benchmarks = [Benchmark { name: "a".into(), average: 12, runs: 1000 }];
    let told = |options: Options| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut streams = Streams { out: &mut out, err: &mut err };
        let mut printer = Printer::new(Messages::default(), options);
        printer.tests_begin(2, &mut streams).expect("written");
        tests.iter().for_each(|test| printer.tested(test, &mut streams).expect("written"));
        printer.tests_end(&tests, &mut streams).expect("written");
        printer.benchmarks(&benchmarks, &mut streams).expect("written");
        String::from_utf8(out).expect("text")
    };
    let text =
        told(Options::default()).replace("\x1b[32m", "<").replace("\x1b[31m", "<!").replace("\x1b[0m", ">");
    assert_eq!(
        text,
        "<[==========]> Running 2 tests.\n\
         <[ RUN      ]> a\n<[       OK ]> a (1 μs)\n\
         <[ RUN      ]> b\nwhy\n<![  FAILED  ]> b (2 ms)\n\
         <[==========]> 2 tests ran.\n<[  PASSED  ]> 1 test.\n\
         <![  FAILED  ]> 1 test, listed below:\n<![  FAILED  ]> b\n\
         Benchmark                                Time(ns)       Iterations\n\
         ------------------------------------------------------------------\n\
         a                                        12             1000\n"
    );
    assert_eq!(
        told(json()),
        "{\"type\": \"test_result\", \"data\": {\"a\": {\"duration\": 1500, \"passed\": true, \"output\": \"x\\n\"}}}\n\
         {\"type\": \"test_result\", \"data\": {\"b\": {\"duration\": 2000000, \"passed\": false, \"output\": \"why\\n\\n\"}}}\n\
         {\"type\": \"benchmark_result\", \"data\": {\"a\": {\"average\": 12, \"iters\": 1000}}}\n"
    );
}

mod random;

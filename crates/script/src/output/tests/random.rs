//! Whatever comes out of shared memory, the printer does not panic, and each line of JSON is JSON.

use super::*;
use proptest::prelude::*;

/// Any shape, not too deep.
fn shapes() -> impl Strategy<Value = Shape> {
    let modes = prop_oneof![
        Just(StackMode::Bpftrace),
        Just(StackMode::Perf),
        Just(StackMode::Raw),
        Just(StackMode::BuildId)
    ];
    let leaf = prop_oneof![
        Just(Shape::None),
        Just(Shape::Bool),
        Just(Shape::Pointer(8)),
        Just(Shape::Pointer(4)),
        Just(Shape::Symbol),
        Just(Shape::Inet),
        Just(Shape::Mac),
        Just(Shape::Probe),
        Just(Shape::User),
        Just(Shape::Error),
        Just(Shape::Cgroup),
        Just(colours()),
        (prop::sample::select(vec![1_u8, 2, 4, 8]), any::<bool>())
            .prop_map(|(size, signed)| int(size, signed)),
        prop::sample::select(vec![4_u8, 8]).prop_map(Shape::Float),
        (0_u32..20).prop_map(|room| Shape::Text { room }),
        (0_u32..20).prop_map(|room| Shape::Buffer { room }),
        (modes, 0_u8..128).prop_map(|(mode, frames)| Shape::Stack { mode, frames }),
        "[%a-zA-Z]{0,12}".prop_map(|format| Shape::Time { format: format.into(), clock: TimeBase::Boot }),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let field = (inner.clone(), 0_u32..40, prop::option::of((any::<u8>(), any::<u8>()))).prop_map(
            |(shape, offset, bits)| Field {
                name: "f".into(),
                offset,
                shape,
                bits: bits.map(|(first, count)| Bits { first, count }),
            },
        );
        let fields =
            prop::collection::vec(field, 0..4).prop_map(|fields| Arc::new(Fields { size: 40, fields }));
        prop_oneof![
            fields.clone().prop_map(Shape::Tuple),
            fields.prop_map(Shape::Record),
            (any::<u32>(), inner).prop_map(|(count, of)| Shape::Array { count, of: Arc::new(of) }),
        ]
    })
}

fn aggregations() -> impl Strategy<Value = (Aggregation, Show)> {
    let series =
        prop::sample::select(vec![SeriesOf::Latest, SeriesOf::Sum, SeriesOf::Average, SeriesOf::Min]);
    prop_oneof![
        (0_u8..6).prop_map(|bits| (Aggregation::Hist { bits }, Show::Histogram)),
        (-1000_i64..1000, 1_i64..1000, 1_i64..2000).prop_map(|(min, length, step)| {
            (Aggregation::LinearHist { min, max: min + length, step }, Show::Histogram)
        }),
        (1..u64::MAX, 1_u32..9, series).prop_map(|(interval, buckets, of)| (
            Aggregation::TimeSeries { interval, buckets, of },
            Show::Series
        )),
        Just((Aggregation::Average, Show::Statistics)),
        Just((Aggregation::AverageOfFloats, Show::Average)),
        Just((Aggregation::Sum, Show::Number)),
        Just((Aggregation::Max { signed: true }, Show::Number)),
    ]
}

/// What is behind one JSON value, if there is one.
fn behind(text: &str) -> Option<&str> {
    let listed = |mut rest: &'_ str, close: char, is_object: bool| -> Option<usize> {
        let whole = rest.len();
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix(close) {
            return Some(whole - rest.len());
        }
        loop {
            if is_object {
                rest = string(rest.trim_start())?.trim_start().strip_prefix(':')?;
            }
            rest = behind(rest.trim_start())?.trim_start();
            match rest.strip_prefix(',') {
                Some(more) => rest = more.trim_start(),
                None => return Some(whole - rest.strip_prefix(close)?.len()),
            }
        }
    };
    match text.chars().next()? {
        '{' => listed(&text[1..], '}', true).map(|length| &text[1 + length..]),
        '[' => listed(&text[1..], ']', false).map(|length| &text[1 + length..]),
        '"' => string(text),
        't' => text.strip_prefix("true"),
        'f' => text.strip_prefix("false"),
        'n' => text.strip_prefix("null"),
        _ => {
            let end = text.find(|letter: char| !"+-.eE0123456789".contains(letter)).unwrap_or(text.len());
            text[..end].parse::<f64>().ok().map(|_| &text[end..])
        }
    }
}

/// What is behind a JSON string.
fn string(text: &str) -> Option<&str> {
    let mut letters = text.strip_prefix('"')?.chars();
    loop {
        match letters.next()? {
            '"' => return Some(letters.as_str()),
            '\\' => match letters.next()? {
                'u' => {
                    let code: String = letters.by_ref().take(4).collect();
                    u32::from_str_radix(&code, 16).ok()?;
                }
                letter => _ = "\"\\nrt".find(letter)?,
            },
            '\0'..='\x1f' => return None,
            _ => {}
        }
    }
}

fn lines_are_json(text: &str) -> Result<(), TestCaseError> {
    for line in text.split_inclusive('\n') {
        prop_assert_eq!(behind(line), Some("\n"), "{}", line);
    }
    Ok(())
}

#[test]
fn json_is_told_from_what_is_none() {
    for (text, is_json) in [
        ("{\"a\": [1,-2.5e3,null], \"b\": {}}", true),
        ("[]", true),
        ("\"\\u00e9\\n\"", true),
        ("{\"a\" 1}", false),
        ("[1,]", false),
        ("\"\\x\"", false),
        ("\"\n\"", false),
        ("nan", false),
        ("-", false),
    ] {
        assert_eq!(behind(text) == Some(""), is_json, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn values(
        shape in shapes(),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        flags in "(%[-+ #0]{0,3}[0-9*]{0,3}(\\.[0-9*]{0,2})?(hh|h|l|ll|L|j|z|t)?[diouxXeEfFgGaAcsprxh%]|.){0,4}",
    ) {
        let messages = [
            Message::PrintValue(shape.clone()),
            Message::Print(Channel::Out, format(&flags, vec![shape.clone(), shape])),
        ];
        for message in messages {
            let messages = || Messages { messages: vec![message.clone()], maps: Vec::new() };
            let mut tables = Tables::new(&Program::default());
            let mut parts = |options| {
                let (mut out, mut err) = (Vec::new(), Vec::new());
                let mut streams = Streams { out: &mut out, err: &mut err };
                let mut printer = Printer::new(messages(), options);
                let parts: [&[u8]; 2] = [&bytes, &bytes];
                printer.message(MessageId(0), &parts, &mut tables, &mut Known, &mut streams).expect("written");
                out
            };
            parts(Options::default());
            lines_are_json(&String::from_utf8(parts(json())).expect("UTF-8"))?;
        }
    }

    #[test]
    fn maps(
        key in prop::option::of(shapes()),
        value in prop_oneof![shapes().prop_map(ValuePrint::Plain), (aggregations(), any::<bool>()).prop_map(
            |((of, show), signed)| ValuePrint::Aggregate { of, show, signed },
        )],
        seed: [u64; 4],
        (top, divisor) in (0_i64..4, any::<i64>()),
    ) {
        let mut shown = Shown::new(key.clone(), value);
        let (key, value) = (key.map_or(0, |key| key.size()), shown.print.value.size());
        prop_assume!(key < 10_000 && value < 100_000);
        for (index, seed) in seed.into_iter().enumerate() {
            // Now all kinds of bytes, now mostly small numbers.
            let byte = |at: usize| match index % 2 {
                0 => (seed.rotate_left(at as u32 * 7) ^ at as u64) as u8,
                _ if at.is_multiple_of(8) => (seed >> (at % 64)) as u8 & 7,
                _ => 0,
            };
            let of = |length: usize| (0..length).map(byte).collect::<Vec<u8>>();
            shown.entries.push((of(key as usize), of(value)));
        }
        shown.print(Options::default(), top, divisor);
        shown.at_end(Options::default());
        lines_are_json(&shown.print(json(), top, divisor))?;
        lines_are_json(&shown.at_end(json()))?;
    }
}

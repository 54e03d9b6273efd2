//! Random scripts: none of them panics, and what compiles is as back ends need it.

use super::support::{World, compiled, ran};
use proptest::prelude::*;

fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|value| value.to_string()),
        (0u8..4).prop_map(|value| value.to_string()),
        "[a-c]{0,3}".prop_map(|text| format!("\"{text}\"")),
        prop::sample::select(vec![
            "$a",
            "$b",
            "@",
            "@m",
            "@m[1]",
            "@k[$a]",
            "pid",
            "comm",
            "arg0",
            "retval",
            "nsecs",
            "true",
            "1.5",
            "args",
            "(1, \"x\")",
            "(x=1, y=2)",
            "ustack",
            "&$a",
            "E",
            "$1",
            "()",
            "probe",
            "func",
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^", "==", "!=", "<", ">=", "&&",
        ]);
        let function = prop::sample::select(vec![
            "str", "buf", "strlen", "usym", "ntop", "macaddr", "kstack", "bswap", "sizeof", "print", "exit",
            "count", "hist", "delete", "len", "clear", "has_key", "strncmp", "strftime", "join", "typeinfo",
            "strerror",
        ]);
        let cast = prop::sample::select(vec![
            "int8",
            "uint32",
            "int64",
            "bool",
            "struct s *",
            "int8[4]",
            "string",
            "double",
            "enum e",
            "int8[]",
            "uint8 *",
        ]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(l, op, r)| format!("({l} {op} {r})")),
            (function.clone(), inner.clone()).prop_map(|(name, of)| format!("{name}({of})")),
            (function, inner.clone(), inner.clone()).prop_map(|(name, l, r)| format!("{name}({l}, {r})")),
            (cast, inner.clone()).prop_map(|(to, of)| format!("(({to}){of})")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("({l}, {r})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(c, l, r)| format!("({c} ? {l} : {r})")),
            (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("{l}[{r}]")),
            (inner.clone(), prop::sample::select(vec![".x", "->p", ".0", ".1", ".name"]))
                .prop_map(|(of, part)| format!("{of}{part}")),
            (prop::sample::select(vec!["!", "-", "~", "*"]), inner.clone())
                .prop_map(|(op, of)| format!("{op}{of}")),
            inner.prop_map(|of| format!("{{ $b = {of}; $b }}")),
        ]
    })
}

fn statement() -> impl Strategy<Value = String> {
    let simple = prop_oneof![
        (prop::sample::select(vec!["$a", "$b", "@", "@m[1]", "@m", "@k[$a]", "@k[1, 2]"]), expression())
            .prop_map(|(place, value)| format!("{place} = {value};")),
        (
            prop::sample::select(vec!["$a", "@", "@m[2]"]),
            prop::sample::select(vec!["+=", "-=", "/=", "|="]),
            expression()
        )
            .prop_map(|(place, op, value)| format!("{place} {op} {value};")),
        expression().prop_map(|value| format!("print({value});")),
        expression().prop_map(|value| format!("printf(\"%d %s\", {value}, {value});")),
        prop::sample::select(vec![
            "$a++;",
            "@++;",
            "@k[1]--;",
            "break;",
            "continue;",
            "return;",
            "exit();",
            "@c = count();",
            "@h = hist($a);",
            "@s = stats(arg0);",
            "let $c : uint8 = 5;",
            "delete(@k, 1);",
            "clear(@);",
            "print(@);",
            "zero(@c);",
        ])
        .prop_map(str::to_owned),
    ];
    simple.prop_recursive(3, 12, 3, |inner| {
        let block = prop::collection::vec(inner, 0..4).prop_map(|all| all.join(" "));
        prop_oneof![
            (expression(), block.clone(), block.clone())
                .prop_map(|(c, l, r)| format!("if ({c}) {{ {l} }} else {{ {r} }}")),
            (expression(), block.clone()).prop_map(|(end, body)| format!("for ($i : 0..{end}) {{ {body} }}")),
            block.clone().prop_map(|body| format!("for ($kv : @m) {{ {body} print($kv); }}")),
            block.clone().prop_map(|body| format!("unroll (3) {{ {body} }}")),
            block.prop_map(|body| format!("while ($a < 3) {{ $a++; {body} }}")),
        ]
    })
}

fn script() -> impl Strategy<Value = String> {
    let probe = prop::sample::select(vec![
        "begin",
        "uprobe:./a:f",
        "uretprobe:./a:f",
        "interval:s:1",
        "usdt:./a:b:c",
    ]);
    let statements = prop::collection::vec(statement(), 1..6);
    (probe, prop::option::of(expression()), statements).prop_map(|(probe, predicate, statements)| {
        let predicate = predicate.map_or(String::new(), |predicate| format!("/{predicate}/ "));
        format!(
            "enum e {{ E = 3 }};\nstruct s {{ int x; struct s *p; char name[4]; }};\n{probe} {predicate}{{ $a = 1; $b = 2; {} }}",
            statements.join(" ")
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_script_is_compiled_or_refused(script in script()) {
        // `compiled` verifies what came of it.
        _ = compiled(&script, &World::default());
    }

    #[test]
    fn what_compiles_runs(script in script()) {
        if compiled(&script, &World::default()).is_ok() {
            _ = ran(&script, &World::default());
        }
    }
}

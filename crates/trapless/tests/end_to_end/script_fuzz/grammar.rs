//! Random scripts, made of a seed and nothing else.
//!
//! A script has clauses of two kinds. *Exact* ones probe functions whose calls have tickets: what their maps are in the end depends on the
//! tickets alone, not on who came first, so that it can be foretold. Each is written twice: as it is armed, with the words of the hit; and as a
//! loop over all tickets in `begin`, which the tool's interpreter runs. *Wild* ones do everything else, with memory that comes and goes;
//! of them it is asked that nobody is harmed.

/// Pseudo-random numbers: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A place that exact clauses probe: the attach point, and its words A and B as scripts have them and as they follow from a ticket's
/// `$p` and `$q`.
struct Place {
    point: &'static str,
    words: [&'static str; 2],
    foretold: [&'static str; 2],
    /// Whether its third argument is the ticket's text.
    has_text: bool,
}

const PLACES: [Place; 10] = [
    Place { point: "uprobe:fuzzed:exact", words: ["arg0", "arg1"], foretold: ["$p", "$q"], has_text: true },
    Place {
        point: "uretprobe:fuzzed:exact",
        words: ["retval", "(retval + 1)"],
        foretold: ["($p * 3 + $q - 7)", "($p * 3 + $q - 6)"],
        has_text: false,
    },
    Place { point: "uprobe:fuzzed:inner", words: ["arg0", "arg1"], foretold: ["$p", "$q"], has_text: false },
    Place {
        point: "uretprobe:fuzzed:inner",
        words: ["retval", "(retval ^ 5)"],
        foretold: ["($p * 3 + $q)", "(($p * 3 + $q) ^ 5)"],
        has_text: false,
    },
    Place {
        point: "uprobe:fuzzed:stepped",
        words: ["arg0", "arg1"],
        foretold: ["$p", "$q"],
        has_text: false,
    },
    Place {
        point: "uprobe:fuzzed:stepped+19",
        words: ["reg(\"di\")", "reg(\"ax\")"],
        foretold: ["$p", "($p * 2)"],
        has_text: false,
    },
    Place {
        point: "uretprobe:fuzzed:stepped",
        words: ["retval", "(retval - 1)"],
        foretold: ["($p * 2 + $q)", "($p * 2 + $q - 1)"],
        has_text: false,
    },
    Place {
        point: "usdt:fuzzed:fuzzed:step",
        words: ["reg(\"di\")", "reg(\"si\")"],
        foretold: ["$p", "$q"],
        has_text: false,
    },
    Place { point: "uprobe:fuzzed:held", words: ["arg0", "arg1"], foretold: ["$p", "$q"], has_text: false },
    Place {
        point: "uretprobe:fuzzed:held",
        words: ["retval", "(retval * 2)"],
        foretold: ["($p - $q)", "(($p - $q) * 2)"],
        has_text: false,
    },
];

/// What a map holds.
#[derive(Clone, Copy)]
enum Holds {
    Count,
    Sum,
    Min,
    Max,
    Avg,
    Stats,
    Hist,
    Linear,
    Added,
    Set,
}

const HOLDS: [Holds; 10] = [
    Holds::Count,
    Holds::Sum,
    Holds::Min,
    Holds::Max,
    Holds::Avg,
    Holds::Stats,
    Holds::Hist,
    Holds::Linear,
    Holds::Added,
    Holds::Set,
];

/// What a map's keys are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    Number,
    Pair,
    Text,
    Nested,
    Small,
}

const KEYS: [Keys; 6] = [Keys::None, Keys::Number, Keys::Pair, Keys::Text, Keys::Nested, Keys::Small];

/// A clause, written with `{A}`, `{B}`, `{S}` for its words and `{RETURN}` for its end.
struct Clause {
    place: usize,
    filter: Option<String>,
    body: String,
}

/// A random script.
pub struct Script {
    exact: Vec<Clause>,
    wild: String,
}

/// Types that both ways of writing have.
const HEAD: &str = "struct node { long value; struct node *next; char *text; }\n";

impl Script {
    pub fn new(seed: u64) -> Script {
        let mut maker = Maker { random: Random(seed), maps: Vec::new(), loops: 0, names: 0 };
        for _ in 0..1 + maker.random.below(6) {
            let (holds, keys) = (maker.random.below(10) as usize, maker.random.below(6) as usize);
            maker.maps.push((HOLDS[holds], KEYS[keys]));
        }
        let count = 1 + maker.random.below(4);
        let exact = (0..count).map(|number| maker.clause(number)).collect();
        let wild = maker.wild();
        Script { exact, wild }
    }

    /// As it is armed.
    pub fn armed(&self) -> String {
        let mut text = format!("{HEAD}let @few = percpuhash(16);\nbegin {{ printf(\"armed\\n\"); }}\n");
        for Clause { place, filter, body } in &self.exact {
            let Place { point, words, has_text, .. } = &PLACES[*place];
            let put = |text: &str| {
                text.replace("{A}", &format!("((int64){})", words[0]))
                    .replace("{B}", &format!("((int64){})", words[1]))
                    .replace("{S}", "$s")
                    .replace("{RETURN}", "return;")
            };
            let filter = filter.as_ref().map_or(String::new(), |filter| format!("/{}/ ", put(filter)));
            let s = if *has_text { "str(arg2, 32)" } else { "str(\"none\", 32)" };
            text += &format!("{point} {filter}{{ $s = {s}; {} }}\n", put(body));
        }
        text + &self.wild
    }

    /// As it is foretold for so many tickets.
    pub fn foretold(&self, tickets: u64) -> String {
        let texts = ["", "a", "alpha", "beta", "a longer text", "with \\\"quotes\\\"", "tab\\there"];
        let mut text = "\"0123456789abcdef\"".to_owned();
        for (index, one) in texts.iter().enumerate().rev() {
            text = format!("($i % 8 == {index} ? \"{one}\" : {text})");
        }
        let mut all = format!("{HEAD}begin {{\n");
        for Clause { place, filter, body } in &self.exact {
            let Place { foretold, has_text, .. } = &PLACES[*place];
            let put = |text: &str| {
                text.replace("{A}", "$a")
                    .replace("{B}", "$b")
                    .replace("{S}", "$s")
                    .replace("{RETURN}", "continue;")
            };
            let s = if *has_text { format!("str({text}, 32)") } else { "str(\"none\", 32)".to_owned() };
            let filter = filter
                .as_ref()
                .map_or(String::new(), |filter| format!("if (!({})) {{ continue; }} ", put(filter)));
            all += &format!(
                "for $i : 0..{tickets} {{ $p = (int64)$i * 7919 % 1009 - 300; $q = (int64)$i * 31 % 97; \
                 $a = (int64){}; $b = (int64){}; {filter}$s = {s}; {} }}\n",
                foretold[0],
                foretold[1],
                put(body)
            );
        }
        all + "}"
    }
}

struct Maker {
    random: Random,
    maps: Vec<(Holds, Keys)>,
    /// Loops around the statement that is made.
    loops: u32,
    /// Variables so far.
    names: u32,
}

impl Maker {
    fn clause(&mut self, number: u64) -> Clause {
        let place = self.random.below(PLACES.len() as u64) as usize;
        let filter = self.random.one_in(3).then(|| self.condition(2, false));
        let mut body = String::new();
        for _ in 0..1 + self.random.below(5) {
            body += &self.statement(3, PLACES[place].has_text);
        }
        if self.random.one_in(3) && PLACES[place].point == "uprobe:fuzzed:exact" {
            // Words that only this call has: a handler that interrupts it has others.
            let (value, name) = (self.number(2, false), self.name());
            body += &format!(
                "@temporary{number}[tid, {{A}}, {{B}}] = (int64){value}; {name} = @temporary{number}[tid, {{A}}, {{B}}]; \
                 @kept{number} = sum((int64){name}); delete(@temporary{number}, (tid, {{A}}, {{B}})); "
            );
        }
        Clause { place, filter, body }
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("$v{}", self.names)
    }

    /// A number of 64 bits with a sign.
    fn number(&mut self, depth: u32, has_text: bool) -> String {
        if depth == 0 || self.random.one_in(5) {
            return match self.random.below(8) {
                0..=2 => "{A}".to_owned(),
                3 | 4 => "{B}".to_owned(),
                5 => self.random.of(&["0", "1", "7", "255", "4096", "-1", "1000000007"]).to_owned(),
                6 if has_text => "(int64)strlen({S})".to_owned(),
                _ => self.random.below(100).to_string(),
            };
        }
        let mut part = || self.number(depth - 1, has_text);
        let (left, right) = (part(), part());
        match self.random.below(9) {
            0 | 1 => format!("({left} {} {right})", self.random.of(&["+", "-", "*", "&", "|", "^"])),
            2 => format!("({left} {} {})", self.random.of(&["/", "%"]), 1 + self.random.below(50)),
            3 => format!("({left} {} {})", self.random.of(&["<<", ">>"]), self.random.below(9)),
            4 => {
                let to = self.random.of(&["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"]);
                format!("(int64)({to})({left})")
            }
            5 => format!("({} ? {left} : {right})", self.condition(depth - 1, has_text)),
            6 => format!("(~{left})"),
            7 => format!("(int64)bswap((uint32)({left}))"),
            _ => format!("({left} - {right})"),
        }
    }

    fn condition(&mut self, depth: u32, has_text: bool) -> String {
        match self.random.below(6) {
            0 if has_text => format!("{{S}} == \"{}\"", self.random.of(&["alpha", "beta", "", "none"])),
            1 if has_text => format!("strncmp({{S}}, \"a\", {}) == 0", 1 + self.random.below(3)),
            2 if depth > 0 => {
                let (left, right) =
                    (self.condition(depth - 1, has_text), self.condition(depth - 1, has_text));
                format!("(({left}) {} ({right}))", self.random.of(&["&&", "||"]))
            }
            _ => {
                let (left, right) =
                    (self.number(depth.min(1), has_text), self.number(depth.min(1), has_text));
                format!("({left} {} {right})", self.random.of(&["<", ">", "<=", ">=", "==", "!="]))
            }
        }
    }

    fn key(&mut self, keys: Keys, has_text: bool) -> String {
        let text = if has_text { "{S}" } else { "str(\"none\", 32)" };
        let number = |maker: &mut Maker, most: u64| {
            let number = maker.number(1, has_text);
            format!("(int64)(({number}) % {most})")
        };
        match keys {
            Keys::None => String::new(),
            Keys::Number => format!("[{}]", number(self, 60)),
            Keys::Small => format!("[(uint8)({})]", self.number(1, has_text)),
            Keys::Pair => format!("[{}, {}]", number(self, 9), number(self, 9)),
            Keys::Text => format!("[{text}]"),
            Keys::Nested => format!("[({}, {text}), {}]", number(self, 5), number(self, 3)),
        }
    }

    /// Something on a map, whose outcome does not depend on the order.
    fn on_map(&mut self, has_text: bool) -> String {
        let index = self.random.below(self.maps.len() as u64) as usize;
        let (holds, keys) = self.maps[index];
        let key = self.key(keys, has_text);
        let value = self.number(2, has_text);
        let map = format!("@m{index}{key}");
        match holds {
            Holds::Count => format!("{map} = count(); "),
            Holds::Sum => format!("{map} = sum((int64){value}); "),
            Holds::Min => format!("{map} = min((int64){value}); "),
            Holds::Max => format!("{map} = max((int64){value}); "),
            // Both stay within 64 bits, whoever adds them.
            Holds::Avg => format!("{map} = avg((int64)(int32){value}); "),
            Holds::Stats => format!("{map} = stats((int64)(int32){value}); "),
            Holds::Hist => format!("{map} = hist((int64){value}); "),
            Holds::Linear => format!("{map} = lhist((int64){value}, 0, 800, 50); "),
            Holds::Added if self.random.one_in(2) => format!("{map}++; "),
            Holds::Added => format!("{map} += (int64){value}; "),
            Holds::Set => format!("{map} = (int64){}; ", 40 + index),
        }
    }

    fn statement(&mut self, depth: u32, has_text: bool) -> String {
        let choices = if depth == 0 { 4 } else { 11 };
        match self.random.below(choices) {
            0..=3 => self.on_map(has_text),
            4 => {
                let (condition, then) = (self.condition(2, has_text), self.statement(depth - 1, has_text));
                let other = self.statement(depth - 1, has_text);
                format!("if ({condition}) {{ {then}}} else {{ {other}}} ")
            }
            5 => {
                let (name, value) = (self.name(), self.number(2, has_text));
                let inside = self.on_map(has_text).replacen("{A}", &name, 1);
                format!("{name} = (int64){value}; {inside}")
            }
            6 => {
                let (name, rounds) = (self.name(), 1 + self.random.below(4));
                let inside = self.inside(depth, has_text).replacen("{B}", &name, 1);
                format!("for {name} : 0..{rounds} {{ {inside}}} ")
            }
            7 => {
                let (name, rounds) = (self.name(), 1 + self.random.below(4));
                let inside = self.inside(depth, has_text);
                let out = if self.random.one_in(2) {
                    format!("if ({name} == 2) {{ break; }} ")
                } else {
                    String::new()
                };
                format!("{name} = 0; while ({name} < {rounds}) {{ {name}++; {out}{inside}}} ")
            }
            8 => format!("unroll({}) {{ {}}} ", 1 + self.random.below(3), self.inside(depth, has_text)),
            9 if self.loops == 0 => format!("if ({}) {{ {{RETURN}} }} ", self.condition(1, has_text)),
            9 | 10 if has_text && self.random.one_in(3) => {
                format!("printf(\"told %d %d %s\\n\", {}, {{B}}, {{S}}); ", self.number(1, has_text))
            }
            _ => self.on_map(has_text),
        }
    }

    fn inside(&mut self, depth: u32, has_text: bool) -> String {
        self.loops += 1;
        let inside = self.statement(depth - 1, has_text);
        self.loops -= 1;
        inside
    }

    /// Clauses on what comes and goes.
    fn wild(&mut self) -> String {
        const DEEDS: [&str; 24] = [
            "@w0[*(uint64 *)arg0] = count();",
            "@w1[str(arg0)] = count();",
            "@w2[buf(arg0, 16)] = count();",
            "@w3 = sum(((struct node *)arg0)->value);",
            "@w4[((struct node *)arg0)->next->next->value] = count();",
            "@w5[str(((struct node *)arg0)->text, 20)] = count();",
            "@w6[ustack] = count();",
            "@w7[ustack(3), tid] = count();",
            "@w8[cpu] = hist(nsecs % 1000);",
            "@w9[comm] = count();",
            "@w10[arg1 % 10] = arg1;",
            "delete(@w10, arg1 % 10);",
            "if (arg1 % 7 == 0) { clear(@w10); }",
            "if (arg1 % 5 == 0) { zero(@w0); }",
            "for $kv : @w10 { @w11 = sum((int64)$kv.1); }",
            "@w12[arg1] = hist(arg1);",
            "@w13 = tseries(arg1, 1ms, 10);",
            "@w14[(arg1 % 3, str(arg0, 7)), rand % 2] = max(arg1);",
            "@w15[tid] = nsecs; @w16 = max(nsecs - @w15[tid]); delete(@w15, tid);",
            "$n = (struct node *)arg0; $k = 0; while ($k < 9) { $n = $n->next; $k++; } @w17 = sum($n->value);",
            "@w18[has_key(@w10, 3), len(@w10)] = count();",
            "$t = (arg1, str(arg0, 12), (cpu, pid)); @w19[$t.1, $t.2.1] = count();",
            "@few[arg1 % 100, str(arg0, 5)] = count();",
            "printf(\"wild %d %s %r\\n\", arg1, str(arg0, 9), buf(arg0, 5));",
        ];
        // Others look at these maps, in whichever order deeds come.
        let mut text =
            "uprobe:fuzzed:wild { @w0[*(uint64 *)arg0] = count(); @w10[arg1 % 10] = arg1; }\n".to_owned();
        for _ in 0..1 + self.random.below(3) {
            let deeds: Vec<usize> =
                (0..1 + self.random.below(6)).map(|_| self.random.below(24) as usize).collect();
            // A block each: names of one are not those of another.
            let body: String = deeds.iter().map(|deed| format!("if (1) {{ {} }} ", DEEDS[*deed])).collect();
            text += &format!("uprobe:fuzzed:wild {{ {body}}}\n");
        }
        if self.random.one_in(2) {
            text += "uretprobe:fuzzed:wild { @r0 = hist(retval); @r1[ustack(4)] = count(); }\n";
        }
        if self.random.one_in(2) {
            text += "uprobe:fuzzed:left { @l0[tid] = nsecs; } uretprobe:fuzzed:left { @l1 = max(duration); delete(@l0, tid); }\n";
        }
        text
    }
}

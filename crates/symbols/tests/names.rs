//! Hard case I2: damaged mangled names. They demangle to something short, or stay as they are.

use trapless_symbols::{Demangled, Module, demangle};

const SEEDS: &[&str] = &[
    "_ZNSt3mapISsSt6vectorIiSaIiEESt4lessISsESaISt4pairIKSsS2_EEE5eraseESt17_Rb_tree_iteratorIS7_E",
    "_ZZN3foo3barEvENKUlT_DpT0_E_clIiJdcEEEDaS0_S2_.isra.0.cold",
    "_ZN9__gnu_cxx13new_allocatorISt13_Rb_tree_nodeISt4pairIKiSt8functionIFvvEEEEE8allocateEmPKv",
    "_ZNK4core4iter8adapters3map12map_try_fold28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
    "_RNvMNtCs4fqI2P2rA04_4core3strINtNtB4_6option6OptionINtB2_3VecReEE3map",
    "_RINvNtC3std3mem8align_ofNtNtC3std3mem12DiscriminantE",
    "_RNCNvC6_123foo3bar0B3_",
    "_RYNtC1a1SNtNtC4core3fmt5Debug3fmt",
    "_ZTv0_n24_N3FooD1Ev",
    "_GLOBAL__sub_I_main",
    "_Z1fILi1EEvDTcmltLi1ELi2ET_E",
];

#[test]
fn i2_mutated_names_are_demangled_within_bounds() {
    let mut state = 0x0dd0_5eed_u64;
    let mut random = |limit: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit.max(1)
    };
    const LETTERS: &[u8] = b"SNTIELKJDCPRBXMYZFGUvicdp_0123456789nsqat";
    let mut changed = 0;
    for round in 0..60_000 {
        let mut name = SEEDS[random(SEEDS.len())].as_bytes().to_vec();
        for _ in 0..1 + random(4) {
            let at = 2 + random(name.len() - 2);
            match random(4) {
                0 => name[at] = LETTERS[random(LETTERS.len())],
                1 => name.insert(at, LETTERS[random(LETTERS.len())]),
                2 => {
                    let piece = name[at..(at + 1 + random(12)).min(name.len())].repeat(1 + random(60));
                    name.splice(at..at, piece);
                }
                _ => name.truncate(at.max(4)),
            }
        }
        let name = String::from_utf8(name).unwrap();
        let both = Demangled::of(&name);
        assert!(both.full.len() <= (16 << 10).max(name.len()), "{round}: {name}");
        assert!(both.path.len() <= (16 << 10).max(name.len()), "{round}: {name}");
        changed += usize::from(both.full != name);
    }
    println!("{changed} demangled");
    assert!(changed > 3000);
}

#[test]
fn names_of_real_libraries_lose_their_mangling() {
    let Ok(module) = Module::open("/usr/lib/x86_64-linux-gnu/libstdc++.so.6") else {
        return trapless_testing::skip!("no libstdc++");
    };
    let names = module.functions().iter().flat_map(|function| function.names().collect::<Vec<_>>());
    let mangled: Vec<_> = names.map(|name| name.plain()).filter(|name| name.starts_with("_Z")).collect();
    let readable = mangled.iter().filter(|name| !demangle(name).starts_with("_Z")).count();
    println!("{readable} of {}", mangled.len());
    assert!(mangled.len() > 2000 && readable * 1000 >= mangled.len() * 998);
}

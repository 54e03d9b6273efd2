//! Says by which mechanisms the entry of a function in a file can be probed, and why not by the others.
//!
//! ```text
//! cargo run --example explain_file -- /lib/x86_64-linux-gnu/libc.so.6 malloc
//! ```
//!
//! No process is needed, and the file may be of any instruction set that trapless knows.

use std::error::Error;
use trapless_isa::{Mechanism, Site};
use trapless_session::{survey, target};
use trapless_symbols::Module;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(name)) = (arguments.next(), arguments.next()) else {
        return Err("usage: explain_file FILE FUNCTION".into());
    };
    let module = Module::open(&path)?;
    let function = module.function_named(&name).ok_or_else(|| format!("{path} has no function {name}"))?;
    let isa = target::machine(&module).isa();
    // A patch may only cover instructions that nobody jumps into, so the whole file is read for branches.
    let targets = survey::branch_targets(&module, isa)?;
    let code = module.code(function.range()).ok_or("its code is not in the file")?;
    let site =
        Site { padding: module.padding_after(function), ..Site::new(function.address(), code, &targets) };
    println!("{name} at {:#x}, {} bytes, {:?}", site.address, site.code.len(), module.machine());
    let ladder = isa.verdict(&site);
    for mechanism in Mechanism::ALL {
        match ladder.rung(mechanism) {
            Ok(displaced) => println!("{mechanism:<8} possible, displaces {} bytes", displaced.length),
            Err(reason) => println!("{mechanism:<8} no: {reason}"),
        }
    }
    match isa.return_verdict(&site) {
        Ok(()) => println!("return   possible"),
        Err(reason) => println!("return   no: {reason}"),
    }
    Ok(())
}

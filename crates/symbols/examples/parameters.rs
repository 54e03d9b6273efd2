//! Prints what a function of a file takes and gives, and where: `parameters FILE FUNCTION`.

use std::time::Instant;

use trapless_symbols::{Module, Types};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(name)) = (arguments.next(), arguments.next()) else {
        return Err("usage: parameters FILE FUNCTION|0xADDRESS|type NAME|variable NAME".into());
    };
    let start = Instant::now();
    let module = Module::open(&file)?;
    let opened = start.elapsed();
    let mut types = Types::new();
    if let Some(wanted) = arguments.next() {
        let mut reader = module.type_reader()?;
        if name == "variable" {
            let variable = reader.variable(&mut types, &wanted, None)?;
            println!("{} {:?}", types.notation(variable.of), variable.location);
        } else {
            let id = reader.type_named(&mut types, &wanted, None)?;
            reader.complete(&mut types, id);
            println!("{} {:#?}", types.notation(id), types.get(id));
        }
        println!("{:?}, {} types", start.elapsed(), types.len());
        return Ok(());
    }
    let address = match name.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => module.function_named(&name).ok_or("no such function")?.address(),
    };
    let resolved = start.elapsed();
    let mut reader = module.type_reader()?;
    let listed = start.elapsed();
    let function = reader.function(&mut types, address)?;
    let read = start.elapsed();
    println!("{} at {:#x}", function.name.as_deref().unwrap_or("?"), function.entry);
    for parameter in &function.parameters {
        let name = parameter.name.as_deref().unwrap_or("?");
        println!("  {name}: {} in {:?}", types.notation(parameter.of), parameter.location);
    }
    println!("  gives {} in {:?}", types.notation(function.result), function.result_location);
    for local in reader.locals(&mut types, address)?.iter().skip(function.parameters.len()) {
        let name = local.name.as_deref().unwrap_or("?");
        println!("  local {name}: {} in {:?} {:?}", types.notation(local.of), local.location, local.scope);
    }
    println!(
        "opened {opened:?}, name resolved {:?}, units listed {:?}, function read {:?}, {} types",
        resolved - opened,
        listed - resolved,
        read - listed,
        types.len()
    );
    Ok(())
}

//! A program that runs a script on itself: how large is what it allocates, and what of it is a file's name?
//!
//! ```text
//! cargo run -p trapless --features inside-script --example script_myself
//! ```

use std::error::Error;
use trapless::{ScriptOptions, ScriptShown};

fn main() -> Result<(), Box<dyn Error>> {
    let text = r#"
        uprobe:libc:malloc { @sizes = hist(arg0); }
        uprobe:libc:open*  { printf("opens %s\n", str(arg0)); @[str(arg0)] = count(); }
        uretprobe:libc:open* { @descriptors = max(retval); }
    "#;
    let options = ScriptOptions::default().output(std::io::stderr());
    let script = trapless::inside()?.script_with(text, options)?;
    for left_alone in script.skipped() {
        eprintln!("{} is left alone: {}", left_alone.function, left_alone.why.reason);
    }
    for name in ["/etc/passwd", "/etc/hosts", "/etc/passwd"] {
        println!("{name} has {} bytes", std::fs::read(name).map_or(0, |bytes| bytes.len()));
    }
    // While it runs, as values.
    let results = script.results()?;
    for (key, value) in results.map("@").into_iter().flat_map(|map| &map.entries) {
        if let (Some(key), ScriptShown::Value(count)) = (key, value) {
            println!("{}: {}", String::from_utf8_lossy(&key.text()), String::from_utf8_lossy(&count.text()));
        }
    }
    // Its maps are printed where it prints.
    script.stop()?;
    Ok(())
}

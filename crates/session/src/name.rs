//! A function's name for people, made when somebody asks for it.
//!
//! Demangling takes longer than anything else about a name, and of the thousands of functions that a pattern means, most
//! are never shown.

use std::fmt;
use std::sync::{Arc, OnceLock};
use trapless_symbols::demangle;

/// The name of a site. Clones share it.
#[derive(Clone)]
pub struct SiteName(Arc<Parts>);

struct Parts {
    symbol: Box<str>,
    offset: u64,
    text: OnceLock<String>,
}

impl SiteName {
    /// Of the site `offset` bytes into the function with this symbol.
    ///
    /// ```
    /// use trapless_session::name::SiteName;
    ///
    /// assert_eq!(SiteName::new("_ZN3foo3barEi", 0).text(), "foo::bar(int)");
    /// assert_eq!(SiteName::new("main", 16).text(), "main+0x10");
    /// ```
    pub fn new(symbol: &str, offset: u64) -> Self {
        Self(Arc::new(Parts { symbol: symbol.into(), offset, text: OnceLock::new() }))
    }

    /// Of a USDT probe.
    pub fn of_usdt(provider: &str, name: &str) -> Self {
        let text = OnceLock::from(format!("{provider}:{name}"));
        Self(Arc::new(Parts { symbol: Box::default(), offset: 0, text }))
    }

    /// As the programmer wrote it, with the offset of a site inside the function.
    pub fn text(&self) -> &str {
        let Parts { symbol, offset, text } = &*self.0;
        text.get_or_init(|| match offset {
            0 => demangle(symbol).into_owned(),
            _ => format!("{}+{offset:#x}", demangle(symbol)),
        })
    }
}

impl fmt::Debug for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

//! A site's name for people, made when somebody asks for it.
//!
//! Demangling takes longer than anything else about a name, and of the thousands of functions that a pattern means, most
//! are never shown.

use serde::Serialize;
use std::fmt;
use std::sync::{Arc, OnceLock};
use trapless_symbols::{Place, demangle};

/// The name of a site. Clones share it.
#[derive(Clone)]
pub struct SiteName(Arc<Parts>);

struct Parts {
    symbol: Box<str>,
    offset: u64,
    /// Not the function itself is meant, but copies of others in it.
    is_around: bool,
    /// Where it is in the source: more than one where several lines begin with one instruction, and each was asked for.
    places: Vec<Place>,
    /// The functions, demangled, of which a copy begins here or is here.
    inlined: Vec<String>,
    text: OnceLock<String>,
}

/// Where a site is in the source, in the fields of results. All are absent where it was not asked for by its place in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Source {
    /// The source file's whole path, as the compiler saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The column, from 1, where the compiler told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The other places that begin at the same instruction and were asked for, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// The functions of which an inlined copy is here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<String>,
    /// The function they were inlined into.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inlined_into: Option<String>,
}

/// Another place of the same site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Also {
    /// The source file's whole path.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1, where the compiler told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
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
        Self::of(symbol, offset, false, Vec::new(), Vec::new())
    }

    /// Of a USDT probe.
    pub fn of_usdt(provider: &str, name: &str) -> Self {
        Self(Arc::new(Parts {
            symbol: Box::default(),
            offset: 0,
            is_around: false,
            places: Vec::new(),
            inlined: Vec::new(),
            text: OnceLock::from(format!("{provider}:{name}")),
        }))
    }

    /// Of a site that was asked for by its place in the source. `inlined`: the function, demangled, whose copy it is in or begins.
    ///
    /// ```
    /// use trapless_session::name::SiteName;
    /// use trapless_symbols::Place;
    ///
    /// let place = Place { file: "/src/app.c".into(), line: 12, column: 3 };
    /// let line = SiteName::in_source("main", 16, Some(place.clone()), None);
    /// assert_eq!(line.text(), "main+0x10 (app.c:12)");
    /// let copy = SiteName::in_source("main", 16, Some(place), Some("twice".to_owned()));
    /// assert_eq!(copy.text(), "twice inlined into main+0x10 (app.c:12)");
    /// ```
    pub fn in_source(symbol: &str, offset: u64, place: Option<Place>, inlined: Option<String>) -> Self {
        let is_around = inlined.is_some();
        Self::of(symbol, offset, is_around, place.into_iter().collect(), inlined.into_iter().collect())
    }

    fn of(symbol: &str, offset: u64, is_around: bool, places: Vec<Place>, inlined: Vec<String>) -> Self {
        Self(Arc::new(Parts {
            symbol: symbol.into(),
            offset,
            is_around,
            places,
            inlined,
            text: OnceLock::new(),
        }))
    }

    /// The name of a site that was asked for twice, of which `self` is the first name.
    pub(crate) fn joined(&self, other: &SiteName) -> SiteName {
        let (parts, other) = (&*self.0, &*other.0);
        let is_around = parts.is_around && other.is_around;
        if other.inlined.is_empty() && other.places.is_empty() && is_around == parts.is_around {
            return self.clone();
        }
        let mut inlined = parts.inlined.clone();
        inlined.extend(other.inlined.iter().filter(|name| !parts.inlined.contains(name)).cloned());
        // Of a function's several names, that of what is no copy was asked for.
        let symbol = if parts.is_around && !other.is_around { &other.symbol } else { &parts.symbol };
        let mut places = parts.places.clone();
        let is_new = |place: &&Place| {
            parts.places.iter().all(|known| (&known.file, known.line) != (&place.file, place.line))
        };
        places.extend(other.places.iter().filter(is_new).cloned());
        SiteName::of(symbol, parts.offset, is_around, places, inlined)
    }

    /// As the programmer wrote it, with the offset of a site inside the function and its place in the source.
    pub fn text(&self) -> &str {
        self.0.text.get_or_init(|| self.0.told())
    }

    /// The line of the source, if it was asked for by that.
    pub fn line(&self) -> Option<u32> {
        self.0.places.first().map(|place| place.line)
    }

    /// Whether the site is one of this function itself, and in no copy of another one.
    pub fn is_within(&self, function: &SiteName) -> bool {
        self.0.symbol == function.0.symbol && !self.0.is_around
    }

    /// Where it is in the source, if it was asked for by that.
    pub fn source(&self) -> Source {
        let Parts { symbol, places, inlined, .. } = &*self.0;
        let place = places.first();
        let column = |place: &Place| Some(place.column).filter(|&column| column > 0);
        let also =
            |place: &Place| Also { file: place.file.to_string(), line: place.line, column: column(place) };
        Source {
            file: place.map(|place| place.file.to_string()),
            line: place.map(|place| place.line),
            column: place.and_then(column),
            also: places.iter().skip(1).map(also).collect(),
            inlined: inlined.clone(),
            inlined_into: (!inlined.is_empty()).then(|| demangle(symbol).into_owned()),
        }
    }
}

impl Parts {
    /// All but a text that is made of the rest, which takes long. The name of a USDT probe is nothing else.
    fn as_asked(&self) -> (&str, u64, bool, &[Place], &[String], Option<&String>) {
        let text = self.text.get().filter(|_| self.symbol.is_empty());
        (&self.symbol, self.offset, self.is_around, &self.places, &self.inlined, text)
    }

    fn told(&self) -> String {
        let symbol = demangle(&self.symbol);
        let whole = match self.offset {
            0 => symbol.into_owned(),
            offset => format!("{symbol}+{offset:#x}"),
        };
        let text = match (self.inlined.is_empty(), self.is_around) {
            (true, _) => whole,
            (false, true) => format!("{} inlined into {whole}", self.inlined.join(" and ")),
            (false, false) => format!("{whole} and {} inlined into it", self.inlined.join(" and ")),
        };
        if self.places.is_empty() {
            return text;
        }
        let file =
            |place: &Place| format!("{}:{}", place.file.rsplit('/').next().unwrap_or_default(), place.line);
        let places: Vec<String> = self.places.iter().map(file).collect();
        format!("{text} ({})", places.join(", "))
    }
}

impl PartialEq for SiteName {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.as_asked() == other.0.as_asked()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_was_asked_for_twice_tells_both() {
        let place = |line| Some(Place { file: "a.c".into(), line, column: 0 });
        let plain = SiteName::new("main", 0);
        let line = SiteName::in_source("main", 0, place(3), None);
        let copy = |name: &str| SiteName::in_source("main", 0, place(9), Some(name.to_owned()));
        for (first, second, expected) in [
            (&plain, &plain, "main"),
            (&plain, &line, "main (a.c:3)"),
            (&line, &plain, "main (a.c:3)"),
            (&line, &SiteName::in_source("main", 0, place(4), None), "main (a.c:3, a.c:4)"),
            (&line, &copy("f"), "main and f inlined into it (a.c:3, a.c:9)"),
            (&plain, &copy("f"), "main and f inlined into it (a.c:9)"),
            (&copy("f"), &plain, "main and f inlined into it (a.c:9)"),
            (&copy("f"), &copy("g"), "f and g inlined into main (a.c:9)"),
            (&copy("f"), &copy("f"), "f inlined into main (a.c:9)"),
        ] {
            assert_eq!(first.joined(second).text(), expected);
        }
    }

    #[test]
    fn names_are_equal_that_were_asked_for_alike_and_no_others() {
        let place = |line| Some(Place { file: "a.c".into(), line, column: 0 });
        let all = || {
            [
                SiteName::new("main", 0),
                SiteName::new("main", 1),
                SiteName::in_source("main", 0, place(3), None),
                SiteName::in_source("main", 0, place(4), None),
                SiteName::in_source("main", 0, place(3), Some("f".to_owned())),
                SiteName::of_usdt("p", "main"),
                SiteName::of_usdt("p", "other"),
            ]
        };
        let (first, again) = (all(), all());
        // That it was shown makes no difference.
        first.iter().for_each(|name| drop(name.text().to_owned()));
        for (a, name) in first.iter().enumerate() {
            for (b, other) in again.iter().enumerate() {
                assert_eq!(name == other, a == b, "{name} {other}");
            }
        }
    }
}

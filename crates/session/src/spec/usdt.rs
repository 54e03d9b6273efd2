//! USDT probes, as bpftrace and perf write them.
//!
//! ```text
//! usdt:PATH:PROVIDER:NAME     U: is the same
//! usdt:PATH:NAME              whoever offers it
//! usdt:PROVIDER:NAME          the same text: where no module is called so, it is a provider in any module
//! usdt::PROVIDER:NAME         in any module
//! usdt:NAME                   in any module, whoever offers it
//! sdt_PROVIDER:NAME           as perf writes it, which may put a % ahead
//! ```

use super::{Location, Pattern, SpecError, Syntax, pattern, split};

/// The module and the probes that `text` names from byte `from` on, if it is about USDT.
pub(super) fn parse(
    text: &str,
    from: usize,
    syntax: Syntax,
) -> Result<Option<(Pattern, Location)>, SpecError> {
    let body = &text[from..];
    if let Some((start, rest)) = perf(body, syntax) {
        let at = from + start;
        let parts = split::parts(rest, syntax);
        let [(_, provider), (behind, name)] = parts[..] else {
            return Err(SpecError::new(text, at, "as perf writes it, a USDT probe is sdt_PROVIDER:NAME"));
        };
        let provider = Some(pattern(text, at, required(text, at, provider)?, syntax)?);
        let name = pattern(text, at + behind, required(text, at + behind, name)?, syntax)?;
        return Ok(Some((Pattern::everything(), Location::Usdt { provider, name })));
    }
    let Some(start) = prefix(body, syntax) else { return Ok(None) };
    let at = from + start;
    let parts = split::parts(&body[start..], syntax);
    let (module, provider, (behind, name)) = match parts[..] {
        [name] => (None, None, name),
        [module, name] => (Some(module), None, name),
        [module, provider, name] => (Some(module), Some(provider), name),
        _ => {
            let more = parts.get(3).map_or(text.len(), |(offset, _)| at + offset);
            return Err(SpecError::new(text, more, "too many parts; write usdt:PATH:PROVIDER:NAME"));
        }
    };
    let name = pattern(text, at + behind, required(text, at + behind, name)?, syntax)?;
    let given = |part: Option<(usize, &str)>| {
        let part = part.filter(|(_, part)| !part.is_empty());
        part.map(|(offset, part)| pattern(text, at + offset, part, syntax)).transpose()
    };
    let module = given(module)?.unwrap_or_else(Pattern::everything);
    Ok(Some((module, Location::Usdt { provider: given(provider)?, name })))
}

/// The probes that `text` names in a file that is given apart: `usdt:PROVIDER:NAME` or `usdt:NAME`.
pub(super) fn names(text: &str, syntax: Syntax) -> Result<Option<Location>, SpecError> {
    let Some((module, location)) = parse(text, 0, syntax)? else { return Ok(None) };
    Ok(match location {
        Location::Usdt { provider: None, name } if module.text() != "*" => {
            Some(Location::Usdt { provider: Some(module), name })
        }
        location => Some(location),
    })
}

/// Whether `text` is about USDT.
pub(super) fn is_meant(text: &str, syntax: Syntax) -> bool {
    prefix(text, syntax).is_some() || perf(text, syntax).is_some()
}

/// Where the rest begins behind `usdt:` or `U:`. A module may be called `U`; then nothing else separates.
fn prefix(body: &str, syntax: Syntax) -> Option<usize> {
    let short = |rest: &&str| split::parts(rest, syntax).len() > 1;
    body.strip_prefix("usdt:").or_else(|| body.strip_prefix("U:").filter(short)).map(|r| body.len() - r.len())
}

/// Where the rest begins behind `sdt_`, as perf writes it, and the rest.
fn perf(body: &str, syntax: Syntax) -> Option<(usize, &str)> {
    let rest = body.strip_prefix('%').unwrap_or(body).strip_prefix("sdt_")?;
    (split::parts(rest, syntax).len() == 2).then_some((body.len() - rest.len(), rest))
}

fn required<'t>(text: &str, at: usize, part: &'t str) -> Result<&'t str, SpecError> {
    match part {
        "" => Err(SpecError::new(text, at, "no name; '*' means all of them")),
        part => Ok(part),
    }
}

//! Expansion of the preprocessor's macros.

use std::rc::Rc;

use super::{MAX_TOKENS, Macro, Preprocessor};
use crate::syntax::c::token::{Hidden, Place, Token, TokenKind, text, tokens};

/// By how many macros a token may have come.
const MAX_HIDDEN: u32 = 500;
/// How many calls may have no end, or the wrong number of arguments.
const MAX_UNCLOSED: u32 = 1000;

impl Preprocessor<'_> {
    /// Expands all macros in `input`.
    pub(super) fn expand(&mut self, input: Vec<Token>) -> Vec<Token> {
        self.expand_within(input, 0)
    }

    /// Arguments are expanded before they are put in, which nests.
    fn expand_within(&mut self, input: Vec<Token>, depth: u32) -> Vec<Token> {
        const MAX_DEPTH: u32 = 64;
        let mut out = Vec::new();
        // What is still to be read, last first.
        let mut waiting = input;
        waiting.reverse();
        while let Some(token) = waiting.pop() {
            if self.failed {
                break;
            }
            let found =
                self.macros.get(&token.text).filter(|_| token.is_identifier() && !token.hides(&token.text));
            let Some(found) = found.cloned() else {
                out.push(token);
                continue;
            };
            let arguments = match &found.parameters {
                None => Vec::new(),
                Some(_) if !waiting.last().is_some_and(|next| next.is("(")) => {
                    out.push(token);
                    continue;
                }
                Some(parameters) => match take_arguments(&mut waiting, parameters.len(), found.variadic) {
                    Some(arguments) => arguments,
                    None => {
                        // Each search for the end goes through all that is left.
                        self.unclosed += 1;
                        if self.unclosed > MAX_UNCLOSED {
                            self.fail(token.span, "a call of a macro has no end");
                        }
                        out.push(token);
                        continue;
                    }
                },
            };
            if depth >= MAX_DEPTH {
                self.fail(token.span, "macros of C nest too deeply");
                break;
            }
            let mut body = self.substitute(&found, &arguments, &token, depth);
            self.written = self.written.saturating_add(body.len());
            if self.written > MAX_TOKENS {
                self.fail(token.span, "macros of C write too much");
                break;
            }
            let hidden = Hidden::with(token.text.clone(), token.hidden.clone());
            if hidden.count > MAX_HIDDEN {
                self.fail(token.span, "macros of C nest too deeply");
                break;
            }
            for token in &mut body {
                token.hidden = Some(match &token.hidden {
                    None => hidden.clone(),
                    // Hidden already by an argument's macro: both count.
                    Some(own) => Hidden::with(hidden.name.clone(), Some(own.clone())),
                });
            }
            waiting.extend(body.into_iter().rev());
        }
        out
    }

    /// The body with its arguments put in. Tokens have the place of the call.
    fn substitute(
        &mut self,
        found: &Macro,
        arguments: &[Vec<Token>],
        call: &Token,
        depth: u32,
    ) -> Vec<Token> {
        let parameters = found.parameters.as_deref().unwrap_or_default();
        let argument = |token: &Token| {
            let index =
                parameters.iter().position(|parameter| token.is_identifier() && *parameter == token.text);
            index.and_then(|index| arguments.get(index))
        };
        let mut out: Vec<Token> = Vec::new();
        let mut at = 0;
        let mut pasting = false;
        while let Some(token) = found.body.get(at) {
            at += 1;
            if token.is("##") && !out.is_empty() {
                pasting = true;
                continue;
            }
            let next_pastes = found.body.get(at).is_some_and(|next| next.is("##"));
            let mut piece = match argument(token) {
                Some(given) if pasting || next_pastes => given.clone(),
                Some(given) => self.expand_within(given.clone(), depth + 1),
                None if token.is("#") && found.parameters.is_some() => {
                    match found.body.get(at).and_then(argument) {
                        Some(given) => {
                            at += 1;
                            let quoted = text(given).replace('\\', "\\\\").replace('"', "\\\"");
                            let text = Rc::from(format!("\"{quoted}\""));
                            vec![Token { kind: TokenKind::String, text, ..token.clone() }]
                        }
                        None => vec![token.clone()],
                    }
                }
                None => vec![token.clone()],
            };
            for token in &mut piece {
                token.span = call.span;
                token.first = false;
            }
            if let Some(first) = piece.first_mut() {
                first.spaced = if out.is_empty() { call.spaced } else { token.spaced };
            }
            if pasting {
                pasting = false;
                paste(&mut out, piece, call);
            } else {
                out.extend(piece);
            }
        }
        out
    }
}

/// Joins the last token with the first of `piece`.
fn paste(out: &mut Vec<Token>, piece: Vec<Token>, call: &Token) {
    let mut piece = piece.into_iter();
    match (out.pop(), piece.next()) {
        (Some(left), Some(right)) => {
            let joined = format!("{}{}", left.text, right.text);
            let mut made = tokens(&joined, Place::Whole(call.span));
            for token in &mut made {
                token.first = false;
            }
            out.append(&mut made);
        }
        (left, right) => out.extend(left.into_iter().chain(right)),
    }
    out.extend(piece);
}

/// Takes the arguments of a call from the end of `waiting`. Nothing, and nothing taken, if they do not end or
/// are not as many as there are parameters.
fn take_arguments(waiting: &mut Vec<Token>, count: usize, variadic: bool) -> Option<Vec<Vec<Token>>> {
    let mut arguments: Vec<Vec<Token>> = vec![Vec::new()];
    let mut depth = 0_usize;
    let mut end = None;
    for (index, token) in waiting.iter().enumerate().rev() {
        if token.is("(") {
            depth += 1;
            if depth == 1 {
                continue;
            }
        } else if token.is(")") {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                end = Some(index);
                break;
            }
        } else if token.is(",") && depth == 1 && !(variadic && arguments.len() == count) {
            arguments.push(Vec::new());
            continue;
        }
        arguments.last_mut()?.push(token.clone());
    }
    let end = end?;
    if count == 0 && arguments.len() == 1 && arguments[0].is_empty() {
        arguments.clear();
    }
    if variadic && arguments.len() + 1 == count {
        arguments.push(Vec::new());
    }
    if arguments.len() != count {
        return None;
    }
    waiting.truncate(end);
    Some(arguments)
}
